//! All procedures, over a file system in memory, by a client that puts its calls together by hand.

use admin::alone::{self, Alone, MemoryDoor};
use admin::commands::{Commands, ROOT};
use admin::shares::options::parse;
use admin::{pools, Admin};
use base::sync::MutexExt;
use nfs::handle::FileSystem;
use nfs::{Client as Peer, Export, Exports, Inside, Opened, Server};
use std::sync::{Arc, Mutex};
use testkit::nfs::{Args, Client, Refused, Transport, MOUNT, NFS};
use vfs::{OfHead, Served};

const PERM: u32 = 1;
const NOENT: u32 = 2;
const ACCES: u32 = 13;
const EXIST: u32 = 17;
const XDEV: u32 = 18;
const NOTDIR: u32 = 20;
const ISDIR: u32 = 21;
const INVAL: u32 = 22;
const FBIG: u32 = 27;
const ROFS: u32 = 30;
const NOTEMPTY: u32 = 66;
const STALE: u32 = 70;
const BADHANDLE: u32 = 10_001;

/// Exports that a test sets.
#[derive(Clone, Default)]
struct Given(Arc<Mutex<Vec<Export>>>);

impl Exports for Given {
    fn list(&self) -> Vec<Export> {
        self.0.acquire().clone()
    }

    fn find(&self, fs: FileSystem) -> Option<Export> {
        self.0.acquire().iter().find(|e| e.fs == fs).cloned()
    }

    /// As the paths have it.
    fn inside(&self, fs: FileSystem, name: Option<&[u8]>) -> Vec<Inside> {
        let all = self.0.acquire();
        let Some(outer) = all.iter().find(|e| e.fs == fs) else {
            return Vec::new();
        };
        let root = [&outer.path[..], b"/"].concat();
        let inside = |e: &Export| {
            let rest = e.path.strip_prefix(&root[..])?;
            let way: Vec<_> = rest.split(|b| *b == b'/').map(<[u8]>::to_vec).collect();
            let is_it = name.is_none_or(|name| way.last().is_some_and(|last| last == name));
            is_it.then_some(Inside { fs: e.fs, way })
        };
        all.iter().filter_map(inside).collect()
    }
}

/// Calls go into the server as they are.
struct Direct(Arc<Server>, Peer);

impl Transport for Direct {
    fn exchange(&mut self, message: &[u8]) -> Option<Vec<u8>> {
        self.0.handle(&self.1, message).ok()?
    }
}

struct World {
    admin: Arc<Admin>,
    given: Given,
    server: Arc<Server>,
}

impl World {
    /// A pool `p`, of which the root is shared so.
    fn new(share: &str) -> World {
        let (env, disks) = env_sim::mem_env(3);
        disks.add("/dev/a", 96 << 20);
        let process = Arc::new(Alone::new(env.clone(), pool::Tunables::default()));
        let door = Arc::new(MemoryDoor::default());
        let admin = Admin::new(env, alone::settings(), door, process);
        pools::create::create(&admin, ROOT, alone::pool_on("p", "/dev/a")).unwrap();
        let given = Given::default();
        let world = World {
            admin,
            server: Arc::new(Server::new(Box::new(given.clone()))),
            given,
        };
        world.share("p", share, 7);
        world
    }

    fn share(&self, name: &str, share: &str, verifier: u64) {
        let entry = self.admin.find("p").unwrap();
        let ds = entry.pool.dsl().dataset(name).unwrap();
        let zfs = entry.mounted(ds.object()).unwrap().zfs();
        let from = OfHead::new(&self.admin, &entry, &ds, Vec::new(), Arc::default());
        let served = Served::new(zfs, &entry.pool, Box::new(from));
        self.given.0.acquire().push(Export {
            fs: FileSystem {
                pool: entry.pool.guid(),
                dataset: ds.phys().guid,
            },
            path: format!("/{name}").into_bytes(),
            share: Arc::new(parse(share).unwrap().unwrap()),
            opened: Opened::new(&served, verifier).unwrap(),
        });
    }

    fn client_at(&self, address: &str) -> Client<Direct> {
        let peer = Peer::new(address.parse().unwrap());
        Client::new(Direct(self.server.clone(), peer))
    }

    fn client(&self) -> Client<Direct> {
        self.client_at("127.0.0.1:700")
    }

    /// A client, and the root of the pool.
    fn root(&self) -> (Client<Direct>, Vec<u8>) {
        let mut c = self.client();
        let root = c.mount("/p").unwrap();
        (c, root)
    }
}

#[test]
fn names_lead_into_what_is_mounted_there_where_the_share_says_so() {
    for (outer, inner, crossed) in [
        ("rw=127.0.0.0/8,crossmnt", "rw=127.0.0.0/8", true),
        ("rw=127.0.0.0/8", "rw=127.0.0.0/8,nohide", true),
        ("rw=127.0.0.0/8", "rw=127.0.0.0/8", false),
        ("rw=127.0.0.0/8,crossmnt", "rw=10.0.0.0/8", false),
    ] {
        let w = World::new(&format!("no_root_squash,{outer}"));
        let (mut c, root) = w.root();
        let (below, _) = c.mkdir(&root, "a", 0o755).unwrap();
        for name in ["a", "v"] {
            let full = format!("p/{name}");
            Commands(w.admin.clone()).create(&full, &[]).unwrap();
            w.share(&full, &format!("no_root_squash,{inner}"), 8);
        }
        let list = |c: &mut Client<Direct>| {
            let mut list: Vec<_> = c
                .readdir(&root, 4096)
                .unwrap()
                .into_iter()
                .map(|e| e.0)
                .collect();
            list.sort();
            list
        };
        let (a, attr) = c.lookup(&root, "a").unwrap();
        let (_, own) = c.lookup(&root, ".").unwrap();
        // The directory `v` is not on the disk.
        match crossed {
            true => {
                assert!(a != below && attr.fsid != own.fsid, "{outer} {inner}");
                assert_eq!(a, c.mount("/p/a").unwrap());
                let (v, _) = c.lookup(&root, "v").unwrap();
                let (f, _) = c.create(&v, "f", 0o644, true).unwrap();
                assert_eq!(c.walk(&root, "v/f").unwrap().0, f);
                assert_eq!(list(&mut c), [".", "..", "a", "v"]);
            }
            false => {
                assert!(a == below && attr.fsid == own.fsid, "{outer} {inner}");
                assert_eq!(c.lookup(&root, "v"), Err(NOENT));
                assert_eq!(list(&mut c), [".", "..", "a"]);
            }
        }
        // The kernel would end the mount.
        assert_eq!(c.rmdir(&root, "a"), Err(ACCES));
        assert_eq!(c.rename((&root, "a"), (&root, "b")), Err(ACCES));
        c.mkdir(&root, "b", 0o755).unwrap();
        assert_eq!(c.rename((&root, "b"), (&root, "a")), Err(ACCES));
        assert_eq!(c.mkdir(&root, "v", 0o755).err(), Some(EXIST));
        c.rmdir(&root, "b").unwrap();
    }
}

#[test]
fn mounts() {
    let w = World::new("rw=127.0.0.0/8,ro=10.0.0.0/8");
    let mut c = w.client();
    let groups = ["10.0.0.0/8", "127.0.0.0/8"].map(String::from).to_vec();
    assert_eq!(c.exports(), [("/p".into(), groups)]);
    let root = c.mount("/p").unwrap();
    assert_eq!(c.mount("/p//").unwrap(), root);
    assert_eq!(c.getattr(&root).unwrap().kind, 2);
    // What is not shared, and what is, to a stranger.
    assert_eq!(c.mount("/q"), Err(ACCES));
    let mut stranger = w.client_at("9.9.9.9:700");
    assert_eq!(stranger.mount("/p"), Err(ACCES));
    assert_eq!(stranger.getattr(&root), Err(ACCES));
    assert!(!w.server.knows(&Peer::new("9.9.9.9:7".parse().unwrap())));
    // A port that any user has.
    assert_eq!(w.client_at("127.0.0.1:5000").mount("/p"), Err(ACCES));
    let mut reader = w.client_at("10.0.0.1:700");
    let same = reader.mount("/p").unwrap();
    assert_eq!(reader.mkdir(&same, "d", 0o755), Err(ROFS));
    assert_eq!(reader.access(&same, 0x3f).unwrap() & 0x1c, 0);
}

#[test]
fn files_and_names() {
    let w = World::new("rw,no_root_squash");
    let (mut c, root) = w.root();
    let (f, a) = c.create(&root, "f", 0o640, true).unwrap();
    assert_eq!((a.kind, a.mode, a.size, a.nlink), (1, 0o640, 0, 1));
    assert_eq!(c.create(&root, "f", 0o640, true), Err(EXIST));
    assert_eq!(
        c.create(&root, "f", 0o600, false).unwrap().0,
        f,
        "unchecked"
    );
    assert_eq!(c.write(&f, 3, b"hello", 0).unwrap(), (5, 0, 7));
    assert_eq!(c.write(&f, 0, b"abc", 2).unwrap(), (3, 2, 7));
    assert_eq!(c.commit(&f), Ok(7));
    assert_eq!(c.read(&f, 0, 100).unwrap(), (b"abchello".to_vec(), true));
    assert_eq!(c.read(&f, 1, 3).unwrap(), (b"bch".to_vec(), false));
    assert_eq!(c.read(&f, 1000, 3).unwrap(), (Vec::new(), true));
    assert_eq!(c.setattr(&f, Some(0o444), Some(2), None).unwrap().size, 2);
    assert_eq!(c.read_all(&f).unwrap(), b"ab");

    let (d, a) = c.mkdir(&root, "d", 0o2755).unwrap();
    assert_eq!((a.kind, a.mode), (2, 0o2755));
    let (l, a) = c.symlink(&d, "l", b"/there").unwrap();
    assert_eq!((a.kind, c.readlink(&l).unwrap()), (5, b"/there".to_vec()));
    let (dev, a) = c.mknod(&d, "null", 4, (1, 3)).unwrap();
    assert_eq!((a.kind, a.rdev, a.mode), (4, (1, 3), 0o600));
    assert_eq!(c.mknod(&d, "pipe", 7, (0, 0)).unwrap().1.kind, 7);
    assert_eq!(c.read(&dev, 0, 1), Err(INVAL));
    assert_eq!(c.read(&d, 0, 1), Err(ISDIR));
    assert_eq!(c.write(&d, 0, b"x", 0), Err(ISDIR));

    c.link(&f, &d, "f2").unwrap();
    assert_eq!(c.getattr(&f).unwrap().nlink, 2);
    c.rename((&d, "f2"), (&root, "f3")).unwrap();
    assert_eq!(c.lookup(&d, "f2"), Err(NOENT));
    assert_eq!(c.lookup(&root, "f3").unwrap().0, f);
    assert_eq!(c.lookup(&d, "..").unwrap().0, root);
    assert_eq!(c.lookup(&f, "x"), Err(NOTDIR));
    assert_eq!(c.rmdir(&root, "d"), Err(NOTEMPTY));
    assert_eq!(c.remove(&root, "d"), Err(ISDIR));
    for name in [".", ".."] {
        assert_eq!(c.remove(&root, name), Err(INVAL));
        assert_eq!(c.rmdir(&root, name), Err(INVAL));
        assert_eq!(c.mkdir(&root, name, 0o755), Err(EXIST));
        assert_eq!(c.create(&root, name, 0o644, false), Err(EXIST));
        assert_eq!(c.rename((&root, "f"), (&root, name)), Err(INVAL));
        assert_eq!(c.link(&f, &root, name), Err(EXIST));
    }
    assert_eq!(c.create(&root, "a/b", 0o644, true), Err(INVAL));
    c.remove(&root, "f").unwrap();
    assert_eq!(c.getattr(&f).unwrap().nlink, 1);
    c.remove(&root, "f3").unwrap();
    assert_eq!(c.getattr(&f), Err(STALE));
    assert_eq!(c.read(&f, 0, 1), Err(STALE));
    // Another file in the place of the object is another file.
    let (g, _) = c.create(&root, "g", 0o644, true).unwrap();
    assert_ne!(f, g);
    assert_eq!(c.getattr(&f), Err(STALE));
}

/// Places and sizes are numbers of 64 bits in the protocol.
#[test]
fn places_that_no_file_has() {
    let w = World::new("rw,no_root_squash");
    let (mut c, root) = w.root();
    let (f, _) = c.create(&root, "f", 0o640, true).unwrap();
    for at in [1 << 63, u64::MAX - 2, u64::MAX] {
        assert_eq!(c.write(&f, at, b"hello", 0), Err(FBIG), "{at}");
        assert_eq!(c.write(&f, at, b"hello", 2), Err(FBIG), "{at}");
        assert_eq!(c.setattr(&f, None, Some(at), None), Err(FBIG), "{at}");
        assert_eq!(c.read(&f, at, 512 << 10).unwrap(), (Vec::new(), true));
    }
    assert_eq!(c.getattr(&f).unwrap().size, 0);
}

#[test]
fn names_that_are_no_text() {
    let w = World::new("rw,no_root_squash");
    let (mut c, root) = w.root();
    let args = Args::new().bytes(&root).bytes(b"\xff\xfe").u32(1);
    assert_eq!(c.call(8, args.set(Some(0o644), None)).u32(), 0);
    let mut r = c.call(3, Args::new().bytes(&root).bytes(b"\xff\xfe"));
    assert_eq!(r.u32(), 0);
}

#[test]
fn exclusive_creation_is_known_again() {
    let w = World::new("rw,no_root_squash");
    let (mut c, root) = w.root();
    let number = 0x8123_4567_0000_0009;
    let (f, _) = c.create_exclusive(&root, "f", number).unwrap();
    assert_eq!(c.create_exclusive(&root, "f", number).unwrap().0, f);
    assert_eq!(c.create_exclusive(&root, "f", number + 1), Err(EXIST));
}

#[test]
fn attributes_are_set_on_a_condition() {
    let w = World::new("rw,no_root_squash");
    let (mut c, root) = w.root();
    let (f, a) = c.create(&root, "f", 0o644, true).unwrap();
    let other = (a.ctime.0 ^ 1, a.ctime.1);
    assert_eq!(c.setattr(&f, Some(0o600), None, Some(other)), Err(10_002));
    assert_eq!(c.getattr(&f).unwrap().mode, 0o644);
    assert_eq!(
        c.setattr(&f, Some(0o600), None, Some(a.ctime))
            .unwrap()
            .mode,
        0o600
    );
}

#[test]
fn a_call_that_comes_twice_is_carried_out_once() {
    let w = World::new("rw,no_root_squash");
    let (mut c, root) = w.root();
    let args = Args::new().bytes(&root).bytes(b"d").set(Some(0o755), None);
    let message = c.message(NFS, 9, &args);
    let first = c.to.exchange(&message).unwrap();
    assert_eq!(c.to.exchange(&message).unwrap(), first);
    // From another connection of the same machine, too.
    let mut again = w.client_at("127.0.0.1:701");
    assert_eq!(again.to.exchange(&message).unwrap(), first);
    assert_eq!(c.mkdir(&root, "d", 0o755), Err(EXIST));
    let args = Args::new().bytes(&root).bytes(b"d");
    let removal = c.message(NFS, 13, &args);
    let first = c.to.exchange(&removal).unwrap();
    assert_eq!(c.results(Some(first.clone())).unwrap().u32(), 0);
    c.mkdir(&root, "d", 0o755).unwrap();
    assert_eq!(c.to.exchange(&removal).unwrap(), first);
    assert!(c.lookup(&root, "d").is_ok());
}

/// Nor does what strangers send drive out what others may ask for again.
#[test]
fn what_a_stranger_was_refused_is_not_kept() {
    let w = World::new("rw=10.0.0.0/8,no_root_squash");
    let mut c = w.client_at("10.0.0.1:700");
    let root = c.mount("/p").unwrap();
    let args = Args::new().bytes(&root).bytes(b"d").set(Some(0o755), None);
    let message = c.message(NFS, 9, &args);
    let mut stranger = w.client_at("127.0.0.1:700");
    let refused = stranger.to.exchange(&message);
    assert_eq!(c.results(refused).unwrap().u32(), ACCES);
    let share = parse("rw,no_root_squash").unwrap().unwrap();
    w.given.0.acquire()[0].share = Arc::new(share);
    let made = stranger.to.exchange(&message);
    assert_eq!(c.results(made).unwrap().u32(), 0);
}

#[test]
fn permissions_are_those_of_the_user() {
    let w = World::new("rw,no_root_squash");
    let (mut c, root) = w.root();
    let (d, _) = c.mkdir(&root, "d", 0o1777).unwrap();
    let (secret, _) = c.create(&d, "secret", 0o600, true).unwrap();
    c.write(&secret, 0, b"x", 2).unwrap();
    c.user = Some((1000, 100, vec![7]));
    assert_eq!(c.read(&secret, 0, 1), Err(ACCES));
    assert_eq!(c.write(&secret, 0, b"y", 0), Err(ACCES));
    assert_eq!(c.setattr(&secret, Some(0o666), None, None), Err(PERM));
    assert_eq!(c.setattr(&secret, None, Some(0), None), Err(ACCES));
    assert_eq!(c.remove(&d, "secret"), Err(PERM), "sticky");
    assert_eq!(c.create(&root, "mine", 0o600, true), Err(ACCES));
    assert_eq!(c.access(&secret, 0x3f), Ok(0));
    assert_eq!(c.mknod(&d, "sda", 3, (8, 0)), Err(PERM));
    // Its own file is to be written whatever its mode: it may be open.
    let (mine, a) = c.create(&d, "mine", 0o400, true).unwrap();
    assert_eq!((a.uid, a.gid), (1000, 100));
    assert_eq!(c.write(&mine, 0, b"abc", 0).unwrap().0, 3);
    assert_eq!(
        c.setattr(&mine, Some(0o4755), None, None).unwrap().mode,
        0o4755
    );
    // Another user's write takes the power of the program away.
    c.setattr(&mine, Some(0o4777), None, None).unwrap();
    c.user = Some((1001, 101, Vec::new()));
    c.write(&mine, 0, b"d", 0).unwrap();
    assert_eq!(c.getattr(&mine).unwrap().mode, 0o777);
    // A program may be read by whoever may run it.
    c.user = Some((0, 0, Vec::new()));
    c.setattr(&secret, Some(0o711), None, None).unwrap();
    c.user = Some((1000, 100, Vec::new()));
    assert_eq!(c.read(&secret, 0, 1).unwrap().0, b"x");
    // Groups count.
    c.user = Some((0, 0, Vec::new()));
    let args = Args::new()
        .bytes(&secret)
        .u32(1)
        .u32(0o640)
        .u32(0)
        .u32(1)
        .u32(7);
    assert_eq!(c.call(2, args.u32(0).u32(0).u32(0).u32(0)).u32(), 0);
    c.user = Some((1000, 100, vec![7]));
    assert_eq!(c.read(&secret, 0, 1).unwrap().0, b"x");
}

#[test]
fn squashed_users_are_nobody() {
    let w = World::new("rw,no_root_squash");
    w.given.0.acquire()[0].share = Arc::new(parse("rw,no_root_squash").unwrap().unwrap());
    let (mut c, root) = w.root();
    let (d, _) = c.mkdir(&root, "d", 0o777).unwrap();
    let share = |text: &str| {
        w.given.0.acquire()[0].share = Arc::new(parse(text).unwrap().unwrap());
    };
    share("on");
    assert_eq!(c.create(&root, "f", 0o600, true), Err(ACCES));
    let (_, a) = c.create(&d, "f", 0o600, true).unwrap();
    assert_eq!((a.uid, a.gid), (65_534, 65_534));
    share("rw,all_squash,anonuid=12,anongid=13");
    c.user = Some((1000, 1000, Vec::new()));
    let (_, a) = c.create(&d, "g", 0o600, true).unwrap();
    assert_eq!((a.uid, a.gid), (12, 13));
    c.user = None;
    let (_, a) = c.create(&d, "h", 0o600, true).unwrap();
    assert_eq!((a.uid, a.gid), (12, 13));
}

#[test]
fn long_directories_are_listed_in_parts() {
    let w = World::new("rw,no_root_squash");
    let (mut c, root) = w.root();
    let (d, _) = c.mkdir(&root, "d", 0o755).unwrap();
    let mut names: Vec<String> = (0..300).map(|n| format!("file-{n:04}")).collect();
    for n in &names {
        c.create(&d, n, 0o644, true).unwrap();
    }
    names.extend([".".to_string(), "..".to_string()]);
    names.sort();
    for most in [200, 1000, 1 << 20] {
        let mut listed: Vec<String> = c
            .readdir(&d, most)
            .unwrap()
            .into_iter()
            .map(|e| e.0)
            .collect();
        listed.sort();
        assert_eq!(listed, names);
    }
    let plus = c.readdirplus(&d, 2000).unwrap();
    assert_eq!(plus.len(), names.len());
    for (name, a, h) in plus.iter().filter(|e| !e.0.starts_with('.')) {
        let (handle, attr) = c.lookup(&d, name).unwrap();
        assert_eq!((h.as_ref(), a.as_ref()), (Some(&handle), Some(&attr)));
    }
    assert_eq!(c.readdir(&d, 100), Err(10_005), "too small");
    let (_, _, cookie) = c.readdir(&d, 4096).unwrap()[5];
    let args = Args::new().bytes(&d).u64(cookie).u64(99).u32(4096);
    assert_eq!(c.call(16, args).u32(), 10_003, "bad cookie");
    let f = c.lookup(&d, "file-0001").unwrap().0;
    assert_eq!(c.readdir(&f, 4096), Err(NOTDIR));
    // Nothing is left that the door takes for known.
    let list = c.readdir(&root, 4096).unwrap();
    assert_eq!(list.len(), 3);
}

#[test]
fn snapshots_are_looked_into() {
    let w = World::new("rw,no_root_squash");
    let (mut c, root) = w.root();
    let (f, _) = c.create(&root, "f", 0o644, true).unwrap();
    c.write(&f, 0, b"old", 2).unwrap();
    Commands(w.admin.clone()).snapshot("p@s").unwrap();
    c.write(&f, 0, b"new", 2).unwrap();
    // Hidden: by name only.
    assert!(c
        .readdir(&root, 4096)
        .unwrap()
        .iter()
        .all(|e| e.0 != ".zfs"));
    let (zfs, _) = c.lookup(&root, ".zfs").unwrap();
    let mut names: Vec<String> = c
        .readdir(&zfs, 4096)
        .unwrap()
        .into_iter()
        .map(|e| e.0)
        .collect();
    names.sort();
    assert_eq!(names, [".", "..", "shares", "snapshot"]);
    assert_eq!(c.lookup(&zfs, "volumes"), Err(NOENT));
    let (s, _) = c.walk(&root, ".zfs/snapshot/s").unwrap();
    let (old, a) = c.lookup(&s, "f").unwrap();
    assert_eq!(c.read_all(&old).unwrap(), b"old");
    assert_ne!(a.fileid, c.getattr(&f).unwrap().fileid);
    assert_eq!(c.write(&old, 0, b"x", 0), Err(ROFS));
    let (snapshots, _) = c.walk(&root, ".zfs/snapshot").unwrap();
    assert_eq!(c.mkdir(&snapshots, "made", 0o755), Err(ROFS));
    assert_eq!(c.rmdir(&snapshots, "s"), Err(ROFS));
    assert_eq!(c.rename((&snapshots, "s"), (&snapshots, "t")), Err(ROFS));
    let listed = c.readdirplus(&snapshots, 4096).unwrap();
    assert!(listed.iter().any(|e| e.0 == "s"));
    Commands(w.admin.clone())
        .set("p", "snapdir", "visible")
        .unwrap();
    assert!(c
        .readdir(&root, 4096)
        .unwrap()
        .iter()
        .any(|e| e.0 == ".zfs"));
    // What the daemon does of itself.
    w.given.list()[0].opened.served().ctl().close_all();
    Commands(w.admin.clone()).destroy("p@s").unwrap();
    assert_eq!(c.read(&old, 0, 1), Err(STALE));
    Commands(w.admin.clone())
        .set("p", "snapdir", "disabled")
        .unwrap();
    assert_eq!(c.getattr(&zfs), Err(STALE));
    assert_eq!(c.lookup(&root, ".zfs"), Err(NOENT));
}

#[test]
fn handles_lead_nowhere_else() {
    let w = World::new("rw,no_root_squash");
    Commands(w.admin.clone()).create("p/other", &[]).unwrap();
    w.share("p/other", "rw,no_root_squash", 8);
    let (mut c, root) = w.root();
    let other = c.mount("/p/other").unwrap();
    let (f, _) = c.create(&root, "f", 0o644, true).unwrap();
    assert_eq!(c.link(&f, &other, "f"), Err(XDEV));
    assert_eq!(c.rename((&root, "f"), (&other, "f")), Err(XDEV));
    assert_eq!(c.getattr(b""), Err(BADHANDLE));
    assert_eq!(c.getattr(&[0; 24]), Err(BADHANDLE));
    // Objects that are no files, of which there are many with low numbers; other guids.
    for object in 0..200u64 {
        let mut h = f.clone();
        h[20..28].copy_from_slice(&object.to_be_bytes());
        if h != f {
            assert!(c.getattr(&h).is_err(), "{object}");
        }
        // Of another pool, and of another dataset.
        for at in [4, 12] {
            let mut h = h.clone();
            h[at] ^= 1;
            assert_eq!(c.getattr(&h), Err(STALE));
        }
    }
    // A snapshot of another file system, with a handle that is made up of what its client knows.
    Commands(w.admin.clone()).snapshot("p/other@s").unwrap();
    let (s, _) = c.walk(&other, ".zfs/snapshot/s").unwrap();
    let mut forged = s.clone();
    forged[4..20].copy_from_slice(&root[4..20]);
    assert_eq!(c.getattr(&forged), Err(STALE));
    // It is shared no longer.
    w.given.0.acquire().pop();
    assert_eq!(c.getattr(&other), Err(STALE));
}

#[test]
fn a_door_that_is_closed_serves_nobody() {
    let w = World::new("rw,no_root_squash");
    let (mut c, root) = w.root();
    let export = w.given.list().remove(0);
    export.opened.close();
    assert_eq!(c.getattr(&root), Err(STALE));
    assert_eq!(c.mount("/p"), Err(ACCES));
}

#[test]
fn figures() {
    let w = World::new("rw,no_root_squash");
    let (mut c, root) = w.root();
    let mut r = c.call(18, Args::new().bytes(&root));
    assert_eq!((r.u32(), r.maybe_attr().is_some()), (0, true));
    let (total, free) = (r.u64(), r.u64());
    assert!(total >= free && free > 1 << 20);
    let mut r = c.call(19, Args::new().bytes(&root));
    assert_eq!((r.u32(), r.maybe_attr().is_some()), (0, true));
    assert_eq!((r.u32(), r.u32()), (512 << 10, 512 << 10));
    let mut r = c.call(20, Args::new().bytes(&root));
    assert_eq!((r.u32(), r.maybe_attr().is_some()), (0, true));
    r.u32();
    assert_eq!(r.u32(), 255);
    assert_eq!((r.u32(), r.u32(), r.u32(), r.u32()), (1, 1, 0, 1));
    r.end();
}

#[test]
fn what_is_no_call_of_ours_is_refused() {
    let w = World::new("rw");
    let (mut c, root) = w.root();
    let none = Args::new();
    assert_eq!(c.try_call(100_000, 3, &none).err(), Some(Refused::State(1)));
    assert_eq!(c.try_call(NFS, 22, &none).err(), Some(Refused::State(3)));
    assert_eq!(c.try_call(MOUNT, 6, &none).err(), Some(Refused::State(3)));
    assert!(c.try_call(NFS, 0, &none).is_ok());
    for procedure in 1..22 {
        let short = Args::new().bytes(&[7; 65]);
        assert_eq!(
            c.try_call(NFS, procedure, &short).err(),
            Some(Refused::State(4))
        );
        let state = c.try_call(NFS, procedure, &none).err();
        assert_eq!(state, Some(Refused::State(4)), "{procedure}");
    }
    let data = Args::new()
        .bytes(&root)
        .u64(0)
        .u32(100)
        .u32(0)
        .bytes(b"short");
    assert_eq!(c.try_call(NFS, 7, &data).err(), Some(Refused::State(4)));
    assert!(w.server.handle(&c.to.1, &[0; 7]).is_err());
}
