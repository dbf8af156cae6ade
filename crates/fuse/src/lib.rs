//! The FUSE door: the kernel's wire format, mounting, the request loop and notifications.
//!
//! A file system implements [`Filesystem`]; [`Session`] serves it.

mod config;
mod fs;
mod reply;
mod types;
pub mod wire;

pub use config::{Config, Negotiated, ReaddirPlus};
pub use fs::{Filesystem, FOREVER};
pub use reply::{kind_of_mode, DirBuf, DirPlusBuf, ReadBuf, XattrNames};
pub use types::*;
pub use wire::ROOT;
