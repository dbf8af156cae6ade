//! Byte-range locks of a file: many readers or one writer on every byte, first come first served.

use base::sync::{CondvarExt, MutexExt};
use std::sync::{Condvar, Mutex};

#[derive(Default)]
struct Inner {
    /// Ranges held: start, end (exclusive), writer, ticket.
    held: Vec<(u64, u64, bool, u64)>,
    /// Ranges waited for, oldest first.
    waiting: Vec<(u64, u64, bool, u64)>,
    next: u64,
}

/// Range lock. Never taken while a transaction is held.
#[derive(Default)]
pub struct RangeLock {
    inner: Mutex<Inner>,
    freed: Condvar,
}

/// A held range; dropping it lets the next ones in.
pub struct RangeGuard<'a> {
    lock: &'a RangeLock,
    ticket: u64,
}

fn clash(a: &(u64, u64, bool, u64), start: u64, end: u64, writer: bool) -> bool {
    a.0 < end && start < a.1 && (a.2 || writer)
}

impl RangeLock {
    /// Waits until `[start, end)` is free of writers (and of readers, for a writer).
    pub fn lock(&self, start: u64, end: u64, writer: bool) -> RangeGuard<'_> {
        let end = end.max(start.saturating_add(1));
        let mut g = self.inner.acquire();
        let ticket = g.next;
        g.next += 1;
        let free = |g: &Inner| {
            !g.held.iter().any(|h| clash(h, start, end, writer))
                && !g
                    .waiting
                    .iter()
                    .any(|w| w.3 < ticket && clash(w, start, end, writer))
        };
        if !free(&g) {
            g.waiting.push((start, end, writer, ticket));
            base::waits::about_to_wait();
            while !free(&g) {
                g = self.freed.wait_acquire(g);
            }
            g.waiting.retain(|w| w.3 != ticket);
        }
        g.held.push((start, end, writer, ticket));
        RangeGuard { lock: self, ticket }
    }

    /// Locks bytes `[start, end)` for reading. Waits for writers that came before.
    pub fn read(&self, start: u64, end: u64) -> RangeGuard<'_> {
        self.lock(start, end, false)
    }

    /// Locks bytes `[start, end)` for writing. Waits for all that came before.
    pub fn write(&self, start: u64, end: u64) -> RangeGuard<'_> {
        self.lock(start, end, true)
    }

    /// The whole file, for truncation, append and block size changes.
    pub fn whole(&self) -> RangeGuard<'_> {
        self.lock(0, u64::MAX, true)
    }
}

impl Drop for RangeGuard<'_> {
    fn drop(&mut self) {
        let mut g = self.lock.inner.acquire();
        g.held.retain(|h| h.3 != self.ticket);
        let wake = !g.waiting.is_empty();
        drop(g);
        if wake {
            self.lock.freed.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::Arc;

    thread_local! {
        /// How often this thread said that it is about to wait.
        static SAID: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
    }

    #[test]
    fn excludes_only_what_overlaps() {
        base::waits::tell(|| SAID.with(|s| s.set(s.get() + 1)));
        let l = Arc::new(RangeLock::default());
        let a = l.write(0, 10);
        let b = l.write(10, 20);
        let r1 = l.read(20, 30);
        let r2 = l.read(25, 35);
        let got = Arc::new(AtomicBool::new(false));
        let t = {
            let (l, got) = (l.clone(), got.clone());
            std::thread::spawn(move || {
                let _g = l.write(5, 6);
                assert_eq!(SAID.with(std::cell::Cell::get), 1);
                got.store(true, Ordering::SeqCst);
            })
        };
        assert!(!got.load(Ordering::SeqCst));
        while l.inner.acquire().waiting.is_empty() {
            std::thread::yield_now();
        }
        drop((b, r1, r2));
        drop(a);
        t.join().unwrap();
        assert!(got.load(Ordering::SeqCst));
        assert_eq!(
            SAID.with(std::cell::Cell::get),
            0,
            "what is free is not waited for"
        );
        let _all = l.whole();
    }

    #[test]
    fn writers_do_not_lose_increments() {
        let l = Arc::new(RangeLock::default());
        let n = Arc::new(std::sync::atomic::AtomicU64::new(0));
        let threads: Vec<_> = (0..4u64)
            .map(|i| {
                let (l, n) = (l.clone(), n.clone());
                std::thread::spawn(move || {
                    for k in 0..200 {
                        let _g = if k % 3 == 0 {
                            l.whole()
                        } else {
                            l.write(i, 100)
                        };
                        let v = n.load(Ordering::Relaxed);
                        std::thread::yield_now();
                        n.store(v + 1, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        for t in threads {
            t.join().unwrap();
        }
        assert_eq!(n.load(Ordering::Relaxed), 800);
    }
}
