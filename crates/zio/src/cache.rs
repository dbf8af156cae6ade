//! Cache of verified, decompressed blocks by address and birth, inside one byte budget.
//!
//! A block on disk never changes under the same (address, birth, checksum), so entries need no
//! invalidation. The checksum tells apart what the sync passes of one txg wrote to the same
//! address: a late reader must not store the older content under the newer pointer.

use crate::scope::Scope;
use crate::victims::{Content, Victim, Victims};
use base::{Block, Txg};
use disk::BlkPtr;
use foldhash::fast::FixedState;
use quick_cache::sync::Cache as Quick;
use quick_cache::{Lifecycle, OptionsBuilder, Weighter};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;

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

/// A cached block.
#[derive(Clone)]
struct Kept {
    block: Block,
    /// Its pointer, if it is to go to a cache device when it leaves.
    origin: Option<Arc<BlkPtr>>,
}

impl Kept {
    fn new(block: Block) -> Kept {
        Kept {
            block,
            origin: None,
        }
    }
}

/// Bytes of a pointer that is kept with a block.
const ORIGIN: u64 = disk::BP_SIZE as u64 + 32;

#[derive(Clone)]
struct Bytes;

impl Weighter<Key, Kept> for Bytes {
    fn weight(&self, _: &Key, v: &Kept) -> u64 {
        let origin = v.origin.as_ref().map_or(0, |_| ORIGIN);
        v.block.capacity() as u64 + ENTRY + origin
    }
}

/// Offers evicted blocks to the cache devices.
#[derive(Clone)]
struct Leaving(Arc<Victims>);

impl Lifecycle<Key, Kept> for Leaving {
    type RequestState = ();

    fn on_evict(&self, _: &mut (), _: Key, v: Kept) {
        if let Some(bp) = v.origin {
            self.0.offer(Victim {
                bp: *bp,
                content: Content::Plain(v.block),
            });
        }
    }
}

/// Shares of data and metadata.
fn split(budget: u64) -> (u64, u64) {
    let meta = budget * 2 / 5;
    (budget - meta, meta)
}

type Inner = Quick<Key, Kept, Bytes, FixedState, Leaving>;

fn inner(items: usize, bytes: u64, seed: u64, victims: &Arc<Victims>) -> Inner {
    let hash = FixedState::with_seed(seed);
    let mut options = OptionsBuilder::new();
    options
        .estimated_items_capacity(items)
        .weight_capacity(bytes)
        .hot_allocation(HOT);
    let life = Leaving(victims.clone());
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
    budget: AtomicU64,
    /// Bytes of the budget that something else uses.
    lent: AtomicU64,
    victims: Arc<Victims>,
}

impl Cache {
    /// A cache of `budget` bytes. Two fifths are for metadata, so that reading large files in order does not
    /// evict indirect blocks and dnodes.
    /// The order of eviction depends on `seed`. A random seed keeps a hostile pool from predicting it; equal
    /// seeds evict equally, as the simulator needs.
    /// What is evicted is offered to `victims`.
    pub fn new(budget: u64, seed: u64, victims: Arc<Victims>) -> Cache {
        let (data, meta) = split(budget);
        victims.set_budget(budget);
        Cache {
            data: inner((data / 32768) as usize + 16, data, seed, &victims),
            meta: inner((meta / 4096) as usize + 16, meta, seed, &victims),
            streams: AtomicBool::new(true),
            budget: AtomicU64::new(budget),
            lent: AtomicU64::new(0),
            victims,
        }
    }

    /// Changes the budget; what exceeds it is evicted at once.
    pub fn set_budget(&self, budget: u64) {
        self.budget.store(budget, Ordering::Relaxed);
        self.victims.set_budget(budget);
        self.apply_budget();
    }

    /// Bytes for blocks and whatever else [`set_lent`](Self::set_lent) counts.
    pub fn budget(&self) -> u64 {
        self.budget.load(Ordering::Relaxed)
    }

    /// So many bytes of the budget are used by something else, up to half of it.
    pub fn set_lent(&self, bytes: u64) {
        if self.lent.swap(bytes, Ordering::Relaxed) != bytes {
            self.apply_budget();
        }
    }

    fn apply_budget(&self) {
        let budget = self.budget();
        let lent = self.lent.load(Ordering::Relaxed).min(budget / 2);
        let (data, meta) = split(budget - lent);
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
        self.side(bp).get(&Key::of(bp)).map(|k| k.block)
    }

    /// [`get`](Self::get) for a reader whose blocks go to cache devices, those in `second`.
    pub(crate) fn get_for(&self, bp: &BlkPtr, second: Scope) -> Option<Block> {
        let kept = self.side(bp).get(&Key::of(bp))?;
        if kept.origin.is_none() && self.follows(bp, second) {
            self.insert_for(bp, kept.block.clone(), second);
        }
        Some(kept.block)
    }

    fn follows(&self, bp: &BlkPtr, second: Scope) -> bool {
        self.victims.are_wanted() && second.has(bp)
    }

    /// [`insert`](Self::insert) of a block that a reader asked for, and that goes to a cache device when it is evicted if it is in
    /// `second`.
    pub(crate) fn insert_for(&self, bp: &BlkPtr, block: Block, second: Scope) {
        let origin = self.follows(bp, second).then(|| Arc::new(*bp));
        let kept = Kept { block, origin };
        self.side(bp).insert(Key::of(bp), kept);
    }

    /// Puts a verified, decompressed block into the cache, and evicts others when the budget is
    /// exceeded.
    pub fn insert(&self, bp: &BlkPtr, data: Block) {
        self.side(bp).insert(Key::of(bp), Kept::new(data));
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

    /// [`get_for`](Self::get_for) for a caller that takes the whole block. A block of data then leaves the cache, unless
    /// [`set_streams`](Self::set_streams) keeps such blocks.
    pub(crate) fn get_whole(&self, bp: &BlkPtr, second: Scope) -> Option<Block> {
        if !self.passes(bp) {
            return self.get_for(bp, second);
        }
        let b = self.get(bp)?;
        self.remove(bp);
        if self.follows(bp, second) {
            self.victims.offer(Victim {
                bp: *bp,
                content: Content::Plain(b.clone()),
            });
        }
        Some(b)
    }

    /// Whether a block that a reader takes whole is not kept.
    pub(crate) fn passes(&self, bp: &BlkPtr) -> bool {
        let meta = bp.level() > 0 || bp.obj_type().is_metadata();
        !meta && !self.streams.load(Ordering::Relaxed)
    }

    /// Offers the stored bytes of a block that a reader took whole, if it is one that passes and is in `second`.
    pub(crate) fn offer_stored(&self, bp: &BlkPtr, raw: &[u8], second: Scope) {
        if self.passes(bp) && self.follows(bp, second) {
            self.victims.offer(Victim {
                bp: *bp,
                content: Content::Stored(raw.to_vec()),
            });
        }
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
