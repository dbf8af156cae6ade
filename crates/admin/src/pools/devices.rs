//! Operations on the devices of a pool: `zpool add`, `remove`, `attach`, `replace`, `detach`, `online`, `offline`, `reopen`.

use crate::errors::answer;
use crate::events::{of_vdev, SYSEVENT};
use crate::pools::create::{check_devices, label_objection, wishes, Objection, Wish};
use crate::pools::named::{find, Named};
use crate::pools::{moved, open};
use crate::process::DeviceUse;
use crate::registry::{Admin, PoolEntry};
use crate::suspended::{not_suspended, of_sync};
use crate::Answer;
use api::{ApiError, DeviceAttach, Peer, PoolAdd};
use base::sync::ReadGuard;
use base::{Error, Kind};
use pool::{AttachRefusal, ExpandRefusal, Offline, Pool};
use std::sync::{Arc, MutexGuard};
use vdev::{keys, Attach, DevSpec, State, TopSpec, Vdev};

/// The refusal of `action`, and why.
pub(super) fn failed(action: &str, kind: Kind, why: impl std::fmt::Display) -> ApiError {
    ApiError::sentence(kind, format!("{action}: {why}"))
}

/// The leaf of that name, which is part of the tree.
fn leaf(pool: &Pool, name: &str, action: &str) -> Answer<Arc<Vdev>> {
    match find(pool, name) {
        Some(Named::InTree(v)) if v.kind().is_leaf() || v.kind() == vdev::VdevKind::Dspare => Ok(v),
        Some(Named::InTree(_)) => Err(failed(
            action,
            Kind::Unsupported,
            "operation not supported on this type of vdev",
        )),
        Some(Named::Spare(_)) => Err(failed(
            action,
            Kind::Unsupported,
            "device is reserved as a hot spare",
        )),
        Some(Named::Cache(_)) => Err(failed(
            action,
            Kind::Unsupported,
            "device is in use as a cache",
        )),
        None => Err(failed(action, Kind::NotFound, "no such device in pool")),
    }
}

/// The pool of that name, in service.
pub(super) fn entry_of(admin: &Admin, name: &str) -> Answer<Arc<PoolEntry>> {
    open(admin, name)
}

/// The right to change the pool, one change at a time, and its gate: in the order of an export.
pub(super) fn begin<'a>(
    entry: &'a PoolEntry,
    action: &str,
) -> Answer<(MutexGuard<'a, ()>, ReadGuard<'a, ()>)> {
    if entry.pool.is_readonly() {
        return Err(failed(action, Kind::ReadOnly, "pool is read-only"));
    }
    not_suspended(entry)?;
    let alone = entry.pass_to_change().map_err(|e| of_sync(entry, e))?;
    crate::cancel::check()?;
    Ok(alone)
}

/// The change is told as an event of that class, if it is not empty; the command recorded, the cache file brought up to date.
pub(super) fn finish(
    admin: &Arc<Admin>,
    entry: &Arc<PoolEntry>,
    peer: Peer,
    command: &str,
    (class, of): (&str, Option<&Vdev>),
) -> Answer<()> {
    if !class.is_empty() {
        let more = of.map_or_else(Vec::new, |v| of_vdev(&entry.pool, v));
        admin.events.post(SYSEVENT, class, &entry.pool, more);
    }
    let recorded = entry.pool.log_command(command, u64::from(peer.uid));
    admin.update_cache(entry);
    entry.ring();
    recorded.map(drop).map_err(answer)
}

/// What an error of the engine is told as.
pub(super) fn sentence(action: &str) -> impl Fn(Error) -> ApiError + '_ {
    move |e| match e.kind {
        Kind::Suspended => answer(e),
        _ => failed(action, e.kind, e),
    }
}

/// `zpool online`. Returns a warning if the device is not healthy.
pub fn online(
    admin: &Arc<Admin>,
    peer: Peer,
    name: &str,
    device: &str,
    expand: bool,
    command: &str,
) -> Answer<Option<String>> {
    let entry = open(admin, name)?;
    let action = match expand {
        true => format!("cannot expand {device}"),
        false => format!("cannot online {device}"),
    };
    let _one = begin(&entry, &action)?;
    let moved = match find(&entry.pool, device) {
        None => moved::by_label(admin, &entry.pool, device),
        Some(_) => None,
    };
    if let Some(guid) = entry.pool.cache_named(device) {
        if expand {
            return Err(failed(
                &action,
                Kind::Unsupported,
                "cannot expand cache devices",
            ));
        }
        let done = entry.pool.set_cache_offline(guid, false, true);
        done.map_err(sentence(&action))?;
        finish(admin, &entry, peer, command, ("", None))?;
        return Ok(None);
    }
    let v = match moved {
        Some(v) => v,
        None => leaf(&entry.pool, device, &action)?,
    };
    let bring = || entry.pool.online(v.guid()).map_err(sentence(&action));
    let mut state = bring()?;
    if state == State::CantOpen
        && !moved::follow(admin, &entry.pool, std::slice::from_ref(&v)).is_empty()
    {
        state = bring()?;
    }
    let mut warning = match state {
        State::Healthy | State::Degraded => None,
        State::Faulted => Some("use 'zpool clear' to restore a faulted device"),
        _ => Some("use 'zpool replace' to replace devices that are no longer present"),
    }
    .map(|hint| {
        format!("warning: device '{device}' onlined, but remains in faulted state\n{hint}")
    });
    if expand {
        let grown = entry.pool.expand(v.guid()).map_err(sentence(&action))?;
        if !grown && warning.is_some() {
            let more =
                format!("{device}: failed to expand usable space on unhealthy device '{device}'");
            warning = warning.map(|w| format!("{w}\n{more}"));
        }
    }
    finish(admin, &entry, peer, command, ("vdev_online", Some(&v)))?;
    Ok(warning)
}

/// `zpool offline`
pub fn offline(
    admin: &Arc<Admin>,
    peer: Peer,
    name: &str,
    device: &str,
    how: Offline,
    command: &str,
) -> Answer<()> {
    let entry = open(admin, name)?;
    let action = format!("cannot offline {device}");
    let _one = begin(&entry, &action)?;
    if let Some(guid) = entry.pool.cache_named(device).filter(|_| !how.fault) {
        let done = entry.pool.set_cache_offline(guid, true, !how.temporary);
        done.map_err(sentence(&action))?;
        return finish(admin, &entry, peer, command, ("", None));
    }
    let v = leaf(&entry.pool, device, &action)?;
    entry
        .pool
        .offline(v.guid(), how)
        .map_err(sentence(&action))?;
    finish(admin, &entry, peer, command, ("", None))
}

/// `zpool detach`
pub fn detach(
    admin: &Arc<Admin>,
    peer: Peer,
    name: &str,
    device: &str,
    command: &str,
) -> Answer<()> {
    let entry = open(admin, name)?;
    let action = format!("cannot detach {device}");
    let _one = begin(&entry, &action)?;
    let v = leaf(&entry.pool, device, &action)?;
    entry.pool.detach(v.guid()).map_err(sentence(&action))?;
    finish(admin, &entry, peer, command, ("vdev_remove", Some(&v)))
}

/// `zpool attach` and `zpool replace`
pub fn attach(admin: &Arc<Admin>, peer: Peer, ask: &DeviceAttach) -> Answer<()> {
    let entry = open(admin, &ask.pool)?;
    let old_name = &ask.device;
    let new_name = ask.new.as_deref().unwrap_or(old_name);
    let action = match (ask.replace, &ask.new) {
        (true, Some(_)) => format!("cannot replace {old_name} with {new_name}"),
        (true, None) => format!("cannot replace {old_name}"),
        _ => format!("cannot attach {new_name} to {old_name}"),
    };
    let _one = begin(&entry, &action)?;
    let old = match find(&entry.pool, old_name) {
        Some(Named::InTree(v))
            if matches!(v.kind(), vdev::VdevKind::Raidz { .. }) && !ask.replace =>
        {
            return expand(admin, (&entry, peer), &v, ask, &action);
        }
        _ => leaf(&entry.pool, old_name, &action)?,
    };
    let path = match &ask.new {
        Some(path) => path.clone(),
        None => old.path().unwrap_or_default(),
    };
    if let Some(why) = entry
        .pool
        .attach_refusal(old.guid(), ask.sequential)
        .map_err(sentence(&action))?
    {
        let kind = match why {
            AttachRefusal::Resilvering | AttachRefusal::Rebuilding => Kind::Busy,
            AttachRefusal::Removing => {
                let why = format!("{new_name} is busy, or device removal is in progress");
                return Err(failed(&action, Kind::Busy, why));
            }
            AttachRefusal::NoFeature | AttachRefusal::NotSequential => Kind::Unsupported,
        };
        return Err(failed(&action, kind, why));
    }
    if let Some(Named::Spare(c)) = find(&entry.pool, &path).filter(|_| ask.replace) {
        if c.get_str(keys::TYPE) == Some("dspare") {
            let spare = c.get_u64(keys::GUID).unwrap_or(0);
            entry
                .pool
                .attach_dspare(old.guid(), spare, ask.sequential)
                .map_err(sentence(&action))?;
            return finish(
                admin,
                &entry,
                peer,
                &ask.command,
                ("vdev_spare", Some(&old)),
            );
        }
    }
    let dev = new_device(admin, &path, &action)?;
    let how = match find(&entry.pool, &path) {
        Some(Named::Spare(c)) if ask.replace => {
            let (top, _) = entry
                .pool
                .tree()
                .leaf_of(old.guid())
                .map_err(sentence(&action))?;
            if top.is_log() {
                return Err(failed(
                    &action,
                    Kind::Unsupported,
                    "cannot replace a log with a spare",
                ));
            }
            Attach::Spare(c.get_u64(keys::GUID).unwrap_or(0))
        }
        _ if ask.replace => Attach::Replace,
        _ => Attach::Mirror,
    };
    if !matches!(how, Attach::Spare(_)) {
        check(admin, &old, &dev, ask)?;
    }
    let pool = &entry.pool;
    let attached = match ask.sequential {
        true => pool.attach_sequentially(old.guid(), &dev, how, ask.ashift),
        false => pool.attach(old.guid(), &dev, how, ask.ashift),
    };
    attached.map_err(|e| match e.kind {
        Kind::Busy => failed(
            &action,
            e.kind,
            format!("{path} is busy, or device removal is in progress"),
        ),
        _ => sentence(&action)(e),
    })?;
    finish(
        admin,
        &entry,
        peer,
        &ask.command,
        ("vdev_attach", Some(&old)),
    )
}

/// `zpool attach` to a RAID-Z.
fn expand(
    admin: &Arc<Admin>,
    (entry, peer): (&Arc<PoolEntry>, Peer),
    raidz: &Arc<Vdev>,
    ask: &DeviceAttach,
    action: &str,
) -> Answer<()> {
    let pool = &entry.pool;
    let path = ask.new.as_deref().unwrap_or_default();
    if ask.sequential {
        let why = AttachRefusal::NotSequential;
        return Err(failed(action, Kind::Unsupported, why));
    }
    let dev = new_device(admin, path, action)?;
    if let Some(why) = pool.expand_refusal(raidz.id()).map_err(sentence(action))? {
        let kind = match why {
            ExpandRefusal::UnderWay | ExpandRefusal::Removing => Kind::Busy,
            ExpandRefusal::Checkpoint => Kind::Exists,
            ExpandRefusal::NoFeature | ExpandRefusal::Vdev(_) => Kind::Unsupported,
        };
        return Err(failed(action, kind, why));
    }
    check(admin, raidz, &dev, ask)?;
    pool.expand_raidz(raidz.id(), &dev, ask.ashift)
        .map_err(sentence(action))?;
    let told = ("vdev_attach", Some(&**raidz));
    finish(admin, entry, peer, &ask.command, told)
}

/// The single device of that path.
fn new_device(admin: &Arc<Admin>, path: &str, action: &str) -> Answer<DevSpec> {
    if !super::create::is_device(path) {
        return Err(failed(
            action,
            Kind::Invalid,
            "new device must be a single disk",
        ));
    }
    let (is_block, _, _) = admin.process.identity(path).ok_or_else(|| {
        ApiError::sentence(
            Kind::NotFound,
            format!("cannot open '{path}': no such device or file"),
        )
    })?;
    Ok(match is_block {
        true => DevSpec::disk(path, false),
        false => DevSpec::file(path),
    })
}

/// What speaks against using the new device.
fn check(admin: &Arc<Admin>, old: &Vdev, dev: &DevSpec, ask: &DeviceAttach) -> Answer<()> {
    let in_place = old.path().as_ref() == Some(&dev.path) && !old.state().usable();
    if !in_place {
        let wish = Wish {
            tops: vec![TopSpec::new(vdev::GroupKind::Single, vec![dev.clone()])],
            ..Wish::default()
        };
        return check_devices(admin, &wish, ask.force, "device is too small");
    }
    // The pool's own name for it speaks of the device that was there.
    let using = admin.process.device_use(&dev.path);
    let using = using.map_err(|e| ApiError::sentence(e.kind, format!("cannot open {e}")))?;
    let objection = match using {
        DeviceUse::Free => Objection::None,
        DeviceUse::Labels => label_objection(admin, &dev.path),
        DeviceUse::Overridable(text) => Objection::Overridable(text),
        DeviceUse::Fatal(text) => Objection::Fatal(text),
    };
    let refused = match objection {
        Objection::Spare(pool) => {
            format!("{} is reserved as a hot spare for pool {pool}", dev.path)
        }
        Objection::Fatal(text) => text,
        Objection::Overridable(text) if !ask.force => text,
        Objection::None | Objection::Overridable(_) => return Ok(()),
    };
    Err(ApiError::vdevs(!ask.force, &[refused]))
}

/// `zpool add`
pub fn add(admin: &Arc<Admin>, peer: Peer, ask: &PoolAdd) -> Answer<()> {
    let entry = open(admin, &ask.pool)?;
    let action = format!("cannot add to '{}'", ask.pool);
    let _one = begin(&entry, &action)?;
    let ashift = match ask.ashift {
        Some(0) => None,
        None => stored_ashift(&entry.pool).map_err(answer)?,
        given => given,
    };
    let wish = wishes(&ask.vdevs, ashift)?;
    let too_small = "device is less than the minimum size (64M)";
    check_devices(admin, &wish, ask.allow_in_use, too_small)?;
    if ask.dry_run {
        return Ok(());
    }
    let pool = &entry.pool;
    // First what can be taken away again.
    let beside = match wish.aux.is_empty() {
        true => Vec::new(),
        false => pool.add_aux(&wish.aux).map_err(sentence(&action))?,
    };
    if !wish.tops.is_empty() {
        if let Err(e) = pool.add_tops_with(&wish.tops, ask.allow_ashift_mismatch) {
            for guid in beside {
                if let Err(e) = pool.remove_aux(guid) {
                    tracing::warn!("{action}: a spare or cache device stays: {e}");
                }
            }
            return Err(sentence(&action)(e));
        }
    }
    finish(admin, &entry, peer, &ask.command, ("vdev_add", None))
}

/// The pool's property `ashift`, if it is set.
fn stored_ashift(pool: &Pool) -> base::Result<Option<u32>> {
    let stored = pool.stored_props()?;
    let set = stored.iter().find(|(n, _)| n == "ashift");
    Ok(match set.map(|(_, v)| v) {
        Some(dsl::PropValue::Int(n)) if *n != 0 => u32::try_from(*n).ok(),
        _ => None,
    })
}

/// `zpool remove` of a spare, a cache device or a log, which is gone when it returns, or of another top-level vdev, whose data are
/// then moved to others in the background.
pub fn remove(
    admin: &Arc<Admin>,
    peer: Peer,
    name: &str,
    device: &str,
    command: &str,
) -> Answer<()> {
    let entry = open(admin, name)?;
    let action = format!("cannot remove {device}");
    let _one = begin(&entry, &action)?;
    let pool = &entry.pool;
    let mut class = "vdev_remove_dev";
    match find(pool, device) {
        None => return Err(failed(&action, Kind::NotFound, "no such device in pool")),
        Some(aux @ (Named::Spare(_) | Named::Cache(_))) => {
            let guid = match aux {
                Named::Spare(c) => c.get_u64(keys::GUID).unwrap_or(0),
                Named::Cache(guid) => guid,
                Named::InTree(v) => v.guid(),
            };
            pool.remove_aux(guid).map_err(sentence(&action))?;
            class = "vdev_remove_aux";
        }
        Some(Named::InTree(v)) => {
            let tops = pool.tree().tops();
            let top = tops.iter().find(|t| t.guid() == v.guid());
            match top {
                Some(t) if t.is_log() => pool.remove_log(t.id()).map_err(sentence(&action))?,
                Some(t) => {
                    pool.remove_top(t.id()).map_err(sentence(&action))?;
                    // Told when it is gone.
                    class = "";
                }
                None => {
                    return Err(failed(
                        &action,
                        Kind::Unsupported,
                        "operation not supported on this type of pool",
                    ))
                }
            }
        }
    }
    finish(admin, &entry, peer, command, (class, None))
}

/// `zpool remove -n`: the memory that the mapping of a top-level vdev would take. Of other devices 0.
pub fn removal_estimate(admin: &Admin, name: &str, device: &str) -> Answer<u64> {
    let entry = open(admin, name)?;
    let action = format!("cannot determine indirect size of {device}");
    let pool = &entry.pool;
    let Some(Named::InTree(v)) = find(pool, device) else {
        return match find(pool, device) {
            None => Err(failed(&action, Kind::NotFound, "no such device in pool")),
            Some(_) => Ok(0),
        };
    };
    let tops = pool.tree().tops();
    match tops.iter().find(|t| t.guid() == v.guid() && !t.is_log()) {
        Some(t) => pool.removal_estimate(t.id()).map_err(answer),
        None => Ok(0),
    }
}

/// `zpool remove -s`
pub fn cancel_removal(admin: &Arc<Admin>, peer: Peer, name: &str, command: &str) -> Answer<()> {
    let entry = open(admin, name)?;
    let action = "cannot cancel removal";
    let _one = begin(&entry, action)?;
    entry.pool.cancel_removal().map_err(sentence(action))?;
    finish(admin, &entry, peer, command, ("", None))
}

/// `zpool reopen`
pub fn reopen(admin: &Arc<Admin>, peer: Peer, name: &str, command: &str) -> Answer<()> {
    let entry = open(admin, name)?;
    let _pass = entry.pass_to_change().map_err(|e| of_sync(&entry, e))?;
    not_suspended(&entry)?;
    if !entry.pool.is_readonly() {
        moved::follow(admin, &entry.pool, &entry.pool.tree().leaves());
    }
    entry.pool.reopen().map_err(answer)?;
    if entry.pool.is_readonly() {
        return Ok(());
    }
    finish(admin, &entry, peer, command, ("", None))
}
