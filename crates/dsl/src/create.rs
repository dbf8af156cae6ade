//! Creation of file systems, clones and the directories of a new pool (data format §6.2, §10.1, §10.3;
//! pool format §19).

use crate::core::{check_component, is_hidden, Core, FS_LIMITS, FULL_NAME_MAX};
use crate::history::NOTHING;
use crate::{limits, Dataset, Deadlist, Dir, Dsl, Features, NewKey};
use base::mutation::{mutated, Mutation};
use base::{bail, Result, Txg};
use disk::dsl::{ds_flags, DslDatasetPhys, DslDirPhys, DIR_USED_BREAKDOWN};
use disk::{BlkPtr, ObjType};
use dmu::{NewObject, Objset, Tx};
use std::sync::Arc;
use zap::Zap;

/// How a dataset is to be made.
#[derive(Clone, Copy, Debug, Default)]
pub struct CreateArgs {
    /// Snapshot names are looked up without case (casesensitivity insensitive or mixed).
    pub case_insensitive: bool,
    /// Hidden and temporary names (`%recv`) are allowed.
    pub internal: bool,
}

impl Dsl {
    /// Makes the DSL objects of a new pool in an MOS whose object 1 is an empty object directory: the
    /// root directory, `$MOS`, and as the version asks for `$FREE` with its list, and `$ORIGIN`. The
    /// root dataset is made by [`create_root_dataset`](Self::create_root_dataset), after features were
    /// enabled.
    pub fn create(
        mos: &Arc<Objset>,
        tx: &Tx,
        version: u64,
        features: Arc<dyn Features>,
        pool: &str,
    ) -> Result<Dsl> {
        let dsl = Dsl::build(mos, version, features);
        let core = &dsl.core;
        core.need_syncing(tx)?;
        let root = core.new_dir(tx, 0)?;
        Zap::new(&core.directory()?).add_u64(tx, "root_dataset", root)?;
        core.set_root(root, pool)?;
        let root = core.root()?;
        core.add_dir(tx, &root, "$MOS")?;
        if version >= 26 {
            dsl.create_free(tx)?;
        }
        if version >= 11 {
            dsl.create_origin(tx)?;
        }
        Ok(dsl)
    }

    /// `$FREE` and `free_bpobj` (version ≥ 26).
    pub(crate) fn create_free(&self, tx: &Tx) -> Result<()> {
        let core = &self.core;
        core.add_dir(tx, &core.root()?, "$FREE")?;
        let b = core.new_bpobj(tx)?;
        Zap::new(&core.directory()?).add_u64(tx, "free_bpobj", b.object())
    }

    /// `$ORIGIN` with its snapshot (version ≥ 11).
    pub(crate) fn create_origin(&self, tx: &Tx) -> Result<()> {
        let core = &self.core;
        let dir = core.add_dir(tx, &core.root()?, "$ORIGIN")?;
        let head = core.create_dataset(tx, &dir, None, 0)?;
        self.core.snapshot_head(tx, &head, "$ORIGIN", Txg::new(1))?;
        Ok(())
    }

    /// The root directory's head. Its object set is made by the caller
    /// ([`Dataset::create_objset`]).
    pub fn create_root_dataset(&self, tx: &Tx, args: CreateArgs) -> Result<Arc<Dataset>> {
        let root = self.root()?;
        if root.phys().head_dataset_obj != 0 {
            bail!(Exists, "the root dataset exists");
        }
        self.core.create_head(tx, &root, None, args)
    }

    /// Encrypts the root dataset just made; before it gets an object set.
    pub fn encrypt_root(&self, tx: &Tx, ds: &Arc<Dataset>, key: &NewKey) -> Result<()> {
        self.core.must(self.core.encrypt_new(tx, ds, Some(key)))
    }

    /// Whether a dataset `name` may be made in `parent`: name, length of the full name, conflicts.
    pub fn check_create(&self, parent: &Arc<Dir>, name: &str, internal: bool) -> Result<()> {
        if !internal {
            check_component(name)?;
        }
        if parent.full_name().len() + 1 + name.len() > FULL_NAME_MAX {
            bail!(
                NameTooLong,
                "{}/{name}: name is too long",
                parent.full_name()
            );
        }
        if parent.child(name)?.is_some() {
            bail!(
                Exists,
                "{}/{name}: dataset already exists",
                parent.full_name()
            );
        }
        Ok(())
    }

    /// Makes the file system or volume `name` in `parent`, without an object set yet
    /// ([`Dataset::create_objset`]).
    pub fn create_fs(
        &self,
        tx: &Tx,
        parent: &Arc<Dir>,
        name: &str,
        args: CreateArgs,
    ) -> Result<Arc<Dataset>> {
        self.core.need_syncing(tx)?;
        self.check_create(parent, name, args.internal)?;
        let ds = self
            .core
            .must(self.create_child(tx, parent, name, None, args, None))?;
        self.core.note("create", &ds, NOTHING);
        Ok(ds)
    }

    /// The same, encrypted.
    pub fn create_encrypted(
        &self,
        tx: &Tx,
        parent: &Arc<Dir>,
        name: &str,
        args: CreateArgs,
        key: &NewKey,
    ) -> Result<Arc<Dataset>> {
        self.core.need_syncing(tx)?;
        self.check_create(parent, name, args.internal)?;
        let ds = self
            .core
            .must(self.create_child(tx, parent, name, None, args, Some(key)))?;
        self.core.note("create", &ds, NOTHING);
        Ok(ds)
    }

    fn create_child(
        &self,
        tx: &Tx,
        parent: &Arc<Dir>,
        name: &str,
        origin: Option<&Arc<Dataset>>,
        args: CreateArgs,
        key: Option<&NewKey>,
    ) -> Result<Arc<Dataset>> {
        let dir = self.new_child(tx, parent, name)?;
        let ds = self.core.create_head(tx, &dir, origin, args)?;
        self.core.encrypt_new(tx, &ds, key)?;
        Ok(ds)
    }

    /// Makes a clone of a snapshot. Its object set is the snapshot's; the caller must clear the
    /// intent-log header in it in the same txg.
    pub fn create_clone(
        &self,
        tx: &Tx,
        parent: &Arc<Dir>,
        name: &str,
        origin: &Arc<Dataset>,
        args: CreateArgs,
    ) -> Result<Arc<Dataset>> {
        if !origin.is_snapshot() {
            bail!(Invalid, "{} is not a snapshot", origin.full_name());
        }
        self.core.need_syncing(tx)?;
        self.check_create(parent, name, args.internal)?;
        let ds = self
            .core
            .must(self.create_child(tx, parent, name, Some(origin), args, None))?;
        let text = format!("origin={} ({})", origin.full_name(), origin.object());
        self.core.note("clone", &ds, text);
        Ok(ds)
    }

    fn new_child(&self, tx: &Tx, parent: &Arc<Dir>, name: &str) -> Result<Arc<Dir>> {
        let dir = self.core.add_dir(tx, parent, name)?;
        if !is_hidden(name) {
            limits::adjust(tx, parent, limits::FS_COUNT, 1)?;
        }
        if self.core.features.is_active(FS_LIMITS) {
            limits::start(tx, &dir, 0, 0)?;
        }
        Ok(dir)
    }
}

impl Core {
    /// A directory object that is in no child map yet.
    fn new_dir(&self, tx: &Tx, parent: u64) -> Result<u64> {
        let dn = self.new_object(
            tx,
            NewObject {
                obj_type: ObjType::DSL_DIR,
                bonus_type: ObjType::DSL_DIR,
                bonus: DslDirPhys::default().encode(),
                ..NewObject::default()
            },
        )?;
        let phys = DslDirPhys {
            creation_time: self.now(),
            parent_obj: parent,
            props_zapobj: self.new_zap(tx, ObjType::DSL_PROPS, 0)?.object(),
            child_dir_zapobj: self.new_zap(tx, ObjType::DSL_DIR_CHILD_MAP, 0)?.object(),
            flags: if self.version() >= 13 {
                DIR_USED_BREAKDOWN
            } else {
                0
            },
            ..DslDirPhys::default()
        };
        dn.set_bonus(tx, &phys.encode())?;
        Ok(dn.object())
    }

    /// A new directory in `parent`; no checks.
    pub(crate) fn add_dir(
        self: &Arc<Self>,
        tx: &Tx,
        parent: &Arc<Dir>,
        name: &str,
    ) -> Result<Arc<Dir>> {
        self.need_syncing(tx)?;
        let o = self.new_dir(tx, parent.object())?;
        Zap::new(&parent.children_zap()?).add_u64(tx, name, o)?;
        self.dir_named(o, name, parent)
    }

    fn create_head(
        self: &Arc<Self>,
        tx: &Tx,
        dir: &Arc<Dir>,
        origin: Option<&Arc<Dataset>>,
        args: CreateArgs,
    ) -> Result<Arc<Dataset>> {
        let flags = if args.case_insensitive {
            ds_flags::CI_DATASET
        } else {
            0
        };
        match (origin, self.origin_snap()?) {
            (None, 0) => self.create_dataset(tx, dir, None, flags),
            (None, o) => self.create_dataset(tx, dir, Some(&self.dataset(o)?), flags),
            (o, _) => self.create_dataset(tx, dir, o, flags),
        }
    }

    pub(crate) fn new_guid(&self) -> u64 {
        self.random().max(1)
    }

    /// A 56-bit identifier of a file system. It need not survive a conflict, only be unlikely to have
    /// one.
    pub(crate) fn new_fsid(&self) -> u64 {
        (self.random() & ((1 << 56) - 1)).max(1)
    }

    pub(crate) fn dataset_object(
        self: &Arc<Self>,
        tx: &Tx,
        phys: &DslDatasetPhys,
    ) -> Result<Arc<Dataset>> {
        let dn = self.new_object(
            tx,
            NewObject {
                obj_type: ObjType::DSL_DATASET,
                bonus_type: ObjType::DSL_DATASET,
                bonus: phys.encode(),
                ..NewObject::default()
            },
        )?;
        self.dataset(dn.object())
    }

    /// The head dataset of `dir`, a child of the snapshot `origin` if there is one.
    pub(crate) fn create_dataset(
        self: &Arc<Self>,
        tx: &Tx,
        dir: &Arc<Dir>,
        origin: Option<&Arc<Dataset>>,
        flags: u64,
    ) -> Result<Arc<Dataset>> {
        let version = self.version();
        let accurate = if version >= 9 {
            ds_flags::UNIQUE_ACCURATE
        } else {
            0
        };
        let mut phys = DslDatasetPhys {
            dir_obj: dir.object(),
            snapnames_zapobj: self
                .new_zap(tx, ObjType::DSL_DS_SNAP_MAP, zap::norm::TOUPPER)?
                .object(),
            creation_time: self.now(),
            // What is made with the pool itself counts as older than every block.
            creation_txg: if tx.txg() == Txg::INITIAL {
                Txg::new(1)
            } else {
                tx.txg()
            },
            guid: self.new_guid(),
            fsid_guid: self.new_fsid(),
            flags: flags | accurate,
            bp: BlkPtr::HOLE,
            ..DslDatasetPhys::default()
        };
        let deadlist = match origin {
            None => Deadlist::create(self, tx)?,
            Some(o) => {
                let op = o.phys();
                phys.prev_snap_obj = o.object();
                phys.prev_snap_txg = op.creation_txg;
                phys.referenced_bytes = op.referenced_bytes;
                phys.compressed_bytes = op.compressed_bytes;
                phys.uncompressed_bytes = op.uncompressed_bytes;
                phys.bp = op.bp;
                phys.flags |= op.flags & (ds_flags::INCONSISTENT | ds_flags::CI_DATASET);
                let of = self.dataset(o.dir().phys().head_dataset_obj)?;
                of.with_deadlist(|list| {
                    list.clone_keys(self, tx, op.creation_txg, &[], || o.chain_keys())
                })?
            }
        };
        phys.deadlist_obj = deadlist.object();
        let ds = self.dataset_object(tx, &phys)?;
        if let Some(o) = origin {
            for guid in o.features() {
                ds.inherit_feature(tx, o, &guid)?;
            }
            if !mutated(Mutation::CloneUncounted) {
                o.update(tx, |p| p.num_children += 1)?;
                if version >= 11 {
                    self.add_next_clone(tx, o, ds.object())?;
                }
            }
            dir.update(tx, |p| p.origin_obj = o.object())?;
            if version >= 26 {
                self.add_clone(tx, &o.dir(), ds.object())?;
            }
        }
        dir.update(tx, |p| p.head_dataset_obj = ds.object())?;
        if dir.origin()?.is_some() {
            dir.start_livelist(tx)?;
        }
        Ok(ds)
    }

    /// Notes in a snapshot that dataset `o` begins with it.
    pub(crate) fn add_next_clone(&self, tx: &Tx, snap: &Dataset, o: u64) -> Result<()> {
        let mut zapobj = snap.phys().next_clones_obj;
        if zapobj == 0 {
            zapobj = self.new_zap(tx, ObjType::NEXT_CLONES, 0)?.object();
            snap.update(tx, |p| p.next_clones_obj = zapobj)?;
        }
        Zap::new(&self.hold(zapobj)?).add_int(tx, o)
    }

    pub(crate) fn remove_next_clone(&self, tx: &Tx, snap: &Dataset, o: u64) -> Result<()> {
        match snap.phys().next_clones_obj {
            0 => Ok(()),
            // Pools upgraded from before version 11 may lack an entry.
            z => Zap::new(&self.hold(z)?)
                .remove_if(tx, &zap::hex_key(o))
                .map(|_| ()),
        }
    }

    /// Notes in a directory that head `o` is a clone of one of its snapshots.
    pub(crate) fn add_clone(&self, tx: &Tx, dir: &Dir, o: u64) -> Result<()> {
        let mut zapobj = dir.phys().clones;
        if zapobj == 0 {
            zapobj = self.new_zap(tx, ObjType::DSL_CLONES, 0)?.object();
            dir.update(tx, |p| p.clones = zapobj)?;
        }
        Zap::new(&self.hold(zapobj)?).add_int(tx, o)
    }

    pub(crate) fn remove_clone(&self, tx: &Tx, dir: &Dir, o: u64) -> Result<()> {
        match dir.phys().clones {
            0 => Ok(()),
            z => Zap::new(&self.hold(z)?)
                .remove_if(tx, &zap::hex_key(o))
                .map(|_| ()),
        }
    }

    /// Heads that are clones of snapshots of `dir`.
    pub(crate) fn clones_of(self: &Arc<Self>, dir: &Dir) -> Result<Vec<Arc<Dataset>>> {
        let z = dir.phys().clones;
        if z == 0 {
            return Ok(Vec::new());
        }
        let dn = self.hold(z)?;
        Zap::new(&dn)
            .iter()
            .map(|e| self.dataset(e?.value.to_u64()?))
            .collect()
    }
}
