//! Many power cuts: `power-cuts [--cuts N] [--seed N] [--life N] [--layout NAME] [--lie]`.
//!
//! Lives of `--life` cuts (15) each, over all layouts in turn, until there were `--cuts` (600).
//! Prints what happened at each cut, and at the end the number of cuts and findings. The exit status is 1 if
//! something was found; with `--lie`, disks that lose flushed writes, if nothing was.

use std::process::ExitCode;
use system_tests::power_cuts::{live, Outcome, Plan, LAYOUTS};

fn main() -> ExitCode {
    let (mut cuts, mut life, mut lies, mut only) = (600, 15, false, None);
    let mut seed = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(1, |d| d.as_secs() % 1_000_000);
    let mut args = std::env::args().skip(1);
    while let Some(a) = args.next() {
        let mut value = || args.next().unwrap_or_default();
        let mut number = || value().parse::<u64>();
        let read = match a.as_str() {
            "--cuts" => number().map(|n| cuts = n),
            "--seed" => number().map(|n| seed = n),
            "--life" => number().map(|n| life = n.max(1)),
            "--lie" => {
                lies = true;
                Ok(())
            }
            "--layout" => {
                let name = value();
                only = LAYOUTS.iter().find(|l| l.name == name);
                match only {
                    Some(_) => Ok(()),
                    None => "".parse::<u64>().map(drop),
                }
            }
            _ => "".parse::<u64>().map(drop),
        };
        if read.is_err() {
            let names: Vec<&str> = LAYOUTS.iter().map(|l| l.name).collect();
            eprintln!(
                "usage: power-cuts [--cuts N] [--seed N] [--life N] [--lie] [--layout {}]",
                names.join("|")
            );
            return ExitCode::from(2);
        }
    }
    let mut all = Outcome::default();
    let first = seed;
    while all.cuts < cuts && (!lies || all.findings.is_empty()) {
        let plan = Plan {
            layout: only
                .copied()
                .unwrap_or(LAYOUTS[(seed - first) as usize % LAYOUTS.len()]),
            seed,
            cuts: life.min(cuts - all.cuts),
            work: 2500,
            faults: true,
            lies,
            verbose: true,
        };
        let Some(outcome) = live(&plan) else {
            return ExitCode::from(2);
        };
        for f in &outcome.findings {
            println!("FOUND: {f}");
        }
        // A life that ends before its first cut must not be repeated for ever.
        all.cuts += u64::from(outcome.cuts == 0);
        all.add(outcome);
        seed += 1;
    }
    println!(
        "{} cuts, {} of them with unflushed writes, {} rounds with faults, {} in which a command started a daemon \
         without disks, {} acknowledged operations, {} findings (seeds {first} to {})",
        all.cuts,
        all.dirty,
        all.faults,
        all.abandoned,
        all.acknowledged,
        all.findings.len(),
        seed - 1
    );
    ExitCode::from(u8::from(all.findings.is_empty() == lies))
}
