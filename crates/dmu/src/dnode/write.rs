//! Changing the blocks of an object in an open txg.

use super::{Dnode, Inner, BLOCK_COST, LEAST_SPACE};
use crate::content::Content;
use crate::tx::Tx;
use base::sync::WriteGuard;
use base::{bail, Block, Data, Error, Kind, Result};
use std::sync::Arc;

impl Dnode {
    /// Writes `data` at `offset`. Whole blocks and known holes are never read; the missing part of
    /// other partial blocks is fetched when the txg is written. Whether it can be read,
    /// [`Dnode::check_edges`] tells before, and `UnreadRests::read` afterwards.
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
        let mut parts: Vec<u64> = Vec::new();
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
                if c.lacks_old() && i.unread.insert(blkid) {
                    parts.push(blkid);
                }
                i.put(blkid, c, tx.txg());
            }
            self.mark(&mut i, tx, blkid, before);
            done += n;
        }
        drop(i);
        if !parts.is_empty() {
            self.objset()?.unread_rests().add(self, &parts, size);
        }
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
    fn lock_with_edges(&self, start: u64, end: u64) -> Result<WriteGuard<'_, Inner>> {
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
        if !self.is_hurt() {
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

    /// The block is about to change: a place it was given in this txg is given back.
    pub(crate) fn unplace(&self, i: &mut Inner, blkid: u64) -> Result<()> {
        base::mutation::panic_point("giving back the place of a block");
        if let Some(b) = i.bufs.get_mut(&blkid) {
            if let Some(bp) = b.placed.as_deref() {
                let txg = bp.logical_birth();
                if !bp.is_embedded() {
                    self.dmu.zio.cache.remove(bp);
                    // Nobody else can refer to what was written in the open txg: no table is
                    // asked.
                    self.dmu.zio.free_space(bp, txg)?;
                    self.dmu.gave_back(txg, bp.lsize() as u64);
                }
                b.placed = None;
            }
        }
        Ok(())
    }

    /// The block was changed in the transaction's txg; `before` bytes of it were in memory until
    /// then. Returns the memory that it takes more, bytes.
    pub(crate) fn mark(&self, i: &mut Inner, tx: &Tx, blkid: u64, before: usize) -> u64 {
        base::mutation::panic_point("marking a block dirty");
        let held = i.bufs.get(&blkid).map_or(0, |b| b.data.held());
        let more = match i.pend[tx.txg()].blocks.insert(blkid) {
            true => {
                if let Some(os) = self.os.upgrade() {
                    os.add_space(tx.txg(), i.f.block_size.max(LEAST_SPACE) as u64);
                }
                self.dmu.add_content(tx.txg(), i.f.block_size as u64);
                held + BLOCK_COST
            }
            false => held.saturating_sub(before),
        };
        self.dmu.add_dirty(tx.txg(), more as u64);
        i.f.maxblkid = i.f.maxblkid.max(blkid);
        more as u64
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

    pub(super) fn change<R, F: FnOnce(&mut Vec<u8>) -> R>(
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
        let more = self.mark(i, tx, blkid, before);
        self.dmu.add_in_place(tx.txg(), more);
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
            let p = &mut i.pend[tx.txg()];
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
    pub(super) fn zero(&self, tx: &Tx, offset: u64, len: u64) -> Result<()> {
        let size = self.read_lock().f.block_size as u64;
        if self.is_hole(offset / size)? {
            return Ok(());
        }
        self.write(tx, offset, &vec![0; len as usize])
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
}
