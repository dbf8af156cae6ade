//! File systems as one tree: places, what hides, empty directories, ends, ids and inode numbers.

use admin::alone::{self, Alone, MemoryDoor};
use admin::commands::{Commands, ROOT as BY_ROOT};
use admin::{pools, Admin};
use base::Kind;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use vfs::{At, Door, Nobody, OfHead, Served, Spare, Subscriber, Truth, View, ViewRoot, Within};
use zpl::New;

/// A file system of a view.
struct Part(Arc<Door>);

impl Within for Part {
    fn door(&self) -> &Arc<Door> {
        &self.0
    }
}

/// Notes which names clients are told of.
#[derive(Default)]
struct Told(Mutex<Vec<(u64, String)>>);

impl Subscriber for Told {
    fn attributes(&self, _: u64) {}

    fn attributes_later(&self, _: u64) {}

    fn content(&self, _: u64, _: Option<(u64, u64)>) {}

    fn name(&self, parent: u64, name: &[u8]) {
        let name = String::from_utf8_lossy(name).into_owned();
        self.0.lock().unwrap().push((parent, name));
    }

    fn all_names(&self) {}

    fn grow(&self, _: u64, _: u64, _: &[u8]) -> bool {
        true
    }

    fn tell(&self, files: &[Truth], _: &(dyn Fn(Option<u32>) + Sync)) -> Vec<bool> {
        vec![true; files.len()]
    }
}

/// A pool with file systems, and a view that begins with the first.
struct Bench {
    admin: Arc<Admin>,
    view: Arc<View<Part>>,
    told: Arc<Told>,
}

impl Bench {
    fn new() -> Bench {
        let (env, disks) = env_sim::mem_env(3);
        disks.add("/dev/a", 96 << 20);
        let process = Arc::new(Alone::new(env.clone(), pool::Tunables::default()));
        let door = Arc::new(MemoryDoor::default());
        let admin = Admin::new(env, alone::settings(), door, process);
        pools::create::create(&admin, BY_ROOT, alone::pool_on("p", "/dev/a")).unwrap();
        for fs in ["p/a", "p/b"] {
            Commands(admin.clone()).create(fs, &[]).unwrap();
        }
        let first = Arc::new(Part(door_to(&admin, "p").0));
        let view = View::new(first, ViewRoot::default(), (7, 8));
        let told: Arc<Told> = Arc::default();
        view.subscribe(told.clone());
        Bench { admin, view, told }
    }

    /// Hangs a file system; its number.
    fn hang(&self, dataset: &str, at: &str) -> u32 {
        let (door, object) = door_to(&self.admin, dataset);
        let spare = self.spare(at).unwrap();
        let made = self.view.join(object, |_| Ok(Arc::new(Part(door))));
        let number = made.unwrap().0;
        self.view.hang(spare, number).unwrap();
        number
    }

    /// Directories that are on no disk come and go.
    fn hang_empties(&self, count: u32) {
        for n in 0..count {
            let spare = self.spare(&format!("e{n}/in")).unwrap();
            self.view.tidy(&spare);
        }
    }

    fn spare(&self, at: &str) -> base::Result<Spare> {
        let path: Vec<&[u8]> = at.split('/').map(str::as_bytes).collect();
        self.view.spare(&path, false, None)
    }

    fn with<R>(&self, node: u64, f: impl FnOnce(&At<'_, Part>) -> base::Result<R>) -> R {
        self.view.with(node, f).unwrap()
    }

    fn child(&self, node: u64, name: &str) -> Option<u64> {
        self.with(node, |at| Ok(self.view.child(at, name.as_bytes())))
    }

    fn listed(&self, node: u64) -> Vec<String> {
        let extras = self.with(node, |at| Ok(self.view.extras(at, 0)));
        let mut names: Vec<_> = extras
            .into_iter()
            .map(|e| String::from_utf8(e.name).unwrap())
            .collect();
        names.sort();
        names
    }
}

fn door_to(admin: &Arc<Admin>, name: &str) -> (Arc<Door>, u64) {
    let entry = admin.find("p").unwrap();
    let ds = entry.pool.dsl().dataset(name).unwrap();
    let zfs = entry.mounted(ds.object()).unwrap().zfs();
    let from = OfHead::new(admin, &entry, &ds, Vec::new(), Arc::default());
    let served = Served::new(zfs, &entry.pool, Box::new(from));
    (Door::open_in_view(&served).unwrap(), ds.object())
}

#[test]
fn what_hangs_is_found_listed_and_told_of() {
    let b = Bench::new();
    let a = b.hang("p/a", "a");
    let root = b.child(vfs::ROOT, "a").unwrap();
    assert_eq!(root, b.view.ids(a).root());
    assert_eq!(b.listed(vfs::ROOT), ["a"]);
    assert_eq!(b.view.above(a), Some(vfs::ROOT));
    assert_eq!(*b.told.0.lock().unwrap(), [(vfs::ROOT, "a".to_string())]);
    // Objects of the same number have inode numbers and nodes of their own.
    let number = |node: u64| {
        b.with(node, |at| {
            let entry = b.view.root_entry(&Nobody, at)?;
            b.view.entered(at, entry.node, entry.attr.ino)
        })
    };
    let (one, other) = (number(vfs::ROOT), number(root));
    assert!(one.0 != other.0 && one.1 != other.1, "{one:?} {other:?}");
    // In one that hangs another can hang.
    let inner = b.hang("p/b", "a/b");
    assert_eq!(b.listed(root), ["b"]);
    assert!(b.view.unhang(a).is_ok() && b.view.end(a) && !b.view.end(a));
    // The inner one stays at its place, in a directory that is on no disk.
    let left = b.child(vfs::ROOT, "a").unwrap();
    assert!(left != root && b.with(left, |at| Ok(at.files.is_none())));
    assert_eq!(b.listed(left), ["b"]);
    let spare = b.view.unhang(inner).unwrap();
    b.view.tidy(&spare);
    assert!(b.view.end(inner));
    assert_eq!(b.child(vfs::ROOT, "a"), None);
    let gone: base::Result<()> = b.view.with(root, |_| Ok(()));
    assert_eq!(gone.unwrap_err().kind, Kind::Stale);
    // What is forgotten late does no harm.
    b.view.forget(root, 1);
}

/// Handles that clients keep over a restart lead to the same files then.
#[test]
fn ids_and_generations_do_not_depend_on_the_order() {
    let b = Bench::new();
    let mut seen = Vec::new();
    for order in [["p/a", "p/b"], ["p/b", "p/a"]] {
        let numbers = order.map(|fs| (fs, b.hang(fs, &fs[2..])));
        let mut files: Vec<_> = numbers
            .iter()
            .map(|(fs, number)| {
                let root = b.view.ids(*number).root();
                let made = b.with(root, |at| {
                    let door = at.files.unwrap().door();
                    let new = New::file(0o100644, 0);
                    let found = match door.lookup(&Nobody, vfs::ROOT, b"f")? {
                        vfs::Lookup::Found(entry) => entry,
                        vfs::Lookup::Missing(_) => door.make(&Nobody, vfs::ROOT, b"f", &new)?,
                    };
                    let (node, ino) = b.view.entered(at, found.node, found.attr.ino)?;
                    Ok((node, ino, at.generation(found.generation)))
                });
                (*fs, root, made)
            })
            .collect();
        files.sort_unstable();
        // Others come between, and what clients knew is forgotten.
        b.hang_empties(20);
        for (_, number) in numbers {
            b.view.unhang(number).unwrap();
            b.view.end(number);
        }
        for (_, _, (node, ..)) in &files {
            b.view.forget(*node, 1);
        }
        seen.push(files);
    }
    assert_eq!(seen[0], seen[1]);
    // A node that clients have not forgotten keeps its number to itself.
    let number = b.hang("p/a", "a");
    let root = b.view.ids(number).root();
    b.with(root, |at| b.view.entered(at, vfs::ROOT, 1).map(drop));
    b.view.unhang(number).unwrap();
    b.view.end(number);
    let other = b.hang("p/a", "a");
    assert_ne!(other, number);
    let stale: base::Result<()> = b.view.with(root, |_| Ok(()));
    assert_eq!(stale.unwrap_err().kind, Kind::Stale);
    b.view.forget(root, 1);
    b.view.unhang(other).unwrap();
    b.view.end(other);
    assert_eq!(b.hang("p/a", "a"), number);
}

#[test]
fn directories_that_are_missing_on_the_way_are_empty_and_go_again() {
    let b = Bench::new();
    let number = b.hang("p/a", "x/y/a");
    let x = b.child(vfs::ROOT, "x").unwrap();
    let y = b.child(x, "y").unwrap();
    assert_eq!(b.listed(y), ["a"]);
    let attrs = |node| b.with(node, |at| Ok(b.view.empty_attrs(at).attr));
    assert_eq!(
        (attrs(x).mode, attrs(x).uid, attrs(x).gid),
        (0o040_555, 7, 8)
    );
    assert_ne!(attrs(x).ino, attrs(y).ino);
    assert!(b.with(x, |at| Ok(at.files.is_none())));
    // A file system that hangs there takes over what hangs in it.
    let over = b.hang("p/b", "x");
    let x = b.child(vfs::ROOT, "x").unwrap();
    assert!(b.with(x, |at| Ok(at.files.is_some())));
    assert_eq!(b.child(x, "y"), Some(y));
    let spare = b.view.unhang(number).unwrap();
    b.view.tidy(&spare);
    assert_eq!(b.child(x, "y"), None);
    assert!(b.view.unhang(over).is_ok());
    assert_eq!(b.listed(vfs::ROOT), [""; 0]);
}

#[test]
fn directories_are_hidden_and_files_refuse() {
    let b = Bench::new();
    let first = b.view.first().door();
    let dir = first.mkdir(&Nobody, vfs::ROOT, b"a", (0o755, 0)).unwrap();
    let spare = b.spare("a").unwrap();
    assert!(!spare.shadows);
    first.mkdir(&Nobody, dir.node, b"in", (0o755, 0)).unwrap();
    let full = b.spare("a").err().map(|e| e.kind);
    assert_eq!(full, Some(Kind::NotEmpty));
    let spare = b.view.spare(&[b"a"], true, None).unwrap();
    assert!(spare.shadows && spare.owner == 0);
    let foreign = b.view.spare(&[b"a"], true, Some(5)).err();
    assert_eq!(foreign.map(|e| e.kind), Some(Kind::NotPermitted));
    let new = New::file(0o100644, 0);
    first.make(&Nobody, vfs::ROOT, b"f", &new).unwrap();
    for at in ["f", "f/a", ".zfs/a"] {
        assert_eq!(
            b.spare(at).err().map(|e| e.kind),
            Some(Kind::NotDir),
            "{at}"
        );
    }
    // In a directory of the file system something hangs by its object.
    b.hang("p/a", "a/in/deep");
    let vfs::Lookup::Found(inside) = first.lookup(&Nobody, dir.node, b"in").unwrap() else {
        panic!("a name that is not there");
    };
    let inside = b.view.ids(0).outside(inside.node).unwrap();
    assert!(b.child(inside, "deep").is_some() && b.view.has_places());
    assert!(b.with(inside, |at| Ok(b.view.is_place(at))));
}

#[test]
fn what_stands_for_something_goes_with_it() {
    let b = Bench::new();
    let locked = Arc::new(AtomicBool::new(true));
    let still = locked.clone();
    let stands = Box::new(move || still.load(Ordering::SeqCst));
    b.view.stand(b.spare("a").unwrap(), stands).unwrap();
    assert_eq!(b.listed(vfs::ROOT), ["a"]);
    let number = b.hang("p/a", "a");
    let root = b.child(vfs::ROOT, "a").unwrap();
    assert!(b.with(root, |at| Ok(at.files.is_some())));
    b.view.unhang(number).unwrap();
    let still = locked.clone();
    let stands = Box::new(move || still.load(Ordering::SeqCst));
    b.view.stand(b.spare("a").unwrap(), stands).unwrap();
    assert!(b.child(vfs::ROOT, "a").is_some());
    locked.store(false, Ordering::SeqCst);
    assert_eq!(b.child(vfs::ROOT, "a"), None);
    assert_eq!(b.listed(vfs::ROOT), [""; 0]);
}

#[test]
fn bytes_go_from_one_to_another() {
    let b = Bench::new();
    b.hang("p/a", "a");
    let root = b.child(vfs::ROOT, "a").unwrap();
    let new = New::file(0o100644, 0);
    let data: Vec<u8> = (0..2_500_000u32).map(|n| (n % 249) as u8).collect();
    let first = b.view.first().door();
    let from = first.make(&Nobody, vfs::ROOT, b"f", &new).unwrap().node;
    let how = vfs::WriteHow::default();
    first
        .write(&Nobody, from, 0, data.as_slice().into(), how)
        .unwrap();
    let got = b.with(root, |at| {
        let other = at.files.unwrap().door();
        let to = other.make(&Nobody, vfs::ROOT, b"f", &new)?.node;
        let (f, t) = ((&**first, from, 3), (&**other, to, 5));
        let copied = View::<Part>::copy_between(&Nobody, f, t, u64::MAX)?;
        assert_eq!(copied as usize, data.len() - 3);
        let mut got = Vec::new();
        let mut put = |b: &base::Block, r: std::ops::Range<usize>| got.extend_from_slice(&b[r]);
        other.read(&Nobody, to, (0, 3 << 20), false, &mut put)?;
        Ok(got)
    });
    assert!(got[..5] == [0; 5] && got[5..] == data[3..]);
}
