//! The on-disk format of ZFS: layouts, encoders, decoders, tables of names. No I/O.
//!
//! 1. Nothing that was read is indexed unchecked, unwrapped, or allowed to size an allocation.
//! 2. Decoders take little-endian bytes; [`bytes`] swaps blocks of the other byte order first.
//!
//! Start reading at [`blkptr`].
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod acl;
pub mod algorithms;
pub mod blkptr;
pub mod brt;
pub mod bytes;
pub mod crypt;
pub mod ddt;
pub mod dnode;
pub mod dsl;
pub mod feature;
pub mod fuid;
pub mod history;
pub mod l2arc;
pub mod label;
pub mod mos_keys;
pub mod names;
pub mod nvlist;
pub mod props;
pub mod sa;
pub mod scan;
pub mod spacemap;
pub mod stream;
pub mod types;
pub mod uberblock;
pub mod volume;
pub mod xattr;
pub mod zil;
pub mod znode;

pub use algorithms::{Checksum, Compression};
pub use blkptr::{BlkPtr, Dva, BP_SIZE};
pub use bytes::swap_u64s;
pub use dnode::{objset, DnodePhys};
pub use nvlist::{NvList, Value};
pub use types::{os_type, ObjType, SwapClass};
pub use uberblock::Uberblock;
