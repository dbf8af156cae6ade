//! `zfs list` and `zfs get`: datasets with their properties.

use crate::datasets::bookmarks::{bookmarks, Bookmark};
use crate::datasets::props::View;
use crate::datasets::{self, Answer};
use crate::errors;
use crate::registry::{Admin, PoolEntry};
use api::{ApiError, Dataset as Row, DatasetGet, DatasetKind, Peer, Select};
use base::sync::ReadGuard;
use base::Kind;
use dsl::{Dataset, Dir};
use std::sync::Arc;

/// Datasets sent at a time, at most.
const CHUNK: usize = 256;
/// Properties sent at a time, at most: a request may ask for many of each dataset.
const PROPS: usize = 16 << 10;

type Found = api::Answer<Row>;

/// A walk through the datasets of one request.
struct Walk<'a> {
    admin: &'a Admin,
    request: &'a DatasetGet,
    peer: Peer,
    /// Properties in `found`.
    props: usize,
    /// Takes parts of a long answer.
    take: &'a mut dyn FnMut(Found) -> Answer<()>,
    found: Found,
    /// The pool at hand, and the hold on it; none while a part of the answer is sent.
    pool: Option<&'a PoolEntry>,
    gate: Option<ReadGuard<'a, ()>>,
    /// Snapshots of the pool at hand are wanted although not asked for.
    with_snapshots: bool,
}

/// `zfs list` and `zfs get`: all that is asked for. Of a long answer, parts are handed to `take` on the way; the rest
/// is returned.
///
/// What is named several times is answered once.
pub fn get(
    admin: &Arc<Admin>,
    peer: Peer,
    request: &DatasetGet,
    take: &mut dyn FnMut(Found) -> Answer<()>,
) -> Answer<Found> {
    let mut request = request.clone();
    datasets::once(&mut request.roots);
    if let Select::These(names) = &mut request.props {
        datasets::once(names);
    }
    let request = &request;
    let roots = match request.roots.is_empty() {
        true => admin.pools().iter().map(|e| e.pool.name()).collect(),
        false => request.roots.clone(),
    };
    let entries: Vec<_> = roots
        .iter()
        .map(|name| datasets::entry_of(admin, name))
        .collect();
    let mut walk = Walk {
        admin,
        request,
        peer,
        props: 0,
        take,
        found: Found::default(),
        pool: None,
        gate: None,
        with_snapshots: false,
    };
    for (name, entry) in roots.iter().zip(&entries) {
        let _unwilling = entry.as_ref().ok().map(|e| e.unwilling());
        let done = match entry {
            Ok(entry) => walk.root(name, entry)?,
            Err(e) => Err(e.clone()),
        };
        walk.gate = None;
        if let Err(e) = done {
            walk.found.failed.push((name.clone(), e));
        }
    }
    Ok(walk.found)
}

impl<'a> Walk<'a> {
    /// One starting point. The outer error means that nobody listens any more, or that the pool went
    /// away meanwhile.
    fn root(&mut self, name: &str, entry: &'a Arc<PoolEntry>) -> Answer<Answer<()>> {
        self.pool = Some(entry);
        self.gate = match entry.pass() {
            Ok(gate) => Some(gate),
            // As if it had been asked for a moment later.
            Err(_) => return Ok(Err(ApiError::no_such_dataset(name))),
        };
        self.with_snapshots = self.request.listsnapshots && listsnapshots(entry);
        if let Some((fs, mark)) = name.split_once('#') {
            return self.bookmark(entry, fs, mark);
        }
        let ds = match datasets::find(entry, name) {
            Ok(ds) => ds,
            Err(e) => return Ok(Err(e)),
        };
        if ds.is_snapshot() {
            if self.wants(DatasetKind::Snapshot) || self.with_snapshots {
                self.put(entry, &ds, name.to_string())?;
            }
            return Ok(Ok(()));
        }
        self.tree(entry, &ds.dir(), name.to_string(), self.request.depth)?;
        Ok(Ok(()))
    }

    fn wants(&self, kind: DatasetKind) -> bool {
        self.request.kinds.contains(&kind)
    }

    /// A file system or volume and what is below it. Something that goes away meanwhile is left
    /// out; what cannot be read is reported, and the rest goes on.
    fn tree(
        &mut self,
        entry: &Arc<PoolEntry>,
        dir: &Arc<Dir>,
        name: String,
        depth: Option<u32>,
    ) -> Answer<()> {
        match dir.head() {
            Ok(head) => {
                if self.wants(datasets::kind_of(entry, &head)) {
                    self.put(entry, &head, name.clone())?;
                }
                if depth != Some(0) {
                    self.marks(entry, &head, &name)?;
                }
            }
            Err(e) => self.failed(&name, e),
        }
        if depth == Some(0) {
            return Ok(());
        }
        let mut lost = Vec::new();
        let children = dir.children_past(&mut |name, e| {
            lost.push((name.to_string(), e));
            Ok(())
        });
        for (name, e) in lost {
            self.failed(&name, e);
        }
        for c in children.unwrap_or_default() {
            let below = format!("{name}/{}", c.name());
            self.tree(entry, &c, below, depth.map(|d| d - 1))?;
        }
        Ok(())
    }

    /// Snapshots and bookmarks of a head.
    fn marks(&mut self, entry: &Arc<PoolEntry>, head: &Arc<Dataset>, name: &str) -> Answer<()> {
        if self.wants(DatasetKind::Snapshot) || self.with_snapshots {
            match head.snapshot_list() {
                Ok(list) => {
                    for e in list {
                        let full = format!("{name}@{}", e.name);
                        match head.listed_snapshot(&e) {
                            Ok(ds) => self.put(entry, &ds, full)?,
                            Err(e) => self.failed(&full, e),
                        }
                    }
                }
                Err(e) => self.failed(name, e),
            }
        }
        if self.wants(DatasetKind::Bookmark) {
            match bookmarks(entry, head) {
                Ok(list) => {
                    for (mark, found) in list {
                        self.put_bookmark(format!("{name}#{mark}"), &found)?;
                    }
                }
                Err(e) => self.failed(name, e),
            }
        }
        Ok(())
    }

    fn bookmark(&mut self, entry: &Arc<PoolEntry>, fs: &str, mark: &str) -> Answer<Answer<()>> {
        let full = format!("{fs}#{mark}");
        let missing = || Ok(Err(ApiError::no_such_dataset(&full)));
        let Ok(head) = datasets::find(entry, fs) else {
            return missing();
        };
        if head.is_snapshot() {
            return missing();
        }
        match bookmarks(entry, &head) {
            Ok(list) => match list.into_iter().find(|(n, _)| n == mark) {
                Some((_, found)) => {
                    if self.wants(DatasetKind::Bookmark) {
                        self.put_bookmark(full, &found)?;
                    }
                    Ok(Ok(()))
                }
                None => Ok(Err(ApiError::no_such_bookmark(&full))),
            },
            Err(e) => Ok(Err(datasets::plain(e, fs))),
        }
    }

    fn failed(&mut self, name: &str, e: base::Error) {
        if e.kind != Kind::NotFound {
            self.found
                .failed
                .push((name.to_string(), datasets::plain(e, name)));
        }
    }

    fn put(&mut self, entry: &Arc<PoolEntry>, ds: &Arc<Dataset>, name: String) -> Answer<()> {
        let view = View::new((self.admin, self.peer), entry, ds, &name);
        let props = match &self.request.props {
            Select::Nothing => Ok(Vec::new()),
            Select::All => view.all(),
            Select::These(names) => names.iter().map(|n| view.one(n)).collect(),
        };
        let kind = view.kind();
        match props {
            Ok(props) => {
                let p = ds.phys();
                let row = Row {
                    name,
                    kind,
                    createtxg: p.creation_txg.number(),
                    guid: p.guid,
                    props,
                };
                self.push(row)
            }
            Err(e) => {
                self.failed(&name, e);
                Ok(())
            }
        }
    }

    fn put_bookmark(&mut self, name: String, mark: &Bookmark) -> Answer<()> {
        let props = match &self.request.props {
            Select::Nothing => Vec::new(),
            Select::All => crate::datasets::props::bookmark_all(mark),
            Select::These(names) => names
                .iter()
                .map(|n| crate::datasets::props::bookmark(&name, n, mark))
                .collect(),
        };
        let word = |i: usize| mark.words.get(i).copied().unwrap_or(0);
        let kind = DatasetKind::Bookmark;
        self.push(Row {
            name,
            kind,
            createtxg: word(1),
            guid: word(0),
            props,
        })
    }

    fn push(&mut self, row: Row) -> Answer<()> {
        self.props += row.props.len();
        self.found.found.push(row);
        if self.found.found.len() >= CHUNK || self.props >= PROPS {
            self.props = 0;
            let part = std::mem::take(&mut self.found);
            // The caller takes it when he likes.
            self.gate = None;
            (self.take)(part)?;
            if let Some(entry) = self.pool {
                self.gate = Some(entry.pass().map_err(errors::answer)?);
            }
        }
        Ok(())
    }
}

/// The pool's property of that name.
fn listsnapshots(entry: &PoolEntry) -> bool {
    let props = entry.pool.stored_props().unwrap_or_default();
    props
        .iter()
        .any(|(n, v)| n == "listsnapshots" && v.int() == Some(1))
}
