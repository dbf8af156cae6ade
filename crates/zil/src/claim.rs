//! Claiming: marks the blocks of a log as allocated at the first writable import after a crash (pool format §26.3).

use crate::header::{limits, Header, FLAG_LR_SEQ_VALID, FLAG_REPLAY};
use crate::{walk, LogBlocks, RawRecord};
use base::{Kind, Result, Txg};
use disk::{BlkPtr, Dva};
use std::collections::HashSet;

/// What was claimed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Claimed {
    /// The header changed: it must be stored with txg `first_txg`.
    pub changed: bool,
    /// Blocks claimed.
    pub blocks: u64,
    /// Records in them.
    pub records: u64,
    /// Highest birth of a claimed block. Txgs up to it must be synced (if only as empty ones)
    /// before anything else is promised, because births on disk may not be ahead of the pool.
    pub max_birth: Txg,
}

/// Claims the log under `header`: every block born in or after `first_txg` (the first txg of
/// this open) is marked allocated, likewise the data blocks of its records. Does nothing if there
/// is no log or it was claimed before.
///
/// The chain ends, without an error, before a block that cannot be claimed and before a record
/// whose data cannot be read. Errors are those of devices.
pub fn claim(blocks: &dyn LogBlocks, header: &mut Header, first_txg: Txg) -> Result<Claimed> {
    if header.log.is_hole() || !header.claim_txg.is_none() {
        return Ok(Claimed::default());
    }
    let mut max_birth = Txg::NONE;
    let mut max_data = Txg::NONE;
    let mut seen: HashSet<Dva> = HashSet::new();
    let mut take = |bp: &BlkPtr, max: &mut Txg| -> Result<bool> {
        if bp.birth() < first_txg || bp.dvas().iter().any(|d| !seen.insert(*d)) {
            return Ok(true);
        }
        match blocks.claim(bp, first_txg) {
            Ok(()) => {
                *max = bp.birth().max(*max);
                Ok(true)
            }
            Err(e) if e.kind == Kind::Damaged => Ok(false),
            Err(e) => Err(e),
        }
    };
    // Both visitors need `take`; the walk calls one at a time.
    let take = std::cell::RefCell::new(&mut take);
    let end = walk(
        blocks,
        &header.log,
        (u64::MAX, u64::MAX),
        &mut |bp| (take.borrow_mut())(bp, &mut max_birth),
        &mut |r: &RawRecord| {
            if let Some(bp) = r.write_bp().filter(|bp| bp.birth() >= first_txg) {
                if bp.is_embedded() {
                    return Ok(true);
                }
                if blocks.read_data(&bp).is_err() {
                    return Ok(false);
                }
                return (take.borrow_mut())(&bp, &mut max_data);
            }
            let clones = r.clone_bps();
            if clones.iter().any(|bp| bp.physical_birth() >= first_txg) {
                return Ok(false);
            }
            for bp in clones
                .iter()
                .filter(|bp| !bp.is_hole() && !bp.is_embedded())
            {
                match blocks.clone_ref(bp, first_txg, true) {
                    Err(e) if e.kind != Kind::Unsupported => return Err(e),
                    _ => {}
                }
            }
            Ok(true)
        },
    )?;
    header.claim_txg = first_txg;
    header.claim_blk_seq = end.blk_seq;
    header.claim_lr_seq = end.lr_seq;
    header.flags |= FLAG_LR_SEQ_VALID;
    if end.records > 0 || end.blocks > 1 {
        header.flags |= FLAG_REPLAY;
    }
    let (blocks, records) = (end.blocks, end.records);
    tracing::debug!(txg = first_txg.number(), blocks, records, "log is claimed");
    Ok(Claimed {
        changed: true,
        blocks: end.blocks,
        records: end.records,
        max_birth: max_birth.max(max_data),
    })
}

/// Whether the log holds anything that is not in the pool, of which txg `synced` is the newest on disk.
///
/// Errors: those of devices.
pub fn pending(blocks: &dyn LogBlocks, header: &Header, synced: Txg) -> Result<bool> {
    let since = match header.claim_txg {
        Txg::NONE => synced.after(1),
        n => n,
    };
    let mut found = false;
    walk(
        blocks,
        &header.log,
        limits(header),
        &mut |_| Ok(true),
        &mut |r| {
            found |= r.seq > header.replay_seq && r.txg >= since;
            Ok(!found)
        },
    )?;
    Ok(found)
}

/// All that goes when an old chain is destroyed: the blocks of the chain itself and of a claimed log
/// the data blocks that claiming marked allocated (replay has written their content anew); second,
/// the pointers whose pending references claiming took.
pub(crate) fn to_free(blocks: &dyn LogBlocks, h: &Header) -> Result<(Vec<BlkPtr>, Vec<BlkPtr>)> {
    let mut out = Vec::new();
    let mut clones = Vec::new();
    let mut data = Vec::new();
    let mut seen: HashSet<Dva> = HashSet::new();
    walk(
        blocks,
        &h.log,
        limits(h),
        &mut |bp| {
            out.push(*bp);
            Ok(true)
        },
        &mut |r| {
            let bp = r.write_bp().filter(|bp| !bp.is_embedded());
            if let Some(bp) = bp.filter(|bp| !h.claim_txg.is_none() && bp.birth() >= h.claim_txg) {
                if bp.dvas().iter().all(|d| seen.insert(*d)) {
                    data.push(bp);
                }
            }
            if !h.claim_txg.is_none() {
                let bps = r.clone_bps();
                clones.extend(bps.iter().filter(|b| !b.is_hole() && !b.is_embedded()));
            }
            Ok(true)
        },
    )?;
    out.append(&mut data);
    Ok((out, clones))
}
