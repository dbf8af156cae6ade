//! ZAPs: objects that map names to arrays of integers (data format §3).
//!
//! [`Zap`] is a view of one object through the [`Store`] trait. Every operation works in place
//! on the bytes of the few blocks concerned, so an operation costs the same in a directory of a million
//! entries as in a small one. Byte order: blocks are little-endian here (`zio` swaps them);
//! array data inside leaves is big-endian by format.
//!
//! Lock order: an operation holds [`Store::lock`] of its object, and takes no second lock of that kind.
//! Start reading in `view.rs`.
//!
//! ```
//! use zap::{mem::MemStore, Zap};
//! let (store, tx) = (MemStore::new(512), ());
//! let zap = Zap::new(&store);
//! zap.create(&tx, 0)?;
//! zap.add_u64(&tx, "hello", 7)?;
//! assert_eq!(zap.get("hello")?, Some(7));
//! # Ok::<(), base::Error>(())
//! ```
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod bulk;
mod cursor;
#[cfg(test)]
mod dmu_tests;
mod fat;
mod hash;
mod leaf;
pub mod mem;
mod micro;
mod names;
mod stats;
mod store;
mod table;
mod value;
mod view;

#[cfg(test)]
mod tests;

pub use cursor::{Cursor, Entry};
pub use micro::Indexed;
pub use names::{norm, normalize};
pub use stats::{FatStats, Stats, STATS_BUCKETS};
pub use store::Store;
pub use value::{hex_key, parse_hex_key, Key, Value};
pub use view::{create_object, create_with, Found, Match};

/// A ZAP in the object `store`. Cheap to make; all methods lock the object for their duration.
pub struct Zap<'a, S: Store> {
    pub(crate) store: &'a S,
    pub(crate) max_name: usize,
    pub(crate) max_micro: usize,
}

/// First word of a microzap block.
pub(crate) const BLOCK_MICRO: u64 = (1 << 63) | 3;
/// First word of a fat ZAP's header block.
pub(crate) const BLOCK_HEADER: u64 = (1 << 63) | 1;
/// First word of a leaf block.
pub(crate) const BLOCK_LEAF: u64 = 1 << 63;

/// ZAP flags (data format §3.7).
pub mod flags {
    /// 48 bits of hash instead of 28.
    pub const HASH64: u64 = 1;
    /// Keys are arrays of 64-bit words.
    pub const UINT64_KEY: u64 = 2;
    /// The first key word already is the hash.
    pub const PRE_HASHED_KEY: u64 = 4;
}

/// Longest stored name, NUL included, without feature `longname`.
pub const MAX_NAME: usize = 256;
/// Longest stored name, NUL included, in directories with feature `longname`.
pub const MAX_LONG_NAME: usize = 1024;
/// Longest value in bytes.
pub const MAX_VALUE: usize = 8192;
/// Largest microzap block without feature `large_microzap`.
pub const MAX_MICRO: usize = 128 << 10;
/// Largest microzap block with feature `large_microzap`.
pub const MAX_LARGE_MICRO: usize = 1 << 20;
/// Block size (log2) a microzap is converted to.
pub const FAT_SHIFT: u32 = 14;
