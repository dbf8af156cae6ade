//! What happened to single transfers of a leaf, for those who tell of it: failed, wrong and slow ones, and ones that do not end.
//!
//! The list of a leaf is bounded. What does not fit is in the counters of [`Stats`](crate::Stats) only.

use crate::io_counts::IoClass;
use base::sync::MutexExt;
use base::Kind;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Mutex;

/// Reports of a leaf that nobody has taken yet.
const MOST: usize = 16;

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// The device reported an error.
    Failed(Kind),
    /// It returned something else than was written.
    Wrong,
    /// It took so many nanoseconds.
    Slow(u64),
    /// After failed transfers the device was asked whether it is there, and did not answer.
    Probe,
}

/// One transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// What went wrong.
    pub trouble: Trouble,
    /// A write; otherwise a read.
    pub write: bool,
    /// Bytes from the beginning of the device.
    pub offset: u64,
    /// Bytes.
    pub size: u64,
    /// OpenZFS's number of what the transfer was for.
    pub priority: u64,
}

impl Report {
    pub(crate) fn new(trouble: Trouble, write: bool, place: (u64, u64), class: IoClass) -> Report {
        Report {
            trouble,
            write,
            offset: place.0,
            size: place.1,
            priority: class.priority(write),
        }
    }

    /// The device did not answer at all.
    pub(crate) fn probe() -> Report {
        Report::new(Trouble::Probe, false, (0, 0), IoClass::Sync)
    }
}

/// The reports of a leaf, and its batches under way.
#[derive(Debug, Default)]
pub(crate) struct Reports {
    list: Mutex<VecDeque<Report>>,
    under_way: Mutex<UnderWay>,
}

#[derive(Debug, Default)]
struct UnderWay {
    next: u64,
    /// By number, the oldest first: monotonic nanoseconds of the first look that found the batch.
    batches: BTreeMap<u64, Option<u64>>,
}

impl Reports {
    pub fn add(&self, r: Report) {
        let mut list = self.list.acquire();
        if list.len() < MOST {
            list.push_back(r);
        }
    }

    pub fn take(&self) -> Vec<Report> {
        self.list.acquire().drain(..).collect()
    }

    /// A batch is given to the device, until what is returned is dropped.
    pub fn begin(&self) -> Batch<'_> {
        let mut u = self.under_way.acquire();
        u.next += 1;
        let number = u.next;
        u.batches.insert(number, None);
        Batch {
            reports: self,
            number,
        }
    }

    /// For how many nanoseconds looks have found the oldest batch under way. `now`: monotonic nanoseconds.
    pub fn oldest(&self, now: u64) -> Option<u64> {
        let mut u = self.under_way.acquire();
        for since in u.batches.values_mut() {
            since.get_or_insert(now);
        }
        let oldest = u.batches.values().next().copied().flatten();
        oldest.map(|since| now.saturating_sub(since))
    }
}

/// A batch under way.
pub(crate) struct Batch<'a> {
    reports: &'a Reports,
    number: u64,
}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        self.reports
            .under_way
            .acquire()
            .batches
            .remove(&self.number);
    }
}

/// When each flush of a leaf that is under way began, monotonic nanoseconds.
#[derive(Debug, Default)]
pub(crate) struct Flushes(Mutex<Vec<u64>>);

impl Flushes {
    /// A flush begins; it is under way until what is returned is dropped.
    pub fn begin(&self, now: u64) -> Flush<'_> {
        self.0.acquire().push(now);
        Flush(self, now)
    }

    /// For how many nanoseconds the oldest one is under way.
    pub fn oldest(&self, now: u64) -> Option<u64> {
        let began = self.0.acquire().iter().min().copied();
        began.map(|began| now.saturating_sub(began))
    }
}

/// A flush under way.
pub(crate) struct Flush<'a>(&'a Flushes, u64);

impl Drop for Flush<'_> {
    fn drop(&mut self) {
        let mut all = self.0 .0.acquire();
        if let Some(n) = all.iter().position(|began| *began == self.1) {
            all.swap_remove(n);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_flush_counts_until_it_ends() {
        let f = Flushes::default();
        assert_eq!(f.oldest(5), None);
        let first = f.begin(10);
        let second = f.begin(20);
        assert_eq!(f.oldest(25), Some(15));
        drop(first);
        assert_eq!(f.oldest(25), Some(5));
        drop(second);
        assert_eq!(f.oldest(30), None);
    }

    #[test]
    fn the_list_is_bounded_and_taken_once() {
        let r = Reports::default();
        let failed = Trouble::Failed(Kind::Io);
        (0..40).for_each(|n| r.add(Report::new(failed, true, (n, 512), IoClass::Async)));
        let all = r.take();
        assert_eq!((all.len(), all[15].offset), (MOST, 15));
        assert_eq!((all[0].priority, all[0].write), (3, true));
        assert!(r.take().is_empty());
    }

    #[test]
    fn the_oldest_batch_counts_from_the_first_look() {
        let r = Reports::default();
        assert_eq!(r.oldest(5), None);
        let first = r.begin();
        assert_eq!(r.oldest(100), Some(0));
        let second = r.begin();
        assert_eq!(r.oldest(130), Some(30));
        drop(first);
        assert_eq!(r.oldest(150), Some(20));
        drop(second);
        assert_eq!(r.oldest(160), None);
    }
}
