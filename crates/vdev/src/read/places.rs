//! Resolution of a DVA to leaves and offsets, through mirrors and the mappings of removed vdevs.

use super::finish::readable;
use super::reconstruct::MAX_COMBINATIONS;
use super::{Cand, Column, Got, Mode, Plan, ReadOutcome, ReadReq, MIRROR_STRIPE};
use crate::indirect::{IndirectMap, Piece};
use crate::io_counts::IoClass;
use crate::node::{Vdev, VdevKind};
use crate::VdevTree;
use base::sync::MutexExt;
use base::{bail, Result, MAX_BLOCK};
use std::sync::{Arc, Mutex};

/// Longest chain of removed vdevs.
pub(super) const MAX_REMOVALS: usize = 64;

impl VdevTree {
    /// The mapping of a removed vdev.
    pub(super) fn removed(&self, vdev: u64) -> Option<Arc<IndirectMap>> {
        let top = self.top(vdev).ok()?;
        top.indirect().filter(|_| top.kind() == VdevKind::Indirect)
    }

    /// Whether blocks of this top-level vdev are found through a mapping.
    pub fn is_removed(&self, vdev: u64) -> bool {
        self.removed(vdev).is_some()
    }

    /// Where a range of a vdev is now: itself, or what became of it through one removal or several.
    /// Every range of a removed vdev that is passed on the way is told as (vdev, offset, bytes).
    /// `Damaged`: a gap in a mapping, or mappings that go round.
    pub fn locate(
        &self,
        whole: Piece,
        passed: &mut dyn FnMut(u64, u64, u64),
    ) -> Result<Vec<Piece>> {
        let mut pieces = vec![whole];
        // Pieces may be on vdevs that were removed later.
        for _ in 0..MAX_REMOVALS {
            let mut next = Vec::new();
            let mut done = true;
            for p in &pieces {
                match self.removed(p.vdev) {
                    None => next.push(*p),
                    Some(map) => {
                        passed(p.vdev, p.offset, p.len as u64);
                        next.extend(map.resolve(p.offset, p.len)?);
                        done = false;
                    }
                }
            }
            pieces = next;
            if done {
                // Ranges that were copied one after the other mostly lie so, too.
                pieces.dedup_by(|b, a| {
                    let joins = (a.vdev, a.birth) == (b.vdev, b.birth)
                        && a.offset.checked_add(a.len as u64) == Some(b.offset);
                    a.len += if joins { b.len } else { 0 };
                    joins
                });
                return Ok(pieces);
            }
        }
        bail!(Damaged, "removed vdevs refer to each other in a circle")
    }

    /// Where a block is now, with the txgs in which it was written there.
    pub(super) fn pieces(&self, req: &ReadReq) -> Result<Vec<Piece>> {
        let whole = Piece {
            vdev: req.vdev,
            offset: req.offset,
            len: req.psize,
            birth: req.birth,
        };
        let mut pieces = self.locate(whole, &mut |_, _, _| {})?;
        for p in pieces.iter_mut().filter(|p| p.birth.is_none()) {
            p.birth = req.birth;
        }
        Ok(pieces)
    }

    /// Reads a block of a removed vdev that is in several pieces now.
    pub(super) fn read_pieces(
        &self,
        req: &ReadReq,
        pieces: &[Piece],
        mode: Mode,
    ) -> Result<ReadOutcome> {
        // Only the whole can be verified: read what each piece's vdev offers, then try every
        // combination of differing copies.
        let mut offers: Vec<Vec<Vec<u8>>> = Vec::new();
        let mut unread = false;
        for p in pieces {
            let (contents, failed) = self.offers(p)?;
            offers.push(contents);
            unread |= failed;
        }
        let mut choice = vec![0usize; pieces.len()];
        for _ in 0..MAX_COMBINATIONS {
            let data: Vec<u8> = choice
                .iter()
                .zip(&offers)
                .flat_map(|(c, o)| o[*c].iter().copied())
                .collect();
            if (req.verify)(&data) {
                return self.mend_pieces(data, pieces, mode);
            }
            // The next combination, counting like an odometer.
            let Some(i) = (0..choice.len()).find(|&i| choice[i] + 1 < offers[i].len()) else {
                break;
            };
            choice[i] += 1;
            choice[..i].fill(0);
        }
        let (at, vdev) = (req.offset, req.vdev);
        if unread {
            bail!(Io, "block at {at:#x} of removed vdev {vdev}: a device fails to read it, and no other copy is right");
        }
        bail!(
            Checksum,
            "block at {at:#x} of removed vdev {vdev}: no right copy"
        )
    }

    /// The different contents that the copies of a piece have, and whether a device in service failed to
    /// read one.
    fn offers(&self, p: &Piece) -> Result<(Vec<Vec<u8>>, bool)> {
        let seen: Mutex<Vec<Vec<u8>>> = Mutex::new(Vec::new());
        // Believing nobody makes the reader show every copy there is.
        let verify = |b: &[u8]| {
            let mut seen = seen.acquire();
            if !seen.iter().any(|s| s == b) {
                seen.push(b.to_vec());
            }
            false
        };
        let req = ReadReq {
            vdev: p.vdev,
            offset: p.offset,
            psize: p.len,
            birth: p.birth,
            verify: &verify,
        };
        let plan = self.plan(&req)?;
        if plan.map.is_some() {
            bail!(Unsupported, "removed vdev with pieces on RAID-Z");
        }
        let mut plan = plan;
        let _ = self.finish_plain(&req, &mut plan);
        let mut cands = plan.stripes.iter().flatten().flat_map(|c| &c.cands);
        let unread = cands.any(|c| matches!(c.got, Got::Failed) && !c.stale);
        let seen = std::mem::take(&mut *seen.acquire());
        if seen.is_empty() {
            bail!(Io, "piece of a removed vdev: insufficient replicas");
        }
        Ok((seen, unread))
    }

    /// With the right content known, lets every piece be compared and repaired.
    fn mend_pieces(&self, data: Vec<u8>, pieces: &[Piece], mode: Mode) -> Result<ReadOutcome> {
        let how = match mode {
            Mode::Look | Mode::Ahead => mode,
            _ => Mode::Scrub,
        };
        let mut out = ReadOutcome::default();
        let mut at = 0;
        for p in pieces {
            let right = &data[at..at + p.len];
            at += p.len;
            let verify = |b: &[u8]| b == right;
            let (vdev, offset, birth) = (p.vdev, p.offset, p.birth);
            let req = ReadReq {
                vdev,
                offset,
                psize: p.len,
                birth,
                verify: &verify,
            };
            if let Some(Ok(o)) = self.run(&[req], how).pop() {
                out.bad.extend(o.bad);
                out.resilvered += o.resilvered;
                out.repaired += o.repaired;
                out.behind.extend(o.behind);
            }
        }
        out.data = data;
        Ok(out)
    }

    /// Where the block is.
    pub(super) fn plan(&self, req: &ReadReq) -> Result<Plan> {
        let top = self.top(req.vdev)?;
        readable(&top)?;
        if req.psize == 0 || req.psize > MAX_BLOCK {
            bail!(Damaged, "block of {} bytes", req.psize);
        }
        if req
            .offset
            .checked_add(req.psize as u64)
            .is_none_or(|end| end > top.asize())
        {
            bail!(
                Damaged,
                "{}: block at {:#x} is outside",
                top.name(),
                req.offset
            );
        }
        let Some(map) = top.layout(req.offset, req.psize, req.birth)? else {
            let size = crate::size::plain_asize(req.psize as u64, top.ashift()) as usize;
            let holders = top.leaves().into_iter().map(|l| (l.clone(), l)).collect();
            let column = column(holders, 0, req.offset, size, req, false);
            return Ok(Plan {
                class: IoClass::Sync,
                top,
                map: None,
                stripes: vec![vec![column]],
            });
        };
        let stripes = map
            .stripes
            .iter()
            .enumerate()
            .map(|(n, s)| {
                let scratch = map.in_scratch(n);
                s.cols
                    .iter()
                    .enumerate()
                    .map(|(i, c)| {
                        let holders = top.holders(c.child, c.offset);
                        let (at, size) = (c.offset, c.size);
                        let mut col = column(holders, c.child, at, size, req, scratch);
                        col.blank = i >= map.nparity && c.data == 0;
                        col
                    })
                    .collect()
            })
            .collect();
        Ok(Plan {
            class: IoClass::Sync,
            top,
            map: Some(map),
            stripes,
        })
    }
}

/// A column on the leaves that hold it, those that should be right first. With `scratch` it is in
/// their boot areas.
pub(super) fn column(
    holders: Vec<(Arc<Vdev>, Arc<Vdev>)>,
    child: usize,
    offset: u64,
    size: usize,
    req: &ReadReq,
    scratch: bool,
) -> Column {
    let mut cands: Vec<Cand> = holders
        .into_iter()
        .filter(|(leaf, _)| leaf.state().usable())
        .filter_map(|(leaf, owner)| {
            let at = match scratch {
                false => leaf.data_offset(offset, size),
                true => leaf.boot_offset(offset, size),
            };
            let at = at.ok()?;
            let stale = owner.dtl_contains(req.birth);
            Some(Cand {
                leaving: false,
                leaf,
                owner,
                at,
                stale,
                got: Got::No,
            })
        })
        .collect();
    cands.sort_by_key(|c| c.stale);
    let fresh = cands.iter().filter(|c| !c.stale).count();
    if fresh > 1 {
        cands[..fresh].rotate_left((req.offset / MIRROR_STRIPE) as usize % fresh);
    }
    Column {
        child,
        size,
        blank: false,
        cands,
        chosen: None,
    }
}

/// What to fetch in the first round.
pub(super) fn first_places(plan: &Plan, mode: Mode, want: &mut dyn FnMut(usize, usize, usize)) {
    let nparity = plan.map.as_ref().map_or(0, |m| m.nparity);
    for (s, cols) in plan.stripes.iter().enumerate() {
        let fresh = |c: &Column| {
            let sits = |k: &Cand| plan.map.is_some() && k.leaf.sits_out() != 0;
            c.cands.first().is_some_and(|k| !k.stale && !sits(k))
        };
        let whole = cols.iter().skip(nparity).all(|c| c.blank || fresh(c));
        for (c, col) in cols.iter().enumerate() {
            match mode {
                Mode::Scrub => {
                    for (k, _) in col.cands.iter().enumerate().filter(|(_, k)| !k.stale) {
                        want(s, c, k);
                    }
                }
                Mode::Read | Mode::Probe | Mode::Look | Mode::Ahead => {
                    // Parity only where a data column is missing. Whatever a plain vdev has is
                    // better than nothing.
                    let needed = if c >= nparity { !col.blank } else { !whole };
                    if needed && (fresh(col) || (plan.map.is_none() && !col.cands.is_empty())) {
                        want(s, c, 0);
                    }
                }
            }
        }
    }
}
