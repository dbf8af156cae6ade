//! Writing one txg of one object set: data, indirect blocks, dnodes, meta-dnode, root.
//!
//! # Damage
//!
//! A block that cannot be read must not fail the txg of a pool that many use. Callers look at the
//! indirect blocks, and at blocks that they change in part, before they change anything
//! ([`crate::Dnode::check_write`], [`crate::Dnode::check_edges`]). So the sync meets only damage that
//! came later, or that nobody looked for:
//!
//! 1. A pointer is killed when its parent is rewritten, never before. So the tree on disk refers to
//!    no freed block, whichever block of it turns out to be unreadable.
//! 2. What cannot be freed because an indirect block cannot be read stays where it is: the block keeps
//!    its pointer, and an object that is freed keeps its dnode with such pointers.
//! 3. A write below an unreadable indirect block is given up; the file stays unreadable there.
//!    So is one over part of a block whose rest cannot be read.
//! 4. Objects whose block of dnodes cannot be read are not written at all.
//!
//! Each case is reported by [`Dmu::set_on_damage`](crate::Dmu::set_on_damage), and cases 2 to 4 of an
//! object that stays to its next fsync ([`Objset::take_lost`]). In the MOS only rule 2 holds: a write that
//! it loses fails the txg.

mod data;
mod meta;
mod tree;

use crate::block_spec::{spec_for, with_nonce, Shape};
use crate::dnode::{Dnode, Job, SpillChange};
use crate::objset::Objset;
use crate::shape::{DnodeSeal, WritePolicy};
use crate::tree::Spot;
use crate::tx::Tx;
use base::sync::MutexExt;
use base::{bail, Block, Error, Result, Txg};
use disk::dnode::{self, DNODES_PER_BLOCK, DNODE_BLOCK, DNODE_SIZE};
use disk::{BlkPtr, Compression, DnodePhys, ObjType};
use meta::{DnodeBlocks, HELD_DNODE_BLOCKS};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;
use tree::Changes;
use zio::{Crypt, Prepared, Seal, StoredForm, WriteSpec, Zio};

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
    /// The pipelines.
    pub zio: &'a Zio,
    /// The key of the object set.
    pub crypt: &'a Crypt,
    /// Fills a buffer with random bytes, for nonces and salts.
    pub random: &'a (dyn Fn(&mut [u8]) + Sync),
}

impl Transform<'_> {
    /// Compresses, encrypts and checksums `data`.
    pub fn prepare(&self, spec: &WriteSpec, data: &Block) -> Result<Prepared> {
        self.prepare_of(spec, data, None)
    }

    /// The same for a block of the content of an object.
    pub fn prepare_of(
        &self,
        spec: &WriteSpec,
        data: &Block,
        dn: Option<&Dnode>,
    ) -> Result<Prepared> {
        let seal = self.crypt.is_encrypted().then(|| Seal {
            key: self.crypt.key().map(|k| &**k),
            raw: match self.crypt {
                Crypt::Raw(version) => Some(*version),
                _ => None,
            },
            random: self.random,
        });
        let history = dn.map(|dn| &dn.history);
        self.zio.prepare_of(spec, data, seal.as_ref(), history)
    }

    /// A block of dnodes as a raw stream has it. It is never compressed, and no hole though all its dnodes are free: the MACs above
    /// count it.
    fn prepare_dnodes(&self, spec: &WriteSpec, data: &Block, raw: DnodeSeal) -> Result<Prepared> {
        let form = StoredForm {
            compress: Compression::OFF,
            sealed: Some(raw.seal),
            big_endian: raw.big_endian,
        };
        let mut data = data.clone();
        if raw.big_endian {
            let bytes: &mut Vec<u8> = Arc::make_mut(&mut data);
            zio::swap::block(ObjType::DNODE, 0, bytes)?;
        }
        let len = data.len();
        self.zio.stored(spec, data, len, &form)
    }
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
}

impl Objset {
    /// What was given up of the changes of an object since this was last asked; an I/O error.
    pub fn take_lost(&self, object: u64) -> Option<Error> {
        self.lost.take(object)
    }

    /// Whether changes of any object were given up since this was last asked. Their marks stay.
    pub fn take_any_lost(&self) -> bool {
        self.lost.take_any()
    }

    /// Writes everything that the txg of the syncing transaction `tx` changed in this set so far.
    /// Returns the new root pointer, or `None` if there was nothing to write. To be called again
    /// while [`Objset::is_dirty_in`]; `pass` counts from 1 over the whole pool.
    pub fn sync(&self, tx: &Tx, pass: u32, hooks: &dyn SyncHooks) -> Result<Option<BlkPtr>> {
        assert!(tx.is_syncing());
        let txg = tx.txg();
        let mut jobs = std::mem::take(&mut *self.jobs.acquire());
        if jobs.is_empty() {
            jobs = self.take_dirty(txg);
        }
        let header = std::mem::take(&mut self.lock_state().dirty[txg]);
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
            let unread = p.report_unreadable(&job.dn);
            if let Some(e) = unread.as_ref().filter(|e| self.lost.must_stay(e)) {
                return Err(e.clone());
            }
            if let (Some(e), Some(phys)) = (unread, &mut phys) {
                // What could not be freed is still below it.
                phys.maxblkid = phys.maxblkid.max(job.s.maxblkid);
                job.dn.keep_blocks(phys.maxblkid);
                if job.f.allocated {
                    self.lost.lose(job.dn.object(), &e);
                }
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
        // Also those of which a raw stream has said how they are sealed, and none of whose dnodes changes.
        for blk in self.raw_seals.acquire().keys() {
            by_block.entry(*blk).or_default();
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
            let why = match known {
                true => legible().err(),
                false => Some(Error::damaged("its block of dnodes cannot be read")),
            };
            match why {
                None => {
                    reached.push(job);
                    continue;
                }
                Some(e) if known && p.policy.is_mos => return Err(e),
                Some(e) if job.f.allocated => self.lost.lose(object, &e),
                Some(_) => {}
            }
            for b in &job.blocks {
                if let Some(bp) = &b.placed {
                    p.zio.free_space(bp, p.txg)?;
                }
            }
            if let Some(SpillChange::Placed(bp)) = &job.spill {
                p.zio.free_space(bp, p.txg)?;
            }
            unwritten.push(job);
        }
        Ok((reached, unwritten))
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
        let shape = job.f.shape();
        let mut used = job.s.used as i64 + delta;
        if !f.allocated {
            return Self::free_dnode(p, job);
        }
        let changes = Changes {
            frees: &job.frees,
            writes,
            lsize0: f.block_size,
        };
        let nblkptr = f.nblkptr as usize;
        let (blkptr, nlevels, d) =
            p.tree(&shape, &job.s, nblkptr, (f.nlevels, f.maxblkid), &changes)?;
        used += d;
        let mut spill = job.s.spill;
        if let Some(change) = &job.spill {
            let old = spill.unwrap_or(BlkPtr::HOLE);
            spill = match change {
                SpillChange::Placed(bp) => {
                    let mut bp = **bp;
                    bp.set_fill(1);
                    p.hooks.born(&bp)?;
                    used += p.zio.dsize(&bp) as i64 - p.zio.dsize(&old) as i64;
                    p.kill(&old)?;
                    Some(bp)
                }
                SpillChange::Data(data) => {
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
                SpillChange::Removed => {
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
            ..job.f.shape()
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
}

impl Dnode {
    /// The dnode as last written (accounting objects live in the object set block).
    pub fn synced_phys(&self) -> Option<DnodePhys> {
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
