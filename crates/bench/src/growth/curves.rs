//! Cost by size: which costs grow faster than they should, as tables and plots.

use crate::markdown::{short, table};
use crate::plot::{Line, Panel};
use serde_json::{json, Value};
use std::collections::BTreeMap;

/// From one size to the next the cost of one may grow by so much.
const BEND: f64 = 2.0;

/// How a cost should grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cost {
    /// As the number: shown and judged for each one.
    Each,
    /// At most as the number: shown for all, judged for each one.
    All,
    /// Not at all: shown and judged as it is.
    Same,
}

impl Cost {
    /// What is judged, of seconds at a size.
    fn judged(self, seconds: f64, size: u64) -> f64 {
        match self {
            Cost::Each | Cost::All => seconds / size.max(1) as f64,
            Cost::Same => seconds,
        }
    }

    fn unit(self) -> &'static str {
        match self {
            Cost::Each => "µs each",
            Cost::All | Cost::Same => "ms",
        }
    }

    fn shown(self, seconds: f64, size: u64) -> f64 {
        match self {
            Cost::Each => seconds / size.max(1) as f64 * 1e6,
            Cost::All | Cost::Same => seconds * 1e3,
        }
    }
}

/// What was measured at one size.
#[derive(Clone, Debug, Default)]
pub struct Point {
    /// One for each round.
    pub seconds: Vec<f64>,
    /// The largest peak of the daemon's memory, in bytes.
    pub peak: Option<u64>,
}

impl Point {
    /// The least of the rounds: nothing makes work faster than it is.
    fn best(&self) -> f64 {
        self.seconds.iter().copied().fold(f64::INFINITY, f64::min)
    }
}

/// One step of one part on one system.
#[derive(Clone, Debug)]
pub struct Curve {
    pub part: &'static str,
    pub step: String,
    pub system: String,
    pub cost: Cost,
    /// By size.
    pub points: BTreeMap<u64, Point>,
}

impl Curve {
    /// Sizes with the cost that is judged, smallest size first.
    fn judged(&self) -> Vec<(u64, f64)> {
        self.points
            .iter()
            .map(|(size, p)| (*size, self.cost.judged(p.best(), *size)))
            .collect()
    }

    /// The sizes at which it bends the wrong way, with how many times the cost of the size before.
    pub fn bends(&self) -> Vec<(u64, f64)> {
        let all = self.judged();
        let pairs = all.windows(2).map(|w| (w[1].0, w[1].1 / w[0].1));
        pairs.filter(|(_, times)| *times > BEND).collect()
    }
}

/// A whole run.
#[derive(Debug, Default)]
pub struct Curves {
    /// Name of each part, and what grows in it.
    parts: Vec<(&'static str, &'static str)>,
    facts: Vec<(&'static str, String)>,
    all: Vec<Curve>,
    /// What was not run, and why.
    pub missing: Vec<String>,
}

impl Curves {
    pub fn new(
        parts: Vec<(&'static str, &'static str)>,
        facts: Vec<(&'static str, String)>,
    ) -> Curves {
        Curves {
            parts,
            facts,
            ..Curves::default()
        }
    }

    /// Adds one measurement of a step, named by part, step and system.
    pub fn add(
        &mut self,
        (part, step, system): (&'static str, &str, &str),
        cost: Cost,
        size: u64,
        seconds: f64,
        peak: Option<u64>,
    ) {
        let same = |c: &Curve| c.part == part && c.step == step && c.system == system;
        let n = self.all.iter().position(same).unwrap_or_else(|| {
            self.all.push(Curve {
                part,
                step: step.into(),
                system: system.into(),
                cost,
                points: BTreeMap::new(),
            });
            self.all.len() - 1
        });
        let p = self.all[n].points.entry(size).or_default();
        p.seconds.push(seconds);
        p.peak = p.peak.max(peak);
    }

    fn of<'a>(&'a self, part: &'a str) -> impl Iterator<Item = &'a Curve> {
        self.all.iter().filter(move |c| c.part == part)
    }

    fn sizes(&self, part: &str) -> Vec<u64> {
        let mut all: Vec<u64> = self
            .of(part)
            .flat_map(|c| c.points.keys().copied())
            .collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// The tables for people.
    pub fn report(&self) -> String {
        let mut out = String::from("# Growth\n\n");
        let facts = self
            .facts
            .iter()
            .map(|(k, v)| vec![k.to_string(), v.clone()]);
        table(&mut out, &["Fact".into(), "Value".into()], facts);
        out.push_str(
            "The best of the rounds; in parentheses the peak of the daemon's memory in MB. `▲` marks where one costs more \
             than twice as much as at the size before, with how many times.\n\n",
        );
        for (part, about) in &self.parts {
            let sizes = self.sizes(part);
            if sizes.is_empty() {
                continue;
            }
            out.push_str(&format!("## {part}: {about}\n\n"));
            let mut head = ["Step", "system", "unit"].map(String::from).to_vec();
            head.extend(sizes.iter().map(u64::to_string));
            let rows = self.of(part).map(|c| {
                let mut row = vec![c.step.clone(), c.system.clone(), c.cost.unit().into()];
                row.extend(sizes.iter().map(|s| cell(c, *s)));
                row
            });
            table(&mut out, &head, rows);
        }
        if !self.missing.is_empty() {
            out.push_str("## Not run\n\n");
            for m in &self.missing {
                out.push_str(&format!("* {m}\n"));
            }
        }
        out
    }

    /// Everything, for programs: seconds of every round, not divided by anything.
    pub fn json(&self) -> Value {
        let facts: serde_json::Map<String, Value> = self
            .facts
            .iter()
            .map(|(k, v)| (k.to_string(), json!(v)))
            .collect();
        let curves: Vec<Value> = self
            .all
            .iter()
            .map(|c| {
                let points: Vec<Value> = c
                    .points
                    .iter()
                    .map(|(s, p)| json!({"size": s, "seconds": p.seconds, "peak_bytes": p.peak}))
                    .collect();
                let bends: Vec<Value> = c
                    .bends()
                    .iter()
                    .map(|(s, times)| json!({"size": s, "times": times}))
                    .collect();
                json!({
                    "part": c.part, "step": c.step, "system": c.system,
                    "grows": match c.cost { Cost::Same => "not at all", _ => "as the number" },
                    "points": points, "bends": bends,
                })
            })
            .collect();
        json!({"facts": facts, "curves": curves, "not_run": self.missing})
    }

    /// One panel for each part: every curve as multiples of its first cost over multiples of its
    /// first size.
    pub fn panels(&self) -> Vec<Panel> {
        let line = |c: &Curve| {
            let all = c.judged();
            let (size, cost) = *all.first()?;
            let bent: Vec<u64> = c.bends().iter().map(|b| b.0).collect();
            Some(Line {
                label: format!("{} ({})", c.step, c.system),
                points: all
                    .iter()
                    .map(|(s, v)| (*s as f64 / size as f64, v / cost, bent.contains(s)))
                    .collect(),
            })
        };
        self.parts
            .iter()
            .map(|(part, about)| Panel {
                title: about.to_string(),
                lines: self.of(part).filter_map(line).collect(),
            })
            .filter(|p| !p.lines.is_empty())
            .collect()
    }
}

fn cell(c: &Curve, size: u64) -> String {
    let Some(p) = c.points.get(&size) else {
        return "–".into();
    };
    let mut out = short(c.cost.shown(p.best(), size));
    if let Some(peak) = p.peak {
        out.push_str(&format!(" ({:.0})", peak as f64 / 1e6));
    }
    if let Some((_, times)) = c.bends().iter().find(|b| b.0 == size) {
        out.push_str(&format!(" ▲{times:.1}"));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Curves {
        let mut c = Curves::new(
            vec![("a", "things"), ("b", "none")],
            vec![("cores", "2".into())],
        );
        for (size, each, all, same) in [
            (10, 0.01, 0.05, 0.1),
            (100, 0.1, 0.2, 0.19),
            (1000, 2.1, 4.5, 0.39),
        ] {
            c.add(("a", "make", "ours"), Cost::Each, size, each * 3.0, None);
            c.add(
                ("a", "make", "ours"),
                Cost::Each,
                size,
                each,
                Some(5_000_000),
            );
            c.add(("a", "list", "ours"), Cost::All, size, all, None);
            c.add(("a", "one", "ours"), Cost::Same, size, same, None);
        }
        c
    }

    #[test]
    fn bends_the_wrong_way() {
        let c = sample();
        let bends: Vec<Vec<u64>> = c
            .all
            .iter()
            .map(|c| c.bends().into_iter().map(|b| b.0).collect())
            .collect();
        // Each: 1, 1, 2.1 ms. All for each: 5, 2, 4.5 ms. Same: 0.1, 0.19, 0.39 s.
        assert_eq!(bends, [vec![1000], vec![1000], vec![1000]]);
        let mut c = Curves::default();
        for (size, seconds) in [(1000, 5.0), (10, 1.0), (100, 2.0)] {
            c.add(("a", "all", "x"), Cost::All, size, seconds, None);
            c.add(("a", "same", "x"), Cost::Same, size, seconds, None);
        }
        // By size, whatever the order in which they came; a factor of two is not more than two.
        assert!(c.all[0].bends().is_empty());
        assert_eq!(c.all[1].bends(), [(1000, 2.5)]);
    }

    #[test]
    fn tables_and_numbers() {
        let mut c = sample();
        c.missing.push("a 7 on ext4: no".into());
        let text = c.report();
        for want in [
            "| cores | 2 |",
            "## a: things",
            "| Step | system | unit | 10 | 100 | 1000 |",
            "| make | ours | µs each | 1000 (5) | 1000 (5) | 2100 (5) ▲2.1 |",
            "| list | ours | ms | 50.0 | 200 | 4500 ▲2.2 |",
            "| one | ours | ms | 100 | 190 | 390 ▲2.1 |",
            "* a 7 on ext4: no",
        ] {
            assert!(text.contains(want), "{want} in\n{text}");
        }
        assert!(!text.contains("## b"));
        let v = c.json();
        assert_eq!(v["curves"][0]["points"][0]["seconds"][1], 0.01);
        assert_eq!(v["curves"][0]["points"][2]["peak_bytes"], 5_000_000);
        assert_eq!(v["curves"][2]["bends"][0]["size"], 1000);
        assert_eq!(v["not_run"][0], "a 7 on ext4: no");
    }

    #[test]
    fn drawn() {
        let panels = sample().panels();
        assert_eq!(panels.len(), 1);
        let first = &panels[0].lines[0];
        assert_eq!(first.label, "make (ours)");
        assert_eq!(first.points[0], (1.0, 1.0, false));
        assert!(first.points[2].2 && (first.points[2].1 - 2.1).abs() < 1e-9);
        let svg = crate::plot::growth("g", &panels).unwrap();
        // Each curve, and its sample in the legend; the grid is thinner.
        let thick = |l: &&str| l.starts_with("<polyline") && l.contains("stroke-width=\"2\"");
        assert_eq!(svg.lines().filter(thick).count(), 2 * 3, "{svg}");
        assert_eq!(svg.matches("<circle").count(), 3);
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        assert!(crate::plot::growth("g", &[]).is_none());
    }
}
