//! Types that every room uses: errors, ranges of numbers, sizes, locks. No I/O and no policy.
//!
//! Start reading at [`Error`].
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod cancel;
pub mod damage;
pub mod data;
pub mod error;
pub mod keep;
pub mod mutation;
pub mod per_txg;
pub mod ranges;
pub mod sizes;
pub mod sync;
pub mod txg;
pub mod waits;

pub use damage::Damage;
pub use data::Data;
pub use error::{io_text, Cause, Error, Kind, Result};
pub use per_txg::PerTxg;
pub use ranges::RangeSet;
pub use txg::Txg;

use std::sync::Arc;

/// Contents of one block, shared between caches, dirty lists and writers; changed only through
/// [`Arc::make_mut`], so whoever holds a clone keeps the bytes it saw.
pub type Block = Arc<Vec<u8>>;

/// Smallest unit of block sizes and DVA offsets: 512 bytes.
pub const SECTOR: u64 = 512;
/// Power of two of [`SECTOR`].
pub const SECTOR_SHIFT: u32 = 9;
/// Largest block before feature `large_blocks`.
pub const OLD_MAX_BLOCK: usize = 128 << 10;
/// Largest block at all.
pub const MAX_BLOCK: usize = 16 << 20;

/// Whether the word for a device is the address of a network block device (`nbd://HOST/EXPORT`, `nbd+unix:///EXPORT?socket=PATH`, and those
/// of TLS), not a path.
pub fn is_network_device(word: &str) -> bool {
    let schemes = ["nbd:", "nbd+unix:", "nbds:", "nbds+unix:"];
    schemes.iter().any(|s| word.starts_with(s))
}

/// How a disk is called where there is no room for its path: the last part of it. An address has no shorter form.
pub fn short_device_name(path: &str) -> &str {
    match is_network_device(path) {
        true => path,
        false => path.rsplit('/').next().unwrap_or(path),
    }
}

/// `x` rounded up to a multiple of `n` (`n` > 0).
pub const fn roundup(x: u64, n: u64) -> u64 {
    x.div_ceil(n) * n
}
