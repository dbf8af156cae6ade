//! Updates of the record of a running scrub or resilver when datasets change (pool format §20.2). The record is persistent:
//! this or another system continues from its queue and its bookmark, and OpenZFS stops with a failed assertion at a dataset
//! that does not exist. In memory the scan is ahead of the record; it learns of the changes by [`Dsl::take_scan_changes`].
//!
//! 1. Every dataset the scan still has to visit is in the queue, or follows from one that is: when a
//!    snapshot is done, the next one and the clones come.
//! 2. Neither queue nor bookmark names a dataset that does not exist.
//! 3. Blocks that only a destroyed snapshot would have led the scan to are found in the next one: that
//!    takes over its place with the same first txg.

use crate::core::{Core, ScanChange};
use crate::{Dataset, Dsl};
use base::mutation::{mutated, Mutation};
use base::sync::MutexExt;
use base::{Result, Txg};
use disk::scan::{word, ScanState, NO_DATASET, SCAN, VISIT_AGAIN, WORDS};
use dmu::{Dnode, Tx};
use std::sync::Arc;
use zap::{Value, Zap};

/// A scan under way.
struct Scan {
    words: Vec<u64>,
    queue: Option<Arc<Dnode>>,
}

impl Scan {
    fn first_txg(&self, dataset: u64) -> Result<Option<Txg>> {
        match &self.queue {
            Some(q) => Ok(Zap::new(q).get_int_key(dataset)?.map(Txg::new)),
            None => Ok(None),
        }
    }

    /// Takes a dataset out of the queue, and puts `into` in its place.
    fn requeue(&self, tx: &Tx, dataset: u64, into: Option<u64>) -> Result<()> {
        let (Some(queue), Some(first)) = (&self.queue, self.first_txg(dataset)?) else {
            return Ok(());
        };
        let queue = Zap::new(queue);
        queue.remove_int(tx, dataset)?;
        let Some(into) = into else {
            return Ok(());
        };
        // What is queued already is visited from the earlier of both.
        let first = self
            .first_txg(into)?
            .map_or(first, |other| other.min(first));
        queue.update_int_key(tx, into, first.number())
    }

    fn is_at(&self, dataset: u64) -> bool {
        self.words[word::BOOKMARK] == dataset
    }

    fn store(&self, core: &Core, tx: &Tx) -> Result<()> {
        let record = Value::u64s(&self.words);
        Zap::new(&core.directory()?).update(tx, SCAN, &record)
    }
}

impl Core {
    fn scan(&self) -> Result<Option<Scan>> {
        let Some(record) = Zap::new(&self.directory()?).get_value(SCAN)? else {
            return Ok(None);
        };
        let words = record.ints();
        if words.len() < WORDS || ScanState::new(words[word::STATE]) != ScanState::Scanning {
            return Ok(None);
        }
        let queue = match words[word::QUEUE] {
            0 => None,
            o => Some(self.hold(o)?),
        };
        Ok(Some(Scan { words, queue }))
    }

    fn scan_changed(&self, change: ScanChange) {
        self.scan_changes.acquire().push(change);
    }

    /// `snap` was made of `head`: it has all the scan has to find there.
    pub(crate) fn scan_snapshotted(&self, tx: &Tx, head: &Dataset, snap: &Dataset) -> Result<()> {
        let Some(mut scan) = self.scan()? else {
            return Ok(());
        };
        self.scan_changed(ScanChange::Snapshotted {
            head: head.object(),
            snap: snap.object(),
        });
        scan.requeue(tx, head.object(), Some(snap.object()))?;
        if !scan.is_at(head.object()) {
            return Ok(());
        }
        scan.words[word::BOOKMARK] = snap.object();
        scan.store(self, tx)
    }

    /// `head`, which has left the scan with what it had, takes over all that `filled` has. Its blocks may be as old as those
    /// the scan is for.
    pub(crate) fn scan_received(&self, tx: &Tx, filled: u64, head: u64) -> Result<()> {
        let Some(mut scan) = self.scan()? else {
            return Ok(());
        };
        self.scan_changed(ScanChange::Received { filled, head });
        scan.requeue(tx, filled, Some(head))?;
        if !scan.is_at(filled) {
            return Ok(());
        }
        scan.words[word::BOOKMARK] = head;
        scan.store(self, tx)
    }

    /// A snapshot is being destroyed; `next` is the next one, or the head.
    pub(crate) fn scan_snapshot_destroyed(&self, tx: &Tx, snap: u64, next: u64) -> Result<()> {
        let Some(mut scan) = self.scan()? else {
            return Ok(());
        };
        self.scan_changed(ScanChange::SnapshotDestroyed { snap, next });
        if !mutated(Mutation::ScanForgetsDestroyed) {
            scan.requeue(tx, snap, Some(next))?;
        }
        if !scan.is_at(snap) {
            return Ok(());
        }
        scan.words[word::BOOKMARK] = next;
        scan.words[word::FLAGS] |= VISIT_AGAIN;
        scan.store(self, tx)
    }

    /// The blocks that are only in this head are gone: it is being destroyed or rolled back.
    pub(crate) fn scan_head_gone(&self, tx: &Tx, head: u64) -> Result<()> {
        let Some(mut scan) = self.scan()? else {
            return Ok(());
        };
        self.scan_changed(ScanChange::HeadGone { head });
        scan.requeue(tx, head, None)?;
        if !scan.is_at(head) {
            return Ok(());
        }
        scan.words[word::BOOKMARK..word::BOOKMARK + 4].copy_from_slice(&[NO_DATASET, 0, 0, 0]);
        scan.store(self, tx)
    }
}

impl Dsl {
    /// Object number of the snapshot that every dataset comes from, in pools that have one: a scan visits it first.
    ///
    /// # Errors
    /// Those of reading the directory.
    pub fn origin_snapshot(&self) -> Result<Option<u64>> {
        Ok(Some(self.core.origin_snap()?).filter(|o| *o != 0))
    }

    /// The changes of datasets since the last call that moved the place of a scan, in order. For syncing context.
    pub fn take_scan_changes(&self) -> Vec<ScanChange> {
        std::mem::take(&mut *self.core.scan_changes.acquire())
    }
}
