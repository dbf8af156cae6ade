//! `zfs share` and `unshare`, and sharing that follows the properties `sharenfs` and `sharesmb`. Who serves shares is a
//! [`crate::shares::Sharer`] and a [`crate::shares::SmbServer`].

use crate::datasets::rights::{self, Action};
use crate::datasets::{self, Answer};
use crate::errors;
use crate::mounts::Mounted;
use crate::registry::{Admin, PoolEntry};
use crate::shares::{check, smb, wanted, Share, Sharer};
use api::{ApiError, Batch, Peer, Protocol};
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

/// Every file system of every pool that is shared over SMB, by name.
pub fn over_smb(admin: &Admin) -> Vec<Arc<Mounted>> {
    let pools = admin.pools();
    let mut all: Vec<_> = pools.iter().flat_map(|e| e.all_mounts()).collect();
    all.retain(|m| m.is_smb_shared());
    all.sort_by_cached_key(|m| m.ds.full_name());
    all
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

/// Mounts that are about to end and are not shared any more, since whoever serves them would hold them. When this is dropped, those
/// that have not ended are shared again.
pub struct Unshared<'a> {
    admin: &'a Admin,
    list: Vec<Shared>,
}

impl<'a> Unshared<'a> {
    /// Has the server let go of these mounts, if it would hold them.
    pub fn before_unmounting(admin: &'a Admin, mounts: &[Arc<Mounted>]) -> Unshared<'a> {
        let holds = admin.sharer().is_some_and(|s| s.holds_mounts());
        let shared = |m: &Arc<Mounted>| {
            let mounted = m.clone();
            m.set_share(None).map(|share| Shared { mounted, share })
        };
        let list = match holds {
            true => mounts.iter().filter_map(shared).collect(),
            false => Vec::new(),
        };
        let unshared = Unshared { admin, list };
        if !unshared.list.is_empty() {
            unshared.tell();
        }
        unshared
    }

    /// A server that cannot be told is no reason to fail: what it holds is busy, and said to be.
    fn tell(&self) {
        let told = self.admin.sharer().map_or(Ok(()), |s| s.changed());
        if let Err(e) = told {
            tracing::warn!("{e}");
        }
    }
}

impl Drop for Unshared<'_> {
    fn drop(&mut self) {
        let stay = |s: &&Shared| s.mounted.is_in_place() && s.mounted.share().is_none();
        let stayed: Vec<_> = self.list.iter().filter(stay).collect();
        for s in &stayed {
            s.mounted.set_share(Some(s.share.clone()));
        }
        if !stayed.is_empty() {
            self.tell();
        }
    }
}

fn sharer(admin: &Admin) -> Answer<&Arc<dyn Sharer>> {
    let none = || ApiError::reason(Kind::Unsupported, "nothing serves NFS here");
    admin.sharer().ok_or_else(none)
}

fn tell(admin: &Admin) -> Answer<()> {
    admin.shares_changed().map_err(errors::answer)
}

/// Refuses what a server has not taken, though it was told of it.
fn taken(admin: &Admin, m: &Mounted) -> Answer<()> {
    match refusal(admin, m) {
        Some(why) => Err(ApiError::reason(Kind::NotPermitted, why)),
        None => Ok(()),
    }
}

fn refusal(admin: &Admin, m: &Mounted) -> Option<String> {
    let nfs = admin.sharer().filter(|_| m.share().is_some());
    let smb = admin.smb().filter(|_| m.is_smb_shared());
    let name = m.ds.full_name();
    let why = nfs.and_then(|s| s.refusal(&name));
    why.or_else(|| smb.and_then(|s| s.refusal(&name)))
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
    let m = {
        let _gate = entry.gate.acquire_read();
        let _names = entry.names.read();
        rights::require(admin, &entry, peer, Action::Share, &ds)?;
        let share = wanted(&ds).map_err(invalid)?;
        let over_smb = smb::wanted(&ds).map_err(invalid_smb)?;
        if share.is_none() && !over_smb {
            return Err(ApiError::reason(Kind::Invalid, "legacy share")
                .hint(format!("use 'zfs set sharenfs=on {target}' to share it")));
        }
        let Some(m) = entry.mounted(ds.object()).filter(|m| m.is_in_place()) else {
            return Err(ApiError::reason(Kind::Invalid, "filesystem is not mounted")
                .hint("only what is mounted is shared; 'zfs mount' mounts it"));
        };
        if over_smb {
            check_smb(admin)?;
        }
        let nfs_is_new = share.is_some() && m.share().as_deref() != share.as_ref();
        let smb_is_new = over_smb && !m.is_smb_shared();
        if !nfs_is_new && !smb_is_new && refusal(admin, &m).is_none() {
            return Err(ApiError::reason(Kind::Busy, "filesystem already shared"));
        }
        if let Some(share) = share.filter(|_| nfs_is_new) {
            let sharer = sharer(admin)?;
            check(Some(sharer), &m.candidate(), &share).map_err(errors::answer)?;
            m.set_share(Some(Arc::new(share)));
        }
        if smb_is_new {
            m.set_smb_shared(true);
        }
        m
    };
    tell(admin)?;
    taken(admin, &m)
}

fn invalid(e: base::Error) -> ApiError {
    ApiError::reason(e.kind, "'sharenfs' has options that are none").hint(e.to_string())
}

fn invalid_smb(e: base::Error) -> ApiError {
    ApiError::reason(e.kind, "'sharesmb' has options that are none").hint(e.to_string())
}

fn check_smb(admin: &Admin) -> Answer<()> {
    match admin.smb() {
        Some(smb) => smb.check().map_err(errors::answer),
        None => Err(ApiError::reason(
            Kind::Unsupported,
            "nothing serves SMB here",
        )),
    }
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
        let is_shared = |m: &Arc<Mounted>| m.share().is_some() || m.is_smb_shared();
        let Some(m) = entry.mounted(ds.object()).filter(is_shared) else {
            return Err(ApiError::reason(Kind::Invalid, "not currently shared"));
        };
        m.set_share(None);
        m.set_smb_shared(false);
    }
    tell(admin)
}

/// `zfs share -a`, and with `share` false `zfs unshare -a`: everything that is mounted and that the caller may share, over one
/// protocol or all.
pub fn share_all(admin: &Arc<Admin>, peer: Peer, share: bool, only: Option<Protocol>) -> Batch {
    let over = |protocol: Protocol| only.is_none_or(|o| o == protocol);
    let mut batch = Batch::default();
    let mut shared = Vec::new();
    for entry in admin.pools() {
        for m in entry.all_mounts() {
            let _gate = entry.gate.acquire_read();
            let _names = entry.names.read();
            if rights::require(admin, &entry, peer, Action::Share, &m.ds).is_err() {
                continue;
            }
            let name = m.ds.full_name();
            if !share {
                let nfs = over(Protocol::Nfs) && m.set_share(None).is_some();
                let smb = over(Protocol::Smb) && m.set_smb_shared(false);
                if nfs || smb {
                    batch.done.push(name);
                }
                continue;
            }
            let nfs = match over(Protocol::Nfs) {
                true => share_one(admin, &m),
                false => Ok(false),
            };
            let smb = match over(Protocol::Smb) {
                true => share_one_over_smb(admin, &m),
                false => Ok(false),
            };
            if matches!(nfs, Ok(true)) || matches!(smb, Ok(true)) {
                batch.done.push(name.clone());
                shared.push(m.clone());
            }
            for e in [nfs.err(), smb.err()].into_iter().flatten() {
                batch.failed.push((name.clone(), e));
            }
        }
    }
    if let Err(e) = tell(admin) {
        batch.failed.push(("-a".into(), e));
    }
    for m in shared {
        if let Err(e) = taken(admin, &m) {
            let name = m.ds.full_name();
            batch.done.retain(|n| *n != name);
            batch.failed.push((name, e));
        }
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
    check(admin.sharer(), &m.candidate(), &share).map_err(errors::answer)?;
    m.set_share(Some(Arc::new(share)));
    Ok(true)
}

/// The same over SMB.
fn share_one_over_smb(admin: &Admin, m: &Mounted) -> Answer<bool> {
    if !smb::wanted(&m.ds).map_err(invalid_smb)? || m.is_smb_shared() {
        return Ok(false);
    }
    check_smb(admin)?;
    m.set_smb_shared(true);
    Ok(true)
}

/// The properties of these datasets, or of one above them, may have changed: what is mounted of them, and of what is below, is
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
    let mut shared = Vec::new();
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
        match done {
            Ok(_) => shared.push(m.clone()),
            Err(e) => {
                m.set_share(None);
                failed.get_or_insert((name.clone(), e));
            }
        }
        let done = match smb::wanted(&m.ds) {
            Ok(false) => {
                m.set_smb_shared(false);
                Ok(false)
            }
            _ => share_one_over_smb(admin, &m),
        };
        if let Err(e) = done {
            m.set_smb_shared(false);
            failed.get_or_insert((name, e));
        }
    }
    let told = tell(admin);
    let not_taken = |m: &Arc<Mounted>| Some((m.ds.full_name(), taken(admin, m).err()?));
    let failed = failed.or_else(|| shared.iter().find_map(not_taken));
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
