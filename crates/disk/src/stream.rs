//! Send streams: their records, without the payloads (data format §30).
//!
//! A stream is a sequence of records of [`RECORD`] bytes in the sender's byte order, each followed by
//! its payload, if it has one.

use crate::bytes::{slice_at, u32_at, u64_at, up8};
use base::{bail, Error, Result};

/// Bytes of a record.
pub const RECORD: usize = 312;
/// Magic of the first record.
pub const MAGIC: u64 = 0x2_F5BA_CBAC;
/// Longest payload of a record: a block, or the lists a stream begins with.
pub const MAX_PAYLOAD: u64 = 256 << 20;
/// Offset of the checksum in all records but the first.
const CHECKSUM_AT: usize = 280;

/// Feature bits of a stream.
pub mod feature {
    pub const DEDUP: u64 = 1;
    pub const DEDUP_PROPS: u64 = 1 << 1;
    pub const SA_SPILL: u64 = 1 << 2;
    pub const EMBED_DATA: u64 = 1 << 16;
    pub const LZ4: u64 = 1 << 17;
    pub const LARGE_BLOCKS: u64 = 1 << 19;
    pub const RESUMING: u64 = 1 << 20;
    pub const REDACTED: u64 = 1 << 21;
    pub const COMPRESSED: u64 = 1 << 22;
    pub const LARGE_DNODE: u64 = 1 << 23;
    pub const RAW: u64 = 1 << 24;
    pub const ZSTD: u64 = 1 << 25;
    pub const HOLDS: u64 = 1 << 26;
}

/// One record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    pub body: Body,
    /// Bytes of payload that follow.
    pub payload: u64,
    /// Running fletcher4 of everything before; none in the first record.
    pub checksum: Option<[u64; 4]>,
}

/// What a record says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    Begin {
        /// 1 a stream of one snapshot, 2 a package of streams.
        kind: u8,
        /// See [`feature`].
        features: u64,
        creation_time: u64,
        objset_type: u32,
        flags: u32,
        to_guid: u64,
        /// 0: a full stream.
        from_guid: u64,
        to_name: Vec<u8>,
    },
    Object {
        object: u64,
        obj_type: u32,
        bonus_type: u32,
        block_size: u32,
        bonus_len: u32,
        checksum_type: u8,
        compress: u8,
        slots: u8,
        flags: u8,
        raw_bonus_len: u32,
        to_guid: u64,
        indblkshift: u8,
        nlevels: u8,
        nblkptr: u8,
        maxblkid: u64,
    },
    FreeObjects {
        first: u64,
        count: u64,
        to_guid: u64,
    },
    Write {
        object: u64,
        obj_type: u32,
        offset: u64,
        logical_size: u64,
        to_guid: u64,
        checksum_type: u8,
        flags: u8,
        compression: u8,
        key: [u64; 5],
        compressed_size: u64,
    },
    Free {
        object: u64,
        offset: u64,
        /// All ones: to the end.
        length: u64,
        to_guid: u64,
    },
    End {
        checksum: [u64; 4],
        to_guid: u64,
    },
    WriteByRef {
        object: u64,
        offset: u64,
        length: u64,
        to_guid: u64,
        ref_guid: u64,
        ref_object: u64,
        ref_offset: u64,
    },
    Spill {
        object: u64,
        length: u64,
        to_guid: u64,
        flags: u8,
        compression: u8,
        compressed_size: u64,
        obj_type: u32,
    },
    WriteEmbedded {
        object: u64,
        offset: u64,
        length: u64,
        to_guid: u64,
        compression: u8,
        kind: u8,
        lsize: u32,
        psize: u32,
    },
    ObjectRange {
        first: u64,
        slots: u64,
        to_guid: u64,
        flags: u8,
    },
    Redact {
        object: u64,
        offset: u64,
        length: u64,
        to_guid: u64,
    },
}

impl Body {
    /// Name of the type.
    pub fn name(&self) -> &'static str {
        match self {
            Body::Begin { .. } => "BEGIN",
            Body::Object { .. } => "OBJECT",
            Body::FreeObjects { .. } => "FREEOBJECTS",
            Body::Write { .. } => "WRITE",
            Body::Free { .. } => "FREE",
            Body::End { .. } => "END",
            Body::WriteByRef { .. } => "WRITE_BYREF",
            Body::Spill { .. } => "SPILL",
            Body::WriteEmbedded { .. } => "WRITE_EMBEDDED",
            Body::ObjectRange { .. } => "OBJECT_RANGE",
            Body::Redact { .. } => "REDACT",
        }
    }
}

/// Whether the stream that begins with these bytes was sent by a machine of the other byte order;
/// an error if it is no stream.
pub fn is_swapped(first: &[u8]) -> Result<bool> {
    match u64_at(first, 8)? {
        MAGIC => Ok(false),
        m if m == MAGIC.swap_bytes() => Ok(true),
        _ => bail!(Damaged, "not a send stream"),
    }
}

/// The fields of a record, in the byte order of its stream.
struct Fields<'a> {
    b: &'a [u8],
    swapped: bool,
}

impl Fields<'_> {
    fn w64(&self, at: usize) -> Result<u64> {
        let w = u64_at(self.b, at)?;
        Ok(if self.swapped { w.swap_bytes() } else { w })
    }

    fn w32(&self, at: usize) -> Result<u32> {
        let w = u32_at(self.b, at)?;
        Ok(if self.swapped { w.swap_bytes() } else { w })
    }

    fn byte(&self, at: usize) -> u8 {
        self.b.get(at).copied().unwrap_or(0)
    }

    fn sum(&self, at: usize) -> Result<[u64; 4]> {
        Ok([
            self.w64(at)?,
            self.w64(at + 8)?,
            self.w64(at + 16)?,
            self.w64(at + 24)?,
        ])
    }

    /// Records that carry or free data, and those at the end of a stream. Sets the size of the payload if there is one.
    fn data(&self, kind: u32, payload: &mut u64) -> Result<Body> {
        Ok(match kind {
            3 => {
                let (logical_size, compressed_size) = (self.w64(32)?, self.w64(96)?);
                let compression = self.byte(50);
                *payload = if compression != 0 {
                    compressed_size
                } else {
                    logical_size
                };
                let mut key = [0; 5];
                for (i, k) in key.iter_mut().enumerate() {
                    *k = self.w64(56 + 8 * i)?;
                }
                Body::Write {
                    object: self.w64(8)?,
                    obj_type: self.w32(16)?,
                    offset: self.w64(24)?,
                    logical_size,
                    to_guid: self.w64(40)?,
                    checksum_type: self.byte(48),
                    flags: self.byte(49),
                    compression,
                    key,
                    compressed_size,
                }
            }
            4 => Body::Free {
                object: self.w64(8)?,
                offset: self.w64(16)?,
                length: self.w64(24)?,
                to_guid: self.w64(32)?,
            },
            5 => Body::End {
                checksum: self.sum(8)?,
                to_guid: self.w64(40)?,
            },
            6 => Body::WriteByRef {
                object: self.w64(8)?,
                offset: self.w64(16)?,
                length: self.w64(24)?,
                to_guid: self.w64(32)?,
                ref_guid: self.w64(40)?,
                ref_object: self.w64(48)?,
                ref_offset: self.w64(56)?,
            },
            7 => {
                let (length, compressed_size) = (self.w64(16)?, self.w64(40)?);
                *payload = if compressed_size != 0 {
                    compressed_size
                } else {
                    length
                };
                Body::Spill {
                    object: self.w64(8)?,
                    length,
                    to_guid: self.w64(24)?,
                    flags: self.byte(32),
                    compression: self.byte(33),
                    compressed_size,
                    obj_type: self.w32(84)?,
                }
            }
            8 => {
                let psize = self.w32(52)?;
                *payload = up8(psize as usize) as u64;
                Body::WriteEmbedded {
                    object: self.w64(8)?,
                    offset: self.w64(16)?,
                    length: self.w64(24)?,
                    to_guid: self.w64(32)?,
                    compression: self.byte(40),
                    kind: self.byte(41),
                    lsize: self.w32(48)?,
                    psize,
                }
            }
            9 => Body::ObjectRange {
                first: self.w64(8)?,
                slots: self.w64(16)?,
                to_guid: self.w64(24)?,
                flags: self.byte(68),
            },
            10 => Body::Redact {
                object: self.w64(8)?,
                offset: self.w64(16)?,
                length: self.w64(24)?,
                to_guid: self.w64(32)?,
            },
            n => bail!(Damaged, "send stream: record of type {n}"),
        })
    }
}

impl Record {
    /// Decodes [`RECORD`] bytes.
    ///
    /// Errors: damaged, if they are fewer, of an unknown type, or with a payload beyond
    /// [`MAX_PAYLOAD`].
    pub fn decode(b: &[u8], swapped: bool) -> Result<Record> {
        let b = slice_at(b, 0, RECORD)?;
        let f = Fields { b, swapped };
        let kind = f.w32(0)?;
        let mut payload = 0;
        let body = match kind {
            0 => {
                if f.w64(8)? != MAGIC {
                    bail!(Damaged, "send stream: wrong magic");
                }
                let info = f.w64(16)?;
                let name = slice_at(b, 56, 256)?;
                let end = name.iter().position(|c| *c == 0).unwrap_or(name.len());
                payload = u64::from(f.w32(4)?);
                Body::Begin {
                    kind: (info & 3) as u8,
                    features: info >> 2 & ((1 << 56) - 1),
                    creation_time: f.w64(24)?,
                    objset_type: f.w32(32)?,
                    flags: f.w32(36)?,
                    to_guid: f.w64(40)?,
                    from_guid: f.w64(48)?,
                    to_name: name[..end].to_vec(),
                }
            }
            1 => {
                let (bonus_len, raw_bonus_len) = (f.w32(28)?, f.w32(36)?);
                payload = match raw_bonus_len {
                    0 => up8(bonus_len as usize) as u64,
                    n => u64::from(n),
                };
                Body::Object {
                    object: f.w64(8)?,
                    obj_type: f.w32(16)?,
                    bonus_type: f.w32(20)?,
                    block_size: f.w32(24)?,
                    bonus_len,
                    checksum_type: f.byte(32),
                    compress: f.byte(33),
                    slots: f.byte(34),
                    flags: f.byte(35),
                    raw_bonus_len,
                    to_guid: f.w64(40)?,
                    indblkshift: f.byte(48),
                    nlevels: f.byte(49),
                    nblkptr: f.byte(50),
                    maxblkid: f.w64(56)?,
                }
            }
            2 => Body::FreeObjects {
                first: f.w64(8)?,
                count: f.w64(16)?,
                to_guid: f.w64(24)?,
            },
            _ => f.data(kind, &mut payload)?,
        };
        if payload > MAX_PAYLOAD {
            bail!(Damaged, "send stream: payload of {payload} bytes");
        }
        let checksum = match kind {
            0 => None,
            _ => Some(f.sum(CHECKSUM_AT)?),
        };
        Ok(Record {
            body,
            payload,
            checksum,
        })
    }
}

/// Records of a stream that is wholly in memory, with their payloads. After an error it ends.
pub struct Records<'a> {
    b: &'a [u8],
    at: usize,
    swapped: Option<bool>,
}

/// Records of `b`; any number of streams one behind the other.
pub fn records(b: &[u8]) -> Records<'_> {
    Records {
        b,
        at: 0,
        swapped: None,
    }
}

impl<'a> Iterator for Records<'a> {
    type Item = Result<(Record, &'a [u8])>;

    fn next(&mut self) -> Option<Self::Item> {
        let rest = self.b.get(self.at..).filter(|r| !r.is_empty())?;
        let one = || -> Result<(Record, &'a [u8], bool)> {
            let swapped = match self.swapped {
                Some(s) => s,
                None => is_swapped(rest)?,
            };
            let r = Record::decode(rest, swapped)?;
            let len = usize::try_from(r.payload).map_err(|_| Error::damaged("payload"))?;
            Ok((r, slice_at(rest, RECORD, len)?, swapped))
        };
        match one() {
            Ok((r, payload, swapped)) => {
                // The next stream of a package may be of another machine.
                self.swapped = (!matches!(r.body, Body::End { .. })).then_some(swapped);
                self.at += RECORD + payload.len();
                Some(Ok((r, payload)))
            }
            Err(e) => {
                self.at = self.b.len();
                Some(Err(e))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bytes::{put_u32, put_u64};

    fn begin(swapped: bool) -> Vec<u8> {
        let mut b = vec![0; RECORD];
        let magic = if swapped { MAGIC.swap_bytes() } else { MAGIC };
        put_u64(&mut b, 8, magic);
        let info = 1 | feature::RAW << 2;
        put_u64(&mut b, 16, if swapped { info.swap_bytes() } else { info });
        b[56..62].copy_from_slice(b"p/f@s\0");
        b
    }

    #[test]
    fn both_byte_orders() {
        for swapped in [false, true] {
            let b = begin(swapped);
            assert_eq!(is_swapped(&b).unwrap(), swapped);
            let r = Record::decode(&b, swapped).unwrap();
            let Body::Begin {
                kind,
                features,
                to_name,
                ..
            } = r.body
            else {
                panic!("{r:?}");
            };
            assert_eq!(
                (kind, features, to_name),
                (1, feature::RAW, b"p/f@s".to_vec())
            );
        }
    }

    #[test]
    fn payloads() {
        let mut b = begin(false);
        let mut w = vec![0; RECORD];
        put_u32(&mut w, 0, 3);
        put_u64(&mut w, 32, 1024);
        b.extend_from_slice(&w);
        b.extend_from_slice(&[7; 1024]);
        let all: Vec<_> = records(&b).map(|r| r.unwrap()).collect();
        assert_eq!(all.len(), 2);
        assert_eq!(all[1].1, [7; 1024]);
        // Compressed: another length counts.
        w[50] = 15;
        put_u64(&mut w, 96, 512);
        assert_eq!(Record::decode(&w, false).unwrap().payload, 512);
        put_u64(&mut w, 96, 1 << 40);
        assert!(Record::decode(&w, false).is_err());
        b.truncate(b.len() - 1);
        assert!(records(&b).any(|r| r.is_err()));
        assert!(records(&[0; 100]).next().is_some_and(|r| r.is_err()));
    }
}
