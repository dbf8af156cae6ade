//! Writing the tree of an object bottom-up: indirect blocks, holes, freed subtrees.

use super::{Pass, Shape};
use crate::dnode::Dnode;
use crate::tree::{read_indirect, Spot, Synced};
use base::{bail, Error, RangeSet, Result, Txg};
use disk::{BlkPtr, ObjType, BP_SIZE};
use std::collections::BTreeMap;
use std::sync::Arc;
use zio::{Prepared, WriteSpec, Zio};

/// What changes of an object's level-0 blocks.
#[derive(Clone, Copy)]
pub(super) struct Changes<'a> {
    /// Block ids that are freed.
    pub frees: &'a RangeSet,
    /// New pointers by block id.
    pub writes: &'a BTreeMap<u64, BlkPtr>,
    /// LSIZE of a level-0 block, bytes.
    pub lsize0: usize,
}

impl Pass<'_> {
    /// Like [`Pass::put`], and kills `old`. Returns the change of allocated bytes.
    pub(super) fn replace(
        &self,
        spec: &WriteSpec,
        p: &Prepared,
        old: &BlkPtr,
        fill: u64,
    ) -> Result<(BlkPtr, i64)> {
        let (new, size) = self.put(spec, p, old, fill)?;
        let gone = self.retire(old, &new)?;
        Ok((new, size - gone))
    }

    /// `new` stands where `old` stood: kills that one unless it is the same block, rewritten. Returns
    /// the bytes that are no longer allocated.
    fn retire(&self, old: &BlkPtr, new: &BlkPtr) -> Result<i64> {
        if old.is_hole() || Zio::same_place(old, new) {
            return Ok(0);
        }
        let gone = self.zio.dsize(old) as i64;
        self.kill(old)?;
        Ok(gone)
    }

    /// An indirect block could not be read: notes it, unless it was written in this very txg. Devices
    /// that lose what was just written fail the txg.
    fn note(&self, e: Error, bp: &BlkPtr, blkid: u64) -> Result<()> {
        if !e.is_damage() || bp.physical_birth() >= self.txg {
            return Err(e);
        }
        let spot = Spot {
            level: bp.level(),
            blkid,
            birth: bp.logical_birth(),
            physical_birth: bp.physical_birth(),
        };
        self.unreadable.borrow_mut().push((e, spot));
        Ok(())
    }

    /// Reports the unreadable blocks of an object; the first of them.
    pub(super) fn report_unreadable(&self, dn: &Dnode) -> Option<Error> {
        let all = self.unreadable.take();
        for (e, spot) in &all {
            dn.note_damage(e, *spot);
        }
        all.into_iter().next().map(|(e, _)| e)
    }

    pub(super) fn kill(&self, bp: &BlkPtr) -> Result<()> {
        base::mutation::panic_point("freeing a block");
        if !bp.is_hole() && self.hooks.kill(bp)? {
            if !bp.is_embedded() {
                self.zio.cache.remove(bp);
            }
            self.zio.free(bp, self.txg)?;
        }
        Ok(())
    }

    pub(super) fn hole(&self, s: &Shape, level: u8, lsize: usize) -> BlkPtr {
        if self.policy.hole_birth {
            let early = base::mutation::mutated(base::mutation::Mutation::HolesBornEarly);
            let birth = if early { Txg::new(1) } else { self.txg };
            BlkPtr::hole_born(s.obj_type, level, lsize, birth)
        } else {
            BlkPtr::HOLE
        }
    }

    /// Kills a whole subtree; `used` is reduced by what it held. Returns the pointer that is left: a
    /// hole, or one to what cannot be read.
    pub(super) fn kill_tree(
        &self,
        s: &Shape,
        bp: &BlkPtr,
        level: u32,
        id: u64,
        lsize0: usize,
        used: &mut i64,
    ) -> Result<BlkPtr> {
        if bp.is_hole() {
            return Ok(*bp);
        }
        let ind_size = 1usize << s.indblkshift;
        if level > 0 {
            let b = match read_indirect(self.zio, bp, level, s.indblkshift) {
                Ok(b) => b,
                Err(e) => {
                    self.note(e, bp, id)?;
                    return Ok(*bp);
                }
            };
            let epbs = u32::from(s.indblkshift) - 7;
            let size = if level == 1 { lsize0 } else { ind_size };
            let mut left: Option<Vec<u8>> = None;
            for i in 0..b.len() / BP_SIZE {
                let child = BlkPtr::at(&b, i)?;
                if child.is_hole() {
                    continue;
                }
                let cid = (id << epbs) + i as u64;
                let rest = self.kill_tree(s, &child, level - 1, cid, lsize0, used)?;
                if rest.is_hole() {
                    continue;
                }
                let left = left.get_or_insert_with(|| {
                    let hole = self.hole(s, level as u8 - 1, size).to_bytes();
                    hole.repeat(b.len() / BP_SIZE)
                });
                left[i * BP_SIZE..(i + 1) * BP_SIZE].copy_from_slice(&rest.to_bytes());
            }
            if let Some(block) = left {
                return self.put_indirect(s, bp, level, block, used);
            }
        }
        *used -= self.zio.dsize(bp) as i64;
        self.kill(bp)?;
        Ok(match level {
            0 => self.hole(s, 0, lsize0),
            _ => self.hole(s, level as u8, ind_size),
        })
    }

    /// Writes an indirect block that is not all holes in place of `old`.
    fn put_indirect(
        &self,
        s: &Shape,
        old: &BlkPtr,
        level: u32,
        block: Vec<u8>,
        used: &mut i64,
    ) -> Result<BlkPtr> {
        let mut fill = 0;
        for i in 0..block.len() / BP_SIZE {
            fill += BlkPtr::at(&block, i)?.fill();
        }
        let spec = self.spec(s, s.obj_type, level as u8, false);
        let block = Arc::new(block);
        let prepared = self.prepare(&spec, &block)?;
        let (new, delta) = self.replace(&spec, &prepared, old, fill)?;
        if !new.is_embedded() && !new.is_hole() {
            self.zio.cache.insert(&new, block);
        }
        *used += delta;
        Ok(new)
    }

    /// Writes below an indirect block that cannot be read lead nowhere: takes them back.
    pub(super) fn give_up(
        &self,
        writes: &BTreeMap<u64, BlkPtr>,
        first: u64,
        end: u64,
    ) -> Result<i64> {
        let mut gone = 0;
        for (_, new) in writes.range(first..end) {
            gone += self.zio.dsize(new) as i64;
            self.kill(new)?;
        }
        Ok(gone)
    }

    /// New pointer of the subtree (`level`, `id`) after frees and writes of level-0 blocks; `used` is
    /// changed by what it allocates and frees.
    pub(super) fn subtree(
        &self,
        s: &Shape,
        old: BlkPtr,
        level: u32,
        id: u64,
        changes: &Changes,
        used: &mut i64,
    ) -> Result<BlkPtr> {
        let Changes {
            frees,
            writes,
            lsize0,
        } = *changes;
        let epbs = s.indblkshift as u32 - 7;
        let span = 1u64.checked_shl(level * epbs).unwrap_or(u64::MAX);
        let first = id.saturating_mul(span);
        let end = first.saturating_add(span);
        if level == 0 {
            if let Some(new) = writes.get(&id) {
                *used -= self.retire(&old, new)?;
                return Ok(*new);
            }
            if frees.contains(id, id + 1) && !old.is_hole() {
                *used -= self.zio.dsize(&old) as i64;
                self.kill(&old)?;
                return Ok(self.hole(s, 0, lsize0));
            }
            return Ok(old);
        }
        let mut written = writes.range(first..end).map(|(k, _)| *k).peekable();
        let any_write = written.peek().is_some();
        if !any_write && (old.is_hole() || !frees.overlaps(first, end)) {
            return Ok(old);
        }
        let ind_size = 1usize << s.indblkshift;
        if !any_write && frees.contains(first, end) {
            return self.kill_tree(s, &old, level, id, lsize0, used);
        }
        let mut block: Vec<u8> = if old.is_hole() {
            // Children of a hole are holes of the same birth (data format §2.5).
            let mut b = vec![0; ind_size];
            if self.policy.hole_birth && !old.logical_birth().is_none() {
                let size = if level == 1 { lsize0 } else { ind_size };
                let child =
                    BlkPtr::hole_born(s.obj_type, level as u8 - 1, size, old.logical_birth());
                for c in b.chunks_exact_mut(BP_SIZE) {
                    c.copy_from_slice(&child.to_bytes());
                }
            }
            b
        } else {
            match read_indirect(self.zio, &old, level, s.indblkshift) {
                Ok(b) => b.to_vec(),
                // The pool's own metadata, and dnodes whose trees have been written by now, must not
                // go missing.
                Err(e) if any_write && (self.policy.is_mos || s.obj_type == ObjType::DNODE) => {
                    return Err(e)
                }
                Err(e) => {
                    self.note(e, &old, id)?;
                    *used -= self.give_up(writes, first, end)?;
                    return Ok(old);
                }
            }
        };
        let child_span = span >> epbs;
        // Children touched by a write or by a free.
        let mut touched: Vec<u64> = Vec::new();
        for k in written {
            let c = k / child_span;
            if touched.last() != Some(&c) {
                touched.push(c);
            }
        }
        let mut at = first;
        while let Some((a, b)) = frees.next_from(at).filter(|(a, _)| *a < end) {
            let b = b.min(end);
            touched.extend(a / child_span..b.div_ceil(child_span));
            at = b;
            if at >= end {
                break;
            }
        }
        touched.sort_unstable();
        touched.dedup();
        for c in touched {
            let i = (c - id * (1 << epbs)) as usize;
            let child = BlkPtr::at(&block, i)?;
            let new = self.subtree(s, child, level - 1, c, changes, used)?;
            block[i * BP_SIZE..(i + 1) * BP_SIZE].copy_from_slice(&new.to_bytes());
        }
        let mut holes = true;
        for i in 0..block.len() / BP_SIZE {
            holes &= BlkPtr::at(&block, i)?.is_hole();
        }
        if holes {
            *used -= self.zio.dsize(&old) as i64;
            self.kill(&old)?;
            return Ok(if old.is_hole() {
                old
            } else {
                self.hole(s, level as u8, ind_size)
            });
        }
        self.put_indirect(s, &old, level, block, used)
    }

    /// The tree of an object with frees and writes applied, of at least so many levels. Returns pointers, levels, change of used.
    pub(super) fn tree(
        &self,
        s: &Shape,
        old: &Synced,
        nblkptr: usize,
        (levels, maxblkid): (u8, u64),
        changes: &Changes,
    ) -> Result<(Vec<BlkPtr>, u8, i64)> {
        let mut bps = old.blkptr.clone();
        bps.resize(nblkptr, BlkPtr::HOLE);
        let mut nlevels = old.nlevels as u32;
        let mut used = 0;
        let epbs = s.indblkshift as u32 - 7;
        while nlevels < u32::from(levels)
            || (maxblkid as u128) >= (nblkptr as u128) << (epbs * (nlevels - 1))
        {
            if bps.iter().any(|b| !b.is_hole()) {
                // The old top becomes the first children of a new indirect block.
                let mut block = vec![0u8; 1 << s.indblkshift];
                let mut fill = 0;
                for (i, bp) in bps.iter().enumerate() {
                    block[i * BP_SIZE..(i + 1) * BP_SIZE].copy_from_slice(&bp.to_bytes());
                    fill += bp.fill();
                }
                let spec = self.spec(s, s.obj_type, nlevels as u8, false);
                let block = Arc::new(block);
                let prepared = self.prepare(&spec, &block)?;
                let (new, delta) = self.replace(&spec, &prepared, &BlkPtr::HOLE, fill)?;
                self.zio.cache.insert(&new, block);
                used += delta;
                bps.fill(BlkPtr::HOLE);
                bps[0] = new;
            } else if let Some(birth) = bps.iter().map(BlkPtr::logical_birth).max() {
                // Where data were freed must go on saying when.
                bps.fill(BlkPtr::HOLE);
                if self.policy.hole_birth && !birth.is_none() {
                    bps[0] =
                        BlkPtr::hole_born(s.obj_type, nlevels as u8, 1 << s.indblkshift, birth);
                }
            }
            nlevels += 1;
            if nlevels > 15 {
                bail!(FileTooBig, "an object with more than 15 levels");
            }
        }
        for (i, bp) in bps.iter_mut().enumerate() {
            *bp = self.subtree(s, *bp, nlevels - 1, i as u64, changes, &mut used)?;
        }
        Ok((bps, nlevels as u8, used))
    }
}
