//! The few system calls the standard library does not have, as safe functions.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Size of a block device, bytes.
const BLKGETSIZE64: libc::Ioctl = 0x8008_1272u32 as libc::Ioctl;
/// Logical sector size.
const BLKSSZGET: libc::Ioctl = 0x1268;
/// Physical sector size.
const BLKPBSZGET: libc::Ioctl = 0x127b;
/// Discards a byte range.
const BLKDISCARD: libc::Ioctl = 0x1277;

/// Supplementary groups of the other end of a Unix socket.
const SO_PEERGROUPS: libc::c_int = 59;
/// Most groups of a process.
const MAX_GROUPS: usize = 1 << 16;

fn check(r: libc::c_int) -> io::Result<()> {
    if r == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Closes every file beyond the three standard ones. A daemon calls it before it opens anything,
/// so that it does not hold what the shell or command that started it had open.
pub fn close_inherited() {
    // SAFETY: nothing in this process owns any of them: the caller has opened no file yet.
    unsafe {
        libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, 0);
    }
}

/// Supplementary groups of the process that connected a Unix socket, as they were then.
pub fn peer_groups(socket: BorrowedFd<'_>) -> io::Result<Vec<u32>> {
    let mut list: Vec<u32> = vec![0; 32];
    loop {
        let mut size = std::mem::size_of_val(&list[..]) as libc::socklen_t;
        // SAFETY: pointer and size describe `list`; the kernel writes no more than that.
        let r = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                SO_PEERGROUPS,
                list.as_mut_ptr().cast(),
                &mut size,
            )
        };
        let count = size as usize / std::mem::size_of::<u32>();
        match check(r) {
            Ok(()) => {
                list.truncate(count);
                return Ok(list);
            }
            // The kernel says how much it takes; a process has at most 65,536 groups.
            Err(e) if e.raw_os_error() == Some(libc::ERANGE) && count > list.len() => {
                list.resize(count.min(MAX_GROUPS), 0);
            }
            Err(e) => return Err(e),
        }
    }
}

/// Fills `buf` from the kernel's generator.
pub fn random(mut buf: &mut [u8]) {
    while !buf.is_empty() {
        // SAFETY: pointer and length describe `buf`.
        let n = unsafe { libc::getrandom(buf.as_mut_ptr().cast(), buf.len(), 0) };
        if n > 0 {
            let taken = std::mem::take(&mut buf);
            buf = &mut taken[n as usize..];
        }
        // Otherwise EINTR: with flags 0 and a valid buffer there is no other failure.
    }
}

/// Bytes of a block device.
pub fn block_size(f: &File) -> io::Result<u64> {
    let mut v = 0u64;
    // SAFETY: the request writes one u64.
    check(unsafe { libc::ioctl(f.as_raw_fd(), BLKGETSIZE64, &mut v) })?;
    Ok(v)
}

/// Smallest transfer of a block device, bytes.
pub fn logical_sector(f: &File) -> io::Result<u32> {
    let mut v: libc::c_int = 0;
    // SAFETY: the request writes one int.
    check(unsafe { libc::ioctl(f.as_raw_fd(), BLKSSZGET, &mut v) })?;
    Ok(v as u32)
}

/// Physical sector size of a block device, bytes.
pub fn physical_sector(f: &File) -> io::Result<u32> {
    let mut v: libc::c_uint = 0;
    // SAFETY: the request writes one unsigned int.
    check(unsafe { libc::ioctl(f.as_raw_fd(), BLKPBSZGET, &mut v) })?;
    Ok(v)
}

/// Discards a range of a block device, in bytes.
pub fn discard_device(f: &File, offset: u64, len: u64) -> io::Result<()> {
    let range = [offset, len];
    // SAFETY: the request reads two u64.
    check(unsafe { libc::ioctl(f.as_raw_fd(), BLKDISCARD, range.as_ptr()) })
}

/// Frees the blocks of a range of a file; it then reads as zeros.
pub fn punch_hole(f: &File, offset: u64, len: u64) -> io::Result<()> {
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    let too_big = |_| io::Error::from_raw_os_error(libc::EINVAL);
    let (o, l) = (
        i64::try_from(offset).map_err(too_big)?,
        i64::try_from(len).map_err(too_big)?,
    );
    // SAFETY: no pointers.
    check(unsafe { libc::fallocate(f.as_raw_fd(), mode, o, l) })
}

/// Keeps the pages of a piece of memory out of swap and core dumps. They stay so until the process
/// ends: others may have keys in them, too.
pub fn lock_memory(address: usize, len: usize) -> io::Result<()> {
    // SAFETY: takes no pointer, and `_SC_PAGESIZE` is known everywhere.
    let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096);
    let from = address & !(page - 1);
    let Some(end) = address.checked_add(len) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let len = end.div_ceil(page) * page - from;
    let place = from as *mut libc::c_void;
    // SAFETY: neither call reads or changes what is there; addresses without memory are an error.
    let undumped = check(unsafe { libc::madvise(place, len, libc::MADV_DONTDUMP) });
    // SAFETY: as above. The limit of locked memory must not bring keys into core dumps as well.
    check(unsafe { libc::mlock(place, len) })?;
    undumped
}

/// The file behind a loop device: device and inode number.
pub fn loop_backing(f: &File) -> io::Result<(u64, u64)> {
    const LOOP_GET_STATUS64: libc::Ioctl = 0x4c05;
    // `struct loop_info64` has 232 bytes and begins with these two numbers.
    let mut info = [0u64; 29];
    // SAFETY: the request writes one `loop_info64`.
    check(unsafe { libc::ioctl(f.as_raw_fd(), LOOP_GET_STATUS64, info.as_mut_ptr()) })?;
    Ok((info[0], info[1]))
}

/// Takes a write lock on the whole file that belongs to this open file description.
pub fn lock_whole(f: &File) -> io::Result<()> {
    // SAFETY: all-zero bytes are a valid `flock` (whole file from the start).
    let mut l: libc::flock = unsafe { std::mem::zeroed() };
    l.l_type = libc::F_WRLCK as libc::c_short;
    l.l_whence = libc::SEEK_SET as libc::c_short;
    // SAFETY: the command reads one `flock`.
    let r = unsafe { libc::fcntl(f.as_raw_fd(), libc::F_OFD_SETLK, &l) };
    if r == -1 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// Whether somebody has a lock on some of the file that would keep [`lock_whole`] out.
pub fn is_locked(f: &File) -> io::Result<bool> {
    // SAFETY: all-zero bytes are a valid `flock` (whole file from the start).
    let mut l: libc::flock = unsafe { std::mem::zeroed() };
    l.l_type = libc::F_WRLCK as libc::c_short;
    l.l_whence = libc::SEEK_SET as libc::c_short;
    // SAFETY: the command reads and writes one `flock`.
    let r = unsafe { libc::fcntl(f.as_raw_fd(), libc::F_OFD_GETLK, &mut l) };
    if r == -1 {
        Err(io::Error::last_os_error())
    } else {
        Ok(l.l_type != libc::F_UNLCK as libc::c_short)
    }
}

/// What O_DIRECT wants on this file: (memory alignment, offset alignment), `None` if the kernel
/// does not say. Zeros mean that the file has no direct I/O.
pub fn dio_align(f: &File) -> Option<(u32, u32)> {
    const STATX_DIOALIGN: u32 = 0x2000;
    // `struct statx` is 256 bytes: stx_mask at 0, stx_dio_mem_align at 152, stx_dio_offset_align
    // at 156 (the C library's binding does not name the last two everywhere).
    #[repr(C, align(8))]
    struct Statx([u8; 256]);
    let mut st = Statx([0; 256]);
    // SAFETY: the path is an empty C string, the buffer has the size of `struct statx`.
    let r = unsafe {
        libc::syscall(
            libc::SYS_statx,
            f.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            STATX_DIOALIGN,
            st.0.as_mut_ptr(),
        )
    };
    let word = |at: usize| {
        let mut b = [0; 4];
        b.copy_from_slice(&st.0[at..at + 4]);
        u32::from_ne_bytes(b)
    };
    (r == 0 && word(0) & STATX_DIOALIGN != 0).then(|| (word(152), word(156)))
}

/// Major and minor number of a `dev_t`.
pub fn major_minor(dev: u64) -> (u32, u32) {
    (libc::major(dev), libc::minor(dev))
}

/// Seconds and nanoseconds since 1970 on CLOCK_REALTIME_COARSE.
pub(crate) fn coarse_time() -> (i64, u32) {
    let mut t = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: fills the structure it is given and nothing else.
    unsafe { libc::clock_gettime(libc::CLOCK_REALTIME_COARSE, &mut t) };
    (t.tv_sec, t.tv_nsec.clamp(0, 999_999_999) as u32)
}

/// Project id of an open file (`struct fsxattr` of `FS_IOC_FSGETXATTR`), where its file system has
/// such.
pub fn project_id(f: &File) -> io::Result<u32> {
    const FS_IOC_FSGETXATTR: libc::Ioctl = 0x801c_581fu32 as libc::Ioctl;
    let mut words = [0u32; 7];
    // SAFETY: the call writes 28 bytes.
    check(unsafe { libc::ioctl(f.as_raw_fd(), FS_IOC_FSGETXATTR, &mut words) })?;
    Ok(words[3])
}
