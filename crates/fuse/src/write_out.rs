//! Taking from the kernel the written data of open files that it still keeps in its page cache.
//!
//! With the write-back cache `write(2)` returns before the daemon has seen a byte. Aborting the
//! connection drops such pages. [`write_out`] makes the kernel send them first.
//!
//! The kernel offers two ways to wait for one file, and none to wait for a mount (`syncfs(2)` merely
//! starts the write-out):
//! 1. Closing a descriptor of the file writes out its pages and times and waits for the answers. The
//!    page cache stays. The file is opened by its handle, which needs root and a mount at its place.
//! 2. INVAL_INODE writes out and waits too, but drops the page cache of the file. It needs neither.
//!    It is a write to the connection, so a thread that waits in it keeps the connection of a killed
//!    process (see [`crate::with_own_files`]).
//!
//! Both also take what was stored through a shared mapping. Calls block until the session has
//! answered the WRITE requests. So they must not be made by a thread that serves requests, nor with
//! a lock that serving a WRITE needs.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use base::sync::MutexExt;
use privilege::{with_own_files, Mount};

use crate::notify::Notifier;
use crate::sys;

/// How long requests already queued may take to reach the daemon, where only
/// `/sys/fs/fuse/connections` tells.
const QUEUED: Duration = Duration::from_secs(2);
/// Files written out at a time.
const THREADS: usize = 4;

/// What becomes of the pages that were written out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pages {
    /// They stay cached as far as possible: the mount goes on.
    Keep,
    /// They may be dropped: the mount is about to end.
    Drop,
}

/// A file by its node id, and the generation of [`crate::Entry`].
pub type NodeAndGeneration = (u64, u32);

/// Waits until the daemon has answered for everything that was written to `files` before the call.
/// `done` is told of each file: what became of data that could not be written, where the kernel says
/// so. Blocks as long as the session does not answer. Keeps the mount busy.
pub fn write_out(
    mount: &Mount,
    notifier: &Notifier,
    files: &[NodeAndGeneration],
    pages: Pages,
    done: &(dyn Fn(io::Result<()>) + Sync),
) {
    let other_way = Mutex::new(Vec::new());
    let root = mount.root();
    let keep: Vec<_> = root.iter().map(AsFd::as_fd).collect();
    with_own_files(&keep, || {
        let Ok(root) = &root else {
            *other_way.acquire() = files.to_vec();
            return;
        };
        // Files are waited for one by one; this sends the data of all of them meanwhile.
        let _ = rustix::fs::syncfs(root);
        each(files, &|file| match by_handle(root, file, pages) {
            Some(r) => done(r),
            None => other_way.acquire().push(file),
        });
    });
    let other_way = std::mem::take(&mut *other_way.acquire());
    each(&other_way, &|(node, _)| {
        done(notifier.inval_inode(node, 0, 0).map(|_| ()));
    });
    if !other_way.is_empty() && pages == Pages::Drop {
        settle_queue(mount);
    }
}

/// Does something for each file, several at a time.
fn each(files: &[NodeAndGeneration], what: &(dyn Fn(NodeAndGeneration) + Sync)) {
    let next = AtomicUsize::new(0);
    let run = || {
        while let Some(file) = files.get(next.fetch_add(1, Ordering::Relaxed)) {
            what(*file);
        }
    };
    std::thread::scope(|s| {
        for _ in 1..THREADS.min(files.len()) {
            // Without another thread this one does it all.
            let _ = std::thread::Builder::new().spawn_scoped(s, run);
        }
        run();
    });
}

/// Writes a file out by opening and closing it; `None` if that cannot be done: no capability, or a
/// kernel without handles.
fn by_handle(root: &File, file: NodeAndGeneration, pages: Pages) -> Option<io::Result<()>> {
    match sys::open_by_node(root, file.0, file.1, libc::O_RDONLY) {
        Ok(file) => Some(sys::close(file)),
        // A file that is gone has nothing to keep.
        Err(e) if pages == Pages::Keep && e.raw_os_error() == Some(libc::ESTALE) => Some(Ok(())),
        Err(_) => None,
    }
}

/// Before Linux 6.16 a page under way to the daemon no longer counts as cached, so INVAL_INODE
/// does not wait for it. Waits, for a moment at most, until nothing is queued any more.
fn settle_queue(mount: &Mount) {
    let begin = Instant::now();
    while begin.elapsed() < QUEUED && mount.requests_waiting().is_some_and(|n| n > 0) {
        std::thread::sleep(Duration::from_millis(10));
    }
}
