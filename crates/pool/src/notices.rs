//! Notices from a pool to its administration: scans that begin and end, damaged blocks, records of the history. The
//! administration turns them into events.

use crate::Pool;
use disk::NvList;
use dmu::Damage;
use std::sync::{Arc, OnceLock};
use vdev::Vdev;

/// What a scan does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scanning {
    /// A scrub.
    Scrub,
    /// A scrub of the blocks in the error log.
    ErrorScrub,
    /// By the block trees.
    Resilver,
    /// In order of place: a rebuild of this top-level vdev.
    Rebuild(u64),
}

/// The change of a scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turned {
    /// It has begun.
    Started,
    /// It has come to its end.
    Finished,
    /// It was stopped, or begins anew.
    Aborted,
    /// It waits for a user.
    Paused,
    /// It goes on after a pause.
    Resumed,
}

/// One notice. What it says of scans and the history becomes true with the txg that is being written.
#[derive(Clone, Debug)]
pub enum Notice {
    /// A scan has begun, ended, or changed.
    Scan {
        /// The scan.
        what: Scanning,
        /// What happened to it.
        turned: Turned,
    },
    /// Trim of a leaf has begun, ended, or changed.
    Trim {
        /// Its guid.
        leaf: u64,
        /// What happened to it.
        turned: Turned,
    },
    /// A block that no copy can restore was found, which was not on record.
    Damaged(Damage),
    /// A block of an encrypted dataset is not what was written with its key.
    NotAuthentic(Damage),
    /// A record of something the pool did.
    Recorded(NvList),
    /// This top-level vdev was removed: its blocks are on others.
    Removed(Arc<Vdev>),
}

/// Who is told. Called in syncing context and by threads that read, maybe with locks of scans held: it must not wait, nor ask
/// how scans are doing.
pub type Observer = Box<dyn Fn(&Pool, Notice) + Send + Sync>;

/// Who is told, once somebody is.
#[derive(Default)]
pub(crate) struct Notices(OnceLock<Observer>);

impl Pool {
    /// Sets who is told, once.
    pub fn observe(&self, observer: Observer) {
        let _ = self.records.notices.0.set(observer);
    }

    pub(crate) fn notice(&self, what: Scanning, turned: Turned) {
        self.tell(Notice::Scan { what, turned });
    }

    pub(crate) fn tell(&self, notice: Notice) {
        if let Some(observer) = self.records.notices.0.get() {
            observer(self, notice);
        }
    }
}
