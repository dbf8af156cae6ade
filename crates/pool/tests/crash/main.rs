//! The plug is pulled everywhere: a pool in use on recorded disks, and for many moments (every flush,
//! and in between with writes lost, kept or torn) what is left is opened, replayed and judged.
//!
//! `ZFS_FUSE_CRASH_ROUNDS=n` repeats everything with n seeds; `ZFS_FUSE_CRASH_SEED=s` begins with
//! seed s.

mod faults;
mod large;
mod model;
mod threads;

use base::Txg;
use model::Model;
use sim::rig::{self, Cutter, Fate, Layout, FATES, MIB};
use std::sync::Arc;
use testkit::{or_skip, OpenZfs, TempDir};
use vdev::testing::{Event, MemDisk, SeededRng};
use vdev::GroupKind;

/// Exit status of the walk for a damaged pool.
pub const DAMAGED: u8 = 2;

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name)
        .ok()
        .and_then(|v| v.parse().ok())
        .unwrap_or(default)
}

struct Plan {
    layout: Layout,
    ops: usize,
    /// Images besides those at flushes, roughly.
    images: usize,
    /// Fill the pool first.
    fill: bool,
}

struct Judge<'a> {
    plan: &'a Plan,
    model: &'a Model,
    config: &'a disk::NvList,
    rng: &'a SeededRng,
    images: usize,
    nested: usize,
}

impl Judge<'_> {
    /// Starts from an image, judges it, uses it, checks it, and starts once more.
    fn image(&mut self, disks: &[Arc<MemDisk>], cut: usize, nest: bool) -> Result<(), String> {
        self.images += 1;
        let seed = self.rng.next();
        let recorded = nest.then(|| rig::start_journal(disks));
        let pool = rig::open(disks, self.config, seed).map_err(|e| e.to_string())?;
        let fs = rig::mount(&pool, &self.plan.layout).map_err(|e| e.to_string())?;
        if let Some((journal, base)) = recorded {
            let events = journal.take();
            self.again(&base, events, cut)?;
        }
        self.model.judge(&fs, cut)?;
        self.model.judge_snapshots(&pool, cut)?;
        let before = model::walk(&fs)?;
        fs.pool.sync().map_err(|e| e.to_string())?;
        rig::check(&pool)?;
        // It must be of use.
        let root = fs.zfs.root().map_err(|e| e.to_string())?;
        let cred = zpl::Cred::root();
        let new = zpl::New::file(0o100644, 0);
        let full = |e: base::Error| match rig::is_full(&e) {
            true => Ok(()),
            false => Err(e.to_string()),
        };
        match fs.zfs.create(&root, b"after", &new, &cred) {
            Ok(z) => {
                let data = vec![7; 40_000];
                if let Err(e) = fs.zfs.write(&z, 0, &data, Default::default()) {
                    full(e)?;
                }
                fs.zfs.fsync(Some(&z)).map_err(|e| e.to_string())?;
                drop(z);
                fs.zfs
                    .unlink(&root, b"after", &cred)
                    .map_err(|e| e.to_string())?;
            }
            Err(e) => full(e)?,
        }
        drop(root);
        if self.rng.below(2) == 0 {
            fs.unmount().map_err(|e| format!("unmount: {e}"))?;
        } else {
            drop(fs);
        }
        pool.close().map_err(|e| e.to_string())?;
        drop(pool);
        let pool = rig::open(disks, self.config, seed + 1).map_err(|e| format!("again: {e}"))?;
        let fs = rig::mount(&pool, &self.plan.layout).map_err(|e| format!("again: {e}"))?;
        if model::walk(&fs)? != before {
            return Err("not the same after another start".into());
        }
        fs.pool.sync().map_err(|e| e.to_string())?;
        rig::check(&pool).map_err(|e| format!("after another start: {e}"))?;
        drop(fs);
        pool.close().map_err(|e| e.to_string())
    }

    /// The plug is pulled while the log is replayed.
    fn again(
        &mut self,
        base: &[Arc<MemDisk>],
        events: Vec<Event>,
        cut: usize,
    ) -> Result<(), String> {
        let len = events.len();
        let mut moments: Vec<usize> = (0..3)
            .map(|_| self.rng.below(len as u64 + 1) as usize)
            .collect();
        moments.sort_unstable();
        let mut cutter = Cutter::new(base, events);
        for at in moments {
            cutter.forward(at);
            let fate = FATES[self.rng.below(5) as usize];
            let disks = cutter.image(fate, self.rng);
            self.nested += 1;
            self.image(&disks, cut, false)
                .map_err(|e| format!("pulled again at {at} of {len} ({fate:?}): {e}"))?;
        }
        Ok(())
    }
}

fn run(name: &str, plan: &Plan, seed: u64) {
    let rng = Arc::new(SeededRng::new(seed));
    let layout = &plan.layout;
    let (disks, pool) = rig::create(layout, seed);
    let config = pool.full_config(0, Txg::NONE, false);
    let mut fs = rig::mount(&pool, layout).unwrap();
    let (journal, mut base) = rig::start_journal(&disks);
    let mut model = Model::new(rng.clone(), journal.clone(), &fs);
    // Long txgs give the log much to do, short ones the space maps.
    model.syncs = [8, 2, 4, 1][seed as usize % 4];
    // An extended attribute makes the next fsync write a txg.
    model.snapshots = seed % 2 == 1;
    model.xattrs = layout.version >= 24 && seed % 3 != 0;
    if plan.fill {
        for size in [2 << 20, 128 << 10, 8 << 10] {
            for i in 0.. {
                if !model.fill(&fs, &format!("fill{size}-{i}"), size) {
                    break;
                }
            }
        }
        pool.sync().unwrap();
        journal.take();
        model = model.restarted();
        assert!(!model.now().is_empty());
        base = disks.iter().map(|d| d.fork()).collect();
    }
    for n in 0..plan.ops {
        model.step(&fs);
        if n == plan.ops / 2 {
            // Mounted again: the maps are read from disk.
            model.release();
            fs.unmount().unwrap();
            fs = rig::mount(&pool, layout).unwrap();
            model.settle();
        }
    }
    fs.zfs.fsync(None).unwrap();
    model.settle();
    model.release();
    let log = fs.set.zil().unwrap().stats();
    fs.unmount().unwrap();
    let gangs = rig::gangs(&pool);
    assert!(layout.splinters.is_none() || gangs > 0, "no gangs");
    pool.close().unwrap();
    drop(pool);
    let events = journal.take();
    let total = events.len();
    let flushes: Vec<usize> = events
        .iter()
        .enumerate()
        .filter(|(_, e)| matches!(e, Event::Flush { .. }))
        .map(|(i, _)| i)
        .collect();
    // Before and after flushes, and anywhere.
    let mut moments: Vec<(usize, Fate)> = Vec::new();
    let every = (flushes.len() / plan.images.max(1)).max(1);
    let off = rng.below(every as u64) as usize;
    for f in flushes.iter().skip(off).step_by(every) {
        moments.push((*f, FATES[rng.below(5) as usize]));
        moments.push((f + 1, FATES[rng.below(5) as usize]));
    }
    for _ in 0..plan.images {
        let at = rng.below(total as u64 + 1) as usize;
        moments.push((at, FATES[rng.below(5) as usize]));
    }
    // The very moment of a promise.
    let acks = model.ack_positions();
    for _ in 0..if acks.is_empty() { 0 } else { plan.images / 2 } {
        let at = acks[rng.below(acks.len() as u64) as usize];
        moments.push((at, Fate::Lost));
    }
    moments.push((total, Fate::Lost));
    moments.sort_by_key(|m| m.0);
    let mut cutter = Cutter::new(&base, events);
    let mut judge = Judge {
        plan,
        model: &model,
        config: &config,
        rng: &rng,
        images: 0,
        nested: 0,
    };
    let zdb = rng.below(moments.len() as u64) as usize;
    for (i, (at, fate)) in moments.iter().enumerate() {
        cutter.forward(*at);
        let image = cutter.image(*fate, &rng);
        let nest = rng.below(8) == 0;
        if let Err(e) = judge.image(&image, *at, nest) {
            panic!("{name}, seed {seed}, event {at} of {total} ({fate:?}): {e}");
        }
        if i == zdb && number("ZFS_FUSE_CRASH_ZDB", 1) != 0 {
            if let Some(z) = or_skip(OpenZfs::get()) {
                let dir = TempDir::new("crash").unwrap();
                rig::dump(&image, dir.path()).unwrap();
                if let Err(e) = z.check(dir.path(), "tank") {
                    panic!("{name}, seed {seed}, event {at} ({fate:?}): {e}");
                }
            }
        }
    }
    eprintln!(
        "{name}, seed {seed}: {} operations ({} refused), {total} events, {} flushes, {} images, \
         {} of them during a replay; {} commits, {} batches, {} blocks, {} records, {} fallbacks, {gangs} gangs",
        plan.ops,
        model.refused,
        flushes.len(),
        judge.images,
        judge.nested,
        log.commits,
        log.batches,
        log.blocks,
        log.records,
        log.fallbacks
    );
}

fn rounds(name: &str, plan: Plan) {
    let first = number("ZFS_FUSE_CRASH_SEED", 1);
    for seed in first..first + number("ZFS_FUSE_CRASH_ROUNDS", 1) {
        run(name, &plan, seed);
    }
}

fn plan(layout: Layout) -> Plan {
    Plan {
        layout,
        ops: 300,
        images: 40,
        fill: false,
    }
}

#[test]
fn single() {
    rounds("single", plan(Layout::new(GroupKind::Single, 1)));
}

#[test]
fn single_small_records() {
    let l = Layout {
        recordsize: 16 << 10,
        ashift: 12,
        ..Layout::new(GroupKind::Single, 1)
    };
    rounds("single_small_records", plan(l));
}

#[test]
fn single_without_log_maps() {
    let l = Layout {
        log_spacemap: false,
        ..Layout::new(GroupKind::Single, 1)
    };
    rounds("single_without_log_maps", plan(l));
}

#[test]
fn mirror() {
    rounds("mirror", plan(Layout::new(GroupKind::Mirror, 2)));
}

#[test]
fn raidz1() {
    let kind = GroupKind::Raidz { nparity: 1 };
    let l = Layout {
        ashift: 12,
        recordsize: 32 << 10,
        ..Layout::new(kind, 3)
    };
    rounds("raidz1", plan(l));
}

#[test]
fn separate_log() {
    let l = Layout {
        slog: true,
        ..Layout::new(GroupKind::Single, 1)
    };
    rounds("separate_log", plan(l));
}

#[test]
fn version_28_raidz1() {
    let l = Layout {
        version: 28,
        ..Layout::new(GroupKind::Raidz { nparity: 1 }, 3)
    };
    rounds("version_28_raidz1", plan(l));
}

#[test]
fn version_23_mirror() {
    let l = Layout {
        version: 23,
        ..Layout::new(GroupKind::Mirror, 2)
    };
    rounds("version_23_mirror", plan(l));
}

#[test]
fn version_15_single() {
    let l = Layout {
        version: 15,
        ..Layout::new(GroupKind::Single, 1)
    };
    rounds("version_15_single", plan(l));
}

#[test]
fn full() {
    let l = Layout {
        size: 64 * MIB,
        ..Layout::new(GroupKind::Single, 1)
    };
    let p = Plan {
        images: 15,
        fill: true,
        ..plan(l)
    };
    rounds("full", p);
}

#[test]
fn full_version_28() {
    let l = Layout {
        size: 64 * MIB,
        version: 28,
        ..Layout::new(GroupKind::Mirror, 2)
    };
    let p = Plan {
        images: 15,
        fill: true,
        ..plan(l)
    };
    rounds("full_version_28", p);
}

/// Hardly two free blocks side by side: large ones become gangs, gangs of gangs, and log blocks find
/// no place.
#[test]
fn splinters() {
    let l = Layout {
        splinters: Some(8192),
        ..Layout::new(GroupKind::Single, 1)
    };
    rounds("splinters", plan(l));
}

#[test]
fn splinters_on_raidz1_version_28() {
    let l = Layout {
        version: 28,
        splinters: Some(24 << 10),
        ..Layout::new(GroupKind::Raidz { nparity: 1 }, 3)
    };
    rounds("splinters_on_raidz1_version_28", plan(l));
}

/// Space maps long enough to be condensed, of metaslabs that are not in memory: reading them takes
/// the lock of the maps, which must not be held then.
#[test]
fn long_maps_are_condensed_after_a_restart() {
    for log_spacemap in [false, true] {
        let l = Layout {
            log_spacemap,
            recordsize: 4096,
            ..Layout::new(GroupKind::Single, 1)
        };
        let (disks, pool) = rig::create(&l, 7);
        let config = pool.full_config(0, Txg::NONE, false);
        let rng = SeededRng::new(7);
        let scatter = |fs: &rig::Fs, groups: u64| {
            let root = fs.zfs.root().unwrap();
            let cred = zpl::Cred::root();
            let z = match fs.zfs.lookup(&root, b"f", &cred) {
                Ok(z) => z,
                Err(_) => {
                    let new = zpl::New::file(0o100644, 0);
                    fs.zfs.create(&root, b"f", &new, &cred).unwrap()
                }
            };
            for _ in 0..groups {
                for _ in 0..400 {
                    let mut data = vec![0; 4096];
                    env::Rng::fill(&rng, &mut data);
                    let at = rng.below(4000) * 4096;
                    fs.zfs.write(&z, at, &data, Default::default()).unwrap();
                }
                fs.pool.sync().unwrap();
            }
        };
        let fs = rig::mount(&pool, &l).unwrap();
        scatter(&fs, 60);
        drop(fs);
        pool.close().unwrap();
        drop(pool);
        for round in 0..3 {
            let pool = rig::open(&disks, &config, 8 + round).unwrap();
            let fs = rig::mount(&pool, &l).unwrap();
            scatter(&fs, 10);
            rig::check(&pool).unwrap();
            drop(fs);
            match round {
                1 => pool.export().unwrap(),
                _ => pool.close().unwrap(),
            }
        }
    }
}
