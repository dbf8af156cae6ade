//! What differs between two states of one file system: the engine of `zfs diff`.
//!
//! 1. [`changed_objects`] reads only blocks of the later state's meta-dnode that were born after the earlier
//!    state, and dnodes of the earlier state where the later one has holes.
//! 2. Births of holes are not trusted: every hole in a block that is visited counts. Pools from before the feature
//!    `hole_birth` and pools written by versions with wrong births give the same answer.
//! 3. Memory is bounded by the number of objects asked for at a time, and their distinct parent directories.
//! 4. A directory is read once for all the names wanted of it, and only to its last wanted name.
//!
//! Start reading at [`changed_objects`], then [`compare`].

use crate::attr::{flag, Time};
use crate::names;
use crate::zfs::Zfs;
use crate::znode::Znode;
use base::mutation::{mutated, Mutation};
use base::{Error, Kind, Result, Txg};
use disk::dnode::DNODES_PER_BLOCK;
use disk::objset::ObjsetPhys;
use disk::{BlkPtr, DnodePhys, BP_SIZE};
use dmu::Objset;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;
use walk::{Next, Zbookmark, META_DNODE, ROOT_LEVEL};
use zio::ReadSpec;

/// Deepest path followed.
const MOST_LEVELS: usize = 4096;
/// Path of an object that has no name any more and waits to be freed.
const ON_DELETE_QUEUE: &[u8] = b"(on_delete_queue)";
/// Name of a directory of extended attributes in the path of what is in it.
const XATTR_DIR: &[u8] = b"<xattrdir>";

/// What happened to one object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// It is in the earlier state only.
    Removed,
    /// It is in the later state only.
    Created,
    /// Its content or attributes changed.
    Modified,
    /// It has another path.
    Renamed,
    /// It has so many more names, or fewer.
    Links(i64),
}

/// One difference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// What happened.
    pub what: What,
    /// `st_mode` of the object; of the earlier state if it was removed.
    pub mode: u32,
    /// Its change time, from the same state.
    pub ctime: Time,
    /// Path from the root of the file system, with a leading slash. [`What::Renamed`]: the earlier one.
    pub path: Vec<u8>,
    /// [`What::Renamed`]: the later path.
    pub to: Option<Vec<u8>>,
}

/// Where [`changed_objects`] goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cursor {
    place: Zbookmark,
    /// First object not told yet of the holes of the block at `place`.
    object: u64,
}

/// Objects of the two states that may differ, ascending within one call; and where to go on, `None` at the end. Stops
/// soon after `most` objects. `after` is the txg in which the earlier state was made; `from` must be an ancestor
/// of `to`, and neither may change meanwhile.
///
/// # Errors
/// A block that cannot be read.
pub fn changed_objects(
    from: &Objset,
    to: &Objset,
    after: Txg,
    cursor: Option<Cursor>,
    most: usize,
) -> Result<(Vec<u64>, Option<Cursor>)> {
    let mut v = Changed {
        from,
        to,
        most,
        skip: cursor.map(|c| c.object),
        epbs: 0,
        found: BTreeSet::new(),
        next: 0,
    };
    let spec = walk::Spec {
        after,
        births: walk::Births::Logical,
        resume: cursor.map(|c| c.place),
        crypt: to.crypt(),
        ..walk::Spec::all(walk::Order::ParentsFirst)
    };
    let stopped = walk::walk(&to.dmu().zio, &to.root(), &spec, &mut v)?;
    let (found, object) = (v.found, v.next);
    Ok((
        found.into_iter().collect(),
        stopped.map(|place| Cursor { place, object }),
    ))
}

struct Changed<'a> {
    from: &'a Objset,
    to: &'a Objset,
    most: usize,
    /// At the first block of a call that is resumed: the objects of its holes before this one have been told.
    skip: Option<u64>,
    /// Pointers of an indirect block of the meta-dnode, as a power of 2.
    epbs: u32,
    found: BTreeSet<u64>,
    /// Where the block at which the walk stops goes on.
    next: u64,
}

/// Objects below the block `blkid` of level `level` of a meta-dnode.
fn objects_below(level: i64, blkid: u64, epbs: u32) -> Range<u64> {
    let per_block = u128::from(DNODES_PER_BLOCK) << (epbs * level.clamp(0, 32) as u32).min(60);
    let end = |n: u64| u64::try_from(u128::from(n) * per_block).unwrap_or(u64::MAX);
    end(blkid)..end(blkid.saturating_add(1))
}

impl Changed<'_> {
    /// The objects of `set` in a range; false if there were too many.
    fn take(&mut self, set: &Objset, range: Range<u64>) -> Result<bool> {
        let mut at = range.start.max(1) - 1;
        while let Some(object) = set.next_object(at)? {
            if object >= range.end {
                break;
            }
            if self.found.len() >= self.most {
                self.next = object;
                return Ok(false);
            }
            self.found.insert(object);
            at = object;
        }
        Ok(true)
    }

    /// Objects from `from` on that the earlier state has where these pointers, of level `level`, are holes.
    fn holes(
        &mut self,
        level: i64,
        children: impl Iterator<Item = (u64, BlkPtr)>,
        from: u64,
    ) -> Result<bool> {
        let earlier = self.from;
        if mutated(Mutation::DiffForgetsHoles) {
            return Ok(true);
        }
        for (blkid, bp) in children {
            if !bp.is_hole() {
                continue;
            }
            let below = objects_below(level, blkid, self.epbs);
            let range = below.start.max(from)..below.end;
            if !range.is_empty() && !self.take(earlier, range)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The later state's object set block: what its meta-dnode points to.
    fn root(&mut self, bp: &BlkPtr, from: u64) -> Result<bool> {
        let spec = ReadSpec::with_key(self.to.crypt());
        let phys = ObjsetPhys::decode(&self.to.dmu().zio.read_with(bp, &spec)?)?;
        self.epbs = u32::from(phys.meta.indblkshift).saturating_sub(7);
        let children = phys.meta.blkptr.iter().enumerate();
        let level = i64::from(phys.meta.nlevels) - 1;
        self.holes(level, children.map(|(i, bp)| (i as u64, *bp)), from)
    }

    fn indirect(&mut self, at: Zbookmark, bp: &BlkPtr, from: u64) -> Result<bool> {
        let spec = ReadSpec::with_key(self.to.crypt());
        let block = self.to.dmu().zio.read_with(bp, &spec)?;
        let mut children = Vec::new();
        for i in 0..block.len() / BP_SIZE {
            let blkid = (at.blkid << self.epbs).wrapping_add(i as u64);
            children.push((blkid, BlkPtr::at(&block, i)?));
        }
        self.holes(at.level - 1, children.into_iter(), from)
    }
}

impl walk::Visitor for Changed<'_> {
    fn block(&mut self, at: Zbookmark, bp: &BlkPtr, dn: Option<&DnodePhys>) -> Result<Next> {
        let from = self.skip.take().unwrap_or(0);
        if at.level != ROOT_LEVEL && at.object != META_DNODE {
            return Ok(Next::Skip);
        }
        if let Some(dn) = dn {
            self.epbs = u32::from(dn.indblkshift).saturating_sub(7);
        }
        let all = if at.level == ROOT_LEVEL {
            self.root(bp, from)?
        } else if at.level > 0 {
            self.indirect(at, bp, from)?
        } else if self.found.len() >= self.most {
            self.next = 0;
            false
        } else {
            let range = objects_below(0, at.blkid, self.epbs);
            let (earlier, later, most) = (self.from, self.to, self.most);
            // A block of dnodes is told whole.
            self.most = usize::MAX;
            let told = self
                .take(earlier, range.clone())
                .and_then(|_| self.take(later, range));
            self.most = most;
            told?
        };
        Ok(match all {
            true => Next::Descend,
            false => Next::Stop,
        })
    }

    fn dnode(&mut self, _: u64, _: &DnodePhys) -> Result<Next> {
        Ok(Next::Skip)
    }

    fn finding(&mut self, finding: walk::Finding) -> Result<()> {
        Err(finding.problem.error().clone())
    }
}

/// What is compared of an object.
#[derive(Clone, Copy)]
struct Stat {
    mode: u32,
    gen: u64,
    links: u64,
    ctime: Time,
}

impl Stat {
    fn format(&self) -> u32 {
        self.mode & 0o170_000
    }
}

/// An object of one state; none if there is none, or it is no file.
fn stat(zfs: &Zfs, object: u64) -> Result<Option<Stat>> {
    let z = match zfs.get_any(object) {
        Ok(z) => z,
        Err(e) if e.kind == Kind::NotFound => return Ok(None),
        Err(e) => return Err(e),
    };
    let f = z.fixed();
    Ok(Some(Stat {
        mode: f.mode32(),
        gen: f.gen,
        links: f.links,
        ctime: f.ctime,
    }))
}

/// How an object differs, before its names are known.
enum Differs {
    No,
    Removed(Stat),
    Created(Stat),
    /// Another object has the number.
    Replaced(Stat, Stat),
    /// The same object; how many links it has got.
    Changed(Stat, i64),
}

fn differs(from: Option<Stat>, to: Option<Stat>) -> Differs {
    const DIRECTORY: u32 = 0o040_000;
    let (f, t) = match (from, to) {
        (None, None) => return Differs::No,
        (Some(f), None) => return Differs::Removed(f),
        (None, Some(t)) => return Differs::Created(t),
        (Some(f), Some(t)) => (f, t),
    };
    if f.gen != t.gen || f.format() != t.format() {
        return Differs::Replaced(f, t);
    }
    if f.ctime == t.ctime {
        return Differs::No;
    }
    let counted = f.format() != DIRECTORY && f.links != 0 && t.links != 0;
    let links = match counted {
        true => t.links as i64 - f.links as i64,
        false => 0,
    };
    Differs::Changed(t, links)
}

/// Compares these objects of two states and tells `take` what differs, in order of their numbers.
///
/// # Errors
/// Those of `take`; what cannot be read; `Kind::NotFound` if an object has no path, which is damage.
pub fn compare(
    from: &Zfs,
    to: &Zfs,
    objects: &[u64],
    take: &mut dyn FnMut(Change) -> Result<()>,
) -> Result<()> {
    let mut list = Vec::new();
    let (mut earlier, mut later) = (BTreeSet::new(), BTreeSet::new());
    for object in objects {
        let d = differs(stat(from, *object)?, stat(to, *object)?);
        let (a, b) = match d {
            Differs::No => continue,
            Differs::Removed(_) => (true, false),
            Differs::Created(_) => (false, true),
            Differs::Replaced(..) | Differs::Changed(..) => (true, true),
        };
        if a {
            earlier.insert(*object);
        }
        if b {
            later.insert(*object);
        }
        list.push((*object, d));
    }
    let earlier = Paths::of(from, &earlier)?;
    let later = Paths::of(to, &later)?;
    for (object, d) in list {
        let mut tell = |what, s: Stat, path, to| {
            take(Change {
                what,
                mode: s.mode,
                ctime: s.ctime,
                path,
                to,
            })
        };
        match d {
            Differs::No => {}
            Differs::Removed(f) => tell(What::Removed, f, earlier.path(object)?, None)?,
            Differs::Created(t) => tell(What::Created, t, later.path(object)?, None)?,
            Differs::Replaced(f, t) => {
                tell(What::Removed, f, earlier.path(object)?, None)?;
                tell(What::Created, t, later.path(object)?, None)?;
            }
            Differs::Changed(t, 0) => {
                let (old, new) = (earlier.path(object)?, later.path(object)?);
                match old == new {
                    true => tell(What::Modified, t, new, None)?,
                    false => tell(What::Renamed, t, old, Some(new))?,
                }
            }
            Differs::Changed(t, links) => {
                // A name that both states have, if there is one.
                let path = match links > 0 {
                    true => earlier.path(object)?,
                    false => later.path(object)?,
                };
                tell(What::Links(links), t, path, None)?;
            }
        }
    }
    Ok(())
}

/// Where an object is: the directory, and its name there.
struct Named {
    parent: u64,
    name: Vec<u8>,
}

/// Where a name of an object is to be looked for.
enum Where {
    /// In this directory.
    Below(u64),
    /// Nowhere: it holds the extended attributes of this object.
    OfFile(u64),
    /// Nowhere: it waits to be freed.
    Queue,
}

/// Paths of some objects of one state.
struct Paths {
    root: u64,
    names: HashMap<u64, Named>,
    /// Objects without a name, which wait to be freed.
    queued: HashSet<u64>,
}

impl Paths {
    fn of(zfs: &Zfs, objects: &BTreeSet<u64>) -> Result<Paths> {
        let mut paths = Paths {
            root: zfs.root_object(),
            names: HashMap::new(),
            queued: HashSet::new(),
        };
        let missing = paths.climb(zfs, objects)?;
        if !missing.is_empty() {
            // The parent that an object remembers is that of its latest name, which may be gone.
            let dirs = paths.search(zfs, missing)?;
            paths.climb(zfs, &dirs)?;
        }
        Ok(paths)
    }

    fn is_known(&self, object: u64) -> bool {
        object == self.root || self.names.contains_key(&object) || self.queued.contains(&object)
    }

    /// Names of these objects and of all directories above them, by the parents that they remember. Returns those
    /// that are not there.
    fn climb(&mut self, zfs: &Zfs, objects: &BTreeSet<u64>) -> Result<BTreeSet<u64>> {
        let mut missing = BTreeSet::new();
        let mut layer = objects.clone();
        for _ in 0..MOST_LEVELS {
            if layer.is_empty() {
                return Ok(missing);
            }
            // Names wanted, by directory.
            let mut wanted: BTreeMap<u64, HashSet<u64>> = BTreeMap::new();
            let mut above = BTreeSet::new();
            for object in layer {
                if self.is_known(object) {
                    continue;
                }
                match self.place_of(zfs, object)? {
                    Where::Below(parent) => {
                        wanted.entry(parent).or_default().insert(object);
                        above.insert(parent);
                    }
                    Where::OfFile(file) => {
                        above.insert(file);
                    }
                    Where::Queue => {}
                }
            }
            for (parent, mut children) in wanted {
                let all = children.len();
                match zfs.get_any(parent) {
                    Ok(dir) if dir.is_dir() => self.names_in(&dir, &mut children)?,
                    Ok(_) => {}
                    Err(e) if e.kind == Kind::NotFound => {}
                    Err(e) => return Err(e),
                }
                if children.len() == all {
                    above.remove(&parent);
                }
                missing.extend(children);
            }
            above.retain(|o| !missing.contains(o) && !self.is_known(*o));
            layer = above;
        }
        Err(Error::damaged("directories go in a circle"))
    }

    /// Where a name of an object is to be looked for.
    fn place_of(&mut self, zfs: &Zfs, object: u64) -> Result<Where> {
        let z = zfs.get_any(object)?;
        let f = z.fixed();
        if f.links == 0 || names::lookup(&zfs.unlinked, format!("{object:x}").as_bytes())?.is_some()
        {
            self.queued.insert(object);
            return Ok(Where::Queue);
        }
        if f.parent == object {
            return Err(Error::damaged(format!("object {object} is its own parent")));
        }
        if f.is_dir() && f.flags & flag::XATTR != 0 {
            let named = Named {
                parent: f.parent,
                name: XATTR_DIR.to_vec(),
            };
            self.names.insert(object, named);
            return Ok(Where::OfFile(f.parent));
        }
        Ok(Where::Below(f.parent))
    }

    /// Names that objects have in a directory; those found are taken out of `wanted`.
    fn names_in(&mut self, dir: &Arc<Znode>, wanted: &mut HashSet<u64>) -> Result<()> {
        names::walk(&dir.dnode, 0, |name, value, _| {
            let object = value & crate::dir::OBJECT_MASK;
            if wanted.remove(&object) {
                let named = Named {
                    parent: dir.object,
                    name: name.to_vec(),
                };
                self.names.insert(object, named);
            }
            Ok(!wanted.is_empty())
        })
    }

    /// Looks for names of these objects in every directory. Returns the directories that have them.
    fn search(&mut self, zfs: &Zfs, missing: BTreeSet<u64>) -> Result<BTreeSet<u64>> {
        let mut wanted: HashSet<u64> = missing.into_iter().collect();
        let mut dirs = BTreeSet::new();
        let mut at = 0;
        while let Some(object) = zfs.objset().next_object(at)? {
            at = object;
            let dir = match zfs.get_any(object) {
                Ok(z) if z.is_dir() && z.fixed().links > 0 => z,
                Ok(_) => continue,
                Err(e) if e.kind == Kind::NotFound => continue,
                Err(e) => return Err(e),
            };
            let before = wanted.len();
            self.names_in(&dir, &mut wanted)?;
            if wanted.len() < before {
                dirs.insert(object);
            }
            if wanted.is_empty() {
                break;
            }
        }
        Ok(dirs)
    }

    fn path(&self, object: u64) -> Result<Vec<u8>> {
        let mut parts: Vec<&[u8]> = Vec::new();
        let mut at = object;
        while at != self.root {
            if self.queued.contains(&at) {
                return Ok(ON_DELETE_QUEUE.to_vec());
            }
            let named = self.names.get(&at).ok_or_else(|| {
                let text = format!("unable to determine path or stats for object {object}");
                Error::new(Kind::NotFound, text)
            })?;
            parts.push(&named.name);
            if parts.len() > MOST_LEVELS {
                return Err(Error::damaged("directories go in a circle"));
            }
            at = named.parent;
        }
        let mut out = Vec::new();
        for part in parts.iter().rev() {
            out.push(b'/');
            out.extend_from_slice(part);
        }
        if out.is_empty() {
            out.push(b'/');
        }
        Ok(out)
    }
}
