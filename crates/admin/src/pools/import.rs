//! `zpool import`: finding pools on devices, and importing them.

use crate::abandoned::Abandoned;
use crate::activity::{self, is_foreign, Verdict};
use crate::compat::Set;
use crate::errors::answer;
use crate::events::Load;
use crate::pools::get::disabled_features;
use crate::pools::tree::{aux_rows, class, Look};
use crate::pools::{damage, set};
use crate::registry::{Absent, Admin, PoolEntry};
use crate::Answer;
use crate::{cache, cancel, values};
use api::{
    ApiError, ImportScan, Importable, Imported, Peer, PoolImport, VdevAux, VdevClass, VdevState,
};
use base::{Error, Kind, Txg};
use disk::feature;
use disk::props::{self, When};
use dsl::PropValue;
use env::{Access, Env};
use pool::{OpenOptions, Pool, Rewind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use vdev::keys::pool as key;
use vdev::{PoolFound, Problem};

/// Newest legacy version, and the one with feature flags.
const VERSION_LEGACY: u64 = 28;
const VERSION_FEATURES: u64 = 5000;

fn sentence(kind: Kind, text: impl Into<String>) -> ApiError {
    ApiError::sentence(kind, text)
}

/// Answers `ImportScan`.
pub fn scan(
    admin: &Arc<Admin>,
    search: &ImportScan,
    cancelled: &dyn Fn() -> bool,
) -> Answer<Vec<Importable>> {
    let _asking = base::cancel::asking(cancel::is_cancelled);
    let mut found = candidates(admin, search)?;
    found.retain(|f| !is_in_service_elsewhere(admin, f));
    let mut list = Vec::new();
    for f in &found {
        let mut seen = examine(admin, f);
        let usable = |t: &api::Vdev| t.state >= VdevState::Degraded;
        watch(admin, f, &mut seen, cancelled);
        if seen.tree.as_ref().is_some_and(usable) {
            try_load(admin, f, &mut seen);
        }
        cancel::check()?;
        list.push(seen);
    }
    Ok(list)
}

/// Whether all devices of a pool that are there are held: another daemon of this machine has it in service.
fn is_in_service_elsewhere(admin: &Admin, f: &PoolFound) -> bool {
    let mut there = cache::device_paths(&f.config);
    there.retain(|p| Path::new(p).exists());
    !there.is_empty() && there.iter().all(|p| admin.process.is_held(p))
}

/// Notes if another host uses a pool.
fn watch(admin: &Admin, f: &PoolFound, seen: &mut Importable, cancelled: &dyn Fn() -> bool) {
    if let Ok(Verdict::Refused(why)) = activity::check(admin, f, false, cancelled) {
        seen.facts.multihost = Some(why);
        seen.facts.host_mismatch = Some((
            seen.hostname.clone().unwrap_or_else(|| "<unknown>".into()),
            f.hostid,
            seen.last_access,
        ));
    }
}

/// Pools on the devices searched, those imported already left out.
fn candidates(admin: &Arc<Admin>, search: &ImportScan) -> Answer<Vec<PoolFound>> {
    let mut only = None;
    let paths = match (&search.cache_file, search.places.is_empty()) {
        (Some(file), _) => {
            let (paths, guids) = cached(admin, file)?;
            only = Some(guids);
            paths
        }
        (None, true) => admin.process.devices(None).map_err(answer)?,
        (None, false) => {
            let mut all = match search.default_places {
                true => admin.process.devices(None).map_err(answer)?,
                false => Vec::new(),
            };
            for place in &search.places {
                let list = admin
                    .process
                    .devices(Some(place))
                    .map_err(|e| sentence(e.kind, format!("cannot search {e}")))?;
                for p in list {
                    if !all.contains(&p) {
                        all.push(p);
                    }
                }
            }
            all
        }
    };
    let mut found = discovered(admin, paths, only.as_deref());
    found.retain(|p| (p.state == key::STATE_DESTROYED) == search.destroyed);
    Ok(found)
}

/// Devices of a pool of the cache file that could not be opened, wherever they are: as commands advise, it
/// is imported by its name alone.
fn of_cache_file(admin: &Arc<Admin>, wanted: &str) -> Vec<PoolFound> {
    let absent = admin.absent().clone();
    let meant = absent
        .iter()
        .filter(|a| a.name == wanted || wanted.parse() == Ok(a.guid));
    let paths = meant.flat_map(|a| cache::device_paths(&a.config));
    discovered(admin, paths.collect(), None)
}

/// Pools on these devices, those imported already left out; `only`: of these guids.
fn discovered(admin: &Arc<Admin>, paths: Vec<String>, only: Option<&[u64]>) -> Vec<PoolFound> {
    // Reading what does not answer would wait, too.
    let paths: Vec<String> = paths
        .into_iter()
        .filter(|p| admin.unanswered(p).is_none())
        .collect();
    let imported: Vec<u64> = admin.pools().iter().map(|e| e.pool.guid()).collect();
    let mut found = vdev::discover(&admin.env, &paths).pools;
    found.retain(|p| !imported.contains(&p.guid) && only.is_none_or(|o| o.contains(&p.guid)));
    found
}

/// Devices a cache file names, and the guids of its pools. Where a device is not at its place, its
/// folder is searched: it may have got another name there.
fn cached(admin: &Admin, file: &str) -> Answer<(Vec<String>, Vec<u64>)> {
    let list = cache::read(Path::new(file))
        .map_err(|e| sentence(e.kind, format!("cannot read the cache file '{file}': {e}")))?;
    let mut out: Vec<String> = Vec::new();
    let mut guids = Vec::new();
    let mut folders: Vec<String> = Vec::new();
    for config in list.iter().filter_map(|(name, _)| list.get_nvlist(name)) {
        guids.extend(config.get_u64(key::POOL_GUID));
        for p in cache::device_paths(config) {
            admin.process.named_device(&p);
            let folder = match p.rsplit_once('/') {
                _ if base::is_network_device(&p) => None,
                Some((folder, _)) if !Path::new(&p).exists() => Some(folder.to_string()),
                _ => None,
            };
            folders.extend(folder.filter(|f| !f.is_empty() && !folders.contains(f)));
            if !out.contains(&p) {
                out.push(p);
            }
        }
    }
    for folder in folders {
        // One that is gone has nothing to find.
        for p in admin.process.devices(Some(&folder)).unwrap_or_default() {
            if !out.contains(&p) {
                out.push(p);
            }
        }
    }
    Ok((out, guids))
}

/// What would become of a pool if it were imported, as far as its labels and devices tell.
fn examine(admin: &Arc<Admin>, f: &PoolFound) -> Importable {
    let mut out = Importable {
        name: f.name.clone(),
        guid: f.guid,
        version: f.version,
        destroyed: f.state == key::STATE_DESTROYED,
        exported: f.state == key::STATE_EXPORTED,
        comment: f.config.get_str("comment").map(str::to_string),
        hostname: (!f.hostname.is_empty()).then(|| f.hostname.clone()),
        hostid: f.hostid,
        health: "FAULTED".into(),
        needs_force: is_foreign(admin, f),
        ..Importable::default()
    };
    let mut tree = match f.tree(&admin.env) {
        Ok(t) => t,
        Err(e) if e.kind == Kind::Unsupported => {
            out.facts.unsupported = vec![(e.to_string(), "vdev_tree of the labels".into())];
            return out;
        }
        Err(_) => {
            out.facts.corrupt_metadata = true;
            return out;
        }
    };
    tree.open(Access::Read);
    tree.validate(Txg::MAX, false);
    tree.propagate();
    let best = tree.best_uberblock(Txg::MAX);
    if let Some((ub, _)) = &best {
        out.last_access = ub.timestamp;
        if ub.version != 0 {
            out.version = ub.version;
        }
    }
    if out.needs_force {
        out.facts.host_mismatch = Some((
            out.hostname.clone().unwrap_or_else(|| "<unknown>".into()),
            f.hostid,
            out.last_access,
        ));
    }
    out.facts.unsupported = unreadable(f);
    let slot_unknown = |p: &Problem| matches!(p, Problem::MissingTop(_));
    // Labels of a txg that was not finished tell of other devices than its uberblock.
    let other_devices = |ub: &disk::Uberblock| ub.guid_sum != tree.guid_sum();
    let differs = best.as_ref().is_some_and(|(ub, _)| other_devices(ub));
    if best.is_some() && (differs || f.problems.iter().any(slot_unknown)) {
        // What the devices at hand do not tell, the pool itself may.
        if let Ok(whole) = Pool::peek(&admin.env, &f.config) {
            tree.close();
            tree = whole;
        }
    }
    let look = Look {
        tree: &tree,
        space: None,
        imported: false,
        histograms: false,
        resilver: None,
        wears: None,
        removed: false,
    };
    let mut root = look.root();
    // A log device that is missing can be done without.
    let missing: Vec<bool> = tree
        .tops()
        .iter()
        .filter(|t| t.is_concrete() && !t.state().usable() && !t.is_put_away())
        .map(|t| t.is_log())
        .collect();
    out.needs_missing_log = !missing.is_empty() && missing.iter().all(|log| *log);
    let known = out.version <= VERSION_LEGACY || out.version == VERSION_FEATURES;
    if !known {
        out.facts.version_newer = true;
        root.state = VdevState::CantOpen;
        root.aux = VdevAux::VersionNewer;
    } else if !out.facts.unsupported.is_empty() {
        out.facts.host_mismatch = None;
        root.state = VdevState::CantOpen;
        root.aux = VdevAux::UnsupportedFeatures;
    } else if best.is_none() {
        root.state = VdevState::CantOpen;
        if root.aux == VdevAux::None {
            root.aux = VdevAux::CorruptData;
        }
    } else if best
        .as_ref()
        .is_some_and(|(ub, _)| ub.guid_sum != tree.guid_sum())
    {
        // Top-level devices of which nothing at all was found.
        root.state = VdevState::CantOpen;
        root.aux = VdevAux::BadGuidSum;
    }
    tree.close();
    out.health = health(&root);
    out.tree = Some(root);
    out
}

fn health(root: &api::Vdev) -> String {
    match (root.state, root.aux) {
        (VdevState::CantOpen, VdevAux::CorruptData) => "FAULTED".into(),
        (state, aux) => state.shown(aux).into(),
    }
}

/// A feature with what it is.
fn described(guid: &str) -> (String, String) {
    let text = feature::by_guid(guid).map_or("", |f| f.description);
    (guid.to_string(), text.to_string())
}

/// Features the labels name without which nothing can be read.
fn unreadable(f: &PoolFound) -> Vec<(String, String)> {
    let Some(list) = f.config.get_nvlist(key::FEATURES_FOR_READ) else {
        return Vec::new();
    };
    list.iter()
        .map(|(guid, _)| guid)
        .filter(|g| !feature::by_guid(g).is_some_and(|f| f.supported || f.readable))
        .map(described)
        .collect()
}

/// Opens the pool for a look without writing anything: only then it is known which features it uses
/// and whether its metadata can be read.
fn try_load(admin: &Arc<Admin>, f: &PoolFound, seen: &mut Importable) {
    let facts = &mut seen.facts;
    let mut verdict = None;
    let mut cant = |aux| verdict = Some(aux);
    let options = OpenOptions {
        readonly: true,
        tunables: admin.process.tunables(),
        ..OpenOptions::default()
    };
    match Pool::open(admin.env.clone(), &f.config, options) {
        Ok(pool) => {
            if let Some(store) = pool.feature_store() {
                let (_, write) = store.unsupported();
                // Of features unknown here, the pool itself knows what they are.
                let told = |g: &String| match feature::by_guid(g) {
                    Some(_) => described(g),
                    None => {
                        let text = store.description(g).ok().flatten();
                        (g.clone(), text.unwrap_or_default())
                    }
                };
                facts.unsupported = write.iter().map(told).collect();
                facts.unsupported_readable = !write.is_empty();
            }
            // Whatever the pool's 'compatibility' asks for: who is to import it may want them all.
            facts.disabled_features = disabled_features(&pool, &Set::All)
                .iter()
                .map(|f| f.name.to_string())
                .collect();
            if let Some(root) = &mut seen.tree {
                classes(root, &pool.space().stats());
                root.children.extend(aux_rows(&pool));
            }
            seen.scan = damage::scan(&pool);
            let _ = pool.close();
            if facts.unsupported_readable {
                cant(VdevAux::UnsupportedFeatures);
            }
        }
        Err(e) if e.kind == Kind::Unsupported => {
            facts.unsupported = match Pool::peek_features(&admin.env, &f.config) {
                Ok([read, write]) if !read.is_empty() => [read, write].concat(),
                _ => vec![(e.to_string(), String::new())],
            };
            cant(VdevAux::UnsupportedFeatures);
        }
        Err(e) if e.kind == Kind::NoDevice => {}
        Err(_) => {
            facts.corrupt_metadata = true;
            cant(VdevAux::CorruptData);
        }
    }
    if verdict == Some(VdevAux::UnsupportedFeatures) {
        // That another system used it last is the smaller trouble.
        facts.host_mismatch = None;
    }
    if let (Some(aux), Some(root)) = (verdict, &mut seen.tree) {
        root.state = VdevState::CantOpen;
        root.aux = aux;
        seen.health = health(root);
    }
}

/// Which class each top-level device has: no label says it of special and dedup devices.
fn classes(root: &mut api::Vdev, space: &space::Stats) {
    fn set(v: &mut api::Vdev, to: VdevClass) {
        v.class = to;
        v.children.iter_mut().for_each(|c| set(c, to));
    }
    for top in &mut root.children {
        let known = space.vdevs.iter().find(|s| s.id == top.id);
        if let Some(s) = known {
            set(top, class(s.class));
        }
    }
}

/// The refusal of a pool for its features, as far as they are known.
fn unsupported(seen: &Importable) -> Option<ApiError> {
    let facts = &seen.facts;
    if facts.unsupported.is_empty() {
        return None;
    }
    let mut text =
        String::from("This pool uses the following feature(s) not supported by this system:\n");
    for (guid, what) in &facts.unsupported {
        text.push_str(&match what.is_empty() {
            true => format!("\t{guid}\n"),
            false => format!("\t{guid} ({what})\n"),
        });
    }
    if facts.unsupported_readable {
        text.push_str(
            "All unsupported features are only required for writing to the pool.\n\
             The pool can be imported using '-o readonly=on'.\n",
        );
    }
    text.push_str(&format!(
        "cannot import '{}': unsupported version or feature",
        seen.name
    ));
    Some(sentence(Kind::Unsupported, text))
}

/// Refuses what cannot work, for reasons the devices show.
fn check_devices(seen: &Importable, ask: &PoolImport) -> Answer<()> {
    let name = &seen.name;
    if seen.facts.version_newer {
        return Err(sentence(
            Kind::Unsupported,
            format!(
                "cannot import '{name}': the pool has version {}, which this software does not \
                 know",
                seen.version
            ),
        ));
    }
    if let Some(refusal) = unsupported(seen) {
        return Err(refusal);
    }
    let Some(root) = seen.tree.as_ref() else {
        return Err(ApiError::reason(
            Kind::Damaged,
            "the labels of its devices contradict themselves",
        ));
    };
    if root.state >= VdevState::Degraded || (seen.needs_missing_log && ask.missing_log) {
        return Ok(());
    }
    let mut missing = Vec::new();
    missing_devices(root, &mut missing);
    let list: String = missing.iter().map(|m| format!("\n\t{m}")).collect();
    if seen.needs_missing_log {
        return Err(sentence(
            Kind::NoDevice,
            format!(
                "The devices below are missing or corrupted, use '-m' to import the pool \
                 anyway:{list}\ncannot import '{name}': one or more devices is currently \
                 unavailable"
            ),
        ));
    }
    let mut e = ApiError::reason(
        Kind::NoDevice,
        "one or more devices is currently unavailable",
    );
    if !missing.is_empty() {
        e = e.hint(format!("Missing or unusable:{list}"));
    }
    Err(e)
}

fn missing_devices(v: &api::Vdev, out: &mut Vec<String>) {
    if v.children.is_empty() && v.state < VdevState::Degraded {
        out.push(match (&v.path, v.guid) {
            (Some(p), _) => p.clone(),
            (None, 0) => format!(
                "a top-level device of which nothing is known (number {})",
                v.id
            ),
            (None, guid) => guid.to_string(),
        });
    }
    for c in &v.children {
        missing_devices(c, out);
    }
}

/// What the properties of an import ask for.
pub(super) struct Wanted {
    pub(super) readonly: bool,
    cache_file: Option<PathBuf>,
    altroot: Option<PathBuf>,
    pub(super) comment: Option<String>,
    pub(super) stored: Vec<(String, PropValue)>,
}

/// Reads the properties of an import.
pub(super) fn wanted(admin: &Admin, ask: &PoolImport) -> Answer<Wanted> {
    let mut out = Wanted {
        readonly: false,
        cache_file: Some(admin.settings.paths.cache_file.clone()),
        altroot: ask.altroot.as_ref().map(PathBuf::from),
        comment: None,
        stored: Vec::new(),
    };
    let mut cache_given = false;
    for (name, value) in &ask.props {
        if name.starts_with("feature@") || name == "version" || name == "bootfs" {
            return Err(ApiError::reason(
                Kind::Invalid,
                format!("property '{name}' cannot be set with import; set it afterwards"),
            ));
        }
        if props::is_user(name) {
            props::check_user(name, value).map_err(answer)?;
            out.stored
                .push((name.clone(), PropValue::Str(value.clone())));
            continue;
        }
        let p = set::known(name)?;
        let v = p
            .parse(value, When::Import)
            .map_err(|e| ApiError::reason(e.kind, e.to_string()))?;
        match p.name {
            "readonly" => out.readonly = v.number() == Some(1),
            "cachefile" => {
                out.cache_file = set::cache_file(admin, value);
                cache_given = true;
            }
            "altroot" => out.altroot = Some(value.into()),
            "comment" => out.comment = Some(value.clone()),
            "compatibility" | "tname" => {
                return Err(ApiError::reason(
                    Kind::Invalid,
                    format!("property '{name}' cannot be set with import"),
                ))
            }
            name => {
                set::honest(name, &v, admin)?;
                out.stored.push((name.into(), set::to_stored(&v)));
            }
        }
    }
    if !cache_given && (out.altroot.is_some() || out.readonly || ask.temporary) {
        out.cache_file = None;
    }
    if out.readonly && (!out.stored.is_empty() || out.comment.is_some()) {
        return Err(ApiError::reason(
            Kind::ReadOnly,
            "a pool imported read-only cannot get properties",
        ));
    }
    Ok(out)
}

/// Picks the pool meant.
fn choose(found: Vec<PoolFound>, what: &str) -> Answer<PoolFound> {
    let guid: Option<u64> = what.parse().ok();
    let mut matching: Vec<PoolFound> = found
        .into_iter()
        .filter(|f| f.name == what || guid == Some(f.guid))
        .collect();
    if matching.len() > 1 {
        return Err(sentence(
            Kind::Invalid,
            format!("cannot import '{what}': more than one matching pool"),
        )
        .hint("import by numeric ID instead"));
    }
    matching
        .pop()
        .ok_or_else(|| ApiError::reason(Kind::NotFound, "no such pool available"))
}

/// Opens a pool that is not in service, for reading: the one on these devices and images that `name` (of a pool, or of a
/// dataset in it) means. Nothing is written. What only an intent log has is not seen.
///
/// # Errors
/// There is none, or more than one; those of opening it.
pub fn open_unimported(env: &Env, places: &[String], name: &str) -> Answer<Arc<Pool>> {
    let wanted = name.split(['/', '@']).next().unwrap_or(name);
    let found = vdev::discover(env, places).pools;
    let names: Vec<String> = found.iter().map(|f| f.name.clone()).collect();
    let chosen = choose(found, wanted).map_err(|e| match names.is_empty() {
        true => e.hint("There is no device of a pool at the places that were named."),
        false if e.code == Kind::NotFound.errno() => {
            e.hint(format!("Found there: {}.", names.join(", ")))
        }
        false => ApiError::reason(Kind::Exists, "several pools have this name")
            .hint("Name the devices of one, each with -d."),
    })?;
    let options = OpenOptions {
        readonly: true,
        missing_log: true,
        ..OpenOptions::default()
    };
    Pool::open(env.clone(), &chosen.config, options).map_err(answer)
}

/// How a pool is to be opened; whether another host uses it is not known yet.
fn open_options(admin: &Admin, ask: &PoolImport, wanted: &Wanted) -> OpenOptions {
    OpenOptions {
        readonly: wanted.readonly,
        name: ask.new_name.clone(),
        temporary: ask.temporary,
        missing_log: ask.missing_log,
        txg: ask.txg.map(Txg::new),
        rewind: match (ask.rewind, ask.extreme) {
            (false, _) => Rewind::No,
            (true, false) => Rewind::Safe,
            (true, true) => Rewind::Extreme,
        },
        checkpoint: ask.checkpoint,
        multihost: admin.settings.multihost,
        tunables: admin.process.tunables(),
        ..OpenOptions::default()
    }
}

/// Gives a pool that has just been opened the properties asked for. False: it is read-only.
fn settle(
    pool: &Pool,
    comment: Option<String>,
    stored: Vec<(String, PropValue)>,
) -> base::Result<bool> {
    if pool.is_readonly() {
        return Ok(false);
    }
    if let Some(c) = &comment {
        pool.set_extra("comment", Some(c.as_str()).filter(|c| !c.is_empty()));
    }
    pool.task(move |pool, tx| {
        for (name, value) in &stored {
            pool.store_prop(tx, name, Some(value))?;
        }
        Ok(())
    })?;
    Ok(true)
}

/// Mounts the datasets of an imported pool if that is wanted. Returns those that are not mounted, and why; damaged
/// ones are among them whether or not mounting was tried.
fn mount_all(admin: &Arc<Admin>, entry: &Arc<PoolEntry>, wanted: bool) -> Vec<(String, ApiError)> {
    let mut failed: Vec<(String, ApiError)> = Vec::new();
    if wanted {
        let tried = admin.mount_pool(entry).into_iter();
        failed.extend(tried.map(|(name, e)| (name, answer(e))));
    }
    for (name, e) in entry.pool.unreadable_datasets() {
        if !failed.iter().any(|(n, _)| *n == name) {
            failed.push((name, answer(e)));
        }
    }
    failed
}

/// Opens a pool; it is not in service yet. The caller may go away meanwhile.
fn open(
    admin: &Arc<Admin>,
    found: &PoolFound,
    ask: &PoolImport,
    options: &OpenOptions,
) -> Answer<Arc<Pool>> {
    let opened = {
        let _asking = base::cancel::asking(cancel::is_cancelled);
        Pool::open(admin.env.clone(), &found.config, options.clone())
    };
    match opened {
        Ok(pool) if cancel::is_cancelled() => {
            let _ = pool.close();
            Err(cancel::refusal())
        }
        Ok(pool) => Ok(pool),
        Err(e) if e.kind == Kind::Interrupted => Err(answer(e)),
        Err(e) => {
            tell_of_failure(admin, found, "zpool");
            Err(with_advice(admin, found, ask, options, e))
        }
    }
}

/// Answers `PoolImport`.
pub fn import(
    admin: &Arc<Admin>,
    peer: Peer,
    ask: PoolImport,
    cancelled: &dyn Fn() -> bool,
) -> Answer<Imported> {
    let wanted = wanted(admin, &ask)?;
    values::options(&ask.mount_options).map_err(|e| ApiError::reason(e.kind, e.to_string()))?;
    let same = |a: &&Abandoned| a.name == ask.pool || ask.pool.parse() == Ok(a.guid);
    if let Some(a) = admin.abandoned().iter().find(same) {
        return Err(ApiError::reason(Kind::Busy, a.refusal()));
    }
    let mut found = candidates(admin, &ask.search)?;
    let meant = |f: &PoolFound| f.name == ask.pool || ask.pool.parse() == Ok(f.guid);
    if !found.iter().any(meant) && ask.search == ImportScan::default() {
        found.extend(of_cache_file(admin, &ask.pool));
    }
    if !found.iter().any(meant) && is_imported(admin, &ask.pool) {
        return Err(sentence(
            Kind::Exists,
            format!(
                "cannot import '{}': a pool with that name is already created/imported,\n\
                 and no additional pools with that name were found",
                ask.pool
            ),
        ));
    }
    let found = choose(found, &ask.pool)?;
    let name = ask.new_name.clone().unwrap_or_else(|| found.name.clone());
    disk::names::check_pool(&name, ask.new_name.is_some())
        .map_err(|why| sentence(Kind::Invalid, format!("cannot import '{name}': {why}")))?;
    let unopened = |a: &Absent| a.name == name && a.guid != found.guid;
    let exists = || {
        sentence(
            Kind::Exists,
            format!("cannot import '{name}': a pool with that name already exists"),
        )
        .hint("use the form 'zpool import <pool | id> <newpool>' to give it a new name")
    };
    if admin.absent().iter().any(unopened) {
        return Err(exists());
    }
    // Nobody else gets name or guid until the pool is in service.
    let claim = admin.claim(&name, found.guid).map_err(|e| match e.kind {
        Kind::Exists => exists(),
        _ => answer(e),
    })?;
    let seen = examine(admin, &found);
    // What will be refused anyway claims nothing.
    let goes_on = (ask.force || !seen.needs_force) && check_devices(&seen, &ask).is_ok();
    let write = goes_on && !wanted.readonly && !ask.dry_run;
    let activity = match activity::check(admin, &found, write, cancelled).map_err(answer)? {
        Verdict::Free(activity) => activity,
        Verdict::Refused(why) => return Err(activity::refusal(&name, &found, why)),
    };
    if seen.needs_force && !ask.force {
        return Err(last_used_elsewhere(admin, &seen));
    }
    check_devices(&seen, &ask).inspect_err(|_| {
        let class = match seen.needs_missing_log {
            true => "log_replay",
            false => "zpool",
        };
        tell_of_failure(admin, &found, class);
    })?;
    let options = OpenOptions {
        activity,
        ..open_options(admin, &ask, &wanted)
    };
    if cancelled() {
        return Err(cancel::refusal());
    }
    if ask.dry_run {
        return rehearse(admin, &found, options);
    }
    let pool = open(admin, &found, &ask, &options)?;
    let rewound = pool.rewound().filter(|_| !ask.checkpoint);
    let entry = admin
        .adopt(
            pool,
            wanted.altroot,
            wanted.cache_file,
            ask.mount_options.clone(),
        )
        .map_err(answer)?;
    drop(claim);
    // No export before everything is mounted.
    let _gate = entry.pass().map_err(answer)?;
    admin.events.pool(&entry.pool, "pool_import");
    let settled =
        settle(&entry.pool, wanted.comment, wanted.stored).and_then(|writable| match writable {
            true => entry.pool.log_import(&ask.command, u64::from(peer.uid)),
            false => Ok(()),
        });
    let listed = admin.forget_absent(entry.pool.guid());
    admin.rewrite_cache(listed);
    admin.update_cache(&entry);
    settled.map_err(answer)?;
    let failed_mounts = mount_all(admin, &entry, !ask.no_mount);
    // Of the state gone back to, the logs are not what was wanted.
    let unplayed = match entry.pool.is_readonly() && rewound.is_none() && !ask.checkpoint {
        true => entry.pool.unplayed_logs().unwrap_or_default(),
        false => Vec::new(),
    };
    Ok(Imported {
        name: entry.pool.name(),
        failed_mounts,
        rewound,
        unplayed,
    })
}

/// Whether a pool of that name, or with that guid, is in service.
fn is_imported(admin: &Admin, what: &str) -> bool {
    let guid = what.parse().ok();
    admin.find(what).is_some() || admin.pools().iter().any(|e| guid == Some(e.pool.guid()))
}

/// The first device of a pool that could be read, but not written.
fn read_only_device(admin: &Admin, f: &PoolFound) -> Option<String> {
    let paths = cache::device_paths(&f.config);
    paths.into_iter().find(|p| {
        let open = |access| admin.env.disks.open(p, access);
        let refused = |e: Error| {
            // The last: an image that is immutable.
            matches!(e.kind, Kind::ReadOnly | Kind::Access | Kind::NotPermitted)
        };
        open(Access::Exclusive).err().is_some_and(refused) && open(Access::Read).is_ok()
    })
}

fn is_damage(e: &Error) -> bool {
    matches!(e.kind, Kind::Damaged | Kind::Checksum | Kind::Io)
}

fn last_used_elsewhere(admin: &Admin, seen: &Importable) -> ApiError {
    let host = seen.hostname.as_deref().unwrap_or("another system");
    let when = match seen.last_access {
        0 => String::new(),
        t => format!(" at {}", admin.process.date(t)),
    };
    sentence(
        Kind::Busy,
        format!(
            "cannot import '{}': pool was previously in use from another system.\n\
             Last accessed by {host} (hostid={:x}){when}",
            seen.name, seen.hostid
        ),
    )
    .hint("The pool can be imported, use 'zpool import -f' to import the pool.")
}

/// The events tell that a pool could not be opened.
fn tell_of_failure(admin: &Admin, f: &PoolFound, class: &str) {
    let events = &admin.events;
    events.load_failed(class, &f.name, f.guid, Load::Import);
}

/// `-n`: whether it would work.
fn rehearse(admin: &Arc<Admin>, f: &PoolFound, options: OpenOptions) -> Answer<Imported> {
    let options = OpenOptions {
        readonly: true,
        ..options
    };
    let pool = Pool::open(admin.env.clone(), &f.config, options).map_err(answer)?;
    let rewound = pool.rewound();
    let name = pool.name();
    let _ = pool.close();
    Ok(Imported {
        name,
        failed_mounts: Vec::new(),
        rewound,
        unplayed: Vec::new(),
    })
}

/// Why a pool cannot be imported, and what can be done about it.
fn with_advice(
    admin: &Arc<Admin>,
    f: &PoolFound,
    ask: &PoolImport,
    options: &OpenOptions,
    e: Error,
) -> ApiError {
    if e.kind == Kind::Unsupported {
        let mut seen = examine(admin, f);
        try_load(admin, f, &mut seen);
        if let Some(refusal) = unsupported(&seen) {
            return refusal;
        }
    }
    let read_only = match e.kind == Kind::NoDevice && !options.readonly {
        true => read_only_device(admin, f),
        false => None,
    };
    if let Some(path) = read_only {
        return ApiError::reason(
            Kind::ReadOnly,
            format!("one or more devices is read only ({path})"),
        )
        .hint("The pool can be imported using '-o readonly=on'.");
    }
    if e.kind == Kind::NoDevice && !options.readonly {
        let in_use = |path: &String| match admin.env.disks.open(path, Access::Exclusive) {
            Err(e) if e.kind == Kind::Busy => Some(e.to_string()),
            _ => None,
        };
        let paths = cache::device_paths(&f.config);
        let busy: Vec<String> = paths.iter().filter_map(in_use).collect();
        if !busy.is_empty() {
            return answer(e).hint(busy.join("\n"));
        }
    }
    let damaged = is_damage(&e);
    let of_device = e.kind == Kind::Io;
    let e = answer(e);
    if !damaged || ask.checkpoint {
        return e;
    }
    let whole = OpenOptions {
        readonly: true,
        rewind: Rewind::No,
        ..options.clone()
    };
    if let Ok(pool) = Pool::open(admin.env.clone(), &f.config, whole) {
        let _ = pool.close();
        return e.hint(format!(
            "The pool itself can be read: see whether its devices can be written, and try again.\n\
             'zpool import -o readonly=on {}' imports it without writing.",
            ask.pool
        ));
    }
    if options.rewind == Rewind::No && ask.txg.is_none() {
        let dry = OpenOptions {
            readonly: true,
            rewind: Rewind::Safe,
            ..options.clone()
        };
        if let Ok(pool) = Pool::open(admin.env.clone(), &f.config, dry) {
            let rewound = pool.rewound();
            let _ = pool.close();
            if let Some((to, lost)) = rewound {
                return e.hint(format!(
                    "Recovery is possible, but will result in some data loss.\n\
                     Returning the pool to its state as of {}\n\
                     should correct the problem.  Approximately {lost} seconds of data\n\
                     must be discarded, irreversibly.  Recovery can be attempted\n\
                     by executing 'zpool import -F {}'.",
                    admin.process.date(to),
                    ask.pool
                ));
            }
        }
    }
    match of_device {
        true => e.hint("See whether its devices work, and try again."),
        false => e.hint("Destroy and re-create the pool from\na backup source."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use disk::NvList;

    fn found(name: &str, guid: u64) -> PoolFound {
        PoolFound {
            name: name.into(),
            guid,
            state: 1,
            version: 5000,
            txg: Txg::new(7),
            hostid: 0,
            hostname: String::new(),
            config: NvList::new(),
            problems: Vec::new(),
        }
    }

    #[test]
    fn by_name_or_guid() {
        let all = || vec![found("a", 1), found("b", 2), found("b", 3)];
        assert_eq!(choose(all(), "a").unwrap().guid, 1);
        assert_eq!(choose(all(), "3").unwrap().guid, 3);
        assert!(choose(all(), "b")
            .unwrap_err()
            .message
            .ends_with("more than one matching pool"));
        assert_eq!(
            choose(all(), "c").unwrap_err().message,
            "no such pool available"
        );
    }
}
