//! Calls that change something, while the pool is suspended.
//!
//! They are held up here, before they take any lock and any transaction: with `failmode=wait` until the
//! pool goes on, with `failmode=continue` they fail at once, and so do all once the pool is stopped for
//! good. Who waits here can be killed, since nothing has been changed.
//!
//! Data that the kernel had accepted into its page cache are no such call. They are taken as long as
//! there is memory for them: the process that wrote them has its answer, and could not be killed while
//! the kernel waits for them to be taken.

use fuse::{Errno, Request};
use pool::{Admits, Pool};
use std::sync::Arc;
use std::time::Duration;

const EINTR: Errno = Errno(4);
/// How often it is looked whether the caller was killed.
const TICK: Duration = Duration::from_millis(100);

/// Where calls of one mount enter.
pub struct Admission(Arc<Pool>);

impl Admission {
    /// Admission to `pool`.
    pub fn new(pool: Arc<Pool>) -> Admission {
        Admission(pool)
    }

    /// Lets a call in that changes something.
    ///
    /// Errors: EIO if the pool cannot be written, EINTR if the caller was killed meanwhile.
    pub fn call(&self, req: &Request) -> Result<(), Errno> {
        match self.0.admits() {
            Admits::Now => Ok(()),
            _ => self.wait(|| fuse::is_killed(req.pid)),
        }
    }

    /// Lets data in that the kernel had accepted.
    pub fn cached_data(&self) -> Result<(), Errno> {
        match self.0.suspended() {
            Some(_) if self.0.stopped().is_some() || self.0.dmu().is_full() => self.wait(|| false),
            _ => Ok(()),
        }
    }

    fn wait(&self, killed: impl Fn() -> bool) -> Result<(), Errno> {
        let lent = fuse::about_to_wait_for_requests();
        loop {
            match self.0.admits() {
                Admits::Now => return Ok(()),
                Admits::Never => return Err(Errno::EIO),
                Admits::Later if lent.is_over() => return Err(Errno::EIO),
                Admits::Later => {}
            }
            if killed() {
                return Err(EINTR);
            }
            self.0.wait_for_turn(TICK);
        }
    }
}
