//! A removal under way in memory: what is still to be copied, what is being copied, what was copied.
//!
//! The vdev is copied in order of offset, so its ranges are in three regions:
//!
//! ```text
//!   0                 map.end()            end of the flights                     end of the vdev
//!   |  mapped on disk     |  copies in flight, by txg  |  not copied: `to_copy`, further metaslabs |
//! ```
//!
//! Invariants:
//!
//! 1. A free of a range of the vdev frees it in the vdev's own space map, whatever region it is in. That map says what a
//!    cancelled removal leaves, and what is copied.
//! 2. What is mapped is in addition freed at its copy, and becomes obsolete. What is in flight is freed in that way in the txg of
//!    its copy, when the mapping has it. What is not copied is not copied any more. A range that crosses borders is divided.
//! 3. The three regions change under one lock, together with the free in the space map: nobody sees a range in none of them.
//! 4. A flight belongs to the txg in which its copies were allocated. It becomes part of the mapping in that txg, or never.

use crate::mapping::{Counted, Mapping};
use crate::removal_record::RemovingPhys;
use base::mutation::{mutated, Mutation};
use base::{RangeSet, Result, Txg};
use std::collections::BTreeMap;
use vdev::indirect::{IndirectMap, Moved};
use vdev::Piece;

/// Ranges that lie so near to each other are copied as one, bytes: a mapping has fewer entries then.
pub(crate) const SPAN: u64 = 32 << 10;
/// Most bytes of an entry.
pub(crate) const MOST: u64 = 16 << 20;
/// A range is copied in one piece up to this size whatever the budget is, bytes.
const LEAST: u64 = 64 << 10;
/// Most entries that are copied at a time.
const MOST_AT_ONCE: usize = 1024;

/// Copies that are not in the mapping yet.
#[derive(Default)]
pub(crate) struct Flight {
    /// Ascending, with the ranges within each (offsets on the removed vdev) that were not in use.
    pub moved: Vec<(Moved, Vec<(u64, u64)>)>,
    /// Everything before it has been looked at.
    pub end: u64,
    /// What was freed of it since.
    pub frees: RangeSet,
    /// Bytes that were in use.
    pub done: u64,
}

/// See the module.
pub(crate) struct Live {
    /// The vdev that is being removed.
    pub(crate) vdev: u64,
    /// Tells this removal from others of the same vdev.
    pub(crate) number: u64,
    pub(crate) phys: RemovingPhys,
    /// Mapped on disk, or by the txg that is being written.
    pub(crate) map: IndirectMap,
    pub(crate) mapping: Mapping,
    pub(crate) births: u64,
    pub(crate) flights: BTreeMap<Txg, Flight>,
    /// Of the metaslab before `next_ms`.
    pub(crate) to_copy: RangeSet,
    /// First metaslab that was not looked at.
    pub(crate) next_ms: u64,
    /// Bytes that need not be copied any more since they were freed, by the txg of the free.
    pub(crate) done: BTreeMap<Txg, u64>,
    /// Nothing is copied before this txg is on disk: what was allocated before it began is.
    pub(crate) ready: Txg,
    /// Most bytes of an entry at the moment: less where free space is in small pieces.
    pub(crate) limit: u64,
    /// Monotonic nanoseconds: nothing is tried before, since the devices or space did not suffice.
    pub(crate) not_before: u64,
    /// All metaslabs were looked at.
    pub(crate) visited: bool,
    /// It cannot go on, and why.
    pub(crate) failed: Option<String>,
    /// So many blocks of the vdev were mended: what was read of it before is not copied any more.
    pub(crate) mended: u64,
}

impl Live {
    pub(crate) fn new(
        number: u64,
        phys: RemovingPhys,
        (map, mapping, births): (IndirectMap, Mapping, u64),
        ready: Txg,
    ) -> Live {
        Live {
            vdev: phys.vdev.unwrap_or(u64::MAX),
            number,
            phys,
            map,
            mapping,
            births,
            flights: BTreeMap::new(),
            to_copy: RangeSet::new(),
            next_ms: 0,
            done: BTreeMap::new(),
            ready,
            limit: MOST,
            not_before: 0,
            visited: false,
            failed: None,
            mended: 0,
        }
    }

    /// Everything before it is mapped or in flight.
    pub(crate) fn copied_to(&self) -> u64 {
        let flights = self.flights.values().map(|f| f.end);
        flights.fold(self.map.end(), u64::max)
    }

    /// A range is freed in `txg`. Returns the part of it, offset and bytes, that is mapped: its copy is to be freed.
    pub(crate) fn freed(&mut self, offset: u64, len: u64, txg: Txg) -> Option<(u64, u64)> {
        let end = offset.saturating_add(len);
        let mut at = offset;
        let mut mapped = None;
        let border = self.map.end();
        if at < border {
            let to = end.min(border);
            mapped = Some((at, to - at));
            at = to;
            if mutated(Mutation::RemovalFreesOneRegion) {
                return mapped;
            }
        }
        for flight in self.flights.values_mut() {
            if at < end && at < flight.end {
                let to = end.min(flight.end);
                if !mutated(Mutation::RemovalForgetsFlight) {
                    flight.frees.insert(at, to);
                }
                at = to;
            }
        }
        if at < end {
            self.to_copy.remove(at, end);
            *self.done.entry(txg).or_default() += end - at;
        }
        mapped
    }

    /// What is to be copied next: offset and bytes, ascending, `most` bytes in all, and at least one range.
    pub(crate) fn next(&self, most: u64) -> Vec<(u64, u64)> {
        // Whole sectors of any size.
        let limit = self.limit.min(most.max(1).next_multiple_of(LEAST));
        let mut out: Vec<(u64, u64)> = Vec::new();
        let mut sum = 0;
        for (start, end) in self.to_copy.iter() {
            let mut at = start;
            while at < end {
                let joined = out.last_mut().and_then(|(from, n)| {
                    let gap = at - (*from + *n);
                    let left = (*from + limit).saturating_sub(at).min(end - at);
                    (gap <= SPAN && left > 0 && sum + gap + left <= most).then(|| {
                        *n += gap + left;
                        (gap + left, left)
                    })
                });
                if let Some((more, taken)) = joined {
                    sum += more;
                    at += taken;
                    continue;
                }
                let n = limit.min(end - at);
                if !out.is_empty() && (sum + n > most || out.len() >= MOST_AT_ONCE) {
                    return out;
                }
                out.push((at, n));
                sum += n;
                at += n;
            }
        }
        out
    }

    /// A range was copied in `txg`. Returns what of it was not in use any more, as ranges of the removed vdev; `None`: all of it,
    /// and the copy is not wanted.
    pub(crate) fn copied(&mut self, m: Moved, txg: Txg) -> Option<Vec<(u64, u64)>> {
        let end = m.src + m.size;
        let gaps = self.to_copy.gaps(m.src, end);
        let unused: u64 = gaps.iter().map(|(s, e)| e - s).sum();
        self.to_copy.remove(m.src, end);
        if unused == m.size {
            return None;
        }
        let flight = self.flights.entry(txg).or_default();
        flight.moved.push((m, gaps.clone()));
        flight.end = end;
        flight.done += m.size - unused;
        Some(gaps)
    }

    /// The copies there are of a range in use, and where in it each begins.
    pub(crate) fn copies(&self, offset: u64, len: u64) -> Vec<(Piece, usize)> {
        let end = offset.saturating_add(len);
        let mut out = Vec::new();
        let mapped = end.min(self.map.end()).saturating_sub(offset) as usize;
        if mapped > 0 {
            let mut at = 0;
            for p in self.map.resolve(offset, mapped).into_iter().flatten() {
                out.push((p, at));
                at += p.len;
            }
        }
        for (txg, flight) in &self.flights {
            for (m, _) in &flight.moved {
                let (from, to) = (offset.max(m.src), end.min(m.src + m.size));
                if from < to {
                    let piece = Piece {
                        vdev: m.vdev,
                        offset: m.dst + (from - m.src),
                        len: (to - from) as usize,
                        birth: *txg,
                    };
                    out.push((piece, (from - offset) as usize));
                }
            }
        }
        out
    }

    /// The txgs in which something was copied to top-level vdev `vdev`.
    pub(crate) fn copied_in(&self, vdev: u64) -> RangeSet {
        let mut out = self.map.copied_to(vdev);
        for (txg, flight) in &self.flights {
            if flight.moved.iter().any(|(m, _)| m.vdev == vdev) {
                out.insert(txg.number(), txg.after(1).number());
            }
        }
        out
    }

    /// The copies of txgs up to `txg` become part of the mapping. Returns the new entries, and what was freed of them.
    pub(crate) fn land(&mut self, txg: Txg) -> Result<(Vec<Counted>, RangeSet)> {
        let later = self.flights.split_off(&txg.next());
        let landed = std::mem::replace(&mut self.flights, later);
        let (mut new, mut frees) = (Vec::new(), RangeSet::new());
        for flight in landed.into_values() {
            for (m, gaps) in flight.moved {
                self.map.push(m)?;
                let unused: u64 = gaps.iter().map(|(s, e)| e - s).sum();
                new.push((m, unused as u32));
            }
            self.phys.copied = self.phys.copied.saturating_add(flight.done);
            for (s, e) in flight.frees.iter() {
                frees.insert(s, e);
            }
        }
        if !new.is_empty() {
            self.map.push_birth((self.map.end(), txg))?;
        }
        Ok((new, frees))
    }

    /// Whether everything was copied, and is mapped.
    pub(crate) fn is_complete(&self) -> bool {
        self.visited && self.to_copy.is_empty() && self.flights.is_empty()
    }

    /// Takes the bytes that frees of txgs up to `txg` have spared into the record; whether there were any.
    pub(crate) fn take_done(&mut self, txg: Txg) -> bool {
        let later = self.done.split_off(&txg.next());
        let spared: u64 = std::mem::replace(&mut self.done, later).values().sum();
        self.phys.copied = self.phys.copied.saturating_add(spared);
        spared > 0
    }

    /// Bytes copied or spared, those included that are not on disk yet.
    pub(crate) fn copied_bytes(&self) -> u64 {
        let flights: u64 = self.flights.values().map(|f| f.done).sum();
        let spared: u64 = self.done.values().sum();
        // What the record says was read from disk.
        self.phys
            .copied
            .saturating_add(flights)
            .saturating_add(spared)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use disk::scan::ScanState;

    fn live(to_copy: &[(u64, u64)]) -> Live {
        let phys = RemovingPhys {
            state: ScanState::Scanning,
            vdev: Some(1),
            prev_indirect: None,
            start: 0,
            end: 0,
            to_copy: 0,
            copied: 0,
        };
        let mapping = Mapping {
            object: 0,
            counts: 0,
            end: 0,
            bytes: 0,
            entries: 0,
        };
        let mut l = Live::new(1, phys, (IndirectMap::default(), mapping, 0), Txg::NONE);
        for (s, e) in to_copy {
            l.to_copy.insert(*s, *e);
        }
        l
    }

    fn moved(src: u64, size: u64, dst: u64) -> Moved {
        Moved {
            src,
            size,
            vdev: 0,
            dst,
        }
    }

    fn ranges(set: &RangeSet) -> Vec<(u64, u64)> {
        set.iter().collect()
    }

    #[test]
    fn a_free_across_all_regions_is_divided_between_them() {
        let mut l = live(&[(0, 40960)]);
        let (t4, t5, t6) = (Txg::new(4), Txg::new(5), Txg::new(6));
        assert_eq!(l.copied(moved(0, 8192, 0), t4), Some(vec![]));
        let (new, frees) = l.land(t4).unwrap();
        assert_eq!((new.len(), frees.is_empty()), (1, true));
        assert_eq!(l.copied(moved(8192, 8192, 65536), t5), Some(vec![]));
        assert_eq!(l.copied(moved(16384, 8192, 90112), t6), Some(vec![]));
        // 4096 bytes on each side of every border.
        assert_eq!(l.freed(4096, 24576, t5), Some((4096, 4096)));
        assert_eq!(ranges(&l.flights[&t5].frees), [(8192, 16384)]);
        assert_eq!(ranges(&l.flights[&t6].frees), [(16384, 24576)]);
        assert_eq!(ranges(&l.to_copy), [(28672, 40960)]);
        assert_eq!(l.done[&t5], 4096);
        // The frees of a flight come back with its txg, once.
        let (new, frees) = l.land(t5).unwrap();
        assert_eq!(new, [(moved(8192, 8192, 65536), 0)]);
        assert_eq!(ranges(&frees), [(8192, 16384)]);
        assert!(l.land(t5).unwrap().0.is_empty());
        assert_eq!(l.copied_to(), 24576);
        assert!(l.take_done(t5) && !l.take_done(t5));
        assert_eq!(l.phys.copied, 8192 + 8192 + 4096);
        assert_eq!(l.copied_bytes(), l.phys.copied + 8192);
    }

    /// Bytes that the regions get of one free across all of them.
    fn divided() -> u64 {
        let mut l = live(&[(0, 40960)]);
        let (t4, t5) = (Txg::new(4), Txg::new(5));
        l.copied(moved(0, 8192, 0), t4);
        l.land(t4).unwrap();
        l.copied(moved(8192, 8192, 65536), t5);
        let mapped = l.freed(4096, 24576, t5).map_or(0, |(_, n)| n);
        let flight: u64 = ranges(&l.flights[&t5].frees)
            .iter()
            .map(|(s, e)| e - s)
            .sum();
        mapped + flight + l.done.get(&t5).copied().unwrap_or(0)
    }

    #[test]
    fn who_handles_one_region_only_is_found() {
        assert_eq!(divided(), 24576);
        base::mutation::mutate(Some(Mutation::RemovalFreesOneRegion));
        let wrong = divided();
        base::mutation::mutate(None);
        assert_ne!(wrong, 24576);
    }

    #[test]
    fn what_is_freed_while_it_is_copied_is_a_gap_of_the_entry() {
        let mut l = live(&[(0, 4096), (8192, 16384)]);
        assert_eq!(l.next(1 << 20), [(0, 16384)]);
        assert_eq!(l.freed(8192, 512, Txg::new(3)), None);
        let gaps = l.copied(moved(0, 16384, 0), Txg::new(4)).unwrap();
        assert_eq!(gaps, [(4096, 8704)]);
        let (new, _) = l.land(Txg::new(4)).unwrap();
        assert_eq!(new, [(moved(0, 16384, 0), 4608)]);
        // Nothing is left of a range: its copy is not wanted.
        let mut l = live(&[(0, 512)]);
        l.freed(0, 512, Txg::new(3));
        assert_eq!(l.copied(moved(0, 512, 0), Txg::new(4)), None);
        assert!(l.flights.is_empty());
    }

    #[test]
    fn a_record_that_claims_everything_was_copied_does_no_harm() {
        let mut l = live(&[(0, 8192)]);
        l.phys.copied = u64::MAX;
        assert_eq!(l.copied(moved(0, 4096, 0), Txg::new(4)), Some(vec![]));
        l.freed(4096, 4096, Txg::new(4));
        assert_eq!(l.copied_bytes(), u64::MAX);
        l.land(Txg::new(4)).unwrap();
        assert!(l.take_done(Txg::new(4)));
        assert_eq!(l.copied_bytes(), u64::MAX);
    }

    #[test]
    fn near_ranges_are_copied_together_and_long_ones_in_parts() {
        let far = SPAN + 4096 + 512;
        let mut l = live(&[(0, 4096), (far, far + 512)]);
        assert_eq!(l.next(1 << 20), [(0, 4096), (far, 512)]);
        l.limit = 1024;
        assert_eq!(l.next(2048), [(0, 1024), (1024, 1024)]);
        // One is taken in any case.
        assert_eq!(l.next(512), [(0, 1024)]);
        let mut l = live(&[(0, 3 * MOST)]);
        assert_eq!(l.next(MOST), [(0, MOST)]);
        l.to_copy.remove(0, 2 * MOST);
        assert_eq!(l.next(2 * MOST), [(2 * MOST, MOST)]);
    }
}
