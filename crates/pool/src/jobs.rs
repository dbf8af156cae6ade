//! Background work of a pool: jobs that take many txgs.
//!
//! A [`Job`] is work that cannot be done in one txg: freeing what was destroyed, scrub, resilver, rebuild, trim,
//! initialize, and later removal of a vdev, discarding a checkpoint. The pool keeps a registry of its jobs ([`Jobs`]) and gives each
//! of them a [`Budget`] in every txg it writes. Two kinds of work have the same interface:
//!
//! * *Work in syncing context only* (freeing, discarding): [`Job::step`] does it, until its budget is spent.
//!   [`Step::More`] asks for a further txg at once.
//! * *Work that reads in the background* (scrub, resilver, copying for a removal): [`Job::reads`] says that there is
//!   something to read. The pool then has [`Job::read`] called once by another thread ([`env::Cpu::later`]), for one
//!   slice, and writes a txg when it returns. [`Job::step`] of that txg takes over what was read and stores how far the
//!   job has come; the next slice follows. So a slice and a txg alternate, and what the slice reads is never older
//!   than two txgs when it is stored.
//!
//! Invariants:
//!
//! 1. A job has no state on disk of its own invention. `step` persists it in OpenZFS's structures for that work (freeing:
//!    `free_bpobj` and `bptree_obj`; scrub: the record `scan`), in the txg whose changes it describes. So a crash
//!    between any two txgs loses at most work, and OpenZFS can finish the job.
//! 2. After [`Jobs::stop`] (export, closing, a stopped pool) every budget is spent: a step or slice under way ends before
//!    its next block.
//! 3. A paused job gets neither steps nor slices.
//! 4. A job with nothing to do costs a call of `step` in txgs that are written anyway. It causes no txg, no timer and no
//!    thread.
//! 5. An error of `step` fails the txg and stops the pool, as any error in syncing context does. `read` returns no error:
//!    the job keeps what went wrong for its next step.
//!
//! Locks: [`Jobs`]' list and the times of an entry are leaf locks; no job is called with one of them held. `step` runs on the syncing
//! thread, which holds the lock of [`crate::sync::SyncState`]. `read` holds no lock of the pool and must not wait for a
//! txg: in the simulator it runs on the syncing thread.

use crate::Pool;
use base::sync::{MutexExt, OnPanic};
use base::{bail, Result};
use dmu::{Driver, Tx};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// What a step leaves to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing at the moment. The job stays registered.
    Idle,
    /// Something is left: a further txg is to follow.
    More,
    /// The job is over and leaves the registry.
    Finished,
}

/// How far a job has come, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Bytes done.
    pub done: u64,
    /// At least `done`. May grow while the job runs.
    pub total: u64,
}

/// Work that takes many txgs; see the module.
pub trait Job: Send + Sync {
    /// Unique in the pool, and what commands call the job: one word in lower case, as `zpool wait -t` has it.
    fn name(&self) -> &'static str;

    /// Does a part of the work in syncing context and stores how far the job is. Asks `budget` before every block.
    ///
    /// # Errors
    /// They fail the txg.
    fn step(&self, pool: &Pool, tx: &Tx, budget: &Budget) -> Result<Step>;

    /// Whether the next slice of [`Job::read`] is wanted now.
    fn reads(&self) -> bool {
        false
    }

    /// Reads a slice outside syncing context. Asks `budget` before every block. A txg follows.
    fn read(&self, pool: &Pool, budget: &Budget) {
        let _ = (pool, budget);
    }

    /// Whether a txg is to follow a slice, for what [`Job::step`] stores.
    fn stores(&self) -> bool {
        true
    }

    /// How far the job has come. Called by any thread.
    ///
    /// # Errors
    /// Those of reading the job's structures.
    fn progress(&self, pool: &Pool) -> Result<Progress>;

    /// Stores in syncing context that the job is paused or goes on, where its structure on disk can say so (the flags of a
    /// scan). The default is for structures that cannot: a pause ends with the import then.
    ///
    /// # Errors
    /// They are the caller's of [`Pool::pause_job`]; nothing may have been changed.
    fn store_pause(&self, pool: &Pool, tx: &Tx, paused: bool) -> Result<()> {
        let _ = (pool, tx, paused);
        Ok(())
    }
}

/// What a step or slice may use up.
pub struct Budget<'a> {
    pool: &'a Pool,
    paused: &'a AtomicBool,
    blocks: AtomicU64,
    taken: AtomicU64,
    /// On the monotonic clock, nanoseconds: end if a thread waits for the txg, end in any case.
    soon: u64,
    end: u64,
}

/// Blocks after which the clock is looked at again.
const CLOCK_EVERY: u64 = 32;
/// Time of all jobs together in a txg that a thread waits for.
const SOON: Duration = Duration::from_secs(1);
/// Time of all jobs together in any txg, and of a slice: as long as a txg stays open when nobody asks for it.
const LONGEST: Duration = Duration::from_secs(5);

impl<'a> Budget<'a> {
    /// `sharers`: jobs that share the time of a txg, at least 1.
    fn new(pool: &'a Pool, paused: &'a AtomicBool, sharers: u64) -> Budget<'a> {
        let now = pool.env.clock.monotonic_ns();
        let after = |d: Duration| now.saturating_add(d.as_nanos() as u64 / sharers);
        Budget {
            pool,
            paused,
            blocks: AtomicU64::new(pool.config.tunables.job_blocks),
            taken: AtomicU64::new(0),
            soon: after(SOON),
            end: after(LONGEST),
        }
    }

    /// Asks whether `blocks` further blocks may be handled, and takes them; false: the step has to end before them. 0 asks
    /// without taking. More than is left may be taken at once, so that a piece that cannot be divided gets done.
    pub fn take(&self, blocks: u64) -> bool {
        if self.pool.background.jobs.is_stopped() || self.paused.load(Ordering::Relaxed) {
            return false;
        }
        let left = self.blocks.load(Ordering::Relaxed);
        if left == 0 {
            return false;
        }
        let before = self.taken.fetch_add(blocks, Ordering::Relaxed);
        let crossed = before / CLOCK_EVERY != before.saturating_add(blocks) / CLOCK_EVERY;
        if (crossed || blocks == 0) && before > 0 && self.is_late() {
            self.blocks.store(0, Ordering::Relaxed);
            return false;
        }
        self.blocks
            .store(left.saturating_sub(blocks), Ordering::Relaxed);
        true
    }

    fn is_late(&self) -> bool {
        let now = self.pool.env.clock.monotonic_ns();
        now >= self.end || (now >= self.soon && self.pool.is_waited_for())
    }
}

/// What a job is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobState {
    /// It gets a budget in each txg.
    Running,
    /// It gets none, by an operation or because the pool is being exported.
    Paused,
}

/// A job as commands show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobStatus {
    /// See [`Job::name`].
    pub name: &'static str,
    /// Whether it runs.
    pub state: JobState,
    /// How far it has come.
    pub progress: Progress,
    /// When it began, or went on after the import: seconds since 1970; 0: it has not begun yet.
    pub started: u64,
    /// Nanoseconds it has run since then, pauses left out.
    pub ran_ns: u64,
    /// Bytes of [`Progress::done`] since then; divided by `ran_ns` they are the rate.
    pub ran_done: u64,
}

#[derive(Default)]
struct Times {
    started: u64,
    /// [`Progress::done`] at that moment.
    done_before: u64,
    ran_ns: u64,
    /// On the monotonic clock, while it runs.
    since: Option<u64>,
}

struct Entry {
    job: Arc<dyn Job>,
    paused: AtomicBool,
    /// It wants a txg: something is left, or it has not been asked yet.
    more: AtomicBool,
    /// A slice is under way or waits for a thread.
    reading: AtomicBool,
    times: Mutex<Times>,
}

impl Entry {
    fn new(job: Arc<dyn Job>) -> Arc<Entry> {
        Arc::new(Entry {
            job,
            paused: AtomicBool::new(false),
            more: AtomicBool::new(true),
            reading: AtomicBool::new(false),
            times: Mutex::default(),
        })
    }

    fn is_paused(&self) -> bool {
        self.paused.load(Ordering::Relaxed)
    }

    fn wants_txg(&self) -> bool {
        self.more.load(Ordering::Relaxed) && !self.is_paused()
    }

    fn wants_slice(&self) -> bool {
        !self.is_paused() && !self.reading.load(Ordering::Relaxed) && self.job.reads()
    }

    /// The job has work from now on, or none.
    fn set_active(&self, pool: &Pool, active: bool) -> Result<()> {
        if !active {
            *self.times.acquire() = Times::default();
            return Ok(());
        }
        if self.times.acquire().started != 0 {
            return Ok(());
        }
        let done_before = self.job.progress(pool)?.done;
        *self.times.acquire() = Times {
            started: pool.env.clock.now().0.max(1) as u64,
            done_before,
            ran_ns: 0,
            since: Some(pool.env.clock.monotonic_ns()),
        };
        Ok(())
    }

    fn set_paused(&self, pool: &Pool, paused: bool) {
        let now = pool.env.clock.monotonic_ns();
        let mut t = self.times.acquire();
        self.paused.store(paused, Ordering::Relaxed);
        if paused {
            t.ran_ns += t.since.take().map_or(0, |s| now.saturating_sub(s));
        } else if t.started != 0 {
            t.since.get_or_insert(now);
        }
    }
}

/// The jobs of one pool.
pub(crate) struct Jobs {
    list: Mutex<Vec<Arc<Entry>>>,
    stopped: AtomicBool,
}

impl Jobs {
    /// With the jobs every pool has.
    pub fn new(standing: Vec<Arc<dyn Job>>) -> Jobs {
        Jobs {
            list: Mutex::new(standing.into_iter().map(Entry::new).collect()),
            stopped: AtomicBool::new(false),
        }
    }

    fn entries(&self) -> Vec<Arc<Entry>> {
        self.list.acquire().clone()
    }

    /// Ends steps and slices under way before their next block, and lets none begin.
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
    }

    /// Undoes [`Jobs::stop`]: an export failed.
    pub fn go_on(&self) {
        self.stopped.store(false, Ordering::Release);
    }

    fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    /// Whether a job wants a txg although nothing else does.
    pub fn want_txg(&self) -> bool {
        !self.is_stopped() && self.list.acquire().iter().any(|e| e.wants_txg())
    }
}

impl Pool {
    /// Registers a job. Its first step is in the next txg.
    ///
    /// # Errors
    /// `Kind::Exists`: there is a job of that name. `Kind::ReadOnly`.
    pub fn add_job(&self, job: Arc<dyn Job>) -> Result<()> {
        if self.is_readonly() {
            bail!(ReadOnly, "pool '{}' is imported read-only", self.name());
        }
        {
            let mut list = self.background.jobs.list.acquire();
            if list.iter().any(|e| e.job.name() == job.name()) {
                bail!(
                    Exists,
                    "job '{}' of pool '{}' is under way already",
                    job.name(),
                    self.name()
                );
            }
            list.push(Entry::new(job));
        }
        self.kick();
        Ok(())
    }

    /// The jobs that have something to do, and those that are paused.
    ///
    /// # Errors
    /// Those of [`Job::progress`].
    pub fn jobs(&self) -> Result<Vec<JobStatus>> {
        let mut out = Vec::new();
        for e in self.background.jobs.entries() {
            let (started, done_before, ran_ns) = {
                let t = e.times.acquire();
                let now = self.env.clock.monotonic_ns();
                let run = t.since.map_or(0, |s| now.saturating_sub(s));
                (t.started, t.done_before, t.ran_ns + run)
            };
            if started == 0 && !e.is_paused() {
                continue;
            }
            let progress = e.job.progress(self)?;
            out.push(JobStatus {
                name: e.job.name(),
                state: match e.is_paused() {
                    true => JobState::Paused,
                    false => JobState::Running,
                },
                progress,
                started,
                ran_ns,
                ran_done: progress.done.saturating_sub(done_before),
            });
        }
        Ok(out)
    }

    /// Pauses a job (`paused`) or lets it go on; on disk when it returns, as far as the job can store it. No step is done
    /// after a pause; a slice under way ends before its next block.
    ///
    /// # Errors
    /// `Kind::NotFound`: there is no such job. Those of [`Job::store_pause`] and of writing the txg.
    pub fn pause_job(&self, name: &str, paused: bool) -> Result<()> {
        let found = self.background.jobs.entries().into_iter();
        let Some(e) = found.filter(|e| e.job.name() == name).last() else {
            bail!(NotFound, "pool '{}' has no job '{name}'", self.name());
        };
        self.task(move |pool, tx| {
            e.job.store_pause(pool, tx, paused)?;
            e.set_paused(pool, paused);
            Ok(())
        })
    }

    /// The jobs' part of a txg, when its tasks are done.
    pub(crate) fn step_jobs(&self, tx: &Tx) -> Result<()> {
        let entries = self.background.jobs.entries();
        let busy = entries.iter().filter(|e| e.wants_txg()).count() as u64;
        for e in &entries {
            if e.is_paused() || self.background.jobs.is_stopped() {
                continue;
            }
            base::mutation::panic_point("before a step of a job");
            let budget = Budget::new(self, &e.paused, busy.max(1));
            let step = e.job.step(self, tx, &budget)?;
            base::mutation::panic_point("behind a step of a job");
            e.more.store(step == Step::More, Ordering::Relaxed);
            if step == Step::Finished {
                let mut list = self.background.jobs.list.acquire();
                list.retain(|other| !Arc::ptr_eq(other, e));
                continue;
            }
            e.set_active(self, step == Step::More || e.job.reads())?;
        }
        Ok(())
    }

    /// Goes on with the removal, the expansion, the scan and the rebuilds that were under way when the pool was left.
    pub(crate) fn load_work(&self) -> Result<()> {
        self.load_removal()?;
        self.load_expansion()?;
        self.load_scan_or_warn()
    }

    /// After a txg: has further ones written and slices read where jobs want them.
    pub(crate) fn drive_jobs(&self) {
        if self.background.jobs.want_txg() {
            self.kick();
        }
        self.read_slices();
    }

    /// Has slices read by other threads, for the jobs that want that.
    pub(crate) fn read_slices(&self) {
        if self.background.jobs.is_stopped() {
            return;
        }
        for e in self
            .background
            .jobs
            .entries()
            .into_iter()
            .filter(|e| e.wants_slice())
        {
            e.reading.store(true, Ordering::Relaxed);
            let slice = Slice(e);
            let me = self.background.pool.clone();
            // Without a thread to spare the next call tries again.
            self.dmu().later(move || {
                if let Some(pool) = me.upgrade() {
                    slice.read(&pool);
                }
            });
        }
    }
}

/// A slice that is to be read; dropped when that was done or will never be.
struct Slice(Arc<Entry>);

impl Slice {
    fn read(&self, pool: &Pool) {
        let e = &self.0;
        if pool.background.jobs.is_stopped() || e.is_paused() {
            return;
        }
        let guard = OnPanic::new(|| pool.panicked(&format!("in job '{}'", e.job.name())));
        e.job.read(pool, &Budget::new(pool, &e.paused, 1));
        drop(guard);
        if e.job.stores() {
            e.more.store(true, Ordering::Relaxed);
            pool.kick();
        }
    }
}

impl Drop for Slice {
    fn drop(&mut self) {
        self.0.reading.store(false, Ordering::Relaxed);
    }
}
