//! Which bytes of a leaf a range of its top-level vdev takes: what is free there may be discarded or overwritten on the leaf.

use crate::draid::Draid;
use crate::node::{Vdev, VdevKind};
use base::RangeSet;
use std::sync::Arc;

/// How ranges of a top-level vdev lie on one of its leaves.
pub struct OnLeaf {
    top: Arc<Vdev>,
    /// Index of the child of the top-level vdev that the leaf is, or is in.
    child: usize,
}

impl OnLeaf {
    /// `None`: nothing can be said, since sectors change their places (an expansion), or since the vdev has no such leaf.
    pub fn new(top: &Arc<Vdev>, leaf: &Vdev) -> Option<OnLeaf> {
        if !top.is_concrete() || top.is_expanding() {
            return None;
        }
        let holds = |v: &Arc<Vdev>| v.leaves().iter().any(|l| l.guid() == leaf.guid());
        let child = match top.kind().is_leaf() {
            true => holds(top).then_some(0),
            false => top.children().iter().position(holds),
        };
        Some(OnLeaf {
            top: top.clone(),
            child: child?,
        })
    }

    /// Adds the bytes of the leaf's data area that hold `[start, end)` of the top-level vdev, parity included, and nothing else.
    pub fn add(&self, start: u64, end: u64, out: &mut RangeSet) {
        let ashift = self.top.ashift();
        match (self.top.kind(), self.top.draid()) {
            (VdevKind::Raidz { .. }, _) => {
                let width = self.top.children().len() as u64;
                // Sectors k of the vdev with k mod width = child are consecutive rows of the child. That holds for blocks from
                // before an expansion, too.
                let rows = |k: u64| (k + width - 1 - self.child as u64) / width;
                let unit = 1u64 << ashift;
                let (from, to) = (rows(start.div_ceil(unit)), rows(end >> ashift));
                if to > from {
                    out.insert(from << ashift, to << ashift);
                }
            }
            (_, Some(d)) => d.on_child(self.child, ashift, (start, end), out),
            _ if start < end => {
                out.insert(start, end);
            }
            _ => {}
        }
    }

    /// Among how many leaves a range is divided: of so many bytes of the top-level vdev the leaf has one.
    pub fn divisor(&self) -> u64 {
        match (self.top.kind(), self.top.draid()) {
            (VdevKind::Raidz { .. }, _) => self.top.children().len() as u64,
            (_, Some(d)) => Draid::disks(d),
            _ => 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::draid::{groups_for, Draid, ROW};
    use base::RangeSet;

    /// Every place of a block is in what its range takes, and nothing else is.
    #[test]
    fn a_range_of_a_draid_takes_the_places_of_its_blocks() {
        for (children, ndata, nparity, nspares) in [(5, 2, 1, 1), (9, 4, 2, 1), (6, 3, 2, 0)] {
            let groups = groups_for(children, ndata, nparity, nspares);
            let d =
                Draid::new(children as usize, ndata, nparity as usize, nspares, groups).unwrap();
            let row = (ndata + nparity) << 12;
            let group = (ndata + nparity) * ROW;
            for offset in [
                0,
                row,
                group - row,
                group - 2 * row,
                3 * group,
                7 * group + 5 * row,
            ] {
                let sectors = 3 * ndata;
                let map = d.map(12, offset, (sectors << 12) as usize).unwrap();
                let mut places = vec![RangeSet::new(); children as usize];
                for col in map.stripes.iter().flat_map(|s| &s.cols) {
                    places[col.child].insert(col.offset, col.offset + col.size as u64);
                }
                let mut sum = 0;
                for (child, mine) in places.iter().enumerate() {
                    let mut got = RangeSet::new();
                    d.on_child(child, 12, (offset, offset + 3 * row), &mut got);
                    let lists = [&got, mine].map(|s| s.iter().collect::<Vec<_>>());
                    assert_eq!(lists[0], lists[1], "child {child} at {offset:#x}");
                    sum += got.total();
                }
                assert_eq!(sum, 3 * row);
            }
            // Parts of rows are nobody's alone.
            let mut got = RangeSet::new();
            d.on_child(0, 12, (4096, row - 4096), &mut got);
            assert!(got.is_empty());
        }
    }
}
