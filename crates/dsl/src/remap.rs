//! Remap deadlists: ranges of removed vdevs that only snapshots refer to (data format §11.4, pool format §23).
//!
//! OpenZFS lets a head's pointers to a removed vdev be replaced by pointers to the new addresses.
//! The old range is obsolete then, unless a snapshot still has the old pointer: it waits on the head's
//! *remap deadlist*, which snapshots inherit as they do deadlists. What nothing refers to any more goes
//! to a list of the pool, the obsolete bpobj, and from there into the vdevs' obsolete space maps. This
//! software replaces no pointers, but it keeps these lists right.

use crate::core::Core;
use crate::{Bpobj, Dataset, Deadlist, Dsl};
use base::{Result, Txg};
use disk::BlkPtr;
use dmu::Tx;
use std::sync::Arc;
use zap::Zap;

const KEY: &str = disk::mos_keys::REMAP_DEADLIST;
const POOL_KEY: &str = disk::mos_keys::OBSOLETE_BPOBJ;
/// Counts, among other things, these lists.
const OBSOLETE_COUNTS: &str = disk::feature::guid::OBSOLETE_COUNTS;

impl Dataset {
    /// The remap deadlist, if there is one.
    pub(crate) fn remap_deadlist(&self) -> Result<Option<Deadlist>> {
        self.extra(KEY)?
            .map(|o| Deadlist::open(&self.core.mos, o))
            .transpose()
    }
}

impl Core {
    /// A snapshot was made: it takes the head's list, later ones begin anew.
    pub(crate) fn remaps_to_snapshot(&self, tx: &Tx, head: &Dataset, snap: &Dataset) -> Result<()> {
        let Some(o) = head.extra(KEY)? else {
            return Ok(());
        };
        Zap::new(&head.dn).remove(tx, KEY)?;
        self.zapify(tx, &snap.dn)?;
        Zap::new(&snap.dn).add_u64(tx, KEY, o)
    }

    /// A snapshot goes, `next` follows it, `prev_txg` is when the snapshot before it was made.
    pub(crate) fn destroy_remaps(
        self: &Arc<Self>,
        tx: &Tx,
        snap: &Dataset,
        next: &Dataset,
        prev_txg: Txg,
    ) -> Result<()> {
        if let Some(mut d) = next.remap_deadlist()? {
            let mut to = self.obsolete_bpobj(tx)?;
            d.move_to(self, tx, prev_txg, &mut to)?;
        }
        let Some(d) = snap.remap_deadlist()? else {
            return Ok(());
        };
        let mut own = match next.remap_deadlist()? {
            Some(own) => own,
            None => {
                let keys = next.deadlist()?;
                let own = keys.clone_keys(self, tx, Txg::MAX, &[], || next.chain_keys())?;
                self.zapify(tx, &next.dn)?;
                Zap::new(&next.dn).add_u64(tx, KEY, own.object())?;
                self.features.activate(tx, OBSOLETE_COUNTS, 1)?;
                own
            }
        };
        own.merge(self, tx, d)?;
        Zap::new(&snap.dn).remove(tx, KEY)?;
        self.features.activate(tx, OBSOLETE_COUNTS, -1)
    }

    /// A head goes or goes back: what is on its list still belongs to the snapshot before it.
    pub(crate) fn drop_remaps(&self, tx: &Tx, head: &Dataset) -> Result<()> {
        let Some(d) = head.remap_deadlist()? else {
            return Ok(());
        };
        d.free(self, tx)?;
        Zap::new(&head.dn).remove(tx, KEY)?;
        self.features.activate(tx, OBSOLETE_COUNTS, -1)
    }

    /// The pool's list, made if there is none.
    fn obsolete_bpobj(&self, tx: &Tx) -> Result<Bpobj> {
        if let Some(o) = self.directory_get(POOL_KEY)? {
            return Bpobj::open(&self.mos, o);
        }
        let b = self.new_bpobj(tx)?;
        Zap::new(&self.directory()?).add_u64(tx, POOL_KEY, b.object())?;
        self.features.activate(tx, OBSOLETE_COUNTS, 1)?;
        Ok(b)
    }
}

impl Dsl {
    /// Hands out places of removed vdevs that nothing refers to any more, as long as `take` allows one more: pointers
    /// whose first DVA is the place. True: something is left.
    pub fn obsolete_some(
        &self,
        tx: &Tx,
        take: &mut dyn FnMut(u64) -> bool,
        f: &mut dyn FnMut(&BlkPtr) -> Result<()>,
    ) -> Result<bool> {
        let core = &self.core;
        core.need_syncing(tx)?;
        let Some(o) = core.directory_get(POOL_KEY)? else {
            return Ok(false);
        };
        let mut b = Bpobj::open(&core.mos, o)?;
        let (_, empty) = b.drain(&core.mos, tx, &mut |bp| {
            if !take(1) {
                return Ok(false);
            }
            f(bp).map(|()| true)
        })?;
        if empty {
            Zap::new(&core.directory()?).remove(tx, POOL_KEY)?;
            b.free_now(&core.mos, tx)?;
            core.features.activate(tx, OBSOLETE_COUNTS, -1)?;
        }
        Ok(!empty)
    }

    /// Bytes that wait to be handed out by [`Dsl::obsolete_some`].
    pub fn obsolete_left(&self) -> Result<u64> {
        match self.core.directory_get(POOL_KEY)? {
            Some(o) => Ok(Bpobj::open(&self.core.mos, o)?.space().used.max(0) as u64),
            None => Ok(0),
        }
    }
}
