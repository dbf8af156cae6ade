//! The output of a sent stream: a file descriptor that came with the request.
//!
//! The descriptor is shared with the command, and with whoever reads behind it, so its flags must not be changed. A pipe is
//! opened again, a socket is written with a flag of each call: both without waiting. The waiting is done here, in steps
//! between which the command is looked after. Files and devices do not make their writers wait.

use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::net::SendFlags;
use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};

/// How long is waited for room before the command is looked after.
const TICK: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 200_000_000,
};
/// Bytes a pipe is asked to hold.
const PIPE: usize = 1 << 20;

enum Way {
    /// Writing never waits for a reader.
    File,
    /// Opened again, so that writing does not wait.
    Pipe(File),
    Socket,
    /// Nothing may be written there.
    Refused,
    /// Nothing better could be had: writing may wait.
    Waits,
}

/// An output that ends when the command has gone.
pub struct Outlet {
    file: File,
    way: Way,
    gone: Box<dyn Fn() -> bool>,
}

impl Outlet {
    /// `gone` says whether the command has gone away.
    pub fn new(file: File, gone: Box<dyn Fn() -> bool>) -> Outlet {
        let way = match file.metadata().map(|m| m.file_type()) {
            Ok(t) if t.is_fifo() => again(&file).map_or(Way::Waits, Way::Pipe),
            Ok(t) if t.is_socket() => socket(&file),
            _ => Way::File,
        };
        Outlet { file, way, gone }
    }

    /// Waits until there is room.
    fn room(&self, file: &File) -> io::Result<()> {
        loop {
            let mut fds = [PollFd::new(file, PollFlags::OUT)];
            match poll(&mut fds, Some(&TICK)) {
                Ok(0) if (self.gone)() => return Err(io::ErrorKind::ConnectionAborted.into()),
                Ok(0) | Err(rustix::io::Errno::INTR) => {}
                Ok(_) => return Ok(()),
                Err(e) => return Err(e.into()),
            }
        }
    }
}

/// Streams only: a message on another socket would be one of this process, whoever asked for it.
fn socket(file: &File) -> Way {
    match rustix::net::sockopt::socket_type(file) {
        Ok(rustix::net::SocketType::STREAM) => Way::Socket,
        _ => Way::Refused,
    }
}

/// The pipe with flags of its own.
fn again(file: &File) -> Option<File> {
    // Opening it again must give no more than the command had.
    let mode = rustix::fs::fcntl_getfl(file).ok()? & rustix::fs::OFlags::ACCMODE;
    if mode == rustix::fs::OFlags::RDONLY {
        return None;
    }
    let pipe = OpenOptions::new()
        .write(true)
        .custom_flags(rustix::fs::OFlags::NONBLOCK.bits() as i32)
        .open(format!("/proc/self/fd/{}", file.as_raw_fd()))
        .ok()?;
    // Fewer changes between writer and reader; more than the system allows is not needed.
    let _ = rustix::pipe::fcntl_setpipe_size(&pipe, PIPE);
    Some(pipe)
}

impl Write for Outlet {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(buf)])
    }

    fn write_vectored(&mut self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        loop {
            let (r, waits_for) = match &self.way {
                Way::File => return (&self.file).write_vectored(bufs),
                Way::Refused => return Err(io::ErrorKind::Unsupported.into()),
                Way::Waits => {
                    self.room(&self.file)?;
                    return (&self.file).write_vectored(bufs);
                }
                Way::Pipe(pipe) => ((&*pipe).write_vectored(bufs), pipe),
                Way::Socket => {
                    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
                    let mut none = rustix::net::SendAncillaryBuffer::default();
                    let sent = rustix::net::sendmsg(&self.file, bufs, &mut none, flags);
                    (sent.map_err(io::Error::from), &self.file)
                }
            };
            match r {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => self.room(waits_for)?,
                r => return r,
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
