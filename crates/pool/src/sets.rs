//! The part of a pool that holds its datasets: the directory of all of them, the object sets that are open, and what could not be
//! opened or replayed at the import.
//!
//! `admin` opens and closes object sets ([`crate::datasets`]); the syncing thread asks each of them for its intent log's header.
//!
//! Lock order: the lock of `open` is held while an object set is read from disk, so it comes before the locks of `dmu` and `zio`.
//! A thread that writes a txg holds the lock of the syncing thread when it takes it.

use crate::datasets::OpenSet;
use base::sync::MutexExt;
use base::Error;
use dsl::{Dataset, Dsl};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// Datasets of one pool.
pub(crate) struct Sets {
    /// Directories, datasets and snapshots.
    pub dsl: Arc<Dsl>,
    /// Open object sets, by object of the dataset.
    pub open: Mutex<BTreeMap<u64, Arc<OpenSet>>>,
    /// Volumes whose logs wait to be replayed.
    pub logged: Mutex<Vec<Arc<Dataset>>>,
    /// Datasets that could not be read when the pool was opened, and why.
    pub unreadable: Mutex<Vec<(String, Error)>>,
}

impl Sets {
    /// None is open yet.
    pub fn new(dsl: Arc<Dsl>) -> Sets {
        Sets {
            dsl,
            open: Mutex::default(),
            logged: Mutex::default(),
            unreadable: Mutex::default(),
        }
    }

    /// The open object set of a dataset.
    pub fn get(&self, object: u64) -> Option<Arc<OpenSet>> {
        self.open.acquire().get(&object).cloned()
    }

    /// All open object sets.
    pub fn all(&self) -> Vec<Arc<OpenSet>> {
        self.open.acquire().values().cloned().collect()
    }
}
