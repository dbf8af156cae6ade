//! O_DIRECT beside the page cache.

use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::atomic::{AtomicBool, Ordering};
use system_tests::Rig;

const O_DIRECT: i32 = 0o40000;
const WRITERS: u64 = 3;
const PIECE: usize = 16 << 10;

/// As xfstests' generic/451 has it.
#[test]
fn a_buffered_read_after_an_asynchronous_direct_write_sees_it() {
    let Some(mut rig) = Rig::new("direct-io") else {
        return;
    };
    let disk = rig.image("d0", 256 << 20);
    let mnt = rig.mnt();
    rig.start();
    rig.zpool(&["create", "-m", mnt.to_str().unwrap(), "tank", &disk]);
    let path = mnt.join("f");
    let size = WRITERS as usize * PIECE;
    std::fs::write(&path, vec![0; size]).unwrap();
    let open = |flags| {
        let mut o = File::options();
        o.read(true).write(true).custom_flags(flags);
        o.open(&path).unwrap()
    };
    let (direct, buffered) = (open(O_DIRECT), open(0));
    buffered.sync_all().unwrap();
    let stop = AtomicBool::new(false);
    let stale: u64 = std::thread::scope(|s| {
        for _ in 0..2 {
            s.spawn(|| {
                let mut all = vec![0; size];
                while !stop.load(Ordering::Relaxed) {
                    buffered.read_exact_at(&mut all, 0).unwrap();
                }
            });
        }
        let (direct, buffered) = (&direct, &buffered);
        let writers: Vec<_> = (0..WRITERS)
            .map(|w| {
                s.spawn(move || {
                    let at = w * PIECE as u64;
                    let mut seen = vec![0; PIECE];
                    let mut stale = 0;
                    for n in 0..250u32 {
                        let bytes = vec![(n % 251) as u8 + 1; PIECE];
                        let done = fuse::testing::aio_write(direct, at, &bytes).unwrap();
                        assert_eq!(done, PIECE);
                        buffered.read_exact_at(&mut seen, at).unwrap();
                        stale += u64::from(seen != bytes);
                    }
                    stale
                })
            })
            .collect();
        let stale = writers.into_iter().map(|w| w.join().unwrap()).sum();
        stop.store(true, Ordering::Relaxed);
        stale
    });
    assert_eq!(stale, 0, "reads after the write that had older bytes");
    drop((direct, buffered));
    rig.zpool(&["export", "tank"]);
    rig.stop();
}

/// With `direct=always` the kernel sends writes of one file side by side, if the file was opened with O_DIRECT.
#[test]
fn direct_writes_side_by_side_all_arrive() {
    let Some(rig) = Rig::new("direct-side-by-side") else {
        return;
    };
    let (mut rig, mnt) = rig.with_tank(256 << 20);
    rig.zfs(&["set", "direct=always", "tank"]);
    let path = mnt.join("f");
    let pieces = 40 * WRITERS;
    std::fs::write(&path, vec![0xff; pieces as usize / 2 * PIECE]).unwrap();
    let open = || {
        let mut o = File::options();
        o.read(true).write(true).custom_flags(O_DIRECT);
        o.open(&path).unwrap()
    };
    let byte = |piece: u64| (piece % 251) as u8 + 1;
    let file = open();
    std::thread::scope(|s| {
        for w in 0..WRITERS {
            let file = &file;
            s.spawn(move || {
                // Half of them beyond the end. Twice, in one record of 128 KiB and one after the other.
                for piece in (w..pieces).step_by(WRITERS as usize) {
                    let bytes = vec![byte(piece); PIECE];
                    for _ in 0..2 {
                        let at = piece * PIECE as u64;
                        let done = fuse::testing::aio_write(file, at, &bytes).unwrap();
                        assert_eq!(done, PIECE);
                    }
                }
            });
        }
    });
    drop(file);
    rig.zpool(&["export", "tank"]);
    let images = rig.disks().to_str().unwrap().to_string();
    rig.zpool(&["import", "-d", &images, "tank"]);
    let all = std::fs::read(&path).unwrap();
    assert_eq!(all.len(), pieces as usize * PIECE);
    for (n, piece) in all.chunks(PIECE).enumerate() {
        assert!(piece.iter().all(|b| *b == byte(n as u64)), "piece {n}");
    }
    rig.stop();
}
