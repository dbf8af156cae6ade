//! The job of scans: slices traverse and scrub, steps store how far the scan has come.

use super::live::{Live, Visit};
use super::{ScanRecord, Scans};
use crate::errata;
use crate::jobs::{Budget, Job, Piece, Priority, Progress, Step, Subject, BLOCK};
use crate::Pool;
use base::mutation::{mutated, Mutation};
use base::{Kind, Result, Txg};
use disk::scan::{word, Function, ScanState, WORDS};
use disk::ObjType;
use dmu::Tx;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::Arc;
use zap::Zap;

/// Type of the object that holds the queue of datasets.
const QUEUE_TYPE: ObjType = ObjType(38);
/// Memory that a block in the queue takes.
const BLOCK_BYTES: u64 = 256;
/// Share of the block cache's size that the queue may take in addition to it: one in this many.
const QUEUE_SHARE: u64 = 20;
/// The queue is emptied when it holds this many blocks, however little memory there is.
const LEAST_QUEUED: u64 = 16;

/// Scrub and resilver, see [`super`]. Idle while there is none.
pub(crate) struct ScanJob(pub Arc<Scans>);

/// What the next piece of a slice is.
enum Next {
    Walk(Box<Visit>, (Txg, u64)),
    Issue,
    Nothing,
}

impl Job for ScanJob {
    fn name(&self) -> &'static str {
        "scan"
    }

    fn step(&self, pool: &Pool, tx: &Tx, _: &Budget) -> Result<Step> {
        pool.step_scan(tx)
    }

    fn priority(&self) -> Priority {
        match self.0.live().as_ref() {
            Some(l) if l.is_resilver() => Priority::High,
            _ => Priority::Low,
        }
    }

    fn instances(&self) -> Vec<Subject> {
        self.0.live().iter().map(|_| Subject::Pool).collect()
    }

    fn ready(&self) -> Vec<Subject> {
        let live = self.0.live();
        let wanted = |l: &&Live| {
            let work = l.next < l.plan.len() || !self.0.blocks.is_empty();
            work && !l.is_paused() && !l.complete
        };
        live.iter().filter(wanted).map(|_| Subject::Pool).collect()
    }

    fn in_slice(&self, begins: bool) {
        self.0.reading.store(begins, Ordering::Release);
    }

    fn piece(&self, pool: &Pool, _: Subject, budget: &Budget) -> Piece {
        match pool.next_piece() {
            Next::Walk(visit, plan) => match pool.traverse(&visit, plan, budget) {
                Ok(_) => Piece::Walked,
                Err(_) => Piece::End,
            },
            Next::Issue if pool.issue(budget) => Piece::Done,
            Next::Issue | Next::Nothing => Piece::End,
        }
    }

    fn progress(&self, pool: &Pool, _: Subject) -> Result<Progress> {
        let live = pool.background.scans.live();
        Ok(live.as_ref().map_or(Progress::default(), |l| {
            let done = l.pass.issued_before + l.pass.issued;
            let total = l.words[word::TO_EXAMINE].saturating_sub(l.words[word::SKIPPED]);
            Progress {
                done,
                total: total.max(done),
            }
        }))
    }
}

impl Pool {
    fn most_queued(&self) -> usize {
        let blocks = self.config.tunables.cache_bytes / QUEUE_SHARE / BLOCK_BYTES;
        // No more than a few slices scrub: the place on disk advances when the queue is empty.
        let blocks = blocks.min(self.config.tunables.job_bytes / BLOCK);
        blocks.max(LEAST_QUEUED) as usize
    }

    fn next_piece(&self) -> Next {
        let mut live = self.background.scans.live();
        let Some(l) = live.as_mut().filter(|l| !l.is_paused() && !l.complete) else {
            return Next::Nothing;
        };
        let waiting = self.background.scans.blocks.len();
        if waiting == 0 {
            l.drain = false;
        }
        if l.drain || waiting >= self.most_queued() || (l.is_at_end() && waiting > 0) {
            l.drain = true;
            return Next::Issue;
        }
        let Some(visit) = l.plan.get(l.next).cloned() else {
            return Next::Nothing;
        };
        if !l.enter(&visit) {
            l.plan.clear();
            l.next = 0;
            return Next::Nothing;
        }
        Next::Walk(Box::new(visit), l.plan_id())
    }

    /// The part of a scan in a txg.
    fn step_scan(&self, tx: &Tx) -> Result<Step> {
        let changes = self.dsl().take_scan_changes();
        let lost = self.tree().take_lost_repairs();
        {
            let mut live = self.background.scans.live();
            if let Some(l) = live.as_mut() {
                for (guid, births) in &lost {
                    let lacks = l.behind.entry(*guid).or_default();
                    for (start, end) in births.iter() {
                        lacks.insert(start, end);
                    }
                }
                changes.into_iter().for_each(|c| l.apply(c));
                let all = self.tree().all().into_iter();
                let away = all.filter(|v| v.has_dtl() && !v.state().usable());
                l.absent.extend(away.map(|v| v.guid()));
            }
        }
        for (guid, births) in lost {
            // A resilver gives them to the device again.
            if let Some(v) = self.tree().find(guid) {
                for (start, end) in births.iter() {
                    v.dtl_add_range(Txg::new(start), Txg::new(end));
                }
            }
        }
        let due = self.look_for_resilver(tx)?;
        let mut live = self.background.scans.live();
        let Some(l) = live.as_mut() else {
            return Ok(match due {
                true => Step::More,
                false => Step::Idle,
            });
        };
        if l.is_paused() {
            return Ok(Step::Idle);
        }
        if l.complete {
            let ended = live.take();
            drop(live);
            if let Some(l) = ended {
                self.end_scan(tx, l, true)?;
            }
            return Ok(Step::More);
        }
        if self.background.scans.reading.load(Ordering::Acquire) {
            return Ok(Step::Idle);
        }
        let empty = self.background.scans.blocks.is_empty() || mutated(Mutation::ScanStoresAhead);
        // What could not be given to leaves or visited is known in memory only: after an import the scan goes on in front of it.
        let sure = l.behind.is_empty() && !l.lost_way;
        if empty {
            l.count_examined_once();
        }
        if l.moved && empty && sure {
            self.store_place(tx, l)?;
        }
        if l.is_at_end() && self.background.scans.blocks.is_empty() {
            // What was written to leaves is flushed with this txg; only then they have it.
            l.complete = true;
            return Ok(Step::More);
        }
        // Frees may have taken the last blocks out.
        l.drain &= !self.background.scans.blocks.is_empty();
        if !l.drain && l.next >= l.plan.len() {
            self.capture(l)?;
        }
        Ok(Step::Idle)
    }

    /// Stores the place, and all else of the record.
    pub(super) fn store_place(&self, tx: &Tx, l: &mut Live) -> Result<()> {
        if l.words[word::QUEUE] == 0 {
            let dn = zap::create_object(self.mos(), tx, QUEUE_TYPE, 0)?;
            l.words[word::QUEUE] = dn.object();
        }
        let dn = self.mos().hold(l.words[word::QUEUE])?;
        let queue = Zap::new(&dn);
        for dataset in std::mem::take(&mut l.touched) {
            match l.queue.get(&dataset) {
                Some(first) => queue.update_int_key(tx, dataset, first.number())?,
                None if queue.get_int_key(dataset)?.is_some() => queue.remove_int(tx, dataset)?,
                None => {}
            }
        }
        let place = l.place_words();
        l.words[word::BOOKMARK..word::BOOKMARK + 4].copy_from_slice(&place);
        l.moved = false;
        self.store_scan(tx, &l.words)
    }

    /// Takes over the scan that the record on disk describes, when the pool is opened for writing.
    fn load_scan(&self) -> Result<()> {
        let Some(words) = self.scan_words()? else {
            return Ok(());
        };
        errata::check_old_destroy(self.dsl(), &words)?;
        let record = ScanRecord::of(&words);
        let known = !matches!(record.function, Function::ErrorScrub | Function::Unknown(_));
        if words.len() < WORDS || record.state != ScanState::Scanning || !known {
            return Ok(());
        }
        let mut queue = BTreeMap::new();
        if words[word::QUEUE] != 0 {
            let dn = self.mos().hold(words[word::QUEUE])?;
            for e in Zap::new(&dn).iter() {
                base::cancel::check()?;
                let e = e?;
                if let (Ok(dataset), Some(first)) = (zap::parse_hex_key(&e.name), e.value.as_u64())
                {
                    queue.insert(dataset, Txg::new(first));
                }
            }
        }
        let live = Live::load(words, queue, self.seconds());
        // What could not be given to leaves was only in memory.
        let again = live.is_resilver() && live.words[word::ERRORS] > 0;
        self.background
            .scans
            .restart
            .store(again, Ordering::Release);
        self.background.scans.blocks.set_range(Some(live.range()));
        self.records.errlog.set_scanning(true);
        self.tree()
            .set_resilvering(live.is_resilver() || self.is_rebuilding());
        *self.background.scans.live() = Some(live);
        Ok(())
    }

    /// The same for a record that cannot be read: no reason not to open the pool.
    pub(crate) fn load_scan_or_warn(&self) -> Result<()> {
        self.load_rebuilds();
        match self.load_scan().and_then(|()| self.load_error_scrub()) {
            Err(e) if e.is_damage() || e.kind == Kind::NotFound => {
                tracing::warn!(pool = %self.name(), "the scan under way cannot be gone on with: {e}");
                Ok(())
            }
            r => r,
        }
    }

    pub(crate) fn seconds(&self) -> u64 {
        self.env.clock.now().0.max(0) as u64
    }
}
