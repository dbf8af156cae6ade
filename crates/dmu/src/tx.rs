//! Transactions, txgs and the limit on dirty data (behaviour §1, §2).

use crate::early_runs::Early;
use crate::job_gate::JobGate;
use crate::objset::Objset;
use base::mutation::{mutated, Mutation};
use base::sync::{CondvarExt, MutexExt, OnPanic};
use base::{Cause, Error, Kind, PerTxg, Result, Txg};
use env::Env;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, RwLock, Weak};
use zio::Zio;

/// What a transaction may change at most; decides throttling and ENOSPC.
#[derive(Clone, Copy, Debug, Default)]
pub struct Need {
    /// New logical bytes, data and metadata.
    pub bytes: u64,
    /// Frees at least as much as it takes: allowed into the reserve.
    pub net_free: bool,
    /// Waits for no txg, neither for space nor for memory, and is always let in.
    pub at_once: bool,
}

impl Need {
    /// Space for `bytes` logical bytes.
    pub fn bytes(bytes: u64) -> Need {
        Need {
            bytes,
            ..Need::default()
        }
    }
    /// For a change that frees at least as much as it takes; it may use part of the slop space.
    pub fn freeing() -> Need {
        Need {
            net_free: true,
            ..Need::default()
        }
    }
    /// For the intent log, for which a txg may be waiting. A caller that takes space with it calls
    /// [`crate::Objset::has_room`] first.
    pub fn log() -> Need {
        Need {
            net_free: true,
            at_once: true,
            ..Need::default()
        }
    }
}

/// Decides whether a dataset may take more space. Crate `dsl`, which knows quotas, implements it.
pub trait Admission: Send + Sync {
    /// `pending` are logical bytes of the dataset that txgs not yet on disk are going to write, and
    /// what transactions under way may add ([`Dmu::pending_space`] is the same of the whole pool).
    fn admit(&self, need: Need, pending: u64) -> Result<()>;
    /// The same, without waiting for what is pending: `Kind::Again` where that may help.
    fn has_room(&self, need: Need, pending: u64) -> Result<()>;
}

/// Gets txgs written. The core starts no thread: a thread that must wait for a txg runs its sync.
pub trait Driver: Send + Sync {
    /// Returns when `txg` is on disk.
    fn sync_through(&self, txg: Txg) -> Result<()>;
    /// Like [`Driver::sync_through`], to make room for more. Returns at once while the pool waits for its
    /// devices and its users wait with it: they are held up before they take locks, and callers of
    /// this hold locks that readers need.
    fn make_room(&self, txg: Txg) -> Result<()> {
        self.sync_through(txg)
    }
    /// There is enough dirty data to begin a sync soon; must not block.
    fn kick(&self);
    /// The engine contradicted itself because of `why`, and is stopped ([`Dmu::stop`]). Must not panic.
    fn stop(&self, _why: Error) {}
}

/// Settings of [`Dmu::new`].
pub struct DmuOptions {
    /// Dirty bytes at which writers wait for a sync.
    pub dirty_max: u64,
    /// First open txg (last synced + 1).
    pub first_txg: Txg,
}

/// Close the txg once it has this many bytes of whole blocks in memory. Whole blocks do not become fewer by
/// waiting, unlike parts of blocks, which later writes complete. Writing them at once keeps the devices busy
/// and frees their memory, which the next blocks use while it is in the processor's cache. On slow devices
/// txgs grow beyond this while the one before is written.
const STREAM: u64 = 16 << 20;
/// Close the txg once it has this many bytes of whole blocks, those included that were written early and are
/// no longer in memory.
const STREAM_MOST: u64 = 128 << 20;
/// Close the txg, and write no more of its blocks early, once this many bytes were allocated and freed within
/// it.
pub(crate) const GIVEN_BACK: u64 = 64 << 20;
/// Close the txg once it holds this share of the dirty data that is allowed, without blocks that are changed in place.
const SHARE_OF_A_TXG: u64 = 5;
/// Close the txg once it holds this share of the dirty data that is allowed, with blocks that are changed in place. A large
/// directory is thousands of such blocks, and each new name goes to any of them. A txg that ends early writes a block for nearly
/// each name, a txg that goes on writes a block for several.
const SHARE_IN_PLACE: u64 = 2;
/// Writers wait while this many bytes of blocks were written early and their txgs are not on disk.
const STORED_MOST: u64 = 1 << 30;

/// Locks of objects of a pool: more than threads that use objects at a time, by far.
const LOCKS: usize = 315;
/// Those of them that are for objects of the MOS.
pub(crate) const MOS_LOCKS: usize = 64;

/// Memory that goes with a transaction until its txg is on disk: the record for the log, bytes.
const TX_COST: u64 = 256;

struct Gate {
    open: Txg,
    /// Transactions alive.
    holders: PerTxg<u64>,
    /// A txg is closing; new transactions wait.
    closing: bool,
    /// A txg is about to close: nobody else begins to write blocks of it early.
    last_call: bool,
    /// Why no transaction begins and no txg is synced any more.
    stopped: Option<Error>,
    /// No block is written before its txg for now.
    paused: bool,
    /// Batches of blocks of the open txg on their way.
    early: u32,
    synced: Txg,
}

/// The transaction engine of one pool.
pub struct Dmu {
    /// Clock, randomness and threads.
    pub env: Env,
    /// The pipelines.
    pub zio: Arc<Zio>,
    gate: Mutex<Gate>,
    gate_cv: Condvar,
    /// Memory held by changes.
    dirty: PerTxg<AtomicU64>,
    /// Those of them that are blocks which are changed in place, one piece after the other, such as those of directories.
    in_place: PerTxg<AtomicU64>,
    /// Bytes of blocks that were written whole.
    streamed: PerTxg<AtomicU64>,
    /// Those of them that are at their places and in memory no more.
    stored: PerTxg<AtomicU64>,
    /// Bytes of blocks whose places were given back in the txg in which they got them.
    given_back: PerTxg<AtomicU64>,
    /// Bytes of the blocks of content to be written whole, whatever part of each is in memory.
    content: PerTxg<AtomicU64>,
    /// Logical bytes going to be written.
    space: PerTxg<AtomicU64>,
    /// Needs of transactions alive.
    promised: AtomicU64,
    dirty_max: AtomicU64,
    objsets: Mutex<PerTxg<Vec<Arc<Objset>>>>,
    /// Object sets that were written by the txg under way.
    written: Mutex<Vec<Arc<Objset>>>,
    driver: OnceLock<Weak<dyn Driver>>,
    on_damage: OnceLock<OnDamage>,
    pub(crate) ahead: Arc<JobGate>,
    /// Nothing is read ahead.
    pub(crate) no_ahead: AtomicBool,
    pub(crate) early: Arc<Early>,
    /// Locks of objects ([`crate::Dnode::lock`]), the first [`MOS_LOCKS`] of them for the MOS's. Each pool
    /// has its own: one is held while a device is read, and a device that does not answer must not hold
    /// up other pools.
    pub(crate) locks: Box<[RwLock<()>; LOCKS]>,
}

/// Callback for blocks that cannot be read, with the reason if it is known.
pub type OnDamage = Box<dyn Fn(&Damage, Option<Cause>) + Send + Sync>;

/// A block of which no copy can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Damage {
    /// Dataset object, 0 for the MOS.
    pub objset: u64,
    /// 0 for the meta-dnode and (level −1) the block of the object set itself.
    pub object: u64,
    /// Level in the tree of the object; −1 for the object set block, −2 for a block of an intent
    /// log.
    pub level: i64,
    /// `u64::MAX` for a spill block.
    pub blkid: u64,
    /// Txg in which the block was born.
    pub birth: Txg,
}

fn accepts_when_stopped() -> bool {
    mutated(Mutation::ChangedWhenStopped)
}

/// The error of an engine that was stopped because it contradicted itself.
pub fn internal_error(what: &str) -> Error {
    Error::new(
        Kind::Suspended,
        format!("internal error: {what}; nothing is written any more"),
    )
}

/// A closed txg about to be written.
pub struct SyncGroup {
    /// The closed txg.
    pub txg: Txg,
    /// Object sets changed in open context, in order of id.
    pub objsets: Vec<Arc<Objset>>,
}

/// A transaction: holds its txg open until dropped. See the crate for the lock order.
pub struct Tx {
    dmu: Arc<Dmu>,
    txg: Txg,
    syncing: bool,
    /// Where its need is noted until what it really changed is known.
    promise: Option<(Arc<Objset>, u64)>,
    /// One of those that write blocks early.
    early: bool,
    /// Begun by a destructor while a panic unwound, which has nothing to do with this transaction.
    unwinding: bool,
}

impl Tx {
    /// The txg the changes belong to.
    pub fn txg(&self) -> Txg {
        self.txg
    }
    /// Notes what the transaction may change at most, until it ends.
    pub(crate) fn promise(&mut self, os: Arc<Objset>, bytes: u64) {
        os.promised.fetch_add(bytes, Ordering::Relaxed);
        self.dmu.promised.fetch_add(bytes, Ordering::Relaxed);
        self.promise = Some((os, bytes));
    }
    /// Whether it runs in syncing context, on the thread that writes the txg.
    pub fn is_syncing(&self) -> bool {
        self.syncing
    }
    /// The transaction engine.
    pub fn dmu(&self) -> &Arc<Dmu> {
        &self.dmu
    }
}

impl Drop for Tx {
    fn drop(&mut self) {
        if self.syncing {
            return;
        }
        if let Some((os, bytes)) = self.promise.take() {
            os.promised.fetch_sub(bytes, Ordering::Relaxed);
            self.dmu.promised.fetch_sub(bytes, Ordering::Relaxed);
        }
        let mut g = self.dmu.lock();
        let mut broken = None;
        if std::thread::panicking() && !self.unwinding {
            // What it changed may be half of what it meant to change. The txg must not be synced.
            let what = format!("a panic while a transaction of txg {} was held", self.txg);
            let why = internal_error(&what);
            self.dmu.stop_locked(&mut g, why.clone());
            broken = Some(why);
        }
        g.early -= u32::from(self.early);
        let h = &mut g.holders[self.txg];
        *h -= 1;
        if *h == 0 && g.closing || self.early && g.early == 0 && g.last_call {
            self.dmu.gate_cv.notify_all();
        }
        drop(g);
        if let (Some(why), Some(d)) = (broken, self.dmu.driver()) {
            d.stop(why);
        }
    }
}

impl Dmu {
    /// A transaction engine whose first txg is open.
    pub fn new(env: Env, zio: Arc<Zio>, opts: DmuOptions) -> Arc<Dmu> {
        zio.set_synced(opts.first_txg.before(1));
        Arc::new(Dmu {
            env,
            zio,
            gate: Mutex::new(Gate {
                open: opts.first_txg,
                holders: PerTxg::default(),
                closing: false,
                last_call: false,
                stopped: None,
                paused: false,
                early: 0,
                synced: opts.first_txg.before(1),
            }),
            gate_cv: Condvar::new(),
            dirty: Default::default(),
            in_place: Default::default(),
            streamed: Default::default(),
            stored: Default::default(),
            given_back: Default::default(),
            content: Default::default(),
            space: Default::default(),
            promised: AtomicU64::new(0),
            dirty_max: AtomicU64::new(opts.dirty_max),
            objsets: Mutex::default(),
            written: Mutex::default(),
            driver: OnceLock::new(),
            on_damage: OnceLock::new(),
            ahead: Arc::default(),
            no_ahead: AtomicBool::new(false),
            early: Arc::default(),
            locks: Box::new([const { RwLock::new(()) }; LOCKS]),
        })
    }

    /// Sets who is told about damage; once.
    pub fn set_on_damage(&self, f: OnDamage) {
        let _ = self.on_damage.set(f);
    }

    pub(crate) fn damaged(&self, d: &Damage, why: Option<Cause>) {
        if let Some(f) = self.on_damage.get() {
            f(d, why);
        }
    }

    /// Sets what writes txgs for threads that must wait for one; once.
    pub fn set_driver(&self, driver: Weak<dyn Driver>) {
        let _ = self.driver.set(driver);
    }

    /// What [`set_driver`](Dmu::set_driver) has set, while it lives.
    pub fn driver(&self) -> Option<Arc<dyn Driver>> {
        self.driver.get().and_then(Weak::upgrade)
    }

    fn lock(&self) -> MutexGuard<'_, Gate> {
        self.gate.acquire()
    }

    /// From now on no transaction begins and no txg is synced: what is in memory must not reach a disk.
    /// Threads that wait for a txg to close go on with the error. The first reason counts.
    pub fn stop(&self, why: Error) {
        self.stop_locked(&mut self.lock(), why);
    }

    fn stop_locked(&self, g: &mut Gate, why: Error) {
        g.stopped.get_or_insert(why);
        self.gate_cv.notify_all();
    }

    /// Why no transaction begins and no txg is synced any more, if so.
    pub fn stopped(&self) -> Option<Error> {
        self.lock().stopped.clone()
    }

    /// The txg that takes changes now.
    pub fn open_txg(&self) -> Txg {
        self.lock().open
    }

    /// Last txg known to be on disk.
    pub fn synced_txg(&self) -> Txg {
        self.lock().synced
    }

    /// Memory held by the changes of all txgs not yet on disk, bytes.
    pub fn dirty_bytes(&self) -> u64 {
        self.dirty.iter().map(|d| d.load(Ordering::Relaxed)).sum()
    }

    /// Bytes of all txgs not yet on disk that are at their places, and in memory no more.
    fn stored_bytes(&self) -> u64 {
        self.stored.iter().map(|d| d.load(Ordering::Relaxed)).sum()
    }

    /// Bytes of changes that no txg on disk has.
    pub fn unwritten_bytes(&self) -> u64 {
        self.dirty_bytes() + self.stored_bytes()
    }

    /// Whether there is as much dirty data as allowed: a transaction would wait for a txg.
    pub fn is_full(&self) -> bool {
        let max = self.dirty_max.load(Ordering::Relaxed);
        self.dirty_bytes() >= max || self.stored_bytes() >= STORED_MOST
    }

    /// Bytes that writing a txg moves, about. A block of which a part was changed counts whole, since it is
    /// written whole.
    pub fn bytes_to_write(&self, txg: Txg) -> u64 {
        let held = self.dirty[txg].load(Ordering::Relaxed);
        held.max(self.content[txg].load(Ordering::Relaxed))
    }

    /// Logical bytes that txgs not yet on disk are going to write, and what transactions under way
    /// may add.
    pub fn pending_space(&self) -> u64 {
        let known: u64 = self.space.iter().map(|d| d.load(Ordering::Relaxed)).sum();
        known + self.promised.load(Ordering::Relaxed)
    }

    pub(crate) fn add_space(&self, txg: Txg, bytes: u64) {
        self.space[txg].fetch_add(bytes, Ordering::Relaxed);
    }

    /// Changes the limit of [`DmuOptions::dirty_max`] from now on.
    pub fn set_dirty_max(&self, bytes: u64) {
        self.dirty_max.store(bytes, Ordering::Relaxed);
    }

    pub(crate) fn add_dirty(&self, txg: Txg, bytes: u64) {
        self.dirty[txg].fetch_add(bytes, Ordering::Relaxed);
    }

    /// `bytes` of memory more for blocks that are changed in place, counted by [`Dmu::add_dirty`] as well.
    pub(crate) fn add_in_place(&self, txg: Txg, bytes: u64) {
        self.in_place[txg].fetch_add(bytes, Ordering::Relaxed);
    }

    /// Whether the txg holds so much that it should be written, of `max` bytes that are allowed.
    fn is_worth_writing(&self, txg: Txg, max: u64) -> bool {
        let all = self.dirty[txg].load(Ordering::Relaxed);
        let again = self.in_place[txg].load(Ordering::Relaxed);
        all.saturating_sub(again) >= max / SHARE_OF_A_TXG || all >= max / SHARE_IN_PLACE
    }

    /// A block of `bytes` is to be written with the txg.
    pub(crate) fn add_content(&self, txg: Txg, bytes: u64) {
        self.content[txg].fetch_add(bytes, Ordering::Relaxed);
    }

    /// Blocks of `bytes` were written whole in the txg.
    pub(crate) fn add_streamed(&self, txg: Txg, bytes: u64) {
        let before = self.streamed[txg].fetch_add(bytes, Ordering::Relaxed);
        let stored = self.stored[txg].load(Ordering::Relaxed);
        let passes = |limit, n: u64| n < limit && n + bytes >= limit;
        if passes(STREAM_MOST, before) || passes(STREAM, before.saturating_sub(stored)) {
            if let Some(d) = self.driver() {
                d.kick();
            }
        }
    }

    /// Blocks of `bytes` of the txg are at their places, and in memory no more.
    pub(crate) fn let_go(&self, txg: Txg, bytes: u64) {
        self.stored[txg].fetch_add(bytes, Ordering::Relaxed);
        let less = |d: u64| Some(d.saturating_sub(bytes));
        for sum in [&self.dirty[txg], &self.content[txg]] {
            let _ = sum.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        }
    }

    /// Blocks of `bytes` got their places in the txg without ever having been in memory as changes.
    pub(crate) fn add_stored(&self, txg: Txg, bytes: u64) {
        self.stored[txg].fetch_add(bytes, Ordering::Relaxed);
        self.add_streamed(txg, bytes);
    }

    /// A block of `bytes` that had its place in the open txg was given back: that place is not to be
    /// had before two further txgs are on disk, so a txg in which much is rewritten ends early.
    pub(crate) fn gave_back(&self, txg: Txg, bytes: u64) {
        let before = self.given_back[txg].fetch_add(bytes, Ordering::Relaxed);
        if before < GIVEN_BACK && before + bytes >= GIVEN_BACK {
            if let Some(d) = self.driver() {
                d.kick();
            }
        }
    }

    /// Whether the free space should be left to the txgs not yet on disk.
    pub(crate) fn is_scarce(&self) -> bool {
        self.zio.room() < self.pending_space().saturating_mul(2)
    }

    /// Whether blocks are left to the sync of their txg for now, since the devices refuse them.
    pub fn pause_early(&self, paused: bool) {
        self.lock().paused = paused;
    }

    /// Whether the txg has many blocks that were written whole.
    pub(crate) fn is_streaming(&self, txg: Txg) -> bool {
        self.streamed[txg].load(Ordering::Relaxed) >= STREAM
    }

    /// Opens a transaction in the open txg; waits while a txg closes, and (unless `at_once`) while
    /// there is more dirty data than allowed.
    ///
    /// Errors: `Suspended` after [`Dmu::stop`]; what would be changed could never be written.
    pub(crate) fn begin(self: &Arc<Self>, at_once: bool) -> Result<Tx> {
        let dirty = match at_once {
            true => 0,
            false => self.dirty_bytes(),
        };
        let max = self.dirty_max.load(Ordering::Relaxed);
        let too_much = |dirty: u64| dirty >= max || self.stored_bytes() >= STORED_MOST;
        let too_much_now = !at_once && too_much(dirty);
        // What the txg under way holds is being written already. Were the next one begun for it, it would write
        // few changes, and a block that many txgs change, such as one of a large directory, that many times.
        let open_is_full = || self.is_worth_writing(self.open_txg(), max);
        if too_much_now || dirty >= max / SHARE_OF_A_TXG && open_is_full() {
            if let Some(d) = self.driver() {
                d.kick();
                if too_much_now {
                    // Everything dirty belongs to the open txg or the one before it.
                    let target = self.open_txg();
                    tracing::debug!(
                        txg = target.number(),
                        dirty,
                        max,
                        "a transaction waits: too much is dirty"
                    );
                    d.make_room(target.before(1))?;
                    if too_much(self.dirty_bytes()) {
                        d.make_room(target)?;
                    }
                }
            }
        }
        let mut g = self.lock();
        if g.closing && g.stopped.is_none() {
            drop(g);
            base::waits::about_to_wait();
            g = self.lock();
        }
        while g.closing && g.stopped.is_none() {
            g = self.gate_cv.wait_acquire(g);
        }
        if let Some(why) = g.stopped.as_ref().filter(|_| !accepts_when_stopped()) {
            return Err(why.clone());
        }
        let txg = g.open;
        g.holders[txg] += 1;
        drop(g);
        self.add_dirty(txg, TX_COST);
        Ok(Tx {
            dmu: self.clone(),
            txg,
            syncing: false,
            promise: None,
            early: false,
            unwinding: std::thread::panicking(),
        })
    }

    /// A transaction in `txg` for writing blocks of it early; `None` if that txg is no longer open
    /// or about to be closed. Nothing waits for it but the end of the txg.
    pub(crate) fn begin_early(self: &Arc<Self>, txg: Txg) -> Option<Tx> {
        let mut g = self.lock();
        if g.open != txg || g.closing || g.last_call || g.stopped.is_some() || g.paused {
            return None;
        }
        if self.given_back[txg].load(Ordering::Relaxed) >= GIVEN_BACK {
            return None;
        }
        g.holders[txg] += 1;
        g.early += 1;
        Some(Tx {
            dmu: self.clone(),
            txg,
            syncing: false,
            promise: None,
            early: true,
            unwinding: std::thread::panicking(),
        })
    }

    /// A transaction in the txg that is open, which waits for nothing; `None` if it is about to be closed, or the engine was stopped.
    /// For work in the background that places blocks of its own: the txg is not closed before the transaction is dropped.
    pub fn begin_now(self: &Arc<Self>) -> Option<Tx> {
        let mut g = self.lock();
        if g.closing || g.last_call || g.stopped.is_some() {
            return None;
        }
        let txg = g.open;
        g.holders[txg] += 1;
        g.early += 1;
        Some(Tx {
            dmu: self.clone(),
            txg,
            syncing: false,
            promise: None,
            early: true,
            unwinding: std::thread::panicking(),
        })
    }

    /// For tests, in which little is written: a write of `run` bytes of whole blocks is taken for part
    /// of a stream, and `batch` bytes are written early together.
    pub fn set_early(&self, run: u64, batch: u64) {
        self.early.set(run, batch);
    }

    /// The transaction of syncing context for a txg obtained from [`Dmu::begin_sync`].
    pub fn syncing_tx(self: &Arc<Self>, txg: Txg) -> Tx {
        Tx {
            dmu: self.clone(),
            txg,
            syncing: true,
            promise: None,
            early: false,
            unwinding: std::thread::panicking(),
        }
    }

    pub(crate) fn register(&self, txg: Txg, os: &Arc<Objset>) {
        let mut l = self.objsets.acquire();
        let l = &mut l[txg];
        if !l.iter().any(|o| Arc::ptr_eq(o, os)) {
            l.push(os.clone());
        }
    }

    /// An object set was written, and waits for its txg to be on disk.
    pub(crate) fn written(&self, os: &Objset) {
        let Some(os) = os.myself() else { return };
        let mut all = self.written.acquire();
        if !all.iter().any(|o| Arc::ptr_eq(o, &os)) {
            all.push(os);
        }
    }

    /// True if the open txg has anything to write.
    pub fn is_open_dirty(&self) -> bool {
        let txg = self.open_txg();
        !self.objsets.acquire()[txg].is_empty()
    }

    /// Closes the open txg: waits for its transactions, takes over what they changed, and opens the
    /// next one. Only one thread may be between `begin_sync` and `end_sync`.
    ///
    /// Errors: the engine was stopped ([`Dmu::stop`]), also by a panic in a transaction of this txg.
    pub fn begin_sync(&self) -> Result<SyncGroup> {
        // Threads that wait for the next txg must not wait for ever if this one never opens it.
        let _guard = OnPanic::new(|| self.stop(internal_error("a panic while a txg was closed")));
        let mut g = self.lock();
        let txg = g.open;
        // Batches under way take some milliseconds, in which writers need not wait.
        g.last_call = true;
        while g.early > 0 {
            g = self.gate_cv.wait_acquire(g);
        }
        g.closing = true;
        while g.holders[txg] > 0 {
            g = self.gate_cv.wait_acquire(g);
        }
        if let Some(why) = &g.stopped {
            return Err(why.clone());
        }
        drop(g);
        base::mutation::panic_point("a txg that is closing");
        let mut objsets = std::mem::take(&mut self.objsets.acquire()[txg]);
        objsets.sort_by_key(|o| o.id());
        for os in &objsets {
            os.quiesce(txg);
        }
        let mut g = self.lock();
        g.open = txg.next();
        g.closing = false;
        g.last_call = false;
        self.gate_cv.notify_all();
        Ok(SyncGroup { txg, objsets })
    }

    /// Object sets changed in syncing context of `txg` since the last call, in order of id.
    pub fn take_dirty_objsets(&self, txg: Txg) -> Vec<Arc<Objset>> {
        let mut l = std::mem::take(&mut self.objsets.acquire()[txg]);
        l.sort_by_key(|o| o.id());
        l
    }

    /// Txg `txg` is on disk.
    pub fn end_sync(&self, txg: Txg) {
        self.dirty[txg].store(0, Ordering::Relaxed);
        self.in_place[txg].store(0, Ordering::Relaxed);
        self.streamed[txg].store(0, Ordering::Relaxed);
        self.stored[txg].store(0, Ordering::Relaxed);
        self.given_back[txg].store(0, Ordering::Relaxed);
        self.content[txg].store(0, Ordering::Relaxed);
        self.space[txg].store(0, Ordering::Relaxed);
        // Objects dirtied in syncing context registered their object set once more.
        self.objsets.acquire()[txg].clear();
        for os in std::mem::take(&mut *self.written.acquire()) {
            os.group_synced();
        }
        let mut g = self.lock();
        g.synced = txg;
        self.zio.set_synced(txg);
        self.gate_cv.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Rig;
    use crate::WritePolicy;
    use std::panic::{catch_unwind, AssertUnwindSafe};
    use std::sync::mpsc::channel;

    #[test]
    fn a_panic_in_a_transaction_ends_the_sync_and_releases_those_who_wait_for_it() {
        let rig = Rig::new(2, 64 << 20, WritePolicy::default());
        let txg = rig.sync().next();
        let (held, is_held) = channel();
        let (go_on, may_go_on) = channel::<()>();
        let rig = &rig;
        std::thread::scope(|s| {
            let holder = s.spawn(move || {
                let _tx = rig.tx();
                held.send(()).unwrap();
                may_go_on.recv().unwrap();
                panic!("on purpose");
            });
            is_held.recv().unwrap();
            let syncing = s.spawn(|| rig.dmu.begin_sync());
            while !rig.dmu.lock().closing {
                std::thread::yield_now();
            }
            let writer = s.spawn(|| rig.os.tx(Need::default()).map(drop));
            go_on.send(()).unwrap();
            assert!(holder.join().is_err());
            let e = syncing.join().unwrap().map(drop).unwrap_err();
            assert_eq!(e.kind, Kind::Suspended);
            assert!(
                e.to_string()
                    .contains(&format!("a transaction of txg {txg}")),
                "{e}"
            );
            // It came to wait before or behind the panic: both end.
            assert_eq!(writer.join().unwrap().unwrap_err().kind, Kind::Suspended);
        });
        assert!(rig.dmu.stopped().is_some());
        assert!(rig.dmu.begin_early(txg).is_none());
        assert_eq!(rig.dmu.synced_txg(), txg.before(1));
    }

    #[derive(Default)]
    struct Kicks(AtomicU64);

    impl Driver for Kicks {
        fn sync_through(&self, _: Txg) -> Result<()> {
            Ok(())
        }
        fn kick(&self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn dirty_data_of_the_txg_under_way_begins_no_further_txg() {
        const MAX: u64 = 1 << 20;
        let rig = Rig::new(2, 64 << 20, WritePolicy::default());
        let kicks = Arc::new(Kicks::default());
        let driver: Arc<dyn Driver> = kicks.clone();
        rig.dmu.set_driver(Arc::downgrade(&driver));
        rig.dmu.set_dirty_max(MAX);
        let kicked_by_a_transaction = || {
            drop(rig.tx());
            kicks.0.swap(0, Ordering::Relaxed) > 0
        };
        assert!(!kicked_by_a_transaction());
        rig.dmu.add_dirty(rig.dmu.open_txg(), MAX / 2);
        assert!(kicked_by_a_transaction());
        let under_way = rig.dmu.begin_sync().unwrap();
        assert!(!kicked_by_a_transaction(), "it is being written");
        rig.dmu.add_dirty(rig.dmu.open_txg(), MAX / 5);
        assert!(kicked_by_a_transaction());
        // Both together are more than is allowed.
        rig.dmu.add_dirty(under_way.txg, MAX / 2);
        assert!(kicked_by_a_transaction());
        rig.dmu.end_sync(under_way.txg);
    }

    #[test]
    fn a_transaction_that_ends_while_another_thread_panics_stops_nothing() {
        let rig = Rig::new(2, 64 << 20, WritePolicy::default());
        let died = catch_unwind(AssertUnwindSafe(|| {
            struct Tidy<'a>(&'a Rig);
            impl Drop for Tidy<'_> {
                fn drop(&mut self) {
                    drop(self.0.tx());
                }
            }
            let _tidy = Tidy(&rig);
            panic!("on purpose");
        }));
        assert!(died.is_err());
        assert!(rig.dmu.stopped().is_none());
        rig.sync();
    }
}
