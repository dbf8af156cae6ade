//! The search for the newest state of a pool (pool format §6.2), or the requested older one, and its configuration.

use crate::config::read_nvlist;
use crate::create::mos_policy;
use crate::engine::Engine;
use crate::multihost::admit;
use crate::open_options::OpenOptions;
use crate::VERSION_FEATURES;
use base::{bail, Error, Result, Txg};
use disk::uberblock::Uberblock;
use disk::{feature, NvList};
use dmu::Objset;
use dsl::NoFeatures;
use env::{Access, Env};
use std::sync::Arc;
use vdev::{keys, VdevTree};
use zap::Zap;

/// Directory entry of pools that count space without parity and padding.
const DEFLATE: &str = "deflate";

/// Copies the device paths of one tree into another, leaf by guid.
fn copy_paths(from: &VdevTree, to: &VdevTree) {
    for leaf in from.leaves() {
        if let (Some(v), Some(path)) = (to.find(leaf.guid()), leaf.path()) {
            v.set_path(&path);
        }
    }
}

/// The engine and the MOS of a state. `newest`: last txg anywhere on the devices; txgs to come are numbered after it.
pub(crate) fn engine(
    env: &Env,
    tree: Arc<VdevTree>,
    ub: &Uberblock,
    newest: Txg,
    opts: &OpenOptions,
) -> Result<(Engine, Arc<Objset>)> {
    tree.set_reflow(ub);
    let first = newest.max(ub.txg).after(1);
    let e = Engine::new(env, tree, first, !opts.readonly, &opts.tunables);
    let policy = mos_policy(ub.version, &NoFeatures);
    let mos = Objset::open(&e.dmu, 0, &ub.rootbp, policy, opts.readonly)
        .map_err(|e| e.context("the pool's meta object set"))?;
    e.devices
        .set_deflates(directory(&mos, DEFLATE)?.is_some_and(|v| v != 0));
    Ok((e, mos))
}

pub(crate) fn directory(mos: &Arc<Objset>, key: &str) -> Result<Option<u64>> {
    Zap::new(&mos.hold(1)?)
        .get(key)
        .map_err(|e| e.context(format!("MOS directory entry {key}")))
}

fn need(mos: &Arc<Objset>, key: &str) -> Result<u64> {
    directory(mos, key)?.ok_or_else(|| Error::damaged(format!("MOS directory has no '{key}'")))
}

/// The newest state of a pool and the configuration that belongs to it.
pub(crate) struct Newest {
    /// From the trusted configuration, with the paths of the devices found; not opened.
    pub tree: VdevTree,
    /// The uberblock of the state that is opened.
    pub ub: Uberblock,
    /// The newest uberblock there is, which may not be the one wanted: txg and time.
    pub latest: (Txg, u64),
    /// The configuration from the MOS of that state.
    pub trusted: NvList,
    /// Object of the configuration.
    pub object: u64,
}

/// Finds the newest state on the devices `config` names, and reads what it says of itself.
pub(crate) fn newest(env: &Env, config: &NvList, opts: &OpenOptions) -> Result<Newest> {
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
    if ub.txg == Txg::MAX || latest.0 >= Txg::MAX.before(8) {
        bail!(Damaged, "uberblock of txg {}", latest.0);
    }
    if !(1..=28).contains(&ub.version) && ub.version != VERSION_FEATURES {
        bail!(Unsupported, "pool version {} is not supported", ub.version);
    }
    if ub.version == VERSION_FEATURES {
        check_readable(label.as_ref().unwrap_or(config))?;
    }
    let look = OpenOptions {
        readonly: true,
        ..opts.clone()
    };
    let mut ub = ub;
    let mut first = engine(env, untrusted.clone(), &ub, ub.txg, &look)?;
    if opts.checkpoint {
        ub = checkpoint_of(&first.1, ub.txg, env.clock.now().0)?;
        first = engine(env, untrusted.clone(), &ub, ub.txg, &look)?;
    }
    let object = need(&first.1, "config")?;
    let mut trusted = read_nvlist(&first.1, object)?;
    if let Some(half) = &opts.split {
        trusted = half.config_of(trusted)?;
    }
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

/// An error if the pool uses features without which this software cannot read it; `config` lists those it uses.
fn check_readable(config: &NvList) -> Result<()> {
    let list = config
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
    Ok(())
}

/// The uberblock of the checkpoint of a pool whose newest txg is `newest`, as the one that comes after it at time `now` (seconds
/// since 1970).
fn checkpoint_of(mos: &Arc<Objset>, newest: Txg, now: i64) -> Result<Uberblock> {
    let words = Zap::new(&mos.hold(1)?).get_value(disk::mos_keys::CHECKPOINT)?;
    let Some(words) = words else {
        bail!(NotFound, "checkpoint does not exist");
    };
    let bytes: Vec<u8> = words.ints().iter().flat_map(|w| w.to_le_bytes()).collect();
    let kept = Uberblock::decode(&bytes).map_err(|e| e.context("checkpoint"))?;
    if kept.txg.is_none() || kept.txg > newest {
        bail!(Damaged, "checkpoint of txg {}", kept.txg);
    }
    Ok(Uberblock {
        txg: newest.next(),
        timestamp: now.max(0) as u64,
        checkpoint_txg: kept.txg,
        ..kept
    })
}
