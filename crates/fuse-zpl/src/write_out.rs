//! Taking written data of open files from the kernel, within a limit of time.
//!
//! [`Written::take`] is for whoever needs everything whose `write(2)` returned before: the end of a
//! mount that is in use (the connection is aborted, which drops what the kernel keeps), or a
//! snapshot. The mechanism is [`fuse::write_out`].
//!
//! 1. It ends in bounded time though the kernel may never answer: the work is done by threads of its
//!    own, which are left behind when nothing has moved for [`STALL`].
//! 2. The caller holds no lock that serving a WRITE needs. The locks of requests about datasets
//!    (`gate`, `names`) are none of these.
//! 3. With [`Ending`], no write is acknowledged and then dropped: before the data are taken, further
//!    writes are refused with EIO. Stores into shared mappings are not announced and cannot be.

use base::sync::MutexExt;
use fuse::{Notifier, Pages};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use vfs::{ViewIds, Writers};

/// How long nothing may arrive before the rest is given up: a write of one request is answered by
/// memory, or waits for one txg.
const STALL: Duration = Duration::from_secs(15);
/// How long it may take in all, for who writes faster than data are taken.
pub const MOST: Duration = Duration::from_secs(600);
const TICK: Duration = Duration::from_millis(20);

/// What was not written out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Left {
    /// Files with data that were not taken, or may not have been.
    pub files: usize,
    /// Why, in words.
    pub why: String,
}

impl fmt::Display for Left {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let files = if self.files == 1 { "file" } else { "files" };
        write!(
            f,
            "what was written to {} open {files} was not taken from the kernel's cache: {}",
            self.files, self.why
        )
    }
}

/// What the kernel may keep of one mount.
pub struct Written {
    mount: Mutex<fuse::Mount>,
    notifier: Notifier,
    writers: Arc<Writers>,
    /// The ids that the kernel has for files, if others than the writers'.
    ids: Option<ViewIds>,
}

/// How far it is.
#[derive(Default)]
struct Work {
    done: AtomicUsize,
    failed: Mutex<Vec<std::io::Error>>,
    ended: AtomicBool,
}

impl Written {
    /// For the files of `writers` in `mount`.
    pub fn new(mount: fuse::Mount, notifier: Notifier, writers: Arc<Writers>) -> Written {
        Written {
            mount: Mutex::new(mount),
            notifier,
            writers,
            ids: None,
        }
    }

    /// The same for a file system that is part of a view.
    pub fn with_ids(self, ids: ViewIds) -> Written {
        let ids = Some(ids);
        Written { ids, ..self }
    }

    /// The mount is at another place from now on.
    pub fn set_mount(&self, mount: &fuse::Mount) {
        *self.mount.acquire() = mount.clone();
    }

    /// The same file system, mounted elsewhere.
    pub fn at(&self, mount: &fuse::Mount) -> Written {
        let ids = self.ids.clone();
        let same = Written::new(mount.clone(), self.notifier.clone(), self.writers.clone());
        Written { ids, ..same }
    }

    /// Takes everything that was written before the call. The kernel's cache stays as far as it
    /// can; for the mounts of ordinary users the cached pages of files open for writing go. Of files that
    /// were removed, and that nobody has open, nothing is left.
    pub fn take(&self) -> Result<(), Left> {
        // One that the kernel has just let go of may stay a moment longer, which harms nobody.
        self.notifier.collect_forgets();
        self.take_within(Pages::Keep, STALL)
    }

    /// The same before the connection is aborted. Until the returned value is dropped, or the mount
    /// has ended, writes are refused.
    pub fn end(&self) -> (Ending<'_>, Result<(), Left>) {
        self.writers.set_closing(true);
        let done = self.take_within(Pages::Drop, STALL);
        (Ending(&self.writers), done)
    }

    /// How many files may have data that were not taken.
    pub fn files(&self) -> usize {
        self.writers.nodes().len()
    }

    fn take_within(&self, pages: Pages, stall: Duration) -> Result<(), Left> {
        let mut files = self.writers.nodes();
        if let Some(ids) = &self.ids {
            let outside =
                |(node, generation)| Some((ids.outside(node)?, ids.generation(generation)));
            files = files.into_iter().filter_map(outside).collect();
        }
        let count = files.len();
        if count == 0 {
            return Ok(());
        }
        let work = Arc::new(Work::default());
        let (mount, notifier) = (self.mount.acquire().clone(), self.notifier.clone());
        let shared = work.clone();
        let first = move || {
            if pages == Pages::Drop {
                // Without attributes the kernel asks before it takes a write, and is refused.
                for (node, _) in &files {
                    let _ = notifier.inval_inode(*node, -1, 0);
                }
            }
            fuse::write_out(&mount, &notifier, &files, pages, &|r| {
                if let Err(e) = r {
                    shared.failed.acquire().push(e);
                }
                shared.done.fetch_add(1, Ordering::SeqCst);
            });
            shared.ended.store(true, Ordering::SeqCst);
        };
        let started = std::thread::Builder::new()
            .name("write-out".into())
            .spawn(first);
        if let Err(e) = started {
            return Err(Left {
                files: count,
                why: format!("no thread to write it out: {}", base::io_text(&e)),
            });
        }
        let begin = Instant::now();
        let mut since = begin;
        let mut moved = (0, self.writers.arrivals());
        loop {
            let over = work.ended.load(Ordering::SeqCst);
            let done = work.done.load(Ordering::SeqCst);
            if over {
                return match work.failed.acquire().as_slice() {
                    [] => Ok(()),
                    all @ [e, ..] => Err(Left {
                        files: all.len(),
                        why: base::io_text(e),
                    }),
                };
            }
            let now = (done, self.writers.arrivals());
            if now != moved {
                (moved, since) = (now, Instant::now());
            }
            let left = |why: String| Left {
                files: count.saturating_sub(done).max(1),
                why,
            };
            if since.elapsed() >= stall {
                let seconds = stall.as_secs();
                return Err(left(format!(
                    "the kernel sent nothing for {seconds} seconds"
                )));
            }
            if begin.elapsed() >= MOST {
                let seconds = MOST.as_secs();
                return Err(left(format!(
                    "it was not written out within {seconds} seconds"
                )));
            }
            std::thread::sleep(TICK.min(begin.elapsed() / 4 + Duration::from_millis(1)));
        }
    }
}

/// While it is there, writes to the mount are refused.
pub struct Ending<'a>(&'a Writers);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.set_closing(false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fuse::{
        AttrReply, Config, Entry, Errno, Filesystem, MountOptions, OpenArgs, Opened, Request,
        Session, Unmount, WriteArgs,
    };
    use std::io::Write;
    use std::sync::Condvar;

    /// A file whose writes are not answered before somebody says so.
    #[derive(Default)]
    struct Stuck {
        go: Mutex<bool>,
        changed: Condvar,
    }

    impl Stuck {
        fn attr(node: u64) -> AttrReply {
            let mode = if node == fuse::ROOT {
                0o40755
            } else {
                0o100644
            };
            let attr = fuse::Attr {
                ino: node,
                mode,
                nlink: 1,
                blksize: 4096,
                ..fuse::Attr::default()
            };
            AttrReply {
                attr,
                ttl: fuse::FOREVER,
            }
        }

        fn release(&self) {
            *self.go.lock().unwrap() = true;
            self.changed.notify_all();
        }
    }

    impl Filesystem for Stuck {
        fn lookup(&self, _: &Request, _: u64, _: &[u8]) -> Result<Entry, Errno> {
            let AttrReply { attr, ttl } = Stuck::attr(2);
            Ok(Entry {
                node: 2,
                generation: 1,
                attr,
                entry_ttl: ttl,
                attr_ttl: ttl,
            })
        }

        fn getattr(&self, _: &Request, node: u64, _: Option<u64>) -> Result<AttrReply, Errno> {
            Ok(Stuck::attr(node))
        }

        fn open(&self, _: &Request, _: u64, _: OpenArgs) -> Result<Opened, Errno> {
            Ok(Opened {
                fh: 1,
                flags: fuse::abi::fopen::KEEP_CACHE,
            })
        }

        fn opendir(&self, _: &Request, _: u64, _: i32) -> Result<Opened, Errno> {
            Ok(Opened { fh: 0, flags: 0 })
        }

        fn write(
            &self,
            _: &Request,
            _: u64,
            _: u64,
            _: u64,
            data: base::Data<'_>,
            _: WriteArgs,
        ) -> Result<u32, Errno> {
            let mut go = self.go.lock().unwrap();
            while !*go {
                go = self.changed.wait(go).unwrap();
            }
            Ok(data.len() as u32)
        }
    }

    #[test]
    fn a_write_out_that_is_not_answered_ends_and_says_how_many_files_it_concerns() {
        let at = testkit::TempDir::new("stuck").unwrap();
        let (fd, mount) = match fuse::mount(at.path(), &MountOptions::new("stuck")) {
            Ok(x) => x,
            Err(e) => return eprintln!("skipped: {e}"),
        };
        let fs = Arc::new(Stuck::default());
        let session = Session::new(fs.clone(), fd, Config::default());
        let (handle, notifier) = (session.handle(), session.notifier());
        let serving = std::thread::spawn(move || session.run());
        let mut file = std::fs::File::options()
            .write(true)
            .open(at.path().join("f"))
            .unwrap();
        file.write_all(&[7; 5000]).unwrap();
        let writers = Arc::new(Writers::default());
        writers.opened(2, 1);
        let written = Written::new(mount.clone(), notifier, writers);
        assert_eq!(written.files(), 1);
        let left = written
            .take_within(Pages::Keep, Duration::from_secs(1))
            .unwrap_err();
        assert_eq!(left.files, 1);
        assert_eq!(
            left.to_string(),
            "what was written to 1 open file was not taken from the kernel's cache: the kernel sent \
             nothing for 1 seconds"
        );
        fs.release();
        // Now it is answered.
        assert_eq!(written.take_within(Pages::Keep, STALL), Ok(()));
        drop(file);
        mount.unmount(Unmount::Force).unwrap();
        handle.stop();
        let _ = serving.join().unwrap();
    }
}
