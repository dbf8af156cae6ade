//! Dedup tables through the programs: what `dedup_table_quota` limits, what `zpool ddtprune` takes out, what `zpool prefetch` reads;
//! OpenZFS's `zdb` judges the pool.

use api::{PoolGet, Reply, Request};
use control::Client;
use std::path::Path;
use system_tests::Rig;
use testkit::{or_skip, OpenZfs};

const MIB: u64 = 1 << 20;

fn number(rig: &Rig, property: &str) -> u64 {
    let text = rig.zpool(&["get", "-Hp", "-o", "value", property, "tank"]);
    text.trim().parse().unwrap()
}

/// Bytes allocated when everything that was freed can be allocated again.
fn settled(rig: &Rig) -> u64 {
    for _ in 0..5 {
        rig.zpool(&["sync", "-f", "tank"]);
    }
    number(rig, "allocated")
}

fn refused(rig: &Rig, args: &[&str], code: i32, words: &str) {
    let said = rig.try_run("zpool", args).fails(code);
    assert!(said.contains(words), "{args:?}: {said}");
}

/// A pool whose files are deduplicated, in small blocks.
fn deduplicating(name: &str, more: &[&str]) -> Option<(Rig, std::path::PathBuf)> {
    let mut rig = Rig::new(name)?;
    let disks = rig.images(2, 256 * MIB);
    let mnt = rig.mnt();
    rig.start();
    let mut args = vec!["create", "-O", "dedup=on", "-O", "recordsize=4K", "-m"];
    args.extend([mnt.to_str().unwrap(), "tank", &disks[0]]);
    let class: Vec<&str> = more.to_vec();
    args.extend(class);
    if !more.is_empty() {
        args.push(&disks[1]);
    }
    rig.zpool(&args);
    Some((rig, mnt))
}

/// A file of `kib` KiB that nothing else equals, on disk.
fn unique(rig: &Rig, mnt: &Path, name: &str, kib: u64) {
    let file = mnt.join(name);
    rig.sh(&format!("head -c {kib}K /dev/urandom > {}", file.display()));
    rig.zpool(&["sync", "tank"]);
}

/// A copy that is written, not cloned.
fn copy(rig: &Rig, mnt: &Path, from: &str, to: &str) {
    rig.sh(&format!("cd {}; cat {from} > {to}", mnt.display()));
    rig.zpool(&["sync", "tank"]);
}

#[test]
fn new_blocks_have_no_entry_once_the_table_is_at_its_quota() {
    let Some((rig, mnt)) = deduplicating("dedup-quota", &[]) else {
        return;
    };
    unique(&rig, &mnt, "first", 4 << 10);
    let first = number(&rig, "dedup_table_size");
    assert!(first > 0);
    rig.zpool(&["set", &format!("dedup_table_quota={first}"), "tank"]);
    unique(&rig, &mnt, "beyond", 4 << 10);
    assert_eq!(number(&rig, "dedup_table_size"), first);
    // What has an entry is still shared, what has none is not.
    let before = number(&rig, "allocated");
    copy(&rig, &mnt, "first", "again");
    let shared = number(&rig, "allocated").saturating_sub(before);
    assert!(shared < 2 * MIB, "{shared}");
    copy(&rig, &mnt, "beyond", "beyond2");
    let apart = number(&rig, "allocated").saturating_sub(before);
    assert!(apart >= 4 * MIB, "{apart}");
    let get = |rig: &Rig| rig.zpool(&["get", "-Ho", "value", "dedup_table_quota", "tank"]);
    let words = "cannot set property for 'tank': use 'none' to disable ddt table quota";
    refused(&rig, &["set", "dedup_table_quota=0", "tank"], 1, words);
    rig.zpool(&["set", "dedup_table_quota=1M", "tank"]);
    assert_eq!(get(&rig).trim(), "1M");
    // Without a quota the next blocks have entries again.
    rig.zpool(&["set", "dedup_table_quota=none", "tank"]);
    unique(&rig, &mnt, "more", 4 << 10);
    assert!(number(&rig, "dedup_table_size") > first);
    rig.sh(&format!("cd {}; rm beyond again", mnt.display()));
    rig.zpool(&["export", "tank"]);
    rig.zdb_check("tank");
}

#[test]
fn a_dedup_device_is_the_quota_when_nothing_is_said() {
    let Some((rig, mnt)) = deduplicating("dedup-auto", &["dedup"]) else {
        return;
    };
    // Something that takes room on the dedup device, as its table would: a quota of its size is far away, 85 % of it are not.
    unique(&rig, &mnt, "first", 8 << 10);
    let value = rig.zpool(&["get", "-H", "-o", "value", "dedup_table_quota", "tank"]);
    assert_eq!(value.trim(), "auto");
    let size = number(&rig, "dedup_table_size");
    assert!(size > 0);
    let list = rig.zpool(&["list", "-vHp", "tank"]);
    assert!(list.contains("dedup"), "{list}");
    rig.zpool(&["export", "tank"]);
    rig.zdb_check("tank");
}

/// What `zpool status -D` says is what OpenZFS's `zdb` says of the exported pool.
fn as_zdb_shows_them(rig: &Rig) {
    rig.zpool(&["sync", "tank"]);
    let status = rig.zpool(&["status", "-D", "tank"]);
    let of = |text: &str| {
        let rows = text.split_once("bucket ").map(|(_, rows)| rows.to_string());
        rows.unwrap_or_else(|| panic!("no table: {text}"))
    };
    let rows = of(&status);
    assert!(rows.contains("\n Total "), "{status}");
    assert!(status.contains("\n dedup: DDT entries "), "{status}");
    rig.zpool(&["export", "tank"]);
    let Some(oz) = or_skip(OpenZfs::get()) else {
        return;
    };
    let disks = rig.disks();
    let zdb = oz.zdb(&["-e", "-p", disks.to_str().unwrap(), "-DD", "tank"]);
    let zdb = of(&zdb.unwrap());
    let (zdb, _) = zdb.split_once("dedup =").unwrap();
    assert_eq!(rows, zdb);
}

#[test]
fn pruned_blocks_stay_and_are_freed_as_any_other() {
    let Some((mut rig, mnt)) = deduplicating("ddtprune", &[]) else {
        return;
    };
    unique(&rig, &mnt, "alone", 4 << 10);
    unique(&rig, &mnt, "other", 4 << 10);
    unique(&rig, &mnt, "shared", 4 << 10);
    copy(&rig, &mnt, "shared", "shared2");
    for (args, code, words) in [
        (
            vec!["ddtprune", "tank"],
            2,
            "missing amount option (-d|-p <value>)",
        ),
        (vec!["ddtprune", "-d", "0", "tank"], 2, "invalid days value"),
        (
            vec!["ddtprune", "-p", "101", "tank"],
            2,
            "invalid percentage value",
        ),
        (
            vec!["ddtprune", "-d", "1", "-p", "1", "tank"],
            2,
            "-p cannot be combined with -d option",
        ),
        (vec!["ddtprune", "-p", "1"], 2, "missing pool argument"),
        (
            vec!["ddtprune", "-p", "1", "nope"],
            1,
            "cannot open 'nope': no such pool",
        ),
    ] {
        refused(&rig, &args, code, words);
    }
    // Nothing is a day old.
    let blocks = || rig.sh(&format!("cd {}; sha256sum alone shared", mnt.display()));
    let (sums, allocated) = (blocks(), settled(&rig));
    rig.zpool(&["ddtprune", "-d", "1", "tank"]);
    copy(&rig, &mnt, "other", "other2");
    let shared = settled(&rig).saturating_sub(allocated);
    assert!(shared < 2 * MIB, "{shared}");
    // Half of them, then all.
    let allocated = settled(&rig);
    rig.zpool(&["ddtprune", "-p", "50", "tank"]);
    copy(&rig, &mnt, "alone", "half");
    let half = settled(&rig).saturating_sub(allocated);
    assert!((MIB..7 * MIB / 2).contains(&half), "{half}");
    rig.zpool(&["ddtprune", "-p", "100", "tank"]);
    let history = rig.zpool(&["history", "tank"]);
    assert!(history.contains("zpool ddtprune -p 100 tank"), "{history}");
    // What several files share keeps its entries.
    let allocated = settled(&rig);
    copy(&rig, &mnt, "shared", "shared3");
    let shared = settled(&rig).saturating_sub(allocated);
    assert!(shared < 2 * MIB, "{shared}");
    assert_eq!(blocks(), sums);
    as_zdb_shows_them(&rig);
    rig.zdb_check("tank");
    // Blocks without entries are freed, those of several files with the last of them.
    let disks = rig.disks();
    rig.zpool(&["import", "-d", disks.to_str().unwrap(), "tank"]);
    rig.sh(&format!(
        "cd {}; rm alone half shared shared2",
        mnt.display()
    ));
    rig.zpool(&["sync", "tank"]);
    rig.zpool(&["wait", "-t", "free", "tank"]);
    rig.zpool(&["scrub", "-w", "tank"]);
    let status = rig.zpool(&["status", "tank"]);
    assert!(status.contains("errors: No known data errors"), "{status}");
    rig.sh(&format!("rm {}/shared3", mnt.display()));
    rig.zpool(&["sync", "tank"]);
    rig.zpool(&["wait", "-t", "free", "tank"]);
    rig.zpool(&["export", "tank"]);
    rig.zdb_check("tank");
    rig.stop();
}

#[test]
fn pools_without_the_feature_keep_their_entries() {
    let Some(mut rig) = Rig::new("ddtprune-old") else {
        return;
    };
    let disk = rig.image("disk", 256 * MIB);
    rig.start();
    rig.zpool(&["create", "-o", "feature@fast_dedup=disabled", "tank", &disk]);
    refused(
        &rig,
        &["ddtprune", "-p", "1", "tank"],
        1,
        "cannot prune dedup table on 'tank': ",
    );
}

/// Reads sent to the devices of the pool since it was imported.
fn reads(rig: &Rig) -> u64 {
    let ask = Request::PoolGet(PoolGet {
        pools: vec!["tank".into()],
        tree: true,
        ..PoolGet::default()
    });
    let mut client = Client::connect_at(rig.socket()).unwrap().unwrap();
    match client.call(&ask).unwrap() {
        Reply::Pools(mut pools) => pools.found.remove(0).tree.unwrap().stats.read_ops,
        other => panic!("{other:?}"),
    }
}

#[test]
fn prefetch_reads_the_tables() {
    let Some((rig, mnt)) = deduplicating("prefetch", &[]) else {
        return;
    };
    unique(&rig, &mnt, "first", 8 << 10);
    rig.zpool(&["export", "tank"]);
    let disks = rig.disks();
    rig.zpool(&["import", "-N", "-d", disks.to_str().unwrap(), "tank"]);
    refused(&rig, &["prefetch"], 2, "missing pool name argument");
    refused(
        &rig,
        &["prefetch", "-t", "arc", "tank"],
        2,
        "unsupported prefetch type",
    );
    refused(
        &rig,
        &["prefetch", "-t", "ddt", "nope"],
        1,
        "cannot open 'nope': no such pool",
    );
    let cached = |rig: &Rig| {
        let status = rig.zpool(&["status", "-DD", "tank"]);
        let (_, part) = status
            .split_once(" cached (")
            .unwrap_or_else(|| panic!("{status}"));
        part.split_once("%)").unwrap().0.parse::<f64>().unwrap()
    };
    let part = cached(&rig);
    assert!(part < 50.0, "{part}");
    let before = reads(&rig);
    rig.zpool(&["prefetch", "-t", "ddt", "tank"]);
    let first = reads(&rig) - before;
    assert!(first > 4, "{first}");
    // They are in memory now.
    assert_eq!(cached(&rig), 100.0);
    rig.zpool(&["prefetch", "-t", "ddt", "tank"]);
    let second = reads(&rig) - before - first;
    assert!(second <= first / 4, "{second} of {first}");
    rig.zpool(&["prefetch", "-t", "brt", "tank"]);
    rig.zpool(&["prefetch", "tank"]);
    let history = rig.zpool(&["history", "tank"]);
    assert!(history.contains("zpool prefetch -t ddt tank"), "{history}");
}
