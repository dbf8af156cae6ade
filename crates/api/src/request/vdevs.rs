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

/// `zpool attach` and `zpool replace`
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceAttach {
    /// Name of the pool.
    pub pool: String,
    /// Path, name or guid of the device in the pool.
    pub device: String,
    /// Absolute path of the new device, or the name of a distributed spare; none, to replace: another one at the same path.
    #[serde(default)]
    pub new: Option<String>,
    /// The old one goes when the new one is complete.
    #[serde(default)]
    pub replace: bool,
    /// It is filled in order of place, without a look at checksums.
    #[serde(default)]
    pub sequential: bool,
    /// log2 of the sector size of a new mirror; none: what the devices say.
    #[serde(default)]
    pub ashift: Option<u32>,
    /// Although the new device seems to be in use, where that can be overridden.
    #[serde(default)]
    pub force: bool,
    /// Command line, for the history of the pool.
    #[serde(default)]
    pub command: String,
}
