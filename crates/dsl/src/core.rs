//! [`Core`]: the state that all parts of the DSL share, with helpers for objects of the MOS.

use crate::bpobj::{self, Bpobj};
use crate::features::Features;
pub use crate::triple::Triple;
pub(crate) use crate::triple::{born_in, bump};
use crate::{Dataset, Dir};
use base::sync::MutexExt;
use base::{bail, Cause, Error, Kind, Result};
use disk::{BlkPtr, Compression, ObjType};
use dmu::{Dmu, Dnode, NewObject, Objset, Tx};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, Weak};
use zap::Zap;

/// Longest full name of a dataset, bytes without NUL.
pub const FULL_NAME_MAX: usize = 255;
/// Longest component.
pub(crate) const COMPONENT_MAX: usize = 255;

/// How much the pool can hold; implemented by the pool.
pub trait PoolSpace: Send + Sync {
    /// Deflated bytes that datasets may use together: size less slop, or less half the slop for
    /// changes that free more than they take.
    fn usable(&self, net_free: bool) -> u64;
    /// How many deflated bytes a logical byte may become at worst: copies, parity of small blocks,
    /// indirect blocks.
    fn inflation(&self) -> u64 {
        24
    }
}

/// A change of datasets that moves the place of a scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScanChange {
    /// `snap` was made of `head`: it has all there is to be found in it, from the same place on.
    Snapshotted {
        /// Object of the head.
        head: u64,
        /// Object of the new snapshot.
        snap: u64,
    },
    /// `snap` is gone; `next`, the next snapshot or the head, takes over its place, and is visited again afterwards.
    SnapshotDestroyed {
        /// Object of the snapshot.
        snap: u64,
        /// Object of the next snapshot, or of the head.
        next: u64,
    },
    /// `head`, of which nothing was left, has what was received into `filled`, and its place.
    Received {
        /// Object of the dataset that the stream filled.
        filled: u64,
        /// Object of the head it was exchanged with.
        head: u64,
    },
    /// What only `head` has is gone.
    HeadGone {
        /// Object of the head.
        head: u64,
    },
}

/// Something a txg has done, for the history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// `create`, `set`, `destroy` …
    pub name: &'static str,
    /// Full name and object of the dataset; `None` for what concerns the pool.
    pub dataset: Option<(String, u64)>,
    /// Details; a blank if there are none.
    pub text: String,
}

/// In-core objects by object number.
#[derive(Default)]
pub(crate) struct Caches {
    /// Directories.
    pub dirs: Mutex<HashMap<u64, Arc<Dir>>>,
    /// Heads and snapshots.
    pub datasets: Mutex<Datasets>,
    /// The root directory, once it was opened.
    pub root: Mutex<Option<Arc<Dir>>>,
}

/// Snapshots that nobody uses and that stay in memory: with 100,000 snapshots a listing would fill it.
const SNAPSHOTS_KEPT: usize = 4096;

#[derive(Default)]
pub(crate) struct Datasets {
    /// By object number.
    pub map: HashMap<u64, Arc<Dataset>>,
    /// Size at which unused snapshots go.
    sweep_at: usize,
}

impl Datasets {
    /// Drops snapshots that nobody uses, if there are more than [`SNAPSHOTS_KEPT`] in memory.
    pub fn sweep(&mut self) {
        if self.map.len() < self.sweep_at.max(SNAPSHOTS_KEPT) {
            return;
        }
        // Who has no reference cannot get one but through this map, which is locked.
        self.map
            .retain(|_, ds| Arc::strong_count(ds) > 1 || !ds.is_idle_snapshot());
        self.sweep_at = self.map.len() + SNAPSHOTS_KEPT;
    }
}

/// Shared by everything of one pool.
pub(crate) struct Core {
    /// The object set of the pool itself.
    pub mos: Arc<Objset>,
    /// Pool version; changes by upgrade only.
    pub version: std::sync::atomic::AtomicU64,
    /// Counts of features.
    pub features: Arc<dyn Features>,
    /// The shared empty bpobj, 0 = none; `None` = not looked up yet.
    pub empty_bpobj: Mutex<Option<u64>>,
    /// What the pool knows of its free space; set once.
    pub space: OnceLock<Weak<dyn PoolSpace>>,
    /// Deadlists that are open, so that each is open once.
    pub open_lists: crate::deadlist::OpenLists,
    /// Numbers of [`crate::InUse`] by dataset.
    pub in_use: Mutex<HashMap<u64, usize>>,
    /// Directories and datasets in memory.
    pub caches: Caches,
    /// Keys that are loaded.
    pub keys: crate::crypto::KeyStore,
    /// A change failed half-way: what is in memory must not reach the disk.
    pub broken: Mutex<Option<Error>>,
    /// For the history, until the pool writes it.
    pub events: Mutex<Vec<Event>>,
    /// For the scan under way, until the pool takes them.
    pub scan_changes: Mutex<Vec<ScanChange>>,
}

impl Core {
    /// Pool version, 1 to 28 or 5000.
    pub fn version(&self) -> u64 {
        self.version.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// The DMU of the pool.
    pub fn dmu(&self) -> &Arc<Dmu> {
        self.mos.dmu()
    }

    /// Space of a block. Holes and redacted blocks count nothing.
    pub fn triple(&self, bp: &BlkPtr) -> Triple {
        Triple::of(self.dmu(), bp)
    }

    /// Passes on the result of a change whose conditions have all been checked: an error now means that
    /// it stopped half-way.
    pub fn must<R>(&self, r: Result<R>) -> Result<R> {
        if let Err(e) = &r {
            self.broken.acquire().get_or_insert_with(|| e.clone());
        }
        r
    }

    /// Seconds since 1970, from the clock of `env`; 0 before 1970.
    pub fn now(&self) -> u64 {
        self.dmu().env.clock.now().0.max(0) as u64
    }

    /// A random number from `env`.
    pub fn random(&self) -> u64 {
        self.dmu().env.rng.u64()
    }

    /// Opens MOS object `object`.
    pub fn hold(&self, object: u64) -> Result<Arc<Dnode>> {
        self.mos
            .hold(object)
            .map_err(|e| e.context(format!("MOS object {object}")))
    }

    /// The object directory.
    pub fn directory(&self) -> Result<Arc<Dnode>> {
        self.hold(1)
    }

    /// The number under `key` in the object directory.
    pub fn directory_get(&self, key: &str) -> Result<Option<u64>> {
        Zap::new(&self.directory()?).get(key)
    }

    /// A new object with an empty ZAP.
    pub fn new_zap(&self, tx: &Tx, ty: ObjType, normflags: u64) -> Result<Arc<Dnode>> {
        zap::create_object(&self.mos, tx, ty, normflags)
    }

    /// Frees MOS object `object`; 0 is none.
    pub fn free_object(&self, tx: &Tx, object: u64) -> Result<()> {
        match object {
            0 => Ok(()),
            n => self.mos.free(tx, n),
        }
    }

    /// `Bug` unless `tx` is in syncing context.
    pub fn need_syncing(&self, tx: &Tx) -> Result<()> {
        match tx.is_syncing() {
            true => Ok(()),
            false => bail!(Bug, "a change of the MOS outside of syncing context"),
        }
    }

    /// Gives an object with a DSL bonus a ZAP as data (data format §7.1 "zapify").
    pub fn zapify(&self, tx: &Tx, dn: &Arc<Dnode>) -> Result<()> {
        if is_zapified(dn) {
            return Ok(());
        }
        if !self.features.is_enabled(EXTENSIBLE) {
            bail!(Unsupported, "feature extensible_dataset is not enabled");
        }
        Zap::new(dn).create(tx, 0)?;
        dn.set_type(tx, ObjType::ZAP_METADATA)?;
        self.features.activate(tx, EXTENSIBLE, 1)
    }

    /// Frees an object that may have been zapified.
    pub fn free_zapified(&self, tx: &Tx, dn: &Arc<Dnode>) -> Result<()> {
        if is_zapified(dn) {
            self.features.activate(tx, EXTENSIBLE, -1)?;
        }
        self.mos.free(tx, dn.object())
    }

    /// Allocates a MOS object.
    pub fn new_object(&self, tx: &Tx, new: NewObject) -> Result<Arc<Dnode>> {
        self.mos.alloc(tx, &new)
    }

    /// A new, empty list of block pointers, in the form of the pool's version.
    pub fn new_bpobj(&self, tx: &Tx) -> Result<Bpobj> {
        let live = self.features.is_active(LIVELIST);
        Bpobj::create_with(
            &self.mos,
            tx,
            self.version(),
            live,
            bpobj::BLOCK,
            Compression::INHERIT,
        )
    }

    /// The shared empty bpobj, making it if there is none; `users` more users, at least one. `None` if the
    /// feature is not enabled.
    pub fn use_empty_bpobj(&self, tx: &Tx, users: u64) -> Result<Option<u64>> {
        if !self.features.is_enabled(EMPTY_BPOBJ) {
            return Ok(None);
        }
        let obj = match self.empty_bpobj()? {
            0 => {
                let b = self.new_bpobj(tx)?;
                Zap::new(&self.directory()?).add_u64(tx, "empty_bpobj", b.object())?;
                *self.empty_bpobj.acquire() = Some(b.object());
                b.object()
            }
            n => n,
        };
        self.features.activate(tx, EMPTY_BPOBJ, users as i64)?;
        Ok(Some(obj))
    }

    /// Object number of the shared empty bpobj, 0 = none.
    pub fn empty_bpobj(&self) -> Result<u64> {
        let mut e = self.empty_bpobj.acquire();
        if e.is_none() {
            *e = Some(self.directory_get("empty_bpobj")?.unwrap_or(0));
        }
        Ok(e.unwrap_or(0))
    }

    /// So many users less; the last one takes it away.
    pub fn unuse_empty_bpobj(&self, tx: &Tx, users: u64) -> Result<()> {
        if users == 0 {
            return Ok(());
        }
        self.features.activate(tx, EMPTY_BPOBJ, -(users as i64))?;
        if self.features.count(EMPTY_BPOBJ).unwrap_or(0) == 0 {
            let obj = self.empty_bpobj()?;
            Zap::new(&self.directory()?).remove(tx, "empty_bpobj")?;
            *self.empty_bpobj.acquire() = Some(0);
            self.free_object(tx, obj)?;
        }
        Ok(())
    }
}

pub(crate) const EXTENSIBLE: &str = disk::feature::guid::EXTENSIBLE_DATASET;
pub(crate) const EMPTY_BPOBJ: &str = disk::feature::guid::EMPTY_BPOBJ;
pub(crate) const ASYNC_DESTROY: &str = disk::feature::guid::ASYNC_DESTROY;
pub(crate) const BOOKMARKS: &str = disk::feature::guid::BOOKMARKS;
pub(crate) const BOOKMARK_V2: &str = disk::feature::guid::BOOKMARK_V2;
pub(crate) const BOOKMARK_WRITTEN: &str = disk::feature::guid::BOOKMARK_WRITTEN;
pub(crate) const REDACTION_BOOKMARKS: &str = disk::feature::guid::REDACTION_BOOKMARKS;
pub(crate) const REDACTION_SPILL: &str = disk::feature::guid::REDACTION_LIST_SPILL;
/// Feature, and key of a directory.
pub(crate) const LIVELIST: &str = disk::feature::guid::LIVELIST;
pub(crate) const FS_LIMITS: &str = disk::feature::guid::FILESYSTEM_LIMITS;

/// Whether a DSL object's data is a ZAP.
pub(crate) fn is_zapified(dn: &Dnode) -> bool {
    dn.info().obj_type == ObjType::ZAP_METADATA
}

/// A component as users may write it: `Kind::Invalid` or `Kind::NameTooLong` with a sentence.
pub(crate) fn check_component(name: &str) -> Result<()> {
    if name.is_empty() {
        bail!(Invalid, "empty component in name");
    }
    if name.len() > COMPONENT_MAX {
        bail!(NameTooLong, "name is too long");
    }
    match name.chars().find(|c| !disk::names::component_char(*c)) {
        Some(c) => bail!(Invalid, "invalid character '{c}' in name"),
        None if name == "." || name == ".." => {
            bail!(Invalid, "self or parent reference in name")
        }
        None => Ok(()),
    }
}

/// Hidden (`$…`) and temporary (`%…`) names.
pub(crate) fn is_hidden(name: &str) -> bool {
    name.starts_with('$') || name.starts_with('%')
}

/// Opens `object`, which `map` has under `name`. `None` if the map has it no more: readers look at a map and
/// at what it leads to one after the other, and the syncing thread may come between.
pub(crate) fn listed<T>(
    map: &Arc<Dnode>,
    name: &str,
    object: u64,
    open: impl FnOnce() -> Result<T>,
) -> Result<Option<T>> {
    match open() {
        Ok(found) => Ok(Some(found)),
        Err(e) => match Zap::new(map).get(name) {
            Ok(now) if now != Some(object) => Ok(None),
            Err(_) if map.is_freed() => Ok(None),
            _ => Err(e),
        },
    }
}

pub(crate) fn not_found(name: impl std::fmt::Display) -> Error {
    let e = Error::new(Kind::NotFound, format!("dataset '{name}' does not exist"));
    e.because(Cause::NoDataset)
}
