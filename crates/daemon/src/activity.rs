//! Multihost protection in the daemon: the threads that write heartbeats, and the test for those of
//! others before an import.

use crate::service::{Entry, Service};
use api::{ApiError, Multihost};
use base::{Error, Kind};
use pool::{Activity, ActivityCheck};
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::{Duration, Instant};
use vdev::PoolFound;

/// Longest sleep between two looks at whether a command or pool is still there.
const TICK: Duration = Duration::from_millis(50);

/// Sleeps; `false` as soon as `stop` says so.
fn sleep(for_how_long: Duration, stop: &dyn Fn() -> bool) -> bool {
    let begin = Instant::now();
    loop {
        if stop() {
            return false;
        }
        match for_how_long.checked_sub(begin.elapsed()) {
            Some(left) if !left.is_zero() => std::thread::sleep(left.min(TICK)),
            _ => return true,
        }
    }
}

/// What a check found.
pub enum Verdict {
    /// The pool may be opened.
    Free(Activity),
    /// It must not, also not by force.
    Refused(Multihost),
}

/// Tests whether another host uses a pool. This may take many seconds; `cancelled` ends it.
pub fn check(
    service: &Service,
    found: &PoolFound,
    write: bool,
    cancelled: &dyn Fn() -> bool,
) -> base::Result<Verdict> {
    let labels = (found.state, found.hostid);
    let rules = service.multihost;
    let begun = ActivityCheck::begin(&service.env, &found.config, labels, rules, write);
    let mut check = match begun {
        Ok(Some(check)) => check,
        Ok(None) => return Ok(Verdict::Free(Activity::Unknown)),
        Err(e) if e.kind == Kind::NotPermitted => {
            return Ok(Verdict::Refused(Multihost::NoHostId));
        }
        // What is wrong with the labels is told by whoever opens the pool.
        Err(_) => return Ok(Verdict::Free(Activity::Unknown)),
    };
    loop {
        match check.look() {
            Ok(None) => return Ok(Verdict::Free(Activity::Seen(check.seen()))),
            Ok(Some(next)) if sleep(next, cancelled) => {}
            Ok(Some(_)) => return Err(Error::new(Kind::Interrupted, "the command was cancelled")),
            Err(e) if e.kind == Kind::Busy => return Ok(Verdict::Refused(Multihost::Active)),
            Err(e) => return Err(e),
        }
    }
}

/// The refusal of an import.
pub fn refusal(name: &str, found: &PoolFound, why: Multihost) -> ApiError {
    match why {
        Multihost::Active => {
            let host = match found.hostname.as_str() {
                "" => "<unknown>",
                host => host,
            };
            ApiError::sentence(
                Kind::Busy,
                format!(
                    "cannot import '{name}': pool is imported on {host} (hostid: 0x{:x})",
                    found.hostid
                ),
            )
            .hint("Export the pool on the other system, then run 'zpool import'.")
        }
        Multihost::NoHostId => ApiError::sentence(
            Kind::Invalid,
            format!(
                "cannot import '{name}': pool has the multihost property on and the\n\
                 system's hostid is not set. Set a unique hostid in /etc/hostid."
            ),
        ),
    }
}

/// Starts the threads of a pool whose property `multihost` is on, once.
pub fn start(entry: &Arc<Entry>) -> base::Result<()> {
    if !entry.pool.is_multihost() || entry.beating.swap(true, Ordering::SeqCst) {
        return Ok(());
    }
    let job = |name: &str, work: fn(&pool::Pool) -> Duration| {
        let entry = entry.clone();
        std::thread::Builder::new()
            .name(format!("{name} {}", entry.pool.name()))
            .spawn(move || while sleep(work(&entry.pool), &|| entry.is_closed()) {})
    };
    let started = job("mmp", pool::Pool::heartbeat)
        .and_then(|_| job("mmp watch", pool::Pool::watch_heartbeat));
    if let Err(e) = started {
        entry.beating.store(false, Ordering::SeqCst);
        return Err(e.into());
    }
    Ok(())
}
