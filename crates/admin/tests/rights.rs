//! What callers may do who are neither root nor the owner of the pools.

use admin::alone::{self, Alone, MemoryDoor};
use admin::datasets::rights;
use admin::datasets::{create, destroy, mount, permissions, rename, send, set, snapshots};
use admin::{pools, Admin, Answer};
use api::{
    Batch, DatasetClone, DatasetCreate, DatasetDestroy, Delegate, Delegation, Holding, Peer,
    Rollback, Send, SnapshotCreate,
};
use base::Kind;
use std::sync::Arc;

const fn user(uid: u32) -> Peer {
    Peer {
        uid,
        gid: uid,
        pid: 1,
    }
}
const ROOT: Peer = user(0);
const JOE: Peer = user(1000);

/// A pool `p` with the file system `p/a`.
fn world() -> Arc<Admin> {
    world_of(128 << 20)
}

fn world_of(size: u64) -> Arc<Admin> {
    let (env, disks) = env_sim::mem_env(7);
    disks.add("/dev/a", size);
    let process = Arc::new(Alone::new(env.clone(), pool::Tunables::default()));
    let settings = alone::settings();
    let admin = Admin::new(env, settings, Arc::new(MemoryDoor::default()), process);
    let ask = alone::pool_on("p", "/dev/a");
    pools::create::create(&admin, ROOT, ask).unwrap();
    make(&admin, ROOT, "p/a", &[]).unwrap();
    admin
}

fn make(admin: &Arc<Admin>, peer: Peer, name: &str, props: &[(&str, &str)]) -> Answer<()> {
    let own = |(n, v): &(&str, &str)| (n.to_string(), v.to_string());
    let ask = DatasetCreate {
        name: name.into(),
        props: props.iter().map(own).collect(),
        ..DatasetCreate::default()
    };
    let made = create::create(admin, peer, &ask)?;
    match made.mount_failed {
        Some(e) => Err(e),
        None => Ok(()),
    }
}

fn snapshot(admin: &Arc<Admin>, peer: Peer, name: &str, recursive: bool) -> Answer<()> {
    let ask = SnapshotCreate {
        names: vec![name.into()],
        recursive,
        ..SnapshotCreate::default()
    };
    snapshots::create(admin, peer, &ask).map(drop)
}

fn remove(admin: &Arc<Admin>, peer: Peer, name: &str) -> Answer<()> {
    let ask = DatasetDestroy {
        name: name.into(),
        ..DatasetDestroy::default()
    };
    destroy::destroy(admin, peer, &ask).map(drop)
}

fn clone(admin: &Arc<Admin>, peer: Peer, snapshot: &str, name: &str) -> Answer<()> {
    let ask = DatasetClone {
        snapshot: snapshot.into(),
        name: name.into(),
        ..DatasetClone::default()
    };
    snapshots::clone(admin, peer, &ask).map(drop)
}

fn assign(admin: &Arc<Admin>, peer: Peer, name: &str, prop: &str, value: &str) -> Answer<()> {
    let list = vec![(prop.to_string(), value.to_string())];
    set::set(admin, peer, name, &list, false, String::new()).map(drop)
}

fn give(admin: &Arc<Admin>, peer: Peer, name: &str, to: Delegate, what: &str) -> Answer<()> {
    let list = [Delegation {
        to,
        local: false,
        descendent: false,
        permissions: what.split(',').map(str::to_string).collect(),
    }];
    permissions::allow(admin, peer, name, &list, String::new())
}

#[track_caller]
fn denied<R>(r: Answer<R>) {
    let Err(e) = r else {
        panic!("it was not refused");
    };
    assert_eq!(e.code, Kind::NotPermitted.errno(), "{e:?}");
}

/// Whoever may not do it is told nothing, and keeps nobody waiting while everything is collected.
#[test]
fn permissions_come_before_plans() {
    let a = world();
    for name in ["p/a/b", "p/roots"] {
        make(&a, ROOT, name, &[]).unwrap();
    }
    snapshot(&a, ROOT, "p/a@s", true).unwrap();
    let look = |peer: Peer, name: &str, recursive: bool| {
        let ask = DatasetDestroy {
            name: name.into(),
            recursive,
            dry_run: true,
            reclaim: true,
            ..DatasetDestroy::default()
        };
        destroy::destroy(&a, peer, &ask).map(|d| d.names.len())
    };
    for (name, recursive) in [
        ("p", true),
        ("p/a", true),
        ("p/a", false),
        ("p/a@s", false),
        ("p/a@s", true),
        ("p/a@%", true),
        ("p/a@none", false),
    ] {
        denied(look(JOE, name, recursive));
    }
    give(&a, ROOT, "p/a", Delegate::User(1000), "destroy,mount").unwrap();
    assert_eq!(look(JOE, "p/a", true).unwrap(), 4);
    assert_eq!(look(JOE, "p/a@%", true).unwrap(), 2);
    denied(look(JOE, "p", true));
    // A head has one snapshot in a request, under however many names it is asked for.
    let many = |peer: Peer, names: &[&str]| {
        let ask = SnapshotCreate {
            names: names.iter().map(|n| n.to_string()).collect(),
            recursive: true,
            ..SnapshotCreate::default()
        };
        snapshots::create(&a, peer, &ask)
    };
    denied(many(JOE, &["p/a@x", "p/a@y"]));
    let e = many(ROOT, &["p/a@x", "p/a/b@y"]).unwrap_err();
    assert!(e.message.contains("multiple snapshots of same fs"), "{e:?}");
    many(ROOT, &["p/a@x", "p/a/b@x", "p/a@x"]).unwrap();
}

#[test]
fn nothing_is_done_for_a_caller_without_permissions() {
    let a = world();
    snapshot(&a, ROOT, "p/a@s", false).unwrap();
    let hold = Holding {
        tag: "t".into(),
        snapshots: vec!["p/a@s".into()],
        ..Holding::default()
    };
    let back = Rollback {
        snapshot: "p/a@s".into(),
        ..Rollback::default()
    };
    denied(make(&a, JOE, "p/a/b", &[]));
    denied(snapshot(&a, JOE, "p/a@t", true));
    denied(remove(&a, JOE, "p/a@s"));
    // Without its snapshots it could not be destroyed by anybody.
    let tree = DatasetDestroy {
        name: "p/a".into(),
        recursive: true,
        ..DatasetDestroy::default()
    };
    denied(destroy::destroy(&a, JOE, &tree).map(drop));
    denied(clone(&a, JOE, "p/a@s", "p/c"));
    denied(assign(&a, JOE, "p/a", "compression", "off"));
    denied(assign(&a, JOE, "p/a", "com.example:x", "y"));
    denied(assign(&a, JOE, "p/a", "userquota@0", "1M"));
    let inherited = set::inherit(&a, JOE, "p/a", "atime", false, false, String::new());
    denied(inherited.map(drop));
    let how = rename::How::default;
    denied(rename::rename(&a, JOE, "p/a", "p/b", how(), String::new()));
    denied(rename::rename(
        &a,
        JOE,
        "p/a@s",
        "p/a@t",
        how(),
        String::new(),
    ));
    denied(snapshots::rollback(&a, JOE, &back).map(drop));
    denied(snapshots::bookmark(
        &a,
        JOE,
        "p/a@s",
        "p/a#m",
        String::new(),
    ));
    denied(mount::unmount(&a, JOE, "p/a", true).map(drop));
    denied(give(&a, JOE, "p/a", Delegate::User(1000), "mount"));
    let all = [Delegation {
        to: Delegate::User(1000),
        local: true,
        descendent: true,
        permissions: Vec::new(),
    }];
    denied(permissions::unallow(
        &a,
        JOE,
        "p/a",
        &all,
        false,
        String::new(),
    ));
    let refused = |held: Batch, why: Kind| {
        assert!(held.done.is_empty());
        assert_eq!(held.failed[0].1.code, why.errno());
    };
    refused(snapshots::hold(&a, JOE, &hold).unwrap(), Kind::NotPermitted);
    // Anybody may see which holds there are.
    refused(snapshots::release(&a, JOE, &hold).unwrap(), Kind::NotFound);
    assert!(snapshots::hold(&a, ROOT, &hold).unwrap().failed.is_empty());
    refused(
        snapshots::release(&a, JOE, &hold).unwrap(),
        Kind::NotPermitted,
    );
    assert!(snapshots::release(&a, ROOT, &hold)
        .unwrap()
        .failed
        .is_empty());
    assert!(mount::unmount_all(&a, JOE, true).done.is_empty());
}

#[test]
fn permissions_of_users_groups_creators_and_sets_count() {
    let a = world();
    let u = Delegate::User(1000);
    let root = |to, name, what| give(&a, ROOT, name, to, what).unwrap();
    root(u.clone(), "p/a", "create,mount,snapshot,clone");
    root(Delegate::Set("@s".into()), "p", "atime,destroy");
    root(Delegate::Creator, "p", "compression,@s");
    // Properties take their own; what creators get counts at once.
    denied(make(&a, JOE, "p/a/b", &[("quota", "1M")]));
    make(
        &a,
        JOE,
        "p/a/b",
        &[("compression", "off"), ("atime", "off")],
    )
    .unwrap();
    assign(&a, JOE, "p/a/b", "compression", "lz4").unwrap();
    denied(assign(&a, JOE, "p/a", "compression", "lz4"));
    snapshot(&a, JOE, "p/a@s", true).unwrap();
    clone(&a, JOE, "p/a/b@s", "p/a/c").unwrap();
    denied(clone(&a, JOE, "p/a/b@s", "p/d"));
    remove(&a, JOE, "p/a/c").unwrap();
    // What is local to a file system is not its snapshots'.
    denied(remove(&a, JOE, "p/a/b@s"));
    let entry = a.find("p").unwrap();
    let owner = |name: &str| {
        let ds = entry.pool.dsl().dataset(name).unwrap();
        let m = entry.mounted(ds.object()).unwrap();
        let zfs = m.head.zfs();
        let attr = zfs.getattr(&zfs.root().unwrap());
        (attr.uid, attr.gid)
    };
    assert_eq!(owner("p/a/b"), (1000, 1000));
    // Groups, as far as the kernel tells them.
    let ann = user(2000);
    root(Delegate::Group(77), "p/a", "snapshot");
    denied(snapshot(&a, ann, "p/a@g", false));
    rights::with_groups(vec![5, 77], || snapshot(&a, ann, "p/a@g", false)).unwrap();
    root(Delegate::Everyone, "p/a", "bookmark");
    snapshots::bookmark(&a, ann, "p/a@g", "p/a#m", String::new()).unwrap();
    // Giving what one has; not sets, not the permission to give.
    root(u.clone(), "p/a", "allow");
    give(&a, JOE, "p/a", Delegate::User(2000), "snapshot").unwrap();
    denied(give(&a, JOE, "p/a", Delegate::User(2000), "destroy"));
    denied(give(&a, JOE, "p/a", Delegate::User(2000), "allow"));
    denied(give(&a, JOE, "p/a", Delegate::User(2000), "@s"));
    snapshot(&a, ann, "p/a@h", false).unwrap();
    for bad in ["fly", "used", "@a/b", "@"] {
        let e = give(&a, ROOT, "p/a", u.clone(), bad).unwrap_err();
        assert_eq!(e.code, Kind::Invalid.errno(), "{bad}: {e:?}");
    }
    // The pool's property turns it off and on.
    let switch = |v: &str| {
        let list = vec![("delegation".to_string(), v.to_string())];
        pools::set::set(&a, ROOT, "p", &list, "").unwrap();
    };
    switch("off");
    denied(snapshot(&a, JOE, "p/a@i", false));
    switch("on");
    snapshot(&a, JOE, "p/a@i", false).unwrap();
}

#[test]
fn missing_parents_ask_for_permissions_at_each_of_them() {
    let a = world();
    make(&a, ROOT, "p/o", &[]).unwrap();
    snapshot(&a, ROOT, "p/o@s", false).unwrap();
    let give_in = |local, descendent, name: &str, to, what: &str| {
        let list = [Delegation {
            to,
            local,
            descendent,
            permissions: what.split(',').map(str::to_string).collect(),
        }];
        permissions::allow(&a, ROOT, name, &list, String::new()).unwrap();
    };
    let joe = || Delegate::User(1000);
    give_in(false, false, "p/o", joe(), "clone,rename,mount");
    // Only at the nearest parent: enough for what is made there, not for what is made below that.
    give_in(true, false, "p/a", joe(), "create,mount");
    let make_all = |name: &str| {
        let ask = DatasetCreate {
            name: name.into(),
            parents: true,
            ..DatasetCreate::default()
        };
        create::create(&a, JOE, &ask).map(drop)
    };
    let clone_all = |name: &str| {
        let ask = DatasetClone {
            snapshot: "p/o@s".into(),
            name: name.into(),
            parents: true,
            ..DatasetClone::default()
        };
        snapshots::clone(&a, JOE, &ask).map(drop)
    };
    let move_all = |from: &str, to: &str| {
        let how = rename::How {
            parents: true,
            ..rename::How::default()
        };
        rename::rename(&a, JOE, from, to, how, String::new())
    };
    let entry = a.find("p").unwrap();
    let exists = |name: &str| entry.pool.dsl().dir(name).is_ok();
    make_all("p/a/one").unwrap();
    clone_all("p/a/two").unwrap();
    denied(make_all("p/a/x/y"));
    denied(clone_all("p/a/x/y"));
    denied(move_all("p/o", "p/a/x/y"));
    assert!(!exists("p/a/x") && exists("p/o"));
    // One of the two permissions is not enough; what creators get completes it.
    give_in(false, true, "p/a", joe(), "create");
    denied(make_all("p/a/x/y"));
    give_in(false, false, "p", Delegate::Creator, "mount");
    make_all("p/a/x/y/z").unwrap();
    clone_all("p/a/u/v/w").unwrap();
    move_all("p/o", "p/a/r/s/t").unwrap();
    assert!(exists("p/a/x/y/z") && exists("p/a/u/v/w") && exists("p/a/r/s/t"));
    // Delegated to descendents alone, nothing is made at the nearest parent.
    give_in(false, true, "p", joe(), "create,mount");
    denied(make_all("p/n/m"));
    assert!(!exists("p/n"));
}

#[test]
fn limits_count_whole_requests_of_those_they_bind() {
    let a = world();
    let what = "create,mount,snapshot,rename,clone";
    give(&a, ROOT, "p/a", Delegate::User(1000), what).unwrap();
    make(&a, ROOT, "p/a/b", &[]).unwrap();
    assign(&a, ROOT, "p/a", "filesystem_limit", "2").unwrap();
    assign(&a, ROOT, "p/a", "snapshot_limit", "3").unwrap();
    let full = |r: Answer<()>| assert_eq!(r.unwrap_err().code, Kind::Quota.errno());
    make(&a, JOE, "p/a/b/c", &[]).unwrap();
    full(make(&a, JOE, "p/a/d", &[]));
    snapshot(&a, JOE, "p/a/b@s", false).unwrap();
    full(snapshot(&a, JOE, "p/a@t", true));
    full(clone(&a, JOE, "p/a/b@s", "p/a/d"));
    snapshot(&a, JOE, "p/a@t", false).unwrap();
    let how = rename::How::default();
    rename::rename(&a, JOE, "p/a/b/c", "p/a/c", how, String::new()).unwrap();
    snapshot(&a, ROOT, "p/a@u", true).unwrap();
    full(snapshot(&a, JOE, "p/a@v", false));
    give(&a, ROOT, "p/a", Delegate::User(1000), "snapshot_limit").unwrap();
    snapshot(&a, JOE, "p/a@v", false).unwrap();
}

/// What a request lists is in memory until it is answered.
#[test]
fn a_request_of_a_user_is_about_so_many_datasets_at_most() {
    let a = world_of(1 << 30);
    give(&a, ROOT, "p/a", Delegate::User(1000), "destroy,mount,send").unwrap();
    let most = rights::MOST_OF_USERS;
    // So many file systems with as many snapshots each.
    let side = most.isqrt();
    assert_eq!(side * side, most);
    make(&a, ROOT, "p/a/many", &[]).unwrap();
    for n in 1..side {
        make(&a, ROOT, &format!("p/a/many/n{n}"), &[]).unwrap();
    }
    for n in 0..side {
        snapshot(&a, ROOT, &format!("p/a/many@{n}"), true).unwrap();
    }
    let list = |peer: Peer, spec: &str| {
        let ask = DatasetDestroy {
            name: format!("p/a/many@{spec}"),
            recursive: true,
            dry_run: true,
            ..DatasetDestroy::default()
        };
        let work = || destroy::destroy(&a, peer, &ask).map(|d| d.names.len());
        match peer.uid {
            0 => work(),
            _ => rights::for_stranger(work),
        }
    };
    let plan = |peer: Peer| {
        let ask = Send {
            target: format!("p/a/many@{}", side - 2),
            replicate: true,
            dry_run: true,
            ..Send::default()
        };
        let work = || send::send(&a, peer, &ask, None, &mut |_| {}).map(|p| p.streams.len());
        match peer.uid {
            0 => work(),
            _ => rights::for_stranger(work),
        }
    };
    assert_eq!(list(JOE, "%").unwrap(), most);
    snapshot(&a, ROOT, &format!("p/a/many@{side}"), false).unwrap();
    assert_eq!(list(ROOT, "%").unwrap(), most + 1);
    for e in [list(JOE, "%").unwrap_err(), plan(JOE).unwrap_err()] {
        assert_eq!(e.code, Kind::ArgTooBig.errno(), "{e:?}");
        assert!(e.message.contains("name fewer at a time"), "{e:?}");
    }
    assert_eq!(list(JOE, "1%").unwrap(), side * (side - 1) + 1);
    assert_eq!(plan(ROOT).unwrap(), side * (side - 1));
}
