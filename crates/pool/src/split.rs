//! `zpool split`: one side of every mirror becomes a pool of its own (pool format §6.5).
//!
//! The state of the new pool is that of the last txg before the sides are taken out of use. Steps of [`Pool::split`]:
//!
//! 1. The intent logs are emptied, so that nothing is on log devices, which the new pool does not have.
//! 2. In one txg, N, the sides are taken out of use, for this import only. Their newest state is that of N - 1.
//! 3. Txgs pass until nothing sends anything to the sides any more. The devices can be opened anew only then.
//! 4. The sides are opened as a pool with another guid and name. Its first txg writes labels that name the old pool
//!    (`split_guid`), and frees what belongs to the devices that stay behind.
//! 5. The old pool detaches the sides, in one txg.
//! 6. The new pool forgets that it was split off, and is exported.
//!
//! Invariants:
//!
//! 1. The old pool has every block on the sides that stay, at each step.
//! 2. Before the first txg of the new pool is on disk, a crash leaves the old pool whole. Its next import copies to the sides what they
//!    missed.
//! 3. Behind it both pools are there. Before step 5 is on disk the old pool finds the sides split off, and misses them until they
//!    are detached.

use crate::half::{Half, SplitSpec};
use crate::reshape::IN_FLIGHT;
use crate::spacemaps::TopShape;
use crate::{OpenOptions, Pool};
use base::sync::MutexExt;
use base::{bail, Kind, Result};
use disk::NvList;
use dmu::Tx;
use std::sync::{Arc, Mutex};
use vdev::keys::pool as key;
use vdev::{State, Vdev, VdevTree};

/// How often the sides are tried to be opened anew, and nanoseconds between two attempts: a read of theirs may still be under way.
const ATTEMPTS: u32 = 100;
const BETWEEN_NS: u64 = 100_000_000;

impl Pool {
    /// Splits the pool. The new pool is exported when it returns. Returns what went wrong behind the point of no return, in words: both
    /// pools are there then.
    ///
    /// # Errors
    /// `Kind::Busy`: a resilver, a rebuild or a removal is going on, a device that is to leave lacks something, the intent log of a
    /// dataset that is not mounted is on a log device; a checkpoint exists; `Kind::Invalid`: the members are not one side of each
    /// mirror. Those of opening the new pool. The pool is as it was then, after a resilver.
    pub fn split(&self, spec: SplitSpec) -> Result<Option<String>> {
        self.writable()?;
        self.may_split(&spec.members)?;
        let tops = self.tree().tops();
        let is_log = |t: &&Arc<Vdev>| t.is_log() && t.is_concrete();
        let logs: Vec<Arc<Vdev>> = tops.iter().filter(is_log).cloned().collect();
        let members = spec.members.clone();
        let passive = |log: &Arc<Vdev>| self.space().set_allocating(log.id(), false);
        let left = logs.iter().try_for_each(passive);
        let aside = left.and_then(|()| self.empty_logs()).and_then(|()| {
            let (logs, members) = (logs.clone(), members.clone());
            self.task(move |pool, _| pool.take_aside(&logs, &members))
        });
        let each = logs.into_iter().map(|log| self.allow_log(Some(log)));
        let allowed = each.fold(Ok(()), Result::and);
        let tree = aside?;
        match allowed.and_then(|()| self.split_off(spec, tree)) {
            Ok(new) => self.part(&new, members),
            Err(e) => {
                for guid in members {
                    if let Err(e) = self.online(guid) {
                        tracing::warn!(guid, "a device stays out of use: {e}");
                    }
                }
                Err(e)
            }
        }
    }

    /// What stands against splitting the pool.
    fn may_split(&self, members: &[u64]) -> Result<()> {
        self.without_checkpoint()?;
        if self.is_removing() {
            bail!(Busy, "device removal is in progress");
        }
        if self.is_healing() || self.is_rebuilding() {
            bail!(Busy, "a resilver is in progress");
        }
        vdev::split_tree(&self.tree().config(true), members, 1)?;
        for guid in members {
            let (top, leaf) = self.tree().leaf_of(*guid)?;
            if leaf.state() != State::Healthy {
                bail!(NoDevice, "{} is not online", leaf.name());
            }
            let needed = !top.outage(&|l| l.guid() == *guid).is_empty();
            if !leaf.dtl_is_empty() || needed {
                bail!(Busy, "{}: its mirror is not whole", leaf.name());
            }
        }
        Ok(())
    }

    /// The txg from which on the sides get nothing. Returns the device tree.
    fn take_aside(&self, logs: &[Arc<Vdev>], members: &[u64]) -> Result<NvList> {
        self.may_split(members)?;
        for log in logs {
            self.is_unused(log)?;
        }
        let tree = self.tree().config(true);
        for (i, guid) in members.iter().enumerate() {
            if let Err(e) = self.tree().offline(*guid, false) {
                for guid in &members[..i] {
                    self.tree().online(*guid)?;
                }
                return Err(e);
            }
        }
        self.settle_wear();
        self.dirty_config();
        Ok(tree)
    }

    /// Opens the sides as a pool, and has them written as one. The device tree is that of the old pool when the sides left.
    fn split_off(&self, spec: SplitSpec, tree: NvList) -> Result<Arc<Pool>> {
        for _ in 0..IN_FLIGHT {
            self.prove_devices()?;
        }
        let mut whole = self.label_base(key::STATE_ACTIVE, self.synced_txg());
        whole.set(key::VDEV_TREE, tree);
        let tunables = spec.tunables;
        let half = Arc::new(Half {
            spec,
            of: self.guid(),
            of_name: self.name(),
            whole: Mutex::default(),
        });
        let config = half.config_of(whole)?;
        let options = OpenOptions {
            missing_log: true,
            activity: crate::Activity::Own,
            tunables,
            split: Some(half),
            ..OpenOptions::default()
        };
        let mut left = ATTEMPTS;
        loop {
            match Pool::open(self.env.clone(), &config, options.clone()) {
                // Another handle of a device is open still.
                Err(e) if matches!(e.kind, Kind::NoDevice | Kind::Busy) && left > 0 => {
                    left -= 1;
                    self.env.clock.pause(BETWEEN_NS);
                }
                opened => return opened,
            }
        }
    }

    /// The first txg of the new pool: lets go of what belongs to the devices it does not have.
    pub(crate) fn become_half(&self, tx: &Tx, half: &Half) -> Result<()> {
        let whole = half.whole.acquire().clone();
        let Some(whole) = whole else {
            bail!(Damaged, "the configuration before the split is not known");
        };
        let before = VdevTree::from_config(self.env.clone(), whole.need_nvlist(key::VDEV_TREE)?)?;
        for top in before.tops().iter() {
            let gone = top.is_log() && top.is_concrete();
            if gone && top.metaslab_array() != 0 {
                // The ZAP, which goes with the leaf if that is all there is, names an object of the maps.
                let maps = &self.allocation.maps;
                maps.open_top(top.metaslab_array(), TopShape::of(top))?;
                maps.remove_top(tx, &self.config, top.id())?;
            }
            for leaf in top.leaves() {
                if !half.spec.members.contains(&leaf.guid()) {
                    self.leaf_leaves(tx, &leaf)?;
                }
            }
            if gone && !top.kind().is_leaf() {
                self.leaf_leaves(tx, top)?;
            }
        }
        self.forget_aux(tx)?;
        for (name, value) in &half.spec.props {
            self.store_prop(tx, name, Some(value))?;
        }
        if let Some(comment) = &half.spec.comment {
            let text = Some(comment.as_str()).filter(|c| !c.is_empty());
            self.set_extra("comment", text);
        }
        self.log_internal(tx, "split", &format!("from pool {}", half.of_name))?;
        let (command, uid) = &half.spec.command;
        self.log_in(tx, command, *uid)
    }

    /// The new pool is on disk: the old one lets go of its devices, and the new one is exported.
    fn part(&self, new: &Pool, members: Vec<u64>) -> Result<Option<String>> {
        let name = new.name();
        let into = name.clone();
        let detached = self.task(move |pool, tx| {
            let mut kept = None;
            for guid in members {
                match pool.detach_in(tx, guid) {
                    Err(e) if pool.stopped().is_some() => return Err(e),
                    Err(e) => kept = Some(e),
                    Ok(()) => {}
                }
            }
            pool.or_stop(pool.log_internal(tx, "split", &format!("into pool {into}")))?;
            Ok(kept)
        });
        let mut told: Vec<String> = Vec::new();
        match detached {
            Ok(None) => {
                new.shared().split_guid = None;
                new.dirty_config();
            }
            Ok(Some(e)) | Err(e) => told.push(format!(
                "pool '{name}' has its devices, but {} still lists them: {e}; detach them",
                self.name()
            )),
        }
        if let Err(e) = new.export() {
            told.push(format!("pool '{name}' was not exported: {e}"));
            let _ = new.close();
        }
        Ok((!told.is_empty()).then(|| told.join("\n")))
    }
}
