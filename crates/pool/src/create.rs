//! Making a pool (pool format §30): devices, MOS, directory, features, first datasets, all in the
//! first group.

use crate::config::create_nvlist;
use crate::devices::{SpaceAllocator, TreeDevices};
use crate::indirect::Removed;
use crate::shared::Shares;
use crate::spacemaps::TopShape;
use crate::spares::create_dspares;
use crate::sync::SyncState;
use crate::{ErrLog, MapFeatures, MapLoader, Pool, Shared, SpaceMaps, Tunables, VERSION_FEATURES};
use base::{bail, Error, Result, TXG_INITIAL};
use disk::feature::Feature;
use disk::uberblock::Uberblock;
use disk::{os_type, ObjType};
use dmu::{Dmu, DmuOptions, NewObject, Objset, Tx, WritePolicy};
use dsl::{Bpobj, Dsl, FeatureStore, Features, NewKey, NoFeatures};
use env::Env;
use space::{Class, Space};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::sync::{Arc, Condvar, Mutex};
use vdev::{keys, TopSpec, VdevTree};
use zap::{Value, Zap};
use zio::{Zio, ZioOptions};

/// Vdevs with more metaslabs than this set one aside for the intent log (pool format §16.6).
pub(crate) const EMBEDDED_LOG_MIN_MS: u64 = 64;

/// What the new pool shall be.
pub struct CreateSpec {
    pub name: String,
    pub tops: Vec<TopSpec>,
    /// 1…28 or 5000.
    pub version: u64,
    /// Features to enable (version 5000); dependencies are added.
    pub features: Vec<&'static Feature>,
    /// Keys of the configuration such as `comment`.
    pub extra: Vec<(String, String)>,
    /// Text for the first history record, the command line.
    pub command: String,
    pub tunables: Tunables,
}

/// The policy of the MOS.
pub(crate) fn mos_policy(version: u64, f: &dyn Features) -> WritePolicy {
    WritePolicy {
        compress: meta_compress(f),
        checksum: 7,
        copies: 3,
        meta_compress: meta_compress(f),
        hole_birth: f.is_active("com.delphix:hole_birth"),
        embedded_data: f.is_active("com.delphix:embedded_data"),
        max_copies: if version < 2 { 1 } else { 3 },
        is_mos: true,
        used_bytes: version >= 3,
        accounting_flags: 0,
        indblkshift: if version < VERSION_FEATURES { 14 } else { 17 },
        ..WritePolicy::default()
    }
}

pub(crate) fn meta_compress(f: &dyn Features) -> u8 {
    if f.is_active("org.illumos:lz4_compress") {
        codec::compress::LZ4
    } else {
        codec::compress::LZJB
    }
}

/// Key of a top-level vdev's ZAP: what the vdev is for.
const BIAS: &str = "org.zfsonlinux:allocation_bias";

/// What a top-level vdev is for.
pub(crate) fn class_of(mos: &Arc<Objset>, t: &vdev::Vdev) -> Result<Class> {
    if t.is_log() {
        return Ok(Class::Log);
    }
    let Some(o) = t.get_u64(keys::ZAP_TOP).filter(|o| *o != 0) else {
        return Ok(Class::Normal);
    };
    let bias = match Zap::new(&mos.hold(o)?).get_value(BIAS)? {
        Some(v) => v.to_text()?,
        None => return Ok(Class::Normal),
    };
    match bias.as_str() {
        "special" => Ok(Class::Special),
        "dedup" => Ok(Class::Dedup),
        "log" => Ok(Class::Log),
        _ => bail!(Unsupported, "{} is a device for '{bias}'", t.name()),
    }
}

/// Tells the allocator about the top-level vdevs that hold blocks.
pub(crate) fn add_tops(
    tree: &VdevTree,
    space: &Space,
    class: &dyn Fn(&vdev::Vdev) -> Result<Class>,
) -> Result<()> {
    for t in tree.tops().iter().filter(|t| t.is_concrete()) {
        space.add_top(space::TopSpec {
            id: t.id(),
            asize: t.asize(),
            ashift: t.ashift(),
            ms_shift: t.metaslab_shift(),
            class: class(t)?,
            deflate_ratio: t.deflate_ratio(),
            children: t.children().len().max(1) as u64,
            align: t.alloc_unit(),
        })?;
        space.set_writable(t.id(), t.state().usable())?;
        let passive = t.get_u64(keys::NON_ALLOCATING).unwrap_or(0) != 0;
        space.set_allocating(t.id(), !passive)?;
    }
    Ok(())
}

impl Pool {
    /// Creates the pool and writes its first group. `init` fills the root file system's new object
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
            TXG_INITIAL,
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
        let space = Arc::new(Space::new());
        add_tops(&tree, &space, &|t| match t.is_log() {
            true => Ok(Class::Log),
            false => Ok(Class::Normal),
        })?;
        space.choose_embedded_logs(EMBEDDED_LOG_MIN_MS);
        let removed = Arc::new(Removed::new(tree.clone()));
        let devices = Arc::new(TreeDevices::new(tree.clone()));
        devices.set_deflates(spec.version >= 3);
        let zio = Arc::new(Zio::new(
            devices,
            Arc::new(SpaceAllocator {
                space: space.clone(),
                removed: removed.clone(),
            }),
            ZioOptions {
                cache_bytes: spec.tunables.cache_bytes,
                seed: env.rng.u64(),
                writable: true,
            },
        ));
        let dmu = Dmu::new(
            env.clone(),
            zio.clone(),
            DmuOptions {
                dirty_max: spec.tunables.dirty_max,
                first_txg: TXG_INITIAL,
            },
        );
        let group = dmu.begin_sync()?;
        let tx = dmu.syncing_tx(group.txg);
        let version = spec.version;
        let size = if version < 15 { 1024 } else { 4096 };
        let mut policy = mos_policy(version, &NoFeatures);
        let mos = Objset::create(&dmu, 0, &tx, os_type::META, size, policy.clone())?;
        let dir = mos.claim(
            &tx,
            1,
            &NewObject {
                obj_type: ObjType::OBJECT_DIRECTORY,
                ..NewObject::default()
            },
        )?;
        let z = Zap::new(&dir);
        z.create(&tx, 0)?;
        let store = if version >= VERSION_FEATURES {
            let s = Arc::new(FeatureStore::create(&mos, &tx)?);
            // The feature that records when others are enabled comes first.
            for f in spec.features.iter().filter(|f| f.name == "enabled_txg") {
                s.enable(&tx, f)?;
            }
            for f in &spec.features {
                s.enable(&tx, f)?;
            }
            Some(s)
        } else {
            None
        };
        let features: Arc<dyn Features> = match &store {
            Some(s) => s.clone(),
            None => Arc::new(NoFeatures),
        };
        policy = mos_policy(version, &*features);
        mos.set_policy(policy);
        let config_object = create_nvlist(&mos, &tx)?;
        z.add_u64(&tx, "config", config_object)?;
        if version >= 3 {
            z.add_u64(&tx, "deflate", 1)?;
        }
        if version >= 20 {
            z.add_u64(&tx, "creation_version", version)?;
        }
        let mut salt = [0; 32];
        env.rng.fill(&mut salt);
        if version >= VERSION_FEATURES {
            z.add(&tx, "org.illumos:checksum_salt", &Value::bytes(&salt))?;
            zio.set_salt(salt);
        }
        let maps = Arc::new(SpaceMaps::new(mos.clone()));
        space.set_loader(Some(Arc::new(MapLoader(Arc::downgrade(&maps)))));
        let vdev_zaps = version >= VERSION_FEATURES;
        if vdev_zaps {
            create_vdev_zaps(&mos, &tx, &tree, &*features)?;
        }
        let aux = create_dspares(&env, &mos, &tx, &tree, &*features)?;
        let dsl = Arc::new(Dsl::create(
            &mos,
            &tx,
            version,
            features.clone(),
            &spec.name,
        )?);
        let shares = Arc::new(Shares::open(&mos, &zio, &features, &tree)?);
        let deferred =
            Bpobj::create_with(&mos, &tx, version, false, 16 << 10, codec::compress::OFF)?;
        z.add_u64(&tx, "sync_bplist", deferred.object())?;
        let pool = Arc::new_cyclic(|me| Pool {
            env,
            tree,
            space,
            removed,
            zio,
            dmu,
            mos,
            dsl,
            maps,
            features,
            store,
            shares,
            shared: Mutex::new(Shared {
                name: spec.name.clone(),
                label_name: None,
                version,
                extra: spec.extra.clone(),
            }),
            readonly: false,
            config_object,
            vdev_zaps,
            software_version: version,
            aux,
            sync: Mutex::new(SyncState {
                uberblock: Uberblock::default(),
                config_dirty: true,
                state: keys::pool::STATE_ACTIVE,
                flush_all: false,
                force: true,
                closed: false,
            }),
            tasks: Default::default(),
            io: Default::default(),
            service: Default::default(),
            asked: Mutex::default(),
            force_next: Default::default(),
            kicked: (Mutex::new(false), Condvar::new()),
            dtls: Mutex::new(HashMap::new()),
            config_dirty: AtomicBool::new(true),
            jobs: crate::jobs::Jobs::new(crate::freeing::standing()),
            owed: AtomicU32::new(0),
            sets: Mutex::default(),
            errlog: ErrLog::default(),
            heart: Default::default(),
            history_lost: Default::default(),
            me: me.clone(),
            first_txg: TXG_INITIAL,
            first_group: TXG_INITIAL,
            rewound: None,
            checkpoint_txg: 0,
            deferred_frees: 0,
            logged: Mutex::default(),
            tunables: spec.tunables,
        });
        pool.wire();
        for t in pool.tree.tops().iter() {
            let f: &dyn MapFeatures = &*pool;
            let shape = TopShape::of(t, &pool.space);
            let array = pool.maps.create_top(&tx, f, shape)?;
            t.set_u64(keys::METASLAB_ARRAY, array);
        }
        let ds = pool.dsl.create_root_dataset(&tx, Default::default())?;
        if let Some(key) = key {
            pool.dsl.encrypt_root(&tx, &ds, key)?;
        }
        let os = pool.new_objset(&tx, &ds, os_type::ZFS)?;
        init(&pool, &os, &tx)?;
        pool.log_versions(&tx, "create")?;
        pool.log_in(&tx, &spec.command, 0)?;
        // From here on nothing can fail but the devices.
        let tops: Vec<u64> = pool.tree.tops().iter().map(|t| t.id()).collect();
        pool.tree
            .init_labels(&pool.label_base(0, 0), &tops, TXG_INITIAL)?;
        pool.first_group(&tx)?;
        pool.sync()?;
        Ok(pool)
    }

    /// Connects what refers to each other.
    pub(crate) fn wire(self: &Arc<Self>) {
        let driver: std::sync::Weak<dyn dmu::Driver> = self.me.clone();
        self.dmu.set_driver(driver);
        let space: std::sync::Weak<dyn dsl::PoolSpace> = self.me.clone();
        self.dsl.set_space(space);
        let me = self.me.clone();
        self.dmu.set_on_damage(Box::new(move |d| {
            if let Some(pool) = me.upgrade() {
                pool.errlog.note(d, !pool.readonly);
            }
        }));
        let shares: std::sync::Weak<Shares> = Arc::downgrade(&self.shares);
        self.zio.set_sharing(shares);
        let waits: std::sync::Weak<dyn zio::Waits> = self.me.clone();
        self.zio.set_waits(waits);
    }
}

/// One ZAP per vdev (pool format §16.8).
fn create_vdev_zaps(
    mos: &Arc<Objset>,
    tx: &Tx,
    tree: &VdevTree,
    features: &dyn Features,
) -> Result<()> {
    let map = zap::create_object(mos, tx, ObjType::ZAP_METADATA, 0)?;
    Zap::new(&mos.hold(1)?).add_u64(tx, "com.delphix:vdev_zap_map", map.object())?;
    let z = Zap::new(&map);
    let make = || -> Result<u64> {
        let o = zap::create_object(mos, tx, ObjType::ZAP_METADATA, 0)?.object();
        z.add_int(tx, o)?;
        Ok(o)
    };
    let v2 = "com.klarasystems:vdev_zaps_v2";
    if features.is_enabled(v2) {
        tree.set_root_u64(keys::ZAP_ROOT, make()?);
        features.activate(tx, v2, 1)?;
    }
    for t in tree.tops().iter() {
        t.set_u64(keys::ZAP_TOP, make()?);
        for l in t.leaves() {
            l.set_u64(keys::ZAP_LEAF, make()?);
        }
    }
    Ok(())
}

impl Pool {
    /// Checks a name of the new pool's devices for use by this very process.
    pub fn uses_path(&self, path: &str) -> bool {
        self.tree
            .leaves()
            .iter()
            .any(|l| l.path().as_deref() == Some(path))
    }

    /// The directory entry `key` of the MOS.
    pub(crate) fn directory(&self, key: &str) -> Result<Option<u64>> {
        Zap::new(&self.mos.hold(1)?)
            .get(key)
            .map_err(|e: Error| e.context(format!("MOS directory entry {key}")))
    }
}
