//! Operations on pools. Small ones are in this file.

pub mod abandon;
pub mod agent;
mod autosit;
pub mod checkpoint;
mod class_props;
pub mod create;
pub mod damage;
pub mod dedup;
pub mod devices;
pub mod get;
pub mod import;
mod moved;
mod named;
pub mod reguid;
pub mod scan;
pub mod set;
pub mod split;
mod tree;
pub mod upgrade;
pub mod vdev_props;
pub mod wear;

use crate::datasets::share::Unshared;
use crate::errors::answer;
use crate::registry::{Admin, PoolEntry};
use crate::streams::Way;
use crate::suspended::{not_suspended, of_sync};
use crate::Answer;
use crate::{cancel, parallel};
use api::{Activity, ApiError, Feature, HistoryRecord, Peer};
use base::sync::{MutexExt, RwLockExt, WriteGuard};
use base::{Error, Kind};
use disk::history::keys as key;
use disk::{feature, NvList};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Records of the history handed over at a time.
const HISTORY_CHUNK: usize = 500;

/// Features that pools of this software may have.
pub fn supported_features() -> Vec<Feature> {
    feature::FEATURES
        .iter()
        .filter(|f| f.supported)
        .map(|f| Feature {
            name: f.name.into(),
            guid: f.guid.into(),
            description: f.description.into(),
            read_only_compatible: f.flags.readonly_compat,
        })
        .collect()
}

/// `zpool sync`: what is written so far goes to disk; by force also when there is nothing to write.
/// Returns what could not be taken from the kernel, in words.
pub fn sync(admin: &Admin, pool: &str, force: bool) -> Answer<Option<String>> {
    let entry = open(admin, pool)?;
    if entry.pool.is_readonly() {
        return Ok(None);
    }
    not_suspended(&entry)?;
    let mounts = entry.all_mounts();
    let left = write_out(&entry);
    let done = match force {
        true => entry.pool.prove_devices(),
        false => entry.pool.sync_unless_suspended(),
    };
    done.map_err(|e| of_sync(&entry, e))?;
    mounts.iter().for_each(|m| m.mount.synced());
    Ok(left)
}

/// Takes from the kernel what programs have written. Returns what could not be taken, in words.
fn write_out(entry: &PoolEntry) -> Option<String> {
    let mut left = Vec::new();
    for m in entry.all_mounts() {
        let done = m.mount.write_out();
        left.extend(done.err().map(|l| format!("{}: {l}", m.ds.full_name())));
    }
    (!left.is_empty()).then(|| left.join("\n"))
}

/// What goes on in a pool in the background (`zpool wait`). With `devices`, trim and initialize of others do not count.
pub fn activity(admin: &Admin, pool: &str, devices: &[String]) -> Answer<Vec<Activity>> {
    let entry = open(admin, pool)?;
    // Who waited for a resilver finds the spare free that stood in.
    if !entry.pool.is_readonly() && entry.pool.suspended().is_none() {
        entry.pool.release_spares().map_err(answer)?;
    }
    let left = |job: &str| entry.pool.left_of(job).map_err(answer);
    let freeing = left("free")?.unwrap_or(0);
    let activity = |name: &str, remaining| Activity {
        name: name.into(),
        running: remaining > 0,
        remaining,
    };
    // How much is left is a matter of the resilver.
    let replacing = u64::from(entry.pool.is_replacement_under_way());
    let removing = left("remove")?.unwrap_or(0);
    let mut list = vec![
        activity("free", freeing),
        activity("replace", replacing),
        activity("remove", removing),
    ];
    list.push(checkpoint::activity(&entry.pool));
    list.extend(scan::activity(&entry.pool)?);
    let expanding = left("raidz_expand")?.unwrap_or(0);
    list.push(activity("raidz_expand", expanding));
    let chosen = (!devices.is_empty()).then(|| wear::guids(&entry.pool, devices));
    let counts = |of: pool::Subject| match (&chosen, of) {
        (Some(chosen), pool::Subject::Leaf(guid)) => chosen.contains(&guid),
        _ => true,
    };
    for what in [pool::Wear::Initialize, pool::Wear::Trim] {
        let left = entry.pool.left_of_some(what.name(), &counts);
        let left = left.map_err(answer)?.filter(|_| !entry.pool.is_readonly());
        list.push(Activity {
            name: what.name().into(),
            running: left.is_some(),
            remaining: left.unwrap_or(0),
        });
    }
    Ok(list)
}

/// The imported pool of that name.
pub fn open(admin: &Admin, name: &str) -> Answer<Arc<PoolEntry>> {
    if let Some(entry) = admin.find(name) {
        return Ok(entry);
    }
    // Lists and status show it, too.
    let all = admin.absent();
    Err(match all.iter().find(|a| a.name == name) {
        Some(a) => ApiError::reason(
            Kind::NoDevice,
            format!("the pool is listed in the cache file, but could not be opened: {}", a.error),
        )
        .hint(format!(
            "When its devices are there, 'zpool import {name}' opens it; 'zpool export {name}' takes it \
             from the list."
        )),
        None => ApiError::no_such_pool(name),
    })
}

/// How a pool leaves service.
#[derive(Clone, Copy, Debug, Default)]
pub struct Leave {
    /// Mounts in use are no obstacle, nor are devices that do not answer.
    pub force: bool,
    /// It does not come back.
    pub destroy: bool,
    /// Labels and cache file stay as they are while the pool is in use.
    pub keep_active: bool,
}

/// `zpool export` and `zpool destroy`. Returns what is lost, in words, if a pool is exported by force.
pub fn leave(
    admin: &Arc<Admin>,
    peer: Peer,
    name: &str,
    way: Leave,
    command: &str,
) -> Answer<Option<String>> {
    let unopened = admin.absent().iter().find(|a| a.name == name).cloned();
    if let Some(a) = unopened {
        if way.destroy {
            return Err(ApiError::reason(
                Kind::NoDevice,
                format!("the pool could not be opened: {}", a.error),
            )
            .hint(format!(
                "'zpool export {name}' takes it from the list of pools"
            )));
        }
        let file = admin.forget_absent(a.guid);
        admin.rewrite_cache(file);
        return Ok(None);
    }
    let entry = open(admin, name)?;
    let (admin2, entry2, command) = (admin.clone(), entry.clone(), command.to_string());
    let unwanted = Arc::new(AtomicBool::new(false));
    let gone = unwanted.clone();
    abandon::export(admin, &entry, way.force, &unwanted, move || {
        take_out(&admin2, peer, &entry2, way, &gone, &command)
    })
}

/// How long streams have to end when a pool goes by force. What they wait for ends at once; they may have something to
/// write yet.
const STREAMS_PATIENCE: Duration = Duration::from_secs(5);
/// How long requests under way may take before new ones wait until the pool is exported.
const POLITE: Duration = Duration::from_secs(2);
const TICK: Duration = Duration::from_millis(10);

/// The gate of a pool that is to go, for nobody else. By force streams under way are ended before; meanwhile others' requests
/// go on. `check` says whether the pool is still to go.
fn close_gate<'a>(
    entry: &'a PoolEntry,
    way: Leave,
    check: &dyn Fn() -> Answer<()>,
) -> Answer<WriteGuard<'a, ()>> {
    let begin = Instant::now();
    loop {
        while way.force && begin.elapsed() < STREAMS_PATIENCE {
            entry.streams.end_all();
            if !entry.users.end_all() && !entry.streams.any() {
                break;
            }
            check()?;
            std::thread::sleep(TICK);
        }
        let gate = loop {
            check()?;
            // Who waits in the lock's queue keeps out all that come later.
            match entry.gate.try_acquire_write() {
                Some(gate) => break gate,
                None if begin.elapsed() > POLITE => break entry.gate.acquire_write(),
                None => std::thread::sleep(TICK),
            }
        };
        check()?;
        // One may have begun since.
        if !way.force || !entry.streams.any() || begin.elapsed() > STREAMS_PATIENCE {
            return Ok(gate);
        }
    }
}

/// Takes a pool out of service: unmounts, records the command, marks the labels. `unwanted`: the caller
/// has gone away.
fn take_out(
    admin: &Arc<Admin>,
    peer: Peer,
    entry: &Arc<PoolEntry>,
    way: Leave,
    unwanted: &AtomicBool,
    command: &str,
) -> Answer<Option<String>> {
    // Whatever waits for devices may end when the pool is no longer ours.
    let ours = || match entry.is_abandoned() {
        true => Err(answer(Kind::Stale.into())),
        false => Ok(()),
    };
    // Somebody else's export may have been before this one.
    let name = entry.pool.name();
    match admin.find(&name) {
        Some(e) if Arc::ptr_eq(&e, entry) => {}
        Some(_) => {
            let text = "the pool was opened anew meanwhile; try again";
            return Err(ApiError::reason(Kind::Again, text));
        }
        None if way.force && entry.pool.stopped().is_some() => {
            return Ok(Some(what_is_lost(entry, way)));
        }
        None => return Err(ApiError::no_such_pool(&name)),
    }
    // Without its devices a pool can only be let go, by force, as the last txg left it.
    if !way.force {
        not_suspended(entry)?;
    }
    if !way.force {
        reach_mounts(admin, entry)?;
    }
    let _gate = close_gate(entry, way, &|| match unwanted.load(Ordering::SeqCst) {
        true => Err(cancel::refusal()),
        false => ours(),
    })?;
    if entry.streams.any() {
        return Err(busy_with_streams(admin, entry, Way::Received));
    }
    if !way.force && entry.users.any(Way::Sent) {
        return Err(busy_with_streams(admin, entry, Way::Sent));
    }
    if !way.force && !entry.pool.is_readonly() {
        // Devices that fail do so now, while nothing is unmounted yet.
        entry.pool.prove_devices().map_err(|e| of_sync(entry, e))?;
        ours()?;
    }
    let mounts = entry.all_mounts();
    entry.volumes.let_go(&|_| true, way.force).map_err(|e| {
        let text = format!("pool is busy\n  {}", e.hint.unwrap_or_default());
        ApiError::reason(Kind::Busy, text)
    })?;
    unmount_all(admin, entry, way.force)?;
    ours()?;
    let unwritten = crate::mounts::unwritten(&mounts);
    let mut told = None;
    let mut lost = |e: Error| match way.force && entry.pool.stopped().is_some() {
        true => {
            let text = told.get_or_insert_with(|| what_is_lost(entry, way));
            tracing::error!("{text} ({e})");
            Ok(())
        }
        false => Err(answer(e)),
    };
    entry
        .pool
        .log_command(command, u64::from(peer.uid))
        .map(drop)
        .or_else(&mut lost)?;
    ours()?;
    let file = entry.cache_file();
    let class = if way.destroy {
        "pool_destroy"
    } else {
        "pool_export"
    };
    admin
        .events
        .post(crate::events::SYSEVENT, class, &entry.pool, Vec::new());
    admin.retire(entry);
    let done = match entry.pool.stopped() {
        Some(why) => Err(why),
        None if way.keep_active => entry.pool.close(),
        // One that is only read goes on being what it was for everybody else.
        None if way.destroy && !entry.pool.is_readonly() => entry.pool.destroy(),
        None => entry.pool.export(),
    };
    ours()?;
    admin.dismiss(entry);
    if entry.pool.stopped().is_some() {
        // Lets the devices go; that nothing can be written any more is known.
        let _ = entry.pool.close();
    }
    if !way.keep_active {
        admin.rewrite_cache(file);
    }
    done.or_else(&mut lost)?;
    // What programs have not written is of no use in a pool that is gone.
    let unwritten = unwritten.filter(|_| !way.destroy);
    let texts: Vec<String> = told.into_iter().chain(unwritten).collect();
    Ok((!texts.is_empty()).then(|| texts.join("\n")))
}

/// The pool cannot be let go because of streams; says whose.
fn busy_with_streams(admin: &Admin, entry: &PoolEntry, way: Way) -> ApiError {
    let command = |pid| admin.process.command(pid);
    let lines = entry.users.lines(way, &command).into_iter();
    let text = lines.fold("pool is busy".to_string(), |t, l| format!("{t}\n  {l}"));
    ApiError::reason(Kind::Busy, text)
}

/// What a pool that is exported or destroyed by force leaves behind.
fn what_is_lost(entry: &PoolEntry, way: Leave) -> String {
    let pool = entry.pool.name();
    let (txg, bytes) = entry.pool.unwritten();
    if way.destroy {
        return format!(
            "pool '{pool}' could not be marked as destroyed, as its devices cannot be written: it was \
             exported as transaction group {txg} left it."
        );
    }
    format!(
        "pool '{pool}' was exported as transaction group {txg} left it: changes since then, {} of \
         them in memory, could not be written and are lost.",
        base::sizes::nice(bytes, true)
    )
}

/// Walks to all mounts of a pool, with no lock held: what does not answer then is not waited for with the gate closed.
fn reach_mounts(admin: &Arc<Admin>, entry: &Arc<PoolEntry>) -> Answer<()> {
    let list = entry.all_mounts();
    let failed: Mutex<Vec<Error>> = Mutex::default();
    admin.process.together(list.len(), &|n| {
        if let Err(e) = list[n].mount.reach() {
            failed.acquire().push(e);
        }
    });
    let failed = failed.into_inner().unwrap_or_else(|e| e.into_inner());
    let mut e = ApiError::reason(Kind::Busy, "a mount point cannot be reached");
    if failed.is_empty() {
        return Ok(());
    }
    for f in failed {
        e = e.detail(f.to_string());
    }
    Err(e.hint("with -f the mounts are cut off where they are"))
}

/// Unmounts every file system of a pool, children first; what refuses is named.
pub fn unmount_all(admin: &Arc<Admin>, entry: &Arc<PoolEntry>, force: bool) -> Answer<()> {
    let mut list = entry.all_mounts();
    list.reverse();
    let busy: Mutex<Vec<PathBuf>> = Mutex::default();
    let unshared = Unshared::before_unmounting(admin, &list);
    let done = parallel::run(
        &*admin.process,
        &list,
        |m| &m.path,
        |m| {
            let busy = || busy.acquire();
            // A parent of what could not be unmounted is busy too, and not worth a line.
            if busy().iter().any(|p| p.starts_with(&m.path)) {
                return Ok(None);
            }
            let done = admin.unmount_first(entry, m, force);
            if done.is_err() {
                busy().push(m.path.clone());
            }
            done
        },
    );
    let mut failed: Vec<Error> = Vec::new();
    let mut dirs = Vec::new();
    for d in done {
        match d {
            Ok(dir) => dirs.extend(dir),
            Err(e) => failed.push(e),
        }
    }
    if failed.is_empty() {
        admin.door.remove_dirs(dirs);
        return Ok(());
    }
    if entry.is_abandoned() {
        return Err(answer(Kind::Stale.into()));
    }
    // Nothing half done: what was unmounted comes back.
    drop(unshared);
    for (name, e) in admin.mount_pool(entry) {
        tracing::warn!("{name}: {e}");
    }
    let mut e = ApiError::reason(Kind::Busy, "pool is busy");
    for f in failed {
        e = e.detail(f.to_string());
    }
    Err(e)
}

/// `zpool history`: records from the oldest on, some hundred at a time. `internal`: also those that are
/// no commands.
pub fn history(
    admin: &Admin,
    name: &str,
    internal: bool,
    take: &mut dyn FnMut(Vec<HistoryRecord>) -> Answer<()>,
) -> Answer<()> {
    let entry = open(admin, name)?;
    let mut chunk = Vec::new();
    for r in entry.pool.history_records().map_err(answer)? {
        let record = history_record(&r);
        if record.command.is_none() && !internal {
            continue;
        }
        chunk.push(record);
        if chunk.len() == HISTORY_CHUNK {
            take(std::mem::take(&mut chunk))?;
        }
    }
    take(chunk)
}

/// One stored record (pool format §22).
fn history_record(r: &NvList) -> HistoryRecord {
    let text = |k: &str| r.get_str(k).map(str::to_string);
    let list = |k: &str| {
        let text = r.get_nvlist(k).map(|l| l.dump(0)).unwrap_or_default();
        text.lines().map(str::to_string).collect()
    };
    HistoryRecord {
        time: r.get_u64(key::TIME).unwrap_or(0),
        command: text(key::COMMAND),
        txg: r.get_u64(key::TXG),
        event: text(key::INTERNAL_NAME).or_else(|| {
            let old = disk::history::old_event(r.get_u64(key::OLD_EVENT)?);
            Some(format!("{}{old}", api::OLD_EVENT))
        }),
        dataset: text(key::DSNAME).map(|n| (n, r.get_u64(key::DSID).unwrap_or(0))),
        text: text(key::INTERNAL_STR),
        ioctl: text(key::IOCTL),
        input: list(key::IN_NVL),
        output: list(key::OUT_NVL),
        uid: r.get_u64(key::WHO),
        host: text(key::HOSTNAME),
        zone: text(key::ZONE),
    }
}
