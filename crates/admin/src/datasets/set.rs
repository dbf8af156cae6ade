//! `zfs set` and `zfs inherit`.

use crate::datasets::mount::{self, Early, Move};
use crate::datasets::parse::{self, Allowed};
use crate::datasets::rights;
use crate::datasets::{self, quota, share, version, volumes, Answer};
use crate::mounts::Mounted;
use crate::registry::{Admin, PoolEntry};
use crate::setters;
use crate::shares;
use crate::{errors, values};
use api::{ApiError, DatasetKind, Peer};
use base::mutation::{mutated, Mutation};
use base::sync::RwLockExt;
use base::{Kind, Result};
use disk::feature::guid;
use disk::props::{self, Class, Store, Types};
use disk::Compression;
use dmu::Tx;
use dsl::props::PropChange;
use dsl::{Dataset, PropSource, PropValue};
use pool::Pool;
use std::sync::Arc;

/// The property that says where the key is.
pub const LOCATION: &str = "keylocation";
/// What is said of such a place where there is no key.
pub const MUST_BE_NONE: &str = "keylocation must be 'none' for unencrypted datasets";
/// What is said of `none` where there is a key.
pub const MUST_NOT_BE_NONE: &str = "keylocation must not be 'none' for encrypted datasets";
/// Properties without a received value that could be the right one.
const KEPT: [&str; 3] = [LOCATION, "volsize", "version"];
/// Properties that may move mounts.
const MOVES: [&str; 5] = ["mountpoint", "canmount", "acltype", "readonly", "exec"];

/// Changes of the properties of one dataset.
pub struct Change {
    /// The dataset.
    pub ds: Arc<Dataset>,
    /// Names of properties, and what becomes of each.
    pub list: Vec<(String, PropChange)>,
}

impl Change {
    fn has(&self, name: &str) -> bool {
        self.list.iter().any(|(n, _)| n == name)
    }
}

/// What is said where a change of properties leaves a mount where it is.
const STAYS: &str = "what is mounted stays where and as it is: not all of it is yours to unmount";

/// Looks at where a `mountpoint` that is about to be set leads, with no lock held. A user's must be a directory of this user:
/// what the mount would refuse later is refused at once.
fn look_at_place(
    admin: &Arc<Admin>,
    peer: Peer,
    entry: &Arc<PoolEntry>,
    dataset: &str,
    props: &api::Props,
) -> Answer<()> {
    let mut values = props.iter().rev().filter(|(n, _)| n == "mountpoint");
    let Some((_, value)) = values.next().filter(|(_, v)| v.starts_with('/')) else {
        return Ok(());
    };
    {
        let _gate = entry.pass_unless_cancelled().map_err(errors::answer)?;
        let _names = entry.names.read_unless_cancelled()?;
        let ds = datasets::find(entry, dataset)?;
        for (name, _) in props {
            rights::require_named(admin, entry, peer, rights::of_property(name), &ds)?;
        }
        // A value that is none is refused as such.
        if checked(entry, &ds, &vec![("mountpoint".into(), value.clone())]).is_err() {
            return Ok(());
        }
    }
    let root = entry.altroot.as_deref();
    let place = match root {
        Some(root) => root.join(value.trim_start_matches('/')),
        None => value.into(),
    };
    match rights::mounting_user(admin, peer) {
        Some(user) => {
            admin.door.is_for_user(&place, root, user).map_err(|e| {
                ApiError::reason(e.kind, format!("permission denied: {e}"))
                    .hint("a mountpoint that a user sets is a directory of this user, or a new one in a directory of this user")
            })
        }
        // So that a place that does not answer is known before a lock is taken.
        None => {
            let _ = admin.door.reach(&place, root, None);
            Ok(())
        }
    }
}

/// Unmounts what changes concern, before the locks are taken.
fn take_down_early<'a>(
    admin: &'a Arc<Admin>,
    peer: Peer,
    entry: &'a Arc<PoolEntry>,
    changes: impl FnOnce() -> Answer<Vec<Change>>,
) -> Answer<Early<'a>> {
    Early::take_down(admin, entry, false, || {
        let changes = changes()?;
        let plan = plan(admin, entry, &changes).map_err(errors::answer)?;
        match mount::may_take_down(admin, entry, peer, &plan.down) {
            true => Ok(plan.down),
            false => Ok(Vec::new()),
        }
    })
}

/// Whether properties may move mounts.
fn may_move<'a>(mut names: impl Iterator<Item = &'a str>) -> bool {
    names.any(|n| MOVES.contains(&n))
}

/// `zfs set`: all or nothing. Returns what was left as it is, in words.
pub fn set(
    admin: &Arc<Admin>,
    peer: Peer,
    dataset: &str,
    props: &api::Props,
    no_remount: bool,
    command: String,
) -> Answer<Option<String>> {
    let entry = datasets::entry_of(admin, dataset)?;
    look_at_place(admin, peer, &entry, dataset, props)?;
    let mut early = match !no_remount && may_move(props.iter().map(|(n, _)| n.as_str())) {
        true => take_down_early(admin, peer, &entry, || {
            to_set(admin, peer, &entry, dataset, props)
        })?,
        false => Early::none(admin, &entry),
    };
    let gate = entry.gate.acquire_read();
    datasets::need_writable(&entry)?;
    let ds = datasets::find(&entry, dataset)?;
    let kind = datasets::kind_of(&entry, &ds);
    let mut quotas = Vec::new();
    let mut version = None;
    let mut plain = api::Props::new();
    for (name, text) in props {
        match quota::parse(name, text, kind)? {
            Some(q) => quotas.push(q),
            None if name == "version" => version = Some(text),
            None => plain.push((name.clone(), text.clone())),
        }
    }
    for (name, _) in props {
        rights::require_named(admin, &entry, peer, rights::of_property(name), &ds)?;
    }
    let list = checked(&entry, &ds, &plain)?;
    quota::check(&entry, &ds, &quotas)?;
    if let Some(text) = version {
        match version::asked(&entry, &ds, text)? {
            Some(to) => version::raise(admin, &entry, peer, &ds, to)?,
            None => version::count_owners(&entry, &ds)?,
        }
    }
    let change = Change {
        ds: ds.clone(),
        list,
    };
    let how = (no_remount, &mut early);
    let applied = apply(admin, peer, &entry, dataset, vec![change], how, command)?;
    let stored = match quotas.is_empty() {
        true => Ok(()),
        false => store_quotas(admin, peer, &entry, (dataset, &ds), props, &quotas),
    };
    drop(gate);
    // What has been taken down comes back whatever became of quotas.
    let left = applied.mount(admin, &entry, peer);
    stored?;
    left
}

/// Stores the quotas among `props`. Permissions may have changed since they were asked, and do so under the lock of names only.
fn store_quotas(
    admin: &Admin,
    peer: Peer,
    entry: &PoolEntry,
    (name, ds): (&str, &Arc<Dataset>),
    props: &api::Props,
    quotas: &[quota::Quota],
) -> Answer<()> {
    let _names = entry.names.write();
    for (prop, _) in props {
        rights::require_named(admin, entry, peer, rights::of_property(prop), ds)?;
    }
    datasets::find_anyway(entry, name).and_then(|now| match now.object() == ds.object() {
        true => quota::store(entry, ds, quotas).map_err(|e| datasets::plain(e, name)),
        false => Err(ApiError::no_such_dataset(name)),
    })
}

/// What [`set`] changes, as far as mounts may move for it; everything that would refuse it was asked.
fn to_set(
    admin: &Arc<Admin>,
    peer: Peer,
    entry: &PoolEntry,
    dataset: &str,
    props: &api::Props,
) -> Answer<Vec<Change>> {
    datasets::need_writable(entry)?;
    let ds = datasets::find(entry, dataset)?;
    let kind = datasets::kind_of(entry, &ds);
    let mut quotas = Vec::new();
    let mut plain = api::Props::new();
    for (name, text) in props {
        rights::require_named(admin, entry, peer, rights::of_property(name), &ds)?;
        match quota::parse(name, text, kind)? {
            Some(q) => quotas.push(q),
            None if name == "version" => {
                version::asked(entry, &ds, text)?;
            }
            None => plain.push((name.clone(), text.clone())),
        }
    }
    quota::check(entry, &ds, &quotas)?;
    let list = checked(entry, &ds, &plain)?;
    Ok(vec![Change { ds, list }])
}

/// What to say of properties that were set and mean nothing for now.
pub fn warning(admin: &Admin, dataset: &str, props: &api::Props) -> Option<String> {
    let small = |(name, value): &(String, String)| {
        name == "special_small_blocks" && props::parse_number(value).is_ok_and(|n| n != 0)
    };
    let entry = datasets::entry_of(admin, dataset).ok()?;
    let none = entry.pool.space().stats().special.size == 0;
    (none && props.iter().any(small))
        .then(|| "special_small_blocks: property requires a special device in the pool".into())
}

/// Checks names and values for an existing dataset.
fn checked(
    entry: &PoolEntry,
    ds: &Arc<Dataset>,
    props: &api::Props,
) -> Answer<Vec<(String, PropChange)>> {
    let ty = match datasets::kind_of(entry, ds) {
        DatasetKind::Snapshot => Types::SNAPSHOT,
        DatasetKind::Volume => Types::VOLUME,
        _ => Types::FILESYSTEM,
    };
    let enabled = |guid: &str| entry.pool.has_feature(guid);
    let allowed = Allowed {
        version: entry.pool.version(),
        enabled: &enabled,
    };
    let mut list: Vec<(String, PropChange)> = Vec::new();
    for (name, text) in props {
        let (name, value) = parse::parse(&allowed, name, text, ty, false)?;
        let Some(row) = props::dataset(&name) else {
            list.push((name, PropChange::Local(value)));
            continue;
        };
        if name == LOCATION {
            let root = ds.dir().encryption_root().map_err(errors::answer)?;
            let text = value.text().unwrap_or_default();
            if root.is_some() && text == "none" {
                return Err(ApiError::reason(Kind::Invalid, MUST_NOT_BE_NONE));
            }
            if root
                .as_ref()
                .is_some_and(|r| r.object() == ds.dir().object())
            {
                crate::datasets::keys::check_location(text)?;
            } else if text != "none" {
                return Err(ApiError::reason(
                    Kind::Invalid,
                    match root {
                        Some(_) => "keylocation may only be set on encryption roots",
                        None => MUST_BE_NONE,
                    },
                ));
            }
        }
        if name == "copies"
            && value.int() == Some(3)
            && ds.dir().is_encrypted().map_err(errors::answer)?
        {
            return Err(ApiError::reason(
                Kind::Invalid,
                "encrypted datasets cannot have three copies",
            ));
        }
        match row.store {
            Store::Props | Store::PropsAndDir => {}
            Store::CryptoKey => {
                return Err(ApiError::reason(
                    Kind::Invalid,
                    format!("'{name}' is changed with 'zfs change-key'"),
                ))
            }
            Store::Volume => {
                let now = shape(entry, ds).map_err(|e| datasets::plain(e, &ds.full_name()))?;
                volumes::check_size(now, value.int().unwrap_or(0))?;
            }
            Store::MasterNode | Store::BlockSize | Store::Computed => {
                return Err(ApiError::reason(
                    Kind::Unsupported,
                    format!("'{name}' cannot be set in this version"),
                ))
            }
        }
        list.retain(|(n, _)| *n != name);
        list.push((name, PropChange::Local(value)));
    }
    if ty == Types::VOLUME {
        reserve(entry, ds, &mut list)?;
    }
    Ok(list)
}

fn shape(entry: &PoolEntry, ds: &Dataset) -> Result<volumes::Shape> {
    volumes::shape(&crate::datasets::objsets::look_into(entry, ds)?)
}

/// What is reserved for a volume follows its size if it was what the old size asks for; `auto` is what the size asks for.
fn reserve(
    entry: &PoolEntry,
    ds: &Arc<Dataset>,
    list: &mut Vec<(String, PropChange)>,
) -> Answer<()> {
    let number = |list: &[(String, PropChange)], name: &str| {
        let found = list.iter().find(|(n, _)| n == name);
        found.and_then(|(_, change)| match change {
            PropChange::Local(v) => v.int(),
            _ => None,
        })
    };
    let given = number(list, "refreservation");
    let size = number(list, "volsize");
    let auto = given == Some(props::UNLIMITED);
    if !auto && (size.is_none() || given.is_some()) {
        return Ok(());
    }
    let plain = |e| datasets::plain(e, &ds.full_name());
    let now = shape(entry, ds).map_err(plain)?;
    let copies = pool::prop_number(ds, "copies").map_err(plain)?.max(1);
    let old = entry.pool.version() < volumes::REFRESERVATION;
    let full = |shape: volumes::Shape| match old {
        true => shape.size,
        false => shape.reservation(&entry.pool, copies),
    };
    let (name, reserved) = match old {
        true => ("reservation", ds.dir().phys().reserved),
        false => ("refreservation", ds.ref_limits().1),
    };
    let new = volumes::Shape {
        size: size.unwrap_or(now.size),
        ..now
    };
    if auto || reserved == full(now) {
        list.retain(|(n, _)| n != name);
        list.push((name.into(), PropChange::Local(PropValue::Int(full(new)))));
    }
    Ok(())
}

/// `zfs inherit`. Returns what was left as it is, in words.
pub fn inherit(
    admin: &Arc<Admin>,
    peer: Peer,
    dataset: &str,
    property: &str,
    recursive: bool,
    received: bool,
    command: String,
) -> Answer<Option<String>> {
    let entry = datasets::entry_of(admin, dataset)?;
    let changes = || {
        let how = (recursive, received);
        to_inherit(admin, peer, &entry, dataset, property, how)
    };
    let mut early = match may_move(std::iter::once(property)) {
        true => take_down_early(admin, peer, &entry, changes)?,
        false => Early::none(admin, &entry),
    };
    let gate = entry.gate.acquire_read();
    let how = (false, &mut early);
    let applied = apply(admin, peer, &entry, dataset, changes()?, how, command)?;
    drop(gate);
    applied.mount(admin, &entry, peer)
}

/// What [`inherit`] changes.
fn to_inherit(
    admin: &Arc<Admin>,
    peer: Peer,
    entry: &PoolEntry,
    dataset: &str,
    property: &str,
    (recursive, received): (bool, bool),
) -> Answer<Vec<Change>> {
    datasets::need_writable(entry)?;
    let name = match props::dataset(property) {
        _ if props::is_reserved(property) => {
            return Err(ApiError::reason(
                Kind::Invalid,
                format!("'{property}' is readonly"),
            ))
        }
        _ if props::is_user(property) => property,
        None => {
            return Err(ApiError::reason(
                Kind::Invalid,
                format!("invalid property '{property}'"),
            ))
        }
        Some(row) => {
            let stored = matches!(row.store, Store::Props | Store::PropsAndDir);
            match row.class {
                Class::ReadOnly => {
                    return Err(ApiError::reason(
                        Kind::Invalid,
                        format!("'{}' is readonly", row.name),
                    ))
                }
                Class::Inherit => {}
                // A key's location goes with the key.
                _ if received && KEPT.contains(&row.name) => {
                    return Err(ApiError::reason(
                        Kind::Invalid,
                        format!(
                            "'{}' property cannot be reverted to a received value",
                            row.name
                        ),
                    ))
                }
                Class::Local if received && stored => {}
                _ => {
                    return Err(ApiError::reason(
                        Kind::Invalid,
                        format!("'{}' property cannot be inherited", row.name),
                    ))
                }
            }
            row.name
        }
    };
    let ds = datasets::find(entry, dataset)?;
    let all = match (recursive, ds.is_snapshot()) {
        (false, _) => vec![ds],
        (true, false) => datasets::subtree(&ds.dir()).map_err(|e| datasets::plain(e, dataset))?,
        (true, true) => {
            return Err(ApiError::reason(
                Kind::Invalid,
                "properties of snapshots are inherited one by one",
            ))
        }
    };
    for ds in &all {
        rights::require_named(admin, entry, peer, rights::of_property(name), ds)?;
    }
    let how = if received {
        PropChange::RevertToReceived
    } else {
        PropChange::Inherit
    };
    let mut changes = Vec::new();
    for ds in all {
        let own = ds
            .prop(name, false)
            .map_err(|e| datasets::plain(e, dataset))?;
        let hides = received
            && ds
                .received_prop(name)
                .map_err(|e| datasets::plain(e, dataset))?
                .is_some();
        if own.is_some() || hides {
            changes.push(Change {
                ds,
                list: vec![(name.to_string(), how.clone())],
            });
        }
    }
    Ok(changes)
}

/// What is to be done behind [`apply`] with no lock of the pool held.
struct Applied {
    changed: Vec<Arc<Dataset>>,
    down: Vec<Arc<Mounted>>,
    up: Vec<Arc<Dataset>>,
    /// What is mounted stays where it is, as it is not all the caller's to unmount.
    stays: bool,
    /// How file systems are shared has changed.
    shares: bool,
}

impl Applied {
    /// Mounts what is to be mounted, and tells the kernel. Returns what was left as it is, in words.
    fn mount(
        self,
        admin: &Arc<Admin>,
        entry: &Arc<PoolEntry>,
        peer: Peer,
    ) -> Answer<Option<String>> {
        let failed = mount::put_up(admin, entry, self.down, self.up, peer);
        tell_kernel(entry, &self.changed);
        let unshared = match self.shares {
            true => share::follow(admin, entry, &self.changed)?,
            false => None,
        };
        if failed.is_empty() {
            return Ok(unshared.or_else(|| self.stays.then(|| STAYS.into())));
        }
        let code = failed.first().map_or(Kind::Io, |(_, e)| e.kind);
        let mut e =
            ApiError::sentence(code, "property may be set but unable to remount filesystem");
        for (_, why) in failed {
            e = e.detail(why.to_string());
        }
        Err(e)
    }
}

/// Stores checked changes in one txg; mounted file systems behave differently from then on, and those that move have been taken
/// down. `name` is the dataset the command names.
fn apply(
    admin: &Arc<Admin>,
    peer: Peer,
    entry: &Arc<PoolEntry>,
    name: &str,
    found: Vec<Change>,
    (no_remount, early): (bool, &mut Early<'_>),
    command: String,
) -> Answer<Applied> {
    let moves = found.iter().any(|c| MOVES.iter().any(|p| c.has(p)));
    let (_read, _write) = match moves && !no_remount {
        true => (None, Some(entry.names.write())),
        false => (Some(entry.names.read()), None),
    };
    crate::cancel::check()?;
    // What was destroyed since it was found is not there to be changed: a change of it would stop the pool half-way.
    let asked = found.len();
    let mut changes = Vec::with_capacity(asked);
    for c in found {
        if mount::is_there(entry, &c.ds).map_err(|e| datasets::plain(e, name))? {
            changes.push(c);
        }
    }
    if changes.is_empty() && asked > 0 {
        return Err(ApiError::no_such_dataset(name));
    }
    // Again with the lock of names, under which permissions change.
    for c in &changes {
        for (name, _) in &c.list {
            rights::require_named(admin, entry, peer, rights::of_property(name), &c.ds)?;
        }
    }
    let uid = u64::from(peer.uid);
    let who = rights::caller(admin, entry, peer)?;
    let plan = match no_remount {
        true => Move::default(),
        false => plan(admin, entry, &changes).map_err(|e| datasets::plain(e, name))?,
    };
    // What the caller may not unmount stays as it is: the change is stored as with -u.
    let stays = !mount::may_take_down(admin, entry, peer, &plan.down);
    let mut plan = match stays {
        false => plan,
        true => Move::default(),
    };
    // What was mounted until just now has been taken down already.
    plan.up.retain(|ds| !early.has(ds.object()));
    let down = early.with(mount::take_down(admin, entry, &plan.down, false)?);
    let changed: Vec<Arc<Dataset>> = changes.iter().map(|c| c.ds.clone()).collect();
    let of_shares = [shares::PROPERTY, shares::smb::PROPERTY];
    let is_share = |c: &Change| of_shares.iter().any(|p| c.has(p));
    let shares = !no_remount && changes.iter().any(is_share);
    let resized = changes.iter().find(|c| c.has("volsize"));
    let resized = resized.map(|c| c.ds.object());
    let store = || {
        let stored = entry.pool.task(move |pool, tx| {
            if !mutated(Mutation::PropertyLost) {
                store_changes(pool, tx, &changes, setters::user(&who))?;
            }
            pool.log_in(tx, &command, uid)
        });
        stored.map_err(|e| datasets::plain(e, name))
    };
    let stored = match resized {
        // Nobody writes behind the new end while it is stored.
        Some(object) => entry.volumes.change(object, store),
        None => store(),
    };
    if let Err(e) = stored {
        early.give_back(down);
        return Err(e);
    }
    refresh(entry, &changed);
    Ok(Applied {
        changed,
        down,
        up: plan.up,
        stays,
        shares,
    })
}

/// Which mounts have to move on account of changes.
fn plan(admin: &Admin, entry: &PoolEntry, changes: &[Change]) -> Result<Move> {
    let mut plan = Move::default();
    let ids: Vec<u64> = changes.iter().map(|c| c.ds.object()).collect();
    for c in changes.iter().filter(|c| !c.ds.is_snapshot()) {
        for (name, change) in &c.list {
            match (name.as_str(), change) {
                ("mountpoint", change) => {
                    if same_place(admin, entry, &c.ds, change)? {
                        continue;
                    }
                    for ds in heirs(entry, &c.ds, "mountpoint", &ids)? {
                        if let Some(m) = entry.mounted(ds.object()) {
                            plan.down.push(m);
                        } else if values::mountable(&ds)? {
                            // Whoever does not want it mounted at once says so with -u.
                            plan.up.push(ds);
                        }
                    }
                }
                ("canmount", PropChange::Local(PropValue::Int(0))) => {
                    if let Some(m) = entry.mounted(c.ds.object()) {
                        // What is mounted below it comes back.
                        let below = entry.all_mounts();
                        plan.down.extend(below.into_iter().filter(|o| {
                            o.object != m.object
                                && o.path.starts_with(&m.path)
                                && datasets::is_below(&o.ds.full_name(), &c.ds.full_name())
                        }));
                        plan.down.push(m);
                    }
                }
                ("acltype" | "readonly" | "exec", change) => {
                    let new = number_then(&c.ds, name, change)?;
                    for ds in heirs(entry, &c.ds, name, &ids)? {
                        let Some(m) = entry.mounted(ds.object()) else {
                            continue;
                        };
                        // The kernel asks once, when a file system is mounted, for ACLs.
                        let acl =
                            name == "acltype" && (new == 1) != (pool::prop_number(&ds, name)? == 1);
                        if acl || m.must_remount(name, new) {
                            plan.down.push(m);
                        }
                    }
                }
                _ => {}
            }
        }
    }
    plan.down.sort_by_key(|m| m.sequence);
    plan.down.dedup_by_key(|m| m.object);
    let mut seen = std::collections::HashSet::new();
    plan.up.retain(|ds| seen.insert(ds.object()));
    Ok(plan)
}

/// A number as it will be in effect.
fn number_then(ds: &Arc<Dataset>, name: &str, change: &PropChange) -> Result<u64> {
    if let PropChange::Local(v) = change {
        return Ok(v.int().unwrap_or(0));
    }
    match ds.dir().parent() {
        Some(above) => pool::prop_number(&*above.head()?, name),
        None => Ok(props::dataset(name)
            .and_then(|p| p.default.value())
            .and_then(|v| v.number())
            .unwrap_or(0)),
    }
}

/// Whether a new `mountpoint` names the place where the file system is mounted already.
fn same_place(
    admin: &Admin,
    entry: &PoolEntry,
    ds: &Arc<Dataset>,
    change: &PropChange,
) -> Result<bool> {
    let (PropChange::Local(PropValue::Str(new)), Some(_)) = (change, entry.mounted(ds.object()))
    else {
        return Ok(false);
    };
    let root = entry
        .altroot
        .as_ref()
        .map(|r| r.to_string_lossy().into_owned());
    let new = format!(
        "{}{new}",
        root.as_deref().unwrap_or("").trim_end_matches('/')
    );
    Ok(admin
        .mountpoint(entry, ds)?
        .is_some_and(|p| p.path.as_os_str() == new.as_str()))
}

/// A dataset and those below it that inherit `property` from it, or from others of `changed`.
fn heirs(
    entry: &PoolEntry,
    top: &Arc<Dataset>,
    property: &str,
    changed: &[u64],
) -> Result<Vec<Arc<Dataset>>> {
    let mut out = Vec::new();
    let mut stack = vec![top.dir()];
    while let Some(dir) = stack.pop() {
        let ds = dir.head()?;
        let own = ds.object() != top.object()
            && !changed.contains(&ds.object())
            && dir.prop(property, false)?.is_some();
        if !own {
            if datasets::kind_of(entry, &ds) == DatasetKind::Filesystem {
                out.push(ds);
            }
            stack.extend(dir.children()?);
        }
    }
    Ok(out)
}

/// Mounted file systems and open object sets follow changed properties, all but what the kernel does: see [`tell_kernel`].
pub fn refresh(entry: &PoolEntry, changed: &[Arc<Dataset>]) {
    for_mounts(entry, changed, |m| {
        entry
            .pool
            .refresh_policy(&m.ds)
            .and_then(|()| m.refresh(&entry.pool))
    });
    let heads = changed.iter().filter(|ds| !ds.is_snapshot());
    let tops: Vec<String> = heads.map(|ds| ds.full_name()).collect();
    let concerned = |ds: &Dataset| {
        let name = ds.full_name();
        tops.iter().any(|t| datasets::is_below(&name, t))
    };
    if !tops.is_empty() {
        entry.volumes.refresh(&concerned);
    }
}

/// The kernel's mounts follow changed properties. Behind [`refresh`]; mount points are walked to, so that best no lock of the pool
/// is held.
pub fn tell_kernel(entry: &PoolEntry, changed: &[Arc<Dataset>]) {
    // The engine itself follows; only what the kernel checks in addition may not.
    for_mounts(entry, changed, |m| m.tell_kernel(&entry.pool));
}

fn for_mounts(entry: &PoolEntry, changed: &[Arc<Dataset>], work: impl Fn(&Mounted) -> Result<()>) {
    let tops: Vec<String> = changed
        .iter()
        .filter(|ds| !ds.is_snapshot())
        .map(|ds| ds.full_name())
        .collect();
    if tops.is_empty() {
        return;
    }
    for m in entry.all_mounts() {
        let name = m.ds.full_name();
        if !tops.iter().any(|t| datasets::is_below(&name, t)) {
            continue;
        }
        if let Err(e) = work(&m) {
            tracing::warn!("{name}: {e}");
        }
    }
}

// ---- storing -----------------------------------------------------------------------------------

/// Stores values that were checked, in syncing context: for datasets just made. `by`: the user who sets them, if it is not the
/// owner.
pub fn store_props(
    pool: &Pool,
    tx: &Tx,
    ds: &Arc<Dataset>,
    list: &[(String, PropValue)],
    by: Option<u64>,
) -> Result<()> {
    let list = list
        .iter()
        .map(|(n, v)| (n.clone(), PropChange::Local(v.clone())))
        .collect();
    store_changes(
        pool,
        tx,
        &[Change {
            ds: ds.clone(),
            list,
        }],
        by,
    )
}

/// OpenZFS sends each value in a list of its own, with its source.
fn without_source(value: &disk::nvlist::Value) -> Option<&disk::nvlist::Value> {
    match value {
        disk::nvlist::Value::NvList(l) => l.get("value"),
        v => Some(v),
    }
}

/// Where a stream says that the key of its file system is.
pub fn received_location(list: &disk::NvList) -> Option<String> {
    match without_source(list.get(LOCATION)?)? {
        disk::nvlist::Value::String(s) => Some(s.clone()),
        _ => None,
    }
}

/// Stores where the key of an encryption root is, in syncing context; of other datasets nothing. A dataset has no
/// received value of this property.
///
/// Errors: `Kind::Invalid` if no key can be there.
pub fn store_location(pool: &Pool, tx: &Tx, ds: &Arc<Dataset>, location: &str) -> Result<()> {
    let dir = ds.dir();
    let root = dir.encryption_root()?;
    if root.is_none_or(|r| r.object() != dir.object()) {
        return Ok(());
    }
    if location == "none" {
        return Err(base::Error::new(Kind::Invalid, MUST_NOT_BE_NONE));
    }
    props::check_keylocation(location)?;
    let value = PropValue::Str(location.to_string());
    pool.dsl()
        .set_prop(tx, ds, LOCATION, &PropChange::Local(value))
}

/// The value of a property that a stream brought, if it is stored as a received one.
fn received_value(name: &str, value: &disk::nvlist::Value) -> Option<PropValue> {
    let is_user = props::is_user(name);
    let known =
        props::dataset(name).is_some_and(|p| matches!(p.store, Store::Props | Store::PropsAndDir));
    if !is_user && !known || name == LOCATION || props::is_reserved(name) {
        return None;
    }
    match without_source(value)? {
        disk::nvlist::Value::Uint64(n) if !is_user => Some(PropValue::Int(*n)),
        disk::nvlist::Value::String(s) => Some(PropValue::Str(s.clone())),
        _ => None,
    }
}

/// The properties a stream brought whose values need features that the pool has not: they are not stored.
pub fn unfit(pool: &Pool, list: &disk::NvList) -> Vec<String> {
    let enabled = |guid: &str| pool.has_feature(guid);
    let allowed = parse::Allowed {
        version: pool.version(),
        enabled: &enabled,
    };
    let bad = |(name, value): &(&str, &disk::nvlist::Value)| {
        received_value(name, value).is_some_and(|v| !parse::fits(&allowed, name, &v))
    };
    let bad = list.iter().filter(bad);
    bad.map(|(name, _)| name.to_string()).collect()
}

/// Stores the properties a stream brought, in syncing context: those it does not bring any more are
/// forgotten. With `early` all but `late`, else only those; what cannot be stored is left out. `by`: as for [`store_props`].
pub fn store_received(
    (pool, tx): (&Pool, &Tx),
    ds: &Arc<Dataset>,
    list: &disk::NvList,
    early: bool,
    late: &[&str],
    by: Option<u64>,
) -> Result<()> {
    let mut new: Vec<(String, PropValue)> = Vec::new();
    let unfit = unfit(pool, list);
    for (name, value) in list.iter().filter(|(n, _)| !unfit.iter().any(|u| u == n)) {
        if let Some(value) = received_value(name, value) {
            new.push((name.to_string(), value));
        }
    }
    new.retain(|(n, _)| late.contains(&n.as_str()) != early);
    let keep: Vec<&str> = late.iter().chain(&props::RESERVED).copied().collect();
    pool.dsl().receive_props(tx, ds, &new, early, &keep)?;
    for (name, _) in &new {
        setters::note_received((pool, tx), ds, name, by)?;
    }
    Ok(())
}

/// Stores changes, all or none: those that can be refused (limits of space) go first and are taken
/// back when a later one is refused. `by`: as for [`store_props`].
fn store_changes(pool: &Pool, tx: &Tx, changes: &[Change], by: Option<u64>) -> Result<()> {
    let mut undo: Vec<(&Arc<Dataset>, &str, PropChange)> = Vec::new();
    let mut limits = || -> Result<()> {
        for c in changes {
            // The dataset may be gone since it was looked up.
            if pool.dataset(&c.ds.full_name())?.object() != c.ds.object() {
                return Err(Kind::NotFound.into());
            }
            let mut limits: Vec<_> = c.list.iter().filter(|(n, _)| is_limit(n)).collect();
            limits.sort_by_key(|(n, change)| rank(&c.ds, n, change));
            for (name, change) in limits {
                let old = present(&c.ds, name)?;
                pool.dsl().set_prop(tx, &c.ds, name, change)?;
                undo.push((&c.ds, name, old));
            }
        }
        Ok(())
    };
    if let Err(e) = limits() {
        while let Some((ds, name, old)) = undo.pop() {
            pool.dsl().set_prop(tx, ds, name, &old)?;
        }
        return Err(e);
    }
    for c in changes {
        for (name, change) in c.list.iter().filter(|(n, _)| !is_limit(n)) {
            if let ("volsize", PropChange::Local(PropValue::Int(size))) = (name.as_str(), change) {
                volumes::set_size(pool, tx, &c.ds, *size)?;
                continue;
            }
            pool.dsl().set_prop(tx, &c.ds, name, change)?;
            let by = match change {
                // The value is that of whoever received it, not of who goes back to it.
                PropChange::RevertToReceived => by.or(setters::receiver(&c.ds)?),
                _ => by,
            };
            setters::note((pool, tx), &c.ds, name, by)?;
            if let ("compression", PropChange::Local(PropValue::Int(n))) = (name.as_str(), change) {
                // Elsewhere it becomes active with the first block that needs it.
                if n & 0x7f == u64::from(Compression::ZSTD.number()) && !c.ds.is_snapshot() {
                    c.ds.activate_feature(tx, guid::ZSTD_COMPRESS)?;
                }
            }
        }
    }
    Ok(())
}

fn is_limit(name: &str) -> bool {
    matches!(
        name,
        "quota" | "refquota" | "reservation" | "refreservation"
    )
}

/// Less reserved first, then quotas, then more reserved: so a set of limits that fits together is
/// not refused for the order of its parts.
fn rank(ds: &Dataset, name: &str, change: &PropChange) -> u8 {
    let new = match change {
        PropChange::Local(v) => v.int().unwrap_or(0),
        _ => 0,
    };
    let old = match name {
        "reservation" => ds.dir().phys().reserved,
        "refreservation" => ds.ref_limits().1,
        _ => return 1,
    };
    if new <= old {
        0
    } else {
        2
    }
}

/// What would bring a limit back to how it is now.
fn present(ds: &Arc<Dataset>, name: &str) -> Result<PropChange> {
    let dir = ds.dir().phys();
    Ok(match ds.prop(name, false)? {
        Some((v, PropSource::Local)) => PropChange::Local(v),
        Some(_) => PropChange::RevertToReceived,
        // Old pools keep these two in the directory only.
        None if name == "quota" && dir.quota != 0 => PropChange::Local(PropValue::Int(dir.quota)),
        None if name == "reservation" && dir.reserved != 0 => {
            PropChange::Local(PropValue::Int(dir.reserved))
        }
        None => PropChange::Inherit,
    })
}
