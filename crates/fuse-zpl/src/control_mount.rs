//! `.zfs` as a file system of its own, mounted over the directory of that name: so it has a device number of its own, and programs that
//! stay on one file system leave the snapshots out.
//!
//! 1. It is served by the adapter of the file system: nodes are the same, but for the root, which is `.zfs` here. No node of the
//!    head is reached through it.
//! 2. It ends no later than the file system: a request is inside [`vfs::Served::enter_control`] while it is served, and the
//!    room waits for those inside before it gives the snapshots back. From then on requests fail.

use crate::adapter::{Adapter, Result};
use fuse::{
    AttrReply, DirBuf, DirPlusBuf, Entry, Errno, Filesystem, OpenArgs, Opened, ReadBuf, Request,
    SetAttr, Statfs, StatxReply, XattrNames,
};
use std::sync::{Arc, Weak};
use vfs::{dir_id, is_ours, Dir};

/// The mount has ended.
const ENOTCONN: Errno = Errno(107);

/// The control directory of a mounted file system, to be mounted itself.
pub struct ControlMount(Weak<Adapter>);

impl ControlMount {
    /// That of a mounted file system.
    pub fn new(adapter: &Arc<Adapter>) -> Arc<ControlMount> {
        Arc::new(ControlMount(Arc::downgrade(adapter)))
    }

    /// Does something with the adapter, and the node that it knows under another id than the kernel.
    fn with<R>(&self, node: u64, f: impl FnOnce(&Adapter, u64) -> Result<R>) -> Result<R> {
        let node = inside(node)?;
        let adapter = self.0.upgrade().ok_or(ENOTCONN)?;
        let _open = adapter.served().enter_control().map_err(|_| ENOTCONN)?;
        f(&adapter, node)
    }
}

/// The adapter's id of a node.
fn inside(node: u64) -> Result<u64> {
    match node {
        fuse::ROOT => Ok(dir_id(Dir::Root)),
        _ if is_ours(node) => Ok(node),
        // Of a handle that was made elsewhere.
        _ => Err(Errno::ESTALE),
    }
}

/// An entry as it is seen from outside.
fn outside(mut entry: Entry) -> Entry {
    if entry.node == dir_id(Dir::Root) {
        entry.node = fuse::ROOT;
    }
    entry
}

impl Filesystem for ControlMount {
    fn lookup(&self, req: &Request, parent: u64, name: &[u8]) -> Result<Entry> {
        // What is above is another file system.
        let name = match (parent, name) {
            (fuse::ROOT, b"..") => b".",
            _ => name,
        };
        let found = self.with(parent, |a, parent| a.lookup(req, parent, name));
        found.map(outside)
    }

    fn getattr(&self, req: &Request, node: u64, fh: Option<u64>) -> Result<AttrReply> {
        self.with(node, |a, node| a.getattr(req, node, fh))
    }

    fn setattr(&self, _: &Request, _: u64, _: &SetAttr) -> Result<AttrReply> {
        Err(Errno::EROFS)
    }

    fn statx(
        &self,
        req: &Request,
        node: u64,
        fh: Option<u64>,
        flags: u32,
        mask: u32,
    ) -> Result<StatxReply> {
        self.with(node, |a, node| a.statx(req, node, fh, flags, mask))
    }

    fn readlink(&self, req: &Request, node: u64) -> Result<Vec<u8>> {
        self.with(node, |a, node| a.readlink(req, node))
    }

    fn symlink(&self, _: &Request, _: u64, _: &[u8], _: &[u8]) -> Result<Entry> {
        Err(Errno::EROFS)
    }

    fn mknod(&self, _: &Request, _: u64, _: &[u8], _: u32, _: u32) -> Result<Entry> {
        Err(Errno::EROFS)
    }

    fn mkdir(&self, req: &Request, parent: u64, name: &[u8], mode: u32) -> Result<Entry> {
        let made = self.with(parent, |a, parent| a.mkdir(req, parent, name, mode));
        made.map(outside)
    }

    fn unlink(&self, _: &Request, _: u64, _: &[u8]) -> Result<()> {
        Err(Errno::EROFS)
    }

    fn rmdir(&self, req: &Request, parent: u64, name: &[u8]) -> Result<()> {
        self.with(parent, |a, parent| a.rmdir(req, parent, name))
    }

    fn rename(
        &self,
        req: &Request,
        parent: u64,
        name: &[u8],
        new_parent: u64,
        new_name: &[u8],
        flags: u32,
    ) -> Result<()> {
        let to = inside(new_parent)?;
        self.with(parent, |a, parent| {
            a.rename(req, parent, name, to, new_name, flags)
        })
    }

    fn link(&self, _: &Request, _: u64, _: u64, _: &[u8]) -> Result<Entry> {
        Err(Errno::EROFS)
    }

    fn open(&self, req: &Request, node: u64, args: OpenArgs) -> Result<Opened> {
        self.with(node, |a, node| a.open_node(req, node, args))
    }

    fn create(
        &self,
        _: &Request,
        _: u64,
        _: &[u8],
        _: u32,
        _: OpenArgs,
    ) -> Result<(Entry, Opened)> {
        Err(Errno::EROFS)
    }

    fn tmpfile(&self, _: &Request, _: u64, _: u32, _: OpenArgs) -> Result<(Entry, Opened)> {
        Err(Errno::EROFS)
    }

    fn read(
        &self,
        req: &Request,
        node: u64,
        _: u64,
        offset: u64,
        size: u32,
        out: &mut ReadBuf,
    ) -> Result<()> {
        self.with(node, |a, node| a.read(req, node, 0, offset, size, out))
    }

    fn flush(&self, _: &Request, _: u64, _: u64) -> Result<()> {
        // The kernel does not ask again.
        Err(Errno::ENOSYS)
    }

    fn fsync(&self, _: &Request, _: u64, _: u64, _: bool) -> Result<()> {
        Ok(())
    }

    fn opendir(&self, req: &Request, node: u64, flags: i32) -> Result<Opened> {
        self.with(node, |a, node| a.open_dir(req, node, flags))
    }

    fn readdir(
        &self,
        req: &Request,
        node: u64,
        fh: u64,
        offset: u64,
        out: &mut DirBuf,
    ) -> Result<()> {
        self.with(node, |a, node| a.readdir(req, node, fh, offset, out))
    }

    fn readdirplus(
        &self,
        req: &Request,
        node: u64,
        fh: u64,
        offset: u64,
        out: &mut DirPlusBuf,
    ) -> Result<()> {
        self.with(node, |a, node| a.readdirplus(req, node, fh, offset, out))
    }

    fn releasedir(&self, req: &Request, node: u64, fh: u64) {
        let _ = self.with(node, |a, node| {
            a.releasedir(req, node, fh);
            Ok(())
        });
    }

    fn statfs(&self, req: &Request, node: u64) -> Result<Statfs> {
        self.with(node, |a, node| a.statfs(req, node))
    }

    fn setxattr(&self, _: &Request, _: u64, _: &[u8], _: &[u8], _: u32, _: bool) -> Result<()> {
        Err(Errno::EROFS)
    }

    fn getxattr(&self, req: &Request, node: u64, name: &[u8]) -> Result<Vec<u8>> {
        self.with(node, |a, node| a.getxattr(req, node, name))
    }

    fn listxattr(&self, req: &Request, node: u64, out: &mut XattrNames) -> Result<()> {
        self.with(node, |a, node| a.listxattr(req, node, out))
    }

    fn removexattr(&self, _: &Request, _: u64, _: &[u8]) -> Result<()> {
        Err(Errno::EROFS)
    }

    fn access(&self, req: &Request, node: u64, mask: u32) -> Result<()> {
        self.with(node, |a, node| a.access(req, node, mask))
    }

    fn ioctl(
        &self,
        req: &Request,
        node: u64,
        fh: u64,
        flags: u32,
        cmd: u32,
        input: &[u8],
        out_size: u32,
    ) -> Result<fuse::IoctlReply> {
        self.with(node, |a, node| {
            a.ioctl(req, node, fh, flags, cmd, input, out_size)
        })
    }

    fn lseek(&self, req: &Request, node: u64, _: u64, offset: u64, whence: u32) -> Result<u64> {
        self.with(node, |a, node| a.seek(req, node, offset, whence))
    }
}
