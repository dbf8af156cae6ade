//! The end of a scan: which txgs leave the DTLs, and what the record says (operations on DTLs: pool format §20.1).

use super::live::Live;
use super::{hull, meet};
use crate::notices::{Scanning, Turned};
use crate::Pool;
use base::mutation::{mutated, Mutation};
use base::sync::MutexExt;
use base::{RangeSet, Result, Txg};
use disk::scan::{word, ScanState, NO_DATASET};
use dmu::Tx;
use zap::Zap;

impl Pool {
    /// Ends a scan. `complete`: everything was visited; otherwise it is canceled.
    pub(super) fn end_scan(&self, tx: &Tx, mut l: Live, complete: bool) -> Result<()> {
        let queue = std::mem::take(&mut l.words[word::QUEUE]);
        if queue != 0 {
            self.mos().free(tx, queue)?;
        }
        let state = match complete {
            true => ScanState::Finished,
            false => ScanState::Canceled,
        };
        l.words[word::STATE] = state.number();
        l.words[word::END] = self.seconds();
        l.words[word::FLAGS] = 0;
        let place = match complete {
            true => [NO_DATASET, 0, 0, 0],
            false => l.place_words(),
        };
        l.words[word::BOOKMARK..word::BOOKMARK + 4].copy_from_slice(&place);
        self.store_scan(tx, &l.words)?;
        self.background.scans.blocks.set_range(None);
        let (min, max) = l.range();
        // Only a scan of everything knows that what it did not find is whole.
        self.rotate_errlog(
            tx,
            complete && !l.is_resilver() && min.is_none() && !l.lost_way,
        )?;
        if complete && !l.is_resilver() {
            self.note_scrubbed(tx, min, max)?;
        }
        let event = match complete {
            true => "scan done",
            false => "scan cancelled",
        };
        self.log_internal(tx, event, &format!("errors={}", l.words[word::ERRORS]))?;
        if complete && self.shares().checkpoint.txg().is_none() && !l.lost_way {
            self.take_off_dtls(&l, max);
        }
        if complete && l.is_resilver() {
            self.give_up_the_rest(&l, max);
        }
        self.tree().set_resilvering(self.is_rebuilding());
        match (l.is_resilver(), complete) {
            (true, true) => self.notice(Scanning::Resilver, Turned::Finished),
            // It begins anew.
            (true, false) => {}
            (false, true) => self.notice(Scanning::Scrub, Turned::Finished),
            (false, false) => self.notice(Scanning::Scrub, Turned::Aborted),
        }
        Ok(())
    }

    /// Everything born behind `min` and up to `max` has been scrubbed. `last_scrubbed_txg` says up to where there is no
    /// gap.
    fn note_scrubbed(&self, tx: &Tx, min: Txg, max: Txg) -> Result<()> {
        let before = self.last_scrubbed()?.unwrap_or(Txg::NONE);
        if max > before && (min < Txg::INITIAL || min <= before) {
            let dir = self.mos().hold(1)?;
            Zap::new(&dir).update_u64(tx, "last_scrubbed_txg", max.number())?;
        }
        Ok(())
    }

    /// What leaves have got is taken off their DTLs: everything before `max`, but for what could not be given to them. The copies of a
    /// removal under way could not.
    fn take_off_dtls(&self, l: &Live, max: Txg) {
        let (min, _) = l.range();
        for v in self.tree().all().iter().filter(|v| v.has_dtl()) {
            let usable = v.state().usable();
            let away = l.absent.contains(&v.guid());
            let unrepaired = l.behind.get(&v.guid()).cloned().unwrap_or_default();
            if v.dtl_is_empty() {
                continue;
            }
            let top = self.top_id(v);
            let copied = self.allocation.removed.copied_to(top);
            let copying = self.allocation.removed.copying_to(top);
            let changed = v.edit_dtl(|lacks| {
                let Some((first, end)) = hull(lacks, &copied) else {
                    return false;
                };
                // A leaf that was away meanwhile has missed later txgs, too, and gets a resilver of its own.
                let whole = first >= min && end <= max && usable;
                if (!whole || away) && !mutated(Mutation::DtlDropsMore) {
                    return false;
                }
                let mut left = lacks.clone();
                left.remove(0, max.number());
                for (start, end) in unrepaired.iter().chain(copying.iter()) {
                    for (s, e) in lacks.iter() {
                        left.insert(start.max(s), end.min(e));
                    }
                }
                *lacks = left;
                true
            });
            if changed {
                self.is_filled(v);
            }
        }
        self.tree().propagate();
    }

    /// The removal of top-level vdev `removed` ends in the txg of `tx`. Who missed some of its copies gets a resilver that begins behind that txg, since scans before did
    /// not find them. It visits every block, whoever carries it out: hence the first txg there is.
    pub(crate) fn note_missed_copies(&self, tx: &Tx, removed: u64) {
        self.background.scans.forget_given_up();
        let map = self.tree().top(removed).ok().and_then(|t| t.indirect());
        let Some(map) = map.filter(|_| !mutated(Mutation::ResilverForgetsCopies)) else {
            return;
        };
        for top in self.tree().tops().iter().filter(|t| t.is_concrete()) {
            let copied = map.copied_to(top.id());
            for v in top.dtl_holders() {
                if meet(&v.dtl(), &copied) {
                    v.dtl_add(Txg::INITIAL);
                    v.dtl_add(tx.txg());
                }
            }
        }
        self.request_resilver();
    }

    /// Copies of a removal were missed, and are not wanted any more: resilvers take their txgs off DTLs.
    pub(crate) fn forget_missed_copies(&self) {
        self.background.scans.forget_given_up();
        self.request_resilver();
    }

    /// Notes what leaves lack although a resilver up to `max` visited it: no further one is started for that.
    fn give_up_the_rest(&self, l: &Live, max: Txg) {
        let mut given_up = self.background.scans.given_up.acquire();
        given_up.clear();
        for v in self.tree().all().iter().filter(|v| v.has_dtl()) {
            let lacks: RangeSet = v.dtl();
            let visited = hull(&lacks, &RangeSet::new()).is_some_and(|(_, end)| end <= max);
            if visited && !l.absent.contains(&v.guid()) {
                given_up.insert(v.guid(), lacks);
            }
        }
    }
}
