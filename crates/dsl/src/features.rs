//! Feature flags as stored in the pool (pool format §18).

use base::sync::MutexExt;
use base::{bail, Error, Result, Txg};
use disk::feature::{self, Feature};
use disk::ObjType;
use dmu::{Objset, Tx};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use zap::{Value, Zap};

const HAS_ENABLED_TXG: &str = disk::feature::guid::ENABLED_TXG;

/// Counts of features, by GUID.
pub trait Features: Send + Sync {
    /// Whether the pool may use the feature: it has a count, which may be 0.
    fn is_enabled(&self, guid: &str) -> bool {
        self.count(guid).is_some()
    }
    /// Whether the pool uses the feature: the count is above 0.
    fn is_active(&self, guid: &str) -> bool {
        self.count(guid).is_some_and(|n| n > 0)
    }
    /// The count: number of objects or datasets that use the feature. `None` = not enabled.
    fn count(&self, guid: &str) -> Option<u64>;
    /// Changes the count by `delta`, in syncing context; an error if the feature is not enabled or
    /// the count would fall below 0.
    fn activate(&self, tx: &Tx, guid: &str, delta: i64) -> Result<()>;
}

/// A pool of version ≤ 28.
pub struct NoFeatures;

impl Features for NoFeatures {
    fn count(&self, _: &str) -> Option<u64> {
        None
    }
    fn activate(&self, _: &Tx, guid: &str, _: i64) -> Result<()> {
        bail!(Unsupported, "pool without feature flags: {guid}")
    }
}

#[derive(Clone, Copy)]
struct Count {
    n: u64,
    /// Kept in features_for_read (not read-only compatible).
    for_read: bool,
}

struct State {
    counts: BTreeMap<String, Count>,
    enabled_txg: u64,
    /// Something the label lists has changed since [`FeatureStore::take_label_changed`].
    label_changed: bool,
    /// Short names of those enabled since [`FeatureStore::take_enabled`].
    enabled: Vec<&'static str>,
}

/// The features of a pool. One of an older version has none until it is upgraded
/// ([`establish`](Self::establish)).
pub struct FeatureStore {
    mos: Arc<Objset>,
    /// ZAPs: for reading, for writing, descriptions; 0 before version 5000.
    objects: Mutex<[u64; 3]>,
    state: Mutex<State>,
}

impl FeatureStore {
    /// For a pool of version ≤ 28: nothing is enabled.
    pub fn absent(mos: &Arc<Objset>) -> FeatureStore {
        FeatureStore {
            mos: mos.clone(),
            objects: Mutex::new([0; 3]),
            state: Mutex::new(State {
                counts: BTreeMap::new(),
                enabled_txg: 0,
                label_changed: false,
                enabled: Vec::new(),
            }),
        }
    }

    /// The store of a new pool of version 5000, nothing enabled.
    pub fn create(mos: &Arc<Objset>, tx: &Tx) -> Result<FeatureStore> {
        let s = Self::absent(mos);
        s.establish(tx)?;
        Ok(s)
    }

    /// Makes the three empty ZAPs of a new or just upgraded pool and their directory entries, if they
    /// are not there.
    pub fn establish(&self, tx: &Tx) -> Result<()> {
        let mut objects = self.objects.acquire();
        if objects[0] != 0 {
            return Ok(());
        }
        let dir = self.mos.hold(1)?;
        for (o, key) in objects.iter_mut().zip(KEYS) {
            let dn = zap::create_object(&self.mos, tx, ObjType::ZAP_METADATA, 0)?;
            Zap::new(&dir).add_u64(tx, key, dn.object())?;
            *o = dn.object();
        }
        Ok(())
    }

    /// Reads the features of a pool of version 5000.
    pub fn open(mos: &Arc<Objset>) -> Result<FeatureStore> {
        let s = Self::absent(mos);
        let dir = mos.hold(1)?;
        let zap = Zap::new(&dir);
        let mut obj = [0; 3];
        for (o, key) in obj.iter_mut().zip(KEYS) {
            *o = zap
                .get(key)?
                .ok_or_else(|| Error::damaged(format!("MOS directory has no {key}")))?;
        }
        *s.objects.acquire() = obj;
        {
            let mut st = s.state.acquire();
            st.enabled_txg = zap.get("feature_enabled_txg")?.unwrap_or(0);
            for (object, for_read) in [(obj[0], true), (obj[1], false)] {
                for e in Zap::new(&mos.hold(object)?).iter() {
                    let e = e?;
                    st.counts.insert(
                        e.text(),
                        Count {
                            n: e.value.to_u64()?,
                            for_read,
                        },
                    );
                }
            }
        }
        Ok(s)
    }

    fn object(&self, n: usize) -> Result<Arc<dmu::Dnode>> {
        match self.objects.acquire()[n] {
            0 => bail!(Unsupported, "the pool's version has no feature flags"),
            o => self.mos.hold(o),
        }
    }

    /// Every enabled feature: GUID, count, whether it is kept with those needed for reading.
    pub fn list(&self) -> Vec<(String, u64, bool)> {
        let st = self.state.acquire();
        st.counts
            .iter()
            .map(|(g, c)| (g.clone(), c.n, c.for_read))
            .collect()
    }

    /// Active features this software cannot read (first) or cannot write (second) with.
    pub fn unsupported(&self) -> (Vec<String>, Vec<String>) {
        let (mut read, mut write) = (Vec::new(), Vec::new());
        for (guid, n, for_read) in self.list() {
            if n == 0 {
                continue;
            }
            let f = feature::by_guid(&guid);
            if f.is_some_and(|f| f.supported) {
                continue;
            }
            match for_read && !f.is_some_and(|f| f.readable) {
                true => read.push(guid),
                false => write.push(guid),
            }
        }
        (read, write)
    }

    /// GUIDs for `features_for_read` of the label: active ones that the MOS cannot be read without.
    pub fn label_features(&self) -> Vec<String> {
        let mos = |g: &str| feature::by_guid(g).is_some_and(|f| f.flags.mos);
        self.list()
            .into_iter()
            .filter(|(g, n, _)| *n > 0 && mos(g))
            .map(|(g, ..)| g)
            .collect()
    }

    /// Whether [`label_features`](Self::label_features) changed since the last call.
    pub fn take_label_changed(&self) -> bool {
        std::mem::take(&mut self.state.acquire().label_changed)
    }

    /// Text stored with a feature.
    pub fn description(&self, guid: &str) -> Result<Option<String>> {
        let v = Zap::new(&self.object(2)?).get_value(guid)?;
        v.map(|v| v.to_text()).transpose()
    }

    /// Txg a feature was enabled in, if the pool records it.
    pub fn enabled_in(&self, guid: &str) -> Result<Option<Txg>> {
        match self.state.acquire().enabled_txg {
            0 => Ok(None),
            o => Ok(Zap::new(&self.mos.hold(o)?).get(guid)?.map(Txg::new)),
        }
    }

    /// Short names of the features enabled since the last call, for the history.
    pub fn take_enabled(&self) -> Vec<&'static str> {
        std::mem::take(&mut self.state.acquire().enabled)
    }

    /// Enables a feature and, before it, those it depends on. Nothing happens if it is enabled.
    pub fn enable(&self, tx: &Tx, f: &Feature) -> Result<()> {
        for d in f.all_dependencies() {
            self.enable_one(tx, d)?;
        }
        self.enable_one(tx, f)
    }

    fn enable_one(&self, tx: &Tx, f: &Feature) -> Result<()> {
        if !tx.is_syncing() {
            bail!(Bug, "features are enabled in syncing context");
        }
        self.object(0)?;
        let n = u64::from(f.flags.activate_on_enable);
        {
            let mut st = self.state.acquire();
            if st.counts.contains_key(f.guid) {
                return Ok(());
            }
            let for_read = !f.flags.readonly_compat;
            st.counts.insert(f.guid.to_string(), Count { n, for_read });
            st.label_changed |= f.flags.mos && n > 0;
            st.enabled.push(f.name);
        }
        let text = Value::string(f.description);
        Zap::new(&self.object(2)?).update(tx, f.guid, &text)?;
        self.store(tx, f.guid)?;
        if f.guid == HAS_ENABLED_TXG || self.is_enabled(HAS_ENABLED_TXG) {
            let object = self.enabled_txg_object(tx)?;
            Zap::new(&self.mos.hold(object)?).update_u64(tx, f.guid, tx.txg().number())?;
            self.activate(tx, HAS_ENABLED_TXG, 1)?;
        }
        Ok(())
    }

    fn enabled_txg_object(&self, tx: &Tx) -> Result<u64> {
        let known = self.state.acquire().enabled_txg;
        if known != 0 {
            return Ok(known);
        }
        let dn = zap::create_object(&self.mos, tx, ObjType::ZAP_METADATA, 0)?;
        Zap::new(&self.mos.hold(1)?).add_u64(tx, "feature_enabled_txg", dn.object())?;
        self.state.acquire().enabled_txg = dn.object();
        Ok(dn.object())
    }

    fn store(&self, tx: &Tx, guid: &str) -> Result<()> {
        let c = self.state.acquire().counts.get(guid).copied();
        let Some(c) = c else {
            bail!(Unsupported, "feature {guid} is not enabled");
        };
        let dn = self.object(usize::from(!c.for_read))?;
        Zap::new(&dn).update_u64(tx, guid, c.n)
    }
}

const KEYS: [&str; 3] = [
    "features_for_read",
    "features_for_write",
    "feature_descriptions",
];

impl Features for FeatureStore {
    fn count(&self, guid: &str) -> Option<u64> {
        self.state.acquire().counts.get(guid).map(|c| c.n)
    }

    fn activate(&self, tx: &Tx, guid: &str, delta: i64) -> Result<()> {
        {
            let mut st = self.state.acquire();
            let Some(c) = st.counts.get_mut(guid) else {
                bail!(Unsupported, "feature {guid} is not enabled");
            };
            let Some(n) = c.n.checked_add_signed(delta) else {
                return Err(Error::damaged(format!("count of feature {guid} below 0")));
            };
            let changed = (c.n > 0) != (n > 0);
            c.n = n;
            if changed && feature::by_guid(guid).is_some_and(|f| f.flags.mos) {
                st.label_changed = true;
            }
        }
        self.store(tx, guid)
    }
}
