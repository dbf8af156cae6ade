//! The daemon's side: one thread per connection, calls answered in order.

use crate::wire::{self, Framed};
use crate::{ApiError, Reply, Request};
use base::Kind;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;

/// Most connections served at a time; more are told to come again.
pub const MAX_CONNECTIONS: usize = 256;

/// Who is at the other end, as the kernel says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    pub uid: u32,
    pub gid: u32,
    pub pid: i32,
}

/// Where a handler may put messages on the way to its answer.
pub trait Sink {
    /// Sends a part of a long list, or a [`Reply::Progress`]. Progress is dropped when the caller
    /// takes one message only. An error means that nobody listens any more.
    fn send(&mut self, part: Reply) -> Result<(), ApiError>;
    /// True when the caller has gone away: long waits should end.
    fn cancelled(&self) -> bool;
    /// File descriptors that came with the call.
    fn take_fds(&mut self) -> Vec<OwnedFd>;
}

/// Answers calls; called from many threads.
pub trait Handler: Send + Sync {
    fn handle(&self, peer: Peer, request: Request, out: &mut dyn Sink) -> Result<Reply, ApiError>;

    /// Called after an answer has been written, or could not be: what would end the process must
    /// wait for this, or the caller loses its answer.
    fn answered(&self) {}
}

/// Serves connections until the listener fails for good (it was shut down).
pub fn serve(listener: UnixListener, handler: Arc<dyn Handler>) {
    let live = Arc::new(AtomicUsize::new(0));
    for connection in listener.incoming() {
        let stream = match connection {
            Ok(stream) => stream,
            // Out of descriptors or memory: others may give some back. A listener that was shut
            // down says EINVAL.
            Err(e) if e.raw_os_error() == Some(22) => return,
            Err(_) => {
                std::thread::sleep(std::time::Duration::from_millis(50));
                continue;
            }
        };
        let handler = handler.clone();
        let guard = Count::up(&live);
        let busy = live.load(Ordering::Relaxed) > MAX_CONNECTIONS;
        let spawned = std::thread::Builder::new()
            .name("control".into())
            .spawn(move || {
                let _guard = guard;
                // A broken connection concerns nobody but its caller, who sees it himself.
                let _ = connection_loop(stream, &*handler, busy);
            });
        drop(spawned);
    }
}

struct Count(Arc<AtomicUsize>);

impl Count {
    fn up(count: &Arc<AtomicUsize>) -> Count {
        count.fetch_add(1, Ordering::Relaxed);
        Count(count.clone())
    }
}

impl Drop for Count {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Credentials of the other end of a connected socket.
pub fn peer_of(stream: &UnixStream) -> io::Result<Peer> {
    let cred = rustix::net::sockopt::socket_peercred(stream)?;
    Ok(Peer {
        uid: cred.uid.as_raw(),
        gid: cred.gid.as_raw(),
        pid: cred.pid.as_raw_nonzero().get(),
    })
}

fn connection_loop(stream: UnixStream, handler: &dyn Handler, busy: bool) -> io::Result<()> {
    let peer = peer_of(&stream)?;
    // A caller that stops reading must not hold a thread (and what its request holds) for ever.
    stream.set_write_timeout(Some(std::time::Duration::from_secs(60)))?;
    let mut framed = Framed::new(stream, wire::MAX_CALL);
    if busy {
        let error = ApiError::sentence(Kind::Again, "the daemon serves too many connections");
        return framed.write(&wire::encode_error(&error)?, &[]);
    }
    while let Some(frame) = framed.read()? {
        let result = match wire::decode_call(&frame) {
            Err(e) => Err(e),
            Ok(call) => {
                let fds = framed.take_fds();
                let mut out = Out {
                    framed: &mut framed,
                    more: call.more,
                    fds,
                };
                catch_unwind(AssertUnwindSafe(|| {
                    handler.handle(peer, call.request, &mut out)
                }))
                .unwrap_or_else(|_| {
                    Err(ApiError::sentence(
                        Kind::Io,
                        "internal error: the daemon failed to handle the request; see its log",
                    ))
                })
            }
        };
        let answer = match &result {
            Ok(reply) => wire::encode_reply(reply, false)?,
            Err(error) => wire::encode_error(error)?,
        };
        let written = framed.write(&answer, &[]);
        handler.answered();
        written?;
    }
    Ok(())
}

struct Out<'a> {
    framed: &'a mut Framed,
    more: bool,
    fds: Vec<OwnedFd>,
}

impl Sink for Out<'_> {
    fn send(&mut self, part: Reply) -> Result<(), ApiError> {
        if !self.more {
            if matches!(part, Reply::Progress(_)) {
                return Ok(());
            }
            return Err(ApiError::sentence(
                Kind::Invalid,
                "the answer takes several messages: call with \"more\"",
            ));
        }
        self.framed
            .write(&wire::encode_reply(&part, true)?, &[])
            .map_err(ApiError::from)
    }

    fn cancelled(&self) -> bool {
        use rustix::event::{poll, PollFd, PollFlags, Timespec};
        let mut fds = [PollFd::new(self.framed.stream(), PollFlags::RDHUP)];
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        matches!(poll(&mut fds, Some(&now)), Ok(n) if n > 0)
            && fds[0]
                .revents()
                .intersects(PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR)
    }

    fn take_fds(&mut self) -> Vec<OwnedFd> {
        std::mem::take(&mut self.fds)
    }
}
