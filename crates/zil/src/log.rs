//! The log of one mounted dataset: commits, and what a sync of a txg does to it.

use crate::batch::Batch;
use crate::chain::{log_pointer, UNIT};
use crate::claim::{drop_clones, read_to_free, to_free, Left};
use crate::header::{limits, Header, FLAG_REPLAY, HEADER_SIZE};
use crate::itx::Itx;
use crate::state::{Committed, GivenUp, Lwb, Options, State, Stats};
use crate::{walk, LogBlocks, LogStore, Zil};
use base::mutation::{mutated, Mutation};
use base::sync::{CondvarExt, OnPanic};
use base::{bail, Error, Result, Txg};
use disk::BlkPtr;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

/// Batches whose size is remembered to choose the next block's.
const HISTORY: usize = 4;

impl Zil {
    /// A log over the header found in the object set block. Nothing is read or written. Before the
    /// first commit either [`Zil::replay`] (if [`Zil::needs_replay`]) or [`Zil::start`] is called.
    pub fn open(store: Arc<dyn LogStore>, opts: Options, header: Header) -> Zil {
        let opts = Options {
            max_block: (opts.max_block / UNIT * UNIT).clamp(UNIT, base::MAX_BLOCK),
            ..opts
        };
        Zil {
            store,
            opts,
            state: Mutex::new(State {
                synced: opts.synced,
                gave_up: opts.unlogged,
                header,
                old_chain: !header.log.is_hole(),
                lr_seq: header.claim_lr_seq.max(header.replay_seq),
                ..State::default()
            }),
            cv: Condvar::new(),
        }
    }

    /// The header as last handed out (or found).
    pub fn header(&self) -> Header {
        self.lock().header
    }

    /// A claimed log waits to be replayed.
    pub fn needs_replay(&self) -> bool {
        let st = self.lock();
        st.is_undisposed() && st.header.flags & FLAG_REPLAY != 0
    }

    /// There are no blocks on disk, so that there is nothing to [`destroy`](Self::destroy).
    pub fn has_no_blocks(&self) -> bool {
        let st = self.lock();
        !st.leader
            && !st.old_chain
            && st.given_up.is_empty()
            && st.lwbs.is_empty()
            && st.header.log.is_hole()
    }

    /// Bytes of data that a commit of the object (`None`: of all) would have to write at this moment,
    /// by txg: where they are many, waiting for the txg is cheaper than logging them.
    pub fn data(&self, object: Option<u64>) -> Vec<(Txg, u64)> {
        self.lock().itxs.data(object)
    }

    /// Memory held by records, bytes.
    pub fn memory(&self) -> usize {
        self.lock().itxs.bytes()
    }

    /// The counters now.
    pub fn stats(&self) -> Stats {
        self.lock().stats
    }

    // ---- records ----

    /// Remembers a change made in txg `txg`; called while the transaction holds the txg open.
    /// During replay nothing is remembered: the record being replayed counts as done in that txg.
    pub fn log(&self, txg: Txg, itx: Itx) {
        base::mutation::panic_point("remembering a change");
        let mut st = self.lock();
        if let Some(seq) = st.replaying {
            note_replayed(&mut st, txg, seq);
            return;
        }
        if txg <= st.synced {
            return;
        }
        st.max_txg = st.max_txg.max(txg);
        st.itxs.add(txg, itx);
    }

    /// Whether a replay is under way (changes then come from the log).
    pub fn is_replaying(&self) -> bool {
        self.lock().replaying.is_some()
    }

    /// During replay: the record being replayed is done in txg `txg`. For changes that do not
    /// call [`Zil::log`]; called while the transaction holds the txg open.
    pub fn replayed(&self, txg: Txg) {
        let mut st = self.lock();
        if let Some(seq) = st.replaying {
            note_replayed(&mut st, txg, seq);
        }
    }

    /// The object's pending changes come before the next ordered one.
    pub fn promote(&self, object: u64) {
        self.lock().itxs.promote(Some(object));
    }

    /// The object's last name is gone: its pending writes need not be logged.
    pub fn forget(&self, object: u64) {
        self.lock().itxs.forget(object);
    }

    // ---- commit ----

    /// Makes durable: all ordered changes so far, and the pending ones of `object` (of all objects
    /// if `None`). Must not be called while holding a transaction.
    pub fn commit(&self, object: Option<u64>) -> Committed {
        let mut st = self.lock();
        st.stats.commits += 1;
        if st.replaying.is_some() {
            return Committed::Durable;
        }
        st.itxs.promote(object);
        if st.refuses() {
            return self.fallback(st);
        }
        if !st.itxs.has_ordered() && !st.leader {
            return Committed::Durable;
        }
        let waiting = !st.lwbs.is_empty() && st.unreachable();
        if !self.opts.enabled || st.is_undisposed() || waiting {
            return self.fallback(st);
        }
        let ticket = st.next_ticket;
        st.next_ticket += 1;
        st.waiters.insert(ticket, None);
        loop {
            if let Some(Some(answer)) = st.waiters.get(&ticket).copied() {
                st.waiters.remove(&ticket);
                let believed = mutated(Mutation::WaitersBelieved) && !st.blocked();
                return match answer {
                    Committed::NeedTxgSync if !believed => self.fallback(st),
                    _ => Committed::Durable,
                };
            }
            if st.leader {
                st = self.cv.wait_acquire(st);
            } else if st.refuses() {
                st.waiters.remove(&ticket);
                return self.fallback(st);
            } else {
                st = self.lead(st);
            }
        }
    }

    fn fallback(&self, mut st: MutexGuard<'_, State>) -> Committed {
        st.stats.fallbacks += 1;
        Committed::NeedTxgSync
    }

    /// One round: takes everything that is ordered now, writes it, and answers all tickets drawn
    /// so far.
    fn lead<'a>(&'a self, given: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        // Threads that wait for the round must not wait for ever.
        let _guard = OnPanic::new(|| self.round_panicked());
        // Declared behind the guard, which takes the lock itself: dropped before it.
        let mut st = given;
        st.leader = true;
        let covers = st.next_ticket;
        let mut answer = Committed::NeedTxgSync;
        if st.lwbs.is_empty() && st.stalled.is_none() {
            drop(st);
            // The header has to reach the disk first: this round ends with "wait for the txg", and
            // so it does where there is no block to be had.
            let _ = self.first_block();
            st = self.lock();
        } else if !st.blocked() {
            (st, answer) = self.write_round(st);
        }
        st.leader = false;
        st.taken = None;
        st.answer(covers, answer);
        self.cv.notify_all();
        st
    }

    /// Writes what is ordered now to the chain, which is reachable.
    fn write_round<'a>(
        &'a self,
        mut st: MutexGuard<'a, State>,
    ) -> (MutexGuard<'a, State>, Committed) {
        let itxs = st.take_ordered();
        let first = st.lwbs.back().map(|l| l.bp).unwrap_or_default();
        let guess = st.history.iter().copied().max().unwrap_or(0);
        let mut batch = Batch::new(self, first, st.lr_seq, guess);
        drop(st);
        let r = batch.run(itxs);
        base::mutation::panic_point("a round of the log that was written");
        if let Err(e) = &r {
            tracing::debug!(dataset = self.opts.dataset, %e, "a round of the log failed");
            self.stall();
        }
        st = self.lock();
        st.lr_seq = batch.lr_seq;
        st.stats.records += batch.records;
        st.stats.blocks += batch.written.len() as u64;
        st.stats.bytes += batch.bytes as u64;
        if r.is_err() {
            return (st, Committed::NeedTxgSync);
        }
        if !batch.written.is_empty() {
            st.stats.batches += 1;
            for bp in &batch.written {
                if let Some(l) = st.lwb(bp) {
                    l.stable = true;
                }
            }
            st.history.push_back(batch.total);
            if st.history.len() > HISTORY {
                st.history.pop_front();
            }
        }
        (st, Committed::Durable)
    }

    /// A round failed: nothing is written to the chain any more. The sync of the open txg clears it.
    fn stall(&self) {
        let noted = self.store.dirty(&mut |txg| {
            let mut st = self.lock();
            st.stalled = Some(txg.max(st.max_txg));
        });
        if noted.is_err() {
            let mut st = self.lock();
            st.stalled = Some(st.max_txg);
        }
    }

    fn round_panicked(&self) {
        let mut st = self.lock();
        st.broken = true;
        st.leader = false;
        st.taken = None;
        let covers = st.next_ticket;
        st.answer(covers, Committed::NeedTxgSync);
        self.cv.notify_all();
        drop(st);
        self.store.broken();
    }

    /// First block of a new chain. It is noted while its txg is open, so that the header written with
    /// that txg leads to it.
    fn first_block(&self) -> Result<()> {
        let id = self.identity();
        self.store.alloc_block(UNIT, &mut |dva, txg| {
            let bp = log_pointer(&*self.store, dva, UNIT, self.opts.slim, txg, &id);
            let mut st = self.lock();
            st.chain_txg = None;
            st.note_alloc(bp, txg);
        })
    }

    fn identity(&self) -> [u64; 4] {
        [
            self.store.random(),
            self.store.random(),
            self.opts.dataset,
            1,
        ]
    }

    // ---- txgs ----

    /// The dataset is being written in txg `txg` (syncing context): frees what is not needed any
    /// more and returns the header to store with this txg.
    ///
    /// A round that took its next block in this txg and has not written the block that names it is
    /// waited for: otherwise a crash behind this txg would find the one allocated and the other
    /// empty, and nobody would ever free it.
    pub fn sync(&self, txg: Txg) -> Result<[u8; HEADER_SIZE]> {
        base::mutation::panic_point("the log's part of a sync");
        let mut st = self.lock();
        while st.taken.is_some_and(|t| t <= txg) {
            st = self.cv.wait_acquire(st);
        }
        self.free_given_up(&mut st, txg)?;
        if st.old_chain {
            let later = st.replayed.split_off(&txg.next());
            let done = std::mem::replace(&mut st.replayed, later);
            if let Some(&seq) = done.values().max() {
                st.header.replay_seq = st.header.replay_seq.max(seq);
            }
            return Ok(st.header.encode());
        }
        if let Some(given) = st.given_up.front_mut() {
            let first = self.trim(&mut given.chain, given.cut, txg)?;
            let early = mutated(Mutation::HeaderClearedEarly);
            st.header.log = first.filter(|_| !early).unwrap_or_default();
            return Ok(st.header.encode());
        }
        st.cut |= st.is_dead(txg);
        let cut = st.cut;
        let first = self.trim(&mut st.lwbs, cut, txg)?;
        st.cut &= !st.lwbs.is_empty();
        st.header.log = first.unwrap_or_default();
        if first.is_some() {
            st.chain_txg.get_or_insert(txg);
        }
        Ok(st.header.encode())
    }

    /// Frees the chains that are given up with txgs up to `txg`.
    fn free_given_up(&self, st: &mut State, txg: Txg) -> Result<()> {
        while st.given_up.front().is_some_and(|g| g.txg <= txg) {
            let Some(g) = st.given_up.pop_front() else {
                break;
            };
            for bp in g.chain.iter().map(|l| &l.bp).chain(&g.frees) {
                self.store.free(bp, txg)?;
            }
            drop_clones(&*self.store, &g.clones, txg)?;
            st.header = Header::default();
            st.old_chain = false;
            st.replayed.clear();
        }
        Ok(())
    }

    /// Frees the blocks of a chain that no replay needs once txg `txg` is on disk, and returns the first that is left for
    /// the header to name. Of a chain that is `cut` nothing is needed, and the header names none of it: what
    /// was taken in a later txg goes with that, and its records would lack those before.
    fn trim(&self, chain: &mut VecDeque<Lwb>, cut: bool, txg: Txg) -> Result<Option<BlkPtr>> {
        while let Some(l) = chain.front() {
            let done = l.stable && l.max_txg <= txg && chain.len() > 1;
            if l.alloc_txg > txg || !(done || cut) {
                break;
            }
            let bp = l.bp;
            chain.pop_front();
            self.store.free(&bp, txg)?;
        }
        Ok(chain.front().filter(|_| !cut).map(|l| l.bp))
    }

    /// Txg `txg` is on disk: its records are not needed any more.
    pub fn synced(&self, txg: Txg) {
        base::mutation::panic_point("records that are on disk");
        let mut st = self.lock();
        st.synced = st.synced.max(txg);
        st.itxs.drop_through(txg);
        if st.stalled.is_some_and(|t| t <= txg) && st.lwbs.is_empty() {
            st.stalled = None;
        }
    }

    /// Disposes of a log that needs no replay: the first block stays, under a new identity, so that
    /// the first commit need not wait for a txg; anything behind it is freed. Nothing to do for
    /// a dataset without a log.
    pub fn start(&self) -> Result<()> {
        let header = {
            let st = self.lock();
            if !st.is_undisposed() {
                return Ok(());
            }
            st.header
        };
        let first = header.log;
        let mut chain = Vec::new();
        let walked = walk(
            &*self.store,
            &first,
            (limits(&header).0, u64::MAX),
            &mut |bp| {
                chain.push(*bp);
                Ok(true)
            },
            &mut |_| Ok(true),
        );
        match walked {
            // Nothing in it is needed: what cannot be read of it is no reason to wait.
            Err(e) if e.may_pass() => return self.stays(&e),
            r => drop(r?),
        }
        let fits = crate::chain::is_slim(&first) == self.opts.slim
            && first.is_little_endian()
            && !first.is_encrypted()
            && first.psize() % UNIT == 0;
        if chain.len() != 1 || !fits || !self.opts.enabled {
            return self.dispose().map(drop);
        }
        let mut bp = first;
        bp.set_checksum(self.identity());
        self.store.dirty(&mut |txg| {
            let mut st = self.lock();
            st.given_up.push_back(GivenUp {
                txg,
                ..GivenUp::default()
            });
            st.chain_txg = None;
            st.note_alloc(bp, Txg::NONE);
        })
    }

    /// Empties the log and keeps it empty: all blocks are freed and the header zeroed with the txg
    /// returned, and until [`Zil::resume`] commits wait for txgs instead. A log that waits to be
    /// replayed is not touched: `Kind::Busy`.
    pub fn pause(&self) -> Result<Txg> {
        if self.needs_replay() {
            bail!(Busy, "the intent log has not been replayed yet");
        }
        self.lock().paused += 1;
        self.destroy().inspect_err(|_| self.resume())
    }

    /// Takes one [`Zil::pause`] back, when its txg is on disk.
    pub fn resume(&self) {
        let mut st = self.lock();
        st.paused = st.paused.saturating_sub(1);
    }

    /// Gets rid of a log of which nothing is needed any more. What cannot be read now may be read later: the log stays then,
    /// commits wait for txgs, and the next end or mount of the file system frees it. False if it stays.
    pub(crate) fn dispose(&self) -> Result<bool> {
        match self.destroy_with(&read_all) {
            Err(e) if e.may_pass() => self.stays(&e).map(|()| false),
            r => r.map(|_| true),
        }
    }

    fn stays(&self, why: &Error) -> Result<()> {
        let dataset = self.opts.dataset;
        tracing::warn!(
            dataset,
            "the log is freed later, since its blocks cannot be read: {why}"
        );
        Ok(())
    }

    /// Gets rid of the log: all blocks are freed and the header zeroed with the txg returned.
    /// Records in memory are dropped, and commits wait until that txg is on disk. Used before the dataset is closed or destroyed:
    /// what follows a block that cannot be read stays allocated.
    pub fn destroy(&self) -> Result<Txg> {
        self.destroy_with(&to_free)
    }

    fn destroy_with(&self, read: &ReadOld) -> Result<Txg> {
        let mut st = self.lock();
        // No round begins in a block that is about to be freed.
        st.paused += 1;
        while st.leader {
            st = self.cv.wait_acquire(st);
        }
        let old = st.is_undisposed().then_some(st.header);
        drop(st);
        let done = self.give_up(old, read);
        self.resume();
        done
    }

    fn give_up(&self, old: Option<Header>, read: &ReadOld) -> Result<Txg> {
        let left = old.map(|h| read(&*self.store, &h)).transpose()?;
        let Left {
            mut frees,
            mut clones,
        } = left.unwrap_or_default();
        let mut given = Txg::NONE;
        self.store.dirty(&mut |txg| {
            let mut st = self.lock();
            let (frees, clones) = (std::mem::take(&mut frees), std::mem::take(&mut clones));
            st.replaying = None;
            st.give_up_chain(txg, frees, clones);
            given = txg;
        })?;
        Ok(given)
    }
}

/// What there is to free of a chain from before the log was opened.
type ReadOld = dyn Fn(&dyn LogBlocks, &Header) -> Result<Left>;

/// All of it.
fn read_all(blocks: &dyn LogBlocks, header: &Header) -> Result<Left> {
    let mut left = Left::default();
    read_to_free(blocks, header, &mut left).map(|()| left)
}

pub(crate) fn note_replayed(st: &mut State, txg: Txg, seq: u64) {
    let e = st.replayed.entry(txg).or_default();
    *e = seq.max(*e);
}
