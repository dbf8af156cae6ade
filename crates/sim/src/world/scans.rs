//! Scrubs and resilvers in a world, and which of its disks may hold anything.

use super::{desk, text, Outcome, World};
use crate::check;
use crate::op::{Fault, Scan};
use crate::sources;
use base::sync::MutexExt;
use base::{Kind, Result};
use disk::scan::{Function, RebuildState, ScanState};
use std::collections::BTreeSet;
use std::sync::atomic::Ordering::Relaxed;

/// What is known of the content of the disks.
#[derive(Default)]
pub(super) struct Content {
    /// Disks that may hold something else than what was written, where no DTL says so.
    spoilt: BTreeSet<usize>,
    /// The same at any time since the last cut.
    lately: BTreeSet<usize>,
    /// A scrub of everything was begun, and no device failed or changed since.
    scrubbed: bool,
    /// A device failed, ever.
    failed: bool,
}

impl Content {
    pub fn lately(&self) -> &BTreeSet<usize> {
        &self.lately
    }

    /// Life goes on with any image since the last cut.
    pub fn cut(&mut self) {
        self.spoilt = self.lately.clone();
        self.scrubbed = false;
    }

    pub fn fault(&mut self, disk: usize, fault: Fault) {
        self.scrubbed = false;
        self.failed = true;
        let silent = match fault {
            Fault::Garbage | Fault::Rot(..) | Fault::Phantom(_) | Fault::Misdirect(_) => true,
            Fault::ReadErrors(_) | Fault::WriteErrors(_) => false,
            Fault::Dead | Fault::Slow(_) | Fault::Over => false,
        };
        if silent {
            self.spoilt.insert(disk);
            self.lately.insert(disk);
        }
    }

    pub fn changed(&mut self) {
        self.scrubbed = false;
    }

    /// A resilver gives everything to a disk, which does what it says.
    pub fn begins_anew(&mut self, disk: usize) {
        self.spoilt.remove(&disk);
    }

    /// A disk or distributed spare is filled from others that may hold anything.
    pub fn may_be_wrong(&mut self, disk: usize) {
        self.spoilt.insert(disk);
        self.lately.insert(disk);
    }
}

impl World {
    /// Whether a disk does what it is told, from now on.
    pub(super) fn is_sound(&self, disk: usize) -> bool {
        let d = self.disks.get(disk);
        d.is_some_and(|d| d.phantom.load(Relaxed) == 0 && d.misdirect.acquire().is_none())
    }

    /// A disk or a distributed spare came into the tree, and is filled from the others; `unverified`: without a look at
    /// checksums, by a rebuild of a dRAID, which takes any device that lacks nothing for right.
    pub(super) fn arrives(&mut self, pool: &pool::Pool, target: usize, unverified: bool) {
        let used = sources::in_use(pool);
        let wrong = |d: &usize| *d != target && used.contains(d);
        if unverified && self.content.spoilt.iter().any(wrong) {
            self.content.may_be_wrong(target);
        } else if sources::is_spare(target) || self.is_sound(target) {
            self.content.begins_anew(target);
        }
    }

    pub(super) fn scan(&mut self, what: Scan) -> std::result::Result<Outcome, String> {
        if self.pool().is_none() {
            return Ok(Outcome::Nothing);
        }
        if what == Scan::Finish {
            return self.finish_scan();
        }
        let done = desk(&self.opened).and_then(|d| d.scan(what));
        match done {
            Ok(()) => {
                let wear = [
                    Scan::Trim,
                    Scan::Initialize,
                    Scan::SuspendWear,
                    Scan::CancelWear,
                ];
                if !wear.contains(&what) {
                    self.content.scrubbed = what == Scan::Scrub;
                }
                Ok(Outcome::Done)
            }
            Err(e) if refused(&e) => Ok(Outcome::Refused),
            Err(e) => Err(text(e)),
        }
    }

    /// Every scan comes to its end. Then the devices it read from are taken away.
    fn finish_scan(&mut self) -> std::result::Result<Outcome, String> {
        let Some(pool) = self.pool().cloned() else {
            return Ok(Outcome::Nothing);
        };
        if !sources::settle(&pool)? {
            return Ok(Outcome::Refused);
        }
        let pos = self.pos();
        self.oracle.ack_all(pos);
        let newest = pool.scan_progress().map_err(text)?.map(|s| s.state);
        let Some(scan) = newest.filter(|s| s.state == ScanState::Finished) else {
            return Ok(Outcome::Nothing);
        };
        let never = self.counts.faults == 0;
        if !self.content.failed && scan.errors > 0 || never && scan.processed > 0 {
            return Err(format!("no device failed, but the scan tells: {scan:?}"));
        }
        let rebuilt = pool
            .rebuilds()
            .iter()
            .any(|r| r.state == RebuildState::Complete && r.errors == 0);
        if rebuilt && !self.content.failed && scan.function == Function::Scrub && scan.processed > 0
        {
            return Err(format!("what was rebuilt had to be repaired: {scan:?}"));
        }
        let all_sound = (0..self.disks.len()).all(|d| self.is_sound(d));
        if scan.function == Function::Scrub
            && scan.errors == 0
            && self.content.scrubbed
            && all_sound
        {
            // It has repaired what could be written; whatever is not in the tree is filled when it comes back.
            if pool.tree().dtl_holders().iter().all(sources::whole) {
                self.content.spoilt.clear();
            }
        }
        let labels = check::Labels::of(&self.base, &[]);
        let judge = check::Judge {
            layout: &self.layout,
            clock: &self.clock,
            oracle: &self.oracle,
            labels: &labels,
            // Behind everything that was acknowledged.
            cut: usize::MAX - 1,
            healthy: never,
            imported: true,
            first: self.first,
            care: check::Care::Full,
            spoilt: &self.content.spoilt,
        };
        if let Some(o) = &self.opened {
            let trees = o.trees()?;
            judge.alone(o, &self.disks, &trees)?;
        }
        Ok(Outcome::Done)
    }
}

fn refused(e: &base::Error) -> bool {
    matches!(
        e.kind,
        Kind::Busy | Kind::NotFound | Kind::Unsupported | Kind::Suspended
    )
}

impl crate::desk::Desk {
    /// `zpool trim`, `zpool initialize`, of all devices; what does not go for single ones does not matter.
    fn wear(&self, what: Scan) -> Result<()> {
        use api::{WearAction, WearKind};
        let all: &[(WearKind, WearAction)] = match what {
            Scan::Trim => &[(WearKind::Trim, WearAction::Start)],
            Scan::Initialize => &[(WearKind::Initialize, WearAction::Start)],
            Scan::SuspendWear => &[
                (WearKind::Trim, WearAction::Suspend),
                (WearKind::Initialize, WearAction::Suspend),
            ],
            _ => &[
                (WearKind::Trim, WearAction::Cancel),
                (WearKind::Initialize, WearAction::Cancel),
            ],
        };
        for (what, action) in all {
            self.wear_all(*what, *action)?;
        }
        Ok(())
    }

    /// `zpool scrub`, `zpool resilver`
    fn scan(&self, what: Scan) -> Result<()> {
        self.scrub(match what {
            Scan::Scrub => Some(api::ScrubAction::Start),
            Scan::Pause => Some(api::ScrubAction::Pause),
            Scan::Stop => Some(api::ScrubAction::Stop),
            Scan::Errors => Some(api::ScrubAction::Errors),
            Scan::Trim | Scan::Initialize | Scan::SuspendWear | Scan::CancelWear => {
                return self.wear(what);
            }
            Scan::Resilver | Scan::Finish => None,
        })
    }
}
