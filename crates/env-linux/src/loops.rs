//! The files behind loop devices.
//!
//! A pool on an image must not be open twice: by the path of the image, and through a loop device on it.
//! Images that are opened exclusively are locked. So is, for a loop device, the file behind it.

use crate::sys;
use base::sync::MutexExt;
use base::{Error, Kind, Result};
use privilege::{acts, Opening};
use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, Weak};

/// A locked file, by device and inode number, and the loop device it is locked for. Partitions of one
/// loop device share the lock.
type Locks = HashMap<(u64, u64), (PathBuf, Weak<File>)>;

static LOCKS: Mutex<Option<Locks>> = Mutex::new(None);

/// The directory of a loop device, also of one of its partitions, in sysfs; `None`: it is no loop
/// device.
fn whole(rdev: u64) -> Option<PathBuf> {
    let (major, minor) = sys::major_minor(rdev);
    let dir = fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")).ok()?;
    let is_loop = |d: &Path| d.join("loop/backing_file").exists();
    let parent = dir.parent().map(Path::to_path_buf);
    [Some(dir), parent]
        .into_iter()
        .flatten()
        .find(|d| is_loop(d))
}

/// Locks the file behind an open block device, if that is a loop device and the file can be reached
/// from here. The lock lasts as long as the value.
///
/// Errors: busy, if somebody else has locked the file.
pub fn lock_backing(device: &File) -> Result<Option<Arc<File>>> {
    let Some(dir) = whole(device.metadata()?.rdev()) else {
        return Ok(None);
    };
    let (Ok(id), Ok(path)) = (
        sys::loop_backing(device),
        fs::read_to_string(dir.join("loop/backing_file")),
    ) else {
        return Ok(None);
    };
    let path = path.trim_end_matches('\n');
    let mut locks = LOCKS.acquire();
    let locks = locks.get_or_insert_default();
    locks.retain(|_, (_, file)| file.strong_count() > 0);
    let busy = || {
        let text = format!("its file '{path}' is in use by another pool, device or program");
        Error::new(Kind::Busy, text)
    };
    if let Some((of, file)) = locks.get(&id) {
        return match file.upgrade() {
            Some(file) if *of == dir => Ok(Some(file)),
            _ => Err(busy()),
        };
    }
    let how = Opening {
        write: true,
        ..Opening::default()
    };
    let Ok(file) = acts().open_device(Path::new(path), how) else {
        return Ok(None);
    };
    let meta = file.metadata()?;
    if (meta.dev(), meta.ino()) != id {
        // Another file has the name by now, or in this mount namespace.
        return Ok(None);
    }
    sys::lock_whole(&file).map_err(|e: io::Error| match e.raw_os_error() {
        Some(libc::EAGAIN | libc::EACCES) => busy(),
        _ => Error::from(e).context("cannot lock"),
    })?;
    let file = Arc::new(file);
    locks.insert(id, (dir, Arc::downgrade(&file)));
    Ok(Some(file))
}
