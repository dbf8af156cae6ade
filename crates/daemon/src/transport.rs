//! The daemon's ends of streams.
//!
//! A stream goes through a pair of sockets. The daemon makes it when the first byte is wanted or there, so after it has
//! asked for the rights of the caller, and sends one end to the caller.
//!
//! 1. The daemon never waits in a call on its end: it sends and receives without waiting, and waits for the socket in steps,
//!    between which it asks whether the stream is to end.
//! 2. Nothing the caller does with its end reaches the daemon's. A pipe would not do: whoever reads from it into memory that
//!    a stalled file system stands behind holds the lock that the writer, and its `close`, wait for unkillably.

use api::ApiError;
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::net::{self, AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// How long one end waits for the other before it asks whether to go on.
const TICK: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 100_000_000,
};
/// Bytes on their way; the kernel takes twice as many with what it counts beside them.
const ROOM: usize = 512 << 10;

/// Hands the caller its end ([`control::Sink::pass`]).
type Pass<'a> = &'a dyn Fn(BorrowedFd<'_>) -> Result<(), ApiError>;

/// Which way the bytes go.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Out,
    In,
}

/// The daemon's end of a stream, made when it is used first.
struct End<'a> {
    way: Way,
    socket: Option<OwnedFd>,
    pass: Pass<'a>,
    ended: Box<dyn Fn() -> bool>,
}

impl End<'_> {
    fn make(&mut self) -> io::Result<()> {
        if self.socket.is_some() {
            return Ok(());
        }
        let (ours, theirs) = net::socketpair(
            AddressFamily::UNIX,
            SocketType::STREAM,
            SocketFlags::CLOEXEC,
            None,
        )?;
        let writer = match self.way {
            Way::Out => &ours,
            Way::In => &theirs,
        };
        // Root may have more than the system's limit. Less is slower, no more.
        if net::sockopt::set_socket_send_buffer_size_force(writer, ROOM).is_err() {
            let _ = net::sockopt::set_socket_send_buffer_size(writer, ROOM);
        }
        // Where the kernel cannot, descriptors are dropped when they are read past.
        let _ = privilege::refuse_descriptors(ours.as_fd());
        let passed = (self.pass)(theirs.as_fd());
        passed.map_err(|e| io::Error::other(e.message))?;
        self.socket = Some(ours);
        Ok(())
    }

    /// Repeats a call that does not wait until it does something.
    fn each(
        &mut self,
        mut call: impl FnMut(&OwnedFd) -> Result<usize, rustix::io::Errno>,
    ) -> io::Result<usize> {
        self.make()?;
        let Some(socket) = &self.socket else {
            return Err(io::ErrorKind::NotConnected.into());
        };
        loop {
            match call(socket) {
                Err(rustix::io::Errno::AGAIN) => self.wait(socket)?,
                Err(rustix::io::Errno::INTR) => {}
                // It went with bytes unread.
                Err(rustix::io::Errno::CONNRESET) if self.way == Way::Out => {
                    return Err(io::Error::from(rustix::io::Errno::PIPE))
                }
                r => return Ok(r?),
            }
        }
    }

    fn wait(&self, socket: &OwnedFd) -> io::Result<()> {
        let event = match self.way {
            Way::Out => PollFlags::OUT,
            Way::In => PollFlags::IN,
        };
        loop {
            // Not "interrupted", which is taken for a call to be repeated.
            if (self.ended)() {
                return Err(io::ErrorKind::ConnectionAborted.into());
            }
            match poll(&mut [PollFd::new(socket, event)], Some(&TICK)) {
                Ok(0) | Err(rustix::io::Errno::INTR) => {}
                Ok(_) => return Ok(()),
                Err(e) => return Err(e.into()),
            }
        }
    }
}

/// Bytes for the caller.
pub struct Outlet<'a>(End<'a>);

impl<'a> Outlet<'a> {
    /// `ended` says whether the stream is to end; the thread that writes calls it.
    pub fn new(pass: Pass<'a>, ended: Box<dyn Fn() -> bool>) -> Outlet<'a> {
        Outlet(End {
            way: Way::Out,
            socket: None,
            pass,
            ended,
        })
    }
}

impl Write for Outlet<'_> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(buf)])
    }

    fn write_vectored(&mut self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        self.0.each(|socket| {
            let mut none = net::SendAncillaryBuffer::default();
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            net::sendmsg(socket, bufs, &mut none, flags)
        })
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Bytes of the caller.
pub struct Input<'a>(End<'a>);

impl<'a> Input<'a> {
    /// As [`Outlet::new`].
    pub fn new(pass: Pass<'a>, ended: Box<dyn Fn() -> bool>) -> Input<'a> {
        Input(End {
            way: Way::In,
            socket: None,
            pass,
            ended,
        })
    }
}

impl Read for Input<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.read_vectored(&mut [IoSliceMut::new(buf)])
    }

    fn read_vectored(&mut self, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        self.0.each(|socket| {
            // Without room for descriptors none is taken.
            let mut none = net::RecvAncillaryBuffer::default();
            let got = net::recvmsg(socket, bufs, &mut none, RecvFlags::DONTWAIT)?;
            Ok(got.bytes)
        })
    }
}
