//! Tests of requests on pools of image files, without mounts.

use crate::door::FuseDoor;
use crate::process::Threads;
use crate::requests;
use admin::{Admin, Paths, Settings};
use api::{
    ApiError, ImportScan, Importable, Peer, PoolCreate, PoolGet, PoolImport, Reply, Request,
    Select, Value, VdevClass, VdevKind, VdevSpec,
};
use control::Sink;
use disk::feature::FEATURES;
use fuse_zpl::Caching;
use std::fs;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;

pub(crate) struct Quiet;

impl Sink for Quiet {
    fn send(&mut self, _: Reply) -> Result<(), ApiError> {
        Ok(())
    }
    fn cancelled(&self) -> bool {
        false
    }
    fn pass(&mut self, _: BorrowedFd<'_>) -> Result<(), ApiError> {
        Ok(())
    }
}

/// A daemon's insides in a temporary folder.
pub(crate) struct Home {
    pub(crate) dir: PathBuf,
    pub(crate) admin: Arc<Admin>,
}

impl Drop for Home {
    fn drop(&mut self) {
        self.admin.shutdown();
        let _ = fs::remove_dir_all(&self.dir);
    }
}

fn service(dir: &std::path::Path) -> Arc<Admin> {
    let door = FuseDoor {
        caching: Caching::default(),
        transport: fuse::Transport::Auto,
        views: Default::default(),
    };
    let settings = Settings {
        paths: Paths {
            cache_file: dir.join("zpool.cache"),
            mount_root: dir.join("mnt"),
        },
        mount_options: Vec::new(),
        multihost: pool::Multihost::default(),
        ivsets_unchecked: false,
    };
    let process = Threads::new(64 << 20, Caching::default());
    Admin::new(env_linux::linux_env(), settings, Arc::new(door), process)
}

impl Home {
    pub(crate) fn new(images: usize) -> Home {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("zfs-pools-{}-{n}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(&dir).unwrap();
        for i in 0..images {
            let f = fs::File::create(dir.join(format!("d{i}"))).unwrap();
            f.set_len(64 << 20).unwrap();
        }
        let admin = service(&dir);
        Home { dir, admin }
    }

    pub(crate) fn image(&self, i: usize) -> String {
        self.dir.join(format!("d{i}")).to_str().unwrap().to_string()
    }

    pub(crate) fn leaf(&self, i: usize) -> VdevSpec {
        VdevSpec {
            kind: VdevKind::File,
            class: VdevClass::Normal,
            path: Some(self.image(i)),
            children: Vec::new(),
        }
    }

    pub(crate) fn mirror(&self, a: usize, b: usize) -> VdevSpec {
        VdevSpec {
            kind: VdevKind::Mirror,
            class: VdevClass::Normal,
            path: None,
            children: vec![self.leaf(a), self.leaf(b)],
        }
    }

    pub(crate) fn ask(&self, request: Request) -> Result<Reply, ApiError> {
        let peer = Peer {
            uid: 42,
            gid: 0,
            pid: 1,
        };
        requests::answer(&self.admin, peer, request, &mut Quiet)
    }

    pub(crate) fn spec(&self, name: &str, vdevs: Vec<VdevSpec>) -> PoolCreate {
        PoolCreate {
            name: name.into(),
            vdevs,
            fs_props: vec![("mountpoint".into(), "none".into())],
            command: format!("zpool create {name}"),
            ..PoolCreate::default()
        }
    }

    pub(crate) fn create(&self, spec: PoolCreate) -> Result<Reply, ApiError> {
        self.ask(Request::PoolCreate(spec))
    }

    pub(crate) fn get(&self, pool: &str, prop: &str) -> Value {
        let ask = PoolGet {
            pools: vec![pool.into()],
            props: Select::These(vec![prop.into()]),
            ..PoolGet::default()
        };
        match self.ask(Request::PoolGet(ask)) {
            Ok(Reply::Pools(mut a)) if a.failed.is_empty() => {
                a.found.remove(0).props.remove(0).value
            }
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn describe(&self, pool: &str) -> api::Pool {
        let ask = PoolGet {
            pools: vec![pool.into()],
            tree: true,
            props: Select::All,
            ..PoolGet::default()
        };
        match self.ask(Request::PoolGet(ask)) {
            Ok(Reply::Pools(mut a)) if a.failed.is_empty() => a.found.remove(0),
            other => panic!("{other:?}"),
        }
    }

    fn names(&self) -> Vec<String> {
        match self.ask(Request::PoolGet(PoolGet::default())) {
            Ok(Reply::Pools(a)) => a.found.into_iter().map(|p| p.name).collect(),
            other => panic!("{other:?}"),
        }
    }

    fn search(&self, destroyed: bool) -> ImportScan {
        ImportScan {
            places: vec![self.dir.to_str().unwrap().into()],
            default_places: false,
            cache_file: None,
            destroyed,
        }
    }

    pub(crate) fn scan(&self, destroyed: bool) -> Vec<Importable> {
        match self.ask(Request::ImportScan(self.search(destroyed))) {
            Ok(Reply::Importable(list)) => list,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn import(
        &self,
        pool: &str,
        f: impl FnOnce(&mut PoolImport),
    ) -> Result<Reply, ApiError> {
        let mut ask = PoolImport {
            search: self.search(false),
            pool: pool.into(),
            command: format!("zpool import {pool}"),
            ..PoolImport::default()
        };
        f(&mut ask);
        self.ask(Request::PoolImport(ask))
    }

    pub(crate) fn export(&self, pool: &str) {
        self.try_export(pool).unwrap();
    }

    pub(crate) fn try_export(&self, pool: &str) -> Result<Reply, ApiError> {
        self.ask(Request::PoolExport {
            pool: pool.into(),
            force: false,
            keep_active: false,
            command: format!("zpool export {pool}"),
        })
    }

    fn set(&self, pool: &str, name: &str, value: &str) -> Result<Reply, ApiError> {
        self.ask(Request::PoolSet {
            pool: pool.into(),
            props: vec![(name.into(), value.into())],
            command: format!("zpool set {name}={value} {pool}"),
        })
    }

    fn commands(&self, pool: &str) -> Vec<String> {
        match self.ask(Request::PoolHistory {
            pool: pool.into(),
            internal: false,
        }) {
            Ok(Reply::History(list)) => {
                assert!(list.iter().all(|r| r.uid == Some(42)));
                list.into_iter().filter_map(|r| r.command).collect()
            }
            other => panic!("{other:?}"),
        }
    }
}

fn text(v: Value) -> String {
    match v {
        Value::Text(t) => t,
        Value::Number(n) => n.to_string(),
        Value::None => "-".into(),
    }
}

#[test]
fn a_life() {
    let home = Home::new(3);
    let mut spec = home.spec("tank", vec![home.mirror(0, 1)]);
    spec.props = vec![
        ("comment".into(), "mine".into()),
        ("ashift".into(), "12".into()),
        ("feature@log_spacemap".into(), "disabled".into()),
    ];
    spec.dry_run = true;
    home.create(spec.clone()).unwrap();
    assert!(home.names().is_empty());
    spec.dry_run = false;
    home.create(spec.clone()).unwrap();
    assert_eq!(home.names(), ["tank"]);
    for (prop, value) in [
        ("comment", "mine"),
        ("ashift", "12"),
        ("health", "ONLINE"),
        ("feature@log_spacemap", "disabled"),
        ("feature@lz4_compress", "active"),
        ("readonly", "off"),
        ("altroot", "-"),
        ("failmode", "wait"),
    ] {
        assert_eq!(text(home.get("tank", prop)), value, "{prop}");
    }
    let p = home.describe("tank");
    assert_eq!(p.version, 5000);
    assert_eq!(p.facts.disabled_features, ["log_spacemap"]);
    let tree = p.tree.unwrap();
    assert_eq!(tree.children[0].kind, VdevKind::Mirror);
    assert_eq!(tree.children[0].children.len(), 2);
    assert!(tree.stats.space > 0 && tree.children[0].children[0].stats.write_ops > 0);

    // In use, and taken names.
    let e = home.create(spec.clone()).unwrap_err();
    assert!(e.message.contains("already exists"), "{e}");
    let mut other = home.spec("other", vec![home.leaf(0)]);
    other.force = true;
    let e = home.create(other).unwrap_err();
    assert!(e.message.contains("is part of active pool 'tank'"), "{e}");

    home.set("tank", "comment", "").unwrap();
    home.set("tank", "listsnapshots", "on").unwrap();
    home.set("tank", "a:b", "c").unwrap();
    for value in ["on", "off"] {
        home.set("tank", "autotrim", value).unwrap();
        assert_eq!(text(home.get("tank", "autotrim")), value);
    }
    home.set("tank", "feature@log_spacemap", "enabled").unwrap();
    for (name, value) in [
        ("size", "1"),
        ("readonly", "on"),
        ("nonsense", "1"),
        ("feature@log_spacemap", "disabled"),
        ("version", "28"),
        ("comment", "far too long for a comment of a pool"),
        ("compatibility", "no-such-set"),
        ("bootfs", "other"),
    ] {
        assert!(home.set("tank", name, value).is_err(), "{name}");
    }

    home.export("tank");
    assert!(home.names().is_empty());
    let e = home.create(home.spec("x", vec![home.leaf(1)])).unwrap_err();
    assert!(e.message.contains("is part of exported pool 'tank'"), "{e}");
    let seen = home.scan(false);
    assert_eq!((seen.len(), seen[0].name.as_str()), (1, "tank"));
    assert!(seen[0].exported && !seen[0].needs_force && seen[0].health == "ONLINE");

    // Read-only: nothing is written, nothing may be changed.
    let before = fs::read(home.dir.join("d0")).unwrap();
    home.import("tank", |i| {
        i.props = vec![("readonly".into(), "on".into())];
    })
    .unwrap();
    assert_eq!(text(home.get("tank", "readonly")), "on");
    assert!(home.set("tank", "comment", "x").is_err());
    home.export("tank");
    assert!(fs::read(home.dir.join("d0")).unwrap() == before);

    // For this import only, then for good.
    home.import("tank", |i| {
        i.new_name = Some("guest".into());
        i.temporary = true;
    })
    .unwrap();
    assert_eq!(text(home.get("guest", "tname")), "guest");
    home.export("guest");
    assert_eq!(home.scan(false)[0].name, "tank");
    home.import("tank", |i| i.new_name = Some("pond".into()))
        .unwrap();
    assert_eq!(text(home.get("pond", "listsnapshots")), "on");
    assert_eq!(text(home.get("pond", "a:b")), "c");
    assert_eq!(text(home.get("pond", "comment")), "-");
    let said = home.commands("pond");
    assert_eq!(said[0], "zpool create tank");
    assert!(said.contains(&"zpool export guest".to_string()), "{said:?}");

    home.ask(Request::PoolDestroy {
        pool: "pond".into(),
        force: false,
        command: String::new(),
    })
    .unwrap();
    assert!(home.scan(false).is_empty());
    let seen = home.scan(true);
    assert!(seen.len() == 1 && seen[0].destroyed);
    assert!(home.import("pond", |_| ()).is_err());
    home.import("pond", |i| i.search.destroyed = true).unwrap();
    assert_eq!(home.names(), ["pond"]);
}

#[test]
fn the_next_start() {
    let home = Home::new(3);
    home.create(home.spec("tank", vec![home.mirror(0, 1)]))
        .unwrap();
    home.create(home.spec("lone", vec![home.leaf(2)])).unwrap();
    home.admin.shutdown();
    let away = home.dir.join("away");
    fs::rename(home.image(2), &away).unwrap();
    fs::rename(home.image(1), home.dir.join("moved")).unwrap();

    let home = Home {
        dir: home.dir.clone(),
        admin: {
            std::mem::forget(home.admin.clone());
            let s = service(&home.dir);
            std::mem::forget(home);
            s
        },
    };
    home.admin.import_cached();
    assert_eq!(home.names(), ["lone", "tank"]);
    assert_eq!(home.describe("tank").health, "DEGRADED");
    let lone = home.describe("lone");
    assert_eq!(lone.health, "UNAVAIL");
    assert!(lone.tree.unwrap().children[0].path.is_some());
    assert!(home.create(home.spec("lone", vec![home.leaf(1)])).is_err());
    // It is not forgotten, and comes back where its device is found.
    home.export("tank");
    assert!(home.dir.join("zpool.cache").exists());
    fs::rename(away, home.dir.join("elsewhere")).unwrap();
    home.import("lone", |_| ()).unwrap();
    assert_eq!(home.describe("lone").health, "ONLINE");
    home.export("lone");
    assert!(!home.dir.join("zpool.cache").exists());
}

#[test]
fn old_versions() {
    let home = Home::new(1);
    let mut spec = home.spec("old", vec![home.leaf(0)]);
    spec.props = vec![("version".into(), "23".into())];
    home.create(spec).unwrap();
    assert_eq!(text(home.get("old", "version")), "23");
    assert!(home.set("old", "feature@sha512", "enabled").is_err());
    let upgrade = |version| match home.ask(Request::PoolUpgrade {
        pool: "old".into(),
        version,
        command: "zpool upgrade".into(),
    }) {
        Ok(Reply::Upgraded(u)) => u,
        other => panic!("{other:?}"),
    };
    let u = upgrade(Some(28));
    assert_eq!((u.from_version, u.to_version), (23, 28));
    assert_eq!(text(home.get("old", "version")), "28");
    let u = upgrade(None);
    assert_eq!((u.from_version, u.to_version), (28, 5000));
    assert!(u.features.contains(&"lz4_compress".to_string()));
    assert_eq!(text(home.get("old", "feature@lz4_compress")), "active");
    assert!(upgrade(None).features.is_empty());
    // All that an upgrade enables; the others are named.
    let facts = home.describe("old").facts;
    assert!(facts.disabled_features.is_empty());
    let supported = FEATURES.iter().filter(|f| f.supported && !f.default_on);
    let lacking: Vec<&str> = supported.map(|f| f.name).collect();
    assert_eq!(facts.features_on_request, lacking);
    assert!(!lacking.is_empty());
    home.set("old", &format!("feature@{}", lacking[0]), "enabled")
        .unwrap();
    let facts = home.describe("old").facts;
    assert_eq!(facts.features_on_request, lacking[1..]);
}

#[test]
fn refusals() {
    let home = Home::new(2);
    let small = fs::File::create(home.dir.join("small")).unwrap();
    small.set_len((64 << 20) - 1).unwrap();
    let mut leaf = home.leaf(0);
    leaf.path = Some(home.dir.join("small").to_str().unwrap().into());
    let e = home.create(home.spec("t", vec![leaf.clone()])).unwrap_err();
    assert!(e.message.contains("minimum size (64M)"), "{e}");
    leaf.path = Some("/no/such/device".into());
    assert!(home.create(home.spec("t", vec![leaf])).is_err());
    for name in ["mirror", "1t", "a/b", "raidz1", ""] {
        assert!(
            home.create(home.spec(name, vec![home.leaf(0)])).is_err(),
            "{name}"
        );
    }
    for (prop, value) in [
        ("ashift", "8"),
        ("version", "29"),
        ("size", "1"),
        ("readonly", "on"),
        ("feature@no_such", "enabled"),
        ("feature@sha512", "on"),
        ("cachefile", "relative"),
        ("multihost", "on"),
    ] {
        let mut spec = home.spec("t", vec![home.leaf(0)]);
        spec.props.push((prop.into(), value.into()));
        assert!(home.create(spec).is_err(), "{prop}");
    }
    let mut spec = home.spec("t", vec![home.leaf(0), home.leaf(0)]);
    spec.force = true;
    let e = home.create(spec).unwrap_err();
    assert!(e.message.contains("same device"), "{e}");
    // A file system on the device, a directory in the way.
    fs::write(home.dir.join("d1.new"), [0u8; 0]).unwrap();
    let mut image = vec![0u8; 4096];
    image[1080..1082].copy_from_slice(&[0x53, 0xef]);
    use std::os::unix::fs::FileExt;
    let d1 = fs::File::options().write(true).open(home.image(1)).unwrap();
    d1.write_all_at(&image, 0).unwrap();
    let e = home.create(home.spec("t", vec![home.leaf(1)])).unwrap_err();
    assert!(e.message.contains("contains a ext2 filesystem"), "{e}");
    let place = home.dir.join("place");
    fs::create_dir_all(place.join("full")).unwrap();
    let mut spec = home.spec("t", vec![home.leaf(0)]);
    spec.fs_props = vec![("mountpoint".into(), place.to_str().unwrap().into())];
    let e = home.create(spec).unwrap_err();
    assert!(e.message.ends_with("exists and is not empty"), "{e}");
    assert!(home.names().is_empty() && home.scan(false).is_empty());
    for request in [
        Request::PoolSync {
            pool: "t".into(),
            force: false,
        },
        Request::PoolActivity {
            pool: "t".into(),
            devices: vec![],
        },
        Request::PoolExport {
            pool: "t".into(),
            force: true,
            keep_active: false,
            command: String::new(),
        },
    ] {
        let e = home.ask(request).unwrap_err();
        assert_eq!(e.message, "cannot open 't': no such pool");
    }
}

/// Copies of disks, older and of the same age, and other names of disks lie beside them: the right
/// ones are used, and nothing is written to the others.
#[test]
fn copies_of_disks() {
    let mut h = Home::new(2);
    let spec = h.spec("tank", vec![h.mirror(0, 1)]);
    h.create(spec).unwrap();
    let go_on = |h: &Home, text: &'static str| {
        let entry = h.admin.pools().remove(0);
        let task = entry.pool.task(move |pool, tx| pool.log_in(tx, text, 42));
        task.unwrap();
    };
    go_on(&h, "before");
    let old = h.dir.join("a-old");
    fs::copy(h.image(0), &old).unwrap();
    for _ in 0..5 {
        go_on(&h, "after");
    }
    h.admin.shutdown();
    let same = h.dir.join("b-same");
    fs::copy(h.image(1), &same).unwrap();
    std::os::unix::fs::symlink("d0", h.dir.join("c-link")).unwrap();
    let content = |p: &PathBuf| fs::read(p).unwrap();
    let (old_was, same_was) = (content(&old), content(&same));
    fs::remove_file(h.dir.join("zpool.cache")).unwrap();
    h.admin = service(&h.dir);
    assert_eq!(h.scan(false).len(), 1);
    h.import("tank", |i| i.force = true).unwrap();
    let tree = h.describe("tank").tree.unwrap();
    let paths: Vec<&str> = tree.children[0]
        .children
        .iter()
        .filter_map(|l| l.path.as_deref())
        .collect();
    // One disk has two names in the folder; the first is as good as the other.
    let link = h.dir.join("c-link").to_str().unwrap().to_string();
    assert_eq!(paths, [link, h.image(1)]);
    let after = h.commands("tank").iter().filter(|c| *c == "after").count();
    assert_eq!(after, 5);
    go_on(&h, "more");
    h.export("tank");
    assert!(content(&old) == old_was && content(&same) == same_was);
}

#[test]
fn labels_cleared() {
    let home = Home::new(1);
    home.create(home.spec("t", vec![home.leaf(0)])).unwrap();
    let clear = |force| {
        home.ask(Request::LabelClear {
            path: home.image(0),
            force,
        })
    };
    let e = clear(true).unwrap_err();
    assert!(e.message.contains("(ACTIVE) of pool \"t\""), "{e}");
    home.export("t");
    let e = clear(false).unwrap_err();
    assert!(e.message.contains("exported pool \"t\""), "{e}");
    clear(true).unwrap();
    assert!(home.scan(false).is_empty());
    assert!(clear(true).is_err());
}

#[test]
fn distributed_raid() {
    let home = Home::new(5);
    let group = |children: u8| VdevSpec {
        kind: VdevKind::Draid {
            parity: 1,
            data: 2,
            children,
            spares: 1,
        },
        class: VdevClass::Normal,
        path: None,
        children: (0..5).map(|i| home.leaf(i)).collect(),
    };
    assert!(home.create(home.spec("t", vec![group(4)])).is_err());
    let mut spec = home.spec("t", vec![group(5)]);
    spec.props = vec![("feature@draid".into(), "disabled".into())];
    let e = home.create(spec).unwrap_err();
    assert!(e.message.contains("feature 'draid'"), "{e}");
    home.create(home.spec("t", vec![group(5)])).unwrap();
    let names = |root: &api::Vdev| -> Vec<String> {
        let name = |v: &api::Vdev| {
            let how = cli::vdevs::Naming::default();
            format!("{} {:?}", cli::vdevs::name(v, "t", how), v.state)
        };
        root.children.iter().map(name).collect()
    };
    let tree = home.describe("t").tree.unwrap();
    assert_eq!(
        names(&tree),
        ["draid1:2d:5c:1s Online", "draid1-0-0 Online"]
    );
    assert_eq!(
        tree.children[1].kind,
        VdevKind::Dspare {
            parity: 1,
            vdev: 0,
            spare: 0
        }
    );
    assert_eq!(text(home.get("t", "feature@draid")), "active");
    home.export("t");
    fs::remove_file(home.image(3)).unwrap();
    home.import("t", |_| ()).unwrap();
    let tree = home.describe("t").tree.unwrap();
    assert_eq!(
        names(&tree),
        ["draid1:2d:5c:1s Degraded", "draid1-0-0 Online"]
    );
    home.export("t");
}

/// Read-only, what waits in intent logs stays there: that is said, and only where something waits.
#[test]
fn logs_not_replayed_are_told_of() {
    for (fixture, expected) in [("zil-slog", &["delta2/other"][..]), ("single", &[])] {
        let home = Home::new(0);
        if let Err(e) = testkit::fixture::unpack_into(fixture, &home.dir) {
            return eprintln!("skipped: {e}");
        }
        let name = home.scan(false)[0].name.clone();
        let reply = home.import(&name, |i| {
            i.props = vec![("readonly".into(), "on".into())];
            i.no_mount = true;
            i.force = true;
        });
        let Ok(Reply::Imported(mut done)) = reply else {
            panic!("{reply:?}")
        };
        done.unplayed.sort();
        assert_eq!(done.unplayed, expected, "{fixture}");
        home.export(&name);
    }
}

/// Devices for metadata and for dedup tables are shown as what they are.
#[test]
fn special_devices_are_told_apart() {
    let home = Home::new(0);
    if let Err(e) = testkit::fixture::unpack_into("special", &home.dir) {
        return eprintln!("skipped: {e}");
    }
    // Before the import already.
    let seen = home.scan(false).remove(0);
    let (name, tree) = (seen.name, seen.tree.unwrap());
    let of = |class| cli::vdevs::of_class(&tree, class).count();
    let count = [VdevClass::Normal, VdevClass::Special, VdevClass::Dedup].map(of);
    assert_eq!(count, [1, 1, 1]);
    home.import(&name, |i| {
        i.props = vec![("readonly".into(), "on".into())];
        i.no_mount = true;
    })
    .unwrap();
    let tree = home.describe(&name).tree.unwrap();
    let of = |class| cli::vdevs::of_class(&tree, class).count();
    let count = [VdevClass::Normal, VdevClass::Special, VdevClass::Dedup].map(of);
    assert_eq!(count, [1, 1, 1]);
    // The pool's space is that of all of them.
    let sum: u64 = tree.children.iter().map(|c| c.stats.space).sum();
    assert_eq!(tree.stats.space, sum);
    home.export(&name);
}

/// Features this software does not know: those that may be read over, and the others.
#[test]
fn unknown_features() {
    const OVER: [&str; 3] = ["features_for_write", "com.test:over", "read over me, do"];
    const CLOSED: [&str; 3] = [
        "features_for_read",
        "com.test:closed",
        "not for you: no, no",
    ];
    let told = |f: [&str; 3]| (f[1].to_string(), f[2].to_string());
    for (list, refusal) in [
        (vec![], None),
        (
            vec![OVER],
            Some(
                "\tcom.test:over (read over me, do)\n\
                 All unsupported features are only required for writing to the pool.\n\
                 The pool can be imported using '-o readonly=on'.\n",
            ),
        ),
        (
            vec![CLOSED, OVER],
            Some("\tcom.test:closed (not for you: no, no)\n\tcom.test:over (read over me, do)\n"),
        ),
    ] {
        let home = Home::new(1);
        home.create(home.spec("tank", vec![home.leaf(0)])).unwrap();
        let pool = home.admin.find("tank").unwrap().pool.clone();
        let enable = list.clone();
        pool.task(move |pool, tx| {
            let dir = pool.mos().hold(1)?;
            for [list, guid, text] in &enable {
                for (name, value) in [
                    (*list, zap::Value::u64(1)),
                    ("feature_descriptions", zap::Value::string(text)),
                ] {
                    let object = zap::Zap::new(&dir).get(name)?.unwrap();
                    zap::Zap::new(&pool.mos().hold(object)?).update(tx, *guid, &value)?;
                }
            }
            Ok(())
        })
        .unwrap();
        drop(pool);
        home.export("tank");
        let seen = home.scan(false).remove(0);
        let unsupported: Vec<_> = list.iter().map(|f| told(*f)).collect();
        assert_eq!(seen.facts.unsupported, unsupported);
        assert_eq!(seen.facts.unsupported_readable, list == [OVER]);
        assert!(seen.facts.disabled_features.is_empty());
        let readonly = |i: &mut PoolImport| i.props = vec![("readonly".into(), "on".into())];
        let Some(refusal) = refusal else {
            assert_eq!(seen.health, "ONLINE");
            continue;
        };
        assert_eq!(seen.health, "UNAVAIL");
        let e = home.import("tank", |_| ()).unwrap_err();
        assert!(e.whole, "{e:?}");
        assert_eq!(
            e.message,
            format!(
                "This pool uses the following feature(s) not supported by this system:\n{refusal}\
                 cannot import 'tank': unsupported version or feature"
            )
        );
        assert_eq!(home.import("tank", readonly).is_ok(), list == [OVER]);
        if list == [OVER] {
            home.export("tank");
        }
    }
}

/// What a listing says of pools that OpenZFS made and that lack something.
#[test]
fn found_pools() {
    let look = |fixture: &str| {
        let home = Home::new(0);
        match testkit::fixture::unpack_into(fixture, &home.dir) {
            Ok(()) => Some(home),
            Err(e) => {
                eprintln!("skipped: {e}");
                None
            }
        }
    };
    let spares = |p: &Importable| -> Vec<String> {
        let root = p.tree.as_ref().unwrap();
        cli::vdevs::of_class(root, VdevClass::Spare)
            .map(|v| {
                let path = v.path.as_deref().unwrap_or_default();
                let last = path.rsplit('/').next().unwrap_or_default();
                format!("{last} {:?} {:?}", v.state, v.aux)
            })
            .collect()
    };
    let mut told = Vec::new();
    for (fixture, health, listed) in [
        ("draid", "ONLINE", vec!["draid2-0-0 Online None"]),
        ("draid-spare", "DEGRADED", vec!["draid1-0-0 Online Spared"]),
        ("damage-draid", "DEGRADED", vec!["draid2-0-0 Online None"]),
        (
            "hot-spare",
            "DEGRADED",
            vec!["d3.img Online Spared", "d4.img Online None"],
        ),
        ("resilvering", "ONLINE", vec![]),
        ("mirror-degraded", "DEGRADED", vec![]),
        ("damage-labels", "ONLINE", vec![]),
        ("gpt-disk", "ONLINE", vec![]),
        ("missing-log", "UNAVAIL", vec![]),
        ("missing-toplevel", "UNAVAIL", vec![]),
    ] {
        let Some(home) = look(fixture) else { return };
        let seen = home.scan(false);
        let [pool] = &seen[..] else {
            panic!("{fixture}: {seen:?}")
        };
        assert_eq!(pool.health, health, "{fixture}");
        assert_eq!(spares(pool), listed, "{fixture}");
        assert_eq!(pool.needs_missing_log, fixture == "missing-log");
        let resilvers = pool.scan.as_ref().is_some_and(|s| {
            s.function == api::ScanFunction::Resilver && s.state == api::ScanState::Scanning
        });
        assert_eq!(resilvers, fixture == "resilvering", "{fixture}");
        let read_only = |i: &mut PoolImport| {
            i.props = vec![("readonly".into(), "on".into())];
            i.no_mount = true;
        };
        match home.import(&pool.name, read_only) {
            Ok(_) => {
                let tree = home.describe(&pool.name).tree.unwrap();
                told.push((fixture, format!("{:?}", tree.state)));
                home.export(&pool.name);
            }
            Err(e) => told.push((fixture, format!("{e:?}"))),
        }
        if pool.needs_missing_log {
            home.import(&pool.name, |i| {
                read_only(i);
                i.missing_log = true;
            })
            .unwrap();
            home.export(&pool.name);
        }
    }
    for (fixture, said) in &told {
        match *fixture {
            // A refusal names the device.
            "missing-log" => assert!(said.contains("'-m'") && said.contains("/d1.img"), "{said}"),
            "missing-toplevel" => assert!(said.contains("/d1.img"), "{said}"),
            "draid" | "resilvering" | "damage-labels" | "gpt-disk" => assert_eq!(said, "Online"),
            _ => assert_eq!(said, "Degraded", "{fixture}"),
        }
    }
    // What a pool could have, and has not.
    let Some(home) = look("nofeatures") else {
        return;
    };
    let facts = home.scan(false).remove(0).facts;
    assert!(facts.disabled_features.contains(&"draid".to_string()));
    let Some(home) = look("two-pools") else {
        return;
    };
    let seen = home.scan(false);
    let [a, b] = &seen[..] else {
        panic!("{seen:?}")
    };
    assert!(a.name == b.name && a.guid < b.guid);
    let e = home.import(&a.name, |_| ()).unwrap_err();
    assert!(e.message.contains("more than one matching pool"), "{e}");
    assert!(home.scan(true).iter().all(|p| p.destroyed));
    for (i, p) in [a, b].into_iter().enumerate() {
        let name = format!("pool{i}");
        home.import(&p.guid.to_string(), |ask| {
            ask.new_name = Some(name.clone());
            ask.temporary = true;
            ask.no_mount = true;
        })
        .unwrap();
    }
    assert_eq!(home.names(), ["pool0", "pool1"]);
    home.export("pool0");
    home.export("pool1");
    // A temporary name is not kept.
    assert!(home.scan(false).iter().all(|p| p.name == a.name));
}

/// What `zfs list` shows of a snapshot is in the pool's own objects: none of the snapshots is
/// looked into, however many there are.
#[test]
fn snapshots_are_listed_with_few_reads() {
    const SNAPSHOTS: u64 = 64;
    let home = Home::new(1);
    home.create(home.spec("tank", vec![home.leaf(0)])).unwrap();
    {
        let pool = home.admin.find("tank").unwrap().pool.clone();
        let root = pool.dsl().root_dataset().unwrap();
        let set = pool.open_dataset(&root).unwrap();
        for n in 0..SNAPSHOTS {
            // Otherwise all would begin with the same block.
            let tx = set.os.tx(dmu::Need::bytes(512)).unwrap();
            let object = dmu::NewObject {
                obj_type: disk::ObjType::PLAIN_FILE_CONTENTS,
                ..dmu::NewObject::default()
            };
            set.os.alloc(&tx, &object).unwrap();
            drop(tx);
            pool.task(move |pool, tx| {
                let head = pool.dsl().root_dataset()?;
                pool.dsl().snapshot(tx, &head, &format!("s{n}")).map(drop)
            })
            .unwrap();
        }
        drop(set);
        pool.close_dataset(root.object());
    }
    home.export("tank");
    home.import("tank", |_| ()).unwrap();
    let reads = || home.describe("tank").tree.unwrap().stats.read_ops;
    let before = reads();
    let ask = api::DatasetGet {
        kinds: vec![api::DatasetKind::Snapshot],
        roots: Vec::new(),
        depth: None,
        listsnapshots: false,
        props: Select::These(
            ["used", "available", "referenced", "mountpoint"]
                .map(String::from)
                .into(),
        ),
    };
    let got = admin::datasets::get::get(&home.admin, admin::commands::ROOT, &ask, &mut |_| Ok(()))
        .unwrap();
    assert_eq!(got.found.len() as u64, SNAPSHOTS);
    assert!(got
        .found
        .iter()
        .all(|d| d.kind == api::DatasetKind::Snapshot));
    let read = reads() - before;
    assert!(
        read < SNAPSHOTS / 2,
        "{read} reads for {SNAPSHOTS} snapshots"
    );
}

/// What `zpool iostat -l -q -r -w` and `zpool status -s` show is counted, of leaves and summed up for
/// groups; it is only told if it is asked for.
#[test]
fn requests_of_devices_are_counted_by_size_and_time() {
    let home = Home::new(2);
    home.create(home.spec("tank", vec![home.mirror(0, 1)]))
        .unwrap();
    home.set("tank", "comment", "written").unwrap();
    assert_eq!(home.describe("tank").tree.unwrap().histograms, None);
    let ask = PoolGet {
        pools: vec!["tank".into()],
        tree: true,
        histograms: true,
        ..PoolGet::default()
    };
    let Ok(Reply::Pools(mut answer)) = home.ask(Request::PoolGet(ask)) else {
        panic!("no answer");
    };
    let root = answer.found.remove(0).tree.unwrap();
    let mirror = &root.children[0];
    let all = |list: &[Vec<u64>]| list.iter().flatten().sum::<u64>();
    let of = |v: &api::Vdev| (**v.histograms.as_ref().unwrap()).clone();
    let mut writes = 0;
    for leaf in &mirror.children {
        let h = of(leaf);
        // Creating a pool writes transaction groups: nobody waits for single blocks.
        assert!(all(&h.sizes[3..]) + all(&h.merged[3..]) > 0, "{h:?}");
        let requests = all(&h.sizes) + all(&h.merged);
        assert_eq!(all(&h.disk_wait), requests);
        assert_eq!(all(&h.total_wait), requests);
        assert_eq!(all(&h.queue_wait), requests);
        assert!(
            h.disk_wait[1].iter().skip(10).sum::<u64>() > 0,
            "no write takes a microsecond"
        );
        assert!(h.queues.iter().all(|q| *q == (0, 0)));
        assert_eq!(leaf.stats.slow_ios, 0);
        writes += all(&h.disk_wait[1..]);
    }
    assert_eq!(all(&of(mirror).disk_wait[1..]), writes);
    assert_eq!(of(&root), of(mirror));
}
