//! Negotiation with a server.

use super::info::Info;
use crate::numbers::{self as n, export, handshake, info, option, reply, CHUNK};
use base::{bail, Error, Kind, Result};
use std::io::{Read, Write};

/// The magic number of servers that negotiate nothing.
const OLD_STYLE: u64 = 0x0000_4202_8186_1253;
/// Bytes of the longest reply that is taken.
const MAX_REPLY: u32 = 64 << 10;
/// Replies of one negotiation.
const MAX_REPLIES: usize = 100;
/// Bytes of the words of a server that go into an error.
const MAX_WORDS: usize = 200;
/// Bytes of zeros behind the answer to EXPORT_NAME.
const ZEROES: u64 = 124;
/// The largest block that is believed in.
const MAX_BLOCK: u32 = 64 << 10;

/// What the server said first.
pub struct Greeting {
    no_zeroes: bool,
}

/// Greets a server.
///
/// # Errors
/// `Unsupported`: it speaks another protocol. Others: those of the streams.
pub fn greet(from: &mut impl Read, to: &mut impl Write) -> Result<Greeting> {
    if n::u64_from(from)? != n::NBDMAGIC {
        bail!(
            Unsupported,
            "what answers is no server of network block devices"
        );
    }
    match n::u64_from(from)? {
        n::IHAVEOPT => {}
        OLD_STYLE => bail!(
            Unsupported,
            "the server speaks the old form of the protocol, which negotiates nothing"
        ),
        _ => bail!(
            Unsupported,
            "the server speaks an unknown form of the protocol"
        ),
    }
    let flags = n::u16_from(from)?;
    if flags & handshake::FIXED_NEWSTYLE == 0 {
        bail!(
            Unsupported,
            "the server does not speak the fixed newstyle of the protocol"
        );
    }
    let no_zeroes = flags & handshake::NO_ZEROES;
    let mine = u32::from(handshake::FIXED_NEWSTYLE | no_zeroes);
    n::send(to, &mine.to_be_bytes())?;
    Ok(Greeting {
        no_zeroes: no_zeroes != 0,
    })
}

/// Has the server begin TLS: the next byte on either side is of its handshake.
///
/// # Errors
/// `Access`: the server refuses, or knows no TLS. Others: those of the streams, and nonsense.
pub fn start_tls(from: &mut impl Read, to: &mut impl Write) -> Result<()> {
    send_option(to, option::STARTTLS, &[])?;
    let (kind, words) = take_reply(from, option::STARTTLS)?;
    match kind {
        reply::ACK if words.is_empty() => Ok(()),
        reply::ACK => bail!(Invalid, "the server says more than that TLS begins"),
        _ => bail!(Access, "the server does not offer TLS"),
    }
}

/// Chooses an export.
///
/// # Errors
/// `NotFound`: there is none of that name. `Access`: the server refuses, or wants TLS. Others: those of the streams, and nonsense.
pub fn choose(
    greeting: &Greeting,
    from: &mut impl Read,
    to: &mut impl Write,
    name: &str,
) -> Result<Info> {
    if let Some(info) = go(from, to, name)? {
        return sound(info);
    }
    // The server does not know GO. It ends the connection if it does not have the export.
    send_option(to, option::EXPORT_NAME, name.as_bytes())?;
    let missing = |_| {
        Error::new(
            Kind::NotFound,
            format!("the server has no export '{name}', or does not give it"),
        )
    };
    let size = n::u64_from(from).map_err(missing)?;
    let flags = n::u16_from(from)?;
    if !greeting.no_zeroes {
        n::skip(from, ZEROES)?;
    }
    sound(described(size, flags))
}

fn send_option(to: &mut impl Write, option: u32, data: &[u8]) -> Result<()> {
    let mut message = Vec::with_capacity(16 + data.len());
    message.extend(n::IHAVEOPT.to_be_bytes());
    message.extend(option.to_be_bytes());
    message.extend((data.len() as u32).to_be_bytes());
    message.extend(data);
    n::send(to, &message)
}

/// Asks with GO; `None`: the server does not know it.
fn go(from: &mut impl Read, to: &mut impl Write, name: &str) -> Result<Option<Info>> {
    let mut data = Vec::new();
    data.extend((name.len() as u32).to_be_bytes());
    data.extend(name.as_bytes());
    data.extend(1u16.to_be_bytes());
    data.extend(info::BLOCK_SIZE.to_be_bytes());
    send_option(to, option::GO, &data)?;
    let (mut found, mut blocks) = (None, None);
    for _ in 0..MAX_REPLIES {
        let (kind, data) = take_reply(from, option::GO)?;
        match kind {
            reply::INFO => match split_info(&data) {
                Some((info::EXPORT, rest)) => {
                    let size = number(rest, 0, 8);
                    let flags = number(rest, 8, 2);
                    let (Some(size), Some(flags)) = (size, flags) else {
                        bail!(Invalid, "the server describes the export in too few bytes");
                    };
                    found = Some(described(size, flags as u16));
                }
                Some((info::BLOCK_SIZE, rest)) => {
                    let of = |at| number(rest, at, 4).map(|n| n as u32);
                    blocks = of(0).zip(of(4)).zip(of(8));
                }
                _ => {}
            },
            reply::ACK => {
                let Some(mut info) = found else {
                    bail!(Invalid, "the server does not say how large the export is");
                };
                if let Some(((least, preferred), most)) = blocks {
                    (info.least, info.preferred, info.most) = (least, preferred, most);
                }
                return Ok(Some(info));
            }
            reply::ERR_UNSUP => return Ok(None),
            error => return Err(refusal(error, name, &data)),
        }
    }
    bail!(Invalid, "the server does not come to an end")
}

fn split_info(data: &[u8]) -> Option<(u16, &[u8])> {
    let (kind, rest) = data.split_first_chunk::<2>()?;
    Some((u16::from_be_bytes(*kind), rest))
}

/// The number of `len` bytes at `at`.
fn number(data: &[u8], at: usize, len: usize) -> Option<u64> {
    let bytes = data.get(at..at + len)?;
    Some(bytes.iter().fold(0, |n, b| n << 8 | u64::from(*b)))
}

/// Kind and data of a reply.
fn take_reply(from: &mut impl Read, option: u32) -> Result<(u32, Vec<u8>)> {
    if n::u64_from(from)? != n::REPLY_OPTION || n::u32_from(from)? != option {
        bail!(Invalid, "the server answers something else");
    }
    let kind = n::u32_from(from)?;
    let len = n::u32_from(from)?;
    if len > MAX_REPLY {
        bail!(Invalid, "the server answers in {len} bytes");
    }
    let mut data = vec![0; len as usize];
    from.read_exact(&mut data)?;
    Ok((kind, data))
}

fn refusal(error: u32, name: &str, words: &[u8]) -> Error {
    let words = String::from_utf8_lossy(words.get(..MAX_WORDS).unwrap_or(words));
    let words: String = words.chars().filter(|c| !c.is_control()).collect();
    let (kind, what) = match error {
        reply::ERR_UNKNOWN => (Kind::NotFound, format!("the server has no export '{name}'")),
        reply::ERR_POLICY => (
            Kind::Access,
            format!("the server does not give export '{name}' away"),
        ),
        reply::ERR_TLS_REQUIRED => (
            Kind::Access,
            "the server wants TLS: the address begins with nbds then".into(),
        ),
        _ => (
            Kind::Access,
            format!("the server refuses export '{name}' with error {error:#x}"),
        ),
    };
    match words.is_empty() {
        true => Error::new(kind, what),
        false => Error::new(kind, format!("{what}: {words}")),
    }
}

/// What size and flags say. Blocks are those of a server that does not speak of them.
fn described(size: u64, flags: u16) -> Info {
    let has = |flag| flags & flag != 0;
    Info {
        size,
        least: 1,
        preferred: 4096,
        most: CHUNK as u32,
        read_only: has(export::READ_ONLY),
        flushes: has(export::SEND_FLUSH),
        trims: has(export::SEND_TRIM),
        multi: has(export::CAN_MULTI_CONN),
    }
}

fn sound(info: Info) -> Result<Info> {
    let Info {
        least,
        preferred,
        most,
        ..
    } = info;
    if !least.is_power_of_two()
        || least > MAX_BLOCK
        || !preferred.is_power_of_two()
        || preferred < least
        || most < least
    {
        bail!(
            Invalid,
            "the server speaks of blocks of {least}, {preferred} and {most} bytes"
        );
    }
    Ok(info)
}
