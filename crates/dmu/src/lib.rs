//! The DMU: objects as trees of blocks, and the transactions that change them.
//!
//! Every object has two views. The *open* view is what callers read and write:
//! dirty blocks and changed fields in memory. The *synced* view is the tree of block pointers of
//! the last txg on disk; it is immutable ([`Arc`](std::sync::Arc)) and replaced whole when a txg has
//! been written. A read takes a dirty block if there is one, else walks the synced tree through the
//! block cache.
//!
//! When a txg closes ([`Dmu::begin_sync`]) each dirty object hands over its fields and dirty
//! blocks as shared buffers; later writers copy on write, so the open txg never waits for the
//! txg being written. Writing is bottom-up: data blocks, indirect blocks, dnodes, the meta-dnode's
//! tree, the object set.
//!
//! Lock order: callers' locks → transaction → object → dirty lists. A txg cannot close
//! while a transaction lives. So a thread that holds a transaction must not wait for a lock of the rooms above,
//! for another transaction or for a log commit.
//!
//! Start reading in `tx.rs`, then `dnode.rs` and `sync.rs`.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod ahead;
mod block_spec;
mod content;
mod damage;
mod dnode;
mod early_runs;
mod immediate_write;
mod job_gate;
mod lost;
mod objset;
mod reading;
mod received;
mod rest_queue;
mod shape;
mod streams;
mod strided_prefetch;
mod sync;
pub mod testing;
mod tree;
mod tx;
mod unread_rests;
mod write_early;

pub use dnode::{Dnode, Info};
pub use immediate_write::write_now;
pub use lost::losses;
pub use objset::Objset;
pub use received::{RawMeta, StoredBlock};
pub use shape::{DnodeSeal, NewObject, RawObject, WritePolicy};
pub use sync::SyncHooks;
pub use tx::{
    internal_error, Admission, Damage, Dmu, DmuOptions, Driver, Need, OnDamage, SyncGroup, Tx,
};
pub use unread_rests::UnreadRests;

/// Object numbers of the accounting objects kept in the object set block itself.
pub const USERUSED_OBJECT: u64 = u64::MAX;
/// See [`USERUSED_OBJECT`].
pub const GROUPUSED_OBJECT: u64 = u64::MAX - 1;
/// See [`USERUSED_OBJECT`].
pub const PROJECTUSED_OBJECT: u64 = u64::MAX - 2;
