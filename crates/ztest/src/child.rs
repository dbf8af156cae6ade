//! A child process that does one pass, or one audit.

use crate::acks::Acks;
use crate::damage::{self, Part};
use crate::desk::Desk;
use crate::layout::{self, Fs};
use crate::lives::{self, Lives};
use crate::options::Options;
use crate::refusals::Refusals;
use crate::work::{Counts, Worker};
use crate::{acks_file, shapes, unlucky, Dice};
use base::sync::MutexExt;
use base::{Kind, Result};
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long a txg stays open, roughly.
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
    match job.split_once(',') {
        None if job == "judge" => return judge(o),
        None if job == "damaged" => return damage::judge(o).map_err(|e| e.to_string()),
        Some(("unlucky", seed)) => {
            let seed = seed.parse().map_err(|e| format!("seed {seed}: {e}"))?;
            return unlucky::run(o, seed).map_err(|e| e.to_string());
        }
        _ => {}
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
    let kept = pool.shares().checkpoint.txg().is_some();
    lives::judge(&pool)?;
    if !kept {
        return Ok(());
    }
    pool.close().map_err(|e| e.to_string())?;
    shapes::judge_checkpoint(o)
}

/// Changes the pool's devices or file systems, or begins, pauses or stops a scan. `changing`: devices come, go and are replaced; logs
/// always do. `waits`: the pool waits for its devices now and then.
fn change(
    desk: &Desk<'_>,
    (changing, waits): (bool, bool),
    dice: &mut Dice,
    stop: &AtomicBool,
) -> Result<()> {
    // What rots on one disk would be copied to others.
    if dice.below(8) == 0 && !waits && (changing || desk.is_plain()?) {
        return desk.shape(dice, &|| stop.load(Ordering::Relaxed));
    }
    if dice.below(16) == 0 {
        return desk.keep_or_discard();
    }
    match dice.below(18) {
        0..=1 => desk.scan(dice),
        16..=17 => desk.wear(dice),
        2..=3 if changing => desk.change_devices(dice),
        4 if changing => {
            let stop = || stop.load(Ordering::Relaxed);
            match desk.has_distributed_spares()? && dice.below(3) > 0 {
                true => desk.spare(dice, &stop),
                false => desk.replace(dice, &stop),
            }
        }
        5..=8 => desk.change_log(dice, waits),
        15 if changing => {
            let sequential = dice.below(2) == 0;
            let stop = || stop.load(Ordering::Relaxed);
            desk.split(sequential, &stop).map(drop)
        }
        _ => desk.administer(dice),
    }
}

/// Carries a command out. What is refused because the pool waits for its devices is no failure.
fn unless_refused<R>(
    refusals: &Option<Refusals>,
    command: impl FnOnce() -> Result<R>,
) -> Result<Option<R>> {
    let since = refusals.as_ref().map(|r| r.now());
    match command() {
        Ok(r) => Ok(Some(r)),
        Err(e) => match refusals.as_ref().zip(since) {
            Some((r, since)) if e.kind == Kind::Io && r.excuse(since) => Ok(None),
            _ => Err(e),
        },
    }
}

/// One thread's changes of the pool, one after the other.
fn administer(
    desk: &Desk<'_>,
    changing: bool,
    refusals: &Option<Refusals>,
    mut dice: Dice,
    stop: &AtomicBool,
    fail: &dyn Fn(base::Error),
) {
    let how = (changing, refusals.is_some());
    while !stop.load(Ordering::Relaxed) {
        std::thread::sleep(Duration::from_millis(100 + dice.below(400)));
        match unless_refused(refusals, || change(desk, how, &mut dice, stop)) {
            Err(e) if !matches!(e.kind, Kind::NoSpace | Kind::Quota) => {
                fail(e.context("administration"));
            }
            _ => {}
        }
    }
}

/// One thread's part in the lives of file systems.
fn live(
    lives: &Lives,
    refusals: &Option<Refusals>,
    dice: &mut Dice,
    stop: &AtomicBool,
    fail: &dyn Fn(base::Error),
) {
    while !stop.load(Ordering::Relaxed) {
        let step = |dice: &mut Dice| match dice.below(40) {
            0 => lives.upgrade(dice),
            _ => lives.step(dice),
        };
        if let Err(e) = unless_refused(refusals, || step(dice)) {
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
    let refusals = match disks != ROT && dice.below(3) == 0 {
        true => Some(desk.refusals()?),
        false => None,
    };
    let (stop, counts) = (AtomicBool::new(false), Counts::default());
    let first: Mutex<Option<base::Error>> = Mutex::default();
    let fail = |e: base::Error| {
        stop.store(true, Ordering::Relaxed);
        let mut f = first.acquire();
        f.get_or_insert(e);
    };
    let (d1, d2) = (dice.below(u64::MAX), dice.below(u64::MAX));
    let (d3, d4) = (dice.below(u64::MAX), dice.below(u64::MAX));
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
            if let Err(e) = snapshots(&desk, &sets, &refusals, Dice::new(d1), &stop) {
                fail(e);
            }
        });
        s.spawn(|| {
            // A device that refuses may be the only one that is right.
            let changing = disks == CHANGES && refusals.is_none();
            let dice = Dice::new(d3);
            administer(&desk, changing, &refusals, dice, &stop, &fail);
        });
        for _ in 0..LIVES {
            let mut dice = Dice::new(dice.below(u64::MAX));
            let (lives, refusals, stop, fail) = (&lives, &refusals, &stop, &fail);
            s.spawn(move || live(lives, refusals, &mut dice, stop, fail));
        }
        if disks == ROT {
            s.spawn(|| {
                if let Err(e) = decay(o, Dice::new(d2), &stop) {
                    fail(e);
                }
            });
        }
        if let Some(r) = &refusals {
            let (dice, stop, counts) = (Dice::new(d4), &stop, &counts);
            s.spawn(move || {
                let waited = r.run(dice, stop);
                counts.waited.fetch_add(waited, Ordering::Relaxed);
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
            "ztest: {} operations, {} acknowledged, {} times full, {} times waited for devices",
            counts.operations.load(Ordering::Relaxed),
            counts.acknowledged.load(Ordering::Relaxed),
            counts.full.load(Ordering::Relaxed),
            counts.waited.load(Ordering::Relaxed)
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
    if dice.below(2) == 0 {
        return leave_damaged(&desk, &sets, &mut dice);
    }
    for fs in sets {
        desk.unmount(fs)?;
    }
    drop(pool);
    desk.end(dice.below(2) == 0)
}

/// Leaves a copy of the pool with one file system damaged, which another process judges.
fn leave_damaged(desk: &Desk<'_>, sets: &[Fs], dice: &mut Dice) -> Result<()> {
    let part = [Part::Root, Part::Properties][dice.below(2) as usize];
    // The first one is that of the pool, without which there is no other.
    let below = sets.get(1..).unwrap_or_default();
    match below.get(dice.below(below.len() as u64) as usize) {
        Some(fs) => damage::spoil(desk, fs, part).map(drop),
        None => Ok(()),
    }
}

/// Makes and destroys snapshots.
fn snapshots(
    desk: &Desk<'_>,
    sets: &[Fs],
    refusals: &Option<Refusals>,
    mut dice: Dice,
    stop: &AtomicBool,
) -> Result<()> {
    while !stop.load(Ordering::Relaxed) {
        std::thread::sleep(Duration::from_millis(100 + dice.below(400)));
        let fs = &sets[dice.below(sets.len() as u64) as usize];
        let snap = format!("s{}", dice.below(6));
        let change = || desk.change_snapshot(fs.name.as_deref(), &snap);
        match unless_refused(refusals, change) {
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
