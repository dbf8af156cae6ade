//! Whole trees on disks in memory.

use crate::keys::{self, pool};
use crate::label::{self, LabelSet};
use crate::testing::{mem_env, MemDisk, MemDisks, SeededRng};
use crate::*;
use base::sync::MutexExt;
use base::{Block, Kind, Result, Txg};
use disk::{NvList, Uberblock, Value};
use env::{Access, Env};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::Arc;

const SIZE: u64 = 64 << 20;
const DATA: u64 = disk::label::DATA_START;

fn specs(kind: GroupKind, n: usize, ashift: u32) -> Vec<TopSpec> {
    let devices = (0..n).map(|i| DevSpec::file(format!("/d{i}"))).collect();
    vec![TopSpec {
        ashift: Some(ashift),
        ..TopSpec::new(kind, devices)
    }]
}

struct Rig {
    tree: VdevTree,
    env: Env,
    mem: Arc<MemDisks>,
    disks: Vec<Arc<MemDisk>>,
    rng: SeededRng,
}

fn rig(kind: GroupKind, n: usize, ashift: u32) -> Rig {
    rig_of(n, &specs(kind, n, ashift), ashift)
}

/// Each of `n` disks a top-level vdev.
fn stripe(n: usize) -> Rig {
    let one = |i| TopSpec::new(GroupKind::Single, vec![DevSpec::file(format!("/d{i}"))]);
    rig_of(n, &(0..n).map(one).collect::<Vec<_>>(), 9)
}

fn rig_of(n: usize, specs: &[TopSpec], ashift: u32) -> Rig {
    let (env, mem) = mem_env(n as u64 * 100 + u64::from(ashift));
    let disks = (0..n).map(|i| mem.add(&format!("/d{i}"), SIZE)).collect();
    let tree = VdevTree::create(env.clone(), 77, specs, 4).unwrap();
    Rig {
        tree,
        env,
        mem,
        disks,
        rng: SeededRng::new(5),
    }
}

fn pool_keys(tree: &VdevTree) -> NvList {
    let mut p = NvList::new();
    p.set(pool::VERSION, 5000u64);
    p.set(pool::NAME, "tank");
    p.set(pool::STATE, 0u64);
    p.set(pool::POOL_GUID, tree.guid());
    p.set(pool::FEATURES_FOR_READ, Value::NvList(NvList::new()));
    p
}

impl Rig {
    fn block(&self, len: usize) -> Block {
        let mut b = vec![0; len];
        env::Rng::fill(&self.rng, &mut b);
        Arc::new(b)
    }

    fn read(&self, offset: u64, want: &Block, birth: Txg) -> Result<ReadOutcome> {
        let w = want.clone();
        let verify = move |b: &[u8]| b == &w[..];
        let req = ReadReq {
            vdev: 0,
            offset,
            psize: want.len(),
            birth,
            verify: &verify,
        };
        self.tree.read(req)
    }

    fn scrub(&self, offset: u64, want: &Block, birth: Txg) -> Result<ReadOutcome> {
        let w = want.clone();
        let verify = move |b: &[u8]| b == &w[..];
        let req = ReadReq {
            vdev: 0,
            offset,
            psize: want.len(),
            birth,
            verify: &verify,
        };
        self.tree.scrub_many(&[req]).pop().unwrap()
    }

    /// A full round of labels and an uberblock.
    fn commit(&self, txg: Txg) {
        self.commit_with(txg, true);
    }

    /// The same, or an uberblock alone.
    fn commit_with(&self, txg: Txg, labels: bool) {
        for t in self.tree.tops().iter().filter(|t| t.metaslab_array() == 0) {
            t.set_u64(keys::METASLAB_ARRAY, 32);
        }
        let ub = Uberblock {
            version: 5000,
            txg,
            guid_sum: self.tree.guid_sum(),
            timestamp: 1000 + txg,
            ..Uberblock::default()
        };
        let ids: Vec<u64> = self.tree.tops().iter().map(|t| t.id()).collect();
        let p = pool_keys(&self.tree);
        let changed = if labels { &ids[..] } else { &[] };
        self.tree.commit(&p, &ub, changed, &ids, false).unwrap();
    }
}

/// Every way to choose up to `k` of `n`.
fn subsets(n: usize, k: usize) -> Vec<Vec<usize>> {
    (0u32..1 << n)
        .filter(|m| m.count_ones() as usize <= k)
        .map(|m| (0..n).filter(|i| m & 1 << i != 0).collect())
        .collect()
}

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
                let batch = r.tree.write_batch(10);
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
                    let o = r.read(*offset, b, 10).unwrap();
                    assert!(o.data == **b && o.bad.iter().all(|x| x.fault == Fault::Io));
                    lost.iter()
                        .for_each(|d| r.disks[*d].fail_reads.store(false, Relaxed));
                    // Devices that lie.
                    let rows = 1 + b.len() as u64 / (width as u64);
                    let row = DATA + ((offset >> ashift) / width as u64) * (1 << ashift);
                    for d in lost {
                        r.disks[*d].corrupt(row, rows as usize + (3 << ashift));
                    }
                    let o = r.read(*offset, b, 10).unwrap();
                    assert!(o.data == **b);
                    assert!(o
                        .bad
                        .iter()
                        .all(|x| x.fault == Fault::Checksum && x.repaired));
                    // A scrub puts all of it right, parity included.
                    for (o, b) in &blocks {
                        assert!(r.scrub(*o, b, 10).unwrap().data == **b);
                    }
                    for (o, b) in &blocks {
                        let again = r.scrub(*o, b, 10).unwrap();
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
        let tree = VdevTree::create(env.clone(), 77, &specs(kind, n, 12), 4).unwrap();
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
                r.tree.write(0, at, &b, 10).unwrap();
                for (i, lost) in subsets(n, nparity).iter().enumerate() {
                    if i % 5 != 0 {
                        continue;
                    }
                    lost.iter()
                        .for_each(|d| r.disks[*d].fail_reads.store(true, Relaxed));
                    assert!(r.read(at, &b, 10).unwrap().data == *b);
                    lost.iter()
                        .for_each(|d| r.disks[*d].fail_reads.store(false, Relaxed));
                    if i % 20 == 0 {
                        lost.iter().for_each(|d| r.disks[*d].corrupt_written(DATA));
                        assert!(r.read(at, &b, 10).unwrap().data == *b);
                        r.scrub(at, &b, 10).unwrap();
                    }
                    assert!(r.scrub(at, &b, 10).unwrap().bad.iter().all(|b| b.repaired));
                    assert!(r.scrub(at, &b, 10).unwrap().bad.is_empty());
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
    let tree = VdevTree::create(env.clone(), 77, &specs(kind, 5, 12), 4).unwrap();
    let rng = SeededRng::new(9);
    let r = Rig {
        tree,
        env,
        mem,
        disks,
        rng,
    };
    r.tree.init_labels(&pool_keys(&r.tree), &[0], 4).unwrap();
    let unit = r.tree.top(0).unwrap().alloc_unit();
    let at = |i: u64| i * 7 * unit;
    let blocks: Vec<Block> = (0..20).map(|i| r.block(4096 * (1 + i % 9))).collect();
    for (i, b) in blocks.iter().enumerate() {
        r.tree.write(0, at(i as u64), b, 5).unwrap();
    }
    let victim = r.tree.leaves()[2].guid();
    r.tree.fault(victim, true).unwrap();
    let spare = r.tree.attach_dspare(victim, 0, 4711, 6, 9).unwrap();
    assert_eq!(spare.name(), "draid1-0-0");
    assert_eq!(
        r.tree
            .attach_dspare(victim, 0, 4712, 6, 9)
            .unwrap_err()
            .kind,
        Kind::Busy
    );
    let scrub = |lost: bool| {
        let mut resilvered = 0;
        for (i, b) in blocks.iter().enumerate() {
            let o = r.scrub(at(i as u64), b, 5).unwrap();
            assert!(o.data == **b && (lost || o.bad.is_empty()));
            resilvered += o.resilvered;
        }
        resilvered
    };
    assert!(scrub(false) > 0);
    spare.dtl_remove_range(0, 9);
    assert_eq!(scrub(false), 0);
    // The spare capacity makes another loss harmless: wherever the spare's place is, one column
    // of a stripe is missing at most.
    for d in [0, 1, 3, 4] {
        r.disks[d].fail_reads.store(true, Relaxed);
        let good = (0..20)
            .filter(|i| r.read(at(*i), &blocks[*i as usize], 5).is_ok())
            .count();
        assert_eq!(good, 20);
        r.disks[d].fail_reads.store(false, Relaxed);
    }
    r.tree.detach(4711).unwrap();
    assert_eq!(r.tree.online(victim).unwrap(), State::Healthy);
    assert_eq!(scrub(false), 0);
}

/// Blocks of removed vdevs: found through the mapping, split ones too, with a bad copy of one piece.
#[test]
fn removed_vdevs_are_read_through_their_mapping() {
    let r = rig(GroupKind::Mirror, 2, 9);
    r.mem.add("/log", SIZE);
    let spec = TopSpec::new(GroupKind::Single, vec![DevSpec::file("/log")]);
    add(&r.tree, &spec, 5);
    let mut config = r.tree.config(true);
    let kid = &mut config.get_nvlist_array_mut("children").unwrap()[1];
    kid.set("type", "indirect");
    r.tree.close();
    let tree = VdevTree::from_config(r.env.clone(), &config).unwrap();
    tree.open(Access::Exclusive);
    let r = Rig { tree, ..r };
    let b = r.block(4096);
    let (one, two) = (Arc::new(b[..1024].to_vec()), Arc::new(b[1024..].to_vec()));
    r.tree.write(0, 8192, &one, 5).unwrap();
    r.tree.write(0, 1 << 20, &two, 5).unwrap();
    let read = || {
        let verify = |x: &[u8]| x == &b[..];
        let (psize, birth) = (4096, 5);
        r.tree.read(ReadReq {
            vdev: 1,
            offset: 1024,
            psize,
            birth,
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
    r.tree.write(0, 0, &b, 10).unwrap();
    for d in &r.disks[..2] {
        d.fail_reads.store(true, Relaxed);
    }
    assert_eq!(r.read(0, &b, 10).unwrap_err().kind, Kind::Io);
    for d in &r.disks[..2] {
        d.fail_reads.store(false, Relaxed);
        d.corrupt(DATA, 1 << 20);
    }
    assert_eq!(r.read(0, &b, 10).unwrap_err().kind, Kind::Checksum);
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
        r.tree.write(0, 0, &old, 9).unwrap();
        let leaf = r.tree.leaves()[2].clone();
        let p = pool_keys(&r.tree);
        r.tree.init_labels(&p, &[0], 4).unwrap();
        r.commit(9);
        r.tree.offline(leaf.guid(), false).unwrap();
        assert_eq!(r.tree.state().0, State::Degraded);
        r.tree.write(0, 0, &b, 10).unwrap();
        assert!(leaf.dtl_contains(10) && !leaf.dtl_contains(9));
        assert!(r.read(0, &b, 10).unwrap().bad.is_empty());
        assert_eq!(r.tree.online(leaf.guid()).unwrap(), State::Healthy);
        let o = r.read(0, &b, 10).unwrap();
        assert!(o.data == *b && o.bad.is_empty());
        // Without the DTL the stale child would have been blamed.
        let o = r.scrub(0, &b, 10).unwrap();
        assert!(o.bad.is_empty() && o.resilvered > 0);
        // A stranger at the same path is not let in.
        r.tree.offline(leaf.guid(), false).unwrap();
        label::clear(&*r.disks[2]).unwrap();
        assert_eq!(r.tree.online(leaf.guid()).unwrap(), State::CantOpen);
        assert_eq!(leaf.aux(), Aux::BadLabel);
        let top = r.tree.top(0).unwrap();
        let config = r.tree.label_config(&p, &top, &leaf, 9);
        label::write_config(&*r.disks[2], &config, LabelSet::All).unwrap();
        assert_eq!(r.tree.online(leaf.guid()).unwrap(), State::Healthy);
        leaf.dtl_remove_range(10, 11);
        assert!(leaf.dtl_is_empty());
        assert!(r.scrub(0, &b, 10).unwrap().bad.is_empty());
        assert_eq!(leaf.stats.errors(), (0, 0, 0));
    }
}

#[test]
fn mirror_reads_around_errors_and_repairs() {
    let r = rig(GroupKind::Mirror, 3, 9);
    let b = r.block(8192);
    for i in 0..4u64 {
        r.tree.write(0, i << 20, &b, 10).unwrap();
    }
    r.disks[0].corrupt(DATA, 4 << 20);
    r.disks[1]
        .bad_ranges
        .acquire()
        .insert(DATA, DATA + (4 << 20));
    let mut seen = Vec::new();
    for i in 0..4u64 {
        let o = r.read(i << 20, &b, 10).unwrap();
        assert!(o.data == *b && o.bad.iter().all(|x| x.repaired));
        seen.extend(o.bad);
        assert!(r.scrub(i << 20, &b, 10).unwrap().data == *b);
        assert!(r.scrub(i << 20, &b, 10).unwrap().bad.is_empty());
    }
    assert!(seen.iter().any(|x| x.fault == Fault::Checksum));
    assert!(seen.iter().any(|x| x.fault == Fault::Io));
    let leaves = r.tree.leaves();
    assert!(leaves[0].stats.errors().2 == 4 && leaves[2].stats.errors() == (0, 0, 0));
    // All copies bad.
    r.disks.iter().for_each(|d| d.corrupt(DATA, 8192));
    assert_eq!(r.read(0, &b, 10).unwrap_err().kind, Kind::Checksum);
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
        let batch = r.tree.write_batch(10);
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
                    birth: 10,
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
        r.tree.write(0, 0, &b, 10 + d as u64).unwrap();
        let leaf = &r.tree.leaves()[d];
        assert!(leaf.dtl_contains(10 + d as u64) && leaf.stats.errors().1 > 0);
    }
    assert!(r.read(0, &b, 11).unwrap().data == *b);
    r.disks[2].fail_writes.store(true, Relaxed);
    assert_eq!(r.tree.write(0, 0, &b, 12).unwrap_err().kind, Kind::Io);
    // A block that does not touch the third is fine: three sectors on children 3, 4, 0.
    r.tree.write(0, 3 * 512, &r.block(512), 13).unwrap();

    let m = rig(GroupKind::Mirror, 2, 9);
    let b = m.block(4096);
    m.disks[0].fail_writes.store(true, Relaxed);
    m.tree.write(0, 0, &b, 10).unwrap();
    assert!(m.read(0, &b, 10).unwrap().bad.is_empty());
    m.disks[1].fail_writes.store(true, Relaxed);
    assert!(m.tree.write(0, 0, &b, 10).is_err());
}

#[test]
fn a_failed_flush_counts_as_lost_writes() {
    let r = rig(GroupKind::Mirror, 2, 9);
    let b = r.block(4096);
    r.tree.write(0, 0, &b, 10).unwrap();
    r.disks[1].fail_flush.store(true, Relaxed);
    r.tree.flush_dirty(10).unwrap();
    assert!(r.tree.leaves()[1].dtl_contains(10) && !r.tree.leaves()[0].dtl_contains(10));
    let before = r.disks[0].flushes.load(Relaxed);
    r.tree.flush_dirty(10).unwrap();
    assert_eq!(
        r.disks[0].flushes.load(Relaxed),
        before,
        "nothing written since"
    );
    r.tree.write(0, 0, &b, 11).unwrap();
    r.disks[0].fail_flush.store(true, Relaxed);
    assert_eq!(r.tree.flush_dirty(11).unwrap_err().kind, Kind::Io);
}

#[test]
fn labels_uberblocks_discovery_and_reopening() {
    let r = rig(GroupKind::Raidz { nparity: 1 }, 3, 12);
    let p = pool_keys(&r.tree);
    r.tree.init_labels(&p, &[0], 4).unwrap();
    let look = || discover(&r.env, &r.mem.paths());
    assert!(look().pools.is_empty(), "txg 0 is not yet a pool");
    assert!(r.tree.best_uberblock(Txg::MAX).is_none());
    r.tree.top(0).unwrap().set_u64(keys::METASLAB_ARRAY, 33);
    r.tree.top(0).unwrap().set_u64(keys::ZAP_TOP, 34);
    for txg in 4..80 {
        r.commit(txg);
    }
    let (ub, config) = r.tree.best_uberblock(Txg::MAX).unwrap();
    assert_eq!((ub.txg, config.unwrap().get_u64("txg")), (79, Some(79)));
    assert_eq!(r.tree.best_uberblock(70).unwrap().0.txg, 70);
    // Everything of one device but a single odd label is lost, another device is gone.
    r.disks[0].poke(0, &vec![0; 256 << 10]);
    r.disks[0].poke(SIZE - (512 << 10), &vec![0; 512 << 10]);
    let full = r.tree.config(true);
    let labels = r
        .tree
        .label_config(&p, &r.tree.top(0).unwrap(), &r.tree.leaves()[1], 79);
    let tree = labels.need_nvlist("vdev_tree").unwrap();
    assert!(!tree.contains(keys::ZAP_TOP) && tree.get_u64(keys::METASLAB_ARRAY) == Some(33));
    r.tree.close();
    r.disks[2].gone.store(true, Relaxed);
    r.mem.put("/renamed", r.disks[1].clone());
    let paths: Vec<String> = ["/renamed", "/d0", "/d2"].map(String::from).to_vec();
    let found = discover(&r.env, &paths);
    let [one] = &found.pools[..] else {
        panic!("one pool")
    };
    assert_eq!((one.name.as_str(), one.guid, one.txg), ("tank", 77, 79));
    assert!(matches!(&one.problems[..], [Problem::MissingLeaf(_, Some(p))] if p == "/d2"));
    let tree = one.tree(&r.env).unwrap();
    assert_eq!(tree.guid_sum(), ub.guid_sum);
    tree.open(Access::Exclusive);
    tree.validate(Txg::MAX, true);
    assert_eq!(tree.state(), (State::Degraded, Aux::None));
    assert_eq!(tree.leaves()[1].path().as_deref(), Some("/renamed"));
    assert_eq!(tree.leaves()[2].aux(), Aux::OpenFailed);
    let best = tree.best_uberblock(Txg::MAX).unwrap();
    assert_eq!((best.0.txg, best.1.unwrap().get_u64("txg")), (79, Some(79)));
    tree.close();
    // The MOS form comes back as it was, unknown keys included.
    let mut full = full;
    let child = &mut full.get_nvlist_array_mut("children").unwrap()[0];
    child.set("org.example:unknown", vec![1u64, 2]);
    let again = VdevTree::from_config(r.env.clone(), &full).unwrap();
    let config = again.config(true);
    let child = &config.get_nvlist_array("children").unwrap()[0];
    assert_eq!(
        child.get_u64_array("org.example:unknown"),
        Some(&[1, 2][..])
    );
    assert_eq!(child.get_u64(keys::ZAP_TOP), Some(34));
    assert_eq!(child.get_u64("nparity"), Some(1));
    // A device of another pool under the old name is noticed.
    r.disks[2].gone.store(false, Relaxed);
    label::clear(&*r.disks[2]).unwrap();
    again.open(Access::Exclusive);
    again.validate(Txg::MAX, true);
    assert_eq!(again.leaves()[2].aux(), Aux::BadLabel);
    // In use: a second opener gets nothing.
    let second = VdevTree::from_config(r.env.clone(), &full).unwrap();
    second.open(Access::Exclusive);
    assert_eq!(second.state(), (State::CantOpen, Aux::NoReplicas));
}

/// Devices with one guid: the same under another name, a copy, an image of some time ago.
#[test]
fn of_copies_the_newest_is_taken() {
    let r = rig(GroupKind::Mirror, 2, 12);
    r.tree.init_labels(&pool_keys(&r.tree), &[0], 4).unwrap();
    r.commit(5);
    r.mem.put("/a-old", r.disks[0].fork());
    // The labels stay as they are; the pool goes on.
    r.commit_with(6, false);
    r.mem.put("/b-same", r.disks[0].clone());
    r.mem.put("/c-copy", r.disks[1].fork());
    r.tree.close();
    let paths = ["/a-old", "/b-same", "/c-copy", "/d0", "/d1"].map(String::from);
    let chosen = |paths: &[String]| -> Vec<String> {
        let found = discover(&r.env, paths);
        let [one] = &found.pools[..] else {
            panic!("one pool")
        };
        assert!(one.problems.is_empty());
        let tree = one.tree(&r.env).unwrap();
        tree.leaves().iter().filter_map(|l| l.path()).collect()
    };
    let mut order = paths.to_vec();
    assert_eq!(chosen(&order), ["/d0", "/d1"]);
    order.reverse();
    assert_eq!(chosen(&order), ["/d0", "/d1"]);
    // Where none is in its old place, the first of the newest.
    assert_eq!(chosen(&paths[..3]), ["/b-same", "/c-copy"]);
    // An old one is better than none.
    let only = [paths[0].clone(), paths[4].clone()];
    assert_eq!(chosen(&only), ["/a-old", "/d1"]);
}

/// Labels of old software (pool versions below 19 or so) do not say how many top-level vdevs there
/// are.
#[test]
fn labels_without_vdev_children_are_counted_by_the_highest_id() {
    let r = stripe(3);
    let p = pool_keys(&r.tree);
    r.tree.init_labels(&p, &[0, 1, 2], 4).unwrap();
    for txg in 4..7 {
        r.commit(txg);
    }
    for (id, disk) in r.disks.iter().enumerate() {
        let top = r.tree.top(id as u64).unwrap();
        let mut config = r.tree.label_config(&p, &top, &top.leaves()[0], 6);
        config.remove(keys::pool::VDEV_CHILDREN).unwrap();
        label::write_config(&**disk, &config, LabelSet::All).unwrap();
    }
    r.tree.close();
    let tops = |paths: &[&str]| {
        let paths: Vec<String> = paths.iter().map(|p| p.to_string()).collect();
        let found = discover(&r.env, &paths);
        let [one] = &found.pools[..] else {
            panic!("one pool")
        };
        let tree = one.tree(&r.env).unwrap();
        let found: Vec<Option<String>> = tree.tops().iter().map(|t| t.path()).collect();
        (found, one.problems.clone())
    };
    let disk = |n: u64| Some(format!("/d{n}"));
    let (found, problems) = tops(&["/d0", "/d1", "/d2"]);
    assert_eq!((found, problems), (vec![disk(0), disk(1), disk(2)], vec![]));
    let (found, problems) = tops(&["/d2", "/d0"]);
    assert_eq!(found, [disk(0), None, disk(2)]);
    assert_eq!(problems, [Problem::MissingTop(1)]);
}

#[test]
fn clearing_and_boot_environment() {
    let r = rig(GroupKind::Single, 1, 9);
    let p = pool_keys(&r.tree);
    r.tree.init_labels(&p, &[0], 4).unwrap();
    r.commit(5);
    let d = &*r.disks[0];
    assert_eq!(label::read_labels(d).good(), 4);
    let boot = disk::label::BootEnv::Raw(b"x=1".to_vec());
    label::write_bootenv(d, &boot).unwrap();
    d.corrupt(0x2000, 100);
    assert_eq!(label::read_bootenv(d).unwrap(), boot);
    let c = label::read_labels(d).best(Txg::MAX).unwrap().clone();
    label::write_config(d, &c, LabelSet::Odd).unwrap();
    assert_eq!(label::clear(d).unwrap(), 4);
    assert_eq!(label::read_labels(d).good(), 0);
    assert_eq!(label::clear(d).unwrap(), 0);
    assert!(label::best_uberblock(d, 9, Txg::MAX).is_none());
}

/// Power was cut while two labels were written, and again when the other two had the configuration of a
/// group whose uberblock was not there yet: the device is still the pool's.
#[test]
fn labels_of_the_next_group_will_do() {
    let r = rig(GroupKind::Single, 1, 9);
    r.tree.init_labels(&pool_keys(&r.tree), &[0], 4).unwrap();
    r.commit(5);
    let d = &*r.disks[0];
    let mut c = label::read_labels(d).best(Txg::MAX).unwrap().clone();
    c.set("txg", 6u64);
    label::write_config(d, &c, LabelSet::Even).unwrap();
    for i in [1, 3] {
        let at = disk::label::label_offset(i, SIZE).unwrap();
        d.corrupt(at + disk::label::NVLIST_OFFSET, 100);
    }
    let labels = label::read_labels(d);
    assert!(labels.good() == 2 && labels.best(5).is_none());
    r.tree.close();
    r.tree.open(Access::Exclusive);
    r.tree.validate(5, true);
    assert_eq!(r.tree.state().0, State::Healthy);
    // One of another pool is not.
    c.set("pool_guid", 1u64);
    label::write_config(d, &c, LabelSet::Even).unwrap();
    r.tree.validate(5, true);
    assert_eq!(r.tree.leaves()[0].aux(), Aux::CorruptData);
}

#[test]
fn growing_moves_the_last_labels() {
    let r = rig(GroupKind::Single, 1, 9);
    let p = pool_keys(&r.tree);
    r.tree.init_labels(&p, &[0], 4).unwrap();
    r.commit(5);
    let top = r.tree.top(0).unwrap();
    let before = top.asize();
    assert_eq!(r.tree.expand(0, &p, 6).unwrap(), None);
    r.tree.close();
    r.disks[0].resize(128 << 20);
    r.tree.open(Access::Exclusive);
    let grown = r.tree.expand(0, &p, 6).unwrap().unwrap();
    assert_eq!(grown, before + (64 << 20));
    assert_eq!(top.asize(), grown);
    let labels = label::read_labels(&*r.disks[0]);
    assert_eq!(labels.good(), 4);
    assert_eq!(label::read_uberblocks(&*r.disks[0], 9).len(), 4);
    r.tree.validate(Txg::MAX, true);
    assert_eq!(r.tree.state().0, State::Healthy);
    // And shrinking below what is used is refused.
    r.tree.close();
    r.disks[0].resize(64 << 20);
    r.tree.open(Access::Exclusive);
    assert_eq!(r.tree.leaves()[0].aux(), Aux::BadLabel);
}

#[test]
fn attach_replace_detach() {
    let r = rig(GroupKind::Single, 1, 9);
    let p = pool_keys(&r.tree);
    r.tree.init_labels(&p, &[0], 4).unwrap();
    r.commit(5);
    let b = r.block(4096);
    r.tree.write(0, 0, &b, 5).unwrap();
    let old = r.tree.leaves()[0].clone();
    let (top_asize, sum) = (old.asize(), r.tree.guid_sum());
    for i in 1..6 {
        r.mem.add(&format!("/d{i}"), SIZE);
    }
    let dev = |i: usize| DevSpec::file(format!("/d{i}"));
    let attach = |guid, i, how| r.tree.attach(guid, &dev(i), how, &p, 6, 9);
    let second = attach(old.guid(), 1, Attach::Mirror).unwrap();
    let top = r.tree.top(0).unwrap();
    assert_eq!(
        (top.kind(), top.asize(), top.ashift()),
        (VdevKind::Mirror, top_asize, 9)
    );
    assert_eq!(
        r.tree.guid_sum(),
        sum.wrapping_add(top.guid()).wrapping_add(second.guid())
    );
    assert!(top.config(false).get_nvlist_array("children").unwrap()[0]
        .get("asize")
        .is_none());
    // The new one lacks everything: the old one cannot leave yet.
    assert!(second.dtl_contains(5) && !second.dtl_contains(9));
    assert_eq!(r.tree.detach(old.guid()).unwrap_err().kind, Kind::Busy);
    assert_eq!(
        r.tree.offline(old.guid(), false).unwrap_err().kind,
        Kind::Busy
    );
    assert!(r.read(0, &b, 5).unwrap().bad.is_empty());
    assert_eq!(r.scrub(0, &b, 5).unwrap().resilvered, 4096);
    second.dtl_remove_range(0, 9);
    // A third, by replacing the second.
    let third = attach(second.guid(), 2, Attach::Replace).unwrap();
    assert_eq!(
        r.tree.find_by_name("replacing-1").unwrap().children().len(),
        2
    );
    assert_eq!(
        attach(second.guid(), 3, Attach::Replace).unwrap_err().kind,
        Kind::Busy
    );
    assert_eq!(r.scrub(0, &b, 5).unwrap().resilvered, 4096);
    third.dtl_remove_range(0, 9);
    r.tree.detach(second.guid()).unwrap();
    assert_eq!(r.tree.top(0).unwrap().children()[1].guid(), third.guid());
    assert_eq!(third.id(), 1);
    assert_eq!(label::read_labels(&*r.mem.get("/d1").unwrap()).good(), 0);
    // Down to one: the survivor takes over the group.
    let group = r.tree.top(0).unwrap().guid();
    r.tree.detach(old.guid()).unwrap();
    let top = r.tree.top(0).unwrap();
    assert!(Arc::ptr_eq(&top, &third));
    assert_eq!(
        (top.guid(), top.asize(), top.id(), top.ashift()),
        (group, top_asize, 0, 9)
    );
    assert!(r.read(0, &b, 5).unwrap().data == *b);
    assert_eq!(r.tree.guid_sum(), 77u64.wrapping_add(group));
    // Another top-level vdev, a log; removed again it leaves nothing (it was last).
    let mut spec = TopSpec::new(GroupKind::Single, vec![dev(3)]);
    spec.is_log = true;
    assert_eq!(add(&r.tree, &spec, 7).id(), 1);
    let data = TopSpec::new(GroupKind::Single, vec![dev(4)]);
    let readers = r.tree.tops();
    assert_eq!(add(&r.tree, &data, 7).id(), 2);
    assert_eq!(readers.len(), 2, "who reads keeps the old tree");
    // Of two that were prepared for the same place one comes too late.
    let late = r
        .tree
        .new_top(&TopSpec::new(GroupKind::Single, vec![dev(5)]), &p, 7);
    let late = late.unwrap();
    r.tree.remove_top(1).unwrap();
    assert_eq!(r.tree.holes(), [1]);
    assert_eq!(add(&r.tree, &spec, 8).id(), 3, "a hole stays a hole");
    assert_eq!(r.tree.append(late, 8).unwrap_err().kind, Kind::Again);
    r.tree.remove_top(3).unwrap();
    assert_eq!(r.tree.tops().len(), 3);
    r.tree.remove_top(2).unwrap();
    assert_eq!(r.tree.tops().len(), 1);
    assert_eq!(r.tree.remove_top(0).unwrap_err().kind, Kind::Busy);
}

/// Adds a top-level vdev.
fn add(tree: &VdevTree, spec: &TopSpec, txg: Txg) -> Arc<Vdev> {
    let top = tree.new_top(spec, &pool_keys(tree), txg).unwrap();
    tree.append(top.clone(), txg).unwrap();
    top
}

#[test]
fn spare_in_raidz() {
    let r = rig(GroupKind::Raidz { nparity: 1 }, 3, 9);
    let p = pool_keys(&r.tree);
    r.tree.init_labels(&p, &[0], 4).unwrap();
    let b = r.block(10 << 10);
    r.tree.write(0, 0, &b, 5).unwrap();
    r.mem.add("/spare", SIZE);
    let guid = r.tree.leaves()[1].guid();
    let how = Attach::Spare(4242);
    let spare = r
        .tree
        .attach(guid, &DevSpec::file("/spare"), how, &p, 6, 9)
        .unwrap();
    assert_eq!(r.tree.top(0).unwrap().children()[1].name(), "spare-1");
    assert!(r.scrub(0, &b, 5).unwrap().resilvered > 0);
    spare.dtl_remove_range(0, 9);
    r.disks[1].fail_reads.store(true, Relaxed);
    r.disks[0].fail_reads.store(true, Relaxed);
    assert!(r.read(0, &b, 5).unwrap().data == *b, "spare and parity");
    r.disks[0].fail_reads.store(false, Relaxed);
    r.tree.fault(guid, true).unwrap();
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
    l[0].dtl_add_range(5, 20);
    l[1].dtl_add_range(10, 30);
    l[2].dtl_add_range(15, 17);
    l[2].dtl_add_range(25, 26);
    assert_eq!(
        top.missing().iter().collect::<Vec<_>>(),
        [(10, 20), (25, 26)]
    );
    let m = rig(GroupKind::Mirror, 2, 9);
    m.tree.leaves()[0].dtl_add_range(5, 20);
    m.tree.leaves()[1].dtl_add(7);
    assert_eq!(
        m.tree.top(0).unwrap().missing().iter().collect::<Vec<_>>(),
        [(7, 8)]
    );
}

#[test]
fn discards_cover_exactly_the_range() {
    for (kind, n) in [(GroupKind::Mirror, 2), (GroupKind::Raidz { nparity: 1 }, 3)] {
        let r = rig(kind, n, 9);
        let all = r.block(1 << 20);
        for d in &r.disks {
            d.poke(DATA, &all);
        }
        r.tree.discard(0, 512 * 5, 512 * 7).unwrap();
        let mut zeros = 0;
        for d in &r.disks {
            let mut b = vec![0; 1 << 20];
            d.peek(DATA, &mut b);
            zeros += b.chunks(512).filter(|s| s.iter().all(|x| *x == 0)).count();
        }
        assert_eq!(zeros, if n == 2 { 14 } else { 7 });
    }
}

#[test]
fn creation_is_refused_when_it_makes_no_sense() {
    let (env, mem) = mem_env(1);
    mem.add("/a", SIZE);
    mem.add("/small", SIZE - 1);
    mem.add("/b", SIZE).logical_sector.store(4096, Relaxed);
    let try_it = |kind, paths: &[&str], ashift, is_log| {
        let devices = paths.iter().map(|p| DevSpec::file(*p)).collect();
        let spec = TopSpec {
            kind,
            devices,
            is_log,
            ashift,
        };
        VdevTree::create(env.clone(), 1, &[spec], 4)
    };
    let kind = |r: Result<VdevTree>| r.unwrap_err().kind;
    assert_eq!(
        kind(try_it(GroupKind::Mirror, &["/a"], None, false)),
        Kind::Invalid
    );
    assert_eq!(
        kind(try_it(
            GroupKind::Raidz { nparity: 2 },
            &["/a", "/b"],
            None,
            false
        )),
        Kind::Invalid
    );
    assert_eq!(
        kind(try_it(GroupKind::Single, &["/small"], None, false)),
        Kind::Overflow
    );
    assert_eq!(
        kind(try_it(GroupKind::Single, &["/none"], None, false)),
        Kind::NotFound
    );
    assert_eq!(
        kind(try_it(GroupKind::Single, &["/a"], Some(17), false)),
        Kind::Invalid
    );
    assert_eq!(
        kind(try_it(GroupKind::Single, &["/a"], None, true)),
        Kind::Invalid
    );
    assert_eq!(
        kind(try_it(GroupKind::Mirror, &["/a", "/a"], None, false)),
        Kind::Busy
    );
    let t = try_it(GroupKind::Mirror, &["/a", "/b"], None, false).unwrap();
    assert_eq!(t.top(0).unwrap().ashift(), 12);
    assert_eq!(t.top(0).unwrap().deflate_ratio(), 512);
}

#[test]
fn what_is_not_built_is_refused_clearly() {
    let (env, _) = mem_env(1);
    let mut draid = NvList::new();
    draid.set("type", "draid");
    draid.set("id", 0u64);
    draid.set("guid", 5u64);
    draid.set("ashift", 12u64);
    draid.set("asize", 1u64 << 40);
    draid.set("nparity", 2u64);
    draid.set("draid_ndata", 3u64);
    draid.set("draid_nspares", 1u64);
    draid.set("draid_ngroups", 1u64);
    let kids: Vec<NvList> = (0..6u64)
        .map(|i| {
            let mut f = NvList::new();
            f.set("type", "file")
                .set("id", i)
                .set("guid", 10 + i)
                .set("path", "/x");
            f
        })
        .collect();
    draid.set("children", Value::NvListArray(kids));
    let mut root = NvList::new();
    root.set("type", "root").set("id", 0u64).set("guid", 9u64);
    root.set("children", Value::NvListArray(vec![draid.clone()]));
    let tree = VdevTree::from_config(env.clone(), &root).unwrap();
    tree.open(Access::Read);
    assert_eq!(tree.top(0).unwrap().name(), "draid2:3d:6c:1s-0");
    let req = ReadReq {
        vdev: 0,
        offset: 0,
        psize: 512,
        birth: 1,
        verify: &|_| true,
    };
    assert_eq!(tree.read(req).unwrap_err().kind, Kind::Io);
    assert_eq!(
        tree.read(ReadReq { vdev: 7, ..req }).unwrap_err().kind,
        Kind::Damaged
    );
    // Failure domains: groups of three cannot hold five columns, but three.
    let mut other = draid.clone();
    other.set("draid_nchildren", 3u64);
    root.set("children", Value::NvListArray(vec![other.clone()]));
    assert_eq!(
        VdevTree::from_config(env.clone(), &root).unwrap_err().kind,
        Kind::Damaged
    );
    other.set("draid_ndata", 1u64).set("draid_nspares", 0u64);
    other.set("draid_ngroups", 2u64);
    root.set("children", Value::NvListArray(vec![other]));
    let tree = VdevTree::from_config(env.clone(), &root).unwrap();
    assert_eq!(tree.top(0).unwrap().name(), "draid2:1d:3c:6w:0s-0");
    // Hostile trees.
    let bad = |f: &dyn Fn(&mut NvList)| {
        let mut d = draid.clone();
        f(&mut d);
        root.clone()
            .set("children", Value::NvListArray(vec![d]))
            .clone()
    };
    for config in [
        bad(&|d| {
            d.set("id", 3u64);
        }),
        bad(&|d| {
            d.set("guid", 0u64);
        }),
        bad(&|d| {
            d.set("ashift", 70u64);
        }),
        bad(&|d| {
            d.set("metaslab_shift", 64u64);
        }),
        bad(&|d| {
            d.set("type", "raidz").set("nparity", 6u64);
        }),
        bad(&|d| {
            d.set("type", "mirror").remove("children");
        }),
        bad(&|d| {
            d.set("type", "file");
        }),
        bad(&|d| {
            d.set("draid_ndata", u64::MAX);
        }),
        bad(&|d| drop(d.remove("ashift"))),
    ] {
        assert_eq!(
            VdevTree::from_config(env.clone(), &config)
                .unwrap_err()
                .kind,
            Kind::Damaged
        );
    }
    // Groups in groups are refused as what they are, or as nonsense.
    for (depth, kind) in [(2, Kind::Unsupported), (30, Kind::Damaged)] {
        let mut deep = kids_of_depth(depth);
        deep.set("ashift", 9u64);
        root.set("children", Value::NvListArray(vec![deep]));
        let refused = VdevTree::from_config(env.clone(), &root).unwrap_err();
        assert_eq!(refused.kind, kind, "{refused}");
    }
}

fn kids_of_depth(n: usize) -> NvList {
    let mut l = NvList::new();
    l.set("type", if n == 0 { "file" } else { "mirror" })
        .set("id", 0u64)
        .set("guid", 3u64);
    if n > 0 {
        l.set("children", Value::NvListArray(vec![kids_of_depth(n - 1)]));
    }
    l
}

#[test]
fn a_group_with_a_child_that_lacks_txgs_is_degraded_though_all_devices_work() {
    for kind in [GroupKind::Mirror, GroupKind::Raidz { nparity: 1 }] {
        let r = rig(kind, 3, 9);
        r.commit(4);
        assert_eq!(r.tree.state(), (State::Healthy, Aux::None));
        let leaf = &r.tree.leaves()[1];
        leaf.dtl_add(7);
        r.tree.propagate();
        assert_eq!(r.tree.state(), (State::Degraded, Aux::None));
        assert_eq!(leaf.state(), State::Healthy, "it is used for the rest");
        leaf.dtl_remove_range(0, Txg::MAX);
        r.tree.propagate();
        assert_eq!(r.tree.state(), (State::Healthy, Aux::None));
    }
    // While a device is replaced the old one has everything.
    let r = rig(GroupKind::Mirror, 2, 9);
    r.commit(4);
    r.mem.add("/new", SIZE);
    let guid = r.tree.leaves()[1].guid();
    let p = pool_keys(&r.tree);
    r.tree
        .attach(guid, &DevSpec::file("/new"), Attach::Replace, &p, 6, 9)
        .unwrap();
    r.tree.propagate();
    assert_eq!(r.tree.state(), (State::Healthy, Aux::None));
    r.tree.leaf_of(guid).unwrap().1.dtl_add(8);
    r.tree.propagate();
    assert_eq!(r.tree.state(), (State::Degraded, Aux::None), "nobody has 8");
    // A device without a group.
    let r = rig(GroupKind::Single, 1, 9);
    r.tree.leaves()[0].dtl_add(7);
    assert_eq!(r.tree.state(), (State::Degraded, Aux::None));
}
