//! Applying send streams: objects with the numbers and shape they have at the sender, and blocks that are stored
//! in the form in which they arrive.
//!
//! A block that comes in its stored form is written to its place at once, in the open txg, like one that
//! is written early ([`crate::write_early`]); the sync of the txg only links it. Nothing is decompressed,
//! compressed or encrypted on the way.

use crate::block_spec::{spec_for, with_nonce};
use crate::content::Content;
use crate::dnode::Spill;
use crate::objset::Objset;
use crate::shape::{DnodeSeal, NewObject, WritePolicy};
use crate::tx::Dmu;
use crate::tx::Tx;
use crate::Dnode;
use base::mutation::{mutated, Mutation};
use base::sync::MutexExt;
use base::{bail, Block, Error, Kind, Result};
use disk::crypt::OBJSET_MAC_SIZE;
use disk::dnode::{DNODES_PER_BLOCK, DNODE_BLOCK};
use disk::objset::{ObjsetPhys, ZIL_HEADER_SIZE};
use disk::objset::{PROJECTQUOTA_COMPLETE, USERACCT_COMPLETE, USEROBJACCT_COMPLETE};
use disk::{BlkPtr, ObjType};
use disk::{Checksum, Compression, DnodePhys};
use std::sync::Arc;
use zio::Crypt;
use zio::{Prepared, StoredForm};

/// Flags that say that owners are charged for all objects.
const ACCOUNTED: u64 = USERACCT_COMPLETE | USEROBJACCT_COMPLETE | PROJECTQUOTA_COMPLETE;

/// What a raw stream says of the meta-dnode.
#[derive(Clone, Copy, Debug, Default)]
pub struct RawMeta {
    /// Levels of its block tree.
    pub nlevels: u8,
    /// log2 of the bytes of an indirect block.
    pub indblkshift: u8,
    /// Number of its last block.
    pub maxblkid: u64,
    /// Number of the checksum in the dnode.
    pub checksum: Checksum,
    /// Number of the compression in the dnode.
    pub compress: Compression,
}

/// A block in its stored form.
pub struct StoredBlock {
    /// Number of the block in its object.
    pub blkid: u64,
    /// Bytes of the block as its readers see it.
    pub lsize: usize,
    /// The stored bytes.
    pub data: Block,
    /// Compression, encryption and byte order of `data`.
    pub form: StoredForm,
}

impl Objset {
    /// Objects, by number, that lie in `slots` slots from `object` on, in part or whole.
    ///
    /// Errors: damage of a block of dnodes.
    pub fn objects_in(&self, object: u64, slots: u64) -> Result<Vec<u64>> {
        let end = object.saturating_add(slots);
        let mut out = Vec::new();
        for blk in object / DNODES_PER_BLOCK..end.div_ceil(DNODES_PER_BLOCK) {
            self.in_block(blk, &mut |o, have| {
                if o < end && o + have > object {
                    out.push(o);
                }
                o < end
            })?;
        }
        Ok(out)
    }
}

impl Objset {
    /// A new object set that a raw stream fills: without its key, of which the format has that version.
    pub fn create_raw(
        dmu: &Arc<Dmu>,
        id: u64,
        tx: &Tx,
        os_type: u64,
        size: usize,
        policy: WritePolicy,
        (version, raw): (u64, RawMeta),
    ) -> Result<Arc<Objset>> {
        if !(1..=15).contains(&raw.nlevels) || !(10..=24).contains(&raw.indblkshift) {
            bail!(Invalid, "a meta-dnode that cannot be");
        }
        let p = ObjsetPhys {
            meta: DnodePhys {
                obj_type: ObjType::DNODE,
                indblkshift: raw.indblkshift,
                nlevels: raw.nlevels,
                checksum: raw.checksum,
                compress: raw.compress,
                maxblkid: raw.maxblkid,
                datablkszsec: (DNODE_BLOCK / 512) as u16,
                slots: 1,
                blkptr: vec![BlkPtr::HOLE; 3],
                ..DnodePhys::default()
            },
            zil_header: [0; ZIL_HEADER_SIZE],
            os_type,
            os_flags: 0,
            macs: [0; 64],
            special: [None, None, None],
            size,
        };
        let crypt = Crypt::Raw(version);
        let os = Self::build(dmu, id, BlkPtr::HOLE, p, policy, false, 0, crypt);
        os.touch_header(tx);
        Ok(os)
    }

    /// Sets what a raw stream says of the object set: the number of the last block of dnodes, and the MAC
    /// that goes with every machine. Owners are not charged any more.
    ///
    /// Errors: invalid, if the meta-dnode has another shape.
    pub fn set_raw(&self, tx: &Tx, raw: &RawMeta, mac: &[u8; OBJSET_MAC_SIZE]) -> Result<()> {
        {
            let mut m = self.meta.write_lock();
            if m.s.nlevels != raw.nlevels || m.f.indblkshift != raw.indblkshift {
                bail!(
                    Invalid,
                    "the object set has another structure than that of the stream"
                );
            }
            m.f.maxblkid = raw.maxblkid;
            m.f.checksum = raw.checksum;
            m.f.compress = raw.compress;
        }
        {
            let mut s = self.lock_state();
            s.macs = [0; 2 * OBJSET_MAC_SIZE];
            s.macs[..OBJSET_MAC_SIZE].copy_from_slice(mac);
            if !mutated(Mutation::RawAccountsKept) {
                s.os_flags &= !ACCOUNTED;
            }
        }
        self.touch_header(tx);
        Ok(())
    }

    /// Sets how the block of dnodes with that number is sealed. It is written, also if none of its dnodes changes.
    ///
    /// Errors: invalid, if there is no such block by what [`Objset::set_raw`] was told.
    pub fn set_raw_seal(&self, tx: &Tx, blk: u64, seal: DnodeSeal) -> Result<()> {
        if blk > self.meta.read_lock().f.maxblkid {
            bail!(Invalid, "block {blk} of dnodes is behind the last one");
        }
        self.raw_seals.acquire().insert(blk, seal);
        self.touch_header(tx);
        Ok(())
    }

    /// Levels and indirect shift of the meta-dnode.
    pub fn meta_shape(&self) -> (u8, u8) {
        let m = self.meta.read_lock();
        (m.s.nlevels, m.f.indblkshift)
    }
}

impl Dnode {
    /// Block pointers the dnode has room for.
    pub fn pointer_slots(&self) -> u8 {
        self.read_lock().f.nblkptr
    }

    /// Makes an object what `new` says, as one that was made anew under its number: its content goes if
    /// the size of its blocks changes. Slots stay as they are.
    ///
    /// Errors: invalid, if it needs other slots or fewer block pointers than there are: such an object is
    /// freed and made again.
    pub fn reshape(&self, tx: &Tx, new: &NewObject) -> Result<()> {
        let want = self.objset()?.shape_of(new)?;
        let (now, size) = {
            let i = self.read_lock();
            ((i.f.slots, i.f.nblkptr), i.f.block_size)
        };
        // A spill block that stays needs its pointer beside what is new.
        let taken = 64 + 128 * usize::from(want.nblkptr) + want.bonus.len();
        let spill = if self.has_spill() { 128 } else { 0 };
        let fits = taken + spill <= usize::from(want.slots) * 512;
        if now.0 != want.slots || now.1 > want.nblkptr || !fits {
            bail!(Invalid, "object {}: its dnode changes", self.object());
        }
        if let Some(raw) = &new.raw {
            let (levels, shift) = {
                let i = self.read_lock();
                (i.s.nlevels, i.f.indblkshift)
            };
            // A tree grows, but never into another shape.
            if levels > raw.nlevels || levels > 1 && shift != new.indblkshift {
                bail!(Invalid, "object {}: its tree changes", self.object());
            }
        }
        if size != want.block_size {
            self.free_range(tx, 0, u64::MAX)?;
            self.set_block_size(tx, want.block_size)?;
        } else if new.raw.is_some() {
            // Once the object ends earlier, nothing finds what is behind its end.
            let end = want.maxblkid.saturating_add(1).saturating_mul(size as u64);
            self.free_range(tx, end, u64::MAX - end)?;
        }
        let mut i = self.write_lock();
        self.touch(&mut i, tx)?;
        i.f.obj_type = want.obj_type;
        i.f.bonus_type = want.bonus_type;
        i.f.checksum = want.checksum;
        i.f.compress = want.compress;
        i.f.nblkptr = want.nblkptr;
        i.f.nlevels = want.nlevels;
        i.f.raw_bonus = want.raw_bonus;
        if new.raw.is_some() {
            i.f.indblkshift = want.indblkshift;
            i.f.maxblkid = want.maxblkid;
        }
        drop(i);
        self.set_bonus(tx, &want.bonus)
    }

    /// Writes blocks in their stored form to places of their own, in one batch. False, for each, if it got
    /// none: the caller has to write its content, or to fail.
    ///
    /// Errors: those of the devices; nothing was changed then.
    pub fn write_stored(&self, tx: &Tx, blocks: &[StoredBlock]) -> Result<Vec<bool>> {
        let policy = self.objset()?.policy();
        let shape = self.read_lock().f.shape();
        let spec = with_nonce(
            spec_for(&policy, 1, &shape, shape.obj_type, 0, false),
            &self.crypt,
        );
        let mut ready: Vec<Prepared> = Vec::with_capacity(blocks.len());
        for b in blocks {
            ready.push(
                self.dmu
                    .zio
                    .stored(&spec, b.data.clone(), b.lsize, &b.form)?,
            );
        }
        let list: Vec<_> = ready.iter().map(|p| (&spec, p)).collect();
        let mut out = Vec::with_capacity(blocks.len());
        let mut failed = None;
        let mut done = Vec::with_capacity(blocks.len());
        for r in self.dmu.zio.write_through(&list, tx.txg()) {
            match r {
                Ok(bp) => done.push(bp),
                Err(e) => {
                    failed.get_or_insert(e);
                    done.push(None);
                }
            }
        }
        if let Some(e) = failed {
            for bp in done.into_iter().flatten() {
                self.dmu.zio.free_space(&bp, tx.txg())?;
            }
            return Err(e);
        }
        let mut bytes = 0;
        for (b, bp) in blocks.iter().zip(done) {
            out.push(bp.is_some());
            if let Some(bp) = bp {
                self.link(tx, b.blkid, bp)?;
                bytes += b.data.len() as u64;
            }
        }
        self.dmu.add_stored(tx.txg(), bytes);
        Ok(out)
    }

    /// Writes a spill block in its stored form. False if it got no place.
    pub fn write_stored_spill(&self, tx: &Tx, block: &StoredBlock) -> Result<bool> {
        let policy = self.objset()?.policy();
        let (shape, ty) = {
            let i = self.read_lock();
            Self::room_for_spill(&i)?;
            let shape = i.f.shape();
            (shape, i.f.bonus_type)
        };
        let spec = with_nonce(spec_for(&policy, 1, &shape, ty, 0, true), &self.crypt);
        let zio = &self.dmu.zio;
        let ready = zio.stored(&spec, block.data.clone(), block.lsize, &block.form)?;
        let placed = zio.write_through(&[(&spec, &ready)], tx.txg()).pop();
        let Some(bp) = placed.unwrap_or(Ok(None))? else {
            return Ok(false);
        };
        let mut i = self.write_lock();
        self.touch(&mut i, tx)?;
        self.unplace_spill(&mut i, tx)?;
        i.pend[tx.txg()].spill = true;
        i.spill = Spill::Placed(Box::new(bp), tx.txg());
        Ok(true)
    }

    /// Makes a block one that is wholly in its pointer: `data` in the compression `compress`.
    pub fn write_embedded(
        &self,
        tx: &Tx,
        blkid: u64,
        lsize: usize,
        compress: Compression,
        data: &[u8],
    ) -> Result<()> {
        let ty = self.read_lock().f.obj_type;
        if data.is_empty() || data.len() > disk::blkptr::EMBEDDED_MAX || lsize == 0 {
            bail!(Invalid, "embedded block of {} bytes", data.len());
        }
        let bp = BlkPtr::embedded(ty, 0, lsize, compress, data, tx.txg());
        self.link(tx, blkid, bp)
    }

    /// Notes that the sender left a block out.
    pub fn redact(&self, tx: &Tx, blkid: u64) -> Result<()> {
        let (ty, size) = {
            let i = self.read_lock();
            (i.f.obj_type, i.f.block_size)
        };
        self.link(tx, blkid, BlkPtr::redacted(ty, 0, size, tx.txg()))
    }

    /// The block is what `bp`, made in this txg, says.
    fn link(&self, tx: &Tx, blkid: u64, bp: BlkPtr) -> Result<()> {
        let mut i = self.write_lock();
        self.touch(&mut i, tx)?;
        self.unplace(&mut i, blkid)?;
        i.put(blkid, Content::Stored(Box::new(bp)), tx.txg());
        match i.bufs.get_mut(&blkid) {
            Some(b) => b.placed = Some(Box::new(bp)),
            None => return Err(Error::from(Kind::Stale)),
        }
        self.mark(&mut i, tx, blkid, 0);
        Ok(())
    }

    /// Sets the number of the last block, which says where a file that ends with a hole ends.
    pub fn set_max_block(&self, tx: &Tx, blkid: u64) -> Result<()> {
        let mut i = self.write_lock();
        self.touch(&mut i, tx)?;
        i.f.maxblkid = blkid;
        Ok(())
    }

    /// Whether the object has a spill block.
    pub fn has_spill(&self) -> bool {
        let i = self.read_lock();
        match &i.spill {
            Spill::Synced => i.s.spill.is_some(),
            Spill::Removed(_) => false,
            Spill::Data(..) | Spill::Placed(..) => true,
        }
    }

    /// Type of the object's data.
    pub fn obj_type(&self) -> ObjType {
        self.read_lock().f.obj_type
    }
}
