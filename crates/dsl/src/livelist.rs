//! Livelists (data format §11.1): the blocks that a clone has allocated and freed since its creation. With them a
//! clone is destroyed without a walk over the blocks it shares with its origin.

use crate::bpobj::is_unreadable;
use crate::core::{Triple, LIVELIST};
use crate::deadlist::Change;
use crate::{Bpobj, Dataset, Deadlist, Dir, Dsl};
use base::{Error, Result};
use disk::dsl::Used;
use disk::{BlkPtr, ObjType};
use dmu::Tx;
use std::collections::HashMap;
use std::sync::Arc;
use zap::Zap;

/// Object-directory key: the livelists of destroyed clones.
const DELETED: &str = disk::mos_keys::DELETED_CLONES;
/// Entries after which a new sub-list begins.
const MAX_ENTRIES: u64 = 500_000;
/// A livelist is given up when the clone shares at most this percentage of its bytes with its origin.
const MIN_SHARED: u64 = 75;

impl Dir {
    /// The object of the livelist, if there is one.
    pub(crate) fn livelist(&self) -> Result<Option<u64>> {
        self.extra(LIVELIST)
    }

    /// Gives a new clone its livelist.
    pub(crate) fn start_livelist(&self, tx: &Tx) -> Result<()> {
        let core = &self.core;
        if !core.features.is_enabled(LIVELIST) {
            return Ok(());
        }
        core.zapify(tx, &self.dn)?;
        // The feature is active before the lists are made: their form depends on it.
        core.features.activate(tx, LIVELIST, 1)?;
        let list = Deadlist::create(core, tx)?;
        Zap::new(&self.dn).add_u64(tx, LIVELIST, list.object())
    }

    /// Takes the livelist away, for example because the clone becomes something else. Without it,
    /// destroying the clone takes longer.
    pub(crate) fn drop_livelist(&self, tx: &Tx) -> Result<()> {
        let core = &self.core;
        let Some(o) = self.livelist()? else {
            return Ok(());
        };
        Deadlist::open(&core.mos, o)?.free(core, tx)?;
        Zap::new(&self.dn).remove(tx, LIVELIST)?;
        core.features.activate(tx, LIVELIST, -1)
    }
}

impl Dataset {
    /// Appends what a txg has allocated and freed, in that order of time.
    pub(crate) fn flush_livelist(&self, tx: &Tx, changes: &[Change]) -> Result<()> {
        let dir = self.dir();
        let Some(o) = dir.livelist()? else {
            return Ok(());
        };
        let core = &self.core;
        let referenced = self.phys().referenced_bytes;
        let own = dir.phys().used(Used::Head);
        let shared = referenced.saturating_sub(own);
        if referenced != 0 && shared.saturating_mul(100) / referenced <= MIN_SHARED {
            return dir.drop_livelist(tx);
        }
        if changes.is_empty() {
            return Ok(());
        }
        let mut list = Deadlist::open(&core.mos, o)?;
        let last = list.keys().into_iter().next_back();
        let full = match last {
            None => true,
            Some((_, o)) if o == core.empty_bpobj()? => false,
            Some((_, o)) => {
                let p = Bpobj::open(&core.mos, o)?.phys;
                p.num_blkptrs.saturating_sub(p.num_freed.saturating_mul(2)) > MAX_ENTRIES
            }
        };
        if full {
            list.add_key(core, tx, tx.txg().before(1))?;
        }
        list.insert_changes(core, tx, changes)
    }
}

impl Dsl {
    /// Instead of freeing the blocks of a destroyed clone: leaves its livelist to the background.
    /// False: it has none.
    pub(crate) fn leave_livelist(&self, tx: &Tx, dir: &Arc<Dir>) -> Result<bool> {
        let core = &self.core;
        let Some(o) = dir.livelist()? else {
            return Ok(false);
        };
        let top = core.directory()?;
        let map = match Zap::new(&top).get(DELETED)? {
            Some(m) => core.hold(m)?,
            None => {
                let dn = core.new_zap(tx, ObjType::ZAP_METADATA, 0)?;
                Zap::new(&top).add_u64(tx, DELETED, dn.object())?;
                dn
            }
        };
        Zap::new(&map).add_int(tx, o)?;
        let t = Deadlist::space_of(&core.mos, o)?;
        let gone = Triple {
            // Blocks embedded in their pointers are in no list.
            uncomp: -(dir.phys().uncompressed_bytes as i64),
            ..-t
        };
        dir.diduse(tx, Used::Head, gone)?;
        core.free_dir()?.diduse(tx, Used::Head, t)?;
        Zap::new(&dir.dn).remove(tx, LIVELIST)?;
        Ok(true)
    }

    /// Frees what destroyed clones had, a sub-list at a time, while `take` allows it. False: something is left.
    pub(crate) fn free_livelists(
        &self,
        tx: &Tx,
        done: &mut u64,
        take: &mut dyn FnMut(u64) -> bool,
        free: &mut dyn FnMut(&BlkPtr) -> Result<()>,
    ) -> Result<bool> {
        let core = &self.core;
        let top = core.directory()?;
        let Some(map) = Zap::new(&top).get(DELETED)? else {
            return Ok(true);
        };
        let dn = core.hold(map)?;
        let all: Result<Vec<u64>> = Zap::new(&dn).iter().map(|e| e?.value.to_u64()).collect();
        for o in all? {
            let mut list = Deadlist::open(&core.mos, o)?;
            while let Some((key, sub)) = list.keys().into_iter().next() {
                if !take(0) {
                    return Ok(false);
                }
                let freed = self.free_sublist(tx, sub, free)?;
                take(freed);
                *done += freed;
                list.remove_list(core, tx, key)?;
            }
            list.free(core, tx)?;
            Zap::new(&dn).remove_int(tx, o)?;
            core.features.activate(tx, LIVELIST, -1)?;
        }
        Zap::new(&top).remove(tx, DELETED)?;
        core.free_object(tx, map)?;
        Ok(true)
    }

    fn free_sublist(
        &self,
        tx: &Tx,
        sub: u64,
        free: &mut dyn FnMut(&BlkPtr) -> Result<()>,
    ) -> Result<u64> {
        let core = &self.core;
        if sub == core.empty_bpobj()? {
            return Ok(0);
        }
        // Of a list that cannot be read whole nobody can say which blocks are still there: none is
        // freed, and their space is given up.
        let left = match Bpobj::open(&core.mos, sub).and_then(|b| b.uncancelled(&core.mos)) {
            Err(e) if is_unreadable(&e) => Vec::new(),
            left => left?,
        };
        let mut sum = Triple::default();
        let blocks = left.len() as u64;
        for bp in left {
            sum += core.triple(&bp);
            free(&bp)?;
        }
        core.free_dir()?.diduse(tx, Used::Head, -sum)?;
        Ok(blocks)
    }
}

impl Bpobj {
    /// The allocations of a sub-list that no free of the same place takes back.
    pub(crate) fn uncancelled(&self, mos: &dmu::Objset) -> Result<Vec<BlkPtr>> {
        let mut entries = Vec::new();
        self.for_each(mos, &mut |bp, freed| {
            entries.push((*bp, freed));
            Ok(())
        })?;
        // A place may have been used again: the later of two allocations is the one that is left.
        let mut freed: HashMap<(u64, u64), u64> = HashMap::new();
        let mut out = Vec::new();
        for (bp, is_free) in entries.into_iter().rev() {
            let d = bp.dva(0);
            let n = freed.entry((d.vdev(), d.offset())).or_default();
            match is_free {
                true => *n += 1,
                false if *n > 0 => *n -= 1,
                false => out.push(bp),
            }
        }
        if freed.values().any(|n| *n > 0) {
            return Err(Error::damaged(
                "livelist: a block was freed that was not there",
            ));
        }
        Ok(out)
    }
}
