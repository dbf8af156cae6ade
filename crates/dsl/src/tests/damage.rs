//! Lists of what is to be freed in the background that cannot be read: the rest is freed, and what
//! was lost is counted.

use super::*;
use disk::dnode::objset::ObjsetPhys;
use disk::{BlkPtr, DnodePhys};

/// The blocks of a MOS object as it is on disk.
fn blocks_of(p: &Pool, object: u64) -> Vec<BlkPtr> {
    let zio = &p.rig.dmu.zio;
    let root = zio.read(&p.rig.os.root()).unwrap();
    let meta = ObjsetPhys::decode(&root).unwrap().meta;
    let all = walk::all_blocks(zio, &meta).unwrap();
    let (_, block) = all
        .into_iter()
        .find(|(at, _)| at.level == 0 && at.blkid == object / 32)
        .unwrap();
    let b = zio.read(&block).unwrap();
    let dn = DnodePhys::decode(&b[(object % 32 * 512) as usize..]).unwrap();
    let all = walk::all_blocks(zio, &dn.unwrap()).unwrap();
    all.into_iter().map(|(_, bp)| bp).collect()
}

fn ruin(p: &Pool, bps: &[BlkPtr]) {
    assert!(!bps.is_empty());
    for d in bps.iter().flat_map(|bp| bp.dvas()) {
        p.rig.devices.ruin(d.offset());
    }
    p.rig.dmu.zio.cache.clear();
}

/// A file system that was destroyed in the last txg, nothing of it freed yet.
fn destroyed(features: &[&str]) -> Pool {
    let mut p = Pool::new(5000, features);
    let ds = p.create("tank", "a");
    let mut r = Rand(3);
    for _ in 0..4 {
        p.scribble(&ds, &mut r, 100);
        p.sync();
    }
    p.budget = 0;
    p.sync_with(|p, tx| {
        p.open.remove(&ds.object());
        p.dsl.snapshot(tx, &ds, "s").unwrap();
    });
    p.sync_with(|p, tx| {
        let s = ds.snapshot_named("s").unwrap().unwrap();
        p.dsl.destroy_snapshot(tx, &s).unwrap();
    });
    p.sync_with(|p, tx| p.dsl.destroy_head(tx, &ds).unwrap());
    p
}

/// Frees until nothing is left to be freed.
fn drain(p: &mut Pool) {
    p.budget = 100;
    for _ in 0..100 {
        p.sync();
        if p.dsl.freeing().unwrap() == 0 {
            return;
        }
    }
    panic!("{} bytes still wait to be freed", p.dsl.freeing().unwrap());
}

#[test]
fn a_list_of_destroyed_trees_that_cannot_be_read_is_given_up_and_counted() {
    let p = destroyed(MODERN);
    let mut p = p.reopen();
    let freeing = p.dsl.freeing().unwrap();
    assert!(freeing > 0);
    let tree = p.dsl.core.directory_get("bptree_obj").unwrap().unwrap();
    ruin(&p, &blocks_of(&p, tree));
    drain(&mut p);
    assert_eq!(p.dsl.leaked().unwrap(), freeing);
    assert_eq!(p.dsl.core.directory_get("bptree_obj").unwrap(), None);
    p.sync();
    let p = p.reopen();
    assert_eq!(p.dsl.leaked().unwrap(), freeing);
}

#[test]
fn a_destroyed_tree_with_unreadable_metadata_is_freed_as_far_as_it_is_found() {
    let p = destroyed(MODERN);
    let mut p = p.reopen();
    let freeing = p.dsl.freeing().unwrap();
    let tree = p.dsl.core.directory_get("bptree_obj").unwrap().unwrap();
    let mut b = [0; disk::dsl::BPTREE_ENTRY_SIZE];
    p.rig.os.hold(tree).unwrap().read(0, &mut b).unwrap();
    let e = disk::dsl::BptreeEntry::decode(&b).unwrap();
    let all = p.dsl.blocks_left(&e).unwrap();
    let bad = all
        .iter()
        .find(|bp| bp.level() == 1 && bp.obj_type() != ObjType::DNODE);
    ruin(&p, &[*bad.unwrap()]);
    drain(&mut p);
    let leaked = p.dsl.leaked().unwrap();
    assert!(leaked > 0 && leaked < freeing, "{leaked} of {freeing}");
}

#[test]
fn blocks_of_a_list_to_be_freed_that_cannot_be_read_are_dropped_and_counted() {
    // Without the feature for destroying in the background all goes to the list of dead blocks.
    let mut p = Pool::new(5000, MODERN);
    let ds = p.create("tank", "a");
    let mut r = Rand(4);
    p.scribble(&ds, &mut r, 300);
    p.sync();
    p.budget = 0;
    p.sync_with(|p, tx| {
        p.dsl.snapshot(tx, &ds, "s").unwrap();
    });
    for _ in 0..6 {
        p.scribble(&ds, &mut r, 300);
        p.sync();
    }
    p.sync_with(|p, tx| {
        let s = ds.snapshot_named("s").unwrap().unwrap();
        p.dsl.destroy_snapshot(tx, &s).unwrap();
    });
    drop(ds);
    let mut p = p.reopen();
    let freeing = p.dsl.freeing().unwrap();
    assert!(freeing > 0);
    let list = p.dsl.core.directory_get("free_bpobj").unwrap().unwrap();
    let bad = blocks_of(&p, list);
    ruin(&p, &bad);
    drain(&mut p);
    assert_eq!(p.dsl.leaked().unwrap(), freeing);
    // The list goes on being used.
    let ds = p.dsl.dataset("tank/a").unwrap();
    p.budget = 0;
    p.sync_with(|p, tx| {
        p.dsl.snapshot(tx, &ds, "s2").unwrap();
    });
    p.scribble(&ds, &mut r, 300);
    p.sync();
    p.sync_with(|p, tx| {
        let s = ds.snapshot_named("s2").unwrap().unwrap();
        p.dsl.destroy_snapshot(tx, &s).unwrap();
    });
    assert!(p.dsl.freeing().unwrap() > 0);
    drain(&mut p);
    assert_eq!(p.dsl.leaked().unwrap(), freeing);
}

#[test]
fn a_sub_list_of_a_destroyed_clone_that_cannot_be_read_is_given_up_and_counted() {
    let (p, _) = units::destroyed_clone(150);
    let mut p = p.reopen();
    let freeing = p.dsl.freeing().unwrap();
    assert!(freeing > 0);
    let (_, sub) = units::waiting_sublists(&p)[0];
    ruin(&p, &blocks_of(&p, sub));
    drain(&mut p);
    assert_eq!(p.dsl.leaked().unwrap(), freeing);
    assert_eq!(
        p.dsl
            .core
            .directory_get(disk::mos_keys::DELETED_CLONES)
            .unwrap(),
        None
    );
}
