//! Options and properties that say something about devices and caches, seen through the real programs.

use std::fs;
use std::path::Path;
use std::process::Command;
use system_tests::Rig;

/// The numbers of the rows of a report of `zpool iostat -H -p`, without names.
fn rows(text: &str) -> Vec<Vec<u64>> {
    text.lines()
        .map(|l| {
            l.split('\t')
                .skip(1)
                .map(|n| n.parse().unwrap_or(0))
                .collect()
        })
        .collect()
}

#[test]
fn iostat_shows_what_the_devices_did() {
    let Some(mut rig) = Rig::new("iostat") else {
        return;
    };
    let images = [rig.image("a", 96 << 20), rig.image("b", 96 << 20)];
    let mnt = rig.mnt();
    rig.start();
    rig.zpool(&[
        "create",
        "-m",
        mnt.to_str().unwrap(),
        "tank",
        "mirror",
        &images[0],
        &images[1],
    ]);
    let noise: Vec<u8> = (0..4u32 << 20)
        .map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect();
    fs::write(mnt.join("file"), &noise).unwrap();
    let file = fs::File::open(mnt.join("file")).unwrap();
    file.sync_all().unwrap();
    rig.zpool(&["sync", "tank"]);
    // Reads come from the devices after an import.
    drop(file);
    rig.zpool(&["export", "tank"]);
    rig.zpool(&["import", "-d", rig.disks().to_str().unwrap(), "tank"]);
    assert!(fs::read(mnt.join("file")).unwrap() == noise);

    // Latencies: 6 columns of space and rates, then total_wait and disk_wait, read and write.
    let latency = rows(&rig.zpool(&["iostat", "-Hpl", "tank"]));
    let [total_read, total_write, disk_read, disk_write] = latency[0][6..10] else {
        panic!("{latency:?}");
    };
    assert!(disk_read > 0 && total_read >= disk_read, "{latency:?}");
    assert!(disk_write > 0 && total_write >= disk_write, "{latency:?}");
    // Nothing is under way now, and the columns are there.
    let queues = rows(&rig.zpool(&["iostat", "-Hpq", "tank"]));
    assert_eq!(queues[0].len(), 6 + 14, "{queues:?}");
    // Histograms: 37 rows of 11 latencies, 16 of 14 sizes, behind a row with the name.
    let waits = rows(&rig.zpool(&["iostat", "-Hpw", "tank"]));
    assert_eq!((waits.len(), waits[1].len()), (38, 11));
    let sum = |list: &[Vec<u64>], column: usize| list[1..].iter().map(|r| r[column]).sum::<u64>();
    assert!(sum(&waits, 2) > 0 && sum(&waits, 3) > 0, "{waits:?}");
    let sizes = rows(&rig.zpool(&["iostat", "-Hpr", "tank"]));
    assert_eq!((sizes.len(), sizes[1].len()), (17, 14));
    let all: u64 = (0..14).map(|c| sum(&sizes, c)).sum();
    assert_eq!(
        all,
        sum(&waits, 2) + sum(&waits, 3),
        "every request has a size and a time"
    );
    // A group is the sum of its devices, which are shown below it.
    let mirror = rows(&rig.zpool(&["iostat", "-Hpr", "tank", "mirror-0"]));
    let [group, a, b] = [0, 17, 34].map(|at| &mirror[at..at + 17]);
    assert_eq!(group, &sizes[..]);
    for ((sum, a), b) in group.iter().zip(a).zip(b) {
        let both: Vec<u64> = a.iter().zip(b).map(|(a, b)| a + b).collect();
        assert_eq!(sum, &both);
    }
    let slow = rig.zpool(&["status", "-s", "tank"]);
    assert!(slow.contains("SLOW"), "{slow}");
    rig.stop();
}

/// Bytes of a file that the kernel has in its cache.
fn cached(path: &Path) -> Option<u64> {
    let out = Command::new("fincore")
        .args(["-b", "-n", "-o", "RES"])
        .arg(path)
        .output()
        .ok()?;
    String::from_utf8_lossy(&out.stdout).trim().parse().ok()
}

#[test]
fn direct_always_keeps_the_content_of_files_out_of_the_kernels_cache() {
    let Some(mut rig) = Rig::new("direct") else {
        return;
    };
    let image = rig.image("a", 96 << 20);
    let mnt = rig.mnt();
    rig.start();
    rig.zpool(&["create", "-m", mnt.to_str().unwrap(), "tank", &image]);
    let file = mnt.join("file");
    fs::write(&file, vec![7; 1 << 20]).unwrap();
    if cached(&file).is_none() {
        eprintln!("skipped: no fincore here");
        return;
    }
    assert_eq!(fs::read(&file).unwrap().len(), 1 << 20);
    assert!(cached(&file).unwrap() > 0, "standard: the kernel caches");
    rig.zfs(&["set", "direct=always", "tank"]);
    let other = mnt.join("other");
    fs::write(&other, vec![8; 1 << 20]).unwrap();
    assert!(fs::read(&other).unwrap() == vec![8; 1 << 20]);
    assert_eq!(cached(&other), Some(0), "always: it does not");
    rig.zfs(&["set", "direct=standard", "tank"]);
    assert!(fs::read(&other).unwrap() == vec![8; 1 << 20]);
    assert!(cached(&other).unwrap() > 0);
    rig.stop();
}

#[test]
fn scripts_make_columns_of_status_and_iostat() {
    let Some(mut rig) = Rig::new("scripts") else {
        return;
    };
    let images = rig.images(2, 96 << 20);
    let folder = rig.path().join("zpool.d");
    fs::create_dir(&folder).unwrap();
    let script = "#!/bin/sh\necho \"upath=${VDEV_UPATH##*/}\"\necho size=\n\
                  case $VDEV_PATH in *d1) echo 'this one is odd';; esac\n";
    let path = folder.join("columns");
    fs::write(&path, script).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(&path, mode).unwrap();
    fs::write(folder.join("no-script"), "").unwrap();
    rig.variable("ZPOOL_SCRIPTS_PATH", folder.to_str().unwrap());
    rig.variable("ZPOOL_SCRIPTS_AS_ROOT", "1");
    rig.start();
    let create = ["create", "-O", "mountpoint=none", "tank", "mirror"];
    rig.zpool(&[&create[..], &[&images[0], &images[1]]].concat());
    let status = rig.zpool(&["status", "-c", "columns", "tank"]);
    let row = |text: &str, name: &str| -> Vec<String> {
        let is = |w: &str| w == name || w.ends_with(&format!("/{name}"));
        let first = |l: &&str| l.split_whitespace().next().is_some_and(is);
        let line = text.lines().find(first);
        let words = line.unwrap_or_default().split_whitespace();
        words.map(str::to_string).collect()
    };
    assert_eq!(row(&status, "NAME")[5..], ["upath", "size"]);
    assert_eq!(row(&status, "d0")[5..], ["d0", "-"], "{status}");
    assert_eq!(
        row(&status, "d1")[5..],
        ["d1", "-", "this", "one", "is", "odd"]
    );
    assert_eq!(row(&status, "mirror-0").len(), 5);
    let iostat = rig.zpool(&["iostat", "-H", "-c", "columns", "tank"]);
    let ends = |l: &&str| l.ends_with("\td0\t-");
    assert_eq!(iostat.lines().filter(ends).count(), 1, "{iostat}");
    for name in ["no-script", "absent", "../columns"] {
        let said = rig.try_run("zpool", &["status", "-c", name, "tank"]);
        let said = said.fails(1);
        assert!(said.contains(name), "{said}");
    }
    rig.variable("ZPOOL_SCRIPTS_AS_ROOT", "0");
    if system_tests::is_root() {
        let said = rig.try_run("zpool", &["status", "-c", "columns"]).fails(1);
        assert!(said.contains("ZPOOL_SCRIPTS_AS_ROOT=1"), "{said}");
    }
    rig.stop();
}
