//! FORGETs where all else comes over io_uring.
//!
//! The kernel sends a FORGET when it has let go of a node. Nobody waits for it, and many come at once. So the thread that reads
//! them from the device takes a pause after each batch, and whoever removes many files does not wake it for each one.
//!
//! But an object without links stays until the kernel has forgotten it. Who takes a snapshot right after a file was
//! removed does not want the file in it. So whoever needs to know asks for those that were sent ([`Forgets::wait`]).

use std::fs::File;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use base::sync::MutexExt;
use rustix::event::{poll, PollFd, PollFlags, Timespec};

/// How long FORGETs are left to gather.
const PAUSE: Duration = Duration::from_millis(5);
/// How long serving those that were sent may take: an object that goes may need a txg.
const MOST: Duration = Duration::from_secs(5);
/// How often it is looked whether they are served.
const LOOK: Duration = Duration::from_micros(100);

/// What those who read from the device and those who wait for them share.
#[derive(Default)]
pub(crate) struct Forgets {
    /// One reads at a time, so whoever finds something to be read gets it.
    reading: Mutex<()>,
    /// Threads that may have read something that they have not served.
    serving: AtomicUsize,
    /// How many wait.
    waiting: Mutex<usize>,
    called: Condvar,
}

/// A thread may have something that it has not served.
pub(crate) struct Turn<'a>(&'a Forgets);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.serving.fetch_sub(1, SeqCst);
    }
}

/// What there is: something to be read, or the end of the connection. Waits up to `limit` for it. After a signal there may be
/// something.
fn look(device: &File, limit: Option<&Timespec>) -> PollFlags {
    let mut fds = [PollFd::new(device, PollFlags::IN)];
    match poll(&mut fds, limit) {
        Ok(_) => fds[0].revents(),
        Err(_) => PollFlags::IN,
    }
}

impl Forgets {
    /// Waits until there is something to be read, or a signal comes. What it returns is to be held until something was read,
    /// and until that is served.
    pub fn turn(&self, device: &File) -> (MutexGuard<'_, ()>, Turn<'_>) {
        let alone = self.reading.acquire();
        look(device, None);
        self.serving.fetch_add(1, SeqCst);
        (alone, Turn(self))
    }

    /// Lets more of them gather, unless somebody waits.
    pub fn pause(&self) {
        let waiting = self.waiting.acquire();
        if *waiting == 0 {
            drop(self.called.wait_timeout(waiting, PAUSE));
        }
    }

    /// Waits until those that the kernel has sent so far are served. Whether they are: it does not wait for ever.
    pub fn wait(&self, device: &File) -> bool {
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        *self.waiting.acquire() += 1;
        self.called.notify_all();
        let begin = Instant::now();
        let done = loop {
            let seen = look(device, Some(&now));
            // In this order: whoever has read something counts since before.
            let served = seen.is_empty() && self.serving.load(SeqCst) == 0;
            // At the end of the connection nothing comes any more.
            if served || seen.intersects(PollFlags::ERR | PollFlags::HUP) {
                break true;
            }
            if begin.elapsed() > MOST {
                break false;
            }
            std::thread::sleep(LOOK);
        };
        *self.waiting.acquire() -= 1;
        done
    }
}
