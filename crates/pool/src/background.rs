//! The part of a pool that works by itself: jobs, and the scans and rebuilds among them.
//!
//! The syncing thread steps every job in each txg ([`crate::jobs`]); slices of jobs run on threads of `env`, which reach the pool
//! through [`Background::pool`] and end when it is gone.
//!
//! Lock order: the list of jobs is a leaf lock. `Scans::live` comes before the other locks of scans ([`crate::scan`]).

use crate::expansion::Expansions;
use crate::jobs::Jobs;
use crate::scan::{Rebuilds, Scans};
use crate::wear::Wears;
use crate::Pool;
use std::sync::{Arc, Weak};

/// Work of one pool that takes many txgs.
pub(crate) struct Background {
    /// All jobs.
    pub jobs: Jobs,
    /// Scrub, resilver and error scrub.
    pub scans: Arc<Scans>,
    /// Sequential rebuilds.
    pub rebuilds: Arc<Rebuilds>,
    /// The expansion of a RAID-Z.
    pub expansions: Arc<Expansions>,
    /// Trim and initialize.
    pub wears: Arc<Wears>,
    /// The pool, for work that outlives a call.
    pub pool: Weak<Pool>,
}
