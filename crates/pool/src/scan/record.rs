//! The records on disk of the newest scrub or resilver (pool format §20.2), and of sequential rebuilds (§20.4).

use crate::Pool;
use base::Result;
use disk::mos_keys::VDEV_REBUILD;
use disk::scan::{rebuild_word, word, Function, RebuildState, ScanState, PAUSED, SCAN};
use dmu::Tx;
use vdev::keys;
use zap::{Value, Zap};

/// What the record of the newest scan says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScanRecord {
    /// What it is for.
    pub function: Function,
    /// Whether it runs, and how it ended.
    pub state: ScanState,
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

impl ScanRecord {
    pub(crate) fn of(words: &[u64]) -> ScanRecord {
        let w = |i: usize| words.get(i).copied().unwrap_or(0);
        ScanRecord {
            function: Function::new(w(word::FUNCTION)),
            state: ScanState::new(w(word::STATE)),
            start: w(word::START),
            end: w(word::END),
            to_examine: w(word::TO_EXAMINE),
            examined: w(word::EXAMINED),
            skipped: w(word::SKIPPED),
            processed: w(word::PROCESSED),
            errors: w(word::ERRORS),
            paused: w(word::FLAGS) & PAUSED != 0,
        }
    }
}

/// What the ZAP of a top-level vdev says of its last sequential rebuild.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rebuild {
    /// Top-level vdev.
    pub vdev: u64,
    /// Whether it runs, and how it ended.
    pub state: RebuildState,
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
            state: RebuildState::new(w(rebuild_word::STATE)),
            start: w(rebuild_word::START),
            end: w(rebuild_word::END),
            time_ms: w(rebuild_word::TIME),
            scanned: w(rebuild_word::SCANNED),
            issued: w(rebuild_word::ISSUED),
            rebuilt: w(rebuild_word::REBUILT),
            estimate: w(rebuild_word::ESTIMATE),
            errors: w(rebuild_word::ERRORS),
            ..Rebuild::default()
        }
    }
}

impl Pool {
    /// The last sequential rebuild of each top-level vdev that had one. A record that cannot be read is
    /// left out.
    pub fn rebuilds(&self) -> Vec<Rebuild> {
        let tops = self.tree().tops();
        let read = |t: &std::sync::Arc<vdev::Vdev>| -> Option<Rebuild> {
            let live = self.live_rebuild(t.id());
            let stored = || Some(Rebuild::of(t.id(), &self.rebuild_words(t)?));
            live.or_else(stored)
                .filter(|r| r.state != RebuildState::None)
        };
        tops.iter().filter_map(read).collect()
    }

    /// The record of the last rebuild of a top-level vdev.
    pub(super) fn rebuild_words(&self, top: &vdev::Vdev) -> Option<Vec<u64>> {
        let zap = top.get_u64(keys::ZAP_TOP).filter(|z| *z != 0)?;
        let dn = self.mos().hold(zap).ok()?;
        let words = Zap::new(&dn).get_value(VDEV_REBUILD);
        words.ok()?.map(|w| w.ints())
    }

    /// The newest scrub or resilver, if there ever was one.
    pub fn scan_state(&self) -> Result<Option<ScanRecord>> {
        let words = self.scan_words()?;
        Ok(words
            .map(|w| ScanRecord::of(&w))
            .filter(|s| s.function != Function::None && s.state != ScanState::None))
    }

    /// The record of the newest scan as it is on disk.
    pub(crate) fn scan_words(&self) -> Result<Option<Vec<u64>>> {
        let dir = self.mos().hold(1)?;
        Ok(Zap::new(&dir).get_value(SCAN)?.map(|v| v.ints()))
    }

    /// Stores the record of the newest scan.
    pub(crate) fn store_scan(&self, tx: &Tx, words: &[u64]) -> Result<()> {
        let dir = self.mos().hold(1)?;
        Zap::new(&dir).update(tx, SCAN, &Value::u64s(words))
    }
}
