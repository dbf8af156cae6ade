//! Sequential rebuild: allocated ranges of a mirror or dRAID are copied, in order of offset, to the devices that
//! `zpool attach -s` or `zpool replace -s` put there (behaviour §10.3, pool format §20.4). Checksums are not verified; a scrub
//! follows.
//!
//! Invariants:
//!
//! 1. Only ranges allocated in txgs that are on disk are copied ([`space::Space::settled`]), and no txg begins to be written
//!    meanwhile. So none of them is given to another block, and none is written by the syncing thread.
//! 2. It begins when every txg that the new devices lack is on disk. What is allocated later is written to them anyway.
//! 3. The place on disk lies in front of everything that was not copied. A copy is flushed with the txg that stores the place.
//! 4. A DTL is emptied only if no range failed, and only for devices that lack nothing later.
//! 5. Rebuilds and resilvers exclude each other. Several top-level vdevs may be rebuilt at a time.
//!
//! Locks: `Rebuilds::live` is a leaf lock.

use super::hull;
use super::record::Rebuild;
use crate::jobs::{Budget, Job, Piece, Priority, Progress, Step, Subject, BLOCK};
use crate::notices::{Scanning, Turned};
use crate::Pool;
use base::mutation::{mutated, Mutation};
use base::sync::MutexExt;
use base::{Result, Txg};
use disk::feature::guid;
use disk::mos_keys::VDEV_REBUILD;
use disk::scan::{rebuild_word as word, Function, RebuildState, REBUILD_WORDS as WORDS};
use dmu::Tx;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use vdev::{keys, Vdev};
use zap::{Value, Zap};

/// Bytes of a vdev that are copied by one call, unless its smallest piece is larger. Reading and writing overlap within a call, and
/// no txg is written meanwhile: 0.4 s at 150 MB/s.
const BATCH: u64 = 64 << 20;

/// A rebuild under way.
struct Live {
    words: [u64; WORDS],
    /// Tells it from other rebuilds.
    number: u64,
    pass: Pass,
    /// How far it has copied; the word that is stored follows.
    at: u64,
    /// The txg that the last copies are flushed with. No earlier one may say that they were made.
    copied_in: Txg,
    /// It has come further since the record was stored.
    moved: bool,
    /// Everything was copied, in a txg before this one.
    complete: bool,
}

/// Progress since the import, or since it began.
#[derive(Clone, Copy, Default)]
struct Pass {
    /// Monotonic nanoseconds.
    start: u64,
    /// Milliseconds of passes before.
    before: u64,
    scanned: u64,
    issued: u64,
    skipped: u64,
}

impl Live {
    fn new(words: [u64; WORDS], number: u64, now_ns: u64) -> Live {
        Live {
            words,
            number,
            pass: Pass {
                start: now_ns,
                before: words[word::TIME],
                ..Pass::default()
            },
            at: words[word::LAST],
            copied_in: Txg::NONE,
            moved: false,
            complete: false,
        }
    }

    fn pass_ms(&self, now_ns: u64) -> u64 {
        now_ns.saturating_sub(self.pass.start) / 1_000_000
    }
}

/// The rebuilds of one pool.
#[derive(Default)]
pub(crate) struct Rebuilds {
    /// By id of the top-level vdev.
    live: Mutex<BTreeMap<u64, Live>>,
    /// Numbers given to rebuilds.
    numbers: std::sync::atomic::AtomicU64,
}

impl Rebuilds {
    fn live(&self) -> MutexGuard<'_, BTreeMap<u64, Live>> {
        self.live.acquire()
    }

    /// Whether any rebuild runs.
    pub fn is_active(&self) -> bool {
        !self.live().is_empty()
    }

    fn number(&self) -> u64 {
        let one = std::sync::atomic::Ordering::Relaxed;
        self.numbers.fetch_add(1, one)
    }
}

/// What a look at the next piece of a rebuild gave.
struct Portion {
    number: u64,
    /// Byte ranges to be copied: offset and length.
    ranges: Vec<(u64, u64)>,
    /// Everything before it is copied then.
    next: u64,
}

/// The job of rebuilds; idle while there is none.
pub(crate) struct RebuildJob(pub Arc<Rebuilds>);

impl Job for RebuildJob {
    fn name(&self) -> &'static str {
        "rebuild"
    }

    fn step(&self, pool: &Pool, tx: &Tx, _: &Budget) -> Result<Step> {
        pool.step_rebuilds(tx)
    }

    fn priority(&self) -> Priority {
        Priority::High
    }

    fn instances(&self) -> Vec<Subject> {
        self.0.live().keys().map(|id| Subject::Vdev(*id)).collect()
    }

    fn ready(&self) -> Vec<Subject> {
        let live = self.0.live();
        let wanted = live.iter().filter(|(_, l)| !l.complete);
        wanted.map(|(id, _)| Subject::Vdev(*id)).collect()
    }

    fn piece(&self, pool: &Pool, of: Subject, budget: &Budget) -> Piece {
        match of {
            Subject::Vdev(id) if pool.rebuild_piece(id, budget) => Piece::Done,
            _ => Piece::End,
        }
    }

    fn progress(&self, _: &Pool, of: Subject) -> Result<Progress> {
        let live = self.0.live();
        let Subject::Vdev(id) = of else {
            return Ok(Progress::default());
        };
        Ok(live.get(&id).map_or(Progress::default(), |l| Progress {
            done: l.words[word::SCANNED],
            total: l.words[word::ESTIMATE].max(l.words[word::SCANNED]),
        }))
    }
}

impl Pool {
    /// Whether a sequential rebuild is under way.
    pub fn is_rebuilding(&self) -> bool {
        self.background.rebuilds.is_active()
    }

    /// The rebuild under way of top-level vdev `id`.
    pub(super) fn live_rebuild(&self, id: u64) -> Option<Rebuild> {
        let live = self.background.rebuilds.live();
        let l = live.get(&id)?;
        Some(Rebuild {
            pass_ms: l.pass_ms(self.env.clock.monotonic_ns()),
            pass_scanned: l.pass.scanned,
            pass_issued: l.pass.issued,
            pass_skipped: l.pass.skipped,
            ..Rebuild::of(id, &l.words)
        })
    }

    /// Begins to rebuild top-level vdev `id`, to which a device was attached that lacks everything before txg `max`; one that is
    /// under way there begins anew.
    pub(crate) fn begin_rebuild(&self, tx: &Tx, id: u64, max: Txg) -> Result<()> {
        let top = self.tree().top(id)?;
        let again = self.background.rebuilds.live().contains_key(&id);
        if !again {
            self.config.features.activate(tx, guid::DEVICE_REBUILD, 1)?;
        }
        let mut words = [0; WORDS];
        words[word::STATE] = RebuildState::Active.number();
        words[word::MIN] = Txg::INITIAL.before(1).number();
        words[word::MAX] = max.number();
        words[word::START] = self.seconds();
        words[word::ESTIMATE] = self.allocated_on(id);
        let now = self.env.clock.monotonic_ns();
        let live = Live::new(words, self.background.rebuilds.number(), now);
        self.store_rebuild(tx, &top, &words)?;
        self.background.rebuilds.live().insert(id, live);
        self.tree().set_resilvering(true);
        self.tell_of_rebuild(tx, &top, if again { "reset" } else { "started" })?;
        if !again {
            self.notice(Scanning::Rebuild(id), Turned::Started);
        }
        for v in top.dtl_holders() {
            v.stats
                .scan_bytes
                .store(0, std::sync::atomic::Ordering::Relaxed);
        }
        Ok(())
    }

    /// Bytes allocated on a top-level vdev.
    pub(crate) fn allocated_on(&self, id: u64) -> u64 {
        let s = self.space().stats();
        let one = s.vdevs.iter().find(|v| v.id == id);
        one.map_or(0, |v| v.allocated)
    }

    fn tell_of_rebuild(&self, tx: &Tx, top: &Vdev, what: &str) -> Result<()> {
        let text = format!("vdev_id={} vdev_guid={} {what}", top.id(), top.guid());
        self.log_internal(tx, "rebuild", &text)
    }

    fn store_rebuild(&self, tx: &Tx, top: &Vdev, words: &[u64; WORDS]) -> Result<()> {
        let Some(zap) = top.get_u64(keys::ZAP_TOP).filter(|z| *z != 0) else {
            return Ok(());
        };
        let dn = self.mos().hold(zap)?;
        Zap::new(&dn).update(tx, VDEV_REBUILD, &Value::u64s(words))
    }

    /// A resilver begins: it is newer than all rebuilds.
    pub(super) fn forget_rebuilds(&self, tx: &Tx) -> Result<()> {
        for r in self.rebuilds() {
            self.store_rebuild(tx, &*self.tree().top(r.vdev)?, &[0; WORDS])?;
        }
        Ok(())
    }

    /// Goes on with the rebuilds that were under way when the pool was left.
    pub(super) fn load_rebuilds(&self) {
        let now = self.env.clock.monotonic_ns();
        for top in self.tree().tops().iter() {
            let found = self.rebuild_words(top);
            let Some(words) = found.and_then(|w| <[u64; WORDS]>::try_from(w).ok()) else {
                continue;
            };
            if RebuildState::new(words[word::STATE]) == RebuildState::Active {
                let live = Live::new(words, self.background.rebuilds.number(), now);
                self.background.rebuilds.live().insert(top.id(), live);
                self.tree().set_resilvering(true);
            }
        }
    }

    /// What is to be copied next; `None`: nothing, or not now.
    fn next_of_rebuild(&self, top: &Vdev) -> Option<Portion> {
        let id = top.id();
        let (number, from, max) = {
            let live = self.background.rebuilds.live();
            let l = live.get(&id).filter(|l| !l.complete)?;
            (l.number, l.at, Txg::new(l.words[word::MAX]))
        };
        // Only then all that is lacked is on disk.
        if self.dmu().synced_txg().after(1) < max {
            return None;
        }
        let ms = from.checked_shr(top.metaslab_shift())?;
        if ms >= self.space().metaslab_count(id) {
            return None;
        }
        let (_, end) = self.space().metaslab_bounds(id, ms).ok()?;
        let next = (ms + 1) << top.metaslab_shift();
        let Ok(settled) = self.space().settled(id, ms, from, end) else {
            return Some(Portion {
                number,
                ranges: Vec::new(),
                next: from,
            });
        };
        let row = top.alloc_unit().max(1);
        let most = BATCH.min(self.config.tunables.job_bytes);
        let unit = top.rebuild_unit().min(most.next_multiple_of(row));
        let most = most.max(unit);
        let (mut ranges, mut sum) = (Vec::new(), 0);
        for (start, stop) in settled {
            let mut at = start;
            while at < stop {
                let n = unit.min(stop - at);
                if sum + n > most {
                    return Some(Portion {
                        number,
                        next: at,
                        ranges,
                    });
                }
                ranges.push((at, n));
                sum += n;
                at += n;
            }
        }
        if mutated(Mutation::RebuildSkipsLastRange) {
            ranges.pop();
        }
        Some(Portion {
            number,
            ranges,
            next,
        })
    }

    /// Copies the next piece of a top-level vdev; false: there is none, or it cannot be copied now.
    fn rebuild_piece(&self, id: u64, budget: &Budget) -> bool {
        let Some(top) = self.tree().top(id).ok().filter(|t| t.state().usable()) else {
            return false;
        };
        // Not with the lock held: reading the map may mend blocks.
        let from = self.background.rebuilds.live().get(&id).map(|l| l.at);
        let ms = from.and_then(|f| f.checked_shr(top.metaslab_shift()));
        let Some(ms) = ms.filter(|m| *m < self.space().metaslab_count(id)) else {
            return false;
        };
        let loaded = budget.read_for_itself(|| self.space().ensure_loaded(id, ms));
        let unreadable = loaded.is_err();
        let no_new_txg = self.zio().hold_txgs();
        let Some(mut piece) = self.next_of_rebuild(&top) else {
            return false;
        };
        if unreadable {
            piece.ranges.clear();
            piece.next = (ms + 1) << top.metaslab_shift();
        } else if piece.ranges.is_empty() && Some(piece.next) == from {
            // The map was dropped from memory meanwhile.
            return true;
        }
        let scanned: u64 = piece.ranges.iter().map(|(_, n)| n).sum();
        if !budget.take(scanned.max(BLOCK)) {
            return false;
        }
        let txg = self.dmu().open_txg();
        let done = self.tree().rebuild(id, &piece.ranges, txg);
        if !self.tree().top(id).is_ok_and(|t| t.state().usable()) {
            // It waits for its devices, and goes on here.
            return false;
        }
        let (done, mut errors) = match done {
            Ok(done) => (done, 0),
            Err(_) => (Vec::new(), piece.ranges.len() as u64),
        };
        errors += u64::from(unreadable) + done.iter().filter(|r| r.failed).count() as u64;
        let sizes = piece.ranges.iter().map(|(_, n)| n);
        let skipped: u64 = sizes
            .zip(&done)
            .filter(|(_, r)| r.skipped)
            .map(|(n, _)| n)
            .sum();
        let written: u64 = done.iter().map(|r| r.written).sum();
        let mut live = self.background.rebuilds.live();
        let Some(l) = live.get_mut(&id).filter(|l| l.number == piece.number) else {
            return true;
        };
        let issued = scanned.saturating_sub(skipped);
        for (word, n) in [
            (word::SCANNED, scanned),
            (word::ISSUED, issued),
            (word::REBUILT, written),
            (word::ERRORS, errors),
        ] {
            // What they were was read from disk.
            l.words[word] = l.words[word].saturating_add(n);
        }
        l.pass.scanned += scanned;
        l.pass.issued += issued;
        l.pass.skipped += skipped;
        l.at = piece.next;
        l.copied_in = l.copied_in.max(txg);
        l.moved = true;
        // The next txg that is written stores it.
        drop(live);
        drop(no_new_txg);
        true
    }

    /// The part of the rebuilds in a txg.
    fn step_rebuilds(&self, tx: &Tx) -> Result<Step> {
        let ids: Vec<u64> = self.background.rebuilds.live().keys().copied().collect();
        let mut more = false;
        for id in ids {
            let top = self.tree().top(id)?;
            let wanted = top.dtl_holders().iter().any(|v| v.is_rebuilt());
            let (words, complete) = {
                let mut live = self.background.rebuilds.live();
                let Some(l) = live.get_mut(&id) else { continue };
                let ms = l.pass_ms(self.env.clock.monotonic_ns());
                l.words[word::TIME] = l.pass.before.saturating_add(ms);
                let flushed = l.copied_in <= tx.txg();
                if flushed {
                    l.words[word::LAST] = l.at;
                }
                let at_end =
                    l.words[word::LAST] >> top.metaslab_shift() >= self.space().metaslab_count(id);
                let at_end = at_end || (l.moved && mutated(Mutation::RebuildEndsEarly));
                // What was written to the devices is flushed with this txg; only then they have it.
                let complete = l.complete;
                l.complete |= at_end;
                more |= l.complete || tx.txg().after(1) < Txg::new(l.words[word::MAX]);
                let store = l.moved && flushed || complete;
                l.moved &= !flushed;
                more |= l.moved;
                (store.then_some(l.words), complete)
            };
            if complete || !wanted {
                let ended = self.background.rebuilds.live().remove(&id);
                if let Some(l) = ended {
                    self.end_rebuild(tx, &top, l.words, complete)?;
                }
                more = true;
                continue;
            }
            if let Some(words) = words {
                self.store_rebuild(tx, &top, &words)?;
            }
        }
        Ok(match more {
            true => Step::More,
            false => Step::Idle,
        })
    }

    /// Ends the rebuild of a top-level vdev that is about to leave.
    pub(crate) fn cancel_rebuild(&self, tx: &Tx, top: &Arc<Vdev>) -> Result<()> {
        let ended = self.background.rebuilds.live().remove(&top.id());
        match ended {
            Some(l) => self.end_rebuild(tx, top, l.words, false),
            None => Ok(()),
        }
    }

    /// Ends a rebuild. `complete`: everything was copied; otherwise there is nobody left to be filled.
    fn end_rebuild(
        &self,
        tx: &Tx,
        top: &Arc<Vdev>,
        mut words: [u64; WORDS],
        complete: bool,
    ) -> Result<()> {
        let state = match complete {
            true => RebuildState::Complete,
            false => RebuildState::Canceled,
        };
        words[word::STATE] = state.number();
        words[word::END] = self.seconds();
        self.store_rebuild(tx, top, &words)?;
        self.config
            .features
            .activate(tx, guid::DEVICE_REBUILD, -1)?;
        if complete && words[word::ERRORS] == 0 {
            for v in top.dtl_holders().iter().filter(|v| v.is_rebuilt()) {
                let max = Txg::new(words[word::MAX]);
                let usable = v.state().usable();
                let filled = v.edit_dtl(|lacks| {
                    // Copies of removals are allocated, so they were copied along.
                    let covered =
                        hull(lacks, &base::RangeSet::new()).is_some_and(|(_, end)| end <= max);
                    if covered && usable {
                        *lacks = base::RangeSet::new();
                    }
                    covered && usable
                });
                if filled {
                    self.is_filled(v);
                }
            }
        }
        self.tree()
            .set_resilvering(self.background.rebuilds.is_active());
        self.tell_of_rebuild(tx, top, if complete { "complete" } else { "canceled" })?;
        self.notice(Scanning::Rebuild(top.id()), Turned::Finished);
        if complete && !self.background.rebuilds.is_active() {
            self.scrub_what_was_copied(tx)?;
        }
        Ok(())
    }

    /// Nothing looked at checksums: a scrub does, unless devices lack something still.
    pub(crate) fn scrub_what_was_copied(&self, tx: &Tx) -> Result<()> {
        let idle = self.background.scans.live().is_none() && self.errors_refuse().is_none();
        match idle && self.due_resilver().is_none() {
            true => self.begin_scan(tx, Function::Scrub, Txg::NONE, tx.txg()),
            false => Ok(()),
        }
    }

    /// A leaf lacks nothing any more: neither a resilver nor a rebuild fills it.
    pub(super) fn is_filled(&self, v: &Vdev) {
        if v.dtl_is_empty() {
            for key in [keys::RESILVER_TXG, keys::REBUILD_TXG] {
                if v.get_u64(key).is_some() {
                    v.unset(key);
                    self.dirty_config();
                }
            }
        }
    }
}
