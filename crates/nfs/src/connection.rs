//! A connection of a client: records in, records out (RFC 5531 §11).
//!
//! One thread reads calls, and up to [`THREADS`] carry them out. A client that vanishes is found out by the kernel (keep-alive)
//! or when it does not take its replies; one that stops within a record is not waited for.
//!
//! Memory for one connection: a call of [`MOST`] bytes and its reply for each thread, and as many that wait. The memory of a call
//! grows as its bytes come. A client to whom nothing is shared has [`MOST_OF_STRANGER`] bytes for a call.

use crate::call::Client;
use crate::data;
use crate::server::Server;
use base::sync::MutexExt;
use base::{bail, Result};
use std::collections::VecDeque;
use std::io::{BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

/// Threads that carry calls of one connection out, at most.
pub const THREADS: usize = 4;
/// Calls that wait for a thread.
const WAITING: usize = 4;
/// Most bytes of a call.
pub const MOST: usize = data::MOST as usize + (8 << 10);
/// Most bytes of a call of a client that may have nothing.
pub const MOST_OF_STRANGER: usize = 4 << 10;
/// How long the rest of a record may take, and a reply.
const PATIENCE: Duration = Duration::from_secs(30);
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

/// A reply as it is sent.
fn framed(reply: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(4 + reply.len());
    out.extend_from_slice(&(reply.len() as u32 | LAST).to_be_bytes());
    out.extend_from_slice(reply);
    out
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
            match done {
                Ok(None) => {}
                Ok(Some(reply)) => {
                    let framed = framed(&reply);
                    let _alone = self.sending.acquire();
                    if (&mut &*self.stream).write_all(&framed).is_err() {
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

/// Serves a connection until the client leaves, or sends what is no call.
///
/// # Errors
/// Those of the connection.
pub fn serve(server: &Arc<Server>, stream: &TcpStream) -> Result<()> {
    let client = Client::new(stream.peer_addr()?);
    stream.set_nodelay(true)?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let most = match server.knows(&client) {
        true => MOST,
        false => MOST_OF_STRANGER,
    };
    let shared = Shared {
        server,
        client: &client,
        stream,
        sending: Mutex::default(),
        queue: Mutex::default(),
        turn: Condvar::new(),
    };
    let mut from = BufReader::with_capacity(PIECE, stream);
    std::thread::scope(|s| {
        let mut read = || -> Result<()> {
            loop {
                stream.set_read_timeout(None)?;
                let begun = || drop(stream.set_read_timeout(Some(PATIENCE)));
                let Some(call) = read_record(&mut from, most, &begun)? else {
                    return Ok(());
                };
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
