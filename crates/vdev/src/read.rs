//! Reads: every copy and every reconstruction is tried before a read fails, and copies found bad are rewritten.

mod fetch;
mod finish;
mod places;
mod raw;
mod rebuild;
mod reconstruct;

use crate::io_counts::IoClass;
use crate::map::Map;
use crate::node::Vdev;
use crate::VdevTree;
use base::sync::MutexExt;
use base::{Error, Kind, Result, Txg};
pub(crate) use finish::readable;
use finish::Finished;
use places::first_places;
pub use raw::RawRange;
pub use rebuild::Rebuilt;
pub(crate) use reconstruct::columns;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};

/// Consecutive blocks of this many bytes are read from the same side of a mirror, so that each side
/// can stream.
const MIRROR_STRIPE: u64 = 1 << 20;

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

/// A leaf that returned an error or wrong bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadLeaf {
    /// Guid of the leaf.
    pub guid: u64,
    /// How the leaf failed.
    pub fault: Fault,
    /// Byte offset on its device, and bytes; none for groups.
    pub place: Option<(u64, u64)>,
    /// The right data was written back.
    pub repaired: bool,
}

/// A successful read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReadOutcome {
    /// Exactly `psize` bytes; of [`VdevTree::scrub_many`] none if they are not kept.
    pub data: Vec<u8>,
    /// Leaves that failed before right bytes were found.
    pub bad: Vec<BadLeaf>,
    /// Bytes written to leaves that had missed the block (scrub and resilver only).
    pub resilvered: u64,
    /// Bytes rewritten because what was there was wrong or could not be read.
    pub repaired: u64,
    /// Leaves, or distributed spares, that do not have the block although it was to be written to them: they lack
    /// this txg.
    pub behind: Vec<(u64, Txg)>,
    /// [`VdevTree::look_many`] only: the block could not be read, for this reason; `data` is empty.
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

    fn class(self) -> IoClass {
        match self {
            Mode::Read | Mode::Probe | Mode::Look => IoClass::Sync,
            Mode::Ahead => IoClass::Async,
            Mode::Scrub => IoClass::Scrub,
        }
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
    /// It is being replaced: a rebuild reads from it only what nobody else has.
    leaving: bool,
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
    /// What further requests count as.
    class: IoClass,
    /// `None` for plain vdevs and mirrors, which have one stripe of one column.
    map: Option<Map>,
    stripes: Vec<Vec<Column>>,
}

/// Groups into which the blocks of a scrub's call are divided. Only the first one's reading and the last one's writing overlap
/// with nothing.
const SCRUB_GROUPS: usize = 16;

/// Where a candidate stands: number of the request, stripe, column, candidate.
type CandidateIndex = (usize, usize, usize, usize);

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
                if let Some((at, size)) = b.place {
                    v.report_wrong(at, size, IoClass::Sync);
                }
            }
        }
    }

    /// Compares every copy and all parity of a block with its right content (`psize` bytes), and
    /// rewrites what differs or could not be read. What is stale is left to the resilver. Nothing is
    /// counted but the bytes repaired. Nobody else may write to the block meanwhile. Of a block of a removed vdev: the caller
    /// has located its pieces ([`VdevTree::locate`]), and gives each.
    pub fn mend(&self, req: ReadReq, right: &[u8]) -> Result<ReadOutcome> {
        let _stays = self.copying.read();
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
        let mut healed = [Ok(self.heal(&req, &plan, block, Mode::Probe))];
        self.rewrite(&mut healed, Mode::Probe);
        let [healed] = healed;
        healed.map(|h| h.out)
    }

    /// Like [`VdevTree::read_many`], but reads every copy and all parity, rewrites what is wrong,
    /// and brings leaves up to date whose DTL contains the birth: the step of scrub and resilver.
    ///
    /// Blocks are handled in groups. While one is written, the next is verified and the one behind that is read. `keep` says which
    /// outcomes (by index) need their data; the others may have none, so that a call holds three groups in memory.
    pub fn scrub_many(
        &self,
        reqs: &[ReadReq],
        keep: &dyn Fn(usize) -> bool,
    ) -> Vec<Result<ReadOutcome>> {
        if reqs.len() < 2 || reqs.iter().any(|r| self.is_removed(r.vdev)) {
            return self.run(reqs, Mode::Scrub);
        }
        let mode = Mode::Scrub;
        let _stays = self.copying.read();
        let groups: Vec<&[ReadReq]> = reqs.chunks(reqs.len().div_ceil(SCRUB_GROUPS)).collect();
        let read: Vec<Mutex<Vec<Result<Plan>>>> = groups.iter().map(|_| Mutex::default()).collect();
        let verified: Vec<Mutex<Vec<Result<Finished>>>> =
            groups.iter().map(|_| Mutex::default()).collect();
        let mut out: Vec<Result<ReadOutcome>> = Vec::new();
        for step in 0..groups.len() + 2 {
            let group = |behind: usize| step.checked_sub(behind).filter(|g| *g < groups.len());
            self.env
                .cpu
                .par_io(3, &|stage| match (stage, group(2 - stage)) {
                    (0, Some(g)) => {
                        self.rewrite(&mut verified[g].acquire(), mode);
                    }
                    (1, Some(g)) => {
                        let plans = std::mem::take(&mut *read[g].acquire());
                        *verified[g].acquire() = self.verify_all(groups[g], plans, mode);
                    }
                    (_, Some(g)) => *read[g].acquire() = self.fetch_first(groups[g], mode),
                    (_, None) => {}
                });
            let Some(done) = group(2) else { continue };
            for found in verified[done].acquire().drain(..) {
                let kept = keep(out.len());
                out.push(found.map(|f| ReadOutcome {
                    data: if kept { f.out.data } else { Vec::new() },
                    ..f.out
                }));
            }
        }
        out
    }

    fn run(&self, reqs: &[ReadReq], mode: Mode) -> Vec<Result<ReadOutcome>> {
        if !reqs.iter().any(|r| self.is_removed(r.vdev)) {
            let mut out = self.run_here(reqs, mode);
            for (req, found) in reqs.iter().zip(&mut out) {
                let lost = found.as_ref().map_or(true, |o| o.lost.is_some());
                if lost && self.is_removed(req.vdev) {
                    // It was removed while it was read: its devices are closed, and its blocks elsewhere.
                    let again = self.run(std::slice::from_ref(req), mode).pop();
                    *found = again.unwrap_or(Err(Error::from(Kind::Io)));
                }
            }
            return out;
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
        let _stays = self.copying.read();
        let plans = self.fetch_first(reqs, mode);
        self.finish_all(reqs, plans, mode)
    }

    /// Reads what is read of each block in any case.
    fn fetch_first(&self, reqs: &[ReadReq], mode: Mode) -> Vec<Result<Plan>> {
        let mut plans: Vec<Result<Plan>> = reqs.iter().map(|r| self.plan(r)).collect();
        let mut places = Vec::new();
        for (r, plan) in plans.iter_mut().enumerate() {
            if let Ok(p) = plan {
                p.class = mode.class();
                first_places(p, mode, &mut |s, c, k| places.push((r, s, c, k)));
            }
        }
        let mut refs: Vec<Option<&mut Plan>> = plans.iter_mut().map(|p| p.as_mut().ok()).collect();
        self.fetch(&mut refs, &places, mode.class());
        plans
    }

    fn finish_all(
        &self,
        reqs: &[ReadReq],
        plans: Vec<Result<Plan>>,
        mode: Mode,
    ) -> Vec<Result<ReadOutcome>> {
        let mut found = self.verify_all(reqs, plans, mode);
        self.rewrite(&mut found, mode);
        found.into_iter().map(|f| f.map(|f| f.out)).collect()
    }

    /// Chooses the content of each block, and finds what is to be rewritten.
    fn verify_all(
        &self,
        reqs: &[ReadReq],
        plans: Vec<Result<Plan>>,
        mode: Mode,
    ) -> Vec<Result<Finished>> {
        if reqs.len() == 1 {
            let plans = reqs.iter().zip(plans);
            return plans.map(|(req, p)| self.finish(req, p?, mode)).collect();
        }
        // Checksums and reconstruction are worth other cores.
        let cells: Vec<_> = plans
            .into_iter()
            .map(|p| (Mutex::new(Some(p)), Mutex::new(None)))
            .collect();
        self.env.cpu.par_for(reqs.len(), &|i| {
            let (plan, out) = &cells[i];
            if let Some(plan) = plan.acquire().take() {
                *out.acquire() = Some(plan.and_then(|p| self.finish(&reqs[i], p, mode)));
            }
        });
        let out = cells.into_iter().map(|(_, out)| out.acquire().take());
        out.map(|o| o.unwrap_or(Err(Error::from(Kind::Io))))
            .collect()
    }
}
