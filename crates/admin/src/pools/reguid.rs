//! `zpool reguid`: gives a pool another guid.

use super::scan;
use crate::errors::answer;
use crate::events::SYSEVENT;
use crate::pools::open;
use crate::registry::Admin;
use crate::suspended::of_sync;
use crate::Answer;
use api::{ApiError, Peer};
use base::{Error, Kind};
use std::sync::Arc;

/// Gives the pool the guid, or a random one.
///
/// # Errors
/// Another pool has it; those of [`pool::Pool::reguid`].
pub fn reguid(
    admin: &Arc<Admin>,
    peer: Peer,
    name: &str,
    guid: Option<u64>,
    command: &str,
) -> Answer<()> {
    let entry = scan::writable(admin, name)?;
    let _one_at_a_time = entry.right_to_change().map_err(|e| of_sync(&entry, e))?;
    crate::cancel::check()?;
    open(admin, name)?;
    let told = |e: Error| ApiError::reason(e.kind, e.to_string());
    // Nobody imports or makes a pool of that guid meanwhile.
    let _claim = match guid {
        Some(guid) => {
            let in_use = |e: Error| match e.kind {
                Kind::Exists => told(Error::new(Kind::Exists, format!("guid {guid} is in use"))),
                _ => told(e),
            };
            Some(admin.claim("", guid).map_err(in_use)?)
        }
        None => None,
    };
    entry.pool.reguid(guid).map_err(told)?;
    admin
        .events
        .post(SYSEVENT, "pool_reguid", &entry.pool, Vec::new());
    let recorded = entry.pool.log_command(command, u64::from(peer.uid));
    admin.update_cache(&entry);
    entry.ring();
    recorded.map(drop).map_err(answer)
}
