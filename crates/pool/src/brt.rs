//! The block reference table (data format §29): for each cloned block, the number of its pointers beyond the first.

use base::mutation::{mutated, Mutation};
use base::sync::MutexExt;
use base::{bail, Error, Result};
use disk::brt::{brt_name, BrtPhys, BRT_BLOCK, BRT_RANGE};
use disk::{BlkPtr, ObjType};
use dmu::{Dnode, NewObject, Objset, Tx};
use dsl::Features;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use zap::{Value, Zap};
use zio::Zio;

const BLOCK_CLONING: &str = disk::feature::guid::BLOCK_CLONING;
const ENDIAN: &str = disk::feature::guid::BLOCK_CLONING_ENDIAN;

/// The table of one top-level vdev.
struct Table {
    vdev: u64,
    /// Bytes of the vdev.
    asize: u64,
    /// 0 = there is none.
    object: u64,
    phys: BrtPhys,
    counters: Vec<u16>,
    /// Counters that differ from what is on disk.
    touched: std::collections::BTreeSet<usize>,
    /// Entries in use by the txg: offset → additional references.
    live: BTreeMap<u64, u64>,
}

struct State {
    tables: BTreeMap<u64, Table>,
    /// Values are single integers instead of eight bytes.
    words: bool,
}

/// The tables of all vdevs.
pub struct Brts {
    mos: Arc<Objset>,
    zio: Arc<Zio>,
    st: Mutex<State>,
}

impl State {
    fn used_and_saved(&self) -> (u64, u64) {
        self.tables
            .values()
            .filter(|t| t.phys.total > 0)
            .fold((0u64, 0u64), |(u, s), t| {
                // Read from disk.
                (
                    u.saturating_add(t.phys.used),
                    s.saturating_add(t.phys.saved),
                )
            })
    }
}

impl Table {
    fn open(mos: &Arc<Objset>, vdev: u64, asize: u64) -> Result<Table> {
        let mut t = Table {
            vdev,
            asize,
            object: 0,
            phys: BrtPhys {
                range: BRT_RANGE,
                ..BrtPhys::default()
            },
            counters: Vec::new(),
            touched: Default::default(),
            live: BTreeMap::new(),
        };
        let Some(o) = Zap::new(&mos.hold(1)?).get(&brt_name(vdev))? else {
            return Ok(t);
        };
        let dn = mos.hold(o)?;
        t.object = o;
        t.phys = BrtPhys::decode(&dn.bonus())?;
        let n = usize::try_from(t.phys.size).unwrap_or(usize::MAX);
        if n as u64 > (asize / t.phys.range).saturating_add(1 << 20) {
            return Err(Error::damaged(
                "block reference table larger than its device",
            ));
        }
        // Pages of counters that stay zero take no memory.
        t.counters = vec![0; n];
        let mut b = vec![0; BRT_BLOCK.min(n * 2)];
        for (i, part) in t.counters.chunks_mut(BRT_BLOCK / 2).enumerate() {
            base::cancel::check()?;
            let b = &mut b[..part.len() * 2];
            dn.read((i * BRT_BLOCK) as u64, b)?;
            for (to, c) in part.iter_mut().zip(b.chunks_exact(2)) {
                let n = match t.phys.big_endian {
                    true => u16::from_be_bytes([c[0], c[1]]),
                    false => u16::from_le_bytes([c[0], c[1]]),
                };
                if n != 0 {
                    *to = n;
                }
            }
        }
        Ok(t)
    }

    fn region(&self, offset: u64) -> usize {
        (offset / self.phys.range) as usize
    }

    /// Additional references of the block at `offset`.
    fn get(&mut self, mos: &Arc<Objset>, offset: u64) -> Result<u64> {
        if let Some(n) = self.live.get(&offset) {
            return Ok(*n);
        }
        if self.object == 0
            || self
                .counters
                .get(self.region(offset))
                .is_none_or(|n| *n == 0)
        {
            return Ok(0);
        }
        let n = match Zap::new(&mos.hold(self.phys.entries)?).get_value(&[offset][..])? {
            Some(v) => unpack(&v, self.phys.big_endian)?,
            None => 0,
        };
        if n > 0 {
            self.live.insert(offset, n);
        }
        Ok(n)
    }

    fn set(&mut self, offset: u64, old: u64, new: u64, dsize: u64) -> Result<()> {
        let r = self.region(offset);
        if self.counters.len() <= r {
            let n = self.asize.div_ceil(self.phys.range) as usize;
            if r >= n {
                bail!(Damaged, "a clone beyond the end of device {}", self.vdev);
            }
            self.counters.resize(n, 0);
            self.phys.size = n as u64;
        }
        match (old, new) {
            (0, 0) => {}
            (0, _) => {
                self.counters[r] = self.counters[r].saturating_add(1);
                // What they were was read from disk.
                self.phys.total = self.phys.total.saturating_add(1);
                self.phys.used = self.phys.used.saturating_add(dsize);
                self.touched.insert(r);
            }
            (_, 0) => {
                self.counters[r] = self.counters[r].saturating_sub(1);
                self.phys.total = self.phys.total.saturating_sub(1);
                self.phys.used = self.phys.used.saturating_sub(dsize);
                self.touched.insert(r);
            }
            _ => {}
        }
        self.phys.saved = match new > old {
            true => (self.phys.saved).saturating_add(dsize.saturating_mul(new - old)),
            false => self
                .phys
                .saved
                .saturating_sub(dsize.saturating_mul(old - new)),
        };
        self.live.insert(offset, new);
        Ok(())
    }
}

/// The number in an entry, in either form.
fn unpack(v: &Value, big: bool) -> Result<u64> {
    if let Some(n) = v.as_u64() {
        return Ok(n);
    }
    match <[u8; 8]>::try_from(v.data.as_slice()) {
        Ok(b) if v.size == 1 && big => Ok(u64::from_be_bytes(b)),
        Ok(b) if v.size == 1 => Ok(u64::from_le_bytes(b)),
        _ => Err(Error::damaged("block reference table: strange entry")),
    }
}

impl Brts {
    /// Without any vdev; see [`Brts::add_vdev`].
    pub fn open(mos: &Arc<Objset>, zio: &Arc<Zio>, features: &dyn Features) -> Brts {
        Brts {
            mos: mos.clone(),
            zio: zio.clone(),
            st: Mutex::new(State {
                tables: BTreeMap::new(),
                words: features.is_active(ENDIAN),
            }),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.st.acquire()
    }

    /// Objects of the entries.
    pub(crate) fn entry_objects(&self) -> Vec<u64> {
        let st = self.lock();
        let tables = st.tables.values().filter(|t| t.object != 0);
        tables.map(|t| t.phys.entries).filter(|o| *o != 0).collect()
    }

    /// Reads the table of a top-level vdev of `asize` bytes, if it has one.
    pub fn add_vdev(&self, id: u64, asize: u64) -> Result<()> {
        let t = Table::open(&self.mos, id, asize)?;
        self.lock().tables.insert(id, t);
        Ok(())
    }

    /// The vdev has `asize` bytes from now on. What the txg has changed of its table stays.
    pub fn grow_vdev(&self, id: u64, asize: u64) -> Result<()> {
        if mutated(Mutation::TableReadAgain) {
            return self.add_vdev(id, asize);
        }
        match self.lock().tables.get_mut(&id) {
            Some(t) => t.asize = asize,
            None => bail!(Damaged, "no table of clones for device {id}"),
        }
        Ok(())
    }

    /// Whether the block may have additional references.
    pub fn may_have(&self, bp: &BlkPtr) -> bool {
        let d = bp.dva(0);
        let st = self.lock();
        st.tables.get(&d.vdev()).is_some_and(|t| {
            t.counters.get(t.region(d.offset())).is_some_and(|n| *n > 0)
                || t.live.get(&d.offset()).is_some_and(|n| *n > 0)
        })
    }

    /// One reference less; false: there is no additional one, the block itself is to be freed.
    pub fn release(&self, bp: &BlkPtr) -> Result<bool> {
        let d = bp.dva(0);
        let dsize = self.zio.dsize(bp);
        let mut st = self.lock();
        let Some(t) = st.tables.get_mut(&d.vdev()) else {
            return Ok(false);
        };
        match t.get(&self.mos, d.offset())? {
            0 => Ok(false),
            n => t.set(d.offset(), n, n - 1, dsize).map(|()| true),
        }
    }

    /// One reference more.
    pub fn add(&self, bp: &BlkPtr) -> Result<()> {
        let d = bp.dva(0);
        let dsize = self.zio.dsize(bp);
        let mut st = self.lock();
        let Some(t) = st.tables.get_mut(&d.vdev()) else {
            bail!(
                Invalid,
                "a clone on device {}, which is not there",
                d.vdev()
            );
        };
        let n = t.get(&self.mos, d.offset())?;
        t.set(d.offset(), n, n + 1, dsize)
    }

    /// Bytes of the blocks that are shared, and bytes that are saved by it.
    pub fn used_and_saved(&self) -> (u64, u64) {
        self.lock().used_and_saved()
    }

    /// The same, unless the tables are in use: by a txg, say, that waits for a device.
    pub fn try_used_and_saved(&self) -> Option<(u64, u64)> {
        Some(self.st.try_acquire()?.used_and_saved())
    }

    /// Checks counters and totals against the entries themselves: a walk over all of them.
    ///
    /// Errors: `Kind::Damaged` with what differs.
    pub fn recount(&self) -> Result<()> {
        for t in self.lock().tables.values().filter(|t| t.object != 0) {
            let mut counters = vec![0u16; t.counters.len()];
            let mut total = 0;
            for e in Zap::new(&self.mos.hold(t.phys.entries)?).iter() {
                let e = e?;
                let n = unpack(&e.value, t.phys.big_endian)?;
                let region = e.words().first().map(|o| t.region(*o));
                match region.and_then(|r| counters.get_mut(r)) {
                    Some(c) if n > 0 => *c = c.saturating_add(1),
                    _ => bail!(Damaged, "impossible entry in the table of clones"),
                }
                total += 1;
            }
            if counters != t.counters || total != t.phys.total {
                bail!(
                    Damaged,
                    "device {}: {total} clones, {} counted",
                    t.vdev,
                    t.phys.total
                );
            }
        }
        Ok(())
    }

    /// Whether any table has changes that are not on disk.
    pub fn is_dirty(&self) -> bool {
        self.lock().tables.values().any(|t| !t.live.is_empty())
    }

    /// Writes what the txg has changed.
    pub fn sync(&self, tx: &Tx, features: &dyn Features) -> Result<()> {
        let mut st = self.lock();
        let none_yet = st.tables.values().all(|t| t.object == 0);
        let State { tables, words } = &mut *st;
        if none_yet {
            *words = features.is_enabled(ENDIAN);
        }
        for t in tables.values_mut().filter(|t| !t.live.is_empty()) {
            self.sync_table(tx, t, *words, features)?;
        }
        Ok(())
    }

    fn sync_table(
        &self,
        tx: &Tx,
        t: &mut Table,
        words: bool,
        features: &dyn Features,
    ) -> Result<()> {
        let live = std::mem::take(&mut t.live);
        if t.object == 0 && t.phys.total == 0 {
            t.touched.clear();
            return Ok(());
        }
        if t.object == 0 {
            self.create(tx, t, words, features)?;
        }
        if t.phys.total == 0 {
            return self.destroy(tx, t, words, features);
        }
        let entries = self.mos.hold(t.phys.entries)?;
        let z = Zap::new(&entries);
        for (offset, n) in live {
            if n == 0 {
                z.remove_if(tx, &[offset][..])?;
                continue;
            }
            let v = match words {
                true => Value::u64(n),
                false if t.phys.big_endian => Value::bytes(&n.to_be_bytes()),
                false => Value::bytes(&n.to_le_bytes()),
            };
            z.update(tx, &[offset][..], &v)?;
        }
        let dn = self.mos.hold(t.object)?;
        for r in std::mem::take(&mut t.touched) {
            let n = t.counters.get(r).copied().unwrap_or(0);
            let b = match t.phys.big_endian {
                true => n.to_be_bytes(),
                false => n.to_le_bytes(),
            };
            dn.write(tx, r as u64 * 2, &b)?;
        }
        dn.set_bonus(tx, &t.phys.encode())
    }

    fn create(&self, tx: &Tx, t: &mut Table, words: bool, features: &dyn Features) -> Result<()> {
        let entries = self.mos.alloc(
            tx,
            &NewObject {
                obj_type: ObjType::ZAP_METADATA,
                block_size: 8 << 10,
                indblkshift: 13,
                ..NewObject::default()
            },
        )?;
        let flags = zap::flags::HASH64 | zap::flags::UINT64_KEY;
        Zap::new(&entries).create_fat(tx, 0, flags)?;
        t.phys.entries = entries.object();
        t.phys.range = BRT_RANGE;
        t.phys.size = t.asize.div_ceil(BRT_RANGE);
        t.counters.resize(t.phys.size as usize, 0);
        t.touched.extend(0..t.counters.len());
        let dn: Arc<Dnode> = self.mos.alloc(
            tx,
            &NewObject {
                obj_type: ObjType::U64_METADATA,
                block_size: BRT_BLOCK,
                bonus_type: ObjType::U64_METADATA,
                bonus: t.phys.encode(),
                ..NewObject::default()
            },
        )?;
        t.object = dn.object();
        Zap::new(&self.mos.hold(1)?).add_u64(tx, &brt_name(t.vdev), t.object)?;
        features.activate(tx, BLOCK_CLONING, 1)?;
        if words {
            features.activate(tx, ENDIAN, 1)?;
        }
        Ok(())
    }

    fn destroy(&self, tx: &Tx, t: &mut Table, words: bool, features: &dyn Features) -> Result<()> {
        self.mos.free(tx, t.phys.entries)?;
        self.mos.free(tx, t.object)?;
        Zap::new(&self.mos.hold(1)?).remove(tx, &brt_name(t.vdev))?;
        t.object = 0;
        t.counters.clear();
        t.touched.clear();
        t.phys = BrtPhys {
            range: BRT_RANGE,
            ..BrtPhys::default()
        };
        features.activate(tx, BLOCK_CLONING, -1)?;
        if words {
            features.activate(tx, ENDIAN, -1)?;
        }
        Ok(())
    }
}
