//! RAID-Z expansion: a device is attached to a RAID-Z while the pool is in use (pool format §10). How sectors are copied and found
//! meanwhile is the matter of `vdev`; this is what makes it survive crashes, and the job that does it.
//!
//! 1. [`Pool::expand_raidz`]: one txg makes the device a child. The vdev is expanding from then on; nothing has moved.
//! 2. Some txgs later ([`BEFORE_BEGIN`]) a txg moves the beginning through the scratch area ([`Pool::begin_copying`]). It writes two
//!    uberblocks beside its own, which repeat the one before: the first says that the scratch area is valid, the second that the
//!    beginning is at its new place. An import that finds the first moves the beginning anew ([`Pool::settle_uberblock`]).
//! 3. Slices of the job copy what is in use. The next uberblock says how far; then slices may copy as much further as that allows.
//! 4. When an uberblock says that everything is at its new place, the next txg ends the expansion: it notes from which txg on the new
//!    width counts, makes the new room usable, and begins a scrub, since nothing looked at checksums.
//!
//! Invariants:
//!
//! 1. The uberblock never says more than what was copied, and flushed with its txg or before.
//! 2. Nothing is copied while a child of the vdev is missing or lacks something. Then the job waits, and the uberblock stays.
//! 3. An uberblock of the scratch area ranks higher than every one that was written before, heartbeats of `multihost` included.

use crate::jobs::{self, Budget, Job, Piece, Priority, Progress, Step, Subject};
use crate::sync::SyncState;
use crate::Pool;
use base::mutation::{mutated, Mutation};
use base::sync::MutexExt;
use base::{bail, Kind, Result, Txg};
use disk::feature::guid::RAIDZ_EXPANSION;
use disk::mos_keys::{EXPAND_COPIED, EXPAND_END, EXPAND_START, EXPAND_STATE};
use disk::scan::ScanState;
use disk::uberblock::{scratch, Uberblock};
use dmu::Tx;
use env::Env;
use std::sync::{Arc, Mutex, MutexGuard};
use vdev::{keys, DevSpec, ExpansionRefusal, Vdev, VdevKind, VdevTree, EXPANSION_GAP};
use zap::Zap;

/// Txgs between the one that attaches the device and the one that moves the beginning, as in OpenZFS: those in flight, and those
/// until what they freed can be given out again.
const BEFORE_BEGIN: u64 = 5;
/// Txgs in flight: blocks of those behind them have the new width when an expansion ends.
const IN_FLIGHT: u64 = 3;
/// Bytes in use that are copied in one go, while writes to them wait.
const PIECE: u64 = 8 << 20;
/// So many times as many bytes are read at most, where gaps between what is in use are copied along.
const JOINED: u64 = 4;
/// Bytes that are copied for one of the budget: they are moved within a vdev, in long runs.
const CHEAP: u64 = (128 << 10) / jobs::BLOCK;
/// Nanoseconds until what failed is tried again.
const AGAIN_NS: u64 = 30_000_000_000;

/// Why a RAID-Z is not expanded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpandRefusal {
    /// The pool does not have the feature `raidz_expansion`, or no ZAPs of vdevs.
    NoFeature,
    /// One is under way.
    UnderWay,
    /// There is a checkpoint, or what is left of one.
    Checkpoint,
    /// A removal is under way.
    Removing,
    /// The vdev itself.
    Vdev(ExpansionRefusal),
}

impl std::fmt::Display for ExpandRefusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            ExpandRefusal::NoFeature => {
                "raidz_expansion feature must be enabled in order to attach a device to raidz"
            }
            ExpandRefusal::UnderWay => "raidz expansion in progress",
            ExpandRefusal::Checkpoint => "checkpoint exists",
            ExpandRefusal::Removing => "device removal in progress",
            ExpandRefusal::Vdev(ExpansionRefusal::NotWhole) => {
                "raidz vdev has devices that are offline or being replaced"
            }
            ExpandRefusal::Vdev(ExpansionRefusal::TooWide) => {
                "the sectors of the raidz vdev are too large for so many devices"
            }
        })
    }
}

/// An expansion under way.
struct Live {
    vdev: u64,
    /// First txg that may move the beginning.
    begins: Txg,
    /// Bytes in use that were copied, and what of it is on disk.
    copied: u64,
    stored: u64,
    /// What failed is tried again then, on the monotonic clock.
    again: u64,
}

/// The expansion of one pool.
pub(crate) struct Expansions {
    env: Env,
    tree: Arc<VdevTree>,
    live: Mutex<Option<Live>>,
    /// Offset and state for the next uberblock; `None`: as in the one before.
    word: Mutex<Option<(u64, u64)>>,
}

impl Expansions {
    pub fn new(env: Env, tree: Arc<VdevTree>) -> Expansions {
        Expansions {
            env,
            tree,
            live: Mutex::new(None),
            word: Mutex::new(None),
        }
    }

    fn live(&self) -> MutexGuard<'_, Option<Live>> {
        self.live.acquire()
    }

    /// The vdev that is expanding.
    fn top(&self) -> Option<Arc<Vdev>> {
        let id = self.live().as_ref()?.vdev;
        self.tree.top(id).ok().filter(|t| t.is_expanding())
    }

    fn wait_a_while(&self) {
        let now = self.env.clock.monotonic_ns();
        if let Some(l) = &mut *self.live() {
            l.again = now.saturating_add(AGAIN_NS);
        }
    }

    /// What failed is tried at once when it can be.
    fn wait_no_longer(&self) {
        if let Some(l) = &mut *self.live() {
            l.again = 0;
        }
    }

    fn is_waiting(&self) -> bool {
        let now = self.env.clock.monotonic_ns();
        self.live().as_ref().is_some_and(|l| l.again > now)
    }

    /// How far the expansion is goes into an uberblock.
    pub fn stamp(&self, ub: &mut Uberblock) {
        if let Some((offset, state)) = *self.word.acquire() {
            ub.set_reflow(offset, state);
        }
    }

    fn set_word(&self, offset: u64, state: u64) {
        *self.word.acquire() = Some((offset, state));
    }
}

/// The job of an expansion; registered when one begins or goes on.
pub(crate) struct ExpansionJob(pub Arc<Expansions>);

impl Job for ExpansionJob {
    fn name(&self) -> &'static str {
        "raidz_expand"
    }

    fn step(&self, pool: &Pool, tx: &Tx, _: &Budget) -> Result<Step> {
        pool.step_expansion(tx)
    }

    fn priority(&self) -> Priority {
        Priority::High
    }

    fn instances(&self) -> Vec<Subject> {
        let live = self.0.live();
        live.iter().map(|l| Subject::Vdev(l.vdev)).collect()
    }

    fn ready(&self) -> Vec<Subject> {
        let wanted = self.0.top().filter(|top| {
            let room =
                |r: vdev::map::Reflow| !r.scratch && r.done > 0 && r.next < top.expansion_limit();
            top.reflow().is_some_and(room) && top.is_whole() && !self.0.is_waiting()
        });
        wanted.iter().map(|t| Subject::Vdev(t.id())).collect()
    }

    fn piece(&self, pool: &Pool, _: Subject, budget: &Budget) -> Piece {
        match pool.copy_expansion_piece(budget) {
            true => Piece::Done,
            false => Piece::End,
        }
    }

    fn progress(&self, pool: &Pool, _: Subject) -> Result<Progress> {
        let (done, left) = pool.expansion_progress().unwrap_or((0, 0));
        Ok(Progress {
            done,
            total: done.saturating_add(left),
        })
    }
}

impl Pool {
    /// Whether a RAID-Z is being expanded.
    pub fn is_expanding(&self) -> bool {
        self.tree().tops().iter().any(|t| t.is_expanding())
    }

    /// Bytes that the expansion under way has copied, and bytes left to copy, at least one; `None` if there is none.
    pub fn expansion_progress(&self) -> Option<(u64, u64)> {
        let live = self.background.expansions.live();
        let l = live.as_ref()?;
        let used = self.allocated_on(l.vdev);
        Some((l.copied, used.saturating_sub(l.copied).max(1)))
    }

    /// Whether the expansion under way waits for a device of its vdev.
    pub fn expansion_waits(&self) -> bool {
        let top = self.background.expansions.top();
        top.is_some_and(|t| !t.is_whole() || self.background.expansions.is_waiting())
    }

    /// What speaks against expanding the RAID-Z `id` now.
    ///
    /// # Errors
    /// `Kind::Unsupported`: it is no RAID-Z. `Damaged`: there is no such vdev.
    pub fn expand_refusal(&self, id: u64) -> Result<Option<ExpandRefusal>> {
        let top = self.tree().top(id)?;
        if !matches!(top.kind(), VdevKind::Raidz { .. }) {
            bail!(
                Unsupported,
                "can only attach to mirrors and top-level disks"
            );
        }
        let enabled = self.config.features.is_enabled(RAIDZ_EXPANSION) && self.has_vdev_zaps();
        let c = &self.shares().checkpoint;
        Ok(if !enabled {
            Some(ExpandRefusal::NoFeature)
        } else if self.is_expanding() {
            Some(ExpandRefusal::UnderWay)
        } else if c.txg().is_some() || c.kept_sum() > 0 {
            Some(ExpandRefusal::Checkpoint)
        } else if self.is_removing() {
            Some(ExpandRefusal::Removing)
        } else {
            top.expansion_refusal().map(ExpandRefusal::Vdev)
        })
    }

    fn may_expand(&self, id: u64) -> Result<()> {
        match self.expand_refusal(id)? {
            None => Ok(()),
            Some(why @ (ExpandRefusal::UnderWay | ExpandRefusal::Removing)) => bail!(Busy, "{why}"),
            Some(ExpandRefusal::Checkpoint) => bail!(Exists, "{}", ExpandRefusal::Checkpoint),
            Some(why) => bail!(Unsupported, "{why}"),
        }
    }

    /// Makes `dev` a further child of the RAID-Z `id`, and has its sectors copied in the background. On disk when it returns, which is
    /// when the copying begins. Returns the guid of the new leaf.
    ///
    /// # Errors
    /// As [`Pool::expand_refusal`] says; those of [`vdev::VdevTree::prepare_wider`]. Nothing was changed then.
    pub fn expand_raidz(&self, id: u64, dev: &DevSpec, ashift: Option<u32>) -> Result<u64> {
        self.writable()?;
        self.may_expand(id)?;
        let base = self.label_base(0, Txg::NONE);
        let open = self.dmu().open_txg();
        let fresh = self.tree().prepare_wider(id, dev, ashift, &base, open)?;
        let new = fresh.clone();
        if let Err(e) = self.task(move |pool, tx| pool.expand_in(tx, id, &new)) {
            // In a pool that has stopped it may be in the tree on disk: a later txg may have failed.
            if self.stopped().is_none() {
                self.tree().retire(&fresh, None);
            }
            return Err(e);
        }
        Ok(fresh.guid())
    }

    fn expand_in(&self, tx: &Tx, id: u64, fresh: &Arc<Vdev>) -> Result<()> {
        self.may_expand(id)?;
        let name = self.tree().top(id)?.name();
        self.tree().expand_raidz(id, fresh)?;
        // A discard under way means the places of before.
        self.settle_wear();
        self.dirty_config();
        self.or_stop(self.leaf_arrives(tx, fresh))?;
        self.goes_on_with_expansion(Live {
            vdev: id,
            begins: tx.txg().after(BEFORE_BEGIN),
            copied: 0,
            stored: 0,
            again: 0,
        });
        let top = self.tree().top(id)?;
        let path = fresh.path().unwrap_or_default();
        let done = self
            .config
            .features
            .activate(tx, RAIDZ_EXPANSION, 1)
            .and_then(|()| {
                self.store_expansion(tx, &top, EXPAND_STATE, ScanState::Scanning.number())
            })
            .and_then(|()| self.store_expansion(tx, &top, EXPAND_START, self.seconds()))
            .and_then(|()| self.store_expansion(tx, &top, EXPAND_END, 0))
            .and_then(|()| self.store_expansion(tx, &top, EXPAND_COPIED, 0))
            .and_then(|()| self.tell_of_expansion(tx, &top, "started"))
            .and_then(|()| {
                let text = format!("attach vdev={path} to vdev={name}");
                self.log_internal(tx, "vdev attach", &text)
            });
        self.or_stop(done)
    }

    fn goes_on_with_expansion(&self, live: Live) {
        let expansions = &self.background.expansions;
        *expansions.live() = Some(live);
        let job = Arc::new(ExpansionJob(expansions.clone()));
        self.background.jobs.ensure(job);
    }

    fn tell_of_expansion(&self, tx: &Tx, top: &Vdev, what: &str) -> Result<()> {
        let (id, width) = (top.id(), top.children().len());
        let text = format!("{} vdev {id} new width {width}", self.name());
        self.log_internal(tx, &format!("raidz vdev expansion {what}"), &text)
    }

    fn store_expansion(&self, tx: &Tx, top: &Vdev, key: &str, value: u64) -> Result<()> {
        let Some(zap) = top.get_u64(keys::ZAP_TOP).filter(|z| *z != 0) else {
            bail!(Damaged, "{} has no ZAP", top.name());
        };
        let dn = self.mos().hold(zap)?;
        Zap::new(&dn).update(tx, key, &zap::Value::u64s(&[value]))
    }

    /// Goes on with the expansion that was under way when the pool was left.
    pub(crate) fn load_expansion(&self) -> Result<()> {
        let tops = self.tree().tops();
        let Some(top) = tops.iter().find(|t| t.is_expanding()) else {
            return Ok(());
        };
        let copied = match top.get_u64(keys::ZAP_TOP).filter(|z| *z != 0) {
            Some(zap) => Zap::new(&self.mos().hold(zap)?).get(EXPAND_COPIED)?,
            None => bail!(Damaged, "{} has no ZAP", top.name()),
        };
        let copied = copied.unwrap_or(0);
        self.goes_on_with_expansion(Live {
            vdev: top.id(),
            begins: self.dmu().open_txg().after(BEFORE_BEGIN),
            copied,
            stored: copied,
            again: 0,
        });
        Ok(())
    }

    /// Writes an uberblock of the scratch area to all leaves, with a time of its own: it counts more than those before it, and than
    /// heartbeats that repeat them. From then on vdevs are read and written as it says. What it leads to has been flushed.
    fn write_scratch_uberblock(&self, ub: &mut Uberblock) -> Result<()> {
        let now = self.env.clock.now().0.max(0) as u64;
        self.vdevs.heart.supersede(ub, now);
        let ub = &*ub;
        let tops = self.tree().tops();
        let concrete = tops.iter().filter(|t| t.is_concrete());
        let all: Vec<u64> = concrete.map(|t| t.id()).collect();
        let multihost = self.vdevs.heart.is_on();
        self.persist(&mut || self.tree().write_uberblock(ub, &all, multihost))?;
        self.tree().advance_expansion(ub);
        Ok(())
    }

    /// In the txg in which that is due: moves the beginning of the vdev through the scratch area. `st` has the uberblock that is on
    /// disk.
    pub(crate) fn begin_copying(&self, tx: &Tx, st: &mut SyncState) -> Result<()> {
        let Some(top) = self.background.expansions.top() else {
            return Ok(());
        };
        let due = self
            .background
            .expansions
            .live()
            .as_ref()
            .is_some_and(|l| l.begins <= tx.txg());
        let done = top.reflow().map_or(0, |r| r.done);
        if !due || done > 0 || self.background.expansions.is_waiting() || !top.is_whole() {
            return Ok(());
        }
        let window = self.tree().scratch_window(top.id())?;
        if let Err(e) = self.tree().fill_scratch(&top) {
            tracing::warn!(pool = %self.name(), vdev = %top.name(), %e, "the expansion cannot begin");
            self.background.expansions.wait_a_while();
            return Ok(());
        }
        let size = top.scratch_size();
        let mut ub = st.uberblock.clone();
        ub.set_reflow(size, scratch::VALID);
        self.write_scratch_uberblock(&mut ub)?;
        base::mutation::panic_point("the scratch area is valid");
        ub.set_reflow(size, scratch::INVALID_SYNCED);
        if mutated(Mutation::ScratchClearedEarly) {
            self.write_scratch_uberblock(&mut ub)?;
        }
        self.persist(&mut || self.tree().empty_scratch(&top, tx.txg()))?;
        self.write_scratch_uberblock(&mut ub)?;
        base::mutation::panic_point("the scratch area is out of use");
        st.uberblock = ub;
        drop(window);
        self.background
            .expansions
            .set_word(size, scratch::INVALID_SYNCED_REFLOW);
        let used = self.used_before(&top, size);
        if let Some(l) = &mut *self.background.expansions.live() {
            l.copied += used;
        }
        Ok(())
    }

    /// Bytes in use in front of byte `end` of a vdev, as far as the maps in memory tell.
    fn used_before(&self, top: &Vdev, end: u64) -> u64 {
        let mut used = 0;
        for ms in 0..self.space().metaslab_count(top.id()) {
            let start = ms << top.metaslab_shift();
            if start >= end {
                break;
            }
            let ranges = self.space().withheld(top.id(), ms, start, end);
            used += ranges.map_or(0, |r| r.iter().map(|(s, e)| e - s).sum());
        }
        used
    }

    /// Before an import writes anything else: the uberblock it found is on all leaves, and if that says that the scratch area is valid,
    /// the content of the area is where it belongs. `back`: the state is that of a checkpoint.
    pub(crate) fn settle_uberblock(&self, back: bool) -> Result<()> {
        let mut ub = self.sync_state().uberblock.clone();
        match back {
            // The state gone back to is the newest one before anything is placed on what it takes for free: the one that
            // was the newest has blocks there.
            true => self.make_newest(&ub)?,
            false => self.tree().spread_uberblock(&ub)?,
        }
        let mut st = self.sync_state();
        let tops = self.tree().tops();
        let expanding = tops.iter().find(|t| t.is_expanding());
        let Some(top) = expanding.filter(|_| ub.scratch_state() == scratch::VALID) else {
            return Ok(());
        };
        let size = ub.reflow_offset();
        if size != top.scratch_size() {
            bail!(Damaged, "{}: a scratch area of {size} bytes", top.name());
        }
        self.tree().empty_scratch(top, ub.txg)?;
        ub.set_reflow(size, scratch::INVALID_SYNCED_ON_IMPORT);
        self.write_scratch_uberblock(&mut ub)?;
        st.uberblock = ub;
        Ok(())
    }

    /// Copies the next piece; false: nothing more can be copied now.
    fn copy_expansion_piece(&self, budget: &Budget) -> bool {
        let Some(top) = self.background.expansions.top() else {
            return false;
        };
        let Some(at) = top.reflow().map(|r| r.next) else {
            return false;
        };
        let (id, shift) = (top.id(), top.metaslab_shift());
        let ms = at >> shift;
        let to = top.expansion_limit().min((ms + 1) << shift);
        if to <= at {
            return false;
        }
        // Not while writes wait: reading the map may mend blocks.
        let loaded = budget.read_for_itself(|| self.space().ensure_loaded(id, ms));
        let known = loaded.is_ok();
        let in_use = |from: u64, to: u64| match known {
            true => self.space().withheld(id, ms, from, to),
            // Whatever is in it.
            false => Ok(vec![(from, to)]),
        };
        // The map may have been dropped from memory meanwhile.
        let Ok(ranges) = in_use(at, to) else {
            return true;
        };
        let most = self.config.tunables.job_bytes.saturating_mul(CHEAP);
        let to = cut(&ranges, to, PIECE.min(most));
        if !budget.take(((to - at).min(PIECE) / CHEAP).max(jobs::BLOCK)) {
            return false;
        }
        match self
            .tree()
            .copy_expansion(id, to, &in_use, self.dmu().open_txg())
        {
            Ok(bytes) => {
                if let Some(l) = &mut *self.background.expansions.live() {
                    l.copied = l.copied.saturating_add(bytes);
                }
                true
            }
            Err(e) if e.kind == Kind::Again => true,
            Err(e) => {
                tracing::warn!(pool = %self.name(), vdev = %top.name(), %e, "the expansion pauses");
                self.background.expansions.wait_a_while();
                false
            }
        }
    }

    /// The expansion's part of a txg.
    fn step_expansion(&self, tx: &Tx) -> Result<Step> {
        if self.background.expansions.live().is_none() {
            return Ok(Step::Finished);
        }
        let Some(top) = self.background.expansions.top() else {
            return Ok(Step::Idle);
        };
        let Some(reflow) = top.reflow() else {
            return Ok(Step::Idle);
        };
        if !top.is_whole() {
            // The device that is missing may be what failed: it goes on when the device is back.
            self.background.expansions.wait_no_longer();
            if self.tree().retreat_expansion(&top) {
                if let Some(l) = &mut *self.background.expansions.live() {
                    l.copied = l.stored;
                }
            }
            return Ok(Step::Idle);
        }
        let end = top.expansion_end();
        if reflow.done == 0 {
            // Until the beginning can be moved; what failed is tried again some time.
            return Ok(match self.background.expansions.is_waiting() {
                true => Step::Idle,
                false => Step::More,
            });
        }
        if reflow.done >= end && reflow.next >= end {
            self.complete_expansion(tx, &top)?;
            return Ok(Step::More);
        }
        let row = (top.children().len() as u64 - 1) << top.ashift();
        let ahead = mutated(Mutation::ExpansionRowAhead) && reflow.next + row <= end;
        let next = reflow.next + if ahead { row } else { 0 };
        self.background
            .expansions
            .set_word(next, scratch::INVALID_SYNCED_REFLOW);
        let changed = match &mut *self.background.expansions.live() {
            Some(l) if l.copied != l.stored => {
                l.stored = l.copied;
                Some(l.copied)
            }
            _ => None,
        };
        if let Some(copied) = changed {
            self.store_expansion(tx, &top, EXPAND_COPIED, copied)?;
        }
        Ok(match reflow.next >= end {
            true => Step::More,
            false => Step::Idle,
        })
    }

    /// Everything is at its new place, and an uberblock on disk says so.
    fn complete_expansion(&self, tx: &Tx, top: &Arc<Vdev>) -> Result<()> {
        let (id, before) = (top.id(), top.metaslab_count());
        let asize = self.tree().end_expansion(id, tx.txg().after(IN_FLIGHT))?;
        let now = self.tree().top(id)?;
        self.dirty_config();
        self.vdevs.devices.refresh();
        if now.metaslab_count() > before {
            self.allocation
                .maps
                .grow_top(tx, id, now.metaslab_count())?;
            self.space().grow_top(id, asize, tx.txg())?;
            self.shares().brt.grow_vdev(id, asize)?;
        }
        let copied = self
            .background
            .expansions
            .live()
            .take()
            .map_or(0, |l| l.copied);
        self.background.expansions.set_word(0, scratch::NOT_IN_USE);
        self.store_expansion(tx, &now, EXPAND_COPIED, copied)?;
        self.store_expansion(tx, &now, EXPAND_STATE, ScanState::Finished.number())?;
        self.store_expansion(tx, &now, EXPAND_END, self.seconds())?;
        self.tell_of_expansion(tx, &now, "completed")?;
        self.scrub_what_was_copied(tx)
    }
}

/// Where to stop in `[.., to)` so that about `most` bytes of the ranges in use are copied, and no more than [`JOINED`] times as many are
/// read: short gaps are copied along.
fn cut(ranges: &[(u64, u64)], to: u64, most: u64) -> u64 {
    let mut left = most;
    let mut read = most.saturating_mul(JOINED);
    let mut before = None;
    for &(start, end) in ranges {
        let gap = before.map_or(0, |b| start - b);
        let gap = if gap <= EXPANSION_GAP { gap } else { 0 };
        if gap >= read {
            return start;
        }
        read -= gap;
        let most = left.min(read);
        if end - start >= most {
            return start + most;
        }
        left -= end - start;
        read -= end - start;
        before = Some(end);
    }
    to
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_piece_ends_where_enough_is_in_use() {
        let ranges = [(0, 4096), (8192, 16384)];
        assert_eq!(cut(&ranges, 1 << 20, 2048), 2048);
        assert_eq!(cut(&ranges, 1 << 20, 4096), 4096);
        assert_eq!(cut(&ranges, 1 << 20, 8192), 12288);
        assert_eq!(cut(&ranges, 1 << 20, 1 << 19), 1 << 20);
        assert_eq!(cut(&[], 77, 1), 77);
    }

    #[test]
    fn a_piece_ends_where_much_is_copied_along() {
        let step = EXPANSION_GAP + 512;
        let ranges: Vec<(u64, u64)> = (0..1000).map(|n| (n * step, n * step + 512)).collect();
        let most = 1 << 20;
        let to = cut(&ranges, 1 << 40, most);
        assert!(to <= most * JOINED + step && to > most, "{to}");
        // Far apart, nothing is copied along.
        let ranges: Vec<(u64, u64)> = (0..1000)
            .map(|n| (n * 2 * step, n * 2 * step + 512))
            .collect();
        assert_eq!(cut(&ranges, 1 << 40, most), 1 << 40);
        assert_eq!(cut(&ranges, 1 << 40, 512 * 10), 9 * 2 * step + 512);
    }
}
