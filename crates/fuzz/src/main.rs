//! `fuzz [--seed N] [--executions N] [--seconds N] [--input FILE] [target…]`: runs targets with
//! mutations of good inputs; each for so many executions or so long, whichever comes first. Findings are
//! written to `findings/`.
#![forbid(unsafe_code)]

use fuzz::{run, target, Corpus, Limits, Target, TARGETS};
use std::process::ExitCode;
use std::time::Duration;

fn main() -> ExitCode {
    let mut limits = Limits {
        executions: 1_000_000,
        time: Duration::from_secs(60),
    };
    let mut seed = 1;
    let mut chosen: Vec<&Target> = Vec::new();
    let mut input = None;
    let mut args = std::env::args().skip(1);
    while let Some(a) = args.next() {
        let mut number = || args.next().and_then(|v| v.parse::<u64>().ok());
        let bad = match a.as_str() {
            "--seed" => number().map(|n| seed = n).is_none(),
            "--executions" => number().map(|n| limits.executions = n).is_none(),
            "--seconds" => number()
                .map(|n| limits.time = Duration::from_secs(n))
                .is_none(),
            "--input" => {
                input = args.next();
                input.is_none()
            }
            name => target(name).map(|t| chosen.push(t)).is_none(),
        };
        if bad {
            let names: Vec<&str> = TARGETS.iter().map(|t| t.name).collect();
            eprintln!("fuzz: {a}?\nusage: fuzz [--seed N] [--executions N] [--seconds N] [--input FILE] [target...]");
            eprintln!("targets: {} fuse", names.join(" "));
            return ExitCode::from(2);
        }
    }
    if chosen.is_empty() {
        chosen = TARGETS.iter().chain(target("fuse")).collect();
    }
    if let Some(file) = input {
        // Without a net: a debugger or a backtrace shows where it goes wrong.
        let Ok(b) = std::fs::read(&file) else {
            eprintln!("fuzz: cannot read {file}");
            return ExitCode::FAILURE;
        };
        chosen.iter().for_each(|t| (t.run)(&b));
        return ExitCode::SUCCESS;
    }
    let corpus = Corpus::with_fixtures(false);
    let mut found = false;
    for t in chosen {
        let seeds = corpus.of(t).len();
        let o = run(t, &corpus, seed, limits);
        println!(
            "{:<12} {seeds:4} seeds  {:>10} executions  {:6.0} s  {} findings",
            t.name,
            o.executions,
            o.time.as_secs_f64(),
            o.findings.len()
        );
        for (i, (what, input)) in o.findings.iter().enumerate() {
            found = true;
            let _ = std::fs::create_dir_all("findings");
            let file = format!("findings/{}-{seed}-{i}", t.name);
            let _ = std::fs::write(&file, input);
            println!("  {file}: {what}");
        }
    }
    if found {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    }
}
