//! Freeing blocks.

use super::Zio;
use base::{Result, Txg};
use disk::BlkPtr;
use std::sync::atomic::Ordering;

impl Zio {
    /// A pointer to a block (not its subtree) is gone in `txg`: frees the space, unless others share
    /// it.
    pub fn free(&self, bp: &BlkPtr, txg: Txg) -> Result<()> {
        self.check_writable()?;
        if bp.is_hole() || bp.is_embedded() {
            return Ok(());
        }
        if bp.is_dedup() || Self::is_data(bp) {
            if let Some(s) = self.sharing() {
                if !s.release(bp, txg)? {
                    s.stays(bp);
                    return Ok(());
                }
            }
        }
        self.free_space(bp, txg)
    }

    /// Frees the space of a block in `txg`, whoever else refers to it.
    pub fn free_space(&self, bp: &BlkPtr, txg: Txg) -> Result<()> {
        self.check_writable()?;
        if bp.is_hole() || bp.is_embedded() {
            return Ok(());
        }
        if bp.is_gang() {
            return self.free_gang(bp, txg, 0);
        }
        for d in bp.dvas() {
            self.free_range(d.vdev(), d.offset(), d.asize(), bp.physical_birth(), txg)?;
        }
        Ok(())
    }

    /// Deflated bytes of gang members that could not be freed since the last call, because no copy of
    /// their header can be read.
    pub fn take_leaked(&self) -> u64 {
        self.leaked.swap(0, Ordering::Relaxed)
    }

    /// See [`crate::Allocator::room`].
    pub fn room(&self) -> u64 {
        self.allocator.room()
    }

    pub(super) fn free_range(
        &self,
        vdev: u64,
        offset: u64,
        asize: u64,
        birth: Txg,
        txg: Txg,
    ) -> Result<()> {
        if birth < txg {
            if let Some(s) = self.sharing() {
                if s.keeps((vdev, offset, asize), birth, txg)? {
                    return Ok(());
                }
            }
        }
        self.allocator.free(vdev, offset, asize, txg)
    }
}
