//! The worker pool of a session: how many threads wait for requests, and when another one starts.
//!
//! The kernel wakes the threads that wait on the device in turn. So when several wait, even a
//! single stream of requests goes from thread to thread and from core to core, each time through
//! the wake-up of a sleeping one: measured on two cores, a round trip of 7 µs becomes one of 20.
//! But one thread alone would make everybody wait while it waits for a disk. Therefore:
//!
//! * Normally one thread waits for requests and serves them itself; the others rest on a stack, the
//!   last one on top, and one that has rested for [`PATIENCE`] ends.
//! * A thread is woken (or started) at once when the last waiting one begins something that is known
//!   to wait (fsync and the like), or says so by [`about_to_block`].
//! * For [`PARALLEL`] after there was reason to, threads work in parallel: two may wait for requests
//!   and a further one is woken as soon as all are busy. Reasons are a request that took longer than
//!   [`LONG`], or [`BACKLOG`] requests in a row that were there already when asked for. As many as
//!   there are processors are enough, unless some are known to wait (fsync and the like; two long requests
//!   in a row in the second of which the thread gave its processor away): one more would only take
//!   turns with the others.
//! * A sentinel for all sessions of the process looks every [`TICK`] at those that have something to
//!   do, and wakes a thread where all are stuck. It sleeps when nothing is going on.

use base::sync::{CondvarExt, MutexExt};
use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, OnceLock, Weak};
use std::thread::Thread;
use std::time::{Duration, Instant};

use crate::{cpu_latency, sys};

/// How long a thread rests before it ends.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long threads work in parallel after there was reason to.
const PARALLEL: u64 = 50_000_000;
/// A request that took longer (ns) is a reason: other streams should not wait for such ones.
const LONG: u64 = 150_000;
/// So many requests in a row that did not have to be waited for are a reason.
const BACKLOG: u32 = 16;
/// What counts as not waited for (ns).
const AT_ONCE: u64 = 2_000;
/// How often the sentinel looks.
const TICK: Duration = Duration::from_millis(1);
/// After so many ticks without requests the sentinel looks away.
const QUIET: u64 = 20;

/// Nanoseconds on a clock of this process.
pub(crate) fn now() -> u64 {
    static BASE: OnceLock<Instant> = OnceLock::new();
    BASE.get_or_init(Instant::now).elapsed().as_nanos() as u64
}

/// How many threads can run at the same time.
fn processors() -> u32 {
    static N: OnceLock<u32> = OnceLock::new();
    *N.get_or_init(|| {
        let n = std::thread::available_parallelism().map_or(1, usize::from);
        u32::try_from(n).unwrap_or(u32::MAX)
    })
}

struct Resting {
    thread: Thread,
    woken: Arc<AtomicBool>,
}

pub(crate) struct WorkerPool {
    /// Most threads, beside those that are lent.
    most: usize,
    /// Threads that wait for requests of this session to be served, in all its crews.
    lent: Arc<AtomicUsize>,
    /// Threads that are awake (high half) and busy (low half), together so that the decisions to
    /// rest and to wake see one state.
    counts: AtomicU64,
    resting: Mutex<Vec<Resting>>,
    closed: AtomicBool,
    /// Until when (see [`now`]) threads work in parallel.
    parallel_until: AtomicU64,
    /// Until when it is taken for granted that some of those that are busy wait.
    waiting_until: AtomicU64,
    /// How many can work at the same time.
    processors: u32,
    /// Requests begun.
    begun: AtomicU64,
    watch: Watch,
}

/// What the sentinel remembers about a session.
#[derive(Default)]
struct Watch {
    on: AtomicBool,
    begun: AtomicU64,
    quiet: AtomicU64,
}

const AWAKE: u64 = 1 << 32;
const BUSY: u64 = 1;

fn split(c: u64) -> (u32, u32) {
    ((c >> 32) as u32, c as u32)
}

/// How a thread gets its requests, and how it fares with them.
#[derive(Default)]
pub(crate) struct Pace {
    at_once: u32,
    /// The request before took long.
    long: bool,
    /// How often the thread had waited when the request began; looked up after a long one only, since
    /// it takes a system call.
    waits: Option<u64>,
}

impl WorkerPool {
    /// A pool of up to `most` threads.
    pub fn new(most: usize) -> WorkerPool {
        WorkerPool::sharing(most, Arc::default())
    }

    /// One of several crews of a session.
    pub fn sharing(most: usize, lent: Arc<AtomicUsize>) -> WorkerPool {
        WorkerPool {
            most: most.max(1),
            lent,
            counts: AtomicU64::new(0),
            resting: Mutex::default(),
            closed: AtomicBool::new(false),
            parallel_until: AtomicU64::new(0),
            waiting_until: AtomicU64::new(0),
            processors: processors(),
            begun: AtomicU64::new(0),
            watch: Watch::default(),
        }
    }

    /// How many threads there may be at this moment.
    pub fn most(&self) -> usize {
        self.most + self.lent.load(SeqCst)
    }

    /// Threads that are awake.
    pub fn awake(&self) -> usize {
        split(self.counts.load(SeqCst)).0 as usize
    }

    /// Threads that serve a request, but a brief one.
    pub fn busy(&self) -> usize {
        split(self.counts.load(SeqCst)).1 as usize
    }

    /// Threads beside the most there may be: that wait for requests of this session to be served,
    /// or whose request was given up.
    pub fn lent(&self) -> usize {
        self.lent.load(SeqCst)
    }

    /// To lend from elsewhere.
    pub fn lender(&self) -> Arc<AtomicUsize> {
        self.lent.clone()
    }

    /// There may be one thread less again.
    pub fn take_back(&self) {
        self.lent.fetch_sub(1, SeqCst);
    }

    /// Whether there may be one more thread.
    pub fn may_grow(&self) -> bool {
        self.awake() < self.most()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Resting>> {
        self.resting.acquire()
    }

    /// A thread is about to start.
    pub fn joined(&self) {
        self.counts.fetch_add(AWAKE, SeqCst);
    }

    /// A thread that was counted did not start.
    pub fn left(&self) {
        self.counts.fetch_sub(AWAKE, SeqCst);
    }

    fn alone(c: u64) -> bool {
        let (awake, busy) = split(c);
        busy >= awake
    }

    fn go_parallel(&self, now: u64) {
        self.parallel_until
            .fetch_max(now.saturating_add(PARALLEL), SeqCst);
    }

    /// The same, since a thread is known to wait.
    fn someone_waits(&self, now: u64) {
        self.go_parallel(now);
        self.waiting_until
            .fetch_max(now.saturating_add(PARALLEL), SeqCst);
    }

    /// Whether one more thread would get to do something, if all that are awake are busy.
    fn more_could_work(&self, awake: u32, now: u64) -> bool {
        now < self.parallel_until.load(SeqCst)
            && (awake < self.processors || now < self.waiting_until.load(SeqCst))
    }

    /// How many threads may wait for requests.
    fn spare(&self, now: u64) -> u32 {
        if now < self.parallel_until.load(SeqCst) {
            2
        } else {
            1
        }
    }

    /// The calling thread begins to serve a request, at `now`, after waiting for it for `waited`. The
    /// sentinel is to look at every session that has something to do, also at one that has threads to
    /// spare: processors are kept awake while it does.
    pub fn begin(&self, pace: &mut Pace, now: u64, waited: u64, blocks: bool) -> Begin {
        self.begun.fetch_add(1, SeqCst);
        let c = self.counts.fetch_add(BUSY, SeqCst) + BUSY;
        pace.at_once = if waited < AT_ONCE {
            pace.at_once + 1
        } else {
            0
        };
        pace.waits = pace.long.then(sys::waits);
        if blocks {
            self.someone_waits(now);
        } else if pace.at_once >= BACKLOG {
            self.go_parallel(now);
        }
        Begin {
            wake: WorkerPool::alone(c) && self.most() > 1 && self.more_could_work(split(c).0, now),
            watch: !self.watch.on.load(SeqCst) && !self.watch.on.swap(true, SeqCst),
        }
    }

    /// The calling thread has served a request, which took so long. Returns whether it may rest.
    pub fn end(&self, pace: &mut Pace, now: u64, took: u64) -> bool {
        pace.long = took > LONG;
        if pace.long {
            self.go_parallel(now);
            // It may have been others' turn on the processor, or this thread may have waited for
            // something: a device, a lock. One long request is not looked at, a second one is.
            if pace.waits.is_some_and(|before| sys::waits() > before) {
                self.someone_waits(now);
            }
        }
        let (awake, busy) = split(self.counts.fetch_sub(BUSY, SeqCst) - BUSY);
        awake > busy.saturating_add(self.spare(now))
    }

    /// The calling thread serves and is going to wait for something. Returns whether another thread
    /// should be woken.
    fn blocking(&self) -> bool {
        self.someone_waits(now());
        WorkerPool::alone(self.counts.load(SeqCst)) && self.most() > 1
    }

    /// Wakes a thread; returns whether there was one.
    pub fn wake_one(&self) -> bool {
        let mut resting = self.lock();
        match resting.pop() {
            Some(r) => {
                self.counts.fetch_add(AWAKE, SeqCst);
                r.woken.store(true, SeqCst);
                r.thread.unpark();
                true
            }
            None => false,
        }
    }

    /// Wakes all, and nobody rests any more.
    pub fn wake_all(&self) {
        self.closed.store(true, SeqCst);
        while self.wake_one() {}
    }

    /// Rests, if that still seems right, until woken. Returns `false` if nobody did for long; the
    /// thread then ends.
    pub fn rest(&self) -> bool {
        let woken = Arc::new(AtomicBool::new(false));
        {
            // A thread that finds nobody waiting takes this lock to wake somebody, so it either is
            // seen by the decision here or finds this thread on the list.
            let mut resting = self.lock();
            if self.closed.load(SeqCst) {
                return true;
            }
            let spare = self.spare(now());
            let fewer = |c: u64| {
                let (awake, busy) = split(c);
                (awake > busy.saturating_add(spare)).then(|| c - AWAKE)
            };
            if self.counts.fetch_update(SeqCst, SeqCst, fewer).is_err() {
                return true;
            }
            resting.push(Resting {
                thread: std::thread::current(),
                woken: woken.clone(),
            });
        }
        let until = Instant::now() + PATIENCE;
        while !woken.load(SeqCst) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let mut resting = self.lock();
                // No longer on the list: woken this very moment.
                let Some(i) = resting.iter().position(|r| Arc::ptr_eq(&r.woken, &woken)) else {
                    return true;
                };
                resting.remove(i);
                return false;
            }
            std::thread::park_timeout(left);
        }
        true
    }

    /// Whether requests have come since the last look of the sentinel. (One that waits for a disk
    /// all the while is no reason to keep processors awake.)
    fn is_busy(&self) -> bool {
        self.begun.load(SeqCst) != self.watch.begun.load(SeqCst)
    }

    /// A look of the sentinel: is everybody stuck, and is there a reason to look again?
    pub fn look(&self) -> Look {
        let begun = self.begun.load(SeqCst);
        let same = self.watch.begun.swap(begun, SeqCst) == begun;
        let c = self.counts.load(SeqCst);
        if WorkerPool::alone(c) && same {
            self.watch.quiet.store(0, SeqCst);
            self.someone_waits(now());
            return Look::Stuck;
        }
        if !same || split(c).1 > 0 {
            self.watch.quiet.store(0, SeqCst);
            return Look::Fine;
        }
        if self.watch.quiet.fetch_add(1, SeqCst) < QUIET {
            return Look::Fine;
        }
        self.watch.quiet.store(0, SeqCst);
        // A thread that begins now either sees that nobody looks, or is seen here.
        self.watch.on.store(false, SeqCst);
        if split(self.counts.load(SeqCst)).1 > 0 && !self.watch.on.swap(true, SeqCst) {
            return Look::Fine;
        }
        Look::Away
    }
}

/// What is to be done when a thread begins to serve.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Begin {
    /// Wake or start a thread.
    wake: bool,
    /// Tell the sentinel to look.
    watch: bool,
}

impl Begin {
    /// Does it.
    pub fn act<W: Watched + 'static>(&self, session: &Arc<W>) {
        if self.wake {
            session.clone().reinforce();
        }
        if self.watch {
            watch(Arc::downgrade(session) as Weak<dyn Watched>);
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Look {
    Fine,
    Stuck,
    Away,
}

/// What the sentinel can do with a session.
pub(crate) trait Watched: Send + Sync {
    fn workers(&self) -> &WorkerPool;
    /// Wakes or starts one more thread.
    fn reinforce(self: Arc<Self>);
    /// Makes sure, before it returns, that requests are served even if all threads wait that have
    /// said they wait for some.
    fn keep_one(self: Arc<Self>) {
        if self.workers().blocking() {
            self.reinforce();
        }
    }
    /// The session's other crews, if it has several.
    fn others(&self) -> Vec<Arc<dyn Watched>> {
        Vec::new()
    }
}

/// Sessions the sentinel looks at.
static WATCHED: Mutex<Vec<Weak<dyn Watched>>> = Mutex::new(Vec::new());
static CALL: Condvar = Condvar::new();

fn watched() -> std::sync::MutexGuard<'static, Vec<Weak<dyn Watched>>> {
    WATCHED.acquire()
}

/// Starts the sentinel if that was not done yet; whether there is one.
pub(crate) fn ready_sentinel() -> bool {
    static SENTINEL: OnceLock<bool> = OnceLock::new();
    *SENTINEL.get_or_init(|| {
        std::thread::Builder::new()
            .name("fuse-sentinel".into())
            .spawn(sentinel)
            .is_ok()
    })
}

/// Has the sentinel look at a session, which it does until nothing is going on there.
pub(crate) fn watch(session: Weak<dyn Watched>) {
    if ready_sentinel() {
        watched().push(session);
        CALL.notify_one();
    } else if let Some(s) = session.upgrade() {
        // Without it, one more thread from the beginning must do.
        s.workers().parallel_until.store(u64::MAX, SeqCst);
        s.workers().waiting_until.store(u64::MAX, SeqCst);
        s.reinforce();
    }
}

fn sentinel() {
    loop {
        let mut list = watched();
        if list.is_empty() {
            cpu_latency::rest();
        }
        while list.is_empty() {
            list = CALL.wait_acquire(list);
        }
        let sessions = std::mem::take(&mut *list);
        drop(list);
        std::thread::sleep(TICK);
        let mut busy = false;
        for weak in sessions {
            let Some(s) = weak.upgrade() else { continue };
            busy |= s.workers().is_busy();
            match s.workers().look() {
                Look::Fine => watched().push(weak),
                Look::Stuck => {
                    s.reinforce();
                    watched().push(weak);
                }
                Look::Away => {}
            }
        }
        cpu_latency::look(busy);
    }
}

thread_local! {
    /// The session the current thread serves.
    static SERVING: RefCell<Option<Weak<dyn Watched>>> = const { RefCell::new(None) };
}

pub(crate) fn set_serving(session: Option<Weak<dyn Watched>>) {
    base::waits::tell(about_to_block);
    SERVING.with(|s| *s.borrow_mut() = session);
}

/// Says that the current thread is going to wait: for a disk, a transaction group, a lock held
/// during either. On a thread that serves requests this makes sure, at once, that another one
/// listens meanwhile (otherwise that is noticed within a millisecond). Elsewhere it does nothing. The rooms of the
/// engine say so by [`base::waits::about_to_wait`].
pub fn about_to_block() {
    SERVING.with(|s| {
        if let Some(session) = s.borrow().as_ref().and_then(Weak::upgrade) {
            if session.workers().blocking() {
                session.reinforce();
            }
        }
    });
}

/// The thread that made it does not count towards the most threads of its session while it lives.
pub struct Lent(Option<Arc<dyn Watched>>);

impl Lent {
    /// Whether the session is over: nobody takes an answer any more.
    pub fn is_over(&self) -> bool {
        let over = |s: &Arc<dyn Watched>| s.workers().closed.load(SeqCst);
        self.0.as_ref().is_some_and(over)
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let Some(s) = &self.0 {
            s.workers().take_back();
        }
    }
}

/// Says that the current thread, inside a method of the file system, is going to wait for other
/// requests of the same session: a notification that has the kernel write out pages is answered
/// only after their WRITE requests are. However many threads wait like this, another one serves.
pub fn about_to_wait_for_requests() -> Lent {
    SERVING.with(|s| {
        let session = s.borrow().as_ref().and_then(Weak::upgrade);
        if let Some(session) = &session {
            session.workers().lent.fetch_add(1, SeqCst);
            // Whichever of the crews those requests come to.
            for s in session.others().into_iter().chain([session.clone()]) {
                s.keep_one();
            }
        }
        Lent(session)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const GO: Begin = Begin {
        wake: false,
        watch: false,
    };
    const WAKE: Begin = Begin { wake: true, ..GO };
    const WATCH: Begin = Begin { watch: true, ..GO };

    #[test]
    fn one_waits_unless_there_is_reason_for_more() {
        let c = WorkerPool::new(4);
        let mut p = Pace::default();
        c.joined();
        // Alone with short requests: the sentinel is called once.
        assert_eq!(c.begin(&mut p, 1000, 50_000, false), WATCH);
        assert!(!c.end(&mut p, 2000, 1000));
        assert_eq!(c.begin(&mut p, 3000, 50_000, false), GO);
        assert!(!c.end(&mut p, 4000, 1000));
        // A long one is a reason to work in parallel …
        let t = 10_000;
        assert_eq!(c.begin(&mut p, t, 50_000, true), WAKE);
        assert!(!c.wake_one());
        c.joined();
        assert!(!c.end(&mut p, t, 0)); // two may wait
        c.joined();
        assert_eq!(c.begin(&mut p, t, 0, false), GO);
        assert!(c.end(&mut p, t, LONG + 1)); // three would wait
                                             // … for a while.
        assert_eq!(c.spare(t + PARALLEL / 2), 2);
        assert_eq!(c.spare(t + PARALLEL), 1);
        let later = t + 10 * PARALLEL;
        // So is a backlog.
        let mut p = Pace::default();
        for i in 0..BACKLOG {
            assert_eq!(c.spare(later), 1, "{i}");
            c.begin(&mut p, later, 100, false);
            c.end(&mut p, later, 10);
        }
        assert_eq!(c.spare(later), 2);
    }

    #[test]
    fn no_more_than_can_run_unless_some_wait() {
        let c = WorkerPool {
            processors: 2,
            ..WorkerPool::new(8)
        };
        let mut p = Pace::default();
        let t = 10_000;
        c.go_parallel(t);
        c.joined();
        let wakes = |p: &mut Pace, blocks| c.begin(p, t, 50_000, blocks).wake;
        assert!(wakes(&mut p, false)); // the other processor has nobody
        c.joined();
        assert!(!wakes(&mut p, false)); // both have somebody
        c.end(&mut p, t, 0);
        assert!(wakes(&mut p, true)); // who is busy waits
        c.joined();
        assert!(wakes(&mut p, false)); // and may do so for a while
        c.joined();
        c.waiting_until.store(0, SeqCst);
        assert!(!wakes(&mut p, false));
        // One that says that it waits has another one woken anyway.
        assert!(c.blocking());
    }

    #[test]
    fn who_has_threads_to_spare_is_looked_at_too() {
        let c = WorkerPool::new(4);
        let mut p = Pace::default();
        c.joined();
        c.joined();
        assert_eq!(c.begin(&mut p, 1000, 50_000, false), WATCH);
        assert!(c.is_busy());
        assert_eq!(c.begin(&mut p, 1000, 50_000, false), GO);
    }

    #[test]
    fn rests_and_is_woken() {
        let c = WorkerPool::new(4);
        for _ in 0..3 {
            c.joined();
        }
        std::thread::scope(|s| {
            let t = s.spawn(|| c.rest());
            while c.lock().is_empty() {
                std::thread::yield_now();
            }
            assert_eq!(split(c.counts.load(SeqCst)), (2, 0));
            assert!(c.wake_one());
            assert!(t.join().unwrap());
            assert!(!c.wake_one());
        });
        assert_eq!(split(c.counts.load(SeqCst)), (3, 0));
        let mut p = Pace::default();
        c.begin(&mut p, 0, 0, false);
        c.begin(&mut p, 0, 0, false);
        assert!(c.rest()); // only one is left waiting: does not rest
        c.end(&mut p, 0, 0);
        c.wake_all();
        assert!(c.rest());
    }

    #[test]
    fn the_sentinel_sees_who_is_stuck() {
        let c = WorkerPool::new(4);
        let mut p = Pace::default();
        c.joined();
        assert_eq!(c.begin(&mut p, 0, 50_000, false), WATCH);
        assert_eq!(c.look(), Look::Fine); // began since the last look
        assert_eq!(c.look(), Look::Stuck);
        c.joined();
        assert_eq!(c.look(), Look::Fine);
        c.end(&mut p, 0, 0);
        for _ in 0..QUIET {
            assert_eq!(c.look(), Look::Fine);
        }
        assert_eq!(c.look(), Look::Away);
        c.left();
        c.parallel_until.store(0, SeqCst);
        assert_eq!(c.begin(&mut p, 0, 50_000, false), WATCH);
    }
}
