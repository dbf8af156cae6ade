//! The adapter between FUSE and the POSIX layer: one mounted file system as the kernel sees it, with
//! its control directory `.zfs`.
//!
//! 1. It holds nothing that must survive: node ids, open files and what the kernel was told, no data.
//! 2. It administers nothing. What `.zfs` shows, and what is done to snapshots there, comes through [`Snapshots`].
//! 3. A request that changes something waits in `admission.rs` while the pool is suspended, and every
//!    request for the head in `gate.rs` while the file system is, before it takes any lock.
//!
//! Lock order: the gate, locks of the POSIX layer, one shard of the nodes, the counted ids. The lists of
//! writers, fresh and stale nodes are locked last and for a moment.
//!
//! Start reading at `filesystem.rs`: what each request turns into. `adapter.rs` has what all of them need,
//! `attributes.rs`, `data.rs` and `directories.rs` the requests that take more than a line; `ctldir.rs` is
//! `.zfs`, `control_mount.rs` the same as a file system of its own, `nodes.rs` the ids, `listings.rs` what the kernel keeps of directories that it opens without asking, `swap.rs` the suspension of a mounted file system.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod adapter;
mod admission;
mod attributes;
mod caching;
mod control_gate;
mod control_lists;
mod control_mount;
mod convert;
mod ctldir;
mod data;
mod directories;
mod filesystem;
mod fresh;
mod gate;
mod listings;
mod nodes;
mod page_reads;
mod power;
mod snapshots;
mod stale;
mod swap;
mod write_out;
mod writers;

pub use adapter::Adapter;
pub use caching::Caching;
pub use control_mount::ControlMount;
pub use ctldir::Ctldir;
pub use fresh::Fresh;
pub use nodes::set_limit;
pub use snapshots::{Caller, Content, Figures, Key, Snapdir, Snapshots, Volume};
pub use swap::Suspended;
pub use write_out::{Ending, Left, Written, MOST};
pub use writers::Writers;
