//! The part of a pool that holds its devices: the vdev tree as `zio` sees it, the spares and cache devices beside it, what leaves
//! miss, and the heartbeats of `multihost`.
//!
//! The syncing thread writes DTLs and retires devices that left ([`crate::reshape`]); operations on devices change the rest, as
//! tasks of a txg.
//!
//! Lock order: the syncing thread holds `dtls` while it changes the MOS, and comes from there to the locks of leaves and to what
//! scans have given up. `heart` comes before the lock of [`crate::suspend::Suspension`]. `aux`, `left` and `autosit` are leaf locks.

use crate::devices::TreeDevices;
use crate::l2arc::CacheDevices;
use crate::multihost::Heart;
use crate::reshape::Left;
use crate::spares::AuxDevices;
use base::RangeSet;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use vdev::VdevTree;

/// Devices of one pool.
pub(crate) struct Vdevs {
    /// The vdev tree.
    pub tree: Arc<VdevTree>,
    /// The vdev tree as `zio` sees it.
    pub devices: Arc<TreeDevices>,
    /// Spares and cache devices.
    pub aux: Mutex<Arc<AuxDevices>>,
    /// Open cache devices.
    pub caches: Arc<CacheDevices>,
    /// Devices that leave the tree with the txg that is being written.
    pub left: Mutex<Vec<Left>>,
    /// Txg with which the pool gets another guid: no device leaves with it.
    pub renamed: AtomicU64,
    /// DTLs as they are on disk, by guid of the leaf.
    pub dtls: Mutex<HashMap<u64, RangeSet>>,
    /// Guids of the RAID-Z and dRAID vdevs that have the property `autosit`.
    pub autosit: Mutex<HashSet<u64>>,
    /// Heartbeats of `multihost`.
    pub heart: Heart,
}
