//! Pools that OpenZFS's test suite ships: small ones of every pool version from 1 to 15, made by
//! Solaris, and the pool of a bug of its own. The suite comes as a package; its compressed images
//! are unpacked once, into the cache.

use crate::packages::{cache, get, Set};
use crate::run::{stdout, TempDir};
use base::{bail, Result};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Where the suite's images are in the package.
const FUNCTIONAL: &str = "usr/share/zfs/zfs-tests/tests/functional";
const OLD: &str = "cli_root/zpool_upgrade/blockfiles";

/// A pool of the suite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SuitePool {
    /// Name of the pool.
    pub name: &'static str,
    /// Its version.
    pub version: u64,
    /// Its images.
    pub files: &'static [&'static str],
}

const fn one(name: &'static str, version: u64, files: &'static [&'static str]) -> SuitePool {
    SuitePool {
        name,
        version,
        files,
    }
}

/// All pools of versions 1 to 15.
pub const OLD_POOLS: [SuitePool; 27] = [
    one("v1-pool", 1, &["v1"]),
    one("pool-v1stripe", 1, &["v1stripe1", "v1stripe2", "v1stripe3"]),
    one("pool-v1raidz", 1, &["v1raidz1", "v1raidz2", "v1raidz3"]),
    one("pool-v1mirror", 1, &["v1mirror1", "v1mirror2", "v1mirror3"]),
    one("v2-pool", 2, &["v2"]),
    one("pool-v2stripe", 2, &["v2stripe1", "v2stripe2", "v2stripe3"]),
    one("pool-v2raidz", 2, &["v2raidz1", "v2raidz2", "v2raidz3"]),
    one("pool-v2mirror", 2, &["v2mirror1", "v2mirror2", "v2mirror3"]),
    one("zfs-broken-mirror", 2, &["mirror1", "mirror2"]),
    one("v3-pool", 3, &["v3"]),
    one("pool-v3stripe", 3, &["v3stripe1", "v3stripe2", "v3stripe3"]),
    one("pool-v3raidz", 3, &["v3raidz1", "v3raidz2", "v3raidz3"]),
    one("pool-v3mirror", 3, &["v3mirror1", "v3mirror2", "v3mirror3"]),
    one("pool-v3raidz2", 3, &["v3raidz21", "v3raidz22", "v3raidz23"]),
    one(
        "pool-v3hotspare",
        3,
        &["v3hotspare1", "v3hotspare2", "v3hotspare3"],
    ),
    one("v4-pool", 4, &["v4"]),
    one("v5-pool", 5, &["v5"]),
    one("v6-pool", 6, &["v6"]),
    one("v7-pool", 7, &["v7"]),
    one("v8-pool", 8, &["v8"]),
    one("v9-pool", 9, &["v9"]),
    one("v10-pool", 10, &["v10"]),
    one("v11-pool", 11, &["v11"]),
    one("v12-pool", 12, &["v12"]),
    one("v13-pool", 13, &["v13"]),
    one("v14-pool", 14, &["v14"]),
    one("v15-pool", 15, &["v15"]),
];

impl SuitePool {
    /// Fresh copies of its images in an existing folder, sparse.
    ///
    /// Errors: unsupported without the package or `bzip2`.
    pub fn unpack_into(&self, dir: &Path) -> Result<Vec<PathBuf>> {
        let prefix = match self.name {
            "zfs-broken-mirror" => "zfs-broken-",
            _ => "zfs-pool-",
        };
        let copy = |file: &&str| {
            let name = format!("{prefix}{file}.dat");
            image(&format!("{OLD}/{name}.bz2"), &dir.join(name))
        };
        self.files.iter().map(copy).collect()
    }
}

/// The image of a pool `testpool_13709` with an encrypted file system, put at `to`. Its object set
/// has a local MAC that does not fit what an early reader takes it over (OpenZFS issue 13709).
pub fn encrypted_13709(to: &Path) -> Result<PathBuf> {
    image("userquota/13709_reproducer.bz2", to)
}

/// A fresh copy of one of the suite's compressed images.
fn image(path: &str, to: &Path) -> Result<PathBuf> {
    let name = path.replace('/', "-");
    let kept = cache().join("suite").join(name.trim_end_matches(".bz2"));
    if !kept.is_file() {
        let packed = get(Set::Ztest)?.file(&format!("{FUNCTIONAL}/{path}"))?;
        decompress(&packed, &kept)?;
    }
    let mut c = Command::new("cp");
    c.args(["--sparse=always", "--reflink=auto"]);
    stdout(c.arg(&kept).arg(to))?;
    Ok(to.to_path_buf())
}

/// Decompresses with `bzip2`; zeros become holes.
fn decompress(packed: &Path, to: &Path) -> Result<()> {
    let folder = to.parent().unwrap_or(Path::new("."));
    std::fs::create_dir_all(folder)?;
    let work = TempDir::inside(folder, "unpack")?;
    let tmp = work.path().join("image");
    let mut c = Command::new("bzip2");
    c.arg("-dc").arg(packed);
    c.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = match c.spawn() {
        Ok(child) => child,
        Err(e) => bail!(Unsupported, "cannot run bzip2: {e}"),
    };
    let written = match child.stdout.take() {
        Some(from) => sparse(from, &tmp),
        None => bail!(Io, "bzip2 has no output"),
    };
    let status = child.wait()?;
    written?;
    if !status.success() {
        bail!(Io, "bzip2 -dc {}: {status}", packed.display());
    }
    // Another process may have been faster; its result is the same.
    std::fs::rename(&tmp, to)?;
    Ok(())
}

fn sparse(mut from: impl Read, to: &Path) -> Result<()> {
    let mut file = File::create(to)?;
    let mut buf = vec![0; 64 << 10];
    let mut size = 0;
    loop {
        let mut len = 0;
        while len < buf.len() {
            match from.read(&mut buf[len..])? {
                0 => break,
                n => len += n,
            }
        }
        if len == 0 {
            file.set_len(size)?;
            return Ok(());
        }
        if buf[..len].iter().any(|b| *b != 0) {
            file.seek(SeekFrom::Start(size))?;
            file.write_all(&buf[..len])?;
        }
        size += len as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeros_become_holes() {
        let dir = TempDir::new("sparse").unwrap();
        let mut bytes = vec![0; 300 << 10];
        bytes[200 << 10] = 1;
        let to = dir.path().join("x");
        sparse(&bytes[..], &to).unwrap();
        assert_eq!(std::fs::read(&to).unwrap(), bytes);
    }
}
