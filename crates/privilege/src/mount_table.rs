//! The table of mounts of this mount namespace, read again only when it has changed.
//!
//! Whether a mount is at its place is asked for every file system of a listing, and the table is
//! long where there are many. The kernel says through `poll(2)` that it changed since it was read.
//! No path is walked for it, so an answer never waits for a mount that does not answer.

use base::sync::MutexExt;
use base::Result;
use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use rustix::event::{poll, PollFd, PollFlags, Timespec};

const TABLE: &str = "/proc/self/mountinfo";

struct Table {
    file: File,
    by_id: HashMap<((u32, u32), u64), (PathBuf, OsString)>,
    by_path: HashSet<((u32, u32), PathBuf)>,
}

impl Table {
    fn open() -> io::Result<Table> {
        let mut t = Table {
            file: File::open(TABLE)?,
            by_id: HashMap::new(),
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
            self.by_path.insert((m.dev, m.path.clone()));
            self.by_id.insert((m.dev, m.id), (m.path, m.source));
        }
        Ok(())
    }

    fn contains(&self, dev: (u32, u32), id: u64, path: &Path, source: &OsStr) -> bool {
        match id {
            0 => self.by_path.contains(&(dev, path.to_path_buf())),
            id => {
                let there = self.by_id.get(&(dev, id));
                there.is_some_and(|(p, s)| p == path || s == source)
            }
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
/// is not known (0), whether one is at this path. Both numbers are given to another mount as soon as
/// this one is gone, so that the path, or the source where a folder above was renamed, has to be
/// its own.
pub(crate) fn contains(dev: (u32, u32), id: u64, path: &Path, source: &OsStr) -> io::Result<bool> {
    let mut last = LAST.acquire();
    match &mut *last {
        Some(t) => {
            // Asked before it is read: a change in between is seen the next time.
            if t.changed()? {
                t.read()?;
            }
            Ok(t.contains(dev, id, path, source))
        }
        None => {
            let t = last.insert(Table::open()?);
            Ok(t.contains(dev, id, path, source))
        }
    }
}

/// A line of the table of mounts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountInfo {
    /// Id of the mount in this namespace.
    pub id: u64,
    /// Major and minor device number.
    pub dev: (u32, u32),
    /// The mount point.
    pub path: PathBuf,
    /// File system type with its subtype: `fuse.zfs`.
    pub fstype: String,
    /// The source: `pool/dataset`.
    pub source: OsString,
    /// Options of the mount and of the file system, as shown.
    pub options: String,
}

/// Every mount of FUSE type `fuse.<subtype>` this process can see, oldest first. Also those whose
/// daemon is dead.
pub fn mounted(subtype: &str) -> Result<Vec<MountInfo>> {
    let table = std::fs::read("/proc/self/mountinfo")?;
    let fstype = format!("fuse.{subtype}");
    Ok(table
        .split(|&b| b == b'\n')
        .filter_map(parse_mountinfo)
        .filter(|m| m.fstype == fstype)
        .collect())
}

/// One line of /proc/self/mountinfo: id, parent, major:minor, root, mount point, options, any
/// number of optional fields, "-", type, source, options of the file system.
pub fn parse_mountinfo(line: &[u8]) -> Option<MountInfo> {
    let mut fields = line.split(|&b| b == b' ');
    let id = std::str::from_utf8(fields.next()?).ok()?;
    let dev = std::str::from_utf8(fields.nth(1)?).ok()?;
    let (major, minor) = dev.split_once(':')?;
    let path = unescape(fields.nth(1)?);
    let options = String::from_utf8_lossy(fields.next()?).into_owned();
    fields.by_ref().find(|f| *f == b"-")?;
    let fstype = String::from_utf8_lossy(fields.next()?).into_owned();
    let source = unescape(fields.next()?);
    let more = String::from_utf8_lossy(fields.next()?).into_owned();
    Some(MountInfo {
        id: id.parse().ok()?,
        dev: (major.parse().ok()?, minor.parse().ok()?),
        path: PathBuf::from(path),
        fstype,
        source,
        options: format!("{options},{more}"),
    })
}

/// Undoes the kernel's escaping: blank, tab, newline and backslash as three octal digits.
pub fn unescape(s: &[u8]) -> OsString {
    let mut out = Vec::with_capacity(s.len());
    let mut i = 0;
    while i < s.len() {
        if s[i] == b'\\' && i + 4 <= s.len() {
            let octal = std::str::from_utf8(&s[i + 1..i + 4]).ok();
            if let Some(b) = octal.and_then(|o| u8::from_str_radix(o, 8).ok()) {
                out.push(b);
                i += 4;
                continue;
            }
        }
        out.push(s[i]);
        i += 1;
    }
    OsString::from_vec(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStrExt;

    /// The kernel gives the numbers of a mount that has gone to the next one.
    #[test]
    fn a_mount_with_the_numbers_of_another_is_not_taken_for_it() {
        let mut t = Table::open().unwrap();
        t.by_id
            .insert(((0, 9999), 7), ("/mnt/b".into(), "tank/b".into()));
        let dev = (0, 9999);
        let asked =
            |path: &str, source: &str| t.contains(dev, 7, Path::new(path), OsStr::new(source));
        assert!(asked("/mnt/b", "tank/b"));
        assert!(
            asked("/renamed/b", "tank/b"),
            "a folder above has another name"
        );
        assert!(!asked("/mnt/a", "tank/a"));
        assert!(!t.contains(dev, 8, Path::new("/mnt/b"), OsStr::new("tank/b")));
    }

    #[test]
    fn mountinfo_lines() {
        let l =
            b"36 35 0:42 / /mnt/a\\040b\\134c rw,noatime shared:1 - fuse.zfs tank/x rw,user_id=0";
        let m = parse_mountinfo(l).unwrap();
        assert_eq!((m.id, m.dev), (36, (0, 42)));
        assert_eq!(m.path.as_os_str().as_bytes(), b"/mnt/a b\\c");
        assert_eq!(
            (m.fstype.as_str(), m.source.to_str()),
            ("fuse.zfs", Some("tank/x"))
        );
        assert_eq!(m.options, "rw,noatime,rw,user_id=0");
        for n in 0..l.len() - 12 {
            assert!(parse_mountinfo(&l[..n]).is_none(), "{n}");
        }
        assert!(parse_mountinfo(b"1 2 3 4 5").is_none());
        assert_eq!(unescape(b"a\\04"), "a\\04");
        assert_eq!(unescape(b"\\"), "\\");
    }
}
