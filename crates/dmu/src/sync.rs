//! Writing one group of one object set: data, indirect blocks, dnodes, meta-dnode, root.
//!
//! # Damage
//!
//! A block that cannot be read must not fail the txg of a pool that many use. Callers look at the
//! indirect blocks before they change anything ([`crate::Dnode::check_write`]), so the sync meets
//! only damage that came later, or that nobody looked for:
//!
//! 1. A pointer is killed when its parent is rewritten, never before. So the tree on disk refers to
//!    no freed block, whichever block of it turns out to be unreadable.
//! 2. What cannot be freed because an indirect block cannot be read stays where it is: the block keeps
//!    its pointer, and an object that is freed keeps its dnode with such pointers.
//! 3. A write below an unreadable indirect block is given up; the file stays unreadable there.
//! 4. Objects whose block of dnodes cannot be read are not written at all.
//!
//! Each case is reported by [`Dmu::set_on_damage`](crate::Dmu::set_on_damage). In the MOS only rule 2
//! holds: a write that it loses fails the txg.

use crate::content::Content;
use crate::dnode::{Dnode, Job, TakenBlock};
use crate::objset::{objset_macs, Objset, WritePolicy};
use crate::tree::{read_indirect, Reader, Spot, Synced};
use crate::tx::Tx;
use base::sync::MutexExt;
use base::{bail, Block, Error, RangeSet, Result, Txg};
use codec::{checksum, compress};
use disk::crypt::OBJSET_MACS;
use disk::dnode::{self, objset::ObjsetPhys, DNODES_PER_BLOCK, DNODE_BLOCK, DNODE_SIZE};
use disk::{BlkPtr, DnodePhys, ObjType, BP_SIZE};
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
use zio::{Crypt, Prepared, ReadSpec, Seal, WriteSpec, Zio};

/// From this pass on metadata is no longer compressed, so that sizes stop changing and the passes
/// converge (pool format §3).
const PASS_DONT_COMPRESS: u32 = 8;
/// Blocks and bytes prepared in parallel at a time.
const BATCH_BLOCKS: usize = 512;
const BATCH_BYTES: usize = 16 << 20;
/// Queued bytes that are worth sending while the next batch is being transformed.
const OVERLAP_BYTES: usize = 4 << 20;

/// What the rooms above want to know of every block.
pub trait SyncHooks {
    /// A block was written (or an embedded pointer made).
    fn born(&self, bp: &BlkPtr) -> Result<()>;
    /// A block is no longer referenced by the live tree. True: nothing else refers to it, its space is
    /// to be freed at once.
    fn kill(&self, bp: &BlkPtr) -> Result<bool>;
    /// A dnode was written or freed; both forms for space accounting by owner.
    fn dnode_synced(
        &self,
        _object: u64,
        _old: Option<&DnodePhys>,
        _new: Option<&DnodePhys>,
    ) -> Result<()> {
        Ok(())
    }
}

/// The context of one pass.
struct Pass<'a> {
    zio: &'a Zio,
    txg: Txg,
    pass: u32,
    policy: &'a WritePolicy,
    hooks: &'a dyn SyncHooks,
    crypt: &'a Crypt,
    out: Transform<'a>,
    /// Unreadable blocks met since this was last emptied.
    unreadable: RefCell<Vec<(Error, Spot)>>,
}

/// What turns a block into what is stored; may be shared between threads.
#[derive(Clone, Copy)]
pub(crate) struct Transform<'a> {
    pub zio: &'a Zio,
    pub crypt: &'a Crypt,
    pub random: &'a (dyn Fn(&mut [u8]) + Sync),
}

impl Transform<'_> {
    pub fn prepare(&self, spec: &WriteSpec, data: &Block) -> Result<Prepared> {
        let seal = self.crypt.is_encrypted().then(|| Seal {
            key: self.crypt.key().map(|k| &**k),
            random: self.random,
        });
        self.zio.prepare_with(spec, data, seal.as_ref())
    }
}

/// Fields that decide how an object's blocks are written.
#[derive(Clone, Copy)]
pub(crate) struct Shape {
    pub obj_type: ObjType,
    pub compress: u8,
    pub checksum: u8,
    pub indblkshift: u8,
}

/// How a block of an object is to be stored in a sync pass.
pub(crate) fn spec_for(
    p: &WritePolicy,
    pass: u32,
    s: &Shape,
    ty: ObjType,
    level: u8,
    spill: bool,
) -> WriteSpec {
    let meta = level > 0 || spill || ty.is_metadata();
    let mut comp = if meta {
        p.meta_compress
    } else if s.compress > 1 {
        s.compress
    } else {
        p.compress
    };
    if meta && !spill && s.compress == compress::OFF && level == 0 {
        comp = compress::OFF;
    }
    let mut sum = if s.checksum > 1 {
        s.checksum
    } else {
        p.checksum
    };
    if meta && (!checksum::is_metadata_strong(sum) || p.is_mos) {
        sum = checksum::FLETCHER4;
    }
    let dedup = !meta && p.dedup != 0;
    if dedup {
        sum = p.dedup;
    }
    let file = matches!(ty, ObjType::PLAIN_FILE_CONTENTS | ObjType::UINT64_OTHER);
    let mut copies = p.copies;
    if p.is_mos {
        copies = 3;
        if pass >= PASS_DONT_COMPRESS {
            comp = compress::OFF;
        }
    } else if meta {
        let critical = ty.is_metadata()
            && ty != ObjType::DIRECTORY_CONTENTS
            && ty != ObjType::SA
            && (ty != ObjType::DNODE || level > 0);
        let more = match p.redundant_metadata {
            0 => true,
            1 => level >= 2 || ty.is_metadata() || spill,
            2 => critical,
            _ => false,
        };
        copies = (copies + more as u8).min(3);
    }
    let gang_copies = if meta || p.redundant_metadata == 0 {
        copies + 1
    } else {
        copies
    };
    WriteSpec {
        obj_type: ty,
        level,
        compress: comp,
        zstd_level: p.zstd_level,
        checksum: sum,
        copies: copies.min(p.max_copies),
        gang_copies: gang_copies.min(3).min(p.max_copies),
        embed: p.embedded_data,
        hole_birth: p.hole_birth,
        dedup,
        // A checksum that is no proof of sameness is none in a table either.
        verify: p.dedup_verify || !checksum::is_dedup(sum),
        small: if file { p.special_small } else { 0 },
    }
}

/// Blocks of encrypted types have no place for a third copy.
pub(crate) fn with_nonce(mut spec: WriteSpec, crypt: &Crypt) -> WriteSpec {
    if crypt.is_encrypted() && spec.obj_type.is_encrypted() {
        spec.copies = spec.copies.min(2);
        spec.gang_copies = spec.gang_copies.min(2);
    }
    spec
}

impl Pass<'_> {
    fn spec(&self, s: &Shape, ty: ObjType, level: u8, spill: bool) -> WriteSpec {
        let spec = spec_for(self.policy, self.pass, s, ty, level, spill);
        with_nonce(spec, self.crypt)
    }

    fn prepare(&self, spec: &WriteSpec, data: &Block) -> Result<Prepared> {
        self.out.prepare(spec, data)
    }

    /// Writes a prepared block in place of `old` and accounts for the new one: `old` is killed when
    /// its parent is rewritten. Returns the new pointer and the (deflated) bytes allocated.
    fn put(
        &self,
        spec: &WriteSpec,
        p: &Prepared,
        old: &BlkPtr,
        fill: u64,
    ) -> Result<(BlkPtr, i64)> {
        let mut new = self.zio.issue(spec, p, self.txg, old)?;
        if !new.is_hole() && !new.is_embedded() {
            new.set_fill(fill);
        }
        if Zio::same_place(old, &new) || new.is_hole() {
            return Ok((new, 0));
        }
        self.hooks.born(&new)?;
        let size = self.zio.dsize(&new) as i64;
        Ok((new, size))
    }

    /// The same, and kills `old`. Returns the change of allocated bytes.
    fn replace(
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

    /// Reports the unreadable blocks of an object; true if there are any.
    fn report_unreadable(&self, dn: &Dnode) -> bool {
        let all = self.unreadable.take();
        for (e, spot) in &all {
            dn.note_damage(e, *spot);
        }
        !all.is_empty()
    }

    fn kill(&self, bp: &BlkPtr) -> Result<()> {
        base::mutation::panic_point("freeing a block");
        if !bp.is_hole() && self.hooks.kill(bp)? {
            if !bp.is_embedded() {
                self.zio.cache.remove(bp);
            }
            self.zio.free(bp, self.txg)?;
        }
        Ok(())
    }

    fn hole(&self, s: &Shape, level: u8, lsize: usize) -> BlkPtr {
        if self.policy.hole_birth {
            BlkPtr::hole_born(s.obj_type, level, lsize, self.txg)
        } else {
            BlkPtr::HOLE
        }
    }

    /// Kills a whole subtree; `used` is reduced by what it held. Returns the pointer that is left: a
    /// hole, or one to what cannot be read.
    fn kill_tree(
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
    fn give_up(&self, writes: &BTreeMap<u64, BlkPtr>, first: u64, end: u64) -> Result<i64> {
        let mut gone = 0;
        for (_, new) in writes.range(first..end) {
            gone += self.zio.dsize(new) as i64;
            self.kill(new)?;
        }
        Ok(gone)
    }

    /// New pointer of the subtree (`level`, `id`) after frees and writes of level-0 blocks; `used` is
    /// changed by what it allocates and frees.
    fn subtree(
        &self,
        s: &Shape,
        old: BlkPtr,
        level: u32,
        id: u64,
        frees: &RangeSet,
        writes: &BTreeMap<u64, BlkPtr>,
        lsize0: usize,
        used: &mut i64,
    ) -> Result<BlkPtr> {
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
            if self.policy.hole_birth && old.logical_birth() != 0 {
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
            let new = self.subtree(s, child, level - 1, c, frees, writes, lsize0, used)?;
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

    /// The tree of an object with frees and writes applied. Returns pointers, levels, change of used.
    fn tree(
        &self,
        s: &Shape,
        old: &Synced,
        nblkptr: usize,
        maxblkid: u64,
        frees: &RangeSet,
        writes: &BTreeMap<u64, BlkPtr>,
        lsize0: usize,
    ) -> Result<(Vec<BlkPtr>, u8, i64)> {
        let mut bps = old.blkptr.clone();
        bps.resize(nblkptr, BlkPtr::HOLE);
        let mut nlevels = old.nlevels as u32;
        let mut used = 0;
        let epbs = s.indblkshift as u32 - 7;
        while (maxblkid as u128) >= (nblkptr as u128) << (epbs * (nlevels - 1)) {
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
                if self.policy.hole_birth && birth != 0 {
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
            *bp = self.subtree(
                s,
                *bp,
                nlevels - 1,
                i as u64,
                frees,
                writes,
                lsize0,
                &mut used,
            )?;
        }
        Ok((bps, nlevels as u8, used))
    }
}

/// Blocks of dnodes that were found readable before anything of their objects was written.
#[derive(Default)]
struct DnodeBlocks {
    /// `None`: not readable.
    known: BTreeMap<u64, Option<Block>>,
    held: usize,
}

/// Blocks of dnodes held in memory over the writing of their objects; further ones are read again.
const HELD_DNODE_BLOCKS: usize = 2048;

impl DnodeBlocks {
    fn take(&mut self, blk: u64) -> Option<Block> {
        let b = self.known.remove(&blk).flatten()?;
        (b.len() == DNODE_BLOCK).then_some(b)
    }
}

/// One block on its way out.
struct Out {
    job: usize,
    blkid: u64,
    data: Content,
    /// Of the block, bytes.
    size: usize,
    spec: WriteSpec,
    old: BlkPtr,
    fill: u64,
    /// Only parts of it were written.
    partial: bool,
}

impl Objset {
    /// Writes everything that the group of the syncing transaction `tx` changed in this set so far.
    /// Returns the new root pointer, or `None` if there was nothing to write. To be called again
    /// while [`Objset::is_dirty_in`]; `pass` counts from 1 over the whole pool.
    pub fn sync(&self, tx: &Tx, pass: u32, hooks: &dyn SyncHooks) -> Result<Option<BlkPtr>> {
        assert!(tx.is_syncing());
        let txg = tx.txg();
        let mut jobs = std::mem::take(&mut *self.jobs.acquire());
        if jobs.is_empty() {
            jobs = self.take_dirty(txg);
        }
        let header = std::mem::take(&mut self.lock_state().dirty[txg as usize & 3]);
        if jobs.is_empty() && !header {
            return Ok(None);
        }
        if matches!(self.crypt, Crypt::Locked) && !jobs.is_empty() {
            bail!(Access, "the key of dataset {} is not loaded", self.id());
        }
        let policy = self.policy();
        let rng = self.dmu.env.rng.clone();
        let random = move |b: &mut [u8]| rng.fill(b);
        let p = Pass {
            zio: &self.dmu.zio,
            txg,
            pass,
            policy: &policy,
            hooks,
            crypt: &self.crypt,
            out: Transform {
                zio: &self.dmu.zio,
                crypt: &self.crypt,
                random: &random,
            },
            unreadable: RefCell::default(),
        };
        let mut blocks = DnodeBlocks::default();
        let (jobs, unwritten) = self.reachable(&p, jobs, &mut blocks)?;
        let mut deltas = vec![0i64; jobs.len()];
        let mut writes: Vec<BTreeMap<u64, BlkPtr>> = Vec::new();
        writes.resize_with(jobs.len(), BTreeMap::new);
        self.write_data(&p, &jobs, &mut writes, &mut deltas)?;

        // Trees, spills, new dnodes.
        let mut done: Vec<(Arc<Dnode>, Option<DnodePhys>)> = Vec::with_capacity(jobs.len());
        for (n, job) in jobs.iter().enumerate() {
            let mut phys = self.sync_dnode(&p, job, &writes[n], deltas[n])?;
            if let (true, Some(phys)) = (p.report_unreadable(&job.dn), &mut phys) {
                // What could not be freed is still below it.
                phys.maxblkid = phys.maxblkid.max(job.s.maxblkid);
                job.dn.keep_blocks(phys.maxblkid);
            }
            done.push((job.dn.clone(), phys));
        }

        // Dnodes into the meta-dnode's blocks; accounting dnodes into the object set block.
        let mut by_block: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
        for (n, (dn, _)) in done.iter().enumerate() {
            if dn.object() < u64::MAX - 2 {
                by_block
                    .entry(dn.object() / DNODES_PER_BLOCK)
                    .or_default()
                    .push(n);
            }
        }
        let meta_phys = self.sync_meta(&p, &by_block, &mut blocks, &done)?;

        let root = self.sync_root(&p, &meta_phys, &done)?;
        for (dn, phys) in &done {
            dn.apply(txg, phys.as_ref());
        }
        for job in &unwritten {
            job.dn.give_up(txg);
        }
        self.meta.apply(txg, Some(&meta_phys));
        {
            let mut m = self.meta.write_lock();
            m.f.maxblkid = meta_phys.maxblkid;
        }
        self.lock_state().root = root;
        let gone = jobs.iter().chain(&unwritten).filter(|j| !j.f.allocated);
        self.group_written(txg, gone.map(|j| j.dn.object()));
        let stay = jobs.iter().zip(&done);
        let stay = stay.filter(|(j, (_, phys))| !j.f.allocated && phys.is_some());
        self.count_objects(stay.count() as i64);
        self.dmu.written(self);
        Ok(Some(root))
    }

    /// Splits off the objects whose dnodes cannot be written, since the block they share with others
    /// cannot be read. What they had placed is given back.
    fn reachable(
        &self,
        p: &Pass,
        jobs: Vec<Job>,
        blocks: &mut DnodeBlocks,
    ) -> Result<(Vec<Job>, Vec<Job>)> {
        let s = self.meta.read_lock().s.clone();
        let mut reached = Vec::with_capacity(jobs.len());
        let mut unwritten = Vec::new();
        for job in jobs {
            let object = job.dn.object();
            if object >= crate::PROJECTUSED_OBJECT {
                reached.push(job);
                continue;
            }
            let (blk, slot) = (object / DNODES_PER_BLOCK, object % DNODES_PER_BLOCK);
            let known = match blocks.known.get(&blk) {
                Some(known) => known.is_some(),
                None => {
                    let found = self.dnode_block(p, &s, blk)?;
                    let is_there = found.is_some();
                    // An empty one stands for those that are read again.
                    let keep = match found {
                        Some(_) if blocks.held >= HELD_DNODE_BLOCKS => Some(Block::default()),
                        found => {
                            blocks.held += 1;
                            found
                        }
                    };
                    blocks.known.insert(blk, keep);
                    is_there
                }
            };
            let legible = || match blocks.known.get(&blk) {
                Some(Some(b)) if b.len() == DNODE_BLOCK => {
                    DnodePhys::decode(&b[slot as usize * DNODE_SIZE..]).map(|_| ())
                }
                _ => Ok(()),
            };
            let ok = known
                && match legible() {
                    Err(e) if p.policy.is_mos => return Err(e),
                    r => r.is_ok(),
                };
            if ok {
                reached.push(job);
                continue;
            }
            for b in &job.blocks {
                if let Some(bp) = &b.placed {
                    p.zio.free_space(bp, p.txg)?;
                }
            }
            unwritten.push(job);
        }
        Ok((reached, unwritten))
    }

    /// A block of dnodes as it is on disk, empty where there is none yet; `None` if it cannot be read.
    fn dnode_block(&self, p: &Pass, s: &Synced, blk: u64) -> Result<Option<Block>> {
        let r = Reader::new(p.zio, p.crypt, p.policy.keep);
        let read = || match s.lookup(&r, blk)? {
            bp if bp.is_hole() => Ok(Block::default()),
            bp => r.read(&bp, blk),
        };
        match (read(), r.failed.get()) {
            (Ok(b), _) => Ok(Some(b)),
            (Err(e), Some(spot))
                if e.is_damage() && !p.policy.is_mos && spot.physical_birth < p.txg =>
            {
                self.meta.note_damage(&e, spot);
                Ok(None)
            }
            (Err(e), _) => Err(e),
        }
    }

    fn shape(job: &Job) -> Shape {
        Shape {
            obj_type: job.f.obj_type,
            compress: job.f.compress,
            checksum: job.f.checksum,
            indblkshift: job.f.indblkshift,
        }
    }

    fn write_data(
        &self,
        p: &Pass,
        jobs: &[Job],
        writes: &mut [BTreeMap<u64, BlkPtr>],
        deltas: &mut [i64],
    ) -> Result<()> {
        let mut outs: Vec<Out> = Vec::new();
        let mut bytes = 0;
        for (n, job) in jobs.iter().enumerate() {
            if !job.f.allocated {
                continue;
            }
            let shape = Self::shape(job);
            let spec = p.spec(&shape, job.f.obj_type, 0, false);
            for TakenBlock {
                blkid,
                data,
                placed,
                ..
            } in &job.blocks
            {
                let reader = Reader::new(p.zio, p.crypt, p.policy.keep);
                let freed = job.frees.contains(*blkid, blkid + 1);
                let found = || match freed {
                    true => Ok(BlkPtr::HOLE),
                    false => job.s.lookup(&reader, *blkid),
                };
                let old = match found() {
                    Ok(bp) => bp,
                    Err(e) if e.is_damage() && !p.policy.is_mos => {
                        // It leads nowhere.
                        if let Some(spot) = reader.failed.get() {
                            job.dn.note_damage(&e, spot);
                        }
                        if let Some(bp) = placed {
                            p.zio.free_space(bp, p.txg)?;
                        }
                        continue;
                    }
                    Err(e) => return Err(e),
                };
                if let Some(bp) = placed {
                    // Already where it belongs: early, or for the intent log.
                    let mut bp = **bp;
                    bp.set_fill(1);
                    deltas[n] += p.zio.dsize(&bp) as i64;
                    p.hooks.born(&bp)?;
                    if let Some(b) = data.whole() {
                        p.zio.cache.insert_whole(&bp, b.clone());
                    }
                    writes[n].insert(*blkid, bp);
                    continue;
                }
                if data.stored().is_some() {
                    bail!(Damaged, "a block written early has no place");
                }
                bytes += job.f.block_size;
                outs.push(Out {
                    job: n,
                    blkid: *blkid,
                    data: data.clone(),
                    size: job.f.block_size,
                    spec,
                    old,
                    fill: 1,
                    partial: false,
                });
                if outs.len() >= BATCH_BLOCKS || bytes >= BATCH_BYTES {
                    self.flush_outs(p, jobs, &mut outs, writes, deltas)?;
                    bytes = 0;
                }
            }
        }
        self.flush_outs(p, jobs, &mut outs, writes, deltas)
    }

    /// Transforms a batch on all cores, then places the blocks in order.
    fn flush_outs(
        &self,
        p: &Pass,
        jobs: &[Job],
        outs: &mut Vec<Out>,
        writes: &mut [BTreeMap<u64, BlkPtr>],
        deltas: &mut [i64],
    ) -> Result<()> {
        if outs.is_empty() {
            return Ok(());
        }
        // Fetch what partly written blocks lack.
        let partial: Vec<usize> = (0..outs.len())
            .filter(|n| outs[*n].data.needs_base())
            .collect();
        if !partial.is_empty() {
            let bps: Vec<BlkPtr> = partial.iter().map(|n| outs[*n].old).collect();
            // Read again where a device fails now and then: in syncing context `zio` does that.
            let reader = Reader::new(p.zio, p.crypt, p.policy.keep);
            let got = p.zio.read_many(&bps, &reader.whole());
            let mut lost = Vec::new();
            for (n, base) in partial.into_iter().zip(got) {
                let o = &mut outs[n];
                let base = match base {
                    _ if o.old.is_hole() => Block::default(),
                    Ok(b) => b,
                    // The rest of the block is gone for good. It stays as it is, an error for who
                    // reads it, rather than becoming something it never was.
                    Err(e) if e.is_damage() => {
                        let spot = Spot {
                            level: 0,
                            blkid: o.blkid,
                            birth: o.old.logical_birth(),
                            physical_birth: o.old.physical_birth(),
                        };
                        if let Some(job) = jobs.get(o.job) {
                            job.dn.note_damage(&e, spot);
                        }
                        lost.push(n);
                        continue;
                    }
                    Err(e) => return Err(e),
                };
                o.data = Content::Whole(o.data.onto(base, o.size));
                o.partial = true;
            }
            for n in lost.into_iter().rev() {
                outs.remove(n);
            }
        }
        let blocks: Vec<Block> = outs.iter().map(|o| o.data.over(&[], o.size)).collect();
        let slots: Vec<Mutex<Option<Result<Prepared>>>> =
            outs.iter().map(|_| Mutex::new(None)).collect();
        let cpu = &self.dmu.env.cpu;
        let (zio, txg, out) = (p.zio, p.txg, p.out);
        let transform = || {
            cpu.par_for(outs.len(), &|n| {
                let r = out.prepare(&outs[n].spec, &blocks[n]);
                *slots[n].acquire() = Some(r);
            });
        };
        if zio.queued_bytes() >= OVERLAP_BYTES {
            // The previous batch goes to the devices meanwhile.
            cpu.par_io(2, &|n| match n {
                0 => zio.drain_some(txg),
                _ => transform(),
            });
        } else {
            transform();
        }
        let streamed = self.dmu.is_streaming(txg);
        for ((o, slot), block) in outs.drain(..).zip(slots).zip(blocks) {
            let prepared = slot
                .into_inner()
                .unwrap_or_else(|e| e.into_inner())
                .unwrap_or_else(|| Err(Error::damaged("a transform was lost")))?;
            let (new, delta) = p.put(&o.spec, &prepared, &o.old, o.fill)?;
            if !new.is_hole() && !new.is_embedded() {
                // Small changes come again to where they were; long streams do not.
                match o.partial || !streamed {
                    true => p.zio.cache.insert(&new, block),
                    false => p.zio.cache.insert_whole(&new, block),
                }
            }
            writes[o.job].insert(o.blkid, new);
            deltas[o.job] += delta;
        }
        Ok(())
    }

    fn sync_dnode(
        &self,
        p: &Pass,
        job: &Job,
        writes: &BTreeMap<u64, BlkPtr>,
        delta: i64,
    ) -> Result<Option<DnodePhys>> {
        base::mutation::panic_point("writing an object");
        let f = &job.f;
        let shape = Self::shape(job);
        let mut used = job.s.used as i64 + delta;
        if !f.allocated {
            return Self::free_dnode(p, job);
        }
        let (blkptr, nlevels, d) = p.tree(
            &shape,
            &job.s,
            f.nblkptr as usize,
            f.maxblkid,
            &job.frees,
            writes,
            f.block_size,
        )?;
        used += d;
        let mut spill = job.s.spill;
        if let Some(change) = &job.spill {
            let old = spill.unwrap_or(BlkPtr::HOLE);
            spill = match change {
                Some(data) => {
                    let spec = p.spec(&shape, f.bonus_type, 0, true);
                    // A spill block is never a hole or embedded: the pointer must say its size.
                    let spec = WriteSpec {
                        embed: false,
                        ..spec
                    };
                    let prepared = p.prepare(&spec, data)?;
                    let (bp, d) = p.replace(&spec, &prepared, &old, 1)?;
                    used += d;
                    (!bp.is_hole()).then_some(bp)
                }
                None => {
                    used -= p.zio.dsize(&old) as i64;
                    p.kill(&old)?;
                    None
                }
            };
        }
        debug_assert!(used >= 0, "object {} uses {used} bytes", job.dn.object());
        Ok(Some(Self::dnode_phys(
            p, job, blkptr, nlevels, f.maxblkid, spill, used,
        )))
    }

    /// Frees all blocks of an object. Returns the dnode that stays if some could not be found.
    fn free_dnode(p: &Pass, job: &Job) -> Result<Option<DnodePhys>> {
        let s = &job.s;
        let shape = Shape {
            indblkshift: s.indblkshift,
            ..Self::shape(job)
        };
        let mut used = s.used as i64;
        let top = u32::from(s.nlevels) - 1;
        let mut left = Vec::with_capacity(s.blkptr.len());
        for (i, bp) in s.blkptr.iter().enumerate() {
            left.push(p.kill_tree(&shape, bp, top, i as u64, s.block_size, &mut used)?);
        }
        if let Some(bp) = &s.spill {
            used -= p.zio.dsize(bp) as i64;
            p.kill(bp)?;
        }
        if left.iter().all(BlkPtr::is_hole) {
            return Ok(None);
        }
        Ok(Some(DnodePhys {
            indblkshift: s.indblkshift,
            datablkszsec: (s.block_size / 512) as u16,
            ..Self::dnode_phys(p, job, left, s.nlevels, s.maxblkid, None, used)
        }))
    }

    fn dnode_phys(
        p: &Pass,
        job: &Job,
        blkptr: Vec<BlkPtr>,
        nlevels: u8,
        maxblkid: u64,
        spill: Option<BlkPtr>,
        used: i64,
    ) -> DnodePhys {
        let f = &job.f;
        let used = used.max(0) as u64;
        let mut flags = job.s.flags & !dnode::flags::SPILL_BLKPTR;
        if job.dn.object() < crate::PROJECTUSED_OBJECT {
            flags |= p.policy.accounting_flags;
        }
        if p.policy.used_bytes {
            flags |= dnode::flags::USED_BYTES;
        }
        DnodePhys {
            obj_type: f.obj_type,
            indblkshift: f.indblkshift,
            nlevels,
            bonus_type: f.bonus_type,
            checksum: f.checksum,
            compress: f.compress,
            flags,
            datablkszsec: (f.block_size / 512) as u16,
            slots: f.slots,
            maxblkid,
            used: if flags & dnode::flags::USED_BYTES != 0 {
                used
            } else {
                used / 512
            },
            blkptr,
            bonus: f.bonus.clone(),
            spill,
        }
    }

    /// Writes the changed dnodes into the meta-dnode and returns its new form.
    fn sync_meta(
        &self,
        p: &Pass,
        by_block: &BTreeMap<u64, Vec<usize>>,
        blocks: &mut DnodeBlocks,
        done: &[(Arc<Dnode>, Option<DnodePhys>)],
    ) -> Result<DnodePhys> {
        base::mutation::panic_point("writing the objects' block");
        let (s, f) = {
            let i = self.meta.read_lock();
            (i.s.clone(), i.f.clone())
        };
        let shape = Shape {
            obj_type: ObjType::DNODE,
            compress: 0,
            checksum: 0,
            indblkshift: f.indblkshift,
        };
        let spec = p.spec(&shape, ObjType::DNODE, 0, false);
        let mut outs = Vec::new();
        let mut writes = [BTreeMap::new()];
        let mut deltas = [0];
        let mut maxblkid = f.maxblkid;
        let mut used = s.used as i64;
        for (blk, list) in by_block {
            maxblkid = maxblkid.max(*blk);
            let old = s.lookup(&Reader::new(p.zio, p.crypt, p.policy.keep), *blk)?;
            let mut b = match blocks.take(*blk) {
                Some(b) => b.to_vec(),
                None if old.is_hole() => vec![0; DNODE_BLOCK],
                None => p
                    .zio
                    .read_with(&old, &ReadSpec::with_key(p.crypt))?
                    .to_vec(),
            };
            for &n in list {
                let (dn, phys) = &done[n];
                let at = (dn.object() % DNODES_PER_BLOCK) as usize * DNODE_SIZE;
                let before = DnodePhys::decode(&b[at..])?;
                self.report(p, dn.object(), before.as_ref(), phys.as_ref())?;
                if let Some(before) = &before {
                    b[at..at + before.size()].fill(0);
                }
                if let Some(phys) = phys {
                    phys.encode(&mut b[at..at + phys.size()]);
                }
            }
            let mut fill = 0;
            let mut slot = 0;
            while slot < DNODES_PER_BLOCK as usize {
                let at = slot * DNODE_SIZE;
                fill += u64::from(b[at] != 0);
                slot += if b[at] == 0 {
                    1
                } else {
                    b[at + 12] as usize + 1
                };
            }
            outs.push(Out {
                job: 0,
                blkid: *blk,
                data: Content::Whole(Arc::new(b)),
                size: DNODE_BLOCK,
                spec,
                old,
                fill,
                partial: false,
            });
            if outs.len() >= BATCH_BLOCKS {
                self.flush_outs(p, &[], &mut outs, &mut writes, &mut deltas)?;
            }
        }
        self.flush_outs(p, &[], &mut outs, &mut writes, &mut deltas)?;
        used += deltas[0];
        let (blkptr, nlevels, d) = p.tree(
            &shape,
            &s,
            3,
            maxblkid,
            &RangeSet::new(),
            &writes[0],
            DNODE_BLOCK,
        )?;
        used += d;
        let mut flags = s.flags;
        if p.policy.used_bytes {
            flags |= dnode::flags::USED_BYTES;
        }
        let used = used.max(0) as u64;
        Ok(DnodePhys {
            obj_type: ObjType::DNODE,
            indblkshift: f.indblkshift,
            nlevels,
            checksum: f.checksum,
            compress: f.compress,
            flags,
            datablkszsec: (DNODE_BLOCK / 512) as u16,
            slots: 1,
            maxblkid,
            used: if flags & dnode::flags::USED_BYTES != 0 {
                used
            } else {
                used / 512
            },
            blkptr,
            ..DnodePhys::default()
        })
    }

    fn report(
        &self,
        p: &Pass,
        object: u64,
        old: Option<&DnodePhys>,
        new: Option<&DnodePhys>,
    ) -> Result<()> {
        p.hooks.dnode_synced(object, old, new)
    }

    fn sync_root(
        &self,
        p: &Pass,
        meta: &DnodePhys,
        done: &[(Arc<Dnode>, Option<DnodePhys>)],
    ) -> Result<BlkPtr> {
        base::mutation::panic_point("writing the root block");
        let new: HashMap<u64, &Option<DnodePhys>> =
            done.iter().map(|(dn, phys)| (dn.object(), phys)).collect();
        let special = |object: u64, slot: &Mutex<Option<Arc<Dnode>>>| match new.get(&object) {
            Some(p) => (*p).clone(),
            None => slot.acquire().as_ref().and_then(|dn| dn.synced_phys()),
        };
        let special = [
            special(crate::USERUSED_OBJECT, &self.special[0]),
            special(crate::GROUPUSED_OBJECT, &self.special[1]),
            special(crate::PROJECTUSED_OBJECT, &self.special[2]),
        ];
        let (phys, old) = {
            let s = self.lock_state();
            (
                ObjsetPhys {
                    meta: meta.clone(),
                    zil_header: s.zil_header,
                    os_type: s.os_type,
                    os_flags: s.os_flags,
                    macs: s.macs,
                    special,
                    size: s.size,
                },
                s.root,
            )
        };
        let shape = Shape {
            obj_type: ObjType::OBJSET,
            compress: 0,
            checksum: 0,
            indblkshift: 17,
        };
        let spec = p.spec(&shape, ObjType::OBJSET, 0, false);
        let mut data = phys.encode();
        if let Some(key) = p.crypt.key() {
            let macs = objset_macs(key, &data)?;
            if let Some(to) = data.get_mut(OBJSET_MACS..OBJSET_MACS + macs.len()) {
                to.copy_from_slice(&macs);
            }
            self.lock_state().macs = macs;
        }
        let data = Arc::new(data);
        let prepared = p.prepare(&spec, &data)?;
        let fill = meta.blkptr.iter().map(BlkPtr::fill).sum();
        let (root, _) = p.replace(&spec, &prepared, &old, fill)?;
        p.zio.cache.insert(&root, data);
        Ok(root)
    }
}

impl Dnode {
    /// The dnode as last written (accounting objects live in the object set block).
    fn synced_phys(&self) -> Option<DnodePhys> {
        let i = self.read_lock();
        if !i.s.exists {
            return None;
        }
        let flags = i.s.flags;
        Some(DnodePhys {
            obj_type: i.f.obj_type,
            indblkshift: i.s.indblkshift,
            nlevels: i.s.nlevels,
            bonus_type: i.f.bonus_type,
            checksum: i.f.checksum,
            compress: i.f.compress,
            flags,
            datablkszsec: (i.s.block_size / 512) as u16,
            slots: i.f.slots,
            maxblkid: i.s.maxblkid,
            used: if flags & dnode::flags::USED_BYTES != 0 {
                i.s.used
            } else {
                i.s.used / 512
            },
            blkptr: i.s.blkptr.clone(),
            bonus: i.f.bonus.clone(),
            spill: i.s.spill,
        })
    }
}
