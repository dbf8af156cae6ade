//! A pool is filled completely and emptied, again and again.

use rustix::fs::OFlags;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};
use system_tests::{hash, Dice, Rig};

/// How long freeing may take to come to rest.
const PATIENCE: Duration = Duration::from_secs(45);

/// Files of mixed sizes until there is no room; those that were written completely, with hashes.
fn fill(dir: &Path, dice: &mut Dice) -> Vec<(String, u64)> {
    let mut out = Vec::new();
    loop {
        let name = format!("f{}", out.len());
        let size = 1 + dice.below([3_000, 50_000, 2_000_000][out.len() % 3]) as usize;
        let bytes = dice.bytes(size);
        let done = File::create(dir.join(&name)).and_then(|mut f| {
            f.write_all(&bytes)?;
            f.sync_all()
        });
        match done {
            Ok(()) => out.push((name, hash(&bytes))),
            Err(e) if e.kind() == io::ErrorKind::StorageFull => return out,
            Err(e) => panic!("{name}: {e} instead of no space left"),
        }
        assert!(out.len() < 100_000, "the pool does not get full");
    }
}

/// Bytes in use according to dataset and pool, once freeing has come to rest. The pool's own
/// metadata (space maps grow and shrink) are in the second only.
fn used(rig: &Rig) -> (u64, u64) {
    for _ in 0..4 {
        rig.zpool(&["sync", "tank"]);
    }
    let alloc = rig.zpool(&["list", "-Hp", "-o", "alloc", "tank"]);
    (
        rig.get("used", "tank/f").parse().unwrap(),
        alloc.trim().parse().unwrap(),
    )
}

#[test]
fn filled_and_emptied() {
    let Some(mut rig) = Rig::new("full") else {
        return;
    };
    let image = rig.image("disk", 112 << 20);
    let mnt = rig.mnt();
    rig.start();
    rig.zpool(&["create", "-m", mnt.to_str().unwrap(), "tank", &image]);
    rig.zfs(&["create", "-o", "compression=off", "tank/f"]);
    let dir = mnt.join("f");
    let mut dice = Dice::new(5);
    let mut first = None;
    for round in 1..=10 {
        let files = fill(&dir, &mut dice);
        assert!(
            files.len() > 60,
            "only {} files in round {round}",
            files.len()
        );
        let (full, alloc) = used(&rig);
        // Half of so small a pool is kept back for changes of the pool itself.
        assert!(
            full > 40 << 20 && alloc > 40 << 20,
            "{full} {alloc} when full"
        );
        for (name, want) in &files {
            let got = fs::read(dir.join(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
            assert_eq!(hash(&got), *want, "{name} in round {round}");
        }
        // A full pool must let go of what nobody wants any more.
        for e in fs::read_dir(&dir).unwrap() {
            let path = e.unwrap().path();
            fs::remove_file(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        }
        // The kernel tells later than it removes that it has forgotten a file, which is when it is freed.
        std::thread::sleep(Duration::from_millis(200));
        let (mut empty, mut alloc) = used(&rig);
        let limit = *first.get_or_insert((empty + (128 << 10), alloc + (1 << 20)));
        let until = Instant::now() + PATIENCE;
        while (empty > limit.0 || alloc > limit.1) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(200));
            rig.zpool(&["sync", "tank"]);
            (empty, alloc) = used(&rig);
        }
        assert!(
            empty <= limit.0 && alloc <= limit.1,
            "round {round}: {empty} used, {alloc} allocated when empty; at first {limit:?}"
        );
        assert!(empty < 1 << 20, "{empty} bytes used by nothing");
    }
    rig.zpool(&["export", "tank"]);
    rig.zdb_check("tank");
    rig.zpool(&["import", "-d", rig.disks().to_str().unwrap(), "tank"]);
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 0);
    rig.zpool(&["export", "tank"]);
    rig.stop();
}

#[test]
fn quota_is_a_limit_of_its_own() {
    let Some(mut rig) = Rig::new("quota") else {
        return;
    };
    let image = rig.image("disk", 128 << 20);
    let mnt = rig.mnt();
    rig.start();
    rig.zpool(&["create", "-m", mnt.to_str().unwrap(), "tank", &image]);
    rig.zfs(&[
        "create",
        "-o",
        "compression=off",
        "-o",
        "quota=8M",
        "tank/q",
    ]);
    let fill = |name: &str, flags: OFlags| {
        (0..)
            .find_map(|n| {
                let bytes = Dice::new(n).bytes(500_000);
                let mut options = File::options();
                options
                    .write(true)
                    .create(true)
                    .custom_flags(flags.bits() as i32);
                let done = options
                    .open(mnt.join(format!("q/{name}{n}")))
                    .and_then(|mut f| {
                        f.write_all(&bytes)?;
                        f.sync_all()
                    });
                assert!(n < 100, "no quota");
                done.err()
            })
            .and_then(|e| e.raw_os_error())
            .unwrap()
    };
    // The kernel, which keeps what is written back later, knows no such error.
    let err = fill("", OFlags::empty());
    assert!([28, 122].contains(&err), "EDQUOT or ENOSPC, not {err}");
    assert_eq!(fill("direct", OFlags::DIRECT), 122, "EDQUOT");
    fs::remove_file(mnt.join("q/0")).unwrap();
    // The pool itself has room.
    fs::write(mnt.join("room"), vec![7; 1 << 20]).unwrap();
    rig.zpool(&["destroy", "tank"]);
    rig.stop();
}

/// Where there is room the kernel may hold more of what was written; it is told when that ends.
#[test]
fn the_kernel_holds_as_much_as_there_is_room_for() {
    let Some(mut rig) = Rig::new("dirty") else {
        return;
    };
    let image = rig.image("disk", 64 << 30);
    let mnt = rig.mnt();
    rig.start();
    rig.zpool(&["create", "-m", mnt.to_str().unwrap(), "tank", &image]);
    let dev = fs::metadata(&mnt).unwrap().dev();
    let (major, minor) = (rustix::fs::major(dev), rustix::fs::minor(dev));
    let file = format!("/sys/class/bdi/{major}:{minor}/max_ratio");
    if File::options().write(true).open(&file).is_err() {
        println!("skipped: {file} cannot be written");
        return;
    }
    let comes = |what: &str, right: fn(u64) -> bool| {
        let until = Instant::now() + PATIENCE;
        loop {
            // A txg wakes who looks.
            fs::write(mnt.join("f"), what).unwrap();
            rig.zpool(&["sync", "tank"]);
            let now = fs::read_to_string(&file).unwrap().trim().parse().unwrap();
            if right(now) {
                return;
            }
            assert!(Instant::now() < until, "{what}: {now} percent");
            std::thread::sleep(Duration::from_millis(200));
        }
    };
    comes("an empty pool", |n| n > 1);
    rig.zfs(&["set", "quota=16M", "tank"]);
    comes("a quota", |n| n == 1);
    rig.zfs(&["set", "quota=none", "tank"]);
    comes("no quota", |n| n > 1);
    rig.zfs(&["set", "userquota@1234=1G", "tank"]);
    comes("a user's quota", |n| n == 1);
    rig.zfs(&["set", "userquota@1234=none", "tank"]);
    comes("no user's quota", |n| n > 1);
    rig.zpool(&["destroy", "tank"]);
    rig.stop();
}

/// Blocks that are rewritten in one txg again and again take space with each turn, which comes back
/// two txgs later: a txg must find room for what it has to write itself.
#[test]
fn rewritten_when_nearly_full() {
    let Some(mut rig) = Rig::new("rewritten") else {
        return;
    };
    let image = rig.image("disk", 320 << 20);
    let mnt = rig.mnt();
    rig.start();
    rig.zpool(&["create", "-m", mnt.to_str().unwrap(), "tank", &image]);
    rig.zfs(&[
        "create",
        "-o",
        "compression=off",
        "-o",
        "recordsize=4K",
        "tank/f",
    ]);
    let dir = mnt.join("f");
    let mut dice = Dice::new(7);
    let piece = dice.bytes(1 << 20);
    let available = |rig: &Rig| rig.get("available", "tank/f").parse::<u64>().unwrap();
    let mut ballast = File::create(dir.join("ballast")).unwrap();
    for _ in 0..(available(&rig) >> 20) - 72 {
        ballast.write_all(&piece).unwrap();
    }
    ballast.sync_all().unwrap();
    drop(ballast);
    rig.zpool(&["sync", "tank"]);
    let left = available(&rig);
    assert!((40 << 20..80 << 20).contains(&left), "{left}");
    let again = File::options()
        .write(true)
        .create(true)
        .truncate(true)
        .custom_flags(OFlags::DIRECT.bits() as i32)
        .open(dir.join("again"))
        .unwrap();
    for round in 0..100 {
        for n in 0..6 {
            let r = again.write_all_at(&piece, n << 20);
            r.unwrap_or_else(|e| panic!("round {round}: {e}\n{}", rig.log()));
        }
    }
    again.sync_all().unwrap();
    drop(again);
    let status = rig.zpool(&["status", "tank"]);
    assert!(status.contains("state: ONLINE"), "{status}");
    rig.zpool(&["sync", "tank"]);
    rig.zpool(&["export", "tank"]);
    rig.zdb_check("tank");
    rig.zpool(&["import", "-d", rig.disks().to_str().unwrap(), "tank"]);
    let got = fs::read(dir.join("again")).unwrap();
    assert!(got.len() == 6 << 20 && got.chunks(1 << 20).all(|c| c == piece));
    rig.zpool(&["export", "tank"]);
    rig.stop();
}
