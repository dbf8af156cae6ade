//! A session: negotiation with the kernel, the threads of the request loop, and its end.

use base::sync::{CondvarExt, MutexExt};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, Weak};

use base::{io_text, Error, Kind};
use zerocopy::{FromBytes, IntoBytes};

use crate::abi::{self, init, op};
use crate::channel::{Answer, Channel};
use crate::config::{Config, Negotiated, ReaddirPlus, Transport};
use crate::cpu_latency::Spin;
use crate::dispatch::{classify, serve, Class, Scratch};
use crate::fs::Filesystem;
use crate::handle::{Carried, End, Handle, Shared, Worker};
use crate::interrupt::{self, Found, Lookout, Serving};
use crate::notify::Notifier;
use crate::request_buffer::RequestBuffer;
use crate::ring::{wants_uring, Ring, Starting};
use crate::sys::{self, PAGE};
use crate::types::Errno;
use crate::worker_pool::{self, Pace, Watched, WorkerPool};

/// A file system being served on a connection.
pub struct Session<F: ?Sized> {
    fs: Arc<F>,
    device: Arc<File>,
    config: Config,
    shared: Arc<Shared>,
    told: Mutex<Option<Told>>,
}

type Told = Box<dyn FnOnce(&Carried) + Send>;

impl<F: Filesystem + ?Sized> Session<F> {
    /// A session on the connection that [`crate::mount`] made.
    pub fn new(fs: Arc<F>, device: OwnedFd, config: Config) -> Session<F> {
        Session {
            fs,
            device: Arc::new(File::from(device)),
            config,
            shared: Arc::default(),
            told: Mutex::default(),
        }
    }

    /// Has `tell` called when it is settled how requests travel.
    pub fn tell_carried(&self, tell: impl FnOnce(&Carried) + Send + 'static) {
        *self.told.acquire() = Some(Box::new(tell));
    }

    /// To stop it from elsewhere.
    pub fn handle(&self) -> Handle {
        Handle(self.shared.clone())
    }

    /// To tell the kernel about changes made beside the mount. It does not keep the session alive.
    pub fn notifier(&self) -> Notifier {
        Notifier::new(Arc::downgrade(&self.device), self.shared.clone())
    }

    /// Serves until the file system is unmounted, aborted or stopped.
    ///
    /// Errors: the kernel speaks a version this crate does not, or the device failed.
    pub fn run(self) -> base::Result<End> {
        sys::install_wake_handler();
        self.shared.lock().running = true;
        let result = self.run_inner();
        // Closes the connection before anybody is told that the session is over.
        let Session {
            fs, device, shared, ..
        } = self;
        if result.as_ref().is_ok_and(|_| shared.agreed.get().is_some()) {
            fs.destroy();
        }
        drop(device);
        shared.lock().running = false;
        shared.changed.notify_all();
        result
    }

    fn run_inner(&self) -> base::Result<End> {
        let mut buf = RequestBuffer::new(self.max_write() as usize)?;
        let reading = Arc::new(AtomicBool::new(false));
        let tid = Worker::enlist(&self.shared, &reading);
        sys::unblock_wake();
        let starting = match self.negotiate(&mut buf, &reading)? {
            Opening::End(end) => return Ok(end),
            Opening::Agreed(starting) => starting,
        };
        self.shared.dismiss(tid, Ok(None));
        drop(buf);
        let ring = starting.map(Starting::go);
        let pool = Arc::new(Pool {
            fs: self.fs.clone(),
            device: Arc::downgrade(&self.device),
            shared: self.shared.clone(),
            agreed: self.shared.agreed.get().copied().unwrap_or_default(),
            workers: WorkerPool::new(self.config.threads),
            lookout: Arc::default(),
            ring,
        });
        pool.serve_here();
        let mut state = self.shared.lock();
        while state.total > 0 {
            state = self.shared.changed.wait_acquire(state);
        }
        if let Some(k) = state.error {
            return Err(Error::new(
                Kind::Io,
                format!("reading requests: {}", io::Error::from(k)),
            ));
        }
        Ok(state.end.unwrap_or(End::Stopped))
    }

    /// `max_write` that the kernel will honour: whole pages, as many as a request may have.
    fn max_write(&self) -> u32 {
        let limit = std::fs::read_to_string("/proc/sys/fs/fuse/max_pages_limit")
            .ok()
            .and_then(|s| s.trim().parse::<u32>().ok())
            .unwrap_or(256)
            .clamp(1, 65535);
        let pages = (self.config.max_write / PAGE as u32).clamp(1, limit);
        pages * PAGE as u32
    }

    fn negotiate(&self, buf: &mut RequestBuffer, reading: &AtomicBool) -> base::Result<Opening<F>> {
        loop {
            let msg = match next(&self.device, buf, &self.shared, reading) {
                Next::Request => buf.bytes(),
                Next::End(e) => return Ok(Opening::End(e)),
                Next::Failed(e) => {
                    return Err(Error::new(
                        Kind::Io,
                        format!("FUSE device: {}", io_text(&e)),
                    ))
                }
            };
            let chan = Channel { file: &self.device };
            let Ok((h, body)) = abi::InHeader::read_from_prefix(msg) else {
                return Err(Error::new(
                    Kind::Io,
                    "FUSE device: a message without a head",
                ));
            };
            if h.opcode != op::INIT {
                let _ = chan.err(h.unique, Errno::EIO);
                continue;
            }
            let Ok((i, rest)) = abi::InitIn::read_from_prefix(body) else {
                let _ = chan.err(h.unique, Errno(libc::EPROTO));
                return Err(Error::new(Kind::Io, "FUSE device: a short INIT"));
            };
            if i.major > abi::MAJOR {
                // The kernel asks again with ours.
                let out = abi::InitOut {
                    major: abi::MAJOR,
                    minor: abi::MINOR,
                    ..Default::default()
                };
                let _ = chan.ok(h.unique, &[out.as_bytes()]);
                continue;
            }
            if i.major < abi::MAJOR || i.minor < abi::MINOR_MIN {
                let _ = chan.err(h.unique, Errno(libc::EPROTO));
                return Err(Error::new(
                    Kind::Unsupported,
                    format!(
                        "this kernel speaks FUSE {}.{}; at least {}.{} is needed (Linux 4.20)",
                        i.major,
                        i.minor,
                        abi::MAJOR,
                        abi::MINOR_MIN
                    ),
                ));
            }
            let mut offered = i.flags as u64;
            if offered & init::INIT_EXT != 0 {
                if let Ok((f2, _)) = u32::read_from_prefix(rest) {
                    offered |= (f2 as u64) << 32;
                }
            }
            let (starting, carried) = match self.carry(offered) {
                Ok(s) => {
                    let why = format!("{} queues", s.queues());
                    (Some(s), Carried { uring: true, why })
                }
                Err(why) => (None, Carried { uring: false, why }),
            };
            let (agreed, out) = self.agree(&i, offered, carried.uring);
            let tell = self.told.acquire().take();
            if let Some(tell) = tell {
                tell(&carried);
            }
            let _ = self.shared.carried.set(carried);
            self.fs.init(&agreed);
            let _ = self.shared.agreed.set(agreed);
            return match chan.ok(h.unique, &[out.as_bytes()]) {
                Ok(()) => Ok(Opening::Agreed(starting)),
                Err(e) if e.raw_os_error() == Some(libc::ENOENT) => Ok(Opening::End(End::Aborted)),
                Err(e) => Err(Error::new(
                    Kind::Io,
                    format!("FUSE device: {}", io_text(&e)),
                )),
            };
        }
    }

    /// Readies the ring, if that is to be used. The kernel holds back all requests from the moment
    /// it is agreed on until it has an entry for each queue, so nothing may fail after that.
    ///
    /// Errors: the reason for the device.
    fn carry(&self, offered: u64) -> Result<Starting<F>, String> {
        if !wants_uring(self.config.transport) {
            return Err(match self.config.transport {
                Transport::Auto => "the default".into(),
                _ => "as configured".into(),
            });
        }
        if offered & init::OVER_IO_URING == 0 {
            return Err("the kernel did not offer io_uring for this mount".into());
        }
        // As the kernel computes it from what it is told.
        let payload = self.max_write().max(abi::MIN_READ_BUFFER as u32) as usize;
        Starting::prepare(
            &self.fs,
            &self.device,
            &self.shared,
            self.config.threads,
            payload,
        )
    }

    fn agree(&self, i: &abi::InitIn, offered: u64, ring: bool) -> (Negotiated, abi::InitOut) {
        let c = &self.config;
        let on = |cond: bool, flag: u64| if cond { flag } else { 0 };
        let want = on(ring, init::OVER_IO_URING)
            | init::ASYNC_READ
            | init::BIG_WRITES
            | init::DONT_MASK
            | init::HAS_IOCTL_DIR
            | init::ASYNC_DIO
            | init::ABORT_ERROR
            | init::MAX_PAGES
            | init::EXPLICIT_INVAL_DATA
            | init::SETXATTR_EXT
            | init::INIT_EXT
            | init::CREATE_SUPP_GROUP
            | init::HAS_EXPIRE_ONLY
            | init::DIRECT_IO_ALLOW_MMAP
            // With zero-message open nobody would see the O_TRUNC.
            | on(!c.zero_message_open, init::ATOMIC_O_TRUNC)
            | on(c.zero_message_open, init::NO_OPEN_SUPPORT)
            | on(c.zero_message_opendir, init::NO_OPENDIR_SUPPORT)
            | on(c.export, init::EXPORT_SUPPORT)
            | on(c.readdirplus != ReaddirPlus::Never, init::DO_READDIRPLUS)
            | on(c.readdirplus == ReaddirPlus::Auto, init::READDIRPLUS_AUTO)
            | on(c.writeback_cache, init::WRITEBACK_CACHE)
            | on(c.parallel_dirops, init::PARALLEL_DIROPS)
            | on(c.posix_acl, init::POSIX_ACL)
            | on(c.cache_symlinks, init::CACHE_SYMLINKS)
            | on(c.killpriv_v2, init::HANDLE_KILLPRIV_V2);
        let flags = want & offered;
        let max_write = if flags & init::MAX_PAGES != 0 {
            self.max_write()
        } else {
            self.max_write().min(32 * PAGE as u32)
        };
        let agreed = Negotiated {
            minor: i.minor.min(abi::MINOR),
            flags,
            offered,
            max_write,
            // It takes what the mount is set to by then, if that is less.
            max_readahead: c.max_readahead,
            max_pages: (max_write / PAGE as u32) as u16,
        };
        let out = abi::InitOut {
            major: abi::MAJOR,
            minor: abi::MINOR,
            max_readahead: agreed.max_readahead,
            flags: flags as u32,
            max_background: c.max_background.max(1),
            congestion_threshold: c.congestion_threshold.max(1),
            max_write,
            time_gran: c.time_gran.clamp(1, 1_000_000_000),
            max_pages: agreed.max_pages,
            flags2: (flags >> 32) as u32,
            ..Default::default()
        };
        (agreed, out)
    }
}

/// What the threads share.
struct Pool<F: ?Sized> {
    fs: Arc<F>,
    device: Weak<File>,
    shared: Arc<Shared>,
    agreed: Negotiated,
    workers: WorkerPool,
    lookout: Arc<Lookout>,
    /// Carries most requests, if there.
    ring: Option<Arc<Ring<F>>>,
}

impl<F: Filesystem + ?Sized> Pool<F> {
    /// Has the calling thread serve until the end, or until others do and it is not needed. An idle mount has no
    /// other thread.
    fn serve_here(self: &Arc<Self>) {
        {
            let mut state = self.shared.lock();
            state.total += 1;
            state.on_device += 1;
        }
        self.workers.joined();
        self.clone().work();
    }

    /// Starts one more thread, which counts as awake already, if there may be one.
    fn spawn(self: &Arc<Self>) -> io::Result<()> {
        {
            let mut state = self.shared.lock();
            if state.on_device >= self.workers.most() {
                drop(state);
                self.look_for_killed();
                return Ok(());
            }
            state.total += 1;
            state.on_device += 1;
        }
        self.workers.joined();
        let pool = self.clone();
        let started = std::thread::Builder::new()
            .name("fuse".into())
            .spawn(move || pool.work());
        if started.is_err() {
            self.workers.left();
            let mut state = self.shared.lock();
            state.total -= 1;
            state.on_device -= 1;
        }
        started.map(|_| ())
    }

    fn work(self: Arc<Self>) {
        let reading = Arc::new(AtomicBool::new(true));
        let tid = Worker::enlist(&self.shared, &reading);
        sys::unblock_wake();
        worker_pool::set_serving(Some(self.as_watched()));
        let outcome = self.serve_all(&reading);
        worker_pool::set_serving(None);
        reading.store(false, SeqCst);
        let over = !matches!(outcome, Ok(None));
        self.shared.dismiss(tid, outcome.map_err(|e| e.kind()));
        self.shared.lock().on_device -= 1;
        if over {
            self.workers.wake_all();
        }
        let shared = self.shared.clone();
        drop(self); // so that with the last thread the file system is let go
        shared.left();
    }

    /// From now on, for a while, requests of killed processes are given up when they take long.
    fn look_for_killed(self: &Arc<Self>) {
        let start = || {
            let (lookout, lent) = (self.lookout.clone(), self.workers.lender());
            let (shared, pool) = (self.shared.clone(), Arc::downgrade(self));
            let look = move || {
                let state = shared.lock();
                if state.serving.is_empty() {
                    return None;
                }
                let (found, instead) = interrupt::look(&state.serving, &lent);
                drop(state);
                instead.iter().for_each(Serving::replace);
                if found == Found::GivenUp {
                    pool.upgrade()?.keep_one();
                }
                Some(found != Found::Nothing)
            };
            std::thread::Builder::new()
                .name("fuse-killed".into())
                .spawn(move || lookout.run(look))
                .is_ok()
        };
        // Without that thread they wait until their requests end.
        self.lookout.ask(start);
    }

    /// Serves until the end, or until this thread was not needed for a while (`None`).
    fn serve_all(self: &Arc<Self>, reading: &AtomicBool) -> io::Result<Option<End>> {
        let Some(device) = self.device.upgrade() else {
            return Ok(Some(End::Stopped));
        };
        // Without access to the device node (an ordinary user whose mount fusermount3 made) the
        // threads share one channel.
        let channel = match privilege::acts().another_channel(device.as_fd()) {
            Ok(own) => Arc::new(File::from(own)),
            Err(_) => device,
        };
        let serving = Arc::new(Serving::on(channel.clone()));
        self.shared.lock().serving.push(serving.clone());
        let outcome = self.serve_on(&channel, &serving, reading);
        let mut state = self.shared.lock();
        state.serving.retain(|s| !Arc::ptr_eq(s, &serving));
        // So that the channel is closed here: nobody else has it any more.
        drop((serving, channel));
        drop(state);
        outcome
    }

    fn serve_on(
        self: &Arc<Self>,
        device: &File,
        serving: &Arc<Serving>,
        reading: &AtomicBool,
    ) -> io::Result<Option<End>> {
        let chan = Channel { file: device };
        let mut buf = RequestBuffer::new(self.agreed.max_write as usize)?;
        let mut scratch = Scratch::new();
        let shared = &*self.shared;
        let mut pace = Pace::default();
        let mut spin = Spin::default();
        let mut idle_since = worker_pool::now();
        loop {
            spin.spin(device);
            // Where nothing but FORGETs comes this way.
            let over_ring = self.ring.as_ref().is_some_and(|r| r.carries());
            let turn = over_ring.then(|| {
                reading.store(true, SeqCst);
                shared.forgets.turn(device)
            });
            let (alone, turn) = turn.unzip();
            match next(device, &mut buf, shared, reading) {
                Next::Request => {}
                Next::End(e) => return Ok(Some(e)),
                Next::Failed(e) => return Err(e),
            }
            drop(alone);
            let Some(msg) = buf.message() else {
                return Err(io::ErrorKind::InvalidData.into());
            };
            let began = worker_pool::now();
            let class = classify(msg.head.opcode);
            if class != Class::Brief {
                let blocks = class == Class::Blocks;
                let waited = began - idle_since;
                self.workers
                    .begin(&mut pace, began, waited, blocks)
                    .act(self);
            }
            // An answer that cannot be delivered: the connection is being torn down, and the next
            // read says how.
            interrupt::serve_for(serving);
            serving.begin(&msg, began);
            shared.requests.count(msg.head.opcode);
            let _ = serve(&*self.fs, &self.agreed, &chan, &msg, &mut scratch);
            let ended = serving.end();
            if ended.given_up {
                let _ = msg.changes(&mut |changed| self.fs.outcome_unknown(changed));
            }
            if ended.replaced {
                self.workers.take_back();
            }
            if msg.head.opcode == op::INTERRUPT {
                self.look_for_killed();
            }
            idle_since = worker_pool::now();
            if class != Class::Brief
                && self.workers.end(&mut pace, idle_since, idle_since - began)
                && !self.workers.rest()
            {
                return Ok(None);
            }
            let forget = matches!(msg.head.opcode, op::FORGET | op::BATCH_FORGET);
            drop(turn);
            if forget && over_ring {
                shared.forgets.pause();
            }
        }
    }

    fn as_watched(self: &Arc<Self>) -> Weak<dyn Watched> {
        Arc::downgrade(self) as Weak<dyn Watched>
    }
}

impl<F: Filesystem + ?Sized> Watched for Pool<F> {
    fn workers(&self) -> &WorkerPool {
        &self.workers
    }

    fn reinforce(self: Arc<Self>) {
        if !self.workers.wake_one() {
            // Failing to start a thread only means less parallelism.
            let _ = self.spawn();
        }
    }
}

enum Opening<F: ?Sized> {
    End(End),
    /// With a ring that waits for the word to go.
    Agreed(Option<Starting<F>>),
}

enum Next {
    Request,
    End(End),
    Failed(io::Error),
}

/// Waits for a request.
fn next(device: &File, buf: &mut RequestBuffer, shared: &Shared, reading: &AtomicBool) -> Next {
    loop {
        reading.store(true, SeqCst);
        if shared.stop.load(SeqCst) {
            return Next::End(End::Stopped);
        }
        let r = buf.read(device);
        reading.store(false, SeqCst);
        let e = match r {
            Ok(0) => return Next::End(End::Unmounted),
            Ok(_) => return Next::Request,
            Err(e) => e,
        };
        match e.raw_os_error() {
            // EINTR: a signal. EAGAIN: somebody made the device non-blocking, or a race between
            // readers. ENOENT: the request was interrupted before it was read.
            Some(libc::EINTR) | Some(libc::EAGAIN) | Some(libc::ENOENT) => {}
            Some(libc::ENODEV) => return Next::End(End::Unmounted),
            Some(libc::ECONNABORTED) => return Next::End(End::Aborted),
            _ => return Next::Failed(e),
        }
    }
}
