//! Destroying heads (data format §10.5).

use crate::bptree::Bptree;
use crate::core::{is_hidden, Core, Triple, ASYNC_DESTROY, FS_LIMITS};
use crate::history::NOTHING;
use crate::{limits, Dataset, Dir, Dsl};
use base::{bail, bail_about, Result};
use disk::dsl::{ds_flags, Used};
use dmu::Tx;
use std::sync::Arc;
use zap::Zap;

impl Dsl {
    /// Whether a head can be destroyed: no children, no snapshots, not the root.
    pub fn check_destroy(&self, ds: &Dataset) -> Result<()> {
        let dir = ds.dir();
        if ds.is_snapshot() {
            bail!(Invalid, "{} is a snapshot", ds.full_name());
        }
        if dir.parent().is_none() {
            bail_about!(
                Invalid,
                dir.full_name(),
                "the root dataset cannot be destroyed"
            );
        }
        if !dir.children()?.is_empty() {
            bail_about!(Exists, dir.full_name(), "filesystem has children");
        }
        if ds.snapshot_count()? > 0 {
            bail_about!(Exists, dir.full_name(), "filesystem has snapshots");
        }
        // A deferred origin would go with it.
        match ds.prev()? {
            Some(o) if o.is_kept() && o.phys().flags & ds_flags::DEFER_DESTROY != 0 => {
                bail_about!(Busy, o.full_name(), "dataset is busy");
            }
            _ => Ok(()),
        }
    }

    /// Destroys a file system or volume. Its object set must be closed, its blocks of this txg
    /// written, and its intent log freed. Its space is freed in the background if feature
    /// `async_destroy` is enabled, else now.
    pub fn destroy_head(&self, tx: &Tx, ds: &Arc<Dataset>) -> Result<()> {
        self.core.need_syncing(tx)?;
        self.check_destroy(ds)?;
        self.core.must(self.destroy_checked(tx, ds))
    }

    pub(crate) fn destroy_checked(&self, tx: &Tx, ds: &Arc<Dataset>) -> Result<()> {
        let core = &self.core;
        ds.flush(tx)?;
        let dir = ds.dir();
        let p = ds.phys();
        let how = match dir.livelist()? {
            Some(_) => format!("(livelist, mintxg={})", p.prev_snap_txg),
            None if core.features.is_enabled(ASYNC_DESTROY) => {
                format!("(bptree, mintxg={})", p.prev_snap_txg)
            }
            None => NOTHING.to_string(),
        };
        tracing::debug!(dataset = %ds.full_name(), txg = tx.txg().number(), "dataset is destroyed {how}");
        core.note("destroy", ds, how);
        let (_, r) = ds.ref_limits();
        let unused = r.saturating_sub(p.unique_bytes) as i64;
        let t = Triple {
            used: -unused,
            ..Triple::default()
        };
        dir.diduse(tx, Used::RefRsrv, t)?;
        ds.deactivate_features(tx, true)?;
        let origin = ds.prev()?;
        if let Some(o) = &origin {
            core.remove_next_clone(tx, o, ds.object())?;
            o.update(tx, |p| p.num_children = p.num_children.saturating_sub(1))?;
            if core.version() >= 26 {
                core.remove_clone(tx, &o.dir(), ds.object())?;
            }
        }
        core.scan_head_gone(tx, ds.object())?;
        // What is on the deadlist still belongs to the origin.
        core.take_deadlist(p.deadlist_obj)?.free(core, tx)?;
        core.drop_remaps(tx, ds)?;
        self.free_blocks(tx, ds, &dir)?;

        core.forget_bookmarks(tx, ds)?;
        core.free_object(tx, p.snapnames_zapobj)?;
        core.forget_dataset(ds.object());
        core.free_zapified(tx, &ds.dn)?;
        core.destroy_dir(tx, &dir)?;

        if let Some(o) = origin {
            let op = o.phys();
            if op.flags & ds_flags::DEFER_DESTROY != 0 && op.num_children == 1 && o.holds()? == 0 {
                core.destroy_snap(tx, &o)?;
            }
        }
        Ok(())
    }

    fn free_blocks(&self, tx: &Tx, ds: &Arc<Dataset>, dir: &Arc<Dir>) -> Result<()> {
        let core = &self.core;
        let p = ds.phys();
        if p.bp.is_hole() {
            return dir.drop_livelist(tx);
        }
        if self.leave_livelist(tx, dir)? {
            return Ok(());
        }
        if core.frees_later()? {
            let d = dir.phys();
            let t = Triple {
                used: d.used_bytes as i64,
                comp: d.compressed_bytes as i64,
                uncomp: d.uncompressed_bytes as i64,
            };
            if p.bp.birth() <= p.prev_snap_txg {
                // A clone nothing was ever written to.
                return Ok(());
            }
            Bptree::add(core, tx, &p.bp, p.prev_snap_txg, t)?;
            core.free_dir()?.diduse(tx, Used::Head, t)?;
            return dir.diduse(tx, Used::Head, -t);
        }
        crate::free::kill_own(ds, tx)
    }
}

impl Core {
    /// Whether the blocks of a dataset are freed in the background.
    pub(crate) fn frees_later(self: &Arc<Self>) -> Result<bool> {
        Ok(self.features.is_enabled(ASYNC_DESTROY) && self.special_dir("$FREE")?.is_some())
    }

    fn destroy_dir(self: &Arc<Self>, tx: &Tx, dir: &Arc<Dir>) -> Result<()> {
        let Some(parent) = dir.parent() else {
            bail!(Invalid, "the root directory cannot be destroyed");
        };
        let p = dir.phys();
        if p.used_bytes != 0 || p.compressed_bytes != 0 || p.uncompressed_bytes != 0 {
            // Only after damage; the ancestors must not count it for ever.
            let t = Triple {
                used: -(p.used_bytes as i64),
                comp: -(p.compressed_bytes as i64),
                uncomp: -(p.uncompressed_bytes as i64),
            };
            dir.diduse(tx, Used::Head, t)?;
        }
        dir.change_reservation(tx, 0)?;
        if self.features.is_active(FS_LIMITS) && !is_hidden(&dir.name()) {
            limits::adjust(tx, &parent, limits::FS_COUNT, -1)?;
        }
        if p.deleg_zapobj != 0 {
            let dn = self.hold(p.deleg_zapobj)?;
            for e in Zap::new(&dn).iter() {
                self.free_object(tx, e?.value.to_u64()?)?;
            }
        }
        for o in [p.child_dir_zapobj, p.props_zapobj, p.clones, p.deleg_zapobj] {
            self.free_object(tx, o)?;
        }
        self.drop_key(tx, dir)?;
        Zap::new(&parent.children_zap()?).remove(tx, &dir.name())?;
        self.forget_dir(dir.object());
        self.free_zapified(tx, &dir.dn)
    }
}
