//! Multihost protection: heartbeats of an imported pool, and the test for them before an import
//! (pool format §6.4).
//!
//! The pool is passive. The daemon's thread calls [`Pool::heartbeat`] as often as it is told to, and
//! sleeps between the looks of an [`ActivityCheck`].
//!
//! # Invariants
//! 1. A heartbeat repeats the last uberblock that was committed; only time and MMP fields differ. So
//!    whichever of them is the best, the state of the pool is the same.
//! 2. Nobody writes to a pool whose uberblock records heartbeats before a check has seen none.
//! 3. A host that could not write a heartbeat for `fail_intervals` intervals suspends the pool before
//!    another host's check, which takes twice as long, can end.

use base::mutation::{mutated, Mutation};
use base::sync::MutexExt;
use base::{bail, Error, Kind, Result, Txg};
use disk::uberblock::Uberblock;
use disk::NvList;
use env::{Access, Env};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;
use vdev::label::SlotCopies;
use vdev::{keys, VdevTree};

const MS: u64 = 1_000_000;
/// A check of a pool that does not record how soon its writer gives up takes this long at least.
const CHECK_MIN: u64 = 1_000 * MS;
/// A check lasts so many times the time after which the writer suspends the pool.
const SAFETY: u64 = 2;
/// How often a check writes an uberblock of its own before it takes the pool.
const CLAIMS: u32 = 10;
/// Longest check; what a hostile uberblock asks for beyond is not waited for.
const CHECK_MAX: u64 = 3_600_000 * MS;

/// What rules apply to heartbeats of this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Multihost {
    /// Milliseconds in which each leaf gets a heartbeat.
    pub interval_ms: u64,
    /// Intervals without a heartbeat after which the pool is suspended; 0: never.
    pub fail_intervals: u64,
    /// Intervals an import waits for heartbeats where the pool does not say how long is enough.
    pub import_intervals: u64,
}

impl Default for Multihost {
    fn default() -> Multihost {
        Multihost {
            interval_ms: 1000,
            fail_intervals: 10,
            import_intervals: 20,
        }
    }
}

/// What is known, before a pool is opened, about other hosts that may use it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Activity {
    /// Nothing: a pool that records heartbeats can be opened for reading only.
    #[default]
    Unknown,
    /// A check saw this uberblock and no other. It must still be the best one.
    Seen(Rank),
    /// The pool was open in this process until just now.
    Own,
}

/// Txg, time and MMP sequence number of an uberblock.
pub type Rank = (Txg, u64, u64);

/// Whether an uberblock says that its writer wrote heartbeats.
pub fn is_protected(ub: &Uberblock) -> bool {
    ub.mmp_valid() && ub.mmp_delay != 0
}

/// The refusal of a pool that somebody else uses.
pub(crate) fn in_use() -> Error {
    Error::new(Kind::Busy, "the pool is in use by another host")
}

/// Refuses an uberblock that `activity` does not allow to build upon.
pub(crate) fn admit(ub: &Uberblock, activity: Activity, readonly: bool) -> Result<()> {
    match activity {
        Activity::Own => Ok(()),
        Activity::Seen(rank) if rank == ub.rank() => Ok(()),
        Activity::Seen(_) => Err(in_use()),
        Activity::Unknown if is_protected(ub) && !readonly => bail!(
            Busy,
            "the pool is protected by 'multihost', and no activity check was made"
        ),
        Activity::Unknown => Ok(()),
    }
}

/// A test whether another host writes heartbeats to a pool.
pub struct ActivityCheck {
    env: Env,
    tree: VdevTree,
    original: Uberblock,
    wait_ns: u64,
    interval_ns: u64,
    begin_ns: u64,
    /// Claims written so far, and the sequence number that must be read back.
    claims: u32,
    claimed: Option<u64>,
    /// What each leaf, by guid, had where the claims were written.
    before: Vec<(u64, SlotCopies)>,
}

impl ActivityCheck {
    /// Begins a check of the pool that `config` (from discovery) describes, whose labels say `state`
    /// and `hostid`; `None` if none is needed. With `write`, the check ends with uberblocks of its
    /// own, so that of two hosts that check at the same time at most one goes on; what was there before is written back then.
    ///
    /// Errors: not permitted, if the pool is protected and this host has no host id.
    pub fn begin(
        env: &Env,
        config: &NvList,
        (state, hostid): (u64, u64),
        rules: Multihost,
        write: bool,
    ) -> Result<Option<ActivityCheck>> {
        if state == keys::pool::STATE_DESTROYED {
            return Ok(None);
        }
        let open = |access| -> Result<VdevTree> {
            let list = config.need_nvlist(keys::pool::VDEV_TREE)?;
            let tree = VdevTree::from_config(env.clone(), list)?;
            tree.open(access);
            tree.validate(Txg::MAX, false);
            Ok(tree)
        };
        let mut tree = open(Access::Read)?;
        let best = tree.best_uberblock(Txg::MAX);
        let Some((original, _)) = best.filter(|(ub, _)| is_protected(ub)) else {
            tree.close();
            return Ok(None);
        };
        let own = env.host.hostid();
        if own == 0 {
            tree.close();
            bail!(
                NotPermitted,
                "the pool has the multihost property on and the system's hostid is not set"
            );
        }
        if own == hostid && state == keys::pool::STATE_EXPORTED {
            tree.close();
            return Ok(None);
        }
        if write {
            tree.close();
            tree = open(Access::Write)?;
        }
        let wait = duration(&original, rules);
        // Hosts that begin at the same moment do not end at the same moment.
        let wait_ns = wait + env.rng.u64() % (wait / 4 + 1);
        Ok(Some(ActivityCheck {
            begin_ns: env.clock.monotonic_ns(),
            env: env.clone(),
            tree,
            wait_ns,
            interval_ns: rules.interval_ms.max(1) * MS,
            claims: if write { 0 } else { CLAIMS },
            claimed: None,
            before: Vec::new(),
            original,
        }))
    }

    /// Looks once. `Some`: look again after that time; `None`: nobody else uses the pool.
    ///
    /// Errors: busy, if somebody does.
    pub fn look(&mut self) -> Result<Option<Duration>> {
        let Some((best, _)) = self.tree.best_uberblock(Txg::MAX) else {
            bail!(NoDevice, "no valid uberblock on any device");
        };
        let (txg, time, seq) = self.original.rank();
        let other = best.rank() != (txg, time, self.claimed.unwrap_or(seq));
        if other && !mutated(Mutation::ActivityPassed) {
            // What the other host wrote is not to be written over.
            self.claimed = None;
            return Err(in_use());
        }
        let passed = self.env.clock.monotonic_ns().saturating_sub(self.begin_ns);
        if let Some(left) = self.wait_ns.checked_sub(passed).filter(|n| *n != 0) {
            let next = left.min(self.interval_ns).min(1_000 * MS);
            return Ok(Some(Duration::from_nanos(next)));
        }
        if self.claims == CLAIMS {
            self.restore()?;
            return Ok(None);
        }
        self.claims += 1;
        // The counter has 16 bits; one that is used up is left as it is, and only watched.
        let room = u64::from(u16::MAX).saturating_sub(seq);
        if room != 0 {
            let seq = seq + 1 + self.env.rng.u64() % room;
            if self.before.is_empty() {
                let leaves = self.tree.leaves().into_iter();
                let kept = leaves.map(|l| (l.guid(), self.tree.read_heartbeat(&l)));
                self.before = kept.collect();
            }
            self.write(Some(seq))?;
            self.claimed = Some(seq);
        }
        Ok(Some(Duration::from_nanos(self.interval_ns)))
    }

    /// What [`Activity::Seen`] holds once [`ActivityCheck::look`] has ended well.
    pub fn seen(&self) -> Rank {
        self.original.rank()
    }

    /// Writes the uberblock to all leaves that can be written, with another sequence number.
    fn write(&self, seq: Option<u64>) -> Result<()> {
        let mut ub = self.original.clone();
        if let Some(seq) = seq {
            ub.mmp_config = (ub.mmp_config & !(0xffff << 32)) | 2 | (seq & 0xffff) << 32;
        }
        let mut why = Error::from(Kind::NoDevice);
        let mut written = false;
        for leaf in self.tree.leaves() {
            match self.tree.write_heartbeat(&ub, &leaf) {
                Ok(()) => written = true,
                Err(e) => why = e,
            }
        }
        match written {
            true => Ok(()),
            false => Err(why.context("activity check")),
        }
    }

    /// Takes the claims back: the devices are as they were before the check. Copies that could not be read then get the uberblock
    /// the check began with.
    fn restore(&mut self) -> Result<()> {
        if self.claimed.take().is_none() {
            return Ok(());
        }
        self.write(None)?;
        for (guid, copies) in std::mem::take(&mut self.before) {
            if let Some(leaf) = self.tree.find(guid) {
                self.tree.restore_heartbeat(&leaf, copies)?;
            }
        }
        Ok(())
    }
}

impl Drop for ActivityCheck {
    fn drop(&mut self) {
        // Nobody is waited for any more; where the devices fail, the next check sees it.
        let _ = self.restore();
        self.tree.close();
    }
}

/// How long an uberblock's writer may be silent before it has certainly stopped, nanoseconds.
fn duration(ub: &Uberblock, rules: Multihost) -> u64 {
    let own = rules.interval_ms * MS;
    let imports = rules.import_intervals.max(1);
    let all = |interval: u64| interval.saturating_mul(imports);
    let ns = match (ub.mmp_interval_ms(), ub.mmp_fail_intervals()) {
        (Some(ms), Some(fail)) if fail > 0 => fail * ms * MS * SAFETY,
        (Some(ms), Some(_)) => all(own)
            .max(all((ms * MS).saturating_add(ub.mmp_delay)))
            .max(CHECK_MIN),
        _ => all(own)
            .max(all(own.saturating_add(ub.mmp_delay)))
            .max(CHECK_MIN),
    };
    ns.min(CHECK_MAX)
}

/// Heartbeats of an open pool.
#[derive(Default)]
pub(crate) struct Heart(Mutex<Beats>);

#[derive(Default)]
struct Beats {
    on: bool,
    rules: Multihost,
    /// The last uberblock committed.
    ub: Option<Uberblock>,
    /// Mean of the nanoseconds between heartbeats.
    delay: u64,
    /// Sequence number within the second `time`.
    seq: u64,
    time: u64,
    /// Monotonic nanoseconds of the last heartbeat that was written, or of the beginning.
    last: Option<u64>,
    /// Which leaf is next.
    next: usize,
    /// The pool was suspended because none could be written.
    lost: bool,
}

impl Heart {
    fn lock(&self) -> MutexGuard<'_, Beats> {
        self.0.acquire()
    }

    pub(crate) fn new(rules: Multihost) -> Heart {
        Heart(Mutex::new(Beats {
            rules,
            ..Beats::default()
        }))
    }

    /// Follows the property `multihost`.
    pub(crate) fn set(&self, on: bool) {
        let mut b = self.lock();
        if b.on != on {
            b.on = on;
            b.delay = b.rules.interval_ms * MS;
            b.last = None;
        }
    }

    pub(crate) fn is_on(&self) -> bool {
        self.lock().on
    }

    /// Fills the MMP fields of an uberblock that commits a txg; whether multihost is on.
    pub(crate) fn stamp(&self, ub: &mut Uberblock) -> bool {
        let b = self.lock();
        if b.on {
            ub.set_mmp(
                b.delay.max(1),
                b.rules.interval_ms,
                0,
                b.rules.fail_intervals,
            );
        } else {
            ub.mmp_magic = disk::uberblock::MMP_MAGIC;
            ub.mmp_delay = 0;
            ub.mmp_config = 0;
        }
        b.on
    }

    /// Another uberblock of the txg that is on disk is about to be written, `now` (seconds since 1970). It gets a time behind those of
    /// all heartbeats, and heartbeats repeat it from now on: one that repeats its predecessor must not count more. What it leads to is
    /// on disk already.
    pub(crate) fn supersede(&self, ub: &mut Uberblock, now: u64) {
        let mut b = self.lock();
        ub.timestamp = ub.timestamp.max(now).max(b.time).saturating_add(1);
        b.ub = Some(ub.clone());
        b.seq = 0;
        b.time = ub.timestamp;
    }

    /// An uberblock is on disk.
    pub(crate) fn committed(&self, ub: &Uberblock) {
        let mut b = self.lock();
        b.ub = Some(ub.clone());
        b.seq = 0;
        b.time = ub.timestamp;
    }
}

impl Heart {
    /// What rules heartbeats follow from now on.
    pub(crate) fn set_rules(&self, rules: Multihost) {
        let mut b = self.lock();
        b.rules = rules;
        b.delay = rules.interval_ms * MS;
    }

    /// Writes a heartbeat if the property `multihost` is on and `may` allows it, and says when the next is due.
    pub(crate) fn beat(&self, env: &Env, tree: &VdevTree, may: &dyn Fn() -> bool) -> Duration {
        let leaves: Vec<_> = tree
            .leaves()
            .into_iter()
            .filter(|l| l.state().usable())
            .collect();
        let now = env.clock.monotonic_ns();
        let mut b = self.lock();
        let interval = Duration::from_millis(b.rules.interval_ms.max(1));
        if !b.on || !may() {
            b.last = None;
            return interval;
        }
        let last = *b.last.get_or_insert(now);
        if let (Some(mut ub), Some(leaf)) = (b.ub.clone(), leaves.get(b.next % leaves.len().max(1)))
        {
            b.next = b.next.wrapping_add(1);
            let time = env.clock.now().0.max(0) as u64;
            // A clock that was set back must not make heartbeats older than what they repeat.
            let time = time.max(b.time);
            b.seq = match time == b.time {
                true => (b.seq + 1).min(u64::from(u16::MAX)),
                false => 1,
            };
            b.time = time;
            ub.timestamp = time;
            ub.set_mmp(
                b.delay.max(1),
                b.rules.interval_ms,
                b.seq,
                b.rules.fail_intervals,
            );
            // The txg being written may end meanwhile: its uberblock is better than this one.
            drop(b);
            let written = tree.write_heartbeat(&ub, leaf);
            let now = env.clock.monotonic_ns();
            b = self.lock();
            if written.is_ok() {
                let each = now.saturating_sub(last);
                // Slower at once, faster by and by.
                b.delay = match each > b.delay {
                    true => each,
                    false => (b.delay * 127 + each) / 128,
                };
                b.last = Some(now);
            }
        }
        interval / u32::try_from(leaves.len().max(1)).unwrap_or(u32::MAX)
    }

    /// How often to call this, and for how many nanoseconds no heartbeat has been written, once if that is too long.
    pub(crate) fn watch(&self, env: &Env, may: &dyn Fn() -> bool) -> (Duration, Option<u64>) {
        let mut b = self.lock();
        let interval = Duration::from_millis(b.rules.interval_ms.max(1));
        let limit = b.rules.fail_intervals * b.rules.interval_ms * MS;
        let now = env.clock.monotonic_ns();
        let silent = now.saturating_sub(b.last.unwrap_or(now));
        if !b.on || limit == 0 || silent <= limit || b.lost || !may() {
            return (interval, None);
        }
        b.lost = true;
        (interval, Some(silent))
    }

    /// Whether the pool was suspended because no heartbeat could be written.
    pub(crate) fn is_lost(&self) -> bool {
        self.lock().lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ub(delay: u64, interval: u64, fail: u64) -> Uberblock {
        let mut ub = Uberblock::default();
        ub.set_mmp(delay, interval, 3, fail);
        ub
    }

    #[test]
    fn a_check_lasts_as_long_as_the_writer_may_be_silent() {
        let rules = Multihost::default();
        assert_eq!(duration(&ub(MS, 100, 2), rules), 400 * MS);
        assert_eq!(duration(&ub(MS, 1000, 10), rules), 20_000 * MS);
        // A writer that never gives up is watched by the longer of both hosts' intervals.
        assert_eq!(duration(&ub(MS, 100, 0), rules), 20_000 * MS);
        assert_eq!(duration(&ub(2_000 * MS, 3000, 0), rules), 100_000 * MS);
        let quick = Multihost {
            interval_ms: 100,
            import_intervals: 1,
            ..rules
        };
        assert_eq!(duration(&ub(MS, 100, 0), quick), 1_000 * MS);
        // Old writers tell the delay only.
        let mut old = ub(500 * MS, 0, 0);
        old.mmp_config = 0;
        assert_eq!(duration(&old, rules), 30_000 * MS);
        assert_eq!(duration(&ub(u64::MAX, u64::MAX, 0xffff), rules), CHECK_MAX);
    }

    /// The clock may be behind the heartbeats.
    #[test]
    fn an_uberblock_of_the_same_txg_counts_more_than_heartbeats_of_the_one_before() {
        let heart = Heart::new(Multihost::default());
        let mut ub = ub(MS, 100, 2);
        ub.timestamp = 1000;
        heart.committed(&ub);
        heart.lock().time = 1005;
        let mut next = ub.clone();
        heart.supersede(&mut next, 1002);
        ub.timestamp = 1005;
        assert!(next.rank() > ub.rank());
        let b = heart.lock();
        let beat = b.ub.as_ref().map(|u| u.timestamp);
        assert_eq!((beat, b.time), (Some(next.timestamp), next.timestamp));
    }

    #[test]
    fn only_what_a_check_saw_is_written_to() {
        let plain = ub(0, 0, 0);
        let kept = ub(MS, 100, 2);
        assert!(admit(&plain, Activity::Unknown, false).is_ok());
        assert!(admit(&kept, Activity::Unknown, true).is_ok());
        assert_eq!(
            admit(&kept, Activity::Unknown, false).unwrap_err().kind,
            Kind::Busy
        );
        assert!(admit(&kept, Activity::Own, false).is_ok());
        assert!(admit(&kept, Activity::Seen(kept.rank()), false).is_ok());
        let (txg, time, seq) = kept.rank();
        for other in [
            (txg.next(), time, seq),
            (txg, time + 1, seq),
            (txg, time, 9),
        ] {
            assert!(admit(&kept, Activity::Seen(other), true).is_err());
        }
    }
}
