//! The rig is worth something only if it finds mistakes: each of these is made on purpose, and must
//! be found within a few seconds; without them nothing may be.

use base::mutation::{mutate, Mutation};
use sim::check::Care;
use sim::op::Op;
use sim::points::{self, Count, Effort, Script};
use sim::rig::{Layout, MIB};
use sim::trace::{self, Trace};
use vdev::GroupKind;

/// Makes the mistake on this thread until dropped.
struct Mistake;

impl Mistake {
    fn make(which: Mutation) -> Mistake {
        mutate(Some(which));
        Mistake
    }
}

impl Drop for Mistake {
    fn drop(&mut self) {
        mutate(None);
    }
}

fn layout(kind: GroupKind, disks: usize) -> Layout {
    Layout {
        size: 64 * MIB,
        eager: true,
        ..Layout::new(kind, disks)
    }
}

fn script(name: &str) -> &'static Script {
    points::SCRIPTS.iter().find(|s| s.name == name).unwrap()
}

/// Crash points of a script until something is found.
fn crash_points(name: &str, layout: Layout, seeds: u64) -> Result<(), String> {
    let effort = Effort {
        subsets: 4,
        every: 1,
        care: Care::Full,
    };
    let mut count = Count::default();
    (1..=seeds)
        .try_for_each(|seed| points::run(script(name), layout, seed, effort, &mut count, &|| true))
}

/// Runs what must be fine, and the same with the mistake, which must be found.
fn found(which: Mutation, run: &dyn Fn() -> Result<(), String>) {
    {
        let _on = Mistake::make(which);
        let e = run().expect_err(&format!("{which:?} was not found"));
        eprintln!(
            "{which:?}: {}",
            e.lines().take(3).collect::<Vec<_>>().join(" ")
        );
    }
    run().unwrap_or_else(|e| panic!("accused without a mistake: {e}"));
}

#[test]
fn flush_omitted() {
    let l = layout(GroupKind::Single, 1);
    found(Mutation::FlushOmitted, &|| crash_points("create", l, 1));
}

#[test]
fn free_reused_early() {
    let l = layout(GroupKind::Single, 1);
    found(Mutation::FreeReusedEarly, &|| {
        crash_points("many groups", l, 1)
    });
}

#[test]
fn replay_skips_a_record() {
    let l = layout(GroupKind::Single, 1);
    found(Mutation::ReplaySkips, &|| {
        crash_points("rename chain", l, 1)
    });
}

#[test]
fn torn_label() {
    let l = layout(GroupKind::Single, 1);
    found(Mutation::TornLabel, &|| {
        crash_points("export and import", l, 1)
    });
}

#[test]
fn parity_wrong() {
    let l = layout(GroupKind::Raidz { nparity: 2 }, 4);
    found(Mutation::ParityWrong, &|| crash_points("create", l, 1));
}

/// Rot on one side of a mirror must not get through.
#[test]
fn checksum_off() {
    let mut ops: Vec<Op> = Vec::new();
    let mut line = |l: &str| ops.push(l.parse().unwrap());
    line("create . a 644");
    line("write . a 0 300000 2");
    line("create . b 644");
    line("write . b 0 5000 3");
    line("sync");
    line("fault 0 garbage");
    line("reimport");
    line("read . a");
    line("read . b");
    line("cut 0 Kept 1");
    let t = Trace {
        seed: 1,
        layout: layout(GroupKind::Mirror, 2),
        ops,
    };
    found(Mutation::ChecksumOff, &|| match trace::replay(&t).finding {
        Some(f) => Err(f),
        None => Ok(()),
    });
}
