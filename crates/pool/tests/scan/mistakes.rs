//! Deliberate mistakes that the checks of this folder find.

use crate::world::{finish, World};
use base::mutation::{mutate, Mutation};
use pool::ScrubRange;
use std::panic::{catch_unwind, AssertUnwindSafe};
use vdev::GroupKind;

fn command() -> (String, u64) {
    ("zpool scrub tank".into(), 0)
}

/// One scenario with a number that says when things happen: what is wrong afterwards.
type Scenario = fn(u64) -> Result<(), String>;

/// Whether a scenario fails for one of the numbers, with or without the mistake.
fn fails(mistake: Option<Mutation>, numbers: u64, scenario: Scenario) -> bool {
    let hook = std::panic::take_hook();
    if mistake.is_some() {
        std::panic::set_hook(Box::new(|_| ()));
    }
    let found = (0..numbers).any(|n| {
        mutate(mistake);
        let done = catch_unwind(AssertUnwindSafe(|| scenario(n)));
        mutate(None);
        if let (None, Ok(Err(why))) = (mistake, &done) {
            panic!("{n}: {why}");
        }
        !matches!(done, Ok(Ok(())))
    });
    std::panic::set_hook(hook);
    found
}

fn found(mistake: Mutation, numbers: u64, scenario: Scenario) {
    assert!(!fails(None, numbers, scenario), "{mistake:?}: without it");
    assert!(fails(Some(mistake), numbers, scenario), "{mistake:?}");
}

/// A mirror with a spoilt side, which must stand alone when the scrub has ended.
fn spoilt() -> World {
    let mut w = World::new(GroupKind::Mirror, 2);
    for n in 0..3 {
        let name = format!("f{n}");
        w.fill(&name, 30);
        w.snapshot(&name, "s");
        w.write(&name, 30);
        w.snapshot(&name, "t");
    }
    w.spoil(1, &|_| true);
    w.reopen();
    w.pool
        .start_scrub(ScrubRange::default(), command())
        .unwrap()
        .unwrap();
    w
}

fn scrubbed(w: &World) -> Result<(), String> {
    let s = finish(&w.pool);
    mutate(None);
    match s.errors {
        0 => w.is_whole_on(&|i| i == 1),
        n => Err(format!("{n} errors")),
    }
}

#[test]
fn a_place_that_is_stored_while_blocks_wait() {
    found(Mutation::ScanStoresAhead, 8, |n| {
        let mut w = spoilt();
        (0..n + 1).for_each(|_| assert!(w.pool.sync().is_ok()));
        w.reopen();
        scrubbed(&w)
    });
}

#[test]
fn an_entry_that_is_forgotten_when_its_snapshot_is_destroyed() {
    found(Mutation::ScanForgetsDestroyed, 12, |n| {
        let mut w = spoilt();
        (0..n).for_each(|_| assert!(w.pool.sync().is_ok()));
        for f in 0..3 {
            w.destroy_snapshot(&format!("f{f}@s"));
        }
        w.reopen();
        scrubbed(&w)
    });
}

#[test]
fn a_freed_block_that_stays_in_the_queue() {
    found(Mutation::ScanKeepsFreed, 4, |n| {
        let w = World::new(GroupKind::Mirror, 2);
        w.pool.space().set_eager(true);
        (0..3).for_each(|f| w.fill(&format!("f{f}"), 40));
        w.pool
            .start_scrub(ScrubRange::default(), command())
            .unwrap()
            .unwrap();
        (0..2 * n + 1).for_each(|_| assert!(w.pool.sync().is_ok()));
        w.pool.pause_scrub(command()).unwrap().unwrap();
        (0..3).for_each(|f| w.destroy(&format!("f{f}")));
        (0..20).for_each(|_| assert!(w.pool.sync().is_ok()));
        (0..3).for_each(|f| w.fill(&format!("g{f}"), 40));
        w.pool
            .start_scrub(ScrubRange::default(), command())
            .unwrap()
            .unwrap();
        match finish(&w.pool).errors {
            0 => Ok(()),
            n => Err(format!("{n} errors")),
        }
    });
}

#[test]
fn a_dtl_that_loses_more_than_the_resilver_visited() {
    found(Mutation::DtlDropsMore, 1, |_| {
        let mut w = World::new(GroupKind::Mirror, 3);
        w.fill("a", 40);
        let stale: Vec<_> = w.disks.iter().map(|d| d.fork()).collect();
        w.disks = w.image(&|i| i == 0);
        w.pool = w.open(&w.disks);
        w.fill("b", 40);
        w.pool.sync().unwrap();
        // One comes back, then the other.
        w.disks[1] = stale[1].clone();
        w.reopen();
        finish(&w.pool);
        w.pool.sync().unwrap();
        w.disks[2] = stale[2].clone();
        w.reopen();
        for _ in 0..100 {
            w.pool.sync().unwrap();
        }
        mutate(None);
        w.is_whole_on(&|i| i == 2)
    });
}

#[test]
fn a_rebuild_that_ends_when_a_part_was_copied() {
    found(Mutation::RebuildEndsEarly, 1, |_| {
        let w = World::with_bench(GroupKind::Mirror, 2, 1);
        w.fill("a", 400);
        let old = crate::rebuild::leaf(&w.pool, 0);
        let new = crate::rebuild::dev(2);
        let done = w
            .pool
            .attach_sequentially(old, &new, vdev::Attach::Mirror, None);
        done.map_err(|e| e.to_string())?;
        crate::rebuild::rebuilt(&w.pool).map_err(|e| e.to_string())?;
        match finish(&w.pool).processed {
            0 => Ok(()),
            n => Err(format!("the scrub behind it had to repair {n} bytes")),
        }
    });
}
