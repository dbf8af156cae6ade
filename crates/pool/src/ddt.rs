//! Dedup tables (data format §27, §28): lookup of blocks that are stored already, and counts of references.
//!
//! Entries changed in a txg are kept in memory and written when everything that can change them is
//! done ([`Ddts::sync`]). Tables in the new form have a log in front of their ZAPs. What it holds at
//! opening is taken over into the ZAPs by the first txg that changes the table, and the log is then
//! empty for good: each txg writes its changes to the ZAPs themselves, which any reader
//! understands.

use base::sync::MutexExt;
use base::{bail, Result};
use codec::compress;
use disk::ddt::{
    DdtClass, DdtEntry, DdtHistogram, DdtKey, DdtLogPhys, DdtLogRecord, DdtSlot, FLAG_FLAT,
    FLAG_LOG, FLAT_SIZE, LOG_CHECKPOINT, LOG_FLUSHING, SLOTS, TRADITIONAL_SIZE,
};
use disk::{BlkPtr, Checksum, Compression, Dva, ObjType};
use dmu::{Dnode, NewObject, Objset, Tx};
use dsl::Features;
use space::{Class, Space};
use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard};
use zap::{Value, Zap};
use zio::{Dedup, Zio};

mod prune;

pub use prune::Prune;

const FAST_DEDUP: &str = disk::feature::guid::FAST_DEDUP;
/// ZAP of the statistics, in the object directory.
const STATISTICS: &str = "DDT-statistics";
/// Version of the new form.
const VERSION_FDT: u64 = 1;
const BLOCK: usize = 32 << 10;
const LOG_BLOCK: usize = 128 << 10;
/// Largest log that is read: beyond this it is damage.
const LOG_MAX: u64 = 16 << 30;
/// Highest bit of a value's first byte: written by a little-endian machine.
const LITTLE: u8 = 0x80;

/// Checksums tables exist for.
const CHECKSUMS: [Checksum; 5] = [
    Checksum::SHA256,
    Checksum::SHA512,
    Checksum::SKEIN,
    Checksum::EDONR,
    Checksum::BLAKE3,
];

/// Unpacks a value of a table's ZAP.
pub fn unpack_entry(v: &Value, flat: bool) -> Result<DdtEntry> {
    let (Some((&head, body)), 1) = (v.data.split_first(), v.size) else {
        bail!(Damaged, "dedup table: empty entry");
    };
    let size = if flat { FLAT_SIZE } else { TRADITIONAL_SIZE };
    let body = match Compression::new(head & !LITTLE) {
        alg @ (Compression::ZLE | Compression::OFF) => compress::decompress(alg, body, size)?,
        alg => bail!(Damaged, "dedup table: entry packed as {alg}"),
    };
    DdtEntry::decode(&body, flat, head & LITTLE == 0)
}

/// The value a table's ZAP stores for an entry.
pub fn pack_entry(e: &DdtEntry) -> Value {
    let body = e.encode();
    let (alg, body) = match compress::compress(Compression::ZLE, 0, &body, body.len() - 1) {
        Some(c) => (Compression::ZLE, c),
        None => (Compression::OFF, body),
    };
    let mut data = vec![alg.number() | LITTLE];
    data.extend_from_slice(&body);
    Value { size: 1, data }
}

/// An entry in use by the txg.
#[derive(Clone)]
struct Live {
    entry: DdtEntry,
    /// Where the ZAPs have it.
    stored: Option<DdtClass>,
    /// The statistics of that ZAP have it: what lives in the log is not in them.
    counted: bool,
    /// The class it had when it was found, in a ZAP or in a log.
    class: Option<DdtClass>,
    changed: bool,
}

struct Log {
    object: u64,
    phys: DdtLogPhys,
}

/// The table of one checksum.
pub struct Ddt {
    checksum: Checksum,
    /// New form: flat entries, a directory of its own.
    flat: bool,
    /// The directory's object; 1 for the old form, whose objects are in the object directory. 0: there
    /// is no table yet.
    dir: u64,
    /// ZAPs by class, 0 = none.
    objects: [u64; 3],
    histograms: [DdtHistogram; 3],
    logs: Vec<Log>,
    /// What the logs say; takes precedence over the ZAPs.
    logged: BTreeMap<DdtKey, Live>,
    live: BTreeMap<DdtKey, Live>,
}

fn object_name(sum: Checksum, class: DdtClass) -> String {
    let sum = sum.name().unwrap_or("?");
    format!("DDT-{sum}-zap-{}", class.name())
}

fn dir_name(sum: Checksum) -> String {
    format!("DDT-{}", sum.name().unwrap_or("?"))
}

fn log_name(sum: Checksum, n: usize) -> String {
    format!("DDT-log-{}-{n}", sum.name().unwrap_or("?"))
}

impl Ddt {
    fn open(mos: &Arc<Objset>, sum: Checksum) -> Result<Ddt> {
        let top = mos.hold(1)?;
        let mut t = Ddt {
            checksum: sum,
            flat: false,
            dir: 0,
            objects: [0; 3],
            histograms: Default::default(),
            logs: Vec::new(),
            logged: BTreeMap::new(),
            live: BTreeMap::new(),
        };
        let mut dir = top.clone();
        if let Some(o) = Zap::new(&top).get(&dir_name(sum))? {
            dir = mos.hold(o)?;
            let z = Zap::new(&dir);
            let version = z.get("version")?.unwrap_or(0);
            let flags = z.get("flags")?.unwrap_or(0);
            if version != VERSION_FDT || flags & !(FLAG_FLAT | FLAG_LOG) != 0 {
                bail!(
                    Unsupported,
                    "dedup table {} of version {version}, flags {flags:#x}",
                    dir_name(sum)
                );
            }
            t.dir = o;
            t.flat = flags & FLAG_FLAT != 0;
        }
        let stats = match Zap::new(&top).get(STATISTICS)? {
            Some(o) => Some(mos.hold(o)?),
            None => None,
        };
        for class in DdtClass::ALL {
            let name = object_name(sum, class);
            let Some(o) = Zap::new(&dir).get(&name)? else {
                continue;
            };
            t.objects[class.index()] = o;
            t.dir = t.dir.max(1);
            if let Some(s) = &stats {
                if let Some(v) = Zap::new(s).get_value(&name)? {
                    t.histograms[class.index()] = DdtHistogram::from_words(v.ints());
                }
            }
        }
        if t.dir > 1 {
            t.open_logs(mos, &dir)?;
        }
        Ok(t)
    }

    fn open_logs(&mut self, mos: &Arc<Objset>, dir: &Arc<Dnode>) -> Result<()> {
        for n in 0..2 {
            if let Some(object) = Zap::new(dir).get(&log_name(self.checksum, n))? {
                let phys = DdtLogPhys::decode(&mos.hold(object)?.bonus())?;
                self.logs.push(Log { object, phys });
            }
        }
        // The one being flushed first: the other one is newer.
        self.logs.sort_by_key(|l| l.phys.flags & LOG_FLUSHING == 0);
        for l in &self.logs {
            let dn = mos.hold(l.object)?;
            let size = dn.info().block_size as u64;
            if l.phys.length > LOG_MAX || l.phys.length % size != 0 {
                bail!(Damaged, "dedup log of {} bytes", l.phys.length);
            }
            let done = (l.phys.flags & LOG_CHECKPOINT != 0).then_some(l.phys.checkpoint);
            for blkid in 0..l.phys.length / size {
                base::cancel::check()?;
                for r in DdtLogRecord::decode_block(&dn.block(blkid)?)? {
                    if done.is_some_and(|d| r.key <= d) {
                        continue;
                    }
                    let live = Live {
                        class: match r.entry.references() {
                            0 => None,
                            n => Some(DdtClass::of(n)),
                        },
                        entry: r.entry,
                        stored: r.stored,
                        counted: false,
                        changed: true,
                    };
                    self.logged.insert(r.key, live);
                }
            }
        }
        Ok(())
    }

    /// No table at all.
    pub fn is_empty(&self) -> bool {
        self.dir == 0
    }

    /// Entries as the ZAPs have them.
    fn lookup(&self, mos: &Arc<Objset>, key: &DdtKey) -> Result<Option<Live>> {
        if let Some(l) = self.live.get(key).or_else(|| self.logged.get(key)) {
            return Ok(Some(l.clone()));
        }
        for class in DdtClass::ALL {
            let o = self.objects[class.index()];
            if o == 0 {
                continue;
            }
            if let Some(v) = Zap::new(&mos.hold(o)?).get_value(&key.0[..])? {
                return Ok(Some(Live {
                    entry: unpack_entry(&v, self.flat)?,
                    stored: Some(class),
                    counted: true,
                    class: Some(class),
                    changed: false,
                }));
            }
        }
        Ok(None)
    }

    /// The entry, in use by this txg from now on.
    fn take(&mut self, mos: &Arc<Objset>, key: &DdtKey) -> Result<Option<&mut Live>> {
        if !self.live.contains_key(key) {
            match self.lookup(mos, key)? {
                Some(l) => self.live.insert(*key, l),
                None => return Ok(None),
            };
        }
        Ok(self.live.get_mut(key))
    }

    /// Sums over all entries, logged ones included: blocks, logical, physical, allocated bytes, then
    /// the same by references.
    fn total(&self, deflate: &dyn Fn(&Dva) -> u64) -> [u64; 8] {
        let mut t = [0u64; 8];
        for h in &self.histograms {
            for (t, v) in t.iter_mut().zip(h.total()) {
                *t = t.wrapping_add(v);
            }
        }
        for (k, l) in &self.logged {
            if l.entry.references() > 0 {
                let (_, f) = l.entry.figures(k, deflate);
                for (t, v) in t.iter_mut().zip(f) {
                    *t = t.wrapping_add(v);
                }
            }
        }
        t
    }
}

/// What the dedup tables hold, and what they take.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DdtStats {
    /// Entries, those in logs included.
    pub entries: u64,
    /// Bytes on disk.
    pub on_disk: u64,
    /// Bytes of memory when all of it is there.
    pub in_core: u64,
    /// Entries by number of references.
    pub histogram: DdtHistogram,
}

/// Bytes of memory of an entry of a log beside its body: key, place in the tree, table and class.
const LOG_ENTRY: u64 = 72;

/// How large the dedup tables may get before new blocks are written without an entry.
#[derive(Clone)]
pub enum Quota {
    /// Any size.
    None,
    /// So many bytes.
    Bytes(u64),
    /// As long as the devices for dedup tables have room; any size where there are none.
    Devices(Arc<Space>),
}

/// Room that is kept on the devices for dedup tables: 15 %, at most 8 GiB.
const KEPT_PERCENT: u64 = 15;
const KEPT_MOST: u64 = 8 << 30;

impl Quota {
    /// Whether tables of `size()` bytes are at the quota.
    fn is_reached(&self, size: &dyn Fn() -> Result<u64>) -> Result<bool> {
        Ok(match self {
            Quota::None => false,
            Quota::Bytes(most) => size()? >= *most,
            Quota::Devices(space) => [Class::Dedup, Class::Special].into_iter().any(|class| {
                let s = space.class_stats(class);
                let kept = (s.size / 100 * KEPT_PERCENT).min(KEPT_MOST);
                s.size > 0 && s.allocated >= s.size - kept
            }),
        })
    }
}

struct State {
    tables: Vec<Ddt>,
    quota: Quota,
    /// The quota is reached: no new entries.
    full: bool,
    /// The next txg takes over what the logs hold.
    fold: bool,
}

/// All dedup tables of a pool.
pub struct Ddts {
    mos: Arc<Objset>,
    zio: Arc<Zio>,
    /// A thread prunes the tables.
    pub(crate) pruning: AtomicBool,
    st: Mutex<State>,
}

impl Ddts {
    /// Opens the tables of all checksums that can be used for deduplication. `Damaged`: one cannot
    /// be read.
    pub fn open(mos: &Arc<Objset>, zio: &Arc<Zio>) -> Result<Ddts> {
        let tables: Result<Vec<Ddt>> = CHECKSUMS.iter().map(|c| Ddt::open(mos, *c)).collect();
        Ok(Ddts {
            mos: mos.clone(),
            zio: zio.clone(),
            pruning: AtomicBool::new(false),
            st: Mutex::new(State {
                tables: tables?,
                quota: Quota::None,
                full: false,
                fold: false,
            }),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.st.acquire()
    }

    /// How large the tables may get before new blocks are left out.
    pub fn set_quota(&self, quota: Quota) {
        let mut st = self.lock();
        st.full = quota.is_reached(&|| self.size_of(&st)).unwrap_or_default();
        st.quota = quota;
    }

    fn size_of(&self, st: &State) -> Result<u64> {
        let mut sum = 0;
        for t in &st.tables {
            let logs = t.logs.iter().map(|l| &l.object);
            for o in t.objects.iter().chain(logs).filter(|o| **o != 0) {
                sum += self.mos.hold(*o)?.info().used;
            }
        }
        Ok(sum)
    }

    /// Bytes the tables take on disk.
    pub fn size(&self) -> Result<u64> {
        self.size_of(&self.lock())
    }

    /// The same, unless the tables are in use: by a txg, say, that waits for a device.
    pub fn try_size(&self) -> Option<Result<u64>> {
        Some(self.size_of(&*self.st.try_acquire()?))
    }

    /// What `zpool status -D` tells, unless the tables are in use.
    pub fn try_stats(&self) -> Option<Result<DdtStats>> {
        Some(self.stats_of(&*self.st.try_acquire()?))
    }

    fn stats_of(&self, st: &State) -> Result<DdtStats> {
        let deflate = |d: &Dva| self.zio.devices.deflate(d.vdev(), d.asize());
        // As OpenZFS counts it: in blocks of 512 bytes.
        let on_disk = |dn: &Dnode| dn.info().used.saturating_add(256) >> 9 << 9;
        let mut out = DdtStats::default();
        for t in &st.tables {
            for o in t.objects.iter().filter(|o| **o != 0) {
                let dn = self.mos.hold(*o)?;
                let i = dn.info();
                out.entries += Zap::new(&dn).count()?;
                out.on_disk += on_disk(&dn);
                out.in_core += (i.max_blkid + 1) * i.block_size as u64;
            }
            for l in &t.logs {
                out.on_disk += on_disk(&*self.mos.hold(l.object)?);
            }
            let body = if t.flat { FLAT_SIZE } else { TRADITIONAL_SIZE };
            let logged = t.logged.len() as u64;
            out.entries += logged;
            out.in_core += logged * (LOG_ENTRY + body as u64);
            for h in &t.histograms {
                for (sum, v) in out.histogram.0.iter_mut().zip(&h.0) {
                    *sum = sum.wrapping_add(*v);
                }
            }
            for (k, l) in t.logged.iter().filter(|(_, l)| l.entry.references() > 0) {
                out.histogram.count(&l.entry.figures(k, deflate), true);
            }
        }
        Ok(out)
    }

    /// Objects of the tables.
    fn table_objects(&self) -> Vec<u64> {
        let st = self.lock();
        let objects = st.tables.iter().flat_map(|t| t.objects);
        objects.filter(|o| *o != 0).collect()
    }

    /// Bytes of the tables that are in the block cache.
    pub fn cached(&self) -> Result<u64> {
        let mut sum = 0;
        for o in self.table_objects() {
            let dn = match self.mos.hold(o) {
                Ok(dn) => dn,
                // A txg has destroyed the table meanwhile.
                Err(e) if e.kind == base::Kind::NotFound => continue,
                Err(e) => return Err(e),
            };
            let i = dn.info();
            for blkid in 0..=i.max_blkid {
                base::cancel::check()?;
                let bp = dn.block_pointer(blkid)?;
                if !bp.is_hole() && self.zio.cache.has(&bp) {
                    sum += i.block_size as u64;
                }
            }
        }
        Ok(sum)
    }

    /// Sums over all tables: blocks, logical, physical, allocated bytes, then the same by references.
    pub fn total(&self) -> [u64; 8] {
        self.total_of(&self.lock())
    }

    /// The same, unless the tables are in use.
    pub fn try_total(&self) -> Option<[u64; 8]> {
        Some(self.total_of(&*self.st.try_acquire()?))
    }

    fn total_of(&self, st: &State) -> [u64; 8] {
        let deflate = |d: &Dva| self.zio.devices.deflate(d.vdev(), d.asize());
        let mut t = [0u64; 8];
        for table in &st.tables {
            for (t, v) in t.iter_mut().zip(table.total(&deflate)) {
                *t = t.wrapping_add(v);
            }
        }
        t
    }

    /// What [`total`](Self::total) should be, from the entries themselves: a walk over all of them.
    pub fn recount(&self) -> Result<[u64; 8]> {
        let deflate = |d: &Dva| self.zio.devices.deflate(d.vdev(), d.asize());
        let st = self.lock();
        let mut all = DdtHistogram::default();
        for t in &st.tables {
            for o in t.objects.iter().filter(|o| **o != 0) {
                for e in Zap::new(&self.mos.hold(*o)?).iter() {
                    let e = e?;
                    let key = DdtKey::from_words(&e.words())?;
                    if !t.logged.contains_key(&key) {
                        let entry = unpack_entry(&e.value, t.flat)?;
                        all.count(&entry.figures(&key, deflate), true);
                    }
                }
            }
            for (key, l) in t.logged.iter().filter(|(_, l)| l.entry.references() > 0) {
                all.count(&l.entry.figures(key, deflate), true);
            }
        }
        Ok(all.total())
    }

    /// One reference less. `None`: the table does not have the block. Its last reference frees it in
    /// [`sync`](Self::sync).
    pub fn release(&self, bp: &BlkPtr) -> Result<Option<()>> {
        self.change(bp, |s| {
            if s.refcount == 0 {
                bail!(Damaged, "dedup table: a block without references is freed");
            }
            s.refcount -= 1;
            Ok(())
        })
    }

    /// One reference more; `None`: the table does not have the block.
    pub fn add(&self, bp: &BlkPtr) -> Result<Option<()>> {
        self.change(bp, |s| {
            s.refcount += 1;
            Ok(())
        })
    }

    fn change(
        &self,
        bp: &BlkPtr,
        f: impl FnOnce(&mut DdtSlot) -> Result<()>,
    ) -> Result<Option<()>> {
        let mut st = self.lock();
        let sum = bp.checksum_alg();
        let Some(t) = st.tables.iter_mut().find(|t| t.checksum == sum) else {
            return Ok(None);
        };
        if t.is_empty() {
            return Ok(None);
        }
        let Some(l) = t.take(&self.mos, &DdtKey::of(bp))? else {
            return Ok(None);
        };
        let (dva, birth) = (bp.dva(0), bp.physical_birth());
        let slot = l
            .entry
            .slots_mut()
            .iter_mut()
            .find(|s| s.birth == birth && s.dvas[0] == dva);
        match slot {
            Some(s) => {
                f(s)?;
                l.changed = true;
                Ok(Some(()))
            }
            None => Ok(None),
        }
    }

    /// See [`zio::Sharing::find`].
    pub fn find(
        &self,
        bp: &BlkPtr,
        copies: u8,
        same: Option<&dyn Fn(&BlkPtr) -> Result<bool>>,
    ) -> Result<Dedup> {
        let mut st = self.lock();
        let full = st.full;
        let sum = bp.checksum_alg();
        let Some(t) = st.tables.iter_mut().find(|t| t.checksum == sum) else {
            return Ok(Dedup::Apart);
        };
        let key = DdtKey::of(bp);
        let Some(l) = t.take(&self.mos, &key)? else {
            return Ok(if full { Dedup::Apart } else { Dedup::New });
        };
        let copies = copies.clamp(1, 3) as usize;
        let n = match &l.entry {
            DdtEntry::Traditional(_) => copies,
            DdtEntry::Flat { .. } => 0,
        };
        let Some(slot) = l.entry.slots_mut().get_mut(n) else {
            return Ok(Dedup::Apart);
        };
        if slot.birth.is_none() {
            // A traditional entry whose copies are of another number.
            return Ok(Dedup::New);
        }
        if slot.addresses(key.is_encrypted()).count() < copies {
            return Ok(Dedup::Apart);
        }
        if let Some(same) = same {
            if !same(&key.pointer(sum, slot))? {
                return Ok(Dedup::Apart);
            }
        }
        slot.refcount += 1;
        // All of them: a block leads to whatever its entry has, so that the block has it when the entry is gone. Of a gang there
        // are further copies of the header.
        let (dvas, born) = (slot.dvas, slot.birth);
        l.changed = true;
        Ok(Dedup::Same(dvas, born))
    }

    /// See [`zio::Sharing::insert`].
    pub fn insert(&self, bp: &BlkPtr, copies: u8, features: &dyn Features) -> Result<()> {
        let mut st = self.lock();
        let sum = bp.checksum_alg();
        let Some(t) = st.tables.iter_mut().find(|t| t.checksum == sum) else {
            bail!(Invalid, "no dedup table for checksum {sum}");
        };
        if t.is_empty() {
            t.flat = features.is_enabled(FAST_DEDUP);
        }
        let key = DdtKey::of(bp);
        let slot = DdtSlot {
            dvas: [bp.dva(0), bp.dva(1), bp.dva(2)],
            refcount: 1,
            birth: bp.physical_birth(),
        };
        let n = copies.clamp(1, 3) as usize;
        let flat = t.flat;
        let l = match t.take(&self.mos, &key)? {
            Some(l) => l,
            None => t.live.entry(key).or_insert(Live {
                entry: match flat {
                    true => DdtEntry::Flat {
                        slot: DdtSlot::default(),
                        class_start: 0,
                    },
                    false => DdtEntry::Traditional([DdtSlot::default(); SLOTS]),
                },
                stored: None,
                counted: false,
                class: None,
                changed: true,
            }),
        };
        l.changed = true;
        match &mut l.entry {
            DdtEntry::Traditional(s) => s[n] = slot,
            DdtEntry::Flat { slot: s, .. } => *s = slot,
        }
        Ok(())
    }

    /// Whether [`sync`](Self::sync) has something to do.
    pub fn is_dirty(&self) -> bool {
        let st = self.lock();
        let folds = |t: &Ddt| st.fold && !t.logged.is_empty();
        st.tables.iter().any(|t| !t.live.is_empty() || folds(t))
    }

    /// Writes what the txg has changed and frees blocks that have lost their last reference. Returns
    /// the pointers of those to be freed by the caller. `now`: seconds since 1970.
    pub fn sync(&self, tx: &Tx, features: &dyn Features, now: u64) -> Result<Vec<BlkPtr>> {
        let mut st = self.lock();
        let mut dead = Vec::new();
        let fold = std::mem::take(&mut st.fold);
        for t in &mut st.tables {
            let folds = fold && !t.logged.is_empty();
            if folds || t.live.values().any(|l| l.changed) {
                self.sync_table(tx, t, features, now, &mut dead)?;
            }
            t.live.clear();
        }
        st.full = st.quota.is_reached(&|| self.size_of(&st))?;
        Ok(dead)
    }

    fn sync_table(
        &self,
        tx: &Tx,
        t: &mut Ddt,
        features: &dyn Features,
        now: u64,
        dead: &mut Vec<BlkPtr>,
    ) -> Result<()> {
        if t.is_empty() {
            self.create(tx, t, features)?;
        }
        let mut work = std::mem::take(&mut t.logged);
        let had_log = !work.is_empty();
        work.append(&mut t.live);
        for (key, live) in work {
            if live.changed {
                self.sync_entry(tx, t, key, live, now, dead)?;
            }
        }
        if had_log || t.logs.iter().any(|l| l.phys.length != 0) {
            for l in &mut t.logs {
                let dn = self.mos.hold(l.object)?;
                dn.free_range(tx, 0, u64::MAX)?;
                l.phys.length = 0;
                l.phys.flags &= !LOG_CHECKPOINT;
                l.phys.checkpoint = DdtKey::default();
                l.phys.first_txg = tx.txg();
                dn.set_bonus(tx, &l.phys.encode())?;
            }
        }
        let mut total = 0;
        for o in t.objects.iter().filter(|o| **o != 0) {
            total += Zap::new(&self.mos.hold(*o)?).count()?;
        }
        if total == 0 {
            return self.destroy(tx, t, features);
        }
        let stats = self.statistics(tx)?;
        for class in DdtClass::ALL {
            if t.objects[class.index()] != 0 {
                let v = Value::u64s(&t.histograms[class.index()].0);
                Zap::new(&stats).update(tx, &object_name(t.checksum, class), &v)?;
            }
        }
        Ok(())
    }

    fn sync_entry(
        &self,
        tx: &Tx,
        t: &mut Ddt,
        key: DdtKey,
        mut live: Live,
        now: u64,
        dead: &mut Vec<BlkPtr>,
    ) -> Result<()> {
        let deflate = |d: &Dva| self.zio.devices.deflate(d.vdev(), d.asize());
        // What the statistics say of the entry is what its ZAP holds.
        if let Some(class) = live.stored {
            let z = self.mos.hold(t.objects[class.index()])?;
            match Zap::new(&z).get_value(&key.0[..])? {
                Some(v) if live.counted => {
                    let old = unpack_entry(&v, t.flat)?;
                    t.histograms[class.index()].count(&old.figures(&key, deflate), false);
                }
                Some(_) => {}
                None => live.stored = None,
            }
        }
        let obsolete = match &mut live.entry {
            DdtEntry::Traditional(s) => s.first_mut(),
            DdtEntry::Flat { .. } => None,
        };
        if let Some(s) = obsolete.filter(|s| !s.birth.is_none()) {
            s.refcount = 0;
        }
        for s in live.entry.slots_mut() {
            if !s.birth.is_none() && s.refcount == 0 {
                dead.push(key.pointer(t.checksum, s));
                *s = DdtSlot::default();
            }
        }
        let references = live.entry.references();
        let class = DdtClass::of(references);
        if let Some(old) = live.stored.filter(|c| references == 0 || *c != class) {
            let z = self.mos.hold(t.objects[old.index()])?;
            Zap::new(&z).remove(tx, &key.0[..])?;
        }
        if references == 0 {
            return Ok(());
        }
        if let DdtEntry::Flat { class_start, .. } = &mut live.entry {
            if live.class != Some(class) {
                *class_start = now;
            }
        }
        let z = self.class_object(tx, t, class)?;
        Zap::new(&z).update(tx, &key.0[..], &pack_entry(&live.entry))?;
        t.histograms[class.index()].count(&live.entry.figures(&key, deflate), true);
        Ok(())
    }

    fn statistics(&self, tx: &Tx) -> Result<Arc<Dnode>> {
        let top = self.mos.hold(1)?;
        match Zap::new(&top).get(STATISTICS)? {
            Some(o) => self.mos.hold(o),
            None => {
                let dn = zap::create_object(&self.mos, tx, ObjType::DDT_STATS, 0)?;
                Zap::new(&top).add_u64(tx, STATISTICS, dn.object())?;
                Ok(dn)
            }
        }
    }

    /// The ZAP of a class, made if there is none.
    fn class_object(&self, tx: &Tx, t: &mut Ddt, class: DdtClass) -> Result<Arc<Dnode>> {
        let o = t.objects[class.index()];
        if o != 0 {
            return self.mos.hold(o);
        }
        let dn = self.mos.alloc(
            tx,
            &NewObject {
                obj_type: ObjType::DDT_ZAP,
                block_size: BLOCK,
                indblkshift: 15,
                ..NewObject::default()
            },
        )?;
        let mut flags = zap::flags::HASH64 | zap::flags::UINT64_KEY;
        if t.checksum != Checksum::EDONR {
            flags |= zap::flags::PRE_HASHED_KEY;
        }
        Zap::new(&dn).create_fat(tx, 0, flags)?;
        let dir = self.mos.hold(t.dir)?;
        Zap::new(&dir).add_u64(tx, &object_name(t.checksum, class), dn.object())?;
        t.objects[class.index()] = dn.object();
        t.histograms[class.index()] = DdtHistogram::default();
        Ok(dn)
    }

    /// The directory and the logs of a new table.
    fn create(&self, tx: &Tx, t: &mut Ddt, features: &dyn Features) -> Result<()> {
        if !t.flat {
            t.dir = 1;
            return Ok(());
        }
        let dir = zap::create_object(&self.mos, tx, ObjType::ZAP_METADATA, 0)?;
        Zap::new(&self.mos.hold(1)?).add_u64(tx, &dir_name(t.checksum), dir.object())?;
        let z = Zap::new(&dir);
        z.add_u64(tx, "version", VERSION_FDT)?;
        z.add_u64(tx, "flags", FLAG_FLAT | FLAG_LOG)?;
        for n in 0..2 {
            let phys = DdtLogPhys {
                flags: if n == 1 { LOG_FLUSHING } else { 0 },
                first_txg: tx.txg(),
                ..DdtLogPhys::default()
            };
            let dn = self.mos.alloc(
                tx,
                &NewObject {
                    obj_type: ObjType::U64_METADATA,
                    block_size: LOG_BLOCK,
                    bonus_type: ObjType::U64_METADATA,
                    bonus: phys.encode(),
                    ..NewObject::default()
                },
            )?;
            z.add_u64(tx, &log_name(t.checksum, n), dn.object())?;
            t.logs.push(Log {
                object: dn.object(),
                phys,
            });
        }
        t.dir = dir.object();
        features.activate(tx, FAST_DEDUP, 1)
    }

    /// Takes an empty table away.
    fn destroy(&self, tx: &Tx, t: &mut Ddt, features: &dyn Features) -> Result<()> {
        let top = self.mos.hold(1)?;
        let dir = self.mos.hold(t.dir)?;
        let stats = Zap::new(&top).get(STATISTICS)?;
        for class in DdtClass::ALL {
            let o = std::mem::take(&mut t.objects[class.index()]);
            t.histograms[class.index()] = DdtHistogram::default();
            if o == 0 {
                continue;
            }
            let name = object_name(t.checksum, class);
            self.mos.free(tx, o)?;
            Zap::new(&dir).remove(tx, &name)?;
            if let Some(s) = stats {
                Zap::new(&self.mos.hold(s)?).remove_if(tx, &name)?;
            }
        }
        if t.dir > 1 {
            for l in std::mem::take(&mut t.logs) {
                self.mos.free(tx, l.object)?;
            }
            self.mos.free(tx, t.dir)?;
            Zap::new(&top).remove(tx, &dir_name(t.checksum))?;
            features.activate(tx, FAST_DEDUP, -1)?;
        }
        t.dir = 0;
        t.flat = false;
        Ok(())
    }
}
