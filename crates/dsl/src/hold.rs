//! User holds of snapshots (data format §13): while a snapshot is held it is not destroyed.

use crate::core::Core;
use crate::{Dataset, Dsl};
use base::mutation::{mutated, Mutation};
use base::{bail, bail_about, Result};
use disk::dsl::ds_flags;
use disk::ObjType;
use dmu::Tx;
use std::sync::Arc;
use zap::Zap;

/// Longest tag, bytes.
pub const TAG_MAX: usize = 255;
/// Key of the object directory: holds that end when the pool is imported again.
const TEMPORARY: &str = "tmp_userrefs";
/// Pool version from which on there are holds.
const VERSION: u64 = 18;

fn temporary_name(snap: u64, tag: &str) -> String {
    format!("{snap:x}-{tag}")
}

impl Dsl {
    /// Whether a snapshot can be held under a tag.
    ///
    /// Errors: unsupported by the pool's version; `Kind::NameTooLong`; `Kind::Exists` if it has
    /// that tag.
    pub fn check_hold(&self, snap: &Dataset, tag: &str, temporary: bool) -> Result<()> {
        let name = snap.full_name();
        if self.core.version() < VERSION {
            bail!(Unsupported, "pool must be upgraded: holds need version 18");
        }
        if !snap.is_snapshot() {
            bail!(Invalid, "{name} is not a snapshot");
        }
        let longest = match temporary {
            // Its name in the list of temporary ones has an object number in front.
            true => TAG_MAX - 17,
            false => TAG_MAX,
        };
        if tag.is_empty() || tag.contains('\0') {
            bail_about!(Invalid, &name, "a tag needs at least one character");
        }
        if tag.len() > longest {
            bail_about!(NameTooLong, &name, "tag too long");
        }
        if snap.hold_time(tag)?.is_some() {
            bail_about!(Exists, &name, "tag already exists on this dataset");
        }
        Ok(())
    }

    /// Holds a snapshot. A temporary hold ends when the pool is imported the next time.
    ///
    /// Errors: those of [`check_hold`](Self::check_hold).
    pub fn hold(&self, tx: &Tx, snap: &Arc<Dataset>, tag: &str, temporary: bool) -> Result<()> {
        self.core.need_syncing(tx)?;
        self.check_hold(snap, tag, temporary)?;
        if mutated(Mutation::HoldForgotten) {
            return Ok(());
        }
        self.core.must(self.core.add_hold(tx, snap, tag, temporary))
    }

    /// Ends a hold. The last one of a snapshot whose destruction was deferred destroys it, unless
    /// it has clones.
    ///
    /// Errors: `Kind::NotFound` if it has no such tag; `Kind::Busy` if it would be destroyed and somebody keeps it.
    pub fn release(&self, tx: &Tx, snap: &Arc<Dataset>, tag: &str) -> Result<()> {
        self.core.need_syncing(tx)?;
        if snap.hold_time(tag)?.is_none() {
            bail_about!(NotFound, snap.full_name(), "no such tag on this dataset");
        }
        let deferred = snap.phys().flags & ds_flags::DEFER_DESTROY != 0;
        if deferred && snap.is_kept() && snap.holds()? == 1 {
            bail_about!(Busy, snap.full_name(), "dataset is busy");
        }
        self.core.must(self.core.end_hold(tx, snap, tag))
    }

    /// Whether holds are left that were to end with the import before this one.
    pub fn has_temporary_holds(&self) -> Result<bool> {
        match self.core.directory_get(TEMPORARY)? {
            None => Ok(false),
            Some(o) => Ok(Zap::new(&self.core.hold(o)?).count()? > 0),
        }
    }

    /// Ends the temporary holds that are left of the time before this import.
    pub fn release_temporary(&self, tx: &Tx) -> Result<()> {
        let core = &self.core;
        core.need_syncing(tx)?;
        let Some(o) = core.directory_get(TEMPORARY)? else {
            return Ok(());
        };
        let list = core.hold(o)?;
        let names: Result<Vec<String>> = Zap::new(&list).iter().map(|e| Ok(e?.text())).collect();
        for name in names? {
            let parts = name.split_once('-');
            let hold = parts.and_then(|(o, tag)| {
                let object = u64::from_str_radix(o, 16).ok()?;
                let snap = core.dataset(object).ok().filter(|s| s.is_snapshot())?;
                snap.hold_time(tag).ok()??;
                Some((snap, tag))
            });
            match hold {
                Some((snap, tag)) => core.must(core.end_hold(tx, &snap, tag))?,
                // Of a snapshot or hold that is gone, or no name of one.
                None => core.must(Zap::new(&list).remove(tx, &name))?,
            }
        }
        Ok(())
    }
}

impl Dataset {
    /// When a hold was made, seconds since 1970; `None` if there is none of that tag.
    pub fn hold_time(&self, tag: &str) -> Result<Option<u64>> {
        match self.phys().userrefs_obj {
            0 => Ok(None),
            o => Zap::new(&self.core.hold(o)?).get(tag),
        }
    }
}

impl Core {
    fn add_hold(
        self: &Arc<Self>,
        tx: &Tx,
        snap: &Arc<Dataset>,
        tag: &str,
        temporary: bool,
    ) -> Result<()> {
        let now = self.now();
        let mut object = snap.phys().userrefs_obj;
        if object == 0 {
            object = self.new_zap(tx, ObjType::USERREFS, 0)?.object();
            snap.update(tx, |p| p.userrefs_obj = object)?;
        }
        Zap::new(&self.hold(object)?).add_u64(tx, tag, now)?;
        if temporary {
            let top = self.directory()?;
            let list = match Zap::new(&top).get(TEMPORARY)? {
                Some(o) => self.hold(o)?,
                None => {
                    let dn = self.new_zap(tx, ObjType::USERREFS, 0)?;
                    Zap::new(&top).add_u64(tx, TEMPORARY, dn.object())?;
                    dn
                }
            };
            Zap::new(&list).add_u64(tx, &temporary_name(snap.object(), tag), now)?;
        }
        let refs = snap.holds()?;
        let text = format!("tag={tag} temp={} refs={refs}", u64::from(temporary));
        self.note("hold", snap, text);
        Ok(())
    }

    fn end_hold(self: &Arc<Self>, tx: &Tx, snap: &Arc<Dataset>, tag: &str) -> Result<()> {
        let holds = self.hold(snap.phys().userrefs_obj)?;
        Zap::new(&holds).remove(tx, tag)?;
        if let Some(o) = self.directory_get(TEMPORARY)? {
            let name = temporary_name(snap.object(), tag);
            Zap::new(&self.hold(o)?).remove_if(tx, &name)?;
        }
        let refs = snap.holds()?;
        self.note("release", snap, format!("tag={tag} refs={refs}"));
        let p = snap.phys();
        if refs == 0 && p.flags & ds_flags::DEFER_DESTROY != 0 && p.num_children == 1 {
            self.destroy_snap(tx, snap)?;
        }
        Ok(())
    }
}
