//! Names: looking them up and listing them, in the head, in snapshots and in the control directory.

use crate::answers::{Entry, Listing, Lookup, Opened, FOREVER};
use crate::caller::Caller;
use crate::control_lists::behind;
use crate::ctldir::{self, Dir, Tree, NAME};
use crate::door::{Door, Node};
use crate::nodes::ROOT;
use crate::snapshots::Snapdir;
use api::Peer;
use base::sync::MutexExt;
use base::{Error, Kind, Result};
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::Duration;
use zpl::{DirEntry, Zfs, Znode};

/// Names in the control directory come and go behind clients' backs; those of snapshots are not kept at all.
pub(crate) const BRIEF: Duration = Duration::from_secs(1);
/// Position behind `.` and `..`; those up to 3 are not used by entries.
const AFTER_DOTS: u64 = 2;
/// `DT_DIR`
const DT_DIR: u8 = 4;

impl Door {
    /// An object of the head under a name; clients have one more lookup of it.
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
            attr: self.served.power.shown(a),
            keep_name: self.served.names,
            keep_attr: ttl,
        }
    }

    pub(crate) fn dir_entry(&self, dir: Dir) -> Entry {
        Entry {
            node: ctldir::dir_id(dir),
            generation: 0,
            attr: self.served.ctl.dir_attr(dir),
            keep_name: BRIEF,
            keep_attr: Duration::ZERO,
        }
    }

    /// An object of a snapshot; its root, which a name of the control directory leads to, may go.
    pub(crate) fn file_entry(&self, t: &Tree, z: &Arc<Znode>) -> Result<Entry> {
        let node = match t.enter(z) {
            // The object number does not fit into a node id.
            0 => return Err(Kind::Overflow.into()),
            n => n,
        };
        // Nothing changes in a snapshot, so every spelling of a name stays right.
        let fixed = !t.is_root(z);
        Ok(Entry {
            node,
            generation: self.served.ctl.generation(t),
            attr: self.served.power.shown(t.attr(z)),
            keep_name: match fixed {
                true => FOREVER,
                // Renamed or destroyed at any time.
                false => Duration::ZERO,
            },
            keep_attr: FOREVER,
        })
    }

    /// A name that is not there, for as long as `ttl`; other errors stay.
    fn or_negative(e: Error, ttl: Duration) -> Result<Lookup> {
        match e.kind {
            Kind::NotFound => Ok(Lookup::Missing(ttl)),
            _ => Err(e),
        }
    }

    /// Looks a name up in a directory of the head.
    pub(crate) fn lookup_head(&self, by: &dyn Caller, parent: u64, name: &[u8]) -> Result<Lookup> {
        let zfs = self.served.gate.enter(by)?;
        if matches!(name, b"." | b"..") {
            let z = self.nodes.revive(&zfs, parent)?;
            if name == b"." && z.is_doomed() {
                // Asked for by a handle: the client has let go of it, and its FORGET is still to come.
                return Err(Kind::Stale.into());
            }
            return Ok(Lookup::Found(match name {
                b"." => self.entry(&zfs, &z),
                _ => self.entry(&zfs, &zfs.lookup(&z, name, &by.cred())?),
            }));
        }
        let dir = self.nodes.get(&zfs, parent)?;
        match zfs.lookup(&dir, name, &by.cred()) {
            Ok(z) => Ok(Lookup::Found(self.entry(&zfs, &z))),
            Err(e) => Self::or_negative(e, self.served.names),
        }
    }

    /// The control directory under its name.
    pub(crate) fn lookup_ctl(&self) -> Lookup {
        // The property may change.
        match self.is_ctl_off() {
            true => Lookup::Missing(BRIEF),
            false => Lookup::Found(self.dir_entry(Dir::Root)),
        }
    }

    pub(crate) fn is_ctl_off(&self) -> bool {
        self.served.ctl.mode() == Snapdir::Disabled
    }

    /// Looks a name up below the control directory.
    pub(crate) fn lookup_ours(&self, by: &dyn Caller, parent: u64, name: &[u8]) -> Result<Lookup> {
        match self.served.ctl.node(parent)? {
            ctldir::Node::Dir(d) => self.lookup_dir(by, d, name),
            // Also of what is no directory: for file handles.
            ctldir::Node::File(t, z) if name == b"." => Ok(Lookup::Found(self.file_entry(&t, &z)?)),
            ctldir::Node::File(t, z) if name == b".." && t.is_root(&z) => {
                Ok(Lookup::Found(self.dir_entry(Dir::Snapshots)))
            }
            ctldir::Node::File(t, z) => {
                let zfs = t.zfs().ok_or(Kind::NotDir)?;
                match zfs.lookup(&z, name, &by.cred()) {
                    Ok(z) => Ok(Lookup::Found(self.file_entry(&t, &z)?)),
                    Err(e) => Self::or_negative(e, FOREVER),
                }
            }
            ctldir::Node::Volume(..) => Err(Kind::NotDir.into()),
        }
    }

    fn lookup_dir(&self, by: &dyn Caller, dir: Dir, name: &[u8]) -> Result<Lookup> {
        match (dir, name) {
            (_, b".") => Ok(Lookup::Found(self.dir_entry(dir))),
            (Dir::Root, b"..") => self.lookup_head(by, ROOT, b"."),
            (_, b"..") => Ok(Lookup::Found(self.dir_entry(Dir::Root))),
            (Dir::Root, _) => Ok(match self.served.ctl.subdir(name) {
                Some(d) => Lookup::Found(self.dir_entry(d)),
                None => Lookup::Missing(BRIEF),
            }),
            (Dir::Shares, _) => Ok(Lookup::Missing(BRIEF)),
            (Dir::Snapshots, _) => {
                let root = self.served.ctl.snapshot(name).and_then(|t| {
                    let z = t.zfs().ok_or(Kind::NotFound)?.root()?;
                    Ok((t, z))
                });
                match root {
                    Ok((t, z)) => Ok(Lookup::Found(self.file_entry(&t, &z)?)),
                    // It may be made at once.
                    Err(e) => Self::or_negative(e, Duration::ZERO),
                }
            }
            (Dir::Volumes, _) => match self.served.ctl.volume(name) {
                Ok((t, v)) => Ok(Lookup::Found(Entry {
                    node: t.id(1),
                    generation: self.served.ctl.generation(&t),
                    attr: self.served.ctl.volume_attr(&t, &v),
                    keep_name: BRIEF,
                    keep_attr: BRIEF,
                })),
                Err(e) => Self::or_negative(e, BRIEF),
            },
        }
    }

    /// Who asks for a change of the directory of snapshots, and a name in it.
    fn change_of_snapshots<'a>(
        by: &dyn Caller,
        parent: u64,
        name: &'a [u8],
    ) -> Result<(&'a str, Peer)> {
        if parent != ctldir::dir_id(Dir::Snapshots) {
            return Err(Kind::ReadOnly.into());
        }
        let name = std::str::from_utf8(name).map_err(|_| Kind::Invalid)?;
        let peer = Peer {
            uid: by.uid(),
            gid: by.gid(),
            pid: i32::try_from(by.process()).unwrap_or(0),
        };
        Ok((name, peer))
    }

    /// `mkdir` below the control directory: a snapshot.
    pub(crate) fn make_snapshot(&self, by: &dyn Caller, parent: u64, name: &[u8]) -> Result<Entry> {
        let (short, peer) = Self::change_of_snapshots(by, parent, name)?;
        self.served
            .ctl
            .administer(|from| from.create(short, peer))?;
        match self.lookup_dir(by, Dir::Snapshots, name)? {
            Lookup::Found(entry) => Ok(entry),
            // Destroyed at once.
            Lookup::Missing(_) => Err(Kind::NotFound.into()),
        }
    }

    /// `rmdir` there.
    pub(crate) fn destroy_snapshot(&self, by: &dyn Caller, parent: u64, name: &[u8]) -> Result<()> {
        let (name, peer) = Self::change_of_snapshots(by, parent, name)?;
        self.served.ctl.administer(|from| from.destroy(name, peer))
    }

    /// `rename` there.
    pub(crate) fn rename_snapshot(
        &self,
        by: &dyn Caller,
        (parent, name): (u64, &[u8]),
        (new_parent, new_name): (u64, &[u8]),
        flags: u32,
    ) -> Result<()> {
        let (name, peer) = Self::change_of_snapshots(by, parent, name)?;
        let (to, _) = Self::change_of_snapshots(by, new_parent, new_name)?;
        // Another snapshot is never replaced, so RENAME_NOREPLACE asks for what is done anyway.
        if flags & !zpl::rename_flags::NOREPLACE != 0 {
            return Err(Kind::Invalid.into());
        }
        self.served
            .ctl
            .administer(|from| from.rename(name, to, peer))
    }

    /// Opens a directory. `keeps_atime`: listing it does not change its access time.
    pub fn open_dir(&self, by: &dyn Caller, node: u64, keeps_atime: bool) -> Result<Opened> {
        let served = &self.served;
        let n = self.resolve(by, node)?;
        if let Node::Dir(d) = n {
            let list = served.shared.share(d, served.ctl.list(d)?);
            let handle = served.handles.fetch_add(1, Ordering::Relaxed);
            served.lists.acquire().insert(handle, list);
            return Ok(Opened {
                handle,
                listed: true,
                ..Opened::default()
            });
        }
        let (zfs, z) = n.object(Kind::NotDir)?;
        zfs.opendir(z, &by.cred())?;
        let mut keep = true;
        if let Node::Object(..) = n {
            // Listing from a client's cache is never heard of: what it has is dropped where listing
            // changes the access time.
            keep = keeps_atime || !zfs.atime_due(z);
            if node == ROOT {
                let visible = served.ctl.mode() == Snapdir::Visible;
                keep &= self.listed_visible.swap(visible, Ordering::Relaxed) == visible;
            }
        }
        Ok(Opened {
            keep,
            ..Opened::default()
        })
    }

    /// Hands on the entries of a directory, with their inode numbers, from position `offset` until `put` says that it is full.
    /// Positions are 0 and the `next` of entries, in any order. `keeps_atime`: the directory was opened so.
    pub fn read_dir(
        &self,
        by: &dyn Caller,
        node: u64,
        (handle, offset): (u64, u64),
        keeps_atime: bool,
        put: impl FnMut(u64, &DirEntry<'_>) -> bool,
    ) -> Result<()> {
        let n = self.resolve(by, node)?;
        if let (Node::Object(zfs, z), 0) = (&n, offset) {
            zfs.list_ahead(z, false);
        }
        self.listing_begins(&n, node, handle);
        self.list(&n, node, (handle, offset), put)?;
        self.listing_ends(&n, node, keeps_atime);
        Ok(())
    }

    /// The same with attributes.
    pub fn read_dir_plus(
        &self,
        by: &dyn Caller,
        node: u64,
        (handle, offset): (u64, u64),
        keeps_atime: bool,
        out: &mut impl Listing,
    ) -> Result<()> {
        let n = self.resolve(by, node)?;
        if let (Node::Object(zfs, z), 0) = (&n, offset) {
            zfs.list_ahead(z, true);
        }
        self.listing_begins(&n, node, handle);
        self.list_plus(&n, node, (handle, offset), out)?;
        self.listing_ends(&n, node, keeps_atime);
        Ok(())
    }

    fn list(
        &self,
        n: &Node<'_>,
        node: u64,
        (handle, offset): (u64, u64),
        mut put: impl FnMut(u64, &DirEntry<'_>) -> bool,
    ) -> Result<()> {
        match n {
            Node::Dir(d) => self.lines(*d, handle, offset, put),
            Node::Object(zfs, z) => self.each(zfs, node, z, offset, |e| put(e.object, e)),
            Node::File(t, z) => {
                let zfs = t.zfs().ok_or(Kind::NotDir)?;
                let root = t.is_root(z);
                zfs.entries(z, offset, |e| {
                    let ino = match root && e.name == b".." {
                        true => self.served.ctl.dir_attr(Dir::Snapshots).ino,
                        false => t.ino(e.object),
                    };
                    Ok(put(ino, &e))
                })?;
                Ok(())
            }
            Node::Volume(..) => Err(Kind::NotDir.into()),
        }
    }

    fn list_plus(
        &self,
        n: &Node<'_>,
        node: u64,
        at: (u64, u64),
        out: &mut impl Listing,
    ) -> Result<()> {
        self.list(n, node, at, |ino, e| {
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
            out.add(ino, e, entry.as_ref())
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
        let visible = node == ROOT && self.served.ctl.mode() == Snapdir::Visible;
        if !visible || offset > AFTER_DOTS {
            return zfs.entries(dir, offset, |e| Ok(put(&e)));
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
            object: self.served.ctl.dir_attr(Dir::Root).ino,
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
        handle: u64,
        offset: u64,
        mut put: impl FnMut(u64, &DirEntry<'_>) -> bool,
    ) -> Result<()> {
        let served = &self.served;
        let (number, list, from) = self.control_list(dir, handle, offset)?;
        let up = match dir {
            Dir::Root => served.gate.current().root_object(),
            _ => self.served.ctl.dir_attr(Dir::Root).ino,
        };
        let dots = [
            (self.served.ctl.dir_attr(dir).ino, &b"."[..]),
            (up, &b".."[..]),
        ];
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
