//! The pool property `compatibility`: which features a pool may have (properties reference §10).

use base::{bail, Result};
use disk::feature::{self, Feature};
use std::path::Path;

/// Where files with lists of features are looked for; what the administrator wrote comes first.
const DIRS: [&str; 2] = ["/etc/zfs/compatibility.d", "/usr/share/zfs/compatibility.d"];
/// Largest file read.
const MAX_FILE: u64 = 64 << 10;

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

/// What a value of the property means: `off`, `legacy`, or names of files whose sets are
/// intersected.
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
    bail!(
        Invalid,
        "'compatibility': there is no file '{name}' in {}",
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
