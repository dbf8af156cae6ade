//! What a simulated pool consists of: a RAID-Z that grows, top-level vdevs that come and go with all they hold.

use super::{desk, text, Outcome, World};
use crate::check;
use crate::rig;
use crate::shape::Shape;
use base::Result;
use pool::Pool;
use std::sync::Arc;
use vdev::{GroupKind, Vdev};

/// Txgs in which every expansion and every removal has ended.
const LONGEST: usize = 20_000;
/// Nanoseconds between two of them: what failed is tried again after a while.
const BETWEEN: u64 = 1_000_000_000;

impl World {
    /// Whether sectors or blocks are being moved.
    pub(super) fn shaping(&self) -> bool {
        self.pool()
            .is_some_and(|p| p.is_expanding() || p.is_removing())
    }

    /// States from before sectors were moved, or before a vdev left, are not gone back to. `before`: whether anything was being moved
    /// before the line.
    pub(super) fn no_way_back(&mut self, before: bool) {
        if !before && !self.shaping() {
            return;
        }
        if let Some(txg) = self.pool().map(|p| p.synced_txg()) {
            self.first = self.first.max(txg);
        }
    }

    pub(super) fn shape(&mut self, line: Shape) -> std::result::Result<Outcome, String> {
        let Some(pool) = self.pool().cloned() else {
            return Ok(Outcome::Nothing);
        };
        let raidz = matches!(self.layout.kind, GroupKind::Raidz { .. });
        let known = |n: usize| n <= self.layout.grow && !raidz;
        let (done, objection) = match line {
            Shape::Finish => return self.finish_shapes(&pool),
            Shape::Split => return self.split(),
            Shape::Expand(disk) => {
                let (first, end) = (self.layout.grows_at(), self.disks.len());
                if !raidz || disk < first || disk >= end || is_in_use(&pool, disk) {
                    return Ok(Outcome::Nothing);
                }
                let objection = pool.expand_refusal(0).map_err(text)?;
                let objection = objection.map(|o| o.to_string());
                let name = pool.tree().top(0).map_err(text)?.name();
                let done = desk(&self.opened).and_then(|d| d.expand(&name, disk));
                (done, objection)
            }
            Shape::Add(n) if known(n) => {
                let group = self.layout.group(n);
                if group
                    .clone()
                    .any(|d| is_in_use(&pool, d) || self.has_left(d))
                {
                    return Ok(Outcome::Nothing);
                }
                let (kind, ashift) = (self.layout.kind, self.layout.ashift);
                let done = desk(&self.opened).and_then(|d| d.add(kind, group, ashift));
                (done, None)
            }
            Shape::Remove(n) if known(n) => {
                let Some(top) = self.top_of(&pool, n) else {
                    return Ok(Outcome::Nothing);
                };
                let objection = pool.removal_refusal(top.id()).map_err(text)?;
                let objection = objection.map(|o| o.to_string());
                let name = top.name();
                let done = desk(&self.opened).and_then(|d| d.remove(&name));
                (done, objection)
            }
            Shape::Cancel => {
                let objection = (!pool.is_removing()).then(|| "none is under way".to_string());
                let done = desk(&self.opened).and_then(|d| d.cancel_removal());
                (done, objection)
            }
            Shape::Add(_) | Shape::Remove(_) => return Ok(Outcome::Nothing),
        };
        self.shaped(&pool, done, objection)
    }

    /// How a change went. What speaks against it must have kept it from being done, and nothing else, unless devices failed.
    fn shaped(
        &mut self,
        pool: &Pool,
        done: Result<()>,
        objection: Option<String>,
    ) -> std::result::Result<Outcome, String> {
        match (done, objection) {
            (Ok(()), None) => {
                let pos = self.pos();
                self.oracle.ack_all(pos);
                Ok(Outcome::Done)
            }
            (Ok(()), Some(why)) => Err(format!("it was done, though: {why}")),
            (Err(_), Some(_)) => Ok(Outcome::Refused),
            (Err(e), None) if rig::is_full(&e) => Ok(Outcome::Refused),
            (Err(e), None) if self.counts.faults > 0 && e.kind != base::Kind::Damaged => {
                match pool.suspended() {
                    None => Ok(Outcome::Refused),
                    Some(_) => Err(text(e)),
                }
            }
            (Err(e), None) => Err(text(e)),
        }
    }

    /// The top-level vdev that a disk of a group belongs to.
    fn top_of(&self, pool: &Pool, group: usize) -> Option<Arc<Vdev>> {
        let tops = pool.tree().tops();
        let paths: Vec<String> = self.layout.group(group).map(rig::path).collect();
        let has = |t: &&Arc<Vdev>| {
            let leaves = t.leaves();
            let mut named = leaves.iter().filter_map(|l| l.path());
            t.is_concrete() && named.any(|p| paths.contains(&p))
        };
        tops.iter().find(has).cloned()
    }

    /// Expansion and removal come to their ends, unless a device is missing. Then disks are taken away.
    fn finish_shapes(&mut self, pool: &Pool) -> std::result::Result<Outcome, String> {
        for _ in 0..LONGEST {
            if !self.shaping() {
                break;
            }
            if pool.suspended().is_some() || pool.stopped().is_some() {
                return Ok(Outcome::Refused);
            }
            if self.counts.faults > 0 && pool.expansion_waits() {
                return Ok(Outcome::Refused);
            }
            pool.sync().map_err(text)?;
            self.clock.pass(BETWEEN);
        }
        if self.shaping() {
            // What is to be removed lies on a device that is not there.
            if self.counts.faults > 0 && pool.is_removing() {
                return Ok(Outcome::Refused);
            }
            let left = (pool.expansion_progress(), pool.removal().map_err(text)?);
            return Err(format!("it does not end: {left:?}"));
        }
        pool.sync().map_err(text)?;
        let pos = self.pos();
        self.oracle.ack_all(pos);
        if self.counts.faults > 0 {
            return Ok(Outcome::Done);
        }
        let labels = check::Labels::of(&self.base, &[]);
        let judge = self.judge_now(&labels);
        if let Some(o) = &self.opened {
            let trees = o.trees()?;
            judge.without_any(o, &self.disks, &trees)?;
        }
        Ok(Outcome::Done)
    }

    /// A judge of what is on the disks now, of a pool of which no device ever failed.
    pub(super) fn judge_now<'a>(&'a self, labels: &'a check::Labels) -> check::Judge<'a> {
        check::Judge {
            layout: &self.layout,
            clock: &self.clock,
            oracle: &self.oracle,
            labels,
            // Behind everything that was acknowledged.
            cut: usize::MAX - 1,
            healthy: true,
            imported: true,
            first: self.first,
            care: check::Care::Full,
            spoilt: self.content.lately(),
        }
    }
}

/// Whether the pool has a disk.
fn is_in_use(pool: &Pool, disk: usize) -> bool {
    let path = rig::path(disk);
    let leaves = pool.tree().leaves();
    leaves
        .iter()
        .any(|l| l.path().as_deref() == Some(path.as_str()))
}
