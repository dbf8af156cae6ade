//! A pool in memory with file systems to destroy.

use base::Txg;
use disk::ObjType;
use env_sim::MemDisk;
use pool::Pool;
use sim::rig::{self, Layout};
use std::sync::Arc;
use vdev::GroupKind;
use zpl::{create_fs, FsOptions};

pub const BLOCK: usize = 4096;

pub fn layout() -> Layout {
    Layout::new(GroupKind::Mirror, 2)
}

pub struct World {
    pub disks: Vec<Arc<MemDisk>>,
    pub config: disk::NvList,
    pub pool: Arc<Pool>,
}

impl World {
    pub fn new() -> World {
        let (disks, pool) = rig::create(&layout(), 1);
        let config = pool.full_config(0, Txg::NONE, false);
        World {
            disks,
            config,
            pool,
        }
    }

    /// The pool as a power cut now would leave it.
    pub fn image(&self) -> Vec<Arc<MemDisk>> {
        self.disks.iter().map(|d| d.fork()).collect()
    }

    /// Opens the pool of an image.
    pub fn open(&self, disks: &[Arc<MemDisk>]) -> Arc<Pool> {
        rig::open(disks, &self.config, 2).unwrap()
    }

    /// A file system `tank/NAME` with an object of so many blocks, on disk.
    pub fn fill(&self, name: &str, blocks: u64) {
        let full = format!("tank/{name}");
        let (root, name) = (self.pool.dsl().root().unwrap(), name.to_string());
        self.pool
            .task(move |pool, tx| {
                let ds = pool.dsl().create_fs(tx, &root, &name, Default::default())?;
                let os = pool.new_objset(tx, &ds, disk::os_type::ZFS)?;
                let now = zpl::Time { sec: 1, nsec: 0 };
                create_fs(&os, tx, &FsOptions::new(5000, now))
            })
            .unwrap();
        let ds = self.pool.dsl().dataset(&full).unwrap();
        let set = self.pool.open_dataset(&ds).unwrap();
        let tx = set.os.tx(dmu::Need::bytes(blocks * BLOCK as u64)).unwrap();
        let new = dmu::NewObject {
            obj_type: ObjType::PLAIN_FILE_CONTENTS,
            block_size: BLOCK,
            ..Default::default()
        };
        let dn = set.os.alloc(&tx, &new).unwrap();
        for n in 0..blocks {
            let data: Vec<u8> = (0..BLOCK as u64)
                .map(|i| (n * 31 + i * i % 251) as u8)
                .collect();
            dn.write(&tx, n * BLOCK as u64, &data).unwrap();
        }
        drop(tx);
        self.pool.sync().unwrap();
        drop((dn, set));
        self.pool.close_dataset(ds.object());
    }

    pub fn destroy(&self, name: &str) {
        let full = format!("tank/{name}");
        self.pool
            .task(move |pool, tx| {
                let ds = pool.dsl().dataset(&full)?;
                pool.dsl().destroy_head(tx, &ds)
            })
            .unwrap();
    }
}

pub fn freeing(pool: &Pool) -> u64 {
    pool.dsl().freeing().unwrap()
}

/// Syncs until nothing waits to be freed; the number of txgs.
pub fn free_all(pool: &Pool) -> u64 {
    for n in 0..1000 {
        if freeing(pool) == 0 {
            return n;
        }
        pool.sync().unwrap();
    }
    panic!("{} bytes still wait to be freed", freeing(pool));
}

/// The jobs of a pool, but for autotrim, which comes and goes where image files are devices.
pub fn but_autotrim(pool: &Pool) -> Vec<pool::JobStatus> {
    let mut jobs = pool.jobs().unwrap();
    jobs.retain(|j| j.name != "autotrim");
    jobs
}
