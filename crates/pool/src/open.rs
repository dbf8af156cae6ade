//! Opening a pool (pool format §6.2), closing it, exporting and destroying it.

use crate::config::read_nvlist;
use crate::create::{add_tops, class_of, mos_policy, EMBEDDED_LOG_MIN_MS};
use crate::devices::{SpaceAllocator, TreeDevices};
use crate::indirect::Removed;
use crate::logstore::Store;
use crate::multihost::{admit, Activity, Multihost};
use crate::shared::Shares;
use crate::spacemaps::TopShape;
use crate::spares::AuxDevices;
use crate::sync::SyncState;
use crate::{ErrLog, MapLoader, Pool, Shared, SpaceMaps, Tunables, VERSION_FEATURES};
use base::sync::MutexExt;
use base::{bail, Error, Kind, Result, Txg};
use codec::crypt::Crypt;
use disk::dsl::BpobjPhys;
use disk::uberblock::Uberblock;
use disk::{feature, NvList};
use dmu::{Dmu, DmuOptions, Objset};
use dsl::{Bpobj, Dataset, Dsl, FeatureStore, Features, NoFeatures};
use env::{Access, Env};
use space::Space;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::sync::{Arc, Condvar, Mutex};
use vdev::{keys, State, VdevTree};
use zap::Zap;
use zil::Header;
use zio::{Scope, Zio, ZioOptions};

/// How to open.
#[derive(Clone, Debug, Default)]
pub struct OpenOptions {
    pub readonly: bool,
    /// New name, if it shall be renamed.
    pub name: Option<String>,
    /// `name` is for this import only: the labels keep the old one.
    pub temporary: bool,
    /// Go on without log devices that are missing (their last records are lost).
    pub missing_log: bool,
    /// Newest uberblock to use.
    pub txg: Option<Txg>,
    /// If the newest state cannot be opened, go back to an older one.
    pub rewind: Rewind,
    /// Go back to the checkpoint.
    pub checkpoint: bool,
    /// What is known about other hosts.
    pub activity: Activity,
    /// Rules for heartbeats.
    pub multihost: Multihost,
    pub tunables: Tunables,
}

/// How far to go back if the newest state cannot be opened (behaviour §14.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rewind {
    #[default]
    No,
    /// As far as nothing freed meanwhile can have been overwritten (`-F`).
    Safe,
    /// As far as there are uberblocks; all metadata are read to see whether a state is whole (`-X`).
    Extreme,
}

/// Groups a state stays whole for after it has been left: what they free is not used again yet.
const SAFE_GROUPS: Txg = 2;
/// Groups whose metadata are read to see whether a state is whole.
const CHECKED_GROUPS: Txg = 3;
/// Directory entry of the checkpoint's uberblock.
const CHECKPOINT: &str = "com.delphix:zpool_checkpoint";
/// Directory entry of pools that count space without parity and padding.
const DEFLATE: &str = "deflate";

struct Engine {
    tree: Arc<VdevTree>,
    space: Arc<Space>,
    removed: Arc<Removed>,
    zio: Arc<Zio>,
    dmu: Arc<Dmu>,
    mos: Arc<Objset>,
}

/// Copies the device paths of one tree into another, leaf by guid.
fn copy_paths(from: &VdevTree, to: &VdevTree) {
    for leaf in from.leaves() {
        if let (Some(v), Some(path)) = (to.find(leaf.guid()), leaf.path()) {
            v.set_path(&path);
        }
    }
}

/// Changes of the device tree that only their own software can carry on forbid writing.
fn refuse_half_done(tree: &VdevTree) -> Result<()> {
    for t in tree.tops().iter() {
        let what = if t.is_expanding() {
            "expanded"
        } else if t.get_u64(keys::REMOVING).is_some_and(|v| v != 0) {
            "removed"
        } else {
            continue;
        };
        bail!(
            Unsupported,
            "{} is being {what}, and this software cannot go on with that; \
             import the pool with '-o readonly=on'",
            t.name()
        );
    }
    Ok(())
}

/// `newest`: last group anywhere on the devices; groups to come are numbered after it.
fn engine(
    env: &Env,
    tree: Arc<VdevTree>,
    ub: &Uberblock,
    newest: Txg,
    opts: &OpenOptions,
) -> Result<Engine> {
    tree.set_reflow(ub);
    let space = Arc::new(Space::new());
    let removed = Arc::new(Removed::new(tree.clone()));
    let devices = Arc::new(TreeDevices::new(tree.clone()));
    let zio = Arc::new(Zio::new(
        devices.clone(),
        Arc::new(SpaceAllocator {
            space: space.clone(),
            removed: removed.clone(),
        }),
        ZioOptions {
            cache_bytes: opts.tunables.cache_bytes,
            seed: env.rng.u64(),
            writable: !opts.readonly,
        },
    ));
    let dmu = Dmu::new(
        env.clone(),
        zio.clone(),
        DmuOptions {
            dirty_max: opts.tunables.dirty_max,
            first_txg: newest.max(ub.txg).saturating_add(1),
        },
    );
    let policy = mos_policy(ub.version, &NoFeatures);
    let mos = Objset::open(&dmu, 0, &ub.rootbp, policy, opts.readonly)
        .map_err(|e| e.context("the pool's meta object set"))?;
    devices.set_deflates(directory(&mos, DEFLATE)?.is_some_and(|v| v != 0));
    Ok(Engine {
        tree,
        space,
        removed,
        zio,
        dmu,
        mos,
    })
}

/// Root blocks of datasets that an import reads at once.
const ROOTS_AHEAD: usize = 64;

/// Whether an older state may help.
fn is_damage(e: &Error) -> bool {
    matches!(e.kind, Kind::Damaged | Kind::Checksum | Kind::Io)
}

fn directory(mos: &Arc<Objset>, key: &str) -> Result<Option<u64>> {
    Zap::new(&mos.hold(1)?)
        .get(key)
        .map_err(|e| e.context(format!("MOS directory entry {key}")))
}

fn need(mos: &Arc<Objset>, key: &str) -> Result<u64> {
    directory(mos, key)?.ok_or_else(|| Error::damaged(format!("MOS directory has no '{key}'")))
}

/// The newest state of a pool and the configuration that belongs to it.
struct Newest {
    /// From the trusted configuration, with the paths of the devices found; not opened.
    tree: VdevTree,
    ub: Uberblock,
    /// The newest uberblock there is, which may not be the one wanted: group and time.
    latest: (Txg, u64),
    trusted: NvList,
    /// Object of the configuration.
    object: u64,
}

/// Finds the newest state on the devices `config` names, and reads what it says of itself.
fn newest(env: &Env, config: &NvList, opts: &OpenOptions) -> Result<Newest> {
    // What the labels say is only good enough to find the newest state.
    let untrusted = VdevTree::from_config(env.clone(), config.need_nvlist(keys::pool::VDEV_TREE)?)?;
    untrusted.open(Access::Read);
    untrusted.validate(Txg::MAX, false);
    let untrusted = Arc::new(untrusted);
    let r = newest_of(env, config, opts, &untrusted);
    untrusted.close();
    r
}

/// The same, on a tree that is open for reading.
fn newest_of(
    env: &Env,
    config: &NvList,
    opts: &OpenOptions,
    untrusted: &Arc<VdevTree>,
) -> Result<Newest> {
    let limit = opts.txg.unwrap_or(Txg::MAX);
    let Some((ub, label)) = untrusted.best_uberblock(limit) else {
        bail!(NoDevice, "no valid uberblock on any device");
    };
    let latest = match untrusted.best_uberblock(Txg::MAX) {
        Some((l, _)) => {
            admit(&l, opts.activity, opts.readonly)?;
            // Going back does not move sectors back to where they were.
            if l.raidz_reflow_info != ub.raidz_reflow_info {
                bail!(
                    Unsupported,
                    "a RAID-Z was being expanded since group {}: the pool cannot go back to it",
                    ub.txg
                );
            }
            (l.txg, l.timestamp)
        }
        None => (ub.txg, ub.timestamp),
    };
    if ub.txg == Txg::MAX || latest.0 >= Txg::MAX - 8 {
        bail!(Damaged, "uberblock of group {}", latest.0);
    }
    if !(1..=28).contains(&ub.version) && ub.version != VERSION_FEATURES {
        bail!(Unsupported, "pool version {} is not supported", ub.version);
    }
    if ub.version == VERSION_FEATURES {
        let list = label
            .as_ref()
            .unwrap_or(config)
            .get_nvlist(keys::pool::FEATURES_FOR_READ)
            .cloned()
            .unwrap_or_default();
        let unknown: Vec<String> = list
            .iter()
            .map(|(n, _)| n.to_string())
            .filter(|g| !feature::by_guid(g).is_some_and(|f| f.supported || f.readable))
            .collect();
        if !unknown.is_empty() {
            bail!(
                Unsupported,
                "the pool uses features this software cannot read: {}",
                unknown.join(", ")
            );
        }
    }
    let look = OpenOptions {
        readonly: true,
        ..opts.clone()
    };
    let mut ub = ub;
    let mut first = engine(env, untrusted.clone(), &ub, ub.txg, &look)?;
    if opts.checkpoint {
        let words = Zap::new(&first.mos.hold(1)?).get_value(CHECKPOINT)?;
        let Some(words) = words else {
            bail!(NotFound, "the pool has no checkpoint");
        };
        let bytes: Vec<u8> = words.ints().iter().flat_map(|w| w.to_le_bytes()).collect();
        let kept = Uberblock::decode(&bytes).map_err(|e| e.context("checkpoint"))?;
        if kept.txg == 0 || kept.txg > ub.txg {
            bail!(Damaged, "checkpoint of group {}", kept.txg);
        }
        ub = Uberblock {
            checkpoint_txg: kept.txg,
            ..kept
        };
        first = engine(env, untrusted.clone(), &ub, ub.txg, &look)?;
    }
    let object = need(&first.mos, "config")?;
    let trusted = read_nvlist(&first.mos, object)?;
    // Callers have judged the guid that the labels have.
    let guid = |c: &NvList| c.get_u64(keys::pool::POOL_GUID);
    if guid(&trusted).is_some_and(|g| guid(config) != Some(g)) {
        bail!(
            Damaged,
            "its labels and its own configuration name different pools"
        );
    }
    drop(first);
    let tree = VdevTree::from_config(env.clone(), trusted.need_nvlist(keys::pool::VDEV_TREE)?)?;
    copy_paths(untrusted, &tree);
    Ok(Newest {
        tree,
        ub,
        latest,
        trusted,
        object,
    })
}

impl Pool {
    /// Opens the pool that `config` (from discovery or a cache file) describes.
    pub fn open(env: Env, config: &NvList, opts: OpenOptions) -> Result<Arc<Pool>> {
        let name = config.get_str(keys::pool::NAME).unwrap_or("?").to_string();
        let r = match Self::open_inner(&env, config, &opts) {
            Err(e) if opts.rewind != Rewind::No && is_damage(&e) => {
                Self::rewind(&env, config, &opts, e)
            }
            r => r,
        };
        r.map_err(|e| {
            let kind = e.kind;
            Error::new(kind, format!("cannot import '{name}': {e}"))
        })
    }

    /// Tries older and older states until one is whole; `why` the newest is not.
    fn rewind(env: &Env, config: &NvList, opts: &OpenOptions, why: Error) -> Result<Arc<Pool>> {
        let tree = VdevTree::from_config(env.clone(), config.need_nvlist(keys::pool::VDEV_TREE)?)?;
        tree.open(Access::Read);
        tree.validate(Txg::MAX, false);
        let mut txgs = tree.uberblock_txgs();
        tree.close();
        let newest = txgs.first().copied().unwrap_or(0);
        let limit = opts.txg.unwrap_or(Txg::MAX);
        txgs.retain(|t| *t < newest && *t <= limit);
        if opts.rewind == Rewind::Safe {
            txgs.retain(|t| *t >= newest.saturating_sub(SAFE_GROUPS));
        }
        let name = config.get_str(keys::pool::NAME).unwrap_or("?");
        tracing::debug!(pool = name, txg = newest, %why, states = txgs.len(), "newest state is damaged");
        for txg in txgs {
            // Looked at without writing first: only what is whole is worth losing the rest for.
            let look = OpenOptions {
                readonly: true,
                txg: Some(txg),
                ..opts.clone()
            };
            let after = match opts.rewind {
                Rewind::Extreme => 0,
                _ => txg.saturating_sub(CHECKED_GROUPS),
            };
            let Ok(pool) = Self::open_inner(env, config, &look) else {
                continue;
            };
            let whole = pool.check_metadata(after);
            tracing::debug!(
                pool = name,
                txg,
                whole = whole.is_ok(),
                "an older state was checked"
            );
            if whole.is_ok() && opts.readonly {
                return Ok(pool);
            }
            let _ = pool.close();
            if whole.is_ok() {
                let real = OpenOptions {
                    txg: Some(txg),
                    ..opts.clone()
                };
                return Self::open_inner(env, config, &real);
            }
        }
        Err(why)
    }

    /// The device tree as the pool itself describes it, devices that were not found included,
    /// opened for reading: a look that writes nothing.
    pub fn peek(env: &Env, config: &NvList) -> Result<VdevTree> {
        let found = newest(env, config, &OpenOptions::default())?;
        found.tree.open(Access::Read);
        found.tree.validate(found.ub.txg, true);
        found.tree.propagate();
        Ok(found.tree)
    }

    /// The features because of which this software can neither read the pool (first) nor write it
    /// (second), each with what the pool says it is: a look, likewise.
    pub fn peek_features(env: &Env, config: &NvList) -> Result<[Vec<(String, String)>; 2]> {
        let look = OpenOptions {
            readonly: true,
            ..OpenOptions::default()
        };
        let found = newest(env, config, &look)?;
        found.tree.open(Access::Read);
        found.tree.validate(found.ub.txg, true);
        let tree = Arc::new(found.tree);
        let lists = Self::features_on(env, &tree, (&found.ub, found.latest.0), &look);
        tree.close();
        lists
    }

    fn features_on(
        env: &Env,
        tree: &Arc<VdevTree>,
        (ub, newest): (&Uberblock, Txg),
        look: &OpenOptions,
    ) -> Result<[Vec<(String, String)>; 2]> {
        let e = engine(env, tree.clone(), ub, newest, look)?;
        let store = FeatureStore::open(&e.mos)?;
        let told = |g: String| {
            let text = store.description(&g).ok().flatten().unwrap_or_default();
            (g, text)
        };
        let (read, write) = store.unsupported();
        Ok([read, write].map(|l| l.into_iter().map(told).collect()))
    }

    fn open_inner(env: &Env, config: &NvList, opts: &OpenOptions) -> Result<Arc<Pool>> {
        let Newest {
            tree,
            ub,
            latest,
            trusted,
            object,
        } = newest(env, config, opts)?;
        let tree = Arc::new(tree);
        let found = (ub, latest, trusted, object);
        let r = Self::open_tree(env, config, opts, &tree, found);
        if r.is_err() {
            // Half of the pool may be alive still, its parts referring to each other; nobody may find
            // its devices in use for that.
            tree.close();
        }
        r
    }

    /// Opens the devices and what is on them.
    fn open_tree(
        env: &Env,
        config: &NvList,
        opts: &OpenOptions,
        tree: &Arc<VdevTree>,
        (ub, latest, trusted, object): (Uberblock, (Txg, u64), NvList, u64),
    ) -> Result<Arc<Pool>> {
        tree.open(if opts.readonly {
            Access::Read
        } else {
            Access::Exclusive
        });
        // Who goes back on purpose finds labels that are newer than the state wanted.
        let back = opts.txg.is_some() || opts.checkpoint;
        let (txg, newest, readonly) = (ub.txg, latest.0, opts.readonly);
        let name = config.get_str(keys::pool::NAME).unwrap_or("?");
        tracing::debug!(
            pool = name,
            txg,
            newest,
            readonly,
            back,
            "import chose a state"
        );
        let limit = if back { Txg::MAX } else { ub.txg };
        tree.validate(limit, true);
        tree.propagate();
        if tree.guid_sum() != ub.guid_sum {
            bail!(
                NoDevice,
                "the devices found do not add up to the pool (bad guid sum)"
            );
        }
        for t in tree.tops().iter() {
            if t.is_concrete() && !t.state().usable() && !(t.is_log() && opts.missing_log) {
                let what = if t.is_log() {
                    "a log device is missing; import with -m to go on without it"
                } else {
                    "one or more devices is currently unavailable"
                };
                bail!(NoDevice, "{what} ({})", t.name());
            }
        }
        let (state, _) = tree.state();
        if state < State::Degraded && !opts.missing_log {
            bail!(NoDevice, "one or more devices is currently unavailable");
        }
        if !opts.readonly {
            refuse_half_done(tree)?;
        }
        let e = engine(env, tree.clone(), &ub, latest.0, opts)?;
        crate::indirect::load(&e.mos, &e.tree)?;
        let paths = config.get_nvlist(vdev::discover::AUX_PATHS);
        let name = config.get_str(keys::pool::NAME).map(str::to_string);
        let now = (ub, latest);
        let r = Self::load(
            env.clone(),
            e,
            now,
            (trusted, name),
            (object, paths),
            opts.clone(),
        );
        if opts.checkpoint {
            return r.map_err(|e| e.context("the checkpoint"));
        }
        r
    }

    fn load(
        env: Env,
        e: Engine,
        (ub, latest): (Uberblock, (Txg, u64)),
        (trusted, label_name): (NvList, Option<String>),
        (config_object, aux_paths): (u64, Option<&NvList>),
        opts: OpenOptions,
    ) -> Result<Arc<Pool>> {
        let version = ub.version;
        let store = if version >= VERSION_FEATURES {
            Some(Arc::new(FeatureStore::open(&e.mos)?))
        } else {
            None
        };
        if let Some(s) = &store {
            let (read, write) = s.unsupported();
            if !read.is_empty() {
                bail!(
                    Unsupported,
                    "the pool uses features this software cannot read: {}",
                    read.join(", ")
                );
            }
            if !write.is_empty() && !opts.readonly {
                bail!(
                    Unsupported,
                    "the pool uses features this software cannot write: {}; \
                     import it with '-o readonly=on'",
                    write.join(", ")
                );
            }
        }
        let features: Arc<dyn Features> = match &store {
            Some(s) => s.clone(),
            None => Arc::new(NoFeatures),
        };
        e.mos.set_policy(mos_policy(version, &*features));
        if let Some(v) = Zap::new(&e.mos.hold(1)?).get_value("org.illumos:checksum_salt")? {
            let ints = v.ints();
            let salt: Vec<u8> = ints.iter().map(|x| *x as u8).collect();
            match <[u8; 32]>::try_from(salt) {
                Ok(s) => e.zio.set_salt(s),
                Err(_) => bail!(Damaged, "checksum salt of {} bytes", ints.len()),
            }
        }
        // Of the name in the labels callers know whether it is free. The pool's own configuration
        // has the same, unless a renaming was cut short or somebody forged it.
        let old_name = match label_name {
            Some(name) => name,
            None => trusted.need_str(keys::pool::NAME)?.to_string(),
        };
        let name = opts.name.clone().unwrap_or_else(|| old_name.clone());
        let label_name = opts.temporary.then_some(old_name);
        let dsl = Arc::new(Dsl::open(&e.mos, version, features.clone(), &name)?);
        let maps = Arc::new(SpaceMaps::new(e.mos.clone()));
        add_tops(&e.tree, &e.space, &|t| class_of(&e.mos, t))?;
        for t in e.tree.tops().iter().filter(|t| t.is_concrete()) {
            maps.open_top(t.metaslab_array(), TopShape::of(t, &e.space))?;
        }
        if let Some(z) = directory(&e.mos, "com.delphix:log_spacemap_zap")? {
            maps.open_logs(z)?;
        }
        maps.give_hints(&e.space)?;
        e.space.choose_embedded_logs(EMBEDDED_LOG_MIN_MS);
        e.space
            .set_loader(Some(Arc::new(MapLoader(Arc::downgrade(&maps)))));
        let mut dtls = HashMap::new();
        for leaf in e.tree.leaves() {
            if let Some(o) = leaf.get_u64(keys::DTL).filter(|o| *o != 0) {
                let ranges = maps.read_dtl(o)?;
                dtls.insert(leaf.guid(), ranges.clone());
                // That it had nothing good to give before anybody knew what it misses is no fault
                // of the device.
                if !ranges.is_empty() {
                    leaf.stats.clear_errors();
                }
                leaf.set_dtl(ranges);
            }
            // A leaf that is not there misses everything from now on.
            if !leaf.state().usable() && !opts.readonly {
                leaf.dtl_add_range(ub.txg + 1, ub.txg + 2);
            }
        }
        // Who lacks something is known only now.
        e.tree.propagate();
        let aux = match AuxDevices::read(&e.mos, aux_paths) {
            // For reading, who stands by does not matter.
            Err(_) if opts.readonly => AuxDevices::default(),
            list => list?,
        };
        let shares = Arc::new(Shares::open(&e.mos, &e.zio, &features, &e.tree)?);
        let vdev_zaps = directory(&e.mos, "com.delphix:vdev_zap_map")?.is_some();
        let deferred_frees = match directory(&e.mos, "sync_bplist")? {
            // Figures are no reason to refuse reading.
            Some(object) if opts.readonly => {
                Bpobj::open(&e.mos, object).map_or(0, |b| b.space().used.max(0) as u64)
            }
            _ => 0,
        };
        let mut extra = Vec::new();
        for k in ["comment", "compatibility"] {
            if let Some(v) = trusted.get_str(k) {
                extra.push((k.to_string(), v.to_string()));
            }
        }
        let pool = Arc::new_cyclic(|me| Pool {
            env,
            tree: e.tree,
            space: e.space,
            removed: e.removed,
            zio: e.zio,
            dmu: e.dmu,
            mos: e.mos,
            dsl,
            maps,
            features,
            store,
            shares,
            shared: Mutex::new(Shared {
                name,
                label_name,
                version,
                extra,
            }),
            readonly: opts.readonly,
            config_object,
            vdev_zaps,
            software_version: ub.software_version,
            aux,
            first_txg: ub.txg + 1,
            first_group: latest.0.max(ub.txg) + 1,
            rewound: (ub.txg < latest.0)
                .then(|| (ub.timestamp, latest.1.saturating_sub(ub.timestamp))),
            checkpoint_txg: ub.checkpoint_txg,
            deferred_frees,
            logged: Mutex::default(),
            sync: Mutex::new(SyncState {
                uberblock: ub,
                config_dirty: true,
                state: keys::pool::STATE_ACTIVE,
                flush_all: false,
                force: true,
                closed: false,
            }),
            tasks: Mutex::default(),
            io: Default::default(),
            service: Default::default(),
            asked: Mutex::default(),
            force_next: Default::default(),
            kicked: (Mutex::new(false), Condvar::new()),
            dtls: Mutex::new(dtls),
            config_dirty: AtomicBool::new(true),
            more_to_free: AtomicBool::new(true),
            owed: AtomicU32::new(0),
            sets: Mutex::default(),
            errlog: ErrLog::default(),
            heart: crate::multihost::Heart::new(opts.multihost),
            history_lost: Default::default(),
            me: me.clone(),
            tunables: opts.tunables,
        });
        pool.wire();
        pool.load_errlog();
        pool.refresh_multihost()?;
        pool.refresh_dedup_quota()?;
        pool.refresh_failmode()?;
        if !pool.readonly {
            let ub = pool.sync_state().uberblock.clone();
            pool.tree.spread_uberblock(&ub)?;
            pool.claim_logs()?;
            pool.empty_deferred()?;
            pool.sync()?;
        }
        Ok(pool)
    }

    /// The first group: claims what the intent logs hold (pool format §26.3), before anything can
    /// be allocated.
    fn claim_logs(self: &Arc<Self>) -> Result<()> {
        let first = self.first_txg;
        let (highest, logged) = self.task(move |pool, tx| {
            let mut highest = 0;
            let mut logged = Vec::new();
            pool.each_head(&mut |ds| {
                let os = ds.open_objset(pool.write_policy(&ds)?, false)?;
                let mut header = Header::decode(&os.zil_header())?;
                let store = Store::for_claim(pool.me()?, os.clone());
                if pool.checkpoint_txg != 0 && header.claim_txg == 0 && !header.log.is_hole() {
                    // What was logged after the checkpoint is not part of it.
                    pool.drop_log(&store, &header, tx.txg())?;
                    os.set_zil_header(tx, Header::default().encode());
                    return Ok(());
                }
                let c = zil::claim(&store, &mut header, first)
                    .map_err(|e| e.context(format!("intent log of {}", ds.full_name())))?;
                if c.changed {
                    os.set_zil_header(tx, header.encode());
                }
                highest = highest.max(c.max_birth);
                if os.os_type() == disk::os_type::ZVOL && header.flags & zil::FLAG_REPLAY != 0 {
                    logged.push(ds);
                }
                Ok(())
            })?;
            Ok((highest, logged))
        })?;
        *self.logged.acquire() = logged;
        // Claimed blocks may have been born in groups that never reached the disk: births must not
        // be ahead of the pool.
        while self.dmu.synced_txg() < highest {
            self.force_group()?;
        }
        Ok(())
    }

    /// Hands every file system and volume that has an object set on to `f`. Their root blocks are read
    /// many at a time: one by one, a pool of many datasets would wait for a device as many times.
    pub(crate) fn each_head(&self, f: &mut dyn FnMut(Arc<Dataset>) -> Result<()>) -> Result<()> {
        let mut heads = Vec::new();
        self.dsl.walk(&self.dsl.root()?, &mut |d| {
            if d.phys().head_dataset_obj != 0 {
                heads.push(d.head()?);
            }
            Ok(())
        })?;
        heads.retain(|ds| !ds.phys().bp.is_hole());
        for some in heads.chunks(ROOTS_AHEAD) {
            let roots: Vec<_> = some.iter().map(|ds| ds.phys().bp).collect();
            self.zio.read_ahead(&roots, &Crypt::Plain, Scope::All);
            some.iter().try_for_each(|ds| f(ds.clone()))?;
        }
        Ok(())
    }

    /// Frees the log blocks that belong to the checkpoint gone back to.
    fn drop_log(&self, store: &Store, header: &Header, txg: Txg) -> Result<()> {
        let mut own = Vec::new();
        zil::walk(
            store,
            &header.log,
            (u64::MAX, u64::MAX),
            &mut |bp| {
                let old = bp.birth() <= self.checkpoint_txg;
                if old {
                    own.push(*bp);
                }
                Ok(old)
            },
            &mut |_| Ok(true),
        )?;
        for bp in &own {
            self.zio.free(bp, txg)?;
        }
        Ok(())
    }

    /// Writes a group even if nothing changed.
    fn force_group(&self) -> Result<()> {
        let mut st = self.sync_state();
        st.force = true;
        self.sync_group(&mut st).map(|_| ())
    }

    /// Old software leaves blocks to be freed by the next group on `sync_bplist`.
    fn empty_deferred(self: &Arc<Self>) -> Result<()> {
        let Some(object) = self.directory("sync_bplist")? else {
            return Ok(());
        };
        if Bpobj::open(&self.mos, object)?.is_empty() {
            return Ok(());
        }
        self.task(move |pool, tx| {
            let b = Bpobj::open(&pool.mos, object)?;
            b.for_each(&pool.mos, &mut |bp, _| pool.zio.free(bp, tx.txg()))?;
            let dn = pool.mos.hold(object)?;
            dn.free_range(tx, 0, u64::MAX)?;
            let size = dn.bonus().len();
            dn.set_bonus(tx, &BpobjPhys::new(size).encode())
        })
    }

    /// Writes everything, marks the pool exported (1) or destroyed (2), closes the devices. Nobody may
    /// use datasets of it any more.
    fn finish(&self, state: u64) -> Result<()> {
        if self.readonly {
            self.sync_state().closed = true;
            self.dmu.stop_ahead();
            self.tree.close();
            return Ok(());
        }
        self.sync()?;
        let mut st = self.sync_state();
        if state == keys::pool::STATE_EXPORTED {
            st.flush_all = true;
        }
        self.sync_group(&mut st)?;
        // Two groups settle what was freed; the last one carries the new state into the labels.
        st.force = true;
        self.sync_group(&mut st)?;
        st.state = state;
        st.config_dirty = true;
        st.force = true;
        self.sync_group(&mut st)?;
        st.closed = true;
        drop(st);
        self.space.set_loader(None);
        self.dmu.stop_ahead();
        self.tree.close();
        Ok(())
    }

    /// `zpool export`.
    pub fn export(&self) -> Result<()> {
        self.finish(keys::pool::STATE_EXPORTED)
    }

    /// `zpool destroy`: the data stay until something else is written there.
    pub fn destroy(&self) -> Result<()> {
        if self.readonly {
            bail!(ReadOnly, "pool '{}' is imported read-only", self.name());
        }
        self.finish(keys::pool::STATE_DESTROYED)
    }

    /// Lets go of the devices at once, in the middle of whatever goes on, as after a power cut. From
    /// now on the pool is stopped because of `why`. The devices should be kept, so that nobody else
    /// gets them, until transfers under way have landed.
    pub fn abandon(&self, why: Error) -> Vec<vdev::Left> {
        self.stop_for_good(why);
        self.tree.abandon()
    }

    /// Stops without exporting: everything is written, the pool is found active at the next start.
    pub fn close(&self) -> Result<()> {
        let r = if self.readonly {
            Ok(())
        } else {
            self.sync().map(|_| ())
        };
        let mut st = self.sync_state();
        st.closed = true;
        drop(st);
        self.space.set_loader(None);
        self.dmu.stop_ahead();
        self.tree.close();
        r.map_err(|e| {
            if e.kind == Kind::Suspended {
                e
            } else {
                e.context("closing the pool")
            }
        })
    }
}
