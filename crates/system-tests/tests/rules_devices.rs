//! Rules of OpenZFS's commands for devices and pools that its test suite states.

use system_tests::Rig;

const MIB: u64 = 1 << 20;

fn rig(name: &str, images: usize) -> Option<(Rig, Vec<String>)> {
    let mut rig = Rig::as_root(name)?;
    let d = rig.images(images, 128 * MIB);
    rig.start();
    Some((rig, d))
}

/// `zpool create` without mounting anything.
fn create(rig: &Rig, pool: &str, vdevs: &[&str]) {
    let mut args = vec!["create", "-O", "mountpoint=none", pool];
    args.extend(vdevs);
    rig.zpool(&args);
}

#[test]
fn spares_and_cache_devices_are_reserved_by_imported_pools_only() {
    let Some((mut rig, d)) = rig("reserved", 6) else {
        return;
    };
    create(&rig, "one", &[&d[0], "spare", &d[1], "cache", &d[2]]);
    for (dev, words) in [
        (&d[1], "is reserved as a hot spare for pool one"),
        (&d[2], "is in use as a cache of pool 'one'"),
    ] {
        for args in [
            vec!["create", "two", dev],
            vec!["create", "-f", "two", dev],
            vec!["replace", "-f", "one", &d[0], dev],
        ] {
            if args[0] == "replace" && dev == &d[1] {
                continue;
            }
            let said = rig.try_run("zpool", &args).fails(1);
            assert!(said.contains(words), "{args:?}: {said}");
        }
    }
    // Under a path that no pool lists.
    let linked = format!("{}-linked", d[2]);
    std::fs::hard_link(&d[2], &linked).unwrap();
    for (dev, words) in [
        (&d[1], "is a member (SPARE) of pool \"one\""),
        (&d[2], "is a member (L2CACHE) of pool \"one\""),
        (&linked, "is a member (L2CACHE) of pool \"one\""),
    ] {
        let said = rig.try_run("zpool", &["labelclear", "-f", dev]).fails(1);
        assert!(said.contains(words), "{said}");
    }
    // Pools may share a spare, but a foreign one replaces nothing.
    create(&rig, "two", &[&d[3], "spare", &d[1]]);
    create(&rig, "three", &[&d[4]]);
    let args = ["replace", "-f", "three", &d[4], &d[1]];
    let said = rig.try_run("zpool", &args).fails(1);
    assert!(said.contains("is reserved as a hot spare"), "{said}");
    for pool in ["one", "two", "three"] {
        rig.zpool(&["destroy", pool]);
    }
    // What is left on them is no reason to ask for -f.
    create(&rig, "four", &[&d[1], &d[2]]);
    rig.zpool(&["destroy", "four"]);
    create(&rig, "five", &[&d[0], "spare", &d[1]]);
    rig.zpool(&["export", "five"]);
    rig.zpool(&["labelclear", &d[1]]);
    create(&rig, "six", &[&d[1]]);
    rig.zpool(&["destroy", "six"]);
    rig.stop();
}

#[test]
fn what_left_a_pool_has_labels_that_can_be_cleared_without_force() {
    let Some((mut rig, d)) = rig("left-labels", 6) else {
        return;
    };
    let clear = |dev: &str| {
        rig.zpool(&["labelclear", dev]);
        let said = rig.try_run("zpool", &["labelclear", "-f", dev]).fails(1);
        assert!(said.contains("no label of a pool found"), "{said}");
    };
    create(
        &rig,
        "tank",
        &[
            "mirror", &d[0], &d[1], "log", &d[2], "cache", &d[3], "spare", &d[4],
        ],
    );
    for dev in &d[2..5] {
        rig.zpool(&["remove", "tank", dev]);
        clear(dev);
    }
    rig.zpool(&["detach", "tank", &d[1]]);
    clear(&d[1]);
    rig.zpool(&["replace", "tank", &d[0], &d[5]]);
    rig.zpool(&["wait", "-t", "replace", "tank"]);
    clear(&d[0]);
    // It is nobody's without that, too.
    rig.zpool(&["attach", "tank", &d[5], &d[0]]);
    rig.zpool(&["wait", "-t", "resilver", "tank"]);
    rig.zpool(&["detach", "tank", &d[0]]);
    rig.zpool(&["attach", "tank", &d[5], &d[0]]);
    rig.zpool(&["wait", "-t", "resilver", "tank"]);
    rig.zpool(&["detach", "tank", &d[5]]);
    create(&rig, "other", &[&d[5]]);
    for pool in ["other", "tank"] {
        rig.zpool(&["export", pool]);
        rig.zdb_check(pool);
        rig.zpool(&["import", "-d", rig.disks().to_str().unwrap(), pool]);
        rig.zpool(&["destroy", pool]);
    }
    rig.stop();
}

#[test]
fn groups_that_can_do_without_as_many_devices_go_together() {
    let Some((mut rig, d)) = rig("redundancy", 8) else {
        return;
    };
    create(
        &rig,
        "tank",
        &[
            "spare", &d[7], "mirror", &d[0], &d[1], "raidz", &d[2], &d[3],
        ],
    );
    rig.zpool(&["add", "tank", "raidz", &d[4], &d[5]]);
    let said = rig.try_run("zpool", &["add", "tank", &d[6]]).fails(1);
    assert!(said.contains("mismatched replication level"), "{said}");
    // Devices in use come first. As in OpenZFS, -f is proposed unless it was given.
    let heads = ["use '-f' to override the following errors:"];
    let heads = heads
        .into_iter()
        .chain(["the following errors must be manually repaired:"]);
    for (force, head) in ["-n", "-f"].into_iter().zip(heads) {
        for args in [
            ["add", force, "tank", &d[0]],
            ["create", force, "new", &d[0]],
        ] {
            let more = [&args[..], &["mirror", &d[5], &d[6]]].concat();
            let said = rig.try_run("zpool", &more).fails(1);
            let words = format!(
                "invalid vdev specification\n{head}\n{} is part of active pool 'tank'\n",
                d[0]
            );
            assert!(said.contains(&words), "{more:?}: {said}");
        }
    }
    rig.zpool(&["destroy", "tank"]);
    let vdevs = ["mirror", &d[0], &d[1], "raidz2", &d[2], &d[3], &d[4]];
    let args = [&["create", "tank"][..], &vdevs].concat();
    let said = rig.try_run("zpool", &args).fails(1);
    let words = "raidz and mirror vdevs with different redundancy, 2 vs. 1 (2-way) are present";
    assert!(said.contains(words), "{said}");
    rig.stop();
}

#[test]
fn zdb_shows_the_configuration_once_and_without_arguments_the_cache_file() {
    let Some((mut rig, d)) = rig("zdb-config", 1) else {
        return;
    };
    create(&rig, "tank", &[&d[0]]);
    let count = |args: &[&str]| {
        rig.try_run("zdb", args)
            .ok()
            .matches(" pool_guid: ")
            .count()
    };
    assert_eq!(count(&["-C", "tank"]), 1);
    assert_eq!(count(&["-CC", "tank"]), 2);
    assert_eq!(count(&[]), 1);
    rig.zpool(&["destroy", "tank"]);
    rig.stop();
}

#[test]
fn pool_properties_that_are_refused_or_taken_away() {
    let Some((mut rig, d)) = rig("pool-props", 1) else {
        return;
    };
    create(&rig, "tank", &[&d[0]]);
    rig.zfs(&["create", "-V", "1M", "tank/volume"]);
    let args = ["set", "bootfs=tank/volume", "tank"];
    let said = rig.try_run("zpool", &args).fails(1);
    assert!(said.contains("it is a volume"), "{said}");
    let get = || rig.zpool(&["get", "-Ho", "value,source", "a:b", "tank"]);
    rig.zpool(&["set", "a:b=c", "tank"]);
    assert_eq!(get(), "c\tlocal\n");
    rig.zpool(&["set", "a:b=", "tank"]);
    assert_eq!(get(), "-\tdefault\n");
    // Each clear is told.
    rig.zpool(&["events", "-c"]);
    for _ in 0..3 {
        rig.zpool(&["clear", "tank"]);
    }
    let told = rig.zpool(&["events", "-H"]);
    assert_eq!(told.lines().count(), 3, "{told}");
    rig.zpool(&["destroy", "tank"]);
    rig.stop();
}
