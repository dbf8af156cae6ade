//! The job that copies: in open context, in pieces, beside others.
//!
//! A piece is read first, from every device that has it. Then a transaction holds the open txg, in which the copies are allocated
//! and written, and noted in [`Live`]. What was freed meanwhile is given back at once. Memory: twice [`PIECE`], and as much again
//! for each further device whose bytes differ.
//!
//! Invariants:
//!
//! 1. Where the sides of a mirror differ in what is in use, every content is copied, or none: which one is right is not known.
//! 2. Whatever a device fails to read in a piece, each sector in use is taken from any device that has it. Only one that nobody reads ends
//!    the removal.

use crate::indirect::Removed;
use crate::jobs::{Budget, Job, Piece, Priority, Progress, Step, Subject, BLOCK};
use crate::regions::{self, Live};
use crate::Pool;
use base::{Block, Kind, Result, Txg};
use dmu::Tx;
use env::Clock;
use space::{AllocReq, Class};
use std::collections::HashSet;
use std::sync::Arc;
use vdev::indirect::Moved;
use vdev::Vdev;

/// Bytes that are copied at a time. No txg closes meanwhile.
const PIECE: u64 = 16 << 20;
/// Nanoseconds until it is tried again where devices or space do not suffice.
const AGAIN: u64 = 2_000_000_000;

/// The job of a removal; registered when one begins or goes on.
pub(crate) struct RemovalJob {
    /// Has the removal under way.
    pub removed: Arc<Removed>,
    /// The pool's.
    pub clock: Arc<dyn Clock>,
}

/// What became of a try to copy a piece.
enum Tried {
    /// Something was done: go on.
    Done,
    /// Nothing can be done before the next txg.
    Later,
    /// The devices or the space do not suffice at the moment.
    Waits,
    /// It cannot be copied at all.
    Failed(String),
}

impl Job for RemovalJob {
    fn name(&self) -> &'static str {
        "remove"
    }

    fn step(&self, pool: &Pool, tx: &Tx, _: &Budget) -> Result<Step> {
        pool.step_removal(tx)
    }

    /// Redundancy is not missing, but room may be.
    fn priority(&self) -> Priority {
        Priority::High
    }

    fn instances(&self) -> Vec<Subject> {
        let live = self.removed.live();
        live.iter().map(|l| Subject::Vdev(l.vdev)).collect()
    }

    fn ready(&self) -> Vec<Subject> {
        let live = self.removed.live();
        let wanted = |l: &&Live| {
            let left = !l.visited || !l.to_copy.is_empty();
            left && l.failed.is_none() && l.not_before <= self.clock.monotonic_ns()
        };
        let wanted = live.iter().filter(wanted);
        wanted.map(|l| Subject::Vdev(l.vdev)).collect()
    }

    fn piece(&self, pool: &Pool, _: Subject, budget: &Budget) -> Piece {
        let tried = pool.copy_piece(budget);
        let mut live = self.removed.live();
        let Some(l) = live.as_mut() else {
            return Piece::End;
        };
        match tried {
            Tried::Done => return Piece::Done,
            Tried::Later => {}
            Tried::Waits => l.not_before = self.clock.monotonic_ns().saturating_add(AGAIN),
            Tried::Failed(why) => l.failed = Some(why),
        }
        Piece::End
    }

    /// At least one byte is left while there is a removal.
    fn progress(&self, _: &Pool, _: Subject) -> Result<Progress> {
        let live = self.removed.live();
        Ok(live.as_ref().map_or(Progress::default(), |l| {
            let done = l.copied_bytes();
            let left = l.phys.to_copy.saturating_sub(done).max(1);
            Progress {
                done,
                total: done.saturating_add(left),
            }
        }))
    }
}

impl Pool {
    /// Ends the removal when everything was copied, or it cannot go on.
    fn step_removal(&self, tx: &Tx) -> Result<Step> {
        let (complete, failed, more) = {
            let live = self.allocation.removed.live();
            let Some(l) = live.as_ref() else {
                return Ok(Step::Finished);
            };
            let more = self.dmu().synced_txg() < l.ready || !l.flights.is_empty();
            (l.is_complete(), l.failed.clone(), more || l.is_complete())
        };
        if let Some(why) = failed {
            tracing::warn!(pool = %self.name(), "the removal of a device is canceled: {why}");
            self.cancel_removal_in(tx)?;
            return Ok(Step::More);
        }
        if complete && self.may_leave(tx).is_ok() {
            self.finish_removal(tx)?;
            return Ok(Step::More);
        }
        Ok(match more {
            true => Step::More,
            false => Step::Idle,
        })
    }

    /// Copies the next piece.
    fn copy_piece(&self, budget: &Budget) -> Tried {
        let (vdev, found, ranges) = {
            let live = self.allocation.removed.live();
            let Some(l) = live.as_ref().filter(|l| l.failed.is_none()) else {
                return Tried::Later;
            };
            if self.dmu().synced_txg() < l.ready {
                return Tried::Later;
            }
            let most = PIECE.min(self.config.tunables.job_bytes);
            (l.vdev, (l.number, l.mended), l.next(most))
        };
        if ranges.is_empty() {
            return self.next_metaslab(vdev, found.0);
        }
        let bytes: u64 = ranges.iter().map(|(_, n)| n).sum();
        if !budget.take(bytes.max(BLOCK)) {
            return Tried::Later;
        }
        let contents = match self.read_for_copy(vdev, &ranges) {
            Ok(contents) => contents,
            Err(tried) => return tried,
        };
        let Some(tx) = self.dmu().begin_now() else {
            return Tried::Later;
        };
        self.place_copies(vdev, found, &ranges, &contents, tx.txg())
    }

    /// Looks at the next metaslab of the vdev.
    fn next_metaslab(&self, vdev: u64, number: u64) -> Tried {
        let count = self.space().metaslab_count(vdev);
        let ms = match self
            .allocation
            .removed
            .live()
            .as_mut()
            .filter(|l| l.number == number)
        {
            Some(l) if l.next_ms < count => l.next_ms,
            Some(l) => {
                l.visited = true;
                return Tried::Later;
            }
            None => return Tried::Later,
        };
        if let Err(e) = self.space().ensure_loaded(vdev, ms) {
            return match e.kind {
                Kind::Io | Kind::NoDevice | Kind::Suspended => {
                    // The next try reads it again.
                    self.space().retry_failed();
                    Tried::Waits
                }
                _ => Tried::Failed(format!("space map of metaslab {ms}: {e}")),
            };
        }
        let mut live = self.allocation.removed.live();
        let Some(l) = live
            .as_mut()
            .filter(|l| l.number == number && l.next_ms == ms)
        else {
            return Tried::Later;
        };
        // With the lock held: every free before was recorded there, every later one meets this set.
        let Ok(mut in_use) = self.space().in_use(vdev, ms) else {
            // It was dropped from memory meanwhile.
            return Tried::Done;
        };
        in_use.remove(0, l.copied_to());
        l.to_copy = in_use;
        l.next_ms += 1;
        Tried::Done
    }

    /// The different contents of each range. What is not in use does not count.
    fn read_for_copy(
        &self,
        vdev: u64,
        ranges: &[(u64, u64)],
    ) -> std::result::Result<Vec<Vec<Block>>, Tried> {
        let gone = || !self.tree().top(vdev).is_ok_and(|t| t.state().usable());
        let why = |e: base::Error| match e.kind {
            Kind::NoDevice | Kind::Io | Kind::Suspended => Tried::Waits,
            _ => Tried::Failed(e.to_string()),
        };
        let read = self.tree().read_raw(vdev, ranges).map_err(why)?;
        let mut out = Vec::new();
        for (mut r, &range) in read.into_iter().zip(ranges) {
            let in_use = self.in_use_of(range);
            if r.failed {
                let parts = self.tree().read_raw_parts(vdev, range, &in_use);
                r = parts.map_err(why)?;
            }
            if r.contents.is_empty() && gone() {
                return Err(Tried::Waits);
            }
            if r.contents.is_empty() {
                let (offset, bytes) = range;
                let why = format!("{bytes} bytes at {offset:#x} of vdev {vdev} cannot be read");
                return Err(Tried::Failed(why));
            }
            let mut contents: Vec<Block> = Vec::new();
            for one in r.contents.into_iter().map(Arc::new) {
                if !contents
                    .iter()
                    .any(|c| same_in_use(c, &one, range.0, &in_use))
                {
                    contents.push(one);
                }
            }
            out.push(contents);
        }
        Ok(out)
    }

    /// The parts of a range that are still to be copied: first byte and end.
    fn in_use_of(&self, (offset, bytes): (u64, u64)) -> Vec<(u64, u64)> {
        let live = self.allocation.removed.live();
        let all = live.as_ref().map(|l| &l.to_copy);
        let end = offset + bytes;
        let mut out = Vec::new();
        let mut at = offset;
        while let Some((s, e)) = all
            .and_then(|all| all.next_from(at))
            .filter(|(s, _)| *s < end)
        {
            out.push((s.max(offset), e.min(end)));
            at = e;
        }
        out
    }

    /// The class that takes what is on the vdev: its own if another vdev of that class takes blocks.
    fn class_for_copies(&self, vdev: u64) -> Class {
        let stats = self.space().stats();
        let own = stats.vdevs.iter().find(|v| v.id == vdev);
        let Some(own) = own.filter(|v| v.class != Class::Normal) else {
            return Class::Normal;
        };
        let mut others = stats.vdevs.iter().filter(|v| v.class == own.class);
        match others.any(|v| v.id != vdev && self.takes_copies(v.id)) {
            true => own.class,
            false => Class::Normal,
        }
    }

    /// Allocates, writes and notes the copies of ranges, unless the removal is another one by now, or a block was mended since
    /// they were read.
    fn place_copies(
        &self,
        vdev: u64,
        found: (u64, u64),
        ranges: &[(u64, u64)],
        contents: &[Vec<Block>],
        txg: Txg,
    ) -> Tried {
        let class = self.class_for_copies(vdev);
        let mut placed: Vec<Moved> = Vec::new();
        let batch = self.tree().write_batch(txg).removal();
        let mut refused = None;
        let mut differ = None;
        for (&(src, size), contents) in ranges.iter().zip(contents) {
            let unfit = self.unfit_for(contents.len());
            let m = match self.place_one(class, (src, size), &unfit, txg) {
                Ok(m) => m,
                Err(e) => {
                    let lost = !unfit.is_empty() && !self.may_place(class, &unfit);
                    differ = lost.then_some(src);
                    refused = Some(e);
                    break;
                }
            };
            placed.push(m);
            if let Err(e) = batch.write_raw(m.vdev, m.dst, contents) {
                refused = Some(e);
                break;
            }
        }
        // What could not be added was not placed either, but for the last one.
        let lost = refused.as_ref().filter(|e| e.kind != Kind::NoSpace);
        let written = match lost {
            Some(e) => Err(e.clone()),
            None => batch.submit_all(),
        };
        if let Err(e) = written {
            for m in placed {
                self.give_back(m.vdev, m.dst, m.size, txg);
            }
            let tops = self.tree().tops();
            let away = tops.iter().any(|t| t.is_concrete() && !t.state().usable());
            return match away {
                true => Tried::Waits,
                false => Tried::Failed(format!("a copy cannot be written: {e}")),
            };
        }
        let some = !placed.is_empty();
        let mut live = self.allocation.removed.live();
        let mut l = live.as_mut().filter(|l| (l.number, l.mended) == found);
        for m in placed {
            let gaps = l.as_mut().and_then(|l| l.copied(m, txg));
            let gaps = gaps.unwrap_or_else(|| vec![(m.src, m.src + m.size)]);
            for (s, e) in gaps {
                self.give_back(m.vdev, m.dst + (s - m.src), e - s, txg);
            }
        }
        let Some(l) = l else {
            return Tried::Done;
        };
        if refused.is_none() {
            // There is room again.
            l.limit = l.limit.saturating_mul(2).min(regions::MOST);
        }
        if some || refused.is_none() {
            return Tried::Done;
        }
        if let Some(at) = differ {
            drop(live);
            return self.sides_differ(vdev, at);
        }
        // Free space is in smaller pieces.
        let least = ranges.iter().map(|(_, n)| *n).max().unwrap_or(l.limit);
        let smaller = l.limit.min(least.next_power_of_two()) / 2;
        match smaller < self.sector_of(vdev) {
            true => {
                l.limit = regions::MOST;
                Tried::Waits
            }
            false => {
                l.limit = smaller;
                Tried::Done
            }
        }
    }

    /// Smallest piece that is copied, bytes.
    fn sector_of(&self, vdev: u64) -> u64 {
        let top = self.tree().top(vdev);
        top.map_or(base::SECTOR, |t| 1 << t.ashift())
    }

    /// Vdevs with fewer devices in use than there are different contents: one of these would be lost there.
    fn unfit_for(&self, contents: usize) -> HashSet<u64> {
        if contents < 2 {
            return HashSet::new();
        }
        let usable = |t: &Arc<Vdev>| t.leaves().iter().filter(|l| l.state().usable()).count();
        let tops = self.tree().tops();
        let unfit = tops.iter().filter(|t| usable(t) < contents);
        unfit.map(|t| t.id()).collect()
    }

    /// Whether a vdev of the class that is not among `unfit` takes blocks.
    fn may_place(&self, class: Class, unfit: &HashSet<u64>) -> bool {
        let stats = self.space().stats();
        let mut vdevs = stats.vdevs.iter().filter(|v| v.class == class);
        vdevs.any(|v| !unfit.contains(&v.id) && self.takes_copies(v.id))
    }

    fn takes_copies(&self, id: u64) -> bool {
        self.space().is_writable(id) && self.space().is_allocating(id)
    }

    /// What the sides of the vdev have in use at `at` differs, and nobody takes all of it: which one is right is not known.
    fn sides_differ(&self, vdev: u64, at: u64) -> Tried {
        // Of what is being freed nothing was resilvered.
        if self.dsl().freeing().is_ok_and(|bytes| bytes > 0) {
            return Tried::Waits;
        }
        Tried::Failed(format!(
            "the devices of vdev {vdev} differ at {at:#x}, and no other vdev has as many: scrub the pool first"
        ))
    }

    fn place_one(
        &self,
        class: Class,
        (src, size): (u64, u64),
        unfit: &HashSet<u64>,
        txg: Txg,
    ) -> Result<Moved> {
        let at = self.space().alloc(&AllocReq {
            class,
            copies: 1,
            txg,
            size_on: &|vdev| match unfit.contains(&vdev) {
                true => space::NOT_HERE,
                false => size,
            },
            hint: 0,
        })?;
        match at[..] {
            [e] => Ok(Moved {
                src,
                size,
                vdev: e.vdev,
                dst: e.offset,
            }),
            _ => base::bail!(Invalid, "{} places for one copy", at.len()),
        }
    }

    /// No pointer leads to this copy.
    fn give_back(&self, vdev: u64, offset: u64, len: u64, txg: Txg) {
        if let Err(e) = self.space().unalloc(vdev, offset, len, txg) {
            self.stop_for_good(e.context("a copy that is not wanted"));
        }
    }
}

/// Whether two contents of a range that begins at `offset` are the same where something is in use.
fn same_in_use(one: &[u8], other: &[u8], offset: u64, in_use: &[(u64, u64)]) -> bool {
    in_use.iter().all(|(s, e)| {
        let at = (s - offset) as usize..(e - offset) as usize;
        one.get(at.clone()) == other.get(at)
    })
}
