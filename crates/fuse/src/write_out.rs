//! Taking from the kernel the written data of open files that it still keeps in its page cache.
//!
//! With the write-back cache `write(2)` returns before the daemon has seen a byte. Aborting the
//! connection drops such pages. A [`WriteOut`] makes the kernel send them first.
//!
//! The kernel offers two ways to wait for one file, and none to wait for a mount (`syncfs(2)` merely
//! starts the write-out):
//! 1. Closing a descriptor of the file writes out its pages and times and waits for the answers. The
//!    page cache stays. The file is opened by its handle, which needs root and a mount at its place.
//! 2. INVAL_INODE writes out and waits too, but drops the page cache of the file. It needs neither.
//!
//! Both also take what was stored through a shared mapping. Calls block until the session has
//! answered the WRITE requests. So they must not be made by a thread that serves requests, nor with
//! a lock that serving a WRITE needs.

use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::mount::Mount;
use crate::notify::Notifier;
use crate::sys;

/// How long requests already queued may take to reach the daemon, where only
/// `/sys/fs/fuse/connections` tells.
const QUEUED: Duration = Duration::from_secs(2);

/// What becomes of the pages that were written out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pages {
    /// They stay cached as far as possible: the mount goes on.
    Keep,
    /// They may be dropped: the mount is about to end.
    Drop,
}

/// A write-out of one mount under way. It keeps the mount busy.
pub struct WriteOut {
    mount: Mount,
    notifier: Notifier,
    /// The root directory, where files can be opened by handle.
    root: Option<File>,
    /// INVAL_INODE was used.
    dropped: AtomicBool,
}

impl WriteOut {
    /// Starts the write-out of everything. Blocks if the session does not answer.
    pub fn begin(mount: &Mount, notifier: &Notifier) -> WriteOut {
        let root = mount.open_root().ok();
        if let Some(root) = &root {
            // Files are waited for one by one; this sends the data of all of them meanwhile.
            let _ = rustix::fs::syncfs(root);
        }
        WriteOut {
            mount: mount.clone(),
            notifier: notifier.clone(),
            root,
            dropped: AtomicBool::new(false),
        }
    }

    /// Waits until the daemon has answered for everything that was written to a file before the
    /// call. `generation` is the one of [`crate::Entry`].
    ///
    /// Errors: what became of data that could not be written, where the kernel says so.
    pub fn file(&self, node: u64, generation: u32, pages: Pages) -> io::Result<()> {
        if let Some(root) = &self.root {
            match sys::open_by_node(root, node, generation) {
                Ok(file) => return sys::close(file),
                // No capability, or a kernel without handles: the other way.
                Err(_) if pages == Pages::Drop => {}
                Err(e) if e.raw_os_error() == Some(libc::ESTALE) => return Ok(()),
                Err(_) => {}
            }
        }
        self.dropped.store(true, Ordering::Relaxed);
        self.notifier.inval_inode(node, 0, 0).map(|_| ())
    }

    /// Before Linux 6.16 a page under way to the daemon no longer counts as cached, so INVAL_INODE
    /// does not wait for it. Waits, for a moment at most, until nothing is queued any more.
    pub fn settle_queue(&self) {
        if !self.dropped.load(Ordering::Relaxed) {
            return;
        }
        let begin = Instant::now();
        while begin.elapsed() < QUEUED && self.mount.requests_waiting().is_some_and(|n| n > 0) {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}
