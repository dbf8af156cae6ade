//! Devices of a pool in use come, go and are replaced through the real commands; OpenZFS's `zdb` judges the result.

use std::time::Duration;
use system_tests::{until, Rig};

const MIB: u64 = 1 << 20;

/// What `zpool status` says, without numbers that change.
fn status(rig: &Rig) -> String {
    rig.zpool(&["status", "tank"])
}

/// The lines of the tree of `zpool status`: name and state.
fn tree(rig: &Rig) -> Vec<String> {
    let text = status(rig);
    let rows = text.lines().skip_while(|l| !l.contains("NAME")).skip(1);
    rows.take_while(|l| !l.trim().is_empty())
        .map(|l| {
            let mut words = l.split_whitespace();
            let name = words.next().unwrap_or_default();
            let name = name.rsplit('/').next().unwrap_or(name);
            format!("{name} {}", words.next().unwrap_or_default())
        })
        .collect()
}

/// Writes files, and says what is in them.
fn fill(rig: &Rig, name: &str) -> String {
    let mnt = rig.mnt();
    rig.sh(&format!(
        "cd {}; for i in 1 2 3 4 5 6; do head -c 3000000 /dev/urandom > {name}$i; done; sync; \
         cat {name}* | sha256sum",
        mnt.display()
    ))
}

fn sum(rig: &Rig, name: &str) -> String {
    rig.sh(&format!(
        "cd {}; cat {name}* | sha256sum",
        rig.mnt().display()
    ))
}

fn settled(rig: &Rig) {
    rig.zpool(&["wait", "-t", "resilver,replace", "tank"]);
    rig.zpool(&["sync", "tank"]);
}

#[test]
fn a_pool_moves_from_one_disk_to_others_while_it_is_used() {
    let Some(mut rig) = Rig::new("devices") else {
        return;
    };
    let d = rig.images(5, 128 * MIB);
    let small = rig.image("small.img", 65 * MIB);
    let mnt = rig.mnt();
    let mnt = mnt.to_str().unwrap();
    rig.start();
    rig.zpool(&["create", "-m", mnt, "tank", &d[0]]);
    let a = fill(&rig, "a");

    // Refusals, with nothing changed.
    let before = tree(&rig);
    let refused = |args: &[&str], words: &str| {
        let said = rig.try_run("zpool", args).fails(1);
        assert!(said.contains(words), "{args:?}: {said}");
    };
    refused(&["attach", "tank", &d[0], &small], "device is too small");
    refused(
        &["attach", "tank", &d[0], &d[0]],
        "is part of active pool 'tank'",
    );
    refused(&["attach", "tank", "nope", &d[1]], "no such device in pool");
    refused(
        &["detach", "tank", &d[0]],
        "only applicable to mirror and replacing vdevs",
    );
    refused(&["offline", "tank", &d[0]], "no valid replicas");
    refused(&["remove", "tank", &d[0]], "cannot remove");
    let usage = rig.try_run("zpool", &["attach", "tank", &d[0]]).fails(2);
    assert!(
        usage.contains("missing <new_device> specification"),
        "{usage}"
    );
    assert_eq!(tree(&rig), before);

    rig.zpool(&["attach", "-w", "tank", &d[0], &d[1]]);
    assert_eq!(
        tree(&rig),
        ["tank ONLINE", "mirror-0 ONLINE", "d0 ONLINE", "d1 ONLINE"],
        "{}",
        status(&rig)
    );
    rig.zpool(&["offline", "tank", &d[0]]);
    refused(&["offline", "tank", &d[1]], "no valid replicas");
    let b = fill(&rig, "b");
    rig.zpool(&["export", "tank"]);
    rig.zdb_check("tank");
    rig.zpool(&["import", "-d", rig.disks().to_str().unwrap(), "tank"]);
    assert!(
        tree(&rig).iter().any(|l| l == "d0 OFFLINE"),
        "{}",
        status(&rig)
    );
    rig.zpool(&["online", "tank", &d[0]]);
    settled(&rig);
    rig.zpool(&["replace", "-w", "tank", &d[0], &d[2]]);
    settled(&rig);
    rig.zpool(&["detach", "tank", &d[1]]);
    assert_eq!(tree(&rig), ["tank ONLINE", "d2 ONLINE"]);

    // A log comes and goes while it is in use.
    rig.zpool(&["add", "tank", "log", &d[3]]);
    rig.sh(&format!(
        "dd if=/dev/zero of={mnt}/s bs=4k count=50 oflag=sync 2>&1"
    ));
    rig.zpool(&["add", "tank", "spare", &d[4]]);
    rig.zpool(&["remove", "tank", &d[3]]);
    rig.zpool(&["remove", "tank", &d[4]]);
    assert_eq!((sum(&rig, "a"), sum(&rig, "b")), (a.clone(), b.clone()));
    rig.zpool(&["export", "tank"]);
    rig.zdb_check("tank");
    // What left is nobody's any more.
    rig.zpool(&["import", "-d", &d[2], "tank"]);
    assert_eq!((sum(&rig, "a"), sum(&rig, "b")), (a, b));
    for gone in [&d[0], &d[1], &d[3], &d[4]] {
        rig.zpool(&["create", "-n", "other", gone]);
    }
    let history = rig.zpool(&["history", "-i", "tank"]);
    for line in ["vdev attach", "detach", "zpool replace", "zpool offline"] {
        assert!(history.contains(line), "{line}: {history}");
    }
    let events = rig.zpool(&["events", "-H"]);
    for class in [
        "pool_create",
        "vdev_attach",
        "vdev_online",
        "vdev_add",
        "pool_export",
    ] {
        assert!(
            events.contains(&format!("sysevent.fs.zfs.{class}")),
            "{events}"
        );
    }
    rig.zpool(&["export", "tank"]);
    rig.stop();
}

#[test]
fn a_spare_steps_in_for_a_disk_that_is_pulled_under_load() {
    let Some(mut rig) = Rig::as_root("spares") else {
        return;
    };
    let mut disks = Vec::new();
    for n in 0..4 {
        let Some(d) = rig.loop_device(&format!("l{n}.img"), 128 * MIB) else {
            eprintln!("skipped: no loop devices");
            return;
        };
        disks.push(d);
    }
    let mnt = rig.mnt();
    rig.start();
    let mut args = vec!["create", "-m", mnt.to_str().unwrap(), "tank", "raidz"];
    args.extend(disks[..3].iter().map(String::as_str));
    args.extend(["spare", &disks[3]]);
    rig.zpool(&args);
    let a = fill(&rig, "a");
    // It has no sectors left: every transfer fails.
    let image = rig.disks().join("l1.img");
    let size = image.metadata().unwrap().len();
    std::fs::File::options()
        .write(true)
        .open(&image)
        .unwrap()
        .set_len(0)
        .unwrap();
    let cut = rig.try_run("losetup", &["--set-capacity", &disks[1]]);
    assert!(cut.status.success(), "{cut}");
    let b = fill(&rig, "b");
    let name = |path: &str| path.rsplit('/').next().unwrap().to_string();
    until("the spare stands in", || {
        // Reading is what finds out.
        let _ = rig.try_run("zpool", &["sync", "-f", "tank"]);
        let _ = rig.try_run(
            "sh",
            &["-c", &format!("cat {}/* >/dev/null", mnt.display())],
        );
        std::thread::sleep(Duration::from_millis(300));
        let t = tree(&rig);
        t.iter().any(|l| l.starts_with("spare-"))
    });
    rig.zpool(&["wait", "-t", "resilver", "tank"]);
    assert_eq!((sum(&rig, "a"), sum(&rig, "b")), (a.clone(), b.clone()));
    let t = tree(&rig);
    assert!(t.contains(&format!("{} INUSE", name(&disks[3]))), "{t:?}");
    // The broken one is detached for good: the spare stays.
    rig.zpool(&["detach", "tank", &disks[1]]);
    let t = tree(&rig);
    assert!(t.contains(&format!("{} ONLINE", name(&disks[3]))), "{t:?}");
    assert!(!t.iter().any(|l| l.contains("spare")), "{t:?}");
    rig.zpool(&["export", "tank"]);
    let file = std::fs::File::options().write(true).open(&image).unwrap();
    file.set_len(size).unwrap();
    rig.zdb_check("tank");
    rig.stop();
}

#[test]
fn a_device_with_another_name_is_found() {
    let Some(mut rig) = Rig::new("devices-renamed") else {
        return;
    };
    let d = rig.images(2, 128 * MIB);
    let mnt = rig.mnt();
    rig.start();
    rig.zpool(&[
        "create",
        "-m",
        mnt.to_str().unwrap(),
        "tank",
        "mirror",
        &d[0],
        &d[1],
    ]);
    let a = fill(&rig, "a");
    let path = |name: &str| format!("{}/{name}", rig.disks().display());
    let healthy = |first: &str, second: &str| {
        settled(&rig);
        let rows = ["tank", "mirror-0", first, second].map(|n| format!("{n} ONLINE"));
        assert_eq!(tree(&rig), rows, "{}", status(&rig));
    };
    let copy = path("copy");
    std::fs::copy(&d[1], &copy).unwrap();
    // The device has more than the copy then.
    fill(&rig, "c");
    rig.zpool(&["sync", "tank"]);

    // Taken offline and renamed: found by its old name, and by its new one.
    rig.zpool(&["offline", "tank", &d[1]]);
    std::fs::rename(&d[1], path("moved")).unwrap();
    let b = fill(&rig, "b");
    rig.zpool(&["online", "tank", &d[1]]);
    healthy("d0", "moved");
    rig.zpool(&["offline", "tank", &path("moved")]);
    std::fs::rename(path("moved"), path("again")).unwrap();
    rig.zpool(&["online", "tank", &path("again")]);
    healthy("d0", "again");

    // Renamed while it is open.
    std::fs::rename(path("again"), path("third")).unwrap();
    rig.zpool(&["reopen", "tank"]);
    healthy("d0", "third");
    assert_eq!((sum(&rig, "a"), sum(&rig, "b")), (a.clone(), b.clone()));

    // A copy of before is not taken for the device.
    rig.zpool(&["offline", "tank", &path("third")]);
    let kept = format!("{}/kept", rig.path().display());
    std::fs::rename(path("third"), &kept).unwrap();
    let said = rig.zpool(&["online", "tank", &path("third")]);
    assert!(said.contains("remains in faulted state"), "{said}");
    let said = rig.try_run("zpool", &["online", "tank", &copy]).fails(1);
    assert!(said.contains("no such device in pool"), "{said}");
    rig.zpool(&["clear", "tank"]);
    assert!(!tree(&rig).iter().any(|l| l == "copy ONLINE"));
    std::fs::rename(&kept, path("fourth")).unwrap();
    rig.zpool(&["clear", "tank"]);
    healthy("d0", "fourth");
    // The new name is in the pool, and what came meanwhile is on the device.
    rig.zpool(&["export", "tank"]);
    rig.zdb_check("tank");
    rig.zpool(&["import", "-d", &path("fourth"), "tank"]);
    assert_eq!((sum(&rig, "a"), sum(&rig, "b")), (a, b));
    let events = rig.zpool(&["events", "-H"]);
    for class in [
        "vdev_clear",
        "config_sync",
        "history_event",
        "pool_import",
        "vdev_online",
    ] {
        assert!(events.contains(class), "{class}: {events}");
    }
    let told = rig.zpool(&["events", "-v"]);
    for name in [
        "vdev_ashift = ",
        "parent_type = \"mirror\"",
        "history_internal_name = \"scan setup\"",
    ] {
        assert!(told.contains(name), "{name}: {told}");
    }
    rig.zpool(&["export", "tank"]);
    rig.stop();
}

#[test]
fn a_loop_device_with_another_number_is_found() {
    let Some(mut rig) = Rig::as_root("devices-loop") else {
        return;
    };
    let [first, second] = [0, 1].map(|n| rig.loop_device(&format!("l{n}.img"), 128 * MIB));
    let (Some(first), Some(second)) = (first, second) else {
        return;
    };
    let mnt = rig.mnt();
    rig.start();
    rig.zpool(&[
        "create",
        "-m",
        mnt.to_str().unwrap(),
        "tank",
        "mirror",
        &first,
        &second,
    ]);
    let a = fill(&rig, "a");
    rig.zpool(&["offline", "tank", &second]);
    let image = rig.disks().join("l1.img");
    let third = rig.loop_on(image.to_str().unwrap()).unwrap();
    rig.sh(&format!("losetup -d {second}"));
    assert_ne!(second, third);
    rig.zpool(&["online", "tank", &second]);
    settled(&rig);
    let name = |path: &str| path.rsplit('/').next().unwrap().to_string();
    let rows = ["tank", "mirror-0", &name(&first), &name(&third)].map(|n| format!("{n} ONLINE"));
    assert_eq!(tree(&rig), rows, "{}", status(&rig));
    assert_eq!(sum(&rig, "a"), a);
    rig.zpool(&["export", "tank"]);
    rig.zdb_check("tank");
    rig.stop();
}
