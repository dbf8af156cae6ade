//! [`Filesystem`]: the interface that a file system implements to be served. One method for each FUSE operation.

use std::time::Duration;

use base::Data;

use crate::config::Negotiated;
use crate::reply::{DirBuf, DirPlusBuf, ReadBuf, XattrNames};
use crate::types::*;

/// A file system. One method per operation, called at any time from several threads; whatever a
/// method does before it returns is what the caller of the system call waits for.
///
/// * Nodes are named by a node id of the file system's choice; the root is [`crate::ROOT`].
/// * Names are bytes without NUL and '/'. The kernel lets up to 1023 (Linux 6.18: 4095) of them
///   through, so ENAMETOOLONG is up to the method, in `lookup` too.
/// * Permissions are checked by the kernel (`default_permissions`) before the call; what it cannot
///   know (immutable files, quota, sticky directories across user namespaces…) is up to the method.
/// * Defaults answer ENOSYS. For several operations that teaches the kernel not to ask again during
///   this mount (open, opendir, flush, fsync, fsyncdir, access, xattrs, lseek, copy_file_range,
///   fallocate, statx, tmpfile, syncfs, readdirplus), mostly meaning "nothing to do".
/// * Mode bits of creating operations arrive without the umask applied: see [`Request::umask`].
#[allow(unused_variables)]
pub trait Filesystem: Send + Sync + 'static {
    /// The kernel has agreed on these parameters; requests follow.
    fn init(&self, agreed: &Negotiated) {}

    /// The mount is gone and no request is running any more. Handles and lookup counts that are
    /// still there will not be released one by one.
    fn destroy(&self) {}

    /// Finds a name. With EXPORT_SUPPORT also "." and "..", on a node id that may have been
    /// forgotten meanwhile (answer ESTALE if it cannot be served).
    fn lookup(&self, req: &Request, parent: u64, name: &[u8]) -> Result<Entry> {
        Err(Errno::ENOSYS)
    }

    /// The kernel drops `nlookup` of the lookups it was given for the node.
    fn forget(&self, node: u64, nlookup: u64) {}

    /// Attributes of a node; `fh` is the handle of an `fstat`.
    fn getattr(&self, req: &Request, node: u64, fh: Option<u64>) -> Result<AttrReply> {
        Err(Errno::ENOSYS)
    }

    /// Changes attributes and returns the new ones.
    fn setattr(&self, req: &Request, node: u64, set: &SetAttr) -> Result<AttrReply> {
        Err(Errno::ENOSYS)
    }

    /// `statx` with more than the basic fields; `mask` is the `STATX_*` the caller wants. The
    /// default answers from [`Filesystem::getattr`], with the birth time if that gives one.
    fn statx(
        &self,
        req: &Request,
        node: u64,
        fh: Option<u64>,
        flags: u32,
        mask: u32,
    ) -> Result<StatxReply> {
        let a = self.getattr(req, node, fh)?;
        Ok(StatxReply {
            attr: a.attr,
            ttl: a.ttl,
            attributes: 0,
            attributes_mask: 0,
        })
    }

    /// Target of a symbolic link.
    fn readlink(&self, req: &Request, node: u64) -> Result<Vec<u8>> {
        Err(Errno::ENOSYS)
    }

    /// Makes a symbolic link.
    fn symlink(&self, req: &Request, parent: u64, name: &[u8], target: &[u8]) -> Result<Entry> {
        Err(Errno::ENOSYS)
    }

    /// `mode` has the type; `rdev` is in the 32-bit form of [`makedev`].
    fn mknod(
        &self,
        req: &Request,
        parent: u64,
        name: &[u8],
        mode: u32,
        rdev: u32,
    ) -> Result<Entry> {
        Err(Errno::ENOSYS)
    }

    /// Makes a directory.
    fn mkdir(&self, req: &Request, parent: u64, name: &[u8], mode: u32) -> Result<Entry> {
        Err(Errno::ENOSYS)
    }

    /// Removes the name of a node that is no directory.
    fn unlink(&self, req: &Request, parent: u64, name: &[u8]) -> Result<()> {
        Err(Errno::ENOSYS)
    }

    /// Removes an empty directory.
    fn rmdir(&self, req: &Request, parent: u64, name: &[u8]) -> Result<()> {
        Err(Errno::ENOSYS)
    }

    /// `flags`: `RENAME_NOREPLACE`, `RENAME_EXCHANGE`, `RENAME_WHITEOUT` of renameat2(2).
    fn rename(
        &self,
        req: &Request,
        parent: u64,
        name: &[u8],
        new_parent: u64,
        new_name: &[u8],
        flags: u32,
    ) -> Result<()> {
        Err(Errno::ENOSYS)
    }

    /// One more name for `node` (also for a nameless one of [`Filesystem::tmpfile`]).
    fn link(&self, req: &Request, node: u64, new_parent: u64, new_name: &[u8]) -> Result<Entry> {
        Err(Errno::ENOSYS)
    }

    /// ENOSYS here (with [`crate::Config::zero_message_open`]) means no `open` and `release` at
    /// all: handle 0 everywhere.
    fn open(&self, req: &Request, node: u64, args: OpenArgs) -> Result<Opened> {
        Err(Errno::ENOSYS)
    }

    /// Makes and opens a file; `mode` has the type.
    fn create(
        &self,
        req: &Request,
        parent: u64,
        name: &[u8],
        mode: u32,
        args: OpenArgs,
    ) -> Result<(Entry, Opened)> {
        Err(Errno::ENOSYS)
    }

    /// Makes and opens a file without a name (O_TMPFILE) that may live in `parent` later.
    fn tmpfile(
        &self,
        req: &Request,
        parent: u64,
        mode: u32,
        args: OpenArgs,
    ) -> Result<(Entry, Opened)> {
        Err(Errno::EOPNOTSUPP)
    }

    /// Puts up to `size` bytes from `offset` into `out`; fewer only at the end of the file.
    fn read(
        &self,
        req: &Request,
        node: u64,
        fh: u64,
        offset: u64,
        size: u32,
        out: &mut ReadBuf,
    ) -> Result<()> {
        Err(Errno::ENOSYS)
    }

    /// Writes; returns how many bytes (all of them, unless something failed in between).
    fn write(
        &self,
        req: &Request,
        node: u64,
        fh: u64,
        offset: u64,
        data: Data<'_>,
        args: WriteArgs,
    ) -> Result<u32> {
        Err(Errno::ENOSYS)
    }

    /// A descriptor of the open file was closed (there may be others).
    fn flush(&self, req: &Request, node: u64, fh: u64) -> Result<()> {
        Err(Errno::ENOSYS)
    }

    /// The open file is closed for good. Nobody sees the result.
    fn release(&self, req: &Request, node: u64, fh: u64, flags: i32) {}

    /// Everything about the file, or with `datasync` what is needed to read its data, is durable
    /// afterwards.
    fn fsync(&self, req: &Request, node: u64, fh: u64, datasync: bool) -> Result<()> {
        Err(Errno::ENOSYS)
    }

    /// Opens a directory.
    fn opendir(&self, req: &Request, node: u64, flags: i32) -> Result<Opened> {
        Err(Errno::ENOSYS)
    }

    /// Adds entries behind position `offset` (0 is the start; otherwise a `next` given with an
    /// earlier entry, in any order: seekdir) until `out` is full. Nothing added means the end.
    fn readdir(
        &self,
        req: &Request,
        node: u64,
        fh: u64,
        offset: u64,
        out: &mut DirBuf,
    ) -> Result<()> {
        Err(Errno::ENOSYS)
    }

    /// Like readdir, with attributes. Every entry added with a node counts as a lookup.
    fn readdirplus(
        &self,
        req: &Request,
        node: u64,
        fh: u64,
        offset: u64,
        out: &mut DirPlusBuf,
    ) -> Result<()> {
        Err(Errno::ENOSYS)
    }

    /// Closes a directory.
    fn releasedir(&self, req: &Request, node: u64, fh: u64) {}

    /// Returns when the changes of the directory are durable.
    fn fsyncdir(&self, req: &Request, node: u64, fh: u64, datasync: bool) -> Result<()> {
        Err(Errno::ENOSYS)
    }

    /// Space and counts of the file system.
    fn statfs(&self, req: &Request, node: u64) -> Result<Statfs> {
        Err(Errno::ENOSYS)
    }

    /// `flags`: `XATTR_CREATE`, `XATTR_REPLACE`. `kill_sgid`: setting system.posix_acl_access must
    /// clear the sgid bit.
    fn setxattr(
        &self,
        req: &Request,
        node: u64,
        name: &[u8],
        value: &[u8],
        flags: u32,
        kill_sgid: bool,
    ) -> Result<()> {
        Err(Errno::ENOSYS)
    }

    /// The value; ENODATA if there is none. (The transport answers "how large" and ERANGE.)
    fn getxattr(&self, req: &Request, node: u64, name: &[u8]) -> Result<Vec<u8>> {
        Err(Errno::ENOSYS)
    }

    /// Adds the names of all extended attributes to `out`.
    fn listxattr(&self, req: &Request, node: u64, out: &mut XattrNames) -> Result<()> {
        Err(Errno::ENOSYS)
    }

    /// Removes an extended attribute.
    fn removexattr(&self, req: &Request, node: u64, name: &[u8]) -> Result<()> {
        Err(Errno::ENOSYS)
    }

    /// access(2), only without `default_permissions`.
    fn access(&self, req: &Request, node: u64, mask: u32) -> Result<()> {
        Err(Errno::ENOSYS)
    }

    /// An ioctl with data of fixed size as the number says. See [`ioctl`]. `flags` are
    /// [`crate::abi::IOCTL_DIR`] and the like.
    fn ioctl(
        &self,
        req: &Request,
        node: u64,
        fh: u64,
        flags: u32,
        cmd: u32,
        input: &[u8],
        out_size: u32,
    ) -> Result<IoctlReply> {
        Err(Errno::ENOTTY)
    }

    /// `mode`: `FALLOC_FL_*`.
    fn fallocate(
        &self,
        req: &Request,
        node: u64,
        fh: u64,
        offset: u64,
        length: u64,
        mode: u32,
    ) -> Result<()> {
        Err(Errno::ENOSYS)
    }

    /// SEEK_DATA and SEEK_HOLE (the others are the kernel's business).
    fn lseek(&self, req: &Request, node: u64, fh: u64, offset: u64, whence: u32) -> Result<u64> {
        Err(Errno::ENOSYS)
    }

    /// Copies inside the file system; returns how many bytes. Fewer than asked is fine.
    fn copy_file_range(
        &self,
        req: &Request,
        node_in: u64,
        fh_in: u64,
        offset_in: u64,
        node_out: u64,
        fh_out: u64,
        offset_out: u64,
        length: u64,
        flags: u64,
    ) -> Result<u64> {
        Err(Errno::ENOSYS)
    }

    /// poll(2) and select(2): which of `events` hold now. Without it the kernel says that all do.
    fn poll(&self, req: &Request, node: u64, fh: u64, events: u32) -> Result<u32> {
        Err(Errno::ENOSYS)
    }

    /// The caller of a request was killed while it was served, and the kernel was told that it was interrupted, not how it ended.
    /// It has ended now. What the kernel believes of what it may have changed is to be put right: notifications may be sent.
    fn outcome_unknown(&self, changed: Changed<'_>) {}

    /// syncfs(2) and sync(2); see the crate's documentation for when the kernel sends it.
    fn syncfs(&self, req: &Request, node: u64) -> Result<()> {
        Err(Errno::ENOSYS)
    }
}

/// What a request may have changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Changed<'a> {
    /// A name of a directory, and so the directory.
    Name(u64, &'a [u8]),
    /// Attributes of a node.
    Attributes(u64),
    /// The content of a node, and so its attributes.
    Content(u64),
    /// The size of a node was to be set: its content and attributes.
    Size(u64),
}

/// "For as long as the kernel likes": what the kernel may keep for ever, because this daemon is the
/// only one to change it and says so when it does.
pub const FOREVER: Duration = Duration::from_secs(365 * 24 * 3600);
