//! Cache devices (pool format §28): the header behind the front labels, and the log blocks that say which blocks are where.
//!
//! A log block has up to [`MAX_ENTRIES`] entries and the place of an older log block. The header has the places of the two newest
//! ones, so that two interleaved chains lead through all of them. Checksums and compression are left to the caller.

use crate::bytes::{put_u64, u64_at};
use crate::{Compression, Dva};
use base::{bail, Result, Txg, SECTOR};

/// Magic number of a header: "ZFSCACHE".
pub const HEADER_MAGIC: u64 = 0x5a46_5343_4143_4845;
/// Magic number of a log block: "LOGBLKHD".
pub const LOG_MAGIC: u64 = 0x4c4f_4742_4c4b_4844;
/// Version of headers.
pub const VERSION: u64 = 1;
/// Offset of the header on the device.
pub const HEADER_AT: u64 = crate::label::DATA_START;
/// Smallest size of a header; with larger sectors it has one sector.
pub const HEADER_MIN: u64 = 512;
/// Bytes of a log block before it is compressed.
pub const LOG_SIZE: usize = 64 << 10;
/// Most entries of a log block.
pub const MAX_ENTRIES: u64 = 1022;
/// Area of a device for each entry of a log block.
const AREA_PER_ENTRY: u64 = 16 << 20;
/// Devices with smaller areas have no log blocks.
const LEAST_AREA: u64 = 1 << 30;
/// Flag of a header: the device has never been full, nothing was overwritten.
const FIRST_SWEEP: u64 = 1;
/// Bytes of an entry, and where the first one is.
const ENTRY_SIZE: usize = 64;
const ENTRIES_AT: usize = 128;
/// Number of the checksum fletcher4.
const FLETCHER4: u64 = 7;

/// Bytes of the header on a device of sectors of `1 << ashift` bytes.
pub fn header_size(ashift: u32) -> u64 {
    HEADER_MIN.max(1 << ashift.min(16))
}

/// Entries of each log block for an area of so many bytes; 0: the device has no log blocks.
pub fn entries_per_block(area: u64) -> u64 {
    match area < LEAST_AREA {
        true => 0,
        false => (area / AREA_PER_ENTRY).min(MAX_ENTRIES),
    }
}

fn sizes(lsize: u64, psize: u64) -> u64 {
    let sectors = |n: u64| (n / SECTOR).saturating_sub(1) & 0xffff;
    sectors(lsize) | sectors(psize) << 16
}

fn lsize(prop: u64) -> u64 {
    ((prop & 0xffff) + 1) * SECTOR
}

fn psize(prop: u64) -> u64 {
    ((prop >> 16 & 0xffff) + 1) * SECTOR
}

fn compression(prop: u64) -> Compression {
    Compression::new((prop >> 32 & 0x7f) as u8)
}

/// Where a log block is. All zero: there is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogPtr {
    /// Offset of the log block on the device.
    pub at: u64,
    /// Bytes of the cached blocks it lists, on the device.
    pub payload: u64,
    /// Offset of the first of them.
    pub payload_at: u64,
    prop: u64,
    /// Fletcher4 over the stored bytes.
    pub checksum: [u64; 4],
}

impl LogPtr {
    /// For a log block of `asize` stored bytes.
    pub fn new(
        at: u64,
        asize: u64,
        compression: Compression,
        (payload_at, payload): (u64, u64),
        checksum: [u64; 4],
    ) -> LogPtr {
        let kind = u64::from(compression.number()) << 32 | FLETCHER4 << 40;
        LogPtr {
            at,
            payload,
            payload_at,
            prop: sizes(LOG_SIZE as u64, asize) | kind,
            checksum,
        }
    }

    /// Bytes of the log block on the device, padding included.
    pub fn asize(&self) -> u64 {
        psize(self.prop)
    }

    /// How it is compressed.
    pub fn compression(&self) -> Compression {
        compression(self.prop)
    }

    /// Whether there is none.
    pub fn is_none(&self) -> bool {
        self.at == 0
    }

    fn put(&self, b: &mut [u8], at: usize) {
        let words = [self.at, self.payload, self.payload_at, self.prop];
        for (i, w) in words.iter().chain(&self.checksum).enumerate() {
            put_u64(b, at + 8 * i, *w);
        }
    }

    fn get(b: &[u8], at: usize) -> Result<LogPtr> {
        let w = |i: usize| u64_at(b, at + 8 * i);
        Ok(LogPtr {
            at: w(0)?,
            payload: w(1)?,
            payload_at: w(2)?,
            prop: w(3)?,
            checksum: [w(4)?, w(5)?, w(6)?, w(7)?],
        })
    }
}

/// The header of a cache device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// Guid of the pool.
    pub pool: u64,
    /// Guid of the device.
    pub vdev: u64,
    /// Entries of each log block; see [`entries_per_block`].
    pub entries: u64,
    /// Offset up to which cached blocks were given up to make room.
    pub evict: u64,
    /// The device has never been full.
    pub first_sweep: bool,
    /// The area of cached blocks.
    pub start: u64,
    /// Its end.
    pub end: u64,
    /// The newest log block, and the one before.
    pub newest: [LogPtr; 2],
    /// Bytes of the log blocks in use, and their number.
    pub log_bytes: u64,
    /// See `log_bytes`.
    pub log_count: u64,
    /// When the whole device was last trimmed (seconds since 1970), and how that stands.
    pub trim: (u64, u64),
}

impl Header {
    /// The bytes, of [`header_size`]; the checksum at their end is left to the caller.
    pub fn encode(&self, ashift: u32) -> Vec<u8> {
        let mut b = vec![0; header_size(ashift) as usize];
        let flags = if self.first_sweep { FIRST_SWEEP } else { 0 };
        let words = [
            HEADER_MAGIC,
            VERSION,
            self.pool,
            self.vdev,
            self.entries,
            self.evict,
            flags,
            self.start,
            self.end,
        ];
        for (i, w) in words.iter().enumerate() {
            put_u64(&mut b, 8 * i, *w);
        }
        self.newest[0].put(&mut b, 72);
        self.newest[1].put(&mut b, 136);
        let rest = [self.log_bytes, self.log_count, self.trim.0, self.trim.1];
        for (i, w) in rest.iter().enumerate() {
            put_u64(&mut b, 200 + 8 * i, *w);
        }
        b
    }

    /// Reads a header whose checksum has been verified. `Damaged`: it is none, or of another version.
    pub fn decode(b: &[u8]) -> Result<Header> {
        let w = |i: usize| u64_at(b, 8 * i);
        if w(0)? != HEADER_MAGIC || w(1)? != VERSION {
            bail!(Damaged, "no header of a cache device");
        }
        Ok(Header {
            pool: w(2)?,
            vdev: w(3)?,
            entries: w(4)?,
            evict: w(5)?,
            first_sweep: w(6)? & FIRST_SWEEP != 0,
            start: w(7)?,
            end: w(8)?,
            newest: [LogPtr::get(b, 72)?, LogPtr::get(b, 136)?],
            log_bytes: w(25)?,
            log_count: w(26)?,
            trim: (w(27)?, w(28)?),
        })
    }
}

/// One cached block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogEntry {
    /// First address of the block in the pool.
    pub dva: Dva,
    /// Txg in which it was allocated.
    pub birth: Txg,
    /// Bytes of its content, and of the block as stored.
    pub lsize: u64,
    /// See `lsize`.
    pub psize: u64,
    /// How it is compressed.
    pub compression: Compression,
    /// It is metadata.
    pub metadata: bool,
    /// It is encrypted or authenticated.
    pub protected: bool,
    /// Offset on the device.
    pub at: u64,
}

/// Number of content; that of metadata is one more.
const DATA: u64 = 1;
/// State of a block that was used once, as OpenZFS's cache has it.
const RECENT: u64 = 1;

impl LogEntry {
    fn put(&self, b: &mut [u8], at: usize) {
        put_u64(b, at, self.dva.word0);
        put_u64(b, at + 8, self.dva.word1);
        put_u64(b, at + 16, self.birth.number());
        let prop = sizes(self.lsize, self.psize)
            | u64::from(self.compression.number()) << 32
            | (u64::from(self.metadata) + DATA) << 48
            | u64::from(self.protected) << 56
            | RECENT << 57;
        put_u64(b, at + 24, prop);
        put_u64(b, at + 32, self.at);
    }

    fn get(b: &[u8], at: usize) -> Result<LogEntry> {
        let prop = u64_at(b, at + 24)?;
        Ok(LogEntry {
            dva: Dva {
                word0: u64_at(b, at)?,
                word1: u64_at(b, at + 8)?,
            },
            birth: Txg::new(u64_at(b, at + 16)?),
            lsize: lsize(prop),
            psize: psize(prop),
            compression: compression(prop),
            metadata: prop >> 48 & 0xff > DATA,
            protected: prop >> 56 & 1 != 0,
            at: u64_at(b, at + 32)?,
        })
    }
}

/// The [`LOG_SIZE`] bytes of a log block. More than [`MAX_ENTRIES`] entries are a mistake of the caller.
pub fn encode_log(previous: &LogPtr, entries: &[LogEntry]) -> Vec<u8> {
    let mut b = vec![0; LOG_SIZE];
    put_u64(&mut b, 0, LOG_MAGIC);
    previous.put(&mut b, 8);
    for (i, e) in entries.iter().enumerate() {
        e.put(&mut b, ENTRIES_AT + i * ENTRY_SIZE);
    }
    b
}

/// The first `entries` entries of a log block whose checksum has been verified, and the place of the log block before the
/// previous one.
///
/// # Errors
/// `Damaged`: it is none.
pub fn decode_log(b: &[u8], entries: u64) -> Result<(LogPtr, Vec<LogEntry>)> {
    if b.len() != LOG_SIZE || u64_at(b, 0)? != LOG_MAGIC {
        bail!(Damaged, "no log block of a cache device");
    }
    let list: Result<Vec<LogEntry>> = (0..entries.min(MAX_ENTRIES) as usize)
        .map(|i| LogEntry::get(b, ENTRIES_AT + i * ENTRY_SIZE))
        .collect();
    Ok((LogPtr::get(b, 8)?, list?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bytes::junk::Junk;

    fn entry(i: u64) -> LogEntry {
        LogEntry {
            dva: Dva::new(i % 3, i * 4096, 8192, false),
            birth: Txg::new(100 + i),
            lsize: 128 << 10,
            psize: 8192,
            compression: Compression::LZ4,
            metadata: i % 2 == 0,
            protected: i % 5 == 0,
            at: 0x40_1000 + i * 8192,
        }
    }

    #[test]
    fn headers_and_log_blocks_round_trip() {
        let ptr = LogPtr::new(
            1 << 30,
            4096,
            Compression::LZ4,
            (5 << 20, 77 << 12),
            [1, 2, 3, 4],
        );
        assert_eq!((ptr.asize(), ptr.compression()), (4096, Compression::LZ4));
        let h = Header {
            pool: 7,
            vdev: 8,
            entries: 63,
            evict: 9 << 20,
            first_sweep: true,
            start: 0x40_1000,
            end: 1 << 30,
            newest: [ptr, LogPtr::default()],
            log_bytes: 4096,
            log_count: 1,
            trim: (5, 6),
        };
        for ashift in [9, 12] {
            let b = h.encode(ashift);
            assert_eq!(b.len() as u64, header_size(ashift));
            assert_eq!(Header::decode(&b).unwrap(), h);
        }
        let entries: Vec<LogEntry> = (0..MAX_ENTRIES).map(entry).collect();
        let b = encode_log(&ptr, &entries);
        assert_eq!(decode_log(&b, MAX_ENTRIES).unwrap(), (ptr, entries.clone()));
        assert_eq!(decode_log(&b, 10).unwrap().1, entries[..10]);
    }

    #[test]
    fn small_devices_have_no_log_blocks() {
        assert_eq!(entries_per_block((1 << 30) - 1), 0);
        assert_eq!(entries_per_block(1 << 30), 64);
        assert_eq!(entries_per_block(1 << 50), MAX_ENTRIES);
    }

    #[test]
    fn junk_does_no_harm() {
        let good = encode_log(&LogPtr::default(), &[entry(1), entry(2)]);
        let mut junk = Junk(7);
        junk.torment(&good, 200, |b| drop(decode_log(b, MAX_ENTRIES)));
        let good = Header::default().encode(9);
        junk.torment(&good, 200, |b| drop(Header::decode(b)));
    }
}
