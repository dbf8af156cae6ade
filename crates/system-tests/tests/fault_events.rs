//! What `zpool events` tells of devices that fail, and of pools that cannot be opened.

use api::{Fault, Transfer, Trouble};
use std::fs;
use system_tests::{until, Dice, Rig};

const MIB: u64 = 1 << 20;

/// Gives a device this fault; `false` after saying why if the daemon cannot.
fn set(rig: &Rig, faults: &[(&str, Transfer, Trouble)]) -> bool {
    let fault = |&(device, on, does): &(&str, Transfer, Trouble)| Fault {
        device: device.into(),
        on,
        does,
        one_of: 1,
    };
    let faults = faults.iter().map(fault).collect();
    rig.set_faults(faults)
}

/// The events of a class, each with all its lines.
fn of_class(rig: &Rig, class: &str) -> Vec<String> {
    let text = rig.zpool(&["events", "-v"]);
    let all = text.split("\n\n").map(str::to_string);
    let line = format!("class = \"{class}\"");
    all.filter(|e| e.lines().any(|l| l.trim() == line))
        .collect()
}

fn has(event: &str, names: &[&str]) {
    for name in names {
        let named = |l: &str| l.trim().split(" = ").next() == Some(name);
        assert!(event.lines().any(named), "no {name} in {event}");
    }
}

#[test]
fn transfers_that_fail_are_told_of_one_by_one() {
    let Some(mut rig) = Rig::new("fault-events") else {
        return;
    };
    let d = rig.images(2, 128 * MIB);
    let mnt = rig.mnt();
    rig.start();
    if !set(&rig, &[]) {
        return;
    }
    let at = mnt.to_str().unwrap();
    rig.zpool(&["create", "-m", at, "tank", "mirror", &d[0], &d[1]]);
    fs::write(mnt.join("f"), Dice::new(1).bytes(3_000_000)).unwrap();
    rig.zpool(&["export", "tank"]);
    Rig::ruin(&d[0]);
    rig.zpool(&["import", "-d", rig.disks().to_str().unwrap(), "tank"]);
    rig.zpool(&["scrub", "-w", "tank"]);
    let class = "ereport.fs.zfs.checksum";
    until("wrong bytes are told of", || {
        !of_class(&rig, class).is_empty()
    });
    let told = of_class(&rig, class);
    let transfer = [
        "zio_offset",
        "zio_size",
        "zio_type",
        "zio_priority",
        "zio_err",
    ];
    has(&told[0], &transfer);
    has(
        &told[0],
        &["vdev_path", "vdev_cksum_errors", "pool_failmode"],
    );
    assert!(told[0].contains("zio_err = 0x34"), "{}", told[0]);
    rig.zpool(&["clear", "tank"]);

    // It does not answer at all from here on.
    set(
        &rig,
        &[
            (&d[0], Transfer::Write, Trouble::Error),
            (&d[0], Transfer::Read, Trouble::Error),
        ],
    );
    fs::write(mnt.join("g"), Dice::new(2).bytes(300_000)).unwrap();
    rig.zpool(&["sync", "tank"]);
    let class = "ereport.fs.zfs.io";
    until("failed transfers are told of", || {
        of_class(&rig, class)
            .iter()
            .any(|e| e.contains("zio_offset"))
    });
    let told = of_class(&rig, class);
    let told = told.iter().find(|e| e.contains("zio_offset")).unwrap();
    has(told, &transfer);
    assert!(told.contains("zio_err = 0x5"), "{told}");

    until("a device that does not answer is told of", || {
        !of_class(&rig, "ereport.fs.zfs.probe_failure").is_empty()
    });
    set(&rig, &[]);
    rig.zpool(&["export", "tank"]);
    rig.stop();
}

#[test]
fn pools_that_cannot_be_opened_are_told_of() {
    let Some(mut rig) = Rig::new("load-events") else {
        return;
    };
    let d = rig.images(4, 96 * MIB);
    let place = rig.disks();
    let place = place.to_str().unwrap();
    rig.start();
    let create = ["create", "-O", "mountpoint=none"];
    rig.zpool(&[&create[..], &["logged", &d[0], "log", &d[1]]].concat());
    rig.zpool(&[&create[..], &["striped", &d[2], &d[3]]].concat());
    rig.zpool(&["export", "logged", "striped"]);
    fs::rename(&d[1], format!("{}.away", d[1])).unwrap();
    fs::remove_file(&d[3]).unwrap();
    // The log is not found under another name either.
    let only = d[0].as_str();
    rig.try_run("zpool", &["import", "-d", only, "logged"])
        .fails(1);
    rig.try_run("zpool", &["import", "-d", place, "striped"])
        .fails(1);
    let told = of_class(&rig, "ereport.fs.zfs.log_replay");
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].contains("pool = \"logged\""), "{}", told[0]);
    has(&told[0], &["pool_guid", "pool_state", "pool_context"]);
    let told = of_class(&rig, "ereport.fs.zfs.zpool");
    assert!(
        told.iter().any(|e| e.contains("pool = \"striped\"")),
        "{told:?}"
    );
    rig.stop();
}
