//! The checkpoint of a pool (pool format §24): while there is one, no block it refers to may be reallocated.
//! When such a block is freed its space stays allocated, and a space map of each vdev notes it.
//!
//! Invariants:
//!
//! 1. The checkpoint is an uberblock that is on disk. It is taken in an early task of the next txg, before that txg frees
//!    anything: a block of the checkpoint that is freed without being noted could be allocated again.
//! 2. An entry of a map lies within one metaslab, also where neighbouring ranges of two metaslabs were freed together. OpenZFS
//!    relies on it when it discards the checkpoint.
//! 3. What is kept of a removed vdev is noted where it is now, on vdevs that have space maps. OpenZFS frees only what it finds there.
//! 4. Whether the checkpoint is being discarded is on disk: the feature is active and the directory has no checkpoint.
//!
//! [`crate::checkpoint_job`] takes and discards the checkpoint.

use crate::{spacemaps, MapFeatures};
use base::sync::MutexExt;
use base::{bail, Error, Kind, RangeSet, Result, Txg};
use disk::feature::guid;
use disk::spacemap::{entries, Entry, SpaceMapPhys, Writer, FULL_BONUS};
use disk::uberblock::{Uberblock, UBERBLOCK_SIZE};
use dmu::{Objset, Tx};
use dsl::Features;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use vdev::{keys, Vdev};
use zap::Zap;

/// Object-directory key: the uberblock to return to, as words.
const ENTRY: &str = disk::mos_keys::CHECKPOINT;
/// Key of a top-level vdev's ZAP: the map of what only the checkpoint refers to.
const MAP: &str = disk::mos_keys::CHECKPOINT_SPACEMAP;
const BLOCK: usize = 128 << 10;
/// Words of an uberblock: its txg, and the txg it was taken as a checkpoint in.
const UB_TXG: usize = 2;
const UB_TIMESTAMP: usize = 4;
const UB_CHECKPOINT_TXG: usize = 25;

struct Map {
    /// ZAP of the vdev.
    zap: u64,
    ashift: u32,
    /// Metaslab m begins at `m << ms_shift`.
    ms_shift: u32,
    /// 0 = none yet.
    object: u64,
    len: u64,
    /// Minus the bytes kept.
    alloc: i64,
    /// Freed in this txg, not written yet.
    pending: RangeSet,
}

/// The checkpoint of one pool, if it has one.
pub struct Checkpoint {
    mos: Arc<Objset>,
    /// Blocks written up to that txg are part of it; 0 = there is none.
    txg: AtomicU64,
    /// When it was made, seconds since 1970.
    created: AtomicU64,
    /// It is gone, and what only it kept is being freed.
    discarding: AtomicBool,
    /// The uberblock of the newest txg on disk, once this import has written one.
    newest: Mutex<Option<Uberblock>>,
    maps: Mutex<BTreeMap<u64, Map>>,
}

/// Frees a range of a vdev: its id, start and end.
pub(crate) type GiveBack<'a> = &'a mut dyn FnMut(u64, u64, u64) -> Result<()>;

impl Checkpoint {
    /// Without any vdev; see [`Checkpoint::add_top`].
    pub fn open(mos: &Arc<Objset>, features: &dyn Features) -> Result<Checkpoint> {
        let (mut txg, mut created) = (0, 0);
        if let Some(v) = Zap::new(&mos.hold(1)?).get_value(ENTRY)? {
            let w = v.ints();
            created = w.get(UB_TIMESTAMP).copied().unwrap_or(0);
            txg = match (w.get(UB_CHECKPOINT_TXG), w.get(UB_TXG)) {
                (Some(0) | None, Some(t)) => *t,
                (Some(t), _) => *t,
                (None, None) => bail!(Damaged, "checkpoint of {} words", w.len()),
            };
        }
        Ok(Checkpoint {
            mos: mos.clone(),
            discarding: AtomicBool::new(txg == 0 && features.is_active(guid::ZPOOL_CHECKPOINT)),
            txg: AtomicU64::new(txg),
            created: AtomicU64::new(created),
            newest: Mutex::default(),
            maps: Mutex::default(),
        })
    }

    /// Reads the map of a top-level vdev that holds blocks, if it has one.
    pub fn add_top(&self, t: &Vdev) -> Result<()> {
        let mut m = Map {
            zap: t.get_u64(keys::ZAP_TOP).unwrap_or(0),
            ashift: t.ashift(),
            ms_shift: t.metaslab_shift(),
            object: 0,
            len: 0,
            alloc: 0,
            pending: RangeSet::new(),
        };
        if m.zap != 0 {
            m.object = Zap::new(&self.mos.hold(m.zap)?).get(MAP)?.unwrap_or(0);
        }
        if m.object != 0 {
            let p = SpaceMapPhys::decode(&self.mos.hold(m.object)?.bonus())?;
            if p.alloc > 0 || p.alloc.unsigned_abs() > t.asize() {
                bail!(
                    Damaged,
                    "the checkpoint map of device {} keeps {} bytes",
                    t.id(),
                    i128::from(p.alloc).abs()
                );
            }
            (m.len, m.alloc) = (p.length, p.alloc);
        }
        self.lock().insert(t.id(), m);
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Map>> {
        self.maps.acquire()
    }

    /// The txg the checkpoint shows; `None`: there is none.
    pub fn txg(&self) -> Option<Txg> {
        Some(Txg::new(self.txg.load(Ordering::Relaxed))).filter(|t| !t.is_none())
    }

    /// When it was made, seconds since 1970; 0: there is none.
    pub fn created(&self) -> u64 {
        let created = self.created.load(Ordering::Relaxed);
        self.txg().map_or(0, |_| created)
    }

    /// Whether the checkpoint is gone, and space that only it kept is still to be freed.
    pub fn is_discarding(&self) -> bool {
        self.discarding.load(Ordering::Relaxed)
    }

    /// An error while there is a checkpoint (`Kind::Exists`), or one is being discarded (`Kind::Busy`).
    pub fn must_be_none(&self) -> Result<()> {
        if self.txg().is_some() {
            bail!(Exists, "checkpoint exists");
        }
        if self.is_discarding() {
            bail!(Busy, "currently discarding checkpoint");
        }
        Ok(())
    }

    /// The uberblock of a txg is on disk.
    pub(crate) fn note_newest(&self, ub: &Uberblock) {
        *self.newest.acquire() = Some(ub.clone());
    }

    /// Makes the newest state on disk the checkpoint; returns its txg. In an early task: see the module, invariant 1.
    ///
    /// # Errors
    /// Those of changing the MOS: the txg must not be written then.
    pub(crate) fn take(&self, tx: &Tx, features: &dyn Features) -> Result<Txg> {
        let newest = self.newest.acquire().clone();
        let Some(mut ub) = newest else {
            return Err(Error::new(
                Kind::Again,
                "no txg of this import is on disk yet",
            ));
        };
        ub.checkpoint_txg = ub.txg;
        let bytes = ub.encode(0);
        let words = disk::bytes::u64s(&bytes[..UBERBLOCK_SIZE]);
        let value = zap::Value::u64s(&words);
        Zap::new(&self.mos.hold(1)?).add(tx, ENTRY, &value)?;
        features.activate(tx, guid::ZPOOL_CHECKPOINT, 1)?;
        self.created.store(ub.timestamp, Ordering::Relaxed);
        self.txg.store(ub.txg.number(), Ordering::Relaxed);
        Ok(ub.txg)
    }

    /// There is no checkpoint any more. What only it kept is still to be given back ([`Checkpoint::give_back`]).
    pub(crate) fn drop_it(&self, tx: &Tx) -> Result<()> {
        Zap::new(&self.mos.hold(1)?).remove(tx, ENTRY)?;
        self.discarding.store(true, Ordering::Relaxed);
        self.txg.store(0, Ordering::Relaxed);
        self.created.store(0, Ordering::Relaxed);
        Ok(())
    }

    /// Hands some of what only the discarded checkpoint kept to `free`, and takes it off the maps, from their ends. `take` is
    /// asked before so many entries. True when nothing is left; the feature is not active any more then.
    ///
    /// # Errors
    /// Damage, and those of changing the MOS: the txg must not be written then.
    pub(crate) fn give_back(
        &self,
        tx: &Tx,
        (f, features): (&dyn MapFeatures, &dyn Features),
        take: &mut dyn FnMut(u64) -> bool,
        free: GiveBack,
    ) -> Result<bool> {
        let mut maps = self.lock();
        for (id, m) in maps.iter_mut() {
            // Of the txg in which it was discarded.
            let pending = std::mem::take(&mut m.pending);
            for (from, to) in m.within_metaslabs(pending) {
                free(*id, from, to)?;
            }
            while m.object != 0 {
                let block = self.mos.hold(m.object)?.info().block_size as u64;
                let from = m.len.saturating_sub(1) / block * block;
                let words = (m.len - from) / 8;
                if !take(words) {
                    return Ok(false);
                }
                self.shorten(tx, *id, m, from, free)?;
                if m.len == 0 {
                    self.free_map(tx, m, f)?;
                }
            }
        }
        features.activate(tx, guid::ZPOOL_CHECKPOINT, -1)?;
        self.discarding.store(false, Ordering::Relaxed);
        Ok(true)
    }

    /// Frees what the map has behind byte `from`, the start of a block, and cuts it there.
    fn shorten(&self, tx: &Tx, id: u64, m: &mut Map, from: u64, free: GiveBack) -> Result<()> {
        let dn = self.mos.hold(m.object)?;
        let mut b = vec![0; (m.len - from) as usize];
        dn.read(from, &mut b)?;
        for e in entries(&b) {
            let Entry::Range(r) = e? else { continue };
            if !r.free {
                bail!(Damaged, "the checkpoint map of device {id} has allocations");
            }
            let (start, end) = r.bytes(m.ashift)?;
            m.alloc += (end - start) as i64;
            let mut range = RangeSet::new();
            range.insert(start, end);
            for (start, end) in m.within_metaslabs(range) {
                free(id, start, end)?;
            }
        }
        m.len = from;
        m.write_header(tx, &dn)
    }

    /// Deletes the map of a vdev.
    fn free_map(&self, tx: &Tx, m: &mut Map, f: &dyn MapFeatures) -> Result<()> {
        if m.alloc != 0 {
            bail!(
                Damaged,
                "a checkpoint map without entries keeps {} bytes",
                -m.alloc
            );
        }
        if self.mos.hold(m.object)?.bonus().len() >= FULL_BONUS {
            f.count_histogram(tx, -1)?;
        }
        self.mos.free(tx, m.object)?;
        Zap::new(&self.mos.hold(m.zap)?).remove(tx, MAP)?;
        m.object = 0;
        Ok(())
    }

    /// Bytes that only the checkpoint keeps, on all vdevs, not deflated. Without a checkpoint: what
    /// is left of one that is being discarded.
    pub fn kept_sum(&self) -> u64 {
        let kept = |m: &Map| m.alloc.min(0).unsigned_abs() + m.pending.total();
        self.lock().values().map(kept).sum()
    }

    /// Bytes that only the checkpoint keeps, not deflated.
    pub fn kept(&self, vdev: u64) -> u64 {
        let maps = self.lock();
        let m = maps.get(&vdev);
        m.map_or(0, |m| m.alloc.min(0).unsigned_abs() + m.pending.total())
    }

    /// Whether a block written in txg `birth` is part of the checkpoint.
    pub fn has(&self, birth: Txg) -> bool {
        self.txg().is_some_and(|t| birth <= t)
    }

    /// Notes that only the checkpoint refers to a range of a vdev with space maps, which must not be freed.
    ///
    /// # Errors
    /// `Kind::Damaged`: there is no such vdev.
    pub fn keep(&self, vdev: u64, offset: u64, asize: u64) -> Result<()> {
        match self.lock().get_mut(&vdev) {
            Some(m) => {
                m.pending.insert(offset, offset + asize);
                Ok(())
            }
            None => bail!(
                Damaged,
                "device {vdev} has nothing that a checkpoint could keep"
            ),
        }
    }

    /// Something is to be written.
    pub fn is_dirty(&self) -> bool {
        self.lock().values().any(|m| !m.pending.is_empty())
    }

    /// Writes what was freed of the checkpoint since the last call.
    pub fn write(&self, tx: &Tx, f: &dyn MapFeatures, pass: u32) -> Result<()> {
        for (id, m) in self.lock().iter_mut() {
            if m.pending.is_empty() {
                continue;
            }
            let freed = std::mem::take(&mut m.pending);
            if m.object == 0 {
                if m.zap == 0 {
                    bail!(Damaged, "device {id} has no ZAP for its checkpoint map");
                }
                m.object = spacemaps::new_object(&self.mos, tx, f, BLOCK)?;
                Zap::new(&self.mos.hold(m.zap)?).add_u64(tx, MAP, m.object)?;
            }
            let dn = self.mos.hold(m.object)?;
            let mut w = Writer::new(dn.info().block_size, m.len, f.v2());
            let total = freed.total();
            w.debug(true, u64::from(pass), tx.txg());
            for (from, to) in m.within_metaslabs(freed) {
                w.range(true, from >> m.ashift, (to - from) >> m.ashift, None)?;
            }
            let bytes = w.finish();
            dn.write(tx, m.len, &bytes)?;
            m.len += bytes.len() as u64;
            m.alloc -= total as i64;
            m.write_header(tx, &dn)?;
        }
        Ok(())
    }
}

impl Map {
    /// The ranges, cut where metaslabs begin. No block crosses such a place.
    fn within_metaslabs(&self, ranges: RangeSet) -> Vec<(u64, u64)> {
        let mut out = Vec::new();
        for (mut from, to) in ranges.iter() {
            while from < to {
                let next = ((from >> self.ms_shift) + 1) << self.ms_shift;
                out.push((from, to.min(next)));
                from = to.min(next);
            }
        }
        out
    }

    fn write_header(&self, tx: &Tx, dn: &dmu::Dnode) -> Result<()> {
        let p = SpaceMapPhys {
            object: self.object,
            length: self.len,
            alloc: self.alloc,
            histogram: (dn.bonus().len() >= FULL_BONUS).then(|| Box::new([0; 32])),
        };
        dn.set_bonus(tx, &p.encode())
    }
}
