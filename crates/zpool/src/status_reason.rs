//! The reason of a pool's bad state that `zpool status` names: the first one that applies.

use api::{Pool, PoolFacts, Scan, ScanFunction, ScanState, Vdev, VdevAux, VdevClass, VdevState};

/// The first thing that is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    Healthy,
    Resilvering,
    RebuildScrub,
    HostMismatch,
    VersionNewer,
    UnsupportedRead,
    UnsupportedWrite,
    BadGuidSum,
    Suspended,
    Stopped,
    BadLog,
    FaultedNoReplicas,
    MissingNoReplicas,
    LabelNoReplicas,
    CorruptPool,
    CorruptData,
    Faulted,
    Missing,
    Label,
    MissedWrites,
    Failing,
    Offlined,
    Removed,
    Ashift,
    /// What other software wrote wrongly, by its number.
    Errata(u64),
    LegacyVersion,
    FeaturesDisabled,
    BadCompatibility,
    IncompatibleFeatures,
}

impl Reason {
    /// What `status -x` does not show.
    pub fn is_healthy_enough(self) -> bool {
        matches!(
            self,
            Reason::Healthy
                | Reason::LegacyVersion
                | Reason::FeaturesDisabled
                | Reason::BadCompatibility
                | Reason::IncompatibleFeatures
        )
    }
}

/// Word in the STATE column of the root vdev.
pub fn root_state(pool: &Pool, root: &Vdev) -> &'static str {
    if pool.facts.suspended {
        return "SUSPENDED";
    }
    cli::vdevs::state(root.state, root.aux)
}

/// Whether any device fits; spares and what is being replaced do not count.
fn any(vdev: &Vdev, fits: &dyn Fn(&Vdev) -> bool) -> bool {
    if matches!(vdev.kind, api::VdevKind::Replacing) || vdev.class == VdevClass::Spare {
        return false;
    }
    if vdev.children.is_empty() {
        return fits(vdev);
    }
    vdev.children.iter().any(|c| any(c, fits))
}

fn missing(v: &Vdev) -> bool {
    v.state == VdevState::CantOpen && v.aux == VdevAux::OpenFailed
}

fn stale(v: &Vdev) -> bool {
    v.aux == VdevAux::MissedWrites
}

fn failing(v: &Vdev) -> bool {
    let s = &v.stats;
    v.state == VdevState::Degraded && !stale(v)
        || s.read_errors + s.write_errors + s.checksum_errors != 0
}

/// Whether a sequential rebuild is under way.
pub fn is_rebuilding(pool: &Pool) -> bool {
    let mut all = pool.rebuilds.iter();
    all.any(|r| r.state == ScanState::Scanning)
}

/// Whether a resilver is under way.
fn is_healing(s: &Scan) -> bool {
    s.function == ScanFunction::Resilver && s.state == ScanState::Scanning
}

/// Whether no scrub has ended since devices were rebuilt without a look at checksums.
fn wants_scrub(pool: &Pool) -> bool {
    let done = pool.rebuilds.iter();
    let done = done.filter(|r| r.state == ScanState::Finished);
    let Some(end) = done.map(|r| r.end).max().filter(|end| *end > 0) else {
        return false;
    };
    match &pool.scan {
        None => true,
        Some(s) => match s.state {
            ScanState::None => true,
            ScanState::Finished => s.function == ScanFunction::Scrub && end > s.end,
            ScanState::Scanning | ScanState::Canceled => false,
        },
    }
}

/// Finds what is wrong with an imported pool.
pub fn reason(pool: &Pool) -> Reason {
    if is_rebuilding(pool) {
        return Reason::Resilvering;
    }
    let healing = pool.scan.as_ref().is_some_and(is_healing);
    if !healing && wants_scrub(pool) {
        return Reason::RebuildScrub;
    }
    reason_of(
        pool.tree.as_ref(),
        &pool.facts,
        pool.scan.as_ref(),
        pool.error_count.unwrap_or(0),
        pool.version,
    )
}

/// Finds what is wrong; the first that applies counts.
pub fn reason_of(
    tree: Option<&Vdev>,
    facts: &PoolFacts,
    scan: Option<&Scan>,
    errors: u64,
    version: u64,
) -> Reason {
    if scan.is_some_and(is_healing) {
        return Reason::Resilvering;
    }
    if facts.host_mismatch.is_some() {
        return Reason::HostMismatch;
    }
    if facts.version_newer {
        return Reason::VersionNewer;
    }
    if !facts.unsupported.is_empty() {
        return if facts.unsupported_readable {
            Reason::UnsupportedWrite
        } else {
            Reason::UnsupportedRead
        };
    }
    let (dead, aux) = tree.map_or((false, VdevAux::None), |t| {
        (t.state == VdevState::CantOpen, t.aux)
    });
    let some = |fits: &dyn Fn(&Vdev) -> bool| tree.is_some_and(|t| any(t, fits));
    if dead && aux == VdevAux::BadGuidSum {
        return Reason::BadGuidSum;
    }
    if facts.stopped {
        return Reason::Stopped;
    }
    if facts.suspended {
        return Reason::Suspended;
    }
    if facts.bad_log {
        return Reason::BadLog;
    }
    let faulted = |v: &Vdev| v.state == VdevState::Faulted;
    let broken = |v: &Vdev| v.state == VdevState::CantOpen;
    if dead {
        if some(&faulted) {
            return Reason::FaultedNoReplicas;
        }
        if some(&missing) {
            return Reason::MissingNoReplicas;
        }
        if some(&broken) {
            return Reason::LabelNoReplicas;
        }
    }
    if facts.corrupt_metadata || (dead && aux == VdevAux::CorruptData) {
        return Reason::CorruptPool;
    }
    if errors > 0 {
        return Reason::CorruptData;
    }
    let rows: [(&dyn Fn(&Vdev) -> bool, Reason); 8] = [
        (&faulted, Reason::Faulted),
        (&missing, Reason::Missing),
        (&broken, Reason::Label),
        (&stale, Reason::MissedWrites),
        (&failing, Reason::Failing),
        (&|v| v.state == VdevState::Offline, Reason::Offlined),
        (&|v| v.state == VdevState::Removed, Reason::Removed),
        (
            &|v| {
                v.stats.configured_ashift != 0
                    && v.stats.physical_ashift > v.stats.configured_ashift
            },
            Reason::Ashift,
        ),
    ];
    for (fits, reason) in rows {
        if some(fits) {
            return reason;
        }
    }
    if facts.errata != 0 {
        return Reason::Errata(facts.errata);
    }
    if version != 0 && version < 5000 {
        return Reason::LegacyVersion;
    }
    if facts.bad_compatibility.is_some() {
        return Reason::BadCompatibility;
    }
    if !facts.incompatible_features.is_empty() {
        return Reason::IncompatibleFeatures;
    }
    if !facts.disabled_features.is_empty() {
        return Reason::FeaturesDisabled;
    }
    Reason::Healthy
}
