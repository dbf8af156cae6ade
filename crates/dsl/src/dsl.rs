//! [`Dsl`], the interface of this crate: opening, finding and listing directories and datasets.

use crate::core::{is_hidden, listed, not_found, Caches, Core, PoolSpace, Triple};
use crate::{Dataset, Dir, Features};
use base::sync::MutexExt;
use base::{Error, Result, Txg};
use disk::dsl::Used;
use disk::BlkPtr;
use dmu::{Objset, SyncHooks, Tx};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};
use zap::Zap;

/// What is in memory under `object`. An object that was freed leaves the map: its number can be given to another one.
fn live<T>(
    map: &mut HashMap<u64, Arc<T>>,
    object: u64,
    is_freed: impl FnOnce(&T) -> bool,
) -> Option<Arc<T>> {
    let kept = map.get(&object)?.clone();
    if is_freed(&kept) {
        map.remove(&object);
        return None;
    }
    Some(kept)
}

/// A snapshot as its file system lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotEntry {
    /// Behind the `@`.
    pub name: String,
    /// Number of its dataset object.
    pub object: u64,
    /// Txg in which it was created.
    pub creation_txg: Txg,
}

/// Deepest nesting of directories that is followed: a name of 255 bytes has fewer components.
const MAX_DEPTH: usize = 256;

impl Core {
    pub(crate) fn root(&self) -> Result<Arc<Dir>> {
        let r = self.caches.root.acquire().clone();
        r.ok_or_else(|| Error::damaged("pool without root directory"))
    }

    pub(crate) fn set_root(self: &Arc<Self>, object: u64, pool: &str) -> Result<()> {
        let d = Dir::open(self, object, pool, None)?;
        self.caches.dirs.acquire().insert(object, d.clone());
        *self.caches.root.acquire() = Some(d);
        Ok(())
    }

    /// The directory `object`.
    pub(crate) fn dir(self: &Arc<Self>, object: u64) -> Result<Arc<Dir>> {
        self.dir_depth(object, 0)
    }

    fn dir_depth(self: &Arc<Self>, object: u64, depth: usize) -> Result<Arc<Dir>> {
        if let Some(d) = self.cached_dir(object) {
            return Ok(d);
        }
        if depth > MAX_DEPTH {
            return Err(Error::damaged("DSL directories nested in a circle"));
        }
        let dn = self.hold(object)?;
        let phys = disk::dsl::DslDirPhys::decode(&dn.bonus())?;
        if phys.parent_obj == 0 {
            return Err(Error::damaged(format!(
                "DSL directory {object} has no parent"
            )));
        }
        let parent = self.dir_depth(phys.parent_obj, depth + 1)?;
        let name = Zap::new(&parent.children_zap()?)
            .name_of(object, u64::MAX)?
            .ok_or_else(|| Error::damaged(format!("DSL directory {object} has no name")))?;
        self.dir_named(object, &String::from_utf8_lossy(&name), &parent)
    }

    /// The directory `object` that is called `name` in `parent`.
    pub(crate) fn dir_named(
        self: &Arc<Self>,
        object: u64,
        name: &str,
        parent: &Arc<Dir>,
    ) -> Result<Arc<Dir>> {
        loop {
            if let Some(d) = self.cached_dir(object) {
                return Ok(d);
            }
            let d = Dir::open(self, object, name, Some(parent.clone()))?;
            let mut all = self.caches.dirs.acquire();
            // While it was opened, somebody may have been faster, or the syncing thread have changed it.
            if !all.contains_key(&object) && d.is_as_stored()? {
                all.insert(object, d.clone());
                return Ok(d);
            }
        }
    }

    fn cached_dir(&self, object: u64) -> Option<Arc<Dir>> {
        let mut all = self.caches.dirs.acquire();
        live(&mut all, object, |d| d.dn.is_freed())
    }

    pub(crate) fn dataset(self: &Arc<Self>, object: u64) -> Result<Arc<Dataset>> {
        loop {
            if let Some(d) = self.cached_dataset(object) {
                return Ok(d);
            }
            let d = Dataset::open(self, object)?;
            let mut all = self.caches.datasets.acquire();
            // As in `dir_named`.
            if !all.map.contains_key(&object) && d.is_as_stored()? {
                all.sweep();
                all.map.insert(object, d.clone());
                return Ok(d);
            }
        }
    }

    fn cached_dataset(&self, object: u64) -> Option<Arc<Dataset>> {
        let mut all = self.caches.datasets.acquire();
        live(&mut all.map, object, |d| d.dn.is_freed())
    }

    /// Datasets in memory.
    #[cfg(test)]
    pub(crate) fn datasets_held(&self) -> usize {
        self.caches.datasets.acquire().map.len()
    }

    pub(crate) fn forget_dir(&self, object: u64) {
        self.caches.dirs.acquire().remove(&object);
    }

    pub(crate) fn forget_dataset(&self, object: u64) {
        self.caches.datasets.acquire().map.remove(&object);
    }

    /// A hidden directory below the root.
    pub(crate) fn special_dir(self: &Arc<Self>, name: &str) -> Result<Option<Arc<Dir>>> {
        let root = self.root()?;
        match Zap::new(&root.children_zap()?).get(name)? {
            Some(o) => self.dir_named(o, name, &root).map(Some),
            None => Ok(None),
        }
    }

    /// `$FREE`: accounts for what is to be freed in the background.
    pub(crate) fn free_dir(self: &Arc<Self>) -> Result<Arc<Dir>> {
        self.special_dir("$FREE")?
            .ok_or_else(|| Error::damaged("pool without $FREE"))
    }

    /// Object number of the snapshot `$ORIGIN@$ORIGIN`, 0 before pool version 11.
    pub(crate) fn origin_snap(self: &Arc<Self>) -> Result<u64> {
        match self.special_dir("$ORIGIN")? {
            None => Ok(0),
            Some(d) => Ok(self
                .dataset(d.phys().head_dataset_obj)?
                .phys()
                .prev_snap_obj),
        }
    }
}

impl Dir {
    /// Creation txg of the origin snapshot, 0 if there is none.
    pub(crate) fn origin_txg(&self) -> Result<Txg> {
        match self.phys().origin_obj {
            0 => Ok(Txg::NONE),
            o => Ok(self.core.dataset(o)?.phys().creation_txg),
        }
    }

    /// The head dataset; `Kind::NotFound` for `$MOS` and `$FREE`.
    pub fn head(&self) -> Result<Arc<Dataset>> {
        match self.phys().head_dataset_obj {
            0 => Err(not_found(self.full_name())),
            o => self.core.dataset(o),
        }
    }

    /// Child directories in order of name; hidden ones are left out.
    pub fn children(self: &Arc<Self>) -> Result<Vec<Arc<Dir>>> {
        self.children_past(&mut |_, e| Err(e))
    }

    /// Like [`Dir::children`]: `lost` gets the name of each child that cannot be opened, or the name of the
    /// directory itself if its list is damaged, and why. The others are returned, unless `lost` fails.
    pub fn children_past(
        self: &Arc<Self>,
        lost: &mut dyn FnMut(&str, Error) -> Result<()>,
    ) -> Result<Vec<Arc<Dir>>> {
        let mut out = Vec::new();
        let map = match self.children_zap() {
            Ok(map) => map,
            Err(_) if self.dn.is_freed() => return Ok(out),
            Err(e) => return lost(&self.full_name(), e).map(|()| out),
        };
        let mut list = Vec::new();
        for e in Zap::new(&map).iter() {
            match e.and_then(|e| Ok((e.text(), e.value.to_u64()?))) {
                Ok((name, object)) if !is_hidden(&name) => list.push((name, object)),
                Ok(_) => {}
                Err(e) => {
                    lost(&self.full_name(), e)?;
                    break;
                }
            }
        }
        list.sort();
        for (name, o) in list {
            let open = || self.core.dir_named(o, &name, self);
            match listed(&map, &name, o, open) {
                Ok(child) => out.extend(child),
                Err(e) => lost(&format!("{}/{name}", self.full_name()), e)?,
            }
        }
        Ok(out)
    }

    /// Whether a child of that name exists (hidden ones count).
    pub fn child(self: &Arc<Self>, name: &str) -> Result<Option<Arc<Dir>>> {
        let map = self.children_zap()?;
        match Zap::new(&map).get(name)? {
            Some(o) => listed(&map, name, o, || self.core.dir_named(o, name, self)),
            None => Ok(None),
        }
    }

    /// The snapshot this file system is a clone of, `$ORIGIN` not counted.
    pub fn origin(&self) -> Result<Option<Arc<Dataset>>> {
        match self.phys().origin_obj {
            0 => Ok(None),
            o if o == self.core.origin_snap()? => Ok(None),
            o => self.core.dataset(o).map(Some),
        }
    }
}

impl Dataset {
    /// Snapshots of this head, oldest first, with their names. `%…` are left out.
    pub fn snapshots(&self) -> Result<Vec<(String, Arc<Dataset>)>> {
        let p = self.phys();
        let mut out = Vec::new();
        if p.snapnames_zapobj == 0 {
            return Ok(out);
        }
        let map = self.core.hold(p.snapnames_zapobj)?;
        for e in Zap::new(&map).iter() {
            let (e, core) = (e?, &self.core);
            let (name, o) = (e.text(), e.value.to_u64()?);
            if is_hidden(&name) {
                continue;
            }
            if let Some(s) = listed(&map, &name, o, || core.dataset(o))? {
                s.set_snap_name(Some(name.clone()));
                out.push((name, s));
            }
        }
        out.sort_by_cached_key(|(_, s)| s.phys().creation_txg);
        Ok(out)
    }

    /// Names and objects of the snapshots of this head, in the order of their map. Nothing of them
    /// is read.
    pub fn snapshot_names(&self) -> Result<Vec<(String, u64)>> {
        let map = self.phys().snapnames_zapobj;
        let mut out = Vec::new();
        if map == 0 {
            return Ok(out);
        }
        for e in Zap::new(&self.core.hold(map)?).iter() {
            let e = e?;
            let name = e.text();
            if !is_hidden(&name) {
                out.push((name, e.value.to_u64()?));
            }
        }
        Ok(out)
    }

    /// Snapshots of this head, oldest first, none of which stays in memory for that. `%…` are left out.
    pub fn snapshot_list(&self) -> Result<Vec<SnapshotEntry>> {
        let mut names = self.snapshot_names()?;
        // In the order in which they lie on disk, mostly that of creation.
        names.sort_unstable_by_key(|(_, object)| *object);
        let mut out = Vec::with_capacity(names.len());
        if names.is_empty() {
            return Ok(out);
        }
        let map = self.core.hold(self.phys().snapnames_zapobj)?;
        for (name, object) in names {
            let Some(s) = listed(&map, &name, object, || self.core.dataset(object))? else {
                continue;
            };
            let creation_txg = s.phys().creation_txg;
            out.push(SnapshotEntry {
                name,
                object,
                creation_txg,
            });
        }
        out.sort_by_key(|e| e.creation_txg);
        Ok(out)
    }

    /// A snapshot of [`snapshot_list`](Self::snapshot_list); `Kind::NotFound` if it has gone since.
    pub fn listed_snapshot(&self, e: &SnapshotEntry) -> Result<Arc<Dataset>> {
        let s = self.core.dataset(e.object)?;
        let p = s.phys();
        if !p.is_snapshot() || p.creation_txg != e.creation_txg || p.dir_obj != self.phys().dir_obj
        {
            return Err(not_found(format!("{}@{}", self.full_name(), e.name)));
        }
        Ok(s)
    }

    /// The same for who has kept snapshots from being renamed since: it need not be searched for its name any more.
    pub fn named_snapshot(&self, e: &SnapshotEntry) -> Result<Arc<Dataset>> {
        let s = self.listed_snapshot(e)?;
        s.set_snap_name(Some(e.name.clone()));
        Ok(s)
    }

    /// The snapshot of that name of this head.
    pub fn snapshot_named(&self, name: &str) -> Result<Option<Arc<Dataset>>> {
        let p = self.phys();
        if p.snapnames_zapobj == 0 {
            return Ok(None);
        }
        let how = match p.flags & disk::dsl::ds_flags::CI_DATASET {
            0 => zap::Match::Exact,
            _ => zap::Match::Normalized,
        };
        let map = self.core.hold(p.snapnames_zapobj)?;
        let Some(f) = Zap::new(&map).find(name, how)? else {
            return Ok(None);
        };
        let s = self.core.dataset(f.value.to_u64()?)?;
        s.set_snap_name(Some(String::from_utf8_lossy(&f.name).into_owned()));
        Ok(Some(s))
    }

    /// Number of snapshots of this head.
    pub fn snapshot_count(&self) -> Result<u64> {
        match self.phys().snapnames_zapobj {
            0 => Ok(0),
            o => Zap::new(&self.core.hold(o)?).count(),
        }
    }
}

/// Counts the space of the MOS itself while it is written.
#[derive(Default)]
pub struct MosHooks {
    sum: Mutex<Triple>,
    core: Weak<Core>,
}

impl SyncHooks for MosHooks {
    fn born(&self, bp: &BlkPtr) -> Result<()> {
        if let Some(c) = self.core.upgrade() {
            *self.sum.acquire() += c.triple(bp);
        }
        Ok(())
    }

    fn kill(&self, bp: &BlkPtr) -> Result<bool> {
        if let Some(c) = self.core.upgrade() {
            *self.sum.acquire() -= c.triple(bp);
        }
        Ok(true)
    }
}

/// The datasets of one pool.
pub struct Dsl {
    pub(crate) core: Arc<Core>,
    mos_hooks: MosHooks,
}

impl Drop for Dsl {
    fn drop(&mut self) {
        // In-core objects refer to the core and the core to them.
        self.core.caches.dirs.acquire().clear();
        self.core.caches.datasets.acquire().map.clear();
        *self.core.caches.root.acquire() = None;
    }
}

impl Dsl {
    pub(crate) fn build(mos: &Arc<Objset>, version: u64, features: Arc<dyn Features>) -> Dsl {
        let core = Arc::new(Core {
            mos: mos.clone(),
            version: version.into(),
            features,
            empty_bpobj: Mutex::new(None),
            space: Default::default(),
            open_lists: Default::default(),
            in_use: Mutex::default(),
            caches: Caches::default(),
            keys: Default::default(),
            broken: Mutex::new(None),
            events: Mutex::default(),
            scan_changes: Mutex::default(),
        });
        let mos_hooks = MosHooks {
            sum: Mutex::default(),
            core: Arc::downgrade(&core),
        };
        Dsl { core, mos_hooks }
    }

    /// Opens the datasets of a pool called `pool`; the root directory is found in the MOS.
    pub fn open(
        mos: &Arc<Objset>,
        version: u64,
        features: Arc<dyn Features>,
        pool: &str,
    ) -> Result<Dsl> {
        let dsl = Dsl::build(mos, version, features);
        let root = dsl
            .core
            .directory_get("root_dataset")?
            .ok_or_else(|| Error::damaged("MOS directory has no root_dataset"))?;
        dsl.core.set_root(root, pool)?;
        Ok(dsl)
    }

    /// The error of a change that failed half-way (damage or lack of space in the MOS). The txg must
    /// not be committed then.
    pub fn broken(&self) -> Option<Error> {
        self.core.broken.acquire().clone()
    }

    /// Who knows the size of the pool. Without it there is no limit.
    pub fn set_space(&self, space: Weak<dyn PoolSpace>) {
        let _ = self.core.space.set(space);
    }

    /// The object set of the pool itself.
    pub fn mos(&self) -> &Arc<Objset> {
        &self.core.mos
    }

    /// Pool version, 1 to 28 or 5000.
    pub fn version(&self) -> u64 {
        self.core.version()
    }

    /// Counts of features.
    pub fn features(&self) -> &Arc<dyn Features> {
        &self.core.features
    }

    /// The root directory.
    pub fn root(&self) -> Result<Arc<Dir>> {
        self.core.root()
    }

    /// The head of the root directory.
    pub fn root_dataset(&self) -> Result<Arc<Dataset>> {
        self.root()?.head()
    }

    /// The pool has another name now.
    pub fn set_pool_name(&self, name: &str) -> Result<()> {
        self.root()?.set_place(name, None);
        Ok(())
    }

    /// A directory by object number.
    pub fn dir_by_object(&self, object: u64) -> Result<Arc<Dir>> {
        self.core.dir(object)
    }

    /// A dataset by object number.
    pub fn dataset_by_object(&self, object: u64) -> Result<Arc<Dataset>> {
        self.core.dataset(object)
    }

    /// Directories of the file systems and volumes that begin with a snapshot.
    ///
    /// # Errors
    /// Those of reading the MOS.
    pub fn clones_of(&self, snap: &Dataset) -> Result<Vec<Arc<Dir>>> {
        let object = snap.phys().next_clones_obj;
        if object == 0 {
            return Ok(Vec::new());
        }
        // What is recorded is the first dataset of the clone, which may be a snapshot of it.
        let map = self.core.hold(object)?;
        let clones = Zap::new(&map).iter();
        clones
            .map(|e| Ok(self.core.dataset(e?.value.to_u64()?)?.dir()))
            .collect()
    }

    /// The directory `pool/a/b`; `Kind::NotFound` with a sentence.
    pub fn dir(&self, name: &str) -> Result<Arc<Dir>> {
        let mut parts = name.split('/');
        let mut at = self.root()?;
        if parts.next() != Some(at.name().as_str()) {
            return Err(not_found(name));
        }
        for part in parts {
            at = at.child(part)?.ok_or_else(|| not_found(name))?;
        }
        Ok(at)
    }

    /// The dataset `pool/a` or `pool/a@snap`; `Kind::NotFound` with a sentence.
    pub fn dataset(&self, name: &str) -> Result<Arc<Dataset>> {
        match name.split_once('@') {
            None => self.dir(name)?.head(),
            Some((fs, snap)) => self
                .dir(fs)?
                .head()?
                .snapshot_named(snap)?
                .ok_or_else(|| not_found(name)),
        }
    }

    /// Calls `f` with a directory and all below it, parents first, siblings in order of name.
    pub fn walk(&self, from: &Arc<Dir>, f: &mut dyn FnMut(&Arc<Dir>) -> Result<()>) -> Result<()> {
        self.walk_past(from, f, &mut |_, e| Err(e))
    }

    /// Like [`Dsl::walk`], past what cannot be read: `lost` gets the name of each directory that `f` fails
    /// for, that cannot be opened, or whose list of children is damaged, and why. The walk goes on with the
    /// others, unless `lost` fails.
    pub fn walk_past(
        &self,
        from: &Arc<Dir>,
        f: &mut dyn FnMut(&Arc<Dir>) -> Result<()>,
        lost: &mut dyn FnMut(&str, Error) -> Result<()>,
    ) -> Result<()> {
        let mut stack = vec![from.clone()];
        while let Some(d) = stack.pop() {
            match f(&d) {
                // Destroyed meanwhile.
                Err(_) if d.dn.is_freed() => continue,
                Err(e) => lost(&d.full_name(), e)?,
                Ok(()) => {}
            }
            let mut c = match d.children_past(lost) {
                Err(_) if d.dn.is_freed() => continue,
                children => children?,
            };
            c.reverse();
            stack.extend(c);
        }
        Ok(())
    }

    /// Hooks for writing the MOS.
    pub fn mos_hooks(&self) -> &MosHooks {
        &self.mos_hooks
    }

    /// Charges `$MOS` with what the hooks have counted; before each pass over the MOS. What the last
    /// pass of a txg changes is charged in the next txg.
    pub fn flush_mos(&self, tx: &Tx) -> Result<()> {
        let t = std::mem::take(&mut *self.mos_hooks.sum.acquire());
        if t == Triple::default() {
            return Ok(());
        }
        match self.core.special_dir("$MOS")? {
            Some(d) => d.diduse(tx, Used::Head, t),
            None => Ok(()),
        }
    }

    /// Bytes given up because damage hid what they belong to.
    pub fn leaked(&self) -> Result<u64> {
        match self.core.special_dir("$LEAK")? {
            Some(d) => Ok(d.phys().used_bytes),
            None => Ok(0),
        }
    }

    /// Bytes waiting to be freed in the background.
    pub fn freeing(&self) -> Result<u64> {
        match self.core.special_dir("$FREE")? {
            Some(d) => Ok(d.phys().used_bytes),
            None => Ok(0),
        }
    }
}
