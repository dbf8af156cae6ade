//! Options of opening a pool.

use crate::half::Half;
use crate::multihost::{Activity, Multihost};
use crate::Tunables;
use base::Txg;
use std::sync::Arc;

/// How to open.
#[derive(Clone, Debug, Default)]
pub struct OpenOptions {
    /// Nothing is written.
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
    /// Limits of the open pool.
    pub tunables: Tunables,
    /// The devices are one side of the mirrors of a pool in use, which they are split off ([`crate::Pool::split`]).
    pub split: Option<Arc<Half>>,
}

/// How far to go back if the newest state cannot be opened (behaviour §14.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rewind {
    /// Not at all.
    #[default]
    No,
    /// As far as nothing freed meanwhile can have been overwritten (`-F`).
    Safe,
    /// As far as there are uberblocks; all metadata are read to see whether a state is whole (`-X`).
    Extreme,
}
