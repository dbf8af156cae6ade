//! Properties of the pool itself that are kept in the MOS: the ZAP `pool_props` (pool format §16.8).
//!
//! They are read once and kept in memory, so that a pool whose txg waits for its devices, and holds locks of
//! the MOS meanwhile, can be described.

use crate::configuration::KnownProps;
use crate::create::mos_policy;
use crate::Pool;
use base::sync::MutexExt;
use base::{bail, Result};
use disk::ObjType;
use dmu::Tx;
use dsl::PropValue;
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
