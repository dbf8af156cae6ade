//! What is wrong with a pool, in the words of `zpool status` (command reference §8.4).

use api::{Pool, PoolFacts, Scan, ScanFunction, ScanState, Vdev, VdevAux, VdevClass, VdevState};

/// The first thing that is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    Healthy,
    Resilvering,
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
    Failing,
    Offlined,
    Removed,
    Ashift,
    LegacyVersion,
    FeaturesDisabled,
    BadCompatibility,
    IncompatibleFeatures,
}

/// Texts of a reason; lines are joined by newlines, without the leading tabs.
#[derive(Debug, Default)]
pub struct Text {
    pub status: Option<String>,
    pub action: Option<String>,
    /// Last part of the message's address.
    pub id: Option<&'static str>,
}

/// Address of a message.
pub fn see(id: &str) -> String {
    format!("https://openzfs.github.io/openzfs-docs/msg/ZFS-8000-{id}")
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

fn failing(v: &Vdev) -> bool {
    let s = &v.stats;
    v.state == VdevState::Degraded || s.read_errors + s.write_errors + s.checksum_errors != 0
}

/// Finds what is wrong with an imported pool.
pub fn reason(pool: &Pool) -> Reason {
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
    if scan.is_some_and(|s| s.function == ScanFunction::Resilver && s.state == ScanState::Scanning)
    {
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
    let rows: [(&dyn Fn(&Vdev) -> bool, Reason); 7] = [
        (&faulted, Reason::Faulted),
        (&missing, Reason::Missing),
        (&broken, Reason::Label),
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

/// `name (description)` of features, a line each.
pub fn feature_lines(features: &[(String, String)]) -> String {
    let line = |(guid, text): &(String, String)| {
        if text.is_empty() {
            format!("\n{guid}")
        } else {
            format!("\n{guid} ({text})")
        }
    };
    features.iter().map(line).collect()
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

    /// The texts of an imported pool.
    pub fn text(self, facts: &PoolFacts) -> Text {
        let recover = "Destroy and re-create the pool from\na backup source.";
        let (status, action, id) = match self {
            Reason::Healthy => return Text::default(),
            Reason::Resilvering => (
                "One or more devices is currently being resilvered.  The pool will\n\
                 continue to function, possibly in a degraded state.",
                "Wait for the resilver to complete.",
                None,
            ),
            Reason::HostMismatch => (
                "Mismatch between pool hostid and system hostid on imported pool.\n\
                 This pool was previously imported into a system with a different hostid,\n\
                 and then was verbatim imported into this system.",
                "Export this pool on all systems on which it is imported.\n\
                 Then import it to correct the mismatch.",
                Some("EY"),
            ),
            Reason::VersionNewer => (
                "The pool has been upgraded to a newer, incompatible on-disk version.\n\
                 The pool cannot be accessed on this system.",
                "Access the pool from a system running more recent software, or\n\
                 restore the pool from backup.",
                Some("A5"),
            ),
            Reason::UnsupportedRead => (
                "The pool cannot be accessed on this system because it uses the\n\
                 following feature(s) not supported on this system:",
                "Access the pool from a system that supports the required feature(s),\n\
                 or restore the pool from backup.",
                None,
            ),
            Reason::UnsupportedWrite => (
                "The pool can only be accessed in read-only mode on this system. It\n\
                 cannot be accessed in read-write mode because it uses the following\n\
                 feature(s) not supported on this system:",
                "The pool cannot be accessed in read-write mode. Import the pool with\n\
                 \"-o readonly=on\", access the pool from a system that supports the\n\
                 required feature(s), or restore the pool from backup.",
                None,
            ),
            Reason::BadGuidSum => (
                "One or more devices are missing from the system.",
                "Attach the missing devices, export the pool and import it again.",
                Some("6X"),
            ),
            Reason::Suspended => (
                "One or more devices are faulted in response to IO failures.  The pool\n\
                 waits for them; nothing is lost so far.",
                "Make sure the affected devices are connected and have room, then run\n\
                 'zpool clear'.  'zpool export -f' gives up what is not on them.",
                Some("HC"),
            ),
            Reason::Stopped => (
                "The pool is stopped: a transaction group could not be written, and what\n\
                 is not on the devices is lost.",
                "Run 'zpool export -f', then import the pool again: it goes on from the\n\
                 last transaction group on its devices.",
                None,
            ),
            Reason::BadLog => (
                "An intent log record could not be read.\n\
                 Waiting for administrator intervention to fix the faulted pool.",
                "Restore the affected device(s) and run 'zpool clear'.",
                Some("K4"),
            ),
            Reason::FaultedNoReplicas => (
                "One or more devices are faulted in response to persistent errors.  \
                 There are insufficient replicas for the pool to\n\
                 continue functioning.",
                "Destroy and re-create the pool from a backup source.  Manually marking the \
                 device\nrepaired using 'zpool clear' may allow some data to be recovered.",
                None,
            ),
            Reason::MissingNoReplicas => (
                "One or more devices could not be opened.  There are insufficient\n\
                 replicas for the pool to continue functioning.",
                "Attach the missing device, then run 'zpool clear'; or 'zpool import', if the\n\
                 pool could not be opened.",
                Some("3C"),
            ),
            Reason::LabelNoReplicas => (
                "One or more devices could not be used because the label is missing \n\
                 or invalid.  There are insufficient replicas for the pool to continue\n\
                 functioning.",
                recover,
                Some("5E"),
            ),
            Reason::CorruptPool => (
                "The pool metadata is corrupted and the pool cannot be opened.",
                recover,
                Some("72"),
            ),
            Reason::CorruptData => (
                "One or more devices has experienced an error resulting in data\n\
                 corruption.  Applications may be affected.",
                "Restore the file in question if possible.  Otherwise restore the\n\
                 entire pool from backup.",
                Some("8A"),
            ),
            Reason::Faulted => (
                "One or more devices are faulted in response to persistent errors.\n\
                 Sufficient replicas exist for the pool to continue functioning in a\n\
                 degraded state.",
                "Use 'zpool clear' to mark the device repaired, or have OpenZFS replace it;\n\
                 this software cannot yet.",
                None,
            ),
            Reason::Missing => (
                "One or more devices could not be opened.  Sufficient replicas exist for\n\
                 the pool to continue functioning in a degraded state.",
                "Attach the missing device and run 'zpool clear'.",
                Some("2Q"),
            ),
            Reason::Label => (
                "One or more devices could not be used because the label is missing or\n\
                 invalid.  Sufficient replicas exist for the pool to continue\n\
                 functioning in a degraded state.",
                "Export the pool and have OpenZFS replace the device; this software cannot\n\
                 yet.",
                Some("4J"),
            ),
            Reason::Failing => (
                "One or more devices has experienced an unrecoverable error.  An\n\
                 attempt was made to correct the error.  Applications are unaffected.",
                "Determine if the device needs to be replaced, and clear the errors\n\
                 using 'zpool clear' or have OpenZFS replace the device; this software\n\
                 cannot yet.",
                Some("9P"),
            ),
            Reason::Offlined => (
                "One or more devices has been taken offline by the administrator.\n\
                 Sufficient replicas exist for the pool to continue functioning in a\n\
                 degraded state.",
                "Export the pool and have OpenZFS bring the device online or replace it;\n\
                 this software cannot yet.",
                None,
            ),
            Reason::Removed => (
                "One or more devices have been removed.\n\
                 Sufficient replicas exist for the pool to continue functioning in a\n\
                 degraded state.",
                "Export the pool and have OpenZFS bring the device online or replace it;\n\
                 this software cannot yet.",
                None,
            ),
            Reason::Ashift => (
                "One or more devices are configured to use a non-native block size.\n\
                 Expect reduced performance.",
                "Replace affected devices with devices that support the\n\
                 configured block size, or migrate data to a properly configured\n\
                 pool.",
                None,
            ),
            Reason::LegacyVersion => (
                "The pool is formatted using a legacy on-disk format.  The pool can\n\
                 still be used, but some features are unavailable.",
                "Upgrade the pool using 'zpool upgrade'.  Once this is done, the\n\
                 pool will no longer be accessible on software that does not support\n\
                 feature flags.",
                None,
            ),
            Reason::FeaturesDisabled => (
                "Some supported and requested features are not enabled on the pool.\n\
                 The pool can still be used, but some features are unavailable.",
                "Enable all features using 'zpool upgrade'. Once this is done,\n\
                 the pool may no longer be accessible by software that does not support\n\
                 the features. See zpool-features(7) for details.",
                None,
            ),
            Reason::BadCompatibility => (
                "This pool has a compatibility list specified, but it could not be\n\
                 read/parsed at this time. The pool can still be used, but this\n\
                 should be investigated.",
                "Check the value of the 'compatibility' property against the\n\
                 appropriate file in /etc/zfs/compatibility.d or\n\
                 /usr/share/zfs/compatibility.d.",
                None,
            ),
            Reason::IncompatibleFeatures => (
                "One or more features are enabled on the pool despite not being\n\
                 requested by the 'compatibility' property.",
                "Consider setting 'compatibility' to an appropriate value, or\n\
                 adding needed features to the relevant file in\n\
                 /etc/zfs/compatibility.d or /usr/share/zfs/compatibility.d.",
                None,
            ),
        };
        let mut status = status.to_string();
        if let (Reason::Suspended | Reason::Stopped, Some(why)) = (self, &facts.suspended_why) {
            status.push_str(&format!("\n({why})"));
        }
        if matches!(self, Reason::UnsupportedRead | Reason::UnsupportedWrite) {
            status.push_str(&feature_lines(&facts.unsupported));
        }
        Text {
            status: Some(status),
            action: Some(action.to_string()),
            id,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn actions_name_only_commands_that_work_here() {
        let all = [
            Reason::Resilvering,
            Reason::HostMismatch,
            Reason::VersionNewer,
            Reason::UnsupportedRead,
            Reason::UnsupportedWrite,
            Reason::BadGuidSum,
            Reason::Suspended,
            Reason::Stopped,
            Reason::BadLog,
            Reason::FaultedNoReplicas,
            Reason::MissingNoReplicas,
            Reason::LabelNoReplicas,
            Reason::CorruptPool,
            Reason::CorruptData,
            Reason::Faulted,
            Reason::Missing,
            Reason::Label,
            Reason::Failing,
            Reason::Offlined,
            Reason::Removed,
            Reason::Ashift,
            Reason::LegacyVersion,
            Reason::FeaturesDisabled,
            Reason::BadCompatibility,
            Reason::IncompatibleFeatures,
        ];
        let built = |word: &str| {
            cli::zpool_table::ZPOOL
                .subs
                .iter()
                .any(|s| s.built && s.name == word)
        };
        assert!(!built("scrub"), "nothing is unbuilt any more");
        for reason in all {
            let action = reason.text(&PoolFacts::default()).action.unwrap();
            for command in action.split("'zpool ").skip(1) {
                let word = command.split([' ', '\'']).next().unwrap();
                assert!(built(word), "{reason:?}: {action}");
            }
        }
    }
}
