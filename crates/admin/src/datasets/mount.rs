//! `zfs mount` and `unmount`, and unmounting for operations that change a mounted dataset.

use crate::datasets::rights::{self, Action};
use crate::datasets::share::Unshared;
use crate::datasets::{self, Answer};
use crate::door::Mounting;
use crate::mounts::Mounted;
use crate::registry::{Admin, PoolEntry};
use crate::{errors, mounts, parallel, values};
use api::{ApiError, Batch, DatasetKind, MountEntry, Peer, Progress};
use base::sync::RwLockExt;
use base::{Error, Kind, Result};
use dsl::Dataset;
use std::path::Path;
use std::sync::Arc;

/// Every mounted file system, ordered by name.
pub fn list(admin: &Admin) -> Vec<MountEntry> {
    let mut all: Vec<(Vec<String>, MountEntry)> = Vec::new();
    for entry in admin.pools() {
        for m in entry.all_mounts() {
            if !m.is_in_place() {
                continue;
            }
            let dataset = m.ds.full_name();
            let key = dataset.split('/').map(str::to_string).collect();
            let mountpoint = m.path.to_string_lossy().into_owned();
            all.push((
                key,
                MountEntry {
                    dataset,
                    mountpoint,
                },
            ));
        }
    }
    all.sort_by(|a, b| a.0.cmp(&b.0));
    all.into_iter().map(|(_, m)| m).collect()
}

fn is_in_place(entry: &PoolEntry, ds: &Dataset) -> bool {
    entry.mounted(ds.object()).is_some_and(|m| m.is_in_place())
}

/// Overrides for a mount: what holds for all mounts of the pool, then the options given. Those of an ordinary user (`user`) do
/// not go before the former.
fn temporary(
    entry: &PoolEntry,
    options: &[String],
    user: Option<u32>,
) -> Answer<Vec<(String, String)>> {
    let of_pool = values::options(&entry.mount_options).map_err(errors::answer)?;
    let given = values::options(options).map_err(errors::answer)?;
    Ok(match user {
        None => [of_pool, given].concat(),
        Some(_) => [given, of_pool].concat(),
    })
}

/// Refuses mount options of an ordinary user that go before what the administrator has set, or give files more power than
/// the user has.
fn check_options(ds: &Dataset, options: &[String], user: Option<u32>) -> Answer<()> {
    if user.is_none() {
        return Ok(());
    }
    let given = values::options(options).map_err(errors::answer)?;
    let number = |name: &str| values::number(ds, name, &[]).map_err(errors::answer);
    for (name, value) in &given {
        let over = match (name.as_str(), value.as_str()) {
            ("setuid" | "devices", "on") | ("context", _) => true,
            ("readonly", "off") => number("readonly")? != 0,
            ("exec", "on") => number("exec")? == 0,
            _ => false,
        };
        if over {
            return Err(ApiError::reason(
                Kind::NotPermitted,
                format!("permission denied: only the administrator mounts it with {name}={value}"),
            ));
        }
    }
    Ok(())
}

/// Whether the options ask for a change of a mount that is there; and the others.
fn remounts(options: &[String]) -> (bool, Vec<String>) {
    let all = || options.iter().flat_map(|l| l.split(','));
    let others = all().filter(|o| *o != "remount");
    (
        all().any(|o| o == "remount"),
        others.map(str::to_string).collect(),
    )
}

/// `zfs mount -o remount,…`: the options given take the place of those of the mount.
fn remount(entry: &PoolEntry, m: &Mounted, options: &[String], user: Option<u32>) -> Answer<()> {
    check_options(&m.ds, options, user)?;
    let mut temporary = temporary(entry, options, user)?;
    if user.is_some() && m.user.is_none() {
        // What the administrator has mounted keeps these options.
        temporary.extend(m.temporary());
    }
    mounts::restrict(&mut temporary, user);
    m.change(&entry.pool, temporary).map_err(|e| match e.kind {
        Kind::Busy => ApiError::reason(Kind::Busy, "mountpoint or dataset is busy")
            .hint("files on it are open for writing, or another mount covers it"),
        _ => errors::answer(e),
    })
}

/// `zfs mount NAME [DIRECTORY]`. `force`: even if blocks of it are missing since it was received from a redacted stream.
pub fn mount(
    admin: &Arc<Admin>,
    peer: Peer,
    dataset: &str,
    options: &[String],
    overlay: bool,
    force: bool,
    directory: Option<&str>,
) -> Answer<()> {
    let entry = datasets::entry_of(admin, dataset)?;
    reach(admin, &entry, dataset, directory, peer)?;
    let _gate = entry.gate.acquire_read();
    let _names = entry.names.write();
    let ds = datasets::find(&entry, dataset)?;
    rights::require(admin, &entry, peer, Action::Mount, &ds)?;
    let user = rights::mounting_user(admin, peer);
    let files = match datasets::kind_of(&entry, &ds) {
        DatasetKind::Filesystem => true,
        // A snapshot of a volume has no files.
        DatasetKind::Snapshot => entry
            .objset_type(&ds)
            .is_ok_and(|t| t != disk::os_type::ZVOL),
        _ => false,
    };
    if !files {
        return Err(ApiError::reason(
            Kind::Invalid,
            "operation not applicable to datasets of this type",
        ));
    }
    let there = entry.mounted(ds.object()).filter(|m| m.is_in_place());
    if let (true, options) = remounts(options) {
        return match there {
            Some(m) if directory.is_none_or(|d| Path::new(d) == m.path) => {
                may_move(&m, user)?;
                if ds.is_snapshot() && options.iter().any(|o| o == "rw") {
                    return Err(ApiError::reason(Kind::ReadOnly, "a snapshot is read-only"));
                }
                remount(&entry, &m, &options, user)
            }
            Some(m) => Err(ApiError::reason(
                Kind::Invalid,
                format!("it is mounted at {}", m.path.display()),
            )),
            None => Err(ApiError::reason(Kind::Invalid, "not currently mounted")),
        };
    }
    check_options(&ds, options, user)?;
    let temporary = temporary(&entry, options, user)?;
    if there.is_some() {
        return Err(ApiError::reason(Kind::Busy, "filesystem already mounted"));
    }
    if !force && !ds.is_snapshot() && values::is_redacted(&ds) {
        return Err(ApiError::reason(
            Kind::Invalid,
            "Dataset is not complete, was created by receiving a redacted zfs send stream.",
        ));
    }
    if let Some(directory) = directory {
        let place = Path::new(directory);
        return mounts::mount(Mounting {
            admin,
            entry: &entry,
            ds: &ds,
            path: place,
            root: None,
            temporary,
            overlay,
            user,
            place_of: None,
            chosen_by: user,
            still: None,
        })
        .map_err(errors::answer);
    }
    if ds.is_snapshot() {
        let place = ds.dir().head().ok().and_then(|h| entry.mounted(h.object()));
        let hint = match (place, dataset.split_once('@')) {
            (Some(m), Some((_, snap))) => {
                format!(
                    "it can be seen at {}/.zfs/snapshot/{snap}",
                    m.path.display()
                )
            }
            _ => "its file system is not mounted".to_string(),
        };
        return Err(
            ApiError::reason(Kind::Invalid, "a snapshot has no mount point of its own").hint(
                format!("{hint}; use 'zfs mount {dataset} DIRECTORY' to mount it elsewhere"),
            ),
        );
    }
    let (place, _) = admin
        .effective_mountpoint(&entry, &ds)
        .map_err(errors::answer)?;
    let hint = format!("use 'zfs set mountpoint=PATH {dataset}' to give it a mount point");
    match place.as_str() {
        "legacy" => {
            return Err(ApiError::reason(Kind::Invalid, "legacy mountpoint").hint(hint));
        }
        "none" => {
            return Err(ApiError::reason(Kind::Invalid, "no mountpoint set").hint(hint));
        }
        _ => {}
    }
    if values::number(&ds, "canmount", &[]).map_err(errors::answer)? == 0 {
        return Err(ApiError::reason(
            Kind::Invalid,
            "'canmount' property is set to 'off'",
        ));
    }
    admin
        .mount_default(&entry, &ds, temporary, overlay, user)
        .map_err(errors::answer)?;
    Ok(())
}

/// Walks to where a file system is to be mounted, for a caller who may mount it, with no lock held meanwhile. What else is
/// wrong is told by whoever mounts.
fn reach(
    admin: &Arc<Admin>,
    entry: &Arc<PoolEntry>,
    name: &str,
    directory: Option<&str>,
    peer: Peer,
) -> Answer<()> {
    let found = {
        let _gate = entry.gate.acquire_read();
        datasets::find_anyway(entry, name)
            .ok()
            .filter(|ds| rights::require(admin, entry, peer, Action::Mount, ds).is_ok())
    };
    let Some(ds) = found else { return Ok(()) };
    let place = match directory {
        Some(directory) => Some(directory.into()),
        None => admin.mountpoint(entry, &ds).ok().flatten().map(|p| p.path),
    };
    let user = rights::mounting_user(admin, peer);
    let root = entry.altroot.as_deref().filter(|_| directory.is_none());
    match place {
        Some(place) => admin.door.reach(&place, root, user).map_err(|e| {
            ApiError::sentence(e.kind, format!("cannot mount '{name}': {e}"))
                .hint("mount it when that answers again, or give it another mountpoint")
        }),
        None => Ok(()),
    }
}

/// Mounts file systems just made, in this order, up to the first that cannot be. No lock of the pool may be held.
pub fn mount_made(
    admin: &Arc<Admin>,
    entry: &Arc<PoolEntry>,
    names: &[String],
    peer: Peer,
) -> Answer<()> {
    for name in names {
        reach(admin, entry, name, None, peer)?;
        let _gate = entry.pass().map_err(errors::answer)?;
        let _names = entry.names.write();
        let ds = datasets::find_anyway(entry, name)?;
        // Somebody else may have been faster.
        if !is_in_place(entry, &ds) {
            mount_new(admin, entry, &ds, peer)?;
        }
    }
    Ok(())
}

/// Mounts a file system just made, if it is to be mounted.
pub fn mount_new(
    admin: &Arc<Admin>,
    entry: &Arc<PoolEntry>,
    ds: &Arc<Dataset>,
    peer: Peer,
) -> Answer<()> {
    if !values::mountable(ds).map_err(errors::answer)? {
        return Ok(());
    }
    let user = rights::mounting_user(admin, peer);
    let temporary = temporary(entry, &[], user)?;
    admin
        .mount_default(entry, ds, temporary, false, user)
        .map_err(errors::answer)?;
    Ok(())
}

/// Whether a user may take a mount away, or change it: only where the directory is this user's.
fn may_move(m: &Mounted, user: Option<u32>) -> Answer<()> {
    match user {
        Some(uid) if m.mount.place_owner() != Some(uid) => Err(ApiError::reason(
            Kind::NotPermitted,
            format!(
                "permission denied: the directory {} is not yours",
                m.path.display()
            ),
        )),
        _ => Ok(()),
    }
}

/// `zfs mount -a` and `-R`: everything that is to be mounted and is not, parents first. An ordinary user's
/// is what this user may mount.
pub fn mount_all(
    admin: &Arc<Admin>,
    peer: Peer,
    root: Option<&str>,
    options: &[String],
    overlay: bool,
    force: bool,
    progress: &mut dyn FnMut(Progress),
) -> Answer<Batch> {
    let entries = match root {
        Some(name) => vec![datasets::entry_of(admin, name)?],
        None => admin.pools(),
    };
    if let (true, options) = remounts(options) {
        return remount_all(admin, peer, &entries, root, &options);
    }
    values::options(options).map_err(errors::answer)?;
    let user = rights::mounting_user(admin, peer);
    let may = |entry: &PoolEntry, ds: &Dataset| {
        rights::require(admin, entry, peer, Action::Mount, ds).is_ok()
    };
    let mut batch = Batch::default();
    let mut todo = Vec::new();
    for entry in &entries {
        let gate = entry.gate.acquire_read();
        let top = match root {
            Some(name) => datasets::find(entry, name)?.dir(),
            None => entry.pool.root_dir().map_err(errors::answer)?,
        };
        let eligible = |ds: &Arc<Dataset>| -> Result<Option<std::path::PathBuf>> {
            if is_in_place(entry, ds)
                || !may(entry, ds)
                || !(values::mountable(ds)? || force && values::mountable_by_force(ds)?)
                || datasets::kind_of(entry, ds) != DatasetKind::Filesystem
            {
                return Ok(None);
            }
            Ok(admin.mountpoint(entry, ds)?.map(|p| p.path))
        };
        let (all, lost) = datasets::subtree_past(&top);
        for ds in all {
            match eligible(&ds) {
                Ok(Some(path)) => todo.push((path, entry.clone(), ds)),
                Ok(None) => {}
                Err(e) => batch.failed.push((ds.full_name(), errors::answer(e))),
            }
        }
        let lost = lost.into_iter().map(|(name, e)| (name, errors::answer(e)));
        batch.failed.extend(lost);
        drop(gate);
    }
    todo.sort_by(|a, b| a.0.cmp(&b.0));
    let total = todo.len() as u64;
    let missing = parallel::Missing::default();
    for (done, (path, entry, ds)) in todo.into_iter().enumerate() {
        if crate::cancel::is_cancelled() {
            break;
        }
        let temporary =
            check_options(&ds, options, user).and_then(|()| temporary(&entry, options, user));
        let reached = reach(admin, &entry, &ds.full_name(), None, peer);
        let one = || {
            let place = (path.as_path(), &missing);
            mount_one(admin, &entry, &ds, place, temporary, overlay, user, &may)
        };
        match reached.and_then(|()| one()) {
            Ok(true) => batch.done.push(ds.full_name()),
            Ok(false) => {}
            Err(e) => batch.failed.push((ds.full_name(), e)),
        }
        // No lock is held: the caller may take its time.
        progress(Progress {
            what: "Mounting ZFS filesystems".into(),
            done: done as u64 + 1,
            total,
        });
    }
    Ok(batch)
}

/// One of many to be mounted; whether it is still to be mounted.
fn mount_one(
    admin: &Arc<Admin>,
    entry: &Arc<PoolEntry>,
    ds: &Arc<Dataset>,
    (path, missing): (&Path, &parallel::Missing),
    temporary: Answer<Vec<(String, String)>>,
    overlay: bool,
    user: Option<u32>,
    may: &dyn Fn(&PoolEntry, &Dataset) -> bool,
) -> Answer<bool> {
    let _gate = entry.gate.acquire_read();
    let _names = entry.names.write();
    // It may have been destroyed, or mounted by somebody else, in between.
    if !is_there(entry, ds).map_err(errors::answer)? || is_in_place(entry, ds) || !may(entry, ds) {
        return Ok(false);
    }
    let temporary = temporary?;
    let done = missing
        .must_not_be_above(path)
        .and_then(|()| admin.mount_default(entry, ds, temporary, overlay, user))
        .inspect_err(|e| missing.note(path, ds.full_name(), e));
    done.map(|_| true).map_err(errors::answer)
}

/// `zfs mount -a -o remount,…`: everything that is mounted.
fn remount_all(
    admin: &Admin,
    peer: Peer,
    entries: &[Arc<PoolEntry>],
    root: Option<&str>,
    options: &[String],
) -> Answer<Batch> {
    values::options(options).map_err(errors::answer)?;
    let mut batch = Batch::default();
    for entry in entries {
        let _gate = entry.gate.acquire_read();
        let _names = entry.names.write();
        for m in entry.all_mounts() {
            let name = m.ds.full_name();
            if root.is_some_and(|r| !datasets::is_below(&name, r)) {
                continue;
            }
            let user = rights::mounting_user(admin, peer);
            let may = rights::require(admin, entry, peer, Action::Mount, &m.ds);
            if may.and_then(|()| may_move(&m, user)).is_err() {
                continue;
            }
            match remount(entry, &m, options, user) {
                Ok(()) => batch.done.push(name),
                Err(e) => batch.failed.push((name, e)),
            }
        }
    }
    Ok(batch)
}

/// Refuses the name of a file system whose mount point is `legacy`: who mounts with mount(8) unmounts with umount(8), which
/// ordinary users cannot, so that they are not refused. Its place is not refused: `zfs mount NAME DIRECTORY` may have put it there.
///
/// # Errors
/// `Kind::Invalid` with what to do; a name that does not exist is no error here.
pub fn refuse_legacy(admin: &Admin, peer: Peer, target: &str) -> Answer<()> {
    if peer.uid != 0 || target.starts_with('/') {
        return Ok(());
    }
    let Ok(entry) = datasets::entry_of(admin, target) else {
        return Ok(());
    };
    let Ok(ds) = datasets::find(&entry, target) else {
        return Ok(());
    };
    let place = admin.effective_mountpoint(&entry, &ds);
    match place.is_ok_and(|(place, _)| place == "legacy") {
        true => Err(ApiError::reason(Kind::Invalid, "legacy mountpoint")
            .hint("use umount(8) to unmount this filesystem")),
        false => Ok(()),
    }
}

/// `zfs unmount`: a file system and those below it that inherit its mount point. Returns what is lost, in
/// words, if it is by force. The directories stay, as in OpenZFS: they go when a mount point is given up (destroyed, renamed, set to
/// something else), or the pool is exported.
pub fn unmount(
    admin: &Arc<Admin>,
    peer: Peer,
    target: &str,
    force: bool,
) -> Answer<Option<String>> {
    let found = match target.starts_with('/') {
        true => at_path(admin, Path::new(target)),
        false => datasets::entry_of(admin, target)
            .and_then(|entry| Ok((datasets::find(&entry, target)?, entry)))
            .map(|(ds, entry)| (entry, ds)),
    };
    let served =
        |(entry, ds): &(Arc<PoolEntry>, Arc<Dataset>)| entry.mounted(ds.object()).is_some();
    let user = rights::mounting_user(admin, peer);
    if user.is_none() && !found.as_ref().is_ok_and(served) {
        // What a daemon that died left there; nobody else can take it away by that name.
        let is_target = |source: &str, place: &Path| match target.starts_with('/') {
            true => place == Path::new(target),
            false => source == target,
        };
        if admin.door.clear_dead(&is_target) > 0 {
            return Ok(None);
        }
    }
    let (entry, ds) = found?;
    if let Some(m) = entry.mounted(ds.object()).filter(|_| !force) {
        m.mount.reach().map_err(|e| {
            ApiError::sentence(
                e.kind,
                format!("cannot unmount '{}': {e}", m.path.display()),
            )
        })?;
    }
    let _gate = entry.gate.acquire_read();
    // What is left to write would be waited for, with names locked.
    crate::suspended::not_suspended(&entry)?;
    let _names = entry.names.write();
    crate::cancel::check()?;
    let Some(top) = entry.mounted(ds.object()) else {
        return Err(ApiError::reason(Kind::Invalid, "not currently mounted"));
    };
    let name = ds.full_name();
    let all: Vec<Arc<Mounted>> = entry
        .all_mounts()
        .into_iter()
        .filter(|m| {
            let below = m.path.starts_with(&top.path)
                && datasets::is_below(&m.ds.full_name(), &name)
                && inherits_place(&m.ds, &name);
            m.object == top.object || below
        })
        .collect();
    rights::require_all(
        admin,
        &entry,
        peer,
        Action::Mount,
        all.iter().map(|m| &*m.ds),
    )?;
    all.iter().try_for_each(|m| may_move(m, user))?;
    let mut left = Vec::new();
    let down = take(admin, &entry, &all, |m| {
        left.extend(m.mount.leave(force)?);
        Ok(())
    })?;
    left.extend(crate::mounts::unwritten(&down));
    Ok((!left.is_empty()).then(|| left.join("\n")))
}

/// Whether a file system's mount point follows from that of `from` or of one above it.
fn inherits_place(ds: &Arc<Dataset>, from: &str) -> bool {
    match ds.prop("mountpoint", true) {
        Ok(Some((_, dsl::PropSource::Inherited(source)))) => datasets::is_below(from, &source),
        Ok(None) => true,
        _ => false,
    }
}

fn at_path(admin: &Admin, path: &Path) -> Answer<(Arc<PoolEntry>, Arc<Dataset>)> {
    // Of several at one place the newest is the one that is seen.
    for entry in admin.pools() {
        if let Some(m) = entry
            .all_mounts()
            .into_iter()
            .rev()
            .find(|m| m.path == path)
        {
            return Ok((entry, m.ds.clone()));
        }
    }
    Err(ApiError::reason(Kind::Invalid, "not a mountpoint"))
}

/// Whether `zfs unmount -a` leaves a mount alone, as OpenZFS does: one with `canmount=noauto`, which `zfs mount -a` would not bring
/// back; and what root mounts with mount(8) and unmounts with umount(8), legacy file systems and snapshots.
fn stays_mounted(admin: &Admin, entry: &PoolEntry, m: &Mounted, user: Option<u32>) -> Result<bool> {
    const NOAUTO: u64 = 2;
    if m.ds.is_snapshot() {
        return Ok(user.is_none());
    }
    if values::number(&m.ds, "canmount", &[])? == NOAUTO {
        return Ok(true);
    }
    let (place, _) = admin.effective_mountpoint(entry, &m.ds)?;
    Ok(user.is_none() && place == "legacy")
}

/// `zfs unmount -a`; an ordinary user's are those this user may unmount.
pub fn unmount_all(admin: &Arc<Admin>, peer: Peer, force: bool) -> Batch {
    let user = rights::mounting_user(admin, peer);
    if user.is_none() {
        admin.door.clear_dead(&|_, _| true);
    }
    let mut batch = Batch::default();
    let mut todo = Vec::new();
    for entry in admin.pools() {
        todo.extend(entry.all_mounts().into_iter().map(|m| (entry.clone(), m)));
    }
    todo.sort_by_key(|(_, m)| std::cmp::Reverse(m.sequence));
    for (entry, m) in todo {
        let reached = match force {
            true => Ok(()),
            false => m.mount.reach(),
        };
        let _gate = entry.gate.acquire_read();
        // What is left to write would be waited for, with names locked.
        let suspended = crate::suspended::not_suspended(&entry);
        let _names = suspended.is_ok().then(|| entry.names.write());
        // Permissions and mounts change under that lock only.
        if !entry
            .mounted(m.object)
            .is_some_and(|now| Arc::ptr_eq(&now, &m))
        {
            continue;
        }
        let name = m.ds.full_name();
        let may = rights::require(admin, &entry, peer, Action::Mount, &m.ds);
        if may.and_then(|()| may_move(&m, user)).is_err() {
            continue;
        }
        // What cannot be told is unmounted.
        if stays_mounted(admin, &entry, &m, user).unwrap_or(false) {
            continue;
        }
        if let Err(e) = suspended {
            batch.failed.push((name, e));
            continue;
        }
        let leave = || {
            let _unshared = Unshared::before_unmounting(admin, std::slice::from_ref(&m));
            m.mount.leave(force)
        };
        match reached.and_then(|()| leave()) {
            Ok(left) => {
                if let Some(left) = left {
                    tracing::info!("{left}");
                }
                if let Some(lost) = m.mount.lost() {
                    let e = ApiError::sentence(Kind::Io, lost);
                    batch.failed.push((name.clone(), e));
                }
                batch.done.push(name);
            }
            Err(e) => batch.failed.push((name, errors::answer(e))),
        }
    }
    batch
}

// ---- moving ------------------------------------------------------------------------------------

/// Mounts that a change concerns.
#[derive(Default)]
pub struct Move {
    /// To be taken away before, in the order in which they were mounted.
    pub down: Vec<Arc<Mounted>>,
    /// Not mounted; to be mounted afterwards if they are to be mounted then.
    pub up: Vec<Arc<Dataset>>,
}

/// Whether a caller may unmount all of these, as `zfs unmount` would for this caller.
pub fn may_take_down(admin: &Admin, entry: &PoolEntry, peer: Peer, list: &[Arc<Mounted>]) -> bool {
    let user = rights::mounting_user(admin, peer);
    let may = |m: &Arc<Mounted>| {
        rights::require(admin, entry, peer, Action::Mount, &m.ds).and_then(|()| may_move(m, user))
    };
    user.is_none() || list.iter().all(|m| may(m).is_ok())
}

/// Mounts that a change has taken away before it took its locks. When this is dropped they are put back: the change failed.
/// To be declared before the locks, so that they are free by then.
pub struct Early<'a> {
    admin: &'a Arc<Admin>,
    entry: &'a Arc<PoolEntry>,
    down: Vec<Arc<Mounted>>,
}

impl<'a> Early<'a> {
    /// Nothing was taken away.
    pub fn none(admin: &'a Arc<Admin>, entry: &'a Arc<PoolEntry>) -> Early<'a> {
        Early {
            admin,
            entry,
            down: Vec::new(),
        }
    }

    /// Unmounts for a change, the youngest first, while no lock is held: a mount that is busy, or whose place does not answer,
    /// makes others wait for nothing. `choose` says which, under the locks: all that would refuse the change must have been
    /// asked. Directories nobody asked for are removed.
    ///
    /// Errors: what cannot be unmounted; nothing has changed then.
    pub fn take_down(
        admin: &'a Arc<Admin>,
        entry: &'a Arc<PoolEntry>,
        force: bool,
        choose: impl FnOnce() -> Answer<Vec<Arc<Mounted>>>,
    ) -> Answer<Early<'a>> {
        let mut early = Early::none(admin, entry);
        let mut todo = {
            let _gate = entry.pass_unless_cancelled().map_err(errors::answer)?;
            let _names = entry.names.read_unless_cancelled()?;
            // What refuses the change is told by whoever makes it.
            choose().unwrap_or_default()
        };
        todo.sort_by_key(|m| m.sequence);
        let _unshared = Unshared::before_unmounting(admin, &todo);
        for m in todo.into_iter().rev() {
            let place = admin.mountpoint(entry, &m.ds);
            m.mount.unmount(force).map_err(errors::answer)?;
            early.down.push(m.clone());
            if place.is_ok_and(|p| p.is_some_and(|p| !p.local && p.path == m.path)) {
                admin.door.remove_dirs(vec![m.path.clone()]);
            }
        }
        Ok(early)
    }

    /// Takes them over, with those that were taken down since, in the order in which they were mounted. What somebody mounted
    /// again meanwhile is among the latter.
    pub fn with(&mut self, later: Vec<Arc<Mounted>>) -> Vec<Arc<Mounted>> {
        let mut all = std::mem::take(&mut self.down);
        all.retain(|m| later.iter().all(|l| l.object != m.object) && can_come_back(self.entry, m));
        all.extend(later);
        all.sort_by_key(|m| m.sequence);
        all
    }

    /// These are to be put back when this is dropped.
    pub fn give_back(&mut self, down: Vec<Arc<Mounted>>) {
        self.down = down;
    }

    /// Whether a dataset was mounted.
    pub fn has(&self, object: u64) -> bool {
        self.down.iter().any(|m| m.object == object)
    }
}

/// Whether a dataset that was found before the lock of names was taken has not been destroyed since. To mount or change one that
/// was would stop the pool.
///
/// Errors: those of looking it up.
pub fn is_there(entry: &PoolEntry, ds: &Dataset) -> Result<bool> {
    match entry.pool.dataset(&ds.full_name()) {
        Ok(here) => Ok(here.object() == ds.object()),
        Err(e) if e.kind == Kind::NotFound => Ok(false),
        Err(e) => Err(e),
    }
}

/// The same for a mount that is to be put back; what cannot be looked up stays unmounted, and the log says so.
fn can_come_back(entry: &PoolEntry, m: &Mounted) -> bool {
    is_there(entry, &m.ds).unwrap_or_else(|e| {
        tracing::error!("{} is not mounted again: {e}", m.path.display());
        false
    })
}

impl Drop for Early<'_> {
    fn drop(&mut self) {
        if self.down.is_empty() {
            return;
        }
        self.down.sort_by_key(|m| m.sequence);
        for why in put_back(self.admin, self.entry, &self.down) {
            tracing::error!("{why}");
        }
    }
}

/// Unmounts, the youngest first, for a change: directories nobody asked for are removed. If one
/// cannot be unmounted, those that were are put back.
pub fn take_down(
    admin: &Arc<Admin>,
    entry: &Arc<PoolEntry>,
    list: &[Arc<Mounted>],
    force: bool,
) -> Answer<Vec<Arc<Mounted>>> {
    take(admin, entry, list, |m| admin.unmount(entry, m, force))
}

fn take(
    admin: &Arc<Admin>,
    entry: &Arc<PoolEntry>,
    list: &[Arc<Mounted>],
    mut unmount: impl FnMut(&Arc<Mounted>) -> Result<()>,
) -> Answer<Vec<Arc<Mounted>>> {
    let mut down = Vec::new();
    let unshared = Unshared::before_unmounting(admin, list);
    for m in list.iter().rev() {
        if let Err(e) = unmount(m) {
            down.reverse();
            drop(unshared);
            restore(admin, entry, &down);
            return Err(errors::answer(e));
        }
        down.push(m.clone());
    }
    down.reverse();
    Ok(down)
}

/// Puts mounts back where they were, the change having failed.
pub fn restore(admin: &Arc<Admin>, entry: &Arc<PoolEntry>, down: &[Arc<Mounted>]) {
    for m in down {
        if let Err(e) = m.mount_again(admin, entry) {
            tracing::error!("{e}");
        }
    }
}

/// Puts mounts back where they were, as far as nobody has mounted or destroyed them since; returns what failed, in words. No lock
/// of the pool may be held: places that do not answer are waited for.
pub fn put_back(admin: &Arc<Admin>, entry: &Arc<PoolEntry>, down: &[Arc<Mounted>]) -> Vec<String> {
    let mut failed = Vec::new();
    for m in down {
        let reached = admin.door.reach(&m.path, m.root.as_deref(), m.user);
        // Where the pool has been exported there is nothing to be put back.
        let Ok(_gate) = entry.pass() else { break };
        let _names = entry.names.write();
        if is_in_place(entry, &m.ds) || !can_come_back(entry, m) {
            continue;
        }
        if let Err(e) = reached.and_then(|()| m.mount_again(admin, entry)) {
            failed.push(e.to_string());
        }
    }
    failed
}

/// Mounts after a change: what was mounted before, at its new place, and `up` if it is to be
/// mounted. Parents first. Returns what failed. No lock of the pool may be held: places that do not answer are waited for.
pub fn put_up(
    admin: &Arc<Admin>,
    entry: &Arc<PoolEntry>,
    down: Vec<Arc<Mounted>>,
    up: Vec<Arc<Dataset>>,
    peer: Peer,
) -> Vec<(String, Error)> {
    let user = rights::mounting_user(admin, peer);
    let mut failed = Vec::new();
    let mut todo = Vec::new();
    let options = values::options(&entry.mount_options).unwrap_or_default();
    // What was mounted for a user stays his mount, whoever makes the change; what an ordinary user's change has moved stays
    // the owner's, with its options.
    let old = down.iter().map(|m| {
        let options = match user {
            Some(_) => m.temporary(),
            None => options.clone(),
        };
        (m.ds.clone(), true, m.user, options)
    });
    let new = up.into_iter().map(|ds| (ds, false, user, options.clone()));
    for (ds, was, user, options) in old.chain(new) {
        match place_then(admin, entry, &ds, was) {
            Ok(Some(path)) => todo.push((path, ds, was, user, options)),
            Ok(None) => {}
            Err(e) => failed.push((ds.full_name(), e)),
        }
    }
    todo.sort_by(|a, b| a.0.cmp(&b.0));
    for (path, ds, was, user, options) in todo {
        let reached = admin.door.reach(&path, entry.altroot.as_deref(), user);
        let mounted = reached.and_then(|()| {
            let _gate = entry.pass()?;
            let _names = entry.names.write();
            // Somebody may have destroyed, mounted or changed it since.
            let still = is_there(entry, &ds)?
                && !is_in_place(entry, &ds)
                && place_then(admin, entry, &ds, was)?.is_some();
            match still {
                true => admin.mount_default(entry, &ds, options, false, user),
                false => Ok(false),
            }
        });
        if let Err(e) = mounted {
            failed.push((ds.full_name(), e));
        }
    }
    failed
}

/// Where a dataset is mounted after a change, if it is: one that `was` mounted comes back with `canmount=noauto`, too.
fn place_then(
    admin: &Admin,
    entry: &PoolEntry,
    ds: &Arc<Dataset>,
    was: bool,
) -> Result<Option<std::path::PathBuf>> {
    let can = values::number(ds, "canmount", &[])?;
    if can == 0 || (can != 1 && !was) {
        return Ok(None);
    }
    Ok(admin.mountpoint(entry, ds)?.map(|p| p.path))
}
