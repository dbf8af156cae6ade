//! Runs of blocks that wait to be written early ([`crate::write_early`]), and the limits of a pool.

use base::Txg;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::Weak;

/// A write of so many bytes in whole blocks is taken for part of a stream. Shorter ones are more
/// likely to come again to the same place, or to be of files that do not live long.
const RUN: usize = 128 << 10;
/// Bytes that are written together: enough for a few large transfers at a time.
const BATCH: u64 = 4 << 20;
/// Batches of a pool under way: one is transformed while the other one is at the device.
const BATCHES: u32 = 2;

/// Limits of a pool, and batches under way.
pub(crate) struct Early {
    run: AtomicU64,
    pub batch: AtomicU64,
    under_way: AtomicU32,
}

impl Default for Early {
    fn default() -> Early {
        Early {
            run: AtomicU64::new(RUN as u64),
            batch: AtomicU64::new(BATCH),
            under_way: AtomicU32::new(0),
        }
    }
}

impl Early {
    /// For tests, in which little is written: a write of `run` bytes is part of a stream, and `batch`
    /// bytes are written together.
    pub fn set(&self, run: u64, batch: u64) {
        self.run.store(run, Ordering::Relaxed);
        self.batch.store(batch, Ordering::Relaxed);
    }

    pub fn is_run(&self, bytes: usize) -> bool {
        bytes as u64 >= self.run.load(Ordering::Relaxed)
    }

    pub fn enter(&self) -> bool {
        let more = |n| (n < BATCHES).then_some(n + 1);
        self.under_way
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more)
            .is_ok()
    }

    pub fn leave(&self) {
        self.under_way.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Blocks of an object set that are to be written early.
pub(crate) struct Waiting<D> {
    txg: Txg,
    runs: Vec<Run<D>>,
    pub bytes: u64,
}

/// Blocks of one object, of `size` bytes each.
pub(crate) struct Run<D> {
    pub dn: Weak<D>,
    pub blocks: Range<u64>,
    pub size: u64,
}

impl<D> Default for Waiting<D> {
    fn default() -> Waiting<D> {
        Waiting {
            txg: Txg::NONE,
            runs: Vec::new(),
            bytes: 0,
        }
    }
}

impl<D> Waiting<D> {
    pub fn add(&mut self, txg: Txg, run: Run<D>) {
        if self.txg != txg {
            // The sync of the group they belonged to has them.
            self.runs.clear();
            self.bytes = 0;
            self.txg = txg;
        }
        self.bytes += (run.blocks.end - run.blocks.start) * run.size;
        self.runs.push(run);
    }

    /// The group closes: its sync has them.
    pub fn forget(&mut self, txg: Txg) {
        if self.txg == txg {
            *self = Waiting::default();
        }
    }

    /// The oldest, `most` bytes or a little more.
    pub fn take(&mut self, most: u64) -> (Txg, Vec<Run<D>>) {
        let mut bytes = 0;
        let mut n = 0;
        while n < self.runs.len() && bytes < most {
            let r = &self.runs[n];
            bytes += (r.blocks.end - r.blocks.start) * r.size;
            n += 1;
        }
        self.bytes -= bytes;
        (self.txg, self.runs.drain(..n).collect())
    }
}
