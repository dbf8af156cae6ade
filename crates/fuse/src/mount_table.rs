//! The table of mounts of this mount namespace, read again only when it has changed.
//!
//! Whether a mount is at its place is asked for every file system of a listing, and the table is
//! long where there are many. The kernel says through `poll(2)` that it changed since it was read.
//! No path is walked for it, so an answer never waits for a mount that does not answer.

use base::sync::MutexExt;
use std::collections::HashSet;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use rustix::event::{poll, PollFd, PollFlags, Timespec};

use crate::mount::parse_mountinfo;

const TABLE: &str = "/proc/self/mountinfo";

struct Table {
    file: File,
    by_id: HashSet<((u32, u32), u64)>,
    by_path: HashSet<((u32, u32), PathBuf)>,
}

impl Table {
    fn open() -> io::Result<Table> {
        let mut t = Table {
            file: File::open(TABLE)?,
            by_id: HashSet::new(),
            by_path: HashSet::new(),
        };
        t.read()?;
        Ok(t)
    }

    fn read(&mut self) -> io::Result<()> {
        let mut text = Vec::new();
        self.file.seek(SeekFrom::Start(0))?;
        self.file.read_to_end(&mut text)?;
        self.by_id.clear();
        self.by_path.clear();
        for m in text.split(|&b| b == b'\n').filter_map(parse_mountinfo) {
            self.by_id.insert((m.dev, m.id));
            self.by_path.insert((m.dev, m.path));
        }
        Ok(())
    }

    fn contains(&self, dev: (u32, u32), id: u64, path: &Path) -> bool {
        match id {
            0 => self.by_path.contains(&(dev, path.to_path_buf())),
            id => self.by_id.contains(&(dev, id)),
        }
    }

    /// Whether it changed since this was asked the last time.
    fn changed(&self) -> io::Result<bool> {
        let mut fds = [PollFd::new(&self.file, PollFlags::PRI)];
        poll(&mut fds, Some(&Timespec::default()))?;
        let seen = fds[0].revents();
        Ok(seen.intersects(PollFlags::PRI | PollFlags::ERR))
    }
}

static LAST: Mutex<Option<Table>> = Mutex::new(None);

/// Whether the mount with this id of a file system with this device number is in the tree; where the id
/// is not known (0), whether one is at this path.
pub(crate) fn contains(dev: (u32, u32), id: u64, path: &Path) -> io::Result<bool> {
    let mut last = LAST.acquire();
    match &mut *last {
        Some(t) => {
            // Asked before it is read: a change in between is seen the next time.
            if t.changed()? {
                t.read()?;
            }
            Ok(t.contains(dev, id, path))
        }
        None => {
            let t = last.insert(Table::open()?);
            Ok(t.contains(dev, id, path))
        }
    }
}
