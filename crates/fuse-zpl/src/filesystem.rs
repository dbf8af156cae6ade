//! The trait [`fuse::Filesystem`] implemented by the adapter: one method for each request of the kernel.

use crate::adapter::{Adapter, Node, Result};
use crate::convert::{cred, statfs_out};
use crate::ctldir::{is_ours, NAME};
use crate::data::writes;
use crate::power::CAPABILITIES;
use crate::writers::WRITER;
use base::sync::MutexExt;
use base::Data;
use fuse::{
    AttrReply, DirBuf, DirPlusBuf, Entry, Errno, Filesystem, IoctlReply, OpenArgs, Opened, ReadBuf,
    Request, SetAttr, Statfs, StatxReply, WriteArgs, XattrNames,
};
use std::sync::atomic::Ordering;
use zpl::New;

const EXDEV: Errno = Errno(18);
/// `STATX_ATTR_IMMUTABLE`, `_APPEND` and `_NODUMP` have the numbers of the `FS_*_FL` flags.
const STATX_ATTRIBUTES: u64 = 0x70;
/// Bit of access(2).
const W_OK: u32 = 2;

impl Filesystem for Adapter {
    fn init(&self, agreed: &fuse::Negotiated) {
        let keeps = agreed.has(fuse::abi::init::WRITEBACK_CACHE);
        self.kernel_keeps_times.store(keeps, Ordering::Relaxed);
        // A kernel that cannot do without takes the answer for an error.
        let opens = self.needs_no_open() && agreed.has(fuse::abi::init::NO_OPEN_SUPPORT);
        self.opens_unasked.store(opens, Ordering::Relaxed);
        let lists = self.needs_no_opendir() && agreed.has(fuse::abi::init::NO_OPENDIR_SUPPORT);
        self.lists_unasked.store(lists, Ordering::Relaxed);
    }

    fn destroy(&self) {
        self.control.end();
        self.lists.acquire().clear();
        self.control_lists.clear();
        self.ctl.close_all();
        self.nodes.clear();
        let zfs = self.gate.current();
        zfs.let_all_go();
        self.writers.clear();
        // What was unlinked but open goes now; a failure leaves it on the queue for the next mount.
        let _ = zfs.stop();
    }

    fn lookup(&self, req: &Request, parent: u64, name: &[u8]) -> Result<Entry> {
        if is_ours(parent) {
            return self.lookup_ours(req, parent, name);
        }
        if parent == fuse::ROOT && name == NAME {
            return Ok(self.lookup_ctl());
        }
        self.lookup_head(req, parent, name)
    }

    fn forget(&self, node: u64, nlookup: u64) {
        if is_ours(node) {
            return;
        }
        match self.gate.try_enter() {
            Some(zfs) => self.forget_node(&zfs, node, nlookup),
            None => {
                self.gate.forget_later(node, nlookup);
                // The file system may run again by now.
                if let Some(zfs) = self.gate.try_enter() {
                    self.forget_noted(&zfs);
                }
            }
        }
    }

    fn getattr(&self, req: &Request, node: u64, fh: Option<u64>) -> Result<AttrReply> {
        // With a handle the kernel asks before it lets a write into its cache (stat comes without).
        if fh == Some(WRITER) && !is_ours(node) {
            self.before_write(req, node)?;
        }
        let n = self.resolve(req, node)?;
        let old = self.take_old_listing(&n, node);
        let reply = self.attr_and_flags(&n, node).0;
        drop(n);
        if old {
            self.drop_listing(node);
        }
        Ok(reply)
    }

    fn setattr(&self, req: &Request, node: u64, set: &SetAttr) -> Result<AttrReply> {
        match is_ours(node) {
            true => Err(Errno::EROFS),
            false => self.set_attr(req, node, set),
        }
    }

    fn statx(
        &self,
        req: &Request,
        node: u64,
        _: Option<u64>,
        _: u32,
        _: u32,
    ) -> Result<StatxReply> {
        let n = self.resolve(req, node)?;
        let (AttrReply { attr, ttl }, flags) = self.attr_and_flags(&n, node);
        Ok(StatxReply {
            attr,
            ttl,
            attributes: u64::from(flags) & STATX_ATTRIBUTES,
            attributes_mask: STATX_ATTRIBUTES,
        })
    }

    fn readlink(&self, req: &Request, node: u64) -> Result<Vec<u8>> {
        let n = self.resolve(req, node)?;
        let (zfs, z) = n.object(Errno::EINVAL)?;
        Ok(zfs.readlink(z)?)
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
        match is_ours(parent) {
            true => self.make_snapshot(req, parent, name),
            false => self.make(req, parent, name, &New::dir(mode, req.umask)),
        }
    }

    fn unlink(&self, req: &Request, parent: u64, name: &[u8]) -> Result<()> {
        match self.is_ctl(parent, name) {
            true => Err(Errno::EROFS),
            false => {
                self.change(req, parent, |zfs, z| zfs.unlink(z, name, &cred(req)))?;
                self.names_changed(parent);
                Ok(())
            }
        }
    }

    fn rmdir(&self, req: &Request, parent: u64, name: &[u8]) -> Result<()> {
        if is_ours(parent) {
            return self.destroy_snapshot(req, parent, name);
        }
        match self.is_ctl(parent, name) {
            true => Err(Errno::EROFS),
            false => {
                self.change(req, parent, |zfs, z| zfs.rmdir(z, name, &cred(req)))?;
                self.names_changed(parent);
                Ok(())
            }
        }
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
        match (is_ours(parent), is_ours(new_parent)) {
            (true, true) => {
                return self.rename_snapshot(req, (parent, name), (new_parent, new_name), flags)
            }
            (false, false) => {}
            // As between file systems: mv(1) copies then.
            _ => return Err(EXDEV),
        }
        if self.is_ctl(parent, name) || self.is_ctl(new_parent, new_name) {
            return Err(Errno::EPERM);
        }
        self.admission.call(req)?;
        let (zfs, from) = self.head(req, parent)?;
        let to = self.nodes.get(&zfs, new_parent)?;
        zfs.rename(&from, name, &to, new_name, flags, &cred(req))?;
        self.names_changed(parent);
        self.names_changed(new_parent);
        self.moved(&zfs, &to, new_name);
        if flags & zpl::rename_flags::EXCHANGE != 0 {
            self.moved(&zfs, &from, name);
        }
        Ok(())
    }

    fn link(&self, req: &Request, node: u64, new_parent: u64, new_name: &[u8]) -> Result<Entry> {
        match (is_ours(node), is_ours(new_parent)) {
            (true, true) => return Err(Errno::EROFS),
            (false, false) => {}
            _ => return Err(EXDEV),
        }
        self.can_make(new_parent, new_name)?;
        self.admission.call(req)?;
        let (zfs, z) = self.head(req, node)?;
        let dir = self.nodes.get(&zfs, new_parent)?;
        zfs.link(&z, &dir, new_name, &cred(req))?;
        self.names_changed(new_parent);
        Ok(self.entry(&zfs, &z))
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
        self.can_make(parent, name)?;
        self.admission.call(req)?;
        let writes = writes(args.flags);
        let (zfs, dir) = self.head(req, parent)?;
        let z = zfs.create(&dir, name, &New::file(mode, req.umask), &cred(req))?;
        self.names_changed(parent);
        Ok((
            self.entry_open(&zfs, &z, writes),
            self.opened(&zfs, writes, args.flags),
        ))
    }

    fn tmpfile(
        &self,
        req: &Request,
        parent: u64,
        mode: u32,
        args: OpenArgs,
    ) -> Result<(Entry, Opened)> {
        self.can_make(parent, b"")?;
        self.admission.call(req)?;
        let writes = writes(args.flags);
        let (zfs, dir) = self.head(req, parent)?;
        let z = zfs.tmpfile(&dir, &New::file(mode, req.umask), &cred(req))?;
        Ok((
            self.entry_open(&zfs, &z, writes),
            self.opened(&zfs, writes, args.flags),
        ))
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
        self.read_node(req, node, offset, size, out)
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
        match is_ours(node) {
            true => Err(Errno::EROFS),
            false => self.write_object(req, node, offset, data, args),
        }
    }

    fn flush(&self, _: &Request, node: u64, _: u64) -> Result<()> {
        match is_ours(node) {
            true => Ok(()),
            // The kernel does not ask again.
            false => Err(Errno::ENOSYS),
        }
    }

    fn release(&self, _: &Request, node: u64, fh: u64, _: i32) {
        if is_ours(node) {
            return;
        }
        if fh == WRITER {
            self.writers.released(node);
        }
        self.nodes.closed(node);
    }

    fn fsync(&self, req: &Request, node: u64, _: u64, _: bool) -> Result<()> {
        match is_ours(node) {
            true => Ok(()),
            false => self.change(req, node, |zfs, z| zfs.fsync(Some(&**z))),
        }
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
        let n = self.resolve(req, node)?;
        if let (Node::Object(zfs, z), 0) = (&n, offset) {
            zfs.list_ahead(z, false);
        }
        self.listing_begins(&n, node, fh);
        self.list(&n, node, fh, offset, |ino, e| {
            !out.add(ino, e.next, u32::from(e.dtype), e.name)
        })?;
        self.listing_ends(&n, node, req.noatime);
        Ok(())
    }

    fn readdirplus(
        &self,
        req: &Request,
        node: u64,
        fh: u64,
        offset: u64,
        out: &mut DirPlusBuf,
    ) -> Result<()> {
        let n = self.resolve(req, node)?;
        if let (Node::Object(zfs, z), 0) = (&n, offset) {
            zfs.list_ahead(z, true);
        }
        self.listing_begins(&n, node, fh);
        self.list_plus(&n, node, fh, offset, out)?;
        self.listing_ends(&n, node, req.noatime);
        Ok(())
    }

    fn releasedir(&self, _: &Request, node: u64, fh: u64) {
        if is_ours(node) {
            let gone = self.lists.acquire().remove(&fh);
            drop(gone);
        }
    }

    fn fsyncdir(&self, req: &Request, node: u64, fh: u64, datasync: bool) -> Result<()> {
        self.fsync(req, node, fh, datasync)
    }

    fn statfs(&self, req: &Request, node: u64) -> Result<Statfs> {
        // Below a directory with a project they are the project's figures.
        let mut n = self.resolve(req, node)?;
        if let Node::Dir(_) | Node::Volume(..) = n {
            n = self.resolve(req, fuse::ROOT)?;
        }
        let (zfs, z) = n.object(Errno::EIO)?;
        Ok(statfs_out(&zfs.statfs(Some(z))?))
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
        self.change(req, node, |zfs, z| {
            zfs.setxattr(z, name, value, flags, kill_sgid, &cred(req))
        })?;
        self.attributes_changed(node);
        Ok(())
    }

    fn getxattr(&self, req: &Request, node: u64, name: &[u8]) -> Result<Vec<u8>> {
        let n = self.resolve(req, node)?;
        let (zfs, z) = n.object(Errno::ENODATA)?;
        if name == CAPABILITIES && self.power.hides_programs() {
            return Err(Errno::ENODATA);
        }
        Ok(zfs.getxattr(z, name, &cred(req))?)
    }

    fn listxattr(&self, req: &Request, node: u64, out: &mut XattrNames) -> Result<()> {
        let n = self.resolve(req, node)?;
        if let Ok((zfs, z)) = n.object(Errno::ENODATA) {
            for name in zfs.listxattr(z, &cred(req))? {
                out.add(&name);
            }
        }
        Ok(())
    }

    fn removexattr(&self, req: &Request, node: u64, name: &[u8]) -> Result<()> {
        self.change(req, node, |zfs, z| zfs.removexattr(z, name, &cred(req)))?;
        self.attributes_changed(node);
        Ok(())
    }

    fn access(&self, req: &Request, node: u64, mask: u32) -> Result<()> {
        let n = self.resolve(req, node)?;
        match n.object(Errno::EIO) {
            Ok((zfs, z)) => Ok(zfs.access(z, mask, &cred(req))?),
            Err(_) if mask & W_OK != 0 => Err(Errno::EROFS),
            Err(_) => Ok(()),
        }
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
        self.change(req, node, |zfs, z| {
            self.spend_power(req, zfs, z)?;
            zfs.fallocate(z, offset, length, mode)
        })
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
        if is_ours(node_in) || is_ours(node_out) {
            // The kernel reads and writes then.
            return Err(EXDEV);
        }
        self.admission.call(req)?;
        if flags != 0 {
            return Err(Errno::EINVAL);
        }
        let (zfs, from) = self.head(req, node_in)?;
        let to = self.nodes.get(&zfs, node_out)?;
        self.spend_power(req, &zfs, &to)?;
        Ok(zfs.copy_range(&from, offset_in, &to, offset_out, length)?)
    }

    fn syncfs(&self, req: &Request, _: u64) -> Result<()> {
        self.admission.call(req)?;
        Ok(self.gate.enter(req)?.fsync(None)?)
    }
}
