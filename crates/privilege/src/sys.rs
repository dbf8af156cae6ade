//! The system calls that need `unsafe`, and nothing else.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

/// `_IOR(229, 0, u32)`: make this descriptor one more channel of the connection of another.
const FUSE_DEV_IOC_CLONE: u64 = 0x8004_e500;

/// Opens the FUSE device.
pub(crate) fn open_device() -> io::Result<OwnedFd> {
    File::options()
        .read(true)
        .write(true)
        .open("/dev/fuse")
        .map(OwnedFd::from)
}

/// Opens one more channel of the connection `fd` belongs to. Requests read from a channel are
/// answered on the same one, so threads with a channel each do not meet on its lock.
pub(crate) fn clone_channel(fd: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let new = open_device()?;
    let old: u32 = fd
        .as_raw_fd()
        .try_into()
        .map_err(|_| io::Error::from_raw_os_error(libc::EBADF))?;
    // SAFETY: the ioctl reads one u32 from the pointer, which outlives the call; `new` is open.
    let r = unsafe { libc::ioctl(new.as_raw_fd(), FUSE_DEV_IOC_CLONE as _, &old as *const u32) };
    if r != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(new)
}

/// Gives the calling thread a table of files of its own that has the descriptors 0 to 2 and `keep`
/// alone. Does nothing before Linux 5.9.
pub(crate) fn keep_files(keep: &[i32]) {
    const CLOSE_RANGE_UNSHARE: libc::c_uint = 2;
    let mut keep: Vec<libc::c_uint> = keep.iter().filter_map(|fd| (*fd).try_into().ok()).collect();
    keep.sort_unstable();
    let mut first = 3;
    for kept in keep
        .into_iter()
        .filter(|fd| *fd >= 3)
        .map(Some)
        .chain([None])
    {
        let last = kept.map_or(libc::c_uint::MAX, |fd| fd - 1);
        if first <= last {
            // SAFETY: the table that is left by the first call is the thread's own, so nothing that
            // other threads own is closed. Whoever calls this lets the thread use what it keeps only.
            let r =
                unsafe { libc::syscall(libc::SYS_close_range, first, last, CLOSE_RANGE_UNSHARE) };
            if r != 0 {
                return;
            }
        }
        first = kept.map_or(first, |fd| fd + 1);
    }
}

/// Gives the calling thread the permissions of a user as far as files go; the rest of its rights stay.
pub(crate) fn become_for_files(uid: u32, gid: u32, groups: &[u32]) {
    // SAFETY: pointer and length describe `groups`, which the kernel reads. The calls change this thread alone.
    unsafe {
        libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr());
        libc::setfsgid(gid);
        libc::setfsuid(uid);
    }
}

/// Whether a Unix socket takes descriptors.
const SO_PASSRIGHTS: libc::c_int = 83;

/// Has the kernel refuse descriptors that somebody sends to a Unix socket, also to connections that a listening one accepts.
///
/// Errors: the kernel cannot (before Linux 6.16). A reader without room for descriptors gets none anyway.
pub fn refuse_descriptors(socket: BorrowedFd<'_>) -> io::Result<()> {
    let no: libc::c_int = 0;
    // SAFETY: pointer and size describe `no`, which the kernel reads.
    let r = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PASSRIGHTS,
            std::ptr::from_ref(&no).cast(),
            std::mem::size_of_val(&no) as libc::socklen_t,
        )
    };
    match r {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
