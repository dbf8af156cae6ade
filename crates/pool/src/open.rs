//! Opening a pool (pool format §6.2), with a rewind to an older state where the newest cannot be opened.

use crate::configuration::Configuration;
use crate::create::mos_policy;
use crate::engine::{Engine, Parts};
use crate::multihost::Heart;
use crate::newest::{directory, engine, newest, Newest};
use crate::open_options::{OpenOptions, Rewind};
use crate::shared::Shares;
use crate::spares::AuxDevices;
use crate::tops::{has_vdev_zaps, Metaslabs, Rooms};
use crate::{verify, Pool, Shared, SpaceMaps, VERSION_FEATURES};
use base::{bail, Error, Kind, RangeSet, Result, Txg};
use disk::uberblock::Uberblock;
use disk::NvList;
use dmu::Objset;
use dsl::{Bpobj, Dsl, FeatureStore, Features, NoFeatures};
use env::{Access, Env};
use std::collections::HashMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use vdev::{keys, State, VdevTree};
use zap::Zap;

/// Txgs a state stays whole for after it has been left: what they free is not used again yet.
const SAFE_GROUPS: u64 = 2;
/// Txgs whose metadata are read to see whether a state is whole.
const CHECKED_GROUPS: u64 = 3;

/// The features of a pool of version 5000. An error if it has some this software cannot read, or, unless `readonly`, write.
fn open_features(
    mos: &Arc<Objset>,
    version: u64,
    readonly: bool,
) -> Result<Option<Arc<FeatureStore>>> {
    if version < VERSION_FEATURES {
        return Ok(None);
    }
    let store = FeatureStore::open(mos)?;
    let (read, write) = store.unsupported();
    if !read.is_empty() {
        bail!(
            Unsupported,
            "the pool uses features this software cannot read: {}",
            read.join(", ")
        );
    }
    if !write.is_empty() && !readonly {
        bail!(
            Unsupported,
            "the pool uses features this software cannot write: {}; \
             import it with '-o readonly=on'",
            write.join(", ")
        );
    }
    Ok(Some(Arc::new(store)))
}

/// Salted checksums need the pool's salt.
fn load_salt(mos: &Arc<Objset>, e: &Engine) -> Result<()> {
    let Some(v) = Zap::new(&mos.hold(1)?).get_value(disk::mos_keys::CHECKSUM_SALT)? else {
        return Ok(());
    };
    let ints = v.ints();
    let salt: Vec<u8> = ints.iter().map(|x| *x as u8).collect();
    match <[u8; 32]>::try_from(salt) {
        Ok(s) => e.zio.set_salt(s),
        Err(_) => bail!(Damaged, "checksum salt of {} bytes", ints.len()),
    }
    Ok(())
}

/// Registers all top-level vdevs, and what is allocated on them.
fn load_tops(e: &Engine, mos: &Arc<Objset>, shares: &Shares) -> Result<Arc<SpaceMaps>> {
    let maps = e.space_maps(mos);
    let rooms = Rooms {
        mos,
        space: &e.space,
        maps: &maps,
        shares,
        devices: &e.devices,
    };
    for t in e.tree.tops().iter() {
        rooms.register(t, Metaslabs::OnDisk)?;
    }
    if let Some(z) = directory(mos, disk::mos_keys::LOG_SPACEMAP_ZAP)? {
        maps.open_logs(z)?;
    }
    maps.give_hints(&e.space)?;
    rooms.registered();
    Ok(maps)
}

/// Reads what the leaves miss, and tells them. `txg` is on disk.
fn load_dtls(
    tree: &VdevTree,
    maps: &SpaceMaps,
    txg: Txg,
    readonly: bool,
) -> Result<HashMap<u64, RangeSet>> {
    let mut dtls = HashMap::new();
    for leaf in tree.dtl_holders() {
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
        // A leaf that is not there misses everything from now on. Nothing is placed on a log of which no leaf is there.
        let unused = tree.top_of(leaf.guid());
        let unused = unused.is_ok_and(|t| t.is_log() && !t.state().usable());
        if !leaf.state().usable() && !readonly && !unused {
            leaf.dtl_add_range(txg.next(), txg.after(2));
        }
    }
    // Which leaf lacks something is known only now.
    tree.propagate();
    Ok(dtls)
}

/// Whether an older state may help.
fn is_damage(e: &Error) -> bool {
    matches!(e.kind, Kind::Damaged | Kind::Checksum | Kind::Io)
}

impl Pool {
    /// Opens the pool that `config` (from discovery or a cache file) describes.
    pub fn open(env: Env, config: &NvList, opts: OpenOptions) -> Result<Arc<Pool>> {
        let name = config.get_str(keys::pool::NAME).unwrap_or("?").to_string();
        // An older state has the same logs, or less of them: going back does not help.
        let mut by_log = false;
        let r = match Self::open_inner(&env, config, &opts, &mut by_log) {
            Err(e) if opts.rewind != Rewind::No && is_damage(&e) && !by_log => {
                Self::rewind(&env, config, &opts, e)
            }
            r => r,
        };
        r.map_err(|e| {
            let kind = e.kind;
            Error::sentence(kind, format!("cannot import '{name}': {e}"))
        })
    }

    /// Tries older and older states until one is whole; `why` the newest is not.
    fn rewind(env: &Env, config: &NvList, opts: &OpenOptions, why: Error) -> Result<Arc<Pool>> {
        let tree = VdevTree::from_config(env.clone(), config.need_nvlist(keys::pool::VDEV_TREE)?)?;
        tree.open(Access::Read);
        tree.validate(Txg::MAX, false);
        let mut txgs = tree.uberblock_txgs();
        tree.close();
        let newest = txgs.first().copied().unwrap_or_default();
        let limit = opts.txg.unwrap_or(Txg::MAX);
        txgs.retain(|t| *t < newest && *t <= limit);
        if opts.rewind == Rewind::Safe {
            txgs.retain(|t| *t >= newest.before(SAFE_GROUPS));
        }
        let name = config.get_str(keys::pool::NAME).unwrap_or("?");
        tracing::debug!(pool = name, txg = newest.number(), %why, states = txgs.len(), "newest state is damaged");
        for txg in txgs {
            base::cancel::check()?;
            // Looked at without writing first: only what is whole is worth losing the rest for.
            let look = OpenOptions {
                readonly: true,
                txg: Some(txg),
                ..opts.clone()
            };
            let after = match opts.rewind {
                Rewind::Extreme => Txg::NONE,
                _ => txg.before(CHECKED_GROUPS),
            };
            let Ok(pool) = Self::open_inner(env, config, &look, &mut false) else {
                continue;
            };
            let whole = verify::check_metadata(pool.zio(), pool.mos(), after);
            if let Err(e) = base::cancel::check() {
                let _ = pool.close();
                return Err(e);
            }
            tracing::debug!(
                pool = name,
                txg = txg.number(),
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
                return Self::open_inner(env, config, &real, &mut false);
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
        let (_engine, mos) = engine(env, tree.clone(), ub, newest, look)?;
        let store = FeatureStore::open(&mos)?;
        let told = |g: String| {
            let text = store.description(&g).ok().flatten().unwrap_or_default();
            (g, text)
        };
        let (read, write) = store.unsupported();
        Ok([read, write].map(|l| l.into_iter().map(told).collect()))
    }

    /// `by_log` is set if it is an intent log that refuses the import.
    fn open_inner(
        env: &Env,
        config: &NvList,
        opts: &OpenOptions,
        by_log: &mut bool,
    ) -> Result<Arc<Pool>> {
        let Newest {
            tree,
            ub,
            latest,
            trusted,
            object,
        } = newest(env, config, opts)?;
        let tree = Arc::new(tree);
        let found = (ub, latest, trusted, object);
        let r = Self::open_tree(env, config, (opts, by_log), &tree, found);
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
        (opts, by_log): (&OpenOptions, &mut bool),
        tree: &Arc<VdevTree>,
        (ub, latest, trusted, object): (Uberblock, (Txg, u64), NvList, u64),
    ) -> Result<Arc<Pool>> {
        tree.open(if opts.readonly {
            Access::Read
        } else {
            Access::Exclusive
        });
        // An import that is refused has written nothing, and healed nothing either.
        tree.hold_repairs();
        // Who goes back on purpose finds labels that are newer than the state wanted.
        let back = opts.txg.is_some() || opts.checkpoint;
        let (txg, newest, readonly) = (ub.txg, latest.0, opts.readonly);
        let name = config.get_str(keys::pool::NAME).unwrap_or("?");
        tracing::debug!(
            pool = name,
            txg = txg.number(),
            newest = newest.number(),
            readonly,
            back,
            "import chose a state"
        );
        let limit = if back { Txg::MAX } else { ub.txg };
        if opts.split.is_none() {
            // The labels of a half still name the whole.
            tree.validate(limit, true);
        }
        tree.propagate();
        if opts.split.is_none() && tree.guid_sum() != ub.guid_sum {
            bail!(
                NoDevice,
                "the devices found do not add up to the pool (bad guid sum)"
            );
        }
        for t in tree.tops().iter() {
            let spared = t.is_log() && (opts.missing_log || t.is_put_away());
            if t.is_concrete() && !t.state().usable() && !spared {
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
        let (e, mos) = engine(env, tree.clone(), &ub, latest.0, opts)?;
        crate::indirect::load(&mos, &e.tree)?;
        let paths = config.get_nvlist(vdev::discover::AUX_PATHS);
        let name = config.get_str(keys::pool::NAME).map(str::to_string);
        let now = (ub, latest);
        let r = Self::load(
            e,
            mos,
            now,
            (trusted, name),
            (object, paths),
            (opts.clone(), by_log),
        );
        if opts.checkpoint {
            return r.map_err(|e| e.context("the checkpoint"));
        }
        r
    }

    /// Loads what is on the devices, and takes over what was left undone.
    fn load(
        engine: Engine,
        mos: Arc<Objset>,
        (ub, latest): (Uberblock, (Txg, u64)),
        (trusted, label_name): (NvList, Option<String>),
        (config_object, aux_paths): (u64, Option<&NvList>),
        (opts, by_log): (OpenOptions, &mut bool),
    ) -> Result<Arc<Pool>> {
        let version = ub.version;
        let store = open_features(&mos, version, opts.readonly)?;
        let features: Arc<dyn Features> = match &store {
            Some(s) => s.clone(),
            None => Arc::new(NoFeatures),
        };
        mos.set_policy(mos_policy(version, &*features));
        load_salt(&mos, &engine)?;
        // Of the name in the labels callers know whether it is free. The pool's own configuration
        // has the same, unless a renaming was cut short or somebody forged it.
        let old_name = match label_name {
            Some(name) => name,
            None => trusted.need_str(keys::pool::NAME)?.to_string(),
        };
        let name = opts.name.clone().unwrap_or_else(|| old_name.clone());
        let dsl = Arc::new(Dsl::open(&mos, version, features.clone(), &name)?);
        let shares = Arc::new(Shares::open(&mos, &engine.zio, &features)?);
        let maps = load_tops(&engine, &mos, &shares)?;
        let dtls = load_dtls(&engine.tree, &maps, ub.txg, opts.readonly)?;
        let aux = match AuxDevices::read(&mos, aux_paths) {
            // For reading, who stands by does not matter.
            Err(_) if opts.readonly => AuxDevices::default(),
            list => list?,
        };
        let deferred_frees = match directory(&mos, "sync_bplist")? {
            // Figures are no reason to refuse reading.
            Some(object) if opts.readonly => {
                Bpobj::open(&mos, object).map_or(0, |b| b.space().used.max(0) as u64)
            }
            _ => 0,
        };
        let extra = ["comment", "compatibility"].iter().filter_map(|k| {
            let v = trusted.get_str(k)?;
            Some((k.to_string(), v.to_string()))
        });
        let vdev_zaps = has_vdev_zaps(&mos)?;
        let pool = Pool::assemble(Parts {
            engine,
            mos,
            dsl,
            maps,
            config: Configuration {
                features,
                store,
                shared: Mutex::new(Shared {
                    name,
                    label_name: opts.temporary.then_some(old_name),
                    version,
                    extra: extra.collect(),
                    split_guid: opts.split.as_ref().map(|h| h.of),
                }),
                readonly: opts.readonly,
                object: config_object,
                vdev_zaps,
                software_version: ub.software_version,
                dirty: AtomicBool::new(true),
                props: Mutex::default(),
                missing_log: opts.missing_log,
                rewound: (ub.txg < latest.0)
                    .then(|| (ub.timestamp, latest.1.saturating_sub(ub.timestamp))),
                checkpoint_txg: ub.checkpoint_txg,
                tunables: opts.tunables,
            },
            shares,
            aux,
            first_txg: ub.txg.next(),
            first_group: latest.0.max(ub.txg).next(),
            uberblock: ub,
            deferred_frees,
            dtls,
            heart: Heart::new(opts.multihost),
        });
        pool.load_errlog();
        pool.txgs.times.load(pool.mos(), &pool.name());
        if !pool.config.readonly {
            pool.load_work()?;
        }
        pool.refresh_props()?;
        pool.load_autosit();
        if !pool.config.readonly {
            // Whatever may refuse the import comes before the first write.
            pool.rehearse_claims(by_log)?;
            pool.tree().do_held_repairs();
            pool.settle_uberblock(opts.checkpoint)?;
            if let Some(half) = opts.split {
                pool.add_task(move |pool, tx| pool.become_half(tx, &half));
            }
            pool.claim_logs()?;
            pool.finish_adds()?;
            pool.tidy_up()?;
            pool.sync()?;
        }
        pool.load_wears();
        pool.follow_caches();
        Ok(pool)
    }

    /// What others left undone. What is left to be tidied up keeps nobody from importing. The next import tries again.
    fn tidy_up(self: &Arc<Self>) -> Result<()> {
        let release = || match self.dsl().has_temporary_holds()? {
            true => self.task(|pool, tx| pool.dsl().release_temporary(tx)),
            false => Ok(()),
        };
        for (what, done) in [
            (
                "blocks that older software left to be freed",
                self.empty_deferred(),
            ),
            ("temporary holds", release()),
            ("broken receives", self.clear_broken_receives()),
        ] {
            if let Err(e) = done {
                base::cancel::check()?;
                if let Some(why) = self.stopped() {
                    return Err(why);
                }
                tracing::warn!(pool = %self.name(), "{what}: {e}");
            }
        }
        Ok(())
    }

    /// Writes an uberblock that no txg has written.
    pub(crate) fn make_newest(&self, ub: &Uberblock) -> Result<()> {
        let base = self.label_base(keys::pool::STATE_ACTIVE, ub.txg);
        let targets = self.tree().uberblock_targets(0);
        self.tree().commit(&base, ub, &[], &targets, false)
    }
}
