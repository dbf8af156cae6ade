//! Telling the kernel the size and modification time of a regular file.
//!
//! With the write-back cache the kernel keeps both of regular files and takes them from no answer but
//! one: that of a truncation sets the size, whatever was asked for. So a file is opened by its handle,
//! truncated, and given its modification time, by a thread whose requests the daemon knows. It answers
//! them with what is true and changes nothing.
//!
//! This needs root and a mount at its place that is not read-only. The change time cannot be set.

use std::fs::File;
use std::io;

use privilege::{with_own_files, Mount};
use rustix::fs::{Timespec, Timestamps, UTIME_OMIT};

use crate::sys;
use crate::types::Time;
use crate::write_out::NodeAndGeneration;

/// What is true of a regular file.
#[derive(Clone, Copy, Debug)]
pub struct Truth {
    /// The file.
    pub file: NodeAndGeneration,
    /// Bytes.
    pub size: u64,
    /// When its data were changed.
    pub mtime: Time,
}

/// Tells the kernel what is true of `files`. `teller` is called with the thread that does, as the pid of
/// its requests, and with none at the end. Returns for each file whether the kernel knows by now. Blocks
/// until the session has answered. Keeps the mount busy.
pub fn tell(
    mount: &Mount,
    files: &[Truth],
    teller: &(dyn Fn(Option<u32>) + Sync),
) -> Vec<io::Result<()>> {
    if files.is_empty() {
        return Vec::new();
    }
    let told = with_own_files(&[], || {
        let root = match mount.open_root() {
            Ok(root) => root,
            Err(e) => {
                let none = |_| Err(io::Error::new(e.kind(), "the mount cannot be reached"));
                return files.iter().map(none).collect();
            }
        };
        teller(u32::try_from(rustix::thread::gettid().as_raw_nonzero().get()).ok());
        files.iter().map(|f| tell_one(&root, f)).collect()
    });
    teller(None);
    told
}

fn tell_one(root: &File, truth: &Truth) -> io::Result<()> {
    let (node, generation) = truth.file;
    let fd = sys::open_by_node(root, node, generation, libc::O_WRONLY)?;
    let times = Timestamps {
        last_access: Timespec {
            tv_sec: 0,
            tv_nsec: UTIME_OMIT,
        },
        last_modification: Timespec {
            tv_sec: truth.mtime.sec,
            tv_nsec: truth.mtime.nsec.into(),
        },
    };
    let done = rustix::fs::ftruncate(&fd, truth.size)
        .and_then(|()| rustix::fs::futimens(&fd, &times))
        .map_err(io::Error::from);
    // Whatever the kernel still had of the file is sent by this, and thrown away.
    let closed = sys::close(fd);
    done.and(closed)
}
