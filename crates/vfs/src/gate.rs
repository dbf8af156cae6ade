//! The gate: requests enter the file system in service here, and wait here while it is suspended.
//!
//! 1. A request holds a [`Running`] while it uses the file system. Whoever suspends waits for all of
//!    them; requests that come later wait until the file system is resumed, perhaps as another one.
//! 2. A thread holds one [`Running`] at most: a second one could wait for a suspension that waits for
//!    the first.
//! 3. While it holds one it sends no notification that makes the kernel wait for other requests: those
//!    may wait here.
//!
//! When nothing is suspended a request pays for one uncontended read lock.

use crate::caller::Caller;
use base::mutation::{mutated, Mutation};
use base::sync::{MutexExt, ReadGuard, RwLockExt};
use base::{Kind, Result};
use std::ops::Deref;
use std::sync::{Arc, Condvar, Mutex, RwLock};
use std::time::Duration;
use zpl::Zfs;

/// How often a waiting request looks whether its caller has gone.
pub(crate) const TICK: Duration = Duration::from_millis(100);

struct State {
    zfs: Arc<Zfs>,
    suspended: bool,
    /// For good: nobody waits any more.
    over: bool,
}

/// The file system, and who may enter it.
pub(crate) struct Gate {
    state: RwLock<State>,
    waiting: Mutex<()>,
    resumed: Condvar,
}

/// The file system, in use by one request.
pub(crate) struct Running<'a>(ReadGuard<'a, State>);

impl Deref for Running<'_> {
    type Target = Arc<Zfs>;

    fn deref(&self) -> &Arc<Zfs> {
        &self.0.zfs
    }
}

impl Gate {
    /// A gate to an open file system.
    pub fn new(zfs: Arc<Zfs>) -> Gate {
        let suspended = false;
        Gate {
            state: RwLock::new(State {
                zfs,
                suspended,
                over: false,
            }),
            waiting: Mutex::default(),
            resumed: Condvar::new(),
        }
    }

    /// Lets a request in, as soon as the file system runs.
    ///
    /// Errors: `Interrupted` if the caller has gone meanwhile, `Io` if service has ended.
    #[inline]
    pub fn enter(&self, by: &dyn Caller) -> Result<Running<'_>> {
        match self.try_enter() {
            Some(r) => Ok(r),
            None => self.wait(by),
        }
    }

    /// The same for what cannot wait. None while the file system is suspended, or about to be.
    #[inline]
    pub fn try_enter(&self) -> Option<Running<'_>> {
        let state = self.state.try_acquire_read()?;
        (!state.suspended || mutated(Mutation::GateLetsIn)).then_some(Running(state))
    }

    #[cold]
    fn wait(&self, by: &dyn Caller) -> Result<Running<'_>> {
        let waiting = by.about_to_wait();
        loop {
            let turn = self.waiting.acquire();
            if let Some(r) = self.try_enter() {
                return Ok(r);
            }
            let over = self.state.try_acquire_read().is_some_and(|s| s.over);
            if waiting.is_over() || over {
                return Err(Kind::Io.into());
            }
            if by.is_gone() {
                return Err(Kind::Interrupted.into());
            }
            drop(self.resumed.wait_timeout(turn, TICK));
        }
    }

    /// The file system, whether or not it is suspended.
    pub fn current(&self) -> Arc<Zfs> {
        self.state.acquire_read().zfs.clone()
    }

    /// Keeps requests out from now on, and waits for those that are in.
    pub fn close(&self) -> Arc<Zfs> {
        let mut state = self.state.acquire_write();
        state.suspended = true;
        state.zfs.clone()
    }

    /// Puts another file system in the place of the suspended one.
    pub fn replace(&self, zfs: Arc<Zfs>) {
        self.state.acquire_write().zfs = zfs;
    }

    /// Refuses requests from now on, also those that wait.
    pub fn cut_off(&self) {
        let mut state = self.state.acquire_write();
        (state.suspended, state.over) = (true, true);
    }

    /// Lets requests in again.
    pub fn open(&self) {
        let mut state = self.state.acquire_write();
        state.suspended = state.over;
        drop(state);
        let _turn = self.waiting.acquire();
        self.resumed.notify_all();
    }
}
