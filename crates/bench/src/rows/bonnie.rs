//! Bonnie++, of whose report the numbers are taken.

use super::meta::succeed;
use super::Work;
use crate::measure::{Measure, Unit};
use crate::tools;
use base::{bail, Result};
use std::process::Command;

/// Field of the report, our name, unit. Names of the last lines begin with "files-": they count
/// as metadata.
const FIELDS: [(usize, &str, Unit); 12] = [
    (9, "char-write", Unit::MegabytesPerSecond),
    (11, "block-write", Unit::MegabytesPerSecond),
    (13, "rewrite", Unit::MegabytesPerSecond),
    (15, "char-read", Unit::MegabytesPerSecond),
    (17, "block-read", Unit::MegabytesPerSecond),
    (19, "seeks", Unit::PerSecond),
    (26, "files-create", Unit::PerSecond),
    (28, "files-stat", Unit::PerSecond),
    (30, "files-delete", Unit::PerSecond),
    (32, "files-random-create", Unit::PerSecond),
    (34, "files-random-stat", Unit::PerSecond),
    (36, "files-random-delete", Unit::PerSecond),
];

pub fn all(w: &Work) -> Result<Vec<Measure>> {
    let mib = (w.size >> 20).max(4);
    let thousands = (w.files() >> 10).clamp(1, 32);
    // A system call for each byte: a little of it goes a long way.
    let by_char = (w.size >> 26).clamp(1, 8);
    // It wants twice the memory; nobody drops the caches meanwhile, so its reads are mostly warm.
    let report = succeed(
        Command::new(tools::BONNIE.path()?)
            .args(["-q", "-m", "x", "-u", "root", "-d"])
            .arg(&w.dir)
            .args(["-s", &mib.to_string(), "-r", &(mib / 2).to_string()])
            .arg(format!("-f{by_char}"))
            .args(["-n", &thousands.to_string()]),
    )?;
    parse(&report)
}

fn parse(report: &str) -> Result<Vec<Measure>> {
    let line = report.lines().rev().find(|l| l.matches(',').count() > 36);
    let Some(line) = line else {
        bail!(Invalid, "bonnie++ said {report:?}");
    };
    let fields: Vec<&str> = line.split(',').collect();
    Ok(FIELDS
        .iter()
        .filter_map(|(n, name, unit)| {
            // "+++++" means that it took too little time to be measured.
            let value: f64 = fields.get(*n)?.parse().ok()?;
            let value = match unit {
                // KiB
                Unit::MegabytesPerSecond => value * 1024.0 / 1e6,
                _ => value,
            };
            Some(Measure::given(name, *unit, value))
        })
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report() {
        let text =
            "x\n1.98,2.00a,x,1,1795261869,16M,,8192,5,320,23,125000,4,+++++,+++,551,25,+++++,\
            +++,7.5,+++,2,,,,,2158,27,+++++,+++,+++++,+++,2714,33,+++++,+++,99,+++,159ms,9us,3us,\
            107ms,15268us,77876us,20157us,5970us,20377us,20385us,5us,7290us\n";
        let all = parse(text).unwrap();
        let get = |name: &str| all.iter().find(|m| m.name == name).map(Measure::value);
        assert_eq!(get("block-write"), Some(128.0));
        assert_eq!(get("seeks"), Some(7.5));
        assert_eq!(get("files-random-create"), Some(2714.0));
        assert_eq!(get("files-random-delete"), Some(99.0));
        assert_eq!(get("rewrite"), None);
        assert_eq!(all.len(), 7);
        assert!(parse("nothing").is_err());
    }
}
