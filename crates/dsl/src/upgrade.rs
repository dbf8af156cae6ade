//! Raising the version of a pool (data format §7.4, pool format §19).

use crate::core::Core;
use crate::{Dir, Dsl};
use base::{bail, Error, Result};
use dmu::Tx;
use std::sync::atomic::Ordering;
use std::sync::Arc;
use zap::Zap;

impl Dsl {
    /// Makes what the datasets of a pool of `version` have and those of its present version have not.
    /// The version in the uberblock and the configuration is the caller's, and so is
    /// [`crate::FeatureStore::establish`].
    pub fn upgrade(&self, tx: &Tx, version: u64) -> Result<()> {
        let core = &self.core;
        core.need_syncing(tx)?;
        let old = core.version();
        if version < old {
            bail!(
                Invalid,
                "a pool of version {old} cannot become version {version}"
            );
        }
        core.version.store(version, Ordering::Relaxed);
        core.must(self.upgrade_from(tx, old, version))
    }

    fn upgrade_from(&self, tx: &Tx, old: u64, version: u64) -> Result<()> {
        let core = &self.core;
        let crossed = |v| old < v && version >= v;
        if crossed(11) {
            self.create_origin(tx)?;
            for d in self.all_dirs()? {
                self.attach_to_origin(tx, &d)?;
            }
        }
        if crossed(26) {
            self.create_free(tx)?;
            for d in self.all_dirs()? {
                let p = d.phys();
                if p.origin_obj != 0 && p.head_dataset_obj != 0 {
                    let from = core.dataset(p.origin_obj)?.dir();
                    core.add_clone(tx, &from, p.head_dataset_obj)?;
                }
            }
        }
        Ok(())
    }

    /// Every directory except those beginning with `$`.
    fn all_dirs(&self) -> Result<Vec<Arc<Dir>>> {
        let mut out = Vec::new();
        let mut stack = vec![self.root()?];
        while let Some(d) = stack.pop() {
            for e in Zap::new(&d.children_zap()?).iter() {
                let e = e?;
                let name = e.text();
                if !name.starts_with('$') {
                    stack.push(self.core.dir_named(e.value.to_u64()?, &name, &d)?);
                }
            }
            out.push(d);
        }
        Ok(out)
    }

    /// Links the oldest dataset of a chain to what it begins with.
    fn attach_to_origin(&self, tx: &Tx, dir: &Arc<Dir>) -> Result<()> {
        let core: &Arc<Core> = &self.core;
        let origin = core.dataset(core.origin_snap()?)?;
        let mut ds = dir.head()?;
        for _ in 0..1 << 24 {
            match ds.prev()? {
                None => {
                    let txg = origin.phys().creation_txg;
                    ds.update(tx, |p| {
                        p.prev_snap_obj = origin.object();
                        p.prev_snap_txg = txg;
                    })?;
                    dir.update(tx, |p| p.origin_obj = origin.object())?;
                    origin.update(tx, |p| p.num_children += 1)?;
                    return core.add_next_clone(tx, &origin, ds.object());
                }
                Some(prev) if prev.phys().next_snap_obj != ds.object() => {
                    return core.add_next_clone(tx, &prev, ds.object());
                }
                Some(prev) => ds = prev,
            }
        }
        Err(Error::damaged("chain of snapshots goes round"))
    }
}
