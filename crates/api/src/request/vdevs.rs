//! Requests about vdevs, and about what becomes of them.

use super::Props;
use serde::{Deserialize, Serialize};

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
