//! The adapter between FUSE and the POSIX layer: one mounted file system as the kernel sees it, with
//! its control directory `.zfs`.
//!
//! 1. It holds no state that must survive: node ids, open files and caching, no data.
//! 2. It administers nothing. What `.zfs` shows comes through [`Snapshots`].
//! 3. A request that changes something waits in [`Admission`] while the pool is suspended, before it
//!    takes any lock.
//!
//! Start reading at [`Front`], which [`fuse::Session`] serves.

#![forbid(unsafe_code)]

mod admit;
mod bridge;
mod ctldir;
mod fresh;
mod front;
mod nodes;
mod page_reads;
mod snapshots;
mod write_out;
mod writers;

pub use admit::Admission;
pub use bridge::{Bridge, Caching};
pub use ctldir::{Ctldir, Snapdir, Volume};
pub use fresh::Fresh;
pub use front::Front;
pub use nodes::set_limit;
pub use snapshots::{Content, Figures, Key, Snapshots};
pub use write_out::{Ending, Left, Written};
pub use writers::Writers;
