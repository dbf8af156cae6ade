//! Programs of the system that the daemon runs: exportfs(8), net(8), `zfs list`.

use base::{Error, Kind, Result};
use std::io::Read;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// A program that runs longer is ended: it may have met a file system that does not answer.
const LONGEST: Duration = Duration::from_secs(60);
/// How often it is looked whether a program has ended.
const TICK: Duration = Duration::from_millis(5);

/// Runs a program to its end; what it printed.
///
/// # Errors
/// It cannot be run, fails, or takes longer than a minute; with what it said.
pub fn run(command: &mut Command) -> Result<String> {
    let words: Vec<_> = std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(|w| w.to_string_lossy().into_owned())
        .collect();
    let failed = |why: &str| Error::new(Kind::Io, format!("{}: {why}", words.join(" ")));
    let piped = command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let spawned = piped.stdin(Stdio::null()).spawn();
    let mut child = spawned.map_err(|e| failed(&base::io_text(&e)))?;
    let mut readers = [reader(child.stdout.take()), reader(child.stderr.take())];
    let begin = Instant::now();
    let status = loop {
        match child.try_wait()? {
            Some(status) => break status,
            None if begin.elapsed() > LONGEST => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(failed("it took longer than a minute, and was ended"));
            }
            None => std::thread::sleep(TICK),
        }
    };
    let mut said = || -> Vec<String> {
        let texts = readers
            .iter_mut()
            .map(|r| r.take().and_then(|r| r.join().ok()));
        texts.map(Option::unwrap_or_default).collect()
    };
    let texts = said();
    if status.success() {
        return Ok(texts.into_iter().next().unwrap_or_default());
    }
    let lines = texts.iter().rev().flat_map(|t| t.lines());
    let why: Vec<&str> = lines.map(str::trim).filter(|l| !l.is_empty()).collect();
    Err(failed(&why.join(" ")))
}

/// Reads what a program says, on a thread: it must not wait for a full pipe.
fn reader(from: Option<impl Read + Send + 'static>) -> Option<std::thread::JoinHandle<String>> {
    let mut from = from?;
    let read = move || {
        let mut bytes = Vec::new();
        let _ = from.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    };
    std::thread::Builder::new().spawn(read).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_says_something_or_why_it_failed() {
        let sh = |script: &str| run(Command::new("sh").args(["-c", script]));
        assert_eq!(sh("echo out; echo err >&2").unwrap(), "out\n");
        let e = sh("echo out; echo err >&2; exit 3").unwrap_err();
        assert!(e.to_string().ends_with(": err out"), "{e}");
        // More than a pipe holds.
        let long = sh("i=0; while [ $i -lt 20000 ]; do echo 0123456789; i=$((i+1)); done");
        assert_eq!(long.unwrap().len(), 220_000);
        assert!(run(&mut Command::new("/no/such/program")).is_err());
    }
}
