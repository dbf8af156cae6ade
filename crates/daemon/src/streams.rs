//! Streams from and to the file descriptors of commands.

use rustix::event::{poll, PollFd, PollFlags, Timespec};
use std::fs::File;
use std::io::{self, IoSliceMut, Read};

/// How long a stream is waited for before it is asked whether the command is still there.
const TICK: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 200_000_000,
};

/// What a command passed as its standard input. It ends when the command has gone, or when the stream
/// is asked to end.
pub struct Input {
    file: File,
    ended: Box<dyn Fn() -> bool>,
}

impl Input {
    /// `ended` is called on the thread that reads.
    pub fn new(file: File, ended: Box<dyn Fn() -> bool>) -> Input {
        Input { file, ended }
    }

    /// Waits until there is something to be read.
    fn wait(&self) -> io::Result<()> {
        loop {
            let mut fds = [PollFd::new(&self.file, PollFlags::IN)];
            match poll(&mut fds, Some(&TICK)) {
                Ok(0) if (self.ended)() => return Err(io::ErrorKind::Interrupted.into()),
                Ok(0) | Err(rustix::io::Errno::INTR) => {}
                Ok(_) => return Ok(()),
                Err(e) => return Err(e.into()),
            }
        }
    }

    /// The same, as an error that is not taken for a call that is to be repeated.
    fn ready(&self) -> io::Result<()> {
        self.wait().map_err(|e| match e.kind() {
            io::ErrorKind::Interrupted => io::Error::from(io::ErrorKind::ConnectionAborted),
            _ => e,
        })
    }
}

impl Read for Input {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.ready()?;
        self.file.read(buf)
    }

    fn read_vectored(&mut self, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        self.ready()?;
        self.file.read_vectored(bufs)
    }
}
