//! The first session with the commands, as root and as an ordinary user: create, mount, Bonnie++, export,
//! import.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use system_tests::Rig;

fn bonnie(rig: &Rig, dir: &str, user: &str) {
    if !["/usr/sbin/bonnie++", "/usr/bin/bonnie++"]
        .iter()
        .any(|p| Path::new(p).exists())
    {
        eprintln!("skipped: bonnie++ is not installed");
        return;
    }
    rig.sh(&format!("cd '{dir}' && bonnie++ -q -d \"$PWD\" -s 64 -r 32 -n 1 {user} >bonnie.csv && test -s bonnie.csv"));
}

#[test]
fn as_root_on_a_loop_device() {
    let Some(mut rig) = Rig::as_root("session") else {
        return;
    };
    let Some(device) = rig.loop_device("disk", 512 << 20) else {
        return;
    };
    let pool = format!("tank-{}", std::process::id());
    let home = format!("/{pool}");
    rig.will_make(&home);
    let short = device.trim_start_matches("/dev/");

    // The daemon goes into the background by itself.
    rig.sh("zfs-fuse");
    let dry = rig.zpool(&["create", "-n", &pool, &device]);
    assert_eq!(
        dry,
        format!("would create '{pool}' with the following layout:\n\n\t{pool}\n\t  {short}\n")
    );
    assert!(!Path::new(&home).exists(), "-n must not do anything");
    assert_eq!(rig.zpool(&["create", &pool, &device]), "");
    let list = rig.zpool(&["list"]);
    let words: Vec<Vec<&str>> = list
        .lines()
        .map(|l| l.split_whitespace().collect())
        .collect();
    assert_eq!(
        words[0].join(" "),
        "NAME SIZE ALLOC FREE CKPOINT EXPANDSZ FRAG CAP DEDUP HEALTH ALTROOT"
    );
    assert_eq!(
        (words[1][0], words[1][9]),
        (pool.as_str(), "ONLINE"),
        "{list}"
    );
    rig.zfs(&["create", &format!("{pool}/testfs")]);
    let df = rig.sh(&format!("df -h {home}/testfs/"));
    let last = df.lines().last().unwrap();
    assert!(
        last.starts_with(&format!("{pool}/testfs ")) && last.ends_with(&format!(" {home}/testfs")),
        "{df}"
    );
    let mounts = rig.sh("mount");
    assert!(
        mounts.contains(&format!("{pool}/testfs on {home}/testfs type fuse.zfs ")),
        "{mounts}"
    );
    bonnie(&rig, &format!("{home}/testfs"), "-u root");
    let status = rig.zpool(&["status", &pool]);
    for line in [
        format!("  pool: {pool}"),
        " state: ONLINE".into(),
        "errors: No known data errors".into(),
    ] {
        assert!(status.lines().any(|l| l == line), "{status}");
    }
    // In use: not a second time, also not by force.
    let said = rig
        .try_run("zpool", &["create", "-f", "other", &device])
        .fails(1);
    assert!(said.contains(&pool), "{said}");
    rig.zpool(&["export", &pool]);
    assert_eq!(rig.try_run("zpool", &["list"]).ok(), "no pools available\n");
    rig.zdb_check(&pool);
    let found = rig.zpool(&["import", "-d", &device]);
    assert!(
        found.contains(&format!("  pool: {pool}\n")) && found.contains("ONLINE"),
        "{found}"
    );
    rig.zpool(&["import", "-d", &device, &pool]);
    assert!(
        !Path::new("/usr/sbin/bonnie++").exists()
            || rig.sh(&format!("cat {home}/testfs/bonnie.csv")).len() > 20
    );
    let said = rig.try_run("zpool", &["destroy", &pool]).ok();
    assert_eq!(said, "");
    assert!(rig.mounts().is_empty());
}

/// A disk with a partition table, twice in the system, of whose partitions the kernel says nothing.
#[test]
fn a_partitioned_disk_on_loop_devices() {
    let Some(mut rig) = Rig::as_root("gpt") else {
        return;
    };
    if let Err(e) = testkit::fixture::unpack_into("gpt-disk", &rig.disks()) {
        eprintln!("skipped: {e}");
        return;
    }
    let image = rig.disks().join("disk.img").to_str().unwrap().to_string();
    let (Some(one), Some(two)) = (rig.loop_on(&image), rig.loop_on(&image)) else {
        return;
    };
    rig.start();
    let found = rig.zpool(&["import", "-d", &one, "-d", &two]);
    assert_eq!(found.matches("pool: fjord_x\n").count(), 1, "{found}");
    assert!(found.contains("state: ONLINE"), "{found}");
    let mnt = rig.mnt().to_str().unwrap().to_string();
    rig.zpool(&[
        "import", "-f", "-d", &one, "-d", &two, "-R", &mnt, "fjord_x",
    ]);
    let status = rig.zpool(&["status", "-P", "fjord_x"]);
    let leaves = status.lines().filter(|l| l.contains("/dev/loop")).count();
    assert_eq!(leaves, 1, "{status}");
    rig.zfs(&["create", "fjord_x/new"]);
    rig.zpool(&["export", "fjord_x"]);
    // By the file itself, too.
    rig.zpool(&["import", "-d", &image, "-R", &mnt, "fjord_x"]);
    assert_eq!(rig.get("type", "fjord_x/new"), "filesystem");
    rig.zpool(&["export", "fjord_x"]);
    rig.stop();
}

#[test]
fn as_an_ordinary_user_on_an_image() {
    // Without udev it belongs to root alone, and fusermount3 opens it as the user.
    let open = std::fs::metadata("/dev/fuse").is_ok_and(|m| m.mode() & 0o006 == 0o006);
    if !open {
        eprintln!("skipped: /dev/fuse is not open to all (mode 0666)");
        return;
    }
    let Some(mut rig) = Rig::as_user("user-session") else {
        return;
    };
    let image = rig.image("disk.img", 512 << 20);
    let root = rig.mnt();
    rig.variable("ZFS_FUSE_MOUNT_ROOT", root.to_str().unwrap());
    // No daemon runs: the command starts it.
    rig.zpool(&["create", "tank", &image]);
    rig.zfs(&["create", "-o", "compression=zstd", "tank/testfs"]);
    // An ordinary user's mounts may have to lie side by side; the listing says where.
    let place = |dataset: &str| {
        let list = rig.zfs(&["mount"]);
        let line = list
            .lines()
            .find_map(|l| l.strip_prefix(dataset)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("{dataset}: {list}"))
            .trim()
            .to_string()
    };
    let at = place("tank/testfs");
    let df = rig.sh(&format!("df -h {at}"));
    assert!(df.contains("tank/testfs "), "{df}");
    rig.sh(&format!(
        "cd {at}; cp -r --no-preserve=ownership /etc/alternatives . ; mkdir d; echo hello >d/f; ln -s d/f l; ln d/f h; \
         chmod 600 h; mv d e; seq 100000 >n; sha256sum n >n.sum; sync n"
    ));
    assert_eq!(rig.sh(&format!("cat {at}/e/f")), "hello\n");
    bonnie(&rig, &at, "");
    rig.zpool(&["export", "tank"]);
    assert!(rig.mounts().is_empty());
    rig.zdb_check("tank");
    // The other place, and back from a directory.
    let mine = rig.mnt().join("mine");
    let disks = rig.disks();
    rig.zpool(&["import", "-d", disks.to_str().unwrap(), "tank"]);
    rig.zfs(&[
        "set",
        &format!("mountpoint={}", mine.display()),
        "tank/testfs",
    ]);
    assert_eq!(place("tank/testfs"), mine.to_str().unwrap());
    let at = mine.to_str().unwrap();
    rig.sh(&format!(
        "cd {at}; sha256sum -c --quiet n.sum; test \"$(stat -c %a,%h h)\" = 600,2"
    ));
    rig.zpool(&["destroy", "tank"]);
}

#[test]
fn stopped_and_started_again() {
    let Some(mut rig) = Rig::new("restart") else {
        return;
    };
    let disks = rig.images(2, 128 << 20);
    let mnt = rig.mnt();
    let mnt = mnt.to_str().unwrap();
    rig.start();
    rig.zpool(&["create", "-m", mnt, "tank", "mirror", &disks[0], &disks[1]]);
    rig.zfs(&["create", "tank/a"]);
    rig.sh(&format!("seq 50000 >{mnt}/a/f; echo top >{mnt}/top"));
    rig.stop();
    rig.zdb_check("tank");
    // The cache file knows the pool, the pool knows its file systems.
    rig.start();
    assert_eq!(
        rig.sh(&format!("cat {mnt}/top; tail -n 1 {mnt}/a/f")),
        "top\n50000\n"
    );
    // A second daemon is refused, and says why in one sentence.
    let said = rig.try_run("zfs-fuse", &["--no-daemon"]).fails(1);
    assert_eq!(said.trim_end().lines().count(), 1, "{said}");
    // One side lost while nobody looked.
    rig.stop();
    std::fs::remove_file(&disks[1]).unwrap();
    rig.start();
    let status = rig.zpool(&["status"]);
    assert!(
        status.contains(" state: DEGRADED") && status.contains("UNAVAIL"),
        "{status}"
    );
    rig.sh(&format!("seq 70000 >{mnt}/a/g; tail -n 1 {mnt}/a/f"));
    rig.stop();
    rig.start();
    assert_eq!(rig.sh(&format!("tail -n 1 {mnt}/a/g")), "70000\n");
    rig.zpool(&["export", "tank"]);
    rig.stop();
}
