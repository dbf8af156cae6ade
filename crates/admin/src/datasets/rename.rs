//! `zfs rename`: file systems, volumes, snapshots and bookmarks.

use crate::datasets::mount::Early;
use crate::datasets::rights::{self, Action};
use crate::datasets::{self, create, mount, set, Answer};
use crate::errors;
use crate::mounts::Mounted;
use crate::registry::{Admin, PoolEntry};
use crate::setters;
use api::{ApiError, Peer};
use base::mutation::{mutated, Mutation};
use base::{Kind, Result};
use disk::names::{self, Want};
use dmu::Tx;
use dsl::{Caller, Dataset, Dir};
use pool::Pool;
use std::sync::Arc;

/// How to rename.
#[derive(Clone, Copy, Debug, Default)]
pub struct How {
    /// Make missing parents of the new name (`-p`).
    pub parents: bool,
    /// Unmount by force (`-f`).
    pub force: bool,
    /// Leave mounts where they are (`-u`).
    pub no_remount: bool,
    /// A snapshot: those of that name of all descendants too.
    pub recursive: bool,
}

/// `zfs rename`. What could not be mounted again under the new name is told, in words; it is no failure, as in OpenZFS.
pub fn rename(
    admin: &Arc<Admin>,
    peer: Peer,
    from: &str,
    to: &str,
    how: How,
    command: String,
) -> Answer<Option<String>> {
    let entry = datasets::entry_of(admin, from)?;
    if how.force && rights::is_owner(admin, peer) {
        datasets::end_streams(&entry, from);
    }
    let mut early = match how.no_remount || from == to || from.contains('@') {
        true => Early::none(admin, &entry),
        false => Early::take_down(admin, &entry, how.force, || {
            datasets::need_writable(&entry)?;
            let ds = datasets::find(&entry, from)?;
            check_names(from, to)?;
            rights::require(admin, &entry, peer, Action::Rename, &ds)?;
            let mounts = check(admin, &entry, peer, &ds, (from, to), how)?.mounts;
            match mount::may_take_down(admin, &entry, peer, &mounts) {
                true => Ok(mounts),
                false => Ok(Vec::new()),
            }
        })?,
    };
    let gate = entry.pass_unless_cancelled().map_err(errors::answer)?;
    datasets::need_writable(&entry)?;
    let names = entry.names.write_unless_cancelled()?;
    // The source is looked for first.
    let ds = datasets::find(&entry, from)?;
    check_names(from, to)?;
    if from == to {
        return Ok(None);
    }
    let uid = u64::from(peer.uid);
    rights::require(admin, &entry, peer, Action::Rename, &ds)?;
    if let Some((fs, old)) = from.split_once('@') {
        let head = datasets::find(&entry, fs)?;
        rights::require(admin, &entry, peer, Action::CreateIn, &head)?;
        let (old, recursive) = ((fs, old), how.recursive);
        return snapshot(admin, &entry, peer, old, to, recursive, command).map(|()| None);
    }
    let Checked {
        dir,
        above,
        caller,
        parent,
        last,
        mounts,
    } = check(admin, &entry, peer, &ds, (from, to), how)?;
    let make_parents = create::make_parents(admin, &entry, peer, &above)?;
    let moves = mount::may_take_down(admin, &entry, peer, &mounts);
    let down = match moves {
        true => mount::take_down(admin, &entry, &mounts, how.force)?,
        // As with -u: what is another user's mount stays where it is.
        false => Vec::new(),
    };
    let down = early.with(down);
    let renamed = ds.clone();
    let done = entry.pool.task(move |pool: &Pool, tx: &Tx| -> Result<()> {
        make_parents(pool, tx)?;
        let to = pool.dir(&parent)?;
        pool.dsl().check_rename_limits(&dir, &to, &caller)?;
        pool.dsl().rename(tx, &dir, &to, &last)?;
        setters::note_content((pool, tx), &renamed, None, setters::user(&caller))?;
        pool.log_in(tx, &command, uid)
    });
    if let Err(e) = done {
        early.give_back(down);
        return Err(datasets::plain(e, from));
    }
    // Where it is now, others may have permissions; what stays mounted follows.
    set::refresh(&entry, std::slice::from_ref(&ds));
    drop((names, gate));
    set::tell_kernel(&entry, std::slice::from_ref(&ds));
    // Shares of Samba are named after datasets.
    admin.shares_will_change();
    let mut failed = Vec::new();
    if !moves {
        failed.push(format!(
            "what is mounted of '{to}' stays where it is: not all of it is yours to unmount"
        ));
    }
    // Each by itself: one that cannot be mounted does not keep the others from it.
    for name in &above.missing {
        if let Err(e) = mount::mount_made(admin, &entry, std::slice::from_ref(name), peer) {
            failed.push(e.to_string());
        }
    }
    let up = mount::put_up(admin, &entry, down, Vec::new(), peer);
    failed.extend(up.into_iter().map(|(_, e)| e.to_string()));
    Ok((!failed.is_empty()).then(|| failed.join("\n")))
}

/// What was found out of a file system or volume that can be renamed.
struct Checked {
    dir: Arc<Dir>,
    above: create::Above,
    caller: Caller,
    /// The new parent's name, and the new name in it.
    parent: String,
    last: String,
    /// All that is mounted moves, or at least gets another source in the table of mounts.
    mounts: Vec<Arc<Mounted>>,
}

/// Asks all that can refuse the renaming of a file system or volume, under the lock of names.
fn check(
    admin: &Admin,
    entry: &PoolEntry,
    peer: Peer,
    ds: &Arc<Dataset>,
    (from, to): (&str, &str),
    how: How,
) -> Answer<Checked> {
    if let Some(name) = datasets::received_below(entry, from) {
        return Err(ApiError::reason(
            Kind::Busy,
            format!("dataset is busy: a stream is being received into '{name}'"),
        ));
    }
    let dir = ds.dir();
    if dir.parent().is_none() {
        return Err(ApiError::reason(
            Kind::Invalid,
            "the root dataset is renamed with its pool: zpool export, then zpool import NAME NEWNAME",
        ));
    }
    if datasets::is_below(to, from) {
        let why = "New dataset name cannot be a descendant of current dataset name";
        return Err(cannot(to, Kind::Invalid, why));
    }
    let Some((parent, last)) = to.rsplit_once('/') else {
        return Err(ApiError::sentence(
            Kind::Invalid,
            format!("cannot create '{to}': missing dataset name"),
        ));
    };
    match entry.pool.dir(to) {
        Ok(_) => return Err(ApiError::reason(Kind::Exists, "dataset already exists")),
        Err(e) if e.kind == Kind::NotFound => {}
        Err(e) => return Err(datasets::plain(e, from)),
    }
    let above = create::above(entry, to, how.parents).map_err(|e| ApiError {
        message: e.sentence_for("create", to),
        whole: true,
        ..e
    })?;
    above.require(admin, entry, peer, &api::Props::default())?;
    let caller = rights::caller(admin, entry, peer)?;
    entry
        .pool
        .dsl()
        .check_rename_limits(&dir, &above.parent.dir(), &caller)
        .map_err(|e| datasets::plain(e, from))?;
    if above.missing.is_empty() {
        entry
            .pool
            .dsl()
            .check_rename(&dir, &above.parent.dir(), last)
            .map_err(|e| datasets::plain(e, from))?;
    }
    let mounts: Vec<_> = entry
        .all_mounts()
        .into_iter()
        .filter(|m| !how.no_remount && datasets::is_below(&m.ds.full_name(), from))
        .collect();
    Ok(Checked {
        dir,
        caller,
        parent: parent.to_string(),
        last: last.to_string(),
        mounts,
        above,
    })
}

fn cannot(to: &str, kind: Kind, why: &str) -> ApiError {
    ApiError::sentence(kind, format!("cannot rename to '{to}': {why}"))
}

/// Refuses a new name that cannot be one, or is that of something else.
fn check_names(from: &str, to: &str) -> Answer<()> {
    let want = match from.split_once('@') {
        Some((fs, _)) if to.split_once('@').is_some_and(|(other, _)| other != fs) => {
            let why = "snapshots must be part of same dataset";
            return Err(cannot(to, Kind::Invalid, why));
        }
        Some(_) => Want::Snapshot,
        None => Want::Filesystem,
    };
    names::check_new(to, want).map_err(|why| cannot(to, Kind::Invalid, &why))?;
    if datasets::pool_of(from) != datasets::pool_of(to) {
        let why = "datasets must be within same pool";
        return Err(cannot(to, Kind::CrossDevice, why));
    }
    Ok(())
}

/// All of them in one txg, or none. With `recursive` what is damaged is left out and named in an error.
fn snapshot(
    admin: &Admin,
    entry: &PoolEntry,
    peer: Peer,
    (fs, old): (&str, &str),
    to: &str,
    recursive: bool,
    command: String,
) -> Answer<()> {
    let (_, new) = to.split_once('@').unwrap_or((fs, to));
    let head = datasets::find(entry, fs)?;
    let plain = |e| datasets::plain(e, fs);
    let (heads, lost) = match recursive {
        true => {
            let probe = |head: &Arc<Dataset>| {
                head.snapshot_named(old)?;
                head.snapshot_named(new).map(|_| ())
            };
            datasets::sound_subtree(&head.dir(), &probe).map_err(plain)?
        }
        false => (vec![head], Vec::new()),
    };
    let mut list = Vec::new();
    for head in heads {
        let Some(snap) = head.snapshot_named(old).map_err(plain)? else {
            continue;
        };
        rights::require(admin, entry, peer, Action::Rename, &snap)?;
        rights::require(admin, entry, peer, Action::CreateIn, &head)?;
        let name = head.full_name();
        names::check_new(&format!("{name}@{new}"), Want::Snapshot)
            .map_err(|why| ApiError::reason(Kind::Invalid, format!("{name}@{new}: {why}")))?;
        if head.snapshot_named(new).map_err(plain)?.is_some() {
            return Err(ApiError::reason(
                Kind::Exists,
                format!("snapshot '{name}@{new}' already exists"),
            ));
        }
        list.push(head);
    }
    let from = format!("@{old}");
    let (old, new) = (old.to_string(), new.to_string());
    let uid = u64::from(peer.uid);
    entry
        .pool
        .task(move |pool, tx| {
            // Asked before anything changes: none is renamed where one cannot be.
            for head in &list {
                if head.snapshot_named(&new)?.is_some() {
                    return Err(Kind::Exists.into());
                }
            }
            let forgotten = usize::from(mutated(Mutation::RenameForgets));
            for head in &list[forgotten.min(list.len())..] {
                pool.dsl().rename_snapshot(tx, head, &old, &new)?;
            }
            pool.log_in(tx, &command, uid)
        })
        .map_err(plain)?;
    match lost.is_empty() {
        true => Ok(()),
        false => {
            let what = format!("a snapshot '{from}' of it, or of what is below it, keeps its name");
            let done = "the snapshots of everything else were renamed";
            Err(datasets::left_out(&lost, &what, done))
        }
    }
}
