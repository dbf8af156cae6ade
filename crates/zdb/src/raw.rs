//! Object sets read directly from disk, without the engine: as much as can be read, also of encrypted datasets
//! whose key is missing.

use base::{Block, Error, Result};
use codec::compress;
use disk::objset::ObjsetPhys;
use disk::{BlkPtr, Compression, DnodePhys, ObjType};
use std::sync::Arc;
use walk::{Next, Order};
use zio::{Crypt, ReadSpec, Zio};

/// Slots of one block of dnodes.
const PER_BLOCK: u64 = 32;

/// Reads any block; parts of blocks of dnodes may be encrypted.
pub fn read(zio: &Zio, bp: &BlkPtr) -> Result<Block> {
    let dnodes = bp.uses_crypt() && bp.level() == 0 && bp.obj_type() == ObjType::DNODE;
    if !dnodes {
        return zio.read(bp);
    }
    bp.sanity(zio.devices.vdevs())?;
    let raw = zio.read_raw(bp)?;
    let mut data = match bp.compress() {
        Compression::OFF if raw.len() >= bp.lsize() => {
            let mut raw = raw;
            raw.truncate(bp.lsize());
            raw
        }
        c => compress::decompress(c, &raw, bp.lsize())?,
    };
    if !bp.is_little_endian() {
        zio::swap::block(bp.obj_type(), bp.level(), &mut data)?;
    }
    Ok(Arc::new(data))
}

/// What to visit of an object: everything, holes with a birth as well.
pub fn with_holes() -> walk::Spec<'static> {
    walk::Spec {
        holes: walk::Holes::Born,
        ..walk::Spec::all(Order::ParentsFirst)
    }
}

/// Calls `f` with every pointer of an object's tree, parents first, without the spill block: level, first block
/// below, pointer. What cannot be read is given to `bad`.
pub fn tree(
    zio: &Zio,
    dn: &DnodePhys,
    spec: &walk::Spec,
    f: &mut dyn FnMut(&BlkPtr, u32, u64) -> Result<()>,
    bad: &mut dyn FnMut(&BlkPtr, Error),
) -> Result<()> {
    let shift = dn.epb_shift();
    walk::blocks(
        zio,
        dn,
        spec,
        &mut |at, bp| {
            if at.blkid != walk::SPILL_BLKID {
                let level = u32::try_from(at.level).unwrap_or(0);
                let first = at.blkid.checked_shl(shift * level).unwrap_or(0);
                f(bp, level, first)?;
            }
            Ok(Next::Descend)
        },
        &mut |f| {
            if f.place.blkid != walk::SPILL_BLKID {
                bad(&f.bp, f.problem.error().clone());
            }
            Ok(())
        },
    )
}

/// An object set.
pub struct Set<'a> {
    pub zio: &'a Zio,
    pub phys: ObjsetPhys,
    pub root: BlkPtr,
    /// Its key, if it has one that is loaded.
    crypt: Crypt,
}

impl<'a> Set<'a> {
    pub fn open(zio: &'a Zio, root: &BlkPtr) -> Result<Set<'a>> {
        if root.is_hole() {
            return Err(Error::damaged("no object set"));
        }
        Ok(Set {
            zio,
            phys: ObjsetPhys::decode(&zio.read(root)?)?,
            root: *root,
            crypt: Crypt::Plain,
        })
    }

    /// That of a dataset, read with its key if that is loaded.
    pub fn of(zio: &'a Zio, ds: &dsl::Dataset) -> Result<Set<'a>> {
        let mut set = Set::open(zio, &ds.phys().bp)?;
        if set.root.uses_crypt() {
            set.crypt = ds.crypt().unwrap_or(Crypt::Locked);
        }
        Ok(set)
    }

    /// Blocks are encrypted, and there is no key.
    pub fn is_locked(&self) -> bool {
        self.root.uses_crypt() && matches!(self.crypt, Crypt::Plain | Crypt::Locked)
    }

    /// Reads a block of it, decrypted if the key is there.
    pub fn read(&self, bp: &BlkPtr) -> Result<Block> {
        match self.crypt {
            Crypt::Plain | Crypt::Locked => read(self.zio, bp),
            _ => self.zio.read_with(bp, &ReadSpec::with_key(&self.crypt)),
        }
    }

    /// The dnode of an object; −1, −2 and −3 (as `u64`) are the accounting objects, 0 the meta dnode.
    pub fn dnode(&self, object: u64) -> Result<Option<DnodePhys>> {
        match object {
            0 => return Ok(Some(self.phys.meta.clone())),
            u64::MAX => return Ok(self.phys.special[0].clone()),
            n if n == u64::MAX - 1 => return Ok(self.phys.special[1].clone()),
            n if n == u64::MAX - 2 => return Ok(self.phys.special[2].clone()),
            _ => {}
        }
        let block = self.block(&self.phys.meta, object / PER_BLOCK)?;
        let at = (object % PER_BLOCK) as usize * 512;
        match block.get(at..) {
            Some(b) if b.len() >= 512 => DnodePhys::decode(b),
            _ => Ok(None),
        }
    }

    /// One block of an object; empty if there is none.
    pub fn block(&self, dn: &DnodePhys, id: u64) -> Result<Block> {
        let shift = dn.epb_shift();
        let mut level = u32::from(dn.nlevels).saturating_sub(1);
        let place = |level: u32| id.checked_shr(level * shift).unwrap_or(0);
        let none = || Arc::new(Vec::new());
        let Some(bp) = dn.blkptr.get(place(level) as usize) else {
            return Ok(none());
        };
        let mut bp = *bp;
        while level > 0 && !bp.is_hole() {
            level -= 1;
            let b = self.zio.read(&bp)?;
            bp = BlkPtr::at(&b, (place(level) & ((1 << shift) - 1)) as usize)?;
        }
        match bp.is_hole() || bp.is_redacted() {
            true => Ok(none()),
            false => self.read(&bp),
        }
    }

    /// Every object in order of number; what cannot be read is given to `bad` with the first number of
    /// its block.
    pub fn each(
        &self,
        f: &mut dyn FnMut(u64, &DnodePhys) -> Result<()>,
        bad: &mut dyn FnMut(u64, Error),
    ) -> Result<()> {
        let mut lost = Vec::new();
        let mut blocks = Vec::new();
        tree(
            self.zio,
            &self.phys.meta,
            &walk::Spec::all(Order::ParentsFirst),
            &mut |bp, level, first| {
                if level == 0 {
                    blocks.push((first, *bp));
                }
                Ok(())
            },
            &mut |bp, e| lost.push((bp.fill(), e)),
        )?;
        for (_, e) in lost {
            bad(0, e);
        }
        for (first, bp) in blocks {
            let number = first.wrapping_mul(PER_BLOCK);
            let b = match self.read(&bp) {
                Ok(b) => b,
                Err(e) => {
                    bad(number, e);
                    continue;
                }
            };
            let mut slot = 0;
            while (slot + 1) * 512 <= b.len() {
                let object = number.wrapping_add(slot as u64);
                match DnodePhys::decode(&b[slot * 512..]) {
                    Ok(Some(dn)) => {
                        if object != 0 {
                            f(object, &dn)?;
                        }
                        slot += usize::from(dn.slots).max(1);
                    }
                    Ok(None) => slot += 1,
                    Err(e) => {
                        bad(object, e);
                        slot += 1;
                    }
                }
            }
        }
        Ok(())
    }
}
