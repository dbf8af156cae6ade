//! Short runs of the simulator: a few seeds, each repeating itself; traces that once failed; crash
//! points.

use sim::alike::AUDIT;
use sim::check::Care;
use sim::foreign::Foreign;
use sim::gen;
use sim::points::{self, Count, Effort};
use sim::trace::{self, Extra, Ran, Trace};
use sim::world::World;
use std::sync::Arc;
use testkit::{or_skip, OpenZfs};

fn fine(r: &Ran) {
    if let Some(f) = &r.finding {
        panic!("seed {}: {f}\n{}", r.trace.seed, r.trace);
    }
}

/// The same seed is the same trace with the same writes, byte for byte, and its text says it all.
#[test]
fn a_seed_repeats_itself() {
    for seed in [3, 4] {
        let a = trace::run_seed(seed, 40, &Extra::default());
        fine(&a);
        let b = trace::run_seed(seed, 40, &Extra::default());
        assert_eq!((a.hash, &a.trace), (b.hash, &b.trace), "seed {seed}");
        // Images judged besides leave no trace.
        let c = trace::run_seed(seed, 40, &Extra::images(30));
        fine(&c);
        assert_eq!((a.hash, &a.trace), (c.hash, &c.trace), "seed {seed}");
        assert!(c.counts.images > a.counts.images);
        let text = a.trace.to_string();
        let parsed: Trace = text.parse().unwrap();
        assert_eq!(parsed, a.trace);
        assert_eq!(
            trace::replay(&parsed, &Extra::default()).hash,
            a.hash,
            "seed {seed} from text"
        );
    }
    assert_ne!(
        trace::run_seed(3, 20, &Extra::default()).hash,
        trace::run_seed(4, 20, &Extra::default()).hash
    );
}

/// With faults, too, of which it depends on the cache when they are met.
#[test]
fn a_seed_with_faults_repeats_itself() {
    let a = trace::run_seed(66, 120, &Extra::default());
    fine(&a);
    assert!(a.counts.faults > 0);
    assert_eq!(trace::run_seed(66, 120, &Extra::default()).hash, a.hash);
}

fn seeds(range: std::ops::Range<u64>) {
    for seed in range {
        let r = trace::run_seed(seed, 80, &Extra::default());
        fine(&r);
        assert!(r.counts.images > 0);
    }
}

#[test]
fn seeds_from_100() {
    seeds(100..104);
}

#[test]
fn seeds_from_200() {
    seeds(200..204);
}

/// Who has reached a limit gets nothing more, before a cut and after it (which the judges see to).
#[test]
fn limits_are_in_force() {
    let text = "seed 1\nlayout single 1 ashift 12 size 67108864 recordsize 16384 projects 1\n\
                createas . a 1 2\nwrite . a 0 20000 2\nsync\n\
                limit . userobjquota 1 1\ncreateas . b 1 1\n\
                limit . groupquota 2 20000\nwrite . a 0 9 2\ncreateas . b 2 2\n\
                create . p 644\nlimit . projectobjquota 3 1\nproject . p 3\nsync\n\
                create . q 644\nproject . q 3\ncut 0 Kept 1\n\
                limit . groupquota 2 0\ncreateas . b 2 2\nchown . b 1 1\ncut 0 Lost 2\n";
    let r = trace::replay(&text.parse().unwrap(), &Extra::default());
    fine(&r);
    assert_eq!(r.counts.refused, 5);
}

/// All devices refuse in the middle of anything that a txg writes: nothing is lost when they are well again, and
/// nothing acknowledged when the pool is exported by force.
fn refused(layout: &str) {
    let mut suspended = 0;
    for n in (0..26).step_by(2) {
        for (mode, ending) in [("wait", "clear"), ("continue", "export")] {
            let text = format!(
                "seed {n}\nlayout {layout} ashift 9 size 67108864 recordsize 16384\n\
                 create . a 644\nwrite . a 0 100000 2\nsync\nmkdir . d\nwrite . a 500 60000 3\n\
                 fsync . a\nwrite . a 0 9000 4\ncreate . d/b 644\nrefuse after {n} 2 {mode} {ending}\n\
                 sync\nread . a\nrename . d/b c\nsync\nfsync . c\ncut 0 Torn 5\nread . a\n"
            );
            let r = trace::replay(&text.parse().unwrap(), &Extra::default());
            fine(&r);
            suspended += r.counts.suspended;
        }
    }
    assert!(suspended > 10, "the pool waited {suspended} times");
}

#[test]
fn a_disk_that_refuses_at_any_moment_costs_nothing() {
    refused("single 1");
}

#[test]
fn disks_of_a_mirror_that_refuse_at_any_moment_cost_nothing() {
    refused("mirror 2");
}

#[test]
fn disks_of_raidz_that_refuse_at_any_moment_cost_nothing() {
    refused("raidz1 3");
}

/// Seeds on dRAIDs, of which the spares stand in for disks that fail.
#[test]
fn seeds_on_draids() {
    let mut images = 0;
    for seed in 400..408 {
        let r = trace::run_on(gen::draid(seed), seed, 80, &Extra::default());
        fine(&r);
        let text = r.trace.to_string();
        assert_eq!(text.parse::<Trace>().unwrap(), r.trace);
        images += r.counts.images;
    }
    assert!(images > 8, "{images} images");
}

/// Seeds that are none mean what they meant before there were any; of the others one in eight is a dRAID.
#[test]
fn one_seed_in_eight_is_a_draid() {
    let draids = (1000..1800).filter(|seed| gen::layout(*seed).spares() > 0);
    let draids = draids.count();
    assert!((70..130).contains(&draids), "{draids} of 800");
    for seed in (1..5)
        .chain([7, 66])
        .chain(100..104)
        .chain(200..204)
        .chain(300..316)
    {
        assert_eq!(gen::layout(seed).spares(), 0, "seed {seed}");
    }
}

/// A disk of a dRAID dies, the agent lets the spare stand in for it, which is filled over power cuts; a new disk comes, and the
/// spare goes; the same by command, with the disk coming back.
#[test]
fn a_distributed_spare_comes_and_goes() {
    for (layout, edges) in [
        ("draid1:2d:1s 5", 0),
        ("draid2:3d:1s 6", 1),
        ("draid1:2d:1s 4", 1),
    ] {
        let text = format!(
            "seed 1\nlayout {layout} ashift 9 size 134217728 recordsize 16384 bench 1 edges {edges}\n\
             create . a 644\nwrite . a 0 900000 2\nsync\nfault 1 dead\nwrite . a 900000 90000 3\nsync\n\
             look\nsync\nsync\ncut 300 Some 4\nlook\nfault 1 dead\nlook\nsync\ncut 0 Torn 5\nlook\n\
             scan finish\nread . a\nreimport\nlook\nscan finish\nread . a\n\
             device {bench} replace-s 1\nwrite . a 0 50000 6\nsync\ncut 0 Kept 7\nscan finish\nread . a\n\
             device 0 offline\nwrite . a 300000 70000 8\ndevice 0 spare-s 0\nsync\ncut 500 Some 9\n\
             device 0 spare 0\nscan finish\nscan scrub\nscan finish\ndevice 0 online\nwrite . a 0 9000 9\n\
             scan finish\nread . a\nreimport\nscan scrub\nscan finish\nread . a\n",
            bench = layout.chars().last().unwrap(),
        );
        let r = trace::replay(&text.parse().unwrap(), &Extra::images(25));
        fine(&r);
        assert_eq!(r.counts.refused, 0, "{layout}");
    }
}

/// Seeds in which all devices refuse now and then.
#[test]
fn seeds_wait_for_their_devices() {
    let mut suspended = 0;
    for seed in (300..316).step_by(2) {
        let r = trace::run_seed(seed, 80, &Extra::default());
        fine(&r);
        suspended += r.counts.suspended;
    }
    assert!(suspended > 3, "pools waited {suspended} times");
}

/// Traces that once failed, or nearly.
#[test]
fn kept_traces() {
    let dir = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/traces");
    let mut files: Vec<_> = std::fs::read_dir(dir)
        .unwrap()
        .map(|e| e.unwrap().path())
        .collect();
    files.sort();
    assert!(!files.is_empty());
    for f in files {
        let text = std::fs::read_to_string(&f).unwrap();
        let t: Trace = text
            .parse()
            .unwrap_or_else(|e| panic!("{}: {e}", f.display()));
        // Some need images besides those that the trace itself asks for.
        let images = text.lines().find_map(|l| l.strip_prefix("# images "));
        let images = images.map_or(0, |n| n.parse().unwrap());
        if let Some(e) = trace::replay(&t, &Extra::images(images)).finding {
            panic!("{}: {e}", f.display());
        }
    }
}

/// Points left out here; `cargo xtask sim --points` leaves out none.
const EVERY: usize = 5;

/// Every script is cut at every few points, on one layout each.
fn crash_points(from: usize, to: usize) {
    let layouts = points::layouts();
    let effort = Effort {
        subsets: 2,
        every: EVERY,
        care: Care::Quick,
        audit: AUDIT,
        foreign: None,
    };
    let mut count = Count::default();
    for (i, script) in points::SCRIPTS.iter().enumerate().take(to).skip(from) {
        let layout = layouts[i % layouts.len()];
        points::run(script, layout, 1, effort, &mut count, &|| true)
            .unwrap_or_else(|e| panic!("{e}"));
    }
    eprintln!("{count:?}");
    assert!(count.images > 100);
}

/// Images that are taken to be like others are all judged here, and it is as it was said.
#[test]
fn images_that_are_alike_are_judged_alike() {
    let effort = Effort {
        subsets: 8,
        every: 4,
        care: Care::Full,
        audit: 1,
        foreign: None,
    };
    for (script, layout) in [(1, 2), (5, 4)] {
        let (script, layout) = (&points::SCRIPTS[script], points::layouts()[layout]);
        let mut count = Count::default();
        points::run(script, layout, 1, effort, &mut count, &|| true)
            .unwrap_or_else(|e| panic!("{e}"));
        eprintln!("{count:?}");
        assert!(count.apart * 5 < count.images * 4);
    }
}

#[test]
fn crash_points_of_the_first_scripts() {
    crash_points(0, points::SCRIPTS.len() / 2);
}

#[test]
fn crash_points_of_the_last_scripts() {
    crash_points(points::SCRIPTS.len() / 2, points::SCRIPTS.len());
}

/// OpenZFS's zdb judges some images and the end of a few seeds, on raidz1, raidz2 and a single disk
/// with a log device, and images of a script.
#[test]
fn openzfs_judges() {
    let Some(zdb) = or_skip(OpenZfs::get()) else {
        return;
    };
    let foreign = Arc::new(Foreign::new(zdb.clone(), 6, None));
    let extra = Extra {
        images: 0,
        foreign: Some(foreign.clone()),
    };
    for seed in [1, 2, 7] {
        fine(&trace::run_seed(seed, 30, &extra));
    }
    assert!(foreign.judged() > 3, "images at cuts, too");
    let foreign = Foreign::new(zdb, 1, None);
    let effort = Effort {
        subsets: 0,
        every: 60,
        care: Care::Quick,
        audit: AUDIT,
        foreign: Some(&foreign),
    };
    let (script, layout) = (&points::SCRIPTS[4], points::layouts()[2]);
    points::run(script, layout, 1, effort, &mut Count::default(), &|| true)
        .unwrap_or_else(|e| panic!("{e}"));
    assert!(foreign.judged() > 0);
}

/// And would say so if something were wrong.
#[test]
fn openzfs_accuses() {
    let Some(zdb) = or_skip(OpenZfs::get()) else {
        return;
    };
    let layout = points::layouts()[0];
    let mut w = World::new(layout, 1).unwrap();
    w.foreign = Some(Arc::new(Foreign::new(zdb, 1, None)));
    w.apply(&"create . a 644".parse().unwrap()).unwrap();
    w.apply(&"write . a 0 3000 2".parse().unwrap()).unwrap();
    w.export().unwrap();
    w.disks[0].corrupt_written(disk::label::DATA_START);
    let e = w.export().unwrap_err();
    assert!(e.starts_with("zdb of OpenZFS, exported: "), "{e}");
}
