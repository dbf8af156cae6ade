//! The part of a pool that knows which space is in use: space maps on disk, and the mappings of removed vdevs.
//!
//! The syncing thread writes both until the txg converges ([`crate::sync`]).
//!
//! Lock order: the locks of [`SpaceMaps`] come before those of `space`.

use crate::indirect::Removed;
use crate::SpaceMaps;
use std::sync::Arc;

/// Space of one pool.
pub(crate) struct Allocation {
    /// Space maps on disk.
    pub maps: Arc<SpaceMaps>,
    /// Mappings of removed vdevs, and what becomes obsolete on them.
    pub removed: Arc<Removed>,
    /// Deflated bytes that the software before left to be freed; they stay in a pool that is only read, and are freed when one
    /// that is written is opened.
    pub deferred_frees: u64,
}
