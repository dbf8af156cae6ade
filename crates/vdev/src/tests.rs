//! Whole trees on disks in memory.

mod edits;
mod groups;
mod labels;

mod moved;
mod parity;
use crate::keys::{self, pool};
use crate::testing::{mem_env, MemDisk, MemDisks, SeededRng};
use crate::*;
use base::{Block, Result, Txg};
use disk::{NvList, Uberblock, Value};
use env::Env;
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
    let tree = VdevTree::create(env.clone(), 77, specs, Txg::new(4)).unwrap();
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
        self.tree.scrub_many(&[req], &|_| true).pop().unwrap()
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
            timestamp: 1000 + txg.number(),
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

/// Adds a top-level vdev.
fn add(tree: &VdevTree, spec: &TopSpec, txg: Txg) -> Arc<Vdev> {
    let tops = tree.new_tops(std::slice::from_ref(spec), &pool_keys(tree), txg);
    let tops = tops.unwrap();
    tree.append(&tops, txg).unwrap();
    tops[0].clone()
}

/// Puts `dev` beside leaf `guid` in txg 6; it lacks everything before txg 9.
fn attach(tree: &VdevTree, guid: u64, dev: &DevSpec, how: Attach) -> Result<Arc<Vdev>> {
    let fresh = tree.prepare(guid, dev, how, None, &pool_keys(tree), Txg::new(6))?;
    tree.attach(guid, &fresh, how, Txg::new(6), Txg::new(9))?;
    Ok(fresh)
}
