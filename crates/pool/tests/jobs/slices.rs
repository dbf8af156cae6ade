//! A job that reads in the background and stores in syncing context how far it is, as a scrub will.

use crate::world::{but_autotrim, World};
use base::Result;
use dmu::Tx;
use pool::{Budget, CreateSpec, Job, JobState, Piece, Pool, Progress, Step, Subject, Tunables};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};
use testkit::TempDir;
use vdev::{DevSpec, GroupKind, TopSpec};
use zap::{Value, Zap};

const EXAMINED: usize = 10;
const FLAGS: usize = 23;
const PAUSED: u64 = 2;

/// Examines `total` bytes, a block of 512 at a time, and keeps the record of a scrub.
struct Examine {
    total: u64,
    read: AtomicU64,
    stored: AtomicU64,
    slices: AtomicU64,
    paused: AtomicBool,
}

impl Examine {
    /// From the record of the pool, if there is one.
    fn of(pool: &Pool, total: u64) -> Arc<Examine> {
        let scan = pool.scan_state().unwrap().unwrap_or_default();
        Arc::new(Examine {
            total,
            read: scan.examined.into(),
            stored: scan.examined.into(),
            slices: 0.into(),
            paused: scan.paused.into(),
        })
    }

    fn store(&self, pool: &Pool, tx: &Tx, state: u64) -> Result<()> {
        let mut words = [0u64; 24];
        (words[0], words[1]) = (1, state);
        words[EXAMINED] = self.read.load(Ordering::Relaxed);
        words[FLAGS] = match self.paused.load(Ordering::Relaxed) {
            true => PAUSED,
            false => 0,
        };
        self.stored.store(words[EXAMINED], Ordering::Relaxed);
        Zap::new(&pool.mos().hold(1)?).update(tx, "scan", &Value::u64s(&words))
    }
}

impl Job for Examine {
    fn name(&self) -> &'static str {
        "examine"
    }

    fn step(&self, pool: &Pool, tx: &Tx, _: &Budget) -> Result<Step> {
        let read = self.read.load(Ordering::Relaxed);
        if read >= self.total {
            self.store(pool, tx, 2)?;
            return Ok(Step::Finished);
        }
        if self.stored.load(Ordering::Relaxed) != read {
            self.store(pool, tx, 1)?;
        }
        Ok(Step::Idle)
    }

    fn ready(&self) -> Vec<Subject> {
        let left = self.read.load(Ordering::Relaxed) < self.total;
        left.then_some(Subject::Pool).into_iter().collect()
    }

    fn in_slice(&self, begins: bool) {
        self.slices.fetch_add(begins.into(), Ordering::Relaxed);
    }

    fn piece(&self, _: &Pool, _: Subject, budget: &Budget) -> Piece {
        if !budget.take_blocks(1) {
            return Piece::End;
        }
        self.read.fetch_add(512, Ordering::Relaxed);
        Piece::Done
    }

    fn progress(&self, _: &Pool, _: Subject) -> Result<Progress> {
        Ok(Progress {
            done: self.read.load(Ordering::Relaxed),
            total: self.total,
        })
    }

    fn store_pause(&self, pool: &Pool, tx: &Tx, _: Subject, paused: bool) -> Result<()> {
        self.paused.store(paused, Ordering::Relaxed);
        self.store(pool, tx, 1)
    }
}

#[test]
fn slices_and_txgs_alternate_and_a_crash_loses_at_most_a_slice() {
    let w = World::new();
    let total = 100 * 512;
    let job = Examine::of(&w.pool, total);
    w.pool.add_job(job.clone()).unwrap();
    assert!(w.pool.add_job(job.clone()).is_err(), "one of a name");
    let mut txgs = 0;
    while {
        w.pool.sync().unwrap();
        !but_autotrim(&w.pool).is_empty()
    } {
        txgs += 1;
        let status = but_autotrim(&w.pool)[0];
        assert_eq!((status.name, status.state), ("examine", JobState::Running));
        assert_eq!(status.progress.done, job.read.load(Ordering::Relaxed));
        // As a crash now leaves it: one slice of 30 blocks behind.
        let found = w.open(&w.image());
        let there = Examine::of(&found, total).read.load(Ordering::Relaxed);
        assert_eq!(there, (txgs - 1) * 30 * 512);
        found.close().unwrap();
    }
    assert_eq!(job.slices.load(Ordering::Relaxed), 4);
    assert_eq!(
        txgs, 4,
        "100 blocks are 4 slices, each stored by the next txg"
    );
    let scan = w.pool.scan_state().unwrap().unwrap();
    assert_eq!(
        (scan.state, scan.examined),
        (disk::scan::ScanState::Finished, total)
    );
    assert!(!w.pool.wait_for_work(Duration::ZERO));
}

#[test]
fn a_pause_that_can_be_stored_outlives_the_import() {
    let w = World::new();
    let total = 100 * 512;
    let job = Examine::of(&w.pool, total);
    w.pool.add_job(job.clone()).unwrap();
    w.pool.sync().unwrap();
    w.pool.pause_job("examine", true).unwrap();
    let read = job.read.load(Ordering::Relaxed);
    w.fill("a", 10);
    assert_eq!(job.read.load(Ordering::Relaxed), read);
    assert_eq!(but_autotrim(&w.pool)[0].state, JobState::Paused);
    let found = w.open(&w.image());
    let scan = found.scan_state().unwrap().unwrap();
    assert!(scan.paused && scan.examined == read);
    found.close().unwrap();
    w.pool.pause_job("examine", false).unwrap();
    while !but_autotrim(&w.pool).is_empty() {
        w.pool.sync().unwrap();
    }
    assert!(!w.pool.scan_state().unwrap().unwrap().paused);
    w.pool.export().unwrap();
}

/// Reads as long as it may.
#[derive(Default)]
struct Endless {
    reading: AtomicBool,
    blocks: AtomicU64,
}

impl Job for Endless {
    fn name(&self) -> &'static str {
        "endless"
    }
    fn step(&self, _: &Pool, _: &Tx, _: &Budget) -> Result<Step> {
        Ok(Step::Idle)
    }
    fn ready(&self) -> Vec<Subject> {
        vec![Subject::Pool]
    }
    fn in_slice(&self, begins: bool) {
        self.reading.store(begins, Ordering::SeqCst);
    }
    fn piece(&self, _: &Pool, _: Subject, budget: &Budget) -> Piece {
        if !budget.take_blocks(1) {
            return Piece::End;
        }
        self.blocks.fetch_add(1, Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(1));
        Piece::Done
    }
    fn progress(&self, _: &Pool, _: Subject) -> Result<Progress> {
        Ok(Progress::default())
    }
}

#[test]
fn an_export_ends_a_slice_under_way_at_its_next_block() {
    let dir = TempDir::new("slices").unwrap();
    let image = dir.image("d0.img", 128 << 20).unwrap();
    let device = DevSpec::file(image.to_str().unwrap());
    let spec = CreateSpec {
        name: "tank".into(),
        tops: vec![TopSpec::new(GroupKind::Single, vec![device])],
        version: 5000,
        features: Vec::new(),
        extra: vec![],
        command: "zpool create tank".into(),
        tunables: Tunables::default(),
    };
    let pool = Pool::create(env_linux::linux_env(), spec, &|_, os, tx| {
        let now = zpl::Time { sec: 1, nsec: 0 };
        zpl::create_fs(os, tx, &zpl::FsOptions::new(5000, now))
    })
    .unwrap();
    let job = Arc::new(Endless::default());
    pool.add_job(job.clone()).unwrap();
    pool.sync().unwrap();
    while !job.reading.load(Ordering::SeqCst) || job.blocks.load(Ordering::SeqCst) == 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    let begin = Instant::now();
    pool.export().unwrap();
    assert!(!job.reading.load(Ordering::SeqCst), "nothing is read now");
    // Alone, the slice would take 5 seconds.
    assert!(begin.elapsed() < Duration::from_secs(4));
    assert!(job.blocks.load(Ordering::SeqCst) > 0);
}
