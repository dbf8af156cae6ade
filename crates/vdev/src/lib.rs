//! The device tree: leaves, labels, mirrors, RAID-Z.
//!
//! A [`VdevTree`] holds the top-level vdevs of one pool. It is built from a creation spec
//! ([`VdevTree::create`]) or from a configuration ([`VdevTree::from_config`]), opens its leaves
//! through `env`, writes and reads their labels, and moves blocks: [`VdevTree::read`] finds good
//! data on any redundancy there is, [`WriteBatch`] collects writes and sends them leaf by leaf.
//!
//! Everything is synchronous and may be called from many threads. No lock is held during I/O.
#![forbid(unsafe_code)]

mod abandon;
pub mod discover;
pub mod draid;
mod draid_maps;
mod edit;
pub mod indirect;
mod io_counts;
pub mod keys;
pub mod label;
pub mod map;
mod node;
mod open;
mod read;
pub mod size;
mod spec;
mod state;
mod tree;
mod unflushed;
mod write;

#[cfg(test)]
mod moved_tests;
#[cfg(test)]
mod parity_tests;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;

pub use abandon::{Left, Pulse};
pub use discover::{discover, Found, PoolFound, Problem};
pub use edit::Attach;
pub use indirect::{IndirectMap, Piece};
pub use io_counts::{IoFigures, SLOW_NS};
pub use node::{Stats, Vdev, VdevKind};
pub use read::{BadLeaf, Fault, ReadOutcome, ReadReq};
pub use spec::{DevSpec, GroupKind, TopSpec};
pub use state::{Aux, State};
pub use tree::VdevTree;
pub use write::WriteBatch;
