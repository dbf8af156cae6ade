//! The position of a running scan in memory, which is ahead of the record on disk.

use base::{RangeSet, Txg};
use disk::scan::{word, Function, NO_DATASET, PAUSED, VISIT_AGAIN};
use disk::BlkPtr;
use dsl::ScanChange;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use walk::Zbookmark;

/// One object set to be walked, with its root as of the last step.
#[derive(Clone)]
pub(super) struct Visit {
    /// 0: the MOS.
    pub objset: u64,
    /// Root of the object set.
    pub root: BlkPtr,
    /// Blocks born behind `min` and up to `max` are scrubbed.
    pub min: Txg,
    /// See `min`.
    pub max: Txg,
    /// Where to go on; `None`: at the beginning.
    pub place: Option<Zbookmark>,
    /// Its intent log may hold blocks that were claimed.
    pub head: bool,
    /// Nothing of it, and nothing that follows from it, is to be scrubbed.
    pub skip: bool,
    /// What is queued when it is done: datasets and the txgs from which they are visited.
    pub follow: Vec<(u64, Txg)>,
}

/// The dataset the scan is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum At {
    Mos(Option<Zbookmark>),
    Dataset(u64, Option<Zbookmark>),
    /// In none: the next one comes from the queue.
    Between,
}

/// A scan under way.
pub(super) struct Live {
    /// The record, except for the words of the place.
    pub words: Vec<u64>,
    /// Where the traversal is.
    pub at: At,
    /// Datasets to be visited, with their first txgs (0: since the snapshot before).
    pub queue: BTreeMap<u64, Txg>,
    /// Datasets whose entry on disk may differ.
    pub touched: BTreeSet<u64>,
    /// The txg in which the scan began; 0 for one that was under way at the import.
    pub begun: Txg,
    /// Changes with every change of `at` by others than the traversal.
    pub generation: u64,
    /// Object sets to be walked next, in order, as of the last step.
    pub plan: Vec<Visit>,
    /// Index of the next one in `plan`.
    pub next: usize,
    /// The queue of blocks is being emptied.
    pub drain: bool,
    /// The place moved since it was stored.
    pub moved: bool,
    /// Everything was visited and scrubbed, in a txg before this one.
    pub complete: bool,
    /// A part of a tree could not be visited.
    pub lost_way: bool,
    /// Leaves that were away while blocks were scrubbed.
    pub absent: HashSet<u64>,
    /// Txgs of blocks that could not be given to a leaf, by guid.
    pub behind: HashMap<u64, RangeSet>,
    /// Progress of this pass.
    pub pass: Pass,
}

/// Progress since the import, or since the scan began.
#[derive(Clone, Copy, Default)]
pub(super) struct Pass {
    /// Seconds since 1970.
    pub start: u64,
    /// Bytes.
    pub examined: u64,
    /// Bytes of blocks that were scrubbed.
    pub issued: u64,
    /// Bytes issued before this pass.
    pub issued_before: u64,
    /// Since when it is paused, and seconds it was paused before.
    pub paused_at: Option<u64>,
    /// Seconds it was paused before.
    pub spent_paused: u64,
}

impl Live {
    /// A scan that goes on at `at`; its pass begins `now`, seconds since 1970.
    pub fn new(words: Vec<u64>, at: At, queue: BTreeMap<u64, Txg>, now: u64) -> Live {
        let of = |word: usize| words.get(word).copied().unwrap_or(0);
        let issued_before = of(word::EXAMINED).saturating_sub(of(word::SKIPPED));
        Live {
            words,
            at,
            queue,
            touched: BTreeSet::new(),
            begun: Txg::NONE,
            generation: 0,
            plan: Vec::new(),
            next: 0,
            drain: false,
            moved: true,
            complete: false,
            lost_way: false,
            absent: HashSet::new(),
            behind: HashMap::new(),
            pass: Pass {
                start: now,
                issued_before,
                ..Pass::default()
            },
        }
    }

    /// The scan a record describes.
    pub fn load(words: Vec<u64>, queue: BTreeMap<u64, Txg>, now: u64) -> Live {
        let b = |i: usize| words[word::BOOKMARK + i];
        let place = resume_at([b(0), b(1), b(2), b(3)]);
        let at = match b(0) {
            0 => At::Mos(place),
            NO_DATASET => At::Between,
            objset => At::Dataset(objset, place),
        };
        let mut live = Live::new(words, at, queue, now);
        if live.is_paused() {
            live.pass.paused_at = Some(now);
        }
        live.moved = false;
        live
    }

    /// The queue of blocks is empty: what was examined has been issued, or was freed. Traversals that began anew
    /// have counted blocks twice.
    pub fn count_examined_once(&mut self) {
        let issued = self.pass.issued_before + self.pass.issued;
        self.words[word::EXAMINED] = issued + self.words[word::SKIPPED];
    }

    /// Tells a plan from those of other scans, and from those before datasets changed.
    pub fn plan_id(&self) -> (Txg, u64) {
        (self.begun, self.generation)
    }

    /// Whether it waits for a user.
    pub fn is_paused(&self) -> bool {
        self.words[word::FLAGS] & PAUSED != 0
    }

    /// Whether it is a resilver, not a scrub.
    pub fn is_resilver(&self) -> bool {
        Function::new(self.words[word::FUNCTION]) == Function::Resilver
    }

    /// First (exclusive) and last (inclusive) txg of the blocks it visits.
    pub fn range(&self) -> (Txg, Txg) {
        (
            Txg::new(self.words[word::MIN]),
            Txg::new(self.words[word::MAX]),
        )
    }

    /// Nothing is left to be walked.
    pub fn is_at_end(&self) -> bool {
        self.at == At::Between && self.queue.is_empty()
    }

    /// The words of the record that tell the place.
    pub fn place_words(&self) -> [u64; 4] {
        match self.at {
            At::Mos(None) => [0; 4],
            At::Mos(Some(p)) => [0, p.object, p.level as u64, p.blkid],
            At::Dataset(o, None) => [o, 0, 0, 0],
            At::Dataset(o, Some(p)) => [o, p.object, p.level as u64, p.blkid],
            At::Between => [NO_DATASET, 0, 0, 0],
        }
    }

    /// Queues a dataset, to be visited from txg `first` on.
    pub fn insert(&mut self, dataset: u64, first: Txg) {
        self.touched.insert(dataset);
        // What is queued already is visited from the earlier of both.
        let first = self.queue.get(&dataset).map_or(first, |o| first.min(*o));
        self.queue.insert(dataset, first);
    }

    fn remove(&mut self, dataset: u64) -> Option<Txg> {
        self.touched.insert(dataset);
        self.queue.remove(&dataset)
    }

    /// Takes the next dataset from the queue.
    pub fn take(&mut self) -> Option<(u64, Txg)> {
        let (&dataset, &first) = self.queue.iter().next()?;
        self.remove(dataset);
        Some((dataset, first))
    }

    /// The object set at which the scan is has been walked up to its end.
    pub fn walked(&mut self, visit: &Visit) {
        self.moved = true;
        let again = self.words[word::FLAGS] & VISIT_AGAIN != 0;
        self.words[word::FLAGS] &= !VISIT_AGAIN;
        if again && visit.objset != 0 {
            self.insert(visit.objset, visit.max);
        } else if !visit.skip {
            for (dataset, first) in &visit.follow {
                self.insert(*dataset, *first);
            }
        }
        self.at = At::Between;
    }

    /// Enters the next object set of the plan; false: the plan does not fit any more.
    pub fn enter(&mut self, visit: &Visit) -> bool {
        let expected = match self.at {
            At::Mos(_) => 0,
            At::Dataset(o, _) => o,
            At::Between => match self.queue.keys().next() {
                Some(o) => *o,
                None => return false,
            },
        };
        // The range of another visit would have blocks of this one left out.
        if expected != visit.objset {
            return false;
        }
        if self.at == At::Between {
            self.take();
            self.at = At::Dataset(expected, None);
            self.moved = true;
        }
        self.words[word::CUR_MIN] = visit.min.number();
        self.words[word::CUR_MAX] = visit.max.number();
        true
    }

    /// The traversal has come to a place in its object set.
    pub fn stopped_at(&mut self, place: Zbookmark) {
        self.moved = true;
        match &mut self.at {
            At::Mos(p) | At::Dataset(_, p) => *p = Some(place),
            At::Between => {}
        }
    }

    /// A dataset was changed (operations on the record on disk: `dsl`).
    pub fn apply(&mut self, change: ScanChange) {
        self.generation += 1;
        self.plan.clear();
        self.next = 0;
        let (gone, into) = match change {
            ScanChange::Snapshotted { head, snap } => (head, Some(snap)),
            ScanChange::SnapshotDestroyed { snap, next } => (snap, Some(next)),
            ScanChange::Received { filled, head } => (filled, Some(head)),
            ScanChange::HeadGone { head } => (head, None),
        };
        if let Some(first) = self.remove(gone) {
            if let Some(into) = into {
                self.insert(into, first);
            }
        }
        let At::Dataset(at, place) = self.at else {
            return;
        };
        if at != gone {
            return;
        }
        self.moved = true;
        self.at = into.map_or(At::Between, |o| At::Dataset(o, place));
        if matches!(change, ScanChange::SnapshotDestroyed { .. }) {
            self.words[word::FLAGS] |= VISIT_AGAIN;
        }
    }
}

/// The place of a stored bookmark. OpenZFS stops at blocks of level 0, in front of what is below them: of a block of dnodes
/// this is its first object. From places it does not make the object set is walked again.
fn resume_at(words: [u64; 4]) -> Option<Zbookmark> {
    let place = Zbookmark::from_words(words)?;
    if place.level != 0 {
        return None;
    }
    if place.object != walk::META_DNODE {
        return Some(place);
    }
    let first = place.blkid.checked_mul(disk::dnode::DNODES_PER_BLOCK)?;
    (first > 0).then_some(Zbookmark {
        object: first,
        level: 0,
        blkid: 0,
    })
}
