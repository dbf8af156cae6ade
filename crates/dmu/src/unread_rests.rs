//! The rest of blocks that writes changed in part: read behind the write, many blocks at a time.
//!
//! A write over a part of a block keeps its piece in memory and returns. The txg needs the rest of the block. If no copy of the
//! rest can be read, the txg gives the change up ([`crate::sync`]), and with the txg goes the record of the intent log. So a
//! commit must not rest on a piece whose rest has not been read:
//!
//! 1. [`Dnode::write`] notes each block of which it keeps pieces over content on disk ([`Inner::unread`]).
//! 2. The block leaves the list when its rest was read, when nothing of the rest is needed any more, or when its txg is on disk.
//! 3. A commit calls [`UnreadRests::read`] before it writes a record. If a rest cannot be read, it waits for the txg instead,
//!    which loses the change and marks the object, or finds the block readable.
//! 4. Notes cost no reading where nobody asks for durability: the txg reads what is left in its own batches.
//!
//! Threads in the background read when several MiB wait ([`Dnode::keep_up`]). Where more than a limit waits, the writer reads a
//! batch itself, so that a txg grows no faster than devices read.
//!
//! Lock order: the lists here → object.

use crate::dnode::{Dnode, Inner};
use crate::objset::Objset;
use crate::rest_queue::{RestQueue, Waiting};
use crate::tree::reads_as_zeros;
use base::mutation::{mutated, Mutation};
use base::sync::MutexExt;
use disk::BlkPtr;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use zio::READ_AGAIN;

/// A block counts at least this many bytes here: a device that seeks reads a small block no faster.
const LEAST: u64 = 64 << 10;
/// Bytes of blocks that are read together.
const BATCH: u64 = 4 << 20;
/// Batches that a commit reads side by side.
const SIDE_BY_SIDE: usize = 4;
/// Threads in the background for each object set.
const JOBS: u32 = 2;

/// The blocks of an object set of which pieces were written and the rest has not been read.
pub type UnreadRests = RestQueue<Dnode>;

/// A block, with its object.
type Which = (Arc<Dnode>, u64);

fn bytes_of(block_size: usize) -> u64 {
    (block_size as u64).max(LEAST)
}

impl UnreadRests {
    /// For tests, in which little is written: bytes from which on the background reads, and from which on writers do. A block
    /// counts at least 64 KiB.
    pub fn set_limits(&self, start: u64, limit: u64) {
        self.start.store(start, Ordering::Relaxed);
        self.limit.store(limit, Ordering::Relaxed);
    }

    /// Pieces of these blocks of `size` bytes were written.
    pub(crate) fn add(&self, dn: &Dnode, blocks: &[u64], size: usize) {
        let mut st = self.state.acquire();
        st.objects.insert(dn.object(), dn.weak());
        for blkid in blocks {
            st.bytes += bytes_of(size);
            st.queue.push_back(Waiting {
                dn: dn.weak(),
                blkid: *blkid,
                bytes: bytes_of(size),
            });
        }
        self.bytes.store(st.bytes, Ordering::Relaxed);
    }

    /// A txg is on disk: forgets what it has completed.
    pub(crate) fn sweep(&self) {
        if self.bytes.load(Ordering::Relaxed) == 0 && self.state.acquire().objects.is_empty() {
            return;
        }
        let mut st = self.state.acquire();
        let has_any = |dn: &Weak<Dnode>| dn.upgrade().is_some_and(|d| d.has_unread());
        st.objects.retain(|_, dn| has_any(dn));
        let is_unread = |w: &Waiting<Dnode>| w.dn.upgrade().is_some_and(|d| d.is_unread(w.blkid));
        st.queue.retain(is_unread);
        st.bytes = st.queue.iter().map(|w| w.bytes).sum();
        self.bytes.store(st.bytes, Ordering::Relaxed);
    }

    /// The blocks that have waited longest, a batch of them; empty if none waits.
    fn take_batch(&self) -> Vec<Which> {
        let mut st = self.state.acquire();
        let (mut batch, mut bytes) = (Vec::new(), 0);
        while bytes < BATCH {
            let Some(w) = st.queue.pop_front() else {
                break;
            };
            st.bytes -= w.bytes;
            if let Some(dn) = w.dn.upgrade().filter(|d| d.is_unread(w.blkid)) {
                batch.push((dn, w.blkid));
                bytes += w.bytes;
            }
        }
        self.bytes.store(st.bytes, Ordering::Relaxed);
        batch
    }

    /// Reads the rest of all blocks of the object (`None`: of the object set) that were changed in part before. False if
    /// something could not be read, or not now: what was written over parts of such a block must not be promised.
    pub fn read(&self, object: Option<u64>) -> bool {
        if mutated(Mutation::RestsUnread) {
            return true;
        }
        let objects: Vec<Arc<Dnode>> = {
            let st = self.state.acquire();
            match object {
                Some(o) => st
                    .objects
                    .get(&o)
                    .and_then(Weak::upgrade)
                    .into_iter()
                    .collect(),
                None => st.objects.values().filter_map(Weak::upgrade).collect(),
            }
        };
        let batches = batches(&objects);
        let all = AtomicBool::new(true);
        let one = |batch: &[Which]| {
            if !read_batch(batch) {
                all.store(false, Ordering::Relaxed);
            }
        };
        for some in batches.chunks(SIDE_BY_SIDE) {
            match (some, objects.first()) {
                ([batch], _) => one(batch),
                (_, Some(dn)) => dn.dmu.env.cpu.par_io(some.len(), &|n| one(&some[n])),
                _ => {}
            }
        }
        if !batches.is_empty() {
            self.forget(&objects);
        }
        all.into_inner()
    }

    /// Takes out what was read of these objects.
    fn forget(&self, objects: &[Arc<Dnode>]) {
        let mut st = self.state.acquire();
        for dn in objects {
            if !dn.has_unread() {
                st.objects.remove(&dn.object());
            }
        }
        let among = |w: &Waiting<Dnode>| objects.iter().find(|d| w.dn.as_ptr() == Arc::as_ptr(d));
        let few = objects.len() == 1;
        st.queue
            .retain(|w| !few || among(w).is_none_or(|d| d.is_unread(w.blkid)));
        st.bytes = st.queue.iter().map(|w| w.bytes).sum();
        self.bytes.store(st.bytes, Ordering::Relaxed);
    }

    fn enter(&self) -> bool {
        let more = |n| (n < JOBS).then_some(n + 1);
        self.jobs
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more)
            .is_ok()
    }
}

/// A thread in the background.
struct Job(Arc<UnreadRests>);

impl Drop for Job {
    fn drop(&mut self) {
        self.0.jobs.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The blocks of these objects whose rests are unread, in batches.
fn batches(objects: &[Arc<Dnode>]) -> Vec<Vec<Which>> {
    let (mut list, mut batch, mut bytes) = (Vec::new(), Vec::new(), 0);
    for dn in objects {
        let (blocks, size) = {
            let i = dn.read_lock();
            (i.unread.iter().copied().collect::<Vec<_>>(), i.f.block_size)
        };
        for blkid in blocks {
            batch.push((dn.clone(), blkid));
            bytes += bytes_of(size);
            if bytes >= BATCH {
                list.push(std::mem::take(&mut batch));
                bytes = 0;
            }
        }
    }
    if !batch.is_empty() {
        list.push(batch);
    }
    list
}

/// Reads the rests of blocks of one object set into the block cache, in the order of their places. False if not all of them
/// could be read.
fn read_batch(blocks: &[Which]) -> bool {
    let Some((one, _)) = blocks.first() else {
        return true;
    };
    // Made before the trees are looked at.
    let reader = one.reader();
    let mut found: Vec<(BlkPtr, &Which, u64)> = Vec::with_capacity(blocks.len());
    let mut left: Vec<&Which> = Vec::new();
    for which in blocks {
        let (dn, blkid) = which;
        let (s, gen) = {
            let i = dn.read_lock();
            if !i.is_unread(*blkid) {
                continue;
            }
            (i.s.clone(), i.gen)
        };
        match s.lookup(&reader, *blkid) {
            Ok(bp) if !reads_as_zeros(&bp) && bp.lsize() == s.block_size => {
                found.push((bp, which, gen));
            }
            _ => left.push(which),
        }
    }
    let place = |bp: &BlkPtr| match bp.is_embedded() {
        true => (0, 0),
        false => (bp.dva(0).vdev(), bp.dva(0).offset()),
    };
    found.sort_by_key(|(bp, ..)| place(bp));
    let bps: Vec<BlkPtr> = found.iter().map(|(bp, ..)| *bp).collect();
    let got = one.dmu.zio.read_many(&bps, &reader.spec());
    for ((_, which, gen), r) in found.into_iter().zip(got) {
        if r.is_err() || !which.0.rest_is_read(which.1, gen) {
            left.push(which);
        }
    }
    // Each by itself: read again where a device fails for a moment, and damage is told.
    left.into_iter()
        .fold(true, |all, (dn, blkid)| dn.read_rest(*blkid) && all)
}

impl Objset {
    /// The blocks of which pieces were written and the rest has not been read.
    pub fn unread_rests(&self) -> &Arc<UnreadRests> {
        &self.rests
    }
}

impl Inner {
    /// Whether pieces of the block wait for a rest that nobody has read.
    pub(crate) fn is_unread(&self, blkid: u64) -> bool {
        let lacks = || self.bufs.get(&blkid).is_some_and(|b| b.data.lacks_old());
        self.unread.contains(&blkid) && lacks()
    }
}

impl Dnode {
    fn is_unread(&self, blkid: u64) -> bool {
        self.read_lock().is_unread(blkid)
    }

    fn has_unread(&self) -> bool {
        !self.read_lock().unread.is_empty()
    }

    /// The rest of the block was read from the tree of generation `gen`. False if that is not the tree any more.
    fn rest_is_read(&self, blkid: u64, gen: u64) -> bool {
        let mut i = self.write_lock();
        if i.gen == gen {
            i.unread.remove(&blkid);
        }
        i.gen == gen
    }

    /// Reads the rest of one block, if it is needed and unread. False if it cannot be read, or not now; damage is reported then.
    fn read_rest(&self, blkid: u64) -> bool {
        let (mut turns, mut again) = (0, READ_AGAIN);
        loop {
            let r = self.reader();
            let (s, gen) = {
                let i = self.read_lock();
                if !i.is_unread(blkid) {
                    return true;
                }
                (i.s.clone(), i.gen)
            };
            match s.read(&r, blkid) {
                Ok(_) if self.rest_is_read(blkid, gen) => return true,
                Ok(_) => {}
                // Not the block is the matter: the txg waits for the devices.
                Err(e) if e.is_damage() && self.dmu.zio.devices_away() => return false,
                // The sync does the same.
                Err(e) if e.kind == base::Kind::Io && again > 0 => {
                    again -= 1;
                    self.dmu.zio.pause_before(again);
                }
                Err(e) => {
                    if self
                        .read_failed(e, gen, r.failed.get(), &mut turns)
                        .is_err()
                    {
                        return false;
                    }
                }
            }
        }
    }

    /// Reads the rests of the blocks in which `range` of the object begins and ends, if they are unread. False if one cannot
    /// be read.
    pub fn read_rests_of(&self, range: Range<u64>) -> bool {
        let edges = {
            let i = self.read_lock();
            let size = i.f.block_size as u64;
            let (first, last) = (range.start / size, range.end.saturating_sub(1) / size);
            match i.unread.is_empty() || mutated(Mutation::RestsUnread) {
                true => return true,
                false => i.unread.range(first..=last.max(first)).copied().collect(),
            }
        };
        let edges: Vec<u64> = edges;
        edges.into_iter().all(|b| self.read_rest(b))
    }

    /// To be called before a transaction that may write over parts of blocks: keeps the reading of rests up with the writing.
    /// Of an object with damage the blocks that `[offset, offset + len)` begins and ends within are read at once, see
    /// [`Dnode::check_edges`].
    pub fn keep_up(&self, offset: u64, len: u64) -> base::Result<()> {
        if self.is_hurt() {
            self.check_edges(offset, len)?;
        }
        let Ok(os) = self.objset() else {
            return Ok(());
        };
        let rests = os.unread_rests();
        let bytes = rests.bytes.load(Ordering::Relaxed);
        if bytes >= rests.limit.load(Ordering::Relaxed) {
            base::waits::about_to_wait();
            read_batch(&rests.take_batch());
        } else if bytes >= rests.start.load(Ordering::Relaxed) && rests.enter() {
            let job = Job(rests.clone());
            self.dmu.later(move || loop {
                let batch = job.0.take_batch();
                if batch.is_empty() {
                    break;
                }
                read_batch(&batch);
            });
        }
        Ok(())
    }
}
