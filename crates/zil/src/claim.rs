//! Claiming: marks the blocks of a log as allocated at the first writable import after a crash (pool format §26.3).

use crate::chain::{fetch, persist};
use crate::header::{limits, Header, FLAG_LR_SEQ_VALID, FLAG_REPLAY};
use crate::{walk, LogBlocks, RawRecord};
use base::mutation::{mutated, Mutation};
use base::{Kind, Result, Txg};
use disk::{BlkPtr, Dva};
use std::cell::RefCell;
use std::collections::HashSet;

/// What was claimed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
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
    /// Why the chain ends before a block that is intact, or before a forged one.
    pub cut: Option<String>,
}

/// A claim under way.
struct Claims<'a> {
    blocks: &'a dyn LogBlocks,
    /// First txg of this open.
    first: Txg,
    /// What was born since is of the log alone, and not allocated.
    since: Txg,
    seen: HashSet<Dva>,
    max_birth: Txg,
    cut: Option<String>,
}

impl Claims<'_> {
    /// Whether the block is claimed, or need not be.
    fn take(&mut self, bp: &BlkPtr) -> Result<bool> {
        let birth = bp.birth().max(bp.physical_birth());
        if birth > self.blocks.newest_birth() {
            self.cut = Some(format!("a block claims to be of txg {birth}"));
            return Ok(false);
        }
        if bp.birth() < self.since || bp.dvas().iter().any(|d| !self.seen.insert(*d)) {
            return Ok(true);
        }
        match self.blocks.claim(bp, self.first) {
            Ok(()) => {
                self.max_birth = bp.birth().max(self.max_birth);
                Ok(true)
            }
            Err(e) if e.is_wrong_content() => {
                self.cut = Some(e.to_string());
                Ok(false)
            }
            Err(e) => Err(e),
        }
    }

    /// A block of the chain.
    fn block(&mut self, bp: &BlkPtr) -> Result<bool> {
        let taken = self.take(bp)?;
        if !taken && fetch(self.blocks, bp)?.is_none() {
            // Nothing was written there: nothing is missed.
            self.cut = None;
        }
        Ok(taken)
    }

    /// A record, with the data it points to.
    fn record(&mut self, r: &RawRecord) -> Result<bool> {
        if let Some(bp) = r.write_bp().filter(|bp| bp.birth() >= self.since) {
            if bp.is_embedded() {
                return Ok(true);
            }
            // Whether it is forged comes first: what a pointer says is not to be read at any length.
            if bp.birth() > self.blocks.newest_birth() {
                return self.take(&bp);
            }
            return match persist(&mut || self.blocks.read_data(&bp)) {
                Ok(_) => self.take(&bp),
                Err(e) if e.may_pass() && !mutated(Mutation::ErrorEndsLog) => {
                    Err(e.context(format!("data of log record {}", r.seq)))
                }
                Err(_) => Ok(false),
            };
        }
        let clones = r.clone_bps();
        if clones.iter().any(|bp| bp.physical_birth() >= self.first) {
            return Ok(false);
        }
        for bp in clones
            .iter()
            .filter(|bp| !bp.is_hole() && !bp.is_embedded())
        {
            match self.blocks.clone_ref(bp, self.first, true) {
                Err(e) if e.is_wrong_content() => {
                    self.cut = Some(e.to_string());
                    return Ok(false);
                }
                Err(e) if e.kind != Kind::Unsupported => return Err(e),
                _ => {}
            }
        }
        Ok(true)
    }
}

/// Claims the log under `header`: every block born in or after `first_txg` (the first txg of
/// this open) is marked allocated, likewise the data blocks of its records. Does nothing if there
/// is no log or it was claimed before.
///
/// The chain ends, without an error, before a block that cannot be claimed and before a record
/// whose data are not what was written. Errors are those of devices, after many tries. The header is
/// as it was then: what the log holds is for a later import.
pub fn claim(blocks: &dyn LogBlocks, header: &mut Header, first_txg: Txg) -> Result<Claimed> {
    claim_since(blocks, header, first_txg, first_txg)
}

/// [`claim`] for a dataset whose newest state on disk may be older than that of the pool, of txg `since` - 1: an earlier open could not
/// read the dataset, and left its log unclaimed. What the log has of txgs from `since` on is not in the dataset.
pub fn claim_since(
    blocks: &dyn LogBlocks,
    header: &mut Header,
    first_txg: Txg,
    since: Txg,
) -> Result<Claimed> {
    let since = since.min(first_txg);
    if header.log.is_hole() || !header.claim_txg.is_none() {
        return Ok(Claimed::default());
    }
    // Both visitors need it; the walk calls one at a time.
    let claims = RefCell::new(Claims {
        blocks,
        first: first_txg,
        since,
        seen: HashSet::new(),
        max_birth: Txg::NONE,
        cut: None,
    });
    let end = walk(
        blocks,
        &header.log,
        (u64::MAX, u64::MAX),
        &mut |bp| claims.borrow_mut().block(bp),
        &mut |r| claims.borrow_mut().record(r),
    )?;
    header.claim_txg = since;
    header.claim_blk_seq = end.blk_seq;
    header.claim_lr_seq = end.lr_seq;
    header.flags |= FLAG_LR_SEQ_VALID;
    if end.records > 0 || end.blocks > 1 {
        header.flags |= FLAG_REPLAY;
    }
    let (blocks, records) = (end.blocks, end.records);
    tracing::debug!(txg = first_txg.number(), blocks, records, "log is claimed");
    let Claims { max_birth, cut, .. } = claims.into_inner();
    Ok(Claimed {
        changed: true,
        blocks,
        records,
        max_birth,
        cut,
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

/// What a log that nobody uses has on disk: the blocks of the chain itself and of a claimed log the data blocks that claiming
/// marked allocated, and the pointers whose pending references claiming took.
#[derive(Clone, Debug, Default)]
pub struct Left {
    pub(crate) frees: Vec<BlkPtr>,
    pub(crate) clones: Vec<BlkPtr>,
}

impl Left {
    /// Reads the log under `header`.
    ///
    /// Errors: those of devices.
    pub fn of(blocks: &dyn LogBlocks, header: &Header) -> Result<Left> {
        to_free(blocks, header)
    }

    /// Frees it in `txg`, which stores a header without a log (syncing context).
    pub fn free(&self, blocks: &dyn LogBlocks, txg: Txg) -> Result<()> {
        self.frees.iter().try_for_each(|bp| blocks.free(bp, txg))?;
        drop_clones(blocks, &self.clones, txg)
    }
}

/// Drops pending references that claiming took.
pub(crate) fn drop_clones(blocks: &dyn LogBlocks, clones: &[BlkPtr], txg: Txg) -> Result<()> {
    for bp in clones {
        match blocks.clone_ref(bp, txg, false) {
            Err(e) if e.kind != Kind::Unsupported => return Err(e),
            _ => {}
        }
    }
    Ok(())
}

/// [`read_to_free`], and what follows a block that its device does not read stays allocated: that is no reason to keep a log
/// that is not needed.
pub(crate) fn to_free(blocks: &dyn LogBlocks, h: &Header) -> Result<Left> {
    let mut left = Left::default();
    match read_to_free(blocks, h, &mut left) {
        Err(e) if e.may_pass() => tracing::warn!("space of a log is not freed: {e}"),
        r => r?,
    }
    Ok(left)
}

/// All that goes when an old chain is destroyed, see [`Left`]; replay has written the content of the data blocks anew.
///
/// Errors: those of devices. What was read before is in `left`.
pub(crate) fn read_to_free(blocks: &dyn LogBlocks, h: &Header, left: &mut Left) -> Result<()> {
    let Left { frees, clones } = left;
    let mut data = Vec::new();
    let mut seen: HashSet<Dva> = HashSet::new();
    let walked = walk(
        blocks,
        &h.log,
        limits(h),
        &mut |bp| {
            frees.push(*bp);
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
    );
    // A forged pointer to data may lead to a block of the chain, which is freed as that.
    let chain: HashSet<Dva> = frees.iter().flat_map(|bp| bp.dvas()).collect();
    data.retain(|bp| bp.dvas().iter().all(|d| !chain.contains(d)));
    frees.append(&mut data);
    walked.map(drop)
}
