//! Transactions, transaction groups and the limit on dirty data (behaviour §1, §2).

use crate::objset::Objset;
use base::{Result, Txg};
use env::Env;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, Weak};
use zio::Zio;

/// What a transaction may change at most; decides throttling and ENOSPC.
#[derive(Clone, Copy, Debug, Default)]
pub struct Need {
    /// New logical bytes, data and metadata.
    pub bytes: u64,
    /// Frees at least as much as it takes: allowed into the reserve.
    pub net_free: bool,
}

impl Need {
    pub fn bytes(bytes: u64) -> Need {
        Need {
            bytes,
            net_free: false,
        }
    }
    pub fn freeing() -> Need {
        Need {
            bytes: 0,
            net_free: true,
        }
    }
}

/// Decides whether a dataset may take more space; implemented by the rooms that know quotas.
pub trait Admission: Send + Sync {
    /// `pending` are bytes already promised to transactions of unsynced groups.
    fn admit(&self, need: Need, pending: u64) -> Result<()>;
}

/// Gets groups written. The core starts no thread: whoever must wait runs the sync itself.
pub trait Driver: Send + Sync {
    /// Returns when group `txg` is on disk.
    fn sync_through(&self, txg: Txg) -> Result<()>;
    /// There is enough dirty data to begin a sync soon; must not block.
    fn kick(&self);
}

pub struct DmuOptions {
    /// Dirty bytes at which writers wait for a sync.
    pub dirty_max: u64,
    /// First open txg (last synced + 1).
    pub first_txg: Txg,
}

struct Gate {
    open: Txg,
    /// Transactions alive, by txg & 3.
    holders: [u64; 4],
    /// A group is closing; new transactions wait.
    closing: bool,
    synced: Txg,
}

/// The transaction engine of one pool.
pub struct Dmu {
    pub env: Env,
    pub zio: Arc<Zio>,
    gate: Mutex<Gate>,
    gate_cv: Condvar,
    dirty: [AtomicU64; 4],
    dirty_max: u64,
    objsets: Mutex<[Vec<Arc<Objset>>; 4]>,
    driver: OnceLock<Weak<dyn Driver>>,
}

/// A closed group about to be written.
pub struct SyncGroup {
    pub txg: Txg,
    /// Object sets changed in open context, in order of id.
    pub objsets: Vec<Arc<Objset>>,
}

/// A transaction: holds its group open until dropped. See the crate for the lock order.
pub struct Tx {
    dmu: Arc<Dmu>,
    txg: Txg,
    syncing: bool,
}

impl Tx {
    pub fn txg(&self) -> Txg {
        self.txg
    }
    pub fn is_syncing(&self) -> bool {
        self.syncing
    }
    pub fn dmu(&self) -> &Arc<Dmu> {
        &self.dmu
    }
}

impl Drop for Tx {
    fn drop(&mut self) {
        if self.syncing {
            return;
        }
        let mut g = self.dmu.lock();
        let h = &mut g.holders[self.txg as usize & 3];
        *h -= 1;
        if *h == 0 && g.closing {
            self.dmu.gate_cv.notify_all();
        }
    }
}

impl Dmu {
    pub fn new(env: Env, zio: Arc<Zio>, opts: DmuOptions) -> Arc<Dmu> {
        Arc::new(Dmu {
            env,
            zio,
            gate: Mutex::new(Gate {
                open: opts.first_txg,
                holders: [0; 4],
                closing: false,
                synced: opts.first_txg - 1,
            }),
            gate_cv: Condvar::new(),
            dirty: Default::default(),
            dirty_max: opts.dirty_max,
            objsets: Mutex::default(),
            driver: OnceLock::new(),
        })
    }

    pub fn set_driver(&self, driver: Weak<dyn Driver>) {
        let _ = self.driver.set(driver);
    }

    pub fn driver(&self) -> Option<Arc<dyn Driver>> {
        self.driver.get().and_then(Weak::upgrade)
    }

    fn lock(&self) -> MutexGuard<'_, Gate> {
        self.gate.lock().unwrap_or_else(|e| e.into_inner())
    }

    pub fn open_txg(&self) -> Txg {
        self.lock().open
    }

    /// Last group known to be on disk.
    pub fn synced_txg(&self) -> Txg {
        self.lock().synced
    }

    /// Dirty bytes of all groups not yet on disk.
    pub fn dirty_bytes(&self) -> u64 {
        self.dirty.iter().map(|d| d.load(Ordering::Relaxed)).sum()
    }

    pub(crate) fn add_dirty(&self, txg: Txg, bytes: u64) {
        self.dirty[txg as usize & 3].fetch_add(bytes, Ordering::Relaxed);
    }

    /// Opens a transaction in the open group; waits while a group closes, and while there is more
    /// dirty data than allowed.
    pub(crate) fn begin(self: &Arc<Self>) -> Result<Tx> {
        let dirty = self.dirty_bytes();
        if dirty >= self.dirty_max / 5 {
            if let Some(d) = self.driver() {
                d.kick();
                if dirty >= self.dirty_max {
                    // Everything dirty belongs to the open group or the one before it.
                    let target = self.open_txg();
                    d.sync_through(target.saturating_sub(1))?;
                    if self.dirty_bytes() >= self.dirty_max {
                        d.sync_through(target)?;
                    }
                }
            }
        }
        let mut g = self.lock();
        while g.closing {
            g = self.gate_cv.wait(g).unwrap_or_else(|e| e.into_inner());
        }
        let txg = g.open;
        g.holders[txg as usize & 3] += 1;
        Ok(Tx {
            dmu: self.clone(),
            txg,
            syncing: false,
        })
    }

    /// The transaction of syncing context for a group obtained from [`Dmu::begin_sync`].
    pub fn syncing_tx(self: &Arc<Self>, txg: Txg) -> Tx {
        Tx {
            dmu: self.clone(),
            txg,
            syncing: true,
        }
    }

    pub(crate) fn register(&self, txg: Txg, os: &Arc<Objset>) {
        let mut l = self.objsets.lock().unwrap_or_else(|e| e.into_inner());
        let l = &mut l[txg as usize & 3];
        if !l.iter().any(|o| Arc::ptr_eq(o, os)) {
            l.push(os.clone());
        }
    }

    /// True if the open group has anything to write.
    pub fn is_open_dirty(&self) -> bool {
        let txg = self.open_txg();
        !self.objsets.lock().unwrap_or_else(|e| e.into_inner())[txg as usize & 3].is_empty()
    }

    /// Closes the open group: waits for its transactions, takes over what they changed, and opens the
    /// next one. Only one thread may be between `begin_sync` and `end_sync`.
    pub fn begin_sync(&self) -> SyncGroup {
        let mut g = self.lock();
        let txg = g.open;
        g.closing = true;
        while g.holders[txg as usize & 3] > 0 {
            g = self.gate_cv.wait(g).unwrap_or_else(|e| e.into_inner());
        }
        drop(g);
        let mut objsets = std::mem::take(
            &mut self.objsets.lock().unwrap_or_else(|e| e.into_inner())[txg as usize & 3],
        );
        objsets.sort_by_key(|o| o.id());
        for os in &objsets {
            os.quiesce(txg);
        }
        let mut g = self.lock();
        g.open = txg + 1;
        g.closing = false;
        self.gate_cv.notify_all();
        SyncGroup { txg, objsets }
    }

    /// Object sets changed in syncing context of `txg` since the last call, in order of id.
    pub fn take_dirty_objsets(&self, txg: Txg) -> Vec<Arc<Objset>> {
        let mut l = std::mem::take(
            &mut self.objsets.lock().unwrap_or_else(|e| e.into_inner())[txg as usize & 3],
        );
        l.sort_by_key(|o| o.id());
        l
    }

    /// Group `txg` is on disk.
    pub fn end_sync(&self, txg: Txg) {
        self.dirty[txg as usize & 3].store(0, Ordering::Relaxed);
        // Objects dirtied in syncing context registered their object set once more.
        self.objsets.lock().unwrap_or_else(|e| e.into_inner())[txg as usize & 3].clear();
        let mut g = self.lock();
        g.synced = txg;
        self.gate_cv.notify_all();
    }
}
