//! A machine whose devices fail when they are told to: all of them refuse writes, one of them fails, or reads of one fail.

use base::sync::MutexExt;
use base::{Error, Kind, Result};
use env::{Access, Disk, Disks, Geometry, Op};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// How one device fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// It refuses writes.
    Writes,
    /// It takes writes, loses them, and fails to flush.
    Flushes,
    /// It answers nothing.
    Dead,
}

/// Reads of one device that fail.
#[derive(Clone, Debug)]
pub struct Unread {
    /// Path of the device.
    pub path: String,
    /// So many reads still work.
    pub spared: u64,
    /// So many fail then.
    pub count: u64,
}

/// What goes wrong at the moment.
#[derive(Default)]
pub struct Troubles {
    /// All devices refuse writes and flushes.
    refuse: AtomicBool,
    /// There is something in `failing` or `unread`.
    some: AtomicBool,
    failing: Mutex<Option<(String, Failure)>>,
    unread: Mutex<Option<Unread>>,
}

impl Troubles {
    /// Whether all devices refuse writes from now on.
    pub fn refuse(&self, on: bool) {
        self.refuse.store(on, Ordering::Relaxed);
    }

    /// The device fails from now on.
    pub fn fail(&self, path: &str, how: Failure) {
        *self.failing.acquire() = Some((path.into(), how));
        self.some.store(true, Ordering::Release);
    }

    /// Reads of a device fail.
    pub fn fail_reads(&self, reads: Unread) {
        *self.unread.acquire() = Some(reads);
        self.some.store(true, Ordering::Release);
    }

    /// All devices but those that refuse writes are well again.
    pub fn heal(&self) {
        *self.failing.acquire() = None;
        *self.unread.acquire() = None;
        self.some.store(false, Ordering::Release);
    }

    fn failure(&self, path: &str) -> Option<Failure> {
        if !self.some.load(Ordering::Acquire) {
            return None;
        }
        let failing = self.failing.acquire();
        failing.as_ref().filter(|f| f.0 == path).map(|f| f.1)
    }

    /// Whether the next read of the device fails.
    fn loses_read(&self, path: &str) -> bool {
        if !self.some.load(Ordering::Acquire) {
            return false;
        }
        let mut unread = self.unread.acquire();
        let Some(u) = unread.as_mut().filter(|u| u.path == path) else {
            return false;
        };
        let fails = u.spared == 0 && u.count > 0;
        match u.spared {
            0 => u.count = u.count.saturating_sub(1),
            _ => u.spared -= 1,
        }
        fails
    }
}

struct Failing {
    inner: Arc<dyn Disks>,
    troubles: Arc<Troubles>,
}

struct FailingDisk {
    inner: Arc<dyn Disk>,
    path: String,
    troubles: Arc<Troubles>,
}

/// The same machine with such devices.
pub fn machine(env: env::Env) -> (env::Env, Arc<Troubles>) {
    let troubles: Arc<Troubles> = Arc::default();
    let disks = Failing {
        inner: env.disks.clone(),
        troubles: troubles.clone(),
    };
    let env = env::Env {
        disks: Arc::new(disks),
        ..env
    };
    (env, troubles)
}

fn on_purpose(what: &str) -> Error {
    Error::new(Kind::Io, format!("{what} on purpose"))
}

impl Disks for Failing {
    fn open(&self, path: &str, access: Access) -> Result<Arc<dyn Disk>> {
        if self.troubles.failure(path) == Some(Failure::Dead) {
            return Err(on_purpose("it is dead"));
        }
        Ok(Arc::new(FailingDisk {
            inner: self.inner.open(path, access)?,
            path: path.into(),
            troubles: self.troubles.clone(),
        }))
    }
}

impl FailingDisk {
    fn failure(&self) -> Option<Failure> {
        self.troubles.failure(&self.path)
    }

    /// Whether a write goes to the device; if not, it is lost.
    fn takes(&self) -> Result<bool> {
        if self.troubles.refuse.load(Ordering::Relaxed) {
            return Err(on_purpose("refused"));
        }
        match self.failure() {
            None => Ok(true),
            Some(Failure::Flushes) => Ok(false),
            Some(_) => Err(on_purpose("failed")),
        }
    }

    fn is_well(&self) -> bool {
        let t = &self.troubles;
        !t.refuse.load(Ordering::Relaxed) && !t.some.load(Ordering::Acquire)
    }
}

impl Disk for FailingDisk {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        if self.failure() == Some(Failure::Dead) || self.troubles.loses_read(&self.path) {
            return Err(on_purpose("not read"));
        }
        self.inner.read(offset, buf)
    }

    fn write(&self, offset: u64, buf: &[u8]) -> Result<()> {
        match self.takes()? {
            true => self.inner.write(offset, buf),
            false => Ok(()),
        }
    }

    fn flush(&self) -> Result<()> {
        match self.takes()? {
            true => self.inner.flush(),
            false => Err(on_purpose("not flushed")),
        }
    }

    fn batch(&self, ops: Vec<Op>) -> Vec<(Op, Result<()>)> {
        if self.is_well() {
            return self.inner.batch(ops);
        }
        let one = |op: Op| match op {
            Op::Read { offset, mut buf } => {
                let done = self.read(offset, &mut buf);
                (Op::Read { offset, buf }, done)
            }
            write => match self.takes() {
                Ok(false) => (write, Ok(())),
                Err(e) => (write, Err(e)),
                Ok(true) => self.inner.batch(vec![write]).swap_remove(0),
            },
        };
        ops.into_iter().map(one).collect()
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        match self.takes()? {
            true => self.inner.discard(offset, len),
            false => Ok(()),
        }
    }
}
