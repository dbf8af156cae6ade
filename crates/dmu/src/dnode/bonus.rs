//! The bonus buffer, the spill block, and the properties of a dnode.

use super::{Dnode, Inner, Spill, LEAST_SPACE, SPILL};
use crate::tx::Tx;
use base::{bail, Block, Result};
use disk::{Checksum, Compression, ObjType};
use std::sync::Arc;

impl Dnode {
    /// The bytes of the bonus in use.
    pub fn bonus(&self) -> Vec<u8> {
        self.read_lock().f.bonus.clone()
    }

    /// Runs `f` on the bonus without copying it.
    pub fn with_bonus<R>(&self, f: impl FnOnce(&[u8]) -> R) -> R {
        f(&self.read_lock().f.bonus)
    }

    /// Largest bonus this dnode can hold.
    pub fn bonus_capacity(&self, with_spill: bool) -> usize {
        let i = self.read_lock();
        let taken = 64 + 128 * i.f.nblkptr as usize + if with_spill { 128 } else { 0 };
        (i.f.slots as usize * 512).saturating_sub(taken)
    }

    /// Replaces the bonus. `NoSpace`: it does not fit into the dnode.
    pub fn set_bonus(&self, tx: &Tx, bytes: &[u8]) -> Result<()> {
        let mut i = self.write_lock();
        let spill = match &i.spill {
            Spill::Synced => i.s.spill.is_some(),
            Spill::Removed(_) => false,
            Spill::Data(..) | Spill::Placed(..) => true,
        };
        let taken = 64 + 128 * i.f.nblkptr as usize + if spill { 128 } else { 0 };
        let room = (i.f.slots as usize * 512).saturating_sub(taken);
        if bytes.len() > room {
            bail!(
                NoSpace,
                "bonus of {} bytes in a room of {room}",
                bytes.len()
            );
        }
        self.touch(&mut i, tx)?;
        i.f.bonus.clear();
        i.f.bonus.extend_from_slice(bytes);
        Ok(())
    }

    /// Changes the type of the bonus.
    pub fn set_bonus_type(&self, tx: &Tx, ty: ObjType) -> Result<()> {
        let mut i = self.write_lock();
        self.touch(&mut i, tx)?;
        i.f.bonus_type = ty;
        Ok(())
    }

    /// Changes the object type ("zapify"); content stays.
    pub fn set_type(&self, tx: &Tx, ty: ObjType) -> Result<()> {
        let mut i = self.write_lock();
        self.touch(&mut i, tx)?;
        i.f.obj_type = ty;
        Ok(())
    }

    /// Compression of this object's data, 0 = as the dataset says.
    pub fn set_compress(&self, tx: &Tx, id: Compression) -> Result<()> {
        let mut i = self.write_lock();
        self.touch(&mut i, tx)?;
        i.f.compress = id;
        Ok(())
    }

    /// Checksum of this object's data, 0 = as the dataset says.
    pub fn set_checksum(&self, tx: &Tx, id: Checksum) -> Result<()> {
        let mut i = self.write_lock();
        self.touch(&mut i, tx)?;
        i.f.checksum = id;
        Ok(())
    }

    /// The spill block; `None` if the object has none.
    pub fn spill(&self) -> Result<Option<Block>> {
        let mut turns = 0;
        loop {
            let r = self.reader();
            let (bp, gen) = {
                let i = self.read_lock();
                match &i.spill {
                    Spill::Removed(_) => return Ok(None),
                    Spill::Data(b, _) => return Ok(Some(b.clone())),
                    Spill::Placed(bp, _) => (**bp, i.gen),
                    Spill::Synced => match &i.s.spill {
                        Some(bp) if !bp.is_hole() => (*bp, i.gen),
                        _ => return Ok(None),
                    },
                }
            };
            match r.read(&bp, SPILL) {
                Ok(b) => return Ok(Some(b)),
                Err(e) => self.read_failed(e, gen, r.failed.get(), &mut turns)?,
            }
        }
    }

    /// A spill block that was given a place in this txg gives it back.
    pub(crate) fn unplace_spill(&self, i: &mut Inner, tx: &Tx) -> Result<()> {
        if let Spill::Placed(bp, txg) = &i.spill {
            if *txg == tx.txg() {
                self.dmu.zio.free_space(bp, tx.txg())?;
                i.spill = Spill::Removed(tx.txg());
            }
        }
        Ok(())
    }

    /// Whether the dnode has room for the pointer of a spill block.
    pub(crate) fn room_for_spill(i: &Inner) -> Result<()> {
        let taken = 64 + 128 * i.f.nblkptr as usize + i.f.bonus.len();
        if taken + 128 > i.f.slots as usize * 512 {
            bail!(
                NoSpace,
                "no room for a spill pointer beside {} block pointers and {} bytes",
                i.f.nblkptr,
                i.f.bonus.len()
            );
        }
        Ok(())
    }

    /// Replaces the spill block; `data` must be a multiple of 512 bytes, at most 128 KiB.
    pub fn set_spill(&self, tx: &Tx, data: Option<Vec<u8>>) -> Result<()> {
        let mut i = self.write_lock();
        if let Some(d) = &data {
            if d.is_empty() || d.len() % 512 != 0 || d.len() > base::OLD_MAX_BLOCK {
                bail!(Invalid, "spill block of {} bytes", d.len());
            }
            Self::room_for_spill(&i)?;
        }
        self.touch(&mut i, tx)?;
        self.unplace_spill(&mut i, tx)?;
        i.pend[tx.txg()].spill = true;
        i.spill = match data {
            Some(d) => {
                self.dmu.add_dirty(tx.txg(), d.len() as u64);
                self.objset()?
                    .add_space(tx.txg(), d.len().max(LEAST_SPACE) as u64);
                Spill::Data(Arc::new(d), tx.txg())
            }
            None => Spill::Removed(tx.txg()),
        };
        Ok(())
    }
}
