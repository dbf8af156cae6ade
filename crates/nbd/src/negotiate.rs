//! The beginning of a connection: options until the client has chosen an export.

use crate::numbers::*;
use crate::{Export, Exports};
use base::{bail, Error, Kind, Result};
use std::io::{Read, Write};
use std::sync::Arc;

/// What holds for the requests of a connection.
pub struct Agreed {
    /// What is served.
    pub export: Arc<dyn Export>,
    /// Replies to reads have parts.
    pub structured: bool,
    /// Block status may be asked for.
    pub allocation: bool,
}

/// What the client has said so far.
pub struct So {
    /// Without 124 zeros behind the answer to EXPORT_NAME.
    no_zeroes: bool,
    /// Behind TLS.
    secure: bool,
    structured: bool,
    /// The export that block status was chosen for.
    context: Option<String>,
    /// Options there may still be.
    left: u32,
}

/// Server and client greet each other.
pub fn begin(from: &mut impl Read, to: &mut impl Write) -> Result<So> {
    let mut hello = Vec::new();
    hello.extend(NBDMAGIC.to_be_bytes());
    hello.extend(IHAVEOPT.to_be_bytes());
    hello.extend((handshake::FIXED_NEWSTYLE | handshake::NO_ZEROES).to_be_bytes());
    send(to, &hello)?;
    let flags = u32_from(from)?;
    if flags & !u32::from(handshake::FIXED_NEWSTYLE | handshake::NO_ZEROES) != 0 {
        bail!(Invalid, "the client has flags nobody knows ({flags:#x})");
    }
    Ok(So {
        no_zeroes: flags & u32::from(handshake::NO_ZEROES) != 0,
        secure: false,
        structured: false,
        context: None,
        left: MAX_OPTIONS,
    })
}

impl So {
    /// The next option, with its data.
    fn next(&mut self, from: &mut impl Read, to: &mut impl Write) -> Result<(u32, Vec<u8>)> {
        loop {
            if self.left == 0 {
                bail!(Invalid, "the client did not choose an export");
            }
            self.left -= 1;
            if u64_from(from)? != IHAVEOPT {
                bail!(Invalid, "the client speaks another protocol");
            }
            let (number, len) = (u32_from(from)?, u32_from(from)?);
            if len > MAX_SKIPPED {
                bail!(Invalid, "an option of {len} bytes");
            }
            if len > MAX_OPTION {
                skip(from, u64::from(len))?;
                refuse(to, number, reply::ERR_TOO_BIG, "too much data")?;
                continue;
            }
            let mut data = vec![0; len as usize];
            from.read_exact(&mut data)?;
            return Ok((number, data));
        }
    }

    /// Until the client begins TLS, without which it is told nothing; false: it left.
    pub fn wants_tls(&mut self, from: &mut impl Read, to: &mut impl Write) -> Result<bool> {
        loop {
            let (number, data) = self.next(from, to)?;
            match number {
                option::STARTTLS if data.is_empty() => {
                    answer(to, number, reply::ACK, &[])?;
                    self.secure = true;
                    return Ok(true);
                }
                option::STARTTLS => {
                    refuse(to, number, reply::ERR_INVALID, "STARTTLS takes no data")?;
                }
                option::EXPORT_NAME => bail!(NotPermitted, "the client does without TLS"),
                option::ABORT => {
                    // The client may not wait for it.
                    let _ = answer(to, number, reply::ACK, &[]);
                    return Ok(false);
                }
                _ => refuse(to, number, reply::ERR_TLS_REQUIRED, "STARTTLS comes first")?,
            }
        }
    }

    /// Until the client has chosen; `None`: it left.
    pub fn choose(
        &mut self,
        from: &mut impl Read,
        to: &mut impl Write,
        exports: &dyn Exports,
    ) -> Result<Option<Agreed>> {
        loop {
            let (number, data) = self.next(from, to)?;
            match number {
                option::EXPORT_NAME => return named(to, exports, self, &data).map(Some),
                option::ABORT => {
                    let _ = answer(to, number, reply::ACK, &[]);
                    return Ok(None);
                }
                option::INFO | option::GO => {
                    if let Some(agreed) = chosen(to, exports, self, number, &data)? {
                        return Ok(Some(agreed));
                    }
                }
                _ => other(to, exports, self, number, &data)?,
            }
        }
    }
}

/// Options that lead to no requests.
fn other(
    to: &mut impl Write,
    exports: &dyn Exports,
    so: &mut So,
    number: u32,
    data: &[u8],
) -> Result<()> {
    match number {
        option::STARTTLS if so.secure => {
            refuse(to, number, reply::ERR_INVALID, "TLS has begun already")
        }
        option::STARTTLS => refuse(to, number, reply::ERR_POLICY, "no TLS at this address"),
        option::LIST if !data.is_empty() => {
            refuse(to, number, reply::ERR_INVALID, "LIST takes no data")
        }
        option::LIST => match exports.names() {
            Ok(names) => {
                for name in names {
                    answer(to, number, reply::SERVER, &text(&name))?;
                }
                answer(to, number, reply::ACK, &[])
            }
            Err(e) => refuse(to, number, reply::ERR_PLATFORM, &e.to_string()),
        },
        option::STRUCTURED_REPLY if !data.is_empty() => {
            let why = "STRUCTURED_REPLY takes no data";
            refuse(to, number, reply::ERR_INVALID, why)
        }
        option::STRUCTURED_REPLY => {
            so.structured = true;
            answer(to, number, reply::ACK, &[])
        }
        option::LIST_META_CONTEXT | option::SET_META_CONTEXT => contexts(to, so, number, data),
        _ => refuse(to, number, reply::ERR_UNSUP, "unknown option"),
    }
}

/// LIST_META_CONTEXT and SET_META_CONTEXT: name of the export (length, bytes), number of queries, each with length and bytes.
fn contexts(to: &mut impl Write, so: &mut So, number: u32, data: &[u8]) -> Result<()> {
    let set = number == option::SET_META_CONTEXT;
    if set && !so.structured {
        let why = "STRUCTURED_REPLY comes first";
        return refuse(to, number, reply::ERR_INVALID, why);
    }
    let Some((export, queries)) = queries(data) else {
        return refuse(to, number, reply::ERR_INVALID, "malformed queries");
    };
    if set {
        so.context = None;
    }
    // Namespaces are listed whole, but chosen one by one.
    let wanted = match set {
        true => queries.iter().any(|q| q == ALLOCATION),
        false => queries.is_empty() || queries.iter().any(|q| q == ALLOCATION || q == "base:"),
    };
    if wanted {
        if set {
            so.context = Some(export);
        }
        let id = if set { ALLOCATION_ID } else { 0 };
        let mut message = id.to_be_bytes().to_vec();
        message.extend(ALLOCATION.as_bytes());
        answer(to, number, reply::META_CONTEXT, &message)?;
    }
    answer(to, number, reply::ACK, &[])
}

fn queries(mut data: &[u8]) -> Option<(String, Vec<String>)> {
    let export = word(&mut data)?;
    let count = u32_from(&mut data).ok()?;
    // Each takes four bytes at least.
    if count as usize > data.len() / 4 {
        return None;
    }
    let mut out = Vec::new();
    for _ in 0..count {
        out.push(word(&mut data)?);
    }
    data.is_empty().then_some((export, out))
}

/// A length and as many bytes of text.
fn word(data: &mut &[u8]) -> Option<String> {
    let len = u32_from(data).ok()?;
    if len > MAX_NAME || len as usize > data.len() {
        return None;
    }
    let (text, rest) = data.split_at(len as usize);
    *data = rest;
    String::from_utf8(text.to_vec()).ok()
}

/// EXPORT_NAME: the export is opened, or the connection ends: there is no other answer.
fn named(to: &mut impl Write, exports: &dyn Exports, so: &So, data: &[u8]) -> Result<Agreed> {
    let name = std::str::from_utf8(data).map_err(|_| Error::from(Kind::NotFound))?;
    let export = exports.open(name)?;
    let mut message = export.size().to_be_bytes().to_vec();
    message.extend(flags(&*export, so.structured).to_be_bytes());
    if !so.no_zeroes {
        message.extend([0; 124]);
    }
    send(to, &message)?;
    Ok(agreed(export, so, name))
}

fn agreed(export: Arc<dyn Export>, so: &So, name: &str) -> Agreed {
    Agreed {
        export,
        structured: so.structured,
        allocation: so.context.as_deref() == Some(name),
    }
}

/// INFO and GO: name of the export, number of kinds of information asked for, the kinds. Only a successful GO ends the negotiation.
fn chosen(
    to: &mut impl Write,
    exports: &dyn Exports,
    so: &So,
    number: u32,
    data: &[u8],
) -> Result<Option<Agreed>> {
    let Some((name, asked)) = asked(data) else {
        refuse(to, number, reply::ERR_INVALID, "malformed request")?;
        return Ok(None);
    };
    let export = match exports.open(&name) {
        Ok(export) => export,
        Err(e) => {
            let why = match e.kind {
                Kind::NotFound => reply::ERR_UNKNOWN,
                Kind::Access | Kind::NotPermitted => reply::ERR_POLICY,
                _ => reply::ERR_PLATFORM,
            };
            refuse(to, number, why, &e.to_string())?;
            return Ok(None);
        }
    };
    let mut message = info::EXPORT.to_be_bytes().to_vec();
    message.extend(export.size().to_be_bytes());
    message.extend(flags(&*export, so.structured).to_be_bytes());
    answer(to, number, reply::INFO, &message)?;
    if asked.contains(&info::NAME) {
        let mut message = info::NAME.to_be_bytes().to_vec();
        message.extend(name.as_bytes());
        answer(to, number, reply::INFO, &message)?;
    }
    let mut message = info::BLOCK_SIZE.to_be_bytes().to_vec();
    message.extend(512u32.to_be_bytes());
    message.extend(export.block_size().clamp(512, MAX_REQUEST).to_be_bytes());
    message.extend(MAX_REQUEST.to_be_bytes());
    answer(to, number, reply::INFO, &message)?;
    answer(to, number, reply::ACK, &[])?;
    Ok((number == option::GO).then(|| agreed(export, so, &name)))
}

fn asked(mut data: &[u8]) -> Option<(String, Vec<u16>)> {
    let name = word(&mut data)?;
    let count = u16_from(&mut data).ok()?;
    if data.len() != usize::from(count) * 2 {
        return None;
    }
    let kinds = data
        .chunks_exact(2)
        .map(|c| u16::from_be_bytes([c[0], c[1]]));
    Some((name, kinds.collect()))
}

fn flags(export: &dyn Export, structured: bool) -> u16 {
    use crate::numbers::export::*;
    // One log serves all connections: what one has flushed is there for all.
    let mut f = HAS_FLAGS | SEND_FLUSH | SEND_FUA | CAN_MULTI_CONN | SEND_CACHE;
    match export.is_read_only() {
        true => f |= READ_ONLY,
        false => f |= SEND_TRIM | SEND_WRITE_ZEROES | SEND_FAST_ZERO,
    }
    if structured {
        f |= SEND_DF;
    }
    f
}

/// A length and a text.
fn text(s: &str) -> Vec<u8> {
    let mut out = (s.len() as u32).to_be_bytes().to_vec();
    out.extend(s.as_bytes());
    out
}

fn answer(to: &mut impl Write, number: u32, kind: u32, data: &[u8]) -> Result<()> {
    let mut message = REPLY_OPTION.to_be_bytes().to_vec();
    message.extend(number.to_be_bytes());
    message.extend(kind.to_be_bytes());
    message.extend((data.len() as u32).to_be_bytes());
    message.extend(data);
    send(to, &message)
}

fn refuse(to: &mut impl Write, number: u32, kind: u32, why: &str) -> Result<()> {
    let mut end = why.len().min(MAX_NAME as usize);
    while !why.is_char_boundary(end) {
        end -= 1;
    }
    answer(to, number, kind, &why.as_bytes()[..end])
}
