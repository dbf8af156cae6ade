//! Many hands at once while txgs are written: everything promised to each of them is there
//! whenever the plug is pulled.

use crate::model::Model;
use crate::rig::{self, Cutter, Fate, Layout, FATES};
use base::Txg;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::Arc;
use std::time::Duration;
use vdev::testing::SeededRng;
use vdev::GroupKind;

const HANDS: usize = 4;

fn run(layout: Layout, ops: usize, images: usize, seed: u64) {
    let rng = Arc::new(SeededRng::new(seed));
    let (disks, pool) = rig::create(&layout, seed);
    let config = pool.full_config(0, Txg::NONE, false);
    let fs = rig::mount(&pool, &layout).unwrap();
    let (journal, _) = rig::start_journal(&disks);
    let mut models: Vec<Model> = (0..HANDS)
        .map(|i| {
            let rng = Arc::new(SeededRng::new(seed * 100 + i as u64));
            Model::at_home(rng, journal.clone(), &fs, &format!("home{i}"))
        })
        .collect();
    for m in &mut models {
        m.syncs = 1;
        m.xattrs = false;
    }
    fs.pool.sync().unwrap();
    journal.take();
    let base: Vec<_> = disks.iter().map(|d| d.fork()).collect();
    for d in &disks {
        d.flush_time.store(300, Relaxed);
    }
    let stop = AtomicBool::new(false);
    std::thread::scope(|s| {
        let syncer = s.spawn(|| {
            while !stop.load(Relaxed) {
                fs.pool.sync().unwrap();
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let hands: Vec<_> = models
            .iter_mut()
            .map(|m| {
                let fs = &fs;
                s.spawn(move || {
                    for _ in 0..ops {
                        m.step(fs);
                    }
                    m.release();
                    m.settle_with(fs.zfs.fsync(None));
                })
            })
            .collect();
        for h in hands {
            h.join().unwrap();
        }
        stop.store(true, Relaxed);
        syncer.join().unwrap();
    });
    let log = fs.set.zil().unwrap().stats();
    let end = journal.len();
    for m in &models {
        m.judge(&fs, end + 1)
            .unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    }
    for d in &disks {
        d.flush_time.store(0, Relaxed);
    }
    fs.pool.sync().unwrap();
    rig::check(&pool).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    let events = journal.take();
    let total = events.len();
    drop(fs);
    pool.close().unwrap();
    drop(pool);
    let mut moments: Vec<(usize, Fate)> = (0..images)
        .map(|_| {
            let at = rng.below(total as u64 + 1) as usize;
            (at, FATES[rng.below(5) as usize])
        })
        .collect();
    // The very moment of a promise.
    for m in &models {
        let acks = m.ack_positions();
        for _ in 0..if acks.is_empty() { 0 } else { images / 3 } {
            let at = acks[rng.below(acks.len() as u64) as usize];
            moments.push((at, Fate::Lost));
        }
    }
    moments.sort_by_key(|m| m.0);
    let mut cutter = Cutter::new(&base, events);
    for (at, fate) in moments {
        cutter.forward(at);
        let image = cutter.image(fate, &rng);
        let what = |e: &dyn std::fmt::Display| {
            format!("{layout:?}, seed {seed}, event {at} of {total} ({fate:?}): {e}")
        };
        let pool =
            rig::open(&image, &config, rng.next()).unwrap_or_else(|e| panic!("{}", what(&e)));
        let fs = rig::mount(&pool, &layout).unwrap_or_else(|e| panic!("{}", what(&e)));
        for m in &models {
            m.judge(&fs, at).unwrap_or_else(|e| panic!("{}", what(&e)));
        }
        fs.pool.sync().unwrap();
        rig::check(&pool).unwrap_or_else(|e| panic!("{}", what(&e)));
    }
    eprintln!(
        "threads, seed {seed}: {} operations, {total} events, {images} images; {} commits, {} batches, \
         {} blocks, {} fallbacks",
        ops * HANDS,
        log.commits,
        log.batches,
        log.blocks,
        log.fallbacks
    );
}

fn rounds(layout: Layout) {
    let first = crate::number("ZFS_FUSE_CRASH_SEED", 1);
    for seed in first..first + crate::number("ZFS_FUSE_CRASH_ROUNDS", 1) {
        run(layout, 250, 25, seed);
    }
}

#[test]
fn single() {
    rounds(Layout {
        recordsize: 32 << 10,
        ..Layout::new(GroupKind::Single, 1)
    });
}

#[test]
fn mirror() {
    rounds(Layout::new(GroupKind::Mirror, 2));
}

#[test]
fn raidz1_without_log_maps() {
    rounds(Layout {
        log_spacemap: false,
        ashift: 12,
        ..Layout::new(GroupKind::Raidz { nparity: 1 }, 3)
    });
}

/// The pool is closed under the hands of those who use it: they get errors, nobody hangs, and what
/// was promised is there.
#[test]
fn closed_under_load() {
    for seed in 50..53 {
        let layout = Layout::new(GroupKind::Mirror, 2);
        let (disks, pool) = rig::create(&layout, seed);
        let config = pool.full_config(0, Txg::NONE, false);
        let fs = rig::mount(&pool, &layout).unwrap();
        let (journal, _) = rig::start_journal(&disks);
        let mut models: Vec<Model> = (0..HANDS)
            .map(|i| {
                let rng = Arc::new(SeededRng::new(seed * 100 + i as u64));
                Model::at_home(rng, journal.clone(), &fs, &format!("home{i}"))
            })
            .collect();
        fs.pool.sync().unwrap();
        std::thread::scope(|s| {
            for m in &mut models {
                m.tolerant = true;
                m.xattrs = false;
                let fs = &fs;
                s.spawn(move || {
                    for _ in 0..100_000 {
                        if m.failed.is_some() {
                            break;
                        }
                        m.step(fs);
                    }
                });
            }
            std::thread::sleep(Duration::from_millis(150));
            pool.close().unwrap();
        });
        for m in &mut models {
            assert!(m.failed.is_some(), "a closed pool goes on");
            m.release();
        }
        drop(fs);
        drop(pool);
        let image: Vec<_> = disks.iter().map(|d| d.fork()).collect();
        let pool = rig::open(&image, &config, seed).unwrap();
        let fs = rig::mount(&pool, &layout).unwrap();
        for m in &models {
            m.judge(&fs, journal.len() + 1)
                .unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        }
        fs.pool.sync().unwrap();
        rig::walk(&pool).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    }
}
