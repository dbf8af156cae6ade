//! Processes that walk others' paths for this one.
//!
//! A path may lead through a file system that does not answer: a dead NFS server, a FUSE server that somebody stopped. A thread
//! that asks it waits, often unkillably, and keeps its process from ending. So the daemon walks no path that others can
//! choose. A helper does: the same program in a mode of its own, with a socket as its standard input.
//!
//! 1. A helper has none of the daemon's descriptors but those sent with a question, and these are opened with `O_PATH`, which
//!    asks no file system when they are closed; or connections that nobody uses yet.
//! 2. A question has a time limit. A helper beyond it is killed, and left to itself: it may be stuck until its file system
//!    answers. As long as it is, nobody is sent the same way.
//! 3. For an ordinary user a helper has this user's permissions as far as files go: the answer tells no more than the user could
//!    find out without the daemon.
//!
//! Programs that did not call [`walk_in_processes`] (tests) walk on threads, as [`crate::with_own_files`] has it.
//!
//! What a helper is asked is a `question::Job`. Start at `ask_helper`.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use base::sync::MutexExt;
use base::{Error, Kind, Result};
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::net::{self, AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, SendAncillaryBuffer, SendAncillaryMessage,
};
use serde::{Deserialize, Serialize};

use crate::sys;

/// What the first argument of a helper is.
pub const ARGUMENT: &str = "--walk-paths";
/// How long a path may take to be walked. Mounts of this daemon are asked as well, and may be busy.
pub(crate) const LIMIT: Duration = Duration::from_secs(8);
/// The same where somebody is thrown out by force.
pub(crate) const SHORT: Duration = Duration::from_secs(2);
/// How often a wait looks at what has changed.
const TICK: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 50_000_000,
};
/// Helpers that wait for the next question.
const IDLE: usize = 8;
/// Most helpers that may be stuck; then every question is refused.
const STUCK: usize = 64;
/// The same for the questions of one ordinary user; then this user's are refused.
const STUCK_OF_USER: usize = 8;
/// Most descriptors with one message (the kernel's `SCM_MAX_FD`), and bytes of one.
pub(crate) const MOST_FILES: usize = 253;
pub(crate) const MOST_BYTES: usize = 128 << 10;

/// The user a path is walked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Walker {
    /// User id.
    pub uid: u32,
    /// Group ids, the process's own first. None at all: the groups are not known, and the path is walked as root.
    pub groups: Vec<u32>,
}

static PROGRAM: OnceLock<PathBuf> = OnceLock::new();

/// From now on paths are walked by processes of this program, which must call [`crate::serve_paths`] when its first argument is
/// [`ARGUMENT`].
pub fn walk_in_processes() {
    let _ = PROGRAM.set("/proc/self/exe".into());
}

/// Whether paths are walked by processes.
pub(crate) fn in_processes() -> bool {
    PROGRAM.get().is_some()
}

/// Answers questions until the other process ends. `perform` does the job of a name.
pub(crate) fn serve(perform: impl Fn(&str, &str, Vec<OwnedFd>) -> Option<(Vec<u8>, Vec<OwnedFd>)>) {
    let stdin = io::stdin();
    let _ = rustix::thread::set_name(c"zfs-fuse-paths");
    while let Ok(Some((bytes, files))) = get(stdin.as_fd()) {
        let Ok((name, body)) = serde_json::from_slice::<(String, String)>(&bytes) else {
            return;
        };
        let Some((answer, files)) = perform(&name, &body, files) else {
            return;
        };
        if put(stdin.as_fd(), &answer, &files).is_err() {
            return;
        }
    }
}

/// Runs `walk` with the permissions of a user, where this is a helper; as the process itself otherwise.
pub(crate) fn as_walker<T>(walker: Option<&Walker>, walk: impl FnOnce() -> T) -> T {
    let walker = walker.filter(|_| is_helper());
    let known = walker.and_then(|w| Some((w, *w.groups.first()?)));
    let Some((walker, group)) = known else {
        return walk();
    };
    sys::become_for_files(walker.uid, group, &walker.groups);
    let done = walk();
    let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
    sys::become_for_files(uid.as_raw(), gid.as_raw(), &[]);
    done
}

fn is_helper() -> bool {
    std::env::args_os().nth(1).is_some_and(|a| a == ARGUMENT)
}

/// How long an answer may take.
pub struct Limit<'a> {
    /// This long, as long as `beyond` says no.
    pub time: Duration,
    /// The path has been walked: what is left takes its time.
    pub beyond: &'a dyn Fn() -> bool,
}

impl Limit<'static> {
    /// So long, whatever happens.
    pub fn of(time: Duration) -> Limit<'static> {
        Limit {
            time,
            beyond: &|| false,
        }
    }
}

/// Has a helper answer a question about `path`, with these descriptors: name and body of the question in `message`. `user`: the
/// ordinary user whose path it is.
///
/// Errors: again, if it takes too long or somebody else waits there; those of the system.
pub(crate) fn ask_helper(
    path: &Path,
    user: Option<u32>,
    limit: &Limit<'_>,
    message: &[u8],
    files: &[BorrowedFd<'_>],
) -> Result<(Vec<u8>, Vec<OwnedFd>)> {
    let mut helper = Helper::take(path, user)?;
    if helper.send(message, files).is_err() {
        // It has ended while it waited.
        helper.abandon(path, user);
        helper = Helper::start()?;
        if let Err(e) = helper.send(message, files) {
            helper.abandon(path, user);
            return Err(e);
        }
    }
    match helper.answer(path, limit) {
        Ok(answer) => {
            helper.give_back();
            Ok(answer)
        }
        Err(e) => {
            helper.abandon(path, user);
            Err(e)
        }
    }
}

fn broken(e: io::Error) -> Error {
    Error::from(e).context("the process that walks paths")
}

struct Helper {
    child: Child,
    socket: OwnedFd,
}

static WAITING: Mutex<Vec<Helper>> = Mutex::new(Vec::new());
/// Helpers that were killed and have not ended yet.
static ABANDONED: Mutex<Vec<(Way, Child)>> = Mutex::new(Vec::new());

/// Where a helper is stuck, and for which ordinary user.
#[derive(Clone, Debug)]
struct Way {
    path: PathBuf,
    user: Option<u32>,
}

/// Whether nobody is sent along `path` for a user, with helpers stuck on these ways.
fn is_refused<'a>(stuck: impl Iterator<Item = &'a Way>, path: &Path, user: Option<u32>) -> bool {
    let (mut all, mut of_user) = (0, 0);
    for way in stuck {
        if path.starts_with(&way.path) {
            return true;
        }
        all += 1;
        of_user += usize::from(user.is_some() && way.user == user);
    }
    all >= STUCK || of_user >= STUCK_OF_USER
}

impl Helper {
    fn take(path: &Path, user: Option<u32>) -> Result<Helper> {
        {
            let mut abandoned = ABANDONED.acquire();
            abandoned.retain_mut(|(_, child)| matches!(child.try_wait(), Ok(None)));
            if is_refused(abandoned.iter().map(|(way, _)| way), path, user) {
                return Err(silent(path));
            }
        }
        let waiting = WAITING.acquire().pop();
        waiting.map_or_else(Helper::start, Ok)
    }

    fn start() -> Result<Helper> {
        let fail = |e: io::Error| Error::from(e).context("starting a process that walks paths");
        let (ours, theirs) = net::socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )
        .map_err(|e| fail(e.into()))?;
        for end in [&ours, &theirs] {
            let _ = net::sockopt::set_socket_send_buffer_size(end, 2 * MOST_BYTES);
        }
        let program = PROGRAM.get().cloned().unwrap_or_default();
        let child = Command::new(program)
            .arg0("zfs-fuse")
            .arg(ARGUMENT)
            // What the terminal tells the daemon is not for it: the daemon needs it to end.
            .process_group(0)
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            // A command that starts the daemon reads the daemon's errors to their end: nobody else may keep them open.
            .stderr(Stdio::null())
            .spawn()
            .map_err(fail)?;
        Ok(Helper {
            child,
            socket: ours,
        })
    }

    fn send(&self, message: &[u8], files: &[BorrowedFd<'_>]) -> Result<()> {
        put(self.socket.as_fd(), message, files).map_err(broken)
    }

    fn answer(&self, path: &Path, limit: &Limit<'_>) -> Result<(Vec<u8>, Vec<OwnedFd>)> {
        let begin = Instant::now();
        loop {
            let mut fds = [PollFd::new(&self.socket, PollFlags::IN)];
            match poll(&mut fds, Some(&TICK)) {
                Ok(0) if begin.elapsed() > limit.time && !(limit.beyond)() => {
                    return Err(silent(path));
                }
                Ok(0) | Err(rustix::io::Errno::INTR) => {}
                Ok(_) => break,
                Err(e) => return Err(broken(e.into())),
            }
        }
        get(self.socket.as_fd())
            .and_then(|got| got.ok_or_else(|| io::ErrorKind::UnexpectedEof.into()))
            .map_err(broken)
    }

    fn give_back(self) {
        let mut waiting = WAITING.acquire();
        if waiting.len() < IDLE {
            return waiting.push(self);
        }
        drop(waiting);
        let Helper { mut child, socket } = self;
        // It ends at the end of its socket.
        drop(socket);
        let _ = child.wait();
    }

    fn abandon(mut self, path: &Path, user: Option<u32>) {
        let _ = self.child.kill();
        let path = path.to_path_buf();
        ABANDONED.acquire().push((Way { path, user }, self.child));
    }
}

/// The error for a path that does not answer.
pub(crate) fn silent(path: &Path) -> Error {
    let text = format!(
        "{}: a file system on the way there does not answer",
        path.display()
    );
    Error::new(Kind::Again, text)
}

fn put<F: AsFd>(socket: BorrowedFd<'_>, bytes: &[u8], files: &[F]) -> io::Result<()> {
    let files: Vec<BorrowedFd<'_>> = files.iter().map(AsFd::as_fd).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FILES))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fits = files.is_empty()
        || files.len() <= MOST_FILES && control.push(SendAncillaryMessage::ScmRights(&files));
    if !fits || bytes.len() > MOST_BYTES {
        return Err(io::Error::from_raw_os_error(libc::EMFILE));
    }
    loop {
        match net::sendmsg(
            socket,
            &[IoSlice::new(bytes)],
            &mut control,
            SendFlags::NOSIGNAL,
        ) {
            Ok(_) => return Ok(()),
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
}

/// The next message; none at the end of the connection.
fn get(socket: BorrowedFd<'_>) -> io::Result<Option<(Vec<u8>, Vec<OwnedFd>)>> {
    let mut bytes = vec![0; MOST_BYTES];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FILES))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let got = loop {
        let mut into = [IoSliceMut::new(&mut bytes)];
        match net::recvmsg(socket, &mut into, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Ok(got) => break got.bytes,
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    };
    let mut files = Vec::new();
    for m in control.drain() {
        if let RecvAncillaryMessage::ScmRights(more) = m {
            files.extend(more);
        }
    }
    bytes.truncate(got);
    Ok((got > 0).then_some((bytes, files)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_whose_paths_are_stuck_stops_nobody_else() {
        let on = |n: usize, user| Way {
            path: format!("/homes/joe/{n}").into(),
            user,
        };
        let stuck: Vec<Way> = (0..STUCK_OF_USER).map(|n| on(n, Some(1000))).collect();
        let refused =
            |stuck: &[Way], path: &str, user| is_refused(stuck.iter(), Path::new(path), user);
        assert!(refused(&stuck, "/homes/joe/other", Some(1000)));
        assert!(!refused(&stuck[1..], "/homes/joe/other", Some(1000)));
        assert!(!refused(&stuck, "/homes/mary", Some(1001)));
        assert!(!refused(&stuck, "/tank", None));
        // The same way, for whomever.
        assert!(refused(&stuck, "/homes/joe/1/below", None));
        assert!(!refused(&stuck, "/homes/joe/12", None));
        let many: Vec<Way> = (0..STUCK).map(|n| on(n, None)).collect();
        assert!(refused(&many, "/tank", None));
    }
}
