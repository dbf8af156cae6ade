//! `.zfs`, the control directory in the root of every file system in service (data format §25): the
//! snapshots, and the volumes that lie beside the file systems below it.
//!
//! Snapshots are not mounts of their own here, but part of the service of their file system: an
//! ordinary user could not mount them inside his own mount, and it spares the kernel thousands of
//! mounts. A snapshot is opened when somebody looks into it and given back when nobody has for a
//! while. Node ids say everything needed to open it again, so nothing is kept for what clients
//! merely remember: the number of a snapshot in them is that of its dataset object. So handles of NFS clients go on after
//! a restart. Only a snapshot whose object is above [`COUNTED_FROM`], or was another snapshot's since the mount, has a counted number.
//!
//! `st_dev` is the same for all snapshots, and that of the file system as long as `.zfs` is not mounted itself
//! (a door may do that). So `st_ino` is not the object number: the snapshot is mixed in, so that programs never
//! take a file for its snapshot, nor the root of a snapshot for a loop in the tree.

use crate::snapshots::{Content, Key, Snapdir, Snapshots, Volume};
use base::mutation::{mutated, Mutation};
use base::sync::{MutexExt, RwLockExt};
use base::{Kind, Result};
use env::Clock;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock, Weak};
use zpl::{Attr, Time, Zfs, Znode};

/// Ids of nodes of the control directory and below have both of these bits; others do not.
pub(crate) const OURS: u64 = 3 << 62;
/// Bits of the object number in a node id; above them is the number of the snapshot or volume.
pub(crate) const OBJECT_BITS: u32 = 40;
const OBJECT_MASK: u64 = (1 << OBJECT_BITS) - 1;
pub(crate) const MOST_TREES: usize = 1 << 22;
/// Numbers below it are those of dataset objects.
pub(crate) const COUNTED_FROM: u64 = 1 << 21;
/// Snapshots and volumes of one file system that are open at a time.
const MOST_OPEN: usize = 64;
/// Znodes kept of one snapshot.
const MOST_ZNODES: usize = 1024;
/// What nobody has used so long is closed, nanoseconds.
const IDLE: u64 = 60_000_000_000;

/// The directory's name.
pub const NAME: &[u8] = b".zfs";

/// Inode numbers of the directories (data format §25); they are above all object numbers.
const INO_ROOT: u64 = 0xffff_ffff_ffff;
const INO_SHARES: u64 = INO_ROOT - 1;
const INO_SNAPSHOTS: u64 = INO_ROOT - 2;
/// Ours alone.
const INO_VOLUMES: u64 = INO_ROOT << 1;

/// Directories of the control directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dir {
    /// `.zfs`
    Root = 1,
    /// `.zfs/shares`
    Shares = 2,
    /// `.zfs/snapshot`
    Snapshots = 3,
    /// `.zfs/volumes`
    Volumes = 4,
}

/// What a node id below `.zfs` means.
pub enum Node {
    /// A directory of the control directory itself.
    Dir(Dir),
    /// Object of a snapshot.
    File(Arc<Tree>, Arc<Znode>),
    /// A volume, or a snapshot of one.
    Volume(Arc<Tree>, Arc<Volume>),
}

/// An open snapshot or volume.
pub enum Open {
    /// A snapshot of a file system.
    Snapshot(Snapshot),
    /// A volume, or a snapshot of one.
    Volume(Arc<Volume>),
}

/// An open snapshot of a file system.
pub struct Snapshot {
    /// The file system in it.
    pub zfs: Arc<Zfs>,
    znodes: Mutex<HashMap<u64, Arc<Znode>>>,
}

/// A snapshot or volume somebody has looked into, open or not.
pub struct Tree {
    number: u64,
    key: Key,
    /// What it is, opened.
    pub open: Open,
    /// Monotonic nanoseconds.
    used: AtomicU64,
}

/// Numbers of things that have one in the pool: that one, if nothing else has had it, or a counted one.
pub(crate) struct Numbers<K> {
    by_number: HashMap<u64, K>,
    known: HashMap<K, u64>,
    counted: u64,
}

impl<K> Default for Numbers<K> {
    fn default() -> Self {
        Numbers {
            by_number: HashMap::new(),
            known: HashMap::new(),
            counted: 0,
        }
    }
}

impl<K: Copy + Eq + std::hash::Hash> Numbers<K> {
    /// What has a number.
    pub(crate) fn of(&self, number: u64) -> Option<K> {
        self.by_number.get(&number).copied()
    }

    /// The number of something, if it has one.
    pub(crate) fn known(&self, key: &K) -> Option<u64> {
        self.known.get(key).copied()
    }

    /// The number of something from now on; none: there is none left.
    pub(crate) fn give(&mut self, key: K, own: u64) -> Option<u64> {
        if let Some(number) = self.known(&key) {
            return Some(number);
        }
        let is_free = (1..COUNTED_FROM).contains(&own) && !self.by_number.contains_key(&own);
        let number = match is_free {
            true => own,
            false => COUNTED_FROM + self.counted,
        };
        if number >= MOST_TREES as u64 {
            return None;
        }
        self.counted += u64::from(!is_free);
        self.by_number.insert(number, key);
        self.known.insert(key, number);
        Some(number)
    }
}

/// The control directory of one file system in service.
pub struct Ctldir {
    from: Box<dyn Snapshots>,
    clock: Arc<dyn Clock>,
    /// Object of the root of every snapshot.
    root: AtomicU64,
    mounted_at: Time,
    numbers: RwLock<Numbers<Key>>,
    open: Mutex<HashMap<u64, Arc<Tree>>>,
}

/// One line of a directory.
#[derive(PartialEq, Eq)]
pub struct Line {
    /// Inode number.
    pub ino: u64,
    /// `DT_*`
    pub kind: u8,
    /// Name.
    pub name: Vec<u8>,
}

/// Lists of directories: those who open a directory share one list until it changes, however many they are.
#[derive(Default)]
pub struct SharedLists(Mutex<HashMap<Dir, Weak<Vec<Line>>>>);

impl SharedLists {
    /// The list that others have open, if it is the same.
    pub fn share(&self, dir: Dir, list: Vec<Line>) -> Arc<Vec<Line>> {
        let mut newest = self.0.acquire();
        let open = newest.get(&dir).and_then(Weak::upgrade);
        if let Some(open) = open.filter(|open| **open == list) {
            return open;
        }
        let list = Arc::new(list);
        newest.insert(dir, Arc::downgrade(&list));
        list
    }
}

/// Whether a node id belongs to the control directory.
pub fn is_ours(node: u64) -> bool {
    node & OURS == OURS
}

/// Whether an inode number is that of the control directory itself.
pub fn is_dir_ino(ino: u64) -> bool {
    ino == INO_ROOT
}

impl Dir {
    /// The directory of a number.
    pub const fn of_number(n: u64) -> Option<Dir> {
        match n {
            1 => Some(Dir::Root),
            2 => Some(Dir::Shares),
            3 => Some(Dir::Snapshots),
            4 => Some(Dir::Volumes),
            _ => None,
        }
    }
}

/// Node id of a directory.
pub const fn dir_id(dir: Dir) -> u64 {
    OURS | dir as u64
}

/// Inode number of an object of a snapshot; in a [`crate::View`] of an object of a file system, too.
pub(crate) fn inode(dataset: u64, object: u64) -> u64 {
    object ^ dataset.rotate_left(OBJECT_BITS)
}

/// Which directory of the control directory has this inode number, counted from 0.
pub(crate) fn control_ino(ino: u64) -> Option<u64> {
    let all = [INO_ROOT, INO_SHARES, INO_SNAPSHOTS, INO_VOLUMES];
    all.iter().position(|i| *i == ino).map(|at| at as u64)
}

impl Snapshot {
    fn get(&self, object: u64) -> Result<Arc<Znode>> {
        if let Some(z) = self.znodes.acquire().get(&object) {
            return Ok(z.clone());
        }
        let z = self.zfs.get(object)?;
        self.keep(&z);
        Ok(z)
    }

    fn keep(&self, z: &Arc<Znode>) {
        let mut kept = self.znodes.acquire();
        let old = match kept.len() >= MOST_ZNODES {
            true => std::mem::take(&mut *kept),
            false => HashMap::new(),
        };
        kept.insert(z.object, z.clone());
        drop(kept);
        drop(old);
    }
}

impl Tree {
    /// The object set of the snapshot's files, if it is of a file system.
    pub fn zfs(&self) -> Option<&Arc<Zfs>> {
        match &self.open {
            Open::Snapshot(s) => Some(&s.zfs),
            Open::Volume(_) => None,
        }
    }

    /// Node id of one of its objects, 0 if there cannot be one.
    pub fn id(&self, object: u64) -> u64 {
        match object <= OBJECT_MASK {
            true => OURS | self.number << OBJECT_BITS | object,
            false => 0,
        }
    }

    /// Which dataset it is.
    pub(crate) fn key(&self) -> Key {
        self.key
    }

    /// Inode number of one of its objects.
    pub fn ino(&self, object: u64) -> u64 {
        inode(self.key.object, object)
    }

    /// Takes note of a znode just looked up and gives its id.
    pub fn enter(&self, z: &Arc<Znode>) -> u64 {
        if let Open::Snapshot(s) = &self.open {
            s.keep(z);
        }
        self.id(z.object)
    }

    /// Attributes of an object.
    pub fn attr(&self, z: &Znode) -> Attr {
        let mut a = match self.zfs() {
            Some(zfs) => zfs.getattr(z),
            None => Attr::default(),
        };
        a.ino = self.ino(z.object);
        a
    }

    /// Whether the object is the root of the snapshot.
    pub fn is_root(&self, z: &Znode) -> bool {
        self.zfs().is_some_and(|zfs| zfs.root_object() == z.object)
    }
}

impl Ctldir {
    /// For the service of `head`; its snapshots and volumes come `from` there.
    pub fn new(from: Box<dyn Snapshots>, clock: Arc<dyn Clock>, head: &Zfs) -> Ctldir {
        let (sec, nsec) = clock.now();
        Ctldir {
            from,
            clock,
            root: head.root_object().into(),
            mounted_at: Time { sec, nsec },
            numbers: RwLock::default(),
            open: Mutex::default(),
        }
    }

    /// The head has another root directory.
    pub(crate) fn set_root(&self, object: u64) {
        self.root.store(object, Ordering::Relaxed);
    }

    /// How far the directory is to be seen.
    pub fn mode(&self) -> Snapdir {
        self.from.snapdir()
    }

    /// Has snapshots changed; the caller is in no operation of the file system.
    pub(crate) fn administer<T>(&self, change: impl FnOnce(&dyn Snapshots) -> T) -> T {
        change(&*self.from)
    }

    fn now(&self) -> u64 {
        self.clock.monotonic_ns()
    }

    /// Finds what a node id means, opening it if need be. `Stale` if it is not there any more.
    pub fn node(&self, id: u64) -> Result<Node> {
        let number = (id & !OURS) >> OBJECT_BITS;
        let object = id & OBJECT_MASK;
        if number == 0 {
            return Ok(Node::Dir(Dir::of_number(object).ok_or(Kind::Stale)?));
        }
        let stale = |e: base::Error| match e.kind {
            Kind::NotFound => Kind::Stale.into(),
            _ => e,
        };
        let tree = self.tree(number).map_err(stale)?;
        match &tree.open {
            Open::Snapshot(s) => {
                let z = s.get(object).map_err(stale)?;
                Ok(Node::File(tree, z))
            }
            Open::Volume(v) => {
                let v = v.clone();
                Ok(Node::Volume(tree, v))
            }
        }
    }

    fn number(&self, key: Key) -> Result<u64> {
        let known = self.numbers.acquire_read().known(&key);
        if let Some(n) = known {
            return Ok(n);
        }
        let given = self.numbers.acquire_write().give(key, key.object);
        given.ok_or(Kind::NoMemory.into())
    }

    /// What has a number: what was looked up, or is to be seen here and has it by its object.
    fn key(&self, number: u64) -> Result<Key> {
        let known = self.numbers.acquire_read().of(number);
        if let Some(key) = known {
            return Ok(key);
        }
        let key = self.shown_as(number)?.ok_or(Kind::Stale)?;
        match self.number(key)? == number {
            true => Ok(key),
            false => Err(Kind::Stale.into()),
        }
    }

    /// The snapshot or volume of a dataset object, if the directory shows one.
    fn shown_as(&self, object: u64) -> Result<Option<Key>> {
        let name_of = |list: Vec<(String, u64)>| list.into_iter().find(|(_, o)| *o == object);
        let key = match name_of(self.from.list()?) {
            Some((name, _)) => self.from.find(&name),
            None => match name_of(self.from.volumes()?) {
                Some((name, _)) => self.from.find_volume(&name),
                None => return Ok(None),
            },
        };
        match key {
            Ok(key) => Ok(Some(key).filter(|k| k.object == object)),
            Err(e) if e.kind == Kind::NotFound => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Whether the directory shows a snapshot or volume of a dataset object.
    pub(crate) fn shows_object(&self, object: u64) -> bool {
        let shown = self.shown_as(object);
        self.mode() != Snapdir::Disabled && shown.is_ok_and(|key| key.is_some())
    }

    fn tree(&self, number: u64) -> Result<Arc<Tree>> {
        let now = self.now();
        if let Some(t) = self.open.acquire().get(&number) {
            t.used.store(now, Ordering::Relaxed);
            return Ok(t.clone());
        }
        self.open(self.key(number)?, number)
    }

    /// Opens a snapshot or volume, or finds it open.
    fn open(&self, key: Key, number: u64) -> Result<Arc<Tree>> {
        let now = self.now();
        if let Some(t) = self.open.acquire().get(&number) {
            t.used.store(now, Ordering::Relaxed);
            return Ok(t.clone());
        }
        // Only what has been made for long can be asked for: nothing else is being closed now.
        let open = match self.from.open(key)? {
            Content::Volume(v) => Open::Volume(Arc::new(v)),
            Content::Files(zfs) => Open::Snapshot(Snapshot {
                zfs,
                znodes: Mutex::default(),
            }),
        };
        let tree = Arc::new(Tree {
            number,
            key,
            open,
            used: now.into(),
        });
        let mut table = self.open.acquire();
        let mut gone = None;
        if table.len() >= MOST_OPEN {
            let oldest = table
                .iter()
                .min_by_key(|(_, t)| t.used.load(Ordering::Relaxed));
            let oldest = oldest.map(|(n, _)| *n);
            gone = oldest.and_then(|n| table.remove(&n));
        }
        table.insert(number, tree.clone());
        drop(table);
        if let Some(t) = gone {
            self.closed(&t);
        }
        Ok(tree)
    }

    fn closed(&self, t: &Tree) {
        if t.zfs().is_some() {
            self.from.close(t.key.object);
        }
    }

    /// Gives back what nobody has used for a while.
    pub fn expire(&self) {
        let before = self.now().saturating_sub(IDLE);
        self.close_where(|t| t.used.load(Ordering::Relaxed) < before);
    }

    /// A snapshot or volume is about to be destroyed, rolled back or to lose its key: nobody reads
    /// it from here any more.
    pub fn close(&self, object: u64) {
        if mutated(Mutation::ControlKeepsOpen) {
            return;
        }
        self.close_where(|t| t.key.object == object);
    }

    /// The same for those whose object is chosen.
    pub fn close_chosen(&self, which: &dyn Fn(u64) -> bool) {
        self.close_where(|t| which(t.key.object));
    }

    /// Everything.
    pub fn close_all(&self) {
        self.close_where(|_| true);
    }

    fn close_where(&self, which: impl Fn(&Tree) -> bool) {
        let mut gone = Vec::new();
        self.open.acquire().retain(|_, t| {
            let go = which(t);
            if go {
                gone.push(t.clone());
            }
            !go
        });
        for t in gone {
            self.closed(&t);
        }
    }

    /// The snapshot of that name, opened.
    pub fn snapshot(&self, name: &[u8]) -> Result<Arc<Tree>> {
        let name = std::str::from_utf8(name).map_err(|_| Kind::NotFound)?;
        let key = self.from.find(name)?;
        self.open(key, self.number(key)?)
    }

    /// The snapshot of that key, opened, if the directory shows one.
    pub(crate) fn shown(&self, key: Key) -> Result<Arc<Tree>> {
        let known = self.numbers.acquire_read().known(&key);
        let number = match known {
            Some(number) => number,
            // A key of another dataset must not be opened, and none that is made up be kept.
            None if self.shows(key)? => self.number(key)?,
            None => return Err(Kind::Stale.into()),
        };
        self.open(key, number)
    }

    fn shows(&self, key: Key) -> Result<bool> {
        let list = self.from.list()?;
        let name = list.iter().find(|(_, object)| *object == key.object);
        Ok(name.is_some_and(|(name, _)| self.from.find(name).is_ok_and(|k| k == key)))
    }

    /// Volume beside the file systems below this one, or a snapshot of it, by the last part of its
    /// name.
    pub fn volume(&self, name: &[u8]) -> Result<(Arc<Tree>, Arc<Volume>)> {
        let name = std::str::from_utf8(name).map_err(|_| Kind::NotFound)?;
        let key = self.from.find_volume(name)?;
        let tree = self.open(key, self.number(key)?)?;
        match &tree.open {
            Open::Volume(v) => {
                let v = v.clone();
                Ok((tree, v))
            }
            Open::Snapshot(_) => Err(Kind::Stale.into()),
        }
    }

    /// The lines of a directory without `.` and `..`.
    pub fn list(&self, dir: Dir) -> Result<Vec<Line>> {
        let line = |ino: u64, kind: u8, name: &str| Line {
            ino,
            kind,
            name: name.as_bytes().to_vec(),
        };
        let mut out = Vec::new();
        match dir {
            Dir::Root => {
                out.push(line(INO_SNAPSHOTS, 4, "snapshot"));
                out.push(line(INO_SHARES, 4, "shares"));
                if self.from.has_volumes()? {
                    out.push(line(INO_VOLUMES, 4, "volumes"));
                }
            }
            Dir::Shares => {}
            Dir::Snapshots => {
                let root = self.root.load(Ordering::Relaxed);
                for (name, object) in self.from.list()? {
                    out.push(line(inode(object, root), 4, &name));
                }
            }
            Dir::Volumes => {
                for (name, object) in self.from.volumes()? {
                    out.push(line(inode(object, 1), 8, &name));
                }
            }
        }
        Ok(out)
    }

    /// A directory of the control directory by its name in it.
    pub fn subdir(&self, name: &[u8]) -> Option<Dir> {
        match name {
            b"snapshot" => Some(Dir::Snapshots),
            b"shares" => Some(Dir::Shares),
            b"volumes" => self
                .from
                .has_volumes()
                .unwrap_or(false)
                .then_some(Dir::Volumes),
            _ => None,
        }
    }

    /// Attributes of a directory.
    pub fn dir_attr(&self, dir: Dir) -> Attr {
        let ino = match dir {
            Dir::Root => INO_ROOT,
            Dir::Shares => INO_SHARES,
            Dir::Snapshots => INO_SNAPSHOTS,
            Dir::Volumes => INO_VOLUMES,
        };
        let (time, subdirs) = match dir {
            Dir::Root => (self.mounted_at, 2),
            // 0 while there were never any, as in OpenZFS.
            Dir::Snapshots => (self.from.changed().unwrap_or_default(), self.from.count()),
            _ => (self.mounted_at, 0),
        };
        Attr {
            ino,
            size: 2 + subdirs,
            atime: self.mounted_at,
            mtime: time,
            ctime: time,
            btime: self.mounted_at,
            mode: 0o040_777,
            nlink: 2 + subdirs,
            blksize: 512,
            ..Attr::default()
        }
    }

    /// Attributes of a volume's file: for its owner, the daemon's user, only.
    pub fn volume_attr(&self, tree: &Tree, v: &Volume) -> Attr {
        let figures = self.from.figures(tree.key.object).unwrap_or_default();
        let (uid, gid) = self.from.owner();
        let time = Time {
            sec: figures.created,
            nsec: 0,
        };
        Attr {
            ino: tree.ino(1),
            size: v.bytes.size(),
            blocks: figures.referenced / 512,
            atime: time,
            mtime: time,
            ctime: time,
            btime: time,
            mode: 0o100_400,
            nlink: 1,
            uid,
            gid,
            blksize: u32::try_from(v.bytes.block_size()).unwrap_or(u32::MAX),
            ..Attr::default()
        }
    }

    /// Generation for file handles: with the node id it is unique beyond this mount.
    pub fn generation(&self, tree: &Tree) -> u64 {
        tree.key.guid
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_opens_a_directory_shares_its_list_until_it_changes() {
        let list = |names: &[&str]| {
            let line = |name: &&str| Line {
                ino: 1,
                kind: 4,
                name: name.as_bytes().to_vec(),
            };
            names.iter().map(line).collect::<Vec<_>>()
        };
        let lists = SharedLists::default();
        let first = lists.share(Dir::Snapshots, list(&["a", "b"]));
        let same = lists.share(Dir::Snapshots, list(&["a", "b"]));
        assert!(Arc::ptr_eq(&first, &same));
        let other = lists.share(Dir::Root, list(&["a", "b"]));
        assert!(!Arc::ptr_eq(&first, &other));
        let longer = lists.share(Dir::Snapshots, list(&["a", "b", "c"]));
        assert_eq!((first.len(), longer.len()), (2, 3));
        assert!(Arc::ptr_eq(
            &longer,
            &lists.share(Dir::Snapshots, list(&["a", "b", "c"]))
        ));
        // Nothing is kept for nobody.
        let gone = Arc::downgrade(&longer);
        drop(longer);
        assert!(gone.upgrade().is_none());
    }
}
