//! RAID-Z expanded by `zpool attach`, through the programs; OpenZFS's `zdb` judges the result.

use std::fs;
use system_tests::tree::{self, Kinds};
use system_tests::Rig;

const MIB: u64 = 1 << 20;
const KINDS: Kinds = Kinds {
    xattrs: true,
    acls: false,
    huge: false,
};

fn refused(rig: &Rig, args: &[&str], words: &str) {
    let said = rig.try_run("zpool", args).fails(1);
    assert!(said.contains(words), "{args:?}: {said}");
}

fn import(rig: &Rig) {
    rig.zpool(&["import", "-d", rig.disks().to_str().unwrap(), "tank"]);
}

/// Takes images out of the way, imports the pool, and compares what is read.
fn stands_without(rig: &Rig, gone: &[&String], want: &tree::Description) {
    let away = |p: &str| format!("{p}.away");
    for p in gone {
        fs::rename(p, away(p)).unwrap();
    }
    import(rig);
    let now = tree::describe(&rig.mnt()).unwrap();
    tree::assert_same(want, &now, "without some devices");
    rig.zpool(&["export", "tank"]);
    for p in gone {
        fs::rename(away(p), p).unwrap();
    }
}

#[test]
fn a_raidz_grows_while_in_use_and_stands_the_loss_of_as_many_devices() {
    let Some(mut rig) = Rig::new("expanding") else {
        return;
    };
    let d = rig.images(6, 160 * MIB);
    let mnt = rig.mnt();
    rig.start();
    let on = mnt.to_str().unwrap();
    rig.zpool(&[
        "create", "-m", on, "tank", "raidz2", &d[0], &d[1], &d[2], &d[3],
    ]);
    tree::write(&mnt, 150, 91, KINDS).unwrap();
    fs::write(mnt.join("large"), vec![7u8; 60 << 20]).unwrap();
    rig.sh("sync");
    let size = |rig: &Rig| -> u64 {
        let text = rig.zpool(&["list", "-Hpo", "size", "tank"]);
        text.trim().parse().unwrap()
    };
    let before = size(&rig);
    let text = "only mirror and dRAID vdevs support sequential reconstruction";
    refused(&rig, &["attach", "-s", "tank", "raidz2-0", &d[4]], text);
    rig.zpool(&["attach", "tank", "raidz2-0", &d[4]]);
    let status = rig.zpool(&["status", "tank"]);
    assert!(status.contains("expand: expan"), "{status}");
    if status.contains("in progress") {
        let text = "raidz expansion in progress";
        refused(&rig, &["attach", "tank", "raidz2-0", &d[5]], text);
    }
    // In use meanwhile, and cut short once.
    fs::create_dir(mnt.join("more")).unwrap();
    tree::write(&mnt.join("more"), 100, 92, KINDS).unwrap();
    rig.sh("sync");
    rig.kill();
    rig.start();
    rig.zpool(&["wait", "-t", "raidz_expand", "tank"]);
    let status = rig.zpool(&["status", "tank"]);
    assert!(
        status.contains("expand: expanded raidz2-0 copied "),
        "{status}"
    );
    rig.zpool(&["wait", "-t", "scrub", "tank"]);
    let status = rig.zpool(&["status", "tank"]);
    assert!(status.contains("scrub repaired 0B in "), "{status}");
    assert!(status.contains("errors: No known data errors"), "{status}");
    assert!(size(&rig) > before + 100 * MIB, "{before} {}", size(&rig));
    let json = rig.zpool(&["status", "-j", "tank"]);
    assert!(
        json.contains("\"raidz_expand_stats\":{\"name\":\"raidz2-0\""),
        "{json}"
    );
    assert!(json.contains("\"state\":\"FINISHED\""), "{json}");
    let feature = rig.zpool(&["get", "-Ho", "value", "feature@raidz_expansion", "tank"]);
    assert_eq!(feature.trim(), "active");
    let history = rig.zpool(&["history", "-i", "tank"]);
    for words in [
        "raidz vdev expansion started tank vdev 0 new width 5",
        "raidz vdev expansion completed tank vdev 0 new width 5",
        "to vdev=raidz2-0",
    ] {
        assert!(history.contains(words), "{words}: {history}");
    }
    rig.zpool(&["attach", "-w", "tank", "raidz2-0", &d[5]]);
    rig.zpool(&["wait", "-t", "scrub", "tank"]);
    let want = tree::describe(&mnt).unwrap();
    rig.zpool(&["export", "tank"]);
    rig.zdb_check("tank");
    for gone in [[&d[0], &d[5]], [&d[2], &d[3]], [&d[1], &d[4]]] {
        stands_without(&rig, &gone, &want);
    }
    rig.stop();
}

#[test]
fn what_cannot_be_expanded_is_refused() {
    let Some(mut rig) = Rig::new("expanding-refused") else {
        return;
    };
    let d = rig.images(5, 128 * MIB);
    let small = rig.disks().join("small");
    fs::File::create(&small).unwrap().set_len(80 << 20).unwrap();
    let small = small.to_str().unwrap().to_string();
    rig.start();
    rig.zpool(&["create", "tank", "raidz", &d[0], &d[1], &d[2]]);
    let attach = |disk: &str| ["attach", "tank", "raidz1-0", disk].map(String::from);
    let attach_refused = |rig: &Rig, disk: &str, words: &str| {
        let args = attach(disk);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        refused(rig, &args, words);
    };
    attach_refused(&rig, &small, "device is too small");
    rig.zpool(&["offline", "tank", &d[1]]);
    let text = "raidz vdev has devices that are offline or being replaced";
    attach_refused(&rig, &d[3], text);
    rig.zpool(&["online", "tank", &d[1]]);
    rig.zpool(&["destroy", "tank"]);
    let off = "feature@raidz_expansion=disabled";
    rig.zpool(&[
        "create", "-f", "-o", off, "tank", "raidz", &d[0], &d[1], &d[2],
    ]);
    let text = "raidz_expansion feature must be enabled in order to attach a device to raidz";
    attach_refused(&rig, &d[3], text);
    rig.zpool(&["destroy", "tank"]);
    rig.stop();
}
