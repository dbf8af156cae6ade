//! The blocks of intent logs.

use crate::{Audit, Origin, Row, Sink};
use base::{bail, Block, Result, Txg};
use disk::objset::ObjsetPhys;
use disk::{BlkPtr, ObjType};
use pool::Pool;
use zil::LogBlocks;

/// Log blocks of a pool, to be read only. Errors are charged to no device: a log ends where a block is not
/// valid.
pub struct ReadOnlyLog<'a>(pub &'a Pool);

impl LogBlocks for ReadOnlyLog<'_> {
    fn read_block(&self, bp: &BlkPtr, verify: &(dyn Fn(&[u8]) -> bool + Sync)) -> Result<Vec<u8>> {
        let devices = &self.0.zio().devices;
        bp.sanity(devices.vdevs())?;
        devices.probe(&bp.dva(0), bp.psize(), bp.physical_birth(), verify)
    }

    fn read_data(&self, bp: &BlkPtr) -> Result<Block> {
        self.0.zio().read(bp)
    }

    fn claim(&self, _: &BlkPtr, _: Txg) -> Result<()> {
        bail!(ReadOnly, "the log is only read")
    }

    fn free(&self, _: &BlkPtr, _: Txg) -> Result<()> {
        bail!(ReadOnly, "the log is only read")
    }
}

impl Audit<'_> {
    /// The chain of log blocks, and the blocks its records point to. Those of the last txgs are not in the space
    /// maps.
    pub(crate) fn log(&mut self, phys: &ObjsetPhys, sink: Sink) {
        let Ok(h) = disk::zil::ZilHeader::decode(&phys.zil_header) else {
            return;
        };
        let mut chain = Vec::new();
        let mut written = Vec::new();
        // The chain ends at the first block that is not valid: that is no error.
        let _ = zil::walk(
            &ReadOnlyLog(self.pool),
            &h.log,
            (u64::MAX, u64::MAX),
            &mut |bp| {
                chain.push(*bp);
                Ok(true)
            },
            &mut |r| {
                written.extend(r.write_bp());
                Ok(true)
            },
        );
        let vdevs = self.pool.tree().tops().len() as u64;
        let sane = |bp: &&BlkPtr| !bp.is_hole() && bp.sanity(vdevs).is_ok();
        for bp in chain.iter().filter(sane) {
            // What an import would claim is not part of the pool yet.
            if bp.logical_birth() < self.pool.first_txg() {
                self.count(bp, Row::of(ObjType::INTENT_LOG));
            }
            self.gang(bp, true, Origin::Log, 0, sink);
        }
        for bp in written.iter().filter(sane) {
            self.gang(bp, true, Origin::Log, 0, sink);
        }
    }
}
