//! A pool in memory, changed at random and audited after every txg: every block accounted for,
//! every number recomputed from the block trees, every MOS object referenced once.

mod audit;
mod damage;
mod random;
mod scan;
mod units;

use crate::*;
use base::Txg;
use disk::feature::guid;
use disk::{os_type, Compression, ObjType};
use dmu::testing::Rig;
use dmu::{NewObject, Objset, Tx, WritePolicy};
use std::collections::BTreeMap;
use std::sync::Arc;
use zap::Zap;

/// SplitMix64.
struct Rand(u64);

impl Rand {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

fn mos_policy(version: u64) -> WritePolicy {
    WritePolicy {
        is_mos: true,
        compress: Compression::LZJB,
        meta_compress: Compression::LZJB,
        hole_birth: false,
        embedded_data: version >= 5000,
        indblkshift: 17,
        ..WritePolicy::default()
    }
}

fn fs_policy(version: u64) -> WritePolicy {
    WritePolicy {
        hole_birth: version >= 5000,
        embedded_data: version >= 5000,
        indblkshift: 14,
        ..WritePolicy::default()
    }
}

struct Pool {
    rig: Rig,
    dsl: Dsl,
    store: Option<Arc<FeatureStore>>,
    open: BTreeMap<u64, (Arc<Dataset>, Arc<Objset>)>,
    version: u64,
    disk: u64,
    /// Blocks freed in the background per txg.
    budget: u64,
    freed: u64,
    /// What the snapshots of bookmarks referred to, by GUID and txg: a pool opened again draws the
    /// same GUIDs.
    marks: BTreeMap<(u64, Txg), BTreeMap<audit::Id, i64>>,
}

impl Pool {
    fn new(version: u64, features: &[&str]) -> Pool {
        let disk = 256 << 20;
        let rig = Rig::new(os_type::META, disk, mos_policy(version));
        let tx = rig.dmu.syncing_tx(rig.dmu.open_txg());
        let dir = zap::create_object(&rig.os, &tx, ObjType::OBJECT_DIRECTORY, 0).unwrap();
        assert_eq!(dir.object(), 1);
        let store = Some(Arc::new(FeatureStore::absent(&rig.os)));
        if let (Some(s), true) = (&store, version >= 5000) {
            s.establish(&tx).unwrap();
        }
        let f: Arc<dyn Features> = match &store {
            Some(s) => s.clone(),
            None => Arc::new(NoFeatures),
        };
        let dsl = Dsl::create(&rig.os, &tx, version, f, "tank").unwrap();
        if let Some(s) = &store {
            for n in features {
                s.enable(&tx, disk::feature::by_name(n).unwrap()).unwrap();
            }
        }
        drop(tx);
        let mut p = Pool {
            rig,
            dsl,
            store,
            open: BTreeMap::new(),
            version,
            disk,
            budget: 1 << 20,
            freed: 0,
            marks: BTreeMap::new(),
        };
        p.sync_with(|p, tx| {
            let ds = p
                .dsl
                .create_root_dataset(tx, CreateArgs::default())
                .unwrap();
            p.fill_new(tx, &ds);
        });
        p
    }

    fn fill_new(&mut self, tx: &Tx, ds: &Arc<Dataset>) {
        let size = if self.version >= 15 { 4096 } else { 1024 };
        let os = ds
            .create_objset(tx, os_type::ZFS, size, fs_policy(self.version))
            .unwrap();
        for _ in 0..4 {
            os.alloc(
                tx,
                &NewObject {
                    obj_type: ObjType::PLAIN_FILE_CONTENTS,
                    block_size: 4096,
                    ..NewObject::default()
                },
            )
            .unwrap();
        }
        self.open.insert(ds.object(), (ds.clone(), os));
    }

    fn os(&mut self, ds: &Arc<Dataset>) -> Arc<Objset> {
        if let Some((_, os)) = self.open.get(&ds.object()) {
            return os.clone();
        }
        let os = ds.open_objset(fs_policy(self.version), false).unwrap();
        if !ds.is_snapshot() {
            self.open.insert(ds.object(), (ds.clone(), os.clone()));
        }
        os
    }

    /// Writes `n` blocks of noise, or cuts a file.
    fn scribble(&mut self, ds: &Arc<Dataset>, r: &mut Rand, n: u64) {
        let os = self.os(ds);
        let tx = os.tx(dmu::Need::bytes(n * 4096)).unwrap();
        for _ in 0..n {
            let dn = os.hold(1 + r.below(4)).unwrap();
            let blk = r.below(400);
            if r.below(12) == 0 {
                dn.free_range(&tx, blk * 4096, 4096 * r.below(60).max(1))
                    .unwrap();
                continue;
            }
            let kind = r.below(3);
            let noise: Vec<u8> = (0..4096)
                .map(|i| match kind {
                    0 => (i / 512) as u8,
                    _ => (r.next() >> 7) as u8,
                })
                .collect();
            let len = if kind == 0 { 300 } else { 4096 };
            dn.write(&tx, blk * 4096, &noise[..len]).unwrap();
        }
    }

    fn sync(&mut self) -> Txg {
        self.sync_with(|_, _| {})
    }

    /// Writes the open txg; `tasks` runs in syncing context after the data of the txg.
    fn sync_with(&mut self, tasks: impl FnOnce(&mut Pool, &Tx)) -> Txg {
        let g = self.rig.dmu.begin_sync().unwrap();
        let tx = self.rig.dmu.syncing_tx(g.txg);
        let mut tasks = Some(tasks);
        let mut pass = 1;
        loop {
            let all: Vec<_> = self.open.values().cloned().collect();
            for (ds, os) in all {
                while os.is_dirty_in(g.txg) {
                    let hooks = ds.hooks(&tx).unwrap();
                    if let Some(root) = os.sync(&tx, pass, &hooks).unwrap() {
                        ds.synced(&tx, &root).unwrap();
                    }
                }
            }
            if let Some(t) = tasks.take() {
                t(self, &tx);
                pass += 1;
                continue;
            }
            if pass <= 2 {
                let zio = self.rig.dmu.zio.clone();
                let mut left = self.budget;
                let mut take = |n: u64| {
                    let some = left > 0;
                    left = left.saturating_sub(n);
                    some
                };
                let mut free = |bp: &_| zio.free(bp, g.txg);
                self.freed += self
                    .dsl
                    .free_some(&tx, &mut take, &mut free)
                    .unwrap()
                    .blocks;
            }
            if pass < 6 {
                self.dsl.flush_mos(&tx).unwrap();
            }
            if !self.rig.os.is_dirty_in(g.txg) {
                break;
            }
            self.rig.os.sync(&tx, pass, self.dsl.mos_hooks()).unwrap();
            pass += 1;
        }
        self.rig.dmu.zio.drain(g.txg).unwrap();
        self.rig.dmu.end_sync(g.txg);
        g.txg
    }

    /// Forgets all in-core state and opens the pool from its blocks.
    fn reopen(self) -> Pool {
        let Pool {
            rig,
            dsl,
            version,
            disk,
            budget,
            freed,
            store,
            open,
            marks,
        } = self;
        drop((dsl, store, open));
        let rig = rig.reopen();
        let store = Some(Arc::new(match version {
            5000 => FeatureStore::open(&rig.os).unwrap(),
            _ => FeatureStore::absent(&rig.os),
        }));
        let f: Arc<dyn Features> = match &store {
            Some(s) => s.clone(),
            None => Arc::new(NoFeatures),
        };
        let dsl = Dsl::open(&rig.os, version, f, "tank").unwrap();
        Pool {
            rig,
            dsl,
            store,
            open: BTreeMap::new(),
            version,
            disk,
            budget,
            freed,
            marks,
        }
    }

    fn has_bookmarks(&self) -> bool {
        let s = self.store.as_ref();
        s.is_some_and(|s| s.is_enabled(guid::BOOKMARK_WRITTEN))
    }

    fn upgrade(&mut self, version: u64) {
        self.sync_with(|p, tx| {
            p.dsl.upgrade(tx, version).unwrap();
            p.version = version;
            if version >= 5000 {
                let s = p.store.clone().unwrap();
                s.establish(tx).unwrap();
                for n in MODERN {
                    s.enable(tx, disk::feature::by_name(n).unwrap()).unwrap();
                }
            }
        });
    }

    fn create(&mut self, parent: &str, name: &str) -> Arc<Dataset> {
        let mut out = None;
        self.sync_with(|p, tx| {
            let parent = p.dsl.dir(parent).unwrap();
            let ds = p
                .dsl
                .create_fs(tx, &parent, name, CreateArgs::default())
                .unwrap();
            p.fill_new(tx, &ds);
            out = Some(ds);
        });
        out.unwrap()
    }

    fn count_of(&self, zap: u64) -> u64 {
        Zap::new(&self.rig.os.hold(zap).unwrap()).count().unwrap()
    }
}

const MODERN: &[&str] = &[
    "async_destroy",
    "empty_bpobj",
    "lz4_compress",
    "enabled_txg",
    "hole_birth",
    "extensible_dataset",
    "embedded_data",
    "filesystem_limits",
    "large_blocks",
    "large_dnode",
    "bookmarks",
    "bookmark_v2",
    "bookmark_written",
];
