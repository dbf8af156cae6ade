//! Disks are pulled out under load, replaced and resilvered: nothing is lost, no process is stuck, and what the resilver wrote
//! stands without the disks it came from.

use std::fs::File;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use system_tests::load::Writer;
use system_tests::{until, Rig};

const SIZE: u64 = 256 << 20;

/// `kind` of `disks` loop devices; those of `pulled` lose all their sectors while files are written.
fn pulled_under_load(name: &str, kind: &str, disks: usize, pulled: &[usize], options: &[&str]) {
    let Some(mut rig) = Rig::as_root(name) else {
        return;
    };
    let mut devices = Vec::new();
    for n in 0..disks + pulled.len() {
        let Some(d) = rig.loop_device(&format!("l{n}.img"), SIZE) else {
            return;
        };
        devices.push(d);
    }
    let mnt = rig.mnt();
    rig.start();
    let mut args = vec!["create", "-m", mnt.to_str().unwrap(), "tank", kind];
    args.extend(devices[..disks].iter().map(String::as_str));
    rig.zpool(&args);
    let stop = AtomicBool::new(false);
    let mut writers: Vec<Writer> = (1..4)
        .map(|seed| Writer::new(mnt.join(format!("w{seed}")), seed).unwrap())
        .collect();
    std::thread::scope(|s| {
        let threads: Vec<_> = writers
            .iter_mut()
            .map(|w| s.spawn(|| w.work(&stop)))
            .collect();
        std::thread::sleep(Duration::from_secs(2));
        for n in pulled {
            let image = rig.disks().join(format!("l{n}.img"));
            File::options()
                .write(true)
                .open(image)
                .unwrap()
                .set_len(0)
                .unwrap();
            rig.try_run("losetup", &["--set-capacity", &devices[*n]])
                .ok();
        }
        let healthy = |rig: &Rig| {
            let text = rig.zpool(&["status", "tank"]);
            let row = |n: &&usize| text.lines().find(|l| l.contains(short(&devices[**n])));
            let good = |n: &&usize| row(n).is_some_and(|l| l.contains(" ONLINE "));
            pulled.iter().filter(good).count()
        };
        until("the pool notices", || healthy(&rig) == 0);
        for (i, n) in pulled.iter().enumerate() {
            let mut args = vec!["replace"];
            args.extend(options);
            args.extend(["tank", &devices[*n], &devices[disks + i]]);
            // Before it was out of use the pool may have begun to fill it again.
            until("it is replaced", || {
                let said = rig.try_run("zpool", &args);
                let waits = !said.status.success();
                assert!(
                    !waits || said.to_string().contains("currently resilvering"),
                    "{said}"
                );
                !waits
            });
        }
        std::thread::sleep(Duration::from_secs(1));
        stop.store(true, Ordering::Relaxed);
        threads.into_iter().for_each(|t| t.join().unwrap());
    });
    rig.zpool(&["wait", "-t", "resilver,replace,scrub", "tank"]);
    rig.zpool(&["sync", "tank"]);
    let status = rig.zpool(&["status", "tank"]);
    assert!(status.contains(" state: ONLINE"), "{status}");
    assert!(status.contains("errors: No known data errors"), "{status}");
    writers.iter_mut().for_each(|w| w.verify().unwrap());
    rig.zpool(&["export", "tank"]);
    // As many of the others are missing as were pulled.
    let others: Vec<usize> = (0..disks).filter(|n| !pulled.contains(n)).collect();
    let missing = &others[..pulled.len()];
    let mut args = vec!["import"];
    for (n, d) in devices.iter().enumerate() {
        if !missing.contains(&n) && !pulled.contains(&n) {
            args.extend(["-d", d]);
        }
    }
    args.push("tank");
    rig.zpool(&args);
    writers.iter_mut().for_each(|w| w.verify().unwrap());
    rig.zpool(&["export", "tank"]);
    rig.stop();
}

fn short(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

#[test]
fn a_side_of_a_mirror_is_pulled_and_resilvered() {
    pulled_under_load("pulled-mirror", "mirror", 2, &[1], &[]);
}

#[test]
fn a_side_of_a_mirror_is_pulled_and_rebuilt() {
    pulled_under_load("pulled-rebuilt", "mirror", 2, &[0], &["-s"]);
}

#[test]
fn two_disks_of_a_raidz2_are_pulled_and_resilvered() {
    pulled_under_load("pulled-raidz2", "raidz2", 5, &[1, 3], &[]);
}
