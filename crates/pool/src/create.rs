//! Creation of a pool (pool format §30): devices, MOS, directory, features, first datasets, all in the
//! first txg.

use crate::config::create_nvlist;
use crate::configuration::Configuration;
use crate::datasets::meta_compress;
use crate::engine::{Engine, Parts};
use crate::shared::Shares;
use crate::spares::create_dspares;
use crate::tops::{create_zap_map, write_bias, Metaslabs};
use crate::{Pool, Shared, Tunables, VERSION_FEATURES};
use base::{bail, Error, Result, Txg};
use disk::feature::guid;
use disk::feature::Feature;
use disk::uberblock::Uberblock;
use disk::{os_type, Checksum, Compression, ObjType};
use dmu::{NewObject, Objset, Tx, WritePolicy};
use dsl::{Bpobj, Dsl, FeatureStore, Features, NewKey, NoFeatures};
use env::Env;
use std::collections::HashMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use vdev::{TopSpec, VdevTree};
use zap::{Value, Zap};

/// The specification of a new pool.
pub struct CreateSpec {
    /// Name of the pool.
    pub name: String,
    /// Its top-level vdevs.
    pub tops: Vec<TopSpec>,
    /// 1…28 or 5000.
    pub version: u64,
    /// Features to enable (version 5000); dependencies are added.
    pub features: Vec<&'static Feature>,
    /// Keys of the configuration such as `comment`.
    pub extra: Vec<(String, String)>,
    /// Text for the first history record, the command line.
    pub command: String,
    /// Limits of the open pool.
    pub tunables: Tunables,
}

/// The policy of the MOS.
pub(crate) fn mos_policy(version: u64, f: &dyn Features) -> WritePolicy {
    WritePolicy {
        compress: meta_compress(f),
        checksum: Checksum::FLETCHER4,
        copies: 3,
        meta_compress: meta_compress(f),
        hole_birth: f.is_active(guid::HOLE_BIRTH),
        embedded_data: f.is_active(guid::EMBEDDED_DATA),
        max_copies: if version < 2 { 1 } else { 3 },
        is_mos: true,
        used_bytes: version >= 3,
        accounting_flags: 0,
        indblkshift: if version < VERSION_FEATURES { 14 } else { 17 },
        ..WritePolicy::default()
    }
}

impl Pool {
    /// Creates the pool and writes its first txg. `init` fills the root file system's new object
    /// set.
    pub fn create(
        env: Env,
        spec: CreateSpec,
        init: &dyn Fn(&Pool, &Arc<Objset>, &Tx) -> Result<()>,
    ) -> Result<Arc<Pool>> {
        Self::create_with(env, spec, None, init)
    }

    /// The same; with `key` the root file system is encrypted.
    pub fn create_with(
        env: Env,
        spec: CreateSpec,
        key: Option<&NewKey>,
        init: &dyn Fn(&Pool, &Arc<Objset>, &Tx) -> Result<()>,
    ) -> Result<Arc<Pool>> {
        if !(1..=28).contains(&spec.version) && spec.version != VERSION_FEATURES {
            bail!(Invalid, "pool version {} does not exist", spec.version);
        }
        let guid = env.rng.u64() | 1;
        let tree = Arc::new(VdevTree::create(
            env.clone(),
            guid,
            &spec.tops,
            Txg::INITIAL,
        )?);
        let made = Self::create_on(env, tree.clone(), spec, key, init);
        if made.is_err() {
            // Dirty objects may keep each other, and the tree with them, alive; the devices are
            // free for the next attempt all the same.
            tree.close();
        }
        made
    }

    fn create_on(
        env: Env,
        tree: Arc<VdevTree>,
        spec: CreateSpec,
        key: Option<&NewKey>,
        init: &dyn Fn(&Pool, &Arc<Objset>, &Tx) -> Result<()>,
    ) -> Result<Arc<Pool>> {
        let engine = Engine::new(&env, tree, Txg::INITIAL, true, &spec.tunables);
        engine.devices.set_deflates(spec.version >= 3);
        let group = engine.dmu.begin_sync()?;
        let tx = engine.dmu.syncing_tx(group.txg);
        let pool = create_mos(engine, &tx, &spec)?;
        let rooms = pool.rooms();
        for t in pool.tree().tops().iter() {
            rooms.register(t, Metaslabs::New(&tx, &pool.config))?;
        }
        rooms.registered();
        let ds = pool.dsl().create_root_dataset(&tx, Default::default())?;
        if let Some(key) = key {
            pool.dsl().encrypt_root(&tx, &ds, key)?;
        }
        let os = pool.new_objset(&tx, &ds, os_type::ZFS)?;
        init(&pool, &os, &tx)?;
        pool.log_versions(&tx, "create")?;
        pool.log_in(&tx, &spec.command, 0)?;
        // From here on nothing can fail but the devices.
        let tops: Vec<u64> = pool.tree().tops().iter().map(|t| t.id()).collect();
        pool.tree()
            .init_labels(&pool.label_base(0, Txg::NONE), &tops, Txg::INITIAL)?;
        pool.first_group(&tx)?;
        pool.refresh_failmode()?;
        pool.refresh_autotrim()?;
        pool.sync()?;
        Ok(pool)
    }
}

/// Fills the MOS of a new pool as far as its devices and datasets do not matter, and puts the pool together.
fn create_mos(engine: Engine, tx: &Tx, spec: &CreateSpec) -> Result<Arc<Pool>> {
    let version = spec.version;
    let size = if version < 15 { 1024 } else { 4096 };
    let policy = mos_policy(version, &NoFeatures);
    let mos = Objset::create(&engine.dmu, 0, tx, os_type::META, size, policy)?;
    let dir = mos.claim(
        tx,
        1,
        &NewObject {
            obj_type: ObjType::OBJECT_DIRECTORY,
            ..NewObject::default()
        },
    )?;
    let z = Zap::new(&dir);
    z.create(tx, 0)?;
    let store = create_features(&mos, tx, spec)?;
    let features: Arc<dyn Features> = match &store {
        Some(s) => s.clone(),
        None => Arc::new(NoFeatures),
    };
    mos.set_policy(mos_policy(version, &*features));
    let config_object = create_nvlist(&mos, tx)?;
    z.add_u64(tx, "config", config_object)?;
    if version >= 3 {
        z.add_u64(tx, "deflate", 1)?;
    }
    if version >= 20 {
        z.add_u64(tx, "creation_version", version)?;
    }
    let mut salt = [0; 32];
    engine.env.rng.fill(&mut salt);
    if version >= VERSION_FEATURES {
        z.add(tx, disk::mos_keys::CHECKSUM_SALT, &Value::bytes(&salt))?;
        engine.zio.set_salt(salt);
    }
    let maps = engine.space_maps(&mos);
    let vdev_zaps = version >= VERSION_FEATURES;
    if vdev_zaps {
        create_zap_map(&mos, tx, &engine.tree, &*features)?;
    }
    for (top, spec) in engine.tree.tops().iter().zip(&spec.tops) {
        write_bias(&mos, tx, top, spec.bias, &*features)?;
    }
    let aux = create_dspares(&engine.env, &mos, tx, &engine.tree, &*features)?;
    let dsl = Arc::new(Dsl::create(
        &mos,
        tx,
        version,
        features.clone(),
        &spec.name,
    )?);
    let shares = Arc::new(Shares::open(&mos, &engine.zio, &features)?);
    let deferred = Bpobj::create_with(&mos, tx, version, false, 16 << 10, Compression::OFF)?;
    z.add_u64(tx, "sync_bplist", deferred.object())?;
    Ok(Pool::assemble(Parts {
        engine,
        mos,
        dsl,
        maps,
        config: Configuration {
            features,
            store,
            shared: Mutex::new(Shared {
                name: spec.name.clone(),
                label_name: None,
                version,
                extra: spec.extra.clone(),
                split_guid: None,
            }),
            readonly: false,
            object: config_object,
            vdev_zaps,
            software_version: version,
            dirty: AtomicBool::new(true),
            props: Mutex::default(),
            missing_log: false,
            rewound: None,
            checkpoint_txg: Txg::NONE,
            tunables: spec.tunables,
        },
        shares,
        aux,
        uberblock: Uberblock::default(),
        first_txg: Txg::INITIAL,
        first_group: Txg::INITIAL,
        deferred_frees: 0,
        dtls: HashMap::new(),
        heart: Default::default(),
    }))
}

/// The features of a new pool, if its version has any.
fn create_features(
    mos: &Arc<Objset>,
    tx: &Tx,
    spec: &CreateSpec,
) -> Result<Option<Arc<FeatureStore>>> {
    if spec.version < VERSION_FEATURES {
        return Ok(None);
    }
    let s = Arc::new(FeatureStore::create(mos, tx)?);
    // The feature that records when others are enabled comes first.
    for f in spec.features.iter().filter(|f| f.name == "enabled_txg") {
        s.enable(tx, f)?;
    }
    for f in &spec.features {
        s.enable(tx, f)?;
    }
    Ok(Some(s))
}

impl Pool {
    /// Checks a name of the new pool's devices for use by this very process.
    pub fn uses_path(&self, path: &str) -> bool {
        self.tree()
            .leaves()
            .iter()
            .any(|l| l.path().as_deref() == Some(path))
    }

    /// The directory entry `key` of the MOS.
    pub(crate) fn directory(&self, key: &str) -> Result<Option<u64>> {
        Zap::new(&self.mos().hold(1)?)
            .get(key)
            .map_err(|e: Error| e.context(format!("MOS directory entry {key}")))
    }
}
