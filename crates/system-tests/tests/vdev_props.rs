//! Properties of vdevs and of allocation classes through the real commands: what they show, what can be set and what not, what of it is
//! there after an import, and who obeys it. OpenZFS's `zdb` judges the pool.

use serde_json::Value;
use system_tests::faulty_disks::{Fault, On, Trouble};
use system_tests::{until, FaultyDisks, Rig};

const MIB: u64 = 1 << 20;

fn refused(rig: &Rig, args: &[&str], code: i32, words: &str) {
    let said = rig.try_run("zpool", args).fails(code);
    assert!(said.contains(words), "{args:?}: {said}");
}

/// A property of a vdev.
fn of(rig: &Rig, vdev: &str, name: &str) -> String {
    let text = rig.zpool(&["get", "-Hp", "-o", "value", name, "tank", vdev]);
    text.trim().to_string()
}

fn number(rig: &Rig, vdev: &str, name: &str) -> u64 {
    let text = of(rig, vdev, name);
    text.parse()
        .unwrap_or_else(|_| panic!("{name} of {vdev}: {text}"))
}

/// What is shown.
fn look_at(rig: &Rig, d: &[String]) {
    let size = number(rig, "mirror-1", "size");
    assert!(size > 64 * MIB && size <= 128 * MIB, "{size}");
    let (used, free) = (
        number(rig, "mirror-1", "allocated"),
        number(rig, "mirror-1", "free"),
    );
    assert_eq!(used + free, size);
    for (vdev, name, value) in [
        ("raidz1-0", "parity", "1"),
        ("raidz1-0", "numchildren", "3"),
        ("raidz1-0", "raidz_expanding", "off"),
        ("raidz1-0", "parent", "tank"),
        ("raidz1-0", "path", "-"),
        ("raidz1-0", "autosit", "off"),
        ("mirror-1", "autosit", "-"),
        ("mirror-1", "raidz_expanding", "-"),
        ("mirror-1", "allocating", "on"),
        ("mirror-1", "alloc_bias", "none"),
        ("mirror-1", "children", &format!("{},{}", d[3], d[4])),
        (&d[3], "parent", "mirror-1"),
        (&d[3], "path", &d[3]),
        (&d[3], "allocating", "-"),
        (&d[3], "trim_support", "on"),
        (&d[3], "numchildren", "0"),
        (&d[3], "sit_out", "-"),
        (&d[0], "sit_out", "off"),
        (&d[0], "state", "ONLINE"),
        (&d[0], "removing", "off"),
        (&d[0], "read_errors", "0"),
        (&d[0], "slow_ios", "0"),
        (&d[0], "checksum_n", "-"),
        (&d[0], "failfast", "on"),
        ("root-0", "numchildren", "4"),
        (&d[8], "state", "ONLINE"),
    ] {
        assert_eq!(of(rig, vdev, name), value, "{name} of {vdev}");
    }
    assert!(number(rig, &d[3], "write_ops") > 0);
    assert!(number(rig, &d[3], "write_bytes") > MIB);
    assert!(number(rig, &d[3], "asize") > 100 * MIB);
    assert!(number(rig, &d[3], "psize") > number(rig, &d[3], "asize"));
    let all = rig.zpool(&["get", "all", "tank", "all-vdevs"]);
    let lines = |vdev: &str| {
        all.lines()
            .filter(|l| l.starts_with(&format!("{vdev} ")))
            .count()
    };
    assert_eq!(lines("mirror-1"), 54, "{all}");
    assert_eq!(lines(&d[8]), 54);
    assert_eq!(lines("root-0"), 0);
    let json = rig.zpool(&["get", "-j", "-p", "guid,size,comment", "tank", "all-vdevs"]);
    let json: Value = serde_json::from_str(&json).unwrap();
    let mirror = &json["vdevs"]["mirror-1"];
    assert_eq!(
        mirror["properties"]["size"]["value"],
        size.to_string(),
        "{json}"
    );
    assert_eq!(mirror["vdev_type"], "mirror");
    refused(
        rig,
        &["get", "size", "tank", "nope"],
        2,
        "Expected a list of vdevs in \"tank\", but got:\n\t\"nope\"",
    );
    refused(
        rig,
        &["get", "health", "tank", "mirror-1"],
        2,
        "invalid property 'health'",
    );
    refused(
        rig,
        &["get", "psize", "tank"],
        2,
        "invalid property 'psize'",
    );
}

/// What cannot be set.
fn refusals(rig: &Rig, d: &[String]) {
    let set = |name: &str, vdev: &str, words: &str| {
        let why = format!(
            "cannot set property {} for {vdev} on tank: {words}",
            name.split('=').next().unwrap()
        );
        refused(rig, &["set", name, "tank", vdev], 1, &why);
    };
    set("size=1", "mirror-1", "'size' is readonly");
    set("alloc_bias=log", "mirror-1", "'alloc_bias' is readonly");
    set("nope=1", "mirror-1", "invalid property 'nope'");
    set(
        "failfast=yes",
        &d[3],
        "'failfast' must be one of 'off | on'",
    );
    set("io_n=x", &d[3], "bad numeric value 'x'");
    set("io_n=5", "nope", "no such device in pool");
    set(
        "allocating=off",
        &d[3],
        "operation not supported on this type of vdev",
    );
    set(
        "autosit=on",
        "mirror-1",
        "operation not supported on this type of vdev",
    );
    set(
        "sit_out=on",
        &d[3],
        "operation not supported on this type of vdev",
    );
    set(
        "comment=x",
        &d[8],
        "invalid argument for this pool operation",
    );
    set("com.delphix:x=1", "mirror-1", "'com.delphix:x' is readonly");
}

#[test]
fn properties_of_vdevs_are_shown_set_and_kept() {
    let Some(mut rig) = Rig::new("vdev-props") else {
        return;
    };
    let d = rig.images(9, 128 * MIB);
    let mnt = rig.mnt();
    let (mnt, disks) = (mnt.to_str().unwrap(), rig.disks());
    let disks = disks.to_str().unwrap();
    rig.start();
    rig.zpool(&[
        "create", "-f", "-m", mnt, "tank", "raidz1", &d[0], &d[1], &d[2], "mirror", &d[3], &d[4],
    ]);
    rig.zpool(&[
        "add", "-f", "tank", "log", &d[5], "special", "mirror", &d[6], &d[7],
    ]);
    rig.zpool(&["add", "tank", "spare", &d[8]]);
    rig.sh(&format!("cd {mnt}; head -c 8000000 /dev/urandom > a; sync"));
    rig.zpool(&["sync", "tank"]);

    look_at(&rig, &d);
    refusals(&rig, &d);

    // What can, and is kept.
    for (name, vdev) in [
        ("comment=slot 7", d[3].as_str()),
        ("com.example:bay=left", "mirror-1"),
        ("checksum_n=3", "root-0"),
        ("io_n=4", "raidz1-0"),
        ("io_t=60", "raidz1-0"),
        ("slow_io_events=off", &d[0]),
        ("failfast=off", &d[0]),
        ("autosit=on", "raidz1-0"),
    ] {
        rig.zpool(&["set", name, "tank", vdev]);
    }
    rig.zpool(&["set", "sit_out=on", "tank", &d[0]]);
    let too_many = "as many devices as there is parity sit out already";
    refused(&rig, &["set", "sit_out=on", "tank", &d[1]], 1, too_many);
    // Nothing is read from it, and what is read is right.
    let sum = rig.sh(&format!("sha256sum < {mnt}/a"));
    let exported = |rig: &Rig| {
        rig.zpool(&["export", "tank"]);
        rig.zpool(&["import", "-d", disks, "tank"]);
    };
    exported(&rig);
    assert_eq!(of(&rig, &d[0], "sit_out"), "off");
    rig.zpool(&["set", "sit_out=on", "tank", &d[0]]);
    let before = number(&rig, &d[0], "read_ops");
    let others = number(&rig, &d[1], "read_ops");
    assert_eq!(rig.sh(&format!("sha256sum < {mnt}/a")), sum);
    assert_eq!(number(&rig, &d[0], "read_ops"), before);
    assert!(number(&rig, &d[1], "read_ops") > others);
    rig.zpool(&["set", "sit_out=off", "tank", &d[0]]);
    for (name, vdev, value) in [
        ("comment", d[3].as_str(), "slot 7"),
        ("com.example:bay", "mirror-1", "left"),
        ("checksum_n", "root-0", "3"),
        ("io_n", "raidz1-0", "4"),
        ("io_t", "raidz1-0", "60"),
        ("io_n", &d[0], "-"),
        ("slow_io_events", &d[0], "off"),
        ("failfast", &d[0], "off"),
        ("autosit", "raidz1-0", "on"),
    ] {
        assert_eq!(of(&rig, vdev, name), value, "{name} of {vdev}");
    }
    let shown = rig.zpool(&["get", "-H", "io_n,com.example:bay", "tank", "mirror-1"]);
    assert_eq!(
        shown,
        "mirror-1\tio_n\t-\tdefault\nmirror-1\tcom.example:bay\tleft\tlocal\n"
    );
    rig.zpool(&["set", "com.example:bay=", "tank", "mirror-1"]);
    rig.zpool(&["set", "io_n=none", "tank", "raidz1-0"]);
    rig.zpool(&["set", "comment=", "tank", &d[3]]);
    for (vdev, name) in [
        ("mirror-1", "com.example:bay"),
        ("raidz1-0", "io_n"),
        (&d[3], "comment"),
    ] {
        assert_eq!(of(&rig, vdev, name), "-");
    }
    let history = rig.zpool(&["history", "-i", "tank"]);
    assert!(history.contains("checksum_n=3"), "{history}");
    assert!(
        history.contains("zpool set io_n=4 tank raidz1-0"),
        "{history}"
    );
    rig.zpool(&["export", "tank"]);
    rig.zdb_check("tank");
    rig.stop();
}

/// Nothing is placed on a vdev that does not allocate, also after an import.
#[test]
fn a_vdev_that_does_not_allocate_gets_nothing() {
    let Some(mut rig) = Rig::new("vdev-allocating") else {
        return;
    };
    let (small, large) = (
        rig.image("small.img", 128 * MIB),
        rig.image("large.img", 1024 * MIB),
    );
    let mnt = rig.mnt();
    let (mnt, disks) = (mnt.to_str().unwrap(), rig.disks());
    let disks = disks.to_str().unwrap();
    rig.start();
    rig.zpool(&["create", "-m", mnt, "tank", &small]);
    refused(
        &rig,
        &["set", "allocating=off", "tank", &small],
        1,
        "invalid argument for this pool operation",
    );
    rig.zpool(&["add", "tank", &large]);
    refused(
        &rig,
        &["set", "allocating=off", "tank", &large],
        1,
        "out of space",
    );
    rig.zpool(&["set", "allocating=off", "tank", &small]);
    assert_eq!(of(&rig, &small, "allocating"), "off");
    let status = rig.zpool(&["status", "tank"]);
    assert!(status.contains("(non-allocating)"), "{status}");
    let fill = |name: &str| {
        rig.sh(&format!(
            "head -c 20000000 /dev/urandom > {mnt}/{name}; sync"
        ));
        rig.zpool(&["sync", "tank"]);
    };
    // What the last txgs freed is free again.
    (0..4).for_each(|_| drop(rig.zpool(&["sync", "-f", "tank"])));
    let before = number(&rig, &small, "allocated");
    fill("a");
    assert!(number(&rig, &small, "allocated") <= before);
    assert!(number(&rig, &large, "allocated") > 20_000_000);
    rig.zpool(&["export", "tank"]);
    rig.zdb_check("tank");
    rig.zpool(&["import", "-d", disks, "tank"]);
    assert_eq!(of(&rig, &small, "allocating"), "off");
    fill("b");
    assert!(number(&rig, &small, "allocated") <= before);
    rig.zpool(&["set", "allocating=on", "tank", &small]);
    let mut n = 0;
    until("blocks are placed on it again", || {
        n += 1;
        fill(&format!("c{n}"));
        number(&rig, &small, "allocated") > before
    });
    rig.zpool(&["export", "tank"]);
    rig.zdb_check("tank");
    rig.stop();
}

#[test]
fn the_space_of_classes_adds_up() {
    let Some(mut rig) = Rig::new("class-props") else {
        return;
    };
    let d = rig.images(8, 128 * MIB);
    let mnt = rig.mnt();
    let mnt = mnt.to_str().unwrap();
    rig.start();
    rig.zpool(&[
        "create", "-f", "-m", mnt, "tank", "raidz1", &d[0], &d[1], &d[2],
    ]);
    rig.zpool(&[
        "add", "-f", "tank", "special", "mirror", &d[3], &d[4], "dedup", "mirror", &d[5], &d[6],
        "log", &d[7],
    ]);
    rig.zfs(&["create", "-o", "dedup=on", "tank/d"]);
    rig.sh(&format!(
        "cd {mnt}; head -c 8000000 /dev/urandom > a; cp a d/1; cp a d/2; sync"
    ));
    rig.zpool(&["sync", "tank"]);
    rig.zpool(&["sync", "-f", "tank"]);
    let get = |name: &str| -> u64 {
        let text = rig.zpool(&["get", "-Hp", "-o", "value", name, "tank"]);
        text.trim().parse().unwrap_or(0)
    };
    let class = |class: &str, what: &str| get(&format!("class_{class}_{what}"));
    let counted = ["normal", "special", "dedup", "elog", "special_elog"];
    for what in ["size", "usable"] {
        let sum: u64 = counted.iter().map(|c| class(c, what)).sum();
        assert_eq!(sum, get(what), "{what}");
    }
    for c in ["normal", "special", "dedup", "log"] {
        assert!(class(c, "size") > 0, "{c}");
        assert!(
            class(c, "allocated") + class(c, "free") == class(c, "size"),
            "{c}"
        );
        assert!(
            class(c, "used") + class(c, "available") == class(c, "usable"),
            "{c}"
        );
    }
    // Two of three devices of the raidz hold data; mirrors count once.
    assert!(class("normal", "usable") < class("normal", "size") * 3 / 4);
    assert_eq!(class("special", "usable"), class("special", "size"));
    assert!(class("special", "allocated") > 0 && class("dedup", "allocated") > 0);
    assert_eq!(class("special_elog", "size"), 0);
    let (used, saved) = (get("dedupused"), get("dedupsaved"));
    assert!(used > 7_000_000 && saved > 7_000_000, "{used} {saved}");
    // They are shown by name only, in lists, too.
    let all = rig.zpool(&["get", "all", "tank"]);
    assert!(!all.contains("class_") && !all.contains("usable"), "{all}");
    let list = rig.zpool(&["list", "-Hp", "-o", "name,class_special_size", "tank"]);
    assert_eq!(list, format!("tank\t{}\n", class("special", "size")));
    refused(
        &rig,
        &["get", "class_nope_size", "tank"],
        2,
        "invalid property 'class_nope_size'",
    );
    refused(&rig, &["set", "usable=1", "tank"], 1, "readonly");
    rig.stop();
}

/// The fault agent obeys the thresholds: of a device its own, else that of its top-level vdev.
#[test]
fn thresholds_decide_when_a_device_is_degraded() {
    let Some(mut rig) = Rig::new("vdev-thresholds") else {
        return;
    };
    let d = rig.images(2, 128 * MIB);
    let mnt = rig.mnt();
    let (mnt, disks) = (mnt.to_str().unwrap(), rig.disks());
    let disks = disks.to_str().unwrap();
    rig.start();
    rig.zpool(&["create", "-m", mnt, "tank", "mirror", &d[0], &d[1]]);
    rig.sh(&format!("head -c 30000000 /dev/urandom > {mnt}/a; sync"));
    rig.zpool(&["set", "checksum_n=1", "tank", "mirror-0"]);
    rig.zpool(&["set", "checksum_n=1000000", "tank", &d[1]]);
    let spoil = || {
        rig.zpool(&["export", "tank"]);
        let file = &d[1];
        rig.sh(&format!(
            "dd if=/dev/zero of={file} bs=1M seek=8 count=100 conv=notrunc 2>&1"
        ));
        rig.zpool(&["import", "-d", disks, "tank"]);
        rig.zpool(&["events", "-c"]);
        rig.zpool(&["scrub", "-w", "tank"]);
    };
    spoil();
    until("the agent has seen the errors", || {
        rig.zpool(&["events"]).contains("ereport.fs.zfs.checksum")
    });
    assert!(number(&rig, &d[1], "checksum_errors") > 10);
    assert_eq!(of(&rig, &d[1], "state"), "ONLINE");
    // Without a value of its own that of the mirror counts.
    rig.zpool(&["set", "checksum_n=none", "tank", &d[1]]);
    spoil();
    until("the device is degraded", || {
        of(&rig, &d[1], "state") == "DEGRADED"
    });
    rig.stop();
}

/// A device that answers much later than the others of its raidz is not read any more, and everything is read right.
#[test]
fn a_slow_device_of_a_raidz_sits_out() {
    let Some(disks) = FaultyDisks::new("autosit") else {
        return;
    };
    let Some(mut rig) = Rig::new("autosit") else {
        return;
    };
    let d = disks.disks(4, 128 << 20);
    let mnt = rig.mnt();
    let mnt = mnt.to_str().unwrap();
    rig.start();
    rig.zpool(&[
        "create", "-m", mnt, "tank", "raidz1", &d[0], &d[1], &d[2], &d[3],
    ]);
    rig.zfs(&["set", "primarycache=none", "tank"]);
    rig.sh(&format!("head -c 20000000 /dev/urandom > {mnt}/a; sync"));
    let sum = rig.sh(&format!("sha256sum < {mnt}/a"));
    rig.zpool(&["set", "autosit=on", "tank", "raidz1-0"]);
    disks.fail("d2", Fault::every(On::Read, Trouble::Delay(30)));
    let read = || {
        rig.sh(&format!(
            "dd if={mnt}/a bs=128k iflag=direct 2>/dev/null | sha256sum"
        ))
    };
    until("the slow device sits out", || {
        assert_eq!(read(), sum);
        of(&rig, &d[2], "sit_out") == "on"
    });
    assert_eq!(of(&rig, &d[1], "sit_out"), "off");
    assert!(rig.zpool(&["events"]).contains("ereport.fs.zfs.sitout"));
    let before = number(&rig, &d[2], "read_ops");
    assert_eq!(read(), sum);
    assert_eq!(number(&rig, &d[2], "read_ops"), before);
    rig.stop();
}
