//! A pool in memory with files to be scrubbed.

use base::Txg;
use disk::scan::ScanState;
use disk::{BlkPtr, ObjType};
use dsl::Dataset;
use env_sim::MemDisk;
use pool::{Pool, ScanRecord};
use sim::rig::{self, Layout};
use std::sync::Arc;
use vdev::GroupKind;
use zpl::{create_fs, FsOptions};

pub const BLOCK: usize = 4096;

pub struct World {
    pub disks: Vec<Arc<MemDisk>>,
    pub config: disk::NvList,
    pub pool: Arc<Pool>,
}

/// What byte `i` of block `n` of a file is.
fn byte(name: &str, n: u64, i: u64) -> u8 {
    let salt = name.bytes().fold(7u64, |s, b| s * 31 + u64::from(b));
    (salt + n * 31 + i * i % 251) as u8
}

impl World {
    pub fn new(kind: GroupKind, disks: usize) -> World {
        World::with_bench(kind, disks, 0)
    }

    /// The same, with so many disks that are not part of the pool.
    pub fn with_bench(kind: GroupKind, disks: usize, bench: usize) -> World {
        World::of(&Layout {
            bench,
            ..Layout::new(kind, disks)
        })
    }

    pub fn of(layout: &Layout) -> World {
        let (disks, pool) = rig::create(layout, 1);
        let config = pool.full_config(0, Txg::NONE, false);
        World {
            disks,
            config,
            pool,
        }
    }

    /// The pool as a power cut now would leave it, on the disks chosen; the others are empty.
    pub fn image(&self, have: &dyn Fn(usize) -> bool) -> Vec<Arc<MemDisk>> {
        let disks = self.disks.iter().enumerate();
        disks
            .map(|(i, d)| match have(i) {
                true => d.fork(),
                false => MemDisk::new(96 * rig::MIB),
            })
            .collect()
    }

    /// Opens the pool of an image.
    pub fn open(&self, disks: &[Arc<MemDisk>]) -> Arc<Pool> {
        rig::open(disks, &self.config, 2).unwrap()
    }

    /// Opens the pool anew, as after a crash.
    pub fn reopen(&mut self) {
        self.disks = self.image(&|_| true);
        self.pool = self.open(&self.disks);
    }

    /// A file system `tank/NAME` with an object of so many blocks, on disk.
    pub fn fill(&self, name: &str, blocks: u64) {
        let (root, new) = (self.pool.dsl().root().unwrap(), name.to_string());
        self.pool
            .task(move |pool, tx| {
                let ds = pool.dsl().create_fs(tx, &root, &new, Default::default())?;
                let os = pool.new_objset(tx, &ds, disk::os_type::ZFS)?;
                let now = zpl::Time { sec: 1, nsec: 0 };
                create_fs(&os, tx, &FsOptions::new(5000, now))
            })
            .unwrap();
        self.write(name, blocks);
    }

    pub fn dataset(&self, name: &str) -> Arc<Dataset> {
        self.pool.dsl().dataset(&format!("tank/{name}")).unwrap()
    }

    /// One more object in a file system that exists.
    pub fn write(&self, name: &str, blocks: u64) {
        let ds = self.dataset(name);
        let set = self.pool.open_dataset(&ds).unwrap();
        let tx = set.os.tx(dmu::Need::bytes(blocks * BLOCK as u64)).unwrap();
        let new = dmu::NewObject {
            obj_type: ObjType::PLAIN_FILE_CONTENTS,
            block_size: BLOCK,
            ..Default::default()
        };
        let dn = set.os.alloc(&tx, &new).unwrap();
        for n in 0..blocks {
            let data: Vec<u8> = (0..BLOCK as u64).map(|i| byte(name, n, i)).collect();
            dn.write(&tx, n * BLOCK as u64, &data).unwrap();
        }
        drop(tx);
        self.pool.sync().unwrap();
        drop((dn, set));
        self.pool.close_dataset(ds.object());
    }

    /// Pointers to the blocks of the files of a file system.
    pub fn blocks(&self, name: &str) -> Vec<BlkPtr> {
        struct Data(Vec<BlkPtr>);
        impl walk::Visitor for Data {
            fn block(
                &mut self,
                at: walk::Zbookmark,
                bp: &BlkPtr,
                dn: Option<&disk::DnodePhys>,
            ) -> base::Result<walk::Next> {
                let file = dn.is_some_and(|d| d.obj_type == ObjType::PLAIN_FILE_CONTENTS);
                if file && at.level == 0 {
                    self.0.push(*bp);
                }
                Ok(walk::Next::Descend)
            }
            fn finding(&mut self, f: walk::Finding) -> base::Result<()> {
                panic!("{f:?}")
            }
        }
        let mut out = Data(Vec::new());
        let root = self.dataset(name).phys().bp;
        let all = walk::Spec::all(walk::Order::ParentsFirst);
        walk::walk(self.pool.zio(), &root, &all, &mut out).unwrap();
        out.0
    }

    pub fn snapshot(&self, name: &str, snap: &str) {
        let (ds, snap) = (self.dataset(name), snap.to_string());
        self.pool
            .task(move |pool, tx| pool.dsl().snapshot(tx, &ds, &snap).map(drop))
            .unwrap();
    }

    pub fn destroy_snapshot(&self, name: &str) {
        let ds = self.dataset(name);
        self.pool
            .task(move |pool, tx| pool.dsl().destroy_snapshot(tx, &ds))
            .unwrap();
    }

    pub fn destroy(&self, name: &str) {
        let ds = self.dataset(name);
        self.pool
            .task(move |pool, tx| pool.dsl().destroy_head(tx, &ds))
            .unwrap();
    }

    /// Spoils what is written on a disk, but for the labels: each sector of which `which` is true.
    pub fn spoil(&self, disk: usize, which: &dyn Fn(u64) -> bool) {
        let d = &self.disks[disk];
        let mut sectors = Vec::new();
        d.for_each_chunk(&mut |at, bytes| {
            for n in 0..bytes.len() as u64 / 512 {
                let at = at + n * 512;
                let sector = &bytes[(n * 512) as usize..(n * 512 + 512) as usize];
                let labels = !(4 * rig::MIB..95 * rig::MIB).contains(&at);
                if !labels && sector.iter().any(|b| *b != 0) && which(at / 512) {
                    sectors.push(at);
                }
            }
        });
        assert!(!sectors.is_empty());
        sectors.into_iter().for_each(|at| d.corrupt(at, 512));
    }

    /// Writes txgs until no scan is under way; the record of the newest one.
    pub fn finish(&self) -> ScanRecord {
        finish(&self.pool)
    }

    /// Every block of the pool can be read from the disks chosen alone, and is right.
    pub fn is_whole_on(&self, have: &dyn Fn(usize) -> bool) -> Result<(), String> {
        let disks = self.image(have);
        let pool = rig::open(&disks, &self.config, 2).map_err(|e| e.to_string())?;
        rig::walk(&pool)?;
        let bad: u64 = pool.tree().all().iter().map(|v| v.stats.errors().2).sum();
        match bad {
            0 => pool.close().map_err(|e| e.to_string()),
            n => Err(format!("{n} checksum errors")),
        }
    }

    pub fn whole_on(&self, have: &dyn Fn(usize) -> bool) {
        self.is_whole_on(have).unwrap();
    }
}

pub fn finish(pool: &Pool) -> ScanRecord {
    for _ in 0..2000 {
        let scan = pool.scan_progress().unwrap().map(|s| s.state);
        match scan {
            Some(s) if s.state != ScanState::Scanning => return s,
            _ => pool.sync().unwrap(),
        };
    }
    panic!("the scan does not end: {:?}", pool.scan_progress());
}
