//! Sizes and layouts of top-level vdevs: allocation, RAID-Z expansion, removed devices.

use super::config::MAX_DEPTH;
use super::{Vdev, VdevKind};
use crate::draid::Draid;
use crate::indirect::IndirectMap;
use crate::keys;
use crate::map::{self, Map, Reflow};
use base::sync::{MutexExt, RwLockExt};
use base::{bail, Result, Txg};
use std::sync::Arc;

impl Vdev {
    /// Allocated bytes of a block of `psize` bytes (pool format §8).
    pub fn asize_for(&self, psize: u64) -> u64 {
        self.asize_in(psize, Txg::MAX)
    }

    /// The same of a block that is born in `txg`: an expansion counts from a certain txg on.
    pub fn asize_in(&self, psize: u64, txg: Txg) -> u64 {
        match self.kind {
            VdevKind::Raidz { nparity } => crate::size::raidz_asize(
                psize,
                self.ashift(),
                self.raidz_width(txg) as u64,
                nparity as u64,
            ),
            VdevKind::Draid { nparity, ndata, .. } => {
                crate::size::draid_asize(psize, self.ashift(), ndata, nparity as u64)
            }
            _ => crate::size::plain_asize(psize, self.ashift()),
        }
    }

    /// Deflated bytes per sector (pool format §8), with the width at creation.
    pub fn deflate_ratio(&self) -> u64 {
        let asize = match self.kind {
            VdevKind::Raidz { nparity } => crate::size::raidz_asize(
                128 << 10,
                self.ashift(),
                self.raidz_width(Txg::NONE) as u64,
                nparity as u64,
            ),
            _ => self.asize_for(128 << 10),
        };
        crate::size::deflate_ratio(asize)
    }

    /// Children of a RAID-Z that count for a block born in `birth` (pool format §10).
    pub(crate) fn raidz_width(&self, birth: Txg) -> usize {
        let later = self.expand_txgs.iter().filter(|t| **t > birth).count();
        let now = self.children.len() - usize::from(self.is_expanding());
        now.saturating_sub(later)
    }

    /// Bytes an allocation must start at a multiple of: the sector, or a whole row of a dRAID group
    /// (to which metaslab starts are rounded up and their sizes down).
    pub fn alloc_unit(&self) -> u64 {
        let width = self.draid.as_ref().map_or(1, Draid::group_width);
        width << self.ashift()
    }

    /// Smallest useful block: all data columns of a dRAID, otherwise a sector. Bytes.
    pub fn min_block(&self) -> u64 {
        let width = match self.kind {
            VdevKind::Draid { ndata, .. } => ndata,
            _ => 1,
        };
        width << self.ashift()
    }

    pub(crate) fn draid(&self) -> Option<&Draid> {
        self.draid.as_ref()
    }

    /// Hands over the mapping of a removed vdev, without which its blocks cannot be read.
    pub fn set_indirect(&self, map: Arc<IndirectMap>) {
        *self.indirect.acquire_write() = Some(map);
    }

    /// The mapping of a removed vdev, once it was handed over.
    pub fn indirect(&self) -> Option<Arc<IndirectMap>> {
        self.indirect.acquire_read().clone()
    }

    pub(crate) fn set_reflow(&self, reflow: Option<Reflow>) {
        *self.reflow.acquire() = reflow;
    }

    /// Changes what is known of how far the expansion of a RAID-Z got, if anything is.
    pub(crate) fn edit_reflow<R>(&self, f: impl FnOnce(&mut Reflow) -> R) -> Option<R> {
        self.reflow.acquire().as_mut().map(f)
    }

    /// How far the widening of a RAID-Z got, if one is under way and the uberblock said it.
    pub fn reflow(&self) -> Option<Reflow> {
        self.reflow.acquire().filter(|_| self.expanding)
    }

    /// Layout of a block on the children; `None` where every leaf holds all of it.
    pub(crate) fn layout(&self, offset: u64, psize: usize, birth: Txg) -> Result<Option<Map>> {
        let ashift = self.ashift();
        Ok(match (self.kind, &self.draid) {
            (VdevKind::Raidz { nparity }, _) => {
                let reflow = self.reflow();
                if self.is_expanding() && reflow.is_none() {
                    bail!(
                        Unsupported,
                        "{}: state of its expansion is not known",
                        self.name()
                    );
                }
                let (physical, logical) = (self.children.len(), self.raidz_width(birth));
                Some(map::raidz(
                    physical, logical, nparity, ashift, offset, psize, reflow,
                )?)
            }
            (_, Some(d)) => Some(d.map(ashift, offset, psize)?),
            _ => None,
        })
    }

    /// Leaves that hold what child `child` of this vdev has at `offset`, each with the vdev whose
    /// DTL and faults count: itself, or the distributed spare it stands for.
    pub(crate) fn holders(&self, child: usize, offset: u64) -> Vec<(Arc<Vdev>, Arc<Vdev>)> {
        let mut out = Vec::new();
        if let Some(c) = self.children.get(child) {
            self.collect_holders(c, offset, 0, &mut out);
        }
        out
    }

    fn collect_holders(
        &self,
        v: &Arc<Vdev>,
        offset: u64,
        depth: usize,
        out: &mut Vec<(Arc<Vdev>, Arc<Vdev>)>,
    ) {
        if v.kind.is_leaf() {
            out.push((v.clone(), v.clone()));
        }
        if let (VdevKind::Dspare, Some(d)) = (v.kind, &self.draid) {
            let spare = v.get_u64(keys::SPARE_ID).unwrap_or(u64::MAX);
            // The place may lie on a child that a spare stands in for as well.
            let child = d
                .spare_child(spare, offset)
                .ok()
                .and_then(|i| self.children.get(i));
            if let Some(c) = child.filter(|_| depth < MAX_DEPTH) {
                let mut below = Vec::new();
                self.collect_holders(c, offset, depth + 1, &mut below);
                out.extend(below.into_iter().map(|(leaf, _)| (leaf, v.clone())));
            }
        }
        v.children
            .iter()
            .for_each(|c| self.collect_holders(c, offset, depth, out));
    }

    /// Whether a RAID-Z is being widened right now.
    pub fn is_expanding(&self) -> bool {
        self.expanding
    }
}
