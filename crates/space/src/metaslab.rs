//! One metaslab: its free ranges, the changes pending in each txg, the deferred frees.

use crate::freemap::FreeMap;
use base::mutation::{mutated, Mutation};
use base::{bail, Error, RangeSet, Result, Txg};
use std::collections::{BTreeMap, VecDeque};

/// How far before a multiple [`Ms::edge`] is, bytes: a few records.
const BEFORE_EDGE: u64 = 256 << 10;

/// Free segments per power of two of their length in bytes.
pub(crate) type Hist = [u64; 64];

/// How much of the metaslab is in memory.
pub(crate) enum State {
    /// Space map not read; the histogram of its bonus if it has one.
    Unloaded(Option<Box<Hist>>),
    /// A thread reads the space map, without the lock.
    Loading,
    Loaded(Box<FreeMap>),
    /// The space map cannot be read: nothing is allocated here.
    Failed(Error),
}

/// Changes of one txg.
#[derive(Default)]
pub(crate) struct Pend {
    /// Not yet taken.
    pub allocs: RangeSet,
    /// Not yet taken.
    pub frees: RangeSet,
    /// Frees already taken; they become deferred when the txg has synced.
    pub freed: RangeSet,
    /// Allocs already taken.
    pub placed: RangeSet,
}

pub(crate) struct Ms {
    /// First byte, a vdev offset.
    pub start: u64,
    /// Byte behind the last one.
    pub end: u64,
    /// Free ranges, as far as they are known.
    pub state: State,
    /// Bytes in use, all pending changes counted.
    pub allocated: u64,
    /// Set aside for the log.
    pub embedded: bool,
    /// Changes of txgs that are not yet on disk.
    pub pend: BTreeMap<Txg, Pend>,
    /// `(generation of the sync_done that deferred it, ranges)`, oldest first.
    pub deferred: VecDeque<(u64, RangeSet)>,
    /// Ranges whose deferral ended while the space map was being read: the reader may have seen
    /// the map from before they were recorded.
    pub late: RangeSet,
    /// Somebody discards or writes free ranges: nothing is allocated here.
    pub disabled: u32,
    /// What became allocatable since the last round of [`crate::Space::begin_round`], if that is collected.
    pub given_back: RangeSet,
    /// The same since the round before that.
    pub aged: RangeSet,
    /// What was allocated since a deliberate mistake was asked for; empty otherwise.
    pub newest: RangeSet,
    /// The bonus histogram while the map is being read.
    pub hist_hint: Option<Box<Hist>>,
    /// Txg of the newest allocation; metaslabs not used for long are unloaded.
    pub last_used: Txg,
    /// The txg that makes the metaslab: until it is on disk only that txg itself places blocks here. Blocks of later txgs
    /// may have to be found before those are on disk: log blocks, and what their records point to.
    pub made_in: Txg,
}

pub(crate) fn bucket(len: u64) -> usize {
    63 - (len | 1).leading_zeros() as usize
}

/// From the bonus form (bucket 0 = one unit of `1 << shift`) to powers of two of bytes.
pub(crate) fn widen(h: &[u64; 32], shift: u32) -> Hist {
    let mut out = [0; 64];
    for (i, &n) in h.iter().enumerate() {
        if let Some(o) = out.get_mut(i + shift as usize) {
            *o = n;
        }
    }
    out
}

/// To the bonus form (pool format §16.2).
pub(crate) fn narrow(h: &Hist, shift: u32) -> [u64; 32] {
    let mut out = [0u64; 32];
    for (i, &n) in h.iter().enumerate() {
        let i = i.saturating_sub(shift as usize);
        if i < 32 {
            out[i] = out[i].saturating_add(n);
        } else {
            let scaled = n.saturating_mul(1 << (i - 31));
            out[31] = out[31].saturating_add(scaled);
        }
    }
    out
}

fn add_hist(h: &mut Hist, ranges: &RangeSet) {
    for (s, e) in ranges.iter() {
        let b = &mut h[bucket(e - s)];
        *b = b.saturating_add(1);
    }
}

impl Ms {
    /// A metaslab that was never written: wholly free.
    pub fn new(start: u64, end: u64) -> Ms {
        let mut all = RangeSet::new();
        all.insert(start, end);
        Ms {
            start,
            end,
            state: State::Loaded(Box::new(FreeMap::from_ranges(&all))),
            allocated: 0,
            embedded: false,
            pend: BTreeMap::new(),
            deferred: VecDeque::new(),
            late: RangeSet::new(),
            disabled: 0,
            given_back: RangeSet::new(),
            aged: RangeSet::new(),
            newest: RangeSet::new(),
            hist_hint: None,
            last_used: Txg::NONE,
            made_in: Txg::NONE,
        }
    }

    /// Whether blocks of `txg` may be placed here while `synced` is the newest txg on disk.
    pub fn takes(&self, txg: Txg, synced: Txg) -> bool {
        if self.disabled > 0 {
            return false;
        }
        self.made_in <= synced || txg <= self.made_in || mutated(Mutation::NewVdevAtOnce)
    }

    /// Shortly before the first multiple of `bytes` within the metaslab, or before its end: a multiple of `align`. None if `bytes`
    /// is 0.
    pub fn edge(&self, bytes: u64, align: u64) -> Option<u64> {
        let over = (self.start / bytes.max(1))
            .saturating_add(1)
            .saturating_mul(bytes);
        let edge = over.min(self.end).saturating_sub(BEFORE_EDGE) / align * align;
        (bytes > 0).then_some(edge.max(self.start))
    }

    /// Bytes that the metaslab covers.
    pub fn size(&self) -> u64 {
        self.end - self.start
    }

    /// Nothing pending, nothing deferred, no load under way.
    pub fn is_clean(&self) -> bool {
        self.pend.is_empty() && self.deferred.is_empty() && !matches!(self.state, State::Loading)
    }

    fn freed_sets(&self) -> impl Iterator<Item = &RangeSet> {
        self.pend
            .values()
            .flat_map(|p| [&p.frees, &p.freed])
            .chain(self.deferred.iter().map(|(_, r)| r))
    }

    /// Whether any of the range is known to be free or freed already.
    pub fn known_free(&self, start: u64, end: u64) -> bool {
        let in_tree = match &self.state {
            State::Loaded(t) => t.overlaps(start, end),
            _ => self.late.overlaps(start, end),
        };
        in_tree || self.freed_sets().any(|r| r.overlaps(start, end))
    }

    /// Takes in the ranges a reader found. Whatever is pending or deferred here is not allocatable,
    /// whether or not the reader saw it as free. Returns the new number of allocated bytes.
    pub fn finish_load(&mut self, mut free: RangeSet) -> Result<u64> {
        if matches!(self.state, State::Loaded(_)) && !self.is_clean() {
            bail!(Busy, "metaslab at {:#x} is in use", self.start);
        }
        let outside = free.iter().next().is_some_and(|(s, _)| s < self.start)
            || free.iter().next_back().is_some_and(|(_, e)| e > self.end);
        if outside {
            bail!(
                Damaged,
                "free space outside of the metaslab at {:#x}",
                self.start
            );
        }
        for (s, e) in std::mem::take(&mut self.late).iter() {
            free.insert(s, e);
        }
        let mut freed = 0;
        for r in self.freed_sets() {
            for (s, e) in r.iter() {
                free.remove(s, e);
            }
            freed += r.total();
        }
        for p in self.pend.values() {
            for (s, e) in p.allocs.iter() {
                free.remove(s, e);
            }
        }
        self.allocated = (self.size() - free.total()).saturating_sub(freed);
        self.state = State::Loaded(Box::new(FreeMap::from_ranges(&free)));
        self.hist_hint = None;
        Ok(self.allocated)
    }

    /// The txg has synced: its frees become deferred. True if there are any.
    pub fn defer(&mut self, txg: Txg, generation: u64) -> bool {
        let Some(p) = self.pend.remove(&txg) else {
            return false;
        };
        if mutated(Mutation::TrimTakesNew) {
            p.placed.iter().for_each(|(s, e)| {
                self.newest.insert(s, e);
            });
        }
        if p.freed.is_empty() {
            return false;
        }
        if let State::Unloaded(Some(h)) = &mut self.state {
            add_hist(h, &p.freed);
        }
        match self.deferred.back_mut() {
            Some((g, set)) if *g == generation => {
                for (s, e) in p.freed.iter() {
                    set.insert(s, e);
                }
                false
            }
            _ => {
                self.deferred.push_back((generation, p.freed));
                true
            }
        }
    }

    /// Ends the deferral of a generation. Returns the bytes.
    /// `collect`: for [`crate::Space::begin_round`].
    pub fn release(&mut self, generation: u64, collect: bool) -> u64 {
        let mut bytes = 0;
        while let Some((g, _)) = self.deferred.front() {
            if *g > generation {
                break;
            }
            let Some((_, set)) = self.deferred.pop_front() else {
                break;
            };
            bytes += set.total();
            for (s, e) in set.iter() {
                if collect {
                    self.given_back.insert(s, e);
                }
                match &mut self.state {
                    State::Loaded(t) => {
                        let added = t.add(s, e);
                        debug_assert!(added, "deferred range was allocatable");
                    }
                    State::Loading => {
                        self.late.insert(s, e);
                    }
                    // The space map on disk has it.
                    State::Unloaded(_) | State::Failed(_) => {}
                }
            }
        }
        bytes
    }

    /// See [`crate::Space::free_ranges`].
    pub fn recorded_free(&self) -> Result<RangeSet> {
        let State::Loaded(t) = &self.state else {
            bail!(Again, "metaslab at {:#x} is not loaded", self.start);
        };
        let mut out = RangeSet::new();
        for (s, e) in t.iter() {
            out.insert(s, e);
        }
        for (_, r) in &self.deferred {
            for (s, e) in r.iter() {
                out.insert(s, e);
            }
        }
        for p in self.pend.values() {
            for (s, e) in p.freed.iter().chain(p.allocs.iter()) {
                out.insert(s, e);
            }
        }
        // A range allocated and freed with neither taken is free as far as the map goes (its alloc
        // was inserted above); one whose alloc was taken is not.
        Ok(out)
    }

    /// See [`crate::Space::settled`].
    pub fn settled(&self, from: u64, to: u64) -> Result<Vec<(u64, u64)>> {
        let State::Loaded(t) = &self.state else {
            bail!(Again, "metaslab at {:#x} is not loaded", self.start);
        };
        let (from, to) = (from.max(self.start), to.min(self.end));
        let mut out = RangeSet::new();
        for (s, e) in t.iter_from(from).take_while(|(s, _)| *s < to) {
            out.insert(s, e);
        }
        let pending = self.pend.values();
        let pending = pending.flat_map(|p| [&p.allocs, &p.placed, &p.freed]);
        for set in pending.chain(self.deferred.iter().map(|(_, r)| r)) {
            let mut at = from;
            while let Some((s, e)) = set.next_from(at).filter(|(s, _)| *s < to) {
                out.insert(s, e);
                at = e;
            }
        }
        Ok(out.gaps(from, to))
    }

    /// See [`crate::Space::in_use`].
    pub fn in_use(&self) -> Result<RangeSet> {
        let State::Loaded(t) = &self.state else {
            bail!(Again, "metaslab at {:#x} is not loaded", self.start);
        };
        let mut out = RangeSet::new();
        out.insert(self.start, self.end);
        for (s, e) in t.iter() {
            out.remove(s, e);
        }
        for (s, e) in self.freed_sets().flat_map(|r| r.iter()) {
            out.remove(s, e);
        }
        Ok(out)
    }

    /// See [`crate::Space::withheld`].
    pub fn withheld(&self, from: u64, to: u64) -> Result<Vec<(u64, u64)>> {
        let State::Loaded(t) = &self.state else {
            bail!(Again, "metaslab at {:#x} is not loaded", self.start);
        };
        let (from, to) = (from.max(self.start), to.min(self.end));
        let mut free = RangeSet::new();
        for (s, e) in t.iter_from(from).take_while(|(s, _)| *s < to) {
            free.insert(s, e);
        }
        Ok(free.gaps(from, to))
    }

    /// Histogram of what is free or will be.
    pub fn full_hist(&self) -> Hist {
        let mut h = match &self.state {
            State::Loaded(t) => *t.hist(),
            State::Unloaded(Some(h)) => **h,
            State::Loading => self.hist_hint.as_deref().copied().unwrap_or([0; 64]),
            State::Unloaded(None) | State::Failed(_) => [0; 64],
        };
        for p in self.pend.values() {
            add_hist(&mut h, &p.frees);
            add_hist(&mut h, &p.freed);
        }
        if matches!(self.state, State::Loaded(_)) {
            for (_, r) in &self.deferred {
                add_hist(&mut h, r);
            }
        }
        h
    }

    /// The histogram if one is known at all.
    pub fn known_hist(&self) -> Option<Hist> {
        match &self.state {
            State::Unloaded(None) | State::Failed(_) => None,
            State::Loading if self.hist_hint.is_none() => None,
            _ => Some(self.full_hist()),
        }
    }

    /// How good the metaslab is for `size` bytes: index of the largest populated power of two, and
    /// how many segments it has. `None` if it cannot hold them as far as is known; `desperate`
    /// doubts the histogram of a map that is not read.
    pub fn weight(&self, size: u64, desperate: bool) -> Option<(u32, u64)> {
        let hist = match &self.state {
            State::Loaded(t) if t.largest() >= size => t.hist(),
            State::Loaded(_) | State::Failed(_) => return None,
            State::Unloaded(h) => {
                let free = self.size() - self.allocated;
                if free < size {
                    return None;
                }
                match h {
                    Some(h) if !desperate => h,
                    _ => return Some((bucket(free).min(20) as u32, 1)),
                }
            }
            // Somewhere else first; whoever picks it waits for the reader.
            State::Loading => return desperate.then_some((20, 1)),
        };
        let top = hist.iter().rposition(|&n| n > 0)?;
        let reach = 2u64.checked_shl(top as u32).unwrap_or(u64::MAX);
        (reach > size).then_some((top as u32, hist[top]))
    }
}
