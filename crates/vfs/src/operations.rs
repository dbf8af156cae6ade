//! The operations of a door, each one method. The node of an operation may be of the head, of a snapshot or of `.zfs`.

use crate::answers::{Attrs, Entry, Lookup, OpenHow, Opened};
use crate::caller::Caller;
use crate::ctldir::{is_ours, NAME};
use crate::door::{Door, Node};
use crate::nodes::ROOT;
use crate::power::CAPABILITIES;
use crate::publish::Change;
use crate::writers::WRITER;
use base::sync::MutexExt;
use base::{Kind, Result};
use std::sync::Arc;
use zpl::{New, Statfs, Zfs, Znode};

/// Bit of access(2).
const W_OK: u32 = 2;

impl Door {
    /// Finds a name. Also `.` and `..`, on a node that clients may have forgotten.
    pub fn lookup(&self, by: &dyn Caller, parent: u64, name: &[u8]) -> Result<Lookup> {
        if is_ours(parent) {
            return self.lookup_ours(by, parent, name);
        }
        if parent == ROOT && name == NAME {
            return Ok(self.lookup_ctl());
        }
        self.lookup_head(by, parent, name)
    }

    /// Attributes of a node.
    #[inline]
    pub fn getattr(&self, by: &dyn Caller, node: u64) -> Result<Attrs> {
        let n = self.resolve(by, node)?;
        let old = self.take_old_listing(&n, node);
        let attrs = self.attrs(&n, node);
        drop(n);
        if old {
            self.drop_listing(node);
        }
        Ok(attrs)
    }

    /// Target of a symbolic link.
    pub fn readlink(&self, by: &dyn Caller, node: u64) -> Result<Vec<u8>> {
        let n = self.resolve(by, node)?;
        let (zfs, z) = n.object(Kind::Invalid)?;
        zfs.readlink(z)
    }

    /// Makes an object in a directory.
    pub fn make(&self, by: &dyn Caller, parent: u64, name: &[u8], new: &New<'_>) -> Result<Entry> {
        self.can_make(parent, name)?;
        self.served.admission.call(by)?;
        let (zfs, dir) = self.head(by, parent)?;
        let z = zfs.create(&dir, name, new, &by.cred())?;
        self.names_changed(parent);
        let entry = self.entry(&zfs, &z);
        drop(zfs);
        self.publish(&[Change::Name(parent, name)]);
        Ok(entry)
    }

    /// Makes a directory with these permission bits; in `.zfs/snapshot` a snapshot.
    pub fn mkdir(
        &self,
        by: &dyn Caller,
        parent: u64,
        name: &[u8],
        (mode, umask): (u32, u32),
    ) -> Result<Entry> {
        match is_ours(parent) {
            true => self.make_snapshot(by, parent, name),
            false => self.make(by, parent, name, &New::dir(mode, umask)),
        }
    }

    /// Makes a file and opens it.
    pub fn create(
        &self,
        by: &dyn Caller,
        parent: u64,
        name: &[u8],
        new: &New<'_>,
        how: OpenHow,
    ) -> Result<(Entry, Opened)> {
        self.can_make(parent, name)?;
        self.served.admission.call(by)?;
        let (zfs, dir) = self.head(by, parent)?;
        let z = zfs.create(&dir, name, new, &by.cred())?;
        self.names_changed(parent);
        let entry = self.entry_open(&zfs, &z, how.write);
        let opened = self.opened(&zfs, how.write);
        drop(zfs);
        self.publish(&[Change::Name(parent, name)]);
        Ok((entry, opened))
    }

    /// Makes a file without a name, which may get one in `parent` later, and opens it.
    pub fn tmpfile(
        &self,
        by: &dyn Caller,
        parent: u64,
        new: &New<'_>,
        how: OpenHow,
    ) -> Result<(Entry, Opened)> {
        self.can_make(parent, b"")?;
        self.served.admission.call(by)?;
        let (zfs, dir) = self.head(by, parent)?;
        let z = zfs.tmpfile(&dir, new, &by.cred())?;
        let entry = self.entry_open(&zfs, &z, how.write);
        Ok((entry, self.opened(&zfs, how.write)))
    }

    /// Removes the name of what is no directory.
    pub fn unlink(&self, by: &dyn Caller, parent: u64, name: &[u8]) -> Result<()> {
        if self.is_ctl(parent, name) {
            return Err(Kind::ReadOnly.into());
        }
        self.change(by, parent, |zfs, z| zfs.unlink(z, name, &by.cred()))?;
        self.names_changed(parent);
        self.publish(&[Change::Name(parent, name)]);
        Ok(())
    }

    /// Removes an empty directory; in `.zfs/snapshot` a snapshot.
    pub fn rmdir(&self, by: &dyn Caller, parent: u64, name: &[u8]) -> Result<()> {
        if is_ours(parent) {
            return self.destroy_snapshot(by, parent, name);
        }
        if self.is_ctl(parent, name) {
            return Err(Kind::ReadOnly.into());
        }
        self.change(by, parent, |zfs, z| zfs.rmdir(z, name, &by.cred()))?;
        self.names_changed(parent);
        self.publish(&[Change::Name(parent, name)]);
        Ok(())
    }

    /// Renames; in `.zfs/snapshot` a snapshot. `flags`: [`zpl::rename_flags`].
    pub fn rename(
        &self,
        by: &dyn Caller,
        (parent, name): (u64, &[u8]),
        (new_parent, new_name): (u64, &[u8]),
        flags: u32,
    ) -> Result<()> {
        match (is_ours(parent), is_ours(new_parent)) {
            (true, true) => {
                return self.rename_snapshot(by, (parent, name), (new_parent, new_name), flags)
            }
            (false, false) => {}
            // As between file systems: mv(1) copies then.
            _ => return Err(Kind::CrossDevice.into()),
        }
        if self.is_ctl(parent, name) || self.is_ctl(new_parent, new_name) {
            return Err(Kind::NotPermitted.into());
        }
        self.served.admission.call(by)?;
        let (zfs, from) = self.head(by, parent)?;
        let to = self.nodes.get(&zfs, new_parent)?;
        zfs.rename(&from, name, &to, new_name, flags, &by.cred())?;
        self.names_changed(parent);
        self.names_changed(new_parent);
        self.moved(&zfs, &to, new_name);
        if flags & zpl::rename_flags::EXCHANGE != 0 {
            self.moved(&zfs, &from, name);
        }
        drop(zfs);
        self.publish(&[
            Change::Name(parent, name),
            Change::Name(new_parent, new_name),
        ]);
        Ok(())
    }

    /// One more name for a node.
    pub fn link(
        &self,
        by: &dyn Caller,
        node: u64,
        new_parent: u64,
        new_name: &[u8],
    ) -> Result<Entry> {
        match (is_ours(node), is_ours(new_parent)) {
            (true, true) => return Err(Kind::ReadOnly.into()),
            (false, false) => {}
            _ => return Err(Kind::CrossDevice.into()),
        }
        self.can_make(new_parent, new_name)?;
        self.served.admission.call(by)?;
        let (zfs, z) = self.head(by, node)?;
        let dir = self.nodes.get(&zfs, new_parent)?;
        zfs.link(&z, &dir, new_name, &by.cred())?;
        self.names_changed(new_parent);
        let entry = self.entry(&zfs, &z);
        drop(zfs);
        self.publish(&[Change::Name(new_parent, new_name), Change::Attributes(node)]);
        Ok(entry)
    }

    /// An open file is closed for good.
    pub fn release(&self, node: u64, handle: u64) {
        if is_ours(node) {
            return;
        }
        if handle == WRITER {
            self.writers.released(node);
        }
        self.nodes.closed(node);
    }

    /// A directory that was opened is closed.
    pub fn release_dir(&self, node: u64, handle: u64) {
        if is_ours(node) {
            let gone = self.served.lists.acquire().remove(&handle);
            drop(gone);
        }
    }

    /// Returns when a file, or a directory, is durable.
    pub fn fsync(&self, by: &dyn Caller, node: u64) -> Result<()> {
        match is_ours(node) {
            true => Ok(()),
            false => self.change(by, node, |zfs, z| zfs.fsync(Some(&**z))),
        }
    }

    /// Returns when everything is durable.
    pub fn sync_all(&self, by: &dyn Caller) -> Result<()> {
        self.served.admission.call(by)?;
        self.served.gate.enter(by)?.fsync(None)
    }

    /// Space and counts; below a directory with a project they are the project's.
    pub fn statfs(&self, by: &dyn Caller, node: u64) -> Result<Statfs> {
        let mut n = self.resolve(by, node)?;
        if let Node::Dir(_) | Node::Volume(..) = n {
            n = self.resolve(by, ROOT)?;
        }
        let (zfs, z) = n.object(Kind::Io)?;
        zfs.statfs(Some(z))
    }

    /// Sets an extended attribute. `flags`: `XATTR_CREATE`, `XATTR_REPLACE`.
    pub fn setxattr(
        &self,
        by: &dyn Caller,
        node: u64,
        (name, value): (&[u8], &[u8]),
        flags: u32,
        kill_sgid: bool,
    ) -> Result<()> {
        self.change(by, node, |zfs, z| {
            zfs.setxattr(z, name, value, flags, kill_sgid, &by.cred())
        })?;
        self.told_nothing(node);
        Ok(())
    }

    /// An extended attribute.
    pub fn getxattr(&self, by: &dyn Caller, node: u64, name: &[u8]) -> Result<Vec<u8>> {
        let n = self.resolve(by, node)?;
        let (zfs, z) = n.object(Kind::NoData)?;
        if name == CAPABILITIES && self.served.power.hides_programs() {
            return Err(Kind::NoData.into());
        }
        zfs.getxattr(z, name, &by.cred())
    }

    /// Names of the extended attributes.
    pub fn listxattr(&self, by: &dyn Caller, node: u64) -> Result<Vec<Vec<u8>>> {
        let n = self.resolve(by, node)?;
        match n.object(Kind::NoData) {
            Ok((zfs, z)) => zfs.listxattr(z, &by.cred()),
            Err(_) => Ok(Vec::new()),
        }
    }

    /// Removes an extended attribute.
    pub fn removexattr(&self, by: &dyn Caller, node: u64, name: &[u8]) -> Result<()> {
        self.change(by, node, |zfs, z| zfs.removexattr(z, name, &by.cred()))?;
        self.told_nothing(node);
        Ok(())
    }

    /// access(2)
    pub fn access(&self, by: &dyn Caller, node: u64, mask: u32) -> Result<()> {
        let n = self.resolve(by, node)?;
        match n.object(Kind::Io) {
            Ok((zfs, z)) => zfs.access(z, mask, &by.cred()),
            Err(_) if mask & W_OK != 0 => Err(Kind::ReadOnly.into()),
            Err(_) => Ok(()),
        }
    }

    /// fallocate(2). `mode`: [`zpl::falloc`].
    pub fn fallocate(
        &self,
        by: &dyn Caller,
        node: u64,
        (offset, length): (u64, u64),
        mode: u32,
    ) -> Result<()> {
        self.collect(node);
        self.change(by, node, |zfs, z| {
            self.spend_power(by, zfs, z)?;
            zfs.fallocate(z, offset, length, mode)
        })?;
        self.publish(&[Change::Content(node)]);
        Ok(())
    }

    /// Copies inside the file system; how many bytes.
    pub fn copy_range(
        &self,
        by: &dyn Caller,
        (from, offset): (u64, u64),
        (to, to_offset): (u64, u64),
        length: u64,
    ) -> Result<u64> {
        if is_ours(from) || is_ours(to) {
            // The client reads and writes then.
            return Err(Kind::CrossDevice.into());
        }
        self.collect(from);
        self.collect(to);
        self.served.admission.call(by)?;
        let (zfs, z) = self.head(by, from)?;
        let target = self.nodes.get(&zfs, to)?;
        self.spend_power(by, &zfs, &target)?;
        let copied = zfs.copy_range(&z, offset, &target, to_offset, length)?;
        drop(zfs);
        self.publish(&[Change::Content(to)]);
        Ok(copied)
    }

    /// Changes an object of the head, as soon as the pool and the file system let it.
    #[inline]
    pub(crate) fn change<R>(
        &self,
        by: &dyn Caller,
        node: u64,
        f: impl FnOnce(&Arc<Zfs>, &Arc<Znode>) -> Result<R>,
    ) -> Result<R> {
        if is_ours(node) {
            return Err(Kind::ReadOnly.into());
        }
        self.served.admission.call(by)?;
        let (zfs, z) = self.head(by, node)?;
        f(&zfs, &z)
    }

    /// Whether a name of the root means the control directory.
    pub(crate) fn is_ctl(&self, parent: u64, name: &[u8]) -> bool {
        parent == ROOT && name == NAME && !self.is_ctl_off()
    }

    /// What is to be made must be part of the head.
    pub(crate) fn can_make(&self, parent: u64, name: &[u8]) -> Result<()> {
        match is_ours(parent) {
            true => Err(Kind::ReadOnly.into()),
            false if self.is_ctl(parent, name) => Err(Kind::Exists.into()),
            false => Ok(()),
        }
    }
}
