//! Finding good data: every copy and every way to rebuild it is tried before a read fails, and what
//! was found bad is rewritten.

use crate::indirect::{IndirectMap, Piece};
use crate::map::{Col, Map};
use crate::node::{Vdev, VdevKind};
use crate::VdevTree;
use base::mutation::{mutated, Mutation};
use base::sync::MutexExt;
use base::{bail, Error, Kind, Result, Txg, MAX_BLOCK};
use codec::parity;
use env::Op;
use std::collections::HashMap;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};

/// Consecutive blocks of this many bytes are read from the same side of a mirror, so that each side
/// can stream.
const MIRROR_STRIPE: u64 = 1 << 20;

/// Longest chain of removed vdevs.
const MAX_REMOVALS: usize = 64;
/// Most combinations of differing copies tried for a split block, and of columns to distrust.
const MAX_COMBINATIONS: usize = 4096;

/// One block to read.
#[derive(Clone, Copy)]
pub struct ReadReq<'a> {
    /// Top-level vdev.
    pub vdev: u64,
    /// Byte offset of the DVA.
    pub offset: u64,
    /// Bytes on disk.
    pub psize: usize,
    /// Physical birth; leaves whose DTL contains it are not asked.
    pub birth: Txg,
    /// Whether these `psize` bytes are the right ones.
    pub verify: &'a (dyn Fn(&[u8]) -> bool + Sync),
}

/// What was wrong on a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The device reported an error.
    Io,
    /// It returned something else than was written.
    Checksum,
}

/// A leaf that did not deliver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadLeaf {
    pub guid: u64,
    pub fault: Fault,
    /// The right data was written back.
    pub repaired: bool,
}

/// A successful read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReadOutcome {
    /// Exactly `psize` bytes.
    pub data: Vec<u8>,
    pub bad: Vec<BadLeaf>,
    /// Bytes written to leaves that had missed the block (scrub and resilver only).
    pub resilvered: u64,
    /// [`VdevTree::look_many`] only: nothing helped, and why; there are no data.
    pub lost: Option<Error>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// As little as needed.
    Read,
    /// The same, but nobody is blamed for what is wrong.
    Probe,
    /// The same, but nothing is counted or written, only told.
    Look,
    /// The same for blocks nobody waits for yet.
    Ahead,
    /// Every copy and all parity is read, compared, and put right where wrong or missing.
    Scrub,
}

impl Mode {
    /// Nothing is counted and nothing written.
    fn only_looks(self) -> bool {
        matches!(self, Mode::Look | Mode::Ahead)
    }
}

/// Content of one place, as far as known.
enum Got {
    No,
    Data(Vec<u8>),
    Failed,
}

/// A leaf that should hold a column.
struct Cand {
    leaf: Arc<Vdev>,
    /// Who is to blame if it does not: the leaf, or the distributed spare it stands for.
    owner: Arc<Vdev>,
    /// Byte offset on the device.
    at: u64,
    /// It may have missed the write.
    stale: bool,
    got: Got,
}

/// One column of a stripe (the whole block, for plain vdevs and mirrors).
struct Column {
    child: usize,
    size: usize,
    /// Nothing but zeros that take part in parity.
    blank: bool,
    cands: Vec<Cand>,
    /// The candidate whose data is used.
    chosen: Option<usize>,
}

impl Column {
    fn data(&self) -> Option<&[u8]> {
        match &self.cands.get(self.chosen?)?.got {
            Got::Data(d) => Some(d),
            _ => None,
        }
    }

    /// Takes the first candidate that has data.
    fn choose(&mut self) {
        self.chosen = self
            .cands
            .iter()
            .position(|c| matches!(c.got, Got::Data(_)));
    }
}

struct Plan {
    top: Arc<Vdev>,
    /// `None` for plain vdevs and mirrors, which have one stripe of one column.
    map: Option<Map>,
    stripes: Vec<Vec<Column>>,
}

/// A place to fetch: request, stripe, column, candidate.
type Place = (usize, usize, usize, usize);

/// One place on one leaf.
struct Wanted {
    place: Place,
    at: u64,
    size: usize,
    /// A single sector of many: worth reading together with its neighbours.
    small: bool,
}

/// Longest transfer that small places are put together to, and the longest gap between two of them
/// that is read along (the parity of other rows).
const RUN: u64 = 1 << 20;
const GAP: u64 = 128 << 10;

/// Puts small places that lie near each other together; the others stay single.
fn runs(mut wanted: Vec<Wanted>) -> Vec<Vec<Wanted>> {
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
fn read_runs(leaf: &Vdev, runs: &[Vec<Wanted>], urgent: bool) -> Vec<Option<Vec<u8>>> {
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
    let done = leaf.batch_in(ops.collect(), None, urgent, &merged);
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
                out.extend(leaf.batch(ops).into_iter().map(|r| match r {
                    (Op::Read { buf, .. }, Ok(())) => Some(buf),
                    _ => None,
                }));
            }
        }
    }
    out
}

impl VdevTree {
    /// Reads one block. Errors: `Checksum` when data was there but none was right, `Io` when too
    /// much could not be read, `Unsupported` for kinds of vdevs not built yet, `Damaged` when the
    /// place does not exist.
    pub fn read(&self, req: ReadReq) -> Result<ReadOutcome> {
        self.run(&[req], Mode::Read)
            .pop()
            .unwrap_or(Err(Error::from(Kind::Io)))
    }

    /// Reads a block that need not be there: whatever is wrong with it is no fault of a device. Copies
    /// are put right all the same.
    pub fn probe_block(&self, req: ReadReq) -> Result<ReadOutcome> {
        self.run(&[req], Mode::Probe)
            .pop()
            .unwrap_or(Err(Error::from(Kind::Io)))
    }

    /// Reads many blocks with one batch per leaf; the results are in request order.
    pub fn read_many(&self, reqs: &[ReadReq]) -> Vec<Result<ReadOutcome>> {
        self.run(reqs, Mode::Read)
    }

    /// Like [`VdevTree::read_many`], but nothing is counted and nothing is repaired: a pointer that
    /// was valid when it was taken may lead to a place that belongs to another block by now. Who
    /// finds that it is still valid passes what was found to [`VdevTree::count`] and calls
    /// [`VdevTree::mend`]. Of a block that cannot be had [`ReadOutcome::lost`] tells why.
    pub fn look_many(&self, reqs: &[ReadReq]) -> Vec<Result<ReadOutcome>> {
        self.run(reqs, Mode::Look)
    }

    /// [`VdevTree::look_many`] for blocks that are read ahead: nobody waits for them.
    pub fn look_ahead(&self, reqs: &[ReadReq]) -> Vec<Result<ReadOutcome>> {
        self.run(reqs, Mode::Ahead)
    }

    /// Counts what [`VdevTree::look_many`] found. Failures of devices are counted already.
    pub fn count(&self, bad: &[BadLeaf]) {
        for b in bad.iter().filter(|b| b.fault == Fault::Checksum) {
            if let Some(v) = self.find(b.guid) {
                v.stats.checksum_errors.fetch_add(1, Relaxed);
            }
        }
    }

    /// Compares every copy and all parity of a block with its right content (`psize` bytes), and
    /// rewrites what differs or could not be read. What is stale is left to the resilver. Nothing is
    /// counted but the bytes repaired. Nobody else may write to the block meanwhile.
    pub fn mend(&self, req: ReadReq, right: &[u8]) -> Result<ReadOutcome> {
        if self.removed(req.vdev).is_some() {
            let same = |b: &[u8]| b == right;
            let req = ReadReq {
                verify: &same,
                ..req
            };
            let done = self.run(&[req], Mode::Scrub).pop();
            return done.unwrap_or(Err(Error::from(Kind::Io)));
        }
        let mut plan = self.plan(&req)?;
        let mut places = Vec::new();
        first_places(&plan, Mode::Scrub, &mut |s, c, k| places.push((s, c, k)));
        self.fetch_more(&mut plan, places);
        let mut block = right.to_vec();
        let whole = match &plan.map {
            Some(map) => map.len,
            None => plan.stripes[0][0].size,
        };
        block.resize(whole.max(right.len()), 0);
        Ok(self.heal(&req, &plan, block, Mode::Probe))
    }

    /// Like [`VdevTree::read_many`], but reads every copy and all parity, rewrites what is wrong,
    /// and brings leaves up to date whose DTL contains the birth: the step of scrub and resilver.
    pub fn scrub_many(&self, reqs: &[ReadReq]) -> Vec<Result<ReadOutcome>> {
        self.run(reqs, Mode::Scrub)
    }

    fn run(&self, reqs: &[ReadReq], mode: Mode) -> Vec<Result<ReadOutcome>> {
        if !reqs.iter().any(|r| self.is_removed(r.vdev)) {
            return self.run_here(reqs, mode);
        }
        // What is in one piece is read with the others, where it is now.
        let mut out: Vec<Result<ReadOutcome>> = Vec::new();
        let (mut here, mut index) = (Vec::new(), Vec::new());
        for (i, req) in reqs.iter().enumerate() {
            let pieces = self.pieces(req);
            if let Ok([p]) = pieces.as_deref() {
                let (vdev, offset, birth) = (p.vdev, p.offset, p.birth);
                here.push(ReadReq {
                    vdev,
                    offset,
                    birth,
                    ..*req
                });
                index.push(i);
                out.push(Err(Error::from(Kind::Io)));
            } else {
                out.push(pieces.and_then(|p| self.read_pieces(req, &p, mode)));
            }
        }
        for (i, r) in index.into_iter().zip(self.run_here(&here, mode)) {
            out[i] = r;
        }
        out
    }

    /// Reads blocks of vdevs that exist.
    fn run_here(&self, reqs: &[ReadReq], mode: Mode) -> Vec<Result<ReadOutcome>> {
        let mut plans: Vec<Result<Plan>> = reqs.iter().map(|r| self.plan(r)).collect();
        let mut places = Vec::new();
        for (r, plan) in plans.iter().enumerate() {
            if let Ok(p) = plan {
                first_places(p, mode, &mut |s, c, k| places.push((r, s, c, k)));
            }
        }
        let mut refs: Vec<Option<&mut Plan>> = plans.iter_mut().map(|p| p.as_mut().ok()).collect();
        self.fetch(&mut refs, &places, mode != Mode::Ahead);
        drop(refs);
        if let ([req], [_]) = (reqs, &plans[..]) {
            return plans
                .into_iter()
                .map(|p| self.finish(req, p?, mode))
                .collect();
        }
        // Checksums and reconstruction are worth other cores.
        let cells: Vec<Mutex<Option<Result<Plan>>>> =
            plans.into_iter().map(|p| Mutex::new(Some(p))).collect();
        let out: Vec<Mutex<Option<Result<ReadOutcome>>>> =
            reqs.iter().map(|_| Mutex::new(None)).collect();
        self.env.cpu.par_for(reqs.len(), &|i| {
            if let Some(plan) = cells[i].acquire().take() {
                *out[i].acquire() = Some(plan.and_then(|p| self.finish(&reqs[i], p, mode)));
            }
        });
        out.into_iter()
            .map(|o| o.acquire().take().unwrap_or(Err(Error::from(Kind::Io))))
            .collect()
    }

    /// The mapping of a removed vdev.
    fn removed(&self, vdev: u64) -> Option<Arc<IndirectMap>> {
        let top = self.top(vdev).ok()?;
        top.indirect().filter(|_| top.kind() == VdevKind::Indirect)
    }

    /// Whether blocks of this top-level vdev are found through a mapping.
    pub fn is_removed(&self, vdev: u64) -> bool {
        self.removed(vdev).is_some()
    }

    /// Where a range of a vdev is now: itself, or what became of it through one removal or several.
    /// Every range of a removed vdev that is passed on the way is told as (vdev, offset, bytes).
    /// `Damaged`: a gap in a mapping, or mappings that go round.
    pub fn locate(
        &self,
        whole: Piece,
        passed: &mut dyn FnMut(u64, u64, u64),
    ) -> Result<Vec<Piece>> {
        let mut pieces = vec![whole];
        // Pieces may be on vdevs that were removed later.
        for _ in 0..MAX_REMOVALS {
            let mut next = Vec::new();
            let mut done = true;
            for p in &pieces {
                match self.removed(p.vdev) {
                    None => next.push(*p),
                    Some(map) => {
                        passed(p.vdev, p.offset, p.len as u64);
                        next.extend(map.resolve(p.offset, p.len)?);
                        done = false;
                    }
                }
            }
            pieces = next;
            if done {
                // Ranges that were copied one after the other mostly lie so, too.
                pieces.dedup_by(|b, a| {
                    let joins = (a.vdev, a.birth) == (b.vdev, b.birth)
                        && a.offset.checked_add(a.len as u64) == Some(b.offset);
                    a.len += if joins { b.len } else { 0 };
                    joins
                });
                return Ok(pieces);
            }
        }
        bail!(Damaged, "removed vdevs refer to each other in a circle")
    }

    /// Where a block is now, with the groups in which it was written there.
    fn pieces(&self, req: &ReadReq) -> Result<Vec<Piece>> {
        let whole = Piece {
            vdev: req.vdev,
            offset: req.offset,
            len: req.psize,
            birth: req.birth,
        };
        let mut pieces = self.locate(whole, &mut |_, _, _| {})?;
        for p in pieces.iter_mut().filter(|p| p.birth == 0) {
            p.birth = req.birth;
        }
        Ok(pieces)
    }

    /// Reads a block of a removed vdev that is in several pieces now.
    fn read_pieces(&self, req: &ReadReq, pieces: &[Piece], mode: Mode) -> Result<ReadOutcome> {
        // Only the whole can be verified: read what each piece's vdev offers, then try every
        // combination of differing copies.
        let mut offers: Vec<Vec<Vec<u8>>> = Vec::new();
        for p in pieces {
            offers.push(self.offers(p)?);
        }
        let mut choice = vec![0usize; pieces.len()];
        for _ in 0..MAX_COMBINATIONS {
            let data: Vec<u8> = choice
                .iter()
                .zip(&offers)
                .flat_map(|(c, o)| o[*c].iter().copied())
                .collect();
            if (req.verify)(&data) {
                return self.mend_pieces(data, pieces, mode);
            }
            // The next combination, counting like an odometer.
            let Some(i) = (0..choice.len()).find(|&i| choice[i] + 1 < offers[i].len()) else {
                break;
            };
            choice[i] += 1;
            choice[..i].fill(0);
        }
        bail!(
            Checksum,
            "block at {:#x} of removed vdev {}: no right copy",
            req.offset,
            req.vdev
        )
    }

    /// The different contents that the copies of a piece have.
    fn offers(&self, p: &Piece) -> Result<Vec<Vec<u8>>> {
        let seen: Mutex<Vec<Vec<u8>>> = Mutex::new(Vec::new());
        // Believing nobody makes the reader show every copy there is.
        let verify = |b: &[u8]| {
            let mut seen = seen.acquire();
            if !seen.iter().any(|s| s == b) {
                seen.push(b.to_vec());
            }
            false
        };
        let req = ReadReq {
            vdev: p.vdev,
            offset: p.offset,
            psize: p.len,
            birth: p.birth,
            verify: &verify,
        };
        let plan = self.plan(&req)?;
        if plan.map.is_some() {
            bail!(Unsupported, "removed vdev with pieces on RAID-Z");
        }
        let _ = self.finish_plain(&req, &mut { plan });
        let seen = std::mem::take(&mut *seen.acquire());
        if seen.is_empty() {
            bail!(Io, "piece of a removed vdev: insufficient replicas");
        }
        Ok(seen)
    }

    /// With the right content known, lets every piece be compared and repaired.
    fn mend_pieces(&self, data: Vec<u8>, pieces: &[Piece], mode: Mode) -> Result<ReadOutcome> {
        let how = match mode {
            Mode::Look | Mode::Ahead => mode,
            _ => Mode::Scrub,
        };
        let mut out = ReadOutcome::default();
        let mut at = 0;
        for p in pieces {
            let right = &data[at..at + p.len];
            at += p.len;
            let verify = |b: &[u8]| b == right;
            let (vdev, offset, birth) = (p.vdev, p.offset, p.birth);
            let req = ReadReq {
                vdev,
                offset,
                psize: p.len,
                birth,
                verify: &verify,
            };
            if let Some(Ok(o)) = self.run(&[req], how).pop() {
                out.bad.extend(o.bad);
                out.resilvered += o.resilvered;
            }
        }
        out.data = data;
        Ok(out)
    }

    /// Where the block is.
    fn plan(&self, req: &ReadReq) -> Result<Plan> {
        let top = self.top(req.vdev)?;
        readable(&top)?;
        if req.psize == 0 || req.psize > MAX_BLOCK {
            bail!(Damaged, "block of {} bytes", req.psize);
        }
        if req
            .offset
            .checked_add(req.psize as u64)
            .is_none_or(|end| end > top.asize())
        {
            bail!(
                Damaged,
                "{}: block at {:#x} is outside",
                top.name(),
                req.offset
            );
        }
        let Some(map) = top.layout(req.offset, req.psize, req.birth)? else {
            let size = crate::size::plain_asize(req.psize as u64, top.ashift()) as usize;
            let holders = top.leaves().into_iter().map(|l| (l.clone(), l)).collect();
            let column = column(holders, 0, req.offset, size, req, false);
            return Ok(Plan {
                top,
                map: None,
                stripes: vec![vec![column]],
            });
        };
        let stripes = map
            .stripes
            .iter()
            .enumerate()
            .map(|(n, s)| {
                let scratch = map.in_scratch(n);
                s.cols
                    .iter()
                    .enumerate()
                    .map(|(i, c)| {
                        let holders = top.holders(c.child, c.offset);
                        let (at, size) = (c.offset, c.size);
                        let mut col = column(holders, c.child, at, size, req, scratch);
                        col.blank = i >= map.nparity && c.data == 0;
                        col
                    })
                    .collect()
            })
            .collect();
        Ok(Plan {
            top,
            map: Some(map),
            stripes,
        })
    }

    /// Reads the places, one batch per leaf, all leaves at once.
    fn fetch(&self, plans: &mut [Option<&mut Plan>], places: &[Place], urgent: bool) {
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
                small: plan.map.as_ref().is_some_and(|m| m.widened.is_some()),
            });
        }
        let jobs: Vec<_> = by_leaf
            .into_iter()
            .map(|(leaf, wanted)| (leaf, runs(wanted), Mutex::new(Vec::new())))
            .collect();
        self.env.cpu.par_io(jobs.len(), &|i| {
            let (leaf, runs, results) = &jobs[i];
            *results.acquire() = read_runs(leaf, runs, urgent);
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
    fn fetch_more(&self, plan: &mut Plan, places: Vec<(usize, usize, usize)>) {
        let places: Vec<Place> = places.into_iter().map(|(s, c, k)| (0, s, c, k)).collect();
        if !places.is_empty() {
            self.fetch(&mut [Some(plan)], &places, true);
        }
    }

    fn finish(&self, req: &ReadReq, mut plan: Plan, mode: Mode) -> Result<ReadOutcome> {
        let found = match plan.map {
            None => self.finish_plain(req, &mut plan),
            Some(_) => self.finish_raidz(req, &mut plan),
        };
        match found {
            Some((data, false)) if mode != Mode::Scrub => Ok(ReadOutcome {
                data: cut(data, req.psize),
                ..ReadOutcome::default()
            }),
            Some((data, _)) => Ok(self.heal(req, &plan, data, mode)),
            None => {
                let (why, bad) = blame(req, &plan);
                if mode.only_looks() {
                    return Ok(ReadOutcome {
                        bad,
                        lost: Some(why),
                        ..ReadOutcome::default()
                    });
                }
                if mode != Mode::Probe {
                    self.count(&bad);
                }
                Err(why)
            }
        }
    }

    /// The block (whole sectors) and whether anything went wrong on the way.
    fn finish_plain(&self, req: &ReadReq, plan: &mut Plan) -> Option<(Vec<u8>, bool)> {
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
    /// read, counts it, and rewrites it; in a scrub also what missed the write.
    fn heal(&self, req: &ReadReq, plan: &Plan, block: Vec<u8>, mode: Mode) -> ReadOutcome {
        let mut out = ReadOutcome::default();
        let writable = !self.read_only.load(Relaxed) && !mode.only_looks();
        let counted = matches!(mode, Mode::Read | Mode::Scrub);
        for (s, cols) in plan.stripes.iter().enumerate() {
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
                    let refresh = mode == Mode::Scrub && cand.stale;
                    let blame = fault.is_some() && !cand.stale;
                    if !blame && !refresh {
                        continue;
                    }
                    if blame && fault == Some(Fault::Checksum) && counted {
                        cand.owner.stats.checksum_errors.fetch_add(1, Relaxed);
                    }
                    let mut repaired = false;
                    if writable {
                        let op = Op::Write {
                            offset: cand.at,
                            bufs: vec![right.clone()],
                        };
                        repaired = cand.leaf.batch(vec![op]).iter().all(|(_, r)| r.is_ok());
                        if repaired {
                            let n = right.len() as u64;
                            cand.leaf.stats.repaired_bytes.fetch_add(n, Relaxed);
                            if refresh {
                                out.resilvered += n;
                            }
                        }
                    }
                    if let (true, Some(fault)) = (blame, fault) {
                        out.bad.push(BadLeaf {
                            guid: cand.owner.guid(),
                            fault,
                            repaired,
                        });
                    }
                }
            }
        }
        out.data = cut(block, req.psize);
        out
    }
}

/// Nothing helped: names the failure, and who had what was asked of it, but not the right thing.
/// Where no single device can be told to be the guilty one, all are, and the group.
fn blame(req: &ReadReq, plan: &Plan) -> (Error, Vec<BadLeaf>) {
    let cands = || plan.stripes.iter().flatten().flat_map(|c| &c.cands);
    let any_data = cands().any(|c| matches!(c.got, Got::Data(_)));
    let enough = match &plan.map {
        None => any_data,
        Some(m) => plan.stripes.iter().all(|cols| lacking(cols) <= m.nparity),
    };
    let mut guilty: Vec<u64> = Vec::new();
    if enough {
        guilty = cands()
            .filter(|c| matches!(c.got, Got::Data(_)) && !c.stale)
            .map(|c| c.owner.guid())
            .collect();
        if !plan.top.kind().is_leaf() {
            guilty.push(plan.top.guid());
        }
        guilty.sort_unstable();
        guilty.dedup();
    }
    let bad = guilty
        .into_iter()
        .map(|guid| BadLeaf {
            guid,
            fault: Fault::Checksum,
            repaired: false,
        })
        .collect();
    let (kind, why) = match enough {
        true => (Kind::Checksum, "no copy has the right checksum"),
        false => (Kind::Io, "insufficient replicas"),
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

/// A column on the leaves that hold it, those that should be right first. With `scratch` it is in
/// their boot areas.
fn column(
    holders: Vec<(Arc<Vdev>, Arc<Vdev>)>,
    child: usize,
    offset: u64,
    size: usize,
    req: &ReadReq,
    scratch: bool,
) -> Column {
    let mut cands: Vec<Cand> = holders
        .into_iter()
        .filter(|(leaf, _)| leaf.state().usable())
        .filter_map(|(leaf, owner)| {
            let at = match scratch {
                false => leaf.data_offset(offset, size),
                true => leaf.boot_offset(offset, size),
            };
            let at = at.ok()?;
            let stale = owner.dtl_contains(req.birth);
            Some(Cand {
                leaf,
                owner,
                at,
                stale,
                got: Got::No,
            })
        })
        .collect();
    cands.sort_by_key(|c| c.stale);
    let fresh = cands.iter().filter(|c| !c.stale).count();
    if fresh > 1 {
        cands[..fresh].rotate_left((req.offset / MIRROR_STRIPE) as usize % fresh);
    }
    Column {
        child,
        size,
        blank: false,
        cands,
        chosen: None,
    }
}

/// What to fetch in the first round.
fn first_places(plan: &Plan, mode: Mode, want: &mut dyn FnMut(usize, usize, usize)) {
    let nparity = plan.map.as_ref().map_or(0, |m| m.nparity);
    for (s, cols) in plan.stripes.iter().enumerate() {
        let fresh = |c: &Column| c.cands.first().is_some_and(|k| !k.stale);
        let whole = cols.iter().skip(nparity).all(|c| c.blank || fresh(c));
        for (c, col) in cols.iter().enumerate() {
            match mode {
                Mode::Scrub => {
                    for (k, _) in col.cands.iter().enumerate().filter(|(_, k)| !k.stale) {
                        want(s, c, k);
                    }
                }
                Mode::Read | Mode::Probe | Mode::Look | Mode::Ahead => {
                    // Parity only where a data column is missing. Whatever a plain vdev has is
                    // better than nothing.
                    let needed = if c >= nparity { !col.blank } else { !whole };
                    if needed && (fresh(col) || (plan.map.is_none() && !col.cands.is_empty())) {
                        want(s, c, 0);
                    }
                }
            }
        }
    }
}

fn fits(req: &ReadReq, block: &[u8]) -> bool {
    block.get(..req.psize).is_some_and(|b| (req.verify)(b))
}

fn cut(mut data: Vec<u8>, len: usize) -> Vec<u8> {
    data.truncate(len);
    data
}

/// Puts the block together, rebuilding the columns (stripe, column) that have no data and those that
/// are `distrusted`. `None` if that is too many.
fn attempt(plan: &Plan, distrusted: &dyn Fn(usize, usize) -> bool) -> Option<Vec<u8>> {
    let map = plan.map.as_ref()?;
    let mut block = vec![0; map.len];
    for (s, (layout, cols)) in map.stripes.iter().zip(&plan.stripes).enumerate() {
        let data = |i: usize, c: &Column| {
            // What is blank is known without reading.
            let trusted = || c.data().filter(|_| !distrusted(s, i));
            c.blank || trusted().is_some()
        };
        let missing: Vec<usize> = (0..cols.len()).filter(|&i| !data(i, &cols[i])).collect();
        let place = |block: &mut [u8], i: usize, bytes: &[u8]| {
            let Col { at, data, .. } = layout.cols[i];
            block[at..at + data].copy_from_slice(&bytes[..data]);
        };
        if missing.iter().all(|m| *m < map.nparity) {
            for (i, c) in cols
                .iter()
                .enumerate()
                .skip(map.nparity)
                .filter(|(_, c)| !c.blank)
            {
                place(&mut block, i, c.data()?);
            }
            continue;
        }
        if missing.len() > map.nparity {
            return None;
        }
        let mut full: Vec<Vec<u8>> = cols
            .iter()
            .enumerate()
            .map(|(i, c)| match c.data() {
                Some(d) if !missing.contains(&i) && !c.blank => d.to_vec(),
                _ => vec![0; c.size],
            })
            .collect();
        let size = full.first().map_or(0, Vec::len);
        full.resize(cols.len() + map.absent(s), vec![0; size]);
        parity::reconstruct_data(map.nparity, &mut full, &missing).ok()?;
        for (i, d) in full.iter().enumerate().take(cols.len()).skip(map.nparity) {
            place(&mut block, i, d);
        }
    }
    Some(block)
}

/// Number of columns whose content is not known.
fn lacking(cols: &[Column]) -> usize {
    cols.iter()
        .filter(|c| !c.blank && c.data().is_none())
        .count()
}

/// Tries to believe everybody, then to distrust each child, each two, each three; for blocks older
/// than a widening also the children as they were then.
fn combinations(req: &ReadReq, plan: &Plan) -> Option<Vec<u8>> {
    let map = plan.map.as_ref()?;
    let now = |s: usize, c: usize| plan.stripes.get(s)?.get(c).map(|c| c.child);
    choices(req, plan, map, &now).or_else(|| {
        map.former_widths()
            .find_map(|w| choices(req, plan, map, &|s, c| map.former_child(s, c, w)))
    })
}

/// The same with the children that `child` names for each stripe and column.
fn choices(
    req: &ReadReq,
    plan: &Plan,
    map: &Map,
    child: &dyn Fn(usize, usize) -> Option<usize>,
) -> Option<Vec<u8>> {
    let mut children: Vec<usize> = plan
        .stripes
        .iter()
        .enumerate()
        .flat_map(|(s, cols)| cols.iter().enumerate().map(move |(c, col)| (s, c, col)))
        .filter(|(_, _, col)| !col.blank && col.data().is_some())
        .filter_map(|(s, c, _)| child(s, c))
        .collect();
    children.sort_unstable();
    children.dedup();
    // Already missing ones use up parity.
    let missing = plan
        .stripes
        .iter()
        .map(|cols| lacking(cols))
        .min()
        .unwrap_or(0);
    for n in 0..=map.nparity.saturating_sub(missing).min(children.len()) {
        let mut pick: Vec<usize> = (0..n).collect();
        // Of very many only a sample is tried, evenly spread.
        let step = ways(children.len(), n).div_ceil(MAX_COMBINATIONS as u64);
        let mut turn = 0u64;
        loop {
            turn += 1;
            if turn % step.max(1) != 1 % step.max(1) {
                if !next_choice(&mut pick, children.len()) {
                    break;
                }
                continue;
            }
            let distrusted: Vec<usize> = pick.iter().map(|&i| children[i]).collect();
            let bad = |s: usize, c: usize| child(s, c).is_some_and(|k| distrusted.contains(&k));
            if let Some(block) = attempt(plan, &bad).filter(|b| fits(req, b)) {
                return Some(block);
            }
            if !next_choice(&mut pick, children.len()) {
                break;
            }
        }
    }
    None
}

/// Number of ways to pick `k` out of `n`.
fn ways(n: usize, k: usize) -> u64 {
    (0..k as u64).fold(1, |a, i| {
        a.saturating_mul((n as u64).saturating_sub(i)) / (i + 1)
    })
}

/// Advances to the next ascending choice out of `n`; false after the last.
fn next_choice(pick: &mut [usize], n: usize) -> bool {
    for i in (0..pick.len()).rev() {
        if pick[i] < n - (pick.len() - i) {
            pick[i] += 1;
            for j in i + 1..pick.len() {
                pick[j] = pick[j - 1] + 1;
            }
            return true;
        }
    }
    false
}

/// What the columns of stripe `s` should hold.
fn right_columns(plan: &Plan, s: usize, block: &[u8]) -> Vec<Vec<u8>> {
    let Some(map) = &plan.map else {
        return vec![block.to_vec()];
    };
    columns(map, s, block)
}

/// Parity and data columns of stripe `s` of a block of `map.len` bytes.
pub(crate) fn columns(map: &Map, s: usize, block: &[u8]) -> Vec<Vec<u8>> {
    let cols = &map.stripes[s].cols;
    let mut data: Vec<Vec<u8>> = cols
        .iter()
        .skip(map.nparity)
        .map(|c| {
            let mut d = Vec::with_capacity(c.size);
            d.extend_from_slice(&block[c.at..c.at + c.data]);
            d.resize(c.size, 0);
            d
        })
        .collect();
    let (real, size) = (data.len(), data.first().map_or(0, Vec::len));
    data.resize(real + map.absent(s), vec![0; size]);
    let mut out = vec![Vec::new(); map.nparity];
    parity::generate(&data, &mut out);
    if mutated(Mutation::ParityWrong) {
        if let Some(b) = out.last_mut().and_then(|c| c.first_mut()) {
            *b ^= 1;
        }
    }
    out.extend(data.into_iter().take(real));
    out
}

#[cfg(test)]
mod tests {
    use super::next_choice;

    #[test]
    fn choices_are_complete() {
        for n in 0..7 {
            for k in 0..=n {
                let mut pick: Vec<usize> = (0..k).collect();
                let mut count = 1;
                while next_choice(&mut pick, n) {
                    assert!(pick.windows(2).all(|w| w[0] < w[1]) && pick.iter().all(|p| *p < n));
                    count += 1;
                }
                assert_eq!(count, super::ways(n, k));
            }
        }
    }
}
