//! Expansion of a RAID-Z: one child more, while the vdev is in use (pool format §10).
//!
//! The sectors of the vdev keep their order. In that order they are copied from their places among W children to those among
//! W + 1. Three numbers say how far that is:
//!
//! * `done`, in the uberblock on disk: rows that end before it are at their new places. All others are at their old ones.
//! * `next`, in memory: sectors from `done` on that were copied already, in this import. Writes to them go to both places
//!   ([`crate::map::Also`]).
//! * the limit ([`Vdev::expansion_limit`]): sectors from `next` on that may be copied before an uberblock says more.
//!
//! Invariants:
//!
//! 1. No copy overwrites the old place of a sector that belongs to a row which the uberblock on disk has at its old place.
//! 2. `done` grows only when an uberblock that says so is on disk, after everything that was copied is flushed, and while no read
//!    and no write is under way ([`crate::copying::Copying::alone`]).
//! 3. While a range is copied, writes to it wait. A write that waited finds its places afterwards.
//! 4. Nothing is copied while a child is not whole. What was copied and is in no uberblock is copied again then
//!    ([`VdevTree::retreat_expansion`]): the child may have missed writes to either place.
//! 5. A child whose cache may have lost a copy lacks every txg, for what is copied was born in any.
//!
//! At the beginning a row and its new place overlap. So the first sectors, as many as fit into the boot areas of all children, go
//! there ([`VdevTree::fill_scratch`]) before they go to their new places ([`VdevTree::empty_scratch`]), with an uberblock in between.

use crate::copying::Window;
use crate::io_counts::IoClass;
use crate::keys;
use crate::map::Reflow;
use crate::node::{Vdev, VdevKind};
use crate::open::{choose_ashift, new_leaf, open_new};
use crate::spec::DevSpec;
use crate::state::State;
use crate::unflushed::{sum_of, Mark};
use crate::VdevTree;
use base::sync::MutexExt;
use base::{bail, Block, Error, Kind, Result, Txg};
use disk::label::{self, leaf_asize, DATA_START};
use disk::{NvList, Uberblock};
use env::Op;
use std::sync::{Arc, Mutex};

/// Longest gap between two ranges that is copied along, bytes of the vdev.
pub const EXPANSION_GAP: u64 = 64 << 10;

/// Why a RAID-Z cannot be expanded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpansionRefusal {
    /// A child is not there, lacks something, or is being replaced.
    NotWhole,
    /// Sectors are so large that the scratch area is too small for so many children.
    TooWide,
}

/// The scratch area is filled or emptied until it is dropped: writes to the beginning of the vdev wait.
pub struct ScratchWindow<'a>(#[allow(dead_code)] Window<'a>);

impl Vdev {
    /// Bytes of the vdev that fit into the boot areas of all children.
    pub fn scratch_size(&self) -> u64 {
        (self.scratch_rows() << self.ashift()) * self.children().len() as u64
    }

    /// Sectors of the boot area of one child.
    fn scratch_rows(&self) -> u64 {
        (DATA_START - label::BOOT_AREA) >> self.ashift()
    }

    /// Where the copying ends: the end of the last metaslab.
    pub fn expansion_end(&self) -> u64 {
        self.metaslab_count() << self.metaslab_shift()
    }

    /// The byte before which sectors may be copied now (invariant 1). OpenZFS has the same.
    pub fn expansion_limit(&self) -> u64 {
        let Some(r) = self.reflow() else { return 0 };
        let (done, width) = (r.done >> self.ashift(), self.children().len() as u64 - 1);
        let limit = (done + done / width.max(1)).saturating_sub(width);
        (limit << self.ashift()).min(self.expansion_end())
    }

    /// Whether every child is a device that works and lacks nothing.
    pub fn is_whole(&self) -> bool {
        let whole =
            |c: &Arc<Vdev>| c.kind().is_leaf() && c.state() == State::Healthy && c.dtl_is_empty();
        self.children().iter().all(whole)
    }

    /// What speaks against one child more.
    pub fn expansion_refusal(&self) -> Option<ExpansionRefusal> {
        if !self.is_whole() {
            return Some(ExpansionRefusal::NotWhole);
        }
        // Copying goes on from the scratch area by its rows less a row of the vdev.
        let fits = self.scratch_rows() > self.children().len() as u64 + 1;
        (!fits).then_some(ExpansionRefusal::TooWide)
    }
}

/// Where sector `k` is among `width` children: child and byte offset.
fn place(k: u64, width: u64, ashift: u32) -> (usize, u64) {
    ((k % width) as usize, (k / width) << ashift)
}

/// The rows of child `child` that have sectors of `[from, to)`: first and end.
fn rows(child: u64, width: u64, from: u64, to: u64) -> (u64, u64) {
    let first = |k: u64| (k + width - 1 - child) / width;
    (first(from), first(to))
}

/// Puts together what lies so near to each other that it is copied in one go.
fn joined(ranges: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    let mut out: Vec<(u64, u64)> = Vec::new();
    for (start, end) in ranges {
        match out.last_mut() {
            Some(last) if start.saturating_sub(last.1) <= EXPANSION_GAP => last.1 = end,
            _ => out.push((start, end)),
        }
    }
    out
}

impl VdevTree {
    /// Opens a device by which the RAID-Z `id` is to be expanded, and initialises its labels. It is not part of the tree yet: see
    /// [`VdevTree::expand_raidz`].
    ///
    /// # Errors
    /// As of [`VdevTree::prepare`].
    pub fn prepare_wider(
        &self,
        id: u64,
        dev: &DevSpec,
        ashift: Option<u32>,
        pool: &NvList,
        txg: Txg,
    ) -> Result<Arc<Vdev>> {
        let top = self.top(id)?;
        let device = open_new(&self.env, dev)?;
        self.not_a_member(&*device)?;
        let size = device.geometry().size;
        if choose_ashift(std::slice::from_ref(&device), ashift)? > top.ashift() {
            bail!(
                Range,
                "new device has a different optimal sector size; use the option '-o ashift=N' to \
                 override the optimal size"
            );
        }
        let shift = top.metaslab_shift();
        let least = (top.asize() >> shift << shift).div_ceil(top.children().len().max(1) as u64);
        if leaf_asize(size) < least {
            bail!(Overflow, "device is too small");
        }
        let behind = top.children().len() as u64;
        let fresh = new_leaf(&self.env, dev, device, behind, txg);
        fresh.spread_ashift(u64::from(top.ashift()));
        self.init_leaf(pool, &top, &fresh, txg)?;
        Ok(fresh)
    }

    /// Makes a device of [`VdevTree::prepare_wider`] the last child of the RAID-Z `id`, which is expanding from now on: nothing of it
    /// was copied yet.
    ///
    /// # Errors
    /// `Kind::Again`: the tree changed since.
    pub fn expand_raidz(&self, id: u64, fresh: &Arc<Vdev>) -> Result<()> {
        let alone = self.copying.alone();
        let top = self.top(id)?;
        if fresh.id() != top.children().len() as u64 || top.is_expanding() {
            bail!(Again, "the vdev tree changed meanwhile");
        }
        let mut props = top.props();
        props.set_flag(keys::RAIDZ_EXPANDING);
        let mut kids = top.children().to_vec();
        kids.push(fresh.clone());
        let wider = Vdev::new(top.kind(), id, top.guid(), props, kids);
        wider.stats.copy_from(&top.stats);
        wider.set_reflow(Some(Reflow {
            done: 0,
            next: 0,
            scratch: false,
        }));
        self.put_top(wider)?;
        self.copying.begins(&alone);
        Ok(())
    }

    /// The expansion of the RAID-Z `id` is over: blocks born in `from` or later have its new width. Everything is at its new place on
    /// disk. Returns the new number of allocatable bytes.
    ///
    /// # Errors
    /// `Kind::Invalid`: it is not. `Kind::Again`: the tree changed.
    pub fn end_expansion(&self, id: u64, from: Txg) -> Result<u64> {
        let _alone = self.copying.alone();
        let top = self.top(id)?;
        if top.reflow().is_none_or(|r| r.done < top.expansion_end()) {
            bail!(Invalid, "{}: its expansion is not over", top.name());
        }
        let mut props = top.props();
        props.remove(keys::RAIDZ_EXPANDING);
        let before = props.get_u64_array(keys::RAIDZ_EXPAND_TXGS).unwrap_or(&[]);
        let mut txgs = before.to_vec();
        txgs.push(from.number());
        props.set(keys::RAIDZ_EXPAND_TXGS, txgs);
        let now = Vdev::new(top.kind(), id, top.guid(), props, top.children().to_vec());
        now.stats.copy_from(&top.stats);
        // As much of each child as before: where it is larger than recorded, `zpool online -e` moves its labels first.
        let width = top.children().len() as u64;
        let share = top.asize() / (width - 1).max(1);
        let kids = top.children().iter().map(|c| c.device_asize());
        let share = kids.filter(|a| *a > 0).fold(share, u64::min);
        let asize = (share >> top.ashift() << top.ashift()) * width;
        now.set_asize(asize.max(top.asize()));
        self.put_top(now)?;
        Ok(asize.max(top.asize()))
    }

    /// An uberblock is on disk that says how far an expansion is.
    pub fn advance_expansion(&self, ub: &Uberblock) {
        let (done, scratch) = (
            ub.reflow_offset(),
            ub.scratch_state() == disk::uberblock::scratch::VALID,
        );
        for top in self.tops().iter().filter(|t| t.is_expanding()) {
            if top
                .reflow()
                .is_some_and(|r| (r.done, r.scratch) == (done, scratch))
            {
                continue;
            }
            let _alone = self.copying.alone();
            top.edit_reflow(|r| {
                *r = Reflow {
                    done,
                    next: r.next.max(done),
                    scratch,
                }
            });
        }
    }

    /// What was copied and is in no uberblock on disk counts as not copied. True if there was something.
    pub fn retreat_expansion(&self, top: &Vdev) -> bool {
        if top.reflow().is_none_or(|r| r.next <= r.done) {
            return false;
        }
        let _alone = self.copying.alone();
        top.edit_reflow(|r| r.next = r.done);
        true
    }

    /// Copies the sectors of the RAID-Z `id` from where its expansion stands to `to`, a byte before its limit. `in_use` is asked which
    /// ranges, in order, are not free while writes wait; what it returns must be within. Returns the bytes in use. `txg` is not on
    /// disk yet.
    ///
    /// # Errors
    /// Those of `in_use`; a child cannot be read or written, or is not whole: nothing counts as copied then.
    pub fn copy_expansion(
        &self,
        id: u64,
        to: u64,
        in_use: &dyn Fn(u64, u64) -> Result<Vec<(u64, u64)>>,
        txg: Txg,
    ) -> Result<u64> {
        let at = match self.top(id)?.reflow() {
            Some(r) if !r.scratch => r.next,
            _ => bail!(Invalid, "vdev {id} is not expanding"),
        };
        let _window = self.copying.begin(vec![(id, at, to)]);
        // It cannot have been exchanged meanwhile but for one whose expansion stands where it stood.
        let top = self.top(id)?;
        if top.reflow().is_none_or(|r| r.next != at || r.scratch) {
            bail!(Again, "vdev {id}: its expansion was set back");
        }
        if to <= at || to > top.expansion_limit() {
            bail!(Invalid, "{}: copying to {to:#x} is too early", top.name());
        }
        let whole = || match top.is_whole() {
            true => Ok(()),
            false => bail!(
                NoDevice,
                "{}: a device is missing or lacks something",
                top.name()
            ),
        };
        whole()?;
        let ranges = in_use(at, to)?;
        let bytes = ranges.iter().map(|(s, e)| e - s).sum();
        self.copy_ranges(&top, &ranges, txg)?;
        whole()?;
        // Nobody writes here, and who writes elsewhere is not concerned.
        let set = top.edit_reflow(|r| {
            let same = r.next == at;
            r.next = if same { to } else { r.next };
            same
        });
        if set != Some(true) {
            bail!(Again, "{}: its expansion was set back", top.name());
        }
        Ok(bytes)
    }

    /// Copies ranges from their old to their new places, and some of what is free between them.
    fn copy_ranges(&self, top: &Vdev, ranges: &[(u64, u64)], txg: Txg) -> Result<()> {
        let (a, wide) = (top.ashift(), top.children().len() as u64);
        let old = wide - 1;
        let in_use: Vec<(u64, u64)> = ranges.iter().map(|(s, e)| (s >> a, e >> a)).collect();
        let together = joined(ranges.to_vec());
        let sectors: Vec<(u64, u64)> = together.iter().map(|(s, e)| (s >> a, e >> a)).collect();
        // What each child has of each range, in one piece.
        let reads = |c: u64| -> Vec<Op> {
            let pieces = sectors.iter().map(|&(s, e)| rows(c, old, s, e));
            let read = |(first, end): (u64, u64)| Op::Read {
                offset: DATA_START + (first << a),
                buf: vec![0; ((end - first) << a) as usize],
            };
            pieces.map(read).collect()
        };
        let got = self.on_children(top, old, &|c| {
            let child = &top.children()[c as usize];
            let (index, ops): (Vec<usize>, Vec<Op>) = (reads(c).into_iter().enumerate())
                .filter(|(_, op)| !op_is_empty(op))
                .unzip();
            let mut out = vec![Vec::new(); sectors.len()];
            let done = child.batch_in(ops, None, IoClass::Expansion, &|_| false);
            for (i, (op, result)) in index.into_iter().zip(done) {
                result.map_err(|e| e.context(child.name()))?;
                if let Op::Read { buf, .. } = op {
                    out[i] = buf;
                }
            }
            Ok(out)
        })?;
        let size = 1usize << a;
        self.on_children(top, wide, &|d| {
            let child = &top.children()[d as usize];
            let (mut ops, mut marks) = (Vec::new(), Vec::new());
            for (i, &(s, e)) in sectors.iter().enumerate() {
                let (first, end) = rows(d, wide, s, e);
                if end <= first {
                    continue;
                }
                let mut buf = vec![0; ((end - first) << a) as usize];
                for (row, out) in (first..end).zip(buf.chunks_mut(size)) {
                    let k = row * wide + d;
                    let (c, _) = place(k, old, a);
                    let from = (k / old - rows(c as u64, old, s, e).0) as usize * size;
                    match got[c][i].get(from..from + size) {
                        Some(sector) => out.copy_from_slice(sector),
                        None => bail!(Io, "{}: a short read", top.name()),
                    }
                }
                let data: Block = Arc::new(buf);
                let at = child.data_offset(first << a, data.len())?;
                // Only what is in use is known to stay: blocks may be placed between before the next flush.
                let within = in_use.iter().filter(|(from, to)| s <= *from && *to <= e);
                let rows_in_use = within.map(|(from, to)| rows(d, wide, *from, *to));
                let mark = |(from, to): (u64, u64)| {
                    let piece = ((from - first) as usize * size)..((to - first) as usize * size);
                    Mark {
                        at: at + ((from - first) << a),
                        len: piece.len(),
                        sum: sum_of(&data[piece]),
                    }
                };
                marks.push(rows_in_use.filter(|(f, t)| f < t).map(mark).collect());
                ops.push(Op::Write {
                    offset: at,
                    bufs: vec![data],
                });
            }
            child.soil(txg);
            child.soil(Txg::INITIAL);
            let note = Some((txg, &marks[..]));
            let done = child.batch_in(ops, note, IoClass::Expansion, &|_| false);
            for (_, result) in done {
                if let Err(e) = result {
                    child.suspect();
                    self.probe(child);
                    return Err(e.context(child.name()));
                }
            }
            Ok(())
        })
        .map(drop)
    }

    /// Calls `f` for the first `n` children, in parallel.
    fn on_children<R: Send>(
        &self,
        top: &Vdev,
        n: u64,
        f: &(dyn Fn(u64) -> Result<R> + Sync),
    ) -> Result<Vec<R>> {
        if n > top.children().len() as u64 {
            bail!(Invalid, "{}: {n} children", top.name());
        }
        let slots: Vec<Mutex<Option<Result<R>>>> = (0..n).map(|_| Mutex::new(None)).collect();
        self.env.cpu.par_io(n as usize, &|i| {
            *slots[i].acquire() = Some(f(i as u64));
        });
        let got = slots.into_iter().map(|s| s.acquire().take());
        got.map(|r| r.unwrap_or(Err(Error::from(Kind::Io))))
            .collect()
    }

    /// Lets writes to the beginning of the RAID-Z `id`, as much as the scratch area holds, wait until the result is dropped.
    ///
    /// # Errors
    /// There is no such vdev.
    pub fn scratch_window(&self, id: u64) -> Result<ScratchWindow<'_>> {
        let size = self.top(id)?.scratch_size();
        Ok(ScratchWindow(self.copying.begin(vec![(id, 0, size)])))
    }

    /// Copies the beginning of a RAID-Z, as it will lie among all children, into their boot areas, and flushes them. The vdev itself
    /// is as it was. Writes must wait ([`VdevTree::scratch_window`]).
    ///
    /// # Errors
    /// A child cannot be read or written, or is not whole.
    pub fn fill_scratch(&self, top: &Vdev) -> Result<()> {
        if !top.is_whole() {
            bail!(
                NoDevice,
                "{}: a device is missing or lacks something",
                top.name()
            );
        }
        let (a, wide) = (top.ashift(), top.children().len() as u64);
        let (old, count) = (wide - 1, top.scratch_rows());
        let deep = (count * wide).div_ceil(old);
        let got = self.on_children(top, old, &|c| {
            let child = &top.children()[c as usize];
            let len = (deep << a) as usize;
            let read = Op::Read {
                offset: child.data_offset(0, len)?,
                buf: vec![0; len],
            };
            match child
                .batch_in(vec![read], None, IoClass::Expansion, &|_| false)
                .pop()
            {
                Some((Op::Read { buf, .. }, Ok(()))) => Ok(buf),
                Some((_, Err(e))) => Err(e.context(child.name())),
                _ => bail!(Io, "{}: not read", child.name()),
            }
        })?;
        let size = 1usize << a;
        self.on_children(top, wide, &|d| {
            let child = &top.children()[d as usize];
            let mut buf = vec![0; (count << a) as usize];
            for (row, out) in (0..count).zip(buf.chunks_mut(size)) {
                let (c, at) = place(row * wide + d, old, a);
                out.copy_from_slice(&got[c][at as usize..at as usize + size]);
            }
            let write = Op::Write {
                offset: child.boot_offset(0, buf.len())?,
                bufs: vec![Arc::new(buf)],
            };
            self.write_and_flush(child, write)
        })
        .map(drop)
    }

    /// Copies the scratch area of a RAID-Z, which the uberblock on disk says is valid, to where it belongs, and flushes the
    /// children. One that is away or fails lacks everything from then on: its place has neither the old nor the new content.
    ///
    /// # Errors
    /// More children fail than there is parity.
    pub fn empty_scratch(&self, top: &Vdev, txg: Txg) -> Result<()> {
        let len = (top.scratch_rows() << top.ashift()) as usize;
        let done = self.on_children(top, top.children().len() as u64, &|d| {
            let child = &top.children()[d as usize];
            Ok(self.empty_child(child, len))
        })?;
        let failed = done.iter().filter(|r| r.is_err()).count();
        let VdevKind::Raidz { nparity } = top.kind() else {
            bail!(Invalid, "{}: no RAID-Z", top.name());
        };
        if let Some(e) = done
            .iter()
            .find_map(|r| r.clone().err())
            .filter(|_| failed > nparity)
        {
            return Err(e.context(top.name()));
        }
        for (child, _) in top.children().iter().zip(&done).filter(|(_, r)| r.is_err()) {
            for leaf in child.leaves() {
                leaf.dtl_add_range(Txg::INITIAL, txg.after(1));
                self.probe(&leaf);
            }
        }
        Ok(())
    }

    fn empty_child(&self, child: &Arc<Vdev>, len: usize) -> Result<()> {
        for leaf in child.leaves() {
            let read = Op::Read {
                offset: leaf.boot_offset(0, len)?,
                buf: vec![0; len],
            };
            let got = leaf.batch_in(vec![read], None, IoClass::Expansion, &|_| false);
            let buf = match got.into_iter().next() {
                Some((Op::Read { buf, .. }, Ok(()))) => buf,
                Some((_, Err(e))) => return Err(e),
                _ => bail!(Io, "{}: not read", leaf.name()),
            };
            let write = Op::Write {
                offset: leaf.data_offset(0, len)?,
                bufs: vec![Arc::new(buf)],
            };
            self.write_and_flush(&leaf, write)?;
        }
        Ok(())
    }

    fn write_and_flush(&self, leaf: &Vdev, write: Op) -> Result<()> {
        let Some(device) = leaf.usable_device() else {
            bail!(NoDevice, "{}: not available", leaf.name());
        };
        for (_, result) in leaf.batch_in(vec![write], None, IoClass::Expansion, &|_| false) {
            result.map_err(|e| e.context(leaf.name()))?;
        }
        let flushed = self.flush_device(leaf, &*device);
        flushed.map_err(|e| e.context(leaf.name()))
    }
}

fn op_is_empty(op: &Op) -> bool {
    matches!(op, Op::Read { buf, .. } if buf.is_empty())
}
