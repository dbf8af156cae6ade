//! The server side of the socket: one thread per connection answers calls in order.

use crate::wire::{self, Framed};
use api::{ApiError, Peer, Reply, Request};
use base::sync::MutexExt;
use base::Kind;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

/// Most connections served at a time. One more takes the place of one that is not asking anything.
pub const MAX_CONNECTIONS: usize = 256;
/// Most connections of users who are neither root nor the daemon's own: the owner always gets in.
const MAX_OF_STRANGERS: usize = 128;
/// Most connections of one of them.
const MAX_OF_STRANGER: usize = 32;
/// Most requests of one of them that are carried out at a time, besides those that may last. Each takes 16 MiB of memory at
/// most.
const MAX_AT_WORK: usize = 4;
/// A request waits this long for its turn.
const TURN: Duration = Duration::from_secs(60);
/// Most calls longer than [`wire::MAX_QUESTION`] at a time.
const MAX_LONG: usize = 8;
/// A call has to come within this time from its first byte on.
const PATIENCE: Duration = Duration::from_secs(10);
/// A caller has to take an answer, or something of it, within this time.
const STALLED: Duration = Duration::from_secs(60);

/// Where a handler may put messages on the way to its answer.
pub trait Sink {
    /// Sends a part of a long list, or a [`Reply::Progress`]. A part waits for the caller, so the thread must hold no lock.
    /// Progress is dropped when the caller has no room for it, or takes one message only. An error means that nobody
    /// listens any more.
    fn send(&mut self, part: Reply) -> Result<(), ApiError>;
    /// True when the caller has gone away: long waits should end.
    fn cancelled(&self) -> bool;
    /// The same for those who do not have the sink. By default nobody ever goes away.
    fn watch(&self) -> Box<dyn Fn() -> bool> {
        Box::new(|| false)
    }
    /// The connected socket, to ask the kernel more about the caller.
    fn socket(&self) -> Option<BorrowedFd<'_>> {
        None
    }
    /// Hands the caller its end of a stream, see [`Reply::Stream`]. The thread must hold no lock.
    ///
    /// Errors: nobody listens any more; the caller takes one message only.
    fn pass(&mut self, end: BorrowedFd<'_>) -> Result<(), ApiError>;
}

/// Answers calls; called from many threads.
pub trait Handler: Send + Sync {
    /// Answers a call of `peer`. Parts of a longer answer go to `out` before the last one is
    /// returned.
    fn handle(&self, peer: Peer, request: Request, out: &mut dyn Sink) -> Result<Reply, ApiError>;

    /// Called after an answer has been written, or could not be: what would end the process must
    /// wait for this, or the caller loses its answer.
    fn answered(&self) {}
}

/// Serves connections until the listener fails for good (it was shut down).
pub fn serve(listener: UnixListener, handler: Arc<dyn Handler>) {
    let room = Arc::new(Room::new(rustix::process::geteuid().as_raw()));
    let long = Arc::new(AtomicUsize::new(MAX_LONG));
    for connection in listener.incoming() {
        let stream = match connection {
            Ok(stream) => stream,
            // Out of descriptors or memory: others may give some back. A listener that was shut
            // down says EINVAL.
            Err(e) if e.raw_os_error() == Some(22) => return,
            Err(_) => {
                std::thread::sleep(Duration::from_millis(50));
                continue;
            }
        };
        // What goes wrong with a connection concerns nobody but its caller, who sees it himself.
        let Ok(peer) = peer_of(&stream) else { continue };
        let Ok(guard) = room.enter(crate::accounts::account(peer.uid), &stream) else {
            let _ = refuse(stream);
            continue;
        };
        let (handler, long) = (handler.clone(), long.clone());
        let spawned = std::thread::Builder::new()
            .name("control".into())
            .spawn(move || {
                let _ = connection_loop(stream, peer, &guard, long, &*handler);
            });
        drop(spawned);
    }
}

/// Tells a caller that there is no place for him. The message fits into the empty socket.
fn refuse(stream: UnixStream) -> io::Result<()> {
    stream.set_nonblocking(true)?;
    let error = ApiError::sentence(Kind::Again, "the daemon serves too many connections");
    Framed::new(stream, 0).write(&wire::encode_error(&error)?)
}

/// The connections there are.
struct Room {
    /// User of the daemon.
    own: u32,
    /// Counts the moments in which a connection began to wait for a call.
    clock: AtomicU64,
    list: Mutex<Vec<Arc<Seat>>>,
    /// How many requests of each stranger are carried out that do not last.
    at_work: Mutex<BTreeMap<u32, usize>>,
    /// One has ended.
    done: Condvar,
}

struct Seat {
    uid: u32,
    /// To hang up.
    stream: UnixStream,
    state: Mutex<SeatState>,
}

#[derive(Clone, Copy, PartialEq)]
enum SeatState {
    /// For a call, since then.
    Waiting(u64),
    Serving,
    /// Somebody else has got the place: what comes now is not carried out.
    Gone,
}

/// The seat of a connection, free again when dropped.
struct SeatGuard {
    room: Arc<Room>,
    seat: Arc<Seat>,
}

impl Room {
    fn new(own: u32) -> Room {
        Room {
            own,
            clock: AtomicU64::new(0),
            list: Mutex::default(),
            at_work: Mutex::default(),
            done: Condvar::new(),
        }
    }

    fn now(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::Relaxed)
    }

    fn is_stranger(&self, uid: u32) -> bool {
        uid != 0 && uid != self.own
    }

    /// A place for a connection, be it that of another one which asks nothing: of the user who has
    /// the most, the one that has been silent for longest.
    ///
    /// Errors: all are busy.
    fn enter(self: &Arc<Room>, uid: u32, stream: &UnixStream) -> io::Result<SeatGuard> {
        let seat = Arc::new(Seat {
            uid,
            stream: stream.try_clone()?,
            state: Mutex::new(SeatState::Waiting(self.now())),
        });
        let mut list = self.list.acquire();
        let count = |of: &dyn Fn(u32) -> bool| list.iter().filter(|s| of(s.uid)).count();
        let stranger = |u: u32| self.is_stranger(u);
        let whose: Option<Box<dyn Fn(u32) -> bool>> =
            if stranger(uid) && count(&|u| u == uid) >= MAX_OF_STRANGER {
                Some(Box::new(move |u| u == uid))
            } else if stranger(uid) && count(&stranger) >= MAX_OF_STRANGERS {
                Some(Box::new(stranger))
            } else if list.len() >= MAX_CONNECTIONS {
                Some(Box::new(|_| true))
            } else {
                None
            };
        if let Some(whose) = whose {
            let silent = |s: &&Arc<Seat>| match *s.state.acquire() {
                SeatState::Waiting(since) if whose(s.uid) => {
                    Some((count(&|u| u == s.uid), Reverse(since)))
                }
                _ => None,
            };
            let mut silents: Vec<_> = list.iter().filter_map(|s| Some((silent(&s)?, s))).collect();
            silents.sort_by_key(|(rank, _)| Reverse(*rank));
            // One that was silent may have got its call meanwhile.
            let gone = silents.into_iter().find(|(_, s)| s.hang_up());
            let gone = gone.ok_or(io::ErrorKind::QuotaExceeded)?.1.clone();
            list.retain(|s| !Arc::ptr_eq(s, &gone));
        }
        list.push(seat.clone());
        let room = self.clone();
        Ok(SeatGuard { room, seat })
    }
}

impl Seat {
    /// Ends a connection that waits for a call; whether it did.
    fn hang_up(&self) -> bool {
        let mut state = self.state.acquire();
        if !matches!(*state, SeatState::Waiting(_)) {
            return false;
        }
        *state = SeatState::Gone;
        // Its thread finds out by itself; one that was closed already does not mind.
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
        true
    }
}

impl SeatGuard {
    fn change(&self, to: SeatState) -> bool {
        let mut state = self.seat.state.acquire();
        if *state == SeatState::Gone {
            return false;
        }
        *state = to;
        true
    }

    /// A call is here; `false` if the place has been given to somebody else.
    fn serving(&self) -> bool {
        self.change(SeatState::Serving)
    }

    /// The call is answered.
    fn waiting(&self) -> bool {
        self.change(SeatState::Waiting(self.room.now()))
    }
}

/// A request that is carried out; the next one's turn comes when this is dropped.
struct Turn<'a>(Option<(&'a Room, u32)>);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let Some((room, uid)) = self.0 else { return };
        let mut at_work = room.at_work.acquire();
        if let Some(n) = at_work.get_mut(&uid) {
            *n -= 1;
            if *n == 0 {
                at_work.remove(&uid);
            }
        }
        room.done.notify_all();
    }
}

impl SeatGuard {
    /// Waits until this connection's request may be carried out: a stranger's waits for others of the same user.
    ///
    /// Errors: the caller has gone away (`gone`), or has waited for `most`.
    fn turn(&self, most: Duration, gone: &dyn Fn() -> bool) -> Result<Turn<'_>, ApiError> {
        let (room, uid) = (&*self.room, self.seat.uid);
        if !room.is_stranger(uid) {
            return Ok(Turn(None));
        }
        let began = Instant::now();
        let mut at_work = room.at_work.acquire();
        loop {
            let n = at_work.entry(uid).or_default();
            if *n < MAX_AT_WORK {
                *n += 1;
                return Ok(Turn(Some((room, uid))));
            }
            if gone() {
                return Err(ApiError::from(base::Error::from(Kind::Interrupted)));
            }
            if began.elapsed() >= most {
                return Err(ApiError::sentence(
                    Kind::Again,
                    format!("the daemon carries out {MAX_AT_WORK} requests of yours already; try again when they have ended"),
                ));
            }
            let look = Duration::from_millis(100);
            let woken = room.done.wait_timeout(at_work, look);
            at_work = woken.map_or_else(|e| e.into_inner().0, |(held, _)| held);
        }
    }
}

impl Drop for SeatGuard {
    fn drop(&mut self) {
        let mut list = self.room.list.acquire();
        list.retain(|s| !Arc::ptr_eq(s, &self.seat));
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

fn connection_loop(
    stream: UnixStream,
    peer: Peer,
    guard: &SeatGuard,
    long: Arc<AtomicUsize>,
    handler: &dyn Handler,
) -> io::Result<()> {
    // A caller that stops reading must not hold a thread (and what its request holds) for ever.
    stream.set_write_timeout(Some(STALLED))?;
    let limit = match guard.room.is_stranger(peer.uid) {
        true => wire::MAX_QUESTION,
        false => wire::MAX_CALL,
    };
    let mut framed = Framed::new(stream, limit);
    framed.distrust(PATIENCE, wire::MAX_QUESTION, long);
    loop {
        let frame = match framed.read() {
            Ok(Some(frame)) => frame,
            Ok(None) => return Ok(()),
            Err(e) => {
                let why = match e.kind() {
                    io::ErrorKind::FileTooLarge => (Kind::ArgTooBig, "the request is too long"),
                    io::ErrorKind::QuotaExceeded => {
                        (Kind::Again, "the daemon reads too many long requests")
                    }
                    io::ErrorKind::TimedOut => (Kind::Again, "the request did not come in full"),
                    _ => return Err(e),
                };
                // What was not read is in the way of nothing but this.
                return framed.write(&wire::encode_error(&ApiError::sentence(why.0, why.1))?);
            }
        };
        if !guard.serving() {
            return Ok(());
        }
        let asked = wire::decode_call(&frame).and_then(|call| {
            let turn = match call.request.may_last() {
                true => Turn(None),
                false => guard.turn(TURN, &|| has_gone(framed.stream()))?,
            };
            Ok((call, turn))
        });
        drop(frame);
        // The turn lasts until the answer is out of memory.
        let (result, _turn) = match asked {
            Err(e) => (Err(e), None),
            Ok((call, turn)) => {
                let mut out = Out {
                    framed: &mut framed,
                    more: call.more,
                };
                let result = catch_unwind(AssertUnwindSafe(|| {
                    handler.handle(peer, call.request, &mut out)
                }))
                .unwrap_or_else(|_| {
                    Err(ApiError::sentence(
                        Kind::Io,
                        "internal error: the daemon failed to handle the request; see its log",
                    ))
                });
                (result, Some(turn))
            }
        };
        let answer = match &result {
            Ok(reply) => wire::encode_reply(reply, false)?,
            Err(error) => wire::encode_error(error)?,
        };
        base::sync::assert_none_held("answers its caller");
        let written = framed.write(&answer);
        handler.answered();
        written?;
        if !guard.waiting() {
            return Ok(());
        }
    }
}

struct Out<'a> {
    framed: &'a mut Framed,
    more: bool,
}

impl Out<'_> {
    fn takes_parts(&self) -> Result<(), ApiError> {
        match self.more {
            true => Ok(()),
            false => Err(ApiError::sentence(
                Kind::Invalid,
                "the answer takes several messages: call with \"more\"",
            )),
        }
    }
}

impl Sink for Out<'_> {
    fn send(&mut self, part: Reply) -> Result<(), ApiError> {
        base::sync::assert_none_held("sends a message to its caller");
        if matches!(part, Reply::Progress(_)) {
            if self.more {
                self.framed.offer(&wire::encode_reply(&part, true)?)?;
            }
            return Ok(());
        }
        self.takes_parts()?;
        let frame = wire::encode_reply(&part, true)?;
        self.framed.write(&frame).map_err(ApiError::from)
    }

    fn pass(&mut self, end: BorrowedFd<'_>) -> Result<(), ApiError> {
        base::sync::assert_none_held("hands a stream to its caller");
        self.takes_parts()?;
        let frame = wire::encode_reply(&Reply::Stream, true)?;
        let sent = self.framed.write_with(&frame, Some(end));
        sent.map_err(ApiError::from)
    }

    fn cancelled(&self) -> bool {
        has_gone(self.framed.stream())
    }

    fn watch(&self) -> Box<dyn Fn() -> bool> {
        match self.framed.stream().try_clone() {
            Ok(stream) => Box::new(move || has_gone(&stream)),
            Err(_) => Box::new(|| false),
        }
    }

    fn socket(&self) -> Option<BorrowedFd<'_>> {
        Some(self.framed.stream().as_fd())
    }
}

/// Whether the other end has been closed.
fn has_gone(stream: &UnixStream) -> bool {
    use rustix::event::{poll, PollFd, PollFlags, Timespec};
    let mut fds = [PollFd::new(stream, PollFlags::RDHUP)];
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    matches!(poll(&mut fds, Some(&now)), Ok(n) if n > 0)
        && fds[0]
            .revents()
            .intersects(PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A connection of that user, with its place.
    fn come(room: &Arc<Room>, uid: u32) -> io::Result<(SeatGuard, UnixStream)> {
        let (here, there) = UnixStream::pair()?;
        Ok((room.enter(uid, &here)?, there))
    }

    fn is_gone(guard: &SeatGuard) -> bool {
        *guard.seat.state.acquire() == SeatState::Gone
    }

    #[test]
    fn the_silent_make_room() {
        let room = Arc::new(Room::new(7));
        let mut own: Vec<_> = (0..200).map(|_| come(&room, 7).unwrap()).collect();
        let roots: Vec<_> = (0..56).map(|_| come(&room, 0).unwrap()).collect();
        // Of the user with most of them; the one that asks something stays.
        assert!(own[0].0.serving());
        let next = come(&room, 0).unwrap();
        assert!(is_gone(&own[1].0) && !is_gone(&own[0].0) && !is_gone(&own[2].0));
        assert!(!own[1].0.serving(), "carried out for nobody");
        assert_eq!(room.list.acquire().len(), MAX_CONNECTIONS);
        // The one that has been silent for longest.
        assert!(own[2].0.serving() && own[2].0.waiting());
        let _one = come(&room, 7).unwrap();
        assert!(is_gone(&own[3].0) && !is_gone(&own[2].0));
        // When all are busy there is no place, until one is given back.
        let all = own.iter().chain(&roots).chain([&next, &_one]);
        let busy = all.filter(|(guard, _)| guard.serving()).count();
        assert_eq!(busy, MAX_CONNECTIONS);
        assert!(come(&room, 0).is_err());
        own.pop();
        come(&room, 0).unwrap();
    }

    #[test]
    fn requests_of_a_stranger_take_turns() {
        let room = Arc::new(Room::new(0));
        let here = || false;
        let all: Vec<_> = (0..=MAX_AT_WORK)
            .map(|_| come(&room, 1000).unwrap().0)
            .collect();
        let mut turns: Vec<Turn> = all[1..]
            .iter()
            .map(|g| g.turn(Duration::ZERO, &here).ok().unwrap())
            .collect();
        let refused = |most, gone: &dyn Fn() -> bool| all[0].turn(most, gone).err().unwrap().code;
        assert_eq!(refused(Duration::ZERO, &here), Kind::Again.errno());
        assert_eq!(
            refused(Duration::from_secs(600), &|| true),
            Kind::Interrupted.errno()
        );
        // Others do not wait for this user, and the owner for nobody.
        let (other, owner) = (come(&room, 1001).unwrap().0, come(&room, 0).unwrap().0);
        let _other = other.turn(Duration::ZERO, &here).ok().unwrap();
        let owners: Vec<Turn> = (0..20)
            .map(|_| owner.turn(Duration::ZERO, &here).ok().unwrap())
            .collect();
        std::thread::scope(|s| {
            let waits = s.spawn(|| all[0].turn(Duration::from_secs(600), &here).is_ok());
            turns.pop();
            assert!(waits.join().unwrap());
        });
        drop((turns, owners, _other));
        assert!(room.at_work.acquire().is_empty());
    }

    #[test]
    fn strangers_leave_room() {
        let room = Arc::new(Room::new(0));
        let mut guards = Vec::new();
        for _ in 0..40 {
            let guard = come(&room, 1000);
            // They ask, and never take the answer.
            if let Ok(p) = guard {
                assert!(p.0.serving());
                guards.push(p);
            }
        }
        assert_eq!(guards.len(), MAX_OF_STRANGER);
        for uid in 1001..1100 {
            for _ in 0..3 {
                guards.extend(come(&room, uid));
            }
        }
        assert_eq!(room.list.acquire().len(), MAX_OF_STRANGERS);
        // The others pushed each other out, not the owner, and not who is served.
        let owners: Vec<_> = (0..MAX_CONNECTIONS - MAX_OF_STRANGERS)
            .map(|_| come(&room, 0).unwrap())
            .collect();
        assert!(!owners.iter().any(|(guard, _)| is_gone(guard)));
        assert!(!guards[..MAX_OF_STRANGER].iter().any(|(p, _)| is_gone(p)));
        drop((owners, guards));
        assert_eq!(room.list.acquire().len(), 0);
    }
}
