//! The state that the threads of a session share, and the handle that ends a session from outside.

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::time::Duration;

use base::sync::MutexExt;

use crate::config::Negotiated;
use crate::forgets::Forgets;
use crate::interrupt::Serving;
use crate::request_counts::{RequestCounts, Requests};
use crate::sys;

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

pub(crate) struct Worker {
    pub tid: i32,
    /// Waiting in (or about to enter, or just back from) a system call for requests.
    pub reading: Arc<AtomicBool>,
}

impl Worker {
    /// Puts the calling thread on the list of those that serve; returns its id.
    pub fn enlist(shared: &Shared, reading: &Arc<AtomicBool>) -> i32 {
        let tid = rustix::thread::gettid().as_raw_nonzero().get();
        shared.lock().workers.push(Worker {
            tid,
            reading: reading.clone(),
        });
        tid
    }
}

#[derive(Default)]
pub(crate) struct State {
    /// Threads that serve or wait.
    pub workers: Vec<Worker>,
    /// What those that read from the device serve.
    pub serving: Vec<Arc<Serving>>,
    /// How many there are, counting those about to start.
    pub total: usize,
    /// Those of them that read from the device.
    pub on_device: usize,
    pub running: bool,
    pub end: Option<End>,
    pub error: Option<io::ErrorKind>,
}

#[derive(Default)]
pub(crate) struct Shared {
    pub stop: AtomicBool,
    state: Mutex<State>,
    pub changed: Condvar,
    pub agreed: OnceLock<Negotiated>,
    pub carried: OnceLock<Carried>,
    pub requests: RequestCounts,
    pub forgets: Forgets,
}

impl Shared {
    pub fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.acquire()
    }

    /// A thread has served for the last time: because it is not needed, at the end of the session,
    /// or for a failure, which is the end for all.
    pub fn dismiss(&self, tid: i32, outcome: Result<Option<End>, io::ErrorKind>) {
        let mut state = self.lock();
        state.workers.retain(|w| w.tid != tid);
        match outcome {
            Ok(None) => {}
            Ok(Some(End::Stopped)) => state.end = state.end.or(Some(End::Stopped)),
            Ok(e) => state.end = e,
            Err(e) => {
                state.error.get_or_insert(e);
                // The others could serve on, but run() must report; nothing is lost by ending all.
                self.stop.store(true, SeqCst);
                for w in &state.workers {
                    sys::wake_thread(w.tid);
                }
            }
        }
    }

    /// A thread is gone and holds nothing any more.
    pub fn left(&self) {
        self.lock().total -= 1;
        self.changed.notify_all();
    }
}

/// How requests travel, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Carried {
    /// Over io_uring.
    pub uring: bool,
    /// Why, in words.
    pub why: String,
}

impl fmt::Display for Carried {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let how = if self.uring { "io_uring" } else { "/dev/fuse" };
        write!(f, "{how}: {}", self.why)
    }
}

/// Ends a session from another thread, and tells about it.
#[derive(Clone)]
pub struct Handle(pub(crate) Arc<Shared>);

impl Handle {
    /// Makes [`Session::run`](crate::Session::run) return once the requests being served are answered; waits for that
    /// unless no session is running. Must not be called from a method of the file system. When the
    /// session is dropped too, the kernel fails whatever is still asked with ENOTCONN, until the
    /// file system is unmounted. Over io_uring that takes a moment longer; what is asked meanwhile
    /// fails with ECANCELED or ECONNABORTED.
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

    /// Whether [`Session::run`](crate::Session::run) is under way.
    pub fn is_running(&self) -> bool {
        self.0.lock().running
    }

    /// What was agreed, once the kernel has asked for it.
    pub fn negotiated(&self) -> Option<Negotiated> {
        self.0.agreed.get().copied()
    }

    /// How requests travel, once that is settled.
    pub fn carried(&self) -> Option<Carried> {
        self.0.carried.get().cloned()
    }

    /// How many requests of each kind were served so far.
    pub fn requests(&self) -> Requests {
        self.0.requests.read()
    }

    /// Threads serving at the moment.
    pub fn threads(&self) -> usize {
        self.0.lock().total
    }
}
