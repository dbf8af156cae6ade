//! Candidates for `zpool import`: block devices and files that may hold a label.

use crate::{part, LinuxDisks};
use base::{Error, Result};
use env::partition::Partition;
use env::{Access, Disks};
use std::collections::HashSet;
use std::fs::Metadata;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

/// Smallest leaf device (pool format §1).
const SMALLEST: u64 = 64 << 20;

/// Directories searched when none is named, best names first (command reference §6.1).
pub const DEFAULT_DIRS: [&str; 8] = [
    "/dev/disk/by-vdev",
    "/dev/mapper",
    "/dev/disk/by-partlabel",
    "/dev/disk/by-label",
    "/dev/disk/by-uuid",
    "/dev/disk/by-id",
    "/dev/disk/by-path",
    "/dev",
];

/// The block devices and sufficiently large regular files in `dir` (not below it), or `dir` itself
/// and its partitions if it is one; sorted by path, each device or file once under its first name. Names that cannot
/// be examined are passed over; an unreadable directory is an error. The address of a network block device is itself, if its server
/// answers.
pub fn candidates(dir: &str) -> Result<Vec<String>> {
    if base::is_network_device(dir) {
        // Whoever searches there has named it.
        crate::remote::allow(dir);
        LinuxDisks::new().open(dir, Access::Read)?;
        return Ok(vec![dir.to_string()]);
    }
    let mut seen = HashSet::new();
    let mut out = Vec::new();
    let meta = std::fs::metadata(dir).map_err(|e| Error::from(e).context(dir))?;
    if !meta.is_dir() {
        if usable(&meta) {
            out.push(dir.to_string());
        }
        if meta.file_type().is_block_device() {
            let known = partitions(dir);
            if known.is_empty() {
                out.extend(by_table(dir));
            }
            out.extend(known);
        }
        return Ok(out);
    }
    let list = std::fs::read_dir(dir).map_err(|e| Error::from(e).context(dir))?;
    let mut names: Vec<String> = list
        .flatten()
        .filter_map(|e| e.file_name().into_string().ok())
        .collect();
    names.sort();
    for name in names {
        // Opening a watchdog device and closing it again would reboot the machine; it is no block
        // device, but nothing but a look at its type must ever happen to it.
        let path = Path::new(dir).join(&name);
        let Ok(meta) = std::fs::metadata(&path) else {
            continue;
        };
        if usable(&meta) && seen.insert(identity(&meta)) {
            if let Some(p) = path.to_str() {
                out.push(p.to_string());
            }
        }
    }
    Ok(out)
}

/// The devices of the partitions of a whole disk, by number: who names a disk means what is on it.
fn partitions(disk: &str) -> Vec<String> {
    let Some(name) = std::fs::canonicalize(disk)
        .ok()
        .and_then(|p| Some(p.file_name()?.to_str()?.to_string()))
    else {
        return Vec::new();
    };
    let list = std::fs::read_dir(format!("/sys/class/block/{name}"));
    let mut found: Vec<(u32, String)> = list
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|e| {
            let number = std::fs::read_to_string(e.path().join("partition")).ok()?;
            let device = format!("/dev/{}", e.file_name().to_str()?);
            let usable = std::fs::metadata(&device).is_ok_and(|m| usable(&m));
            usable.then_some((number.trim().parse().ok()?, device))
        })
        .collect();
    found.sort();
    found.into_iter().map(|(_, device)| device).collect()
}

/// The partitions that a disk's own table names; of a disk of which the kernel has not been told to
/// look for any.
fn by_table(disk: &str) -> Vec<String> {
    let Ok(d) = LinuxDisks::new().open(disk, Access::Read) else {
        return Vec::new();
    };
    let name = |p: &Partition| format!("{disk}#{}", p.number);
    part::partitions(&*d).iter().map(name).collect()
}

/// The candidates of all directories searched by default, each device once under its best name.
pub fn default_candidates() -> Vec<String> {
    let mut seen = HashSet::new();
    let mut out = Vec::new();
    for dir in DEFAULT_DIRS {
        for path in candidates(dir).unwrap_or_default() {
            let Ok(meta) = std::fs::metadata(&path) else {
                continue;
            };
            if meta.file_type().is_block_device() && seen.insert(identity(&meta)) {
                out.push(path);
            }
        }
    }
    out
}

fn usable(meta: &Metadata) -> bool {
    let kind = meta.file_type();
    kind.is_block_device() || (kind.is_file() && meta.len() >= SMALLEST)
}

/// What makes two names the same thing.
fn identity(meta: &Metadata) -> (bool, u64, u64) {
    if meta.file_type().is_block_device() {
        (true, meta.rdev(), 0)
    } else {
        (false, meta.dev(), meta.ino())
    }
}

/// The path of a device word that is not a path: looked up in the default directories, as
/// `zpool create tank sdb` needs it. `None` if there is no such device.
pub fn resolve(word: &str) -> Option<String> {
    if base::is_network_device(word) {
        crate::remote::allow(word);
        return Some(word.to_string());
    }
    if word.starts_with('/') {
        return std::fs::metadata(word).ok().map(|_| word.to_string());
    }
    DEFAULT_DIRS.iter().find_map(|dir| {
        let path = Path::new(dir).join(word);
        let meta = std::fs::metadata(&path).ok()?;
        meta.file_type()
            .is_block_device()
            .then(|| path.to_str().map(str::to_string))?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_files_once() {
        let dir = std::env::temp_dir().join(format!("find-{}", std::process::id()));
        std::fs::create_dir(&dir).unwrap();
        for (name, size) in [("b", SMALLEST), ("a", SMALLEST - 1)] {
            std::fs::File::create(dir.join(name))
                .unwrap()
                .set_len(size)
                .unwrap();
        }
        std::os::unix::fs::symlink("b", dir.join("c")).unwrap();
        std::fs::create_dir(dir.join("d")).unwrap();
        let path = |n: &str| dir.join(n).to_str().unwrap().to_string();
        let in_dir = candidates(dir.to_str().unwrap());
        let (one, small) = (candidates(&path("c")), candidates(&path("a")));
        let resolved = resolve(&path("b"));
        std::fs::remove_dir_all(&dir).unwrap();
        assert_eq!(in_dir.unwrap(), [path("b")]);
        assert_eq!(one.unwrap(), [path("c")]);
        assert!(small.unwrap().is_empty());
        assert_eq!(resolved, Some(path("b")));
        assert!(candidates("/nonexistent/dir").is_err());
        assert_eq!(resolve("no-such-device-here"), None);
        default_candidates();
    }
}
