//! The results of a run, stored as JSON.

use crate::measure::Unit;
use crate::rows::Group;
use crate::stats::{geometric_mean, median, spread};
use crate::usage::Usage;
use serde_json::{json, Value};
use std::collections::BTreeMap;

/// One line of the table: a number of a row, on all systems.
#[derive(Clone, Debug)]
pub struct Line {
    pub row: String,
    pub measure: String,
    pub unit: Unit,
    pub group: Group,
    /// By system, one value for each round.
    pub values: BTreeMap<String, Vec<f64>>,
}

impl Line {
    pub fn title(&self) -> String {
        match self.measure.as_str() {
            "all" | "rate" => self.row.clone(),
            m => format!("{} {m}", self.row),
        }
    }

    pub fn median(&self, system: &str) -> Option<f64> {
        median(self.values.get(system)?)
    }

    pub fn spread(&self, system: &str) -> Option<f64> {
        spread(self.values.get(system)?)
    }

    /// How many times as fast one system is as another, by medians.
    pub fn faster(&self, system: &str, than: &str) -> Option<f64> {
        self.unit.faster(self.median(system)?, self.median(than)?)
    }
}

/// Why there is no number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// Row, and phase if it got that far; "all rows" if the system could not be had.
    pub what: String,
    pub system: String,
    pub why: String,
}

/// A whole run.
#[derive(Clone, Debug, Default)]
pub struct Results {
    /// Facts about machine and run.
    pub facts: Vec<(String, String)>,
    pub systems: Vec<String>,
    pub lines: Vec<Line>,
    /// By row and phase, then system: what the daemon cost, one entry for each round.
    pub usage: Vec<(String, BTreeMap<String, Vec<Usage>>)>,
    pub missing: Vec<Missing>,
    pub rounds: u32,
}

/// Which quotients are shown: system, and what it is compared with.
const PAIRS: [(&str, &str); 12] = [
    ("ours", "ext4"),
    ("ours", "btrfs"),
    ("ours", "zfs-fuse-0.7"),
    ("ours", "passthrough"),
    ("ours", "passthrough-checked"),
    ("ours", "before"),
    ("ours-view", "ours"),
    ("ours-off", "ext4"),
    ("ours-off", "btrfs"),
    ("ours-off", "zfs-fuse-0.7"),
    ("zfs-fuse-0.7", "ext4"),
    ("passthrough", "ext4"),
];

impl Results {
    /// Adds the value of one round; lines keep the order in which they first came.
    pub fn add(
        &mut self,
        row: &str,
        measure: &str,
        unit: Unit,
        group: Group,
        system: &str,
        v: f64,
    ) {
        let at = self
            .lines
            .iter()
            .position(|l| l.row == row && l.measure == measure);
        let line = match at {
            Some(n) => &mut self.lines[n],
            None => {
                // Beside its row, also if another system could not measure it.
                let end = self.lines.iter().rposition(|l| l.row == row);
                let n = end.map_or(self.lines.len(), |e| e + 1);
                self.lines.insert(
                    n,
                    Line {
                        row: row.into(),
                        measure: measure.into(),
                        unit,
                        group,
                        values: BTreeMap::new(),
                    },
                );
                &mut self.lines[n]
            }
        };
        line.values.entry(system.into()).or_default().push(v);
    }

    pub fn add_usage(&mut self, what: &str, system: &str, usage: Usage) {
        let at = self.usage.iter().position(|(w, _)| w == what);
        let n = at.unwrap_or_else(|| {
            self.usage.push((what.into(), BTreeMap::new()));
            self.usage.len() - 1
        });
        let by_system = &mut self.usage[n].1;
        by_system.entry(system.into()).or_default().push(usage);
    }

    pub fn add_missing(&mut self, what: &str, system: &str, why: &str) {
        let m = Missing {
            what: what.into(),
            system: system.into(),
            why: why.split_whitespace().collect::<Vec<_>>().join(" "),
        };
        if !self.missing.contains(&m) {
            self.missing.push(m);
        }
    }

    /// The pairs of which both were asked for.
    pub fn pairs(&self) -> Vec<(&'static str, &'static str)> {
        let has = |s: &str| self.systems.iter().any(|x| x == s);
        PAIRS
            .into_iter()
            .filter(|(a, b)| has(a) && has(b))
            .collect()
    }

    /// Geometric mean of how many times as fast, and of how many lines; all groups if none is given.
    pub fn mean(&self, pair: (&str, &str), group: Option<Group>) -> Option<(f64, usize)> {
        let all: Vec<f64> = self
            .lines
            .iter()
            .filter(|l| match group {
                Some(g) => l.group == g,
                None => Group::SPEED.contains(&l.group),
            })
            .filter_map(|l| l.faster(pair.0, pair.1))
            .collect();
        Some((geometric_mean(&all)?, all.len()))
    }

    pub fn json(&self) -> Value {
        let facts: serde_json::Map<String, Value> = self
            .facts
            .iter()
            .map(|(k, v)| (k.clone(), json!(v)))
            .collect();
        let lines: Vec<Value> = self.lines.iter().map(|l| self.line_json(l)).collect();
        let usage: Vec<Value> = self
            .usage
            .iter()
            .flat_map(|(what, by)| by.iter().map(move |(s, u)| (what, s, u)))
            .map(|(what, s, u)| {
                json!({
                    "what": what, "system": s,
                    "cpu_seconds": u.iter().map(|x| x.cpu_seconds).collect::<Vec<_>>(),
                    "peak_bytes": u.iter().map(|x| x.peak_bytes).collect::<Vec<_>>(),
                })
            })
            .collect();
        let missing: Vec<Value> = self
            .missing
            .iter()
            .map(|m| json!({"what": m.what, "system": m.system, "why": m.why}))
            .collect();
        let means: Vec<Value> = self
            .pairs()
            .into_iter()
            .filter_map(|p| {
                let (mean, lines) = self.mean(p, None)?;
                Some(json!({"system": p.0, "than": p.1, "times_as_fast": mean, "lines": lines}))
            })
            .collect();
        json!({
            "facts": facts, "systems": self.systems, "rounds": self.rounds, "lines": lines,
            "geometric_means": means, "daemon": usage, "not_run": missing,
        })
    }

    fn line_json(&self, l: &Line) -> Value {
        let systems: serde_json::Map<String, Value> = l
            .values
            .iter()
            .map(|(s, v)| {
                let one = json!({"median": l.median(s), "spread": l.spread(s), "values": v});
                (s.clone(), one)
            })
            .collect();
        let quotients: Vec<Value> = self
            .pairs()
            .into_iter()
            .filter_map(|(a, b)| {
                Some(json!({"system": a, "than": b, "times_as_fast": l.faster(a, b)?}))
            })
            .collect();
        json!({
            "row": l.row, "measure": l.measure, "unit": l.unit.text(), "group": l.group.text(),
            "systems": systems, "quotients": quotients,
        })
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    pub fn sample() -> Results {
        let mut r = Results {
            facts: vec![("cores".into(), "2".into())],
            systems: ["ext4", "zfs-fuse-0.7", "ours"].map(String::from).into(),
            rounds: 3,
            ..Results::default()
        };
        for (system, factor) in [("ext4", 1.0), ("ours", 0.5), ("zfs-fuse-0.7", 0.25)] {
            for n in 9..12 {
                let v = f64::from(n) * 10.0 * factor;
                let rate = Unit::MegabytesPerSecond;
                r.add("seq", "write", rate, Group::Data, system, v);
                let ms = Unit::Milliseconds;
                r.add("git", "clone", ms, Group::Metadata, system, 1000.0 / v);
                r.add("seq", "p99", ms, Group::Detail, system, 1.0);
                r.add("zip", "ratio", Unit::Times, Group::Figure, system, 2.0);
            }
        }
        r.add_usage(
            "seq write",
            "ours",
            Usage {
                cpu_seconds: 1.5,
                peak_bytes: 64 << 20,
            },
        );
        r.add_missing("apache", "ours", "there is no\n apache2 here");
        r.add_missing("apache", "ours", "there is no apache2 here");
        r
    }

    #[test]
    fn order_and_means() {
        let r = sample();
        let titles: Vec<String> = r.lines.iter().map(Line::title).collect();
        assert_eq!(titles, ["seq write", "seq p99", "git clone", "zip ratio"]);
        assert_eq!(r.missing.len(), 1);
        let pairs = r.pairs();
        assert_eq!(
            pairs,
            [
                ("ours", "ext4"),
                ("ours", "zfs-fuse-0.7"),
                ("zfs-fuse-0.7", "ext4")
            ]
        );
        let (mean, lines) = r.mean(("ours", "ext4"), None).unwrap();
        assert!((mean - 0.5).abs() < 1e-9, "{mean}");
        assert_eq!(lines, 2);
        let (mean, lines) = r
            .mean(("ours", "zfs-fuse-0.7"), Some(Group::Metadata))
            .unwrap();
        assert!((mean - 2.0).abs() < 1e-9, "{mean}");
        assert_eq!(lines, 1);
        assert!(r.mean(("ours", "ext4"), Some(Group::Sync)).is_none());
    }

    #[test]
    fn as_json() {
        let v = sample().json();
        assert_eq!(v["facts"]["cores"], "2");
        assert_eq!(v["lines"][0]["systems"]["ours"]["median"], 50.0);
        assert_eq!(v["daemon"][0]["peak_bytes"][0], 64 << 20);
        assert_eq!(v["not_run"][0]["why"], "there is no apache2 here");
    }
}
