//! `zpool list`, `get` and `status`: properties, features, state and vdev trees of pools.

use crate::compat::{self, Set};
use crate::datasets::{once, rights};
use crate::pools::tree::{aux_rows, expandable, imported_state, Look};
use crate::pools::{class_props, damage};
use crate::registry::{Absent, Admin, PoolEntry};
use api::{
    Answer, ApiError, Peer, PoolFacts, PoolGet, Prop, ScanState, Select, Source, Value, VdevState,
};
use base::sync::MutexExt;
use base::{Kind, Result, Txg};
use disk::feature::guid;
use disk::feature::{self, Feature};
use disk::props::{self, PoolProp, POOL};
use disk::scan::RebuildState;
use dsl::{Features, PropValue};
use env::Access;
use pool::Pool;
use space::{ClassStats, Stats};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::time::Duration;
use vdev::keys::pool as key;
use vdev::VdevTree;

/// Newest file system version.
const ZPL_VERSION: u64 = 5;

/// Answers `PoolGet`. A pool that is named several times is answered once.
pub fn get(admin: &Arc<Admin>, peer: Peer, ask: &PoolGet) -> Answer<api::Pool> {
    let mut ask = ask.clone();
    once(&mut ask.pools);
    if let Select::These(names) = &mut ask.props {
        once(names);
    }
    let ask = &ask;
    let owner = rights::is_owner(admin, peer);
    let mut out = Answer::default();
    let absent: Vec<Absent> = admin.absent().clone();
    if ask.pools.is_empty() {
        for entry in admin.pools() {
            out.found.push(describe(admin, &entry, ask, owner));
        }
        out.found
            .extend(absent.iter().map(|a| unopened(admin, a, ask)));
        out.found.sort_by(|a, b| a.name.cmp(&b.name));
        return out;
    }
    for name in &ask.pools {
        if let Some(a) = absent.iter().find(|a| a.name == *name) {
            out.found.push(unopened(admin, a, ask));
            continue;
        }
        match admin.find(name) {
            Some(entry) => out.found.push(describe(admin, &entry, ask, owner)),
            None => {
                let missing = ApiError::no_such_pool(name);
                out.failed.push((name.clone(), missing));
            }
        }
    }
    out
}

/// ONLINE, DEGRADED … or SUSPENDED.
pub fn health(entry: &PoolEntry) -> String {
    if entry.pool.suspended().is_some() {
        return "SUSPENDED".into();
    }
    imported_state(entry.pool.tree()).0.name().into()
}

fn describe(admin: &Arc<Admin>, entry: &Arc<PoolEntry>, ask: &PoolGet, owner: bool) -> api::Pool {
    let pool = &entry.pool;
    let _unwilling = entry.unwilling();
    if (ask.tree || ask.error_list) && !pool.is_waiting() && pool.suspended().is_none() {
        pool.forget_what_is_gone();
    }
    let wants_space = ask.tree || ask.props != Select::Nothing;
    let space = wants_space.then(|| pool.space().stats());
    let mut out = api::Pool {
        name: pool.name(),
        guid: pool.guid(),
        txg: pool.synced_txg().number(),
        version: pool.version(),
        zpl_version: ZPL_VERSION,
        health: health(entry),
        now_ns: admin.env.clock.monotonic_ns(),
        import_ns: entry.import_ns,
        error_count: pool.error_count(),
        ..api::Pool::default()
    };
    if let (Some(space), true) = (&space, ask.tree) {
        let look = Look {
            tree: pool.tree(),
            space: Some(space),
            imported: true,
            histograms: ask.histograms,
            resilver: being_filled(pool),
            wears: Some(pool),
            removed: ask.removed,
        };
        let mut root = look.root();
        root.children.extend(aux_rows(pool));
        out.tree = Some(root);
        out.facts = facts(entry);
        out.removal = removal(pool);
        out.expansion = expansion(pool, space);
        out.rebuilds = pool.rebuilds().iter().map(rebuild).collect();
        out.scan = damage::scan(pool);
        out.error_scrub = damage::error_scrub(pool);
        out.checkpoint = checkpoint(pool);
    }
    if ask.error_list {
        out.error_list = damage::files(entry, owner);
    }
    if ask.dedup {
        out.dedup = dedup_tables(admin, entry, ask.dedup_cached).ok();
    }
    if let Some(space) = &space {
        out.props = Getter::new(admin, entry, space).select(&ask.props);
    }
    out
}

/// What `zpool status -D` tells.
fn dedup_tables(admin: &Admin, entry: &PoolEntry, cached: bool) -> Result<api::DedupTables> {
    let ddt = &entry.pool.shares().ddt;
    let s = unless_stuck(admin, entry, || ddt.try_stats())??;
    let mut histogram = s.histogram.0;
    let used = histogram.iter().rposition(|n| *n != 0).map_or(0, |n| n + 1);
    histogram.truncate(used.next_multiple_of(8));
    Ok(api::DedupTables {
        entries: s.entries,
        on_disk: s.on_disk,
        in_core: s.in_core,
        cached: match cached {
            true => Some(ddt.cached()?.min(s.in_core)),
            false => None,
        },
        histogram,
    })
}

/// What a txg has to itself while it is written, as soon as it is free.
///
/// Errors: suspended, if the txg waits for a device; whoever asked has gone.
fn unless_stuck<T>(admin: &Admin, entry: &PoolEntry, figures: impl Fn() -> Option<T>) -> Result<T> {
    loop {
        if let Some(found) = figures() {
            return Ok(found);
        }
        if entry.pool.suspended().is_some() || crate::cancel::is_cancelled() {
            return Err(base::Kind::Suspended.into());
        }
        admin.process.pause(TICK, &|| false);
    }
}

/// The txgs that devices are given now: all of them by a sequential rebuild.
fn being_filled(pool: &Pool) -> Option<(Txg, Txg)> {
    let txgs = match pool.is_rebuilding() {
        true => Some((Txg::NONE, Txg::MAX)),
        false => pool.resilvered_txgs(),
    };
    txgs.filter(|_| !pool.is_readonly())
}

/// The newest removal; one whose record cannot be read is not shown.
fn removal(pool: &Pool) -> Option<api::Removal> {
    let r = pool.removal().ok()??;
    Some(api::Removal {
        state: damage::scan_state(r.state),
        vdev: r.vdev.unwrap_or(u64::MAX),
        start: r.start,
        end: r.end,
        to_copy: r.to_copy,
        copied: r.copied,
        goes_on: pool.is_removing(),
        mapping_memory: pool.mapping_bytes(),
    })
}

/// The checkpoint, or what is left of one.
fn checkpoint(pool: &Pool) -> Option<api::Checkpoint> {
    let c = &pool.shares().checkpoint;
    let discarding = c.is_discarding();
    (discarding || c.txg().is_some()).then(|| api::Checkpoint {
        discarding,
        created: c.created(),
        space: c.kept_sum(),
    })
}

/// The newest expansion; likewise.
fn expansion(pool: &Pool, space: &Stats) -> Option<api::Expansion> {
    let e = pool.expansion().ok()??;
    let used = space.vdevs.iter().find(|s| s.id == e.vdev);
    Some(api::Expansion {
        state: damage::scan_state(e.state),
        vdev: e.vdev,
        start: e.start,
        end: e.end,
        to_reflow: used.map_or(0, |s| s.allocated),
        reflowed: pool.expansion_progress().map_or(e.copied, |(done, _)| done),
        waiting: pool.expansion_waits(),
        stopped: pool.is_readonly(),
    })
}

/// A sequential rebuild.
fn rebuild(r: &pool::Rebuild) -> api::Rebuild {
    api::Rebuild {
        state: match r.state {
            RebuildState::Active => ScanState::Scanning,
            RebuildState::Canceled => ScanState::Canceled,
            RebuildState::Complete => ScanState::Finished,
            RebuildState::None | RebuildState::Unknown(_) => ScanState::None,
        },
        vdev: r.vdev,
        start: r.start,
        end: r.end,
        to_scan: r.estimate,
        scanned: r.scanned,
        issued: r.issued,
        rebuilt: r.rebuilt,
        errors: r.errors,
        time_ms: r.time_ms,
        pass_ms: r.pass_ms,
        pass_scanned: r.pass_scanned,
        pass_issued: r.pass_issued,
        pass_skipped: r.pass_skipped,
    }
}

/// A pool of the cache file that could not be opened: what its configuration and devices say.
fn unopened(admin: &Arc<Admin>, a: &Absent, ask: &PoolGet) -> api::Pool {
    let number = |key: &str| a.config.get_u64(key).unwrap_or(0);
    let now_ns = admin.env.clock.monotonic_ns();
    let mut out = api::Pool {
        name: a.name.clone(),
        guid: a.guid,
        txg: number(key::TXG),
        version: number(key::VERSION),
        zpl_version: ZPL_VERSION,
        health: "UNAVAIL".into(),
        now_ns,
        import_ns: now_ns,
        ..api::Pool::default()
    };
    let tree = a
        .config
        .need_nvlist(key::VDEV_TREE)
        .and_then(|t| VdevTree::from_config(admin.env.clone(), t));
    if let (Ok(tree), true) = (tree, ask.tree) {
        tree.open(Access::Read);
        tree.validate(Txg::MAX, true);
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
        tree.close();
        if root.state >= VdevState::Degraded {
            // The devices are there: it is the pool that is damaged, or in use elsewhere.
            root.state = VdevState::CantOpen;
            out.facts.corrupt_metadata = a.error.kind != Kind::Busy;
        }
        out.tree = Some(root);
    }
    let names: Vec<String> = match &ask.props {
        Select::Nothing => Vec::new(),
        Select::These(names) => names.clone(),
        Select::All => POOL.iter().map(|p| p.name.to_string()).collect(),
    };
    for name in names {
        let value = match name.as_str() {
            "name" => a.name.clone().into(),
            "guid" => Value::Number(a.guid),
            "health" => out.health.clone().into(),
            _ => Value::None,
        };
        out.props.push(Prop::new(name, value, Source::None));
    }
    out
}

/// A key of the configuration such as `comment`.
pub fn extra(entry: &PoolEntry, key: &str) -> Option<String> {
    let shared = entry.pool.shared();
    shared
        .extra
        .iter()
        .find(|(k, _)| k == key)
        .map(|(_, v)| v.clone())
}

/// Features that an upgrade would enable, within the pool's compatibility set.
pub fn disabled_features(pool: &Pool, set: &Set) -> Vec<&'static Feature> {
    lacking(pool, set, true)
}

/// Supported features that are not enabled, within the pool's compatibility set: those that an upgrade
/// enables, or (`by_default` false) the others.
fn lacking(pool: &Pool, set: &Set, by_default: bool) -> Vec<&'static Feature> {
    let Some(store) = pool.feature_store() else {
        return Vec::new();
    };
    let is_lacking = |f: &&Feature| {
        f.supported && f.default_on == by_default && set.allows(f) && !store.is_enabled(f.guid)
    };
    feature::FEATURES.iter().filter(is_lacking).collect()
}

fn facts(entry: &PoolEntry) -> PoolFacts {
    let suspended = entry.pool.suspended().is_some();
    let mut out = PoolFacts {
        suspended,
        stopped: entry.pool.stopped().is_some(),
        suspended_why: entry.pool.suspended().map(|e| e.to_string()),
        // What cannot be read now is said elsewhere.
        errata: match suspended {
            true => 0,
            false => entry.pool.errata().unwrap_or(0),
        },
        ..PoolFacts::default()
    };
    let set = match compat::load(&extra(entry, "compatibility").unwrap_or_default()) {
        Ok(set) => set,
        Err(e) => {
            out.bad_compatibility = Some(e.to_string());
            return out;
        }
    };
    let name = |f: &&'static Feature| f.name.to_string();
    let names = |by_default| -> Vec<String> {
        let list = lacking(&entry.pool, &set, by_default);
        list.iter().map(name).collect()
    };
    out.disabled_features = names(true);
    out.features_on_request = names(false);
    if let (Set::These(_), Some(store)) = (&set, entry.pool.feature_store()) {
        out.incompatible_features = feature::FEATURES
            .iter()
            .filter(|f| store.is_enabled(f.guid) && !set.allows(f))
            .map(|f| f.name.to_string())
            .collect();
    }
    out
}

/// How often it is looked whether the tables of a pool are free.
const TICK: Duration = Duration::from_millis(2);

struct Getter<'a> {
    admin: &'a Arc<Admin>,
    entry: &'a Arc<PoolEntry>,
    space: &'a Stats,
    /// None if they cannot be read: a pool without its devices is shown all the same.
    stored: Option<Vec<(String, PropValue)>>,
}

impl<'a> Getter<'a> {
    fn new(admin: &'a Arc<Admin>, entry: &'a Arc<PoolEntry>, space: &'a Stats) -> Self {
        Getter {
            admin,
            entry,
            space,
            stored: entry.pool.stored_props().ok(),
        }
    }

    /// A property of the pool's that is stored.
    fn stored(&self, name: &str) -> Option<&PropValue> {
        let all = self.stored.as_ref()?;
        all.iter().find(|(n, _)| n == name).map(|(_, v)| v)
    }

    fn select(&self, what: &Select) -> Vec<Prop> {
        match what {
            Select::Nothing => Vec::new(),
            Select::These(names) => names.iter().map(|n| self.by_name(n)).collect(),
            Select::All => {
                let mut out = Vec::new();
                for p in POOL.iter().filter(|p| !p.hidden) {
                    out.push(self.native(p));
                }
                out.extend(feature::FEATURES.iter().map(|f| self.feature(f)));
                if self.entry.pool.feature_store().is_some() {
                    out.extend(self.unknown_features());
                }
                let stored = self.stored.iter().flatten();
                for (name, value) in stored.filter(|(n, _)| n.contains(':')) {
                    out.push(Prop::new(name, raw(value), Source::Local));
                }
                out
            }
        }
    }

    fn by_name(&self, name: &str) -> Prop {
        if let Some(short) = name.strip_prefix("feature@") {
            return match feature::by_name(short) {
                Some(f) => self.feature(f),
                None => Prop::new(name, Value::None, Source::None),
            };
        }
        if let Some(guid) = name.strip_prefix("unsupported@") {
            let all = self.unknown_features();
            let found = all.into_iter().find(|p| p.name == name);
            return found.unwrap_or_else(|| {
                Prop::new(format!("unsupported@{guid}"), Value::None, Source::None)
            });
        }
        if let Some(value) = class_props::value(&self.entry.pool, self.space, name) {
            return Prop::new(name, value, Source::None);
        }
        if let Some(n) = self.cache(name) {
            return Prop::new(name, Value::Number(n), Source::None);
        }
        if let "dedupused" | "dedupsaved" = name {
            return self.dedup(name);
        }
        match props::pool(name) {
            Some(p) => self.native(p),
            None => match self.stored(name) {
                Some(v) => Prop::new(name, raw(v), Source::Local),
                None => Prop::new(name, Value::None, Source::Default),
            },
        }
    }

    /// A counter of the cache devices.
    fn cache(&self, name: &str) -> Option<u64> {
        let pool = &self.entry.pool;
        let c = pool.cache_counters();
        let count = |n: &AtomicU64| n.load(Ordering::Relaxed);
        Some(match name {
            "l2_hits" => count(&c.hits),
            "l2_misses" => count(&c.misses),
            "l2_read_bytes" => count(&c.read_bytes),
            "l2_write_bytes" => count(&c.written_bytes),
            "l2_cksum_bad" => count(&c.wrong),
            "l2_asize" => pool.cache_sizes().0,
            "l2_hdr_size" => pool.cache_sizes().1,
            _ => return None,
        })
    }

    /// Space of deduplicated blocks, or what deduplication saves.
    fn dedup(&self, name: &str) -> Prop {
        let ddt = &self.entry.pool.shares().ddt;
        let value = match self.unless_stuck(|| ddt.try_total()) {
            Ok(t) if name == "dedupused" => Value::Number(t[3]),
            Ok(t) => Value::Number(t[7].saturating_sub(t[3])),
            Err(_) => Value::None,
        };
        Prop::new(name, value, Source::None)
    }

    fn feature(&self, f: &Feature) -> Prop {
        let count = self
            .entry
            .pool
            .feature_store()
            .and_then(|s| s.count(f.guid));
        let word = match count {
            None => "disabled",
            Some(0) => "enabled",
            Some(_) => "active",
        };
        Prop::new(format!("feature@{}", f.name), word, Source::Local)
    }

    /// Features of other software found in the pool.
    fn unknown_features(&self) -> Vec<Prop> {
        let list = self
            .entry
            .pool
            .feature_store()
            .map(|s| s.list())
            .unwrap_or_default();
        list.into_iter()
            .filter(|(guid, ..)| feature::by_guid(guid).is_none())
            .map(|(guid, count, _)| {
                let word = if count == 0 { "inactive" } else { "readonly" };
                Prop::new(format!("unsupported@{guid}"), word, Source::Local)
            })
            .collect()
    }

    /// One that cannot be read has no value.
    fn native(&self, p: &PoolProp) -> Prop {
        if p.in_zap && self.stored.is_some() {
            return self.in_zap(p);
        }
        let found = match p.in_zap {
            true => None,
            false => self.computed(p.name).ok(),
        };
        let (value, source) = found.unwrap_or((Value::None, Source::None));
        Prop::new(p.name, value, source)
    }

    fn in_zap(&self, p: &PoolProp) -> Prop {
        let stored = self.stored(p.name);
        let default = p.default.value();
        let (value, source) = match (stored, &default) {
            (Some(v), _) => (v.clone(), Source::Local),
            (None, Some(d)) => {
                let v = match d {
                    props::PropValue::Number(n) => PropValue::Int(*n),
                    props::PropValue::Text(t) => PropValue::Str(t.clone()),
                };
                (v, Source::Default)
            }
            (None, None) => return Prop::new(p.name, Value::None, Source::None),
        };
        // Set, but to what is the default anyway.
        let source = match (&value, default.as_ref()) {
            (PropValue::Int(n), Some(props::PropValue::Number(d))) if n == d => Source::Default,
            _ => source,
        };
        let value = match (p.name, &value) {
            ("bootfs", PropValue::Int(object)) => {
                match self.entry.pool.dataset_by_object(*object) {
                    Ok(ds) if *object != 0 => Value::Text(ds.full_name()),
                    _ => Value::None,
                }
            }
            (_, PropValue::Int(n)) if matches!(p.kind, props::Kind::Index(_)) => {
                Value::Text(p.kind.print(&props::PropValue::Number(*n)))
            }
            ("dedup_table_quota", PropValue::Int(n @ (0 | u64::MAX))) => {
                Value::Text(p.print(&props::PropValue::Number(*n)))
            }
            (_, PropValue::Str(t)) if t.is_empty() => Value::None,
            (_, v) => raw(v),
        };
        Prop::new(p.name, value, source)
    }

    fn computed(&self, name: &str) -> Result<(Value, Source)> {
        let pool = &self.entry.pool;
        let (brt, ddt) = (&pool.shares().brt, &pool.shares().ddt);
        let s = self.space;
        let classes = [&s.normal, &s.special, &s.dedup, &s.embedded_log];
        let sum = |f: fn(&ClassStats) -> u64| classes.iter().map(|c| f(c)).sum::<u64>();
        let size = sum(|c| c.size);
        let allocated = sum(|c| c.allocated + c.deferred);
        let text = |t: Option<String>, source| match t.filter(|t| !t.is_empty()) {
            Some(t) => (Value::Text(t), source),
            None => (Value::None, Source::Default),
        };
        let number = |n: u64| (Value::Number(n), Source::None);
        Ok(match name {
            "name" => (pool.name().into(), Source::None),
            "size" => number(size),
            "allocated" => number(allocated),
            "free" => number(size.saturating_sub(allocated)),
            "capacity" => number(
                (u128::from(allocated) * 100)
                    .checked_div(size.into())
                    .unwrap_or(0) as u64,
            ),
            "health" => (health(self.entry).into(), Source::None),
            "guid" => number(pool.guid()),
            "load_guid" => number(self.entry.load_guid),
            "version" => match pool.version() {
                5000 => (Value::Number(5000), Source::Default),
                v => (Value::Number(v), Source::Local),
            },
            "altroot" => text(
                self.entry.altroot.as_ref().map(|p| p.display().to_string()),
                Source::Local,
            ),
            "cachefile" => {
                let file = self.entry.cache_file.acquire();
                match &*file {
                    None => (Value::Text("none".into()), Source::Local),
                    Some(f) if *f == self.admin.settings.paths.cache_file => {
                        (Value::None, Source::Default)
                    }
                    Some(f) => (Value::Text(f.display().to_string()), Source::Local),
                }
            }
            "readonly" => {
                let word = if pool.is_readonly() { "on" } else { "off" };
                (word.into(), Source::None)
            }
            "comment" => text(extra(self.entry, "comment"), Source::Local),
            "compatibility" => match extra(self.entry, "compatibility") {
                Some(t) => (Value::Text(t), Source::Local),
                None => ("off".into(), Source::Default),
            },
            "tname" => {
                let shared = pool.shared();
                let temporary = shared.label_name.is_some().then(|| shared.name.clone());
                text(temporary, Source::Local)
            }
            "expandsize" => number(
                pool.tree()
                    .tops()
                    .iter()
                    .filter(|t| t.is_concrete() && !t.is_log())
                    .map(|t| expandable(t))
                    .sum(),
            ),
            "fragmentation" => match s.fragmentation {
                Some(f) if pool.has_map_histograms() => number(f),
                _ => (Value::None, Source::None),
            },
            "freeing" => number(pool.dsl().freeing()?),
            "leaked" => number(pool.dsl().leaked()?),
            "checkpoint" if pool.shares().checkpoint.txg().is_some() => {
                number(pool.shares().checkpoint.kept_sum())
            }
            "bcloneused" => number(self.unless_stuck(|| brt.try_used_and_saved())?.0),
            "bclonesaved" => number(self.unless_stuck(|| brt.try_used_and_saved())?.1),
            "bcloneratio" => {
                let (used, saved) = self.unless_stuck(|| brt.try_used_and_saved())?;
                number(ratio(used.saturating_add(saved), used))
            }
            "dedup_table_size" => number(self.unless_stuck(|| ddt.try_size())??),
            "dedupratio" => {
                let t = self.unless_stuck(|| ddt.try_total())?;
                number(ratio(t[7], t[3]))
            }
            "dedupditto" => number(0),
            "dedupcached" => number(ddt.cached()?),
            "last_scrubbed_txg" => number(pool.last_scrubbed_txg()?),
            "maxblocksize" => number(self.limit(guid::LARGE_BLOCKS, 16 << 20, 128 << 10)),
            "maxdnodesize" => number(self.limit(guid::LARGE_DNODE, 16 << 10, 512)),
            _ => (Value::None, Source::None),
        })
    }

    fn unless_stuck<T>(&self, figures: impl Fn() -> Option<T>) -> Result<T> {
        unless_stuck(self.admin, self.entry, figures)
    }

    fn limit(&self, guid: &str, with: u64, without: u64) -> u64 {
        match self.entry.pool.feature_store() {
            Some(s) if s.is_enabled(guid) => with,
            _ => without,
        }
    }
}

fn raw(v: &PropValue) -> Value {
    match v {
        PropValue::Int(n) => Value::Number(*n),
        PropValue::Str(t) => Value::Text(t.clone()),
    }
}

/// Hundredths; 100 where there is nothing.
fn ratio(all: u64, once: u64) -> u64 {
    match once {
        0 => 100,
        n => ((u128::from(all) * 100) / u128::from(n)).min(u64::MAX.into()) as u64,
    }
}
