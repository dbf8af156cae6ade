//! Limits on the number of file systems and snapshots (data format §16).

use crate::core::{bump, is_hidden, is_zapified, FS_LIMITS};
use crate::{Caller, Dataset, Dir, Dsl};
use base::{bail, bail_about, Result};
use dmu::Tx;
use std::collections::BTreeMap;
use std::sync::Arc;
use zap::Zap;

pub(crate) const FS_COUNT: &str = "com.joyent:filesystem_count";
pub(crate) const SNAP_COUNT: &str = "com.joyent:snapshot_count";

/// File systems below a directory, as far as it is kept.
pub(crate) fn count(dir: &Dir, key: &str) -> Result<Option<u64>> {
    dir.extra(key)
}

/// Whether a limit is enforced against a caller: not if the caller could change it.
fn is_enforced(dir: &Dir, prop: &str, who: &Caller) -> Result<bool> {
    if who.all {
        return Ok(false);
    }
    match dir.phys().head_dataset_obj {
        0 => Ok(true),
        _ => Ok(!dir.head()?.permits(prop, who)?),
    }
}

/// Whether `delta` more fit by the limit of this directory. `false`: no counts are kept here, so there is
/// no limit above either.
fn check_one(dir: &Dir, key: &str, delta: u64, who: &Caller) -> Result<bool> {
    let Some(n) = count(dir, key)? else {
        return Ok(false);
    };
    let prop = match key {
        FS_COUNT => "filesystem_limit",
        _ => "snapshot_limit",
    };
    if let Some(limit) = dir.own_int(prop) {
        if n.saturating_add(delta) > limit && is_enforced(dir, prop, who)? {
            bail_about!(Quota, dir.full_name(), "{prop} of {limit} reached");
        }
    }
    Ok(true)
}

/// Whether `delta` more fit below `dir` and the directories above it, up to one that is `shared` by those
/// where they are now.
fn check(dir: &Arc<Dir>, key: &str, delta: u64, shared: u64, who: &Caller) -> Result<()> {
    if who.all || delta == 0 || !dir.core.features.is_active(FS_LIMITS) {
        return Ok(());
    }
    let mut at = Some(dir.clone());
    while let Some(d) = at {
        if d.object() == shared || !check_one(&d, key, delta, who)? {
            return Ok(());
        }
        at = d.parent();
    }
    Ok(())
}

/// The nearest directory that is above (or is) both; 0: there is none.
fn common(a: &Arc<Dir>, b: &Arc<Dir>) -> u64 {
    let mut of_a = std::collections::HashSet::new();
    let mut at = Some(a.clone());
    while let Some(d) = at {
        of_a.insert(d.object());
        at = d.parent();
    }
    let mut at = Some(b.clone());
    while let Some(d) = at {
        if of_a.contains(&d.object()) {
            return d.object();
        }
        at = d.parent();
    }
    0
}

/// Limits on the number of file systems and snapshots. They hold for callers, not for changes: a change
/// is checked here first, by those who know who asks. `Kind::Quota`: a limit is reached.
impl Dsl {
    /// Whether a caller may make so many more file systems or volumes below `parent`.
    pub fn check_filesystem_limit(&self, parent: &Arc<Dir>, more: u64, who: &Caller) -> Result<()> {
        check(parent, FS_COUNT, more, 0, who)
    }

    /// Whether a caller may make these snapshots (heads, and names behind the `@`) together.
    pub fn check_snapshot_limits(
        &self,
        list: &[(Arc<Dataset>, String)],
        who: &Caller,
    ) -> Result<()> {
        if who.all || !self.core.features.is_active(FS_LIMITS) {
            return Ok(());
        }
        let mut sums: BTreeMap<u64, (Arc<Dir>, u64)> = BTreeMap::new();
        for (head, _) in list.iter().filter(|(_, name)| !is_hidden(name)) {
            let mut at = Some(head.dir());
            while let Some(dir) = at {
                sums.entry(dir.object())
                    .or_insert_with(|| (dir.clone(), 0))
                    .1 += 1;
                at = dir.parent();
            }
        }
        for (dir, snaps) in sums.values() {
            check_one(dir, SNAP_COUNT, *snaps, who)?;
        }
        Ok(())
    }

    /// Whether a caller may move a directory, with all below it, into another one.
    pub fn check_rename_limits(&self, dir: &Arc<Dir>, to: &Arc<Dir>, who: &Caller) -> Result<()> {
        if who.all || !self.core.features.is_active(FS_LIMITS) {
            return Ok(());
        }
        let shared = match dir.parent() {
            Some(from) => common(&from, to),
            None => 0,
        };
        let (fs, snaps) = match (count(dir, FS_COUNT)?, count(dir, SNAP_COUNT)?) {
            (Some(fs), Some(snaps)) => (fs, snaps),
            _ => tally(dir)?,
        };
        check(to, FS_COUNT, fs.saturating_add(1), shared, who)?;
        check(to, SNAP_COUNT, snaps, shared, who)
    }

    /// Whether a caller may promote a clone: its origin's snapshots move to it.
    pub fn check_promote_limits(&self, clone: &Arc<Dataset>, who: &Caller) -> Result<()> {
        if who.all || !self.core.features.is_active(FS_LIMITS) {
            return Ok(());
        }
        let Some(origin) = clone.dir().origin()? else {
            return Ok(());
        };
        let (_, _, shared) = self.shared_with_origin(clone)?;
        let snaps = shared.iter().filter(|s| !is_hidden(&s.name)).count() as u64;
        let shared = common(&origin.dir(), &clone.dir());
        check(&clone.dir(), SNAP_COUNT, snaps, shared, who)
    }
}

/// File systems below a directory, and snapshots of it and of those: counted one by one.
fn tally(dir: &Arc<Dir>) -> Result<(u64, u64)> {
    let mut fs = 0;
    let mut snaps = own_snapshots(dir)?;
    for c in children_counted(dir)? {
        let (f, s) = tally(&c)?;
        fs += f + 1;
        snaps += s;
    }
    Ok((fs, snaps))
}

fn own_snapshots(dir: &Arc<Dir>) -> Result<u64> {
    match dir.phys().head_dataset_obj {
        0 => Ok(0),
        _ => Ok(dir.head()?.snapshot_names()?.len() as u64),
    }
}

/// Directories that count as file systems: temporary ones (`%recv`) do, those of the pool itself do not.
fn children_counted(dir: &Arc<Dir>) -> Result<Vec<Arc<Dir>>> {
    let mut out = Vec::new();
    for e in Zap::new(&dir.children_zap()?).iter() {
        let e = e?;
        let name = e.text();
        if !name.starts_with('$') {
            out.push(dir.core.dir_named(e.value.to_u64()?, &name, dir)?);
        }
    }
    Ok(out)
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
    let mut snaps = own_snapshots(dir)?;
    for c in children_counted(dir)? {
        let (f, s) = init(tx, &c)?;
        fs += f + 1;
        snaps += s;
    }
    start(tx, dir, fs, snaps)?;
    Ok((fs, snaps))
}
