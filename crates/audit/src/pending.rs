//! Blocks and space that no dataset refers to any more, but that are not free yet.

use crate::{directory, note, Audit, Follow, Origin, Row, Sink};
use base::Result;
use disk::bytes::u64_at;
use disk::mos_keys;
use disk::BlkPtr;
use pool::Pool;
use std::collections::HashSet;
use vdev::Vdev;

/// Bytes of one entry of an indirect mapping: source and obsolete count, then the destination's DVA.
const MAPPING_ENTRY: usize = 24;
/// Entries of an indirect mapping read at once.
const MAPPING_BATCH: u64 = 8192;
/// Most entries of a mapping, and of a list of trees: more are damage.
const MAPPING_MOST: u64 = 1 << 24;
const TREES_MOST: u64 = 1 << 20;

impl Audit<'_> {
    pub(crate) fn pending(&mut self, sink: Sink) {
        for key in ["free_bpobj", "sync_bplist"] {
            let read = self.listed(key, sink);
            note(read, Origin::Directory(key), sink);
        }
        for (key, r) in [
            (mos_keys::OBSOLETE_BPOBJ, self.obsolete()),
            ("bptree_obj", self.destroyed()),
            (mos_keys::DELETED_CLONES, self.deleted_clones(sink)),
            ("checkpoint", self.checkpoint()),
            ("removed devices", self.removed()),
        ] {
            note(r, Origin::Directory(key), sink);
        }
    }

    /// Blocks on a list of deferred frees.
    fn listed(&mut self, key: &'static str, sink: Sink) -> Result<()> {
        let mos = self.pool.mos();
        let Some(object) = directory(self.pool, key)? else {
            return Ok(());
        };
        dsl::Bpobj::open(mos, object)?.for_each(mos, &mut |bp, _| {
            self.count(bp, Row::Deferred);
            self.space(bp, false, Origin::Directory(key), sink);
            Ok(())
        })
    }

    /// The list of what became obsolete on removed vdevs can be read; its blocks take no space.
    fn obsolete(&self) -> Result<()> {
        let mos = self.pool.mos();
        match directory(self.pool, mos_keys::OBSOLETE_BPOBJ)? {
            Some(object) => dsl::Bpobj::open(mos, object)?.for_each(mos, &mut |_, _| Ok(())),
            None => Ok(()),
        }
    }

    /// Trees of destroyed datasets; parts of them are free already.
    fn destroyed(&mut self) -> Result<()> {
        use disk::dsl::{BptreeEntry, BptreePhys, BPTREE_ENTRY_SIZE};
        let Some(object) = directory(self.pool, "bptree_obj")? else {
            return Ok(());
        };
        let dn = self.pool.mos().hold(object)?;
        let phys = BptreePhys::decode(&dn.bonus())?;
        for i in phys.begin..phys.end.min(phys.begin.saturating_add(TREES_MOST)) {
            let mut b = [0; BPTREE_ENTRY_SIZE];
            dn.read(i.saturating_mul(BPTREE_ENTRY_SIZE as u64), &mut b)?;
            let e = BptreeEntry::decode(&b)?;
            let mut below = Audit::new(self.pool, crate::Verify::Nothing);
            below.shared_allowed = true;
            below.freed = true;
            // What is free may have been written over: errors mean nothing here.
            below.objset(&e.bp, e.birth_txg, 0, Follow::Blocks, &mut |_| {});
            self.totals.merge(below.totals);
            for (vdev, ranges) in below.seen.into_iter().chain(below.maybe) {
                let maybe = self.maybe.entry(vdev).or_default();
                for (start, end) in ranges.iter() {
                    maybe.insert(start, end);
                }
            }
        }
        Ok(())
    }

    /// Livelists of clones that were destroyed: blocks they list as allocated and not as freed are in use.
    fn deleted_clones(&mut self, sink: Sink) -> Result<()> {
        const KEY: &str = mos_keys::DELETED_CLONES;
        let mos = self.pool.mos();
        let Some(object) = directory(self.pool, KEY)? else {
            return Ok(());
        };
        let place = |bp: &BlkPtr| (bp.dva(0).vdev(), bp.dva(0).offset(), bp.birth());
        for e in zap::Zap::new(&mos.hold(object)?).iter() {
            let list = dsl::Deadlist::open(mos, zap::parse_hex_key(&e?.name)?)?;
            let mut freed = HashSet::new();
            list.for_each(mos, &mut |bp| {
                if disk::dsl::bpobj_entry_is_free(bp) {
                    freed.insert(place(bp));
                }
                Ok(())
            })?;
            list.for_each(mos, &mut |bp| {
                if !disk::dsl::bpobj_entry_is_free(bp) && !freed.contains(&place(bp)) {
                    self.count(bp, Row::Deferred);
                    self.space(bp, false, Origin::Directory(KEY), sink);
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    /// What was freed since the checkpoint is kept for it.
    fn checkpoint(&mut self) -> Result<()> {
        use disk::spacemap::{entries, Entry, SpaceMapPhys};
        let mos = self.pool.mos();
        for top in self.pool.tree().tops().iter().filter(|t| t.is_concrete()) {
            let Some(z) = top.get_u64(vdev::keys::ZAP_TOP).filter(|z| *z != 0) else {
                continue;
            };
            let key = mos_keys::CHECKPOINT_SPACEMAP;
            let Some(object) = zap::Zap::new(&mos.hold(z)?).get(key)? else {
                continue;
            };
            let p = SpaceMapPhys::decode(&mos.hold(object)?.bonus())?;
            let maybe = self.maybe.entry(top.id()).or_default();
            pool::map_pieces(mos, object, p.length, &mut |piece| {
                for e in entries(piece) {
                    if let Entry::Range(r) = e? {
                        let (from, to) = r.bytes(top.ashift())?;
                        maybe.insert(from, to);
                    }
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    /// The copies of what is in use on a vdev that is being removed. Those on removed vdevs belong to the blocks themselves.
    fn removed(&mut self) -> Result<()> {
        let pool = self.pool;
        for top in pool.tree().tops().iter().filter(|t| t.is_concrete()) {
            let Some(map) = pool.mapping_of(top)? else {
                continue;
            };
            for ms in 0..pool.space().metaslab_count(top.id()) {
                let (start, end) = pool.space().metaslab_bounds(top.id(), ms)?;
                let end = end.min(map.end());
                if start >= end {
                    break;
                }
                let free = pool.maps().load(top.id(), ms)?;
                for (s, e) in free.gaps(start, end) {
                    for p in map.resolve(s, (e - s) as usize)? {
                        let seen = self.seen.entry(p.vdev).or_default();
                        seen.insert(p.offset, p.offset.saturating_add(p.len as u64));
                    }
                }
            }
        }
        Ok(())
    }
}

/// Calls `f` with the places to which the blocks of a vdev were copied that is or was being removed; never for
/// other vdevs. Returns the number of places.
///
/// # Errors
/// A mapping that cannot be read.
pub fn moved(pool: &Pool, v: &Vdev, f: &mut dyn FnMut(disk::Dva)) -> Result<u64> {
    let Some(object) = v.get_u64(vdev::keys::INDIRECT_OBJECT).filter(|o| *o != 0) else {
        return Ok(0);
    };
    let dn = pool.mos().hold(object)?;
    let info = dn.info();
    let room = info
        .max_blkid
        .saturating_add(1)
        .saturating_mul(info.block_size as u64);
    let count = u64_at(&dn.bonus(), 16)?
        .min(room / MAPPING_ENTRY as u64)
        .min(MAPPING_MOST);
    let mut at = 0;
    while at < count {
        let n = MAPPING_BATCH.min(count - at);
        let mut b = vec![0; n as usize * MAPPING_ENTRY];
        dn.read(at * MAPPING_ENTRY as u64, &mut b)?;
        for e in b.chunks_exact(MAPPING_ENTRY) {
            f(disk::Dva {
                word0: u64_at(e, 8)?,
                word1: u64_at(e, 16)?,
            });
        }
        at += n;
    }
    Ok(count)
}
