//! Conversion of the items of a traversal into records of the stream (data format §30.4).
//!
//! 1. Records are in ascending order of object and offset. One FREE record may come before: that of everything
//!    behind the end of an object follows its OBJECT record.
//! 2. Ranges that are freed one after the other are one record, and so are objects.
//! 3. FREEOBJECTS never goes beyond the objects that the dnode blocks of the snapshot have room for.

use super::item::{Got, Item};
use crate::Sink;
use base::{bail, Result, Txg};
use disk::bytes::up8;
use disk::ddt::DdtKey;
use disk::dnode::{flags, DNODES_PER_BLOCK};
use disk::stream::{
    feature, record_flag, Free, FreeObjects, Object, ObjectRange, Record, Redact, Spill, Write,
    WriteEmbedded,
};
use disk::{BlkPtr, Checksum, Compression, DnodePhys};

/// Largest block of streams without [`feature::LARGE_BLOCKS`].
pub(super) const OLD_MAX_BLOCK: usize = 128 << 10;
/// Length of a FREE record that reaches to the end of the object.
const TO_END: u64 = u64::MAX;

/// Where records go.
pub(super) enum Out<'a> {
    Stream(&'a mut dyn Sink),
    /// Nothing is written; bytes are counted.
    Count(u64),
}

/// A record that may still grow.
enum Pending {
    Free(Free),
    Objects(FreeObjects),
    Redact(Redact),
}

/// Makes records of items.
pub(super) struct Emitter<'a> {
    pub out: Out<'a>,
    pub to_guid: u64,
    /// Of the stream.
    pub features: u64,
    /// Objects the dnode blocks of the snapshot have room for; 0: not known.
    pub max_objects: u64,
    /// Spill blocks born at or before this txg are marked as unmodified.
    pub from_txg: Txg,
    pending: Option<Pending>,
}

/// The payload of a record; of one that is only counted the length.
enum Payload<'a> {
    Bytes(&'a [u8]),
    Length(usize),
}

fn params(bp: &BlkPtr) -> ([u8; 8], [u8; 12], [u8; 16]) {
    (bp.salt(), bp.iv(), bp.mac())
}

fn swap_flag(bp: &BlkPtr) -> u8 {
    match bp.is_little_endian() {
        true => 0,
        false => record_flag::RAW_BYTESWAP,
    }
}

/// Whether an embedded block goes into the stream as it is.
pub(super) fn sends_embedded(bp: &BlkPtr, features: u64) -> bool {
    bp.is_embedded()
        && bp.embedded_type() == 0
        && features & feature::EMBED_DATA != 0
        && (bp.compress() < Compression::LZ4 || features & feature::LZ4 != 0)
        && (bp.compress() != Compression::ZSTD || features & feature::ZSTD != 0)
}

impl<'a> Emitter<'a> {
    pub fn new(out: Out<'a>, to_guid: u64, features: u64, from_txg: Txg) -> Emitter<'a> {
        Emitter {
            out,
            to_guid,
            features,
            max_objects: 0,
            from_txg,
            pending: None,
        }
    }

    /// Sets the limit of FREEOBJECTS records from the meta-dnode.
    pub fn set_meta(&mut self, meta: &DnodePhys) {
        self.max_objects = meta
            .maxblkid
            .saturating_add(1)
            .saturating_mul(DNODES_PER_BLOCK);
    }

    fn is_raw(&self) -> bool {
        self.features & feature::RAW != 0
    }

    fn put(&mut self, r: &Record, payload: Payload) -> Result<()> {
        match (&mut self.out, payload) {
            (Out::Stream(s), Payload::Bytes(b)) => s.record(r, b),
            (Out::Stream(_), Payload::Length(_)) => {
                bail!(Invalid, "a record without its payload")
            }
            (Out::Count(n), Payload::Bytes(b)) => {
                *n += (disk::stream::RECORD + b.len()) as u64;
                Ok(())
            }
            (Out::Count(n), Payload::Length(len)) => {
                *n += (disk::stream::RECORD + len) as u64;
                Ok(())
            }
        }
    }

    /// Writes the record that could still have grown.
    pub fn flush(&mut self) -> Result<()> {
        match self.pending.take() {
            None => Ok(()),
            Some(Pending::Free(r)) => self.put(&Record::Free(r), Payload::Bytes(&[])),
            Some(Pending::Objects(r)) => self.put(&Record::FreeObjects(r), Payload::Bytes(&[])),
            Some(Pending::Redact(r)) => self.put(&Record::Redact(r), Payload::Bytes(&[])),
        }
    }

    /// One item. `got` is its data, for items that have some.
    pub fn item(&mut self, item: &Item, got: Option<&Got>) -> Result<()> {
        match item {
            Item::ObjectRange { first, slots, bp } => {
                self.flush()?;
                let (salt, iv, mac) = params(bp);
                let r = ObjectRange {
                    first: *first,
                    slots: *slots,
                    to_guid: self.to_guid,
                    salt,
                    iv,
                    mac,
                    flags: swap_flag(bp),
                };
                self.put(&Record::ObjectRange(r), Payload::Bytes(&[]))
            }
            Item::Object {
                object,
                dn,
                bonus,
                swapped,
            } => self.object(*object, dn, bonus, *swapped),
            Item::FreeSlots { first, count } => self.free_objects(*first, *count),
            Item::Hole {
                object,
                start,
                end,
                block_size,
            } => self.hole(*object, *start, *end, *block_size),
            Item::Redacted {
                object,
                start,
                count,
                block_size,
            } => self.redact(
                *object,
                start.saturating_mul(*block_size),
                count * block_size,
            ),
            Item::Data {
                object,
                blkid,
                bp,
                obj_type,
                block_size,
            } => {
                let offset = blkid.saturating_mul(*block_size as u64);
                if sends_embedded(bp, self.features) {
                    return self.embedded(*object, offset, *block_size, bp);
                }
                self.write(*object, *obj_type, offset, *block_size, bp, got)
            }
            Item::Spill { object, bp } => self.spill(*object, bp, got),
        }
    }

    fn object(&mut self, object: u64, dn: &DnodePhys, bonus: &[u8], swapped: bool) -> Result<()> {
        self.flush()?;
        let mut r = Object {
            object,
            obj_type: u32::from(dn.obj_type.0),
            bonus_type: u32::from(dn.bonus_type.0),
            block_size: dn.block_size() as u32,
            bonus_len: dn.bonus.len() as u32,
            checksum_type: dn.checksum.number(),
            compress: dn.compress.number(),
            slots: dn.slots,
            to_guid: self.to_guid,
            ..Object::default()
        };
        if self.features & feature::LARGE_BLOCKS == 0 {
            if self.is_raw() && r.block_size > OLD_MAX_BLOCK as u32 {
                // The MACs above it count the size.
                bail!(
                    Unsupported,
                    "object {object} has blocks of {} KiB, none of which was ever written, and the dataset does \
                     not count as one with large blocks: no raw stream of it can be received. Write a file of \
                     large blocks there (dd if=/dev/urandom of=FILE bs=1M count=2), snapshot, and send that; or \
                     send without -w",
                    r.block_size >> 10
                );
            }
            r.block_size = r.block_size.min(OLD_MAX_BLOCK as u32);
        }
        if self.is_raw() {
            if swapped {
                r.flags |= record_flag::RAW_BYTESWAP;
            }
            r.max_block = dn.maxblkid;
            r.indirect_shift = dn.indblkshift;
            r.levels = dn.nlevels;
            r.block_pointers = dn.blkptr.len() as u8;
            r.raw_bonus_len = bonus.len() as u32;
        }
        if dn.flags & flags::SPILL_BLKPTR != 0 {
            r.flags |= record_flag::OBJECT_SPILL;
        }
        let mut payload = bonus.to_vec();
        payload.resize(up8(payload.len()), 0);
        self.put(&Record::Object(r), Payload::Bytes(&payload))?;
        // Whatever the receiver may have behind the end.
        let end = dn
            .maxblkid
            .saturating_add(1)
            .saturating_mul(dn.block_size() as u64);
        self.free(object, end, TO_END)
    }

    fn free_objects(&mut self, first: u64, count: u64) -> Result<()> {
        let mut count = count;
        if self.max_objects > 0 {
            if self.max_objects <= first {
                return Ok(());
            }
            count = count.min(self.max_objects - first);
        }
        if let Some(Pending::Objects(r)) = &mut self.pending {
            if r.first + r.count == first {
                r.count += count;
                return Ok(());
            }
        }
        self.flush()?;
        self.pending = Some(Pending::Objects(FreeObjects {
            first,
            count,
            to_guid: self.to_guid,
        }));
        Ok(())
    }

    fn hole(&mut self, object: u64, start: u64, end: u64, block_size: u64) -> Result<()> {
        if object == walk::META_DNODE {
            let first = start.saturating_mul(DNODES_PER_BLOCK);
            let last = end.saturating_mul(DNODES_PER_BLOCK);
            return self.free_objects(first, last - first);
        }
        // What lies behind the last offset there can be was never written.
        let Some(offset) = start.checked_mul(block_size) else {
            return Ok(());
        };
        let end = end.saturating_mul(block_size);
        if base::mutation::mutated(base::mutation::Mutation::SendHolesLeftOut) {
            return Ok(());
        }
        self.free(object, offset, end - offset)
    }

    fn free(&mut self, object: u64, offset: u64, length: u64) -> Result<()> {
        let end = offset.checked_add(length);
        if let Some(Pending::Free(r)) = &mut self.pending {
            if r.object == object && r.offset.checked_add(r.length) == Some(offset) {
                r.length = match end {
                    Some(_) if length != TO_END => r.length + length,
                    _ => TO_END,
                };
                return Ok(());
            }
        }
        self.flush()?;
        let r = Free {
            object,
            offset,
            length: end.map_or(TO_END, |_| length),
            to_guid: self.to_guid,
        };
        if length == TO_END {
            return self.put(&Record::Free(r), Payload::Bytes(&[]));
        }
        self.pending = Some(Pending::Free(r));
        Ok(())
    }

    fn redact(&mut self, object: u64, offset: u64, length: u64) -> Result<()> {
        if let Some(Pending::Redact(r)) = &mut self.pending {
            if r.object == object && r.offset.checked_add(r.length) == Some(offset) {
                r.length += length;
                return Ok(());
            }
        }
        self.flush()?;
        self.pending = Some(Pending::Redact(Redact {
            object,
            offset,
            length,
            to_guid: self.to_guid,
        }));
        Ok(())
    }

    fn embedded(&mut self, object: u64, offset: u64, block_size: usize, bp: &BlkPtr) -> Result<()> {
        self.flush()?;
        let r = WriteEmbedded {
            object,
            offset,
            length: block_size as u64,
            to_guid: self.to_guid,
            compression: bp.compress().number(),
            etype: bp.embedded_type(),
            lsize: bp.lsize() as u32,
            psize: bp.psize() as u32,
        };
        let mut payload = bp.embedded_payload();
        payload.resize(up8(payload.len()), 0);
        self.put(&Record::WriteEmbedded(r), Payload::Bytes(&payload))
    }

    fn write(
        &mut self,
        object: u64,
        obj_type: u8,
        offset: u64,
        block_size: usize,
        bp: &BlkPtr,
        got: Option<&Got>,
    ) -> Result<()> {
        self.flush()?;
        let mut r = Write {
            object,
            obj_type: u32::from(obj_type),
            offset,
            logical_size: block_size as u64,
            to_guid: self.to_guid,
            // Its key has no checksum.
            checksum_type: Checksum::OFF.number(),
            ..Write::default()
        };
        if splits(block_size, self.features) {
            for at in (0..block_size).step_by(OLD_MAX_BLOCK) {
                let len = OLD_MAX_BLOCK.min(block_size - at);
                r.offset = offset + at as u64;
                r.logical_size = len as u64;
                let part = part_of(got, at, len)?;
                self.put(&Record::Write(r.clone()), part)?;
            }
            return Ok(());
        }
        let stored = stored_form(bp, self.features);
        if stored {
            r.compression = bp.compress().number();
            r.compressed_size = bp.psize() as u64;
        }
        if self.is_raw() {
            r.flags |= swap_flag(bp);
            (r.salt, r.iv, r.mac) = params(bp);
        }
        if !bp.is_embedded() && (!bp.uses_crypt() || self.is_raw()) {
            r.checksum_type = bp.checksum_alg().number();
            if codec::checksum::is_dedup(bp.checksum_alg()) {
                r.flags |= record_flag::CHECKSUM_DEDUP;
            }
            r.key = DdtKey::of(bp).0;
        }
        let len = if stored { bp.psize() } else { block_size };
        let payload = part_of(got, 0, len)?;
        self.put(&Record::Write(r), payload)
    }

    fn spill(&mut self, object: u64, bp: &BlkPtr, got: Option<&Got>) -> Result<()> {
        self.flush()?;
        let mut r = Spill {
            object,
            length: bp.lsize() as u64,
            to_guid: self.to_guid,
            ..Spill::default()
        };
        if bp.logical_birth() <= self.from_txg {
            r.flags |= record_flag::SPILL_UNMODIFIED;
        }
        let mut len = bp.lsize();
        if self.is_raw() {
            r.flags |= swap_flag(bp);
            (r.salt, r.iv, r.mac) = params(bp);
            r.compression = bp.compress().number();
            r.compressed_size = bp.psize() as u64;
            len = bp.psize();
        }
        let payload = part_of(got, 0, len)?;
        self.put(&Record::Spill(r), payload)
    }
}

/// Whether a block is sent in pieces.
pub(super) fn splits(block_size: usize, features: u64) -> bool {
    block_size > OLD_MAX_BLOCK && features & feature::LARGE_BLOCKS == 0
}

/// Whether the data of a block are sent as they are stored. Metadata are not, since a receiver may have to swap
/// their bytes. Encrypted blocks are decrypted for streams that are not raw, and stay compressed.
pub(super) fn stored_form(bp: &BlkPtr, features: u64) -> bool {
    if bp.is_embedded() {
        return false;
    }
    features & feature::RAW != 0
        || features & feature::COMPRESSED != 0
            && bp.compress() != Compression::OFF
            && bp.is_little_endian()
            && !bp.obj_type().is_metadata()
            && !splits(bp.lsize(), features)
}

/// A part of the data of an item, or its length if nothing was read.
fn part_of(got: Option<&Got>, at: usize, len: usize) -> Result<Payload<'_>> {
    let Some(got) = got else {
        return Ok(Payload::Length(len));
    };
    match got.bytes().get(at..at + len) {
        Some(b) => Ok(Payload::Bytes(b)),
        None => bail!(
            Damaged,
            "block of {} bytes, expected {}",
            got.bytes().len(),
            at + len
        ),
    }
}
