//! Whole ranges of a plain vdev or mirror as its leaves have them, whatever blocks are in them: what the removal of a top-level
//! vdev copies (pool format §23).
//!
//! Invariants:
//!
//! 1. Only a leaf that lacks nothing is read: which blocks a range holds, and when they were born, is not known.
//! 2. Nothing is verified, so every such leaf is read, and what they have is handed on apart where it differs. No copy that is
//!    right is lost because another one was read.
//! 3. A sector that a leaf does not read costs that sector of this leaf only ([`VdevTree::read_raw_parts`]).

use super::finish::readable;
use super::{CandidateIndex, Got, Plan, ReadReq};
use crate::io_counts::IoClass;
use crate::node::Vdev;
use crate::VdevTree;
use base::{bail, RangeSet, Result, Txg};
use std::sync::Arc;

/// Parts that a leaf fails to read within one range until it is asked for no smaller ones.
const MOST_FAILED: usize = 512;

/// The contents of a range.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RawRange {
    /// The different contents that leaves have; none if nobody could read it.
    pub contents: Vec<Vec<u8>>,
    /// A leaf that lacks nothing failed to read it, or a part of it.
    pub failed: bool,
}

/// Bytes of leaf `leaf` (an index) to be read: byte offset on the vdev, and length.
#[derive(Clone, Copy)]
struct Part {
    leaf: usize,
    at: u64,
    len: u64,
}

/// A leaf's view of a range while it is put together.
struct Assembled {
    bytes: Vec<u8>,
    have: RangeSet,
    failed: usize,
}

impl VdevTree {
    /// Reads ranges `(offset, bytes)` of top-level vdev `vdev`, a plain one or a mirror, from every leaf that lacks nothing. Whole
    /// sectors, [`base::MAX_BLOCK`] bytes each at most.
    ///
    /// # Errors
    /// `Unsupported`: it is another kind of vdev. `NoDevice`: no leaf lacks nothing at the moment. `Damaged`: a range is outside.
    pub fn read_raw(&self, vdev: u64, ranges: &[(u64, u64)]) -> Result<Vec<RawRange>> {
        let top = self.top(vdev)?;
        let mut plans = Vec::new();
        for &range in ranges {
            plans.push(self.raw_plan(&top, range)?);
        }
        let mut places: Vec<CandidateIndex> = Vec::new();
        for (r, plan) in plans.iter().enumerate() {
            let all = 0..plan.stripes[0][0].cands.len();
            places.extend(all.map(|c| (r, 0, 0, c)));
        }
        let mut refs: Vec<Option<&mut Plan>> = plans.iter_mut().map(Some).collect();
        self.fetch(&mut refs, &places, IoClass::Removal);
        Ok(plans.into_iter().map(contents).collect())
    }

    /// What is in use of one such range, `in_use` (ascending ranges within it, first byte and end), where a leaf fails to read all of it:
    /// in ever smaller parts. What one leaf does not read of a sector is what another one has there. What is not in use is zeros.
    ///
    /// # Errors
    /// Those of [`VdevTree::read_raw`].
    pub fn read_raw_parts(
        &self,
        vdev: u64,
        (offset, bytes): (u64, u64),
        in_use: &[(u64, u64)],
    ) -> Result<RawRange> {
        let top = self.top(vdev)?;
        let sector = 1u64 << top.ashift();
        let plan = self.raw_plan(&top, (offset, bytes))?;
        let leaves: Vec<u64> = (plan.stripes[0][0].cands.iter())
            .map(|c| c.owner.guid())
            .collect();
        let mut views: Vec<Assembled> = (leaves.iter())
            .map(|_| Assembled {
                bytes: vec![0; bytes as usize],
                have: RangeSet::new(),
                failed: 0,
            })
            .collect();
        let mut wanted: Vec<Part> = (0..leaves.len())
            .flat_map(|leaf| in_use.iter().map(move |&(at, end)| (leaf, at, end)))
            .map(|(leaf, at, end)| Part {
                leaf,
                at,
                len: end - at,
            })
            .collect();
        while !wanted.is_empty() {
            let found = self.raw_of_leaves(&top, &leaves, &wanted)?;
            for (part, found) in std::mem::take(&mut wanted).into_iter().zip(found) {
                let view = &mut views[part.leaf];
                let from = (part.at - offset) as usize;
                if let Some(data) = found {
                    view.bytes[from..from + part.len as usize].copy_from_slice(&data);
                    view.have.insert(part.at, part.at + part.len);
                    continue;
                }
                view.failed += 1;
                if part.len > sector && view.failed < MOST_FAILED {
                    let half = (part.len / 2).next_multiple_of(sector);
                    let (at, len) = (part.at + half, part.len - half);
                    wanted.push(Part { len: half, ..part });
                    wanted.push(Part { at, len, ..part });
                }
            }
        }
        Ok(put_together(views, offset, in_use))
    }

    /// Where a range is on the leaves that lack nothing.
    fn raw_plan(&self, top: &Arc<Vdev>, (offset, bytes): (u64, u64)) -> Result<Plan> {
        readable(top)?;
        let req = ReadReq {
            vdev: top.id(),
            offset,
            psize: bytes as usize,
            birth: Txg::INITIAL,
            verify: &|_| true,
        };
        let mut plan: Plan = self.plan(&req)?;
        if plan.map.is_some() {
            bail!(Unsupported, "{}: not read in ranges", top.name());
        }
        plan.class = IoClass::Removal;
        let column = &mut plan.stripes[0][0];
        column.cands.retain(|c| c.owner.dtl_is_empty());
        if column.cands.is_empty() {
            bail!(NoDevice, "{}: no device has all of its data", top.name());
        }
        Ok(plan)
    }

    /// Reads parts, each from its leaf (of `leaves`, by guid); `None` of what could not be read.
    fn raw_of_leaves(
        &self,
        top: &Arc<Vdev>,
        leaves: &[u64],
        parts: &[Part],
    ) -> Result<Vec<Option<Vec<u8>>>> {
        let mut plans = Vec::new();
        let mut places: Vec<CandidateIndex> = Vec::new();
        for (r, p) in parts.iter().enumerate() {
            let plan = self.raw_plan(top, (p.at, p.len))?;
            let cands = plan.stripes[0][0].cands.iter();
            let mine = cands
                .enumerate()
                .find(|(_, c)| c.owner.guid() == leaves[p.leaf]);
            places.extend(mine.map(|(c, _)| (r, 0, 0, c)));
            plans.push(plan);
        }
        let mut refs: Vec<Option<&mut Plan>> = plans.iter_mut().map(Some).collect();
        self.fetch(&mut refs, &places, IoClass::Removal);
        let data = |plan: Plan| {
            let cands = plan.stripes.into_iter().flatten().flat_map(|c| c.cands);
            let mut got = cands.filter_map(|c| match c.got {
                Got::Data(d) => Some(d),
                _ => None,
            });
            got.next()
        };
        Ok(plans.into_iter().map(data).collect())
    }
}

/// What each leaf has, completed by what others have where it failed. Nothing if a sector in use is on none of them.
fn put_together(mut views: Vec<Assembled>, offset: u64, in_use: &[(u64, u64)]) -> RawRange {
    let mut out = RawRange {
        failed: true,
        ..RawRange::default()
    };
    for n in 0..views.len() {
        let mut missing = RangeSet::new();
        for &(start, end) in in_use {
            for (s, e) in views[n].have.gaps(start, end) {
                missing.insert(s, e);
            }
        }
        for other in (0..views.len()).filter(|o| *o != n) {
            for (start, end) in missing.clone().iter() {
                let theirs: Vec<(u64, u64)> = (views[other].have.iter())
                    .map(|(s, e)| (s.max(start), e.min(end)))
                    .filter(|(s, e)| s < e)
                    .collect();
                for (s, e) in theirs {
                    let at = (s - offset) as usize..(e - offset) as usize;
                    let data = views[other].bytes[at.clone()].to_vec();
                    views[n].bytes[at].copy_from_slice(&data);
                    missing.remove(s, e);
                }
            }
        }
        if !missing.is_empty() {
            return out;
        }
    }
    for v in views {
        if !out.contents.contains(&v.bytes) {
            out.contents.push(v.bytes);
        }
    }
    out
}

fn contents(plan: Plan) -> RawRange {
    let mut out = RawRange::default();
    for c in plan.stripes.into_iter().flatten().flat_map(|c| c.cands) {
        match c.got {
            Got::Data(d) if !out.contents.contains(&d) => out.contents.push(d),
            Got::Data(_) => {}
            Got::No | Got::Failed => out.failed = true,
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leaf_gets_from_others_what_it_does_not_read() {
        let view = |byte: u8, have: &[(u64, u64)]| {
            let mut v = Assembled {
                bytes: vec![0; 4],
                have: RangeSet::new(),
                failed: 0,
            };
            for &(s, e) in have {
                v.have.insert(s, e);
                v.bytes[s as usize - 10..e as usize - 10].fill(byte);
            }
            v
        };
        let of = |views| put_together(views, 10, &[(10, 12), (13, 14)]).contents;
        let both = vec![
            view(1, &[(10, 11), (13, 14)]),
            view(2, &[(11, 12), (13, 14)]),
        ];
        assert_eq!(of(both), [vec![1, 2, 0, 1], vec![1, 2, 0, 2]]);
        let same = vec![view(1, &[(10, 12)]), view(1, &[(11, 14)])];
        assert_eq!(of(same), [vec![1, 1, 0, 1], vec![1, 1, 1, 1]]);
        assert!(of(vec![view(1, &[(10, 12)]), view(2, &[(10, 12)])]).is_empty());
    }
}
