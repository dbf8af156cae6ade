//! Short forms of operations on datasets, by full names and as root, for simulators and tests.

use crate::datasets::{create, destroy, diff, rename, set, snapshots};
use crate::registry::Admin;
use api::{
    ApiError, Batch, Change, DatasetClone, DatasetCreate, DatasetDestroy, Holding, Peer, Rollback,
    SnapshotCreate,
};
use base::{Error, Kind, Result};
use std::sync::Arc;

/// The one who gives them.
pub const ROOT: Peer = Peer {
    uid: 0,
    gid: 0,
    pid: 1,
};

/// The error of an operation, by its kind.
pub fn told(e: ApiError) -> Error {
    Error::new(Kind::from_errno(e.code), e.to_string())
}

fn first_failure(failed: Vec<(String, ApiError)>) -> Result<()> {
    match failed.into_iter().next() {
        Some((_, e)) => Err(told(e)),
        None => Ok(()),
    }
}

/// Carries commands out.
#[derive(Clone)]
pub struct Commands(pub Arc<Admin>);

impl Commands {
    /// `zfs create -o …`
    pub fn create(&self, name: &str, props: &[(&str, u64)]) -> Result<()> {
        let ask = DatasetCreate {
            command: format!("zfs create {name}"),
            name: name.into(),
            props: props
                .iter()
                .map(|(n, v)| (n.to_string(), v.to_string()))
                .collect(),
            ..DatasetCreate::default()
        };
        create::create(&self.0, ROOT, &ask).map(drop).map_err(told)
    }

    /// `zfs set`
    pub fn set(&self, name: &str, prop: &str, value: &str) -> Result<()> {
        let props = vec![(prop.to_string(), value.to_string())];
        let command = format!("zfs set {prop}={value} {name}");
        let done = set::set(&self.0, ROOT, name, &props, false, command);
        done.map(drop).map_err(told)
    }

    /// `zfs snapshot`
    pub fn snapshot(&self, name: &str) -> Result<()> {
        let ask = SnapshotCreate {
            command: format!("zfs snapshot {name}"),
            names: vec![name.into()],
            ..SnapshotCreate::default()
        };
        snapshots::create(&self.0, ROOT, &ask)
            .map(drop)
            .map_err(told)
    }

    /// `zfs snapshot -r`
    pub fn snapshot_all(&self, name: &str) -> Result<()> {
        let ask = SnapshotCreate {
            command: format!("zfs snapshot -r {name}"),
            names: vec![name.into()],
            recursive: true,
            ..SnapshotCreate::default()
        };
        snapshots::create(&self.0, ROOT, &ask)
            .map(drop)
            .map_err(told)
    }

    /// `zfs rollback -r`
    pub fn rollback(&self, snapshot: &str) -> Result<()> {
        let ask = Rollback {
            command: format!("zfs rollback -r {snapshot}"),
            snapshot: snapshot.into(),
            recursive: true,
            ..Rollback::default()
        };
        snapshots::rollback(&self.0, ROOT, &ask)
            .map(drop)
            .map_err(told)
    }

    /// `zfs clone -u`
    pub fn clone_unmounted(&self, snapshot: &str, name: &str) -> Result<()> {
        let ask = DatasetClone {
            command: format!("zfs clone -u {snapshot} {name}"),
            snapshot: snapshot.into(),
            name: name.into(),
            no_mount: true,
            ..DatasetClone::default()
        };
        snapshots::clone(&self.0, ROOT, &ask)
            .map(drop)
            .map_err(told)
    }

    /// `zfs promote`
    pub fn promote(&self, name: &str) -> Result<()> {
        let command = format!("zfs promote {name}");
        snapshots::promote(&self.0, ROOT, name, command).map_err(told)
    }

    /// `zfs bookmark`
    pub fn bookmark(&self, source: &str, mark: &str) -> Result<()> {
        let command = format!("zfs bookmark {source} {mark}");
        snapshots::bookmark(&self.0, ROOT, source, mark, command).map_err(told)
    }

    fn holding(&self, word: &str, tag: &str, snapshot: &str) -> Holding {
        Holding {
            tag: tag.into(),
            command: format!("zfs {word} {tag} {snapshot}"),
            snapshots: vec![snapshot.into()],
            ..Holding::default()
        }
    }

    /// `zfs hold`
    pub fn hold(&self, tag: &str, snapshot: &str) -> Result<()> {
        let ask = self.holding("hold", tag, snapshot);
        let done: Batch = snapshots::hold(&self.0, ROOT, &ask).map_err(told)?;
        first_failure(done.failed)
    }

    /// `zfs release`
    pub fn release(&self, tag: &str, snapshot: &str) -> Result<()> {
        let ask = self.holding("release", tag, snapshot);
        let done: Batch = snapshots::release(&self.0, ROOT, &ask).map_err(told)?;
        first_failure(done.failed)
    }

    /// `zfs rename`
    pub fn rename(&self, from: &str, to: &str) -> Result<()> {
        let command = format!("zfs rename {from} {to}");
        let how = rename::How::default();
        let done = rename::rename(&self.0, ROOT, from, to, how, command);
        done.map(drop).map_err(told)
    }

    /// `zfs rename -r`, of snapshots.
    pub fn rename_all(&self, from: &str, to: &str) -> Result<()> {
        let command = format!("zfs rename -r {from} {to}");
        let how = rename::How {
            recursive: true,
            ..rename::How::default()
        };
        let done = rename::rename(&self.0, ROOT, from, to, how, command);
        done.map(drop).map_err(told)
    }

    /// `zfs diff`, to the present state if there is no `to`.
    pub fn diff(&self, from: &str, to: Option<&str>) -> Result<Vec<Change>> {
        let mut all = Vec::new();
        let last = diff::diff(&self.0, ROOT, from, to, &mut |part| {
            all.extend(part);
            Ok(())
        });
        all.extend(last.map_err(told)?);
        Ok(all)
    }

    /// `zfs destroy`, of a file system, snapshots or a bookmark.
    pub fn destroy(&self, name: &str) -> Result<()> {
        let ask = DatasetDestroy {
            name: name.into(),
            command: format!("zfs destroy {name}"),
            ..DatasetDestroy::default()
        };
        let done = destroy::destroy(&self.0, ROOT, &ask).map_err(told)?;
        first_failure(done.failed)
    }
}
