//! Work on the source tree; see `USAGE`.
#![forbid(unsafe_code)]

mod licences;
mod msrv;
mod pages;
mod references;
mod test_run;
mod tidy;

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

const USAGE: &str = "\
usage: cargo run -p xtask -- COMMAND
  test [-p PACKAGE]... [--lanes N]
                    build all tests once, then run their binaries two at a time (docs/testing.md)
  tidy [--shrink]   structure of the workspace: dependencies, circles of imports, unsafe, lengths of files and
                    functions, unfinished work, citations, files that documents name; --shrink takes from
                    xtask/allowed.txt what is not needed
  licences          every dependency has a permissive licence
  msrv              every dependency, and the code where rustup has that toolchain, is content with rust-version
  manual DIR        write the manual pages into DIR
  completions DIR   write completions for bash, zsh and fish into DIR
  bench [OPTION]... build in release mode and run the yardstick (docs/performance.md)
  sim [OPTION]...   build in release mode and run the simulator (docs/testing.md)
";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let done = match words.as_slice() {
        ["tidy"] => run_tidy(false),
        ["tidy", "--shrink"] => run_tidy(true),
        ["licences"] => run_licences(),
        ["msrv"] => run_msrv(),
        ["manual", dir] => wrote(pages::manual(Path::new(dir))),
        ["test", rest @ ..] => test_run::run(root(), rest),
        ["bench", rest @ ..] => bench(rest),
        ["sim", rest @ ..] => sim(rest),
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

fn run_tidy(shrink: bool) -> Result<ExitCode, String> {
    let report = tidy::check(root(), shrink)?;
    println!("crates by level; each depends on lower ones only:");
    for (n, crates) in report.levels.iter().enumerate() {
        println!("  {n:2}  {}", crates.join(" "));
    }
    let upward = report
        .upward
        .iter()
        .map(|(room, m)| format!("{room} {}", m.len()));
    println!(
        "modules that name what a module above them holds: {}",
        upward.collect::<Vec<_>>().join(", ")
    );
    for (name, count) in &report.facades {
        println!("fields of {name}: {count}");
    }
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

fn run_msrv() -> Result<ExitCode, String> {
    let report = msrv::check(root())?;
    report.errors.iter().for_each(|e| println!("error: {e}"));
    if report.errors.is_empty() {
        let (version, packages) = (&report.version, report.packages);
        println!("msrv: Rust {version} is enough for {packages} packages that say what they need");
    }
    if !report.built {
        println!("skipped: rustup has no toolchain of that version to compile the code with");
    }
    Ok(code(report.errors.is_empty()))
}

/// The yardstick's release build, as root unless it only counts on the processor.
fn bench(args: &[&str]) -> Result<ExitCode, String> {
    let mut build = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    build
        .current_dir(root())
        .args(["build", "--release", "-q", "-p", "bench"]);
    let alone = matches!(args.first(), Some(&("micro" | "list" | "-h" | "--help")));
    if !alone && !args.iter().any(|a| a.starts_with("--programs")) {
        build.args(["-p", "daemon", "-p", "zpool", "-p", "zfs"]);
    }
    let status = |c: &mut Command| {
        c.status()
            .map_err(|e| format!("cannot run {}: {e}", c.get_program().to_string_lossy()))
    };
    if !status(&mut build)?.success() {
        return Ok(ExitCode::FAILURE);
    }
    let target = match std::env::var_os("CARGO_TARGET_DIR") {
        Some(t) => PathBuf::from(t),
        None => root().join("target"),
    };
    let program = target.join("release/bench");
    // Every process sees its own effective user in the owner of this folder.
    let owner = std::fs::metadata("/proc/self").map(|m| m.uid());
    let mut run = match alone || owner.is_ok_and(|o| o == 0) {
        true => Command::new(program),
        false => {
            let mut c = Command::new("sudo");
            c.arg("-E").arg(program);
            c
        }
    };
    Ok(code(status(run.args(args))?.success()))
}

/// The simulator's release build.
fn sim(args: &[&str]) -> Result<ExitCode, String> {
    let mut run = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    run.current_dir(root())
        .args(["run", "--release", "-q", "-p", "sim", "--"])
        .args(args);
    let status = run.status().map_err(|e| format!("cannot run cargo: {e}"))?;
    let left = status.code().and_then(|c| u8::try_from(c).ok());
    Ok(left.map_or(ExitCode::FAILURE, ExitCode::from))
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
