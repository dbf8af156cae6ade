//! Scrub and resilver: every block of the pool is visited, all its copies are read and compared, and copies that are wrong or
//! missing are rewritten (pool format §20, behaviour §10).
//!
//! One scan runs at a time, as a job ([`job`]). It alternates between two phases:
//!
//! * *Traversal* ([`visit`]): the MOS and the datasets are walked in OpenZFS's order. Pointers go into a queue sorted by place
//!   ([`queue`]); data are not read.
//! * *Issue* ([`issue`]): when the queue is full, or nothing is left to be walked, its blocks are scrubbed in order of place
//!   until it is empty.
//!
//! Invariants:
//!
//! 1. The place on disk (bookmark and queue of datasets) advances only when the queue of blocks is empty. So every block in front
//!    of it has been scrubbed, and a crash repeats work but skips nothing.
//! 2. The place on disk is one that OpenZFS can go on from, and the reverse.
//! 3. A block in the queue of blocks is in use: freeing it takes it out ([`BlockQueue::freed`]). So what another block
//!    has been written over is never repaired.
//! 4. A DTL loses a range only after a scan has visited everything written in it, and only for a leaf that was there all the time
//!    (see [`finish`]). Copies that a removal has made are written in its txgs, while pointers to them are older, and found when it
//!    has ended: then such a scan visits every block.
//! 5. What is done to datasets moves the place in memory as it moves the one on disk; `dsl` does the latter, and
//!    tells of it for the former ([`live`]).
//!
//! Only the blocks on record as damaged are visited by an error scrub, a job of its own ([`errors`]). A sequential rebuild
//! ([`mod@rebuild`]) visits no blocks, but copies what is allocated.
//!
//! Locks: `Scans::live` comes before the lock of the queue and that of the error scrub. No thread reads a block with either of them held.

mod errors;
mod finish;
mod issue;
mod job;
mod live;
mod queue;
mod rebuild;
mod record;
mod request;
mod visit;

pub(crate) use errors::ErrorScrubJob;
pub use errors::ErrorScrubRecord;
pub(crate) use job::ScanJob;
pub(crate) use queue::BlockQueue;
pub(crate) use rebuild::{RebuildJob, Rebuilds};
pub use record::{Rebuild, ScanRecord};
pub use request::{ScanProgress, ScanRefusal, ScrubRange};

use base::sync::MutexExt;
use base::{RangeSet, Txg};
use live::Live;
use std::collections::HashMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard};
use vdev::Vdev;

/// The scans of one pool.
pub(crate) struct Scans {
    /// Blocks that wait to be scrubbed.
    pub blocks: Arc<BlockQueue>,
    live: Mutex<Option<Live>>,
    /// A slice is being read, of this scan or of one before it that was ended meanwhile.
    reading: AtomicBool,
    /// `zpool resilver`: the resilver under way begins anew.
    restart: AtomicBool,
    /// What leaves still lacked, by guid, when a resilver had done what it could.
    given_up: Mutex<HashMap<u64, RangeSet>>,
    /// The error scrub under way. Locked behind `live`.
    errors: Mutex<Option<errors::Errors>>,
}

impl Scans {
    /// No scan runs.
    pub fn new(blocks: Arc<BlockQueue>) -> Scans {
        Scans {
            blocks,
            live: Mutex::new(None),
            reading: AtomicBool::new(false),
            restart: AtomicBool::new(false),
            given_up: Mutex::default(),
            errors: Mutex::new(None),
        }
    }

    fn live(&self) -> MutexGuard<'_, Option<Live>> {
        self.live.acquire()
    }

    fn forget_given_up(&self) {
        self.given_up.acquire().clear();
    }

    /// What a leaf lacks, unless a resilver has done for it what it could.
    fn due(&self, leaf: &Vdev) -> Option<RangeSet> {
        let given_up = self.given_up.acquire();
        let lacks = leaf.dtl();
        (given_up.get(&leaf.guid()) != Some(&lacks)).then_some(lacks)
    }

    /// A block born in `birth` could not be given to a leaf, which lacks that txg from now on.
    fn give_up(&self, leaf: &Vdev, birth: Txg) {
        let mut given_up = self.given_up.acquire();
        let tried = given_up.entry(leaf.guid()).or_default();
        tried.insert(birth.number(), birth.after(1).number());
        leaf.dtl_add(birth);
    }

    /// Whether a leaf lacks txgs `[start, end)` only because they could not be given to it.
    pub fn has_tried(&self, leaf: &Vdev, start: u64, end: u64) -> bool {
        let given_up = self.given_up.acquire();
        given_up
            .get(&leaf.guid())
            .is_some_and(|tried| tried.contains(start, end))
    }
}

/// First and last txg that a scan must visit for who lacks these txgs, as its record has them: first − 1, end. `copied`: txgs in which
/// removals copied something there, to which older pointers lead.
fn hull(lacks: &RangeSet, copied: &RangeSet) -> Option<(Txg, Txg)> {
    let mut ranges = lacks.iter();
    let (start, end) = ranges.next()?;
    let end = ranges.last().map_or(end, |(_, e)| e);
    let first = match meet(lacks, copied) {
        true => Txg::INITIAL,
        false => Txg::new(start),
    };
    Some((first.before(1), Txg::new(end)))
}

/// Whether two sets have anything in common.
fn meet(one: &RangeSet, other: &RangeSet) -> bool {
    one.iter().any(|(s, e)| other.overlaps(s, e))
}
