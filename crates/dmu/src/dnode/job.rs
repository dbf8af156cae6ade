//! The hand-over of an object's changes to a sync, and the new synced view afterwards.

use super::{Dnode, Job, Spill, SpillChange, TakenBlock};
use crate::tree::Synced;
use crate::tx::Tx;
use base::{Result, Txg};
use disk::DnodePhys;
use std::sync::Arc;

impl Dnode {
    /// Takes over the changes of `txg`.
    pub(crate) fn take_job(self: &Arc<Self>, txg: Txg) -> Job {
        base::mutation::panic_point("taking over the changes of an object");
        let mut i = self.write_lock();
        let p = std::mem::take(&mut i.pend[txg]);
        let blocks = p
            .blocks
            .iter()
            .filter_map(|k| {
                i.bufs.get_mut(k).map(|b| TakenBlock {
                    blkid: *k,
                    data: b.data.clone(),
                    placed: b.placed.take(),
                })
            })
            .collect();
        for (a, b) in p.frees.iter() {
            i.syncing_frees.insert(a, b);
        }
        let spill = p.spill.then(|| match &i.spill {
            Spill::Data(b, _) => SpillChange::Data(b.clone()),
            Spill::Placed(bp, _) => SpillChange::Placed(bp.clone()),
            _ => SpillChange::Removed,
        });
        Job {
            dn: self.clone(),
            f: i.f.clone(),
            blocks,
            frees: p.frees,
            spill,
            s: i.s.clone(),
        }
    }

    /// The txg is written: the new tree becomes the synced view. `None`: the object is gone.
    pub(crate) fn apply(&self, txg: Txg, phys: Option<&DnodePhys>) {
        base::mutation::panic_point("an object that was written");
        let mut i = self.write_lock();
        i.s = Arc::new(match phys {
            Some(p) => Synced::of(p),
            None => Synced::none(i.f.nblkptr as usize, i.f.block_size, i.f.indblkshift),
        });
        i.group_over(txg);
    }

    /// The txg could not write the object: what it changed is lost, the synced view stays.
    pub(crate) fn give_up(&self, txg: Txg) {
        let mut i = self.write_lock();
        i.group_over(txg);
    }

    /// Blocks up to `maxblkid` are still there though they were freed.
    pub(crate) fn keep_blocks(&self, maxblkid: u64) {
        let mut i = self.write_lock();
        i.f.maxblkid = i.f.maxblkid.max(maxblkid);
    }

    pub(crate) fn mark_freed(&self, tx: &Tx) -> Result<()> {
        let mut i = self.write_lock();
        self.touch(&mut i, tx)?;
        i.f.allocated = false;
        let all: Vec<u64> = i.bufs.keys().copied().collect();
        for k in all {
            self.unplace(&mut i, k)?;
        }
        i.bufs.clear();
        i.unread.clear();
        self.unplace_spill(&mut i, tx)?;
        let p = &mut i.pend[tx.txg()];
        p.blocks.clear();
        i.gen += 1;
        Ok(())
    }

    pub(crate) fn touch_new(&self, tx: &Tx) -> Result<()> {
        let mut i = self.write_lock();
        self.touch(&mut i, tx)
    }
}
