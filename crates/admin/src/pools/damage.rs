//! Damage as `zpool status` shows it, and `zpool clear`.

use crate::errors::answer;
use crate::events;
use crate::head::read_only_view;
use crate::pools::{moved, open};
use crate::registry::{Admin, PoolEntry};
use crate::suspended::{not_suspended, of_sync, suspended};
use api::{ApiError, ErrorScrub, Peer, PoolClear, Scan, ScanFunction, ScanState};
use base::Kind;
use disk::scan::{self, ErrorScrubState, Function};
use pool::Pool;
use std::collections::HashMap;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::Arc;
use std::time::Duration;
use zpl::Zfs;

/// How often it is looked whether a pool was suspended.
const TICK: Duration = Duration::from_millis(50);
/// Most files listed; what is beyond is counted.
const MOST_FILES: usize = 10_000;

/// The files with errors, as `zpool status -v` prints them (command reference §8.3). Without `paths`, which are for the owner,
/// they are numbers.
pub fn files(entry: &Arc<PoolEntry>, paths: bool) -> Vec<String> {
    let pool = &entry.pool;
    let mut open: HashMap<u64, Option<Arc<Zfs>>> = HashMap::new();
    let mut out = Vec::new();
    for (objset, object) in pool.damaged_objects().into_iter().take(MOST_FILES) {
        if objset == 0 {
            out.push(format!("<metadata>:<{object:#x}>"));
            continue;
        }
        let Ok(ds) = pool.dataset_by_object(objset) else {
            out.push(format!("<{objset:#x}>:<{object:#x}>"));
            continue;
        };
        if !paths {
            out.push(format!("{}:<{object:#x}>", ds.full_name()));
            continue;
        }
        let mounted = entry.mounted(objset);
        let zfs = open.entry(objset).or_insert_with(|| match &mounted {
            Some(m) => Some(m.zfs()),
            None => read_only_view(pool, &ds).ok(),
        });
        let path = zfs.as_ref().and_then(|z| z.path_of(object).ok());
        out.push(match (path, &mounted) {
            (Some(p), Some(m)) => {
                let at = m.path.to_string_lossy();
                let at = at.trim_end_matches('/');
                format!("{at}{}", String::from_utf8_lossy(&p))
            }
            (Some(p), None) => format!("{}:{}", ds.full_name(), String::from_utf8_lossy(&p)),
            (None, _) => format!("{}:<{object:#x}>", ds.full_name()),
        });
    }
    out
}

/// State of scans, removals and expansions.
pub(super) fn scan_state(state: scan::ScanState) -> ScanState {
    match state {
        scan::ScanState::Scanning => ScanState::Scanning,
        scan::ScanState::Finished => ScanState::Finished,
        scan::ScanState::Canceled => ScanState::Canceled,
        scan::ScanState::None | scan::ScanState::Unknown(_) => ScanState::None,
    }
}

/// The newest scrub or resilver.
pub fn scan(pool: &Pool) -> Option<Scan> {
    let p = pool.scan_progress().ok()??;
    let s = p.state;
    Some(Scan {
        function: match s.function {
            Function::Scrub => ScanFunction::Scrub,
            Function::Resilver => ScanFunction::Resilver,
            _ => return None,
        },
        state: Some(scan_state(s.state)).filter(|s| *s != ScanState::None)?,
        start: s.start,
        end: s.end,
        to_examine: s.to_examine,
        examined: s.examined,
        issued: p.issued,
        skipped: s.skipped,
        processed: s.processed,
        errors: s.errors,
        pass_examined: p.pass_examined,
        pass_issued: p.pass_issued,
        pass_start: p.pass_start,
        paused_at: p.paused_at,
        spent_paused: p.spent_paused,
    })
}

/// The newest error scrub.
pub fn error_scrub(pool: &Pool) -> Option<ErrorScrub> {
    let s = pool.error_scrub().ok()??;
    Some(ErrorScrub {
        state: match s.state {
            ErrorScrubState::Scanning => ScanState::Scanning,
            ErrorScrubState::Finished => ScanState::Finished,
            ErrorScrubState::Canceled => ScanState::Canceled,
            ErrorScrubState::None | ErrorScrubState::Unknown(_) => return None,
        },
        paused: s.paused,
        start: s.start,
        end: s.end,
        to_examine: s.to_examine,
        examined: s.examined,
    })
}

/// `zpool clear`: counters back to zero, devices that can be had again opened, and, unless a device
/// is named, the list of damaged files emptied. A pool that waits for its devices goes on, if they can be
/// written.
pub fn clear(admin: &Arc<Admin>, peer: Peer, ask: &PoolClear) -> Result<(), ApiError> {
    let entry = open(admin, &ask.pool)?;
    crate::cancel::check()?;
    let pool = &entry.pool;
    if pool.is_readonly() {
        return Err(ApiError::reason(Kind::ReadOnly, "pool is read-only"));
    }
    if pool.is_lost_to_multihost() {
        return Err(ApiError::reason(
            Kind::Suspended,
            "the pool was suspended by multihost protection: another host may use it",
        )
        .hint("'zpool export -f' lets it go"));
    }
    let vdevs = chosen(pool, ask)?;
    let mut changed = false;
    for v in &vdevs {
        v.stats.clear_errors();
        let forgiven = v.forgive();
        changed |= forgiven;
        if forgiven || (v.kind().is_leaf() && !v.state().usable()) {
            let more = events::of_vdev(pool, v);
            admin
                .events
                .post(events::SYSEVENT, "vdev_clear", pool, more);
        }
    }
    if changed {
        pool.dirty_config();
    }
    if ask.device.is_none() {
        pool.clear_caches(None);
    }
    if let Some(why) = pool.stopped() {
        return Err(suspended(pool, &why));
    }
    moved::follow(admin, pool, &pool.tree().leaves());
    if pool.is_waiting() {
        // The thread that syncs opens what is not open. Others may hold `changes` and wait for it.
        if let Err(e) = pool.retry() {
            return Err(suspended(pool, &pool.suspended().unwrap_or(e)));
        }
    } else {
        let _one_at_a_time = entry.right_to_change().map_err(|e| of_sync(&entry, e))?;
        crate::cancel::check()?;
        open(admin, &ask.pool)?;
        pool.tree().reopen();
    }
    if ask.device.is_none() {
        pool.clear_errors();
    }
    let (entry2, command) = (entry.clone(), ask.command.clone());
    until_suspended(admin, &entry, move || {
        let pool = &entry2.pool;
        pool.log_command(&command, u64::from(peer.uid))
            .and_then(|()| pool.sync().map(drop))
    })?;
    admin.update_cache(&entry);
    Ok(())
}

/// Does something that ends with a txg on disk; an error if the pool is suspended before.
fn until_suspended(
    admin: &Admin,
    entry: &Arc<PoolEntry>,
    job: impl FnOnce() -> base::Result<()> + Send + 'static,
) -> Result<(), ApiError> {
    let (send, ended) = mpsc::channel();
    let job = move || {
        // Nobody listens any more if the pool was suspended meanwhile.
        let _ = send.send(job());
    };
    admin
        .process
        .spawn("clear", Box::new(job))
        .map_err(answer)?;
    loop {
        match ended.recv_timeout(TICK) {
            Ok(r) => return r.map_err(answer),
            Err(RecvTimeoutError::Timeout) => not_suspended(entry)?,
            Err(RecvTimeoutError::Disconnected) => {
                return Err(ApiError::reason(Kind::Io, "it stopped half-way"))
            }
        }
    }
}

/// The vdevs whose errors are to be cleared.
fn chosen(pool: &Pool, ask: &PoolClear) -> Result<Vec<Arc<vdev::Vdev>>, ApiError> {
    let Some(name) = &ask.device else {
        pool.tree().stats.clear_errors();
        return Ok(pool.tree().all());
    };
    if let Some(guid) = pool.cache_named(name) {
        pool.clear_caches(Some(guid));
        return Ok(Vec::new());
    }
    let found = pool.tree().find_by_name(name).ok_or_else(|| {
        ApiError::sentence(
            Kind::NotFound,
            format!(
                "cannot clear errors for {name} in {}: no such device in pool",
                ask.pool
            ),
        )
    })?;
    let mut list = vec![found];
    let mut at = 0;
    while let Some(v) = list.get(at).cloned() {
        list.extend(v.children().iter().cloned());
        at += 1;
    }
    Ok(list)
}
