//! The walk over the free space of leaves, piece by piece.

use super::{Run, Wear, WearState, Wears};
use crate::jobs::{self, Budget, Job, Piece, Progress, Step, Subject};
use crate::Pool;
use base::sync::{MutexExt, RwLockExt};
use base::{bail, Kind, RangeSet, Result};
use dmu::Tx;
use std::sync::Arc;
use vdev::{keys, OnLeaf, Vdev};

/// Bytes of a vdev that are out of allocation at a time.
const TRIM_PIECE: u64 = 1 << 30;
const WRITE_PIECE: u64 = 64 << 20;
/// Ranges of a piece.
const RANGES: usize = 1024;
/// Bytes that are trimmed or written for one of the budget: a device is told of the former, and the latter need not be read.
const TRIM_CHEAP: u64 = (128 << 10) / jobs::BLOCK;
const WRITE_CHEAP: u64 = (32 << 10) / jobs::BLOCK;
/// Smaller ranges are not worth a discard (`zfs_trim_extent_bytes_min`).
pub(super) const LEAST: u64 = 32 << 10;
/// No discard is larger (`zfs_trim_extent_bytes_max`).
const LARGEST: u64 = 128 << 20;

/// Trim or initialize; idle while there is none.
pub(crate) struct WearJob(pub Wear, pub Arc<Wears>);

impl Job for WearJob {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn step(&self, pool: &Pool, tx: &Tx, _: &Budget) -> Result<Step> {
        pool.step_wear(tx, self.0)
    }

    fn instances(&self) -> Vec<Subject> {
        let runs = self.1.runs();
        let active =
            |((w, _), r): &(&(Wear, u64), &Run)| *w == self.0 && r.state == WearState::Active;
        let active = runs.iter().filter(active);
        active.map(|((_, guid), _)| Subject::Leaf(*guid)).collect()
    }

    fn ready(&self) -> Vec<Subject> {
        self.1
            .wanted(self.0)
            .into_iter()
            .map(Subject::Leaf)
            .collect()
    }

    /// Each leaf has a device of its own.
    fn is_parallel(&self) -> bool {
        true
    }

    fn piece(&self, pool: &Pool, of: Subject, budget: &Budget) -> Piece {
        match of {
            Subject::Leaf(guid) if pool.wear_piece(self.0, guid, budget) => Piece::Done,
            _ => Piece::End,
        }
    }

    fn progress(&self, _: &Pool, of: Subject) -> Result<Progress> {
        let Subject::Leaf(guid) = of else {
            return Ok(Progress::default());
        };
        let runs = self.1.runs();
        Ok(runs
            .get(&(self.0, guid))
            .map_or(Progress::default(), |r| Progress {
                done: r.done,
                total: r.total.max(r.done),
            }))
    }
}

/// Whether a leaf can be worked on now.
pub(super) fn ready(top: &Vdev, leaf: &Vdev) -> bool {
    let removing = top.get_u64(keys::REMOVING).is_some_and(|n| n != 0);
    leaf.state().usable() && top.state().usable() && !removing && !top.is_expanding()
}

impl Pool {
    /// Works on the next piece of a leaf; false: there is none, or not now.
    fn wear_piece(&self, what: Wear, guid: u64, budget: &Budget) -> bool {
        let Some(run) = self.background.wears.runs().get(&(what, guid)).copied() else {
            return false;
        };
        let found = self.tree().leaf_of(guid).ok();
        let found = found.filter(|(top, leaf)| ready(top, leaf));
        let on = found.and_then(|(top, leaf)| Some((OnLeaf::new(&top, &leaf)?, top, leaf)));
        let Some((on, top, leaf)) = on else {
            self.edit_run(what, &run, guid, |r| r.waits = true);
            return false;
        };
        if !budget.within_rate(run.rate, run.pass) {
            return false;
        }
        let (id, shift) = (top.id(), top.metaslab_shift());
        let Some(ms) = self.next_to_wear(&on, id, shift, &run) else {
            self.edit_run(what, &run, guid, |r| r.finished = true);
            return true;
        };
        let from = run.at.max(ms << shift);
        let skip_metaslab = |r: &mut Run| {
            r.at = (ms + 1) << shift;
            r.skipped = true;
        };
        let load = || budget.read_for_itself(|| self.space().ensure_loaded(id, ms));
        let again = |e: &base::Error| matches!(e.kind, Kind::Io | Kind::NoDevice);
        let loaded = load().or_else(|e| match again(&e) {
            // A device may have failed to read it once.
            true => {
                self.space().retry_failed();
                load()
            }
            false => Err(e),
        });
        if let Err(e) = loaded {
            let (pool, name) = (self.name(), leaf.name());
            tracing::warn!(%pool, "{} of {name} passes over metaslab {ms}: {e}", what.name());
            self.edit_run(what, &run, guid, skip_metaslab);
            return true;
        }
        let (most, cheap) = match what {
            Wear::Trim => (TRIM_PIECE, TRIM_CHEAP),
            Wear::Initialize => (WRITE_PIECE, WRITE_CHEAP),
        };
        let most = most.min(self.config.tunables.job_bytes.saturating_mul(cheap));
        let most = match run.rate {
            0 => most,
            rate => most.min(rate.max(1 << 20).saturating_mul(on.divisor())),
        };
        let unit = top.alloc_unit().max(1);
        let Ok(disabled) = self.space().disable(id, ms) else {
            return false;
        };
        let piece = match disabled.free(from, (most / unit * unit).max(unit), RANGES) {
            Ok(piece) => piece,
            // It was dropped from memory meanwhile.
            Err(e) if e.kind == Kind::Again => return true,
            Err(_) => return false,
        };
        let bytes: u64 = piece.ranges.iter().map(|(s, e)| e - s).sum();
        if !budget.take((bytes / cheap).max(jobs::BLOCK)) {
            return false;
        }
        let mut mine = RangeSet::new();
        for (s, e) in &piece.ranges {
            on.add(*s, *e, &mut mine);
        }
        mine.remove(0, run.offset);
        let end = mine.iter().next_back().map(|(_, e)| e);
        let done = self.wear_ranges(what, (&top, &leaf), &mine);
        drop(disabled);
        if matches!(&done, Err(e) if e.kind == Kind::Busy) {
            // The next slice sees it as it is then.
            return false;
        }
        let unsupported = matches!(&done, Err(e) if e.kind == Kind::Unsupported);
        if !ready(&top, &leaf) {
            self.edit_run(what, &run, guid, |r| r.waits = true);
            return false;
        }
        let (offset, mut below) = (run.offset.max(end.unwrap_or(0)), run.below);
        let before = self.free_below((&top, &leaf), offset, &mut below);
        self.edit_run(what, &run, guid, |r| {
            r.at = piece.next;
            r.offset = r.offset.max(offset);
            r.done = r.done.max(before);
            r.below = below;
            r.total = r.total.max(r.done);
            r.pass.1 = r.pass.1.saturating_add(mine.total());
            r.moved = true;
            // The device does not do it after all.
            r.finished = unsupported;
        });
        true
    }

    /// Discards or writes ranges of a leaf. The first error; those of single ranges are counted and passed over.
    /// Nothing is done if the vdev is changed meanwhile: its sectors may be elsewhere. It ends early when the pool is being left.
    pub(super) fn wear_ranges(
        &self,
        what: Wear,
        (top, leaf): (&Arc<Vdev>, &Vdev),
        ranges: &RangeSet,
    ) -> Result<()> {
        let _call = self.background.wears.calls.acquire_read();
        let now = self.tree().top(top.id())?;
        if !Arc::ptr_eq(&now, top) || !ready(top, leaf) {
            bail!(Busy, "{}: the vdev is being changed", top.name());
        }
        let mut first = Ok(());
        for (s, e) in ranges.iter() {
            if what == Wear::Trim && e - s < LEAST {
                continue;
            }
            let mut at = s;
            while at < e {
                if self.background.jobs.is_stopped() {
                    bail!(Busy, "{}: the pool is being left", top.name());
                }
                let n = LARGEST.min(e - at);
                let done = match what {
                    Wear::Trim => self.tree().trim(leaf, at, n),
                    Wear::Initialize => self.tree().initialize(leaf, at, n),
                };
                if matches!(&done, Err(e) if e.kind == Kind::Unsupported) || !leaf.state().usable()
                {
                    return done;
                }
                first = first.and(done);
                at += n;
            }
        }
        first
    }

    fn edit_run(&self, what: Wear, run: &Run, guid: u64, edit: impl FnOnce(&mut Run)) {
        let mut runs = self.background.wears.runs();
        let same = runs.get_mut(&(what, guid));
        if let Some(r) = same.filter(|r| r.number == run.number && r.state == WearState::Active) {
            edit(r);
        }
    }

    /// The metaslab in which a run goes on; `None`: it is at its end.
    fn next_to_wear(&self, on: &OnLeaf, id: u64, shift: u32, run: &Run) -> Option<u64> {
        let count = self.space().metaslab_count(id);
        let first = run.at.checked_shr(shift)?;
        (first..count).find(|ms| {
            let Ok((start, end)) = self.space().metaslab_bounds(id, *ms) else {
                return false;
            };
            // Behind an import nobody reads the maps of what is done.
            let mut all = RangeSet::new();
            on.add(start, end, &mut all);
            let last = all.iter().next_back();
            last.is_some_and(|(_, e)| e > run.offset)
        })
    }

    /// The part of trim or initialize in a txg: stores how far it is.
    fn step_wear(&self, tx: &Tx, what: Wear) -> Result<Step> {
        let mut stored = Vec::new();
        let mut gone = Vec::new();
        for ((w, guid), r) in self.background.wears.runs.acquire().iter_mut() {
            if *w != what || r.state != WearState::Active {
                continue;
            }
            let Ok((top, leaf)) = self.tree().leaf_of(*guid) else {
                gone.push((*w, *guid));
                continue;
            };
            r.waits &= !ready(&top, &leaf);
            if leaf.state() == vdev::State::Faulted {
                // As OpenZFS does: whoever mends the device begins anew.
                (r.state, r.time) = (WearState::Canceled, self.seconds());
                stored.push((leaf, *r));
                continue;
            }
            if r.finished {
                let able = what != Wear::Trim || leaf.can_trim();
                r.state = match able && !r.skipped {
                    true => WearState::Complete,
                    false => WearState::Canceled,
                };
                r.time = self.seconds();
            }
            if r.finished || r.moved {
                r.moved = false;
                stored.push((leaf, *r));
            }
        }
        for key in gone {
            self.background.wears.runs().remove(&key);
        }
        for (leaf, r) in stored {
            self.store_wear(tx, what, &leaf, &r)?;
            if r.state != WearState::Active {
                self.tell_of_wear(tx, what, &leaf, r.state, false)?;
            }
        }
        Ok(Step::Idle)
    }
}
