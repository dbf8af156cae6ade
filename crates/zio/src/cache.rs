//! Cache of verified, decompressed blocks by address and birth, inside one byte budget.
//!
//! A block on disk never changes under the same (address, birth, checksum), so entries need no
//! invalidation. The checksum tells apart what the sync passes of one txg wrote to the same
//! address: a late reader must not store the older content under the newer pointer.

use base::{Block, Txg};
use disk::BlkPtr;
use foldhash::fast::FixedState;
use quick_cache::sync::{Cache as Quick, DefaultLifecycle};
use quick_cache::{OptionsBuilder, Weighter};
use std::sync::atomic::{AtomicBool, Ordering};

/// Identity of a block: vdev, offset, birth, first word of the checksum.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Key(u64, u64, Txg, u64);

impl Key {
    #[cfg(test)]
    pub fn new(vdev: u64, offset: u64, birth: Txg, word: u64) -> Key {
        Key(vdev, offset, birth, word)
    }

    /// The key of the block that `bp` leads to: its first DVA, the txg in which it was allocated,
    /// and its checksum.
    pub fn of(bp: &BlkPtr) -> Key {
        let d = bp.dva(0);
        Key(d.vdev(), d.offset(), bp.physical_birth(), bp.checksum()[0])
    }
}

/// Bytes an entry takes beside those of its block: keys, lists, counts, rounding of the allocator.
const ENTRY: u64 = 192;

/// Share of the budget for blocks that were read more than once while they were cached. The rest is for new
/// blocks. A larger share of new blocks follows a changed working set sooner, but a scan evicts more
/// (docs/costs.md has hit rates).
const HOT: f64 = 0.8;

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

type Inner = Quick<Key, Block, Bytes, FixedState>;

fn inner(items: usize, bytes: u64, seed: u64) -> Inner {
    let hash = FixedState::with_seed(seed);
    let mut options = OptionsBuilder::new();
    options
        .estimated_items_capacity(items)
        .weight_capacity(bytes)
        .hot_allocation(HOT);
    let life = DefaultLifecycle::default();
    match options.build() {
        Ok(o) => Quick::with_options(o, Bytes, hash, life),
        Err(_) => Quick::with(items, bytes, Bytes, hash, life),
    }
}

/// The block cache.
pub struct Cache {
    data: Inner,
    meta: Inner,
    /// Whether data of files that went by whole are kept.
    streams: AtomicBool,
}

impl Cache {
    /// A cache of `budget` bytes. Two fifths are for metadata, so that reading large files in order does not
    /// evict indirect blocks and dnodes.
    /// The order of eviction depends on `seed`. A random seed keeps a hostile pool from predicting it; equal
    /// seeds evict equally, as the simulator needs.
    pub fn new(budget: u64, seed: u64) -> Cache {
        let (data, meta) = split(budget);
        Cache {
            data: inner((data / 32768) as usize + 16, data, seed),
            meta: inner((meta / 4096) as usize + 16, meta, seed),
            streams: AtomicBool::new(true),
        }
    }

    /// Changes the budget; what exceeds it is evicted at once.
    pub fn set_budget(&self, budget: u64) {
        let (data, meta) = split(budget);
        self.data.set_capacity(data);
        self.meta.set_capacity(meta);
    }

    fn side(&self, bp: &BlkPtr) -> &Inner {
        if bp.level() > 0 || bp.obj_type().is_metadata() {
            &self.meta
        } else {
            &self.data
        }
    }

    /// The block, if it is in the cache. A hit makes it more likely to stay.
    pub fn get(&self, bp: &BlkPtr) -> Option<Block> {
        self.side(bp).get(&Key::of(bp))
    }

    /// Puts a verified, decompressed block into the cache, and evicts others when the budget is
    /// exceeded.
    pub fn insert(&self, bp: &BlkPtr, data: Block) {
        self.side(bp).insert(Key::of(bp), data);
    }

    /// Whether blocks of file data that were read or written as a whole are cached. Where the reader has a
    /// cache of its own (the kernel's page cache), caching them here would keep them twice.
    pub fn set_streams(&self, keep: bool) {
        self.streams.store(keep, Ordering::Relaxed);
    }

    /// See [`set_streams`](Self::set_streams).
    pub fn keeps_streams(&self) -> bool {
        self.streams.load(Ordering::Relaxed)
    }

    /// [`get`](Self::get) for a caller that takes the whole block. A block of data then leaves the cache, unless
    /// [`set_streams`](Self::set_streams) keeps such blocks.
    pub fn get_whole(&self, bp: &BlkPtr) -> Option<Block> {
        let b = self.get(bp)?;
        let meta = bp.level() > 0 || bp.obj_type().is_metadata();
        if !meta && !self.streams.load(Ordering::Relaxed) {
            self.remove(bp);
        }
        Some(b)
    }

    /// Whether the block is in the cache. Does not count as a hit.
    pub fn has(&self, bp: &BlkPtr) -> bool {
        self.side(bp).peek(&Key::of(bp)).is_some()
    }

    /// Bytes of data that fit.
    pub fn data_budget(&self) -> u64 {
        self.data.capacity()
    }

    /// [`insert`](Self::insert) of a block that was read or written whole.
    pub fn insert_whole(&self, bp: &BlkPtr, data: Block) {
        let meta = bp.level() > 0 || bp.obj_type().is_metadata();
        if meta || self.streams.load(Ordering::Relaxed) {
            self.insert(bp, data);
        }
    }

    /// Drops one block, if it is in the cache.
    pub fn remove(&self, bp: &BlkPtr) {
        self.side(bp).remove(&Key::of(bp));
    }

    /// Bytes held now.
    pub fn used(&self) -> u64 {
        self.data.weight() + self.meta.weight()
    }

    /// Drops all blocks. The budget stays.
    pub fn clear(&self) {
        self.data.clear();
        self.meta.clear();
    }
}
