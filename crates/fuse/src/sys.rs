//! The system calls that need `unsafe`, and nothing else.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

pub(crate) use rustix::thread::CpuSet;

/// Bytes of a page.
pub(crate) const PAGE: usize = 4096;
/// Type of the file handles that the FUSE file system gives out: node id and generation.
const FILEID_INO64_GEN: i32 = 0x81;

/// `struct file_handle` with the three words of a FUSE handle.
#[repr(C)]
struct FuseHandle {
    handle_bytes: u32,
    handle_type: i32,
    node_high: u32,
    node_low: u32,
    generation: u32,
}

/// Opens a file of the mount that `root` belongs to, by its node id; for reading or writing, as `access`
/// (`O_RDONLY`, `O_WRONLY`) says. Needs CAP_DAC_READ_SEARCH.
pub(crate) fn open_by_node(
    root: &File,
    node: u64,
    generation: u32,
    access: i32,
) -> io::Result<OwnedFd> {
    use std::os::fd::FromRawFd;
    let mut handle = FuseHandle {
        handle_bytes: 12,
        handle_type: FILEID_INO64_GEN,
        node_high: (node >> 32) as u32,
        node_low: node as u32,
        generation,
    };
    let flags = access | libc::O_CLOEXEC | libc::O_NOATIME | libc::O_NONBLOCK;
    // SAFETY: the handle has the layout of `struct file_handle` with as many bytes behind it as it
    // says, and outlives the call, which only reads it.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_open_by_handle_at,
            root.as_raw_fd(),
            std::ptr::from_mut(&mut handle),
            flags,
        )
    };
    match i32::try_from(fd) {
        // SAFETY: the call returned a new descriptor, which nobody else owns.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Closes a descriptor and says what closing it failed with.
pub(crate) fn close(fd: OwnedFd) -> io::Result<()> {
    use std::os::fd::IntoRawFd;
    // SAFETY: the descriptor was owned by `fd`, which has given it up.
    match unsafe { libc::close(fd.into_raw_fd()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
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

/// How often the calling thread gave its processor away because it had to wait (`ru_nvcsw` of
/// getrusage(2); what others took from it is not in it). 0 if that cannot be told.
pub(crate) fn waits() -> u64 {
    // SAFETY: all-zero bytes are a valid rusage, and it outlives the call, which fills it.
    let (usage, r) = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        let r = libc::getrusage(libc::RUSAGE_THREAD, &mut usage);
        (usage, r)
    };
    match r {
        0 => usage.ru_nvcsw.unsigned_abs(),
        _ => 0,
    }
}

/// Reads into `head` and, what is left, into `blocks` in turn, which are empty and have room for `each`
/// bytes; they are as long afterwards as they have bytes. Returns how many bytes there are in all.
pub(crate) fn read_scattered(
    file: &File,
    head: &mut [u8],
    blocks: &mut [Vec<u8>],
    each: usize,
) -> io::Result<usize> {
    let mut iov = Vec::with_capacity(blocks.len() + 1);
    iov.push(libc::iovec {
        iov_base: head.as_mut_ptr().cast(),
        iov_len: head.len(),
    });
    for b in blocks.iter_mut() {
        b.clear();
        b.reserve_exact(each);
        iov.push(libc::iovec {
            iov_base: b.as_mut_ptr().cast(),
            iov_len: each,
        });
    }
    // SAFETY: every piece is memory borrowed here for writing: all of `head`, and `each` bytes of each
    // block, which has room for them as was just seen to.
    let n = unsafe { libc::readv(file.as_raw_fd(), iov.as_ptr(), iov.len() as i32) };
    let n = usize::try_from(n).map_err(|_| io::Error::last_os_error())?;
    let mut left = n.saturating_sub(head.len());
    for b in blocks.iter_mut() {
        let len = left.min(each);
        // SAFETY: the kernel fills the pieces in turn, so it wrote as many bytes to this one.
        unsafe { b.set_len(len) };
        left -= len;
    }
    Ok(n)
}

/// Keeps the calling thread on one core.
pub(crate) fn bind_to_core(core: usize) -> io::Result<()> {
    if core >= CpuSet::MAX_CPU {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut set = CpuSet::new();
    set.set(core);
    bind_to(&set)
}

/// Keeps the calling thread on some cores.
pub(crate) fn bind_to(cores: &CpuSet) -> io::Result<()> {
    Ok(rustix::thread::sched_setaffinity(None, cores)?)
}

/// The core the calling thread runs on, or did a moment ago.
pub(crate) fn core_now() -> usize {
    rustix::thread::sched_getcpu()
}

/// Sets the priority of the calling thread: -20, the highest, to 19.
pub(crate) fn be_nice(nice: i32) -> io::Result<()> {
    Ok(rustix::process::setpriority_process(None, nice)?)
}

/// Cores the calling thread may use.
pub(crate) fn cores_allowed() -> io::Result<CpuSet> {
    Ok(rustix::thread::sched_getaffinity(None)?)
}

/// Memory that the kernel reads and writes by itself between system calls of ours. Until it is
/// known to have let go ([`Pages::done`]) the addresses are never used for anything else: on
/// dropping the memory is given back, but the addresses stay taken, and what comes late fails.
pub(crate) struct Pages {
    start: *mut u8,
    len: usize,
    done: AtomicBool,
}

// SAFETY: the mapping belongs to the value and to no thread. Who writes there and who reads is agreed between threads by
// other means: see [`Pages::bytes`] and [`Pages::write`].
unsafe impl Send for Pages {}
// SAFETY: as above.
unsafe impl Sync for Pages {}

impl Pages {
    /// Zeros; memory is taken as it is touched.
    pub fn new(len: usize) -> io::Result<Pages> {
        // SAFETY: a new anonymous mapping at an address of the kernel's choice.
        let p = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if p == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // Most requests are short: no huge page for what they touch. A failure costs memory only.
        // SAFETY: the mapping just made; what is in it stays.
        unsafe { libc::madvise(p, len, libc::MADV_NOHUGEPAGE) };
        Ok(Pages {
            start: p.cast(),
            len,
            done: AtomicBool::new(false),
        })
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// The kernel does not use it any more.
    pub fn done(&self) {
        self.done.store(true, SeqCst);
    }

    /// Address of a byte.
    pub fn at(&self, offset: usize) -> *mut u8 {
        assert!(offset <= self.len);
        // SAFETY: within the mapping, or just behind it.
        unsafe { self.start.add(offset) }
    }

    /// Some bytes, as many of them as there are.
    pub fn bytes(&self, offset: usize, len: usize) -> &[u8] {
        let len = len.min(self.len.saturating_sub(offset));
        // SAFETY: within the mapping, whose every byte is initialised. The kernel writes there only
        // while a command is under way, and callers look only while none is; what they write
        // meanwhile (see [`Pages::write`]) does not overlap.
        unsafe { std::slice::from_raw_parts(self.at(offset), len) }
    }

    /// All bytes of memory that the kernel uses in system calls only ([`Pages::done`]).
    pub fn all(&mut self) -> &mut [u8] {
        assert!(self.done.load(SeqCst));
        // SAFETY: the whole mapping, whose every byte is initialised; the borrow is the only one.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.len) }
    }

    /// Writes where no slice of [`Pages::bytes`] is held: heads after the request was served,
    /// payload if the request has none or was served.
    pub fn write(&self, offset: usize, data: &[u8]) {
        assert!(offset <= self.len && data.len() <= self.len - offset);
        // SAFETY: within the mapping as was just checked; `data` is not in it, since callers hold
        // no slice of this place.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), self.at(offset), data.len()) }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `new`, of which no slices are left. Replacing it by one
        // without access keeps its addresses from being used again.
        unsafe {
            if self.done.load(SeqCst) {
                libc::munmap(self.start.cast(), self.len);
            } else {
                libc::mmap(
                    self.start.cast(),
                    self.len,
                    libc::PROT_NONE,
                    libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED,
                    -1,
                    0,
                );
            }
        }
    }
}
