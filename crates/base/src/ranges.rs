//! A set of half-open `u64` ranges, always merged: free space, dirty byte ranges, txg ranges.

use std::collections::BTreeMap;

/// Disjoint, non-adjacent half-open ranges `[start, end)`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RangeSet {
    map: BTreeMap<u64, u64>,
    total: u64,
}

impl RangeSet {
    /// No ranges.
    pub fn new() -> RangeSet {
        RangeSet::default()
    }

    /// Sum of the lengths.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Whether no number is in it.
    pub fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    /// Number of separate ranges.
    pub fn len(&self) -> usize {
        self.map.len()
    }

    /// Takes all ranges out.
    pub fn clear(&mut self) {
        self.map.clear();
        self.total = 0;
    }

    /// Ranges in ascending order as `(start, end)`.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (u64, u64)> + '_ {
        self.map.iter().map(|(&s, &e)| (s, e))
    }

    /// Adds `[start, end)`, merging with what overlaps or touches. Returns how much was new.
    pub fn insert(&mut self, start: u64, end: u64) -> u64 {
        if start >= end {
            return 0;
        }
        let (mut s, mut e) = (start, end);
        let mut had = 0;
        if let Some((&ps, &pe)) = self.map.range(..=s).next_back() {
            if pe >= s {
                s = ps;
                e = e.max(pe);
                had += pe - ps;
                self.map.remove(&ps);
            }
        }
        while let Some((&ns, &ne)) = self.map.range(s..=e).next() {
            e = e.max(ne);
            had += ne - ns;
            self.map.remove(&ns);
        }
        self.map.insert(s, e);
        let added = (e - s) - had;
        self.total += added;
        added
    }

    /// Removes `[start, end)`. Returns how much was there.
    pub fn remove(&mut self, start: u64, end: u64) -> u64 {
        if start >= end {
            return 0;
        }
        let mut gone = 0;
        if let Some((&ps, &pe)) = self.map.range(..start).next_back() {
            if pe > start {
                self.map.insert(ps, start);
                gone += pe.min(end) - start;
                if pe > end {
                    self.map.insert(end, pe);
                }
            }
        }
        while let Some((&ns, &ne)) = self.map.range(start..end).next() {
            self.map.remove(&ns);
            gone += ne.min(end) - ns;
            if ne > end {
                self.map.insert(end, ne);
            }
        }
        self.total -= gone;
        gone
    }

    /// Whether all of `[start, end)` is in the set.
    pub fn contains(&self, start: u64, end: u64) -> bool {
        start >= end
            || self
                .map
                .range(..=start)
                .next_back()
                .is_some_and(|(_, &e)| e >= end)
    }

    /// Whether any part of `[start, end)` is in the set.
    pub fn overlaps(&self, start: u64, end: u64) -> bool {
        start < end
            && self
                .map
                .range(..end)
                .next_back()
                .is_some_and(|(_, &e)| e > start)
    }

    /// First range that ends after `at`, clipped to begin at `at` or later.
    pub fn next_from(&self, at: u64) -> Option<(u64, u64)> {
        if let Some((_, &e)) = self.map.range(..=at).next_back() {
            if e > at {
                return Some((at, e));
            }
        }
        self.map.range(at..).next().map(|(&s, &e)| (s, e))
    }

    /// The parts of `[start, end)` that are *not* in the set, ascending.
    pub fn gaps(&self, start: u64, end: u64) -> Vec<(u64, u64)> {
        let mut out = Vec::new();
        let mut at = start;
        while at < end {
            match self.next_from(at) {
                Some((s, e)) if s < end => {
                    if s > at {
                        out.push((at, s));
                    }
                    at = e;
                }
                _ => {
                    out.push((at, end));
                    break;
                }
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every pair of operations over a small universe against a bitmap.
    #[test]
    fn agrees_with_a_bitmap() {
        const N: u64 = 9;
        let all: Vec<(u64, u64)> = (0..=N).flat_map(|a| (a..=N).map(move |b| (a, b))).collect();
        for &(a, b) in &all {
            for &(c, d) in &all {
                for &(e, f) in all.iter().step_by(3) {
                    let mut set = RangeSet::new();
                    let mut bits = [false; N as usize];
                    set.insert(a, b);
                    set.remove(c, d);
                    set.insert(e, f);
                    (a..b).for_each(|i| bits[i as usize] = true);
                    (c..d).for_each(|i| bits[i as usize] = false);
                    (e..f).for_each(|i| bits[i as usize] = true);
                    assert_eq!(set.total(), bits.iter().filter(|x| **x).count() as u64);
                    for i in 0..N {
                        assert_eq!(set.contains(i, i + 1), bits[i as usize]);
                        assert_eq!(set.overlaps(i, i + 1), bits[i as usize]);
                    }
                    let gaps: u64 = set.gaps(0, N).iter().map(|(s, e)| e - s).sum();
                    assert_eq!(gaps + set.total(), N);
                }
            }
        }
    }
}
