//! Operations on snapshots: `zfs snapshot`, `rollback`, `clone`, `promote`, `bookmark`, `hold`, `release`.

use crate::datasets::create::{self, NewFs};
use crate::datasets::rights::{self, Action};
use crate::datasets::{self, destroy, mount, protect, set, Answer};
use crate::errors;
use crate::mounts::Mounted;
use crate::registry::{Admin, PoolEntry};
use crate::setters;
use api::{
    ApiError, Batch, Created, DatasetClone, DatasetDestroy, Holding, Peer, Rollback, SnapshotCreate,
};
use base::mutation::{mutated, Mutation};
use base::sync::RwLockExt;
use base::{Cause, Error, Kind, Result};
use disk::names::{self, Want};
use disk::{os_type, NvList};
use dmu::Tx;
use dsl::{BookmarkSource, CreateArgs, Dataset, PropValue, SnapshotEntry};
use pool::Pool;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Most younger snapshots and bookmarks that stand in the way of a rollback and are listed.
const LISTED: usize = 32;

/// Whether a dataset that was looked up is still there under its name.
fn still(pool: &Pool, name: &str, ds: &Dataset) -> Result<()> {
    let now = pool.dataset(name)?;
    match now.object() == ds.object() && now.phys().guid == ds.phys().guid {
        true => Ok(()),
        false => Err(Kind::NotFound.into()),
    }
}

fn split(name: &str) -> Answer<(&str, &str)> {
    names::check_dataset(name, Want::Snapshot)
        .map_err(|why| ApiError::sentence(Kind::Invalid, format!("cannot open '{name}': {why}")))?;
    name.split_once('@')
        .ok_or_else(|| ApiError::no_such_dataset(name))
}

// ---- taking ------------------------------------------------------------------------------------

/// What is said where one of several snapshots refuses all of them.
const NONE_CREATED: &str = "no snapshots were created";

/// The snapshots of one pool that are asked for: head, and name behind the `@`.
type Wanted = Vec<(Arc<Dataset>, String)>;

/// Finds the heads of a request, by pool; a second snapshot of one of them refuses all of it. Each head is asked for the caller's
/// permissions before the next name is looked at. With `-r` what is damaged is left out and put into `lost`.
fn wanted(
    admin: &Admin,
    peer: Peer,
    r: &SnapshotCreate,
    lost: &mut datasets::Lost,
) -> Answer<Vec<(Arc<PoolEntry>, Wanted)>> {
    let mut pools: BTreeMap<String, (Arc<PoolEntry>, Wanted)> = BTreeMap::new();
    let mut seen: BTreeMap<(&str, u64), &str> = BTreeMap::new();
    for name in &r.names {
        crate::cancel::check()?;
        let (fs, short) = split(name)?;
        let entry = datasets::entry_of(admin, fs)?;
        let head = datasets::find(&entry, fs)?;
        may_snapshot(admin, &entry, peer, (&head, short), !r.props.is_empty()).map_err(
            |e| match r.recursive || r.names.len() > 1 {
                true => e.hint(NONE_CREATED),
                false => e,
            },
        )?;
        let heads = match r.recursive {
            true => {
                let probe = |head: &Arc<Dataset>| head.snapshot_named(short).map(|_| ());
                let found = datasets::sound_subtree(&head.dir(), &probe);
                let (sound, mut damaged) = found.map_err(|e| datasets::plain(e, fs))?;
                // Others destroy file systems meanwhile.
                let gone = |name: &str| {
                    let e = entry.pool.dir(name).err();
                    e.is_some_and(|e| e.kind == Kind::NotFound)
                };
                damaged.retain(|(name, _)| !gone(name));
                lost.extend(damaged);
                sound
            }
            false => vec![head],
        };
        let of_pool = pools
            .entry(datasets::pool_of(fs).to_string())
            .or_insert_with(|| (entry, Vec::new()));
        // A snapshot may be named twice, also by `-r` of two names.
        for head in heads {
            match seen.insert((datasets::pool_of(fs), head.object()), short) {
                None => of_pool.1.push((head, short.to_string())),
                Some(before) if before == short => {}
                Some(_) => {
                    return Err(ApiError::sentence(
                        Kind::Invalid,
                        "cannot create snapshots : multiple snapshots of same fs not allowed",
                    )
                    .hint(NONE_CREATED))
                }
            }
        }
    }
    Ok(pools.into_values().collect())
}

/// Whether a caller may make these snapshots, with user properties (`props`) or without.
fn permitted(
    admin: &Admin,
    entry: &PoolEntry,
    peer: Peer,
    list: &Wanted,
    props: bool,
) -> Answer<()> {
    for (head, short) in list {
        may_snapshot(admin, entry, peer, (head, short), props)?;
    }
    Ok(())
}

/// The same for one.
fn may_snapshot(
    admin: &Admin,
    entry: &PoolEntry,
    peer: Peer,
    (head, short): (&Dataset, &str),
    props: bool,
) -> Answer<()> {
    let mut may = rights::require(admin, entry, peer, Action::Snapshot, head);
    if props {
        may = may.and_then(|()| rights::require(admin, entry, peer, Action::UserProp, head));
    }
    may.map_err(|e| {
        let full = format!("{}@{short}", head.full_name());
        ApiError::sentence(
            Kind::NotPermitted,
            format!("cannot create snapshot '{full}': {}", e.message),
        )
    })
}

/// Why snapshots cannot be made, as the command says it.
fn refusal(head: &Dataset, short: &str, e: Error) -> ApiError {
    let full = format!("{}@{short}", head.full_name());
    let why = match e.kind {
        Kind::Exists => "dataset already exists".into(),
        Kind::NoSpace => "out of space".into(),
        Kind::Busy => "dataset is busy".into(),
        _ => datasets::plain(e.clone(), &full).message,
    };
    ApiError::sentence(e.kind, format!("cannot create snapshot '{full}': {why}"))
}

/// `zfs snapshot`. With `-r` the snapshots of all that is sound are made in one txg; what is damaged is named in an error then.
/// What programs have written before is in the snapshots, also what the kernel still
/// keeps of mounted file systems; what could not be had from it is returned as a warning.
pub fn create(admin: &Arc<Admin>, peer: Peer, r: &SnapshotCreate) -> Answer<Option<String>> {
    for name in &r.names {
        names::check_new(name, Want::Snapshot).map_err(|why| {
            ApiError::sentence(
                Kind::Invalid,
                format!("cannot create snapshot '{name}': {why}"),
            )
        })?;
    }
    let mut props = Vec::new();
    for (name, text) in &r.props {
        let user = disk::props::is_user(name);
        let check = disk::props::check_user(name, text);
        if let (false, _) | (_, Err(_)) = (user, check) {
            return Err(ApiError::sentence(
                Kind::Invalid,
                format!("cannot create snapshots: property '{name}' cannot be set on snapshots"),
            ));
        }
        props.push((name.clone(), PropValue::Str(text.clone())));
    }
    let mut lost = Vec::new();
    let pools = wanted(admin, peer, r, &mut lost)?;
    if pools.len() > 1 {
        return Err(ApiError::sentence(
            Kind::CrossDevice,
            "cannot create snapshots: all snapshots of one command must be in the same pool",
        ));
    }
    let several = pools.iter().map(|(_, list)| list.len()).sum::<usize>() > 1;
    let made = create_in(admin, peer, r, &pools, &props).map_err(|e| match several {
        true => e.hint(NONE_CREATED),
        false => e,
    })?;
    if lost.is_empty() {
        return Ok(made);
    }
    let done = match pools.iter().all(|(_, list)| list.is_empty()) {
        true => NONE_CREATED.to_string(),
        false => "the snapshots of everything else were created".to_string(),
    };
    let told = made
        .into_iter()
        .chain([done])
        .collect::<Vec<_>>()
        .join("\n");
    let what = "it, or what is below it, has no such snapshot";
    Err(datasets::left_out(&lost, what, &told))
}

/// Makes the snapshots of all pools.
fn create_in(
    admin: &Arc<Admin>,
    peer: Peer,
    r: &SnapshotCreate,
    pools: &[(Arc<PoolEntry>, Wanted)],
    props: &[(String, PropValue)],
) -> Answer<Option<String>> {
    let mut warnings = Vec::new();
    let mut ready = Vec::new();
    for (entry, list) in pools.iter().filter(|(_, list)| !list.is_empty()) {
        datasets::need_writable(entry)?;
        permitted(admin, entry, peer, list, !props.is_empty())?;
        if !props.is_empty() && entry.pool.version() < 12 {
            return Err(ApiError::sentence(
                Kind::Unsupported,
                "cannot create snapshots: properties of snapshots need pool version 12",
            ));
        }
        for (head, short) in list {
            let check = entry.pool.dsl().check_snapshot(head, short);
            check.map_err(|e| refusal(head, short, e))?;
        }
        let caller = rights::caller(admin, entry, peer)?;
        let dsl = entry.pool.dsl();
        dsl.check_snapshots(list)
            .and_then(|()| dsl.check_snapshot_limits(list, &caller))
            .map_err(|e| match list.as_slice() {
                [(head, short), ..] => refusal(head, short, e),
                [] => errors::answer(e),
            })?;
        let blocks = create::SNAPSHOT * list.len() as u64;
        match create::check_room(&entry.pool, blocks) {
            Err(e) if e.kind == Kind::NoSpace => {
                return Err(ApiError::sentence(
                    Kind::NoSpace,
                    "cannot create snapshots : out of space",
                ))
            }
            r => r.map_err(errors::answer)?,
        }
        // Everything is asked before anything is done; then the kernel gives what it has, which takes
        // requests to the file systems, so no lock of names is held meanwhile.
        for (head, _) in list {
            if let Some(m) = entry.mounted(head.object()) {
                if let Err(why) = m.mount.write_out() {
                    warnings.push(format!(
                        "warning: {}: not all that programs have written is in the snapshot: {why}",
                        head.full_name()
                    ));
                }
            }
        }
        ready.push((entry, list));
    }
    for (entry, list) in ready {
        let _gate = entry.pass_unless_cancelled().map_err(errors::answer)?;
        let _names = entry.names.read_unless_cancelled()?;
        datasets::need_writable(entry)?;
        // What was destroyed below the named ones while the kernel gave its data is left out.
        let asked = list.len();
        let mut list = list.clone();
        list.retain(|(head, _)| still(&entry.pool, &head.full_name(), head).is_ok());
        if list.is_empty() || !r.recursive && list.len() < asked {
            return Err(ApiError::sentence(
                Kind::NotFound,
                "cannot create snapshots: a dataset was destroyed meanwhile",
            ));
        }
        permitted(admin, entry, peer, &list, !props.is_empty())?;
        let caller = rights::caller(admin, entry, peer)?;
        let (command, uid) = (r.command.clone(), u64::from(peer.uid));
        let (stored, made) = (props.to_vec(), list.clone());
        let also = move |pool: &Pool, tx: &dmu::Tx| -> Result<()> {
            if !stored.is_empty() {
                for (head, short) in &made {
                    if let Some(snap) = head.snapshot_named(short)? {
                        set::store_props(pool, tx, &snap, &stored, None)?;
                    }
                }
            }
            let names = made
                .iter()
                .map(|(head, short)| format!("{}@{short}", head.full_name()));
            pool.log_request(tx, "snapshot", datasets::name_list("snaps", names))?;
            pool.log_in(tx, &command, uid)
        };
        let done = entry.pool.snapshot_for(caller, list.clone(), also);
        if let Err(e) = done {
            let at = list.iter().find(|(head, short)| {
                let name = format!("{}@{short}", head.full_name());
                e.subject() == Some(&name)
            });
            return Err(match at.or(list.first()) {
                Some((head, short)) => refusal(head, short, e),
                None => errors::answer(e),
            });
        }
    }
    Ok((!warnings.is_empty()).then(|| warnings.join("\n")))
}

// ---- going back --------------------------------------------------------------------------------

/// What is younger than a snapshot of a head: its snapshots, oldest first, and its bookmarks.
struct Younger {
    snapshots: Vec<SnapshotEntry>,
    bookmarks: Vec<String>,
    /// Clones of the snapshots.
    clones: Vec<Arc<dsl::Dir>>,
}

fn younger(entry: &PoolEntry, head: &Arc<Dataset>, snap: &Dataset) -> Result<Younger> {
    let txg = snap.phys().creation_txg;
    let mut snapshots = head.snapshot_list()?;
    snapshots.retain(|e| e.creation_txg > txg);
    let mut clones = Vec::new();
    for e in &snapshots {
        clones.extend(datasets::clones(entry, &*head.named_snapshot(e)?)?);
    }
    let marks = head.bookmarks_after(txg)?;
    Ok(Younger {
        snapshots,
        bookmarks: marks.into_iter().map(|(n, _)| n).collect(),
        clones,
    })
}

fn listed(lines: &[String]) -> String {
    let mut out: Vec<String> = lines.iter().take(LISTED).cloned().collect();
    if lines.len() > LISTED {
        out.push(format!("... and {} more", lines.len() - LISTED));
    }
    out.join("\n")
}

/// `zfs rollback`: a mounted file system goes back under its users ([`crate::Mounted::replace`]). Nothing is
/// destroyed before it is known to be possible. Returns which file systems mounted in it, on directories
/// that are not in the snapshot, could not be mounted again.
pub fn rollback(admin: &Arc<Admin>, peer: Peer, r: &Rollback) -> Answer<Option<String>> {
    let (fs, short) = split(&r.snapshot)?;
    let entry = datasets::entry_of(admin, &r.snapshot)?;
    let inside = roll_back(admin, peer, &entry, r, (fs, short))?;
    let failed = mount::put_back(admin, &entry, &inside);
    Ok((!failed.is_empty()).then(|| failed.join("\n")))
}

/// Returns what was mounted inside and no longer is.
fn roll_back(
    admin: &Arc<Admin>,
    peer: Peer,
    entry: &Arc<PoolEntry>,
    r: &Rollback,
    (fs, short): (&str, &str),
) -> Answer<Vec<Arc<Mounted>>> {
    let _gate = entry.gate.acquire_read();
    datasets::need_writable(entry)?;
    let _names = entry.names.write();
    crate::cancel::check()?;
    let plain = |e| datasets::plain(e, fs);
    let snap = datasets::find(entry, &r.snapshot)?;
    let head = datasets::find(entry, fs)?;
    rights::require(admin, entry, peer, Action::Rollback, &head)?;
    let in_way = younger(entry, &head, &snap).map_err(plain)?;
    refuse(entry, &in_way, &head, r)?;
    let load = |e: &SnapshotEntry| head.named_snapshot(e).map_err(plain);
    if !r.protected {
        let names: Vec<String> = in_way
            .snapshots
            .iter()
            .map(|e| format!("{fs}@{}", e.name))
            .collect();
        let younger = names.iter().zip(&in_way.snapshots);
        let younger = younger.map(|(n, e)| Ok((n.as_str(), load(e)?)));
        let own = std::iter::once(Ok((fs, head.clone())));
        protect::refuse("go back and destroy", own.chain(younger))?;
    }
    entry
        .pool
        .dsl()
        .check_rollback(&head, &snap)
        .map_err(plain)?;
    let doomed = in_way.snapshots.iter().map(load);
    rights::require_each(admin, entry, peer, Action::Destroy, doomed)?;
    if !in_way.bookmarks.is_empty() {
        rights::require(admin, entry, peer, Action::DestroyBookmark, &head)?;
    }
    if let Some(why) = entry.pool.suspended() {
        return Err(plain(why));
    }
    let back = || go_back(admin, entry, peer, r, (&head, short), &in_way);
    let Some(mounted) = entry.mounted(head.object()) else {
        entry.volumes.change(head.object(), back)?;
        return Ok(Vec::new());
    };
    let mut inside = entry.all_mounts();
    inside.retain(|m| m.object != mounted.object && m.path.starts_with(&mounted.path));
    inside.retain(|m| m.is_in_place());
    mounted.replace(back)?;
    // The kernel lets go of what was mounted on a directory that is no longer there.
    inside.retain(|m| !m.is_in_place());
    Ok(inside)
}

/// Says what is younger than the snapshot and is not to be destroyed.
fn refuse(entry: &PoolEntry, in_way: &Younger, head: &Dataset, r: &Rollback) -> Answer<()> {
    let fs = head.full_name();
    let others = in_way.snapshots.len() + in_way.bookmarks.len();
    if others > 0 && !r.recursive {
        let names = in_way.snapshots.iter().map(|e| format!("{fs}@{}", e.name));
        let marks = in_way.bookmarks.iter().map(|n| format!("{fs}#{n}"));
        let lines: Vec<String> = names.chain(marks).collect();
        return Err(
            ApiError::reason(Kind::Exists, "more recent snapshots or bookmarks exist").hint(
                format!(
                    "use '-r' to force deletion of the following snapshots and bookmarks:\n{}",
                    listed(&lines)
                ),
            ),
        );
    }
    if !in_way.clones.is_empty() && !r.dependents {
        let names = destroy::dependents(entry, &in_way.clones);
        let names = names.map_err(|e| datasets::plain(e, &fs))?;
        return Err(
            ApiError::reason(Kind::Exists, "clones of previous snapshots exist").hint(format!(
                "use '-R' to force deletion of the following clones and dependents:\n{}",
                listed(&names)
            )),
        );
    }
    for e in &in_way.snapshots {
        let holds = head.named_snapshot(e).and_then(|s| s.holds());
        if holds.map_err(|e| datasets::plain(e, &fs))? > 0 {
            return Err(ApiError::reason(
                Kind::Busy,
                format!("the younger snapshot '{fs}@{}' is being held", e.name),
            ));
        }
    }
    Ok(())
}

/// Destroys what is younger and goes back; the caller keeps the names, and has closed the head.
fn go_back(
    admin: &Arc<Admin>,
    entry: &Arc<PoolEntry>,
    peer: Peer,
    r: &Rollback,
    (head, short): (&Arc<Dataset>, &str),
    in_way: &Younger,
) -> Answer<()> {
    let fs = head.full_name();
    let uid = u64::from(peer.uid);
    entry.close_in_ctldirs(head.object());
    if entry.pool.is_open(head) {
        return Err(ApiError::reason(Kind::Busy, "dataset is busy"));
    }
    if mutated(Mutation::LeftLogFreedEarly) {
        destroy::free_log(entry, head).map_err(|e| datasets::plain(e, &fs))?;
    }
    let (of, short) = (head.clone(), short.to_string());
    let (command, target) = (r.command.clone(), r.snapshot.clone());
    let then = move |pool: &Pool, tx: &Tx| {
        let newest = of.prev()?.filter(|s| s.phys().next_snap_obj == of.object());
        let Some(newest) = newest else {
            return Err(Kind::NotFound.into());
        };
        if newest.snap_name()?.as_deref() != Some(short.as_str()) {
            return Err(Error::new(
                Kind::Exists,
                "a younger snapshot was made meanwhile",
            ));
        }
        pool.dsl().check_rollback(&of, &newest)?;
        for (name, _) in of.bookmarks_after(newest.phys().creation_txg)? {
            pool.dsl().destroy_bookmark(tx, &of, &name)?;
        }
        // With a log that a crash left behind: it belongs to what is given up.
        pool.rollback(tx, &of)?;
        let mut input = NvList::new();
        input.set("target", target.as_str());
        pool.log_request(tx, "rollback", input)?;
        pool.log_in(tx, &command, uid)
    };
    let ends = (in_way.snapshots.first(), in_way.snapshots.last());
    let gone = match ends {
        // In one txg: a power cut leaves all younger snapshots and what was written since, or nothing of them.
        (Some(first), Some(last)) => {
            let spec = format!("{}%{}", first.name, last.name);
            let request = DatasetDestroy {
                name: format!("{fs}@{spec}"),
                dependents: r.dependents,
                force: r.force,
                protected: r.protected,
                ..DatasetDestroy::default()
            };
            let below = mutated(Mutation::RollbackTakesBelow);
            let at = (&*fs, &*spec, below);
            destroy::destroy_snapshots(admin, entry, peer, &request, at, Some(Box::new(then)))
                .and_then(|done| match done.failed.into_iter().next() {
                    None => Ok(()),
                    Some((n, e)) => Err(ApiError::sentence(
                        Kind::Busy,
                        e.sentence_for("destroy", &n),
                    )),
                })
        }
        _ => entry.pool.task(then).map_err(|e| datasets::plain(e, &fs)),
    };
    entry.close_in_ctldirs(head.object());
    gone
}

// ---- clones ------------------------------------------------------------------------------------

/// `zfs clone`
pub fn clone(admin: &Arc<Admin>, peer: Peer, r: &DatasetClone) -> Answer<Created> {
    let (fs, _) = split(&r.snapshot)?;
    let name = r.name.as_str();
    let invalid = |why: String| ApiError::reason(Kind::Invalid, why);
    names::check_new(name, Want::Filesystem).map_err(invalid)?;
    if datasets::pool_of(fs) != datasets::pool_of(name) {
        return Err(ApiError::reason(
            Kind::CrossDevice,
            "source and target pools differ",
        ));
    }
    let entry = datasets::entry_of(admin, fs)?;
    let _gate = entry.gate.acquire_read();
    let _names = entry.names.read();
    crate::cancel::check()?;
    let origin = datasets::find(&entry, &r.snapshot)?;
    match entry.pool.dir(name) {
        Ok(_) if r.parents => {
            return Ok(Created {
                existed: true,
                ..Created::default()
            })
        }
        Ok(_) => return Err(ApiError::reason(Kind::Exists, "dataset already exists")),
        Err(e) if e.kind == Kind::NotFound => {}
        Err(e) => return Err(datasets::plain(e, name)),
    }
    datasets::need_writable(&entry)?;
    let volume = entry.objset_type(&origin).is_ok_and(|t| t == os_type::ZVOL);
    let new = NewFs::of_clone(&entry, &origin, &r.props)?;
    let above = create::above(&entry, name, r.parents)?;
    rights::require(admin, &entry, peer, Action::CloneFrom, &origin)?;
    above.require(admin, &entry, peer, &r.props)?;
    let caller = rights::caller(admin, &entry, peer)?;
    let more = above.missing.len() as u64 + 1;
    let room = entry
        .pool
        .dsl()
        .check_filesystem_limit(&above.parent.dir(), more, &caller);
    room.map_err(|e| datasets::plain(e, name))?;
    let root_of = |ds: &Dataset| ds.dir().encryption_root().map_err(errors::answer);
    let of = root_of(&origin)?;
    if let Some(of) = &of {
        // Whoever owns the key must not go before what needs it.
        let up = root_of(&above.parent)?;
        let reaches = up.is_some_and(|up| up.object() == of.object());
        // A clone has the key object of its origin, and may lie where that one may.
        let keys = |dir: &dsl::Dir| dir.key_object_number().map_err(errors::answer);
        let shared = keys(&origin.dir())? == keys(of)?;
        if !shared && !reaches {
            return Err(ApiError::reason(
                Kind::Unsupported,
                format!(
                    "its key is that of '{0}': clone it below '{0}'",
                    of.full_name()
                ),
            ));
        }
    }
    new.check_clone_limits(
        above.parent.dir().available().bytes,
        origin.phys().referenced_bytes,
        of.is_some(),
    )?;
    let make_parents = create::make_parents(admin, &entry, peer, &above)?;
    let created = Created {
        ancestors: above.missing.clone(),
        ..Created::default()
    };
    let (command, uid) = (r.command.clone(), u64::from(peer.uid));
    let (full, from) = (name.to_string(), r.snapshot.clone());
    entry
        .pool
        .task(move |pool, tx| {
            let Some((parent, last)) = full.rsplit_once('/') else {
                return Err(Error::new(Kind::Invalid, "a clone cannot be a pool"));
            };
            still(pool, &from, &origin)?;
            create::check_room(pool, create::DATASET * more)?;
            // Asked before the parents are made, which cannot be taken back.
            if let Ok(parent) = pool.dir(parent) {
                pool.dsl().check_create(&parent, last, false)?;
            }
            make_parents(pool, tx)?;
            let parent = pool.dir(parent)?;
            pool.dsl().check_filesystem_limit(&parent, 1, &caller)?;
            let ds = pool.clone_in(tx, &parent, last, &origin, CreateArgs::default())?;
            pool.dsl().give_creator(tx, &ds, uid)?;
            let by = setters::user(&caller);
            setters::note_content((pool, tx), &ds, Some(&origin), by)?;
            set::store_props(pool, tx, &ds, &new.stored, by)?;
            new.put_into_clone(pool, tx, &ds)?;
            pool.log_in(tx, &command, uid)
        })
        .map_err(|e| datasets::plain(e, name))?;
    let mut created = created;
    if r.no_mount || volume {
        return Ok(created);
    }
    drop((_names, _gate));
    let mut all = created.ancestors.clone();
    all.push(name.to_string());
    created.mount_failed = mount::mount_made(admin, &entry, &all, peer).err();
    Ok(created)
}

/// `zfs promote`
pub fn promote(admin: &Arc<Admin>, peer: Peer, name: &str, command: String) -> Answer<()> {
    let entry = datasets::entry_of(admin, name)?;
    let _gate = entry.gate.acquire_read();
    datasets::need_writable(&entry)?;
    let _names = entry.names.write();
    let ds = datasets::find(&entry, name)?;
    let plain = |e| datasets::plain(e, name);
    let origin = ds.dir().origin().map_err(plain)?;
    let Some(origin) = origin else {
        return Err(ApiError::reason(Kind::Invalid, "not a cloned filesystem"));
    };
    rights::require(admin, &entry, peer, Action::Promote, &ds)?;
    rights::require(admin, &entry, peer, Action::PromoteOrigin, &origin)?;
    let caller = rights::caller(admin, &entry, peer)?;
    let room = entry.pool.dsl().check_promote_limits(&ds, &caller);
    room.map_err(plain)?;
    let conflicts = entry.pool.dsl().promote_conflicts(&ds).map_err(plain)?;
    if let Some(first) = conflicts.first() {
        let parent = origin.full_name();
        let lines: Vec<String> = conflicts
            .iter()
            .skip(1)
            .map(|c| format!("conflicting snapshot '{}' from parent '{parent}'", &c[1..]))
            .collect();
        let what = match first.starts_with('#') {
            true => "bookmark",
            false => "snapshot",
        };
        let text = format!(
            "conflicting {what} '{}' from parent '{parent}'",
            &first[1..]
        );
        let e = ApiError::reason(Kind::Exists, text);
        return Err(match lines.is_empty() {
            true => e,
            false => e.hint(lines.join("\n")),
        });
    }
    let uid = u64::from(peer.uid);
    // The snapshots get another file system: who looks into them through a `.zfs` opens them again.
    let moving = entry.pool.dsl().shared_snapshots(&ds).map_err(plain)?;
    let close = || {
        moving
            .iter()
            .for_each(|object| entry.close_in_ctldirs(*object))
    };
    close();
    let before = origin.dir().phys().head_dataset_obj;
    let done = entry.pool.task(move |pool, tx| {
        pool.dsl().check_promote_limits(&ds, &caller)?;
        pool.dsl().promote(tx, &ds)?;
        pool.share_errors(before, ds.object());
        pool.log_in(tx, &command, uid)
    });
    close();
    done.map_err(plain)
}

// ---- bookmarks ---------------------------------------------------------------------------------

/// `zfs bookmark`
pub fn bookmark(
    admin: &Arc<Admin>,
    peer: Peer,
    source: &str,
    name: &str,
    command: String,
) -> Answer<()> {
    let (fs, short) = name
        .split_once('#')
        .ok_or_else(|| ApiError::no_such_dataset(name))?;
    let entry = datasets::entry_of(admin, fs)?;
    let _gate = entry.gate.acquire_read();
    datasets::need_writable(&entry)?;
    let _names = entry.names.read();
    let stranger = || {
        ApiError::reason(
            Kind::Invalid,
            "source is not an ancestor of the new bookmark's dataset",
        )
    };
    if datasets::pool_of(source) != datasets::pool_of(fs) {
        return Err(stranger());
    }
    // The source is looked for first.
    let of = match source.split_once('#') {
        None => BookmarkSource::Snapshot(datasets::find(&entry, source)?),
        Some((of, mark)) => {
            let found = datasets::find(&entry, of).and_then(|ds| {
                let found = ds.bookmark(mark).map_err(|e| datasets::plain(e, of))?;
                Ok(found.map(|_| BookmarkSource::Bookmark(ds, mark.to_string())))
            });
            match found {
                Ok(Some(of)) => of,
                Ok(None) => return Err(ApiError::no_such_bookmark(source)),
                Err(e) if e == ApiError::no_such_dataset(of) => {
                    return Err(ApiError::no_such_dataset(source))
                }
                Err(e) => return Err(e),
            }
        }
    };
    let head = datasets::find(&entry, fs).map_err(|e| match e {
        e if e == ApiError::no_such_dataset(fs) => Kind::NotFound.into(),
        e => e,
    })?;
    rights::require(admin, &entry, peer, Action::Bookmark, &head)?;
    let words = |e: Error| match e.kind {
        Kind::Exists => ApiError::reason(Kind::Exists, "bookmark exists"),
        Kind::Unsupported if e.cause() == Some(Cause::FeatureOff) => {
            ApiError::reason(Kind::Unsupported, "bookmark feature not enabled")
        }
        Kind::NotFound => ApiError::no_such_dataset(source),
        Kind::Invalid if e.cause() == Some(Cause::NotAnAncestor) => stranger(),
        _ => datasets::plain(e, fs),
    };
    let check = entry.pool.dsl().check_bookmark(&head, short, &of);
    let check = check.and_then(|()| create::check_room(&entry.pool, create::BOOKMARK));
    check.map_err(words)?;
    let (short, uid) = (short.to_string(), u64::from(peer.uid));
    entry
        .pool
        .task(move |pool, tx| {
            pool.dsl().create_bookmark(tx, &head, &short, &of)?;
            pool.log_in(tx, &command, uid)
        })
        .map_err(words)
}

// ---- holds -------------------------------------------------------------------------------------

/// Snapshots of a request about holds; names that are not there go to `failed`.
fn held(
    admin: &Admin,
    r: &Holding,
    failed: &mut Vec<(String, ApiError)>,
) -> Answer<Vec<(String, Arc<PoolEntry>, Arc<Dataset>)>> {
    let mut out = Vec::<(String, Arc<PoolEntry>, Arc<Dataset>)>::new();
    // Two names may mean the same.
    let mut named = BTreeSet::new();
    for name in &r.snapshots {
        crate::cancel::check()?;
        let (fs, short) = split(name)?;
        let entry = match datasets::entry_of(admin, fs) {
            Ok(entry) => entry,
            Err(e) => {
                failed.push((name.clone(), e));
                continue;
            }
        };
        datasets::need_writable(&entry)?;
        let top = match datasets::find(&entry, fs) {
            Ok(top) => top,
            Err(e) => {
                failed.push((name.clone(), e));
                continue;
            }
        };
        let heads = match r.recursive {
            true => {
                let probe = |head: &Arc<Dataset>| head.snapshot_named(short).map(|_| ());
                let found = datasets::sound_subtree(&top.dir(), &probe);
                let (sound, lost) = found.map_err(|e| datasets::plain(e, fs))?;
                let lost = lost.into_iter();
                failed.extend(lost.map(|(n, e)| (format!("{n}@{short}"), errors::answer(e))));
                sound
            }
            false => vec![top],
        };
        let mut found_any = false;
        for head in heads {
            let found = head.snapshot_named(short);
            if let Some(snap) = found.map_err(|e| datasets::plain(e, fs))? {
                let full = format!("{}@{short}", head.full_name());
                if named.insert(full.clone()) {
                    out.push((full, entry.clone(), snap));
                }
                found_any = true;
            }
        }
        if !found_any {
            failed.push((name.clone(), Kind::NotFound.into()));
        }
    }
    Ok(out)
}

/// Leaves those out whose head gives the caller no permission.
fn may_hold(
    admin: &Admin,
    peer: Peer,
    action: Action,
    list: &mut Vec<(String, Arc<PoolEntry>, Arc<Dataset>)>,
    failed: &mut Vec<(String, ApiError)>,
) -> Answer<()> {
    let mut refused = Ok(());
    list.retain(|(name, entry, snap)| {
        let head = snap.dir().head().map_err(errors::answer);
        let may = head.and_then(|head| rights::require(admin, entry, peer, action, &head));
        match may {
            Ok(()) => true,
            Err(e) if e.code == Kind::NotPermitted.errno() => {
                failed.push((name.clone(), e));
                false
            }
            Err(e) => {
                refused = Err(e);
                false
            }
        }
    });
    refused
}

/// `zfs hold`: of each operand all snapshots are held, or none.
pub fn hold(admin: &Arc<Admin>, peer: Peer, r: &Holding) -> Answer<Batch> {
    let mut batch = Batch::default();
    let mut list = Vec::<(String, Arc<PoolEntry>, Arc<Dataset>)>::new();
    // Two operands may mean the same.
    let mut named = BTreeSet::new();
    for name in &r.snapshots {
        let one = Holding {
            snapshots: vec![name.clone()],
            ..r.clone()
        };
        let mut those = held(admin, &one, &mut batch.failed)?;
        let before = batch.failed.len();
        may_hold(admin, peer, Action::Hold, &mut those, &mut batch.failed)?;
        for (name, entry, snap) in &those {
            if let Err(e) = entry.pool.dsl().check_hold(snap, &r.tag, false) {
                batch.failed.push((name.clone(), datasets::plain(e, name)));
            }
        }
        if batch.failed.len() == before {
            those.retain(|(n, ..)| named.insert(n.clone()));
            list.extend(those);
        }
    }
    if list.is_empty() {
        return Ok(batch);
    }
    let check =
        |pool: &Pool, snap: &Arc<Dataset>, tag: &str| pool.dsl().check_hold(snap, tag, false);
    let who = (&**admin, peer, Action::Hold);
    change_holds(&list, who, r, &mut batch, check, |pool, tx, snap, tag| {
        pool.dsl().hold(tx, snap, tag, false)
    });
    Ok(batch)
}

/// `zfs release`: what has no such tag is told, the others are released; none without the permission for all of them.
pub fn release(admin: &Arc<Admin>, peer: Peer, r: &Holding) -> Answer<Batch> {
    let mut batch = Batch::default();
    let mut list = held(admin, r, &mut batch.failed)?;
    let mut without = Vec::new();
    list.retain(|(name, _, snap)| match snap.hold_time(&r.tag) {
        Ok(Some(_)) => true,
        Ok(None) => {
            without.push(name.clone());
            false
        }
        Err(e) => {
            batch.failed.push((name.clone(), datasets::plain(e, name)));
            false
        }
    });
    if r.recursive {
        // Descendants need not have the tag, nor the file system if one of them has.
        let named = |n: &String| list.is_empty() && r.snapshots.contains(n);
        without.retain(named);
    }
    let e = ApiError::reason(Kind::NotFound, "no such tag on this dataset");
    batch
        .failed
        .extend(without.into_iter().map(|name| (name, e.clone())));
    // Who may not release one of those that have the tag releases none.
    let asked = list.len();
    may_hold(admin, peer, Action::Release, &mut list, &mut batch.failed)?;
    if list.len() < asked {
        return Ok(batch);
    }
    // The last hold of a snapshot that is to be destroyed takes it along.
    let close = || {
        for (_, entry, snap) in &list {
            entry.close_in_ctldirs(snap.object());
        }
    };
    close();
    let check = |_: &Pool, snap: &Arc<Dataset>, tag: &str| match snap.hold_time(tag)? {
        Some(_) => Ok(()),
        None => Err(Error::new(Kind::NotFound, "no such tag on this dataset")),
    };
    let who = (&**admin, peer, Action::Release);
    change_holds(&list, who, r, &mut batch, check, |pool, tx, snap, tag| {
        pool.dsl().release(tx, snap, tag)
    });
    close();
    Ok(batch)
}

/// Changes holds, those of one pool in one txg.
fn change_holds(
    list: &[(String, Arc<PoolEntry>, Arc<Dataset>)],
    (admin, peer, action): (&Admin, Peer, Action),
    r: &Holding,
    batch: &mut Batch,
    check: impl Fn(&Pool, &Arc<Dataset>, &str) -> Result<()> + Copy + Send + 'static,
    change: impl Fn(&Pool, &dmu::Tx, &Arc<Dataset>, &str) -> Result<()> + Copy + Send + 'static,
) {
    let mut pools: Vec<&Arc<PoolEntry>> = Vec::new();
    for (_, entry, _) in list {
        if !pools.iter().any(|e| Arc::ptr_eq(e, entry)) {
            pools.push(entry);
        }
    }
    for entry in pools {
        let ours = list.iter().filter(|(_, e, _)| Arc::ptr_eq(e, entry));
        let (names, snaps): (Vec<String>, Vec<Arc<Dataset>>) =
            ours.map(|(n, _, s)| (n.clone(), s.clone())).unzip();
        let _gate = entry.gate.acquire_read();
        let _names = entry.names.write();
        // Permissions change under the lock of names only.
        let still_may = snaps.iter().try_for_each(|s| {
            let head = s.dir().head().map_err(errors::answer)?;
            rights::require(admin, entry, peer, action, &head)
        });
        if let Err(e) = still_may {
            batch
                .failed
                .extend(names.into_iter().map(|n| (n, e.clone())));
            continue;
        }
        let (tag, command, uid) = (r.tag.clone(), r.command.clone(), u64::from(peer.uid));
        let found = names.clone();
        let done = entry.pool.task(move |pool, tx| {
            // All is asked before anything changes.
            for (name, snap) in found.iter().zip(&snaps) {
                still(pool, name, snap)?;
                check(pool, snap, &tag)?;
            }
            for snap in &snaps {
                change(pool, tx, snap, &tag)?;
            }
            pool.log_in(tx, &command, uid)
        });
        match done {
            Ok(()) => batch.done.extend(names),
            Err(e) => {
                let why = datasets::plain(e, &names[0]);
                batch
                    .failed
                    .extend(names.into_iter().map(|n| (n, why.clone())));
            }
        }
    }
}
