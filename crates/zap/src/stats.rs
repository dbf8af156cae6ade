//! Statistics of a ZAP's shape, as `zdb` shows them.

use crate::micro::Micro;
use crate::table::Hdr;
use crate::{leaf, Store, Zap, BLOCK_HEADER};
use base::Result;
use std::collections::BTreeSet;

/// Pointers of a table that are looked at: as many as any table has.
const MAX_POINTERS: u64 = 1 << 24;
/// Buckets of the histograms here.
pub const STATS_BUCKETS: usize = 10;

/// Figures of a ZAP.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Number of entries.
    pub entries: u64,
    /// Keys are words.
    pub word_keys: bool,
    /// Of a fat ZAP.
    pub fat: Option<FatStats>,
}

/// Figures of a fat ZAP; the histograms have [`STATS_BUCKETS`] counters, the last for all beyond.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FatStats {
    /// First word of the header block.
    pub block_type: u64,
    /// Magic number of the header.
    pub magic: u64,
    /// Salt of the hash.
    pub salt: u64,
    /// log2 of the pointers of the table.
    pub shift: u32,
    /// First block of the table and number of its blocks; 0 if it is in the header.
    pub table_block: u64,
    /// See `table_block`.
    pub table_blocks: u64,
    /// Of a table that is being doubled: blocks done, and where the new one is.
    pub table_copied: u64,
    /// See `table_copied`.
    pub table_next: u64,
    /// Number of leaves.
    pub leaves: u64,
    /// Number of blocks that were ever used, the header included.
    pub blocks: u64,
    /// Leaves by log2 of the pointers to them.
    pub leaf_pointers: Vec<u64>,
    /// Leaves by fifths of their entries.
    pub leaf_entries: Vec<u64>,
    /// Leaves by tenths of the block in use.
    pub leaf_fullness: Vec<u64>,
    /// Entries by chunks.
    pub entry_chunks: Vec<u64>,
    /// Hash buckets by entries.
    pub bucket_entries: Vec<u64>,
}

fn count(h: &mut [u64], at: usize, n: u64) {
    let at = at.min(h.len().saturating_sub(1));
    if let Some(c) = h.get_mut(at) {
        *c += n;
    }
}

impl<S: Store> Zap<'_, S> {
    /// Reads the whole ZAP and counts.
    ///
    /// Errors: damaged, if a leaf cannot be read or is none.
    pub fn stats(&self) -> Result<Stats> {
        let _lock = self.read_lock()?;
        let head = self.store.block(0)?;
        if Self::is_micro(&head)? {
            return Ok(Stats {
                entries: Micro::open(&head)?.entries().count() as u64,
                ..Stats::default()
            });
        }
        let h = Hdr::parse(&head)?;
        let zeros = || vec![0; STATS_BUCKETS];
        let mut f = FatStats {
            block_type: BLOCK_HEADER,
            magic: crate::table::MAGIC,
            salt: h.salt,
            shift: h.zt_shift,
            table_block: h.zt_blk,
            table_blocks: h.zt_numblks,
            table_copied: h.zt_copied,
            table_next: h.zt_nextblk,
            leaves: h.num_leafs,
            blocks: h.freeblk,
            leaf_pointers: zeros(),
            leaf_entries: zeros(),
            leaf_fullness: zeros(),
            entry_chunks: zeros(),
            bucket_entries: zeros(),
        };
        let mut seen = BTreeSet::new();
        for i in 0..(1u64 << h.zt_shift.min(63)).min(MAX_POINTERS) {
            let blk = self.pointer(&h, i)?;
            if !seen.insert(blk) {
                continue;
            }
            let b = self.store.block(blk)?;
            let (_, lh) = leaf::open(&b)?;
            let pointers = h.zt_shift.saturating_sub(lh.prefix_len);
            count(&mut f.leaf_pointers, pointers as usize, 1);
            count(&mut f.leaf_entries, lh.nentries / 5, 1);
            // OpenZFS takes a free chunk to be of 22 bytes, and all else of the block to be in use.
            let used = b.len().saturating_sub(lh.nfree * 22);
            count(&mut f.leaf_fullness, used * 10 / b.len().max(1), 1);
            leaf::shape(&b, &mut |in_bucket| {
                count(&mut f.bucket_entries, in_bucket.len(), 1);
                for chunks in in_bucket {
                    count(&mut f.entry_chunks, *chunks, 1);
                }
            })?;
        }
        Ok(Stats {
            entries: h.num_entries,
            word_keys: h.name_int() == 8,
            fat: Some(f),
        })
    }
}
