//! What jobs leave to requests: a slice beside which somebody waits for requests pauses after each piece, for a multiple of the time
//! the piece took. So its share of devices and cores is bounded, and a pool that nobody uses is worked on at full speed.

use super::Budget;
use crate::Pool;
use env::Clock;

/// How a job shares devices and cores with requests that somebody waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Priority {
    /// Nothing is at stake if it takes longer.
    Low,
    /// Redundancy or room is missing until it is done.
    High,
}

impl Priority {
    /// A pause, in times of what was worked before it.
    fn pause(self) -> u64 {
        match self {
            Priority::Low => 5,
            Priority::High => 1,
        }
    }
}

/// No pause is longer, nanoseconds: an export waits for it.
const LONGEST: u64 = 250_000_000;
/// Written data that are not on disk yet, bytes, from which writers count as others.
const WRITTEN: u64 = 4 << 20;
/// Pieces grow while they take less, nanoseconds, and shrink when they take twice as long: no txg begins during a piece.
const SHORT: u64 = 100_000_000;
/// The largest piece, in times of the least.
const LARGEST: u64 = 32;

/// The working time of a slice.
pub(crate) struct Courtesy<'a> {
    clock: &'a dyn Clock,
    /// When the last pause ended, or the slice began.
    since: u64,
    /// Of the next piece, in times of the least one.
    size: u64,
}

impl<'a> Courtesy<'a> {
    /// A slice begins.
    pub fn new(clock: &'a dyn Clock) -> Courtesy<'a> {
        Courtesy {
            clock,
            since: clock.monotonic_ns(),
            size: 1,
        }
    }

    /// How large the next piece may be, in times of the least one: 1 beside others, and up to [`LARGEST`] times as much as long as
    /// pieces are short.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// A piece of work is done. `others`: somebody else had requests meanwhile.
    pub fn give_way(&mut self, others: bool, priority: Priority) {
        let worked = self.clock.monotonic_ns().saturating_sub(self.since);
        self.size = match worked {
            _ if others => 1,
            0..SHORT => LARGEST.min(self.size * 2),
            ns if ns >= 2 * SHORT => 1.max(self.size / 2),
            _ => self.size,
        };
        if others {
            self.clock
                .pause(worked.saturating_mul(priority.pause()).min(LONGEST));
        }
        self.since = self.clock.monotonic_ns();
    }
}

/// A measure of the requests that somebody waits for, taken before a piece.
pub(crate) struct Foreground(u64);

impl Foreground {
    /// A piece begins.
    pub fn of(pool: &Pool, budget: &Budget) -> Foreground {
        Foreground(others_requests(pool, budget))
    }

    /// Whether somebody else had requests since. What the piece reads in their class counts as theirs, unless it tells the budget.
    pub fn others(self, pool: &Pool, budget: &Budget) -> bool {
        // Pieces beside each other may tell of more than there was.
        let since = others_requests(pool, budget).wrapping_sub(self.0) as i64;
        since > 0 || pool.dmu().unwritten_bytes() > WRITTEN
    }
}

fn others_requests(pool: &Pool, budget: &Budget) -> u64 {
    pool.tree().foreground().wrapping_sub(budget.own_requests())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    #[test]
    fn pieces_grow_while_they_are_short_and_nobody_else_is_there() {
        let clock = Passing::default();
        let mut courtesy = Courtesy::new(&clock);
        let mut next = |worked: u64, others| {
            clock.pause(worked);
            courtesy.give_way(others, Priority::Low);
            courtesy.size()
        };
        let quick: Vec<u64> = (0..5).map(|_| next(SHORT / 2, false)).collect();
        assert_eq!(quick, [2, 4, 8, 16, LARGEST]);
        assert_eq!(next(SHORT, false), LARGEST);
        assert_eq!(next(2 * SHORT, false), LARGEST / 2);
        assert_eq!(next(SHORT / 2, true), 1);
        assert_eq!(next(9 * SHORT, false), 1);
    }

    /// Time passes by pauses, and by hand.
    #[derive(Default)]
    struct Passing(AtomicU64);

    impl Clock for Passing {
        fn now(&self) -> (i64, u32) {
            (0, 0)
        }
        fn monotonic_ns(&self) -> u64 {
            self.0.load(Relaxed)
        }
        fn pause(&self, ns: u64) {
            self.0.fetch_add(ns, Relaxed);
        }
    }

    #[test]
    fn a_slice_pauses_beside_others_for_a_multiple_of_its_work() {
        let clock = Passing::default();
        let mut courtesy = Courtesy::new(&clock);
        let mut piece = |worked: u64, others| {
            clock.pause(worked);
            let before = clock.monotonic_ns();
            courtesy.give_way(others, Priority::Low);
            clock.monotonic_ns() - before
        };
        assert_eq!(piece(10_000_000, false), 0);
        assert_eq!(piece(10_000_000, true), 10_000_000 * Priority::Low.pause());
        // The pause itself is no work.
        assert_eq!(piece(1_000, true), 1_000 * Priority::Low.pause());
        assert_eq!(piece(10_000_000_000, true), LONGEST);
    }
}
