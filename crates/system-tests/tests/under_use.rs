//! File systems that go back, or are snapshotted, while programs use them.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::Duration;
use system_tests::{number, Rig};

/// ESTALE
const STALE: i32 = 116;

/// A pool `tank` mounted in the rig's place for mounts.
fn tank(name: &str) -> Option<(Rig, PathBuf)> {
    Some(Rig::new(name)?.with_tank(512 << 20))
}

fn writable(path: &Path) -> File {
    let mut how = OpenOptions::new();
    how.read(true).write(true).create(true).truncate(false);
    how.open(path).unwrap()
}

/// The whole file through an open description.
fn whole(f: &mut File) -> std::io::Result<String> {
    f.seek(SeekFrom::Start(0))?;
    let mut s = String::new();
    f.read_to_string(&mut s)?;
    Ok(s)
}

fn names(dir: &Path) -> Vec<String> {
    let list = fs::read_dir(dir).unwrap();
    let mut list: Vec<_> = list
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect();
    list.sort();
    list
}

/// What `tank/a@1` has.
fn has_gone_back(at: &Path) {
    let read = |name: &str| fs::read_to_string(at.join(name)).unwrap();
    assert_eq!(read("same"), "unchanged");
    assert_eq!(read("text"), "old old");
    assert_eq!(read("grown"), "short");
    assert_eq!(read("removed"), "comes back");
    assert_eq!(read("replaced"), "first");
    assert_eq!(read("dir/moved"), "moved away");
    assert_eq!(fs::metadata(at.join("grown")).unwrap().len(), 5);
    assert_eq!(names(&at.join("dir")), ["moved"]);
    for gone in ["added", "moved", "nameless", "dir/sub"] {
        let e = fs::metadata(at.join(gone)).unwrap_err();
        assert_eq!(e.kind(), std::io::ErrorKind::NotFound, "{gone}");
    }
}

/// `ZFS_FUSE_TEST_SCALE=20` waits for the 40 seconds in which the kernel writes out what it kept.
#[test]
fn rollback_under_open_unlinked_and_half_written_files_is_exact() {
    let Some((rig, mnt)) = tank("use-rollback") else {
        return;
    };
    rig.zfs(&["create", "tank/a"]);
    rig.zfs(&["create", "tank/a/old"]);
    let at = mnt.join("a");
    fs::create_dir(at.join("dir")).unwrap();
    for (name, text) in [
        ("same", "unchanged"),
        ("text", "old old"),
        ("grown", "short"),
        ("removed", "comes back"),
        ("replaced", "first"),
        ("dir/moved", "moved away"),
    ] {
        fs::write(at.join(name), text).unwrap();
    }
    let mut same = writable(&at.join("same"));
    rig.zfs(&["snapshot", "tank/a@1"]);

    fs::write(at.join("text"), "new new").unwrap();
    fs::write(at.join("other"), "second").unwrap();
    fs::rename(at.join("other"), at.join("replaced")).unwrap();
    fs::remove_file(at.join("removed")).unwrap();
    fs::rename(at.join("dir/moved"), at.join("moved")).unwrap();
    fs::create_dir(at.join("dir/sub")).unwrap();
    fs::write(at.join("added"), "after").unwrap();
    rig.zfs(&["snapshot", "tank/a@2"]);
    rig.zfs(&["create", "tank/a/young"]);
    fs::write(at.join("young/f"), "of the young one").unwrap();
    let mut inside = writable(&at.join("old/f"));
    let mut young = writable(&at.join("young/f"));
    let mut text = File::open(at.join("text")).unwrap();
    let mut added = writable(&at.join("added"));
    let mut nameless = writable(&at.join("nameless"));
    nameless.write_all(b"without a name").unwrap();
    fs::remove_file(at.join("nameless")).unwrap();
    let mut grown = writable(&at.join("grown"));
    // Somebody stands in a directory that goes, and writes all the while.
    let mut stands = rig
        .command("sleep", &["60"])
        .current_dir(at.join("dir/sub"))
        .spawn()
        .unwrap();
    let ended = Arc::new(AtomicBool::new(false));
    let writer = {
        let (ended, mut f) = (ended.clone(), writable(&at.join("busy")));
        std::thread::spawn(move || {
            while !ended.load(Ordering::SeqCst) {
                // It fails once the file is gone.
                let _ = f.write_all(&[7; 10_000]);
                let _ = f.seek(SeekFrom::Start(0));
            }
        })
    };
    grown.write_at(b"half written, and long", 3).unwrap();

    let said = rig.try_run("zfs", &["rollback", "tank/a@1"]).fails(1);
    assert!(said.contains("more recent snapshots"), "{said}");
    assert_eq!(whole(&mut nameless).unwrap(), "without a name");
    rig.zfs(&["rollback", "-r", "tank/a@1"]);
    has_gone_back(&at);
    assert_eq!(whole(&mut same).unwrap(), "unchanged");
    for f in [&mut added, &mut nameless] {
        let e = whole(f).unwrap_err();
        assert_eq!(e.raw_os_error(), Some(STALE), "{e}");
    }
    // What the kernel kept of these is not what is there.
    assert_eq!(whole(&mut text).unwrap(), "old old");
    assert_eq!(whole(&mut grown).unwrap(), "short");
    assert_eq!(grown.metadata().unwrap().len(), 5);
    // File systems in it stay, or come back with the directory they are mounted on.
    inside.write_all(b"goes on").unwrap();
    assert_eq!(fs::read_to_string(at.join("old/f")).unwrap(), "goes on");
    assert_eq!(
        fs::read_to_string(at.join("young/f")).unwrap(),
        "of the young one"
    );
    assert_eq!(whole(&mut young).unwrap(), "of the young one");
    ended.store(true, Ordering::SeqCst);
    writer.join().unwrap();
    assert!(!at.join("busy").exists());
    stands.kill().unwrap();
    stands.wait().unwrap();
    rig.sh("sync; echo 2 >/proc/sys/vm/drop_caches");
    has_gone_back(&at);
    std::thread::sleep(Duration::from_secs(2 * number("ZFS_FUSE_TEST_SCALE", 1)));
    has_gone_back(&at);

    // Used, and once more, with the handles that were opened before.
    same.write_at(b"CHANGED", 0).unwrap();
    fs::write(at.join("added"), "again").unwrap();
    rig.zfs(&["rollback", "tank/a@1"]);
    has_gone_back(&at);
    drop((same, text, added, nameless, grown, inside, young));
    rig.zfs(&["unmount", "tank/a/young"]);
    rig.zfs(&["unmount", "tank/a/old"]);
    rig.zfs(&["unmount", "tank/a"]);
    rig.zfs(&["mount", "tank/a"]);
    has_gone_back(&at);
    rig.zpool(&["export", "tank"]);
    rig.zdb_check("tank");
}

/// The kernel's inode of a removed directory stays removed, so the directory gets another one when it is back.
#[test]
fn directories_removed_under_their_users_are_whole_again_after_a_rollback_and_a_receive() {
    let Some((rig, mnt)) = tank("use-removed") else {
        return;
    };
    rig.zfs(&["create", "tank/a"]);
    let at = mnt.join("a");
    fs::create_dir_all(at.join("d/e")).unwrap();
    fs::write(at.join("d/f"), "in it").unwrap();
    rig.zfs(&["snapshot", "tank/a@1"]);
    rig.zfs(&["snapshot", "tank/a@2"]);
    let stream = rig.path().join("home/increment");
    let out = File::create(&stream).unwrap();
    let mut send = rig.command("zfs", &["send", "-i", "@1", "tank/a@2"]);
    assert!(send.stdout(out).status().unwrap().success());
    rig.zfs(&["destroy", "tank/a@2"]);
    for back in ["rollback", "receive"] {
        let held = File::open(at.join("d")).unwrap();
        let mut stands = rig
            .command("sleep", &["60"])
            .current_dir(at.join("d/e"))
            .spawn()
            .unwrap();
        fs::remove_dir_all(at.join("d")).unwrap();
        match back {
            "rollback" => drop(rig.zfs(&["rollback", "tank/a@1"])),
            _ => {
                let mut receive = rig.command("zfs", &["receive", "-F", "tank/a"]);
                let done = receive.stdin(File::open(&stream).unwrap()).status();
                assert!(done.unwrap().success());
            }
        }
        let usable = fs::write(at.join("d/e/new"), "new");
        stands.kill().unwrap();
        stands.wait().unwrap();
        usable.unwrap_or_else(|e| panic!("{back}: {e}"));
        assert_eq!(names(&at.join("d")), ["e", "f"], "{back}");
        fs::remove_file(at.join("d/e/new")).unwrap();
        drop(held);
    }
    rig.zpool(&["export", "tank"]);
    rig.zdb_check("tank");
}
