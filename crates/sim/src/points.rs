//! Crash points, exhaustively: the writes and flushes of a short script are cut at every point, and
//! at random subsets of what was not flushed by then; every image that differs from those before is
//! judged, unless it has what one before had in all places where that was looked at ([`Crowd`]).

use crate::alike::Crowd;
use crate::check::{Care, Judge, Labels};
use crate::cut::{Cutter, Fate, Image, FATES};
use crate::foreign::Foreign;
use crate::op::Op;
use crate::rig::{Layout, MIB};
use crate::world::World;
use env_sim::SeededRng;
use std::collections::BTreeSet;
use std::str::FromStr;
use vdev::GroupKind;

/// A short script: `;` between lines. What comes before `---` is not cut, as is the making of the
/// pool unless `create` says that it is.
pub struct Script {
    pub name: &'static str,
    /// The making of the pool is part of what is cut.
    pub create: bool,
    pub text: &'static str,
}

pub const SCRIPTS: [Script; 18] = [
    Script {
        name: "pool create",
        create: true,
        text: "create . a 644; fsync . a",
    },
    Script {
        name: "create",
        create: false,
        text: "create . a 644; write . a 0 3000 2; mkdir . d; create . d/b 600; symlink . l 30; \
               fsyncall .; link . a d/c; fsync . a; sync",
    },
    Script {
        name: "rename chain",
        create: false,
        text: "create . a 644; write . a 0 9000 3; mkdir . d; create . b 644; write . b 0 700 4; \
               sync; --- rename . a d/a; rename . b a; rename . d e; fsyncall .; rename . e/a a; \
               rename . e d; create . d/x 600; rename . d/x a; fsyncall .; rmdir . d; sync",
    },
    Script {
        name: "replace by rename",
        create: false,
        text:
            "create . a 644; write . a 0 20000 2; sync; --- create . t 600; write . t 0 30000 3; \
               fsync . t; rename . t a; fsyncall .; create . t 600; write . t 0 100 4; \
               rename . t a; sync",
    },
    Script {
        name: "overwrite",
        create: false,
        text: "create . a 644; write . a 0 150000 2; sync; --- write . a 4096 8192 3; fsync . a; \
               write . a 100 50 4; osync . a 140000 30000 5; write . a 0 170000 8; fsync . a; sync",
    },
    Script {
        name: "truncate",
        create: false,
        text: "create . a 644; write . a 0 200000 2; sync; --- truncate . a 5000; fsync . a; \
               truncate . a 100000; write . a 90000 100 3; fsync . a; punch . a 1000 3000; \
               truncate . a 0; fsync . a; write . a 10 10 4; sync",
    },
    Script {
        name: "large files",
        create: false,
        text: "set . recordsize 4096; --- create . a 644; write . a 0 700000 2; sync; \
               punch . a 100000 400000; fsync . a; unlink . a; sync; create . b 644; \
               write . b 0 600000 3; fsync . b",
    },
    Script {
        name: "unlink",
        create: false,
        text: "create . a 644; create . b 644; write . a 0 50000 2; sync; --- unlinkopen . a; \
               fsyncall .; unlink . b; release; sync; create . a 600; fsyncall .",
    },
    Script {
        name: "attributes",
        create: false,
        text: "create . a 644; mkdir . d; sync; --- setxattr . a user.x0 100 2; fsync . a; \
               setxattr . d user.x1 3000 3; chmod . d 711; fsyncall .; rmxattr . a user.x0; \
               chmod . a 600; fsync . a; sync",
    },
    Script {
        name: "quota",
        create: false,
        text: "createfs f0; --- set f0 quota 4194304; create f0 a 644; write f0 a 0 3000000 2; \
               fsync f0 a; write f0 a 3000000 3000000 3; sync; write f0 a 6000000 3000000 4; \
               set f0 quota 0; write f0 a 3000000 100000 5; fsync f0 a",
    },
    Script {
        name: "snapshot and rollback",
        create: false,
        text: "create . a 644; write . a 0 60000 2; --- snapshot . s1; write . a 0 60000 3; \
               fsync . a; snapshot . s2; unlink . a; sync; rollback .; write . a 100 100 4; \
               fsync . a; destroysnap . s1; destroysnap . s2",
    },
    Script {
        name: "clone and destroy",
        create: false,
        text: "create . a 644; write . a 0 60000 2; snapshot . s1; --- clone . s1 f0; \
               write f0 a 0 1000 3; fsync f0 a; createfs f1; create f1 b 644; \
               write f1 b 0 90000 4; fsync f1 b; destroyfs f1; destroyfs f0; destroysnap . s1",
    },
    Script {
        name: "export and import",
        create: false,
        text: "create . a 644; write . a 0 60000 2; fsync . a; --- reimport; write . a 0 100 3; \
               fsync . a; remount .; create . b 644; fsync . b; reimport",
    },
    // On mirrors: the tests run the n-th script on the n-th layout.
    Script {
        name: "split",
        create: false,
        text: "create . a 644; write . a 0 90000 2; createfs f0; create f0 b 644; write f0 b 0 3000 3; sync; --- \
               write . a 0 20000 4; fsync . a; shape split; write . a 0 30000 5; fsync . a; sync",
    },
    Script {
        name: "checkpoint",
        create: false,
        text: "create . a 644; write . a 0 60000 2; create . b 644; write . b 0 60000 3; sync; --- \
               checkpoint . a; write . b 0 60000 4; fsync . b; sync; discard; write . b 0 60000 5; sync",
    },
    Script {
        name: "reguid",
        create: false,
        text: "create . a 644; write . a 0 9000 2; sync; --- reguid; write . a 0 100 3; fsync . a; reguid",
    },
    Script {
        name: "many txgs",
        create: false,
        text: "create . a 644; --- write . a 0 20000 2; sync; write . a 0 20000 3; sync; \
               write . a 0 20000 4; sync; write . a 0 20000 8; sync; set . compression 2; \
               write . a 0 20000 9; sync; write . a 0 20000 10; sync",
    },
    Script {
        name: "owners",
        create: false,
        text: "createas . a 1 1; write . a 0 9000 2; sync; --- limit . userobjquota 1 1; \
               createas . b 1 1; createas . b 2 1; chown . a 2 2; fsync . a; \
               limit . userquota 2 9000; sync; write . a 9000 100 3; snapshot . s1; \
               createas . c 1 2; fsyncall .; chown . b 3 1; limit . userobjquota 1 0; \
               createas . d 1 3; fsyncall .; unlink . a; rollback .; sync",
    },
];

const DRAID: GroupKind = GroupKind::Draid {
    nparity: 1,
    ndata: 2,
    nspares: 1,
};

/// Layouts scripts are run on.
pub fn layouts() -> Vec<Layout> {
    let small = |kind, disks, ashift| Layout {
        size: 64 * MIB,
        ashift,
        eager: true,
        ..Layout::new(kind, disks)
    };
    vec![
        small(GroupKind::Single, 1, 9),
        small(GroupKind::Mirror, 2, 12),
        small(GroupKind::Raidz { nparity: 1 }, 3, 9),
        Layout {
            slog: true,
            eager: false,
            ..small(GroupKind::Single, 1, 12)
        },
        Layout {
            log_spacemap: false,
            recordsize: 4096,
            early: true,
            ..small(GroupKind::Raidz { nparity: 2 }, 4, 9)
        },
        Layout {
            edges: true,
            ..small(DRAID, 5, 9)
        },
    ]
}

/// How many images, and how closely they are looked at.
#[derive(Clone, Copy, Debug)]
pub struct Effort<'a> {
    /// Random subsets at each point where something is not flushed.
    pub subsets: usize,
    /// Only every so many-th point, beginning anywhere.
    pub every: usize,
    pub care: Care,
    /// See [`Crowd::new`].
    pub audit: u64,
    /// Judges one image each of some points, before its log is replayed and afterwards.
    pub foreign: Option<&'a Foreign>,
}

/// What came of a script.
#[derive(Clone, Copy, Debug, Default)]
pub struct Count {
    /// Images, no two the same, all judged.
    pub images: u64,
    /// Of these: what was read to judge them differs from all before.
    pub apart: u64,
    pub events: u64,
    pub operations: u64,
}

impl Script {
    /// Lines that are not cut, and lines that are.
    pub fn lines(&self) -> Result<(Vec<Op>, Vec<Op>), String> {
        let (before, cut) = match self.text.split_once("---") {
            Some((a, b)) => (a, b),
            None => ("", self.text),
        };
        let parse = |text: &str| {
            let lines = text.split(';').map(str::trim).filter(|l| !l.is_empty());
            lines.map(Op::from_str).collect::<Result<Vec<_>, _>>()
        };
        Ok((parse(before)?, parse(cut)?))
    }
}

/// Runs a script on a layout and judges its images, up to the first finding. `go_on` is asked before
/// each; `Ok` also if that ends it.
pub fn run(
    script: &Script,
    layout: Layout,
    seed: u64,
    effort: Effort<'_>,
    count: &mut Count,
    go_on: &dyn Fn() -> bool,
) -> Result<(), String> {
    let mut first = Ok(());
    run_all(script, layout, seed, effort, count, go_on, &mut |e| {
        first = Err(e);
        false
    });
    first
}

/// The same, and goes on after a finding for which `found` is true.
pub fn run_all(
    script: &Script,
    layout: Layout,
    seed: u64,
    effort: Effort<'_>,
    count: &mut Count,
    go_on: &dyn Fn() -> bool,
    found: &mut dyn FnMut(String) -> bool,
) {
    let what = format!("script '{}' on {layout}, seed {seed}", script.name);
    let mut world = World::blank(layout, seed);
    if let Err(e) = drive(script, &mut world) {
        found(format!("{what}: {e}"));
        return;
    }
    let (base, events) = world.take_events();
    let oracle = world.oracle.clone();
    let first = world.first;
    count.operations += world.counts.operations;
    count.events += events.len() as u64;
    world.forget();
    let labels = Labels::of(&base, &events);
    let total = events.len();
    let mut cutter = Cutter::numbered(&base, events);
    let rng = SeededRng::new(seed);
    let mut crowd = Crowd::new(seed, 2, effort.audit);
    let before = *count;
    let mut at = rng.below(effort.every as u64) as usize;
    while at <= total {
        cutter.forward(at);
        let mut fates = vec![Fate::Lost, Fate::Kept];
        if cutter.unflushed() > 0 {
            fates.extend((0..effort.subsets).map(|_| FATES[2 + rng.below(3) as usize]));
        }
        let judge = Judge {
            layout: &layout,
            clock: world.clock(),
            oracle: &oracle,
            labels: &labels,
            cut: at,
            healthy: true,
            imported: true,
            first,
            care: effort.care,
            spoilt: &BTreeSet::new(),
        };
        let chosen = effort.foreign.filter(|z| z.wants(seed ^ at as u64));
        if let Some(z) = chosen.filter(|_| !oracle.nothing_promised(at)) {
            // What is not flushed is chosen apart from the others, which stay the same.
            let rng = SeededRng::new(seed ^ at as u64);
            let fate = FATES[rng.below(5) as usize];
            let image = cutter.image(fate, &rng);
            let r = z.judge(&image, "log not replayed");
            let r = r.and_then(|()| judge.image(&image, rng.next()).map(|_| ()));
            if let Err(e) = r.and_then(|()| z.judge(&image, "after the judges")) {
                let e = format!("{what}: event {at} of {total} ({fate:?}): {e}");
                if !found(e) {
                    return;
                }
            }
        }
        for fate in fates {
            if !go_on() {
                return;
            }
            let r = crowd.image(&cutter, fate, &rng, &judge);
            (count.images, count.apart) =
                (before.images + crowd.images, before.apart + crowd.apart);
            if let Some(Err(e)) = r {
                let e = format!("{what}: event {at} of {total} ({fate:?}): {e}");
                if !found(e) {
                    return;
                }
            }
        }
        at += effort.every;
    }
}

/// Changes of all sorts that were promised and are in the log alone.
pub const PROMISED: Script = Script {
    name: "promised",
    create: false,
    text: "create . a 644; write . a 0 9000 3; mkdir . d; sync; --- rename . a b; create . c 644; \
           write . c 0 100000 2; fsync . c; rename . c d/e; chmod . b 600; fsyncall .; \
           truncate . d/e 50000; fsync . d/e; write . d/e 40000 70000 4; fsync . d/e; link . b f; \
           write . b 9000 300 5; fsync . b; unlink . f; fsyncall .",
};

/// Three file systems, each with something that is in its log alone.
pub const NEIGHBOURS: Script = Script {
    name: "neighbours",
    create: false,
    text: "createfs f0; createfs f1; create f0 a 644; write f0 a 0 9000 2; create f1 a 644; \
           write f1 a 0 9000 3; create . a 644; sync; --- rename f0 a b; fsyncall f0; \
           write f1 a 100 50000 4; fsync f1 a; rename . a b; fsyncall .",
};

/// Runs a script, pulls the plug at its end, and fails reads of each device at every place (beginning with `place`, every
/// `step`-th) while the pool is imported and its logs are replayed: one, and `count` in a row. Gives the number of places.
pub fn unread(
    script: &Script,
    layout: Layout,
    (place, step): (u64, u64),
    count: u64,
) -> Result<u64, String> {
    let mut places = 0;
    at_the_end(script, layout, &mut |judge, image| {
        for (disk, reads) in judge.reads(image, 1).into_iter().enumerate() {
            for at in (place..reads).step_by(step as usize) {
                judge.unread(image, (disk, at, count), 1)?;
                places += 1;
            }
        }
        Ok(())
    })?;
    Ok(places)
}

/// Runs a script, pulls the plug at its end, imports the pool, and pulls the plug before anything is mounted.
pub fn twice(script: &Script, layout: Layout) -> Result<(), String> {
    at_the_end(script, layout, &mut |judge, image| judge.twice(image))
}

/// Runs a script, pulls the plug at its end, and damages the root of each file system (but that of the pool) now and then.
pub fn damaged(script: &Script, layout: Layout) -> Result<(), String> {
    at_the_end(script, layout, &mut |judge, image| {
        (1..9).try_for_each(|seed| judge.damaged(image, &SeededRng::new(seed)))
    })
}

/// Hands on what the disks hold at the end of a script of what was flushed.
fn at_the_end(
    script: &Script,
    layout: Layout,
    f: &mut dyn FnMut(&Judge<'_>, &Image) -> Result<(), String>,
) -> Result<(), String> {
    let mut world = World::blank(layout, 1);
    drive(script, &mut world)?;
    let (base, events) = world.take_events();
    let (oracle, first) = (world.oracle.clone(), world.first);
    world.forget();
    let labels = Labels::of(&base, &events);
    let total = events.len();
    let mut cutter = Cutter::new(&base, events);
    cutter.forward(total);
    let image = cutter.image(Fate::Lost, &SeededRng::new(1));
    let judge = Judge {
        layout: &layout,
        clock: world.clock(),
        oracle: &oracle,
        labels: &labels,
        cut: total,
        healthy: false,
        imported: true,
        first,
        care: Care::Full,
        spoilt: &BTreeSet::new(),
    };
    f(&judge, &image)
}

/// The script up to the end, in a world of which the journal begins where cutting does.
fn drive(script: &Script, world: &mut World) -> Result<(), String> {
    let (before, lines) = script.lines()?;
    world.create()?;
    if !script.create {
        before
            .iter()
            .try_for_each(|op| world.apply(op).map(|_| ()))?;
        world.settle()?;
    }
    lines.iter().try_for_each(|op| world.apply(op).map(|_| ()))
}
