//! `bench micro`: parts of the engine by themselves, on one thread unless a line says otherwise, in
//! memory. No device, no root.

mod codecs;
mod engine;
mod hits;
mod parity;

use crate::markdown::{self, short};
use crate::stats::{median, spread};
use crate::{child, machine};
use base::{bail, Result};
use serde_json::json;
use std::path::PathBuf;
use std::time::Instant;

pub const USAGE: &str = "\
usage: cargo xtask bench micro [OPTION]...
  --only A,B         of checksum compress parity cache hits allocator zap
  --trace FILE       a recorded trace for `hits`: in each line a block, or the first and how many; more than
                     one may be given
  --seconds X        how long each number is measured, three times (0.3)
  --rival SECONDS    how long OpenZFS's raidz_test may take for its numbers of parity (0: not run; it
                     takes some minutes on a quiet machine)
  --out DIR          where the results go; default: target/bench/micro
";

const PARTS: [&str; 7] = [
    "checksum",
    "compress",
    "parity",
    "cache",
    "hits",
    "allocator",
    "zap",
];

/// One number.
pub struct Number {
    pub part: &'static str,
    pub name: String,
    pub unit: &'static str,
    pub value: f64,
    pub spread: f64,
    /// The same of somebody else, or a remark.
    pub beside: String,
}

/// Collects numbers and knows how long each may take.
pub struct Bench {
    seconds: f64,
    numbers: Vec<Number>,
    notes: Vec<String>,
}

const REPEATS: usize = 3;

impl Bench {
    /// Calls `step` until the time is over and divides the sum of what it did by the seconds; the
    /// median of three such rates.
    pub fn rate(
        &mut self,
        part: &'static str,
        name: String,
        unit: &'static str,
        mut step: impl FnMut() -> Result<f64>,
    ) -> Result<f64> {
        step()?;
        let mut rates = Vec::new();
        for _ in 0..REPEATS {
            let start = Instant::now();
            let mut done = 0.0;
            while start.elapsed().as_secs_f64() < self.seconds {
                done += step()?;
                if child::interrupted() {
                    bail!(Interrupted, "interrupted");
                }
            }
            rates.push(done / start.elapsed().as_secs_f64());
        }
        let value = median(&rates).unwrap_or(0.0);
        eprintln!("{part} {name}: {} {unit}", short(value));
        self.numbers.push(Number {
            part,
            name,
            unit,
            value,
            spread: spread(&rates).unwrap_or(0.0),
            beside: String::new(),
        });
        Ok(value)
    }

    /// A number that does not depend on time.
    pub fn figure(
        &mut self,
        part: &'static str,
        name: String,
        unit: &'static str,
        value: f64,
        beside: String,
    ) {
        eprintln!("{part} {name}: {} {unit}, {beside}", short(value));
        self.numbers.push(Number {
            part,
            name,
            unit,
            value,
            spread: 0.0,
            beside,
        });
    }

    /// A remark on the number measured last.
    pub fn beside(&mut self, text: String) {
        if let Some(n) = self.numbers.last_mut() {
            n.beside = text;
        }
    }

    pub fn note(&mut self, text: String) {
        self.notes.push(text);
    }

    fn report(&self, facts: &[(&str, String)]) -> String {
        let mut out = String::from("# Micro-benchmarks\n\n");
        let facts = facts.iter().map(|(k, v)| vec![k.to_string(), v.clone()]);
        markdown::table(&mut out, &["Fact".into(), "Value".into()], facts);
        let head = ["Part", "Line", "value", "unit", "beside"].map(String::from);
        let rows = self.numbers.iter().map(|n| {
            vec![
                n.part.to_string(),
                n.name.clone(),
                format!("{} ±{:.0} %", short(n.value), n.spread * 100.0),
                n.unit.to_string(),
                n.beside.clone(),
            ]
        });
        markdown::table(&mut out, &head, rows);
        for n in &self.notes {
            out.push_str(&format!("* {n}\n"));
        }
        out
    }
}

/// The command.
pub fn run(args: &[String]) -> Result<bool> {
    let mut only: Vec<String> = PARTS.map(String::from).into();
    let mut rival = 0;
    let mut recorded: Vec<PathBuf> = Vec::new();
    let mut out: PathBuf = testkit::packages::workspace().join("target/bench/micro");
    let mut b = Bench {
        seconds: 0.3,
        numbers: Vec::new(),
        notes: Vec::new(),
    };
    let mut rest = args.iter();
    while let Some(arg) = rest.next() {
        if arg == "-h" || arg == "--help" {
            print!("{USAGE}");
            return Ok(true);
        }
        let Some(value) = rest.next() else {
            bail!(Invalid, "{arg} is unknown or needs a value\n{USAGE}");
        };
        let number = value.parse::<f64>().ok().filter(|n| *n >= 0.0);
        match (arg.as_str(), number) {
            ("--only", _) => only = value.split(',').map(str::to_string).collect(),
            ("--seconds", Some(n)) => b.seconds = n,
            ("--rival", Some(n)) => rival = n as u64,
            ("--trace", _) => recorded.push(value.into()),
            ("--out", _) => out = value.into(),
            _ => bail!(Invalid, "{arg} {value} is not understood\n{USAGE}"),
        }
    }
    if let Some(p) = only.iter().find(|p| !PARTS.contains(&p.as_str())) {
        bail!(
            Invalid,
            "there is no part {p}; there are {}",
            PARTS.join(" ")
        );
    }
    child::watch_signals()?;
    if cfg!(debug_assertions) {
        b.note("a build for debugging: these numbers say nothing".into());
    }
    let chosen = simd::implementation();
    b.note(format!("parity and fletcher4: {chosen}"));
    for part in only {
        match part.as_str() {
            "checksum" => codecs::checksums(&mut b)?,
            "compress" => codecs::compressions(&mut b)?,
            "parity" => parity::all(&mut b, rival)?,
            "cache" => engine::cache(&mut b)?,
            "hits" => hits::all(&mut b, &recorded)?,
            "allocator" => engine::allocator(&mut b)?,
            _ => engine::zap(&mut b)?,
        }
    }
    let facts = machine::describe();
    let text = b.report(&facts);
    let numbers: Vec<_> = b
        .numbers
        .iter()
        .map(|n| {
            json!({"part": n.part, "name": n.name, "unit": n.unit, "value": n.value,
                   "spread": n.spread, "beside": n.beside})
        })
        .collect();
    let facts: serde_json::Map<String, serde_json::Value> = facts
        .into_iter()
        .map(|(k, v)| (k.to_string(), json!(v)))
        .collect();
    let all = json!({"facts": facts, "numbers": numbers, "notes": b.notes});
    std::fs::create_dir_all(&out)?;
    std::fs::write(out.join("micro.md"), &text)?;
    let all = serde_json::to_string_pretty(&all).unwrap_or_default();
    std::fs::write(out.join("micro.json"), all)?;
    println!("{text}");
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every part runs, with next to no time for each number.
    #[test]
    fn every_part_counts() {
        let mut b = Bench {
            seconds: 0.0001,
            numbers: Vec::new(),
            notes: Vec::new(),
        };
        codecs::checksums(&mut b).unwrap();
        engine::cache(&mut b).unwrap();
        hits::all(&mut b, &[]).unwrap();
        engine::allocator(&mut b).unwrap();
        engine::zap(&mut b).unwrap();
        parity::all(&mut b, 0).unwrap();
        for n in &b.numbers {
            assert!(
                n.value.is_finite() && n.value > 0.0,
                "{} {}",
                n.part,
                n.name
            );
        }
        for part in ["checksum", "parity", "cache", "hits", "allocator", "zap"] {
            assert!(b.numbers.iter().any(|n| n.part == part), "{part}");
        }
        assert!(b.report(&[("a", "b".into())]).contains("fletcher4"));
    }
}
