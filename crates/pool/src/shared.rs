//! Blocks that several pointers may refer to, as `zio` asks for them: dedup tables, cloned blocks, the
//! checkpoint.

use crate::brt::Brts;
use crate::checkpoint::Checkpoint;
use crate::ddt::Ddts;
use crate::indirect::Removed;
use crate::scan::BlockQueue;
use base::{Result, Txg};
use disk::BlkPtr;
use dmu::{Objset, Tx};
use dsl::Features;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use zio::{Dedup, Sharing, Zio};

/// The tables of one pool.
pub struct Shares {
    /// Dedup tables.
    pub ddt: Ddts,
    /// Cloned blocks.
    pub brt: Brts,
    /// The checkpoint, if there is one.
    pub checkpoint: Checkpoint,
    features: Arc<dyn Features>,
    zio: Arc<Zio>,
    saved: AtomicU64,
    /// What became of removed vdevs.
    removed: OnceLock<Arc<Removed>>,
    /// The scan under way sees to blocks that other pointers led it to.
    scanned: OnceLock<Arc<BlockQueue>>,
}

impl Shares {
    /// Opens what there is. Top-level vdevs are registered afterwards (`crate::tops`).
    pub fn open(mos: &Arc<Objset>, zio: &Arc<Zio>, features: &Arc<dyn Features>) -> Result<Shares> {
        Ok(Shares {
            ddt: Ddts::open(mos, zio)?,
            brt: Brts::open(mos, zio, &**features),
            checkpoint: Checkpoint::open(mos, &**features)?,
            features: features.clone(),
            zio: zio.clone(),
            saved: AtomicU64::new(0),
            removed: OnceLock::new(),
            scanned: OnceLock::new(),
        })
    }

    /// Whom to tell of blocks that lose one reference of several; set once.
    pub(crate) fn set_scanned(&self, scanned: Arc<BlockQueue>) {
        let _ = self.scanned.set(scanned);
    }

    /// Who knows what became of removed vdevs; set once.
    pub(crate) fn set_removed(&self, removed: Arc<Removed>) {
        let _ = self.removed.set(removed);
    }

    /// Bytes that would be needed more if nothing were shared, as of the last txg.
    pub fn saved(&self) -> u64 {
        self.saved.load(Ordering::Relaxed)
    }

    /// Takes the sum: a walk over the logged entries, too much for every change that asks for space.
    pub(crate) fn count_saved(&self) {
        let t = self.ddt.total();
        let saved = t[7]
            .saturating_sub(t[3])
            .saturating_add(self.brt.used_and_saved().1);
        self.saved.store(saved, Ordering::Relaxed);
    }

    /// One pointer more refers to the block of `bp`, which is on disk.
    pub fn add_reference(&self, bp: &BlkPtr) -> Result<()> {
        if bp.is_dedup() && self.ddt.add(bp)?.is_some() {
            return Ok(());
        }
        self.brt.add(bp)
    }

    /// Whether the txg has changed a table.
    pub fn is_dirty(&self) -> bool {
        self.ddt.is_dirty() || self.brt.is_dirty()
    }

    /// Writes what the txg has changed, when nothing changes references any more.
    pub fn sync(&self, tx: &Tx, now: u64) -> Result<()> {
        for bp in self.ddt.sync(tx, &*self.features, now)? {
            // A clone of a block the table did not know may still hold it.
            if !self.brt.release(&bp)? {
                self.zio.free_space(&bp, tx.txg())?;
            }
        }
        self.brt.sync(tx, &*self.features)?;
        self.count_saved();
        Ok(())
    }
}

impl Sharing for Shares {
    fn may_share(&self, bp: &BlkPtr) -> bool {
        bp.is_dedup() || self.brt.may_have(bp)
    }

    fn release(&self, bp: &BlkPtr, _txg: Txg) -> Result<bool> {
        if bp.is_dedup() && self.ddt.release(bp)?.is_some() {
            return Ok(false);
        }
        Ok(!self.brt.release(bp)?)
    }

    fn find(
        &self,
        bp: &BlkPtr,
        copies: u8,
        same: Option<&dyn Fn(&BlkPtr) -> Result<bool>>,
    ) -> Result<Dedup> {
        self.ddt.find(bp, copies, same)
    }

    fn insert(&self, bp: &BlkPtr, copies: u8) -> Result<()> {
        self.ddt.insert(bp, copies, &*self.features)
    }

    fn stays(&self, bp: &BlkPtr) {
        if let Some(q) = self.scanned.get() {
            // The pointer that is gone may be the one by which the scan would have come to it.
            q.add_shared(bp);
        }
    }

    fn keeps(&self, range: (u64, u64, u64), birth: Txg, txg: Txg) -> Result<bool> {
        if !self.checkpoint.has(birth) {
            return Ok(false);
        }
        let (vdev, offset, asize) = range;
        let mut keep = |v, o, n| self.checkpoint.keep(v, o, n);
        match self.removed.get() {
            Some(removed) => removed.free(vdev, offset, asize, txg, &mut keep)?,
            None => keep(vdev, offset, asize)?,
        }
        Ok(true)
    }
}
