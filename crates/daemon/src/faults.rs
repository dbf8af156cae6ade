//! Faults of devices, set in the running daemon by a request. In builds for tests only (feature
//! `faults`); in others [`wrap`] changes nothing and [`set`] refuses.

#[cfg(feature = "faults")]
pub use built::{set, wrap};

#[cfg(not(feature = "faults"))]
pub fn wrap(env: env::Env) -> env::Env {
    env
}

/// Errors: not built for tests.
#[cfg(not(feature = "faults"))]
pub fn set(_faults: Vec<api::Fault>) -> Result<(), api::ApiError> {
    Err(api::ApiError::sentence(
        base::Kind::Unsupported,
        "this daemon is not built for tests: devices cannot be told to fail",
    ))
}

#[cfg(feature = "faults")]
mod built {
    use api::{ApiError, Fault, Transfer, Trouble};
    use base::sync::{MutexExt, RwLockExt};
    use base::{Error, Kind, Result};
    use env::{Access, Disk, Disks, Env, Geometry, Op, Watch};
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::sync::{Arc, Condvar, Mutex, RwLock};
    use std::time::Duration;

    /// A fault, and how many transfers it has seen.
    type Counted = (Fault, AtomicU64);

    static FAULTS: RwLock<Vec<Counted>> = RwLock::new(Vec::new());
    /// How often faults were set, and who waits for that.
    static CHANGES: (Mutex<u64>, Condvar) = (Mutex::new(0), Condvar::new());

    /// Devices have these faults from now on. Transfers that are delayed go on at once.
    pub fn set(faults: Vec<Fault>) -> std::result::Result<(), ApiError> {
        let counted = |f| (f, AtomicU64::new(0));
        let mut all = FAULTS.acquire_write();
        *all = faults.into_iter().map(counted).collect();
        *CHANGES.0.acquire() += 1;
        CHANGES.1.notify_all();
        Ok(())
    }

    /// Lets time go by, as long as the faults stay as they are.
    fn delay(time: Duration) {
        let changes = CHANGES.0.acquire();
        let before = *changes;
        let same = |now: &mut u64| *now == before;
        drop(CHANGES.1.wait_timeout_while(changes, time, same));
    }

    /// An environment whose devices can be told to fail.
    pub fn wrap(env: Env) -> Env {
        Env {
            disks: Arc::new(Faulty(env.disks)),
            ..env
        }
    }

    struct Faulty(Arc<dyn Disks>);

    impl Disks for Faulty {
        fn open(&self, path: &str, access: Access) -> Result<Arc<dyn Disk>> {
            let disk = self.0.open(path, access)?;
            let path = path.to_string();
            Ok(Arc::new(FaultyDisk { disk, path }))
        }
    }

    struct FaultyDisk {
        disk: Arc<dyn Disk>,
        path: String,
    }

    /// What is to happen to a transfer.
    #[derive(Default)]
    struct Fate {
        delay: Duration,
        fails: bool,
        garbage: bool,
    }

    impl FaultyDisk {
        fn fate(&self, on: Transfer) -> Fate {
            let (mut fate, mut panics) = (Fate::default(), false);
            let all = FAULTS.acquire_read();
            for (fault, seen) in all.iter() {
                if fault.device != self.path || fault.on != on {
                    continue;
                }
                let n = seen.fetch_add(1, Ordering::Relaxed);
                if n % fault.one_of.max(1) != 0 {
                    continue;
                }
                match fault.does {
                    Trouble::Error => fate.fails = true,
                    Trouble::Delay(ms) => fate.delay += Duration::from_millis(ms),
                    Trouble::Garbage => fate.garbage = true,
                    Trouble::Panic => panics = true,
                }
            }
            drop(all);
            assert!(!panics, "{}: told to panic", self.path);
            fate
        }

        /// Lets the time go by that a transfer takes longer.
        fn meet(&self, fate: &Fate) -> Result<()> {
            delay(fate.delay);
            match fate.fails {
                true => Err(Error::new(Kind::Io, format!("{}: told to fail", self.path))),
                false => Ok(()),
            }
        }
    }

    /// Other bytes, the same each time.
    fn spoil(bytes: &mut [u8]) {
        for (n, b) in bytes.iter_mut().enumerate() {
            *b ^= (n as u8).wrapping_mul(29) | 1;
        }
    }

    impl Disk for FaultyDisk {
        fn geometry(&self) -> Geometry {
            self.disk.geometry()
        }

        fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
            let fate = self.fate(Transfer::Read);
            self.meet(&fate)?;
            self.disk.read(offset, buf)?;
            if fate.garbage {
                spoil(buf);
            }
            Ok(())
        }

        fn write(&self, offset: u64, buf: &[u8]) -> Result<()> {
            let fate = self.fate(Transfer::Write);
            self.meet(&fate)?;
            if !fate.garbage {
                return self.disk.write(offset, buf);
            }
            let mut other = buf.to_vec();
            spoil(&mut other);
            self.disk.write(offset, &other)
        }

        fn flush(&self) -> Result<()> {
            let fate = self.fate(Transfer::Flush);
            self.meet(&fate)?;
            match fate.garbage {
                true => Ok(()),
                false => self.disk.flush(),
            }
        }

        fn batch(&self, ops: Vec<Op>) -> Vec<(Op, Result<()>)> {
            let on = |op: &Op| match op {
                Op::Read { .. } => Transfer::Read,
                Op::Write { .. } => Transfer::Write,
            };
            let fates: Vec<Fate> = ops.iter().map(|op| self.fate(on(op))).collect();
            let same = |f: &Fate| !f.fails && !f.garbage && f.delay.is_zero();
            if fates.iter().all(same) {
                return self.disk.batch(ops);
            }
            // One by one, but they take their time together.
            let longest = fates.iter().map(|f| f.delay).max().unwrap_or_default();
            delay(longest);
            let one = |(op, fate): (Op, Fate)| {
                let fate = Fate {
                    delay: Duration::ZERO,
                    ..fate
                };
                if let Err(e) = self.meet(&fate) {
                    return (op, Err(e));
                }
                match (op, fate.garbage) {
                    (Op::Write { offset, bufs }, true) => {
                        let mut other: Vec<u8> =
                            bufs.iter().flat_map(|b| b.iter().copied()).collect();
                        spoil(&mut other);
                        let r = self.disk.write(offset, &other);
                        (Op::Write { offset, bufs }, r)
                    }
                    (op, garbage) => {
                        let mut done = self.disk.batch(vec![op]);
                        if let (Some((Op::Read { buf, .. }, _)), true) = (done.first_mut(), garbage)
                        {
                            spoil(buf);
                        }
                        done.remove(0)
                    }
                }
            };
            ops.into_iter().zip(fates).map(one).collect()
        }

        /// Requests that meet no fault are timed by the device itself.
        fn batch_watched(&self, ops: Vec<Op>, watch: &dyn Watch) -> Vec<(Op, Result<()>)> {
            let all = FAULTS.acquire_read();
            let sound = !all.iter().any(|(fault, _)| fault.device == self.path);
            drop(all);
            match sound {
                true => self.disk.batch_watched(ops, watch),
                false => env::count_untimed(self, ops, watch),
            }
        }

        fn discard(&self, offset: u64, len: u64) -> Result<()> {
            self.disk.discard(offset, len)
        }
    }
}
