//! Latencies, sizes and queue lengths of a leaf's requests, as `zpool iostat -l -q -r -w` shows them.
//!
//! A request is *queued* from when its batch is given to the device until it is sent, and *active*
//! until it ends. Which queue a request counts in depends on what it is for ([`IoClass`]).

use base::sync::MutexExt;
use env::{Request, Watch};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use std::sync::Mutex;

/// Buckets of latencies: bucket n counts 2^n to 2^(n+1)−1 ns. The last one counts all that is longer.
pub const LATENCIES: usize = 37;
/// Buckets of sizes: bucket n counts 2^n to 2^(n+1)−1 bytes, up to 16 MiB.
pub const SIZES: usize = 25;
/// Requests that are with the device for longer than this are counted as slow (`zio_slow_io_ms`).
pub const SLOW_NS: u64 = 30_000_000_000;

type Buckets<const N: usize> = [AtomicU64; N];

fn zeros<const N: usize>() -> Buckets<N> {
    std::array::from_fn(|_| AtomicU64::new(0))
}

fn bucket(n: u64, buckets: usize) -> usize {
    (n.max(1).ilog2() as usize).min(buckets - 1)
}

/// What requests are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IoClass {
    /// Somebody waits for them: demand reads, writes of the intent log.
    Sync,
    /// Reads ahead, writes of a txg.
    Async,
    /// Scrub and resilver.
    Scrub,
    /// Sequential rebuild.
    Rebuild,
    /// Copying for the removal of a top-level vdev.
    Removal,
    /// The expansion of a RAID-Z, which writes what was born in any txg.
    Expansion,
    /// What writes to free space once.
    Initialize,
}

/// Sync read, sync write, async read, async write, scrub, trim, rebuild: the order in which `zpool iostat` shows them.
pub const QUEUES: usize = 7;

impl IoClass {
    /// OpenZFS's number for it (`zio_priority`).
    pub fn priority(self, write: bool) -> u64 {
        match (self, write) {
            (IoClass::Sync, false) => 0,
            (IoClass::Sync, true) => 1,
            (IoClass::Async, false) => 2,
            (IoClass::Async, true) => 3,
            (IoClass::Scrub, _) => 4,
            (IoClass::Removal, _) => 5,
            (IoClass::Initialize, _) => 6,
            (IoClass::Rebuild | IoClass::Expansion, _) => 8,
        }
    }

    /// Number of the queue. What a scrub writes counts as asynchronous, as in OpenZFS, and what is initialized.
    /// Removals are counted with rebuilds: `zpool iostat` has no column of theirs.
    fn queue(self, write: bool) -> usize {
        match (self, write) {
            (IoClass::Sync, false) => 0,
            (IoClass::Sync, true) => 1,
            (IoClass::Async, false) => 2,
            (IoClass::Async | IoClass::Scrub | IoClass::Initialize, true) => 3,
            (IoClass::Initialize, false) => 2,
            (IoClass::Scrub, false) => 4,
            (IoClass::Rebuild | IoClass::Removal | IoClass::Expansion, _) => 6,
        }
    }
}

/// Requests of one kind.
#[derive(Debug)]
struct Queue {
    wait: Buckets<LATENCIES>,
    alone: Buckets<SIZES>,
    merged: Buckets<SIZES>,
    pending: AtomicI64,
    active: AtomicI64,
}

impl Default for Queue {
    fn default() -> Queue {
        Queue {
            wait: zeros(),
            alone: zeros(),
            merged: zeros(),
            pending: AtomicI64::new(0),
            active: AtomicI64::new(0),
        }
    }
}

/// The counters of a leaf.
#[derive(Debug)]
pub(crate) struct IoCounts {
    /// Read, write: in the queue and with the device together.
    total: [Buckets<LATENCIES>; 2],
    /// Read, write: with the device.
    disk: [Buckets<LATENCIES>; 2],
    queues: [Queue; QUEUES],
}

impl Default for IoCounts {
    fn default() -> IoCounts {
        IoCounts {
            total: [zeros(), zeros()],
            disk: [zeros(), zeros()],
            queues: Default::default(),
        }
    }
}

/// What a leaf's requests took since the pool was opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IoFigures {
    /// Read, write: `LATENCIES` buckets from when they were queued until they ended.
    pub total_wait: [Vec<u64>; 2],
    /// Read, write: the part of it with the device.
    pub disk_wait: [Vec<u64>; 2],
    /// Each queue: the part of it in the queue.
    pub queue_wait: [Vec<u64>; QUEUES],
    /// Each queue: `SIZES` buckets of requests that are one operation or a part of one.
    pub alone: [Vec<u64>; QUEUES],
    /// Each queue: the same of requests made of several operations.
    pub merged: [Vec<u64>; QUEUES],
    /// Each queue: requests that are queued and active now.
    pub now: [(u64, u64); QUEUES],
}

impl IoCounts {
    /// Requests so far that somebody waits for, or will wait for in a moment: all reads and writes of the classes
    /// [`IoClass::Sync`], and reads ahead.
    pub fn foreground(&self) -> u64 {
        let kinds = self.queues[..3].iter().flat_map(|q| [&q.alone, &q.merged]);
        let counts = kinds.flatten().map(|n| n.load(Relaxed));
        counts.fold(0, u64::wrapping_add)
    }

    /// Reads and writes that have ended so far.
    pub fn ended(&self) -> u64 {
        let kinds = self.queues.iter().flat_map(|q| [&q.alone, &q.merged]);
        let counts = kinds.flatten().map(|n| n.load(Relaxed));
        counts.fold(0, u64::wrapping_add)
    }

    /// A discard begins; call [`IoCounts::discarded`] when it has ended.
    pub fn discarding(&self) {
        self.queues[5].active.fetch_add(1, Relaxed);
    }

    /// One has ended behind `ns` nanoseconds. Neither reads nor writes: only its own queue knows of it.
    pub fn discarded(&self, bytes: u64, ns: u64) {
        let q = &self.queues[5];
        q.active.fetch_sub(1, Relaxed);
        q.alone[bucket(bytes, SIZES)].fetch_add(1, Relaxed);
        q.wait[bucket(ns, LATENCIES)].fetch_add(1, Relaxed);
    }

    /// The counts at this moment.
    pub fn figures(&self) -> IoFigures {
        fn plain<const N: usize>(b: &Buckets<N>) -> Vec<u64> {
            b.iter().map(|n| n.load(Relaxed)).collect()
        }
        let now = |n: &AtomicI64| u64::try_from(n.load(Relaxed)).unwrap_or(0);
        let of = |f: &dyn Fn(&Queue) -> Vec<u64>| std::array::from_fn(|q| f(&self.queues[q]));
        IoFigures {
            total_wait: std::array::from_fn(|d| plain(&self.total[d])),
            disk_wait: std::array::from_fn(|d| plain(&self.disk[d])),
            queue_wait: of(&|q| plain(&q.wait)),
            alone: of(&|q| plain(&q.alone)),
            merged: of(&|q| plain(&q.merged)),
            now: std::array::from_fn(|q| {
                let q = &self.queues[q];
                (now(&q.pending), now(&q.active))
            }),
        }
    }
}

/// Counts what becomes of one batch. When it is dropped the batch is over: what was queued and never
/// ended (a device that broke) is neither queued nor active any more.
pub(crate) struct Counting<'a> {
    counts: &'a IoCounts,
    slow: &'a AtomicU64,
    /// Slow operations of the batch, and the nanoseconds they took.
    pub slow_ops: Mutex<Vec<(usize, u64)>>,
    class: IoClass,
    /// Whether this operation of the batch was merged from several before.
    merged: &'a (dyn Fn(usize) -> bool + Sync),
    /// Reads and writes of this batch that are pending and active.
    here: [[AtomicI64; 2]; 2],
}

impl<'a> Counting<'a> {
    /// Counts for one batch of requests of `class`; `slow` counts those longer than [`SLOW_NS`].
    pub fn new(
        counts: &'a IoCounts,
        slow: &'a AtomicU64,
        class: IoClass,
        merged: &'a (dyn Fn(usize) -> bool + Sync),
    ) -> Counting<'a> {
        Counting {
            counts,
            slow,
            slow_ops: Mutex::default(),
            class,
            merged,
            here: Default::default(),
        }
    }

    fn queue(&self, write: bool) -> &Queue {
        &self.counts.queues[self.class.queue(write)]
    }

    fn step(&self, write: bool, pending: i64, active: i64) {
        let q = self.queue(write);
        let here = &self.here[usize::from(write)];
        for (all, own, by) in [
            (&q.pending, &here[0], pending),
            (&q.active, &here[1], active),
        ] {
            if by != 0 {
                all.fetch_add(by, Relaxed);
                own.fetch_add(by, Relaxed);
            }
        }
    }
}

impl Watch for Counting<'_> {
    fn queued(&self, write: bool, n: u64) {
        self.step(write, i64::try_from(n).unwrap_or(i64::MAX), 0);
    }

    fn started(&self, write: bool) {
        self.step(write, -1, 1);
    }

    fn ended(&self, r: &Request) {
        self.step(r.write, 0, -1);
        let q = self.queue(r.write);
        let sizes = match r.merged || (self.merged)(r.op) {
            true => &q.merged,
            false => &q.alone,
        };
        sizes[bucket(r.bytes, SIZES)].fetch_add(1, Relaxed);
        let Some((waited, took)) = r.times else {
            return;
        };
        let side = usize::from(r.write);
        let count = |b: &Buckets<LATENCIES>, ns| b[bucket(ns, LATENCIES)].fetch_add(1, Relaxed);
        count(&q.wait, waited);
        count(&self.counts.disk[side], took);
        count(&self.counts.total[side], waited.saturating_add(took));
        if took >= SLOW_NS {
            self.slow.fetch_add(1, Relaxed);
            self.slow_ops.acquire().push((r.op, took));
        }
    }
}

impl Drop for Counting<'_> {
    fn drop(&mut self) {
        for write in [false, true] {
            let [pending, active] = &self.here[usize::from(write)];
            self.step(write, -pending.load(Relaxed), -active.load(Relaxed));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(write: bool, bytes: u64, op: usize, times: Option<(u64, u64)>) -> Request {
        Request {
            write,
            bytes,
            op,
            merged: false,
            times,
        }
    }

    #[test]
    fn requests_are_counted_by_kind_size_and_time() {
        let (counts, slow) = (IoCounts::default(), AtomicU64::new(0));
        let merged = |op| op == 1;
        {
            let sync = Counting::new(&counts, &slow, IoClass::Sync, &merged);
            sync.queued(false, 3);
            sync.started(false);
            assert_eq!(counts.figures().now[0], (2, 1));
            sync.ended(&request(false, 4096, 0, Some((1, 1000))));
            sync.started(false);
            sync.ended(&request(false, 8192, 1, Some((0, SLOW_NS))));
            // The third is lost with its device.
            assert_eq!(counts.figures().now[0], (1, 0));
        }
        {
            let later = Counting::new(&counts, &slow, IoClass::Async, &merged);
            later.queued(true, 1);
            later.started(true);
            assert_eq!(counts.figures().now[3], (0, 1));
            later.ended(&request(true, 1 << 30, 0, None));
        }
        for (class, write, queue) in [
            (IoClass::Scrub, false, 4),
            (IoClass::Scrub, true, 3),
            (IoClass::Rebuild, false, 6),
            (IoClass::Rebuild, true, 6),
            (IoClass::Initialize, true, 3),
        ] {
            let scan = Counting::new(&counts, &slow, class, &merged);
            scan.queued(write, 1);
            assert_eq!(counts.figures().now[queue], (1, 0));
        }
        let f = counts.figures();
        assert_eq!(f.now, [(0, 0); QUEUES]);
        let found = |list: &[u64]| -> Vec<(usize, u64)> {
            let at = list.iter().copied().enumerate();
            at.filter(|(_, n)| *n > 0).collect()
        };
        assert_eq!(found(&f.alone[0]), [(12, 1)]);
        assert_eq!(found(&f.merged[0]), [(13, 1)]);
        assert_eq!(found(&f.alone[3]), [(SIZES - 1, 1)]);
        assert_eq!(found(&f.queue_wait[0]), [(0, 2)]);
        assert_eq!(found(&f.disk_wait[0]), [(9, 1), (34, 1)]);
        assert_eq!(found(&f.total_wait[0]), [(9, 1), (34, 1)]);
        // Nobody measured it, and nothing is made up.
        assert!(found(&f.total_wait[1]).is_empty() && found(&f.queue_wait[3]).is_empty());
        assert_eq!(slow.load(Relaxed), 1);
    }
}
