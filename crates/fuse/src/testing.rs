//! For tests: requests without a mount, and asynchronous writes.

use crate::channel::Channel;
use crate::dispatch::{serve, Message, Scratch};
use crate::{Filesystem, Negotiated};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// Serves one request as if the kernel had sent it; the answer is written to `answers`.
///
/// Errors: the message is too short to be a request, or the answer cannot be written.
pub fn request(fs: &dyn Filesystem, answers: &File, message: &[u8]) -> io::Result<()> {
    let agreed = Negotiated {
        minor: crate::abi::MINOR,
        flags: u64::MAX,
        offered: u64::MAX,
        max_write: 1 << 20,
        max_readahead: 1 << 20,
        max_pages: 256,
    };
    let chan = Channel { file: answers };
    let Some(message) = Message::read(message) else {
        return Err(io::ErrorKind::InvalidData.into());
    };
    serve(fs, &agreed, &chan, &message, &mut Scratch::new())
}

/// Writes with the kernel's asynchronous I/O (io_submit(2)) and waits for the completion. Returns
/// how many bytes were written.
///
/// Errors: those of the system calls, and of the write.
pub fn aio_write(file: &File, offset: u64, data: &[u8]) -> io::Result<usize> {
    /// `struct iocb`, of a little-endian machine.
    #[repr(C)]
    #[derive(Default)]
    struct Iocb {
        data: u64,
        key: u32,
        rw_flags: u32,
        opcode: u16,
        priority: u16,
        fd: u32,
        buf: u64,
        nbytes: u64,
        offset: u64,
        reserved: u64,
        flags: u32,
        eventfd: u32,
    }
    const PWRITE: u16 = 1;
    fn check(r: libc::c_long) -> io::Result<libc::c_long> {
        match r {
            -1 => Err(io::Error::last_os_error()),
            r => Ok(r),
        }
    }
    let mut context = 0u64;
    // SAFETY: the call writes the context.
    check(unsafe { libc::syscall(libc::SYS_io_setup, 1, &mut context) })?;
    let mut iocb = Iocb {
        opcode: PWRITE,
        fd: file.as_raw_fd() as u32,
        buf: data.as_ptr() as u64,
        nbytes: data.len() as u64,
        offset,
        ..Iocb::default()
    };
    let mut list = [&mut iocb as *mut Iocb];
    // `struct io_event`: data, iocb, result, second result.
    let mut event = [0i64; 4];
    // SAFETY: `list` names one iocb, which names `data`; both live until io_destroy returned, which
    // waits for whatever is under way.
    let done = unsafe {
        let none = std::ptr::null_mut::<libc::timespec>();
        check(libc::syscall(
            libc::SYS_io_submit,
            context,
            1,
            list.as_mut_ptr(),
        ))
        .and_then(|_| loop {
            let (call, events) = (libc::SYS_io_getevents, event.as_mut_ptr());
            match check(libc::syscall(call, context, 1, 1, events, none)) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                r => break r,
            }
        })
    };
    // SAFETY: the context is not used any more.
    unsafe { libc::syscall(libc::SYS_io_destroy, context) };
    done?;
    match usize::try_from(event[2]) {
        Ok(n) => Ok(n),
        Err(_) => Err(io::Error::from_raw_os_error(-event[2] as i32)),
    }
}
