//! Requests that look at datasets: the bytes of volumes, holds, space by owner, background activity.

use crate::datasets::rights;
use crate::datasets::{self, objsets, Answer};
use crate::errors;
use crate::registry::{Admin, PoolEntry};
use api::{Activity, Answer as Found, ApiError, DatasetKind, Hold, Peer, SpaceRow, Whose};
use base::sync::RwLockExt;
use base::{Kind, Result};
use dsl::Dataset;
use pool::Volume;
use std::collections::{BTreeMap, HashSet};
use std::io::Write;
use std::sync::Arc;
use zap::Zap;

/// Bytes of a volume read at a time.
const PIECE: u64 = 1 << 20;

/// `zfs read`: the bytes of a volume, or of a snapshot of one, in pieces as [`api::Request::VolumeRead`] says.
pub fn read_volume(
    admin: &Arc<Admin>,
    name: &str,
    offset: u64,
    length: Option<u64>,
    to: &mut dyn Write,
) -> Answer<()> {
    let entry = datasets::entry_of(admin, name)?;
    let gate = entry.pass().map_err(errors::answer)?;
    let ds = datasets::find(&entry, name)?;
    if !entry
        .objset_type(&ds)
        .is_ok_and(|t| t == disk::os_type::ZVOL)
    {
        return Err(ApiError::reason(
            Kind::Invalid,
            "operation not applicable to datasets of this type",
        ));
    }
    let volume = objsets::look_into_pool(&entry.pool, &ds).and_then(Volume::new);
    let volume = volume.map_err(|e| datasets::plain(e, name))?;
    let from = offset.min(volume.size());
    let end = length.map_or(volume.size(), |l| from.saturating_add(l).min(volume.size()));
    drop(gate);
    let r = copy(&entry, &volume, from, end, to);
    r.map_err(|e| datasets::plain(e, name))
}

/// Whoever is to take the bytes may take his time: the pool is held for reading only.
fn copy(entry: &PoolEntry, volume: &Volume, from: u64, end: u64, to: &mut dyn Write) -> Result<()> {
    let (mut at, mut hole) = (from, 0);
    let mut piece = Vec::new();
    while at < end {
        if crate::cancel::is_cancelled() {
            return Err(Kind::Interrupted.into());
        }
        let gate = entry.pass()?;
        let data = volume.seek(at, true)?.unwrap_or(end).min(end);
        if data > at {
            hole += data - at;
            at = data;
            continue;
        }
        let next = volume.seek(at, false)?.unwrap_or(end).min(end);
        let n = next.saturating_sub(at).clamp(1, PIECE);
        piece.clear();
        piece.extend_from_slice(&hole.to_le_bytes());
        piece.extend_from_slice(&n.to_le_bytes());
        let put = &mut |b: &base::Block, r: std::ops::Range<usize>| piece.extend_from_slice(&b[r]);
        volume.read(at, n as usize, put)?;
        drop(gate);
        to.write_all(&piece)?;
        at += n;
        hole = 0;
    }
    to.write_all(&hole.to_le_bytes())?;
    to.write_all(&0u64.to_le_bytes())?;
    Ok(())
}

/// Holds sent at a time.
const CHUNK: usize = 1024;

/// `zfs holds`: those of each snapshot once, however often it is named. Of a long answer, parts are handed to `take` on the
/// way; the rest is returned.
pub fn holds(
    admin: &Arc<Admin>,
    names: &[String],
    recursive: bool,
    take: &mut dyn FnMut(Found<Hold>) -> Answer<()>,
) -> Answer<Found<Hold>> {
    let mut names = names.to_vec();
    datasets::once(&mut names);
    let mut out = Found::default();
    let mut seen = HashSet::new();
    for name in &names {
        if let Err(e) = holds_of(admin, name, recursive, &mut seen, &mut out.found) {
            out.failed.push((name.clone(), e));
        }
        if out.found.len() + out.failed.len() >= CHUNK {
            take(std::mem::take(&mut out))?;
        }
    }
    Ok(out)
}

/// `seen`: objects of the snapshots that were looked at, by pool.
fn holds_of(
    admin: &Arc<Admin>,
    name: &str,
    recursive: bool,
    seen: &mut HashSet<(u64, u64)>,
    out: &mut Vec<Hold>,
) -> Answer<()> {
    let (fs, snap) = name
        .split_once('@')
        .ok_or_else(|| ApiError::reason(Kind::Invalid, "missing '@' delimiter in snapshot name"))?;
    let entry = datasets::entry_of(admin, name)?;
    let _gate = entry.gate.acquire_read();
    let head = datasets::find(&entry, fs)?;
    let (heads, lost) = match recursive {
        true => {
            let probe = |head: &Arc<Dataset>| match head.snapshot_named(snap)? {
                Some(ds) => ds.hold_list().map(|_| ()),
                None => Ok(()),
            };
            datasets::sound_subtree(&head.dir(), &probe).map_err(|e| datasets::plain(e, name))?
        }
        false => (vec![head], Vec::new()),
    };
    let mut any = false;
    for head in heads {
        let list = (|| -> Result<Vec<Hold>> {
            let Some(ds) = head.snapshot_named(snap)? else {
                return Ok(Vec::new());
            };
            any = true;
            if !seen.insert((entry.pool.guid(), ds.object())) {
                return Ok(Vec::new());
            }
            let full = ds.full_name();
            Ok(ds
                .hold_list()?
                .into_iter()
                .map(|(tag, time)| Hold {
                    snapshot: full.clone(),
                    tag,
                    time,
                })
                .collect())
        })();
        out.extend(list.map_err(|e| datasets::plain(e, name))?);
    }
    match any {
        _ if !lost.is_empty() => {
            let what = "holds of its snapshots, or of those below it, are not listed";
            let done = "the holds of everything else are listed";
            Err(datasets::left_out(&lost, what, done))
        }
        true => Ok(()),
        false => Err(ApiError::no_such_dataset(name)),
    }
}

/// What goes on in a file system in the background (`zfs wait`).
pub fn activity(admin: &Arc<Admin>, name: &str) -> Answer<Vec<Activity>> {
    let entry = datasets::entry_of(admin, name)?;
    let _gate = entry.gate.acquire_read();
    let ds = datasets::find(&entry, name)?;
    if datasets::kind_of(&entry, &ds) != DatasetKind::Filesystem {
        return Err(ApiError::reason(
            Kind::Invalid,
            "operation not applicable to datasets of this type",
        ));
    }
    let unlinked = match entry.mounted(ds.object()) {
        Some(m) => {
            let inside = m.enter();
            let count = match inside.zfs.is_read_only() {
                true => Ok(0),
                false => inside.zfs.unlinked_count(),
            };
            count.map_err(|e| datasets::plain(e, name))?
        }
        None => 0,
    };
    Ok(vec![Activity {
        name: "deleteq".into(),
        running: unlinked > 0,
        remaining: unlinked,
    }])
}

/// The permission to see what others occupy and may.
fn used_permission(who: Whose) -> &'static str {
    match who {
        Whose::User => "userused",
        Whose::Group => "groupused",
        Whose::Project => "projectused",
    }
}

/// `zfs userspace` and its relatives.
pub fn space(admin: &Arc<Admin>, peer: Peer, name: &str, who: &[Whose]) -> Answer<Vec<SpaceRow>> {
    let entry = datasets::entry_of(admin, name)?;
    let _gate = entry.gate.acquire_read();
    let ds = datasets::find(&entry, name)?;
    let of_files = match datasets::kind_of(&entry, &ds) {
        DatasetKind::Filesystem => true,
        _ => {
            ds.is_snapshot()
                && entry
                    .objset_type(&ds)
                    .is_ok_and(|t| t != disk::os_type::ZVOL)
        }
    };
    if !of_files {
        return Err(ApiError::reason(
            Kind::Invalid,
            "operation not applicable to datasets of this type",
        ));
    }
    let mut who = who.to_vec();
    datasets::once(&mut who);
    for w in &who {
        rights::require_named(admin, &entry, peer, used_permission(*w), &ds)?;
    }
    let mut out = Vec::new();
    for w in &who {
        out.extend(space_of(&entry, &ds, *w).map_err(|e| datasets::plain(e, name))?);
    }
    Ok(out)
}

fn space_of(entry: &PoolEntry, ds: &Arc<Dataset>, who: Whose) -> Result<Vec<SpaceRow>> {
    let os = objsets::look_into(entry, ds)?;
    let (object, i) = match who {
        Whose::User => (dmu::USERUSED_OBJECT, 0),
        Whose::Group => (dmu::GROUPUSED_OBJECT, 1),
        Whose::Project => (dmu::PROJECTUSED_OBJECT, 2),
    };
    let counted = os.os_flags() & disk::objset::USEROBJACCT_COMPLETE != 0;
    let mut rows: BTreeMap<u64, SpaceRow> = BTreeMap::new();
    let mut row = |id: u64, f: &dyn Fn(&mut SpaceRow)| {
        f(rows.entry(id).or_insert_with(|| SpaceRow {
            who,
            id,
            used: 0,
            quota: 0,
            objects: counted.then_some(0),
            object_quota: 0,
        }));
    };
    let each = |object: u64, f: &mut dyn FnMut(&str, u64)| -> Result<()> {
        let dn = match os.hold(object) {
            Ok(dn) => dn,
            Err(e) if e.kind == Kind::NotFound => return Ok(()),
            Err(e) => return Err(e),
        };
        for e in Zap::new(&dn).iter() {
            let e = e?;
            f(&e.text(), e.value.to_u64()?);
        }
        Ok(())
    };
    let hex = |key: &str| u64::from_str_radix(key, 16).ok();
    each(object, &mut |key, n| match key.strip_prefix("obj-") {
        Some(id) => {
            if let Some(id) = hex(id) {
                row(id, &|r| r.objects = Some(n));
            }
        }
        None => {
            if let Some(id) = hex(key) {
                row(id, &|r| r.used = n);
            }
        }
    })?;
    let master = os.hold(zpl::MASTER_NODE)?;
    for (index, objects) in [(i, false), (i + 3, true)] {
        let Some(map) = Zap::new(&master).get(zpl::QUOTA_NAMES[index])? else {
            continue;
        };
        each(map, &mut |key, n| {
            if let Some(id) = hex(key) {
                row(id, &|r| match objects {
                    true => r.object_quota = n,
                    false => r.quota = n,
                });
            }
        })?;
    }
    Ok(rows.into_values().collect())
}
