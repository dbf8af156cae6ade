//! Which blocks are on cache devices, and where.

use base::sync::RwLockExt;
use base::Txg;
use disk::Dva;
use std::collections::HashMap;
use std::sync::RwLock;

/// Bytes that a block on a cache device takes in memory: its entry here and in the order of the device.
pub(super) const HEADER: u64 = 144;

/// A block: vdev and offset of its first address, txg in which it was allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct BlockKey(u64, u64, Txg);

impl BlockKey {
    pub fn new(dva: &Dva, birth: Txg) -> BlockKey {
        BlockKey(dva.vdev(), dva.offset(), birth)
    }
}

/// Where a block is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// Guid of the device.
    pub device: u64,
    pub at: u64,
    pub psize: u64,
}

/// All blocks on all cache devices of a pool. The lock is a leaf lock.
#[derive(Default)]
pub(super) struct Index {
    blocks: RwLock<HashMap<BlockKey, Place>>,
}

impl Index {
    pub fn get(&self, key: &BlockKey) -> Option<Place> {
        self.blocks.acquire_read().get(key).copied()
    }

    pub fn len(&self) -> usize {
        self.blocks.acquire_read().len()
    }

    pub fn insert(&self, key: BlockKey, device: u64, at: u64, psize: u64) {
        let place = Place { device, at, psize };
        self.blocks.acquire_write().insert(key, place);
    }

    /// Unless the block is known already; whether it was inserted.
    pub fn insert_older(&self, key: BlockKey, device: u64, at: u64, psize: u64) -> bool {
        let mut blocks = self.blocks.acquire_write();
        if blocks.contains_key(&key) {
            return false;
        }
        blocks.insert(key, Place { device, at, psize });
        true
    }

    /// Forgets the block, if it is still the one at that place.
    pub fn remove(&self, key: &BlockKey, device: u64, at: u64) -> bool {
        let mut blocks = self.blocks.acquire_write();
        let there = blocks
            .get(key)
            .is_some_and(|p| (p.device, p.at) == (device, at));
        if there {
            blocks.remove(key);
        }
        there
    }

    /// Forgets everything on a device.
    pub fn drop_device(&self, device: u64) {
        let mut blocks = self.blocks.acquire_write();
        blocks.retain(|_, p| p.device != device);
    }
}
