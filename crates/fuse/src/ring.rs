//! Requests over io_uring (Linux 6.14): a request comes with the completion of a command, and the
//! command that answers it fetches the next one, so one system call serves one request.
//!
//! The kernel has a queue per core, and a request goes to the queue of the core its caller runs on.
//! A queue holds entries, each with a buffer. A request comes to the thread that has put its entry
//! there or has answered by it last, and to no other. So here an entry is a thread. The kernel gives a request
//! to the entry that was answered last, so the thread that is warm goes on, and one that waits for
//! a disk holds up nobody as long as its queue has another free one. A queue begins with a few;
//! [`WorkerPool`] adds more as it does for the device, but none ends before the session, since an entry
//! cannot be taken back.
//!
//! One thread puts the first entries of a queue there, all with one system call on the core of the queue. While it has
//! several, it gives each away with the first request that comes by it, to a new thread, which answers and keeps the entry.
//! So a thread that serves has one entry, and a mount that nobody uses has one thread for each queue.
//! That is not for the threads' sake alone. The kernel begins to use the queues when each of them has an entry. If the others
//! of the last queue came later, requests that came in between would wait behind the one that the single entry had.
//!
//! Requests that came when a queue had no free entry wait for one to be answered: the kernel does
//! not look at them when it gets a new entry. So a new thread has it send a request of its own
//! making there: the answer to NOTIFY_RETRIEVE is one, and when that was served the kernel goes on
//! with those that wait. This works where a file was opened, read or written before (of a directory the kernel retrieves
//! nothing). Whatever threads are busy with, every queue always has more entries than there are threads that wait for requests
//! (see [`crate::about_to_wait_for_requests`]), so one will be answered.
//!
//! While processors are kept awake ([`crate::awake`]), a thread serves small requests on the core of its queue, which is that
//! of the caller: they take turns, and nobody has to be woken on another core. Requests that move data run wherever the
//! kernel puts them.
//!
//! An entry whose thread waits for ever is taken over by a new one, if its caller was killed ([`crate::interrupt`]): any ring
//! may answer for another one, and the entry is its own then.
//!
//! What the ring does not carry (INIT, FORGET, INTERRUPT, notifications) goes through the device.

use std::cell::{Cell, RefCell};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::{channel, Receiver, Sender};
use std::sync::{Arc, Weak};
use std::time::Duration;

use base::io_text;
use io_uring::{cqueue, opcode, squeue, types, IoUring};
use zerocopy::{FromBytes, IntoBytes};

use crate::abi::{self, op};
use crate::awake;
use crate::channel::{negative, Answer};
use crate::config::Transport;
use crate::dispatch::{classify, serve, Class, Message, Scratch};
use crate::fs::Filesystem;
use crate::handle::{Shared, Worker};
use crate::interrupt::{self, may_be_given_up, Serving, INSTEAD};
use crate::reply::ReadBuf;
use crate::sys::{self, CpuSet, Pages, PAGE};
use crate::types::Errno;
use crate::worker_pool::{self, Pace, Watched, WorkerPool};

/// First entries of all queues of all mounts of this process; mounts beyond use the device.
const MOST_FIRST: usize = 256;
/// Entries a queue begins with, if the configuration allows as many threads.
const FIRST_OF_QUEUE: usize = 4;

/// How often, and how many times, it is looked whether the kernel has a new entry.
const LOOK: Duration = Duration::from_micros(200);
const KEEP_ONE: u32 = 50_000;
const COMPLETE: u32 = 5_000;

static FIRST: AtomicUsize = AtomicUsize::new(0);

/// Sees to it that the kernel offers io_uring to mounts made from now on; it is a switch of the
/// whole system that only root can turn on. Whether it was off until now.
///
/// Errors: a reason why it does not.
pub fn enable_uring() -> Result<bool, String> {
    privilege::acts().offer_uring()
}

/// Whether mounts with this setting use io_uring where they may: [`Transport::Auto`] means it where threads keep processors
/// awake (docs/costs.md has the figures).
pub fn wants_uring(t: Transport) -> bool {
    t == Transport::Uring || t == Transport::Auto && awake::is_wanted()
}

/// Cores in a list of the kernel's, such as `0-3,8`.
fn cores(list: &str) -> Vec<usize> {
    let mut out = Vec::new();
    for part in list.trim().split(',') {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        if let (Ok(from), Ok(to)) = (from.parse::<usize>(), to.parse::<usize>()) {
            out.extend(from..=to.min(from.saturating_add(1 << 16)));
        }
    }
    out
}

/// Queues the kernel has, each with the core it belongs to; several where cores are absent, which
/// share the thread of the first.
fn lanes(possible: &[usize], online: &[usize]) -> Vec<Vec<u16>> {
    let count = possible.len().min(1 << 16);
    let mut lanes: Vec<Vec<u16>> = Vec::new();
    let mut absent = Vec::new();
    for qid in 0..count {
        match online.contains(&qid) {
            true => lanes.push(vec![qid as u16]),
            false => absent.push(qid as u16),
        }
    }
    match lanes.first_mut() {
        Some(first) => first.extend(absent),
        None => lanes.push(absent),
    }
    lanes
}

/// Part of [`MOST_FIRST`].
struct Share(usize);

impl Share {
    fn take(n: usize) -> Option<Share> {
        let more = |used: usize| Some(used + n).filter(|all| *all <= MOST_FIRST);
        FIRST.fetch_update(SeqCst, SeqCst, more).ok()?;
        Some(Share(n))
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        FIRST.fetch_sub(self.0, SeqCst);
    }
}

/// What the threads of a session's ring share.
pub(crate) struct Ring<F: ?Sized> {
    fs: Arc<F>,
    device: Weak<File>,
    shared: Arc<Shared>,
    /// Queue numbers of each lane.
    queues: Vec<Vec<u16>>,
    pools: Vec<WorkerPool>,
    /// How many entries of each lane the kernel has.
    ready: Vec<AtomicUsize>,
    /// How many of them have no thread of their own yet.
    spare: Vec<AtomicUsize>,
    /// Entries that the queue of each lane begins with.
    first: usize,
    /// Most threads beside those.
    threads: usize,
    /// A file somebody opened, read or wrote.
    file: AtomicU64,
    /// Cores that threads may use.
    home: CpuSet,
    /// Bytes of a payload buffer.
    payload: usize,
    /// The kernel did not take all first entries and keeps to the device.
    failed: AtomicBool,
    _share: Share,
}

/// The first threads, ready and waiting for the word.
pub(crate) struct Starting<F: ?Sized> {
    ring: Arc<Ring<F>>,
    go: Vec<Sender<()>>,
}

impl<F: Filesystem + ?Sized> Starting<F> {
    /// Makes threads and rings, so that nothing but the kernel can fail afterwards.
    ///
    /// Errors: a reason why the device must do.
    pub fn prepare(
        fs: &Arc<F>,
        device: &Arc<File>,
        shared: &Arc<Shared>,
        threads: usize,
        payload: usize,
    ) -> Result<Starting<F>, String> {
        let list = |what: &str| {
            std::fs::read_to_string(format!("/sys/devices/system/cpu/{what}"))
                .map(|t| cores(&t))
                .map_err(|e| format!("/sys/devices/system/cpu/{what}: {}", io_text(&e)))
        };
        let queues = lanes(&list("possible")?, &list("online")?);
        let first = threads.clamp(1, FIRST_OF_QUEUE);
        let share = Share::take(queues.len() * first)
            .ok_or_else(|| format!("{MOST_FIRST} threads serve other mounts' rings already"))?;
        let lent = Arc::<AtomicUsize>::default();
        let pools = queues
            .iter()
            .map(|_| WorkerPool::sharing(threads, lent.clone()))
            .collect();
        worker_pool::ready_sentinel();
        let ring = Arc::new(Ring {
            ready: queues.iter().map(|_| AtomicUsize::new(0)).collect(),
            spare: queues.iter().map(|_| (first - 1).into()).collect(),
            first,
            file: AtomicU64::new(0),
            fs: fs.clone(),
            device: Arc::downgrade(device),
            shared: shared.clone(),
            queues,
            pools,
            threads,
            home: sys::cores_allowed().map_err(|e| format!("cores: {}", io_text(&e)))?,
            payload,
            failed: AtomicBool::new(false),
            _share: share,
        });
        let mut starting = Starting {
            ring,
            go: Vec::new(),
        };
        let (tell, told) = channel();
        for index in 0..starting.ring.queues.len() {
            let (go, word) = channel();
            let lane = Lane {
                ring: starting.ring.clone(),
                index,
            };
            let tell = tell.clone();
            Arc::new(lane)
                .spawn(Start::First(First { tell, word }))
                .map_err(|e| format!("no thread: {}", io_text(&e)))?;
            starting.go.push(go);
        }
        drop(tell);
        // Each tells once; those that ended without a word are seen by the end of the channel.
        for _ in 0..starting.go.len() {
            match told.recv() {
                Ok(Ok(())) => {}
                Ok(Err(e)) => return Err(format!("io_uring cannot be used: {}", io_text(&e))),
                Err(_) => return Err("its threads ended".into()),
            }
        }
        Ok(starting)
    }

    /// How many queues there are.
    pub fn queues(&self) -> usize {
        self.ring.queues.len()
    }

    /// The kernel has agreed: entries are handed to it, and it begins to use them when it has one
    /// for each queue. What comes to a queue before its other entries are there waits for an
    /// answer; so all queues are complete before the first one gets any.
    pub fn go(self) -> Arc<Ring<F>> {
        let (last, others) = self.go.split_at(1.min(self.go.len()));
        let say = |go: &Sender<()>| {
            // Whose thread has ended needs no word.
            let _ = go.send(());
        };
        others.iter().for_each(say);
        let ready = &self.ring.ready[1..];
        for _ in 0..COMPLETE {
            if ready.iter().all(|r| r.load(SeqCst) > 0) {
                break;
            }
            std::thread::sleep(LOOK);
        }
        last.iter().for_each(say);
        self.ring
    }
}

impl<F: ?Sized> Ring<F> {
    /// Threads of a lane, those included that entries are still to get.
    fn threads_of(&self, lane: usize) -> usize {
        self.pools[lane].awake() + self.spare[lane].load(SeqCst)
    }

    /// Whether requests come this way.
    pub fn carries(&self) -> bool {
        !self.failed.load(SeqCst)
    }
}

struct First {
    tell: Sender<io::Result<()>>,
    word: Receiver<()>,
}

/// How a thread begins.
enum Start {
    /// Before the session.
    First(First),
    /// With an entry of its own beside others.
    Further,
    /// With the entry of a thread that waits.
    Instead(Arc<Serving>, Arc<Slot>),
    /// With an entry and the request that is in it. Says when it can answer.
    Given(Arc<Slot>, Sender<()>),
}

/// What a thread begins to serve with.
struct Beginning {
    engine: Engine,
    /// All queues of the lane depend on this thread.
    lead: bool,
    /// There is a request in the first entry.
    request: bool,
}

impl Beginning {
    fn with(engine: Engine) -> Beginning {
        Beginning {
            engine,
            lead: false,
            request: false,
        }
    }
}

/// Queues that have their threads in common; as a rule one.
struct Lane<F: ?Sized> {
    ring: Arc<Ring<F>>,
    index: usize,
}

impl<F: Filesystem + ?Sized> Watched for Lane<F> {
    fn workers(&self) -> &WorkerPool {
        &self.ring.pools[self.index]
    }

    fn reinforce(self: Arc<Self>) {
        let all: usize = (0..self.ring.queues.len())
            .map(|i| self.ring.threads_of(i))
            .sum();
        let most = self.ring.queues.len() * self.ring.first + self.ring.threads;
        if self.workers().may_grow() && all < most + self.workers().lent() {
            // Failing to start a thread only means less parallelism.
            let _ = self.spawn(Start::Further);
        }
    }

    fn keep_one(self: Arc<Self>) {
        for _ in 0..KEEP_ONE {
            let lent = self.workers().lent();
            if self.ring.ready[self.index].load(SeqCst) > lent {
                return;
            }
            if self.ring.threads_of(self.index) <= lent
                && self.clone().spawn(Start::Further).is_err()
            {
                return;
            }
            std::thread::sleep(LOOK);
        }
    }

    fn others(&self) -> Vec<Arc<dyn Watched>> {
        let all = 0..self.ring.queues.len();
        all.filter(|i| *i != self.index)
            .map(|index| {
                let ring = self.ring.clone();
                Arc::new(Lane { ring, index }) as Arc<dyn Watched>
            })
            .collect()
    }
}

impl<F: Filesystem + ?Sized> Lane<F> {
    fn spawn(self: Arc<Self>, start: Start) -> io::Result<()> {
        let shared = self.ring.shared.clone();
        shared.lock().total += 1;
        self.workers().joined();
        let lane = self.clone();
        let started = std::thread::Builder::new()
            .name("fuse-ring".into())
            .spawn(move || lane.work(start));
        if started.is_err() {
            self.workers().left();
            shared.lock().total -= 1;
        }
        started.map(|_| ())
    }

    fn work(self: Arc<Self>, start: Start) {
        let shared = self.ring.shared.clone();
        let reading = Arc::new(AtomicBool::new(false));
        let tid = Worker::enlist(&shared, &reading);
        sys::unblock_wake();
        worker_pool::set_serving(Some(Arc::downgrade(&self) as Weak<dyn Watched>));
        let outcome = self.serve_all(start, &reading);
        worker_pool::set_serving(None);
        self.workers().left();
        shared.dismiss(tid, outcome.map(|()| None).map_err(|e| e.kind()));
        drop(self); // so that with the last thread the file system is let go
        shared.left();
    }

    /// Has the kernel send a request to this lane's queue, from its core, which the thread then
    /// leaves.
    fn call_those_that_wait(&self, device: &File) {
        static CALLS: AtomicU64 = AtomicU64::new(1);
        let node = self.ring.file.load(SeqCst);
        if node == 0 {
            return;
        }
        let head = abi::NotifyRetrieveOut {
            // The kernel's own count from 2, so they never meet; the lowest bit has a meaning.
            notify_unique: 1 << 62 | CALLS.fetch_add(1, SeqCst) << 1,
            nodeid: node,
            ..Default::default()
        };
        // The file may be gone and the session about to end.
        let _ =
            self.at_home(|| crate::notify::send(device, abi::notify::RETRIEVE, &[head.as_bytes()]));
    }

    /// The same by a thread of its own. Where the kernel is just letting the file go it waits for the file's requests, one of
    /// which may have come to the entry of the calling thread.
    fn have_those_called_that_wait(self: &Arc<Self>) {
        let (lane, shared) = (self.clone(), self.ring.shared.clone());
        shared.lock().total += 1;
        let call = move || {
            let shared = lane.ring.shared.clone();
            if let Some(device) = lane.ring.device.upgrade() {
                lane.call_those_that_wait(&device);
            }
            drop(lane);
            shared.left();
        };
        let started = std::thread::Builder::new().name("fuse-call".into());
        if started.spawn(call).is_err() {
            // They wait for an answer to another request.
            shared.lock().total -= 1;
        }
    }

    /// Has a new thread take over the entry of one that waits; whether it was started.
    fn replace(self: Arc<Self>, serving: &Arc<Serving>, slot: &Arc<Slot>) -> bool {
        let workers = &self.ring.pools[self.index];
        let lent = workers.lender();
        let more = |n: usize| (n < INSTEAD).then_some(n + 1);
        if lent.fetch_update(SeqCst, SeqCst, more).is_err() {
            return false;
        }
        let start = Start::Instead(serving.clone(), slot.clone());
        let started = self.clone().spawn(start).is_ok();
        if !started {
            self.workers().take_back();
        }
        started
    }

    /// Has a new thread serve the request in an entry and go on with the entry; whether it does.
    fn give_away(self: &Arc<Self>, slot: &Arc<Slot>) -> bool {
        let (tell, told) = channel();
        let started = self.clone().spawn(Start::Given(slot.clone(), tell));
        let given = started.is_ok() && told.recv().is_ok();
        if given {
            let less = |n: usize| n.checked_sub(1);
            // Those of absent cores are not counted.
            let _ = self.ring.spare[self.index].fetch_update(SeqCst, SeqCst, less);
        }
        given
    }

    /// Does something on the core of this lane's queue, if it may run there.
    fn at_home<T>(&self, work: impl FnOnce() -> T) -> T {
        // Not for good: a thread that is started here may run anywhere.
        let _ = sys::bind_to_core(self.ring.queues[self.index][0] as usize);
        let done = work();
        let _ = sys::bind_to(&self.ring.home);
        done
    }

    /// What a new thread begins with: entries of its own, or one taken over. None: there is nothing to serve.
    fn begin(self: &Arc<Self>, device: &File, start: Start) -> io::Result<Option<Beginning>> {
        let ring = &*self.ring;
        let queues = &ring.queues[self.index];
        let own = |queues: &mut dyn Iterator<Item = &u16>| {
            let slots = queues.map(|q| Ok(Arc::new(Slot::new(*q, ring.payload)?)));
            Engine::new(device, slots.collect::<io::Result<Vec<_>>>()?)
        };
        match start {
            Start::Further => {
                // Less parallelism, and no reason to end the session.
                let Ok(mut engine) = own(&mut queues.iter().take(1)) else {
                    return Ok(None);
                };
                engine.register(0);
                // A failure comes as a completion, too.
                let _ = engine.uring.submit();
                ring.ready[self.index].fetch_add(1, SeqCst);
                self.have_those_called_that_wait();
                Ok(Some(Beginning::with(engine)))
            }
            Start::First(first) => {
                // The queue of the core is the first.
                let more = queues.iter().take(1).cycle().take(ring.first - 1);
                let mut engine = match own(&mut queues.iter().chain(more)) {
                    Ok(engine) => engine,
                    Err(e) => {
                        let _ = first.tell.send(Err(e));
                        return Ok(None);
                    }
                };
                let _ = first.tell.send(Ok(()));
                if first.word.recv().is_err() {
                    return Ok(None);
                }
                (0..engine.entries.len()).for_each(|i| engine.register(i));
                // A failure comes as a completion.
                let _ = self.at_home(|| engine.uring.submit());
                ring.ready[self.index].fetch_add(ring.first, SeqCst);
                Ok(Some(Beginning {
                    lead: true,
                    ..Beginning::with(engine)
                }))
            }
            Start::Given(slot, tell) => {
                // Without an engine nothing is told, and the one who has the entry serves the request.
                let Ok(mut engine) = Engine::new(device, vec![slot]) else {
                    return Ok(None);
                };
                engine.entries[0].taken = true;
                let _ = tell.send(());
                Ok(Some(Beginning {
                    request: true,
                    ..Beginning::with(engine)
                }))
            }
            Start::Instead(serving, slot) => {
                let engine = Engine::new(device, vec![slot]);
                // Nothing is taken over before there is something to answer with.
                let taken = engine.ok().and_then(|e| Some((serving.take_over()?, e)));
                let Some((unique, mut engine)) = taken else {
                    self.workers().take_back();
                    serving.leave();
                    return Ok(None);
                };
                engine.entries[0].taken = true;
                engine.answer(0, unique, negative(Errno(libc::EINTR)), 0);
                Ok(Some(Beginning::with(engine)))
            }
        }
    }

    /// What each entry of the calling thread serves, where those look who give requests up.
    fn servings(self: &Arc<Self>, engine: &Engine) -> Vec<Arc<Serving>> {
        let of = |entry: &Entry| {
            let (lane, slot) = (Arc::downgrade(self), entry.slot.clone());
            Arc::new(Serving::in_ring(move |serving| {
                let lane = lane.upgrade();
                if !lane.is_some_and(|l| l.replace(serving, &slot)) {
                    serving.leave();
                }
            }))
        };
        engine.entries.iter().map(of).collect()
    }

    /// Goes to the core of this lane's queue, if that is to be done now: not while other requests are served, whose callers
    /// keep the processors busy.
    fn come_home(&self, opcode: u32) {
        let core = self.ring.queues[self.index][0] as usize;
        let alone = || self.ring.pools.iter().all(|p| p.busy() == 0);
        if awake::is_on() && is_small(opcode) && sys::core_now() != core && alone() {
            // Not for good: a thread that is started here may run anywhere. A failure costs speed only.
            let _ = sys::bind_to_core(core);
            let _ = sys::bind_to(&self.ring.home);
        }
    }

    fn serve_all(self: &Arc<Self>, start: Start, reading: &AtomicBool) -> io::Result<()> {
        let Some(device) = self.ring.device.upgrade() else {
            return Ok(());
        };
        let Some(beginning) = self.begin(&device, start)? else {
            return Ok(());
        };
        let servings = self.servings(&beginning.engine);
        self.ring
            .shared
            .lock()
            .serving
            .extend(servings.iter().cloned());
        let outcome = self.serve_on(beginning, &servings, reading);
        let mut state = self.ring.shared.lock();
        let mine = |s: &Arc<Serving>| servings.iter().any(|m| Arc::ptr_eq(m, s));
        state.serving.retain(|s| !mine(s));
        outcome
    }

    fn serve_on(
        self: &Arc<Self>,
        beginning: Beginning,
        servings: &[Arc<Serving>],
        reading: &AtomicBool,
    ) -> io::Result<()> {
        let Beginning {
            mut engine,
            lead,
            request,
        } = beginning;
        let ring = &*self.ring;
        let agreed = ring.shared.agreed.get().copied().unwrap_or_default();
        let mut scratch = Scratch::new();
        let staged = RefCell::new(Vec::new());
        let (mut copied, mut blocks) = (Vec::new(), Vec::new());
        let mut pace = Pace::default();
        let mut idle_since = worker_pool::now();
        let mut refused = 0;
        let mut there = request.then(|| vec![(0, 0)]);
        loop {
            let done = match there.take() {
                Some(done) => Some(done),
                None => engine.wait(&ring.shared, reading)?,
            };
            let Some(done) = done else {
                return Ok(());
            };
            for (i, result) in done {
                match -result {
                    0 => {}
                    // The kernel had not finished INIT.
                    libc::EAGAIN if !engine.entries[i].taken && refused < 1000 => {
                        refused += 1;
                        std::thread::sleep(Duration::from_millis(1));
                        engine.register(i);
                        continue;
                    }
                    libc::ENOTCONN | libc::ECONNABORTED | libc::ECANCELED => {
                        engine.entries[i].slot.pages.done();
                        engine.alive -= 1;
                        continue;
                    }
                    // The first of a queue: everything goes through the device as before. A
                    // further one: its thread is not there.
                    _ if !engine.entries[i].taken => {
                        ring.failed.fetch_or(lead, SeqCst);
                        ring.ready[self.index].fetch_sub(1, SeqCst);
                        engine.entries[i].slot.pages.done();
                        engine.alive -= 1;
                        continue;
                    }
                    e => return Err(io::Error::from_raw_os_error(e)),
                }
                engine.entries[i].taken = true;
                if engine.alive > 1 && self.give_away(&engine.entries[i].slot) {
                    engine.alive -= 1;
                    continue;
                }
                let began = worker_pool::now();
                let (slot, serving) = (&*engine.entries[i].slot, &servings[i]);
                let request = slot.request();
                self.come_home(request.head.opcode);
                let opcode = request.head.opcode;
                if matches!(opcode, op::OPEN | op::READ | op::WRITE | op::FSYNC) {
                    ring.file.store(request.head.nodeid, SeqCst);
                }
                let class = classify(opcode);
                if class != Class::Brief {
                    let blocks = class == Class::Blocks;
                    let waited = began - idle_since;
                    let workers = self.workers();
                    workers.begin(&mut pace, began, waited, blocks).act(self);
                }
                // Another one may go on with the entry while this one still looks at the request.
                let copies = may_be_given_up(&request);
                let request = if copies {
                    request.copied(&mut copied, &mut blocks)
                } else {
                    request
                };
                interrupt::serve_for(serving);
                serving.begin(&request, began);
                let reply = Reply {
                    slot,
                    serving,
                    claimed: Cell::new(None),
                    direct: copies || request.body.is_empty(),
                    staged: &staged,
                    state: Cell::new((negative(Errno::EIO), 0)),
                };
                let unique = request.head.unique;
                ring.shared.requests.count(request.head.opcode);
                let _ = serve(&*ring.fs, &agreed, &reply, &request, &mut scratch);
                let answer = reply.finish();
                idle_since = worker_pool::now();
                if class != Class::Brief {
                    self.workers()
                        .end(&mut pace, idle_since, idle_since - began);
                }
                match answer {
                    Some((error, len)) => engine.answer(i, unique, error, len),
                    // The entry is somebody else's now.
                    None => {
                        let _ = request.changes(&mut |changed| ring.fs.outcome_unknown(changed));
                        self.workers().take_back();
                        engine.alive -= 1;
                    }
                }
            }
            if engine.alive == 0 {
                return Ok(());
            }
        }
    }
}

/// Whether a request takes about as long as it takes to wake a thread.
fn is_small(opcode: u32) -> bool {
    let moves_data = matches!(opcode, op::READ | op::WRITE | op::NOTIFY_REPLY);
    !moves_data && classify(opcode) != Class::Blocks
}

/// One entry of the kernel's and its buffers: a page with the heads, then the payload. It belongs to one thread at a time.
struct Slot {
    pages: Pages,
    /// Read by the kernel while it registers the entry.
    vectors: Box<[libc::iovec; 2]>,
    qid: u16,
    commit_id: AtomicU64,
}

// SAFETY: the pointers in `vectors` lead into `pages`, which may go from thread to thread, and are only handed to the kernel.
unsafe impl Send for Slot {}
// SAFETY: as above.
unsafe impl Sync for Slot {}

impl Slot {
    fn new(qid: u16, payload: usize) -> io::Result<Slot> {
        let pages = Pages::new(PAGE + payload)?;
        let vector = |at: usize, iov_len: usize| libc::iovec {
            iov_base: pages.at(at).cast(),
            iov_len,
        };
        let vectors = Box::new([vector(0, abi::URING_HEADERS), vector(PAGE, payload)]);
        Ok(Slot {
            pages,
            vectors,
            qid,
            commit_id: AtomicU64::new(0),
        })
    }

    /// The request in the buffers. Only between its completion and [`Engine::answer`].
    fn request(&self) -> Message<'_> {
        let heads = self.pages.bytes(0, abi::URING_HEADERS);
        let ent = abi::UringEntInOut::read_from_prefix(&heads[abi::URING_ENT..]);
        let ent = ent.map(|(e, _)| e).unwrap_or_default();
        let head = abi::InHeader::read_from_prefix(heads);
        self.commit_id.store(ent.commit_id, SeqCst);
        Message {
            head: head.map(|(h, _)| h).unwrap_or_default(),
            op: Some(&heads[abi::URING_OP_IN..abi::URING_ENT]),
            body: self.pages.bytes(PAGE, ent.payload_sz as usize),
            blocks: &[],
        }
    }
}

/// Takes the answer to the request in a slot.
struct Reply<'a> {
    slot: &'a Slot,
    /// The request has nothing in the payload buffer, so the answer can be written there at once.
    direct: bool,
    staged: &'a RefCell<Vec<u8>>,
    serving: &'a Serving,
    /// Whether the entry is still ours to answer by, once that is settled.
    claimed: Cell<Option<bool>>,
    /// Error, and bytes of payload.
    state: Cell<(i32, usize)>,
}

impl Reply<'_> {
    /// Settles who answers, before anything is written.
    fn claim(&self) -> io::Result<()> {
        let mine = self.claimed.get().unwrap_or_else(|| self.serving.claim());
        self.claimed.set(Some(mine));
        if mine {
            return Ok(());
        }
        Err(io::ErrorKind::NotFound.into())
    }

    fn put<'p>(&self, len: usize, each: impl FnOnce(&mut dyn FnMut(&'p [u8]))) -> io::Result<()> {
        self.claim()?;
        if len > self.slot.pages.len() - PAGE {
            return Err(io::ErrorKind::InvalidData.into());
        }
        if self.direct {
            let mut at = PAGE;
            each(&mut |p| {
                self.slot.pages.write(at, p);
                at += p.len();
            });
        } else {
            let mut staged = self.staged.borrow_mut();
            staged.clear();
            each(&mut |p| staged.extend_from_slice(p));
        }
        self.state.set((0, len));
        Ok(())
    }

    /// The request is not looked at any more. None: somebody else has answered.
    fn finish(self) -> Option<(i32, usize)> {
        self.claim().ok()?;
        let (error, len) = self.state.get();
        if !self.direct && error == 0 && len > 0 {
            self.slot.pages.write(PAGE, &self.staged.borrow()[..len]);
        }
        Some((error, len))
    }
}

impl Answer for Reply<'_> {
    fn ok(&self, _: u64, parts: &[&[u8]]) -> io::Result<()> {
        let len = parts.iter().map(|p| p.len()).sum();
        self.put(len, |put| parts.iter().for_each(|p| put(p)))
    }

    fn err(&self, _: u64, e: Errno) -> io::Result<()> {
        self.claim()?;
        self.state.set((negative(e), 0));
        Ok(())
    }

    fn data(&self, _: u64, data: &ReadBuf) -> io::Result<()> {
        self.put(data.len(), |put| data.each(put))
    }
}

/// The ring of a thread.
struct Engine {
    // Before the slots: the kernel lets go of them first.
    uring: IoUring<squeue::Entry128, cqueue::Entry>,
    entries: Vec<Entry>,
    /// Entries that the kernel has not given back and nobody has taken over.
    alive: usize,
}

struct Entry {
    slot: Arc<Slot>,
    /// The kernel has accepted it.
    taken: bool,
}

impl Engine {
    fn new(device: &File, slots: Vec<Arc<Slot>>) -> io::Result<Engine> {
        let uring = IoUring::<squeue::Entry128, cqueue::Entry>::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .build(slots.len().next_power_of_two() as u32)?;
        uring.submitter().register_files(&[device.as_raw_fd()])?;
        Ok(Engine {
            uring,
            alive: slots.len(),
            entries: slots
                .into_iter()
                .map(|slot| Entry { slot, taken: false })
                .collect(),
        })
    }

    fn push(&mut self, i: usize, cmd_op: u32) {
        let slot = &self.entries[i].slot;
        let mut cmd = [0; 80];
        let req = abi::UringCmdReq {
            flags: 0,
            commit_id: slot.commit_id.load(SeqCst),
            qid: slot.qid,
            padding: [0; 6],
        };
        cmd[..24].copy_from_slice(req.as_bytes());
        let mut entry = opcode::UringCmd80::new(types::Fixed(0), cmd_op)
            .cmd(cmd)
            .addr(Some(slot.vectors.as_ptr() as u64))
            .build()
            .user_data(i as u64);
        const _: () = assert!(size_of::<squeue::Entry128>() == 128);
        // SAFETY: an Entry128 is the kernel's structure (repr(C)), all of it integers; its `len`
        // are the four bytes at 24, which the library has no method for.
        unsafe {
            let len = std::ptr::from_mut(&mut entry).cast::<u8>().add(24);
            len.cast::<u32>().write(2);
        }
        // SAFETY: the buffers and vectors belong to the slot, which lives as long as the kernel may
        // use them (see Pages), and there is room: a slot has at most one command under way.
        unsafe {
            let _ = self.uring.submission().push(&entry);
        }
    }

    fn register(&mut self, i: usize) {
        self.entries[i].slot.commit_id.store(0, SeqCst);
        self.push(i, abi::URING_CMD_REGISTER);
    }

    /// Answers what is in a slot, which then waits for its next request.
    fn answer(&mut self, i: usize, unique: u64, error: i32, len: usize) {
        let slot = &self.entries[i].slot;
        let head = abi::OutHeader {
            len: (16 + len) as u32,
            error,
            unique,
        };
        let ent = abi::UringEntInOut {
            commit_id: slot.commit_id.load(SeqCst),
            payload_sz: len as u32,
            ..Default::default()
        };
        slot.pages.write(0, head.as_bytes());
        slot.pages.write(abi::URING_ENT, ent.as_bytes());
        self.push(i, abi::URING_CMD_COMMIT_AND_FETCH);
    }

    /// Sends what is to be sent and waits for requests: slots and results. None: the session is to
    /// stop.
    fn wait(
        &mut self,
        shared: &Shared,
        reading: &AtomicBool,
    ) -> io::Result<Option<Vec<(usize, i32)>>> {
        loop {
            reading.store(true, SeqCst);
            let stop = shared.stop.load(SeqCst);
            let entered = match stop {
                true => self.uring.submit(),
                false => self.uring.submit_and_wait(1),
            };
            reading.store(false, SeqCst);
            if stop {
                return Ok(None);
            }
            if let Err(e) = entered {
                match e.raw_os_error() {
                    Some(libc::EINTR | libc::EAGAIN | libc::EBUSY) => {}
                    _ => return Err(e),
                }
            }
            let done: Vec<_> = self
                .uring
                .completion()
                .map(|c| (c.user_data() as usize, c.result()))
                .collect();
            if !done.is_empty() {
                return Ok(Some(done));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lane_for_each_core_that_is_there() {
        assert_eq!(cores("0-1\n"), [0, 1]);
        assert_eq!(cores("0,2-4"), [0, 2, 3, 4]);
        assert_eq!(cores(""), [0usize; 0]);
        assert_eq!(lanes(&[0, 1], &[0, 1]), [vec![0], vec![1]]);
        assert_eq!(lanes(&[0, 1, 2, 3], &[1, 2]), [vec![1, 0, 3], vec![2]]);
        assert_eq!(lanes(&[0, 1], &[]), [vec![0, 1]]);
    }

    #[test]
    fn threads_of_all_mounts_are_limited() {
        let a = Share::take(MOST_FIRST / 2).unwrap();
        assert!(Share::take(MOST_FIRST).is_none());
        drop(a);
    }
}
