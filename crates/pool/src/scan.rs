//! What the pool remembers of its newest scrub or resilver (pool format §20.2).

use crate::Pool;
use base::Result;
use zap::Zap;

/// Flag of a scan: paused.
const PAUSED: u64 = 2;

/// The state as it is on disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScanState {
    /// 1 scrub, 2 resilver.
    pub function: u64,
    /// 1 running, 2 finished, 3 canceled.
    pub state: u64,
    /// Seconds since 1970.
    pub start: u64,
    pub end: u64,
    /// Bytes.
    pub to_examine: u64,
    pub examined: u64,
    pub skipped: u64,
    /// Bytes repaired.
    pub processed: u64,
    pub errors: u64,
    pub paused: bool,
}

impl ScanState {
    fn of(words: &[u64]) -> ScanState {
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

impl Pool {
    /// The newest scrub or resilver, if there ever was one.
    pub fn scan_state(&self) -> Result<Option<ScanState>> {
        let dir = self.mos.hold(1)?;
        Ok(Zap::new(&dir)
            .get_value("scan")?
            .map(|v| ScanState::of(&v.ints()))
            .filter(|s| s.function != 0 && s.state != 0))
    }
}
