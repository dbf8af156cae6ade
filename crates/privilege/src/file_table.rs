//! Threads with a table of files of their own, for system calls into mounts of this process.
//!
//! A thread whose request a daemon has taken waits for the answer and cannot be killed. If it is a
//! thread of that daemon, the answer never comes once the daemon is killed. The thread then keeps the
//! table of files it shares with the process, the table keeps the connection (`/dev/fuse`), and all
//! that waits for the mount waits for ever.
//!
//! So a thread that reaches into a mount that this process may serve (looks up, makes or removes a
//! directory, unmounts, writes out) gets a table without the connections ([`with_own_files`]). When the
//! process is killed, the last of the other threads closes the connection, the request fails, and the
//! thread ends.
//!
//! Such a thread can use the descriptors that it was told to keep and those it opens, no others of the
//! process, the log's neither. What it opens means nothing to other threads; [`open_with_own_files`]
//! passes it on.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::net::{self, AddressFamily, SocketFlags, SocketType};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, SendAncillaryBuffer, SendAncillaryMessage,
};

use crate::sys;

/// Descriptors that one message can carry (the kernel's `SCM_MAX_FD`).
const MOST: usize = 253;

/// Runs `work` on a thread whose table of files has the three standard files and `keep` alone, and
/// waits for it. Where that is impossible (no thread, Linux before 5.9) `work` runs with the table of
/// the process.
pub fn with_own_files<T: Send>(keep: &[BorrowedFd<'_>], work: impl FnOnce() -> T + Send) -> T {
    let keep: Vec<i32> = keep.iter().map(|fd| fd.as_raw_fd()).collect();
    let mut work = Some(work);
    let mine = &mut work;
    let done = std::thread::scope(|s| {
        let go = move || {
            sys::keep_files(&keep);
            mine.take().map(|work| work())
        };
        let thread = std::thread::Builder::new().name("own-files".into());
        match thread.spawn_scoped(s, go) {
            Ok(t) => t.join().unwrap_or_else(|p| std::panic::resume_unwind(p)),
            Err(_) => None,
        }
    });
    match (done, work) {
        (Some(done), _) => done,
        (None, Some(work)) => work(),
        (None, None) => unreachable!("work that was begun has ended or panicked"),
    }
}

/// [`with_own_files`] for work that opens files: it gets copies of `keep`, and the caller gets those that it returns
/// beside its result, in order.
///
/// Errors: there are more than 253 descriptors, or more than this process may have. What was opened is closed then.
pub(crate) fn open_with_own_files<T: Send>(
    keep: &[BorrowedFd<'_>],
    work: impl FnOnce(Vec<OwnedFd>) -> (T, Vec<OwnedFd>) + Send,
) -> (T, io::Result<Vec<OwnedFd>>) {
    let copies = || keep.iter().filter_map(|fd| fd.try_clone_to_owned().ok());
    let none = SocketFlags::CLOEXEC;
    let (here, there) =
        match net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, none, None) {
            Ok(pair) => pair,
            Err(_) => {
                // Without a thread of its own, then.
                let (done, files) = work(copies().collect());
                return (done, Ok(files));
            }
        };
    let all: Vec<BorrowedFd<'_>> = [there.as_fd()]
        .into_iter()
        .chain(keep.iter().copied())
        .collect();
    let (done, sent) = with_own_files(&all, || {
        let (done, files) = work(copies().collect());
        let sent = send(there.as_fd(), &files);
        (done, sent)
    });
    let received = sent.and_then(|count| {
        let files = receive(here.as_fd())?;
        match files.len() == count {
            true => Ok(files),
            // The process has no room for more.
            false => Err(io::Error::from_raw_os_error(libc::EMFILE)),
        }
    });
    (done, received)
}

fn send(socket: BorrowedFd<'_>, files: &[OwnedFd]) -> io::Result<usize> {
    let files: Vec<BorrowedFd<'_>> = files.iter().map(AsFd::as_fd).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    // The space may be aligned so that one more fits, which the kernel refuses with EINVAL.
    let fits = files.len() <= MOST;
    let sent = files.is_empty() || fits && control.push(SendAncillaryMessage::ScmRights(&files));
    if !sent {
        return Err(io::Error::from_raw_os_error(libc::EMFILE));
    }
    net::sendmsg(
        socket,
        &[IoSlice::new(&[0])],
        &mut control,
        net::SendFlags::empty(),
    )?;
    Ok(files.len())
}

/// The descriptors that come with the next message; none at the end of the connection. Waits for it.
pub(crate) fn receive(socket: BorrowedFd<'_>) -> io::Result<Vec<OwnedFd>> {
    let mut byte = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    loop {
        let into = &mut [IoSliceMut::new(&mut byte)];
        match net::recvmsg(socket, into, &mut control, net::RecvFlags::CMSG_CLOEXEC) {
            Ok(_) => break,
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
    let mut files = Vec::new();
    for m in control.drain() {
        if let RecvAncillaryMessage::ScmRights(more) = m {
            files.extend(more);
        }
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::{Read, Write};

    fn is_open(fd: i32) -> bool {
        std::fs::read_link(format!("/proc/thread-self/fd/{fd}")).is_ok()
    }

    #[test]
    fn a_thread_has_the_files_it_keeps_and_no_others() {
        let kept = File::open("/dev/null").unwrap();
        let other = File::open("/dev/null").unwrap();
        let (k, o) = (kept.as_raw_fd(), other.as_raw_fd());
        let seen = with_own_files(&[kept.as_fd()], || (is_open(k), is_open(o), is_open(2)));
        assert_eq!(seen, (true, false, true));
        assert!(is_open(o));
        // No hole between the standard files and the first kept, none at all.
        assert_eq!(
            with_own_files(&[], || (is_open(k), is_open(1))),
            (false, true)
        );
    }

    #[test]
    fn files_opened_there_are_passed_on_in_order() {
        let mut pipes = Vec::new();
        let (done, files) = open_with_own_files(&[], |_| {
            let (r, w) = rustix::pipe::pipe().unwrap();
            ("done", vec![w, r])
        });
        pipes.extend(files.unwrap().into_iter().map(File::from));
        assert_eq!(done, "done");
        let mut r = pipes.pop().unwrap();
        pipes.pop().unwrap().write_all(b"through").unwrap();
        let mut text = String::new();
        r.read_to_string(&mut text).unwrap();
        assert_eq!(text, "through");
        let (_, none) = open_with_own_files(&[], |_| ((), Vec::new()));
        assert!(none.unwrap().is_empty());
        let many = || {
            (0..254)
                .map(|_| File::open("/dev/null").unwrap().into())
                .collect()
        };
        let (_, refused) = open_with_own_files(&[], |_| ((), many()));
        assert_eq!(refused.unwrap_err().raw_os_error(), Some(libc::EMFILE));
    }

    #[test]
    fn a_panic_of_the_work_is_the_callers() {
        let r = std::panic::catch_unwind(|| with_own_files(&[], || panic!("at work")));
        let text = r.unwrap_err();
        assert_eq!(text.downcast_ref(), Some(&"at work"));
    }
}
