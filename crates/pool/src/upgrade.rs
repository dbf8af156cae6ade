//! Raising the version of a pool, and enabling features (pool format §19).

use crate::{Pool, VERSION_FEATURES};
use base::Result;
use disk::feature::Feature;
use dmu::Tx;
use dsl::FeatureStore;
use std::sync::Arc;
use vdev::Vdev;
use zap::{Value, Zap};

/// Version in which space is counted without parity and padding.
const VERSION_DEFLATE: u64 = 3;

/// Enables features; the feature that records when others are enabled comes first.
///
/// # Errors
/// Those of changing the MOS.
pub fn enable_features(store: &FeatureStore, tx: &Tx, list: &[&'static Feature]) -> Result<()> {
    let first = |f: &&&'static Feature| f.name == "enabled_txg";
    for f in list.iter().filter(first).chain(list) {
        store.enable(tx, f)?;
    }
    Ok(())
}

impl Pool {
    /// Makes what a pool of version `to` has and one of the version before has not, in syncing context; with version 5000 these
    /// features are enabled. Half of the engine depends on the version, so the pool must be closed and opened again.
    ///
    /// # Errors
    /// Those of changing the MOS.
    pub fn raise_version(&self, tx: &Tx, to: u64, features: &[&'static Feature]) -> Result<()> {
        let from = self.version();
        self.dsl().upgrade(tx, to)?;
        let ratio = |t: &Arc<Vdev>| !t.is_concrete() || t.deflate_ratio() == 512;
        if from < VERSION_DEFLATE
            && to >= VERSION_DEFLATE
            && self.directory("deflate")?.is_none()
            && self.tree().tops().iter().all(ratio)
        {
            Zap::new(&self.mos().hold(1)?).add_u64(tx, "deflate", 1)?;
        }
        if to >= VERSION_FEATURES {
            let store = FeatureStore::create(self.mos(), tx)?;
            let mut salt = [0; 32];
            self.env.rng.fill(&mut salt);
            Zap::new(&self.mos().hold(1)?).add(
                tx,
                disk::mos_keys::CHECKSUM_SALT,
                &Value::bytes(&salt),
            )?;
            enable_features(&store, tx, features)?;
        }
        self.shared().version = to;
        self.dirty_config();
        Ok(())
    }
}
