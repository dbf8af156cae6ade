//! Messages of the daemon: to standard error in the foreground, to syslog's socket otherwise.

use std::io::Write;
use std::os::unix::net::UnixDatagram;
use std::sync::atomic::{AtomicBool, Ordering};

/// Severity of what is nothing to worry about.
const INFO: u8 = 6;

static SYSLOG: AtomicBool = AtomicBool::new(false);

/// From now on messages go to the system log (`/dev/log`).
pub fn use_syslog() {
    SYSLOG.store(true, Ordering::Relaxed);
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
