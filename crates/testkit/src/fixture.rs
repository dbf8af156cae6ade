//! Pools made by OpenZFS: images and descriptions of what is in them. A small set of them is in this
//! repository (`crates/testkit/fixtures`); the full set is used where it is found.

use crate::packages::workspace;
use crate::run::{stdout, TempDir};
use base::{bail, Result};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// `$ZFS_FUSE_FIXTURES`, or `shared/fixtures` beside the workspace, or those of this repository.
pub fn folder() -> PathBuf {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER
        .get_or_init(|| {
            let full = workspace().join("../shared/fixtures");
            let own = workspace().join("crates/testkit/fixtures");
            let from = match std::env::var_os("ZFS_FUSE_FIXTURES") {
                Some(dir) => dir.into(),
                None if full.is_dir() => full,
                None => own,
            };
            // Where that fails (no `zstd`) no fixture has a manifest, and tests say they are skipped.
            expanded(&from).unwrap_or(from)
        })
        .clone()
}

/// Files below a folder, in order, with their sizes.
fn files(dir: &Path, below: &Path, out: &mut Vec<(PathBuf, u64)>) -> Result<()> {
    let mut list: Vec<_> = std::fs::read_dir(dir.join(below))?.collect::<std::io::Result<_>>()?;
    list.sort_by_key(|e| e.file_name());
    for e in list {
        let path = below.join(e.file_name());
        match e.file_type()?.is_dir() {
            true => files(dir, &path, out)?,
            false => out.push((path, e.metadata()?.len())),
        }
    }
    Ok(())
}

/// The same set with its manifests unpacked, in the build's folder; the folder itself if they are not
/// packed.
fn expanded(from: &Path) -> Result<PathBuf> {
    let packed = |path: &Path| {
        let name = path.file_name().and_then(|n| n.to_str()).unwrap_or("");
        let json = name
            .strip_suffix(".zst")
            .filter(|n| n.starts_with("manifest") && n.ends_with(".json"));
        json.map(|n| path.with_file_name(n))
    };
    let mut list = Vec::new();
    files(from, Path::new(""), &mut list)?;
    if !list.iter().any(|(path, _)| packed(path).is_some()) {
        return Ok(from.to_path_buf());
    }
    // Another set, or another state of it, gets another folder.
    let mut hash = DefaultHasher::new();
    (from, &list).hash(&mut hash);
    let target = match std::env::var_os("CARGO_TARGET_DIR") {
        Some(t) => t.into(),
        None => workspace().join("target"),
    };
    let to = target.join(format!("fixtures-{:016x}", hash.finish()));
    if to.is_dir() {
        return Ok(to);
    }
    let part = target.join(format!("fixtures-{}.part", std::process::id()));
    std::fs::create_dir_all(&part)?;
    for (path, _) in &list {
        let parent = part.join(path).parent().map(Path::to_path_buf);
        std::fs::create_dir_all(parent.unwrap_or_default())?;
        match packed(path) {
            None => drop(std::fs::copy(from.join(path), part.join(path))?),
            Some(plain) => {
                let text = stdout(Command::new("zstd").arg("-dcq").arg(from.join(path)))?;
                std::fs::write(part.join(plain), text)?;
            }
        }
    }
    // Tests as an ordinary user read them, too.
    std::fs::set_permissions(&part, PermissionsExt::from_mode(0o755))?;
    if std::fs::rename(&part, &to).is_err() {
        // Another test was faster.
        std::fs::remove_dir_all(&part)?;
    }
    Ok(to)
}

/// Names of all fixtures, sorted; none if there is no folder.
pub fn names() -> Vec<String> {
    let mut out: Vec<String> = std::fs::read_dir(folder())
        .into_iter()
        .flatten()
        .flatten()
        .filter(|e| e.path().join("manifest.json").is_file())
        .filter_map(|e| e.file_name().into_string().ok())
        .collect();
    out.sort();
    out
}

/// Path of a fixture's file (`manifest.json`, `zdb/config.txt`, …).
///
/// Errors: unsupported if there are no fixtures here.
pub fn file(name: &str, path: &str) -> Result<PathBuf> {
    let p = folder().join(name).join(path);
    if !p.is_file() {
        bail!(Unsupported, "no fixture {name} with {path}");
    }
    Ok(p)
}

/// A fresh copy of the images of a fixture, sparse, in a folder of its own: `d0.img`, ….
///
/// Errors: unsupported if there are no fixtures here, or no `tar` and `zstd`.
pub fn unpack(name: &str) -> Result<TempDir> {
    let dir = TempDir::new("fixture")?;
    unpack_into(name, dir.path())?;
    Ok(dir)
}

/// [`unpack`] into an existing folder.
pub fn unpack_into(name: &str, dir: &Path) -> Result<()> {
    let archive = file(name, "images.tar.zst")?;
    let mut c = Command::new("tar");
    c.arg("--zstd").arg("-xf").arg(archive).arg("-C").arg(dir);
    stdout(&mut c).map(drop)
}

/// The send streams of a fixture, in a folder of its own: their paths, in order.
///
/// Errors: unsupported if there are no fixtures here, or no `tar` and `zstd`.
pub fn streams(name: &str) -> Result<(TempDir, Vec<PathBuf>)> {
    let archive = file(name, "streams.tar.zst")?;
    let dir = TempDir::new("streams")?;
    let mut c = Command::new("tar");
    c.arg("--zstd").arg("-xf").arg(archive);
    stdout(c.arg("-C").arg(dir.path()))?;
    let mut list = Vec::new();
    files(dir.path(), Path::new(""), &mut list)?;
    let paths = list.into_iter().map(|(p, _)| dir.path().join(p)).collect();
    Ok((dir, paths))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The set of this repository is whole, and what tests see of it is what is packed.
    #[test]
    fn the_set_in_the_repository_can_be_used() {
        let own = workspace().join("crates/testkit/fixtures");
        let mut list = Vec::new();
        files(&own, Path::new(""), &mut list).unwrap();
        let bytes: u64 = list.iter().map(|(_, n)| n).sum();
        assert!(bytes < 6_000_000, "{bytes}: too much for a repository");
        if Command::new("zstd").arg("-V").output().is_err() {
            eprintln!("skipped: no zstd");
            return;
        }
        let dir = expanded(&own).unwrap();
        assert_eq!(expanded(&own).unwrap(), dir);
        assert_eq!(expanded(&dir).unwrap(), dir, "nothing packed is left");
        let mut n = 0;
        for e in std::fs::read_dir(&own)
            .unwrap()
            .flatten()
            .filter(|e| e.path().is_dir())
        {
            let at = dir.join(e.file_name());
            let text = std::fs::read_to_string(at.join("manifest.json")).unwrap();
            assert!(text.contains("OpenZFS 2.3.2"), "{}", at.display());
            assert!(at.join("images.tar.zst").is_file() && at.join("zdb").is_dir());
            n += 1;
        }
        assert!(n >= 14, "{n}");
    }
}
