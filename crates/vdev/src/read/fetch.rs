//! Reads from leaves: requests for ranges close to each other are merged.

use super::{CandidateIndex, Got, Plan};
use crate::io_counts::IoClass;
use crate::node::Vdev;
use crate::VdevTree;
use base::sync::MutexExt;
use env::Op;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

/// One place on one leaf.
pub(super) struct Wanted {
    place: CandidateIndex,
    at: u64,
    size: usize,
    /// Worth reading together with its neighbours: a single sector of many, or a small block of a scrub, which reads in order of
    /// place.
    small: bool,
}

/// Longest transfer that small places are put together to.
pub(super) const RUN: u64 = 1 << 20;

/// Longest place of a scrub that is put together with others: two transfers are cheaper than copying what is longer.
const SMALL: usize = 64 << 10;

/// Longest gap between two small places that is read along (the parity of other rows).
pub(super) const GAP: u64 = 128 << 10;

/// Puts small places that lie near each other together; the others stay single.
pub(super) fn runs(mut wanted: Vec<Wanted>) -> Vec<Vec<Wanted>> {
    if !wanted.iter().any(|w| w.small) {
        return wanted.into_iter().map(|w| vec![w]).collect();
    }
    wanted.sort_by_key(|w| w.at);
    let mut out: Vec<Vec<Wanted>> = Vec::new();
    for w in wanted {
        let joins = out.last().is_some_and(|run| {
            let (first, last) = (&run[0], &run[run.len() - 1]);
            let gap = w.at.saturating_sub(last.at + last.size as u64);
            let whole = w.at + w.size as u64 - first.at;
            first.small && w.small && gap <= GAP.min(4 * w.size as u64) && whole <= RUN
        });
        match out.last_mut() {
            Some(run) if joins => run.push(w),
            _ => out.push(vec![w]),
        }
    }
    out
}

/// What is at each place of each run, in order; `None` where it cannot be read.
pub(super) fn read_runs(leaf: &Vdev, runs: &[Vec<Wanted>], class: IoClass) -> Vec<Option<Vec<u8>>> {
    let read = |at: u64, end: u64| Op::Read {
        offset: at,
        buf: vec![0; (end - at) as usize],
    };
    let end = |w: &Wanted| w.at + w.size as u64;
    let ops = runs
        .iter()
        .map(|run| read(run[0].at, run.iter().map(end).max().unwrap_or(run[0].at)));
    let mut out = Vec::new();
    let merged = |n: usize| runs.get(n).is_some_and(|run| run.len() > 1);
    let done = leaf.batch_in(ops.collect(), None, class, &merged);
    for (run, (op, result)) in runs.iter().zip(done) {
        match (op, result) {
            (Op::Read { buf, .. }, Ok(())) if run.len() == 1 => out.push(Some(buf)),
            (Op::Read { buf, .. }, Ok(())) => out.extend(run.iter().map(|w| {
                let from = (w.at - run[0].at) as usize;
                buf.get(from..from + w.size).map(<[u8]>::to_vec)
            })),
            _ if run.len() == 1 => out.push(None),
            // One bad sector must not take its neighbours along.
            _ => {
                let ops = run.iter().map(|w| read(w.at, end(w))).collect();
                let done = leaf.batch_in(ops, None, class, &|_| false);
                out.extend(done.into_iter().map(|r| match r {
                    (Op::Read { buf, .. }, Ok(())) => Some(buf),
                    _ => None,
                }));
            }
        }
    }
    out
}

impl VdevTree {
    /// Reads the places, one batch per leaf, all leaves at once.
    pub(super) fn fetch(
        &self,
        plans: &mut [Option<&mut Plan>],
        places: &[CandidateIndex],
        class: IoClass,
    ) {
        // In the order of the places, not of addresses, so that a simulation repeats itself.
        let mut known: HashMap<usize, usize> = HashMap::new();
        let mut by_leaf: Vec<(Arc<Vdev>, Vec<Wanted>)> = Vec::new();
        for &(r, s, c, k) in places {
            let Some(Some(plan)) = plans.get(r) else {
                continue;
            };
            let col = &plan.stripes[s][c];
            let cand = &col.cands[k];
            let key = Arc::as_ptr(&cand.leaf) as usize;
            let n = *known.entry(key).or_insert(by_leaf.len());
            if n == by_leaf.len() {
                by_leaf.push((cand.leaf.clone(), Vec::new()));
            }
            by_leaf[n].1.push(Wanted {
                place: (r, s, c, k),
                at: cand.at,
                size: col.size,
                small: plan.map.as_ref().is_some_and(|m| m.widened.is_some())
                    || class == IoClass::Scrub && col.size <= SMALL,
            });
        }
        let jobs: Vec<_> = by_leaf
            .into_iter()
            .map(|(leaf, wanted)| (leaf, runs(wanted), Mutex::new(Vec::new())))
            .collect();
        self.env.cpu.par_io(jobs.len(), &|i| {
            let (leaf, runs, results) = &jobs[i];
            *results.acquire() = read_runs(leaf, runs, class);
        });
        for (_, runs, results) in jobs {
            let results = std::mem::take(&mut *results.acquire());
            for (w, data) in runs.into_iter().flatten().zip(results) {
                let (r, s, c, k) = w.place;
                let Some(Some(plan)) = plans.get_mut(r) else {
                    continue;
                };
                plan.stripes[s][c].cands[k].got = match data {
                    Some(d) => Got::Data(d),
                    None => Got::Failed,
                };
            }
        }
    }

    /// Fetches more places of one request.
    pub(super) fn fetch_more(&self, plan: &mut Plan, places: Vec<(usize, usize, usize)>) {
        let places: Vec<CandidateIndex> =
            places.into_iter().map(|(s, c, k)| (0, s, c, k)).collect();
        if !places.is_empty() {
            let class = plan.class;
            self.fetch(&mut [Some(plan)], &places, class);
        }
    }
}
