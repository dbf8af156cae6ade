//! Short failures of all devices under load: writes are refused for a moment, the pool waits, and goes on when
//! the devices are back.

use crate::Dice;
use base::{Error, Kind, Result};
use env::{Access, Disk, Disks, Geometry, Op};
use pool::Pool;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long they refuse though nobody has to write, at most.
const IDLE: Duration = Duration::from_secs(2);
const TICK: Duration = Duration::from_millis(10);

/// Devices that refuse writes and flushes as long as the switch is on.
pub struct Refusing {
    inner: Arc<dyn Disks>,
    on: Arc<AtomicBool>,
}

struct RefusingDisk {
    inner: Arc<dyn Disk>,
    on: Arc<AtomicBool>,
}

/// The same machine with such devices, and their switch.
pub fn machine(env: env::Env) -> (env::Env, Arc<AtomicBool>) {
    let on: Arc<AtomicBool> = Arc::default();
    let disks = Refusing {
        inner: env.disks.clone(),
        on: on.clone(),
    };
    let env = env::Env {
        disks: Arc::new(disks),
        ..env
    };
    (env, on)
}

impl Disks for Refusing {
    fn open(&self, path: &str, access: Access) -> Result<Arc<dyn Disk>> {
        Ok(Arc::new(RefusingDisk {
            inner: self.inner.open(path, access)?,
            on: self.on.clone(),
        }))
    }
}

impl RefusingDisk {
    fn accept(&self) -> Result<()> {
        match self.on.load(Ordering::Relaxed) {
            true => Err(Error::new(Kind::Io, "refused on purpose")),
            false => Ok(()),
        }
    }
}

impl Disk for RefusingDisk {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.inner.read(offset, buf)
    }

    fn write(&self, offset: u64, buf: &[u8]) -> Result<()> {
        self.accept()?;
        self.inner.write(offset, buf)
    }

    fn flush(&self) -> Result<()> {
        self.accept()?;
        self.inner.flush()
    }

    fn batch(&self, ops: Vec<Op>) -> Vec<(Op, Result<()>)> {
        if self.accept().is_ok() {
            return self.inner.batch(ops);
        }
        let one = |mut op: Op| {
            let done = match &mut op {
                Op::Read { offset, buf } => self.read(*offset, buf),
                Op::Write { .. } => self.accept(),
            };
            (op, done)
        };
        ops.into_iter().map(one).collect()
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.accept()?;
        self.inner.discard(offset, len)
    }
}

/// Refusals of one pass.
pub struct Refusals {
    pool: Arc<Pool>,
    on: Arc<AtomicBool>,
}

/// The pool's state when a command began.
#[derive(Clone, Copy)]
pub struct Since(bool, u64);

impl Refusals {
    pub fn new(pool: &Arc<Pool>, on: &Arc<AtomicBool>) -> Refusals {
        pool.wait_for_devices(Box::new(|_| {}));
        Refusals {
            pool: pool.clone(),
            on: on.clone(),
        }
    }

    pub fn now(&self) -> Since {
        Since(self.pool.is_waiting(), self.pool.resumptions())
    }

    /// Whether a command that failed may have been refused because the pool waited.
    pub fn excuse(&self, since: Since) -> bool {
        since.0 || self.pool.is_waiting() || self.pool.resumptions() != since.1
    }

    /// Now and then, until the end of the pass. How often the pool waited.
    pub fn run(&self, mut dice: Dice, stop: &AtomicBool) -> u64 {
        let before = self.pool.resumptions();
        let stopped = || stop.load(Ordering::Relaxed);
        while !stopped() {
            std::thread::sleep(Duration::from_millis(100 + dice.below(900)));
            self.on.store(true, Ordering::Relaxed);
            let begin = Instant::now();
            while !self.pool.is_waiting() && begin.elapsed() < IDLE && !stopped() {
                std::thread::sleep(TICK);
            }
            std::thread::sleep(Duration::from_millis(dice.below(300)));
            self.on.store(false, Ordering::Relaxed);
            if dice.below(2) == 0 {
                // As `zpool clear`; otherwise it tries by itself.
                let _ = self.pool.retry();
            }
        }
        // Whoever waits for the end of the pass is not to wait for the next attempt.
        let _ = self.pool.retry();
        self.pool.resumptions() - before
    }
}
