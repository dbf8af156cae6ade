//! The jobs every pool has: freeing blocks of destroyed datasets, marking obsolete ranges of removed vdevs, and freeing what a
//! discarded checkpoint kept (`crate::checkpoint_job`).

use crate::jobs::{Budget, Job, Progress, Step, Subject};
use crate::Pool;
use base::Result;
use disk::BlkPtr;
use dmu::Tx;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

/// They are idle until something is destroyed.
pub(crate) fn standing() -> Vec<Arc<dyn Job>> {
    vec![
        Arc::new(FreeDestroyed::default()),
        Arc::new(MarkObsolete::default()),
        Arc::new(crate::checkpoint_job::DiscardCheckpoint::default()),
    ]
}

/// Frees the blocks of destroyed datasets in the background (data format §11.1 to §11.3).
///
/// On disk the work is `free_bpobj`, `bptree_obj` and the livelists of destroyed clones; `$FREE` counts the bytes. Syncing context
/// only.
#[derive(Default)]
struct FreeDestroyed {
    /// Bytes freed since it last had nothing to do.
    done: AtomicU64,
}

impl Job for FreeDestroyed {
    fn name(&self) -> &'static str {
        "free"
    }

    fn step(&self, pool: &Pool, tx: &Tx, budget: &Budget) -> Result<Step> {
        let before = pool.dsl().freeing()?;
        let freed = pool
            .dsl()
            .free_some(tx, &mut |n| budget.take_blocks(n), &mut |bp| {
                pool.zio().free(bp, tx.txg())
            })?;
        if !freed.more {
            self.done.store(0, Ordering::Relaxed);
            return Ok(Step::Idle);
        }
        let bytes = before.saturating_sub(pool.dsl().freeing()?);
        self.done.fetch_add(bytes, Ordering::Relaxed);
        Ok(Step::More)
    }

    fn progress(&self, pool: &Pool, _: Subject) -> Result<Progress> {
        let done = self.done.load(Ordering::Relaxed);
        let total = done + pool.dsl().freeing()?;
        Ok(Progress { done, total })
    }
}

/// Marks as obsolete what the last reference to removed vdevs has gone from with a snapshot (pool format §23).
///
/// On disk the work is the obsolete bpobj. Syncing context only.
#[derive(Default)]
struct MarkObsolete {
    /// Bytes marked since it last had nothing to do.
    done: AtomicU64,
}

impl Job for MarkObsolete {
    fn name(&self) -> &'static str {
        "obsolete"
    }

    fn step(&self, pool: &Pool, tx: &Tx, budget: &Budget) -> Result<Step> {
        let mut bytes = 0;
        let more =
            pool.dsl()
                .obsolete_some(tx, &mut |n| budget.take_blocks(n), &mut |bp: &BlkPtr| {
                    bytes += bp.dva(0).asize();
                    pool.mark_obsolete(tx, bp)
                })?;
        if !more {
            self.done.store(0, Ordering::Relaxed);
            return Ok(Step::Idle);
        }
        self.done.fetch_add(bytes, Ordering::Relaxed);
        Ok(Step::More)
    }

    fn progress(&self, pool: &Pool, _: Subject) -> Result<Progress> {
        let done = self.done.load(Ordering::Relaxed);
        let total = done + pool.dsl().obsolete_left()?;
        Ok(Progress { done, total })
    }
}
