//! Child processes: each has a process group of its own, so that Ctrl-C reaches only this program, which then
//! ends them in the right order.

use base::{bail, Error, Kind, Result};
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::process::{kill_process, kill_process_group, pidfd_open, Pid, PidfdFlags, Signal};

use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// How long a command of an administrator (mkfs, mount, zpool …) may take.
pub const PATIENCE: Duration = Duration::from_secs(120);
/// Between the polite signal and the other one.
const GRACE: Duration = Duration::from_secs(10);

/// How a worker ends that cannot do its work on this machine, and one that failed; both say why.
pub const CANNOT: i32 = 77;
pub const SAID_WHY: i32 = 78;

static INTERRUPTED: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// Remembers Ctrl-C and its like from now on instead of ending at once.
pub fn watch_signals() -> Result<()> {
    let flag = INTERRUPTED.get_or_init(Arc::default);
    for s in [2, 15, 1] {
        signal_hook::flag::register(s, flag.clone())?;
    }
    Ok(())
}

pub fn interrupted() -> bool {
    INTERRUPTED.get().is_some_and(|f| f.load(Ordering::Relaxed))
}

/// What a finished child said.
#[derive(Debug)]
pub struct Said {
    pub out: String,
    pub err: String,
}

/// Starts in a group of its own.
pub fn spawn(c: &mut Command) -> Result<Child> {
    c.process_group(0).spawn().map_err(|e| {
        let kind = match e.kind() {
            std::io::ErrorKind::NotFound => Kind::Unsupported,
            _ => Kind::Io,
        };
        let program = c.get_program().to_string_lossy();
        Error::new(kind, format!("cannot run {program}: {e}"))
    })
}

/// Runs to the end. With `heed`, Ctrl-C ends it; cleaning up does not heed.
///
/// Errors: unsupported if there is no such program or it ends with 77 (then the last line it said
/// tells why); timed out; interrupted; otherwise I/O with what it said.
pub fn run(c: &mut Command, patience: Duration, heed: bool) -> Result<Said> {
    c.stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = spawn(c)?;
    let out = child.stdout.take().map(collect);
    let err = child.stderr.take().map(collect);
    let status = wait(&mut child, patience, heed);
    let text = |t: Option<std::thread::JoinHandle<String>>| {
        t.and_then(|t| t.join().ok()).unwrap_or_default()
    };
    let Some(status) = status? else {
        let name = c.get_program().to_string_lossy();
        bail!(Again, "{name} took more than {} s", patience.as_secs());
    };
    let (out, err) = (text(out), text(err));
    if status.success() {
        return Ok(Said { out, err });
    }
    let last = |t: &str| {
        let lines: Vec<&str> = t.lines().filter(|l| !l.trim().is_empty()).collect();
        let from = lines.len().saturating_sub(3);
        lines[from..].join("; ")
    };
    let said = match last(&err) {
        s if s.is_empty() => last(&out),
        s => s,
    };
    match status.code() {
        Some(CANNOT) => bail!(Unsupported, "{said}"),
        Some(SAID_WHY) => bail!(Io, "{said}"),
        _ => {}
    }
    let name = c.get_program().to_string_lossy().into_owned();
    let name = name.rsplit('/').next().unwrap_or("");
    bail!(Io, "{name}: {status}: {said}")
}

/// [`run`] with the usual patience, heeding Ctrl-C.
pub fn sh(program: &str, args: &[&str]) -> Result<String> {
    let mut c = Command::new(program);
    Ok(run(c.args(args), PATIENCE, true)?.out)
}

/// A program for clearing away: neither its failure nor Ctrl-C matters.
pub fn tidy(program: &str, args: &[&str]) -> bool {
    run(Command::new(program).args(args), PATIENCE, false).is_ok()
}

fn collect(mut from: impl std::io::Read + Send + 'static) -> std::thread::JoinHandle<String> {
    std::thread::spawn(move || {
        let mut all = Vec::new();
        let mut piece = [0; 8192];
        // What matters is at the beginning or the end; a flood is cut.
        while let Ok(n) = from.read(&mut piece) {
            if n == 0 {
                break;
            }
            if all.len() < 16 << 20 {
                all.extend_from_slice(&piece[..n]);
            }
        }
        String::from_utf8_lossy(&all).into_owned()
    })
}

/// `None` if it had to be killed because it took too long.
fn wait(child: &mut Child, patience: Duration, heed: bool) -> Result<Option<ExitStatus>> {
    let begin = Instant::now();
    // Whoever measures how long it takes must not wait longer than it does.
    let watch =
        Pid::from_raw(child.id() as i32).and_then(|p| pidfd_open(p, PidfdFlags::empty()).ok());
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        let late = begin.elapsed() > patience;
        if late || heed && interrupted() {
            end(child);
            if late {
                return Ok(None);
            }
            bail!(Interrupted, "interrupted");
        }
        match &watch {
            Some(fd) => {
                let pause = Timespec {
                    tv_sec: 0,
                    tv_nsec: 20_000_000,
                };
                // The next round of the loop sees what came of it.
                let _ = poll(&mut [PollFd::new(fd, PollFlags::IN)], Some(&pause));
            }
            None => std::thread::sleep(Duration::from_millis(2)),
        }
    }
}

/// Ends a child and its group: politely, then not.
pub fn end(child: &mut Child) {
    let Some(pid) = Pid::from_raw(child.id() as i32) else {
        return;
    };
    // Its group may be gone already.
    let _ = kill_process_group(pid, Signal::TERM);
    if ended(child, GRACE).is_none() {
        let _ = kill_process_group(pid, Signal::KILL);
        ended(child, GRACE);
    }
}

/// Ends one process politely, then not; whether it ended by itself.
pub fn stop(child: &mut Child) -> bool {
    if let Some(pid) = Pid::from_raw(child.id() as i32) {
        let _ = kill_process(pid, Signal::TERM);
    }
    if ended(child, GRACE * 3).is_some() {
        return true;
    }
    let _ = child.kill();
    ended(child, GRACE);
    false
}

/// A process in the kernel's uninterruptible sleep does not end even when killed; nobody waits for it
/// for ever.
fn ended(child: &mut Child, patience: Duration) -> Option<ExitStatus> {
    let begin = Instant::now();
    while begin.elapsed() < patience {
        match child.try_wait() {
            Ok(Some(s)) => return Some(s),
            Ok(None) => std::thread::sleep(Duration::from_millis(5)),
            Err(_) => return None,
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends() {
        assert_eq!(sh("echo", &["a"]).unwrap(), "a\n");
        let e = sh("sh", &["-c", "echo no >&2; exit 3"]).unwrap_err();
        assert!(e.to_string().contains("no"), "{e}");
        let e = sh("sh", &["-c", "echo why; exit 77"]).unwrap_err();
        assert_eq!(e.kind, Kind::Unsupported);
        let e = sh("/nonexistent/x", &[]).unwrap_err();
        assert_eq!(e.kind, Kind::Unsupported);
        let mut c = Command::new("sh");
        let e = run(
            c.args(["-c", "sleep 60 & wait"]),
            Duration::from_millis(50),
            true,
        );
        assert_eq!(e.unwrap_err().kind, Kind::Again);
    }
}
