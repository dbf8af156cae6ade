//! Administration: every operation on pools and datasets. The daemon, the simulator and `ztest` run
//! the same operations; they implement two traits differently.
//!
//! * [`Door`] mounts and unmounts file systems: through FUSE in the daemon, in a map in
//!   memory ([`alone::MemoryDoor`]) in the simulator.
//! * [`Process`] is the surroundings of imported pools: threads, memory, devices of the machine.
//!
//! # Invariants
//! 1. An operation changes nothing before it holds its locks and has seen that its caller still waits
//!    ([`cancel`]).
//! 2. A mount that an operation removes for a change is restored if the change fails.
//! 3. No operation uses a pool that was abandoned ([`pools::abandon`]).
//! 4. When an operation returns without an error its change is on disk.
//! 5. An operation refuses callers without the permissions it needs ([`datasets::rights`]).
//!
//! # Lock order
//! `changes` of a pool → its `gate` → its `names` → locks of `pool` and the rooms below. The registry's own locks (claims,
//! then pools, then absent pools) are held briefly, and no other lock is taken under them.
//!
//! Start reading at [`Admin`] and [`PoolEntry`]; then `datasets/set.rs`, an operation that uses all of this.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

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
pub mod rations;
pub mod registry;
pub mod setters;
pub mod shares;
mod streams;
pub mod suspended;
pub mod values;
pub mod volumes;

pub use door::{Door, Mount, MountOptions, Mounting};
pub use head::Head;
pub use mounts::Mounted;
pub use process::{DeviceUse, Process};
pub use registry::{Admin, Paths, PoolEntry, Settings};

/// Result of an operation: an error says what failed, why, and what to do.
pub type Answer<T> = std::result::Result<T, api::ApiError>;
