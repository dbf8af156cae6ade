//! Refusals of operations that a suspended pool cannot do.

use crate::errors::answer;
use crate::registry::PoolEntry;
use crate::Answer;
use api::ApiError;
use base::{Error, Kind};

/// The pool is suspended: what is so, and what to do about it.
pub fn suspended(pool: &pool::Pool, why: &Error) -> ApiError {
    let name = pool.name();
    let (state, hint) = match pool.stopped() {
        None => (
            "pool I/O is currently suspended",
            format!(
                "Nothing is lost so far. See to it that its devices can be written; then 'zpool \
                 clear {name}' lets it go on. 'zpool export -f {name}' lets it go without what is not \
                 on its devices."
            ),
        ),
        Some(_) => (
            "the pool is stopped",
            format!(
                "What is not on its devices is lost. 'zpool export -f {name}' lets it go; it can be \
                 imported again then."
            ),
        ),
    };
    ApiError::reason(Kind::Suspended, format!("{state}: {why}")).hint(hint)
}

/// Why a change or a txg was not to be had.
pub(crate) fn of_sync(entry: &PoolEntry, e: Error) -> ApiError {
    not_suspended(entry).err().unwrap_or_else(|| answer(e))
}

/// Refuses what a suspended pool cannot do.
pub fn not_suspended(entry: &PoolEntry) -> Answer<()> {
    match entry.pool.suspended() {
        None => Ok(()),
        Some(why) => Err(suspended(&entry.pool, &why)),
    }
}
