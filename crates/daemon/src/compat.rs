//! The pool property `compatibility`: which features a pool may have (properties reference §10).

use base::{bail, Result};
use disk::feature::{self, Feature};
use std::path::Path;

/// Where files with lists of features are looked for; what the administrator wrote comes first.
const DIRS: [&str; 2] = ["/etc/zfs/compatibility.d", "/usr/share/zfs/compatibility.d"];
/// Largest file read.
const MAX_FILE: u64 = 64 << 10;

/// What each release knew that the one before it did not. A pool for an old system must not depend on files being installed.
const ADDED: [&[&str]; 9] = [
    // ZFS on Linux 0.6.5
    &[
        "async_destroy",
        "bookmarks",
        "embedded_data",
        "empty_bpobj",
        "enabled_txg",
        "extensible_dataset",
        "filesystem_limits",
        "hole_birth",
        "large_blocks",
        "lz4_compress",
        "spacemap_histogram",
    ],
    // Illumos and FreeBSD of 2019
    &["multi_vdev_crash_dump", "sha512", "skein"],
    // ZFS on Linux 0.7
    &["edonr", "large_dnode", "userobj_accounting"],
    // 0.8
    &[
        "allocation_classes",
        "bookmark_v2",
        "device_removal",
        "encryption",
        "obsolete_counts",
        "project_quota",
        "resilver_defer",
        "spacemap_v2",
        "zpool_checkpoint",
    ],
    // OpenZFS 2.0
    &[
        "bookmark_written",
        "device_rebuild",
        "livelist",
        "log_spacemap",
        "redacted_datasets",
        "redaction_bookmarks",
        "zstd_compress",
    ],
    // 2.1
    &["draid"],
    // 2.2
    &[
        "blake3",
        "block_cloning",
        "head_errlog",
        "vdev_zaps_v2",
        "zilsaxattr",
    ],
    // 2.3
    &[
        "fast_dedup",
        "large_microzap",
        "longname",
        "raidz_expansion",
        "redaction_list_spill",
    ],
    // 2.4
    &[
        "block_cloning_endian",
        "dynamic_gang_header",
        "physical_rewrite",
    ],
];

/// Sets known without a file: the names OpenZFS ships, and how many steps of [`ADDED`] they have.
const RELEASES: [(&str, usize); 18] = [
    ("compat-2018", 1),
    ("2018", 1),
    ("zol-0.6.5", 1),
    ("compat-2019", 2),
    ("2019", 2),
    ("compat-2020", 2),
    ("2020", 2),
    ("zol-0.7", 3),
    ("zol-0.8", 4),
    ("openzfs-2.0-linux", 5),
    ("openzfs-2.1-linux", 6),
    ("openzfs-2.2", 7),
    ("openzfs-2.2-linux", 7),
    ("openzfs-2.2-freebsd", 7),
    ("openzfs-2.3", 8),
    ("openzfs-2.3-linux", 8),
    ("openzfs-2.3-freebsd", 8),
    ("openzfs-2.4", 9),
];

/// A set known without a file.
fn built_in(name: &str) -> Option<Vec<&'static Feature>> {
    // FreeBSD had no Edon-R before OpenZFS 2.2.
    let (steps, without) = match name {
        "openzfs-2.0-freebsd" => (5, "edonr"),
        "openzfs-2.1-freebsd" => (6, "edonr"),
        _ => (RELEASES.iter().find(|(n, _)| *n == name)?.1, ""),
    };
    let words = ADDED.iter().take(steps).copied().flatten();
    Some(
        words
            .filter(|w| **w != without)
            .filter_map(|w| feature::by_name(w))
            .collect(),
    )
}

/// A set of features.
#[derive(Clone, Debug, PartialEq)]
pub enum Set {
    All,
    /// `legacy`: none at all.
    None,
    These(Vec<&'static Feature>),
}

impl Set {
    pub fn allows(&self, f: &Feature) -> bool {
        match self {
            Set::All => true,
            Set::None => false,
            Set::These(list) => list.contains(&f),
        }
    }
}

/// What a value of the property means: `off`, `legacy`, or names of files (or of releases) whose
/// sets are intersected.
pub fn load(value: &str) -> Result<Set> {
    load_from(value, &DIRS.map(Path::new))
}

fn load_from(value: &str, dirs: &[&Path]) -> Result<Set> {
    match value {
        "" | "-" | "off" => return Ok(Set::All),
        "legacy" => return Ok(Set::None),
        _ => {}
    }
    let mut set: Option<Vec<&'static Feature>> = None;
    for name in value.split(',') {
        let list = read_one(name, dirs)?;
        set = Some(match set {
            None => list,
            Some(old) => old.into_iter().filter(|f| list.contains(f)).collect(),
        });
    }
    Ok(Set::These(set.unwrap_or_default()))
}

fn read_one(name: &str, dirs: &[&Path]) -> Result<Vec<&'static Feature>> {
    if name.is_empty() || name.contains('/') || name.starts_with('.') {
        bail!(
            Invalid,
            "'compatibility': '{name}' is not the name of a file with a set of features"
        );
    }
    for (i, dir) in dirs.iter().enumerate() {
        let path = dir.join(name);
        let Ok(meta) = std::fs::metadata(&path) else {
            continue;
        };
        if !meta.is_file() || meta.len() > MAX_FILE {
            bail!(
                Invalid,
                "'compatibility': {} is not a list of features",
                path.display()
            );
        }
        let text = match std::fs::read_to_string(&path) {
            Ok(t) => t,
            Err(e) => bail!(
                Invalid,
                "'compatibility': cannot read {}: {e}",
                path.display()
            ),
        };
        let (known, unknown) = feature::parse_compatibility(&text)
            .map_err(|e| e.context(format!("'compatibility': {}", path.display())))?;
        // Files that come with newer software may name features this one has never heard of.
        if let (0, Some(word)) = (i, unknown.first()) {
            bail!(
                Invalid,
                "'compatibility': {}: unknown feature '{word}'",
                path.display()
            );
        }
        return Ok(known);
    }
    if let Some(list) = built_in(name) {
        return Ok(list);
    }
    bail!(
        Invalid,
        "'compatibility': '{name}' is no release known here, and there is no such file in {}",
        dirs.iter()
            .map(|d| d.display().to_string())
            .collect::<Vec<_>>()
            .join(" or ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_without_files() {
        let load = |v: &str| load_from(v, &[]).unwrap();
        let f = |n: &str| feature::by_name(n).unwrap();
        for w in ADDED.iter().copied().flatten() {
            assert!(feature::by_name(w).is_some(), "{w}");
        }
        // How many features the files OpenZFS ships have.
        for (name, count) in [
            ("zol-0.6.5", 11),
            ("compat-2020", 14),
            ("zol-0.7", 17),
            ("zol-0.8", 26),
            ("openzfs-2.0-linux", 33),
            ("openzfs-2.1-freebsd", 33),
            ("openzfs-2.1-linux", 34),
            ("openzfs-2.2", 39),
            ("openzfs-2.3", 44),
            ("openzfs-2.4", 47),
        ] {
            match load(name) {
                Set::These(list) => assert_eq!(list.len(), count, "{name}"),
                other => panic!("{name}: {other:?}"),
            }
        }
        assert!(!load("openzfs-2.1-linux,zol-0.7").allows(f("draid")));
        assert!(load("openzfs-2.1-linux").allows(f("draid")));
        assert!(!load("openzfs-2.0-freebsd").allows(f("edonr")));
        // A file of the administrator's goes first.
        let base = std::env::temp_dir().join(format!("compat-own-{}", std::process::id()));
        std::fs::create_dir_all(&base).unwrap();
        std::fs::write(base.join("openzfs-2.3"), "skein\n").unwrap();
        assert_eq!(
            load_from("openzfs-2.3", &[&base]).unwrap(),
            Set::These(vec![f("skein")])
        );
        std::fs::remove_dir_all(&base).unwrap();
    }

    #[test]
    fn sets() {
        let base = std::env::temp_dir().join(format!("compat-{}", std::process::id()));
        let (own, shipped) = (base.join("own"), base.join("shipped"));
        for d in [&own, &shipped] {
            std::fs::create_dir_all(d).unwrap();
        }
        std::fs::write(shipped.join("a"), "lz4_compress,sha512 newer_thing\n").unwrap();
        std::fs::write(shipped.join("b"), "sha512\nskein\n").unwrap();
        std::fs::write(own.join("b"), "skein\n").unwrap();
        std::fs::write(own.join("bad"), "newer_thing\n").unwrap();
        let dirs = [own.as_path(), shipped.as_path()];
        let load = |v: &str| load_from(v, &dirs);
        let f = |n: &str| feature::by_name(n).unwrap();
        assert_eq!(load("off").unwrap(), Set::All);
        assert!(!load("legacy").unwrap().allows(f("lz4_compress")));
        let a = load("a").unwrap();
        assert!(a.allows(f("lz4_compress")) && a.allows(f("sha512")) && !a.allows(f("skein")));
        assert_eq!(load("b").unwrap(), Set::These(vec![f("skein")]));
        assert_eq!(load("a,b").unwrap(), Set::These(vec![]));
        for v in ["bad", "nope", "../own/b", "a,", "a,,b"] {
            assert!(load(v).is_err(), "{v}");
        }
        std::fs::remove_dir_all(&base).unwrap();
    }
}
