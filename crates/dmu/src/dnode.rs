//! One object: its open view (fields, dirty blocks) over its synced view.

use crate::ahead::Streams;
use crate::content::Content;
use crate::damage::Checked;
use crate::objset::Objset;
use crate::reading::Reading;
use crate::tree::{Reader, Spot, Synced};
use crate::tx::{Damage, Dmu, Tx};
use base::sync::RwLockExt;
use base::{bail, Block, Data, Error, Kind, RangeSet, Result, Txg};
use disk::{BlkPtr, DnodePhys, ObjType};
use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak};
use zio::{Crypt, ReadSpec, Whole};

/// Memory that a dirty object takes from the change to the end of its group: open and synced view,
/// what the sync takes over, the new dnode, its share of the blocks above; bytes.
const OBJECT_COST: u64 = 4096;
/// The same for a dirty block beside its content.
const BLOCK_COST: usize = 512;

/// Space that a dirty object takes on disk for itself and its share of the trees, logical bytes.
const OBJECT_SPACE: u64 = 4096;
/// No block takes less: that is the smallest unit of most devices.
const LEAST_SPACE: usize = 4096;

/// What callers may know of an object.
#[derive(Clone, Copy, Debug)]
pub struct Info {
    pub obj_type: ObjType,
    pub bonus_type: ObjType,
    pub block_size: usize,
    pub max_blkid: u64,
    pub slots: u8,
    /// Bytes on disk as of the last sync.
    pub used: u64,
    pub nlevels: u8,
    pub indblkshift: u8,
}

/// The fields of a dnode as the open group sees them.
#[derive(Clone, Debug)]
pub(crate) struct Fields {
    /// False once the object has been freed.
    pub allocated: bool,
    pub obj_type: ObjType,
    pub bonus_type: ObjType,
    pub indblkshift: u8,
    pub nblkptr: u8,
    pub checksum: u8,
    pub compress: u8,
    pub block_size: usize,
    pub maxblkid: u64,
    pub slots: u8,
    pub bonus: Vec<u8>,
}

/// A dirty block.
pub(crate) struct Buf {
    /// Everything since the block was last on disk. What is missing is fetched when somebody reads
    /// the block or the group is written.
    pub data: Content,
    /// Newest group it is dirty in.
    pub txg: Txg,
    /// Written to its final place in group `txg` already, as it is now (whole).
    pub placed: Option<Box<BlkPtr>>,
}

/// A dirty block taken over by a sync.
pub(crate) struct TakenBlock {
    pub blkid: u64,
    pub data: Content,
    pub placed: Option<Box<BlkPtr>>,
}

/// Changes of one group.
#[derive(Default)]
pub(crate) struct Pending {
    pub dirty: bool,
    pub blocks: BTreeSet<u64>,
    /// Block ids freed, half-open; applied before `blocks`.
    pub frees: RangeSet,
    pub spill: bool,
}

/// Spill block of the open view.
#[derive(Clone)]
pub(crate) enum Spill {
    /// As on disk.
    Synced,
    Removed(Txg),
    Data(Block, Txg),
}

pub(crate) struct Inner {
    pub f: Fields,
    pub bufs: BTreeMap<u64, Buf>,
    pub pend: [Pending; 4],
    /// Frees of the group being written: still to be seen as holes.
    pub syncing_frees: RangeSet,
    pub spill: Spill,
    pub s: Arc<Synced>,
    /// Changes whenever a clean block may have changed: a read that raced starts again.
    pub gen: u64,
}

/// An object. Obtained from [`Objset::hold`], shared as `Arc<Dnode>`.
pub struct Dnode {
    object: u64,
    os: Weak<Objset>,
    me: Weak<Dnode>,
    pub(crate) dmu: Arc<Dmu>,
    pub(crate) crypt: Crypt,
    pub(crate) reading: Arc<Reading>,
    pub(crate) inner: RwLock<Inner>,
    /// Some block of it could not be read: changes of parts of blocks look before they are accepted.
    hurt: AtomicBool,
    /// The way to the blocks of the last write was found readable.
    pub(crate) checked: Mutex<Checked>,
    kept: OnceLock<Box<dyn Any + Send + Sync>>,
    pub(crate) streams: Mutex<Streams>,
}

/// Most times a read is tried again because the group under way is writing the block anew.
const MAX_TURNS: u32 = 1000;
/// Block id of a spill block in reports of damage.
const SPILL: u64 = u64::MAX;

/// What a sync takes over from a dirty object.
pub(crate) struct Job {
    pub dn: Arc<Dnode>,
    pub f: Fields,
    pub blocks: Vec<TakenBlock>,
    pub frees: RangeSet,
    pub spill: Option<Option<Block>>,
    pub s: Arc<Synced>,
}

impl Dnode {
    pub(crate) fn new(
        object: u64,
        os: Weak<Objset>,
        dmu: Arc<Dmu>,
        crypt: &Crypt,
        reading: &Arc<Reading>,
        f: Fields,
        s: Synced,
    ) -> Arc<Dnode> {
        Arc::new_cyclic(|me| Dnode {
            object,
            os,
            me: me.clone(),
            dmu,
            crypt: crypt.clone(),
            reading: reading.clone(),
            inner: RwLock::new(Inner {
                f,
                bufs: BTreeMap::new(),
                pend: Default::default(),
                syncing_frees: RangeSet::new(),
                spill: Spill::Synced,
                s: Arc::new(s),
                gen: 0,
            }),
            hurt: AtomicBool::new(false),
            checked: Mutex::default(),
            kept: OnceLock::new(),
            streams: Mutex::default(),
        })
    }

    pub(crate) fn from_phys(
        object: u64,
        os: Weak<Objset>,
        dmu: Arc<Dmu>,
        crypt: &Crypt,
        reading: &Arc<Reading>,
        p: &DnodePhys,
    ) -> Arc<Dnode> {
        let f = Fields {
            allocated: true,
            obj_type: p.obj_type,
            bonus_type: p.bonus_type,
            indblkshift: p.indblkshift,
            nblkptr: p.blkptr.len() as u8,
            checksum: p.checksum,
            compress: p.compress,
            block_size: p.block_size(),
            maxblkid: p.maxblkid,
            slots: p.slots,
            bonus: p.bonus.clone(),
        };
        Dnode::new(object, os, dmu, crypt, reading, f, Synced::of(p))
    }

    /// Reads its blocks as its dataset's properties say.
    pub(crate) fn reader(&self) -> Reader<'_> {
        Reader::new(&self.dmu.zio, &self.crypt, self.reading.keep())
    }

    pub(crate) fn weak(&self) -> Weak<Dnode> {
        self.me.clone()
    }

    pub(crate) fn me(&self) -> Option<Arc<Dnode>> {
        self.me.upgrade()
    }

    pub(crate) fn read_lock(&self) -> RwLockReadGuard<'_, Inner> {
        self.inner.acquire_read()
    }

    pub(crate) fn write_lock(&self) -> RwLockWriteGuard<'_, Inner> {
        self.inner.acquire_write()
    }

    /// Object number.
    pub fn object(&self) -> u64 {
        self.object
    }

    /// A lock for the room that knows the object's content. Objects whose numbers collide share it:
    /// whoever holds one must not ask for a second.
    pub fn lock(&self) -> &RwLock<()> {
        let os = self.os.upgrade().map_or(0, |os| os.id());
        let n =
            (self.object ^ os.wrapping_mul(0x9e37_79b9_7f4a_7c15)) % self.dmu.locks.len() as u64;
        &self.dmu.locks[n as usize]
    }

    /// What the room that knows the object's content keeps with it in memory. There is one such room
    /// for each object: asking for a second type is an error of the program.
    pub fn kept<T: Any + Default + Send + Sync>(&self) -> &T {
        let kept = self.kept.get_or_init(|| Box::<T>::default());
        kept.downcast_ref().expect("one type for each object")
    }

    /// The object set it belongs to.
    pub fn objset(&self) -> Result<Arc<Objset>> {
        self.os
            .upgrade()
            .ok_or_else(|| Error::new(Kind::Stale, "the dataset was closed"))
    }

    pub fn info(&self) -> Info {
        let i = self.read_lock();
        Info {
            obj_type: i.f.obj_type,
            bonus_type: i.f.bonus_type,
            block_size: i.f.block_size,
            max_blkid: i.f.maxblkid,
            slots: i.f.slots,
            used: i.s.used,
            nlevels: i.s.nlevels,
            indblkshift: i.f.indblkshift,
        }
    }

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
        i.f.slots as usize * 512
            - 64
            - 128 * i.f.nblkptr as usize
            - if with_spill { 128 } else { 0 }
    }

    /// Marks the object changed in the transaction's group.
    fn touch(&self, i: &mut Inner, tx: &Tx) -> Result<()> {
        base::mutation::panic_point("marking an object dirty");
        if !i.f.allocated {
            bail!(NotFound, "object {} was freed", self.object);
        }
        let p = &mut i.pend[tx.txg() as usize & 3];
        if !p.dirty {
            p.dirty = true;
            let me = self.me.upgrade().ok_or_else(|| Error::from(Kind::Stale))?;
            let os = self.objset()?;
            os.add_dirty(tx.txg(), me);
            os.add_space(tx.txg(), OBJECT_SPACE);
            // The dnode itself and its share of the trees above.
            self.dmu.add_dirty(tx.txg(), OBJECT_COST);
        }
        Ok(())
    }

    pub fn set_bonus(&self, tx: &Tx, bytes: &[u8]) -> Result<()> {
        let mut i = self.write_lock();
        let spill = match &i.spill {
            Spill::Synced => i.s.spill.is_some(),
            Spill::Removed(_) => false,
            Spill::Data(..) => true,
        };
        let room = i.f.slots as usize * 512
            - 64
            - 128 * i.f.nblkptr as usize
            - if spill { 128 } else { 0 };
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
    pub fn set_compress(&self, tx: &Tx, id: u8) -> Result<()> {
        let mut i = self.write_lock();
        self.touch(&mut i, tx)?;
        i.f.compress = id;
        Ok(())
    }

    /// Checksum of this object's data, 0 = as the dataset says.
    pub fn set_checksum(&self, tx: &Tx, id: u8) -> Result<()> {
        let mut i = self.write_lock();
        self.touch(&mut i, tx)?;
        i.f.checksum = id;
        Ok(())
    }

    /// A read failed. An error, if nothing that happened meanwhile explains it; otherwise it is to be
    /// tried again.
    pub(crate) fn read_failed(
        &self,
        e: Error,
        gen: u64,
        at: Option<Spot>,
        turns: &mut u32,
    ) -> Result<()> {
        if self.read_lock().gen != gen {
            return Ok(());
        }
        if let Some(spot) = at {
            if spot.physical_birth > self.dmu.synced_txg() && *turns < MAX_TURNS {
                // The group under way writes it anew in the same place; the new pointer follows.
                *turns += 1;
                std::thread::yield_now();
                return Ok(());
            }
            self.note_damage(&e, spot);
        }
        Err(e)
    }

    /// Tells of a block that cannot be read.
    pub(crate) fn note_damage(&self, e: &Error, spot: Spot) {
        if !e.is_damage() {
            return;
        }
        self.hurt.store(true, Ordering::Relaxed);
        self.dmu.damaged(&Damage {
            objset: self.os.upgrade().map_or(0, |os| os.id()),
            object: self.object,
            level: i64::from(spot.level),
            blkid: spot.blkid,
            birth: spot.birth,
        });
    }

    pub fn spill(&self) -> Result<Option<Block>> {
        let mut turns = 0;
        loop {
            let r = self.reader();
            let (bp, gen) = {
                let i = self.read_lock();
                match &i.spill {
                    Spill::Removed(_) => return Ok(None),
                    Spill::Data(b, _) => return Ok(Some(b.clone())),
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

    /// Replaces the spill block; `data` must be a multiple of 512 bytes, at most 128 KiB.
    pub fn set_spill(&self, tx: &Tx, data: Option<Vec<u8>>) -> Result<()> {
        let mut i = self.write_lock();
        if let Some(d) = &data {
            if d.is_empty() || d.len() % 512 != 0 || d.len() > base::OLD_MAX_BLOCK {
                bail!(Invalid, "spill block of {} bytes", d.len());
            }
            let room = i.f.slots as usize * 512 - 64 - 128 * i.f.nblkptr as usize - 128;
            if i.f.bonus.len() > room {
                bail!(
                    NoSpace,
                    "no room for a spill pointer beside {} bytes",
                    i.f.bonus.len()
                );
            }
        }
        self.touch(&mut i, tx)?;
        i.pend[tx.txg() as usize & 3].spill = true;
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

    /// One whole block; zeros if there is none.
    pub fn block(&self, blkid: u64) -> Result<Block> {
        let mut turns = 0;
        loop {
            let r = self.reader();
            let (s, gen, parts, size) = {
                let i = self.read_lock();
                let size = i.f.block_size;
                let parts = match i.bufs.get(&blkid) {
                    Some(Buf {
                        data: Content::Stored(bp),
                        ..
                    }) => {
                        let bp = **bp;
                        drop(i);
                        match self.fetch_stored(blkid, &bp, &r)? {
                            Some(b) => return Ok(b),
                            None => continue,
                        }
                    }
                    Some(b) if !b.data.needs_base() => return Ok(b.data.over(&[], size)),
                    Some(b) => Some(b.data.clone()),
                    None if i.is_known_hole(blkid) => {
                        return Ok(Arc::new(vec![0; size]));
                    }
                    None => None,
                };
                (i.s.clone(), i.gen, parts, size)
            };
            let base = match s.read(&r, blkid) {
                Ok(b) if b.len() == size => b,
                // The block size was changed in a group not yet written: only block 0 exists.
                Ok(b) => {
                    let mut v = b.to_vec();
                    v.resize(size, 0);
                    Arc::new(v)
                }
                Err(e) => {
                    self.read_failed(e, gen, r.failed.get(), &mut turns)?;
                    continue;
                }
            };
            if self.read_lock().gen == gen {
                return Ok(match parts {
                    Some(p) => p.onto(base, size),
                    None => base,
                });
            }
        }
    }

    /// Reads a block that was let go of; `None`: it was changed meanwhile, or its group is on disk.
    /// `r` was made before the pointer was looked up.
    fn fetch_stored(&self, blkid: u64, bp: &BlkPtr, r: &Reader) -> Result<Option<Block>> {
        match r.zio.read_many(std::slice::from_ref(bp), &r.whole()).pop() {
            // Its place may have been given back, and be another block's by now.
            _ if !self.is_stored_at(blkid, bp) => Ok(None),
            Some(Ok(b)) => Ok(Some(b)),
            Some(Err(e)) => {
                let spot = Spot {
                    level: 0,
                    blkid,
                    birth: bp.logical_birth(),
                    physical_birth: bp.physical_birth(),
                };
                self.note_damage(&e, spot);
                Err(e)
            }
            None => Err(Error::damaged("a block was not read")),
        }
    }

    fn is_stored_at(&self, blkid: u64, bp: &BlkPtr) -> bool {
        let i = self.read_lock();
        let b = i.bufs.get(&blkid);
        b.is_some_and(|b| b.data.stored() == Some(bp))
    }

    /// Takes a block that was let go of into memory again, as it must be before parts of it change.
    fn bring_back(&self, blkid: u64) -> Result<()> {
        loop {
            let reader = self.reader();
            let stored = |i: &Inner| i.bufs.get(&blkid).and_then(|b| b.data.stored().copied());
            let Some(bp) = stored(&self.read_lock()) else {
                return Ok(());
            };
            let Some(data) = self.fetch_stored(blkid, &bp, &reader)? else {
                continue;
            };
            let mut i = self.write_lock();
            let b = i.bufs.get_mut(&blkid);
            if let Some(b) = b.filter(|b| b.data.stored() == Some(&bp)) {
                self.dmu.add_dirty(b.txg, data.len() as u64);
                b.data = Content::Whole(data);
                return Ok(());
            }
        }
    }

    /// Makes a dirty block of which only parts are in memory, or nothing, whole.
    pub(crate) fn complete(&self, blkid: u64) -> Result<()> {
        let mut turns = 0;
        loop {
            self.bring_back(blkid)?;
            let r = self.reader();
            let (s, gen) = {
                let i = self.read_lock();
                match i.bufs.get(&blkid) {
                    Some(b) if b.data.lacks_old() => (i.s.clone(), i.gen),
                    Some(b) if b.data.stored().is_some() => continue,
                    _ => return Ok(()),
                }
            };
            let base = match s.read(&r, blkid) {
                Ok(b) => b,
                Err(e) => {
                    self.read_failed(e, gen, r.failed.get(), &mut turns)?;
                    continue;
                }
            };
            let mut i = self.write_lock();
            if i.gen != gen {
                continue;
            }
            let size = i.f.block_size;
            let b = i.bufs.get_mut(&blkid);
            if let Some(b) = b.filter(|b| b.data.lacks_old()) {
                self.dmu
                    .add_dirty(b.txg, (size - b.data.held().min(size)) as u64);
                b.data = Content::Whole(b.data.onto(base, size));
            }
            return Ok(());
        }
    }

    /// Blocks `first..=last` if all of them can be had without looking at changes in between: dirty
    /// ones from memory, the others in one batch. Of those in `whole` all is wanted. `None`: ask
    /// block by block.
    fn blocks(
        &self,
        first: u64,
        last: u64,
        whole: Range<u64>,
    ) -> Result<Option<(usize, Vec<Block>)>> {
        let reader = self.reader();
        let mut known = Vec::new();
        let (s, gen, size, mut out) = {
            let i = self.read_lock();
            if i.s.block_size != i.f.block_size {
                return Ok(None);
            }
            let zero = Arc::new(vec![0; i.f.block_size]);
            let mut out = Vec::with_capacity((last - first + 1) as usize);
            for blk in first..=last {
                out.push(match i.bufs.get(&blk) {
                    Some(b) if !b.data.needs_base() => Some(b.data.over(&[], i.f.block_size)),
                    Some(b) => match b.data.stored() {
                        Some(bp) => {
                            known.push((out.len(), *bp));
                            None
                        }
                        None => return Ok(None),
                    },
                    None if i.is_known_hole(blk) => Some(zero.clone()),
                    None => None,
                });
            }
            (i.s.clone(), i.gen, i.f.block_size, out)
        };
        let mut bps = Vec::new();
        let mut at = Vec::new();
        let mut stored = known.iter().peekable();
        for (n, slot) in out.iter().enumerate() {
            if let Some((_, bp)) = stored.next_if(|(k, _)| *k == n) {
                bps.push(*bp);
                at.push(n);
            } else if slot.is_none() {
                match s.lookup(&reader, first + n as u64) {
                    Ok(bp) => bps.push(bp),
                    Err(e) => {
                        self.read_failed(e, gen, reader.failed.get(), &mut 0)?;
                        return Ok(None);
                    }
                }
                at.push(n);
            }
        }
        let zio = &self.dmu.zio;
        let wanted_whole = |n: usize| {
            at.get(n)
                .is_some_and(|n| whole.contains(&(first + *n as u64)))
        };
        let spec = ReadSpec {
            whole: Whole::Where(&wanted_whole),
            ..reader.spec()
        };
        let got = zio.read_many(&bps, &spec);
        for ((n, bp), r) in at.into_iter().zip(&bps).zip(got) {
            out[n] = Some(match r {
                _ if bp.is_hole() => Arc::new(vec![0; size]),
                Ok(b) if b.len() == size => b,
                // What else is wrong is told by the way that goes block by block.
                Ok(_) => return Ok(None),
                Err(_) if known.iter().any(|(k, _)| *k == n) => return Ok(None),
                Err(e) => {
                    reader.failed(bp, first + n as u64);
                    self.read_failed(e, gen, reader.failed.get(), &mut 0)?;
                    return Ok(None);
                }
            });
        }
        let i = self.read_lock();
        let still = |(n, bp): &(usize, BlkPtr)| {
            let b = i.bufs.get(&(first + *n as u64));
            b.is_some_and(|b| b.data.stored() == Some(bp))
        };
        if i.gen != gen || !known.iter().all(still) {
            return Ok(None);
        }
        drop(i);
        Ok(out
            .into_iter()
            .collect::<Option<Vec<_>>>()
            .map(|v| (size, v)))
    }

    /// Copies `buf.len()` bytes from `offset`; zeros in holes and past the last block.
    pub fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        {
            // What was just written in part needs nothing from disk.
            let i = self.read_lock();
            let size = i.f.block_size as u64;
            let here = i.bufs.get(&(offset / size));
            if let Some(b) = here.and_then(|b| b.data.get((offset % size) as usize, buf.len())) {
                buf.copy_from_slice(b);
                return Ok(());
            }
        }
        let mut done = 0;
        self.read_blocks(offset, buf.len(), &mut |b, r| {
            let n = r.len();
            buf[done..done + n].copy_from_slice(&b[r]);
            done += n;
        })
    }

    /// Like [`Dnode::read`] without copying: `put` gets the blocks and what of them is meant, in order.
    pub fn read_blocks(
        &self,
        offset: u64,
        len: usize,
        put: &mut dyn FnMut(&Block, Range<usize>),
    ) -> Result<()> {
        if len == 0 {
            return Ok(());
        }
        let (size, blocks) = {
            let i = self.read_lock();
            (i.f.block_size as u64, i.f.maxblkid.saturating_add(1))
        };
        let (first, last) = (offset / size, (offset + len as u64 - 1) / size);
        self.stream(offset, len as u64, size, blocks);
        if last > first && last - first < 1024 {
            let whole = offset.div_ceil(size)..(offset + len as u64) / size;
            if let Some((size, blocks)) = self.blocks(first, last, whole)? {
                // Of another size than at the first look they may not be all.
                if (blocks.len() * size) as u64 >= offset % size as u64 + len as u64
                    && offset / size as u64 == first
                {
                    let (mut done, mut within) = (0, (offset % size as u64) as usize);
                    for b in blocks {
                        let n = (size - within).min(len - done);
                        put(&b, within..within + n);
                        done += n;
                        within = 0;
                        if done == len {
                            break;
                        }
                    }
                    return Ok(());
                }
            }
        }
        let mut done = 0;
        while done < len {
            let size = self.read_lock().f.block_size as u64;
            let at = offset + done as u64;
            let (blkid, within) = (at / size, (at % size) as usize);
            let n = (size as usize - within).min(len - done);
            let b = self.block(blkid)?;
            if b.len() < within + n {
                continue; // the block size changed between the two looks
            }
            put(&b, within..within + n);
            done += n;
        }
        Ok(())
    }

    /// Writes `data` at `offset`. Whole blocks and known holes are never read; the missing part of
    /// other partial blocks is fetched when the group is written.
    pub fn write<'a>(&self, tx: &Tx, offset: u64, data: impl Into<Data<'a>>) -> Result<()> {
        let data: Data<'a> = data.into();
        if data.is_empty() {
            return Ok(());
        }
        self.look_before(offset, data.len() as u64)?;
        if !tx.is_syncing() {
            self.check_write(offset, data.len() as u64)?;
        }
        // Copies are made before anybody is kept from the object.
        let size = self.read_lock().f.block_size;
        let ready = Self::whole_blocks(size, offset, data);
        let mut i = self.lock_with_edges(offset, offset + data.len() as u64)?;
        self.touch(&mut i, tx)?;
        // Of another size by now: made again.
        let size = i.f.block_size;
        let mut ready = match ready {
            (made_for, list) if made_for == size => list,
            _ => Self::whole_blocks(size, offset, data).1,
        }
        .into_iter();
        let mut done = 0;
        let mut whole = 0;
        while done < data.len() {
            let at = offset + done as u64;
            let (blkid, within) = (at / size as u64, (at % size as u64) as usize);
            let n = (size - within).min(data.len() - done);
            let part = || data.slice(done..done + n);
            let before = i.bufs.get(&blkid).map_or(0, |b| b.data.held());
            self.unplace(&mut i, blkid)?;
            if n == size {
                whole += n;
                let block = ready.next().unwrap_or_else(|| part().block());
                i.put(blkid, Content::Whole(block), tx.txg());
            } else if let Some(b) = i.bufs.get_mut(&blkid) {
                b.data.write(size, within, &part().bytes())?;
                b.txg = tx.txg();
            } else {
                let c = Content::partial(size, within, &part().bytes(), i.is_known_hole(blkid));
                i.put(blkid, c, tx.txg());
            }
            self.mark(&mut i, tx, blkid, before);
            done += n;
        }
        drop(i);
        if whole > 0 {
            self.dmu.add_streamed(tx.txg(), whole as u64);
        }
        if self.dmu.early.is_run(whole) && !tx.is_syncing() {
            let first = offset.div_ceil(size as u64);
            let blocks = first..first + (whole / size) as u64;
            self.objset()?.write_early(tx, self.weak(), blocks, size);
        }
        Ok(())
    }

    /// The lock, with the blocks that `start..end` begins and ends within in memory if they had been let
    /// go of.
    fn lock_with_edges(&self, start: u64, end: u64) -> Result<RwLockWriteGuard<'_, Inner>> {
        loop {
            let i = self.write_lock();
            let size = i.f.block_size as u64;
            let away = [start, end].into_iter().filter(|at| at % size != 0);
            let away = away.map(|at| at / size).find(|blk| {
                let b = i.bufs.get(blk);
                b.is_some_and(|b| b.data.stored().is_some())
            });
            let Some(blk) = away else {
                return Ok(i);
            };
            drop(i);
            self.bring_back(blk)?;
        }
    }

    /// The blocks of `size` bytes that data at `offset` fill, in order.
    fn whole_blocks(size: usize, offset: u64, data: Data) -> (usize, Vec<Block>) {
        let mut at = (offset.next_multiple_of(size as u64) - offset) as usize;
        let mut list = Vec::new();
        while at + size <= data.len() {
            list.push(data.slice(at..at + size).block());
            at += size;
        }
        (size, list)
    }

    /// Of an object known to be damaged, blocks that are to be changed in parts must be readable.
    fn look_before(&self, offset: u64, len: u64) -> Result<()> {
        if !self.hurt.load(Ordering::Relaxed) {
            return Ok(());
        }
        let size = self.read_lock().f.block_size as u64;
        let end = offset.saturating_add(len);
        for edge in [offset, end] {
            if edge % size != 0 {
                self.block(edge / size)?;
            }
        }
        Ok(())
    }

    /// The block is about to change: a place it was given in this group is given back.
    fn unplace(&self, i: &mut Inner, blkid: u64) -> Result<()> {
        base::mutation::panic_point("giving back the place of a block");
        if let Some(b) = i.bufs.get_mut(&blkid) {
            if let Some(bp) = b.placed.as_deref() {
                let txg = bp.logical_birth();
                self.dmu.zio.cache.remove(bp);
                // Nobody else can refer to what was written in the open group: no table is asked.
                self.dmu.zio.free_space(bp, txg)?;
                self.dmu.gave_back(txg, bp.lsize() as u64);
                b.placed = None;
            }
        }
        Ok(())
    }

    /// The block was changed in the transaction's group; `before` bytes of it were in memory until
    /// then.
    fn mark(&self, i: &mut Inner, tx: &Tx, blkid: u64, before: usize) {
        base::mutation::panic_point("marking a block dirty");
        let held = i.bufs.get(&blkid).map_or(0, |b| b.data.held());
        let more = match i.pend[tx.txg() as usize & 3].blocks.insert(blkid) {
            true => {
                if let Some(os) = self.os.upgrade() {
                    os.add_space(tx.txg(), i.f.block_size.max(LEAST_SPACE) as u64);
                }
                held + BLOCK_COST
            }
            false => held.saturating_sub(before),
        };
        self.dmu.add_dirty(tx.txg(), more as u64);
        i.f.maxblkid = i.f.maxblkid.max(blkid);
    }

    /// Read-modify-write of one block.
    pub fn modify<R>(&self, tx: &Tx, blkid: u64, f: impl FnOnce(&mut Vec<u8>) -> R) -> Result<R> {
        let mut f = Some(f);
        if !tx.is_syncing() {
            let size = self.read_lock().f.block_size as u64;
            self.check_write(blkid.saturating_mul(size), 1)?;
        }
        loop {
            let gen = {
                let mut i = self.write_lock();
                self.touch(&mut i, tx)?;
                if !i.bufs.contains_key(&blkid) && i.is_known_hole(blkid) {
                    let zero = Arc::new(vec![0; i.f.block_size]);
                    i.put(blkid, Content::Whole(zero), tx.txg());
                }
                if i.bufs.get(&blkid).is_some_and(|b| !b.data.needs_base()) {
                    return self.change(&mut i, tx, blkid, &mut f);
                }
                i.gen
            };
            let base = self.block(blkid)?;
            let mut i = self.write_lock();
            match i.bufs.get(&blkid) {
                Some(b) if b.data.needs_base() => {
                    drop(i);
                    self.complete(blkid)?;
                    i = self.write_lock();
                }
                Some(_) => {}
                None if i.gen != gen => continue,
                None => i.put(blkid, Content::Whole(base), tx.txg()),
            }
            if i.bufs.get(&blkid).is_some_and(|b| !b.data.needs_base()) {
                return self.change(&mut i, tx, blkid, &mut f);
            }
        }
    }

    fn change<R, F: FnOnce(&mut Vec<u8>) -> R>(
        &self,
        i: &mut Inner,
        tx: &Tx,
        blkid: u64,
        f: &mut Option<F>,
    ) -> Result<R> {
        self.unplace(i, blkid)?;
        let size = i.f.block_size;
        let (r, before) = match (i.bufs.get_mut(&blkid), f.take()) {
            (Some(b), Some(f)) => {
                b.txg = tx.txg();
                let before = b.data.held();
                let mut v = match std::mem::replace(&mut b.data, Content::Whole(Block::default())) {
                    Content::Whole(v) => v,
                    parts => parts.over(&[], size),
                };
                let bytes = Arc::make_mut(&mut v);
                let r = f(bytes);
                assert_eq!(bytes.len(), size, "a block must keep its size");
                b.data = Content::Whole(v);
                (r, before)
            }
            _ => return Err(Error::from(Kind::Stale)),
        };
        self.mark(i, tx, blkid, before);
        Ok(r)
    }

    /// Punches `[offset, offset + len)`: whole blocks become holes, partial ones are zeroed. `len`
    /// `u64::MAX` (or a range past the last block) also lowers the last block id.
    pub fn free_range(&self, tx: &Tx, offset: u64, len: u64) -> Result<()> {
        base::mutation::panic_point("freeing a range");
        let (size, maxblkid) = {
            let i = self.read_lock();
            (i.f.block_size as u64, i.f.maxblkid)
        };
        let object_end = (maxblkid + 1).saturating_mul(size);
        let end = offset.saturating_add(len);
        let to_end = end >= object_end;
        let end = end.min(object_end);
        if offset >= end {
            return Ok(());
        }
        if !tx.is_syncing() {
            self.check_free(offset, end - offset)?;
        }
        let first = offset.div_ceil(size);
        let last = if to_end { maxblkid + 1 } else { end / size };
        // Partial head and tail.
        let head_end = (first * size).min(end);
        if offset < head_end {
            self.zero(tx, offset, head_end - offset)?;
        }
        if !to_end && last >= first && last * size < end {
            self.zero(tx, last * size, end - last * size)?;
        }
        let mut i = self.write_lock();
        self.touch(&mut i, tx)?;
        if first < last {
            let gone: Vec<u64> = i.bufs.range(first..last).map(|(k, _)| *k).collect();
            for k in gone {
                self.unplace(&mut i, k)?;
                i.bufs.remove(&k);
            }
            let p = &mut i.pend[tx.txg() as usize & 3];
            let gone: Vec<u64> = p.blocks.range(first..last).copied().collect();
            for k in gone {
                p.blocks.remove(&k);
            }
            p.frees.insert(first, last);
            i.gen += 1;
        }
        if to_end && i.f.maxblkid >= first {
            i.f.maxblkid = first.saturating_sub(1);
        }
        Ok(())
    }

    /// Zeroes a range inside one block, unless it is a hole already.
    fn zero(&self, tx: &Tx, offset: u64, len: u64) -> Result<()> {
        let size = self.read_lock().f.block_size as u64;
        if self.is_hole(offset / size)? {
            return Ok(());
        }
        self.write(tx, offset, &vec![0; len as usize])
    }

    fn is_hole(&self, blkid: u64) -> Result<bool> {
        let mut turns = 0;
        loop {
            let r = self.reader();
            let (s, gen) = {
                let i = self.read_lock();
                if i.bufs.contains_key(&blkid) {
                    return Ok(false);
                }
                if i.is_known_hole(blkid) {
                    return Ok(true);
                }
                (i.s.clone(), i.gen)
            };
            match s.lookup(&r, blkid) {
                Ok(bp) => {
                    if self.read_lock().gen == gen {
                        return Ok(bp.is_hole());
                    }
                }
                Err(e) => self.read_failed(e, gen, r.failed.get(), &mut turns)?,
            }
        }
    }

    /// Birth of a block as of the last sync; see [`Objset::birth_of`].
    pub(crate) fn birth_of(&self, level: i64, blkid: u64) -> Result<Option<Txg>> {
        let r = self.reader();
        let s = self.read_lock().s.clone();
        let bp = match (blkid, u8::try_from(level)) {
            (SPILL, _) => s.spill.unwrap_or(BlkPtr::HOLE),
            (_, Ok(level)) if level < s.nlevels => s.pointer(&r, level, blkid)?,
            _ => BlkPtr::HOLE,
        };
        Ok((!bp.is_hole()).then(|| bp.logical_birth()))
    }

    /// Changes the block size of an object that has at most block 0; its content is kept.
    pub fn set_block_size(&self, tx: &Tx, size: usize) -> Result<()> {
        let size = base::roundup(size.max(512) as u64, 512) as usize;
        if size > base::MAX_BLOCK {
            bail!(Invalid, "block size {size}");
        }
        {
            // Growing what is whole in memory needs no copy.
            let mut i = self.write_lock();
            if i.f.block_size == size {
                return Ok(());
            }
            if i.f.maxblkid > 0 {
                bail!(Invalid, "object {} has more than one block", self.object);
            }
            let whole = i.bufs.get(&0).is_some_and(|b| b.data.whole().is_some());
            if whole && size > i.f.block_size {
                self.touch(&mut i, tx)?;
                self.unplace(&mut i, 0)?;
                let before = i.f.block_size;
                i.f.block_size = size;
                if let Some(b) = i.bufs.get_mut(&0) {
                    if let Content::Whole(v) = &mut b.data {
                        Arc::make_mut(v).resize(size, 0);
                    }
                    b.txg = tx.txg();
                }
                self.mark(&mut i, tx, 0, before);
                i.gen += 1;
                return Ok(());
            }
        }
        let hole = self.is_hole(0)?;
        let old = if hole { None } else { Some(self.block(0)?) };
        let mut i = self.write_lock();
        if i.f.block_size == size {
            return Ok(());
        }
        if i.f.maxblkid > 0 {
            bail!(Invalid, "object {} has more than one block", self.object);
        }
        self.touch(&mut i, tx)?;
        i.f.block_size = size;
        if let Some(old) = old {
            self.unplace(&mut i, 0)?;
            let mut v = match i.bufs.remove(&0) {
                Some(b) => b.data.over(&old, old.len()).to_vec(),
                None => old.to_vec(),
            };
            v.resize(size, 0);
            i.put(0, Content::Whole(Arc::new(v)), tx.txg());
            self.mark(&mut i, tx, 0, old.len());
        }
        i.gen += 1;
        Ok(())
    }

    /// The first byte at or after `offset` that is data (`data`) or in a hole; `None` if there is
    /// none before the end of the last block. Block granularity; dirty blocks count as data.
    pub fn seek(&self, offset: u64, data: bool) -> Result<Option<u64>> {
        let r = self.reader();
        let (s, size, maxblkid, over) = {
            let i = self.read_lock();
            let mut dirty = RangeSet::new();
            let mut freed = i.syncing_frees.clone();
            for p in &i.pend {
                for (a, b) in p.frees.iter() {
                    freed.insert(a, b);
                }
            }
            for k in i.bufs.keys() {
                dirty.insert(*k, k + 1);
            }
            (
                i.s.clone(),
                i.f.block_size as u64,
                i.f.maxblkid,
                (dirty, freed),
            )
        };
        let (dirty, freed) = over;
        let mut blk = offset / size;
        while blk <= maxblkid {
            let (is_data, next) = if dirty.contains(blk, blk + 1) {
                (true, blk + 1)
            } else {
                let limit = dirty.next_from(blk).map_or(maxblkid + 1, |(s, _)| s);
                if let Some((a, b)) = freed.next_from(blk).filter(|(a, _)| *a == blk) {
                    let _ = a;
                    (false, b.min(limit))
                } else {
                    let limit = freed.next_from(blk).map_or(limit, |(a, _)| a.min(limit));
                    // Asking for the other kind gives the end of this run.
                    let d = s.seek(&r, blk, true)?;
                    match d {
                        Some(d) if d == blk => {
                            let h = s.seek(&r, blk, false)?;
                            (true, h.unwrap_or(maxblkid + 1).min(limit))
                        }
                        Some(d) => (false, d.min(limit)),
                        None => (false, limit),
                    }
                }
            };
            if is_data == data {
                return Ok(Some(offset.max(blk * size)));
            }
            blk = next.max(blk + 1);
        }
        Ok(None)
    }

    /// True if some group not yet on disk changed the object.
    pub fn is_dirty(&self) -> bool {
        let i = self.read_lock();
        !i.bufs.is_empty() || i.pend.iter().any(|p| p.dirty) || !i.syncing_frees.is_empty()
    }

    /// True if it was freed, on disk or not yet.
    pub(crate) fn is_freed(&self) -> bool {
        !self.read_lock().f.allocated
    }

    // ---- for the sync --------------------------------------------------------------------------

    /// Takes over the changes of `txg`.
    pub(crate) fn take_job(self: &Arc<Self>, txg: Txg) -> Job {
        base::mutation::panic_point("taking over the changes of an object");
        let mut i = self.write_lock();
        let p = std::mem::take(&mut i.pend[txg as usize & 3]);
        let blocks = p
            .blocks
            .iter()
            .filter_map(|k| {
                i.bufs.get_mut(k).map(|b| TakenBlock {
                    blkid: *k,
                    data: b.data.clone(),
                    placed: b.placed.take(),
                })
            })
            .collect();
        for (a, b) in p.frees.iter() {
            i.syncing_frees.insert(a, b);
        }
        let spill = p.spill.then(|| match &i.spill {
            Spill::Data(b, _) => Some(b.clone()),
            _ => None,
        });
        Job {
            dn: self.clone(),
            f: i.f.clone(),
            blocks,
            frees: p.frees,
            spill,
            s: i.s.clone(),
        }
    }

    /// The group is written: the new tree becomes the synced view. `None`: the object is gone.
    pub(crate) fn apply(&self, txg: Txg, phys: Option<&DnodePhys>) {
        base::mutation::panic_point("an object that was written");
        let mut i = self.write_lock();
        i.s = Arc::new(match phys {
            Some(p) => Synced::of(p),
            None => Synced::none(i.f.nblkptr as usize, i.f.block_size, i.f.indblkshift),
        });
        i.group_over(txg);
    }

    /// The group could not write the object: what it changed is lost, the synced view stays.
    pub(crate) fn give_up(&self, txg: Txg) {
        let mut i = self.write_lock();
        i.group_over(txg);
    }

    /// Blocks up to `maxblkid` are still there though they were freed.
    pub(crate) fn keep_blocks(&self, maxblkid: u64) {
        let mut i = self.write_lock();
        i.f.maxblkid = i.f.maxblkid.max(maxblkid);
    }

    pub(crate) fn mark_freed(&self, tx: &Tx) -> Result<()> {
        let mut i = self.write_lock();
        self.touch(&mut i, tx)?;
        i.f.allocated = false;
        let all: Vec<u64> = i.bufs.keys().copied().collect();
        for k in all {
            self.unplace(&mut i, k)?;
        }
        i.bufs.clear();
        let p = &mut i.pend[tx.txg() as usize & 3];
        p.blocks.clear();
        i.gen += 1;
        Ok(())
    }

    pub(crate) fn touch_new(&self, tx: &Tx) -> Result<()> {
        let mut i = self.write_lock();
        self.touch(&mut i, tx)
    }
}

impl Inner {
    /// What group `txg` changed is no longer in memory only.
    fn group_over(&mut self, txg: Txg) {
        let again = self.pend[txg as usize & 3].blocks.clone();
        self.bufs.retain(|k, b| b.txg > txg || again.contains(k));
        match &self.spill {
            Spill::Removed(t) | Spill::Data(_, t)
                if *t <= txg && !self.pend[txg as usize & 3].spill =>
            {
                self.spill = Spill::Synced
            }
            _ => {}
        }
        self.syncing_frees.clear();
        self.gen += 1;
    }

    /// True if the block has no data anywhere, known without I/O. Only meaningful without a buf.
    fn is_known_hole(&self, blkid: u64) -> bool {
        !self.s.exists
            || blkid > self.s.maxblkid
            || self.syncing_frees.contains(blkid, blkid + 1)
            || self.pend.iter().any(|p| p.frees.contains(blkid, blkid + 1))
    }

    fn put(&mut self, blkid: u64, data: Content, txg: Txg) {
        self.bufs.insert(
            blkid,
            Buf {
                data,
                txg,
                placed: None,
            },
        );
    }
}
