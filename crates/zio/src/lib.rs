//! The I/O pipelines of one block: transform, allocate and write it; read, verify and transform it back. The block
//! cache.
//!
//! Writes made while a txg is written are queued and submitted in large batches. A queued block is read from
//! the queue until it is on the device, so callers see no difference. A caller that needs durability calls
//! [`Zio::drain`] and then [`Devices::flush`].
//!
//! Start reading in `pipeline.rs`, then `pipeline/write.rs` and `pipeline/read.rs`. `seam.rs` has the traits of
//! what lies below: devices, allocator, dedup tables.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod cache;
mod compression_history;
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
mod victims;

pub use cache::Cache;
pub use compression_history::CompressionHistory;
pub use crypt::{Crypt, Seal};
pub use pipeline::{
    Prepared, RawSeal, Scrubbed, StoredForm, WriteSpec, Zio, ZioOptions, READ_AGAIN,
};
pub use read_spec::{InUse, Lease, ReadSpec, Whole};
pub use scope::Scope;
pub use seam::{
    Allocator, Dedup, Devices, Looked, Mended, PhysWrite, Purpose, ReadOne, Scrubbing, SecondLevel,
    Sharing, Waits, Wrong,
};
pub use syncing::Syncing;
pub use victims::{Content, Victim, Victims};
