//! The state of a mounted dataset's log between commits, with its counters.

use crate::header::Header;
use crate::itx::{Itx, Itxs};
use crate::LogStore;
use base::sync::MutexExt;
use base::{Txg, OLD_MAX_BLOCK};
use disk::BlkPtr;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

/// What a dataset's log is like.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Object number of the dataset: part of the blocks' identity.
    pub dataset: u64,
    /// Pool version ≥ 23: the structure is at the start of a block ("zilog2").
    pub slim: bool,
    /// Largest block, a multiple of 4096; [`Options::new`] sets 128 KiB.
    pub max_block: usize,
    /// Last txg known to be on disk.
    pub synced: Txg,
    /// False where no log can be written: every commit then needs a sync.
    pub enabled: bool,
    /// Changes up to this txg were made before the log was opened and have no records here: until it is on disk,
    /// commits wait for it. [`Txg::NONE`] where there are none.
    pub unlogged: Txg,
}

impl Options {
    /// A log with blocks of up to 128 KiB, which can be written.
    pub fn new(dataset: u64, slim: bool, synced: Txg) -> Options {
        Options {
            dataset,
            slim,
            max_block: OLD_MAX_BLOCK,
            synced,
            enabled: true,
            unlogged: Txg::NONE,
        }
    }
}

/// How a commit ended.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Committed {
    /// What was asked for is on stable storage.
    Durable,
    /// The log could not take it: wait until the txg that is open now is on disk.
    NeedTxgSync,
}

/// Counters since the log was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Calls of commit.
    pub commits: u64,
    /// Rounds of writing, each with one flush.
    pub batches: u64,
    /// Log blocks written.
    pub blocks: u64,
    /// Records written.
    pub records: u64,
    /// Bytes of log blocks written.
    pub bytes: u64,
    /// Commits that ended in [`Committed::NeedTxgSync`].
    pub fallbacks: u64,
}

/// A block of the chain.
pub(crate) struct Lwb {
    /// Its pointer.
    pub bp: BlkPtr,
    /// Txg in which it was allocated.
    pub alloc_txg: Txg,
    /// Highest txg of a record in it.
    pub max_txg: Txg,
    /// Written and flushed.
    pub stable: bool,
}

/// A chain that is given up: the sync of a txg frees it.
///
/// The header leads to the chain until then. The txg before is written later, and the chain is all there is of what the open
/// txg has and was acknowledged.
#[derive(Default)]
pub(crate) struct GivenUp {
    /// The txg in whose sync the chain is freed: no record of it is of a later one.
    pub txg: Txg,
    /// The chain.
    pub chain: VecDeque<Lwb>,
    /// No header leads to the chain any more: what is left of it was part of one that failed.
    pub cut: bool,
    /// Further blocks to free: those of a chain from before the log was opened, and what its records refer to.
    pub frees: Vec<BlkPtr>,
    /// Pending references to drop.
    pub clones: Vec<BlkPtr>,
}

#[derive(Default)]
pub(crate) struct State {
    /// Changes that are not in the log yet.
    pub itxs: Itxs,
    /// The chain; the last one is allocated but not written, and is what the next batch fills.
    pub lwbs: VecDeque<Lwb>,
    /// Txg whose header makes the chain reachable: the first whose [`Zil::sync`] saw the chain.
    pub chain_txg: Option<Txg>,
    /// Last txg known to be on disk.
    pub synced: Txg,
    /// The header as it is to be stored next.
    pub header: Header,
    /// `header` describes a chain from before this log was opened, which is not disposed of.
    pub old_chain: bool,
    /// Chains that wait to be freed, the oldest first. The first one takes the chain from before this log was opened along.
    pub given_up: VecDeque<GivenUp>,
    /// Highest txg with which a chain, or records in memory, are given up. Until it is on disk commits wait for it.
    pub gave_up: Txg,
    /// What is left of `lwbs` is of a chain that failed, and that no header leads to any more.
    pub cut: bool,
    /// Record being replayed.
    pub replaying: Option<u64>,
    /// Sequence number of the last record replayed in each txg that is not on disk.
    pub replayed: BTreeMap<Txg, u64>,
    /// A batch failed: no commits until this txg is on disk.
    pub stalled: Option<Txg>,
    /// A round panicked: no commits any more.
    pub broken: bool,
    /// Calls of [`Zil::pause`] that have not been taken back, and of [`Zil::destroy`] that are under way.
    pub paused: u32,
    /// A thread runs a round of a commit.
    pub leader: bool,
    /// First txg in which the round under way took a block that nothing on disk names yet.
    pub taken: Option<Txg>,
    /// Ticket of the next commit.
    pub next_ticket: u64,
    /// Commits that wait for a round, by ticket, and what came of their round. A commit that wakes up late must not judge by
    /// the state it finds then.
    pub waiters: BTreeMap<u64, Option<Committed>>,
    /// Bytes of the newest batches, from which the size of the next block follows.
    pub history: VecDeque<usize>,
    /// Sequence number of the newest record.
    pub lr_seq: u64,
    /// Highest txg anything was logged or allocated in.
    pub max_txg: Txg,
    /// The counters.
    pub stats: Stats,
}

impl State {
    /// Whether records can be made durable by the chain as it is.
    pub fn blocked(&self) -> bool {
        self.broken || self.stalled.is_some() || self.lwbs.is_empty() || self.unreachable()
    }

    /// Whether the header on disk does not lead to the chain yet.
    pub fn unreachable(&self) -> bool {
        self.chain_txg.is_none_or(|t| t > self.synced)
    }

    /// Whether no round may begin: commits wait for a txg.
    pub fn refuses(&self) -> bool {
        self.broken || self.stalled.is_some() || self.paused > 0 || self.gave_up > self.synced
    }

    /// Whether there is a chain from before the log was opened that nobody has disposed of.
    pub fn is_undisposed(&self) -> bool {
        self.old_chain && self.given_up.is_empty()
    }

    /// Tells the commits with tickets below `covers` what came of their round.
    pub fn answer(&mut self, covers: u64, answer: Committed) {
        for (_, a) in self.waiters.range_mut(..covers) {
            a.get_or_insert(answer);
        }
    }

    /// Gives up all there is with txg `txg`, which is open, with further blocks and references of an older chain.
    pub fn give_up_chain(&mut self, txg: Txg, frees: Vec<BlkPtr>, clones: Vec<BlkPtr>) {
        let chain = std::mem::take(&mut self.lwbs);
        let cut = std::mem::take(&mut self.cut);
        self.itxs.drop_through(txg);
        self.stalled = None;
        self.chain_txg = None;
        self.gave_up = self.gave_up.max(txg);
        self.given_up.push_back(GivenUp {
            txg,
            chain,
            cut,
            frees,
            clones,
        });
    }

    /// Takes all ordered changes.
    pub fn take_ordered(&mut self) -> Vec<(Txg, Itx)> {
        self.itxs.take_ordered()
    }

    /// Notes a block allocated for the chain in `txg`.
    pub fn note_alloc(&mut self, bp: BlkPtr, txg: Txg) {
        self.max_txg = self.max_txg.max(txg);
        self.lwbs.push_back(Lwb {
            bp,
            alloc_txg: txg,
            max_txg: Txg::NONE,
            stable: false,
        });
    }

    /// A block that the round under way is going to name in the one before it.
    pub fn note_next(&mut self, bp: BlkPtr, txg: Txg) {
        self.note_alloc(bp, txg);
        self.taken.get_or_insert(txg);
    }

    /// Whether the chain, in which nothing can be written any more, is not needed once txg `txg` is
    /// on disk.
    pub fn is_dead(&self, txg: Txg) -> bool {
        let kept = self
            .lwbs
            .iter()
            .filter(|l| l.stable)
            .all(|l| l.max_txg <= txg);
        !self.leader && self.stalled.is_some_and(|t| t <= txg || kept)
    }

    pub fn lwb(&mut self, bp: &BlkPtr) -> Option<&mut Lwb> {
        self.lwbs.iter_mut().rev().find(|l| l.bp == *bp)
    }
}

/// The intent log of one dataset; see the crate.
pub struct Zil {
    pub(crate) store: Arc<dyn LogStore>,
    pub(crate) opts: Options,
    pub(crate) state: Mutex<State>,
    pub(crate) cv: Condvar,
}

impl Zil {
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.acquire()
    }
}
