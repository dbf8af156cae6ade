//! The door of `examples/tar.rs`: what it writes is what tar(1) unpacks.

#[path = "../examples/tar.rs"]
mod tar;

use admin::alone::{self, Alone, MemoryDoor};
use admin::commands::{Commands, ROOT};
use admin::{pools, Admin};
use std::fs;
use std::process::Command;
use std::sync::Arc;
use vfs::{Door, Nobody, OfHead, Served};
use zpl::{Cred, New, WriteOpts};

fn admin() -> Arc<Admin> {
    let (env, disks) = env_sim::mem_env(3);
    disks.add("/dev/a", 96 << 20);
    let process = Arc::new(Alone::new(env.clone(), pool::Tunables::default()));
    let admin = Admin::new(
        env,
        alone::settings(),
        Arc::new(MemoryDoor::default()),
        process,
    );
    pools::create::create(&admin, ROOT, alone::pool_on("p", "/dev/a")).unwrap();
    admin
}

#[test]
fn a_file_system_and_a_snapshot_of_it_unpack_as_they_were() {
    let admin = admin();
    let entry = admin.find("p").unwrap();
    let ds = entry.pool.dsl().root_dataset().unwrap();
    let zfs = entry.mounted(ds.object()).unwrap().zfs();
    let (root, cred) = (zfs.root().unwrap(), Cred::root());
    let long = "d".repeat(90);
    let dir = zfs
        .create(&root, long.as_bytes(), &New::dir(0o755, 0), &cred)
        .unwrap();
    let content = vec![b'x'; 1_500_001];
    let f = zfs
        .create(&dir, b"file", &New::file(0o100640, 0), &cred)
        .unwrap();
    zfs.write(&f, 0, &content, WriteOpts::default()).unwrap();
    zfs.create(&root, b"link", &New::symlink(b"there"), &cred)
        .unwrap();
    Commands(admin.clone()).snapshot("p@s").unwrap();
    zfs.truncate(&f, 3, &cred).unwrap();
    entry.pool.sync().unwrap();

    for (dataset, size) in [("p@s", content.len()), ("p", 3)] {
        let mut out = Vec::new();
        tar::archive(&tar::door(&entry.pool, dataset).unwrap(), &mut out).unwrap();
        let at = testkit::TempDir::new("tar").unwrap();
        let file = at.path().join("a.tar");
        fs::write(&file, out).unwrap();
        let done = Command::new("tar")
            .arg("-xf")
            .arg(&file)
            .arg("-C")
            .arg(at.path())
            .status()
            .unwrap();
        assert!(done.success());
        let got = fs::read(at.path().join(&long).join("file")).unwrap();
        assert!(got.len() == size && got.iter().all(|b| *b == b'x'));
        let link = fs::read_link(at.path().join("link")).unwrap();
        assert_eq!(link.to_str(), Some("there"));
    }
}

/// A file without a name stays while a client of any door knows it.
#[test]
fn what_one_door_forgets_another_keeps() {
    let admin = admin();
    let entry = admin.find("p").unwrap();
    let ds = entry.pool.dsl().root_dataset().unwrap();
    let zfs = entry.mounted(ds.object()).unwrap().zfs();
    let from = OfHead::new(&admin, &entry, &ds, Vec::new(), Arc::default());
    let served = Served::new(zfs.clone(), &entry.pool, Box::new(from));
    let doors = [(); 2].map(|()| Door::open_to(&served).unwrap());
    let new = New::file(0o100644, 0);
    let made = doors[0].make(&Nobody, vfs::ROOT, b"f", &new).unwrap();
    let vfs::Lookup::Found(same) = doors[1].lookup(&Nobody, vfs::ROOT, b"f").unwrap() else {
        panic!("a name that is not there");
    };
    assert_eq!(made.node, same.node);
    doors[0].unlink(&Nobody, vfs::ROOT, b"f").unwrap();
    assert_eq!(zfs.unlinked_count().unwrap(), 1);
    doors[0].forget(made.node, 1);
    assert!(doors[1].getattr(&Nobody, same.node).is_ok());
    assert!(doors[0].getattr(&Nobody, made.node).is_err());
    assert_eq!(zfs.unlinked_count().unwrap(), 1);
    doors[1].forget(same.node, 1);
    assert_eq!(zfs.unlinked_count().unwrap(), 0);
    // The first that closes ends nothing.
    doors[0].close();
    assert!(doors[1].getattr(&Nobody, vfs::ROOT).is_ok());
    doors[1].close();
}
