//! Messages of the daemon, as events. Where they go is up to `logging`.

use std::backtrace::Backtrace;
use std::panic::PanicHookInfo;
use std::sync::atomic::{AtomicU64, Ordering};

/// The room of these messages, for filters.
const ROOM: &str = "daemon";

/// From now on messages go to standard error in the foreground, to the journal or syslog otherwise. Errors: the filter
/// in `ZFS_FUSE_LOG` makes no sense.
pub fn start(foreground: bool) -> base::Result<()> {
    let filter = match logging::filter("info") {
        Ok(filter) => filter,
        Err(what) => base::bail!(Invalid, "{what}"),
    };
    let to = match foreground {
        true => logging::To::Stderr,
        false => logging::To::System,
    };
    logging::start("zfs-fuse", to, filter);
    Ok(())
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

/// Says what only those want to know who look for it.
pub fn debug(text: &str) {
    tracing::debug!(target: ROOM, "{text}");
}

/// Says what failed and needs somebody.
pub fn error(text: &str) {
    tracing::error!(target: ROOM, "{text}");
}

/// Says what may become a failure.
pub fn warn(text: &str) {
    tracing::warn!(target: ROOM, "{text}");
}

/// Says what is nothing to worry about.
pub fn info(text: &str) {
    tracing::info!(target: ROOM, "{text}");
}
