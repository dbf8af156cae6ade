//! Mirrors, RAID-Z and dRAID: reads and writes with lost and wrong devices.

use super::{add, attach, pool_keys, rig, specs, subsets, Rig, DATA, SIZE};
use crate::label::{self, LabelSet};
use crate::testing::{mem_env, SeededRng};
use crate::*;
use base::sync::MutexExt;
use base::{Block, Kind, Result, Txg};
use env::Access;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::Arc;

/// All widths and parities: any loss or corruption of up to nparity children gives the data back
/// and repairs it.
#[test]
fn raidz_survives_any_loss_within_parity() {
    for ashift in [9, 12] {
        for nparity in 1..=3usize {
            for width in nparity + 1..=8 {
                let r = rig(GroupKind::Raidz { nparity }, width, ashift);
                let top = r.tree.top(0).unwrap();
                let mut at = (r.rng.below(100) << ashift) + (1 << 20) * r.rng.below(4);
                let mut blocks = Vec::new();
                let batch = r.tree.write_batch(Txg::new(10));
                for i in 0..10 {
                    let most = if i < 6 { 3 * width as u64 } else { 40 };
                    let len = (512 * (1 + r.rng.below(most << (ashift - 9)))) as usize;
                    let b = r.block(len);
                    batch.write(0, at, &b).unwrap();
                    blocks.push((at, b));
                    at += top.asize_for(len as u64);
                }
                assert!(batch.submit().iter().all(Result::is_ok));
                let ways = subsets(width, nparity);
                for (n, lost) in ways
                    .iter()
                    .enumerate()
                    .filter(|(n, _)| n % (1 + ways.len() / 24) == 0)
                {
                    let (offset, b) = &blocks[n % blocks.len()];
                    // Devices that report errors.
                    lost.iter()
                        .for_each(|d| r.disks[*d].fail_reads.store(true, Relaxed));
                    let o = r.read(*offset, b, Txg::new(10)).unwrap();
                    assert!(o.data == **b && o.bad.iter().all(|x| x.fault == Fault::Io));
                    lost.iter()
                        .for_each(|d| r.disks[*d].fail_reads.store(false, Relaxed));
                    // Devices that lie.
                    let rows = 1 + b.len() as u64 / (width as u64);
                    let row = DATA + ((offset >> ashift) / width as u64) * (1 << ashift);
                    for d in lost {
                        r.disks[*d].corrupt(row, rows as usize + (3 << ashift));
                    }
                    let o = r.read(*offset, b, Txg::new(10)).unwrap();
                    assert!(o.data == **b);
                    assert!(o
                        .bad
                        .iter()
                        .all(|x| x.fault == Fault::Checksum && x.repaired));
                    // A scrub puts all of it right, parity included.
                    for (o, b) in &blocks {
                        assert!(r.scrub(*o, b, Txg::new(10)).unwrap().data == **b);
                    }
                    for (o, b) in &blocks {
                        let again = r.scrub(*o, b, Txg::new(10)).unwrap();
                        assert!(
                            again.bad.is_empty(),
                            "{nparity} of {width}: {:?}",
                            again.bad
                        );
                    }
                }
            }
        }
    }
}

/// The same for distributed RAID, with blocks that begin in one group and end in the next.
#[test]
fn draid_survives_any_loss_within_parity() {
    for (n, ndata, nparity, nspares) in [(9, 4, 2, 1), (7, 2, 1, 1), (8, 3, 3, 1)] {
        let kind = GroupKind::Draid {
            nparity,
            ndata,
            nspares,
        };
        let (env, mem) = mem_env(3);
        let disks: Vec<_> = (0..n)
            .map(|i| mem.add(&format!("/d{i}"), 256 << 20))
            .collect();
        let tree = VdevTree::create(env.clone(), 77, &specs(kind, n, 12), Txg::new(4)).unwrap();
        let rng = SeededRng::new(9);
        let r = Rig {
            tree,
            env,
            mem,
            disks,
            rng,
        };
        let top = r.tree.top(0).unwrap();
        assert_eq!(top.kind().type_name(), "draid");
        let unit = top.alloc_unit();
        let group = unit / 4096 * (16 << 20);
        assert_eq!(top.asize() % group, 0);
        for at in [0, group - 2 * unit, group - 3 * unit, 5 * unit] {
            for sectors in [1, 2, ndata, 3 * ndata + 1, 7 * ndata] {
                let b = r.block(sectors as usize * 4096 - 512);
                r.tree.write(0, at, &b, Txg::new(10)).unwrap();
                for (i, lost) in subsets(n, nparity).iter().enumerate() {
                    if i % 5 != 0 {
                        continue;
                    }
                    lost.iter()
                        .for_each(|d| r.disks[*d].fail_reads.store(true, Relaxed));
                    assert!(r.read(at, &b, Txg::new(10)).unwrap().data == *b);
                    lost.iter()
                        .for_each(|d| r.disks[*d].fail_reads.store(false, Relaxed));
                    if i % 20 == 0 {
                        lost.iter().for_each(|d| r.disks[*d].corrupt_written(DATA));
                        assert!(r.read(at, &b, Txg::new(10)).unwrap().data == *b);
                        r.scrub(at, &b, Txg::new(10)).unwrap();
                    }
                    assert!(r
                        .scrub(at, &b, Txg::new(10))
                        .unwrap()
                        .bad
                        .iter()
                        .all(|b| b.repaired));
                    assert!(r.scrub(at, &b, Txg::new(10)).unwrap().bad.is_empty());
                }
            }
        }
    }
}

#[test]
fn distributed_spare_stands_in_and_leaves() {
    let kind = GroupKind::Draid {
        nparity: 1,
        ndata: 2,
        nspares: 1,
    };
    let (env, mem) = mem_env(3);
    let disks: Vec<_> = (0..5)
        .map(|i| mem.add(&format!("/d{i}"), 128 << 20))
        .collect();
    let tree = VdevTree::create(env.clone(), 77, &specs(kind, 5, 12), Txg::new(4)).unwrap();
    let rng = SeededRng::new(9);
    let r = Rig {
        tree,
        env,
        mem,
        disks,
        rng,
    };
    r.tree
        .init_labels(&pool_keys(&r.tree), &[0], Txg::new(4))
        .unwrap();
    let unit = r.tree.top(0).unwrap().alloc_unit();
    let at = |i: u64| i * 7 * unit;
    let blocks: Vec<Block> = (0..20).map(|i| r.block(4096 * (1 + i % 9))).collect();
    for (i, b) in blocks.iter().enumerate() {
        r.tree.write(0, at(i as u64), b, Txg::new(5)).unwrap();
    }
    let victim = r.tree.leaves()[2].guid();
    let state = r.tree.fault(victim, true, true).unwrap();
    assert_eq!(state, State::Faulted);
    let spare = r
        .tree
        .attach_dspare(victim, 0, 4711, Txg::new(6), Txg::new(9))
        .unwrap();
    assert_eq!(spare.name(), "draid1-0-0");
    assert_eq!(
        r.tree
            .attach_dspare(victim, 0, 4712, Txg::new(6), Txg::new(9))
            .unwrap_err()
            .kind,
        Kind::Busy
    );
    let scrub = |lost: bool| {
        let mut resilvered = 0;
        for (i, b) in blocks.iter().enumerate() {
            let o = r.scrub(at(i as u64), b, Txg::new(5)).unwrap();
            assert!(o.data == **b && (lost || o.bad.is_empty()));
            resilvered += o.resilvered;
        }
        resilvered
    };
    assert!(scrub(false) > 0);
    spare.dtl_remove_range(Txg::NONE, Txg::new(9));
    assert_eq!(scrub(false), 0);
    // The spare capacity makes another loss harmless: wherever the spare's place is, one column
    // of a stripe is missing at most.
    for d in [0, 1, 3, 4] {
        r.disks[d].fail_reads.store(true, Relaxed);
        let good = (0..20)
            .filter(|i| r.read(at(*i), &blocks[*i as usize], Txg::new(5)).is_ok())
            .count();
        assert_eq!(good, 20);
        r.disks[d].fail_reads.store(false, Relaxed);
    }
    r.tree.detach(4711).unwrap();
    assert_eq!(r.tree.online(victim).unwrap(), State::Faulted);
    assert!(r.tree.leaf_of(victim).unwrap().1.forgive());
    assert_eq!(r.tree.online(victim).unwrap(), State::Healthy);
    assert_eq!(scrub(false), 0);
}

/// Blocks of removed vdevs: found through the mapping, split ones too, with a bad copy of one piece.
#[test]
fn removed_vdevs_are_read_through_their_mapping() {
    let r = rig(GroupKind::Mirror, 2, 9);
    r.mem.add("/log", SIZE);
    let spec = TopSpec::new(GroupKind::Single, vec![DevSpec::file("/log")]);
    add(&r.tree, &spec, Txg::new(5));
    let mut config = r.tree.config(true);
    let kid = &mut config.get_nvlist_array_mut("children").unwrap()[1];
    kid.set("type", "indirect");
    r.tree.close();
    let tree = VdevTree::from_config(r.env.clone(), &config).unwrap();
    tree.open(Access::Exclusive);
    let r = Rig { tree, ..r };
    let b = r.block(4096);
    let (one, two) = (Arc::new(b[..1024].to_vec()), Arc::new(b[1024..].to_vec()));
    r.tree.write(0, 8192, &one, Txg::new(5)).unwrap();
    r.tree.write(0, 1 << 20, &two, Txg::new(5)).unwrap();
    let read = || {
        let verify = |x: &[u8]| x == &b[..];
        let (psize, birth) = (4096, 5);
        r.tree.read(ReadReq {
            vdev: 1,
            offset: 1024,
            psize,
            birth: Txg::new(birth),
            verify: &verify,
        })
    };
    assert_eq!(read().unwrap_err().kind, Kind::Unsupported);
    let m = |src, size, dst| indirect::Moved {
        src,
        size,
        vdev: 0,
        dst,
    };
    let map = IndirectMap::new(vec![m(1024, 1024, 8192), m(2048, 8192, 1 << 20)], vec![]).unwrap();
    r.tree.top(1).unwrap().set_indirect(Arc::new(map));
    assert!(read().unwrap().data == *b);
    r.disks[0].corrupt(DATA + 8192, 512);
    r.disks[1].corrupt(DATA + (1 << 20), 512);
    let o = read().unwrap();
    assert!(o.data == *b && o.bad.len() == 2 && o.bad.iter().all(|x| x.repaired));
    assert!(read().unwrap().bad.is_empty());
    r.disks.iter().for_each(|d| d.corrupt(DATA + 8192, 512));
    assert_eq!(read().unwrap_err().kind, Kind::Checksum);
}

#[test]
fn raidz_with_more_losses_than_parity_fails_cleanly() {
    let r = rig(GroupKind::Raidz { nparity: 1 }, 4, 12);
    let b = r.block(128 << 10);
    r.tree.write(0, 0, &b, Txg::new(10)).unwrap();
    for d in &r.disks[..2] {
        d.fail_reads.store(true, Relaxed);
    }
    assert_eq!(r.read(0, &b, Txg::new(10)).unwrap_err().kind, Kind::Io);
    for d in &r.disks[..2] {
        d.fail_reads.store(false, Relaxed);
        d.corrupt(DATA, 1 << 20);
    }
    assert_eq!(
        r.read(0, &b, Txg::new(10)).unwrap_err().kind,
        Kind::Checksum
    );
    assert_eq!(
        r.tree.top(0).unwrap().stats.checksum_errors.load(Relaxed),
        1
    );
}

#[test]
fn a_child_that_missed_a_txg_is_not_believed_and_then_resilvered() {
    for nparity in 1..=3 {
        let r = rig(GroupKind::Raidz { nparity }, 5, 9);
        let b = r.block(20 << 10);
        let old = r.block(20 << 10);
        r.tree.write(0, 0, &old, Txg::new(9)).unwrap();
        let leaf = r.tree.leaves()[2].clone();
        let p = pool_keys(&r.tree);
        r.tree.init_labels(&p, &[0], Txg::new(4)).unwrap();
        r.commit(Txg::new(9));
        r.tree.offline(leaf.guid(), false).unwrap();
        assert_eq!(r.tree.state().0, State::Degraded);
        r.tree.write(0, 0, &b, Txg::new(10)).unwrap();
        assert!(leaf.dtl_contains(Txg::new(10)) && !leaf.dtl_contains(Txg::new(9)));
        assert!(r.read(0, &b, Txg::new(10)).unwrap().bad.is_empty());
        assert_eq!(r.tree.online(leaf.guid()).unwrap(), State::Healthy);
        let o = r.read(0, &b, Txg::new(10)).unwrap();
        assert!(o.data == *b && o.bad.is_empty());
        // Without the DTL the stale child would have been blamed.
        let o = r.scrub(0, &b, Txg::new(10)).unwrap();
        assert!(o.bad.is_empty() && o.resilvered > 0);
        // A stranger at the same path is not let in.
        r.tree.offline(leaf.guid(), false).unwrap();
        label::clear(&*r.disks[2]).unwrap();
        assert_eq!(r.tree.online(leaf.guid()).unwrap(), State::CantOpen);
        assert_eq!(leaf.aux(), Aux::BadLabel);
        let top = r.tree.top(0).unwrap();
        let config = r.tree.label_config(&p, &top, &leaf, Txg::new(9));
        label::write_config(&*r.disks[2], &config, LabelSet::All).unwrap();
        assert_eq!(r.tree.online(leaf.guid()).unwrap(), State::Healthy);
        leaf.dtl_remove_range(Txg::new(10), Txg::new(11));
        assert!(leaf.dtl_is_empty());
        assert!(r.scrub(0, &b, Txg::new(10)).unwrap().bad.is_empty());
        assert_eq!(leaf.stats.errors(), (0, 0, 0));
    }
}

#[test]
fn mirror_reads_around_errors_and_repairs() {
    let r = rig(GroupKind::Mirror, 3, 9);
    let b = r.block(8192);
    for i in 0..4u64 {
        r.tree.write(0, i << 20, &b, Txg::new(10)).unwrap();
    }
    r.disks[0].corrupt(DATA, 4 << 20);
    r.disks[1]
        .bad_ranges
        .acquire()
        .insert(DATA, DATA + (4 << 20));
    let mut seen = Vec::new();
    for i in 0..4u64 {
        let o = r.read(i << 20, &b, Txg::new(10)).unwrap();
        assert!(o.data == *b && o.bad.iter().all(|x| x.repaired));
        seen.extend(o.bad);
        assert!(r.scrub(i << 20, &b, Txg::new(10)).unwrap().data == *b);
        assert!(r.scrub(i << 20, &b, Txg::new(10)).unwrap().bad.is_empty());
    }
    assert!(seen.iter().any(|x| x.fault == Fault::Checksum));
    assert!(seen.iter().any(|x| x.fault == Fault::Io));
    let leaves = r.tree.leaves();
    assert!(leaves[0].stats.errors().2 == 4 && leaves[2].stats.errors() == (0, 0, 0));
    // All copies bad.
    r.disks.iter().for_each(|d| d.corrupt(DATA, 8192));
    assert_eq!(
        r.read(0, &b, Txg::new(10)).unwrap_err().kind,
        Kind::Checksum
    );
}

/// Neighbours are read and written in one transfer, and do not suffer for each other's sectors.
#[test]
fn a_scrub_of_small_neighbours_takes_few_transfers() {
    const N: usize = 64;
    const LEN: usize = 8192;
    let r = rig(GroupKind::Mirror, 2, 12);
    let [before, now] = [Txg::new(10), Txg::new(11)];
    let blocks: Vec<Block> = (0..N).map(|_| r.block(LEN)).collect();
    let write = |txg| {
        let batch = r.tree.write_batch(txg);
        for (i, b) in blocks.iter().enumerate() {
            batch.write(0, (i * LEN) as u64, b).unwrap();
        }
        assert!(batch.submit().iter().all(Result::is_ok));
    };
    let verify: Vec<_> = blocks.iter().map(|b| move |x: &[u8]| x == &b[..]).collect();
    let scrub = |birth| -> Vec<ReadOutcome> {
        let req = |i: usize| ReadReq {
            vdev: 0,
            offset: (i * LEN) as u64,
            psize: LEN,
            birth,
            verify: &verify[i],
        };
        let reqs: Vec<ReadReq> = (0..N).map(req).collect();
        let done = r.tree.scrub_many(&reqs, &|i| i == 3);
        done.into_iter().map(Result::unwrap).collect()
    };
    let place = |i: usize| DATA + (i * LEN) as u64;
    let leaf = r.tree.leaves()[1].clone();
    r.tree
        .init_labels(&pool_keys(&r.tree), &[0], Txg::new(4))
        .unwrap();
    r.commit(Txg::new(9));
    write(before);

    let reads = r.disks[0].reads.load(Relaxed);
    let clean = scrub(before);
    assert!(clean.iter().all(|o| o.bad.is_empty() && o.repaired == 0));
    let kept = clean.iter().map(|o| o.data.len());
    assert!(kept
        .enumerate()
        .all(|(i, n)| n == if i == 3 { LEN } else { 0 }));
    let reads = r.disks[0].reads.load(Relaxed) - reads;
    assert!(reads <= N as u64 / 4, "{reads} transfers");

    // One sector cannot be read; two neighbours have rotted.
    let bad = place(21) + 4096;
    r.disks[1].bad_ranges.acquire().insert(bad, bad + 512);
    r.disks[1].corrupt(place(40), 10);
    r.disks[1].corrupt(place(41), 10);
    for (i, o) in scrub(before).iter().enumerate() {
        let wrong = [21, 40, 41].contains(&i);
        assert!(
            o.bad.len() == usize::from(wrong) && o.bad.iter().all(|b| b.repaired),
            "{i}"
        );
        assert_eq!(o.repaired, if wrong { LEN as u64 } else { 0 }, "{i}");
    }
    assert_eq!(leaf.stats.errors(), (1, 0, 2));
    assert!(scrub(before).iter().all(|o| o.bad.is_empty()));

    // It has missed all of them, and refuses one sector.
    r.tree.offline(leaf.guid(), false).unwrap();
    write(now);
    r.tree.online(leaf.guid()).unwrap();
    let errors = leaf.stats.errors().1;
    r.disks[1].unwritable.acquire().insert(bad, bad + 512);
    let writes = r.disks[1].writes.load(Relaxed);
    for (i, o) in scrub(now).iter().enumerate() {
        let lacks = i == 21;
        assert_eq!(o.resilvered, if lacks { 0 } else { LEN as u64 }, "{i}");
        assert_eq!(
            o.behind,
            if lacks {
                vec![(leaf.guid(), now)]
            } else {
                vec![]
            },
            "{i}"
        );
    }
    assert_eq!(leaf.stats.errors().1, errors + 1);
    let writes = r.disks[1].writes.load(Relaxed) - writes;
    assert!(writes <= N as u64 / 3, "{writes} transfers");
}

#[test]
fn many_reads_in_one_batch_and_odd_sizes() {
    for (kind, n) in [
        (GroupKind::Single, 1),
        (GroupKind::Mirror, 2),
        (GroupKind::Raidz { nparity: 2 }, 5),
    ] {
        let r = rig(kind, n, 12);
        let top = r.tree.top(0).unwrap();
        let mut at = 0;
        let mut blocks = Vec::new();
        let batch = r.tree.write_batch(Txg::new(10));
        for i in 0..30usize {
            let b = r.block(512 * (1 + i * 7 % 40));
            batch.write(0, at, &b).unwrap();
            at += top.asize_for(b.len() as u64);
            blocks.push(b);
        }
        assert!(batch.bytes() >= at.min(30 * 4096));
        assert!(batch.submit().iter().all(Result::is_ok));
        // Neighbours were merged.
        assert!(r.disks[0].writes.load(Relaxed) <= 2);
        let verify: Vec<_> = blocks.iter().map(|b| move |x: &[u8]| x == &b[..]).collect();
        let mut at = 0;
        let reqs: Vec<ReadReq> = blocks
            .iter()
            .zip(&verify)
            .map(|(b, v)| {
                let offset = at;
                at += top.asize_for(b.len() as u64);
                ReadReq {
                    vdev: 0,
                    offset,
                    psize: b.len(),
                    birth: Txg::new(10),
                    verify: v,
                }
            })
            .collect();
        for (b, o) in blocks.iter().zip(r.tree.read_many(&reqs)) {
            assert!(o.unwrap().data == **b);
        }
    }
}

#[test]
fn writes_succeed_as_long_as_redundancy_covers_failures() {
    let r = rig(GroupKind::Raidz { nparity: 2 }, 5, 9);
    let b = r.block(64 << 10);
    for d in 0..2 {
        r.disks[d].fail_writes.store(true, Relaxed);
        r.tree.write(0, 0, &b, Txg::new(10 + d as u64)).unwrap();
        let leaf = &r.tree.leaves()[d];
        assert!(leaf.dtl_contains(Txg::new(10 + d as u64)) && leaf.stats.errors().1 > 0);
    }
    assert!(r.read(0, &b, Txg::new(11)).unwrap().data == *b);
    r.disks[2].fail_writes.store(true, Relaxed);
    assert_eq!(
        r.tree.write(0, 0, &b, Txg::new(12)).unwrap_err().kind,
        Kind::Io
    );
    // A block that does not touch the third is fine: three sectors on children 3, 4, 0.
    r.tree
        .write(0, 3 * 512, &r.block(512), Txg::new(13))
        .unwrap();

    let m = rig(GroupKind::Mirror, 2, 9);
    let b = m.block(4096);
    m.disks[0].fail_writes.store(true, Relaxed);
    m.tree.write(0, 0, &b, Txg::new(10)).unwrap();
    assert!(m.read(0, &b, Txg::new(10)).unwrap().bad.is_empty());
    m.disks[1].fail_writes.store(true, Relaxed);
    assert!(m.tree.write(0, 0, &b, Txg::new(10)).is_err());
}

#[test]
fn a_failed_flush_counts_as_lost_writes() {
    let r = rig(GroupKind::Mirror, 2, 9);
    let b = r.block(4096);
    r.tree.write(0, 0, &b, Txg::new(10)).unwrap();
    r.disks[1].fail_flush.store(true, Relaxed);
    r.tree.flush_dirty(Txg::new(10)).unwrap();
    assert!(
        r.tree.leaves()[1].dtl_contains(Txg::new(10))
            && !r.tree.leaves()[0].dtl_contains(Txg::new(10))
    );
    let before = r.disks[0].flushes.load(Relaxed);
    r.tree.flush_dirty(Txg::new(10)).unwrap();
    assert_eq!(
        r.disks[0].flushes.load(Relaxed),
        before,
        "nothing written since"
    );
    r.tree.write(0, 0, &b, Txg::new(11)).unwrap();
    r.disks[0].fail_flush.store(true, Relaxed);
    assert_eq!(r.tree.flush_dirty(Txg::new(11)).unwrap_err().kind, Kind::Io);
}

#[test]
fn spare_in_raidz() {
    let r = rig(GroupKind::Raidz { nparity: 1 }, 3, 9);
    let p = pool_keys(&r.tree);
    r.tree.init_labels(&p, &[0], Txg::new(4)).unwrap();
    let b = r.block(10 << 10);
    r.tree.write(0, 0, &b, Txg::new(5)).unwrap();
    r.mem.add("/spare", SIZE);
    let guid = r.tree.leaves()[1].guid();
    let how = Attach::Spare(4242);
    let spare = attach(&r.tree, guid, &DevSpec::file("/spare"), how).unwrap();
    assert_eq!(r.tree.top(0).unwrap().children()[1].name(), "spare-1");
    assert!(r.scrub(0, &b, Txg::new(5)).unwrap().resilvered > 0);
    spare.dtl_remove_range(Txg::NONE, Txg::new(9));
    r.disks[1].fail_reads.store(true, Relaxed);
    r.disks[0].fail_reads.store(true, Relaxed);
    assert!(
        r.read(0, &b, Txg::new(5)).unwrap().data == *b,
        "spare and parity"
    );
    r.disks[0].fail_reads.store(false, Relaxed);
    r.tree.fault(guid, true, true).unwrap();
    assert_eq!(r.tree.state().0, State::Degraded);
    r.tree.detach(guid).unwrap();
    assert_eq!(r.tree.top(0).unwrap().children()[1].guid(), 4242);
    assert_eq!(r.tree.state().0, State::Healthy);
}

#[test]
fn missing_txgs_of_groups() {
    let r = rig(GroupKind::Raidz { nparity: 1 }, 3, 9);
    let top = r.tree.top(0).unwrap();
    let l = r.tree.leaves();
    l[0].dtl_add_range(Txg::new(5), Txg::new(20));
    l[1].dtl_add_range(Txg::new(10), Txg::new(30));
    l[2].dtl_add_range(Txg::new(15), Txg::new(17));
    l[2].dtl_add_range(Txg::new(25), Txg::new(26));
    assert_eq!(
        top.missing().iter().collect::<Vec<_>>(),
        [(10, 20), (25, 26)]
    );
    let m = rig(GroupKind::Mirror, 2, 9);
    m.tree.leaves()[0].dtl_add_range(Txg::new(5), Txg::new(20));
    m.tree.leaves()[1].dtl_add(Txg::new(7));
    assert_eq!(
        m.tree.top(0).unwrap().missing().iter().collect::<Vec<_>>(),
        [(7, 8)]
    );
}

/// What a range takes on the leaves is its sectors, each once, and nothing else is discarded.
#[test]
fn discards_cover_exactly_the_range() {
    for (kind, n) in [
        (GroupKind::Single, 1),
        (GroupKind::Mirror, 2),
        (GroupKind::Raidz { nparity: 1 }, 3),
        (GroupKind::Raidz { nparity: 2 }, 5),
    ] {
        let r = rig(kind, n, 9);
        let all = r.block(1 << 20);
        for d in &r.disks {
            d.poke(DATA, &all);
        }
        let top = r.tree.top(0).unwrap();
        let (mut changed, mut share) = (0, 0);
        for (leaf, d) in r.tree.leaves().iter().zip(&r.disks) {
            let on = OnLeaf::new(&top, leaf).unwrap();
            let mut ranges = base::RangeSet::new();
            on.add(512 * 5, 512 * 12, &mut ranges);
            for (s, e) in ranges.iter() {
                r.tree.trim(leaf, s, e - s).unwrap();
            }
            let mut b = vec![0; 1 << 20];
            d.peek(DATA, &mut b);
            let sectors = b.chunks(512).zip(all.chunks(512));
            changed += sectors.filter(|(a, b)| a != b).count();
            share = on.divisor();
            assert_eq!(leaf.stats.trim_bytes.load(Relaxed), ranges.total());
            assert_eq!(leaf.io_figures().unwrap().alone[5].iter().sum::<u64>(), 1);
        }
        assert_eq!(changed, if share == 1 { 7 * n } else { 7 });
    }
}

#[test]
fn a_pattern_is_written_to_exactly_the_range() {
    let r = rig(GroupKind::Single, 1, 9);
    let leaf = &r.tree.leaves()[0];
    r.tree.initialize(leaf, 512, (1 << 20) + 1024).unwrap();
    let mut b = vec![0; (1 << 20) + 2048];
    r.disks[0].peek(DATA, &mut b);
    let inner = &b[512..(1 << 20) + 1536];
    assert!(b[..512]
        .iter()
        .chain(&b[(1 << 20) + 1536..])
        .all(|x| *x == 0));
    assert!(inner
        .chunks(8)
        .all(|w| w == 0xdead_beef_dead_beee_u64.to_le_bytes()));
}

#[test]
fn a_group_with_a_child_that_lacks_txgs_is_degraded_though_all_devices_work() {
    for kind in [GroupKind::Mirror, GroupKind::Raidz { nparity: 1 }] {
        let r = rig(kind, 3, 9);
        r.commit(Txg::new(4));
        assert_eq!(r.tree.state(), (State::Healthy, Aux::None));
        let leaf = &r.tree.leaves()[1];
        leaf.dtl_add(Txg::new(7));
        r.tree.propagate();
        assert_eq!(r.tree.state(), (State::Degraded, Aux::None));
        assert_eq!(leaf.state(), State::Healthy, "it is used for the rest");
        leaf.dtl_remove_range(Txg::NONE, Txg::MAX);
        r.tree.propagate();
        assert_eq!(r.tree.state(), (State::Healthy, Aux::None));
    }
    // While a device is replaced the old one has everything.
    let r = rig(GroupKind::Mirror, 2, 9);
    r.commit(Txg::new(4));
    r.mem.add("/new", SIZE);
    let guid = r.tree.leaves()[1].guid();
    attach(&r.tree, guid, &DevSpec::file("/new"), Attach::Replace).unwrap();
    r.tree.propagate();
    assert_eq!(r.tree.state(), (State::Healthy, Aux::None));
    r.tree.leaf_of(guid).unwrap().1.dtl_add(Txg::new(8));
    r.tree.propagate();
    assert_eq!(r.tree.state(), (State::Degraded, Aux::None), "nobody has 8");
    // A device without a group.
    let r = rig(GroupKind::Single, 1, 9);
    r.tree.leaves()[0].dtl_add(Txg::new(7));
    assert_eq!(r.tree.state(), (State::Degraded, Aux::None));
}
