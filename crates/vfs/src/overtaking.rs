//! Writes past the caches of clients, and pages of those caches that are written back meanwhile.
//!
//! A write through one door has the clients of the others write back what they keep, is carried out, and then has them forget it. A program that writes
//! into a page between the two leaves older bytes beside its own, and the page as a whole is written back over what has been acknowledged. So:
//!
//! 1. A write notes its range before it asks, until it has told ([`UnderWay::note`]).
//! 2. A page that is written back leaves out what such writes have written ([`UnderWay::overtaken`]). The program wrote while they were
//!    under way, so its bytes may count as earlier than theirs.
//! 3. Of two that overlap one is carried out after the other: each holds the lock of the note while it writes. A write holds one lock
//!    at most, its own; a page that is written back takes those it needs in the order in which they were noted.

use base::sync::MutexExt;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

/// A write that is under way.
pub(crate) struct Note {
    object: u64,
    range: Range<u64>,
    /// Bytes that are written, from the beginning of the range.
    written: Mutex<u64>,
}

/// All of a file system in service, in the order in which they came.
#[derive(Default)]
pub(crate) struct UnderWay {
    number: AtomicUsize,
    notes: Mutex<Vec<Arc<Note>>>,
}

/// A note, until it is dropped.
pub(crate) struct Noted<'a> {
    of: &'a UnderWay,
    note: Arc<Note>,
}

impl UnderWay {
    /// Notes a write to an object.
    pub fn note(&self, object: u64, range: Range<u64>) -> Noted<'_> {
        let note = Arc::new(Note {
            object,
            range,
            written: Mutex::default(),
        });
        self.notes.acquire().push(note.clone());
        self.number.fetch_add(1, Ordering::SeqCst);
        Noted { of: self, note }
    }

    /// The writes whose ranges a page of an object touches.
    #[inline]
    pub fn overtaken(&self, object: u64, range: &Range<u64>) -> Vec<Arc<Note>> {
        if self.number.load(Ordering::SeqCst) == 0 {
            return Vec::new();
        }
        let notes = self.notes.acquire();
        let touched = notes.iter().filter(|n| {
            n.object == object && n.range.start < range.end && range.start < n.range.end
        });
        touched.cloned().collect()
    }
}

impl Noted<'_> {
    /// Held while it is carried out; to be set to the number of bytes that were written.
    pub fn begin(&self) -> MutexGuard<'_, u64> {
        self.note.written.acquire()
    }
}

impl Drop for Noted<'_> {
    fn drop(&mut self) {
        let mut notes = self.of.notes.acquire();
        notes.retain(|n| !Arc::ptr_eq(n, &self.note));
        self.of.number.fetch_sub(1, Ordering::SeqCst);
    }
}

/// What is left of a range without the bytes that these have written, whose locks are held meanwhile.
pub(crate) fn left(
    range: Range<u64>,
    notes: &[Arc<Note>],
) -> (Vec<Range<u64>>, Vec<MutexGuard<'_, u64>>) {
    let (mut left, mut locks) = (vec![range], Vec::new());
    for n in notes {
        let written = n.written.acquire();
        let (start, end) = (n.range.start, n.range.start.saturating_add(*written));
        locks.push(written);
        let without = |r: Range<u64>| {
            let before = r.start..r.end.min(start.max(r.start));
            let behind = r.start.max(end.min(r.end))..r.end;
            match start < end {
                true => [before, behind],
                false => [r, 0..0],
            }
        };
        left = left.into_iter().flat_map(without).collect();
        left.retain(|r| r.start < r.end);
    }
    (left, locks)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_left_out() {
        let under_way = UnderWay::default();
        let all: Vec<_> = [10..20, 30..40, 15..32]
            .map(|r| under_way.note(7, r))
            .into();
        let rest = |range: Range<u64>| {
            let notes = under_way.overtaken(7, &range);
            let (rest, _locks) = left(range, &notes);
            rest.into_iter()
                .map(|r| (r.start, r.end))
                .collect::<Vec<_>>()
        };
        assert_eq!(rest(0..50), [(0, 50)], "nothing is written");
        *all[0].begin() = 5;
        *all[1].begin() = 10;
        assert_eq!(rest(0..50), [(0, 10), (15, 30), (40, 50)]);
        assert!(rest(12..14).is_empty());
        assert_eq!(rest(12..18), [(15, 18)]);
        *all[2].begin() = 17;
        assert_eq!(rest(0..50), [(0, 10), (40, 50)]);
        assert!(under_way.overtaken(8, &(0..50)).is_empty());
        assert!(under_way.overtaken(7, &(40..50)).is_empty());
        drop(all);
        assert_eq!(rest(0..50), [(0, 50)]);
    }
}
