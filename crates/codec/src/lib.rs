//! Transforms of blocks, by on-disk number: [`checksum`], [`compress`], [`crypt`] and [`parity`].
//!
//! Everything here is a pure function of its arguments; nothing does I/O and nothing panics on
//! bytes from a disk.
//!
//! ```
//! use codec::{checksum, compress};
//! use disk::{Checksum, Compression};
//! let data = vec![7u8; 4096];
//! let packed = compress::compress(Compression::LZ4, 0, &data, 3584).unwrap();
//! assert_eq!(compress::decompress(Compression::LZ4, &packed, 4096).unwrap(), data);
//! let words = checksum::compute(Checksum::FLETCHER4, &packed, false, &[0; 32]).unwrap();
//! assert_ne!(words, [0; 4]);
//! ```
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod checksum;
pub mod compress;
pub mod crypt;
pub mod parity;

#[cfg(test)]
mod testdata;
