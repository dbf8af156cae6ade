//! What a step or a slice of a job may use up: bytes, and time.
//!
//! Every job counts in one currency, bytes that are read or written. Work that is cheaper or dearer has an exchange rate beside it: a
//! block that is only handled (freed, walked over) costs [`BLOCK`] bytes.

use crate::Pool;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Bytes that a block costs which is handled without regard to its size.
pub const BLOCK: u64 = 4096;
/// Bytes after which the clock is looked at again.
const CLOCK_EVERY: u64 = 32 * BLOCK;
/// Time of all jobs together in a txg that a thread waits for.
const SOON: Duration = Duration::from_secs(1);
/// Time of all jobs together in any txg, and of a slice: as long as a txg stays open when nobody asks for it.
const LONGEST: Duration = Duration::from_secs(5);
/// A pause for the sake of a rate, nanoseconds, and how many of them follow each other: a slice ends behind them.
const PAUSE: u64 = 100_000_000;
const PAUSES: u64 = 40;

/// What a step or slice may use up.
pub struct Budget<'a> {
    pool: &'a Pool,
    paused: &'a AtomicBool,
    bytes: AtomicU64,
    taken: AtomicU64,
    /// Of the next piece, in times of the least one.
    size: AtomicU64,
    /// Requests in the class of those that somebody waits for, made by the pieces themselves.
    own: AtomicU64,
    /// On the monotonic clock, nanoseconds: end if a thread waits for the txg, end in any case.
    soon: u64,
    end: u64,
}

impl<'a> Budget<'a> {
    /// `sharers`: jobs that share the time of a txg, at least 1. `paused`: nothing is left as soon as it is set.
    pub(super) fn new(pool: &'a Pool, paused: &'a AtomicBool, sharers: u64) -> Budget<'a> {
        let now = pool.env.clock.monotonic_ns();
        let after = |d: Duration| now.saturating_add(d.as_nanos() as u64 / sharers);
        Budget {
            pool,
            paused,
            bytes: AtomicU64::new(pool.config.tunables.job_bytes),
            taken: AtomicU64::new(0),
            size: AtomicU64::new(1),
            own: AtomicU64::new(0),
            soon: after(SOON),
            end: after(LONGEST),
        }
    }

    /// Asks whether `bytes` further bytes may be handled, and takes them; false: the step or slice has to end before them. 0 asks
    /// without taking. More than is left may be taken at once, so that a piece that cannot be divided gets done.
    pub fn take(&self, bytes: u64) -> bool {
        if self.pool.background.jobs.is_stopped() || self.paused.load(Ordering::Relaxed) {
            return false;
        }
        let left = self.bytes.load(Ordering::Relaxed);
        if left == 0 {
            return false;
        }
        let before = self.taken.fetch_add(bytes, Ordering::Relaxed);
        let crossed = before / CLOCK_EVERY != before.saturating_add(bytes) / CLOCK_EVERY;
        if (crossed || bytes == 0) && before > 0 && self.is_late() {
            self.bytes.store(0, Ordering::Relaxed);
            return false;
        }
        self.bytes
            .store(left.saturating_sub(bytes), Ordering::Relaxed);
        true
    }

    /// [`Budget::take`] for blocks that are handled without regard to their size.
    pub fn take_blocks(&self, blocks: u64) -> bool {
        self.take(blocks.saturating_mul(BLOCK))
    }

    /// How large the next piece may be, in times of the job's least piece: more than 1 as long as pieces are short and no request is
    /// waited for.
    pub fn size(&self) -> u64 {
        self.size.load(Ordering::Relaxed)
    }

    /// What a piece reads in `work` is read for itself, though in the class of requests that somebody waits for: the job gives way to
    /// others, not to itself. Requests that others make meanwhile are not told apart.
    pub fn read_for_itself<R>(&self, work: impl FnOnce() -> R) -> R {
        let before = self.pool.tree().foreground();
        let done = work();
        let own = self.pool.tree().foreground().wrapping_sub(before);
        self.own.fetch_add(own, Ordering::Relaxed);
        done
    }

    /// How many requests pieces have made for themselves ([`Budget::read_for_itself`]).
    pub(super) fn own_requests(&self) -> u64 {
        self.own.load(Ordering::Relaxed)
    }

    pub(super) fn set_size(&self, size: u64) {
        self.size.store(size, Ordering::Relaxed);
    }

    /// Waits until `bytes` since `start` (monotonic nanoseconds) are no more than `rate` bytes per second; 0: no limit. False: the
    /// slice has to end before that.
    pub fn within_rate(&self, rate: u64, (start, bytes): (u64, u64)) -> bool {
        let due = u128::from(bytes) * 1_000_000_000;
        let Some(due) = due.checked_div(rate.into()) else {
            return true;
        };
        let clock = &self.pool.env.clock;
        for _ in 0..PAUSES {
            let elapsed = u128::from(clock.monotonic_ns().saturating_sub(start));
            if elapsed >= due {
                return true;
            }
            if !self.take(0) {
                return false;
            }
            clock.pause(u64::try_from(due - elapsed).unwrap_or(PAUSE).min(PAUSE));
        }
        false
    }

    fn is_late(&self) -> bool {
        let now = self.pool.env.clock.monotonic_ns();
        now >= self.end || (now >= self.soon && self.pool.is_waited_for())
    }
}
