//! A pool in memory for tests of the rooms above: one object set over [`zio::memory`], synced by hand.

use crate::objset::Objset;
use crate::shape::WritePolicy;
use crate::sync::SyncHooks;
use crate::tx::{Dmu, DmuOptions, Tx};
use base::{Result, Txg};
use disk::BlkPtr;
use env::{Access, Clock, Cpu, Disk, Disks, Env, Host, Rng};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use zio::memory::{MemoryAllocator, MemoryDevices};
use zio::{Zio, ZioOptions};

struct World(AtomicU64);

impl Disks for World {
    fn open(&self, path: &str, _: Access) -> Result<Arc<dyn Disk>> {
        base::bail!(NotFound, "{path}: the test world has no disks")
    }
}
impl Clock for World {
    fn now(&self) -> (i64, u32) {
        let n = self.0.fetch_add(1, Ordering::Relaxed);
        (1_700_000_000 + (n / 1000) as i64, (n % 1000) as u32 * 1000)
    }
    fn monotonic_ns(&self) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed) * 1000
    }
    fn pause(&self, _: u64) {}
}
impl Rng for World {
    fn fill(&self, buf: &mut [u8]) {
        for b in buf {
            let x = self
                .0
                .fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed)
                .wrapping_mul(0xbf58_476d_1ce4_e5b9);
            *b = (x >> 56) as u8;
        }
    }
}
impl Host for World {
    fn hostid(&self) -> u64 {
        0
    }
    fn hostname(&self) -> String {
        "test".into()
    }
}
impl Cpu for World {
    fn par_for(&self, n: usize, job: &(dyn Fn(usize) + Sync)) {
        (0..n).for_each(job);
    }
    fn later(&self, job: Box<dyn FnOnce() + Send>) -> bool {
        job();
        true
    }
}

/// A world without disks, with a clock that ticks a microsecond a look.
pub fn env() -> Env {
    let w = Arc::new(World(AtomicU64::new(1)));
    Env {
        disks: w.clone(),
        clock: w.clone(),
        rng: w.clone(),
        host: w.clone(),
        cpu: w,
    }
}

/// Frees what is killed, counts nothing.
pub struct FreeAll;

impl SyncHooks for FreeAll {
    fn born(&self, _: &BlkPtr) -> Result<()> {
        Ok(())
    }
    fn kill(&self, _: &BlkPtr) -> Result<bool> {
        Ok(true)
    }
}

/// One object set in memory.
pub struct Rig {
    /// The transaction engine.
    pub dmu: Arc<Dmu>,
    /// The object set.
    pub os: Arc<Objset>,
    /// The allocator.
    pub space: Arc<MemoryAllocator>,
    /// The disk.
    pub devices: Arc<MemoryDevices>,
    policy: WritePolicy,
}

impl Rig {
    /// An empty object set of the type (2 = file system) on a disk of `size` bytes.
    pub fn new(os_type: u64, size: u64, policy: WritePolicy) -> Rig {
        let space = Arc::new(MemoryAllocator::new(size));
        let devices = Arc::new(MemoryDevices::new(9));
        let zio = Arc::new(Zio::new(
            devices.clone(),
            space.clone(),
            ZioOptions {
                cache_bytes: 64 << 20,
                seed: 1,
                writable: true,
            },
        ));
        let dmu = Dmu::new(
            env(),
            zio,
            DmuOptions {
                dirty_max: 1 << 30,
                first_txg: Txg::INITIAL,
            },
        );
        let tx = dmu.syncing_tx(Txg::new(4));
        let os = Objset::create(&dmu, 1, &tx, os_type, 4096, policy.clone())
            .unwrap_or_else(|e| panic!("{e}"));
        Rig {
            dmu,
            os,
            space,
            devices,
            policy,
        }
    }

    /// Writes the open txg.
    pub fn sync(&self) -> Txg {
        self.sync_with(&FreeAll)
    }

    /// One pass over the open txg, which may fail: it is over for the set then.
    pub fn try_sync(&self) -> base::Result<()> {
        let g = self.dmu.begin_sync()?;
        let tx = self.dmu.syncing_tx(g.txg);
        self.os.sync(&tx, 1, &FreeAll).map(|_| ())
    }

    /// Writes the open txg with these hooks, and returns it.
    pub fn sync_with(&self, hooks: &dyn SyncHooks) -> Txg {
        let g = self.dmu.begin_sync().unwrap_or_else(|e| panic!("{e}"));
        let tx = self.dmu.syncing_tx(g.txg);
        let mut pass = 1;
        while self.os.is_dirty_in(g.txg) {
            self.os
                .sync(&tx, pass, hooks)
                .unwrap_or_else(|e| panic!("{e}"));
            pass += 1;
        }
        self.dmu.zio.drain(g.txg).unwrap_or_else(|e| panic!("{e}"));
        self.dmu.end_sync(g.txg);
        g.txg
    }

    /// Syncs, forgets everything in memory and opens the set again from its root pointer.
    pub fn reopen(self) -> Rig {
        self.sync();
        self.crash()
    }

    /// Forgets everything in memory, as a crash does, and opens the set again from its root pointer.
    pub fn crash(self) -> Rig {
        let root = self.os.root();
        let zio = Arc::new(Zio::new(
            self.devices.clone(),
            self.space.clone(),
            ZioOptions {
                cache_bytes: 64 << 20,
                seed: 1,
                writable: true,
            },
        ));
        let first_txg = self.dmu.open_txg();
        let dmu = Dmu::new(
            env(),
            zio,
            DmuOptions {
                dirty_max: 1 << 30,
                first_txg,
            },
        );
        let os = Objset::open(&dmu, 1, &root, self.policy.clone(), false)
            .unwrap_or_else(|e| panic!("{e}"));
        Rig {
            dmu,
            os,
            space: self.space,
            devices: self.devices,
            policy: self.policy,
        }
    }

    /// A transaction of the open txg.
    pub fn tx(&self) -> Tx {
        self.os
            .tx(crate::Need::default())
            .unwrap_or_else(|e| panic!("{e}"))
    }
}
