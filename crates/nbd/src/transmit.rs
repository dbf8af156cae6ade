//! Requests and replies, after an export was chosen.

use crate::negotiate::Agreed;
use crate::numbers::*;
use crate::{Extent, Options};
use base::sync::MutexExt;
use base::{bail, Error, Kind, Result};
use std::io::{Read, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Mutex;

/// One connection.
struct Connection<'a, R, W> {
    from: Mutex<R>,
    to: Mutex<W>,
    agreed: &'a Agreed,
    options: &'a Options<'a>,
    /// Nobody reads another request.
    over: AtomicBool,
}

/// Header of a request: magic, flags, type, cookie, offset, length.
#[derive(Clone, Copy, Debug)]
struct Request {
    flags: u16,
    command: u16,
    cookie: u64,
    offset: u64,
    len: u32,
}

/// Why a request is not carried out: an error of the protocol, and words.
struct Refused(u32, String);

impl From<Error> for Refused {
    fn from(e: Error) -> Refused {
        Refused(number(&e), e.to_string())
    }
}

fn number(e: &Error) -> u32 {
    match e.kind {
        Kind::NotPermitted | Kind::Access | Kind::ReadOnly => error::EPERM,
        Kind::NoMemory => error::ENOMEM,
        Kind::Invalid | Kind::Unsupported => error::EINVAL,
        Kind::NoSpace | Kind::Quota => error::ENOSPC,
        Kind::Stale => error::ESHUTDOWN,
        _ => error::EIO,
    }
}

/// Serves requests on as many threads, this one among them, until the client leaves.
pub fn run<R: Read + Send, W: Write + Send>(
    from: R,
    to: W,
    agreed: &Agreed,
    options: &Options<'_>,
) -> Result<()> {
    let c = Connection {
        from: Mutex::new(from),
        to: Mutex::new(to),
        agreed,
        options,
        over: AtomicBool::new(false),
    };
    std::thread::scope(|scope| {
        let more: Vec<_> = (1..options.threads)
            .filter_map(|_| {
                let builder = std::thread::Builder::new().name("nbd".into());
                // With fewer threads it is slower, and right.
                builder.spawn_scoped(scope, || c.serve()).ok()
            })
            .collect();
        let mine = c.serve();
        let theirs = more.into_iter().map(|t| match t.join() {
            Ok(r) => r,
            Err(_) => Err(Error::new(Kind::Io, "a thread panicked")),
        });
        theirs.fold(mine, Result::and)
    })
}

impl<R: Read, W: Write> Connection<'_, R, W> {
    fn serve(&self) -> Result<()> {
        let mut buf = Vec::new();
        let served = loop {
            match self.one(&mut buf) {
                Ok(true) => {}
                Ok(false) => break Ok(()),
                Err(e) => break Err(e),
            }
        };
        self.over.store(true, Ordering::SeqCst);
        if served.is_err() {
            (self.options.hang_up)();
        }
        served
    }

    /// Takes one request and carries it out; false: it was the last.
    fn one(&self, buf: &mut Vec<u8>) -> Result<bool> {
        let mut from = self.from.acquire();
        if self.over.load(Ordering::SeqCst) {
            return Ok(false);
        }
        let Some(r) = Self::next(&mut *from)? else {
            self.over.store(true, Ordering::SeqCst);
            return Ok(false);
        };
        if r.command == command::DISC {
            self.over.store(true, Ordering::SeqCst);
            return Ok(false);
        }
        if r.command == command::WRITE {
            if r.len > MAX_REQUEST {
                // Its data cannot be told from requests without being read.
                self.over.store(true, Ordering::SeqCst);
                bail!(Invalid, "a write of {} bytes", r.len);
            }
            let single = r.len as usize <= CHUNK;
            let mut refused = self.check(&r).err();
            if single {
                // The usual case: others read on while it is written.
                buf.resize(r.len as usize, 0);
                from.read_exact(buf)?;
                drop(from);
                let fua = r.flags & flag::FUA != 0;
                if refused.is_none() {
                    let written = self.agreed.export.write(r.offset, buf, fua);
                    refused = written.err().map(Refused::from);
                }
            } else {
                refused = self.write_long(&mut *from, &r, buf, refused)?;
                drop(from);
            }
            return self.finish(&r, refused.map_or(Ok(()), Err)).map(|()| true);
        }
        drop(from);
        self.carry_out(&r, buf)?;
        Ok(true)
    }

    /// A write of several chunks, taken from the stream as they are written: whoever reads the stream next waits.
    fn write_long(
        &self,
        from: &mut R,
        r: &Request,
        buf: &mut Vec<u8>,
        mut refused: Option<Refused>,
    ) -> Result<Option<Refused>> {
        // Where it reaches beyond the last offset it is refused already, and its data are to be taken all the same.
        let (mut done, len, within) = (0, u64::from(r.len), r.offset % CHUNK as u64);
        while done < len {
            let n = chunk(within + done, within + len);
            buf.resize(n, 0);
            from.read_exact(buf)?;
            if refused.is_none() {
                let written = self.agreed.export.write(r.offset + done, buf, false);
                refused = written.err().map(Refused::from);
            }
            done += n as u64;
        }
        if refused.is_none() && r.flags & flag::FUA != 0 {
            refused = self.agreed.export.flush().err().map(Refused::from);
        }
        Ok(refused)
    }

    /// The next request; `None` if the stream ends here.
    fn next(from: &mut R) -> Result<Option<Request>> {
        let mut first = [0; 1];
        loop {
            match from.read(&mut first) {
                Ok(0) => return Ok(None),
                Ok(_) => break,
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e.into()),
            }
        }
        let rest: [u8; 27] = bytes(from)?;
        let mut all: &[u8] = &[&first[..], &rest].concat();
        if u32_from(&mut all)? != REQUEST {
            bail!(Invalid, "the client lost its place in the stream");
        }
        Ok(Some(Request {
            flags: u16_from(&mut all)?,
            command: u16_from(&mut all)?,
            cookie: u64_from(&mut all)?,
            offset: u64_from(&mut all)?,
            len: u32_from(&mut all)?,
        }))
    }

    /// Whether a request can be carried out at all.
    fn check(&self, r: &Request) -> std::result::Result<(), Refused> {
        let export = &self.agreed.export;
        let refuse = |e, why: &str| Err(Refused(e, why.to_string()));
        let known = match r.command {
            command::READ => flag::DF | flag::FUA,
            command::WRITE | command::TRIM => flag::FUA,
            command::WRITE_ZEROES => flag::FUA | flag::NO_HOLE | flag::FAST_ZERO,
            command::BLOCK_STATUS => flag::REQ_ONE | flag::FUA,
            command::FLUSH | command::CACHE => flag::FUA,
            _ => return refuse(error::EINVAL, "unknown request"),
        };
        if r.flags & !known != 0 {
            return refuse(error::EINVAL, "unknown flags");
        }
        let changes = matches!(
            r.command,
            command::WRITE | command::TRIM | command::WRITE_ZEROES
        );
        if changes && export.is_read_only() {
            return refuse(error::EPERM, "the export is read-only");
        }
        if r.command == command::FLUSH {
            return Ok(());
        }
        if r.command == command::READ && r.len > MAX_REQUEST {
            return refuse(error::EOVERFLOW, "more than 32 MiB");
        }
        match r.offset.checked_add(u64::from(r.len)) {
            Some(end) if end <= export.size() => Ok(()),
            _ if changes && r.command != command::TRIM => {
                refuse(error::ENOSPC, "beyond the end of the export")
            }
            _ => refuse(error::EINVAL, "beyond the end of the export"),
        }
    }

    /// Anything but a write.
    fn carry_out(&self, r: &Request, buf: &mut Vec<u8>) -> Result<()> {
        if let Err(refused) = self.check(r) {
            return self.finish(r, Err(refused));
        }
        let export = &self.agreed.export;
        let (len, fua) = (u64::from(r.len), r.flags & flag::FUA != 0);
        let done = match r.command {
            command::READ if self.agreed.structured => return self.read_parts(r, buf),
            command::READ => return self.read_simple(r, buf),
            command::BLOCK_STATUS => return self.status(r),
            command::FLUSH => export.flush(),
            command::TRIM => export.trim(r.offset, len, fua),
            command::WRITE_ZEROES => export.zero(r.offset, len, fua),
            _ => {
                export.cache(r.offset, len);
                Ok(())
            }
        };
        self.finish(r, done.map_err(Refused::from))
    }

    /// The reply to a request that asks for no data.
    fn finish(&self, r: &Request, done: std::result::Result<(), Refused>) -> Result<()> {
        let parts = matches!(r.command, command::READ | command::BLOCK_STATUS);
        match done {
            Err(Refused(e, why)) if parts && self.agreed.structured => {
                self.error_part(&mut *self.to.acquire(), r, e, &why)
            }
            done => {
                let e = done.err().map_or(0, |Refused(e, _)| e);
                send(&mut *self.to.acquire(), &simple(r, e))
            }
        }
    }

    /// Last part of a reply: error, length of a text, the text.
    fn error_part(&self, to: &mut W, r: &Request, e: u32, why: &str) -> Result<()> {
        let mut end = why.len().min(MAX_NAME as usize);
        while !why.is_char_boundary(end) {
            end -= 1;
        }
        let mut message = e.to_be_bytes().to_vec();
        message.extend((end as u16).to_be_bytes());
        message.extend(&why.as_bytes()[..end]);
        let head = part_head(r, part::DONE, part::ERROR, message.len());
        to.write_all(&head)?;
        send(to, &message)
    }

    /// A read without parts: once the reply has begun, an error can only end the connection.
    fn read_simple(&self, r: &Request, buf: &mut Vec<u8>) -> Result<()> {
        let (mut at, end) = (r.offset, r.offset.saturating_add(u64::from(r.len)));
        buf.resize(chunk(at, end), 0);
        if let Err(e) = self.agreed.export.read(at, buf) {
            return self.finish(r, Err(e.into()));
        }
        let mut to = self.to.acquire();
        to.write_all(&simple(r, 0))?;
        loop {
            to.write_all(buf)?;
            at += buf.len() as u64;
            if at >= end {
                break;
            }
            buf.resize(chunk(at, end), 0);
            if let Err(e) = self.agreed.export.read(at, buf) {
                self.over.store(true, Ordering::SeqCst);
                return Err(e.context("in the middle of a reply"));
            }
        }
        to.flush()?;
        Ok(())
    }

    /// A read whose reply has parts: data and holes, each its own message. With DF, one part of data.
    fn read_parts(&self, r: &Request, buf: &mut Vec<u8>) -> Result<()> {
        let whole = r.flags & flag::DF != 0;
        if whole && r.len as usize > CHUNK {
            let why = "more than 1 MiB in one part".to_string();
            return self.finish(r, Err(Refused(error::EOVERFLOW, why)));
        }
        let (mut at, end) = (r.offset, r.offset.saturating_add(u64::from(r.len)));
        let mut extent = Extent { end, data: true };
        if r.len == 0 {
            let head = part_head(r, part::DONE, part::NONE, 0);
            return send(&mut *self.to.acquire(), &head);
        }
        let look = !whole && r.len >= SPARSE;
        let mut known = at;
        while at < end {
            if look && at >= known {
                match self.agreed.export.extent(at) {
                    Ok(e) => extent = e,
                    Err(e) => return self.finish(r, Err(e.into())),
                }
                known = extent.end.max(at + 1);
            }
            let stop = if look { known.min(end) } else { end };
            let n = match extent.data {
                true => chunk(at, stop),
                false => (stop - at) as usize,
            };
            let done = if at + n as u64 == end { part::DONE } else { 0 };
            if extent.data {
                buf.resize(n, 0);
                if let Err(e) = self.agreed.export.read(at, buf) {
                    return self.finish(r, Err(e.into()));
                }
                let mut to = self.to.acquire();
                to.write_all(&part_head(r, done, part::OFFSET_DATA, 8 + n))?;
                to.write_all(&at.to_be_bytes())?;
                send(&mut *to, buf)?;
            } else {
                let mut message = part_head(r, done, part::OFFSET_HOLE, 12);
                message.extend(at.to_be_bytes());
                message.extend((n as u32).to_be_bytes());
                send(&mut *self.to.acquire(), &message)?;
            }
            at += n as u64;
        }
        Ok(())
    }

    /// One part: number of the context, then length and flags of each extent.
    fn status(&self, r: &Request) -> Result<()> {
        if !self.agreed.allocation || r.len == 0 {
            let why = "no context was chosen, or no bytes".to_string();
            return self.finish(r, Err(Refused(error::EINVAL, why)));
        }
        let (mut at, end) = (r.offset, r.offset.saturating_add(u64::from(r.len)));
        let most = match r.flags & flag::REQ_ONE != 0 {
            true => 1,
            false => MAX_EXTENTS,
        };
        let mut list: Vec<(u32, u32)> = Vec::new();
        while at < end {
            let e = match self.agreed.export.extent(at) {
                Ok(e) => e,
                Err(e) => return self.finish(r, Err(e.into())),
            };
            let stop = e.end.clamp(at + 1, end);
            let (n, flags) = ((stop - at) as u32, if e.data { 0 } else { HOLE_ZERO });
            let full = list.len() == most;
            match list.last_mut() {
                Some(last) if last.1 == flags => last.0 += n,
                _ if full => break,
                _ => list.push((n, flags)),
            }
            at = stop;
        }
        let mut message = part_head(r, part::DONE, part::BLOCK_STATUS, 4 + 8 * list.len());
        message.extend(ALLOCATION_ID.to_be_bytes());
        for (n, flags) in list {
            message.extend(n.to_be_bytes());
            message.extend(flags.to_be_bytes());
        }
        send(&mut *self.to.acquire(), &message)
    }
}

/// Bytes of the next piece from `at`: it ends at a multiple of [`CHUNK`], so that no block is cut.
fn chunk(at: u64, end: u64) -> usize {
    let most = CHUNK as u64 - at % CHUNK as u64;
    end.saturating_sub(at).min(most) as usize
}

fn simple(r: &Request, e: u32) -> Vec<u8> {
    let mut message = REPLY_SIMPLE.to_be_bytes().to_vec();
    message.extend(e.to_be_bytes());
    message.extend(r.cookie.to_be_bytes());
    message
}

fn part_head(r: &Request, flags: u16, kind: u16, len: usize) -> Vec<u8> {
    let mut message = REPLY_PART.to_be_bytes().to_vec();
    message.extend(flags.to_be_bytes());
    message.extend(kind.to_be_bytes());
    message.extend(r.cookie.to_be_bytes());
    message.extend((len as u32).to_be_bytes());
    message
}
