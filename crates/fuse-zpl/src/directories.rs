//! Names: looking them up and listing them, in the head, in snapshots and in the control directory.

use crate::adapter::{Adapter, Node, Result};
use crate::control_lists::behind;
use crate::convert::{attr_out, cred};
use crate::ctldir::{self, Dir, Tree, NAME};
use crate::data::O_NOATIME;
use crate::snapshots::{Caller, Snapdir};
use base::sync::MutexExt;
use base::Kind;
use fuse::{DirPlusBuf, Entry, Errno, Opened, Request, FOREVER};
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::Duration;
use zpl::{DirEntry, New, Zfs, Znode};

/// Names in the control directory come and go behind the kernel's back; those of snapshots are not kept at all.
pub(crate) const BRIEF: Duration = Duration::from_secs(1);
/// Position behind `.` and `..`; those up to 3 are not used by entries.
const AFTER_DOTS: u64 = 2;
/// An object number that does not fit into a node id.
const EOVERFLOW: Errno = Errno(75);
/// `DT_DIR`
const DT_DIR: u8 = 4;

impl Adapter {
    pub(crate) fn brief(&self) -> Duration {
        self.caching.names(BRIEF)
    }

    /// An object of the head under a name; the kernel has one more lookup of it.
    pub(crate) fn entry(&self, zfs: &Zfs, z: &Arc<Znode>) -> Entry {
        self.entry_of(zfs, z, self.nodes.enter(z))
    }

    /// The same for one that is open, perhaps for writing, with the answer.
    pub(crate) fn entry_open(&self, zfs: &Zfs, z: &Arc<Znode>, writer: bool) -> Entry {
        let node = loop {
            let node = self.nodes.enter(z);
            if self.nodes.opened(node) {
                break node;
            }
            // Retired just now: the next one is its successor.
            self.forget_node(zfs, node, 1);
        };
        if writer {
            self.writers.opened(node, z.gen as u32);
        }
        self.entry_of(zfs, z, node)
    }

    fn entry_of(&self, zfs: &Zfs, z: &Arc<Znode>, node: u64) -> Entry {
        let ttl = self.ttl(zfs, node, z);
        let a = zfs.getattr(z);
        Entry {
            node,
            generation: a.generation as u64,
            attr: self.power.shown(attr_out(&a)),
            entry_ttl: self.names,
            attr_ttl: ttl,
        }
    }

    fn dir_entry(&self, dir: Dir) -> Entry {
        Entry {
            node: ctldir::dir_id(dir),
            generation: 0,
            attr: self.ctl.dir_attr(dir),
            entry_ttl: self.brief(),
            attr_ttl: Duration::ZERO,
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
            attr: self.power.shown(t.attr(z)),
            entry_ttl: match fixed {
                true => self.caching.names(FOREVER),
                // Renamed or destroyed at any time.
                false => Duration::ZERO,
            },
            attr_ttl: self.caching.attributes(FOREVER),
        })
    }

    /// A name that is not there, for as long as `ttl`; other errors stay.
    fn or_negative(e: base::Error, ttl: Duration) -> Result<Entry> {
        match e.kind {
            Kind::NotFound => Ok(Entry::negative(ttl)),
            _ => Err(e.into()),
        }
    }

    /// Looks a name up in a directory of the head.
    pub(crate) fn lookup_head(&self, req: &Request, parent: u64, name: &[u8]) -> Result<Entry> {
        let zfs = self.gate.enter(req)?;
        if matches!(name, b"." | b"..") {
            let z = self.nodes.revive(&zfs, parent)?;
            return Ok(match name {
                b"." => self.entry(&zfs, &z),
                _ => self.entry(&zfs, &zfs.lookup(&z, name, &cred(req))?),
            });
        }
        let dir = self.nodes.get(&zfs, parent)?;
        match zfs.lookup(&dir, name, &cred(req)) {
            Ok(z) => Ok(self.entry(&zfs, &z)),
            Err(e) => Self::or_negative(e, self.names),
        }
    }

    /// The control directory under its name.
    pub(crate) fn lookup_ctl(&self) -> Entry {
        // The property may change.
        match self.ctl.mode() {
            Snapdir::Disabled => Entry::negative(self.brief()),
            _ => self.dir_entry(Dir::Root),
        }
    }

    /// Looks a name up below the control directory.
    pub(crate) fn lookup_ours(&self, req: &Request, parent: u64, name: &[u8]) -> Result<Entry> {
        match self.ctl.node(parent)? {
            ctldir::Node::Dir(d) => self.lookup_dir(req, d, name),
            // Also of what is no directory: for file handles.
            ctldir::Node::File(t, z) if name == b"." => self.file_entry(&t, &z),
            ctldir::Node::File(t, z) if name == b".." && t.is_root(&z) => {
                Ok(self.dir_entry(Dir::Snapshots))
            }
            ctldir::Node::File(t, z) => {
                let zfs = t.zfs().ok_or(Errno::ENOTDIR)?;
                match zfs.lookup(&z, name, &cred(req)) {
                    Ok(z) => self.file_entry(&t, &z),
                    Err(e) => Self::or_negative(e, self.caching.names(FOREVER)),
                }
            }
            ctldir::Node::Volume(..) => Err(Errno::ENOTDIR),
        }
    }

    fn lookup_dir(&self, req: &Request, dir: Dir, name: &[u8]) -> Result<Entry> {
        match (dir, name) {
            (_, b".") => Ok(self.dir_entry(dir)),
            (Dir::Root, b"..") => self.lookup_head(req, fuse::ROOT, b"."),
            (_, b"..") => Ok(self.dir_entry(Dir::Root)),
            (Dir::Root, _) => Ok(match self.ctl.subdir(name) {
                Some(d) => self.dir_entry(d),
                None => Entry::negative(self.brief()),
            }),
            (Dir::Shares, _) => Ok(Entry::negative(self.brief())),
            (Dir::Snapshots, _) => {
                let root = self.ctl.snapshot(name).and_then(|t| {
                    let z = t.zfs().ok_or(Kind::NotFound)?.root()?;
                    Ok((t, z))
                });
                match root {
                    Ok((t, z)) => self.file_entry(&t, &z),
                    // It may be made at once.
                    Err(e) => Self::or_negative(e, Duration::ZERO),
                }
            }
            (Dir::Volumes, _) => match self.ctl.volume(name) {
                Ok((t, v)) => Ok(Entry {
                    node: t.id(1),
                    generation: self.ctl.generation(&t),
                    attr: self.ctl.volume_attr(&t, &v),
                    entry_ttl: self.brief(),
                    attr_ttl: self.brief(),
                }),
                Err(e) => Self::or_negative(e, self.brief()),
            },
        }
    }

    /// Whether a name of the root means the control directory.
    pub(crate) fn is_ctl(&self, parent: u64, name: &[u8]) -> bool {
        parent == fuse::ROOT && name == NAME && self.ctl.mode() != Snapdir::Disabled
    }

    /// What is to be made must be part of the head.
    pub(crate) fn can_make(&self, parent: u64, name: &[u8]) -> Result<()> {
        match ctldir::is_ours(parent) {
            true => Err(Errno::EROFS),
            false if self.is_ctl(parent, name) => Err(Errno::EEXIST),
            false => Ok(()),
        }
    }

    /// Who asks for a change of the directory of snapshots, and a name in it.
    fn change_of_snapshots<'a>(
        req: &Request,
        parent: u64,
        name: &'a [u8],
    ) -> Result<(&'a str, Caller)> {
        if parent != ctldir::dir_id(Dir::Snapshots) {
            return Err(Errno::EROFS);
        }
        let name = std::str::from_utf8(name).map_err(|_| Errno::EINVAL)?;
        let caller = Caller {
            uid: req.uid,
            gid: req.gid,
            pid: req.pid,
        };
        Ok((name, caller))
    }

    /// `mkdir` below the control directory: a snapshot.
    pub(crate) fn make_snapshot(&self, req: &Request, parent: u64, name: &[u8]) -> Result<Entry> {
        let (short, caller) = Self::change_of_snapshots(req, parent, name)?;
        self.ctl.administer(|from| from.create(short, caller))?;
        self.lookup_dir(req, Dir::Snapshots, name)
    }

    /// `rmdir` there.
    pub(crate) fn destroy_snapshot(&self, req: &Request, parent: u64, name: &[u8]) -> Result<()> {
        let (name, caller) = Self::change_of_snapshots(req, parent, name)?;
        self.ctl.administer(|from| from.destroy(name, caller))
    }

    /// `rename` there.
    pub(crate) fn rename_snapshot(
        &self,
        req: &Request,
        (parent, name): (u64, &[u8]),
        (new_parent, new_name): (u64, &[u8]),
        flags: u32,
    ) -> Result<()> {
        let (name, caller) = Self::change_of_snapshots(req, parent, name)?;
        let (to, _) = Self::change_of_snapshots(req, new_parent, new_name)?;
        // Another snapshot is never replaced, so RENAME_NOREPLACE asks for what is done anyway.
        if flags & !zpl::rename_flags::NOREPLACE != 0 {
            return Err(Errno::EINVAL);
        }
        self.ctl.administer(|from| from.rename(name, to, caller))
    }

    /// Makes an object in a directory of the head.
    pub(crate) fn make(
        &self,
        req: &Request,
        parent: u64,
        name: &[u8],
        new: &New<'_>,
    ) -> Result<Entry> {
        self.can_make(parent, name)?;
        self.admission.call(req)?;
        let (zfs, dir) = self.head(req, parent)?;
        let z = zfs.create(&dir, name, new, &cred(req))?;
        self.names_changed(parent);
        Ok(self.entry(&zfs, &z))
    }

    /// Opens a directory.
    pub(crate) fn open_dir(&self, req: &Request, node: u64, flags: i32) -> Result<Opened> {
        let n = self.resolve(req, node)?;
        if let Node::Dir(d) = n {
            let list = self.shared.share(d, self.ctl.list(d)?);
            let fh = self.handles.fetch_add(1, Ordering::Relaxed);
            self.lists.acquire().insert(fh, list);
            return Ok(Opened { fh, flags: 0 });
        }
        let (zfs, z) = n.object(Errno::ENOTDIR)?;
        zfs.opendir(z, &cred(req))?;
        let mut keep = true;
        if let Node::Object(..) = n {
            // Listing from the kernel's cache is never heard of: what it has is dropped where listing
            // changes the access time.
            keep = flags & O_NOATIME != 0 || !zfs.atime_due(z);
            if node == fuse::ROOT {
                let visible = self.ctl.mode() == Snapdir::Visible;
                keep &= self.listed_visible.swap(visible, Ordering::Relaxed) == visible;
            }
        }
        Ok(Opened {
            fh: 0,
            flags: self.caching.listings(keep),
        })
    }

    /// Hands on the entries of a directory, with their inode numbers, from position `offset` until
    /// `put` says that it is full.
    pub(crate) fn list(
        &self,
        n: &Node<'_>,
        node: u64,
        fh: u64,
        offset: u64,
        mut put: impl FnMut(u64, &DirEntry<'_>) -> bool,
    ) -> Result<()> {
        match n {
            Node::Dir(d) => self.lines(*d, fh, offset, put),
            Node::Object(zfs, z) => self.each(zfs, node, z, offset, |e| put(e.object, e)),
            Node::File(t, z) => {
                let zfs = t.zfs().ok_or(Errno::ENOTDIR)?;
                let root = t.is_root(z);
                zfs.entries(z, offset, |e| {
                    let ino = match root && e.name == b".." {
                        true => self.ctl.dir_attr(Dir::Snapshots).ino,
                        false => t.ino(e.object),
                    };
                    Ok(put(ino, &e))
                })?;
                Ok(())
            }
            Node::Volume(..) => Err(Errno::ENOTDIR),
        }
    }

    /// The same with attributes.
    pub(crate) fn list_plus(
        &self,
        n: &Node<'_>,
        node: u64,
        fh: u64,
        offset: u64,
        out: &mut DirPlusBuf,
    ) -> Result<()> {
        self.list(n, node, fh, offset, |ino, e| {
            let kind = u32::from(e.dtype);
            if !out.fits(e.name.len()) {
                return false;
            }
            let dots = e.name == b"." || e.name == b"..";
            let entry = match n {
                _ if dots => None,
                Node::Object(..) if ctldir::is_dir_ino(e.object) => None,
                // Removed meanwhile, or damaged: the name is listed, looking it up tells.
                Node::Object(zfs, _) => zfs.get(e.object).ok().map(|z| self.entry(zfs, &z)),
                Node::File(t, _) => t
                    .zfs()
                    .and_then(|zfs| zfs.get(e.object).ok())
                    .and_then(|z| self.file_entry(t, &z).ok()),
                // Attributes would mean to open every snapshot.
                Node::Dir(_) | Node::Volume(..) => None,
            };
            match entry {
                Some(entry) => !out.add(&entry, e.next, e.name),
                None => !out.add_plain(ino, e.next, kind, e.name),
            }
        })
    }

    /// Entries of a directory of the head; `.zfs` is among those of the root if it is visible.
    fn each(
        &self,
        zfs: &Zfs,
        node: u64,
        dir: &Znode,
        offset: u64,
        mut put: impl FnMut(&DirEntry<'_>) -> bool,
    ) -> Result<()> {
        let visible = node == fuse::ROOT && self.ctl.mode() == Snapdir::Visible;
        if !visible || offset > AFTER_DOTS {
            return Ok(zfs.entries(dir, offset, |e| Ok(put(&e)))?);
        }
        let mut full = false;
        if offset < AFTER_DOTS {
            zfs.entries(dir, offset, |e| {
                let next = match e.name {
                    b"." => e.next,
                    b".." => AFTER_DOTS,
                    _ => return Ok(false),
                };
                full = !put(&DirEntry { next, ..e });
                Ok(!full)
            })?;
        }
        let ctl = DirEntry {
            name: NAME,
            object: self.ctl.dir_attr(Dir::Root).ino,
            dtype: DT_DIR,
            next: AFTER_DOTS + 1,
        };
        if !full && put(&ctl) {
            zfs.entries(dir, AFTER_DOTS + 1, |e| Ok(put(&e)))?;
        }
        Ok(())
    }

    /// Entries of a directory of the control directory, as they were when it was opened.
    fn lines(
        &self,
        dir: Dir,
        fh: u64,
        offset: u64,
        mut put: impl FnMut(u64, &DirEntry<'_>) -> bool,
    ) -> Result<()> {
        let (number, list, from) = self.control_list(dir, fh, offset)?;
        let up = match dir {
            Dir::Root => self.gate.current().root_object(),
            _ => self.ctl.dir_attr(Dir::Root).ino,
        };
        let dots = [(self.ctl.dir_attr(dir).ino, &b"."[..]), (up, &b".."[..])];
        let dots = dots.into_iter().map(|(ino, name)| (ino, DT_DIR, name));
        let lines = list.iter().map(|l| (l.ino, l.kind, &l.name[..]));
        for (i, (ino, dtype, name)) in dots.chain(lines).enumerate().skip(from) {
            let next = behind(number, i);
            let object = ino;
            if !put(
                ino,
                &DirEntry {
                    name,
                    object,
                    dtype,
                    next,
                },
            ) {
                return Ok(());
            }
        }
        Ok(())
    }
}
