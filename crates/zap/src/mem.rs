//! An object in memory, for tests and for callers that want a ZAP without a pool.

use crate::{Indexed, Store};
use base::sync::MutexExt;
use base::{bail, Block, Result};
use disk::ObjType;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock};

/// Blocks in a map; `Tx` is `()`.
pub struct MemStore {
    state: Mutex<State>,
    lock: RwLock<()>,
    index: Indexed,
    /// Blocks read or changed so far: tests bound the cost of operations with it.
    pub touched: AtomicU64,
}

struct State {
    size: usize,
    blocks: BTreeMap<u64, Block>,
}

impl MemStore {
    /// An empty object with blocks of `block_size` bytes.
    pub fn new(block_size: usize) -> MemStore {
        MemStore {
            state: Mutex::new(State {
                size: block_size,
                blocks: BTreeMap::new(),
            }),
            lock: RwLock::new(()),
            index: Indexed::default(),
            touched: AtomicU64::new(0),
        }
    }

    /// An object made of these blocks (all of `block_size` bytes).
    pub fn from_blocks(block_size: usize, blocks: Vec<(u64, Vec<u8>)>) -> MemStore {
        let s = MemStore::new(block_size);
        s.state().blocks = blocks.into_iter().map(|(i, b)| (i, Arc::new(b))).collect();
        s
    }

    /// Every block that was written and not punched.
    pub fn blocks(&self) -> Vec<(u64, Block)> {
        let st = self.state();
        st.blocks.iter().map(|(i, b)| (*i, b.clone())).collect()
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.acquire()
    }
}

impl Store for MemStore {
    type Tx = ();

    fn block_size(&self) -> usize {
        self.state().size
    }

    fn set_block_size(&self, _tx: &(), size: usize) -> Result<()> {
        let mut st = self.state();
        if st.blocks.keys().any(|i| *i > 0) {
            bail!(Invalid, "block size of an object with several blocks");
        }
        st.size = size;
        if let Some(b) = st.blocks.get_mut(&0) {
            Arc::make_mut(b).resize(size, 0);
        }
        Ok(())
    }

    fn block(&self, blkid: u64) -> Result<Block> {
        self.touched.fetch_add(1, Ordering::Relaxed);
        let st = self.state();
        Ok(match st.blocks.get(&blkid) {
            Some(b) => b.clone(),
            None => Arc::new(vec![0; st.size]),
        })
    }

    fn modify<R>(&self, _tx: &(), blkid: u64, f: impl FnOnce(&mut Vec<u8>) -> R) -> Result<R> {
        self.touched.fetch_add(1, Ordering::Relaxed);
        let mut st = self.state();
        let size = st.size;
        let b = st
            .blocks
            .entry(blkid)
            .or_insert_with(|| Arc::new(vec![0; size]));
        Ok(f(Arc::make_mut(b)))
    }

    fn free_blocks(&self, _tx: &(), blkid: u64, n: u64) -> Result<()> {
        let mut st = self.state();
        let end = blkid.saturating_add(n);
        st.blocks.retain(|i, _| *i < blkid || *i >= end);
        Ok(())
    }

    fn obj_type(&self) -> ObjType {
        ObjType::ZAP_OTHER
    }

    fn seed(&self, _tx: &()) -> u64 {
        0x5eed
    }

    fn lock(&self) -> &RwLock<()> {
        &self.lock
    }

    fn index(&self) -> &Indexed {
        &self.index
    }
}
