//! Whole ranges of a plain vdev or mirror as its leaves have them, whatever blocks are in them: what the removal of a top-level
//! vdev copies (pool format §23).
//!
//! Invariants:
//!
//! 1. Only a leaf that lacks nothing is read: which blocks a range holds, and when they were born, is not known.
//! 2. Nothing is verified, so every such leaf is read, and what they have is handed on apart where it differs. No copy that is
//!    right is lost because another one was read.

use super::finish::readable;
use super::{CandidateIndex, Got, Plan, ReadReq};
use crate::io_counts::IoClass;
use crate::VdevTree;
use base::{bail, Result, Txg};

/// The contents of a range.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RawRange {
    /// The different contents that leaves have; none if nobody could read it.
    pub contents: Vec<Vec<u8>>,
    /// A leaf that lacks nothing failed to read it.
    pub failed: bool,
}

impl VdevTree {
    /// Reads ranges `(offset, bytes)` of top-level vdev `vdev`, a plain one or a mirror, from every leaf that lacks nothing. Whole
    /// sectors, [`base::MAX_BLOCK`] bytes each at most.
    ///
    /// # Errors
    /// `Unsupported`: it is another kind of vdev. `NoDevice`: no leaf lacks nothing at the moment. `Damaged`: a range is outside.
    pub fn read_raw(&self, vdev: u64, ranges: &[(u64, u64)]) -> Result<Vec<RawRange>> {
        let top = self.top(vdev)?;
        readable(&top)?;
        let mut plans = Vec::new();
        let mut places: Vec<CandidateIndex> = Vec::new();
        for (r, &(offset, bytes)) in ranges.iter().enumerate() {
            let req = ReadReq {
                vdev,
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
            let all = 0..column.cands.len();
            places.extend(all.map(|c| (r, 0, 0, c)));
            plans.push(plan);
        }
        let mut refs: Vec<Option<&mut Plan>> = plans.iter_mut().map(Some).collect();
        self.fetch(&mut refs, &places, IoClass::Removal);
        Ok(plans.into_iter().map(contents).collect())
    }
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
