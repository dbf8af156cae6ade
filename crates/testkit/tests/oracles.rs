//! The rig itself: what it says of good and of broken pools.

use testkit::{fixture, or_skip, OldZfsFuse, OpenZfs, TempDir};

#[test]
fn zdb_passes_a_good_pool_and_not_a_broken_one() {
    let Some(oz) = or_skip(OpenZfs::get()) else {
        return;
    };
    let Some(good) = or_skip(fixture::unpack("empty-pool")) else {
        return;
    };
    let text = std::fs::read_to_string(fixture::file("empty-pool", "manifest.json").unwrap());
    let text = text.unwrap();
    let pool = between(&text, "\"pool\": \"", "\"");
    let report = oz.check(good.path(), pool).unwrap();
    assert!(report.contains("bp count:"), "{report}");
    let labels = oz.labels(&good.path().join("d0.img")).unwrap();
    assert!(labels.contains("Uberblock[") && labels.contains(pool));

    let Some(bad) = or_skip(fixture::unpack("damage-one-block")) else {
        return;
    };
    let text = std::fs::read_to_string(fixture::file("damage-one-block", "manifest.json").unwrap());
    let text = text.unwrap();
    let pool = between(&text, "\"pool\": \"", "\"");
    assert!(oz.check(bad.path(), pool).is_err());
    assert!(oz.check(bad.path(), "no-such-pool").is_err());
    assert!(oz.labels(&bad.image("blank", 64 << 20).unwrap()).is_err());
}

#[test]
fn zdb_says_the_same_when_it_may_end_at_once() {
    let Some(oz) = or_skip(OpenZfs::get()) else {
        return;
    };
    for fixture in ["empty-pool", "damage-one-block"] {
        let Some(dir) = or_skip(fixture::unpack(fixture)) else {
            return;
        };
        let text = std::fs::read_to_string(fixture::file(fixture, "manifest.json").unwrap());
        let text = text.unwrap();
        let pool = between(&text, "\"pool\": \"", "\"");
        let mut c = oz.command("zdb").unwrap();
        let quick = c.arg("-e").arg("-p").arg(dir.path()).args(["-bcc", pool]);
        let quick = quick.output().unwrap();
        let slow = c.env_remove("LD_PRELOAD").output().unwrap();
        let lines = |o: &std::process::Output| {
            let text = String::from_utf8_lossy(&o.stdout).into_owned();
            // Progress depends on the time it takes.
            let kept = text.lines().filter(|l| !l.contains('\r'));
            let mut kept: Vec<String> = kept.map(str::to_string).collect();
            // Threads find damage in any order.
            kept.sort();
            kept
        };
        assert_eq!(lines(&quick), lines(&slow), "{fixture}");
        assert_eq!(quick.status, slow.status, "{fixture}");
        assert_eq!(quick.stderr.is_empty(), slow.stderr.is_empty(), "{fixture}");
    }
}

fn between<'a>(text: &'a str, from: &str, to: &str) -> &'a str {
    let (_, rest) = text.split_once(from).unwrap();
    rest.split_once(to).unwrap().0
}

#[test]
fn the_old_zfs_fuse_makes_pools_that_zdb_accepts() {
    let Some(old) = or_skip(OldZfsFuse::start()) else {
        return;
    };
    let Some(oz) = or_skip(OpenZfs::get()) else {
        return;
    };
    let dir = TempDir::new("old-pool").unwrap();
    let image = dir.image("disk", 128 << 20).unwrap();
    let image = image.to_str().unwrap();
    old.zpool(&["create", "-o", "version=23", "oldtank", image])
        .unwrap();
    let version = old.zpool(&["get", "version", "oldtank"]).unwrap();
    assert!(version.contains("23"), "{version}");
    old.sh("for i in $(seq 30); do seq $((i * 999)) > /oldtank/f$i; done; mkdir /oldtank/d")
        .unwrap();
    old.zfs(&["snapshot", "oldtank@one"]).unwrap();
    assert!(old.outside("/oldtank/f30").is_file());
    assert!(!std::path::Path::new("/oldtank").exists());
    old.zpool(&["export", "oldtank"]).unwrap();
    oz.check(dir.path(), "oldtank").unwrap();
    let labels = oz.labels(image.as_ref()).unwrap();
    assert!(labels.contains("version: 23"), "{labels}");
    // and back in
    old.zpool(&["import", "-d", dir.path().to_str().unwrap(), "oldtank"])
        .unwrap();
    assert_eq!(old.sh("ls /oldtank | wc -l").unwrap().trim(), "31");
    old.zpool(&["export", "oldtank"]).unwrap();
    old.stop().unwrap();
}
