//! Suspending a mounted file system, and resuming it as another state of it.

#![allow(unsafe_code)]

mod common;

use common::{can_mount, Mounted};
use rustix::io::Errno;
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::mpsc;
use std::time::{Duration, Instant};

fn writable(path: impl AsRef<Path>) -> File {
    OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .unwrap()
}

fn names(dir: impl AsRef<Path>) -> Vec<OsString> {
    let list = fs::read_dir(dir).unwrap();
    let mut list: Vec<_> = list.map(|e| e.unwrap().file_name()).collect();
    list.sort();
    list
}

fn is_stale<T>(r: io::Result<T>) -> bool {
    match r {
        Err(e) => e.raw_os_error() == Some(Errno::STALE.raw_os_error()),
        Ok(_) => false,
    }
}

/// The whole file through an open description.
fn whole(f: &mut File) -> io::Result<String> {
    f.seek(SeekFrom::Start(0))?;
    let mut s = String::new();
    f.read_to_string(&mut s)?;
    Ok(s)
}

#[test]
fn requests_wait_while_suspended_and_go_on_as_if_nothing_had_been() {
    if !can_mount() {
        return;
    }
    let m = Mounted::new("wait");
    fs::write(m.path("f"), "before").unwrap();
    let suspended = m.served.suspend().unwrap();
    assert!(m.served.suspend().is_err(), "twice");
    let (tell, told) = mpsc::channel();
    let waiting: Vec<_> = (0..3)
        .map(|n| {
            let (tell, f, new) = (tell.clone(), m.path("f"), m.path("new"));
            std::thread::spawn(move || {
                let r = match n {
                    0 => fs::create_dir(new),
                    1 => fs::read(f).map(drop),
                    _ => fs::metadata(f.with_file_name("none")).map(drop),
                };
                tell.send(n).unwrap();
                r
            })
        })
        .collect();
    // Reading may be answered by the kernel's cache; the others are not.
    let mut early = Vec::new();
    while let Ok(n) = told.recv_timeout(Duration::from_millis(500)) {
        early.push(n);
    }
    assert!(!early.contains(&0) && !early.contains(&2), "{early:?}");
    drop(suspended);
    let mut results = waiting.into_iter().map(|t| t.join().unwrap());
    results.next().unwrap().unwrap();
    results.next().unwrap().unwrap();
    let none = results.next().unwrap().unwrap_err();
    assert_eq!(none.kind(), io::ErrorKind::NotFound);
    assert_eq!(fs::read_to_string(m.path("f")).unwrap(), "before");
    assert!(m.path("new").is_dir());
    // And again.
    drop(m.served.suspend().unwrap());
}

#[test]
fn a_process_that_waits_for_a_suspended_file_system_can_be_killed() {
    if !can_mount() {
        return;
    }
    let m = Mounted::new("kill");
    let suspended = m.served.suspend().unwrap();
    let mut child = std::process::Command::new("mkdir")
        .arg(m.path("d"))
        .spawn()
        .unwrap();
    std::thread::sleep(Duration::from_millis(300));
    assert!(child.try_wait().unwrap().is_none(), "it did not wait");
    child.kill().unwrap();
    let begin = Instant::now();
    child.wait().unwrap();
    assert!(begin.elapsed() < Duration::from_secs(5));
    drop(suspended);
    assert!(!m.path("d").exists());
}

#[test]
fn an_unmount_by_force_ends_requests_that_wait() {
    if !can_mount() {
        return;
    }
    let m = Mounted::new("force");
    let suspended = m.served.suspend().unwrap();
    let d = m.path("d");
    let waiting = std::thread::spawn(move || fs::create_dir(d));
    std::thread::sleep(Duration::from_millis(200));
    m.mount.unmount(fuse::Unmount::Force).unwrap();
    assert!(waiting.join().unwrap().is_err());
    // The session's threads come back, too: they are joined.
    drop(m);
    drop(suspended);
}

/// What the snapshot has.
fn make_files(m: &Mounted) {
    fs::create_dir(m.path("dir")).unwrap();
    for (name, text) in [
        ("same", "unchanged"),
        ("text", "old old"),
        ("grown", "short"),
        ("shrunk", "a long text that gets shorter"),
        ("removed", "comes back"),
        ("replaced", "first"),
        ("dir/moved", "moved away"),
        ("chmod", "mode"),
    ] {
        fs::write(m.path(name), text).unwrap();
    }
    fs::set_permissions(
        m.path("chmod"),
        std::os::unix::fs::PermissionsExt::from_mode(0o600),
    )
    .unwrap();
}

/// The names show what the snapshot had.
fn until(what: &str, holds: impl Fn() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < Duration::from_secs(60), "not yet: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn assert_names_show_the_snapshot(m: &Mounted) {
    let read = |name: &str| fs::read_to_string(m.path(name)).unwrap();
    assert_eq!(read("same"), "unchanged");
    assert_eq!(read("text"), "old old");
    assert_eq!(read("grown"), "short");
    assert_eq!(read("shrunk"), "a long text that gets shorter");
    assert_eq!(read("removed"), "comes back");
    assert_eq!(read("replaced"), "first");
    assert_eq!(read("dir/moved"), "moved away");
    let size = |name: &str| fs::metadata(m.path(name)).unwrap().len();
    assert_eq!((size("grown"), size("shrunk")), (5, 29));
    assert_eq!(fs::metadata(m.path("chmod")).unwrap().mode() & 0o777, 0o600);
    for gone in ["added", "moved", "other", "dir/sub", "dir/sub/deep"] {
        let e = fs::metadata(m.path(gone)).unwrap_err();
        assert_eq!(e.kind(), io::ErrorKind::NotFound, "{gone}");
    }
    assert_eq!(names(m.path("dir")), ["moved"]);
    assert_eq!(names(m.at.path()).len(), 8);
}

#[test]
fn a_rollback_under_a_mount_shows_the_snapshot_to_names_handles_and_mappings() {
    if !can_mount() {
        return;
    }
    let m = Mounted::new("rollback");
    make_files(&m);
    let mut same = writable(m.path("same"));
    let mut removed = writable(m.path("removed"));
    m.snapshot("s");

    // Everything changes.
    fs::write(m.path("text"), "new new").unwrap();
    fs::write(m.path("grown"), "short no more, by far").unwrap();
    fs::write(m.path("shrunk"), "a").unwrap();
    fs::remove_file(m.path("removed")).unwrap();
    fs::write(m.path("other"), "second").unwrap();
    fs::rename(m.path("other"), m.path("replaced")).unwrap();
    fs::rename(m.path("dir/moved"), m.path("moved")).unwrap();
    fs::create_dir(m.path("dir/sub")).unwrap();
    fs::write(m.path("dir/sub/deep"), "deep").unwrap();
    fs::write(m.path("added"), "not there").unwrap();
    fs::set_permissions(
        m.path("chmod"),
        std::os::unix::fs::PermissionsExt::from_mode(0o644),
    )
    .unwrap();
    let mut grown = writable(m.path("grown"));
    let mut added = writable(m.path("added"));
    let mut deep = File::open(m.path("dir/sub/deep")).unwrap();
    let mut text = File::open(m.path("text")).unwrap();
    // The kernel knows all of this now, also names that are not there.
    assert_eq!(names(m.path("dir")), ["sub"]);
    assert!(!m.path("dir/moved").exists());
    assert_eq!(whole(&mut grown).unwrap(), "short no more, by far");
    assert_eq!(whole(&mut text).unwrap(), "new new");

    m.written.take().unwrap();
    // Half written: in the kernel's cache only.
    grown.write_at(b"HALF", 2).unwrap();
    let suspended = m.served.suspend().unwrap();
    let new = m.roll_back();
    suspended.resume(new.clone()).unwrap();
    new.start().unwrap();

    let check = || assert_names_show_the_snapshot(&m);
    check();
    // Handles of what is there go on; of what is gone they are stale.
    assert_eq!(whole(&mut same).unwrap(), "unchanged");
    assert!(is_stale(whole(&mut deep)));
    assert!(is_stale(whole(&mut added)));
    // Content, size and modification time are those of the snapshot, whatever the kernel kept.
    assert_eq!(whole(&mut removed).unwrap(), "comes back");
    assert_eq!(whole(&mut text).unwrap(), "old old");
    assert_eq!(whole(&mut grown).unwrap(), "short");
    for (name, f) in [("removed", &removed), ("text", &text), ("grown", &grown)] {
        let (there, by_name) = (f.metadata().unwrap(), fs::metadata(m.path(name)).unwrap());
        assert_eq!(there.ino(), by_name.ino(), "{name}");
        let z = new.get(there.ino()).unwrap();
        let (size, mtime) = (z.fixed().size, z.fixed().mtime);
        for of in [there, by_name] {
            assert_eq!(of.len(), size, "{name}");
            let seen = (of.mtime(), of.mtime_nsec());
            assert_eq!(seen, (mtime.sec, mtime.nsec.into()), "{name}");
            assert_eq!(of.nlink(), 1, "{name}");
        }
    }
    // What can be written is written to what is there now.
    same.write_at(b"CHANGED", 0).unwrap();
    same.sync_all().unwrap();
    assert_eq!(fs::read_to_string(m.path("same")).unwrap(), "CHANGEDed");
    same.write_at(b"unchang", 0).unwrap();
    fs::write(m.path("added"), "again").unwrap();
    assert_eq!(fs::read_to_string(m.path("added")).unwrap(), "again");
    fs::remove_file(m.path("added")).unwrap();
    drop((same, removed, grown, added, deep, text));
    // The change time, too, when nobody has it open any more.
    for name in ["removed", "text", "grown"] {
        // The kernel says later that it has been closed.
        until(name, || {
            let of = fs::metadata(m.path(name)).unwrap();
            let ctime = new.get(of.ino()).unwrap().fixed().ctime;
            (of.ctime(), of.ctime_nsec()) == (ctime.sec, ctime.nsec.into())
        });
    }
    // The kernel has nothing left that comes out later.
    m.written.take().unwrap();
    std::thread::sleep(Duration::from_secs(2));
    check();
    fs::write("/proc/sys/vm/drop_caches", "2").unwrap();
    check();
}

/// The node is replaced each time the file is closed, while the kernel looks it up and forgets it at once: an id that was given out
/// at that moment led nowhere, so that what was written to it was lost, or read after a rollback (one run of a hundred).
#[test]
fn a_file_goes_on_over_several_rollbacks() {
    if !can_mount() {
        return;
    }
    let m = Mounted::new("rollbacks");
    make_files(&m);
    m.snapshot("s");
    for _ in 0..3 {
        let mut text = writable(m.path("text"));
        text.write_at(b"newer!!!", 0).unwrap();
        m.written.take().unwrap();
        let suspended = m.served.suspend().unwrap();
        let new = m.roll_back();
        suspended.resume(new.clone()).unwrap();
        new.start().unwrap();
        let by_name = fs::read_to_string(m.path("text")).unwrap();
        assert_eq!(by_name, "old old");
        assert_eq!(whole(&mut text).unwrap(), "old old");
        // And it is written to.
        text.write_at(b"n", 0).unwrap();
        text.sync_all().unwrap();
        assert_eq!(fs::read_to_string(m.path("text")).unwrap(), "nld old");
    }
}

/// A client of NFS may come at that moment: its door began with the former state, and changes through it were lost.
#[test]
fn a_door_that_is_opened_during_a_rollback_leads_to_what_is_there_afterwards() {
    if !can_mount() {
        return;
    }
    let m = Mounted::new("late");
    make_files(&m);
    m.snapshot("s");
    fs::write(m.path("added"), "not there").unwrap();
    m.written.take().unwrap();
    let suspended = m.served.suspend().unwrap();
    let late = vfs::Door::open_to(&m.served).unwrap();
    let new = m.roll_back();
    suspended.resume(new.clone()).unwrap();
    new.start().unwrap();
    let is_there = |name: &str| {
        let found = late.lookup(&vfs::Nobody, vfs::ROOT, name.as_bytes());
        matches!(found.unwrap(), vfs::Lookup::Found(_))
    };
    assert!(is_there("same") && !is_there("added"));
    late.mkdir(&vfs::Nobody, vfs::ROOT, b"made", (0o755, 0))
        .unwrap();
    assert!(m.path("made").is_dir());
    late.close();
}

#[test]
fn a_removed_directory_that_comes_back_is_usable_though_somebody_is_in_it() {
    if !can_mount() {
        return;
    }
    let m = Mounted::new("held");
    fs::create_dir_all(m.path("d/e")).unwrap();
    fs::write(m.path("d/f"), "in it").unwrap();
    fs::create_dir(m.path("kept")).unwrap();
    m.snapshot("s");
    let (held, kept) = (
        File::open(m.path("d")).unwrap(),
        File::open(m.path("kept")).unwrap(),
    );
    let mut stands = std::process::Command::new("sleep")
        .arg("60")
        .current_dir(m.path("d/e"))
        .spawn()
        .unwrap();
    fs::remove_dir_all(m.path("d")).unwrap();
    fs::write(m.path("kept/late"), "goes").unwrap();
    m.written.take().unwrap();
    let suspended = m.served.suspend().unwrap();
    let new = m.roll_back();
    suspended.resume(new.clone()).unwrap();
    new.start().unwrap();
    let usable = (|| {
        fs::write(m.path("d/new"), "new")?;
        fs::write(m.path("d/e/deep"), "deep")?;
        fs::remove_file(m.path("d/new"))
    })();
    stands.kill().unwrap();
    stands.wait().unwrap();
    usable.unwrap();
    assert_eq!(names(m.path("d")), ["e", "f"]);
    assert_eq!(fs::read_to_string(m.path("d/f")).unwrap(), "in it");
    // A directory that was there all the while goes on for who has it open.
    assert!(names(m.path("kept")).is_empty());
    assert_eq!(kept.metadata().unwrap().nlink(), 2);
    let old = held.metadata();
    assert!(
        is_stale(old),
        "the kernel's removed directory leads nowhere"
    );
    drop((held, kept));
    assert_eq!(names(m.path("d")), ["e", "f"]);
}

#[test]
fn the_same_state_resumed_keeps_every_handle_and_what_is_half_written() {
    if !can_mount() {
        return;
    }
    let m = Mounted::new("again");
    fs::write(m.path("f"), "0123456789").unwrap();
    let mut f = writable(m.path("f"));
    f.write_at(b"ab", 4).unwrap();
    let gone = {
        let f = writable(m.path("f"));
        fs::write(m.path("gone"), "without a name").unwrap();
        let g = writable(m.path("gone"));
        fs::remove_file(m.path("gone")).unwrap();
        drop(f);
        g
    };
    let suspended = m.served.suspend().unwrap();
    drop(suspended);
    f.write_at(b"cd", 6).unwrap();
    f.sync_all().unwrap();
    assert_eq!(whole(&mut f).unwrap(), "0123abcd89");
    let mut gone = gone;
    assert_eq!(whole(&mut gone).unwrap(), "without a name");
}

#[test]
fn a_file_without_a_name_in_the_state_resumed_stays_until_it_is_closed() {
    if !can_mount() {
        return;
    }
    let m = Mounted::new("nameless");
    fs::write(m.path("f"), "without a name").unwrap();
    let mut f = writable(m.path("f"));
    fs::remove_file(m.path("f")).unwrap();
    // The snapshot has it on its delete queue.
    m.snapshot("s");
    fs::write(m.path("other"), "x").unwrap();
    m.written.take().unwrap();
    let suspended = m.served.suspend().unwrap();
    let new = m.roll_back();
    suspended.resume(new.clone()).unwrap();
    new.start().unwrap();
    assert!(!m.path("other").exists());
    assert_eq!(whole(&mut f).unwrap(), "without a name");
    let object = f.metadata().unwrap().ino();
    assert!(new.get(object).is_ok());
    drop(f);
    let begin = Instant::now();
    while new.get(object).is_ok() && begin.elapsed() < Duration::from_secs(5) {
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(new.get(object).is_err(), "it was not freed");
}

/// A shared mapping of the first page of a file.
struct Map(*mut std::ffi::c_void);

impl Map {
    fn new(f: &File) -> Map {
        use rustix::mm::{mmap, MapFlags, ProtFlags};
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping, used through `byte` and `set` only.
        Map(unsafe { mmap(std::ptr::null_mut(), 4096, access, flags, f, 0) }.unwrap())
    }

    fn byte(&self, at: usize) -> u8 {
        assert!(at < 4096);
        // SAFETY: within the mapping.
        unsafe { self.0.cast::<u8>().add(at).read_volatile() }
    }

    fn set(&self, at: usize, b: u8) {
        assert!(at < 4096);
        // SAFETY: within the mapping.
        unsafe { self.0.cast::<u8>().add(at).write_volatile(b) }
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: nobody uses it any more.
        unsafe { rustix::mm::munmap(self.0, 4096) }.unwrap();
    }
}

#[test]
fn a_mapping_of_an_unchanged_file_goes_on_in_the_state_resumed() {
    if !can_mount() {
        return;
    }
    let m = Mounted::new("mapped");
    fs::write(m.path("f"), [b'a'; 4096]).unwrap();
    fs::write(m.path("g"), [b'c'; 4096]).unwrap();
    let f = writable(m.path("f"));
    f.sync_all().unwrap();
    let map = Map::new(&f);
    assert_eq!(map.byte(7), b'a');
    m.snapshot("s");
    fs::write(m.path("g"), [b'd'; 4096]).unwrap();
    m.written.take().unwrap();
    let suspended = m.served.suspend().unwrap();
    let new = m.roll_back();
    suspended.resume(new.clone()).unwrap();
    new.start().unwrap();
    assert_eq!(map.byte(7), b'a');
    map.set(7, b'b');
    f.sync_all().unwrap();
    let z = new.get(f.metadata().unwrap().ino()).unwrap();
    let mut got = [0; 4096];
    new.read(&z, 0, &mut got).unwrap();
    assert_eq!((got[6], got[7], got[8]), (b'a', b'b', b'a'));
    // A store the kernel has not sent when the state is replaced goes with it.
    map.set(8, b'x');
    let suspended = m.served.suspend().unwrap();
    let again = m.roll_back();
    suspended.resume(again.clone()).unwrap();
    again.start().unwrap();
    assert_eq!(fs::read(m.path("f")).unwrap(), [b'a'; 4096]);
    assert_eq!(fs::read(m.path("g")).unwrap(), [b'c'; 4096]);
}

/// Files that change under a mapping go on in it: with another content, longer, and shorter.
#[test]
fn a_mapping_of_a_changed_file_shows_the_state_resumed() {
    if !can_mount() {
        return;
    }
    let m = Mounted::new("mapped-changed");
    for (name, pages) in [("same", 2), ("longer", 2), ("shorter", 1)] {
        fs::write(m.path(name), vec![b'a'; pages * 4096]).unwrap();
    }
    m.snapshot("s");
    for (name, pages) in [("same", 2), ("longer", 1), ("shorter", 3)] {
        fs::write(m.path(name), vec![b'b'; pages * 4096]).unwrap();
    }
    let open = |name: &str| {
        let f = writable(m.path(name));
        let map = Map::new(&f);
        assert_eq!(map.byte(7), b'b');
        (f, map)
    };
    let (same, longer, shorter) = (open("same"), open("longer"), open("shorter"));
    // Closed, the mapping alone keeps it in use.
    let same = same.1;
    same.set(9, b'x');
    m.written.take().unwrap();
    longer.1.set(9, b'y');
    let suspended = m.served.suspend().unwrap();
    let new = m.roll_back();
    suspended.resume(new.clone()).unwrap();
    new.start().unwrap();
    for map in [&same, &longer.1, &shorter.1] {
        assert_eq!((map.byte(7), map.byte(9)), (b'a', b'a'));
    }
    assert_eq!(longer.0.metadata().unwrap().len(), 2 * 4096);
    assert_eq!(shorter.0.metadata().unwrap().len(), 4096);
    // What is stored now is stored in what is there.
    shorter.1.set(3, b'z');
    shorter.0.sync_all().unwrap();
    drop((same, longer, shorter));
    assert_eq!(fs::read(m.path("longer")).unwrap(), [b'a'; 2 * 4096]);
    let read = fs::read(m.path("shorter")).unwrap();
    assert_eq!((read.len(), read[3], read[4]), (4096, b'z', b'a'));
    assert_eq!(fs::metadata(m.path("same")).unwrap().len(), 2 * 4096);
}
