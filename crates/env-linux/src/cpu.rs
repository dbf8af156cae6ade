//! Pools of threads. The core starts no threads; they all live here.

use base::sync::{CondvarExt, MutexExt};
use std::any::Any;
use std::collections::VecDeque;
use std::panic::{catch_unwind, resume_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

/// A borrowed job whose lifetime is vouched for by [`CpuPool::par_for`].
struct JobPtr(*const (dyn Fn(usize) + Sync));
// SAFETY: the pointee is Sync, and only shared references to it are made.
unsafe impl Send for JobPtr {}
unsafe impl Sync for JobPtr {}

/// One call of `par_for`.
struct Task {
    job: JobPtr,
    n: usize,
    next: AtomicUsize,
    /// Indices finished, and the payload of the first panic.
    done: Mutex<(usize, Option<Box<dyn Any + Send>>)>,
    finished: Condvar,
}

impl Task {
    /// Runs indices until none is left to claim.
    fn work(&self) {
        loop {
            let i = self.next.fetch_add(1, Ordering::Relaxed);
            if i >= self.n {
                return;
            }
            // SAFETY: index `i < n` is claimed but not yet counted as done, so `par_for` has not
            // returned and the closure it borrows is alive.
            let job = unsafe { &*self.job.0 };
            let result = catch_unwind(AssertUnwindSafe(|| job(i)));
            let mut done = self.done.acquire();
            done.0 += 1;
            if let Err(p) = result {
                done.1.get_or_insert(p);
            }
            if done.0 == self.n {
                self.finished.notify_all();
            }
        }
    }

    fn exhausted(&self) -> bool {
        self.next.load(Ordering::Relaxed) >= self.n
    }
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    wake: Condvar,
}

#[derive(Default)]
struct Queue {
    tasks: Vec<Arc<Task>>,
    /// Workers there are.
    workers: usize,
    /// Workers that wait and are not called yet.
    idle: usize,
    /// Calls that no waiting worker has answered yet.
    calls: usize,
    /// Since when workers have been at their tasks.
    busy: Vec<(ThreadId, Instant)>,
    stop: bool,
}

/// A pool whose callers take part in their own work; calls may nest. Threads start when a call can
/// use them.
pub struct CpuPool {
    shared: Arc<Shared>,
    /// Workers for one call, and in all unless some are stuck.
    each: usize,
    /// Workers at most.
    most: usize,
    /// How long a worker is at a task before it counts as stuck.
    patience: Duration,
    /// How long a worker waits for work before it ends.
    linger: Option<Duration>,
    started: Mutex<Vec<std::thread::JoinHandle<()>>>,
    name: &'static str,
}

/// Most workers of an elastic pool.
const MOST_WORKERS: usize = 256;
/// How long a worker of an elastic pool waits for work.
const LINGER: Duration = Duration::from_secs(20);
/// How long a worker is at a task before it is replaced.
const PATIENCE: Duration = Duration::from_secs(1);

impl CpuPool {
    /// `workers` threads beside the caller's.
    pub fn new(name: &'static str, workers: usize) -> CpuPool {
        CpuPool {
            shared: Arc::new(Shared::default()),
            each: workers,
            most: workers,
            patience: PATIENCE,
            linger: None,
            started: Mutex::new(Vec::new()),
            name,
        }
    }

    /// For jobs that wait for devices: `each` threads beside the caller's, not counting those that
    /// hang at a device that does not answer (up to `MOST_WORKERS`).
    pub fn elastic(name: &'static str, each: usize) -> CpuPool {
        let mut pool = CpuPool::new(name, each);
        pool.most = MOST_WORKERS.max(each);
        pool.linger = Some(LINGER);
        pool
    }

    /// One thread per core, the caller being one of them (but at least one worker, so that a
    /// blocked caller does not stop everything).
    pub fn with_cores() -> CpuPool {
        let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
        CpuPool::new("zfs-cpu", cores.saturating_sub(1).max(1))
    }

    /// Puts a task in the queue and calls `helpers` workers; starts those that are missing. A thread
    /// that cannot be started is done without.
    fn call(&self, task: Arc<Task>, helpers: usize) {
        let mut queue = self.shared.queue.acquire();
        queue.tasks.push(task);
        let called = helpers.min(queue.idle);
        queue.idle -= called;
        queue.calls += called;
        let stuck = queue
            .busy
            .iter()
            .filter(|(_, since)| since.elapsed() >= self.patience);
        let room = (self.each + stuck.count()).min(self.most);
        let missing = (helpers - called).min(room.saturating_sub(queue.workers));
        queue.workers += missing;
        drop(queue);
        (0..called).for_each(|_| self.shared.wake.notify_one());
        if missing == 0 {
            return;
        }
        let mut started = self.started.acquire();
        started.retain(|h| !h.is_finished());
        for n in 0..missing {
            let (shared, linger) = (self.shared.clone(), self.linger);
            let spawned = std::thread::Builder::new()
                .name(self.name.to_string())
                .spawn(move || worker(&shared, linger));
            match spawned {
                Ok(h) => started.push(h),
                Err(_) => {
                    self.shared.queue.acquire().workers -= missing - n;
                    break;
                }
            }
        }
    }
}

fn worker(shared: &Shared, linger: Option<Duration>) {
    let me = std::thread::current().id();
    let mut queue = shared.queue.acquire();
    loop {
        queue.tasks.retain(|t| !t.exhausted());
        // Newest first: nested calls finish what their callers wait for.
        if let (false, Some(task)) = (queue.stop, queue.tasks.last().cloned()) {
            queue.busy.push((me, Instant::now()));
            drop(queue);
            task.work();
            queue = shared.queue.acquire();
            queue.busy.retain(|(id, _)| *id != me);
            continue;
        }
        queue.idle += 1;
        let begin = Instant::now();
        while queue.calls == 0 && !queue.stop {
            queue = match linger.map(|l| l.saturating_sub(begin.elapsed())) {
                Some(Duration::ZERO) => break,
                Some(left) => match shared.wake.wait_timeout(queue, left) {
                    Ok((q, _)) => q,
                    Err(e) => e.into_inner().0,
                },
                None => shared.wake.wait_acquire(queue),
            };
        }
        if queue.stop {
            return;
        }
        if queue.calls == 0 {
            queue.idle -= 1;
            queue.workers -= 1;
            return;
        }
        queue.calls -= 1;
    }
}

impl env::Cpu for CpuPool {
    fn par_for(&self, n: usize, job: &(dyn Fn(usize) + Sync)) {
        let helpers = self.each.min(n.saturating_sub(1));
        if helpers == 0 {
            (0..n).for_each(job);
            return;
        }
        // SAFETY: only the lifetime is erased. `work` dereferences the pointer only for a claimed
        // index that is not yet counted in `done`, and this function returns only when all are.
        let job: *const (dyn Fn(usize) + Sync) = unsafe {
            std::mem::transmute::<&(dyn Fn(usize) + Sync), &'static (dyn Fn(usize) + Sync)>(job)
        };
        let task = Arc::new(Task {
            job: JobPtr(job),
            n,
            next: AtomicUsize::new(0),
            done: Mutex::new((0, None)),
            finished: Condvar::new(),
        });
        self.call(task.clone(), helpers);
        task.work();
        let mut done = task.done.acquire();
        while done.0 < n {
            done = task.finished.wait_acquire(done);
        }
        let panic = done.1.take();
        drop(done);
        let mut queue = self.shared.queue.acquire();
        queue.tasks.retain(|t| !Arc::ptr_eq(t, &task));
        drop(queue);
        if let Some(p) = panic {
            resume_unwind(p);
        }
    }
}

/// Jobs of which nobody waits for the end, and the threads for them.
struct Errands {
    shared: Arc<ErrandShared>,
    /// Whether the threads have been started.
    started: AtomicBool,
}

#[derive(Default)]
struct ErrandShared {
    queue: Mutex<VecDeque<Box<dyn FnOnce() + Send>>>,
    wake: Condvar,
    stop: AtomicBool,
}

/// Most errands that wait; more are refused, since they would come too late.
const MOST_ERRANDS: usize = 128;
/// Threads for errands, which mostly wait for devices.
const ERRAND_THREADS: usize = 4;

impl Errands {
    fn new() -> Errands {
        Errands {
            shared: Arc::default(),
            started: AtomicBool::new(false),
        }
    }

    fn add(&self, job: Box<dyn FnOnce() + Send>) -> bool {
        if !self.started.swap(true, Ordering::Relaxed) {
            for _ in 0..ERRAND_THREADS {
                let shared = self.shared.clone();
                // Without threads errands wait until the queue is full, and are then refused.
                let _ = std::thread::Builder::new()
                    .name("zfs-ahead".to_string())
                    .spawn(move || errands(&shared));
            }
        }
        let mut queue = self.shared.queue.acquire();
        if queue.len() >= MOST_ERRANDS {
            return false;
        }
        queue.push_back(job);
        drop(queue);
        self.shared.wake.notify_one();
        true
    }
}

fn errands(shared: &ErrandShared) {
    let mut queue = shared.queue.acquire();
    while !shared.stop.load(Ordering::Relaxed) {
        match queue.pop_front() {
            Some(job) => {
                drop(queue);
                // Nobody waits for it, and the next one has nothing to do with it.
                let _ = catch_unwind(AssertUnwindSafe(job));
                queue = shared.queue.acquire();
            }
            None => {
                queue = shared.wake.wait_acquire(queue);
            }
        }
    }
}

impl Drop for Errands {
    /// The threads are not waited for: one of them may be who drops this.
    fn drop(&mut self) {
        let mut queue = self.shared.queue.acquire();
        self.shared.stop.store(true, Ordering::Relaxed);
        let left = std::mem::take(&mut *queue);
        self.shared.wake.notify_all();
        drop(queue);
        drop(left);
    }
}

/// The pool for computing, one for waiting, and threads for errands.
pub struct LinuxCpu {
    cores: CpuPool,
    waiting: CpuPool,
    errands: Errands,
}

impl LinuxCpu {
    /// Starts the threads that compute; those that wait for devices start when they are needed.
    pub fn new() -> LinuxCpu {
        LinuxCpu {
            cores: CpuPool::with_cores(),
            // One thread for each leaf of a wide vdev; they cost nothing while they sleep.
            waiting: CpuPool::elastic("zfs-leaf", 16),
            errands: Errands::new(),
        }
    }
}

impl Default for LinuxCpu {
    fn default() -> LinuxCpu {
        LinuxCpu::new()
    }
}

impl env::Cpu for LinuxCpu {
    fn par_for(&self, n: usize, job: &(dyn Fn(usize) + Sync)) {
        self.cores.par_for(n, job);
    }

    fn par_io(&self, n: usize, job: &(dyn Fn(usize) + Sync)) {
        base::waits::about_to_wait();
        self.waiting.par_for(n, job);
    }

    fn later(&self, job: Box<dyn FnOnce() + Send>) -> bool {
        self.errands.add(job)
    }
}

impl Drop for CpuPool {
    fn drop(&mut self) {
        {
            self.shared.queue.acquire().stop = true;
            self.shared.wake.notify_all();
        }
        for h in self.started.acquire().drain(..) {
            // A worker never panics outside of a job, whose panics go to the caller.
            let _ = h.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use env::Cpu;
    use std::sync::atomic::AtomicU64;

    #[test]
    fn every_index_once_also_nested() {
        let pool = CpuPool::new("t", 3);
        for n in [0usize, 1, 2, 3, 17, 100] {
            let hits: Vec<AtomicU64> = (0..n).map(|_| AtomicU64::new(0)).collect();
            pool.par_for(n, &|i| {
                let inner = AtomicU64::new(0);
                pool.par_for(5, &|j| {
                    inner.fetch_add(j as u64, Ordering::Relaxed);
                });
                assert_eq!(inner.load(Ordering::Relaxed), 10);
                hits[i].fetch_add(1, Ordering::Relaxed);
            });
            assert!(hits.iter().all(|h| h.load(Ordering::Relaxed) == 1));
        }
    }

    #[test]
    fn many_callers_share_the_pool() {
        let pool = CpuPool::new("t", 2);
        let sum = AtomicU64::new(0);
        std::thread::scope(|s| {
            for _ in 0..4 {
                s.spawn(|| {
                    for _ in 0..200 {
                        pool.par_for(7, &|i| {
                            sum.fetch_add(i as u64, Ordering::Relaxed);
                        });
                    }
                });
            }
        });
        assert_eq!(sum.load(Ordering::Relaxed), 4 * 200 * 21);
    }

    /// Workers that hang at a device that does not answer leave others their depth.
    #[test]
    fn stuck_jobs_take_no_workers_from_other_callers() {
        let mut pool = CpuPool::elastic("t", 3);
        pool.patience = Duration::ZERO;
        let pool = Arc::new(pool);
        let gate = Arc::new((Mutex::new(false), Condvar::new()));
        let inside = Arc::new(AtomicUsize::new(0));
        let stuck: Vec<_> = (0..4)
            .map(|_| {
                let (pool, gate, inside) = (pool.clone(), gate.clone(), inside.clone());
                std::thread::spawn(move || {
                    let caller = std::thread::current().id();
                    pool.par_for(8, &|_| {
                        let own = std::thread::current().id() == caller;
                        inside.fetch_add(usize::from(own), Ordering::Relaxed);
                        let mut open = gate.0.acquire();
                        while !*open {
                            open = gate.1.wait(open).unwrap();
                        }
                    });
                })
            })
            .collect();
        let hanging = || pool.shared.queue.acquire().busy.len();
        // A caller that comes later than the one below would take its workers: newest first.
        while hanging() < 3 || inside.load(Ordering::Relaxed) < 4 {
            std::thread::yield_now();
        }
        // Ends only when all four run at once.
        let meet = std::sync::Barrier::new(4);
        pool.par_for(4, &|_| {
            meet.wait();
        });
        *gate.0.acquire() = true;
        gate.1.notify_all();
        stuck.into_iter().for_each(|t| t.join().unwrap());
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_lives_on() {
        let pool = CpuPool::new("t", 2);
        let r = catch_unwind(AssertUnwindSafe(|| {
            pool.par_for(8, &|i| {
                if i == 5 {
                    resume_unwind(Box::new("five"));
                }
            })
        }));
        assert_eq!(*r.unwrap_err().downcast::<&str>().unwrap(), "five");
        let n = AtomicUsize::new(0);
        pool.par_for(8, &|_| {
            n.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(n.load(Ordering::Relaxed), 8);
    }
}
