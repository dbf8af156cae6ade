//! Sequential rebuild: whole ranges of a mirror or dRAID are given to leaves that lack everything, whatever blocks are in them
//! (pool format §20.4). No checksum tells whether what is read is right; a scrub follows.
//!
//! Invariants:
//!
//! 1. Only a leaf that lacks nothing is read from: which blocks a range holds, and when they were born, is not known. One that
//!    is being replaced is asked last, for no checksum tells whether it still has what it should.
//! 2. Only a leaf that a rebuild fills ([`Vdev::is_rebuilt`]) is written to.
//! 3. No other write to a range is under way while it is copied ([`Copying`](crate::copying::Copying)). The caller sees to it
//!    that no block of it is one of a txg that is not on disk.
//!
//! Reading and writing overlap: the ranges of a call are divided into groups, and while one is written the next is read.

use super::finish::readable;
use super::reconstruct::{attempt, columns};
use super::{Cand, CandidateIndex, Column, Got, Plan, ReadReq};
use crate::io_counts::IoClass;
use crate::node::{Vdev, VdevKind};
use crate::unflushed::{sum, Mark};
use crate::VdevTree;
use base::sync::MutexExt;
use base::{bail, Block, Result, Txg, MAX_BLOCK};
use env::Op;
use std::collections::HashMap;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes of a range that one leaf holds, at most.
const SEGMENT: u64 = 1 << 20;

/// Groups into which the ranges of a call are divided. Only the first one's reading and the last one's writing overlap with
/// nothing.
const GROUPS: usize = 16;

/// What became of a range.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rebuilt {
    /// Bytes written to leaves.
    pub written: u64,
    /// No leaf that is rebuilt holds anything of it: nothing was read.
    pub skipped: bool,
    /// A part of it could not be had, or not be given to a leaf.
    pub failed: bool,
}

/// What a leaf, or distributed spare, is to a rebuild.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// It is filled.
    Filled,
    /// It lacks nothing.
    Source,
    /// It lacks nothing, and is being replaced.
    Leaving,
    /// It lacks something, and no rebuild fills it.
    Neither,
}

/// The roles of all below a top-level vdev, by guid: decided once, so that nobody is a source and filled in one call.
type Roles = HashMap<u64, Role>;

fn roles(top: &Arc<Vdev>) -> Roles {
    let mut leaving = Vec::new();
    note_leaving(top, &mut leaving);
    let role = |v: &Arc<Vdev>| {
        let lacks = !v.dtl_is_empty();
        let to_be_filled = v.get_u64(crate::keys::REBUILD_TXG).unwrap_or(0) != 0;
        match lacks {
            true if to_be_filled => Role::Filled,
            true => Role::Neither,
            false if leaving.contains(&v.guid()) => Role::Leaving,
            false => Role::Source,
        }
    };
    let all = top.dtl_holders();
    all.iter().map(|v| (v.guid(), role(v))).collect()
}

/// Guids of those in whose place another is put.
fn note_leaving(v: &Arc<Vdev>, out: &mut Vec<u64>) {
    if let (VdevKind::Replacing | VdevKind::Spare, Some(first)) = (v.kind(), v.children().first()) {
        out.extend(first.dtl_holders().iter().map(|l| l.guid()));
    }
    v.children().iter().for_each(|c| note_leaving(c, out));
}

/// Ranges that are read together, and written together while the next group is read.
struct Group {
    plans: Vec<Option<Plan>>,
    out: Vec<Rebuilt>,
    gifts: Vec<Gift>,
}

/// A write to a leaf that is rebuilt. `range` counts in its group.
struct Gift {
    leaf: Arc<Vdev>,
    owner: Arc<Vdev>,
    at: u64,
    data: Block,
    range: usize,
}

impl Vdev {
    /// Whether a sequential rebuild fills this leaf, or distributed spare: it lacks what was written before it came.
    pub fn is_rebuilt(&self) -> bool {
        self.has_dtl()
            && self.get_u64(crate::keys::REBUILD_TXG).unwrap_or(0) != 0
            && !self.dtl_is_empty()
    }

    /// Whether this top-level vdev can be rebuilt sequentially: what its leaves have does not depend on the blocks.
    pub fn can_be_rebuilt(&self) -> bool {
        self.kind().is_leaf()
            || self.kind() == VdevKind::Mirror
            || matches!(self.kind(), VdevKind::Draid { .. })
    }

    /// Bytes of this top-level vdev that are rebuilt at a time, a multiple of what allocations are multiples of.
    pub fn rebuild_unit(&self) -> u64 {
        let (row, data) = (self.alloc_unit().max(1), self.min_block().max(1));
        let most = (SEGMENT >> self.ashift()).min(MAX_BLOCK as u64 / data);
        row * most.max(1)
    }

    /// Bytes of data in so many allocated bytes of whole rows.
    fn data_in(&self, asize: u64) -> Result<usize> {
        let (row, data) = (self.alloc_unit().max(1), self.min_block().max(1));
        if asize == 0 || asize % row != 0 || asize / row > MAX_BLOCK as u64 / data {
            bail!(Invalid, "{}: {asize} bytes are no whole rows", self.name());
        }
        Ok((asize / row * data) as usize)
    }
}

impl VdevTree {
    /// Gives ranges `(offset, bytes)` of top-level vdev `vdev`, of [`Vdev::rebuild_unit`] bytes at most, to the leaves that are
    /// rebuilt. `txg` is not on disk yet: a leaf that cannot keep what it is given lacks that txg, too.
    ///
    /// # Errors
    /// Those of [`VdevTree::read`] that say that a place does not exist.
    pub fn rebuild(&self, vdev: u64, ranges: &[(u64, u64)], txg: Txg) -> Result<Vec<Rebuilt>> {
        let top = self.top(vdev)?;
        readable(&top)?;
        let places = ranges
            .iter()
            .map(|&(at, n)| (vdev, at, at.saturating_add(n)));
        let _window = self.copying.begin(places.collect());
        let roles = roles(&top);
        let mut groups: Vec<Mutex<Group>> = Vec::new();
        for ranges in ranges.chunks(ranges.len().div_ceil(GROUPS).max(1)) {
            groups.push(Mutex::new(self.group_of_ranges(&top, ranges, &roles)?));
        }
        for next in 0..=groups.len() {
            self.env.cpu.par_io(2, &|half| match half {
                0 if next > 0 => self.give_group(&groups[next - 1], txg),
                1 if next < groups.len() => self.read_group(&groups[next]),
                _ => {}
            });
        }
        let ended = groups.into_iter().map(Mutex::into_inner);
        let ended = ended.map(|g| g.unwrap_or_else(PoisonError::into_inner));
        Ok(ended.flat_map(|g| g.out).collect())
    }

    /// Which leaves some ranges are read from and written to.
    fn group_of_ranges(
        &self,
        top: &Arc<Vdev>,
        ranges: &[(u64, u64)],
        roles: &Roles,
    ) -> Result<Group> {
        let mut group = Group {
            plans: Vec::new(),
            out: vec![Rebuilt::default(); ranges.len()],
            gifts: Vec::new(),
        };
        for (&(offset, asize), out) in ranges.iter().zip(&mut group.out) {
            let req = ReadReq {
                vdev: top.id(),
                offset,
                psize: top.data_in(asize)?,
                birth: base::Txg::INITIAL,
                verify: &|_| true,
            };
            let mut plan = self.plan(&req)?;
            plan.class = IoClass::Rebuild;
            let (plan, wanted) = sources_and_targets(top, plan, roles, out);
            out.skipped = !wanted && !out.failed;
            group.plans.push(wanted.then_some(plan));
        }
        Ok(group)
    }

    fn read_group(&self, group: &Mutex<Group>) {
        let mut g = group.acquire();
        let g = &mut *g;
        self.fetch_sources(&mut g.plans);
        g.gifts = self.gifts(&mut g.plans, &mut g.out);
        g.plans.clear();
    }

    fn give_group(&self, group: &Mutex<Group>, txg: Txg) {
        let mut g = group.acquire();
        let gifts = std::mem::take(&mut g.gifts);
        self.give(gifts, txg, &mut g.out);
    }

    /// Reads as little as is needed.
    fn fetch_sources(&self, plans: &mut [Option<Plan>]) {
        let mut places: Vec<CandidateIndex> = Vec::new();
        for (r, plan) in plans.iter().enumerate() {
            let Some(plan) = plan else { continue };
            let nparity = plan.map.as_ref().map_or(0, |m| m.nparity);
            for (s, cols) in plan.stripes.iter().enumerate() {
                let all = |c: &Column| c.cands.first().is_some_and(|k| !k.stale);
                let staying = |c: &Column| c.cands.first().is_some_and(|k| !k.stale && !k.leaving);
                // Enough columns stay: those that are being replaced are made from the others.
                let enough = cols.iter().filter(|c| c.blank || staying(c)).count() + nparity;
                let fresh = |c: &Column| match enough >= cols.len() {
                    true => staying(c),
                    false => all(c),
                };
                let whole = cols.iter().skip(nparity).all(|c| c.blank || fresh(c));
                let needed = cols
                    .iter()
                    .enumerate()
                    .filter(|(c, col)| match *c >= nparity {
                        true => !col.blank && fresh(col),
                        false => !whole && fresh(col),
                    });
                places.extend(needed.map(|(c, _)| (r, s, c, 0)));
            }
        }
        let mut refs: Vec<Option<&mut Plan>> = plans.iter_mut().map(Option::as_mut).collect();
        self.fetch(&mut refs, &places, IoClass::Rebuild);
    }

    /// What is to be written where.
    fn gifts(&self, plans: &mut [Option<Plan>], out: &mut [Rebuilt]) -> Vec<Gift> {
        let cells: Vec<Mutex<(Option<Plan>, Option<Vec<Gift>>)>> = plans
            .iter_mut()
            .map(|p| Mutex::new((p.take(), None)))
            .collect();
        self.env.cpu.par_for(cells.len(), &|r| {
            let mut cell = cells[r].acquire();
            if let Some(mut plan) = cell.0.take() {
                let content = self.content(&mut plan);
                cell.1 = content.map(|content| presents(&plan, content, r));
                cell.0 = Some(plan);
            }
        });
        let mut all = Vec::new();
        for (cell, out) in cells.into_iter().zip(out) {
            let mut cell = cell.acquire();
            match (cell.0.is_some(), cell.1.take()) {
                (true, Some(gifts)) => all.extend(gifts),
                (true, None) => out.failed = true,
                (false, _) => {}
            }
        }
        all
    }

    /// The content of a range, from leaves that lack nothing.
    fn content(&self, plan: &mut Plan) -> Option<Vec<u8>> {
        let known = |plan: &mut Plan| {
            plan.stripes.iter_mut().flatten().for_each(|c| c.choose());
            match plan.map {
                Some(_) => attempt(plan, &|_, _| false),
                None => plan.stripes[0][0].data().map(<[u8]>::to_vec),
            }
        };
        if let Some(found) = known(plan) {
            return Some(found);
        }
        let mut more = Vec::new();
        for (s, cols) in plan.stripes.iter().enumerate() {
            for (c, col) in cols.iter().enumerate() {
                let unread = |k: &Cand| !k.stale && matches!(k.got, Got::No);
                let cands = col.cands.iter().enumerate();
                more.extend(cands.filter(|(_, k)| unread(k)).map(|(k, _)| (s, c, k)));
            }
        }
        self.fetch_more(plan, more);
        known(plan)
    }

    fn give(&self, gifts: Vec<Gift>, txg: Txg, out: &mut [Rebuilt]) {
        if self.read_only.load(Relaxed) {
            gifts.iter().for_each(|g| out[g.range].failed = true);
            return;
        }
        let mut by_leaf: Vec<(Arc<Vdev>, Vec<Gift>)> = Vec::new();
        for g in gifts {
            match by_leaf
                .iter_mut()
                .find(|(leaf, _)| Arc::ptr_eq(leaf, &g.leaf))
            {
                Some((_, list)) => list.push(g),
                None => by_leaf.push((g.leaf.clone(), vec![g])),
            }
        }
        let results: Vec<Mutex<Vec<Result<()>>>> =
            by_leaf.iter().map(|_| Mutex::default()).collect();
        self.env.cpu.par_io(by_leaf.len(), &|i| {
            let (leaf, list) = &by_leaf[i];
            leaf.soil(txg);
            let op = |g: &Gift| Op::Write {
                offset: g.at,
                bufs: vec![g.data.clone()],
            };
            let mark = |g: &Gift| {
                vec![Mark {
                    at: g.at,
                    len: g.data.len(),
                    sum: sum(std::slice::from_ref(&g.data)),
                }]
            };
            let marks: Vec<Vec<Mark>> = list.iter().map(mark).collect();
            let ops = list.iter().map(op).collect();
            let done = leaf.batch_in(ops, Some((txg, &marks)), IoClass::Rebuild, &|_| false);
            *results[i].acquire() = done.into_iter().map(|(_, r)| r).collect();
        });
        for ((leaf, list), results) in by_leaf.iter().zip(results) {
            let mut sick = false;
            for (g, result) in list.iter().zip(results.acquire().drain(..)) {
                let n = g.data.len() as u64;
                match result {
                    Ok(()) => {
                        out[g.range].written += n;
                        g.owner.stats.scan_bytes.fetch_add(n, Relaxed);
                    }
                    Err(_) => {
                        sick = true;
                        out[g.range].failed = true;
                    }
                }
            }
            if sick {
                leaf.suspect();
                self.probe(leaf);
            }
        }
    }
}

/// Leaves out who is neither read from nor written to. True if somebody is to be written to; in `out` whether one of those is
/// away.
fn sources_and_targets(
    top: &Arc<Vdev>,
    mut plan: Plan,
    roles: &Roles,
    out: &mut Rebuilt,
) -> (Plan, bool) {
    let role = |v: &Vdev| roles.get(&v.guid()).copied().unwrap_or(Role::Neither);
    let away = |(leaf, owner): &(Arc<Vdev>, Arc<Vdev>)| {
        role(owner) == Role::Filled && !leaf.state().usable()
    };
    out.failed = match &plan.map {
        None => top.leaves().into_iter().any(|l| away(&(l.clone(), l))),
        Some(map) => {
            let mut cols = map.stripes.iter().flat_map(|s| &s.cols);
            cols.any(|c| top.holders(c.child, c.offset).iter().any(away))
        }
    };
    let mut wanted = false;
    for col in plan.stripes.iter_mut().flatten() {
        col.cands.retain_mut(|k| {
            let role = role(&k.owner);
            k.stale = role == Role::Filled;
            k.leaving = role == Role::Leaving;
            wanted |= k.stale;
            role != Role::Neither
        });
        col.cands.sort_by_key(|k| (k.stale, k.leaving));
    }
    (plan, wanted)
}

/// The writes that give a range to those who are rebuilt.
fn presents(plan: &Plan, mut content: Vec<u8>, range: usize) -> Vec<Gift> {
    let mut out = Vec::new();
    for (s, cols) in plan.stripes.iter().enumerate() {
        if !cols.iter().any(|c| c.cands.iter().any(|k| k.stale)) {
            continue;
        }
        let right = match &plan.map {
            Some(map) => columns(map, s, &content),
            // A mirror has one stripe.
            None => vec![std::mem::take(&mut content)],
        };
        for (col, right) in cols.iter().zip(right) {
            let data = Arc::new(right);
            for k in col.cands.iter().filter(|k| k.stale) {
                out.push(Gift {
                    leaf: k.leaf.clone(),
                    owner: k.owner.clone(),
                    at: k.at,
                    data: data.clone(),
                    range,
                });
            }
        }
    }
    out
}
