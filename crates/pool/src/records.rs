//! The part of a pool that keeps a record of what happens to it: damaged blocks, lost records of the history, and who is told.
//!
//! Threads that read note damage here; the syncing thread writes it down with the next txg ([`crate::errlog`]).
//!
//! Lock order: the lock of the error log is a leaf lock. An observer is called with none of these locks held, but maybe with
//! locks of scans ([`crate::notices`]).

use crate::notices::Notices;
use crate::ErrLog;
use std::sync::atomic::AtomicU64;

/// Records of one pool.
#[derive(Default)]
pub(crate) struct Records {
    /// Blocks that could not be read.
    pub errlog: ErrLog,
    /// Records of the history that could not be written.
    pub history_lost: AtomicU64,
    /// Who is told of scans, damage and records.
    pub notices: Notices,
}
