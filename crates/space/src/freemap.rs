//! The allocatable ranges of one loaded metaslab, by offset and by size.

use base::RangeSet;
use std::collections::{BTreeMap, BTreeSet};

/// Segments a first-fit search looks at before it gives up.
const SEARCH_SEGMENTS: usize = 64;
/// Bytes from the cursor a first-fit search covers (the reference's 16 MiB).
const SEARCH_BYTES: u64 = 16 << 20;
/// Below this largest segment, or this share of free space in percent, best fit is used.
const BEST_FIT_SEGMENT: u64 = 128 << 10;
const BEST_FIT_PERCENT: u64 = 4;

/// Disjoint, never adjacent free ranges.
pub(crate) struct FreeMap {
    by_start: BTreeMap<u64, u64>,
    /// `(length, start)`.
    by_size: BTreeSet<(u64, u64)>,
    total: u64,
    /// Segments per power of two of their length.
    hist: [u64; 64],
    /// Where the last allocation of each alignment class (trailing zeros of the size) ended.
    cursors: [u64; 64],
}

fn bucket(len: u64) -> usize {
    63 - (len | 1).leading_zeros() as usize
}

impl FreeMap {
    /// A map of these ranges; first-fit searches begin at the start.
    pub fn from_ranges(ranges: &RangeSet) -> FreeMap {
        let mut m = FreeMap {
            by_start: ranges.iter().collect(),
            by_size: ranges.iter().map(|(s, e)| (e - s, s)).collect(),
            total: ranges.total(),
            hist: [0; 64],
            cursors: [0; 64],
        };
        for (s, e) in ranges.iter() {
            m.hist[bucket(e - s)] += 1;
        }
        m
    }

    /// All ranges `(start, end)` by offset.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.by_start.iter().map(|(&s, &e)| (s, e))
    }

    /// The ranges that end behind `at`.
    pub fn iter_from(&self, at: u64) -> impl Iterator<Item = (u64, u64)> + '_ {
        let first = self.at_or_before(at).filter(|&(_, e)| e > at);
        let start = first.map_or(at, |(s, _)| s);
        self.by_start.range(start..).map(|(&s, &e)| (s, e))
    }

    /// Number of segments by power of two of their length in bytes.
    pub fn hist(&self) -> &[u64; 64] {
        &self.hist
    }

    /// Length of the largest segment, 0 if there is none.
    pub fn largest(&self) -> u64 {
        self.by_size.last().map_or(0, |&(len, _)| len)
    }

    fn put(&mut self, s: u64, e: u64) {
        self.by_start.insert(s, e);
        self.by_size.insert((e - s, s));
        self.hist[bucket(e - s)] += 1;
        self.total += e - s;
    }

    fn drop_segment(&mut self, s: u64, e: u64) {
        self.by_start.remove(&s);
        self.by_size.remove(&(e - s, s));
        self.hist[bucket(e - s)] -= 1;
        self.total -= e - s;
    }

    /// The segment that contains or precedes `at`.
    fn at_or_before(&self, at: u64) -> Option<(u64, u64)> {
        self.by_start
            .range(..=at)
            .next_back()
            .map(|(&s, &e)| (s, e))
    }

    /// Whether all of `[start, end)` is free.
    pub fn contains(&self, start: u64, end: u64) -> bool {
        self.at_or_before(start).is_some_and(|(_, e)| e >= end)
    }

    /// Whether any byte of `[start, end)` is free.
    pub fn overlaps(&self, start: u64, end: u64) -> bool {
        start < end
            && self
                .by_start
                .range(..end)
                .next_back()
                .is_some_and(|(_, &e)| e > start)
    }

    /// Adds a range; false (and no change) if any of it is there already.
    pub fn add(&mut self, start: u64, end: u64) -> bool {
        if start >= end || self.overlaps(start, end) {
            return start == end;
        }
        let (mut s, mut e) = (start, end);
        if let Some((ps, pe)) = self.at_or_before(start) {
            if pe == start {
                self.drop_segment(ps, pe);
                s = ps;
            }
        }
        if let Some(&ne) = self.by_start.get(&end) {
            self.drop_segment(end, ne);
            e = ne;
        }
        self.put(s, e);
        true
    }

    /// Removes a range; false (and no change) unless all of it was there.
    pub fn take(&mut self, start: u64, end: u64) -> bool {
        let Some((s, e)) = self.at_or_before(start).filter(|&(_, e)| e >= end) else {
            return false;
        };
        self.drop_segment(s, e);
        if s < start {
            self.put(s, start);
        }
        if end < e {
            self.put(end, e);
        }
        true
    }

    /// Takes `size` bytes: first fit from the cursor of the size's alignment class, so that a
    /// stream stays sequential; best fit when that finds nothing near or space is short. `capacity`
    /// is the size of the metaslab. `eager`: best fit always.
    pub fn alloc(&mut self, size: u64, capacity: u64, eager: bool) -> Option<u64> {
        let largest = self.largest();
        if size == 0 || largest < size {
            return None;
        }
        let class = size.trailing_zeros() as usize % 64;
        let short = eager
            || largest < BEST_FIT_SEGMENT.max(size.saturating_mul(2))
            || self.total / BEST_FIT_PERCENT < capacity / 100;
        let mut found = None;
        if !short {
            found = self.first_fit(self.cursors[class], size);
        }
        let at = match found {
            Some(at) => at,
            None => self.by_size.range((size, 0)..).next()?.1,
        };
        self.take(at, at + size);
        self.cursors[class] = at + size;
        Some(at)
    }

    /// Takes `size` bytes from the first range that has them at or after `from`, if there is one near.
    pub fn alloc_from(&mut self, from: u64, size: u64) -> Option<u64> {
        let at = self.first_fit(from, size).filter(|_| size > 0)?;
        self.take(at, at + size).then_some(at)
    }

    fn first_fit(&self, from: u64, size: u64) -> Option<u64> {
        if let Some((_, e)) = self.at_or_before(from) {
            if e >= from && e - from >= size {
                return Some(from);
            }
        }
        self.by_start
            .range(from..)
            .take(SEARCH_SEGMENTS)
            .take_while(|(&s, _)| s - from <= SEARCH_BYTES)
            .find(|(&s, &e)| e - s >= size)
            .map(|(&s, _)| s)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn full(n: u64) -> FreeMap {
        let mut r = RangeSet::new();
        r.insert(0, n);
        FreeMap::from_ranges(&r)
    }

    #[test]
    fn merges_and_splits() {
        let mut m = full(100);
        assert!(m.take(40, 60));
        assert!(!m.take(39, 41));
        assert!(!m.add(30, 45));
        assert_eq!(m.iter().collect::<Vec<_>>(), [(0, 40), (60, 100)]);
        assert!(m.add(40, 60));
        assert_eq!(m.iter().collect::<Vec<_>>(), [(0, 100)]);
        assert_eq!(
            (m.total, m.largest(), m.hist()[6], m.hist().iter().sum()),
            (100, 100, 1, 1u64)
        );
    }

    #[test]
    fn sequential_until_the_end_then_back() {
        let cap = 64 << 20;
        let mut m = full(cap);
        let size = 128 << 10;
        let mut last = 0;
        for i in 0..cap / size {
            let at = m.alloc(size, cap, false).unwrap();
            if i < 400 {
                assert_eq!(at, last);
            }
            last = at + size;
        }
        assert_eq!(m.alloc(512, cap, false), None);
        assert_eq!(m.total, 0);
    }

    #[test]
    fn best_fit_when_fragmented() {
        let cap = 1 << 20;
        let mut m = full(cap);
        assert!(m.take(0, cap));
        m.add(0, 4096);
        m.add(8192, 8192 + 16384);
        m.add(65536, 65536 + 8192);
        assert_eq!(m.alloc(8192, cap, false), Some(65536));
        assert_eq!(m.alloc(4096, cap, false), Some(0));
        assert_eq!(m.alloc(32768, cap, false), None);
        assert_eq!(m.alloc(16384, cap, false), Some(8192));
        assert_eq!(m.largest(), 0);
    }
}
