//! Volumes: made, given another size, filled by streams, kept in snapshots and clones. They have no devices yet.

use system_tests::Rig;

const MIB: u64 = 1 << 20;

/// A pool `tank` on so many disks of 128 MiB.
fn tank(name: &str, layout: &[&str], disks: usize) -> Option<Rig> {
    let mut rig = Rig::new(name)?;
    let disks = rig.images(disks, 128 * MIB);
    let mnt = rig.mnt().join("tank");
    rig.start();
    let mut args = vec!["create", "-m", mnt.to_str().unwrap(), "tank"];
    args.extend(layout);
    args.extend(disks.iter().map(String::as_str));
    rig.zpool(&args);
    Some(rig)
}

fn numbers(rig: &Rig, volume: &str) -> Vec<u64> {
    let names = "volsize,volblocksize,refreservation";
    let said = rig.zfs(&["get", "-Hp", "-o", "value", names, volume]);
    let values = said.lines().map(|v| v.parse().unwrap_or(0));
    values.collect()
}

#[test]
fn volumes_have_the_size_blocks_and_space_that_are_asked_for() {
    let Some(rig) = tank("volumes", &[], 1) else {
        return;
    };
    rig.zfs(&["create", "-V", "32M", "tank/v"]);
    // 2048 blocks of data; 7 + 2 + 1 of metadata, twice.
    assert_eq!(
        numbers(&rig, "tank/v"),
        [32 * MIB, 16384, 32 * MIB + 20 * 131072]
    );
    assert_eq!(rig.get("type", "tank/v"), "volume");
    assert_eq!(rig.get("usedbyrefreservation", "tank/v"), "36163584");
    // Rounded up to whole blocks; without space of its own.
    rig.zfs(&[
        "create",
        "-p",
        "-s",
        "-b",
        "8K",
        "-V",
        "1000001",
        "tank/a/b/v",
    ]);
    assert_eq!(numbers(&rig, "tank/a/b/v"), [1_007_616, 8192, 0]);
    rig.zfs(&[
        "create",
        "-o",
        "volblocksize=512",
        "-o",
        "refreservation=1M",
        "-V",
        "64K",
        "tank/w",
    ]);
    assert_eq!(numbers(&rig, "tank/w"), [65536, 512, MIB]);
    assert_eq!(
        rig.zfs(&["create", "-nvP", "-b", "4K", "-V", "4097", "tank/n"]),
        format!(
            "create\ttank/n\nproperty\tvolblocksize\t4096\nproperty\trefreservation\t{}\nproperty\tvolsize\t8192\n",
            8192 + 2 * (7 + 1) * 131072
        )
    );
    // What is reserved follows the size, if it was what the size asks for.
    rig.zfs(&["set", "volsize=16M", "tank/v"]);
    assert_eq!(
        numbers(&rig, "tank/v"),
        [16 * MIB, 16384, 16 * MIB + 16 * 131072]
    );
    rig.zfs(&["set", "volsize=128K", "tank/w"]);
    assert_eq!(numbers(&rig, "tank/w"), [131072, 512, MIB]);
    rig.zfs(&["set", "refreservation=auto", "tank/w"]);
    assert_eq!(numbers(&rig, "tank/w"), [131072, 512, 131072 + 16 * 131072]);
    rig.zfs(&["set", "refreservation=none", "tank/w"]);
    // Over exports, kills and with a key.
    std::fs::write(rig.path().join("key"), "12345678\n").unwrap();
    let key = format!("keylocation=file://{}/key", rig.path().display());
    rig.zfs(&[
        "create",
        "-o",
        "encryption=on",
        "-o",
        "keyformat=passphrase",
        "-o",
        &key,
        "-V",
        "1M",
        "tank/secret",
    ]);
    rig.zfs(&["snapshot", "-r", "tank@s"]);
    rig.zfs(&["clone", "tank/v@s", "tank/c"]);
    rig.zfs(&["promote", "tank/c"]);
    rig.zfs(&["rename", "tank/w", "tank/a/w"]);
    rig.zpool(&["export", "tank"]);
    rig.zdb_check("tank");
    let disks = rig.disks();
    rig.zpool(&["import", "-l", "-d", disks.to_str().unwrap(), "tank"]);
    assert_eq!(numbers(&rig, "tank/c")[..2], [16 * MIB, 16384]);
    assert_eq!(numbers(&rig, "tank/secret")[..2], [MIB, 16384]);
    rig.zfs(&["set", "volsize=2M", "tank/secret"]);
    for volume in ["tank/v", "tank/c", "tank/a", "tank/secret"] {
        rig.zfs(&["destroy", "-r", volume]);
    }
    rig.zfs(&["destroy", "tank@s"]);
    assert_eq!(
        rig.zfs(&["list", "-H", "-o", "name", "-t", "all"]),
        "tank\n"
    );
    rig.zpool(&["export", "tank"]);
    rig.zdb_check("tank");
}

#[test]
fn on_raidz_more_is_reserved() {
    let Some(rig) = tank("volumes-raidz", &["-o", "ashift=12", "raidz1"], 3) else {
        return;
    };
    rig.zfs(&["create", "-V", "16M", "-b", "8K", "tank/v"]);
    // A block of 8 KiB takes 16 KiB, one of 128 KiB takes 192 KiB.
    let data = 2048 * 16384 * 131072 / 196_608;
    assert_eq!(
        numbers(&rig, "tank/v"),
        [16 * MIB, 8192, data + 2 * (7 + 2 + 1) * 131072]
    );
}

#[test]
fn what_cannot_be_is_refused() {
    let Some(rig) = tank("volumes-refused", &[], 1) else {
        return;
    };
    rig.zfs(&["create", "-s", "-V", "1M", "tank/v"]);
    for (args, code, words) in [
        (
            &["create", "-V", "1M", "tank/v"][..],
            1,
            "cannot create 'tank/v': dataset already exists",
        ),
        (
            &["create", "-V", "1M", "tank/v/w"],
            1,
            "parent is not a filesystem",
        ),
        (
            &["create", "-V", "much", "tank/w"],
            1,
            "bad volume size 'much'",
        ),
        (&["create", "-V", "0", "tank/w"], 1, "zero"),
        (&["create", "-V", "1G", "tank/w"], 1, "out of space"),
        (
            &["create", "-V", "1M", "-b", "3000", "tank/w"],
            1,
            "'volblocksize' must be",
        ),
        (
            &["create", "-V", "1M", "-o", "recordsize=4K", "tank/w"],
            1,
            "does not apply",
        ),
        (
            &["create", "-V", "1M", "-o", "volsize=2M", "tank/w"],
            1,
            "specified multiple times",
        ),
        (
            &["create", "-V", "1M", "-o", "quota=2M", "tank/w"],
            1,
            "does not apply",
        ),
        (
            &["create", "-o", "volblocksize=4K", "tank/w"],
            1,
            "does not apply",
        ),
        (&["set", "volsize=0", "tank/v"], 1, "zero"),
        (
            &["set", "volsize=1000", "tank/v"],
            1,
            "must be a multiple of volume block size",
        ),
        (&["set", "volblocksize=4K", "tank/v"], 1, "readonly"),
        (&["set", "volsize=1M", "tank"], 1, "does not apply"),
        (
            &["mount", "tank/v"],
            1,
            "operation not applicable to datasets of this type",
        ),
    ] {
        let said = rig.try_run("zfs", args).fails(code);
        assert!(said.contains(words), "zfs {args:?} says {said:?}");
    }
    assert_eq!(numbers(&rig, "tank/v"), [MIB, 16384, 0]);
    assert_eq!(rig.zfs(&["list", "-H", "-o", "name"]), "tank\ntank/v\n");
}
