//! What a pool tells its administration while it happens: scans that begin and end. The administration turns it into events
//! (command reference §13.3).

use crate::Pool;
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

/// One notice. It becomes true with the txg that is being written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Notice {
    pub what: Scanning,
    pub turned: Turned,
}

/// Who is told. Called in syncing context, maybe with locks of scans held: it must not wait, nor ask how scans are doing.
pub type Observer = Box<dyn Fn(&Pool, Notice) + Send + Sync>;

/// Who is told, once somebody is.
#[derive(Default)]
pub(crate) struct Notices(OnceLock<Observer>);

impl Pool {
    /// Sets who is told of scans, once.
    pub fn observe(&self, observer: Observer) {
        let _ = self.notices.0.set(observer);
    }

    pub(crate) fn notice(&self, what: Scanning, turned: Turned) {
        if let Some(observer) = self.notices.0.get() {
            observer(self, Notice { what, turned });
        }
    }
}
