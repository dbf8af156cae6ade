//! The second phase of a scan: scrubbing the blocks of the queue, in order of offset.

use super::queue::Waiting;
use crate::{Budget, Pool};
use base::Txg;
use disk::objset::ObjsetPhys;
use disk::scan::word;
use disk::BlkPtr;
use std::collections::HashSet;
use zio::Scrubbed;

/// Blocks, and bytes of each top-level vdev, that are scrubbed together at least, if there are so many.
const BATCH_BLOCKS: u64 = 256;
const BATCH_BYTES: u64 = 16 << 20;
/// Bytes of each top-level vdev that are scrubbed together at most.
const MOST_BYTES: u64 = 64 << 20;

impl Pool {
    /// Scrubs a batch of the queue, as large as [`Budget::size`] says; false: nothing was left, or nothing could be done now.
    pub(super) fn issue(&self, budget: &Budget) -> bool {
        let size = budget.size();
        // Before the blocks are looked up: what is in the queue then was in use at that moment.
        let lease = self.zio().lease();
        let mut batch = self.background.scans.blocks.next(
            BATCH_BLOCKS.saturating_mul(size) as usize,
            BATCH_BYTES.saturating_mul(size).min(MOST_BYTES),
        );
        if batch.is_empty() || !budget.take_blocks(batch.len() as u64) {
            return false;
        }
        let (resilver, begun) = match self.background.scans.live().as_ref() {
            Some(l) => (l.is_resilver(), l.begun),
            None => return false,
        };
        let (mut issued, mut skipped) = (0, 0);
        if resilver {
            let (lacking, others): (Vec<Waiting>, Vec<Waiting>) =
                batch.iter().partition(|w| self.is_lacked(&w.bp));
            skipped += others.iter().map(|w| allocated(&w.bp)).sum::<u64>();
            others
                .iter()
                .for_each(|w| self.background.scans.blocks.done(&w.bp));
            batch = lacking;
        }
        let before = self.away();
        let bps: Vec<BlkPtr> = batch.iter().map(|w| w.bp).collect();
        let results = self.zio().scrub(&bps, lease);
        let away: HashSet<u64> = before.union(&self.away()).copied().collect();
        let (mut written, mut errors, mut done) = (0, 0, false);
        let mut behind: Vec<(u64, Txg)> = Vec::new();
        for (w, r) in batch.iter().zip(results) {
            let missed = match r {
                // It is tried again, unless it has been freed.
                Scrubbed::Stale => continue,
                Scrubbed::Whole { written: n, behind } => {
                    written += n;
                    behind
                }
                Scrubbed::Lost { behind, .. } => {
                    errors += 1;
                    w.damage.iter().for_each(|d| self.note_damage(d));
                    behind
                }
            };
            done = true;
            issued += allocated(&w.bp);
            behind.extend(missed);
            self.background.scans.blocks.done(&w.bp);
        }
        self.note_behind(&behind);
        // Another scan may have begun meanwhile.
        let mut live = self.background.scans.live();
        if let Some(live) = live.as_mut().filter(|l| l.begun == begun) {
            live.words[word::PROCESSED] += written;
            live.words[word::ERRORS] += errors;
            live.pass.issued += issued;
            live.words[word::SKIPPED] += skipped;
            live.absent.extend(away);
            for (leaf, birth) in behind {
                let lacks = live.behind.entry(leaf).or_default();
                lacks.insert(birth.number(), birth.after(1).number());
            }
        }
        done || skipped > 0
    }

    /// Devices do not have what was to be written to them: they lack these txgs, if they did not before. No resilver is started for that:
    /// it would fail as this scan did.
    pub(super) fn note_behind(&self, behind: &[(u64, Txg)]) {
        let new = behind.iter().filter_map(|&(guid, birth)| {
            let v = self.tree().find(guid)?;
            (v.has_dtl() && !v.dtl_contains(birth)).then_some((v, birth))
        });
        for (v, birth) in new {
            self.background.scans.give_up(&v, birth);
        }
    }

    /// Leaves that cannot be written now.
    fn away(&self) -> HashSet<u64> {
        let all = self.tree().all().into_iter();
        let away = all.filter(|v| v.has_dtl() && !v.state().usable());
        away.map(|v| v.guid()).collect()
    }

    /// Whether a leaf that can be written lacks a copy of a block. Of a gang the header does not tell where its members are.
    fn is_lacked(&self, bp: &BlkPtr) -> bool {
        let birth = bp.physical_birth();
        let lacks = |vdev| !self.zio().devices.lacking(vdev, birth).is_empty();
        bp.is_gang()
            || bp
                .dvas()
                .iter()
                .any(|d| self.tree().is_removed(d.vdev()) || lacks(d.vdev()))
    }

    /// Reads the blocks of an intent log that was claimed and not replayed: their copies are put right on the way.
    pub(super) fn probe_claimed_log(&self, phys: &ObjsetPhys) {
        let Ok(h) = disk::zil::ZilHeader::decode(&phys.zil_header) else {
            return;
        };
        if h.claim_txg.is_none() {
            return;
        }
        // The chain ends at the first block that is not valid: that is no error.
        let _ = zil::walk(
            &ClaimedLog(self),
            &h.log,
            (h.claim_blk_seq, h.claim_lr_seq),
            &mut |bp| Ok(bp.logical_birth() < h.claim_txg),
            &mut |_| Ok(true),
        );
    }
}

/// Bytes of all copies.
fn allocated(bp: &BlkPtr) -> u64 {
    bp.dvas().iter().map(|d| d.asize()).sum()
}

/// Blocks of a log that are read only.
struct ClaimedLog<'a>(&'a Pool);

impl zil::LogBlocks for ClaimedLog<'_> {
    fn read_block(
        &self,
        bp: &BlkPtr,
        verify: &(dyn Fn(&[u8]) -> bool + Sync),
    ) -> base::Result<Vec<u8>> {
        let devices = &self.0.zio().devices;
        bp.sanity(devices.vdevs())?;
        devices.probe(&bp.dva(0), bp.psize(), bp.physical_birth(), verify)
    }

    fn read_data(&self, bp: &BlkPtr) -> base::Result<base::Block> {
        self.0.zio().read(bp)
    }

    fn claim(&self, _: &BlkPtr, _: Txg) -> base::Result<()> {
        base::bail!(ReadOnly, "the log is only read")
    }

    fn free(&self, _: &BlkPtr, _: Txg) -> base::Result<()> {
        base::bail!(ReadOnly, "the log is only read")
    }
}
