//! `zpool trim` and `zpool initialize`.

use crate::errors::answer;
use crate::pools::named::{find, Named};
use crate::pools::open;
use crate::registry::Admin;
use crate::suspended::{not_suspended, of_sync};
use crate::Answer;
use api::{ApiError, Batch, Peer, PoolWear, WearKind};
use base::Kind;
use pool::{Pool, Wear, WearAction, WearRefusal, WearState};
use std::sync::Arc;

/// Begins, suspends or stops trim or initialize of devices, or forgets that it was done.
pub fn wear(admin: &Arc<Admin>, peer: Peer, ask: &PoolWear) -> Answer<Batch> {
    let entry = open(admin, &ask.pool)?;
    crate::cancel::check()?;
    if entry.pool.is_readonly() {
        return Err(ApiError::reason(Kind::ReadOnly, "pool is read-only"));
    }
    not_suspended(&entry)?;
    let _one_at_a_time = entry.right_to_change().map_err(|e| of_sync(&entry, e))?;
    crate::cancel::check()?;
    open(admin, &ask.pool)?;
    let pool = &entry.pool;
    let what = match ask.what {
        WearKind::Trim => Wear::Trim,
        WearKind::Initialize => Wear::Initialize,
    };
    let action = match ask.action {
        api::WearAction::Start => WearAction::Start {
            rate: ask.rate,
            secure: ask.secure,
        },
        api::WearAction::Suspend => WearAction::Suspend,
        api::WearAction::Cancel => WearAction::Cancel,
        api::WearAction::Forget => WearAction::Forget,
    };
    let mut out = Batch {
        failed: strangers(pool, &ask.devices),
        ..Batch::default()
    };
    // A name that is wrong spoils the command, as in OpenZFS.
    if !out.failed.is_empty() {
        return Ok(out);
    }
    let chosen = leaves(pool, &ask.devices);
    let guids: Vec<u64> = chosen.iter().map(|(_, guid)| *guid).collect();
    let command = (ask.command.clone(), u64::from(peer.uid));
    let done = pool.wear(what, action, &guids, command).map_err(answer)?;
    let all = done.len();
    let mut unsupported = 0;
    for ((name, _), done) in chosen.into_iter().zip(done) {
        match done {
            Ok(()) => out.done.push(name),
            // Who names no device means those that can.
            Err(WearRefusal::Unsupported) if ask.devices.is_empty() && !ask.secure => {
                unsupported += 1;
            }
            Err(why) => out.failed.push((name, refusal(what, why))),
        }
    }
    if unsupported == all {
        return Err(ApiError::sentence(
            Kind::Unsupported,
            format!(
                "cannot {}: no devices in pool support trim operations",
                what.name()
            ),
        ));
    }
    Ok(out)
}

/// The names that are not those of devices of vdevs, and why nothing is done to them.
fn strangers(pool: &Pool, names: &[String]) -> Vec<(String, ApiError)> {
    let why = |name: &String| {
        let (kind, text) = match find(pool, name) {
            Some(Named::InTree(_)) => return None,
            Some(Named::Spare(_)) => (Kind::Unsupported, "device is reserved as a hot spare"),
            Some(Named::Cache(_)) => (Kind::Unsupported, "device is in use as a cache"),
            None => (Kind::NotFound, "no such device in pool"),
        };
        Some((name.clone(), ApiError::reason(kind, text)))
    };
    names.iter().filter_map(why).collect()
}

/// The devices asked for with their guids, 0 if there is no such device; without names all leaves.
fn leaves(pool: &Pool, names: &[String]) -> Vec<(String, u64)> {
    if names.is_empty() {
        let all = pool.tree().leaves().into_iter();
        return all.map(|l| (l.name(), l.guid())).collect();
    }
    let guid = |name: &String| pool.tree().find_by_name(name).map_or(0, |v| v.guid());
    names.iter().map(|n| (n.clone(), guid(n))).collect()
}

/// Guids of devices by their names; 0 if there is no such device.
pub(super) fn guids(pool: &Pool, names: &[String]) -> Vec<u64> {
    let all = leaves(pool, names).into_iter();
    all.map(|(_, guid)| guid).collect()
}

fn refusal(what: Wear, why: WearRefusal) -> ApiError {
    let (kind, text) = match (why, what) {
        (WearRefusal::NoDevice, _) => (Kind::NotFound, "no such device in pool"),
        (WearRefusal::BadDevice, _) => (Kind::Invalid, "invalid device"),
        (WearRefusal::Busy, Wear::Trim) => (Kind::Busy, "currently trimming"),
        (WearRefusal::Busy, Wear::Initialize) => (Kind::Busy, "currently initializing"),
        (WearRefusal::NotActive, Wear::Trim) => (Kind::NotFound, "there is no active trim"),
        (WearRefusal::NotActive, Wear::Initialize) => {
            (Kind::NotFound, "there is no active initialization")
        }
        (WearRefusal::Unsupported, _) => (
            Kind::Unsupported,
            "trim operations are not supported by this device",
        ),
    };
    ApiError::reason(kind, text)
}

/// How it stands for a leaf.
pub(super) fn stats(pool: &Pool, what: Wear, guid: u64) -> api::WearStats {
    let s = pool.wear_status(what, guid);
    api::WearStats {
        state: match s.state {
            WearState::None => api::WearState::None,
            WearState::Active => api::WearState::Active,
            WearState::Canceled => api::WearState::Canceled,
            WearState::Suspended => api::WearState::Suspended,
            WearState::Complete => api::WearState::Complete,
        },
        time: s.time,
        done: s.done,
        total: s.total,
    }
}
