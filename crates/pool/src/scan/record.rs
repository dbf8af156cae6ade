//! The records on disk of the newest scrub or resilver (pool format §20.2), and of sequential rebuilds (§20.4).

use crate::Pool;
use base::Result;
use dmu::Tx;
use vdev::keys;
use zap::{Value, Zap};

/// Words of a record. A release of another system wrote one more, which is kept.
pub(crate) const WORDS: usize = 24;

/// Indices of the words (pool format §20.2).
pub(crate) mod word {
    /// Scrub or resilver.
    pub const FUNCTION: usize = 0;
    /// Running, finished or canceled.
    pub const STATE: usize = 1;
    /// MOS object with the datasets still to be visited.
    pub const QUEUE: usize = 2;
    /// Txg after which the scanned blocks were born.
    pub const MIN: usize = 3;
    /// Last txg in which they were born.
    pub const MAX: usize = 4;
    /// `MIN` for the dataset being visited.
    pub const CUR_MIN: usize = 5;
    /// `MAX` for the dataset being visited.
    pub const CUR_MAX: usize = 6;
    /// Seconds since 1970.
    pub const START: usize = 7;
    /// Seconds since 1970; 0 while it runs.
    pub const END: usize = 8;
    /// Bytes allocated when the scan began.
    pub const TO_EXAMINE: usize = 9;
    /// Bytes visited.
    pub const EXAMINED: usize = 10;
    /// Bytes visited that were not to be scrubbed.
    pub const SKIPPED: usize = 11;
    /// Bytes repaired.
    pub const PROCESSED: usize = 12;
    /// Blocks that could not be repaired.
    pub const ERRORS: usize = 13;
    /// Highest class of dedup entries that is scanned through the tables.
    pub const DDT_CLASS_MAX: usize = 14;
    /// Object set, object, level, block id.
    pub const BOOKMARK: usize = 19;
    /// [`VISIT_AGAIN`](super::VISIT_AGAIN) and [`PAUSED`](super::PAUSED).
    pub const FLAGS: usize = 23;
}

/// Functions.
pub(crate) const SCRUB: u64 = 1;
pub(crate) const RESILVER: u64 = 2;

/// States.
pub(crate) const SCANNING: u64 = 1;
pub(crate) const FINISHED: u64 = 2;
pub(crate) const CANCELED: u64 = 3;

/// Flag: the dataset of the bookmark is to be visited again from its beginning.
pub(crate) const VISIT_AGAIN: u64 = 1;
/// Flag: paused.
pub(crate) const PAUSED: u64 = 2;

/// The state as it is on disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScanState {
    /// 1 scrub, 2 resilver.
    pub function: u64,
    /// 1 running, 2 finished, 3 canceled.
    pub state: u64,
    /// Seconds since 1970.
    pub start: u64,
    /// Seconds since 1970; 0 while it runs.
    pub end: u64,
    /// Bytes allocated when the scan began.
    pub to_examine: u64,
    /// Bytes visited.
    pub examined: u64,
    /// Bytes visited that were not to be scrubbed.
    pub skipped: u64,
    /// Bytes repaired.
    pub processed: u64,
    /// Blocks that could not be repaired.
    pub errors: u64,
    /// It waits for a user.
    pub paused: bool,
}

impl ScanState {
    pub(crate) fn of(words: &[u64]) -> ScanState {
        let w = |i: usize| words.get(i).copied().unwrap_or(0);
        ScanState {
            function: w(0),
            state: w(1),
            start: w(7),
            end: w(8),
            to_examine: w(9),
            examined: w(10),
            skipped: w(11),
            processed: w(12),
            errors: w(13),
            paused: w(23) & PAUSED != 0,
        }
    }
}

/// What the ZAP of a top-level vdev says of its last sequential rebuild.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rebuild {
    /// Top-level vdev.
    pub vdev: u64,
    /// 1 running, 2 canceled, 3 finished.
    pub state: u64,
    /// Seconds since 1970.
    pub start: u64,
    /// Seconds since 1970; 0 while it runs.
    pub end: u64,
    /// Bytes of allocated ranges handled so far.
    pub scanned: u64,
    /// Those of them that a device lacked.
    pub issued: u64,
    /// Bytes written.
    pub rebuilt: u64,
    /// Bytes there are to look at.
    pub estimate: u64,
    /// Ranges that could not be copied.
    pub errors: u64,
    /// Milliseconds it ran.
    pub time_ms: u64,
    /// The rest is of this pass: since the import, or since it began; 0 if it does not run here.
    pub pass_ms: u64,
    /// Bytes of allocated ranges handled.
    pub pass_scanned: u64,
    /// Those of them that a device lacked.
    pub pass_issued: u64,
    /// Bytes that no device lacks.
    pub pass_skipped: u64,
}

impl Rebuild {
    pub(super) fn of(vdev: u64, words: &[u64]) -> Rebuild {
        let w = |i: usize| words.get(i).copied().unwrap_or(0);
        Rebuild {
            vdev,
            state: w(0),
            start: w(4),
            end: w(5),
            time_ms: w(6),
            scanned: w(7),
            issued: w(8),
            rebuilt: w(9),
            estimate: w(10),
            errors: w(11),
            ..Rebuild::default()
        }
    }
}

impl Pool {
    /// The last sequential rebuild of each top-level vdev that had one. A record that cannot be read is
    /// left out.
    pub fn rebuilds(&self) -> Vec<Rebuild> {
        let tops = self.tree.tops();
        let read = |t: &std::sync::Arc<vdev::Vdev>| -> Option<Rebuild> {
            let live = self.live_rebuild(t.id());
            let stored = || Some(Rebuild::of(t.id(), &self.rebuild_words(t)?));
            live.or_else(stored).filter(|r| r.state != 0)
        };
        tops.iter().filter_map(read).collect()
    }

    /// The record of the last rebuild of a top-level vdev.
    pub(super) fn rebuild_words(&self, top: &vdev::Vdev) -> Option<Vec<u64>> {
        let zap = top.get_u64(keys::ZAP_TOP).filter(|z| *z != 0)?;
        let dn = self.mos.hold(zap).ok()?;
        let words = Zap::new(&dn).get_value(disk::mos_keys::VDEV_REBUILD);
        words.ok()?.map(|w| w.ints())
    }

    /// The newest scrub or resilver, if there ever was one.
    pub fn scan_state(&self) -> Result<Option<ScanState>> {
        let words = self.scan_words()?;
        Ok(words
            .map(|w| ScanState::of(&w))
            .filter(|s| s.function != 0 && s.state != 0))
    }

    /// The record of the newest scan as it is on disk.
    pub(crate) fn scan_words(&self) -> Result<Option<Vec<u64>>> {
        let dir = self.mos.hold(1)?;
        Ok(Zap::new(&dir).get_value("scan")?.map(|v| v.ints()))
    }

    /// Stores the record of the newest scan.
    pub(crate) fn store_scan(&self, tx: &Tx, words: &[u64]) -> Result<()> {
        let dir = self.mos.hold(1)?;
        Zap::new(&dir).update(tx, "scan", &Value::u64s(words))
    }
}
