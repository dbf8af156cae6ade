//! The POSIX layer (ZPL): files, directories and their attributes, on the objects of
//! crate `dmu` (data format §17–§24). There is no FUSE type here: doors call the methods of [`Zfs`].
//!
//! Lock order: the moving mutex → directories ([`Znode`] `ns`, by object number) → byte ranges →
//! extended attributes (`xlock`) → transaction → link/queue mutex → attributes of a znode. Nothing
//! waits for the log while holding any of them.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod acl;
pub mod attr;
mod create;
pub mod diff;
mod dir;
mod file;
mod intent;
mod lock;
pub mod log;
mod log_records;
mod names;
mod nfs4;
pub mod path;
mod perm;
mod props;
mod quota;
mod readdir;
mod rename;
mod replay;
mod sa;
mod setattr;
mod space_info;
mod statfs;
mod unlinked;
mod upgrade;
mod xattr;
mod zfs;
mod znode;

#[cfg(test)]
mod tests;

pub use attr::{Attr, SetAttr, SetTime, Time};
pub use create::{create_fs, FsOptions};
pub use dir::{New, LINK_MAX, SYMLINK_MAX};
pub use file::{falloc, WriteOpts, A_DAY, MAX_SIZE};
pub use intent::ZilLog;
pub use lock::{RangeGuard, RangeLock};
pub use log::{DataSource, IntentLog, NoLog, Record};
pub use perm::Cred;
pub use props::{AclInherit, AclMode, AclType, LogBias, Props, SyncMode, XattrMode};
pub use quota::{set_quota, NAMES as QUOTA_NAMES};
pub use readdir::DirEntry;
pub use rename::flags as rename_flags;
pub use replay::ReplayData;
pub use space_info::{Space, SpaceInfo, Usage, Whose};
pub use statfs::{Statfs, MAGIC};
pub use upgrade::upgrade_fs;
pub use xattr::{XATTR_CREATE, XATTR_REPLACE};
pub use zfs::{max_zpl_version, Keeper, Mount, Zfs, MASTER_NODE, ZPL_VERSION};
pub use znode::{Extra, Fixed, Form, Znode};

pub use dmu::losses;
