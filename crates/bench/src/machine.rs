//! The description of the machine and of the programs that were measured.

use crate::child::sh;
use std::fs;

/// Facts about machine and source, as pairs of name and value.
pub fn describe() -> Vec<(&'static str, String)> {
    let read = |p: &str| fs::read_to_string(p).unwrap_or_default();
    let cpuinfo = read("/proc/cpuinfo");
    let field = |text: &str, name: &str| {
        text.lines()
            .find(|l| l.starts_with(name))
            .and_then(|l| l.split_once(':'))
            .map(|(_, v)| v.trim().to_string())
            .unwrap_or_default()
    };
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let kib: u64 = field(&read("/proc/meminfo"), "MemTotal")
        .split_whitespace()
        .next()
        .and_then(|k| k.parse().ok())
        .unwrap_or(0);
    let said = |program: &str, args: &[&str]| {
        sh(program, args)
            .map(|s| s.trim().to_string())
            .unwrap_or_default()
    };
    let root = testkit::packages::workspace();
    let root = root.to_string_lossy();
    let commit = said("git", &["-C", &root, "rev-parse", "--short=12", "HEAD"]);
    let changed = said(
        "git",
        &["-C", &root, "status", "--porcelain", "--untracked-files=no"],
    );
    let commit = match (commit.as_str(), changed.is_empty()) {
        ("", _) => "unknown".to_string(),
        (c, true) => c.to_string(),
        (c, false) => format!("{c}, changed"),
    };
    vec![
        ("date", said("date", &["-u", "+%Y-%m-%d %H:%M UTC"])),
        ("commit", commit),
        ("cores", cores.to_string()),
        ("processor", field(&cpuinfo, "model name")),
        ("memory", format!("{:.1} GiB", kib as f64 / 1048576.0)),
        ("kernel", read("/proc/sys/kernel/osrelease").trim().into()),
        (
            "load at the beginning",
            read("/proc/loadavg")
                .split(' ')
                .next()
                .unwrap_or("")
                .to_string(),
        ),
    ]
}
