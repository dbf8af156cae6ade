//! Trim and initialize: what is free on a leaf is told to its device, or written once (behaviour §15, pool format §16.8).
//!
//! Invariants:
//!
//! 1. Only what is allocatable is touched, and its metaslab is out of allocation meanwhile ([`space::Disabled`]). So nothing is that
//!    is allocated, that was freed in the last txgs, that a checkpoint keeps, or that an intent log has claimed.
//! 2. How far a leaf has come is stored in its ZAP, behind the work. A crash repeats some of it.
//! 3. A leaf that is out of use waits, and goes on when it is back. It does not leave the tree during a call of its device
//!    ([`Pool::settle_wear`]).
//!
//! `job` walks over the leaves, `auto` trims what is freed.
//!
//! Locks: `Wears::runs` is a leaf lock.

mod auto;
mod job;

pub(crate) use auto::{Autotrim, AutotrimJob};
pub(crate) use job::WearJob;

use crate::notices::{Notice, Turned};
use crate::Pool;
use base::sync::{MutexExt, RwLockExt};
use base::{RangeSet, Result};
use disk::mos_keys as key;
use dmu::Tx;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, RwLock};
use vdev::{keys, OnLeaf, Vdev};
use zap::Zap;

/// What is done to the free space of a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Wear {
    /// The device is told that it holds nothing of value.
    Trim,
    /// A pattern is written to it.
    Initialize,
}

impl Wear {
    /// The word of commands, and of the history.
    pub fn name(self) -> &'static str {
        match self {
            Wear::Trim => "trim",
            Wear::Initialize => "initialize",
        }
    }

    /// Keys of offset, state and time.
    fn keys(self) -> [&'static str; 3] {
        match self {
            Wear::Trim => [key::TRIM_OFFSET, key::TRIM_STATE, key::TRIM_TIME],
            Wear::Initialize => [
                key::INITIALIZE_OFFSET,
                key::INITIALIZE_STATE,
                key::INITIALIZE_TIME,
            ],
        }
    }
}

/// How it stands, with the numbers on disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WearState {
    /// It was never done, or that is forgotten.
    #[default]
    None = 0,
    /// Under way.
    Active = 1,
    /// Stopped.
    Canceled = 2,
    /// It waits for a user.
    Suspended = 3,
    /// It came to its end.
    Complete = 4,
}

impl WearState {
    fn new(n: u64) -> WearState {
        match n {
            1 => WearState::Active,
            2 => WearState::Canceled,
            3 => WearState::Suspended,
            4 => WearState::Complete,
            _ => WearState::None,
        }
    }

    fn word(self) -> &'static str {
        match self {
            WearState::None => "uninitialized",
            WearState::Active => "activated",
            WearState::Canceled => "canceled",
            WearState::Suspended => "suspended",
            WearState::Complete => "complete",
        }
    }
}

/// What is to become of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WearAction {
    /// It begins, or goes on where it was suspended.
    Start {
        /// Bytes per second and leaf; 0: no limit, or the one of before.
        rate: u64,
        /// The device is to erase, which none can be asked for.
        secure: bool,
    },
    /// It stops, and can go on.
    Suspend,
    /// It stops for good.
    Cancel,
    /// Nobody knows any more that it was done.
    Forget,
}

/// Why a leaf is left alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WearRefusal {
    /// The pool has no such device.
    NoDevice,
    /// It is no leaf, or it is out of use.
    BadDevice,
    /// It is under way, or the vdev is being changed.
    Busy,
    /// There is nothing to be stopped.
    NotActive,
    /// The device cannot do it.
    Unsupported,
}

/// How trim or initialize of a leaf stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WearStatus {
    /// The state.
    pub state: WearState,
    /// When it began or ended, seconds since 1970.
    pub time: u64,
    /// Bytes of the leaf done.
    pub done: u64,
    /// Bytes of the leaf that are free altogether, as far as is known.
    pub total: u64,
}

/// One leaf.
#[derive(Clone, Copy, Debug, Default)]
struct Run {
    state: WearState,
    time: u64,
    /// Bytes of the leaf's data area before which everything is done.
    offset: u64,
    rate: u64,
    /// Tells it from other runs, since it was begun or went on.
    number: u64,
    /// How far it has come on the top-level vdev since the import.
    at: u64,
    /// Bytes of the leaf done.
    done: u64,
    total: u64,
    /// `offset` is not on disk yet.
    moved: bool,
    /// Everything is done; the next txg says so.
    finished: bool,
    /// A metaslab was passed over, since its map cannot be read: the run ends as canceled.
    skipped: bool,
    /// The leaf was out of use when it was tried.
    waits: bool,
    /// When it began or went on, monotonic nanoseconds, and bytes since then.
    pass: (u64, u64),
    /// What is counted of `done`.
    below: Below,
}

/// What a metaslab has on a leaf: where it lies, and how many bytes of it are free.
#[derive(Default)]
struct Area {
    bytes: RangeSet,
    free: u64,
}

/// Free bytes of a leaf in the metaslabs behind which a run is, counted as the run passes them.
#[derive(Clone, Copy, Debug, Default)]
struct Below {
    /// The first metaslab that is not counted.
    next: u64,
    free: u64,
}

impl Below {
    /// Bytes that are free before an offset of the leaf's data area: those of metaslabs before it, which are counted once, and a share of the
    /// one it is in. There are `count` metaslabs.
    fn advance(&mut self, count: u64, offset: u64, area: &mut dyn FnMut(u64) -> Area) -> u64 {
        while self.next < count {
            let Area { mut bytes, free } = area(self.next);
            let whole = bytes.total();
            bytes.remove(offset, u64::MAX);
            let mine = bytes.total();
            if mine < whole {
                let share = u128::from(free) * u128::from(mine) / u128::from(whole);
                return self.free.saturating_add(share as u64);
            }
            self.next += 1;
            // One that has nothing on the leaf has nothing free there.
            self.free = self.free.saturating_add(if whole == 0 { 0 } else { free });
        }
        self.free
    }
}

type Runs = BTreeMap<(Wear, u64), Run>;

/// Trim and initialize of one pool.
#[derive(Default)]
pub(crate) struct Wears {
    /// By guid of the leaf.
    runs: Mutex<Runs>,
    numbers: AtomicU64,
    /// Held for reading while the device of a leaf is called.
    calls: RwLock<()>,
    pub auto: Autotrim,
}

impl Wears {
    fn runs(&self) -> MutexGuard<'_, Runs> {
        self.runs.acquire()
    }

    /// A leaf has another guid.
    pub fn renamed(&self, before: u64, now: u64) {
        if before == now {
            return;
        }
        let mut runs = self.runs();
        for what in [Wear::Trim, Wear::Initialize] {
            if let Some(run) = runs.remove(&(what, before)) {
                runs.insert((what, now), run);
            }
        }
    }

    /// The leaves for which a piece is wanted now.
    fn wanted(&self, what: Wear) -> Vec<u64> {
        let runs = self.runs();
        let mine = runs.iter().filter(|((w, _), r)| {
            *w == what && r.state == WearState::Active && !r.finished && !r.waits
        });
        mine.map(|((_, guid), _)| *guid).collect()
    }
}

impl Pool {
    /// Begins, suspends or stops trim or initialize of leaves; on disk when it returns. For each leaf whether it was done. The
    /// command is recorded if any was.
    ///
    /// # Errors
    /// `Kind::ReadOnly`; those of writing the txg.
    pub fn wear(
        &self,
        what: Wear,
        action: WearAction,
        leaves: &[u64],
        command: (String, u64),
    ) -> Result<Vec<std::result::Result<(), WearRefusal>>> {
        let leaves = leaves.to_vec();
        self.task(move |pool, tx| {
            let each = leaves.iter().map(|g| pool.wear_one(tx, what, action, *g));
            let all: Vec<_> = each.collect::<Result<_>>()?;
            if all.iter().any(|r| r.is_ok()) {
                pool.log_in(tx, &command.0, command.1)?;
            }
            Ok(all)
        })
    }

    fn wear_refusal(&self, what: Wear, action: WearAction, guid: u64) -> Option<WearRefusal> {
        let Some(leaf) = self.tree().find(guid) else {
            return Some(WearRefusal::NoDevice);
        };
        let top = self.tree().leaf_of(guid).ok().map(|(top, _)| top);
        let Some(top) = top.filter(|t| t.is_concrete() && leaf.kind().is_leaf()) else {
            return Some(WearRefusal::BadDevice);
        };
        if !leaf.state().usable() {
            return Some(WearRefusal::BadDevice);
        }
        let secure = matches!(action, WearAction::Start { secure: true, .. });
        if what == Wear::Trim && (!leaf.can_trim() || secure) {
            return Some(WearRefusal::Unsupported);
        }
        let state = self
            .background
            .wears
            .runs()
            .get(&(what, guid))
            .map(|r| r.state);
        let active = state == Some(WearState::Active);
        let removing = top.get_u64(keys::REMOVING).is_some_and(|n| n != 0);
        match action {
            WearAction::Start { .. } if active || removing || top.is_expanding() => {
                Some(WearRefusal::Busy)
            }
            WearAction::Suspend if !active => Some(WearRefusal::NotActive),
            WearAction::Cancel if !active && state != Some(WearState::Suspended) => {
                Some(WearRefusal::NotActive)
            }
            WearAction::Forget if active => Some(WearRefusal::Busy),
            _ => None,
        }
    }

    fn wear_one(
        &self,
        tx: &Tx,
        what: Wear,
        action: WearAction,
        guid: u64,
    ) -> Result<std::result::Result<(), WearRefusal>> {
        if let Some(why) = self.wear_refusal(what, action, guid) {
            return Ok(Err(why));
        }
        let (top, leaf) = self.tree().leaf_of(guid)?;
        let mut run = self
            .background
            .wears
            .runs()
            .get(&(what, guid))
            .copied()
            .unwrap_or_default();
        let was = run.state;
        let resumed = was == WearState::Suspended;
        match action {
            WearAction::Start { rate, .. } => {
                if !resumed {
                    run = Run {
                        time: self.seconds(),
                        ..Run::default()
                    };
                }
                if rate != 0 {
                    run.rate = rate;
                }
                run.state = WearState::Active;
                run.finished = false;
                run.waits = false;
                run.pass = (self.env.clock.monotonic_ns(), 0);
                run.total = self.free_on(&top, &leaf).max(run.done);
            }
            // The time stays that of the beginning.
            WearAction::Suspend => run.state = WearState::Suspended,
            WearAction::Cancel => {
                run.state = WearState::Canceled;
                run.time = self.seconds();
            }
            WearAction::Forget => run = Run::default(),
        }
        run.number = self
            .background
            .wears
            .numbers
            .fetch_add(1, Ordering::Relaxed)
            + 1;
        self.store_wear(tx, what, &leaf, &run)?;
        self.background.wears.runs().insert((what, guid), run);
        self.tell_of_wear(tx, what, &leaf, run.state, resumed)?;
        Ok(Ok(()))
    }

    fn tell_of_wear(
        &self,
        tx: &Tx,
        what: Wear,
        leaf: &Vdev,
        now: WearState,
        resumed: bool,
    ) -> Result<()> {
        let path = leaf.path().unwrap_or_default();
        let text = format!("vdev={path} {}", now.word());
        self.log_internal(tx, what.name(), &text)?;
        let turned = match now {
            WearState::Active if resumed => Turned::Resumed,
            WearState::Active => Turned::Started,
            WearState::Canceled => Turned::Aborted,
            WearState::Suspended => Turned::Paused,
            WearState::Complete => Turned::Finished,
            WearState::None => return Ok(()),
        };
        if what == Wear::Trim {
            let leaf = leaf.guid();
            self.tell(Notice::Trim { leaf, turned });
        }
        Ok(())
    }

    /// Bytes of a leaf that are free.
    fn free_on(&self, top: &std::sync::Arc<Vdev>, leaf: &Vdev) -> u64 {
        let s = self.space().stats();
        let free = s.vdevs.iter().find(|v| v.id == top.id());
        let free = free.map_or(0, |v| v.size.saturating_sub(v.allocated));
        OnLeaf::new(top, leaf).map_or(0, |on| free / on.divisor().max(1))
    }

    /// Bytes of a leaf that are free before an offset of its data area: those of whole metaslabs, and a share of one. The same before and
    /// behind an import. Metaslabs that `below` has counted are not asked again.
    fn free_below(
        &self,
        (top, leaf): (&std::sync::Arc<Vdev>, &Vdev),
        offset: u64,
        below: &mut Below,
    ) -> u64 {
        let Some(on) = OnLeaf::new(top, leaf) else {
            return 0;
        };
        let (id, space) = (top.id(), self.space());
        let count = space.metaslab_count(id);
        below.advance(count, offset, &mut |ms| {
            let Ok((start, end, used)) = space.metaslab_use(id, ms) else {
                return Area::default();
            };
            let mut bytes = RangeSet::new();
            on.add(start, end, &mut bytes);
            let free = (end - start).saturating_sub(used) / on.divisor().max(1);
            Area { bytes, free }
        })
    }

    /// Stores a run in the ZAP of its leaf; pools that have no such ZAPs keep it until they are left.
    fn store_wear(&self, tx: &Tx, what: Wear, leaf: &Vdev, run: &Run) -> Result<()> {
        let Some(object) = leaf.get_u64(keys::ZAP_LEAF).filter(|z| *z != 0) else {
            return Ok(());
        };
        let dn = self.mos().hold(object)?;
        let z = Zap::new(&dn);
        let [offset, state, time] = what.keys();
        if run.state == WearState::None {
            for k in what.keys() {
                z.remove_if(tx, k)?;
            }
            return Ok(());
        }
        // As OpenZFS counts: from the beginning of the device.
        let from_start = match run.offset {
            0 => 0,
            n => n.saturating_add(disk::label::DATA_START),
        };
        z.update_u64(tx, offset, from_start)?;
        z.update_u64(tx, state, run.state as u64)?;
        z.update_u64(tx, time, run.time)?;
        if what == Wear::Trim {
            for (k, value) in [
                (key::TRIM_RATE, run.rate),
                (key::TRIM_PARTIAL, 0),
                (key::TRIM_SECURE, 0),
            ] {
                if value != 0 || z.get(k)?.is_some() {
                    z.update_u64(tx, k, value)?;
                }
            }
        }
        Ok(())
    }

    /// Takes over what is on disk about the leaves. What was under way goes on.
    pub(crate) fn load_wears(&self) {
        dmu::Driver::kick(self);
        for (what, leaf) in [Wear::Trim, Wear::Initialize]
            .into_iter()
            .flat_map(|w| self.tree().leaves().into_iter().map(move |l| (w, l)))
        {
            match self.read_wear(what, &leaf) {
                Ok(Some(run)) => {
                    self.background
                        .wears
                        .runs()
                        .insert((what, leaf.guid()), run);
                }
                Ok(None) => {}
                Err(e) => {
                    let (pool, name) = (self.name(), what.name());
                    tracing::warn!(%pool, "how far {name} of {} has come: {e}", leaf.name());
                }
            }
        }
    }

    fn read_wear(&self, what: Wear, leaf: &Vdev) -> Result<Option<Run>> {
        let Some(object) = leaf.get_u64(keys::ZAP_LEAF).filter(|z| *z != 0) else {
            return Ok(None);
        };
        let dn = self.mos().hold(object)?;
        let z = Zap::new(&dn);
        let [offset, state, time] = what.keys();
        let number = |k: &str| -> Result<u64> { Ok(z.get(k)?.unwrap_or(0)) };
        let state = WearState::new(number(state)?);
        if state == WearState::None {
            return Ok(None);
        }
        let (top, _) = self.tree().leaf_of(leaf.guid())?;
        let offset = number(offset)?.saturating_sub(disk::label::DATA_START);
        let total = self.free_on(&top, leaf);
        let mut below = Below::default();
        let done = match state {
            // All of it.
            WearState::Complete => total,
            _ => self.free_below((&top, leaf), offset, &mut below),
        };
        Ok(Some(Run {
            state,
            time: number(time)?,
            offset,
            rate: match what {
                Wear::Trim => number(key::TRIM_RATE)?,
                Wear::Initialize => 0,
            },
            done: done.min(total),
            total,
            pass: (self.env.clock.monotonic_ns(), 0),
            below,
            ..Run::default()
        }))
    }

    /// How trim or initialize of a leaf stands.
    pub fn wear_status(&self, what: Wear, guid: u64) -> WearStatus {
        let run = self.background.wears.runs().get(&(what, guid)).copied();
        let mut run = run.unwrap_or_default();
        let leaf = self.tree().find(guid);
        if run.state == WearState::Active && leaf.is_some_and(|l| l.state() == vdev::State::Faulted)
        {
            // The next txg says so.
            run.state = WearState::Canceled;
        }
        WearStatus {
            state: run.state,
            time: run.time,
            done: match run.state {
                WearState::Complete => run.total,
                _ => run.done.min(run.total),
            },
            total: run.total,
        }
    }

    /// Returns when no call of a leaf's device that was under way before is any more: a leaf is about to go.
    pub(crate) fn settle_wear(&self) {
        drop(self.background.wears.calls.acquire_write());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Metaslabs of 100 bytes, half of each free.
    fn area(ms: u64) -> Area {
        let mut bytes = RangeSet::new();
        bytes.insert(ms * 100, (ms + 1) * 100);
        Area { bytes, free: 50 }
    }

    #[test]
    fn each_metaslab_is_counted_once_however_many_pieces_there_are() {
        let (mut below, mut asked) = (Below::default(), 0);
        for offset in (0..=100_000).step_by(10) {
            let done = below.advance(1000, offset, &mut |ms| {
                asked += 1;
                area(ms)
            });
            assert_eq!(done, offset / 2);
        }
        // The one in which a piece ends, and each of those that were passed.
        assert!(asked <= 10_001 + 1000, "{asked}");
    }

    #[test]
    fn an_offset_in_the_middle_is_counted_alike_at_once_and_in_steps() {
        let mut steps = Below::default();
        for offset in [0, 1, 99, 100, 101, 550, 999, 1000, 5000] {
            let at_once = Below::default().advance(10, offset, &mut area);
            assert_eq!(steps.advance(10, offset, &mut area), at_once, "{offset}");
        }
    }
}
