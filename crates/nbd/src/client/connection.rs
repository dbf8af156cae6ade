//! A connection: requests of many threads, replies in any order.

use super::address::{Address, Place};
use super::handshake;
use super::info::Info;
use crate::numbers::{self as n, command, error};
use crate::tls::ClientTls;
use base::sync::{CondvarExt, MutexExt};
use base::{bail, Error, Kind, Result};
use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Bytes that are taken from the stream at a time.
const BUFFER: usize = 64 << 10;
/// How long it is until a server whose queue is full is asked again.
const FULL_QUEUE: Duration = Duration::from_millis(50);

/// Why a request was not carried out.
#[derive(Clone, Debug)]
pub enum Failure {
    /// The connection is gone, so it is not known what became of the request; the text says why.
    Lost(String),
    /// The server says so.
    Refused(Error),
}

/// The two directions of a connection, and what can be done to both from outside.
pub struct Streams {
    /// What the server sends.
    pub from: Box<dyn Read + Send>,
    /// What it is sent.
    pub to: Box<dyn Write + Send>,
    /// Ends both, for threads that wait for them, too.
    pub hang_up: Box<dyn Fn() + Send + Sync>,
    /// How long a read of `from` waits for a byte from now on; `None`: without end.
    pub set_limit: Box<dyn Fn(Option<Duration>) -> io::Result<()> + Send + Sync>,
}

impl Streams {
    /// Connects. Nobody waits longer than `handshake` for each address of the host, nor for a server that does not accept; longer than `patience`
    /// for bytes to be taken. Looking up the name of a host takes as long as the system's resolver takes.
    ///
    /// # Errors
    /// Those of connecting, with the place.
    pub fn connect(address: &Address, handshake: Duration, patience: Duration) -> Result<Streams> {
        match &address.place {
            Place::Tcp { host, port } => {
                let at = |e: io::Error| Error::from(e).context(format!("{host}:{port}"));
                let mut last = io::Error::from(io::ErrorKind::NotFound);
                for place in (host.as_str(), *port).to_socket_addrs().map_err(at)? {
                    match TcpStream::connect_timeout(&place, handshake) {
                        Ok(stream) => {
                            stream.set_nodelay(true).map_err(at)?;
                            return Streams::over(stream.into(), patience).map_err(at);
                        }
                        Err(e) => last = e,
                    }
                }
                Err(at(last))
            }
            Place::Unix { socket } => {
                let at = |e: io::Error| Error::from(e).context(socket.clone());
                let stream = connect_unix(socket, handshake).map_err(at)?;
                Streams::over(stream.into(), patience).map_err(at)
            }
        }
    }

    /// A stream socket of either family.
    fn over(socket: OwnedFd, patience: Duration) -> io::Result<Streams> {
        // What the standard library does with a stream it does whatever the family is.
        let stream = UnixStream::from(socket);
        stream.set_write_timeout(Some(patience))?;
        let (to, end, limit) = (
            stream.try_clone()?,
            stream.try_clone()?,
            stream.try_clone()?,
        );
        Ok(Streams {
            from: Box::new(stream),
            to: Box::new(to),
            hang_up: Box::new(move || drop(end.shutdown(Shutdown::Both))),
            set_limit: Box::new(move |most| limit.set_read_timeout(most)),
        })
    }
}

/// Connects. A server whose queue is full is asked again until `limit` is over.
fn connect_unix(path: &str, limit: Duration) -> io::Result<UnixStream> {
    use rustix::net::{
        connect, socket_with, AddressFamily, SocketAddrUnix, SocketFlags, SocketType,
    };
    let end = Instant::now() + limit;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    let address = SocketAddrUnix::new(path)?;
    loop {
        match connect(&socket, &address) {
            Ok(()) => break,
            Err(rustix::io::Errno::AGAIN) if Instant::now() < end => {
                std::thread::sleep(FULL_QUEUE);
            }
            Err(rustix::io::Errno::AGAIN) => {
                return Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    "the server accepts nobody",
                ))
            }
            Err(e) => return Err(e.into()),
        }
    }
    let stream = UnixStream::from(socket);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

/// Until when something must have come.
struct Limit {
    set: Box<dyn Fn(Option<Duration>) -> io::Result<()> + Send + Sync>,
    /// None: without a limit.
    end: Mutex<Option<Instant>>,
}

impl Limit {
    fn lift(&self) -> io::Result<()> {
        *self.end.acquire() = None;
        (self.set)(None)
    }
}

/// What the server sends.
struct Limited {
    from: Box<dyn Read + Send>,
    limit: Arc<Limit>,
}

impl Read for Limited {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let end = *self.limit.end.acquire();
        if let Some(end) = end {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            (self.limit.set)(Some(left))?;
        }
        self.from.read(buf)
    }
}

/// An open export. Offsets and lengths are bytes, in multiples of [`Info::least`]; no read or write is longer than [`Info::most`].
pub struct Connection {
    info: Info,
    shared: Arc<Shared>,
    to: Mutex<Box<dyn Write + Send>>,
    taker: Option<JoinHandle<()>>,
    /// How long a request waits for its reply.
    patience: Duration,
}

struct Shared {
    state: Mutex<State>,
    answered: Condvar,
    hang_up: Box<dyn Fn() + Send + Sync>,
}

#[derive(Default)]
struct State {
    next: u64,
    waiting: HashMap<u64, Asked>,
    /// Why the connection is gone.
    lost: Option<String>,
}

enum Asked {
    /// The reply comes with so many bytes of data.
    Open(usize),
    Answered(std::result::Result<Vec<u8>, u32>),
}

impl Shared {
    fn lose(&self, why: String) {
        self.state.acquire().lost.get_or_insert(why);
        (self.hang_up)();
        self.answered.notify_all();
    }
}

impl Connection {
    /// Connects and chooses the export. `handshake`: how long connecting may take, and again the negotiation as a whole. `patience`: how long a
    /// request waits for its reply later.
    ///
    /// # Errors
    /// Those of connecting and of the negotiation, and what the server refuses.
    pub fn open(address: &Address, handshake: Duration, patience: Duration) -> Result<Connection> {
        let streams = Streams::connect(address, handshake, patience)?;
        Connection::over(streams, address, handshake, patience)
    }

    /// The same over streams that are there, to the server of the address.
    ///
    /// # Errors
    /// Those of the negotiation, and what the server refuses.
    pub fn over(
        streams: Streams,
        address: &Address,
        handshake: Duration,
        patience: Duration,
    ) -> Result<Connection> {
        let Streams {
            from,
            mut to,
            hang_up,
            set_limit,
        } = streams;
        let end = Mutex::new(Some(Instant::now() + handshake));
        let set = set_limit;
        let limit = Arc::new(Limit { set, end });
        let from = Limited {
            from,
            limit: limit.clone(),
        };
        let mut from = BufReader::with_capacity(BUFFER, from);
        let greeting = handshake::greet(&mut from, &mut to)?;
        let export = address.export.as_str();
        let (info, mut from, to): (_, Box<dyn BufRead + Send>, Box<dyn Write + Send>) =
            match &address.tls {
                None => {
                    let info = handshake::choose(&greeting, &mut from, &mut to, export)?;
                    (info, Box::new(from), to)
                }
                Some(secure) => {
                    let tls = ClientTls::new(secure.certificates.as_deref().map(Path::new))?;
                    handshake::start_tls(&mut from, &mut to)?;
                    let (from, mut to) = tls.connect(address.certified_host(), from, to)?;
                    let mut from = BufReader::with_capacity(BUFFER, from);
                    let info = handshake::choose(&greeting, &mut from, &mut to, export)?;
                    (info, Box::new(from), Box::new(to))
                }
            };
        limit.lift()?;
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            answered: Condvar::new(),
            hang_up,
        });
        let theirs = shared.clone();
        let taker = move || {
            let why = match take_replies(&mut *from, &theirs) {
                Ok(()) => "the server has ended the connection".to_string(),
                Err(e) => e.to_string(),
            };
            theirs.lose(why);
        };
        let taker = std::thread::Builder::new()
            .name("nbd-replies".into())
            .spawn(taker)?;
        Ok(Connection {
            info,
            shared,
            to: Mutex::new(to),
            taker: Some(taker),
            patience,
        })
    }

    /// What the server says of the export.
    pub fn info(&self) -> Info {
        self.info
    }

    /// Whether it is gone.
    pub fn is_lost(&self) -> bool {
        self.shared.state.acquire().lost.is_some()
    }

    /// Reads `len` bytes.
    ///
    /// # Errors
    /// See [`Failure`].
    pub fn read(&self, offset: u64, len: usize) -> std::result::Result<Vec<u8>, Failure> {
        self.ask(command::READ, offset, len, &[], len)
    }

    /// Writes; on stable storage after the next flush.
    ///
    /// # Errors
    /// See [`Failure`].
    pub fn write(&self, offset: u64, data: &[u8]) -> std::result::Result<(), Failure> {
        self.ask(command::WRITE, offset, data.len(), data, 0)
            .map(drop)
    }

    /// Everything whose reply came before is on stable storage afterwards. Nothing is asked of a server that has no flushes.
    ///
    /// # Errors
    /// See [`Failure`].
    pub fn flush(&self) -> std::result::Result<(), Failure> {
        match self.info.flushes {
            true => self.ask(command::FLUSH, 0, 0, &[], 0).map(drop),
            false => Ok(()),
        }
    }

    /// The bytes hold nothing of value.
    ///
    /// # Errors
    /// See [`Failure`].
    pub fn trim(&self, offset: u64, len: u32) -> std::result::Result<(), Failure> {
        self.ask(command::TRIM, offset, len as usize, &[], 0)
            .map(drop)
    }

    fn ask(
        &self,
        command: u16,
        offset: u64,
        len: usize,
        data: &[u8],
        back: usize,
    ) -> std::result::Result<Vec<u8>, Failure> {
        let cookie = {
            let mut state = self.shared.state.acquire();
            if let Some(why) = &state.lost {
                return Err(Failure::Lost(why.clone()));
            }
            let cookie = state.next;
            state.next += 1;
            state.waiting.insert(cookie, Asked::Open(back));
            cookie
        };
        let mut head = Vec::with_capacity(28);
        head.extend(n::REQUEST.to_be_bytes());
        head.extend(0u16.to_be_bytes());
        head.extend(command.to_be_bytes());
        head.extend(cookie.to_be_bytes());
        head.extend(offset.to_be_bytes());
        head.extend((len as u32).to_be_bytes());
        // Behind a request that was sent in part nothing may follow: the server would take it for the rest. So whether the connection is
        // gone is asked, and said, while nobody else sends.
        let mut to = self.to.acquire();
        if !self.is_lost() {
            let sent = to
                .write_all(&head)
                .and_then(|()| to.write_all(data))
                .and_then(|()| to.flush());
            if let Err(e) = sent {
                self.shared
                    .lose(format!("cannot send: {}", base::io_text(&e)));
            }
        }
        drop(to);
        self.wait_for(cookie)
    }

    fn wait_for(&self, cookie: u64) -> std::result::Result<Vec<u8>, Failure> {
        let end = Instant::now() + self.patience;
        let mut state = self.shared.state.acquire();
        loop {
            if matches!(state.waiting.get(&cookie), Some(Asked::Answered(_)) | None) {
                let Some(Asked::Answered(reply)) = state.waiting.remove(&cookie) else {
                    return Err(Failure::Lost("nobody waits for this reply".into()));
                };
                return reply.map_err(refused);
            }
            if let Some(why) = state.lost.clone() {
                state.waiting.remove(&cookie);
                return Err(Failure::Lost(why));
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                state.waiting.remove(&cookie);
                drop(state);
                let why = format!("no reply for {} seconds", self.patience.as_secs());
                self.shared.lose(why.clone());
                return Err(Failure::Lost(why));
            }
            state = self.shared.answered.wait_acquire_timeout(state, left);
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if !self.is_lost() {
            let mut bye = Vec::with_capacity(28);
            bye.extend(n::REQUEST.to_be_bytes());
            bye.extend([0; 2]);
            bye.extend(command::DISC.to_be_bytes());
            bye.extend([0; 20]);
            let _ = n::send(&mut *self.to.acquire(), &bye);
        }
        self.shared.lose("it was ended".into());
        if let Some(taker) = self.taker.take() {
            let _ = taker.join();
        }
    }
}

/// Hands replies to those who wait for them, until the stream ends.
fn take_replies(mut from: &mut dyn BufRead, shared: &Shared) -> Result<()> {
    while !from.fill_buf()?.is_empty() {
        if n::u32_from(&mut from)? != n::REPLY_SIMPLE {
            bail!(Invalid, "the server does not answer in simple replies");
        }
        let error = n::u32_from(&mut from)?;
        let cookie = n::u64_from(&mut from)?;
        let len = match shared.state.acquire().waiting.get(&cookie) {
            Some(Asked::Open(len)) => *len,
            _ => bail!(Invalid, "the server answers what nobody has asked"),
        };
        let reply = match error {
            0 => {
                let mut data = vec![0; len];
                from.read_exact(&mut data)?;
                Ok(data)
            }
            e => Err(e),
        };
        let mut state = shared.state.acquire();
        if let Some(asked) = state.waiting.get_mut(&cookie) {
            *asked = Asked::Answered(reply);
        }
        drop(state);
        shared.answered.notify_all();
    }
    Ok(())
}

/// An error of the server. One that goes away is a lost connection.
fn refused(number: u32) -> Failure {
    let (kind, what) = match number {
        error::ESHUTDOWN => return Failure::Lost("the server is shutting down".into()),
        error::EPERM => (Kind::ReadOnly, "not permitted".to_string()),
        error::EIO => (Kind::Io, "input/output error".into()),
        error::ENOMEM => (Kind::Io, "no memory left".into()),
        error::EINVAL => (Kind::Io, "invalid request".into()),
        error::ENOSPC => (Kind::Io, "no space left".into()),
        n => (Kind::Io, format!("error {n}")),
    };
    Failure::Refused(Error::new(kind, format!("the server: {what}")))
}
