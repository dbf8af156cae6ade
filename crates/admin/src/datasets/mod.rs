//! Operations on datasets, and helpers that they share.

mod bookmarks;
pub mod create;
pub mod destroy;
pub mod diff;
pub mod files;
pub mod get;
pub mod keys;
pub mod look;
pub mod mount;
pub mod objsets;
pub mod parse;
pub mod permissions;
pub mod props;
pub mod protect;
pub mod quota;
pub mod receive;
pub mod redact;
pub mod rename;
pub mod rights;
pub mod send;
pub mod set;
pub mod share;
pub mod snapshots;
pub mod space;
pub mod version;
pub mod volumes;

use crate::registry::{Admin, PoolEntry};
use crate::{cancel, errors};
use api::{ApiError, DatasetKind};
use base::{Cause, Error, Kind, Result};
pub use disk::names::pool_of;
use disk::{os_type, NvList, Value};
use dsl::{Dataset, Dir};
use std::sync::Arc;
use std::time::{Duration, Instant};

pub use crate::Answer;

/// Leaves each operand once, in the order in which they were named: what a request makes the process do and keep does not grow
/// with repetitions.
pub fn once<T: Clone + Ord>(list: &mut Vec<T>) {
    let mut seen = std::collections::BTreeSet::new();
    list.retain(|one| seen.insert(one.clone()));
}

/// Whether `name` is `of` or a name below it.
pub fn is_below(name: &str, of: &str) -> bool {
    name.strip_prefix(of)
        .is_some_and(|r| r.is_empty() || r.starts_with('/'))
}

/// Hidden and temporary datasets are nobody's business.
fn is_hidden(name: &str) -> bool {
    name.contains(['$', '%'])
}

/// A pool by name, still imported when the answer is used: the caller holds its `gate`.
pub fn entry_of(admin: &Admin, name: &str) -> Answer<Arc<PoolEntry>> {
    admin
        .find(pool_of(name))
        .ok_or_else(|| ApiError::no_such_dataset(name))
}

/// The pool may be changed.
pub fn need_writable(entry: &PoolEntry) -> Answer<()> {
    if entry.pool.is_readonly() {
        return Err(ApiError::reason(Kind::ReadOnly, "pool is read-only"));
    }
    crate::suspended::not_suspended(entry)
}

/// A dataset or snapshot, or `cannot open 'NAME': dataset does not exist`.
pub fn find(entry: &PoolEntry, name: &str) -> Answer<Arc<Dataset>> {
    // Callers hold the locks they have waited for, and have changed nothing yet.
    cancel::check()?;
    find_anyway(entry, name)
}

/// The same for whoever is in the middle of something that is to be ended.
pub fn find_anyway(entry: &PoolEntry, name: &str) -> Answer<Arc<Dataset>> {
    if is_hidden(name) {
        return Err(ApiError::no_such_dataset(name));
    }
    match entry.pool.dataset(name) {
        Ok(ds) => Ok(ds),
        Err(e) if e.kind == Kind::NotFound => Err(ApiError::no_such_dataset(name)),
        Err(e) => Err(plain(e, name)),
    }
}

/// A file system or volume of this name, or below it, that a stream fills at the moment.
fn received_below(entry: &PoolEntry, name: &str) -> Option<String> {
    let filled = entry.streams.objects().into_iter();
    let mut names = filled.filter_map(|o| filled_name(entry, o));
    names.find(|n| is_below(n, name))
}

/// The name under which a dataset that is filled is seen.
fn filled_name(entry: &PoolEntry, object: u64) -> Option<String> {
    let dir = entry.pool.dataset_by_object(object).ok()?.dir();
    // What exists is filled through a child that nobody sees.
    let shown = match dir.name() == dsl::RECV {
        true => dir.parent()?,
        false => dir,
    };
    Some(shown.full_name())
}

/// How long streams that were asked to end are waited for.
const ENDING: Duration = Duration::from_secs(3);

/// Ends the streams of users other than the owner that fill something at or below a dataset. To be called with no lock held: they
/// clear away what they have begun.
fn end_streams(entry: &PoolEntry, name: &str) {
    let begin = Instant::now();
    loop {
        let mut any = false;
        for object in entry.streams.of_users() {
            if filled_name(entry, object).is_some_and(|n| is_below(&n, name)) {
                entry.streams.end(object);
                any = true;
            }
        }
        if !any || begin.elapsed() > ENDING || cancel::is_cancelled() {
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// An error of the engine as a reason. If it is about something of the same pool the command, which names its object itself,
/// gets the reason alone.
pub fn plain(e: Error, name: &str) -> ApiError {
    // A dataset that went away meanwhile shows as an object that is missing.
    if e.kind == Kind::NotFound && e.cause() != Some(Cause::NoDataset) {
        return Kind::NotFound.into();
    }
    let own = e.subject().is_some_and(|s| pool_of(s) == pool_of(name));
    match e.reason().filter(|_| own) {
        Some(reason) => errors::answer(Error::new(e.kind, reason)),
        None => errors::answer(e),
    }
}

/// Names as the history lists those of a request: without values, below `key`.
fn name_list(key: &str, names: impl IntoIterator<Item = String>) -> NvList {
    let mut list = NvList::new();
    list.pairs
        .extend(names.into_iter().map(|n| (n, Value::Boolean)));
    let mut out = NvList::new();
    out.set(key, Value::NvList(list));
    out
}

/// What kind of dataset it is.
pub fn kind_of(entry: &PoolEntry, ds: &Dataset) -> DatasetKind {
    if ds.is_snapshot() {
        return DatasetKind::Snapshot;
    }
    if entry.mounted(ds.object()).is_some() {
        return DatasetKind::Filesystem;
    }
    match entry.objset_type(ds) {
        Ok(os_type::ZVOL) => DatasetKind::Volume,
        // What cannot be read can still be listed and destroyed.
        _ => DatasetKind::Filesystem,
    }
}

/// A file system or volume and all below it, parents first. What goes away meanwhile is left out.
///
/// Errors: something of them cannot be read. For requests that change all of them or none.
pub fn subtree(from: &Arc<Dir>) -> Result<Vec<Arc<Dataset>>> {
    let (heads, mut lost) = subtree_past(from);
    match lost.is_empty() {
        true => Ok(heads),
        false => {
            let (name, e) = lost.swap_remove(0);
            Err(e.context(name))
        }
    }
}

/// Names of what is damaged, and why.
pub type Lost = Vec<(String, Error)>;

/// Whether an error of something that a list names says that it is damaged, or not there. Requests for many go on past it.
pub fn is_lost(e: &Error) -> bool {
    e.is_damage() || e.kind == Kind::NotFound
}

/// A file system or volume and all below it, of which `probe` could read what is wanted; and what cannot be read, by name.
///
/// Errors: those that are no damage.
pub fn sound_subtree(
    from: &Arc<Dir>,
    probe: &dyn Fn(&Arc<Dataset>) -> Result<()>,
) -> Result<(Vec<Arc<Dataset>>, Lost)> {
    let (heads, mut lost) = subtree_past(from);
    let mut sound = Vec::new();
    for head in heads {
        match probe(&head) {
            Ok(()) => sound.push(head),
            Err(e) if is_lost(&e) => lost.push((head.full_name(), e)),
            Err(e) => return Err(e.context(head.full_name())),
        }
    }
    match lost.iter().position(|(_, e)| !is_lost(e)) {
        Some(at) => {
            let (name, e) = lost.swap_remove(at);
            Err(e.context(name))
        }
        None => Ok((sound, lost)),
    }
}

/// The answer to a request that was carried out for all but damaged file systems and volumes. `what` says of each what it lacks.
pub fn left_out(lost: &[(String, Error)], what: &str, done: &str) -> ApiError {
    let line = |(name, e): &(String, Error)| format!("{name} is damaged: {what} ({e})");
    let lines: Vec<String> = lost.iter().map(line).collect();
    let kind = lost.first().map_or(Kind::Damaged, |(_, e)| e.kind);
    ApiError::sentence(kind, lines.join("\n")).hint(done)
}

/// The same past what cannot be read: also returned are the names of what is damaged, and why.
pub fn subtree_past(from: &Arc<Dir>) -> (Vec<Arc<Dataset>>, Lost) {
    let (mut out, mut lost) = (Vec::new(), Vec::new());
    let mut stack = vec![from.clone()];
    while let Some(dir) = stack.pop() {
        match dir.head() {
            Ok(head) => out.push(head),
            Err(e) if e.kind == Kind::NotFound && dir.object() != from.object() => continue,
            Err(e) => lost.push((dir.full_name(), e)),
        }
        let mut children = dir
            .children_past(&mut |name, e| {
                lost.push((name.to_string(), e));
                Ok(())
            })
            .unwrap_or_default();
        children.reverse();
        stack.extend(children);
    }
    (out, lost)
}

/// File systems and volumes that begin with a snapshot.
pub fn clones(entry: &PoolEntry, snap: &Dataset) -> Result<Vec<Arc<Dir>>> {
    entry.pool.dsl().clones_of(snap)
}
