//! Numbers of the protocol, and reading and writing them.

use base::{bail, Result};
use std::io::{Read, Write};

/// Bytes that are read or written at a time for one request.
pub const CHUNK: usize = 1 << 20;
/// Bytes of the longest request to read or write.
pub const MAX_REQUEST: u32 = 32 << 20;
/// Bytes of the longest name of an export.
pub const MAX_NAME: u32 = 4096;
/// Bytes of data of an option that is looked into. More is passed over up to [`MAX_SKIPPED`].
pub const MAX_OPTION: u32 = 64 << 10;
/// An option with more ends the connection.
pub const MAX_SKIPPED: u32 = 1 << 20;
/// Options of one negotiation: a client that is still undecided then is not going to be served.
pub const MAX_OPTIONS: u32 = 1000;
/// Parts of one answer about block status.
pub const MAX_EXTENTS: usize = 1024;
/// A read of so many bytes is answered without the holes in it.
pub const SPARSE: u32 = 64 << 10;

/// First word of the server.
pub const NBDMAGIC: u64 = 0x4e42_444d_4147_4943;
/// Second one, and before each option.
pub const IHAVEOPT: u64 = 0x4948_4156_454f_5054;
/// Before each reply to an option.
pub const REPLY_OPTION: u64 = 0x0003_e889_0455_65a9;
/// Before each request.
pub const REQUEST: u32 = 0x2560_9513;
/// Before a simple reply.
pub const REPLY_SIMPLE: u32 = 0x6744_6698;
/// Before each part of a structured reply.
pub const REPLY_PART: u32 = 0x668e_33ef;

/// Flags of server and client in the negotiation.
pub mod handshake {
    pub const FIXED_NEWSTYLE: u16 = 1;
    pub const NO_ZEROES: u16 = 2;
}

/// Options.
pub mod option {
    pub const EXPORT_NAME: u32 = 1;
    pub const ABORT: u32 = 2;
    pub const LIST: u32 = 3;
    pub const STARTTLS: u32 = 5;
    pub const INFO: u32 = 6;
    pub const GO: u32 = 7;
    pub const STRUCTURED_REPLY: u32 = 8;
    pub const LIST_META_CONTEXT: u32 = 9;
    pub const SET_META_CONTEXT: u32 = 10;
}

/// Replies to options.
pub mod reply {
    pub const ACK: u32 = 1;
    pub const SERVER: u32 = 2;
    pub const INFO: u32 = 3;
    pub const META_CONTEXT: u32 = 4;
    pub const ERR_UNSUP: u32 = (1 << 31) + 1;
    pub const ERR_POLICY: u32 = (1 << 31) + 2;
    pub const ERR_INVALID: u32 = (1 << 31) + 3;
    pub const ERR_PLATFORM: u32 = (1 << 31) + 4;
    pub const ERR_TLS_REQUIRED: u32 = (1 << 31) + 5;
    pub const ERR_UNKNOWN: u32 = (1 << 31) + 6;
    pub const ERR_TOO_BIG: u32 = (1 << 31) + 9;
}

/// Kinds of information about an export.
pub mod info {
    pub const EXPORT: u16 = 0;
    pub const NAME: u16 = 1;
    pub const BLOCK_SIZE: u16 = 3;
}

/// Flags of an export.
pub mod export {
    pub const HAS_FLAGS: u16 = 1;
    pub const READ_ONLY: u16 = 1 << 1;
    pub const SEND_FLUSH: u16 = 1 << 2;
    pub const SEND_FUA: u16 = 1 << 3;
    pub const SEND_TRIM: u16 = 1 << 5;
    pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
    pub const SEND_DF: u16 = 1 << 7;
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
    pub const SEND_CACHE: u16 = 1 << 10;
    pub const SEND_FAST_ZERO: u16 = 1 << 11;
}

/// Requests.
pub mod command {
    pub const READ: u16 = 0;
    pub const WRITE: u16 = 1;
    pub const DISC: u16 = 2;
    pub const FLUSH: u16 = 3;
    pub const TRIM: u16 = 4;
    pub const CACHE: u16 = 5;
    pub const WRITE_ZEROES: u16 = 6;
    pub const BLOCK_STATUS: u16 = 7;
}

/// Flags of requests.
pub mod flag {
    pub const FUA: u16 = 1;
    pub const NO_HOLE: u16 = 1 << 1;
    pub const DF: u16 = 1 << 2;
    pub const REQ_ONE: u16 = 1 << 3;
    pub const FAST_ZERO: u16 = 1 << 4;
}

/// Parts of structured replies.
pub mod part {
    /// Flag: the last one.
    pub const DONE: u16 = 1;
    pub const NONE: u16 = 0;
    pub const OFFSET_DATA: u16 = 1;
    pub const OFFSET_HOLE: u16 = 2;
    pub const BLOCK_STATUS: u16 = 5;
    pub const ERROR: u16 = (1 << 15) + 1;
}

/// The one context of block status there is.
pub const ALLOCATION: &str = "base:allocation";
/// Its number.
pub const ALLOCATION_ID: u32 = 1;
/// Its flags for a hole: nothing is allocated, zeros are read.
pub const HOLE_ZERO: u32 = 1 | 2;

/// Errors as the protocol has them.
pub mod error {
    pub const EPERM: u32 = 1;
    pub const EIO: u32 = 5;
    pub const ENOMEM: u32 = 12;
    pub const EINVAL: u32 = 22;
    pub const ENOSPC: u32 = 28;
    pub const EOVERFLOW: u32 = 75;
    pub const ESHUTDOWN: u32 = 108;
}

/// Reads `N` bytes.
pub fn bytes<const N: usize>(from: &mut impl Read) -> Result<[u8; N]> {
    let mut b = [0; N];
    from.read_exact(&mut b)?;
    Ok(b)
}

pub fn u16_from(from: &mut impl Read) -> Result<u16> {
    Ok(u16::from_be_bytes(bytes(from)?))
}

pub fn u32_from(from: &mut impl Read) -> Result<u32> {
    Ok(u32::from_be_bytes(bytes(from)?))
}

pub fn u64_from(from: &mut impl Read) -> Result<u64> {
    Ok(u64::from_be_bytes(bytes(from)?))
}

/// Reads and forgets `n` bytes.
pub fn skip(from: &mut impl Read, n: u64) -> Result<()> {
    let done = std::io::copy(&mut from.take(n), &mut std::io::sink())?;
    if done < n {
        bail!(Again, "the client left in the middle of a request");
    }
    Ok(())
}

/// Sends a message in one piece.
pub fn send(to: &mut impl Write, message: &[u8]) -> Result<()> {
    to.write_all(message)?;
    to.flush()?;
    Ok(())
}
