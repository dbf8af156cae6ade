//! Storage and inheritance of properties (data format §14), and the effect of the four properties
//! that limit space (§16). Callers know which properties exist and what their values mean.

use crate::core::{Core, Triple};
use crate::prop_values::{load, own_value, OwnProps, HAS_RECVD, INHERIT, IUV, RECVD};
use crate::{limits, Dataset, Dir, Dsl, PropSource, PropValue};
use base::{bail, Result};
use disk::dsl::Used;
use disk::ObjType;
use dmu::{Dnode, Tx};
use std::collections::BTreeMap;
use std::sync::Arc;
use zap::Zap;

/// How a property is to be changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PropChange {
    /// Set here.
    Local(PropValue),
    /// Inherit, also if a value was received.
    Inherit,
    /// A stream brought this value.
    Received(PropValue),
    /// Forget the local value, so that a received one shows.
    RevertToReceived,
    /// Forget the value a stream brought.
    ForgetReceived,
}

/// One property of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prop {
    /// Name.
    pub name: String,
    /// Value as it is stored.
    pub value: PropValue,
    /// Where the value comes from.
    pub source: PropSource,
}

/// Index properties whose newer values older software must not stumble over.
fn needs_iuv(name: &str, v: &PropValue) -> bool {
    match name {
        "redundant_metadata" => matches!(v.int(), Some(2 | 3)),
        "snapdir" => v.int() == Some(2),
        _ => false,
    }
}

impl Dir {
    /// A property's value and source; `None` = the default.
    pub fn prop(&self, name: &str, inheritable: bool) -> Result<Option<(PropValue, PropSource)>> {
        if let Some(v) = own_value(&*self.own_props()?, name) {
            return Ok(Some(v));
        }
        match inheritable {
            true => inherited(self.parent(), name),
            false => Ok(None),
        }
    }
}

fn inherited(from: Option<Arc<Dir>>, name: &str) -> Result<Option<(PropValue, PropSource)>> {
    let mut at = from;
    while let Some(d) = at {
        if let Some((v, _)) = own_value(&*d.own_props()?, name) {
            return Ok(Some((v, PropSource::Inherited(d.full_name()))));
        }
        at = d.parent();
    }
    Ok(None)
}

impl Dataset {
    fn snap_props(&self) -> Result<OwnProps> {
        match self.phys().props_obj {
            0 => Ok(OwnProps::new()),
            o => load(&self.core.hold(o)?),
        }
    }

    /// A property's value and source; `None` = the default. A snapshot inherits from its file system.
    pub fn prop(&self, name: &str, inheritable: bool) -> Result<Option<(PropValue, PropSource)>> {
        if !self.is_snapshot() {
            return self.dir().prop(name, inheritable);
        }
        if let Some(v) = own_value(&self.snap_props()?, name) {
            return Ok(Some(v));
        }
        match inheritable {
            true => inherited(Some(self.dir()), name),
            false => Ok(None),
        }
    }

    /// The value a stream brought, shown or hidden.
    pub fn received_prop(&self, name: &str) -> Result<Option<PropValue>> {
        let key = format!("{name}{RECVD}");
        match self.is_snapshot() {
            true => Ok(self.snap_props()?.get(&key).cloned()),
            false => Ok(self.dir().own_props()?.get(&key).cloned()),
        }
    }

    /// Names of properties with a received value, and with `local` of those set here, each once.
    ///
    /// Errors: the properties cannot be read.
    pub fn received_names(&self, local: bool) -> Result<Vec<String>> {
        let names = |own: &OwnProps| -> Vec<String> {
            let mut out: Vec<String> = own
                .keys()
                .filter(|k| *k != HAS_RECVD)
                .filter_map(|k| match k.split_once('$') {
                    Some((name, "recvd")) => Some(name.to_string()),
                    Some(_) => None,
                    None => local.then(|| k.clone()),
                })
                .collect();
            out.sort();
            out.dedup();
            out
        };
        Ok(match self.is_snapshot() {
            true => names(&self.snap_props()?),
            false => names(&*self.dir().own_props()?),
        })
    }

    /// The properties that are stored here and not inherited, in the order of their entries on disk, as OpenZFS sends
    /// them: local values, and received ones that no local value hides. With `received` only those that a stream brought,
    /// hidden or not.
    pub fn own_values(&self, received: bool) -> Result<Vec<(String, PropValue)>> {
        let (own, object) = match self.is_snapshot() {
            true => (Arc::new(self.snap_props()?), self.phys().props_obj),
            false => (self.dir().own_props()?, self.dir().phys().props_zapobj),
        };
        let mut out = Vec::new();
        if object == 0 {
            return Ok(out);
        }
        for entry in Zap::new(&self.core.hold(object)?).iter() {
            let key = entry?.text();
            let name = key.split('$').next().unwrap_or(&key);
            let is_received = key.ends_with(RECVD) && key != HAS_RECVD;
            // Each has one entry that its value comes from.
            let value = match received {
                true if is_received => own.get(&key).cloned(),
                false if is_received && !own.contains_key(name) || key == name => {
                    own_value(&own, name).map(|(v, _)| v)
                }
                _ => None,
            };
            out.extend(value.map(|v| (name.to_string(), v)));
        }
        Ok(out)
    }

    /// Whether a stream with properties was received into this dataset.
    pub fn has_received(&self) -> Result<bool> {
        match self.is_snapshot() {
            true => Ok(self.snap_props()?.contains_key(HAS_RECVD)),
            false => Ok(self.dir().own_props()?.contains_key(HAS_RECVD)),
        }
    }

    /// Every property stored here or inherited, in order of name. `inheritable` knows which native
    /// ones are; user properties (with a colon) always are.
    pub fn props(&self, inheritable: &dyn Fn(&str) -> bool) -> Result<Vec<Prop>> {
        let mut out: BTreeMap<String, Prop> = BTreeMap::new();
        let mut hidden = std::collections::BTreeSet::new();
        let mut take = |p: &OwnProps, from: Option<&Arc<Dir>>| {
            let mut names: Vec<&str> = Vec::new();
            for key in p.keys().filter(|k| *k != HAS_RECVD) {
                names.push(key.split('$').next().unwrap_or(key));
            }
            names.dedup();
            for n in names {
                let may = from.is_none() || n.contains(':') || inheritable(n);
                if !may || out.contains_key(n) || hidden.contains(n) {
                    continue;
                }
                if let Some((value, source)) = own_value(p, n) {
                    let source = match from {
                        None => source,
                        Some(d) => PropSource::Inherited(d.full_name()),
                    };
                    let name = n.to_string();
                    out.insert(
                        name.clone(),
                        Prop {
                            name,
                            value,
                            source,
                        },
                    );
                } else if from.is_none() && !(n.contains(':') || inheritable(n)) {
                    hidden.insert(n.to_string());
                }
            }
        };
        let dir = self.dir();
        let mut at = if self.is_snapshot() {
            take(&self.snap_props()?, None);
            Some(dir)
        } else {
            take(&*dir.own_props()?, None);
            dir.parent()
        };
        while let Some(d) = at {
            take(&*d.own_props()?, Some(&d));
            at = d.parent();
        }
        Ok(out.into_values().collect())
    }
}

impl Core {
    fn change(
        &self,
        tx: &Tx,
        dn: &Arc<Dnode>,
        own: &OwnProps,
        name: &str,
        change: &PropChange,
    ) -> Result<()> {
        let zap = Zap::new(dn);
        let has = |suffix: &str| own.contains_key(&format!("{name}{suffix}"));
        let drop_key = |suffix: &str| match has(suffix) {
            true => zap.remove_if(tx, &format!("{name}{suffix}")).map(|_| ()),
            false => Ok(()),
        };
        let received = self.version() >= 22;
        match change {
            PropChange::Local(v) => {
                drop_key(INHERIT)?;
                drop_key(IUV)?;
                if received && needs_iuv(name, v) {
                    zap.update(tx, &format!("{name}{IUV}"), &v.to_zap())?;
                }
                zap.update(tx, name, &v.to_zap())
            }
            PropChange::Inherit => {
                drop_key("")?;
                drop_key(IUV)?;
                if own.contains_key(HAS_RECVD) && received {
                    zap.update_u64(tx, &format!("{name}{INHERIT}"), 0)?;
                }
                Ok(())
            }
            PropChange::Received(v) => zap.update(tx, &format!("{name}{RECVD}"), &v.to_zap()),
            PropChange::RevertToReceived => {
                drop_key("")?;
                drop_key(IUV)?;
                drop_key(INHERIT)
            }
            PropChange::ForgetReceived => drop_key(RECVD),
        }
    }
}

impl Dsl {
    /// Changes a property of a head or snapshot. Names and values have been checked, the space limits
    /// are checked here. Effects of other properties on open object sets are the caller's.
    pub fn set_prop(
        &self,
        tx: &Tx,
        ds: &Arc<Dataset>,
        name: &str,
        change: &PropChange,
    ) -> Result<()> {
        self.core.need_syncing(tx)?;
        if matches!(change, PropChange::Received(_)) && self.core.version() < 22 {
            bail!(Unsupported, "received values need pool version 22");
        }
        let value = match change {
            PropChange::Local(v) | PropChange::Received(v) => v.to_string(),
            PropChange::Inherit | PropChange::RevertToReceived | PropChange::ForgetReceived => {
                String::new()
            }
        };
        let event = match change {
            PropChange::Local(_) | PropChange::Received(_) => "set",
            PropChange::Inherit | PropChange::RevertToReceived | PropChange::ForgetReceived => {
                "inherit"
            }
        };
        if ds.is_snapshot() {
            self.set_snap_prop(tx, ds, name, change)?;
            self.core.note(event, ds, format!("{name}={value}"));
            return Ok(());
        }
        let dir = ds.dir();
        let own = dir.own_props()?;
        let old = ds.ref_limits();
        // What will be effective, to check it before anything is changed.
        let mut then = (*own).clone();
        match change {
            PropChange::Local(v) => {
                then.insert(name.into(), v.clone());
            }
            PropChange::Received(v) => {
                then.insert(format!("{name}{RECVD}"), v.clone());
            }
            PropChange::Inherit => {
                then.remove(name);
                then.insert(format!("{name}{INHERIT}"), PropValue::Int(0));
            }
            PropChange::RevertToReceived => {
                then.remove(name);
                then.remove(&format!("{name}{INHERIT}"));
            }
            PropChange::ForgetReceived => {
                then.remove(&format!("{name}{RECVD}"));
            }
        }
        let effective = own_value(&then, name).and_then(|(v, _)| v.int());
        self.check_limit(ds, name, effective.unwrap_or(0))?;
        if matches!(name, "filesystem_limit" | "snapshot_limit")
            && effective.is_some_and(|n| n != u64::MAX)
        {
            limits::check_enabled(&dir)?;
            self.core.must(limits::activate(tx, &dir))?;
        }
        let field = matches!(name, "quota" | "reservation");
        if !(field && self.core.version() < 22) {
            let dn = self.core.hold(dir.phys().props_zapobj)?;
            self.core
                .must(self.core.change(tx, &dn, &own, name, change))?;
            dir.cache_props(None);
        }
        self.core
            .must(self.apply_limit(tx, ds, name, effective.unwrap_or(0), old))?;
        self.core.note(event, ds, format!("{name}={value}"));
        Ok(())
    }

    fn set_snap_prop(
        &self,
        tx: &Tx,
        ds: &Arc<Dataset>,
        name: &str,
        change: &PropChange,
    ) -> Result<()> {
        if self.core.version() < 12 {
            bail!(Unsupported, "properties of snapshots need version 12");
        }
        let own = ds.snap_props()?;
        let dn = match ds.phys().props_obj {
            0 => {
                let dn = self.core.new_zap(tx, ObjType::DSL_PROPS, 0)?;
                ds.update(tx, |p| p.props_obj = dn.object())?;
                dn
            }
            o => self.core.hold(o)?,
        };
        self.core.change(tx, &dn, &own, name, change)?;
        if Zap::new(&dn).count()? == 0 {
            ds.update(tx, |p| p.props_obj = 0)?;
            self.core.free_object(tx, dn.object())?;
        }
        Ok(())
    }

    /// Marks a dataset as one that has received properties.
    pub fn set_has_received(&self, tx: &Tx, ds: &Arc<Dataset>) -> Result<()> {
        if ds.is_snapshot() {
            let dn = match ds.phys().props_obj {
                0 => {
                    let dn = self.core.new_zap(tx, ObjType::DSL_PROPS, 0)?;
                    ds.update(tx, |p| p.props_obj = dn.object())?;
                    dn
                }
                o => self.core.hold(o)?,
            };
            return Zap::new(&dn).update_u64(tx, HAS_RECVD, 0);
        }
        let dir = ds.dir();
        let dn = self.core.hold(dir.phys().props_zapobj)?;
        Zap::new(&dn).update_u64(tx, HAS_RECVD, 0)?;
        dir.cache_props(None);
        Ok(())
    }

    fn check_limit(&self, ds: &Arc<Dataset>, name: &str, new: u64) -> Result<()> {
        let dir = ds.dir();
        let d = dir.phys();
        let p = ds.phys();
        let (refquota, refreservation) = ds.ref_limits();
        let version = self.core.version();
        const TOO_SMALL: &str = "size is less than current used or reserved space";
        const TOO_LARGE: &str = "size is greater than available space";
        match name {
            "refquota" | "refreservation" if version < 9 && new != 0 => {
                bail!(Unsupported, "{name} needs pool version 9");
            }
            "quota" if new != 0 && (new < d.used_bytes || new < d.reserved) => {
                bail!(NoSpace, "{TOO_SMALL}");
            }
            "refquota" if new != 0 && (new < p.referenced_bytes || new < refreservation) => {
                bail!(NoSpace, "{TOO_SMALL}");
            }
            "reservation" => {
                let old = d.used_bytes.max(d.reserved);
                let more = d.used_bytes.max(new).saturating_sub(old);
                let room = match dir.parent() {
                    Some(parent) => parent.available().bytes,
                    None => dir.available().bytes,
                };
                if more > 0 && (more > room || (d.quota != 0 && new > d.quota)) {
                    bail!(NoSpace, "{TOO_LARGE}");
                }
            }
            "refreservation" => {
                let old = p.unique_bytes.max(refreservation);
                let more = p.unique_bytes.max(new).saturating_sub(old);
                if more > 0 && (more > dir.available().bytes || (refquota != 0 && new > refquota)) {
                    bail!(NoSpace, "{TOO_LARGE}");
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn apply_limit(
        &self,
        tx: &Tx,
        ds: &Arc<Dataset>,
        name: &str,
        new: u64,
        (_, old_refreservation): (u64, u64),
    ) -> Result<()> {
        let dir = ds.dir();
        match name {
            "quota" => dir.update(tx, |p| p.quota = new),
            "reservation" => dir.change_reservation(tx, new),
            "refquota" => {
                ds.forget_limits();
                Ok(())
            }
            "refreservation" => {
                ds.make_unique_accurate(tx)?;
                let unique = ds.phys().unique_bytes;
                let d = unique.max(new) as i64 - unique.max(old_refreservation) as i64;
                ds.forget_limits();
                let t = Triple {
                    used: d,
                    ..Triple::default()
                };
                dir.diduse(tx, Used::RefRsrv, t)
            }
            _ => Ok(()),
        }
    }
}
