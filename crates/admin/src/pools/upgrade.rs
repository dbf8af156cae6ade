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
use dmu::Tx;
use dsl::FeatureStore;
use pool::{OpenOptions, Pool};
use std::sync::Arc;
use zap::{Value, Zap};

/// Pool version with feature flags.
const VERSION_FEATURES: u64 = 5000;
/// Version in which space is counted without parity and padding.
const VERSION_DEFLATE: u64 = 3;

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
                        enable(store, tx, &wanted).and_then(|()| pool.features_changed())
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

/// Enables features; what records when others are enabled comes first.
fn enable(store: &FeatureStore, tx: &Tx, list: &[&'static Feature]) -> Result<()> {
    let first = |f: &&&'static Feature| f.name == "enabled_txg";
    for f in list.iter().filter(first).chain(list) {
        store.enable(tx, f)?;
    }
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
        .task(move |pool, tx| convert(pool, tx, to, &features))
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

/// Makes what a pool of the new version has and one of the old has not.
fn convert(pool: &Pool, tx: &Tx, to: u64, features: &[&'static Feature]) -> Result<()> {
    let from = pool.version();
    pool.dsl().upgrade(tx, to)?;
    let directory = Zap::new(&pool.mos().hold(1)?).get("deflate")?;
    let ratio = |t: &Arc<vdev::Vdev>| !t.is_concrete() || t.deflate_ratio() == 512;
    if from < VERSION_DEFLATE
        && to >= VERSION_DEFLATE
        && directory.is_none()
        && pool.tree().tops().iter().all(ratio)
    {
        Zap::new(&pool.mos().hold(1)?).add_u64(tx, "deflate", 1)?;
    }
    if to >= VERSION_FEATURES {
        let store = FeatureStore::create(pool.mos(), tx)?;
        let mut salt = [0; 32];
        pool.env.rng.fill(&mut salt);
        Zap::new(&pool.mos().hold(1)?).add(
            tx,
            disk::mos_keys::CHECKSUM_SALT,
            &Value::bytes(&salt),
        )?;
        enable(&store, tx, features)?;
    }
    pool.shared().version = to;
    pool.dirty_config();
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
