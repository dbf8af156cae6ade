//! Requests that look at datasets: the bytes of volumes, holds, delegated permissions, space by
//! owner.

use crate::datasets::{self, Answer};
use crate::ds_get;
use crate::errors;
use crate::service::{Entry, Service};
use crate::snapshots;
use api::{
    Answer as Found, ApiError, DatasetKind, Grant, Grantee, Hold, Peer, Permissions, SpaceRow,
    Whose,
};
use base::sync::RwLockExt;
use base::{Error, Kind, Result};
use control::Sink;
use dsl::{Dataset, Dir};
use fuse_zpl::Volume;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::FileTypeExt;
use std::sync::Arc;
use zap::Zap;

/// Bytes of a volume read at a time.
const PIECE: u64 = 1 << 20;

/// `zfs read`: the bytes of a volume, or of a snapshot of one, into the file that came along. In a
/// regular file holes stay holes.
pub fn read_volume(
    service: &Arc<Service>,
    name: &str,
    offset: u64,
    length: Option<u64>,
    out: &mut dyn Sink,
) -> Answer<()> {
    let entry = datasets::entry_of(service, name)?;
    let gate = entry.pass().map_err(errors::answer)?;
    let ds = datasets::find(&entry, name)?;
    if !datasets::objset_type(&entry, &ds).is_ok_and(|t| t == disk::os_type::ZVOL) {
        return Err(ApiError::reason(
            Kind::Invalid,
            "operation not applicable to datasets of this type",
        ));
    }
    let Some(fd) = out.take_fds().pop() else {
        return Err(ApiError::reason(Kind::BadHandle, "no file to write to"));
    };
    let volume = snapshots::open_volume(&entry.pool, &ds).map_err(|e| datasets::plain(e, name))?;
    let mut file = File::from(fd);
    let from = offset.min(volume.size);
    let end = length.map_or(volume.size, |l| from.saturating_add(l).min(volume.size));
    drop(gate);
    let r = copy(&entry, &volume, from, end, &mut file, &|| out.cancelled());
    r.map_err(|e| datasets::plain(e, name))
}

/// Whoever is to take the bytes may take his time: the pool is held for reading only.
fn copy(
    entry: &Entry,
    volume: &Volume,
    from: u64,
    end: u64,
    file: &mut File,
    cancelled: &dyn Fn() -> bool,
) -> Result<()> {
    let meta = file.metadata()?;
    let kind = meta.file_type();
    // Zeros may be left out where there is nothing yet. Standard output may be a file in which
    // something is already.
    let start = match kind.is_file() {
        true => file.stream_position()?,
        false => 0,
    };
    let sparse = kind.is_file() && start >= meta.len();
    let zeros = vec![0; PIECE as usize];
    let mut piece = Vec::new();
    let mut at = from;
    while at < end {
        if cancelled() {
            return Err(Kind::Interrupted.into());
        }
        let gate = entry.pass()?;
        let data = volume.seek(at, true)?.unwrap_or(end).min(end);
        if data > at {
            drop(gate);
            if sparse {
                file.seek(SeekFrom::Start(start + (data - from)))?;
            } else {
                let mut hole = data - at;
                while hole > 0 {
                    let n = hole.min(PIECE);
                    file.write_all(&zeros[..n as usize])?;
                    hole -= n;
                }
            }
            at = data;
            continue;
        }
        let hole = volume.seek(at, false)?.unwrap_or(end).min(end);
        let n = hole.saturating_sub(at).clamp(1, PIECE);
        piece.clear();
        volume.read(at, n as usize, &mut |b, r| piece.extend_from_slice(&b[r]))?;
        drop(gate);
        file.write_all(&piece)?;
        at += n;
    }
    if sparse && !kind.is_block_device() {
        file.set_len(start + (end - from))?;
    }
    Ok(())
}

/// `zfs holds`
pub fn holds(service: &Arc<Service>, names: &[String], recursive: bool) -> Answer<Found<Hold>> {
    let mut out = Found::default();
    for name in names {
        if let Err(e) = holds_of(service, name, recursive, &mut out.found) {
            out.failed.push((name.clone(), errors::finish(e)));
        }
    }
    Ok(out)
}

fn holds_of(
    service: &Arc<Service>,
    name: &str,
    recursive: bool,
    out: &mut Vec<Hold>,
) -> Answer<()> {
    let (fs, snap) = name
        .split_once('@')
        .ok_or_else(|| ApiError::reason(Kind::Invalid, "missing '@' delimiter in snapshot name"))?;
    let entry = datasets::entry_of(service, name)?;
    let _gate = entry.gate.acquire_read();
    let head = datasets::find(&entry, fs)?;
    let heads = match recursive {
        true => datasets::subtree(&head.dir()).map_err(|e| datasets::plain(e, name))?,
        false => vec![head],
    };
    let mut any = false;
    for head in heads {
        let list = (|| -> Result<Vec<Hold>> {
            let Some(ds) = head.snapshot_named(snap)? else {
                return Ok(Vec::new());
            };
            any = true;
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
        true => Ok(()),
        false => Err(ApiError::no_such_dataset(name)),
    }
}

/// What is delegated at a dataset and above it, the dataset first (data format §15).
pub fn permissions(service: &Arc<Service>, name: &str) -> Answer<Vec<Permissions>> {
    let entry = datasets::entry_of(service, name)?;
    let _gate = entry.gate.acquire_read();
    let ds = datasets::find(&entry, name)?;
    let found = permissions_along(&entry, &ds.dir());
    Ok(found.map_err(|e| datasets::plain(e, name))?.list)
}

/// Permissions at a dataset and above it.
struct Granted {
    /// The dataset first.
    list: Vec<Permissions>,
    dataset: String,
}

fn permissions_along(entry: &Entry, dir: &Arc<Dir>) -> Result<Granted> {
    let mut list = Vec::new();
    let mut at = Some(dir.clone());
    while let Some(dir) = at {
        list.extend(permissions_at(entry, &dir)?);
        at = dir.parent();
    }
    let dataset = dir.full_name();
    Ok(Granted { list, dataset })
}

/// The permission to see what others occupy and may.
fn used_permission(who: Whose) -> &'static str {
    match who {
        Whose::User => "userused",
        Whose::Group => "groupused",
        Whose::Project => "projectused",
    }
}

impl Granted {
    /// Whether somebody was given a permission at the dataset. Of his groups only the one he acts
    /// with counts: the kernel tells no others.
    fn is_granted(&self, peer: Peer, permission: &str) -> bool {
        let for_him = |g: &&Grant| match g.to {
            Grantee::User(id) => id == u64::from(peer.uid),
            Grantee::Group(id) => id == u64::from(peer.gid),
            Grantee::Everyone => true,
        };
        self.list.iter().any(|level| {
            let here = level.dataset == self.dataset;
            let part = if here {
                &level.local
            } else {
                &level.descendent
            };
            let grants = level.everywhere.iter().chain(part).filter(for_him);
            let mut names = grants.flat_map(|g| &g.permissions);
            names.any(|n| n == permission || self.set_has(n, permission, 0))
        })
    }

    /// Whether a set of permissions has one in it; sets may be in sets.
    fn set_has(&self, set: &str, permission: &str, depth: usize) -> bool {
        if !set.starts_with('@') || depth > 8 {
            return false;
        }
        let mut sets = self.list.iter().flat_map(|level| &level.sets);
        sets.any(|(name, members)| {
            name == set
                && members
                    .iter()
                    .any(|m| m == permission || self.set_has(m, permission, depth + 1))
        })
    }
}

fn permissions_at(entry: &Entry, dir: &Arc<Dir>) -> Result<Option<Permissions>> {
    let object = dir.phys().deleg_zapobj;
    if object == 0 {
        return Ok(None);
    }
    let mos = entry.pool.dsl.mos();
    let mut sets: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut create = BTreeSet::new();
    let mut grants: BTreeMap<(Grantee, char), BTreeSet<String>> = BTreeMap::new();
    for e in Zap::new(&mos.hold(object)?).iter() {
        let e = e?;
        let key = e.text();
        let mut chars = key.chars();
        let (Some(who), Some(scope), Some('$')) = (chars.next(), chars.next(), chars.next()) else {
            return Err(Error::damaged(format!("permission entry '{key}'")));
        };
        let id = chars.as_str();
        let mut names = BTreeSet::new();
        for p in Zap::new(&mos.hold(e.value.to_u64()?)?).iter() {
            names.insert(p?.text());
        }
        let number = || {
            id.parse::<u64>()
                .map_err(|_| Error::damaged(format!("permission entry '{key}'")))
        };
        let to = match who.to_ascii_lowercase() {
            's' => {
                sets.entry(id.to_string()).or_default().extend(names);
                continue;
            }
            'c' => {
                create.extend(names);
                continue;
            }
            'u' => Grantee::User(number()?),
            'g' => Grantee::Group(number()?),
            'e' => Grantee::Everyone,
            _ => return Err(Error::damaged(format!("permission entry '{key}'"))),
        };
        grants.entry((to, scope)).or_default().extend(names);
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
        let (l, d) = (take('l'), take('d'));
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

/// `zfs userspace` and its relatives.
pub fn space(
    service: &Arc<Service>,
    peer: Peer,
    name: &str,
    who: &[Whose],
) -> Answer<Vec<SpaceRow>> {
    let entry = datasets::entry_of(service, name)?;
    let _gate = entry.gate.acquire_read();
    let ds = datasets::find(&entry, name)?;
    let of_files = match datasets::kind_of(&entry, &ds) {
        DatasetKind::Filesystem => true,
        _ => {
            ds.is_snapshot()
                && datasets::objset_type(&entry, &ds).is_ok_and(|t| t != disk::os_type::ZVOL)
        }
    };
    if !of_files {
        return Err(ApiError::reason(
            Kind::Invalid,
            "operation not applicable to datasets of this type",
        ));
    }
    let own = rustix::process::geteuid().as_raw();
    if peer.uid != 0 && peer.uid != own {
        let granted = permissions_along(&entry, &ds.dir());
        let granted = granted.map_err(|e| datasets::plain(e, name))?;
        let may = |w: &Whose| granted.is_granted(peer, used_permission(*w));
        if !who.iter().all(may) {
            return Err(ApiError::reason(Kind::NotPermitted, "permission denied"));
        }
    }
    let mut out = Vec::new();
    for w in who {
        out.extend(space_of(&entry, &ds, *w).map_err(|e| datasets::plain(e, name))?);
    }
    Ok(out)
}

fn space_of(entry: &Entry, ds: &Arc<Dataset>, who: Whose) -> Result<Vec<SpaceRow>> {
    let os = ds_get::look_into(entry, ds)?;
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
