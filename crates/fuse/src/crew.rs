//! Which of a session's threads wait for requests, which rest, and when one more is needed.
//!
//! The kernel wakes threads waiting on the device in turn, so many of them share out even a single
//! stream of requests, each with cold caches: with sixteen waiting, creating a file took three
//! times as long as with two. So only [`SPARE`] threads wait on the device beyond those that are
//! busy; the others rest, the last one to rest is the first to be woken, and one that has rested
//! for [`PATIENCE`] ends. A thread is woken (or started) when all that are awake are busy with
//! requests that may wait for something.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// Threads that may wait for requests at once.
const SPARE: u32 = 2;
/// How long a thread rests before it ends.
const PATIENCE: Duration = Duration::from_secs(10);

struct Resting {
    thread: Thread,
    woken: Arc<AtomicBool>,
}

pub(crate) struct Crew {
    /// Most threads.
    pub most: usize,
    /// Threads that are awake (high half) and busy (low half), together so that the decisions to
    /// rest and to wake see one state.
    counts: AtomicU64,
    resting: Mutex<Vec<Resting>>,
    closed: AtomicBool,
}

const AWAKE: u64 = 1 << 32;
const BUSY: u64 = 1;

fn split(c: u64) -> (u32, u32) {
    ((c >> 32) as u32, c as u32)
}

impl Crew {
    pub fn new(most: usize) -> Crew {
        Crew {
            most: most.max(1),
            counts: AtomicU64::new(0),
            resting: Mutex::default(),
            closed: AtomicBool::new(false),
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Resting>> {
        self.resting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A thread is about to start.
    pub fn joined(&self) {
        self.counts.fetch_add(AWAKE, SeqCst);
    }

    /// A thread that was counted did not start.
    pub fn left(&self) {
        self.counts.fetch_sub(AWAKE, SeqCst);
    }

    /// The calling thread begins to serve. Returns whether nobody is left to wait for requests.
    pub fn begin(&self) -> bool {
        let (awake, busy) = split(self.counts.fetch_add(BUSY, SeqCst) + BUSY);
        busy >= awake
    }

    /// The calling thread has served. Returns whether it may rest.
    pub fn end(&self) -> bool {
        let (awake, busy) = split(self.counts.fetch_sub(BUSY, SeqCst) - BUSY);
        awake > busy.saturating_add(SPARE)
    }

    /// Wakes a thread; returns whether there was one.
    pub fn wake_one(&self) -> bool {
        let mut resting = self.lock();
        match resting.pop() {
            Some(r) => {
                self.counts.fetch_add(AWAKE, SeqCst);
                r.woken.store(true, SeqCst);
                r.thread.unpark();
                true
            }
            None => false,
        }
    }

    /// Wakes all, and nobody rests any more.
    pub fn wake_all(&self) {
        self.closed.store(true, SeqCst);
        while self.wake_one() {}
    }

    /// Rests, if that still seems right, until woken. Returns `false` if nobody did for long; the
    /// thread then ends.
    pub fn rest(&self) -> bool {
        let woken = Arc::new(AtomicBool::new(false));
        {
            // A thread that finds nobody waiting takes this lock to wake somebody, so it either is
            // seen by the decision here or finds this thread on the list.
            let mut resting = self.lock();
            if self.closed.load(SeqCst) {
                return true;
            }
            let fewer = |c: u64| {
                let (awake, busy) = split(c);
                (awake > busy.saturating_add(SPARE)).then(|| c - AWAKE)
            };
            if self.counts.fetch_update(SeqCst, SeqCst, fewer).is_err() {
                return true;
            }
            resting.push(Resting {
                thread: std::thread::current(),
                woken: woken.clone(),
            });
        }
        let until = Instant::now() + PATIENCE;
        while !woken.load(SeqCst) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let mut resting = self.lock();
                // No longer on the list: woken this very moment.
                let Some(i) = resting.iter().position(|r| Arc::ptr_eq(&r.woken, &woken)) else {
                    return true;
                };
                resting.remove(i);
                return false;
            }
            std::thread::park_timeout(left);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rests_only_when_enough_others_wait() {
        let c = Crew::new(4);
        c.joined();
        assert!(c.begin()); // the only one: another is needed
        assert!(!c.wake_one());
        c.joined();
        c.joined();
        assert!(!c.begin());
        assert!(!c.end()); // three awake, one busy: two wait
        c.joined();
        assert!(!c.begin());
        assert!(c.end()); // three would wait
        std::thread::scope(|s| {
            let t = s.spawn(|| c.rest());
            while c.lock().is_empty() {
                std::thread::yield_now();
            }
            assert_eq!(split(c.counts.load(SeqCst)), (3, 1));
            assert!(!c.begin());
            assert!(c.begin());
            assert!(c.wake_one());
            assert!(t.join().unwrap());
        });
        assert_eq!(split(c.counts.load(SeqCst)), (4, 3));
        assert!(!c.end());
        assert!(c.rest()); // not right any more: does not rest
        assert!(!c.end());
        c.wake_all();
        assert!(c.rest());
    }
}
