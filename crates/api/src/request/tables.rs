//! What requests about the tables of shared blocks say.

use serde::{Deserialize, Serialize};

/// Tables of blocks that several pointers refer to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SharedTable {
    /// Dedup tables.
    Ddt,
    /// Tables of cloned blocks.
    Brt,
}

/// Which entries leave the dedup tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Prune {
    /// Those that have been unique for more than so many days.
    Days(u64),
    /// The oldest so many percent, 1 to 100.
    Percent(u64),
}
