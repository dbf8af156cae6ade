//! The job that copies: in open context, in pieces, beside others.
//!
//! A piece is read first, from every device that has it. Then a transaction holds the open txg, in which the copies are allocated
//! and written, and noted in [`Live`]. What was freed meanwhile is given back at once. Memory: twice [`PIECE`], and as much again
//! for each further device whose bytes differ.

use crate::indirect::Removed;
use crate::jobs::{Budget, Job, Piece, Priority, Progress, Step, Subject, BLOCK};
use crate::regions::{self, Live};
use crate::Pool;
use base::{Block, Kind, Result, Txg};
use dmu::Tx;
use env::Clock;
use space::{AllocReq, Class};
use std::sync::Arc;
use vdev::indirect::Moved;

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
                Kind::Io | Kind::NoDevice | Kind::Suspended => Tried::Waits,
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

    /// The different contents of each range.
    fn read_for_copy(
        &self,
        vdev: u64,
        ranges: &[(u64, u64)],
    ) -> std::result::Result<Vec<Vec<Block>>, Tried> {
        let gone = || !self.tree().top(vdev).is_ok_and(|t| t.state().usable());
        let read = self
            .tree()
            .read_raw(vdev, ranges)
            .map_err(|e| match e.kind {
                Kind::NoDevice | Kind::Io | Kind::Suspended => Tried::Waits,
                _ => Tried::Failed(e.to_string()),
            })?;
        let mut out = Vec::new();
        for (r, (offset, bytes)) in read.into_iter().zip(ranges) {
            if r.contents.is_empty() && gone() {
                return Err(Tried::Waits);
            }
            if r.contents.is_empty() {
                let why = format!("{bytes} bytes at {offset:#x} of vdev {vdev} cannot be read");
                return Err(Tried::Failed(why));
            }
            out.push(r.contents.into_iter().map(Arc::new).collect());
        }
        Ok(out)
    }

    /// The class that takes what is on the vdev: its own if another vdev of that class takes blocks.
    fn class_for_copies(&self, vdev: u64) -> Class {
        let stats = self.space().stats();
        let own = stats.vdevs.iter().find(|v| v.id == vdev);
        let Some(own) = own.filter(|v| v.class != Class::Normal) else {
            return Class::Normal;
        };
        let usable = |id: u64| self.space().is_writable(id) && self.space().is_allocating(id);
        let mut others = stats.vdevs.iter().filter(|v| v.class == own.class);
        match others.any(|v| v.id != vdev && usable(v.id)) {
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
        for (&(src, size), contents) in ranges.iter().zip(contents) {
            let m = match self.place_one(class, (src, size), txg) {
                Ok(m) => m,
                Err(e) => {
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
        let (Some(_), Some(l)) = (refused, l) else {
            return Tried::Done;
        };
        // Free space is in smaller pieces.
        let least = ranges.iter().map(|(_, n)| *n).max().unwrap_or(l.limit);
        let smaller = l.limit.min(least.next_power_of_two()) / 2;
        match (some, smaller < base::SECTOR) {
            (true, _) => Tried::Done,
            (false, true) => {
                l.limit = regions::MOST;
                Tried::Waits
            }
            (false, false) => {
                l.limit = smaller.max(base::SECTOR);
                Tried::Done
            }
        }
    }

    fn place_one(&self, class: Class, (src, size): (u64, u64), txg: Txg) -> Result<Moved> {
        let at = self.space().alloc(&AllocReq {
            class,
            copies: 1,
            txg,
            size_on: &|_| size,
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
