//! `zpool split` through the real commands: what it says, what it refuses, and what there is in both pools afterwards; OpenZFS's `zdb`
//! judges both.

use system_tests::Rig;

const MIB: u64 = 1 << 20;

fn refused(rig: &Rig, args: &[&str], code: i32, words: &str) {
    let said = rig.try_run("zpool", args).fails(code);
    assert!(said.contains(words), "{args:?}: {said}");
}

fn property(rig: &Rig, name: &str, pool: &str) -> String {
    let text = rig.zpool(&["get", "-Hp", "-o", "value", name, pool]);
    text.trim().to_string()
}

/// What is in the files of a folder.
fn sum(rig: &Rig, folder: &str) -> String {
    let script = format!("cd {folder}; find . -type f | sort | xargs cat | sha256sum");
    rig.sh(&script)
}

/// What cannot be split, or not so.
fn refusals(rig: &Rig, d: &[String]) {
    refused(rig, &["split"], 2, "Missing pool name");
    refused(rig, &["split", "tank"], 2, "Missing new pool name");
    refused(
        rig,
        &["split", "-o", "ro", "tank", "half"],
        2,
        "setting mntopts is only valid when importing the pool",
    );
    refused(
        rig,
        &["split", "-l", "tank", "half"],
        2,
        "loading keys is only valid when importing the pool",
    );
    refused(
        rig,
        &["split", "nope", "half"],
        1,
        "cannot open 'nope': no such pool",
    );
    refused(
        rig,
        &["split", "tank", "tank"],
        1,
        "Unable to split tank: pool already exists",
    );
    refused(
        rig,
        &["split", "tank", "mirror-9"],
        1,
        "Unable to split tank: ",
    );
    refused(
        rig,
        &["split", "-o", "readonly=on", "tank", "half"],
        1,
        "property readonly can only be set at import time",
    );
    refused(
        rig,
        &["split", "-o", "altroot=/x", "tank", "half"],
        1,
        "property 'altroot' can only be set at import time",
    );
    let most = "Unable to split tank: Device list must include at most one disk from each mirror";
    refused(rig, &["split", "tank", "half", &d[0], &d[1]], 1, most);
    refused(rig, &["split", "tank", "half", &d[8]], 1, most);
    refused(rig, &["split", "tank", "half", &d[7]], 1, most);
    rig.zpool(&["checkpoint", "tank"]);
    refused(
        rig,
        &["split", "tank", "half"],
        1,
        "Unable to split tank: checkpoint exists",
    );
    rig.zpool(&["checkpoint", "-d", "-w", "tank"]);
    rig.zpool(&["offline", "tank", &d[0]]);
    refused(
        rig,
        &["split", "tank", "half"],
        1,
        "Unable to split tank: pool is busy",
    );
    rig.zpool(&["online", "tank", &d[0]]);
    rig.zpool(&["wait", "-t", "resilver", "tank"]);
    rig.zpool(&["sync", "-f", "tank"]);
}

/// The new pool, imported below `other`, has what the old one had, and goes on by itself.
fn look_at_half(rig: &Rig, other: &str, guid: &str, before: &str) {
    let (mnt, disks) = (rig.mnt(), rig.disks());
    let (mnt, disks) = (mnt.to_str().unwrap(), disks.to_str().unwrap());
    rig.zpool(&["import", "-d", disks, "-R", other, "half"]);
    assert_ne!(property(rig, "guid", "half"), guid);
    assert_eq!(property(rig, "comment", "half"), "side");
    assert_eq!(property(rig, "comment", "tank"), "whole");
    let folder = format!("{other}{mnt}");
    assert_eq!(sum(rig, &folder), before);
    let names = rig.zfs(&["list", "-Ho", "name", "-t", "all", "-r", "half"]);
    let all = ["half", "half@before", "half/a", "half/a@before"];
    assert_eq!(names.lines().collect::<Vec<_>>(), all);
    let history = rig.zpool(&["history", "-i", "half"]);
    assert!(history.contains("from pool tank"), "{history}");
    assert!(
        history.contains("zpool split -o comment=side tank half"),
        "{history}"
    );
    rig.sh(&format!(
        "rm {folder}/1; head -c 500000 /dev/urandom > {folder}/new"
    ));
    rig.zpool(&["scrub", "-w", "half"]);
    let status = rig.zpool(&["status", "half"]);
    assert!(status.contains("errors: No known data errors"), "{status}");
    assert!(
        !status.contains("logs") && !status.contains("spares"),
        "{status}"
    );
}

#[test]
fn a_pool_of_mirrors_is_split_and_both_halves_are_whole() {
    let Some(mut rig) = Rig::new("split") else {
        return;
    };
    let d = rig.images(10, 128 * MIB);
    let mnt = rig.mnt();
    let (mnt, disks) = (mnt.to_str().unwrap(), rig.disks());
    let (disks, other) = (disks.to_str().unwrap(), format!("{mnt}-half"));
    let _ = std::fs::create_dir_all(&other);
    rig.start();
    let one = ["create", "-f", "-m", mnt, "tank", "mirror", &d[0], &d[1]];
    let two = ["mirror", &d[2], &d[3], &d[4]];
    rig.zpool(&[&one[..], &two, &["special", "mirror", &d[5], &d[6]]].concat());
    rig.zpool(&["add", "tank", "log", &d[7]]);
    rig.zpool(&["add", "tank", "spare", &d[8], "cache", &d[9]]);
    rig.zpool(&["set", "comment=whole", "tank"]);
    rig.zfs(&["create", "tank/a"]);
    rig.sh(&format!(
        "cd {mnt}; for i in 1 2 3 4; do head -c 3000000 /dev/urandom > $i; cp $i a; done; \
         dd if=/dev/urandom of=logged bs=64k count=4 oflag=sync 2>&1"
    ));
    rig.zfs(&["snapshot", "-r", "tank@before"]);
    // What only the kernel has is in both.
    rig.sh(&format!("head -c 1000000 /dev/urandom > {mnt}/late"));
    let before = sum(&rig, mnt);

    refusals(&rig, &d);

    // Devices that are named leave; of the others the last one.
    let text = rig.zpool(&["split", "-n", "tank", "half", &d[2]]);
    let want = format!(
        "would create 'half' with the following layout:\n\n\thalf\n\t  {}\n\t  {}\n\tspecial\n\t  {}\n",
        d[1], d[2], d[6]
    );
    assert_eq!(text, want);
    let guid = property(&rig, "guid", "tank");
    rig.zpool(&["split", "-o", "comment=side", "tank", "half", &d[2]]);
    assert_eq!(property(&rig, "guid", "tank"), guid);
    let status = rig.zpool(&["status", "-P", "tank"]);
    for (i, there) in [
        (0, true),
        (1, false),
        (2, false),
        (3, true),
        (4, true),
        (5, true),
        (6, false),
        (7, true),
        (8, true),
    ] {
        assert_eq!(status.contains(&d[i]), there, "{}: {status}", d[i]);
    }
    assert!(status.contains("\n state: ONLINE\n"), "{status}");
    assert_eq!(sum(&rig, mnt), before);
    let history = rig.zpool(&["history", "-i", "tank"]);
    assert!(
        history.contains("zpool split -o comment=side tank half"),
        "{history}"
    );
    assert!(history.contains("into pool half"), "{history}");
    rig.try_run("zpool", &["list", "half"]).fails(1);
    // The old pool goes on, and the new one does not see it.
    rig.sh(&format!("head -c 2000000 /dev/urandom > {mnt}/behind"));
    rig.zpool(&["scrub", "-w", "tank"]);

    look_at_half(&rig, &other, &guid, &before);
    rig.zpool(&["export", "half"]);
    rig.zpool(&["export", "tank"]);
    rig.zdb_check("half");
    rig.zdb_check("tank");
    rig.zpool(&["import", "-d", disks, "tank"]);
    assert_eq!(
        rig.sh(&format!("cmp {mnt}/1 {mnt}/a/1 && echo same")),
        "same\n"
    );
    refused(
        &rig,
        &["split", "tank", "more"],
        1,
        "Source pool must be composed only of mirrors",
    );
    rig.zpool(&["destroy", "tank"]);
    rig.stop();
}

/// With -R the new pool is imported at once; with -l its keys are loaded first. A removed vdev stays one in both pools.
#[test]
fn an_encrypted_pool_is_split_and_its_half_imported_with_its_keys() {
    let Some(mut rig) = Rig::new("split-keys") else {
        return;
    };
    let d: Vec<String> = (0..6)
        .map(|i| {
            let size = if i == 2 || i == 3 { 768 } else { 128 };
            rig.image(&format!("d{i}.img"), size * MIB)
        })
        .collect();
    let mnt = rig.mnt();
    let (mnt, disks) = (mnt.to_str().unwrap(), rig.disks());
    let other = format!("{mnt}-half");
    let _ = std::fs::create_dir_all(&other);
    let key = disks.join("key");
    std::fs::write(&key, "correct horse").unwrap();
    let place = format!("keylocation=file://{}", key.display());
    rig.start();
    rig.zpool(&["create", "-m", mnt, "tank", "mirror", &d[0], &d[1]]);
    rig.zpool(&["add", "-f", "tank", "mirror", &d[2], &d[3]]);
    rig.zfs(&[
        "create",
        "-o",
        "encryption=on",
        "-o",
        "keyformat=passphrase",
        "-o",
        &place,
        "tank/e",
    ]);
    rig.sh(&format!(
        "cd {mnt}; for i in 1 2 3 4; do head -c 2000000 /dev/urandom > $i; cp $i e; done; sync"
    ));
    rig.zpool(&["remove", "-w", "tank", "mirror-0"]);
    rig.zpool(&["add", "-f", "tank", "mirror", &d[4], &d[5]]);
    let before = sum(&rig, mnt);
    rig.zpool(&["split", "-l", "-R", &other, "tank", "half"]);
    assert_eq!(property(&rig, "altroot", "half"), other);
    let folder = format!("{other}{mnt}");
    assert_eq!(sum(&rig, &folder), before);
    assert_eq!(
        rig.zfs(&["get", "-Ho", "value", "keystatus", "half/e"]),
        "available\n"
    );
    rig.zpool(&["export", "half"]);
    rig.zpool(&["export", "tank"]);
    rig.zdb_check("half");
    rig.zdb_check("tank");
    rig.stop();
}
