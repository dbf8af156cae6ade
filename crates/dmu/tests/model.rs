//! Random operations on objects against plain byte vectors, with syncs, reopenings and a check that
//! no byte of space is lost.

use disk::{os_type, Compression, ObjType};
use dmu::testing::{FreeAll, Rig};
use dmu::{NewObject, WritePolicy};
use std::collections::BTreeMap;

struct Lcg(u64);
impl Lcg {
    fn next(&mut self, n: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (self.0 >> 33) % n.max(1)
    }
}

#[derive(Clone)]
struct Model {
    data: Vec<u8>,
    block: usize,
    bonus: Vec<u8>,
    spill: Option<Vec<u8>>,
}

fn check(rig: &Rig, model: &BTreeMap<u64, Model>) {
    for (object, m) in model {
        let dn = rig.os.hold(*object).unwrap();
        let mut got = vec![0xee; m.data.len() + 1000];
        dn.read(0, &mut got).unwrap();
        let mut want = m.data.clone();
        want.resize(got.len(), 0);
        if got != want {
            let at = got.iter().zip(&want).position(|(a, b)| a != b);
            panic!("object {object} differs at {at:?}");
        }
        assert_eq!(dn.bonus(), m.bonus);
        assert_eq!(dn.spill().unwrap().map(|b| b.to_vec()), m.spill);
    }
    let mut seen = Vec::new();
    let mut at = 0;
    while let Some(o) = rig.os.next_object(at).unwrap() {
        seen.push(o);
        at = o;
    }
    assert_eq!(seen, model.keys().copied().collect::<Vec<_>>());
    assert_eq!(rig.os.object_count(), model.len() as u64);
}

/// Writes somewhere, in blocks or across them.
fn write(rig: &Rig, r: &mut Lcg, o: u64, m: &mut Model) {
    let max = (m.block as u64 * 300).min(4 << 20);
    let off = r.next(max);
    let len = match r.next(3) {
        0 => r.next(100),
        1 => r.next(m.block as u64 * 3),
        _ => m.block as u64,
    };
    let off = if r.next(4) == 0 {
        off / m.block as u64 * m.block as u64
    } else {
        off
    };
    let zero = r.next(10) == 0;
    let data: Vec<u8> = (0..len)
        .map(|_| if zero { 0 } else { r.next(256) as u8 })
        .collect();
    let end = (off + len) as usize;
    if m.data.len() < end {
        m.data.resize(end, 0);
    }
    m.data[off as usize..end].copy_from_slice(&data);
    let dn = rig.os.hold(o).unwrap();
    dn.write(&rig.tx(), off, &data).unwrap();
}

/// Frees a range, or all from somewhere on.
fn punch(rig: &Rig, r: &mut Lcg, o: u64, m: &mut Model) {
    let off = r.next(m.data.len() as u64 + 1000);
    let len = if r.next(2) == 0 {
        u64::MAX
    } else {
        r.next(1 << 20)
    };
    let end = off.saturating_add(len).min(m.data.len() as u64);
    if off < end {
        m.data[off as usize..end as usize].fill(0);
    }
    rig.os
        .hold(o)
        .unwrap()
        .free_range(&rig.tx(), off, len)
        .unwrap();
}

/// Gives the object another bonus, or another spill block or none.
fn attach(rig: &Rig, r: &mut Lcg, o: u64, m: &mut Model) {
    let dn = rig.os.hold(o).unwrap();
    if r.next(2) == 0 {
        m.bonus = vec![7; 1 + r.next(180) as usize];
        dn.set_bonus(&rig.tx(), &m.bonus).unwrap();
    } else {
        m.spill = if r.next(3) == 0 {
            None
        } else {
            Some(vec![r.next(255) as u8 + 1; 512 * (1 + r.next(20) as usize)])
        };
        dn.set_spill(&rig.tx(), m.spill.clone()).unwrap();
    }
}

fn run(seed: u64, policy: WritePolicy, early: bool) {
    let hasty = |rig: Rig| {
        if early {
            rig.dmu.set_early(1, 2000);
            // Half of the time they stay in memory as well.
            rig.dmu.zio.cache.set_streams(seed % 2 == 0);
        }
        rig
    };
    let mut rig = hasty(Rig::new(os_type::OTHER, 1 << 30, policy));
    let mut r = Lcg(seed);
    let mut model: BTreeMap<u64, Model> = BTreeMap::new();
    for step in 0..1500 {
        let pick = |r: &mut Lcg, m: &BTreeMap<u64, Model>| {
            m.keys().nth(r.next(m.len() as u64) as usize).copied()
        };
        match r.next(100) {
            0..=11 => {
                let block = [512, 1024, 4096, 131072][r.next(4) as usize];
                let bonus = vec![r.next(256) as u8; 1 + r.next(150) as usize];
                let tx = rig.tx();
                let dn = rig
                    .os
                    .alloc(
                        &tx,
                        &NewObject {
                            obj_type: ObjType::PLAIN_FILE_CONTENTS,
                            block_size: block,
                            indblkshift: 12,
                            bonus_type: ObjType::SA,
                            bonus: bonus.clone(),
                            slots: 1 + r.next(4) as u8,
                            ..NewObject::default()
                        },
                    )
                    .unwrap();
                let m = Model {
                    data: vec![],
                    block,
                    bonus,
                    spill: None,
                };
                assert!(model.insert(dn.object(), m).is_none());
            }
            12..=15 => {
                if let Some(o) = pick(&mut r, &model) {
                    rig.os.free(&rig.tx(), o).unwrap();
                    model.remove(&o);
                }
            }
            16..=60 => {
                if let Some(o) = pick(&mut r, &model) {
                    let m = model.get_mut(&o).unwrap();
                    write(&rig, &mut r, o, m);
                }
            }
            61..=75 => {
                if let Some(o) = pick(&mut r, &model) {
                    let m = model.get_mut(&o).unwrap();
                    punch(&rig, &mut r, o, m);
                }
            }
            76..=80 => {
                if let Some(o) = pick(&mut r, &model) {
                    let m = model.get_mut(&o).unwrap();
                    attach(&rig, &mut r, o, m);
                }
            }
            81..=88 => {
                if let Some(o) = pick(&mut r, &model) {
                    let m = model.get_mut(&o).unwrap();
                    let dn = rig.os.hold(o).unwrap();
                    let blk = r.next(20);
                    let v = r.next(256) as u8;
                    dn.modify(&rig.tx(), blk, |b| b[3] = v).unwrap();
                    let at = blk as usize * m.block + 3;
                    let end = (blk as usize + 1) * m.block;
                    if m.data.len() < end {
                        m.data.resize(end, 0);
                    }
                    m.data[at] = v;
                }
            }
            89..=95 => {
                rig.sync();
            }
            96 => {
                rig.dmu.zio.cache.clear();
                for o in model.keys() {
                    let dn = rig.os.hold(*o).unwrap();
                    let tx = rig.tx();
                    for blk in 0..6 {
                        dn.write_now(&tx, blk).unwrap();
                    }
                }
            }
            97 => rig = hasty(rig.reopen()),
            _ => check(&rig, &model),
        }
        if step % 100 == 99 {
            check(&rig, &model);
        }
    }
    rig = rig.reopen();
    check(&rig, &model);
    let keys: Vec<u64> = model.keys().copied().collect();
    for o in keys {
        let tx = rig.tx();
        rig.os.free(&tx, o).unwrap();
    }
    rig.sync();
    check(&rig, &BTreeMap::new());
    // What is left is the object set block, in two copies.
    let left = (1u64 << 30) - rig.space.free_bytes();
    assert_eq!(left, rig.dmu.zio.dsize(&rig.os.root()));
}

#[test]
fn random_against_vectors() {
    for seed in 0..6 {
        run(seed, WritePolicy::default(), false);
    }
}

/// Every write goes to its place before its txg closes; the space is the same in the end.
#[test]
fn random_against_vectors_written_early() {
    for seed in 10..18 {
        run(seed, WritePolicy::default(), true);
    }
}

#[test]
fn random_without_compression_or_features() {
    for seed in 100..103 {
        run(
            seed,
            WritePolicy {
                compress: Compression::OFF,
                hole_birth: false,
                embedded_data: false,
                meta_compress: Compression::LZJB,
                indblkshift: 14,
                ..WritePolicy::default()
            },
            seed == 101,
        );
    }
}

/// What is made under a number may be on disk, in the log, before the txg that freed the number is.
#[test]
fn freed_numbers_are_kept_back_until_their_group_is_on_disk() {
    let rig = Rig::new(os_type::OTHER, 64 << 20, WritePolicy::default());
    let new = NewObject {
        obj_type: ObjType::PLAIN_FILE_CONTENTS,
        ..NewObject::default()
    };
    let tx = rig.tx();
    let all: Vec<u64> = (0..200)
        .map(|_| rig.os.alloc(&tx, &new).unwrap().object())
        .collect();
    drop(tx);
    rig.sync();
    let tx = rig.tx();
    for o in &all {
        rig.os.free(&tx, *o).unwrap();
    }
    drop(tx);
    let group = rig.dmu.begin_sync().unwrap();
    let syncing = rig.dmu.syncing_tx(group.txg);
    while rig.os.is_dirty_in(group.txg) {
        rig.os.sync(&syncing, 1, &FreeAll).unwrap();
    }
    rig.dmu.zio.drain(group.txg).unwrap();
    // All of it is written, but it is not the pool yet.
    let tx = rig.tx();
    for _ in 0..300 {
        let o = rig.os.alloc(&tx, &new).unwrap().object();
        assert!(!all.contains(&o), "object {o} is not free on disk");
    }
    for o in &all {
        let e = rig.os.claim(&tx, *o, &new).err().expect("not free on disk");
        assert_eq!(e.kind, base::Kind::Again);
    }
    drop(tx);
    rig.dmu.end_sync(group.txg);
    let tx = rig.tx();
    for o in &all {
        rig.os.claim(&tx, *o, &new).unwrap();
    }
}

/// Whoever relies on the changes of a set waits for their txg until it is on disk, and not only until it is taken over.
#[test]
fn a_txg_on_its_way_to_the_disk_is_not_clean() {
    let rig = Rig::new(os_type::OTHER, 64 << 20, WritePolicy::default());
    rig.sync();
    assert!(rig.os.newest_dirty().is_none());
    let tx = rig.tx();
    let new = NewObject {
        obj_type: ObjType::PLAIN_FILE_CONTENTS,
        ..NewObject::default()
    };
    rig.os.alloc(&tx, &new).unwrap();
    let txg = tx.txg();
    drop(tx);
    assert_eq!(rig.os.newest_dirty(), txg);
    let group = rig.dmu.begin_sync().unwrap();
    assert_eq!(rig.os.newest_dirty(), txg);
    let syncing = rig.dmu.syncing_tx(group.txg);
    while rig.os.is_dirty_in(group.txg) {
        rig.os.sync(&syncing, 1, &FreeAll).unwrap();
    }
    rig.dmu.zio.drain(group.txg).unwrap();
    assert_eq!(rig.os.newest_dirty(), txg, "it is not on disk yet");
    rig.dmu.end_sync(group.txg);
    assert!(rig.os.newest_dirty().is_none());
}
