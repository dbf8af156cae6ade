//! Resilvers.

use crate::world::World;
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
    while w.pool.resilvered_txgs().is_none() {
        w.pool.sync().unwrap();
    }
    assert_eq!(w.pool.tree.state().0, State::Healthy, "it is being filled");
    let s = w.finish();
    assert_eq!((s.function, s.state, s.errors), (2, 2, 0));
    let given: Vec<u64> = w.pool.tree.leaves().iter().map(|l| scanned(l)).collect();
    assert_eq!(given.iter().sum::<u64>(), s.processed, "{given:?}");
    assert_eq!(given[1], s.processed, "{given:?}");
    assert!(s.processed > 0);
    w.pool.sync().unwrap();
    assert!(w.pool.tree.leaves().iter().all(|l| l.dtl_is_empty()));
    w.reopen();
    assert!(w.pool.tree.leaves().iter().all(|l| l.dtl_is_empty()));
    w.whole_on(&|i| i != 0);
}

#[test]
fn a_disk_that_comes_back_is_resilvered_by_itself() {
    comes_back(GroupKind::Mirror, 2);
    comes_back(GroupKind::Raidz { nparity: 1 }, 4);
}
