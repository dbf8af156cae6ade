//! A pool in use read-only: the kernel need not say what it opens.

mod common;

use common::{can_mount, Mounted};
use rustix::io::Errno;
use std::fs::{self, OpenOptions};
use std::path::Path;

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap();
    let name = |e: std::io::Result<fs::DirEntry>| e.unwrap().file_name().into_string().unwrap();
    let mut all: Vec<String> = entries.map(name).collect();
    all.sort();
    all
}

/// Everything that the tree has, as it is now.
fn look_through(m: &Mounted) {
    for n in 0..20 {
        let content = format!("content {n}");
        assert_eq!(
            fs::read_to_string(m.path(&format!("d/f{n}"))).unwrap(),
            content
        );
    }
    assert_eq!(names(&m.path("d")).len(), 20);
    assert_eq!(names(&m.path("")), ["d"]);
    assert_eq!(names(&m.path(".zfs")), ["shares", "snapshot"]);
    assert_eq!(names(&m.path(".zfs/snapshot")), ["s1", "s2"]);
    let then = m.path(".zfs/snapshot/s1/d/f0");
    assert_eq!(fs::read_to_string(then).unwrap(), "before");
}

#[test]
fn files_and_directories_of_a_read_only_pool_are_opened_without_requests() {
    if !can_mount() {
        return;
    }
    let m = Mounted::new("fixed");
    fs::create_dir(m.path("d")).unwrap();
    fs::write(m.path("d/f0"), "before").unwrap();
    m.snapshot("s1");
    for n in 0..20 {
        fs::write(m.path(&format!("d/f{n}")), format!("content {n}")).unwrap();
    }
    m.snapshot("s2");
    look_through(&m);
    let asked = m.requests();
    assert!(asked.of("OPEN") >= 20, "{asked}");
    assert!(asked.of("OPENDIR") <= 1, "{asked}");

    let m = m.read_only();
    look_through(&m);
    look_through(&m);
    let asked = m.requests();
    // One of each is what tells the kernel.
    assert!(asked.of("OPEN") <= 1 && asked.of("OPENDIR") <= 1, "{asked}");
    assert_eq!(
        (asked.of("RELEASE"), asked.of("RELEASEDIR")),
        (0, 0),
        "{asked}"
    );
    let read = asked.of("READ");
    look_through(&m);
    assert_eq!(m.requests().of("READ"), read, "pages are kept");
    for name in ["d/f0", ".zfs/snapshot/s1/d/f0"] {
        let e = OpenOptions::new()
            .write(true)
            .open(m.path(name))
            .unwrap_err();
        assert_eq!(e.raw_os_error(), Some(Errno::ROFS.raw_os_error()), "{name}");
    }
    let e = fs::write(m.path("new"), "x").unwrap_err();
    assert_eq!(e.raw_os_error(), Some(Errno::ROFS.raw_os_error()));
}
