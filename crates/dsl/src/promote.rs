//! Promoting a clone (data format §10.6): the clone takes over its origin and all snapshots before it,
//! and the file system it was cloned from becomes the clone.

use crate::core::{is_hidden, Core, Triple, FULL_NAME_MAX};
use crate::history::NOTHING;
use crate::snapshot::space_after;
use crate::{limits, Dataset, Dir, Dsl};
use base::mutation::{mutated, Mutation};
use base::{bail, bail_about, Error, Result, Txg};
use disk::dsl::{ds_flags, Used};
use dmu::Tx;
use std::collections::HashMap;
use std::sync::Arc;
use zap::Zap;

/// Most snapshots of a chain that are followed before it is taken for a circle.
const MOST: usize = 1 << 24;

/// A snapshot that a promotion moves. There may be a hundred thousand: none is in memory for that.
pub(crate) struct Shared {
    pub object: u64,
    pub name: String,
}

/// Everything a promotion changes, found out before it changes anything.
struct Plan {
    clone: Arc<Dataset>,
    dir: Arc<Dir>,
    /// The snapshot the clone begins with.
    origin: Arc<Dataset>,
    /// Head and directory that become the clone.
    old_head: Arc<Dataset>,
    old_dir: Arc<Dir>,
    /// Snapshots that move: the origin first, then older ones.
    shared: Vec<Shared>,
    /// The clone's first dataset: its oldest snapshot, or itself.
    first: Arc<Dataset>,
    /// Space that moves from one directory to the other.
    moved: Triple,
    /// `usedbysnapshots` of the clone and of the old head afterwards, bytes.
    clone_snaps: i64,
    old_snaps: i64,
    /// Unique space of the origin afterwards, bytes.
    unique: i64,
}

impl Core {
    /// The chain of a dataset back to the object `end`, which is not part of it: newest first.
    fn chain(self: &Arc<Self>, from: &Arc<Dataset>, end: u64) -> Result<Vec<u64>> {
        let mut out = vec![from.object()];
        let mut at = from.phys().prev_snap_obj;
        while at != end && at != 0 {
            if out.len() >= MOST {
                return Err(Error::damaged("chain of snapshots goes round"));
            }
            out.push(at);
            at = self.dataset(at)?.phys().prev_snap_obj;
        }
        if at != end {
            return Err(Error::damaged(format!(
                "the chain of {} does not lead to its origin",
                from.full_name()
            )));
        }
        Ok(out)
    }

    /// What snapshots of a chain use alone together, of blocks born after `txg`, bytes.
    fn used_by(self: &Arc<Self>, chain: impl IntoIterator<Item = u64>, txg: Txg) -> Result<i64> {
        let mut sum = 0;
        for object in chain {
            let ds = self.dataset(object)?;
            sum += match txg {
                Txg::NONE => ds.deadlist_space()?.used,
                _ => space_after(self, &ds.deadlist()?, txg)?,
            };
        }
        Ok(sum)
    }
}

/// Whether `used` more bytes fit into `to` and the directories above it that
/// are not above `from`, too.
fn check_room(from: &Arc<Dir>, to: &Arc<Dir>, used: u64) -> Result<()> {
    let above = |d: &Arc<Dir>| {
        let mut at = Some(from.clone());
        while let Some(f) = at {
            if f.object() == d.object() {
                return true;
            }
            at = f.parent();
        }
        false
    };
    let mut at = Some(to.clone());
    while let Some(d) = at {
        if above(&d) {
            return Ok(());
        }
        let p = d.phys();
        if p.quota != 0 && p.used_bytes.saturating_add(used) > p.quota {
            bail_about!(Quota, d.full_name(), "its quota does not allow that");
        }
        at = d.parent();
    }
    Ok(())
}

impl Dsl {
    /// Names of snapshots and bookmarks (`@…`, `#…`) that stand in the way of a promotion: the clone
    /// has them as well.
    ///
    /// Errors: as [`promote`](Self::promote).
    pub fn promote_conflicts(&self, clone: &Arc<Dataset>) -> Result<Vec<String>> {
        let (origin, old_head, shared) = self.shared_with_origin(clone)?;
        self.conflicts(clone, &origin, &old_head, &shared)
    }

    fn conflicts(
        &self,
        clone: &Arc<Dataset>,
        origin: &Dataset,
        old_head: &Dataset,
        shared: &[Shared],
    ) -> Result<Vec<String>> {
        let mut out = Vec::new();
        for Shared { name, .. } in shared {
            if clone.snapshot_named(name)?.is_some() {
                out.push(format!("@{name}"));
            }
        }
        let limit = origin.phys().creation_txg;
        for (name, m) in old_head.bookmarks()? {
            if m.creation_txg <= limit && clone.bookmark(&name)?.is_some() {
                out.push(format!("#{name}"));
            }
        }
        Ok(out)
    }

    /// The objects of the snapshots that a promotion of this clone moves, newest first.
    ///
    /// Errors: `Kind::Invalid` if it is no clone.
    pub fn shared_snapshots(&self, clone: &Arc<Dataset>) -> Result<Vec<u64>> {
        let (_, _, shared) = self.shared_with_origin(clone)?;
        Ok(shared.into_iter().map(|s| s.object).collect())
    }

    /// Origin and head of the file system a clone comes from, and the snapshots that a promotion moves,
    /// newest first.
    pub(crate) fn shared_with_origin(
        &self,
        clone: &Arc<Dataset>,
    ) -> Result<(Arc<Dataset>, Arc<Dataset>, Vec<Shared>)> {
        let name = clone.full_name();
        if clone.is_snapshot() {
            bail!(Invalid, "{name} is a snapshot");
        }
        let Some(origin) = clone.dir().origin()? else {
            bail_about!(Invalid, &name, "not a cloned filesystem");
        };
        let old_dir = origin.dir();
        let old_head = old_dir.head()?;
        // All names at once; each by itself would be looked for in the whole map. Hidden ones are not among them.
        let names = old_head.snapshot_names()?.into_iter();
        let mut names: HashMap<u64, String> = names.map(|(name, o)| (o, name)).collect();
        let mut shared = Vec::new();
        for object in self.core.chain(&origin, old_dir.phys().origin_obj)? {
            let name = match names.remove(&object) {
                Some(name) => name,
                None => self.core.dataset(object)?.snap_name()?.unwrap_or_default(),
            };
            shared.push(Shared { object, name });
        }
        Ok((origin, old_head, shared))
    }

    fn plan_promotion(&self, clone: &Arc<Dataset>) -> Result<Plan> {
        let core = &self.core;
        let name = clone.full_name();
        let (origin, old_head, shared) = self.shared_with_origin(clone)?;
        if clone.phys().flags & ds_flags::NOPROMOTE != 0 {
            bail_about!(CrossDevice, &name, "it cannot be promoted");
        }
        let conflicts = self.conflicts(clone, &origin, &old_head, &shared)?;
        if !conflicts.is_empty() {
            let list = conflicts.join(", ");
            bail_about!(Exists, &name, "conflicting names of the parent: {list}");
        }
        let (dir, old_dir) = (clone.dir(), old_head.dir());
        for Shared { name: short, .. } in &shared {
            if name.len() + 1 + short.len() > FULL_NAME_MAX {
                bail!(NameTooLong, "{name}@{short}: snapshot name is too long");
            }
        }
        if let Some(root) = old_dir.encryption_root()? {
            let mut at = Some(dir.clone());
            // A clone of the root has the root's key object, wherever it is.
            let below = root.object() == old_dir.object()
                || dir.key_object_number()? == root.key_object_number()?
                || std::iter::from_fn(|| {
                    let d = at.take()?;
                    at = d.parent();
                    Some(d)
                })
                .any(|d| d.object() == root.object());
            if !below {
                bail_about!(
                    CrossDevice,
                    &name,
                    "it would own what is encrypted under {}, which is not above it",
                    root.full_name()
                );
            }
        }
        let o = origin.phys();
        let own = core.chain(clone, origin.object())?;
        let rest = core.chain(&old_head, origin.object())?;
        let first = core.dataset(own.last().copied().unwrap_or(clone.object()))?;

        // What the moving snapshots hold: what the newest refers to, and what died on the way to it.
        let mut moved = sizes(&origin);
        for s in &shared {
            let s = core.dataset(s.object)?;
            if s.phys().prev_snap_obj != 0 {
                moved += s.deadlist_space()?;
            }
        }
        if let Some(older) = old_dir.origin()? {
            moved -= sizes(&older);
        }
        let fits = moved.used.max(0) as u64;
        check_room(&old_dir, &dir, fits)?;

        let before = old_dir.origin_txg()?;
        let moving = shared.iter().map(|s| s.object);
        let clone_snaps = core.used_by(moving.chain(own), before)?;
        let old_snaps = core.used_by(rest, o.creation_txg)?;
        let unique = space_after(core, &first.deadlist()?, o.prev_snap_txg)?;
        Ok(Plan {
            clone: clone.clone(),
            dir,
            origin,
            old_head,
            old_dir,
            shared,
            first,
            moved,
            clone_snaps,
            old_snaps,
            unique,
        })
    }

    /// Whether a clone can be promoted.
    ///
    /// Errors: those of [`promote`](Self::promote).
    pub fn check_promote(&self, clone: &Arc<Dataset>) -> Result<()> {
        self.plan_promotion(clone).map(drop)
    }

    /// Makes a clone the owner of its origin and of all snapshots before it; the file system or volume
    /// they belonged to becomes its clone. Data and open object sets are not touched. Returns the head
    /// that is the clone now.
    ///
    /// Errors: `Kind::Invalid` if it is no clone, `Kind::Exists` if names are in the way
    /// ([`promote_conflicts`](Self::promote_conflicts)), `Kind::Quota` by quotas and limits of its
    /// directory. Nothing was changed then.
    pub fn promote(&self, tx: &Tx, clone: &Arc<Dataset>) -> Result<Arc<Dataset>> {
        let core = &self.core;
        core.need_syncing(tx)?;
        let (_, old_head, _) = self.shared_with_origin(clone)?;
        // What this txg has counted so far belongs to the directories as they are now.
        core.must(clone.flush(tx))?;
        core.must(old_head.flush(tx))?;
        let plan = self.plan_promotion(clone)?;
        core.must(self.carry_out(tx, &plan))?;
        core.note("promote", clone, NOTHING);
        Ok(old_head)
    }

    fn carry_out(&self, tx: &Tx, plan: &Plan) -> Result<()> {
        let core = &self.core;
        let origin = &plan.origin;
        let old_next = origin.phys().next_snap_obj;
        origin.update(tx, |p| p.next_snap_obj = plan.first.object())?;
        if origin.phys().next_clones_obj != 0 {
            core.remove_next_clone(tx, origin, plan.first.object())?;
            core.add_next_clone(tx, origin, old_next)?;
        }
        let older = plan.old_dir.phys().origin_obj;
        plan.dir.update(tx, |p| p.origin_obj = older)?;
        plan.old_dir
            .update(tx, |p| p.origin_obj = origin.object())?;
        if core.version() >= 26 {
            core.remove_clone(tx, &plan.old_dir, plan.clone.object())?;
            if older != 0 {
                let dir = core.dataset(older)?.dir();
                core.remove_clone(tx, &dir, plan.old_head.object())?;
                core.add_clone(tx, &dir, plan.clone.object())?;
            }
            core.add_clone(tx, &plan.dir, plan.old_head.object())?;
        }
        self.move_bookmarks(tx, plan)?;
        for s in &plan.shared {
            let snap = core.dataset(s.object)?;
            self.move_snapshot(tx, plan, &snap, &s.name, old_next)?;
        }
        for head in [&plan.clone, &plan.old_head] {
            core.snapshots_changed(tx, head)?;
        }
        if !mutated(Mutation::PromotionUncharged) {
            charge(tx, &plan.dir, plan.clone_snaps, plan.moved)?;
        }
        charge(tx, &plan.old_dir, plan.old_snaps, -plan.moved)?;
        origin.update(tx, |p| p.unique_bytes = plan.unique.max(0) as u64)?;
        plan.dir.drop_livelist(tx)?;
        plan.old_dir.drop_livelist(tx)?;
        core.move_encryption_root(tx, &plan.old_dir, &plan.dir)
    }

    /// Gives a snapshot another directory, and the clones made of it another place in the lists.
    fn move_snapshot(
        &self,
        tx: &Tx,
        plan: &Plan,
        snap: &Arc<Dataset>,
        name: &str,
        old_next: u64,
    ) -> Result<()> {
        let core = &self.core;
        let names = |ds: &Dataset| core.hold(ds.phys().snapnames_zapobj);
        Zap::new(&names(&plan.old_head)?).remove(tx, name)?;
        Zap::new(&names(&plan.clone)?).add_u64(tx, name, snap.object())?;
        if !is_hidden(name) {
            limits::adjust(tx, &plan.old_dir, limits::SNAP_COUNT, -1)?;
            limits::adjust(tx, &plan.dir, limits::SNAP_COUNT, 1)?;
        }
        snap.update(tx, |p| p.dir_obj = plan.dir.object())?;
        snap.set_dir(plan.dir.clone());
        let clones = snap.phys().next_clones_obj;
        if clones == 0 || core.version() < 26 {
            return Ok(());
        }
        let dn = core.hold(clones)?;
        let all: Result<Vec<u64>> = Zap::new(&dn).iter().map(|e| e?.value.to_u64()).collect();
        for o in all? {
            // The old head's own place has been changed already.
            if o == old_next {
                continue;
            }
            let head = core.dataset(o)?.dir().phys().head_dataset_obj;
            core.remove_clone(tx, &plan.old_dir, head)?;
            core.add_clone(tx, &plan.dir, head)?;
        }
        Ok(())
    }

    /// Bookmarks that are not younger than the origin go along.
    fn move_bookmarks(&self, tx: &Tx, plan: &Plan) -> Result<()> {
        let limit = plan.origin.phys().creation_txg;
        for (name, words) in plan.old_head.bookmark_words()? {
            let mark = disk::dsl::BookmarkPhys::from_words(&words)?;
            if mark.creation_txg <= limit {
                self.core.take_bookmark(tx, &plan.old_head, &name)?;
                self.core.put_bookmark(tx, &plan.clone, &name, &words)?;
            }
        }
        plan.clone
            .bookmarks_have_next(tx, limit, plan.first.deadlist_space()?)
    }
}

fn sizes(ds: &Dataset) -> Triple {
    let p = ds.phys();
    Triple {
        used: p.referenced_bytes as i64,
        comp: p.compressed_bytes as i64,
        uncomp: p.uncompressed_bytes as i64,
    }
}

/// Adds `t` to a directory whose snapshots use `snaps` bytes from now on.
fn charge(tx: &Tx, dir: &Dir, snaps: i64, t: Triple) -> Result<()> {
    let p = dir.phys();
    let delta = match p.flags & disk::dsl::DIR_USED_BREAKDOWN {
        0 => 0,
        _ => snaps - p.used(Used::Snap) as i64,
    };
    dir.diduse_split(tx, &[(Used::Snap, delta), (Used::Head, t.used - delta)], t)
}
