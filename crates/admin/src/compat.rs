//! The pool property `compatibility`: the features that a pool may have.

use base::{bail, Result};
use disk::feature::{self, Feature};
use std::path::Path;

/// Where files with lists of features are looked for; what the administrator wrote comes first.
const DIRS: [&str; 2] = ["/etc/zfs/compatibility.d", "/usr/share/zfs/compatibility.d"];
/// Largest file read.
const MAX_FILE: u64 = 64 << 10;

/// A set known without a file: the names OpenZFS ships it under, the set it adds to, and what it
/// adds. A pool for an old system must not depend on files being installed.
struct Known {
    names: &'static [&'static str],
    base: &'static str,
    adds: &'static [&'static str],
}

#[rustfmt::skip]
const KNOWN: [Known; 20] = [
    Known { names: &[
        "zol-0.6.1",
    ], base: "", adds: &[
        "async_destroy", "empty_bpobj", "lz4_compress",
    ] },
    Known { names: &[
        "zol-0.6.4",
    ], base: "zol-0.6.1", adds: &[
        "bookmarks", "embedded_data", "enabled_txg", "extensible_dataset", "hole_birth", "spacemap_histogram",
    ] },
    Known { names: &[
        "2018", "compat-2018", "zol-0.6.5",
    ], base: "zol-0.6.4", adds: &[
        "filesystem_limits", "large_blocks",
    ] },
    Known { names: &[
        "freenas-9.10.2",
    ], base: "compat-2018", adds: &[
        "multi_vdev_crash_dump",
    ] },
    Known { names: &[
        "2019", "2020", "compat-2019", "compat-2020", "freebsd-11.0", "freebsd-11.1", "freenas-11.0", "freenas-11.1",
    ], base: "freenas-9.10.2", adds: &[
        "sha512", "skein",
    ] },
    Known { names: &[
        "grub2-2.06",
    ], base: "zol-0.6.1", adds: &[
        "allocation_classes", "block_cloning", "device_rebuild", "embedded_data", "enabled_txg", "hole_birth",
        "log_spacemap", "resilver_defer", "spacemap_histogram", "spacemap_v2", "zpool_checkpoint",
    ] },
    Known { names: &[
        "openzfsonosx-1.7.0",
    ], base: "compat-2019", adds: &[
        "edonr",
    ] },
    Known { names: &[
        "freebsd-11.2", "freenas-11.2",
    ], base: "compat-2019", adds: &[
        "device_removal", "obsolete_counts", "zpool_checkpoint",
    ] },
    Known { names: &[
        "ubuntu-18.04", "zol-0.7",
    ], base: "openzfsonosx-1.7.0", adds: &[
        "large_dnode", "userobj_accounting",
    ] },
    Known { names: &[
        "2021", "compat-2021", "freebsd-11.3", "freebsd-11.4", "freebsd-12.0", "freebsd-12.1", "freebsd-12.2",
        "freebsd-12.3", "freebsd-12.4", "freenas-11.3",
    ], base: "freebsd-11.2", adds: &[
        "spacemap_v2",
    ] },
    Known { names: &[
        "openzfsonosx-1.8.1",
    ], base: "compat-2021", adds: &[
        "edonr",
    ] },
    Known { names: &[
        "grub2", "grub2-2.12",
    ], base: "grub2-2.06", adds: &[
        "bookmarks", "extensible_dataset", "filesystem_limits", "large_blocks", "livelist", "project_quota",
        "userobj_accounting", "zilsaxattr",
    ] },
    Known { names: &[
        "openzfsonosx-1.9.3", "openzfsonosx-1.9.4", "ubuntu-20.04", "zol-0.8",
    ], base: "openzfsonosx-1.8.1", adds: &[
        "allocation_classes", "bookmark_v2", "encryption", "large_dnode", "project_quota", "resilver_defer",
        "userobj_accounting",
    ] },
    Known { names: &[
        "openzfs-2.0-freebsd", "truenas-12.0",
    ], base: "compat-2021", adds: &[
        "allocation_classes", "bookmark_v2", "bookmark_written", "device_rebuild", "encryption", "large_dnode",
        "livelist", "log_spacemap", "project_quota", "redacted_datasets", "redaction_bookmarks", "resilver_defer",
        "userobj_accounting", "zstd_compress",
    ] },
    Known { names: &[
        "freebsd-13.0", "freebsd-13.1", "freebsd-13.2", "openzfs-2.1-freebsd",
    ], base: "openzfs-2.0-freebsd", adds: &[
        "draid",
    ] },
    Known { names: &[
        "openzfs-2.0-linux",
    ], base: "openzfs-2.0-freebsd", adds: &[
        "edonr",
    ] },
    Known { names: &[
        "openzfs-2.1-linux", "ubuntu-22.04",
    ], base: "freebsd-13.0", adds: &[
        "edonr",
    ] },
    Known { names: &[
        "openzfs-2.2", "openzfs-2.2-freebsd", "openzfs-2.2-linux",
    ], base: "openzfs-2.1-linux", adds: &[
        "blake3", "block_cloning", "head_errlog", "vdev_zaps_v2", "zilsaxattr",
    ] },
    Known { names: &[
        "openzfs-2.3", "openzfs-2.3-freebsd", "openzfs-2.3-linux",
    ], base: "openzfs-2.2", adds: &[
        "fast_dedup", "large_microzap", "longname", "raidz_expansion", "redaction_list_spill",
    ] },
    Known { names: &[
        "openzfs-2.4",
    ], base: "openzfs-2.3", adds: &[
        "block_cloning_endian", "dynamic_gang_header", "physical_rewrite",
    ] },
];

/// The names of the features of a set known without a file.
fn built_in(name: &str) -> Option<Vec<&'static str>> {
    let known = KNOWN.iter().find(|k| k.names.contains(&name))?;
    let mut words = built_in(known.base).unwrap_or_default();
    words.extend(known.adds);
    Some(words)
}

/// A set of features.
#[derive(Clone, Debug, PartialEq)]
pub enum Set {
    /// `off`: every feature.
    All,
    /// `legacy`: none at all.
    None,
    /// The features of one file, or those that several files have in common.
    These(Vec<&'static Feature>),
}

impl Set {
    /// Whether the set has the feature.
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
                "'compatibility': cannot read {}: {}",
                path.display(),
                base::io_text(&e)
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
    if let Some(words) = built_in(name) {
        return Ok(words.into_iter().filter_map(feature::by_name).collect());
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
        for known in &KNOWN {
            assert!(known.base.is_empty() || built_in(known.base).is_some());
            for w in known.adds {
                assert!(feature::by_name(w).is_some(), "{w}");
            }
        }
        // How many features the files OpenZFS ships have.
        for (name, count) in [
            ("zol-0.6.1", 3),
            ("zol-0.6.4", 9),
            ("zol-0.6.5", 11),
            ("freenas-9.10.2", 12),
            ("grub2-2.06", 14),
            ("openzfsonosx-1.7.0", 15),
            ("freebsd-11.2", 17),
            ("2021", 18),
            ("openzfsonosx-1.8.1", 19),
            ("grub2", 22),
            ("ubuntu-20.04", 26),
            ("truenas-12.0", 32),
            ("ubuntu-22.04", 34),
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
