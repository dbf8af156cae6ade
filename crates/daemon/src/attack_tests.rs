//! What a user may make the daemon do with what is not the user's, for every request.
//!
//! docs/trust.md has a row for each request: the permissions it takes. The variants of `Request` are read from the source of
//! `api`: a new one without a row, or without an attack here, fails.
//!
//! 1. With each single permission on a file system of the user's own, no request changes, reaches or reads anything elsewhere.
//! 2. With all permissions of its row a request is permitted; with one of them less it is refused.

use crate::pool_tests::Quiet;
use crate::requests;
use admin::alone::{self, Alone, MemoryDoor};
use admin::commands::{Commands, ROOT};
use admin::datasets::{create, keys, mount, permissions, receive, rights, send};
use admin::{pools, Admin};
use api::{
    ApiError, DatasetClone, DatasetCreate, DatasetDestroy, Delegate, Delegation, Holding, Peer,
    Receive, Redact, Reply, Request, Rollback, Secret, Send, SnapshotCreate, Whose,
};
use base::Kind;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

const JOE: Peer = Peer {
    uid: 1000,
    gid: 1000,
    pid: 1,
};
/// How a row says that only the owner makes a request.
const OWNER: &str = "root";
/// How a row says that everybody makes a request.
const FREE: &str = "everybody";

/// A pool `p`: `p/u` is Joe's, `p/s` and all the rest are not. `p/u/c` is a clone of `p/s@a`.
struct World {
    admin: Arc<Admin>,
    /// Of `p/s@b`, full; and of `p/u/c@d` as a clone of `p/s@a`.
    streams: [Vec<u8>; 2],
}

fn key(byte: u8) -> Secret {
    Secret::new(vec![byte; 32])
}

impl World {
    fn new() -> World {
        let (env, disks) = env_sim::mem_env(7);
        disks.add("/dev/a", 128 << 20);
        let process = Arc::new(Alone::new(env.clone(), pool::Tunables::default()));
        let admin = Admin::new(
            env,
            alone::settings(),
            Arc::new(MemoryDoor::default()),
            process,
        );
        pools::create::create(&admin, ROOT, alone::pool_on("p", "/dev/a")).unwrap();
        let root = Commands(admin.clone());
        for name in ["p/u", "p/u/x", "p/s", "p/s/x", "p/s/joes"] {
            root.create(name, &[]).unwrap();
        }
        let own = |(n, v): (&str, &str)| (n.to_string(), v.to_string());
        for name in ["p/open", "p/locked"] {
            let ask = DatasetCreate {
                name: name.into(),
                props: [("encryption", "on"), ("keyformat", "raw")]
                    .map(own)
                    .to_vec(),
                key: Some(key(7)),
                no_mount: true,
                ..DatasetCreate::default()
            };
            create::create(&admin, ROOT, &ask).unwrap();
        }
        keys::unload(&admin, ROOT, "p/locked").unwrap();
        root.snapshot("p/s@a").unwrap();
        root.clone_unmounted("p/s@a", "p/u/c").unwrap();
        root.clone_unmounted("p/s@a", "p/s/c").unwrap();
        for name in ["p/s@b", "p/u/c@d", "p/u/x@o", "p/s/x@o"] {
            root.snapshot(name).unwrap();
        }
        root.hold("keep", "p/s@a").unwrap();
        root.bookmark("p/s@a", "p/s#m").unwrap();
        let stream = |target: &str, from: Option<&str>| {
            let ask = Send {
                target: target.into(),
                from: from.map(Into::into),
                ..Send::default()
            };
            let mut stream = Vec::new();
            send::send(&admin, ROOT, &ask, Some(&mut stream), &mut |_| {}).unwrap();
            stream
        };
        let streams = [stream("p/s@b", None), stream("p/u/c@d", Some("p/s@a"))];
        // Half of a stream is kept.
        let ask = Receive {
            target: "p/s/kept".into(),
            resumable: true,
            ..Receive::default()
        };
        let half = &streams[0][..streams[0].len() - 400];
        receive::receive(&admin, ROOT, &ask, half, &mut |_| {}).unwrap_err();
        // One is mounted by Joe, and another is not mounted.
        let world = World { admin, streams };
        for name in ["p/s/joes", "p/s/x"] {
            mount::unmount(&world.admin, ROOT, name, false).unwrap();
        }
        world.delegate("p/s/joes", "mount", true);
        mount::mount(&world.admin, JOE, "p/s/joes", &[], false, false, None).unwrap();
        world.delegate("p/s/joes", "mount", false);
        world
    }

    fn delegate(&self, name: &str, what: &str, on: bool) {
        let list = [Delegation {
            to: Delegate::User(1000),
            local: false,
            descendent: false,
            permissions: vec![what.into()],
        }];
        let command = String::new();
        let done = match on {
            true => permissions::allow(&self.admin, ROOT, name, &list, command),
            false => permissions::unallow(&self.admin, ROOT, name, &list, false, command),
        };
        done.unwrap();
    }

    /// Makes a request as Joe; what came back of data.
    fn ask(&self, request: &Request) -> (Result<Reply, ApiError>, Vec<u8>) {
        let mut out = Vec::new();
        let done = match request {
            // Streams come beside the socket.
            Request::Receive(r) => {
                let stream = match r.origin.is_some() || r.force {
                    true => &self.streams[1],
                    false => &self.streams[0],
                };
                receive::receive(&self.admin, JOE, r, &stream[..], &mut |_| {}).map(Reply::Received)
            }
            Request::Send(r) => {
                send::send(&self.admin, JOE, r, Some(&mut out), &mut |_| {}).map(Reply::SendPlan)
            }
            _ if !requests::allowed(0, JOE.uid, request) => Err(rights::denied()),
            other => requests::answer(&self.admin, JOE, other.clone(), &mut Quiet),
        };
        (done, out)
    }

    /// All that is not Joe's: datasets with their properties, snapshots, holds, bookmarks, permissions and keys, and mounts.
    fn others(&self) -> BTreeMap<String, String> {
        let entry = self.admin.find("p").unwrap();
        let mut out = BTreeMap::new();
        let mut stack = vec![entry.pool.dsl().root().unwrap()];
        while let Some(dir) = stack.pop() {
            let name = dir.full_name();
            if name == "p/u" {
                continue;
            }
            let head = dir.head().unwrap();
            let mut text = format!("{} {:?}", head.phys().guid, head.own_values(false).unwrap());
            for e in head.snapshot_list().unwrap() {
                let snap = head.named_snapshot(&e).unwrap();
                let holds: Vec<String> =
                    snap.hold_list().unwrap().into_iter().map(|h| h.0).collect();
                let props = snap.own_values(false).unwrap();
                text += &format!(" @{} {} {holds:?} {props:?}", e.name, snap.phys().guid);
            }
            let marks = head.bookmarks().unwrap().into_iter().map(|(n, _)| n);
            let marks: Vec<String> = marks.collect();
            let given = dir.delegated().unwrap();
            let origin = dir.origin().unwrap().map(|o| o.object());
            let key = dir.key_loaded().unwrap();
            text += &format!(" #{marks:?} {given:?} {origin:?} {key:?}");
            let mounted = entry.mounted(head.object());
            text += &format!(" {:?}", mounted.map(|m| (m.path.clone(), m.user)));
            out.insert(name, text);
            stack.extend(dir.children().unwrap());
        }
        out
    }

    /// Whether nothing of Joe's begins with what is not Joe's, but for the clone that was there.
    fn is_apart(&self) -> bool {
        let entry = self.admin.find("p").unwrap();
        let own = entry.pool.dsl().dir("p/u").unwrap();
        let all = admin::datasets::subtree(&own).unwrap();
        all.iter().all(|ds| {
            let origin = ds.dir().origin().unwrap();
            let name = ds.full_name();
            name == "p/u/c" || origin.is_none_or(|o| o.full_name().starts_with("p/u"))
        })
    }
}

/// Which word of the table a request is.
fn word(request: &Request) -> String {
    let text = format!("{request:?}");
    text.chars().take_while(|c| c.is_alphanumeric()).collect()
}

/// The variants of `Request`, from its source.
fn variants() -> BTreeSet<String> {
    let source = include_str!("../../api/src/request.rs");
    let (_, body) = source.split_once("pub enum Request {").unwrap();
    let (body, _) = body.split_once("\n}\n").unwrap();
    let names = body.lines().filter_map(|line| line.strip_prefix("    "));
    let names = names.filter(|l| l.starts_with(|c: char| c.is_ascii_uppercase()));
    names
        .map(|l| l.chars().take_while(|c| c.is_alphanumeric()).collect())
        .collect()
}

/// Rows of the table in docs/trust.md: request, and the permissions it takes together.
fn rows() -> BTreeMap<String, Vec<String>> {
    let text = include_str!("../../../docs/trust.md");
    let (_, table) = text
        .split_once("\n| Request | ")
        .expect("the table of requests");
    let lines = table.lines().skip(2).take_while(|l| l.starts_with('|'));
    let quoted = |cell: &str| -> Vec<String> {
        let parts = cell.split('`').skip(1).step_by(2);
        parts.map(str::to_string).collect()
    };
    let mut out = BTreeMap::new();
    for line in lines {
        let cells: Vec<&str> = line.split('|').collect();
        let takes = match cells[2].trim() {
            said @ (OWNER | FREE) => vec![said.to_string()],
            _ => quoted(cells[2]),
        };
        assert!(!takes.is_empty(), "{line}");
        for name in quoted(cells[1]) {
            assert!(out.insert(name, takes.clone()).is_none(), "{line}");
        }
    }
    out
}

fn text(s: &str) -> String {
    s.to_string()
}

fn props(list: &[(&str, &str)]) -> api::Props {
    list.iter().map(|(n, v)| (text(n), text(v))).collect()
}

/// One request of each kind that takes permissions, permitted with those of its row: on what is not Joe's.
fn plain() -> Vec<Request> {
    [plain_changes(), plain_more()].concat()
}

/// More of [`plain`]: changes of datasets.
fn plain_changes() -> Vec<Request> {
    let command = String::new;
    vec![
        Request::DatasetCreate(DatasetCreate {
            name: text("p/s/new"),
            ..DatasetCreate::default()
        }),
        Request::DatasetDestroy(DatasetDestroy {
            name: text("p/s@b"),
            ..DatasetDestroy::default()
        }),
        Request::DatasetSet {
            dataset: text("p/s"),
            props: props(&[("compression", "lz4")]),
            no_remount: false,
            command: command(),
        },
        Request::DatasetInherit {
            dataset: text("p/s"),
            property: text("compression"),
            recursive: false,
            received: false,
            command: command(),
        },
        Request::DatasetRename {
            from: text("p/s/c"),
            to: text("p/s/d"),
            parents: false,
            force: false,
            no_remount: false,
            recursive: false,
            command: command(),
        },
        Request::SnapshotCreate(SnapshotCreate {
            names: vec![text("p/s@new")],
            ..SnapshotCreate::default()
        }),
        Request::Rollback(Rollback {
            snapshot: text("p/s@b"),
            ..Rollback::default()
        }),
        Request::DatasetClone(DatasetClone {
            snapshot: text("p/s@b"),
            name: text("p/s/new"),
            ..DatasetClone::default()
        }),
        Request::DatasetPromote {
            dataset: text("p/s/c"),
            command: command(),
        },
        Request::BookmarkCreate {
            source: text("p/s@b"),
            name: text("p/s#new"),
            command: command(),
        },
    ]
}

/// More of [`plain`]: streams, keys, mounts and permissions.
fn plain_more() -> Vec<Request> {
    let command = String::new;
    let holding = |tag: &str| Holding {
        tag: text(tag),
        snapshots: vec![text("p/s@a")],
        ..Holding::default()
    };
    let grant = || Delegation {
        to: Delegate::User(1000),
        local: true,
        descendent: true,
        permissions: vec![text("allow")],
    };
    vec![
        Request::Receive(Receive {
            target: text("p/s/new"),
            ..Receive::default()
        }),
        Request::ReceiveAbort {
            dataset: text("p/s/kept"),
            command: command(),
        },
        Request::Diff {
            from: text("p/s@a"),
            to: Some(text("p/s@b")),
        },
        Request::Send(Send {
            target: text("p/s@b"),
            ..Send::default()
        }),
        Request::HoldAdd(holding("new")),
        Request::HoldRelease(holding("keep")),
        Request::KeyLoad {
            dataset: text("p/locked"),
            key: key(7),
            check_only: false,
        },
        Request::KeyUnload {
            dataset: text("p/open"),
        },
        Request::KeyChange {
            dataset: text("p/open"),
            inherit: false,
            key: key(8),
            props: Vec::new(),
            command: command(),
        },
        Request::Mount {
            dataset: text("p/s/x"),
            options: Vec::new(),
            overlay: false,
            force: false,
            directory: None,
        },
        Request::FileRead {
            dataset: text("p/s"),
            path: api::Bytes(b"/".to_vec()),
            wanted: api::FileWanted::Names,
        },
        Request::Unmount {
            target: text("p/s/joes"),
            force: false,
        },
        Request::MountAll {
            root: Some(text("p/s/x")),
            options: Vec::new(),
            overlay: false,
            force: false,
        },
        Request::UnmountAll { force: false },
        Request::Share {
            target: text("p/s"),
        },
        Request::Unshare {
            target: text("p/s"),
        },
        Request::PermissionsGive {
            dataset: text("p/s"),
            list: vec![Delegation {
                permissions: vec![text("atime")],
                ..grant()
            }],
            command: command(),
        },
        Request::PermissionsTake {
            dataset: text("p/s"),
            list: vec![grant()],
            recursive: false,
            command: command(),
        },
        Request::SpaceOf {
            dataset: text("p/s"),
            who: vec![Whose::User],
        },
    ]
}

/// Requests of the owner, and other ways to name what is not Joe's: as the second name, by an option, among others.
fn sly() -> Vec<Request> {
    let command = String::new;
    let both = || vec![text("p/u/x@new"), text("p/s@new")];
    let rename = |from: &str, to: &str, force, recursive| Request::DatasetRename {
        from: text(from),
        to: text(to),
        parents: true,
        force,
        no_remount: force,
        recursive,
        command: command(),
    };
    let mut out = vec![
        rename("p/s/x", "p/u/y", true, false),
        rename("p/u/x", "p/s/y/z", false, false),
        rename("p/s@b", "p/s@z", false, true),
        Request::DatasetClone(DatasetClone {
            snapshot: text("p/s@b"),
            name: text("p/u/y"),
            parents: true,
            ..DatasetClone::default()
        }),
        Request::DatasetClone(DatasetClone {
            snapshot: text("p/u/x@o"),
            name: text("p/s/y/z"),
            parents: true,
            ..DatasetClone::default()
        }),
        // The snapshot would become Joe's.
        Request::DatasetPromote {
            dataset: text("p/u/c"),
            command: command(),
        },
        Request::SnapshotCreate(SnapshotCreate {
            names: both(),
            props: props(&[("com.example:x", "y")]),
            ..SnapshotCreate::default()
        }),
        Request::HoldAdd(Holding {
            tag: text("t"),
            snapshots: vec![text("p@o"), text("p/s@b")],
            recursive: true,
            ..Holding::default()
        }),
        Request::DatasetDestroy(DatasetDestroy {
            name: text("p/s"),
            recursive: true,
            dependents: true,
            force: true,
            protected: true,
            ..DatasetDestroy::default()
        }),
        Request::DatasetDestroy(DatasetDestroy {
            name: text("p/s#m"),
            ..DatasetDestroy::default()
        }),
        Request::Rollback(Rollback {
            snapshot: text("p/s@a"),
            recursive: true,
            dependents: true,
            force: true,
            protected: true,
            ..Rollback::default()
        }),
    ];
    out.extend(sly_looks());
    for (name, value) in [
        ("mountpoint", "/etc"),
        ("canmount", "off"),
        ("setuid", "on"),
        ("com.example:x", "y"),
        ("userquota@0", "1M"),
        ("quota", "1M"),
        ("keylocation", "file:///k"),
    ] {
        out.push(Request::DatasetSet {
            dataset: text("p/s"),
            props: props(&[(name, value)]),
            no_remount: false,
            command: command(),
        });
    }
    out
}

/// More of [`sly`]: streams, mounts, and what only looks.
fn sly_looks() -> Vec<Request> {
    let receive = |target: &str, r: Receive| {
        Request::Receive(Receive {
            target: text(target),
            ..r
        })
    };
    vec![
        receive(
            "p/u/y",
            Receive {
                origin: Some(text("p/s@a")),
                ..Receive::default()
            },
        ),
        receive(
            "p/u/x",
            Receive {
                force: true,
                ..Receive::default()
            },
        ),
        receive(
            "p/s",
            Receive {
                name_by: api::NameBy::AllButFirst,
                ..Receive::default()
            },
        ),
        receive(
            "p/s@b",
            Receive {
                corrective: true,
                ..Receive::default()
            },
        ),
        Request::Diff {
            from: text("p/s@a"),
            to: None,
        },
        Request::Send(Send {
            target: text("p/s@b"),
            from: Some(text("p/s@a")),
            intermediate: true,
            replicate: true,
            props: true,
            ..Send::default()
        }),
        Request::Mount {
            dataset: text("p/s"),
            options: vec![text("remount,suid,dev,exec,rw")],
            overlay: true,
            force: true,
            directory: None,
        },
        Request::Mount {
            dataset: text("p/s@b"),
            options: Vec::new(),
            overlay: true,
            force: true,
            directory: Some(text("/tmp")),
        },
        Request::MountAll {
            root: None,
            options: vec![text("remount,suid")],
            overlay: true,
            force: true,
        },
        Request::Unmount {
            target: text("/p/s"),
            force: true,
        },
        Request::SpaceOf {
            dataset: text("p/s@b"),
            who: vec![Whose::Group, Whose::Project],
        },
        Request::Redact(Redact {
            snapshot: text("p/u/x@o"),
            bookmark: text("p/u/x#r"),
            snaps: vec![text("p/s@b")],
            ..Redact::default()
        }),
        Request::VolumeRead {
            volume: text("p/s"),
            offset: 0,
            length: None,
        },
    ]
}

/// Whether nothing was done, or told, for a request that takes permissions.
fn is_refused(done: &Result<Reply, ApiError>) -> bool {
    match done {
        Err(e) => e.code == Kind::NotPermitted.errno(),
        Ok(Reply::Batch(batch)) => batch.done.iter().all(|n| n.starts_with("p/u")),
        Ok(Reply::Destroyed(d)) => d.names.is_empty(),
        Ok(_) => false,
    }
}

#[test]
fn every_request_has_a_row_and_an_attack() {
    let (variants, rows) = (variants(), rows());
    assert!(variants.len() > 50, "{variants:?}");
    let named: BTreeSet<String> = rows.keys().cloned().collect();
    assert_eq!(
        named, variants,
        "docs/trust.md and api/src/request.rs differ"
    );
    let attacked: BTreeSet<String> = plain().iter().map(word).collect();
    for (name, takes) in &rows {
        let by_permission = !takes.iter().any(|t| t == OWNER || t == FREE);
        assert_eq!(
            by_permission,
            attacked.contains(name),
            "{name}: what takes permissions is attacked here"
        );
        for permission in takes.iter().filter(|_| by_permission) {
            assert!(
                rights::permission(permission).is_some(),
                "{name}: {permission}"
            );
        }
    }
}

#[test]
fn rows_say_what_the_code_asks() {
    for request in plain() {
        let name = word(&request);
        let takes = rows().remove(&name).unwrap();
        let with = |permissions: &[&String]| {
            let world = World::new();
            for p in permissions {
                world.delegate("p", p, true);
            }
            world.ask(&request).0
        };
        let all: Vec<&String> = takes.iter().collect();
        let done = with(&all);
        assert!(!is_refused(&done), "{name} with {all:?}: {done:?}");
        for less in &takes {
            let rest: Vec<&String> = takes.iter().filter(|p| *p != less).collect();
            let done = with(&rest);
            assert!(is_refused(&done), "{name} without {less}: {done:?}");
        }
    }
}

#[test]
fn no_single_permission_reaches_what_is_not_its_own() {
    let world = World::new();
    let properties = disk::props::DATASET.iter().map(|p| p.name);
    let all = rights::PERMISSIONS.into_iter().chain(properties);
    let all: BTreeSet<&str> = all.filter(|p| rights::permission(p) == Some(*p)).collect();
    assert!(all.len() > 60, "{all:?}");
    let requests: Vec<Request> = plain().into_iter().chain(sly()).collect();
    let before = world.others();
    for permission in std::iter::once("").chain(all) {
        if !permission.is_empty() {
            world.delegate("p/u", permission, true);
        }
        for request in &requests {
            let (done, data) = world.ask(request);
            let what = format!("with '{permission}': {request:?}");
            assert!(data.is_empty(), "{what}: data was sent");
            assert!(done.is_err() || is_refused(&done), "{what}: {done:?}");
            assert_eq!(world.others(), before, "{what}: {done:?}");
            assert!(world.is_apart(), "{what}: {done:?}");
        }
        if !permission.is_empty() {
            world.delegate("p/u", permission, false);
        }
    }
}

#[test]
fn what_the_owner_alone_may_is_refused_before_it_is_looked_at() {
    let source = include_str!("requests.rs");
    let (_, body) = source.split_once("fn for_everybody(").unwrap();
    let (body, _) = body.split_once("\n}\n").unwrap();
    let names = body.split("Request::").skip(1);
    let word = |s: &str| s.chars().take_while(|c| c.is_alphanumeric()).collect();
    let listed: BTreeSet<String> = names.map(word).collect();
    let (mut owner, mut others) = (BTreeSet::new(), BTreeSet::new());
    for (name, takes) in rows() {
        match takes.iter().any(|t| t == OWNER) {
            true => owner.insert(name),
            false => others.insert(name),
        };
    }
    assert_eq!(others, listed);
    assert!(owner.contains("PoolDestroy"));
}
