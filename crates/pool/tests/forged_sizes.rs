//! Numbers on the disks that claim far more than there is: they size no allocation, and what claims it is called damaged.

use base::{Kind, Result};
use disk::spacemap::SpaceMapPhys;
use disk::ObjType;
use dmu::{NewObject, Objset, Tx};
use dsl::Bpobj;
use pool::{Pool, SpaceMaps, TopShape};
use sim::rig::{self, Layout};
use std::sync::Arc;
use vdev::GroupKind;

/// No test here may make the program larger than this, in bytes. What is forged claims 4 GiB.
const MOST: u64 = 256 << 20;
const CLAIMED: u64 = 1 << 32;

/// The largest the program has been so far, in bytes of address space.
fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|l| l.starts_with("VmPeak:")).unwrap();
    let kib: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    kib << 10
}

fn pool() -> Arc<Pool> {
    rig::create(&Layout::new(GroupKind::Single, 1), 7).1
}

/// An object of `len` bytes that holds nothing but its last block.
fn long_object(mos: &Objset, tx: &Tx, new: NewObject, len: u64) -> Result<u64> {
    let size = new.block_size as u64;
    let dn = mos.alloc(tx, &new)?;
    dn.write(tx, len - size, &vec![0x80; size as usize])?;
    Ok(dn.object())
}

fn long_map(pool: &Pool, block_size: usize) -> u64 {
    let phys = SpaceMapPhys {
        length: CLAIMED,
        ..SpaceMapPhys::default()
    };
    let new = NewObject {
        obj_type: ObjType::SPACE_MAP,
        block_size,
        bonus_type: ObjType::SPACE_MAP_HEADER,
        bonus: phys.encode(),
        ..NewObject::default()
    };
    pool.task(move |pool, tx| long_object(pool.mos(), tx, new, CLAIMED))
        .unwrap()
}

/// What `f` does fails as damage, and the program has not grown meanwhile.
fn refused<R: std::fmt::Debug>(what: &str, f: impl FnOnce() -> Result<R>) {
    let before = peak();
    let e = f().unwrap_err();
    assert_eq!(e.kind, Kind::Damaged, "{what}: {e}");
    let more = peak() - before;
    assert!(more < MOST, "{what}: {more} bytes more");
}

/// One test, since all of them look at how large the whole program is.
#[test]
fn a_number_on_the_disks_sizes_no_allocation() {
    let pool = pool();
    let mos = pool.mos().clone();
    let shape = TopShape {
        id: 7,
        zap: 0,
        ashift: 9,
        ms_shift: 24,
        align: 512,
        count: 4,
    };
    for block_size in [4096, 128 << 10] {
        let object = long_map(&pool, block_size);
        let maps = SpaceMaps::new(mos.clone());
        refused("missing txgs", || maps.read_dtl(object));
        let array = pool
            .task(move |pool, tx| {
                let new = NewObject {
                    obj_type: ObjType::OBJECT_ARRAY,
                    block_size: 4096,
                    ..NewObject::default()
                };
                let dn = pool.mos().alloc(tx, &new)?;
                dn.write(tx, 0, &object.to_le_bytes())?;
                Ok(dn.object())
            })
            .unwrap();
        maps.open_top(array, shape).unwrap();
        refused("a metaslab's map", || maps.load(7, 0));
        let logs = pool
            .task(move |pool, tx| {
                let dn = zap::create_object(pool.mos(), tx, ObjType::ZAP_METADATA, 0)?;
                zap::Zap::new(&dn).add_int_key(tx, 5, object)?;
                Ok(dn.object())
            })
            .unwrap();
        refused("a log of space maps", || maps.open_logs(logs));
    }
    let maps = SpaceMaps::new(mos.clone());
    let many = TopShape {
        count: 1 << 40,
        ..shape
    };
    refused("metaslabs", || maps.open_top(0, many));
    // Lists in a list: none of them is there.
    let list = pool
        .task(|pool, tx| {
            let subobjs = long_object(
                pool.mos(),
                tx,
                NewObject {
                    obj_type: ObjType::BPOBJ_SUBOBJ,
                    block_size: 128 << 10,
                    ..NewObject::default()
                },
                CLAIMED / 8,
            )?;
            let off = disk::Compression::OFF;
            let mut list = Bpobj::create_with(pool.mos(), tx, 5000, false, 4096, off)?;
            (list.phys.subobjs, list.phys.num_subobjs) = (subobjs, CLAIMED / 64);
            let dn = pool.mos().hold(list.object())?;
            dn.set_bonus(tx, &list.phys.encode())?;
            Ok(list.object())
        })
        .unwrap();
    refused("lists of blocks", || {
        Bpobj::open(&mos, list)?.for_each(&mos, &mut |_, _| Ok(()))
    });
    // A list that claims to have more pointers than blocks of it were written.
    let list = pool
        .task(|pool, tx| {
            let off = disk::Compression::OFF;
            let mut list = Bpobj::create_with(pool.mos(), tx, 5000, false, 128 << 10, off)?;
            list.phys.num_blkptrs = CLAIMED / 128;
            let dn = pool.mos().hold(list.object())?;
            dn.write(tx, CLAIMED - 128, &[0x80; 128])?;
            dn.set_bonus(tx, &list.phys.encode())?;
            Ok(list.object())
        })
        .unwrap();
    let mut seen = 0u64;
    refused("pointers", || {
        Bpobj::open(&mos, list)?.for_each(&mos, &mut |_, _| {
            seen += 1;
            Ok(())
        })
    });
    assert_eq!(seen, 0);
}
