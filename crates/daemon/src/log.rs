//! Messages of the daemon: to standard error in the foreground, to syslog's socket otherwise.

use std::backtrace::Backtrace;
use std::io::Write;
use std::os::unix::net::UnixDatagram;
use std::panic::PanicHookInfo;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Severity of what is nothing to worry about.
const INFO: u8 = 6;

static SYSLOG: AtomicBool = AtomicBool::new(false);

/// From now on messages go to the system log (`/dev/log`).
pub fn use_syslog() {
    SYSLOG.store(true, Ordering::Relaxed);
}

/// Panics that are told with the calls that led to them; of later ones the place must do.
const TOLD_IN_FULL: u64 = 8;

/// From now on panics are told in the log, wherever it is: what panicked has no terminal.
pub fn report_panics() {
    static SEEN: AtomicU64 = AtomicU64::new(0);
    std::panic::set_hook(Box::new(|info| {
        for line in panic_lines(info, SEEN.fetch_add(1, Ordering::Relaxed) < TOLD_IN_FULL) {
            error(&line);
        }
    }));
}

fn panic_lines(info: &PanicHookInfo<'_>, in_full: bool) -> Vec<String> {
    let payload = info.payload();
    let what = payload.downcast_ref::<&str>().map(|s| s.to_string());
    let what = what.or_else(|| payload.downcast_ref::<String>().cloned());
    let place = info.location().map(|l| format!(" at {l}"));
    let thread = std::thread::current();
    let mut lines = vec![format!(
        "internal error: thread '{}' panicked{}: {}",
        thread.name().unwrap_or("unnamed"),
        place.unwrap_or_default(),
        what.unwrap_or_default()
    )];
    if in_full {
        let calls = Backtrace::force_capture().to_string();
        lines.extend(calls.lines().map(|l| format!("  {}", l.trim_end())));
    }
    lines
}

fn send(severity: u8, text: &str) {
    // Names come from labels.
    let text = cli::harmless::harmless(text);
    if SYSLOG.load(Ordering::Relaxed) {
        // Facility daemon (3).
        let line = format!(
            "<{}>zfs-fuse[{}]: {text}",
            3 * 8 + severity,
            std::process::id()
        );
        if let Ok(s) = UnixDatagram::unbound() {
            if s.send_to(line.as_bytes(), "/dev/log").is_ok() {
                return;
            }
        }
        // Nobody keeps a log here. Whoever starts the daemon is told what goes wrong, no more.
        if severity == INFO {
            return;
        }
    }
    let _ = writeln!(std::io::stderr(), "zfs-fuse: {text}");
}

pub fn error(text: &str) {
    send(3, text);
}

pub fn warn(text: &str) {
    send(4, text);
}

pub fn info(text: &str) {
    send(INFO, text);
}
