//! `zfs share` and `unshare`, and sharing that follows the property `sharenfs`. Who serves shares is a [`crate::shares::Sharer`].

use crate::datasets::rights::{self, Action};
use crate::datasets::{self, Answer};
use crate::errors;
use crate::mounts::Mounted;
use crate::registry::{Admin, PoolEntry};
use crate::shares::{wanted, Share, Sharer};
use api::{ApiError, Batch, Peer};
use base::sync::RwLockExt;
use base::Kind;
use dsl::Dataset;
use std::path::Path;
use std::sync::Arc;

/// A share, and what is shared.
pub struct Shared {
    /// The mount.
    pub mounted: Arc<Mounted>,
    /// How it is shared.
    pub share: Arc<Share>,
}

/// Every shared file system of every pool, by path.
pub fn list(admin: &Admin) -> Vec<Shared> {
    let mut all = Vec::new();
    for entry in admin.pools() {
        for mounted in entry.all_mounts() {
            if let Some(share) = mounted.share() {
                all.push(Shared { mounted, share });
            }
        }
    }
    all.sort_by(|a, b| a.mounted.path.cmp(&b.mounted.path));
    all
}

fn sharer(admin: &Admin) -> Answer<&Arc<dyn Sharer>> {
    let none = || ApiError::reason(Kind::Unsupported, "nothing serves NFS here");
    admin.sharer().ok_or_else(none)
}

fn tell(admin: &Admin) -> Answer<()> {
    admin.shares_changed().map_err(errors::answer)
}

/// A mounted file system by its name or mount point.
fn find(admin: &Admin, target: &str) -> Answer<(Arc<PoolEntry>, Arc<Dataset>)> {
    if target.starts_with('/') {
        for entry in admin.pools() {
            let mounts = entry.all_mounts();
            if let Some(m) = mounts.iter().rev().find(|m| m.path == Path::new(target)) {
                return Ok((entry, m.ds.clone()));
            }
        }
        return Err(ApiError::reason(Kind::Invalid, "not a mountpoint"));
    }
    let entry = datasets::entry_of(admin, target)?;
    let ds = datasets::find(&entry, target)?;
    Ok((entry, ds))
}

/// `zfs share NAME`.
///
/// # Errors
/// It is not to be shared, shared already, not mounted, or its options cannot be served.
pub fn share(admin: &Arc<Admin>, peer: Peer, target: &str) -> Answer<()> {
    let (entry, ds) = find(admin, target)?;
    {
        let _gate = entry.gate.acquire_read();
        let _names = entry.names.read();
        rights::require(admin, &entry, peer, Action::Share, &ds)?;
        let Some(share) = wanted(&ds).map_err(invalid)? else {
            return Err(ApiError::reason(Kind::Invalid, "legacy share")
                .hint(format!("use 'zfs set sharenfs=on {target}' to share it")));
        };
        let Some(m) = entry.mounted(ds.object()).filter(|m| m.is_in_place()) else {
            return Err(ApiError::reason(Kind::Invalid, "filesystem is not mounted")
                .hint("only what is mounted is shared; 'zfs mount' mounts it"));
        };
        let sharer = sharer(admin)?;
        if m.share().is_some_and(|s| *s == share) {
            return Err(ApiError::reason(Kind::Busy, "filesystem already shared"));
        }
        sharer.check(&share).map_err(errors::answer)?;
        m.set_share(Some(Arc::new(share)));
    }
    tell(admin)
}

fn invalid(e: base::Error) -> ApiError {
    ApiError::reason(e.kind, "'sharenfs' has options that are none").hint(e.to_string())
}

/// `zfs unshare NAME`.
///
/// # Errors
/// It is not shared.
pub fn unshare(admin: &Arc<Admin>, peer: Peer, target: &str) -> Answer<()> {
    let (entry, ds) = find(admin, target)?;
    {
        let _gate = entry.gate.acquire_read();
        let _names = entry.names.read();
        rights::require(admin, &entry, peer, Action::Share, &ds)?;
        let shared = entry.mounted(ds.object()).filter(|m| m.share().is_some());
        let Some(m) = shared else {
            return Err(ApiError::reason(Kind::Invalid, "not currently shared"));
        };
        m.set_share(None);
    }
    tell(admin)
}

/// `zfs share -a`, and with `share` false `zfs unshare -a`: everything that is mounted and that the caller may share.
pub fn share_all(admin: &Arc<Admin>, peer: Peer, share: bool) -> Batch {
    let mut batch = Batch::default();
    for entry in admin.pools() {
        for m in entry.all_mounts() {
            let _gate = entry.gate.acquire_read();
            let _names = entry.names.read();
            if rights::require(admin, &entry, peer, Action::Share, &m.ds).is_err() {
                continue;
            }
            let name = m.ds.full_name();
            if !share {
                if m.set_share(None).is_some() {
                    batch.done.push(name);
                }
                continue;
            }
            match share_one(admin, &m) {
                Ok(true) => batch.done.push(name),
                Ok(false) => {}
                Err(e) => batch.failed.push((name, e)),
            }
        }
    }
    if let Err(e) = tell(admin) {
        batch.failed.push(("-a".into(), e));
    }
    batch
}

/// Shares one as its property says; whether that is new.
fn share_one(admin: &Admin, m: &Mounted) -> Answer<bool> {
    let Some(share) = wanted(&m.ds).map_err(invalid)? else {
        return Ok(false);
    };
    if m.share().is_some_and(|s| *s == share) {
        return Ok(false);
    }
    if let Some(sharer) = admin.sharer() {
        sharer.check(&share).map_err(errors::answer)?;
    }
    m.set_share(Some(Arc::new(share)));
    Ok(true)
}

/// The property of these datasets, or of one above them, may have changed: what is mounted of them, and of what is below, is
/// shared as it says now. Returns what is not shared for want of a server, in words.
///
/// # Errors
/// What cannot be shared as it says, and is not shared any more.
pub(crate) fn follow(
    admin: &Arc<Admin>,
    entry: &PoolEntry,
    changed: &[Arc<Dataset>],
) -> Answer<Option<String>> {
    let mut failed = None;
    for m in entry.all_mounts() {
        let name = m.ds.full_name();
        let below = |ds: &Arc<Dataset>| datasets::is_below(&name, &ds.full_name());
        if !changed.iter().any(below) {
            continue;
        }
        let done = match wanted(&m.ds) {
            Ok(None) => {
                m.set_share(None);
                Ok(false)
            }
            _ => share_one(admin, &m),
        };
        if let Err(e) = done {
            m.set_share(None);
            failed.get_or_insert((name, e));
        }
    }
    let told = tell(admin);
    match failed {
        Some((name, e)) if e.code == Kind::Unsupported.errno() => {
            Ok(Some(format!("{name} is not shared: {}", e.message)))
        }
        Some((_, e)) => {
            let text = "property may be set but unable to reshare filesystem";
            let kind = Kind::from_errno(e.code);
            Err(ApiError::sentence(kind, text).detail(e.to_string()))
        }
        None => told.map(|()| None),
    }
}
