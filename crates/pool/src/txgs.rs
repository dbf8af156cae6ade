//! The part of a pool that orders its changes: what only the syncing thread touches, the tasks of the next txg, who waits for a
//! txg, and whether txgs can be written at all.
//!
//! The rules are in [`crate::sync`] (how a txg reaches the disk), [`crate::served`] (who writes it) and [`crate::suspend`] (what
//! happens when the devices refuse it).
//!
//! Lock order: [`Txgs::sync`] comes before every other lock of the pool; a thread that holds it writes a txg. The other locks
//! here are leaf locks: each is held for the few instructions that read or change its own value.

use crate::served::Service;
use crate::suspend::Suspension;
use crate::sync::{SyncState, Tasks};
use crate::txg_times::Times;
use base::Txg;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::sync::{Condvar, Mutex};

/// Txgs of one pool.
pub(crate) struct Txgs {
    /// Held by the thread that writes a txg.
    pub sync: Mutex<SyncState>,
    /// Changes that run in the next txg.
    pub tasks: Tasks,
    /// Whether the devices take txgs.
    pub io: Suspension,
    /// The thread that writes the txgs of all others, and who waits for it.
    pub service: Service,
    /// Object sets whose intent logs have been asked in the txg of that number.
    pub asked: Mutex<(Txg, BTreeSet<u64>)>,
    /// The next txg is written even if nothing changed.
    pub force_next: AtomicBool,
    /// Set when the thread that syncs has something to do.
    pub kicked: (Mutex<bool>, Condvar),
    /// Txgs that an idle pool may still write to have back what was freed.
    pub owed: AtomicU32,
    /// First txg of this opening: blocks of the intent log born in it or later are claims.
    pub first_txg: Txg,
    /// First txg that is written: later than `first_txg` after going back to an older state.
    pub first_group: Txg,
    /// When txgs were written.
    pub times: Times,
}

impl Txgs {
    /// Nobody waits, and the first txg is due: `state` asks for it.
    pub fn new(state: SyncState, first_txg: Txg, first_group: Txg) -> Txgs {
        Txgs {
            sync: Mutex::new(state),
            tasks: Tasks::default(),
            io: Suspension::default(),
            service: Service::default(),
            asked: Mutex::default(),
            force_next: AtomicBool::new(false),
            kicked: (Mutex::new(false), Condvar::new()),
            owed: AtomicU32::new(0),
            first_txg,
            first_group,
            times: Times::default(),
        }
    }
}
