//! The run: rounds, rows, systems, each row on one system after the other before the next row.

use crate::child::{self, interrupted};
use crate::device::{warm_memory, Device};
use crate::options::Options;
use crate::results::Results;
use crate::rows::{Phase, Row, Work, ROWS};
use crate::systems::{self, System, World};
use crate::usage::Meter;
use crate::{machine, markdown, measure::Measure, plot};
use base::{bail, Kind, Result};
use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

type Opened = Vec<(String, Box<dyn System>)>;

/// Runs everything and writes the report; false if a row failed for another reason than that it
/// cannot be run here.
pub fn run(o: &Options) -> Result<bool> {
    let (folder, programs) = systems::ready(o)?;
    let scratch = folder.join("scratch");
    std::fs::create_dir_all(&scratch)?;
    eprintln!("bench: preparing the device");
    let device = match &o.device {
        Some(d) => Device::given(d)?,
        None => Device::on_image(&folder, o.image_bytes())?,
    };
    let mut results = Results {
        facts: facts(o, &device),
        systems: o.systems.clone(),
        ..Results::default()
    };
    let world = Arc::new(World {
        device,
        folder,
        programs,
        before: o.before.clone(),
    });
    let mut run = Run {
        o,
        scratch,
        given_up: HashSet::new(),
        sound: true,
        results: &mut results,
        begin: Instant::now(),
    };
    let mut open: Opened = Vec::new();
    for name in &o.systems {
        match systems::open(name, &world) {
            Ok(s) => open.push((name.clone(), s)),
            Err(e) => run.missing("all rows", name, &e),
        }
    }
    let done = run.rounds(&mut open);
    let sound = run.sound;
    if let Err(e) = &done {
        results.add_missing("the rest", "all systems", &e.to_string());
    }
    write(&results, &o.out)?;
    drop(open);
    done.map(|()| sound)
}

struct Run<'a> {
    o: &'a Options,
    scratch: PathBuf,
    /// Rows and systems that cannot be run here: not tried again.
    given_up: HashSet<(String, String)>,
    sound: bool,
    results: &'a mut Results,
    begin: Instant,
}

impl Run<'_> {
    fn missing(&mut self, what: &str, system: &str, e: &base::Error) {
        eprintln!("bench: not run: {what} on {system}: {e}");
        self.results.add_missing(what, system, &e.to_string());
        if e.kind != Kind::Unsupported {
            self.sound = false;
        }
    }

    fn over(&self, more: Duration) -> bool {
        let limit = self.o.limit.map(Duration::from_secs);
        limit.is_some_and(|l| self.begin.elapsed() + more > l)
    }

    fn rounds(&mut self, open: &mut Opened) -> Result<()> {
        let mut longest = Duration::ZERO;
        for round in 0..self.o.rounds {
            if round > 0 && self.over(longest) {
                eprintln!("bench: no time for another round");
                break;
            }
            let start = Instant::now();
            self.results.rounds = round + 1;
            for row in ROWS.iter().filter(|r| self.o.wants(r.name)) {
                self.row(row, round, open)?;
            }
            longest = longest.max(start.elapsed());
        }
        Ok(())
    }

    fn row(&mut self, row: &Row, round: u32, open: &mut Opened) -> Result<()> {
        let names: Vec<String> = open.iter().map(|(n, _)| n.clone()).collect();
        for at in order(row.name, round, &names) {
            let (name, system) = &mut open[at];
            if interrupted() {
                bail!(Interrupted, "interrupted");
            }
            let key = (row.name.to_string(), name.clone());
            if self.given_up.contains(&key) {
                continue;
            }
            let started = Instant::now();
            let done = match self.over(Duration::ZERO) {
                true => Err(base::Error::new(
                    Kind::Unsupported,
                    "the time was over (--limit)",
                )),
                false => self.on_system(row, name, system.as_mut()),
            };
            let ended = system.end();
            if let Err(e) = done.and(ended) {
                if e.kind == Kind::Interrupted {
                    return Err(e);
                }
                if e.kind == Kind::Unsupported {
                    self.given_up.insert(key);
                }
                self.missing(row.name, name, &e);
            }
            let seconds = started.elapsed().as_secs_f64();
            eprintln!("round {} {} on {name}: {seconds:.1} s", round + 1, row.name);
        }
        Ok(())
    }

    fn on_system(&mut self, row: &Row, name: &str, system: &mut dyn System) -> Result<()> {
        for t in row.tools {
            t.path()?;
        }
        system.make()?;
        if row.dedup {
            system.deduplicate()?;
        }
        for phase in row.phases {
            if let Err(e) = self.phase(row, phase, name, system) {
                return Err(base::Error::new(e.kind, format!("{}: {e}", phase.name)));
            }
        }
        Ok(())
    }

    fn phase(
        &mut self,
        row: &Row,
        phase: &Phase,
        name: &str,
        system: &mut dyn System,
    ) -> Result<()> {
        if phase.cold {
            // Everything is on the device before it is measured how it comes back.
            system.settle()?;
            system.cold()?;
        }
        let w = Work {
            dir: system.dir().join("w"),
            scratch: self.scratch.clone(),
            size: self.o.size,
            large: self.o.large,
            seconds: self.o.seconds,
        };
        warm_memory((self.o.size + 2 * self.o.large).min(1 << 30))?;
        let own = std::env::current_exe()?;
        let mut c = system.command(own.as_os_str());
        c.args(w.arguments(row, phase)).envs(system.streams());
        let meter = system.daemon().map(Meter::start);
        let patience = Duration::from_secs(90 + 60 * self.o.seconds);
        let said = child::run(&mut c, patience, true)?;
        let start = Instant::now();
        if phase.settle {
            system.settle()?;
        }
        let settled = start.elapsed().as_secs_f64();
        let mut all: Vec<Measure> = Measure::parse_all(&said.out)?;
        if all.is_empty() && phase.name != "prepare" {
            bail!(Io, "nothing was measured: {}", said.err.trim());
        }
        for m in &mut all {
            if phase.settle {
                m.seconds += settled;
            }
            let group = row.group(phase, &m.name);
            let r = &mut self.results;
            r.add(row.name, &m.name, m.unit, group, name, m.value());
        }
        let usage = meter.and_then(|m| m.read());
        if let (Some(u), false) = (usage, all.is_empty()) {
            let what = format!("{} {}", row.name, phase.name);
            self.results.add_usage(&what, name, u);
        }
        if !phase.settle {
            // What is left over is not the next phase's to pay for.
            system.settle()?;
        }
        Ok(())
    }
}

/// In which order the systems take a row of a round: mixed, so that none always comes after the same
/// other one, and the same in every run.
fn order(row: &str, round: u32, names: &[String]) -> Vec<usize> {
    let mut all: Vec<usize> = (0..names.len()).collect();
    all.sort_by_cached_key(|&i| {
        let mut h = DefaultHasher::new();
        (row, round, &names[i]).hash(&mut h);
        h.finish()
    });
    all
}

fn facts(o: &Options, device: &Device) -> Vec<(String, String)> {
    let mut out: Vec<(String, String)> = machine::describe()
        .into_iter()
        .map(|(k, v)| (k.to_string(), v))
        .collect();
    let mode = if o.full { "full" } else { "quick" };
    let device = match (&o.device, device.direct) {
        (Some(_), _) => format!("{} bytes, given", device.size()),
        (None, true) => format!("{} bytes, loop, direct I/O", device.size()),
        (None, false) => format!("{} bytes, loop, through the page cache", device.size()),
    };
    for (k, v) in [
        ("mode", mode.to_string()),
        ("size", o.size.to_string()),
        ("large file", o.large.to_string()),
        ("timed rows", format!("{} s", o.seconds)),
        ("device", device),
    ] {
        out.push((k.to_string(), v));
    }
    out
}

fn write(r: &Results, out: &Path) -> Result<()> {
    std::fs::create_dir_all(out)?;
    let text = markdown::report(r);
    let json = serde_json::to_string_pretty(&r.json()).unwrap_or_default();
    std::fs::write(out.join("table.md"), &text)?;
    std::fs::write(out.join("results.json"), json)?;
    if let Some(svg) = plot::lines(r) {
        std::fs::write(out.join("lines.svg"), svg)?;
    }
    if let Some(svg) = plot::means(r) {
        std::fs::write(out.join("means.svg"), svg)?;
    }
    println!("{text}");
    eprintln!("bench: written to {}", out.display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_are_mixed() {
        let names: Vec<String> = ["a", "b", "c", "d"].map(String::from).to_vec();
        let mut firsts = HashSet::new();
        for round in 0..20 {
            let all = order("row", round, &names);
            assert_eq!(all, order("row", round, &names));
            firsts.insert(all[0]);
            assert_eq!(all.iter().collect::<HashSet<_>>().len(), names.len());
        }
        assert_eq!(firsts.len(), names.len());
    }
}
