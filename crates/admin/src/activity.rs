//! Whether another host has a pool: what its labels say, and the test for heartbeats before an import.

use crate::registry::Admin;
use api::{ApiError, Multihost};
use base::{Error, Kind};
use pool::{Activity, ActivityCheck};
use vdev::PoolFound;

/// What a check found.
pub enum Verdict {
    /// The pool may be opened.
    Free(Activity),
    /// It must not, also not by force.
    Refused(Multihost),
}

/// Tests whether another host uses a pool. This may take many seconds; `cancelled` ends it.
pub fn check(
    admin: &Admin,
    found: &PoolFound,
    write: bool,
    cancelled: &dyn Fn() -> bool,
) -> base::Result<Verdict> {
    let labels = (found.state, found.hostid);
    let rules = admin.settings.multihost;
    let begun = ActivityCheck::begin(&admin.env, &found.config, labels, rules, write);
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
            Ok(Some(next)) if admin.process.pause(next, cancelled) => {}
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

/// Whether the labels say that another system has it.
pub fn is_foreign(admin: &Admin, f: &PoolFound) -> bool {
    f.state != vdev::keys::pool::STATE_EXPORTED && f.hostid != admin.env.host.hostid()
}
