//! The FUSE door: the kernel's wire format, mounting, the request loop and notifications.
//!
//! A file system implements [`Filesystem`]; [`mount`] makes the connection, [`Session`] serves it.
//!
//! # What the kernel does by itself
//! * Locks (`flock`, `fcntl`): never asked of the daemon, which is the only door to its files.
//! * Permissions: `default_permissions`, and POSIX ACLs with [`Config::posix_acl`].
//! * Umask: *not* applied by the kernel, see [`Request::umask`].
//!
//! # syncfs and unmounting
//! For a plain FUSE mount `sync(2)` and `syncfs(2)` write out the page cache (WRITE and SETATTR
//! arrive and are waited for) but the kernel sends no SYNCFS afterwards: Linux 6.18 sends that to
//! virtiofs and to block-device mounts (`fuseblk`) only. Whoever needs durability at that point has
//! `fsync`. [`Filesystem::syncfs`] is served if a kernel does send it. Likewise unmounting writes
//! out the page cache first but sends no message of its own; RELEASE and FORGET of what was still
//! known to the kernel are dropped. [`Filesystem::destroy`] is where to settle that.

mod channel;
mod config;
mod dispatch;
mod fs;
mod mount;
mod notify;
mod reply;
mod session;
mod sys;
mod types;
pub mod wire;

pub use config::{Config, Negotiated, ReaddirPlus};
pub use fs::{Filesystem, FOREVER};
pub use mount::{mount, mounted, Atime, Mount, MountInfo, MountOptions, Unmount};
pub use notify::Notifier;
pub use reply::{kind_of_mode, DirBuf, DirPlusBuf, ReadBuf, XattrNames};
pub use session::{End, Handle, Session};
pub use types::*;
pub use wire::ROOT;
