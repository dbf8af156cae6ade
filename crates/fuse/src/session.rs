//! The request loop: negotiation, threads, the end.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;

use base::{Error, Kind};
use zerocopy::{FromBytes, IntoBytes};

use crate::channel::Channel;
use crate::config::{Config, Negotiated, ReaddirPlus};
use crate::crew::{self, Begin, Crew, Pace, Watched};
use crate::dispatch::{serve, Scratch};
use crate::fs::Filesystem;
use crate::notify::Notifier;
use crate::sys;
use crate::types::Errno;
use crate::wire::{self, init, op};

const PAGE: usize = 4096;

/// Why a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The file system was unmounted everywhere.
    Unmounted,
    /// The connection was aborted (forced unmount, or through /sys/fs/fuse).
    Aborted,
    /// [`Handle::stop`].
    Stopped,
}

struct Worker {
    tid: i32,
    /// Waiting in (or about to enter, or just back from) a read of the device.
    reading: Arc<AtomicBool>,
}

#[derive(Default)]
struct State {
    /// Threads that serve or wait.
    workers: Vec<Worker>,
    /// How many there are, counting those about to start.
    total: usize,
    running: bool,
    end: Option<End>,
    error: Option<io::ErrorKind>,
}

#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    state: Mutex<State>,
    changed: Condvar,
    agreed: OnceLock<Negotiated>,
}

impl Shared {
    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Ends a session from another thread, and tells about it.
#[derive(Clone)]
pub struct Handle(Arc<Shared>);

impl Handle {
    /// Makes [`Session::run`] return once the requests being served are answered; waits for that
    /// unless no session is running. Must not be called from a method of the file system. When the
    /// session is dropped too, the kernel fails whatever is still asked with ENOTCONN, until the
    /// file system is unmounted.
    pub fn stop(&self) {
        self.0.stop.store(true, SeqCst);
        let mut state = self.0.lock();
        while state.running {
            for w in &state.workers {
                if w.reading.load(SeqCst) {
                    sys::wake_thread(w.tid);
                }
            }
            // A thread can check the flag before it is set and enter the read after the signal, so
            // one signal is not enough.
            let wait = Duration::from_millis(2);
            state = match self.0.changed.wait_timeout(state, wait) {
                Ok((s, _)) => s,
                Err(e) => e.into_inner().0,
            };
        }
    }

    /// Whether [`Session::run`] is under way.
    pub fn is_running(&self) -> bool {
        self.0.lock().running
    }

    /// What was agreed, once the kernel has asked for it.
    pub fn negotiated(&self) -> Option<Negotiated> {
        self.0.agreed.get().copied()
    }

    /// Threads serving at the moment.
    pub fn threads(&self) -> usize {
        self.0.lock().total
    }
}

/// A file system being served on a connection.
pub struct Session<F: ?Sized> {
    fs: Arc<F>,
    device: Arc<File>,
    config: Config,
    shared: Arc<Shared>,
}

impl<F: Filesystem + ?Sized> Session<F> {
    /// A session on the connection that [`crate::mount`] made.
    pub fn new(fs: Arc<F>, device: OwnedFd, config: Config) -> Session<F> {
        Session {
            fs,
            device: Arc::new(File::from(device)),
            config,
            shared: Arc::default(),
        }
    }

    /// To stop it from elsewhere.
    pub fn handle(&self) -> Handle {
        Handle(self.shared.clone())
    }

    /// To tell the kernel about changes made beside the mount. It does not keep the session alive.
    pub fn notifier(&self) -> Notifier {
        Notifier::new(Arc::downgrade(&self.device))
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
        let mut buf = Buffer::new(self.max_write() as usize);
        let reading = Arc::new(AtomicBool::new(false));
        self.shared.lock().workers.push(Worker {
            tid: rustix::thread::gettid().as_raw_nonzero().get(),
            reading: reading.clone(),
        });
        sys::unblock_wake();
        match self.negotiate(&mut buf, &reading)? {
            Some(end) => return Ok(end),
            None => self.shared.lock().workers.clear(),
        }
        drop(buf);
        let pool = Arc::new(Pool {
            fs: self.fs.clone(),
            device: Arc::downgrade(&self.device),
            shared: self.shared.clone(),
            agreed: self.shared.agreed.get().copied().unwrap_or_default(),
            crew: Crew::new(self.config.threads),
        });
        pool.spawn()
            .map_err(|e| Error::new(Kind::Again, format!("no thread for requests: {e}")))?;
        let mut state = self.shared.lock();
        while state.total > 0 {
            state = self
                .shared
                .changed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
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

    fn negotiate(&self, buf: &mut Buffer, reading: &AtomicBool) -> base::Result<Option<End>> {
        loop {
            let msg = match next(&self.device, buf, &self.shared, reading) {
                Next::Request(n) => buf.message(n),
                Next::End(e) => return Ok(Some(e)),
                Next::Failed(e) => return Err(Error::new(Kind::Io, format!("FUSE device: {e}"))),
            };
            let chan = Channel { file: &self.device };
            let Ok((h, body)) = wire::InHeader::read_from_prefix(msg) else {
                return Err(Error::new(
                    Kind::Io,
                    "FUSE device: a message without a head",
                ));
            };
            if h.opcode != op::INIT {
                let _ = chan.err(h.unique, Errno::EIO);
                continue;
            }
            let Ok((i, rest)) = wire::InitIn::read_from_prefix(body) else {
                let _ = chan.err(h.unique, Errno(libc::EPROTO));
                return Err(Error::new(Kind::Io, "FUSE device: a short INIT"));
            };
            if i.major > wire::MAJOR {
                // The kernel asks again with ours.
                let out = wire::InitOut {
                    major: wire::MAJOR,
                    minor: wire::MINOR,
                    ..Default::default()
                };
                let _ = chan.ok(h.unique, &[out.as_bytes()]);
                continue;
            }
            if i.major < wire::MAJOR || i.minor < wire::MINOR_MIN {
                let _ = chan.err(h.unique, Errno(libc::EPROTO));
                return Err(Error::new(
                    Kind::Unsupported,
                    format!(
                        "this kernel speaks FUSE {}.{}; at least {}.{} is needed (Linux 4.20)",
                        i.major,
                        i.minor,
                        wire::MAJOR,
                        wire::MINOR_MIN
                    ),
                ));
            }
            let mut offered = i.flags as u64;
            if offered & init::INIT_EXT != 0 {
                if let Ok((f2, _)) = u32::read_from_prefix(rest) {
                    offered |= (f2 as u64) << 32;
                }
            }
            let (agreed, out) = self.agree(&i, offered);
            self.fs.init(&agreed);
            let _ = self.shared.agreed.set(agreed);
            return match chan.ok(h.unique, &[out.as_bytes()]) {
                Ok(()) => Ok(None),
                Err(e) if e.raw_os_error() == Some(libc::ENOENT) => Ok(Some(End::Aborted)),
                Err(e) => Err(Error::new(Kind::Io, format!("FUSE device: {e}"))),
            };
        }
    }

    fn agree(&self, i: &wire::InitIn, offered: u64) -> (Negotiated, wire::InitOut) {
        let c = &self.config;
        let on = |cond: bool, flag: u64| if cond { flag } else { 0 };
        let want = init::ASYNC_READ
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
            minor: i.minor.min(wire::MINOR),
            flags,
            offered,
            max_write,
            max_readahead: i.max_readahead.min(c.max_readahead),
            max_pages: (max_write / PAGE as u32) as u16,
        };
        let out = wire::InitOut {
            major: wire::MAJOR,
            minor: wire::MINOR,
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
    crew: Crew,
}

impl<F: Filesystem + ?Sized> Pool<F> {
    /// Starts one more thread, which counts as awake already, if there may be one.
    fn spawn(self: &Arc<Self>) -> io::Result<()> {
        {
            let mut state = self.shared.lock();
            if state.total >= self.crew.most() {
                return Ok(());
            }
            state.total += 1;
        }
        self.crew.joined();
        let pool = self.clone();
        let started = std::thread::Builder::new()
            .name("fuse".into())
            .spawn(move || pool.work());
        if started.is_err() {
            self.crew.left();
            self.shared.lock().total -= 1;
        }
        started.map(|_| ())
    }

    fn work(self: Arc<Self>) {
        let tid = rustix::thread::gettid().as_raw_nonzero().get();
        let reading = Arc::new(AtomicBool::new(true));
        self.shared.lock().workers.push(Worker {
            tid,
            reading: reading.clone(),
        });
        sys::unblock_wake();
        crew::set_serving(Some(self.as_watched()));
        let outcome = self.serve_all(&reading);
        crew::set_serving(None);
        reading.store(false, SeqCst);
        let mut state = self.shared.lock();
        state.workers.retain(|w| w.tid != tid);
        match outcome {
            Ok(None) => {}
            Ok(Some(End::Stopped)) => state.end = state.end.or(Some(End::Stopped)),
            Ok(e) => state.end = e,
            Err(ref e) => {
                state.error.get_or_insert(e.kind());
                // The others could serve on, but run() must report; nothing is lost by ending all.
                self.shared.stop.store(true, SeqCst);
                for w in &state.workers {
                    sys::wake_thread(w.tid);
                }
            }
        }
        drop(state);
        if !matches!(outcome, Ok(None)) {
            self.crew.wake_all();
        }
        let shared = self.shared.clone();
        drop(self); // so that with the last thread the file system is let go
        shared.lock().total -= 1;
        shared.changed.notify_all();
    }

    /// Serves until the end, or until this thread was not needed for a while (`None`).
    fn serve_all(self: &Arc<Self>, reading: &AtomicBool) -> io::Result<Option<End>> {
        let Some(device) = self.device.upgrade() else {
            return Ok(Some(End::Stopped));
        };
        // Without access to the device node (an ordinary user whose mount fusermount3 made) the
        // threads share one channel.
        let channel = sys::clone_channel(&device).ok();
        let device = match &channel {
            Some(c) => c,
            None => &*device,
        };
        let chan = Channel { file: device };
        let mut buf = Buffer::new(self.agreed.max_write as usize);
        let mut scratch = Scratch::new();
        let shared = &*self.shared;
        let mut pace = Pace::default();
        let mut idle_since = crew::now();
        loop {
            let n = match next(device, &mut buf, shared, reading) {
                Next::Request(n) => n,
                Next::End(e) => return Ok(Some(e)),
                Next::Failed(e) => return Err(e),
            };
            let msg = buf.message(n);
            let began = crew::now();
            let class = classify(msg);
            if class != Class::Brief {
                let blocks = class == Class::Blocks;
                match self
                    .crew
                    .begin(&mut pace, began, began - idle_since, blocks)
                {
                    Begin::Go => {}
                    Begin::Wake => self.clone().reinforce(),
                    Begin::Watch => crew::watch(self.as_watched()),
                }
            }
            // An answer that cannot be delivered: the connection is being torn down, and the next
            // read says how.
            let _ = serve(&*self.fs, &self.agreed, &chan, msg, &mut scratch);
            idle_since = crew::now();
            if class != Class::Brief
                && self.crew.end(idle_since, idle_since - began)
                && !self.crew.rest()
            {
                return Ok(None);
            }
        }
    }

    fn as_watched(self: &Arc<Self>) -> Weak<dyn Watched> {
        Arc::downgrade(self) as Weak<dyn Watched>
    }
}

impl<F: Filesystem + ?Sized> Watched for Pool<F> {
    fn crew(&self) -> &Crew {
        &self.crew
    }

    fn reinforce(self: Arc<Self>) {
        if !self.crew.wake_one() {
            // Failing to start a thread only means less parallelism.
            let _ = self.spawn();
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    /// Never waits, so it is no reason for another thread.
    Brief,
    Usual,
    /// Waits as a rule.
    Blocks,
}

fn classify(msg: &[u8]) -> Class {
    let Ok((h, _)) = wire::InHeader::read_from_prefix(msg) else {
        return Class::Brief;
    };
    match h.opcode {
        op::FORGET | op::BATCH_FORGET | op::INTERRUPT | op::RELEASE | op::RELEASEDIR => {
            Class::Brief
        }
        op::FSYNC
        | op::FSYNCDIR
        | op::SYNCFS
        | op::FALLOCATE
        | op::COPY_FILE_RANGE
        | op::COPY_FILE_RANGE_64
        | op::IOCTL => Class::Blocks,
        _ => Class::Usual,
    }
}

/// A buffer for one request, placed so that the data of a WRITE begins on a page.
struct Buffer {
    bytes: Vec<u8>,
    start: usize,
}

impl Buffer {
    fn new(max_write: usize) -> Buffer {
        // Room for the largest write, and for the largest xattr whatever the write size.
        let room = max_write.max(128 << 10) + PAGE;
        let bytes = vec![0u8; room + 2 * PAGE];
        let head = size_of::<wire::InHeader>() + size_of::<wire::WriteIn>();
        let page = bytes.as_ptr().align_offset(PAGE);
        // align_offset may decline to answer (usize::MAX); alignment is only for speed.
        let start = if page < PAGE { page + PAGE - head } else { 0 };
        Buffer { bytes, start }
    }

    fn space(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..]
    }

    fn message(&self, n: usize) -> &[u8] {
        let end = (self.start + n).min(self.bytes.len());
        &self.bytes[self.start..end]
    }
}

enum Next {
    /// A request of so many bytes is in the buffer.
    Request(usize),
    End(End),
    Failed(io::Error),
}

/// Waits for a request.
fn next(mut device: &File, buf: &mut Buffer, shared: &Shared, reading: &AtomicBool) -> Next {
    loop {
        reading.store(true, SeqCst);
        if shared.stop.load(SeqCst) {
            return Next::End(End::Stopped);
        }
        let r = device.read(buf.space());
        reading.store(false, SeqCst);
        let e = match r {
            Ok(0) => return Next::End(End::Unmounted),
            Ok(n) => return Next::Request(n),
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
