//! Reasons in the words of `zpool status` (command reference §8.4).

use crate::status_reason::Reason;
use api::PoolFacts;

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
    /// The texts of an imported pool.
    pub fn text(self, facts: &PoolFacts) -> Text {
        let Some(words) = self.words() else {
            return Text::default();
        };
        let mut status = words.status.to_string();
        if let (Reason::Suspended | Reason::Stopped, Some(why)) = (self, &facts.suspended_why) {
            status.push_str(&format!("\n({why})"));
        }
        if matches!(self, Reason::UnsupportedRead | Reason::UnsupportedWrite) {
            status.push_str(&feature_lines(&facts.unsupported));
        }
        Text {
            status: Some(status),
            action: Some(words.action.to_string()),
            id: words.id,
        }
    }

    /// The words that do not depend on the pool; none for a healthy one.
    fn words(self) -> Option<&'static Words> {
        Some(match self {
            Reason::Healthy => return None,
            Reason::Resilvering => &RESILVERING,
            Reason::RebuildScrub => &REBUILD_SCRUB,
            Reason::HostMismatch => &HOST_MISMATCH,
            Reason::VersionNewer => &VERSION_NEWER,
            Reason::UnsupportedRead => &UNSUPPORTED_READ,
            Reason::UnsupportedWrite => &UNSUPPORTED_WRITE,
            Reason::BadGuidSum => &BAD_GUID_SUM,
            Reason::Suspended => &SUSPENDED,
            Reason::Stopped => &STOPPED,
            Reason::BadLog => &BAD_LOG,
            Reason::FaultedNoReplicas => &FAULTED_NO_REPLICAS,
            Reason::MissingNoReplicas => &MISSING_NO_REPLICAS,
            Reason::LabelNoReplicas => &LABEL_NO_REPLICAS,
            Reason::CorruptPool => &CORRUPT_POOL,
            Reason::CorruptData => &CORRUPT_DATA,
            Reason::Faulted => &FAULTED,
            Reason::Missing => &MISSING,
            Reason::Label => &LABEL,
            Reason::MissedWrites => &MISSED_WRITES,
            Reason::Failing => &FAILING,
            Reason::Offlined => &OFFLINED,
            Reason::Removed => &REMOVED,
            Reason::Ashift => &ASHIFT,
            Reason::Errata(1) => &ERRATA_1,
            Reason::Errata(2) => &ERRATA_2,
            Reason::Errata(3) => &ERRATA_3,
            Reason::Errata(_) => &ERRATA_4,
            Reason::LegacyVersion => &LEGACY_VERSION,
            Reason::FeaturesDisabled => &FEATURES_DISABLED,
            Reason::BadCompatibility => &BAD_COMPATIBILITY,
            Reason::IncompatibleFeatures => &INCOMPATIBLE_FEATURES,
        })
    }
}

/// The words of a reason.
struct Words {
    status: &'static str,
    action: &'static str,
    /// Last part of the message's address.
    id: Option<&'static str>,
}

const RECOVER: &str = "Destroy and re-create the pool from\na backup source.";

const RESILVERING: Words = Words {
    status: "One or more devices is currently being resilvered.  The pool will\n\
                 continue to function, possibly in a degraded state.",
    action: "Wait for the resilver to complete.",
    id: None,
};

const REBUILD_SCRUB: Words = Words {
    status: "One or more devices have been sequentially resilvered, scrubbing\n\
                 the pool is recommended.",
    action: "Use 'zpool scrub' to verify all data checksums.",
    id: None,
};

const HOST_MISMATCH: Words = Words {
    status: "Mismatch between pool hostid and system hostid on imported pool.\n\
                 This pool was previously imported into a system with a different hostid,\n\
                 and then was verbatim imported into this system.",
    action: "Export this pool on all systems on which it is imported.\n\
                 Then import it to correct the mismatch.",
    id: Some("EY"),
};

const VERSION_NEWER: Words = Words {
    status: "The pool has been upgraded to a newer, incompatible on-disk version.\n\
                 The pool cannot be accessed on this system.",
    action: "Access the pool from a system running more recent software, or\n\
                 restore the pool from backup.",
    id: Some("A5"),
};

const UNSUPPORTED_READ: Words = Words {
    status: "The pool cannot be accessed on this system because it uses the\n\
                 following feature(s) not supported on this system:",
    action: "Access the pool from a system that supports the required feature(s),\n\
                 or restore the pool from backup.",
    id: None,
};

const UNSUPPORTED_WRITE: Words = Words {
    status: "The pool can only be accessed in read-only mode on this system. It\n\
                 cannot be accessed in read-write mode because it uses the following\n\
                 feature(s) not supported on this system:",
    action: "The pool cannot be accessed in read-write mode. Import the pool with\n\
                 \"-o readonly=on\", access the pool from a system that supports the\n\
                 required feature(s), or restore the pool from backup.",
    id: None,
};

const BAD_GUID_SUM: Words = Words {
    status: "One or more devices are missing from the system.",
    action: "Attach the missing devices, export the pool and import it again.",
    id: Some("6X"),
};

const SUSPENDED: Words = Words {
    status: "One or more devices are faulted in response to IO failures.  The pool\n\
                 waits for them; nothing is lost so far.",
    action: "Make sure the affected devices are connected and have room, then run\n\
                 'zpool clear'.  'zpool export -f' gives up what is not on them.",
    id: Some("HC"),
};

const STOPPED: Words = Words {
    status: "The pool is stopped: a transaction group could not be written, and what\n\
                 is not on the devices is lost.",
    action: "Run 'zpool export -f', then import the pool again: it goes on from the\n\
                 last transaction group on its devices.",
    id: None,
};

const BAD_LOG: Words = Words {
    status: "An intent log record could not be read.\n\
                 Waiting for administrator intervention to fix the faulted pool.",
    action: "Restore the affected device(s) and run 'zpool clear'.",
    id: Some("K4"),
};

const FAULTED_NO_REPLICAS: Words = Words {
    status: "One or more devices are faulted in response to persistent errors.  \
                 There are insufficient replicas for the pool to\n\
                 continue functioning.",
    action: "Destroy and re-create the pool from a backup source.  Manually marking the \
                 device\nrepaired using 'zpool clear' may allow some data to be recovered.",
    id: None,
};

const MISSING_NO_REPLICAS: Words = Words {
    status: "One or more devices could not be opened.  There are insufficient\n\
                 replicas for the pool to continue functioning.",
    action: "Attach the missing device, then run 'zpool clear'; or 'zpool import', if the\n\
                 pool could not be opened.",
    id: Some("3C"),
};

const LABEL_NO_REPLICAS: Words = Words {
    status: "One or more devices could not be used because the label is missing \n\
                 or invalid.  There are insufficient replicas for the pool to continue\n\
                 functioning.",
    action: RECOVER,
    id: Some("5E"),
};

const CORRUPT_POOL: Words = Words {
    status: "The pool metadata is corrupted and the pool cannot be opened.",
    action: RECOVER,
    id: Some("72"),
};

const CORRUPT_DATA: Words = Words {
    status: "One or more devices has experienced an error resulting in data\n\
                 corruption.  Applications may be affected.",
    action: "Restore the file in question if possible.  Otherwise restore the\n\
                 entire pool from backup.",
    id: Some("8A"),
};

const FAULTED: Words = Words {
    status: "One or more devices are faulted in response to persistent errors.\n\
                 Sufficient replicas exist for the pool to continue functioning in a\n\
                 degraded state.",
    action: "Replace the faulted device, or use 'zpool clear' to mark the device\n\
                 repaired.",
    id: None,
};

const MISSING: Words = Words {
    status: "One or more devices could not be opened.  Sufficient replicas exist for\n\
                 the pool to continue functioning in a degraded state.",
    action: "Attach the missing device and online it using 'zpool online'.",
    id: Some("2Q"),
};

const LABEL: Words = Words {
    status: "One or more devices could not be used because the label is missing or\n\
                 invalid.  Sufficient replicas exist for the pool to continue\n\
                 functioning in a degraded state.",
    action: "Replace the device using 'zpool replace'.",
    id: Some("4J"),
};

const MISSED_WRITES: Words = Words {
    status: "One or more devices lack data that was written while they were away.\n\
                 They are not used for these data, so the pool has less redundancy\n\
                 than its layout promises.",
    action: "Keep the other devices: they may have the only copy.  A resilver\n\
                 begins by itself; if it has ended and could not copy everything, see\n\
                 'zpool status -v' and run 'zpool resilver' to try again.",
    id: None,
};

const FAILING: Words = Words {
    status: "One or more devices has experienced an unrecoverable error.  An\n\
                 attempt was made to correct the error.  Applications are unaffected.",
    action: "Determine if the device needs to be replaced, and clear the errors\n\
                 using 'zpool clear' or replace the device with 'zpool replace'.",
    id: Some("9P"),
};

const OFFLINED: Words = Words {
    status: "One or more devices has been taken offline by the administrator.\n\
                 Sufficient replicas exist for the pool to continue functioning in a\n\
                 degraded state.",
    action: "Online the device using 'zpool online' or replace the device with\n\
                 'zpool replace'.",
    id: None,
};

const REMOVED: Words = Words {
    status: "One or more devices have been removed.\n\
                 Sufficient replicas exist for the pool to continue functioning in a\n\
                 degraded state.",
    action: "Online the device using 'zpool online' or replace the device with\n\
                 'zpool replace'.",
    id: None,
};

const ASHIFT: Words = Words {
    status: "One or more devices are configured to use a non-native block size.\n\
                 Expect reduced performance.",
    action: "Replace affected devices with devices that support the\n\
                 configured block size, or migrate data to a properly configured\n\
                 pool.",
    id: None,
};

const ERRATA_1: Words = Words {
    status: "Errata #1 detected.",
    action: "To correct the issue run 'zpool scrub'.",
    id: Some("ER"),
};

const ERRATA_2: Words = Words {
    status: "Errata #2 detected.",
    action: "Import the pool with the release that destroyed a dataset last, until\n\
                 its space is freed.",
    id: Some("ER"),
};

const ERRATA_3: Words = Words {
    status: "Errata #3 detected.\n\
                 Existing encrypted datasets contain an on-disk incompatibility\n\
                 which needs to be corrected.",
    action: "To correct the issue backup existing encrypted datasets to new\n\
                 encrypted datasets and destroy the old ones.  Until then they are\n\
                 mounted read-only.",
    id: Some("ER"),
};

const ERRATA_4: Words = Words {
    status: "Errata #4 detected.\n\
                 Existing encrypted snapshots and bookmarks contain an on-disk\n\
                 incompatibility.  This may cause on-disk corruption if they are used\n\
                 with 'zfs recv'.",
    action: "To correct the issue, enable the bookmark_v2 feature.  No additional\n\
                 action is needed if there are no encrypted snapshots or bookmarks.\n\
                 If preserving the encrypted snapshots and bookmarks is required, use\n\
                 a non-raw send to backup and restore them.  Alternately, they may be\n\
                 removed to resolve the incompatibility.",
    id: Some("ER"),
};

const LEGACY_VERSION: Words = Words {
    status: "The pool is formatted using a legacy on-disk format.  The pool can\n\
                 still be used, but some features are unavailable.",
    action: "Upgrade the pool using 'zpool upgrade'.  Once this is done, the\n\
                 pool will no longer be accessible on software that does not support\n\
                 feature flags.",
    id: None,
};

const FEATURES_DISABLED: Words = Words {
    status: "Some supported and requested features are not enabled on the pool.\n\
                 The pool can still be used, but some features are unavailable.",
    action: "Enable all features using 'zpool upgrade'. Once this is done,\n\
                 the pool may no longer be accessible by software that does not support\n\
                 the features. See zpool-features(7) for details.",
    id: None,
};

const BAD_COMPATIBILITY: Words = Words {
    status: "This pool has a compatibility list specified, but it could not be\n\
                 read/parsed at this time. The pool can still be used, but this\n\
                 should be investigated.",
    action: "Check the value of the 'compatibility' property against the\n\
                 appropriate file in /etc/zfs/compatibility.d or\n\
                 /usr/share/zfs/compatibility.d.",
    id: None,
};

const INCOMPATIBLE_FEATURES: Words = Words {
    status: "One or more features are enabled on the pool despite not being\n\
                 requested by the 'compatibility' property.",
    action: "Consider setting 'compatibility' to an appropriate value, or\n\
                 adding needed features to the relevant file in\n\
                 /etc/zfs/compatibility.d or /usr/share/zfs/compatibility.d.",
    id: None,
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn actions_name_only_commands_that_work_here() {
        let all = [
            Reason::Resilvering,
            Reason::RebuildScrub,
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
            Reason::MissedWrites,
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
        assert!(!built("nonsense"));
        for reason in all {
            let action = reason.text(&PoolFacts::default()).action.unwrap();
            for command in action.split("'zpool ").skip(1) {
                let word = command.split([' ', '\'']).next().unwrap();
                assert!(built(word), "{reason:?}: {action}");
            }
        }
    }
}
