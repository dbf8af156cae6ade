//! `zfs create`: file systems and volumes.

use crate::datasets::keys::{self, CryptProps, Prepared};
use crate::datasets::parse::{self, Allowed};
use crate::datasets::quota::{self, Quota};
use crate::datasets::rights;
use crate::datasets::volumes::{self, Shape};
use crate::datasets::{self, mount, objsets, set, Answer};
use crate::registry::{Admin, PoolEntry};
use crate::setters;
use crate::{cancel, errors};
use api::{ApiError, Created, DatasetCreate, DatasetKind, Peer};
use base::sync::RwLockExt;
use base::{bail, Kind, Result};
use disk::feature::guid;
use disk::names::{self, Want};
use disk::os_type;
use disk::props::{self, Store, Types};
use dmu::{Objset, Tx};
use dsl::{Caller, CreateArgs, Dataset, NewKey, PropValue};
use pool::Pool;
use std::sync::Arc;
use zpl::{FsOptions, Time};

/// Bytes that a block changed by a command counts for, as the reference counts.
const BLOCK: u64 = 16 << 10;
/// Blocks that making a dataset changes.
pub const DATASET: u64 = 5;
/// Blocks that making a snapshot changes.
pub const SNAPSHOT: u64 = 3;
/// Blocks that making a bookmark changes.
pub const BOOKMARK: u64 = 1;

/// `volblocksize` of volumes that are made without one, bytes.
const VOLUME_BLOCK: u64 = 16 << 10;

/// Checked properties of a new file system or volume.
#[derive(Clone, Debug, Default)]
pub struct NewFs {
    /// To be stored.
    pub stored: Vec<(String, PropValue)>,
    version: Option<u64>,
    normalization: Option<u64>,
    utf8only: Option<u64>,
    case: Option<u64>,
    volblocksize: Option<u64>,
    /// What was asked for its encryption.
    pub crypt: CryptProps,
    quotas: Vec<Quota>,
}

impl NewFs {
    /// Checks names and values of the properties a file system is to be made with.
    pub fn parse(allowed: &Allowed<'_>, list: &api::Props) -> Answer<NewFs> {
        NewFs::parse_as(DatasetKind::Filesystem, allowed, list)
    }

    /// The same for a file system or a volume.
    fn parse_as(kind: DatasetKind, allowed: &Allowed<'_>, list: &api::Props) -> Answer<NewFs> {
        let types = match kind {
            DatasetKind::Volume => Types::VOLUME,
            _ => Types::FILESYSTEM,
        };
        let mut new = NewFs::default();
        for (name, text) in list {
            if let Some(q) = quota::parse(name, text, kind)? {
                new.quotas.push(q);
                continue;
            }
            let (name, value) = parse::parse(allowed, name, text, types, true)?;
            if new.crypt.take(&name, &value) {
                continue;
            }
            let slot = match name.as_str() {
                "version" => &mut new.version,
                "normalization" => &mut new.normalization,
                "utf8only" => &mut new.utf8only,
                "casesensitivity" => &mut new.case,
                "volblocksize" => &mut new.volblocksize,
                "volsize" => {
                    return Err(ApiError::sentence(
                        Kind::Invalid,
                        "property 'volsize' specified multiple times",
                    ))
                }
                _ => {
                    match props::dataset(&name).map(|p| p.store) {
                        None | Some(Store::Props | Store::PropsAndDir) => {
                            new.stored.retain(|(n, _)| *n != name);
                            new.stored.push((name, value));
                        }
                        Some(_) => {
                            return Err(ApiError::reason(
                                Kind::Unsupported,
                                format!("'{name}' cannot be set in this version"),
                            ))
                        }
                    }
                    continue;
                }
            };
            *slot = value.int();
        }
        // Limits in the order in which they can be set on something empty.
        let order = ["quota", "refquota", "reservation", "refreservation"];
        new.stored
            .sort_by_key(|(n, _)| order.iter().position(|o| o == n).map_or(0, |i| i + 1));
        if new.normalization.is_some_and(|n| n != 0) && new.utf8only == Some(0) {
            return Err(ApiError::reason(
                Kind::Invalid,
                "'utf8only' must be set 'on' if normalization chosen",
            ));
        }
        let version = new.version.unwrap_or(zpl::max_zpl_version(allowed.version));
        quota::check_new(allowed, version, &new.quotas)?;
        let special = [new.normalization, new.utf8only, new.case];
        if version < 3 && special.iter().any(|p| p.is_some_and(|n| n != 0)) {
            return Err(ApiError::reason(
                Kind::Unsupported,
                "normalization, utf8only and casesensitivity need file system version 3",
            ));
        }
        Ok(new)
    }

    /// Checks the properties of a clone of this snapshot.
    pub fn of_clone(entry: &PoolEntry, origin: &Arc<Dataset>, list: &api::Props) -> Answer<NewFs> {
        let enabled = |guid: &str| entry.pool.has_feature(guid);
        let allowed = Allowed {
            version: entry.pool.version(),
            enabled: &enabled,
        };
        let volume = entry.objset_type(origin).is_ok_and(|t| t == os_type::ZVOL);
        let kind = match volume {
            true => DatasetKind::Volume,
            false => DatasetKind::Filesystem,
        };
        let mut new = NewFs::parse_as(kind, &allowed, list)?;
        new.check_clone()?;
        new.check_content(entry, origin)?;
        if volume {
            new.reserve_for_clone(entry, origin)?;
        }
        Ok(new)
    }

    /// Checks what goes into the objects of a clone: version and quotas.
    fn check_content(&mut self, entry: &PoolEntry, origin: &Arc<Dataset>) -> Answer<()> {
        if self.version.is_none() && self.quotas.is_empty() {
            return Ok(());
        }
        if matches!(origin.crypt().map_err(errors::answer)?, zio::Crypt::Locked) {
            return Err(ApiError::reason(Kind::Access, "encryption key not loaded"));
        }
        let now = objsets::master(entry, origin)
            .map_err(errors::answer)?
            .version;
        match self.version {
            Some(v) if v < now => Err(ApiError::reason(
                Kind::Invalid,
                format!("Can not downgrade; already at version {now}"),
            )),
            _ => quota::check(entry, origin, &self.quotas),
        }
    }

    /// `refreservation=auto` of a clone of a volume: what the size of its origin asks for.
    fn reserve_for_clone(&mut self, entry: &PoolEntry, origin: &Arc<Dataset>) -> Answer<()> {
        if self.limit("refreservation") != props::UNLIMITED {
            return Ok(());
        }
        let os = objsets::look_into(entry, origin).map_err(errors::answer)?;
        let shape = volumes::shape(&os).map_err(errors::answer)?;
        let full = shape.reservation(&entry.pool, self.limit("copies").max(1));
        for (name, value) in &mut self.stored {
            if name == "refreservation" {
                *value = PropValue::Int(full);
            }
        }
        Ok(())
    }

    /// Puts version and quotas into the objects of a clone that is being made, in syncing context.
    pub fn put_into_clone(&self, pool: &Pool, tx: &Tx, ds: &Arc<Dataset>) -> Result<()> {
        if self.version.is_none() && self.quotas.is_empty() {
            return Ok(());
        }
        let os = ds.open_objset(pool.write_policy(ds)?, false)?;
        if let Some(to) = self.version {
            let old = zpl::upgrade_fs(&os, tx, to, pool.version())?;
            if old != to {
                pool.dsl().note_upgrade(ds, old, to);
            }
        }
        quota::put(&os, tx, &self.quotas)
    }

    /// Checks the properties that a receive is to set on a file system or volume.
    pub fn of_received(
        kind: DatasetKind,
        allowed: &Allowed<'_>,
        list: &api::Props,
    ) -> Answer<NewFs> {
        let new = NewFs::parse_as(kind, allowed, list)?;
        match new.kept_inside() {
            Some(name) => Err(ApiError::reason(
                Kind::Invalid,
                format!("property '{name}' cannot be set or excluded"),
            )),
            None => Ok(new),
        }
    }

    /// The first of the given properties that is kept with the objects of a dataset, not with its properties.
    fn kept_inside(&self) -> Option<&'static str> {
        match self.version {
            Some(_) => Some("version"),
            None if self.quotas.is_empty() => self.fixed(),
            None => Some("userquota@"),
        }
    }

    /// The first of the given properties that a dataset has for ever.
    fn fixed(&self) -> Option<&'static str> {
        let given = [
            ("normalization", self.normalization.is_some()),
            ("utf8only", self.utf8only.is_some()),
            ("casesensitivity", self.case.is_some()),
            ("volblocksize", self.volblocksize.is_some()),
        ];
        given.iter().find(|(_, given)| *given).map(|(n, _)| *n)
    }

    /// What only something new can have is refused for a clone.
    fn check_clone(&self) -> Answer<()> {
        let name = match (self.fixed(), self.crypt == CryptProps::default()) {
            (Some(name), _) => name,
            (None, false) => "encryption",
            (None, true) => return Ok(()),
        };
        Err(ApiError::reason(
            Kind::Invalid,
            format!("'{name}' of a clone is that of its origin"),
        ))
    }

    /// The limits of a clone, which begins with what its origin refers to (bytes), and copies.
    pub fn check_clone_limits(
        &self,
        available: u64,
        referenced: u64,
        encrypted: bool,
    ) -> Answer<()> {
        self.check_limits(available)?;
        let small = |name: &str| (1..referenced).contains(&self.limit(name));
        if small("refquota") {
            return Err(ApiError::reason(
                Kind::NoSpace,
                "size is less than current used or reserved space",
            ));
        }
        if encrypted && self.limit("copies") > 2 {
            return Err(ApiError::reason(
                Kind::Invalid,
                "encrypted datasets cannot have three copies",
            ));
        }
        Ok(())
    }

    fn limit(&self, name: &str) -> u64 {
        self.stored
            .iter()
            .find(|(n, _)| n == name)
            .and_then(|(_, v)| v.int())
            .unwrap_or(0)
    }

    /// Salt and nonce of encrypted blocks take the place of the third copy.
    fn check_copies(&self, key: &Option<NewKey>) -> Answer<()> {
        if key.is_some() && self.limit("copies") > 2 {
            return Err(ApiError::reason(
                Kind::Invalid,
                "encrypted datasets cannot have three copies",
            ));
        }
        Ok(())
    }

    /// What a volume of this size is to be, and what is reserved for it unless it is to be `sparse` or the properties say
    /// how much. In pools that are too old `reservation` is the size.
    fn volume(&mut self, pool: &Pool, size: &str, sparse: bool) -> Answer<Shape> {
        let bytes = volumes::size(size).map_err(|e| {
            ApiError::sentence(
                Kind::Invalid,
                format!("bad volume size '{size}': {}", e.message),
            )
        })?;
        let shape = Shape::rounded(bytes, self.volblocksize.unwrap_or(VOLUME_BLOCK))?;
        let (name, full) = match pool.version() < volumes::REFRESERVATION {
            true => ("reservation", shape.size),
            false => {
                let copies = self.limit("copies").max(1);
                ("refreservation", shape.reservation(pool, copies))
            }
        };
        let given = self.stored.iter_mut().find(|(n, _)| n == name);
        match given {
            Some((_, value)) if value.int() == Some(props::UNLIMITED) => {
                *value = PropValue::Int(full);
            }
            Some(_) => {}
            None if sparse => {}
            None => self.stored.push((name.into(), PropValue::Int(full))),
        }
        Ok(shape)
    }

    /// The numbers of a volume that its command does not say, or says otherwise.
    fn follows(&self, shape: Shape, props: &api::Props) -> api::Props {
        let given = |name: &str| props.iter().any(|(n, v)| n == name && v != "auto");
        let reserved = ["reservation", "refreservation"].map(|name| (name, self.limit(name)));
        let reserved = reserved
            .iter()
            .filter(|(n, bytes)| *bytes != 0 && !given(n));
        reserved
            .chain([&("volsize", shape.size)])
            .map(|(name, bytes)| (name.to_string(), bytes.to_string()))
            .collect()
    }

    /// Whether the limits of space fit together and into what the parent has.
    fn check_limits(&self, available: u64) -> Answer<()> {
        let (quota, refquota) = (self.limit("quota"), self.limit("refquota"));
        let (reserved, refreserved) = (self.limit("reservation"), self.limit("refreservation"));
        let over = |n: u64, limit: u64| limit != 0 && n > limit;
        let room = if quota == 0 {
            available
        } else {
            quota.min(available)
        };
        let bad = reserved > available
            || over(reserved, quota)
            || refreserved > room
            || over(refreserved, refquota);
        if bad {
            return Err(ApiError::reason(Kind::NoSpace, "out of space"));
        }
        Ok(())
    }

    /// Names that are normalized are UTF-8, also where the parent says that they are normalized.
    fn check_names(&self, above: objsets::Rules) -> Answer<()> {
        let normalized = self.normalization.unwrap_or(above.normalization) != 0;
        match normalized && self.utf8only == Some(0) {
            true => Err(ApiError::reason(
                Kind::Invalid,
                "'utf8only' must be set 'on' if normalization chosen, which is that of its parent",
            )),
            false => Ok(()),
        }
    }

    /// How its objects are to be made. `above`: the rules of the parent.
    fn options(&self, pool: &Pool, above: Option<objsets::Rules>, owner: (u32, u32)) -> FsOptions {
        let (sec, nsec) = pool.env.clock.now();
        let mut o = FsOptions::new(pool.version(), Time { sec, nsec });
        o.version = self.version.unwrap_or(o.version);
        let above = above.unwrap_or_default();
        if o.version >= 3 {
            o.normalization = self.normalization.unwrap_or(above.normalization);
            o.utf8only = self.utf8only.unwrap_or(above.utf8only) != 0 || o.normalization != 0;
            o.casesensitivity = self.case.unwrap_or(above.case);
        }
        o.project_quota = pool.has_feature(guid::PROJECT_QUOTA);
        (o.uid, o.gid) = owner;
        o
    }
}

/// Who is to own the root directory of what a caller makes: the caller; but an ordinary user's daemon
/// makes everything for that user.
pub fn owner(admin: &Admin, peer: Peer) -> (u32, u32) {
    let (own, group) = admin.process.user();
    match (own, peer.uid == own) {
        (0, true) => (0, 0),
        (0, false) => (peer.uid, peer.gid),
        (_, true) => (own, peer.gid),
        (_, false) => (own, group),
    }
}

/// The first objects of a new pool's root file system, and its properties.
pub fn init_root(
    pool: &Pool,
    os: &Arc<Objset>,
    tx: &Tx,
    new: &NewFs,
    owner: (u32, u32),
) -> Result<()> {
    let ds = pool.root_dataset()?;
    set::store_props(pool, tx, &ds, &new.stored, None)?;
    let mut policy = pool.write_policy(&ds)?;
    policy.accounting_flags = os.policy().accounting_flags;
    os.set_policy(policy);
    zpl::create_fs(os, tx, &new.options(pool, None, owner))?;
    quota::put(os, tx, &new.quotas)
}

/// One file system or volume to be made.
struct Made {
    name: String,
    new: NewFs,
    /// Of a volume.
    volume: Option<Shape>,
    options: FsOptions,
    key: Option<NewKey>,
}

/// Refuses what would change so many blocks of the pool where it has no room for them. What makes room is never refused.
///
/// # Errors
/// `Kind::NoSpace`
pub fn check_room(pool: &Pool, blocks: u64) -> Result<()> {
    if pool.root_dir()?.available().bytes < blocks.saturating_mul(BLOCK) {
        bail!(NoSpace, "out of space");
    }
    Ok(())
}

/// Makes file systems and volumes, parents first, in syncing context. The caller has checked the rest.
fn make(pool: &Pool, tx: &Tx, who: &Caller, list: &[Made]) -> Result<()> {
    check_room(pool, DATASET * list.len() as u64)?;
    for m in list {
        let Some((parent, last)) = m.name.rsplit_once('/') else {
            bail!(Invalid, "a pool is made with 'zpool create'");
        };
        let parent = pool.dir(parent)?;
        if m.new.check_limits(parent.available().bytes).is_err() {
            bail!(NoSpace, "out of space");
        }
        pool.dsl().check_filesystem_limit(&parent, 1, who)?;
        let args = CreateArgs {
            case_insensitive: m.options.casesensitivity != 0,
            internal: false,
        };
        let ds = match &m.key {
            Some(key) => pool.dsl().create_encrypted(tx, &parent, last, args, key)?,
            None => pool.dsl().create_fs(tx, &parent, last, args)?,
        };
        pool.dsl().give_creator(tx, &ds, who.uid)?;
        let by = setters::user(who);
        setters::note_content((pool, tx), &ds, None, by)?;
        set::store_props(pool, tx, &ds, &m.new.stored, by)?;
        if let Some(shape) = m.volume {
            let os = pool.new_objset(tx, &ds, os_type::ZVOL)?;
            volumes::create(&os, tx, shape)?;
            continue;
        }
        let os = pool.new_objset(tx, &ds, os_type::ZFS)?;
        zpl::create_fs(&os, tx, &m.options)?;
        quota::put(&os, tx, &m.new.quotas)?;
    }
    Ok(())
}

/// What the nearest existing dataset above `name` is, and which ones are missing, topmost first.
pub struct Above {
    /// The nearest existing dataset.
    pub parent: Arc<Dataset>,
    /// Full names of those missing, topmost first.
    pub missing: Vec<String>,
}

impl Above {
    /// Refuses to make the missing file systems and a dataset with these properties below them, or to move
    /// one there, to callers who lack a permission at any of the parents.
    pub fn require(
        &self,
        admin: &Admin,
        entry: &PoolEntry,
        peer: Peer,
        props: &api::Props,
    ) -> Answer<()> {
        rights::require_in_new(admin, entry, peer, &self.parent, props)?;
        if !self.missing.is_empty() {
            rights::require_below_new(admin, entry, peer, &self.parent)?;
        }
        Ok(())
    }
}

/// Looks at what is above `name`.
pub fn above(entry: &PoolEntry, name: &str, parents: bool) -> Answer<Above> {
    let mut missing = Vec::new();
    let mut at = name;
    while let Some((up, _)) = at.rsplit_once('/') {
        match entry.pool.dataset(up) {
            Ok(parent) => {
                if datasets::kind_of(entry, &parent) != DatasetKind::Filesystem {
                    return Err(ApiError::reason(
                        Kind::Invalid,
                        "parent is not a filesystem",
                    ));
                }
                missing.reverse();
                return Ok(Above { parent, missing });
            }
            Err(e) if e.kind == Kind::NotFound => {
                if !parents {
                    return Err(ApiError::reason(Kind::NotFound, "parent does not exist"));
                }
                missing.push(up.to_string());
            }
            Err(e) => return Err(datasets::plain(e, name)),
        }
        at = up;
    }
    Err(ApiError::reason(
        Kind::NotFound,
        format!("no such pool '{}'", datasets::pool_of(name)),
    ))
}

/// How what is made below `above` is to be encrypted.
fn new_key(
    entry: &PoolEntry,
    above: &Above,
    want: &CryptProps,
    prepared: Option<Prepared>,
) -> Answer<Option<NewKey>> {
    let pool = &entry.pool;
    let enabled = pool.has_feature(dsl::crypto::ENCRYPTION);
    let parent = above.parent.dir();
    let key = keys::for_new(Some(&parent), enabled, want, prepared)?;
    if key.is_some() {
        keys::need_ivsets(&**pool.feature_counts())?;
    }
    Ok(key)
}

/// The missing parents of a name, to be made with what their parent says.
fn missing_parents(
    entry: &PoolEntry,
    above: &Above,
    rules: objsets::Rules,
    owner: (u32, u32),
) -> Answer<Vec<Made>> {
    let mut list = Vec::new();
    for name in &above.missing {
        let new = NewFs::default();
        list.push(Made {
            name: name.clone(),
            options: new.options(&entry.pool, Some(rules), owner),
            new,
            volume: None,
            key: new_key(entry, above, &CryptProps::default(), None)?,
        });
    }
    Ok(list)
}

/// A closure for a task that makes the missing parents of a name.
pub fn make_parents(
    admin: &Admin,
    entry: &PoolEntry,
    peer: Peer,
    above: &Above,
) -> Answer<impl FnOnce(&Pool, &Tx) -> Result<()> + Send + 'static> {
    let rules = objsets::master(entry, &above.parent).map_err(errors::answer)?;
    let list = missing_parents(entry, above, rules, owner(admin, peer))?;
    let who = rights::caller(admin, entry, peer)?;
    Ok(move |pool: &Pool, tx: &Tx| make(pool, tx, &who, &list))
}

/// Whether a dataset of that name and kind is there, which `-p` (`fine`) does not mind. Any other one of that name is
/// refused.
fn is_there(entry: &PoolEntry, name: &str, kind: DatasetKind, fine: bool) -> Answer<bool> {
    match entry.pool.dir(name) {
        Err(e) if e.kind == Kind::NotFound => return Ok(false),
        found => found.map_err(|e| datasets::plain(e, name))?,
    };
    let there = datasets::find_anyway(entry, name)?;
    if fine && datasets::kind_of(entry, &there) == kind {
        return Ok(true);
    }
    Err(ApiError::reason(Kind::Exists, "dataset already exists"))
}

/// `zfs create`
pub fn create(admin: &Arc<Admin>, peer: Peer, r: &DatasetCreate) -> Answer<Created> {
    let name = r.name.as_str();
    let invalid = |why: String| ApiError::reason(Kind::Invalid, why);
    names::check_new(name, Want::Filesystem).map_err(invalid)?;
    let kind = match r.volume_size {
        Some(_) => DatasetKind::Volume,
        None => DatasetKind::Filesystem,
    };
    let pool_name = datasets::pool_of(name);
    let Some(entry) = admin.find(pool_name) else {
        return Err(ApiError::reason(
            Kind::NotFound,
            format!("no such pool '{pool_name}'"),
        ));
    };
    let enabled = |guid: &str| entry.pool.has_feature(guid);
    let allowed = Allowed {
        version: entry.pool.version(),
        enabled: &enabled,
    };
    let gate = entry.gate.acquire_read();
    if !rights::is_owner(admin, peer) {
        // Making a key takes long: not for those who may not make the dataset.
        let above = above(&entry, name, r.parents)?;
        above.require(admin, &entry, peer, &r.props)?;
    }
    let new = NewFs::parse_as(kind, &allowed, &r.props);
    drop(gate);
    let prepared = match &new {
        Ok(new) if !r.dry_run => keys::prepare_for(admin, peer, &new.crypt, r.key.as_ref()),
        _ => None,
    };
    let _gate = entry.gate.acquire_read();
    cancel::check()?;
    if is_there(&entry, name, kind, r.parents)? {
        return Ok(Created {
            existed: true,
            ..Created::default()
        });
    }
    datasets::need_writable(&entry)?;
    let _names = entry.names.read();
    let above = above(&entry, name, r.parents)?;
    above.require(admin, &entry, peer, &r.props)?;
    let mut new = new?;
    let volume = match &r.volume_size {
        Some(size) => Some(new.volume(&entry.pool, size, r.sparse)?),
        None => None,
    };
    let computed = volume.map_or_else(Vec::new, |shape| new.follows(shape, &r.props));
    // What a volume reserves unasked is a property set for it, too.
    let mut reserved = computed.clone();
    reserved.retain(|(p, _)| p != "volsize");
    above.require(admin, &entry, peer, &reserved)?;
    if !r.dry_run {
        new.check_limits(above.parent.dir().available().bytes)?;
    }
    let caller = rights::caller(admin, &entry, peer)?;
    let more = above.missing.len() as u64 + 1;
    entry
        .pool
        .dsl()
        .check_filesystem_limit(&above.parent.dir(), more, &caller)
        .map_err(|e| datasets::plain(e, name))?;
    let rules = objsets::master(&entry, &above.parent).map_err(errors::answer)?;
    if volume.is_none() {
        new.check_names(rules)?;
    }
    let who = owner(admin, peer);
    let mut list = missing_parents(&entry, &above, rules, who)?;
    let options = new.options(&entry.pool, Some(rules), who);
    let key = match r.dry_run {
        true => None,
        false => new_key(&entry, &above, &new.crypt, prepared)?,
    };
    new.check_copies(&key)?;
    list.push(Made {
        name: name.to_string(),
        new,
        volume,
        options,
        key,
    });
    let created = Created {
        ancestors: above.missing.clone(),
        computed,
        ..Created::default()
    };
    if r.dry_run {
        rehearse(&entry, &above, &list).map_err(|e| datasets::plain(e, name))?;
        return Ok(created);
    }
    let (command, uid) = (r.command.clone(), u64::from(peer.uid));
    let mounted = list.iter().filter(|m| m.volume.is_none());
    let all: Vec<String> = mounted.map(|m| m.name.clone()).collect();
    entry
        .pool
        .task(move |pool, tx| {
            make(pool, tx, &caller, &list)?;
            pool.log_in(tx, &command, uid)
        })
        .map_err(|e| datasets::plain(e, name))?;
    drop((_names, _gate));
    let mount_failed = match r.no_mount {
        true => None,
        false => mount::mount_made(admin, &entry, &all, peer).err(),
    };
    Ok(Created {
        mount_failed,
        ..created
    })
}

/// Whether the first of these datasets could be made.
fn rehearse(entry: &PoolEntry, above: &Above, list: &[Made]) -> Result<()> {
    let first = list.first().and_then(|m| m.name.rsplit('/').next());
    let dsl = entry.pool.dsl();
    dsl.check_create(&above.parent.dir(), first.unwrap_or_default(), false)
}
