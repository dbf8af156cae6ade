//! Ranges that a rebuild or the expansion of a RAID-Z copies at this moment: writes to them wait.
//!
//! A block of an intent log is allocated long before it is written. If it were written between a read and the write of
//! a rebuild, the rebuild would overwrite it with the older bytes.
//!
//! What an expansion changes of the layout of a vdev it changes while no read and no write is under way ([`Copying::alone`]). A read
//! finds the places of its blocks after it has taken [`Copying::read`], a write to an expanding vdev after [`Copying::write`].
//!
//! Lock order: `reading` before `writing` before `ranges`. No I/O is done with `ranges` held.

use base::sync::{CondvarExt, MutexExt, ReadGuard, RwLockExt, WriteGuard};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, RwLock};

/// A range of a top-level vdev: id, first byte, end.
pub(crate) type TopRange = (u64, u64, u64);

/// See the module.
#[derive(Default)]
pub(crate) struct Copying {
    /// Whether anything is copied: asked by every write.
    on: AtomicBool,
    /// Sorted.
    ranges: Mutex<Vec<TopRange>>,
    ended: Condvar,
    /// Held, shared, by writes under way.
    writing: RwLock<()>,
    /// The same for reads.
    reading: RwLock<()>,
    /// How often an expansion has begun.
    begun: AtomicU64,
}

/// No read and no write is under way until it is dropped.
pub(crate) struct Alone<'a> {
    _reading: WriteGuard<'a, ()>,
    _writing: WriteGuard<'a, ()>,
}

/// Ranges are copied until it is dropped.
pub(crate) struct Window<'a>(&'a Copying);

impl Copying {
    /// Lets writes to these ranges wait from now on, and waits for those under way. One thread at a time has a window; the
    /// others wait.
    pub fn begin(&self, mut places: Vec<TopRange>) -> Window<'_> {
        places.sort_unstable();
        let mut ranges = self.ranges.acquire();
        while self.on.load(Ordering::Acquire) {
            ranges = self.ended.wait_acquire(ranges);
        }
        *ranges = places;
        self.on.store(true, Ordering::Release);
        drop(ranges);
        let window = Window(self);
        drop(self.writing.acquire_write());
        window
    }

    /// Waits for the reads and writes under way, and lets no other begin.
    pub fn alone(&self) -> Alone<'_> {
        let reading = self.reading.acquire_write();
        Alone {
            _reading: reading,
            _writing: self.writing.acquire_write(),
        }
    }

    /// To be held from the choice of places until what is there has been read, and mended.
    pub fn read(&self) -> ReadGuard<'_, ()> {
        self.reading.acquire_read()
    }

    /// An expansion begins, told by who is alone: places that were found before are not to be written to any more.
    pub fn begins(&self, _: &Alone<'_>) {
        self.begun.fetch_add(1, Ordering::AcqRel);
    }

    /// How often expansions have begun. Does not change while [`Copying::write`] is held.
    pub fn begun(&self) -> u64 {
        self.begun.load(Ordering::Acquire)
    }

    /// To be held while these ranges are written. Waits while one of them is copied.
    pub fn write(&self, places: &[TopRange]) -> ReadGuard<'_, ()> {
        loop {
            let writing = self.writing.acquire_read();
            if !self.on.load(Ordering::Acquire) {
                return writing;
            }
            let ranges = self.ranges.acquire();
            if !places.iter().any(|p| overlaps(&ranges, *p)) {
                return writing;
            }
            drop(writing);
            drop(self.ended.wait_acquire(ranges));
        }
    }
}

impl Drop for Window<'_> {
    fn drop(&mut self) {
        let mut ranges = self.0.ranges.acquire();
        ranges.clear();
        self.0.on.store(false, Ordering::Release);
        drop(ranges);
        self.0.ended.notify_all();
    }
}

/// Whether a range overlaps one of a sorted list of disjoint ones.
fn overlaps(list: &[TopRange], (vdev, start, end): TopRange) -> bool {
    let n = list.partition_point(|&(v, s, _)| (v, s) < (vdev, end));
    n.checked_sub(1)
        .and_then(|n| list.get(n))
        .is_some_and(|&(v, _, e)| v == vdev && e > start)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::time::Duration;

    #[test]
    fn a_write_waits_for_the_ranges_it_touches() {
        let list = [(0, 10, 20), (0, 30, 40), (1, 0, 5)];
        for (place, want) in [
            ((0, 0, 10), false),
            ((0, 19, 21), true),
            ((0, 20, 30), false),
            ((0, 5, 100), true),
            ((1, 5, 9), false),
            ((1, 4, 5), true),
            ((2, 0, 9), false),
        ] {
            assert_eq!(overlaps(&list, place), want, "{place:?}");
        }
        let c = Copying::default();
        let window = c.begin(list.to_vec());
        drop(c.write(&[(0, 20, 30)]));
        let (tell, told) = mpsc::channel();
        std::thread::scope(|s| {
            s.spawn(|| {
                let held = c.write(&[(1, 0, 1)]);
                tell.send(()).unwrap();
                drop(held);
            });
            assert!(told.recv_timeout(Duration::from_millis(50)).is_err());
            drop(window);
            told.recv().unwrap();
        });
        drop(c.write(&[(1, 0, 1)]));
    }
}
