//! The FUSE server: the kernel's message format, mounting, the request loop and notifications.
//!
//! A file system implements [`Filesystem`]; [`mount`] makes the connection, [`Session`] serves it.
//!
//! # What the kernel does by itself
//! * Locks (`flock`, `fcntl`): the kernel keeps them by itself, as long as a file system does not ask for them. So locks hold within one
//!   mount, not between a mount and another door.
//! * Permissions: `default_permissions`, and POSIX ACLs with [`Config::posix_acl`].
//! * Umask: *not* applied by the kernel, see [`Request::umask`].
//!
//! # syncfs and unmounting
//! For a plain FUSE mount `sync(2)` and `syncfs(2)` start writing out the page cache (WRITE and
//! SETATTR arrive) but do not wait for the answers, and the kernel sends no SYNCFS afterwards: it
//! sends that to virtiofs, and from Linux 6.18 on to block-device mounts (`fuseblk`), only. So
//! nothing the daemon could do makes `sync(2)` durable. `fsync` is durable, and
//! other data reaches the disk with the next txg. [`Filesystem::syncfs`] is served if a
//! kernel does send it.
//!
//! Unmounting does write out the page cache and waits for it, but sends no message of its own;
//! RELEASE and FORGET of what was still known to the kernel are dropped. [`Filesystem::destroy`] is
//! where to settle that.
#![warn(missing_docs)]

pub mod abi;
mod awake;
mod channel;
mod config;
mod cpu_latency;
mod dispatch;
mod forgets;
mod fs;
mod handle;
mod interrupt;
mod mounts;
mod notify;
pub mod project;
mod reply;
mod request_buffer;
mod request_counts;
mod ring;
mod session;
mod sys;
mod tell;
#[doc(hidden)]
pub mod testing;
mod types;
mod undoing;
mod worker_pool;
mod write_out;

pub use abi::ROOT;
pub use config::{Config, Negotiated, ReaddirPlus, Transport};
pub use cpu_latency::{let_processors_sleep, limit_wakeup_latency};
pub use fs::{Changed, Filesystem, FOREVER};
pub use handle::{Carried, End, Handle};
pub use interrupt::is_killed;
pub use mounts::mount_again;
pub use notify::Notifier;
pub use privilege::{
    holders, is_dead, mount, mount_at, mounted, objection, path_helper, probe, reach,
    remove_mount_point, serve_paths, unescape, walk_in_processes, with_own_files, Atime, Mount,
    MountInfo, MountOptions, MountPoint, NoMountPoint, Trouble, Unmount, Walker,
};
pub use reply::{kind_of_mode, DirBuf, DirPlusBuf, ReadBuf, XattrNames};
pub use request_counts::Requests;
pub use ring::{enable_uring, wants_uring};
pub use session::Session;
pub use tell::{tell, Truth};
pub use types::*;
pub use worker_pool::{about_to_block, about_to_wait_for_requests, Lent};
pub use write_out::{write_out, NodeAndGeneration, Pages};
