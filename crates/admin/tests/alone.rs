//! Administration without a machine around it: disks in memory, mounts in a map.

use admin::alone::{self, Alone, MemoryDoor, MemoryMount};
use admin::commands::Commands;
use admin::datasets::{create, destroy, get, look, mount, rename, set, share, snapshots};
use admin::shares::{Candidate, Share, Sharer};
use admin::{pools, Admin, Answer};
use api::{
    DatasetCreate, DatasetDestroy, DatasetGet, DatasetKind, Holding, ImportScan, Peer, PoolImport,
    Select, SnapshotCreate, Value,
};
use env_sim::MemDisks;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{mpsc, Arc, Mutex, OnceLock, Weak};
use std::time::Duration;
use zpl::{Cred, New};

const ROOT: Peer = Peer {
    uid: 0,
    gid: 0,
    pid: 1,
};

struct World {
    admin: Arc<Admin>,
    door: Arc<MemoryDoor>,
    disks: Arc<MemDisks>,
}

impl World {
    fn new() -> World {
        let (env, disks) = env_sim::mem_env(7);
        disks.add("/dev/a", 128 << 20);
        World::on(env, disks)
    }

    fn on(env: env::Env, disks: Arc<MemDisks>) -> World {
        let door = Arc::new(MemoryDoor::default());
        let process = Arc::new(Alone::new(env.clone(), pool::Tunables::default()));
        let settings = alone::settings();
        World {
            admin: Admin::new(env, settings, door.clone(), process),
            door,
            disks,
        }
    }

    fn create_pool(&self) -> Answer<()> {
        let ask = alone::pool_on("p", "/dev/a");
        pools::create::create(&self.admin, ROOT, ask)
    }

    fn create(&self, name: &str, props: &[(&str, &str)]) -> Answer<api::Created> {
        let ask = DatasetCreate {
            name: name.into(),
            props: own(props),
            ..DatasetCreate::default()
        };
        create::create(&self.admin, ROOT, &ask)
    }

    fn get(&self, name: &str, prop: &str) -> Value {
        let ask = DatasetGet {
            roots: vec![name.into()],
            kinds: vec![DatasetKind::Filesystem],
            depth: Some(0),
            props: Select::These(vec![prop.into()]),
            listsnapshots: false,
        };
        let mut got = get::get(&self.admin, ROOT, &ask, &mut |_| Ok(())).unwrap();
        got.found.remove(0).props.remove(0).value
    }

    fn places(&self) -> Vec<String> {
        let places = self.door.places();
        let shown = places.keys().map(|p| p.to_string_lossy().into_owned());
        shown.collect()
    }

    /// Works with what is mounted at a place.
    fn at<R>(&self, place: &str, work: impl FnOnce(&MemoryMount) -> R) -> R {
        let entry = self.admin.find("p").unwrap();
        let all = entry.all_mounts();
        let m = all.iter().find(|m| m.path == Path::new(place)).unwrap();
        work(m.mount.as_any().downcast_ref().unwrap())
    }
}

fn own(props: &[(&str, &str)]) -> api::Props {
    let own = |(n, v): &(&str, &str)| (n.to_string(), v.to_string());
    props.iter().map(own).collect()
}

#[test]
fn a_pool_lives_without_threads_and_comes_back() {
    let w = World::new();
    w.create_pool().unwrap();
    assert_eq!(w.create_pool().unwrap_err().code, 17);
    w.create("p/a", &[("compression", "zstd"), ("mountpoint", "/x")])
        .unwrap();
    w.create("p/a/b", &[]).unwrap();
    assert_eq!(w.places(), ["/p", "/x", "/x/b"]);
    set::set(
        &w.admin,
        ROOT,
        "p/a",
        &own(&[("mountpoint", "/y"), ("quota", "10M")]),
        false,
        "zfs set".into(),
    )
    .unwrap();
    assert_eq!(w.places(), ["/p", "/y", "/y/b"]);
    set::set(
        &w.admin,
        ROOT,
        "p/a",
        &own(&[("readonly", "on")]),
        false,
        "zfs set".into(),
    )
    .unwrap();
    assert!(w.at("/y", |m| m.options().read_only));
    rename::rename(
        &w.admin,
        ROOT,
        "p/a/b",
        "p/c",
        rename::How::default(),
        "zfs rename".into(),
    )
    .unwrap();
    assert_eq!(w.places(), ["/p", "/p/c", "/y"]);
    // What covers another one is in its way.
    let busy = mount::unmount(&w.admin, ROOT, "p", false);
    assert!(busy.is_ok(), "{busy:?}");
    assert_eq!(w.places(), ["/y"]);
    for (name, said) in [
        ("p", "operation does not apply to pools"),
        ("q", "dataset does not exist"),
    ] {
        let ask = DatasetDestroy {
            name: name.into(),
            ..DatasetDestroy::default()
        };
        let refused = destroy::destroy(&w.admin, ROOT, &ask).unwrap_err();
        assert!(refused.to_string().contains(said), "{refused}");
    }
    let ask = DatasetDestroy {
        name: "p/c".into(),
        command: "zfs destroy p/c".into(),
        ..DatasetDestroy::default()
    };
    destroy::destroy(&w.admin, ROOT, &ask).unwrap();
    let how = pools::Leave::default();
    assert_eq!(
        pools::leave(&w.admin, ROOT, "p", how, "zpool export p").unwrap(),
        None
    );
    assert!(w.admin.pools().is_empty() && w.places().is_empty());

    let w = World::on(w.admin.env.clone(), w.disks.clone());
    let ask = PoolImport {
        pool: "p".into(),
        search: ImportScan {
            places: vec!["/dev/a".into()],
            ..ImportScan::default()
        },
        props: vec![("cachefile".into(), "none".into())],
        command: "zpool import p".into(),
        ..PoolImport::default()
    };
    let done = pools::import::import(&w.admin, ROOT, ask, &|| false).unwrap();
    assert!(done.failed_mounts.is_empty());
    assert_eq!(w.places(), ["/p", "/y"]);
    assert_eq!(w.get("p/a", "compression"), Value::Text("zstd".into()));
    assert_eq!(w.get("p/a", "quota"), Value::Number(10 << 20));
    let mut commands = Vec::new();
    pools::history(&w.admin, "p", false, &mut |part| {
        commands.extend(part.into_iter().filter_map(|r| r.command));
        Ok(())
    })
    .unwrap();
    assert_eq!(commands.len(), 7, "{commands:?}");
}

/// What a rollback destroys and the going back itself are one txg, so no power cut comes between; and the history has a
/// record of the request.
#[test]
fn a_rollback_over_younger_snapshots_is_one_txg() {
    let w = World::new();
    w.create_pool().unwrap();
    w.create("p/a", &[]).unwrap();
    let c = Commands(w.admin.clone());
    for n in 0..120 {
        c.snapshot(&format!("p/a@{n}")).unwrap();
    }
    c.rollback("p/a@0").unwrap();
    let mut records = Vec::new();
    pools::history(&w.admin, "p", true, &mut |part| {
        records.extend(part);
        Ok(())
    })
    .unwrap();
    let txgs = |event: &str| -> Vec<u64> {
        let of = records.iter().filter(|r| r.event.as_deref() == Some(event));
        of.filter_map(|r| r.txg).collect()
    };
    let (swapped, destroyed) = (txgs("clone swap"), txgs("destroy"));
    assert_eq!((swapped.len(), destroyed.len()), (1, 119), "{records:?}");
    assert!(destroyed.iter().all(|t| *t == swapped[0]), "{records:?}");
    let asked = records
        .iter()
        .filter(|r| r.ioctl.as_deref() == Some("rollback"));
    let asked: Vec<_> = asked.map(|r| r.input.join(" ")).collect();
    assert_eq!(asked.len(), 1);
    assert!(asked[0].contains("p/a@0"), "{asked:?}");
    pools::leave(
        &w.admin,
        ROOT,
        "p",
        pools::Leave::default(),
        "zpool export p",
    )
    .unwrap();
}

#[test]
fn a_suspended_head_is_closed_and_goes_on_with_what_is_there() {
    let w = World::new();
    w.create_pool().unwrap();
    w.at("/p", |m| {
        let cred = Cred::root();
        {
            let inside = m.head.enter();
            let root = inside.zfs.root().unwrap();
            let new = New::file(0o40755, 0o22);
            inside.zfs.create(&root, b"kept", &new, &cred).unwrap();
        }
        let suspended = m.head.suspend().unwrap();
        // Nothing is open, and nothing is left to replay.
        assert!(m.head.try_enter().is_none());
        let before = m.head.zfs();
        let after = suspended.resume(|_| Ok(())).unwrap();
        assert!(!Arc::ptr_eq(&before, &after));
        let inside = m.head.try_enter().unwrap();
        let root = inside.zfs.root().unwrap();
        inside.zfs.lookup(&root, b"kept", &cred).unwrap();
    });
}

/// Names of everything in the pool, snapshots included.
fn all_names(w: &World) -> Vec<String> {
    let ask = DatasetGet {
        roots: vec!["p".into()],
        kinds: vec![DatasetKind::Filesystem, DatasetKind::Snapshot],
        depth: None,
        props: Select::Nothing,
        listsnapshots: false,
    };
    let mut names = Vec::new();
    let last = get::get(&w.admin, ROOT, &ask, &mut |part| {
        names.extend(part.found.into_iter().map(|d| d.name));
        Ok(())
    });
    names.extend(last.unwrap().found.into_iter().map(|d| d.name));
    names
}

/// The last of them refuses: nothing of what the others would have let happen has happened.
#[test]
fn recursive_commands_over_a_thousand_file_systems_do_all_or_nothing() {
    const MANY: usize = 1000;
    // Each snapshot needs 48 KiB to be allowed.
    let (env, disks) = env_sim::mem_env(7);
    disks.add("/dev/a", 512 << 20);
    let w = World::on(env, disks);
    w.create_pool().unwrap();
    for n in 0..MANY {
        w.create(&format!("p/f{n:04}"), &[("canmount", "off")])
            .unwrap();
    }
    let c = Commands(w.admin.clone());
    let last = format!("p/f{:04}", MANY - 1);
    let snapshot_all = |name: &str| {
        let ask = SnapshotCreate {
            names: vec![name.into()],
            recursive: true,
            ..SnapshotCreate::default()
        };
        snapshots::create(&w.admin, ROOT, &ask)
    };
    let hold_all = |tag: &str, name: &str| {
        let ask = Holding {
            tag: tag.into(),
            snapshots: vec![name.into()],
            recursive: true,
            ..Holding::default()
        };
        snapshots::hold(&w.admin, ROOT, &ask).unwrap()
    };
    let destroy_all = |name: &str| {
        let ask = DatasetDestroy {
            name: name.into(),
            recursive: true,
            ..DatasetDestroy::default()
        };
        destroy::destroy(&w.admin, ROOT, &ask)
    };

    c.snapshot(&format!("{last}@s")).unwrap();
    let before = all_names(&w);
    let refused = snapshot_all("p@s").unwrap_err();
    let said = format!("cannot create snapshot '{last}@s': dataset already exists");
    assert!(refused.to_string().contains(&said), "{refused}");
    assert_eq!(all_names(&w), before);
    c.destroy(&format!("{last}@s")).unwrap();

    snapshot_all("p@s").unwrap();
    c.snapshot(&format!("{last}@t")).unwrap();
    let before = all_names(&w);
    assert_eq!(before.len(), 2 * (MANY + 1) + 1);
    let refused = c.rename_all("p@s", "p@t").unwrap_err();
    assert_eq!(refused.kind, base::Kind::Exists);
    assert_eq!(all_names(&w), before);

    c.hold("tag", &format!("{last}@s")).unwrap();
    let refused = hold_all("tag", "p@s");
    assert!(refused.done.is_empty());
    assert_eq!(refused.failed.len(), 1);
    assert_eq!(refused.failed[0].0, format!("{last}@s"));
    let first = w.admin.find("p").unwrap().pool.dsl().dataset("p/f0000@s");
    assert_eq!(first.unwrap().holds().unwrap(), 0);
    let refused = destroy_all("p@s").unwrap_err();
    assert!(refused.to_string().contains("it's being held"), "{refused}");
    let refused = destroy_all("p").unwrap_err();
    assert!(refused.to_string().contains("it's being held"), "{refused}");
    assert_eq!(all_names(&w), before);
    c.release("tag", &format!("{last}@s")).unwrap();

    c.clone_unmounted(&format!("{last}@s"), "p/g").unwrap();
    let before = all_names(&w);
    let refused = destroy_all("p@s").unwrap_err();
    assert!(
        refused.to_string().contains("dependent clones"),
        "{refused}"
    );
    assert_eq!(all_names(&w), before);
    c.destroy("p/g").unwrap();
    destroy_all("p@s").unwrap();
    destroy_all("p").unwrap();
    assert_eq!(all_names(&w), ["p"]);
}

#[test]
fn files_without_a_name_are_waited_for_until_they_are_freed() {
    let w = World::new();
    w.create_pool().unwrap();
    w.create("p/a", &[]).unwrap();
    let left = |name: &str| {
        let list = look::activity(&w.admin, name).unwrap();
        assert_eq!((list.len(), list[0].name.as_str()), (1, "deleteq"));
        assert_eq!(list[0].running, list[0].remaining > 0);
        list[0].remaining
    };
    assert_eq!(left("p/a"), 0);
    let cred = Cred::root();
    let file = w.at("/p/a", |m| {
        let inside = m.head.enter();
        let root = inside.zfs.root().unwrap();
        let new = New::file(0o100644, 0o22);
        let file = inside.zfs.create(&root, b"f", &new, &cred).unwrap();
        inside.zfs.unlink(&root, b"f", &cred).unwrap();
        file
    });
    assert_eq!((left("p/a"), left("p")), (1, 0));
    drop(file);
    w.at("/p/a", |m| m.head.enter().zfs.reap().unwrap());
    assert_eq!(left("p/a"), 0);
    mount::unmount(&w.admin, ROOT, "p/a", false).unwrap();
    assert_eq!(left("p/a"), 0);
    assert_eq!(look::activity(&w.admin, "p/b").unwrap_err().code, 2);
}

/// A busy mount, or one behind a file system that does not answer, takes seconds.
#[test]
fn nobody_waits_while_a_change_unmounts() {
    let w = World::new();
    w.create_pool().unwrap();
    w.create("p/a", &[]).unwrap();
    w.create("p/a/b", &[]).unwrap();
    let entry = w.admin.find("p").unwrap();
    let waited_for = Arc::new(AtomicUsize::new(0));
    let count = waited_for.clone();
    w.door.while_unmounting(move || {
        let (entry, (ended, end)) = (entry.clone(), mpsc::channel());
        std::thread::spawn(move || {
            drop((entry.pass(), entry.names.write()));
            let _ = ended.send(());
        });
        let free = end.recv_timeout(Duration::from_secs(20));
        assert!(free.is_ok(), "the names of the pool are locked");
        count.fetch_add(1, Ordering::SeqCst);
    });
    let unmounted = |n: usize| assert_eq!(waited_for.swap(0, Ordering::SeqCst), n);
    let set = |name: &str, prop: &str, value: &str| {
        let props = own(&[(prop, value)]);
        set::set(&w.admin, ROOT, name, &props, false, String::new()).unwrap()
    };
    set("p/a", "mountpoint", "/x");
    unmounted(2);
    assert_eq!(w.places(), ["/p", "/x", "/x/b"]);
    set("p/a", "canmount", "off");
    unmounted(2);
    assert_eq!(w.places(), ["/p", "/x/b"]);
    set("p/a", "canmount", "on");
    set::inherit(
        &w.admin,
        ROOT,
        "p/a",
        "mountpoint",
        false,
        false,
        String::new(),
    )
    .unwrap();
    unmounted(1);
    assert_eq!(w.places(), ["/p", "/p/a", "/p/a/b"]);
    let how = rename::How::default();
    rename::rename(&w.admin, ROOT, "p/a", "p/c", how, String::new()).unwrap();
    unmounted(2);
    assert_eq!(w.places(), ["/p", "/p/c", "/p/c/b"]);
    // What is refused unmounts nothing.
    rename::rename(&w.admin, ROOT, "p/c", "p/c/d", how, String::new()).unwrap_err();
    let ask = |recursive: bool| DatasetDestroy {
        name: "p/c".into(),
        recursive,
        ..DatasetDestroy::default()
    };
    destroy::destroy(&w.admin, ROOT, &ask(false)).unwrap_err();
    let props = own(&[("mountpoint", "/y"), ("canmount", "never")]);
    set::set(&w.admin, ROOT, "p/c", &props, false, String::new()).unwrap_err();
    unmounted(0);
    destroy::destroy(&w.admin, ROOT, &ask(true)).unwrap();
    unmounted(2);
    assert_eq!(w.places(), ["/p"]);
}

/// The kernel's server of NFS: nothing that it serves can be unmounted.
#[derive(Default)]
struct Holder {
    admin: OnceLock<Weak<Admin>>,
    served: Mutex<Vec<String>>,
}

impl Sharer for Holder {
    fn check(&self, _: &Candidate<'_>, _: &Share) -> base::Result<()> {
        Ok(())
    }

    fn changed(&self) -> base::Result<()> {
        let admin = self.admin.get().and_then(Weak::upgrade).unwrap();
        let all = share::list(&admin).into_iter();
        *self.served.lock().unwrap() = all.map(|s| s.mounted.ds.full_name()).collect();
        Ok(())
    }

    fn will_change(&self) {
        self.changed().unwrap();
    }

    fn holds_mounts(&self) -> bool {
        true
    }
}

#[test]
fn what_the_kernels_server_holds_is_unshared_before_it_is_unmounted() {
    let w = World::new();
    let holder = Arc::new(Holder::default());
    holder.admin.set(Arc::downgrade(&w.admin)).unwrap();
    w.admin.set_sharer(holder.clone());
    w.create_pool().unwrap();
    w.create("p/a", &[("sharenfs", "on")]).unwrap();
    w.create("p/a/b", &[]).unwrap();
    w.create("p/c", &[("sharenfs", "on")]).unwrap();
    let served = || holder.served.lock().unwrap().clone();
    assert_eq!(served(), ["p/a", "p/a/b", "p/c"]);
    let (seen, ours) = (Arc::new(Mutex::new(Vec::new())), holder.clone());
    let note = seen.clone();
    w.door.while_unmounting(move || {
        let now = ours.served.lock().unwrap().join(" ");
        note.lock().unwrap().push(now);
    });
    let seen = || std::mem::take(&mut *seen.lock().unwrap());
    mount::unmount(&w.admin, ROOT, "p/a", false).unwrap();
    assert_eq!(seen(), ["p/c", "p/c"]);
    let all = || mount::mount_all(&w.admin, ROOT, None, &[], false, false, &mut |_| {}).unwrap();
    all();
    assert_eq!(served(), ["p/a", "p/a/b", "p/c"]);
    // What stays is shared again.
    let props = own(&[("mountpoint", "/p/a/inner")]);
    set::set(&w.admin, ROOT, "p/a/b", &props, false, String::new()).unwrap();
    assert_eq!(seen(), ["p/a p/c"]);
    mount::unmount(&w.admin, ROOT, "p/a", false).unwrap_err();
    assert_eq!(seen(), [""; 0]);
    assert_eq!(served(), ["p/a", "p/a/b", "p/c"]);
    mount::unmount_all(&w.admin, ROOT, false);
    assert_eq!(seen(), ["p/a p/c", "p/c", "", ""]);
    all();
    let ask = DatasetDestroy {
        name: "p/a".into(),
        recursive: true,
        ..DatasetDestroy::default()
    };
    destroy::destroy(&w.admin, ROOT, &ask).unwrap();
    assert_eq!(seen(), ["p/c", "p/c"]);
    let leave = pools::Leave::default();
    pools::leave(&w.admin, ROOT, "p", leave, "").unwrap();
    assert_eq!(seen(), ["", ""]);
}
