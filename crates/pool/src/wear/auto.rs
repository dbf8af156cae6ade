//! Autotrim: what was freed is told to the devices, some txgs after it can be allocated again (behaviour §15).
//!
//! With `autotrim=on` all devices are told that can be. Where the property was never set image files are: holes are punched into them,
//! so that they take no more space than the pool uses. `autotrim=off` is obeyed.

use super::job::{ready, LEAST};
use super::{Wear, Wears};
use crate::jobs::{Budget, Job, Piece, Progress, Step, Subject};
use crate::Pool;
use base::sync::MutexExt;
use base::{RangeSet, Result};
use dmu::Tx;
use dsl::PropValue;
use env::Clock;
use space::Space;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, AtomicU8, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use vdev::{OnLeaf, Vdev};

/// A round begins so long after the one before, nanoseconds, or [`crate::Tunables::autotrim_txgs`] txgs (`zfs_trim_txg_batch`),
/// whichever comes first. What is freed waits for one to two rounds.
const INTERVAL: u64 = 10_000_000_000;

/// Which devices are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Off = 0,
    /// Every one that can be.
    On = 1,
    /// Image files.
    Files = 2,
}

/// Autotrim of one pool.
#[derive(Default)]
pub(crate) struct Autotrim {
    mode: AtomicU8,
    /// Metaslabs of the round under way: vdev and number.
    queue: Mutex<VecDeque<(u64, u64)>>,
    /// When the last round began, monotonic nanoseconds, and txgs since then.
    last: AtomicU64,
    txgs: AtomicU64,
}

impl Autotrim {
    fn mode(&self) -> Mode {
        match self.mode.load(Relaxed) {
            1 => Mode::On,
            2 => Mode::Files,
            _ => Mode::Off,
        }
    }

    fn tells(&self, leaf: &Vdev) -> bool {
        match self.mode() {
            Mode::Off => false,
            Mode::On => leaf.can_trim(),
            Mode::Files => leaf.is_file() && leaf.can_trim(),
        }
    }
}

/// Trims what is freed.
pub(crate) struct AutotrimJob {
    /// Its state.
    pub wears: Arc<Wears>,
    /// The allocator.
    pub space: Arc<Space>,
    /// Time that passes.
    pub clock: Arc<dyn Clock>,
    /// See [`crate::Tunables::autotrim_txgs`].
    pub txgs: u64,
}

impl Job for AutotrimJob {
    fn name(&self) -> &'static str {
        "autotrim"
    }

    fn step(&self, _: &Pool, _: &Tx, _: &Budget) -> Result<Step> {
        self.wears.auto.txgs.fetch_add(1, Relaxed);
        Ok(Step::Idle)
    }

    fn ready(&self) -> Vec<Subject> {
        let a = &self.wears.auto;
        if a.mode() == Mode::Off {
            return Vec::new();
        }
        let since = self
            .clock
            .monotonic_ns()
            .saturating_sub(a.last.load(Relaxed));
        let due = since >= INTERVAL || a.txgs.load(Relaxed) >= self.txgs;
        let wanted = !a.queue.acquire().is_empty() || due && self.space.has_collected();
        wanted.then_some(Subject::Pool).into_iter().collect()
    }

    fn stores(&self) -> bool {
        false
    }

    /// A metaslab.
    fn piece(&self, pool: &Pool, _: Subject, budget: &Budget) -> Piece {
        let a = &self.wears.auto;
        if a.queue.acquire().is_empty() {
            a.last.store(self.clock.monotonic_ns(), Relaxed);
            a.txgs.store(0, Relaxed);
            a.queue.acquire().extend(self.space.begin_round());
        }
        if !budget.take_blocks(1) {
            return Piece::End;
        }
        let Some((vdev, ms)) = a.queue.acquire().pop_front() else {
            return Piece::End;
        };
        pool.autotrim_metaslab(vdev, ms);
        Piece::Done
    }

    fn progress(&self, _: &Pool, _: Subject) -> Result<Progress> {
        Ok(Progress::default())
    }
}

impl Pool {
    /// Tells the devices of a top-level vdev what was freed in a metaslab.
    fn autotrim_metaslab(&self, vdev: u64, ms: u64) {
        let Ok(top) = self.tree().top(vdev) else {
            return;
        };
        let leaves = top.leaves().into_iter();
        let told: Vec<_> = leaves
            .filter(|l| ready(&top, l) && self.background.wears.auto.tells(l))
            .filter_map(|l| Some((OnLeaf::new(&top, &l)?, l)))
            .collect();
        let Some((on, _)) = told.first() else {
            return self.space().forget_aged(vdev, ms);
        };
        if self.space().ensure_loaded(vdev, ms).is_err() {
            return self.space().forget_aged(vdev, ms);
        }
        let Ok(disabled) = self.space().disable(vdev, ms) else {
            return;
        };
        // Dropped from memory meanwhile: the next round has them.
        let Ok(ranges) = disabled.aged(LEAST * on.divisor()) else {
            return;
        };
        // One by one: who allocates may wait for this, on any thread there is.
        for (on, leaf) in &told {
            let mut mine = RangeSet::new();
            for (s, e) in ranges.iter() {
                on.add(s, e, &mut mine);
            }
            if let Err(e) = self.wear_ranges(Wear::Trim, (&top, leaf), &mine) {
                let pool = self.name();
                tracing::debug!(%pool, "autotrim of {}: {e}", leaf.name());
            }
        }
    }

    /// Whether devices of that kind are told of space that holds nothing.
    pub(crate) fn autotrims(&self, is_file: bool) -> bool {
        match self.background.wears.auto.mode.load(Relaxed) {
            m if m == Mode::On as u8 => true,
            m => is_file && m == Mode::Files as u8,
        }
    }

    /// Reads anew which devices are told of freed space: the property `autotrim`.
    pub(crate) fn refresh_autotrim(&self) -> Result<()> {
        let stored = self.stored_props()?;
        let set = stored.iter().find(|(n, _)| n == "autotrim");
        let mode = match set {
            _ if self.is_readonly() => Mode::Off,
            Some((_, PropValue::Int(1))) => Mode::On,
            Some(_) => Mode::Off,
            None => Mode::Files,
        };
        self.background.wears.auto.mode.store(mode as u8, Relaxed);
        self.space().collect(mode != Mode::Off);
        Ok(())
    }
}
