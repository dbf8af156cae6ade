//! Blocks that leave the block cache, for a cache on devices that is fed from them.
//!
//! Invariants:
//!
//! 1. Only blocks that a reader asked for are offered: what was read ahead and never asked for is not worth a write.
//! 2. The queue is bounded. What does not fit is not offered; it can still be read from the pool.
//! 3. Without a cache device nothing is queued and no pointer is kept.
//!
//! The lock is a leaf lock: the block cache calls with locks of its own held.

use base::sync::MutexExt;
use base::Block;
use disk::BlkPtr;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Mutex;

/// Most bytes of blocks that may wait, and the part of the budget of the block cache that they may take.
const MOST: u64 = 64 << 20;
const PART: u64 = 8;

/// The bytes of a block.
pub enum Content {
    /// As it is stored: PSIZE bytes, compressed and encrypted.
    Stored(Vec<u8>),
    /// Decompressed and in clear.
    Plain(Block),
}

/// A block that has left the block cache.
pub struct Victim {
    /// Where it is in the pool.
    pub bp: BlkPtr,
    /// What it holds.
    pub content: Content,
}

impl Victim {
    fn bytes(&self) -> u64 {
        let own = match &self.content {
            Content::Stored(raw) => raw.len(),
            Content::Plain(block) => block.len(),
        };
        own as u64 + disk::BP_SIZE as u64
    }
}

#[derive(Default)]
struct Waiting {
    list: VecDeque<Victim>,
    bytes: u64,
}

/// The queue.
#[derive(Default)]
pub struct Victims {
    wanted: AtomicBool,
    /// Bytes that may wait.
    room: AtomicU64,
    waiting: Mutex<Waiting>,
}

impl Victims {
    /// Whether anybody takes them. If not, those that wait are dropped.
    pub fn set_wanted(&self, wanted: bool) {
        self.wanted.store(wanted, Ordering::Release);
        if !wanted {
            *self.waiting.acquire() = Waiting::default();
        }
    }

    /// See [`set_wanted`](Self::set_wanted).
    pub fn are_wanted(&self) -> bool {
        self.wanted.load(Ordering::Acquire)
    }

    /// The budget of the block cache.
    pub(crate) fn set_budget(&self, budget: u64) {
        self.room.store(MOST.min(budget / PART), Ordering::Relaxed);
    }

    /// Queues a block, if there is room.
    pub(crate) fn offer(&self, v: Victim) {
        if !self.are_wanted() {
            return;
        }
        let mut w = self.waiting.acquire();
        if w.bytes + v.bytes() <= self.room.load(Ordering::Relaxed) {
            w.bytes += v.bytes();
            w.list.push_back(v);
        }
    }

    /// Takes blocks of at most `most` bytes, those first that came first.
    pub fn take(&self, most: u64) -> Vec<Victim> {
        let mut w = self.waiting.acquire();
        let mut out = Vec::new();
        let mut sum = 0;
        while let Some(v) = w.list.front() {
            sum += v.bytes();
            if sum > most && !out.is_empty() {
                break;
            }
            w.bytes -= v.bytes();
            out.extend(w.list.pop_front());
        }
        out
    }

    /// Whether blocks wait.
    pub fn is_empty(&self) -> bool {
        self.waiting.acquire().list.is_empty()
    }
}
