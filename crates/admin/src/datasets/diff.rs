//! `zfs diff`: what differs between a snapshot and a later state of its file system, or of a clone of it.
//!
//! 1. Both states are snapshots that a temporary hold keeps. The present state of a file system is made one, which is
//!    destroyed with its hold. A daemon that dies leaves holds behind, which the next import of the pool ends.
//! 2. No lock is held, and no object set is open, while a part of the answer is sent: the caller may take as long as he
//!    likes, and the pool can be exported meanwhile.

use crate::datasets::rights::{self, Action};
use crate::datasets::{self, Answer};
use crate::head::read_only_view;
use crate::registry::{Admin, PoolEntry};
use crate::{cancel, errors};
use api::{ApiError, Bytes, Change, ChangeKind, Peer};
use base::sync::RwLockExt;
use base::{Kind, Result, Txg};
use dsl::Dataset;
use std::sync::atomic::Ordering;
use std::sync::Arc;
use zpl::diff::{self, What};

/// Objects compared at a time: some 20 MB of names at most.
const BATCH: usize = 32 << 10;
/// A part of the answer has about so many bytes of paths at most.
const PART: usize = 128 << 10;

/// Holds that keep both states until this is dropped. The caller must not hold the pool's gate then.
struct Pins {
    entry: Arc<PoolEntry>,
    tag: String,
    held: Vec<Arc<Dataset>>,
}

impl Pins {
    fn new(entry: &Arc<PoolEntry>) -> Pins {
        // None of an earlier import is left.
        let n = entry.comparisons.fetch_add(1, Ordering::Relaxed);
        Pins {
            entry: entry.clone(),
            tag: format!(".zfs-diff-{:x}-{n}", entry.load_guid),
            held: Vec::new(),
        }
    }

    /// Holds these snapshots. Pools from before there were holds do without.
    fn hold(&mut self, snaps: Vec<Arc<Dataset>>) -> Result<()> {
        let pool = &self.entry.pool;
        if pool.is_readonly() || pool.version() < 18 || snaps.is_empty() {
            return Ok(());
        }
        let (tag, list) = (self.tag.clone(), snaps.clone());
        pool.task(move |pool, tx| {
            for snap in &list {
                pool.dsl().check_hold(snap, &tag, true)?;
            }
            for snap in &list {
                pool.dsl().hold(tx, snap, &tag, true)?;
            }
            Ok(())
        })?;
        self.held.extend(snaps);
        Ok(())
    }

    /// The present state of a head, as a snapshot that goes with its hold.
    fn freeze(&mut self, head: &Arc<Dataset>) -> Result<Arc<Dataset>> {
        let pool = self.entry.pool.clone();
        if pool.is_readonly() {
            return Ok(head.clone());
        }
        let name = self.tag.trim_start_matches('.').to_string();
        let (of, short, tag) = (head.clone(), name.clone(), self.tag.clone());
        let holds = pool.version() >= 18;
        pool.snapshot(vec![(head.clone(), name.clone())], move |pool, tx| {
            let snap = of.snapshot_named(&short)?.ok_or(Kind::NotFound)?;
            if holds {
                pool.dsl().hold(tx, &snap, &tag, true)?;
                pool.dsl().destroy_snapshot_deferred(tx, &snap)?;
            }
            Ok(())
        })?;
        let snap = head.snapshot_named(&name)?.ok_or(Kind::NotFound)?;
        self.held.push(snap.clone());
        Ok(snap)
    }
}

impl Drop for Pins {
    fn drop(&mut self) {
        let held = std::mem::take(&mut self.held);
        if held.is_empty() {
            return;
        }
        // Exported meanwhile: the next import ends the holds.
        let Ok(_gate) = self.entry.pass() else { return };
        let tag = self.tag.clone();
        for snap in &held {
            self.entry.close_in_ctldirs(snap.object());
        }
        let ended = self.entry.pool.task(move |pool, tx| {
            for snap in &held {
                match snap.hold_time(&tag)? {
                    Some(_) => pool.dsl().release(tx, snap, &tag)?,
                    // A pool without holds: only a state that was made a snapshot is here.
                    None => pool.dsl().destroy_snapshot(tx, snap)?,
                }
            }
            Ok(())
        });
        if let Err(e) = ended {
            tracing::warn!(pool = %self.entry.pool.name(), "holds of zfs diff stay until the next import: {e}");
        }
    }
}

fn failed(why: impl std::fmt::Display) -> ApiError {
    ApiError::sentence(Kind::Invalid, format!("Unable to obtain diffs: {why}"))
}

/// Whether `from` is an earlier state of `to`: a snapshot of the same file system, or of one that it is a clone of.
fn is_ancestor(from: &Dataset, to: &Dataset) -> Result<bool> {
    let wanted = from.phys();
    let mut dir = to.dir();
    let mut before = match to.is_snapshot() {
        true => to.phys().creation_txg,
        false => Txg::MAX,
    };
    // Clones of clones end at the root of the pool; a damaged chain must end, too.
    for _ in 0..1 << 16 {
        if dir.object() == from.dir().object() {
            return Ok(wanted.creation_txg < before);
        }
        let Some(origin) = dir.origin()? else {
            return Ok(false);
        };
        if origin.object() == from.object() {
            return Ok(true);
        }
        before = origin.phys().creation_txg;
        dir = origin.dir();
    }
    Ok(false)
}

/// The place of the file system that paths begin with, empty if it has none.
fn place(admin: &Admin, entry: &Arc<PoolEntry>, head: &Dataset) -> Result<Vec<u8>> {
    use std::os::unix::ffi::OsStrExt;
    let path = match entry.mounted(head.object()) {
        Some(m) => m.path.as_os_str().as_bytes().to_vec(),
        None => admin.effective_mountpoint(entry, head)?.0.into_bytes(),
    };
    Ok(match path.as_slice() {
        b"/" => Vec::new(),
        p if p.starts_with(b"/") => path,
        _ => Vec::new(),
    })
}

fn shown(place: &[u8], c: diff::Change) -> Change {
    let full = |path: Vec<u8>| Bytes([place, &path].concat());
    Change {
        what: match c.what {
            What::Removed => ChangeKind::Removed,
            What::Created => ChangeKind::Created,
            What::Modified => ChangeKind::Modified,
            What::Renamed => ChangeKind::Renamed,
            What::Links(n) => ChangeKind::Links(n),
        },
        mode: c.mode,
        ctime: (c.ctime.sec, c.ctime.nsec),
        path: full(c.path),
        to: c.to.map(full),
    }
}

/// Cut into parts of at most [`PART`] bytes of paths, or one change.
fn parts(changes: Vec<Change>) -> Vec<Vec<Change>> {
    let mut out = vec![Vec::new()];
    let mut bytes = 0;
    for c in changes {
        bytes += c.path.0.len() + c.to.as_ref().map_or(0, |t| t.0.len()) + 64;
        if bytes > PART {
            bytes = 0;
            out.push(Vec::new());
        }
        if let Some(last) = out.last_mut() {
            last.push(c);
        }
    }
    out
}

/// Has the kernel give what it keeps of written data. That takes requests to the file system, so no lock of names is
/// held meanwhile.
fn write_out(entry: &Arc<PoolEntry>, name: &str) -> Answer<()> {
    let mounted = {
        let _gate = entry.pass().map_err(errors::answer)?;
        entry.mounted(datasets::find(entry, name)?.object())
    };
    if let Some(Err(why)) = mounted.map(|m| m.mount.write_out()) {
        tracing::warn!(dataset = %name, "not all that programs have written is compared: {why}");
    }
    Ok(())
}

/// `zfs diff`. Parts of the answer are handed to `take`; the last one is returned.
pub fn diff(
    admin: &Arc<Admin>,
    peer: Peer,
    from: &str,
    to: Option<&str>,
    take: &mut dyn FnMut(Vec<Change>) -> Answer<()>,
) -> Answer<Vec<Change>> {
    let (fs, _) = from
        .split_once('@')
        .ok_or_else(|| failed(format!("Badly formed snapshot name {from}")))?;
    let to = to.unwrap_or(fs);
    let entry = datasets::entry_of(admin, from)?;
    if datasets::pool_of(from) != datasets::pool_of(to) {
        return Err(failed("Not an earlier snapshot from the same fs"));
    }
    {
        let _gate = entry.pass().map_err(errors::answer)?;
        let _names = entry.names.read();
        let earlier = datasets::find(&entry, from)?;
        rights::require(admin, &entry, peer, Action::Diff, &earlier)?;
        if let Ok(later) = datasets::find(&entry, to) {
            rights::require(admin, &entry, peer, Action::Diff, &later)?;
        }
    }
    if !to.contains('@') {
        write_out(&entry, to)?;
    }
    // Dropped after the gate, which it needs itself.
    let mut pins = Pins::new(&entry);
    let (earlier, later, place) = {
        let _gate = entry.gate.acquire_read();
        let _names = entry.names.read();
        let plain = |e| datasets::plain(e, to);
        let earlier = datasets::find(&entry, from)?;
        let later = datasets::find(&entry, to)?;
        rights::require_all(admin, &entry, peer, Action::Diff, [&*earlier, &*later])?;
        for (ds, name) in [(&earlier, from), (&later, to)] {
            if entry.objset_type(ds).map_err(plain)? != disk::os_type::ZFS {
                return Err(failed(format!("'{name}' is a volume, which has no files")));
            }
            if matches!(ds.crypt().map_err(plain)?, zio::Crypt::Locked) {
                return Err(failed(format!("'{name}': encryption key not loaded")));
            }
        }
        if !is_ancestor(&earlier, &later).map_err(plain)? {
            return Err(failed("Not an earlier snapshot from the same fs"));
        }
        let head = later.dir().head().map_err(plain)?;
        let place = place(admin, &entry, &head).map_err(plain)?;
        let mut snaps = vec![earlier.clone()];
        let later = match later.is_snapshot() {
            true => {
                snaps.push(later.clone());
                later
            }
            false => pins.freeze(&later).map_err(plain)?,
        };
        pins.hold(snaps).map_err(plain)?;
        (earlier, later, place)
    };
    let after = earlier.phys().creation_txg;
    let mut cursor = None;
    loop {
        let mut changes = Vec::new();
        let next = {
            let _gate = entry.pass().map_err(errors::answer)?;
            let plain = |e| datasets::plain(e, to);
            let a = read_only_view(&entry.pool, &earlier).map_err(plain)?;
            let b = read_only_view(&entry.pool, &later).map_err(plain)?;
            let found = diff::changed_objects(a.objset(), b.objset(), after, cursor, BATCH);
            let (objects, next) = found.map_err(plain)?;
            let mut keep = |c| {
                changes.push(shown(&place, c));
                match changes.len() % 1024 == 0 && cancel::is_cancelled() {
                    true => Err(Kind::Interrupted.into()),
                    false => Ok(()),
                }
            };
            diff::compare(&a, &b, &objects, &mut keep).map_err(|e| failed(e.to_string()))?;
            next
        };
        cancel::check()?;
        let mut parts = parts(changes);
        let last = parts.pop().unwrap_or_default();
        for part in parts {
            take(part)?;
        }
        match next {
            None => return Ok(last),
            Some(_) => take(last)?,
        }
        cursor = next;
    }
}
