//! Cache of verified, decompressed blocks by address and birth, inside one byte budget.
//!
//! A block on disk never changes under the same (address, birth, checksum), so entries need no
//! invalidation. The checksum tells apart what the passes of one group wrote to the same place: a
//! reader that comes late must not leave the older content behind under the newer pointer.

use base::{Block, Txg};
use disk::BlkPtr;
use quick_cache::{sync::Cache as Inner, Weighter};
use std::sync::atomic::{AtomicBool, Ordering};

/// Identity of a block: vdev, offset, birth, first word of the checksum.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Key(u64, u64, Txg, u64);

impl Key {
    pub fn of(bp: &BlkPtr) -> Key {
        let d = bp.dva(0);
        Key(d.vdev(), d.offset(), bp.physical_birth(), bp.checksum()[0])
    }
}

/// What an entry takes beside the bytes of its block: keys, lists, counts, rounding of the allocator.
const ENTRY: u64 = 192;

#[derive(Clone)]
struct Bytes;

impl Weighter<Key, Block> for Bytes {
    fn weight(&self, _: &Key, v: &Block) -> u64 {
        v.capacity() as u64 + ENTRY
    }
}

/// Shares of data and metadata.
fn split(budget: u64) -> (u64, u64) {
    let meta = budget * 2 / 5;
    (budget - meta, meta)
}

/// The block cache.
pub struct Cache {
    data: Inner<Key, Block, Bytes>,
    meta: Inner<Key, Block, Bytes>,
    /// Whether data of files that went by whole are kept.
    streams: AtomicBool,
}

impl Cache {
    /// `budget` bytes; two fifths are kept for metadata, so that streaming through large files
    /// cannot push out the trees that lead to everything.
    pub fn new(budget: u64) -> Cache {
        let (data, meta) = split(budget);
        Cache {
            data: Inner::with_weighter((data / 32768) as usize + 16, data, Bytes),
            meta: Inner::with_weighter((meta / 4096) as usize + 16, meta, Bytes),
            streams: AtomicBool::new(true),
        }
    }

    /// Changes the budget; what is too much goes at once.
    pub fn set_budget(&self, budget: u64) {
        let (data, meta) = split(budget);
        self.data.set_capacity(data);
        self.meta.set_capacity(meta);
    }

    fn side(&self, bp: &BlkPtr) -> &Inner<Key, Block, Bytes> {
        if bp.level() > 0 || bp.obj_type().is_metadata() {
            &self.meta
        } else {
            &self.data
        }
    }

    pub fn get(&self, bp: &BlkPtr) -> Option<Block> {
        self.side(bp).get(&Key::of(bp))
    }

    pub fn insert(&self, bp: &BlkPtr, data: Block) {
        self.side(bp).insert(Key::of(bp), data);
    }

    /// Whether data of files are kept that were read or written whole. Where the reader has a cache of
    /// its own (the kernel's), keeping them twice only takes memory from others.
    pub fn set_streams(&self, keep: bool) {
        self.streams.store(keep, Ordering::Relaxed);
    }

    /// [`insert`](Self::insert) of a block that was read or written whole.
    pub fn insert_whole(&self, bp: &BlkPtr, data: Block) {
        let meta = bp.level() > 0 || bp.obj_type().is_metadata();
        if meta || self.streams.load(Ordering::Relaxed) {
            self.insert(bp, data);
        }
    }

    pub fn remove(&self, bp: &BlkPtr) {
        self.side(bp).remove(&Key::of(bp));
    }

    /// Bytes held now.
    pub fn used(&self) -> u64 {
        self.data.weight() + self.meta.weight()
    }

    pub fn clear(&self) {
        self.data.clear();
        self.meta.clear();
    }
}
