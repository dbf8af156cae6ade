//! The part of a pool that knows which space is in use: the allocator, space maps on disk, and the mappings of removed vdevs.
//!
//! The syncing thread writes maps and mappings until the txg converges ([`crate::sync`]).
//!
//! Lock order: the locks of [`SpaceMaps`] come before those of `space`.

use crate::indirect::Removed;
use crate::spacemaps::SpaceMaps;
use space::Space;
use std::sync::Arc;

/// Space of one pool.
pub(crate) struct Allocation {
    /// The allocator: metaslabs and classes in memory.
    pub space: Arc<Space>,
    /// Space maps on disk.
    pub maps: Arc<SpaceMaps>,
    /// Mappings of removed vdevs, and what becomes obsolete on them.
    pub removed: Arc<Removed>,
    /// Deflated bytes that the software before left to be freed; they stay in a pool that is only read, and are freed when one
    /// that is written is opened.
    pub deferred_frees: u64,
}

/// Reads space maps when the allocator wants them.
pub(crate) struct MapLoader(pub std::sync::Weak<SpaceMaps>);

impl space::Loader for MapLoader {
    fn load(&self, vdev: u64, ms: u64) -> base::Result<base::RangeSet> {
        match self.0.upgrade() {
            Some(m) => m.load(vdev, ms),
            None => Err(base::Error::new(base::Kind::Stale, "the pool was exported")),
        }
    }
}
