//! Resilvers.

use crate::world::World;
use disk::scan::{Function, ScanState};
use std::sync::atomic::Ordering::Relaxed;
use vdev::{GroupKind, State};

/// Bytes that the newest scan has written to a leaf.
fn scanned(leaf: &vdev::Vdev) -> u64 {
    leaf.stats.scan_bytes.load(Relaxed)
}

/// A disk is away while much is written, and comes back: it is resilvered by itself, and what it has stands alone.
fn comes_back(kind: GroupKind, disks: usize) {
    let mut w = World::new(kind, disks);
    w.fill("a", 60);
    w.snapshot("a", "s");
    let stale = w.disks[1].fork();
    w.disks = w.image(&|i| i != 1);
    w.pool = w.open(&w.disks);
    w.write("a", 60);
    w.fill("b", 40);
    w.pool.export().unwrap();
    w.disks[1] = stale;
    w.reopen();
    // What the import itself made whole.
    let healed = |w: &World| -> Vec<u64> {
        let leaves = w.pool.tree().leaves();
        let bytes = leaves.iter().map(|l| l.stats.repaired_bytes.load(Relaxed));
        bytes.collect()
    };
    let before = healed(&w);
    while w.pool.resilvered_txgs().is_none() {
        w.pool.sync().unwrap();
    }
    assert_eq!(
        w.pool.tree().state().0,
        State::Healthy,
        "it is being filled"
    );
    let s = w.finish();
    assert_eq!(
        (s.function, s.state, s.errors),
        (Function::Resilver, ScanState::Finished, 0)
    );
    let given: Vec<u64> = w.pool.tree().leaves().iter().map(|l| scanned(l)).collect();
    assert_eq!(given.iter().sum::<u64>(), s.processed, "{given:?}");
    assert_eq!(given[1], s.processed, "{given:?}");
    assert_eq!(healed(&w), before, "a resilver heals nothing");
    assert!(s.processed > 0);
    w.pool.sync().unwrap();
    assert!(w.pool.tree().leaves().iter().all(|l| l.dtl_is_empty()));
    w.reopen();
    assert!(w.pool.tree().leaves().iter().all(|l| l.dtl_is_empty()));
    w.whole_on(&|i| i != 0);
}

#[test]
fn a_disk_that_comes_back_is_resilvered_by_itself() {
    comes_back(GroupKind::Mirror, 2);
    comes_back(GroupKind::Raidz { nparity: 1 }, 4);
}

/// Two sides of three miss something different, and come back one after the other: the later one waits, and says so on disk.
fn the_later_one_waits(defers: bool) {
    let w = World::new(GroupKind::Mirror, 3);
    let feature = disk::feature::guid::RESILVER_DEFER;
    let count = || {
        let store = w.pool.feature_store().unwrap();
        dsl::Features::count(&**store, feature).unwrap()
    };
    let leaves = w.pool.tree().leaves();
    let (first, second) = (leaves[1].clone(), leaves[2].clone());
    let how = pool::Offline {
        temporary: true,
        fault: false,
    };
    w.pool.offline(first.guid(), how).unwrap();
    w.fill("a", 400);
    w.pool.offline(second.guid(), how).unwrap();
    w.pool.online(first.guid()).unwrap();
    let part = if defers { 2 } else { 100 };
    let far = || {
        let s = w.pool.scan_progress().unwrap().unwrap();
        s.issued * part > s.state.to_examine
    };
    while w.pool.resilvered_txgs().is_none() || defers && !far() {
        w.pool.sync().unwrap();
    }
    let range = w.pool.resilvered_txgs();
    w.pool.online(second.guid()).unwrap();
    (0..2).for_each(|_| {
        w.pool.sync().unwrap();
    });
    let waits = second
        .config(true)
        .get(vdev::keys::RESILVER_DEFER)
        .is_some();
    assert_eq!((waits, count()), (defers, u64::from(defers)));
    assert_eq!(w.pool.resilvered_txgs() == range, defers);
    for _ in 0..2000 {
        if !w.pool.is_resilvering() {
            break;
        }
        w.pool.sync().unwrap();
    }
    w.pool.sync().unwrap();
    assert_eq!(count(), 0);
    let left = second.config(true);
    assert!(left.get(vdev::keys::RESILVER_DEFER).is_none());
    w.whole_on(&|i| i == 1);
    w.whole_on(&|i| i == 2);
}

#[test]
fn a_device_that_comes_late_waits_for_a_resilver_of_its_own() {
    the_later_one_waits(true);
}

#[test]
fn a_resilver_that_has_hardly_begun_begins_anew_for_a_second_device() {
    the_later_one_waits(false);
}

/// A side of three lacks a block that no other one has either, for good. Another side is resilvered afterwards.
fn lacks_for_good(version: u64) {
    let w = World::of(&sim::rig::Layout {
        version,
        ..sim::rig::Layout::new(GroupKind::Mirror, 3)
    });
    let leaves = w.pool.tree().leaves();
    let (first, second) = (leaves[1].clone(), leaves[2].clone());
    let away = |leaf: &vdev::Vdev, name: &str| {
        let how = pool::Offline {
            temporary: true,
            fault: false,
        };
        w.pool.offline(leaf.guid(), how).unwrap();
        w.fill(name, 20);
    };
    let range = || {
        while w.pool.resilvered_txgs().is_none() {
            w.pool.sync().unwrap();
        }
        w.pool.resilvered_txgs()
    };
    away(&first, "a");
    let lost = (4 << 20) + w.blocks("a")[5].dva(0).offset();
    w.disks[0].corrupt(lost, 512);
    w.disks[2].corrupt(lost, 512);
    w.pool.online(first.guid()).unwrap();
    assert_eq!((range().is_some(), w.finish().errors), (true, 1));
    let lacks = first.dtl();
    assert!(!lacks.is_empty() && !w.pool.is_resilvering());
    away(&second, "b");
    w.pool.online(second.guid()).unwrap();
    assert!(range().is_some());
    w.pool.sync().unwrap();
    let waits = first.config(true);
    assert!(waits.get(vdev::keys::RESILVER_DEFER).is_none());
    assert_eq!(w.finish().errors, 0);
    assert!(second.dtl_is_empty() && first.dtl() == lacks);
}

#[test]
fn a_device_that_lacks_something_for_good_does_not_wait_for_a_resilver() {
    lacks_for_good(28);
    lacks_for_good(5000);
}
