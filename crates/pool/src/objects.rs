//! The part of a pool that reads and writes blocks and objects: the pipelines of `zio`, the transaction engine of `dmu`, and the
//! object set of the pool itself (MOS).
//!
//! Every other part reads and changes the MOS through it. A change needs a transaction in syncing context.
//!
//! Lock order: the locks of `dmu` come before those of `zio` and `space` (see the two crates). No lock of another part is taken
//! inside them, except through the traits that [`crate::engine`] wires: `Driver`, `Sharing`, `Waits`.

use dmu::{Dmu, Objset};
use std::sync::Arc;
use zio::Zio;

/// Blocks and objects of one pool.
pub(crate) struct Objects {
    /// The pipelines.
    pub zio: Arc<Zio>,
    /// The transaction engine.
    pub dmu: Arc<Dmu>,
    /// The object set of the pool itself.
    pub mos: Arc<Objset>,
}
