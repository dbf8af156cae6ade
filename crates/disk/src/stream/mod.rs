//! Send streams: their records, without the payloads (data format §30).
//!
//! A stream is a sequence of records of [`RECORD`] bytes in the sender's byte order, each followed by its
//! payload, if it has one. Crate `stream` reads and writes whole streams with their checksums; this module
//! only knows single records.
//!
//! 1. [`Record::decode`] accepts a record only if the size of its payload is within the bound of its type.
//! 2. [`Record::check`] tells whether the values of a record make sense; nothing else may be done with a
//!    record of an untrusted stream before.
//! 3. A record that was decoded and is encoded again has the same bytes, but for bytes no field covers.
//!
//! Start reading at [`Record`].

mod check;
mod fields;
mod record;
#[cfg(test)]
mod tests;

pub use record::{
    Begin, End, Free, FreeObjects, Object, ObjectRange, Record, Redact, Spill, Write, WriteByRef,
    WriteEmbedded,
};

use crate::bytes::u64_at;
use base::{Cause, Error, Kind, Result};

/// Bytes of a record.
pub const RECORD: usize = 312;
/// Magic of a BEGIN record.
pub const MAGIC: u64 = 0x2_F5BA_CBAC;
/// Offset of the running checksum, which all records but BEGIN have.
pub const CHECKSUM_AT: usize = 280;
/// Bytes of the name in a BEGIN record, the NUL at its end included.
pub const NAME: usize = 256;
/// Longest list a BEGIN record may have as its payload; OpenZFS's limit in user space as well.
pub const MAX_LIST: usize = 64 << 20;
/// Longest bonus: what a dnode of 16 KiB has room for beside its core and one block pointer.
pub const MAX_BONUS: usize = (16 << 10) - 64 - 128;
/// Most dnode slots of an object.
pub const MAX_SLOTS: u8 = 32;
/// Snapshot part of the name of a stream that was sent from a head.
pub const HEAD_NAME: &str = "--head--";

/// What the streams of a BEGIN record are (data format §30.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeaderType {
    /// 1: the records of one snapshot.
    Substream,
    /// 2: a package; streams of snapshots follow.
    Compound,
    /// Anything else; no stream has it.
    Other(u8),
}

impl HeaderType {
    /// Number in the two lowest bits of the version word.
    pub fn number(self) -> u8 {
        match self {
            HeaderType::Substream => 1,
            HeaderType::Compound => 2,
            HeaderType::Other(n) => n,
        }
    }

    /// From the two lowest bits of the version word.
    pub fn from_number(n: u8) -> HeaderType {
        match n {
            1 => HeaderType::Substream,
            2 => HeaderType::Compound,
            n => HeaderType::Other(n),
        }
    }
}

/// Feature flags of a stream: bits 2 to 57 of the version word of BEGIN, shifted down (data format §30.3).
pub mod feature {
    /// WRITE_BYREF records are in it.
    pub const DEDUP: u64 = 1;
    /// Keys of WRITE records are valid.
    pub const DEDUP_PROPS: u64 = 1 << 1;
    /// From a file system of version 5 or newer.
    pub const SA_SPILL: u64 = 1 << 2;
    /// WRITE_EMBEDDED records are in it.
    pub const EMBED_DATA: u64 = 1 << 16;
    /// Data may be compressed by LZ4.
    pub const LZ4: u64 = 1 << 17;
    /// Blocks of more than 128 KiB.
    pub const LARGE_BLOCKS: u64 = 1 << 19;
    /// Goes on from a resume token.
    pub const RESUMING: u64 = 1 << 20;
    /// A redacted stream, or one from a redacted base.
    pub const REDACTED: u64 = 1 << 21;
    /// WRITE records may have compressed payloads.
    pub const COMPRESSED: u64 = 1 << 22;
    /// Dnodes of more than 512 bytes.
    pub const LARGE_DNODE: u64 = 1 << 23;
    /// Encrypted blocks as they are stored.
    pub const RAW: u64 = 1 << 24;
    /// Data may be compressed by ZSTD.
    pub const ZSTD: u64 = 1 << 25;
    /// A package that carries holds.
    pub const HOLDS: u64 = 1 << 26;
    /// Reserved by OpenZFS; no sender sets it.
    pub const SWITCH_TO_LARGE_BLOCKS: u64 = 1 << 27;
    /// Names of more than 255 bytes.
    pub const LONGNAME: u64 = 1 << 28;
    /// Micro-ZAPs of more than 128 KiB.
    pub const LARGE_MICROZAP: u64 = 1 << 29;

    /// All features this software knows.
    pub const KNOWN: u64 = DEDUP
        | DEDUP_PROPS
        | SA_SPILL
        | EMBED_DATA
        | LZ4
        | LARGE_BLOCKS
        | RESUMING
        | REDACTED
        | COMPRESSED
        | LARGE_DNODE
        | RAW
        | ZSTD
        | HOLDS
        | SWITCH_TO_LARGE_BLOCKS
        | LONGNAME
        | LARGE_MICROZAP;
}

/// Flags of BEGIN.
pub mod begin_flag {
    /// Based on a snapshot of another file system, the origin.
    pub const CLONE: u32 = 1;
    /// From a file system whose names are not case-sensitive.
    pub const CI_DATA: u32 = 2;
    /// A full stream that has the records of an increment that free; it can be received as a clone.
    pub const FREERECORDS: u32 = 4;
    /// The spill flags of OBJECT and SPILL are meaningful.
    pub const SPILL_BLOCK: u32 = 8;
}

/// Flags of the other records.
pub mod record_flag {
    /// WRITE, WRITE_BYREF: the checksum of the key is strong enough for dedup.
    pub const CHECKSUM_DEDUP: u8 = 1;
    /// Raw: the block is stored in the other byte order than that of the sender.
    pub const RAW_BYTESWAP: u8 = 2;
    /// OBJECT: the object has a spill block.
    pub const OBJECT_SPILL: u8 = 4;
    /// SPILL: the spill block was not changed since the base of the increment.
    pub const SPILL_UNMODIFIED: u8 = 4;
}

/// The error for bytes that are no send stream.
fn not_a_stream() -> Error {
    let e = Error::new(Kind::Invalid, "not a send stream: bad magic number");
    e.because(Cause::NotAStream)
}

/// Whether the stream that begins with this record was sent by a machine of the other byte order.
///
/// Errors: `Invalid` if it is no stream.
pub fn is_swapped(first: &[u8]) -> Result<bool> {
    match u64_at(first, 8)? {
        MAGIC => Ok(false),
        m if m == MAGIC.swap_bytes() => Ok(true),
        _ => Err(not_a_stream()),
    }
}

/// The running checksum stored in a record; all zero if the stream has none for each record.
pub fn stored_checksum(record: &[u8; RECORD], swapped: bool) -> [u64; 4] {
    fields::get(record, CHECKSUM_AT, swapped)
}

/// Stores a running checksum in a record.
pub fn store_checksum(record: &mut [u8; RECORD], sum: [u64; 4], swapped: bool) {
    fields::put(record, CHECKSUM_AT, sum, swapped);
}
