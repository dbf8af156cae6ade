//! Scrubs through the programs: what is spoilt is repaired, and OpenZFS finds nothing left to be repaired.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use system_tests::tree::{self, Kinds};
use system_tests::{until, Dice, Rig};

const KINDS: Kinds = Kinds {
    xattrs: true,
    acls: false,
    huge: false,
};
const SIZE: u64 = 128 << 20;

/// Ruins as many disks as the layout can spare, scrubs, and then takes as many others away.
fn check(name: &str, kind: &str, disks: usize, spare: usize) {
    let Some(mut rig) = Rig::new(name) else {
        return;
    };
    let images = rig.images(disks, SIZE);
    let (mnt, dir) = (rig.mnt(), rig.disks());
    let (at, dir) = (mnt.to_str().unwrap(), dir.to_str().unwrap());
    rig.start();
    let mut args = vec!["create", "-m", at, "tank", kind];
    args.extend(images.iter().map(String::as_str));
    rig.zpool(&args);
    rig.zfs(&["create", "-o", "copies=2", "tank/sub"]);
    tree::write(&mnt, 100, 51, KINDS).unwrap();
    tree::write(&mnt.join("sub"), 50, 52, KINDS).unwrap();
    rig.zfs(&["snapshot", "-r", "tank@s"]);
    rig.zfs(&["clone", "tank/sub@s", "tank/clone"]);
    fs::write(mnt.join("sub/later"), Dice::new(1).bytes(500_000)).unwrap();
    fs::write(mnt.join("clone/later"), Dice::new(2).bytes(500_000)).unwrap();
    let before = tree::describe(&mnt).unwrap();
    let status = rig.zpool(&["status", "tank"]);
    assert!(!status.contains("scan:"), "{status}");
    for option in ["-s", "-p"] {
        let said = rig.try_run("zpool", &["scrub", option, "tank"]).fails(1);
        assert!(said.contains("there is no active scrub"), "{said}");
    }
    rig.zpool(&["export", "tank"]);

    images[..spare].iter().for_each(Rig::ruin);
    rig.zpool(&["import", "-d", dir, "tank"]);
    rig.zpool(&["scrub", "-w", "tank"]);
    let status = rig.zpool(&["status", "tank"]);
    let scan = status.lines().find(|l| l.contains("scan: ")).unwrap();
    assert!(scan.starts_with("  scan: scrub repaired "), "{status}");
    assert!(scan.contains(" with 0 errors on "), "{status}");
    assert!(!scan.contains("repaired 0B"), "{status}");
    assert!(status.contains("errors: No known data errors"), "{status}");
    rig.zpool(&["clear", "tank"]);
    rig.zpool(&["scrub", "tank"]);
    rig.zpool(&["wait", "-t", "scrub", "tank"]);
    let status = rig.zpool(&["status", "tank"]);
    assert!(status.contains("scrub repaired 0B in "), "{status}");
    assert!(!status.contains("unrecoverable error"), "{status}");
    let scrubbed = rig.zpool(&["get", "-Hp", "-o", "value", "last_scrubbed_txg", "tank"]);
    assert_ne!(scrubbed.trim(), "0");
    rig.zpool(&["export", "tank"]);
    rig.zdb_check("tank");

    // What was repaired stands alone.
    let away = rig.path().join("away");
    fs::create_dir(&away).unwrap();
    for image in &images[disks - spare..] {
        let to = away.join(Path::new(image).file_name().unwrap());
        fs::rename(image, to).unwrap();
    }
    rig.zpool(&["import", "-d", dir, "tank"]);
    tree::assert_same(
        &before,
        &tree::describe(&mnt).unwrap(),
        "from what was repaired",
    );
    let status = rig.zpool(&["status", "tank"]);
    assert!(status.contains("errors: No known data errors"), "{status}");
    rig.zpool(&["export", "tank"]);
    rig.stop();
}

/// Bytes of both images, all alike, at places where a file has blocks: nobody can repair those.
#[test]
fn an_error_scrub_reads_what_is_on_the_list_and_forgets_what_is_gone() {
    let Some(mut rig) = Rig::new("scrub-errors") else {
        return;
    };
    let images = rig.images(2, SIZE);
    let (mnt, dir) = (rig.mnt(), rig.disks());
    let (at, dir) = (mnt.to_str().unwrap(), dir.to_str().unwrap());
    rig.start();
    rig.zpool(&[
        "create",
        "-m",
        at,
        "-O",
        "compression=off",
        "tank",
        "mirror",
        &images[0],
        &images[1],
    ]);
    let said = rig.try_run("zpool", &["scrub", "-e", "tank"]).fails(1);
    assert!(said.contains("no damaged blocks are on record"), "{said}");
    for args in [["-e", "-C"], ["-s", "-p"]] {
        let said = rig
            .try_run("zpool", &["scrub", args[0], args[1], "tank"])
            .fails(2);
        assert!(said.contains("mutually exclusive"), "{said}");
    }
    let marked: Vec<u8> = (0..400_000u32)
        .flat_map(|i| (i ^ 0x5a17_93c4).to_le_bytes())
        .collect();
    fs::write(mnt.join("bad"), &marked).unwrap();
    fs::write(mnt.join("good"), Dice::new(3).bytes(300_000)).unwrap();
    rig.zpool(&["export", "tank"]);
    for image in &images {
        let bytes = fs::read(image).unwrap();
        let piece = &marked[200 << 10..(200 << 10) + 64];
        let found: Vec<usize> = (0..bytes.len() - 64)
            .step_by(512)
            .filter(|i| &bytes[*i..*i + 64] == piece)
            .collect();
        assert!(!found.is_empty());
        let f = File::options().write(true).open(image).unwrap();
        for place in found {
            f.write_all_at(&[0x77; 64], place as u64).unwrap();
        }
    }
    rig.zpool(&["import", "-d", dir, "tank"]);
    rig.zpool(&["scrub", "-w", "tank"]);
    let status = rig.zpool(&["status", "-v", "tank"]);
    assert!(status.contains(&format!("{at}/bad")), "{status}");
    rig.zpool(&["scrub", "-e", "-w", "tank"]);
    let status = rig.zpool(&["status", "-v", "tank"]);
    assert!(
        status.contains(" scrub: scrubbed 1 error blocks in 0 days "),
        "{status}"
    );
    assert!(status.contains(&format!("{at}/bad")), "{status}");
    fs::remove_file(mnt.join("bad")).unwrap();
    rig.zpool(&["sync", "tank"]);
    rig.zpool(&["scrub", "-e", "-w", "tank"]);
    let status = rig.zpool(&["status", "-v", "tank"]);
    assert!(status.contains("errors: No known data errors"), "{status}");
    rig.zpool(&["export", "tank"]);
    rig.zdb_check("tank");
    rig.stop();
}

#[test]
fn a_mirror() {
    check("scrub-mirror", "mirror", 2, 1);
}

#[test]
fn raidz2() {
    check("scrub-raidz2", "raidz2", 5, 2);
}

/// What a request-size histogram of `zpool iostat -Hpr` counts: by column, single and merged together.
fn requests(rig: &Rig, vdev: &str) -> Vec<u64> {
    let text = rig.zpool(&["iostat", "-Hpr", "tank", vdev]);
    let mut sums = vec![0; 7];
    for line in text.lines().filter(|l| l.contains('\t')) {
        let cells: Vec<u64> = line.split('\t').map(|c| c.parse().unwrap()).collect();
        for (sum, pair) in sums.iter_mut().zip(cells[1..].chunks(2)) {
            *sum += pair.iter().sum::<u64>();
        }
    }
    sums
}

#[test]
fn a_part_is_scrubbed_by_date_and_iostat_shows_it() {
    let Some(mut rig) = Rig::new("scrub-dates") else {
        return;
    };
    let images = rig.images(3, SIZE);
    let mnt = rig.mnt();
    let at = mnt.to_str().unwrap();
    rig.start();
    rig.zpool(&["create", "-m", at, "tank", "mirror", &images[0], &images[1]]);
    fs::write(mnt.join("file"), Dice::new(5).bytes(3_000_000)).unwrap();
    rig.zpool(&["sync", "tank"]);
    let none = requests(&rig, &images[0]);
    assert_eq!((none[4], none[6]), (0, 0), "{none:?}");

    let refused = |args: &[&str], words: &str| {
        let args = [&["scrub"], args, &["tank"]].concat();
        let said = rig.try_run("zpool", &args).fails(2);
        assert!(said.contains(words), "{args:?}: {said}");
    };
    refused(&["-S", "yesterday"], "Failed to parse the date");
    refused(&["-E", "2026-02-30"], "Failed to parse the date");
    refused(
        &["-S", "2026-02-03", "-E", "2026-02-01"],
        "end date has to be later than start date",
    );
    refused(
        &["-C", "-S", "2026-02-03"],
        "-C and -S/-E date are mutually exclusive",
    );
    for option in ["-e", "-s", "-p"] {
        refused(
            &[option, "-S", "2026-02-03"],
            "start/end date is available only with normal scrub",
        );
    }
    // Before the pool was made, and since then.
    let scrubbed = |rig: &Rig| -> u64 {
        let text = rig.zpool(&["get", "-Hp", "-o", "value", "last_scrubbed_txg", "tank"]);
        text.trim().parse().unwrap()
    };
    rig.zpool(&["scrub", "-w", "-E", "2001-01-01 00:00", "tank"]);
    let first = scrubbed(&rig);
    let seen = requests(&rig, &images[0]);
    assert!(first > 0 && seen[4] < 50, "{first} {seen:?}");
    rig.zpool(&["scrub", "-w", "-S", "2001-01-01", "tank"]);
    assert!(scrubbed(&rig) > first);
    let scrub = requests(&rig, &images[0]);
    assert!(scrub[4] > 20 && scrub[6] == 0, "{scrub:?}");
    // It may end before it is paused.
    until("a scrub is paused", || {
        rig.zpool(&["scrub", "tank"]);
        let paused = rig.try_run("zpool", &["scrub", "-p", "tank"]);
        paused.status.success()
    });
    let paused = rig.zpool(&["status", "tank"]).contains("scrub paused");
    if paused {
        let said = rig.try_run("zpool", &["scrub", "-S", "2001-01-01", "tank"]);
        assert!(said.fails(1).contains("scrub is paused"));
        rig.zpool(&["scrub", "-s", "tank"]);
    }
    rig.zpool(&["attach", "-s", "-w", "tank", &images[0], &images[2]]);
    assert!(requests(&rig, &images[2])[6] > 0);
    let waits = rig.zpool(&["iostat", "-Hplq", "tank"]);
    let cells: Vec<u64> = waits
        .trim()
        .split('\t')
        .skip(1)
        .map(|c| c.parse().unwrap())
        .collect();
    // Behind capacity, operations and bandwidth: eight waits, then those of scrub, trim and rebuild.
    assert!(
        cells[14] > 0 && cells[15] == 0 && cells[16] > 0,
        "{cells:?}"
    );
    rig.zpool(&["wait", "-t", "resilver,scrub", "tank"]);
    rig.zpool(&["export", "tank"]);
    rig.zdb_check("tank");
    rig.stop();
}
