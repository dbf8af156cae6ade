//! Writes: collected, sorted, merged, sent leaf by leaf.

use crate::lock;
use crate::map;
use crate::node::{Vdev, VdevKind};
use crate::read::{columns, readable};
use crate::tree::survives;
use crate::VdevTree;
use base::{bail, Block, Error, Kind, Result, Txg, MAX_BLOCK};
use env::Op;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};

/// Adjacent writes to a leaf are handed over as one transfer up to this size.
const MERGE: usize = 1 << 20;

/// One write to one leaf.
struct LeafWrite {
    leaf: Arc<Vdev>,
    /// Byte offset on the device.
    at: u64,
    bufs: Vec<Block>,
    len: usize,
    item: usize,
}

/// One logical write.
struct Item {
    top: Arc<Vdev>,
    /// Children of a RAID-Z it touches.
    children: Vec<usize>,
    /// Leaves (guids) that do not have it.
    failed: HashSet<u64>,
    error: Option<Error>,
}

#[derive(Default)]
struct Inner {
    items: Vec<Item>,
    writes: Vec<LeafWrite>,
    bytes: u64,
}

/// Writes of one transaction group on their way to the leaves. May be filled by many threads.
pub struct WriteBatch<'a> {
    tree: &'a VdevTree,
    txg: Txg,
    inner: Mutex<Inner>,
}

impl VdevTree {
    /// An empty batch for writes of `txg`.
    pub fn write_batch(&self, txg: Txg) -> WriteBatch<'_> {
        WriteBatch {
            tree: self,
            txg,
            inner: Mutex::new(Inner::default()),
        }
    }

    /// Writes one block at once.
    pub fn write(&self, vdev: u64, offset: u64, data: &Block, txg: Txg) -> Result<()> {
        let batch = self.write_batch(txg);
        batch.write(vdev, offset, data)?;
        batch.submit().into_iter().try_for_each(|r| r)
    }

    /// Tells the devices that `[offset, offset + asize)` of top-level vdev `vdev` is free. Devices
    /// that cannot are passed over. Returns the bytes discarded on leaves.
    pub fn discard(&self, vdev: u64, offset: u64, asize: u64) -> Result<u64> {
        let top = self.top(vdev)?;
        readable(&top)?;
        let mut done = 0;
        let mut one = |child: &Arc<Vdev>, at: u64, len: u64| -> Result<()> {
            for leaf in child.leaves() {
                let Some(d) = leaf.usable_device().filter(|d| d.geometry().can_discard) else {
                    continue;
                };
                let len = usize::try_from(len).map_err(|_| Error::from(Kind::Overflow))?;
                let at = leaf.data_offset(at, len)?;
                match d.discard(at, len as u64) {
                    Ok(()) => done += len as u64,
                    Err(e) if e.kind == Kind::Unsupported => {}
                    Err(e) => return Err(e),
                }
            }
            Ok(())
        };
        match top.kind() {
            VdevKind::Raidz { .. } => {
                let (a, w) = (top.ashift(), top.children().len() as u64);
                let (first, end) = (offset >> a, (offset.saturating_add(asize)) >> a);
                for (c, child) in top.children().iter().enumerate() {
                    // Sectors k of the range with k mod w = c are consecutive rows of child c.
                    let rows = |k: u64| (k + w - 1 - c as u64) / w;
                    let (from, to) = (rows(first), rows(end));
                    if to > from {
                        one(child, from << a, (to - from) << a)?;
                    }
                }
            }
            _ => one(&top, offset, asize)?,
        }
        Ok(done)
    }
}

fn zeros(n: usize) -> Block {
    Arc::new(vec![0; n])
}

impl WriteBatch<'_> {
    /// Bytes waiting, parity and copies included.
    pub fn bytes(&self) -> u64 {
        lock(&self.inner).bytes
    }

    /// Adds a block; it goes out at [`WriteBatch::submit`]. What is missing to whole sectors is
    /// written as zeros. Returns the index of its result. Parity is computed here, on the caller's
    /// thread.
    ///
    /// Errors as in [`VdevTree::read`]; nothing is added then.
    pub fn write(&self, vdev: u64, offset: u64, data: &Block) -> Result<usize> {
        let tree = self.tree;
        if tree.read_only.load(std::sync::atomic::Ordering::Relaxed) {
            bail!(ReadOnly, "pool is read-only");
        }
        let top = tree.top(vdev)?;
        readable(&top)?;
        if data.is_empty() || data.len() > MAX_BLOCK {
            bail!(Invalid, "write of {} bytes", data.len());
        }
        let asize = top.asize_for(data.len() as u64);
        if offset
            .checked_add(asize)
            .is_none_or(|end| end > top.asize())
        {
            bail!(Invalid, "{}: write at {offset:#x} is outside", top.name());
        }
        let mut writes = Vec::new();
        let mut failed = HashSet::new();
        let mut children = Vec::new();
        let mut to = |child: &Arc<Vdev>, at: u64, bufs: Vec<Block>| {
            let len = bufs.iter().map(|b| b.len()).sum();
            for leaf in child.leaves() {
                // A leaf that is closed at this moment has no size either.
                match leaf.data_offset(at, len) {
                    Ok(at) if leaf.state().usable() => {
                        writes.push(LeafWrite {
                            leaf,
                            at,
                            bufs: bufs.clone(),
                            len,
                            item: 0,
                        });
                    }
                    _ => {
                        leaf.dtl_add(self.txg);
                        failed.insert(leaf.guid());
                    }
                }
            }
        };
        match top.kind() {
            VdevKind::Raidz { nparity } => {
                let (n, width) = (top.children().len(), top.raidz_width(self.txg));
                let map = map::raidz(n, width, nparity, top.ashift(), offset, data.len())?;
                let mut padded = Vec::new();
                let block: &[u8] = if data.len() == map.len {
                    data
                } else {
                    padded.extend_from_slice(data);
                    padded.resize(map.len, 0);
                    &padded
                };
                for (s, stripe) in map.stripes.iter().enumerate() {
                    for (place, bytes) in stripe.cols.iter().zip(columns(&map, s, block)) {
                        children.push(place.child);
                        to(
                            &top.children()[place.child],
                            place.offset,
                            vec![Arc::new(bytes)],
                        );
                    }
                }
                // Writing the skipped sectors lets neighbouring blocks merge into one transfer.
                let sector = zeros(map.sector);
                for (child, at) in &map.skips {
                    to(&top.children()[*child], *at, vec![sector.clone()]);
                }
                children.sort_unstable();
                children.dedup();
            }
            _ => {
                let mut bufs = vec![data.clone()];
                if asize > data.len() as u64 {
                    bufs.push(zeros((asize - data.len() as u64) as usize));
                }
                to(&top, offset, bufs);
            }
        }
        let mut inner = lock(&self.inner);
        let item = inner.items.len();
        for w in &mut writes {
            w.item = item;
            inner.bytes += w.len as u64;
        }
        inner.writes.append(&mut writes);
        inner.items.push(Item {
            top,
            children,
            failed,
            error: None,
        });
        Ok(item)
    }

    /// Sends everything and waits. One result per added block, in order: an error means that too
    /// few leaves have it to read it back. A leaf that failed a write gets the txg into its DTL.
    pub fn submit(self) -> Vec<Result<()>> {
        let Inner {
            mut items, writes, ..
        } = self
            .inner
            .into_inner()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        let mut by_leaf: HashMap<usize, Vec<LeafWrite>> = HashMap::new();
        for w in writes {
            by_leaf
                .entry(Arc::as_ptr(&w.leaf) as usize)
                .or_default()
                .push(w);
        }
        let jobs: Vec<_> = by_leaf
            .into_values()
            .map(|list| {
                let leaf = list[0].leaf.clone();
                let (ops, owners) = merge(list);
                (leaf, owners, Mutex::new(ops), Mutex::new(Vec::new()))
            })
            .collect();
        self.tree.env.cpu.par_for(jobs.len(), &|i| {
            let (leaf, _, ops, results) = &jobs[i];
            let ops = std::mem::take(&mut *lock(ops));
            *lock(results) = leaf.batch(ops).into_iter().map(|(_, r)| r).collect();
        });
        for (leaf, owners, _, results) in &jobs {
            let mut sick = false;
            for (owners, result) in owners.iter().zip(lock(results).drain(..)) {
                let Err(e) = result else { continue };
                sick = true;
                for &i in owners {
                    items[i].failed.insert(leaf.guid());
                    items[i].error = Some(e.clone());
                }
            }
            if sick {
                leaf.dtl_add(self.txg);
                self.tree.probe(leaf);
            }
        }
        items.into_iter().map(Item::result).collect()
    }
}

impl Item {
    fn result(self) -> Result<()> {
        if self.failed.is_empty() {
            return Ok(());
        }
        // A leaf that got the write counts even if it was found dead since: it may come back.
        let ok = |leaf: &Vdev| !self.failed.contains(&leaf.guid());
        let fine = match self.top.kind() {
            VdevKind::Raidz { nparity } => {
                let children = self.top.children();
                let lost = self
                    .children
                    .iter()
                    .filter(|c| !survives(&children[**c], &ok))
                    .count();
                lost <= nparity
            }
            _ => survives(&self.top, &ok),
        };
        if fine {
            return Ok(());
        }
        let why = self
            .error
            .unwrap_or(Error::new(Kind::Io, "insufficient replicas"));
        Err(why.context(self.top.name()))
    }
}

/// Sorts the writes of one leaf and merges what touches. Returns the transfers and, for each, the
/// items in it.
fn merge(mut list: Vec<LeafWrite>) -> (Vec<Op>, Vec<Vec<usize>>) {
    list.sort_by_key(|w| w.at);
    let mut ops: Vec<Op> = Vec::new();
    let mut owners: Vec<Vec<usize>> = Vec::new();
    let mut end = None;
    let mut size = 0;
    for w in list {
        let joins = end == Some(w.at) && size + w.len <= MERGE;
        match (ops.last_mut(), owners.last_mut()) {
            (Some(Op::Write { bufs, .. }), Some(o)) if joins => {
                bufs.extend(w.bufs);
                o.push(w.item);
                size += w.len;
            }
            _ => {
                ops.push(Op::Write {
                    offset: w.at,
                    bufs: w.bufs,
                });
                owners.push(vec![w.item]);
                size = w.len;
            }
        }
        end = Some(w.at + w.len as u64);
    }
    (ops, owners)
}
