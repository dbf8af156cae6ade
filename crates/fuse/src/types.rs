//! Arguments and results of operations: errors, times, attributes, directory entries.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::abi;

/// An errno, as a system call of the caller will see it. [`base::Error`] converts into it, so `?`
/// works on results of the core.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Errno(pub i32);

// errno(3) says what each of them means.
#[allow(missing_docs)]
impl Errno {
    pub const EPERM: Errno = Errno(libc::EPERM);
    pub const ENOENT: Errno = Errno(libc::ENOENT);
    pub const EIO: Errno = Errno(libc::EIO);
    pub const EBADF: Errno = Errno(libc::EBADF);
    pub const EACCES: Errno = Errno(libc::EACCES);
    pub const EEXIST: Errno = Errno(libc::EEXIST);
    pub const ENOTDIR: Errno = Errno(libc::ENOTDIR);
    pub const EISDIR: Errno = Errno(libc::EISDIR);
    pub const EINVAL: Errno = Errno(libc::EINVAL);
    pub const EFBIG: Errno = Errno(libc::EFBIG);
    pub const ENOSPC: Errno = Errno(libc::ENOSPC);
    pub const EROFS: Errno = Errno(libc::EROFS);
    pub const ERANGE: Errno = Errno(libc::ERANGE);
    pub const ENAMETOOLONG: Errno = Errno(libc::ENAMETOOLONG);
    pub const ENOSYS: Errno = Errno(libc::ENOSYS);
    pub const ENOTEMPTY: Errno = Errno(libc::ENOTEMPTY);
    pub const ENODATA: Errno = Errno(libc::ENODATA);
    pub const ENOTTY: Errno = Errno(libc::ENOTTY);
    pub const ENXIO: Errno = Errno(libc::ENXIO);
    pub const EOPNOTSUPP: Errno = Errno(libc::EOPNOTSUPP);
    pub const ESTALE: Errno = Errno(libc::ESTALE);
    pub const E2BIG: Errno = Errno(libc::E2BIG);
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "errno {} ({})",
            self.0,
            base::io_text(&std::io::Error::from_raw_os_error(self.0))
        )
    }
}

impl From<base::Error> for Errno {
    fn from(e: base::Error) -> Errno {
        Errno(e.errno())
    }
}

impl From<base::Kind> for Errno {
    fn from(k: base::Kind) -> Errno {
        Errno(k.errno())
    }
}

impl From<std::io::Error> for Errno {
    fn from(e: std::io::Error) -> Errno {
        Errno(e.raw_os_error().unwrap_or(libc::EIO))
    }
}

/// Result of an operation.
pub type Result<T> = std::result::Result<T, Errno>;

/// Who asks. `umask` is set for requests that create something and must be applied by the file
/// system (unless the parent has a default ACL): the kernel does not do it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Request {
    /// Number of the request.
    pub unique: u64,
    /// User id of the caller.
    pub uid: u32,
    /// Group id of the caller.
    pub gid: u32,
    /// Thread of the caller in the daemon's pid namespace; 0 when it is not visible there, and for
    /// work the kernel does by itself (write-back).
    pub pid: u32,
    /// Umask of the caller.
    pub umask: u32,
    /// For creating requests: the parent's group if it is among the caller's supplementary groups.
    pub supp_group: Option<u32>,
    /// Of a read: what it gives stays in the kernel's page cache. False for O_DIRECT, whose reads
    /// alone name the owner of locks.
    pub fills_page_cache: bool,
    /// Of a listing: the directory was opened with O_NOATIME.
    pub noatime: bool,
}

/// A point in time, seconds and nanoseconds since 1970 UTC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time {
    /// Seconds since 1970.
    pub sec: i64,
    /// 0..1_000_000_000
    pub nsec: u32,
}

impl Time {
    /// The wall clock. For tests and examples; the engine asks its own clock.
    pub fn now() -> Time {
        let d = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        Time {
            sec: d.as_secs() as i64,
            nsec: d.subsec_nanos(),
        }
    }
}

/// A time in SETATTR: a given one, or "now" by the file system's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// The time of the file system's clock.
    Now,
    /// This time.
    At(Time),
}

/// Attributes of a node, as `stat` shows them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attr {
    /// `st_ino`; need not be the node id.
    pub ino: u64,
    /// Bytes.
    pub size: u64,
    /// In units of 512 bytes.
    pub blocks: u64,
    /// Last access.
    pub atime: Time,
    /// Last change of the content.
    pub mtime: Time,
    /// Last change of an attribute.
    pub ctime: Time,
    /// Birth, for `statx`; `None` if not known.
    pub btime: Option<Time>,
    /// File type and permission bits (`S_IFMT` and the rest).
    pub mode: u32,
    /// Number of names.
    pub nlink: u32,
    /// User id of the owner.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// Device number in the kernel's 32-bit form, see [`makedev`].
    pub rdev: u32,
    /// Preferred I/O size in bytes, a power of two. 0 lets the kernel choose.
    pub blksize: u32,
}

/// The kernel's 32-bit device number: 12 bits major, 20 bits minor.
pub const fn makedev(major: u32, minor: u32) -> u32 {
    (minor & 0xff) | ((major & 0xfff) << 8) | ((minor & 0xfff00) << 12)
}

/// Major number of a 32-bit device number.
pub const fn dev_major(dev: u32) -> u32 {
    (dev >> 8) & 0xfff
}

/// Minor number of a 32-bit device number.
pub const fn dev_minor(dev: u32) -> u32 {
    (dev & 0xff) | ((dev >> 12) & 0xfff00)
}

impl Attr {
    pub(crate) fn to_wire(self) -> abi::Attr {
        abi::Attr {
            ino: self.ino,
            size: self.size,
            blocks: self.blocks,
            atime: self.atime.sec as u64,
            mtime: self.mtime.sec as u64,
            ctime: self.ctime.sec as u64,
            atimensec: self.atime.nsec,
            mtimensec: self.mtime.nsec,
            ctimensec: self.ctime.nsec,
            mode: self.mode,
            nlink: self.nlink,
            uid: self.uid,
            gid: self.gid,
            rdev: self.rdev,
            blksize: self.blksize,
            flags: 0,
        }
    }
}

/// Attributes with the time the kernel may keep them.
#[derive(Clone, Copy, Debug, Default)]
pub struct AttrReply {
    /// The attributes.
    pub attr: Attr,
    /// How long the kernel may trust them.
    pub ttl: Duration,
}

/// Answer to `statx`.
#[derive(Clone, Copy, Debug, Default)]
pub struct StatxReply {
    /// The attributes.
    pub attr: Attr,
    /// How long the kernel may trust them.
    pub ttl: Duration,
    /// `STATX_ATTR_*` bits that are set. (Linux 6.18 asks for them but does not show them.)
    pub attributes: u64,
    /// `STATX_ATTR_*` bits that mean something here.
    pub attributes_mask: u64,
}

/// A name found or made. Every `Entry` answered with `node` ≠ 0 adds one to the lookup count of
/// the node, which `forget` takes away again.
#[derive(Clone, Copy, Debug, Default)]
pub struct Entry {
    /// Node id, the handle of all later requests. 0: there is no such name, and the kernel may
    /// remember that for `entry_ttl`. Never used again for another object during the mount.
    pub node: u64,
    /// Together with `node` unique for ever (file handles of NFS are made of both).
    pub generation: u64,
    /// Its attributes.
    pub attr: Attr,
    /// How long the kernel may trust the name.
    pub entry_ttl: Duration,
    /// How long the kernel may trust the attributes.
    pub attr_ttl: Duration,
}

impl Entry {
    /// "No such name", to be remembered for `ttl`.
    pub fn negative(ttl: Duration) -> Entry {
        Entry {
            entry_ttl: ttl,
            ..Entry::default()
        }
    }

    pub(crate) fn to_wire(self) -> abi::EntryOut {
        abi::EntryOut {
            nodeid: self.node,
            generation: self.generation,
            entry_valid: self.entry_ttl.as_secs(),
            attr_valid: self.attr_ttl.as_secs(),
            entry_valid_nsec: self.entry_ttl.subsec_nanos(),
            attr_valid_nsec: self.attr_ttl.subsec_nanos(),
            attr: self.attr.to_wire(),
        }
    }
}

/// What SETATTR changes; `None` stays as it is.
#[derive(Clone, Copy, Debug, Default)]
pub struct SetAttr {
    /// Permission bits (the type bits repeat what the node is).
    pub mode: Option<u32>,
    /// User id of the owner.
    pub uid: Option<u32>,
    /// Group id.
    pub gid: Option<u32>,
    /// Bytes.
    pub size: Option<u64>,
    /// Last access.
    pub atime: Option<SetTime>,
    /// Last change of the content.
    pub mtime: Option<SetTime>,
    /// Sent by the kernel with the write-back cache, when it has kept the times itself.
    pub ctime: Option<Time>,
    /// Handle of the open file for `ftruncate` and the like.
    pub fh: Option<u64>,
    /// Take away suid, and sgid if the file is executable by its group (HANDLE_KILLPRIV_V2).
    pub kill_suidgid: bool,
}

/// An open file or directory.
#[derive(Clone, Copy, Debug, Default)]
pub struct Opened {
    /// Handle chosen by the file system, given back with every operation on the open file.
    pub fh: u64,
    /// [`abi::fopen`] bits.
    pub flags: u32,
}

/// How a file is opened.
#[derive(Clone, Copy, Debug, Default)]
pub struct OpenArgs {
    /// `O_*` of open(2), without O_CREAT, O_EXCL, O_NOCTTY.
    pub flags: i32,
    /// With O_TRUNC: take away suid and sgid, as in [`SetAttr::kill_suidgid`].
    pub kill_suidgid: bool,
}

/// How a write came about.
#[derive(Clone, Copy, Debug, Default)]
pub struct WriteArgs {
    /// From the write-back cache: `fh` and the caller are guesses; permission was checked before.
    pub cached: bool,
    /// Take away suid, and sgid if executable by the group.
    pub kill_suidgid: bool,
    /// `O_*` of the open file.
    pub open_flags: i32,
}

/// Answer to `statfs`. Sizes in units of `frsize`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Statfs {
    /// Size of the file system.
    pub blocks: u64,
    /// Free space.
    pub bfree: u64,
    /// Free space for ordinary users.
    pub bavail: u64,
    /// Number of objects in all.
    pub files: u64,
    /// Objects that can still be made.
    pub ffree: u64,
    /// Preferred I/O size.
    pub bsize: u32,
    /// Longest name in bytes.
    pub namelen: u32,
    /// Unit of the counts, in bytes.
    pub frsize: u32,
}

/// Answer to an ioctl.
#[derive(Clone, Debug, Default)]
pub struct IoctlReply {
    /// Return value of the system call.
    pub result: i32,
    /// Data for the caller, at most the `out_size` asked for.
    pub data: Vec<u8>,
}

/// ioctl numbers the kernel passes through (64-bit layout). Before it sets anything the kernel gets
/// FS_IOC_FSGETXATTR, so a file system that serves FS_IOC_SETFLAGS must serve that too.
pub mod ioctl {
    /// Get the `FS_*_FL` flags: out 4 bytes.
    pub const FS_IOC_GETFLAGS: u32 = 0x8008_6601;
    /// Set the flags: in 4 bytes.
    pub const FS_IOC_SETFLAGS: u32 = 0x4008_6602;
    /// Get the generation number: out 8 bytes (callers read 4).
    pub const FS_IOC_GETVERSION: u32 = 0x8008_7601;
    /// Set the generation number.
    pub const FS_IOC_SETVERSION: u32 = 0x4008_7602;
    /// Get `struct fsxattr`: out 28 bytes (xflags, extsize, nextents, projid, cowextsize, 8 bytes
    /// of padding).
    pub const FS_IOC_FSGETXATTR: u32 = 0x801c_581f;
    /// Set `struct fsxattr`: in 28 bytes.
    pub const FS_IOC_FSSETXATTR: u32 = 0x401c_5820;
    /// DOS flags of a file of ZFS, 8 bytes.
    pub const ZFS_IOC_GETDOSFLAGS: u32 = 0x8008_8301;
    /// See [`ZFS_IOC_GETDOSFLAGS`].
    pub const ZFS_IOC_SETDOSFLAGS: u32 = 0x4008_8302;
}
