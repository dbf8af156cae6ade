//! Reading the blocks of an object: dirty ones from memory, the others through the block cache.

use super::{Buf, Dnode, Inner, MAX_TURNS, SPILL};
use crate::block_spec::spec_for;
use crate::content::Content;
use crate::tree::{reads_as_zeros, Reader, Spot};
use crate::tx::Damage;
use base::{Block, Error, RangeSet, Result};
use disk::{BlkPtr, Compression};
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::Arc;
use zio::{ReadSpec, Whole};

impl Dnode {
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
        // No txg ends any more: waiting for one is in vain, and the blocks are not to blame.
        if let Some(why) = self.dmu.stopped() {
            return Err(why);
        }
        if let Some(spot) = at {
            if spot.physical_birth > self.dmu.synced_txg() && *turns < MAX_TURNS {
                // The txg under way writes it anew in the same place; the new pointer follows.
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
        let damage = Damage {
            objset: self.os.upgrade().map_or(0, |os| os.id()),
            object: self.object,
            level: i64::from(spot.level),
            blkid: spot.blkid,
            birth: spot.birth,
        };
        self.dmu.damaged(&damage, e.cause());
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
                // The block size was changed in a txg not yet written: only block 0 exists.
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

    /// Reads a block that was let go of; `None`: it was changed meanwhile, or its txg is on disk.
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
    pub(super) fn bring_back(&self, blkid: u64) -> Result<()> {
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
                self.dmu.add_content(b.txg, data.len() as u64);
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
    pub(super) fn blocks(
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
                _ if reads_as_zeros(bp) => Arc::new(vec![0; size]),
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

    pub(super) fn is_hole(&self, blkid: u64) -> Result<bool> {
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

    /// The pointer of a data block as of the last sync; a hole if there is none.
    pub fn block_pointer(&self, blkid: u64) -> Result<BlkPtr> {
        let r = self.reader();
        let s = self.read_lock().s.clone();
        s.lookup(&r, blkid)
    }

    /// The pointer of the spill block as of the last sync.
    pub fn spill_pointer(&self) -> Option<BlkPtr> {
        self.read_lock().s.spill
    }

    /// Birth of a block as of the last sync; see [`Objset::birth_of`].
    pub(crate) fn pointer_of(&self, level: i64, blkid: u64) -> Result<Option<BlkPtr>> {
        let r = self.reader();
        let s = self.read_lock().s.clone();
        let bp = match (blkid, u8::try_from(level)) {
            (SPILL, _) => s.spill.unwrap_or(BlkPtr::HOLE),
            (_, Ok(level)) if level < s.nlevels => s.pointer(&r, level, blkid)?,
            _ => BlkPtr::HOLE,
        };
        Ok((!bp.is_hole()).then_some(bp))
    }

    /// Whether blocks of zeros are stored as holes: those of data are, if they are compressed.
    fn makes_holes(&self) -> bool {
        let shape = self.read_lock().f.shape();
        let Ok(os) = self.objset() else {
            return false;
        };
        let spec = spec_for(&os.policy(), 1, &shape, shape.obj_type, 0, false);
        spec.compress != Compression::OFF
    }

    /// The first byte at or after `offset` that is data (`data`) or in a hole; `None` if there is
    /// none before the end of the last block. Block granularity. A dirty block of zeros counts as the hole that compression will
    /// make of it, every other dirty block as data.
    pub fn seek(&self, offset: u64, data: bool) -> Result<Option<u64>> {
        let r = self.reader();
        let makes_holes = self.makes_holes();
        let (s, size, maxblkid, over) = {
            let i = self.read_lock();
            let mut dirty = RangeSet::new();
            let mut freed = i.syncing_frees.clone();
            for p in i.pend.iter() {
                for (a, b) in p.frees.iter() {
                    freed.insert(a, b);
                }
            }
            for (k, b) in &i.bufs {
                let over = match makes_holes && b.data.is_zero() {
                    true => &mut freed,
                    false => &mut dirty,
                };
                over.insert(*k, k + 1);
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
                            // Behind the last block on disk is nothing that is not dirty.
                            (true, h.unwrap_or(s.maxblkid + 1).min(limit))
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
}
