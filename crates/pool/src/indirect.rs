//! Removed vdevs: loading and updating the mappings to where their blocks are (pool format §23).

use crate::{MapFeatures, Pool};
use base::sync::MutexExt;
use base::{bail, Error, RangeSet, Result, Txg};
use disk::scan::ScanState;
use disk::BlkPtr;
use dmu::{Objset, Tx};
use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex};
use vdev::{indirect, keys, IndirectMap, Piece, Vdev, VdevKind, VdevTree};
use zap::Zap;

/// Feature that counts obsolete space maps among other things.
const OBSOLETE_COUNTS: &str = disk::feature::guid::OBSOLETE_COUNTS;
/// Entry of the ZAP of a removed vdev: its obsolete space map.
const OBSOLETE_MAP: &str = disk::mos_keys::OBSOLETE_SPACEMAP;

/// State of the newest removal, directory entry `com.delphix:removing`: seven words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemovingPhys {
    /// The record.
    pub state: ScanState,
    /// Vdev that is being removed.
    pub vdev: Option<u64>,
    /// Vdev whose removal was finished last; the ones before it are chained by its configuration.
    pub prev_indirect: Option<u64>,
    /// Seconds since 1970.
    pub start: u64,
    /// Seconds since 1970; 0 while it runs.
    pub end: u64,
    /// Bytes.
    pub to_copy: u64,
    /// Bytes copied so far.
    pub copied: u64,
}

impl RemovingPhys {
    /// Reads the entry; `None` if nothing was ever removed.
    pub fn read(mos: &Arc<Objset>) -> Result<Option<RemovingPhys>> {
        let Some(v) = Zap::new(&mos.hold(1)?).get_value(disk::mos_keys::REMOVING)? else {
            return Ok(None);
        };
        let [state, vdev, prev, start, end, to_copy, copied] = v.ints()[..] else {
            bail!(Damaged, "state of device removal of {} words", v.len());
        };
        let some = |id: u64| (id != u64::MAX).then_some(id);
        Ok(Some(RemovingPhys {
            state: ScanState::new(state),
            vdev: some(vdev),
            prev_indirect: some(prev),
            start,
            end,
            to_copy,
            copied,
        }))
    }
}

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

fn read_map(mos: &Arc<Objset>, top: &Vdev) -> Result<IndirectMap> {
    let need = |key: &str| match top.get_u64(key) {
        Some(o) if o != 0 => Ok(o),
        _ => Err(Error::damaged(format!("no object {key}"))),
    };
    let mut map = IndirectMap::default();
    // max_offset, bytes_mapped, number of entries.
    let object = need(keys::INDIRECT_OBJECT)?;
    entries(mos, object, 2, indirect::ENTRY, &mut |b| map.add_ranges(b))?;
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

/// What is freed on removed vdevs: the space where it is now, and a note that nothing refers to the
/// old place any more.
pub struct Removed {
    tree: Arc<VdevTree>,
    /// Places that became obsolete and are not in a map yet, by txg and vdev.
    obsolete: Mutex<BTreeMap<Txg, BTreeMap<u64, RangeSet>>>,
}

impl Removed {
    /// No mapping is loaded yet.
    pub fn new(tree: Arc<VdevTree>) -> Removed {
        Removed {
            tree,
            obsolete: Mutex::default(),
        }
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
        if !self.tree.is_removed(vdev) {
            return f(vdev, offset, asize);
        }
        let mut passed = Vec::new();
        let pieces = self.pieces(vdev, offset, asize, &mut |v, o, n| passed.push((v, o, n)))?;
        for (v, o, n) in passed {
            self.mark(v, o, n, txg)?;
        }
        pieces
            .iter()
            .try_for_each(|p| f(p.vdev, p.offset, p.len as u64))
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
    /// The newest removal of a top-level vdev, if there ever was one.
    pub fn removal(&self) -> Result<Option<RemovingPhys>> {
        RemovingPhys::read(self.mos())
    }

    /// Bytes of the mappings of all removed vdevs, as they are on disk.
    pub fn mapping_bytes(&self) -> u64 {
        let tops = self.tree().tops();
        let maps = tops.iter().filter_map(|t| t.indirect());
        maps.map(|m| (m.ranges().len() * indirect::ENTRY) as u64)
            .sum()
    }

    /// The expansion that was begun last, if there ever was one.
    pub fn expansion(&self) -> Result<Option<Expansion>> {
        let mut last: Option<Expansion> = None;
        for t in self.tree().tops().iter() {
            let zap = t.get_u64(keys::ZAP_TOP).unwrap_or(0);
            if !matches!(t.kind(), VdevKind::Raidz { .. }) || zap == 0 {
                continue;
            }
            let dn = self.mos().hold(zap)?;
            let get = |what: &str| -> Result<u64> {
                let key = format!("org.openzfs:raidz_expand_{what}");
                Ok(Zap::new(&dn).get(key.as_str())?.unwrap_or(0))
            };
            let e = Expansion {
                vdev: t.id(),
                state: ScanState::new(get("state")?),
                start: get("start_time")?,
                end: get("end_time")?,
                copied: get("bytes_copied")?,
            };
            if e.state != ScanState::None && last.is_none_or(|l| l.start < e.start) {
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
