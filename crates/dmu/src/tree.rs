//! Walking the synced tree of block pointers of an object (data format §2.5).

use base::{Block, Error, Result, Txg};
use disk::{BlkPtr, DnodePhys, ObjType};
use std::cell::Cell;
use std::sync::Arc;
use zio::{Crypt, InUse, Lease, ReadSpec, Scope, Whole, Zio};

/// Where in an object's tree a block is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Spot {
    /// Level in the tree; 0 is content.
    pub level: u8,
    /// Number of the block at its level.
    pub blkid: u64,
    /// Logical birth.
    pub birth: Txg,
    /// Physical birth.
    pub physical_birth: Txg,
}

/// Whether a data block has no bytes on disk and reads as zeros: a hole, or a block of a file or volume that was left out
/// of a redacted stream. OpenZFS reads those as zeros, too; it mounts such a file system only by force.
pub(crate) fn reads_as_zeros(bp: &BlkPtr) -> bool {
    let data = matches!(bp.obj_type(), ObjType::PLAIN_FILE_CONTENTS | ObjType::ZVOL);
    bp.is_hole() || (bp.is_redacted() && data)
}

/// Reads blocks of a tree that was in use when this was made, and remembers where it failed.
pub(crate) struct Reader<'a> {
    /// The pipelines.
    pub zio: &'a Zio,
    /// The key of the object set.
    pub crypt: &'a Crypt,
    /// Taken before the tree was looked at.
    pub lease: Lease,
    /// What stays in the block cache.
    pub keep: Scope,
    /// What goes to cache devices.
    pub second: Scope,
    /// The first block that could not be read.
    pub failed: Cell<Option<Spot>>,
}

impl<'a> Reader<'a> {
    /// `keep`: what stays in the block cache. Nothing of it goes to cache devices.
    pub fn new(zio: &'a Zio, crypt: &'a Crypt, keep: Scope) -> Reader<'a> {
        Reader {
            zio,
            crypt,
            lease: zio.lease(),
            keep,
            second: Scope::Nothing,
            failed: Cell::new(None),
        }
    }

    /// How this reads blocks that are in use since it was made.
    pub fn spec(&self) -> ReadSpec<'a> {
        ReadSpec {
            in_use: InUse::Since(self.lease),
            keep: self.keep,
            second: self.second,
            ..ReadSpec::with_key(self.crypt)
        }
    }

    /// The same, where the caller takes all blocks as a whole.
    pub fn whole(&self) -> ReadSpec<'a> {
        ReadSpec {
            whole: Whole::All,
            ..self.spec()
        }
    }

    /// Notes that a block could not be had, or was not what it must be.
    pub fn failed(&self, bp: &BlkPtr, blkid: u64) {
        self.failed.set(Some(Spot {
            level: bp.level(),
            blkid,
            birth: bp.logical_birth(),
            physical_birth: bp.physical_birth(),
        }));
    }

    /// Reads a block; an error is noted with its place.
    pub fn read(&self, bp: &BlkPtr, blkid: u64) -> Result<Block> {
        let r = self.zio.read_with(bp, &self.spec());
        if r.is_err() {
            self.failed(bp, blkid);
        }
        r
    }

    fn indirect(&self, bp: &BlkPtr, level: u32, shift: u8, blkid: u64) -> Result<Block> {
        let spec = ReadSpec {
            crypt: &Crypt::Plain,
            ..self.spec()
        };
        let r = indirect_fits(bp, level, shift).and_then(|()| self.zio.read_with(bp, &spec));
        if r.is_err() {
            self.failed(bp, blkid);
        }
        r
    }
}

/// What of an object is on disk; replaced whole by each sync.
#[derive(Clone, Debug)]
pub(crate) struct Synced {
    /// False for an object that was never written.
    pub exists: bool,
    /// Bytes of a data block.
    pub block_size: usize,
    /// log2 of the bytes of an indirect block.
    pub indblkshift: u8,
    /// Levels of the block tree.
    pub nlevels: u8,
    /// Number of the last block of level 0.
    pub maxblkid: u64,
    /// The pointers in the dnode.
    pub blkptr: Vec<BlkPtr>,
    /// Pointer to the spill block.
    pub spill: Option<BlkPtr>,
    /// Bytes.
    pub used: u64,
    /// [`disk::dnode::flags`].
    pub flags: u8,
}

impl Synced {
    /// The view of a dnode on disk.
    pub fn of(p: &DnodePhys) -> Synced {
        Synced {
            exists: true,
            block_size: p.block_size(),
            indblkshift: p.indblkshift,
            nlevels: p.nlevels,
            maxblkid: p.maxblkid,
            blkptr: p.blkptr.clone(),
            spill: p.spill,
            used: p.used_bytes(),
            flags: p.flags,
        }
    }

    /// The view of an object that was never written.
    pub fn none(nblkptr: usize, block_size: usize, indblkshift: u8) -> Synced {
        Synced {
            exists: false,
            block_size,
            indblkshift,
            nlevels: 1,
            maxblkid: 0,
            blkptr: vec![BlkPtr::HOLE; nblkptr],
            spill: None,
            used: 0,
            flags: 0,
        }
    }

    /// log2 of pointers per indirect block.
    pub fn epbs(&self) -> u32 {
        self.indblkshift as u32 - 7
    }

    /// Id of the ancestor at `level` of block `blkid`.
    pub fn ancestor(&self, level: u32, blkid: u64) -> u64 {
        blkid.checked_shr(level * self.epbs()).unwrap_or(0)
    }

    /// The pointer of a data block; a hole if there is none.
    pub fn lookup(&self, r: &Reader, blkid: u64) -> Result<BlkPtr> {
        self.pointer(r, 0, blkid)
    }

    /// The pointer of block `id` of `level` (below `nlevels`); a hole if there is none.
    pub fn pointer(&self, r: &Reader, level: u8, id: u64) -> Result<BlkPtr> {
        let (top, bottom) = (u32::from(self.nlevels) - 1, u32::from(level));
        let above = |level: u32| self.ancestor(level - bottom, id);
        let Ok(i) = usize::try_from(above(top.max(bottom))) else {
            return Ok(BlkPtr::HOLE);
        };
        let Some(mut bp) = self.blkptr.get(i).copied() else {
            return Ok(BlkPtr::HOLE);
        };
        for level in (bottom + 1..=top).rev() {
            if bp.is_hole() {
                return Ok(bp);
            }
            let b = r.indirect(&bp, level, self.indblkshift, above(level))?;
            let i = above(level - 1) & ((1 << self.epbs()) - 1);
            bp = BlkPtr::at(&b, i as usize)?;
        }
        Ok(bp)
    }

    /// A data block, `block_size` long, zeros for a hole and a redacted block.
    pub fn read(&self, r: &Reader, blkid: u64) -> Result<Block> {
        let bp = self.lookup(r, blkid)?;
        if reads_as_zeros(&bp) {
            return Ok(Arc::new(vec![0; self.block_size]));
        }
        let b = r.read(&bp, blkid)?;
        if b.len() != self.block_size {
            r.failed(&bp, blkid);
            return Err(Error::damaged(format!(
                "block {blkid} of {} bytes in an object of {}: {bp:?}",
                b.len(),
                self.block_size
            )));
        }
        Ok(b)
    }

    /// First block at or after `from` that is data (`data`) or hole, up to `maxblkid`.
    pub fn seek(&self, r: &Reader, from: u64, data: bool) -> Result<Option<u64>> {
        let mut blk = from;
        while blk <= self.maxblkid {
            let (is_data, next) = self.extent(r, blk)?;
            if is_data == data {
                return Ok(Some(blk));
            }
            blk = next;
        }
        Ok(None)
    }

    /// Whether `blk` is data, and the first block after it that may differ.
    fn extent(&self, r: &Reader, blk: u64) -> Result<(bool, u64)> {
        let top = self.nlevels as u32 - 1;
        let mut bp = match self.blkptr.get(self.ancestor(top, blk) as usize) {
            Some(bp) => *bp,
            None => return Ok((false, u64::MAX)),
        };
        for level in (0..=top).rev() {
            if bp.is_hole() {
                let next = (self.ancestor(level, blk) + 1)
                    .checked_shl(level * self.epbs())
                    .filter(|n| *n > blk)
                    .unwrap_or(u64::MAX);
                return Ok((false, next));
            }
            if level == 0 {
                break;
            }
            let b = r.indirect(&bp, level, self.indblkshift, self.ancestor(level, blk))?;
            let i = self.ancestor(level - 1, blk) & ((1 << self.epbs()) - 1);
            bp = BlkPtr::at(&b, i as usize)?;
        }
        Ok((true, blk + 1))
    }
}

/// Reads an indirect block and checks that it is one of that level.
pub(crate) fn read_indirect(zio: &Zio, bp: &BlkPtr, level: u32, shift: u8) -> Result<Block> {
    indirect_fits(bp, level, shift)?;
    zio.read(bp)
}

pub(crate) fn indirect_fits(bp: &BlkPtr, level: u32, shift: u8) -> Result<()> {
    if bp.level() as u32 != level || bp.lsize() != 1 << shift {
        return Err(Error::damaged(format!(
            "expected an indirect block of level {level}: {bp:?}"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::testing::Rig;
    use crate::{NewObject, WritePolicy};
    use disk::{os_type, ObjType};

    #[test]
    fn holes_keep_their_birth_when_the_tree_grows() {
        let rig = Rig::new(os_type::OTHER, 1 << 26, WritePolicy::default());
        let tx = rig.tx();
        let new = NewObject {
            obj_type: ObjType::PLAIN_OTHER,
            block_size: 512,
            indblkshift: 10,
            ..NewObject::default()
        };
        let dn = rig.os.alloc(&tx, &new).unwrap();
        dn.write(&tx, 0, &[7; 1000]).unwrap();
        drop(tx);
        rig.sync();
        let tx = rig.tx();
        dn.free_range(&tx, 0, 1024).unwrap();
        drop(tx);
        let freed = rig.sync();
        assert_eq!(dn.info().nlevels, 1);
        // Two levels more at once.
        let tx = rig.tx();
        dn.write(&tx, 512 * 100, &[7; 10]).unwrap();
        drop(tx);
        rig.sync();
        assert!(dn.info().nlevels > 2);
        let s = dn.read_lock().s.clone();
        for blkid in [0, 1] {
            let bp = s
                .lookup(
                    &super::Reader::new(&rig.dmu.zio, &super::Crypt::Plain, super::Scope::All),
                    blkid,
                )
                .unwrap();
            assert!(bp.is_hole());
            assert_eq!(bp.logical_birth(), freed, "block {blkid}");
        }
    }
}
