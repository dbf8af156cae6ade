//! The door through FUSE to a file system in service ([`vfs::Served`]): the kernel's requests as operations of a [`vfs::Door`], its
//! answers and errors as FUSE has them, and what the room publishes as the kernel's notifications.
//!
//! 1. It decides nothing about files. What it decides is how the kernel may cache ([`Caching`]), and which requests the kernel need
//!    not send.
//! 2. A type of `fuse` is in no room below it.
//!
//! Start reading at `filesystem.rs`: what each request turns into. `convert.rs` translates callers, attributes and errors,
//! `ioctls.rs` flags and projects, `kernel.rs` notifications. `control_mount.rs` is `.zfs` as a file system of its own, `view_mount.rs` several file systems in one mount, `write_out.rs`
//! takes from the kernel what it keeps of written data.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod adapter;
mod caching;
mod control_mount;
mod convert;
mod filesystem;
mod ioctls;
mod kernel;
mod view_mount;
mod write_out;

pub use adapter::Adapter;
pub use caching::Caching;
pub use control_mount::ControlMount;
pub use kernel::Kernel;
pub use view_mount::ViewMount;
pub use write_out::{Ending, Left, Written, MOST};
