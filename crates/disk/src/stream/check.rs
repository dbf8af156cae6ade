//! Whether the values of a record make sense.

use super::{HeaderType, Record, MAX_BONUS, MAX_SLOTS};
use crate::dnode::MAX_OBJECT;
use crate::types::ObjType;
use base::{bail, Result, MAX_BLOCK, SECTOR};

/// Whether the number is that of an object type.
fn is_type(n: u32) -> bool {
    u8::try_from(n).is_ok_and(|n| ObjType(n).is_valid())
}

/// Highest number of a compression.
const MAX_COMPRESSION: u8 = 16;

/// Whether a range of bytes or objects ends before the numbers do.
fn fits(first: u64, len: u64) -> bool {
    first.checked_add(len).is_some()
}

impl Record {
    /// Checks the values of a record that do not depend on the target: types, sizes, ranges.
    ///
    /// Errors: `Invalid`, naming the record and what is wrong; `Unsupported` for a BEGIN with unknown features.
    pub fn check(&self) -> Result<()> {
        match self.fault() {
            None => match self {
                Record::Begin(r) if r.unknown_features() != 0 => bail!(
                    Unsupported,
                    "send stream: unknown features {:#x}",
                    r.unknown_features()
                ),
                _ => Ok(()),
            },
            Some(what) => bail!(Invalid, "send stream: {} record with {what}", self.name()),
        }
    }

    /// The object whose content it has.
    fn object(&self) -> Option<u64> {
        match self {
            Record::Write(r) => Some(r.object),
            Record::Free(r) => Some(r.object),
            Record::WriteByRef(r) => Some(r.object),
            Record::Spill(r) => Some(r.object),
            Record::WriteEmbedded(r) => Some(r.object),
            Record::Redact(r) => Some(r.object),
            _ => None,
        }
    }

    /// What is wrong with it.
    fn fault(&self) -> Option<String> {
        // Higher numbers are those of the accounting objects, which no stream has.
        if let Some(object) = self.object().filter(|o| *o > MAX_OBJECT) {
            return Some(format!("object {object}"));
        }
        match self {
            Record::Begin(r) => match r.header_type {
                HeaderType::Other(n) => Some(format!("header type {n}")),
                _ => None,
            },
            Record::Object(r) => {
                let size = u64::from(r.block_size);
                if r.object == 0 || r.object > MAX_OBJECT - u64::from(r.slots.max(1)) {
                    Some(format!("object {}", r.object))
                } else if !is_type(r.obj_type) || r.obj_type == 0 {
                    Some(format!("object type {}", r.obj_type))
                } else if !is_type(r.bonus_type) {
                    Some(format!("bonus type {}", r.bonus_type))
                } else if size < SECTOR || size > MAX_BLOCK as u64 || size % SECTOR != 0 {
                    Some(format!("block size {size}"))
                } else if r.max_block >= u64::MAX / size {
                    Some(format!("last block {}", r.max_block))
                } else if r.bonus_len as usize > MAX_BONUS {
                    Some(format!("a bonus of {} bytes", r.bonus_len))
                } else if r.raw_bonus_len as usize > MAX_BONUS {
                    Some(format!("a raw bonus of {} bytes", r.raw_bonus_len))
                } else if r.slots > MAX_SLOTS {
                    Some(format!("{} dnode slots", r.slots))
                } else {
                    None
                }
            }
            Record::FreeObjects(r) => {
                (!fits(r.first, r.count)).then(|| format!("{} objects from {}", r.count, r.first))
            }
            Record::Write(r) => {
                if !is_type(r.obj_type) {
                    Some(format!("object type {}", r.obj_type))
                } else if r.logical_size == 0 || r.logical_size > MAX_BLOCK as u64 {
                    Some(format!("{} bytes", r.logical_size))
                } else if !fits(r.offset, r.logical_size) {
                    Some(format!("{} bytes at {}", r.logical_size, r.offset))
                } else if r.compression > MAX_COMPRESSION {
                    Some(format!("compression {}", r.compression))
                } else if r.compression != 0 && r.compressed_size == 0 {
                    Some("no compressed data".into())
                } else {
                    None
                }
            }
            Record::Free(r) => (r.length != u64::MAX && !fits(r.offset, r.length))
                .then(|| format!("{} bytes at {}", r.length, r.offset)),
            Record::End(_) => None,
            Record::WriteByRef(r) => {
                (!fits(r.offset, r.length)).then(|| format!("{} bytes at {}", r.length, r.offset))
            }
            Record::Spill(r) => {
                if r.compression > MAX_COMPRESSION {
                    Some(format!("compression {}", r.compression))
                } else {
                    (r.length < SECTOR || r.length > MAX_BLOCK as u64)
                        .then(|| format!("a block of {} bytes", r.length))
                }
            }
            Record::WriteEmbedded(r) => {
                if r.length > MAX_BLOCK as u64 || !fits(r.offset, r.length) {
                    Some(format!("{} bytes at {}", r.length, r.offset))
                } else if r.compression > MAX_COMPRESSION {
                    Some(format!("compression {}", r.compression))
                } else if r.lsize as usize > MAX_BLOCK || r.psize == 0 {
                    Some(format!("data of {} in {} bytes", r.lsize, r.psize))
                } else {
                    None
                }
            }
            Record::ObjectRange(r) => {
                (!fits(r.first, r.slots)).then(|| format!("{} slots from {}", r.slots, r.first))
            }
            Record::Redact(r) => {
                (!fits(r.offset, r.length)).then(|| format!("{} bytes at {}", r.length, r.offset))
            }
        }
    }
}
