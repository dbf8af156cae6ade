//! Directories are opened without requests, and what listing them shows and changes is as if each were heard of.

mod common;

use common::{can_mount, Mounted};
use rustix::fs::{
    openat, utimensat, AtFlags, Mode, OFlags, RawDir, Timespec, Timestamps, XattrFlags, CWD,
};
use std::fs;
use std::mem::MaybeUninit;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap();
    let name = |e: std::io::Result<fs::DirEntry>| e.unwrap().file_name().into_string().unwrap();
    let mut all: Vec<String> = entries.map(name).collect();
    all.sort();
    all
}

fn atime(path: &Path) -> (i64, i64) {
    let m = fs::metadata(path).unwrap();
    (m.atime(), m.atime_nsec())
}

/// Listings of which the daemon has heard.
fn heard(m: &Mounted) -> u64 {
    let asked = m.requests();
    asked.of("READDIR") + asked.of("READDIRPLUS")
}

/// The clock goes on.
fn a_moment() {
    sleep(Duration::from_millis(15));
}

/// Lists a directory; whether its access time changed.
fn list_changes_atime(dir: &Path) -> bool {
    let before = atime(dir);
    a_moment();
    names(dir);
    let after = atime(dir);
    assert!(after >= before);
    after > before
}

#[test]
fn directories_are_opened_without_requests_and_names_are_those_that_are_there() {
    if !can_mount() {
        return;
    }
    let m = Mounted::new("unasked");
    let d = m.path("d");
    fs::create_dir(&d).unwrap();
    fs::create_dir(m.path("other")).unwrap();
    fs::write(d.join("a"), "x").unwrap();
    // An access time that is not later than the change is due again.
    a_moment();
    assert_eq!(names(&d), ["a"]);
    assert_eq!(names(&m.path("")), ["d", "other"]);
    let before = heard(&m);
    for _ in 0..10 {
        assert_eq!(names(&d), ["a"]);
        assert_eq!(names(&m.path("")), ["d", "other"]);
    }
    assert_eq!(heard(&m), before, "listed from the kernel's memory");
    let asked = m.requests();
    // One is what tells the kernel.
    assert!(asked.of("OPENDIR") <= 1, "{asked}");
    assert_eq!(asked.of("RELEASEDIR"), 0, "{asked}");

    fs::write(d.join("b"), "x").unwrap();
    assert_eq!(names(&d), ["a", "b"]);
    fs::remove_file(d.join("a")).unwrap();
    assert_eq!(names(&d), ["b"]);
    fs::hard_link(d.join("b"), d.join("c")).unwrap();
    assert_eq!(names(&d), ["b", "c"]);
    fs::rename(d.join("c"), m.path("other/c")).unwrap();
    assert_eq!(names(&d), ["b"]);
    assert_eq!(names(&m.path("other")), ["c"]);
    fs::create_dir(d.join("sub")).unwrap();
    assert_eq!(names(&d), ["b", "sub"]);
    fs::remove_dir(d.join("sub")).unwrap();
    assert_eq!(names(&d), ["b"]);
    std::os::unix::fs::symlink("nowhere", d.join("l")).unwrap();
    assert_eq!(names(&d), ["b", "l"]);
}

#[test]
fn a_directory_that_was_never_listed_is_walked_through_without_requests() {
    if !can_mount() {
        return;
    }
    let m = Mounted::new("walked");
    fs::create_dir(m.path("d")).unwrap();
    fs::write(m.path("d/f"), "x").unwrap();
    m.pool.sync().unwrap();
    fs::metadata(m.path("d/f")).unwrap();
    let before = m.requests().of("GETATTR");
    for _ in 0..50 {
        fs::metadata(m.path("d/f")).unwrap();
    }
    assert!(m.requests().of("GETATTR") <= before + 2);
}

#[test]
fn access_times_follow_changes_of_attributes_under_relatime() {
    if !can_mount() {
        return;
    }
    let m = Mounted::new("relatime");
    let d = m.path("d");
    fs::create_dir(&d).unwrap();
    fs::write(d.join("a"), "x").unwrap();
    assert!(list_changes_atime(&d), "after a change of names");
    assert!(!list_changes_atime(&d), "once");
    assert!(!list_changes_atime(&d));
    let changed = |what: &str| {
        assert!(list_changes_atime(&d), "{what}");
        assert!(!list_changes_atime(&d), "once after {what}");
    };
    a_moment();
    fs::set_permissions(&d, fs::Permissions::from_mode(0o700)).unwrap();
    changed("chmod");
    a_moment();
    std::os::unix::fs::chown(&d, Some(1), Some(1)).unwrap();
    changed("chown");
    a_moment();
    rustix::fs::setxattr(&d, "user.x", b"1", XattrFlags::empty()).unwrap();
    changed("an extended attribute");
    a_moment();
    rustix::fs::removexattr(&d, "user.x").unwrap();
    changed("its removal");
    a_moment();
    let e = m.path("e");
    fs::rename(&d, &e).unwrap();
    fs::rename(&e, &d).unwrap();
    changed("a rename");
    // An access time of long ago.
    let old = Timespec {
        tv_sec: 1_000_000_000,
        tv_nsec: 0,
    };
    let times = Timestamps {
        last_access: old,
        last_modification: old,
    };
    utimensat(CWD, &d, &times, AtFlags::empty()).unwrap();
    changed("times set");
    a_moment();
    fs::write(d.join("b"), "x").unwrap();
    changed("a new name");
}

#[test]
fn access_times_follow_the_properties_of_this_moment() {
    if !can_mount() {
        return;
    }
    let m = Mounted::new("strict");
    let d = m.path("d");
    fs::create_dir(&d).unwrap();
    fs::write(d.join("a"), "x").unwrap();
    let set = |atime: bool, relatime: bool| {
        m.zfs.upgrade().unwrap().set_props(|p| {
            p.atime = atime;
            p.relatime = relatime;
        });
        m.served.properties_changed();
    };
    assert!(list_changes_atime(&d));
    assert!(!list_changes_atime(&d));
    set(true, false);
    for n in 0..4 {
        assert!(list_changes_atime(&d), "listing {n}, each counts");
    }
    set(false, false);
    for _ in 0..3 {
        assert!(!list_changes_atime(&d), "none counts");
    }
    set(true, false);
    for n in 0..3 {
        assert!(list_changes_atime(&d), "listing {n}, each counts again");
    }
    set(true, true);
    // The last one is later than all changes.
    assert!(!list_changes_atime(&d));
    assert_eq!(names(&d), ["a"]);
}

#[test]
fn the_directory_of_snapshots_shows_those_that_are_there() {
    if !can_mount() {
        return;
    }
    let m = Mounted::new("snaps");
    let dir = m.path(".zfs/snapshot");
    assert!(names(&dir).is_empty());
    m.snapshot("s1");
    assert_eq!(names(&dir), ["s1"]);
    assert_eq!(names(&dir), ["s1"]);
    m.snapshot("s2");
    assert_eq!(names(&dir), ["s1", "s2"]);
    assert_eq!(names(&m.path(".zfs")), ["shares", "snapshot"]);
}

#[test]
fn a_listing_of_snapshots_goes_on_as_it_began() {
    if !can_mount() {
        return;
    }
    let m = Mounted::new("begun");
    let long = "m".repeat(60);
    let first: Vec<String> = (0..12).map(|n| format!("{long}{n:02}")).collect();
    first.iter().for_each(|s| m.snapshot(s));
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let fd = openat(CWD, m.path(".zfs/snapshot"), flags, Mode::empty()).unwrap();
    // Room for two or three names.
    let mut buf = [MaybeUninit::uninit(); 256];
    let mut listing = RawDir::new(&fd, &mut buf);
    let mut got = Vec::new();
    let mut next = |got: &mut Vec<String>| {
        let Some(entry) = listing.next() else {
            return false;
        };
        let name = entry.unwrap().file_name().to_str().unwrap().to_string();
        if !matches!(name.as_str(), "." | "..") {
            got.push(name);
        }
        true
    };
    while got.len() < 3 {
        assert!(next(&mut got));
    }
    for s in ["a", "n", "z"] {
        m.snapshot(&format!("{s}{long}"));
        assert!(names(&m.path(".zfs/snapshot")).len() > first.len());
    }
    while next(&mut got) {}
    got.sort();
    assert_eq!(got, first);
    assert_eq!(names(&m.path(".zfs/snapshot")).len(), first.len() + 3);
}

#[test]
fn what_was_rolled_back_is_listed_as_it_is() {
    if !can_mount() {
        return;
    }
    let m = Mounted::new("rolled");
    fs::create_dir(m.path("d")).unwrap();
    fs::write(m.path("d/a"), "x").unwrap();
    m.snapshot("s");
    fs::write(m.path("d/b"), "x").unwrap();
    assert_eq!(names(&m.path("d")), ["a", "b"]);
    assert_eq!(names(&m.path("d")), ["a", "b"]);
    let held = m.served.suspend().unwrap();
    let zfs = m.roll_back();
    held.resume(zfs.clone()).unwrap();
    zfs.start().unwrap();
    assert_eq!(names(&m.path("d")), ["a"]);
    fs::write(m.path("d/c"), "x").unwrap();
    assert_eq!(names(&m.path("d")), ["a", "c"]);
}

#[test]
fn a_listing_with_o_noatime_leaves_the_access_time_as_it_is() {
    if !can_mount() {
        return;
    }
    let m = Mounted::new("noatime");
    let d = m.path("d");
    fs::create_dir(&d).unwrap();
    let quietly = || {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOATIME;
        let fd = openat(CWD, &d, flags, Mode::empty()).unwrap();
        let mut buf = [MaybeUninit::uninit(); 4096];
        let mut listing = RawDir::new(&fd, &mut buf);
        let mut names = 0;
        while let Some(entry) = listing.next() {
            entry.unwrap();
            names += 1;
        }
        names - 2
    };
    for n in 1..4 {
        fs::write(d.join(n.to_string()), "x").unwrap();
        let before = atime(&d);
        a_moment();
        assert_eq!((quietly(), quietly()), (n, n));
        assert_eq!(atime(&d), before);
        assert!(list_changes_atime(&d), "it is due");
        assert!(!list_changes_atime(&d));
        let before = atime(&d);
        assert_eq!(quietly(), n);
        assert_eq!(atime(&d), before);
    }
}
