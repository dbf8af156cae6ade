//! Starting, stopping and pausing scans; their progress for commands.

use super::live::{At, Live};
use super::{hull, ScanRecord};
use crate::notices::{Scanning, Turned};
use crate::Pool;
use base::{Result, Txg};
use disk::feature::guid::RESILVER_DEFER;
use disk::scan::{word, ErrorScrubState, Function, ScanState, PAUSED, WORDS};
use dmu::Tx;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::Arc;
use vdev::{keys, Vdev};

/// Duplicates and blocks with one reference: classes of the dedup tables that OpenZFS looks through first.
const DDT_DUPLICATES: u64 = 1;
/// A resilver of which more than this share is done makes others wait for it, if the pool has the feature `resilver_defer`: one
/// in this many.
const DEFER_BEHIND: u64 = 10;

/// Before the first txg of every pool.
const BEFORE_ALL: Txg = Txg::INITIAL.before(1);

/// Why a scan does not begin, stop or pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScanRefusal {
    /// A scrub is under way.
    Scrubbing,
    /// A resilver is under way or due.
    Resilvering,
    /// There is no scrub to be stopped or paused.
    NoScrub,
    /// The scrub is paused already.
    Paused,
    /// A paused scrub stands against an error scrub.
    PausedToCancel,
    /// An error scrub is under way.
    ErrorScrubbing,
    /// An error scrub is paused.
    ErrorScrubPaused,
    /// There is nothing on record for an error scrub.
    NoErrors,
}

/// The newest scan, with what is known of one that is under way here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScanProgress {
    /// The record.
    pub state: ScanRecord,
    /// Bytes of all passes whose copies were compared.
    pub issued: u64,
    /// The rest is of this pass: since the import, or since the scan began. Bytes.
    pub pass_examined: u64,
    /// Bytes whose copies were compared.
    pub pass_issued: u64,
    /// Seconds since 1970.
    pub pass_start: u64,
    /// When it was paused, seconds since 1970; `None` if it is not.
    pub paused_at: Option<u64>,
    /// Seconds.
    pub spent_paused: u64,
}

/// Which blocks a scrub visits, by their birth. The default is all of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScrubRange {
    /// Those born behind this txg.
    pub after: Txg,
    /// Up to this one; `None`: up to the txg in which the scrub begins.
    pub through: Option<Txg>,
}

impl ScrubRange {
    /// First − 1 and last txg of a scrub that begins in txg `now`.
    fn txgs(self, now: Txg) -> (Txg, Txg) {
        match self.through {
            // A first txg that leaves nothing out tells it, on disk too, from a scrub of everything.
            Some(last) => (self.after.max(BEFORE_ALL), last.min(now)),
            None => (self.after, now),
        }
    }
}

impl Pool {
    /// The newest scan, if there ever was one.
    ///
    /// # Errors
    /// Those of reading the record.
    pub fn scan_progress(&self) -> Result<Option<ScanProgress>> {
        if let Some(l) = self.background.scans.live().as_ref() {
            return Ok(Some(ScanProgress {
                state: ScanRecord::of(&l.words),
                issued: l.pass.issued_before + l.pass.issued,
                pass_examined: l.pass.examined,
                pass_issued: l.pass.issued,
                pass_start: l.pass.start,
                paused_at: l.pass.paused_at,
                spent_paused: l.pass.spent_paused,
            }));
        }
        Ok(self.scan_state()?.map(|state| ScanProgress {
            state,
            issued: state.examined.saturating_sub(state.skipped),
            pass_start: state.start,
            paused_at: state.paused.then_some(state.start),
            ..ScanProgress::default()
        }))
    }

    /// Looks at the labels of all devices in use. One whose labels are gone, or are those of another device, is out of use from now on,
    /// unless nobody else has what it holds. The next txg writes the labels of all devices in use.
    fn look_at_labels(&self) {
        for top in self.tree().tops().iter().filter(|t| t.is_concrete()) {
            for leaf in top.leaves() {
                let Some(why) = self.tree().objection_to(top, &leaf) else {
                    continue;
                };
                let (pool, name) = (self.name(), leaf.name());
                let needed = !top.outage(&|l| l.guid() == leaf.guid()).is_empty();
                if needed {
                    tracing::warn!(%pool, "{name}: {} on its device; it is written anew", why.note());
                } else {
                    tracing::warn!(%pool, "{name}: {} on its device, which is out of use now; replace it", why.note());
                    self.tree().disown(&leaf, why);
                }
            }
        }
        self.settle_wear();
        self.dirty_config();
    }

    /// Why no scrub of `range` begins or goes on now, if so.
    fn refuses_scrub(&self, range: ScrubRange) -> Option<ScanRefusal> {
        if self.is_rebuilding() {
            return Some(ScanRefusal::Resilvering);
        }
        match self.background.scans.live().as_ref() {
            Some(l) if l.is_resilver() => return Some(ScanRefusal::Resilvering),
            Some(l) if !l.is_paused() => return Some(ScanRefusal::Scrubbing),
            // The paused one has a range of its own.
            Some(_) if range != ScrubRange::default() => return Some(ScanRefusal::PausedToCancel),
            Some(_) => return None,
            None => {}
        }
        let due = || self.due_resilver().map(|_| ScanRefusal::Resilvering);
        self.errors_refuse().or_else(due)
    }

    /// Begins a scrub of the blocks born in `range`, or, without a limit, has a paused one go on. On disk when it returns. It begins
    /// with a look at the labels of the devices.
    ///
    /// # Errors
    /// `Ok(Err(_))`: it is refused. Those of writing the txg.
    pub fn start_scrub(
        &self,
        range: ScrubRange,
        command: (String, u64),
    ) -> Result<std::result::Result<(), ScanRefusal>> {
        self.writable()?;
        // The look may put a device out of use: not for a scrub that is refused.
        if let Some(why) = self.refuses_scrub(range) {
            return Ok(Err(why));
        }
        self.look_at_labels();
        self.task(move |pool, tx| {
            if let Some(why) = pool.refuses_scrub(range) {
                return Ok(Err(why));
            }
            let mut live = pool.background.scans.live();
            match live.as_mut() {
                Some(l) => pool.set_paused(tx, l, false)?,
                None => {
                    drop(live);
                    let (min, max) = range.txgs(tx.txg());
                    pool.begin_scan(tx, Function::Scrub, min, max)?;
                }
            }
            pool.log_in(tx, &command.0, command.1)?;
            Ok(Ok(()))
        })
    }

    /// The txg up to which the newest scrub that ended has been.
    ///
    /// # Errors
    /// Those of reading the directory.
    pub fn last_scrubbed(&self) -> Result<Option<Txg>> {
        Ok(self.directory("last_scrubbed_txg")?.map(Txg::new))
    }

    /// Ends a scrub. On disk when it returns.
    ///
    /// # Errors
    /// As for [`Pool::start_scrub`].
    pub fn stop_scrub(
        &self,
        command: (String, u64),
    ) -> Result<std::result::Result<(), ScanRefusal>> {
        self.task(move |pool, tx| {
            match pool.take_scrub() {
                Some(l) => pool.end_scan(tx, l, false)?,
                None if pool.stop_errors(tx, ErrorScrubState::Canceled)? => {}
                None => return Ok(Err(ScanRefusal::NoScrub)),
            }
            pool.log_in(tx, &command.0, command.1)?;
            Ok(Ok(()))
        })
    }

    /// A rebuild is to begin: a scrub or error scrub under way ends.
    pub(crate) fn make_way_for_rebuild(&self, tx: &Tx) -> Result<()> {
        self.cancel_errors(tx)?;
        match self.take_scrub() {
            Some(l) => self.end_scan(tx, l, false),
            None => Ok(()),
        }
    }

    fn take_scrub(&self) -> Option<Live> {
        let mut live = self.background.scans.live();
        let scrub = live.as_ref().is_some_and(|l| !l.is_resilver());
        scrub.then(|| live.take()).flatten()
    }

    /// Pauses a scrub. On disk when it returns: it stays paused over imports.
    ///
    /// # Errors
    /// As for [`Pool::start_scrub`].
    pub fn pause_scrub(
        &self,
        command: (String, u64),
    ) -> Result<std::result::Result<(), ScanRefusal>> {
        self.task(move |pool, tx| {
            let mut live = pool.background.scans.live();
            match live.as_mut().filter(|l| !l.is_resilver()) {
                Some(l) if l.is_paused() => return Ok(Err(ScanRefusal::Paused)),
                Some(l) => pool.set_paused(tx, l, true)?,
                None => {
                    if let Some(why) = pool.pause_errors(tx)? {
                        return Ok(Err(why));
                    }
                }
            }
            drop(live);
            pool.log_in(tx, &command.0, command.1)?;
            Ok(Ok(()))
        })
    }

    fn set_paused(&self, tx: &Tx, l: &mut Live, paused: bool) -> Result<()> {
        let now = self.seconds();
        match paused {
            true => {
                l.words[word::FLAGS] |= PAUSED;
                l.pass.paused_at = Some(now);
            }
            false => {
                l.words[word::FLAGS] &= !PAUSED;
                let since = l.pass.paused_at.take().unwrap_or(now);
                l.pass.spent_paused += now.saturating_sub(since);
                l.plan.clear();
                l.next = 0;
            }
        }
        let turned = match paused {
            true => Turned::Paused,
            false => Turned::Resumed,
        };
        self.notice(Scanning::Scrub, turned);
        // The place on disk stays what it is.
        let Some(mut stored) = self.scan_words()? else {
            return Ok(());
        };
        if let Some(flags) = stored.get_mut(word::FLAGS) {
            *flags = (*flags & !PAUSED) | (l.words[word::FLAGS] & PAUSED);
        }
        self.store_scan(tx, &stored)
    }

    /// Txgs that the resilver under way gives to leaves; a leaf that lacks others waits for a resilver of its own.
    pub fn resilvered_txgs(&self) -> Option<(Txg, Txg)> {
        let live = self.background.scans.live();
        live.as_ref().filter(|l| l.is_resilver()).map(Live::range)
    }

    /// Asks that a resilver begins if a leaf that can be written lacks something: after an attach, a replacement, or when a device came
    /// back. Returns at once; the resilver begins with a txg behind the last one that is lacked.
    pub fn request_resilver(&self) {
        dmu::Driver::kick(self);
    }

    /// `zpool resilver`: a resilver under way begins anew; otherwise one begins if a leaf lacks something, also where one has given up.
    /// False: nothing is lacked.
    pub fn restart_resilver(&self) -> bool {
        self.background.scans.forget_given_up();
        let running = self
            .background
            .scans
            .live()
            .as_ref()
            .is_some_and(Live::is_resilver);
        if running {
            self.background.scans.restart.store(true, Ordering::Release);
        }
        self.request_resilver();
        running || self.due_resilver().is_some()
    }

    /// Whether a resilver or rebuild is under way or due.
    pub fn is_resilvering(&self) -> bool {
        self.is_rebuilding() || self.is_healing()
    }

    /// Whether a resilver by the block trees is under way or due.
    pub fn is_healing(&self) -> bool {
        let running = self
            .background
            .scans
            .live()
            .as_ref()
            .is_some_and(Live::is_resilver);
        running || self.due_resilver().is_some()
    }

    /// What leaves that can be written lack, and no resilver has given up: first txg − 1, end.
    pub(super) fn due_resilver(&self) -> Option<(Txg, Txg)> {
        if self.is_rebuilding() {
            // It waits until that has ended.
            return None;
        }
        let holders = self.tree().dtl_holders().into_iter();
        holders
            .filter_map(|v| self.due_of(&v))
            .reduce(|(f, e), (first, end)| (f.min(first), e.max(end)))
    }

    /// The same of one leaf.
    fn due_of(&self, v: &Vdev) -> Option<(Txg, Txg)> {
        if v.dtl_is_empty() || !v.state().usable() {
            return None;
        }
        let lacks = self.background.scans.due(v)?;
        hull(&lacks, &self.allocation.removed.copied_to(self.top_id(v)))
    }

    /// Number of the top-level vdev of a leaf or distributed spare.
    pub(super) fn top_id(&self, v: &Vdev) -> u64 {
        let top = self.tree().top_of(v.guid());
        top.map_or(u64::MAX, |t| t.id())
    }

    /// In syncing context: begins a resilver if one is due; true: one is due, and waits for a later txg.
    pub(super) fn look_for_resilver(&self, tx: &Tx) -> Result<bool> {
        let Some((first, end)) = self.due_resilver() else {
            self.end_deferral(tx)?;
            self.background
                .scans
                .restart
                .store(false, Ordering::Release);
            return Ok(false);
        };
        let restart = self.background.scans.restart.load(Ordering::Acquire);
        let ended = {
            let mut live = self.background.scans.live();
            if let Some(l) = live.as_ref().filter(|l| l.is_resilver()) {
                let (min, max) = l.range();
                let covered = first >= min && end <= max;
                let late = l.pass.issued.saturating_add(l.pass.issued_before)
                    > l.words[word::TO_EXAMINE].saturating_sub(l.words[word::SKIPPED])
                        / DEFER_BEHIND;
                let waits = late && self.config.features.is_enabled(RESILVER_DEFER);
                if !restart && covered {
                    return Ok(false);
                }
                if !restart && waits {
                    drop(live);
                    // Whoever is not covered gets a resilver of its own, behind this one.
                    self.defer(tx, (min, max))?;
                    return Ok(false);
                }
            }
            if end > tx.txg() {
                // What is lacked must be on disk, so that it can be found. The scan under way goes on until then.
                return Ok(true);
            }
            live.take()
        };
        if let Some(l) = ended {
            let scrub = !l.is_resilver();
            self.end_scan(tx, l, false)?;
            if !scrub {
                self.log_internal(tx, "scan aborted, restarting", "errors=0")?;
            }
        }
        self.background
            .scans
            .restart
            .store(false, Ordering::Release);
        self.begin_scan(tx, Function::Resilver, first, end)?;
        Ok(false)
    }

    /// Leaves that lack txgs outside of those of the resilver under way wait for the next one, and say so on disk. The feature
    /// must be enabled.
    fn defer(&self, tx: &Tx, (min, max): (Txg, Txg)) -> Result<()> {
        let waits = |v: &Arc<Vdev>| {
            let due = self.due_of(v);
            due.is_some_and(|(first, end)| first < min || end > max)
        };
        let new = |v: &Arc<Vdev>| waits(v) && !is_deferred(v);
        for v in self.tree().dtl_holders().into_iter().filter(new) {
            if !self.config.features.is_active(RESILVER_DEFER) {
                self.config.features.activate(tx, RESILVER_DEFER, 1)?;
            }
            v.set(keys::RESILVER_DEFER, disk::Value::Boolean);
            self.dirty_config();
        }
        Ok(())
    }

    /// No leaf waits for another resilver any more.
    fn end_deferral(&self, tx: &Tx) -> Result<()> {
        if !self.config.features.is_active(RESILVER_DEFER) {
            return Ok(());
        }
        let holders = self.tree().dtl_holders();
        holders.iter().for_each(|v| v.unset(keys::RESILVER_DEFER));
        self.dirty_config();
        let count = self.config.features.count(RESILVER_DEFER).unwrap_or(0);
        self.config
            .features
            .activate(tx, RESILVER_DEFER, -i64::try_from(count).unwrap_or(1))
    }

    /// Bytes allocated for blocks, on all devices.
    fn allocated_bytes(&self) -> u64 {
        let s = self.space().stats();
        let classes = [&s.normal, &s.special, &s.dedup, &s.embedded_log];
        classes.iter().map(|c| c.allocated).sum()
    }

    /// Begins a scan of the blocks born behind `min`, up to `max`.
    pub(super) fn begin_scan(&self, tx: &Tx, function: Function, min: Txg, max: Txg) -> Result<()> {
        let mut words = vec![0; WORDS];
        words[word::FUNCTION] = function.number();
        words[word::STATE] = ScanState::Scanning.number();
        words[word::MIN] = min.number();
        words[word::MAX] = max.number();
        words[word::START] = self.seconds();
        words[word::TO_EXAMINE] = self.allocated_bytes();
        words[word::DDT_CLASS_MAX] = match min > Txg::INITIAL {
            true => 0,
            false => DDT_DUPLICATES,
        };
        self.log_internal(
            tx,
            "scan setup",
            &format!("func={} mintxg={min} maxtxg={max}", function.number()),
        )?;
        self.cancel_errors(tx)?;
        if function == Function::Resilver {
            self.forget_rebuilds(tx)?;
            self.end_deferral(tx)?;
        }
        self.background.scans.blocks.set_range(Some((min, max)));
        // Changes of datasets before this moment are none of this scan's.
        drop(self.dsl().take_scan_changes());
        self.records.errlog.set_scanning(true);
        let all = self.tree().all();
        all.iter()
            .for_each(|v| v.stats.scan_bytes.store(0, Ordering::Relaxed));
        self.tree().set_resilvering(function == Function::Resilver);
        let mut live = Live::new(words, At::Mos(None), BTreeMap::new(), self.seconds());
        live.begun = tx.txg();
        let mut place = self.background.scans.live();
        let live = place.insert(live);
        self.store_place(tx, live)?;
        self.dirty_config();
        let what = match function {
            Function::Resilver => Scanning::Resilver,
            _ => Scanning::Scrub,
        };
        self.notice(what, Turned::Started);
        Ok(())
    }
}

/// Whether a leaf waits for another resilver, as its configuration says it.
fn is_deferred(v: &Vdev) -> bool {
    v.config(true).get(keys::RESILVER_DEFER).is_some()
}
