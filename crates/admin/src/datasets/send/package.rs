//! The list at the head of a package: file systems with their snapshots, properties and holds (data format §30.5).

use super::words::failure;
use crate::datasets::{self, Answer};
use crate::registry::PoolEntry;
use api::{ApiError, Send};
use base::{Kind, Result, Txg};
use disk::props::Class;
use disk::NvList;
use dsl::{Dataset, Dir, PropValue};
use std::sync::Arc;
use stream::{FileSystem, Package};

/// The list of a single snapshot with properties (`-p`, `-b`, `-h`).
pub fn of_one(snap: &Arc<Dataset>, r: &Send) -> Answer<Package> {
    let fail = |e| failure(&r.target, e);
    let head = snap.dir().head().map_err(fail)?;
    let to = snap.snap_name().map_err(fail)?.unwrap_or_default();
    // The base of an increment is not in it.
    of_tree(&[head], None, &to, r)
}

/// Whether a dataset is one of `-X`, or below one.
pub fn is_excluded(r: &Send, name: &str) -> bool {
    r.exclude.iter().any(|x| datasets::is_below(name, x))
}

/// The heads of `-R`, parents first. What lacks the snapshot is left out with a warning or refused. So is what is damaged, which
/// fails the command at its end: a receiver with `-F` destroys what the list of the stream does not name, and may have the last whole
/// copy of it.
pub fn tree(
    entry: &PoolEntry,
    top: &Arc<Dir>,
    r: &Send,
    to: &str,
    (warnings, failed): (&mut Vec<String>, &mut bool),
) -> Answer<Vec<Arc<Dataset>>> {
    let fail = |e| failure(&r.target, e);
    let probe = |head: &Arc<Dataset>| {
        head.snapshot_named(to)?;
        for e in head.snapshot_list()? {
            head.named_snapshot(&e)?;
        }
        props(head, r.backup).map(|_| ())
    };
    let (heads, lost) = datasets::sound_subtree(top, &probe).map_err(fail)?;
    if !lost.is_empty() && !r.skip_missing {
        let target = &r.target;
        let done = "'-s' sends the others. Do not receive that with '-F' where a copy of what is damaged is to be kept:\n\
                    what is not in the stream is destroyed there.";
        let what = format!("'{target}' cannot be sent recursively with it");
        return Err(datasets::left_out(&lost, &what, done));
    }
    *failed |= !lost.is_empty();
    warnings.extend(lost.iter().map(|(name, e)| {
        format!("WARNING: skipping dataset {name} and its children: it is damaged: {e}")
    }));
    let made = entry.pool.dataset(&r.target).map_err(fail)?.phys();
    let mut out = Vec::new();
    let mut left_out: Vec<String> = lost.into_iter().map(|(name, _)| name).collect();
    for head in heads {
        let name = head.dir().full_name();
        if left_out.iter().any(|x| datasets::is_below(&name, x)) {
            continue;
        }
        if head.snapshot_named(to).map_err(fail)?.is_some() {
            out.push(head);
            continue;
        }
        if is_excluded(r, &name) {
            continue;
        }
        let born = entry.pool.dataset(&name).map_err(fail)?.phys().creation_txg;
        if born > made.creation_txg {
            warnings.push(format!(
                "skipping dataset {name}: snapshot {to} does not exist"
            ));
        } else if r.skip_missing {
            warnings.push(format!(
                "WARNING: skipping dataset {name} and its children: snapshot {to} does not exist"
            ));
        } else {
            return Err(ApiError::sentence(
                Kind::NotFound,
                format!(
                    "cannot send {} recursively: snapshot {name}@{to} does not exist",
                    r.target
                ),
            ));
        }
        left_out.push(name);
    }
    Ok(out)
}

/// The list of file systems, those given.
pub fn of_tree(heads: &[Arc<Dataset>], from: Option<&str>, to: &str, r: &Send) -> Answer<Package> {
    let mut out = Package {
        from_snap: from.map(str::to_string),
        to_snap: Some(to.to_string()),
        not_recursive: !r.replicate,
        raw: r.raw,
        file_systems: Vec::new(),
    };
    for (i, head) in heads.iter().enumerate() {
        let name = head.dir().full_name();
        let encrypted = head.dir().is_encrypted().map_err(|e| failure(&name, e))?;
        if encrypted && !r.raw && !is_excluded(r, &name) {
            return Err(ApiError::sentence(
                Kind::Invalid,
                format!(
                    "cannot send {}: encrypted dataset {name} may not be sent with properties without the raw flag",
                    r.target
                ),
            ));
        }
        let parent = match i {
            0 => None,
            _ => head.dir().parent(),
        };
        let one = file_system(head, parent, (from, to), r);
        out.file_systems.push(one.map_err(|e| failure(&name, e))?);
    }
    Ok(out)
}

fn file_system(
    head: &Arc<Dataset>,
    parent: Option<Arc<Dir>>,
    (from, to): (Option<&str>, &str),
    r: &Send,
) -> Result<FileSystem> {
    let dir = head.dir();
    let parent_from_snap = match parent {
        None => 0,
        Some(p) => {
            let snap = p.head()?.snapshot_named(from.unwrap_or(to))?;
            snap.map_or(0, |s| s.phys().guid)
        }
    };
    let mut out = FileSystem {
        guid: head.phys().guid,
        name: dir.full_name(),
        parent_from_snap,
        origin: dir.origin()?.map(|o| o.phys().guid),
        ..FileSystem::default()
    };
    if r.props || r.backup || r.replicate {
        out.props = Some(props(head, r.backup)?);
    }
    let root = dir.encryption_root()?;
    out.is_encryption_root = root.is_some_and(|d| d.object() == dir.object());
    let all = head.snapshot_list()?;
    let txg = |short: &str| {
        let found = all.iter().find(|e| e.name == short);
        found.map(|e| e.creation_txg)
    };
    let last = txg(to).unwrap_or(Txg::MAX);
    let first = match r.replicate {
        true => Txg::NONE,
        false => from.and_then(txg).unwrap_or(Txg::NONE),
    };
    let (mut snap_props, mut snap_holds) = (Vec::new(), Vec::new());
    for e in all {
        let is_end = e.name == to || Some(e.name.as_str()) == from;
        let between = r.replicate || r.intermediate;
        if e.creation_txg > last || e.creation_txg < first || !is_end && !between {
            continue;
        }
        let snap = head.named_snapshot(&e)?;
        snap_props.push((e.name.clone(), props(&snap, r.backup)?));
        if r.holds {
            snap_holds.push((e.name.clone(), snap.hold_list()?));
        }
        out.snaps.push((e.name, snap.phys().guid));
    }
    out.snap_props = Some(snap_props);
    out.snap_holds = r.holds.then_some(snap_holds);
    Ok(out)
}

/// The properties that go along: user properties, and native ones that can be set at any time, if they are stored
/// here; in the order of their entries, as OpenZFS sends them.
fn props(ds: &Dataset, received: bool) -> Result<NvList> {
    let mut list = NvList::new();
    for (name, value) in ds.own_values(received)? {
        let native = disk::props::DATASET.iter().find(|p| p.name == name);
        let goes = match native {
            None => disk::props::is_user(&name) && !disk::props::is_reserved(&name),
            Some(p) => !matches!(p.class, Class::ReadOnly | Class::Once | Class::OnceDefault),
        };
        if !goes {
            continue;
        }
        match value {
            PropValue::Int(n) => list.set(&name, n),
            PropValue::Str(s) => list.set(&name, s),
        };
    }
    Ok(list)
}
