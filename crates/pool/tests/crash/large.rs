//! Much data in one fsync, also while txgs are written: it is there whether it went into the log,
//! to its place, or out with its txg.

use crate::rig::{self, Cutter, Layout, FATES};
use base::Txg;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::Arc;
use std::time::Duration;
use vdev::testing::SeededRng;
use vdev::GroupKind;
use zpl::{Cred, New, WriteOpts};

const MIB: usize = 1 << 20;

/// Overwrites a file with `sizes` bytes, one after the other, each time followed by fsync, and pulls
/// the plug after each.
fn run(sizes: &[usize], piece: usize, busy: bool, seed: u64) {
    let layout = Layout {
        ashift: 12,
        ..Layout::new(GroupKind::Single, 1)
    };
    let rng = Arc::new(SeededRng::new(seed));
    let (disks, pool) = rig::create(&layout, seed);
    let config = pool.full_config(0, Txg::NONE, false);
    let fs = rig::mount(&pool, &layout).unwrap();
    let root = fs.zfs.root().unwrap();
    let new = New::file(0o100644, 0);
    let z = fs.zfs.create(&root, b"big", &new, &Cred::root()).unwrap();
    pool.sync().unwrap();
    let (journal, base) = rig::start_journal(&disks);
    let mut content: Vec<u8> = Vec::new();
    let mut acks = Vec::new();
    let stop = AtomicBool::new(false);
    std::thread::scope(|s| {
        let syncer = s.spawn(|| {
            while busy && !stop.load(Relaxed) {
                pool.sync().unwrap();
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        for size in sizes {
            // What cannot be compressed, and holes in between.
            let mut data = vec![0; *size];
            for block in data.chunks_mut(128 << 10) {
                if rng.below(8) > 0 {
                    block
                        .chunks_mut(8)
                        .for_each(|c| c.copy_from_slice(&rng.next().to_le_bytes()[..c.len()]));
                }
            }
            for (i, part) in data.chunks(piece).enumerate() {
                let at = (i * piece) as u64;
                let n = fs.zfs.write(&z, at, part, WriteOpts::default()).unwrap();
                assert_eq!(n, part.len());
            }
            fs.zfs.fsync(Some(&z)).unwrap();
            if content.len() < data.len() {
                content.resize(data.len(), 0);
            }
            content[..data.len()].copy_from_slice(&data);
            acks.push((journal.len(), content.clone()));
        }
        stop.store(true, Relaxed);
        syncer.join().unwrap();
    });
    let mut cutter = Cutter::new(&base, journal.take());
    drop((z, root, fs));
    pool.close().unwrap();
    for (at, want) in acks {
        cutter.forward(at);
        for fate in FATES {
            let image = cutter.image(fate, &rng);
            let pool = rig::open(&image, &config, rng.next()).unwrap();
            let fs = rig::mount(&pool, &layout).unwrap();
            let root = fs.zfs.root().unwrap();
            let z = fs.zfs.lookup(&root, b"big", &Cred::root()).unwrap();
            let mut got = vec![0; want.len() + 1];
            let n = fs.zfs.read(&z, 0, &mut got).unwrap();
            assert_eq!(n, want.len(), "seed {seed}, event {at} ({fate:?})");
            let wrong = (0..n).find(|i| got[*i] != want[*i]);
            assert_eq!(wrong, None, "seed {seed}, event {at} ({fate:?})");
            rig::check(&pool).unwrap_or_else(|e| panic!("seed {seed}, {fate:?}: {e}"));
        }
    }
}

#[test]
fn one_fsync_of_much() {
    run(&[9 * MIB, MIB, 8 * MIB, 300 << 10], MIB, false, 1);
}

#[test]
fn one_fsync_of_parts_of_records() {
    run(&[3 * MIB, 2 * MIB, MIB], 48 << 10, false, 2);
}

#[test]
fn while_groups_are_written() {
    run(
        &[9 * MIB, 2 * MIB, 2 * MIB, 600 << 10, 4 * MIB],
        200 << 10,
        true,
        3,
    );
}

/// Txgs in which nothing changes are not stored, so log blocks are born far behind the newest txg on disk.
#[test]
fn behind_many_idle_groups() {
    let layout = Layout::new(GroupKind::Single, 1);
    let rng = SeededRng::new(4);
    let (disks, pool) = rig::create(&layout, 4);
    let config = pool.full_config(0, Txg::NONE, false);
    let fs = rig::mount(&pool, &layout).unwrap();
    let root = fs.zfs.root().unwrap();
    let new = New::file(0o100644, 0);
    let z = fs.zfs.create(&root, b"big", &new, &Cred::root()).unwrap();
    // From the second on they go into the log.
    fs.zfs.fsync(Some(&z)).unwrap();
    let (journal, base) = rig::start_journal(&disks);
    for _ in 0..1_000 {
        pool.sync().unwrap();
    }
    assert!(journal.len() < 500, "idle txgs are stored");
    fs.zfs
        .write(&z, 0, b"logged", WriteOpts::default())
        .unwrap();
    fs.zfs.fsync(Some(&z)).unwrap();
    let at = journal.len();
    let mut cutter = Cutter::new(&base, journal.take());
    drop((z, root, fs));
    pool.close().unwrap();
    cutter.forward(at);
    for fate in FATES {
        let image = cutter.image(fate, &rng);
        let pool = rig::open(&image, &config, rng.next()).unwrap();
        let fs = rig::mount(&pool, &layout).unwrap();
        let root = fs.zfs.root().unwrap();
        let z = fs.zfs.lookup(&root, b"big", &Cred::root()).unwrap();
        let mut got = [0; 7];
        let n = fs.zfs.read(&z, 0, &mut got).unwrap();
        assert_eq!(&got[..n], b"logged", "{fate:?}");
        rig::check(&pool).unwrap();
    }
}
