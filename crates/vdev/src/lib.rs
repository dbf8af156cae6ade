//! The vdev tree of a pool: leaves, labels, mirrors, RAID-Z, dRAID.
//!
//! A [`VdevTree`] holds the top-level vdevs of one pool. It is built from a creation spec
//! ([`VdevTree::create`]) or from a configuration ([`VdevTree::from_config`]), opens its leaves
//! through `env`, writes and reads their labels, and moves blocks: [`VdevTree::read`] finds good
//! data on any redundancy there is, [`WriteBatch`] collects writes and sends them leaf by leaf.
//!
//! Subjects: `tree` (the vdevs and changes of them), `label`, `discover` (pools found by their labels), `keys` (names in configurations), `layout` (where bytes lie),
//! `read`, `write`, `wear` (discards, and writes to free space, of what `on_leaf` says is free on a leaf), and `health` (counters, unflushed writes, reports of single transfers).
//!
//! Everything is synchronous and may be called from many threads. No lock is held during I/O.
//!
//! Start reading in `tree/mod.rs`, then `read.rs` and `write.rs`.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod discover;
mod health;
pub mod keys;
pub mod label;
pub mod layout;
mod on_leaf;
mod read;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;
mod tree;
mod wear;
mod write;

use health::{copying, io_counts, repairs, reports, unflushed};
pub use layout::{draid, indirect, map, size};
use tree::{abandon, edit, expansion, held, node, open, spec, split, state};

pub use abandon::{Left, Pulse};
pub use discover::{discover, Found, PoolFound, Problem};
pub use edit::Attach;
pub use expansion::{ExpansionRefusal, ScratchWindow, EXPANSION_GAP};
pub use indirect::{IndirectMap, Piece};
pub use io_counts::{IoFigures, QUEUES, SLOW_NS};
pub use node::{Stats, Vdev, VdevKind};
pub use on_leaf::OnLeaf;
pub use read::{BadLeaf, Fault, RawRange, ReadOutcome, ReadReq, Rebuilt};
pub use reports::{Report, Trouble};
pub use spec::{Bias, DevSpec, GroupKind, TopSpec};
pub use split::split_tree;
pub use state::{Aux, State};
pub use tree::VdevTree;
pub use write::WriteBatch;
