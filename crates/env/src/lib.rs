//! The environment of the engine, as traits: disks, time, randomness, the host's identity and other cores.
//! Crates from `vdev` upwards reach these only through the traits. `env-linux` implements them on Linux,
//! `env-sim` with a clock set by hand and disks that fail.
//!
//! The core is *passive*: it starts no thread and never sleeps on its own account. Whoever needs a
//! transaction group on disk runs the sync on its own thread (`pool::Pool::sync`), so a simulator
//! owns the whole schedule by calling operations and syncs in the order its seed says.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod partition;
mod watch;

pub use watch::{Request, Watch};

use base::Result;
use std::sync::Arc;

/// How a device is to be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// O_RDONLY; nothing is ever written.
    Read,
    /// Read and write, shared (probing).
    Write,
    /// Read and write; refused when the device or file is used by somebody else (mounted, held by
    /// another process's exclusive open or lock).
    Exclusive,
}

/// Sector sizes and kind of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Bytes; may change when the device grows.
    pub size: u64,
    /// Smallest addressable unit, bytes (power of two).
    pub logical_sector: u32,
    /// What the device says it writes atomically, bytes (power of two).
    pub physical_sector: u32,
    /// True for a block device, false for a regular file.
    pub is_block: bool,
    /// True if discards reach the medium.
    pub can_discard: bool,
}

/// One transfer of a batch.
pub enum Op {
    /// Fills `buf` from `offset`.
    Read {
        /// Bytes from the beginning of the device.
        offset: u64,
        /// As long as what is wanted.
        buf: Vec<u8>,
    },
    /// Writes the concatenation of `bufs` at `offset`.
    Write {
        /// Bytes from the beginning of the device.
        offset: u64,
        /// What is written, one after the other.
        bufs: Vec<base::Block>,
    },
}

impl Op {
    /// Whether it writes, and how many bytes.
    pub fn shape(&self) -> (bool, u64) {
        match self {
            Op::Read { buf, .. } => (false, buf.len() as u64),
            Op::Write { bufs, .. } => (true, bufs.iter().map(|b| b.len() as u64).sum()),
        }
    }
}

/// An open device or image file. All calls are synchronous; `batch` is how depth is had.
///
/// Offsets and lengths must be multiples of the logical sector for block devices; an implementation
/// accepts buffers of any memory alignment.
pub trait Disk: Send + Sync {
    /// Size and sectors.
    fn geometry(&self) -> Geometry;
    /// Reads exactly `buf.len()` bytes. A read past the end is an error.
    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()>;
    /// Writes all of `buf`. A write past the end is an error.
    fn write(&self, offset: u64, buf: &[u8]) -> Result<()>;
    /// Everything written before is on stable storage when this returns.
    fn flush(&self) -> Result<()>;
    /// Runs all transfers as parallel as the device likes, in no particular order; returns one
    /// result per op, in op order; read buffers come back filled.
    fn batch(&self, ops: Vec<Op>) -> Vec<(Op, Result<()>)>;
    /// The same, and tells what becomes of the requests. Where nothing else is known every operation
    /// is one request, without times.
    fn batch_watched(&self, ops: Vec<Op>, watch: &dyn Watch) -> Vec<(Op, Result<()>)> {
        count_untimed(self, ops, watch)
    }
    /// Tells the device that the range holds nothing of value.
    fn discard(&self, offset: u64, len: u64) -> Result<()>;
}

/// A batch of which every operation is told as one request, without times.
pub fn count_untimed<D: Disk + ?Sized>(
    disk: &D,
    ops: Vec<Op>,
    watch: &dyn Watch,
) -> Vec<(Op, Result<()>)> {
    for op in &ops {
        let (write, _) = op.shape();
        watch.queued(write, 1);
        watch.started(write);
    }
    let done = disk.batch(ops);
    for (n, (op, _)) in done.iter().enumerate() {
        let (write, bytes) = op.shape();
        watch.ended(&Request {
            write,
            bytes,
            op: n,
            merged: false,
            times: None,
        });
    }
    done
}

/// Opens devices by path.
pub trait Disks: Send + Sync {
    /// Opens a device or an image file.
    fn open(&self, path: &str, access: Access) -> Result<Arc<dyn Disk>>;
}

/// Wall clock and monotonic clock.
pub trait Clock: Send + Sync {
    /// Seconds and nanoseconds since 1970, UTC.
    fn now(&self) -> (i64, u32);
    /// Nanoseconds of a clock that never steps.
    fn monotonic_ns(&self) -> u64;
    /// Has the calling thread wait. Where time passes only when it is told to, it goes on at once.
    fn pause(&self, ns: u64);
}

/// Unpredictable numbers.
pub trait Rng: Send + Sync {
    /// Fills all of `buf`.
    fn fill(&self, buf: &mut [u8]);
    /// A number of 64 bits.
    fn u64(&self) -> u64 {
        let mut b = [0; 8];
        self.fill(&mut b);
        u64::from_le_bytes(b)
    }
}

/// Who we are.
pub trait Host: Send + Sync {
    /// 32-bit host id, 0 if none.
    fn hostid(&self) -> u64;
    /// Name of the machine.
    fn hostname(&self) -> String;
}

/// The other cores.
pub trait Cpu: Send + Sync {
    /// Calls `job(i)` for every `i` in `0..n`, on as many threads as are worth it, and returns when
    /// all have returned.
    fn par_for(&self, n: usize, job: &(dyn Fn(usize) + Sync));

    /// The same for jobs that mostly wait for devices: more of them may run at once than there are
    /// cores.
    fn par_io(&self, n: usize, job: &(dyn Fn(usize) + Sync)) {
        self.par_for(n, job);
    }

    /// Has `job` done some time by another thread; false if it was dropped, because none is to spare.
    fn later(&self, job: Box<dyn FnOnce() + Send>) -> bool {
        drop(job);
        false
    }
}

/// The world, as handed to the core.
#[derive(Clone)]
pub struct Env {
    /// Devices and image files.
    pub disks: Arc<dyn Disks>,
    /// Time of day and time that passes.
    pub clock: Arc<dyn Clock>,
    /// Random bytes.
    pub rng: Arc<dyn Rng>,
    /// Name and id of the machine.
    pub host: Arc<dyn Host>,
    /// The cores: parallel loops.
    pub cpu: Arc<dyn Cpu>,
}
