//! The intent log's view of the pool.

use crate::accounting::generation_and_size;
use crate::Pool;
use base::{bail, Block, Result, Txg};
use disk::{BlkPtr, Dva};
use dmu::Objset;
use std::sync::{Arc, Weak};
use zil::{Indirect, LogBlocks, LogStore};

/// Log blocks of one dataset.
pub(crate) struct Store {
    pool: Weak<Pool>,
    os: Arc<Objset>,
}

impl Store {
    pub fn new(pool: Arc<Pool>, os: Arc<Objset>) -> Store {
        Store {
            pool: Arc::downgrade(&pool),
            os,
        }
    }

    fn pool(&self) -> Result<Arc<Pool>> {
        match self.pool.upgrade() {
            Some(p) => Ok(p),
            None => bail!(Stale, "the pool was exported"),
        }
    }
}

impl LogBlocks for Store {
    fn read_block(&self, bp: &BlkPtr, verify: &(dyn Fn(&[u8]) -> bool + Sync)) -> Result<Vec<u8>> {
        let pool = self.pool()?;
        bp.sanity(pool.zio.devices.vdevs())?;
        pool.zio
            .devices
            .probe(&bp.dva(0), bp.psize(), bp.physical_birth(), verify)
    }

    fn crypt(&self) -> zio::Crypt {
        self.os.crypt().clone()
    }

    fn read_data(&self, bp: &BlkPtr) -> Result<Block> {
        let pool = self.pool()?;
        if bp.is_encrypted() && self.os.crypt().key().is_none() {
            // Claiming only wants to know whether it is there.
            pool.zio.probe_raw(bp)?;
            return Ok(Block::default());
        }
        pool.zio.probe(bp, self.os.crypt())
    }

    fn claim(&self, bp: &BlkPtr, txg: Txg) -> Result<()> {
        let pool = self.pool()?;
        let txg = txg.max(pool.first_group);
        for d in bp.dvas() {
            pool.zio
                .allocator
                .claim(d.vdev(), d.offset(), d.asize(), txg)?;
        }
        Ok(())
    }

    fn free(&self, bp: &BlkPtr, txg: Txg) -> Result<()> {
        self.pool()?.zio.free(bp, txg)
    }

    fn clone_ref(&self, bp: &BlkPtr, txg: Txg, add: bool) -> Result<()> {
        let pool = self.pool()?;
        match add {
            true => pool.shares.add_reference(bp),
            false => pool.zio.free(bp, txg),
        }
    }
}

impl LogStore for Store {
    fn alloc_block(&self, size: usize) -> Result<(Dva, Txg)> {
        let pool = self.pool()?;
        let tx = self.os.tx(dmu::Need::freeing())?;
        let dva = pool.zio.alloc_log(size, tx.txg())?;
        self.os.touch_header(&tx);
        Ok((dva, tx.txg()))
    }

    fn write_block(&self, bp: &BlkPtr, data: Block) -> Result<()> {
        self.pool()?
            .zio
            .write_now(&bp.dva(0), data, bp.logical_birth())
    }

    fn flush(&self) -> Result<()> {
        self.pool()?.zio.devices.flush()
    }

    fn dirty(&self) -> Result<Txg> {
        let tx = self.os.tx(dmu::Need::freeing())?;
        self.os.touch_header(&tx);
        Ok(tx.txg())
    }

    fn current_data(
        &self,
        object: u64,
        generation: u64,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<()> {
        let dn = self.os.hold(object)?;
        let bonus_type = dn.info().bonus_type;
        if let Some((gen, size)) = dn.with_bonus(|b| generation_and_size(bonus_type, b)) {
            if generation != 0 && gen != generation {
                bail!(NotFound, "object {object} is another one by now");
            }
            if offset >= size {
                bail!(NotFound, "object {object} ends before {offset}");
            }
        }
        dn.read(offset, buf)
    }

    fn write_indirect(
        &self,
        object: u64,
        generation: u64,
        offset: u64,
        length: u64,
        txg: Txg,
    ) -> Result<Indirect> {
        let dn = self.os.hold(object)?;
        let info = dn.info();
        if let Some((gen, size)) = dn.with_bonus(|b| generation_and_size(info.bonus_type, b)) {
            if (generation != 0 && gen != generation) || offset >= size {
                bail!(NotFound, "object {object} is gone or shorter by now");
            }
        }
        let size = info.block_size as u64;
        if length == 0 || offset / size != (offset + length - 1) / size {
            return Ok(Indirect::Copy);
        }
        // The group is held open: what is placed now is placed in it.
        let tx = self.os.tx(dmu::Need::freeing())?;
        if tx.txg() != txg {
            return Ok(Indirect::Copy);
        }
        Ok(match dn.write_now(&tx, offset / size)? {
            Some(bp) => Indirect::At(Box::new(bp)),
            None => Indirect::Copy,
        })
    }

    fn random(&self) -> u64 {
        self.os.dmu().env.rng.u64()
    }

    fn wait_synced(&self) -> Result<()> {
        self.pool()?.sync().map(|_| ())
    }
}
