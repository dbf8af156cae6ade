//! The socket between the commands (`zpool`, `zfs`) and the daemon (`zfs-fuse`). Crate `api` has the requests and
//! replies.
//!
//! The protocol has Varlink's framing and message shape over a Unix stream socket: JSON objects,
//! each ended by a NUL byte; a call is `{"method": "org.zfsfuse.control1.PoolStatus",
//! "parameters": {…}}`, an answer `{"parameters": {…}}`, an error `{"error": "…", "parameters":
//! {…}}`. A call with `"more": true` may be answered by several messages, all but the last marked
//! `"continues": true`. The `1` in the interface name is the version of the protocol: fields may
//! be added to requests and replies (unknown ones are ignored, missing ones take their default);
//! anything else needs a new number.
//!
//! The daemon takes no file descriptor from a client. The bytes of a stream go through a pair of sockets that the daemon
//! makes; the client gets its end (`SCM_RIGHTS`) with a message [`api::Reply::Stream`] before the answer.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod accounts;
pub mod client;
pub mod path;
pub mod server;
pub mod unimported;
pub mod wire;

pub use client::Client;
pub use server::{serve, Handler, Sink};

/// Interface name in front of every method; ends with the protocol's version.
pub const INTERFACE: &str = "org.zfsfuse.control1";
