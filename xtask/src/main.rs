//! Work on the source tree; see `USAGE`.
#![forbid(unsafe_code)]

mod licences;
mod pages;
mod tidy;

use std::path::Path;
use std::process::ExitCode;

const USAGE: &str = "\
usage: cargo run -p xtask -- COMMAND
  tidy        structure of the workspace: dependencies, unsafe, sizes of files, unfinished work
  licences    every dependency has a permissive licence
  manual DIR        write the manual pages into DIR
  completions DIR   write completions for bash, zsh and fish into DIR
";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let done = match words.as_slice() {
        ["tidy"] => run_tidy(),
        ["licences"] => run_licences(),
        ["manual", dir] => wrote(pages::manual(Path::new(dir))),
        ["completions", dir] => wrote(pages::completions(Path::new(dir))),
        _ => {
            eprint!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(code) => code,
        Err(e) => {
            eprintln!("xtask: {e}");
            ExitCode::FAILURE
        }
    }
}

/// The workspace.
fn root() -> &'static Path {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here)
}

fn run_tidy() -> Result<ExitCode, String> {
    let report = tidy::check(root())?;
    report.warnings.iter().for_each(|w| println!("note: {w}"));
    report.errors.iter().for_each(|e| println!("error: {e}"));
    Ok(code(report.errors.is_empty()))
}

fn run_licences() -> Result<ExitCode, String> {
    let (complaints, count) = licences::check(root())?;
    complaints.iter().for_each(|c| println!("error: {c}"));
    if complaints.is_empty() {
        println!("licences: {count} packages, all permissive");
    }
    Ok(code(complaints.is_empty()))
}

fn wrote(done: Result<usize, String>) -> Result<ExitCode, String> {
    done.map(|files| {
        println!("{files} files written");
        ExitCode::SUCCESS
    })
}

fn code(ok: bool) -> ExitCode {
    if ok {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
