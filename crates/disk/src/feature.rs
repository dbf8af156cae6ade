//! Feature flags of pool version 5000 (pool format §18): one table row per feature says what it is
//! and what this software does with it.

pub mod guid;

use base::{bail, Result};

/// Where a feature's count is kept and when it must be known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags {
    /// R: software without it may still open the pool read-only.
    pub readonly_compat: bool,
    /// M: needed to read the MOS, so also listed in the label while active.
    pub mos: bool,
    /// D: counted per dataset.
    pub per_dataset: bool,
    /// A: active from the moment it is enabled.
    pub activate_on_enable: bool,
    /// N: never enabled by upgrading everything.
    pub no_upgrade: bool,
}

/// One feature.
#[derive(Debug, PartialEq, Eq)]
pub struct Feature {
    /// Short name, as in `feature@name`.
    pub name: &'static str,
    /// Name on disk.
    pub guid: &'static str,
    /// Where its count is kept and when it must be known.
    pub flags: Flags,
    /// Short names of the features it needs.
    pub depends: &'static [&'static str],
    /// This software reads and writes pools in which it is active.
    pub supported: bool,
    /// This software reads pools in which it is active.
    pub readable: bool,
    /// New pools get it.
    pub default_on: bool,
    /// Stored in the pool when it is enabled, shown by `zpool upgrade -v`.
    pub description: &'static str,
}

const fn flags(text: &str) -> Flags {
    let mut f = Flags {
        readonly_compat: false,
        mos: false,
        per_dataset: false,
        activate_on_enable: false,
        no_upgrade: false,
    };
    let b = text.as_bytes();
    let mut i = 0;
    while i < b.len() {
        match b[i] {
            b'R' => f.readonly_compat = true,
            b'M' => f.mos = true,
            b'D' => f.per_dataset = true,
            b'A' => f.activate_on_enable = true,
            b'N' => f.no_upgrade = true,
            _ => {}
        }
        i += 1;
    }
    f
}

/// What this software does: `Full` reads, writes and enables on new pools; `Quiet` the same without
/// enabling it on new pools, which software of the present could then only read; `Read` opens
/// read-only.
enum Does {
    Full,
    Quiet,
    Read,
}

const fn row(
    guid: &'static str,
    name: &'static str,
    flag_letters: &str,
    does: Does,
    depends: &'static [&'static str],
    description: &'static str,
) -> Feature {
    let flags = flags(flag_letters);
    let (supported, readable) = match does {
        Does::Full | Does::Quiet => (true, true),
        Does::Read => (false, true),
    };
    Feature {
        name,
        guid,
        depends,
        supported,
        readable,
        default_on: matches!(does, Does::Full) && !flags.no_upgrade,
        description,
        flags,
    }
}

use Does::{Full, Quiet, Read};

const EXT: &[&str] = &["extensible_dataset"];
const MARKS: &[&str] = &["bookmark_v2", "extensible_dataset", "bookmarks"];

/// All known features, in the order in which `zpool get all` lists them.
#[rustfmt::skip]
pub static FEATURES: &[Feature] = &[
    row(guid::ASYNC_DESTROY, "async_destroy", "R", Full, &[], "Destroy file systems in the background."),
    row(guid::EMPTY_BPOBJ, "empty_bpobj", "R", Full, &[], "Snapshots that freed nothing take less space."),
    row(guid::LZ4_COMPRESS, "lz4_compress", "A", Full, &[], "LZ4 compression."),
    row(guid::MULTI_VDEV_CRASH_DUMP, "multi_vdev_crash_dump", "", Full, &[], "Crash dumps to pools of several devices."),
    row(guid::SPACEMAP_HISTOGRAM, "spacemap_histogram", "R", Full, &[], "Space maps keep histograms of free space."),
    row(guid::ENABLED_TXG, "enabled_txg", "R", Full, &[], "Record when each feature was enabled."),
    row(guid::HOLE_BIRTH, "hole_birth", "MA", Full, &["enabled_txg"], "Holes keep their birth, for better incremental streams."),
    row(guid::EXTENSIBLE_DATASET, "extensible_dataset", "", Full, &[], "Datasets carry further attributes; used by other features."),
    row(guid::EMBEDDED_DATA, "embedded_data", "MA", Full, &[], "Blocks that compress very well live in their block pointer."),
    row(guid::BOOKMARKS, "bookmarks", "R", Full, EXT, "Bookmarks: sources of incremental streams without data."),
    row(guid::FILESYSTEM_LIMITS, "filesystem_limits", "R", Full, EXT, "Limits on the number of file systems and snapshots."),
    row(guid::LARGE_BLOCKS, "large_blocks", "D", Full, EXT, "Blocks larger than 128 KiB."),
    row(guid::LARGE_DNODE, "large_dnode", "D", Full, EXT, "Dnodes larger than 512 bytes."),
    row(guid::SHA512, "sha512", "D", Full, EXT, "SHA-512/256 checksums."),
    row(guid::SKEIN, "skein", "D", Full, EXT, "Skein checksums."),
    row(guid::EDONR, "edonr", "D", Full, EXT, "Edon-R checksums."),
    row(guid::USEROBJ_ACCOUNTING, "userobj_accounting", "RD", Full, EXT, "Count objects per user and group."),
    row(guid::ENCRYPTION, "encryption", "D", Full, &["extensible_dataset", "bookmark_v2"], "Encryption per dataset."),
    row(guid::PROJECT_QUOTA, "project_quota", "RD", Full, EXT, "Space and objects accounted per project."),
    row(guid::DEVICE_REMOVAL, "device_removal", "M", Full, &[], "Top-level devices can be removed."),
    row(guid::OBSOLETE_COUNTS, "obsolete_counts", "R", Full, &["extensible_dataset", "device_removal"], "Less memory for removed devices as their blocks are freed."),
    row(guid::ZPOOL_CHECKPOINT, "zpool_checkpoint", "R", Full, &[], "Checkpoint of the whole pool to rewind to."),
    row(guid::SPACEMAP_V2, "spacemap_v2", "RA", Full, &[], "Space maps describe large segments in less space."),
    row(guid::ALLOCATION_CLASSES, "allocation_classes", "R", Full, &[], "Separate devices for metadata, small blocks and dedup tables."),
    row(guid::RESILVER_DEFER, "resilver_defer", "R", Full, &[], "New resilvers wait for the running one."),
    row(guid::BOOKMARK_V2, "bookmark_v2", "", Full, &["extensible_dataset", "bookmarks"], "Bookmarks with more fields."),
    row(guid::REDACTION_BOOKMARKS, "redaction_bookmarks", "", Full, MARKS, "Bookmarks with lists of redacted blocks."),
    row(guid::REDACTED_DATASETS, "redacted_datasets", "D", Full, EXT, "Datasets received from redacted streams."),
    row(guid::BOOKMARK_WRITTEN, "bookmark_written", "", Full, MARKS, "Bookmarks count what was written since."),
    row(guid::LOG_SPACEMAP, "log_spacemap", "R", Full, &["spacemap_v2"], "Changes of all metaslabs logged together."),
    row(guid::LIVELIST, "livelist", "R", Full, EXT, "Clones are destroyed faster."),
    row(guid::DEVICE_REBUILD, "device_rebuild", "R", Full, &[], "Sequential rebuild of mirrors and dRAID."),
    row(guid::ZSTD_COMPRESS, "zstd_compress", "D", Full, EXT, "Zstandard compression."),
    row(guid::DRAID, "draid", "M", Full, &[], "Distributed-spare RAID."),
    row(guid::ZILSAXATTR, "zilsaxattr", "RD", Full, EXT, "Changes of xattr=sa attributes are logged."),
    row(guid::HEAD_ERRLOG, "head_errlog", "A", Full, &[], "Error log per dataset, valid for its snapshots."),
    row(guid::BLAKE3, "blake3", "D", Full, EXT, "BLAKE3 checksums."),
    row(guid::BLOCK_CLONING, "block_cloning", "R", Full, &[], "Files share blocks (reflinks)."),
    row(guid::BLOCK_CLONING_ENDIAN, "block_cloning_endian", "R", Quiet, &[], "Byte order of the block cloning table."),
    row(guid::VDEV_ZAPS_V2, "vdev_zaps_v2", "M", Full, &[], "Properties for the root device."),
    row(guid::REDACTION_LIST_SPILL, "redaction_list_spill", "", Full, &["redaction_bookmarks"], "Redaction lists of many snapshots."),
    row(guid::RAIDZ_EXPANSION, "raidz_expansion", "M", Full, &[], "RAID-Z groups can grow by a device."),
    row(guid::FAST_DEDUP, "fast_dedup", "R", Full, &[], "Dedup tables with a log, quota and pruning."),
    row(guid::LONGNAME, "longname", "D", Full, EXT, "File names of up to 1023 bytes."),
    row(guid::LARGE_MICROZAP, "large_microzap", "RD", Full, &["extensible_dataset", "large_blocks"], "Simple directories larger than 128 KiB."),
    row(guid::DYNAMIC_GANG_HEADER, "dynamic_gang_header", "MN", Read, &[], "Gang headers larger than 512 bytes."),
    row(guid::PHYSICAL_REWRITE, "physical_rewrite", "RD", Quiet, EXT, "Rewritten blocks keep their logical birth."),
    row(guid::DRAID_FAILURE_DOMAINS, "draid_failure_domains", "M", Read, &["draid"], "dRAID groups aware of failure domains."),
];

/// By short name.
pub fn by_name(name: &str) -> Option<&'static Feature> {
    FEATURES.iter().find(|f| f.name == name)
}

/// By name on disk.
pub fn by_guid(guid: &str) -> Option<&'static Feature> {
    FEATURES.iter().find(|f| f.guid == guid)
}

impl Feature {
    /// All features that must be enabled before this one, dependencies first, itself not included.
    pub fn all_dependencies(&self) -> Vec<&'static Feature> {
        fn visit(f: &Feature, out: &mut Vec<&'static Feature>) {
            for d in f.depends.iter().filter_map(|d| by_name(d)) {
                visit(d, out);
                if !out.contains(&d) {
                    out.push(d);
                }
            }
        }
        let mut out = Vec::new();
        visit(self, &mut out);
        out
    }

    /// Directory entry whose ZAP has the count: read-only compatible features are in another one
    /// than those needed for reading.
    pub fn zap_name(&self) -> &'static str {
        if self.flags.readonly_compat {
            "features_for_write"
        } else {
            "features_for_read"
        }
    }
}

/// Reads a compatibility file: feature names separated by line ends, blanks or commas, `#` begins a
/// comment. Returns the features and the names that are not known (the caller decides whether those
/// matter: files shipped with newer software may have some). An empty file is refused.
pub fn parse_compatibility(text: &str) -> Result<(Vec<&'static Feature>, Vec<String>)> {
    let mut known = Vec::new();
    let mut unknown = Vec::new();
    for line in text.lines() {
        let line = line.split('#').next().unwrap_or("");
        for word in line.split([' ', '\t', ',', '\r']).filter(|w| !w.is_empty()) {
            match by_name(word) {
                Some(f) if known.contains(&f) => {}
                Some(f) => known.push(f),
                None => unknown.push(word.to_string()),
            }
        }
    }
    if known.is_empty() && unknown.is_empty() {
        bail!(Invalid, "compatibility file names no features");
    }
    Ok((known, unknown))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn table_is_consistent() {
        let names: BTreeSet<&str> = FEATURES.iter().map(|f| f.name).collect();
        let guids: BTreeSet<&str> = FEATURES.iter().map(|f| f.guid).collect();
        assert_eq!((names.len(), guids.len()), (FEATURES.len(), FEATURES.len()));
        for f in FEATURES {
            assert!(f.guid.ends_with(&format!(":{}", f.name)), "{}", f.guid);
            assert!(f.depends.iter().all(|d| names.contains(d)), "{}", f.name);
            assert!(!f.supported || f.readable);
            assert!(!f.default_on || f.supported);
            if f.supported {
                assert!(
                    f.all_dependencies().iter().all(|d| d.supported),
                    "{}",
                    f.name
                );
            }
            if f.flags.per_dataset {
                assert!(f.depends.contains(&"extensible_dataset"), "{}", f.name);
            }
            assert!(f.description.len() < 80 && f.description.is_ascii());
        }
    }

    #[test]
    fn dependencies_come_first() {
        let deps = |n: &str| -> Vec<&str> {
            let f = by_name(n).unwrap();
            f.all_dependencies().iter().map(|f| f.name).collect()
        };
        assert_eq!(
            deps("redaction_list_spill"),
            [
                "extensible_dataset",
                "bookmarks",
                "bookmark_v2",
                "redaction_bookmarks"
            ]
        );
        assert_eq!(deps("hole_birth"), ["enabled_txg"]);
        assert!(deps("async_destroy").is_empty());
    }

    #[test]
    fn compatibility_files() {
        let (k, u) = parse_compatibility(
            "# pools for an old boot loader\nlz4_compress # fine\r\n  sha512,skein nonsense\nskein\n",
        )
        .unwrap();
        let names: Vec<&str> = k.iter().map(|f| f.name).collect();
        assert_eq!(names, ["lz4_compress", "sha512", "skein"]);
        assert_eq!(u, ["nonsense"]);
        assert!(parse_compatibility("# nothing\n\n").is_err());
    }

    #[test]
    fn places() {
        assert_eq!(
            by_name("log_spacemap").unwrap().zap_name(),
            "features_for_write"
        );
        let f = by_guid("com.delphix:hole_birth").unwrap();
        assert_eq!(f.zap_name(), "features_for_read");
        assert!(f.flags.mos && f.flags.activate_on_enable && !f.flags.per_dataset);
    }
}
