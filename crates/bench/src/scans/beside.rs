//! What a job of the pool costs the transactions of pgbench beside it.

use super::At;
use crate::child;
use crate::device::warm_memory;
use crate::measure::Measure;
use crate::rows::{Work, ROWS};
use crate::systems::ours::{Ours, POOL};
use crate::systems::System;
use base::{bail, Result};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// A job that runs beside pgbench.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Job {
    Scrub,
    Expansion,
    Removal,
    Trim,
    Initialize,
}

impl Job {
    pub const ALL: [Job; 5] = [
        Job::Scrub,
        Job::Expansion,
        Job::Removal,
        Job::Trim,
        Job::Initialize,
    ];

    fn name(self) -> &'static str {
        match self {
            Job::Scrub => "scrub",
            Job::Expansion => "expansion",
            Job::Removal => "removal",
            Job::Trim => "trim",
            Job::Initialize => "initialize",
        }
    }

    /// Whether it can be done again in the same pool.
    fn repeats(self) -> bool {
        !matches!(self, Job::Expansion | Job::Removal)
    }

    /// The vdevs of the pool, and the command that runs the job to its end. Four devices.
    fn layout(self, paths: &[String]) -> (Vec<&str>, Vec<&str>) {
        let all: Vec<&str> = paths.iter().map(String::as_str).collect();
        match self {
            Job::Scrub => (all[..1].to_vec(), vec!["scrub", "-w", POOL]),
            Job::Expansion => {
                let vdevs = [&["raidz1"], &all[..3]].concat();
                (vdevs, vec!["attach", "-f", "-w", POOL, "raidz1-0", all[3]])
            }
            Job::Removal => (all[..2].to_vec(), vec!["remove", "-w", POOL, all[1]]),
            Job::Trim => (all[..1].to_vec(), vec!["trim", "-w", POOL]),
            Job::Initialize => (all[..1].to_vec(), vec!["initialize", "-w", POOL]),
        }
    }
}

impl At<'_> {
    /// Transactions a second of pgbench in a pool without the job, and in one with it.
    pub(super) fn pgbench(&mut self, job: Job) -> Result<()> {
        let paths = self.paths();
        let (vdevs, command) = job.layout(&paths);
        let mut rates = Vec::new();
        for with in [false, true] {
            let mut ours = self.ours()?;
            warm_memory(1 << 30)?;
            self.pool_of(&mut ours, "128K", &vdevs)?;
            self.fill(&mut ours)?;
            self.cold(&ours)?;
            let over = AtomicBool::new(false);
            let (measured, jobs) = std::thread::scope(|s| {
                // It begins anew whenever it has come to its end.
                let jobs = with.then(|| {
                    let (ours, over, command) = (&ours, &over, &command);
                    s.spawn(move || repeat(ours, command, job.repeats(), over))
                });
                let measured = self.transactions(&ours);
                over.store(true, Ordering::Relaxed);
                // It may be in the middle of one, or between two.
                let end = match job {
                    Job::Scrub => "scrub",
                    Job::Trim => "trim",
                    Job::Initialize => "initialize",
                    Job::Expansion | Job::Removal => "",
                };
                if !end.is_empty() {
                    let how = if end == "scrub" { "-s" } else { "-c" };
                    let _ = ours.admin("zpool", &[end, how, POOL]);
                }
                (measured, jobs.map(|t| t.join()))
            });
            match jobs {
                Some(Ok(Err(e))) => return Err(e),
                Some(Err(_)) => bail!(Io, "the thread of the job panicked"),
                Some(Ok(Ok(said))) => eprintln!("bench: {} beside pgbench: {said}", job.name()),
                None => {}
            }
            rates.push(measured?);
            ours.end()?;
        }
        if let [without, beside] = rates[..] {
            eprintln!(
                "bench: pgbench on {}: {without:.0} 1/s, {beside:.0} 1/s beside {}",
                self.system,
                job.name()
            );
            self.results
                .beside(job.name(), self.system, without, beside);
        }
        Ok(())
    }

    /// The yardstick's row `pgbench`, by a worker.
    pub(super) fn transactions(&self, ours: &Ours) -> Result<f64> {
        let Some(row) = ROWS.iter().find(|r| r.name == "pgbench") else {
            bail!(NotFound, "the yardstick has no row pgbench");
        };
        for t in row.tools {
            t.path()?;
        }
        let w = self.work(ours);
        let own = std::env::current_exe()?;
        for phase in row.phases {
            let mut c = ours.command(own.as_os_str());
            c.args(w.arguments(row, phase));
            let patience = Duration::from_secs(300 + 10 * self.o.seconds);
            let said = child::run(&mut c, patience, true)?;
            let all = Measure::parse_all(&said.out)?;
            if let Some(m) = all.iter().find(|m| m.name == "tpcb") {
                return Ok(m.value());
            }
        }
        bail!(Io, "pgbench measured nothing")
    }

    pub(super) fn work(&self, ours: &Ours) -> Work {
        Work {
            dir: ours.dir().join("w"),
            scratch: self.world.folder.join("scratch"),
            size: self.o.size,
            large: self.o.size,
            seconds: self.o.seconds,
        }
    }
}

/// Runs the job, again and again if it can be, until the time is over; says how often it ended, or when.
fn repeat(ours: &Ours, command: &[&str], again: bool, over: &AtomicBool) -> Result<String> {
    let (start, mut n) = (Instant::now(), 0);
    while !over.load(Ordering::Relaxed) {
        ours.admin("zpool", command)?;
        n += 1;
        if !again {
            let seconds = start.elapsed().as_secs();
            let when = if over.load(Ordering::Relaxed) {
                "after it"
            } else {
                "before it ended"
            };
            return Ok(format!("done after {seconds} s, {when}"));
        }
    }
    Ok(format!("{n} times"))
}
