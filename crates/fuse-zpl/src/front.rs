//! What FUSE talks to: a file system with its control directory. Requests for nodes of the file
//! system go to the [`Bridge`], those for nodes of [`Ctldir`] are answered here; nothing in there
//! can be changed.

use crate::admit::Admission;
use crate::bridge::{cred, ioctl_get, is_written_back, statfs_out, Bridge, Caching};
use crate::ctldir::{self, Ctldir, Dir, Line, Node, SharedLists, Snapdir, Tree};
use base::sync::MutexExt;
use base::{Data, Kind};
use fuse::{
    AttrReply, DirBuf, DirPlusBuf, Entry, Errno, Filesystem, IoctlReply, OpenArgs, Opened, ReadBuf,
    Request, SetAttr, Statfs, StatxReply, WriteArgs, XattrNames, FOREVER,
};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use zpl::{Zfs, Znode};

/// Names in the control directory come and go behind the kernel's back.
const BRIEF: Duration = Duration::from_secs(1);
/// The directory's name.
pub const NAME: &[u8] = b".zfs";
const EXDEV: Errno = Errno(18);
/// An object number that does not fit into a node id.
const EOVERFLOW: Errno = Errno(75);

const O_ACCMODE: i32 = 3;
const O_TRUNC: i32 = 0o1000;

type Result<T> = std::result::Result<T, Errno>;

/// A mounted file system as FUSE sees it.
pub struct Front {
    head: Bridge,
    admission: Admission,
    ctl: Arc<Ctldir>,
    caching: Caching,
    /// Listings of open directories: they must not change while they are read.
    lists: Mutex<HashMap<u64, Arc<Vec<Line>>>>,
    shared: SharedLists,
    handles: AtomicU64,
}

/// A file of a snapshot, or the error for what cannot be done with other nodes.
fn file(n: Node, other: Errno) -> Result<(Arc<Tree>, Arc<Zfs>, Arc<Znode>)> {
    match n {
        Node::File(t, z) => {
            let zfs = t.zfs().ok_or(other)?.clone();
            Ok((t, zfs, z))
        }
        _ => Err(other),
    }
}

impl Front {
    pub fn new(head: Bridge, admission: Admission, ctl: Arc<Ctldir>, caching: Caching) -> Front {
        Front {
            head,
            admission,
            ctl,
            caching,
            lists: Mutex::default(),
            shared: SharedLists::default(),
            handles: AtomicU64::new(1),
        }
    }

    pub fn head(&self) -> &Bridge {
        &self.head
    }

    fn ours(&self, node: u64) -> Option<Result<Node>> {
        ctldir::is_ours(node).then(|| Ok(self.ctl.node(node)?))
    }

    fn brief(&self) -> Duration {
        self.caching.names(BRIEF)
    }

    fn dir_entry(&self, dir: Dir) -> Entry {
        Entry {
            node: ctldir::dir_id(dir),
            generation: 0,
            attr: self.ctl.dir_attr(dir),
            entry_ttl: self.brief(),
            attr_ttl: self.caching.attributes(BRIEF),
        }
    }

    /// An object of a snapshot; its root, which a name of the control directory leads to, may go.
    fn file_entry(&self, t: &Tree, z: &Arc<Znode>) -> Result<Entry> {
        let node = match t.enter(z) {
            0 => return Err(EOVERFLOW),
            n => n,
        };
        // Nothing changes in a snapshot, so every spelling of a name stays right.
        let fixed = !t.is_root(z);
        Ok(Entry {
            node,
            generation: self.ctl.generation(t),
            attr: t.attr(z),
            entry_ttl: self.caching.names(if fixed { FOREVER } else { BRIEF }),
            attr_ttl: self.caching.attributes(FOREVER),
        })
    }

    fn attr(&self, n: &Node) -> AttrReply {
        let (attr, ttl) = match n {
            Node::Dir(d) => (self.ctl.dir_attr(*d), BRIEF),
            Node::File(t, z) => (t.attr(z), FOREVER),
            Node::Volume(t, v) => (self.ctl.volume_attr(t, v), BRIEF),
        };
        AttrReply {
            attr,
            ttl: self.caching.attributes(ttl),
        }
    }

    fn lookup_ours(&self, req: &Request, dir: Node, name: &[u8]) -> Result<Entry> {
        let gone = |e: base::Error| match e.kind {
            Kind::NotFound => Ok(Entry::negative(self.brief())),
            _ => Err(e.into()),
        };
        match dir {
            Node::Dir(d) => match (d, name) {
                (_, b".") => Ok(self.dir_entry(d)),
                (Dir::Root, b"..") => self.head.lookup(req, fuse::ROOT, b"."),
                (_, b"..") => Ok(self.dir_entry(Dir::Root)),
                (Dir::Root, _) => Ok(match self.ctl.subdir(name) {
                    Some(d) => self.dir_entry(d),
                    None => Entry::negative(self.brief()),
                }),
                (Dir::Shares, _) => Ok(Entry::negative(self.brief())),
                (Dir::Snapshots, _) => {
                    let root = self.ctl.snapshot(name).and_then(|t| {
                        let zfs = t.zfs().ok_or(Kind::NotFound)?.clone();
                        Ok((t, zfs.root()?))
                    });
                    match root {
                        Ok((t, z)) => self.file_entry(&t, &z),
                        Err(e) => gone(e),
                    }
                }
                (Dir::Volumes, _) => match self.ctl.volume(name) {
                    Ok(t) => {
                        let node = t.id(1);
                        Ok(Entry {
                            node,
                            generation: self.ctl.generation(&t),
                            attr: self.attr(&self.ctl.node(node)?).attr,
                            entry_ttl: self.brief(),
                            attr_ttl: self.brief(),
                        })
                    }
                    Err(e) => gone(e),
                },
            },
            // Also of what is no directory: for file handles.
            Node::File(t, z) if name == b"." => self.file_entry(&t, &z),
            Node::File(t, z) if name == b".." && t.is_root(&z) => {
                Ok(self.dir_entry(Dir::Snapshots))
            }
            node => {
                let (t, zfs, z) = file(node, Errno::ENOTDIR)?;
                match zfs.lookup(&z, name, &cred(req)) {
                    Ok(z) => self.file_entry(&t, &z),
                    Err(e) if e.kind == Kind::NotFound => {
                        Ok(Entry::negative(self.caching.names(FOREVER)))
                    }
                    Err(e) => Err(e.into()),
                }
            }
        }
    }

    /// Lines of a directory of the control directory behind position `offset`, with their own
    /// positions.
    fn lines(
        &self,
        dir: Dir,
        fh: u64,
        offset: u64,
        mut put: impl FnMut(u64, u64, u32, &[u8]) -> bool,
    ) -> Result<()> {
        let list = self.lists.acquire().get(&fh).cloned();
        let list = match list {
            Some(l) => l,
            None => self.list(dir)?,
        };
        let up = match dir {
            Dir::Root => self.head.root_ino(),
            _ => self.ctl.dir_attr(Dir::Root).ino,
        };
        let dots = [(self.ctl.dir_attr(dir).ino, &b"."[..]), (up, &b".."[..])];
        for (i, (ino, name)) in dots.into_iter().enumerate().skip(offset.min(2) as usize) {
            if !put(ino, i as u64 + 1, 4, name) {
                return Ok(());
            }
        }
        let from = usize::try_from(offset.saturating_sub(2)).unwrap_or(usize::MAX);
        for (i, l) in list.iter().enumerate().skip(from) {
            if !put(l.ino, i as u64 + 3, l.kind, &l.name) {
                return Ok(());
            }
        }
        Ok(())
    }

    /// The lines of a directory: the list that others have open, if nothing has changed since.
    fn list(&self, dir: Dir) -> Result<Arc<Vec<Line>>> {
        Ok(self.shared.share(dir, self.ctl.list(dir)?))
    }

    /// Entries of a directory of a snapshot.
    fn entries(
        &self,
        t: &Tree,
        zfs: &Zfs,
        z: &Znode,
        offset: u64,
        mut put: impl FnMut(u64, &zpl::DirEntry<'_>) -> bool,
    ) -> Result<()> {
        let root = t.is_root(z);
        zfs.readdir(z, offset, |e| {
            let ino = match root && e.name == b".." {
                true => self.ctl.dir_attr(Dir::Snapshots).ino,
                false => t.ino(e.object),
            };
            Ok(put(ino, &e))
        })?;
        Ok(())
    }

    /// Whether a name of the root means the control directory.
    fn is_ctl(&self, parent: u64, name: &[u8]) -> bool {
        parent == fuse::ROOT && name == NAME && self.ctl.mode() != Snapdir::Disabled
    }

    /// What is to be changed must be part of the file system.
    fn changeable(&self, parent: u64, name: &[u8]) -> Result<()> {
        match ctldir::is_ours(parent) {
            true => Err(Errno::EROFS),
            false if self.is_ctl(parent, name) => Err(Errno::EEXIST),
            false => Ok(()),
        }
    }
}

impl Filesystem for Front {
    fn init(&self, agreed: &fuse::Negotiated) {
        self.head.init(agreed);
    }

    fn destroy(&self) {
        self.lists.acquire().clear();
        self.ctl.close_all();
        self.head.destroy();
    }

    fn lookup(&self, req: &Request, parent: u64, name: &[u8]) -> Result<Entry> {
        if let Some(n) = self.ours(parent) {
            return self.lookup_ours(req, n?, name);
        }
        if parent == fuse::ROOT && name == NAME {
            // The property may change.
            return Ok(match self.ctl.mode() {
                Snapdir::Disabled => Entry::negative(self.brief()),
                _ => self.dir_entry(Dir::Root),
            });
        }
        self.head.lookup(req, parent, name)
    }

    fn forget(&self, node: u64, nlookup: u64) {
        if !ctldir::is_ours(node) {
            self.head.forget(node, nlookup);
        }
    }

    fn getattr(&self, req: &Request, node: u64, fh: Option<u64>) -> Result<AttrReply> {
        match self.ours(node) {
            Some(n) => Ok(self.attr(&n?)),
            None => self.head.getattr(req, node, fh),
        }
    }

    fn setattr(&self, req: &Request, node: u64, set: &SetAttr) -> Result<AttrReply> {
        match self.ours(node) {
            Some(_) => Err(Errno::EROFS),
            None => {
                // Times of data that the kernel had accepted go with these.
                if !is_written_back(set) {
                    self.admission.call(req)?;
                }
                self.head.setattr(req, node, set)
            }
        }
    }

    fn statx(
        &self,
        req: &Request,
        node: u64,
        fh: Option<u64>,
        flags: u32,
        mask: u32,
    ) -> Result<StatxReply> {
        let Some(n) = self.ours(node) else {
            return self.head.statx(req, node, fh, flags, mask);
        };
        let n = n?;
        let a = self.attr(&n);
        let own = match &n {
            Node::File(t, z) => t.flags(z).map_or(0, |f| f.0),
            _ => 0,
        };
        Ok(StatxReply {
            attr: a.attr,
            ttl: a.ttl,
            attributes: u64::from(own & 0x70),
            attributes_mask: 0x70,
        })
    }

    fn readlink(&self, req: &Request, node: u64) -> Result<Vec<u8>> {
        match self.ours(node) {
            Some(n) => {
                let (_, zfs, z) = file(n?, Errno::EINVAL)?;
                Ok(zfs.readlink(&z)?)
            }
            None => self.head.readlink(req, node),
        }
    }

    fn symlink(&self, req: &Request, parent: u64, name: &[u8], target: &[u8]) -> Result<Entry> {
        self.changeable(parent, name)?;
        self.admission.call(req)?;
        self.head.symlink(req, parent, name, target)
    }

    fn mknod(
        &self,
        req: &Request,
        parent: u64,
        name: &[u8],
        mode: u32,
        rdev: u32,
    ) -> Result<Entry> {
        self.changeable(parent, name)?;
        self.admission.call(req)?;
        self.head.mknod(req, parent, name, mode, rdev)
    }

    fn mkdir(&self, req: &Request, parent: u64, name: &[u8], mode: u32) -> Result<Entry> {
        self.changeable(parent, name)?;
        self.admission.call(req)?;
        self.head.mkdir(req, parent, name, mode)
    }

    fn unlink(&self, req: &Request, parent: u64, name: &[u8]) -> Result<()> {
        match ctldir::is_ours(parent) || self.is_ctl(parent, name) {
            true => Err(Errno::EROFS),
            false => {
                self.admission.call(req)?;
                self.head.unlink(req, parent, name)
            }
        }
    }

    fn rmdir(&self, req: &Request, parent: u64, name: &[u8]) -> Result<()> {
        match ctldir::is_ours(parent) || self.is_ctl(parent, name) {
            true => Err(Errno::EROFS),
            false => {
                self.admission.call(req)?;
                self.head.rmdir(req, parent, name)
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
        match (ctldir::is_ours(parent), ctldir::is_ours(new_parent)) {
            (true, true) => return Err(Errno::EROFS),
            (false, false) => {}
            // As between file systems: mv(1) copies then.
            _ => return Err(EXDEV),
        }
        if self.is_ctl(parent, name) || self.is_ctl(new_parent, new_name) {
            return Err(Errno::EPERM);
        }
        self.admission.call(req)?;
        self.head
            .rename(req, parent, name, new_parent, new_name, flags)
    }

    fn link(&self, req: &Request, node: u64, new_parent: u64, new_name: &[u8]) -> Result<Entry> {
        match (ctldir::is_ours(node), ctldir::is_ours(new_parent)) {
            (true, true) => return Err(Errno::EROFS),
            (false, false) => {}
            _ => return Err(EXDEV),
        }
        self.changeable(new_parent, new_name)?;
        self.admission.call(req)?;
        self.head.link(req, node, new_parent, new_name)
    }

    fn open(&self, req: &Request, node: u64, args: OpenArgs) -> Result<Opened> {
        let Some(n) = self.ours(node) else {
            if args.flags & O_TRUNC != 0 {
                self.admission.call(req)?;
            }
            return self.head.open(req, node, args);
        };
        let n = n?;
        if args.flags & O_ACCMODE != 0 || args.flags & O_TRUNC != 0 {
            return Err(Errno::EROFS);
        }
        let keep = match &n {
            Node::Dir(_) => return Err(Errno::EISDIR),
            Node::File(t, z) => {
                if let Some(zfs) = t.zfs() {
                    zfs.open_file(z, true, false, false, false, &cred(req))?;
                }
                true
            }
            Node::Volume(_, v) => v.snapshot,
        };
        Ok(Opened {
            fh: 0,
            flags: match (self.caching.direct, keep) {
                (true, _) => fuse::wire::fopen::DIRECT_IO,
                (_, true) => fuse::wire::fopen::KEEP_CACHE,
                _ => 0,
            },
        })
    }

    fn create(
        &self,
        req: &Request,
        parent: u64,
        name: &[u8],
        mode: u32,
        args: OpenArgs,
    ) -> Result<(Entry, Opened)> {
        self.changeable(parent, name)?;
        self.admission.call(req)?;
        self.head.create(req, parent, name, mode, args)
    }

    fn tmpfile(
        &self,
        req: &Request,
        parent: u64,
        mode: u32,
        args: OpenArgs,
    ) -> Result<(Entry, Opened)> {
        self.changeable(parent, b"")?;
        self.admission.call(req)?;
        self.head.tmpfile(req, parent, mode, args)
    }

    fn read(
        &self,
        req: &Request,
        node: u64,
        fh: u64,
        offset: u64,
        size: u32,
        out: &mut ReadBuf,
    ) -> Result<()> {
        let Some(n) = self.ours(node) else {
            return self.head.read(req, node, fh, offset, size, out);
        };
        let mut put = |b: &base::Block, r: std::ops::Range<usize>| {
            if r.len() < 2048 {
                out.put(&b[r]);
            } else {
                out.push(b.clone(), r);
            }
        };
        match n? {
            Node::Volume(_, v) => v.read(offset, size as usize, &mut put)?,
            n => {
                let (_, zfs, z) = file(n, Errno::EISDIR)?;
                zfs.read_blocks(&z, offset, size as usize, &mut put)?
            }
        };
        Ok(())
    }

    fn write(
        &self,
        req: &Request,
        node: u64,
        fh: u64,
        offset: u64,
        data: Data<'_>,
        args: WriteArgs,
    ) -> Result<u32> {
        match ctldir::is_ours(node) {
            true => Err(Errno::EROFS),
            false => {
                match args.cached {
                    true => self.admission.cached_data()?,
                    false => self.admission.call(req)?,
                }
                self.head.write(req, node, fh, offset, data, args)
            }
        }
    }

    fn flush(&self, req: &Request, node: u64, fh: u64) -> Result<()> {
        match ctldir::is_ours(node) {
            true => Ok(()),
            false => self.head.flush(req, node, fh),
        }
    }

    fn release(&self, req: &Request, node: u64, fh: u64, flags: i32) {
        if !ctldir::is_ours(node) {
            self.head.release(req, node, fh, flags);
        }
    }

    fn fsync(&self, req: &Request, node: u64, fh: u64, datasync: bool) -> Result<()> {
        match ctldir::is_ours(node) {
            true => Ok(()),
            false => {
                self.admission.call(req)?;
                self.head.fsync(req, node, fh, datasync)
            }
        }
    }

    fn opendir(&self, req: &Request, node: u64, flags: i32) -> Result<Opened> {
        let Some(n) = self.ours(node) else {
            return self.head.opendir(req, node, flags);
        };
        match n? {
            Node::Dir(d) => {
                let list = self.list(d)?;
                let fh = self.handles.fetch_add(1, Ordering::Relaxed);
                self.lists.acquire().insert(fh, list);
                Ok(Opened { fh, flags: 0 })
            }
            n => {
                let (_, zfs, z) = file(n, Errno::ENOTDIR)?;
                zfs.opendir(&z, &cred(req))?;
                Ok(Opened {
                    fh: 0,
                    flags: self.caching.listings(true),
                })
            }
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
        let Some(n) = self.ours(node) else {
            return self.head.readdir(req, node, fh, offset, out);
        };
        match n? {
            Node::Dir(d) => self.lines(d, fh, offset, |ino, next, kind, name| {
                !out.add(ino, next, kind, name)
            }),
            n => {
                let (t, zfs, z) = file(n, Errno::ENOTDIR)?;
                self.entries(&t, &zfs, &z, offset, |ino, e| {
                    !out.add(ino, e.next, u32::from(e.dtype), e.name)
                })
            }
        }
    }

    fn readdirplus(
        &self,
        req: &Request,
        node: u64,
        fh: u64,
        offset: u64,
        out: &mut DirPlusBuf,
    ) -> Result<()> {
        let Some(n) = self.ours(node) else {
            return self.head.readdirplus(req, node, fh, offset, out);
        };
        match n? {
            // Attributes would mean to open every snapshot.
            Node::Dir(d) => self.lines(d, fh, offset, |ino, next, kind, name| {
                !out.add_plain(ino, next, kind, name)
            }),
            n => {
                let (t, zfs, z) = file(n, Errno::ENOTDIR)?;
                self.entries(&t, &zfs, &z, offset, |ino, e| {
                    let plain = u32::from(e.dtype);
                    if !out.fits(e.name.len()) {
                        return false;
                    }
                    if e.name == b"." || e.name == b".." {
                        return !out.add_plain(ino, e.next, plain, e.name);
                    }
                    let entry = zfs.get(e.object).map_err(Errno::from);
                    match entry.and_then(|z| self.file_entry(&t, &z)) {
                        Ok(entry) => !out.add(&entry, e.next, e.name),
                        Err(_) => !out.add_plain(ino, e.next, plain, e.name),
                    }
                })
            }
        }
    }

    fn releasedir(&self, req: &Request, node: u64, fh: u64) {
        match ctldir::is_ours(node) {
            true => drop(self.lists.acquire().remove(&fh)),
            false => self.head.releasedir(req, node, fh),
        }
    }

    fn fsyncdir(&self, req: &Request, node: u64, fh: u64, datasync: bool) -> Result<()> {
        match ctldir::is_ours(node) {
            true => Ok(()),
            false => {
                self.admission.call(req)?;
                self.head.fsyncdir(req, node, fh, datasync)
            }
        }
    }

    fn statfs(&self, req: &Request, node: u64) -> Result<Statfs> {
        match self.ours(node) {
            Some(Ok(Node::File(t, z))) => match t.zfs() {
                Some(zfs) => Ok(statfs_out(&zfs.statfs(Some(&z))?)),
                None => Err(Errno::EIO),
            },
            Some(Err(e)) => Err(e),
            Some(Ok(_)) => self.head.statfs(req, fuse::ROOT),
            // Below a directory with a project they are the project's figures.
            None => self.head.statfs(req, node),
        }
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
        match ctldir::is_ours(node) {
            true => Err(Errno::EROFS),
            false => {
                self.admission.call(req)?;
                self.head.setxattr(req, node, name, value, flags, kill_sgid)
            }
        }
    }

    fn getxattr(&self, req: &Request, node: u64, name: &[u8]) -> Result<Vec<u8>> {
        let Some(n) = self.ours(node) else {
            return self.head.getxattr(req, node, name);
        };
        let (_, zfs, z) = file(n?, Errno::ENODATA)?;
        Ok(zfs.getxattr(&z, name, &cred(req))?)
    }

    fn listxattr(&self, req: &Request, node: u64, out: &mut XattrNames) -> Result<()> {
        let Some(n) = self.ours(node) else {
            return self.head.listxattr(req, node, out);
        };
        if let Node::File(t, z) = n? {
            if let Some(zfs) = t.zfs() {
                for n in zfs.listxattr(&z, &cred(req))? {
                    out.add(&n);
                }
            }
        }
        Ok(())
    }

    fn removexattr(&self, req: &Request, node: u64, name: &[u8]) -> Result<()> {
        match ctldir::is_ours(node) {
            true => Err(Errno::EROFS),
            false => {
                self.admission.call(req)?;
                self.head.removexattr(req, node, name)
            }
        }
    }

    fn access(&self, req: &Request, node: u64, mask: u32) -> Result<()> {
        let Some(n) = self.ours(node) else {
            return self.head.access(req, node, mask);
        };
        match n? {
            Node::File(t, z) => match t.zfs() {
                Some(zfs) => Ok(zfs.access(&z, mask, &cred(req))?),
                None => Err(Errno::EIO),
            },
            _ if mask & 2 != 0 => Err(Errno::EROFS),
            _ => Ok(()),
        }
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
    ) -> Result<IoctlReply> {
        let Some(n) = self.ours(node) else {
            if ioctl_get(cmd, 0, 0, 0).is_none() {
                self.admission.call(req)?;
            }
            return self.head.ioctl(req, node, fh, flags, cmd, input, out_size);
        };
        let (t, zfs, z) = file(n?, Errno::ENOTTY)?;
        if cmd == fuse::ioctl::ZFS_IOC_GETDOSFLAGS {
            let data = zfs.dos_flags(&z).to_le_bytes().to_vec();
            return Ok(IoctlReply { result: 0, data });
        }
        let (flags, generation, project) = t.flags(&z).ok_or(Errno::ENOTTY)?;
        match ioctl_get(cmd, flags, generation, project) {
            Some(data) => Ok(IoctlReply { result: 0, data }),
            None => Err(Errno::ENOTTY),
        }
    }

    fn fallocate(
        &self,
        req: &Request,
        node: u64,
        fh: u64,
        offset: u64,
        length: u64,
        mode: u32,
    ) -> Result<()> {
        match ctldir::is_ours(node) {
            true => Err(Errno::EROFS),
            false => {
                self.admission.call(req)?;
                self.head.fallocate(req, node, fh, offset, length, mode)
            }
        }
    }

    fn lseek(&self, req: &Request, node: u64, fh: u64, offset: u64, whence: u32) -> Result<u64> {
        let Some(n) = self.ours(node) else {
            return self.head.lseek(req, node, fh, offset, whence);
        };
        let data = match whence {
            3 => true,
            4 => false,
            _ => return Err(Errno::EINVAL),
        };
        match n? {
            Node::Volume(_, v) => v.seek(offset, data)?.ok_or(Errno::ENXIO),
            n => {
                let (_, zfs, z) = file(n, Errno::EINVAL)?;
                Ok(zfs.seek(&z, offset, data)?)
            }
        }
    }

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
        if ctldir::is_ours(node_in) || ctldir::is_ours(node_out) {
            // The kernel reads and writes then.
            return Err(EXDEV);
        }
        self.admission.call(req)?;
        self.head.copy_file_range(
            req, node_in, fh_in, offset_in, node_out, fh_out, offset_out, length, flags,
        )
    }

    fn syncfs(&self, req: &Request, node: u64) -> Result<()> {
        self.admission.call(req)?;
        self.head.syncfs(req, node)
    }
}
