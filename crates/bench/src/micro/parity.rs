//! Parity of RAID-Z: generating and rebuilding, eight data columns of 64 KiB, in megabytes of data a
//! second, beside OpenZFS's `raidz_test -B` for the same size.

use super::Bench;
use crate::child;
use crate::data::Numbers;
use crate::markdown::short;
use base::Result;
use codec::parity::{generate, reconstruct_data};
use std::collections::BTreeMap;
use std::hint::black_box;
use std::process::Command;
use std::time::Duration;
use testkit::OpenZfs;

const DATA: usize = 8;
const COLUMN: usize = 64 << 10;
const BYTES: usize = DATA * COLUMN;

/// `raidz_test`'s name; parity columns; parity columns that are lost too; data columns lost.
const REBUILDS: [(&str, usize, &[usize], &[usize]); 7] = [
    ("rec_p", 1, &[], &[1]),
    ("rec_q", 2, &[0], &[1]),
    ("rec_r", 3, &[0, 1], &[1]),
    ("rec_pq", 2, &[], &[1, 4]),
    ("rec_pr", 3, &[1], &[1, 4]),
    ("rec_qr", 3, &[0], &[1, 4]),
    ("rec_pqr", 3, &[], &[1, 4, 6]),
];

/// The best of the rival's implementations: its name, data rate in MB/s.
type Best = BTreeMap<String, (String, f64)>;

pub fn all(b: &mut Bench, rival_seconds: u64) -> Result<()> {
    let best = match rival_seconds {
        0 => {
            b.note("OpenZFS's raidz_test was not run (--rival SECONDS)".into());
            Best::new()
        }
        s => rival(s).unwrap_or_else(|e| {
            b.note(format!("OpenZFS's raidz_test was not run: {e}"));
            Best::new()
        }),
    };
    let mut numbers = Numbers::new(3);
    let data: Vec<Vec<u8>> = (0..DATA).map(|_| numbers.bytes(COLUMN)).collect();
    for (n, name) in [(1, "gen_p"), (2, "gen_pq"), (3, "gen_pqr")] {
        let mut parity = vec![Vec::new(); n];
        let rate = b.rate("parity", name.into(), "MB/s", || {
            generate(black_box(&data), &mut parity);
            black_box(&parity);
            Ok(BYTES as f64 / 1e6)
        })?;
        compare(b, &best, name, rate);
    }
    for (name, nparity, no_parity, lost) in REBUILDS {
        let mut cols = vec![Vec::new(); nparity];
        generate(&data, &mut cols);
        cols.extend(data.iter().cloned());
        let missing: Vec<usize> = no_parity
            .iter()
            .copied()
            .chain(lost.iter().map(|l| nparity + l))
            .collect();
        let rate = b.rate("parity", name.into(), "MB/s", || {
            reconstruct_data(nparity, black_box(&mut cols), &missing)?;
            Ok(BYTES as f64 / 1e6)
        })?;
        compare(b, &best, name, rate);
    }
    Ok(())
}

fn compare(b: &mut Bench, best: &Best, name: &str, rate: f64) {
    if let Some((who, theirs)) = best.get(name) {
        b.beside(format!(
            "OpenZFS's best, {who}: {}; {} times as fast",
            short(*theirs),
            short(rate / theirs)
        ));
    }
}

/// Its implementations one after the other, each at many sizes: long. What it has said when its time is
/// over counts.
fn rival(seconds: u64) -> Result<Best> {
    let c = OpenZfs::get()?.command("raidz_test")?;
    let mut cut = Command::new("stdbuf");
    cut.args(["-oL", "timeout", &seconds.to_string()])
        .arg(c.get_program())
        .arg("-B");
    for (name, value) in c.get_envs() {
        match value {
            Some(v) => cut.env(name, v),
            None => cut.env_remove(name),
        };
    }
    // Being cut short is no failure, so the shell swallows the status.
    let mut sh = Command::new("sh");
    sh.args(["-c", "\"$@\" || [ $? = 124 ]", "sh"])
        .arg(cut.get_program())
        .args(cut.get_args());
    for (name, value) in cut.get_envs() {
        if let Some(v) = value {
            sh.env(name, v);
        }
    }
    let said = child::run(&mut sh, Duration::from_secs(seconds + 60), true)?;
    Ok(parse(&said.out))
}

/// Lines "implementation, operation, columns, size, rate of one disk, total rate, iterations", sizes
/// in bytes, rates in MiB/s.
fn parse(text: &str) -> Best {
    let mut out = Best::new();
    for line in text.lines() {
        let f: Vec<&str> = line.split(',').map(str::trim).collect();
        let [who, what, columns, size, disk, ..] = f[..] else {
            continue;
        };
        if size.parse() != Ok(BYTES) || columns.parse() != Ok(DATA) {
            continue;
        }
        let Ok(disk) = disk.parse::<f64>() else {
            continue;
        };
        let rate = disk * DATA as f64 * 1.048576;
        let best = out.entry(what.into()).or_insert((String::new(), 0.0));
        if rate > best.1 {
            *best = (who.into(), rate);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn best_of_the_rival() {
        let text = "impl, math, dcols, iosize, disk_bw, total_bw, iter\n\
            original,    gen_p, 8,     524288, 100.0, 900.0, 8192\n\
            avx2,    gen_p, 8,     524288, 250.0, 2250.0, 8192\n\
            avx2,    gen_p, 8,     262144, 999.0, 2250.0, 8192\n\
            sse2,    gen_p, 8,     524288, 200.0, 1800.0, 8192\n";
        let best = parse(text);
        assert_eq!(best.len(), 1);
        assert_eq!(best["gen_p"].0, "avx2");
        assert!((best["gen_p"].1 - 2097.152).abs() < 1e-6);
    }
}
