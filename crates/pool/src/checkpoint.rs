//! The checkpoint of a pool (pool format §24): while there is one, no block it refers to may be reallocated.
//! When such a block is freed its space stays allocated, and a space map of each vdev notes it.

use crate::{spacemaps, MapFeatures};
use base::sync::MutexExt;
use base::{bail, RangeSet, Result, Txg};
use disk::spacemap::{SpaceMapPhys, Writer, FULL_BONUS};
use dmu::{Objset, Tx};
use space::replay;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
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
    created: u64,
    maps: Mutex<BTreeMap<u64, Map>>,
}

impl Checkpoint {
    /// Without any vdev; see [`Checkpoint::add_top`].
    pub fn open(mos: &Arc<Objset>) -> Result<Checkpoint> {
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
            txg: AtomicU64::new(txg),
            created,
            maps: Mutex::default(),
        })
    }

    /// Reads the map of a top-level vdev that holds blocks, if it has one.
    pub fn add_top(&self, t: &Vdev) -> Result<()> {
        let mut m = Map {
            zap: t.get_u64(keys::ZAP_TOP).unwrap_or(0),
            ashift: t.ashift(),
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
        self.txg().map_or(0, |_| self.created)
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

    /// Whether a range freed now, of a block written in txg `birth`, is part of the checkpoint: it is
    /// noted then and must not be freed.
    pub fn keeps(&self, vdev: u64, offset: u64, asize: u64, birth: Txg) -> bool {
        if self.txg().is_none_or(|t| birth > t) {
            return false;
        }
        match self.lock().get_mut(&vdev) {
            Some(m) => {
                m.pending.insert(offset, offset + asize);
                true
            }
            None => false,
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
            let none = RangeSet::new();
            replay::write_map(
                &mut w,
                (&none, &freed),
                0,
                m.ashift,
                u64::from(pass),
                tx.txg(),
            )?;
            let bytes = w.finish();
            dn.write(tx, m.len, &bytes)?;
            m.len += bytes.len() as u64;
            m.alloc -= freed.total() as i64;
            let p = SpaceMapPhys {
                object: m.object,
                length: m.len,
                alloc: m.alloc,
                histogram: (dn.bonus().len() >= FULL_BONUS).then(|| Box::new([0; 32])),
            };
            dn.set_bonus(tx, &p.encode())?;
        }
        Ok(())
    }
}
