//! Changes of devices, and scrubs, that are refused: in OpenZFS's words, and with nothing half done.

use system_tests::Rig;

const MIB: u64 = 1 << 20;

/// What a refused command may not change.
fn shape(rig: &Rig) -> String {
    let text = rig.zpool(&["status", "tank"]);
    let at = text.find("config:").unwrap_or(0);
    text[at..].to_string()
}

fn refused(rig: &Rig, args: &[&str], words: &str) {
    let before = shape(rig);
    let said = rig.try_run("zpool", args).fails(1);
    assert!(said.contains(words), "{args:?}: {said}");
    assert_eq!(shape(rig), before, "{args:?}");
}

#[test]
fn devices_that_do_not_fit_are_refused_and_nothing_changes() {
    let Some(mut rig) = Rig::new("refused-devices") else {
        return;
    };
    let d = rig.images(6, 128 * MIB);
    let small = rig.image("small.img", 65 * MIB);
    rig.start();
    rig.zpool(&[
        "create",
        "-O",
        "mountpoint=none",
        "tank",
        "mirror",
        &d[0],
        &d[1],
    ]);
    rig.zpool(&["create", "-O", "mountpoint=none", "other", &d[2]]);
    rig.zpool(&["create", "-O", "mountpoint=none", "gone", &d[3]]);
    rig.zpool(&["export", "gone"]);
    for verb in ["attach", "replace"] {
        for (new, words) in [
            (&small, "device is too small"),
            (&d[0], "is part of active pool 'tank'"),
            (&d[1], "is part of active pool 'tank'"),
            (&d[2], "is part of active pool 'other'"),
            (&d[3], "is part of exported pool 'gone'"),
        ] {
            refused(&rig, &[verb, "tank", &d[0], new], words);
            if new != &d[3] {
                refused(&rig, &[verb, "-f", "tank", &d[0], new], words);
            }
        }
        refused(
            &rig,
            &[verb, "tank", "nothing", &d[4]],
            "no such device in pool",
        );
    }
    // Of its own pool it is in use where it is.
    refused(
        &rig,
        &["replace", "tank", &d[0]],
        "is part of active pool 'tank'",
    );
    // What nobody else has whole stays.
    rig.zpool(&["offline", "tank", &d[0]]);
    refused(&rig, &["offline", "tank", &d[1]], "no valid replicas");
    refused(&rig, &["detach", "tank", &d[1]], "no valid replicas");
    rig.zpool(&["online", "tank", &d[0]]);
    rig.zpool(&["wait", "-t", "resilver", "tank"]);
    // What is being replaced is not replaced once more.
    rig.zpool(&["offline", "-f", "tank", &d[0]]);
    rig.zpool(&["replace", "tank", &d[0], &d[4]]);
    let said = rig
        .try_run("zpool", &["replace", "tank", &d[0], &d[5]])
        .fails(1);
    let known = [
        "already in replacing/spare config",
        "no such device in pool",
    ];
    assert!(known.iter().any(|w| said.contains(w)), "{said}");
    rig.zpool(&["wait", "-t", "replace", "tank"]);
    rig.zpool(&["export", "tank"]);
    let at = rig.disks();
    let at = at.to_str().unwrap();
    rig.zpool(&["import", "-d", at, "-o", "readonly=on", "tank"]);
    refused(&rig, &["scrub", "tank"], "pool is read-only");
    refused(&rig, &["attach", "tank", &d[1], &d[5]], "pool is read-only");
    refused(
        &rig,
        &["attach", "-s", "tank", &d[1], &d[5]],
        "pool is read-only",
    );
    rig.stop();
}

#[test]
fn a_device_with_larger_sectors_is_refused() {
    let Some(mut rig) = Rig::as_root("larger-sectors") else {
        return;
    };
    let d = rig.images(2, 128 * MIB);
    let image = rig.image("large.img", 128 * MIB);
    let Some(large) = rig.loop_with(&["--sector-size", "4096"], &image) else {
        return;
    };
    rig.start();
    let mut create = vec!["create", "-o", "ashift=9", "-O", "mountpoint=none"];
    create.extend(["tank", "mirror", &d[0], &d[1]]);
    rig.zpool(&create);
    let words =
        "new device has a different optimal sector size; use the option '-o ashift=N' to override";
    for verb in ["attach", "replace"] {
        refused(&rig, &[verb, "tank", &d[0], &large], words);
        refused(&rig, &[verb, "-s", "tank", &d[0], &large], words);
    }
    rig.zpool(&["export", "tank"]);
    rig.stop();
}
