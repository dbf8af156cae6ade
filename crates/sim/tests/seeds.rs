//! Short runs of the simulator: a few seeds, each repeating itself; traces that once failed; crash
//! points.

use sim::alike::AUDIT;
use sim::check::Care;
use sim::points::{self, Count, Effort};
use sim::trace::{self, Ran, Trace};

fn fine(r: &Ran) {
    if let Some(f) = &r.finding {
        panic!("seed {}: {f}\n{}", r.trace.seed, r.trace);
    }
}

/// The same seed is the same trace with the same writes, byte for byte, and its text says it all.
#[test]
fn a_seed_repeats_itself() {
    for seed in [3, 4] {
        let a = trace::run_seed(seed, 40, 0);
        fine(&a);
        let b = trace::run_seed(seed, 40, 0);
        assert_eq!((a.hash, &a.trace), (b.hash, &b.trace), "seed {seed}");
        // Images judged besides leave no trace.
        let c = trace::run_seed(seed, 40, 30);
        fine(&c);
        assert_eq!((a.hash, &a.trace), (c.hash, &c.trace), "seed {seed}");
        assert!(c.counts.images > a.counts.images);
        let text = a.trace.to_string();
        let parsed: Trace = text.parse().unwrap();
        assert_eq!(parsed, a.trace);
        assert_eq!(
            trace::replay(&parsed, 0).hash,
            a.hash,
            "seed {seed} from text"
        );
    }
    assert_ne!(
        trace::run_seed(3, 20, 0).hash,
        trace::run_seed(4, 20, 0).hash
    );
}

/// With faults, too, of which it depends on the cache when they are met.
#[test]
fn a_seed_with_faults_repeats_itself() {
    let a = trace::run_seed(66, 120, 0);
    fine(&a);
    assert!(a.counts.faults > 0);
    assert_eq!(trace::run_seed(66, 120, 0).hash, a.hash);
}

fn seeds(range: std::ops::Range<u64>) {
    for seed in range {
        let r = trace::run_seed(seed, 80, 0);
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
        if let Some(e) = trace::replay(&t, images).finding {
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
