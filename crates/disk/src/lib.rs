//! On-disk bytes of ZFS and nothing else: layouts, encoders, decoders, tables of names. No I/O.
#![forbid(unsafe_code)]

pub mod blkptr;
pub mod dnode;
pub mod types;

pub use blkptr::{BlkPtr, Dva, BP_SIZE};
pub use dnode::{objset, DnodePhys};
pub use types::{os_type, ObjType, SwapClass};
