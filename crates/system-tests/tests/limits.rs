//! The daemon in a control group with little memory, while much is copied: half a gigabyte at a time,
//! `ZFS_FUSE_TEST_SCALE=40` makes it 20 GiB.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::Path;
use system_tests::{hash, number, Dice, Group, Rig};

const MIB: u64 = 1 << 20;
/// Memory of the daemon, page cache and what the kernel keeps for it included.
const LIMIT: u64 = 256 * MIB;

/// Half of it does not compress. The same every time it is asked for.
fn piece(seed: u64) -> Vec<u8> {
    let mut dice = Dice::new(seed);
    let mut out = Vec::with_capacity(1 << 20);
    while out.len() < 512 << 10 {
        out.extend_from_slice(&dice.draw().to_le_bytes());
    }
    while out.len() < 1 << 20 {
        let line = format!("line {} of a text that repeats itself\n", dice.below(50));
        out.extend_from_slice(line.as_bytes());
    }
    out.truncate(1 << 20);
    out
}

fn write(path: &Path, seed: u64, pieces: u64) -> io::Result<()> {
    let mut file = File::create(path)?;
    for n in 0..pieces {
        file.write_all(&piece(seed << 32 | n))?;
    }
    file.sync_all()
}

fn check(path: &Path, seed: u64, pieces: u64) -> io::Result<()> {
    let mut file = File::open(path)?;
    let mut got = vec![0; 1 << 20];
    for n in 0..pieces {
        file.read_exact(&mut got)?;
        let want = piece(seed << 32 | n);
        if hash(&got) != hash(&want) {
            return Err(io::Error::other(format!("piece {n} is another one")));
        }
    }
    Ok(())
}

fn much_is_copied(name: &str, options: &[&str]) {
    let Some(mut rig) = Rig::as_root(name) else {
        return;
    };
    let Some(group) = Group::with_memory(name, LIMIT) else {
        return;
    };
    let scale = number("ZFS_FUSE_TEST_SCALE", 1);
    let pieces = 128 * scale;
    let image = rig.image("disk", 4 * pieces * MIB * 2 + (1 << 30));
    let mnt = rig.mnt();
    rig.daemon_options(options);
    rig.daemon_group(&group);
    rig.start();
    // Root's daemon asks never to be killed for memory. Here it shall be, so that it shows.
    fs::write(format!("/proc/{}/oom_score_adj", rig.pid()), "0").unwrap();
    rig.zpool(&["create", "-m", mnt.to_str().unwrap(), "tank", &image]);
    rig.zfs(&["create", "-o", "compression=lz4", "tank/d"]);
    let dir = mnt.join("d");
    std::thread::scope(|s| {
        let work: Vec<_> = (0..4)
            .map(|n| {
                let path = dir.join(format!("big{n}"));
                s.spawn(move || write(&path, n, pieces))
            })
            .collect();
        for w in work {
            if let Err(e) = w.join().unwrap() {
                panic!("{e}; {} killed; {}", group.oom_kills(), rig.log());
            }
        }
    });
    for d in 0..10 {
        let sub = dir.join(format!("small{d}"));
        fs::create_dir(&sub).unwrap();
        for n in 0..200 * scale {
            fs::write(sub.join(format!("{n}")), format!("{d}/{n}")).unwrap();
        }
    }
    let bytes = rig.get("used", "tank/d");
    // Nothing of it is in a cache.
    rig.zpool(&["export", "tank"]);
    rig.zpool(&["import", "-d", rig.disks().to_str().unwrap(), "tank"]);
    for n in 0..4 {
        let path = dir.join(format!("big{n}"));
        check(&path, n, pieces).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    }
    let found: usize = (0..10)
        .map(|d| fs::read_dir(dir.join(format!("small{d}"))).unwrap().count())
        .sum();
    assert_eq!(found as u64, 2000 * scale);
    eprintln!(
        "{name}: {} MiB written ({bytes} bytes on disk): peak {} MiB RSS, {:?} MiB of the group",
        4 * pieces,
        rig.memory("VmHWM") >> 20,
        group.peak().map(|p| p >> 20)
    );
    assert_eq!(group.oom_kills(), 0);
    assert!(
        group.peak().is_none_or(|p| p > 32 * MIB),
        "not in the group"
    );
    rig.zpool(&["export", "tank"]);
    rig.stop();
}

/// Without being told, the daemon has to find out how much there is.
#[test]
fn by_itself() {
    much_is_copied("limit-none", &[]);
}

/// What it is told is more than there is.
#[test]
fn with_max_arc_size() {
    much_is_copied("limit-arc", &["--max-arc-size=512"]);
}
