//! Condensing: a mapping of which much is obsolete is replaced by a smaller one (pool format §23).
//!
//! On disk the work is the entry `com.delphix:condensing_indirect`: the vdev, the map of what was obsolete when it began, and the new
//! mapping. What becomes obsolete meanwhile is noted in a new map. Syncing context only; each txg adds some entries to the new
//! mapping, and the last one swaps them.

use super::top_zap;
use crate::indirect::read_ranges;
use crate::jobs::{Budget, Job, Progress, Step, Subject};
use crate::mapping::{Counted, Mapping};
use crate::Pool;
use base::sync::MutexExt;
use base::{bail, Result};
use disk::feature::guid;
use disk::mos_keys::{CONDENSING, OBSOLETE_SPACEMAP};
use dmu::Tx;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use vdev::indirect::{IndirectMap, Moved, ENTRY};
use vdev::{keys, Vdev, VdevKind};
use zap::{Value, Zap};

/// Part of the mapped bytes that is obsolete when a mapping is condensed, percent.
const OBSOLETE_PERCENT: u64 = 25;
/// Bytes of a map of what is obsolete from which on a mapping is condensed in any case.
const LARGE_MAP: u64 = 1 << 30;
/// Entries that are looked at before the budget is asked again.
const PORTION: usize = 1024;

/// A mapping that is being condensed.
struct Work {
    vdev: u64,
    /// Map of what was obsolete when it began.
    obsolete: u64,
    next: Mapping,
    /// The entries of `next`.
    kept: Vec<Moved>,
    old: Arc<IndirectMap>,
    /// Obsolete bytes of each entry of `old`.
    counts: Vec<u32>,
    /// Entries of `old` that were looked at.
    at: usize,
}

/// The job; idle while no mapping is worth it.
#[derive(Default)]
pub(crate) struct CondenseJob {
    work: Mutex<Option<Work>>,
}

impl Job for CondenseJob {
    fn name(&self) -> &'static str {
        "condense"
    }

    fn step(&self, pool: &Pool, tx: &Tx, budget: &Budget) -> Result<Step> {
        let mut work = self.work.acquire();
        if work.is_none() {
            if !pool
                .allocation
                .removed
                .worth_a_look
                .swap(false, Ordering::Relaxed)
            {
                return Ok(Step::Idle);
            }
            *work = pool.find_condensing(tx)?;
        }
        let Some(w) = work.as_mut() else {
            return Ok(Step::Idle);
        };
        while w.at < w.old.ranges().len() {
            if !budget.take_blocks(1) {
                return Ok(Step::More);
            }
            w.look_at(pool, tx)?;
        }
        if let Some(w) = work.take() {
            pool.end_condensing(tx, w)?;
        }
        // There may be another.
        pool.allocation
            .removed
            .worth_a_look
            .store(true, Ordering::Relaxed);
        Ok(Step::More)
    }

    fn progress(&self, _: &Pool, _: Subject) -> Result<Progress> {
        let work = self.work.acquire();
        let entries = |n: usize| (n * ENTRY) as u64;
        Ok(work.as_ref().map_or(Progress::default(), |w| Progress {
            done: entries(w.at),
            total: entries(w.old.ranges().len()),
        }))
    }
}

impl Work {
    /// Takes over what is still referred to of some further entries.
    fn look_at(&mut self, pool: &Pool, tx: &Tx) -> Result<()> {
        let old = &self.old.ranges()[self.at..];
        let portion = &old[..PORTION.min(old.len())];
        let counts = &self.counts[self.at..];
        let keep: Vec<Counted> = portion
            .iter()
            .zip(counts)
            .filter(|(m, n)| m.size > u64::from(**n))
            .map(|(m, n)| (*m, *n))
            .collect();
        self.next.append(pool, tx, &keep)?;
        self.kept.extend(keep.iter().map(|(m, _)| *m));
        self.at += portion.len();
        Ok(())
    }
}

impl Pool {
    /// The condensing that was under way at the import, or one that is worth being begun.
    fn find_condensing(&self, tx: &Tx) -> Result<Option<Work>> {
        if let Some(v) = Zap::new(&self.mos().hold(1)?).get_value(CONDENSING)? {
            let [vdev, obsolete, next] = v.ints()[..] else {
                bail!(Damaged, "record of condensing of {} words", v.len());
            };
            let top = self.tree().top(vdev)?;
            let next = Mapping::open(self, next)?;
            return self.work_on(&top, obsolete, next).map(Some);
        }
        for top in self
            .tree()
            .tops()
            .iter()
            .filter(|t| t.kind() == VdevKind::Indirect)
        {
            let zap = self.mos().hold(top_zap(top)?)?;
            let Some(obsolete) = Zap::new(&zap).get(OBSOLETE_SPACEMAP)? else {
                continue;
            };
            if !self.is_worth_condensing(top, obsolete)? {
                continue;
            }
            let next = Mapping::create(self, tx)?;
            // The next range that becomes obsolete makes a new one.
            Zap::new(&zap).remove(tx, OBSOLETE_SPACEMAP)?;
            let words = Value::u64s(&[top.id(), obsolete, next.object]);
            Zap::new(&self.mos().hold(1)?).add(tx, CONDENSING, &words)?;
            return self.work_on(top, obsolete, next).map(Some);
        }
        Ok(None)
    }

    fn is_worth_condensing(&self, top: &Vdev, obsolete: u64) -> Result<bool> {
        let Some(map) = top.indirect() else {
            return Ok(false);
        };
        let (bytes, length) = self.allocation.maps.obsolete_size(obsolete)?;
        let mapped: u64 = map.ranges().iter().map(|m| m.size).sum();
        let size = (map.ranges().len() * ENTRY) as u64;
        let least = self
            .allocation
            .removed
            .least_condensed
            .load(Ordering::Relaxed);
        let much = u128::from(bytes) * 100 >= u128::from(mapped) * u128::from(OBSOLETE_PERCENT);
        Ok((much && bytes > 0 && size > least) || length >= LARGE_MAP)
    }

    fn work_on(&self, top: &Vdev, obsolete: u64, next: Mapping) -> Result<Work> {
        let object = top.get_u64(keys::INDIRECT_OBJECT).unwrap_or(0);
        let Some(old) = top.indirect() else {
            bail!(Damaged, "{}: its mapping is not loaded", top.name());
        };
        let ranges = old.ranges();
        let mut counts = Mapping::open(self, object)?.read_counts(self, ranges.len())?;
        for (start, end) in self.allocation.maps.read_dtl(obsolete)?.iter() {
            let mut i = ranges.partition_point(|m| m.src + m.size <= start);
            while let Some(m) = ranges.get(i).filter(|m| m.src < end) {
                let n = end.min(m.src + m.size) - start.max(m.src);
                counts[i] = counts[i].saturating_add(n as u32);
                i += 1;
            }
        }
        let mut kept = IndirectMap::default();
        read_ranges(self.mos(), next.object, &mut kept)?;
        let at = ranges.partition_point(|m| m.src < kept.end());
        Ok(Work {
            vdev: top.id(),
            obsolete,
            next,
            kept: kept.ranges().to_vec(),
            old: old.clone(),
            counts,
            at,
        })
    }

    /// The new mapping takes the place of the old one.
    fn end_condensing(&self, tx: &Tx, w: Work) -> Result<()> {
        let top = self.tree().top(w.vdev)?;
        let object = top.get_u64(keys::INDIRECT_OBJECT).unwrap_or(0);
        top.set_indirect(Arc::new(w.old.with_ranges(w.kept)?));
        top.set_u64(keys::INDIRECT_OBJECT, w.next.object);
        Mapping::open(self, object)?.free(self, tx)?;
        self.allocation
            .maps
            .free_map(tx, &self.config, w.obsolete)?;
        self.config
            .features
            .activate(tx, guid::OBSOLETE_COUNTS, -1)?;
        Zap::new(&self.mos().hold(1)?).remove(tx, CONDENSING)?;
        self.config.set_dirty();
        tracing::debug!(
            pool = %self.name(),
            vdev = w.vdev,
            before = w.old.ranges().len(),
            after = w.next.entries,
            "a mapping was condensed"
        );
        Ok(())
    }
}
