//! A connection of a client: records in, records out (RFC 5531 §11).
//!
//! One thread reads calls, and up to [`THREADS`] carry them out. A client that vanishes is found out by the kernel (keep-alive)
//! or when it does not take its replies. A record has `PATIENCE` as a whole from its first byte on, and so has a reply, however
//! small the pieces are in which it comes or is taken: a client holds a thread for no longer. A client to whom nothing is shared has
//! [`SILENCE`] between its calls, too. How long each has been silent is in [`Activity`], for whoever counts connections.
//!
//! Memory for one connection: a call of [`MOST`] bytes and its reply for each thread, and as many that wait. The memory of a call
//! grows as its bytes come. A client to whom nothing is shared has [`MOST_OF_STRANGER`] bytes for a call.

use crate::call::Client;
use crate::data;
use crate::server::Server;
use base::sync::MutexExt;
use base::{bail, Result};
use std::cell::Cell;
use std::collections::VecDeque;
use std::io::{self, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

/// Threads that carry calls of one connection out, at most.
pub const THREADS: usize = 4;
/// Calls that wait for a thread.
const WAITING: usize = 4;
/// Most bytes of a call.
pub const MOST: usize = data::MOST as usize + (8 << 10);
/// Most bytes of a call of a client that may have nothing.
pub const MOST_OF_STRANGER: usize = 4 << 10;
/// How long the rest of a record may take from its first byte on, and a reply.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long a client that may have nothing keeps a connection without a call.
pub const SILENCE: Duration = Duration::from_secs(10);
/// Bytes that are read at a time.
const PIECE: usize = 64 << 10;
/// The last fragment of a record.
const LAST: u32 = 1 << 31;

/// Reads a record of at most `most` bytes. None: there is no further one. `begun` is called when its first bytes are there.
///
/// # Errors
/// It is longer; or it ends within.
pub fn read_record(from: &mut dyn Read, most: usize, begun: &dyn Fn()) -> Result<Option<Vec<u8>>> {
    let mut record = Vec::new();
    let mut first = true;
    loop {
        let mut head = [0; 4];
        if first {
            if from.read(&mut head[..1])? == 0 {
                return Ok(None);
            }
            begun();
            from.read_exact(&mut head[1..])?;
        } else {
            from.read_exact(&mut head)?;
        }
        let head = u32::from_be_bytes(head);
        let mut left = (head & !LAST) as usize;
        if left > most - record.len() {
            bail!(Invalid, "a call of more than {most} bytes");
        }
        // Fragments without bytes would never end.
        if left == 0 && head & LAST == 0 {
            bail!(Invalid, "a fragment without bytes");
        }
        while left > 0 {
            let (at, n) = (record.len(), left.min(PIECE));
            record.resize(at + n, 0);
            from.read_exact(&mut record[at..])?;
            left -= n;
        }
        if head & LAST != 0 {
            return Ok(Some(record));
        }
        first = false;
    }
}

/// What is left until a moment.
///
/// # Errors
/// Nothing is.
fn left(until: Instant) -> io::Result<Duration> {
    match until.saturating_duration_since(Instant::now()) {
        Duration::ZERO => Err(io::ErrorKind::TimedOut.into()),
        left => Ok(left),
    }
}

/// A connection that is read until a moment, if there is one.
struct Timed<'a> {
    stream: &'a TcpStream,
    until: &'a Cell<Option<Instant>>,
}

impl Read for Timed<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let left = self.until.get().map(left).transpose()?;
        self.stream.set_read_timeout(left)?;
        (&mut &*self.stream).read(into)
    }
}

/// Sends all of it until a moment.
fn send(mut stream: &TcpStream, mut bytes: &[u8], until: Instant) -> io::Result<()> {
    while !bytes.is_empty() {
        stream.set_write_timeout(Some(left(until)?))?;
        match stream.write(bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => bytes = &bytes[n..],
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// A reply as it is sent.
fn framed(reply: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(4 + reply.len());
    out.extend_from_slice(&(reply.len() as u32 | LAST).to_be_bytes());
    out.extend_from_slice(reply);
    out
}

/// What is known of a connection, from its beginning on.
pub struct Activity {
    begun: Instant,
    /// Something is shared with its client.
    known: AtomicBool,
    /// When the last call came or was answered: milliseconds since it began.
    last: AtomicU64,
}

impl Default for Activity {
    fn default() -> Activity {
        Activity {
            begun: Instant::now(),
            known: AtomicBool::new(false),
            last: AtomicU64::new(0),
        }
    }
}

impl Activity {
    /// Whether something is shared with its client, as far as that has been found out.
    pub fn is_known(&self) -> bool {
        self.known.load(Ordering::Relaxed)
    }

    /// When a call came, or was answered, for the last time.
    pub fn last(&self) -> Instant {
        self.begun + Duration::from_millis(self.last.load(Ordering::Relaxed))
    }

    fn is_active(&self) {
        let passed = self.begun.elapsed().as_millis();
        self.last
            .store(u64::try_from(passed).unwrap_or(u64::MAX), Ordering::Relaxed);
    }
}

#[derive(Default)]
struct Queue {
    calls: VecDeque<Vec<u8>>,
    /// Threads that wait for a call.
    idle: usize,
    threads: usize,
    over: bool,
}

/// What the threads of a connection share.
struct Shared<'a> {
    server: &'a Server,
    client: &'a Client,
    stream: &'a TcpStream,
    activity: &'a Activity,
    /// Held while a reply is sent.
    sending: Mutex<()>,
    queue: Mutex<Queue>,
    turn: Condvar,
}

impl Shared<'_> {
    fn hang_up(&self) {
        self.client.gone.store(true, Ordering::SeqCst);
        self.queue.acquire().over = true;
        self.turn.notify_all();
        // It may be gone already.
        let _ = self.stream.shutdown(Shutdown::Both);
    }

    /// The next call; none when there will be none.
    fn next(&self) -> Option<Vec<u8>> {
        use base::sync::CondvarExt;
        let mut q = self.queue.acquire();
        loop {
            if q.over {
                return None;
            }
            if let Some(call) = q.calls.pop_front() {
                self.turn.notify_all();
                return Some(call);
            }
            q.idle += 1;
            q = self.turn.wait_acquire(q);
            q.idle -= 1;
        }
    }

    /// Queues a call, when there is room; whether another thread is wanted for it.
    fn queue(&self, call: Vec<u8>) -> bool {
        use base::sync::CondvarExt;
        let mut q = self.queue.acquire();
        while q.calls.len() >= WAITING && !q.over {
            q = self.turn.wait_acquire(q);
        }
        q.calls.push_back(call);
        let more = q.idle < q.calls.len() && q.threads < THREADS;
        q.threads += usize::from(more);
        drop(q);
        self.turn.notify_all();
        more
    }

    /// Carries calls out.
    fn work(&self) {
        while let Some(call) = self.next() {
            let done = self.server.handle(self.client, &call);
            if self.server.is_stopping() {
                return self.hang_up();
            }
            self.activity.is_active();
            match done {
                Ok(None) => {}
                Ok(Some(reply)) => {
                    let framed = framed(&reply);
                    let _alone = self.sending.acquire();
                    let until = Instant::now() + PATIENCE;
                    if send(self.stream, &framed, until).is_err() {
                        self.hang_up();
                    }
                }
                Err(_) => {
                    tracing::debug!("{}: what came is no call", self.client.address);
                    self.hang_up();
                }
            }
        }
    }
}

/// Serves a connection until the client leaves, sends what is no call, or is a stranger that is silent.
///
/// # Errors
/// Those of the connection.
pub fn serve(server: &Arc<Server>, stream: &TcpStream, activity: &Activity) -> Result<()> {
    let client = Client::new(stream.peer_addr()?);
    stream.set_nodelay(true)?;
    let known = server.knows(&client);
    activity.known.store(known, Ordering::Relaxed);
    let (most, silence) = match known {
        true => (MOST, None),
        false => (MOST_OF_STRANGER, Some(SILENCE)),
    };
    let shared = Shared {
        server,
        client: &client,
        stream,
        activity,
        sending: Mutex::default(),
        queue: Mutex::default(),
        turn: Condvar::new(),
    };
    let until = Cell::new(None);
    let timed = Timed {
        stream,
        until: &until,
    };
    let mut from = BufReader::with_capacity(PIECE, timed);
    std::thread::scope(|s| {
        let mut read = || -> Result<()> {
            loop {
                until.set(silence.map(|s| Instant::now() + s));
                let begun = || until.set(Some(Instant::now() + PATIENCE));
                let Some(call) = read_record(&mut from, most, &begun)? else {
                    return Ok(());
                };
                activity.is_active();
                if shared.queue(call) {
                    let thread = std::thread::Builder::new().name("nfs".into());
                    thread.spawn_scoped(s, || shared.work())?;
                }
            }
        };
        let done = read();
        shared.hang_up();
        done
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::Kind;

    fn read(bytes: &[u8]) -> Result<Option<Vec<u8>>> {
        read_record(&mut &*bytes, 8, &|| ())
    }

    #[test]
    fn records_are_put_together() {
        assert_eq!(read(&[]).unwrap(), None);
        assert_eq!(read(&framed(b"abc")).unwrap().unwrap(), b"abc");
        let two = [&[0, 0, 0, 2][..], b"ab", &[0x80, 0, 0, 1], b"c"].concat();
        assert_eq!(read(&two).unwrap().unwrap(), b"abc");
        assert_eq!(read(&framed(b"")).unwrap().unwrap(), b"");
    }

    /// Each byte comes in time, the record does not.
    #[test]
    fn a_record_in_small_pieces_has_no_more_time_than_another() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (stream, _) = listener.accept().unwrap();
        let over = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|s| {
            s.spawn(|| {
                for byte in framed(&[7; 1000]) {
                    if over.load(Ordering::SeqCst) || (&client).write_all(&[byte]).is_err() {
                        return;
                    }
                    std::thread::sleep(Duration::from_millis(10));
                }
            });
            let until = Cell::new(None);
            let mut from = Timed {
                stream: &stream,
                until: &until,
            };
            let begun = || until.set(Some(Instant::now() + Duration::from_millis(300)));
            let read = read_record(&mut from, MOST, &begun);
            over.store(true, Ordering::SeqCst);
            assert!(read.is_err(), "the record was waited for");
        });
        // One that takes nothing of a reply.
        let until = Instant::now() + Duration::from_millis(300);
        assert!(send(&stream, &vec![0; 64 << 20], until).is_err());
    }

    #[test]
    fn bad_records_are_refused() {
        let kind = |bytes: &[u8]| read(bytes).unwrap_err().kind;
        assert_eq!(kind(&framed(b"123456789")), Kind::Invalid);
        assert_eq!(kind(&[0, 0, 0, 0, 0, 0, 0, 0]), Kind::Invalid);
        let twice = [&[0, 0, 0, 6][..], b"123456", &[0x80, 0, 0, 6], b"123456"].concat();
        assert_eq!(kind(&twice), Kind::Invalid);
        assert!(read(&framed(b"abc")[..5]).is_err());
        assert!(read(&[0x80, 0]).is_err());
    }
}
