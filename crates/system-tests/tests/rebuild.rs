//! Sequential rebuilds and distributed spares through the programs; OpenZFS's `zdb` judges the result.

use std::fs;
use system_tests::tree::{self, Kinds};
use system_tests::{until, Rig};

const MIB: u64 = 1 << 20;
const KINDS: Kinds = Kinds {
    xattrs: true,
    acls: false,
    huge: false,
};

/// The lines of the tree of `zpool status`: name and state.
fn rows(rig: &Rig) -> Vec<String> {
    let text = rig.zpool(&["status", "tank"]);
    let rows = text.lines().skip_while(|l| !l.contains("NAME")).skip(1);
    let words = |l: &str| {
        let mut words = l.split_whitespace();
        let name = words.next().unwrap_or_default();
        let name = name.rsplit('/').next().unwrap_or(name).to_string();
        format!("{name} {}", words.next().unwrap_or_default())
    };
    rows.take_while(|l| !l.starts_with("errors"))
        .filter(|l| !l.trim().is_empty())
        .map(words)
        .collect()
}

fn refused(rig: &Rig, args: &[&str], words: &str) {
    let said = rig.try_run("zpool", args).fails(1);
    assert!(said.contains(words), "{args:?}: {said}");
}

/// Takes images out of the way, imports the pool, and compares what is read.
fn stands_without(rig: &Rig, gone: &[&String], want: &tree::Description) {
    let away = |p: &str| format!("{p}.away");
    for p in gone {
        fs::rename(p, away(p)).unwrap();
    }
    let dir = rig.disks();
    rig.zpool(&["import", "-d", dir.to_str().unwrap(), "tank"]);
    let now = tree::describe(&rig.mnt()).unwrap();
    tree::assert_same(want, &now, "without the sources");
    rig.zpool(&["export", "tank"]);
    for p in gone {
        fs::rename(away(p), p).unwrap();
    }
}

#[test]
fn a_mirror_is_rebuilt_in_order_of_place_and_scrubbed() {
    let Some(mut rig) = Rig::new("rebuild") else {
        return;
    };
    let d = rig.images(5, 128 * MIB);
    let mnt = rig.mnt();
    rig.start();
    let create = ["create", "-m", mnt.to_str().unwrap(), "tank", &d[0]];
    rig.zpool(&create);
    tree::write(&mnt, 150, 71, KINDS).unwrap();
    rig.sh("sync");
    rig.zpool(&["attach", "-sw", "tank", &d[0], &d[1]]);
    let want = tree::describe(&mnt).unwrap();
    let status = rig.zpool(&["status", "tank"]);
    for words in ["scan: resilvered (mirror-0) ", " with 0 errors on "] {
        assert!(status.contains(words), "{status}");
    }
    rig.zpool(&["wait", "-t", "scrub", "tank"]);
    let status = rig.zpool(&["status", "tank"]);
    assert!(status.contains("scrub repaired 0B in "), "{status}");
    assert!(!status.contains("status: "), "{status}");
    let json = rig.zpool(&["status", "-j", "tank"]);
    assert!(json.contains("\"state\":\"COMPLETE\""), "{json}");
    let events = rig.zpool(&["events", "-v"]);
    for words in [
        "sysevent.fs.zfs.resilver_start",
        "resilver_type = \"sequential\"",
        "sysevent.fs.zfs.resilver_finish",
        "sysevent.fs.zfs.scrub_start",
        "sysevent.fs.zfs.scrub_finish",
    ] {
        assert!(events.contains(words), "{words}: {events}");
    }
    let history = rig.zpool(&["history", "-i", "tank"]);
    for words in ["rebuild vdev_id=0 vdev_guid=", " started", " complete"] {
        assert!(history.contains(words), "{words}: {history}");
    }
    rig.zpool(&["replace", "-sw", "tank", &d[0], &d[2]]);
    assert_eq!(
        rows(&rig),
        ["tank ONLINE", "mirror-0 ONLINE", "d2 ONLINE", "d1 ONLINE"]
    );
    rig.zpool(&["wait", "-t", "scrub", "tank"]);
    rig.zpool(&["export", "tank"]);
    rig.zdb_check("tank");
    stands_without(&rig, &[&d[1]], &want);
    // What resilvers and rebuilds forbid each other, and what cannot be.
    rig.zpool(&["import", "-d", rig.disks().to_str().unwrap(), "tank"]);
    rig.zpool(&["destroy", "tank"]);
    rig.zpool(&["create", "-f", "tank", "raidz", &d[0], &d[1], &d[2]]);
    let text = "only mirror and dRAID vdevs support sequential reconstruction";
    refused(&rig, &["replace", "-s", "tank", &d[0], &d[3]], text);
    rig.zpool(&["destroy", "tank"]);
    let off = "feature@device_rebuild=disabled";
    rig.zpool(&["create", "-f", "-o", off, "tank", &d[0]]);
    let text = "device_rebuild feature must be enabled in order to use sequential reconstruction";
    refused(&rig, &["attach", "-s", "tank", &d[0], &d[3]], text);
    rig.zpool(&["destroy", "tank"]);
    rig.stop();
}

#[test]
fn a_distributed_spare_stands_in_by_itself_and_goes_back() {
    let Some(mut rig) = Rig::new("distributed") else {
        return;
    };
    let d = rig.images(7, 160 * MIB);
    let mnt = rig.mnt();
    rig.start();
    let mut create = vec!["create", "-m", mnt.to_str().unwrap(), "tank"];
    create.push("draid1:2d:5c:1s");
    create.extend(d[..5].iter().map(String::as_str));
    rig.zpool(&create);
    tree::write(&mnt, 150, 72, KINDS).unwrap();
    rig.sh("sync");
    refused(
        &rig,
        &["replace", "tank", &d[0], "draid1-7-0"],
        "new device must be a single disk",
    );
    rig.zpool(&["offline", "-f", "tank", &d[1]]);
    let stands_in = || rows(&rig).iter().any(|l| l.starts_with("spare-"));
    until("the spare stands in", stands_in);
    fs::create_dir(mnt.join("more")).unwrap();
    tree::write(&mnt.join("more"), 50, 73, KINDS).unwrap();
    rig.sh("sync");
    rig.zpool(&["wait", "-t", "resilver,scrub", "tank"]);
    let want = tree::describe(&mnt).unwrap();
    let r = rows(&rig);
    assert!(r.contains(&"draid1-0-0 INUSE".into()), "{r:?}");
    assert!(r.contains(&"draid1-0-0 ONLINE".into()), "{r:?}");
    refused(
        &rig,
        &["replace", "tank", &d[2], "draid1-0-0"],
        "cannot replace",
    );
    rig.zpool(&["export", "tank"]);
    rig.zdb_check("tank");
    stands_without(&rig, &[&d[1], &d[3]], &want);
    rig.zpool(&["import", "-d", rig.disks().to_str().unwrap(), "tank"]);
    rig.zpool(&["replace", "-w", "tank", &d[1], &d[5]]);
    // The spare is free as soon as nothing is to be waited for.
    rig.zpool(&["wait", "-t", "resilver,replace,scrub", "tank"]);
    let r = rows(&rig);
    assert!(r.contains(&"draid1-0-0 AVAIL".into()), "{r:?}");
    assert!(!r.iter().any(|l| l.starts_with("spare-")), "{r:?}");
    assert_eq!(r[0], "tank ONLINE");
    rig.zpool(&["export", "tank"]);
    rig.zdb_check("tank");
    stands_without(&rig, &[&d[2]], &want);
    rig.stop();
}

/// A dRAID comes to a pool in use, with a distributed spare of its own.
#[test]
fn a_draid_is_added_and_its_spare_stands_in() {
    let Some(mut rig) = Rig::new("draid-added") else {
        return;
    };
    let d = rig.images(9, 160 * MIB);
    let mnt = rig.mnt();
    rig.start();
    let at = mnt.to_str().unwrap().to_string();
    let off = "feature@draid=disabled";
    let mut add = vec!["add", "tank", "draid1:2d:5c:1s"];
    add.extend(d[2..7].iter().map(String::as_str));
    rig.zpool(&["create", "-o", off, "-m", &at, "tank", &d[0]]);
    refused(&rig, &add, "mismatched replication level");
    add.insert(1, "-f");
    refused(
        &rig,
        &add,
        "pool must be upgraded to add these vdevs: the feature 'draid' is not enabled",
    );
    rig.zpool(&["destroy", "tank"]);
    rig.zpool(&["create", "-f", "-m", &at, "tank", "mirror", &d[0], &d[1]]);
    tree::write(&mnt, 40, 74, KINDS).unwrap();
    // What would be is shown, and nothing else is done.
    let mut look = add.clone();
    look.insert(1, "-n");
    let shown = rig.zpool(&look);
    let begin = "would update 'tank' to the following configuration:\n\n\ttank\n\t  mirror-0\n";
    assert!(shown.starts_with(begin), "{shown}");
    let line = format!("\n\t  draid1:2d:5c:1s\n\t    {}\n", d[2]);
    assert!(shown.contains(&line), "{shown}");
    assert!(!rows(&rig).iter().any(|r| r.contains("draid")));
    add.splice(1..2, ["-f", "-o", "ashift=12"]);
    rig.zpool(&add);
    let ashift = rig.zpool(&[
        "get",
        "-Hpo",
        "value",
        "ashift",
        "tank",
        "draid1:2d:5c:1s-1",
    ]);
    assert_eq!(ashift.trim(), "12");
    fs::create_dir(mnt.join("more")).unwrap();
    tree::write(&mnt.join("more"), 150, 75, KINDS).unwrap();
    rig.zpool(&["sync"]);
    let r = rows(&rig);
    assert!(r.contains(&"draid1-1-0 AVAIL".into()), "{r:?}");
    rig.zpool(&["offline", "-f", "tank", &d[3]]);
    let stands_in = || rows(&rig).contains(&"draid1-1-0 INUSE".into());
    until("the spare stands in", stands_in);
    rig.zpool(&["wait", "-t", "resilver,scrub", "tank"]);
    let want = tree::describe(&mnt).unwrap();
    rig.zpool(&["export", "tank"]);
    rig.zdb_check("tank");
    stands_without(&rig, &[&d[0], &d[3], &d[5]], &want);
    rig.stop();
}
