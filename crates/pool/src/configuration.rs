//! The part of a pool that says what the pool is: name, version, features, properties, and how it was opened.
//!
//! Everything but the name, the keys of the configuration and the properties is fixed while the pool is open. Operations of
//! administration change those; the syncing thread reads them when it writes labels and the MOS ([`crate::config`]).
//!
//! Lock order: `shared` is a leaf lock. `props` is held while the stored properties are read from the MOS, once.

use crate::spacemaps::MapFeatures;
use base::sync::MutexExt;
use base::{Result, Txg};
use disk::feature::guid;
use dmu::Tx;
use dsl::{FeatureStore, Features, PropValue};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

/// Pool version with feature flags.
pub const VERSION_FEATURES: u64 = 5000;

/// Memory and behaviour of one pool's engine.
#[derive(Clone, Copy, Debug)]
pub struct Tunables {
    /// Bytes of the block cache.
    pub cache_bytes: u64,
    /// Dirty bytes at which writers wait.
    pub dirty_max: u64,
    /// Bytes a background job may handle per txg, at least 1; a block that is only freed or walked over counts as 4 KiB.
    pub job_bytes: u64,
    /// Txgs behind which a round of autotrim begins, at least 1.
    pub autotrim_txgs: u64,
}

impl Default for Tunables {
    fn default() -> Self {
        Tunables {
            cache_bytes: 256 << 20,
            dirty_max: 256 << 20,
            job_bytes: 400 << 20,
            autotrim_txgs: 32,
        }
    }
}

/// Names and numbers of the pool that may change while it is open.
#[derive(Clone, Debug, Default)]
pub struct Shared {
    /// Name under which the pool is open.
    pub name: String,
    /// Name in the labels, where `name` is for this import only.
    pub label_name: Option<String>,
    /// Pool version, 1 to 28 or 5000.
    pub version: u64,
    /// Keys of the configuration such as `comment` and `compatibility`.
    pub extra: Vec<(String, String)>,
    /// Guid of the pool this one is being split off.
    pub split_guid: Option<u64>,
}

/// Stored properties by name.
pub(crate) type KnownProps = BTreeMap<String, PropValue>;

/// Configuration of one pool.
pub(crate) struct Configuration {
    /// Counts of features; none active in pools of old versions.
    pub features: Arc<dyn Features>,
    /// The stored counts, in pools of version 5000.
    pub store: Option<Arc<FeatureStore>>,
    /// Name, version and keys, which may change while the pool is open.
    pub shared: Mutex<Shared>,
    /// Nothing is written.
    pub readonly: bool,
    /// MOS object of the configuration.
    pub object: u64,
    /// Every vdev has a ZAP.
    pub vdev_zaps: bool,
    /// Version of the software that wrote the uberblock with which the pool was opened.
    pub software_version: u64,
    /// The configuration is written with the next txg.
    pub dirty: AtomicBool,
    /// The stored properties, once they were read.
    pub props: Mutex<Option<KnownProps>>,
    /// Logs that cannot be read are given up (`import -m`).
    pub missing_log: bool,
    /// Of a pool opened at an older state than the newest: the time of that state (seconds since 1970), and by how many
    /// seconds the newest is younger.
    pub rewound: Option<(u64, u64)>,
    /// Txg of the checkpoint that was gone back to, or none.
    pub checkpoint_txg: Txg,
    /// Limits that tests and options change.
    pub tunables: Tunables,
}

impl Configuration {
    /// Name, version and keys, locked.
    pub fn shared(&self) -> MutexGuard<'_, Shared> {
        self.shared.acquire()
    }

    /// Writes the configuration with the next txg.
    pub fn set_dirty(&self) {
        self.dirty.store(true, Ordering::Relaxed);
    }

    /// Whether the configuration must be written; the caller writes it.
    pub fn take_dirty(&self) -> bool {
        self.dirty.swap(false, Ordering::Relaxed)
    }

    /// Changes a key such as `comment`; `None` removes it.
    pub fn set_extra(&self, key: &str, value: Option<&str>) {
        let mut s = self.shared();
        s.extra.retain(|(k, _)| k != key);
        if let Some(v) = value {
            s.extra.push((key.into(), v.into()));
        }
        drop(s);
        self.set_dirty();
    }
}

impl MapFeatures for Configuration {
    fn histogram(&self) -> bool {
        self.features.is_enabled(guid::SPACEMAP_HISTOGRAM)
    }
    fn v2(&self) -> bool {
        self.features.is_enabled(guid::SPACEMAP_V2)
    }
    fn log(&self) -> bool {
        self.features.is_enabled(guid::LOG_SPACEMAP) && self.vdev_zaps
    }
    fn count_histogram(&self, tx: &Tx, delta: i64) -> Result<()> {
        self.features.activate(tx, guid::SPACEMAP_HISTOGRAM, delta)
    }
    fn activate_log(&self, tx: &Tx) -> Result<()> {
        if self.features.is_active(guid::LOG_SPACEMAP) {
            return Ok(());
        }
        self.features.activate(tx, guid::LOG_SPACEMAP, 1)
    }
}
