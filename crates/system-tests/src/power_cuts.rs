//! Lives of a pool on [`FaultyDisks`]: work, a power cut, judgement, and again.
//!
//! 1. While writers, a load and an administrator (`administrator`) are at work, the power is cut and the daemon
//!    killed. What `fsync` or a command acknowledged is recorded outside the pool. A log device comes and goes in every layout.
//! 2. The stable images are walked by OpenZFS's `zdb -e -p -bcc` and by ours, with logs as the cut
//!    left them.
//! 3. A new daemon imports the pool. Everything acknowledged must be there; what was under way may be
//!    there or not.
//!
//! In some rounds disks fail before the cut: one disk of a layout with redundancy now and then, or
//! all of them. In some, reads fail while the new daemon imports the pool and replays its logs. Errors
//! are no excuse for losing what was acknowledged.
//!
//! The seed determines what is written, which faults there are and what a cut leaves of the writes it
//! meets. When it happens is up to the machine: a finding's images are kept with
//! `ZFS_FUSE_TEST_KEEP`, and those repeat it.

use crate::administrator::Admin;
use crate::faulty_disks::{Cut, Fate, Fault, FaultyDisks, On, Trouble, EIO, ENOSPC};
use crate::load::{disturb, Writer};
use crate::{Dice, Rig};
use std::panic::{catch_unwind, resume_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Mutex;
use std::time::{Duration, Instant};
use testkit::{or_skip, OpenZfs};

/// How the disks are put together.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    pub name: &'static str,
    /// Words of `zpool create`; `DISK` stands for one of the disks.
    vdevs: &'static str,
    ashift: &'static str,
    /// Whether the pool lives on without one disk.
    redundant: bool,
}

const fn layout(
    name: &'static str,
    vdevs: &'static str,
    ashift: &'static str,
    redundant: bool,
) -> Layout {
    Layout {
        name,
        vdevs,
        ashift,
        redundant,
    }
}

pub const LAYOUTS: [Layout; 7] = [
    layout("single", "DISK", "ashift=9", false),
    layout("log", "DISK DISK log DISK", "ashift=12", false),
    layout("mirror", "mirror DISK DISK", "ashift=12", true),
    layout("raidz1", "raidz1 DISK DISK DISK", "ashift=12", true),
    layout(
        "raidz2",
        "raidz2 DISK DISK DISK DISK DISK",
        "ashift=9",
        true,
    ),
    layout(
        "raidz3",
        "raidz3 DISK DISK DISK DISK DISK",
        "ashift=9",
        true,
    ),
    layout(
        "draid1",
        "draid1:2d:4c:0s DISK DISK DISK DISK",
        "ashift=12",
        true,
    ),
];

/// What a life is made of.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub layout: Layout,
    pub seed: u64,
    /// Power cuts.
    pub cuts: u64,
    /// Longest time of work before a cut, in milliseconds.
    pub work: u64,
    /// Whether disks fail in some of the rounds.
    pub faults: bool,
    /// The disks acknowledge flushes without doing them: something must be found.
    pub lies: bool,
    /// Says what happens.
    pub verbose: bool,
}

/// What came out.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    pub cuts: u64,
    /// Operations and commands that were acknowledged.
    pub acknowledged: u64,
    /// Cuts at which something was not flushed.
    pub dirty: u64,
    /// Rounds in which disks failed.
    pub faults: u64,
    /// Rounds in which a command started a daemon that waited for disks without power.
    pub abandoned: u64,
    pub findings: Vec<String>,
}

impl Outcome {
    pub fn add(&mut self, other: Outcome) {
        self.cuts += other.cuts;
        self.acknowledged += other.acknowledged;
        self.dirty += other.dirty;
        self.faults += other.faults;
        self.abandoned += other.abandoned;
        self.findings.extend(other.findings);
    }
}

/// Lives a life up to its end or its first finding. `None` after saying why if nothing can be
/// mounted here.
pub fn live(plan: &Plan) -> Option<Outcome> {
    let name = format!("cut-{}", plan.layout.name);
    let disks = FaultyDisks::new(&name)?;
    let mut rig = Rig::new(&name)?;
    let outcome = Mutex::new(Outcome::default());
    let life = AssertUnwindSafe(|| {
        Life::begin(plan, &disks, &mut rig, &outcome).go_on();
    });
    if let Err(panic) = catch_unwind(life) {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or(panic.downcast_ref::<&str>().map(|s| s.to_string()));
        let mut o = lock(&outcome);
        let finding = format!(
            "{} seed {} cut {}: {}",
            plan.layout.name,
            plan.seed,
            o.cuts,
            text.unwrap_or_else(|| "panic".into())
        );
        o.findings.push(finding);
        if !plan.lies {
            rig.keep_evidence_of(&disks.stable(), &format!("{name}-{}", plan.seed));
        }
        disks.heal();
        disks.power_on();
        rig.kill_all();
    }
    let outcome = lock(&outcome).clone();
    Some(outcome)
}

fn lock<T>(m: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    m.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

struct Life<'a> {
    plan: &'a Plan,
    disks: &'a FaultyDisks,
    rig: &'a mut Rig,
    outcome: &'a Mutex<Outcome>,
    writers: Vec<Writer>,
    admin: Admin,
    dice: Dice,
}

/// How often is asked whether the administrator has come to an end.
const TICK: Duration = Duration::from_millis(20);
/// What has not ended so long after the cut waits for a daemon whose disks are off, if a command started one.
const WITHOUT_POWER: Duration = Duration::from_secs(3);

/// The disk that fails where there is redundancy: always the same, since what it misses stays
/// missing.
const VICTIM: &str = "d0";

/// Has the victim fail, or all disks where none may; tells how.
fn make_trouble(disks: &FaultyDisks, layout: Layout, dice: &mut Dice) -> String {
    let n = 1 + dice.below(6);
    let error = |on, errno| Fault::every(on, Trouble::Error(errno)).one_of(n);
    let fault = match dice.below(7) {
        0 => error(On::Write, EIO),
        1 => error(On::Read, EIO),
        2 => error(On::Flush, EIO),
        3 => error(On::Write, ENOSPC).within(100 << 20..u64::MAX),
        4 => Fault::every(On::Flush, Trouble::Lose).one_of(n),
        5 => error(On::Write, EIO).within(0..4 << 20),
        _ if layout.redundant => {
            disks.pull_out(VICTIM);
            return format!("{VICTIM} pulled out");
        }
        _ => {
            disks.fail_all_writes();
            return "all writes fail".into();
        }
    };
    let text = format!("{fault:?}");
    if layout.redundant {
        disks.fail(VICTIM, fault);
        return format!("{VICTIM}: {text}");
    }
    disks.fail_all(fault);
    format!("all: {text}")
}

impl<'a> Life<'a> {
    fn begin(
        plan: &'a Plan,
        disks: &'a FaultyDisks,
        rig: &'a mut Rig,
        outcome: &'a Mutex<Outcome>,
    ) -> Life<'a> {
        let words: Vec<&str> = plan.layout.vdevs.split(' ').collect();
        let count = words.iter().filter(|w| **w == "DISK").count();
        // One more disk where no log is in the pool from the beginning.
        let spare = usize::from(!words.contains(&"log"));
        let paths = disks.disks(count + spare, 256 << 20);
        let log = paths.last().expect("a disk").to_string();
        let mut paths = paths.into_iter();
        let mnt = rig.mnt();
        let mut args: Vec<String> = ["create", "-o", plan.layout.ashift, "-m"]
            .map(String::from)
            .into();
        args.push(mnt.to_str().expect("plain path").into());
        args.push("tank".into());
        for w in words {
            args.push(match w {
                "DISK" => paths.next().expect("as many as counted"),
                _ => w.into(),
            });
        }
        rig.start();
        rig.zpool(&args.iter().map(String::as_str).collect::<Vec<_>>());
        rig.zfs(&["create", "-o", "recordsize=16K", "tank/small"]);
        let places = [mnt.join("w0"), mnt.join("w1"), mnt.join("small/w2")];
        let writers = places.into_iter().zip(plan.seed * 10..);
        let writers = writers.map(|(dir, seed)| Writer::new(dir, seed).expect("writer"));
        let mut dice = Dice::new(plan.seed);
        let life = Life {
            writers: writers.collect(),
            admin: Admin::new(dice.draw(), log, mnt),
            dice,
            plan,
            disks,
            rig,
            outcome,
        };
        life.disks.lie_about_flushes(plan.lies);
        life
    }

    fn go_on(mut self) {
        for n in 1..=self.plan.cuts {
            self.round(n);
        }
        self.disks.lie_about_flushes(false);
        self.rig.zpool(&["export", "tank"]);
        self.judge_images();
        let folder = self.disks.folder();
        let folder = folder.to_str().expect("plain path");
        self.rig.zpool(&["import", "-d", folder, "tank"]);
        self.judge_content();
        self.rig.zpool(&["export", "tank"]);
        self.rig.stop();
    }

    fn round(&mut self, n: u64) {
        let work = Duration::from_millis(100 + self.dice.below(self.plan.work));
        let fails_after = work.mul_f64(self.dice.below(10) as f64 / 10.0);
        let fate = Fate::draw(&mut self.dice);
        let cut_first = self.dice.below(2) == 0;
        // In the middle of a batch of writes, or whenever.
        let some = self.dice.below(150);
        let after_writes = (self.dice.below(3) > 0).then_some(some);
        let mut cut_dice = Dice::new(self.dice.draw());
        let stop = AtomicBool::new(false);
        let before = self.acknowledged();
        let plug = self.rig.plug();
        let mnt = self.rig.mnt();
        let mut admin = std::mem::take(&mut self.admin);
        let mut writers = std::mem::take(&mut self.writers);
        let mut cut: Option<Cut> = None;
        let mut gone_wrong = None;
        let mut trouble = None;
        std::thread::scope(|s| {
            let (stop, mnt) = (&stop, &mnt);
            let mut others = Vec::new();
            for w in &mut writers {
                others.push(s.spawn(|| w.work(stop)));
            }
            others.push(s.spawn(move || disturb(mnt, n, stop)));
            let rig = &*self.rig;
            let admin = &mut admin;
            let at_work = s.spawn(move || admin.work(rig, stop));
            std::thread::sleep(fails_after);
            if self.plan.faults && self.dice.below(3) == 0 {
                lock(self.outcome).faults += 1;
                trouble = Some(make_trouble(self.disks, self.plan.layout, &mut self.dice));
            }
            if let Some(writes) = after_writes {
                self.disks.fail_after(writes);
            }
            std::thread::sleep(work - fails_after);
            if after_writes.is_some() {
                // Where nothing can be written any more it does not come to that.
                let begin = Instant::now();
                while !self.disks.is_off() && begin.elapsed() < Duration::from_secs(2) {
                    std::thread::sleep(Duration::from_millis(5));
                }
            }
            stop.store(true, Ordering::Relaxed);
            if cut_first {
                cut = Some(self.disks.cut(fate, &mut cut_dice));
                plug();
            } else {
                plug();
                cut = Some(self.disks.cut(fate, &mut cut_dice));
            }
            // A command that finds no daemon starts one: it must have done so before the daemons
            // are killed. Such a daemon waits for disks that are off, and what asks it waits along.
            let mut waited = Duration::ZERO;
            let mut killed = false;
            while !at_work.is_finished() || !others.iter().all(|o| o.is_finished()) {
                std::thread::sleep(TICK);
                waited += TICK;
                if waited > WITHOUT_POWER {
                    killed |= self.rig.kill_background();
                    waited = Duration::ZERO;
                }
            }
            lock(self.outcome).abandoned += u64::from(killed);
            gone_wrong = at_work.join().err();
        });
        (self.admin, self.writers) = (admin, writers);
        self.rig.kill_all();
        if let Some(panic) = gone_wrong {
            resume_unwind(panic);
        }
        let cut = cut.expect("a cut");
        let done = self.acknowledged() - before;
        {
            let mut o = lock(self.outcome);
            o.cuts += 1;
            o.acknowledged += done;
            o.dirty += u64::from(cut.writes > 0);
        }
        if self.plan.verbose {
            let trouble = trouble.unwrap_or_else(|| "no faults".into());
            eprintln!(
                "{} seed {} cut {n}: {cut}; {done} acknowledged; {trouble}",
                self.plan.layout.name, self.plan.seed
            );
        }
        self.disks.heal();
        self.judge_images();
        self.disks.power_on();
        self.start_anew();
        self.judge_content();
        self.rig.sh(&format!("rm -rf {}/load-*", mnt.display()));
        Admin::make_room(self.rig);
    }

    /// The daemon starts and imports the pool. In some rounds reads fail meanwhile: what is refused because of that is
    /// there for the next attempt.
    fn start_anew(&mut self) {
        let armed = self.plan.faults && self.dice.below(2) == 0;
        if armed {
            let n = 1 + self.dice.below(8);
            let fault = Fault::every(On::Read, Trouble::Error(EIO)).one_of(n);
            if self.plan.verbose {
                eprintln!("reads fail during the import: {fault:?}");
            }
            match self.plan.layout.redundant {
                true => self.disks.fail(VICTIM, fault),
                false => self.disks.fail_all(fault),
            }
        }
        self.rig.start();
        if !armed {
            self.make_room();
            return;
        }
        self.disks.heal();
        let folder = self.disks.folder();
        let folder = folder.to_str().expect("plain path");
        if !self
            .rig
            .try_run("zpool", &["get", "-H", "guid", "tank"])
            .status
            .success()
        {
            self.import(folder);
        }
        let health = self.rig.zpool(&["list", "-H", "-o", "health", "tank"]);
        if ["UNAVAIL", "FAULTED", "SUSPENDED"].contains(&health.trim()) {
            self.import(folder);
        }
        self.rig.zpool(&["clear", "tank"]);
        self.make_room();
    }

    /// Imports the pool; in a full one directories of mount points may be missing.
    fn import(&self, folder: &str) {
        let said = self.rig.try_run("zpool", &["import", "-d", folder, "tank"]);
        let full = said.err.contains("No space left on device");
        assert!(said.status.success() || full, "{said}");
    }

    /// What the load has filled is freed, so that everything can be mounted and written.
    fn make_room(&self) {
        Admin::make_room(self.rig);
        self.rig.zfs(&["mount", "-a"]);
    }

    fn acknowledged(&self) -> u64 {
        self.writers.iter().map(|w| w.done).sum::<u64>() + self.admin.done
    }

    /// Both `zdb` walk what is stable.
    fn judge_images(&self) {
        let stable = self.disks.stable();
        if let Some(oz) = or_skip(OpenZfs::get()) {
            if let Err(e) = oz.check(&stable, "tank") {
                panic!("OpenZFS's zdb: {e}");
            }
        }
        let folder = stable.to_str().expect("plain path");
        let said = self
            .rig
            .try_run("zdb", &["-e", "-p", folder, "-bcc", "tank"]);
        assert!(said.status.success(), "our zdb: {said}");
        assert!(said.out.contains("No leaks"), "our zdb: {said}");
    }

    /// What was acknowledged is there.
    fn judge_content(&mut self) {
        let mut wrong = Vec::new();
        for w in &mut self.writers {
            wrong.extend(w.verify().err());
        }
        wrong.extend(self.admin.verify(self.rig).err());
        let log = self.rig.log();
        let tail: Vec<&str> = log.lines().rev().take(20).collect();
        assert!(
            wrong.is_empty(),
            "{}\nlog, newest line first:\n{}",
            wrong.join("\n"),
            tail.join("\n")
        );
    }
}
