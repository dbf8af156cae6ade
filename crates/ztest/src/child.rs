//! One pass, or one walk, in a process of its own.

use crate::acks::Acks;
use crate::desk::Desk;
use crate::layout::{self, Fs};
use crate::lives::{self, Lives};
use crate::options::Options;
use crate::work::{Counts, Worker};
use crate::{acks_file, Dice};
use base::sync::MutexExt;
use base::{Kind, Result};
use pool::Pool;
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long a group stays open, roughly.
const GROUP: Duration = Duration::from_millis(300);
/// Labels and boot area at the beginning of a device, labels at its end, bytes: rot stays away.
const FRONT: u64 = 5 << 20;
const BACK: u64 = 1 << 20;
/// What happens to the disks in a pass: they rot; devices come, go and are replaced.
pub const ROT: u64 = 1;
pub const CHANGES: u64 = 2;
/// Threads that live through snapshots and clones.
const LIVES: usize = 2;

pub fn run(o: &Options, job: &str) -> std::result::Result<(), String> {
    if job == "judge" {
        return judge(o);
    }
    let words: Vec<u64> = job.split(',').filter_map(|w| w.parse().ok()).collect();
    let [seed, millis, disks] = words[..] else {
        return Err(format!("unknown job '{job}'"));
    };
    let time = Duration::from_millis(millis);
    work(o, seed, time, disks).map_err(|e| e.to_string())
}

/// Every block is read, every copy verified, and what is found is held against the space maps and the space
/// properties of datasets.
fn judge(o: &Options) -> std::result::Result<(), String> {
    let pool = layout::open(o).map_err(|e| e.to_string())?;
    lives::judge(&pool)
}

/// Changes the pool's devices or file systems, or begins, pauses or stops a scan.
fn change(desk: &Desk<'_>, disks: u64, dice: &mut Dice, stop: &AtomicBool) -> Result<()> {
    match dice.below(12) {
        0..=1 => desk.scan(dice),
        2..=3 if disks == CHANGES => desk.change_devices(dice),
        4 if disks == CHANGES => desk.replace(dice, &|| stop.load(Ordering::Relaxed)),
        _ => desk.administer(dice),
    }
}

/// One thread's part in the lives of file systems.
fn live(lives: &Lives, dice: &mut Dice, stop: &AtomicBool, fail: &dyn Fn(base::Error)) {
    while !stop.load(Ordering::Relaxed) {
        if let Err(e) = lives.step(dice) {
            fail(e.context("lives"));
        }
        std::thread::sleep(Duration::from_millis(dice.below(60)));
    }
}

fn work(o: &Options, seed: u64, time: Duration, disks: u64) -> Result<()> {
    let mut dice = Dice::new(seed);
    let desk = Desk::import(o)?;
    let pool = desk.pool()?;
    let (acks, facts) = Acks::open(&acks_file(o))?;
    let mut sets = Vec::new();
    for n in 0..o.sets {
        sets.push(desk.mount(n, &mut dice)?);
    }
    let mut workers = Vec::new();
    for thread in 0..o.threads {
        // Each thread has its files in one file system, so that those see different loads.
        let fs = &sets[(thread % o.sets) as usize];
        workers.push(Worker::new(fs, thread, &facts)?);
    }
    let lives = desk.lives(false)?;
    let (stop, counts) = (AtomicBool::new(false), Counts::default());
    let first: Mutex<Option<base::Error>> = Mutex::default();
    let fail = |e: base::Error| {
        stop.store(true, Ordering::Relaxed);
        let mut f = first.acquire();
        f.get_or_insert(e);
    };
    let (d1, d2) = (dice.below(u64::MAX), dice.below(u64::MAX));
    let d3 = dice.below(u64::MAX);
    std::thread::scope(|s| {
        for w in &mut workers {
            let mut dice = Dice::new(dice.below(u64::MAX));
            let (acks, stop, counts, fail) = (&acks, &stop, &counts, &fail);
            s.spawn(move || {
                if let Err(e) = w.run(acks, &mut dice, stop, counts) {
                    fail(e);
                }
            });
        }
        s.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                if !pool.wait_for_work(GROUP) {
                    continue;
                }
                if let Err(e) = pool.sync() {
                    fail(e);
                }
            }
        });
        s.spawn(|| {
            if let Err(e) = snapshots(&pool, o, &sets, Dice::new(d1), &stop) {
                fail(e);
            }
        });
        s.spawn(|| {
            let mut dice = Dice::new(d3);
            while !stop.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(100 + dice.below(400)));
                match change(&desk, disks, &mut dice, &stop) {
                    Err(e) if !matches!(e.kind, Kind::NoSpace | Kind::Quota) => {
                        fail(e.context("administration"));
                    }
                    _ => {}
                }
            }
        });
        for _ in 0..LIVES {
            let mut dice = Dice::new(dice.below(u64::MAX));
            let (lives, stop, fail) = (&lives, &stop, &fail);
            s.spawn(move || live(lives, &mut dice, stop, fail));
        }
        if disks == ROT {
            s.spawn(|| {
                if let Err(e) = decay(o, Dice::new(d2), &stop) {
                    fail(e);
                }
            });
        }
        let until = Instant::now() + time;
        while Instant::now() < until && !stop.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(20));
        }
        stop.store(true, Ordering::Relaxed);
        dmu::Driver::kick(&*pool);
    });
    if let Some(e) = first.into_inner().unwrap_or_else(PoisonError::into_inner) {
        return Err(e);
    }
    if o.verbose {
        println!(
            "ztest: {} operations, {} acknowledged, {} times full",
            counts.operations.load(Ordering::Relaxed),
            counts.acknowledged.load(Ordering::Relaxed),
            counts.full.load(Ordering::Relaxed)
        );
    }
    drop(workers);
    // Often they go on in the next process.
    if dice.below(4) == 0 {
        lives.end()?;
    }
    lives.rest()?;
    drop(lives);
    // Sometimes as if somebody had forgotten to end properly.
    if dice.below(3) == 0 {
        return Ok(());
    }
    for fs in sets {
        desk.unmount(fs)?;
    }
    drop(pool);
    desk.end(dice.below(2) == 0)
}

/// Makes and destroys snapshots.
fn snapshots(
    pool: &Arc<Pool>,
    o: &Options,
    sets: &[Fs],
    mut dice: Dice,
    stop: &AtomicBool,
) -> Result<()> {
    while !stop.load(Ordering::Relaxed) {
        std::thread::sleep(Duration::from_millis(100 + dice.below(400)));
        let fs = &sets[dice.below(sets.len() as u64) as usize];
        let (name, of) = (fs.name.clone(), o.pool.clone());
        let snap = format!("s{}", dice.below(6));
        let done = pool.task(move |pool, tx| {
            let head = Fs::dataset(pool, &of, name.as_deref())?;
            match head.snapshot_named(&snap)? {
                Some(s) => pool.dsl.destroy_snapshot(tx, &s),
                None => pool.snapshot_in(tx, &[(head, snap)]),
            }
        });
        match done {
            Err(e) if !matches!(e.kind, Kind::NoSpace | Kind::Quota) => {
                return Err(e.context("a snapshot"));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Spoils the first disk of every top-level vdev here and there, always the same one, so that the
/// others can make up for it.
fn decay(o: &Options, mut dice: Dice, stop: &AtomicBool) -> Result<()> {
    let failed = |e: std::io::Error| base::Error::new(Kind::Io, format!("an image: {e}"));
    let firsts: Vec<_> = (0..)
        .map(|top| layout::image(o, top, 0))
        .take_while(|p| p.exists())
        .collect();
    while !stop.load(Ordering::Relaxed) {
        std::thread::sleep(Duration::from_millis(20 + dice.below(200)));
        let path = &firsts[dice.below(firsts.len() as u64) as usize];
        let f = OpenOptions::new().write(true).open(path).map_err(failed)?;
        let len = 512 << dice.below(8);
        let room = o.size.saturating_sub(FRONT + BACK + len);
        let at = FRONT + dice.below(room) / 512 * 512;
        let junk: Vec<u8> = (0..len).map(|_| dice.below(256) as u8).collect();
        f.write_all_at(&junk, at).map_err(failed)?;
    }
    Ok(())
}
