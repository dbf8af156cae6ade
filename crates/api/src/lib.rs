//! The vocabulary between the commands (`zpool`, `zfs`) and administration: requests, replies, errors.
//!
//! No policy and no rendering here: values travel raw, the commands print them. How they travel is told in
//! the crate `control`.
#![forbid(unsafe_code)]

pub mod bytes;
mod concerns;
pub mod error;
pub mod reply;
pub mod request;
pub mod secret;

pub use bytes::Bytes;
pub use concerns::Concerns;
pub use error::ApiError;
pub use reply::*;
pub use request::*;
pub use secret::Secret;

/// Who asks, as the kernel says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    pub uid: u32,
    pub gid: u32,
    pub pid: i32,
}
