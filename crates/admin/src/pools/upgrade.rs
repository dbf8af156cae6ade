//! `zpool upgrade`: features enabled, legacy versions raised (pool format §19).

use crate::compat::{self, Set};
use crate::errors::answer;
use crate::pools::{get, open, unmount_all};
use crate::registry::{Admin, PoolEntry};
use crate::suspended::{not_suspended, of_sync};
use crate::Answer;
use api::{ApiError, Peer, Upgraded};
use base::sync::RwLockExt;
use base::{Error, Kind, Result};
use disk::feature::{self, Feature};
use pool::{enable_features, OpenOptions, Pool};
use std::sync::Arc;

/// Pool version with feature flags.
const VERSION_FEATURES: u64 = 5000;

/// Answers `PoolUpgrade`.
pub fn upgrade(
    admin: &Arc<Admin>,
    peer: Peer,
    name: &str,
    version: Option<u64>,
    command: &str,
) -> Answer<Upgraded> {
    let entry = open(admin, name)?;
    let _one_at_a_time = entry.right_to_change().map_err(|e| of_sync(&entry, e))?;
    crate::cancel::check()?;
    if entry.is_leaving() {
        return Err(ApiError::no_such_pool(name));
    }
    if entry.pool.is_readonly() {
        return Err(ApiError::reason(Kind::ReadOnly, "pool is read-only"));
    }
    not_suspended(&entry)?;
    let from = entry.pool.version();
    let to = version.unwrap_or(VERSION_FEATURES);
    if to < from {
        return Err(ApiError::reason(
            Kind::Invalid,
            format!("the pool has version {from} already; versions only go up"),
        ));
    }
    let value = get::extra(&entry, "compatibility").unwrap_or_default();
    let set = compat::load(&value).map_err(|e| ApiError::reason(e.kind, e.to_string()))?;
    let mut done = Upgraded {
        from_version: from,
        to_version: to,
        features: Vec::new(),
    };
    let wanted: Vec<&'static Feature> = if version.is_some() {
        Vec::new()
    } else if from < VERSION_FEATURES {
        feature::FEATURES
            .iter()
            .filter(|f| f.supported && f.default_on && set.allows(f))
            .collect()
    } else {
        get::disabled_features(&entry.pool, &set)
    };
    done.features = wanted.iter().map(|f| f.name.to_string()).collect();
    if from == to {
        let _gate = entry.gate.acquire_read();
        if !wanted.is_empty() {
            entry
                .pool
                .task(move |pool, tx| match pool.feature_store() {
                    Some(store) => {
                        enable_features(store, tx, &wanted).and_then(|()| pool.features_changed())
                    }
                    None => Ok(()),
                })
                .map_err(answer)?;
            record(admin, &entry, peer, command)?;
        }
        return Ok(done);
    }
    if set == Set::None {
        return Err(ApiError::reason(
            Kind::Invalid,
            "the pool's property 'compatibility' is 'legacy'",
        ));
    }
    raise(admin, &entry, to, wanted)?;
    let entry = open(admin, name)?;
    record(admin, &entry, peer, command)?;
    Ok(done)
}

fn record(admin: &Admin, entry: &PoolEntry, peer: Peer, command: &str) -> Answer<()> {
    entry
        .pool
        .log_command(command, u64::from(peer.uid))
        .map_err(answer)?;
    admin.update_cache(entry);
    Ok(())
}

/// Raises the version. Half of the engine depends on it, so the pool is closed and opened again;
/// its file systems are not mounted meanwhile.
fn raise(
    admin: &Arc<Admin>,
    entry: &Arc<PoolEntry>,
    to: u64,
    features: Vec<&'static Feature>,
) -> Answer<()> {
    let _gate = entry.gate.acquire_write();
    unmount_all(admin, entry, false)?;
    entry
        .pool
        .task(move |pool, tx| pool.raise_version(tx, to, &features))
        .map_err(answer)?;
    let cache_file = entry.cache_file();
    let claim = admin.claim_again(entry).map_err(answer)?;
    admin.dismiss(entry);
    entry.pool.close().map_err(answer)?;
    let name = entry.pool.name();
    let reopened = reopen(admin, entry).and_then(|pool| {
        admin.adopt(
            pool,
            entry.altroot.clone(),
            cache_file,
            entry.mount_options.clone(),
        )
    });
    let entry = reopened.map_err(|e| {
        ApiError::sentence(
            e.kind,
            format!("pool '{name}' was upgraded but could not be opened again: {e}"),
        )
        .hint(format!("use 'zpool import {name}'"))
    })?;
    drop(claim);
    // No export before everything is mounted.
    let _gate = entry.pass().map_err(answer)?;
    for (name, e) in admin.mount_pool(&entry) {
        tracing::warn!("{name}: {e}");
    }
    Ok(())
}

fn reopen(admin: &Admin, old: &PoolEntry) -> Result<Arc<Pool>> {
    let paths: Vec<String> = old
        .pool
        .tree()
        .leaves()
        .iter()
        .filter_map(|l| l.path())
        .collect();
    let guid = old.pool.guid();
    let found = vdev::discover(&admin.env, &paths)
        .pools
        .into_iter()
        .find(|p| p.guid == guid)
        .ok_or_else(|| Error::new(Kind::NoDevice, "its devices are gone"))?;
    let temporary = old.pool.shared().label_name.is_some();
    let options = OpenOptions {
        name: temporary.then(|| old.pool.name()),
        temporary,
        activity: pool::Activity::Own,
        multihost: admin.settings.multihost,
        tunables: admin.process.tunables(),
        ..OpenOptions::default()
    };
    Pool::open(admin.env.clone(), &found.config, options)
}
