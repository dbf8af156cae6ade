//! An environment without machine: disks in memory that can fail, a clock that only steps by hand,
//! repeatable "random" numbers.

use crate::lock;
use base::{Error, Kind, Result};
use env::{Access, Clock, Cpu, Disk, Disks, Env, Geometry, Host, Op, Rng};
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

const CHUNK: u64 = 64 << 10;

/// What reached one of several disks.
#[derive(Clone, Debug)]
pub enum Event {
    Write {
        disk: usize,
        offset: u64,
        data: base::Block,
    },
    /// A flush that ended here; it covers what was written before event number `begun`.
    Flush { disk: usize, begun: usize },
}

/// Everything that reached a set of disks, in order; for pulling the plug afterwards.
#[derive(Default)]
pub struct Journal(Mutex<Vec<Event>>);

impl Journal {
    pub fn len(&self) -> usize {
        lock(&self.0).len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What happened so far; the journal begins anew.
    pub fn take(&self) -> Vec<Event> {
        std::mem::take(&mut lock(&self.0))
    }
}

/// A sparse disk in memory.
pub struct MemDisk {
    chunks: Mutex<BTreeMap<u64, Arc<Vec<u8>>>>,
    /// Where writes and flushes are noted, and under which number.
    journal: Mutex<Option<(Arc<Journal>, usize)>>,
    /// How long a flush takes, microseconds of the real clock.
    pub flush_time: AtomicU64,
    /// Writes and flushes that still work; all later ones fail. Negative: no limit.
    pub left: AtomicI64,
    size: AtomicU64,
    /// Logical and physical sector size.
    pub logical_sector: AtomicU32,
    pub physical_sector: AtomicU32,
    /// Every read fails.
    pub fail_reads: AtomicBool,
    /// Every write fails.
    pub fail_writes: AtomicBool,
    pub fail_flush: AtomicBool,
    /// It cannot be opened.
    pub gone: AtomicBool,
    /// Reads that touch these byte ranges fail, until the range is written.
    pub bad_ranges: Mutex<base::RangeSet>,
    pub flushes: AtomicU64,
    /// Transfers, reads and writes.
    pub reads: AtomicU64,
    pub writes: AtomicU64,
    open_exclusive: AtomicU64,
}

impl MemDisk {
    pub fn new(size: u64) -> Arc<MemDisk> {
        Arc::new(MemDisk {
            chunks: Mutex::new(BTreeMap::new()),
            journal: Mutex::new(None),
            flush_time: AtomicU64::new(0),
            left: AtomicI64::new(-1),
            size: AtomicU64::new(size),
            logical_sector: AtomicU32::new(512),
            physical_sector: AtomicU32::new(512),
            fail_reads: AtomicBool::new(false),
            fail_writes: AtomicBool::new(false),
            fail_flush: AtomicBool::new(false),
            gone: AtomicBool::new(false),
            bad_ranges: Mutex::new(base::RangeSet::new()),
            flushes: AtomicU64::new(0),
            reads: AtomicU64::new(0),
            writes: AtomicU64::new(0),
            open_exclusive: AtomicU64::new(0),
        })
    }

    /// A disk of the same size and content, without faults; shares memory until one of them changes.
    pub fn fork(&self) -> Arc<MemDisk> {
        let new = MemDisk::new(self.size.load(Relaxed));
        *lock(&new.chunks) = lock(&self.chunks).clone();
        new.logical_sector
            .store(self.logical_sector.load(Relaxed), Relaxed);
        new.physical_sector
            .store(self.physical_sector.load(Relaxed), Relaxed);
        new
    }

    /// From now on every write and flush that works is noted as one of disk `number`.
    pub fn record(&self, journal: &Arc<Journal>, number: usize) {
        *lock(&self.journal) = Some((journal.clone(), number));
    }

    fn note(&self, event: impl FnOnce(usize) -> Event) {
        if let Some((journal, number)) = &*lock(&self.journal) {
            lock(&journal.0).push(event(*number));
        }
    }

    /// Whether the disk is worn out ([`MemDisk::left`]).
    fn worn_out(&self) -> bool {
        let one_less = |n: i64| if n > 0 { Some(n - 1) } else { None };
        match self.left.load(Relaxed) {
            n if n < 0 => false,
            _ => self.left.fetch_update(Relaxed, Relaxed, one_less).is_err(),
        }
    }

    /// All that was written, without the holes: `(offset, bytes)`.
    pub fn for_each_chunk(&self, f: &mut dyn FnMut(u64, &[u8])) {
        for (i, c) in lock(&self.chunks).iter() {
            f(i * CHUNK, c);
        }
    }

    pub fn resize(&self, size: u64) {
        self.size.store(size, Relaxed);
    }

    fn check(&self, offset: u64, len: usize) -> Result<()> {
        let sector = u64::from(self.logical_sector.load(Relaxed));
        if offset % sector != 0 || len as u64 % sector != 0 {
            return Err(Error::new(Kind::Invalid, "not in sectors"));
        }
        match offset.checked_add(len as u64) {
            Some(end) if end <= self.size.load(Relaxed) => Ok(()),
            _ => Err(Error::new(Kind::Io, "past the end")),
        }
    }

    /// Reads without faults and rules.
    pub fn peek(&self, offset: u64, buf: &mut [u8]) {
        let chunks = lock(&self.chunks);
        let mut done = 0;
        while done < buf.len() {
            let at = offset + done as u64;
            let (index, skip) = (at / CHUNK, (at % CHUNK) as usize);
            let n = (buf.len() - done).min(CHUNK as usize - skip);
            match chunks.get(&index) {
                Some(c) => buf[done..done + n].copy_from_slice(&c[skip..skip + n]),
                None => buf[done..done + n].fill(0),
            }
            done += n;
        }
    }

    /// Writes without faults and rules.
    pub fn poke(&self, offset: u64, buf: &[u8]) {
        let mut chunks = lock(&self.chunks);
        let mut done = 0;
        while done < buf.len() {
            let at = offset + done as u64;
            let (index, skip) = (at / CHUNK, (at % CHUNK) as usize);
            let n = (buf.len() - done).min(CHUNK as usize - skip);
            let chunk = chunks
                .entry(index)
                .or_insert_with(|| Arc::new(vec![0; CHUNK as usize]));
            Arc::make_mut(chunk)[skip..skip + n].copy_from_slice(&buf[done..done + n]);
            done += n;
        }
    }

    /// Inverts every byte that was ever written from `offset` (rounded down to 64 KiB) on.
    pub fn corrupt_written(&self, offset: u64) {
        for c in lock(&self.chunks).range_mut(offset / CHUNK..) {
            Arc::make_mut(c.1).iter_mut().for_each(|x| *x = !*x);
        }
    }

    /// Inverts every byte of a range.
    pub fn corrupt(&self, offset: u64, len: usize) {
        let mut b = vec![0; len];
        self.peek(offset, &mut b);
        b.iter_mut().for_each(|x| *x = !*x);
        self.poke(offset, &b);
    }
}

fn injected() -> Error {
    Error::new(Kind::Io, "injected fault")
}

impl Disk for MemDisk {
    fn geometry(&self) -> Geometry {
        Geometry {
            size: self.size.load(Relaxed),
            logical_sector: self.logical_sector.load(Relaxed),
            physical_sector: self.physical_sector.load(Relaxed),
            is_block: false,
            can_discard: true,
        }
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.reads.fetch_add(1, Relaxed);
        self.check(offset, buf.len())?;
        let end = offset + buf.len() as u64;
        if self.fail_reads.load(Relaxed) || lock(&self.bad_ranges).overlaps(offset, end) {
            return Err(injected());
        }
        self.peek(offset, buf);
        Ok(())
    }

    fn write(&self, offset: u64, buf: &[u8]) -> Result<()> {
        self.writes.fetch_add(1, Relaxed);
        self.check(offset, buf.len())?;
        if self.fail_writes.load(Relaxed) || self.worn_out() {
            return Err(injected());
        }
        lock(&self.bad_ranges).remove(offset, offset + buf.len() as u64);
        self.poke(offset, buf);
        self.note(|disk| Event::Write {
            disk,
            offset,
            data: Arc::new(buf.to_vec()),
        });
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        self.flushes.fetch_add(1, Relaxed);
        if self.fail_flush.load(Relaxed) || self.worn_out() {
            return Err(injected());
        }
        let begun = lock(&self.journal).as_ref().map_or(0, |(j, _)| j.len());
        match self.flush_time.load(Relaxed) {
            0 => {}
            t => std::thread::sleep(std::time::Duration::from_micros(t)),
        }
        self.note(|disk| Event::Flush { disk, begun });
        Ok(())
    }

    fn batch(&self, ops: Vec<Op>) -> Vec<(Op, Result<()>)> {
        ops.into_iter()
            .map(|mut op| {
                let r = match &mut op {
                    Op::Read { offset, buf } => self.read(*offset, buf),
                    Op::Write { offset, bufs } => {
                        let all: Vec<u8> = bufs.iter().flat_map(|b| b.iter().copied()).collect();
                        self.write(*offset, &all)
                    }
                };
                (op, r)
            })
            .collect()
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.check(offset, len as usize)?;
        self.poke(offset, &vec![0; len as usize]);
        Ok(())
    }
}

/// Disks by path.
#[derive(Default)]
pub struct MemDisks {
    disks: Mutex<HashMap<String, Arc<MemDisk>>>,
}

impl MemDisks {
    pub fn add(&self, path: &str, size: u64) -> Arc<MemDisk> {
        let d = MemDisk::new(size);
        self.put(path, d.clone());
        d
    }

    /// The same disk may have several paths.
    pub fn put(&self, path: &str, disk: Arc<MemDisk>) {
        lock(&self.disks).insert(path.to_string(), disk);
    }

    pub fn get(&self, path: &str) -> Option<Arc<MemDisk>> {
        lock(&self.disks).get(path).cloned()
    }

    /// All paths, sorted.
    pub fn paths(&self) -> Vec<String> {
        let mut all: Vec<String> = lock(&self.disks).keys().cloned().collect();
        all.sort();
        all
    }
}

/// A disk opened exclusively, until dropped.
struct Held(Arc<MemDisk>);

impl Drop for Held {
    fn drop(&mut self) {
        self.0.open_exclusive.fetch_sub(1, Relaxed);
    }
}

impl Disk for Held {
    fn geometry(&self) -> Geometry {
        self.0.geometry()
    }
    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.0.read(offset, buf)
    }
    fn write(&self, offset: u64, buf: &[u8]) -> Result<()> {
        self.0.write(offset, buf)
    }
    fn flush(&self) -> Result<()> {
        self.0.flush()
    }
    fn batch(&self, ops: Vec<Op>) -> Vec<(Op, Result<()>)> {
        self.0.batch(ops)
    }
    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.0.discard(offset, len)
    }
}

impl Disks for MemDisks {
    fn open(&self, path: &str, access: Access) -> Result<Arc<dyn Disk>> {
        let disk = self.get(path).filter(|d| !d.gone.load(Relaxed));
        let disk = disk.ok_or_else(|| Error::new(Kind::NotFound, path))?;
        if access != Access::Exclusive {
            return Ok(disk);
        }
        if disk.open_exclusive.fetch_add(1, Relaxed) > 0 {
            disk.open_exclusive.fetch_sub(1, Relaxed);
            return Err(Error::new(
                Kind::Busy,
                format!("{path}: device or resource busy"),
            ));
        }
        Ok(Arc::new(Held(disk)))
    }
}

/// A clock that stands still unless told.
#[derive(Default)]
pub struct ManualClock {
    pub seconds: AtomicI64,
    pub monotonic: AtomicU64,
}

impl Clock for ManualClock {
    fn now(&self) -> (i64, u32) {
        (self.seconds.load(Relaxed), 0)
    }
    fn monotonic_ns(&self) -> u64 {
        self.monotonic.load(Relaxed)
    }
}

/// SplitMix64 from a seed.
pub struct SeededRng(AtomicU64);

impl SeededRng {
    pub fn new(seed: u64) -> SeededRng {
        SeededRng(AtomicU64::new(seed))
    }

    pub fn next(&self) -> u64 {
        const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
        let mut z = self.0.fetch_add(STEP, Relaxed).wrapping_add(STEP);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n` (0 for 0).
    pub fn below(&self, n: u64) -> u64 {
        self.next() % n.max(1)
    }
}

impl Rng for SeededRng {
    fn fill(&self, buf: &mut [u8]) {
        for c in buf.chunks_mut(8) {
            let b = self.next().to_le_bytes();
            c.copy_from_slice(&b[..c.len()]);
        }
    }
}

/// One thread, in order.
pub struct Inline;

impl Cpu for Inline {
    fn par_for(&self, n: usize, job: &(dyn Fn(usize) + Sync)) {
        (0..n).for_each(job);
    }
}

/// A host of fixed identity.
pub struct TestHost;

impl Host for TestHost {
    fn hostid(&self) -> u64 {
        0x1234_abcd
    }
    fn hostname(&self) -> String {
        "testhost".into()
    }
}

/// An environment of the above; the disks come back for faults.
pub fn mem_env(seed: u64) -> (Env, Arc<MemDisks>) {
    let disks = Arc::new(MemDisks::default());
    let clock = ManualClock::default();
    clock.seconds.store(1_700_000_000, Relaxed);
    let env = Env {
        disks: disks.clone(),
        clock: Arc::new(clock),
        rng: Arc::new(SeededRng::new(seed)),
        host: Arc::new(TestHost),
        cpu: Arc::new(Inline),
    };
    (env, disks)
}
