//! Error scrub: reads all copies of the blocks in the error log. Entries of blocks that are whole, or no longer exist, leave the
//! log (behaviour §10.4; record `error_scrub`, pool format §20.2).
//!
//! 1. Slices look the blocks up and scrub them; the step of the txg that follows takes what was found whole off the log and stores
//!    how far the scrub has come, in one txg.
//! 2. The cursor on disk stays 0: after an import all that is still on record is visited, here and in OpenZFS.
//! 3. It excludes a scrub, and a resilver ends it.

use super::{ScanRefusal, Scans};
use crate::jobs::{Budget, Job, Piece, Progress, Step, Subject};
use crate::notices::{Scanning, Turned};
use crate::Pool;
use base::sync::MutexExt;
use base::{bail, Kind, Result, Txg};
use disk::scan::{ErrorScrubState, Function, ERROR_SCRUB, ERROR_SCRUB_WORDS, PAUSED};
use disk::BlkPtr;
use dmu::{Damage, Tx};
use std::collections::VecDeque;
use std::sync::Arc;
use zap::{Value, Zap};
use zio::Scrubbed;

/// Entries that are scrubbed together.
const BATCH: usize = 64;
/// Times a block is looked up that was freed and allocated meanwhile.
const TRIES: u32 = 8;

/// The newest error scrub.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ErrorScrubRecord {
    /// Whether it runs, and how it ended.
    pub state: ErrorScrubState,
    /// Seconds since 1970.
    pub start: u64,
    /// Seconds since 1970; 0 while it runs.
    pub end: u64,
    /// Entries of the log still to be looked at.
    pub to_examine: u64,
    /// Entries of the log looked at.
    pub examined: u64,
    /// Entries whose blocks are still damaged.
    pub errors: u64,
    /// It waits for a user.
    pub paused: bool,
}

impl ErrorScrubRecord {
    fn of(words: &[u64]) -> ErrorScrubRecord {
        let w = |i: usize| words.get(i).copied().unwrap_or(0);
        ErrorScrubRecord {
            state: ErrorScrubState::new(w(1)),
            start: w(3),
            end: w(4),
            to_examine: w(5),
            examined: w(6),
            errors: w(7),
            paused: w(8) & PAUSED != 0,
        }
    }

    /// The record, with a cursor at the beginning of the log.
    fn words(&self) -> [u64; ERROR_SCRUB_WORDS] {
        let flags = if self.paused { PAUSED } else { 0 };
        [
            Function::ErrorScrub.number(),
            self.state.number(),
            0,
            self.start,
            self.end,
            self.to_examine,
            self.examined,
            self.errors,
            flags,
        ]
    }
}

/// An error scrub under way.
#[derive(Default)]
pub(super) struct Errors {
    state: ErrorScrubRecord,
    /// What is to be looked at, with how often that was tried.
    todo: VecDeque<(Damage, u32)>,
    /// Whole or gone since the last step.
    healed: Vec<Damage>,
    /// Looked at since the last step.
    moved: bool,
}

/// What came of looking at an entry.
enum Found {
    /// It can be read, or nobody has the block any more.
    Whole,
    Damaged,
    /// The block was replaced meanwhile.
    Again,
}

/// The job of error scrubs; idle while there is none.
pub(crate) struct ErrorScrubJob(pub Arc<Scans>);

impl Job for ErrorScrubJob {
    fn name(&self) -> &'static str {
        "errorscrub"
    }

    fn step(&self, pool: &Pool, tx: &Tx, _: &Budget) -> Result<Step> {
        pool.step_errors(tx)
    }

    fn instances(&self) -> Vec<Subject> {
        let errors = self.0.errors.acquire();
        errors.iter().map(|_| Subject::Pool).collect()
    }

    fn ready(&self) -> Vec<Subject> {
        let errors = self.0.errors.acquire();
        let wanted = errors
            .iter()
            .filter(|e| !e.state.paused && !e.todo.is_empty());
        wanted.map(|_| Subject::Pool).collect()
    }

    fn piece(&self, pool: &Pool, _: Subject, budget: &Budget) -> Piece {
        match budget.take_blocks(1) && pool.scrub_errors() {
            true => Piece::Walked,
            false => Piece::End,
        }
    }

    fn progress(&self, _: &Pool, _: Subject) -> Result<Progress> {
        let errors = self.0.errors.acquire();
        Ok(errors.as_ref().map_or(Progress::default(), |e| Progress {
            done: e.state.examined,
            total: e.state.examined + e.state.to_examine,
        }))
    }
}

impl Pool {
    /// The newest error scrub, if there ever was one.
    ///
    /// # Errors
    /// Those of reading the record.
    pub fn error_scrub(&self) -> Result<Option<ErrorScrubRecord>> {
        if let Some(e) = self.background.scans.errors.acquire().as_ref() {
            return Ok(Some(e.state));
        }
        let dir = self.mos().hold(1)?;
        let words = Zap::new(&dir).get_value(ERROR_SCRUB)?.map(|v| v.ints());
        let state = words.map(|w| ErrorScrubRecord::of(&w));
        Ok(state.filter(|s| s.state != ErrorScrubState::None))
    }

    fn store_error_scrub(&self, tx: &Tx, state: &ErrorScrubRecord) -> Result<()> {
        let dir = self.mos().hold(1)?;
        Zap::new(&dir).update(tx, ERROR_SCRUB, &Value::u64s(&state.words()))
    }

    /// Goes on with the error scrub that the record on disk describes, when the pool is opened for writing.
    pub(super) fn load_error_scrub(&self) -> Result<()> {
        let Some(mut state) = self
            .error_scrub()?
            .filter(|s| s.state == ErrorScrubState::Scanning)
        else {
            return Ok(());
        };
        let todo = self.errors_to_scrub();
        state.to_examine = todo.len() as u64;
        // What was found damaged is still on record, and is looked at again.
        state.examined = state.examined.saturating_sub(state.errors);
        state.errors = 0;
        *self.background.scans.errors.acquire() = Some(Errors {
            state,
            todo,
            ..Errors::default()
        });
        Ok(())
    }

    fn errors_to_scrub(&self) -> VecDeque<(Damage, u32)> {
        let all = self.records.errlog.all().into_iter();
        all.map(|d| (d, 0)).collect()
    }

    /// Begins an error scrub, or has a paused one go on. On disk when it returns.
    ///
    /// # Errors
    /// `Ok(Err(_))`: it is refused. `Kind::Unsupported`: the pool lacks the feature `head_errlog`. Those of writing the txg.
    pub fn start_error_scrub(
        &self,
        command: (String, u64),
    ) -> Result<std::result::Result<(), ScanRefusal>> {
        if !dsl::Features::is_enabled(&*self.config.features, disk::feature::guid::HEAD_ERRLOG) {
            bail!(Unsupported, "this action requires the head_errlog feature");
        }
        self.task(move |pool, tx| {
            if pool.is_rebuilding() {
                return Ok(Err(ScanRefusal::Resilvering));
            }
            if let Some(l) = pool.background.scans.live().as_ref() {
                return Ok(Err(match (l.is_resilver(), l.is_paused()) {
                    (true, _) => ScanRefusal::Resilvering,
                    (_, true) => ScanRefusal::PausedToCancel,
                    _ => ScanRefusal::Scrubbing,
                }));
            }
            {
                let mut errors = pool.background.scans.errors.acquire();
                match errors.as_mut() {
                    Some(e) if !e.state.paused => return Ok(Err(ScanRefusal::ErrorScrubbing)),
                    Some(e) => {
                        e.state.paused = false;
                        pool.store_error_scrub(tx, &e.state)?;
                        pool.notice(Scanning::ErrorScrub, Turned::Resumed);
                    }
                    None => {
                        let todo = pool.errors_to_scrub();
                        if todo.is_empty() {
                            return Ok(Err(ScanRefusal::NoErrors));
                        }
                        let state = ErrorScrubRecord {
                            state: ErrorScrubState::Scanning,
                            start: pool.seconds(),
                            to_examine: todo.len() as u64,
                            ..ErrorScrubRecord::default()
                        };
                        pool.store_error_scrub(tx, &state)?;
                        pool.notice(Scanning::ErrorScrub, Turned::Started);
                        *errors = Some(Errors {
                            state,
                            todo,
                            ..Errors::default()
                        });
                    }
                }
            }
            pool.log_in(tx, &command.0, command.1)?;
            Ok(Ok(()))
        })
    }

    /// In syncing context: pauses the error scrub under way, or ends it. `None`: there is none.
    pub(super) fn pause_errors(&self, tx: &Tx) -> Result<Option<ScanRefusal>> {
        let (healed, state) = {
            let mut errors = self.background.scans.errors.acquire();
            let Some(e) = errors.as_mut() else {
                return Ok(Some(ScanRefusal::NoScrub));
            };
            if e.state.paused {
                return Ok(Some(ScanRefusal::ErrorScrubPaused));
            }
            e.state.paused = true;
            (std::mem::take(&mut e.healed), e.state)
        };
        self.remove_errors(tx, &healed)?;
        self.store_error_scrub(tx, &state)?;
        self.notice(Scanning::ErrorScrub, Turned::Paused);
        Ok(None)
    }

    /// In syncing context: ends the error scrub under way; false: there is none.
    pub(super) fn stop_errors(&self, tx: &Tx, state: ErrorScrubState) -> Result<bool> {
        let Some(mut e) = self.background.scans.errors.acquire().take() else {
            return Ok(false);
        };
        self.remove_errors(tx, &e.healed)?;
        e.state.state = state;
        e.state.end = self.seconds();
        e.state.paused = false;
        self.store_error_scrub(tx, &e.state)?;
        let (event, turned) = match state {
            ErrorScrubState::Finished => ("error scrub done", Turned::Finished),
            _ => ("error scrub cancelled", Turned::Aborted),
        };
        self.notice(Scanning::ErrorScrub, turned);
        self.log_internal(tx, event, &format!("errors={}", e.state.errors))?;
        Ok(true)
    }

    /// In syncing context: ends the error scrub because a resilver begins.
    pub(super) fn cancel_errors(&self, tx: &Tx) -> Result<()> {
        self.stop_errors(tx, ErrorScrubState::Canceled).map(drop)
    }

    /// Whether an error scrub is under way: why something else may not begin.
    pub(super) fn errors_refuse(&self) -> Option<ScanRefusal> {
        let errors = self.background.scans.errors.acquire();
        errors.as_ref().map(|e| match e.state.paused {
            true => ScanRefusal::ErrorScrubPaused,
            false => ScanRefusal::ErrorScrubbing,
        })
    }

    /// The part of an error scrub in a txg.
    fn step_errors(&self, tx: &Tx) -> Result<Step> {
        let (healed, state, done) = {
            let mut errors = self.background.scans.errors.acquire();
            let Some(e) = errors.as_mut().filter(|e| !e.state.paused) else {
                return Ok(Step::Idle);
            };
            let moved = std::mem::take(&mut e.moved);
            let done = e.todo.is_empty() && e.state.to_examine == 0;
            if !moved && !done {
                return Ok(Step::Idle);
            }
            (std::mem::take(&mut e.healed), e.state, done)
        };
        self.remove_errors(tx, &healed)?;
        if done {
            self.stop_errors(tx, ErrorScrubState::Finished)?;
            return Ok(Step::More);
        }
        self.store_error_scrub(tx, &state)?;
        Ok(Step::Idle)
    }

    /// Scrubs a batch of entries; false: none is left, or none may be looked at now.
    fn scrub_errors(&self) -> bool {
        let batch: Vec<(Damage, u32)> = {
            let mut errors = self.background.scans.errors.acquire();
            let Some(e) = errors.as_mut().filter(|e| !e.state.paused) else {
                return false;
            };
            let n = BATCH.min(e.todo.len());
            e.todo.drain(..n).collect()
        };
        if batch.is_empty() {
            return false;
        }
        let found: Vec<Found> = batch.iter().map(|(d, _)| self.scrub_error(d)).collect();
        let mut errors = self.background.scans.errors.acquire();
        // Another one may have begun, or this one was stopped.
        let Some(e) = errors.as_mut() else {
            return false;
        };
        for ((d, tries), f) in batch.into_iter().zip(found) {
            match f {
                Found::Again if tries < TRIES => {
                    e.todo.push_back((d, tries + 1));
                    continue;
                }
                Found::Whole => e.healed.push(d),
                Found::Damaged | Found::Again => e.state.errors += 1,
            }
            e.state.examined += 1;
            e.state.to_examine = e.state.to_examine.saturating_sub(1);
            e.moved = true;
        }
        true
    }

    fn scrub_error(&self, d: &Damage) -> Found {
        // Before the block is looked up: it was in use then.
        let lease = self.zio().lease();
        match self.pointers_of(d) {
            Ok(bps) if bps.is_empty() => Found::Whole,
            Ok(bps) => {
                let done = self.zio().scrub(&bps, lease);
                for r in &done {
                    if let Scrubbed::Whole { behind, .. } | Scrubbed::Lost { behind, .. } = r {
                        self.note_behind(behind);
                    }
                }
                if done.iter().any(|r| matches!(r, Scrubbed::Stale)) {
                    return Found::Again;
                }
                match done.iter().all(|r| matches!(r, Scrubbed::Whole { .. })) {
                    true => Found::Whole,
                    false => Found::Damaged,
                }
            }
            // What leads to it is damaged, and on record itself.
            Err(_) => Found::Damaged,
        }
    }

    /// The block an entry speaks of, in one of the datasets that have it; none if it is gone.
    fn pointers_of(&self, d: &Damage) -> Result<Vec<BlkPtr>> {
        if d.objset == 0 {
            let bp = match d.level < 0 {
                true => Some(self.mos().root()),
                false => gone(self.mos().pointer_of(d.object, d.level, d.blkid))?,
            };
            return Ok(bp.into_iter().collect());
        }
        let datasets = match d.birth {
            Txg::NONE => vec![d.objset],
            _ => self.sharers(d),
        };
        for object in datasets {
            let Some(ds) = gone(self.dataset_by_object(object).map(Some))? else {
                continue;
            };
            if d.level < 0 {
                return Ok(vec![ds.phys().bp]);
            }
            let os = ds.open_objset(self.write_policy(&ds)?, ds.is_snapshot())?;
            if let Some(bp) = gone(os.pointer_of(d.object, d.level, d.blkid))? {
                return Ok(vec![bp]);
            }
        }
        Ok(Vec::new())
    }
}

/// What is not there any more is nothing.
fn gone<T>(r: Result<Option<T>>) -> Result<Option<T>> {
    match r {
        Err(e) if e.kind == Kind::NotFound => Ok(None),
        r => r,
    }
}
