//! A service thread that syncs txgs for all other threads.
//!
//! Without one, whoever needs a txg on disk syncs it on its own thread, and would be the one that waits
//! when the devices fail. With one ([`Pool::serve`]) the others ask for a txg and wait for the outcome,
//! holding no lock, so that they can be told when the pool is suspended or stopped.

use crate::{Failmode, Pool};
use base::sync::{CondvarExt, MutexExt};
use base::{Result, Txg};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard};
use std::thread::ThreadId;

#[derive(Default)]
pub(crate) struct Service {
    /// The thread that syncs, if there is one.
    thread: Mutex<Option<ThreadId>>,
    news: Condvar,
    /// Newest txg that somebody waits for.
    wanted: AtomicU64,
}

impl Service {
    fn lock(&self) -> MutexGuard<'_, Option<ThreadId>> {
        self.thread.acquire()
    }
}

/// Whether somebody who needs a txg waits along when the pool waits for its devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Along {
    Always,
    /// Not with `failmode=continue`.
    ByFailmode,
    Never,
}

/// The calling thread syncs the pool's txgs as long as this lives.
pub struct Serving<'a>(&'a Pool);

impl Serving<'_> {
    /// Closes the open txg and writes it.
    pub fn sync(&self) -> Result<Txg> {
        let mut st = self.0.sync_state();
        self.0.sync_group(&mut st)
    }
}

impl Drop for Serving<'_> {
    fn drop(&mut self) {
        *self.0.txgs.service.lock() = None;
        self.0.txgs.service.news.notify_all();
    }
}

impl Pool {
    /// The calling thread syncs for all others from now on: it must call [`Serving::sync`] whenever
    /// [`Pool::wait_for_work`] says so, and never wait for anything that may wait for a txg.
    pub fn serve(&self) -> Serving<'_> {
        *self.txgs.service.lock() = Some(std::thread::current().id());
        Serving(self)
    }

    /// Whether a thread writes the txgs of this pool for all others.
    pub(crate) fn is_served(&self) -> bool {
        self.txgs.service.lock().is_some()
    }

    /// Whether somebody waits for a txg that is not on disk.
    pub(crate) fn is_wanted(&self) -> bool {
        self.txgs.service.wanted.load(Ordering::Acquire) > self.dmu().synced_txg().number()
    }

    /// A txg is on disk, or the state of suspension changed.
    pub(crate) fn tell_waiting(&self) {
        drop(self.txgs.service.lock());
        self.txgs.service.news.notify_all();
    }

    /// Has txg `txg` synced by the thread that serves, and waits for it. False: there is none, or
    /// none any more, and the caller has to do it.
    ///
    /// Errors: the pool is stopped; or it waits for its devices, and `along` says that the caller does
    /// not wait along.
    pub(crate) fn await_served(&self, txg: Txg, along: Along) -> Result<bool> {
        base::waits::about_to_wait();
        let me = std::thread::current().id();
        let mut thread = self.txgs.service.lock();
        if thread.is_none_or(|t| t == me) {
            return Ok(false);
        }
        self.txgs
            .service
            .wanted
            .fetch_max(txg.number(), Ordering::AcqRel);
        dmu::Driver::kick(self);
        loop {
            if self.dmu().synced_txg() >= txg {
                return Ok(true);
            }
            if let Some(why) = self.stopped() {
                return Err(self.suspended_error(&why));
            }
            let leaves = match along {
                Along::Always => false,
                Along::ByFailmode => self.failmode() == Failmode::Continue,
                Along::Never => true,
            };
            if leaves && self.is_waiting() {
                if let Some(why) = self.suspended() {
                    return Err(self.suspended_error(&why));
                }
            }
            if thread.is_none_or(|t| t == me) {
                return Ok(false);
            }
            thread = self.txgs.service.news.wait_acquire(thread);
        }
    }
}
