//! Space maps on disk: the metaslabs' own maps and the log space maps (pool format §16).
//!
//! Without feature `log_spacemap` every change goes to the metaslab's own map. With it a txg's
//! changes go to one log map; a metaslab's own map is brought up to date when it is its turn to be
//! flushed, and logs that no metaslab needs any more are destroyed.

use base::sync::MutexExt;
use base::{bail, Error, Result, Txg};
use disk::spacemap::{SpaceMapPhys, Writer, FULL_BONUS, SMALL_BONUS};
use disk::ObjType;
use dmu::{NewObject, Objset, Tx};
use space::{replay, MsChange, MsHint, Space, Unflushed};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use zap::Zap;

/// Block size of space maps with and without log space maps.
const BLOCK_LOG: usize = 128 << 10;
const BLOCK_PLAIN: usize = 16 << 10;
/// Of the maps of missing txgs.
const BLOCK_DTL: usize = 4096;
/// Indirect blocks of space maps are small: few maps have more than a block.
const INDIRECT_SHIFT: u8 = 14;
/// Bytes of a map or an array that are in memory at a time.
const PIECE: usize = 128 << 10;
/// Longest space map.
const MAP_MOST: u64 = 1 << 32;
/// Logs are kept at most about this many txgs.
const LOG_AGE: u64 = 64;
/// Pending ranges in memory that speed flushing up.
const PENDING_RANGES: usize = 200_000;

/// What the maps need of the pool's features.
pub trait MapFeatures {
    /// 320-byte bonus with histogram is used for new maps.
    fn histogram(&self) -> bool;
    /// Two-word entries may be written.
    fn v2(&self) -> bool;
    /// Changes go to log space maps.
    fn log(&self) -> bool;
    /// Number of 320-byte space maps changed by `delta`.
    fn count_histogram(&self, tx: &Tx, delta: i64) -> Result<()>;
    /// The first log map was made.
    fn activate_log(&self, tx: &Tx) -> Result<()>;
}

struct Ms {
    /// Space-map object, 0 = never written.
    object: u64,
    len: u64,
    alloc: i64,
    /// Log entries of this txg and later are not in the own map; 0 = no log entries.
    unflushed: Txg,
    pending: Unflushed,
}

/// What the space maps of a top-level vdev need to know of it.
#[derive(Clone, Copy, Debug)]
pub struct TopShape {
    /// Number of the vdev, as in a DVA.
    pub id: u64,
    /// Vdev ZAP, 0 = none.
    pub zap: u64,
    /// log2 of the sector size in bytes.
    pub ashift: u32,
    /// Metaslab m covers `[m << ms_shift, (m + 1) << ms_shift)`, trimmed to multiples of `align`.
    pub ms_shift: u32,
    /// Bytes; see [`vdev::Vdev::alloc_unit`].
    pub align: u64,
    /// Number of metaslabs.
    pub count: u64,
}

impl TopShape {
    /// What the vdev says of itself.
    pub fn of(top: &vdev::Vdev) -> TopShape {
        TopShape {
            id: top.id(),
            zap: top.get_u64(vdev::keys::ZAP_TOP).unwrap_or(0),
            ashift: top.ashift(),
            ms_shift: top.metaslab_shift(),
            align: top.alloc_unit(),
            count: top.metaslab_count(),
        }
    }
}

struct Top {
    /// Object of the metaslab array.
    array: u64,
    ashift: u32,
    ms_shift: u32,
    align: u64,
    /// Object with the unflushed txgs, 0 = none yet.
    unflushed_object: u64,
    /// Vdev ZAP of the top-level vdev, 0 = none.
    zap: u64,
    ms: Vec<Ms>,
}

impl Top {
    /// Start and end of metaslab `m`, bytes; its own space map counts from the start.
    fn bounds(&self, m: u64) -> (u64, u64) {
        let start = base::roundup(m << self.ms_shift, self.align);
        (start, ((m + 1) << self.ms_shift) / self.align * self.align)
    }
}

struct Log {
    object: u64,
    len: u64,
    alloc: i64,
}

#[derive(Default)]
struct Inner {
    tops: BTreeMap<u64, Top>,
    logs: BTreeMap<Txg, Log>,
    /// ZAP of the logs, 0 = none yet.
    log_zap: u64,
}

impl Inner {
    /// Adds some whole blocks of the log of `txg` to what is pending for the metaslabs. `oldest`: by vdev the first txg from which
    /// on it needs logs.
    fn take_in(&mut self, txg: Txg, oldest: &BTreeMap<u64, Txg>, blocks: &[u8]) -> Result<()> {
        for op in replay::log_ops(blocks) {
            let (vdev, op) = op?;
            let Some(top) = self.tops.get_mut(&vdev) else {
                continue;
            };
            // Nothing of this vdev is older; what is may name a former vdev of the same number, of another size.
            if oldest.get(&vdev).is_none_or(|oldest| txg < *oldest) {
                continue;
            }
            let m = (op.offset >> top.ms_shift) as usize;
            let Some(ms) = top.ms.get_mut(m) else {
                bail!(
                    Damaged,
                    "log space map of group {txg}: entry outside of vdev {vdev}"
                );
            };
            if !ms.unflushed.is_none() && txg >= ms.unflushed {
                ms.pending.add(op)?;
            }
        }
        Ok(())
    }
}

/// All space maps of a pool.
pub struct SpaceMaps {
    mos: Arc<Objset>,
    inner: Mutex<Inner>,
}

fn read_map(mos: &Objset, object: u64) -> Result<(SpaceMapPhys, bool)> {
    let dn = mos.hold(object)?;
    let b = dn.bonus();
    Ok((SpaceMapPhys::decode(&b)?, b.len() >= FULL_BONUS))
}

/// Makes an object for a space map of `block_size` bytes a block, and counts it if its header has a histogram. The
/// header is zeros.
pub(crate) fn new_object(
    mos: &Objset,
    tx: &Tx,
    f: &dyn MapFeatures,
    block_size: usize,
) -> Result<u64> {
    let header = match f.histogram() {
        true => FULL_BONUS,
        false => SMALL_BONUS,
    };
    let new = NewObject {
        obj_type: ObjType::SPACE_MAP,
        block_size,
        indblkshift: INDIRECT_SHIFT,
        bonus_type: ObjType::SPACE_MAP_HEADER,
        bonus: vec![0; header],
        ..NewObject::default()
    };
    let dn = mos.alloc(tx, &new)?;
    if f.histogram() {
        f.count_histogram(tx, 1)?;
    }
    Ok(dn.object())
}

/// Hands on the first `len` bytes of a space map object, some whole blocks at a time. Memory: 128 KiB, or one block where
/// blocks are larger.
///
/// # Errors
/// `Damaged`: the object is too short, or a block of it is a hole; those of reading it, and of `f`.
pub fn map_pieces(
    mos: &Objset,
    object: u64,
    len: u64,
    f: &mut dyn FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    let dn = mos.hold(object)?;
    let i = dn.info();
    let room = i
        .max_blkid
        .saturating_add(1)
        .saturating_mul(i.block_size as u64);
    if len > room.min(MAP_MOST) {
        bail!(Damaged, "space map {object} claims {len} bytes");
    }
    let piece = (PIECE / i.block_size).max(1) * i.block_size;
    let mut buf = vec![0; piece.min(len as usize)];
    let mut at = 0;
    while at < len {
        let n = buf.len().min((len - at) as usize);
        let b = &mut buf[..n];
        dn.read(at, b)?;
        // Two words of zeros would allocate the first unit twice. So a map has no hole, and nobody makes it long with some.
        let hole = |b: &[u8]| b.len() > 8 && b.iter().all(|x| *x == 0);
        if b.chunks(i.block_size).any(hole) {
            bail!(Damaged, "space map {object} has a hole in its {len} bytes");
        }
        f(b)?;
        at += n as u64;
    }
    Ok(())
}

/// Calls `f` with the first `count` words of an array in object `object` and their numbers. Memory: 128 KiB.
fn array_words(mos: &Objset, object: u64, count: u64, f: &mut dyn FnMut(usize, u64)) -> Result<()> {
    let dn = mos.hold(object)?;
    let mut buf = vec![0; PIECE.min(count as usize * 8)];
    let mut at = 0;
    while at < count * 8 {
        let n = buf.len().min((count * 8 - at) as usize);
        dn.read(at, &mut buf[..n])?;
        for (i, w) in disk::bytes::u64s(&buf[..n]).into_iter().enumerate() {
            f(at as usize / 8 + i, w);
        }
        at += n as u64;
    }
    Ok(())
}

impl SpaceMaps {
    /// No vdev is known yet.
    pub fn new(mos: Arc<Objset>) -> SpaceMaps {
        SpaceMaps {
            mos,
            inner: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.acquire()
    }

    /// A new top-level vdev: makes its metaslab array (and, with logs, the object of unflushed
    /// txgs). Returns the array's object number.
    pub fn create_top(&self, tx: &Tx, f: &dyn MapFeatures, shape: TopShape) -> Result<u64> {
        let TopShape { id, count, .. } = shape;
        let dn = self.mos.alloc(
            tx,
            &NewObject {
                obj_type: ObjType::OBJECT_ARRAY,
                block_size: 4096.max(base::roundup(count * 8, 512).min(16384) as usize),
                ..NewObject::default()
            },
        )?;
        let top = Top {
            array: dn.object(),
            ashift: shape.ashift,
            ms_shift: shape.ms_shift,
            align: shape.align.max(1),
            unflushed_object: 0,
            zap: shape.zap,
            ms: (0..count).map(|_| Ms::none()).collect(),
        };
        let array = top.array;
        self.lock().tops.insert(id, top);
        if f.log() {
            self.ensure_unflushed(tx, id)?;
        }
        Ok(array)
    }

    fn ensure_unflushed(&self, tx: &Tx, id: u64) -> Result<()> {
        let mut inner = self.lock();
        let Some(top) = inner.tops.get_mut(&id) else {
            bail!(Damaged, "no vdev {id}")
        };
        if top.unflushed_object == 0 {
            if top.zap == 0 {
                bail!(
                    Damaged,
                    "vdev {id} has no vdev ZAP, which log_spacemap needs"
                );
            }
            let dn = self.mos.alloc(
                tx,
                &NewObject {
                    obj_type: ObjType::U64_METADATA,
                    block_size: BLOCK_LOG,
                    ..NewObject::default()
                },
            )?;
            // One value per metaslab, all zero: make the first block real so that it has a size.
            dn.write(tx, 0, &vec![0; 8 * top.ms.len().max(1)])?;
            let zdn = self.mos.hold(top.zap)?;
            Zap::new(&zdn).update_u64(tx, disk::mos_keys::UNFLUSHED_TXGS, dn.object())?;
            top.unflushed_object = dn.object();
        }
        Ok(())
    }

    /// Reads the state of a top-level vdev's metaslabs (not the maps themselves).
    pub fn open_top(&self, array: u64, shape: TopShape) -> Result<()> {
        let TopShape { id, zap, count, .. } = shape;
        let mut top = Top {
            array,
            ashift: shape.ashift,
            ms_shift: shape.ms_shift,
            align: shape.align.max(1),
            unflushed_object: 0,
            zap,
            ms: Vec::new(),
        };
        if count > vdev::size::MOST_METASLABS {
            let (size, most) = (shape.ms_shift, vdev::size::MOST_METASLABS);
            bail!(
                Damaged,
                "vdev {id} has {count} metaslabs of 2^{size} bytes, more than {most}"
            );
        }
        top.ms.resize_with(count as usize, Ms::none);
        if array != 0 {
            array_words(&self.mos, array, count, &mut |m, object| {
                top.ms[m].object = object;
            })?;
        }
        if zap != 0 {
            let zdn = self.mos.hold(zap)?;
            if let Some(o) = Zap::new(&zdn).get(disk::mos_keys::UNFLUSHED_TXGS)? {
                top.unflushed_object = o;
                array_words(&self.mos, o, count, &mut |m, txg| {
                    top.ms[m].unflushed = Txg::new(txg);
                })?;
            }
        }
        for ms in top.ms.iter_mut().filter(|ms| ms.object != 0) {
            base::cancel::check()?;
            let (p, _) = read_map(&self.mos, ms.object)?;
            (ms.len, ms.alloc) = (p.length, p.alloc);
        }
        self.lock().tops.insert(id, top);
        Ok(())
    }

    /// Replays the log space maps on top of what [`SpaceMaps::open_top`] read.
    pub fn open_logs(&self, log_zap: u64) -> Result<()> {
        let zdn = self.mos.hold(log_zap)?;
        let mut logs = BTreeMap::new();
        for e in Zap::new(&zdn).iter() {
            let e = e?;
            let txg = Txg::new(zap::parse_hex_key(&e.name)?);
            logs.insert(txg, e.value.to_u64()?);
        }
        let mut inner = self.lock();
        inner.log_zap = log_zap;
        let unflushed = |top: &Top| {
            top.ms
                .iter()
                .map(|m| m.unflushed)
                .filter(|t| !t.is_none())
                .min()
        };
        let oldest: BTreeMap<u64, Txg> = inner
            .tops
            .iter()
            .filter_map(|(id, top)| Some((*id, unflushed(top)?)))
            .collect();
        for (txg, object) in logs {
            let (p, _) = read_map(&self.mos, object)?;
            inner.logs.insert(
                txg,
                Log {
                    object,
                    len: p.length,
                    alloc: p.alloc,
                },
            );
            map_pieces(&self.mos, object, p.length, &mut |piece| {
                base::cancel::check()?;
                inner.take_in(txg, &oldest, piece)
            })?;
        }
        for (id, top) in &inner.tops {
            for (m, ms) in top.ms.iter().enumerate() {
                if !ms.unflushed.is_none() && !inner.logs.contains_key(&ms.unflushed) {
                    bail!(
                        Damaged,
                        "metaslab {m} of vdev {id} needs the log of group {}, which is missing",
                        ms.unflushed
                    );
                }
            }
        }
        Ok(())
    }

    /// Tells the allocator what is known without reading the maps.
    pub fn give_hints(&self, space: &Space) -> Result<()> {
        let inner = self.lock();
        for (id, top) in &inner.tops {
            for (m, ms) in top.ms.iter().enumerate() {
                if ms.object == 0 && ms.pending.is_empty() {
                    continue;
                }
                base::cancel::check()?;
                let mut hint = MsHint {
                    allocated: u64::try_from(ms.alloc + ms.pending.net()).map_err(|_| {
                        Error::damaged(format!("metaslab {m} of vdev {id}: negative space"))
                    })?,
                    histogram: None,
                };
                if ms.object != 0 {
                    hint.histogram = read_map(&self.mos, ms.object)?.0.histogram.map(|h| *h);
                }
                space.set_hint(*id, m as u64, hint)?;
            }
        }
        Ok(())
    }

    /// Free ranges of a metaslab as of everything written so far.
    pub fn load(&self, vdev: u64, ms: u64) -> Result<base::RangeSet> {
        let (object, len, pending, start, end, shift) = {
            let inner = self.lock();
            let Some(top) = inner.tops.get(&vdev) else {
                bail!(Damaged, "no vdev {vdev}")
            };
            let Some(m) = top.ms.get(ms as usize) else {
                bail!(Damaged, "no metaslab {ms} on vdev {vdev}")
            };
            let (start, end) = top.bounds(ms);
            (m.object, m.len, m.pending.clone(), start, end, top.ashift)
        };
        let mut free = base::RangeSet::new();
        free.insert(start, end);
        if object != 0 {
            map_pieces(&self.mos, object, len, &mut |piece| {
                replay::map_ops(piece, shift, start)
                    .try_for_each(|op| replay::apply(&mut free, start, end, op?))
            })?;
        }
        pending.apply_to(&mut free, start, end)?;
        Ok(free)
    }

    fn new_map(&self, tx: &Tx, f: &dyn MapFeatures) -> Result<u64> {
        self.new_map_of(tx, f, if f.log() { BLOCK_LOG } else { BLOCK_PLAIN })
    }

    fn new_map_of(&self, tx: &Tx, f: &dyn MapFeatures, block_size: usize) -> Result<u64> {
        let object = new_object(&self.mos, tx, f, block_size)?;
        self.put_header(tx, object, 0, 0, None)?;
        Ok(object)
    }

    /// Begins the log of the txg, unless it has one.
    fn begin_log(&self, tx: &Tx, f: &dyn MapFeatures, inner: &mut Inner) -> Result<()> {
        let txg = tx.txg();
        if inner.logs.contains_key(&txg) {
            return Ok(());
        }
        let object = self.new_map(tx, f)?;
        let zdn = self.mos.hold(inner.log_zap)?;
        Zap::new(&zdn).add_int_key(tx, txg.number(), object)?;
        let log = Log {
            object,
            len: 0,
            alloc: 0,
        };
        inner.logs.insert(txg, log);
        Ok(())
    }

    pub(crate) fn free_map(&self, tx: &Tx, f: &dyn MapFeatures, object: u64) -> Result<()> {
        if self.mos.hold(object)?.bonus().len() >= FULL_BONUS {
            f.count_histogram(tx, -1)?;
        }
        self.mos.free(tx, object)
    }

    fn put_header(
        &self,
        tx: &Tx,
        object: u64,
        length: u64,
        alloc: i64,
        histogram: Option<[u64; 32]>,
    ) -> Result<()> {
        let dn = self.mos.hold(object)?;
        let full = dn.bonus().len() >= FULL_BONUS;
        let p = SpaceMapPhys {
            object,
            length,
            alloc,
            histogram: full.then(|| Box::new(histogram.unwrap_or([0; 32]))),
        };
        let new = p.encode();
        if dn.bonus() != new {
            dn.set_bonus(tx, &new)?;
        }
        Ok(())
    }

    fn append(&self, tx: &Tx, object: u64, at: u64, bytes: &[u8]) -> Result<()> {
        base::mutation::panic_point("appending to a space map");
        self.mos.hold(object)?.write(tx, at, bytes)
    }

    /// Gives metaslab `m` a map object if it has none.
    fn ensure_map(&self, tx: &Tx, f: &dyn MapFeatures, top: &mut Top, m: u64) -> Result<()> {
        if top.ms[m as usize].object == 0 {
            let o = self.new_map(tx, f)?;
            top.ms[m as usize].object = o;
            self.mos
                .hold(top.array)?
                .write(tx, m * 8, &o.to_le_bytes())?;
        }
        Ok(())
    }

    /// Records the changes of one sync pass.
    pub fn write(
        &self,
        tx: &Tx,
        f: &dyn MapFeatures,
        space: &Space,
        changes: &[MsChange],
        pass: u32,
    ) -> Result<()> {
        if changes.is_empty() {
            return Ok(());
        }
        if f.log() {
            self.write_log(tx, f, changes, pass)
        } else {
            self.write_plain(tx, f, space, changes, pass)
        }
    }

    fn write_log(
        &self,
        tx: &Tx,
        f: &dyn MapFeatures,
        changes: &[MsChange],
        pass: u32,
    ) -> Result<()> {
        let txg = tx.txg();
        for c in changes {
            self.ensure_unflushed(tx, c.vdev)?;
        }
        let mut inner = self.lock();
        if inner.log_zap == 0 {
            let o = zap::create_object(&self.mos, tx, ObjType::ZAP_METADATA, 0)?.object();
            let dir = self.mos.hold(1)?;
            Zap::new(&dir).add_u64(tx, disk::mos_keys::LOG_SPACEMAP_ZAP, o)?;
            f.activate_log(tx)?;
            inner.log_zap = o;
        }
        self.begin_log(tx, f, &mut inner)?;
        for c in changes {
            let Some(top) = inner.tops.get_mut(&c.vdev) else {
                bail!(Damaged, "no vdev {}", c.vdev)
            };
            self.ensure_map(tx, f, top, c.ms)?;
            let unflushed_object = top.unflushed_object;
            let ms = &mut top.ms[c.ms as usize];
            if ms.unflushed.is_none() {
                ms.unflushed = txg;
                self.mos.hold(unflushed_object)?.write(
                    tx,
                    c.ms * 8,
                    &txg.number().to_le_bytes(),
                )?;
            }
            for (free, set) in [(false, &c.allocs), (true, &c.frees)] {
                for (s, e) in set.iter() {
                    ms.pending.add(space::SmOp {
                        free,
                        offset: s,
                        len: e - s,
                    })?;
                }
            }
        }
        let Some(log) = inner.logs.get_mut(&txg) else {
            bail!(Damaged, "log of {txg} lost")
        };
        let mut w = Writer::new(BLOCK_LOG, log.len, true);
        replay::write_log(&mut w, changes, pass as u64, txg)?;
        let bytes = w.finish();
        self.append(tx, log.object, log.len, &bytes)?;
        log.len += bytes.len() as u64;
        for c in changes {
            log.alloc += c.allocs.total() as i64 - c.frees.total() as i64;
        }
        self.put_header(tx, log.object, log.len, log.alloc, None)
    }

    fn write_plain(
        &self,
        tx: &Tx,
        f: &dyn MapFeatures,
        space: &Space,
        changes: &[MsChange],
        pass: u32,
    ) -> Result<()> {
        for c in changes {
            let free = self.to_condense(space, c.vdev, c.ms, pass)?;
            let mut inner = self.lock();
            let Some(top) = inner.tops.get_mut(&c.vdev) else {
                bail!(Damaged, "no vdev {}", c.vdev)
            };
            self.ensure_map(tx, f, top, c.ms)?;
            let change = (&c.allocs, &c.frees);
            self.append_own(tx, f, space, top, c.vdev, c.ms, change, free, pass)?;
        }
        Ok(())
    }

    /// The free ranges of a metaslab whose map may be worth condensing. A condensed map is written
    /// once per txg, in the first pass, when everything recorded so far is what the allocator
    /// calls recorded. The metaslab may have to be loaded for it, which takes the lock: it must not
    /// be held.
    fn to_condense(
        &self,
        space: &Space,
        vdev: u64,
        m: u64,
        pass: u32,
    ) -> Result<Option<base::RangeSet>> {
        let (object, len) = {
            let inner = self.lock();
            match inner.tops.get(&vdev).and_then(|t| t.ms.get(m as usize)) {
                Some(ms) => (ms.object, ms.len),
                None => bail!(Damaged, "no metaslab {m} on vdev {vdev}"),
            }
        };
        if pass != 1 || object == 0 {
            return Ok(None);
        }
        let block_size = self.mos.hold(object)?.info().block_size as u64;
        if len <= 4 * block_size {
            return Ok(None);
        }
        space.free_ranges(vdev, m).map(Some)
    }

    /// Appends to (or condenses) a metaslab's own map.
    fn append_own(
        &self,
        tx: &Tx,
        f: &dyn MapFeatures,
        space: &Space,
        top: &mut Top,
        vdev: u64,
        m: u64,
        (allocs, frees): (&base::RangeSet, &base::RangeSet),
        free: Option<base::RangeSet>,
        pass: u32,
    ) -> Result<()> {
        let shift = top.ashift;
        let (start, end) = top.bounds(m);
        let ms = &mut top.ms[m as usize];
        let block_size = self.mos.hold(ms.object)?.info().block_size;
        ms.alloc += allocs.total() as i64 - frees.total() as i64;
        match free {
            Some(free) if replay::should_condense(ms.len, block_size as u64, &free) => {
                self.mos.hold(ms.object)?.free_range(tx, 0, u64::MAX)?;
                let mut w = Writer::new(block_size, 0, f.v2());
                replay::write_condensed(&mut w, (start, end), &free, shift, pass as u64, tx.txg())?;
                let bytes = w.finish();
                self.append(tx, ms.object, 0, &bytes)?;
                ms.len = bytes.len() as u64;
            }
            _ => {
                let mut w = Writer::new(block_size, ms.len, f.v2());
                replay::write_map(&mut w, (allocs, frees), start, shift, pass as u64, tx.txg())?;
                let bytes = w.finish();
                self.append(tx, ms.object, ms.len, &bytes)?;
                ms.len += bytes.len() as u64;
            }
        }
        self.put_header(
            tx,
            ms.object,
            ms.len,
            ms.alloc,
            Some(space.histogram(vdev, m)?),
        )
    }

    /// In the first pass, before any change of this txg is recorded: brings the metaslabs that
    /// waited longest up to date and destroys logs nobody needs. `all` flushes every metaslab.
    pub fn flush(&self, tx: &Tx, f: &dyn MapFeatures, space: &Space, all: bool) -> Result<()> {
        if !f.log() {
            return Ok(());
        }
        let txg = tx.txg();
        let mut inner = self.lock();
        let mut waiting: Vec<(Txg, u64, u64)> = Vec::new();
        let mut ranges = 0;
        for (id, top) in &inner.tops {
            for (m, ms) in top.ms.iter().enumerate() {
                if !ms.unflushed.is_none() && ms.unflushed < txg {
                    waiting.push((ms.unflushed, *id, m as u64));
                    ranges += ms.pending.allocs.len() + ms.pending.frees.len();
                }
            }
        }
        waiting.sort_unstable();
        let mut n = waiting.len().div_ceil(LOG_AGE as usize);
        if ranges > PENDING_RANGES {
            n = n.max(waiting.len() / 4 + 1);
        }
        if inner.logs.len() as u64 > 2 * LOG_AGE {
            n = n.max(waiting.len() / 8 + 1);
        }
        if all {
            n = waiting.len();
        }
        for (_, id, m) in waiting.into_iter().take(n) {
            drop(inner);
            let free = self.to_condense(space, id, m, 1)?;
            inner = self.lock();
            let Some(top) = inner.tops.get_mut(&id) else {
                continue;
            };
            let pending = std::mem::take(&mut top.ms[m as usize].pending);
            let change = (&pending.allocs, &pending.frees);
            self.append_own(tx, f, space, top, id, m, change, free, 1)?;
            top.ms[m as usize].unflushed = txg;
            let o = top.unflushed_object;
            self.mos
                .hold(o)?
                .write(tx, m * 8, &txg.number().to_le_bytes())?;
        }
        if n > 0 {
            // A metaslab may only name a log that exists.
            self.begin_log(tx, f, &mut inner)?;
        }
        let oldest = inner
            .tops
            .values()
            .flat_map(|t| t.ms.iter())
            .filter(|ms| !ms.unflushed.is_none())
            .map(|ms| ms.unflushed)
            .min()
            .unwrap_or(txg);
        let dead: Vec<Txg> = inner.logs.range(..oldest).map(|(t, _)| *t).collect();
        for t in dead {
            if let Some(log) = inner.logs.remove(&t) {
                let zdn = self.mos.hold(inner.log_zap)?;
                Zap::new(&zdn).remove(tx, zap::hex_key(t.number()).as_str())?;
                self.free_map(tx, f, log.object)?;
            }
        }
        Ok(())
    }

    /// Writes a leaf's set of missing txgs as a space map; returns the object (made if 0).
    pub fn write_dtl(
        &self,
        tx: &Tx,
        f: &dyn MapFeatures,
        object: u64,
        ranges: &base::RangeSet,
    ) -> Result<u64> {
        let object = match object {
            0 => new_object(&self.mos, tx, f, BLOCK_DTL)?,
            object => object,
        };
        let dn = self.mos.hold(object)?;
        dn.free_range(tx, 0, u64::MAX)?;
        let mut w = Writer::new(dn.info().block_size, 0, f.v2());
        for (s, e) in ranges.iter() {
            w.range(false, s, e - s, None)?;
        }
        let bytes = w.finish();
        dn.write(tx, 0, &bytes)?;
        self.put_header(tx, object, bytes.len() as u64, ranges.total() as i64, None)?;
        Ok(object)
    }

    /// Top-level vdev `id` has `count` metaslabs from now on, more than before.
    pub fn grow_top(&self, tx: &Tx, id: u64, count: u64) -> Result<()> {
        let mut inner = self.lock();
        let Some(top) = inner.tops.get_mut(&id) else {
            bail!(Damaged, "no vdev {id}")
        };
        let had = top.ms.len();
        let more = (count as usize).saturating_sub(had);
        top.ms.resize_with(had + more, Ms::none);
        for object in [top.array, top.unflushed_object] {
            if object != 0 {
                let dn = self.mos.hold(object)?;
                dn.write(tx, had as u64 * 8, &vec![0; 8 * more])?;
            }
        }
        Ok(())
    }

    /// Frees everything there is of the metaslabs of top-level vdev `id`, on which nothing is allocated. Entries about it in
    /// the logs are passed over from now on. Before another vdev gets the number the logs must be flushed: OpenZFS looks up
    /// the metaslab of each entry in the vdev that has the number when it imports.
    pub fn remove_top(&self, tx: &Tx, f: &dyn MapFeatures, id: u64) -> Result<()> {
        let Some(top) = self.lock().tops.remove(&id) else {
            return Ok(());
        };
        for ms in top.ms.iter().filter(|ms| ms.object != 0) {
            self.free_map(tx, f, ms.object)?;
        }
        for object in [top.array, top.unflushed_object] {
            if object != 0 {
                self.mos.free(tx, object)?;
            }
        }
        Ok(())
    }

    /// Makes the map of what is obsolete on a removed vdev: always large blocks, unit one byte.
    pub fn create_obsolete(&self, tx: &Tx, f: &dyn MapFeatures) -> Result<u64> {
        self.new_map_of(tx, f, BLOCK_LOG)
    }

    /// Adds ranges to it.
    pub fn append_obsolete(
        &self,
        tx: &Tx,
        f: &dyn MapFeatures,
        object: u64,
        ranges: &base::RangeSet,
    ) -> Result<()> {
        let (p, _) = read_map(&self.mos, object)?;
        let mut w = Writer::new(self.mos.hold(object)?.info().block_size, p.length, f.v2());
        for (s, e) in ranges.iter() {
            w.range(false, s, e - s, None)?;
        }
        let bytes = w.finish();
        self.append(tx, object, p.length, &bytes)?;
        let len = p.length + bytes.len() as u64;
        let alloc = p.alloc + ranges.total() as i64;
        let histogram = p.histogram.map(|h| *h);
        self.put_header(tx, object, len, alloc, histogram)
    }

    /// Bytes in the map of what is obsolete on a removed vdev, and the bytes of the map.
    pub(crate) fn obsolete_size(&self, object: u64) -> Result<(u64, u64)> {
        let (p, _) = read_map(&self.mos, object)?;
        Ok((p.alloc.max(0) as u64, p.length))
    }

    /// Reads a leaf's set of missing txgs, or the set of what is obsolete on a removed vdev.
    pub fn read_dtl(&self, object: u64) -> Result<base::RangeSet> {
        let (p, _) = read_map(&self.mos, object)?;
        let mut out = base::RangeSet::new();
        map_pieces(&self.mos, object, p.length, &mut |piece| {
            base::cancel::check()?;
            for op in replay::map_ops(piece, 0, 0) {
                let op = op?;
                let end = op.offset.saturating_add(op.len);
                if op.free {
                    out.remove(op.offset, end);
                } else {
                    out.insert(op.offset, end);
                }
            }
            Ok(())
        })?;
        Ok(out)
    }

    /// Number of log maps on disk.
    pub fn logs(&self) -> usize {
        self.lock().logs.len()
    }
}

impl Ms {
    fn none() -> Ms {
        Ms {
            object: 0,
            len: 0,
            alloc: 0,
            unflushed: Txg::NONE,
            pending: Unflushed::default(),
        }
    }
}
