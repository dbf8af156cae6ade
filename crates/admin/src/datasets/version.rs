//! The version of a file system: setting the property `version` raises it, which is what `zfs upgrade` does.

use crate::datasets::parse::{self, Allowed};
use crate::datasets::{self, rights, Answer};
use crate::errors;
use crate::registry::{Admin, PoolEntry};
use api::{ApiError, DatasetKind, Peer};
use base::{Kind, Result};
use disk::props::Types;
use dsl::Dataset;
use std::sync::Arc;

/// The version that is asked for; `None` if the file system has it already.
pub fn asked(entry: &PoolEntry, ds: &Arc<Dataset>, text: &str) -> Answer<Option<u64>> {
    let ty = match datasets::kind_of(entry, ds) {
        DatasetKind::Snapshot => Types::SNAPSHOT,
        DatasetKind::Volume => Types::VOLUME,
        _ => Types::FILESYSTEM,
    };
    let allowed = Allowed {
        version: entry.pool.version(),
        enabled: &|guid| entry.pool.has_feature(guid),
    };
    let (_, value) = parse::parse(&allowed, "version", text, ty, false)?;
    let now = datasets::objsets::master(entry, ds)
        .map_err(errors::answer)?
        .version;
    match value.int() {
        Some(v) if v > now => Ok(Some(v)),
        Some(v) if v < now => Err(ApiError::reason(
            Kind::Invalid,
            format!("Can not downgrade; already at version {now}"),
        )),
        _ => Ok(None),
    }
}

/// Raises the version, under those who use a mounted file system: their requests wait meanwhile.
pub fn raise(
    admin: &Arc<Admin>,
    entry: &Arc<PoolEntry>,
    peer: Peer,
    ds: &Arc<Dataset>,
    to: u64,
) -> Answer<()> {
    let name = ds.full_name();
    let plain = |e| datasets::plain(e, &name);
    let _names = entry.names.write();
    crate::cancel::check()?;
    // It may have become another since, and permissions may have changed.
    if datasets::find_anyway(entry, &name)?.object() != ds.object() {
        return Err(ApiError::no_such_dataset(&name));
    }
    rights::require_named(admin, entry, peer, rights::of_property("version"), ds)?;
    if ds.is_inconsistent() {
        return Err(ApiError::reason(
            Kind::Busy,
            "the dataset is incomplete: a receive or destroy was interrupted",
        ));
    }
    if matches!(ds.crypt().map_err(plain)?, zio::Crypt::Locked) {
        return Err(ApiError::reason(Kind::Access, "encryption key not loaded"));
    }
    if let Some(why) = entry.pool.suspended() {
        return Err(plain(why));
    }
    let store = || store(entry, ds, to).map_err(plain);
    match entry.mounted(ds.object()) {
        Some(mounted) => mounted.replace(store),
        None => store(),
    }
}

/// A mounted file system that is older than what its pool counts by owner is opened anew, which counts it.
pub fn count_owners(entry: &Arc<PoolEntry>, ds: &Arc<Dataset>) -> Answer<()> {
    let _names = entry.names.write();
    match entry.mounted(ds.object()) {
        Some(mounted) => mounted.count_owners(&entry.pool),
        None => Ok(()),
    }
}

/// Nobody has the file system open.
fn store(entry: &PoolEntry, ds: &Arc<Dataset>, to: u64) -> Result<()> {
    let set = entry.pool.open_dataset(ds)?;
    let (os, of) = (set.os.clone(), ds.clone());
    drop(set);
    let stored = entry.pool.task(move |pool, tx| {
        let old = zpl::upgrade_fs(&os, tx, to, pool.version())?;
        pool.dsl().note_upgrade(&of, old, to);
        Ok(())
    });
    entry.pool.close_dataset(ds.object());
    stored
}
