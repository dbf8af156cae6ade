//! Administration without a machine around it: disks in memory, mounts in a map.

use admin::alone::{Alone, MemoryDoor, MemoryMount};
use admin::datasets::{create, destroy, get, mount, rename, set};
use admin::{pools, Admin, Answer, Paths, Settings};
use api::{
    DatasetCreate, DatasetDestroy, DatasetGet, DatasetKind, ImportScan, Peer, PoolCreate,
    PoolImport, Select, Value, VdevClass, VdevKind, VdevSpec,
};
use env_sim::MemDisks;
use std::path::Path;
use std::sync::Arc;
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
        let settings = Settings {
            paths: Paths {
                cache_file: "none".into(),
                mount_root: "/".into(),
            },
            mount_options: Vec::new(),
            multihost: pool::Multihost::default(),
        };
        World {
            admin: Admin::new(env, settings, door.clone(), process),
            door,
            disks,
        }
    }

    fn create_pool(&self) -> Answer<()> {
        let ask = PoolCreate {
            name: "p".into(),
            vdevs: vec![VdevSpec {
                kind: VdevKind::Disk,
                class: VdevClass::Normal,
                path: Some("/dev/a".into()),
                children: Vec::new(),
            }],
            props: vec![("cachefile".into(), "none".into())],
            command: "zpool create p /dev/a".into(),
            ..PoolCreate::default()
        };
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
        let mut got = get::get(&self.admin, &ask, &mut |_| Ok(())).unwrap();
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
