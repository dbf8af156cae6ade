//! `zpool checkpoint` through the real commands: what it says, what it refuses, and what there is after going back; OpenZFS's
//! `zdb` judges the pool.

use serde_json::Value;
use std::fs;
use system_tests::{until, Rig};
use testkit::{fixture, or_skip, OpenZfs};

const MIB: u64 = 1 << 20;

fn refused(rig: &Rig, args: &[&str], code: i32, words: &str) {
    let said = rig.try_run("zpool", args).fails(code);
    assert!(said.contains(words), "{args:?}: {said}");
}

fn property(rig: &Rig, name: &str) -> String {
    let text = rig.zpool(&["get", "-Hp", "-o", "value", name, "tank"]);
    text.trim().to_string()
}

/// Files of random bytes, and what is in them.
fn fill(rig: &Rig, name: &str) -> String {
    let mnt = rig.mnt();
    rig.sh(&format!(
        "cd {}; for i in 1 2 3 4 5; do head -c 4000000 /dev/urandom > {name}$i; done; cat {name}* | sha256sum",
        mnt.display()
    ))
}

fn sum(rig: &Rig, name: &str) -> String {
    let mnt = rig.mnt();
    rig.sh(&format!("cd {}; cat {name}* | sha256sum", mnt.display()))
}

#[test]
fn a_checkpoint_is_taken_refused_gone_back_to_and_discarded() {
    let Some(mut rig) = Rig::new("checkpoint") else {
        return;
    };
    let d = rig.images(6, 128 * MIB);
    let mnt = rig.mnt();
    let (mnt, disks) = (mnt.to_str().unwrap(), rig.disks());
    let disks = disks.to_str().unwrap();
    rig.start();
    rig.zpool(&["create", "-m", mnt, "tank", "mirror", &d[0], &d[1]]);
    rig.zpool(&["add", "tank", "spare", &d[4]]);
    assert_eq!(property(&rig, "checkpoint"), "-");
    assert_eq!(property(&rig, "feature@zpool_checkpoint"), "enabled");
    refused(
        &rig,
        &["checkpoint", "-d", "tank"],
        1,
        "cannot discard checkpoint in 'tank': checkpoint does not exist",
    );
    refused(&rig, &["checkpoint", "-w", "tank"], 2, "--wait");
    refused(&rig, &["checkpoint"], 2, "missing pool argument");
    refused(&rig, &["checkpoint", "nope"], 1, "no such pool");

    // What programs wrote is in it, also what only the kernel has.
    let a = fill(&rig, "a");
    rig.zfs(&["create", "tank/before"]);
    rig.zpool(&["checkpoint", "tank"]);
    assert_eq!(property(&rig, "feature@zpool_checkpoint"), "active");
    let status = rig.zpool(&["status", "tank"]);
    assert!(status.contains("\ncheckpoint: created "), "{status}");
    let json: Value = serde_json::from_str(&rig.zpool(&["status", "-j", "tank"])).unwrap();
    let stats = &json["pools"]["tank"]["checkpoint_stats"];
    assert_eq!(stats["state"], "EXISTS", "{json}");
    refused(
        &rig,
        &["checkpoint", "tank"],
        1,
        "cannot checkpoint 'tank': checkpoint exists",
    );
    for args in [
        vec!["attach", "tank", &d[0], &d[5]],
        vec!["replace", "tank", &d[0], &d[5]],
        vec!["detach", "tank", &d[0]],
        vec!["remove", "tank", &d[4]],
    ] {
        refused(&rig, &args, 1, "checkpoint exists");
    }
    let history = rig.zpool(&["history", "-i", "tank"]);
    assert!(history.contains("checkpointed uberblock txg="), "{history}");

    // Everything changes: files, file systems, properties, devices.
    rig.sh(&format!("cd {mnt}; rm a*"));
    fill(&rig, "b");
    rig.zfs(&["destroy", "tank/before"]);
    rig.zfs(&["create", "tank/after"]);
    rig.zpool(&["set", "comment=later", "tank"]);
    rig.zpool(&["add", "tank", "mirror", &d[2], &d[3]]);
    rig.zpool(&["sync", "tank"]);
    let kept: u64 = property(&rig, "checkpoint").parse().unwrap();
    assert!(kept >= 20_000_000, "{kept} bytes are kept");
    let list = rig.zpool(&["list", "-Hp", "-o", "checkpoint", "tank"]);
    assert_eq!(list.trim(), kept.to_string());
    rig.zpool(&["export", "tank"]);
    rig.zdb_check("tank");

    // For a look, and for good.
    let back = ["import", "-d", disks, "--rewind-to-checkpoint"];
    rig.zpool(&[&back[..], &["-o", "readonly=on", "tank"]].concat());
    assert_eq!(sum(&rig, "a"), a);
    rig.zpool(&["export", "tank"]);
    rig.zpool(&["import", "-d", disks, "tank"]);
    assert_eq!(property(&rig, "comment"), "later");
    rig.zpool(&["export", "tank"]);
    rig.zpool(&[&back[..], &["tank"]].concat());
    assert_eq!(sum(&rig, "a"), a);
    let names = rig.zfs(&["list", "-Ho", "name"]);
    assert_eq!(names.lines().collect::<Vec<_>>(), ["tank", "tank/before"]);
    assert_eq!(property(&rig, "comment"), "-");
    assert_eq!(property(&rig, "checkpoint"), "-");
    assert_eq!(property(&rig, "feature@zpool_checkpoint"), "enabled");
    refused(&rig, &["checkpoint", "-d", "tank"], 1, "does not exist");
    rig.zpool(&["export", "tank"]);
    rig.zdb_check("tank");
    let words = "cannot import 'tank': checkpoint does not exist";
    refused(&rig, &[&back[..], &["tank"]].concat(), 1, words);

    // Discarded under reads; the space is there again.
    rig.zpool(&["import", "-d", disks, "tank"]);
    let free = |rig: &Rig| property(rig, "free").parse::<u64>().unwrap();
    let before = free(&rig);
    rig.zpool(&["checkpoint", "tank"]);
    let a = fill(&rig, "a");
    rig.zpool(&["sync", "tank"]);
    let reader = rig.command(
        "sh",
        &[
            "-c",
            &format!("cd {mnt}; while cat a* > /dev/null; do :; done"),
        ],
    );
    let mut reader = { reader }.spawn().unwrap();
    rig.zpool(&["checkpoint", "-d", "-w", "tank"]);
    rig.zpool(&["wait", "-t", "discard", "tank"]);
    let _ = reader.kill();
    let _ = reader.wait();
    let status = rig.zpool(&["status", "tank"]);
    assert!(!status.contains("checkpoint:"), "{status}");
    assert_eq!(property(&rig, "checkpoint"), "-");
    assert_eq!(property(&rig, "feature@zpool_checkpoint"), "enabled");
    assert_eq!(sum(&rig, "a"), a);
    until("what was freed is free", || {
        rig.zpool(&["sync", "-f", "tank"]);
        free(&rig) + 4 * MIB > before
    });
    rig.zpool(&["detach", "tank", &d[0]]);
    rig.zpool(&["checkpoint", "tank"]);
    rig.zpool(&["export", "tank"]);
    rig.zdb_check("tank");
    rig.stop();
}

/// A checkpoint that OpenZFS took is discarded.
#[test]
fn a_checkpoint_of_openzfs_is_discarded() {
    let Some(dir) = or_skip(fixture::unpack("checkpoint")) else {
        return;
    };
    let Some(mut rig) = Rig::new("checkpoint-theirs") else {
        return;
    };
    let text = or_skip(fixture::file("checkpoint", "manifest.json")).unwrap();
    let manifest: Value = serde_json::from_slice(&fs::read(text).unwrap()).unwrap();
    let pool = manifest["pools"][0]["pool"].as_str().unwrap().to_string();
    let place = dir.path().to_str().unwrap();
    let mnt = rig.mnt();
    rig.start();
    rig.zpool(&[
        "import",
        "-f",
        "-d",
        place,
        "-R",
        mnt.to_str().unwrap(),
        &pool,
    ]);
    let value = |rig: &Rig, name: &str| {
        let text = rig.zpool(&["get", "-Hp", "-o", "value", name, &pool]);
        text.trim().to_string()
    };
    assert_ne!(value(&rig, "checkpoint"), "-");
    let names = rig.zfs(&["list", "-Ho", "name", "-t", "all"]);
    rig.zpool(&["checkpoint", "-d", "-w", &pool]);
    assert_eq!(value(&rig, "checkpoint"), "-");
    assert_eq!(value(&rig, "feature@zpool_checkpoint"), "enabled");
    rig.zpool(&["scrub", "-w", &pool]);
    assert_eq!(rig.zfs(&["list", "-Ho", "name", "-t", "all"]), names);
    rig.zpool(&["export", &pool]);
    rig.stop();
    if let Some(oz) = or_skip(OpenZfs::get()) {
        oz.check(dir.path(), &pool).unwrap();
    }
}

/// `zpool reguid`: another guid, also in the cache file and after an import.
#[test]
fn a_pool_gets_another_guid() {
    let Some(mut rig) = Rig::new("reguid") else {
        return;
    };
    let d = rig.images(4, 128 * MIB);
    let mnt = rig.mnt();
    let (mnt, disks) = (mnt.to_str().unwrap(), rig.disks());
    let disks = disks.to_str().unwrap();
    rig.start();
    rig.zpool(&["create", "-m", mnt, "tank", "mirror", &d[0], &d[1]]);
    rig.zpool(&["create", "-m", "none", "other", &d[2]]);
    let a = fill(&rig, "a");
    let other = rig.zpool(&["get", "-Hp", "-o", "value", "guid", "other"]);
    let old = property(&rig, "guid");
    refused(&rig, &["reguid"], 2, "missing pool name");
    refused(&rig, &["reguid", "-g", "x", "tank"], 2, "invalid GUID: x");
    refused(
        &rig,
        &["reguid", "-g", "0", "tank"],
        1,
        "cannot reguid 'tank'",
    );
    refused(
        &rig,
        &["reguid", "-g", other.trim(), "tank"],
        1,
        "is in use",
    );
    rig.zpool(&["offline", "tank", &d[0]]);
    refused(&rig, &["reguid", "tank"], 1, "currently unavailable");
    rig.zpool(&["online", "tank", &d[0]]);
    rig.zpool(&["wait", "-t", "resilver", "tank"]);
    rig.zpool(&["sync", "-f", "tank"]);
    rig.zpool(&["checkpoint", "tank"]);
    refused(
        &rig,
        &["reguid", "tank"],
        1,
        "cannot reguid 'tank': checkpoint exists",
    );
    rig.zpool(&["checkpoint", "-d", "-w", "tank"]);
    assert_eq!(property(&rig, "guid"), old);

    rig.zpool(&["reguid", "tank"]);
    let random = property(&rig, "guid");
    assert_ne!(random, old);
    rig.zpool(&["reguid", "-g", "123456789", "tank"]);
    assert_eq!(property(&rig, "guid"), "123456789");
    assert_eq!(sum(&rig, "a"), a);
    let history = rig.zpool(&["history", "-i", "tank"]);
    let line = format!("old={random} new=123456789");
    assert!(history.contains(&line), "{history}");
    // The daemon finds it by the cache file.
    rig.kill();
    rig.start();
    assert_eq!(property(&rig, "guid"), "123456789");
    assert_eq!(sum(&rig, "a"), a);
    rig.zpool(&["export", "tank"]);
    rig.zdb_check("tank");
    rig.zpool(&["import", "-d", disks, "123456789"]);
    assert_eq!(sum(&rig, "a"), a);
    rig.zpool(&["export", "tank"]);
    rig.stop();
}
