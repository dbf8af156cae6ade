//! Disks that lie, disks that are gone, disks that come back with old data.

use std::fs::{self, File};
use std::path::Path;
use system_tests::tree::{self, Kinds};
use system_tests::{Dice, Rig};

const KINDS: Kinds = Kinds {
    xattrs: true,
    acls: false,
    huge: false,
};
const SIZE: u64 = 192 << 20;

fn check(name: &str, kind: &str, disks: usize, redundant: usize) {
    let Some(mut rig) = Rig::new(name) else {
        return;
    };
    let images = rig.images(disks, SIZE);
    let (mnt, dir) = (rig.mnt(), rig.disks());
    let (at, dir) = (mnt.to_str().unwrap(), dir.to_str().unwrap());
    rig.start();
    let mut args = vec!["create", "-m", at, "tank", kind];
    args.extend(images.iter().map(String::as_str));
    rig.zpool(&args);
    rig.zfs(&["create", "-o", "compression=gzip", "tank/sub"]);
    tree::write(&mnt, 150, 31, KINDS).unwrap();
    tree::write(&mnt.join("sub"), 150, 32, KINDS).unwrap();
    let before = tree::describe(&mnt).unwrap();
    rig.zpool(&["export", "tank"]);

    // As many disks as the layout can spare return garbage instead of data. This happens to a
    // copy: without a scrub only what is read is repaired.
    let copy = rig.path().join("copy");
    fs::create_dir(&copy).unwrap();
    let copied = |image: &str| copy.join(Path::new(image).file_name().unwrap());
    for (n, image) in images.iter().enumerate() {
        let to = copied(image);
        rig.sh(&format!("cp --sparse=always {image} {}", to.display()));
        if n < redundant {
            Rig::ruin(&to);
        }
    }
    rig.zpool(&["import", "-d", copy.to_str().unwrap(), "tank"]);
    tree::assert_same(&before, &tree::describe(&mnt).unwrap(), "after damage");
    let status = rig.zpool(&["status", "tank"]);
    assert!(status.contains("errors: No known data errors"), "{status}");
    let errors = rig.zpool(&["status", "-p", "tank"]);
    let sum: u64 = errors
        .lines()
        .filter(|l| l.contains(copy.to_str().unwrap()))
        .filter_map(|l| l.split_whitespace().nth(4)?.parse::<u64>().ok())
        .sum();
    assert!(sum > 0, "nobody noticed: {errors}");
    rig.zpool(&["export", "tank"]);
    fs::remove_dir_all(&copy).unwrap();

    // As many are gone.
    let gone: Vec<&String> = images.iter().rev().take(redundant).collect();
    let away = rig.path().join("away");
    fs::create_dir(&away).unwrap();
    let hide = |image: &str| away.join(Path::new(image).file_name().unwrap());
    for image in &gone {
        fs::rename(image, hide(image)).unwrap();
    }
    rig.zpool(&["import", "-d", dir, "tank"]);
    let status = rig.zpool(&["status", "tank"]);
    assert!(status.contains(" state: DEGRADED"), "{status}");
    tree::assert_same(
        &before,
        &tree::describe(&mnt).unwrap(),
        "with disks missing",
    );
    tree::write(&mnt, 100, 33, KINDS).unwrap_err(); // the folder "many" exists, all else is new
    fs::remove_dir_all(mnt.join("sub/many")).unwrap();
    fs::write(mnt.join("new"), Dice::new(1).bytes(900_000)).unwrap();
    let after = tree::describe(&mnt).unwrap();
    assert!(after.len() > before.len() - 120);
    rig.zpool(&["export", "tank"]);
    rig.zpool(&["import", "-d", dir, "tank"]);
    tree::assert_same(
        &after,
        &tree::describe(&mnt).unwrap(),
        "written while degraded",
    );
    rig.zpool(&["export", "tank"]);

    // They come back, with what they had then. Nobody may believe them.
    for image in &gone {
        fs::rename(hide(image), image).unwrap();
    }
    rig.zpool(&["import", "-d", dir, "tank"]);
    tree::assert_same(&after, &tree::describe(&mnt).unwrap(), "with stale disks");
    // They get what they lack by themselves, and stand alone then.
    rig.zpool(&["wait", "-t", "resilver", "tank"]);
    let status = rig.zpool(&["status", "tank"]);
    assert!(status.contains("  scan: resilvered "), "{status}");
    assert!(status.contains(" with 0 errors on "), "{status}");
    assert!(status.contains(" state: ONLINE"), "{status}");
    assert!(!status.contains("lacks data"), "{status}");
    rig.zpool(&["export", "tank"]);
    rig.zdb_check("tank");
    for image in images.iter().take(redundant) {
        fs::rename(image, hide(image)).unwrap();
    }
    rig.zpool(&["import", "-d", dir, "tank"]);
    tree::assert_same(
        &after,
        &tree::describe(&mnt).unwrap(),
        "without the sources",
    );
    rig.zpool(&["export", "tank"]);
    rig.stop();
}

#[test]
fn mirror_of_two() {
    check("harm-mirror2", "mirror", 2, 1);
}

#[test]
fn mirror_of_three() {
    check("harm-mirror3", "mirror", 3, 2);
}

#[test]
fn raidz1() {
    check("harm-raidz1", "raidz1", 4, 1);
}

#[test]
fn raidz2() {
    check("harm-raidz2", "raidz2", 5, 2);
}

#[test]
fn raidz3() {
    check("harm-raidz3", "raidz3", 6, 3);
}

/// One side fails while the pool is in use: work goes on.
#[test]
fn in_use() {
    let Some(mut rig) = Rig::as_root("harm-use") else {
        return;
    };
    let good = rig.image("good", SIZE);
    let Some(device) = rig.loop_device("bad", SIZE) else {
        return;
    };
    let mnt = rig.mnt();
    rig.start();
    // Different kinds of vdevs in one mirror need -f.
    rig.zpool(&[
        "create",
        "-f",
        "-m",
        mnt.to_str().unwrap(),
        "tank",
        "mirror",
        &good,
        &device,
    ]);
    tree::write(&mnt, 100, 41, KINDS).unwrap();
    rig.zpool(&["sync"]);
    // The device shrinks to nothing under the pool: every access fails from now on.
    let image = rig.disks().join("bad");
    File::options()
        .write(true)
        .open(image)
        .unwrap()
        .set_len(0)
        .unwrap();
    let refresh = rig.try_run("losetup", &["--set-capacity", &device]);
    assert!(refresh.status.success(), "{refresh}");
    let sub = mnt.join("later");
    fs::create_dir(&sub).unwrap();
    tree::write(&sub, 100, 42, KINDS).unwrap();
    rig.zpool(&["sync"]);
    let status = rig.zpool(&["status", "tank"]);
    assert!(status.contains(" state: DEGRADED"), "{status}");
    let before = tree::describe(&mnt).unwrap();
    rig.zpool(&["export", "tank"]);
    rig.zpool(&["import", "-d", rig.disks().to_str().unwrap(), "tank"]);
    tree::assert_same(&before, &tree::describe(&mnt).unwrap(), "after import");
    rig.zpool(&["export", "tank"]);
    rig.stop();
}
