//! A thread of the daemon panics: told to by the fault of a device, at a transfer it asks for.

use api::{Fault, Transfer, Trouble};
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use system_tests::{until, Rig};

const MIB: u64 = 1 << 20;

/// These transfers of the device panic; `false` after saying why if the daemon is not built for that.
fn set(rig: &Rig, device: &str, on: &[Transfer]) -> bool {
    let fault = |on: &Transfer| Fault {
        device: device.into(),
        on: *on,
        does: Trouble::Panic,
        one_of: 1,
    };
    let faults = on.iter().map(fault).collect();
    rig.set_faults(faults)
}

fn put(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let mut f = File::create(path)?;
    f.write_all(bytes)?;
    f.sync_all()
}

fn health(rig: &Rig) -> String {
    rig.zpool(&["list", "-H", "-o", "health", "tank"])
        .trim()
        .to_string()
}

#[test]
fn a_panic_while_writing_stops_the_pool_until_it_is_imported_again() {
    let Some(mut rig) = Rig::new("panic-write") else {
        return;
    };
    let image = rig.image("a", 128 * MIB);
    let mnt = rig.mnt();
    rig.start();
    rig.zpool(&["create", "-m", mnt.to_str().unwrap(), "tank", &image]);
    put(&mnt.join("first"), b"first").unwrap();
    put(&mnt.join("second"), b"second").unwrap();
    if !set(&rig, &image, &[Transfer::Write]) {
        return;
    }
    // The log cannot be written: nothing is acknowledged, and nothing waits for ever.
    assert!(put(&mnt.join("third"), b"third").is_err());
    set(&rig, &image, &[]);
    until("the pool is stopped", || health(&rig) == "SUSPENDED");
    assert!(fs::create_dir(mnt.join("dir")).is_err(), "changed");
    assert_eq!(fs::read(mnt.join("first")).unwrap(), b"first");
    let said = rig.try_run("zpool", &["sync", "tank"]).fails(1);
    assert!(said.contains("internal error"), "{said}");
    let log = rig.log();
    for part in [
        "internal error: thread",
        "told to panic",
        "pool tank is SUSPENDED",
    ] {
        until("it is in the log", || rig.log().contains(part));
    }
    assert!(log.matches("told to panic").count() < 8, "{log}");
    rig.zpool(&["export", "-f", "tank"]);
    rig.zpool(&["import", "-d", rig.disks().to_str().unwrap(), "tank"]);
    assert_eq!(health(&rig), "ONLINE");
    assert_eq!(fs::read(mnt.join("first")).unwrap(), b"first");
    assert_eq!(fs::read(mnt.join("second")).unwrap(), b"second");
    put(&mnt.join("fourth"), b"fourth").unwrap();
    rig.zpool(&["export", "tank"]);
    rig.zdb_check("tank");
    rig.stop();
}

#[test]
fn a_panic_of_a_reader_stops_nothing() {
    let Some(mut rig) = Rig::new("panic-read") else {
        return;
    };
    let image = rig.image("a", 128 * MIB);
    let mnt = rig.mnt();
    rig.start();
    rig.zpool(&["create", "-m", mnt.to_str().unwrap(), "tank", &image]);
    let bytes: Vec<u8> = (0..300_000u32).map(|n| (n / 7) as u8).collect();
    put(&mnt.join("file"), &bytes).unwrap();
    // Nothing is left in a cache.
    rig.zpool(&["export", "tank"]);
    rig.zpool(&["import", "-d", rig.disks().to_str().unwrap(), "tank"]);
    if !set(&rig, &image, &[Transfer::Read]) {
        return;
    }
    assert!(fs::read(mnt.join("file")).is_err());
    set(&rig, &image, &[]);
    assert_eq!(fs::read(mnt.join("file")).unwrap(), bytes);
    put(&mnt.join("file"), b"new").unwrap();
    assert_eq!(health(&rig), "ONLINE");
    assert!(rig.log().contains("told to panic"), "{}", rig.log());
    rig.stop();
}
