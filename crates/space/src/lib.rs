//! The allocator: where blocks go on top-level vdevs, by metaslabs and allocation classes, and when freed space may
//! be used again.
//!
//! It works in memory, without I/O or threads. The pool tells [`Space`] which top-level vdevs and
//! metaslabs there are, and hands over the free ranges it read from space maps (at once, or on demand
//! through [`Loader`]). For each txg it collects the changes ([`Space::take_changes`])
//! and writes them into space maps.
//!
//! Life of a range (pool format §16.5):
//!
//! ```text
//! allocatable --alloc/claim--> pending alloc --take_changes--> allocated on disk
//!      ^                            |                                |
//!      |<---------unalloc-----------+                              free
//!      |                                                             v
//!      +--- two further sync_done --- deferred <--sync_done-- recorded <--take_changes-- pending free
//! ```
//!
//! Invariant: a range freed in a txg is recorded as free in that txg, but it is not allocated again before two further
//! txgs have synced. So the last uberblocks stay usable.
//!
//! Whoever discards or overwrites free ranges takes their metaslab out of allocation meanwhile ([`Space::disable`]). What is out of
//! allocation counts as free: a request that finds no other place waits for it.
//!
//! All offsets and sizes are bytes; offsets are relative to the vdev's allocatable space, as in a
//! DVA. One lock guards everything; it is never held while a [`Loader`] runs.
//!
//! Start reading at [`Space::alloc`], then `alloc.rs`.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod alloc;
mod disabled;
mod freemap;
mod metaslab;
pub mod replay;
mod stats;
mod top;

pub use disabled::{Disabled, FreePiece};
pub use replay::{replay, SmOp, Unflushed};
pub use stats::{slop, ClassStats, Stats, VdevStats};

use base::mutation::{mutated, Mutation};
use base::sync::{CondvarExt, MutexExt, OnPanic, RwLockExt};
use base::{bail, Error, Kind, RangeSet, Result, Txg};
use metaslab::{Ms, State};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, RwLock};
use top::Top;

/// Allocation class of a top-level vdev and of a request (pool format §16.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Class {
    /// Everything else; other classes fall back to it.
    Normal,
    /// Separate log devices; falls back to special, the embedded log, then normal.
    Log,
    /// Metadata and small blocks; falls back to normal.
    Special,
    /// Dedup tables; falls back to special, then normal.
    Dedup,
}

/// A top-level vdev as the allocator sees it.
#[derive(Clone, Copy, Debug)]
pub struct TopSpec {
    /// Number of the vdev, as in a DVA.
    pub id: u64,
    /// Allocatable bytes; the tail beyond the last whole metaslab is not used.
    pub asize: u64,
    /// log2 of the sector size in bytes.
    pub ashift: u32,
    /// Metaslab m covers `[m << ms_shift, (m + 1) << ms_shift)`.
    pub ms_shift: u32,
    /// What is allocated on it.
    pub class: Class,
    /// Deflated bytes = bytes / 512 × this; 512 for everything but raidz (pool format §9).
    pub deflate_ratio: u64,
    /// Number of children that work in parallel; 1 for a disk. Scales the rotor.
    pub children: u64,
    /// Every allocation's offset and size is a multiple of this; 0 means `1 << ashift`. dRAID sets
    /// its group width: metaslabs are then trimmed to multiples of it.
    pub align: u64,
}

/// What the pool knows of a metaslab before it reads the space map.
#[derive(Clone, Copy, Debug, Default)]
pub struct MsHint {
    /// Allocated bytes: `smp_alloc` plus unflushed allocs minus unflushed frees.
    pub allocated: u64,
    /// Histogram of the 320-byte bonus: bucket i counts free segments of at least
    /// `1 << (i + ashift)` bytes.
    pub histogram: Option<[u64; 32]>,
}

/// Reads space maps when the allocator first wants a metaslab. Called without any lock held; must
/// not call back into the same [`Space`] for the same metaslab.
pub trait Loader: Send + Sync {
    /// The free ranges (vdev offsets) as of the newest state on disk, unflushed log entries
    /// included. Whether changes already taken by [`Space::take_changes`] but not yet synced are
    /// contained does not matter.
    fn load(&self, vdev: u64, ms: u64) -> Result<RangeSet>;
}

/// A size that no vdev has room for ([`AllocReq::size_on`]).
pub const NOT_HERE: u64 = 1 << 62;

/// A request for space.
pub struct AllocReq<'a> {
    /// The class to try first.
    pub class: Class,
    /// 1 to 3 copies, on different vdevs where possible.
    pub copies: usize,
    /// Txg that will write the block.
    pub txg: Txg,
    /// Allocated size on a vdev in bytes, parity included. On a vdev that is not to be used: [`NOT_HERE`]. Pure: must not call back.
    pub size_on: &'a dyn Fn(u64) -> u64,
    /// Streams with different hints (modulo 4) are placed apart: use one number for file data, one
    /// for metadata, one for the log.
    pub hint: u64,
}

/// The allocated range of one copy of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Extent {
    /// Number of the top-level vdev.
    pub vdev: u64,
    /// Bytes from the start of the vdev's allocatable space.
    pub offset: u64,
    /// Allocated bytes, parity included.
    pub asize: u64,
}

impl Extent {
    /// As a DVA that is not a gang.
    pub fn dva(&self) -> disk::Dva {
        disk::Dva::new(self.vdev, self.offset, self.asize, false)
    }
}

/// What changed in one metaslab since the previous call for the same txg. Append the allocs
/// first, then the frees.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MsChange {
    /// Number of the top-level vdev.
    pub vdev: u64,
    /// Number of the metaslab on it.
    pub ms: u64,
    /// Vdev offsets.
    pub allocs: RangeSet,
    /// Vdev offsets, as in `allocs`.
    pub frees: RangeSet,
}

pub(crate) struct Inner {
    tops: BTreeMap<u64, Top>,
    /// Metaslabs with changes, per txg.
    dirty: BTreeMap<Txg, BTreeSet<(u64, u64)>>,
    /// Metaslabs with deferred frees, by generation.
    deferred: BTreeMap<u64, Vec<(u64, u64)>>,
    /// Number of `sync_done` calls so far.
    generation: u64,
    last_synced: Txg,
    rotors: [[alloc::Rotor; alloc::STREAMS]; 5],
    /// Requests for more bytes fail; see [`Space::set_largest`].
    largest: u64,
    /// Freed ranges are reused as soon as possible; see [`Space::set_eager`].
    eager: bool,
    /// Metaslabs that are out of allocation for the moment, counted as often as they are.
    disabled: u64,
    /// See [`Space::collect`].
    collect: bool,
    /// What lies before multiples of so many bytes is taken first, unless 0; see [`Space::set_edges`].
    edges: u64,
}

impl Inner {
    fn top(&mut self, vdev: u64) -> Result<&mut Top> {
        match self.tops.get_mut(&vdev) {
            Some(t) => Ok(t),
            None => bail!(Damaged, "no top-level vdev {vdev}"),
        }
    }

    fn ms(&mut self, vdev: u64, ms: u64) -> Result<&mut Ms> {
        match self.top(vdev)?.ms.get_mut(ms as usize) {
            Some(m) => Ok(m),
            None => bail!(Damaged, "no metaslab {ms} on vdev {vdev}"),
        }
    }

    /// Number of the metaslab that contains all of the range.
    fn locate(&mut self, vdev: u64, offset: u64, asize: u64) -> Result<u64> {
        let top = self.top(vdev)?;
        let n = offset >> top.spec.ms_shift;
        let fits = offset.checked_add(asize).is_some_and(|end| {
            top.ms
                .get(n as usize)
                .is_some_and(|m| offset >= m.start && end <= m.end)
        });
        if !fits || asize == 0 || (offset | asize) % (1 << top.spec.ashift) != 0 {
            bail!(
                Damaged,
                "range {offset:#x}+{asize:#x} is not inside a metaslab of vdev {vdev}"
            );
        }
        Ok(n)
    }

    /// The txgs up to `txg` that changed something. `Kind::Bug` if some of that was never
    /// taken.
    fn all_taken(&mut self, txg: Txg) -> Result<Vec<Txg>> {
        let groups: Vec<Txg> = self.dirty.range(..=txg).map(|(&t, _)| t).collect();
        for &t in &groups {
            let keys: Vec<_> = self.dirty[&t].iter().copied().collect();
            for (vdev, ms) in keys {
                let left = self
                    .ms(vdev, ms)?
                    .pend
                    .get(&t)
                    .is_some_and(|p| !p.allocs.is_empty() || !p.frees.is_empty());
                if left {
                    bail!(
                        Bug,
                        "changes of txg {t} in metaslab {ms} of vdev {vdev} were not written"
                    );
                }
            }
        }
        Ok(groups)
    }
}

/// The allocator of one pool; see the module.
pub struct Space {
    inner: Mutex<Inner>,
    /// Signalled when a metaslab's load ends.
    loaded: Condvar,
    /// Signalled when a metaslab is given back to allocation.
    enabled: Condvar,
    loader: RwLock<Option<Arc<dyn Loader>>>,
    /// The first broken invariant that a call in open context met.
    bug: Mutex<Option<Error>>,
}

impl Default for Space {
    fn default() -> Self {
        Space::new()
    }
}

impl Space {
    /// A pool without vdevs.
    pub fn new() -> Space {
        Space {
            inner: Mutex::new(Inner {
                tops: BTreeMap::new(),
                dirty: BTreeMap::new(),
                deferred: BTreeMap::new(),
                generation: 0,
                last_synced: Txg::NONE,
                rotors: Default::default(),
                largest: u64::MAX,
                disabled: 0,
                collect: false,
                edges: 0,
                eager: false,
            }),
            loaded: Condvar::new(),
            enabled: Condvar::new(),
            loader: RwLock::new(None),
            bug: Mutex::new(None),
        }
    }

    /// Sets what reads space maps on demand; `None` drops it (closing the pool).
    pub fn set_loader(&self, loader: Option<Arc<dyn Loader>>) {
        *self.loader.acquire_write() = loader;
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.acquire()
    }

    // ---- vdevs and metaslabs ----

    /// Adds a top-level vdev. Every metaslab counts as never written (wholly free) until
    /// [`Space::set_hint`] or [`Space::load_metaslab`] says otherwise. Allocation is on.
    pub fn add_top(&self, spec: TopSpec) -> Result<()> {
        self.add_top_in(spec, Txg::NONE)
    }

    /// The same for a vdev whose metaslabs are made in `txg`. Until that txg is on disk only blocks of it are placed there: a
    /// log block of a later one would be on a vdev that nobody finds after a crash.
    pub fn add_top_in(&self, spec: TopSpec, txg: Txg) -> Result<()> {
        let top = Top::new(spec, txg)?;
        let mut inner = self.lock();
        if inner.tops.contains_key(&spec.id) {
            bail!(Exists, "top-level vdev {} is there already", spec.id);
        }
        inner.tops.insert(spec.id, top);
        Ok(())
    }

    /// The vdev grew: appends metaslabs, which are made in `txg` (see [`Space::add_top_in`]). Returns how many are new.
    pub fn grow_top(&self, vdev: u64, asize: u64, txg: Txg) -> Result<u64> {
        self.lock().top(vdev)?.grow(asize, txg)
    }

    /// Forgets a vdev (a removed log device) with everything pending on it.
    pub fn remove_top(&self, vdev: u64) {
        let mut inner = self.lock();
        inner.tops.remove(&vdev);
        for set in inner.dirty.values_mut() {
            set.retain(|&(v, _)| v != vdev);
        }
        for list in inner.deferred.values_mut() {
            list.retain(|&(v, _)| v != vdev);
        }
    }

    /// A vdev that is missing or read-only is not allocated from; frees are still recorded.
    pub fn set_writable(&self, vdev: u64, on: bool) -> Result<()> {
        self.lock().top(vdev)?.writable = on;
        Ok(())
    }

    /// Whether blocks may be written to a vdev, as was set last.
    pub fn is_writable(&self, vdev: u64) -> bool {
        self.lock().tops.get(&vdev).is_some_and(|t| t.writable)
    }

    /// Sets the vdev property `allocating`: without it nothing is allocated on the vdev.
    pub fn set_allocating(&self, vdev: u64, on: bool) -> Result<()> {
        self.lock().top(vdev)?.allocating = on;
        Ok(())
    }

    /// Whether the vdev property `allocating` was set last, as [`Space::set_allocating`] says.
    pub fn is_allocating(&self, vdev: u64) -> bool {
        self.lock().tops.get(&vdev).is_some_and(|t| t.allocating)
    }

    /// Number of metaslabs of a vdev.
    pub fn metaslab_count(&self, vdev: u64) -> u64 {
        let mut inner = self.lock();
        inner.top(vdev).map_or(0, |t| t.ms.len() as u64)
    }

    /// `[start, end)` of a metaslab in vdev offsets.
    pub fn metaslab_bounds(&self, vdev: u64, ms: u64) -> Result<(u64, u64)> {
        let mut inner = self.lock();
        let m = inner.ms(vdev, ms)?;
        Ok((m.start, m.end))
    }

    /// The metaslab has a space map that is not read yet; the allocator loads it when it wants it.
    pub fn set_hint(&self, vdev: u64, ms: u64, hint: MsHint) -> Result<()> {
        let mut inner = self.lock();
        let top = inner.top(vdev)?;
        let ashift = top.spec.ashift;
        let Some(m) = top.ms.get_mut(ms as usize) else {
            bail!(Damaged, "no metaslab {ms} on vdev {vdev}");
        };
        if !m.is_clean() {
            bail!(Busy, "metaslab {ms} of vdev {vdev} is in use");
        }
        if hint.allocated > m.size() {
            bail!(
                Damaged,
                "metaslab {ms} of vdev {vdev}: {} bytes allocated of {}",
                hint.allocated,
                m.size()
            );
        }
        m.state = State::Unloaded(
            hint.histogram
                .map(|h| Box::new(metaslab::widen(&h, ashift))),
        );
        let old = std::mem::replace(&mut m.allocated, hint.allocated);
        let acct = &mut top.acct[m.embedded as usize];
        acct.allocated = acct.allocated - old + hint.allocated;
        Ok(())
    }

    /// Gives the metaslab its free ranges (vdev offsets, inside the metaslab).
    pub fn load_metaslab(&self, vdev: u64, ms: u64, free: RangeSet) -> Result<()> {
        let mut inner = self.lock();
        let top = inner.top(vdev)?;
        let r = top.finish_load(ms, free);
        drop(inner);
        self.loaded.notify_all();
        r
    }

    /// Loads a metaslab now if it is not.
    pub fn ensure_loaded(&self, vdev: u64, ms: u64) -> Result<()> {
        let mut inner = self.lock();
        loop {
            match &mut inner.ms(vdev, ms)?.state {
                State::Loaded(_) => return Ok(()),
                State::Failed(e) => return Err(e.clone()),
                State::Loading => {
                    inner = self.loaded.wait_acquire(inner);
                }
                State::Unloaded(_) => {
                    drop(inner);
                    self.load_now(vdev, ms);
                    inner = self.lock();
                }
            }
        }
    }

    /// Drops the range trees of metaslabs not used for `idle` txgs (memory). They need a loader
    /// to come back; without one nothing is dropped. Returns how many were dropped.
    pub fn unload_idle(&self, now: Txg, idle: u64) -> usize {
        let has_loader = self.loader.acquire_read().is_some();
        if !has_loader {
            return 0;
        }
        let mut n = 0;
        for top in self.lock().tops.values_mut() {
            n += top.unload_idle(now, idle);
        }
        n
    }

    /// Runs the loader for one unloaded metaslab, without the lock. Ends loaded or failed.
    fn load_now(&self, vdev: u64, ms: u64) {
        {
            let mut inner = self.lock();
            let Ok(m) = inner.ms(vdev, ms) else { return };
            let State::Unloaded(hist) = &m.state else {
                return;
            };
            m.hist_hint = hist.clone();
            m.state = State::Loading;
        }
        // Threads that wait for the metaslab must not wait for ever.
        let _guard = OnPanic::new(|| {
            let e = base::Error::damaged("a panic while the space map was read");
            self.end_load(vdev, ms, Err(e));
        });
        let loader = self.loader.acquire_read().clone();
        let free = match loader {
            Some(l) => l.load(vdev, ms),
            None => Err(base::Error::new(
                base::Kind::Bug,
                "no reader for space maps",
            )),
        };
        self.end_load(vdev, ms, free);
    }

    fn end_load(&self, vdev: u64, ms: u64, free: Result<RangeSet>) {
        let mut inner = self.lock();
        if let Ok(top) = inner.top(vdev) {
            let r = free.and_then(|f| top.finish_load(ms, f));
            if let (Err(e), Some(m)) = (r, top.ms.get_mut(ms as usize)) {
                m.state =
                    State::Failed(e.context(format!("space map of metaslab {ms}, vdev {vdev}")));
                m.late.clear();
            }
        }
        drop(inner);
        self.loaded.notify_all();
    }

    /// Forgets I/O errors of space maps, so that they are read again: devices are back.
    pub fn retry_failed(&self) {
        for top in self.lock().tops.values_mut() {
            for m in &mut top.ms {
                let failed =
                    |e: &base::Error| matches!(e.kind, base::Kind::Io | base::Kind::NoDevice);
                if matches!(&m.state, State::Failed(e) if failed(e)) {
                    m.state = State::Unloaded(m.hist_hint.clone());
                }
            }
        }
    }

    /// Metaslabs `(vdev, metaslab, error)` whose space map could not be loaded; nothing is allocated from them.
    pub fn load_errors(&self) -> Vec<(u64, u64, base::Error)> {
        let inner = self.lock();
        let mut out = Vec::new();
        for (&id, top) in &inner.tops {
            for (n, m) in top.ms.iter().enumerate() {
                if let State::Failed(e) = &m.state {
                    out.push((id, n as u64, e.clone()));
                }
            }
        }
        out
    }

    /// Sets the emptiest metaslab of every normal vdev with more than `min_ms` metaslabs (64 in the
    /// reference) aside for the log (pool format §16.6). Call once after the hints are known.
    pub fn choose_embedded_logs(&self, min_ms: u64) {
        for top in self.lock().tops.values_mut() {
            top.choose_embedded_log(min_ms);
        }
    }

    // ---- allocation ----

    /// From now on requests for more than `bytes` bytes fail, as in a fragmented pool. For tests of gang
    /// blocks.
    pub fn set_largest(&self, bytes: u64) {
        self.lock().largest = bytes;
    }

    /// From now on the smallest free range that fits is taken, so freed space is reused as soon as that is
    /// allowed. For tests that look for space reused too early.
    pub fn set_eager(&self, on: bool) {
        self.lock().eager = on;
    }

    /// From now on a metaslab is filled from shortly before the first multiple of `bytes` bytes in it, or from shortly before its
    /// end if there is none. 0: as usual. For tests of blocks that cross the groups of a dRAID, or end with a metaslab.
    pub fn set_edges(&self, bytes: u64) {
        self.lock().edges = bytes;
    }

    /// Finds and takes space. `Kind::NoSpace` when no vdev of the class (or of those it falls back
    /// to) has a contiguous region for every copy: the caller then gangs with smaller sizes.
    ///
    /// # Errors
    /// `Kind::Bug`: the txg has synced, or a size or the number of copies cannot be ([`Space::bug`]).
    pub fn alloc(&self, req: &AllocReq<'_>) -> Result<Vec<Extent>> {
        base::mutation::panic_point("allocating");
        self.noted(self.find_and_take(req))
    }

    /// The first broken invariant that an allocation or a free met. Such a call may come from a thread that serves a request, which gets
    /// the error; no txg may be committed any more.
    pub fn bug(&self) -> Option<Error> {
        self.bug.acquire().clone()
    }

    fn noted<R>(&self, r: Result<R>) -> Result<R> {
        if let Err(e) = &r {
            if e.is_bug() {
                self.bug.acquire().get_or_insert_with(|| e.clone());
            }
        }
        r
    }

    fn find_and_take(&self, req: &AllocReq<'_>) -> Result<Vec<Extent>> {
        if req.copies == 0 || req.copies > 3 {
            bail!(Bug, "{} copies of a block", req.copies);
        }
        let mut inner = self.lock();
        loop {
            match inner.try_alloc(req) {
                // What is out of allocation comes back in a moment.
                Err(e) if e.kind == Kind::NoSpace && inner.disabled > 0 => {
                    inner = self.enabled.wait_acquire(inner);
                }
                Err(e) => return Err(e),
                Ok(alloc::Tried::Done(v)) => return Ok(v),
                Ok(alloc::Tried::Load(vdev, ms)) => {
                    drop(inner);
                    // Failure marks the metaslab, so that the next round passes it by.
                    let _ = self.ensure_loaded(vdev, ms);
                    inner = self.lock();
                }
            }
        }
    }

    /// Takes back what [`Space::alloc`] gave in the same txg, and what no block pointer refers to or will
    /// refer to. Reusable at once if the allocation was not yet taken by [`Space::take_changes`];
    /// otherwise the same as [`Space::free`].
    pub fn unalloc(&self, vdev: u64, offset: u64, asize: u64, txg: Txg) -> Result<()> {
        self.noted(self.take_back(vdev, offset, asize, txg))
    }

    fn take_back(&self, vdev: u64, offset: u64, asize: u64, txg: Txg) -> Result<()> {
        let mut inner = self.lock();
        let n = inner.locate(vdev, offset, asize)?;
        let top = inner.top(vdev)?;
        let m = &mut top.ms[n as usize];
        let end = offset + asize;
        let State::Loaded(tree) = &mut m.state else {
            bail!(Bug, "unalloc in a metaslab that is not loaded");
        };
        match m.pend.get_mut(&txg) {
            Some(p) if p.allocs.contains(offset, end) && !p.frees.overlaps(offset, end) => {
                p.allocs.remove(offset, end);
                if !tree.add(offset, end) {
                    bail!(Damaged, "unalloc of free space at {offset:#x}, vdev {vdev}");
                }
                m.allocated -= asize;
                top.acct[m.embedded as usize].allocated -= asize;
                Ok(())
            }
            _ => {
                drop(inner);
                self.free(vdev, offset, asize, txg)
            }
        }
    }

    /// Marks a range as allocated that an intent log uses (import; pool format §26.3). `Damaged`
    /// if any part of it is not free.
    pub fn claim(&self, vdev: u64, offset: u64, asize: u64, txg: Txg) -> Result<()> {
        let n = self.lock().locate(vdev, offset, asize)?;
        self.ensure_loaded(vdev, n)?;
        let mut inner = self.lock();
        let top = inner.top(vdev)?;
        let m = &mut top.ms[n as usize];
        let State::Loaded(tree) = &mut m.state else {
            bail!(Again, "metaslab unloaded while claiming");
        };
        if !tree.take(offset, offset + asize) {
            bail!(
                Damaged,
                "claimed range {offset:#x}+{asize:#x} on vdev {vdev} is not free"
            );
        }
        top.note_alloc(n, offset, asize, txg);
        inner.dirty.entry(txg).or_default().insert((vdev, n));
        Ok(())
    }

    /// Reads what [`Space::claim`] needs. Errors: as there, but for ranges in use.
    pub fn load_for_claim(&self, vdev: u64, offset: u64, asize: u64) -> Result<()> {
        let n = self.lock().locate(vdev, offset, asize)?;
        self.ensure_loaded(vdev, n)
    }

    /// Whether all of the range can be claimed (is free and not deferred).
    pub fn claimable(&self, vdev: u64, offset: u64, asize: u64) -> Result<bool> {
        let n = self.lock().locate(vdev, offset, asize)?;
        self.ensure_loaded(vdev, n)?;
        let mut inner = self.lock();
        Ok(match &inner.ms(vdev, n)?.state {
            State::Loaded(tree) => tree.contains(offset, offset + asize),
            _ => false,
        })
    }

    /// Frees a range in txg `txg`. It is not handed out again before two further txgs have
    /// synced. `Kind::Damaged` when (part of) it is free already; nothing changes then.
    pub fn free(&self, vdev: u64, offset: u64, asize: u64, txg: Txg) -> Result<()> {
        base::mutation::panic_point("freeing space");
        self.noted(self.give_back(vdev, offset, asize, txg))
    }

    fn give_back(&self, vdev: u64, offset: u64, asize: u64, txg: Txg) -> Result<()> {
        let mut inner = self.lock();
        if txg <= inner.last_synced {
            bail!(Bug, "free in txg {txg}, which has synced");
        }
        let n = inner.locate(vdev, offset, asize)?;
        let top = inner.top(vdev)?;
        let m = &mut top.ms[n as usize];
        if m.known_free(offset, offset + asize) {
            bail!(
                Damaged,
                "freeing free space: {offset:#x}+{asize:#x} on vdev {vdev}"
            );
        }
        if m.allocated < asize {
            bail!(
                Damaged,
                "freeing more than is allocated in metaslab {n} of vdev {vdev}"
            );
        }
        m.pend
            .entry(txg)
            .or_default()
            .frees
            .insert(offset, offset + asize);
        m.allocated -= asize;
        let acct = &mut top.acct[m.embedded as usize];
        acct.allocated -= asize;
        acct.deferred += asize;
        inner.dirty.entry(txg).or_default().insert((vdev, n));
        Ok(())
    }

    // ---- txgs ----

    /// What changed in txg `txg` since the previous call for it, by vdev and metaslab. Called in
    /// every sync pass until it returns nothing.
    pub fn take_changes(&self, txg: Txg) -> Vec<MsChange> {
        let mut inner = self.lock();
        let keys: Vec<_> = inner
            .dirty
            .get(&txg)
            .into_iter()
            .flatten()
            .copied()
            .collect();
        let mut out = Vec::new();
        for (vdev, ms) in keys {
            let Ok(m) = inner.ms(vdev, ms) else { continue };
            let Some(p) = m.pend.get_mut(&txg) else {
                continue;
            };
            if p.allocs.is_empty() && p.frees.is_empty() {
                continue;
            }
            let allocs = std::mem::take(&mut p.allocs);
            let frees = std::mem::take(&mut p.frees);
            for (s, e) in frees.iter() {
                p.freed.insert(s, e);
            }
            for (s, e) in allocs.iter() {
                p.placed.insert(s, e);
            }
            out.push(MsChange {
                vdev,
                ms,
                allocs,
                frees,
            });
        }
        out
    }

    /// Whether [`Space::take_changes`] would return something.
    pub fn has_changes(&self, txg: Txg) -> bool {
        let mut inner = self.lock();
        let keys: Vec<_> = inner
            .dirty
            .get(&txg)
            .into_iter()
            .flatten()
            .copied()
            .collect();
        keys.into_iter().any(|(vdev, ms)| {
            inner.ms(vdev, ms).is_ok_and(|m| {
                m.pend
                    .get(&txg)
                    .is_some_and(|p| !p.allocs.is_empty() || !p.frees.is_empty())
            })
        })
    }

    /// `txg` was empty and was not written: deferred ranges stay deferred, since the states that use
    /// them are still the newest on disk. `Kind::Bug` if changes of it were never taken.
    pub fn sync_skipped(&self, txg: Txg) -> Result<()> {
        let mut inner = self.lock();
        inner.all_taken(txg)?;
        inner.last_synced = inner.last_synced.max(txg);
        Ok(())
    }

    /// Whether so much of the free space is deferred that the next txgs may not find space: more
    /// than a quarter of what can be allocated now, in the normal class.
    pub fn is_tight(&self) -> bool {
        let s = self.class_stats(Class::Normal);
        let free = s.size.saturating_sub(s.allocated);
        s.deferred > free.saturating_sub(s.deferred) / 4
    }

    /// The uberblock of `txg` is on disk: its frees become deferred, those deferred two txgs ago
    /// become allocatable. `Kind::Bug` if changes of this or an older txg were never taken;
    /// nothing moves then.
    pub fn sync_done(&self, txg: Txg) -> Result<()> {
        base::mutation::panic_point("giving out what was freed");
        let mut inner = self.lock();
        let groups = inner.all_taken(txg)?;
        inner.generation += 1;
        inner.last_synced = inner.last_synced.max(txg);
        let generation = inner.generation;
        let collect = inner.collect;
        // Deferred with generation g have seen g+1 and now g+2.
        let groups_kept = match mutated(Mutation::FreeReusedEarly) {
            true => 1,
            false => 2,
        };
        let due: Vec<u64> = inner
            .deferred
            .range(..=generation.saturating_sub(groups_kept))
            .map(|(&g, _)| g)
            .collect();
        for g in due {
            for (vdev, ms) in inner.deferred.remove(&g).unwrap_or_default() {
                inner.top(vdev)?.release(ms, g, collect);
            }
        }
        for t in groups {
            for (vdev, ms) in inner.dirty.remove(&t).unwrap_or_default() {
                if inner.ms(vdev, ms)?.defer(t, generation) {
                    inner
                        .deferred
                        .entry(generation)
                        .or_default()
                        .push((vdev, ms));
                }
            }
        }
        Ok(())
    }

    /// The free ranges of a metaslab exactly as replaying everything handed out by
    /// [`Space::take_changes`] so far would give them: for condensing (pool format §16.3), deferred
    /// ranges included, changes not yet taken left out (their own entries follow). Loads the
    /// metaslab if needed.
    pub fn free_ranges(&self, vdev: u64, ms: u64) -> Result<RangeSet> {
        self.ensure_loaded(vdev, ms)?;
        let mut inner = self.lock();
        inner.ms(vdev, ms)?.recorded_free()
    }

    /// The ranges of a metaslab within `[from, to)` that were allocated in txgs that are on disk, and not freed since in one that is
    /// on disk or is being written. None of them can be given to another block before two further txgs have synced.
    ///
    /// # Errors
    /// `Kind::Again`: the metaslab is not loaded ([`Space::ensure_loaded`]).
    pub fn settled(&self, vdev: u64, ms: u64, from: u64, to: u64) -> Result<Vec<(u64, u64)>> {
        self.lock().ms(vdev, ms)?.settled(from, to)
    }

    /// What is allocated in a metaslab now: every allocation and every free of any txg counts, whether it was taken by
    /// [`Space::take_changes`] or not.
    ///
    /// # Errors
    /// `Kind::Again`: the metaslab is not loaded ([`Space::ensure_loaded`]).
    pub fn in_use(&self, vdev: u64, ms: u64) -> Result<RangeSet> {
        self.lock().ms(vdev, ms)?.in_use()
    }

    /// The ranges of a metaslab within `[from, to)` that cannot be given out: in use in a txg that is on disk or is to come, or free but
    /// not yet to be used again.
    ///
    /// # Errors
    /// `Kind::Again`: the metaslab is not loaded ([`Space::ensure_loaded`]).
    pub fn withheld(&self, vdev: u64, ms: u64, from: u64, to: u64) -> Result<Vec<(u64, u64)>> {
        self.lock().ms(vdev, ms)?.withheld(from, to)
    }

    /// Histogram for the space map's bonus: bucket i counts free segments of `[2^(i+a), 2^(i+a+1))`
    /// bytes, a = ashift; larger ones count in bucket 31, scaled. Deferred ranges are included.
    pub fn histogram(&self, vdev: u64, ms: u64) -> Result<[u64; 32]> {
        let mut inner = self.lock();
        let ashift = inner.top(vdev)?.spec.ashift;
        let m = inner.ms(vdev, ms)?;
        Ok(metaslab::narrow(&m.full_hist(), ashift))
    }
}
