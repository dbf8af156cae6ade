//! The traversal of a scan: which object sets come next, and the walk through one of them.

use super::live::{At, Live, Visit};
use super::queue::Waiting;
use crate::{Budget, Pool};
use base::{Kind, Result, Txg};
use disk::objset::ObjsetPhys;
use disk::scan::word;
use disk::{BlkPtr, DnodePhys};
use dmu::Damage;
use std::collections::VecDeque;
use std::sync::Arc;
use walk::{Finding, Next, Order, Problem, Spec, Visitor, Zbookmark, META_DNODE, ROOT_LEVEL};
use zap::Zap;
use zio::{InUse, Lease};

/// Object sets whose roots are taken in one step.
const CAPTURED: usize = 64;
/// Blocks visited until the place is noted.
const NOTED_EVERY: u64 = 4096;
/// Accounting objects count down from here; OpenZFS does not stop in them.
const LOWEST_ACCOUNTING: u64 = u64::MAX - 2;

/// How the walk of a piece ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    /// The object set has been walked.
    Whole,
    /// At this place, to go on there.
    At(Zbookmark),
    /// What was to be read is not there any more: the roots must be taken anew.
    Stale,
}

impl Pool {
    /// Takes the roots of the object sets that are walked next. In syncing context, when the datasets of the txg have been
    /// written: their roots are final then, and on disk when the next slice is read.
    pub(super) fn capture(&self, live: &mut Live) -> Result<()> {
        self.background.scans.blocks.capture();
        live.plan.clear();
        live.next = 0;
        let mut queue = live.queue.clone();
        let mut at = live.at;
        while live.plan.len() < CAPTURED {
            let visit = match at {
                At::Mos(place) => self.visit_mos(live, place)?,
                At::Dataset(object, place) => {
                    let range = [word::CUR_MIN, word::CUR_MAX].map(|w| Txg::new(live.words[w]));
                    self.visit_of(live, object, place, Ok(range.into()))?
                }
                At::Between => match queue.pop_first() {
                    Some((object, first)) => self.visit_of(live, object, None, Err(first))?,
                    None => break,
                },
            };
            at = At::Between;
            if !visit.skip {
                for (object, first) in &visit.follow {
                    let known = queue.get(object).copied();
                    queue.insert(*object, known.map_or(*first, |k| k.min(*first)));
                }
            }
            live.plan.push(visit);
        }
        Ok(())
    }

    fn visit_mos(&self, live: &mut Live, place: Option<Zbookmark>) -> Result<Visit> {
        let (min, max) = live.range();
        let follow = known(live, self.first_datasets())?.unwrap_or_default();
        Ok(Visit {
            objset: 0,
            root: self.mos().root(),
            min,
            max,
            place,
            head: false,
            skip: false,
            follow,
        })
    }

    /// What is visited behind the MOS: the snapshot everything comes from, or, in pools that have none, the oldest of each
    /// dataset's snapshots.
    fn first_datasets(&self) -> Result<Vec<(u64, Txg)>> {
        if let Some(origin) = self.dsl().origin_snapshot()? {
            return Ok(vec![(origin, Txg::NONE)]);
        }
        let mut out = Vec::new();
        let find = &mut |dir: &Arc<dsl::Dir>| {
            let Ok(mut ds) = dir.head() else {
                return Ok(());
            };
            while let Some(prev) = ds.prev()? {
                if prev.phys().next_snap_obj != ds.object() {
                    // Of a clone: it follows from its origin.
                    return Ok(());
                }
                ds = prev;
            }
            out.push((ds.object(), Txg::NONE));
            Ok(())
        };
        // What is damaged is not visited; its blocks of directories are, with the MOS.
        self.dsl()
            .walk_past(&self.dsl().root()?, find, &mut |_, _| Ok(()))?;
        Ok(out)
    }

    /// `range`: of the dataset the scan is in; or the first txg of its entry in the queue.
    fn visit_of(
        &self,
        live: &mut Live,
        object: u64,
        place: Option<Zbookmark>,
        range: std::result::Result<(Txg, Txg), Txg>,
    ) -> Result<Visit> {
        let mut visit = Visit {
            objset: object,
            root: BlkPtr::HOLE,
            min: Txg::NONE,
            max: Txg::NONE,
            place,
            head: false,
            skip: true,
            follow: Vec::new(),
        };
        let Some(ds) = known(live, self.dataset_by_object(object))? else {
            return Ok(visit);
        };
        let phys = ds.phys();
        let (min, max) = live.range();
        (visit.min, visit.max) = match range {
            Ok(range) => range,
            Err(first) => {
                let first = match first {
                    Txg::NONE => phys.prev_snap_txg,
                    n => n,
                };
                let last = match ds.is_snapshot() {
                    true => max.min(phys.creation_txg),
                    false => max,
                };
                (min.max(first), last)
            }
        };
        // A snapshot made after the scan began has nothing new, and neither has what follows from it.
        visit.skip = visit.min >= max;
        visit.root = phys.bp;
        visit.head = !ds.is_snapshot();
        if phys.next_snap_obj != 0 {
            visit.follow.push((phys.next_snap_obj, phys.creation_txg));
        }
        if phys.next_clones_obj != 0 {
            let clones = self.clones(phys.next_clones_obj);
            let clones = known(live, clones)?.unwrap_or_default();
            let queued = clones.into_iter().map(|c| (c, phys.creation_txg));
            visit.follow.extend(queued);
        }
        Ok(visit)
    }

    fn clones(&self, object: u64) -> Result<Vec<u64>> {
        let dn = self.mos().hold(object)?;
        let mut out = Vec::new();
        for e in Zap::new(&dn).iter() {
            out.extend(e?.value.as_u64());
        }
        Ok(out)
    }

    /// Walks on in the object set of `visit`, for a piece; true: all of it has been walked. `plan`: the
    /// [`Live::plan_id`] of the plan the visit is from.
    pub(super) fn traverse(
        &self,
        visit: &Visit,
        plan: (Txg, u64),
        budget: &Budget,
    ) -> Result<bool> {
        let mut v = Blocks {
            pool: self,
            visit,
            budget,
            seen: 0,
            examined: 0,
            errors: VecDeque::new(),
            lost_way: false,
            stale: false,
            passed: None,
        };
        let nothing = visit.skip || visit.min >= visit.max;
        let whole = nothing || visit.root.is_hole() || visit.root.birth() <= visit.min;
        let end = match whole {
            true => End::Whole,
            false => {
                let spec = Spec {
                    after: visit.min,
                    resume: visit.place,
                    // Copies are compared when the block is scrubbed, and counted and repaired there.
                    in_use: InUse::Since(Lease::of(Txg::NONE)),
                    ..Spec::all(Order::ChildrenFirst)
                };
                match walk::walk(self.zio(), &visit.root, &spec, &mut v)? {
                    _ if v.stale => v.passed.map_or(End::Stale, End::At),
                    Some(place) => End::At(place),
                    None => End::Whole,
                }
            }
        };
        let (stale, examined, lost_way) = (v.stale, v.examined, v.lost_way);
        let errors = std::mem::take(&mut v.errors);
        let mut live = self.background.scans.live();
        let Some(live) = live.as_mut().filter(|l| l.plan_id() == plan) else {
            return Ok(false);
        };
        live.words[word::EXAMINED] += examined;
        live.words[word::ERRORS] += errors.len() as u64;
        live.pass.examined += examined;
        live.lost_way |= lost_way;
        match end {
            End::Whole => {
                live.walked(visit);
                live.next += 1;
            }
            End::At(place) => live.stopped_at(place),
            End::Stale => {}
        }
        if stale {
            // The next step takes the roots anew.
            live.plan.clear();
            live.next = 0;
        } else if let (End::At(place), Some(v)) = (end, live.plan.get_mut(live.next)) {
            v.place = Some(place);
        }
        errors.iter().for_each(|d| self.note_damage(d));
        Ok(end == End::Whole)
    }
}

/// What is damaged or missing is counted as an error of the scan, and no reason to stop the pool: what follows from it cannot be
/// found, so no DTL loses anything.
fn known<T>(live: &mut Live, r: Result<T>) -> Result<Option<T>> {
    match r {
        Ok(t) => Ok(Some(t)),
        Err(e) if e.is_damage() || e.kind == Kind::NotFound => {
            // Counted once, however often the roots are taken.
            if !std::mem::replace(&mut live.lost_way, true) {
                live.words[word::ERRORS] += 1;
            }
            Ok(None)
        }
        Err(e) => Err(e),
    }
}

/// Puts the blocks of one object set into the queue.
struct Blocks<'a> {
    pool: &'a Pool,
    visit: &'a Visit,
    budget: &'a Budget<'a>,
    /// Blocks visited in this piece.
    seen: u64,
    /// Bytes, of all copies.
    examined: u64,
    errors: VecDeque<Damage>,
    lost_way: bool,
    stale: bool,
    /// The last place before which everything was visited, and at which the traversal may go on.
    passed: Option<Zbookmark>,
}

impl Blocks<'_> {
    fn damage(&self, at: Zbookmark, bp: &BlkPtr) -> Damage {
        Damage {
            objset: self.visit.objset,
            object: at.object,
            level: at.level,
            blkid: at.blkid,
            birth: bp.logical_birth(),
        }
    }

    /// Whether the walk may end in front of a block.
    fn is_stop(at: Zbookmark) -> bool {
        at.level == 0 && at.object != META_DNODE && at.object < LOWEST_ACCOUNTING
    }
}

impl Visitor for Blocks<'_> {
    fn block(&mut self, at: Zbookmark, bp: &BlkPtr, _: Option<&DnodePhys>) -> Result<Next> {
        if self.stale {
            return Ok(Next::Stop);
        }
        if Self::is_stop(at) {
            let full = self.seen >= NOTED_EVERY;
            if self.seen > 0 && (full || !self.budget.take_blocks(1)) {
                return Ok(Next::Stop);
            }
            self.passed = Some(at);
        }
        self.seen += 1;
        let stored = !bp.is_hole() && !bp.is_embedded() && !bp.is_redacted();
        if !stored || bp.physical_birth() > self.visit.max {
            return Ok(Next::Descend);
        }
        self.examined += bp.dvas().iter().map(|d| d.asize()).sum::<u64>();
        let damage = self.damage(at, bp);
        self.pool.background.scans.blocks.add(Waiting {
            bp: *bp,
            damage: Some(damage),
        });
        if self.pool.background.scans.blocks.has_overflowed() {
            self.stale = true;
        }
        Ok(Next::Descend)
    }

    fn objset(&mut self, phys: &ObjsetPhys) -> Result<()> {
        if self.visit.head && self.visit.place.is_none() {
            self.pool.probe_claimed_log(phys);
        }
        Ok(())
    }

    fn finding(&mut self, f: Finding) -> Result<()> {
        if self.pool.background.scans.blocks.was_freed(&f.bp) {
            self.stale = true;
            return Ok(());
        }
        self.lost_way = true;
        match f.problem {
            // The block itself is scrubbed, and told of then.
            Problem::Unreadable(_) if f.bp.physical_birth() <= self.visit.max => {}
            Problem::Unreadable(_) | Problem::Malformed(_) => {
                let place = match f.place.level {
                    ROOT_LEVEL => Zbookmark::ROOT,
                    _ => f.place,
                };
                let damage = self.damage(place, &f.bp);
                self.errors.push_back(damage);
            }
        }
        Ok(())
    }
}
