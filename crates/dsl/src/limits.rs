//! Limits on the number of file systems and snapshots (data format §16).

use crate::core::{bump, is_zapified, FS_LIMITS};
use crate::{props, Dir};
use base::{bail, Result};
use dmu::Tx;
use std::sync::Arc;
use zap::Zap;

pub(crate) const FS_COUNT: &str = "com.joyent:filesystem_count";
pub(crate) const SNAP_COUNT: &str = "com.joyent:snapshot_count";

/// File systems below a directory, as far as it is kept.
pub(crate) fn count(dir: &Dir, key: &str) -> Result<Option<u64>> {
    dir.extra(key)
}

/// Whether `delta` more fit below `dir` and every directory above it.
pub(crate) fn check(dir: &Arc<Dir>, key: &str, delta: u64) -> Result<()> {
    if !dir.core.features.is_active(FS_LIMITS) {
        return Ok(());
    }
    let mut at = Some(dir.clone());
    while let Some(d) = at {
        check_one(&d, key, delta)?;
        at = d.parent();
    }
    Ok(())
}

/// Whether `delta` more fit by the limit of this directory.
pub(crate) fn check_one(dir: &Dir, key: &str, delta: u64) -> Result<()> {
    if !dir.core.features.is_active(FS_LIMITS) {
        return Ok(());
    }
    let prop = match key {
        FS_COUNT => "filesystem_limit",
        _ => "snapshot_limit",
    };
    if let (Some(n), Some(limit)) = (count(dir, key)?, props::own_int(dir, prop)) {
        if n.saturating_add(delta) > limit {
            bail!(Quota, "{}: {prop} of {limit} reached", dir.full_name());
        }
    }
    Ok(())
}

/// Changes the counts of `dir` and every directory above it that keeps one.
pub(crate) fn adjust(tx: &Tx, dir: &Arc<Dir>, key: &str, delta: i64) -> Result<()> {
    if delta == 0 || !dir.core.features.is_active(FS_LIMITS) {
        return Ok(());
    }
    let mut at = Some(dir.clone());
    while let Some(d) = at {
        if let Some(mut n) = count(&d, key)? {
            bump(&mut n, delta);
            Zap::new(&d.dn).update_u64(tx, key, n)?;
        }
        at = d.parent();
    }
    Ok(())
}

/// Begins to keep both counts in `dir`.
pub(crate) fn start(tx: &Tx, dir: &Dir, fs: u64, snaps: u64) -> Result<()> {
    dir.core.zapify(tx, &dir.dn)?;
    Zap::new(&dir.dn).update_u64(tx, FS_COUNT, fs)?;
    Zap::new(&dir.dn).update_u64(tx, SNAP_COUNT, snaps)
}

pub(crate) fn check_enabled(dir: &Dir) -> Result<()> {
    match dir.core.features.is_enabled(FS_LIMITS) {
        true => Ok(()),
        false => bail!(Unsupported, "feature filesystem_limits is not enabled"),
    }
}

/// Begins to keep counts in `dir` and all below it: a limit was set. Nothing if that is so already.
pub(crate) fn activate(tx: &Tx, dir: &Arc<Dir>) -> Result<()> {
    let core = &dir.core;
    if is_zapified(&dir.dn) && count(dir, FS_COUNT)?.is_some() {
        return Ok(());
    }
    if !core.features.is_active(FS_LIMITS) {
        core.features.activate(tx, FS_LIMITS, 1)?;
    }
    init(tx, dir).map(|_| ())
}

fn init(tx: &Tx, dir: &Arc<Dir>) -> Result<(u64, u64)> {
    if let (Some(f), Some(s)) = (count(dir, FS_COUNT)?, count(dir, SNAP_COUNT)?) {
        return Ok((f, s));
    }
    let mut fs = 0;
    let mut snaps = match dir.phys().head_dataset_obj {
        0 => 0,
        _ => dir.head()?.snapshots()?.len() as u64,
    };
    for c in dir.children()? {
        let (f, s) = init(tx, &c)?;
        fs += f + 1;
        snaps += s;
    }
    start(tx, dir, fs, snaps)?;
    Ok((fs, snaps))
}
