//! Metaslabs out of allocation: somebody discards or overwrites what is free in them.

use crate::metaslab::{Ms, State};
use crate::Space;
use base::mutation::{mutated, Mutation};
use base::{bail, RangeSet, Result};

/// A metaslab from which nothing is allocated as long as this lives. It must not live while its holder waits for a txg or allocates.
pub struct Disabled<'a> {
    space: &'a Space,
    vdev: u64,
    ms: u64,
}

/// Free ranges of a metaslab in the order of their offsets, and where to go on behind them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FreePiece {
    /// Offset and end of each.
    pub ranges: Vec<(u64, u64)>,
    /// Everything before it was looked at.
    pub next: u64,
}

impl Ms {
    /// What is free. Deliberate mistakes add what is not.
    fn discardable(&self, from: u64, count: usize) -> Result<Vec<(u64, u64)>> {
        let State::Loaded(t) = &self.state else {
            bail!(Again, "metaslab at {:#x} is not loaded", self.start);
        };
        let (new, deferred) = (
            mutated(Mutation::TrimTakesNew),
            mutated(Mutation::TrimTakesDeferred),
        );
        let mut wrong = RangeSet::new();
        let allocs = self.pend.values().flat_map(|p| [&p.allocs, &p.placed]);
        let allocs = allocs.chain([&self.newest]);
        let freed = self.deferred.iter().map(|(_, r)| r);
        for set in allocs.filter(|_| new).chain(freed.filter(|_| deferred)) {
            set.iter().for_each(|(s, e)| {
                wrong.insert(s, e);
            });
        }
        if wrong.is_empty() {
            let free = t.iter_from(from).take(count);
            return Ok(free.map(|(s, e)| (s.max(from), e)).collect());
        }
        t.iter().for_each(|(s, e)| {
            wrong.insert(s, e);
        });
        let behind = wrong.iter().filter(|(_, e)| *e > from);
        Ok(behind.map(|(s, e)| (s.max(from), e)).collect())
    }
}

impl Space {
    /// Takes a metaslab out of allocation until the result is dropped.
    ///
    /// # Errors
    /// `Kind::Damaged`: there is no such metaslab.
    pub fn disable(&self, vdev: u64, ms: u64) -> Result<Disabled<'_>> {
        let mut inner = self.lock();
        inner.ms(vdev, ms)?.disabled += 1;
        inner.disabled += 1;
        Ok(Disabled {
            space: self,
            vdev,
            ms,
        })
    }

    /// Whether ranges are noted that become allocatable again, from now on. Without it those on note are forgotten.
    pub fn collect(&self, on: bool) {
        let mut inner = self.lock();
        inner.collect = on;
        if !on {
            for m in inner.tops.values_mut().flat_map(|t| &mut t.ms) {
                (m.given_back, m.aged) = Default::default();
            }
        }
    }

    /// Whether ranges are on note.
    pub fn has_collected(&self) -> bool {
        let inner = self.lock();
        let mut all = inner.tops.values().flat_map(|t| &t.ms);
        inner.collect && all.any(|m| !m.given_back.is_empty() || !m.aged.is_empty())
    }

    /// What has been on note in a metaslab since the round before is of no interest.
    pub fn forget_aged(&self, vdev: u64, ms: u64) {
        if let Ok(m) = self.lock().ms(vdev, ms) {
            m.aged = std::mem::take(&mut m.given_back);
        }
    }

    /// A round of [`Disabled::aged`] begins: the metaslabs `(vdev, metaslab)` of which ranges have been on note since the round
    /// before. What came later in the others is for the next round.
    pub fn begin_round(&self) -> Vec<(u64, u64)> {
        let mut inner = self.lock();
        let mut out = Vec::new();
        for (&id, top) in &mut inner.tops {
            for (n, m) in top.ms.iter_mut().enumerate() {
                if m.aged.is_empty() {
                    m.aged = std::mem::take(&mut m.given_back);
                } else {
                    out.push((id, n as u64));
                }
            }
        }
        out
    }
}

impl Disabled<'_> {
    /// Free ranges from `from` on, at most `bytes` bytes and `count` ranges.
    ///
    /// # Errors
    /// `Kind::Again`: the metaslab is not loaded ([`Space::ensure_loaded`]).
    pub fn free(&self, from: u64, bytes: u64, count: usize) -> Result<FreePiece> {
        let mut inner = self.space.lock();
        let top = inner.top(self.vdev)?;
        let shift = top.spec.ms_shift;
        let m = inner.ms(self.vdev, self.ms)?;
        let mut out = FreePiece {
            ranges: Vec::new(),
            next: (self.ms + 1) << shift,
        };
        let mut left = bytes;
        for (s, e) in m.discardable(from, count.saturating_add(1))? {
            if left == 0 || out.ranges.len() == count {
                out.next = s;
                break;
            }
            let end = e.min(s.saturating_add(left));
            out.ranges.push((s, end));
            left -= end - s;
            if end < e {
                out.next = end;
                break;
            }
        }
        Ok(out)
    }

    /// The ranges that have been on note since the round before, as far as they are free still, each with the free space around
    /// it up to multiples of `unit`. They are on note no longer.
    ///
    /// # Errors
    /// As [`Disabled::free`]; nothing changes then.
    pub fn aged(&self, unit: u64) -> Result<RangeSet> {
        let unit = unit.max(1);
        let mut inner = self.space.lock();
        let m = inner.ms(self.vdev, self.ms)?;
        let free = m.discardable(m.start, usize::MAX)?;
        let aged = std::mem::replace(&mut m.aged, std::mem::take(&mut m.given_back));
        let mut out = RangeSet::new();
        for (s, e) in free {
            let mut at = s;
            while let Some((a, b)) = aged.next_from(at).filter(|(a, _)| *a < e) {
                let (a, b) = (a.max(s), b.min(e));
                let end = b.checked_next_multiple_of(unit).unwrap_or(b).min(e);
                out.insert((a / unit * unit).max(s), end);
                at = b.max(at + 1);
            }
        }
        Ok(out)
    }
}

impl Drop for Disabled<'_> {
    fn drop(&mut self) {
        let mut inner = self.space.lock();
        inner.disabled = inner.disabled.saturating_sub(1);
        // The vdev may have left.
        if let Ok(m) = inner.ms(self.vdev, self.ms) {
            m.disabled = m.disabled.saturating_sub(1);
        }
        drop(inner);
        self.space.enabled.notify_all();
    }
}
