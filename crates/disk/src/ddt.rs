//! Dedup tables (data format §27, §28): keys, entries and the log of changes.
//!
//! All words here are in host order. Crate `pool` packs an entry as the value of its ZAP (a version byte and
//! a compressed body), since it can compress.

use crate::blkptr::{BlkPtr, Dva, DVAS};
use crate::bytes::{put_u64, u64_at};
use crate::types::ObjType;
use crate::{Checksum, Compression};
use base::{bail, Error, Result, Txg};

/// Words of a key.
pub const KEY_WORDS: usize = 5;
/// Slots of a traditional entry: 0 for the extra copies of an obsolete property, then blocks written
/// with one, two and three copies.
pub const SLOTS: usize = 4;
/// Bytes of a traditional entry.
pub const TRADITIONAL_SIZE: usize = SLOTS * SLOT_SIZE;
/// Bytes of one of its slots.
pub const SLOT_SIZE: usize = 64;
/// Bytes of a flat entry.
pub const FLAT_SIZE: usize = 72;
/// Words of a histogram: 64 powers of two, 8 counters each.
pub const HISTOGRAM_WORDS: usize = 512;
/// Bytes of a record of the log.
pub const LOG_RECORD: usize = 120;
/// Bytes of the bonus of a log.
pub const LOG_BONUS: usize = 64;
/// Flags of a table's directory: flat entries; changes go through a log.
pub const FLAG_FLAT: u64 = 1;
/// See [`FLAG_FLAT`].
pub const FLAG_LOG: u64 = 2;
/// Flags of a log.
pub const LOG_FLUSHING: u8 = 1;
/// See [`LOG_FLUSHING`].
pub const LOG_CHECKPOINT: u8 = 2;

/// What a table sorts its entries into, by the number of references.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DdtClass {
    /// Blocks with extra copies; obsolete.
    Ditto,
    /// More than one reference.
    Duplicate,
    /// One reference.
    Unique,
}

impl DdtClass {
    /// All classes in the order of their numbers.
    pub const ALL: [DdtClass; 3] = [DdtClass::Ditto, DdtClass::Duplicate, DdtClass::Unique];

    /// As in names of objects.
    pub fn name(self) -> &'static str {
        match self {
            DdtClass::Ditto => "ditto",
            DdtClass::Duplicate => "duplicate",
            DdtClass::Unique => "unique",
        }
    }

    /// Number of the class in the statistics of a table.
    pub fn index(self) -> usize {
        self as usize
    }

    /// The class of an entry with so many references.
    pub fn of(references: u64) -> DdtClass {
        if references > 1 {
            DdtClass::Duplicate
        } else {
            DdtClass::Unique
        }
    }
}

/// What identifies a block: its checksum, sizes and compression.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DdtKey(pub [u64; KEY_WORDS]);

impl DdtKey {
    /// The key of a block.
    pub fn of(bp: &BlkPtr) -> DdtKey {
        let c = bp.checksum();
        // Sizes and compression lie as in the pointer, which need not have an address yet.
        let prop = bp.words[6] & ((1 << 39) - 1) | (bp.uses_crypt() as u64) << 39;
        DdtKey([c[0], c[1], c[2], c[3], prop])
    }

    /// From the words a ZAP entry has for its name. `Damaged`: not five words.
    pub fn from_words(w: &[u64]) -> Result<DdtKey> {
        match w.try_into() {
            Ok(w) => Ok(DdtKey(w)),
            Err(_) => bail!(Damaged, "dedup table: key of {} words", w.len()),
        }
    }

    /// Logical size of the block in bytes.
    pub fn lsize(&self) -> usize {
        ((self.0[4] & 0xffff) as usize + 1) << 9
    }
    /// Physical size of the block in bytes.
    pub fn psize(&self) -> usize {
        ((self.0[4] >> 16 & 0xffff) as usize + 1) << 9
    }
    /// Algorithm the block is compressed with.
    pub fn compress(&self) -> Compression {
        Compression::new((self.0[4] >> 32 & 0x7f) as u8)
    }
    /// Whether the block is encrypted, so that its third DVA holds salt and IV.
    pub fn is_encrypted(&self) -> bool {
        self.0[4] >> 39 & 1 != 0
    }

    /// A pointer to the block of this key at the addresses of `slot`, as repair and freeing use it.
    pub fn pointer(&self, checksum: Checksum, slot: &DdtSlot) -> BlkPtr {
        let mut bp = BlkPtr::new(
            ObjType::DEDUP,
            0,
            self.lsize(),
            self.psize(),
            self.compress(),
            checksum,
            slot.birth,
        );
        for (i, d) in slot.dvas.iter().enumerate() {
            bp.set_dva(i, *d);
        }
        bp.set_checksum([self.0[0], self.0[1], self.0[2], self.0[3]]);
        bp.set_dedup(true);
        if self.is_encrypted() {
            bp.words[6] |= 1 << 61;
        }
        bp.set_fill(1);
        bp
    }
}

/// One physical block of an entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DdtSlot {
    /// Addresses of the copies; unused ones are zero.
    pub dvas: [Dva; DVAS],
    /// Number of block pointers that refer to the block.
    pub refcount: u64,
    /// Txg in which the block was written; 0 = the slot is not used.
    pub birth: Txg,
}

impl DdtSlot {
    fn decode(b: &[u8], at: usize, swap: bool) -> Result<DdtSlot> {
        let word = |i: usize| -> Result<u64> {
            let w = u64_at(b, at + 8 * i)?;
            Ok(if swap { w.swap_bytes() } else { w })
        };
        let mut s = DdtSlot::default();
        for (i, d) in s.dvas.iter_mut().enumerate() {
            *d = Dva {
                word0: word(2 * i)?,
                word1: word(2 * i + 1)?,
            };
        }
        s.refcount = word(6)?;
        s.birth = Txg::new(word(7)?);
        Ok(s)
    }

    fn encode(&self, b: &mut [u8], at: usize) {
        for (i, d) in self.dvas.iter().enumerate() {
            put_u64(b, at + 16 * i, d.word0);
            put_u64(b, at + 16 * i + 8, d.word1);
        }
        put_u64(b, at + 48, self.refcount);
        put_u64(b, at + 56, self.birth.number());
    }

    /// The addresses in use; of encrypted blocks the third one holds something else.
    pub fn addresses(&self, encrypted: bool) -> impl Iterator<Item = &Dva> {
        let n = if encrypted { 2 } else { DVAS };
        self.dvas[..n].iter().filter(|d| d.is_valid())
    }
}

/// What a table holds of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DdtEntry {
    /// All slots, 256 bytes; pools without `fast_dedup`.
    Traditional([DdtSlot; SLOTS]),
    /// One slot and the time, 72 bytes; pools with `fast_dedup`.
    Flat {
        /// The block.
        slot: DdtSlot,
        /// When the entry got its present class, seconds since 1970.
        class_start: u64,
    },
}

impl DdtEntry {
    /// Decodes the unpacked body; `swap` if it was written by a big-endian machine.
    pub fn decode(b: &[u8], flat: bool, swap: bool) -> Result<DdtEntry> {
        if flat {
            let w = u64_at(b, SLOT_SIZE)?;
            return Ok(DdtEntry::Flat {
                slot: DdtSlot::decode(b, 0, swap)?,
                class_start: if swap { w.swap_bytes() } else { w },
            });
        }
        let mut slots = [DdtSlot::default(); SLOTS];
        for (i, s) in slots.iter_mut().enumerate() {
            *s = DdtSlot::decode(b, i * SLOT_SIZE, swap)?;
        }
        Ok(DdtEntry::Traditional(slots))
    }

    /// 256 or 72 bytes, little-endian.
    pub fn encode(&self) -> Vec<u8> {
        match self {
            DdtEntry::Traditional(slots) => {
                let mut b = vec![0; TRADITIONAL_SIZE];
                for (i, s) in slots.iter().enumerate() {
                    s.encode(&mut b, i * SLOT_SIZE);
                }
                b
            }
            DdtEntry::Flat { slot, class_start } => {
                let mut b = vec![0; FLAT_SIZE];
                slot.encode(&mut b, 0);
                put_u64(&mut b, SLOT_SIZE, *class_start);
                b
            }
        }
    }

    /// The slots, used or not.
    pub fn slots(&self) -> &[DdtSlot] {
        match self {
            DdtEntry::Traditional(s) => s,
            DdtEntry::Flat { slot, .. } => std::slice::from_ref(slot),
        }
    }

    /// The slots, to be changed.
    pub fn slots_mut(&mut self) -> &mut [DdtSlot] {
        match self {
            DdtEntry::Traditional(s) => s,
            DdtEntry::Flat { slot, .. } => std::slice::from_mut(slot),
        }
    }

    /// References over all slots.
    pub fn references(&self) -> u64 {
        let sum = |a: u64, s: &DdtSlot| a.saturating_add(s.refcount);
        self.slots().iter().fold(0, sum)
    }

    /// What the entry adds to a histogram: the index of the bucket, and blocks, logical, physical and
    /// allocated bytes, then the same by references. `deflate` gives the deflated size of an address.
    pub fn figures(&self, key: &DdtKey, deflate: impl Fn(&Dva) -> u64) -> (usize, [u64; 8]) {
        let mut f = [0u64; 8];
        for s in self.slots().iter().filter(|s| !s.birth.is_none()) {
            let dsize: u64 = s.addresses(key.is_encrypted()).map(&deflate).sum();
            let one = [1, key.lsize() as u64, key.psize() as u64, dsize];
            for (i, v) in one.into_iter().enumerate() {
                f[i] = f[i].wrapping_add(v);
                f[4 + i] = f[4 + i].wrapping_add(v.wrapping_mul(s.refcount));
            }
        }
        let bucket = (63 - f[4].max(1).leading_zeros()) as usize;
        (bucket, f)
    }
}

/// Figures of a table's object by number of references.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DdtHistogram(pub Vec<u64>);

impl Default for DdtHistogram {
    fn default() -> Self {
        DdtHistogram(vec![0; HISTOGRAM_WORDS])
    }
}

impl DdtHistogram {
    /// From the words stored; a missing tail counts nothing.
    pub fn from_words(mut w: Vec<u64>) -> DdtHistogram {
        w.resize(HISTOGRAM_WORDS, 0);
        DdtHistogram(w)
    }

    /// Adds or takes away an entry's [`figures`](DdtEntry::figures).
    pub fn count(&mut self, (bucket, f): &(usize, [u64; 8]), add: bool) {
        let at = bucket * 8;
        for (w, v) in self.0[at..at + 8].iter_mut().zip(f) {
            *w = match add {
                true => w.wrapping_add(*v),
                false => w.wrapping_sub(*v),
            };
        }
    }

    /// Blocks, logical, physical and allocated bytes, then the same by references, of all entries.
    pub fn total(&self) -> [u64; 8] {
        let mut t = [0u64; 8];
        for b in self.0.chunks_exact(8) {
            for (t, v) in t.iter_mut().zip(b) {
                *t = t.wrapping_add(*v);
            }
        }
        t
    }
}

/// Bonus of a log object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DdtLogPhys {
    /// Bits [`LOG_FLUSHING`] and [`LOG_CHECKPOINT`].
    pub flags: u8,
    /// Bytes in use, a multiple of the block size.
    pub length: u64,
    /// First txg whose changes the log has.
    pub first_txg: Txg,
    /// With [`LOG_CHECKPOINT`]: keys up to this one are in the tables already.
    pub checkpoint: DdtKey,
}

impl DdtLogPhys {
    /// Decodes the bonus, 64 bytes. `Unsupported`: a version other than 1.
    pub fn decode(b: &[u8]) -> Result<DdtLogPhys> {
        let info = u64_at(b, 0)?;
        if info & 0xff != 1 {
            bail!(Unsupported, "dedup log of version {}", info & 0xff);
        }
        let mut key = [0; KEY_WORDS];
        for (i, w) in key.iter_mut().enumerate() {
            *w = u64_at(b, 24 + 8 * i)?;
        }
        Ok(DdtLogPhys {
            flags: (info >> 8) as u8,
            length: u64_at(b, 8)?,
            first_txg: Txg::new(u64_at(b, 16)?),
            checkpoint: DdtKey(key),
        })
    }

    /// 64 bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut b = vec![0; LOG_BONUS];
        put_u64(&mut b, 0, 1 | (self.flags as u64) << 8);
        put_u64(&mut b, 8, self.length);
        put_u64(&mut b, 16, self.first_txg.number());
        for (i, w) in self.checkpoint.0.iter().enumerate() {
            put_u64(&mut b, 24 + 8 * i, *w);
        }
        b
    }
}

/// One record of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DdtLogRecord {
    /// Where the entry is stored, if it is.
    pub stored: Option<DdtClass>,
    /// The block the record is about.
    pub key: DdtKey,
    /// The entry after the change.
    pub entry: DdtEntry,
}

impl DdtLogRecord {
    /// Records of one block; a word of 0 ends it.
    pub fn decode_block(b: &[u8]) -> Result<Vec<DdtLogRecord>> {
        let mut out = Vec::new();
        let mut at = 0;
        while at + 8 <= b.len() {
            let info = u64_at(b, at)?;
            if info & 0xff == 0 {
                break;
            }
            let len = (info >> 8 & 0xffff) as usize;
            if info & 0xff != 1 || len < LOG_RECORD || at + len > b.len() {
                return Err(Error::damaged("dedup log: impossible record"));
            }
            let mut key = [0; KEY_WORDS];
            for (i, w) in key.iter_mut().enumerate() {
                *w = u64_at(b, at + 8 + 8 * i)?;
            }
            let stored = match (info >> 48 & 0xff, info >> 56) {
                (0, 0) => Some(DdtClass::Ditto),
                (0, 1) => Some(DdtClass::Duplicate),
                (0, 2) => Some(DdtClass::Unique),
                (1, _) => None,
                (t, c) => bail!(Damaged, "dedup log: stored as {t}, class {c}"),
            };
            let body = b.get(at + 48..at + len).unwrap_or_default();
            out.push(DdtLogRecord {
                stored,
                key: DdtKey(key),
                entry: DdtEntry::decode(body, true, false)?,
            });
            at += len;
        }
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slot(n: u64) -> DdtSlot {
        DdtSlot {
            dvas: [
                Dva::new(1, n << 12, 4096, false),
                Dva::default(),
                Dva::default(),
            ],
            refcount: n,
            birth: Txg::new(7),
        }
    }

    #[test]
    fn entries_round_trip_in_both_orders() {
        let mut slots = [DdtSlot::default(); SLOTS];
        slots[1] = slot(5);
        slots[3] = slot(2);
        let flat = DdtEntry::Flat {
            slot: slot(9),
            class_start: 0x1122_3344,
        };
        for e in [DdtEntry::Traditional(slots), flat] {
            let is_flat = matches!(e, DdtEntry::Flat { .. });
            let b = e.encode();
            assert_eq!(b.len(), if is_flat { 72 } else { 256 });
            assert_eq!(DdtEntry::decode(&b, is_flat, false).unwrap(), e);
            let big: Vec<u8> = b
                .chunks_exact(8)
                .flat_map(|c| c.iter().rev().copied())
                .collect();
            assert_eq!(DdtEntry::decode(&big, is_flat, true).unwrap(), e);
            assert!(DdtEntry::decode(&b[..60], is_flat, false).is_err());
        }
    }

    #[test]
    fn figures_count_every_reference() {
        let mut bp = BlkPtr::new(
            ObjType::PLAIN_FILE_CONTENTS,
            0,
            8192,
            4096,
            Compression::LZ4,
            Checksum::SHA256,
            Txg::new(7),
        );
        bp.set_checksum([1, 2, 3, 4]);
        bp.set_dva(0, Dva::new(0, 0, 4096, false));
        let key = DdtKey::of(&bp);
        assert_eq!(
            (key.lsize(), key.psize(), key.compress()),
            (8192, 4096, Compression::LZ4)
        );
        let e = DdtEntry::Flat {
            slot: slot(5),
            class_start: 0,
        };
        let (bucket, f) = e.figures(&key, Dva::asize);
        assert_eq!(bucket, 2);
        assert_eq!(f, [1, 8192, 4096, 4096, 5, 40960, 20480, 20480]);
        let mut h = DdtHistogram::default();
        h.count(&(bucket, f), true);
        assert_eq!(h.total(), f);
        h.count(&(bucket, f), false);
        assert_eq!(h, DdtHistogram::default());
        let back = key.pointer(Checksum::SHA256, &slot(5));
        assert_eq!(DdtKey::of(&back), key);
        assert!(back.is_dedup() && back.dva(0) == bp_address());
        fn bp_address() -> Dva {
            Dva::new(1, 5 << 12, 4096, false)
        }
    }

    #[test]
    fn logs() {
        let p = DdtLogPhys {
            flags: LOG_FLUSHING | LOG_CHECKPOINT,
            length: 131072,
            first_txg: Txg::new(12),
            checkpoint: DdtKey([1, 2, 3, 4, 5]),
        };
        assert_eq!(DdtLogPhys::decode(&p.encode()).unwrap(), p);
        let mut b = vec![0; 512];
        put_u64(&mut b, 0, 1 | 120 << 8 | 2 << 56);
        put_u64(&mut b, 8, 77);
        b[48..120].copy_from_slice(
            &DdtEntry::Flat {
                slot: slot(3),
                class_start: 4,
            }
            .encode(),
        );
        put_u64(&mut b, 120, 1 | 120 << 8 | 1 << 48 | 3 << 56);
        let r = DdtLogRecord::decode_block(&b).unwrap();
        assert_eq!(r.len(), 2);
        assert_eq!(r[0].stored, Some(DdtClass::Unique));
        assert_eq!((r[0].key.0[0], r[0].entry.references()), (77, 3));
        assert_eq!(r[1].stored, None);
        put_u64(&mut b, 120, 1 | 4000 << 8);
        assert!(DdtLogRecord::decode_block(&b).is_err());
    }
}
