//! Header block and pointer table of a fat ZAP (data format §3.3, §3.4).

use crate::hash::hash_bits;
use crate::leaf::{self, Geo};
use crate::{Store, Zap, BLOCK_HEADER};
use base::{bail, Error, Kind, Result};
use disk::bytes::{put_u64, u64_at};

pub(crate) const MAGIC: u64 = 0x2_F52A_B2AB;
/// Largest pointer table that is believed, in blocks: 16 GiB of pointers at 16 KiB per block.
const MAX_TABLE_BLOCKS: u64 = 1 << 20;
/// Pointers a table may have whatever is in its leaves, and pointers for each leaf beyond that. Hashes
/// that are spread need some 16; without a bound names with nearly the same hash would make a table of
/// a GiB.
const FREE_POINTERS: u64 = 1 << 20;
/// See [`FREE_POINTERS`].
const POINTERS_A_LEAF: u64 = 256;
/// Blocks of the table that the splitting of one leaf copies at most; the next one goes on.
const STEPS: u32 = 512;
/// Pointers to one leaf that are changed at a time.
const RUN_MAX: u64 = 1 << 20;

/// Header fields.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hdr {
    /// Sizes that follow from the block size.
    pub geo: Geo,
    /// First block of the pointer table; 0 if the table is in the header block.
    pub zt_blk: u64,
    /// Blocks of the pointer table; 0 if it is in the header block.
    pub zt_numblks: u64,
    /// log2 of the pointers in the table.
    pub zt_shift: u32,
    /// First block of the table that is being filled while it is doubled; 0 otherwise.
    pub zt_nextblk: u64,
    /// Blocks of the old table that were copied so far.
    pub zt_copied: u64,
    /// Number of the first block that was never used.
    pub freeblk: u64,
    /// Number of leaves.
    pub num_leafs: u64,
    /// Number of entries.
    pub num_entries: u64,
    /// Salt of the hash.
    pub salt: u64,
    /// Normalization of names; bits of [`crate::norm`].
    pub normflags: u64,
    /// Bits of [`crate::flags`].
    pub flags: u64,
}

impl Hdr {
    /// Parses a header block. `Damaged`: wrong type, magic or pointer table.
    pub fn parse(b: &[u8]) -> Result<Hdr> {
        let geo = Geo::of(b.len())?;
        if u64_at(b, 0)? != BLOCK_HEADER || u64_at(b, 8)? != MAGIC {
            return Err(Error::damaged("fat ZAP header: wrong type or magic"));
        }
        let h = Hdr {
            geo,
            zt_blk: u64_at(b, 16)?,
            zt_numblks: u64_at(b, 24)?,
            zt_shift: u64_at(b, 32)?.min(255) as u32,
            zt_nextblk: u64_at(b, 40)?,
            zt_copied: u64_at(b, 48)?,
            freeblk: u64_at(b, 56)?,
            num_leafs: u64_at(b, 64)?,
            num_entries: u64_at(b, 72)?,
            salt: u64_at(b, 80)?,
            normflags: u64_at(b, 88)?,
            flags: u64_at(b, 96)?,
        };
        let blocks = match h.zt_shift.checked_sub(geo.shift - 3) {
            None => 0,
            Some(d) if d <= 20 => 1u64 << d,
            Some(_) => u64::MAX,
        };
        let fits = match h.zt_numblks {
            0 => h.zt_shift == geo.shift - 4,
            n => n == blocks && n <= MAX_TABLE_BLOCKS && h.zt_blk != 0,
        };
        let bound = 1u64 << 50;
        if !fits
            || h.zt_shift > hash_bits(h.flags)
            || h.zt_blk > bound
            || h.zt_nextblk > bound
            || h.freeblk > bound
            || h.zt_copied > h.zt_numblks
        {
            return Err(Error::damaged("fat ZAP header: impossible pointer table"));
        }
        Ok(h)
    }

    /// Header and embedded table of a ZAP with one leaf in block 1.
    pub fn init(b: &mut [u8], salt: u64, normflags: u64, flags: u64) -> Result<()> {
        let geo = Geo::of(b.len())?;
        b.fill(0);
        put_u64(b, 0, BLOCK_HEADER);
        put_u64(b, 8, MAGIC);
        put_u64(b, 32, geo.shift as u64 - 4);
        put_u64(b, 56, 2);
        put_u64(b, 64, 1);
        put_u64(b, 80, salt);
        put_u64(b, 88, normflags);
        put_u64(b, 96, flags);
        for p in b[1 << (geo.shift - 1)..].chunks_exact_mut(8) {
            p.copy_from_slice(&1u64.to_le_bytes());
        }
        Ok(())
    }

    fn put(&self, b: &mut [u8]) {
        put_u64(b, 16, self.zt_blk);
        put_u64(b, 24, self.zt_numblks);
        put_u64(b, 32, self.zt_shift as u64);
        put_u64(b, 40, self.zt_nextblk);
        put_u64(b, 48, self.zt_copied);
        put_u64(b, 56, self.freeblk);
        put_u64(b, 64, self.num_leafs);
        put_u64(b, 72, self.num_entries);
    }

    /// Pointer index of a hash.
    pub fn index(&self, hash: u64) -> u64 {
        hash.checked_shr(64 - self.zt_shift).unwrap_or(0)
    }

    /// Block and byte offset of pointer `i`.
    fn place(&self, i: u64) -> (u64, usize) {
        if self.zt_numblks == 0 {
            return (0, (1usize << (self.geo.shift - 1)) + 8 * i as usize);
        }
        self.place_in(self.zt_blk, i)
    }

    fn place_in(&self, blk: u64, i: u64) -> (u64, usize) {
        let per = self.geo.shift - 3;
        (blk + (i >> per), (i & ((1 << per) - 1)) as usize * 8)
    }

    /// Size of the integers in names.
    pub fn name_int(&self) -> usize {
        match self.flags & crate::flags::UINT64_KEY {
            0 => 1,
            _ => 8,
        }
    }
}

impl<S: Store> Zap<'_, S> {
    pub(crate) fn hdr(&self) -> Result<Hdr> {
        Hdr::parse(&self.store.block(0)?)
    }

    pub(crate) fn put_hdr(&self, tx: &S::Tx, h: &Hdr) -> Result<()> {
        self.store.modify(tx, 0, |b| h.put(b))
    }

    /// Pointer `i`: the block of a leaf.
    pub(crate) fn pointer(&self, h: &Hdr, i: u64) -> Result<u64> {
        let (blk, at) = h.place(i);
        match u64_at(&self.store.block(blk)?, at)? {
            0 => Err(Error::damaged("ZAP pointer table: pointer to block 0")),
            p => Ok(p),
        }
    }

    /// Sets pointers `start..start + n`, in the table that is being built too.
    pub(crate) fn set_pointers(
        &self,
        tx: &S::Tx,
        h: &Hdr,
        start: u64,
        n: u64,
        to: u64,
    ) -> Result<()> {
        if n > RUN_MAX {
            return Err(Error::damaged("ZAP leaf with an impossibly short prefix"));
        }
        self.fill(tx, |i| h.place(i), start, n, Some(to))?;
        if h.zt_nextblk != 0 {
            self.fill(
                tx,
                |i| h.place_in(h.zt_nextblk, i),
                start * 2,
                n * 2,
                Some(to),
            )?;
        }
        Ok(())
    }

    /// Has the blocks of these pointers in memory, as blocks that are changed: from now on changing them
    /// cannot fail, for nothing is read any more.
    pub(crate) fn hold_pointers(&self, tx: &S::Tx, h: &Hdr, start: u64, n: u64) -> Result<()> {
        if n > RUN_MAX {
            return Err(Error::damaged("ZAP leaf with an impossibly short prefix"));
        }
        self.fill(tx, |i| h.place(i), start, n, None)?;
        if h.zt_nextblk != 0 {
            self.fill(tx, |i| h.place_in(h.zt_nextblk, i), start * 2, n * 2, None)?;
        }
        Ok(())
    }

    /// The same of any block.
    pub(crate) fn hold(&self, tx: &S::Tx, blk: u64) -> Result<()> {
        self.store.modify(tx, blk, |_| ())
    }

    fn fill(
        &self,
        tx: &S::Tx,
        place: impl Fn(u64) -> (u64, usize),
        start: u64,
        n: u64,
        to: Option<u64>,
    ) -> Result<()> {
        let end = start + n;
        let mut i = start;
        while i < end {
            let (blk, at) = place(i);
            i += self.store.modify(tx, blk, |b| {
                let room = b.len().saturating_sub(at) / 8;
                let n = room.min((end - i) as usize);
                for k in 0..if to.is_some() { n } else { 0 } {
                    put_u64(b, at + 8 * k, to.unwrap_or(0));
                }
                n.max(1) as u64
            })?;
        }
        Ok(())
    }

    /// One step of doubling the pointer table: the whole of the first doubling, one block of later
    /// ones. `Kind::NoSpace` when the table is as large as hashes allow.
    pub(crate) fn grow_step(&self, tx: &S::Tx, h: &mut Hdr) -> Result<()> {
        if h.zt_shift >= hash_bits(h.flags) - 2 || h.zt_numblks >= MAX_TABLE_BLOCKS {
            bail!(NoSpace, "ZAP pointer table is as large as it can be");
        }
        let most = FREE_POINTERS.max(h.num_leafs.saturating_mul(POINTERS_A_LEAF));
        if h.zt_nextblk == 0 && 2 << h.zt_shift > most {
            bail!(NoSpace, "too many names with nearly the same hash");
        }
        if h.zt_numblks == 0 {
            let head = self.store.block(0)?;
            let blk = h.freeblk;
            self.double(tx, &head[1 << (h.geo.shift - 1)..], blk)?;
            h.freeblk += 1;
            (h.zt_blk, h.zt_numblks, h.zt_shift) = (blk, 1, h.zt_shift + 1);
            return self.put_hdr(tx, h);
        }
        if h.zt_nextblk == 0 {
            h.zt_nextblk = h.freeblk;
            h.freeblk += 2 * h.zt_numblks;
            h.zt_copied = 0;
        }
        let old = self.store.block(h.zt_blk + h.zt_copied)?;
        let to = h.zt_nextblk + 2 * h.zt_copied;
        let (a, b) = old.split_at(old.len() / 2);
        self.double(tx, a, to)?;
        self.double(tx, b, to + 1)?;
        h.zt_copied += 1;
        let done = h.zt_copied >= h.zt_numblks;
        let (blk, n) = (h.zt_blk, h.zt_numblks);
        if done {
            (h.zt_blk, h.zt_numblks, h.zt_shift) = (h.zt_nextblk, n * 2, h.zt_shift + 1);
            (h.zt_nextblk, h.zt_copied) = (0, 0);
        }
        self.put_hdr(tx, h)?;
        if done {
            self.store.free_blocks(tx, blk, n)?;
        }
        Ok(())
    }

    /// Writes every pointer of `from` twice into block `to`.
    fn double(&self, tx: &S::Tx, from: &[u8], to: u64) -> Result<()> {
        self.store.modify(tx, to, |b| {
            for (d, s) in b.chunks_exact_mut(16).zip(from.chunks_exact(8)) {
                d[..8].copy_from_slice(s);
                d[8..].copy_from_slice(s);
            }
        })
    }

    /// Splits the leaf of `hash` in block `blk`.
    pub(crate) fn split_leaf(&self, tx: &S::Tx, blk: u64, hash: u64) -> Result<()> {
        let mut h = self.hdr()?;
        let b = self.store.block(blk)?;
        let (_, lh) = leaf::open(&b)?;
        let prefix = hash.checked_shr(64 - lh.prefix_len).unwrap_or(0);
        if lh.prefix != prefix || lh.prefix_len > h.zt_shift {
            return Err(Error::damaged("ZAP leaf in the wrong place of the table"));
        }
        // Names that agree in every bit the table may look at can never be told apart; say so before
        // the table has grown to its limit.
        let blind = 64 - (hash_bits(h.flags) - 2);
        let (_, _, all) = leaf::entries(&b)?;
        if all.iter().all(|e| e.hash >> blind == hash >> blind) {
            bail!(NoSpace, "too many names with one hash");
        }
        let before = h.zt_shift;
        let mut steps = STEPS;
        // Each step copies one block.
        while lh.prefix_len >= h.zt_shift && h.zt_shift == before {
            if steps == 0 {
                bail!(
                    NoSpace,
                    "the pointer table of a ZAP is being doubled: try again"
                );
            }
            steps -= 1;
            self.grow_step(tx, &mut h)?;
        }
        let new = h.freeblk;
        let (low, high) = leaf::split(&b, h.name_int())?;
        drop(b);
        let span = h.zt_shift - (lh.prefix_len + 1);
        let start = ((prefix << 1) | 1) << span;
        // What cannot be read is met before anything is changed: half a split loses half a leaf.
        self.hold(tx, 0)?;
        self.hold(tx, blk)?;
        self.hold_pointers(tx, &h, start, 1 << span)?;
        self.store
            .modify(tx, new, |b| b.copy_from_slice_checked(&high))??;
        h.freeblk += 1;
        h.num_leafs = h.num_leafs.saturating_add(1);
        self.put_hdr(tx, &h)?;
        self.store
            .modify(tx, blk, |b| b.copy_from_slice_checked(&low))??;
        self.set_pointers(tx, &h, start, 1 << span, new)
    }
}

/// Copies a whole block, or says that the object's block size changed under us.
pub(crate) trait CopyChecked {
    fn copy_from_slice_checked(&mut self, from: &[u8]) -> Result<()>;
}

impl CopyChecked for Vec<u8> {
    fn copy_from_slice_checked(&mut self, from: &[u8]) -> Result<()> {
        if self.len() != from.len() {
            return Err(Error::new(Kind::Damaged, "ZAP blocks of different sizes"));
        }
        self.copy_from_slice(from);
        Ok(())
    }
}
