//! `zpool set`: properties and features of pools.

use crate::compat;
use crate::datasets::kind_of;
use crate::errors::answer;
use crate::pools::upgrade::upgrade;
use crate::pools::{class_props, open};
use crate::registry::{Admin, PoolEntry};
use crate::suspended::not_suspended;
use crate::Answer;
use api::{ApiError, DatasetKind, Peer, Props};
use base::sync::{MutexExt, RwLockExt};
use base::{Error, Kind};
use disk::feature::{self, Feature};
use disk::props::{self, PoolProp, When};
use dsl::PropValue;
use std::path::PathBuf;
use std::sync::Arc;

/// A native property by name.
pub fn known(name: &str) -> Answer<&'static PoolProp> {
    if class_props::is_one(name) {
        let why = format!("'{name}' is readonly");
        return Err(ApiError::reason(Kind::Invalid, why));
    }
    props::pool(name)
        .ok_or_else(|| ApiError::reason(Kind::Invalid, format!("invalid property '{name}'")))
}

/// A feature by short name.
pub fn known_feature(short: &str) -> Answer<&'static Feature> {
    feature::by_name(short)
        .ok_or_else(|| ApiError::reason(Kind::Invalid, format!("invalid feature '{short}'")))
}

/// Refuses features this software does not write.
pub fn supported(f: &Feature) -> Answer<()> {
    let lacking = f
        .all_dependencies()
        .into_iter()
        .chain(feature::by_name(f.name))
        .find(|f| !f.supported);
    match lacking {
        None => Ok(()),
        Some(l) => Err(ApiError::sentence(
            Kind::Unsupported,
            format!(
                "feature '{}' cannot be enabled: this version does not support '{}' yet",
                f.name, l.name
            ),
        )),
    }
}

/// The file a value of `cachefile` means.
pub fn cache_file(admin: &Admin, value: &str) -> Option<PathBuf> {
    match value {
        "none" => None,
        "" => Some(admin.settings.paths.cache_file.clone()),
        path => Some(path.into()),
    }
}

/// The value as the DSL stores it.
pub fn to_stored(v: &props::PropValue) -> PropValue {
    match v {
        props::PropValue::Number(n) => PropValue::Int(*n),
        props::PropValue::Text(t) => PropValue::Str(t.clone()),
    }
}

/// Refuses values that would promise what is not done yet.
pub fn honest(name: &str, value: &props::PropValue, admin: &Admin) -> Answer<()> {
    let refuse = |why: &str| {
        Err(ApiError::sentence(
            Kind::Unsupported,
            format!("property '{name}' cannot be set to that value in this version yet: {why}"),
        ))
    };
    match (name, value.number()) {
        ("multihost", Some(1)) if admin.env.host.hostid() == 0 => Err(ApiError::sentence(
            Kind::Invalid,
            "property 'multihost' needs a host id: this system has none in /etc/hostid",
        )),
        ("failmode", Some(2)) => refuse("a daemon does not stop the system"),
        _ => Ok(()),
    }
}

/// What a request to set properties comes down to.
enum Change {
    Zap(String, Option<PropValue>),
    Extra(&'static str, Option<String>),
    Cache(Option<PathBuf>),
    Enable(&'static Feature),
}

/// Answers `PoolSet`.
pub fn set(admin: &Arc<Admin>, peer: Peer, name: &str, list: &Props, command: &str) -> Answer<()> {
    let entry = open(admin, name)?;
    let _gate = entry.gate.acquire_read();
    let mut changes = Vec::new();
    for (prop, value) in list {
        if prop == "version" {
            let v = known(prop)?.parse(value, When::Set).map_err(answer)?;
            drop(_gate);
            upgrade(admin, peer, name, v.number(), command)?;
            return Ok(());
        }
        changes.push(change(admin, &entry, prop, value)?);
    }
    for c in &changes {
        if let Change::Cache(new) = c {
            // Of this import only, so a pool that is read-only may have it too.
            let old = std::mem::replace(&mut *entry.cache_file.acquire(), new.clone());
            if old != *new {
                admin.rewrite_cache(old);
            }
            admin.update_cache(&entry);
        }
    }
    changes.retain(|c| !matches!(c, Change::Cache(_)));
    if !changes.is_empty() && entry.pool.is_readonly() {
        return Err(ApiError::reason(Kind::ReadOnly, "pool is read-only"));
    }
    if !changes.is_empty() {
        not_suspended(&entry)?;
    }
    let mut stored = Vec::new();
    for c in changes {
        match c {
            Change::Extra(key, value) => entry.pool.set_extra(key, value.as_deref()),
            other => stored.push(other),
        }
    }
    if !entry.pool.is_readonly() {
        entry
            .pool
            .task(move |pool, tx| {
                for c in &stored {
                    match c {
                        Change::Zap(name, value) => pool.store_prop(tx, name, value.as_ref())?,
                        Change::Enable(f) => {
                            if let Some(s) = pool.feature_store() {
                                s.enable(tx, f)?;
                                pool.features_changed()?;
                            }
                        }
                        Change::Extra(..) | Change::Cache(_) => {}
                    }
                }
                Ok(())
            })
            .map_err(answer)?;
        if entry.pool.is_multihost() {
            admin.process.beat(&entry).map_err(answer)?;
        }
        entry
            .pool
            .log_command(command, u64::from(peer.uid))
            .map_err(answer)?;
    }
    if list.iter().any(|(prop, _)| prop == "delegation") {
        // Mounts depend on whether permissions count.
        let root = [entry.pool.root_dataset().map_err(answer)?];
        {
            let _names = entry.names.write();
            crate::datasets::set::refresh(&entry, &root);
        }
        crate::datasets::set::tell_kernel(&entry, &root);
    }
    admin.update_cache(&entry);
    Ok(())
}

fn reason(e: Error) -> ApiError {
    ApiError::reason(e.kind, e.to_string())
}

fn change(admin: &Arc<Admin>, entry: &PoolEntry, name: &str, value: &str) -> Answer<Change> {
    if let Some(short) = name.strip_prefix("feature@") {
        let f = known_feature(short)?;
        if value != "enabled" {
            return Err(ApiError::reason(
                Kind::Invalid,
                format!("property '{name}' can only be set to 'enabled'"),
            ));
        }
        supported(f)?;
        if entry.pool.feature_store().is_none() {
            return Err(ApiError::reason(
                Kind::Unsupported,
                "pool must be upgraded to set this property or value",
            ));
        }
        return Ok(Change::Enable(f));
    }
    if props::is_user(name) {
        props::check_user(name, value).map_err(reason)?;
        // An empty value takes a user property away.
        let value = (!value.is_empty()).then(|| PropValue::Str(value.into()));
        return Ok(Change::Zap(name.into(), value));
    }
    let p = known(name)?;
    let v = p.parse(value, When::Set).map_err(reason)?;
    match p.name {
        "cachefile" => Ok(Change::Cache(cache_file(admin, value))),
        "comment" => Ok(Change::Extra(
            "comment",
            (!value.is_empty()).then(|| value.into()),
        )),
        "compatibility" => {
            compat::load(value).map_err(reason)?;
            let kept = !matches!(value, "" | "off");
            Ok(Change::Extra("compatibility", kept.then(|| value.into())))
        }
        "bootfs" => bootfs(entry, value),
        name => {
            honest(name, &v, admin)?;
            let needed = match name {
                "delegation" => 8,
                "listsnapshots" => 13,
                _ => 6,
            };
            if entry.pool.version() < needed {
                return Err(ApiError::reason(
                    Kind::Unsupported,
                    "pool must be upgraded to set this property or value",
                ));
            }
            Ok(Change::Zap(name.into(), Some(to_stored(&v))))
        }
    }
}

/// The dataset to boot from is kept as its number.
fn bootfs(entry: &PoolEntry, value: &str) -> Answer<Change> {
    if value.is_empty() {
        return Ok(Change::Zap("bootfs".into(), None));
    }
    let wrong = |why: &str| {
        Err(ApiError::reason(
            Kind::Invalid,
            format!("property 'bootfs' cannot be '{value}': {why}"),
        ))
    };
    let pool = value.split(['/', '@']).next().unwrap_or(value);
    if pool != entry.pool.name() {
        return wrong("it is not a dataset of this pool");
    }
    match entry.pool.dataset(value) {
        Ok(ds) if kind_of(entry, &ds) == DatasetKind::Volume => wrong("it is a volume"),
        Ok(ds) => Ok(Change::Zap(
            "bootfs".into(),
            Some(PropValue::Int(ds.object())),
        )),
        Err(_) => wrong("there is no such dataset"),
    }
}
