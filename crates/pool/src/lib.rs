//! A pool: creates, opens, syncs, exports and destroys it, and connects the rooms below.
//!
//! Invariants:
//!
//! 1. A [`Pool`] is passive: it starts no thread. A thread that needs a txg on disk syncs it itself ([`Pool::task`],
//!    [`Pool::sync`]), or waits for the thread that does ([`Pool::serve`]).
//! 2. Changes of datasets and devices run in syncing context, as tasks of a txg. Early tasks ([`Pool::early_task`]) come before
//!    anything of the txg is dirtied or freed, the others ([`Pool::task`]) when its datasets are written, jobs ([`Job`]) after them.
//! 3. A txg that fails half-way is never committed: the pool stops, or waits for its devices ([`Failmode`]).
//! 4. Every room learns of a top-level vdev through one call (`tops`).
//!
//! [`Pool`] itself holds nothing but its parts:
//!
//! | Part | State |
//! |---|---|
//! | `objects` | pipelines of `zio`, transaction engine of `dmu`, the MOS |
//! | `vdevs` | the device tree, spares and cache devices, what leaves miss, heartbeats |
//! | `allocation` | the allocator, space maps on disk, mappings of removed vdevs |
//! | `sharing` ([`Shares`]) | dedup tables, cloned blocks, the checkpoint |
//! | `sets` | directories and datasets, open object sets |
//! | `txgs` | the syncing thread's state, tasks, who waits, suspension |
//! | `background` | jobs, scans, rebuilds |
//! | `config` (`configuration`) | name, version, features, properties, how the pool was opened |
//! | `records` | damaged blocks, lost history, who is told |
//!
//! Each part's file says which thread changes its state. What needs several parts is a method of [`Pool`], in the file of its
//! subject. A method that needs one part belongs to that part.
//!
//! Lock order: the lock of the syncing thread (`txgs::Txgs::sync`) comes before any other of this room. The order among the locks
//! of a part is in the part's file.
//!
//! Start reading at `sync.rs`, then `open.rs`.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod accounting;
mod allocation;
mod background;
mod brt;
mod checkpoint;
mod checkpoint_job;
mod claim;
mod close;
mod config;
mod configuration;
mod create;
mod datasets;
pub mod ddt;
mod devices;
mod engine;
mod errata;
mod errlog;
mod expansion;
mod freeing;
mod half;
mod history;
mod indirect;
mod jobs;
pub mod l2arc;
mod logstore;
mod mapping;
mod multihost;
mod newest;
mod notices;
mod objects;
mod open;
mod open_options;
mod props;
mod receive;
mod records;
mod regions;
mod reguid;
mod removal;
mod removal_record;
mod reshape;
mod scan;
mod served;
mod sets;
mod shared;
mod snapshots;
mod spacemaps;
mod spares;
mod split;
mod suspend;
mod sync;
mod tops;
mod txg_times;
mod txgs;
mod upgrade;
mod vdevs;
mod verify;
mod volumes;
mod wear;

pub use accounting::{owner, Owner};
use base::sync::MutexExt;
pub use brt::Brts;
pub use checkpoint::Checkpoint;
pub use configuration::{Shared, Tunables, VERSION_FEATURES};
pub use create::CreateSpec;
pub use datasets::{prop_number, OpenSet};
pub use ddt::{pack_entry, unpack_entry, DdtStats, Ddts};
pub use devices::{SpaceAllocator, TreeDevices};
pub use errlog::ErrLog;
pub use expansion::ExpandRefusal;
pub use half::{Half, SplitSpec};
pub use indirect::Expansion;
pub use jobs::{Budget, Job, JobState, JobStatus, Piece, Priority, Progress, Step, Subject};
pub use multihost::{Activity, ActivityCheck, Multihost, Rank};
pub use notices::{Notice, Observer, Scanning, Turned};
pub use open_options::{OpenOptions, Rewind};
pub use props::is_of_format;
pub use removal::RemovalRefusal;
pub use removal_record::RemovingPhys;
pub use reshape::{AttachRefusal, Offline};
pub use scan::{ErrorScrubRecord, Rebuild, ScanProgress, ScanRecord, ScanRefusal, ScrubRange};
pub use served::Serving;
pub use shared::Shares;
pub use snapshots::LeftLog;
pub use spacemaps::{map_pieces, MapFeatures, SpaceMaps, TopShape};
pub use spares::{is_called, AuxDevices, AuxKind, FEATURE_DRAID};
pub use suspend::{Admits, Failmode, Patience, Tell, Turn};
pub use upgrade::enable_features;
pub use volumes::Volume;
pub use wear::{Wear, WearAction, WearRefusal, WearState, WearStatus};

use base::{Error, Result};
use disk::feature::guid;
use disk::NvList;
use dmu::{Dmu, Objset};
use dsl::{Dataset, Dir, Dsl, FeatureStore, Features};
use env::Env;
use space::Space;
use std::sync::{Arc, MutexGuard};
use vdev::VdevTree;
use zio::Zio;

/// An open pool.
pub struct Pool {
    /// Clock, randomness, threads and disks.
    pub env: Env,
    /// Blocks and objects.
    pub(crate) objects: objects::Objects,
    /// Devices.
    pub(crate) vdevs: vdevs::Vdevs,
    /// Space in use.
    pub(crate) allocation: allocation::Allocation,
    /// Blocks that several pointers refer to.
    pub(crate) sharing: Arc<Shares>,
    /// Datasets.
    pub(crate) sets: sets::Sets,
    /// Txgs: order and progress of changes.
    pub(crate) txgs: txgs::Txgs,
    /// Work of many txgs.
    pub(crate) background: background::Background,
    /// What the pool is.
    pub(crate) config: configuration::Configuration,
    /// What happened to it.
    pub(crate) records: records::Records,
}

impl Pool {
    /// Name, version and keys of the configuration, locked.
    pub fn shared(&self) -> MutexGuard<'_, Shared> {
        self.config.shared()
    }

    /// Name under which the pool is open.
    pub fn name(&self) -> String {
        self.shared().name.clone()
    }

    /// Guid of the pool, that of its root vdev.
    pub fn guid(&self) -> u64 {
        self.tree().guid()
    }

    /// Pool version, 1 to 28 or 5000.
    pub fn version(&self) -> u64 {
        self.shared().version
    }

    /// Version of the software that wrote the pool, as its uberblock named it when it was opened; 0 in
    /// pools of old zfs-fuse. We leave it as it is: it tells how older file systems store device numbers.
    pub fn software_version(&self) -> u64 {
        self.config.software_version
    }

    /// Datasets that were found damaged when the pool was opened for writing, and why. Nothing of them was
    /// changed.
    pub fn unreadable_datasets(&self) -> Vec<(String, base::Error)> {
        self.sets.unreadable.acquire().clone()
    }

    /// Whether intent logs are given up that cannot be read.
    pub(crate) fn gives_up_logs(&self) -> bool {
        self.config.missing_log
    }

    /// Whether nothing is written.
    pub fn is_readonly(&self) -> bool {
        self.config.readonly
    }

    /// The features of a pool of version 5000.
    pub fn feature_store(&self) -> Option<&Arc<FeatureStore>> {
        self.config.store.as_ref()
    }

    /// Of a pool opened at an older state than the newest: the time of that state (seconds since
    /// 1970), and by how many seconds the newest is younger.
    pub fn rewound(&self) -> Option<(u64, u64)> {
        self.config.rewound
    }

    pub(crate) fn config_object(&self) -> u64 {
        self.config.object
    }

    pub(crate) fn has_vdev_zaps(&self) -> bool {
        self.config.vdev_zaps
    }

    pub(crate) fn has_project_quota(&self) -> bool {
        self.config.features.is_enabled(guid::PROJECT_QUOTA)
    }

    /// The configuration must be written with the next txg.
    pub fn dirty_config(&self) {
        self.config.set_dirty();
    }

    pub(crate) fn take_config_dirty(&self) -> bool {
        self.config.take_dirty()
    }

    /// Reads anew how large the dedup tables may get: the property `dedup_table_quota`, by default
    /// as large as the devices for them have room.
    pub fn refresh_dedup_quota(&self) -> Result<()> {
        let stored = self.stored_props()?;
        let set = stored.iter().find(|(n, _)| n == "dedup_table_quota");
        let quota = match set.map(|(_, v)| v) {
            Some(dsl::PropValue::Int(0)) => ddt::Quota::None,
            Some(dsl::PropValue::Int(n)) if *n != u64::MAX => ddt::Quota::Bytes(*n),
            _ => ddt::Quota::Devices(self.space().clone()),
        };
        self.shares().ddt.set_quota(quota);
        Ok(())
    }

    /// Changes a key of the configuration such as `comment`; `None` removes it.
    pub fn set_extra(&self, key: &str, value: Option<&str>) {
        self.config.set_extra(key, value);
    }

    /// Whether there is a dedicated log device.
    pub fn has_log_device(&self) -> bool {
        self.tree()
            .tops()
            .iter()
            .any(|t| t.is_log() && t.is_concrete())
    }

    /// Txgs on disk so far.
    pub fn synced_txg(&self) -> base::Txg {
        self.dmu().synced_txg()
    }

    /// The vdev tree.
    pub fn tree(&self) -> &Arc<VdevTree> {
        &self.vdevs.tree
    }

    /// The allocator.
    pub fn space(&self) -> &Arc<Space> {
        &self.allocation.space
    }

    /// The pipelines.
    pub fn zio(&self) -> &Arc<Zio> {
        &self.objects.zio
    }

    /// The transaction engine.
    pub fn dmu(&self) -> &Arc<Dmu> {
        &self.objects.dmu
    }

    /// The object set of the pool itself.
    pub fn mos(&self) -> &Arc<Objset> {
        &self.objects.mos
    }

    /// Directories and datasets.
    pub fn dsl(&self) -> &Arc<Dsl> {
        &self.sets.dsl
    }

    /// The directory `pool/a/b`.
    ///
    /// # Errors
    /// `Kind::NotFound`: there is none; those of reading the MOS.
    pub fn dir(&self, name: &str) -> Result<Arc<Dir>> {
        self.sets.dsl.dir(name)
    }

    /// The dataset `pool/a` or `pool/a@snap`.
    ///
    /// # Errors
    /// `Kind::NotFound`: there is none; those of reading the MOS.
    pub fn dataset(&self, name: &str) -> Result<Arc<Dataset>> {
        self.sets.dsl.dataset(name)
    }

    /// A dataset by its object of the MOS.
    ///
    /// # Errors
    /// Those of reading the MOS.
    pub fn dataset_by_object(&self, object: u64) -> Result<Arc<Dataset>> {
        self.sets.dsl.dataset_by_object(object)
    }

    /// The directory of the pool itself, above all others.
    ///
    /// # Errors
    /// Those of reading the MOS.
    pub fn root_dir(&self) -> Result<Arc<Dir>> {
        self.sets.dsl.root()
    }

    /// The file system of the pool itself, above all others.
    ///
    /// # Errors
    /// Those of reading the MOS.
    pub fn root_dataset(&self) -> Result<Arc<Dataset>> {
        self.sets.dsl.root_dataset()
    }

    /// Whether a feature is enabled.
    pub fn has_feature(&self, guid: &str) -> bool {
        self.config.features.is_enabled(guid)
    }

    /// Counts of features; none is active in pools of old versions.
    pub fn feature_counts(&self) -> &Arc<dyn Features> {
        &self.config.features
    }

    /// The last txg that a scrub has verified; 0: none.
    ///
    /// # Errors
    /// Those of reading the MOS.
    pub fn last_scrubbed_txg(&self) -> Result<u64> {
        Ok(self.directory("last_scrubbed_txg")?.unwrap_or(0))
    }

    /// The configuration for labels: with the features without which the MOS cannot be read. `state`: 0 active, 1 exported,
    /// 2 destroyed.
    pub(crate) fn label_base(&self, state: u64, txg: base::Txg) -> NvList {
        self.config.for_labels(&self.env, self.tree(), state, txg)
    }

    /// The full configuration; `mos` adds what only the MOS holds.
    pub fn full_config(&self, state: u64, txg: base::Txg, mos: bool) -> NvList {
        let mut c = self.label_base(state, txg);
        self.config.add_devices(&mut c, self.tree(), mos);
        c
    }

    pub(crate) fn features(&self) -> &dyn Features {
        &*self.config.features
    }

    /// The txgs in which blocks were born between two moments, in seconds since 1970; a few more at both ends. Without a
    /// noted time early or late enough the range has no such end.
    pub fn txgs_between(&self, start: Option<u64>, end: Option<u64>) -> ScrubRange {
        self.txgs.times.between(start, end, self.seconds())
    }

    /// The number that OpenZFS gives what is wrong on the disks of the pool; 0: nothing.
    ///
    /// # Errors
    /// The record of the newest scan cannot be read.
    pub fn errata(&self) -> Result<u64> {
        if self.dsl().has_seen_old_keys() {
            return Ok(3);
        }
        Ok(errata::number(self.dsl(), self.scan_words()?.as_deref()))
    }

    /// Deduplicated and cloned blocks, the checkpoint.
    pub fn shares(&self) -> &Arc<Shares> {
        &self.sharing
    }

    /// Space maps on disk.
    pub fn maps(&self) -> &Arc<SpaceMaps> {
        &self.allocation.maps
    }

    /// Whether space maps have histograms.
    pub fn has_map_histograms(&self) -> bool {
        self.config.histogram()
    }

    /// First txg of this opening: blocks of the intent log born in it or later are claims.
    pub fn first_txg(&self) -> base::Txg {
        self.txgs.first_txg
    }

    pub(crate) fn me(&self) -> Result<Arc<Pool>> {
        self.background
            .pool
            .upgrade()
            .ok_or_else(|| Error::new(base::Kind::Stale, "the pool was exported"))
    }
}

/// Space as datasets see it (pool format §16.7).
impl dsl::PoolSpace for Pool {
    fn usable(&self, net_free: bool) -> u64 {
        let slop = self.space().slop_space();
        let reserve = if net_free { slop / 2 } else { slop };
        let kept: u64 = self
            .tree()
            .tops()
            .iter()
            .map(|t| self.shares().checkpoint.kept(t.id()) / base::SECTOR * t.deflate_ratio())
            .sum();
        // What is shared is charged to everybody who refers to it.
        (self.space().dataset_space() + self.shares().saved())
            .saturating_sub(reserve)
            .saturating_sub(kept)
            .saturating_sub(self.allocation.deferred_frees)
    }

    /// As the reference counts, with the parity there is instead of the most there can be: three
    /// copies, each with parity for single sectors, twice for the trees above.
    fn inflation(&self) -> u64 {
        let tops = self.tree().tops();
        let parity = tops.iter().map(|t| match t.kind() {
            vdev::VdevKind::Raidz { nparity, .. } => nparity as u64,
            vdev::VdevKind::Draid { nparity, .. } => nparity as u64,
            _ => 0,
        });
        6 * (1 + parity.max().unwrap_or(0))
    }
}

impl Pool {
    /// Changes how much memory the pool may take, from now on.
    pub fn set_memory(&self, t: Tunables) {
        self.zio().cache.set_budget(t.cache_bytes);
        self.dmu().set_dirty_max(t.dirty_max);
    }

    /// Whether anything is read ahead; datasets narrow it by their property `prefetch`.
    pub fn read_ahead(&self, on: bool) {
        self.dmu().set_read_ahead(on);
    }

    /// Whether data of files that are read or written whole are kept in memory; not needed for
    /// clients that have a cache of their own.
    pub fn keep_streams(&self, keep: bool) {
        self.zio().cache.set_streams(keep);
    }
}
