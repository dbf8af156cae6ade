//! The DSL: directories, datasets, snapshots, their space accounting and properties, kept in
//! objects of the MOS (data format §7–§16, pool format §17, §18, §22).
//!
//! Every change runs in syncing context, on the one thread that writes the
//! txg ([`dmu::Tx::is_syncing`]); all threads may read. In-core [`Dir`]s and
//! [`Dataset`]s cache the bonus structures and write them through.
//!
//! The part of this crate in writing a txg:
//! 1. for every dirty object set: `os.sync(tx, pass, &ds.hooks(tx))`, then [`Dataset::synced`];
//! 2. changes of the name space ([`Dsl::create_fs`], [`Dsl::destroy_head`], [`Dsl::snapshot`], …),
//!    which see all blocks of the txg accounted; object sets they made dirty are written as in 1;
//! 3. [`Dsl::free_some`], within the budget of the txg;
//! 4. [`Dsl::flush_mos`], then the MOS itself with [`Dsl::mos_hooks`], until nothing is dirty.
//!
//! Start reading in `dsl.rs` (opening, finding, listing), then `dataset.rs` and `dir.rs`.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod bookmark;
pub mod bpobj;
mod bptree;
mod caller;
mod core;
mod create;
pub mod crypto;
mod dataset;
pub mod deadlist;
pub mod deleg;
mod destroy;
mod dir;
mod dsl;
pub mod features;
mod free;
pub mod history;
pub mod hold;
mod limits;
mod livelist;
mod promote;
mod prop_values;
pub mod props;
mod receive;
mod redaction;
mod remap;
mod rename;
mod scan;
mod snapshot;
mod space;
mod triple;
mod upgrade;

#[cfg(test)]
mod tests;

pub use self::core::{Event, PoolSpace, ScanChange, Triple, FULL_NAME_MAX};
pub use bookmark::Source as BookmarkSource;
pub use bpobj::Bpobj;
pub use caller::Caller;
pub use create::CreateArgs;
pub use crypto::{KeyObject, KeyParams, NewKey, ReceivedKey};
pub use dataset::{Dataset, DatasetSync, InUse};
pub use deadlist::Deadlist;
pub use dir::Dir;
pub use dsl::{Dsl, MosHooks, SnapshotEntry};
pub use features::{FeatureStore, Features, NoFeatures};
pub use free::Freed;
pub use history::History;
pub use prop_values::{PropSource, PropValue};
pub use receive::{ReceiveBegin, ReceiveEnd, ReceiveTarget, ResumeState, RECV};
pub use redaction::RedactionList;
pub use snapshot::Held;
