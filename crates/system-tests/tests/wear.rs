//! Trim, autotrim and initialize through the programs: images shrink on the host, nothing is lost, and OpenZFS's `zdb` finds nothing
//! wrong.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use system_tests::tree::{self, Kinds};
use system_tests::{until, Rig};

const MIB: u64 = 1 << 20;
const KINDS: Kinds = Kinds {
    xattrs: true,
    acls: false,
    huge: false,
};

/// What `zpool status -t` says of a device.
fn note(rig: &Rig, device: &str) -> String {
    let status = rig.zpool(&["status", "-t", "tank"]);
    let row = status.lines().find(|l| l.contains(device));
    row.unwrap().to_string()
}

/// Bytes that files take on the host.
fn taken(images: &[String]) -> u64 {
    let blocks = |i: &String| fs::metadata(i).unwrap().blocks() * 512;
    images.iter().map(blocks).sum()
}

/// 60 MiB that cannot be compressed.
fn ballast(rig: &Rig, mnt: &Path) {
    let file = mnt.join("ballast");
    rig.sh(&format!("head -c 60M /dev/urandom > {}", file.display()));
    rig.zpool(&["sync"]);
}

/// Removes it, and makes it space that can be allocated.
fn drop_ballast(rig: &Rig, mnt: &Path) {
    fs::remove_file(mnt.join("ballast")).unwrap();
    for _ in 0..6 {
        rig.zpool(&["sync", "-f"]);
    }
    rig.zpool(&["wait", "-t", "free", "tank"]);
}

/// What the programs and OpenZFS find when all is over.
fn is_clean(rig: &mut Rig, mnt: &Path, want: &tree::Description) {
    rig.zpool(&["scrub", "-w", "tank"]);
    let status = rig.zpool(&["status", "tank"]);
    assert!(status.contains("scrub repaired 0B in "), "{status}");
    assert!(status.contains("errors: No known data errors"), "{status}");
    let now = tree::describe(mnt).unwrap();
    tree::assert_same(want, &now, "behind a trim");
    rig.zpool(&["export", "tank"]);
    rig.zdb_check("tank");
}

fn layouts() -> [(&'static str, usize); 4] {
    [
        ("", 1),
        ("mirror", 2),
        ("raidz1", 3),
        ("draid1:2d:4c:1s", 4),
    ]
}

fn create(rig: &Rig, layout: &str, images: &[String], more: &[&str], mnt: &Path) {
    let mut args = vec!["create"];
    args.extend(more);
    args.extend(["-m", mnt.to_str().unwrap(), "tank"]);
    args.extend((!layout.is_empty()).then_some(layout));
    args.extend(images.iter().map(String::as_str));
    rig.zpool(&args);
}

#[test]
fn trim_gives_the_space_of_images_back_on_every_layout() {
    for (layout, count) in layouts() {
        let Some(mut rig) = Rig::new("trim") else {
            return;
        };
        let d = rig.images(count, 256 * MIB);
        let mnt = rig.mnt();
        rig.start();
        create(&rig, layout, &d, &["-o", "autotrim=off"], &mnt);
        tree::write(&mnt, 80, 71, KINDS).unwrap();
        let want = tree::describe(&mnt).unwrap();
        ballast(&rig, &mnt);
        drop_ballast(&rig, &mnt);
        let before = taken(&d);
        assert!(before > 60 * MIB, "{layout}: {before}");
        let status = rig.zpool(&["status", "-t", "tank"]);
        assert!(status.contains("  (untrimmed)"), "{status}");
        rig.zpool(&["trim", "-w", "tank"]);
        let behind = taken(&d);
        assert!(
            behind + 50 * MIB < before,
            "{layout}: {before} and {behind}"
        );
        let status = rig.zpool(&["status", "-t", "tank"]);
        let done = status.matches("  (100% trimmed, completed at ").count();
        assert_eq!(done, count, "{status}");
        let json = rig.zpool(&["status", "-t", "-j", "tank"]);
        assert!(json.contains("\"trim_state\":\"COMPLETE\""), "{json}");
        let events = rig.zpool(&["events"]);
        for word in ["sysevent.fs.zfs.trim_start", "sysevent.fs.zfs.trim_finish"] {
            assert_eq!(events.matches(word).count(), count, "{events}");
        }
        let history = rig.zpool(&["history", "-i", "tank"]);
        for words in [
            "zpool trim -w tank".to_string(),
            format!("] trim vdev={} activated", d[0]),
            format!("] trim vdev={} complete", d[0]),
        ] {
            assert!(history.contains(&words), "{words}: {history}");
        }
        is_clean(&mut rig, &mnt, &want);
    }
}

/// Where nobody said anything about autotrim images shrink by themselves; who says no is obeyed.
#[test]
fn images_shrink_by_themselves_unless_autotrim_is_off() {
    for (layout, count) in layouts() {
        for off in [false, true] {
            let Some(mut rig) = Rig::new("autotrim") else {
                return;
            };
            let d = rig.images(count, 256 * MIB);
            let mnt = rig.mnt();
            rig.start();
            let more: &[&str] = if off { &["-o", "autotrim=off"] } else { &[] };
            create(&rig, layout, &d, more, &mnt);
            tree::write(&mnt, 80, 71, KINDS).unwrap();
            let want = tree::describe(&mnt).unwrap();
            ballast(&rig, &mnt);
            let before = taken(&d);
            drop_ballast(&rig, &mnt);
            if off {
                std::thread::sleep(std::time::Duration::from_secs(25));
                assert!(taken(&d) >= before, "{layout}: {before} and {}", taken(&d));
            } else {
                until("images shrink", || taken(&d) + 45 * MIB < before);
            }
            is_clean(&mut rig, &mnt, &want);
        }
    }
}

#[test]
fn initialize_writes_to_all_free_space_and_is_told_of() {
    let Some(mut rig) = Rig::new("initialize") else {
        return;
    };
    let d = rig.images(2, 128 * MIB);
    let mnt = rig.mnt();
    rig.start();
    create(&rig, "mirror", &d, &[], &mnt);
    tree::write(&mnt, 80, 71, KINDS).unwrap();
    let want = tree::describe(&mnt).unwrap();
    let status = rig.zpool(&["status", "-i", "tank"]);
    assert!(status.contains("  (uninitialized)"), "{status}");
    rig.zpool(&["initialize", "tank", &d[0]]);
    rig.zpool(&["wait", "-t", "initialize", "tank"]);
    let status = rig.zpool(&["status", "-i", "tank"]);
    assert_eq!(
        status.matches("  (100% initialized, completed at ").count(),
        1,
        "{status}"
    );
    assert!(taken(&d[..1]) > 90 * MIB && taken(&d[1..]) < 60 * MIB);
    rig.zpool(&["initialize", "-u", "tank", &d[0]]);
    let status = rig.zpool(&["status", "-i", "tank"]);
    assert_eq!(status.matches("  (uninitialized)").count(), 2, "{status}");
    // A trim takes it all back.
    rig.zpool(&["trim", "-w", "tank", &d[0]]);
    assert!(taken(&d[..1]) < 60 * MIB);
    is_clean(&mut rig, &mnt, &want);
}

#[test]
fn a_slow_trim_is_suspended_goes_on_behind_a_crash_and_is_canceled() {
    let Some(mut rig) = Rig::new("slow-trim") else {
        return;
    };
    let d = rig.images(2, 128 * MIB);
    let mnt = rig.mnt();
    rig.start();
    create(&rig, "mirror", &d, &[], &mnt);
    let note = |rig: &Rig| note(rig, &d[0]);
    let refused = |rig: &Rig, args: &[&str], words: &str| {
        let said = rig.try_run("zpool", args).fails(1);
        assert!(said.contains(words), "{args:?}: {said}");
    };
    let no_trim = format!("cannot trim '{}': there is no active trim", d[0]);
    refused(&rig, &["trim", "-c", "tank", &d[0]], &no_trim);
    refused(
        &rig,
        &["trim", "tank", "/nosuch"],
        "cannot trim '/nosuch': no such device in pool",
    );
    refused(
        &rig,
        &["trim", "-d", "tank", &d[0]],
        "trim operations are not supported by this device",
    );
    rig.zpool(&["trim", "-r", "1M", "tank", &d[0]]);
    let busy = format!("cannot trim '{}': currently trimming", d[0]);
    refused(&rig, &["trim", "tank", &d[0]], &busy);
    assert!(
        note(&rig).contains("% trimmed, started at "),
        "{}",
        note(&rig)
    );
    rig.zpool(&["trim", "-s", "tank", &d[0]]);
    let suspended = note(&rig);
    assert!(
        suspended.contains("% trimmed, suspended, started at "),
        "{suspended}"
    );
    rig.zpool(&["trim", "tank", &d[0]]);
    rig.zpool(&["sync"]);
    rig.kill();
    rig.start();
    until("the pool is back", || {
        rig.zpool(&["list", "-H", "-o", "name"]).contains("tank")
    });
    assert!(
        note(&rig).contains("% trimmed, started at "),
        "{}",
        note(&rig)
    );
    rig.zpool(&["trim", "-c", "tank", &d[0]]);
    assert!(note(&rig).contains("(untrimmed)"), "{}", note(&rig));
    let no_initialize = format!(
        "cannot initialize '{}': there is no active initialization",
        d[0]
    );
    refused(&rig, &["initialize", "-s", "tank", &d[0]], &no_initialize);
    rig.zpool(&["trim", "-a", "-w"]);
    let want = tree::describe(&mnt).unwrap();
    is_clean(&mut rig, &mnt, &want);
}

/// Progress belongs to the device: it stays when the device's mirror goes, and over an export. A device that is put out of use
/// begins anew.
#[test]
fn progress_stays_with_the_device_and_ends_with_a_fault() {
    let Some(mut rig) = Rig::new("trim-stays") else {
        return;
    };
    let d = rig.images(2, 512 * MIB);
    let mnt = rig.mnt();
    rig.start();
    create(&rig, "mirror", &d, &[], &mnt);
    let note = |rig: &Rig| note(rig, &d[0]);
    let percent = |rig: &Rig| {
        let note = note(rig);
        let number = note.split_once("% trimmed").map(|(n, _)| n);
        let number = number.and_then(|n| n.rsplit_once('('));
        number
            .unwrap_or_else(|| panic!("{note}"))
            .1
            .parse::<u64>()
            .unwrap()
    };
    rig.zpool(&["trim", "-r", "32M", "tank", &d[0]]);
    until("some of it is trimmed", || percent(&rig) > 5);
    rig.zpool(&["trim", "-s", "tank", &d[0]]);
    let before = percent(&rig);
    rig.zpool(&["detach", "tank", &d[1]]);
    assert_eq!(percent(&rig), before, "behind a detach");
    let dir = Path::new(&d[0]).parent().unwrap();
    rig.zpool(&["export", "tank"]);
    rig.zpool(&["import", "-d", dir.to_str().unwrap(), "tank"]);
    assert_eq!(percent(&rig), before, "behind an import");
    rig.zpool(&["attach", "-w", "tank", &d[0], &d[1]]);
    assert_eq!(percent(&rig), before, "behind an attach");
    rig.zpool(&["trim", "tank", &d[0]]);
    rig.zpool(&["offline", "-f", "tank", &d[0]]);
    assert!(note(&rig).contains("(untrimmed)"), "{}", note(&rig));
    rig.zpool(&["online", "tank", &d[0]]);
    rig.zpool(&["clear", "tank", &d[0]]);
    assert!(note(&rig).contains("(untrimmed)"), "{}", note(&rig));
}

/// Names of other devices than those of vdevs spoil the whole command; `status` tells of all devices.
#[test]
fn spares_and_cache_devices_are_not_trimmed_and_nothing_is_done_beside_a_wrong_name() {
    let Some(mut rig) = Rig::new("trim-aux") else {
        return;
    };
    let d = rig.images(3, 128 * MIB);
    let (cache, spare) = (d[1].as_str(), d[2].as_str());
    rig.start();
    rig.zpool(&[
        "create",
        "-O",
        "mountpoint=none",
        "tank",
        &d[0],
        "cache",
        cache,
        "spare",
        spare,
    ]);
    for word in ["trim", "initialize"] {
        let refused = |args: &[&str], words: &[&str]| {
            let said = rig.try_run("zpool", &[&[word, "tank"], args].concat());
            let said = said.fails(1);
            for words in words {
                let line = format!("cannot {word} {words}\n");
                assert!(said.contains(&line), "{word} {args:?}: {said}");
            }
            assert_eq!(said.lines().count(), words.len(), "{said}");
        };
        let of_cache = format!("'{cache}': device is in use as a cache");
        let of_spare = format!("'{spare}': device is reserved as a hot spare");
        refused(&[cache], &[&of_cache]);
        refused(&[&d[0], spare, cache], &[&of_spare, &of_cache]);
        refused(&[&d[0], "nope"], &["'nope': no such device in pool"]);
    }
    let status = rig.zpool(&["status", "-it", "tank"]);
    let row = |start: &str| {
        let row = status.lines().find(|l| l.trim().starts_with(start));
        row.unwrap_or_else(|| panic!("{start}: {status}"))
            .to_string()
    };
    let untouched = "(uninitialized)  (untrimmed)";
    assert!(row(&d[0]).ends_with(untouched), "{status}");
    let want = format!("{spare}  AVAIL     {untouched}");
    assert_eq!(row(spare).trim(), want, "{status}");
}

/// A device that was not opened since the import says nothing of discards.
#[test]
fn a_device_that_was_faulted_before_the_import_has_no_trim_support() {
    let Some(mut rig) = Rig::new("trim-faulted") else {
        return;
    };
    let d = rig.images(2, 256 * MIB);
    let mnt = rig.mnt();
    rig.start();
    create(&rig, "mirror", &d, &[], &mnt);
    rig.zpool(&["offline", "-f", "tank", &d[0]]);
    assert!(
        note(&rig, &d[0]).contains("(untrimmed)"),
        "{}",
        note(&rig, &d[0])
    );
    rig.zpool(&["export", "tank"]);
    let dir = rig.disks();
    rig.zpool(&["import", "-d", dir.to_str().unwrap(), "tank"]);
    let faulted = note(&rig, &d[0]);
    assert!(faulted.contains("(trim unsupported)"), "{faulted}");
    let other = note(&rig, &d[1]);
    assert!(other.contains("(untrimmed)"), "{other}");
    let get = |disk: &str| rig.zpool(&["get", "-Ho", "value", "trim_support", "tank", disk]);
    assert_eq!(
        (get(&d[0]).trim(), get(&d[1]).trim()),
        ("off", "on"),
        "trim_support"
    );
    rig.zpool(&["clear", "tank", &d[0]]);
    let back = note(&rig, &d[0]);
    assert!(back.contains("(untrimmed)"), "{back}");
}

/// A loop device gives the space of its file back as well, when it is asked to.
#[test]
fn a_loop_device_is_trimmed_on_request() {
    let Some(mut rig) = Rig::as_root("trim-loop") else {
        return;
    };
    let Some(device) = rig.loop_device("loop", 256 * MIB) else {
        return;
    };
    let image = rig.disks().join("loop").to_str().unwrap().to_string();
    let mnt = rig.mnt();
    rig.start();
    create(&rig, "", std::slice::from_ref(&device), &[], &mnt);
    let want = tree::describe(&mnt).unwrap();
    ballast(&rig, &mnt);
    drop_ballast(&rig, &mnt);
    let before = taken(std::slice::from_ref(&image));
    rig.zpool(&["trim", "-w", "tank"]);
    let behind = taken(std::slice::from_ref(&image));
    assert!(behind + 50 * MIB < before, "{before} and {behind}");
    rig.zpool(&["set", "autotrim=on", "tank"]);
    ballast(&rig, &mnt);
    drop_ballast(&rig, &mnt);
    until("the file shrinks", || {
        taken(std::slice::from_ref(&image)) < behind + 15 * MIB
    });
    is_clean(&mut rig, &mnt, &want);
}
