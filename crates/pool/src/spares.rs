//! Auxiliary devices of a pool: hot spares, distributed spares included, and cache devices (pool
//! format §5.3, auxiliary lists; MOS directory entries `spares` and `l2cache`).

use crate::config::{create_nvlist, read_nvlist, write_nvlist};
use crate::Pool;
use base::mutation::{mutated, Mutation};
use base::sync::MutexExt;
use base::{bail, Error, Result};
use disk::{NvList, Value};
use dmu::{Objset, Tx};
use dsl::Features;
use env::{Access, Env};
use std::sync::Arc;
use vdev::{keys, label, DevSpec, Vdev, VdevKind, VdevTree};
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
    /// Hot spares, distributed spares included.
    pub spares: Vec<NvList>,
    /// Cache devices.
    pub l2cache: Vec<NvList>,
}

/// Which list a device beside the tree is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuxKind {
    /// Hot spares.
    Spare,
    /// Cache devices.
    Cache,
}

impl AuxDevices {
    fn list(&mut self, kind: AuxKind) -> &mut Vec<NvList> {
        match kind {
            AuxKind::Spare => &mut self.spares,
            AuxKind::Cache => &mut self.l2cache,
        }
    }

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
        bail!(
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
    /// Counts the dRAID vdevs among new ones, and lists their distributed spares.
    pub(crate) fn add_dspares(&self, tx: &Tx, new: &[Arc<Vdev>]) -> Result<()> {
        let draid = |t: &&Arc<Vdev>| matches!(t.kind(), VdevKind::Draid { .. });
        let count = new.iter().filter(draid).count();
        if count == 0 || mutated(Mutation::AddedDraidUncounted) {
            return Ok(());
        }
        let features = &self.config.features;
        features.activate(tx, FEATURE_DRAID, count as i64)?;
        let spares = new.iter().flat_map(|t| dspares_of(&self.env, t));
        let mut aux = (*self.aux_devices()).clone();
        aux.spares.extend(spares);
        self.write_aux(tx, aux)
    }

    /// Hot spares (the pool's own distributed ones included) and cache devices.
    pub fn aux_devices(&self) -> Arc<AuxDevices> {
        self.vdevs.aux.acquire().clone()
    }

    /// Adds devices to the spares or the cache devices, in one txg. A device with the label of a spare keeps its guid: spares
    /// may be shared by pools. Returns their guids.
    ///
    /// # Errors
    /// A device cannot be opened for this pool alone, is too small, or cannot be written. Nothing was changed then.
    pub fn add_aux(&self, devs: &[(AuxKind, DevSpec)]) -> Result<Vec<u64>> {
        self.writable()?;
        let mut opened = Vec::new();
        for (kind, dev) in devs {
            let disk = self.env.disks.open(&dev.path, Access::Exclusive)?;
            if disk.geometry().size < disk::label::MIN_DEVICE {
                bail!(
                    Overflow,
                    "{}: one or more devices is less than the minimum size (64M)",
                    dev.path
                );
            }
            opened.push((*kind, dev, disk));
        }
        let mut new: Vec<(AuxKind, NvList)> = Vec::new();
        let mut labels = Vec::new();
        for (kind, dev, disk) in &opened {
            let known = shared_spare(&**disk).filter(|_| *kind == AuxKind::Spare);
            let mut c = NvList::new();
            c.set(keys::TYPE, if dev.is_file { "file" } else { "disk" });
            c.set(keys::GUID, known.unwrap_or_else(|| self.env.rng.u64() | 1));
            c.set(keys::PATH, dev.path.as_str());
            if !dev.is_file {
                c.set(keys::WHOLE_DISK, u64::from(dev.whole_disk));
            }
            match kind {
                AuxKind::Spare => c.set(keys::IS_SPARE, 1u64),
                AuxKind::Cache => {
                    let sector = disk.geometry().physical_sector.clamp(512, 16 << 10);
                    c.set(keys::ASHIFT, u64::from(sector.ilog2()))
                }
            };
            let guid = c.get_u64(keys::GUID).unwrap_or(0);
            let aux = self.aux_devices();
            let listed = aux.spares.iter().chain(&aux.l2cache);
            if listed
                .chain(new.iter().map(|(_, c)| c))
                .any(|d| is(d, guid))
            {
                bail!(Exists, "{} is a spare of this pool", dev.path);
            }
            labels.push(aux_label(self.version(), *kind, &c));
            new.push((*kind, c));
        }
        // All of them can be used.
        for ((_, dev, disk), label) in opened.iter().zip(&labels) {
            label::init(&**disk, label).map_err(|e| e.context(&dev.path))?;
            disk.flush()?;
        }
        drop(opened);
        let guids = new
            .iter()
            .filter_map(|(_, c)| c.get_u64(keys::GUID))
            .collect();
        self.task(move |pool, tx| {
            let mut aux = (*pool.aux_devices()).clone();
            for (kind, c) in &new {
                aux.list(*kind).push(c.clone());
            }
            pool.or_stop(pool.write_aux(tx, aux))
        })?;
        self.follow_caches();
        Ok(guids)
    }

    /// Takes a spare that stands in for nothing, or a cache device, off its list. Its labels say txg 0 then, which is nobody's.
    /// False if no list has it.
    ///
    /// # Errors
    /// `Kind::Busy`: the spare is in use; `Kind::Unsupported`: it is a distributed one; a checkpoint exists.
    pub fn remove_aux(&self, guid: u64) -> Result<bool> {
        self.writable()?;
        self.without_checkpoint()?;
        let aux = self.aux_devices();
        let of = |list: &[NvList]| list.iter().find(|c| is(c, guid)).cloned();
        let Some(dev) = of(&aux.spares).or_else(|| of(&aux.l2cache)) else {
            return Ok(false);
        };
        if dev.get_str(keys::TYPE) == Some("dspare") {
            bail!(Unsupported, "dRAID spares cannot be removed");
        }
        self.task(move |pool, tx| {
            pool.without_checkpoint()?;
            if pool.tree().find(guid).is_some() {
                bail!(Busy, "the spare is in use");
            }
            pool.or_stop(pool.drop_spare(tx, guid))
        })?;
        self.follow_caches();
        let path = dev.get_str(keys::PATH).unwrap_or_default();
        if let Ok(disk) = self.env.disks.open(path, Access::Exclusive) {
            // Another pool may share it, and use it now.
            let own = label::read_labels(&*disk);
            let idle = |c: &NvList| {
                let state = c.get_u64(keys::pool::STATE);
                state == Some(keys::pool::STATE_SPARE) || state == Some(keys::pool::STATE_L2CACHE)
            };
            let mut copies = own.copies.iter().flatten().peekable();
            if copies.peek().is_some() && copies.all(|c| is(c, guid) && idle(c)) {
                let mut left = NvList::new();
                left.set(keys::pool::VERSION, self.version());
                left.set(keys::pool::STATE, keys::pool::STATE_ACTIVE);
                left.set(keys::pool::TXG, 0u64);
                left.set(keys::GUID, guid);
                let _ = label::init(&*disk, &left);
            }
        }
        Ok(true)
    }

    /// Takes the spare or cache device `guid` off its list.
    pub(crate) fn drop_spare(&self, tx: &Tx, guid: u64) -> Result<()> {
        let mut aux = (*self.aux_devices()).clone();
        aux.spares.retain(|c| !is(c, guid));
        aux.l2cache.retain(|c| !is(c, guid));
        self.write_aux(tx, aux)
    }

    /// The label that leaf `guid` gets when it goes back to the spares; none if it is no spare.
    pub(crate) fn spare_label(&self, guid: u64) -> Option<NvList> {
        let aux = self.aux_devices();
        let dev = aux.spares.iter().find(|c| is(c, guid))?;
        Some(aux_label(self.version(), AuxKind::Spare, dev))
    }

    /// Forgets all spares and cache devices, which belong to the pool that this one was split off.
    pub(crate) fn forget_aux(&self, tx: &Tx) -> Result<()> {
        for key in [SPARES, L2CACHE] {
            let Some(object) = self.directory(key)? else {
                continue;
            };
            if object != 0 {
                self.mos().free(tx, object)?;
            }
            Zap::new(&self.mos().hold(1)?).remove(tx, key)?;
        }
        *self.vdevs.aux.acquire() = Arc::default();
        Ok(())
    }

    /// Changes both lists, and stores them unless `tx` is none.
    pub(crate) fn put_aux(&self, tx: Option<&Tx>, aux: AuxDevices) -> Result<()> {
        match tx {
            Some(tx) => self.write_aux(tx, aux),
            None => {
                *self.vdevs.aux.acquire() = Arc::new(aux);
                Ok(())
            }
        }
    }

    /// Stores both lists.
    fn write_aux(&self, tx: &Tx, aux: AuxDevices) -> Result<()> {
        let before = self.aux_devices();
        let lists = [
            (SPARES, &aux.spares, &before.spares),
            (L2CACHE, &aux.l2cache, &before.l2cache),
        ];
        for (key, now, before) in lists {
            let object = self.directory(key)?.filter(|o| *o != 0);
            if now == before && (object.is_some() || now.is_empty()) {
                continue;
            }
            let object = match object {
                Some(o) => o,
                None => {
                    let o = create_nvlist(self.mos(), tx)?;
                    Zap::new(&self.mos().hold(1)?).update_u64(tx, key, o)?;
                    o
                }
            };
            let mut list = NvList::new();
            list.set(key, Value::NvListArray(now.clone()));
            write_nvlist(self.mos(), tx, object, &list)?;
        }
        *self.vdevs.aux.acquire() = Arc::new(aux);
        Ok(())
    }
}

/// Whether a device beside the tree is called `name`: its path, the same without `/dev/`, or its guid.
pub fn is_called(c: &NvList, name: &str) -> bool {
    let path = c.get_str(keys::PATH).unwrap_or_default();
    let guid = c.get_u64(keys::GUID).map(|g| g.to_string());
    path == name || path.strip_prefix("/dev/") == Some(name) || guid.as_deref() == Some(name)
}

fn is(c: &NvList, guid: u64) -> bool {
    c.get_u64(keys::GUID) == Some(guid)
}

/// Guid of the spare whose label a device has.
fn shared_spare(disk: &dyn env::Disk) -> Option<u64> {
    let labels = label::read_labels(disk);
    let label = labels.copies.iter().flatten().next()?;
    let idle = label.get_u64(keys::pool::STATE) == Some(keys::pool::STATE_SPARE);
    label.get_u64(keys::GUID).filter(|g| idle && *g != 0)
}

/// The label of an idle spare or a cache device (pool format §5.1).
fn aux_label(version: u64, kind: AuxKind, dev: &NvList) -> NvList {
    let mut c = NvList::new();
    c.set(keys::pool::VERSION, version);
    let state = match kind {
        AuxKind::Spare => keys::pool::STATE_SPARE,
        AuxKind::Cache => keys::pool::STATE_L2CACHE,
    };
    c.set(keys::pool::STATE, state);
    for key in [
        keys::GUID,
        keys::PATH,
        keys::DEVID,
        keys::PHYS_PATH,
        keys::ASHIFT,
    ] {
        if let Some(v) = dev.get(key) {
            c.set(key, v.clone());
        }
    }
    c
}
