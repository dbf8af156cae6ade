//! Project ids of files, read and set through the kernel, for `zfs project`.

use crate::types::ioctl::{FS_IOC_FSGETXATTR, FS_IOC_FSSETXATTR};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// `FS_XFLAG_PROJINHERIT`
const INHERIT: u32 = 0x200;
/// Of the seven words of `struct fsxattr`.
const FLAGS: usize = 0;
const PROJECT: usize = 3;

/// The project of a file or directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Project {
    /// Project id; 0 for none.
    pub id: u32,
    /// What is made in the directory gets its project.
    pub inherit: bool,
}

fn get(file: &File) -> io::Result<[u32; 7]> {
    let mut words = [0; 7];
    // SAFETY: the ioctl writes 28 bytes, which `words` has.
    let r = unsafe { libc::ioctl(file.as_raw_fd(), FS_IOC_FSGETXATTR as _, words.as_mut_ptr()) };
    match r {
        0 => Ok(words),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The project of an open file.
///
/// Errors: `ENOTTY` or `EOPNOTSUPP`, if its file system has no projects.
pub fn project(file: &File) -> io::Result<Project> {
    let words = get(file)?;
    Ok(Project {
        id: words[PROJECT],
        inherit: words[FLAGS] & INHERIT != 0,
    })
}

/// Another project for an open file; its other flags stay.
pub fn set_project(file: &File, to: Project) -> io::Result<()> {
    let mut words = get(file)?;
    words[PROJECT] = to.id;
    words[FLAGS] = words[FLAGS] & !INHERIT | if to.inherit { INHERIT } else { 0 };
    // SAFETY: the ioctl reads 28 bytes, which `words` has.
    let r = unsafe { libc::ioctl(file.as_raw_fd(), FS_IOC_FSSETXATTR as _, words.as_ptr()) };
    match r {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
