//! The same mixed load over each way the kernel's requests can come.

use rustix::fs::{AtFlags, OFlags, CWD};
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};
use system_tests::load::{disturb, Writer};
use system_tests::tree::{self, Kinds};
use system_tests::{number, Rig};

/// A file without a name gets times, and only then a name: it keeps them.
fn nameless(dir: &Path) {
    let mut f = OpenOptions::new()
        .write(true)
        .custom_flags(OFlags::TMPFILE.bits() as i32)
        .open(dir)
        .unwrap();
    f.write_all(b"no name yet").unwrap();
    let old = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    f.set_modified(old).unwrap();
    f.sync_all().unwrap();
    let place = format!("/proc/self/fd/{}", f.as_raw_fd());
    let flags = AtFlags::SYMLINK_FOLLOW;
    rustix::fs::linkat(CWD, place.as_str(), CWD, dir.join("named"), flags).unwrap();
    drop(f);
    // Gone while open: its times are shown all the same.
    let f = File::create(dir.join("unnamed")).unwrap();
    fs::remove_file(dir.join("unnamed")).unwrap();
    f.set_modified(old).unwrap();
    assert_eq!(f.metadata().unwrap().modified().unwrap(), old);
}

fn mixed_load(transport: &str, says: &str) {
    let Some(mut rig) = Rig::new(&format!("over-{transport}")) else {
        return;
    };
    rig.daemon_options(&[&format!("--transport={transport}")]);
    let image = rig.image("disk", 1 << 30);
    let mnt = rig.mnt();
    rig.start();
    rig.zpool(&["create", "-m", mnt.to_str().unwrap(), "tank", &image]);
    for name in ["a", "b", "gone"] {
        rig.zfs(&["create", &format!("tank/{name}")]);
    }
    if rig.log().contains("no requests over io_uring") {
        eprintln!("skipped: {}", rig.log().trim());
        return;
    }
    let files = 300 * number("ZFS_FUSE_TEST_SCALE", 1);
    let kinds = Kinds {
        xattrs: true,
        acls: false,
        huge: false,
    };
    let tree = mnt.join("tree");
    fs::create_dir(&tree).unwrap();
    tree::write(&tree, files, 11, kinds).unwrap();
    nameless(&tree);
    let before = tree::describe(&tree).unwrap();
    let mut writers: Vec<Writer> = [mnt.join("a/w"), mnt.join("b/w")]
        .into_iter()
        .zip(1..)
        .map(|(dir, seed)| Writer::new(dir, seed).unwrap())
        .collect();
    let stop = AtomicBool::new(false);
    std::thread::scope(|s| {
        for w in &mut writers {
            s.spawn(|| w.work(&stop));
        }
        for (seed, name) in ["a", "b", "gone"].into_iter().enumerate() {
            let (dir, stop) = (mnt.join(name), &stop);
            s.spawn(move || disturb(&dir, seed as u64, stop));
        }
        std::thread::sleep(Duration::from_secs(2));
        // Taken away from under its users, who see errors and nothing else.
        rig.zfs(&["unmount", "-f", "tank/gone"]);
        std::thread::sleep(Duration::from_millis(500));
        stop.store(true, Ordering::Relaxed);
    });
    let how = format!("tank: requests come over {says}");
    assert!(rig.log().contains(&how), "{}", rig.log());
    for round in ["the same mounts", "new mounts"] {
        for w in &mut writers {
            assert!(w.done > 0);
            w.verify().unwrap_or_else(|e| panic!("{round}: {e}"));
        }
        tree::assert_same(&before, &tree::describe(&tree).unwrap(), round);
        let old = fs::metadata(tree.join("named")).unwrap().mtime();
        assert_eq!(old, 1_000_000_000, "{round}");
        rig.stop();
        rig.start();
    }
    rig.stop();
    rig.zdb_check("tank");
}

#[test]
fn over_the_device() {
    mixed_load("dev", "/dev/fuse");
}

#[test]
fn over_io_uring() {
    mixed_load("uring", "io_uring");
}
