//! Framing: JSON objects ended by NUL bytes. Descriptors travel from the daemon to the client only.
//!
//! A server reads without room for ancillary data, so the kernel drops what a client attaches. The process that holds a
//! descriptor last closes its file, and that may wait for whoever serves the file, unkillably.

use crate::INTERFACE;
use api::{ApiError, Reply, Request};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::Value as Json;
use std::borrow::Cow;
use std::io::{self, IoSlice, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};
use zeroize::Zeroizing;

/// Longest call a server reads, bytes: a pool layout of many thousand devices fits.
pub const MAX_CALL: usize = 4 << 20;
/// Longest answer a client reads, bytes; long lists come in chunks.
pub const MAX_REPLY: usize = 256 << 20;
/// Longest call of somebody whose daemon it is not, bytes: questions are short.
pub const MAX_QUESTION: usize = 64 << 10;
/// Most file descriptors that may come with one answer.
const MAX_FDS: usize = 1;

/// A call as it is sent.
#[derive(Debug, Serialize)]
struct CallMessage {
    method: String,
    parameters: Json,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    more: bool,
}

/// A call as it comes. The parameters stay text until it is known what they should be: made into
/// values of any kind they take twenty times the room.
#[derive(Debug, Deserialize)]
struct CallHead<'a> {
    #[serde(borrow)]
    method: Cow<'a, str>,
    #[serde(borrow, default)]
    parameters: Option<&'a RawValue>,
    #[serde(default)]
    more: bool,
}

/// An answer as it travels.
#[derive(Debug, Default, Serialize, Deserialize)]
struct ReplyMessage {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    #[serde(default)]
    parameters: Json,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    continues: bool,
}

/// A call, decoded.
#[derive(Debug)]
pub struct Call {
    /// What is asked.
    pub request: Request,
    /// The caller takes several messages as the answer.
    pub more: bool,
}

fn invalid(what: impl std::fmt::Display) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_string())
}

/// The frame of a call, without its NUL.
pub fn encode_call(request: &Request, more: bool) -> io::Result<Vec<u8>> {
    let mut json = serde_json::to_value(request).map_err(invalid)?;
    let method = json["method"].as_str().unwrap_or_default();
    let message = CallMessage {
        method: format!("{INTERFACE}.{method}"),
        parameters: json["parameters"].take(),
        more,
    };
    serde_json::to_vec(&message).map_err(invalid)
}

/// Decodes a call; the error says what is wrong with it, for the caller to read.
pub fn decode_call(frame: &[u8]) -> Result<Call, ApiError> {
    let bad = |what: String| ApiError::sentence(base::Kind::Invalid, what);
    let message: CallHead =
        serde_json::from_slice(frame).map_err(|e| bad(format!("malformed request: {e}")))?;
    let method = message
        .method
        .strip_prefix(INTERFACE)
        .and_then(|m| m.strip_prefix('.'))
        .ok_or_else(|| {
            ApiError::sentence(
                base::Kind::Unsupported,
                format!(
                    "the daemon speaks {INTERFACE}, the request is for '{}'",
                    shortened(&message.method)
                ),
            )
            .hint("Command and daemon are of different versions: restart the daemon.")
        })?;
    let what = |e| {
        bad(format!(
            "request '{}' is not understood: {e}",
            shortened(method)
        ))
    };
    // The method first, so that the parameters are read as what they are.
    let parameters = message.parameters.map_or("{}", RawValue::get);
    let name = serde_json::to_string(method).map_err(what)?;
    let body = Zeroizing::new(format!("{{\"method\":{name},\"parameters\":{parameters}}}"));
    let request: Request = serde_json::from_str(&body).map_err(what)?;
    Ok(Call {
        request,
        more: message.more,
    })
}

/// The beginning of a text that somebody sent, to be quoted.
fn shortened(text: &str) -> String {
    text.chars().take(80).collect()
}

/// The frame of an answer, without its NUL; `continues`: further ones follow.
pub fn encode_reply(reply: &Reply, continues: bool) -> io::Result<Vec<u8>> {
    serde_json::to_vec(&ReplyMessage {
        error: None,
        parameters: serde_json::to_value(reply).map_err(invalid)?,
        continues,
    })
    .map_err(invalid)
}

/// The frame of an error, without its NUL.
pub fn encode_error(error: &ApiError) -> io::Result<Vec<u8>> {
    serde_json::to_vec(&ReplyMessage {
        error: Some(format!("{INTERFACE}.Failed")),
        parameters: serde_json::to_value(error).map_err(invalid)?,
        continues: false,
    })
    .map_err(invalid)
}

/// An answer, decoded: what it says, and whether more follows.
pub fn decode_reply(frame: &[u8]) -> io::Result<(Result<Reply, ApiError>, bool)> {
    let message: ReplyMessage = serde_json::from_slice(frame).map_err(invalid)?;
    if let Some(name) = message.error {
        let error = serde_json::from_value(message.parameters).unwrap_or_else(|_| {
            ApiError::sentence(base::Kind::Io, format!("the daemon answered {name}"))
        });
        return Ok((Err(error), false));
    }
    let reply = serde_json::from_value(message.parameters).map_err(invalid)?;
    Ok((Ok(reply), message.continues))
}

/// A connection that carries frames.
#[derive(Debug)]
pub struct Framed {
    stream: UnixStream,
    buf: Vec<u8>,
    /// Bytes of `buf` known to hold no NUL.
    scanned: usize,
    /// Descriptors that came; none: they are not taken.
    fds: Option<Vec<OwnedFd>>,
    /// The rest of a message that was begun without waiting.
    unsent: Vec<u8>,
    limit: usize,
    /// From the first byte to the last of a frame.
    patience: Option<Duration>,
    ration: Option<Ration>,
}

/// What long frames of many connections may take together.
#[derive(Debug)]
struct Ration {
    /// Frames up to this length are free, bytes.
    free: usize,
    /// How many longer ones there may be at a time.
    left: Arc<AtomicUsize>,
    /// One of them is here.
    taken: bool,
}

impl Ration {
    /// A frame has grown to `len` bytes (0: there is none any more).
    fn grown(&mut self, len: usize) -> io::Result<()> {
        let long = len > self.free;
        if long && !self.taken {
            let less = |n: usize| n.checked_sub(1);
            let taken = self
                .left
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
            taken.map_err(|_| io::Error::from(io::ErrorKind::QuotaExceeded))?;
            self.taken = true;
        } else if !long && self.taken {
            self.left.fetch_add(1, Ordering::Relaxed);
            self.taken = false;
        }
        Ok(())
    }
}

impl Drop for Ration {
    fn drop(&mut self) {
        // Nothing is given back that was not taken.
        let _ = self.grown(0);
    }
}

impl Framed {
    /// Reads frames up to `limit` bytes.
    pub fn new(stream: UnixStream, limit: usize) -> Framed {
        Framed {
            stream,
            buf: Vec::new(),
            scanned: 0,
            fds: None,
            unsent: Vec::new(),
            limit,
            patience: None,
            ration: None,
        }
    }

    /// From now on descriptors that come are taken: for a client, which trusts its daemon.
    pub fn take_descriptors(&mut self) {
        self.fds = Some(Vec::new());
    }

    /// For one who may mean no good: a frame has to be complete so long after its first byte
    /// (otherwise reading fails with a time-out), and one longer than `free` bytes must find one of
    /// `left` places (otherwise reading fails with [`io::ErrorKind::QuotaExceeded`]). The place is
    /// given back when the next frame is asked for.
    pub fn distrust(&mut self, patience: Duration, free: usize, left: Arc<AtomicUsize>) {
        self.patience = Some(patience);
        self.ration = Some(Ration {
            free,
            left,
            taken: false,
        });
    }

    /// The socket.
    pub fn stream(&self) -> &UnixStream {
        &self.stream
    }

    /// A descriptor that came with what was read so far.
    pub fn descriptor(&mut self) -> Option<OwnedFd> {
        self.fds.as_mut()?.pop()
    }

    /// Next frame without its NUL; none at an orderly end.
    pub fn read(&mut self) -> io::Result<Option<Vec<u8>>> {
        let mut deadline = None;
        loop {
            if let Some(ration) = &mut self.ration {
                ration.grown(self.buf.len())?;
            }
            if let Some(at) = self.buf[self.scanned..].iter().position(|b| *b == 0) {
                let end = self.scanned + at;
                let rest = self.buf.split_off(end + 1);
                let mut frame = std::mem::replace(&mut self.buf, rest);
                frame.pop();
                self.scanned = 0;
                return Ok(Some(frame));
            }
            self.scanned = self.buf.len();
            if self.buf.len() > self.limit {
                return Err(io::ErrorKind::FileTooLarge.into());
            }
            if let Some(patience) = self.patience {
                let left = if self.buf.is_empty() {
                    None
                } else {
                    let now = Instant::now();
                    let end = *deadline.get_or_insert(now + patience);
                    match end.checked_duration_since(now) {
                        Some(left) if !left.is_zero() => Some(left),
                        _ => return Err(io::ErrorKind::TimedOut.into()),
                    }
                };
                self.stream.set_read_timeout(left)?;
            }
            let mut chunk = [0u8; 16384];
            let n = self.receive(&mut chunk).map_err(|e| match e.kind() {
                io::ErrorKind::WouldBlock => io::ErrorKind::TimedOut.into(),
                _ => e,
            })?;
            if n == 0 {
                return if self.buf.is_empty() {
                    Ok(None)
                } else {
                    Err(io::ErrorKind::UnexpectedEof.into())
                };
            }
            self.buf.extend_from_slice(&chunk[..n]);
        }
    }

    fn receive(&mut self, chunk: &mut [u8]) -> io::Result<usize> {
        let Some(fds) = &mut self.fds else {
            loop {
                match self.stream.read(chunk) {
                    Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                    r => return r,
                }
            }
        };
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let got = loop {
            let mut iov = [IoSliceMut::new(chunk)];
            match rustix::net::recvmsg(
                &self.stream,
                &mut iov,
                &mut control,
                RecvFlags::CMSG_CLOEXEC,
            ) {
                Err(rustix::io::Errno::INTR) => continue,
                other => break other?,
            }
        };
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(more) = message {
                fds.extend(more);
            }
        }
        Ok(got.bytes)
    }

    /// Writes one frame, and waits until the other end has room for it.
    pub fn write(&mut self, frame: &[u8]) -> io::Result<()> {
        self.write_with(frame, None)
    }

    /// As [`Framed::write`]; a descriptor travels with the frame.
    pub fn write_with(&mut self, frame: &[u8], fd: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let before = std::mem::take(&mut self.unsent);
        self.send_all(&before, None)?;
        self.send_all(&ended(frame), fd)
    }

    /// Writes one frame if there is room for it at once; whether there was.
    pub fn offer(&mut self, frame: &[u8]) -> io::Result<bool> {
        while !self.unsent.is_empty() {
            match self.send(&self.unsent, None, SendFlags::DONTWAIT)? {
                None => return Ok(false),
                Some(n) => drop(self.unsent.drain(..n)),
            }
        }
        let message = ended(frame);
        match self.send(&message, None, SendFlags::DONTWAIT)? {
            None => Ok(false),
            Some(n) => {
                // What was begun must be ended before anything else is written.
                self.unsent = message[n..].to_vec();
                Ok(true)
            }
        }
    }

    fn send_all(&self, mut rest: &[u8], mut fd: Option<BorrowedFd<'_>>) -> io::Result<()> {
        while !rest.is_empty() {
            match self.send(rest, fd, SendFlags::empty())? {
                // The time limit of the socket.
                None => return Err(io::ErrorKind::WouldBlock.into()),
                Some(0) => return Err(io::ErrorKind::WriteZero.into()),
                Some(n) => {
                    rest = &rest[n..];
                    fd = None;
                }
            }
        }
        Ok(())
    }

    /// How many bytes were taken; none: there is no room.
    fn send(
        &self,
        bytes: &[u8],
        fd: Option<BorrowedFd<'_>>,
        flags: SendFlags,
    ) -> io::Result<Option<usize>> {
        let fds: Vec<BorrowedFd<'_>> = fd.into_iter().collect();
        loop {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(&fds)) {
                return Err(invalid("too many file descriptors"));
            }
            match rustix::net::sendmsg(
                self.stream.as_fd(),
                &[IoSlice::new(bytes)],
                &mut control,
                flags | SendFlags::NOSIGNAL,
            ) {
                Ok(n) => return Ok(Some(n)),
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => return Ok(None),
                Err(e) => return Err(e.into()),
            }
        }
    }
}

/// A frame as it travels.
fn ended(frame: &[u8]) -> Vec<u8> {
    let mut message = Vec::with_capacity(frame.len() + 1);
    message.extend_from_slice(frame);
    message.push(0);
    message
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};

    #[test]
    fn calls_and_replies_round_trip() {
        let request = Request::PoolDestroy {
            pool: "tank".into(),
            force: true,
            command: "zpool destroy tank".into(),
        };
        let text = encode_call(&request, true).unwrap();
        assert_eq!(
            String::from_utf8(text.clone()).unwrap(),
            r#"{"method":"org.zfsfuse.control1.PoolDestroy","parameters":{"pool":"tank","force":true,"command":"zpool destroy tank"},"more":true}"#
        );
        let call = decode_call(&text).unwrap();
        assert_eq!(call.request, request);
        assert!(call.more);

        // Absent fields take their defaults, unknown ones are ignored.
        let call = decode_call(
            br#"{"method":"org.zfsfuse.control1.PoolDestroy","parameters":{"pool":"x","new":1}}"#,
        )
        .unwrap();
        assert!(matches!(
            call.request,
            Request::PoolDestroy { force: false, .. }
        ));
        assert!(decode_call(br#"{"method":"org.zfsfuse.control1.Ping"}"#).is_ok());

        let reply = Reply::Upgraded(api::Upgraded::default());
        let (back, more) = decode_reply(&encode_reply(&reply, true).unwrap()).unwrap();
        assert_eq!((back, more), (Ok(reply), true));
        let (back, _) = decode_reply(&encode_reply(&Reply::Done, false).unwrap()).unwrap();
        assert_eq!(back, Ok(Reply::Done));
        let error = ApiError::no_such_pool("x").hint("h").detail("d");
        let (back, _) = decode_reply(&encode_error(&error).unwrap()).unwrap();
        assert_eq!(back, Err(error));
    }

    #[test]
    fn nonsense_is_an_error() {
        for frame in [
            &b""[..],
            b"x",
            b"{}",
            b"[]",
            b"{\"method\":1}",
            b"{\"method\":\"org.zfsfuse.control2.Ping\"}",
            b"{\"method\":\"org.zfsfuse.control1.Nope\"}",
            b"{\"method\":\"org.zfsfuse.control1.PoolSync\"}",
            b"{\"method\":\"org.zfsfuse.control1.PoolSync\",\"parameters\":[1]}",
            b"\xff\xfe",
        ] {
            assert!(decode_call(frame).is_err(), "{frame:?}");
        }
        let deep = vec![b'['; 100_000];
        assert!(decode_call(&deep).is_err());
        assert!(decode_reply(b"{\"parameters\":{\"kind\":\"nope\"}}").is_err());
    }

    #[test]
    fn parameters_come_in_any_shape() {
        let mut frame = br#"{"method":"org.zfsfuse.control1.Ping","parameters":{"x":["#.to_vec();
        frame.extend(b"0,".repeat(1000));
        frame.extend(b"0]},\"more\":true}");
        let call = decode_call(&frame).unwrap();
        assert!(call.more && matches!(call.request, Request::Ping {}));
        // Escapes in the method's name, parameters first.
        let frame =
            br#"{"parameters":{"pool":"a\u0062"},"method":"org.zfsfuse.control1.Pool\u0053ync"}"#;
        let call = decode_call(frame).unwrap();
        let want = Request::PoolSync {
            pool: "ab".into(),
            force: false,
        };
        assert_eq!(call.request, want);
        let long = format!("{{\"method\":\"{}\"}}", "x".repeat(5000));
        assert!(decode_call(long.as_bytes()).unwrap_err().message.len() < 200);
    }

    #[test]
    fn who_is_not_trusted_has_little_time_and_room() {
        let places = Arc::new(AtomicUsize::new(1));
        let pair = || {
            let (a, b) = UnixStream::pair().unwrap();
            let mut b = Framed::new(b, 100_000);
            b.distrust(Duration::from_millis(200), 1000, places.clone());
            (a, b)
        };
        let (mut a, mut b) = pair();
        let (mut c, mut d) = pair();
        a.write_all(&[b'x'; 5000]).unwrap();
        a.write_all(&[0]).unwrap();
        assert_eq!(b.read().unwrap().unwrap().len(), 5000);
        // One long frame at a time; short ones are free.
        c.write_all(&[b'y'; 500]).unwrap();
        c.write_all(&[0]).unwrap();
        assert_eq!(d.read().unwrap().unwrap().len(), 500);
        c.write_all(&[b'z'; 5000]).unwrap();
        assert_eq!(d.read().unwrap_err().kind(), io::ErrorKind::QuotaExceeded);
        drop((a, b, c, d));
        assert_eq!(places.load(Ordering::Relaxed), 1);
        let (mut a, mut b) = pair();
        a.write_all(b"a part").unwrap();
        assert_eq!(b.read().unwrap_err().kind(), io::ErrorKind::TimedOut);
    }

    #[test]
    fn frames_and_descriptors() {
        let (a, b) = UnixStream::pair().unwrap();
        let mut a = Framed::new(a, 1000);
        let mut b = Framed::new(b, 100_000);
        b.take_descriptors();
        let (mut pipe_out, pipe_in) = std::io::pipe().unwrap();
        a.write_with(b"one", Some(pipe_in.as_fd())).unwrap();
        a.write(&[b'x'; 50_000]).unwrap();
        drop(pipe_in);
        assert_eq!(b.read().unwrap().unwrap(), b"one");
        assert_eq!(b.read().unwrap().unwrap().len(), 50_000);
        let fd = b.descriptor().unwrap();
        assert!(b.descriptor().is_none());
        std::fs::File::from(fd).write_all(b"through").unwrap();
        let mut text = String::new();
        pipe_out.read_to_string(&mut text).unwrap();
        assert_eq!(text, "through");

        // Too long for the other side, then cut off in the middle.
        b.write(&[b'y'; 30_000]).unwrap();
        assert!(a.read().is_err());
        let (c, mut d) = UnixStream::pair().unwrap();
        d.write_all(b"half").unwrap();
        drop(d);
        assert!(Framed::new(c, 1000).read().is_err());
    }

    #[test]
    fn a_server_takes_no_descriptor() {
        let (a, b) = UnixStream::pair().unwrap();
        let (mut client, mut server) = (Framed::new(a, 1000), Framed::new(b, 1000));
        let (mut pipe_out, pipe_in) = std::io::pipe().unwrap();
        client.write_with(b"call", Some(pipe_in.as_fd())).unwrap();
        drop(pipe_in);
        assert_eq!(server.read().unwrap().unwrap(), b"call");
        assert!(server.descriptor().is_none());
        // Nobody has it any more.
        assert_eq!(pipe_out.read(&mut [0]).unwrap(), 0);
    }

    #[test]
    fn what_is_offered_to_a_full_socket_is_dropped_whole() {
        let (a, b) = UnixStream::pair().unwrap();
        let (mut a, mut b) = (Framed::new(a, 1000), Framed::new(b, 1 << 20));
        let mut taken = 0;
        while a.offer(&[b'p'; 3000]).unwrap() {
            taken += 1;
            assert!(taken < 100_000);
        }
        assert!(taken > 0 && !a.offer(b"more").unwrap());
        let writer = std::thread::spawn(move || a.write(b"end").map(|()| a));
        for n in 0..taken {
            let frame = b.read().unwrap().unwrap();
            assert!(frame.len() == 3000 && frame[0] == b'p', "{n}");
        }
        assert_eq!(b.read().unwrap().unwrap(), b"end");
        writer.join().unwrap().unwrap();
    }
}
