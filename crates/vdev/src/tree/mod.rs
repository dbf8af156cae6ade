//! [`VdevTree`]: all top-level vdevs of a pool.
//!
//! `node` is one vdev, `spec` and `open` build trees from a creation spec or a configuration, `edit` makes changed
//! copies of them, `state` says what works, `keys` names the entries of the nvlists.

pub(crate) mod abandon;
pub(crate) mod edit;
pub(crate) mod expansion;
pub(crate) mod held;
pub(crate) mod node;
pub(crate) mod open;
pub(crate) mod spec;
pub(crate) mod split;
pub(crate) mod state;

use crate::copying::Copying;
use crate::held::Held;
use crate::keys;
use crate::label::{self, LabelSet};
use crate::map::Reflow;
use crate::node::{Stats, Vdev, VdevKind};
use crate::repairs::Repairs;
use crate::state::{Aux, State};
use crate::unflushed::{is_missing, Unflushed};
use base::mutation::{mutated, Mutation};
use base::sync::{MutexExt, RwLockExt};
use base::{bail, Error, Kind, RangeSet, Result, Txg};
use disk::{NvList, Uberblock, Value};
use env::Env;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, RwLock};

/// Most top-level slots accepted from a configuration.
const MAX_TOPS: usize = 4096;

/// The root of the vdevs of one pool. Shared by all threads that use the pool.
pub struct VdevTree {
    pub(crate) env: Env,
    guid: AtomicU64,
    /// Persistent properties of the root.
    root: Mutex<NvList>,
    tops: RwLock<Arc<Vec<Arc<Vdev>>>>,
    /// Errors that no single device is to blame for.
    pub stats: Stats,
    pub(crate) read_only: AtomicBool,
    /// See [`VdevTree::hold_repairs`].
    pub(crate) held: Held,
    /// A resilver is under way; see [`VdevTree::set_resilvering`].
    resilvering: AtomicBool,
    /// Ranges that a rebuild copies.
    pub(crate) copying: Copying,
    /// Repairs that no flush has covered.
    pub(crate) repairs: Repairs,
    /// Held while caches are flushed: whoever comes meanwhile must not believe that nothing is left
    /// to flush. Holds why nothing can be promised any more: acknowledged writes were lost.
    flushing: Mutex<Option<Error>>,
    /// See [`VdevTree::log_losses`].
    log_losses: AtomicU64,
}

impl std::fmt::Debug for VdevTree {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "root({}){:?}", self.guid(), self.tops())
    }
}

impl VdevTree {
    pub(crate) fn new(env: Env, guid: u64, root: NvList, tops: Vec<Arc<Vdev>>) -> VdevTree {
        VdevTree {
            env,
            guid: AtomicU64::new(guid),
            root: Mutex::new(root),
            tops: RwLock::new(Arc::new(tops)),
            stats: Stats::default(),
            read_only: AtomicBool::new(false),
            held: Held::default(),
            resilvering: AtomicBool::new(false),
            copying: Copying::default(),
            repairs: Repairs::default(),
            flushing: Mutex::new(None),
            log_losses: AtomicU64::new(0),
        }
    }

    /// Builds a tree from the `vdev_tree` of a full configuration (type `root`). Nothing is opened.
    pub fn from_config(env: Env, vdev_tree: &NvList) -> Result<VdevTree> {
        if vdev_tree.get_str(keys::TYPE) != Some("root") {
            bail!(Damaged, "vdev tree does not begin with a root");
        }
        let guid = vdev_tree.need_u64(keys::GUID)?;
        let list = vdev_tree.get_nvlist_array(keys::CHILDREN).unwrap_or(&[]);
        if list.len() > MAX_TOPS {
            bail!(Damaged, "{} top-level vdevs", list.len());
        }
        let tops = list
            .iter()
            .enumerate()
            .map(|(i, c)| Vdev::from_config(c, i as u64, 0))
            .collect::<Result<Vec<_>>>()?;
        for t in &tops {
            let holds_data = t.is_concrete() && !matches!(t.kind(), VdevKind::Dspare);
            if holds_data && !(9..=crate::map::MAX_SHIFT).contains(&t.ashift()) {
                bail!(
                    Damaged,
                    "top-level vdev {} has ashift {}",
                    t.guid(),
                    t.ashift()
                );
            }
        }
        let mut root = vdev_tree.clone();
        for key in [keys::TYPE, keys::ID, keys::GUID, keys::CHILDREN] {
            root.remove(key);
        }
        Ok(VdevTree::new(env, guid, root, tops))
    }

    /// The full `vdev_tree` for the MOS (`mos`) or the cache file.
    pub fn config(&self, mos: bool) -> NvList {
        let mut out = NvList::new();
        out.set(keys::TYPE, "root");
        out.set(keys::ID, 0u64);
        out.set(keys::GUID, self.guid());
        for (name, value) in self.root.acquire().iter() {
            if mos || !keys::MOS_ONLY.contains(&name) {
                out.set(name, value.clone());
            }
        }
        let list: Vec<NvList> = self.tops().iter().map(|t| t.config(mos)).collect();
        out.set(keys::CHILDREN, Value::NvListArray(list));
        out
    }

    /// Guid of the root, which is the pool's.
    pub fn guid(&self) -> u64 {
        self.guid.load(Relaxed)
    }

    /// `zpool reguid`.
    pub fn set_guid(&self, guid: u64) {
        self.guid.store(guid, Relaxed);
    }

    /// A persistent number of the root.
    pub fn root_u64(&self, key: &str) -> Option<u64> {
        self.root.acquire().get_u64(key)
    }

    /// Sets a persistent number of the root; the caller has the configuration written.
    pub fn set_root_u64(&self, key: &str, value: u64) {
        self.root.acquire().set(key, value);
    }

    /// The top-level vdevs by id: a snapshot that later changes of shape do not touch.
    pub fn tops(&self) -> Arc<Vec<Arc<Vdev>>> {
        self.tops.acquire_read().clone()
    }

    /// Replaces the list in one step; `f` sees the current one.
    pub(crate) fn edit_tops<R>(
        &self,
        f: impl FnOnce(&mut Vec<Arc<Vdev>>) -> Result<R>,
    ) -> Result<R> {
        let mut guard = self.tops.acquire_write();
        let mut list = (**guard).clone();
        let r = f(&mut list)?;
        *guard = Arc::new(list);
        Ok(r)
    }

    /// A top-level vdev by id; one that does not exist is `Damaged`, since ids come from pointers.
    pub fn top(&self, id: u64) -> Result<Arc<Vdev>> {
        let tops = self.tops.acquire_read();
        match usize::try_from(id).ok().and_then(|i| tops.get(i)) {
            Some(t) => Ok(t.clone()),
            None => bail!(Damaged, "top-level vdev {id} does not exist"),
        }
    }

    /// All leaves.
    pub fn leaves(&self) -> Vec<Arc<Vdev>> {
        self.tops().iter().flat_map(|t| t.leaves()).collect()
    }

    /// All vdevs that have a DTL: leaves, and distributed spares in use.
    pub fn dtl_holders(&self) -> Vec<Arc<Vdev>> {
        let tops = self.tops();
        tops.iter().flat_map(|t| t.dtl_holders()).collect()
    }

    /// How many requests of the pool's devices somebody has waited for since it was opened: reads but those of scans, and
    /// writes of the intent log.
    pub fn foreground(&self) -> u64 {
        self.all()
            .iter()
            .fold(0, |n, v| n.wrapping_add(v.foreground()))
    }

    /// Every vdev below the root, parents first.
    pub fn all(&self) -> Vec<Arc<Vdev>> {
        fn walk(v: &Arc<Vdev>, out: &mut Vec<Arc<Vdev>>) {
            out.push(v.clone());
            v.children().iter().for_each(|c| walk(c, out));
        }
        let mut out = Vec::new();
        self.tops().iter().for_each(|t| walk(t, &mut out));
        out
    }

    /// A vdev below the root by guid.
    pub fn find(&self, guid: u64) -> Option<Arc<Vdev>> {
        self.all()
            .into_iter()
            .find(|v| v.guid() == guid && guid != 0)
    }

    /// A vdev by what a user calls it: guid, path, name in the status, or last part of the path.
    pub fn find_by_name(&self, name: &str) -> Option<Arc<Vdev>> {
        let all = self.all();
        if let Some(v) = name.parse().ok().and_then(|g| self.find(g)) {
            return Some(v);
        }
        let dev = format!("/dev/{name}");
        all.iter()
            .find(|v| v.path().is_some_and(|p| p == name || p == dev))
            .or_else(|| all.iter().find(|v| v.name() == name))
            .cloned()
    }

    /// Sum of all guids, as in the uberblock.
    pub fn guid_sum(&self) -> u64 {
        self.tops()
            .iter()
            .fold(self.guid(), |s, t| s.wrapping_add(t.guid_sum()))
    }

    /// Health of the whole pool: what any top-level vdev lacks, the pool lacks. It does without a log that was put away.
    pub fn state(&self) -> (State, Aux) {
        let tops = self.tops();
        if tops.iter().any(|t| !t.state().usable() && !t.is_put_away()) {
            return (State::CantOpen, Aux::NoReplicas);
        }
        let filled = self.resilver_runs();
        let lacking = |t: &Vdev| !filled && t.kind().is_leaf() && !t.dtl_is_empty();
        if tops
            .iter()
            .any(|t| t.state() != State::Healthy || lacking(t))
        {
            return (State::Degraded, Aux::None);
        }
        (State::Healthy, Aux::None)
    }

    /// Recomputes the states of all groups after a leaf changed.
    pub fn propagate(&self) {
        let filled = self.resilver_runs();
        self.tops().iter().for_each(|t| t.propagate(filled));
    }

    /// A resilver begins or ends. While one runs, a device that works and lacks data does not degrade its group: the
    /// resilver is what is told of the device then.
    pub fn set_resilvering(&self, on: bool) {
        self.resilvering.store(on, Relaxed);
        self.propagate();
    }

    /// Whether a resilver is under way.
    pub fn resilver_runs(&self) -> bool {
        self.resilvering.load(Relaxed)
    }

    /// Ids of the holes for the key `hole_array`.
    pub fn holes(&self) -> Vec<u64> {
        self.tops()
            .iter()
            .filter(|t| t.kind() == VdevKind::Hole)
            .map(|t| t.id())
            .collect()
    }

    /// The config for the label of one leaf: the pool's keys plus what belongs to this leaf.
    /// `pool` holds version, name, state, pool_guid, hostid, features_for_read and so on.
    pub fn label_config(&self, pool: &NvList, top: &Arc<Vdev>, leaf: &Vdev, txg: Txg) -> NvList {
        let mut c = pool.clone();
        c.remove(keys::pool::VDEV_TREE);
        c.set(keys::pool::TXG, txg);
        c.set(keys::pool::POOL_GUID, self.guid());
        c.set(keys::pool::TOP_GUID, top.guid());
        c.set(keys::GUID, leaf.guid());
        for (key, on) in [
            (
                keys::IS_SPARE,
                leaf.get_u64(keys::IS_SPARE).is_some_and(|v| v != 0),
            ),
            (keys::IS_LOG, top.is_log()),
        ] {
            c.remove(key);
            if on {
                c.set(key, 1u64);
            }
        }
        c.set(keys::pool::VDEV_CHILDREN, self.tops().len() as u64);
        let holes = self.holes();
        c.remove(keys::pool::HOLE_ARRAY);
        if !holes.is_empty() {
            c.set(keys::pool::HOLE_ARRAY, holes);
        }
        c.set(keys::pool::VDEV_TREE, Value::NvList(top.config(false)));
        c
    }

    /// Writes the labels `set` of all leaves of the vdevs `tops` and flushes them. For every one of
    /// them that is no log at least one label must get written (pool format §3).
    pub fn write_labels(&self, pool: &NvList, txg: Txg, tops: &[u64], set: LabelSet) -> Result<()> {
        let tops = self.chosen(tops);
        let leaves = self.usable_leaves(&tops);
        let done = self.on_leaves(&leaves, |top, leaf, device| {
            let config = self.label_config(pool, top, leaf, txg);
            label::write_config(device, &config, set)?;
            self.flush_device(leaf, device)
        });
        for top in &tops {
            // Vdevs without devices of their own have no labels.
            if top.is_log() || top.leaves().is_empty() {
                continue;
            }
            let mine = leaves
                .iter()
                .zip(&done)
                .filter(|((t, _), _)| Arc::ptr_eq(t, top));
            if !mine.clone().any(|(_, r)| r.is_ok()) {
                let why = mine.filter_map(|(_, r)| r.clone().err()).next();
                let why = why.unwrap_or(Error::new(Kind::NoDevice, "no leaf is available"));
                return Err(why.context(format!("labels of {}", top.name())));
            }
        }
        Ok(())
    }

    /// Writes an uberblock to all labels of all leaves of the vdevs `tops` and flushes them. At
    /// least one leaf must get it.
    pub fn write_uberblock(&self, ub: &Uberblock, tops: &[u64], multihost: bool) -> Result<()> {
        let leaves = self.usable_leaves(&self.chosen(tops));
        let done = self.on_leaves(&leaves, |top, leaf, device| {
            label::write_uberblock(device, ub, top.ashift(), ub.slot(top.ashift(), multihost))?;
            self.flush_device(leaf, device)?;
            leaf.set_committed(ub.txg);
            Ok(())
        });
        let counts = leaves.iter().zip(&done).any(|((top, _), r)| {
            r.is_ok() && (top.metaslab_array() != 0 || ub.txg <= Txg::INITIAL)
        });
        if counts {
            return Ok(());
        }
        let why = done.into_iter().filter_map(Result::err).next();
        Err(why
            .unwrap_or(Error::new(Kind::NoDevice, "no leaf is available"))
            .context("uberblock"))
    }

    /// Before anything is built upon `ub`: puts it on the leaves that lack it of every top-level vdev
    /// that has it on some, into the same slot, and flushes all leaves. The power may have gone when
    /// only some had it, or it may still be in a device's cache; if those were lost later, what was
    /// freed by its txg would be missing in the state before, which would be all that is left.
    /// A leaf that cannot be written is as it was.
    ///
    /// Errors: no leaf can be flushed.
    pub fn spread_uberblock(&self, ub: &Uberblock) -> Result<()> {
        let leaves = self.usable_leaves(&self.tops());
        let slots = self.on_leaves(&leaves, |top, _, device| {
            let all = label::read_uberblocks(device, top.ashift());
            let mut same = all.iter().filter(|(_, _, u)| u.rank() == ub.rank());
            Ok(same.next().map(|(_, slot, _)| *slot))
        });
        // By top-level vdev the slot, and the leaves that have it there.
        let mut places: BTreeMap<u64, usize> = BTreeMap::new();
        let mut have: BTreeSet<u64> = BTreeSet::new();
        for ((top, leaf), slot) in leaves.iter().zip(slots) {
            if let Ok(Some(slot)) = slot {
                places.insert(top.id(), slot);
                have.insert(leaf.guid());
            }
        }
        let done = self.on_leaves(&leaves, |top, leaf, device| {
            match places.get(&top.id()) {
                Some(slot) if !have.contains(&leaf.guid()) => {
                    label::write_uberblock(device, ub, top.ashift(), *slot)?;
                }
                _ => {}
            }
            self.flush_device(leaf, device)
        });
        if done.iter().any(Result::is_ok) {
            return Ok(());
        }
        let why = done.into_iter().find_map(Result::err);
        Err(why
            .unwrap_or(Error::new(Kind::NoDevice, "no leaf is available"))
            .context("uberblock of the import"))
    }

    /// Writes an MMP heartbeat: `ub` to the last slot of all labels of one leaf.
    pub fn write_heartbeat(&self, ub: &Uberblock, leaf: &Vdev) -> Result<()> {
        let ashift = leaf.top_ashift.load(Relaxed) as u32;
        match leaf.usable_device() {
            Some(d) => label::write_uberblock(&*d, ub, ashift, disk::uberblock::mmp_slot(ashift)),
            None => bail!(NoDevice, "{}: not available", leaf.name()),
        }
    }

    /// What a leaf has where heartbeats are written; see [`label::read_slot`].
    pub fn read_heartbeat(&self, leaf: &Vdev) -> label::SlotCopies {
        let ashift = leaf.top_ashift.load(Relaxed) as u32;
        match leaf.usable_device() {
            Some(d) => label::read_slot(&*d, ashift, disk::uberblock::mmp_slot(ashift)),
            None => Vec::new(),
        }
    }

    /// Writes that back.
    pub fn restore_heartbeat(&self, leaf: &Vdev, copies: label::SlotCopies) -> Result<()> {
        match leaf.usable_device() {
            Some(d) => label::write_slot(&*d, copies),
            None => bail!(NoDevice, "{}: not available", leaf.name()),
        }
    }

    /// Vdevs an uberblock goes to when the config did not change: up to three in a row from a
    /// start of the caller's choice, without logs, holes and those without metaslabs.
    pub fn uberblock_targets(&self, start: u64) -> Vec<u64> {
        let tops = self.tops();
        let n = tops.len() as u64;
        (0..n)
            .map(|i| (start % n + i) % n)
            .filter(|&i| {
                tops.get(i as usize).is_some_and(|t| {
                    t.is_concrete() && !t.is_log() && t.metaslab_array() != 0 && t.state().usable()
                })
            })
            .take(3)
            .collect()
    }

    /// The commit of a txg (pool format §3, steps 3 to 6): flush what was written, even labels,
    /// uberblock, odd labels. `dirty` are the vdevs whose config changed, `targets` those that get
    /// the uberblock (all, if the config is dirty).
    pub fn commit(
        &self,
        pool: &NvList,
        ub: &Uberblock,
        dirty: &[u64],
        targets: &[u64],
        multihost: bool,
    ) -> Result<()> {
        if !mutated(Mutation::FlushOmitted) {
            self.flush_dirty(ub.txg)?;
        }
        if !dirty.is_empty() {
            self.write_labels(pool, ub.txg, dirty, LabelSet::Even)?;
        }
        base::mutation::panic_point("before the uberblock");
        self.write_uberblock(ub, targets, multihost)?;
        base::mutation::panic_point("behind the uberblock");
        if !dirty.is_empty() {
            self.write_labels(pool, ub.txg, dirty, LabelSet::Odd)?;
        }
        Ok(())
    }

    /// Takes over from the uberblock in use how far the expansion of a RAID-Z got; without it such
    /// a vdev cannot be read.
    pub fn set_reflow(&self, ub: &Uberblock) {
        let reflow = Reflow {
            done: ub.reflow_offset(),
            next: ub.reflow_offset(),
            scratch: ub.scratch_state() == disk::uberblock::scratch::VALID,
        };
        for top in self.tops().iter().filter(|t| t.is_expanding()) {
            top.set_reflow(Some(reflow));
        }
    }

    /// The best uberblock up to `limit` on any readable leaf, and the label config that goes with
    /// it from the same leaf (pool format §2.3).
    pub fn best_uberblock(&self, limit: Txg) -> Option<(Uberblock, Option<NvList>)> {
        let tops = self.tops();
        let leaves = self.usable_leaves(&tops);
        let found = self.on_leaves(&leaves, |top, _, device| {
            Ok(label::best_uberblock(device, top.ashift(), limit))
        });
        let best = found
            .into_iter()
            .zip(&leaves)
            .filter_map(|(ub, (_, leaf))| Some((ub.ok()??, leaf)))
            .max_by_key(|(ub, _)| ub.rank())?;
        let (ub, leaf) = best;
        let config = leaf
            .device()
            .and_then(|d| label::read_labels(&*d).best(ub.txg).cloned());
        Some((ub, config))
    }

    /// Txgs of all valid uberblocks on the readable leaves, newest first.
    pub fn uberblock_txgs(&self) -> Vec<Txg> {
        let tops = self.tops();
        let leaves = self.usable_leaves(&tops);
        let found = self.on_leaves(&leaves, |top, _, device| {
            Ok(label::read_uberblocks(device, top.ashift()))
        });
        let mut out: Vec<Txg> = found
            .into_iter()
            .flatten()
            .flatten()
            .map(|(_, _, ub)| ub.txg)
            .filter(|t| !t.is_none())
            .collect();
        out.sort_unstable_by(|a, b| b.cmp(a));
        out.dedup();
        out
    }

    pub(crate) fn chosen(&self, ids: &[u64]) -> Vec<Arc<Vdev>> {
        let tops = self.tops();
        ids.iter()
            .filter_map(|i| tops.get(*i as usize).cloned())
            .collect()
    }

    pub(crate) fn usable_leaves(&self, tops: &[Arc<Vdev>]) -> Vec<(Arc<Vdev>, Arc<Vdev>)> {
        tops.iter()
            .flat_map(|t| t.leaves().into_iter().map(move |l| (t.clone(), l)))
            .filter(|(_, l)| l.usable_device().is_some())
            .collect()
    }

    /// Calls `f(top, leaf, device)` for all, in parallel; failed writes count as such.
    pub(crate) fn on_leaves<R: Send>(
        &self,
        leaves: &[(Arc<Vdev>, Arc<Vdev>)],
        f: impl Fn(&Arc<Vdev>, &Vdev, &dyn env::Disk) -> Result<R> + Sync,
    ) -> Vec<Result<R>> {
        let slots: Vec<Mutex<Option<Result<R>>>> =
            leaves.iter().map(|_| Mutex::new(None)).collect();
        self.env.cpu.par_io(leaves.len(), &|i| {
            let (top, leaf) = &leaves[i];
            let r = match leaf.usable_device() {
                Some(d) => f(top, leaf, &*d),
                None => Err(Error::from(Kind::NoDevice)),
            };
            if r.is_err() {
                leaf.stats.write_errors.fetch_add(1, Relaxed);
            }
            *slots[i].acquire() = Some(r);
        });
        slots
            .into_iter()
            .map(|s| s.acquire().take().unwrap_or(Err(Error::from(Kind::Io))))
            .collect()
    }

    /// Flushes the write caches of all leaves written since the last flush that worked.
    ///
    /// A leaf whose flush fails may have lost those writes. Where redundancy covers it, its DTL gets
    /// their txgs and (unless it is 0) `txg`. Otherwise it is an error, and what was written stays on
    /// record: the next call with a `txg`, which only the syncing thread makes, reads it back, writes it
    /// once more and flushes (`crate::unflushed`). Until then calls without a `txg` fail.
    ///
    /// A txg needs nothing of a log. Of a log that fails to flush nothing stays on record, and it is no error. Whoever wrote log blocks
    /// sees it in [`VdevTree::log_losses`].
    ///
    /// If it turns out that a leaf has lost something that nobody else has, this fails for ever
    /// ([`VdevTree::has_lost_writes`]): what was lost may belong to a txg whose other blocks are still to
    /// come, which must not be committed by a later flush that works.
    pub fn flush_dirty(&self, txg: Txg) -> Result<()> {
        let mut lost = self.flushing.acquire();
        match &*lost {
            Some(e) => Err(e.clone()),
            None => self.flush_leaves(txg, &mut lost),
        }
    }

    /// Whether devices have lost what they acknowledged, and no redundancy makes up for it.
    pub fn has_lost_writes(&self) -> bool {
        self.flushing.acquire().is_some()
    }

    /// How often logs may have lost what was written to them since the flush before. Log blocks are stable if a flush worked and
    /// this is what it was before they were written.
    pub fn log_losses(&self) -> u64 {
        self.log_losses.load(Acquire)
    }

    /// Repairs that were written and may be lost, since their device failed a flush or went away before one: the leaf or distributed
    /// spare, and the births of the blocks. Each is told once.
    pub fn take_lost_repairs(&self) -> Vec<(u64, RangeSet)> {
        self.repairs.take_lost()
    }

    fn flush_leaves(&self, txg: Txg, lost: &mut Option<Error>) -> Result<()> {
        let mut leaves: Vec<(Arc<Vdev>, Arc<Vdev>)> = Vec::new();
        let mut written = Vec::new();
        for top in self.tops().iter() {
            for leaf in top.leaves() {
                if let Some(dirty) = leaf.take_dirty() {
                    leaves.push((top.clone(), leaf));
                    written.push(dirty);
                }
            }
        }
        let repairs: Vec<_> = (leaves
            .iter()
            .map(|(_, leaf)| self.repairs.take(leaf.guid())))
        .collect();
        let by_leaf: HashMap<u64, &Unflushed> = leaves
            .iter()
            .zip(&written)
            .map(|((_, leaf), (_, writes))| (leaf.guid(), writes))
            .collect();
        let done = self.on_leaves(&leaves, |_, leaf, device| {
            match by_leaf.get(&leaf.guid()) {
                Some(w) if w.lost => return Err(Error::damaged("it lost writes before")),
                Some(w) if w.suspect && txg.is_none() => {
                    bail!(Io, "what it wrote before it failed is to be checked first")
                }
                Some(w) if w.suspect => w.restore(device)?,
                _ => {}
            }
            self.flush_device(leaf, device)
        });
        drop(by_leaf);
        let failed: HashMap<u64, Error> = leaves
            .iter()
            .zip(&done)
            .filter_map(|((_, leaf), r)| Some((leaf.guid(), r.clone().err()?)))
            .collect();
        if failed.is_empty() {
            return Ok(());
        }
        let fine = |top: &Arc<Vdev>| survives(top, &|leaf| !failed.contains_key(&leaf.guid()));
        let broken: BTreeSet<u64> = self
            .tops()
            .iter()
            .filter(|t| !fine(t))
            .map(|t| t.id())
            .collect();
        let taken = written.into_iter().zip(repairs);
        for (((top, leaf), ((txgs, mut writes), repairs)), r) in leaves.iter().zip(taken).zip(&done)
        {
            let Err(e) = r else { continue };
            self.repairs.lose(repairs);
            if broken.contains(&top.id()) && top.is_log() {
                // Not believed by whoever logged there, and nobody else needs it.
                self.log_losses.fetch_add(1, AcqRel);
                continue;
            }
            if broken.contains(&top.id()) {
                writes.suspect = true;
                writes.lost |= is_missing(e);
                leaf.put_back_dirty(txgs, writes);
                continue;
            }
            let named = (!txg.is_none()).then_some((txg, txg));
            // What distributed spares had there is lost as well.
            let spares = top.dspares();
            for v in spares.into_iter().chain([&**leaf]) {
                for (first, last) in txgs.into_iter().chain(named) {
                    v.dtl_add_range(first, last.after(1));
                }
            }
        }
        let mut first = None;
        let needed = |t: &&Arc<Vdev>| broken.contains(&t.id()) && !t.is_log();
        for top in self.tops().iter().filter(needed) {
            let leaves = top.leaves();
            let mine: Vec<&Error> = leaves
                .iter()
                .filter_map(|l| failed.get(&l.guid()))
                .collect();
            let why = match mine.first() {
                Some(e) => (*e).clone(),
                None => Error::new(Kind::NoDevice, "no leaf is available"),
            };
            let why = why.context(format!("{}: flush", top.name()));
            if !mine.is_empty() && mine.iter().all(|e| is_missing(e)) {
                // No other one may still have it.
                lost.get_or_insert(why.clone());
            }
            first.get_or_insert(why);
        }
        first.map_or(Ok(()), Err)
    }
}

/// Whether data written to a vdev can be read back if exactly the leaves for which `ok` holds (and
/// which are usable) have it.
pub(crate) fn survives(v: &Arc<Vdev>, ok: &dyn Fn(&Vdev) -> bool) -> bool {
    let good = || v.children().iter().filter(|c| survives(c, ok)).count();
    match v.kind() {
        VdevKind::Disk | VdevKind::File => v.state().usable() && ok(v),
        VdevKind::Raidz { nparity } | VdevKind::Draid { nparity, .. } => {
            good() + nparity >= v.children().len()
        }
        k if k.is_mirrorish() => good() > 0,
        VdevKind::Dspare => ok(v),
        // Nothing is ever written to these.
        _ => true,
    }
}
