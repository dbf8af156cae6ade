//! The times at which txgs were written: a database in the object directory of the MOS (pool format §17.2). A scrub of
//! blocks written between two dates takes its txgs from it.
//!
//! The database has three rings of 256 entries (time, txg). A new entry goes into the ring of months if that ring's newest one is
//! 30 days old or older, else into the ring of days if that one's is a day old or older, else into the ring of minutes.
//! Times are seconds since 1970.
//!
//! Invariants:
//!
//! 1. A range of txgs is never too narrow, as far as the clock was right: the first txg comes from the last entry that is not
//!    younger than the date, the last txg from the first entry that is not older. Without such an entry the range has no such end.
//! 2. Entries of a ring do not get older. While the clock is behind the newest entry, nothing is noted.
//! 3. Noting causes no txg: an idle pool writes nothing for it.
//!
//! Pools without feature flags get no database. One that they have is read.

use crate::scan::ScrubRange;
use base::sync::MutexExt;
use base::{Result, Txg};
use disk::mos_keys::{TXG_TIMES_DAYS, TXG_TIMES_MINUTES, TXG_TIMES_MONTHS};
use dmu::{Objset, Tx};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use zap::{Value, Zap};

/// Entries of a ring.
const ENTRIES: usize = 256;
/// Words of a ring on disk: index of the oldest entry, index behind the newest, number of entries; then the entries, two words each.
const WORDS: usize = 3 + 2 * ENTRIES;
/// OpenZFS's default for both noting and storing (`zfs_spa_note_txg_time`, `zfs_spa_flush_txg_time`).
const NOTED_EVERY: u64 = 600;
const DAY: u64 = 24 * 60 * 60;
/// Minutes, days, months: the names, and how old the newest entry must be for a further one.
const RINGS: [(&str, u64); 3] = [
    (TXG_TIMES_MINUTES, 0),
    (TXG_TIMES_DAYS, DAY),
    (TXG_TIMES_MONTHS, 30 * DAY),
];

/// Oldest entry first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Ring(VecDeque<(u64, Txg)>);

impl Ring {
    /// `None`: the words are no ring.
    fn of(words: &[u64]) -> Option<Ring> {
        let [head, _, length, entries @ ..] = words else {
            return None;
        };
        let (head, length) = (usize::try_from(*head).ok()?, usize::try_from(*length).ok()?);
        if words.len() != WORDS || head >= ENTRIES || length > ENTRIES {
            return None;
        }
        let entry = |i: usize| {
            let at = (head + i) % ENTRIES * 2;
            Some((*entries.get(at)?, Txg::new(*entries.get(at + 1)?)))
        };
        (0..length).map(entry).collect::<Option<_>>().map(Ring)
    }

    fn words(&self) -> Vec<u64> {
        let length = self.0.len() as u64;
        let mut words = vec![0, length % ENTRIES as u64, length];
        words.extend(self.0.iter().flat_map(|(time, txg)| [*time, txg.number()]));
        words.resize(WORDS, 0);
        words
    }

    fn newest(&self) -> u64 {
        self.0.back().map_or(0, |e| e.0)
    }

    fn push(&mut self, time: u64, txg: Txg) {
        if self.0.len() == ENTRIES {
            self.0.pop_front();
        }
        self.0.push_back((time, txg));
    }
}

/// What the database says.
#[derive(Debug, Default)]
struct TxgTimes {
    rings: [Ring; 3],
    /// The newest entry.
    noted: (u64, Txg),
}

impl TxgTimes {
    fn entries(&self) -> impl Iterator<Item = (u64, Txg)> + '_ {
        self.rings.iter().flat_map(|r| r.0.iter().copied())
    }

    /// Notes that `txg` is written `now`; the ring that got the entry.
    fn note(&mut self, now: u64, txg: Txg) -> Option<usize> {
        let fits = |(ring, (_, age)): (&Ring, &(_, u64))| {
            now.checked_sub(ring.newest())
                .is_some_and(|since| since >= *age)
        };
        let which = (self.rings.iter().zip(&RINGS)).rposition(fits)?;
        self.rings.get_mut(which)?.push(now, txg);
        self.noted = (now, txg);
        Some(which)
    }

    /// The last txg that was written before `time` for sure.
    fn before(&self, time: u64) -> Option<Txg> {
        let before = self.entries().filter(|e| e.0 <= time);
        let newest = before.max_by_key(|e| (e.0, std::cmp::Reverse(e.1)));
        newest.map(|e| e.1)
    }

    /// The last txg that may have been written before `time`. An entry younger than `now` has a wrong time, and
    /// says nothing.
    fn until(&self, time: u64, now: u64) -> Option<Txg> {
        let after = self.entries().filter(|e| (time..=now).contains(&e.0));
        let oldest = after.min_by_key(|e| (e.0, std::cmp::Reverse(e.1)));
        oldest.map(|e| e.1)
    }
}

/// The database of a pool that is open. Its lock is a leaf lock.
#[derive(Debug, Default)]
pub(crate) struct Times(Mutex<TxgTimes>);

impl Times {
    /// Reads the database. One that cannot be read is no reason not to open the pool `name`.
    pub fn load(&self, mos: &Arc<Objset>, name: &str) {
        let mut times = TxgTimes::default();
        for (ring, (key, _)) in times.rings.iter_mut().zip(RINGS) {
            match read_ring(mos, key) {
                Ok(Some(read)) => *ring = read,
                Ok(None) => {}
                Err(e) => tracing::warn!(pool = name, "times of txgs, '{key}': {e}"),
            }
        }
        times.noted = times.entries().max().unwrap_or_default();
        *self.0.acquire() = times;
    }

    /// In syncing context: notes that the txg is written `now`, if the last note is ten minutes old, or if the pool is being
    /// exported (`last`).
    pub fn note(&self, mos: &Arc<Objset>, tx: &Tx, now: u64, last: bool) -> Result<()> {
        let mut times = self.0.acquire();
        let (time, txg) = times.noted;
        let due = now >= time.saturating_add(NOTED_EVERY) || (last && now >= time);
        if !due || txg >= tx.txg() {
            return Ok(());
        }
        let Some(which) = times.note(now, tx.txg()) else {
            return Ok(());
        };
        let words = times.rings.get(which).map(Ring::words);
        drop(times);
        let name = RINGS.get(which).map(|(name, _)| *name);
        if let (Some(name), Some(words)) = (name, words) {
            Zap::new(&mos.hold(1)?).update(tx, name, &Value::u64s(&words))?;
        }
        Ok(())
    }

    /// The txgs in which blocks were born between two moments, in seconds since 1970; a few more at both ends. Without an
    /// entry early or late enough the range has no such end.
    pub fn between(&self, start: Option<u64>, end: Option<u64>, now: u64) -> ScrubRange {
        let times = self.0.acquire();
        ScrubRange {
            after: start.and_then(|t| times.before(t)).unwrap_or(Txg::NONE),
            through: end.and_then(|t| times.until(t, now)),
        }
    }
}

fn read_ring(mos: &Arc<Objset>, name: &str) -> Result<Option<Ring>> {
    let Some(value) = Zap::new(&mos.hold(1)?).get_value(name)? else {
        return Ok(None);
    };
    match Ring::of(&value.ints()) {
        Some(ring) => Ok(Some(ring)),
        None => base::bail!(Damaged, "malformed"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_go_to_the_coarsest_ring_that_wants_one() {
        let mut t = TxgTimes::default();
        let now = 1_700_000_000;
        assert_eq!(t.note(now, Txg::new(4)), Some(2));
        assert_eq!(t.note(now + 600, Txg::new(5)), Some(1));
        assert_eq!(t.note(now + 1200, Txg::new(6)), Some(0));
        assert_eq!(t.note(now + 1200 + DAY, Txg::new(7)), Some(1));
        assert_eq!(t.note(now + 31 * DAY, Txg::new(8)), Some(2));
        // The clock was put back.
        t.rings[0].push(now + 100 * DAY, Txg::new(9));
        assert_eq!(t.note(now + 31 * DAY + 600, Txg::new(10)), Some(1));
        assert_eq!(t.note(now + 31 * DAY + 1200, Txg::new(11)), None);
    }

    #[test]
    fn a_range_is_never_too_narrow() {
        let mut t = TxgTimes::default();
        let now = 1_700_000_000;
        assert_eq!((t.before(now), t.until(0, now)), (None, None));
        for n in 0..5 {
            t.note(now + n * 600, Txg::new(10 + n)).unwrap();
        }
        let later = now + 5000;
        assert_eq!(t.before(now - 1), None);
        assert_eq!(t.before(now), Some(Txg::new(10)));
        assert_eq!(t.before(now + 1199), Some(Txg::new(11)));
        assert_eq!(t.before(later), Some(Txg::new(14)));
        assert_eq!(t.until(now - 1, later), Some(Txg::new(10)));
        assert_eq!(t.until(now + 601, later), Some(Txg::new(12)));
        assert_eq!(t.until(now + 2401, later), None);
        // Of several at one time the widest counts.
        t.rings[0].push(now + 2400, Txg::new(20));
        assert_eq!(t.before(now + 2400), Some(Txg::new(14)));
        assert_eq!(t.until(now + 2400, later), Some(Txg::new(20)));
        // What is said to be of the future says nothing.
        assert_eq!(t.until(now + 2400, now + 2000), None);
    }

    #[test]
    fn a_ring_on_disk_is_what_it_was() {
        let mut r = Ring::default();
        assert_eq!(Ring::of(&r.words()), Some(r.clone()));
        for n in 0..300 {
            r.push(n, Txg::new(n));
            assert_eq!(Ring::of(&r.words()), Some(r.clone()));
        }
        assert_eq!(
            (r.0.len(), r.0.front()),
            (ENTRIES, Some(&(44, Txg::new(44))))
        );
        // Another writer does not begin at the first place.
        let mut words = vec![254, 1, 3];
        words.resize(WORDS, 0);
        words[3 + 254 * 2..].copy_from_slice(&[7, 70, 8, 80]);
        words[3..5].copy_from_slice(&[9, 90]);
        let ring = Ring::of(&words).unwrap();
        let all: Vec<(u64, u64)> = ring.0.iter().map(|e| (e.0, e.1.number())).collect();
        assert_eq!(all, [(7, 70), (8, 80), (9, 90)]);
        for (word, value) in [(0, 256), (2, 257), (2, u64::MAX)] {
            let mut bad = words.clone();
            bad[word] = value;
            assert_eq!(Ring::of(&bad), None);
        }
        assert_eq!(Ring::of(&words[1..]), None);
        assert_eq!(Ring::of(&[]), None);
    }
}
