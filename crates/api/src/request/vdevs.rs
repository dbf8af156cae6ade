//! Requests about vdevs, and about what becomes of them.

use super::{Props, Select};
use serde::{Deserialize, Serialize};

/// `zpool get` with vdevs
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct VdevGet {
    /// Name of the pool.
    pub pool: String,
    /// Paths, names or guids of vdevs; `root` is the root vdev; none: all but the root.
    pub vdevs: Vec<String>,
    /// Which properties.
    pub props: Select,
}

/// `zpool set` with a vdev
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct VdevSet {
    /// Name of the pool.
    pub pool: String,
    /// Path, name or guid of the vdev, or `root`.
    pub vdev: String,
    /// Name of the property.
    pub property: String,
    /// The value, as the user wrote it.
    pub value: String,
    /// Command line, for the history of the pool.
    pub command: String,
}

/// `zpool split`
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PoolSplit {
    /// Name of the pool.
    pub pool: String,
    /// Name of the new pool.
    pub name: String,
    /// Paths, names or guids of devices that leave; of other mirrors the last one leaves.
    pub devices: Vec<String>,
    /// Properties of the new pool.
    pub props: Props,
    /// Nothing is changed: which devices would leave.
    pub dry_run: bool,
    /// Command line, for the histories of both pools.
    pub command: String,
}
