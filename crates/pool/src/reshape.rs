//! Changes of the device tree of an open pool, apart from new top-level vdevs (`tops`): devices taken out of use and brought
//! back, attached, detached, replaced, logs removed.
//!
//! Invariants:
//!
//! 1. The tree is changed in syncing context, so that configuration, labels, guid sum and DTLs of one txg agree. What can
//!    fail (opening a device, writing its first labels) comes before, outside of it.
//! 2. A device that is attached in txg N lacks everything born before N + 3. Blocks of N + 1 may have been sent to the
//!    devices of the old tree already, and a thread that took the old tree may still send some of N + 2.
//! 3. The labels of a device that left are cleared only when the uberblock of a tree without it is on disk
//!    ([`Pool::retire_left`]). Until then a crash brings the old tree back, which needs them.
//! 4. Devices that a rebuild fills and those that a resilver fills do not arrive at the same time.
//! 5. An old device leaves a replacing group by itself when the DTL of its successor is empty on disk
//!    ([`Pool::finish_replacements`]). A spare leaves in the same way when the device it stands in for has everything again, but
//!    only if that device lacked something since, and is marked for it (`unspare`). One that was put in the place of a whole
//!    device stays until it is detached.

use crate::snapshots::Quiet;
use crate::Pool;
use base::mutation::{mutated, Mutation};
use base::sync::MutexExt;
use base::{bail, Kind, Result, Txg};
use disk::NvList;
use dmu::Tx;
use std::sync::Arc;
use vdev::{keys, Attach, DevSpec, State, Vdev, VdevKind};
use zap::Zap;

/// Txgs that are open, closing or being written while a task of the first of them runs.
pub(crate) const IN_FLIGHT: u64 = 3;
/// Txgs after which what was freed can be given out again, and is counted as free.
const UNTIL_FREE: usize = 4;

/// A device that left the tree, and the label it gets when it goes back to the spares.
pub(crate) type Left = (Arc<Vdev>, Option<NvList>);

/// How a device is taken out of use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offline {
    /// Only until the next import.
    pub temporary: bool,
    /// As a fault, which only `zpool clear` takes back.
    pub fault: bool,
}

/// Why a device is not attached, apart from what is wrong with the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttachRefusal {
    /// A resilver is under way or due.
    Resilvering,
    /// A sequential rebuild is under way.
    Rebuilding,
    /// A top-level vdev is being removed.
    Removing,
    /// The pool does not have the feature `device_rebuild`.
    NoFeature,
    /// What the devices of the vdev have depends on the blocks.
    NotSequential,
}

impl std::fmt::Display for AttachRefusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            AttachRefusal::Resilvering => "currently resilvering",
            AttachRefusal::Rebuilding => "currently sequentially resilvering",
            AttachRefusal::Removing => "device removal is in progress",
            AttachRefusal::NoFeature => {
                "device_rebuild feature must be enabled in order to use sequential reconstruction"
            }
            AttachRefusal::NotSequential => {
                "only mirror and dRAID vdevs support sequential reconstruction"
            }
        })
    }
}

impl Pool {
    /// Takes leaf `guid` out of use. What is written meanwhile is in its DTL.
    ///
    /// # Errors
    /// `Kind::Busy`: nobody else has what it holds. With `fault` it is only marked degraded then, which is no error.
    pub fn offline(&self, guid: u64, how: Offline) -> Result<()> {
        self.writable()?;
        let left = self.leave_log(guid)?;
        let done = self.task(move |pool, _| {
            pool.log_was_left(guid)?;
            let persist = !how.temporary;
            match how.fault {
                true => pool.tree().fault(guid, true, persist).map(drop)?,
                false => pool.tree().offline(guid, persist)?,
            }
            pool.settle_wear();
            pool.dirty_config();
            Ok(())
        });
        self.allow_log(left)?;
        done
    }

    /// Before leaf `guid` goes, if it is the last one of a log: nothing is logged there any more, and what was logged is in the pool.
    /// [`Pool::allow_log`] takes back what this returns.
    ///
    /// # Errors
    /// `Kind::Busy`: the log of a dataset that is not mounted, or whose key is not loaded, is still on it.
    fn leave_log(&self, guid: u64) -> Result<Option<Arc<Vdev>>> {
        let (top, leaf) = self.tree().leaf_of(guid)?;
        let last = leaf.state().usable() && !top.outage(&|l| l.guid() == guid).is_empty();
        if !top.is_log() || !top.is_concrete() || !last {
            return Ok(None);
        }
        self.space().set_allocating(top.id(), false)?;
        let empty = self.empty_logs().and_then(|()| self.is_unused(&top));
        if empty.is_err() {
            self.allow_log(Some(top.clone()))?;
        }
        empty.map(|()| Some(top))
    }

    /// Looks again in the txg in which leaf `guid` goes: [`Pool::leave_log`] has left a log alone whose other side was in use, and
    /// that may have gone meanwhile.
    ///
    /// # Errors
    /// `Kind::Busy`: nobody else has what is on it.
    fn log_was_left(&self, guid: u64) -> Result<()> {
        let (top, leaf) = self.tree().leaf_of(guid)?;
        let last = leaf.state().usable() && !top.outage(&|l| l.guid() == guid).is_empty();
        match top.is_log() && top.is_concrete() && last {
            true => self.is_unused(&top),
            false => Ok(()),
        }
    }

    /// The log that was left is used as its property says, if it can be.
    pub(crate) fn allow_log(&self, left: Option<Arc<Vdev>>) -> Result<()> {
        let Some(top) = left.filter(|_| self.stopped().is_none()) else {
            return Ok(());
        };
        self.refresh_writable(&top)?;
        let passive = top.get_u64(keys::NON_ALLOCATING).unwrap_or(0) != 0;
        self.space().set_allocating(top.id(), !passive)
    }

    /// Tells the allocator whether `top` can be written. Of a log that came back that is said when the txg is on disk that has it
    /// in use ([`Pool::logs_back`]).
    fn refresh_writable(&self, top: &Vdev) -> Result<()> {
        let usable = top.state().usable();
        if usable && top.is_log() && !mutated(Mutation::NewVdevAtOnce) {
            return Ok(());
        }
        self.space().set_writable(top.id(), usable)
    }

    /// Logs that are in use again by the txg that is about to be written: the import after a crash knows that from its
    /// configuration only. Log blocks are placed on them when it is on disk ([`Pool::use_logs`]), and when they are believed to have
    /// what is born then (invariant 2). Those that are gone are not used from now on.
    pub(crate) fn logs_back(&self) -> Result<Vec<Arc<Vdev>>> {
        let mut back = Vec::new();
        let next = self.dmu().open_txg().number();
        for top in self.tree().tops().iter() {
            let known = top.is_concrete() && self.space().metaslab_count(top.id()) > 0;
            if !top.is_log() || !known {
                continue;
            }
            match top.state().usable() {
                false => self.space().set_writable(top.id(), false)?,
                true if self.space().is_writable(top.id()) => {}
                true if top.missing().contains(next, next + 1) => {}
                true => back.push(top.clone()),
            }
        }
        Ok(back)
    }

    /// The txg is on disk that has these logs in use.
    pub(crate) fn use_logs(&self, back: &[Arc<Vdev>]) -> Result<()> {
        for top in back.iter().filter(|t| t.state().usable()) {
            if self.space().metaslab_count(top.id()) > 0 {
                self.space().set_writable(top.id(), true)?;
            }
        }
        Ok(())
    }

    /// Puts leaf `guid` out of use because of errors, or only marks it degraded if `degrade`, or if nobody else has what it
    /// holds. Returns its state.
    ///
    /// Errors: [`base::Kind::Stale`] if the devices took everything since [`Pool::resumptions`] was `resumptions`, which settles the
    /// errors.
    pub fn fault(&self, guid: u64, degrade: bool, resumptions: u64) -> Result<State> {
        self.writable()?;
        let mut degrade = degrade;
        let left = match degrade {
            true => None,
            false => match self.leave_log(guid) {
                Ok(left) => left,
                // Logs on it are still to be replayed.
                Err(e) if e.kind == Kind::Busy => {
                    degrade = true;
                    None
                }
                Err(e) => return Err(e),
            },
        };
        let done = self.task(move |pool, _| {
            if pool.resumptions() != resumptions {
                bail!(Stale, "the pool was resumed meanwhile");
            }
            // Its other side went meanwhile: logs on it are still to be replayed.
            let degrade = degrade || pool.log_was_left(guid).is_err();
            let state = match degrade {
                true => pool.tree().degrade(guid).map(|()| State::Degraded)?,
                false => pool.tree().fault(guid, false, true)?,
            };
            pool.dirty_config();
            Ok(state)
        });
        self.allow_log(left)?;
        done
    }

    /// Brings leaf `guid` back, and has what it missed copied to it. Returns its state: it may be gone, or faulted still.
    pub fn online(&self, guid: u64) -> Result<State> {
        self.writable()?;
        let (top, leaf) = self.tree().leaf_of(guid)?;
        self.tree().online(guid)?;
        self.takes_over(&leaf);
        self.refresh_writable(&top)?;
        self.dirty_config();
        self.sync()?;
        self.request_resilver();
        Ok(leaf.state())
    }

    /// Has leaf `guid` go by the name `path` from now on, if that is a name of its device; true if it is. A leaf that is not open is
    /// not opened.
    ///
    /// # Errors
    /// `Kind::ReadOnly`; those of opening the device.
    pub fn rename_device(&self, guid: u64, path: &str) -> Result<bool> {
        self.writable()?;
        let (_, leaf) = self.tree().leaf_of(guid)?;
        let device = self.env.disks.open(path, env::Access::Read)?;
        if !self
            .tree()
            .is_device_of(guid, &*device, self.dmu().open_txg())
        {
            return Ok(false);
        }
        drop(device);
        if leaf.path().as_deref() != Some(path) {
            let before = leaf.path().unwrap_or_default();
            tracing::info!(pool = %self.name(), "{before} is '{path}' now");
            leaf.set(keys::PATH, path);
            self.dirty_config();
        }
        Ok(true)
    }

    /// Has the top-level vdev of leaf `guid` use all that its devices hold, in whole metaslabs (`zpool online -e`). False if it
    /// is as large already, or a device of it is not there.
    pub fn expand(&self, guid: u64) -> Result<bool> {
        self.writable()?;
        self.task(move |pool, tx| {
            let (top, _) = pool.tree().leaf_of(guid)?;
            let base = pool.label_base(0, tx.txg());
            let Some(asize) = pool.tree().expand(top.id(), &base, tx.txg())? else {
                return Ok(false);
            };
            pool.dirty_config();
            let grown = pool
                .allocation
                .maps
                .grow_top(tx, top.id(), top.metaslab_count())
                .and_then(|()| pool.space().grow_top(top.id(), asize, tx.txg()))
                .and_then(|_| pool.shares().brt.grow_vdev(top.id(), asize));
            pool.or_stop(grown)?;
            Ok(true)
        })
    }

    /// Opens again what is not open, and notices what is gone (`zpool reopen`).
    pub fn reopen(&self) -> Result<()> {
        self.tree().reopen();
        for top in self.tree().tops().iter().filter(|t| t.is_concrete()) {
            if self.space().metaslab_count(top.id()) > 0 {
                self.refresh_writable(top)?;
            }
        }
        if !self.is_readonly() {
            self.sync()?;
            self.request_resilver();
        }
        Ok(())
    }

    /// Puts a new device beside leaf `guid`, and has it filled. Returns the guid of the new leaf.
    ///
    /// # Errors
    /// Those of [`vdev::VdevTree::prepare`]; a checkpoint exists. Nothing was changed then.
    pub fn attach(
        &self,
        guid: u64,
        dev: &DevSpec,
        how: Attach,
        ashift: Option<u32>,
    ) -> Result<u64> {
        self.attach_as(guid, dev, how, ashift, false)
    }

    /// The same, and it is filled in order of place, by a sequential rebuild.
    ///
    /// # Errors
    /// Further those of [`Pool::attach_refusal`].
    pub fn attach_sequentially(
        &self,
        guid: u64,
        dev: &DevSpec,
        how: Attach,
        ashift: Option<u32>,
    ) -> Result<u64> {
        self.attach_as(guid, dev, how, ashift, true)
    }

    /// What stands against a device beside leaf `guid` that is filled sequentially, or by a resilver.
    pub fn attach_refusal(&self, guid: u64, sequential: bool) -> Result<Option<AttachRefusal>> {
        if self.is_removing() {
            return Ok(Some(AttachRefusal::Removing));
        }
        if !sequential {
            return Ok(self.is_rebuilding().then_some(AttachRefusal::Rebuilding));
        }
        let enabled = self
            .config
            .features
            .is_enabled(disk::feature::guid::DEVICE_REBUILD);
        let top = self.tree().top_of(guid)?;
        Ok(if !enabled || !self.has_vdev_zaps() {
            Some(AttachRefusal::NoFeature)
        } else if self.is_healing() {
            Some(AttachRefusal::Resilvering)
        } else if !top.can_be_rebuilt() {
            Some(AttachRefusal::NotSequential)
        } else {
            None
        })
    }

    fn may_attach(&self, guid: u64, sequential: bool) -> Result<()> {
        self.without_checkpoint()?;
        match self.attach_refusal(guid, sequential)? {
            None => Ok(()),
            Some(
                why @ (AttachRefusal::Resilvering
                | AttachRefusal::Rebuilding
                | AttachRefusal::Removing),
            ) => bail!(Busy, "{why}"),
            Some(why) => bail!(Unsupported, "{why}"),
        }
    }

    fn attach_as(
        &self,
        guid: u64,
        dev: &DevSpec,
        how: Attach,
        ashift: Option<u32>,
        sequential: bool,
    ) -> Result<u64> {
        self.writable()?;
        self.may_attach(guid, sequential)?;
        let base = self.label_base(0, Txg::NONE);
        let fresh = self
            .tree()
            .prepare(guid, dev, how, ashift, &base, self.dmu().open_txg())?;
        let new = fresh.clone();
        let done = self.task(move |pool, tx| pool.attach_in(tx, guid, &new, how, sequential));
        if let Err(e) = done {
            // In a pool that has stopped it may be in the tree on disk: a later txg may have failed.
            if self.stopped().is_none() {
                self.tree().retire(&fresh, None);
            }
            return Err(e);
        }
        self.request_resilver();
        Ok(fresh.guid())
    }

    /// Lets distributed spare `spare`, a guid of the list of spares, stand in for leaf `guid` of its dRAID.
    ///
    /// # Errors
    /// It is in use, or of another dRAID; those of [`Pool::attach`]. Nothing was changed then.
    pub fn attach_dspare(&self, guid: u64, spare: u64, sequential: bool) -> Result<()> {
        self.writable()?;
        self.may_attach(guid, sequential)?;
        let aux = self.aux_devices();
        let dev = aux
            .spares
            .iter()
            .find(|c| c.get_u64(keys::GUID) == Some(spare));
        let number = dev.and_then(|c| c.get_u64(keys::SPARE_ID));
        let top = self.tree().top_of(guid)?;
        let own = dev.and_then(|c| c.get_u64(keys::pool::TOP_GUID)) == Some(top.guid());
        let Some(number) = number.filter(|_| own) else {
            bail!(
                Unsupported,
                "dRAID spares can only replace child devices in their parent's dRAID vdev"
            );
        };
        self.task(move |pool, tx| {
            pool.may_attach(guid, sequential)?;
            let (_, old) = pool.tree().leaf_of(guid)?;
            let lacks_before = lacked_by_new(tx);
            let tree = pool.tree();
            let fresh = tree.attach_dspare(guid, number, spare, tx.txg(), lacks_before)?;
            mark_if_it_lacks(&old);
            pool.has_arrived(tx, &fresh, sequential, lacks_before)?;
            let path = |v: &Vdev| v.path().unwrap_or_default();
            let (new, old) = (path(&fresh), path(&old));
            let text = format!("spare in vdev={new} for vdev={old}");
            pool.or_stop(pool.log_internal(tx, "vdev attach", &text))
        })?;
        self.request_resilver();
        Ok(())
    }

    /// A device was put into the tree: it gets what leaves have, and is filled.
    fn has_arrived(
        &self,
        tx: &Tx,
        fresh: &Arc<Vdev>,
        sequential: bool,
        lacks_before: Txg,
    ) -> Result<()> {
        self.dirty_config();
        self.or_stop(self.leaf_arrives(tx, fresh))?;
        if !sequential {
            return Ok(());
        }
        fresh.unset(keys::RESILVER_TXG);
        fresh.set_u64(keys::REBUILD_TXG, tx.txg().number());
        let top = self.tree().top_of(fresh.guid())?;
        let begun = self
            .make_way_for_rebuild(tx)
            .and_then(|()| self.begin_rebuild(tx, top.id(), lacks_before));
        self.or_stop(begun)
    }

    fn attach_in(
        &self,
        tx: &Tx,
        guid: u64,
        fresh: &Arc<Vdev>,
        how: Attach,
        sequential: bool,
    ) -> Result<()> {
        self.may_attach(guid, sequential)?;
        let (_, old) = self.tree().leaf_of(guid)?;
        let path = |v: &Vdev| v.path().unwrap_or_default();
        let (new_path, old_path) = (path(fresh), path(&old));
        let lacks_before = lacked_by_new(tx);
        self.tree()
            .attach(guid, fresh, how, tx.txg(), lacks_before)?;
        match how {
            Attach::Spare(_) => mark_if_it_lacks(&old),
            // The spare that stands in for the old one goes when the new one is filled.
            Attach::Replace if self.has_spare(fresh.guid()) => fresh.set_u64(keys::UNSPARE, 1),
            Attach::Replace | Attach::Mirror => {}
        }
        self.has_arrived(tx, fresh, sequential, lacks_before)?;
        let text = match how {
            Attach::Mirror => format!("attach vdev={new_path} to vdev={old_path}"),
            Attach::Replace => format!("replace vdev={new_path} for vdev={old_path}"),
            Attach::Spare(_) => format!("spare in vdev={new_path} for vdev={old_path}"),
        };
        self.or_stop(self.log_internal(tx, "vdev attach", &text))
    }

    /// Takes leaf `guid` out of its mirror, replacing or spare group.
    ///
    /// # Errors
    /// It is in none; nobody else has what it holds (`Kind::Busy`); a checkpoint exists. Nothing was changed then.
    pub fn detach(&self, guid: u64) -> Result<()> {
        self.writable()?;
        self.without_checkpoint()?;
        self.task(move |pool, tx| pool.detach_in(tx, guid))
    }

    /// [`Pool::detach`] in the txg of `tx`.
    pub(crate) fn detach_in(&self, tx: &Tx, guid: u64) -> Result<()> {
        self.without_checkpoint()?;
        self.may_leave(tx)?;
        let stays = self.spare_that_stays(guid);
        // The survivor of a group may get another guid.
        let known: Vec<(Arc<Vdev>, base::RangeSet)> = {
            let mut known = self.vdevs.dtls.acquire();
            let leaves = self.tree().dtl_holders().into_iter();
            leaves
                .filter_map(|l| known.remove(&l.guid()).map(|dtl| (l, dtl)))
                .collect()
        };
        let leaves: Vec<_> = self
            .tree()
            .leaves()
            .into_iter()
            .map(|l| (l.guid(), l))
            .collect();
        let left = self.tree().detach(guid);
        for (before, leaf) in leaves {
            self.background.wears.renamed(before, leaf.guid());
        }
        {
            let gone = left.as_ref().ok().map(|l| l.guid());
            let mut now = self.vdevs.dtls.acquire();
            for (leaf, dtl) in known {
                if Some(leaf.guid()) != gone {
                    now.insert(leaf.guid(), dtl);
                }
            }
        }
        let left = left?;
        self.dirty_config();
        self.or_stop(self.leaf_leaves(tx, &left))?;
        if let Some(spare) = stays {
            self.or_stop(self.drop_spare(tx, spare))?;
        }
        let path = left.path().unwrap_or_default();
        self.or_stop(self.log_internal(tx, "detach", &format!("vdev={path}")))?;
        let idle = self.spare_label(left.guid());
        self.vdevs.left.acquire().push((left, idle));
        Ok(())
    }

    /// Guid of the hot spare that takes the place of leaf `guid` for good when that is detached.
    fn spare_that_stays(&self, guid: u64) -> Option<u64> {
        let group = self.tree().all().into_iter().find(|v| {
            v.kind() == VdevKind::Spare && v.children().first().is_some_and(|c| c.guid() == guid)
        })?;
        let spare = group.children().last()?;
        let own = spare.kind() != VdevKind::Dspare;
        (own && group.children().len() == 2).then(|| spare.guid())
    }

    /// A leaf is in use again: the spare that stands in for it goes when it lacks nothing.
    pub(crate) fn takes_over(&self, leaf: &Vdev) {
        if leaf.state().usable() && self.has_spare(leaf.guid()) {
            leaf.set_u64(keys::UNSPARE, 1);
        }
    }

    /// Whether a spare stands in for leaf `guid`.
    fn has_spare(&self, guid: u64) -> bool {
        let stood_in = |g: &Arc<Vdev>| {
            let first = g.children().first();
            first.is_some_and(|f| f.leaves().iter().any(|l| l.guid() == guid))
        };
        let all = self.tree().all();
        let mut groups = all.iter().filter(|v| v.kind() == VdevKind::Spare);
        groups.any(stood_in)
    }

    /// What the MOS has of each leaf.
    pub(crate) fn leaf_arrives(&self, tx: &Tx, leaf: &Vdev) -> Result<()> {
        match self.directory(crate::tops::ZAP_MAP)? {
            Some(map) => crate::tops::create_leaf_zap(self.mos(), tx, map, leaf),
            None => Ok(()),
        }
    }

    /// Frees what the MOS has of a leaf that left.
    pub(crate) fn leaf_leaves(&self, tx: &Tx, leaf: &Vdev) -> Result<()> {
        if let Some(dtl) = leaf.get_u64(keys::DTL).filter(|o| *o != 0) {
            self.allocation.maps.free_map(tx, &self.config, dtl)?;
            leaf.unset(keys::DTL);
        }
        for key in [keys::ZAP_LEAF, keys::ZAP_TOP] {
            let Some(zap) = leaf.get_u64(key).filter(|o| *o != 0) else {
                continue;
            };
            self.mos().free(tx, zap)?;
            if let Some(map) = self.directory(crate::tops::ZAP_MAP)? {
                Zap::new(&self.mos().hold(map)?).remove_int(tx, zap)?;
            }
            leaf.unset(key);
        }
        Ok(())
    }

    /// Lets go of the devices that left with the txg that is on disk now.
    pub(crate) fn retire_left(&self) {
        let left = std::mem::take(&mut *self.vdevs.left.acquire());
        if !left.is_empty() {
            self.settle_wear();
        }
        for (leaf, idle) in left {
            self.tree().retire(&leaf, idle.as_ref());
        }
    }

    /// Leaves that are replaced: their successors have everything, on disk too, and nobody needs them any more. A spare
    /// leaves when the device it stands in for has everything again.
    fn replaced(&self) -> Vec<u64> {
        if self.without_checkpoint().is_err() {
            return Vec::new();
        }
        let known = self.vdevs.dtls.acquire();
        let whole = |v: &Vdev| {
            let on_disk = known.get(&v.guid()).is_none_or(|d| d.is_empty());
            v.state() == State::Healthy
                && v.missing().is_empty()
                && (on_disk || !v.kind().is_leaf())
        };
        let mut out = Vec::new();
        for top in self.tree().tops().iter() {
            for group in below(top) {
                let (Some(first), Some(last)) = (group.children().first(), group.children().last())
                else {
                    continue;
                };
                let goes = match group.kind() {
                    VdevKind::Replacing if whole(last) => first,
                    VdevKind::Spare if whole(first) && is_to_take_over(first) => last,
                    _ => continue,
                };
                let needed = !top.outage(&|l| l.guid() == goes.guid()).is_empty();
                if goes.children().is_empty() && !needed {
                    out.push(goes.guid());
                }
            }
        }
        out
    }

    /// Whether a txg has devices to take out that were replaced.
    pub(crate) fn has_replaced(&self) -> bool {
        !self.replaced().is_empty()
    }

    /// Takes out devices that were replaced, and spares that are not needed any more.
    pub(crate) fn finish_replacements(&self, tx: &Tx) -> Result<()> {
        for guid in self.replaced() {
            // One may have made another one necessary.
            match self.detach_in(tx, guid) {
                Err(e) if self.stopped().is_some() => return Err(e),
                Err(e) => tracing::debug!(guid, %e, "a replaced device stays"),
                Ok(()) => {}
            }
        }
        Ok(())
    }

    /// Waits until spares have left whose devices have everything again. The first txg writes down that a device lacks
    /// nothing, the next one takes the spare out.
    ///
    /// # Errors
    /// Those of a txg.
    pub fn release_spares(&self) -> Result<()> {
        let leaves = |v: &Arc<Vdev>| match (v.kind(), v.children()) {
            (VdevKind::Spare, [first, ..]) => {
                first.state() == State::Healthy
                    && first.missing().is_empty()
                    && is_to_take_over(first)
            }
            _ => false,
        };
        for _ in 0..3 {
            if !self.tree().all().iter().any(leaves) {
                break;
            }
            self.sync()?;
        }
        Ok(())
    }

    /// A number that a property of leaf `leaf`, of its top-level vdev or of the root has, the nearest that is set.
    pub fn vdev_number(&self, leaf: &Vdev, name: &str) -> Option<u64> {
        let top = self.tree().leaf_of(leaf.guid()).ok().map(|(top, _)| top);
        let zaps = [
            leaf.get_u64(keys::ZAP_LEAF),
            top.and_then(|t| t.get_u64(keys::ZAP_TOP)),
            self.tree().root_u64(keys::ZAP_ROOT),
        ];
        zaps.into_iter()
            .flatten()
            .filter(|z| *z != 0)
            .find_map(|z| {
                let dn = self.mos().hold(z).ok()?;
                let set = Zap::new(&dn).get(name).ok().flatten();
                // As OpenZFS stores that it is not set.
                set.filter(|n| *n != u64::MAX)
            })
    }

    /// Whether a device is being replaced, or a spare stands in for one.
    pub fn is_replacing(&self) -> bool {
        let group = |v: &Arc<Vdev>| matches!(v.kind(), VdevKind::Replacing | VdevKind::Spare);
        self.tree().all().iter().any(group)
    }

    /// The same, but for spares that stand in and lack nothing: they may do so for good.
    pub fn is_replacement_under_way(&self) -> bool {
        let incomplete = |v: &Arc<Vdev>| match (v.kind(), v.children()) {
            (VdevKind::Replacing, _) => true,
            (VdevKind::Spare, [_, spare]) => !spare.dtl_is_empty(),
            (VdevKind::Spare, _) => true,
            _ => false,
        };
        self.tree().all().iter().any(incomplete)
    }

    /// Removes top-level vdev `id`, a log: no log block is placed on it any more, the intent logs of all datasets are
    /// emptied, and its place becomes a hole.
    ///
    /// # Errors
    /// `Kind::Busy`: the log of a dataset that is not mounted, or whose key is not loaded, is still on it. It goes on being
    /// used then.
    pub fn remove_log(&self, id: u64) -> Result<()> {
        self.writable()?;
        self.without_checkpoint()?;
        let top = self.tree().top(id)?;
        if !top.is_log() || !top.is_concrete() {
            bail!(Unsupported, "operation not supported on this type of vdev");
        }
        self.space().set_allocating(id, false)?;
        let done = self
            .empty_logs()
            .and_then(|()| self.task(move |pool, tx| pool.remove_log_in(tx, id)));
        if done.is_err() && self.stopped().is_none() {
            let passive = top.get_u64(keys::NON_ALLOCATING).unwrap_or(0) != 0;
            self.space().set_allocating(id, !passive)?;
        }
        done
    }

    /// Frees the blocks of all intent logs in use; new ones go to other devices. Until what the logs had is on disk, commits
    /// wait for txgs.
    pub(crate) fn empty_logs(&self) -> Result<()> {
        let mut last = self.dmu().open_txg();
        let mut quiet = Quiet::default();
        for set in self.open_sets() {
            if let Some(zil) = set.zil().filter(|z| !z.needs_replay()) {
                last = last.max(zil.pause()?);
                quiet.keep(zil);
            }
        }
        use dmu::Driver;
        self.sync_through(last)?;
        drop(quiet);
        for _ in 0..UNTIL_FREE {
            self.prove_devices()?;
        }
        Ok(())
    }

    fn remove_log_in(&self, tx: &Tx, id: u64) -> Result<()> {
        self.without_checkpoint()?;
        self.may_leave(tx)?;
        let top = self.tree().top(id)?;
        self.is_unused(&top)?;
        self.or_stop(self.cancel_rebuild(tx, &top))?;
        let known: Vec<u64> = top.leaves().iter().map(|l| l.guid()).collect();
        let leaves = self.tree().remove_top(id)?;
        self.dirty_config();
        self.space().remove_top(id);
        self.or_stop(self.allocation.maps.remove_top(tx, &self.config, id))?;
        known
            .iter()
            .for_each(|g| drop(self.vdevs.dtls.acquire().remove(g)));
        for leaf in &leaves {
            self.or_stop(self.leaf_leaves(tx, leaf))?;
        }
        if !top.kind().is_leaf() {
            self.or_stop(self.leaf_leaves(tx, &top))?;
        }
        self.vdevs.devices.refresh();
        let text = format!(
            "{} vdev {id} (log) {}",
            self.name(),
            top.path().unwrap_or_default()
        );
        self.or_stop(self.log_internal(tx, "vdev remove", text.trim_end()))?;
        let mut left = self.vdevs.left.acquire();
        left.extend(leaves.into_iter().map(|l| (l, None)));
        Ok(())
    }

    /// Refuses a log on which something is allocated.
    pub(crate) fn is_unused(&self, log: &Vdev) -> Result<()> {
        let used = self.allocated(log.id())?;
        if used > 0 {
            bail!(
                Busy,
                "the intent logs of datasets still have {used} bytes on it: mount them, and load the keys \
                 of encrypted ones, to have them replayed"
            );
        }
        Ok(())
    }

    /// Bytes of top-level vdev `id` that are not free on disk.
    fn allocated(&self, id: u64) -> Result<u64> {
        let mut used = 0;
        for m in 0..self.space().metaslab_count(id) {
            let (start, end) = self.space().metaslab_bounds(id, m)?;
            used += (end - start).saturating_sub(self.space().free_ranges(id, m)?.total());
        }
        Ok(used)
    }

    pub(crate) fn writable(&self) -> Result<()> {
        if self.is_readonly() {
            bail!(ReadOnly, "pool is read-only");
        }
        Ok(())
    }
}

/// Whether the spare beside this device, or group, goes when it is whole.
fn is_to_take_over(first: &Arc<Vdev>) -> bool {
    let marked = |l: &Arc<Vdev>| l.get_u64(keys::UNSPARE).unwrap_or(0) != 0;
    first.leaves().iter().any(marked)
}

/// A spare stands in for a leaf that is not whole: it goes when that leaf is.
fn mark_if_it_lacks(old: &Vdev) {
    if old.state() != State::Healthy || !old.dtl_is_empty() {
        old.set_u64(keys::UNSPARE, 1);
    }
}

/// The first txg of which a device that is attached in `tx` has everything.
fn lacked_by_new(tx: &Tx) -> Txg {
    match mutated(Mutation::AttachedTxgTooFew) {
        true => tx.txg(),
        false => tx.txg().after(IN_FLIGHT),
    }
}

/// All vdevs at and below `top`, children first.
fn below(top: &Arc<Vdev>) -> Vec<Arc<Vdev>> {
    let mut out: Vec<Arc<Vdev>> = top.children().iter().flat_map(below).collect();
    out.push(top.clone());
    out
}
