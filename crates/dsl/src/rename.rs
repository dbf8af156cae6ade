//! Renaming (data format §10.8).

use crate::core::{bump, check_component, Triple, FULL_NAME_MAX};
use crate::{limits, Dataset, Dir, Dsl};
use base::{bail, bail_about, Result};
use disk::dsl::{Used, DIR_USED_BREAKDOWN};
use disk::names::{self, MAX_DEPTH};
use dmu::Tx;
use std::sync::Arc;
use zap::Zap;

impl Dsl {
    /// Gives a directory (with all below it) another name and, perhaps, parent.
    pub fn rename(&self, tx: &Tx, dir: &Arc<Dir>, to: &Arc<Dir>, name: &str) -> Result<()> {
        self.core.need_syncing(tx)?;
        self.check_rename(dir, to, name)?;
        let Some(from) = dir.parent() else {
            bail!(Invalid, "the root dataset cannot be renamed");
        };
        if let Ok(head) = dir.head() {
            let text = format!("-> {}/{name}", to.full_name());
            self.core.note("rename", &head, text);
        }
        self.core.must(move_dir(tx, dir, &from, to, name))
    }

    /// Whether [`rename`](Self::rename) would work.
    pub fn check_rename(&self, dir: &Arc<Dir>, to: &Arc<Dir>, name: &str) -> Result<()> {
        check_component(name)?;
        let old = dir.full_name();
        let mut at = Some(to.clone());
        while let Some(d) = at {
            if d.object() == dir.object() {
                bail!(Invalid, "{old}: a dataset cannot be moved below itself");
            }
            at = d.parent();
        }
        let new = format!("{}/{name}", to.full_name());
        if to.child(name)?.is_some() {
            bail!(Exists, "{new}: dataset already exists");
        }
        let elsewhere = dir.parent().is_none_or(|up| up.object() != to.object());
        if let Some(k) = dir.key_object()?.filter(|_| elsewhere) {
            // What inherits a key must stay below its encryption root. A clone, which has its origin's key, stays where it is.
            let other = to.key_object()?.is_none_or(|t| t.root != k.root);
            if k.root != dir.object() && other {
                bail_about!(
                    CrossDevice,
                    &old,
                    "cannot move encrypted child outside of its encryption root"
                );
            }
        }
        let grow = new.len() as i64 - old.len() as i64;
        let mut longest = new.len() as i64;
        let mut deepest = 0;
        self.walk(dir, &mut |d| {
            let mut n = d.full_name().len();
            if let Ok(h) = d.head() {
                let snaps = h.snapshot_names()?;
                let longest = snaps.iter().map(|(s, _)| s.len() + 1).max();
                n += longest.unwrap_or(0);
            }
            longest = longest.max(n as i64 + grow);
            deepest = deepest.max(names::depth(&d.full_name()));
            Ok(())
        })?;
        if deepest + names::depth(&new) > MAX_DEPTH + names::depth(&old) {
            bail!(
                Invalid,
                "{new}: it, or a dataset below it, would be nested deeper than {MAX_DEPTH} levels"
            );
        }
        if longest > FULL_NAME_MAX as i64 {
            bail!(NameTooLong, "{new}: a name below it would be too long");
        }
        let from = dir.parent().map_or(0, |p| p.object());
        if from != to.object() {
            let p = dir.phys();
            let a = available_without(to, dir);
            if p.used_bytes.max(p.reserved) > a {
                bail!(NoSpace, "{new}: out of space or over a quota");
            }
        }
        Ok(())
    }

    /// Renames a snapshot of `head`.
    pub fn rename_snapshot(
        &self,
        tx: &Tx,
        head: &Arc<Dataset>,
        old: &str,
        new: &str,
    ) -> Result<()> {
        self.core.need_syncing(tx)?;
        let Some(snap) = head.snapshot_named(old)? else {
            return Err(crate::core::not_found(format!(
                "{}@{old}",
                head.full_name()
            )));
        };
        check_component(new)?;
        let full = format!("{}@{new}", head.full_name());
        if full.len() > FULL_NAME_MAX {
            bail_about!(NameTooLong, &full, "snapshot name is too long");
        }
        if head.snapshot_named(new)?.is_some() {
            bail_about!(Exists, &full, "snapshot already exists");
        }
        self.core.note("rename", &snap, format!("-> @{new}"));
        let stored = snap.snap_name()?.unwrap_or_else(|| old.to_string());
        let map = self.core.hold(head.phys().snapnames_zapobj)?;
        self.core.must(Zap::new(&map).remove(tx, &stored))?;
        self.core
            .must(Zap::new(&map).add_u64(tx, new, snap.object()))?;
        snap.set_snap_name(Some(new.to_string()));
        Ok(())
    }
}

fn is_below(dir: &Arc<Dir>, ancestor: u64) -> bool {
    let mut at = Some(dir.clone());
    while let Some(d) = at {
        if d.object() == ancestor {
            return true;
        }
        at = d.parent();
    }
    false
}

/// What is available in `to` if `dir` were not where it is now.
fn available_without(to: &Arc<Dir>, dir: &Arc<Dir>) -> u64 {
    let p = dir.phys();
    let held = p.used_bytes.max(p.reserved);
    // Ancestors that both places share already count it.
    let mut above = dir.parent();
    let mut shared = 0;
    while let Some(d) = above {
        if is_below(to, d.object()) {
            shared = d.object();
            break;
        }
        above = d.parent();
    }
    let mut room = u64::MAX;
    let mut at = Some(to.clone());
    while let Some(d) = at {
        if d.object() == shared {
            break;
        }
        let q = d.phys();
        if q.quota != 0 {
            room = room.min(q.quota.saturating_sub(q.used_bytes));
        }
        at = d.parent();
    }
    let common = to.available().bytes.saturating_add(held);
    room.min(common)
}

impl Dir {
    /// Sets the reservation in the directory and charges the ancestors; no checks.
    pub(crate) fn change_reservation(&self, tx: &Tx, bytes: u64) -> Result<()> {
        let d = self.update(tx, |p| {
            let old = p.used_bytes.max(p.reserved);
            p.reserved = bytes;
            p.used_bytes.max(p.reserved) as i64 - old as i64
        })?;
        match self.parent() {
            Some(parent) => {
                let t = Triple {
                    used: d,
                    ..Triple::default()
                };
                parent.diduse(tx, Used::ChildRsrv, t)
            }
            None => Ok(()),
        }
    }

    /// Checks that the breakdown adds up; for tests and debugging.
    pub fn breakdown_is_right(&self) -> bool {
        let p = self.phys();
        let mut sum = 0u64;
        for x in p.used_breakdown {
            bump(&mut sum, x as i64);
        }
        p.flags & DIR_USED_BREAKDOWN == 0 || sum == p.used_bytes
    }
}

fn move_dir(tx: &Tx, dir: &Arc<Dir>, from: &Arc<Dir>, to: &Arc<Dir>, name: &str) -> Result<()> {
    let old = dir.name();
    if from.object() != to.object() {
        let p = dir.phys();
        let held = p.reserved.saturating_sub(p.used_bytes) as i64;
        let used = p.used_bytes as i64;
        let t = Triple {
            used: used + held,
            comp: p.compressed_bytes as i64,
            uncomp: p.uncompressed_bytes as i64,
        };
        from.diduse_split(tx, &[(Used::Child, -used), (Used::ChildRsrv, -held)], -t)?;
        to.diduse_split(tx, &[(Used::Child, used), (Used::ChildRsrv, held)], t)?;
        if limits::count(to, limits::FS_COUNT)?.is_some() {
            limits::activate(tx, dir)?;
        }
        let fs = limits::count(dir, limits::FS_COUNT)?.unwrap_or(0) as i64 + 1;
        let snaps = limits::count(dir, limits::SNAP_COUNT)?.unwrap_or(0) as i64;
        for (key, n) in [(limits::FS_COUNT, fs), (limits::SNAP_COUNT, snaps)] {
            limits::adjust(tx, from, key, -n)?;
            limits::adjust(tx, to, key, n)?;
        }
        dir.update(tx, |p| p.parent_obj = to.object())?;
    }
    Zap::new(&from.children_zap()?).remove(tx, &old)?;
    Zap::new(&to.children_zap()?).add_u64(tx, name, dir.object())?;
    dir.set_place(name, Some(to.clone()));
    Ok(())
}
