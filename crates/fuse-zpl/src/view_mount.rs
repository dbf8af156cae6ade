//! [`ViewMount`]: several file systems as one tree ([`vfs::View`]) in one mount. Each is served by its adapter; here node ids and inode
//! numbers are translated, and names that lead from one file system to another are followed.
//!
//! 1. What hangs at a name is as good as mounted there: it cannot be removed, renamed or replaced (EBUSY). Names and links do not lead
//!    from one file system into another (EXDEV).
//! 2. The kernel has one set of options for the mount, those of the first file system. Files of one with `exec=off` are not opened to
//!    be executed here (EACCES). A library that a program maps cannot be told from data, and is let through.
//! 3. Files are not opened without a message: the kernel would do so in all file systems of the mount, from its first ENOSYS on.
//! 4. The kernel asks for access control lists of all files, if it does for one: it is told once, by FUSE_INIT. Where they are off a file
//!    has none.

use crate::adapter::{Adapter, Result};
use crate::convert::{self, By};
use crate::kernel::Kernel;
use base::sync::MutexExt;
use base::{Data, Kind};
use fuse::{
    AttrReply, Changed, DirBuf, DirPlusBuf, Entry, Errno, Filesystem, IoctlReply, Negotiated,
    OpenArgs, Opened, ReadBuf, Request, SetAttr, Statfs, StatxReply, WriteArgs, XattrNames,
};
use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use vfs::{At, View, ROOT};
use zpl::DirEntry;

const EBUSY: Errno = Errno(16);
const EACCES: Errno = Errno(13);
const EXDEV: Errno = Errno(18);
const ENODATA: Errno = Errno(61);
/// The kernel's flag of an open by execve(2).
const FMODE_EXEC: i32 = 0x20;
/// The attributes in which access control lists are.
const ACLS: [&[u8]; 2] = [b"system.posix_acl_access", b"system.posix_acl_default"];
/// `DT_DIR`
const DT_DIR: u32 = 4;

type Here<'a> = At<'a, Adapter>;

/// File systems as one tree, in one mount.
pub struct ViewMount {
    view: Arc<View<Adapter>>,
    agreed: Mutex<Option<Negotiated>>,
}

/// What a name leads to.
enum Found {
    Entry(Entry),
    /// To the root of what hangs there.
    Root(u64),
    /// To the directory that a root hangs in.
    Above(u64),
}

/// The adapter of a node; an error for a directory that is on no disk.
fn files<'a>(at: &Here<'a>, otherwise: Errno) -> Result<&'a Arc<Adapter>> {
    at.files.ok_or(otherwise)
}

impl ViewMount {
    /// Of a view that is made.
    pub fn new(view: Arc<View<Adapter>>) -> Arc<ViewMount> {
        Arc::new(ViewMount {
            view,
            agreed: Mutex::default(),
        })
    }

    /// What it shows.
    pub fn view(&self) -> &Arc<View<Adapter>> {
        &self.view
    }

    /// Tells the kernel of names that come and go. Its ids are those of the view.
    pub fn set_kernel(&self, kernel: Kernel) {
        self.view.subscribe(Arc::new(kernel));
    }

    /// A file system has come, and serves requests from now on as the kernel was told.
    pub fn welcome(&self, adapter: &Adapter) {
        if let Some(agreed) = &*self.agreed.acquire() {
            adapter.init(agreed);
        }
    }

    fn with<R>(&self, node: u64, f: impl FnOnce(&Here<'_>) -> Result<R>) -> Result<R> {
        self.view.with(node, f)
    }

    /// The same for a node that a file system has.
    fn inside<R>(
        &self,
        node: u64,
        otherwise: Errno,
        f: impl FnOnce(&Adapter, u64) -> Result<R>,
    ) -> Result<R> {
        self.with(node, |at| f(files(at, otherwise)?, at.node))
    }

    fn outside(&self, at: &Here<'_>, mut entry: Entry) -> Result<Entry> {
        if entry.node != 0 {
            (entry.node, entry.attr.ino) = self.view.entered(at, entry.node, entry.attr.ino)?;
            entry.generation = at.generation(entry.generation);
        }
        Ok(entry)
    }

    /// The root of what hangs somewhere.
    fn root(&self, req: &Request, node: u64) -> Result<Entry> {
        self.with(node, |at| {
            let entry = self.view.root_entry(&By(req), at)?;
            let caching = &self.view.first().caching;
            self.outside(at, convert::entry(caching, &entry))
        })
    }

    /// A name in a directory of a file system that is about to be made, moved or removed.
    fn not_hung(&self, at: &Here<'_>, name: &[u8], taken: Errno) -> Result<()> {
        match self.view.child(at, name) {
            Some(_) => Err(taken),
            None => Ok(()),
        }
    }

    /// A name that is about to be removed must not lead to a directory in which something hangs.
    fn holds_nothing(&self, req: &Request, at: &Here<'_>, name: &[u8]) -> Result<()> {
        if !self.view.has_places() {
            return Ok(());
        }
        let a = files(at, Errno::EROFS)?;
        let found = a.lookup(req, at.node, name)?;
        if found.node == 0 {
            return Ok(());
        }
        let found = self.outside(at, found)?;
        let held = self.with(found.node, |at| Ok(self.view.is_place(at)));
        self.forget(found.node, 1);
        match held? {
            true => Err(EBUSY),
            false => Ok(()),
        }
    }

    /// Makes something in a directory.
    fn make(
        &self,
        parent: u64,
        name: &[u8],
        f: impl FnOnce(&Adapter, u64) -> Result<Entry>,
    ) -> Result<Entry> {
        self.with(parent, |at| {
            self.not_hung(at, name, Errno::EEXIST)?;
            let made = f(files(at, Errno::EROFS)?, at.node)?;
            self.outside(at, made)
        })
    }

    fn made_open(&self, at: &Here<'_>, made: (Entry, Opened)) -> Result<(Entry, Opened)> {
        Ok((self.outside(at, made.0)?, made.1))
    }
}

/// An entry of a listing, with its node where that is known.
struct Listed<'a> {
    view: &'a ViewMount,
    at: &'a Here<'a>,
    out: &'a mut DirPlusBuf,
    hung: &'a HashSet<Vec<u8>>,
    /// What `..` leads to, if not to a directory of the same file system.
    above: Option<u64>,
    full: bool,
}

impl vfs::Listing for Listed<'_> {
    fn fits(&mut self, name_len: usize) -> bool {
        let fits = self.out.fits(name_len);
        self.full |= !fits;
        fits
    }

    fn add(&mut self, ino: u64, e: &DirEntry<'_>, entry: Option<&vfs::Entry>) -> bool {
        if self.hung.contains(e.name) {
            if let Some((entry, files)) = entry.zip(self.at.files) {
                files.door().forget(entry.node, 1);
            }
            return true;
        }
        let entry = entry.and_then(|entry| {
            let files = self.at.files?;
            let entry = convert::entry(&files.caching, entry);
            self.view.outside(self.at, entry).ok()
        });
        let more = match entry {
            Some(entry) => !self.out.add(&entry, e.next, e.name),
            None => {
                let ino = match self.above {
                    Some(above) if e.name == b".." => above,
                    _ => self.at.ino(ino),
                };
                !self.out.add_plain(ino, e.next, u32::from(e.dtype), e.name)
            }
        };
        self.full |= !more;
        more
    }
}

impl ViewMount {
    /// `.` and `..` of a directory that is on no disk.
    fn dots(
        &self,
        at: &Here<'_>,
        offset: u64,
        put: &mut dyn FnMut(u64, u64, &[u8]) -> bool,
    ) -> bool {
        let own = self.view.empty_attrs(at).attr.ino;
        let above = self.ino_above(at).unwrap_or(own);
        let dots = [(own, 1, &b"."[..]), (above, 2, b"..")];
        let left = dots.iter().skip(offset.min(2) as usize);
        left.into_iter()
            .all(|(ino, next, name)| put(*ino, *next, name))
    }

    /// The inode number of the directory that a file system hangs in; none: `at` is not its root.
    fn ino_above(&self, at: &Here<'_>) -> Option<u64> {
        if at.node != ROOT || at.number == 0 {
            return None;
        }
        let above = self.view.above(at.number)?;
        let ino = |at: &Here<'_>| -> Result<u64> {
            match at.files {
                None => Ok(self.view.empty_attrs(at).attr.ino),
                Some(a) => {
                    let attrs = a.door().getattr(&vfs::Nobody, at.node)?;
                    Ok(at.ino(attrs.attr.ino))
                }
            }
        };
        self.with(above, ino).ok()
    }
}

impl Filesystem for ViewMount {
    fn init(&self, agreed: &Negotiated) {
        let mut agreed = *agreed;
        // Each opening is asked for: of a file that is not to be executed, it is refused.
        agreed.flags &= !fuse::abi::init::NO_OPEN_SUPPORT;
        let mut kept = self.agreed.acquire();
        self.view.first().init(&agreed);
        for adapter in self.view.others() {
            adapter.init(&agreed);
        }
        *kept = Some(agreed);
    }

    fn destroy(&self) {
        for adapter in self.view.others() {
            adapter.destroy();
        }
        self.view.first().destroy();
    }

    fn lookup(&self, req: &Request, parent: u64, name: &[u8]) -> Result<Entry> {
        let found = self.with(parent, |at| {
            if let Some(child) = self.view.child(at, name) {
                return Ok(Found::Root(child));
            }
            if name == b".." && at.node == ROOT && at.number != 0 {
                let above = self.view.above(at.number).ok_or(Errno::ESTALE)?;
                return Ok(Found::Above(above));
            }
            match at.files {
                Some(a) => {
                    let found = a.lookup(req, at.node, name)?;
                    self.outside(at, found).map(Found::Entry)
                }
                None if name == b"." => Ok(Found::Root(parent)),
                None => Ok(Found::Entry(Entry::negative(Duration::ZERO))),
            }
        })?;
        match found {
            Found::Entry(entry) => Ok(entry),
            Found::Root(node) => self.root(req, node),
            Found::Above(node) => self.lookup(req, node, b"."),
        }
    }

    fn forget(&self, node: u64, nlookup: u64) {
        self.view.forget(node, nlookup);
    }

    fn getattr(&self, req: &Request, node: u64, fh: Option<u64>) -> Result<AttrReply> {
        self.with(node, |at| {
            let Some(a) = at.files else {
                let caching = &self.view.first().caching;
                return Ok(convert::attrs(caching, self.view.empty_attrs(at)));
            };
            let mut reply = a.getattr(req, at.node, fh)?;
            reply.attr.ino = at.ino(reply.attr.ino);
            Ok(reply)
        })
    }

    fn setattr(&self, req: &Request, node: u64, set: &SetAttr) -> Result<AttrReply> {
        self.with(node, |at| {
            let mut reply = files(at, Errno::EROFS)?.setattr(req, at.node, set)?;
            reply.attr.ino = at.ino(reply.attr.ino);
            Ok(reply)
        })
    }

    fn statx(
        &self,
        req: &Request,
        node: u64,
        fh: Option<u64>,
        flags: u32,
        mask: u32,
    ) -> Result<StatxReply> {
        self.with(node, |at| {
            let Some(a) = at.files else {
                let caching = &self.view.first().caching;
                let AttrReply { attr, ttl } = convert::attrs(caching, self.view.empty_attrs(at));
                return Ok(StatxReply {
                    attr,
                    ttl,
                    attributes: 0,
                    attributes_mask: 0,
                });
            };
            let mut reply = a.statx(req, at.node, fh, flags, mask)?;
            reply.attr.ino = at.ino(reply.attr.ino);
            Ok(reply)
        })
    }

    fn readlink(&self, req: &Request, node: u64) -> Result<Vec<u8>> {
        self.inside(node, Errno::EINVAL, |a, node| a.readlink(req, node))
    }

    fn symlink(&self, req: &Request, parent: u64, name: &[u8], target: &[u8]) -> Result<Entry> {
        self.make(parent, name, |a, parent| {
            a.symlink(req, parent, name, target)
        })
    }

    fn mknod(
        &self,
        req: &Request,
        parent: u64,
        name: &[u8],
        mode: u32,
        rdev: u32,
    ) -> Result<Entry> {
        self.make(parent, name, |a, parent| {
            a.mknod(req, parent, name, mode, rdev)
        })
    }

    fn mkdir(&self, req: &Request, parent: u64, name: &[u8], mode: u32) -> Result<Entry> {
        self.make(parent, name, |a, parent| a.mkdir(req, parent, name, mode))
    }

    fn unlink(&self, req: &Request, parent: u64, name: &[u8]) -> Result<()> {
        self.with(parent, |at| {
            self.not_hung(at, name, EBUSY)?;
            files(at, Errno::EROFS)?.unlink(req, at.node, name)
        })
    }

    fn rmdir(&self, req: &Request, parent: u64, name: &[u8]) -> Result<()> {
        self.with(parent, |at| {
            self.not_hung(at, name, EBUSY)?;
            self.holds_nothing(req, at, name)?;
            files(at, Errno::EROFS)?.rmdir(req, at.node, name)
        })
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
        self.with(parent, |from| {
            self.with(new_parent, |to| {
                self.not_hung(from, name, EBUSY)?;
                self.not_hung(to, new_name, EBUSY)?;
                if from.number != to.number {
                    return Err(EXDEV);
                }
                if flags & zpl::rename_flags::EXCHANGE == 0 {
                    self.holds_nothing(req, to, new_name)?;
                }
                let a = files(from, Errno::EROFS)?;
                a.rename(req, from.node, name, to.node, new_name, flags)
            })
        })
    }

    fn link(&self, req: &Request, node: u64, new_parent: u64, new_name: &[u8]) -> Result<Entry> {
        self.with(node, |from| {
            self.with(new_parent, |to| {
                self.not_hung(to, new_name, Errno::EEXIST)?;
                if from.number != to.number {
                    return Err(EXDEV);
                }
                let a = files(to, Errno::EROFS)?;
                let made = a.link(req, from.node, to.node, new_name)?;
                self.outside(to, made)
            })
        })
    }

    fn open(&self, req: &Request, node: u64, args: OpenArgs) -> Result<Opened> {
        self.with(node, |at| {
            if args.flags & FMODE_EXEC != 0 && at.is_noexec() {
                return Err(EACCES);
            }
            files(at, Errno::from(Kind::IsDir))?.open_node(req, at.node, args)
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
        self.with(parent, |at| {
            self.not_hung(at, name, Errno::EEXIST)?;
            let made = files(at, Errno::EROFS)?.create(req, at.node, name, mode, args)?;
            self.made_open(at, made)
        })
    }

    fn tmpfile(
        &self,
        req: &Request,
        parent: u64,
        mode: u32,
        args: OpenArgs,
    ) -> Result<(Entry, Opened)> {
        self.with(parent, |at| {
            let made = files(at, Errno::EROFS)?.tmpfile(req, at.node, mode, args)?;
            self.made_open(at, made)
        })
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
        self.inside(node, Errno::from(Kind::IsDir), |a, node| {
            a.read(req, node, fh, offset, size, out)
        })
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
        self.inside(node, Errno::EROFS, |a, node| {
            a.write(req, node, fh, offset, data, args)
        })
    }

    fn flush(&self, req: &Request, node: u64, fh: u64) -> Result<()> {
        self.inside(node, Errno::EINVAL, |a, node| a.flush(req, node, fh))
    }

    fn release(&self, req: &Request, node: u64, fh: u64, flags: i32) {
        let _ = self.inside(node, Errno::EINVAL, |a, node| {
            a.release(req, node, fh, flags);
            Ok(())
        });
    }

    fn fsync(&self, req: &Request, node: u64, fh: u64, datasync: bool) -> Result<()> {
        self.with(node, |at| match at.files {
            Some(a) => a.fsync(req, at.node, fh, datasync),
            None => Ok(()),
        })
    }

    fn opendir(&self, req: &Request, node: u64, flags: i32) -> Result<Opened> {
        if self.view.first().lists_unasked.load(Ordering::Relaxed) {
            return Err(Errno::ENOSYS);
        }
        self.with(node, |at| match at.files {
            Some(a) => a.open_dir(req, at.node, flags),
            None => Ok(Opened::default()),
        })
    }

    fn readdir(
        &self,
        req: &Request,
        node: u64,
        fh: u64,
        offset: u64,
        out: &mut DirBuf,
    ) -> Result<()> {
        self.with(node, |at| {
            let hung = self.view.names(at);
            let above = self.ino_above(at);
            let mut full = false;
            if View::<Adapter>::is_behind(offset) {
            } else if let Some(a) = at.files {
                let mut put = |ino: u64, e: &DirEntry<'_>| {
                    if hung.contains(e.name) {
                        return true;
                    }
                    let ino = match above {
                        Some(above) if e.name == b".." => above,
                        _ => at.ino(ino),
                    };
                    full = out.add(ino, e.next, u32::from(e.dtype), e.name);
                    !full
                };
                let position = (fh, offset);
                let by = By(req);
                a.door()
                    .read_dir(&by, at.node, position, req.noatime, &mut put)?;
            } else {
                let put = &mut |ino, next, name: &[u8]| !out.add(ino, next, DT_DIR, name);
                full = !self.dots(at, offset, put);
            }
            if !full {
                for e in self.view.extras(at, offset) {
                    if out.add(e.ino, e.next, DT_DIR, &e.name) {
                        break;
                    }
                }
            }
            Ok(())
        })
    }

    fn readdirplus(
        &self,
        req: &Request,
        node: u64,
        fh: u64,
        offset: u64,
        out: &mut DirPlusBuf,
    ) -> Result<()> {
        let full = self.with(node, |at| {
            if View::<Adapter>::is_behind(offset) {
                return Ok(false);
            }
            let Some(a) = at.files else {
                let put = &mut |ino, next, name: &[u8]| !out.add_plain(ino, next, DT_DIR, name);
                return Ok(!self.dots(at, offset, put));
            };
            let hung = self.view.names(at);
            let mut listed = Listed {
                view: self,
                at,
                out,
                hung: &hung,
                above: self.ino_above(at),
                full: false,
            };
            let position = (fh, offset);
            a.door()
                .read_dir_plus(&By(req), at.node, position, req.noatime, &mut listed)?;
            Ok(listed.full)
        })?;
        if full {
            return Ok(());
        }
        let extras = self.with(node, |at| Ok(self.view.extras(at, offset)))?;
        for e in extras {
            if !out.fits(e.name.len()) {
                break;
            }
            let full = match self.root(req, e.node) {
                Ok(entry) => out.add(&entry, e.next, &e.name),
                // It has just gone.
                Err(Errno::ESTALE) => continue,
                // It is there, and cannot be read.
                Err(_) => out.add_plain(e.ino, e.next, DT_DIR, &e.name),
            };
            if full {
                break;
            }
        }
        Ok(())
    }

    fn releasedir(&self, req: &Request, node: u64, fh: u64) {
        let _ = self.inside(node, Errno::EINVAL, |a, node| {
            a.releasedir(req, node, fh);
            Ok(())
        });
    }

    fn fsyncdir(&self, req: &Request, node: u64, fh: u64, datasync: bool) -> Result<()> {
        self.fsync(req, node, fh, datasync)
    }

    fn statfs(&self, req: &Request, node: u64) -> Result<Statfs> {
        let here = self.with(node, |at| match at.files {
            Some(a) => a.statfs(req, at.node).map(Some),
            None => Ok(None),
        })?;
        match here {
            Some(figures) => Ok(figures),
            None => self.view.first().statfs(req, ROOT),
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
        self.inside(node, Errno::EROFS, |a, node| {
            a.setxattr(req, node, name, value, flags, kill_sgid)
        })
    }

    fn getxattr(&self, req: &Request, node: u64, name: &[u8]) -> Result<Vec<u8>> {
        let got = self.inside(node, ENODATA, |a, node| a.getxattr(req, node, name));
        match got {
            Err(Errno::EOPNOTSUPP) if ACLS.contains(&name) => Err(ENODATA),
            got => got,
        }
    }

    fn listxattr(&self, req: &Request, node: u64, out: &mut XattrNames) -> Result<()> {
        self.with(node, |at| match at.files {
            Some(a) => a.listxattr(req, at.node, out),
            None => Ok(()),
        })
    }

    fn removexattr(&self, req: &Request, node: u64, name: &[u8]) -> Result<()> {
        self.inside(node, Errno::EROFS, |a, node| a.removexattr(req, node, name))
    }

    fn access(&self, req: &Request, node: u64, mask: u32) -> Result<()> {
        self.inside(node, EACCES, |a, node| a.access(req, node, mask))
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
        self.inside(node, Errno::ENOTTY, |a, node| {
            a.ioctl(req, node, fh, flags, cmd, input, out_size)
        })
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
        self.inside(node, Errno::EROFS, |a, node| {
            a.fallocate(req, node, fh, offset, length, mode)
        })
    }

    fn lseek(&self, req: &Request, node: u64, fh: u64, offset: u64, whence: u32) -> Result<u64> {
        self.inside(node, Errno::EINVAL, |a, node| {
            a.lseek(req, node, fh, offset, whence)
        })
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
        self.with(node_in, |from| {
            self.with(node_out, |to| {
                let (a, b) = (files(from, EXDEV)?, files(to, EXDEV)?);
                let (node_in, node_out) = (from.node, to.node);
                if from.number == to.number {
                    return a.copy_file_range(
                        req, node_in, fh_in, offset_in, node_out, fh_out, offset_out, length, flags,
                    );
                }
                if flags != 0 {
                    return Err(Errno::EINVAL);
                }
                let (from, to) = (&**a.door(), &**b.door());
                let (from, to) = ((from, node_in, offset_in), (to, node_out, offset_out));
                Ok(View::<Adapter>::copy_between(&By(req), from, to, length)?)
            })
        })
    }

    fn outcome_unknown(&self, changed: Changed<'_>) {
        let (Changed::Name(node, _)
        | Changed::Attributes(node)
        | Changed::Content(node)
        | Changed::Size(node)) = changed;
        // Outside of the view: who is told may ask it.
        let inside = self.with(node, |at| Ok((files(at, Errno::EROFS)?.clone(), at.node)));
        let Ok((adapter, node)) = inside else { return };
        adapter.outcome_unknown(match changed {
            Changed::Name(_, name) => Changed::Name(node, name),
            Changed::Attributes(_) => Changed::Attributes(node),
            Changed::Content(_) => Changed::Content(node),
            Changed::Size(_) => Changed::Size(node),
        });
    }

    fn syncfs(&self, req: &Request, node: u64) -> Result<()> {
        let first = self.view.first().syncfs(req, node);
        let all = self.view.others();
        all.iter()
            .fold(first, |done, a| done.and(a.syncfs(req, node)))
    }
}
