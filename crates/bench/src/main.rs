//! The yardstick: runs the workloads by which file systems are compared, interleaved on several of
//! them on the same loop device, and says how many times as fast each is. See `docs/performance.md`.
#![forbid(unsafe_code)]

mod child;
mod data;
mod device;
mod growth;
mod machine;
mod markdown;
mod measure;
mod micro;
mod nfs;
mod options;
mod plot;
mod postmark;
mod results;
mod rows;
mod run;
mod scans;
mod stats;
mod stream_commands;
mod systems;
mod tar;
mod tools;
mod usage;

use options::{Options, USAGE};
use std::process::ExitCode;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let done = match args.first().map(String::as_str) {
        Some("work") => rows::work(&args[1..]),
        Some("warm") => device::warm(&args[1..]),
        Some("micro") => micro::run(&args[1..]),
        Some("growth") => growth::run(&args[1..]),
        Some("scans") => scans::run(&args[1..]),
        Some("nfs") => nfs::run(&args[1..]),
        Some("list") => {
            print!("{}", rows::list());
            Ok(true)
        }
        Some("-h" | "--help") => {
            print!("{USAGE}");
            Ok(true)
        }
        _ => match Options::parse(&args) {
            Ok(o) => run::run(&o),
            Err(e) => {
                eprintln!("bench: {e}");
                eprint!("{USAGE}");
                return ExitCode::from(2);
            }
        },
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => {
            eprintln!("bench: {e}");
            ExitCode::FAILURE
        }
    }
}
