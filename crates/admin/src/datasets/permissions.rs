//! `zfs allow` and `unallow`: showing delegated permissions, giving them, taking them back.

use crate::datasets::rights::{self, Action};
use crate::datasets::{self, set, Answer};
use crate::registry::{Admin, PoolEntry};
use api::{ApiError, Delegate, Delegation, Grant, Grantee, Peer, Permissions};
use base::mutation::{mutated, Mutation};
use base::sync::RwLockExt;
use base::{Kind, Result};
use disk::names;
use dsl::deleg::{self, Entry, Holder, Scope};
use dsl::{Dataset, Dir};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// What is delegated at a dataset and above it, the dataset first.
pub fn list(admin: &Arc<Admin>, name: &str) -> Answer<Vec<Permissions>> {
    let entry = datasets::entry_of(admin, name)?;
    let _gate = entry.gate.acquire_read();
    let ds = datasets::find(&entry, name)?;
    let mut list = Vec::new();
    let mut at = Some(ds.dir());
    while let Some(dir) = at {
        list.extend(shown(&dir).map_err(|e| datasets::plain(e, name))?);
        at = dir.parent();
    }
    Ok(list)
}

/// The permissions of one directory as they are shown; `None`: there are none.
fn shown(dir: &Dir) -> Result<Option<Permissions>> {
    let mut sets: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut create = BTreeSet::new();
    let mut grants: BTreeMap<(Grantee, Scope), BTreeSet<String>> = BTreeMap::new();
    for e in dir.delegated()? {
        let to = match e.holder {
            Holder::Set(name) => {
                sets.entry(name).or_default().extend(e.permissions);
                continue;
            }
            Holder::Creator => {
                create.extend(e.permissions);
                continue;
            }
            Holder::User(n) => Grantee::User(n),
            Holder::Group(n) => Grantee::Group(n),
            Holder::Everyone => Grantee::Everyone,
        };
        grants
            .entry((to, e.scope))
            .or_default()
            .extend(e.permissions);
    }
    let mut p = Permissions {
        dataset: dir.full_name(),
        sets: sets
            .into_iter()
            .map(|(n, s)| (n, s.into_iter().collect()))
            .collect(),
        create: create.into_iter().collect(),
        ..Permissions::default()
    };
    let tos: BTreeSet<Grantee> = grants.keys().map(|(to, _)| to.clone()).collect();
    for to in tos {
        let mut take = |scope| grants.remove(&(to.clone(), scope)).unwrap_or_default();
        let (l, d) = (take(Scope::Local), take(Scope::Descendent));
        let put = |list: &mut Vec<Grant>, names: Vec<String>| {
            if !names.is_empty() {
                list.push(Grant {
                    to: to.clone(),
                    permissions: names,
                });
            }
        };
        put(&mut p.everywhere, l.intersection(&d).cloned().collect());
        put(&mut p.local, l.difference(&d).cloned().collect());
        put(&mut p.descendent, d.difference(&l).cloned().collect());
    }
    let empty = p.sets.is_empty()
        && p.create.is_empty()
        && p.local.is_empty()
        && p.descendent.is_empty()
        && p.everywhere.is_empty();
    Ok((!empty).then_some(p))
}

fn invalid(text: String) -> ApiError {
    ApiError::reason(Kind::Invalid, text)
}

fn check_set(name: &str) -> Answer<()> {
    let rest = name.strip_prefix('@').unwrap_or("");
    let fits = !rest.is_empty() && name.len() <= deleg::SET_NAME_MAX;
    match fits && rest.chars().all(names::component_char) {
        true => Ok(()),
        false => Err(invalid(format!("invalid permission set name '{name}'"))),
    }
}

/// Checks a request, and makes entries of it.
fn entries(list: &[Delegation], taking: bool) -> Answer<Vec<Entry>> {
    let mut out = Vec::new();
    for d in list {
        let mut permissions = Vec::new();
        for p in &d.permissions {
            if p.starts_with('@') {
                check_set(p)?;
                permissions.push(p.clone());
            } else {
                let known = rights::permission(p);
                let known = known.ok_or_else(|| invalid(format!("invalid permission '{p}'")))?;
                permissions.push(known.to_string());
            }
        }
        if permissions.is_empty() && !taking {
            return Err(invalid("no permissions are named".into()));
        }
        let holder = match &d.to {
            Delegate::User(n) => Holder::User(*n),
            Delegate::Group(n) => Holder::Group(*n),
            Delegate::Everyone => Holder::Everyone,
            Delegate::Creator => Holder::Creator,
            Delegate::Set(name) => {
                check_set(name)?;
                Holder::Set(name.clone())
            }
        };
        let scopes: &[Scope] = match (&holder, d.local, d.descendent) {
            (Holder::Creator | Holder::Set(_), ..) => &[Scope::Neither],
            (_, true, false) => &[Scope::Local],
            (_, false, true) => &[Scope::Descendent],
            // Both are meant where nothing is said.
            (_, true, true) | (_, false, false) => &[Scope::Local, Scope::Descendent],
        };
        out.extend(scopes.iter().map(|scope| Entry {
            holder: holder.clone(),
            scope: *scope,
            permissions: permissions.clone(),
        }));
    }
    Ok(out)
}

/// The dataset, if permissions can be delegated there, and by this caller.
fn target(admin: &Admin, entry: &PoolEntry, peer: Peer, name: &str) -> Answer<Arc<Dataset>> {
    datasets::need_writable(entry)?;
    let ds = datasets::find(entry, name)?;
    if ds.is_snapshot() {
        return Err(invalid(
            "permissions are delegated at file systems and volumes".into(),
        ));
    }
    rights::require(admin, entry, peer, Action::Allow, &ds)?;
    if entry.pool.version() < deleg::VERSION {
        return Err(ApiError::reason(
            Kind::Unsupported,
            "pool must be upgraded to support delegated permissions",
        ));
    }
    Ok(ds)
}

/// `zfs allow`: whoever is not the owner gives no more than what was given him, and not the permission
/// to give.
pub fn allow(
    admin: &Arc<Admin>,
    peer: Peer,
    name: &str,
    list: &[Delegation],
    command: String,
) -> Answer<()> {
    let list = entries(list, false)?;
    let entry = datasets::entry_of(admin, name)?;
    let gate = entry.gate.acquire_read();
    let names = entry.names.write();
    let ds = target(admin, &entry, peer, name)?;
    if !rights::is_owner(admin, peer) {
        for p in list.iter().flat_map(|e| &e.permissions) {
            if p == "allow" {
                return Err(rights::denied());
            }
            rights::require_named(admin, &entry, peer, p, &ds)?;
        }
    }
    let uid = u64::from(peer.uid);
    entry
        .pool
        .task(move |pool, tx| {
            if !mutated(Mutation::PermissionLost) {
                pool.dsl().allow(tx, &ds, &list)?;
            }
            pool.log_in(tx, &command, uid)
        })
        .map_err(|e| datasets::plain(e, name))?;
    let changed = follow(&entry, name);
    drop((names, gate));
    set::tell_kernel(&entry, &changed);
    Ok(())
}

/// `zfs unallow`: whoever is not the owner takes back what he has himself, and what creators get.
pub fn unallow(
    admin: &Arc<Admin>,
    peer: Peer,
    name: &str,
    list: &[Delegation],
    recursive: bool,
    command: String,
) -> Answer<()> {
    let list = entries(list, true)?;
    let entry = datasets::entry_of(admin, name)?;
    let gate = entry.gate.acquire_read();
    let names = entry.names.write();
    let top = target(admin, &entry, peer, name)?;
    let all = match recursive {
        true => datasets::subtree(&top.dir()).map_err(|e| datasets::plain(e, name))?,
        false => vec![top],
    };
    let uid = u64::from(peer.uid);
    if !rights::is_owner(admin, peer) {
        let own = |e: &Entry| matches!(e.holder, Holder::Creator) || e.holder == Holder::User(uid);
        if !list.iter().all(own) {
            return Err(rights::denied());
        }
        for ds in &all {
            rights::require(admin, &entry, peer, Action::Allow, ds)?;
        }
    }
    entry
        .pool
        .task(move |pool, tx| {
            for ds in &all {
                pool.dsl().unallow(tx, ds, &list)?;
            }
            pool.log_in(tx, &command, uid)
        })
        .map_err(|e| datasets::plain(e, name))?;
    let changed = follow(&entry, name);
    drop((names, gate));
    set::tell_kernel(&entry, &changed);
    Ok(())
}

/// Mounts follow permissions: what others than the owner may put files into is mounted without set-user-id programs and
/// devices ([`crate::setters`]). Returns what the kernel is to be told of.
fn follow(entry: &PoolEntry, name: &str) -> Vec<Arc<Dataset>> {
    let changed: Vec<_> = datasets::find_anyway(entry, name).into_iter().collect();
    set::refresh(entry, &changed);
    changed
}
