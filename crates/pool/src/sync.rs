//! How a txg reaches the disk (pool format §3).
//!
//! One thread at a time runs [`Pool::sync_group`], whichever needs it first; the others wait for it.
//! The order is what makes a pool consistent at every instant: everything new is written to free
//! space, flushed, and only then does one uberblock make it the pool.

use crate::accounting::Accounting;
use crate::config::write_nvlist;
use crate::datasets::own_number;
use crate::served::Along;
use crate::suspend::Failmode;
use crate::{OpenSet, Pool, VERSION_FEATURES};
use base::mutation::{mutated, Mutation};
use base::sync::{CondvarExt, MutexExt, OnPanic};
use base::{bail, Error, Kind, Result, Txg};
use disk::uberblock::Uberblock;
use disk::{BlkPtr, DnodePhys};
use dmu::{Driver, Objset, SyncHooks, Tx};
use std::collections::{BTreeSet, HashSet};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard};
use vdev::{keys, Vdev};

/// So many txgs in a row pass without being stored because nothing changed. Log blocks of the txgs behind them are born that much
/// later than the txg that an import finds, which believes them up to a limit ([`crate::logstore`]).
pub(crate) const MOST_SKIPPED: u64 = 1 << 16;

/// More passes than this mean that the txg does not converge, which is a bug, not a disk.
const MAX_PASSES: u32 = 100;
/// Txgs after which freed space can be given out again.
const DEFERRED_GROUPS: u32 = 2;
/// Bytes freed for which an idle pool writes txgs, to have them back.
const WORTH_A_GROUP: u64 = 1 << 20;

const LONGNAME: &str = disk::feature::guid::LONGNAME;

/// A change of the pool that runs in syncing context.
type Task = Box<dyn FnOnce(&Pool, &Tx) + Send>;

/// What the next txg is to do.
#[derive(Default)]
pub(crate) struct Tasks {
    /// Before syncing context dirties or frees anything of the txg.
    early: Mutex<Vec<Task>>,
    /// When the datasets are written.
    late: Mutex<Vec<Task>>,
}

/// What only the syncing thread touches.
pub(crate) struct SyncState {
    /// The newest one on disk.
    pub uberblock: Uberblock,
    /// The configuration changed: config object, all labels.
    pub config_dirty: bool,
    /// State for labels: 0 active, 1 exported, 2 destroyed.
    pub state: u64,
    /// Flush all metaslabs (export).
    pub flush_all: bool,
    /// Write an uberblock even if nothing changed.
    pub force: bool,
    /// Txgs that passed since one was stored.
    pub skipped: u64,
    /// Logs that the txg has in use again.
    pub logs_back: Vec<Arc<Vdev>>,
    /// Nothing is written any more.
    pub closed: bool,
}

/// Dataset hooks plus accounting by owner.
struct Hooks<'a> {
    inner: &'a dyn SyncHooks,
    acct: Option<&'a Accounting>,
}

impl SyncHooks for Hooks<'_> {
    fn born(&self, bp: &BlkPtr) -> Result<()> {
        self.inner.born(bp)
    }
    fn kill(&self, bp: &BlkPtr) -> Result<bool> {
        self.inner.kill(bp)
    }
    fn dnode_synced(
        &self,
        object: u64,
        old: Option<&DnodePhys>,
        new: Option<&DnodePhys>,
    ) -> Result<()> {
        self.inner.dnode_synced(object, old, new)?;
        if let Some(a) = self.acct {
            a.note(old, new);
        }
        Ok(())
    }
}

impl Pool {
    pub(crate) fn sync_state(&self) -> MutexGuard<'_, SyncState> {
        self.txgs.sync.acquire()
    }

    /// Runs `f` in syncing context and returns when its txg is on disk. `f` must check before it
    /// changes: after an error from it nothing may have been changed.
    pub fn task<R: Send + 'static>(
        &self,
        f: impl FnOnce(&Pool, &Tx) -> Result<R> + Send + 'static,
    ) -> Result<R> {
        self.task_in(&self.txgs.tasks.late, f)
    }

    /// The same before syncing context dirties or frees anything of the txg: `f` sees the pool as the uberblock of
    /// the txg before has it. For what must know exactly that state, such as taking a checkpoint or starting a scan. What was
    /// written early or allocated for logs in open context is there already; it was all born in this txg.
    ///
    /// What `f` changes of datasets is written with the txg, before its other tasks.
    pub fn early_task<R: Send + 'static>(
        &self,
        f: impl FnOnce(&Pool, &Tx) -> Result<R> + Send + 'static,
    ) -> Result<R> {
        self.task_in(&self.txgs.tasks.early, f)
    }

    /// Runs `f` in syncing context of the txg that is written next, and does not wait for it. An error stops the pool, so that nothing
    /// of the txg reaches the disk.
    pub(crate) fn add_task(&self, f: impl FnOnce(&Pool, &Tx) -> Result<()> + Send + 'static) {
        let task: Task = Box::new(move |pool, tx| drop(pool.or_stop(f(pool, tx))));
        self.txgs.tasks.late.acquire().push(task);
    }

    fn task_in<R: Send + 'static>(
        &self,
        phase: &Mutex<Vec<Task>>,
        f: impl FnOnce(&Pool, &Tx) -> Result<R> + Send + 'static,
    ) -> Result<R> {
        if self.config.readonly {
            bail!(ReadOnly, "pool '{}' is imported read-only", self.name());
        }
        let slot: Arc<Mutex<Option<(Txg, Result<R>)>>> = Arc::default();
        let out = slot.clone();
        let task: Task = Box::new(move |pool, tx| {
            let r = f(pool, tx);
            if let Some(e) = r.as_ref().err().filter(|e| e.is_bug()) {
                // Half of a change may be in memory.
                pool.stop_for_good(e.clone());
            }
            *out.acquire() = Some((tx.txg(), r));
        });
        phase.acquire().push(task);
        let take = || slot.acquire().take();
        loop {
            // The txg that takes the task is the one open now, or the one before it.
            if self.await_served(self.dmu().open_txg(), Along::Always)? {
                match take() {
                    Some((_, r)) => return r,
                    None => continue,
                }
            }
            let mut st = self.sync_state();
            if let Some((txg, r)) = take() {
                // Somebody else's sync did it, and may have failed afterwards.
                if r.is_ok() && self.dmu().synced_txg() < txg {
                    let why = self.stopped().unwrap_or(Error::from(Kind::Io));
                    return Err(self.suspended_error(&why));
                }
                return r;
            }
            self.sync_group(&mut st)?;
        }
    }

    /// Everything done before the call is on disk when it returns.
    pub fn sync(&self) -> Result<Txg> {
        let txg = self.dmu().open_txg();
        self.sync_through(txg)?;
        Ok(txg)
    }

    /// [`Pool::sync`] for who does not wait along when the pool waits for its devices.
    pub fn sync_unless_suspended(&self) -> Result<()> {
        self.sync_along(self.dmu().open_txg(), Along::Never)
    }

    /// The same, and a txg is written even if nothing changed, so that devices that fail do so now.
    pub fn prove_devices(&self) -> Result<()> {
        self.prove(Along::Never)
    }

    /// Waits until the devices take a txg: for who was refused a write outside of one. With `failmode=wait` as long as the pool
    /// waits for them.
    ///
    /// # Errors
    /// [`Kind::Suspended`]: the pool waits and `failmode` is another, or it is stopped.
    pub fn await_devices(&self) -> Result<()> {
        self.prove(Along::ByFailmode)
    }

    fn prove(&self, along: Along) -> Result<()> {
        if self.config.readonly {
            return Ok(());
        }
        self.txgs.force_next.store(true, Ordering::Release);
        loop {
            self.sync_along(self.dmu().open_txg(), along)?;
            // A txg that was about to close may not have seen it.
            if !self.txgs.force_next.load(Ordering::Acquire) {
                return Ok(());
            }
        }
    }

    /// Whether a txg in which nothing changes is worth writing, because it brings back what was freed
    /// before: only txgs that are on disk do. Each of them frees a little itself, so their number
    /// behind one with changes is limited.
    fn gives_back(&self) -> bool {
        self.txgs.owed.load(Ordering::Relaxed) > 0 && self.space().deferred() >= WORTH_A_GROUP
    }

    /// Closes the open txg and writes it.
    pub(crate) fn sync_group(&self, st: &mut SyncState) -> Result<Txg> {
        if let Some(e) = self.stopped() {
            return Err(self.suspended_error(&e));
        }
        if st.closed {
            bail!(Stale, "pool '{}' was exported", self.name());
        }
        let syncing = zio::Syncing::begin();
        let txg = self.dmu().open_txg();
        let guard = OnPanic::new(|| self.panicked(&format!("while txg {txg} was synced")));
        let r = self.write_groups(st);
        drop(guard);
        drop(syncing);
        if let Err(e) = &r {
            // Nothing of the failed txg may be built upon: the uberblock was not written.
            self.stop_for_good(e.clone());
        }
        r
    }

    /// The open txg, and the ones it makes necessary.
    fn write_groups(&self, st: &mut SyncState) -> Result<Txg> {
        let (mut txg, written) = self.write_group(st)?;
        if self.dtls_changed() {
            // A leaf failed so late in the txg that the txg does not tell. If it goes on
            // failing, the next txg will.
            (txg, _) = self.write_group(st)?;
        }
        // What was freed may be needed by the next txg already, and only txgs that are on disk
        // give it back. They free little themselves, so this ends; it does not begin while idle.
        for _ in 0..DEFERRED_GROUPS {
            if !written || !self.space().is_tight() {
                break;
            }
            st.force = true;
            (txg, _) = self.write_group(st)?;
        }
        Ok(txg)
    }

    /// Closes the open txg; true if it was written because there was something to write.
    fn write_group(&self, st: &mut SyncState) -> Result<(Txg, bool)> {
        let early = std::mem::take(&mut *self.txgs.tasks.early.acquire());
        let tasks = std::mem::take(&mut *self.txgs.tasks.late.acquire());
        self.zio().settle();
        // Not `st.force`: with that, a txg owes no further ones that give freed space back.
        let asked = self.txgs.force_next.swap(false, Ordering::AcqRel);
        let group = self.dmu().begin_sync()?;
        let txg = group.txg;
        let tx = self.dmu().syncing_tx(txg);
        let labels_changed = self.feature_store().is_some_and(|f| f.take_label_changed());
        st.config_dirty |= labels_changed | self.take_config_dirty();
        st.logs_back = self.logs_back()?;
        st.config_dirty |= !st.logs_back.is_empty();
        let dirty = !group.objsets.is_empty()
            || !early.is_empty()
            || !tasks.is_empty()
            || st.config_dirty
            || st.force
            || st.skipped >= MOST_SKIPPED
            || asked
            || st.flush_all
            || self.space().has_changes(txg)
            || self.allocation.removed.has_changes(txg)
            || self.background.jobs.want_txg()
            || self.has_replaced()
            || self.dtls_changed()
            || self.records.errlog.is_dirty()
            || self.vdevs.heart.is_on();
        if dirty && !st.force {
            self.txgs.owed.store(DEFERRED_GROUPS, Ordering::Relaxed);
        } else if !dirty && self.gives_back() {
            self.txgs.owed.fetch_sub(1, Ordering::Relaxed);
        } else if !dirty {
            st.skipped += 1;
            self.space().sync_skipped(txg)?;
            self.dmu().end_sync(txg);
            self.tell_waiting();
            return Ok((txg, false));
        }
        self.run_early(&tx, early)?;
        tracing::debug!(
            pool = %self.name(),
            txg = txg.number(),
            objsets = group.objsets.len(),
            tasks = tasks.len(),
            bytes = self.dmu().unwritten_bytes(),
            "txg is written"
        );
        self.allocation
            .maps
            .flush(&tx, &self.config, self.space(), st.flush_all)?;
        for os in &group.objsets {
            base::mutation::panic_point("before a dataset is written");
            self.pre_sync(&tx, os)?;
            self.sync_dataset(&tx, os)?;
        }
        for t in tasks {
            base::mutation::panic_point("before a task");
            t(self, &tx);
            base::mutation::panic_point("behind a task");
        }
        if let Some(e) = self.dsl().broken() {
            return Err(e.context("a change of datasets stopped half-way"));
        }
        self.finish_group(&tx, st)?;
        Ok((txg, true))
    }

    fn run_early(&self, tx: &Tx, tasks: Vec<Task>) -> Result<()> {
        if tasks.is_empty() {
            return Ok(());
        }
        // A checkpoint of a state that was changed in part could not be gone back to.
        if self.mos().is_dirty_in(tx.txg()) {
            bail!(Bug, "txg {} was changed before its early tasks", tx.txg());
        }
        for t in tasks {
            base::mutation::panic_point("before an early task");
            t(self, tx);
        }
        Ok(())
    }

    /// The rest of a txg, when everything that changes datasets has been done.
    pub(crate) fn finish_group(&self, tx: &Tx, st: &mut SyncState) -> Result<()> {
        let txg = tx.txg();
        // Tasks make and change object sets of their own. What was written before them must not
        // change again: a snapshot may have taken it over, and blocks of one txg are written anew
        // in their places. So the intent log, which goes on meanwhile, is not asked a second time.
        loop {
            let more = self.dmu().take_dirty_objsets(txg);
            let mut any = false;
            for os in more.iter().filter(|os| os.id() != 0) {
                any = true;
                self.pre_sync(tx, os)?;
                if os.is_dirty_in(txg) {
                    self.must_not_be_taken(tx, os)?;
                }
                self.sync_dataset(tx, os)?;
            }
            if !any {
                break;
            }
        }
        self.log_events(tx)?;
        if self.version() >= VERSION_FEATURES {
            let now = self.seconds();
            self.txgs.times.note(self.mos(), tx, now, st.flush_all)?;
        }
        self.sync_removal(tx)?;
        self.begin_copying(tx, st)?;
        self.step_jobs(tx)?;
        self.finish_replacements(tx)?;
        self.dsl().add_leaked(tx, self.zio().take_leaked())?;
        if self.shares().is_dirty() {
            // Everything that takes or gives back references has been done.
            let now = self.env.clock.now().0.max(0) as u64;
            self.shares().sync(tx, now)?;
        }
        st.config_dirty |= self.feature_store().is_some_and(|f| f.take_label_changed());
        st.config_dirty |= self.take_config_dirty();
        self.write_errlog(tx)?;
        self.converge(tx, st)?;
        self.persist(&mut || self.zio().drain(txg))?;
        if let Some(why) = self.dmu().stopped() {
            // By a panic in a transaction of the next txg, say.
            return Err(why);
        }
        self.commit(txg, st)?;
        base::mutation::panic_point("a txg that is on disk");
        self.retire_left();
        self.space().sync_done(txg)?;
        self.use_logs(&std::mem::take(&mut st.logs_back))?;
        for set in self.open_sets() {
            set.synced(txg);
        }
        self.dmu().end_sync(txg);
        tracing::debug!(pool = %self.name(), txg = txg.number(), "txg is on disk");
        self.tell_waiting();
        st.config_dirty = false;
        st.skipped = 0;
        st.force = false;
        st.flush_all = false;
        self.drive_jobs();
        Ok(())
    }

    /// Whether a thread waits for the txg that is being written or the next one.
    pub(crate) fn is_waited_for(&self) -> bool {
        let tasks = |t: &Mutex<Vec<Task>>| !t.acquire().is_empty();
        // Without a thread of its own whoever needs a txg writes it.
        !self.is_served()
            || self.is_wanted()
            || tasks(&self.txgs.tasks.early)
            || tasks(&self.txgs.tasks.late)
    }

    /// Writes the txg in which the pool was made.
    pub(crate) fn first_group(&self, tx: &Tx) -> Result<()> {
        let mut st = self.sync_state();
        self.finish_group(tx, &mut st)
    }

    /// What the intent log wants in the header of its object set; asked once in a txg.
    pub(crate) fn pre_sync(&self, tx: &Tx, os: &Arc<Objset>) -> Result<()> {
        {
            let mut asked = self.txgs.asked.acquire();
            if asked.0 != tx.txg() {
                *asked = (tx.txg(), BTreeSet::new());
            }
            if !asked.1.insert(os.id()) {
                return Ok(());
            }
        }
        match self.open_set(os.id()) {
            Some(set) => set.pre_sync(tx),
            None => Ok(()),
        }
    }

    /// An object set is about to be written after the tasks of its txg: an error if a snapshot has
    /// taken it over in between, which this would spoil.
    fn must_not_be_taken(&self, tx: &Tx, os: &Arc<Objset>) -> Result<()> {
        let ds = self.dataset_by_object(os.id())?;
        // Of a clone the snapshot before it may be another file system's.
        let own = ds.prev()?.map(|s| s.phys());
        let own = own.filter(|s| s.next_snap_obj == os.id());
        let newest = own.map_or(Txg::NONE, |s| s.creation_txg);
        if newest == tx.txg() && !mutated(Mutation::SnapshotOfDirtySet) {
            bail!(
                Bug,
                "dataset {} would change after its snapshot in txg {newest}",
                os.id()
            );
        }
        Ok(())
    }

    /// Writes one dataset's object set and charges its owners.
    pub(crate) fn sync_dataset(&self, tx: &Tx, os: &Arc<Objset>) -> Result<()> {
        if os.id() == 0 {
            return Ok(());
        }
        let ds = self.dataset_by_object(os.id())?;
        if !ds.has_feature(LONGNAME) && self.config.features.is_enabled(LONGNAME) {
            // Names may be long from now on, so whoever opens the pool has to know.
            if own_number(&ds, "longname")? != 0 {
                ds.activate_feature(tx, LONGNAME)?;
            }
        }
        let policy = os.policy();
        let accounted = policy.accounting_flags != 0 && os.os_type() == disk::os_type::ZFS;
        let acct = Accounting::default();
        let mut root = None;
        let mut first = true;
        while os.is_dirty_in(tx.txg()) {
            let inner = ds.hooks(tx)?;
            let hooks = Hooks {
                inner: &inner,
                acct: accounted.then_some(&acct),
            };
            if let Some(bp) = os.sync(tx, 1, &hooks)? {
                root = Some(bp);
            }
            if first && accounted {
                acct.apply(os, tx, self.has_project_quota())?;
                first = false;
            }
        }
        if let Some(bp) = root {
            ds.synced(tx, &bp)?;
        }
        Ok(())
    }

    /// Passes over the MOS until writing it changes nothing any more.
    fn converge(&self, tx: &Tx, st: &mut SyncState) -> Result<()> {
        let txg = tx.txg();
        let mut pass = 1;
        loop {
            if pass == 1 {
                // What leaves miss of the data of this txg is then known.
                self.persist(&mut || self.zio().drain(txg))?;
                self.write_dtls(tx, st)?;
                if st.config_dirty {
                    let config = self.full_config(st.state, txg, true);
                    write_nvlist(self.mos(), tx, self.config_object(), &config)?;
                }
            }
            // Charging the MOS for itself changes it again, so only the first passes do; what the
            // last ones add is charged with the next txg.
            if pass <= 2 {
                self.dsl().flush_mos(tx)?;
            }
            if self.mos().is_dirty_in(txg) {
                self.mos().sync(tx, pass, self.dsl().mos_hooks())?;
            }
            self.write_obsolete(tx)?;
            self.store_spared(tx)?;
            let changes = self.space().take_changes(txg);
            self.allocation
                .maps
                .write(tx, &self.config, self.space(), &changes, pass)?;
            self.shares().checkpoint.write(tx, &self.config, pass)?;
            let more = self.space().has_changes(txg)
                || self.allocation.removed.has_changes(txg)
                || self.shares().checkpoint.is_dirty();
            if !self.mos().is_dirty_in(txg) && !more {
                return Ok(());
            }
            pass += 1;
            if pass > MAX_PASSES {
                bail!(Bug, "txg {txg} does not converge");
            }
        }
    }

    /// Whether a leaf missed something that is not on disk yet.
    fn dtls_changed(&self) -> bool {
        let known = self.vdevs.dtls.acquire();
        self.tree().dtl_holders().iter().any(|leaf| {
            let now = leaf.dtl();
            match known.get(&leaf.guid()) {
                Some(before) => *before != now,
                None => !now.is_empty(),
            }
        })
    }

    /// Leaves that missed writes remember it on disk, and their groups are degraded.
    fn write_dtls(&self, tx: &Tx, st: &mut SyncState) -> Result<()> {
        let mut changed = false;
        // Leaves of top-level vdevs that the txg waits for: they get all of it.
        let tops = self.tree().tops();
        let away = tops.iter().filter(|t| !t.state().usable());
        let waited_for: HashSet<u64> = away
            .flat_map(|t| t.leaves())
            .map(|leaf| leaf.guid())
            .collect();
        for leaf in self.tree().dtl_holders() {
            if !leaf.state().usable() && !waited_for.contains(&leaf.guid()) {
                // It is going to miss what is still to be written, too.
                leaf.dtl_add(tx.txg());
            }
            let mut now = leaf.dtl();
            let object = leaf.get_u64(keys::DTL).unwrap_or(0);
            let mut known = self.vdevs.dtls.acquire();
            let before = known.entry(leaf.guid()).or_default();
            let failing = leaf.stats.write_errors.load(Ordering::Relaxed) > 0;
            let missed =
                |(a, b)| !before.contains(a, b) && !self.background.scans.has_tried(&leaf, a, b);
            if failing && now.iter().any(missed) {
                // It has just missed something, and may miss blocks of this txg that are written after the list.
                leaf.dtl_add(tx.txg());
                now = leaf.dtl();
            }
            if *before == now || (object == 0 && now.is_empty()) {
                continue;
            }
            let o = self
                .allocation
                .maps
                .write_dtl(tx, &self.config, object, &now)?;
            if o != object {
                leaf.set_u64(keys::DTL, o);
                st.config_dirty = true;
            }
            *before = now;
            changed = true;
        }
        if changed {
            self.tree().propagate();
        }
        Ok(())
    }

    fn commit(&self, txg: Txg, st: &mut SyncState) -> Result<()> {
        if let Some(e) = self.stopped() {
            // Another host may have the pool by now.
            return Err(e);
        }
        if let Some(e) = self.space().bug() {
            // In a request, which got the error.
            return Err(e);
        }
        let root = self.mos().root();
        if txg <= st.uberblock.txg || root.is_hole() || root.birth() > txg {
            bail!(
                Bug,
                "an uberblock of txg {txg} behind one of txg {}, with a root of txg {}",
                st.uberblock.txg,
                root.birth()
            );
        }
        let (secs, _) = self.env.clock.now();
        let mut ub = st.uberblock.clone();
        ub.version = self.shared().version;
        ub.txg = txg;
        ub.guid_sum = self.tree().guid_sum();
        // Never two uberblocks that rank the same, whatever the clock does.
        ub.timestamp = secs.max(0) as u64;
        ub.rootbp = root;
        ub.software_version = self.config.software_version;
        ub.checkpoint_txg = Txg::NONE;
        let multihost = self.vdevs.heart.stamp(&mut ub);
        self.background.expansions.stamp(&mut ub);
        let start = self.env.rng.u64();
        let base = self.label_base(st.state, txg);
        let config_dirty = st.config_dirty;
        self.persist(&mut || {
            // Chosen each time: devices may have come or gone since.
            let (dirty, targets): (Vec<u64>, Vec<u64>) = if config_dirty {
                let tops = self.tree().tops();
                let concrete = tops.iter().filter(|t| t.is_concrete());
                let all: Vec<u64> = concrete.map(|t| t.id()).collect();
                let mut dirty = all.clone();
                if mutated(Mutation::SplitLabelsOneSide) && self.shared().split_guid.is_some() {
                    dirty.truncate(1);
                }
                (dirty, all)
            } else {
                (Vec::new(), self.tree().uberblock_targets(start))
            };
            if let Some(stopped) = self.stopped() {
                return Err(stopped);
            }
            self.tree().commit(&base, &ub, &dirty, &targets, multihost)
        })?;
        self.vdevs.heart.committed(&ub);
        self.shares().checkpoint.note_newest(&ub);
        self.tree().advance_expansion(&ub);
        st.uberblock = ub;
        Ok(())
    }
}

impl Driver for Pool {
    fn sync_through(&self, txg: Txg) -> Result<()> {
        self.sync_along(txg, Along::ByFailmode)
    }

    fn make_room(&self, txg: Txg) -> Result<()> {
        match self.sync_along(txg, Along::Never) {
            Err(_) if self.stopped().is_none() && self.failmode() == Failmode::Wait => Ok(()),
            r => r,
        }
    }

    fn kick(&self) {
        let (m, cv) = &self.txgs.kicked;
        let mut kicked = m.acquire();
        // Often said before it is heard: a call of the system each time would be for nothing.
        if !std::mem::replace(&mut *kicked, true) {
            cv.notify_all();
        }
    }

    fn stop(&self, why: Error) {
        self.stop_for_good(why);
    }
}

impl Pool {
    /// Returns when txg `txg` is on disk.
    fn sync_along(&self, txg: Txg, along: Along) -> Result<()> {
        if self.config.readonly {
            // Nothing was changed, so everything is on disk.
            return Ok(());
        }
        loop {
            if self.dmu().synced_txg() >= txg {
                return Ok(());
            }
            if self.await_served(txg, along)? {
                return Ok(());
            }
            let mut st = self.sync_state();
            if self.dmu().synced_txg() >= txg {
                return Ok(());
            }
            self.sync_group(&mut st)?;
        }
    }

    /// For the daemon's sync thread: waits until `timeout` has passed, somebody kicked, or the pool
    /// is being closed; true if there is something to write.
    pub fn wait_for_work(&self, timeout: std::time::Duration) -> bool {
        let (m, cv) = &self.txgs.kicked;
        let g = m.acquire();
        let (mut g, _) = cv.wait_acquire_while(g, timeout, |k| !*k);
        *g = false;
        drop(g);
        self.read_slices();
        let work = self.is_wanted()
            || self.dmu().is_open_dirty()
            || self.gives_back()
            || self.background.jobs.want_txg()
            || self.has_replaced()
            || self.records.errlog.is_dirty();
        work && !self.config.readonly
    }
}

impl OpenSet {
    fn pre_sync(&self, tx: &Tx) -> Result<()> {
        if let Some(zil) = self.zil() {
            let header = zil.sync(tx.txg())?;
            if header != self.os.zil_header() {
                self.os.set_zil_header(tx, header);
            }
        }
        Ok(())
    }

    fn synced(&self, txg: Txg) {
        if let Some(zil) = self.zil() {
            zil.synced(txg);
        }
    }
}
