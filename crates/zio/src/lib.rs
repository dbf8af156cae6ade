//! One block's journey: transform, allocate, write; read, verify, undo; the block cache.
//!
//! Writes made during a txg sync are queued and submitted in large batches; a queued block is
//! readable (from the queue) before it is on the device, so callers never see the difference. The
//! caller that needs durability calls [`Zio::drain`] and then [`Devices::flush`].
#![forbid(unsafe_code)]

mod cache;
pub mod crypt;
mod flight;
#[cfg(test)]
mod gang_tests;
pub mod memory;
mod pipeline;
mod read_spec;
mod scope;
pub mod seam;
pub mod swap;
mod syncing;

pub use cache::Cache;
pub use crypt::{Crypt, Seal};
pub use pipeline::{Prepared, RawSeal, Scrubbed, StoredForm, WriteSpec, Zio, ZioOptions};
pub use read_spec::{InUse, Lease, ReadSpec, Whole};
pub use scope::Scope;
pub use seam::{
    Allocator, Dedup, Devices, Looked, Mended, PhysWrite, Purpose, ReadOne, Scrubbing, Sharing,
    Waits, Wrong,
};
pub use syncing::Syncing;
