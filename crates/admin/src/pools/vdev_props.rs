//! `zpool get` and `zpool set` with vdevs: properties of vdevs (properties reference §12).

use super::devices::{begin, entry_of, failed, finish, sentence};
use super::tree::{aux_rows, Look};
use crate::errors::answer;
use crate::registry::Admin;
use api::{ApiError, Peer, Prop, Select, Source, Value, VdevClass, VdevGet, VdevProps, VdevSet};
use base::{sizes, Kind};
use disk::props;
use dsl::PropValue;
use pool::Pool;
use std::sync::Arc;
use vdev::{keys, Vdev, VdevKind};

/// Names of the root vdev.
const ROOT: [&str; 2] = ["root", "root-0"];
/// Begin of paths that can be set.
const DEVICES: &str = "/dev/";

/// What a property that can be set is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sort {
    /// on or off.
    Switch,
    /// A count of events or seconds, or none.
    Limit,
    /// Any text.
    Text,
}

/// The properties that are stored in the ZAP of a vdev, with their defaults.
const STORED: [(&str, Sort, Value); 9] = [
    ("comment", Sort::Text, Value::None),
    ("failfast", Sort::Switch, Value::Number(1)),
    ("checksum_n", Sort::Limit, Value::Number(u64::MAX)),
    ("checksum_t", Sort::Limit, Value::Number(u64::MAX)),
    ("io_n", Sort::Limit, Value::Number(u64::MAX)),
    ("io_t", Sort::Limit, Value::Number(u64::MAX)),
    ("slow_io_n", Sort::Limit, Value::Number(u64::MAX)),
    ("slow_io_t", Sort::Limit, Value::Number(u64::MAX)),
    ("slow_io_events", Sort::Switch, Value::Number(1)),
];

/// All native properties in the order of display.
const NATIVE: [&str; 51] = [
    "capacity",
    "state",
    "guid",
    "asize",
    "psize",
    "ashift",
    "size",
    "free",
    "allocated",
    "comment",
    "expandsize",
    "fragmentation",
    "bootsize",
    "parity",
    "path",
    "devid",
    "physpath",
    "encpath",
    "fru",
    "parent",
    "children",
    "numchildren",
    "read_errors",
    "write_errors",
    "checksum_errors",
    "initialize_errors",
    "null_ops",
    "read_ops",
    "write_ops",
    "free_ops",
    "claim_ops",
    "trim_ops",
    "null_bytes",
    "read_bytes",
    "write_bytes",
    "free_bytes",
    "claim_bytes",
    "trim_bytes",
    "removing",
    "allocating",
    "failfast",
    "checksum_n",
    "checksum_t",
    "io_n",
    "io_t",
    "raidz_expanding",
    "slow_io_n",
    "slow_io_t",
    "trim_support",
    "trim_errors",
    "slow_ios",
];

/// Further ones, behind those.
const LAST: [&str; 3] = [SIT_OUT, AUTOSIT, "slow_io_events"];

/// Of leaves and groups of RAID-Z and dRAID.
const SIT_OUT: &str = "sit_out";
const AUTOSIT: &str = "autosit";

/// Answers `VdevGet`.
///
/// # Errors
/// There is no such pool. Vdevs that are not there are among those that failed.
pub fn get(admin: &Arc<Admin>, ask: &VdevGet) -> Result<api::Answer<VdevProps>, ApiError> {
    let entry = entry_of(admin, &ask.pool)?;
    let pool = &entry.pool;
    let space = pool.space().stats();
    let look = Look {
        tree: pool.tree(),
        space: Some(&space),
        imported: true,
        histograms: false,
        resilver: None,
        wears: Some(pool),
        removed: false,
    };
    let mut rows = Vec::new();
    flatten(look.root(), &mut rows);
    rows.extend(aux_rows(pool));
    let mut out = api::Answer::default();
    if ask.vdevs.is_empty() {
        let below = rows.into_iter().skip(1);
        out.found = below.map(|v| described(pool, v, &ask.props)).collect();
        return Ok(out);
    }
    for name in &ask.vdevs {
        match rows.iter().find(|v| v.guid == guid_of(pool, &rows, name)) {
            Some(v) => out.found.push(described(pool, v.clone(), &ask.props)),
            None => {
                let why = ApiError::reason(Kind::NotFound, "no such device in pool");
                out.failed.push((name.clone(), why));
            }
        }
    }
    Ok(out)
}

/// Guid of the vdev that a user calls so; 0 if there is none.
fn guid_of(pool: &Pool, rows: &[api::Vdev], name: &str) -> u64 {
    if ROOT.contains(&name) {
        return pool.guid();
    }
    if let Some(v) = pool.tree().find_by_name(name) {
        return v.guid();
    }
    let is = |v: &&api::Vdev| {
        let path = v.path.as_deref().unwrap_or_default();
        path == name || path.strip_prefix(DEVICES) == Some(name) || v.guid.to_string() == name
    };
    rows.iter().find(is).map_or(0, |v| v.guid)
}

/// The vdev and all below it, parents first, each without those below it.
fn flatten(mut v: api::Vdev, out: &mut Vec<api::Vdev>) {
    let children = std::mem::take(&mut v.children);
    out.push(v);
    children.into_iter().for_each(|c| flatten(c, out));
}

fn described(pool: &Pool, vdev: api::Vdev, select: &Select) -> VdevProps {
    let node = pool.tree().find(vdev.guid);
    let of = Of {
        pool,
        row: &vdev,
        node,
    };
    let props = match select {
        Select::Nothing => Vec::new(),
        Select::These(names) => names.iter().map(|n| of.prop(n)).collect(),
        Select::All => {
            let native = NATIVE.iter().chain(&LAST);
            let mut all: Vec<Prop> = native.map(|n| of.prop(n)).collect();
            // What cannot be read is left out.
            let own = pool.vdev_user_props(vdev.guid).unwrap_or_default();
            all.extend(
                own.into_iter()
                    .map(|(n, v)| Prop::new(n, raw(v), Source::Local)),
            );
            all
        }
    };
    VdevProps { vdev, props }
}

fn raw(v: PropValue) -> Value {
    match v {
        PropValue::Int(n) => Value::Number(n),
        PropValue::Str(t) => Value::Text(t),
    }
}

fn on_off(on: bool) -> Value {
    Value::Text(if on { "on" } else { "off" }.into())
}

/// A vdev whose properties are asked for.
struct Of<'a> {
    pool: &'a Pool,
    row: &'a api::Vdev,
    /// None of the root, spares and caches.
    node: Option<Arc<Vdev>>,
}

impl Of<'_> {
    fn prop(&self, name: &str) -> Prop {
        if let Some((_, sort, default)) = STORED.iter().find(|(n, ..)| *n == name) {
            return self.stored(name, *sort, default);
        }
        if props::is_user(name) {
            let set = self.pool.vdev_prop(self.row.guid, name).ok().flatten();
            return match set.filter(|_| !pool::is_of_format(name)) {
                Some(v) => Prop::new(name, raw(v), Source::Local),
                None => Prop::new(name, Value::None, Source::Default),
            };
        }
        match name {
            "allocating" => return self.allocating(),
            SIT_OUT => return self.sit_out(),
            AUTOSIT if self.node.as_ref().is_some_and(|v| has_parity(v)) => {
                return self.stored(name, Sort::Switch, &Value::Number(0));
            }
            _ => {}
        }
        let value = match self.counter(name) {
            Some(n) => Value::Number(n),
            None => self.computed(name),
        };
        Prop::new(name, value, Source::None)
    }

    fn stored(&self, name: &str, sort: Sort, default: &Value) -> Prop {
        if self.pool.vdev_zap(self.row.guid).is_none() {
            return Prop::new(name, Value::None, Source::None);
        }
        let shown = |v: Value| match (sort, v) {
            (Sort::Switch, Value::Number(n)) => on_off(n != 0),
            (_, v) => v,
        };
        let set = self.pool.vdev_prop(self.row.guid, name).ok().flatten();
        match set.map(raw) {
            Some(v) if v != *default => Prop::new(name, shown(v), Source::Local),
            _ => Prop::new(name, shown(default.clone()), Source::Default),
        }
    }

    /// The top-level vdev, if it is one.
    fn top(&self) -> Option<&Arc<Vdev>> {
        let tops = self.pool.tree().tops();
        let is_top = |v: &&Arc<Vdev>| tops.iter().any(|t| t.guid() == v.guid());
        self.node.as_ref().filter(is_top)
    }

    fn allocating(&self) -> Prop {
        match self.top() {
            Some(t) => {
                let passive = t.get_u64(keys::NON_ALLOCATING).unwrap_or(0) != 0;
                let source = if passive {
                    Source::Local
                } else {
                    Source::Default
                };
                Prop::new("allocating", on_off(!passive), source)
            }
            None => Prop::new("allocating", Value::None, Source::None),
        }
    }

    fn sit_out(&self) -> Prop {
        let leaf = self.node.as_ref().filter(|v| v.kind().is_leaf());
        let all = self.pool.tree().all();
        let in_group = |v: &&Arc<Vdev>| {
            let mut groups = all.iter().filter(|g| has_parity(g));
            groups.any(|g| g.children().iter().any(|c| c.guid() == v.guid()))
        };
        match leaf.filter(in_group).map(|v| v.sits_out() != 0) {
            Some(true) => Prop::new(SIT_OUT, on_off(true), Source::Local),
            Some(false) => Prop::new(SIT_OUT, on_off(false), Source::Default),
            None => Prop::new(SIT_OUT, Value::None, Source::None),
        }
    }

    /// Counters and sizes.
    fn counter(&self, name: &str) -> Option<u64> {
        let s = &self.row.stats;
        Some(match name {
            "guid" => self.row.guid,
            "size" => s.space,
            "allocated" => s.alloc,
            "free" => s.space.saturating_sub(s.alloc),
            "capacity" => (u128::from(s.alloc) * 100)
                .checked_div(s.space.into())
                .unwrap_or(0) as u64,
            "expandsize" => s.esize,
            "bootsize" => 0,
            "read_errors" => s.read_errors,
            "write_errors" => s.write_errors,
            "checksum_errors" => s.checksum_errors,
            "initialize_errors" => s.initialize_errors,
            "trim_errors" => s.trim_errors,
            "slow_ios" => s.slow_ios,
            "read_ops" => s.read_ops,
            "write_ops" => s.write_ops,
            "trim_ops" => s.trim_ops,
            "read_bytes" => s.read_bytes,
            "write_bytes" => s.write_bytes,
            "trim_bytes" => s.trim_bytes,
            "null_ops" | "free_ops" | "claim_ops" => 0,
            "null_bytes" | "free_bytes" | "claim_bytes" => 0,
            "asize" => self.asize(),
            "psize" => self.psize(),
            "parity" => match self.node.as_ref()?.kind() {
                VdevKind::Raidz { nparity } | VdevKind::Draid { nparity, .. } => nparity as u64,
                _ => 0,
            },
            "numchildren" => match self.is_root() {
                true => self.pool.tree().tops().len() as u64,
                false => self.node.as_ref().map_or(0, |v| v.children().len() as u64),
            },
            "ashift" => self.row.stats.configured_ashift,
            _ => return None,
        })
    }

    fn is_root(&self) -> bool {
        self.row.kind == api::VdevKind::Root
    }

    /// Bytes that can be allocated: of a device its own, of a group what its configuration says.
    fn asize(&self) -> u64 {
        match &self.node {
            Some(v) if v.kind().is_leaf() => v.device_asize(),
            Some(v) if v.asize() != 0 => v.asize(),
            Some(v) => v.natural_asize(),
            None => 0,
        }
    }

    fn psize(&self) -> u64 {
        match &self.node {
            Some(v) if !v.kind().is_leaf() => {
                let leaves = v.leaves().into_iter();
                leaves.map(|l| l.device_asize()).min().unwrap_or(0)
            }
            _ => self.row.stats.physical,
        }
    }

    /// What OpenZFS calls a vdev in `parent` and `children`.
    fn name(v: &Vdev) -> String {
        let word = || format!("{}-{}", v.kind().type_name(), v.id());
        v.path().unwrap_or_else(word)
    }

    fn computed(&self, name: &str) -> Value {
        let text = |t: Option<String>| t.filter(|t| !t.is_empty()).map_or(Value::None, Value::Text);
        let node = self.node.as_ref();
        let key = |k: &str| text(node.and_then(|v| v.get_str(k)));
        match name {
            "state" => Value::Text(self.row.state.shown(self.row.aux).into()),
            "fragmentation" => match self.row.stats.fragmentation {
                Some(f) if self.pool.has_map_histograms() => Value::Number(f),
                _ => Value::None,
            },
            "alloc_bias" => match (self.top(), self.row.class) {
                (None, _) => Value::None,
                (_, VdevClass::Log) => Value::Text("log".into()),
                (_, VdevClass::Special) => Value::Text("special".into()),
                (_, VdevClass::Dedup) => Value::Text("dedup".into()),
                _ => Value::Text("none".into()),
            },
            "path" => text(self.row.path.clone()),
            "devid" => key(keys::DEVID),
            "physpath" => key(keys::PHYS_PATH),
            "encpath" => key("vdev_enc_sysfs_path"),
            "fru" => key("fru"),
            "parent" => text(node.map(|v| self.parent(v))),
            "children" => {
                let tops;
                let list = match (self.is_root(), node) {
                    (true, _) => {
                        tops = self.pool.tree().tops();
                        &tops[..]
                    }
                    (false, Some(v)) => v.children(),
                    (false, None) => &[],
                };
                let names: Vec<String> = list.iter().map(|c| Self::name(c)).collect();
                text(Some(names.join(",")))
            }
            "removing" => match node {
                Some(_) => on_off(self.row.stats.removing),
                None => Value::None,
            },
            "raidz_expanding" => {
                match node.filter(|v| matches!(v.kind(), VdevKind::Raidz { .. })) {
                    Some(v) => on_off(v.is_expanding()),
                    None => Value::None,
                }
            }
            "trim_support" => match node.filter(|v| v.kind().is_leaf()) {
                Some(v) => on_off(v.discards()),
                None => Value::None,
            },
            _ => Value::None,
        }
    }

    fn parent(&self, v: &Vdev) -> String {
        let all = self.pool.tree().all();
        let is_parent = |p: &&Arc<Vdev>| p.children().iter().any(|c| c.guid() == v.guid());
        match all.iter().find(is_parent) {
            Some(p) => Self::name(p),
            None => self.pool.name(),
        }
    }
}

/// Whether a vdev is a RAID-Z or a dRAID.
fn has_parity(v: &Vdev) -> bool {
    matches!(v.kind(), VdevKind::Raidz { .. } | VdevKind::Draid { .. })
}

/// Answers `VdevSet`.
///
/// # Errors
/// There is no such vdev or property, it cannot be set, or not to that value.
pub fn set(admin: &Arc<Admin>, peer: Peer, ask: &VdevSet) -> Result<(), ApiError> {
    let entry = entry_of(admin, &ask.pool)?;
    let name = ask.property.as_str();
    let action = format!(
        "cannot set property {name} for {} on {}",
        ask.vdev, ask.pool
    );
    let change = change(name, &ask.value).map_err(|why| failed(&action, Kind::Invalid, why))?;
    let _one = begin(&entry, &action)?;
    let pool = &entry.pool;
    let rows = aux_rows(pool);
    let guid = guid_of(pool, &rows, &ask.vdev);
    if guid == 0 {
        return Err(failed(&action, Kind::NotFound, "no such device in pool"));
    }
    let beside = |class: VdevClass| rows.iter().any(|v| v.guid == guid && v.class == class);
    if beside(VdevClass::Spare) && pool.tree().find(guid).is_none() || beside(VdevClass::Cache) {
        let why = "invalid argument for this pool operation";
        return Err(failed(&action, Kind::Invalid, why));
    }
    if name == AUTOSIT && !pool.tree().find(guid).is_some_and(|v| has_parity(&v)) {
        let why = "operation not supported on this type of vdev";
        return Err(failed(&action, Kind::Unsupported, why));
    }
    let done = match change {
        Change::Stored(value) => pool.set_vdev_prop(guid, name, value),
        Change::SitOut(on) => {
            let until = super::autosit::until(admin.env.clock.monotonic_ns());
            pool.sit_out(guid, if on { until } else { 0 })
        }
        Change::Allocating(on) => pool.set_allocating(guid, on),
        Change::Path(path) => {
            let leaf = pool.tree().find(guid).filter(|v| v.kind().is_leaf());
            if leaf.is_none() {
                let why = "operation not supported on this type of vdev";
                return Err(failed(&action, Kind::Unsupported, why));
            }
            match pool.rename_device(guid, &path).map_err(answer)? {
                true => pool.sync().map(drop),
                false => {
                    let why = format!("'{path}' is another device");
                    return Err(failed(&action, Kind::Invalid, why));
                }
            }
        }
    };
    done.map_err(sentence(&action))?;
    finish(admin, &entry, peer, &ask.command, ("", None))
}

/// What a property is to become.
enum Change {
    Stored(Option<PropValue>),
    Allocating(bool),
    SitOut(bool),
    Path(String),
}

/// Reads a value; or why it is none.
fn change(name: &str, value: &str) -> Result<Change, String> {
    if props::is_user(name) {
        props::check_user(name, value).map_err(|e| e.to_string())?;
        if pool::is_of_format(name) {
            return Err(format!("'{name}' is readonly"));
        }
        let value = (!value.is_empty()).then(|| PropValue::Str(value.into()));
        return Ok(Change::Stored(value));
    }
    let switch = || match value {
        "on" => Ok(1),
        "off" => Ok(0),
        _ => Err(format!("'{name}' must be one of 'off | on'")),
    };
    match name {
        "allocating" => return switch().map(|on| Change::Allocating(on != 0)),
        SIT_OUT => return switch().map(|on| Change::SitOut(on != 0)),
        AUTOSIT => return switch().map(|on| Change::Stored(Some(PropValue::Int(on)))),
        _ => {}
    }
    if name == "path" {
        return match value.starts_with(DEVICES) {
            true => Ok(Change::Path(value.into())),
            false => Err("a path begins with /dev/".into()),
        };
    }
    let Some((_, sort, _)) = STORED.iter().find(|(n, ..)| *n == name) else {
        return Err(
            match ["name", "alloc_bias"].contains(&name) || NATIVE.contains(&name) {
                true => format!("'{name}' is readonly"),
                false => format!("invalid property '{name}'"),
            },
        );
    };
    let stored = match sort {
        Sort::Switch => Some(PropValue::Int(switch()?)),
        Sort::Limit if value == "none" => None,
        Sort::Limit => {
            let n = sizes::parse(value).map_err(|_| format!("bad numeric value '{value}'"))?;
            Some(PropValue::Int(n))
        }
        Sort::Text if value.len() >= props::MAX_VALUE => {
            return Err(format!("property value '{value}' is too long"))
        }
        Sort::Text => (!value.is_empty()).then(|| PropValue::Str(value.into())),
    };
    Ok(Change::Stored(stored))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read_or_refused() {
        let stored = |name: &str, value: &str| match change(name, value) {
            Ok(Change::Stored(v)) => v,
            _ => panic!("{name}={value}"),
        };
        assert_eq!(stored("io_n", "7"), Some(PropValue::Int(7)));
        assert_eq!(stored("io_n", "none"), None);
        assert_eq!(stored("failfast", "off"), Some(PropValue::Int(0)));
        assert_eq!(stored("comment", "a b"), Some(PropValue::Str("a b".into())));
        assert_eq!(stored("com.example:x", ""), None);
        assert!(matches!(
            change("allocating", "off"),
            Ok(Change::Allocating(false))
        ));
        for (name, value, why) in [
            ("size", "1", "'size' is readonly"),
            ("name", "x", "'name' is readonly"),
            ("nope", "1", "invalid property 'nope'"),
            ("failfast", "yes", "'failfast' must be one of 'off | on'"),
            ("io_t", "x", "bad numeric value 'x'"),
            ("com.delphix:x", "1", "'com.delphix:x' is readonly"),
            ("path", "/tmp/x", "a path begins with /dev/"),
        ] {
            assert_eq!(change(name, value).err().as_deref(), Some(why), "{name}");
        }
    }
}
