//! Results as Markdown tables.

use crate::results::{Line, Results};
use crate::rows::Group;
use crate::stats::median;
use std::fmt::Write as _;

/// The whole report.
pub fn report(r: &Results) -> String {
    let mut out = String::from("# Measured\n\n");
    table(
        &mut out,
        &["Fact".into(), "Value".into()],
        r.facts.iter().map(|(k, v)| vec![k.clone(), v.clone()]),
    );
    means(&mut out, r);
    quotients(&mut out, r);
    rates(&mut out, r);
    usage(&mut out, r);
    missing(&mut out, r);
    out
}

/// One table; its first column to the left, the others to the right.
pub fn table(out: &mut String, head: &[String], rows: impl Iterator<Item = Vec<String>>) {
    let line = |cells: &[String]| {
        let cells: Vec<String> = cells.iter().map(|c| c.replace('|', "\\|")).collect();
        format!("| {} |\n", cells.join(" | "))
    };
    out.push_str(&line(head));
    let rule: Vec<String> = (0..head.len())
        .map(|n| if n == 0 { "---" } else { "---:" }.to_string())
        .collect();
    out.push_str(&format!("|{}|\n", rule.join("|")));
    rows.for_each(|r| out.push_str(&line(&r)));
    out.push('\n');
}

/// Three digits that matter.
pub fn short(v: f64) -> String {
    match v.abs() {
        a if a >= 100.0 => format!("{v:.0}"),
        a if a >= 10.0 => format!("{v:.1}"),
        a if a >= 0.1 || a == 0.0 => format!("{v:.2}"),
        _ => format!("{v:.4}"),
    }
}

fn or_dash(v: Option<f64>) -> String {
    v.map_or("–".into(), short)
}

fn pair_names(r: &Results) -> Vec<String> {
    r.pairs()
        .iter()
        .map(|(a, b)| format!("{a} ÷ {b}"))
        .collect()
}

fn means(out: &mut String, r: &Results) {
    if r.pairs().is_empty() {
        return;
    }
    out.push_str("## How many times as fast: geometric means\n\n");
    let mut head = vec!["Rows".to_string()];
    head.extend(pair_names(r));
    let groups = Group::SPEED.into_iter().map(Some).chain([None]);
    table(
        out,
        &head,
        groups.map(|g| {
            let mut row = vec![g.map_or("**all**", Group::text).to_string()];
            row.extend(r.pairs().iter().map(|p| match r.mean(*p, g) {
                Some((mean, lines)) => format!("{} ({lines})", short(mean)),
                None => "–".into(),
            }));
            row
        }),
    );
    out.push_str(
        "In parentheses: of how many lines. Lines of the groups *detail* and *figure* are in no mean.\n\n",
    );
}

fn quotients(out: &mut String, r: &Results) {
    if r.pairs().is_empty() {
        return;
    }
    out.push_str("## How many times as fast: each line\n\n");
    let mut head = vec!["Line".to_string(), "group".to_string()];
    head.extend(pair_names(r));
    let shown = r.lines.iter().filter(|l| l.group != Group::Figure);
    table(
        out,
        &head,
        shown.map(|l| {
            let mut row = vec![l.title(), l.group.text().into()];
            row.extend(r.pairs().iter().map(|(a, b)| or_dash(l.faster(a, b))));
            row
        }),
    );
}

fn cell(l: &Line, system: &str) -> String {
    match (l.median(system), l.spread(system)) {
        (Some(m), Some(s)) if l.values.get(system).is_some_and(|v| v.len() > 1) => {
            format!("{} ±{:.0} %", short(m), s * 100.0)
        }
        (m, _) => or_dash(m),
    }
}

fn rates(out: &mut String, r: &Results) {
    let _ = write!(
        out,
        "## Numbers: medians of up to {} rounds, half the distance of the extremes\n\n",
        r.rounds
    );
    let mut head = vec!["Line".to_string(), "unit".to_string()];
    head.extend(r.systems.iter().cloned());
    table(
        out,
        &head,
        r.lines.iter().map(|l| {
            let mut row = vec![l.title(), l.unit.text().into()];
            row.extend(r.systems.iter().map(|s| cell(l, s)));
            row
        }),
    );
}

fn usage(out: &mut String, r: &Results) {
    let systems: Vec<&String> = r
        .systems
        .iter()
        .filter(|s| r.usage.iter().any(|(_, by)| by.contains_key(*s)))
        .collect();
    if systems.is_empty() {
        return;
    }
    out.push_str("## What the daemons cost: seconds of processor time / peak memory in MB\n\n");
    let mut head = vec!["Phase".to_string()];
    head.extend(systems.iter().map(|s| s.to_string()));
    table(
        out,
        &head,
        r.usage.iter().map(|(what, by)| {
            let mut row = vec![what.clone()];
            row.extend(systems.iter().map(|s| {
                let of = |f: &dyn Fn(&crate::usage::Usage) -> f64| {
                    let all: Vec<f64> = by.get(*s).into_iter().flatten().map(f).collect();
                    median(&all)
                };
                match (of(&|u| u.cpu_seconds), of(&|u| u.peak_bytes as f64)) {
                    (Some(c), Some(p)) => format!("{c:.2} / {:.0}", p / 1e6),
                    _ => "–".into(),
                }
            }));
            row
        }),
    );
}

fn missing(out: &mut String, r: &Results) {
    if r.missing.is_empty() {
        return;
    }
    out.push_str("## Not run\n\n");
    for m in &r.missing {
        let _ = writeln!(out, "* {} on {}: {}", m.what, m.system, m.why);
    }
    out.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables() {
        let text = report(&crate::results::tests::sample());
        for want in [
            "| cores | 2 |",
            "| seq write | MB/s | 100 ±10 % | 25.0 ±10 % | 50.0 ±10 % |",
            "| seq write | data | 0.50 | 2.00 | 0.25 |",
            "| git clone | metadata | 0.50 | 2.00 | 0.25 |",
            "| **all** | 0.50 (2) | 2.00 (2) | 0.25 (2) |",
            "| seq write | 1.50 / 67 |",
            "* apache on ours: there is no apache2 here",
        ] {
            assert!(text.contains(want), "{want} in\n{text}");
        }
        // Every line of a table has as many cells as its head.
        for block in text.split("\n\n").filter(|b| b.starts_with('|')) {
            let bars: Vec<usize> = block.lines().map(|l| l.matches('|').count()).collect();
            assert!(bars.windows(2).all(|w| w[0] == w[1]), "{block}");
        }
    }

    #[test]
    fn digits() {
        let all: Vec<String> = [1234.5, 12.34, 1.234, 0.0123, 0.0]
            .into_iter()
            .map(short)
            .collect();
        assert_eq!(all, ["1234", "12.3", "1.23", "0.0123", "0.00"]);
    }
}
