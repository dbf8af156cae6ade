//! The queue of blocks whose rests are to be read ([`crate::unread_rests`]), and its limits.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::sync::{Mutex, Weak};

/// Bytes of blocks that wait, from which on a thread in the background reads. A write that is synced at once stays below it: its
/// own thread reads, which costs no wake-up.
const START: u64 = 4 << 20;
/// Bytes of blocks that wait, from which on writers read themselves. It also bounds what an fsync may have to read.
const LIMIT: u64 = 64 << 20;

/// The blocks of an object set that wait, with their objects.
pub struct RestQueue<D> {
    pub(crate) state: Mutex<State<D>>,
    /// [`State::bytes`], for a look without the lock.
    pub(crate) bytes: AtomicU64,
    /// Threads in the background.
    pub(crate) jobs: AtomicU32,
    /// Bytes from which on the background reads.
    pub(crate) start: AtomicU64,
    /// Bytes from which on writers read.
    pub(crate) limit: AtomicU64,
}

pub(crate) struct State<D> {
    /// Objects that may have such blocks, by number.
    pub objects: BTreeMap<u64, Weak<D>>,
    /// Blocks in the order of their writes. Some may have been read since.
    pub queue: VecDeque<Waiting<D>>,
    /// What is in `queue`.
    pub bytes: u64,
}

/// A block in the queue.
pub(crate) struct Waiting<D> {
    pub dn: Weak<D>,
    pub blkid: u64,
    pub bytes: u64,
}

impl<D> Default for RestQueue<D> {
    fn default() -> RestQueue<D> {
        let state = State {
            objects: BTreeMap::new(),
            queue: VecDeque::new(),
            bytes: 0,
        };
        RestQueue {
            state: Mutex::new(state),
            bytes: AtomicU64::new(0),
            jobs: AtomicU32::new(0),
            start: AtomicU64::new(START),
            limit: AtomicU64::new(LIMIT),
        }
    }
}
