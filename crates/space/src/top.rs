//! One top-level vdev: its metaslabs and their sums.

use crate::alloc::{self, STREAMS};
use crate::metaslab::{Ms, State};
use crate::{Class, TopSpec};
use base::{bail, RangeSet, Result, Txg};

/// The reference never makes more.
const MAX_METASLABS: u64 = 1 << 20;

/// Sums over metaslabs, bytes.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Acct {
    /// Bytes of all metaslabs.
    pub size: u64,
    /// Bytes in use.
    pub allocated: u64,
    /// Freed but not yet allocatable.
    pub deferred: u64,
}

pub(crate) struct Top {
    /// What was told about the vdev; `asize` follows [`Top::grow`].
    pub spec: TopSpec,
    /// Multiple of every allocation's offset and size, in bytes.
    pub align: u64,
    /// False while the vdev is missing or read-only.
    pub writable: bool,
    /// The vdev property `allocating`.
    pub allocating: bool,
    /// The metaslabs by number.
    pub ms: Vec<Ms>,
    /// Ordinary metaslabs, embedded log.
    pub acct: [Acct; 2],
    /// The metaslab each stream and copy works in, and the weight it had when it was chosen.
    pub active: [[Option<(u64, u32)>; 3]; STREAMS],
}

impl Top {
    /// A vdev whose metaslabs are all free, and made in `txg`. `Damaged`: the numbers do not fit together.
    pub fn new(spec: TopSpec, txg: Txg) -> Result<Top> {
        if spec.ashift < 9 || spec.ms_shift >= 63 || spec.ashift > spec.ms_shift {
            bail!(
                Damaged,
                "vdev {}: ashift {} and metaslab shift {} do not go together",
                spec.id,
                spec.ashift,
                spec.ms_shift
            );
        }
        let unit = 1u64 << spec.ashift;
        let align = if spec.align == 0 { unit } else { spec.align };
        if align % unit != 0 || align > 1 << spec.ms_shift {
            bail!(Invalid, "vdev {}: alignment {align}", spec.id);
        }
        let mut top = Top {
            spec: TopSpec { asize: 0, ..spec },
            align,
            writable: true,
            allocating: true,
            ms: Vec::new(),
            acct: Default::default(),
            active: Default::default(),
        };
        top.grow(spec.asize, txg)?;
        if top.ms.is_empty() {
            bail!(Damaged, "vdev {} is smaller than a metaslab", spec.id);
        }
        Ok(top)
    }

    /// Appends metaslabs up to `asize` allocatable bytes, which are made in `txg`; returns how many are new.
    pub fn grow(&mut self, asize: u64, txg: Txg) -> Result<u64> {
        let count = asize >> self.spec.ms_shift;
        let had = self.ms.len() as u64;
        if count < had {
            bail!(Invalid, "vdev {} cannot shrink", self.spec.id);
        }
        if count > MAX_METASLABS {
            bail!(Damaged, "vdev {}: {count} metaslabs", self.spec.id);
        }
        for n in had..count {
            let start = base::roundup(n << self.spec.ms_shift, self.align);
            let end = ((n + 1) << self.spec.ms_shift) / self.align * self.align;
            let mut m = Ms::new(start, end);
            m.made_in = txg;
            self.acct[0].size += m.size();
            self.ms.push(m);
        }
        self.spec.asize = asize;
        Ok(count - had)
    }

    /// Whether blocks may be allocated here.
    pub fn usable(&self) -> bool {
        self.writable && self.allocating
    }

    /// Allocatable bytes of the ordinary or the embedded-log part.
    pub fn room(&self, embedded: bool) -> u64 {
        let a = &self.acct[embedded as usize];
        a.size.saturating_sub(a.allocated + a.deferred)
    }

    /// Takes over the free ranges that were read from a space map.
    pub fn finish_load(&mut self, ms: u64, free: RangeSet) -> Result<()> {
        let Some(m) = self.ms.get_mut(ms as usize) else {
            bail!(Damaged, "no metaslab {ms} on vdev {}", self.spec.id);
        };
        let old = m.allocated;
        let new = m.finish_load(free)?;
        let acct = &mut self.acct[m.embedded as usize];
        acct.allocated = acct.allocated - old + new;
        Ok(())
    }

    /// Books an allocation whose range has just left the tree.
    pub fn note_alloc(&mut self, ms: u64, offset: u64, asize: u64, txg: Txg) {
        let m = &mut self.ms[ms as usize];
        m.pend
            .entry(txg)
            .or_default()
            .allocs
            .insert(offset, offset + asize);
        m.allocated += asize;
        m.last_used = m.last_used.max(txg);
        self.acct[m.embedded as usize].allocated += asize;
    }

    /// Makes allocatable what was deferred in this generation.
    pub fn release(&mut self, ms: u64, generation: u64, collect: bool) {
        if let Some(m) = self.ms.get_mut(ms as usize) {
            let bytes = m.release(generation, collect);
            self.acct[m.embedded as usize].deferred -= bytes;
        }
    }

    /// Unloads metaslabs that were not used for `idle` txgs; returns how many.
    pub fn unload_idle(&mut self, now: Txg, idle: u64) -> usize {
        let mut n = 0;
        for (i, m) in self.ms.iter_mut().enumerate() {
            let active = self
                .active
                .iter()
                .flatten()
                .flatten()
                .any(|&(a, _)| a == i as u64);
            // A wholly free metaslab costs nothing to keep.
            if active
                || m.allocated == 0
                || m.disabled > 0
                || m.last_used.after(idle) >= now
                || !m.is_clean()
            {
                continue;
            }
            if let State::Loaded(t) = &m.state {
                m.state = State::Unloaded(Some(Box::new(*t.hist())));
                n += 1;
            }
        }
        n
    }

    /// Sets the emptiest metaslab aside for the log if there are more than `min_ms` of them.
    pub fn choose_embedded_log(&mut self, min_ms: u64) {
        if self.spec.class != Class::Normal
            || self.ms.len() as u64 <= min_ms
            || self.ms.iter().any(|m| m.embedded)
        {
            return;
        }
        let Some(m) = self.ms.iter_mut().min_by_key(|m| m.allocated) else {
            return;
        };
        m.embedded = true;
        let freed = m
            .pend
            .values()
            .map(|p| p.frees.total() + p.freed.total())
            .chain(m.deferred.iter().map(|(_, r)| r.total()))
            .sum::<u64>();
        let moved = Acct {
            size: m.size(),
            allocated: m.allocated,
            deferred: freed,
        };
        self.acct[0].size -= moved.size;
        self.acct[0].allocated -= moved.allocated;
        self.acct[0].deferred -= moved.deferred;
        self.acct[1] = moved;
        self.active = Default::default();
    }

    /// Picks and takes `size` bytes for copy `copy` of stream `stream`. `others`: where the earlier
    /// copies of the block lie on this vdev. See [`alloc::How`].
    pub fn place(
        &mut self,
        embedded: bool,
        size: u64,
        (stream, copy): (usize, usize),
        others: &[u64],
        how: alloc::How,
    ) -> alloc::Placed {
        let alloc::How {
            eager,
            edges,
            txg,
            synced,
        } = how;
        let align = self.align;
        let apart = (self.ms.len() as u64 / 8).max(1);
        let home: Vec<u64> = others.iter().map(|o| o >> self.spec.ms_shift).collect();
        // First an eighth of the vdev away from the other copies, then any other metaslab, then
        // anywhere; last with doubts about what unread maps say of themselves.
        let mut levels = vec![(apart, false), (1, false), (0, false), (0, true)];
        if others.is_empty() {
            levels.drain(..2);
        }
        for (distance, desperate) in levels {
            let ok = |n: u64| home.iter().all(|h| h.abs_diff(n) >= distance);
            // Stay where the stream is while the metaslab is nearly as good as when it was chosen.
            if let Some((n, was)) = self.active[stream][copy] {
                let m = &mut self.ms[n as usize];
                if m.embedded == embedded && ok(n) && m.takes(txg, synced) {
                    let good = m.weight(size, false).is_some_and(|(w, _)| w + 2 > was);
                    let (capacity, edge) = (m.size(), m.edge(edges, align));
                    if let (true, State::Loaded(t)) = (good, &mut m.state) {
                        let near = edge.and_then(|from| t.alloc_from(from, size));
                        if let Some(at) = near.or_else(|| t.alloc(size, capacity, eager)) {
                            return alloc::Placed::At(n, at);
                        }
                    }
                }
            }
            let mut best: Option<((i64, u64), u64)> = None;
            for (n, m) in self.ms.iter().enumerate() {
                let n = n as u64;
                if m.embedded != embedded || !ok(n) || !m.takes(txg, synced) {
                    continue;
                }
                let Some((w, count)) = m.weight(size, desperate) else {
                    continue;
                };
                let taken = self.active.iter().enumerate().any(|(s, row)| {
                    row.iter()
                        .enumerate()
                        .any(|(c, a)| (s, c) != (stream, copy) && a.is_some_and(|(a, _)| a == n))
                });
                let key = (w as i64 - if taken { 2 } else { 0 }, count);
                if best.is_none_or(|(k, _)| key > k) {
                    best = Some((key, n));
                }
            }
            let Some((_, n)) = best else { continue };
            let m = &mut self.ms[n as usize];
            let (capacity, edge) = (m.size(), m.edge(edges, align));
            match &mut m.state {
                State::Loaded(t) => {
                    let weight = t.hist().iter().rposition(|&c| c > 0).unwrap_or(0) as u32;
                    let near = edge.and_then(|from| t.alloc_from(from, size));
                    if let Some(at) = near.or_else(|| t.alloc(size, capacity, eager)) {
                        self.active[stream][copy] = Some((n, weight));
                        return alloc::Placed::At(n, at);
                    }
                }
                _ => return alloc::Placed::Load(n),
            }
        }
        alloc::Placed::Full
    }
}
