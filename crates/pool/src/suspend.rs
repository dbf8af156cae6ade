//! Suspension: what a pool does while a txg cannot be written.
//!
//! A pool is in one of three states:
//!
//! 1. *Running.*
//! 2. *Waiting for devices.* The devices refuse what the syncing txg needs. The syncing thread holds
//!    the txg, with everything it has not written yet, and tries again: at once after
//!    [`Pool::retry`], every [`RETRY`] otherwise. When the devices take it the same txg goes on, and
//!    nothing is lost.
//! 3. *Stopped for good* ([`Pool::stop_for_good`]). No txg is written any more until the pool is
//!    imported again. What the last txg on disk lacks is lost. A stopped pool never runs again.
//!
//! Only failures of devices lead to state 2. Everything else that makes a txg fail leads to state 3:
//! the txg was changed half-way, and nothing may be built upon it.
//!
//! Whether a txg waits is decided by the pool's [`Patience`]. Without one it never does: the first
//! failure stops the pool. The daemon installs [`Pool::wait_for_devices`], which blocks the syncing
//! thread. A simulator on one thread installs one that does not block.
//!
//! Locks: [`Suspension::state`] is a leaf lock. A waiting syncing thread holds the lock of
//! [`crate::sync::SyncState`], and (only if the device fails in a read of syncing context) locks of
//! objects; it never holds [`Suspension::state`].

use crate::multihost::Multihost;
use crate::Pool;
use base::mutation::{mutated, Mutation};
use base::sync::{CondvarExt, MutexExt};
use base::{Error, Kind, Result, Txg};
use std::sync::atomic::{AtomicU64, AtomicU8, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock};
use std::time::Duration;
use vdev::Vdev;

/// How often the devices are tried without being asked: often enough that a device or space that
/// comes back is noticed within a moment, and seldom enough to cost nothing.
const RETRY: Duration = Duration::from_secs(2);

/// The pool property `failmode`: what calls that change something get while the pool waits for its
/// devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Failmode {
    /// They wait, too.
    #[default]
    Wait,
    /// They fail with EIO.
    Continue,
    /// The pool does not wait: the first failure stops it for good.
    Panic,
}

impl Failmode {
    /// By the number the property has on disk; an unknown one is the default.
    pub fn from_number(n: u64) -> Failmode {
        match n {
            1 => Failmode::Continue,
            2 => Failmode::Panic,
            _ => Failmode::Wait,
        }
    }
}

/// What becomes, at this moment, of a call that changes something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admits {
    /// It is carried out.
    Now,
    /// It waits, having changed nothing.
    Later,
    /// It fails with EIO.
    Never,
}

/// Decides whether a txg that the devices refuse waits for them.
pub trait Patience: Send + Sync {
    /// The devices refused what the txg needs, because of `why`, and the pool is in state 2. Called
    /// by the syncing thread; may block. True: try again. False: stop the pool for good.
    fn again(&self, pool: &Pool, why: &Error) -> bool;
}

impl<P: Patience + ?Sized> Patience for std::sync::Arc<P> {
    fn again(&self, pool: &Pool, why: &Error) -> bool {
        (**self).again(pool, why)
    }
}

/// A change of state.
#[derive(Clone, Copy, Debug)]
pub enum Turn<'a> {
    /// The pool waits for its devices.
    Waits(&'a Error),
    /// The devices took what they had refused.
    Resumed,
    /// The pool is stopped for good.
    Stopped(&'a Error),
}

/// Who is told of changes of state; must not call into the pool.
pub type Tell = Box<dyn Fn(Turn<'_>) + Send + Sync>;

const RUNNING: u8 = 0;
const WAITING: u8 = 1;
const STOPPED: u8 = 2;

#[derive(Default)]
struct State {
    waiting: Option<Error>,
    stopped: Option<Error>,
    /// Attempts asked for by [`Pool::retry`], and attempts made.
    wanted: u64,
    made: u64,
    /// Failures stop the pool from now on.
    gives_up: bool,
}

/// The state of one pool, and who waits for it to change.
#[derive(Default)]
pub(crate) struct Suspension {
    state: Mutex<State>,
    changed: Condvar,
    /// The state once more, for those who only look: RUNNING, WAITING or STOPPED.
    now: AtomicU8,
    failmode: AtomicU8,
    resumptions: AtomicU64,
    patience: OnceLock<Box<dyn Patience>>,
    tell: OnceLock<Tell>,
}

impl Suspension {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.acquire()
    }

    fn tell(&self, turn: Turn<'_>) {
        if let Some(f) = self.tell.get() {
            f(turn);
        }
    }
}

impl Pool {
    /// Why nothing is written at the moment, if so: the pool waits for its devices or is stopped.
    pub fn suspended(&self) -> Option<Error> {
        if self.txgs.io.now.load(Ordering::Acquire) == RUNNING {
            return None;
        }
        let st = self.txgs.io.lock();
        st.stopped.clone().or_else(|| st.waiting.clone())
    }

    /// Why no txg is written any more, if the pool is stopped for good.
    pub fn stopped(&self) -> Option<Error> {
        if self.txgs.io.now.load(Ordering::Acquire) != STOPPED {
            return None;
        }
        self.txgs.io.lock().stopped.clone()
    }

    /// Whether a txg waits for the devices.
    pub fn is_waiting(&self) -> bool {
        self.txgs.io.now.load(Ordering::Acquire) == WAITING
    }

    /// How often the devices took what they had refused, since the pool was opened.
    pub fn resumptions(&self) -> u64 {
        self.txgs.io.resumptions.load(Ordering::Acquire)
    }

    /// Whether a call that changes something is carried out now.
    pub fn admits(&self) -> Admits {
        match self.txgs.io.now.load(Ordering::Acquire) {
            RUNNING => Admits::Now,
            _ if mutated(Mutation::AdmittedWhileSuspended) => Admits::Now,
            WAITING if self.failmode() == Failmode::Wait => Admits::Later,
            _ => Admits::Never,
        }
    }

    /// Stops the pool because of `why`: no txg is written from now on, and a txg that waits for its
    /// devices gives up. The state on disk is that of the last txg written. Only exporting the pool
    /// by force or closing it ends this; the first reason counts.
    pub fn stop_for_good(&self, why: Error) {
        let mut st = self.txgs.io.lock();
        if st.stopped.is_some() {
            return;
        }
        st.stopped = Some(why.clone());
        st.waiting = None;
        self.background.jobs.stop();
        self.txgs.io.now.store(STOPPED, Ordering::Release);
        drop(st);
        tracing::debug!(pool = %self.name(), txg = self.dmu().open_txg().number(), %why, "pool is stopped");
        self.txgs.io.changed.notify_all();
        self.dmu().stop(self.suspended_error(&why));
        self.tell_waiting();
        self.txgs.io.tell(Turn::Stopped(&why));
    }

    /// Stops the pool because a thread panicked `when`: what is in memory may be changed by half. The log
    /// on disk stays as it is, so that the next import replays it. Does not panic: it is called while
    /// the panic unwinds.
    pub(crate) fn panicked(&self, when: &str) {
        self.stop_for_good(dmu::internal_error(&format!("a panic {when}")));
    }

    /// The error for callers of a pool that is suspended because of `why`.
    pub(crate) fn suspended_error(&self, why: &Error) -> Error {
        Error::new(
            Kind::Suspended,
            format!("pool '{}' I/O is currently suspended: {why}", self.name()),
        )
    }

    /// What a pool that is let go now loses: the last txg on disk, and bytes of changes since.
    pub fn unwritten(&self) -> (Txg, u64) {
        (self.dmu().synced_txg(), self.dmu().unwritten_bytes())
    }

    /// The property as it was read last.
    pub fn failmode(&self) -> Failmode {
        Failmode::from_number(self.txgs.io.failmode.load(Ordering::Relaxed).into())
    }

    /// Reads anew what the property `failmode` says.
    pub fn refresh_failmode(&self) -> Result<()> {
        let stored = self.stored_props()?;
        let set = stored.iter().find(|(n, _)| n == "failmode");
        let n = match set.map(|(_, v)| v) {
            Some(dsl::PropValue::Int(n)) => u8::try_from(*n).unwrap_or(0),
            _ => 0,
        };
        self.txgs.io.failmode.store(n, Ordering::Relaxed);
        Ok(())
    }

    /// Sets what decides whether a txg waits; once.
    pub fn set_patience(&self, patience: Box<dyn Patience>) {
        let _ = self.txgs.io.patience.set(patience);
    }

    /// From now on a txg that the devices refuse blocks the thread that syncs it until they take it,
    /// the pool is stopped, or [`Pool::give_up_waiting`] is called. `tell` hears of it.
    pub fn wait_for_devices(&self, tell: Tell) {
        let _ = self.txgs.io.tell.set(tell);
        self.set_patience(Box::new(Blocking));
    }

    /// From now on no txg waits for devices: a failure stops the pool. For the end of the daemon.
    pub fn give_up_waiting(&self) {
        self.txgs.io.lock().gives_up = true;
        self.txgs.io.changed.notify_all();
    }

    /// Has the devices tried again, and waits for the outcome.
    ///
    /// Errors: the devices refuse still, or the pool is stopped.
    pub fn retry(&self) -> Result<()> {
        let mut st = self.txgs.io.lock();
        if st.waiting.is_some() {
            // The attempt under way may have begun before whatever the caller mended.
            st.wanted = st.wanted.max(st.made) + 1;
            let mine = st.wanted;
            self.txgs.io.changed.notify_all();
            let pending = |st: &mut State| st.waiting.is_some() && st.made < mine;
            st = self
                .txgs
                .io
                .changed
                .wait_while(st, pending)
                .unwrap_or_else(|e| e.into_inner());
        }
        match st.stopped.as_ref().or(st.waiting.as_ref()) {
            Some(why) => {
                let why = why.clone();
                drop(st);
                Err(self.suspended_error(&why))
            }
            None => Ok(()),
        }
    }

    /// Waits a moment for the state to change: at most `most`, or not at all if the pool does not
    /// wait for its devices.
    pub fn wait_for_turn(&self, most: Duration) {
        let st = self.txgs.io.lock();
        let waits = |st: &mut State| st.waiting.is_some();
        drop(self.txgs.io.changed.wait_timeout_while(st, most, waits));
    }

    /// Does `write`, which hands something of a txg to the devices, until they take it. What it
    /// wrote before may be written again, so it must be the same each time.
    ///
    /// Errors: the txg is given up. The caller stops the pool.
    pub(crate) fn persist(&self, write: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        loop {
            if let Some(stopped) = self.stopped() {
                return Err(stopped);
            }
            let why = match write() {
                Ok(()) => {
                    self.went_through();
                    return Ok(());
                }
                Err(e) => e,
            };
            let patience = match self.txgs.io.patience.get() {
                Some(p) if is_of_devices(&why) && !self.tree().has_lost_writes() => p,
                _ => return Err(why),
            };
            if self.failmode() == Failmode::Panic {
                return Err(why.context("failmode=panic"));
            }
            self.dmu().pause_early(true);
            tracing::debug!(pool = %self.name(), txg = self.dmu().open_txg().number(), %why, "devices refuse a txg");
            if !self.waits(&why) || !patience.again(self, &why) {
                return Err(self.stopped().unwrap_or(why));
            }
            if mutated(Mutation::WaitingDropped) {
                self.went_through();
                return Ok(());
            }
            // Devices that went away may be back.
            self.tree().reopen();
        }
    }

    /// The pool waits for its devices, from now on or still. False: it must not.
    fn waits(&self, why: &Error) -> bool {
        let mut st = self.txgs.io.lock();
        if st.stopped.is_some() || st.gives_up {
            return false;
        }
        let news = st.waiting.replace(why.clone()).is_none();
        if news {
            self.txgs.io.now.store(WAITING, Ordering::Release);
        } else {
            st.made += 1;
        }
        drop(st);
        self.txgs.io.changed.notify_all();
        if news {
            self.tell_waiting();
            self.txgs.io.tell(Turn::Waits(why));
        }
        true
    }

    /// The devices took what they were given.
    fn went_through(&self) {
        if self.txgs.io.now.load(Ordering::Acquire) != WAITING {
            return;
        }
        let mut st = self.txgs.io.lock();
        if st.waiting.take().is_none() {
            return;
        }
        st.made += 1;
        self.txgs.io.resumptions.fetch_add(1, Ordering::AcqRel);
        self.txgs.io.now.store(RUNNING, Ordering::Release);
        drop(st);
        tracing::debug!(pool = %self.name(), txg = self.dmu().open_txg().number(), "pool is resumed");
        self.space().retry_failed();
        self.dmu().pause_early(false);
        self.txgs.io.changed.notify_all();
        self.txgs.io.tell(Turn::Resumed);
    }
}

impl Pool {
    /// Writes a heartbeat if the property `multihost` is on, and says when the next is due. A pool
    /// that is stopped writes none; one that waits for its devices goes on trying. A device that does not answer holds this up for ever;
    /// [`Pool::watch_heartbeat`] must be called by another thread.
    pub fn heartbeat(&self) -> Duration {
        let may = || !self.is_readonly() && self.stopped().is_none();
        self.vdevs.heart.beat(&self.env, self.tree(), &may)
    }

    /// Suspends the pool if no heartbeat has been written for too long: another host may take it.
    /// Returns how often to call this.
    pub fn watch_heartbeat(&self) -> Duration {
        let may = || self.stopped().is_none();
        let (interval, silent) = self.vdevs.heart.watch(&self.env, &may);
        if let Some(silent) = silent {
            self.suspend_for_multihost(silent);
        }
        interval
    }

    /// What rules its heartbeats follow from now on.
    pub fn set_multihost_rules(&self, rules: Multihost) {
        self.vdevs.heart.set_rules(rules);
    }

    /// Whether the pool was suspended because no heartbeat could be written. It must not go on:
    /// another host may have it.
    pub fn is_lost_to_multihost(&self) -> bool {
        self.vdevs.heart.is_lost()
    }

    /// Whether heartbeats are to be written.
    pub fn is_multihost(&self) -> bool {
        self.vdevs.heart.is_on() && !self.is_readonly()
    }

    fn suspend_for_multihost(&self, silent: u64) {
        let why = Error::new(
            Kind::Suspended,
            format!(
                "multihost: no heartbeat could be written for {} seconds, so another host may use \
                 the pool",
                silent / 1_000_000_000
            ),
        );
        self.stop_for_good(why);
    }
}

impl zio::Waits for Pool {
    fn await_readable(&self, vdevs: &[u64], why: &Error) -> bool {
        if self.txgs.io.patience.get().is_none() {
            return false;
        }
        let away = || {
            let tops: Vec<_> = vdevs
                .iter()
                .filter_map(|v| self.tree().top(*v).ok())
                .collect();
            for leaf in tops.iter().flat_map(|t| t.leaves()) {
                self.tree().probe(&leaf);
            }
            tops.iter().any(is_waited_for)
        };
        if !away() {
            return false;
        }
        let waited = self.persist(&mut || match away() {
            true => Err(Error::new(Kind::NoDevice, why.to_string())),
            false => Ok(()),
        });
        if let Err(e) = waited {
            // The block is not damaged: what depends on it must not be given up for that.
            self.stop_for_good(e);
            return false;
        }
        true
    }

    fn pause(&self, ns: u64) {
        self.env.clock.pause(ns);
    }

    fn is_away(&self) -> bool {
        self.tree().tops().iter().any(is_waited_for)
    }
}

/// Whether the pool waits for a vdev that is away. It does without its logs.
fn is_waited_for(top: &Arc<Vdev>) -> bool {
    top.is_concrete() && !top.is_log() && !top.state().usable()
}

/// Whether a device, or whoever provides it, may stop failing that way: it is away, broken, full,
/// forbidden. Not so what only a mistake or damage explains.
fn is_of_devices(e: &Error) -> bool {
    !matches!(
        e.kind,
        Kind::Damaged
            | Kind::Checksum
            | Kind::Suspended
            | Kind::Unsupported
            | Kind::Invalid
            | Kind::Bug
    )
}

/// Blocks the syncing thread.
struct Blocking;

impl Patience for Blocking {
    fn again(&self, pool: &Pool, _: &Error) -> bool {
        let io = &pool.txgs.io;
        let idle = |st: &mut State| st.stopped.is_none() && !st.gives_up && st.wanted <= st.made;
        let (st, _) = io.changed.wait_acquire_while(io.lock(), RETRY, idle);
        st.stopped.is_none() && !st.gives_up
    }
}
