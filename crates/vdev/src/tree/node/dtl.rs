//! Which txgs a vdev lacks: its dirty time log.

use super::{Vdev, VdevKind};
use base::sync::MutexExt;
use base::{RangeSet, Txg};
use std::sync::Arc;

impl Vdev {
    /// Whether it holds data itself, and so may lack some: a device, or a distributed spare.
    pub fn has_dtl(&self) -> bool {
        self.kind.is_leaf() || self.kind == VdevKind::Dspare
    }

    /// All vdevs at or below this one that have a DTL, in order.
    pub fn dtl_holders(self: &Arc<Vdev>) -> Vec<Arc<Vdev>> {
        let below = self.children.iter().flat_map(|c| c.dtl_holders());
        let own = self.has_dtl().then(|| self.clone());
        own.into_iter().chain(below).collect()
    }

    /// Transaction groups this leaf lacks (half-open ranges).
    pub fn dtl(&self) -> RangeSet {
        self.dtl.acquire().clone()
    }

    /// Replaces the set, as read from the pool.
    pub fn set_dtl(&self, ranges: RangeSet) {
        *self.dtl.acquire() = ranges;
    }

    /// Changes the set by what it is: nothing that a write adds meanwhile gets lost.
    pub fn edit_dtl<R>(&self, edit: impl FnOnce(&mut RangeSet) -> R) -> R {
        edit(&mut self.dtl.acquire())
    }

    /// Whether the leaf lacks no txg.
    pub fn dtl_is_empty(&self) -> bool {
        self.dtl.acquire().is_empty()
    }

    /// Whether data born in `txg` may be missing here.
    pub fn dtl_contains(&self, txg: Txg) -> bool {
        let n = txg.number();
        self.dtl.acquire().contains(n, n.saturating_add(1))
    }

    /// Notes that writes of `txg` did not get here.
    pub fn dtl_add(&self, txg: Txg) {
        self.dtl_add_range(txg, txg.after(1));
    }

    /// Notes that writes of the txgs in `[start, end)` did not reach the leaf.
    pub fn dtl_add_range(&self, start: Txg, end: Txg) {
        let (start, end) = (start.number(), end.number());
        let mut dtl = self.dtl.acquire();
        // Told once for a txg, of which many blocks may be missing.
        if tracing::enabled!(tracing::Level::DEBUG) && !dtl.contains(start, end) {
            tracing::debug!(vdev = %self.name(), txg = start, end, "DTL: txgs are missing");
        }
        dtl.insert(start, end);
    }

    /// Notes that everything born in `[start, end)` is here again.
    pub fn dtl_remove_range(&self, start: Txg, end: Txg) {
        self.dtl.acquire().remove(start.number(), end.number());
    }

    /// Txgs missing from this vdev as a whole: on all children of a mirror, on more than the parity
    /// of a RAID-Z. Data born then cannot be read.
    pub fn missing(&self) -> RangeSet {
        self.lacking(&|leaf| leaf.dtl())
    }

    /// The same, where leaves that cannot be used, and those for which `gone` holds, miss everything.
    pub fn outage(&self, gone: &dyn Fn(&Vdev) -> bool) -> RangeSet {
        self.lacking(&|leaf| {
            let there = leaf.kind == VdevKind::Dspare || leaf.state().usable();
            if there && !gone(leaf) {
                return leaf.dtl();
            }
            let mut everything = RangeSet::new();
            everything.insert(0, u64::MAX);
            everything
        })
    }

    fn lacking(&self, of: &dyn Fn(&Vdev) -> RangeSet) -> RangeSet {
        match self.kind {
            VdevKind::Disk | VdevKind::File | VdevKind::Dspare => of(self),
            VdevKind::Raidz { nparity } | VdevKind::Draid { nparity, .. } => {
                self.lacking_on(nparity + 1, of)
            }
            k if k.is_mirrorish() => self.lacking_on(self.children.len(), of),
            _ => RangeSet::new(),
        }
    }

    /// Txgs missing on at least `n` children.
    fn lacking_on(&self, n: usize, of: &dyn Fn(&Vdev) -> RangeSet) -> RangeSet {
        let mut edges: Vec<(u64, i64)> = Vec::new();
        for c in &self.children {
            for (s, e) in c.lacking(of).iter() {
                edges.push((s, 1));
                edges.push((e, -1));
            }
        }
        edges.sort_unstable();
        let mut out = RangeSet::new();
        let (mut depth, mut since) = (0i64, 0);
        for (at, step) in edges {
            if depth >= n as i64 {
                out.insert(since, at);
            }
            depth += step;
            since = at;
        }
        out
    }
}
