//! What `bench scans` found, and how it is shown.

use crate::markdown::{short, table};
use crate::stats::{median, spread};
use crate::usage::Usage;
use base::{Error, Kind};
use serde_json::{json, Value};
use std::collections::BTreeMap;

/// All rounds of a scan.
#[derive(Default)]
struct Scan {
    /// Megabytes of data a second.
    rates: Vec<f64>,
    /// What the devices do from beginning to end.
    devices: Vec<f64>,
    /// Peak of the daemon's memory in bytes.
    peak: u64,
    /// Processor time in seconds.
    cpu: Vec<f64>,
}

/// All rounds of pgbench: transactions a second.
#[derive(Default)]
struct Beside {
    without: Vec<f64>,
    beside: Vec<f64>,
}

pub struct Results {
    facts: Vec<(String, String)>,
    /// By row and system.
    scans: BTreeMap<(String, String), Scan>,
    /// By job and system.
    beside: BTreeMap<(String, String), Beside>,
    /// By row, device beside the slow one, and system: operations a second.
    slow: BTreeMap<(String, String, String), Vec<f64>>,
    missing: Vec<String>,
    /// Whatever is missing cannot be run here.
    pub sound: bool,
}

impl Results {
    pub fn new(machine: Vec<(&'static str, String)>, size: u64, seconds: u64) -> Results {
        let machine = machine.into_iter().map(|(k, v)| (k.to_string(), v));
        let mut facts: Vec<_> = machine.collect();
        facts.push(("data".into(), format!("{} MiB", size >> 20)));
        facts.push(("pgbench".into(), format!("{seconds} s, 4 clients")));
        Results {
            facts,
            scans: BTreeMap::new(),
            beside: BTreeMap::new(),
            slow: BTreeMap::new(),
            missing: Vec::new(),
            sound: true,
        }
    }

    pub fn scan(&mut self, row: &str, system: &str, rate: f64, device: f64, usage: Option<Usage>) {
        let key = (row.to_string(), system.to_string());
        let s = self.scans.entry(key).or_default();
        s.rates.push(rate);
        s.devices.push(device);
        if let Some(u) = usage {
            s.peak = s.peak.max(u.peak_bytes);
            s.cpu.push(u.cpu_seconds);
        }
    }

    pub fn beside(&mut self, job: &str, system: &str, without: f64, beside: f64) {
        let key = (job.to_string(), system.to_string());
        let b = self.beside.entry(key).or_default();
        b.without.push(without);
        b.beside.push(beside);
    }

    pub fn slow(&mut self, kind: &str, system: &str, row: &str, rate: f64) {
        eprintln!("bench: {row} on {system}, slow device, {kind}: {rate:.0} 1/s");
        let key = (row.to_string(), kind.to_string(), system.to_string());
        self.slow.entry(key).or_default().push(rate);
    }

    pub fn missing(&mut self, row: &str, system: &str, e: &Error) {
        self.sound &= e.kind == Kind::Unsupported;
        let what = format!("{row} on {system}: {e}");
        eprintln!("bench: not run: {what}");
        if !self.missing.contains(&what) {
            self.missing.push(what);
        }
    }

    pub fn report(&self) -> String {
        let mut out = String::from("# Scans\n\n");
        let head = |names: &[&str]| names.iter().map(|n| n.to_string()).collect::<Vec<_>>();
        let facts = self.facts.iter().map(|(k, v)| vec![k.clone(), v.clone()]);
        table(&mut out, &head(&["Fact", "Value"]), facts);
        let middle = |v: &[f64]| median(v).unwrap_or(0.0);
        let names = [
            "Row",
            "system",
            "MB/s",
            "±",
            "devices, MB/s",
            "÷ devices",
            "processor, s",
            "peak, MiB",
        ];
        let scans = self.scans.iter().map(|((row, system), s)| {
            vec![
                row.clone(),
                system.clone(),
                short(middle(&s.rates)),
                format!("{:.0} %", spread(&s.rates).unwrap_or(0.0) * 100.0),
                short(middle(&s.devices)),
                short(middle(&quotients(&s.rates, &s.devices))),
                short(middle(&s.cpu)),
                (s.peak >> 20).to_string(),
            ]
        });
        table(&mut out, &head(&names), scans);
        let names = [
            "pgbench beside",
            "system",
            "1/s without",
            "1/s beside it",
            "slower by",
            "± of both",
        ];
        let beside = self.beside.iter().map(|((job, system), b)| {
            let slower = 1.0 - middle(&quotients(&b.beside, &b.without));
            let both = [spread(&b.without), spread(&b.beside)].map(|s| s.unwrap_or(0.0) * 100.0);
            vec![
                job.clone(),
                system.clone(),
                short(middle(&b.without)),
                short(middle(&b.beside)),
                format!("{:.0} %", slower * 100.0),
                format!("{:.0} %, {:.0} %", both[0], both[1]),
            ]
        });
        table(&mut out, &head(&names), beside);
        let names = ["Slow device", "beside it", "system", "1/s", "±"];
        let slow = self.slow.iter().map(|((row, kind, system), rates)| {
            let spread = spread(rates).unwrap_or(0.0) * 100.0;
            let rate = short(middle(rates));
            let names = [row, kind, system].map(String::clone);
            [names.to_vec(), vec![rate, format!("{spread:.0} %")]].concat()
        });
        table(&mut out, &head(&names), slow);
        for m in &self.missing {
            out.push_str(&format!("* not run: {m}\n"));
        }
        out
    }

    pub fn json(&self) -> Value {
        let scans = self.scans.iter().map(|((row, system), s)| {
            json!({"row": row, "system": system, "mb_s": s.rates, "devices_mb_s": s.devices,
                   "cpu_s": s.cpu, "peak_bytes": s.peak})
        });
        let beside = self.beside.iter().map(|((job, system), b)| {
            json!({"row": "pgbench", "job": job, "system": system, "without": b.without, "beside": b.beside})
        });
        let slow = self.slow.iter().map(|((row, kind, system), rates)| {
            json!({"row": row, "beside": kind, "system": system, "per_second": rates})
        });
        let facts: BTreeMap<_, _> = self.facts.iter().cloned().collect();
        json!({"facts": facts, "scans": scans.collect::<Vec<_>>(), "pgbench": beside.collect::<Vec<_>>(),
               "slow": slow.collect::<Vec<_>>(),
               "missing": self.missing})
    }
}

/// Round by round.
fn quotients(of: &[f64], by: &[f64]) -> Vec<f64> {
    of.iter()
        .zip(by)
        .map(|(a, b)| a / b.max(f64::MIN_POSITIVE))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotients_are_of_the_same_round() {
        let mut r = Results::new(Vec::new(), 1 << 30, 10);
        for (rate, device) in [(80.0, 100.0), (40.0, 50.0), (90.0, 100.0)] {
            r.scan("scrub", "ours", rate, device, None);
        }
        r.beside("scrub", "ours", 1000.0, 850.0);
        let text = r.report();
        assert!(
            text.contains("| scrub | ours | 80.0 | 31 % | 100 | 0.80 |"),
            "{text}"
        );
        assert!(
            text.contains("| scrub | ours | 1000 | 850 | 15 % |"),
            "{text}"
        );
        assert!(r.sound);
        r.missing("scrub", "ours", &Error::new(Kind::Io, "broken"));
        assert!(!r.sound && r.report().contains("scrub on ours: broken"));
        assert_eq!(r.json()["scans"][0]["mb_s"][2], 90.0);
    }
}
