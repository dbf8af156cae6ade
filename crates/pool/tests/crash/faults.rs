//! Devices that fail, lie, vanish and come back.

use crate::model::Model;
use crate::rig::{self, Cutter, Fs, Layout, FATES};
use base::Txg;
use pool::{OpenOptions, Pool};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::Arc;
use vdev::testing::{Journal, MemDisk, SeededRng};
use vdev::GroupKind;

struct Session {
    layout: Layout,
    disks: Vec<Arc<MemDisk>>,
    base: Vec<Arc<MemDisk>>,
    config: disk::NvList,
    pool: Arc<Pool>,
    fs: Fs,
    model: Model,
    journal: Arc<Journal>,
    rng: Arc<SeededRng>,
}

impl Session {
    fn new(layout: Layout, seed: u64) -> Session {
        let rng = Arc::new(SeededRng::new(seed));
        let (disks, pool) = rig::create(&layout, seed);
        let config = pool.full_config(0, Txg::NONE, false);
        let fs = rig::mount(&pool, &layout).unwrap();
        let (journal, base) = rig::start_journal(&disks);
        let mut model = Model::new(rng.clone(), journal.clone(), &fs);
        model.tolerant = true;
        model.xattrs = false;
        Session {
            layout,
            disks,
            base,
            config,
            pool,
            fs,
            model,
            journal,
            rng,
        }
    }

    /// Operations until one fails.
    fn work(&mut self, ops: usize) {
        for _ in 0..ops {
            if self.model.failed.is_some() {
                return;
            }
            self.model.step(&self.fs);
        }
    }

    fn fine(&self) {
        if let Some(e) = &self.model.failed {
            panic!("{e}");
        }
    }

    /// All disks as they are, back in order.
    fn image(&self) -> Vec<Arc<MemDisk>> {
        self.disks.iter().map(|d| d.fork()).collect()
    }

    fn mount(&self, disks: &[Arc<MemDisk>]) -> Fs {
        let pool = rig::open(disks, &self.config, self.rng.next()).unwrap();
        rig::mount(&pool, &self.layout).unwrap()
    }

    /// Opens what is there, judges it as everything that happened so far.
    fn judge(&self, disks: &[Arc<MemDisk>]) -> Fs {
        let fs = self.mount(disks);
        self.model
            .judge(&fs, self.journal.len() + 1)
            .unwrap_or_else(|e| panic!("{e}"));
        fs
    }
}

fn mirror() -> Layout {
    Layout::new(GroupKind::Mirror, 2)
}

fn raidz() -> Layout {
    Layout {
        ashift: 12,
        recordsize: 32 << 10,
        ..Layout::new(GroupKind::Raidz { nparity: 1 }, 3)
    }
}

/// One device no longer takes writes: the pool goes on, remembers on disk what the device misses, and
/// does not believe it afterwards.
#[test]
fn writes_fail_on_one_device() {
    for (layout, seed) in [(mirror(), 1), (raidz(), 2), (mirror(), 3), (raidz(), 4)] {
        let mut s = Session::new(layout, seed);
        s.work(60);
        s.pool.sync().unwrap();
        let sick = (seed % 2) as usize;
        if seed < 3 {
            s.disks[sick].fail_writes.store(true, Relaxed);
        } else {
            s.disks[sick].left.store(30, Relaxed);
        }
        s.work(120);
        s.fine();
        s.model.settle_with(s.pool.sync().map(|_| ()));
        s.fine();
        let leaves = s.pool.tree().leaves();
        let leaf = &leaves[sick];
        assert!(!leaf.dtl_is_empty());
        assert!(leaf.stats.write_errors.load(Relaxed) > 0);
        let missed = leaf.dtl();
        // A plug pulled now: the device comes back well, but what it missed is known.
        let fs = s.judge(&s.image());
        let leaf = fs.pool.tree().leaves()[sick].clone();
        for (a, b) in missed.iter() {
            for txg in a..b {
                assert!(
                    leaf.dtl_contains(Txg::new(txg)),
                    "txg {txg} of {missed:?}: {:?}",
                    leaf.dtl()
                );
            }
        }
        rig::check(&fs.pool).unwrap();
        let pool = fs.pool.clone();
        fs.unmount().unwrap();
        pool.export().unwrap();
    }
}

/// A device returns garbage for everything that was ever written to it: nothing is noticed above,
/// errors are counted, and what was read is put right.
#[test]
fn garbage_is_healed() {
    for (layout, seed) in [(mirror(), 11), (raidz(), 12)] {
        let mut s = Session::new(layout, seed);
        s.work(150);
        s.model.settle_with(s.pool.sync().map(|_| ()));
        s.fine();
        let disks = s.image();
        // The one that is read.
        disks[0].corrupt_written(8 << 20);
        let fs = s.judge(&disks);
        let leaf = fs.pool.tree().leaves()[0].clone();
        let top = fs.pool.tree().tops()[0].clone();
        let seen =
            leaf.stats.checksum_errors.load(Relaxed) + top.stats.checksum_errors.load(Relaxed);
        assert!(seen > 0, "nothing noticed");
        assert!(
            leaf.stats.repaired_bytes.load(Relaxed) > 0,
            "nothing repaired"
        );
        let e = rig::walk(&fs.pool);
        assert!(e.is_ok(), "{e:?}");
        drop(fs);
        // Read errors instead.
        let disks = s.image();
        let pool = rig::open(&disks, &s.config, 5).unwrap();
        disks[0].fail_reads.store(true, Relaxed);
        let fs = rig::mount(&pool, &s.layout).unwrap();
        s.model.judge(&fs, s.journal.len() + 1).unwrap();
        rig::walk(&fs.pool).unwrap();
    }
}

/// All devices stop at some moment: an error, no promise that is not kept, and nothing is lost that
/// was promised before.
#[test]
fn everything_fails() {
    let mut images = 0;
    for n in 0..30 * crate::number("ZFS_FUSE_CRASH_ROUNDS", 1) {
        let layout = match n % 3 {
            0 => Layout::new(GroupKind::Single, 1),
            1 => mirror(),
            _ => raidz(),
        };
        let mut s = Session::new(layout, 100 + n);
        s.work(20 + (n % 40) as usize);
        s.fine();
        for (i, d) in s.disks.iter().enumerate() {
            // Together, or one long after the other.
            let more = if n % 2 == 0 { 0 } else { i as u64 * 40 };
            d.left.store((n + more) as i64, Relaxed);
        }
        s.work(600);
        let Some(e) = s.model.failed.clone() else {
            panic!("round {n}: no failure in {} events", s.journal.len());
        };
        // It stays like that: a clear answer, at once.
        for _ in 0..3 {
            let again = s.pool.sync().unwrap_err();
            assert_eq!(
                again.kind,
                base::Kind::Suspended,
                "round {n}: {again}, first {e}"
            );
        }
        let root = s.fs.zfs.root().unwrap();
        if let Ok(z) = s.fs.zfs.create(
            &root,
            b"late",
            &zpl::New::file(0o100644, 0),
            &zpl::Cred::root(),
        ) {
            assert!(s.fs.zfs.fsync(Some(&z)).is_err(), "round {n}");
            assert!(s.fs.zfs.fsync(None).is_err(), "round {n}");
        }
        // What the devices took before.
        let events = s.journal.take();
        let total = events.len();
        let mut cutter = Cutter::new(&s.base, events);
        cutter.forward(total);
        for fate in FATES {
            let disks = cutter.image(fate, &s.rng);
            let fs = s.mount(&disks);
            if let Err(e) = s.model.judge_last(&fs, total, b"late") {
                panic!("round {n}, {fate:?}, failed with {:?}: {e}", s.model.failed);
            }
            fs.pool.sync().unwrap();
            rig::walk(&fs.pool).unwrap_or_else(|e| panic!("round {n}, {fate:?}: {e}"));
            images += 1;
        }
        // Closing must come to an end as well.
        let _ = s.pool.close();
    }
    eprintln!("everything_fails: {images} images");
}

/// A device is missing at the start, comes back later.
#[test]
fn device_missing_at_open() {
    for (layout, seed) in [(mirror(), 21), (raidz(), 22)] {
        let mut s = Session::new(layout, seed);
        s.work(80);
        s.model.settle_with(s.pool.sync().map(|_| ()));
        s.fine();
        s.model.release();
        let without = seed as usize % 2;
        // The plug is pulled, and one device is not there afterwards.
        let disks = s.image();
        disks[without].gone.store(true, Relaxed);
        let fs = s.judge(&disks);
        assert_eq!(fs.pool.tree().state().0, vdev::State::Degraded);
        let pool = fs.pool.clone();
        // Life goes on without it.
        let (journal, _) = rig::start_journal(&disks);
        let mut m = s.model.go_on(journal.clone());
        for _ in 0..80 {
            m.step(&fs);
        }
        m.settle_with(pool.sync().map(|_| ()));
        drop(fs);
        drop(pool);
        let later: Vec<_> = disks.iter().map(|d| d.fork()).collect();
        let fs = s.mount(&later);
        let leaf = fs.pool.tree().leaves()[without].clone();
        assert!(leaf.state().usable());
        assert!(!leaf.dtl_is_empty(), "what it missed is forgotten");
        m.judge(&fs, journal.len() + 1)
            .unwrap_or_else(|e| panic!("{e}"));
        rig::check(&fs.pool).unwrap();
        // It is resilvered by itself. Exported and imported, it has everything: the other one is not needed.
        let pool = fs.pool.clone();
        for _ in 0..100 {
            if leaf.dtl_is_empty() {
                break;
            }
            pool.sync().unwrap();
        }
        assert!(leaf.dtl_is_empty(), "it still lacks {:?}", leaf.dtl());
        drop(leaf);
        fs.unmount().unwrap();
        pool.export().unwrap();
        later[1 - without].gone.store(true, Relaxed);
        let fs = s.mount(&later);
        m.judge(&fs, journal.len() + 1)
            .unwrap_or_else(|e| panic!("{e}"));
        rig::check(&fs.pool).unwrap();
    }
}

/// Without its log device a pool opens only if one insists; the newest txgs are there.
#[test]
fn log_device_missing() {
    let layout = Layout {
        slog: true,
        ..Layout::new(GroupKind::Single, 1)
    };
    let mut s = Session::new(layout, 31);
    s.work(100);
    s.model.settle_with(s.pool.sync().map(|_| ()));
    s.fine();
    let at = s.journal.len();
    let disks = s.image();
    disks[1].gone.store(true, Relaxed);
    let e = rig::open(&disks, &s.config, 1)
        .err()
        .expect("must be refused");
    assert_eq!(e.kind, base::Kind::NoDevice, "{e}");
    assert!(e.to_string().contains("-m"), "{e}");
    let (env, _) = rig::machine(&disks, 2);
    let opts = OpenOptions {
        missing_log: true,
        tunables: rig::tunables(),
        ..OpenOptions::default()
    };
    let pool = Pool::open(env, &s.config, opts).unwrap();
    let fs = rig::mount(&pool, &s.layout).unwrap();
    s.model.judge(&fs, at + 1).unwrap();
    fs.pool.sync().unwrap();
    rig::walk(&fs.pool).unwrap();
    let root = fs.zfs.root().unwrap();
    let new = zpl::New::file(0o100644, 0);
    let z = fs
        .zfs
        .create(&root, b"new", &new, &zpl::Cred::root())
        .unwrap();
    fs.zfs.fsync(Some(&z)).unwrap();
}
