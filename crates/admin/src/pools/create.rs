//! `zpool create` and `labelclear`: the layout asked for, objections to it, and its creation.

use crate::compat::{self, Set};
use crate::datasets::create::{self, NewFs};
use crate::datasets::parse::Allowed;
use crate::errors::answer;
use crate::events::SYSEVENT;
use crate::pools::set;
use crate::process::DeviceUse;
use crate::registry::{Admin, PoolEntry};
use crate::Answer;
use api::{ApiError, Peer, PoolCreate, VdevClass, VdevKind, VdevSpec};
use base::{Error, Kind, Result, Txg};
use disk::feature::{self, Feature};
use disk::props::{self, When};
use disk::NvList;
use dsl::PropValue;
use env::Access;
use pool::{AuxKind, CreateSpec, Pool, FEATURE_DRAID};
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use vdev::keys::pool as key;
use vdev::{Bias, DevSpec, GroupKind, TopSpec};

/// Pool version with feature flags.
const VERSION_FEATURES: u64 = 5000;

/// Pool version with properties of its own.
const VERSION_POOL_PROPS: u64 = 6;

/// What the pool shall have beside its devices.
struct Wanted {
    version: u64,
    ashift: Option<u32>,
    features: Vec<&'static Feature>,
    /// Keys of the configuration.
    extra: Vec<(String, String)>,
    /// For the ZAP `pool_props`.
    stored: Vec<(String, PropValue)>,
    cache_file: Option<PathBuf>,
}

fn invalid(text: impl Into<String>) -> ApiError {
    ApiError::sentence(Kind::Invalid, text)
}

/// Answers `PoolCreate`.
pub fn create(admin: &Arc<Admin>, peer: Peer, ask: PoolCreate) -> Answer<()> {
    let shown = ask.temp_name.as_deref().unwrap_or(&ask.name);
    for name in [&ask.name, shown] {
        disk::names::check_pool(name, true)
            .map_err(|why| invalid(format!("cannot create '{name}': {why}")))?;
    }
    let exists = || {
        ApiError::sentence(
            Kind::Exists,
            format!("cannot create '{shown}': pool already exists"),
        )
    };
    if admin.absent().iter().any(|a| a.name == shown) {
        return Err(exists());
    }
    let claim = admin.claim(shown, 0).map_err(|e| match e.kind {
        Kind::Exists => exists(),
        _ => answer(e),
    })?;
    let wanted = pool_props(admin, &ask)?;
    let root = root_props(&ask, wanted.version, &wanted.features)?;
    if let Some(altroot) = &ask.altroot {
        if !altroot.starts_with('/') {
            return Err(invalid(format!("bad alternate root '{altroot}'")));
        }
    }
    let wish = layout(&ask.vdevs, wanted.ashift)?;
    let classes = wanted
        .features
        .iter()
        .any(|f| f.name == "allocation_classes");
    if wish.tops.iter().any(|t| t.bias.is_some()) && !classes {
        return Err(invalid(format!(
            "cannot create '{shown}': special and dedup vdevs need the feature 'allocation_classes' enabled"
        )));
    }
    let draid = |t: &TopSpec| matches!(t.kind, GroupKind::Draid { .. });
    if wish.tops.iter().any(draid) && !wanted.features.iter().any(|f| f.guid == FEATURE_DRAID) {
        return Err(invalid(format!(
            "cannot create '{shown}': dRAID vdevs need the feature 'draid' enabled"
        )));
    }
    let too_small = "one or more devices is less than the minimum size (64M)";
    check_devices(admin, &wish, ask.force, too_small)?;
    check_mountpoint(admin, &ask, shown, &root)?;
    crate::cancel::check()?;
    if ask.dry_run {
        return Ok(());
    }
    let pool = make(admin, peer, &ask, wanted, root, wish.tops)?;
    let (pool, cache_file) = pool;
    if let Err(e) = pool.add_aux(&wish.aux) {
        // It would not be the pool that was asked for.
        let _ = pool.destroy();
        return Err(answer(e));
    }
    if let Some(temp) = &ask.temp_name {
        let mut shared = pool.shared();
        shared.label_name = Some(ask.name.clone());
        shared.name = temp.clone();
        drop(shared);
        pool.dsl().set_pool_name(temp).map_err(answer)?;
    }
    let entry = admin
        .adopt(
            pool,
            ask.altroot.as_ref().map(PathBuf::from),
            cache_file,
            Vec::new(),
        )
        .map_err(answer)?;
    drop(claim);
    // No export before it is mounted.
    let _gate = entry.pass().map_err(answer)?;
    // The pool is there from here on; what follows is told but does not take it away.
    admin
        .events
        .post(SYSEVENT, "pool_create", &entry.pool, Vec::new());
    let recorded = entry.pool.log_command(&ask.command, u64::from(peer.uid));
    admin.update_cache(&entry);
    recorded.map_err(answer)?;
    match admin.mount_pool(&entry).into_iter().next() {
        Some((_, e)) => Err(answer(e)),
        None => Ok(()),
    }
}

/// Reads the properties of the pool.
fn pool_props(admin: &Admin, ask: &PoolCreate) -> Answer<Wanted> {
    let mut out = Wanted {
        version: VERSION_FEATURES,
        ashift: None,
        features: Vec::new(),
        extra: Vec::new(),
        stored: Vec::new(),
        cache_file: Some(admin.settings.paths.cache_file.clone()),
    };
    let mut set = Set::All;
    let mut chosen: Vec<(&'static Feature, bool)> = Vec::new();
    let mut version_given = false;
    for (name, value) in &ask.props {
        if let Some(short) = name.strip_prefix("feature@") {
            let f = set::known_feature(short)?;
            let on = match value.as_str() {
                "enabled" => true,
                "disabled" => false,
                _ => {
                    return Err(invalid(format!(
                        "property '{name}' can only be set to 'enabled' or 'disabled'"
                    )))
                }
            };
            if on {
                set::supported(f)?;
            }
            chosen.push((f, on));
            continue;
        }
        if props::is_user(name) {
            props::check_user(name, value).map_err(|e| invalid(e.to_string()))?;
            out.stored
                .push((name.clone(), PropValue::Str(value.clone())));
            continue;
        }
        let p = set::known(name)?;
        let parsed = p.parse(value, When::Create).map_err(sentence)?;
        match (p.name, &parsed) {
            ("version", props::PropValue::Number(v)) => {
                out.version = *v;
                version_given = true;
            }
            ("ashift", props::PropValue::Number(0)) => {}
            ("ashift", props::PropValue::Number(n)) => {
                out.ashift = Some(*n as u32);
                out.stored.push(("ashift".into(), PropValue::Int(*n)));
            }
            ("cachefile", _) => out.cache_file = set::cache_file(admin, value),
            ("comment" | "compatibility", _) => {
                if p.name == "compatibility" {
                    set = compat::load(value).map_err(sentence)?;
                }
                if !value.is_empty() && value != "off" {
                    out.extra.push((p.name.into(), value.clone()));
                }
            }
            ("altroot" | "tname", _) => {
                return Err(invalid(format!(
                    "property '{name}' is given with the options -R and -t"
                )))
            }
            ("bootfs", _) => {
                return Err(invalid(
                    "property 'bootfs' can be set when its dataset exists",
                ))
            }
            _ => {
                set::honest(p.name, &parsed, admin)?;
                out.stored.push((p.name.into(), set::to_stored(&parsed)));
            }
        }
    }
    if out.version < VERSION_POOL_PROPS {
        // The default for devices added later is a convenience old versions have no place for.
        out.stored.retain(|(n, _)| n != "ashift");
    }
    if version_given && out.version < VERSION_FEATURES {
        if let Some((f, _)) = chosen.first() {
            return Err(invalid(format!(
                "'feature@{}' and 'version' properties cannot be specified together",
                f.name
            )));
        }
        return Ok(out);
    }
    if set == Set::None && !version_given && chosen.is_empty() {
        // `legacy`: feature flags, none of them enabled.
        return Ok(out);
    }
    if !ask.no_features {
        out.features = feature::FEATURES
            .iter()
            .filter(|f| f.supported && f.default_on && set.allows(f))
            .filter(|f| !chosen.contains(&(*f, false)))
            .collect();
    }
    for (f, on) in &chosen {
        if *on && !out.features.contains(f) {
            if !set.allows(f) {
                return Err(invalid(format!(
                    "cannot enable feature '{}': it is not in the pool's 'compatibility' set",
                    f.name
                )));
            }
            out.features.push(f);
        }
    }
    Ok(out)
}

fn sentence(e: Error) -> ApiError {
    ApiError::sentence(e.kind, e.to_string())
}

/// Reads the properties of the root file system (`-O`).
fn root_props(ask: &PoolCreate, version: u64, features: &[&Feature]) -> Answer<NewFs> {
    let unknown = |name: &str| {
        !props::is_user(name)
            && props::dataset(name).is_none()
            && props::Pseudo::parse(name).is_none()
    };
    if let Some((name, _)) = ask.fs_props.iter().find(|(n, _)| unknown(n)) {
        return Err(invalid(format!(
            "property '{name}' is not a valid filesystem property"
        )));
    }
    let enabled = |guid: &str| features.iter().any(|f| f.guid == guid);
    let allowed = Allowed {
        version,
        enabled: &enabled,
    };
    NewFs::parse(&allowed, &ask.fs_props).map_err(|e| ApiError {
        message: e.sentence_for("create", &ask.name),
        whole: true,
        ..e
    })
}

/// New devices as the engine wants them.
#[derive(Debug, Default)]
pub(super) struct Wish {
    /// New top-level vdevs.
    pub tops: Vec<TopSpec>,
    /// Spares and cache devices.
    pub aux: Vec<(AuxKind, DevSpec)>,
}

impl Wish {
    /// All devices.
    pub fn devices(&self) -> Vec<&DevSpec> {
        let tops = self.tops.iter().flat_map(|t| &t.devices);
        tops.chain(self.aux.iter().map(|(_, d)| d)).collect()
    }
}

/// Whether a word of a request can be a device.
pub(super) fn is_device(word: &str) -> bool {
    word.starts_with('/') || base::is_network_device(word)
}

/// A device of a request.
fn device(spec: &VdevSpec) -> Answer<DevSpec> {
    let path = spec.path.as_deref().unwrap_or_default();
    if !is_device(path) || !spec.children.is_empty() {
        return Err(bad("devices are given by absolute paths"));
    }
    match spec.kind {
        VdevKind::File => Ok(DevSpec::file(path)),
        VdevKind::Disk => Ok(DevSpec::disk(path, false)),
        _ => Err(bad("groups cannot be nested")),
    }
}

fn bad(what: &str) -> ApiError {
    invalid(format!("invalid vdev specification: {what}"))
}

/// The devices of a new pool.
fn layout(specs: &[VdevSpec], ashift: Option<u32>) -> Answer<Wish> {
    let wish = wishes(specs, ashift)?;
    if !wish.tops.iter().any(|t| !t.is_log && t.bias.is_none()) {
        return Err(bad("at least one toplevel vdev must be specified"));
    }
    Ok(wish)
}

/// The devices as the engine wants them.
pub(super) fn wishes(specs: &[VdevSpec], ashift: Option<u32>) -> Answer<Wish> {
    let mut out = Wish::default();
    for spec in specs {
        let aux = match spec.class {
            VdevClass::Cache => Some(AuxKind::Cache),
            VdevClass::Spare => Some(AuxKind::Spare),
            _ => None,
        };
        if let Some(kind) = aux {
            out.aux.push((kind, device(spec)?));
            continue;
        }
        let is_log = spec.class == VdevClass::Log;
        let bias = match spec.class {
            VdevClass::Special => Some(Bias::Special),
            VdevClass::Dedup => Some(Bias::Dedup),
            _ => None,
        };
        let kind = match spec.kind {
            VdevKind::Disk | VdevKind::File => GroupKind::Single,
            VdevKind::Mirror => GroupKind::Mirror,
            VdevKind::Raidz { parity } => GroupKind::Raidz {
                nparity: usize::from(parity),
            },
            VdevKind::Draid {
                parity,
                data,
                children,
                spares,
            } => {
                if usize::from(children) != spec.children.len() {
                    return Err(bad(&format!(
                        "dRAID of {children} devices with {} devices",
                        spec.children.len()
                    )));
                }
                GroupKind::Draid {
                    nparity: usize::from(parity),
                    ndata: u64::from(data),
                    nspares: u64::from(spares),
                }
            }
            _ => return Err(bad("a group must be a mirror, raidz or draid")),
        };
        let members: Vec<&VdevSpec> = if kind == GroupKind::Single {
            vec![spec]
        } else {
            spec.children.iter().collect()
        };
        let devices = members
            .into_iter()
            .map(device)
            .collect::<Answer<Vec<DevSpec>>>()?;
        let least = match kind {
            GroupKind::Mirror => 2,
            GroupKind::Raidz { nparity } | GroupKind::Draid { nparity, .. } => nparity + 1,
            _ => 1,
        };
        if devices.len() < least {
            return Err(bad(&format!("at least {least} devices are needed")));
        }
        if is_log && !matches!(kind, GroupKind::Single | GroupKind::Mirror) {
            return Err(bad("log devices are single devices or mirrors"));
        }
        let mut top = TopSpec::new(kind, devices);
        top.is_log = is_log;
        top.bias = bias;
        top.ashift = ashift;
        out.tops.push(top);
    }
    Ok(out)
}

/// The imported pool a device belongs to.
pub fn imported_user(admin: &Admin, path: &str) -> Option<Arc<PoolEntry>> {
    let id = admin.process.identity(path)?;
    admin.pools().into_iter().find(|e| {
        e.pool
            .tree()
            .leaves()
            .iter()
            .filter_map(|l| l.path())
            .any(|p| p == path || admin.process.identity(&p) == Some(id))
    })
}

/// What speaks against using the devices (command reference §6.4).
/// `too_small`: what is said of a device below the least size.
pub(super) fn check_devices(
    admin: &Arc<Admin>,
    wish: &Wish,
    force: bool,
    too_small: &str,
) -> Answer<()> {
    let mut seen = HashSet::new();
    let mut refused = Vec::new();
    for dev in wish.devices() {
        let path = &dev.path;
        let id = admin.process.identity(path).ok_or_else(|| {
            ApiError::sentence(
                Kind::NotFound,
                format!("cannot open '{path}': no such device or file"),
            )
        })?;
        if !seen.insert(id) {
            return Err(invalid(
                "one or more vdevs refer to the same device, or one of the devices is part of an \
                 active md or lvm device",
            ));
        }
        let shared = wish
            .aux
            .iter()
            .any(|(kind, d)| *kind == AuxKind::Spare && d.path == *path);
        match look(admin, path)
            .map_err(|e| ApiError::sentence(e.kind, format!("cannot open {e}")))?
        {
            Objection::None => {}
            // Pools may share their spares.
            Objection::Spare(_) if shared => {}
            Objection::Spare(pool) => {
                refused.push(format!("{path} is reserved as a hot spare for pool {pool}"))
            }
            Objection::Fatal(text) => refused.push(text),
            Objection::Overridable(text) if !force => refused.push(text),
            Objection::Overridable(_) => {}
        }
    }
    if !refused.is_empty() {
        // As in OpenZFS, -f is proposed unless it was given, also where it does not help.
        return Err(ApiError::vdevs(!force, &refused));
    }
    for dev in wish.devices() {
        let d = admin
            .env
            .disks
            .open(&dev.path, Access::Write)
            .map_err(|e| ApiError::sentence(e.kind, format!("cannot open {e}")))?;
        if d.geometry().size < disk::label::MIN_DEVICE {
            return Err(ApiError::reason(Kind::Overflow, too_small));
        }
    }
    Ok(())
}

/// What speaks against overwriting one device.
pub enum Objection {
    /// Nothing.
    None,
    /// It is a hot spare of the imported pool with this name.
    Spare(String),
    /// Refused, unless the user insists (`-f`); the text says why.
    Overridable(String),
    /// Refused; the text says why.
    Fatal(String),
}

/// Looks who uses a device and what it holds.
pub fn look(admin: &Admin, path: &str) -> Result<Objection> {
    if let Some(e) = imported_user(admin, path) {
        return Ok(Objection::Fatal(format!(
            "{path} is part of active pool '{}'",
            e.pool.name()
        )));
    }
    if let Some(why) = admin.unanswered(path) {
        return Ok(Objection::Fatal(format!("{path} is in use: {why}")));
    }
    Ok(match admin.process.device_use(path)? {
        DeviceUse::Free => Objection::None,
        DeviceUse::Labels => label_objection(admin, path),
        DeviceUse::Overridable(text) => Objection::Overridable(text),
        DeviceUse::Fatal(text) => Objection::Fatal(text),
    })
}

/// The imported pool that has a spare or a cache device with this guid.
fn owner(admin: &Admin, guid: u64) -> Option<String> {
    let has = |list: &[NvList]| {
        list.iter()
            .any(|d| d.get_u64(vdev::keys::GUID) == Some(guid))
    };
    let pools = admin.pools();
    let owner = pools.iter().find(|e| {
        let aux = e.pool.aux_devices();
        has(&aux.spares) || has(&aux.l2cache)
    });
    owner.map(|e| e.pool.name())
}

pub(super) fn label_objection(admin: &Admin, path: &str) -> Objection {
    let found = vdev::discover(&admin.env, &[path.to_string()]);
    // Nothing is on a spare or a cache device but its label: only imported pools speak against using it.
    if let Some(pool) = found.spares.keys().find_map(|g| owner(admin, *g)) {
        return Objection::Spare(pool);
    }
    if let Some(pool) = found.l2cache.keys().find_map(|g| owner(admin, *g)) {
        return Objection::Fatal(format!("{path} is in use as a cache of pool '{pool}'"));
    }
    match found.pools.first() {
        // What is left of it can be had until something else is written there; `-f` was not asked
        // for by OpenZFS either.
        None => Objection::None,
        Some(p) if p.state == key::STATE_DESTROYED => Objection::None,
        Some(p) if p.state == key::STATE_EXPORTED => {
            Objection::Overridable(format!("{path} is part of exported pool '{}'", p.name))
        }
        Some(p) => Objection::Overridable(format!(
            "{path} is part of potentially active pool '{}'",
            p.name
        )),
    }
}

/// The place the root file system will be mounted at must be free.
fn check_mountpoint(admin: &Admin, ask: &PoolCreate, shown: &str, root: &NewFs) -> Answer<()> {
    let get = |name: &str| root.stored.iter().find(|(n, _)| n == name).map(|(_, v)| v);
    if get("canmount").is_some_and(|v| v.int() == Some(0)) {
        return Ok(());
    }
    let place = match get("mountpoint").and_then(|v| v.text()) {
        Some("none" | "legacy") => return Ok(()),
        Some(path) => PathBuf::from(path),
        None => match &ask.altroot {
            Some(_) => Path::new("/").join(shown),
            None => admin.settings.paths.mount_root.join(shown),
        },
    };
    let place = match &ask.altroot {
        Some(r) => Path::new(r).join(place.strip_prefix("/").unwrap_or(&place)),
        None => place,
    };
    match admin.door.objection(&place) {
        None => Ok(()),
        Some(what) => Err(ApiError::sentence(
            Kind::NotEmpty,
            format!("mountpoint '{}' {what}", place.display()),
        )
        .hint("use '-m' option to provide a different default")),
    }
}

/// Makes the pool.
fn make(
    admin: &Arc<Admin>,
    peer: Peer,
    ask: &PoolCreate,
    wanted: Wanted,
    root: NewFs,
    tops: Vec<TopSpec>,
) -> Answer<(Arc<Pool>, Option<PathBuf>)> {
    let version = wanted.version;
    let guid = dsl::crypto::ENCRYPTION;
    let encrypts = wanted.features.iter().any(|f| f.guid == guid);
    let spec = CreateSpec {
        name: ask.name.clone(),
        tops,
        version,
        features: wanted.features,
        extra: wanted.extra,
        // Recorded afterwards, with the user.
        command: String::new(),
        tunables: admin.process.tunables(),
    };
    let random = admin.env.rng.u64();
    let prepared =
        crate::datasets::keys::prepare(&*admin.process, &root.crypt, ask.key.as_ref(), random);
    let key = crate::datasets::keys::for_new(None, encrypts, &root.crypt, prepared)?;
    crate::cancel::check()?;
    let owner = crate::datasets::create::owner(admin, peer);
    let stored = wanted.stored;
    let init = |pool: &Pool, os: &Arc<dmu::Objset>, tx: &dmu::Tx| -> Result<()> {
        for (name, value) in &stored {
            pool.store_prop(tx, name, Some(value))?;
        }
        create::init_root(pool, os, tx, &root, owner)
    };
    let pool = Pool::create_with(admin.env.clone(), spec, key.as_ref(), &init).map_err(|e| {
        let text = e.to_string();
        match text.strip_prefix("invalid vdev specification") {
            Some(_) => sentence(e),
            None => answer(e),
        }
    })?;
    Ok((pool, wanted.cache_file))
}

/// Answers `LabelClear`.
pub fn label_clear(admin: &Arc<Admin>, path: &str, force: bool) -> Answer<()> {
    let failed =
        |e: Error| ApiError::sentence(e.kind, format!("failed to clear label for {path}: {e}"));
    if let Some(e) = imported_user(admin, path) {
        return Err(ApiError::sentence(
            Kind::Busy,
            format!("{path} is a member (ACTIVE) of pool \"{}\"", e.pool.name()),
        ));
    }
    // A pool has its cache devices open, under whatever path: the label says which device it is.
    admin.process.named_device(path);
    let probed = admin.env.disks.open(path, Access::Read).ok();
    let probed = probed.and_then(|d| of_a_pool(admin, &vdev::label::read_labels(&*d)));
    // Its label may be damaged.
    let listed = || {
        let lists = |e: &Arc<PoolEntry>| {
            let aux = e.pool.aux_devices();
            let mut paths = aux.l2cache.iter().map(|c| c.get_str(vdev::keys::PATH));
            paths.any(|p| p == Some(path))
        };
        let found = admin.pools().into_iter().find(lists);
        found.map(|e| ("L2CACHE", e.pool.name()))
    };
    if let Some((role, pool)) = probed.or_else(listed) {
        return Err(ApiError::sentence(
            Kind::Busy,
            format!("{path} is a member ({role}) of pool \"{pool}\""),
        ));
    }
    let disk = admin
        .env
        .disks
        .open(path, Access::Exclusive)
        .map_err(|e| ApiError::sentence(e.kind, format!("failed to open {e}")))?;
    let labels = vdev::label::read_labels(&*disk);
    if labels.good() == 0 && !labels.damaged.contains(&true) {
        return Err(ApiError::sentence(
            Kind::NotFound,
            format!("failed to check state for {path}: no label of a pool found"),
        ));
    }
    let config = labels.best(Txg::MAX);
    if !force {
        let name = config.and_then(|c| c.get_str(key::NAME)).unwrap_or("?");
        if let Some(member) = config.and_then(member) {
            return Err(ApiError::sentence(
                Kind::Busy,
                format!(
                    "use '-f' to override the following error:\n{path} is {member} pool \"{name}\""
                ),
            ));
        }
    }
    vdev::label::clear(&*disk).map_err(failed)?;
    Ok(())
}

/// Whose spare or cache device has such labels, of the pools that are imported: what it is there, and the name of the pool.
fn of_a_pool(admin: &Admin, labels: &vdev::label::Labels) -> Option<(&'static str, String)> {
    let config = labels.best(Txg::MAX)?;
    let role = match config.get_u64(key::STATE)? {
        key::STATE_SPARE => "SPARE",
        key::STATE_L2CACHE => "L2CACHE",
        _ => return None,
    };
    Some((role, owner(admin, config.get_u64(vdev::keys::GUID)?)?))
}

/// What a device is of the pool in its label, if it is to be had by force only. Spares and cache devices of pools that are
/// not imported have nothing that could be lost.
fn member(label: &NvList) -> Option<&'static str> {
    // OpenZFS leaves such labels on what was detached, replaced or removed.
    let left = label.get_txg(key::TXG).unwrap_or_default().is_none();
    match label.get_u64(key::STATE)? {
        key::STATE_EXPORTED if !left => Some("a member of exported"),
        key::STATE_ACTIVE if !left => Some("a member of potentially active"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_left_a_pool_is_cleared_without_force() {
        let label = |state: u64, txg: u64| {
            let mut l = NvList::new();
            l.set(key::STATE, state);
            l.set(key::TXG, txg);
            l
        };
        for state in [key::STATE_ACTIVE, key::STATE_EXPORTED] {
            assert!(member(&label(state, 7)).is_some());
            assert_eq!(member(&label(state, 0)), None);
        }
        assert_eq!(member(&label(key::STATE_DESTROYED, 7)), None);
        assert_eq!(member(&label(key::STATE_SPARE, 0)), None);
    }

    fn leaf(path: &str) -> VdevSpec {
        VdevSpec {
            kind: VdevKind::File,
            class: VdevClass::Normal,
            path: Some(path.into()),
            children: Vec::new(),
        }
    }

    fn group(kind: VdevKind, class: VdevClass, paths: &[&str]) -> VdevSpec {
        VdevSpec {
            kind,
            class,
            path: None,
            children: paths.iter().map(|p| leaf(p)).collect(),
        }
    }

    #[test]
    fn layouts() {
        let good = [
            group(
                VdevKind::Raidz { parity: 2 },
                VdevClass::Normal,
                &["/a", "/b", "/c"],
            ),
            group(VdevKind::Mirror, VdevClass::Log, &["/d", "/e"]),
        ];
        let tops = layout(&good, Some(12)).unwrap().tops;
        assert_eq!(tops.len(), 2);
        assert_eq!(tops[0].kind, GroupKind::Raidz { nparity: 2 });
        assert!(tops[1].is_log && tops[1].ashift == Some(12));
        for bad in [
            vec![],
            vec![leaf("relative")],
            vec![group(VdevKind::Mirror, VdevClass::Normal, &["/a"])],
            vec![group(
                VdevKind::Raidz { parity: 3 },
                VdevClass::Normal,
                &["/a", "/b", "/c"],
            )],
            vec![group(VdevKind::Mirror, VdevClass::Log, &["/a", "/b"])],
            vec![
                leaf("/x"),
                group(VdevKind::Raidz { parity: 1 }, VdevClass::Log, &["/a", "/b"]),
            ],
            vec![group(VdevKind::Mirror, VdevClass::Special, &["/a", "/b"])],
        ] {
            assert!(layout(&bad, None).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn root_properties() {
        let ask = |list: &[(&str, &str)]| PoolCreate {
            fs_props: list
                .iter()
                .map(|(a, b)| (a.to_string(), b.to_string()))
                .collect(),
            ..PoolCreate::default()
        };
        let lz4 = disk::feature::by_guid(feature::guid::LZ4_COMPRESS).unwrap();
        let list = [
            ("compression", "lz4"),
            ("normalization", "formD"),
            ("a:b", "c"),
        ];
        let r = root_props(&ask(&list), 5000, &[lz4]).unwrap();
        assert_eq!(r.stored.len(), 2);
        assert!(root_props(&ask(&list), 5000, &[]).is_err());
        for (n, v) in [
            ("compression", "best"),
            ("nonsense", "1"),
            ("used", "1"),
            ("mountpoint", "x"),
        ] {
            assert!(root_props(&ask(&[(n, v)]), 5000, &[]).is_err(), "{n}");
        }
        assert!(root_props(&ask(&[("version", "5")]), 23, &[]).is_err());
    }
}
