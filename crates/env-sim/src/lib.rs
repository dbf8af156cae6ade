//! The traits of `env` in memory: disks that lose, tear and misdirect writes, rot, vanish and return errors; a clock set by hand; random numbers from
//! a seed; one thread.
//!
//! 1. A run depends on the seed and on the order of the calls, and on nothing else.
//! 2. The engine starts no threads (see `env`), so the caller of its operations and syncs decides the whole schedule.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod disk;
mod origin;

use base::sync::MutexExt;
pub use disk::{Event, Journal, MemDisk};
pub use origin::{Look, Origins, Watcher, SECTOR};

use base::{Error, Kind, Result};
use env::{Access, Clock, Cpu, Disk, Disks, Env, Geometry, Host, Op, Rng};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

/// Disks by path.
#[derive(Default)]
pub struct MemDisks {
    disks: Mutex<BTreeMap<String, Arc<MemDisk>>>,
}

impl MemDisks {
    /// A new disk of `size` bytes at `path`.
    pub fn add(&self, path: &str, size: u64) -> Arc<MemDisk> {
        let d = MemDisk::new(size);
        self.put(path, d.clone());
        d
    }

    /// The same disk may have several paths.
    pub fn put(&self, path: &str, disk: Arc<MemDisk>) {
        self.disks.acquire().insert(path.to_string(), disk);
    }

    /// The disk at `path`.
    pub fn get(&self, path: &str) -> Option<Arc<MemDisk>> {
        self.disks.acquire().get(path).cloned()
    }

    /// All paths, sorted.
    pub fn paths(&self) -> Vec<String> {
        self.disks.acquire().keys().cloned().collect()
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

/// Nanoseconds of a second.
const SECOND: u64 = 1_000_000_000;

/// A clock that stands still unless told. Both its clocks pass a whole second at the same moment.
#[derive(Default)]
pub struct ManualClock {
    /// Seconds since 1970.
    pub seconds: AtomicI64,
    /// Nanoseconds of the monotonic clock.
    pub monotonic: AtomicU64,
}

impl ManualClock {
    /// Time goes by, on both clocks.
    pub fn pass(&self, ns: u64) {
        let before = self.monotonic.fetch_add(ns, Relaxed);
        let seconds = (before % SECOND + ns % SECOND) / SECOND + ns / SECOND;
        self.seconds.fetch_add(seconds as i64, Relaxed);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> (i64, u32) {
        let parts = self.monotonic.load(Relaxed) % SECOND;
        (self.seconds.load(Relaxed), parts as u32)
    }
    fn monotonic_ns(&self) -> u64 {
        self.monotonic.load(Relaxed)
    }
    fn pause(&self, _: u64) {}
}

/// SplitMix64 from a seed.
pub struct SeededRng(AtomicU64);

impl SeededRng {
    /// Equal seeds give equal numbers.
    pub fn new(seed: u64) -> SeededRng {
        SeededRng(AtomicU64::new(seed))
    }

    /// The next number.
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

    fn later(&self, job: Box<dyn FnOnce() + Send>) -> bool {
        job();
        true
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

#[cfg(test)]
mod tests {
    use super::*;

    /// What a disk of four sectors holds after sectors of 1s, 2s, … were written in order.
    fn written(prepare: impl Fn(&MemDisk)) -> (Vec<u8>, Vec<bool>) {
        let d = MemDisk::new(1 << 20);
        prepare(&d);
        let worked = (0..4u8)
            .map(|i| d.write(u64::from(i) * 512, &[i + 1; 512]).is_ok())
            .collect();
        let mut b = vec![0; 4 * 512];
        d.peek(0, &mut b);
        (b.iter().step_by(512).copied().collect(), worked)
    }

    #[test]
    fn writes_that_lie_and_fail() {
        let all = vec![true; 4];
        let good = vec![1, 2, 3, 4];
        assert_eq!(written(|_| ()), (good, all.clone()));
        let phantom = |d: &MemDisk| d.phantom.store(2, Relaxed);
        assert_eq!(written(phantom), (vec![0, 0, 3, 4], all.clone()));
        let elsewhere = |d: &MemDisk| *d.misdirect.acquire() = Some(512 * 3 + 7);
        assert_eq!(written(elsewhere), (vec![0, 2, 3, 4], all.clone()));
        let back = |d: &MemDisk| *d.misdirect.acquire() = Some(-9000);
        assert_eq!(written(back), (vec![1, 2, 3, 4], all));
        let failing = |d: &MemDisk| d.write_errors.store(1, Relaxed);
        assert_eq!(
            written(failing),
            (vec![0, 2, 3, 4], vec![false, true, true, true])
        );
        let dead = |d: &MemDisk| d.dead.store(true, Relaxed);
        assert_eq!(written(dead), (vec![0; 4], vec![false; 4]));
    }

    #[test]
    fn reads_fail_and_time_goes_by() {
        let d = MemDisk::new(1 << 20);
        let clock = Arc::new(ManualClock::default());
        d.stall(&clock, 400_000_000);
        d.read_errors.store(1, Relaxed);
        let mut b = [0; 512];
        assert!(d.read(0, &mut b).is_err());
        assert!(d.read(0, &mut b).is_ok());
        d.flush().unwrap();
        assert_eq!((clock.now().0, clock.monotonic_ns()), (1, 1_200_000_000));
    }
}
