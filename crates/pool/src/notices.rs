//! What a pool tells its administration while it happens: scans that begin and end, damaged blocks, records of the history. The
//! administration turns it into events (command reference §13.3).

use crate::Pool;
use disk::NvList;
use dmu::Damage;
use std::sync::OnceLock;

/// What a scan does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scanning {
    Scrub,
    ErrorScrub,
    /// By the block trees.
    Resilver,
    /// In order of place: a rebuild of this top-level vdev.
    Rebuild(u64),
}

/// What became of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turned {
    Started,
    Finished,
    Aborted,
    Paused,
    Resumed,
}

/// One notice. What it says of scans and the history becomes true with the txg that is being written.
#[derive(Clone, Debug, PartialEq)]
pub enum Notice {
    Scan {
        what: Scanning,
        turned: Turned,
    },
    /// A block that no copy can restore was found, which was not on record.
    Damaged(Damage),
    /// A block of an encrypted dataset is not what was written with its key.
    NotAuthentic(Damage),
    /// A record of something the pool did.
    Recorded(NvList),
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
        let _ = self.notices.0.set(observer);
    }

    pub(crate) fn notice(&self, what: Scanning, turned: Turned) {
        self.tell(Notice::Scan { what, turned });
    }

    pub(crate) fn tell(&self, notice: Notice) {
        if let Some(observer) = self.notices.0.get() {
            observer(self, notice);
        }
    }
}
