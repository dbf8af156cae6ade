//! The types of requests, replies and errors between the commands (`zpool`, `zfs`) and administration.
//!
//! This crate has no policy and no rendering: replies carry raw values, the commands format them. Crate `control`
//! describes how they are transmitted.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

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

/// The process at the other end of a socket, as the kernel names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// Process id.
    pub pid: i32,
}
