//! Pools made by OpenZFS: images and descriptions of what is in them.

use crate::packages::workspace;
use crate::run::{stdout, TempDir};
use base::{bail, Result};
use std::path::PathBuf;
use std::process::Command;

/// `$ZFS_FUSE_FIXTURES`, or `shared/fixtures` beside the workspace.
pub fn folder() -> PathBuf {
    match std::env::var_os("ZFS_FUSE_FIXTURES") {
        Some(dir) => dir.into(),
        None => workspace().join("../shared/fixtures"),
    }
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
pub fn unpack_into(name: &str, dir: &std::path::Path) -> Result<()> {
    let archive = file(name, "images.tar.zst")?;
    let mut c = Command::new("tar");
    c.arg("--zstd").arg("-xf").arg(archive).arg("-C").arg(dir);
    stdout(&mut c).map(drop)
}
