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

/// An old chain (or all of a chain) to be freed in the sync of a txg.
pub(crate) struct Reset {
    /// The txg in whose sync it is freed.
    pub txg: Txg,
    /// The blocks to free.
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
    /// A chain that waits to be freed.
    pub reset: Option<Reset>,
    /// Record being replayed.
    pub replaying: Option<u64>,
    /// Sequence number of the last record replayed in each txg that is not on disk.
    pub replayed: BTreeMap<Txg, u64>,
    /// A batch failed: no commits until this txg is on disk.
    pub stalled: Option<Txg>,
    /// A round panicked: no commits any more.
    pub broken: bool,
    /// Calls of [`Zil::pause`] that have not been taken back.
    pub paused: u32,
    /// A thread runs a round of a commit.
    pub leader: bool,
    /// First txg in which the round under way took a block that nothing on disk names yet.
    pub taken: Option<Txg>,
    /// Ticket of the next commit.
    pub next_ticket: u64,
    /// Commits with smaller tickets have ended.
    pub done_ticket: u64,
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
