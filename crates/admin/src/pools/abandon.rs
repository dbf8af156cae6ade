//! Forced export while devices do not answer: the pool is abandoned, although transfers cannot be cancelled.
//!
//! An export runs beside its caller ([`Process::spawn`](crate::Process::spawn)). If it is by force and the devices complete nothing for a
//! while though transfers are under way, the pool is abandoned: its devices are taken away, so that
//! nothing more is written, its mounts end, and it is no longer listed. Threads with a transfer under
//! way stay until the kernel gives them back, and the devices stay open, locked, until then; so
//! nobody, this daemon or another, imports the pool before the last write has landed.

use crate::abandoned::Abandoned;
use crate::registry::{Admin, PoolEntry};
use crate::Answer;
use api::ApiError;
use base::sync::MutexExt;
use base::{Error, Kind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, MutexGuard, TryLockError};
use std::time::{Duration, Instant};

/// How long devices may complete no request, some being under way, before a pool that is exported
/// by force is abandoned.
const PATIENCE: Duration = Duration::from_secs(2);
/// While a flush is under way the pool is not abandoned before the flush has taken so long, export or not. A slow disk takes
/// many seconds for one, and so does the file system of an image file that has much to write.
const FLUSH_PATIENCE: Duration = Duration::from_secs(20);
const TICK: Duration = Duration::from_millis(100);
/// How long the mounts of an abandoned pool may take to go from their places.
const UNMOUNT: Duration = Duration::from_secs(5);

impl Admin {
    /// Pools that were abandoned and whose transfers are still under way.
    pub fn abandoned(&self) -> MutexGuard<'_, Vec<Abandoned>> {
        let mut all = self.abandoned.acquire();
        all.retain(|a| a.busy().next().is_some());
        all
    }

    /// Why a device must not be touched, if a transfer of an abandoned pool is under way on it.
    /// Reading from it would wait as well.
    pub fn unanswered(&self, path: &str) -> Option<String> {
        let identity = |p: &str| self.process.identity(p);
        let id = identity(path);
        let same = |p: &str| p == path || id.is_some() && identity(p) == id;
        let all = self.abandoned();
        let found = all.iter().find(|a| a.busy().any(same));
        found.map(Abandoned::refusal)
    }
}

/// Runs `export` of a pool, one change of it at a time, and returns what it does; by force, not
/// without end. `unwanted` is set when the caller goes away. `export` must look at
/// [`PoolEntry::is_abandoned`] after whatever may wait for devices.
pub fn export(
    admin: &Arc<Admin>,
    entry: &Arc<PoolEntry>,
    force: bool,
    unwanted: &AtomicBool,
    export: impl FnOnce() -> Answer<Option<String>> + Send + 'static,
) -> Answer<Option<String>> {
    let (send, ended) = mpsc::channel();
    let mut job = Some(move || {
        // Nobody listens any more if the pool was abandoned.
        let _ = send.send(export());
    });
    let mut one_at_a_time = None;
    let mut pulse = None;
    let mut since = Instant::now();
    loop {
        if one_at_a_time.is_none() {
            // Another one may hold it that waits for the same devices.
            one_at_a_time = match entry.changes.try_lock() {
                Ok(guard) => Some(guard),
                Err(TryLockError::Poisoned(p)) => Some(p.into_inner()),
                Err(TryLockError::WouldBlock) => None,
            };
            if one_at_a_time.is_some() && job.is_some() {
                // Somebody who waited and went away does not want it any more.
                crate::cancel::check()?;
            }
            if one_at_a_time.is_none() && !force {
                // Whoever holds it waits for the devices, too, and may do so for ever.
                crate::suspended::not_suspended(entry)?;
            }
            if let Some(job) = one_at_a_time.as_ref().and_then(|_| job.take()) {
                admin
                    .process
                    .spawn("export", Box::new(job))
                    .map_err(crate::errors::answer)?;
            }
        }
        match ended.recv_timeout(TICK) {
            Ok(answer) => return answer,
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                return Err(ApiError::reason(Kind::Io, "the export stopped"))
            }
        }
        if crate::cancel::is_cancelled() {
            unwanted.store(true, Ordering::SeqCst);
        }
        if entry.is_abandoned() {
            return Err(ApiError::reason(Kind::Stale, "it was exported by force"));
        }
        if force && entry.pool.is_waiting() {
            // Ends whatever waits for the devices, another export included.
            let why = entry.pool.suspended().unwrap_or(Error::from(Kind::Io));
            let text =
                format!("it was exported by force while its devices could not be written: {why}");
            entry.pool.stop_for_good(Error::new(Kind::Io, text));
        }
        let now = entry.pool.tree().pulse();
        if now.busy == 0 || pulse != Some(now.done) {
            (pulse, since) = (Some(now.done), Instant::now());
        }
        if force && do_not_answer(since.elapsed(), now.flushing) {
            return Ok(Some(abandon(admin, entry)));
        }
    }
}

/// Whether a pool's devices are taken not to answer, which have completed nothing `since`, transfers being under way.
/// `flushing`: nanoseconds since the beginning of the oldest flush under way.
fn do_not_answer(since: Duration, flushing: Option<u64>) -> bool {
    let flushes = flushing.is_some_and(|ns| Duration::from_nanos(ns) < FLUSH_PATIENCE);
    since >= PATIENCE && !flushes
}

/// Lets go of a pool whatever is under way.
fn abandon(admin: &Arc<Admin>, entry: &Arc<PoolEntry>) -> String {
    let name = entry.pool.name();
    entry.abandon();
    let why = Error::new(Kind::Io, "its devices did not answer when it was exported");
    let left = Abandoned {
        name: name.clone(),
        guid: entry.pool.guid(),
        devices: entry.pool.abandon(why),
    };
    let what = format!(
        "{}. What they have not got is lost; the pool can be imported when these have ended.",
        left.refusal()
    );
    admin.abandoned().push(left);
    close_later(admin);
    admin.retire(entry);
    end_mounts(admin, entry);
    let file = entry.cache_file();
    admin.dismiss(entry);
    admin.rewrite_cache(file);
    tracing::error!("{what}");
    what
}

/// Closes the devices of abandoned pools when they are free.
fn close_later(admin: &Arc<Admin>) {
    let watched = admin.clone();
    let watch = move || {
        while !watched.abandoned().is_empty() {
            watched.process.pause(TICK, &|| false);
        }
    };
    // Without the thread they are closed when somebody asks for them.
    let _ = admin.process.spawn("abandoned", Box::new(watch));
}

/// Fails everything that waits for the mounts of a pool, and takes them from their places.
fn end_mounts(admin: &Admin, entry: &Arc<PoolEntry>) {
    let mounts = entry.all_mounts();
    let all = mounts.clone();
    let (send, ended) = mpsc::channel();
    let work = move || {
        for m in all.iter().rev() {
            if let Err(e) = m.mount.tear_down() {
                tracing::warn!("{e}");
            }
        }
        let _ = send.send(());
    };
    let begun = admin.process.spawn("abandoned", Box::new(work));
    if begun.is_err() || ended.recv_timeout(UNMOUNT).is_err() {
        // On the way to a mount the kernel may have asked the one above it.
        mounts.iter().for_each(|m| m.mount.abort());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_have_less_time_for_transfers_than_for_flushes() {
        let (short, long) = (Duration::from_secs(1), Duration::from_secs(3));
        let ns = |d: Duration| Some(d.as_nanos() as u64);
        assert!(!do_not_answer(short, None));
        assert!(do_not_answer(long, None));
        assert!(!do_not_answer(long, ns(long)));
        // A flush that stalled before the export has had its time.
        assert!(!do_not_answer(short, ns(FLUSH_PATIENCE)));
        assert!(do_not_answer(long, ns(FLUSH_PATIENCE)));
    }
}
