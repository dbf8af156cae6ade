//! Whether requests that come through a mount of the control directory itself may look into snapshots: until the file system has ended.

use base::sync::{ReadGuard, RwLockExt};
use std::sync::RwLock;

/// Service of the file system has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended;

/// Whether the snapshots of a file system may be looked into.
#[derive(Default)]
pub(crate) struct ControlGate(RwLock<bool>);

impl ControlGate {
    /// The file system has ended: waits for the requests that are being served, and refuses others.
    pub fn end(&self) {
        *self.0.acquire_write() = true;
    }

    /// Lets a request in, as long as the result lives.
    ///
    /// Errors: the file system has ended.
    pub fn enter(&self) -> Result<ReadGuard<'_, bool>, Ended> {
        let ended = self.0.acquire_read();
        match *ended {
            true => Err(Ended),
            false => Ok(ended),
        }
    }
}
