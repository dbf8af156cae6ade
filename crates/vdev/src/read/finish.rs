//! The second half of a read, after the leaves have answered: choice of the copy, reconstruction, repair.

use super::fetch::RUN;
use super::reconstruct::{attempt, combinations, cut, fits, lacking, right_columns};
use super::{BadLeaf, Cand, Column, Fault, Got, Mode, Plan, ReadOutcome, ReadReq};
use crate::held::Rewrite;
use crate::io_counts::IoClass;
use crate::node::{Vdev, VdevKind};
use crate::VdevTree;
use base::sync::MutexExt;
use base::{bail, Error, Kind, Result};
use env::Op;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};

/// A block that was read, and what is to be rewritten of it.
pub(super) struct Finished {
    /// What is known before anything is rewritten.
    pub out: ReadOutcome,
    rewrites: Vec<Rewrite>,
}

impl Finished {
    /// Nothing has to be rewritten.
    fn of(out: ReadOutcome) -> Finished {
        Finished {
            out,
            rewrites: Vec::new(),
        }
    }
}

impl VdevTree {
    /// Chooses the content, and says what is to be rewritten; [`VdevTree::rewrite`] does it.
    pub(super) fn finish(&self, req: &ReadReq, mut plan: Plan, mode: Mode) -> Result<Finished> {
        let found = match plan.map {
            None => self.finish_plain(req, &mut plan),
            Some(_) => self.finish_raidz(req, &mut plan),
        };
        match found {
            Some((data, false)) if mode != Mode::Scrub => Ok(Finished::of(ReadOutcome {
                data: cut(data, req.psize),
                ..ReadOutcome::default()
            })),
            Some((data, _)) => Ok(self.heal(req, &plan, data, mode)),
            None => {
                let (why, bad) = blame(req, &plan);
                if mode.only_looks() {
                    return Ok(Finished::of(ReadOutcome {
                        bad,
                        lost: Some(why),
                        ..ReadOutcome::default()
                    }));
                }
                if mode != Mode::Probe {
                    self.count(&bad);
                }
                Err(why)
            }
        }
    }

    /// The block (whole sectors) and whether anything went wrong on the way.
    pub(super) fn finish_plain(&self, req: &ReadReq, plan: &mut Plan) -> Option<(Vec<u8>, bool)> {
        let mut trouble = false;
        for k in 0..plan.stripes[0][0].cands.len() {
            if matches!(plan.stripes[0][0].cands[k].got, Got::No) {
                self.fetch_more(plan, vec![(0, 0, k)]);
            }
            let col = &mut plan.stripes[0][0];
            if let Got::Data(d) = &mut col.cands[k].got {
                if d.get(..req.psize).is_some_and(|d| (req.verify)(d)) {
                    col.chosen = Some(k);
                    // Kept for the comparison with the others if there will be one.
                    let data = if trouble {
                        d.clone()
                    } else {
                        std::mem::take(d)
                    };
                    if !trouble {
                        // A scrub still wants to compare: an empty remainder equals nothing.
                        col.cands[k].got = Got::No;
                    }
                    return Some((data, trouble));
                }
            }
            trouble = true;
        }
        None
    }

    fn finish_raidz(&self, req: &ReadReq, plan: &mut Plan) -> Option<(Vec<u8>, bool)> {
        let all = |plan: &mut Plan| plan.stripes.iter_mut().flatten().for_each(Column::choose);
        all(plan);
        let failed = |plan: &Plan| {
            plan.stripes
                .iter()
                .flatten()
                .any(|c| c.cands.iter().any(|k| matches!(k.got, Got::Failed)))
        };
        if let Some(block) = attempt(plan, &|_, _| false).filter(|b| fits(req, b)) {
            return Some((block, failed(plan)));
        }
        // Everything that should be right; then also what may have missed the write.
        for stale in [false, true] {
            let mut more = Vec::new();
            for (s, cols) in plan.stripes.iter().enumerate() {
                let open = |c: &Column| !c.blank && c.data().is_none();
                for (c, col) in cols.iter().enumerate().filter(|(_, c)| open(c)) {
                    for (k, cand) in col.cands.iter().enumerate() {
                        if cand.stale == stale && matches!(cand.got, Got::No) {
                            more.push((s, c, k));
                        }
                    }
                }
            }
            if stale && more.is_empty() {
                break;
            }
            self.fetch_more(plan, more);
            all(plan);
            if let Some(block) = combinations(req, plan) {
                return Some((block, true));
            }
        }
        // A column on several leaves may be right on another one.
        let others: Vec<(usize, usize, usize)> = plan
            .stripes
            .iter()
            .enumerate()
            .flat_map(|(s, cols)| cols.iter().enumerate().map(move |(c, col)| (s, c, col)))
            .flat_map(|(s, c, col)| (0..col.cands.len()).map(move |k| (s, c, k)))
            .filter(|&(s, c, k)| plan.stripes[s][c].chosen != Some(k))
            .collect();
        for (s, c, k) in others {
            if matches!(plan.stripes[s][c].cands[k].got, Got::No) {
                self.fetch_more(plan, vec![(s, c, k)]);
            }
            let col = &mut plan.stripes[s][c];
            if !matches!(col.cands[k].got, Got::Data(_)) {
                continue;
            }
            let before = col.chosen.replace(k);
            if let Some(block) = combinations(req, plan) {
                return Some((block, true));
            }
            plan.stripes[s][c].chosen = before;
        }
        None
    }

    /// With the right block known: finds every place that was read and is wrong or could not be
    /// read, counts it, and says what is to be rewritten; in a scrub also what missed the write.
    pub(super) fn heal(&self, req: &ReadReq, plan: &Plan, block: Vec<u8>, mode: Mode) -> Finished {
        let mut out = ReadOutcome::default();
        let mut rewrites = Vec::new();
        let writable = !self.read_only.load(Relaxed) && !mode.only_looks();
        let counted = matches!(mode, Mode::Read | Mode::Scrub);
        let refresh = |cand: &Cand| mode == Mode::Scrub && cand.stale;
        for (s, cols) in plan.stripes.iter().enumerate() {
            let mut cands = cols.iter().flat_map(|col| &col.cands);
            if cands.all(|cand| matches!(cand.got, Got::No) && !refresh(cand)) {
                continue;
            }
            let right = right_columns(plan, s, &block);
            for (col, right) in cols.iter().zip(right) {
                let right = Arc::new(right);
                let count = if plan.map.is_some() {
                    right.len()
                } else {
                    req.psize
                };
                for cand in &col.cands {
                    let fault = match &cand.got {
                        Got::Failed => Some(Fault::Io),
                        // On plain vdevs the tail of the last sector means nothing.
                        Got::Data(d) if d.get(..count) != right.get(..count) => {
                            Some(Fault::Checksum)
                        }
                        _ => None,
                    };
                    let refresh = refresh(cand);
                    let blame = fault.filter(|_| !cand.stale);
                    if blame.is_none() && !refresh {
                        continue;
                    }
                    // The other place of it would go on lacking it.
                    let copied = plan.map.as_ref().is_some_and(|m| m.is_copied(s));
                    if copied && refresh {
                        out.behind.push((cand.owner.guid(), req.birth));
                        continue;
                    }
                    if blame == Some(Fault::Checksum) && counted {
                        cand.owner.stats.checksum_errors.fetch_add(1, Relaxed);
                        let class = mode.class();
                        cand.owner.report_wrong(cand.at, count as u64, class);
                    }
                    if writable {
                        rewrites.push(Rewrite {
                            leaf: cand.leaf.clone(),
                            owner: cand.owner.clone(),
                            at: cand.at,
                            right: right.clone(),
                            birth: req.birth,
                            refresh,
                            bad: blame.map(|_| out.bad.len()),
                            // A device alone has no other to be given it from.
                            redundant: !plan.top.kind().is_leaf(),
                        });
                    } else if refresh {
                        out.behind.push((cand.owner.guid(), req.birth));
                    }
                    out.bad.extend(blame.map(|fault| BadLeaf {
                        guid: cand.owner.guid(),
                        fault,
                        place: Some((cand.at, count as u64)),
                        repaired: false,
                    }));
                }
            }
        }
        out.data = cut(block, req.psize);
        Finished { out, rewrites }
    }

    /// From now on reads only note what they find wrong. An import for writing that may still be refused writes nothing.
    pub fn hold_repairs(&self) {
        self.held.hold();
    }

    /// Makes the repairs that were held back, at most 4,096, and holds none back any more. The places must not have been given to
    /// others since.
    pub fn do_held_repairs(&self) {
        let rewrites = self.held.release();
        let out = ReadOutcome::default();
        self.rewrite(&mut [Ok(Finished { out, rewrites })], Mode::Read);
    }

    /// Rewrites what [`VdevTree::heal`] found, for many blocks with one batch per leaf.
    pub(super) fn rewrite(&self, found: &mut [Result<Finished>], mode: Mode) {
        if found.iter().flatten().all(|f| f.rewrites.is_empty()) {
            return;
        }
        let mut blocks: Vec<&mut Finished> = found.iter_mut().flatten().collect();
        if (self.held).hold_back(blocks.iter_mut().map(|b| &mut b.rewrites)) {
            return;
        }
        let mut by_leaf: Vec<(Arc<Vdev>, Vec<(usize, Rewrite)>)> = Vec::new();
        for (n, block) in blocks.iter_mut().enumerate() {
            for w in std::mem::take(&mut block.rewrites) {
                match by_leaf.iter_mut().find(|(l, _)| Arc::ptr_eq(l, &w.leaf)) {
                    Some((_, list)) => list.push((n, w)),
                    None => by_leaf.push((w.leaf.clone(), vec![(n, w)])),
                }
            }
        }
        let jobs: Vec<_> = by_leaf
            .into_iter()
            .map(|(leaf, mut list)| {
                list.sort_by_key(|(_, w)| w.at);
                (leaf, list, Mutex::new(Vec::new()))
            })
            .collect();
        self.env.cpu.par_io(jobs.len(), &|i| {
            let (leaf, list, done) = &jobs[i];
            *done.acquire() = write_runs(leaf, list, mode.class());
        });
        for (_, list, done) in jobs {
            for ((n, w), repaired) in list.into_iter().zip(done.acquire().drain(..)) {
                self.was_rewritten(&mut blocks[n].out, &w, repaired, mode);
            }
        }
    }

    fn was_rewritten(&self, out: &mut ReadOutcome, w: &Rewrite, repaired: bool, mode: Mode) {
        if !repaired {
            if w.refresh || w.redundant {
                out.behind.push((w.owner.guid(), w.birth));
            }
            return;
        }
        self.repairs.wrote(w.leaf.guid(), w.owner.guid(), w.birth);
        let n = w.right.len() as u64;
        if mode == Mode::Scrub {
            w.owner.stats.scan_bytes.fetch_add(n, Relaxed);
        }
        if w.refresh {
            out.resilvered += n;
        } else {
            w.leaf.stats.repaired_bytes.fetch_add(n, Relaxed);
            out.repaired += n;
        }
        if let Some(bad) = w.bad.and_then(|b| out.bad.get_mut(b)) {
            bad.repaired = true;
        }
    }
}

/// Writes to one leaf, in order of place: what touches goes out in one transfer. Whether each was done.
fn write_runs(leaf: &Vdev, list: &[(usize, Rewrite)], class: IoClass) -> Vec<bool> {
    let write = |run: &[(usize, Rewrite)]| Op::Write {
        offset: run[0].1.at,
        bufs: run.iter().map(|(_, w)| w.right.clone()).collect(),
    };
    let end = |w: &Rewrite| w.at + w.right.len() as u64;
    let mut runs: Vec<&[(usize, Rewrite)]> = Vec::new();
    let mut begin = 0;
    for next in 1..=list.len() {
        let joins = list.get(next).is_some_and(|(_, w)| {
            end(&list[next - 1].1) == w.at && end(w) - list[begin].1.at <= RUN
        });
        if !joins {
            runs.push(&list[begin..next]);
            begin = next;
        }
    }
    let ops = runs.iter().map(|run| write(run)).collect();
    let merged = |n: usize| runs.get(n).is_some_and(|run| run.len() > 1);
    let mut out = Vec::new();
    for (run, (_, result)) in runs.iter().zip(leaf.batch_in(ops, None, class, &merged)) {
        if result.is_err() && run.len() > 1 {
            // One bad sector must not take its neighbours along.
            let ops = run.chunks(1).map(write).collect();
            let done = leaf.batch_in(ops, None, class, &|_| false);
            out.extend(done.iter().map(|(_, r)| r.is_ok()));
        } else {
            out.extend(run.iter().map(|_| result.is_ok()));
        }
    }
    out
}

/// Nothing helped: names the failure, and who had what was asked of it, but not the right thing.
/// Where no single device can be told to be the guilty one, all are, and the group.
pub(super) fn blame(req: &ReadReq, plan: &Plan) -> (Error, Vec<BadLeaf>) {
    let cands = || plan.stripes.iter().flatten().flat_map(|c| &c.cands);
    let any_data = cands().any(|c| matches!(c.got, Got::Data(_)));
    let enough = match &plan.map {
        None => any_data,
        Some(m) => plan.stripes.iter().all(|cols| lacking(cols) <= m.nparity),
    };
    let mut guilty = Vec::new();
    if enough {
        for col in plan.stripes.iter().flatten() {
            let delivered = |c: &&Cand| matches!(c.got, Got::Data(_)) && !c.stale;
            let place = |c: &Cand| (c.owner.guid(), Some((c.at, col.size as u64)));
            guilty.extend(col.cands.iter().filter(delivered).map(place));
        }
        if !plan.top.kind().is_leaf() {
            guilty.push((plan.top.guid(), None));
        }
        guilty.sort_unstable();
        guilty.dedup_by_key(|(guid, _)| *guid);
    }
    let bad = guilty
        .into_iter()
        .map(|(guid, place)| BadLeaf {
            guid,
            fault: Fault::Checksum,
            place,
            repaired: false,
        })
        .collect();
    // What a device in service does not read may be what is missed, and may be read the next time.
    let unread = cands().any(|c| matches!(c.got, Got::Failed) && !c.stale);
    let (kind, why) = match (enough, unread) {
        (true, false) => (Kind::Checksum, "no copy has the right checksum"),
        (true, true) => (
            Kind::Io,
            "a device fails to read it, and no other copy is right",
        ),
        (false, _) => (Kind::Io, "insufficient replicas"),
    };
    let place = format!("{}: block at {:#x}: {why}", plan.top.name(), req.offset);
    (Error::new(kind, place), bad)
}

/// Whether blocks of this vdev can be read and written here.
pub(crate) fn readable(top: &Vdev) -> Result<()> {
    let name = || top.name();
    match top.kind() {
        VdevKind::Hole => bail!(Damaged, "{} holds no blocks", name()),
        VdevKind::Missing => bail!(NoDevice, "{}: device is missing", name()),
        VdevKind::Indirect => {
            bail!(
                Unsupported,
                "{}: removed; its mapping is not loaded",
                name()
            )
        }
        VdevKind::Dspare => bail!(Damaged, "{} cannot be a top-level vdev", name()),
        _ => Ok(()),
    }
}
