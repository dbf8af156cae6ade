//! Pools that change hands with OpenZFS in a virtual machine in the middle of something.
//!
//! `ZFS_FUSE_TEST_OZFS_VM` names the folder with the command `ozfs-vm`, which runs a script in a machine with OpenZFS's kernel module.
//! Each pool lies in a folder of its own below [`Rig::disks`], which the script sees as `/share`: its images, `pool` (the name of the pool), `mnt`
//! (where it is mounted) and `sums` (what `sha256sum` says of its files).

use crate::{hash, Dice, Rig};
use api::{Fault, Transfer, Trouble};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use testkit::fixture;

/// The folder of `ozfs-vm`; without one the test says that it was skipped.
pub fn machine() -> Option<PathBuf> {
    let folder = std::env::var_os("ZFS_FUSE_TEST_OZFS_VM").map(PathBuf::from);
    if folder.is_none() {
        eprintln!("skipped: ZFS_FUSE_TEST_OZFS_VM does not name the folder of ozfs-vm");
    }
    folder
}

/// The pool of a folder.
pub fn pool_of(folder: &str) -> String {
    folder.replace('-', "")
}

/// Makes a pool on the first `used` of `disks` new images of `size` bytes, with file systems a to d and a snapshot of each; its images.
pub fn pool(
    rig: &Rig,
    folder: &str,
    kind: &[&str],
    (used, disks): (usize, usize),
    size: u64,
) -> Vec<String> {
    let dir = rig.disks().join(folder);
    fs::create_dir(&dir).unwrap();
    let images: Vec<String> = (0..disks)
        .map(|n| rig.image(&format!("{folder}/d{n}"), size))
        .collect();
    let pool = pool_of(folder);
    let at = rig.mnt().join(folder);
    let at = at.to_str().unwrap();
    let mut args = vec!["create", "-o", "cachefile=none", "-O", "recordsize=4K"];
    args.extend(["-m", at, &pool]);
    args.extend(kind);
    args.extend(images[..used].iter().map(String::as_str));
    rig.zpool(&args);
    let mut dice = Dice::new(hash(folder.as_bytes()));
    for fs in ["a", "b", "c", "d"] {
        rig.zfs(&["create", &format!("{pool}/{fs}")]);
        let at = rig.mnt().join(folder).join(fs);
        fs::write(at.join("f"), dice.bytes(4_000_000)).unwrap();
        rig.zfs(&["snapshot", &format!("{pool}/{fs}@s")]);
        fs::write(at.join("g"), dice.bytes(2_000_000)).unwrap();
    }
    rig.zpool(&["sync", &pool]);
    fs::write(dir.join("pool"), &pool).unwrap();
    fs::write(dir.join("mnt"), at).unwrap();
    sums(rig, folder);
    images
}

/// Notes what the files of a pool are now.
pub fn sums(rig: &Rig, folder: &str) {
    let at = rig.mnt().join(folder);
    let sums = rig.sh(&format!("cd {} && sha256sum */*", at.display()));
    fs::write(rig.disks().join(folder).join("sums"), sums).unwrap();
}

/// Imports the pool of a folder.
pub fn import(rig: &Rig, folder: &str, pool: &str) {
    let dir = rig.disks().join(folder);
    let dir = dir.to_str().unwrap();
    rig.zpool(&["import", "-f", "-d", dir, "-o", "cachefile=none", pool]);
}

/// Reads of these devices take so many milliseconds longer, until the daemon ends or other faults are set: a job that reads them is not over
/// before it can be cut.
pub fn slow(rig: &Rig, devices: &[String], ms: u64) {
    let fault = |device: &String| Fault {
        device: device.clone(),
        on: Transfer::Read,
        does: Trouble::Delay(ms),
        one_of: 0,
    };
    let set = rig.set_faults(devices.iter().map(fault).collect());
    assert!(set, "the daemon must be built with the feature `faults`");
}

/// Begins something and kills the daemon when a part of it is done. `begin` has it begun in the n-th try; `undo` is run where it was over
/// too soon. `status` of the pool says `word` while it goes on.
pub fn cut(
    rig: &mut Rig,
    folder: &str,
    word: &str,
    dice: &mut Dice,
    begin: &dyn Fn(&Rig, u64),
    undo: &dyn Fn(&Rig, u64),
) {
    let pool = pool_of(folder);
    for turn in 0..40 {
        begin(rig, turn);
        let wait = 50 + dice.below(100 * (1 + turn % 10));
        std::thread::sleep(Duration::from_millis(wait));
        let status = rig.zpool(&["status", "-ti", &pool]);
        if !status.contains(word) {
            undo(rig, turn);
            continue;
        }
        if turn % 2 == 0 {
            rig.zfs(&["destroy", &format!("{pool}/b@s")]);
        }
        rig.kill();
        let told: Vec<&str> = status.lines().skip(2).take(6).map(str::trim).collect();
        eprintln!("{folder}: {}", told.join(" "));
        rig.start();
        return;
    }
    panic!("{folder}: everything was over at once");
}

/// Unpacks a fixture into the folder `theirs-NAME`; the folder and the pool.
pub fn unpack(rig: &Rig, name: &str) -> (String, String) {
    let folder = format!("theirs-{name}");
    let dir = rig.disks().join(&folder);
    fs::create_dir(&dir).unwrap();
    fixture::unpack_into(name, &dir).unwrap();
    let text = fs::read(fixture::file(name, "manifest.json").unwrap()).unwrap();
    let manifest: serde_json::Value = serde_json::from_slice(&text).unwrap();
    let pool = manifest["pools"][0]["pool"].as_str().unwrap().to_string();
    fs::write(dir.join("pool"), &pool).unwrap();
    (folder, pool)
}

/// Runs the script in the machine, with the folders as `/share`. Ends the test unless the script ends with 0.
pub fn judge(rig: &Rig, vm: &Path, script: &str) {
    let file = rig.path().join("script");
    let began = rig.disks().join("began");
    fs::write(&file, format!("touch /share/began\n{script}")).unwrap();
    let run = || {
        Command::new(vm.join("ozfs-vm"))
            .args(["run", "--timeout", "2400", "--mem", "2048", "--share"])
            .arg(rig.disks())
            .arg(&file)
            .stdin(Stdio::null())
            .status()
            .unwrap()
    };
    let mut ended = run();
    for _ in 0..5 {
        // An emulated machine does not always come up on a busy one.
        if began.exists() || ended.success() {
            break;
        }
        ended = run();
    }
    assert!(ended.success(), "{ended}");
}
