//! The kernel's FUSE interface, ABI 7.45 (Linux 6.18): message structures, operation codes, flags.
//!
//! All integers are native-endian. Every message to the daemon begins with [`InHeader`]; every
//! message from it begins with [`OutHeader`] (errors are negative errno, `unique` 0 marks a
//! notification whose code is in the error field). Structures are padded to 8 bytes by the ABI, so
//! a 32-bit daemon speaks the same bytes. Reading copies out of the buffer
//! ([`zerocopy::FromBytes::read_from_prefix`]), so the payload needs no alignment.
//!
//! Names are those of the kernel's `include/uapi/linux/fuse.h`, without their prefixes. Only items whose
//! meaning that file does not tell have comments here.
#![allow(missing_docs)]

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Major version of the interface.
pub const MAJOR: u32 = 7;
/// Newest minor version this crate speaks.
pub const MINOR: u32 = 45;
/// Oldest minor version this crate speaks (Linux 4.20: `max_pages`).
pub const MINOR_MIN: u32 = 28;
/// Node id of the root of every mount.
pub const ROOT: u64 = 1;
/// Smallest buffer the kernel accepts for reading a request.
pub const MIN_READ_BUFFER: usize = 8192;

/// Operation codes of requests (`InHeader::opcode`).
pub mod op {
    pub const LOOKUP: u32 = 1;
    pub const FORGET: u32 = 2;
    pub const GETATTR: u32 = 3;
    pub const SETATTR: u32 = 4;
    pub const READLINK: u32 = 5;
    pub const SYMLINK: u32 = 6;
    pub const MKNOD: u32 = 8;
    pub const MKDIR: u32 = 9;
    pub const UNLINK: u32 = 10;
    pub const RMDIR: u32 = 11;
    pub const RENAME: u32 = 12;
    pub const LINK: u32 = 13;
    pub const OPEN: u32 = 14;
    pub const READ: u32 = 15;
    pub const WRITE: u32 = 16;
    pub const STATFS: u32 = 17;
    pub const RELEASE: u32 = 18;
    pub const FSYNC: u32 = 20;
    pub const SETXATTR: u32 = 21;
    pub const GETXATTR: u32 = 22;
    pub const LISTXATTR: u32 = 23;
    pub const REMOVEXATTR: u32 = 24;
    pub const FLUSH: u32 = 25;
    pub const INIT: u32 = 26;
    pub const OPENDIR: u32 = 27;
    pub const READDIR: u32 = 28;
    pub const RELEASEDIR: u32 = 29;
    pub const FSYNCDIR: u32 = 30;
    pub const GETLK: u32 = 31;
    pub const SETLK: u32 = 32;
    pub const SETLKW: u32 = 33;
    pub const ACCESS: u32 = 34;
    pub const CREATE: u32 = 35;
    pub const INTERRUPT: u32 = 36;
    pub const BMAP: u32 = 37;
    pub const DESTROY: u32 = 38;
    pub const IOCTL: u32 = 39;
    pub const POLL: u32 = 40;
    pub const NOTIFY_REPLY: u32 = 41;
    pub const BATCH_FORGET: u32 = 42;
    pub const FALLOCATE: u32 = 43;
    pub const READDIRPLUS: u32 = 44;
    pub const RENAME2: u32 = 45;
    pub const LSEEK: u32 = 46;
    pub const COPY_FILE_RANGE: u32 = 47;
    pub const SETUPMAPPING: u32 = 48;
    pub const REMOVEMAPPING: u32 = 49;
    pub const SYNCFS: u32 = 50;
    pub const TMPFILE: u32 = 51;
    pub const STATX: u32 = 52;
    pub const COPY_FILE_RANGE_64: u32 = 53;
}

/// Flags of INIT, the low 32 bits in `flags` and the high ones in `flags2`.
pub mod init {
    /// Several reads of one file may be under way at once.
    pub const ASYNC_READ: u64 = 1 << 0;
    /// POSIX locks go to the daemon.
    pub const POSIX_LOCKS: u64 = 1 << 1;
    pub const FILE_OPS: u64 = 1 << 2;
    /// `open` with O_TRUNC truncates; no SETATTR follows.
    pub const ATOMIC_O_TRUNC: u64 = 1 << 3;
    /// LOOKUP of "." and ".." works, for NFS and open_by_handle_at.
    pub const EXPORT_SUPPORT: u64 = 1 << 4;
    /// Writes larger than a page.
    pub const BIG_WRITES: u64 = 1 << 5;
    /// The daemon applies the umask (needed for default ACLs).
    pub const DONT_MASK: u64 = 1 << 6;
    pub const SPLICE_WRITE: u64 = 1 << 7;
    pub const SPLICE_MOVE: u64 = 1 << 8;
    pub const SPLICE_READ: u64 = 1 << 9;
    pub const FLOCK_LOCKS: u64 = 1 << 10;
    /// ioctl on directories.
    pub const HAS_IOCTL_DIR: u64 = 1 << 11;
    /// The kernel drops cached pages when it sees a changed mtime or size.
    pub const AUTO_INVAL_DATA: u64 = 1 << 12;
    pub const DO_READDIRPLUS: u64 = 1 << 13;
    /// READDIRPLUS only where lookups follow.
    pub const READDIRPLUS_AUTO: u64 = 1 << 14;
    pub const ASYNC_DIO: u64 = 1 << 15;
    /// Writes go to the page cache and are sent later.
    pub const WRITEBACK_CACHE: u64 = 1 << 16;
    /// ENOSYS to OPEN means: no OPEN and RELEASE any more.
    pub const NO_OPEN_SUPPORT: u64 = 1 << 17;
    /// Lookups and readdirs of one directory in parallel.
    pub const PARALLEL_DIROPS: u64 = 1 << 18;
    pub const HANDLE_KILLPRIV: u64 = 1 << 19;
    pub const POSIX_ACL: u64 = 1 << 20;
    /// Reading the device of an aborted connection gives ECONNABORTED instead of ENODEV.
    pub const ABORT_ERROR: u64 = 1 << 21;
    pub const MAX_PAGES: u64 = 1 << 22;
    pub const CACHE_SYMLINKS: u64 = 1 << 23;
    pub const NO_OPENDIR_SUPPORT: u64 = 1 << 24;
    /// Cached pages are dropped on explicit notification only.
    pub const EXPLICIT_INVAL_DATA: u64 = 1 << 25;
    pub const MAP_ALIGNMENT: u64 = 1 << 26;
    pub const SUBMOUNTS: u64 = 1 << 27;
    /// The daemon clears suid, sgid and capabilities when asked by flags in the requests.
    pub const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
    /// SETXATTR has the 16-byte form.
    pub const SETXATTR_EXT: u64 = 1 << 29;
    /// `flags2` is there.
    pub const INIT_EXT: u64 = 1 << 30;
    pub const SECURITY_CTX: u64 = 1 << 32;
    pub const HAS_INODE_DAX: u64 = 1 << 33;
    /// Creating requests carry the supplementary group that equals the parent's group.
    pub const CREATE_SUPP_GROUP: u64 = 1 << 34;
    /// INVAL_ENTRY knows "expire only".
    pub const HAS_EXPIRE_ONLY: u64 = 1 << 35;
    pub const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;
    pub const PASSTHROUGH: u64 = 1 << 37;
    pub const NO_EXPORT_SUPPORT: u64 = 1 << 38;
    pub const HAS_RESEND: u64 = 1 << 39;
    pub const ALLOW_IDMAP: u64 = 1 << 40;
    pub const OVER_IO_URING: u64 = 1 << 41;
    pub const REQUEST_TIMEOUT: u64 = 1 << 42;

    /// Names for logs, in bit order.
    pub const NAMES: &[(u64, &str)] = &[
        (ASYNC_READ, "ASYNC_READ"),
        (POSIX_LOCKS, "POSIX_LOCKS"),
        (FILE_OPS, "FILE_OPS"),
        (ATOMIC_O_TRUNC, "ATOMIC_O_TRUNC"),
        (EXPORT_SUPPORT, "EXPORT_SUPPORT"),
        (BIG_WRITES, "BIG_WRITES"),
        (DONT_MASK, "DONT_MASK"),
        (SPLICE_WRITE, "SPLICE_WRITE"),
        (SPLICE_MOVE, "SPLICE_MOVE"),
        (SPLICE_READ, "SPLICE_READ"),
        (FLOCK_LOCKS, "FLOCK_LOCKS"),
        (HAS_IOCTL_DIR, "HAS_IOCTL_DIR"),
        (AUTO_INVAL_DATA, "AUTO_INVAL_DATA"),
        (DO_READDIRPLUS, "DO_READDIRPLUS"),
        (READDIRPLUS_AUTO, "READDIRPLUS_AUTO"),
        (ASYNC_DIO, "ASYNC_DIO"),
        (WRITEBACK_CACHE, "WRITEBACK_CACHE"),
        (NO_OPEN_SUPPORT, "NO_OPEN_SUPPORT"),
        (PARALLEL_DIROPS, "PARALLEL_DIROPS"),
        (HANDLE_KILLPRIV, "HANDLE_KILLPRIV"),
        (POSIX_ACL, "POSIX_ACL"),
        (ABORT_ERROR, "ABORT_ERROR"),
        (MAX_PAGES, "MAX_PAGES"),
        (CACHE_SYMLINKS, "CACHE_SYMLINKS"),
        (NO_OPENDIR_SUPPORT, "NO_OPENDIR_SUPPORT"),
        (EXPLICIT_INVAL_DATA, "EXPLICIT_INVAL_DATA"),
        (MAP_ALIGNMENT, "MAP_ALIGNMENT"),
        (SUBMOUNTS, "SUBMOUNTS"),
        (HANDLE_KILLPRIV_V2, "HANDLE_KILLPRIV_V2"),
        (SETXATTR_EXT, "SETXATTR_EXT"),
        (INIT_EXT, "INIT_EXT"),
        (SECURITY_CTX, "SECURITY_CTX"),
        (HAS_INODE_DAX, "HAS_INODE_DAX"),
        (CREATE_SUPP_GROUP, "CREATE_SUPP_GROUP"),
        (HAS_EXPIRE_ONLY, "HAS_EXPIRE_ONLY"),
        (DIRECT_IO_ALLOW_MMAP, "DIRECT_IO_ALLOW_MMAP"),
        (PASSTHROUGH, "PASSTHROUGH"),
        (NO_EXPORT_SUPPORT, "NO_EXPORT_SUPPORT"),
        (HAS_RESEND, "HAS_RESEND"),
        (ALLOW_IDMAP, "ALLOW_IDMAP"),
        (OVER_IO_URING, "OVER_IO_URING"),
        (REQUEST_TIMEOUT, "REQUEST_TIMEOUT"),
    ];
}

/// Bits of `SetattrIn::valid`.
pub mod fattr {
    pub const MODE: u32 = 1 << 0;
    pub const UID: u32 = 1 << 1;
    pub const GID: u32 = 1 << 2;
    pub const SIZE: u32 = 1 << 3;
    pub const ATIME: u32 = 1 << 4;
    pub const MTIME: u32 = 1 << 5;
    pub const FH: u32 = 1 << 6;
    pub const ATIME_NOW: u32 = 1 << 7;
    pub const MTIME_NOW: u32 = 1 << 8;
    pub const LOCKOWNER: u32 = 1 << 9;
    pub const CTIME: u32 = 1 << 10;
    pub const KILL_SUIDGID: u32 = 1 << 11;
}

/// Flags of the answer to OPEN, OPENDIR and CREATE.
pub mod fopen {
    /// Bypass the page cache for this open file.
    pub const DIRECT_IO: u32 = 1 << 0;
    /// Keep the pages cached from earlier opens.
    pub const KEEP_CACHE: u32 = 1 << 1;
    pub const NONSEEKABLE: u32 = 1 << 2;
    /// Cache the contents of this directory.
    pub const CACHE_DIR: u32 = 1 << 3;
    pub const STREAM: u32 = 1 << 4;
    /// No FLUSH when it is closed (without the writeback cache).
    pub const NOFLUSH: u32 = 1 << 5;
    /// Direct writes need not be serialised by the kernel.
    pub const PARALLEL_DIRECT_WRITES: u32 = 1 << 6;
    pub const PASSTHROUGH: u32 = 1 << 7;
}

/// `OpenIn::open_flags`, `CreateIn::open_flags`: kill suid and sgid (truncating open).
pub const OPEN_KILL_SUIDGID: u32 = 1;
/// `GetattrIn::getattr_flags`: `fh` is valid.
pub const GETATTR_FH: u32 = 1;
/// `WriteIn::write_flags`: write from the page cache; the file handle is a guess.
pub const WRITE_CACHE: u32 = 1;
/// `WriteIn::write_flags`: `lock_owner` is valid.
pub const WRITE_LOCKOWNER: u32 = 2;
/// `WriteIn::write_flags`: kill suid and sgid.
pub const WRITE_KILL_SUIDGID: u32 = 4;
/// `ReadIn::read_flags`: `lock_owner` is valid.
pub const READ_LOCKOWNER: u32 = 2;
/// `FsyncIn::fsync_flags`: data only.
pub const FSYNC_FDATASYNC: u32 = 1;
/// `ReleaseIn::release_flags`.
pub const RELEASE_FLUSH: u32 = 1;
/// `ReleaseIn::release_flags`.
pub const RELEASE_FLOCK_UNLOCK: u32 = 2;
/// `SetxattrInExt::setxattr_flags`: clear sgid with system.posix_acl_access.
pub const SETXATTR_ACL_KILL_SGID: u32 = 1;
/// `IoctlIn::flags`: 32-bit caller on a 64-bit machine.
pub const IOCTL_COMPAT: u32 = 1;
/// `IoctlIn::flags`: on a directory.
pub const IOCTL_DIR: u32 = 1 << 4;
/// `NotifyInvalEntryOut::flags`: only expire the entry.
pub const EXPIRE_ONLY: u32 = 1;
/// Type of the extension that holds supplementary groups.
pub const EXT_GROUPS: u32 = 32;
/// Bit of `InHeader::unique` of a request sent again.
pub const UNIQUE_RESEND: u64 = 1 << 63;

/// Codes of notifications (`OutHeader::error` with `unique` 0).
pub mod notify {
    pub const POLL: i32 = 1;
    pub const INVAL_INODE: i32 = 2;
    pub const INVAL_ENTRY: i32 = 3;
    pub const STORE: i32 = 4;
    pub const RETRIEVE: i32 = 5;
    pub const DELETE: i32 = 6;
    pub const RESEND: i32 = 7;
    pub const INC_EPOCH: i32 = 8;
    pub const PRUNE: i32 = 9;
}

macro_rules! wire {
    ($($(#[$m:meta])* $name:ident, $size:literal { $($field:ident : $t:ty),* $(,)? })*) => {
        $(
            $(#[$m])*
            #[repr(C)]
            #[derive(Clone, Copy, Debug, Default, PartialEq, Eq,
                     FromBytes, IntoBytes, Immutable, KnownLayout)]
            pub struct $name { $(pub $field: $t),* }
            const _: () = assert!(std::mem::size_of::<$name>() == $size);
        )*
    };
}

wire! {
    /// Head of every request. `len` counts everything; `total_extlen` is in units of 8 bytes, the
    /// extensions are the last bytes of the message.
    InHeader, 40 { len: u32, opcode: u32, unique: u64, nodeid: u64, uid: u32, gid: u32, pid: u32,
        total_extlen: u16, padding: u16 }
    /// Head of every answer and notification.
    OutHeader, 16 { len: u32, error: i32, unique: u64 }
    Attr, 88 { ino: u64, size: u64, blocks: u64, atime: u64, mtime: u64, ctime: u64,
        atimensec: u32, mtimensec: u32, ctimensec: u32, mode: u32, nlink: u32, uid: u32, gid: u32,
        rdev: u32, blksize: u32, flags: u32 }
    Kstatfs, 80 { blocks: u64, bfree: u64, bavail: u64, files: u64, ffree: u64, bsize: u32,
        namelen: u32, frsize: u32, padding: u32, spare: [u32; 6] }
    /// Answer to whatever names an inode: LOOKUP, MKNOD, MKDIR, SYMLINK, LINK, and the first part
    /// of CREATE's.
    EntryOut, 128 { nodeid: u64, generation: u64, entry_valid: u64, attr_valid: u64,
        entry_valid_nsec: u32, attr_valid_nsec: u32, attr: Attr }
    ForgetIn, 8 { nlookup: u64 }
    ForgetOne, 16 { nodeid: u64, nlookup: u64 }
    BatchForgetIn, 8 { count: u32, dummy: u32 }
    GetattrIn, 16 { getattr_flags: u32, dummy: u32, fh: u64 }
    AttrOut, 104 { attr_valid: u64, attr_valid_nsec: u32, dummy: u32, attr: Attr }
    SxTime, 16 { tv_sec: i64, tv_nsec: u32, reserved: i32 }
    Statx, 256 { mask: u32, blksize: u32, attributes: u64, nlink: u32, uid: u32, gid: u32,
        mode: u16, spare0: u16, ino: u64, size: u64, blocks: u64, attributes_mask: u64,
        atime: SxTime, btime: SxTime, ctime: SxTime, mtime: SxTime, rdev_major: u32,
        rdev_minor: u32, dev_major: u32, dev_minor: u32, spare2: [u64; 14] }
    StatxIn, 24 { getattr_flags: u32, reserved: u32, fh: u64, sx_flags: u32, sx_mask: u32 }
    StatxOut, 288 { attr_valid: u64, attr_valid_nsec: u32, flags: u32, spare: [u64; 2],
        stat: Statx }
    MknodIn, 16 { mode: u32, rdev: u32, umask: u32, padding: u32 }
    MkdirIn, 8 { mode: u32, umask: u32 }
    RenameIn, 8 { newdir: u64 }
    Rename2In, 16 { newdir: u64, flags: u32, padding: u32 }
    LinkIn, 8 { oldnodeid: u64 }
    SetattrIn, 88 { valid: u32, padding: u32, fh: u64, size: u64, lock_owner: u64, atime: u64,
        mtime: u64, ctime: u64, atimensec: u32, mtimensec: u32, ctimensec: u32, mode: u32,
        unused4: u32, uid: u32, gid: u32, unused5: u32 }
    OpenIn, 8 { flags: u32, open_flags: u32 }
    CreateIn, 16 { flags: u32, mode: u32, umask: u32, open_flags: u32 }
    OpenOut, 16 { fh: u64, open_flags: u32, backing_id: i32 }
    ReleaseIn, 24 { fh: u64, flags: u32, release_flags: u32, lock_owner: u64 }
    FlushIn, 24 { fh: u64, unused: u32, padding: u32, lock_owner: u64 }
    ReadIn, 40 { fh: u64, offset: u64, size: u32, read_flags: u32, lock_owner: u64, flags: u32,
        padding: u32 }
    WriteIn, 40 { fh: u64, offset: u64, size: u32, write_flags: u32, lock_owner: u64, flags: u32,
        padding: u32 }
    WriteOut, 8 { size: u32, padding: u32 }
    FsyncIn, 16 { fh: u64, fsync_flags: u32, padding: u32 }
    /// SETXATTR before SETXATTR_EXT.
    SetxattrIn, 8 { size: u32, flags: u32 }
    /// SETXATTR with SETXATTR_EXT.
    SetxattrInExt, 16 { size: u32, flags: u32, setxattr_flags: u32, padding: u32 }
    GetxattrIn, 8 { size: u32, padding: u32 }
    GetxattrOut, 8 { size: u32, padding: u32 }
    AccessIn, 8 { mask: u32, padding: u32 }
    /// INIT as old kernels send it (16 bytes); the extended one has `flags2` behind it.
    InitIn, 16 { major: u32, minor: u32, max_readahead: u32, flags: u32 }
    InitOut, 64 { major: u32, minor: u32, max_readahead: u32, flags: u32, max_background: u16,
        congestion_threshold: u16, max_write: u32, time_gran: u32, max_pages: u16,
        map_alignment: u16, flags2: u32, max_stack_depth: u32, request_timeout: u16,
        unused: [u16; 11] }
    InterruptIn, 8 { unique: u64 }
    BmapIn, 16 { block: u64, blocksize: u32, padding: u32 }
    IoctlIn, 32 { fh: u64, flags: u32, cmd: u32, arg: u64, in_size: u32, out_size: u32 }
    IoctlOut, 16 { result: i32, flags: u32, in_iovs: u32, out_iovs: u32 }
    PollIn, 24 { fh: u64, kh: u64, flags: u32, events: u32 }
    PollOut, 8 { revents: u32, padding: u32 }
    FallocateIn, 32 { fh: u64, offset: u64, length: u64, mode: u32, padding: u32 }
    /// Head of a directory entry; the name follows, the whole is padded to 8 bytes.
    Dirent, 24 { ino: u64, off: u64, namelen: u32, kind: u32 }
    LseekIn, 24 { fh: u64, offset: u64, whence: u32, padding: u32 }
    LseekOut, 8 { offset: u64 }
    CopyFileRangeIn, 56 { fh_in: u64, off_in: u64, nodeid_out: u64, fh_out: u64, off_out: u64,
        len: u64, flags: u64 }
    CopyFileRangeOut, 8 { bytes_copied: u64 }
    SyncfsIn, 8 { padding: u64 }
    /// Head of one extension at the end of a request; `size` counts the head.
    ExtHeader, 8 { size: u32, kind: u32 }
    NotifyInvalInodeOut, 24 { ino: u64, off: i64, len: i64 }
    NotifyInvalEntryOut, 16 { parent: u64, namelen: u32, flags: u32 }
    NotifyDeleteOut, 24 { parent: u64, child: u64, namelen: u32, padding: u32 }
    NotifyStoreOut, 24 { nodeid: u64, offset: u64, size: u32, padding: u32 }
    NotifyRetrieveOut, 32 { notify_unique: u64, nodeid: u64, offset: u64, size: u32,
        padding: u32 }
    NotifyRetrieveIn, 40 { dummy1: u64, offset: u64, size: u32, dummy2: u32, dummy3: u64,
        dummy4: u64 }
    NotifyPruneOut, 16 { count: u32, padding: u32, spare: u64 }
    /// What travels beside a request and its answer over io_uring: `commit_id` names the request
    /// when it is answered, `payload_sz` counts what is in the payload buffer, in either direction.
    UringEntInOut, 32 { flags: u64, commit_id: u64, payload_sz: u32, padding: u32, reserved: u64 }
    /// In the 80 bytes of an io_uring command.
    UringCmdReq, 24 { flags: u64, commit_id: u64, qid: u16, padding: [u8; 6] }
}

/// The buffer of heads of an io_uring entry: [`InHeader`] and later [`OutHeader`] at 0, the
/// operation's own arguments at [`URING_OP_IN`], [`UringEntInOut`] at [`URING_ENT`].
pub const URING_HEADERS: usize = 288;
pub const URING_OP_IN: usize = 128;
pub const URING_ENT: usize = 256;
/// io_uring command: hands over the buffers of an entry, and fetches its first request.
pub const URING_CMD_REGISTER: u32 = 1;
/// io_uring command: answers the request of an entry and fetches the next.
pub const URING_CMD_COMMIT_AND_FETCH: u32 = 2;

/// `n` rounded up to the 8 bytes directory entries are aligned to.
pub const fn align8(n: usize) -> usize {
    (n + 7) & !7
}
