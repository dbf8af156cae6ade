//! `zpool checkpoint`: keeps the state of a pool to go back to, or lets go of it.

use super::{scan, write_out};
use crate::errors::answer;
use crate::pools::open;
use crate::registry::Admin;
use crate::suspended::of_sync;
use crate::Answer;
use api::{Activity, ApiError, Peer};
use pool::Pool;
use std::sync::Arc;

/// Takes the checkpoint, with all whose `write` returned before, or begins to discard it. Returns what the kernel would not
/// give, in words.
///
/// # Errors
/// Those of [`Pool::take_checkpoint`] and [`Pool::discard_checkpoint`].
pub fn checkpoint(
    admin: &Arc<Admin>,
    peer: Peer,
    name: &str,
    discard: bool,
    command: &str,
) -> Answer<Option<String>> {
    let entry = scan::writable(admin, name)?;
    // Takes requests to the file systems, so no lock is held meanwhile.
    let left = match discard {
        true => None,
        false => write_out(&entry),
    };
    let _one_at_a_time = entry.right_to_change().map_err(|e| of_sync(&entry, e))?;
    crate::cancel::check()?;
    open(admin, name)?;
    let pool = &entry.pool;
    let told = |e: base::Error| ApiError::reason(e.kind, e.to_string());
    match discard {
        true => pool.discard_checkpoint().map_err(told)?,
        false => {
            // The checkpoint is the newest state on disk.
            pool.sync_unless_suspended()
                .map_err(|e| of_sync(&entry, e))?;
            pool.take_checkpoint().map_err(told)?;
        }
    }
    pool.log_command(command, u64::from(peer.uid))
        .map_err(answer)?;
    entry.ring();
    Ok(left)
}

/// What `zpool wait` is told of a checkpoint that is being discarded.
pub(super) fn activity(pool: &Pool) -> Activity {
    let c = &pool.shares().checkpoint;
    let running = c.is_discarding() && !pool.is_readonly();
    Activity {
        name: "discard".into(),
        running,
        remaining: if running { c.kept_sum() } else { 0 },
    }
}
