//! Data vdevs leave a pool in use through the real commands: filled, removed, the disk taken away, every byte read; given up
//! half-way; removed again over an earlier removal. OpenZFS's `zdb` judges the result.

use system_tests::Rig;

const MIB: u64 = 1 << 20;

fn status(rig: &Rig) -> String {
    rig.zpool(&["status", "tank"])
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

fn reimport(rig: &Rig) {
    rig.zpool(&["export", "tank"]);
    rig.zdb_check("tank");
    rig.zpool(&["import", "-d", rig.disks().to_str().unwrap(), "tank"]);
}

#[test]
fn data_vdevs_are_removed_one_after_the_other_and_their_disks_taken_away() {
    let Some(mut rig) = Rig::new("removal") else {
        return;
    };
    let first = rig.image("first.img", 128 * MIB);
    let second = rig.image("second.img", 640 * MIB);
    let third = rig.image("third.img", 1536 * MIB);
    let mnt = rig.mnt();
    let mnt = mnt.to_str().unwrap();
    rig.start();
    rig.zpool(&["create", "-m", mnt, "tank", &first]);
    let a = fill(&rig, "a");
    rig.zfs(&["snapshot", "tank@before"]);

    // The last one stays.
    let said = rig.try_run("zpool", &["remove", "tank", &first]).fails(1);
    assert!(said.contains("out of space"), "{said}");
    let said = rig.try_run("zpool", &["remove", "-s", "tank"]).fails(1);
    assert!(
        said.contains("cannot cancel removal: operation is not in progress"),
        "{said}"
    );
    rig.try_run("zpool", &["remove", "-s", "-w", "tank"])
        .fails(2);

    rig.zpool(&["add", "tank", &second]);
    let said = rig.zpool(&["remove", "-n", "tank", &first]);
    let want = format!("Memory that will be used after removing {first}: ");
    assert!(said.starts_with(&want), "{said}");
    let exact = rig.zpool(&["remove", "-n", "-p", "tank", &first]);
    let bytes = exact.trim().rsplit(' ').next().unwrap();
    assert!(bytes.parse::<u64>().unwrap() % 24 == 0, "{exact}");

    rig.zpool(&["remove", "-w", "tank", &first]);
    let told = status(&rig);
    assert!(told.contains("remove: Removal of vdev 0 copied "), "{told}");
    assert!(
        told.contains("memory used for removed device mappings"),
        "{told}"
    );
    assert!(
        !told.contains("first.img") && !told.contains("indirect"),
        "{told}"
    );
    assert_eq!(sum(&rig, "a"), a);
    // Where it was is listed, and it cannot be removed again.
    let list = rig.zpool(&["list", "-vHp", "-o", "name,size,health", "tank"]);
    assert!(list.contains("\tindirect-0\t-\tONLINE\n"), "{list}");
    assert!(rig
        .zpool(&["list", "-vj", "tank"])
        .contains("\"indirect-0\":"));
    let shown = rig.zpool(&["status", "-j", "tank"]);
    assert!(!shown.contains("\"indirect-0\":"), "{shown}");
    assert!(rig
        .zpool(&["iostat", "-v", "tank"])
        .contains("  indirect-0  "));
    let guids = rig.zpool(&["list", "-vHg", "-o", "name,size", "tank"]);
    let guid = guids.lines().find_map(|l| l.trim().strip_suffix("\t-"));
    rig.try_run("zpool", &["remove", "tank", guid.unwrap()])
        .fails(1);
    // The disk is nobody's any more.
    rig.zpool(&["create", "-n", "other", &first]);
    std::fs::remove_file(&first).unwrap();
    reimport(&rig);
    assert_eq!(sum(&rig, "a"), a);
    let b = fill(&rig, "b");

    // Over the first one.
    rig.zpool(&["add", "tank", &third]);
    rig.zpool(&["remove", "tank", &second]);
    rig.zpool(&["wait", "-t", "remove", "tank"]);
    let json = rig.zpool(&["status", "-j", "tank"]);
    assert!(
        json.contains("\"removal_stats\"") && json.contains("FINISHED"),
        "{json}"
    );
    std::fs::remove_file(&second).unwrap();
    reimport(&rig);
    assert_eq!((sum(&rig, "a"), sum(&rig, "b")), (a.clone(), b));
    rig.sh(&format!("rm {mnt}/b*; rm {mnt}/a*"));
    rig.zfs(&["rollback", "tank@before"]);
    assert_eq!(sum(&rig, "a"), a);
    rig.zfs(&["destroy", "tank@before"]);
    rig.sh(&format!("rm {mnt}/a*"));
    rig.zpool(&["sync", "tank"]);
    reimport(&rig);
    rig.zpool(&["scrub", "-w", "tank"]);
    assert!(status(&rig).contains("with 0 errors"), "{}", status(&rig));

    let history = rig.zpool(&["history", "-i", "tank"]);
    for line in [
        "vdev remove started",
        "vdev remove completed",
        "zpool remove",
    ] {
        assert!(history.contains(line), "{line}: {history}");
    }
    let events = rig.zpool(&["events", "-H"]);
    assert!(events.contains("vdev_remove_dev"), "{events}");
    rig.zpool(&["export", "tank"]);
    rig.zdb_check("tank");
}

#[test]
fn a_mirror_and_a_special_vdev_are_removed_and_a_raidz_rules_it_out() {
    let Some(mut rig) = Rig::new("removal-classes") else {
        return;
    };
    let large = rig.image("large.img", 1024 * MIB);
    let special = rig.image("special.img", 128 * MIB);
    let sides = rig.images(5, 128 * MIB);
    let mnt = rig.mnt();
    let mnt = mnt.to_str().unwrap();
    rig.start();
    rig.zpool(&[
        "create", "-f", "-m", mnt, "tank", &large, "mirror", &sides[0], &sides[1], "special",
        &special,
    ]);
    let a = fill(&rig, "a");
    // What a special vdev holds counts as used elsewhere already: it goes from a pool that has no room for all of it.
    let [one, beside] = ["one.img", "beside.img"].map(|n| rig.image(n, 128 * MIB));
    rig.zpool(&[
        "create",
        "-O",
        "mountpoint=none",
        "narrow",
        &one,
        "special",
        &beside,
    ]);
    rig.zpool(&["remove", "-w", "narrow", &beside]);
    rig.zpool(&["export", "narrow"]);
    rig.zdb_check("narrow");
    rig.zpool(&["remove", "-w", "tank", "mirror-1"]);
    rig.zpool(&["remove", "-w", "tank", &special]);
    let told = status(&rig);
    assert!(told.contains("Removal of vdev 2 copied "), "{told}");
    assert!(!told.contains("special"), "{told}");
    for gone in [&sides[0], &sides[1], &special] {
        std::fs::remove_file(gone).unwrap();
    }
    reimport(&rig);
    assert_eq!(sum(&rig, "a"), a);
    // After a removal no raidz comes to the pool.
    let raidz = [
        "add", "-f", "tank", "raidz1", &sides[2], &sides[3], &sides[4],
    ];
    rig.try_run("zpool", &raidz).fails(1);
    rig.zpool(&["destroy", "tank"]);
    rig.zpool(&[
        "create", "-f", "-m", mnt, "tank", &large, "raidz1", &sides[2], &sides[3], &sides[4],
    ]);
    let said = rig.try_run("zpool", &["remove", "tank", &large]).fails(1);
    assert!(
        said.contains("out of space") || said.contains("not be raidz"),
        "{said}"
    );
    let said = rig
        .try_run("zpool", &["remove", "tank", "raidz1-1"])
        .fails(1);
    assert!(said.contains("not be raidz"), "{said}");
    rig.zpool(&["destroy", "tank"]);
}

/// A block that is overwritten with the same bytes stays where it is, unless that is a removed vdev: it goes to a device then.
#[test]
fn the_same_bytes_written_again_leave_a_removed_vdev() {
    let Some(mut rig) = Rig::new("removal-nopwrite") else {
        return;
    };
    let first = rig.image("first.img", 256 * MIB);
    let second = rig.image("second.img", 512 * MIB);
    let mnt = rig.mnt();
    rig.start();
    rig.zpool(&[
        "create",
        "-O",
        "checksum=skein",
        "-O",
        "compression=on",
        "-m",
        mnt.to_str().unwrap(),
        "tank",
        &first,
    ]);
    let source = rig.path().join("source");
    rig.sh(&format!("head -c 24M /dev/urandom > {}", source.display()));
    let copy = || {
        let (from, to) = (source.display(), mnt.join("file"));
        let to = to.display();
        rig.sh(&format!(
            "dd if={from} of={to} bs=1M oflag=sync conv=notrunc status=none"
        ));
        rig.zpool(&["sync", "tank"]);
    };
    let written = || -> u64 {
        rig.zfs(&["get", "-Hpo", "value", "written", "tank"])
            .trim()
            .parse()
            .unwrap()
    };
    copy();
    rig.zfs(&["snapshot", "tank@a"]);
    copy();
    let same = written();
    assert!(same < 2 * MIB, "{same} bytes");
    rig.zpool(&["add", "tank", &second]);
    rig.zpool(&["remove", "-w", "tank", &first]);
    copy();
    let anew = written();
    assert!(anew >= 24 * MIB, "{anew} bytes");
    // They are on a device now, and stay.
    rig.zfs(&["snapshot", "tank@b"]);
    copy();
    let same = written();
    assert!(same < 2 * MIB, "{same} bytes");
    rig.zpool(&["export", "tank"]);
    rig.zdb_check("tank");
}
