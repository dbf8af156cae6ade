//! Who keeps a file system busy: processes with a working directory, an open file or a mapping in it,
//! what is mounted in it, other mount namespaces that have it.
//!
//! Files are told by the device number of the file system, which `statx(2)` gives without asking its
//! daemon. An ordinary user's daemon sees the processes of its user only; it says how many it could
//! not look at.

use base::sync::MutexExt;
use std::collections::HashSet;
use std::fmt;
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::path_helper::{in_processes, Limit};
use crate::question::{ask, plain, raw, Done, Job};
use rustix::fs::{AtFlags, StatxFlags, CWD};
use serde::{Deserialize, Serialize};

/// Looking into a process waits for the lock of its memory, and a process that is writing pages to a
/// stuck mount holds that.
const PATIENCE: Duration = Duration::from_secs(3);
/// Most lines that are shown.
const MOST: usize = 20;

/// How something is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Use {
    /// Working directory of a process.
    WorkingDirectory,
    /// Root directory of a process.
    RootDirectory,
    /// The program a process runs.
    Program,
    /// A file a process has open.
    OpenFile,
    /// A file a process has mapped.
    Mapped,
    /// A mount in it.
    MountBelow,
    /// Another mount namespace that has the mount.
    Namespace,
}

impl fmt::Display for Use {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Use::WorkingDirectory => "working directory",
            Use::RootDirectory => "root directory",
            Use::Program => "running program",
            Use::OpenFile => "open file",
            Use::Mapped => "mapped file",
            Use::MountBelow => "mounted below",
            Use::Namespace => "mounted in another mount namespace",
        })
    }
}

/// One use of the file system.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Holder {
    /// Process id and command; none for a mount.
    pub process: Option<(u32, String)>,
    /// What is used.
    #[serde(with = "raw")]
    pub path: PathBuf,
    /// How it is used.
    pub how: Use,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some((pid, command)) = &self.process {
            write!(f, "{pid} ({}): ", command.escape_debug())?;
        }
        // A name may hold anything, also what a terminal obeys.
        let path = self.path.to_string_lossy();
        write!(f, "{}: {}", path.escape_debug(), self.how)
    }
}

/// All that was found.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Holders {
    /// The holders found.
    pub list: Vec<Holder>,
    /// Processes that could not be looked at.
    pub hidden: usize,
    /// Not everything was looked at in time.
    pub unfinished: bool,
}

impl fmt::Display for Holders {
    /// Lines to follow a message, each with a line break in front.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for h in self.list.iter().take(MOST) {
            write!(f, "\n  in use by {h}")?;
        }
        if self.list.len() > MOST {
            write!(f, "\n  and {} more", self.list.len() - MOST)?;
        }
        match self.hidden {
            0 => {}
            1 => write!(f, "\n  1 process of another user could not be looked at")?,
            n => write!(f, "\n  {n} processes of other users could not be looked at")?,
        }
        if self.unfinished {
            f.write_str("\n  not all processes could be looked at in time")?;
        }
        Ok(())
    }
}

/// Most holders, and bytes of their paths, that another process tells of.
const MOST_TOLD: usize = 60;
const LONGEST_TOLD: usize = 300;

impl Holders {
    /// Whether there is none but mounts in other mount namespaces, of which nothing is in use, as far as that could be seen.
    pub fn are_elsewhere(&self) -> bool {
        let elsewhere = |h: &Holder| h.how == Use::Namespace;
        !self.unfinished
            && self.hidden == 0
            && !self.list.is_empty()
            && self.list.iter().all(elsewhere)
    }

    /// As it fits into a message.
    fn shortened(mut self) -> Holders {
        self.list.sort();
        self.list.dedup();
        self.list.truncate(MOST_TOLD);
        for h in &mut self.list {
            let bytes = h.path.as_os_str().as_bytes();
            if bytes.len() > LONGEST_TOLD {
                h.path = std::ffi::OsStr::from_bytes(&bytes[..LONGEST_TOLD]).into();
            }
        }
        self
    }
}

type Device = (u32, u32);

/// The device a path leads to, without a request to its file system.
fn device(path: &Path) -> Option<Device> {
    let flags = AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT;
    let s = rustix::fs::statx(CWD, path, flags, StatxFlags::empty()).ok()?;
    Some((s.stx_dev_major, s.stx_dev_minor))
}

/// Who uses file systems with these device numbers.
pub fn of(devices: &[Device]) -> Holders {
    if in_processes() {
        let job = Search(devices.to_vec());
        let asked = ask(Path::new("/proc"), Limit::of(PATIENCE), job, &[]);
        return match asked {
            Ok((found, _)) => found,
            Err(_) => Holders {
                unfinished: true,
                ..Holders::default()
            },
        };
    }
    let found: Arc<Mutex<Holders>> = Arc::default();
    let (all, devices) = (found.clone(), devices.to_vec());
    let look = std::thread::Builder::new()
        .name("holders".into())
        .spawn(move || search_into(&devices, &all));
    let begin = Instant::now();
    let finished = look.is_ok_and(|t| {
        while !t.is_finished() && begin.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(5));
        }
        t.is_finished()
    });
    let mut found = found.acquire().clone();
    found.list.sort();
    found.list.dedup();
    found.unfinished = !finished;
    found
}

/// [`of`]
#[derive(Serialize, Deserialize)]
pub(crate) struct Search(Vec<Device>);

impl Job for Search {
    const NAME: &'static str = "holders";
    type Answer = Holders;

    fn run(self, _: Vec<OwnedFd>) -> Done<Holders> {
        plain(Ok(search(&self.0).shortened()))
    }
}

/// All of them, however long it takes.
fn search(devices: &[Device]) -> Holders {
    let all = Mutex::default();
    search_into(devices, &all);
    all.into_inner().unwrap_or_else(|e| e.into_inner())
}

fn search_into(devices: &[Device], all: &Mutex<Holders>) {
    let add = |h: Vec<Holder>| {
        let mut all = all.acquire();
        all.list.extend(h);
    };
    if let Ok(table) = fs::read("/proc/self/mountinfo") {
        add(below(&table, devices));
    }
    let own = fs::read_link("/proc/self/ns/mnt").ok();
    let mut namespaces: HashSet<PathBuf> = own.into_iter().collect();
    for e in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = e.file_name().to_str().and_then(|n| n.parse().ok()) else {
            continue;
        };
        match process(pid, &e.path(), devices, &mut namespaces) {
            Some(list) => add(list),
            None => all.acquire().hidden += 1,
        }
    }
}

/// What one process uses; none if it may not be looked at.
fn process(
    pid: u32,
    dir: &Path,
    devices: &[Device],
    namespaces: &mut HashSet<PathBuf>,
) -> Option<Vec<Holder>> {
    let ours = |path: &Path| device(path).is_some_and(|d| devices.contains(&d));
    let mut uses: Vec<(PathBuf, Use)> = Vec::new();
    let links = [
        ("cwd", Use::WorkingDirectory),
        ("root", Use::RootDirectory),
        ("exe", Use::Program),
    ];
    for (name, how) in links {
        let link = dir.join(name);
        if ours(&link) {
            uses.push((fs::read_link(&link).unwrap_or_default(), how));
        }
    }
    match fs::read_dir(dir.join("fd")) {
        Ok(fds) => {
            let open = fds.flatten().map(|fd| fd.path()).filter(|fd| ours(fd));
            uses.extend(open.map(|fd| (fs::read_link(fd).unwrap_or_default(), Use::OpenFile)));
        }
        Err(e) if e.kind() == std::io::ErrorKind::PermissionDenied => return None,
        // It has ended meanwhile.
        Err(_) => return Some(Vec::new()),
    }
    if let Ok(maps) = fs::read(dir.join("maps")) {
        uses.extend(mapped(&maps, devices).into_iter().map(|p| (p, Use::Mapped)));
    }
    let foreign = fs::read_link(dir.join("ns/mnt"))
        .ok()
        .filter(|ns| namespaces.insert(ns.clone()));
    if foreign.is_some() {
        let table = fs::read(dir.join("mountinfo")).unwrap_or_default();
        let lines = lines(&table).filter(|m| devices.contains(&m.dev));
        uses.extend(lines.map(|m| (m.path, Use::Namespace)));
    }
    if uses.is_empty() {
        return Some(Vec::new());
    }
    let command = fs::read_to_string(dir.join("comm")).unwrap_or_default();
    let command = command.trim_end().to_string();
    // A program is mapped, too.
    let programs: Vec<PathBuf> = uses
        .iter()
        .filter(|(_, how)| *how == Use::Program)
        .map(|(p, _)| p.clone())
        .collect();
    uses.retain(|(p, how)| *how != Use::Mapped || !programs.contains(p));
    let holder = |(path, how)| Holder {
        process: Some((pid, command.clone())),
        path,
        how,
    };
    Some(uses.into_iter().map(holder).collect())
}

/// Files of the devices among the mappings of a process: address, permissions, offset, device in
/// hexadecimal digits, inode, path.
fn mapped(maps: &[u8], devices: &[Device]) -> Vec<PathBuf> {
    let mut out = Vec::new();
    for line in maps.split(|&b| b == b'\n') {
        let mut words = line.splitn(6, |&b| b == b' ');
        let Some(dev) = words.nth(3).and_then(|d| std::str::from_utf8(d).ok()) else {
            continue;
        };
        let number = |h: &str| u32::from_str_radix(h, 16).ok();
        let dev = dev
            .split_once(':')
            .and_then(|(a, b)| Some((number(a)?, number(b)?)));
        if !dev.is_some_and(|d| devices.contains(&d)) {
            continue;
        }
        let path = words.nth(1).unwrap_or_default().trim_ascii_start();
        let path = PathBuf::from(std::ffi::OsStr::from_bytes(path));
        if !out.contains(&path) {
            out.push(path);
        }
    }
    out
}

/// A line of the table of mounts, as far as it matters here.
struct Line {
    id: u32,
    parent: u32,
    dev: Device,
    path: PathBuf,
}

fn lines(table: &[u8]) -> impl Iterator<Item = Line> + '_ {
    table.split(|&b| b == b'\n').filter_map(|line| {
        let mut words = line.split(|&b| b == b' ');
        let mut number = || std::str::from_utf8(words.next()?).ok()?.parse().ok();
        let (id, parent) = (number()?, number()?);
        let (major, minor) = std::str::from_utf8(words.next()?).ok()?.split_once(':')?;
        let path = crate::mount_table::unescape(words.nth(1)?);
        Some(Line {
            id,
            parent,
            dev: (major.parse().ok()?, minor.parse().ok()?),
            path: PathBuf::from(path),
        })
    })
}

/// What is mounted in a file system of the devices.
fn below(table: &[u8], devices: &[Device]) -> Vec<Holder> {
    let all: Vec<Line> = lines(table).collect();
    let on = |parent: u32| {
        all.iter()
            .any(|m| m.id == parent && devices.contains(&m.dev))
    };
    let mounts = all.iter().filter(|m| on(m.parent));
    let holder = |m: &Line| Holder {
        process: None,
        path: m.path.clone(),
        how: Use::MountBelow,
    };
    mounts.map(holder).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_and_mounts_of_a_device_are_found_in_the_tables() {
        let maps = b"55d0-55d1 r--p 00000000 fe:01 123   /bin/cat\n\
            7f00-7f01 rw-s 00000000 00:2f 7                          /tank/a b\n\
            7f01-7f02 rw-s 00001000 00:2f 7                          /tank/a b\n\
            7ffd-7ffe rw-p 00000000 00:00 0                          [stack]\nx";
        assert_eq!(mapped(maps, &[(0, 0x2f)]), [PathBuf::from("/tank/a b")]);
        let table = b"30 1 254:1 / / rw - ext4 /dev/x rw\n\
            40 30 0:47 / /tank rw - fuse.zfs tank rw\n\
            41 40 0:48 / /tank/a\\040b rw - fuse.zfs tank/a rw\nnothing";
        let found = below(table, &[(0, 47)]);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].to_string(), "/tank/a b: mounted below");
        assert!(below(table, &[(0, 48)]).is_empty());
    }

    #[test]
    fn this_process_is_found_with_its_working_directory() {
        let here = device(Path::new("/proc/self/cwd")).unwrap();
        let pid = std::process::id();
        let found = of(&[here]);
        let own = |h: &&Holder| h.process.as_ref().is_some_and(|(p, _)| *p == pid);
        let ours: Vec<&Holder> = found.list.iter().filter(own).collect();
        assert!(
            ours.iter().any(|h| h.how == Use::WorkingDirectory),
            "{ours:?}"
        );
    }

    #[test]
    fn long_lists_are_cut_and_what_is_hidden_is_said() {
        let one = Holder {
            process: Some((7, "a\u{1b}b".into())),
            path: "/t/f\n".into(),
            how: Use::OpenFile,
        };
        let mut all = Holders {
            list: vec![one.clone()],
            hidden: 2,
            unfinished: false,
        };
        assert_eq!(
            all.to_string(),
            "\n  in use by 7 (a\\u{1b}b): /t/f\\n: open file\n  2 processes of other users could not be looked at"
        );
        all.list = vec![one; MOST + 3];
        assert!(all.to_string().contains("\n  and 3 more"));
        assert_eq!(Holders::default().to_string(), "");
    }
}
