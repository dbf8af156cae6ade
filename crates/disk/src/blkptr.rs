//! Block pointers and data virtual addresses (pool format §7).
//!
//! A [`BlkPtr`] keeps the sixteen words in host order; [`BlkPtr::read`] takes them from a block
//! whose byte order is known, [`BlkPtr::to_bytes`] stores little-endian.

use crate::types::ObjType;
use crate::{Checksum, Compression};
use base::{Error, Result, Txg, SECTOR};

/// Bytes of a block pointer.
pub const BP_SIZE: usize = 128;
/// Payload of an embedded block pointer.
pub const EMBEDDED_MAX: usize = 112;
/// Bits of a sector number that are an offset in bytes below 2^63.
const OFFSET_MASK: u64 = (1 << 54) - 1;
/// DVAs per pointer.
pub const DVAS: usize = 3;

/// Data virtual address: where one copy of a block lies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Dva {
    /// `[23:0]` ASIZE in sectors, `[55:32]` vdev id.
    pub word0: u64,
    /// `[62:0]` offset in sectors, `[63]` gang.
    pub word1: u64,
}

impl Dva {
    /// `offset` and `asize` in bytes, multiples of 512.
    pub fn new(vdev: u64, offset: u64, asize: u64, gang: bool) -> Dva {
        debug_assert!(offset % SECTOR == 0 && asize % SECTOR == 0 && asize / SECTOR < 1 << 24);
        Dva {
            word0: (asize / SECTOR) | (vdev & 0xff_ffff) << 32,
            word1: (offset / SECTOR) | (gang as u64) << 63,
        }
    }
    /// Whether both words are zero.
    pub fn is_empty(&self) -> bool {
        self.word0 == 0 && self.word1 == 0
    }
    /// A DVA is in use if its size is not zero.
    pub fn is_valid(&self) -> bool {
        self.asize() != 0
    }
    /// Allocated bytes (for a gang: header and all members at this index).
    pub fn asize(&self) -> u64 {
        (self.word0 & 0xff_ffff) * SECTOR
    }
    /// Number of the top-level vdev, below 2^24.
    pub fn vdev(&self) -> u64 {
        self.word0 >> 32 & 0xff_ffff
    }
    /// Byte offset inside the vdev's allocatable space. Below 2^63 whatever the word says;
    /// [`BlkPtr::sanity`] refuses words with more.
    pub fn offset(&self) -> u64 {
        (self.word1 & OFFSET_MASK) * SECTOR
    }
    /// Whether the address is that of a gang header.
    pub fn is_gang(&self) -> bool {
        self.word1 >> 63 != 0
    }
}

/// A block pointer; see the module for the order of words.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct BlkPtr {
    /// The words in the order of the format; see the table in `docs/format/block-pointers.md`.
    pub words: [u64; 16],
}

const PROP: usize = 6;
const PROP2: usize = 7;
const PHYS_BIRTH: usize = 9;
const BIRTH: usize = 10;
const FILL: usize = 11;
const CKSUM: usize = 12;
/// Words that carry payload in an embedded pointer, in order.
const PAYLOAD: [usize; 14] = [0, 1, 2, 3, 4, 5, 7, 8, 9, 11, 12, 13, 14, 15];

impl Default for BlkPtr {
    fn default() -> Self {
        BlkPtr::HOLE
    }
}

impl BlkPtr {
    /// Never written.
    pub const HOLE: BlkPtr = BlkPtr { words: [0; 16] };

    /// Reads 128 bytes; `swap` if the block holding the pointer is big-endian.
    pub fn read(b: &[u8], swap: bool) -> Result<BlkPtr> {
        let b: &[u8; BP_SIZE] = b
            .get(..BP_SIZE)
            .and_then(|b| b.try_into().ok())
            .ok_or_else(|| Error::damaged("block pointer cut short"))?;
        Ok(BlkPtr::from_bytes(b, swap))
    }

    /// Decodes a pointer; `swap` if the block holding it is big-endian.
    pub fn from_bytes(b: &[u8; BP_SIZE], swap: bool) -> BlkPtr {
        let mut words = [0; 16];
        for (w, c) in words.iter_mut().zip(b.chunks_exact(8)) {
            let v = u64::from_le_bytes(c.try_into().unwrap_or([0; 8]));
            *w = if swap { v.swap_bytes() } else { v };
        }
        BlkPtr { words }
    }

    /// The 128 bytes, little-endian.
    pub fn to_bytes(&self) -> [u8; BP_SIZE] {
        let mut out = [0; BP_SIZE];
        for (c, w) in out.chunks_exact_mut(8).zip(self.words) {
            c.copy_from_slice(&w.to_le_bytes());
        }
        out
    }

    /// The pointer at index `i` of an indirect block (little-endian words).
    pub fn at(block: &[u8], i: usize) -> Result<BlkPtr> {
        BlkPtr::read(block.get(i * BP_SIZE..).unwrap_or(&[]), false)
    }

    pub(crate) fn bits(&self, low: u32, len: u32) -> u64 {
        self.words[PROP] >> low & ((1 << len) - 1)
    }

    pub(crate) fn set_bits(&mut self, low: u32, len: u32, v: u64) {
        let mask = ((1u64 << len) - 1) << low;
        self.words[PROP] = self.words[PROP] & !mask | v << low & mask;
    }

    /// The property word.
    pub(crate) fn prop(&self) -> u64 {
        self.words[PROP]
    }

    /// DVA `i`, 0 to 2; not meaningful in embedded pointers, nor DVA 2 of an encrypted block.
    pub fn dva(&self, i: usize) -> Dva {
        Dva {
            word0: self.words[2 * i],
            word1: self.words[2 * i + 1],
        }
    }
    /// Replaces DVA `i`, 0 to 2.
    pub fn set_dva(&mut self, i: usize, d: Dva) {
        self.words[2 * i] = d.word0;
        self.words[2 * i + 1] = d.word1;
    }
    /// The copies in use; empty for holes and embedded pointers.
    pub fn dvas(&self) -> Vec<Dva> {
        if self.is_embedded() {
            return Vec::new();
        }
        let n = if self.is_encrypted() { 2 } else { DVAS };
        (0..n).map(|i| self.dva(i)).filter(Dva::is_valid).collect()
    }
    /// Whether the pointer holds the data itself instead of an address.
    pub fn is_embedded(&self) -> bool {
        self.bits(39, 1) != 0
    }
    /// Kind of an embedded pointer: 0 data, 2 redacted.
    pub fn embedded_type(&self) -> u8 {
        self.bits(40, 8) as u8
    }
    /// Whether the pointer stands for data that a redacted stream left out.
    pub fn is_redacted(&self) -> bool {
        self.is_embedded() && self.embedded_type() == 2
    }
    /// Whether the pointer leads to no data: the range reads as zeros.
    pub fn is_hole(&self) -> bool {
        !self.is_embedded() && self.dva(0).is_empty()
    }
    /// Whether the block is a gang block.
    pub fn is_gang(&self) -> bool {
        !self.is_embedded() && self.dva(0).is_gang()
    }
    /// The X bit: encrypted, authenticated or indirect MAC by level and type.
    pub fn uses_crypt(&self) -> bool {
        !self.is_embedded() && self.bits(61, 1) != 0
    }
    /// Salt and IV take the place of DVA 2.
    pub fn is_encrypted(&self) -> bool {
        self.uses_crypt() && self.level() == 0 && self.obj_type().is_encrypted()
    }
    /// Whether a dedup table counts the references of the block.
    pub fn is_dedup(&self) -> bool {
        !self.is_embedded() && self.bits(62, 1) != 0
    }
    /// Sets whether a dedup table counts the references of the block.
    pub fn set_dedup(&mut self, on: bool) {
        debug_assert!(!self.is_embedded());
        self.set_bits(62, 1, on as u64);
    }
    /// Sets the txg in which the data were written, where it is not that of the pointer.
    pub fn set_physical_birth(&mut self, txg: Txg) {
        debug_assert!(!self.is_embedded());
        self.words[PHYS_BIRTH] = if txg == self.logical_birth() {
            0
        } else {
            txg.number()
        };
    }
    /// A pointer made in `txg` that refers to the data of this one (block cloning).
    pub fn cloned_in(&self, txg: Txg) -> BlkPtr {
        let mut bp = *self;
        let born = self.physical_birth();
        bp.words[BIRTH] = txg.number();
        if !bp.is_embedded() && !bp.is_hole() {
            bp.words[PROP2] &= !(1 << 63);
            bp.set_physical_birth(born);
        }
        bp
    }
    /// Sets whether the data are in big-endian order.
    pub fn set_big_endian(&mut self, on: bool) {
        self.set_bits(63, 1, u64::from(!on));
    }
    /// True if the pointed-to data was written by a little-endian machine.
    pub fn is_little_endian(&self) -> bool {
        self.bits(63, 1) != 0
    }
    /// Logical size in bytes, before compression; 0 for a hole that was never written.
    pub fn lsize(&self) -> usize {
        if self.is_embedded() {
            self.bits(0, 25) as usize + 1
        } else if self.is_hole() && self.words[PROP] == 0 {
            0
        } else {
            (self.bits(0, 16) as usize + 1) << 9
        }
    }
    /// Physical size in bytes, after compression; 0 for holes.
    pub fn psize(&self) -> usize {
        if self.is_embedded() {
            self.bits(25, 7) as usize + 1
        } else if self.is_hole() {
            0
        } else {
            (self.bits(16, 16) as usize + 1) << 9
        }
    }
    /// Algorithm the stored bytes are compressed with.
    pub fn compress(&self) -> Compression {
        Compression::new(self.bits(32, 7) as u8)
    }
    /// Algorithm of the checksum; [`Checksum::OFF`] for embedded pointers.
    pub fn checksum_alg(&self) -> Checksum {
        if self.is_embedded() {
            Checksum::OFF
        } else {
            Checksum::new(self.bits(40, 8) as u8)
        }
    }
    /// Type of the object the block belongs to.
    pub fn obj_type(&self) -> ObjType {
        ObjType(self.bits(48, 8) as u8)
    }
    /// Level in the block tree: 0 for content, 1 and above for indirect blocks.
    pub fn level(&self) -> u8 {
        self.bits(56, 5) as u8
    }
    /// Logical birth txg ([`Txg::NONE`] for a hole never written).
    pub fn logical_birth(&self) -> Txg {
        Txg::new(self.words[BIRTH])
    }
    /// Txg in which DVA 0 was written.
    pub fn physical_birth(&self) -> Txg {
        if self.is_embedded() || self.words[PHYS_BIRTH] == 0 {
            self.logical_birth()
        } else {
            Txg::new(self.words[PHYS_BIRTH])
        }
    }
    /// Birth as snapshots and deadlists see it (§7.4): physical if the rewrite bit is set.
    pub fn birth(&self) -> Txg {
        if !self.is_embedded() && self.words[PROP2] >> 63 != 0 {
            self.physical_birth()
        } else {
            self.logical_birth()
        }
    }
    /// Number of non-hole blocks of level 0 below the pointer; for a block of dnodes, of allocated
    /// dnodes.
    pub fn fill(&self) -> u64 {
        if self.is_embedded() {
            1
        } else if self.is_hole() {
            0
        } else if self.is_encrypted() {
            self.words[FILL] & 0xffff_ffff
        } else {
            self.words[FILL]
        }
    }
    /// Sets [`fill`](BlkPtr::fill). In the pointer of an encrypted block only 32 bits of it are
    /// kept.
    pub fn set_fill(&mut self, fill: u64) {
        debug_assert!(!self.is_embedded());
        self.words[FILL] = if self.is_encrypted() {
            // The upper half belongs to the nonce.
            self.words[FILL] & !0xffff_ffff | fill & 0xffff_ffff
        } else {
            fill
        };
    }
    /// The four words of the checksum, of whatever algorithm; in an embedded pointer part of the
    /// payload.
    pub fn checksum(&self) -> [u64; 4] {
        let w = &self.words;
        [w[CKSUM], w[CKSUM + 1], w[CKSUM + 2], w[CKSUM + 3]]
    }
    /// Replaces the four words of the checksum.
    pub fn set_checksum(&mut self, c: [u64; 4]) {
        self.words[CKSUM..].copy_from_slice(&c);
    }
    /// Sum of the allocated bytes over all copies (not deflated).
    pub fn asize(&self) -> u64 {
        self.dvas().iter().map(Dva::asize).sum()
    }
    /// "Uncompressed" size in accounting (§1 of the data format): PSIZE for metadata, else LSIZE.
    pub fn ucsize(&self) -> u64 {
        if self.is_hole() || self.is_redacted() {
            0
        } else if self.level() > 0 || self.obj_type().is_metadata() {
            self.acct_psize()
        } else {
            self.lsize() as u64
        }
    }
    /// PSIZE in accounting: 0 for embedded blocks and holes.
    pub fn acct_psize(&self) -> u64 {
        if self.is_embedded() {
            0
        } else {
            self.psize() as u64
        }
    }

    /// A pointer to data written in `txg`; DVAs, checksum and fill are set by the caller.
    pub fn new(
        ty: ObjType,
        level: u8,
        lsize: usize,
        psize: usize,
        compress: Compression,
        checksum: Checksum,
        txg: Txg,
    ) -> BlkPtr {
        debug_assert!(lsize % 512 == 0 && psize % 512 == 0 && lsize > 0 && psize > 0);
        let mut bp = BlkPtr::HOLE;
        bp.set_bits(0, 16, (lsize as u64 >> 9) - 1);
        bp.set_bits(16, 16, (psize as u64 >> 9) - 1);
        bp.set_bits(32, 7, compress.number() as u64);
        bp.set_bits(40, 8, checksum.number() as u64);
        bp.set_bits(48, 8, ty.0 as u64);
        bp.set_bits(56, 5, level as u64);
        bp.set_bits(63, 1, 1);
        bp.words[BIRTH] = txg.number();
        bp
    }

    /// A hole that remembers size, type, level and birth (feature `hole_birth`).
    pub fn hole_born(ty: ObjType, level: u8, lsize: usize, txg: Txg) -> BlkPtr {
        let mut bp = BlkPtr::HOLE;
        bp.set_bits(0, 16, (lsize as u64 >> 9) - 1);
        bp.set_bits(48, 8, ty.0 as u64);
        bp.set_bits(56, 5, level as u64);
        bp.words[BIRTH] = txg.number();
        bp
    }

    /// An embedded pointer (feature `embedded_data`); `data` is the compressed block, 1…112 bytes.
    pub fn embedded(
        ty: ObjType,
        level: u8,
        lsize: usize,
        compress: Compression,
        data: &[u8],
        txg: Txg,
    ) -> BlkPtr {
        assert!(!data.is_empty() && data.len() <= EMBEDDED_MAX && lsize > 0);
        let mut bp = BlkPtr::HOLE;
        let mut payload = [0u8; EMBEDDED_MAX];
        payload[..data.len()].copy_from_slice(data);
        for (i, c) in PAYLOAD.iter().zip(payload.chunks_exact(8)) {
            bp.words[*i] = u64::from_le_bytes(c.try_into().unwrap_or([0; 8]));
        }
        bp.set_bits(0, 25, lsize as u64 - 1);
        bp.set_bits(25, 7, data.len() as u64 - 1);
        bp.set_bits(32, 7, compress.number() as u64);
        bp.set_bits(39, 1, 1);
        bp.set_bits(48, 8, ty.0 as u64);
        bp.set_bits(56, 5, level as u64);
        bp.set_bits(63, 1, 1);
        bp.words[BIRTH] = txg.number();
        bp
    }

    /// A pointer to a block of `lsize` bytes that a redacted stream left out (feature
    /// `redacted_datasets`).
    pub fn redacted(ty: ObjType, level: u8, lsize: usize, txg: Txg) -> BlkPtr {
        let mut bp = BlkPtr::HOLE;
        bp.set_bits(0, 25, (lsize as u64).saturating_sub(1));
        bp.set_bits(32, 7, Compression::OFF.number() as u64);
        bp.set_bits(39, 1, 1);
        bp.set_bits(40, 8, Checksum::OFF.number() as u64);
        bp.set_bits(48, 8, ty.0 as u64);
        bp.set_bits(56, 5, level as u64);
        bp.set_bits(63, 1, 1);
        bp.words[BIRTH] = txg.number();
        bp
    }

    /// The PSIZE bytes carried by an embedded pointer.
    pub fn embedded_payload(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(EMBEDDED_MAX);
        for i in PAYLOAD {
            out.extend_from_slice(&self.words[i].to_le_bytes());
        }
        out.truncate(self.psize());
        out
    }

    /// Rejects what no writer produces (§7.8). `vdevs` is the number of top-level slots.
    pub fn sanity(&self, vdevs: u64) -> Result<()> {
        let bad = |what: &str| {
            Err(Error::damaged(format!(
                "block pointer with {what}: {self:?}"
            )))
        };
        if self.is_hole() {
            return Ok(());
        }
        if !self.obj_type().is_valid() {
            return bad("invalid object type");
        }
        if self.compress().name().is_none() {
            return bad("unknown compression");
        }
        if self.lsize() > base::MAX_BLOCK || self.psize() > base::MAX_BLOCK {
            return bad("a size above 16 MiB");
        }
        if self.is_embedded() {
            if self.embedded_type() > 2 || self.psize() > EMBEDDED_MAX {
                return bad("a bad embedded form");
            }
            return Ok(());
        }
        if self.checksum_alg().name().is_none() {
            return bad("unknown checksum");
        }
        if self.dvas().iter().any(|d| d.vdev() >= vdevs) {
            return bad("an address on a device that does not exist");
        }
        if self.dvas().is_empty() {
            return bad("no address");
        }
        if self
            .dvas()
            .iter()
            .any(|d| d.word1 & !(OFFSET_MASK | 1 << 63) != 0)
        {
            return bad("an address beyond any device");
        }
        Ok(())
    }
}

impl std::fmt::Debug for BlkPtr {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.is_embedded() {
            return write!(
                f,
                "EMBEDDED et={} {:?} L{} {:x}L/{:x}P B={}",
                self.embedded_type(),
                self.obj_type(),
                self.level(),
                self.lsize(),
                self.psize(),
                self.logical_birth()
            );
        }
        if self.is_hole() {
            return write!(
                f,
                "HOLE {:?} L{} {:x}L B={}",
                self.obj_type(),
                self.level(),
                self.lsize(),
                self.logical_birth()
            );
        }
        for d in self.dvas() {
            let gang = if d.is_gang() { "G" } else { "" };
            write!(f, "<{}:{:x}:{:x}{gang}> ", d.vdev(), d.offset(), d.asize())?;
        }
        write!(
            f,
            "{:?} L{} {:x}L/{:x}P cksum={} comp={} B={}/{} F={}",
            self.obj_type(),
            self.level(),
            self.lsize(),
            self.psize(),
            self.checksum_alg().number(),
            self.compress().number(),
            self.logical_birth(),
            self.physical_birth(),
            self.fill()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_do_not_disturb_each_other() {
        let mut bp = BlkPtr::new(
            ObjType::DNODE,
            5,
            16384,
            4096,
            Compression::LZ4,
            Checksum::FLETCHER4,
            Txg::new(77),
        );
        bp.set_dva(0, Dva::new(3, 0x12_3000, 0x2000, false));
        bp.set_dva(1, Dva::new(4, 0x45_6000, 0x2000, true));
        bp.set_fill(31);
        bp.set_checksum([1, 2, 3, 4]);
        let back = BlkPtr::from_bytes(&bp.to_bytes(), false);
        assert_eq!(back, bp);
        assert_eq!((back.lsize(), back.psize(), back.level()), (16384, 4096, 5));
        assert_eq!(
            (back.compress(), back.checksum_alg()),
            (Compression::LZ4, Checksum::FLETCHER4)
        );
        assert_eq!(back.obj_type(), ObjType::DNODE);
        assert_eq!(back.birth(), Txg::new(77));
        assert_eq!(back.physical_birth(), Txg::new(77));
        assert_eq!(back.fill(), 31);
        assert_eq!(back.dva(0).vdev(), 3);
        assert_eq!(back.dva(0).offset(), 0x12_3000);
        assert_eq!(back.asize(), 0x4000);
        assert!(back.dva(1).is_gang() && !back.is_gang());
        assert!(back.is_little_endian() && !back.is_hole());
        assert!(back.sanity(4).is_err() && back.sanity(5).is_ok());
    }

    #[test]
    fn embedded_round_trip() {
        for len in 1..=EMBEDDED_MAX {
            let data: Vec<u8> = (0..len as u8)
                .map(|b| b.wrapping_mul(37).wrapping_add(1))
                .collect();
            let bp = BlkPtr::embedded(
                ObjType::PLAIN_FILE_CONTENTS,
                0,
                512,
                Compression::LZ4,
                &data,
                Txg::new(9),
            );
            assert!(bp.is_embedded() && !bp.is_hole() && bp.dvas().is_empty());
            assert_eq!(bp.embedded_payload(), data);
            assert_eq!(
                (bp.lsize(), bp.psize(), bp.birth(), bp.fill()),
                (512, len, Txg::new(9), 1)
            );
        }
    }

    #[test]
    fn holes() {
        assert!(BlkPtr::HOLE.is_hole());
        assert_eq!(BlkPtr::HOLE.lsize(), 0);
        let h = BlkPtr::hole_born(ObjType::PLAIN_FILE_CONTENTS, 1, 131072, Txg::new(12));
        assert!(h.is_hole());
        assert_eq!(
            (h.lsize(), h.psize(), h.level(), h.birth()),
            (131072, 0, 1, Txg::new(12))
        );
    }
}
