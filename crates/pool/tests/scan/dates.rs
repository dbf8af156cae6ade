//! Scrubs of what was written between two dates.

use crate::world::{finish, World};
use base::Txg;
use disk::scan::ScanState;
use env_sim::{mem_env, ManualClock, MemDisk};
use pool::{OpenOptions, Pool, ScanRefusal, ScrubRange};
use sim::rig::{self, Layout};
use std::sync::atomic::Ordering;
use std::sync::Arc;
use vdev::GroupKind;

const START: i64 = 1_700_000_000;
const MINUTE: u64 = 60;

fn command() -> (String, u64) {
    ("zpool scrub tank".into(), 0)
}

fn machine(disks: &[Arc<MemDisk>], clock: &Arc<ManualClock>) -> env::Env {
    let (mut env, all) = mem_env(3);
    for (i, d) in disks.iter().enumerate() {
        all.put(&format!("d{i}"), d.clone());
    }
    env.clock = clock.clone();
    env
}

pub struct Dated {
    pub w: World,
    pub clock: Arc<ManualClock>,
}

impl Dated {
    pub fn new(version: u64) -> Dated {
        let clock = Arc::new(ManualClock::default());
        clock.seconds.store(START, Ordering::Relaxed);
        let layout = Layout {
            version,
            ..Layout::new(GroupKind::Mirror, 2)
        };
        let disks: Vec<_> = (0..2).map(|_| MemDisk::new(layout.size)).collect();
        let pool = rig::create_in(&layout, machine(&disks, &clock)).unwrap();
        let config = pool.full_config(0, Txg::NONE, false);
        let w = World {
            disks,
            config,
            pool,
        };
        Dated { w, clock }
    }

    pub fn reopen(&mut self) {
        self.w.disks = self.w.image(&|_| true);
        let options = OpenOptions {
            tunables: rig::tunables(),
            ..OpenOptions::default()
        };
        let env = machine(&self.w.disks, &self.clock);
        self.w.pool = Pool::open(env, &self.w.config, options).unwrap();
    }

    pub fn pass(&self, minutes: u64) {
        self.clock.pass(minutes * MINUTE * 1_000_000_000);
    }

    pub fn now(&self) -> u64 {
        self.clock.seconds.load(Ordering::Relaxed).unsigned_abs()
    }

    /// Between minutes since the pool was made.
    fn range(&self, start: Option<u64>, end: Option<u64>) -> ScrubRange {
        let at = |m: u64| START.unsigned_abs() + m * MINUTE;
        self.w.pool.txgs_between(start.map(at), end.map(at))
    }

    /// Blocks of a file system of which both disks have the same.
    fn whole(&self, name: &str) -> (usize, usize) {
        let blocks = self.w.blocks(name);
        let same = blocks.iter().filter(|bp| {
            let [a, b] = [0, 1].map(|d: usize| {
                let mut bytes = vec![0; bp.dva(0).asize() as usize];
                let at = (4 << 20) + bp.dva(0).offset();
                self.w.disks[d].peek(at, &mut bytes);
                bytes
            });
            a == b
        });
        (same.count(), blocks.len())
    }
}

/// File systems of minutes 20, 40 and 60, all blocks of which are spoilt on the first disk.
fn spoilt() -> Dated {
    let mut d = Dated::new(5000);
    for name in ["a", "b", "c"] {
        d.pass(20);
        d.w.fill(name, 30);
    }
    d.w.spoil(0, &|_| true);
    d.pass(20);
    d.reopen();
    d
}

#[test]
fn a_scrub_between_dates_repairs_what_was_written_then() {
    let mut d = spoilt();
    let range = d.range(Some(40), Some(45));
    assert!(!range.after.is_none() && range.through.is_some());
    d.w.pool.start_scrub(range, command()).unwrap().unwrap();
    // It keeps its range over imports.
    d.w.pool.sync().unwrap();
    d.reopen();
    let s = finish(&d.w.pool);
    assert_eq!((s.state, s.errors), (ScanState::Finished, 0));
    assert_eq!(d.whole("b"), (30, 30));
    assert_eq!(d.whole("a"), (0, 30));
    assert_eq!(d.whole("c"), (0, 30));
    // There is a gap before and behind.
    assert_eq!(d.w.pool.last_scrubbed().unwrap(), None);

    let until = d.range(None, Some(35));
    assert!(until.after.is_none());
    d.w.pool.start_scrub(until, command()).unwrap().unwrap();
    assert_eq!(finish(&d.w.pool).state, ScanState::Finished);
    assert_eq!(d.whole("a"), (30, 30));
    assert_eq!(d.whole("c"), (0, 30));
    assert_eq!(d.w.pool.last_scrubbed().unwrap(), until.through);

    let since = d.range(Some(60), None);
    assert_eq!(since.through, None);
    d.w.pool.start_scrub(since, command()).unwrap().unwrap();
    assert_eq!(finish(&d.w.pool).state, ScanState::Finished);
    assert_eq!(d.whole("c"), (30, 30));
    assert_eq!(d.w.pool.last_scrubbed().unwrap(), until.through);
    rig::walk(&d.w.pool).unwrap();
}

#[test]
fn dates_nobody_noted_limit_nothing() {
    let d = spoilt();
    assert_eq!(d.range(None, None), ScrubRange::default());
    // Before the pool was made, and in the future.
    assert!(d.w.pool.txgs_between(Some(5), None).after.is_none());
    assert_eq!(d.range(None, Some(10_000)).through, None);
    // Pools without feature flags note nothing.
    let old = Dated::new(28);
    old.pass(60);
    old.w.pool.sync().unwrap();
    old.w.pool.task(|_, _| Ok(())).unwrap();
    assert_eq!(old.range(Some(61), Some(1)), ScrubRange::default());
}

#[test]
fn a_paused_scrub_keeps_its_range() {
    let d = spoilt();
    d.w.pool
        .start_scrub(ScrubRange::default(), command())
        .unwrap()
        .unwrap();
    d.w.pool.pause_scrub(command()).unwrap().unwrap();
    let range = d.range(Some(40), Some(45));
    assert_eq!(
        d.w.pool.start_scrub(range, command()).unwrap(),
        Err(ScanRefusal::PausedToCancel)
    );
}

#[test]
fn errors_stay_on_record_behind_a_scrub_of_a_part() {
    let mut d = Dated::new(5000);
    for name in ["a", "b"] {
        d.pass(20);
        d.w.fill(name, 30);
    }
    let bp = d.w.blocks("a")[5];
    for disk in &d.w.disks {
        disk.corrupt((4 << 20) + bp.dva(0).offset(), 512);
    }
    d.pass(20);
    d.reopen();
    let all = ScrubRange::default();
    d.w.pool.start_scrub(all, command()).unwrap().unwrap();
    assert_eq!(finish(&d.w.pool).errors, 1);
    assert_eq!(d.w.pool.error_count(), Some(1));
    // Nothing of it is in this part, whose beginning is that of the pool.
    let range = ScrubRange {
        after: Txg::NONE,
        through: Some(Txg::INITIAL),
    };
    d.w.pool.start_scrub(range, command()).unwrap().unwrap();
    d.reopen();
    assert_eq!(finish(&d.w.pool).errors, 0);
    assert_eq!(d.w.pool.error_count(), Some(1));
}

#[test]
fn notes_come_every_ten_minutes_and_with_an_export() {
    let mut d = Dated::new(5000);
    let noted = |d: &Dated| d.range(Some(1_000_000), None).after;
    let first = noted(&d);
    d.pass(9);
    d.w.fill("a", 1);
    assert_eq!(noted(&d), first);
    d.pass(1);
    d.w.write("a", 1);
    let second = noted(&d);
    assert!(second > first);
    // A crash keeps them.
    d.reopen();
    assert_eq!(noted(&d), second);
    d.pass(1);
    d.w.pool.export().unwrap();
    d.reopen();
    assert!(noted(&d) > second);
    // An idle pool writes nothing for it.
    let txg = d.w.pool.synced_txg();
    d.pass(100);
    d.w.pool.sync().unwrap();
    let written = d.w.disks[0].fork();
    d.pass(100);
    d.w.pool.sync().unwrap();
    let mut same = true;
    d.w.disks[0].for_each_chunk(&mut |at, bytes| {
        let mut before = vec![0; bytes.len()];
        written.peek(at, &mut before);
        same &= before == bytes;
    });
    assert!(same && d.w.pool.synced_txg() >= txg);
}
