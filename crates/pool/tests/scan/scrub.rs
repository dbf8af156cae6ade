//! Scrubs.

use crate::world::{finish, World};
use base::Txg;
use disk::scan::{Function, ScanState};
use pool::{ScanRefusal, ScrubRange};
use sim::rig;
use std::sync::atomic::Ordering::Relaxed;
use vdev::GroupKind;

fn command() -> (String, u64) {
    ("zpool scrub tank".into(), 0)
}

/// Spoils as many disks as the layout can spare, scrubs, and reads everything from them and as few others as possible.
fn repairs(kind: GroupKind, disks: usize, spare: usize) {
    let mut w = World::new(kind, disks);
    w.fill("a", 60);
    w.snapshot("a", "s");
    w.write("a", 20);
    w.fill("b", 40);
    w.spoil(0, &|_| true);
    for n in 1..spare {
        w.spoil(n, &|_| true);
    }
    w.reopen();
    w.pool
        .start_scrub(ScrubRange::default(), command())
        .unwrap()
        .unwrap();
    assert_eq!(
        w.pool
            .start_scrub(ScrubRange::default(), command())
            .unwrap(),
        Err(ScanRefusal::Scrubbing)
    );
    let s = w.finish();
    assert_eq!(
        (s.function, s.state, s.errors),
        (Function::Scrub, ScanState::Finished, 0)
    );
    assert!(
        s.processed > 100 * 512 && s.examined > 0 && s.end >= s.start,
        "{s:?}"
    );
    assert_eq!(w.pool.error_count(), Some(0));
    assert!(w.pool.last_scrubbed().unwrap().is_some());
    // Those that were spoilt are needed now.
    w.whole_on(&|i| i < disks - spare);
    // A second scrub finds nothing.
    w.pool
        .start_scrub(ScrubRange::default(), command())
        .unwrap()
        .unwrap();
    assert_eq!(w.finish().processed, 0);
    w.pool.export().unwrap();
}

#[test]
fn a_scrub_repairs_every_spoilt_copy_on_a_mirror() {
    repairs(GroupKind::Mirror, 2, 1);
    repairs(GroupKind::Mirror, 3, 2);
}

#[test]
fn a_scrub_repairs_every_spoilt_column_on_raidz() {
    repairs(GroupKind::Raidz { nparity: 1 }, 3, 1);
    repairs(GroupKind::Raidz { nparity: 2 }, 5, 2);
}

#[test]
fn what_cannot_be_repaired_is_counted_and_forgotten_when_it_is_gone() {
    let mut w = World::new(GroupKind::Mirror, 2);
    w.fill("a", 60);
    let bp = w.blocks("a")[5];
    for d in &w.disks {
        d.corrupt((4 << 20) + bp.dva(0).offset(), 512);
    }
    w.reopen();
    w.pool
        .start_scrub(ScrubRange::default(), command())
        .unwrap()
        .unwrap();
    let s = w.finish();
    assert_eq!((s.state, s.errors), (ScanState::Finished, 1));
    assert_eq!(w.pool.error_count(), Some(1));
    w.reopen();
    assert_eq!(w.pool.error_count(), Some(1));
    w.destroy("a");
    for _ in 0..20 {
        w.pool.sync().unwrap();
    }
    w.pool
        .start_scrub(ScrubRange::default(), command())
        .unwrap()
        .unwrap();
    assert_eq!(w.finish().errors, 0);
    assert_eq!(w.pool.error_count(), Some(0));
    w.reopen();
    assert_eq!(w.pool.error_count(), Some(0));
}

#[test]
fn a_scrub_that_is_cut_off_goes_on_and_a_paused_one_stays_paused() {
    let mut w = World::new(GroupKind::Mirror, 2);
    for n in 0..6 {
        w.fill(&format!("f{n}"), 40);
        w.snapshot(&format!("f{n}"), "s");
        w.write(&format!("f{n}"), 40);
    }
    w.spoil(1, &|_| true);
    w.reopen();
    w.pool
        .start_scrub(ScrubRange::default(), command())
        .unwrap()
        .unwrap();
    let mut cuts = 0;
    while w.pool.scan_progress().unwrap().unwrap().state.state == ScanState::Scanning && cuts < 500
    {
        w.pool.sync().unwrap();
        if cuts % 14 == 6 {
            w.pool.pause_scrub(command()).unwrap().unwrap();
            assert_eq!(
                w.pool.pause_scrub(command()).unwrap(),
                Err(ScanRefusal::Paused)
            );
            w.reopen();
            w.pool.sync().unwrap();
            assert!(w.pool.scan_progress().unwrap().unwrap().state.paused);
            w.pool
                .start_scrub(ScrubRange::default(), command())
                .unwrap()
                .unwrap();
        }
        if cuts % 5 == 4 {
            w.reopen();
        }
        cuts += 1;
    }
    assert!((20..500).contains(&cuts), "{cuts}");
    assert_eq!(w.finish().state, ScanState::Finished);
    w.whole_on(&|i| i == 1);
}

#[test]
fn a_scrub_goes_on_over_changes_of_datasets() {
    let mut w = World::new(GroupKind::Mirror, 2);
    for n in 0..4 {
        w.fill(&format!("f{n}"), 30);
        w.snapshot(&format!("f{n}"), "s");
        w.write(&format!("f{n}"), 30);
        w.snapshot(&format!("f{n}"), "t");
    }
    w.spoil(1, &|_| true);
    w.reopen();
    w.pool
        .start_scrub(ScrubRange::default(), command())
        .unwrap()
        .unwrap();
    let mut n = 0;
    while w.pool.scan_progress().unwrap().unwrap().state.state == ScanState::Scanning {
        match n {
            1 => w.destroy_snapshot("f0@s"),
            2 => w.snapshot("f3", "u"),
            3 => w.destroy_snapshot("f1@t"),
            4 => w.fill("new", 30),
            5 => w.destroy_snapshot("f2@s"),
            6 => w.destroy("new"),
            _ => drop(w.pool.sync().unwrap()),
        }
        assert!(n < 500);
        if n % 5 == 4 {
            w.reopen();
        }
        n += 1;
    }
    assert_eq!(finish(&w.pool).errors, 0);
    w.whole_on(&|i| i == 1);
}

#[test]
fn a_scrub_can_be_stopped() {
    let w = World::new(GroupKind::Mirror, 2);
    assert_eq!(
        w.pool.stop_scrub(command()).unwrap(),
        Err(ScanRefusal::NoScrub)
    );
    w.fill("a", 200);
    w.pool
        .start_scrub(ScrubRange::default(), command())
        .unwrap()
        .unwrap();
    w.pool.stop_scrub(command()).unwrap().unwrap();
    let s = w.finish();
    assert_eq!(
        (s.function, s.state),
        (Function::Scrub, ScanState::Canceled)
    );
    assert_eq!(
        w.pool.stop_scrub(command()).unwrap(),
        Err(ScanRefusal::NoScrub)
    );
    rig::check(&w.pool).unwrap();
}

/// A repair that a device did not take must not be believed: the device lacks the txg of the block.
#[test]
fn a_repair_that_cannot_be_written_is_on_the_list_of_what_a_device_lacks() {
    let mut w = World::new(GroupKind::Mirror, 2);
    w.fill("a", 60);
    w.fill("b", 10);
    w.spoil(1, &|_| true);
    w.reopen();
    let bp = w.blocks("a")[5];
    let at = (4 << 20) + bp.dva(0).offset();
    let asize = bp.dva(0).asize();
    w.disks[1].unwritable.lock().unwrap().insert(at, at + asize);
    let all = ScrubRange::default();
    w.pool.start_scrub(all, command()).unwrap().unwrap();
    let s = w.finish();
    // It ends all the same, and no resilver takes its place.
    assert_eq!(
        (s.function, s.state, s.errors),
        (Function::Scrub, ScanState::Finished, 0)
    );
    assert!(!w.pool.is_resilvering());
    let lacks = |w: &World| {
        let leaves = w.pool.tree().leaves();
        let ranges: Vec<(u64, u64)> = leaves[1].dtl().iter().collect();
        assert!(leaves[0].dtl_is_empty());
        ranges
    };
    let birth = bp.physical_birth();
    assert_eq!(lacks(&w), [(birth.number(), birth.number() + 1)]);
    let good = w.pool.tree().leaves()[0].guid();
    assert!(w.pool.tree().offline(good, false).is_err());
    assert!(w.is_whole_on(&|i| i == 1).is_err());
    // The list is on disk; a device that takes the block gets it.
    w.reopen();
    assert_eq!(w.finish().function, Function::Resilver);
    assert_eq!(lacks(&w), []);
    w.whole_on(&|i| i == 1);
}

/// A scrub during which a device fails flushes after so many txgs; whether the device lacks then what was repaired. In the
/// end everything is on it.
fn repaired_while_flushes_fail(after: usize) -> bool {
    let mut w = World::new(GroupKind::Mirror, 2);
    w.fill("a", 60);
    let births: Vec<Txg> = (w.blocks("a").iter().map(|bp| bp.physical_birth())).collect();
    w.spoil(1, &|_| true);
    w.reopen();
    let all = ScrubRange::default();
    w.pool.start_scrub(all, command()).unwrap().unwrap();
    for n in 0..after + 4 {
        w.disks[1].fail_flush.store(n >= after, Relaxed);
        w.pool.sync().unwrap();
    }
    let leaf = w.pool.tree().leaves()[1].clone();
    let lacks = births.iter().any(|b| leaf.dtl_contains(*b));
    w.disks[1].fail_flush.store(false, Relaxed);
    w.finish();
    w.reopen();
    w.finish();
    assert!(w.pool.tree().leaves()[1].dtl_is_empty());
    // A resilver that took the place of the scrub gave it what it lacked, no more.
    w.pool.start_scrub(all, command()).unwrap().unwrap();
    w.finish();
    w.whole_on(&|i| i == 1);
    lacks
}

/// Repairs are of old txgs: that of the flush that fails is not enough.
#[test]
fn repairs_that_no_flush_covered_are_on_the_list_of_what_a_device_lacks() {
    let lacks: Vec<bool> = (0..6).map(repaired_while_flushes_fail).collect();
    assert!(lacks.contains(&true), "{lacks:?}");
}

/// The right copy may be the one that a device fails to read: the block counts as unreadable for now, the wrong side alone is
/// blamed, and it is put right when the other can be read.
#[test]
fn one_side_that_is_wrong_and_one_that_cannot_be_read_are_told_apart() {
    let mut w = World::new(GroupKind::Mirror, 2);
    w.fill("a", 4);
    w.spoil(0, &|_| true);
    w.reopen();
    let blocks = w.blocks("a");
    let errors = |n: usize| w.pool.tree().leaves()[n].stats.errors();
    let before = errors(0).2;
    w.pool.zio().cache.clear();
    w.disks[1].read_errors.store(1, Relaxed);
    let e = w.pool.zio().read(&blocks[0]).unwrap_err();
    w.disks[1].read_errors.store(0, Relaxed);
    assert_eq!(e.kind, base::Kind::Io, "{e}");
    assert_eq!(
        errors(1).2,
        0,
        "the side that could not be read is not wrong"
    );
    w.pool.zio().read(&blocks[0]).unwrap();
    assert!(errors(0).2 > before);
    assert_eq!(errors(1).2, 0);
    w.pool.zio().cache.clear();
    w.disks[1].read_errors.store(u64::MAX, Relaxed);
    let healed = w.pool.zio().read(&blocks[0]);
    w.disks[1].read_errors.store(0, Relaxed);
    healed.unwrap();
}
