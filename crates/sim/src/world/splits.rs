//! A simulated pool is split: one side of each mirror becomes a pool of its own, which has from then on what there was at that moment.

use super::{desk, text, Outcome, World};
use crate::oracle::SplitOff;
use crate::rig;
use base::Kind;
use std::sync::Arc;
use vdev::{GroupKind, VdevKind};

impl World {
    /// Splits the pool, once in a life, and looks at the new one.
    pub(super) fn split(&mut self) -> std::result::Result<Outcome, String> {
        let Some(pool) = self.pool().cloned() else {
            return Ok(Outcome::Nothing);
        };
        let fit = self.layout.kind == GroupKind::Mirror && self.layout.version == 5000;
        if !fit || self.oracle.half.is_some() || self.counts.faults > 0 {
            return Ok(Outcome::Nothing);
        }
        let Some(disks) = self.last_sides(&pool) else {
            return Ok(Outcome::Nothing);
        };
        // Nobody waits for the devices of the new pool.
        self.waiting.disarm();
        let forbidden = pool.shares().checkpoint.txg().is_some();
        pool.sync().map_err(text)?;
        let kept = self.oracle.keep();
        let paths = disks.iter().map(|d| rig::path(*d)).collect();
        // A power cut on the way may leave both pools.
        self.oracle.half = Some(Arc::new(SplitOff { kept, disks }));
        match desk(&self.opened).and_then(|d| d.split(paths)) {
            Ok(()) if forbidden => return Err("it was done, though there is a checkpoint".into()),
            Ok(()) => {}
            Err(e) if pool.stopped().is_none() && is_refusal(&e) => {
                self.oracle.half = None;
                return Ok(Outcome::Refused);
            }
            Err(e) => return Err(text(e)),
        }
        let pos = self.pos();
        self.oracle.ack_all(pos);
        // The sides are not part of what was before.
        self.first = self.first.max(pool.synced_txg());
        let labels = crate::check::Labels::of(&self.base, &[]);
        match self.judge_now(&labels).split_off(&self.disks, 1)? {
            true => Ok(Outcome::Done),
            false => Err("the new pool is not there".into()),
        }
    }

    /// The last disk of each group that is a mirror of the pool; none if another disk stands in for one.
    fn last_sides(&self, pool: &pool::Pool) -> Option<Vec<usize>> {
        let tops = pool.tree().tops();
        let concrete = tops.iter().filter(|t| t.is_concrete() && !t.is_log());
        let side = |t: &Arc<vdev::Vdev>| {
            let paths: Vec<String> = t.children().iter().filter_map(|c| c.path()).collect();
            let mut last = (0..=self.layout.grow).filter_map(|n| self.layout.group(n).last());
            let fit = |d: &usize| t.kind() == VdevKind::Mirror && paths.contains(&rig::path(*d));
            last.find(fit)
        };
        concrete.map(side).collect()
    }

    /// Whether a disk belongs to the pool that was split off.
    pub(super) fn has_left(&self, disk: usize) -> bool {
        let half = self.oracle.half.as_ref();
        half.is_some_and(|h| h.disks.contains(&disk))
    }

    /// After a power cut in the middle of a split: with both pools there, the old one lets go of the sides, which it misses.
    pub(super) fn after_split(
        &mut self,
        half: Option<Arc<SplitOff>>,
    ) -> std::result::Result<(), String> {
        let (Some(half), Some(pool)) = (half, self.pool().cloned()) else {
            return Ok(());
        };
        if !crate::check::has_half(&self.disks, &self.clock) {
            return Ok(());
        }
        for disk in &half.disks {
            if let Some(side) = pool.tree().find_by_name(&rig::path(*disk)) {
                let done = pool.detach(side.guid());
                done.map_err(|e| format!("a side that was split off stays: {e}"))?;
            }
        }
        self.first = self.first.max(pool.synced_txg());
        self.oracle.half = Some(half);
        Ok(())
    }
}

/// Whether a split is refused because of what else goes on in the pool.
fn is_refusal(e: &base::Error) -> bool {
    rig::is_full(e) || matches!(e.kind, Kind::Busy | Kind::Exists | Kind::NoDevice)
}
