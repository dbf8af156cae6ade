//! The daemon is killed under heavy load; everything `fsync` acknowledged is there afterwards.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use system_tests::load::{disturb, Writer};
use system_tests::{number, Dice, Rig};

fn pull_the_plug(name: &str, vdevs: &[&str], options: &[&str]) {
    let Some(mut rig) = Rig::new(name) else {
        return;
    };
    let count = vdevs.iter().filter(|v| **v == "DISK").count();
    let mut disks = rig.images(count, 512 << 20).into_iter();
    let words: Vec<String> = vdevs
        .iter()
        .map(|v| {
            if *v == "DISK" {
                disks.next().unwrap()
            } else {
                v.to_string()
            }
        })
        .collect();
    let mnt = rig.mnt();
    rig.start();
    let mut args = vec!["create"];
    args.extend(options);
    args.extend(["-m", mnt.to_str().unwrap(), "tank"]);
    args.extend(words.iter().map(String::as_str));
    rig.zpool(&args);
    rig.zfs(&["create", "-o", "recordsize=16K", "tank/small"]);

    let places = [mnt.join("w0"), mnt.join("w1"), mnt.join("small/w2")];
    let mut writers: Vec<Writer> = (1..)
        .zip(places)
        .map(|(seed, dir)| Writer::new(dir, seed).unwrap())
        .collect();
    let mut dice = Dice::new(99);
    let kills = number("ZFS_FUSE_TEST_KILLS", 5);
    // On a busy machine a short round may end before anything was acknowledged.
    let mut idle = 0;
    for kill in 1..=kills {
        let stop = AtomicBool::new(false);
        let before: u64 = writers.iter().map(|w| w.done).sum();
        let plug = rig.plug();
        std::thread::scope(|s| {
            for w in &mut writers {
                s.spawn(|| w.work(&stop));
            }
            for seed in 0..2 {
                let (dir, stop) = (mnt.clone(), &stop);
                s.spawn(move || disturb(&dir, kill * 10 + seed, stop));
            }
            std::thread::sleep(Duration::from_millis(300 + dice.below(6_000)));
            plug();
            stop.store(true, Ordering::Relaxed);
        });
        rig.kill();
        let after: u64 = writers.iter().map(|w| w.done).sum();
        idle += u64::from(after == before);
        rig.zdb_check("tank");
        rig.start();
        for w in &mut writers {
            if let Err(e) = w.verify() {
                rig.keep_evidence();
                panic!("kill {kill}: {e}");
            }
        }
        // Space is finite, and deleting after a replay is worth a test.
        let _ = rig.sh(&format!("rm -rf {}/load-*", mnt.display()));
    }
    assert!(
        idle * 2 < kills,
        "nothing was acknowledged in {idle} of {kills} rounds: {}",
        rig.log()
    );
    rig.zpool(&["export", "tank"]);
    rig.zdb_check("tank");
    rig.zpool(&["import", "-d", rig.disks().to_str().unwrap(), "tank"]);
    for w in &mut writers {
        w.verify().unwrap();
    }
    rig.zpool(&["export", "tank"]);
    rig.stop();
}

#[test]
fn mirror() {
    pull_the_plug("plug-mirror", &["mirror", "DISK", "DISK"], &[]);
}

#[test]
fn raidz() {
    pull_the_plug(
        "plug-raidz",
        &["raidz", "DISK", "DISK", "DISK"],
        &["-o", "ashift=12"],
    );
}

#[test]
fn legacy() {
    pull_the_plug("plug-v23", &["DISK"], &["-o", "version=23"]);
}
