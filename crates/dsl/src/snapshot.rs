//! Snapshots: creation, destruction, rollback (data format §10.2, §10.4, §10.7).

use crate::bptree::Bptree;
use crate::core::{bump, check_component, is_hidden, Core, Triple, FULL_NAME_MAX};
use crate::crypto::ENCRYPTION;
use crate::history::NOTHING;
use crate::{limits, Dataset, Dir, Dsl};
use base::mutation::{mutated, Mutation};
use base::{bail, bail_about, Cause, Error, Kind, Result, Txg};
use disk::dnode::objset::ObjsetPhys;
use disk::dsl::{bookmark_flags, ds_flags, BookmarkPhys, DslDatasetPhys, Used};
use dmu::Tx;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use zap::{Value, Zap};

/// Pool version from which on a snapshot may be made of a file system with an intent log.
const FAST_SNAPSHOTS: u64 = 27;

/// What a snapshot holds.
pub struct Held {
    /// Name behind the `@`.
    pub name: String,
    /// The snapshot.
    pub snap: Arc<Dataset>,
    /// Bytes that would come free together with the snapshots before it, back to the last one that is pinned; none
    /// if it is pinned itself.
    pub with_run: Option<u64>,
}

impl Dsl {
    /// Whether a snapshot `name` of `head` may be made. `Kind::Busy`: the dataset is inconsistent,
    /// since a receive into it did not end.
    pub fn check_snapshot(&self, head: &Arc<Dataset>, name: &str) -> Result<()> {
        if head.is_snapshot() {
            bail!(Invalid, "{} is a snapshot", head.full_name());
        }
        if !is_hidden(name) {
            check_component(name)?;
        }
        let full = format!("{}@{name}", head.full_name());
        if full.len() > FULL_NAME_MAX {
            bail_about!(NameTooLong, &full, "snapshot name is too long");
        }
        if head.snapshot_named(name)?.is_some() {
            bail_about!(Exists, &full, "snapshot already exists");
        }
        if head.is_inconsistent() {
            bail_about!(
                Busy,
                head.full_name(),
                "dataset is inconsistent: a receive did not end"
            );
        }
        if head.reserved_again() > head.dir().available().bytes {
            bail_about!(NoSpace, &full, "out of space");
        }
        Ok(())
    }

    /// Whether all these snapshots can be made in one txg: what [`Dsl::check_snapshot`] asks of each,
    /// and reservations for all of them together. Limits on their number: [`Dsl::check_snapshot_limits`].
    pub fn check_snapshots(&self, list: &[(Arc<Dataset>, String)]) -> Result<()> {
        let mut heads = BTreeSet::new();
        // Bytes that reservations take again, by directory.
        let mut sums: BTreeMap<u64, (Arc<Dir>, u64)> = BTreeMap::new();
        for (head, name) in list {
            self.check_snapshot(head, name)?;
            if !heads.insert(head.object()) {
                bail_about!(Invalid, head.full_name(), "two snapshots at the same time");
            }
            let mut bytes = head.reserved_again();
            let mut at = Some(head.dir());
            while let Some(dir) = at {
                let sum = sums.entry(dir.object()).or_insert_with(|| (dir.clone(), 0));
                sum.1 = sum.1.saturating_add(bytes);
                // What a reservation holds back is not asked of the directories above.
                bytes = bytes.saturating_sub(dir.unused_reservation());
                at = dir.parent();
            }
        }
        for (dir, bytes) in sums.values() {
            if *bytes > dir.available().bytes {
                bail_about!(NoSpace, dir.full_name(), "out of space");
            }
        }
        Ok(())
    }

    /// Makes snapshots in one txg, all of them or none; each as [`Dsl::snapshot`] does.
    pub fn snapshot_all(
        &self,
        tx: &Tx,
        list: &[(Arc<Dataset>, String)],
    ) -> Result<Vec<Arc<Dataset>>> {
        self.core.need_syncing(tx)?;
        self.check_snapshots(list)?;
        for (head, _) in list {
            self.check_written(tx, head)?;
        }
        let made = list
            .iter()
            .map(|(head, name)| self.snapshot(tx, head, name));
        self.core.must(made.collect())
    }

    /// Whether the root pointer of a head is what a snapshot of this txg has to have.
    fn check_written(&self, tx: &Tx, head: &Arc<Dataset>) -> Result<()> {
        if head.phys().prev_snap_txg >= tx.txg() {
            bail_about!(Again, head.full_name(), "a snapshot was made in this txg");
        }
        let late = mutated(Mutation::SnapshotOfDirtySet);
        if !late && head.objset().is_some_and(|os| os.is_dirty_in(tx.txg())) {
            bail_about!(
                Again,
                head.full_name(),
                "it changes in this txg and has not been written yet"
            );
        }
        if self.core.version() < FAST_SNAPSHOTS && head.has_log()? {
            bail_about!(Again, head.full_name(), "its intent log is not empty");
        }
        Ok(())
    }

    /// Makes the snapshot `name` of `head`. `Kind::Again`, to be tried in the next txg: there is one
    /// of this txg already; blocks of this txg are still to be written (the snapshot would
    /// get the old root pointer, and what is written afterwards would belong to nobody); or, before
    /// pool version 27, the head has an intent log.
    pub fn snapshot(&self, tx: &Tx, head: &Arc<Dataset>, name: &str) -> Result<Arc<Dataset>> {
        self.core.need_syncing(tx)?;
        self.check_snapshot(head, name)?;
        self.check_written(tx, head)?;
        self.core.must(head.flush(tx))?;
        let snap = self
            .core
            .must(self.core.snapshot_head(tx, head, name, tx.txg()))?;
        self.core.note("snapshot", &snap, NOTHING);
        Ok(snap)
    }

    /// Whether a snapshot can be destroyed now: no holds, no clones.
    pub fn check_destroy_snapshot(&self, snap: &Dataset) -> Result<()> {
        if snap.is_kept() {
            bail_about!(Busy, snap.full_name(), "dataset is busy");
        }
        let p = snap.phys();
        if !p.is_snapshot() {
            bail!(Invalid, "{} is not a snapshot", snap.full_name());
        }
        if snap.holds()? > 0 {
            bail_about!(Busy, snap.full_name(), "it's being held");
        }
        if p.num_children > 1 {
            bail_about!(Exists, snap.full_name(), "snapshot has dependent clones");
        }
        Ok(())
    }

    /// Destroys a snapshot.
    pub fn destroy_snapshot(&self, tx: &Tx, snap: &Arc<Dataset>) -> Result<()> {
        self.core.need_syncing(tx)?;
        self.check_destroy_snapshot(snap)?;
        self.core.note("destroy", snap, NOTHING);
        self.core.must(self.core.destroy_snap(tx, snap))
    }

    /// Destroys a snapshot as soon as it has neither holds nor clones.
    pub fn destroy_snapshot_deferred(&self, tx: &Tx, snap: &Arc<Dataset>) -> Result<()> {
        // Nothing destroys it later, when it is not kept any more.
        if snap.is_kept() {
            bail_about!(Busy, snap.full_name(), "dataset is busy");
        }
        match self.check_destroy_snapshot(snap) {
            Ok(()) => self.destroy_snapshot(tx, snap),
            Err(e) if matches!(e.kind, Kind::Busy | Kind::Exists) => {
                self.core.note("defer_destroy", snap, NOTHING);
                snap.update(tx, |p| p.flags |= ds_flags::DEFER_DESTROY)
            }
            Err(e) => Err(e),
        }
    }
}

impl Dataset {
    /// Bytes that the reservation of a head takes again when a snapshot is made: what was unique is
    /// shared then.
    fn reserved_again(&self) -> u64 {
        let (_, r) = self.ref_limits();
        self.phys().unique_bytes.min(r)
    }

    /// Whether the object set names blocks of an intent log.
    fn has_log(&self) -> Result<bool> {
        let header = match self.objset() {
            Some(os) => os.zil_header(),
            None => match self.phys().bp {
                bp if bp.is_hole() => return Ok(false),
                bp => ObjsetPhys::decode(&self.core.dmu().zio.read(&bp)?)?.zil_header,
            },
        };
        Ok(header.iter().any(|b| *b != 0))
    }

    /// Number of user holds of a snapshot.
    pub fn holds(&self) -> Result<u64> {
        match self.phys().userrefs_obj {
            0 => Ok(0),
            o => Zap::new(&self.core.hold(o)?).count(),
        }
    }

    /// User holds of a snapshot with their times in seconds since 1970, by tag.
    pub fn hold_list(&self) -> Result<Vec<(String, u64)>> {
        let mut out = Vec::new();
        if self.phys().userrefs_obj != 0 {
            for e in Zap::new(&self.core.hold(self.phys().userrefs_obj)?).iter() {
                let e = e?;
                out.push((e.text(), e.value.to_u64()?));
            }
        }
        out.sort();
        Ok(out)
    }

    /// Bytes that destroying this snapshot would free together with all up to `last` (a later
    /// snapshot of the same chain, or itself).
    pub fn would_free(&self, last: &Dataset) -> Result<u64> {
        let first = self.phys();
        let mut at = self.core.dataset(first.next_snap_obj)?;
        let mut sum = 0i64;
        for _ in 0..1 << 24 {
            sum += at.died_since(first.prev_snap_txg)?;
            if at.phys().prev_snap_obj == last.object() {
                return Ok(sum.max(0) as u64);
            }
            if !at.is_snapshot() {
                bail!(Invalid, "snapshots of different chains");
            }
            at = self.core.dataset(at.phys().next_snap_obj)?;
        }
        Err(Error::damaged("chain of snapshots goes round"))
    }

    /// Bytes written between `snap` (an earlier snapshot of the chain) and this dataset.
    pub fn written_since(&self, snap: &Dataset) -> Result<u64> {
        Ok(self.space_written_since(snap)?.used.max(0) as u64)
    }

    /// The same, allocated, compressed and uncompressed.
    pub fn space_written_since(&self, snap: &Dataset) -> Result<Triple> {
        let (s, p) = (snap.phys(), self.phys());
        let mut sum = Triple {
            used: p.referenced_bytes as i64 - s.referenced_bytes as i64,
            comp: p.compressed_bytes as i64 - s.compressed_bytes as i64,
            uncomp: p.uncompressed_bytes as i64 - s.uncompressed_bytes as i64,
        };
        let mut at = self.me_arc()?;
        for _ in 0..1 << 24 {
            // All on the list of the one after `snap` was in `snap`: no key has to be read.
            sum += match at.phys().prev_snap_obj == snap.object() {
                true => at.deadlist_space()?,
                false => {
                    let list = at.filled_deadlist()?;
                    list.space_range(&self.core, Txg::NONE, s.creation_txg)?
                }
            };
            match at.phys().prev_snap_obj {
                o if o == snap.object() => return Ok(sum),
                0 => bail!(
                    CrossDevice,
                    "{} is not an earlier snapshot",
                    snap.full_name()
                ),
                o => at = self.core.dataset(o)?,
            }
        }
        Err(Error::damaged("chain of snapshots goes round"))
    }

    /// Bytes written between a bookmark of this dataset's history and this dataset.
    ///
    /// # Errors
    /// Those of [`Dataset::space_written_since_bookmark`].
    pub fn written_since_bookmark(&self, mark: &BookmarkPhys) -> Result<u64> {
        Ok(self.space_written_since_bookmark(mark)?.used.max(0) as u64)
    }

    /// The same, allocated, compressed and uncompressed.
    ///
    /// # Errors
    /// `Kind::Unsupported` if the bookmark does not count what is freed after it; `Kind::CrossDevice` if it
    /// is not of an earlier moment of this dataset.
    pub fn space_written_since_bookmark(&self, mark: &BookmarkPhys) -> Result<Triple> {
        let name = self.full_name();
        if mark.flags & bookmark_flags::HAS_FBN == 0 {
            bail_about!(Unsupported, &name, "the bookmark keeps no sizes");
        }
        if self.is_snapshot() && self.phys().creation_txg <= mark.creation_txg {
            bail_about!(
                CrossDevice,
                &name,
                "the bookmark is not of an earlier moment"
            );
        }
        let (p, m) = (self.phys(), &mark.referenced);
        let mut sum = Triple {
            used: p.referenced_bytes as i64 - m[0] as i64,
            comp: p.compressed_bytes as i64 - m[1] as i64,
            uncomp: p.uncompressed_bytes as i64 - m[2] as i64,
        };
        let mut at = self.me_arc()?;
        // Of what the bookmark had, this much was gone before the next snapshot; the deadlists behind that have
        // the rest.
        for _ in 0..1 << 24 {
            let p = at.phys();
            if p.prev_snap_txg <= mark.creation_txg {
                let [used, comp, uncomp] = mark.freed_before_next.map(|n| n as i64);
                sum += Triple { used, comp, uncomp };
                return Ok(sum);
            }
            let freed =
                at.filled_deadlist()?
                    .space_range(&self.core, Txg::NONE, mark.creation_txg)?;
            sum += freed;
            at = self.core.dataset(p.prev_snap_obj)?;
        }
        Err(Error::damaged("chain of snapshots goes round"))
    }

    /// Tells `each` what the snapshots of a head hold, oldest first, in one pass over their deadlists. A run of
    /// neighbours that are not `pinned` could be destroyed together.
    pub fn held_space(
        &self,
        pinned: &dyn Fn(&Dataset) -> Result<bool>,
        each: &mut dyn FnMut(Held) -> Result<()>,
    ) -> Result<()> {
        // Object of the next snapshot of the run, birth after which blocks of the run are its own, their sum so far.
        let mut run: Option<(u64, Txg, i64)> = None;
        for e in self.snapshot_list()? {
            let snap = self.named_snapshot(&e)?;
            let p = snap.phys();
            let with_run = if pinned(&snap)? {
                run = None;
                None
            } else {
                // A hidden snapshot between two others ends a run.
                let so_far = run.filter(|(object, ..)| *object == snap.object());
                let (_, after, sum) = so_far.unwrap_or((0, p.prev_snap_txg, 0));
                let sum = sum + snap.next()?.died_since(after)?;
                run = Some((p.next_snap_obj, after, sum));
                Some(sum.max(0) as u64)
            };
            each(Held {
                name: e.name,
                snap,
                with_run,
            })?;
        }
        Ok(())
    }

    /// Bytes of the blocks on its deadlist that were born after `txg`, the creation of a snapshot before it, or 0.
    fn died_since(&self, txg: Txg) -> Result<i64> {
        match txg {
            Txg::NONE => Ok(self.deadlist_space()?.used),
            _ => {
                let list = self.filled_deadlist()?;
                Ok(list.space_range(&self.core, txg, Txg::MAX)?.used)
            }
        }
    }

    pub(crate) fn me_arc(&self) -> Result<Arc<Dataset>> {
        self.core.dataset(self.object())
    }

    /// The next dataset of the chain of a snapshot.
    pub(crate) fn next(&self) -> Result<Arc<Dataset>> {
        match self.phys().next_snap_obj {
            0 => Err(Error::damaged(format!(
                "snapshot {} has no next",
                self.object()
            ))),
            o => self.core.dataset(o),
        }
    }
}

impl Core {
    pub(crate) fn snapshot_head(
        self: &Arc<Self>,
        tx: &Tx,
        head: &Arc<Dataset>,
        name: &str,
        creation_txg: Txg,
    ) -> Result<Arc<Dataset>> {
        self.need_syncing(tx)?;
        let h = head.phys();
        let dir = head.dir();
        let snap = self.dataset_object(
            tx,
            &DslDatasetPhys {
                dir_obj: h.dir_obj,
                guid: self.new_guid(),
                fsid_guid: self.new_fsid(),
                prev_snap_obj: h.prev_snap_obj,
                prev_snap_txg: h.prev_snap_txg,
                next_snap_obj: head.object(),
                num_children: 1,
                creation_time: self.now(),
                creation_txg,
                deadlist_obj: h.deadlist_obj,
                referenced_bytes: h.referenced_bytes,
                compressed_bytes: h.compressed_bytes,
                uncompressed_bytes: h.uncompressed_bytes,
                flags: h.flags,
                bp: h.bp,
                ..DslDatasetPhys::default()
            },
        )?;
        snap.set_snap_name(Some(name.to_string()));
        for guid in head.features() {
            snap.inherit_feature(tx, head, &guid)?;
        }
        if head.has_feature(ENCRYPTION) && self.features.is_enabled(crate::core::BOOKMARK_V2) {
            self.zapify(tx, &snap.dn)?;
            let guid = self.new_guid();
            Zap::new(&snap.dn).add_u64(tx, disk::crypt::keys::IVSET_GUID, guid)?;
        }
        if let Some(prev) = head.prev()? {
            if prev.phys().next_snap_obj == head.object() {
                prev.update(tx, |p| p.next_snap_obj = snap.object())?;
            } else if prev.phys().next_clones_obj != 0 {
                self.remove_next_clone(tx, &prev, head.object())?;
                self.add_next_clone(tx, &prev, snap.object())?;
            }
        }
        let (_, r) = head.ref_limits();
        if r > 0 {
            let again = h.unique_bytes.min(r) as i64;
            let t = Triple {
                used: again,
                ..Triple::default()
            };
            dir.diduse(tx, Used::RefRsrv, t)?;
        }
        // Bookmarks count what of their time is freed later: the lists have to tell it apart.
        let mut more = head.counting_marks(h.prev_snap_txg.next())?;
        more.push(h.prev_snap_txg);
        let old = self.take_deadlist(h.deadlist_obj)?;
        let deadlist = old.clone_keys(self, tx, Txg::MAX, &more, || snap.chain_keys())?;
        drop(old);
        self.remaps_to_snapshot(tx, head, &snap)?;
        let accurate = if self.version() >= 9 {
            ds_flags::UNIQUE_ACCURATE
        } else {
            0
        };
        self.scan_snapshotted(tx, head, &snap)?;
        head.update(tx, |p| {
            p.deadlist_obj = deadlist.object();
            p.prev_snap_obj = snap.object();
            p.prev_snap_txg = creation_txg;
            p.unique_bytes = 0;
            p.flags |= accurate;
        })?;
        self.keep_deadlist(deadlist);
        Zap::new(&self.hold(h.snapnames_zapobj)?).add_u64(tx, name, snap.object())?;
        if !is_hidden(name) {
            limits::adjust(tx, &dir, limits::SNAP_COUNT, 1)?;
            self.snapshots_changed(tx, head)?;
        }
        Ok(snap)
    }

    /// Notes when snapshots of a file system last changed.
    pub(crate) fn snapshots_changed(&self, tx: &Tx, head: &Dataset) -> Result<()> {
        if self.features.is_enabled(crate::core::EXTENSIBLE) {
            let dir = head.dir();
            let (s, ns) = self.dmu().env.clock.now();
            self.zapify(tx, &dir.dn)?;
            let v = Value::u64s(&[s.max(0) as u64, ns as u64]);
            Zap::new(&dir.dn).update(tx, "com.ixsystems:snapshots_changed", &v)?;
        }
        Ok(())
    }

    pub(crate) fn destroy_snap(self: &Arc<Self>, tx: &Tx, snap: &Arc<Dataset>) -> Result<()> {
        self.need_syncing(tx)?;
        let s = snap.phys();
        let dir = snap.dir();
        let next = snap.next()?;
        next.flush(tx)?;
        self.scan_snapshot_destroyed(tx, snap.object(), next.object())?;
        let name = snap.snap_name()?.unwrap_or_default();
        let prev = snap.prev()?;
        let branch = prev
            .as_ref()
            .is_some_and(|p| p.phys().next_snap_obj != snap.object());
        snap.deactivate_features(tx, true)?;
        let head = self.dataset(dir.phys().head_dataset_obj)?;
        let marked = head.bookmarks_lose(tx, snap, &next)?;
        if let Some(p) = &prev {
            if branch {
                self.remove_next_clone(tx, p, snap.object())?;
                if p.phys().next_clones_obj != 0 {
                    self.add_next_clone(tx, p, next.object())?;
                }
            } else {
                p.update(tx, |p| p.next_snap_obj = next.object())?;
            }
        }
        next.update(tx, |p| {
            p.prev_snap_obj = s.prev_snap_obj;
            p.prev_snap_txg = s.prev_snap_txg;
        })?;
        let mut nd = self.take_deadlist(next.phys().deadlist_obj)?;
        // Blocks the predecessor shared with this snapshot only.
        let mut to_prev = 0;
        if let (Some(p), false) = (&prev, branch) {
            let after = p.phys().prev_snap_txg;
            to_prev = nd.space_range(self, after, s.prev_snap_txg)?.used;
        }
        let freed;
        if nd.is_old() {
            let (mut keep, mut gone) = (Vec::new(), Vec::new());
            nd.for_each(&self.mos, &mut |bp| {
                match bp.birth() <= s.prev_snap_txg {
                    true => keep.push((*bp, self.triple(bp))),
                    false => gone.push(*bp),
                }
                Ok(())
            })?;
            let mut sd = self.take_deadlist(s.deadlist_obj)?;
            sd.insert(self, tx, &keep)?;
            let mut sum = Triple::default();
            for bp in &gone {
                sum += self.triple(bp);
                self.dmu().zio.free(bp, tx.txg())?;
            }
            freed = sum;
            let o = sd.object();
            nd.free(self, tx)?;
            next.update(tx, |p| p.deadlist_obj = o)?;
        } else {
            let mut to = self.free_bpobj()?;
            freed = nd.move_to(self, tx, s.prev_snap_txg, &mut to)?;
            self.free_dir()?.diduse(tx, Used::Head, freed)?;
            nd.merge(self, tx, self.take_deadlist(s.deadlist_obj)?)?;
            self.keep_deadlist(nd);
        }
        self.destroy_remaps(tx, snap, &next, s.prev_snap_txg)?;
        dir.diduse(tx, Used::Snap, -freed)?;
        if let Some(p) = &prev {
            p.update(tx, |p| bump(&mut p.unique_bytes, to_prev))?;
        }
        if !marked {
            self.remove_clone_keys(tx, &dir, s.creation_txg, 0)?;
        }
        if next.is_snapshot() {
            let nn = next.next()?;
            let d = nn
                .filled_deadlist()?
                .space_range(self, s.prev_snap_txg, s.creation_txg)?;
            next.update(tx, |p| bump(&mut p.unique_bytes, d.used))?;
            if !marked {
                head.with_deadlist(|list| list.remove_key(self, tx, s.creation_txg))?;
                if let Some(mut d) = head.remap_deadlist()? {
                    d.remove_key(self, tx, s.creation_txg)?;
                }
            }
        } else {
            let old = next.phys().unique_bytes;
            let new = next.recomputed_unique()?;
            next.update(tx, |p| p.unique_bytes = new)?;
            let (_, r) = next.ref_limits();
            if old < r {
                let less = (new.saturating_sub(old)).min(r - old) as i64;
                let t = Triple {
                    used: -less,
                    ..Triple::default()
                };
                dir.diduse(tx, Used::RefRsrv, t)?;
            }
        }
        Zap::new(&self.hold(head.phys().snapnames_zapobj)?).remove(tx, &name)?;
        if !is_hidden(&name) {
            limits::adjust(tx, &dir, limits::SNAP_COUNT, -1)?;
            self.snapshots_changed(tx, &head)?;
        }
        for o in [s.next_clones_obj, s.props_obj, s.userrefs_obj] {
            self.free_object(tx, o)?;
        }
        self.forget_dataset(snap.object());
        self.free_zapified(tx, &snap.dn)
    }

    /// Takes the key of a destroyed snapshot out of the deadlists of heads that were cloned after it.
    pub(crate) fn remove_clone_keys(
        self: &Arc<Self>,
        tx: &Tx,
        dir: &crate::Dir,
        key: Txg,
        depth: usize,
    ) -> Result<()> {
        if depth > 1 << 10 {
            return Err(Error::damaged("clones of each other"));
        }
        for head in self.clones_of(dir)? {
            let d = head.dir();
            if d.origin_txg()? > key {
                head.with_deadlist(|list| list.remove_key(self, tx, key))?;
                if let Some(mut d) = head.remap_deadlist()? {
                    d.remove_key(self, tx, key)?;
                }
                self.remove_clone_keys(tx, &d, key, depth + 1)?;
            }
        }
        Ok(())
    }
}

impl Dsl {
    /// Makes `head` what its newest snapshot is. Nobody may use its object set; a new one has to be
    /// opened afterwards and its intent-log header cleared in the same txg.
    pub fn rollback(&self, tx: &Tx, head: &Arc<Dataset>) -> Result<()> {
        let core = &self.core;
        core.need_syncing(tx)?;
        let h = head.phys();
        if h.is_snapshot() {
            bail!(Invalid, "{} is a snapshot", head.full_name());
        }
        let snap = match head.prev()? {
            Some(s) if s.phys().next_snap_obj == head.object() => s,
            _ => bail!(NotFound, "{} has no snapshot", head.full_name()),
        };
        let s = snap.phys();
        if s.creation_txg >= tx.txg() {
            bail_about!(Again, head.full_name(), "the snapshot was made in this txg");
        }
        if let Some((name, _)) = head.bookmarks_after(s.creation_txg)?.first() {
            bail_about!(
                Exists,
                head.full_name(),
                "bookmark '{name}' is younger than the snapshot"
            );
        }
        self.check_rollback(head, &snap)?;
        core.note("clone swap", head, format!("parent={}", head.dir().name()));
        core.must(self.roll_back(tx, head, &snap))
    }

    /// Whether a head has room for what a snapshot of it refers to; asked before anything younger is
    /// destroyed.
    ///
    /// Errors: `Kind::Quota` by its refquota; `Kind::NoSpace` if its reservation cannot be held
    /// again.
    pub fn check_rollback(&self, head: &Dataset, snap: &Dataset) -> Result<()> {
        let (refquota, reserved) = head.ref_limits();
        if refquota != 0 && snap.phys().referenced_bytes > refquota {
            let e = Error::about(
                Kind::Quota,
                head.full_name(),
                "the snapshot is larger than refquota",
            );
            return Err(e.because(Cause::Refquota));
        }
        let again = head.phys().unique_bytes.min(reserved);
        if again > head.dir().available().bytes {
            bail_about!(NoSpace, head.full_name(), "no room for its refreservation");
        }
        Ok(())
    }

    pub(crate) fn roll_back(
        &self,
        tx: &Tx,
        head: &Arc<Dataset>,
        snap: &Arc<Dataset>,
    ) -> Result<()> {
        let core = &self.core;
        head.flush(tx)?;
        head.make_unique_accurate(tx)?;
        core.scan_head_gone(tx, head.object())?;
        head.dir().drop_livelist(tx)?;
        let (h, s) = (head.phys(), snap.phys());
        // Blocks written since go, blocks that died since live again: as if a clone of the snapshot
        // had changed places with the head and the head had been destroyed as that clone.
        let dir = head.dir();
        let mut given = Triple::default();
        if core.frees_later()? {
            // All of it, as the head of that clone: the group does not have to walk through it.
            let dead = head.deadlist_space()?;
            given = Triple {
                used: h.unique_bytes as i64,
                comp: h.compressed_bytes as i64 + dead.comp - s.compressed_bytes as i64,
                uncomp: h.uncompressed_bytes as i64 + dead.uncomp - s.uncompressed_bytes as i64,
            };
            if h.bp.birth() > h.prev_snap_txg {
                Bptree::add(core, tx, &h.bp, h.prev_snap_txg, given)?;
                core.free_dir()?.diduse(tx, Used::Head, given)?;
            }
        } else {
            crate::free::kill_own(head, tx)?;
        }
        // All that is left on the deadlist belongs to the head again.
        let mut old = core.take_deadlist(h.deadlist_obj)?;
        let keys = old.clone_keys(core, tx, Txg::MAX, &[], || snap.chain_keys())?;
        let shared = old.space_range(core, s.prev_snap_txg, Txg::MAX)?.used;
        let after_origin = space_after(core, &old, dir.origin_txg()?)?;
        std::mem::replace(&mut old, keys).free(core, tx)?;
        core.drop_remaps(tx, head)?;
        dir.transfer(tx, after_origin, Used::Snap, Used::Head)?;
        if !mutated(Mutation::SwapMiscounted) {
            snap.update(tx, |p| bump(&mut p.unique_bytes, -shared))?;
        }
        let before = head.phys();
        head.deactivate_features(tx, false)?;
        head.update(tx, |p| {
            p.deadlist_obj = old.object();
            p.bp = s.bp;
            p.referenced_bytes = s.referenced_bytes;
            p.compressed_bytes = s.compressed_bytes;
            p.uncompressed_bytes = s.uncompressed_bytes;
            p.unique_bytes = 0;
        })?;
        core.keep_deadlist(old);
        for guid in snap.features() {
            head.inherit_feature(tx, snap, &guid)?;
        }
        head.bookmarks_rolled_back(tx)?;
        let a = head.with_refreservation(before.unique_bytes, -(before.unique_bytes as i64));
        let d = -(before.unique_bytes as i64);
        if a != 0 || d != 0 || given != Triple::default() {
            let t = Triple {
                used: a,
                comp: -given.comp,
                uncomp: -given.uncomp,
            };
            dir.diduse_split(tx, &[(Used::Head, d), (Used::RefRsrv, a - d)], t)?;
        }
        head.detach_objset();
        Ok(())
    }
}

/// Space of the blocks on a deadlist born after `txg`, which is not necessarily one of its keys.
pub(crate) fn space_after(core: &Core, d: &crate::Deadlist, txg: Txg) -> Result<i64> {
    if d.is_old() || txg.is_none() || d.has_key(txg) {
        return Ok(d.space_range(core, txg, Txg::MAX)?.used);
    }
    let mut sum = 0;
    d.for_each(&core.mos, &mut |bp| {
        if bp.birth() > txg {
            sum += core.triple(bp).used;
        }
        Ok(())
    })?;
    Ok(sum)
}
