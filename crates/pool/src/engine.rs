//! Assembly of a [`Pool`] from its parts, the same way for creating and opening one.

use crate::allocation::{Allocation, MapLoader};
use crate::background::Background;
use crate::configuration::Configuration;
use crate::devices::{SpaceAllocator, TreeDevices};
use crate::expansion::Expansions;
use crate::freeing;
use crate::indirect::Removed;
use crate::jobs::{Job, Jobs};
use crate::multihost::Heart;
use crate::notices::Notice;
use crate::objects::Objects;
use crate::records::Records;
use crate::removal::CondenseJob;
use crate::scan::{BlockQueue, ErrorScrubJob, RebuildJob, Rebuilds, ScanJob, Scans};
use crate::sets::Sets;
use crate::shared::Shares;
use crate::spares::AuxDevices;
use crate::sync::SyncState;
use crate::txgs::Txgs;
use crate::vdevs::Vdevs;
use crate::wear::{AutotrimJob, Wear, WearJob, Wears};
use crate::{Pool, SpaceMaps, Tunables};
use base::{Cause, RangeSet, Txg};
use disk::uberblock::Uberblock;
use dmu::{Dmu, DmuOptions, Objset};
use dsl::Dsl;
use env::Env;
use space::Space;
use std::collections::HashMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use vdev::{keys, VdevTree};
use zio::{Zio, ZioOptions};

/// The rooms below the MOS.
pub(crate) struct Engine {
    /// Clock, randomness, threads and disks.
    pub env: Env,
    /// The vdev tree.
    pub tree: Arc<VdevTree>,
    /// The allocator.
    pub space: Arc<Space>,
    /// Mappings of removed vdevs.
    pub removed: Arc<Removed>,
    /// The tree as `zio` sees it.
    pub devices: Arc<TreeDevices>,
    /// Blocks that wait to be scrubbed; the allocator tells it of frees.
    pub scanned: Arc<BlockQueue>,
    /// The pipelines.
    pub zio: Arc<Zio>,
    /// The transaction engine.
    pub dmu: Arc<Dmu>,
}

impl Engine {
    /// Over a tree whose devices are open. `first_txg` is the txg that opens first.
    pub fn new(
        env: &Env,
        tree: Arc<VdevTree>,
        first_txg: Txg,
        writable: bool,
        tunables: &Tunables,
    ) -> Engine {
        let space = Arc::new(Space::new());
        let removed = Arc::new(Removed::new(tree.clone()));
        let devices = Arc::new(TreeDevices::new(tree.clone(), removed.clone()));
        let scanned = Arc::new(BlockQueue::default());
        let zio = Arc::new(Zio::new(
            devices.clone(),
            Arc::new(SpaceAllocator {
                space: space.clone(),
                removed: removed.clone(),
                scanned: scanned.clone(),
            }),
            ZioOptions {
                cache_bytes: tunables.cache_bytes,
                seed: env.rng.u64(),
                writable,
            },
        ));
        let dmu = Dmu::new(
            env.clone(),
            zio.clone(),
            DmuOptions {
                dirty_max: tunables.dirty_max,
                first_txg,
            },
        );
        Engine {
            env: env.clone(),
            tree,
            space,
            removed,
            devices,
            scanned,
            zio,
            dmu,
        }
    }

    /// The space maps of the pool, which the allocator reads from now on.
    pub fn space_maps(&self, mos: &Arc<Objset>) -> Arc<SpaceMaps> {
        let maps = Arc::new(SpaceMaps::new(mos.clone()));
        let loader = MapLoader(Arc::downgrade(&maps));
        self.space.set_loader(Some(Arc::new(loader)));
        maps
    }
}

/// Everything that differs between a pool that is made and one that is opened.
pub(crate) struct Parts {
    /// The rooms below the MOS.
    pub engine: Engine,
    /// The object set of the pool itself.
    pub mos: Arc<Objset>,
    /// Directories and datasets.
    pub dsl: Arc<Dsl>,
    /// Space maps on disk.
    pub maps: Arc<SpaceMaps>,
    /// What the pool is.
    pub config: Configuration,
    /// Dedup tables, cloned blocks, checkpoint.
    pub shares: Arc<Shares>,
    /// Spares and cache devices.
    pub aux: AuxDevices,
    /// In use; of a pool that is being made the default.
    pub uberblock: Uberblock,
    /// The txg that is open first.
    pub first_txg: Txg,
    /// First txg that is written; later than `first_txg` after going back to an older state.
    pub first_group: Txg,
    /// As in [`Allocation`].
    pub deferred_frees: u64,
    /// DTLs as they are on disk, by guid of the leaf.
    pub dtls: HashMap<u64, RangeSet>,
    /// Heartbeats of `multihost`.
    pub heart: Heart,
}

impl Pool {
    /// The pool of these parts. Its first txg writes the configuration and an uberblock.
    pub(crate) fn assemble(p: Parts) -> Arc<Pool> {
        let e = p.engine;
        let scans = Arc::new(Scans::new(e.scanned));
        let scan: Arc<dyn Job> = Arc::new(ScanJob(scans.clone()));
        let errors: Arc<dyn Job> = Arc::new(ErrorScrubJob(scans.clone()));
        let rebuilds = Arc::new(Rebuilds::default());
        let rebuild: Arc<dyn Job> = Arc::new(RebuildJob(rebuilds.clone()));
        let condense: Arc<dyn Job> = Arc::new(CondenseJob::default());
        let expansions = Arc::new(Expansions::new(e.env.clone(), e.tree.clone()));
        let wears = Arc::new(Wears::default());
        let wear = |what| -> Arc<dyn Job> { Arc::new(WearJob(what, wears.clone())) };
        let auto: Arc<dyn Job> = Arc::new(AutotrimJob {
            wears: wears.clone(),
            space: e.space.clone(),
            clock: e.env.clock.clone(),
            txgs: p.config.tunables.autotrim_txgs,
        });
        let (trim, initialize) = (wear(Wear::Trim), wear(Wear::Initialize));
        let scans_of = [scan, errors, rebuild, condense, trim, initialize, auto];
        let standing = freeing::standing().into_iter().chain(scans_of);
        let state = SyncState {
            uberblock: p.uberblock,
            config_dirty: true,
            state: keys::pool::STATE_ACTIVE,
            flush_all: false,
            force: true,
            skipped: 0,
            logs_back: Vec::new(),
            closed: false,
        };
        let pool = Arc::new_cyclic(|me| Pool {
            env: e.env,
            objects: Objects {
                zio: e.zio,
                dmu: e.dmu,
                mos: p.mos,
            },
            sharing: p.shares,
            allocation: Allocation {
                space: e.space,
                maps: p.maps,
                removed: e.removed,
                deferred_frees: p.deferred_frees,
            },
            vdevs: Vdevs {
                tree: e.tree,
                devices: e.devices,
                aux: Mutex::new(Arc::new(p.aux)),
                caches: Arc::default(),
                left: Mutex::default(),
                renamed: AtomicU64::new(0),
                dtls: Mutex::new(p.dtls),
                autosit: Mutex::default(),
                heart: p.heart,
            },
            txgs: Txgs::new(state, p.first_txg, p.first_group),
            config: p.config,
            sets: Sets::new(p.dsl),
            records: Records::default(),
            background: Background {
                jobs: Jobs::new(standing.collect()),
                scans,
                rebuilds,
                expansions,
                wears,
                pool: me.clone(),
            },
        });
        pool.wire();
        pool
    }

    /// Connects what refers to each other.
    fn wire(self: &Arc<Self>) {
        let driver: std::sync::Weak<dyn dmu::Driver> = self.background.pool.clone();
        self.dmu().set_driver(driver);
        let space: std::sync::Weak<dyn dsl::PoolSpace> = self.background.pool.clone();
        self.dsl().set_space(space);
        let me = self.background.pool.clone();
        self.dmu().set_on_damage(Box::new(move |d, why| {
            if let Some(pool) = me.upgrade() {
                if why == Some(Cause::NotAuthentic) {
                    pool.tell(Notice::NotAuthentic(*d));
                }
                pool.note_damage(d);
            }
        }));
        self.shares()
            .set_scanned(self.background.scans.blocks.clone());
        self.shares().set_removed(self.allocation.removed.clone());
        let shares: std::sync::Weak<Shares> = Arc::downgrade(self.shares());
        self.zio().set_sharing(shares);
        let waits: std::sync::Weak<dyn zio::Waits> = self.background.pool.clone();
        self.zio().set_waits(waits);
    }
}
