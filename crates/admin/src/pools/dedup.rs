//! `zpool ddtprune` and `zpool prefetch`: the tables of blocks that several pointers refer to.

use super::scan;
use crate::errors::answer;
use crate::pools::open;
use crate::registry::Admin;
use crate::Answer;
use api::{ApiError, Peer, Prune, SharedTable};
use base::Error;
use std::sync::Arc;

const DAY: u64 = 24 * 60 * 60;

/// Takes unique entries out of the dedup tables, the oldest first. Other requests to the pool go on meanwhile.
///
/// # Errors
/// Those of [`pool::Pool::prune_dedup`].
pub fn prune(admin: &Arc<Admin>, peer: Peer, name: &str, what: Prune, command: &str) -> Answer<()> {
    let entry = scan::writable(admin, name)?;
    let what = match what {
        Prune::Days(days) => pool::ddt::Prune::OlderThan(days.saturating_mul(DAY)),
        Prune::Percent(percent) => pool::ddt::Prune::Oldest(percent),
    };
    let told = |e: Error| ApiError::reason(e.kind, e.to_string());
    entry.pool.prune_dedup(what).map_err(told)?;
    entry
        .pool
        .log_command(command, u64::from(peer.uid))
        .map_err(answer)?;
    entry.ring();
    Ok(())
}

/// Reads tables into the cache. Other requests to the pool go on meanwhile.
///
/// # Errors
/// Those of reading them.
pub fn prefetch(
    admin: &Arc<Admin>,
    peer: Peer,
    name: &str,
    table: SharedTable,
    command: &str,
) -> Answer<()> {
    let entry = open(admin, name)?;
    let pool = &entry.pool;
    let done = match table {
        SharedTable::Ddt => pool.prefetch_dedup(),
        SharedTable::Brt => pool.prefetch_clones(),
    };
    done.map_err(|e| ApiError::reason(e.kind, e.to_string()))?;
    if !pool.is_readonly() {
        pool.log_command(command, u64::from(peer.uid))
            .map_err(answer)?;
        entry.ring();
    }
    Ok(())
}
