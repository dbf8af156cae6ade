//! What a txg writes for new names in a directory that is large beside the dirty data that is allowed.

use base::{Result, Txg};
use dmu::testing::Rig;
use dmu::{Driver, NewObject, WritePolicy};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use zap::Zap;

/// A thirty-second of what the daemon allows, and of a directory of a million names.
const MAX: u64 = 8 << 20;
const NAMES: u64 = 31_000;
const MORE: u64 = 6_000;

#[derive(Default)]
struct Kicked(AtomicBool);

impl Driver for Kicked {
    fn sync_through(&self, _: Txg) -> Result<()> {
        Ok(())
    }
    fn kick(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Makes files and their names, and writes a txg whenever one is asked for. How many there were.
fn make(rig: &Rig, kicked: &Kicked, dir: &Arc<dmu::Dnode>, names: std::ops::Range<u64>) -> u64 {
    let zap = Zap::new(dir);
    let mut txgs = 0;
    for n in names {
        {
            let tx = rig.tx();
            let file = rig.os.alloc(&tx, &NewObject::default()).unwrap();
            zap.add_u64(&tx, format!("file{n:07}").as_str(), file.object())
                .unwrap();
        }
        if kicked.0.swap(false, Ordering::Relaxed) {
            rig.sync();
            txgs += 1;
        }
    }
    txgs
}

#[test]
fn a_txg_writes_a_block_for_several_new_names() {
    let rig = Rig::new(2, 512 << 20, WritePolicy::default());
    let kicked = Arc::new(Kicked::default());
    let driver: Arc<dyn Driver> = kicked.clone();
    rig.dmu.set_driver(Arc::downgrade(&driver));
    let dir = {
        let tx = rig.tx();
        let new = NewObject {
            obj_type: disk::ObjType::DIRECTORY_CONTENTS,
            block_size: 16 << 10,
            ..NewObject::default()
        };
        let dir = rig.os.alloc(&tx, &new).unwrap();
        Zap::new(&dir).create_fat(&tx, 0, 0).unwrap();
        dir
    };
    make(&rig, &kicked, &dir, 0..NAMES);
    rig.sync();
    let leaves = dir.info().max_blkid;
    assert!(leaves > 150, "{leaves} blocks");
    let mut next = NAMES;
    let mut measure = |max: u64| {
        rig.dmu.set_dirty_max(max);
        rig.devices.writes.store(0, Ordering::Relaxed);
        let txgs = make(&rig, &kicked, &dir, next..next + MORE);
        rig.sync();
        next += MORE;
        let written = rig.devices.writes.load(Ordering::Relaxed);
        println!(
            "{leaves} leaves, {max} bytes allowed: {txgs} txgs, {written} blocks for {MORE} names"
        );
        (txgs, written)
    };
    // As if a fifth of what is allowed ended a txg, whatever it is.
    let (often, much) = measure(MAX / 5 * 2);
    let (txgs, written) = measure(MAX);
    assert!(txgs * 2 < often, "{txgs} txgs, {often} before");
    assert!(written * 4 < much * 3, "{written} blocks, {much} before");
}
