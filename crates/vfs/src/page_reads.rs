//! Which nodes clients have read pages of, roughly.
//!
//! A client that is a kernel drops the pages below a write with O_DIRECT when it sends the write, but (Linux 6.18,
//! `fuse_aio_complete`) not when an asynchronous one completes: pages that somebody has read in
//! between stay, and are older than the file. So pages are dropped again once such a write is done,
//! before it is answered. That costs a notification, which files whose pages nobody reads are
//! spared.

use std::sync::atomic::{AtomicU64, Ordering};

/// 64 nodes each; 8 KiB for each door.
const WORDS: usize = 1024;

/// A set of nodes that may hold others, too.
pub struct PageReads(Box<[AtomicU64]>);

impl Default for PageReads {
    fn default() -> PageReads {
        PageReads((0..WORDS).map(|_| AtomicU64::new(0)).collect())
    }
}

impl PageReads {
    fn place(&self, node: u64) -> (&AtomicU64, u64) {
        let hash = node.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48;
        (&self.0[hash as usize / 64], 1 << (hash % 64))
    }

    /// To be called before the content is looked at: a write that comes after that finds it here.
    pub fn add(&self, node: u64) {
        let (word, bit) = self.place(node);
        // Mostly it is there, and then the cache line stays shared.
        if word.load(Ordering::SeqCst) & bit == 0 {
            word.fetch_or(bit, Ordering::SeqCst);
        }
    }

    /// Whether pages of the node may have been read.
    pub fn may_have(&self, node: u64) -> bool {
        let (word, bit) = self.place(node);
        word.load(Ordering::SeqCst) & bit != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_node_added_is_there_and_few_others() {
        let set = PageReads::default();
        let nodes = || (0..1000u64).map(|n| n * 131_072 + 7);
        nodes().for_each(|n| set.add(n));
        assert!(nodes().all(|n| set.may_have(n)));
        let others = (0..1000).filter(|n| set.may_have(n * 131_072 + 8)).count();
        assert!(others < 100, "{others}");
    }
}
