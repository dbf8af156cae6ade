//! The door of `examples/tar.rs`: what it writes is what tar(1) unpacks.

#[path = "../examples/tar.rs"]
mod tar;

use admin::alone::{self, Alone, MemoryDoor};
use admin::commands::{Commands, ROOT};
use admin::{pools, Admin};
use base::Data;
use std::fs;
use std::process::Command;
use std::sync::{Arc, Mutex};
use vfs::{Door, Nobody, OfHead, Served, Subscriber, Truth, WriteHow};
use zpl::{Cred, New, WriteOpts, Zfs};

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

/// A file system with two doors.
fn two_doors() -> (Arc<Admin>, Arc<Zfs>, [Arc<Door>; 2]) {
    let admin = admin();
    let entry = admin.find("p").unwrap();
    let ds = entry.pool.dsl().root_dataset().unwrap();
    let zfs = entry.mounted(ds.object()).unwrap().zfs();
    let from = OfHead::new(&admin, &entry, &ds, Vec::new(), Arc::default());
    let served = Served::new(zfs.clone(), &entry.pool, Box::new(from));
    let doors = [(); 2].map(|()| Door::open_to(&served).unwrap());
    (admin, zfs, doors)
}

/// A file without a name stays while a client of any door knows it.
#[test]
fn what_one_door_forgets_another_keeps() {
    let (_admin, zfs, doors) = two_doors();
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

/// A client with a write-back cache: when it is told that the content of a file is another one, it writes back the page it has.
struct Cache {
    door: Mutex<Option<Arc<Door>>>,
    page: Mutex<Option<(u64, Vec<u8>)>>,
}

impl Subscriber for Cache {
    fn attributes(&self, _: u64) {}

    fn attributes_later(&self, _: u64) {}

    fn content(&self, node: u64, _: Option<(u64, u64)>) {
        let door = self.door.lock().unwrap().clone().unwrap();
        let Some((offset, data)) = self.page.lock().unwrap().take() else {
            return;
        };
        let how = WriteHow {
            cached: true,
            ..WriteHow::default()
        };
        let n = door.write(&Nobody, node, offset, Data::from(&data), how);
        assert_eq!(n.unwrap(), data.len());
    }

    fn name(&self, _: u64, _: &[u8]) {}

    fn all_names(&self) {}

    fn grow(&self, _: u64, _: u64, _: &[u8]) -> bool {
        true
    }

    fn tell(&self, files: &[Truth], _: &(dyn Fn(Option<u32>) + Sync)) -> Vec<bool> {
        vec![true; files.len()]
    }
}

/// A page that became dirty while a write of another door was under way has older bytes where that wrote.
#[test]
fn a_page_that_is_written_back_leaves_what_another_door_has_written() {
    let (_admin, _, doors) = two_doors();
    let cache = Arc::new(Cache {
        door: Mutex::new(Some(doors[0].clone())),
        page: Mutex::default(),
    });
    doors[0].subscribe(cache.clone());
    let new = New::file(0o100644, 0);
    doors[0].make(&Nobody, vfs::ROOT, b"f", &new).unwrap();
    let vfs::Lookup::Found(same) = doors[1].lookup(&Nobody, vfs::ROOT, b"f").unwrap() else {
        panic!("a name that is not there");
    };
    let write = |data: &[u8], at| {
        let how = WriteHow::default();
        doors[1].write(&Nobody, same.node, at, Data::from(data), how)
    };
    assert_eq!(write(&[1; 4096], 0).unwrap(), 4096);
    // A program has written its byte into a page that was read before.
    let mut page = vec![1; 4096];
    page[7] = 9;
    *cache.page.lock().unwrap() = Some((0, page));
    assert_eq!(write(&[2; 100], 1000).unwrap(), 100);
    assert!(cache.page.lock().unwrap().is_none(), "it was told");
    let mut now: Vec<u8> = Vec::new();
    let mut put = |block: &base::Block, range: std::ops::Range<usize>| now.extend(&block[range]);
    let read = doors[1].read(&Nobody, same.node, (0, 4096), false, &mut put);
    read.unwrap();
    let mut wanted = vec![1; 4096];
    wanted[7] = 9;
    wanted[1000..1100].fill(2);
    assert!(now == wanted);
    *cache.door.lock().unwrap() = None;
    doors.iter().for_each(|d| d.close());
}
