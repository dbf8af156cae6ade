//! Removal of top-level vdevs that hold data: their blocks are copied to other vdevs, and a mapping says where to (pool format §23).
//!
//! | State on disk | Meaning |
//! |---|---|
//! | entry `com.delphix:removing` | which vdev, since when, bytes to be copied and copied, the vdev removed before |
//! | `removing` of the vdev | nothing is allocated on it; its blocks are still read there |
//! | mapping and births objects of the vdev | what was copied so far, in order of offset |
//! | kind `indirect` of the vdev | everything was copied; it has no devices and metaslabs any more |
//!
//! Invariants:
//!
//! 1. The vdev has everything until it becomes indirect. So a crash, an error or a cancelled removal loses nothing.
//! 2. When a removal begins, every allocation on the vdev is on disk, and no block of an intent log there is still to be written: the
//!    logs were emptied, and go on elsewhere. What is copied does not change any more.
//! 3. Copies are allocated in the open txg, which a transaction holds open until they are written and noted (`copy.rs`). The
//!    mapping that has them is written with that txg ([`Pool::sync_removal`]), whether jobs run or not.
//! 4. Frees are divided by what region they are in ([`crate::regions`]).
//! 5. A device that misses copies has their txgs in its DTL. A resilver takes them off when the removal has ended: before, no pointer
//!    leads to the copies ([`Pool::note_missed_copies`]).
//! 6. What an import reads before the mappings is rewritten when a removal begins, so that it is on no vdev that is removed.
//!
//! Lock order: [`Removed::live`] before the locks of `space`.

mod check;
mod condense;
mod copy;

pub use check::RemovalRefusal;
pub(crate) use condense::CondenseJob;

use crate::indirect::read_map;
use crate::mapping::{self, Mapping};
use crate::regions::Live;
use crate::removal_record::RemovingPhys;
use crate::Pool;
use base::sync::MutexExt;
use base::{bail, Error, Result, Txg};
use copy::RemovalJob;
use disk::feature::guid;
use disk::mos_keys::{OBSOLETE_COUNTS_ARE_PRECISE, OBSOLETE_SPACEMAP, UNFLUSHED_TXGS};
use disk::scan::ScanState;
use dmu::Tx;
use std::sync::Arc;
use vdev::{keys, Vdev, VdevKind};
use zap::Zap;

/// Property of a vdev: whether blocks are placed on it.
const ALLOCATING: &str = "allocating";

impl Pool {
    /// Begins to remove top-level vdev `id`. The copying goes on in the background.
    ///
    /// # Errors
    /// Those of [`Pool::removal_refusal`]; an intent log cannot be emptied. Nothing was changed then.
    pub fn remove_top(&self, id: u64) -> Result<()> {
        self.writable()?;
        self.may_be_removed(id)?;
        self.space().set_allocating(id, false)?;
        let begun = self.empty_logs().and_then(|()| {
            self.task(move |pool, tx| {
                pool.may_be_removed(id)?;
                let begun = pool.begin_removal(tx, id);
                pool.or_stop(begun)
            })
        });
        if begun.is_err() && self.stopped().is_none() {
            let top = self.tree().top(id)?;
            let passive = top.get_u64(keys::NON_ALLOCATING).unwrap_or(0) != 0;
            self.space().set_allocating(id, !passive)?;
        }
        begun
    }

    fn may_be_removed(&self, id: u64) -> Result<()> {
        match self.removal_refusal(id)? {
            None => Ok(()),
            Some(why) => Err(Error::sentence(why.kind(), why.to_string())),
        }
    }

    /// Whether the removal of a top-level vdev is under way.
    pub fn is_removing(&self) -> bool {
        self.allocation.removed.live().is_some()
    }

    fn begin_removal(&self, tx: &Tx, id: u64) -> Result<()> {
        let top = self.tree().top(id)?;
        let before = RemovingPhys::read(self.mos())?;
        if self.config.features.is_enabled(guid::OBSOLETE_COUNTS) {
            self.config
                .features
                .activate(tx, guid::OBSOLETE_COUNTS, 1)?;
            let zap = self.mos().hold(top_zap(&top)?)?;
            Zap::new(&zap).add_u64(tx, OBSOLETE_COUNTS_ARE_PRECISE, 1)?;
        }
        let mapping = Mapping::create(self, tx)?;
        let births = mapping::create_births(self, tx)?;
        for (key, value) in [
            (keys::INDIRECT_OBJECT, mapping.object),
            (keys::INDIRECT_BIRTHS, births),
            (keys::REMOVING, 1),
            (keys::NON_ALLOCATING, 1),
        ] {
            top.set_u64(key, value);
        }
        let phys = RemovingPhys {
            state: ScanState::Scanning,
            vdev: Some(id),
            prev_indirect: before.and_then(|b| b.prev_indirect),
            start: self.seconds(),
            end: 0,
            to_copy: self.allocated_on(id),
            copied: 0,
        };
        phys.write(self.mos(), tx)?;
        self.rewrite_directory(tx)?;
        self.config.set_dirty();
        let objects = (vdev::IndirectMap::default(), mapping, births);
        let live = Live::new(self.allocation.removed.number(), phys, objects, tx.txg());
        self.goes_on_with_removal(live);
        self.tell_of_removal(tx, "vdev remove started", &top)
    }

    fn goes_on_with_removal(&self, live: Live) {
        *self.allocation.removed.live() = Some(live);
        self.background.jobs.ensure(Arc::new(RemovalJob {
            removed: self.allocation.removed.clone(),
            clock: self.env.clock.clone(),
        }));
    }

    fn tell_of_removal(&self, tx: &Tx, what: &str, top: &Vdev) -> Result<()> {
        let path = top.path().unwrap_or_else(|| "-".into());
        let text = format!("{} vdev {} {path}", self.name(), top.id());
        self.log_internal(tx, what, &text)
    }

    /// Writes every block of the object directory anew, so that it is on vdevs that stay.
    fn rewrite_directory(&self, tx: &Tx) -> Result<()> {
        let dn = self.mos().hold(1)?;
        let i = dn.info();
        let mut block = vec![0; i.block_size];
        for n in 0..=i.max_blkid {
            let at = n * i.block_size as u64;
            dn.read(at, &mut block)?;
            dn.write(tx, at, &block)?;
        }
        Ok(())
    }

    /// Goes on with the removal that was under way when the pool was left.
    pub(crate) fn load_removal(&self) -> Result<()> {
        let marked = |t: &&Arc<Vdev>| t.is_concrete() && is_removing(t) && !t.is_log();
        let tops = self.tree().tops();
        let Some(top) = tops.iter().find(marked) else {
            return Ok(());
        };
        let phys = RemovingPhys::read(self.mos())?;
        let phys = phys.filter(|p| p.state == ScanState::Scanning && p.vdev == Some(top.id()));
        let Some(phys) = phys else {
            bail!(Damaged, "{}: no record of its removal", top.name());
        };
        let need = |key: &str| match top.get_u64(key) {
            Some(o) if o != 0 => Ok(o),
            _ => Err(Error::damaged(format!("{}: no object {key}", top.name()))),
        };
        let mapping = Mapping::open(self, need(keys::INDIRECT_OBJECT)?)?;
        let map = read_map(self.mos(), top)?;
        if map.end() != mapping.end || map.ranges().len() as u64 != mapping.entries {
            bail!(
                Damaged,
                "{}: its mapping is not as its header says",
                top.name()
            );
        }
        let births = need(keys::INDIRECT_BIRTHS)?;
        let ready = self.dmu().synced_txg();
        let mut live = Live::new(
            self.allocation.removed.number(),
            phys,
            (map, mapping, births),
            ready,
        );
        live.next_ms = live.map.end() >> top.metaslab_shift();
        self.goes_on_with_removal(live);
        Ok(())
    }

    /// The part of the removal in a txg, behind all tasks: what was copied in this txg becomes part of the mapping.
    pub(crate) fn sync_removal(&self, tx: &Tx) -> Result<()> {
        let (mut mapping, births, new, end) = {
            let mut live = self.allocation.removed.live();
            let Some(l) = live.as_mut() else {
                return Ok(());
            };
            let (new, frees) = l.land(tx.txg())?;
            if new.is_empty() {
                return Ok(());
            }
            for (s, e) in frees.iter() {
                self.allocation
                    .removed
                    .free_copy(l, s, e - s, tx.txg(), &mut |v, o, n| {
                        self.space().free(v, o, n, tx.txg())
                    })?;
            }
            (l.mapping, l.births, new, l.map.end())
        };
        base::mutation::panic_point("appending to a mapping");
        mapping.append(self, tx, &new)?;
        mapping::add_birth(self, tx, births, end)?;
        let phys = {
            let mut live = self.allocation.removed.live();
            let Some(l) = live.as_mut() else {
                bail!(Damaged, "the removal ended while its mapping was written");
            };
            l.mapping = mapping;
            l.phys
        };
        phys.write(self.mos(), tx)
    }

    /// Stores how much needs not be copied any more since it was freed, if anything was since the last call. Part of every pass.
    pub(crate) fn store_spared(&self, tx: &Tx) -> Result<()> {
        let phys = {
            let mut live = self.allocation.removed.live();
            live.as_mut()
                .and_then(|l| l.take_done(tx.txg()).then_some(l.phys))
        };
        phys.map_or(Ok(()), |p| p.write(self.mos(), tx))
    }

    /// Everything was copied: the vdev becomes indirect.
    fn finish_removal(&self, tx: &Tx) -> Result<()> {
        let Some(vdev) = self.allocation.removed.live().as_ref().map(|l| l.vdev) else {
            return Ok(());
        };
        let top = self.tree().top(vdev)?;
        self.cancel_rebuild(tx, &top)?;
        let (phys, leaves) = {
            // Nothing of the MOS is changed with the lock held: that may free blocks.
            let mut live = self.allocation.removed.live();
            let Some(mut l) = live.take() else {
                return Ok(());
            };
            l.take_done(tx.txg());
            let prev = l.phys.prev_indirect;
            let leaves = self.tree().become_indirect(l.vdev, Arc::new(l.map), prev)?;
            self.space().remove_top(l.vdev);
            (l.phys, leaves)
        };
        self.note_missed_copies(tx, vdev);
        self.allocation
            .maps
            .remove_top(tx, &self.config, top.id())?;
        // The ZAP lives on, but not the object with what is unflushed of the metaslabs.
        let zap = self.mos().hold(top_zap(&top)?)?;
        Zap::new(&zap).remove_if(tx, UNFLUSHED_TXGS)?;
        // The vdev that took its place has it now.
        top.unset(keys::ZAP_TOP);
        for leaf in &leaves {
            self.vdevs.dtls.acquire().remove(&leaf.guid());
            self.leaf_leaves(tx, leaf)?;
        }
        let done = RemovingPhys {
            state: ScanState::Finished,
            end: self.seconds(),
            prev_indirect: Some(top.id()),
            ..phys
        };
        done.write(self.mos(), tx)?;
        self.config.set_dirty();
        self.vdevs.devices.refresh();
        self.tree().propagate();
        let text = format!("{} vdev {}", self.name(), top.id());
        self.log_internal(tx, "vdev remove completed", &text)?;
        let mut left = self.vdevs.left.acquire();
        left.extend(leaves.into_iter().map(|l| (l, None)));
        drop(left);
        self.refresh_dedup_quota()?;
        self.tell(crate::Notice::Removed(top));
        Ok(())
    }

    /// `zpool remove -s`: the removal under way is given up, and the vdev used as before.
    ///
    /// # Errors
    /// `Kind::NotFound`: there is none.
    pub fn cancel_removal(&self) -> Result<()> {
        self.writable()?;
        self.task(|pool, tx| {
            if !pool.is_removing() {
                bail!(NotFound, "operation is not in progress");
            }
            let done = pool.cancel_removal_in(tx);
            pool.or_stop(done)
        })
    }

    /// Frees all copies, and everything that the removal has made.
    fn cancel_removal_in(&self, tx: &Tx) -> Result<()> {
        self.sync_removal(tx)?;
        let l = {
            let mut live = self.allocation.removed.live();
            let Some(l) = live.as_mut() else {
                return Ok(());
            };
            l.take_done(tx.txg());
            self.free_copies(l, tx.txg())?;
            self.allocation.removed.forget_obsolete(l.vdev);
            let Some(l) = live.take() else {
                return Ok(());
            };
            l
        };
        let top = self.tree().top(l.vdev)?;
        let zap = self.mos().hold(top_zap(&top)?)?;
        if Zap::new(&zap).remove_if(tx, OBSOLETE_COUNTS_ARE_PRECISE)? {
            self.config
                .features
                .activate(tx, guid::OBSOLETE_COUNTS, -1)?;
        }
        if let Some(map) = Zap::new(&zap).get(OBSOLETE_SPACEMAP)? {
            self.allocation.maps.free_map(tx, &self.config, map)?;
            Zap::new(&zap).remove(tx, OBSOLETE_SPACEMAP)?;
            self.config
                .features
                .activate(tx, guid::OBSOLETE_COUNTS, -1)?;
        }
        l.mapping.free(self, tx)?;
        self.mos().free(tx, l.births)?;
        for key in [keys::INDIRECT_OBJECT, keys::INDIRECT_BIRTHS, keys::REMOVING] {
            top.unset(key);
        }
        let wanted: Option<u64> = Zap::new(&zap).get(ALLOCATING)?;
        if wanted != Some(0) {
            top.unset(keys::NON_ALLOCATING);
            self.space().set_allocating(top.id(), true)?;
        }
        let canceled = RemovingPhys {
            state: ScanState::Canceled,
            end: self.seconds(),
            ..l.phys
        };
        canceled.write(self.mos(), tx)?;
        self.forget_missed_copies();
        self.config.set_dirty();
        self.tell_of_removal(tx, "vdev remove canceled", &top)
    }

    /// Frees the copies of everything that is still in use on the vdev, mapped or in flight.
    fn free_copies(&self, l: &mut Live, txg: Txg) -> Result<()> {
        let end = l.map.end();
        for ms in 0..self.space().metaslab_count(l.vdev) {
            let (start, _) = self.space().metaslab_bounds(l.vdev, ms)?;
            if start >= end {
                break;
            }
            self.space().ensure_loaded(l.vdev, ms)?;
            for (s, e) in self.space().in_use(l.vdev, ms)?.iter() {
                let e = e.min(end);
                if s < e {
                    for p in l.map.resolve(s, (e - s) as usize)? {
                        self.space().free(p.vdev, p.offset, p.len as u64, txg)?;
                    }
                }
            }
        }
        // Of txgs that come later: no pointer leads to them.
        for (later, flight) in std::mem::take(&mut l.flights) {
            for (m, gaps) in flight.moved {
                let mut at = m.src;
                for (s, e) in gaps.into_iter().chain([(m.src + m.size, 0)]) {
                    if s > at {
                        let to = m.dst + (at - m.src);
                        self.space().unalloc(m.vdev, to, s - at, later)?;
                    }
                    at = e;
                }
            }
        }
        Ok(())
    }
}

/// Whether a top-level vdev is marked as being removed.
pub(crate) fn is_removing(top: &Vdev) -> bool {
    top.kind() != VdevKind::Indirect && top.get_u64(keys::REMOVING).unwrap_or(0) != 0
}

fn top_zap(top: &Vdev) -> Result<u64> {
    match top.get_u64(keys::ZAP_TOP) {
        Some(zap) if zap != 0 => Ok(zap),
        _ => bail!(Damaged, "{} has no vdev ZAP", top.name()),
    }
}
