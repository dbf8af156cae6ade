//! What the pool remembers of its newest scrub or resilver (pool format §20.2), and of sequential
//! rebuilds (§20.4).

use crate::Pool;
use base::Result;
use vdev::keys;
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

/// What the ZAP of a top-level vdev says of its last sequential rebuild.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rebuild {
    /// Top-level vdev.
    pub vdev: u64,
    /// 1 running, 2 canceled, 3 finished.
    pub state: u64,
    /// Seconds since 1970.
    pub start: u64,
    pub end: u64,
    /// Bytes.
    pub scanned: u64,
    pub issued: u64,
    pub rebuilt: u64,
    /// Bytes there are to look at.
    pub estimate: u64,
    pub errors: u64,
}

impl Rebuild {
    fn of(vdev: u64, words: &[u64]) -> Rebuild {
        let w = |i: usize| words.get(i).copied().unwrap_or(0);
        Rebuild {
            vdev,
            state: w(0),
            start: w(4),
            end: w(5),
            scanned: w(7),
            issued: w(8),
            rebuilt: w(9),
            estimate: w(10),
            errors: w(11),
        }
    }
}

impl Pool {
    /// The last sequential rebuild of each top-level vdev that had one. A record that cannot be read is
    /// left out.
    pub fn rebuilds(&self) -> Vec<Rebuild> {
        let tops = self.tree.tops();
        let read = |t: &std::sync::Arc<vdev::Vdev>| -> Option<Rebuild> {
            let zap = t.get_u64(keys::ZAP_TOP).filter(|z| *z != 0)?;
            let dn = self.mos.hold(zap).ok()?;
            let words = Zap::new(&dn).get_value("org.openzfs:vdev_rebuild").ok()??;
            Some(Rebuild::of(t.id(), &words.ints())).filter(|r| r.state != 0)
        };
        tops.iter().filter_map(read).collect()
    }

    /// The newest scrub or resilver, if there ever was one.
    pub fn scan_state(&self) -> Result<Option<ScanState>> {
        let dir = self.mos.hold(1)?;
        Ok(Zap::new(&dir)
            .get_value("scan")?
            .map(|v| ScanState::of(&v.ints()))
            .filter(|s| s.function != 0 && s.state != 0))
    }
}
