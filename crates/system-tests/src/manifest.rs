//! Manifests of pools made by OpenZFS: what is in a tree, entry by entry, compared with what a
//! mount shows. The meaning of the fields is in the `README.md` of the fixtures.

use rustix::fs::{self as sys, IFlags, Mode, OFlags, CWD};
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::fs::File;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Files up to this size have a hash of everything.
const HUGE: u64 = 256 << 20;
const BLOCK: u64 = 4096;

/// Lower-case hexadecimal digits.
pub fn hex(b: &[u8]) -> String {
    b.iter().fold(String::new(), |mut s, b| {
        let _ = write!(s, "{b:02x}");
        s
    })
}

/// Decodes base64.
pub fn base64(s: &str) -> Vec<u8> {
    let value = |c: u8| match c {
        b'A'..=b'Z' => c - b'A',
        b'a'..=b'z' => c - b'a' + 26,
        b'0'..=b'9' => c - b'0' + 52,
        b'+' => 62,
        _ => 63,
    };
    let (mut acc, mut bits, mut out) = (0u32, 0, Vec::new());
    for c in s.bytes().filter(|c| *c != b'=') {
        acc = acc << 6 | u32::from(value(c));
        bits += 6;
        if bits >= 8 {
            bits -= 8;
            out.push((acc >> bits) as u8);
        }
    }
    out
}

/// A field that is text, or base64 under another name.
pub fn bytes(e: &Value, key: &str) -> Option<Vec<u8>> {
    match e[key].as_str() {
        Some(s) => Some(s.as_bytes().to_vec()),
        None => e[format!("{key}_b64")].as_str().map(base64),
    }
}

/// What to look at.
#[derive(Clone, Debug, Default)]
pub struct Look {
    /// Files that give errors, with the ranges `(offset, length)` in which they do.
    pub unreadable: BTreeMap<Vec<u8>, Vec<(u64, u64)>>,
    /// Extended attributes only root sees are left out, and what may not be opened.
    pub ordinary: bool,
    /// Times from then on, seconds since 1970, are those of the test itself.
    pub fresh: Option<i64>,
}

/// What came out.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    pub entries: usize,
    /// Bytes of data hashed.
    pub bytes: u64,
    pub differences: Vec<String>,
    /// Files whose holes are reported otherwise, which is not wrong.
    pub other_extents: usize,
}

impl Seen {
    /// Adds up.
    pub fn add(&mut self, other: Seen) {
        self.entries += other.entries;
        self.bytes += other.bytes;
        self.differences.extend(other.differences);
        self.other_extents += other.other_extents;
    }
}

/// SHA-256 of the data of a sparse file and where they are: differs if a byte or a hole does.
pub fn hash_sparse(path: &Path) -> io::Result<String> {
    let f = File::open(path)?;
    let size = f.metadata()?.len();
    let mut h = Sha256::new();
    h.update(size.to_le_bytes());
    for (at, len) in extents(&f, size)? {
        h.update(at.to_le_bytes());
        h.update(len.to_le_bytes());
        let mut buffer = vec![0; 1 << 20];
        let mut done = 0;
        while done < len {
            let n = (len - done).min(buffer.len() as u64) as usize;
            f.read_exact_at(&mut buffer[..n], at + done)?;
            h.update(&buffer[..n]);
            done += n as u64;
        }
    }
    Ok(hex(&h.finalize()))
}

/// Parts of a file that are data, as SEEK_DATA and SEEK_HOLE tell.
pub fn extents(f: &File, size: u64) -> io::Result<Vec<(u64, u64)>> {
    let mut out = Vec::new();
    let mut at = 0;
    while at < size {
        let data = match sys::seek(f, sys::SeekFrom::Data(at)) {
            Ok(d) if d < size => d,
            Ok(_) | Err(rustix::io::Errno::NXIO) => break,
            Err(e) => return Err(e.into()),
        };
        let hole = sys::seek(f, sys::SeekFrom::Hole(data))?.min(size);
        out.push((data, hole - data));
        at = hole;
    }
    Ok(out)
}

fn hash_all(f: &File, size: u64) -> io::Result<String> {
    let mut h = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    let mut at = 0;
    while at < size {
        match f.read_at(&mut buffer, at)? {
            0 => break,
            n => {
                h.update(&buffer[..n]);
                at += n as u64;
            }
        }
    }
    Ok(hex(&h.finalize()))
}

/// Hash over the blocks that are not zero, each preceded by its offset.
fn hash_nonzero(f: &File, size: u64) -> io::Result<(String, u64)> {
    let mut h = Sha256::new();
    let mut read = 0;
    let mut next = 0;
    for (at, len) in extents(f, size)? {
        let mut at = next.max(at / BLOCK * BLOCK);
        let end = (at + len).max(at + BLOCK).next_multiple_of(BLOCK);
        let mut buffer = vec![0; 1 << 20];
        while at < end.min(size) {
            let want = (end - at).min(buffer.len() as u64) as usize;
            let mut have = 0;
            while have < want {
                match f.read_at(&mut buffer[have..want], at + have as u64)? {
                    0 => break,
                    n => have += n,
                }
            }
            buffer[have..want].fill(0);
            read += have as u64;
            for (i, block) in buffer[..have.next_multiple_of(BLOCK as usize).min(want)]
                .chunks(BLOCK as usize)
                .enumerate()
            {
                if block.iter().any(|b| *b != 0) {
                    h.update((at + i as u64 * BLOCK).to_le_bytes());
                    h.update(block);
                    h.update(vec![0; BLOCK as usize - block.len()]);
                }
            }
            at += want as u64;
        }
        next = at;
    }
    Ok((hex(&h.finalize()), read))
}

/// Offsets of pages that cannot be read must be those in `ranges`, and no others.
fn errors_in(f: &File, size: u64, ranges: &[(u64, u64)]) -> Vec<String> {
    let mut out = Vec::new();
    let mut page = vec![0; BLOCK as usize];
    let mut at = 0;
    while at < size {
        let bad = ranges
            .iter()
            .any(|(o, l)| at < o.saturating_add(*l) && o < &(at + BLOCK));
        match (f.read_at(&mut page, at), bad) {
            (Ok(_), true) => out.push(format!("read at {at} although damaged")),
            (Err(e), false) => out.push(format!("error at {at}: {e}")),
            (Err(e), true) if e.raw_os_error() != Some(5) => {
                out.push(format!("error at {at}: {e}, not EIO"));
            }
            _ => {}
        }
        at += BLOCK;
    }
    out
}

struct Compare<'a> {
    root: &'a Path,
    look: &'a Look,
    wanted: HashMap<Vec<u8>, &'a Value>,
    first: HashMap<(u64, u64), Vec<u8>>,
    dev: u64,
    seen: Seen,
}

/// Compares the tree below `root` with the entries of a manifest.
pub fn compare(root: &Path, entries: &[Value], look: &Look) -> Seen {
    let mut c = Compare {
        root,
        look,
        wanted: HashMap::new(),
        first: HashMap::new(),
        dev: std::fs::symlink_metadata(root).map_or(0, |m| m.dev()),
        seen: Seen::default(),
    };
    for e in entries {
        c.wanted.insert(bytes(e, "path").unwrap_or_default(), e);
    }
    c.visit(&[]);
    let missing: Vec<Vec<u8>> = c.wanted.keys().cloned().collect();
    for path in missing {
        c.differ(&path, "missing");
    }
    c.seen
}

impl Compare<'_> {
    fn differ(&mut self, path: &[u8], what: impl std::fmt::Display) {
        let path = String::from_utf8_lossy(path).into_owned();
        self.seen.differences.push(format!("{path:?}: {what}"));
    }

    fn at(&self, path: &[u8]) -> PathBuf {
        match path.is_empty() {
            true => self.root.to_path_buf(),
            false => self.root.join(std::ffi::OsStr::from_bytes(path)),
        }
    }

    fn visit(&mut self, path: &[u8]) {
        let Some(want) = self.wanted.remove(path) else {
            self.differ(path, "not expected");
            return;
        };
        self.seen.entries += 1;
        let full = self.at(path);
        let m = match std::fs::symlink_metadata(&full) {
            Ok(m) => m,
            Err(e) if self.look.ordinary && e.raw_os_error() == Some(13) => return,
            Err(e) => return self.differ(path, format!("lstat: {e}")),
        };
        // Another file system is mounted there.
        if m.dev() != self.dev {
            if !m.is_dir() || want["type"] != "dir" {
                self.differ(path, "a mount point that is no directory");
            }
            let below = [path, b"/"].concat();
            self.wanted.retain(|p, _| !p.starts_with(&below));
            return;
        }
        self.entry(path, &full, &m, want);
        // Snapshots are trees of their own; the control directory ends with their names.
        let snapshot = path.starts_with(b".zfs/snapshot/");
        if !m.is_dir() || snapshot {
            return;
        }
        let names = std::fs::read_dir(&full).and_then(|d| {
            d.map(|e| Ok(e?.file_name().into_vec()))
                .collect::<io::Result<Vec<_>>>()
        });
        match names {
            Ok(mut names) => {
                names.sort();
                for n in names {
                    let below = match path.is_empty() {
                        true => n,
                        false => [path, b"/", &n].concat(),
                    };
                    self.visit(&below);
                }
            }
            Err(_) if self.look.ordinary => {
                let prefix = [path, b"/"].concat();
                self.wanted.retain(|p, _| !p.starts_with(&prefix));
            }
            Err(e) => self.differ(path, format!("readdir: {e}")),
        }
    }

    fn entry(&mut self, path: &[u8], full: &Path, m: &std::fs::Metadata, want: &Value) {
        let control = path.starts_with(b".zfs");
        let mut bad = Vec::new();
        let mut check = |what: &str, got: String, want: String| {
            if got != want {
                bad.push(format!("{what} {got}, not {want}"));
            }
        };
        let text = |v: &Value| v.as_str().unwrap_or_default().to_string();
        let kind = match m.mode() >> 12 {
            1 => "fifo",
            2 => "char",
            4 => "dir",
            6 => "block",
            8 => "file",
            10 => "symlink",
            12 => "socket",
            _ => "?",
        };
        check("type", kind.into(), text(&want["type"]));
        if !control {
            check(
                "mode",
                format!("{:04o}", m.mode() & 0o7777),
                text(&want["mode"]),
            );
            let fresh = self.look.fresh.is_some_and(|since| m.mtime() >= since);
            if let Some(t) = want["mtime_ns"].as_number().filter(|_| !fresh) {
                let ns = i128::from(m.mtime()) * 1_000_000_000 + i128::from(m.mtime_nsec());
                check("mtime", ns.to_string(), t.to_string());
            }
        }
        // What is not told is the usual: root, one name.
        let number = |key: &str, usual: u64| want[key].as_u64().unwrap_or(usual).to_string();
        check("uid", m.uid().to_string(), number("uid", 0));
        check("gid", m.gid().to_string(), number("gid", 0));
        if kind != "dir" {
            check("nlink", m.nlink().to_string(), number("nlink", 1));
            if m.nlink() > 1 {
                let first = self
                    .first
                    .entry((m.dev(), m.ino()))
                    .or_insert_with(|| path.to_vec());
                let other = (first != path).then(|| first.clone());
                check(
                    "link of",
                    format!("{other:?}"),
                    format!("{:?}", bytes(want, "hardlink_of")),
                );
            }
        }
        if kind == "file" || kind == "symlink" {
            check("size", m.size().to_string(), want["size"].to_string());
        }
        // What the maker of the manifest could not read, we need not be unable to.
        let lost = want["error"]
            .as_str()
            .is_some_and(|e| e.starts_with("readlink"));
        match kind {
            "symlink" if !lost => {
                let got = std::fs::read_link(full).map(|p| p.into_os_string().into_vec());
                check(
                    "target",
                    format!("{:?}", got.ok()),
                    format!("{:?}", bytes(want, "target")),
                );
            }
            "char" | "block" => {
                let rdev = m.rdev();
                let got = format!("{}:{}", sys::major(rdev), sys::minor(rdev));
                check("rdev", got, text(&want["rdev"]));
            }
            _ => {}
        }
        if kind == "file" || kind == "dir" {
            let (read, extents_differ) = contents(path, full, m, want, self.look, &mut check);
            self.seen.bytes += read;
            self.seen.other_extents += usize::from(extents_differ);
        }
        if !lost && !control {
            xattrs(full, want, self.look, &mut check);
        }
        for b in bad {
            self.differ(path, b);
        }
    }
}

type Check<'a> = &'a mut dyn FnMut(&str, String, String);

/// Data, holes, flags and project. Returns the bytes read and whether holes are elsewhere.
fn contents(
    path: &[u8],
    full: &Path,
    m: &std::fs::Metadata,
    want: &Value,
    look: &Look,
    check: Check<'_>,
) -> (u64, bool) {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let f = match sys::openat(CWD, full, flags, Mode::empty()) {
        Ok(fd) => File::from(fd),
        Err(rustix::io::Errno::ACCESS) if look.ordinary => return (0, false),
        Err(e) => {
            check("open", e.to_string(), String::new());
            return (0, false);
        }
    };
    let (mut read, mut moved) = (0, false);
    let size = m.size();
    if m.is_file() {
        if let Some(ranges) = look.unreadable.get(path) {
            for e in errors_in(&f, size, ranges) {
                check("damage", e, String::new());
            }
        } else {
            let (hash, key) = if size > HUGE {
                (hash_nonzero(&f, size), "sha256_nonzero")
            } else {
                (hash_all(&f, size).map(|h| (h, size)), "sha256")
            };
            let error = want["error"].as_str().unwrap_or_default();
            match hash {
                Ok((h, n)) => {
                    read = n;
                    // Of an empty file no hash is told.
                    let told = want[key].as_str().map(str::to_string);
                    let none = || match size {
                        0 => h.clone(),
                        _ => String::new(),
                    };
                    let told = told.unwrap_or_else(none);
                    check(key, h, told);
                    check("error", String::new(), error.to_string());
                }
                Err(e) => {
                    let e = std::io::Error::from_raw_os_error(e.raw_os_error().unwrap_or(0));
                    let text = e.to_string();
                    let text = text.split(" (os").next().unwrap_or_default();
                    check("error", format!("read: {text}"), error.to_string());
                }
            }
            let got = extents(&f, size).unwrap_or_default();
            let expected: Vec<(u64, u64)> = match want["data_extents"].as_array() {
                Some(list) => list
                    .iter()
                    .map(|x| (x[0].as_u64().unwrap_or(0), x[1].as_u64().unwrap_or(0)))
                    .collect(),
                None if size == 0 => Vec::new(),
                None => vec![(0, size)],
            };
            moved = got != expected;
        }
    }
    let own = sys::ioctl_getflags(&f).unwrap_or(IFlags::empty());
    let names = [
        (IFlags::IMMUTABLE, "immutable"),
        (IFlags::APPEND, "append"),
        (IFlags::NODUMP, "nodump"),
    ];
    let mut got: Vec<&str> = names
        .iter()
        .filter(|(f, _)| own.contains(*f))
        .map(|(_, n)| *n)
        .collect();
    let mut expected: Vec<&str> = want["flags"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    got.sort_unstable();
    expected.sort_unstable();
    check("flags", got.join(","), expected.join(","));
    let project = env_linux::project_id(&f).unwrap_or(0);
    let wanted = want["projid"].as_u64().unwrap_or(0);
    check("project", project.to_string(), wanted.to_string());
    (read, moved)
}

fn xattrs(full: &Path, want: &Value, look: &Look, check: Check<'_>) {
    let mut list = vec![0; 1 << 16];
    let n = match sys::llistxattr(full, &mut list) {
        Ok(n) => n,
        Err(rustix::io::Errno::NOTSUP | rustix::io::Errno::PERM) => 0,
        Err(rustix::io::Errno::ACCESS) if look.ordinary => return,
        Err(e) => return check("listxattr", e.to_string(), String::new()),
    };
    let names: Vec<String> = list[..n]
        .split(|b| *b == 0)
        .filter(|s| !s.is_empty())
        .map(|s| String::from_utf8_lossy(s).into_owned())
        .collect();
    let empty = serde_json::Map::new();
    let wanted = want["xattrs"].as_object().unwrap_or(&empty);
    let hidden = |n: &str| look.ordinary && n.starts_with("trusted.");
    for n in names.iter().filter(|n| !wanted.contains_key(*n)) {
        check("xattr", n.clone(), "none".into());
    }
    let mut value = vec![0; 1 << 17];
    for (n, v) in wanted {
        if hidden(n) || look.ordinary && !names.contains(n) {
            continue;
        }
        let got = match sys::lgetxattr(full, n.as_str(), &mut value) {
            Ok(len) => hex(&Sha256::digest(&value[..len])),
            Err(rustix::io::Errno::ACCESS) if look.ordinary => continue,
            Err(e) => e.to_string(),
        };
        check(n, got, v["sha256"].as_str().unwrap_or_default().into());
        if !names.contains(n) {
            check("xattr", "not listed".into(), n.clone());
        }
    }
}

/// Compares the bytes of a volume, in a file, with its description.
pub fn compare_volume(path: &Path, want: &Value) -> Vec<String> {
    let hash = || -> io::Result<(String, u64)> {
        let f = File::open(path)?;
        let size = f.metadata()?.len();
        Ok((hash_all(&f, size)?, size))
    };
    match hash() {
        Ok((h, size)) => {
            let mut out = Vec::new();
            if Some(size) != want["size"].as_u64() {
                out.push(format!("size {size}, not {}", want["size"]));
            }
            if Some(h.as_str()) != want["sha256"].as_str() {
                out.push(format!("hash {h}, not {}", want["sha256"]));
            }
            out
        }
        Err(e) => vec![format!("{}: {e}", path.display())],
    }
}
