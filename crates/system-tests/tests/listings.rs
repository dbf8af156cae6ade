//! The kernel remembers the listings of directories: they are right all the same, and access times
//! are those of a file system that is asked.

use rustix::fs::{openat, Dir, Mode, OFlags, CWD};
use rustix::process::Signal;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;
use system_tests::{signal, Rig};

type Names = BTreeSet<String>;

fn open(dir: &Path) -> Dir {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    Dir::new(openat(CWD, dir, flags, Mode::empty()).unwrap()).unwrap()
}

/// What is in an open directory, from its beginning, but for `.` and `..`.
fn names(dir: &mut Dir) -> Names {
    dir.rewind();
    let mut all = Names::new();
    while let Some(e) = dir.read() {
        let name = e.unwrap().file_name().to_str().unwrap().to_string();
        assert!(all.insert(name.clone()), "{name} twice");
    }
    assert!(all.remove(".") && all.remove(".."));
    all
}

#[test]
fn changes_show_at_once() {
    let Some(mut rig) = Rig::as_root("listings") else {
        return;
    };
    let disk = rig.image("a", 256 << 20);
    rig.start();
    let root = rig.mnt();
    rig.zpool(&["create", "-m", root.to_str().unwrap(), "tank", &disk]);
    let (dir, other) = (root.join("dir"), root.join("other"));
    fs::create_dir(&dir).unwrap();
    fs::create_dir(&other).unwrap();
    let mut expected = Names::new();
    // More than one request of the kernel brings.
    for n in 0..2000 {
        let name = format!("a name of some length, as programs give them {n:04}");
        fs::write(dir.join(&name), b"").unwrap();
        expected.insert(name);
    }
    fs::write(other.join("in"), b"").unwrap();
    let mut kept = open(&dir);
    for _ in 0..3 {
        assert_eq!(names(&mut kept), expected);
        assert_eq!(names(&mut open(&dir)), expected);
    }

    // Without the daemon, from memory.
    let (say, said) = mpsc::channel();
    signal(rig.pid(), Signal::STOP);
    let lister = std::thread::spawn(move || {
        let all = names(&mut kept);
        let _ = say.send(());
        (kept, all)
    });
    let alone = said.recv_timeout(Duration::from_secs(20));
    signal(rig.pid(), Signal::CONT);
    let (mut kept, all) = lister.join().unwrap();
    assert!(alone.is_ok(), "the kernel asked");
    assert_eq!(all, expected);

    let mut check = |what: &str, gone: &[&str], come: &[&str]| {
        for name in gone {
            assert!(expected.remove(*name), "{what}");
        }
        expected.extend(come.iter().map(|n| n.to_string()));
        for _ in 0..2 {
            assert_eq!(names(&mut kept), expected, "{what}");
            assert_eq!(names(&mut open(&dir)), expected, "{what}");
        }
    };
    let a = |n: u32| format!("a name of some length, as programs give them {n:04}");
    fs::write(dir.join("b"), b"b").unwrap();
    check("create", &[], &["b"]);
    fs::remove_file(dir.join(a(7))).unwrap();
    check("unlink", &[&a(7)], &[]);
    fs::rename(dir.join("b"), dir.join("c")).unwrap();
    check("rename", &["b"], &["c"]);
    fs::rename(dir.join("c"), dir.join(a(8))).unwrap();
    check("rename over", &["c"], &[]);
    fs::rename(other.join("in"), dir.join("in")).unwrap();
    check("rename into", &[], &["in"]);
    fs::rename(dir.join("in"), other.join("out")).unwrap();
    check("rename out of", &["in"], &[]);
    fs::create_dir(dir.join("d")).unwrap();
    check("mkdir", &[], &["d"]);
    fs::remove_dir(dir.join("d")).unwrap();
    check("rmdir", &["d"], &[]);
    fs::hard_link(other.join("out"), dir.join("l")).unwrap();
    check("link", &[], &["l"]);
    std::os::unix::fs::symlink("nowhere", dir.join("s")).unwrap();
    check("symlink", &[], &["s"]);
    rig.sh(&format!("mkfifo {}/p", dir.display()));
    check("mknod", &[], &["p"]);
    let unnamed = openat(CWD, &dir, OFlags::TMPFILE | OFlags::WRONLY, Mode::RUSR).unwrap();
    check("an unnamed file", &[], &[]);
    let proc = format!(
        "/proc/self/fd/{}",
        std::os::fd::AsRawFd::as_raw_fd(&unnamed)
    );
    let follow = rustix::fs::AtFlags::SYMLINK_FOLLOW;
    rustix::fs::linkat(CWD, &*proc, CWD, dir.join("t"), follow).unwrap();
    check("its name", &[], &["t"]);
    let exchange = rustix::fs::RenameFlags::EXCHANGE;
    rustix::fs::renameat_with(CWD, dir.join("t"), CWD, other.join("out"), exchange).unwrap();
    check("exchange", &[], &[]);
    assert_eq!(names(&mut open(&other)), Names::from(["out".to_string()]));

    // Names go while they are listed: rm(1) sees each once.
    rig.sh(&format!("rm -r {}", dir.display()));
    assert!(!dir.exists());

    // The control directory shows and hides.
    let has = |name: &str| names(&mut open(&root)).contains(name);
    let mut kept = open(&root);
    for visible in [false, true, true, false] {
        let value = if visible { "visible" } else { "hidden" };
        rig.zfs(&["set", &format!("snapdir={value}"), "tank"]);
        assert_eq!(has(".zfs"), visible);
        assert_eq!(has(".zfs"), visible);
        assert_eq!(names(&mut kept).contains(".zfs"), visible);
    }
    rig.stop();
    rig.start();
    assert_eq!(names(&mut open(&root)), Names::from(["other".to_string()]));
    rig.stop();
    rig.zdb_check("tank");
}

/// When a directory's access time changes is told by the properties, not by what the kernel has.
#[test]
fn access_times_of_listings() {
    let Some(mut rig) = Rig::as_root("listings-atime") else {
        return;
    };
    let disk = rig.image("a", 256 << 20);
    rig.start();
    let root = rig.mnt();
    rig.zpool(&["create", "-m", root.to_str().unwrap(), "tank", &disk]);
    let dir = root.join("dir");
    fs::create_dir(&dir).unwrap();
    let atime = || {
        let m = fs::metadata(&dir).unwrap();
        (m.atime(), m.atime_nsec())
    };
    let moved = |what: &str, expected: [bool; 3]| {
        for e in expected {
            let before = atime();
            std::thread::sleep(Duration::from_millis(20));
            names(&mut open(&dir));
            assert_eq!(atime() > before, e, "{what}: {before:?}");
        }
    };
    moved("new", [true, false, false]);
    fs::write(dir.join("a"), b"").unwrap();
    moved("changed", [true, false, false]);
    rig.zfs(&["set", "relatime=off", "tank"]);
    moved("each time", [true, true, true]);
    rig.zfs(&["set", "atime=off", "tank"]);
    fs::write(dir.join("b"), b"").unwrap();
    moved("never", [false, false, false]);
    rig.zfs(&["set", "atime=on", "tank"]);
    moved("each time again", [true, true, true]);
    rig.stop();
}

/// Programs size their buffers by the block size of the directory, and the kernel asks for as many names with
/// attributes as fit.
#[test]
fn large_directories_are_listed_in_small_pieces() {
    let Some(mut rig) = Rig::as_root("listings-pieces") else {
        return;
    };
    let disk = rig.image("a", 256 << 20);
    rig.start();
    let root = rig.mnt();
    rig.zpool(&["create", "-m", root.to_str().unwrap(), "tank", &disk]);
    let dir = root.join("dir");
    fs::create_dir(&dir).unwrap();
    let images = Path::new(&disk).parent().unwrap().to_str().unwrap();
    // All in one block of 128 KiB.
    let expected: Names = (0..1500).map(|n| format!("name{n:04}")).collect();
    for name in &expected {
        fs::write(dir.join(name), b"").unwrap();
    }
    fs::write(root.join("large"), vec![1; 1 << 20]).unwrap();
    assert_eq!(
        fs::metadata(root.join("large")).unwrap().blksize(),
        128 << 10
    );
    let list = || {
        for _ in 0..5 {
            let mut dir = open(&dir);
            assert_eq!(names(&mut dir), expected);
        }
    };
    for when in ["warm", "cold"] {
        let block = fs::metadata(&dir).unwrap().blksize();
        assert!((512..=16 << 10).contains(&block), "{when}: {block}");
        std::thread::scope(|s| {
            for _ in 0..4 {
                s.spawn(list);
            }
        });
        rig.zpool(&["export", "tank"]);
        rig.zpool(&["import", "-d", images, "tank"]);
    }
    rig.stop();
}
