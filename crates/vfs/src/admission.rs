//! Calls that change something, while the pool is suspended.
//!
//! They are held up here, before they take any lock and any transaction: with `failmode=wait` until the
//! pool goes on, with `failmode=continue` they fail at once, and so do all once the pool is stopped for
//! good. Who waits here can be killed, since nothing has been changed.
//!
//! Data that a client had accepted into its write-back cache are no such call. They are taken as long as
//! there is memory for them: the process that wrote them has its answer, and could not be killed while
//! the client waits for them to be taken.

use crate::caller::Caller;
use base::{Kind, Result};
use pool::{Admits, Pool};
use std::sync::Arc;
use std::time::Duration;

/// How often it is looked whether the caller was killed.
const TICK: Duration = Duration::from_millis(100);

/// Where calls of one file system enter.
pub struct Admission(Arc<Pool>);

impl Admission {
    /// Admission to `pool`.
    pub fn new(pool: Arc<Pool>) -> Admission {
        Admission(pool)
    }

    /// Lets a call in that changes something.
    ///
    /// Errors: `Io` if the pool cannot be written, `Interrupted` if the caller has gone meanwhile.
    #[inline]
    pub fn call(&self, by: &dyn Caller) -> Result<()> {
        match self.0.admits() {
            Admits::Now => Ok(()),
            _ => self.wait(by, true),
        }
    }

    /// Lets data in that a client had accepted.
    pub fn cached_data(&self, by: &dyn Caller) -> Result<()> {
        match self.0.suspended() {
            Some(_) if self.0.stopped().is_some() || self.0.dmu().is_full() => self.wait(by, false),
            _ => Ok(()),
        }
    }

    #[cold]
    fn wait(&self, by: &dyn Caller, may_go: bool) -> Result<()> {
        let waiting = by.about_to_wait();
        loop {
            match self.0.admits() {
                Admits::Now => return Ok(()),
                Admits::Never => return Err(Kind::Io.into()),
                Admits::Later if waiting.is_over() => return Err(Kind::Io.into()),
                Admits::Later => {}
            }
            if may_go && by.is_gone() {
                return Err(Kind::Interrupted.into());
            }
            self.0.wait_for_turn(TICK);
        }
    }
}
