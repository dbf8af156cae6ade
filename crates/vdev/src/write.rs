//! Write batches: writes are collected, sorted, merged and sent leaf by leaf.

use crate::copying::TopRange;
use crate::io_counts::IoClass;
use crate::node::{Vdev, VdevKind};
use crate::read::{columns, readable};
use crate::unflushed::{sum, Mark};
use crate::VdevTree;
use base::mutation::{mutated, Mutation};
use base::sync::MutexExt;
use base::{bail, Block, Error, Kind, Result, Txg, MAX_BLOCK};
use env::Op;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

/// Adjacent writes to a leaf are handed over as one transfer up to this size.
const MERGE: usize = 1 << 20;

/// One write to one leaf.
struct LeafWrite {
    leaf: Arc<Vdev>,
    /// The distributed spare the leaf stands for, if it is not the leaf itself that is meant.
    spare: Option<Arc<Vdev>>,
    /// Byte offset on the device.
    at: u64,
    bufs: Vec<Block>,
    len: usize,
    /// Of `bufs`.
    sum: u64,
    item: usize,
    /// Column of the item, `NO_SLOT` for what carries nothing.
    slot: usize,
}

/// Of a write without meaning: a skipped sector.
const NO_SLOT: usize = usize::MAX;

/// Who is concerned if a transfer fails.
struct Owner {
    item: usize,
    slot: usize,
    spare: Option<Arc<Vdev>>,
}

/// One logical write.
struct Item {
    top: Arc<Vdev>,
    /// Columns of each stripe (end index in `copies`) that may be lost.
    nparity: usize,
    stripe_ends: Vec<usize>,
    /// Leaves that have (or will have) each column.
    copies: Vec<u32>,
    hurt: bool,
    error: Option<Error>,
}

/// A block of a RAID-Z, by its item: where it goes may change until it is sent.
struct Unsettled {
    item: usize,
    vdev: u64,
    offset: u64,
    data: Block,
    /// Its writes are among the others. Not while the vdev is expanding.
    planned: bool,
}

#[derive(Default)]
struct Inner {
    items: Vec<Item>,
    unsettled: Vec<Unsettled>,
    /// Of the items, in their order.
    places: Vec<TopRange>,
    writes: Vec<LeafWrite>,
    bytes: u64,
    /// Vdevs that do not get some of it.
    missed: Vec<Arc<Vdev>>,
}

/// Writes of one transaction group on their way to the leaves. May be filled by many threads.
pub struct WriteBatch<'a> {
    tree: &'a VdevTree,
    txg: Txg,
    class: IoClass,
    /// [`crate::copying::Copying::begun`] when the batch was made.
    begun: u64,
    inner: Mutex<Inner>,
}

impl VdevTree {
    /// An empty batch for writes of `txg`.
    pub fn write_batch(&self, txg: Txg) -> WriteBatch<'_> {
        WriteBatch {
            tree: self,
            txg,
            class: IoClass::Async,
            begun: self.copying.begun(),
            inner: Mutex::new(Inner::default()),
        }
    }

    /// Writes one block at once.
    pub fn write(&self, vdev: u64, offset: u64, data: &Block, txg: Txg) -> Result<()> {
        let batch = self.write_batch(txg);
        batch.write(vdev, offset, data)?;
        batch.submit().into_iter().try_for_each(|r| r)
    }
}

fn zeros(n: usize) -> Block {
    Arc::new(vec![0; n])
}

impl WriteBatch<'_> {
    /// Somebody waits for these writes: they count as synchronous.
    pub fn urgent(self) -> Self {
        WriteBatch {
            class: IoClass::Sync,
            ..self
        }
    }

    /// Bytes waiting, parity and copies included.
    pub fn bytes(&self) -> u64 {
        self.inner.acquire().bytes
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
        let asize = top.asize_in(data.len() as u64, self.txg);
        if offset
            .checked_add(asize)
            .is_none_or(|end| end > top.asize())
        {
            bail!(Invalid, "{}: write at {offset:#x} is outside", top.name());
        }
        let expanding = top.is_expanding();
        let mut plan = match expanding {
            true => Planned::default(),
            false => self.planned(&top, offset, data)?,
        };
        let mut inner = self.inner.acquire();
        let item = inner.items.len();
        for w in &mut plan.writes {
            w.item = item;
            inner.bytes += w.len as u64;
        }
        inner.writes.append(&mut plan.writes);
        inner.missed.append(&mut plan.missed);
        inner.places.push((vdev, offset, offset + asize));
        if matches!(top.kind(), VdevKind::Raidz { .. }) {
            inner.bytes += if expanding { data.len() as u64 } else { 0 };
            inner.unsettled.push(Unsettled {
                item,
                vdev,
                offset,
                data: data.clone(),
                planned: !expanding,
            });
        }
        inner.items.push(Item {
            top,
            nparity: plan.nparity,
            stripe_ends: plan.stripe_ends,
            copies: plan.copies,
            hurt: plan.hurt,
            error: None,
        });
        Ok(item)
    }

    /// The writes of one block, with parity.
    fn planned(&self, top: &Arc<Vdev>, offset: u64, data: &Block) -> Result<Planned> {
        let mut plan = Planned::default();
        let Some(map) = top.layout(offset, data.len(), self.txg)? else {
            let asize = top.asize_in(data.len() as u64, self.txg);
            let mut bufs = vec![data.clone()];
            if asize > data.len() as u64 {
                bufs.push(zeros((asize - data.len() as u64) as usize));
            }
            let holders = top.leaves().into_iter().map(|l| (l.clone(), l)).collect();
            plan.column(holders, offset, &bufs);
            plan.stripe_ends.push(1);
            return Ok(plan);
        };
        if (0..map.stripes.len()).any(|s| map.in_scratch(s)) {
            bail!(Unsupported, "{}: write into the scratch area", top.name());
        }
        plan.nparity = map.nparity;
        let mut padded = Vec::new();
        let block: &[u8] = if data.len() == map.len {
            data
        } else {
            padded.extend_from_slice(data);
            padded.resize(map.len, 0);
            &padded
        };
        let also = map.widened.as_ref().map_or(&[][..], |w| &w.also);
        for (s, stripe) in map.stripes.iter().enumerate() {
            let mut second = Vec::new();
            for (c, (place, mut bytes)) in
                stripe.cols.iter().zip(columns(&map, s, block)).enumerate()
            {
                if c >= map.nparity && mutated(Mutation::PaddingUnwritten) {
                    bytes.truncate(place.data);
                    if bytes.is_empty() {
                        continue;
                    }
                }
                let holders = top.holders(place.child, place.offset);
                let bytes = Arc::new(bytes);
                let mine = also.iter().filter(|a| (a.stripe, a.column) == (s, c));
                second.extend(mine.map(|a| (a, bytes.clone())));
                plan.column(holders, place.offset, &[bytes]);
            }
            plan.stripe_ends.push(plan.copies.len());
            if second.is_empty() || mutated(Mutation::ExpansionWritesOnce) {
                continue;
            }
            for (a, bytes) in second {
                plan.column(top.holders(a.child, a.offset), a.offset, &[bytes]);
            }
            plan.stripe_ends.push(plan.copies.len());
        }
        // Writing the skipped sectors lets neighbouring blocks merge into one transfer.
        let sector = zeros(map.sector);
        for (child, at) in &map.skips {
            plan.skip(top.holders(*child, *at), *at, &sector);
        }
        Ok(plan)
    }

    /// Finds the places of blocks of expanding vdevs, which stay what they are while [`crate::copying::Copying::write`] is held.
    fn settle(
        &self,
        unsettled: Vec<Unsettled>,
        items: &mut [Item],
        writes: &mut Vec<LeafWrite>,
        missed: &mut Vec<Arc<Vdev>>,
    ) {
        let tree = self.tree;
        let begun = tree.copying.begun() != self.begun;
        let moved =
            |u: &Unsettled| !u.planned || begun && tree.top(u.vdev).is_ok_and(|t| t.is_expanding());
        let again: Vec<Unsettled> = unsettled.into_iter().filter(moved).collect();
        if again.is_empty() {
            return;
        }
        let of: std::collections::HashSet<usize> = again.iter().map(|u| u.item).collect();
        writes.retain(|w| !of.contains(&w.item));
        let plans: Vec<Mutex<Option<Result<Planned>>>> =
            again.iter().map(|_| Mutex::default()).collect();
        tree.env.cpu.par_for(again.len(), &|i| {
            let u = &again[i];
            let plan = tree
                .top(u.vdev)
                .and_then(|top| self.planned(&top, u.offset, &u.data));
            *plans[i].acquire() = Some(plan);
        });
        for (u, plan) in again.iter().zip(plans) {
            let item = &mut items[u.item];
            let plan = plan.acquire().take().unwrap_or(Err(Error::from(Kind::Io)));
            let mut plan = plan.unwrap_or_else(|e| {
                item.error = Some(e);
                // Nobody has it.
                Planned {
                    copies: vec![0],
                    stripe_ends: vec![1],
                    hurt: true,
                    ..Planned::default()
                }
            });
            plan.writes.iter_mut().for_each(|w| w.item = u.item);
            writes.append(&mut plan.writes);
            missed.append(&mut plan.missed);
            item.nparity = plan.nparity;
            item.stripe_ends = plan.stripe_ends;
            item.copies = plan.copies;
            item.hurt = plan.hurt;
        }
    }

    /// Adds what the leaves of another vdev have at a range, as [`VdevTree::read_raw`] returns it: each leaf of this one that can be used,
    /// a plain vdev or a mirror, gets one of the contents, in turn. Whole sectors, all contents of the same length. At [`WriteBatch::submit`]
    /// it is an error if one of the contents is on no leaf.
    ///
    /// # Errors
    /// Those of [`WriteBatch::write`]; nothing is added then.
    pub fn write_raw(&self, vdev: u64, offset: u64, contents: &[Block]) -> Result<usize> {
        let top = self.tree.top(vdev)?;
        let [first, _, ..] = contents else {
            let Some(only) = contents.first() else {
                bail!(Invalid, "{}: nothing to write", top.name());
            };
            return self.write(vdev, offset, only);
        };
        let asize = top.asize_in(first.len() as u64, self.txg);
        if contents.iter().any(|c| c.len() as u64 != asize) {
            bail!(Invalid, "{}: no whole sectors", top.name());
        }
        let item = self.write(vdev, offset, first)?;
        let mut inner = self.inner.acquire();
        // Each content counts by itself.
        let mut copies = vec![0; contents.len()];
        let mine = inner.writes.iter_mut().filter(|w| w.item == item);
        for (number, w) in mine.enumerate() {
            let slot = number % contents.len();
            w.slot = slot;
            copies[slot] += 1;
            w.bufs = vec![contents[slot].clone()];
            w.sum = sum(&w.bufs);
        }
        let it = &mut inner.items[item];
        it.stripe_ends = vec![copies.len()];
        it.copies = copies;
        Ok(item)
    }

    /// These writes are copies for a removal.
    pub fn removal(self) -> Self {
        WriteBatch {
            class: IoClass::Removal,
            ..self
        }
    }

    /// [`WriteBatch::write`] for many blocks `(vdev, offset, data)`, with parity computed on all
    /// cores. The results of [`WriteBatch::submit`] are in no particular order then. On an error
    /// some blocks are added and some are not.
    pub fn write_many(&self, blocks: &[(u64, u64, &Block)]) -> Result<()> {
        let error: Mutex<Option<Error>> = Mutex::new(None);
        self.tree.env.cpu.par_for(blocks.len(), &|i| {
            let (vdev, offset, data) = blocks[i];
            if let Err(e) = self.write(vdev, offset, data) {
                error.acquire().get_or_insert(e);
            }
        });
        let error = error.acquire().take();
        error.map_or(Ok(()), Err)
    }

    /// Sends everything and waits. One result per added block, in order: an error means that too
    /// few leaves have it to read it back. A leaf that failed a write gets the txg into its DTL.
    pub fn submit(self) -> Vec<Result<()>> {
        let txg = self.txg;
        let (results, missed) = self.send();
        missed.iter().for_each(|v| v.dtl_add(txg));
        results
    }

    /// The same for writes that are of use together only: the first error there was. Nobody has missed
    /// anything then, since the caller writes all of it again or none of it counts.
    pub fn submit_all(self) -> Result<()> {
        let txg = self.txg;
        let (results, missed) = self.send();
        results.into_iter().try_for_each(|r| r)?;
        missed.iter().for_each(|v| v.dtl_add(txg));
        Ok(())
    }

    /// Sends everything; the results, and the vdevs that did not get some of it.
    fn send(self) -> (Vec<Result<()>>, Vec<Arc<Vdev>>) {
        let Inner {
            mut items,
            unsettled,
            places,
            mut writes,
            mut missed,
            ..
        } = std::mem::take(&mut *self.inner.acquire());
        let writing = self.tree.copying.write(&places);
        self.settle(unsettled, &mut items, &mut writes, &mut missed);
        let mut by_leaf: HashMap<usize, Vec<LeafWrite>> = HashMap::new();
        for w in writes {
            by_leaf
                .entry(Arc::as_ptr(&w.leaf) as usize)
                .or_default()
                .push(w);
        }
        let mut by_leaf: Vec<Vec<LeafWrite>> = by_leaf.into_values().collect();
        // In an order that does not depend on addresses, so that a simulation repeats itself.
        by_leaf.sort_by_cached_key(|list| list[0].leaf.guid());
        let jobs: Vec<_> = by_leaf
            .into_iter()
            .map(|list| {
                let leaf = list[0].leaf.clone();
                let (ops, owners, marks) = merge(list);
                (leaf, owners, marks, Mutex::new(ops), Mutex::new(Vec::new()))
            })
            .collect();
        self.tree.env.cpu.par_io(jobs.len(), &|i| {
            let (leaf, owners, marks, ops, results) = &jobs[i];
            leaf.soil(self.txg);
            let ops = std::mem::take(&mut *ops.acquire());
            let merged = |n: usize| owners.get(n).is_some_and(|o| o.len() > 1);
            *results.acquire() = leaf
                .batch_in(ops, Some((self.txg, marks)), self.class, &merged)
                .into_iter()
                .map(|(_, r)| r)
                .collect();
        });
        drop(writing);
        for (leaf, owners, _, _, results) in &jobs {
            let mut sick = false;
            for (owners, result) in owners.iter().zip(results.acquire().drain(..)) {
                let Err(e) = result else { continue };
                sick = true;
                for o in owners {
                    // Not the leaf's own data where a distributed spare is meant.
                    missed.push(o.spare.as_ref().unwrap_or(leaf).clone());
                    let item = &mut items[o.item];
                    if let Some(c) = item.copies.get_mut(o.slot) {
                        *c = c.saturating_sub(1);
                        item.hurt = true;
                        item.error = Some(e.clone());
                    }
                }
            }
            if sick {
                // Whatever made it fail may have cost it what it had not flushed yet.
                leaf.suspect();
                self.tree.probe(leaf);
            }
        }
        (items.into_iter().map(Item::result).collect(), missed)
    }
}

/// The writes of one block being put together.
#[derive(Default)]
struct Planned {
    writes: Vec<LeafWrite>,
    /// As in [`Item`].
    nparity: usize,
    stripe_ends: Vec<usize>,
    copies: Vec<u32>,
    hurt: bool,
    missed: Vec<Arc<Vdev>>,
}

impl Planned {
    /// One column for all leaves that hold it, `(leaf, owner)`.
    fn column(&mut self, holders: Vec<(Arc<Vdev>, Arc<Vdev>)>, offset: u64, bufs: &[Block]) {
        let slot = self.copies.len();
        let sent = self.send(holders, offset, bufs, slot);
        self.copies.push(sent);
    }

    /// A sector that means nothing.
    fn skip(&mut self, holders: Vec<(Arc<Vdev>, Arc<Vdev>)>, offset: u64, sector: &Block) {
        self.send(holders, offset, std::slice::from_ref(sector), NO_SLOT);
    }

    fn send(
        &mut self,
        holders: Vec<(Arc<Vdev>, Arc<Vdev>)>,
        offset: u64,
        bufs: &[Block],
        slot: usize,
    ) -> u32 {
        let len = bufs.iter().map(|b| b.len()).sum();
        // What means nothing may be lost.
        let sum = if slot == NO_SLOT { 0 } else { sum(bufs) };
        let mut sent = 0;
        for (leaf, owner) in holders {
            // A leaf that is closed at this moment has no size either.
            match leaf.data_offset(offset, len) {
                Ok(at) if leaf.state().usable() => {
                    let spare = (!Arc::ptr_eq(&leaf, &owner)).then_some(owner);
                    let bufs = bufs.to_vec();
                    self.writes.push(LeafWrite {
                        leaf,
                        spare,
                        at,
                        bufs,
                        len,
                        sum,
                        item: 0,
                        slot,
                    });
                    sent += 1;
                }
                _ => {
                    self.missed.push(owner);
                    self.hurt |= slot != NO_SLOT;
                }
            }
        }
        sent
    }
}

impl Item {
    fn result(self) -> Result<()> {
        if !self.hurt && self.copies.iter().all(|c| *c > 0) {
            return Ok(());
        }
        let mut begin = 0;
        let mut fine = true;
        for end in &self.stripe_ends {
            let lost = self.copies[begin..*end].iter().filter(|c| **c == 0).count();
            fine &= lost <= self.nparity;
            begin = *end;
        }
        if fine {
            return Ok(());
        }
        let why = self
            .error
            .unwrap_or(Error::new(Kind::Io, "insufficient replicas"));
        // A leaf is named once.
        let path = self.top.path();
        Err(match path.is_some() && why.subject() == path.as_deref() {
            true => why,
            false => why.context(self.top.name()),
        })
    }
}

/// Sorts the writes of one leaf and merges what touches. Returns the transfers and, for each, who
/// is concerned and what it puts where.
fn merge(mut list: Vec<LeafWrite>) -> (Vec<Op>, Vec<Vec<Owner>>, Vec<Vec<Mark>>) {
    list.sort_by_key(|w| w.at);
    let mut ops: Vec<Op> = Vec::new();
    let mut owners: Vec<Vec<Owner>> = Vec::new();
    let mut marks: Vec<Vec<Mark>> = Vec::new();
    let mut end = None;
    let mut size = 0;
    for w in list {
        let joins = end == Some(w.at) && size + w.len <= MERGE;
        let mark = (w.slot != NO_SLOT).then_some(Mark {
            at: w.at,
            len: w.len,
            sum: w.sum,
        });
        let owner = Owner {
            item: w.item,
            slot: w.slot,
            spare: w.spare,
        };
        end = Some(w.at + w.len as u64);
        match (ops.last_mut(), owners.last_mut(), marks.last_mut()) {
            (Some(Op::Write { bufs, .. }), Some(o), Some(m)) if joins => {
                bufs.extend(w.bufs);
                o.push(owner);
                m.extend(mark);
                size += w.len;
            }
            _ => {
                ops.push(Op::Write {
                    offset: w.at,
                    bufs: w.bufs,
                });
                owners.push(vec![owner]);
                marks.push(mark.into_iter().collect());
                size = w.len;
            }
        }
    }
    (ops, owners, marks)
}
