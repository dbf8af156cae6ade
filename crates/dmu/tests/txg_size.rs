//! How much makes a txg worth writing.

use base::{Result, Txg};
use dmu::testing::Rig;
use dmu::{Driver, NewObject, WritePolicy};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

const MAX: u64 = 1 << 20;
const BLOCK: u64 = 4096;

#[derive(Default)]
struct Kicks(AtomicU64);

impl Driver for Kicks {
    fn sync_through(&self, _: Txg) -> Result<()> {
        Ok(())
    }
    fn kick(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// Blocks that make up this share of the dirty data that is allowed.
fn share(of: u64) -> u64 {
    MAX / of / BLOCK + 1
}

/// Blocks of a large directory: a change goes to any of them, and they do not become more than they are.
#[test]
fn blocks_that_are_changed_in_place_end_a_txg_later_than_new_data() {
    let rig = Rig::new(2, 64 << 20, WritePolicy::default());
    let kicks = Arc::new(Kicks::default());
    let driver: Arc<dyn Driver> = kicks.clone();
    rig.dmu.set_driver(Arc::downgrade(&driver));
    rig.dmu.set_dirty_max(MAX);
    let new = NewObject {
        block_size: BLOCK as usize,
        ..NewObject::default()
    };
    let dn = rig.os.alloc(&rig.tx(), &new).unwrap();
    kicks.0.store(0, Ordering::Relaxed);
    let kicked_by_a_transaction = || {
        drop(rig.tx());
        kicks.0.swap(0, Ordering::Relaxed) > 0
    };
    // Again and again.
    for fill in 1..3 {
        for blk in 0..share(5) {
            dn.modify(&rig.tx(), blk, |b| b.fill(fill)).unwrap();
        }
    }
    assert!(rig.dmu.dirty_bytes() >= MAX / 5);
    assert!(!kicked_by_a_transaction());
    for blk in share(5)..share(2) {
        dn.modify(&rig.tx(), blk, |b| b.fill(1)).unwrap();
    }
    assert!(kicked_by_a_transaction(), "half of what is allowed");
    rig.sync();
    assert!(!kicked_by_a_transaction());
    let whole = vec![3; (share(5) * BLOCK) as usize];
    dn.write(&rig.tx(), 0, &whole[..]).unwrap();
    assert!(kicked_by_a_transaction());
}
