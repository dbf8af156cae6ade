//! Devices of a pool beside its tree: hot spares, distributed ones included, and cache devices (pool
//! format §5.3, auxiliary lists; MOS directory entries `spares` and `l2cache`).

use crate::config::{create_nvlist, read_nvlist, write_nvlist};
use crate::Pool;
use base::{Error, Result};
use disk::{NvList, Value};
use dmu::{Objset, Tx};
use dsl::Features;
use env::Env;
use std::sync::Arc;
use vdev::{keys, Vdev, VdevKind, VdevTree};
use zap::Zap;

/// Directory entry, and key of the list, of hot spares and of cache devices.
const SPARES: &str = "spares";
const L2CACHE: &str = "l2cache";
/// Most entries of a list that are believed.
const MAX_ENTRIES: usize = 4096;

/// Feature counted for every dRAID.
pub const FEATURE_DRAID: &str = disk::feature::guid::DRAID;

/// The auxiliary devices of a pool, each as its nvlist: type, guid, path and so on, without id.
#[derive(Clone, Debug, Default)]
pub struct AuxDevices {
    pub spares: Vec<NvList>,
    pub l2cache: Vec<NvList>,
}

impl AuxDevices {
    /// Reads both lists and puts in the paths at which discovery found the devices (`paths` as
    /// [`vdev::discover::AUX_PATHS`] has them).
    pub(crate) fn read(mos: &Arc<Objset>, paths: Option<&NvList>) -> Result<AuxDevices> {
        Ok(AuxDevices {
            spares: read_list(mos, SPARES, paths)?,
            l2cache: read_list(mos, L2CACHE, paths)?,
        })
    }
}

fn read_list(mos: &Arc<Objset>, key: &str, paths: Option<&NvList>) -> Result<Vec<NvList>> {
    let object: Option<u64> = Zap::new(&mos.hold(1)?).get(key)?;
    let Some(object) = object.filter(|o| *o != 0) else {
        return Ok(Vec::new());
    };
    let list = read_nvlist(mos, object)
        .map_err(|e: Error| e.context(format!("the pool's list '{key}'")))?;
    let mut out: Vec<NvList> = list
        .get_nvlist_array(key)
        .unwrap_or(&[])
        .iter()
        .take(MAX_ENTRIES)
        .cloned()
        .collect();
    for dev in &mut out {
        let guid = dev.get_u64(keys::GUID).unwrap_or(0).to_string();
        if let Some(path) = paths.and_then(|p| p.get_str(&guid)) {
            dev.set(keys::PATH, path);
        }
    }
    Ok(out)
}

/// What the pool's list of spares says of the distributed spares of a dRAID; none for other vdevs.
fn dspares_of(env: &Env, top: &Vdev) -> Vec<NvList> {
    let VdevKind::Draid {
        nparity, nspares, ..
    } = top.kind()
    else {
        return Vec::new();
    };
    (0..nspares)
        .map(|k| {
            let mut s = NvList::new();
            s.set(keys::TYPE, "dspare");
            s.set(keys::GUID, env.rng.u64() | 1);
            s.set(keys::PATH, format!("draid{nparity}-{}-{k}", top.id()));
            s.set(keys::WHOLE_DISK, 1u64);
            s.set(keys::pool::TOP_GUID, top.guid());
            s.set(keys::SPARE_ID, k);
            s.set(keys::IS_SPARE, 1u64);
            s.set(keys::ASHIFT, u64::from(top.ashift()));
            s
        })
        .collect()
}

/// Counts the new dRAID vdevs of `tree` and lists their spares in the MOS.
pub(crate) fn create_dspares(
    env: &Env,
    mos: &Arc<Objset>,
    tx: &Tx,
    tree: &VdevTree,
    features: &dyn Features,
) -> Result<AuxDevices> {
    let tops = tree.tops();
    let draid = |t: &&Arc<Vdev>| matches!(t.kind(), VdevKind::Draid { .. });
    let count = tops.iter().filter(draid).count();
    if count == 0 {
        return Ok(AuxDevices::default());
    }
    if !features.is_enabled(FEATURE_DRAID) {
        base::bail!(
            Unsupported,
            "dRAID vdevs need a pool with the feature draid enabled"
        );
    }
    features.activate(tx, FEATURE_DRAID, count as i64)?;
    let spares: Vec<NvList> = tops.iter().flat_map(|t| dspares_of(env, t)).collect();
    if !spares.is_empty() {
        let object = create_nvlist(mos, tx)?;
        let mut list = NvList::new();
        list.set(SPARES, Value::NvListArray(spares.clone()));
        write_nvlist(mos, tx, object, &list)?;
        Zap::new(&mos.hold(1)?).add_u64(tx, SPARES, object)?;
    }
    Ok(AuxDevices {
        spares,
        ..AuxDevices::default()
    })
}

impl Pool {
    /// Hot spares (the pool's own distributed ones included) and cache devices.
    pub fn aux_devices(&self) -> &AuxDevices {
        &self.aux
    }
}
