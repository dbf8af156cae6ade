//! [`zil::LogStore`] implemented over a pool: blocks of the intent log are read, allocated and written here.

use crate::accounting::generation_and_size;
use crate::Pool;
use base::mutation::{mutated, Mutation};
use base::sync::MutexExt;
use base::{bail, Block, Kind, Result, Txg};
use disk::{BlkPtr, Dva};
use dmu::{Dnode, Objset};
use std::sync::{Arc, Mutex, Weak};
use zil::{Indirect, LogBlocks, LogStore, Wanted};
use zio::{InUse, ReadSpec};

/// Bytes of file blocks that are written in place together.
const TOGETHER: usize = 16 << 20;

/// So many txgs ahead of the first that an import writes may blocks of a log have been born: txgs pass also while nothing
/// changes, and are not stored then ([`crate::sync::MOST_SKIPPED`]). OpenZFS lets one pass every five seconds, and stores none of
/// them: this is eight months of that.
const MOST_AHEAD: u64 = 1 << 22;

/// Log blocks of one dataset.
pub(crate) struct Store {
    pool: Weak<Pool>,
    os: Arc<Objset>,
    /// It is there to be claimed: births are limited.
    claims: bool,
    /// Nothing is written: what is claimed or referred to is only looked at.
    looks: bool,
    /// What [`vdev::VdevTree::log_losses`] was when the first of the blocks was written that no flush has covered.
    losses: Mutex<Option<u64>>,
}

impl Store {
    /// The store of the log of `os`.
    pub fn new(pool: Arc<Pool>, os: Arc<Objset>) -> Store {
        Store {
            pool: Arc::downgrade(&pool),
            os,
            claims: false,
            looks: false,
            losses: Mutex::default(),
        }
    }

    /// For a rehearsal of claiming: the same is read, and nothing is changed, in memory or on a device.
    pub fn to_look(pool: Arc<Pool>, os: Arc<Objset>) -> Store {
        Store {
            looks: true,
            ..Store::for_claim(pool, os)
        }
    }

    /// For claiming: what is read is made whole on all devices. Of what was not flushed before a crash
    /// some devices may have what others lack; the txg that claims it must not depend on the former
    /// alone. Nobody else may use the log.
    pub fn for_claim(pool: Arc<Pool>, os: Arc<Objset>) -> Store {
        Store {
            claims: true,
            ..Store::new(pool, os)
        }
    }

    fn pool(&self) -> Result<Arc<Pool>> {
        match self.pool.upgrade() {
            Some(p) => Ok(p),
            None => bail!(Stale, "the pool was exported"),
        }
    }
}

impl Store {
    /// The object, if the range lies in one block of it.
    fn one_block(&self, w: &Wanted) -> Result<Option<(Arc<Dnode>, u64)>> {
        let dn = self.os.hold(w.object)?;
        let info = dn.info();
        if let Some((gen, size)) = dn.with_bonus(|b| generation_and_size(info.bonus_type, b)) {
            if (w.generation != 0 && gen != w.generation) || w.offset >= size {
                bail!(NotFound, "object {} is gone or shorter by now", w.object);
            }
        }
        let size = info.block_size as u64;
        let last = w.offset.saturating_add(w.length.saturating_sub(1));
        let one = w.length > 0 && w.offset / size == last / size;
        Ok(one.then_some((dn, w.offset / size)))
    }

    /// Writes the blocks of the first of the ranges.
    fn place_some(&self, wanted: &[Wanted]) -> Result<Vec<Result<Indirect>>> {
        // The txg is held open: what is placed now is placed in it.
        let tx = self.os.tx(dmu::Need::log())?;
        let mut out = Vec::new();
        let (mut blocks, mut at, mut bytes) = (Vec::new(), Vec::new(), 0);
        for w in wanted {
            if bytes >= TOGETHER {
                break;
            }
            out.push(match self.one_block(w) {
                Ok(Some((dn, blkid))) if tx.txg() == w.txg => {
                    bytes += dn.info().block_size;
                    blocks.push((dn, blkid));
                    at.push(out.len());
                    Ok(Indirect::Copy)
                }
                Ok(_) => Ok(Indirect::Copy),
                Err(e) => Err(e),
            });
        }
        for (n, r) in at.into_iter().zip(dmu::write_now(&tx, &blocks)) {
            match r {
                Ok(Some(bp)) => out[n] = Ok(Indirect::At(Box::new(bp))),
                Ok(None) => {}
                Err(e) => out[n] = Err(e),
            }
        }
        Ok(out)
    }
}

impl LogBlocks for Store {
    fn read_block(&self, bp: &BlkPtr, verify: &(dyn Fn(&[u8]) -> bool + Sync)) -> Result<Vec<u8>> {
        let pool = self.pool()?;
        bp.sanity(pool.zio().devices.vdevs())?;
        let (dva, birth) = (bp.dva(0), bp.physical_birth());
        let data = match pool.zio().devices.probe(&dva, bp.psize(), birth, verify) {
            Err(e) if e.may_pass() && pool.gives_up_logs() => {
                bail!(Checksum, "{e}; the log is given up")
            }
            data => data?,
        };
        if self.claims && !self.looks {
            // Where that fails the device is told by what fails next.
            let _ = pool.zio().devices.mend(&dva, birth, &data);
        }
        Ok(data)
    }

    fn crypt(&self) -> zio::Crypt {
        self.os.crypt().clone()
    }

    fn read_data(&self, bp: &BlkPtr) -> Result<Block> {
        let pool = self.pool()?;
        if self.claims && !self.looks {
            pool.zio().make_whole(bp)?;
        }
        if bp.is_encrypted() && self.os.crypt().key().is_none() {
            // Claiming only wants to know whether it is there.
            pool.zio().probe_raw(bp)?;
            return Ok(Block::default());
        }
        let spec = ReadSpec {
            in_use: InUse::Unknown,
            ..ReadSpec::with_key(self.os.crypt())
        };
        pool.zio().read_with(bp, &spec)
    }

    fn newest_birth(&self) -> Txg {
        match self.pool.upgrade() {
            Some(pool) if self.claims => pool.txgs.first_group.after(MOST_AHEAD),
            _ => Txg::new(u64::MAX),
        }
    }

    fn claim(&self, bp: &BlkPtr, txg: Txg) -> Result<()> {
        let pool = self.pool()?;
        let txg = txg.max(pool.txgs.first_group);
        for (vdev, offset, asize) in pool.zio().places(bp)? {
            match self.looks {
                true => pool.space().load_for_claim(vdev, offset, asize)?,
                false => pool.zio().allocator.claim(vdev, offset, asize, txg)?,
            }
        }
        Ok(())
    }

    fn free(&self, bp: &BlkPtr, txg: Txg) -> Result<()> {
        self.pool()?.zio().free(bp, txg)
    }

    fn clone_ref(&self, bp: &BlkPtr, txg: Txg, add: bool) -> Result<()> {
        let pool = self.pool()?;
        match add {
            true if self.looks => Ok(()),
            true => pool.shares().add_reference(bp),
            false => pool.zio().free(bp, txg),
        }
    }
}

impl LogStore for Store {
    fn alloc_block(&self, size: usize, note: &mut dyn FnMut(Dva, Txg)) -> Result<()> {
        let pool = self.pool()?;
        match self.os.has_room(dmu::Need::log()) {
            // What is on its way may use up the rest; the txg tells.
            Err(e) if e.kind == Kind::Again => bail!(NoSpace, "no room for the intent log for now"),
            r => r?,
        }
        let tx = self.os.tx(dmu::Need::log())?;
        let dva = pool.zio().alloc_log(size, tx.txg())?;
        self.os.touch_header(&tx);
        note(dva, tx.txg());
        Ok(())
    }

    fn write_blocks(&self, blocks: &[(BlkPtr, Block)]) -> Result<()> {
        let pool = self.pool()?;
        if let Some(why) = pool.dmu().stopped() {
            // What is in memory must not reach a disk, also not as records.
            return Err(why);
        }
        (self.losses.acquire()).get_or_insert_with(|| pool.tree().log_losses());
        // A device that misses one has missed the txg of that one.
        for same in blocks.chunk_by(|(a, _), (b, _)| a.logical_birth() == b.logical_birth()) {
            let list: Vec<(Dva, Block)> = same
                .iter()
                .map(|(bp, data)| (bp.dva(0), data.clone()))
                .collect();
            let written = pool.zio().write_now(&list, same[0].0.logical_birth());
            if written.is_err() {
                // The round ends here.
                self.losses.acquire().take();
            }
            match written {
                Err(e) if !mutated(Mutation::DeadLogBelieved) => return Err(e),
                _ => {}
            }
        }
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        let pool = self.pool()?;
        let flushed = pool.zio().devices.flush();
        let before = self.losses.acquire().take();
        flushed?;
        // A txg may have flushed the log in the meantime, and gone on without it.
        let lost = before.is_some_and(|n| n != pool.tree().log_losses());
        if lost && !mutated(Mutation::DeadLogBelieved) {
            bail!(Io, "a log device failed to flush what was written to it");
        }
        Ok(())
    }

    fn broken(&self) {
        if let Ok(pool) = self.pool() {
            pool.panicked("while the intent log was written");
        }
    }

    fn dirty(&self, note: &mut dyn FnMut(Txg)) -> Result<()> {
        let tx = self.os.tx(dmu::Need::log())?;
        self.os.touch_header(&tx);
        note(tx.txg());
        Ok(())
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

    fn write_indirect(&self, wanted: &[Wanted]) -> Vec<Result<Indirect>> {
        let mut out = Vec::with_capacity(wanted.len());
        while out.len() < wanted.len() {
            let rest = &wanted[out.len()..];
            match self.place_some(rest) {
                Ok(some) if !some.is_empty() => out.extend(some),
                Ok(_) => out.push(Ok(Indirect::Copy)),
                Err(e) => out.extend(rest.iter().map(|_| Err(e.clone()))),
            }
        }
        out
    }

    fn random(&self) -> u64 {
        self.os.dmu().env.rng.u64()
    }

    fn wait_synced(&self) -> Result<()> {
        self.pool()?.sync().map(|_| ())
    }
}
