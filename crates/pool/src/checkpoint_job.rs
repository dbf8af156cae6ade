//! The checkpoint of a pool is taken, and discarded in the background (pool format §24).
//!
//! Invariants:
//!
//! 1. Both begin in an early task, so that the txg has freed nothing before ([`crate::Checkpoint`], invariant 1).
//! 2. Nothing that changes which devices have which guids is done while there is a checkpoint or one is being discarded
//!    ([`Pool::without_checkpoint`]): the state gone back to names the devices as they were.
//! 3. A range is freed in the same txg in which it leaves the map of its vdev. So a crash at any point leaves each range in
//!    the map or free, never both.

use crate::jobs::{Budget, Job, Progress, Step, Subject};
use crate::Pool;
use base::mutation::{mutated, Mutation};
use base::{bail, Result, Txg};
use disk::feature::guid;
use disk::scan::ScanState;
use disk::spacemap::MAX_OFFSET_V1;
use dmu::Tx;
use dsl::PoolSpace;
use std::sync::atomic::{AtomicU64, Ordering};
use vdev::keys;

/// Name of the job, and of the activity that `zpool wait` waits for.
const DISCARD: &str = "discard";
/// Name of the records in the history.
const TAKEN: &str = "spa checkpoint";
const DISCARDED: &str = "spa discard checkpoint";

impl Pool {
    /// Makes the newest state on disk the checkpoint, and returns its txg. Of what was changed and is not on disk yet the
    /// checkpoint has nothing: whoever wants it in has called [`Pool::sync`].
    ///
    /// # Errors
    /// `Kind::Exists`: there is a checkpoint. `Kind::Busy`: one is being discarded, or a removal or an expansion is under way.
    /// `Kind::Unsupported`: the feature is not enabled, or a device is too large. `Kind::NoSpace`. Nothing was changed then.
    pub fn take_checkpoint(&self) -> Result<Txg> {
        self.writable()?;
        self.may_take_checkpoint()?;
        let take = |pool: &Pool, tx: &Tx| {
            pool.may_take_checkpoint()?;
            let taken = pool.shares().checkpoint.take(tx, &*pool.config.features);
            let txg = pool.stop_unless(taken)?;
            let text = format!("checkpointed uberblock txg={txg}");
            pool.or_stop(pool.log_internal(tx, TAKEN, &text))?;
            Ok(txg)
        };
        match mutated(Mutation::CheckpointAfterFrees) {
            true => self.task(take),
            false => self.early_task(take),
        }
    }

    /// Lets go of the checkpoint. What only it kept is freed in the background, by the job `discard`.
    ///
    /// # Errors
    /// `Kind::NotFound`: there is none. `Kind::Busy`: it is being discarded already. Nothing was changed then.
    pub fn discard_checkpoint(&self) -> Result<()> {
        self.writable()?;
        self.early_task(|pool, tx| {
            let c = &pool.shares().checkpoint;
            if c.is_discarding() {
                bail!(Busy, "currently discarding checkpoint");
            }
            if c.txg().is_none() {
                bail!(NotFound, "checkpoint does not exist");
            }
            pool.or_stop(c.drop_it(tx))?;
            let text = "started discarding checkpointed state from the pool";
            pool.or_stop(pool.log_internal(tx, DISCARDED, text))
        })
    }

    /// Refuses what must not be done while there is a checkpoint or one is being discarded.
    pub(crate) fn without_checkpoint(&self) -> Result<()> {
        self.shares().checkpoint.must_be_none()
    }

    fn may_take_checkpoint(&self) -> Result<()> {
        if !self.config.features.is_enabled(guid::ZPOOL_CHECKPOINT) {
            bail!(
                Unsupported,
                "operation not supported on this type of pool: the feature 'zpool_checkpoint' is not enabled"
            );
        }
        let tops = self.tree().tops();
        for top in tops.iter().filter(|t| t.is_concrete()) {
            let units = top.asize() >> top.ashift();
            if units >= MAX_OFFSET_V1 && !crate::MapFeatures::v2(&self.config) {
                bail!(
                    Unsupported,
                    "device exceeds supported size ({})",
                    top.name()
                );
            }
            if top.get_u64(keys::ZAP_TOP).unwrap_or(0) == 0 {
                bail!(
                    Unsupported,
                    "device {} has no record of its own in the pool, as the software that made the pool was too old",
                    top.name()
                );
            }
        }
        let removal = self.removal()?;
        if removal.is_some_and(|r| r.state == ScanState::Scanning) {
            bail!(Busy, "device removal in progress");
        }
        if self.is_expanding() {
            bail!(Busy, "raidz expansion in progress");
        }
        self.without_checkpoint()?;
        if self.usable(false) <= self.dsl().root()?.phys().used_bytes {
            bail!(NoSpace, "out of space");
        }
        Ok(())
    }

    /// [`Pool::or_stop`] for what gives a value.
    fn stop_unless<T>(&self, r: Result<T>) -> Result<T> {
        r.inspect_err(|e| self.stop_for_good(e.clone()))
    }
}

/// Frees what only a discarded checkpoint kept; idle otherwise.
#[derive(Default)]
pub(crate) struct DiscardCheckpoint {
    /// Bytes freed since it last had nothing to do.
    done: AtomicU64,
}

impl Job for DiscardCheckpoint {
    fn name(&self) -> &'static str {
        DISCARD
    }

    fn step(&self, pool: &Pool, tx: &Tx, budget: &Budget) -> Result<Step> {
        let c = &pool.shares().checkpoint;
        if !c.is_discarding() {
            return Ok(Step::Idle);
        }
        let mut bytes = 0;
        let finished = c.give_back(
            tx,
            (&pool.config, &*pool.config.features),
            &mut |n| budget.take_blocks(n),
            &mut |vdev, from, to| {
                bytes += to - from;
                pool.space().free(vdev, from, to - from, tx.txg())
            },
        )?;
        self.done.fetch_add(bytes, Ordering::Relaxed);
        if !finished {
            return Ok(Step::More);
        }
        self.done.store(0, Ordering::Relaxed);
        let text = "finished discarding checkpointed state from the pool";
        pool.log_internal(tx, DISCARDED, text)?;
        Ok(Step::Idle)
    }

    fn progress(&self, pool: &Pool, _: Subject) -> Result<Progress> {
        let done = self.done.load(Ordering::Relaxed);
        let total = done + pool.shares().checkpoint.kept_sum();
        Ok(Progress { done, total })
    }
}
