//! The write queue: blocks that wait to be submitted in large batches, and reads of such blocks.

use super::Zio;
use crate::seam::PhysWrite;
use base::sync::{MutexExt, RwLockExt};
use base::{Block, Result, Txg};
use disk::Dva;
use std::collections::HashMap;
use std::sync::Arc;

/// Bytes of queued writes that trigger a submission.
pub(super) const QUEUE_BYTES: usize = 32 << 20;

#[derive(Default)]
pub(super) struct Queue {
    writes: Vec<PhysWrite>,
    index: HashMap<(u64, u64), usize>,
    bytes: usize,
    /// Devices refused what was queued; it is sent again when somebody asks for it.
    refused: bool,
}

impl Queue {
    /// Adds a write; returns the data it replaces, if its place is queued already.
    fn put(&mut self, w: PhysWrite) -> Option<Block> {
        let key = (w.vdev, w.offset);
        self.bytes += w.data.len();
        match self.index.get(&key).copied() {
            // A later sync pass rewrites in place: only the newest content must land.
            Some(i) => {
                let before = std::mem::replace(&mut self.writes[i].data, w.data);
                self.bytes -= before.len();
                Some(before)
            }
            None => {
                self.index.insert(key, self.writes.len());
                self.writes.push(w);
                None
            }
        }
    }
}

impl Zio {
    /// What is or was queued for this address in the txg being written, newest first.
    pub(super) fn unwritten(&self, d: &Dva) -> Vec<Block> {
        let p = self.pending.acquire_read();
        let key = (d.vdev(), d.offset());
        let mut out: Vec<Block> = p.get(&key).cloned().into_iter().collect();
        drop(p);
        let old = self.superseded.acquire();
        if let Some(list) = old.get(&key) {
            out.extend(list.iter().rev().cloned());
        }
        out
    }

    pub(super) fn enqueue(&self, d: &Dva, data: Block, txg: Txg) -> Result<()> {
        base::mutation::panic_point("queueing a write");
        let key = (d.vdev(), d.offset());
        let full = {
            let mut q = self.queue.acquire();
            self.pending.acquire_write().insert(key, data.clone());
            let (vdev, offset) = key;
            self.supersede(key, q.put(PhysWrite { vdev, offset, data }));
            q.bytes >= QUEUE_BYTES
        };
        if full {
            self.drain_some(txg);
        }
        Ok(())
    }

    /// Who has the pointer of an earlier pass still wants what it led to.
    fn supersede(&self, key: (u64, u64), before: Option<Block>) {
        if let Some(before) = before {
            let mut old = self.superseded.acquire();
            old.entry(key).or_default().push(before);
        }
    }

    /// Bytes waiting to be submitted.
    pub fn queued_bytes(&self) -> usize {
        self.queue.acquire().bytes
    }

    /// Submits everything queued and returns when the devices have taken it (not flushed). Only
    /// the thread that syncs calls this, so two submissions of one place cannot overtake.
    ///
    /// Errors: the devices refuse some of it. All of it stays queued, to be read from there and for
    /// another call.
    pub fn drain(&self, txg: Txg) -> Result<()> {
        base::mutation::panic_point("draining the queue of writes");
        let q = std::mem::take(&mut *self.queue.acquire());
        if q.writes.is_empty() {
            return Ok(());
        }
        if let Err(e) = self.devices.write(&q.writes, txg) {
            let mut queue = self.queue.acquire();
            let newer = std::mem::replace(&mut *queue, q);
            for w in newer.writes {
                self.supersede((w.vdev, w.offset), queue.put(w));
            }
            queue.refused = true;
            return Err(e);
        }
        let mut p = self.pending.acquire_write();
        for w in &q.writes {
            let key = (w.vdev, w.offset);
            if p.get(&key).is_some_and(|b| Arc::ptr_eq(b, &w.data)) {
                p.remove(&key);
            }
        }
        Ok(())
    }

    /// [`Zio::drain`] to keep the queue short, for callers that hold locks: what devices refuse stays
    /// queued until the next [`Zio::drain`], which tells of it.
    pub fn drain_some(&self, txg: Txg) {
        let refused = self.queue.acquire().refused;
        if !refused {
            // Told by the next one.
            let _ = self.drain(txg);
        }
    }
}
