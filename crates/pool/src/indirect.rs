//! Removed vdevs: loading and updating the mappings to where their blocks are (pool format §23).

use crate::regions::Live;
use crate::removal_record::RemovingPhys;
use crate::{MapFeatures, Pool};
use base::mutation::{mutated, Mutation};
use base::sync::MutexExt;
use base::{bail, Error, RangeSet, Result, Txg};
use disk::mos_keys::{EXPAND_COPIED, EXPAND_END, EXPAND_START, EXPAND_STATE};
use disk::scan::ScanState;
use disk::BlkPtr;
use dmu::{Objset, Tx};
use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use vdev::{indirect, keys, IndirectMap, Piece, Vdev, VdevKind, VdevTree};
use zap::Zap;

/// Feature that counts obsolete space maps among other things.
const OBSOLETE_COUNTS: &str = disk::feature::guid::OBSOLETE_COUNTS;
/// Entry of the ZAP of a removed vdev: its obsolete space map.
const OBSOLETE_MAP: &str = disk::mos_keys::OBSOLETE_SPACEMAP;

/// Reads whole entries of `size` bytes of an object, as many as its bonus counts in word `word`, and
/// hands them on in portions.
fn entries(
    mos: &Arc<Objset>,
    object: u64,
    word: usize,
    size: usize,
    f: &mut dyn FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    let dn = mos.hold(object)?;
    let bonus = dn.bonus();
    let count = bonus
        .get(word * 8..word * 8 + 8)
        .and_then(|b| b.try_into().ok())
        .map(u64::from_le_bytes)
        .ok_or_else(|| Error::damaged("too short a header"))?;
    let i = dn.info();
    let room = i
        .max_blkid
        .saturating_add(1)
        .saturating_mul(i.block_size as u64);
    let total = count.checked_mul(size as u64).filter(|t| *t <= room);
    let Some(total) = total else {
        bail!(Damaged, "{count} entries in {room} bytes");
    };
    // Whoever takes the entries refuses empty ones, so holes cannot make this long.
    let mut buf = vec![0; size * 4096];
    let mut at = 0;
    while at < total {
        base::cancel::check()?;
        let n = buf.len().min((total - at) as usize);
        dn.read(at, &mut buf[..n])?;
        f(&buf[..n])?;
        at += n as u64;
    }
    Ok(())
}

/// Adds the entries of a mapping object to a mapping.
pub(crate) fn read_ranges(mos: &Arc<Objset>, object: u64, map: &mut IndirectMap) -> Result<()> {
    // max_offset, bytes_mapped, number of entries.
    entries(mos, object, 2, indirect::ENTRY, &mut |b| map.add_ranges(b))
}

pub(crate) fn read_map(mos: &Arc<Objset>, top: &Vdev) -> Result<IndirectMap> {
    let need = |key: &str| match top.get_u64(key) {
        Some(o) if o != 0 => Ok(o),
        _ => Err(Error::damaged(format!("no object {key}"))),
    };
    let mut map = IndirectMap::default();
    read_ranges(mos, need(keys::INDIRECT_OBJECT)?, &mut map)?;
    let object = need(keys::INDIRECT_BIRTHS)?;
    entries(mos, object, 0, indirect::BIRTH, &mut |b| map.add_births(b))?;
    Ok(map)
}

/// Loads the mappings of all removed vdevs, the newest first: those of older ones may lie on vdevs
/// that were removed later. Without them little of the MOS can be read.
pub(crate) fn load(mos: &Arc<Objset>, tree: &VdevTree) -> Result<()> {
    let tops = tree.tops();
    let removed = |t: &Arc<Vdev>| t.kind() == VdevKind::Indirect;
    if !tops.iter().any(removed) {
        return Ok(());
    }
    let Some(phys) = RemovingPhys::read(mos)? else {
        bail!(Damaged, "removed vdevs, and no state of their removal");
    };
    let mut seen = HashSet::new();
    let mut next = phys.prev_indirect;
    while let Some(id) = next {
        let top = tree.top(id)?;
        if !removed(&top) || !seen.insert(id) {
            bail!(Damaged, "the chain of removed vdevs is broken at {id}");
        }
        let map =
            read_map(mos, &top).map_err(|e| e.context(format!("mapping of removed vdev {id}")))?;
        top.set_indirect(Arc::new(map));
        next = top.get_u64(keys::PREV_INDIRECT).filter(|p| *p != u64::MAX);
    }
    Ok(())
}

/// Bytes up to which mappings are not worth being condensed.
const LEAST_CONDENSED: u64 = 128 << 10;

/// What is freed on removed vdevs: the space where it is now, and a note that nothing refers to the
/// old place any more. And what is freed on the vdev that is being removed, if there is one ([`crate::removal`]).
///
/// Lock order: `live` before `obsolete`, and before the locks of `space`.
pub struct Removed {
    tree: Arc<VdevTree>,
    /// The removal under way.
    live: Mutex<Option<Live>>,
    /// Numbers given to removals.
    numbers: AtomicU64,
    /// Places that became obsolete and are not in a map yet, by txg and vdev.
    obsolete: Mutex<BTreeMap<Txg, BTreeMap<u64, RangeSet>>>,
    /// A mapping may be worth being condensed: something became obsolete, or the pool was imported.
    pub(crate) worth_a_look: AtomicBool,
    /// Mappings of so many bytes or fewer are not condensed.
    pub(crate) least_condensed: AtomicU64,
}

impl Removed {
    /// No mapping is loaded yet.
    pub fn new(tree: Arc<VdevTree>) -> Removed {
        Removed {
            tree,
            live: Mutex::default(),
            numbers: AtomicU64::new(0),
            obsolete: Mutex::default(),
            worth_a_look: AtomicBool::new(true),
            least_condensed: AtomicU64::new(LEAST_CONDENSED),
        }
    }

    /// The removal under way, locked.
    pub(crate) fn live(&self) -> MutexGuard<'_, Option<Live>> {
        self.live.acquire()
    }

    /// A piece of a block was mended. If its vdev is being removed: the copies there are of it, and where in it they begin.
    pub(crate) fn mended(&self, p: &Piece) -> Vec<(Piece, usize)> {
        match self.live().as_mut().filter(|l| l.vdev == p.vdev) {
            Some(l) => {
                l.mended += 1;
                l.copies(p.offset, p.len as u64)
            }
            None => Vec::new(),
        }
    }

    /// The txgs in which removals that have ended copied something to top-level vdev `id`. Pointers to that are older, so a scan finds it
    /// only if it visits blocks of every txg.
    pub(crate) fn copied_to(&self, id: u64) -> RangeSet {
        if mutated(Mutation::ResilverForgetsCopies) {
            return RangeSet::new();
        }
        let tops = self.tree.tops();
        let maps = tops.iter().filter_map(|t| t.indirect());
        union(maps.map(|map| map.copied_to(id)))
    }

    /// The same of the removal under way. No pointer leads to these copies, so no scan finds them.
    pub(crate) fn copying_to(&self, id: u64) -> RangeSet {
        let live = self.live();
        match live.as_ref() {
            Some(l) if !mutated(Mutation::ResilverForgetsCopies) => l.copied_in(id),
            _ => RangeSet::new(),
        }
    }

    /// A number that no removal had yet.
    pub(crate) fn number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    fn pieces(
        &self,
        vdev: u64,
        offset: u64,
        asize: u64,
        passed: &mut dyn FnMut(u64, u64, u64),
    ) -> Result<Vec<Piece>> {
        let whole = Piece {
            vdev,
            offset,
            len: asize as usize,
            birth: Txg::NONE,
        };
        if asize == 0 || asize > 1 << 32 {
            bail!(Damaged, "range of {asize} bytes on vdev {vdev}");
        }
        self.tree.locate(whole, passed)
    }

    /// Calls `f` with every place (vdev, offset, bytes) a range is at now.
    pub fn places(
        &self,
        vdev: u64,
        offset: u64,
        asize: u64,
        f: &mut dyn FnMut(u64, u64, u64) -> Result<()>,
    ) -> Result<()> {
        if !self.tree.is_removed(vdev) {
            return f(vdev, offset, asize);
        }
        self.pieces(vdev, offset, asize, &mut |_, _, _| {})?
            .iter()
            .try_for_each(|p| f(p.vdev, p.offset, p.len as u64))
    }

    /// The same for a range that is freed in `txg`.
    pub fn free(
        &self,
        vdev: u64,
        offset: u64,
        asize: u64,
        txg: Txg,
        f: &mut dyn FnMut(u64, u64, u64) -> Result<()>,
    ) -> Result<()> {
        // Held over all of it: a vdev is concrete, being removed, or removed, and does not turn from one into the other meanwhile.
        let mut live = self.live();
        if !self.tree.is_removed(vdev) {
            return self.free_here(&mut live, (vdev, offset, asize), txg, f);
        }
        let mut passed = Vec::new();
        let pieces = self.pieces(vdev, offset, asize, &mut |v, o, n| passed.push((v, o, n)))?;
        for (v, o, n) in passed {
            self.mark(v, o, n, txg)?;
        }
        pieces
            .iter()
            .try_for_each(|p| self.free_here(&mut live, (p.vdev, p.offset, p.len as u64), txg, f))
    }

    /// The same of a vdev that has space maps, which may be the one that is being removed.
    fn free_here(
        &self,
        live: &mut Option<Live>,
        (vdev, offset, len): (u64, u64, u64),
        txg: Txg,
        f: &mut dyn FnMut(u64, u64, u64) -> Result<()>,
    ) -> Result<()> {
        f(vdev, offset, len)?;
        let Some(l) = live.as_mut().filter(|l| l.vdev == vdev) else {
            return Ok(());
        };
        match l.freed(offset, len, txg) {
            Some((offset, len)) => self.free_copy(l, offset, len, txg, f),
            None => Ok(()),
        }
    }

    /// Frees the copy of a range of the vdev that is being removed.
    pub(crate) fn free_copy(
        &self,
        l: &Live,
        offset: u64,
        len: u64,
        txg: Txg,
        f: &mut dyn FnMut(u64, u64, u64) -> Result<()>,
    ) -> Result<()> {
        self.mark(l.vdev, offset, len, txg)?;
        let pieces = l.map.resolve(offset, len as usize)?;
        pieces
            .iter()
            .try_for_each(|p| f(p.vdev, p.offset, p.len as u64))
    }

    /// A removal is cancelled: nothing of the vdev is obsolete.
    pub(crate) fn forget_obsolete(&self, vdev: u64) {
        for by_vdev in self.obsolete.acquire().values_mut() {
            by_vdev.remove(&vdev);
        }
    }

    /// Notes that nothing refers to a range of a removed vdev any more. `Damaged` if that was so
    /// already in this txg.
    fn mark(&self, vdev: u64, offset: u64, len: u64, txg: Txg) -> Result<()> {
        let mut all = self.obsolete.acquire();
        let set = all.entry(txg).or_default().entry(vdev).or_default();
        let end = offset.saturating_add(len);
        if set.overlaps(offset, end) {
            bail!(Damaged, "freed twice: {offset:#x} of removed vdev {vdev}");
        }
        set.insert(offset, end);
        Ok(())
    }

    /// Whether anything of the txgs up to `txg` has to be recorded.
    pub fn has_changes(&self, txg: Txg) -> bool {
        let all = self.obsolete.acquire();
        all.range(..=txg).next().is_some()
    }

    fn take(&self, txg: Txg) -> BTreeMap<u64, RangeSet> {
        let mut all = self.obsolete.acquire();
        let mut out: BTreeMap<u64, RangeSet> = BTreeMap::new();
        while let Some(e) = all.first_entry().filter(|e| *e.key() <= txg) {
            for (vdev, set) in e.remove() {
                let to = out.entry(vdev).or_default();
                for (s, e) in set.iter() {
                    to.insert(s, e);
                }
            }
        }
        out
    }
}

fn union(sets: impl Iterator<Item = RangeSet>) -> RangeSet {
    let mut out = RangeSet::new();
    for set in sets {
        for (start, end) in set.iter() {
            out.insert(start, end);
        }
    }
    out
}

impl Pool {
    /// Marks as obsolete the places on removed vdevs that `bp`, which is gone, referred to.
    pub(crate) fn mark_obsolete(&self, tx: &Tx, bp: &BlkPtr) -> Result<()> {
        for d in bp
            .dvas()
            .iter()
            .filter(|d| self.tree().is_removed(d.vdev()))
        {
            self.allocation
                .removed
                .mark(d.vdev(), d.offset(), d.asize(), tx.txg())?;
        }
        Ok(())
    }

    /// Records what became obsolete in this pass.
    pub(crate) fn write_obsolete(&self, tx: &Tx) -> Result<()> {
        for (vdev, ranges) in self.allocation.removed.take(tx.txg()) {
            if !self.config.features.is_enabled(OBSOLETE_COUNTS) {
                continue;
            }
            let top = self.tree().top(vdev)?;
            let Some(zap) = top.get_u64(keys::ZAP_TOP).filter(|o| *o != 0) else {
                bail!(Damaged, "removed vdev {vdev} has no vdev ZAP");
            };
            let dn = self.mos().hold(zap)?;
            let f: &dyn MapFeatures = &self.config;
            let object = match Zap::new(&dn).get(OBSOLETE_MAP)? {
                Some(o) => o,
                None => {
                    let o = self.allocation.maps.create_obsolete(tx, f)?;
                    Zap::new(&dn).add_u64(tx, OBSOLETE_MAP, o)?;
                    self.config.features.activate(tx, OBSOLETE_COUNTS, 1)?;
                    o
                }
            };
            self.allocation
                .maps
                .append_obsolete(tx, f, object, &ranges)?;
            self.allocation
                .removed
                .worth_a_look
                .store(true, Ordering::Relaxed);
        }
        Ok(())
    }
}

/// What the ZAP of a RAID-Z says of its last expansion (pool format §10).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expansion {
    /// Top-level vdev.
    pub vdev: u64,
    /// The record.
    pub state: ScanState,
    /// Seconds since 1970.
    pub start: u64,
    /// Seconds since 1970; 0 while it runs.
    pub end: u64,
    /// Bytes.
    pub copied: u64,
}

impl Pool {
    /// The newest removal of a top-level vdev, if there ever was one. Of one under way what is copied and not on disk yet counts.
    pub fn removal(&self) -> Result<Option<RemovingPhys>> {
        let copied = self
            .allocation
            .removed
            .live()
            .as_ref()
            .map(Live::copied_bytes);
        let phys = RemovingPhys::read(self.mos())?;
        Ok(phys.map(|p| match copied {
            Some(copied) if p.state == ScanState::Scanning => RemovingPhys { copied, ..p },
            _ => p,
        }))
    }

    /// From now on mappings of more than `bytes` bytes are condensed. For tests, whose mappings are small.
    pub fn set_least_condensed(&self, bytes: u64) {
        self.allocation
            .removed
            .least_condensed
            .store(bytes, Ordering::Relaxed);
    }

    /// The mapping on disk of a top-level vdev that was removed, or is being removed; `None` of others.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn mapping_of(&self, top: &Vdev) -> Result<Option<IndirectMap>> {
        match top.get_u64(keys::INDIRECT_OBJECT) {
            Some(o) if o != 0 => read_map(self.mos(), top).map(Some),
            _ => Ok(None),
        }
    }

    /// Bytes of the mappings of all removed vdevs, as they are on disk.
    pub fn mapping_bytes(&self) -> u64 {
        let tops = self.tree().tops();
        let maps = tops.iter().filter_map(|t| t.indirect());
        maps.map(|m| (m.ranges().len() * indirect::ENTRY) as u64)
            .sum()
    }

    /// The expansion under way, or the one that was begun last, if there ever was one. The clock may have been set back since.
    pub fn expansion(&self) -> Result<Option<Expansion>> {
        let mut last: Option<Expansion> = None;
        for t in self.tree().tops().iter() {
            let zap = t.get_u64(keys::ZAP_TOP).unwrap_or(0);
            if !matches!(t.kind(), VdevKind::Raidz { .. }) || zap == 0 {
                continue;
            }
            let dn = self.mos().hold(zap)?;
            let get = |key: &str| -> Result<u64> { Ok(Zap::new(&dn).get(key)?.unwrap_or(0)) };
            let e = Expansion {
                vdev: t.id(),
                state: ScanState::new(get(EXPAND_STATE)?),
                start: get(EXPAND_START)?,
                end: get(EXPAND_END)?,
                copied: get(EXPAND_COPIED)?,
            };
            let rank = |e: &Expansion| (e.state == ScanState::Scanning, e.start);
            if e.state != ScanState::None && last.is_none_or(|l| rank(&l) < rank(&e)) {
                last = Some(e);
            }
        }
        Ok(last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vdev::indirect::Moved;

    /// A tree of one plain vdev and two removed ones: 1 lies on 2 and 0, 2 lies on 0.
    fn tree(maps: [Vec<Moved>; 2]) -> Arc<VdevTree> {
        let top = |id: u64, ty: &str| {
            let mut n = disk::NvList::new();
            n.set("type", ty).set("id", id).set("guid", id + 10);
            n.set("ashift", 9u64).set("asize", 1u64 << 30);
            n
        };
        let kids = vec![top(0, "file"), top(1, "indirect"), top(2, "indirect")];
        let mut root = disk::NvList::new();
        root.set("type", "root").set("guid", 7u64);
        root.set("children", disk::Value::NvListArray(kids));
        let tree = VdevTree::from_config(env_linux::linux_env(), &root).unwrap();
        for (i, m) in maps.into_iter().enumerate() {
            let map = IndirectMap::new(m, vec![]).unwrap();
            tree.top(i as u64 + 1).unwrap().set_indirect(Arc::new(map));
        }
        Arc::new(tree)
    }

    fn moved(src: u64, size: u64, vdev: u64, dst: u64) -> Moved {
        Moved {
            src,
            size,
            vdev,
            dst,
        }
    }

    #[test]
    fn freeing_goes_through_every_mapping() {
        let tree = tree([
            vec![moved(0, 1024, 2, 4096), moved(1024, 1024, 0, 65536)],
            vec![moved(4096, 512, 0, 512), moved(4608, 1024, 0, 8192)],
        ]);
        let r = Removed::new(tree);
        let mut freed = Vec::new();
        let mut free = |vdev, offset, asize| {
            r.free(vdev, offset, asize, Txg::new(9), &mut |v, o, n| {
                freed.push((v, o, n));
                Ok(())
            })
        };
        free(0, 77 << 9, 512).unwrap();
        free(1, 512, 1024).unwrap();
        // The first half of it is gone.
        assert!(free(1, 512, 512).is_err());
        // Never mapped.
        assert!(free(1, 1 << 20, 512).is_err());
        assert!(free(2, 4096, 1 << 40).is_err());
        assert_eq!(freed, [(0, 77 << 9, 512), (0, 8192, 512), (0, 65536, 512)]);
        assert!(r.has_changes(Txg::new(9)) && !r.has_changes(Txg::new(8)));
        assert!(r.take(Txg::new(8)).is_empty());
        let list: Vec<(u64, Vec<(u64, u64)>)> = r
            .take(Txg::new(10))
            .iter()
            .map(|(v, s)| (*v, s.iter().collect()))
            .collect();
        assert_eq!(list, [(1, vec![(512, 1536)]), (2, vec![(4608, 5120)])]);
        assert!(!r.has_changes(Txg::MAX));
    }

    #[test]
    fn mappings_that_go_round_are_damage() {
        let r = Removed::new(tree([
            vec![moved(0, 1024, 2, 0)],
            vec![moved(0, 1024, 1, 0)],
        ]));
        let e = r.places(1, 0, 512, &mut |_, _, _| Ok(())).unwrap_err();
        assert_eq!(e.kind, base::Kind::Damaged);
        assert!(r
            .free(2, 0, 512, Txg::new(1), &mut |_, _, _| Ok(()))
            .is_err());
    }
}
