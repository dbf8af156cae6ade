//! Blocks of a file's tree that cannot be read: the caller gets an error, the txg goes on, and
//! nothing that is still referred to is freed.

use base::mutation::{mutate, Mutation};
use base::Error;
use disk::{os_type, BlkPtr, DnodePhys, ObjType};
use dmu::testing::Rig;
use dmu::{NewObject, WritePolicy};
use std::collections::BTreeMap;

const BLOCK: u64 = 512;
/// Pointers of an indirect block here.
const PER: u64 = 8;
/// Blocks of a file: three levels of indirect blocks.
const BLOCKS: u64 = PER * PER * 2;
const DNODE: u64 = 512;

fn bytes(n: u64, seed: u64) -> Vec<u8> {
    let mut x = seed;
    (0..n)
        .map(|_| {
            x = x.wrapping_mul(6364136223846793005).wrapping_add(1);
            (x >> 33) as u8
        })
        .collect()
}

fn rig() -> Rig {
    Rig::new(os_type::OTHER, 1 << 28, WritePolicy::default())
}

fn new() -> NewObject {
    NewObject {
        obj_type: ObjType::PLAIN_FILE_CONTENTS,
        block_size: BLOCK as usize,
        indblkshift: 10,
        ..NewObject::default()
    }
}

/// A file of [`BLOCKS`] blocks, on disk. Returns its number and content.
fn file(rig: &Rig, seed: u64) -> (u64, Vec<u8>) {
    let data = bytes(BLOCK * BLOCKS, seed);
    let tx = rig.tx();
    let dn = rig.os.alloc(&tx, &new()).unwrap();
    dn.write(&tx, 0, &data).unwrap();
    (dn.object(), data)
}

/// The tree of an object as it is on disk: pointers by level and block id.
fn tree(rig: &Rig, object: u64) -> BTreeMap<(u8, u64), BlkPtr> {
    let mut out = BTreeMap::new();
    let meta = rig.os.hold(object).unwrap();
    drop(meta);
    let b = dnode_block(rig, object);
    let b = rig.dmu.zio.read(&b).unwrap();
    let dn = DnodePhys::decode(&b[(object % 32 * DNODE) as usize..]).unwrap();
    for (at, bp) in walk::all_blocks(&rig.dmu.zio, &dn.unwrap()).unwrap() {
        out.insert((bp.level(), at.blkid), bp);
    }
    out
}

/// The block of dnodes the object is in.
fn dnode_block(rig: &Rig, object: u64) -> BlkPtr {
    let root = rig.dmu.zio.read(&rig.os.root()).unwrap();
    let meta = disk::dnode::objset::ObjsetPhys::decode(&root).unwrap().meta;
    let all = walk::all_blocks(&rig.dmu.zio, &meta).unwrap();
    let found = all
        .into_iter()
        .find(|(at, _)| at.level == 0 && at.blkid == object / 32);
    found.unwrap().1
}

/// Spoils all copies.
fn ruin(rig: &Rig, bp: &BlkPtr) {
    for d in bp.dvas() {
        rig.devices.ruin(d.offset());
    }
    rig.dmu.zio.cache.clear();
}

/// Bytes allocated for the block and all below it.
fn below(rig: &Rig, tree: &BTreeMap<(u8, u64), BlkPtr>, level: u8, id: u64) -> u64 {
    tree.iter()
        .filter(|((l, i), _)| *l <= level && i / PER.pow(u32::from(level - l)) == id)
        .map(|(_, bp)| rig.dmu.zio.dsize(bp))
        .sum()
}

fn is_damage(r: base::Result<()>) {
    let e: Error = r.unwrap_err();
    assert!(e.is_damage(), "{e}");
}

/// What was given up of the object is told, once.
fn is_told(rig: &Rig, object: u64) {
    let e = rig.os.take_lost(object).expect("nobody is told");
    assert_eq!(e.kind, base::Kind::Io, "{e}");
    assert!(rig.os.take_lost(object).is_none());
    assert!(rig.os.take_any_lost());
    assert!(!rig.os.take_any_lost());
}

/// A file with one indirect block spoilt, that of level `level` and number 1, and another file.
fn spoilt(level: u8) -> (Rig, u64, Vec<u8>, u64) {
    let rig = rig();
    let (bad, data) = file(&rig, 1);
    let (good, _) = file(&rig, 2);
    let rig = rig.reopen();
    let t = tree(&rig, bad);
    let bp = t[&(level, 1)];
    assert_eq!(bp.level(), level);
    ruin(&rig, &bp);
    (rig, bad, data, good)
}

#[test]
fn changes_below_an_unreadable_indirect_block_are_refused_before_they_begin() {
    for level in [1, 2] {
        let (rig, bad, data, good) = spoilt(level);
        let dn = rig.os.hold(bad).unwrap();
        let at = PER.pow(u32::from(level)) * BLOCK;
        let free = rig.space.free_bytes();
        {
            let tx = rig.tx();
            is_damage(dn.write(&tx, at + 100, &b"x"[..]));
            is_damage(dn.write(&tx, at, &data[..BLOCK as usize]));
            is_damage(dn.free_range(&tx, at + BLOCK, BLOCK));
            is_damage(dn.free_range(&tx, 0, u64::MAX));
            is_damage(rig.os.free(&tx, bad));
            is_damage(dn.modify(&tx, at / BLOCK, |_| ()));
        }
        assert!(!dn.is_dirty());
        rig.sync();
        assert_eq!(rig.space.free_bytes(), free);
        // Elsewhere in the file, and in others, everything goes on.
        let tx = rig.tx();
        dn.write(&tx, 0, &data[BLOCK as usize..][..BLOCK as usize])
            .unwrap();
        dn.free_range(&tx, BLOCK, BLOCK).unwrap();
        rig.os.free(&tx, good).unwrap();
        drop(tx);
        rig.sync();
        let mut got = vec![0; 2 * BLOCK as usize];
        dn.read(0, &mut got).unwrap();
        assert_eq!(
            got[..BLOCK as usize],
            data[BLOCK as usize..][..BLOCK as usize]
        );
        assert!(got[BLOCK as usize..].iter().all(|b| *b == 0));
        assert!(dn.read(at, &mut got).unwrap_err().is_damage());
    }
}

#[test]
fn writes_over_parts_of_an_unreadable_block_are_refused_before_they_begin() {
    let rig = rig();
    let (bad, _) = file(&rig, 1);
    let rig = rig.reopen();
    ruin(&rig, &tree(&rig, bad)[&(0, 1)]);
    rig.dmu.zio.cache.clear();
    let dn = rig.os.hold(bad).unwrap();
    let (begin, end) = (BLOCK, 2 * BLOCK);
    for (at, len) in [
        (begin, 1),
        (begin + 5, 10),
        (end - 1, 1),
        (begin - 1, 2),
        (end - 1, 2),
        (0, begin + 1),
        (end - 1, end),
    ] {
        is_damage(dn.check_edges(at, len));
    }
    for (at, len) in [
        (begin, BLOCK),
        (begin - 1, BLOCK + 2),
        (begin - 1, 1),
        (end, 1),
        (begin + 1, 0),
        (BLOCKS * BLOCK, 1),
        (u64::MAX - 5, 10),
    ] {
        dn.check_edges(at, len).unwrap();
    }
    // New content makes it whole.
    dn.write(&rig.tx(), begin, &bytes(BLOCK, 3)[..]).unwrap();
    dn.check_edges(begin + 5, 10).unwrap();
}

/// What is spoilt between the check and the sync: the txg is written all the same.
/// Not the blocks are to blame, and no txg will write them anew: whoever looks is not kept waiting.
#[test]
fn an_unreadable_block_of_a_stopped_engine_is_no_damage() {
    let (rig, bad, ..) = spoilt(1);
    let dn = rig.os.hold(bad).unwrap();
    rig.dmu.stop(dmu::internal_error("stopped by a test"));
    let e = dn.check_write(PER * BLOCK, 1).unwrap_err();
    assert_eq!(e.kind, base::Kind::Suspended, "{e}");
    assert!(!e.is_damage(), "{e}");
}

#[test]
fn damage_met_by_the_sync_loses_the_write_but_not_the_txg() {
    let rig = rig();
    let (bad, data) = file(&rig, 1);
    let (good, _) = file(&rig, 2);
    let rig = rig.reopen();
    let t = tree(&rig, bad);
    let free = rig.space.free_bytes();
    let dn = rig.os.hold(bad).unwrap();
    let other = rig.os.hold(good).unwrap();
    {
        let tx = rig.tx();
        dn.write(&tx, PER * BLOCK, &bytes(BLOCK, 9)[..]).unwrap();
        dn.write(&tx, 0, &bytes(BLOCK, 10)[..]).unwrap();
        other.write(&tx, 0, &bytes(BLOCK, 11)[..]).unwrap();
    }
    ruin(&rig, &t[&(1, 1)]);
    rig.sync();
    is_told(&rig, bad);
    assert!(rig.os.take_lost(good).is_none());
    let mut got = vec![0; BLOCK as usize];
    other.read(0, &mut got).unwrap();
    assert_eq!(got, bytes(BLOCK, 11));
    dn.read(0, &mut got).unwrap();
    assert_eq!(got, bytes(BLOCK, 10));
    assert!(dn.read(PER * BLOCK, &mut got).unwrap_err().is_damage());
    assert_eq!(rig.space.free_bytes(), free);
    // Nothing below the unreadable block was freed: it is whole again when that one is.
    ruin(&rig, &t[&(1, 1)]);
    dn.read(PER * BLOCK, &mut got).unwrap();
    assert_eq!(got, data[(PER * BLOCK) as usize..][..BLOCK as usize]);
}

/// The rest of a block that a write changes in part is spoilt between the check and the sync.
#[test]
fn a_write_over_part_of_a_block_that_is_spoilt_meanwhile_is_told() {
    let rig = rig();
    let (bad, data) = file(&rig, 1);
    let rig = rig.reopen();
    let t = tree(&rig, bad);
    let dn = rig.os.hold(bad).unwrap();
    dn.check_edges(BLOCK + 5, 10).unwrap();
    dn.write(&rig.tx(), BLOCK + 5, &b"0123456789"[..]).unwrap();
    ruin(&rig, &t[&(0, 1)]);
    rig.sync();
    is_told(&rig, bad);
    // As it was, whoever can read it.
    ruin(&rig, &t[&(0, 1)]);
    let mut got = vec![0; BLOCK as usize];
    dn.read(BLOCK, &mut got).unwrap();
    assert_eq!(got, data[BLOCK as usize..][..BLOCK as usize]);
    // A freed object tells nobody, and who gets its number has no mark.
    dn.write(&rig.tx(), BLOCK + 5, &b"0123456789"[..]).unwrap();
    ruin(&rig, &t[&(0, 1)]);
    rig.sync();
    ruin(&rig, &t[&(0, 1)]);
    drop(dn);
    rig.os.free(&rig.tx(), bad).unwrap();
    rig.sync();
    rig.sync();
    assert!(rig.os.take_lost(bad).is_none());
}

/// Whether fsync hears of a write that a txg gives up.
fn hears(mistake: Option<Mutation>) -> bool {
    let rig = rig();
    let (bad, _) = file(&rig, 1);
    let rig = rig.reopen();
    let t = tree(&rig, bad);
    let dn = rig.os.hold(bad).unwrap();
    dn.check_edges(BLOCK + 5, 10).unwrap();
    dn.write(&rig.tx(), BLOCK + 5, &b"0123456789"[..]).unwrap();
    ruin(&rig, &t[&(0, 1)]);
    let before = dmu::losses();
    mutate(mistake);
    rig.sync();
    mutate(None);
    let told = rig.os.take_lost(bad).is_some();
    // Other tests lose something, too.
    assert!(!told || dmu::losses() > before);
    told
}

#[test]
fn a_txg_that_gives_up_changes_without_a_mark_is_found() {
    assert!(hears(None));
    assert!(!hears(Some(Mutation::LossUnmarked)));
}

/// What the pool itself needs is never committed with a hole.
#[test]
fn in_the_mos_a_write_over_part_of_an_unreadable_block_fails_the_txg() {
    let policy = WritePolicy {
        is_mos: true,
        ..WritePolicy::default()
    };
    let rig = Rig::new(os_type::META, 1 << 28, policy);
    let (bad, data) = file(&rig, 1);
    let rig = rig.reopen();
    let t = tree(&rig, bad);
    let dn = rig.os.hold(bad).unwrap();
    dn.write(&rig.tx(), BLOCK + 5, &b"0123456789"[..]).unwrap();
    ruin(&rig, &t[&(0, 1)]);
    is_damage(rig.try_sync());
    ruin(&rig, &t[&(0, 1)]);
    drop((dn, data));
}

#[test]
fn frees_met_by_damage_leave_what_cannot_be_found_and_nothing_else() {
    for (level, whole) in [(1, false), (1, true), (2, false), (2, true)] {
        let rig = rig();
        let before_all = rig.space.free_bytes();
        let (bad, data) = file(&rig, 1);
        let rig = rig.reopen();
        let t = tree(&rig, bad);
        let lost = below(&rig, &t, level, 1);
        let dn = rig.os.hold(bad).unwrap();
        {
            let tx = rig.tx();
            match whole {
                true => rig.os.free(&tx, bad).unwrap(),
                false => dn.free_range(&tx, 0, u64::MAX).unwrap(),
            }
        }
        drop(dn);
        ruin(&rig, &t[&(level, 1)]);
        rig.sync();
        // An empty transaction, so that what was kept for the txg is given out again.
        let rig = rig.reopen();
        // What is left: the object set, the way to the unreadable block, and what is below it.
        ruin(&rig, &t[&(level, 1)]);
        let dn = rig.os.hold(bad).unwrap();
        let mut got = vec![0; data.len()];
        dn.read(0, &mut got).unwrap();
        let (a, b) = {
            let span = PER.pow(u32::from(level)) * BLOCK;
            (span as usize, 2 * span as usize)
        };
        assert!(got[..a].iter().all(|b| *b == 0));
        assert_eq!(got[a..b], data[a..b]);
        assert!(got[b..].iter().all(|b| *b == 0));
        assert_eq!(rig.os.object_count(), 1);
        let t = tree(&rig, bad);
        let top = (level + 1..=2).filter(|l| t.contains_key(&(*l, 0))).count();
        assert!(top <= 2);
        assert_eq!(below(&rig, &t, level, 1), lost);
        // Whole again, it can be freed.
        rig.os.free(&rig.tx(), bad).unwrap();
        let rig = rig.reopen();
        let b = tree_of_set(&rig);
        assert_eq!(rig.space.free_bytes() + b, before_all, "level {level}");
    }
}

/// Bytes of the object set and its meta-dnode.
fn tree_of_set(rig: &Rig) -> u64 {
    let root = rig.os.root();
    let b = rig.dmu.zio.read(&root).unwrap();
    let meta = disk::dnode::objset::ObjsetPhys::decode(&b).unwrap().meta;
    let mut sum = rig.dmu.zio.dsize(&root);
    for (_, bp) in walk::all_blocks(&rig.dmu.zio, &meta).unwrap() {
        sum += rig.dmu.zio.dsize(&bp);
    }
    sum
}

#[test]
fn objects_whose_dnodes_cannot_be_read_are_left_out_of_the_txg() {
    let rig = rig();
    let mut all = Vec::new();
    {
        let tx = rig.tx();
        for n in 0..70u64 {
            let dn = rig.os.alloc(&tx, &new()).unwrap();
            dn.write(&tx, 0, &bytes(BLOCK, n)[..]).unwrap();
            all.push(dn.object());
        }
    }
    let rig = rig.reopen();
    let (bad, good) = (all[40], all[0]);
    assert_ne!(bad / 32, good / 32);
    let block = dnode_block(&rig, bad);
    let dns: Vec<_> = [bad, bad + 1, good]
        .iter()
        .map(|o| rig.os.hold(*o).unwrap())
        .collect();
    let free = rig.space.free_bytes();
    {
        let tx = rig.tx();
        for dn in &dns {
            dn.write(&tx, 0, &bytes(BLOCK, 99)[..]).unwrap();
        }
        rig.os.free(&tx, bad + 1).unwrap();
    }
    drop(dns);
    ruin(&rig, &block);
    rig.sync();
    is_told(&rig, bad);
    // There is nobody to ask for the one that was to go.
    assert!(rig.os.take_lost(bad + 1).is_none());
    assert!(rig.os.take_lost(good).is_none());
    assert_eq!(rig.space.free_bytes(), free);
    let mut got = vec![0; BLOCK as usize];
    rig.os.hold(good).unwrap().read(0, &mut got).unwrap();
    assert_eq!(got, bytes(BLOCK, 99));
    // New objects find room elsewhere.
    {
        let tx = rig.tx();
        for _ in 0..64 {
            let dn = rig.os.alloc(&tx, &new()).unwrap();
            assert_ne!(dn.object() / 32, bad / 32);
        }
    }
    let rig = rig.reopen();
    assert!(rig.os.hold(bad).err().unwrap().is_damage());
    ruin(&rig, &block);
    rig.os.hold(bad).unwrap().read(0, &mut got).unwrap();
    assert_eq!(got, bytes(BLOCK, 40));
    rig.os.hold(bad + 1).unwrap().read(0, &mut got).unwrap();
    assert_eq!(got, bytes(BLOCK, 41));
}

/// The intent log still has a replayed change. A txg that cannot read the block of dnodes fails, and does not go on without the
/// change.
#[test]
fn a_replayed_change_is_not_given_up_for_a_block_of_dnodes_that_is_not_read() {
    for replaying in [false, true] {
        let rig = rig();
        let (object, _) = file(&rig, 1);
        let rig = rig.reopen();
        rig.os.set_replaying(replaying);
        let dn = rig.os.hold(object).unwrap();
        let tx = rig.tx();
        dn.write(&tx, 0, &[7; BLOCK as usize]).unwrap();
        drop(tx);
        rig.dmu.zio.cache.clear();
        let unreadable = &rig.devices.unreadable;
        unreadable.store(true, std::sync::atomic::Ordering::Relaxed);
        let done = rig.try_sync();
        assert_eq!(rig.os.take_lost(object).is_some(), !replaying);
        match replaying {
            true => assert_eq!(done.unwrap_err().kind, base::Kind::Io),
            false => done.unwrap(),
        }
    }
}
