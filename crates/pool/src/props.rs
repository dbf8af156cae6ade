//! Properties of the pool itself that are kept in the MOS: the ZAP `pool_props` (pool format §16.8).
//!
//! They are read once and kept in memory, so that a pool whose txg waits for its devices, and holds locks of
//! the MOS meanwhile, can be described.
//!
//! Properties of vdevs are in the ZAPs of the vdevs, which are read each time. The root has its own ZAP (feature `vdev_zaps_v2`), a
//! top-level vdev that of its top-level role, any other leaf that of its own. Groups below a top-level vdev have none. Numbers and
//! switches are stored as numbers, texts with their NUL.

use crate::configuration::KnownProps;
use crate::create::mos_policy;
use crate::Pool;
use base::sync::MutexExt;
use base::{bail, Error, Kind, Result};
use disk::ObjType;
use dmu::Tx;
use dsl::PropValue;
use std::sync::Arc;
use vdev::{keys, Vdev, VdevKind};
use zap::{Value, Zap};

const OBJECT: &str = "pool_props";
/// Pool version that has them.
const VERSION_PROPS: u64 = 6;

impl Pool {
    fn props_object(&self) -> Result<Option<u64>> {
        Ok(self.directory(OBJECT)?.filter(|o| *o != 0))
    }

    /// Every property stored, by name.
    pub fn stored_props(&self) -> Result<Vec<(String, PropValue)>> {
        // Read when the pool is opened or made, before anybody else knows it.
        let mut known = self.config.props.acquire();
        let all = match &*known {
            Some(all) => all,
            None => known.insert(self.read_props()?),
        };
        Ok(all.clone().into_iter().collect())
    }

    fn read_props(&self) -> Result<KnownProps> {
        let mut out = KnownProps::new();
        let Some(object) = self.props_object()? else {
            return Ok(out);
        };
        let dn = self.mos().hold(object)?;
        for e in Zap::new(&dn).iter() {
            let e = e?;
            let value = match e.value.as_u64() {
                Some(n) => PropValue::Int(n),
                None => PropValue::Str(e.value.to_text()?),
            };
            out.insert(e.text(), value);
        }
        Ok(out)
    }

    /// Stores a property, or with `None` takes it back to its default; in syncing context. Name and
    /// value have been checked.
    pub fn store_prop(&self, tx: &Tx, name: &str, value: Option<&PropValue>) -> Result<()> {
        if self.version() < VERSION_PROPS {
            bail!(
                Unsupported,
                "pool must be upgraded to set this property or value"
            );
        }
        if let Some(v) = value {
            self.log_internal(tx, "set", &format!("{name}={v}"))?;
        }
        let object = match (self.props_object()?, value) {
            (Some(o), _) => o,
            (None, None) => return Ok(()),
            (None, Some(_)) => {
                let dn = zap::create_object(self.mos(), tx, ObjType::POOL_PROPS, 0)?;
                Zap::new(&self.mos().hold(1)?).add_u64(tx, OBJECT, dn.object())?;
                dn.object()
            }
        };
        let dn = self.mos().hold(object)?;
        let z = Zap::new(&dn);
        match value {
            Some(PropValue::Int(n)) => z.update_u64(tx, name, *n),
            Some(PropValue::Str(s)) => z.update(tx, name, &Value::string(s)),
            None => z.remove_if(tx, name).map(|_| ()),
        }?;
        if let Some(known) = &mut *self.config.props.acquire() {
            match value {
                Some(v) => known.insert(name.to_string(), v.clone()),
                None => known.remove(name),
            };
        }
        match name {
            "dedup_table_quota" => self.refresh_dedup_quota(),
            "autotrim" => self.refresh_autotrim(),
            "failmode" => self.refresh_failmode(),
            "multihost" => self.refresh_multihost(),
            _ => Ok(()),
        }
    }

    /// Obeys the properties that are stored, when the pool is opened.
    pub(crate) fn refresh_props(&self) -> Result<()> {
        self.refresh_multihost()?;
        self.refresh_dedup_quota()?;
        self.refresh_failmode()?;
        self.refresh_autotrim()
    }

    /// Reads anew whether other hosts are to be kept away: the property `multihost`.
    pub(crate) fn refresh_multihost(&self) -> Result<()> {
        let stored = self.stored_props()?;
        let set = stored.iter().find(|(n, _)| n == "multihost");
        let on = matches!(set, Some((_, PropValue::Int(1))));
        self.vdevs.heart.set(on);
        Ok(())
    }

    /// Features were enabled: what is written from now on follows them. To be called in the txg
    /// in which they were enabled.
    pub fn features_changed(&self) -> Result<()> {
        let policy = mos_policy(self.version(), &*self.config.features);
        self.mos().set_policy(policy);
        for set in self.open_sets() {
            self.refresh_policy(&set.ds)?;
        }
        Ok(())
    }
}

/// The property `allocating`, which the configuration of the vdev says as well.
const ALLOCATING: &str = "allocating";
/// The property `autosit`.
const AUTOSIT: &str = "autosit";

/// Before the colon of keys by which the format itself keeps things in the same ZAPs.
const OF_FORMAT: [&str; 6] = [
    "com.datto",
    "com.delphix",
    "com.klarasystems",
    "org.illumos",
    "org.openzfs",
    "org.zfsonlinux",
];

/// Whether a name with a colon is kept for the format itself, so that no user property may have it.
pub fn is_of_format(name: &str) -> bool {
    let before = name.split(':').next().unwrap_or_default();
    OF_FORMAT.contains(&before)
}

impl Pool {
    /// The ZAP of a vdev by guid, that of the root if it is the pool's; none if it has none.
    pub fn vdev_zap(&self, guid: u64) -> Option<u64> {
        let zap = if guid == self.guid() {
            self.tree().root_u64(keys::ZAP_ROOT)
        } else {
            let v = self.tree().find(guid)?;
            let tops = self.tree().tops();
            match tops.iter().any(|t| t.guid() == guid) {
                true => v.get_u64(keys::ZAP_TOP),
                false => v.get_u64(keys::ZAP_LEAF),
            }
        };
        zap.filter(|z| *z != 0)
    }

    /// A property that is set on a vdev itself.
    pub fn vdev_prop(&self, guid: u64, name: &str) -> Result<Option<PropValue>> {
        let Some(zap) = self.vdev_zap(guid) else {
            return Ok(None);
        };
        let value = Zap::new(&self.mos().hold(zap)?).get_value(name)?;
        value.map(|v| to_prop(&v)).transpose()
    }

    /// Properties of users that are set on a vdev.
    pub fn vdev_user_props(&self, guid: u64) -> Result<Vec<(String, PropValue)>> {
        let mut out = Vec::new();
        let Some(zap) = self.vdev_zap(guid) else {
            return Ok(out);
        };
        for entry in Zap::new(&self.mos().hold(zap)?).iter() {
            let entry = entry?;
            let name = String::from_utf8_lossy(&entry.name).into_owned();
            let own = name.contains(':') && !is_of_format(&name);
            if own && entry.value.size == 1 {
                out.push((name, PropValue::Str(entry.value.to_text()?)));
            }
        }
        out.sort_by(|a, b| a.0.cmp(&b.0));
        Ok(out)
    }

    /// Sets a property of a vdev, or takes it away. What it means is for the caller to see to.
    ///
    /// # Errors
    /// `Kind::Unsupported`: the vdev has no ZAP. Nothing was changed then.
    pub fn set_vdev_prop(&self, guid: u64, name: &str, value: Option<PropValue>) -> Result<()> {
        self.writable()?;
        let name = name.to_string();
        self.task(move |pool, tx| {
            let zap = pool.need_vdev_zap(guid)?;
            let done = pool.store_vdev_prop(tx, (guid, zap), &name, value.as_ref());
            pool.or_stop(done)?;
            if name == AUTOSIT {
                let mut set = pool.vdevs.autosit.acquire();
                match value.and_then(|v| v.int()).unwrap_or(0) {
                    0 => set.remove(&guid),
                    _ => set.insert(guid),
                };
            }
            Ok(())
        })
    }

    fn need_vdev_zap(&self, guid: u64) -> Result<u64> {
        match self.vdev_zap(guid) {
            Some(zap) => Ok(zap),
            None => bail!(Unsupported, "operation not supported on this type of vdev"),
        }
    }

    fn store_vdev_prop(
        &self,
        tx: &Tx,
        (guid, zap): (u64, u64),
        name: &str,
        value: Option<&PropValue>,
    ) -> Result<()> {
        let dn = self.mos().hold(zap)?;
        let zap = Zap::new(&dn);
        match value {
            None => drop(zap.remove_if(tx, name)?),
            Some(PropValue::Int(n)) => zap.update_u64(tx, name, *n)?,
            Some(PropValue::Str(text)) => {
                let text = Value::bytes(format!("{text}\0").as_bytes());
                zap.update(tx, name, &text)?;
            }
        }
        let shown = value.map_or(String::new(), ToString::to_string);
        self.log_internal(tx, "vdev set", &format!("vdev_guid={guid}: {name}={shown}"))
    }

    /// Sets the property `allocating` of a top-level vdev. Nothing is placed on it any more while it is off.
    ///
    /// # Errors
    /// `Kind::Unsupported`: no such vdev, a log, or it is being removed; `Kind::Invalid`: it is the last one that is allocated from;
    /// `Kind::NoSpace`: the others have no room for what is on it; an intent log cannot be emptied. Nothing was changed then.
    pub fn set_allocating(&self, guid: u64, on: bool) -> Result<()> {
        self.writable()?;
        let tops = self.tree().tops();
        let top = tops.iter().find(|t| t.guid() == guid).cloned();
        let Some(top) = top.filter(|t| t.is_concrete() && !t.is_log()) else {
            bail!(Unsupported, "operation not supported on this type of vdev");
        };
        if crate::removal::is_removing(&top) {
            bail!(Busy, "device removal is in progress");
        }
        let id = top.id();
        if !on {
            self.may_be_passive(&top)?;
            self.space().set_allocating(id, false)?;
            if let Err(e) = self.empty_logs() {
                if self.stopped().is_none() {
                    let passive = top.get_u64(keys::NON_ALLOCATING).unwrap_or(0) != 0;
                    self.space().set_allocating(id, !passive)?;
                }
                return Err(e);
            }
        }
        self.task(move |pool, tx| {
            let top = pool.tree().top(id)?;
            if crate::removal::is_removing(&top) || !top.is_concrete() {
                bail!(Busy, "device removal is in progress");
            }
            match on {
                true => top.unset(keys::NON_ALLOCATING),
                false => top.set_u64(keys::NON_ALLOCATING, 1),
            }
            pool.dirty_config();
            pool.space().set_allocating(id, on)?;
            // A pool without such ZAPs has it in the configuration alone.
            let Some(zap) = pool.vdev_zap(top.guid()) else {
                return Ok(());
            };
            let value = PropValue::Int(u64::from(on));
            let done = pool.store_vdev_prop(tx, (top.guid(), zap), ALLOCATING, Some(&value));
            pool.or_stop(done)
        })
    }

    /// Which vdevs have the property `autosit`: it is asked for often, and by who must not wait for devices.
    pub(crate) fn load_autosit(&self) {
        let tops = self.tree().tops();
        let groups = tops.iter().filter(|t| parity(t).is_some());
        let set = groups.map(|t| t.guid()).filter(|guid| {
            // What cannot be read is no reason to refuse an import.
            let value = self.vdev_prop(*guid, AUTOSIT).ok().flatten();
            value.and_then(|v| v.int()).unwrap_or(0) != 0
        });
        *self.vdevs.autosit.acquire() = set.collect();
    }

    /// Whether devices of vdev `guid` sit out by themselves when they are slow. Nothing is read.
    pub fn is_autosit(&self, guid: u64) -> bool {
        self.vdevs.autosit.acquire().contains(&guid)
    }

    /// Has reads of a RAID-Z or dRAID make up for leaf `guid` from parity until the caller ends it ([`Vdev::sit_out`]).
    ///
    /// # Errors
    /// `Kind::Unsupported`: it is in no RAID-Z or dRAID; `Kind::Busy`: as many devices as there is parity sit out already.
    pub fn sit_out(&self, guid: u64, until: u64) -> Result<()> {
        let all = self.tree().all();
        let has = |v: &&Arc<Vdev>| v.children().iter().any(|c| c.guid() == guid);
        let group = all.iter().find(has);
        let (Some(group), Some(parity)) = (group, group.and_then(|g| parity(g))) else {
            bail!(Unsupported, "operation not supported on this type of vdev");
        };
        let mut leaf = None;
        let mut others = 0;
        for child in group.children() {
            if child.guid() == guid {
                leaf = Some(child).filter(|c| c.kind().is_leaf());
            } else if child.leaves().iter().any(|l| l.sits_out() != 0) {
                others += 1;
            }
        }
        let Some(leaf) = leaf else {
            bail!(Unsupported, "operation not supported on this type of vdev");
        };
        if until != 0 && others >= parity {
            bail!(Busy, "as many devices as there is parity sit out already");
        }
        leaf.sit_out(until);
        Ok(())
    }

    /// Refuses to take away what the rest of the pool cannot make up for.
    fn may_be_passive(&self, top: &Arc<Vdev>) -> Result<()> {
        let stats = self.space().stats();
        let own = stats.vdevs.iter().find(|v| v.id == top.id());
        let Some(own) = own else {
            return Err(Error::from(Kind::Unsupported));
        };
        let others = stats.vdevs.iter();
        let mut others = others
            .filter(|v| v.id != own.id && v.class == own.class && self.space().is_allocating(v.id));
        let last = others.next().is_none();
        if own.class != space::Class::Normal {
            return Ok(());
        }
        if last {
            bail!(Invalid, "invalid argument for this pool operation");
        }
        if !self.has_room_without(top)? {
            bail!(NoSpace, "out of space");
        }
        Ok(())
    }
}

/// Devices that reads of a vdev can do without; none if it is no RAID-Z or dRAID.
fn parity(v: &Vdev) -> Option<usize> {
    match v.kind() {
        VdevKind::Raidz { nparity } | VdevKind::Draid { nparity, .. } => Some(nparity),
        _ => None,
    }
}

fn to_prop(v: &Value) -> Result<PropValue> {
    match v.size {
        8 => v.to_u64().map(PropValue::Int),
        _ => v.to_text().map(PropValue::Str),
    }
}
