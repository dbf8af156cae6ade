//! Cache of verified, decompressed blocks by address and birth, inside one byte budget.
//!
//! A block on disk never changes under the same (address, birth, checksum), so entries need no
//! invalidation. The checksum tells apart what the passes of one group wrote to the same place: a
//! reader that comes late must not leave the older content behind under the newer pointer.

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

    pub fn of(bp: &BlkPtr) -> Key {
        let d = bp.dva(0);
        Key(d.vdev(), d.offset(), bp.physical_birth(), bp.checksum()[0])
    }
}

/// What an entry takes beside the bytes of its block: keys, lists, counts, rounding of the allocator.
const ENTRY: u64 = 192;

/// Part of the room for what was asked for more than once while it was there. The rest is for what is
/// new: the more of it, the sooner the cache follows when something else is wanted, and the less a scan
/// leaves (docs/costs.md has hit rates).
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
    /// `budget` bytes; two fifths are kept for metadata, so that streaming through large files
    /// cannot push out the trees that lead to everything.
    /// What is dropped first depends on `seed`, too: a random one, so that no pool is made to know it, or
    /// the same to have the same dropped.
    pub fn new(budget: u64, seed: u64) -> Cache {
        let (data, meta) = split(budget);
        Cache {
            data: inner((data / 32768) as usize + 16, data, seed),
            meta: inner((meta / 4096) as usize + 16, meta, seed),
            streams: AtomicBool::new(true),
        }
    }

    /// Changes the budget; what is too much goes at once.
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

    /// See [`set_streams`](Self::set_streams).
    pub fn keeps_streams(&self) -> bool {
        self.streams.load(Ordering::Relaxed)
    }

    /// [`get`](Self::get) by somebody who wants all of it: read ahead for him, it need not stay.
    pub fn get_whole(&self, bp: &BlkPtr) -> Option<Block> {
        let b = self.get(bp)?;
        let meta = bp.level() > 0 || bp.obj_type().is_metadata();
        if !meta && !self.streams.load(Ordering::Relaxed) {
            self.remove(bp);
        }
        Some(b)
    }

    /// Whether it is there, which does not make it any more likely to stay.
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
