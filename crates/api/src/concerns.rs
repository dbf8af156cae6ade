//! The pools and datasets that a request names, by which a command chooses the daemon to ask.

use crate::{DatasetGet, PoolGet, Request, Send};

/// What a request is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Concerns<'a> {
    /// The daemon itself, devices, or pools it does not have yet.
    Daemon,
    /// What a daemon has, or is, but no pool in particular.
    Anything,
    /// All pools there are, to look at.
    EveryPool,
    /// These pools, datasets, snapshots and bookmarks; at least one.
    Names(Vec<&'a str>),
    /// What is mounted on this path.
    MountPoint(&'a str),
    /// What a token of a broken receive names.
    Token,
}

fn names(list: &[String]) -> Concerns<'_> {
    match list.is_empty() {
        true => Concerns::EveryPool,
        false => Concerns::Names(list.iter().map(String::as_str).collect()),
    }
}

impl Request {
    /// What the request is about.
    pub fn concerns(&self) -> Concerns<'_> {
        match self {
            Request::Stop {}
            | Request::PoolCreate(_)
            | Request::ImportScan(_)
            | Request::PoolImport(_)
            | Request::LabelClear { .. }
            | Request::SetFaults { .. } => Concerns::Daemon,
            Request::Ping {}
            | Request::Version {}
            | Request::SupportedFeatures {}
            | Request::EventsClear {}
            | Request::Events { pool: None, .. }
            | Request::MountAll { root: None, .. }
            | Request::UnmountAll { .. }
            | Request::ShareAll { .. } => Concerns::Anything,
            Request::MountList {} => Concerns::EveryPool,
            Request::PoolGet(get) => names(&get.pools),
            Request::DatasetGet(get) => names(&get.roots),
            Request::SnapshotCreate(make) => names(&make.names),
            Request::HoldAdd(r) | Request::HoldRelease(r) => names(&r.snapshots),
            Request::Holds { snapshots, .. } => names(snapshots),
            Request::Send(Send {
                target,
                token: Some(_),
                ..
            }) if target.is_empty() => Concerns::Token,
            Request::Unmount { target, .. }
            | Request::Share { target }
            | Request::Unshare { target }
                if target.starts_with('/') =>
            {
                Concerns::MountPoint(target)
            }
            Request::PoolDestroy { pool: name, .. }
            | Request::PoolExport { pool: name, .. }
            | Request::PoolSet { pool: name, .. }
            | Request::PoolHistory { pool: name, .. }
            | Request::PoolUpgrade { pool: name, .. }
            | Request::PoolSync { pool: name, .. }
            | Request::DeviceRemove { pool: name, .. }
            | Request::RemovalCancel { pool: name, .. }
            | Request::DeviceOnline { pool: name, .. }
            | Request::DeviceOffline { pool: name, .. }
            | Request::DeviceDetach { pool: name, .. }
            | Request::PoolReopen { pool: name, .. }
            | Request::PoolResilver { pool: name, .. }
            | Request::PoolCheckpoint { pool: name, .. }
            | Request::PoolReguid { pool: name, .. }
            | Request::PoolPrefetch { pool: name, .. }
            | Request::PoolPrune { pool: name, .. }
            | Request::PoolActivity { pool: name, .. }
            | Request::Events {
                pool: Some(name), ..
            }
            | Request::DatasetSet { dataset: name, .. }
            | Request::DatasetInherit { dataset: name, .. }
            | Request::DatasetRename { from: name, .. }
            | Request::DatasetPromote { dataset: name, .. }
            | Request::BookmarkCreate { source: name, .. }
            | Request::ReceiveAbort { dataset: name, .. }
            | Request::Diff { from: name, .. }
            | Request::KeyLoad { dataset: name, .. }
            | Request::KeyUnload { dataset: name }
            | Request::KeyChange { dataset: name, .. }
            | Request::Mount { dataset: name, .. }
            | Request::MountAll {
                root: Some(name), ..
            }
            | Request::Unmount { target: name, .. }
            | Request::Share { target: name }
            | Request::Unshare { target: name }
            | Request::VolumeRead { volume: name, .. }
            | Request::FileRead { dataset: name, .. }
            | Request::Permissions { dataset: name }
            | Request::PermissionsGive { dataset: name, .. }
            | Request::PermissionsTake { dataset: name, .. }
            | Request::SpaceHeld { dataset: name, .. }
            | Request::DatasetActivity { dataset: name }
            | Request::SpaceOf { dataset: name, .. } => Concerns::Names(vec![name]),
            Request::PoolClear(r) => Concerns::Names(vec![&r.pool]),
            Request::PoolAdd(r) => Concerns::Names(vec![&r.pool]),
            Request::DeviceAttach(r) => Concerns::Names(vec![&r.pool]),
            Request::PoolScrub(r) => Concerns::Names(vec![&r.pool]),
            Request::PoolWear(r) => Concerns::Names(vec![&r.pool]),
            Request::VdevGet(r) => Concerns::Names(vec![&r.pool]),
            Request::VdevSet(r) => Concerns::Names(vec![&r.pool]),
            Request::PoolSplit(r) => Concerns::Names(vec![&r.pool]),
            Request::DatasetCreate(r) => Concerns::Names(vec![&r.name]),
            Request::DatasetDestroy(r) => Concerns::Names(vec![&r.name]),
            Request::Rollback(r) => Concerns::Names(vec![&r.snapshot]),
            Request::DatasetClone(r) => Concerns::Names(vec![&r.snapshot]),
            Request::Receive(r) => Concerns::Names(vec![&r.target]),
            Request::Send(r) => Concerns::Names(vec![&r.target]),
            Request::Redact(r) => Concerns::Names(vec![&r.snapshot]),
        }
    }

    /// The same about other names; `None` for requests that do not only look, or look at one thing.
    pub fn about(&self, names: Vec<String>) -> Option<Request> {
        match self.clone() {
            Request::PoolGet(get) => Some(Request::PoolGet(PoolGet {
                pools: names,
                ..get
            })),
            Request::DatasetGet(get) => Some(Request::DatasetGet(DatasetGet {
                roots: names,
                ..get
            })),
            Request::Holds { recursive, .. } => Some(Request::Holds {
                snapshots: names,
                recursive,
            }),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_about_names_or_not() {
        assert_eq!(Request::Stop {}.concerns(), Concerns::Daemon);
        assert_eq!(Request::Ping {}.concerns(), Concerns::Anything);
        let all = Request::PoolGet(PoolGet::default());
        assert_eq!(all.concerns(), Concerns::EveryPool);
        let some = Request::DatasetGet(DatasetGet {
            roots: vec!["a/b".into(), "c@d".into()],
            ..DatasetGet::default()
        });
        assert_eq!(some.concerns(), Concerns::Names(vec!["a/b", "c@d"]));
        let resumed = Request::Send(Send {
            token: Some("1-2-3".into()),
            ..Send::default()
        });
        assert_eq!(resumed.concerns(), Concerns::Token);
        let target = |t: &str| Request::Unmount {
            target: t.into(),
            force: false,
        };
        assert_eq!(target("/a").concerns(), Concerns::MountPoint("/a"));
        assert_eq!(target("a/b").concerns(), Concerns::Names(vec!["a/b"]));
        assert_eq!(
            all.about(vec!["a".into()]).unwrap().concerns(),
            Concerns::Names(vec!["a"])
        );
        assert_eq!(resumed.about(vec!["a".into()]), None);
    }
}
