//! The few system calls that need `unsafe`, and nothing else.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

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
pub(crate) fn clone_channel(fd: &File) -> io::Result<File> {
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
    Ok(File::from(new))
}

/// The signal that makes a thread leave a blocking read. Its default action is to be ignored, so
/// one that comes too late, or from elsewhere, does no harm.
const WAKE: i32 = libc::SIGURG;

extern "C" fn nothing(_: i32) {}

/// Makes the wake-up signal interrupt system calls (a handler that does nothing, no SA_RESTART).
/// A handler somebody else has installed stays.
pub(crate) fn install_wake_handler() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        // SAFETY: both structures are valid for the calls (all-zero bytes are a valid sigaction:
        // SIG_DFL, empty mask); the handler does nothing and so is async-signal-safe.
        unsafe {
            let mut old: libc::sigaction = std::mem::zeroed();
            if libc::sigaction(WAKE, std::ptr::null(), &mut old) == 0
                && (old.sa_sigaction == libc::SIG_DFL || old.sa_sigaction == libc::SIG_IGN)
            {
                let mut new: libc::sigaction = std::mem::zeroed();
                new.sa_sigaction = nothing as extern "C" fn(i32) as usize;
                libc::sigaction(WAKE, &new, std::ptr::null_mut());
            }
        }
    });
}

/// Lets the wake-up signal through in the calling thread, whatever mask it inherited.
pub(crate) fn unblock_wake() {
    // SAFETY: `set` is initialised by sigemptyset before use and outlives the calls.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, WAKE);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &set, std::ptr::null_mut());
    }
}

/// Sends the wake-up signal to a thread of this process. A thread that is gone is no error: at
/// worst another thread of ours sees one EINTR.
pub(crate) fn wake_thread(tid: i32) {
    // SAFETY: tgkill takes integers only.
    unsafe {
        libc::syscall(libc::SYS_tgkill, libc::getpid(), tid, WAKE);
    }
}
