//! Administration: every operation on pools and datasets. The daemon, the simulator and `ztest` carry out
//! the same operations; they differ in what they give for the two traits at the edge.
//!
//! * [`Door`] puts a file system into a tree of files and takes it out again: FUSE in the daemon, a map in
//!   memory ([`alone::MemoryDoor`]) in the simulator.
//! * [`Process`] is what surrounds a pool in service: threads, memory, devices of the machine.
//!
//! # Invariants
//! 1. No operation changes anything before its caller has the locks it takes and is known to be still
//!    there ([`cancel`]).
//! 2. A mount that an operation takes away for a change is put back if the change fails.
//! 3. Nothing of a pool is touched once it is abandoned ([`pools::abandon`]).
//! 4. An operation that has answered without an error is on disk.
//! 5. An operation refuses callers without the permissions it needs ([`datasets::rights`]).
//!
//! # Lock order
//! `changes` of a pool → its `gate` → its `names` → what is below `pool`. The registry's own locks (claims,
//! then pools, then absent pools) are taken for moments only, with nothing else after them.
//!
//! Start reading at [`Admin`] and [`PoolEntry`]; then `datasets/set.rs`, an operation that has everything.
#![forbid(unsafe_code)]

pub mod abandoned;
mod activity;
pub mod alone;
pub mod cache;
pub mod cancel;
pub mod claims;
pub mod commands;
pub mod compat;
pub mod datasets;
pub mod door;
pub mod errors;
pub mod events;
pub mod head;
pub mod mounts;
mod parallel;
pub mod pools;
pub mod process;
pub mod registry;
mod streams;
pub mod suspended;
pub mod values;

pub use door::{Door, Mount, MountOptions, Mounting};
pub use head::Head;
pub use mounts::Mounted;
pub use process::{DeviceUse, Process};
pub use registry::{Admin, Paths, PoolEntry, Settings};

/// Result of an operation: an error says what failed, why, and what to do.
pub type Answer<T> = std::result::Result<T, api::ApiError>;
