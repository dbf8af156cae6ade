//! Interruption of requests whose process is being killed.
//!
//! A process that waits for the answer to a request which the daemon has read cannot end before it
//! gets one, even when killed. So where a device takes for ever, the request of a killed process is
//! answered in place of the thread that serves it: with EINTR, which nobody gets to see. That thread
//! goes on, what it works with stays its own, and its answer comes too late and is dropped.
//!
//! Over io_uring an answer goes through an entry of the ring. There a new thread takes over the entry of the one that serves
//! the request, answers by it and goes on with it ([`crate::ring`]). The old thread finds that out when it wants to answer,
//! and ends. What it works with is not the entry's memory: such requests are copied first.
//!
//! A change that has not begun when it is given up is not made ([`base::cancel::may_change`]): it would come after what others did
//! meanwhile. Of one that has, the kernel must know how it ended, or its names and sizes differ from those on the disk. So when the thread that
//! serves it is through, the file system is told of what may have changed ([`crate::Filesystem::outcome_unknown`]), and tells the
//! kernel. Pages that the kernel writes back are no request of a process, and are never given up. Other signals are no reason:
//! programs do not expect that looking at a file is interrupted (by a timer, say, or the end of a child).
//!
//! A request costs three stores to memory of its own thread. Only when the kernel reports a signal
//! (INTERRUPT), or there may be no more threads, somebody looks, until no request takes long.

use std::cell::RefCell;
use std::fs::File;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::*};
use std::sync::Arc;
use std::time::Duration;

use zerocopy::FromBytes;

use crate::abi::{self, op};
use crate::channel::{Answer, Channel};
use crate::dispatch::Message;
use crate::types::Errno;
use crate::undoing;
use crate::worker_pool;

/// How often somebody looks, while there is something to see.
const TICK: Duration = Duration::from_millis(200);
/// A request that takes longer (ns) may be given up; others end by themselves.
const LONG: u64 = 500_000_000;
/// So many looks in a row without one that takes long, and nobody looks any more.
const QUIET: u32 = 10;
/// Most threads that may be started for those whose requests were given up. Beyond that nobody
/// takes requests, and the kernel lets go of those that were not taken by itself.
pub(crate) const INSTEAD: usize = 64;

/// The request was answered by somebody else. (The kernel numbers in steps of two.)
const GIVEN_UP: u64 = 1;
/// There may be one more thread until the request ends.
const REPLACED: u64 = 1 << 62;

/// What a thread serves, if it may be given up. On a line of its own: nobody else touches it as
/// long as all goes well.
#[repr(align(128))]
pub(crate) struct Serving {
    /// Number of the request, with the flags above; 0: none.
    unique: AtomicU64,
    /// Thread that asked, and since when ([`worker_pool::now`]) it is served.
    pid: AtomicU32,
    since: AtomicU64,
    /// Where answers go.
    way: Way,
    /// Somebody is about to take over.
    trying: AtomicBool,
}

thread_local! {
    /// What the calling thread serves.
    static SERVED: RefCell<Option<Arc<Serving>>> = const { RefCell::new(None) };
}

/// The calling thread serves what is in `serving` from now on: changes of a request that is given up do not begin on it.
pub(crate) fn serve_for(serving: &Arc<Serving>) {
    base::cancel::may_change_unless(is_given_up);
    undoing::set(false);
    SERVED.set(Some(serving.clone()));
}

fn is_given_up() -> bool {
    let given_up = |s: &Arc<Serving>| s.unique.load(Acquire) & GIVEN_UP != 0;
    !undoing::is_on() && SERVED.with_borrow(|s| s.as_ref().is_some_and(given_up))
}

enum Way {
    /// Where the request came from.
    Channel(Arc<File>),
    /// Has somebody take over, who calls [`Serving::take_over`].
    Ring(Box<dyn Fn(&Arc<Serving>) + Send + Sync>),
}

impl Serving {
    fn by(way: Way) -> Serving {
        Serving {
            unique: AtomicU64::new(0),
            pid: AtomicU32::new(0),
            since: AtomicU64::new(0),
            way,
            trying: AtomicBool::new(false),
        }
    }

    /// By a channel of the device; no request is served yet.
    pub fn on(channel: Arc<File>) -> Serving {
        Serving::by(Way::Channel(channel))
    }

    /// By an entry of a ring: `instead` has another thread take it over, which calls [`Serving::take_over`] or
    /// [`Serving::leave`].
    pub fn in_ring(instead: impl Fn(&Arc<Serving>) + Send + Sync + 'static) -> Serving {
        Serving::by(Way::Ring(Box::new(instead)))
    }

    /// The thread begins to serve a request, at `now`.
    pub fn begin(&self, msg: &Message<'_>, now: u64) {
        if may_be_given_up(msg) {
            self.pid.store(msg.head.pid, Relaxed);
            self.since.store(now, Relaxed);
            self.unique.store(msg.head.unique, Release);
        }
    }

    /// The thread is going to answer. Whether it may; if not, somebody else has.
    pub fn claim(&self) -> bool {
        self.unique.load(Relaxed) == 0 || self.unique.swap(0, AcqRel) & GIVEN_UP == 0
    }

    /// Takes a request over that takes long, if its thread was killed; its number. The one who serves it finds that out
    /// when it claims the answer.
    pub fn take_over(&self) -> Option<u64> {
        let unique = self.is_long(worker_pool::now())?;
        let marked = unique | GIVEN_UP;
        let killed = is_killed(self.pid.load(Relaxed));
        // Another one may be served by now, which has another number.
        (killed && self.swap(unique, marked)).then_some(unique)
    }

    /// Has somebody take over. Takes locks of the session.
    pub fn replace(self: &Arc<Self>) {
        if let Way::Ring(instead) = &self.way {
            instead(self);
        }
    }

    /// Nobody takes over for now.
    pub fn leave(&self) {
        self.trying.store(false, SeqCst);
    }

    fn swap(&self, from: u64, to: u64) -> bool {
        let swapped = self.unique.compare_exchange(from, to, AcqRel, Relaxed);
        swapped.is_ok()
    }

    /// The number of the request, if it takes long and is not given up yet.
    fn is_long(&self, now: u64) -> Option<u64> {
        let unique = self.unique.load(Acquire);
        let since = self.since.load(Relaxed);
        let not_yet = unique == 0 || unique & GIVEN_UP != 0 || now.saturating_sub(since) < LONG;
        (!not_yet).then_some(unique)
    }

    /// It is done with it.
    pub fn end(&self) -> Ended {
        let unique = match self.unique.load(Relaxed) {
            0 => 0,
            _ => self.unique.swap(0, AcqRel),
        };
        Ended {
            given_up: unique & GIVEN_UP != 0,
            replaced: unique & REPLACED != 0,
        }
    }

    /// Gives the request up if it has taken long and `killed` says so of the thread that asked.
    /// `lent` counts the threads in place of others.
    fn look(&self, now: u64, lent: &AtomicUsize, killed: impl Fn(u32) -> bool) -> Found {
        let Some(unique) = self.is_long(now) else {
            return Found::Nothing;
        };
        if !killed(self.pid.load(Relaxed)) {
            return Found::Long;
        }
        let file = match &self.way {
            Way::Channel(file) => file,
            Way::Ring(_) => {
                return match self.trying.swap(true, SeqCst) {
                    true => Found::Long,
                    false => Found::Instead,
                };
            }
        };
        // Lent before it can be taken back.
        let replaced = lent.fetch_update(SeqCst, SeqCst, |n| (n < INSTEAD).then_some(n + 1));
        let flag = if replaced.is_ok() { REPLACED } else { 0 };
        let marked = unique | GIVEN_UP | flag;
        if !self.swap(unique, marked) {
            // Another one is served by now, to which `pid` may already belong.
            if replaced.is_ok() {
                lent.fetch_sub(1, SeqCst);
            }
            return Found::Nothing;
        }
        // Fails if it has just been answered.
        let chan = Channel { file };
        let _ = chan.err(unique, Errno(libc::EINTR));
        Found::GivenUp
    }
}

/// How a request ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ended {
    /// Somebody else has answered it.
    pub given_up: bool,
    /// There was one more thread meanwhile.
    pub replaced: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Found {
    Nothing,
    /// A request that takes long.
    Long,
    /// Somebody has to take it over ([`Serving::replace`]).
    Instead,
    GivenUp,
}

/// Looks at all that is served, once. Returns the most that was found, and what somebody has to take over.
pub(crate) fn look(all: &[Arc<Serving>], lent: &AtomicUsize) -> (Found, Vec<Arc<Serving>>) {
    let now = worker_pool::now();
    let (mut most, mut instead) = (Found::Nothing, Vec::new());
    for s in all {
        let found = s.look(now, lent, is_killed);
        if found == Found::Instead {
            instead.push(s.clone());
        }
        most = most.max(found);
    }
    (most, instead)
}

/// Whether a thread has been sent a signal that ends it whatever it does, or is ending already.
pub fn is_killed(tid: u32) -> bool {
    /// Of the flags in `/proc/TID/stat`: files are being closed, for one.
    const PF_EXITING: u64 = 4;
    let stat = std::fs::read_to_string(format!("/proc/{tid}/stat")).unwrap_or_default();
    // Behind the name, which may contain anything, flags are the seventh field.
    let flags = stat
        .rsplit(')')
        .next()
        .and_then(|rest| rest.split_whitespace().nth(6))
        .and_then(|f| f.parse::<u64>().ok());
    if flags.is_some_and(|f| f & PF_EXITING != 0) {
        return true;
    }
    const SIGKILL: u64 = 1 << (libc::SIGKILL - 1);
    let status = std::fs::read_to_string(format!("/proc/{tid}/status")).unwrap_or_default();
    // A signal that is fatal for a process becomes a SIGKILL for each of its threads.
    let of_thread = status.lines().find_map(|l| l.strip_prefix("SigPnd:"));
    of_thread
        .and_then(|set| u64::from_str_radix(set.trim(), 16).ok())
        .is_some_and(|set| set & SIGKILL != 0)
}

/// Whether a process waits for it, which can do without the answer when it is killed.
pub(crate) fn may_be_given_up(msg: &Message<'_>) -> bool {
    match msg.head.opcode {
        op::WRITE => abi::WriteIn::read_from_prefix(msg.op.unwrap_or(msg.body))
            .is_ok_and(|(w, _)| w.write_flags & abi::WRITE_CACHE == 0),
        op::LOOKUP
        | op::GETATTR
        | op::STATX
        | op::READLINK
        | op::READ
        | op::STATFS
        | op::FSYNC
        | op::FSYNCDIR
        | op::SYNCFS
        | op::FLUSH
        | op::GETXATTR
        | op::LISTXATTR
        | op::OPENDIR
        | op::READDIR
        | op::READDIRPLUS
        | op::ACCESS
        | op::LSEEK
        | op::OPEN
        | op::CREATE
        | op::TMPFILE
        | op::MKNOD
        | op::MKDIR
        | op::SYMLINK
        | op::LINK
        | op::UNLINK
        | op::RMDIR
        | op::RENAME
        | op::RENAME2
        | op::SETATTR
        | op::SETXATTR
        | op::REMOVEXATTR
        | op::IOCTL
        | op::FALLOCATE
        | op::COPY_FILE_RANGE
        | op::COPY_FILE_RANGE_64 => true,
        _ => false,
    }
}

/// Whether somebody looks.
#[derive(Default)]
pub(crate) struct Lookout {
    running: AtomicBool,
    asked: AtomicBool,
}

impl Lookout {
    /// There may be something to see from now on. Calls `start` if nobody looks, which begins to
    /// run [`Lookout::run`] and says whether it could.
    pub fn ask(&self, start: impl FnOnce() -> bool) {
        self.asked.store(true, SeqCst);
        if !self.running.swap(true, SeqCst) && !start() {
            self.running.store(false, SeqCst);
        }
    }

    /// Looks, by calling `look`, until that was in vain for a while or it returns `None`. `look`
    /// returns whether there was something.
    pub fn run(&self, mut look: impl FnMut() -> Option<bool>) {
        let mut quiet = 0;
        loop {
            std::thread::sleep(TICK);
            match look() {
                None => return,
                Some(true) => quiet = 0,
                Some(false) => quiet += 1,
            }
            if self.asked.swap(false, SeqCst) {
                quiet = 0;
            }
            if quiet >= QUIET {
                self.running.store(false, SeqCst);
                // Asked meanwhile, by somebody who did not start another one?
                if !self.asked.load(SeqCst) || self.running.swap(true, SeqCst) {
                    return;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use zerocopy::IntoBytes;

    fn message(opcode: u32, body: &[u8]) -> Message<'_> {
        let head = abi::InHeader {
            opcode,
            unique: 8,
            pid: 77,
            ..Default::default()
        };
        Message {
            head,
            op: None,
            body,
            blocks: &[],
        }
    }

    #[test]
    fn a_request_is_given_up_once_and_only_if_killed_and_long() {
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let s = Serving::on(Arc::new(File::from(std::os::fd::OwnedFd::from(theirs))));
        let msg = message(op::READ, &[]);
        let lent = AtomicUsize::new(0);
        let look = |now, killed: bool| s.look(now, &lent, |pid| killed && pid == 77);
        assert_eq!(look(LONG, true), Found::Nothing);
        s.begin(&msg, 1000);
        assert_eq!(look(LONG, true), Found::Nothing);
        let late = 1000 + LONG;
        assert_eq!(look(late, false), Found::Long);
        assert_eq!(look(late, true), Found::GivenUp);
        assert_eq!(look(late, true), Found::Nothing);
        assert_eq!(lent.swap(INSTEAD, SeqCst), 1);
        let (given_up, replaced) = (true, true);
        assert_eq!(s.end(), Ended { given_up, replaced });
        assert_eq!(s.end(), Ended::default());
        // As many as there may be are there.
        s.begin(&msg, 1000);
        assert_eq!(look(late, true), Found::GivenUp);
        assert!(s.end().given_up && !s.end().replaced);
        assert_eq!(lent.load(SeqCst), INSTEAD);
        drop(s);
        let mut answers = Vec::new();
        (&ours).read_to_end(&mut answers).unwrap();
        let answer = abi::OutHeader {
            len: 16,
            error: -libc::EINTR,
            unique: 8,
        };
        assert_eq!(answers, [answer.as_bytes(); 2].concat());
    }

    #[test]
    fn an_entry_of_a_ring_is_taken_over_once_and_only_if_killed_and_long() {
        // Killed and not waited for, so its number stays its own.
        let mut child = std::process::Command::new("sleep")
            .arg("100")
            .spawn()
            .unwrap();
        let asked = Arc::new(AtomicUsize::new(0));
        let count = asked.clone();
        let s = Arc::new(Serving::in_ring(move |_| {
            count.fetch_add(1, SeqCst);
        }));
        let lent = AtomicUsize::new(0);
        let head = abi::InHeader {
            opcode: op::LOOKUP,
            unique: 8,
            pid: child.id(),
            ..Default::default()
        };
        let msg = Message {
            head,
            ..message(op::LOOKUP, b"name\0")
        };
        let look = |s: &Arc<Serving>| look(std::slice::from_ref(s), &lent);
        // Began when this process did, which is long enough ago after this.
        worker_pool::now();
        std::thread::sleep(Duration::from_nanos(LONG));
        s.begin(&msg, 0);
        assert_eq!(look(&s).0, Found::Long);
        assert_eq!(s.take_over(), None);
        child.kill().unwrap();
        // Between the signal and its end a process shows neither.
        let stat = || std::fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
        while !stat().contains(") Z ") {
            std::thread::sleep(Duration::from_millis(1));
        }
        let (found, instead) = look(&s);
        assert_eq!((found, instead.len()), (Found::Instead, 1));
        instead[0].replace();
        assert_eq!(asked.load(SeqCst), 1);
        // Asked for, but not there yet; given up; asked for anew.
        assert_eq!(look(&s).0, Found::Long);
        s.leave();
        assert_eq!(look(&s).0, Found::Instead);
        assert_eq!(s.take_over(), Some(8));
        assert_eq!(s.take_over(), None);
        assert_eq!(look(&s).0, Found::Nothing);
        assert!(!s.claim());
        // The next one is nobody else's.
        assert!(s.claim());
        s.begin(&msg, worker_pool::now());
        assert!(s.claim());
        assert_eq!(s.take_over(), None);
        child.wait().unwrap();
    }

    #[test]
    fn everything_but_pages_written_back_is_given_up() {
        let write = |flags: u32| abi::WriteIn {
            write_flags: flags,
            ..Default::default()
        };
        assert!(may_be_given_up(&message(op::WRITE, write(0).as_bytes())));
        let cached = write(abi::WRITE_CACHE);
        assert!(!may_be_given_up(&message(op::WRITE, cached.as_bytes())));
        assert!(!may_be_given_up(&message(op::WRITE, &[])));
        for opcode in [op::SETATTR, op::MKDIR, op::RENAME2, op::IOCTL, op::READ] {
            assert!(may_be_given_up(&message(opcode, &[])), "{opcode}");
        }
        for opcode in [op::RELEASE, op::FORGET, op::INTERRUPT, op::DESTROY] {
            assert!(!may_be_given_up(&message(opcode, &[])), "{opcode}");
        }
    }

    /// Of this process it is known; the other case is for tests with a mount.
    #[test]
    fn the_living_are_not_killed() {
        assert!(!is_killed(std::process::id()));
        assert!(!is_killed(u32::MAX));
    }

    #[test]
    fn somebody_looks_as_long_as_there_is_something_to_see() {
        let lookout = Lookout::default();
        let mut started = 0;
        for _ in 0..3 {
            lookout.ask(|| {
                started += 1;
                true
            });
        }
        assert_eq!(started, 1);
        let mut looks = 0;
        lookout.run(|| {
            looks += 1;
            Some(looks < 3)
        });
        assert!(looks >= 2 + QUIET);
        lookout.ask(|| {
            started += 1;
            false
        });
        lookout.ask(|| {
            started += 1;
            true
        });
        assert_eq!(started, 3);
    }
}
