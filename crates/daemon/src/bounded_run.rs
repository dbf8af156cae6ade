//! Programs of others, run for a bounded time. They may walk paths that do not answer.

use base::{Error, Kind, Result};
use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long a program may take.
pub const LONGEST: Duration = Duration::from_secs(30);
/// How long one that was killed is waited for: it may be stuck in the kernel.
const END: Duration = Duration::from_millis(500);
/// How often it is looked whether it has ended.
const TICK: Duration = Duration::from_millis(5);
/// Most bytes of what it prints.
const MOST: u64 = 64 << 20;

/// What a program printed, and whether it succeeded.
pub struct Ran {
    /// It exited with 0.
    pub success: bool,
    /// On its standard output.
    pub out: String,
    /// On its standard error.
    pub err: String,
}

/// Runs a program, for `longest` at most.
///
/// # Errors
/// It cannot be started; it takes too long, and is killed.
pub fn run(command: &mut Command, longest: Duration) -> Result<Ran> {
    let command = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let failed = |e: std::io::Error| Error::new(Kind::Io, base::io_text(&e));
    let mut child = command.spawn().map_err(failed)?;
    let (out, err) = (read(child.stdout.take()), read(child.stderr.take()));
    let Some(success) = ends(&mut child, longest) else {
        // A process that others sent on a path that does not answer is left to itself.
        let _ = child.kill();
        ends(&mut child, END);
        let text = format!("it took longer than {longest:?} and was ended");
        return Err(Error::new(Kind::Io, text));
    };
    Ok(Ran {
        success,
        out: text(out),
        err: text(err),
    })
}

/// Whether it succeeds; none: it does not end in time.
fn ends(child: &mut Child, longest: Duration) -> Option<bool> {
    let begin = Instant::now();
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status.success()),
            Ok(None) if begin.elapsed() < longest => std::thread::sleep(TICK),
            Ok(None) => return None,
            Err(_) => return Some(false),
        }
    }
}

type Reader = Option<JoinHandle<Vec<u8>>>;

/// Reads to the end, beside the other one: a full pipe would stop the program.
fn read(from: Option<impl Read + Send + 'static>) -> Reader {
    let mut from = from?.take(MOST);
    let thread = std::thread::Builder::new().name("program".into());
    let read = move || {
        let mut bytes = Vec::new();
        // What could be read has been.
        let _ = from.read_to_end(&mut bytes);
        bytes
    };
    thread.spawn(read).ok()
}

fn text(reader: Reader) -> String {
    let bytes = reader.and_then(|r| r.join().ok()).unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, longest: Duration) -> Result<Ran> {
        run(Command::new("sh").args(["-c", script]), longest)
    }

    #[test]
    fn a_program_that_does_not_end_is_ended() {
        let ran = shell("echo out; echo err >&2; exit 3", LONGEST).unwrap();
        assert_eq!(
            (ran.success, &*ran.out, &*ran.err),
            (false, "out\n", "err\n")
        );
        let ran = shell("head -c 300000 /dev/zero", LONGEST).unwrap();
        assert!(ran.success && ran.out.len() == 300_000);
        let slow = shell("exec sleep 100", Duration::from_millis(50));
        assert!(slow.is_err_and(|e| e.to_string().contains("took longer")));
        assert!(run(&mut Command::new("/no/such/program"), LONGEST).is_err());
    }
}
