//! `zpool scrub` and `resilver`.

use crate::errors::answer;
use crate::pools::open;
use crate::registry::{Admin, PoolEntry};
use crate::suspended::{not_suspended, of_sync};
use crate::Answer;
use api::{Activity, ApiError, Peer, PoolScrub, ScrubAction};
use base::{Kind, Txg};
use disk::feature::guid;
use disk::scan::{ErrorScrubState, Function, ScanState};
use pool::{Pool, ScanRefusal, ScrubRange};
use std::sync::Arc;

/// The pool, if it can be scanned.
pub(super) fn writable(admin: &Arc<Admin>, name: &str) -> Answer<Arc<PoolEntry>> {
    let entry = open(admin, name)?;
    crate::cancel::check()?;
    if entry.pool.is_readonly() {
        return Err(ApiError::reason(Kind::ReadOnly, "pool is read-only"));
    }
    not_suspended(&entry)?;
    Ok(entry)
}

/// `zpool scrub`: begins, pauses, stops a scrub, or has a paused one go on.
pub fn scrub(admin: &Arc<Admin>, peer: Peer, ask: &PoolScrub) -> Answer<()> {
    let dates = ask.start.is_some() || ask.end.is_some();
    if dates && (ask.since_last || ask.action != ScrubAction::Start) {
        return Err(ApiError::reason(
            Kind::Invalid,
            "start/end date is available only with normal scrub",
        ));
    }
    if let (Some(start), Some(end)) = (ask.start, ask.end) {
        if start > end {
            return Err(ApiError::reason(
                Kind::Invalid,
                "end date has to be later than start date",
            ));
        }
    }
    let entry = writable(admin, &ask.pool)?;
    let _one_at_a_time = entry.right_to_change().map_err(|e| of_sync(&entry, e))?;
    crate::cancel::check()?;
    open(admin, &ask.pool)?;
    let pool = &entry.pool;
    let command = (ask.command.clone(), u64::from(peer.uid));
    let paused = pool
        .scan_progress()
        .map_err(answer)?
        .is_some_and(|s| s.state.paused);
    if paused && (dates || ask.since_last) {
        return Err(refusal(ScanRefusal::PausedToCancel));
    }
    let done = match ask.action {
        ScrubAction::Errors => match pool.start_error_scrub(command) {
            Err(e) if e.kind == Kind::Unsupported => {
                return Err(ApiError::reason(e.kind, e.to_string()));
            }
            done => done,
        },
        ScrubAction::Start => {
            let range = match ask.since_last {
                true => ScrubRange {
                    after: pool.last_scrubbed().map_err(answer)?.unwrap_or(Txg::NONE),
                    through: None,
                },
                false => pool.txgs_between(ask.start, ask.end),
            };
            pool.start_scrub(range, command)
        }
        ScrubAction::Pause => pool.pause_scrub(command),
        ScrubAction::Stop => pool.stop_scrub(command),
    };
    done.map_err(answer)?.map_err(refusal)
}

fn refusal(why: ScanRefusal) -> ApiError {
    let (kind, text) = match why {
        ScanRefusal::Scrubbing => (
            Kind::Busy,
            "currently scrubbing; use 'zpool scrub -s' to cancel scrub",
        ),
        ScanRefusal::Resilvering => (Kind::Busy, "currently resilvering"),
        ScanRefusal::NoScrub => (Kind::NotFound, "there is no active scrub"),
        ScanRefusal::Paused => (
            Kind::Busy,
            "scrub is paused; use 'zpool scrub' to resume scrub",
        ),
        ScanRefusal::PausedToCancel => (
            Kind::Busy,
            "scrub is paused; use 'zpool scrub' to resume or 'zpool scrub -s' to cancel scrub",
        ),
        ScanRefusal::ErrorScrubbing => (
            Kind::Busy,
            "currently error scrubbing; use 'zpool scrub -s' to cancel error scrub",
        ),
        ScanRefusal::ErrorScrubPaused => (
            Kind::Busy,
            "error scrub is paused; use 'zpool scrub -e' to resume error scrub",
        ),
        ScanRefusal::NoErrors => (Kind::NotFound, "no damaged blocks are on record"),
    };
    ApiError::reason(kind, text)
}

/// `zpool resilver`: a resilver under way begins anew; one begins if a device lacks something.
pub fn resilver(admin: &Arc<Admin>, peer: Peer, name: &str, command: &str) -> Answer<()> {
    let entry = writable(admin, name)?;
    let pool = &entry.pool;
    let features = pool.feature_store();
    if !features.is_some_and(|f| dsl::Features::is_enabled(&**f, DEFER)) {
        return Err(ApiError::reason(
            Kind::Unsupported,
            "this action requires the resilver_defer feature",
        ));
    }
    pool.restart_resilver();
    pool.log_command(command, u64::from(peer.uid))
        .map_err(answer)?;
    Ok(())
}

/// Feature with which resilvers may wait for others, and be restarted.
const DEFER: &str = guid::RESILVER_DEFER;

/// What `zpool wait` is told of scans.
pub(super) fn activity(pool: &Pool) -> Answer<[Activity; 2]> {
    let scan = pool.scan_progress().map_err(answer)?;
    let live = scan.filter(|s| s.state.state == ScanState::Scanning && !pool.is_readonly());
    let errors = pool.error_scrub().map_err(answer)?;
    let errors =
        errors.filter(|e| e.state == ErrorScrubState::Scanning && !e.paused && !pool.is_readonly());
    let of = |name: &str, function: Function, due: bool| {
        let running = live.filter(|s| s.state.function == function && !s.state.paused);
        let left = running.map_or(0, |s| {
            let total = s.state.to_examine.saturating_sub(s.state.skipped);
            total.saturating_sub(s.issued)
        });
        Activity {
            name: name.into(),
            running: running.is_some() || due,
            remaining: left,
        }
    };
    let due = !pool.is_readonly() && pool.is_resilvering();
    let mut resilver = of("resilver", Function::Resilver, due);
    let rebuilding = pool.left_of("rebuild").map_err(answer)?;
    resilver.remaining += rebuilding.unwrap_or(0);
    Ok([of("scrub", Function::Scrub, errors.is_some()), resilver])
}
