//! Many hands at once while txgs are written: everything promised to each of them is there
//! whenever the plug is pulled.

use crate::model::Model;
use crate::rig::{self, Cutter, Fate, Fs, Layout, FATES};
use base::mutation::{mutate, Mutation};
use env_sim::MemDisk;
use pool::{Offline, Pool};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::Arc;
use std::time::Duration;
use vdev::testing::SeededRng;
use vdev::GroupKind;

const HANDS: usize = 4;

/// What happens to the log devices of the pool meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Logs {
    /// Nothing.
    Stay,
    /// The last disk is added as a log, and removed again.
    Come,
    /// The log, the last disk, is taken offline, and brought back.
    Return,
}

impl Logs {
    /// Does it once.
    fn happen(self, pool: &Pool, layout: &Layout) {
        let pause = || std::thread::sleep(Duration::from_millis(3));
        match self {
            Logs::Stay => {}
            Logs::Come => {
                let log = rig::log_on(layout.devices() - 1, layout);
                let id = pool.add_top(&log).unwrap();
                pause();
                pool.remove_log(id).unwrap();
            }
            Logs::Return => {
                let tops = pool.tree().tops();
                let log = tops.iter().find(|t| t.is_log()).unwrap();
                let how = Offline {
                    temporary: false,
                    fault: false,
                };
                pool.offline(log.guid(), how).unwrap();
                pause();
                pool.online(log.guid()).unwrap();
            }
        }
        pause();
    }
}

/// The configuration that is found on the disks.
fn found_on(disks: &[Arc<MemDisk>]) -> disk::NvList {
    let (env, _) = rig::machine(disks, 3);
    let names: Vec<String> = (0..disks.len()).map(|i| format!("d{i}")).collect();
    vdev::discover(&env, &names).pools[0].config.clone()
}

/// The hands do so many operations each, while txgs are written and what is to happen to the logs happens.
fn at_work(
    fs: &Fs,
    models: &mut [Model],
    (layout, logs): (Layout, Logs),
    ops: usize,
    mistake: Option<Mutation>,
) {
    let stop = AtomicBool::new(false);
    std::thread::scope(|s| {
        let syncer = s.spawn(|| {
            mutate(mistake);
            while !stop.load(Relaxed) {
                fs.pool.sync().unwrap();
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let changer = s.spawn(|| {
            mutate(mistake);
            while logs != Logs::Stay && !stop.load(Relaxed) {
                logs.happen(&fs.pool, &layout);
            }
        });
        let hands: Vec<_> = models
            .iter_mut()
            .map(|m| {
                s.spawn(move || {
                    mutate(mistake);
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
        changer.join().unwrap();
    });
}

/// `mistake`: made by all threads.
fn run(
    layout: Layout,
    logs: Logs,
    (ops, images): (usize, usize),
    seed: u64,
    mistake: Option<Mutation>,
) {
    let rng = Arc::new(SeededRng::new(seed));
    let (disks, pool) = rig::create(&layout, seed);
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
    at_work(&fs, &mut models, (layout, logs), ops, mistake);
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
            format!("{layout:?}, {logs:?}, seed {seed}, event {at} of {total} ({fate:?}): {e}")
        };
        let config = found_on(&image);
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
    rounds_with(layout, Logs::Stay);
}

fn rounds_with(layout: Layout, logs: Logs) {
    let first = crate::number("ZFS_FUSE_CRASH_SEED", 1);
    for seed in first..first + crate::number("ZFS_FUSE_CRASH_ROUNDS", 1) {
        run(layout, logs, (250, 25), seed, None);
    }
}

/// A disk that is a log now and then.
fn with_bench() -> Layout {
    Layout {
        recordsize: 32 << 10,
        bench: 1,
        ..Layout::new(GroupKind::Single, 1)
    }
}

/// A disk that is a log.
fn with_log() -> Layout {
    Layout {
        bench: 0,
        slog: true,
        ..with_bench()
    }
}

/// A log device comes and goes.
#[test]
fn a_log_is_added_and_removed() {
    rounds_with(with_bench(), Logs::Come);
}

/// A log device goes offline and comes back.
#[test]
fn a_log_goes_offline_and_comes_back() {
    rounds_with(with_log(), Logs::Return);
}

/// Whether something is found in a few lives with a mistake.
fn finds(mistake: Mutation, layout: Layout, logs: Logs) -> bool {
    (1..=12).any(|seed| {
        let life = || run(layout, logs, (120, 40), seed, Some(mistake));
        std::panic::catch_unwind(life).is_err()
    })
}

#[test]
fn log_blocks_on_a_vdev_that_is_not_on_disk_are_found() {
    assert!(finds(Mutation::NewVdevAtOnce, with_bench(), Logs::Come));
}

#[test]
fn log_blocks_on_a_log_that_is_not_back_on_disk_are_found() {
    assert!(finds(Mutation::NewVdevAtOnce, with_log(), Logs::Return));
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
        let config = pool.full_config(0, base::Txg::NONE, false);
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
