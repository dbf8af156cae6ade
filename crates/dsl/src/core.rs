//! What every part needs at hand.

use crate::features::Features;
use base::sync::MutexExt;
use base::{bail, Cause, Error, Kind, Result, Txg};
use disk::{BlkPtr, ObjType};
use dmu::{Dmu, Dnode, NewObject, Objset, Tx};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, Weak};
use zap::Zap;

/// Longest full name of a dataset, bytes without NUL.
pub const FULL_NAME_MAX: usize = 255;
/// Longest component.
pub(crate) const COMPONENT_MAX: usize = 255;

/// Space of a block or of many: allocated (deflated), compressed, uncompressed bytes (data format §1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Triple {
    pub used: i64,
    pub comp: i64,
    pub uncomp: i64,
}

impl std::ops::AddAssign for Triple {
    fn add_assign(&mut self, o: Triple) {
        self.used += o.used;
        self.comp += o.comp;
        self.uncomp += o.uncomp;
    }
}

impl std::ops::SubAssign for Triple {
    fn sub_assign(&mut self, o: Triple) {
        *self += -o;
    }
}

impl std::ops::Neg for Triple {
    type Output = Triple;
    fn neg(self) -> Triple {
        Triple {
            used: -self.used,
            comp: -self.comp,
            uncomp: -self.uncomp,
        }
    }
}

impl std::ops::Add for Triple {
    type Output = Triple;
    fn add(mut self, o: Triple) -> Triple {
        self += o;
        self
    }
}

impl std::ops::Sub for Triple {
    type Output = Triple;
    fn sub(self, o: Triple) -> Triple {
        self + -o
    }
}

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

/// Changes a counter on disk; damage must not wrap it.
pub(crate) fn bump(x: &mut u64, d: i64) {
    *x = x.saturating_add_signed(d);
}

/// A change of datasets that moves the place of a scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScanChange {
    /// `snap` was made of `head`: it has all there is to be found in it, from the same place on.
    Snapshotted { head: u64, snap: u64 },
    /// `snap` is gone; `next`, the next snapshot or the head, takes over its place, and is visited again afterwards.
    SnapshotDestroyed { snap: u64, next: u64 },
    /// `head`, of which nothing was left, has what was received into `filled`, and its place.
    Received { filled: u64, head: u64 },
    /// What only `head` has is gone.
    HeadGone { head: u64 },
}

/// Shared by everything of one pool.
pub(crate) struct Core {
    pub mos: Arc<Objset>,
    /// Pool version; changes by upgrade only.
    pub version: std::sync::atomic::AtomicU64,
    pub features: Arc<dyn Features>,
    /// The shared empty bpobj, 0 = none; `None` = not looked up yet.
    pub empty_bpobj: Mutex<Option<u64>>,
    pub space: OnceLock<Weak<dyn PoolSpace>>,
    pub open_lists: crate::deadlist::OpenLists,
    /// How many [`crate::InUse`] there are of a dataset.
    pub in_use: Mutex<HashMap<u64, usize>>,
    pub caches: crate::dsl::Caches,
    pub keys: crate::crypto::KeyStore,
    /// A change failed half-way: what is in memory must not reach the disk.
    pub broken: Mutex<Option<Error>>,
    /// For the history, until the pool writes it.
    pub events: Mutex<Vec<crate::history::Event>>,
    /// For the scan under way, until the pool takes them.
    pub scan_changes: Mutex<Vec<ScanChange>>,
}

impl Core {
    pub fn version(&self) -> u64 {
        self.version.load(std::sync::atomic::Ordering::Relaxed)
    }

    pub fn dmu(&self) -> &Arc<Dmu> {
        self.mos.dmu()
    }

    /// Space of a block. Holes and redacted blocks count nothing.
    pub fn triple(&self, bp: &BlkPtr) -> Triple {
        if bp.is_hole() || bp.is_redacted() {
            return Triple::default();
        }
        Triple {
            used: self.dmu().zio.dsize(bp) as i64,
            comp: bp.acct_psize() as i64,
            uncomp: bp.ucsize() as i64,
        }
    }

    /// Passes on the result of a change whose conditions have all been checked: an error now means that
    /// it stopped half-way.
    pub fn must<R>(&self, r: Result<R>) -> Result<R> {
        if let Err(e) = &r {
            self.broken.acquire().get_or_insert_with(|| e.clone());
        }
        r
    }

    pub fn now(&self) -> u64 {
        self.dmu().env.clock.now().0.max(0) as u64
    }

    pub fn random(&self) -> u64 {
        self.dmu().env.rng.u64()
    }

    pub fn hold(&self, object: u64) -> Result<Arc<Dnode>> {
        self.mos
            .hold(object)
            .map_err(|e| e.context(format!("MOS object {object}")))
    }

    /// The object directory.
    pub fn directory(&self) -> Result<Arc<Dnode>> {
        self.hold(1)
    }

    pub fn directory_get(&self, key: &str) -> Result<Option<u64>> {
        Zap::new(&self.directory()?).get(key)
    }

    /// A new object with an empty ZAP.
    pub fn new_zap(&self, tx: &Tx, ty: ObjType, normflags: u64) -> Result<Arc<Dnode>> {
        zap::create_object(&self.mos, tx, ty, normflags)
    }

    pub fn free_object(&self, tx: &Tx, object: u64) -> Result<()> {
        match object {
            0 => Ok(()),
            n => self.mos.free(tx, n),
        }
    }

    pub fn need_syncing(&self, tx: &Tx) -> Result<()> {
        match tx.is_syncing() {
            true => Ok(()),
            false => bail!(Invalid, "a change of the MOS outside of syncing context"),
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

    pub fn new_object(&self, tx: &Tx, new: NewObject) -> Result<Arc<Dnode>> {
        self.mos.alloc(tx, &new)
    }

    /// The shared empty bpobj, making it if there is none; `users` more users, at least one. `None` if the
    /// feature is not enabled.
    pub fn use_empty_bpobj(&self, tx: &Tx, users: u64) -> Result<Option<u64>> {
        if !self.features.is_enabled(EMPTY_BPOBJ) {
            return Ok(None);
        }
        let obj = match self.empty_bpobj()? {
            0 => {
                let b = crate::Bpobj::create(self, tx)?;
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

/// Whether a block was born in the half-open range of txgs.
pub(crate) fn born_in(bp: &BlkPtr, after: Txg, upto: Txg) -> bool {
    bp.birth() > after && bp.birth() <= upto
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
