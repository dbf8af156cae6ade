//! Background work of a pool: jobs that take many txgs.
//!
//! A [`Job`] is work that cannot be done in one txg: freeing what was destroyed, scrub, resilver, rebuild, trim, initialize, the
//! expansion of a RAID-Z, the removal of a vdev, discarding a checkpoint. The pool keeps a registry of its jobs ([`Jobs`]) and gives
//! each of them a [`Budget`] in every txg it writes. Two kinds of work have the same interface:
//!
//! * *Work in syncing context only* (freeing, discarding): [`Job::step`] does it, until its budget is spent.
//!   [`Step::More`] asks for a further txg at once.
//! * *Work in the background* (scrub, resilver, copying, trim): [`Job::ready`] names the instances that have something to do. The
//!   registry then runs a slice on another thread ([`env::Cpu::later`]): it calls [`Job::piece`] for these instances again and
//!   again, until the budget is spent or nothing is left, and has a txg written. [`Job::step`] of that txg takes over what was done
//!   and stores how far the job has come; the next slice follows. So a slice and a txg alternate, and what the slice reads is never
//!   older than two txgs when it is stored.
//!
//! What a job says, and what the registry does for it:
//!
//! | The job | The registry |
//! |---|---|
//! | its name and its instances ([`Subject`]): the pool, a vdev, a leaf | one status of each: state, progress, rate ([`Pool::jobs`]); pause of each or all ([`Pool::pause_job`]) |
//! | how much of the budget a piece costs ([`Budget::take`]) | ends a step or slice in time: bytes, seconds, threads that wait for the txg, export |
//! | its [`Priority`] | pauses behind each piece beside which somebody waited for requests (`courtesy`) |
//! | a limit of bytes per second, if its instance has one | waits ([`Budget::within_rate`]) |
//! | where the work is stored ([`Job::step`], [`Job::store_pause`]) | calls both in syncing context |
//! | progress in bytes ([`Job::progress`]) | `zpool wait`, and a line in the log when an instance begins and ends |
//!
//! A new job is a file with an implementation of [`Job`], and a line where it is registered: in `Pool::assemble` (`engine.rs`) or
//! `freeing::standing` if it is always there, by [`Pool::add_job`] if it comes and goes.
//!
//! Invariants:
//!
//! 1. A job has no state on disk of its own invention. `step` persists it in OpenZFS's structures for that work (freeing:
//!    `free_bpobj` and `bptree_obj`; scrub: the record `scan`), in the txg whose changes it describes. So a crash
//!    between any two txgs loses at most work, and OpenZFS can finish the job.
//! 2. After [`Jobs::stop`] (export, closing, a stopped pool) every budget is spent: a step or slice under way ends before
//!    its next block.
//! 3. A paused job gets neither steps nor slices; a paused instance of a job that goes on gets no pieces.
//! 4. A job with nothing to do costs a call of `step` in txgs that are written anyway. It causes no txg, no timer and no
//!    thread.
//! 5. An error of `step` fails the txg and stops the pool, as any error in syncing context does. `piece` returns no error:
//!    the job keeps what went wrong for its next step.
//! 6. A job has one slice at a time. Pieces of one slice run side by side only for different instances, and only if the job says so
//!    ([`Job::is_parallel`]).
//!
//! Locks: [`Jobs`]' list, and the times and pauses of an entry, are leaf locks; no job is called with one of them held. `step` runs on
//! the syncing thread, which holds the lock of [`crate::sync::SyncState`]. `piece` is called without a lock of the pool and must not
//! wait for a txg: in the simulator it runs on the syncing thread.

mod budget;
mod courtesy;

pub use budget::Budget;
pub(crate) use budget::BLOCK;
pub use courtesy::Priority;

use crate::Pool;
use base::sync::{MutexExt, OnPanic};
use base::{bail, Result};
use courtesy::{Courtesy, Foreground};
use dmu::{Driver, Tx};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// What an instance of a job works on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Subject {
    /// The pool: such a job has one instance.
    Pool,
    /// A top-level vdev, by its id.
    Vdev(u64),
    /// A leaf, by its guid.
    Leaf(u64),
}

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

/// What came of a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece {
    /// Something was done: the next piece may follow.
    Done,
    /// The same; block trees were read, in the class of requests. Nobody can tell them from the requests of others, so that no pause
    /// follows.
    Walked,
    /// Nothing more can be done for this instance in this slice.
    End,
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

    /// How it gives way to requests.
    fn priority(&self) -> Priority {
        Priority::Low
    }

    /// The instances under way, in no particular order.
    fn instances(&self) -> Vec<Subject> {
        vec![Subject::Pool]
    }

    /// Does a part of the work in syncing context and stores how far the job is. Asks `budget` before every block.
    ///
    /// # Errors
    /// They fail the txg.
    fn step(&self, pool: &Pool, tx: &Tx, budget: &Budget) -> Result<Step>;

    /// The instances for which a piece is wanted now.
    fn ready(&self) -> Vec<Subject> {
        Vec::new()
    }

    /// Works on the next piece of an instance, outside syncing context. Asks `budget` before it begins, with what the piece costs.
    fn piece(&self, pool: &Pool, of: Subject, budget: &Budget) -> Piece {
        let _ = (pool, of, budget);
        Piece::End
    }

    /// Whether pieces of different instances may run side by side.
    fn is_parallel(&self) -> bool {
        false
    }

    /// A slice begins (`true`), or has ended.
    fn in_slice(&self, begins: bool) {
        let _ = begins;
    }

    /// Whether a txg is to follow a slice, for what [`Job::step`] stores.
    fn stores(&self) -> bool {
        true
    }

    /// How far an instance has come. Called by any thread.
    ///
    /// # Errors
    /// Those of reading the job's structures.
    fn progress(&self, pool: &Pool, of: Subject) -> Result<Progress>;

    /// Stores in syncing context that an instance, or with [`Subject::Pool`] the whole job, is paused or goes on, where its structure
    /// on disk can say so (the flags of a scan). The default is for structures that cannot: a pause ends with the import then.
    ///
    /// # Errors
    /// They are the caller's of [`Pool::pause_job`]; nothing may have been changed.
    fn store_pause(&self, pool: &Pool, tx: &Tx, of: Subject, paused: bool) -> Result<()> {
        let _ = (pool, tx, of, paused);
        Ok(())
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

/// An instance of a job as commands show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobStatus {
    /// See [`Job::name`].
    pub name: &'static str,
    /// What it works on.
    pub of: Subject,
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

#[derive(Clone, Copy, Default)]
struct Times {
    started: u64,
    /// [`Progress::done`] at that moment.
    done_before: u64,
    ran_ns: u64,
    /// On the monotonic clock, while it runs.
    since: Option<u64>,
}

impl Times {
    fn ran_ns(&self, now: u64) -> u64 {
        self.ran_ns + self.since.map_or(0, |s| now.saturating_sub(s))
    }

    fn pause(&mut self, now: u64) {
        self.ran_ns = self.ran_ns(now);
        self.since = None;
    }
}

struct Entry {
    job: Arc<dyn Job>,
    /// All of it.
    paused: AtomicBool,
    /// Instances that are paused while others may go on.
    paused_instances: Mutex<BTreeSet<Subject>>,
    /// It wants a txg: something is left, or it has not been asked yet.
    more: AtomicBool,
    /// A slice is under way or waits for a thread.
    reading: AtomicBool,
    /// Of the instances that have something to do.
    times: Mutex<BTreeMap<Subject, Times>>,
}

impl Entry {
    fn new(job: Arc<dyn Job>) -> Arc<Entry> {
        Arc::new(Entry {
            job,
            paused: AtomicBool::new(false),
            paused_instances: Mutex::default(),
            more: AtomicBool::new(true),
            reading: AtomicBool::new(false),
            times: Mutex::default(),
        })
    }

    fn is_paused(&self) -> bool {
        self.paused.load(Ordering::Relaxed)
    }

    fn is_instance_paused(&self, of: Subject) -> bool {
        self.is_paused() || self.paused_instances.acquire().contains(&of)
    }

    fn wants_txg(&self) -> bool {
        self.more.load(Ordering::Relaxed) && !self.is_paused()
    }

    /// The instances that a slice works on now.
    fn ready(&self) -> Vec<Subject> {
        let mut ready = self.job.ready();
        if !ready.is_empty() {
            let paused = self.paused_instances.acquire();
            ready.retain(|s| !paused.contains(s));
        }
        ready
    }

    fn wants_slice(&self) -> bool {
        !self.is_paused() && !self.reading.load(Ordering::Relaxed) && !self.ready().is_empty()
    }

    /// After a step: the job has work from now on, or none.
    fn set_active(&self, pool: &Pool, active: bool) -> Result<()> {
        let now = match active {
            true => self.job.instances(),
            false => Vec::new(),
        };
        let known = self.times.acquire().clone();
        if now.len() == known.len() && now.iter().all(|s| known.contains_key(s)) {
            return Ok(());
        }
        let clock = &pool.env.clock;
        for (of, t) in known.iter().filter(|(s, _)| !now.contains(s)) {
            let seconds = t.ran_ns(clock.monotonic_ns()) / 1_000_000_000;
            tracing::debug!(pool = %pool.name(), job = self.job.name(), ?of, seconds, "job ends");
            self.times.acquire().remove(of);
        }
        if !known.is_empty() {
            // An instance that waits for its device stays paused.
            let there = self.job.instances();
            self.paused_instances
                .acquire()
                .retain(|s| there.contains(s));
        }
        for of in now.into_iter().filter(|s| !known.contains_key(s)) {
            let begins = Times {
                started: clock.now().0.max(1) as u64,
                done_before: self.job.progress(pool, of)?.done,
                ran_ns: 0,
                since: Some(clock.monotonic_ns()),
            };
            tracing::debug!(pool = %pool.name(), job = self.job.name(), ?of, "job begins");
            self.times.acquire().insert(of, begins);
        }
        Ok(())
    }

    /// [`Subject::Pool`] stands for all instances.
    fn set_paused(&self, pool: &Pool, of: Subject, paused: bool) {
        let now = pool.env.clock.monotonic_ns();
        match (of, paused) {
            (Subject::Pool, _) => self.paused.store(paused, Ordering::Relaxed),
            (of, true) => drop(self.paused_instances.acquire().insert(of)),
            (of, false) => drop(self.paused_instances.acquire().remove(&of)),
        }
        for (s, t) in self.times.acquire().iter_mut() {
            match (self.is_instance_paused(*s), t.since) {
                (true, _) => t.pause(now),
                (false, None) => t.since = Some(now),
                (false, Some(_)) => {}
            }
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

    /// Registers a job unless there is one of its name. In syncing context; its first step is in this txg.
    pub fn ensure(&self, job: Arc<dyn Job>) {
        let mut list = self.list.acquire();
        if !list.iter().any(|e| e.job.name() == job.name()) {
            list.push(Entry::new(job));
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

    /// Whether the pool is being left.
    pub fn is_stopped(&self) -> bool {
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

    /// The instances of jobs that have something to do, and those that are paused.
    ///
    /// # Errors
    /// Those of [`Job::progress`].
    pub fn jobs(&self) -> Result<Vec<JobStatus>> {
        let mut out = Vec::new();
        for e in self.background.jobs.entries() {
            let mut times = e.times.acquire().clone();
            if times.is_empty() && e.is_paused() {
                let all = e.job.instances().into_iter();
                times.extend(all.map(|s| (s, Times::default())));
            }
            let now = self.env.clock.monotonic_ns();
            for (of, t) in times {
                let progress = e.job.progress(self, of)?;
                out.push(JobStatus {
                    name: e.job.name(),
                    of,
                    state: match e.is_instance_paused(of) {
                        true => JobState::Paused,
                        false => JobState::Running,
                    },
                    progress,
                    started: t.started,
                    ran_ns: t.ran_ns(now),
                    ran_done: progress.done.saturating_sub(t.done_before),
                });
            }
        }
        Ok(out)
    }

    /// Bytes that all instances of a job have still to do; `None`: none is under way. A pool that is not written has jobs, too: what
    /// is left is known, though nobody does it.
    ///
    /// # Errors
    /// Those of [`Job::progress`].
    pub fn left_of(&self, job: &str) -> Result<Option<u64>> {
        self.left_of_some(job, &|_| true)
    }

    /// The same for those of its instances that `counts` is true of.
    ///
    /// # Errors
    /// As there.
    pub fn left_of_some(&self, job: &str, counts: &dyn Fn(Subject) -> bool) -> Result<Option<u64>> {
        let mut left: Option<u64> = None;
        for e in self.background.jobs.entries() {
            if e.job.name() != job {
                continue;
            }
            for of in e.job.instances().into_iter().filter(|of| counts(*of)) {
                let p = e.job.progress(self, of)?;
                let more = p.total.saturating_sub(p.done);
                left = Some(left.unwrap_or(0).saturating_add(more));
            }
        }
        Ok(left)
    }

    /// Pauses a job (`paused`) or lets it go on; on disk when it returns, as far as the job can store it. No step is done
    /// after a pause; a slice under way ends before its next block.
    ///
    /// # Errors
    /// `Kind::NotFound`: there is no such job. Those of [`Job::store_pause`] and of writing the txg.
    pub fn pause_job(&self, name: &str, paused: bool) -> Result<()> {
        self.pause_instance(name, Subject::Pool, paused)
    }

    /// [`Pool::pause_job`] for one instance; a piece of it that is under way is finished.
    ///
    /// # Errors
    /// As there; `Kind::NotFound`: there is no such instance.
    pub fn pause_instance(&self, name: &str, of: Subject, paused: bool) -> Result<()> {
        let found = self.background.jobs.entries().into_iter();
        let Some(e) = found.filter(|e| e.job.name() == name).last() else {
            bail!(NotFound, "pool '{}' has no job '{name}'", self.name());
        };
        if of != Subject::Pool && !e.job.instances().contains(&of) {
            bail!(
                NotFound,
                "job '{name}' of pool '{}' is not at work on {of:?}",
                self.name()
            );
        }
        self.task(move |pool, tx| {
            e.job.store_pause(pool, tx, of, paused)?;
            e.set_paused(pool, of, paused);
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
            let finished = step == Step::Finished;
            // A job that is begun anew must not have two slices: one under way ends before the job leaves.
            let ends = finished && !e.reading.load(Ordering::Relaxed);
            e.more
                .store(step == Step::More || finished, Ordering::Relaxed);
            if ends {
                e.set_active(self, false)?;
                let mut list = self.background.jobs.list.acquire();
                list.retain(|other| !Arc::ptr_eq(other, e));
                continue;
            }
            e.set_active(self, step == Step::More || !e.job.ready().is_empty())?;
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
        e.job.in_slice(true);
        run(pool, e);
        e.job.in_slice(false);
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

/// Runs a slice: pieces, until the budget is spent or nothing is left.
fn run(pool: &Pool, e: &Entry) {
    let budget = Budget::new(pool, &e.paused, 1);
    let mut courtesy = Courtesy::new(&*pool.env.clock);
    while budget.take(0) {
        let ready = e.ready();
        let done = match e.job.is_parallel() {
            true => {
                let before = Foreground::of(pool, &budget);
                let done = AtomicBool::new(false);
                pool.env.cpu.par_io(ready.len(), &|i| {
                    if e.job.piece(pool, ready[i], &budget) != Piece::End {
                        done.store(true, Ordering::Relaxed);
                    }
                });
                let done = done.into_inner();
                if done {
                    courtesy.give_way(before.others(pool, &budget), e.job.priority());
                }
                done
            }
            // One piece of each in turn.
            false => {
                let mut done = false;
                for of in ready {
                    let before = Foreground::of(pool, &budget);
                    budget.set_size(courtesy.size());
                    let piece = e.job.piece(pool, of, &budget);
                    done |= piece != Piece::End;
                    if piece == Piece::Done {
                        courtesy.give_way(before.others(pool, &budget), e.job.priority());
                    }
                }
                done
            }
        };
        if !done {
            return;
        }
    }
}
