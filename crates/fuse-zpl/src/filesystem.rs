//! The trait [`fuse::Filesystem`] implemented by the adapter: one method for each request of the kernel.

use crate::adapter::{Adapter, Result};
use crate::caching::O_DIRECT;
use crate::convert::{self, open_how, set_attr_in, statfs_out, By, O_DSYNC, O_NOATIME};
use base::{Block, Data};
use fuse::{
    AttrReply, Changed, DirBuf, DirPlusBuf, Entry, Errno, Filesystem, IoctlReply, OpenArgs, Opened,
    ReadBuf, Request, SetAttr, Statfs, StatxReply, WriteArgs, XattrNames,
};
use std::ops::Range;
use std::sync::atomic::Ordering;
use vfs::{is_ours, WriteHow, WRITER};
use zpl::{DirEntry, New};

/// `STATX_ATTR_IMMUTABLE`, `_APPEND` and `_NODUMP` have the numbers of the `FS_*_FL` flags.
const STATX_ATTRIBUTES: u64 = 0x70;
/// Pieces with fewer bytes are better copied than listed.
const SMALL_PIECE: usize = 2048;

/// Entries with attributes, as they go to the kernel.
struct Plus<'a>(&'a Adapter, &'a mut DirPlusBuf);

impl vfs::Listing for Plus<'_> {
    fn fits(&mut self, name_len: usize) -> bool {
        self.1.fits(name_len)
    }

    fn add(&mut self, ino: u64, e: &DirEntry<'_>, entry: Option<&vfs::Entry>) -> bool {
        match entry {
            Some(entry) => {
                let entry = convert::entry(&self.0.caching, entry);
                !self.1.add(&entry, e.next, e.name)
            }
            None => !self.1.add_plain(ino, e.next, u32::from(e.dtype), e.name),
        }
    }
}

impl Filesystem for Adapter {
    fn init(&self, agreed: &fuse::Negotiated) {
        self.door
            .keeps_times(agreed.has(fuse::abi::init::WRITEBACK_CACHE));
        // A kernel that cannot do without takes the answer for an error.
        let opens = self.needs_no_open() && agreed.has(fuse::abi::init::NO_OPEN_SUPPORT);
        self.opens_unasked.store(opens, Ordering::Relaxed);
        let lists = self.needs_no_opendir() && agreed.has(fuse::abi::init::NO_OPENDIR_SUPPORT);
        self.lists_unasked.store(lists, Ordering::Relaxed);
        self.door.lists_unasked(lists);
    }

    fn destroy(&self) {
        self.door.close();
    }

    fn lookup(&self, req: &Request, parent: u64, name: &[u8]) -> Result<Entry> {
        let found = self.door.lookup(&By(req), parent, name)?;
        Ok(convert::lookup(&self.caching, &found))
    }

    fn forget(&self, node: u64, nlookup: u64) {
        self.door.forget(node, nlookup);
    }

    fn getattr(&self, req: &Request, node: u64, fh: Option<u64>) -> Result<AttrReply> {
        let by = By(req);
        // With a handle the kernel asks before it lets a write into its cache (stat comes without).
        if fh == Some(WRITER) && !is_ours(node) {
            self.door.before_write(&by, node)?;
        }
        Ok(convert::attrs(&self.caching, self.door.getattr(&by, node)?))
    }

    fn setattr(&self, req: &Request, node: u64, set: &SetAttr) -> Result<AttrReply> {
        let done = self.door.setattr(&By(req), node, &set_attr_in(set))?;
        Ok(convert::attrs(&self.caching, done))
    }

    fn statx(
        &self,
        req: &Request,
        node: u64,
        _: Option<u64>,
        _: u32,
        _: u32,
    ) -> Result<StatxReply> {
        let attrs = self.door.getattr(&By(req), node)?;
        let AttrReply { attr, ttl } = convert::attrs(&self.caching, attrs);
        Ok(StatxReply {
            attr,
            ttl,
            attributes: u64::from(attrs.attr.fs_flags) & STATX_ATTRIBUTES,
            attributes_mask: STATX_ATTRIBUTES,
        })
    }

    fn readlink(&self, req: &Request, node: u64) -> Result<Vec<u8>> {
        Ok(self.door.readlink(&By(req), node)?)
    }

    fn symlink(&self, req: &Request, parent: u64, name: &[u8], target: &[u8]) -> Result<Entry> {
        self.make(req, parent, name, &New::symlink(target))
    }

    fn mknod(
        &self,
        req: &Request,
        parent: u64,
        name: &[u8],
        mode: u32,
        rdev: u32,
    ) -> Result<Entry> {
        let new = New::device(mode, req.umask, rdev as u64);
        self.make(req, parent, name, &new)
    }

    fn mkdir(&self, req: &Request, parent: u64, name: &[u8], mode: u32) -> Result<Entry> {
        let made = self.door.mkdir(&By(req), parent, name, (mode, req.umask))?;
        Ok(convert::entry(&self.caching, &made))
    }

    fn unlink(&self, req: &Request, parent: u64, name: &[u8]) -> Result<()> {
        Ok(self.door.unlink(&By(req), parent, name)?)
    }

    fn rmdir(&self, req: &Request, parent: u64, name: &[u8]) -> Result<()> {
        Ok(self.door.rmdir(&By(req), parent, name)?)
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
        let (from, to) = ((parent, name), (new_parent, new_name));
        Ok(self.door.rename(&By(req), from, to, flags)?)
    }

    fn link(&self, req: &Request, node: u64, new_parent: u64, new_name: &[u8]) -> Result<Entry> {
        let made = self.door.link(&By(req), node, new_parent, new_name)?;
        Ok(convert::entry(&self.caching, &made))
    }

    fn open(&self, req: &Request, node: u64, args: OpenArgs) -> Result<Opened> {
        match self.opens_unasked.load(Ordering::Relaxed) {
            // The kernel does not ask again.
            true => Err(Errno::ENOSYS),
            false => self.open_node(req, node, args),
        }
    }

    fn create(
        &self,
        req: &Request,
        parent: u64,
        name: &[u8],
        mode: u32,
        args: OpenArgs,
    ) -> Result<(Entry, Opened)> {
        let new = New::file(mode, req.umask);
        let made = self
            .door
            .create(&By(req), parent, name, &new, open_how(args))?;
        Ok(self.made_open(made, args))
    }

    fn tmpfile(
        &self,
        req: &Request,
        parent: u64,
        mode: u32,
        args: OpenArgs,
    ) -> Result<(Entry, Opened)> {
        let new = New::file(mode, req.umask);
        let made = self.door.tmpfile(&By(req), parent, &new, open_how(args))?;
        Ok(self.made_open(made, args))
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
        let mut put = |b: &Block, r: Range<usize>| match r.len() < SMALL_PIECE {
            true => out.put(&b[r]),
            false => out.push(b.clone(), r),
        };
        let (at, cached) = ((offset, size as usize), req.fills_page_cache);
        Ok(self.door.read(&By(req), node, at, cached, &mut put)?)
    }

    fn write(
        &self,
        req: &Request,
        node: u64,
        _: u64,
        offset: u64,
        data: Data<'_>,
        args: WriteArgs,
    ) -> Result<u32> {
        let how = WriteHow {
            cached: args.cached,
            sync: !args.cached && args.open_flags & O_DSYNC != 0,
            direct: !args.cached && args.open_flags & O_DIRECT != 0,
            kill_suidgid: args.kill_suidgid,
        };
        Ok(self.door.write(&By(req), node, offset, data, how)? as u32)
    }

    fn flush(&self, _: &Request, node: u64, _: u64) -> Result<()> {
        match is_ours(node) {
            true => Ok(()),
            // The kernel does not ask again.
            false => Err(Errno::ENOSYS),
        }
    }

    fn release(&self, _: &Request, node: u64, fh: u64, _: i32) {
        self.door.release(node, fh);
    }

    fn fsync(&self, req: &Request, node: u64, _: u64, _: bool) -> Result<()> {
        Ok(self.door.fsync(&By(req), node)?)
    }

    fn opendir(&self, req: &Request, node: u64, flags: i32) -> Result<Opened> {
        match self.lists_unasked.load(Ordering::Relaxed) {
            true => Err(Errno::ENOSYS),
            false => self.open_dir(req, node, flags),
        }
    }

    fn readdir(
        &self,
        req: &Request,
        node: u64,
        fh: u64,
        offset: u64,
        out: &mut DirBuf,
    ) -> Result<()> {
        let put = |ino: u64, e: &DirEntry<'_>| !out.add(ino, e.next, u32::from(e.dtype), e.name);
        let at = (fh, offset);
        Ok(self.door.read_dir(&By(req), node, at, req.noatime, put)?)
    }

    fn readdirplus(
        &self,
        req: &Request,
        node: u64,
        fh: u64,
        offset: u64,
        out: &mut DirPlusBuf,
    ) -> Result<()> {
        let out = &mut Plus(self, out);
        let at = (fh, offset);
        Ok(self
            .door
            .read_dir_plus(&By(req), node, at, req.noatime, out)?)
    }

    fn releasedir(&self, _: &Request, node: u64, fh: u64) {
        self.door.release_dir(node, fh);
    }

    fn fsyncdir(&self, req: &Request, node: u64, fh: u64, datasync: bool) -> Result<()> {
        self.fsync(req, node, fh, datasync)
    }

    fn statfs(&self, req: &Request, node: u64) -> Result<Statfs> {
        Ok(statfs_out(&self.door.statfs(&By(req), node)?))
    }

    fn setxattr(
        &self,
        req: &Request,
        node: u64,
        name: &[u8],
        value: &[u8],
        flags: u32,
        kill_sgid: bool,
    ) -> Result<()> {
        let set = (name, value);
        Ok(self.door.setxattr(&By(req), node, set, flags, kill_sgid)?)
    }

    fn getxattr(&self, req: &Request, node: u64, name: &[u8]) -> Result<Vec<u8>> {
        Ok(self.door.getxattr(&By(req), node, name)?)
    }

    fn listxattr(&self, req: &Request, node: u64, out: &mut XattrNames) -> Result<()> {
        let names = self.door.listxattr(&By(req), node)?;
        names.iter().for_each(|name| out.add(name));
        Ok(())
    }

    fn removexattr(&self, req: &Request, node: u64, name: &[u8]) -> Result<()> {
        Ok(self.door.removexattr(&By(req), node, name)?)
    }

    fn access(&self, req: &Request, node: u64, mask: u32) -> Result<()> {
        Ok(self.door.access(&By(req), node, mask)?)
    }

    fn ioctl(
        &self,
        req: &Request,
        node: u64,
        _: u64,
        _: u32,
        cmd: u32,
        input: &[u8],
        _: u32,
    ) -> Result<IoctlReply> {
        self.flags_ioctl(req, node, cmd, input)
    }

    fn fallocate(
        &self,
        req: &Request,
        node: u64,
        _: u64,
        offset: u64,
        length: u64,
        mode: u32,
    ) -> Result<()> {
        Ok(self
            .door
            .fallocate(&By(req), node, (offset, length), mode)?)
    }

    fn lseek(&self, req: &Request, node: u64, _: u64, offset: u64, whence: u32) -> Result<u64> {
        self.seek(req, node, offset, whence)
    }

    fn copy_file_range(
        &self,
        req: &Request,
        node_in: u64,
        _: u64,
        offset_in: u64,
        node_out: u64,
        _: u64,
        offset_out: u64,
        length: u64,
        flags: u64,
    ) -> Result<u64> {
        if flags != 0 {
            return Err(Errno::EINVAL);
        }
        let (from, to) = ((node_in, offset_in), (node_out, offset_out));
        Ok(self.door.copy_range(&By(req), from, to, length)?)
    }

    fn outcome_unknown(&self, changed: Changed<'_>) {
        self.door.outcome_unknown(&convert::change(changed));
    }

    fn syncfs(&self, req: &Request, _: u64) -> Result<()> {
        Ok(self.door.sync_all(&By(req))?)
    }
}

impl Adapter {
    fn make(&self, req: &Request, parent: u64, name: &[u8], new: &New<'_>) -> Result<Entry> {
        let made = self.door.make(&By(req), parent, name, new)?;
        Ok(convert::entry(&self.caching, &made))
    }

    fn made_open(
        &self,
        (entry, opened): (vfs::Entry, vfs::Opened),
        args: OpenArgs,
    ) -> (Entry, Opened) {
        (
            convert::entry(&self.caching, &entry),
            self.caching.opened(&opened, args.flags),
        )
    }

    /// Opens a file of the head, of a snapshot, or a volume.
    pub(crate) fn open_node(&self, req: &Request, node: u64, args: OpenArgs) -> Result<Opened> {
        let opened = self.door.open(&By(req), node, open_how(args))?;
        // What is side by side is written, and nothing is in a snapshot.
        let flags = if is_ours(node) { 0 } else { args.flags };
        Ok(self.caching.opened(&opened, flags))
    }

    /// Opens a directory.
    pub(crate) fn open_dir(&self, req: &Request, node: u64, flags: i32) -> Result<Opened> {
        let keeps_atime = flags & O_NOATIME != 0;
        let opened = self.door.open_dir(&By(req), node, keeps_atime)?;
        Ok(self.caching.opened_dir(&opened))
    }

    /// Where data or a hole begins at or after `offset`.
    pub(crate) fn seek(&self, req: &Request, node: u64, offset: u64, whence: u32) -> Result<u64> {
        const SEEK_DATA: u32 = 3;
        const SEEK_HOLE: u32 = 4;
        let data = match whence {
            SEEK_DATA => true,
            SEEK_HOLE => false,
            _ => return Err(Errno::EINVAL),
        };
        Ok(self.door.seek(&By(req), node, offset, data)?)
    }
}
