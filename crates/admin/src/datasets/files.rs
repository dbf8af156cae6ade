//! Files and directories without a mount (`zfs ls`, `zfs cat`, `zfs tar`): read with the rights of the caller.
//!
//! 1. Nothing is written but what reading a mounted file writes (`atime`). What a mounted file system has in memory is seen.
//! 2. The caller needs the permission to mount, and what it would need in a mount: to search every directory on the way, and to
//!    read what it asks for.
//! 3. No lock is held while the caller takes bytes. What is replaced or destroyed meanwhile (rollback, receive) ends the request,
//!    mounted or not: its blocks may have become others'.
//! 4. Symbolic links are not followed, and file systems below are not entered.
//! 5. A pool that is not in service is opened for reading by `pools::import::open_unimported`, in a process of the caller's own. Whoever may read its
//!    devices may read all files in it.

use crate::cancel;
use crate::datasets::rights::{self, Action};
use crate::datasets::{self, keys, Answer};
use crate::errors;
use crate::head;
use crate::rations::Share;
use crate::registry::{objset_type_in, Admin, PoolEntry};
use crate::streams::Way;
use api::{ApiError, FileWanted, Peer, Secret};
use base::{Kind, Result};
use dsl::crypto::keyformat;
use dsl::Dataset;
use pool::Pool;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::io::Write;
use std::sync::Arc;
use zpl::{Cred, Zfs, Znode};

/// Bytes of a file read at a time.
const PIECE: usize = 1 << 20;
/// Names of a directory that are read in one step: others wait for it.
const NAMES: usize = 4096;
/// Bytes of names that a request of a user other than the owner has in memory, at most.
const MOST_OF_USERS: usize = 8 << 20;
/// What a name in memory takes beside its bytes.
const NAME: usize = 64;
/// Directories below one another that an archive goes into, at most.
const DEEPEST: usize = 1000;
/// Permission to read, as in modes.
const READ: u32 = 4;
/// Permission to search a directory.
const SEARCH: u32 = 1;

/// Bits of a mode that tell the type.
const TYPE: u32 = 0o170_000;

fn is_dir(mode: u32) -> bool {
    mode & TYPE == 0o040_000
}

fn is_reg(mode: u32) -> bool {
    mode & TYPE == 0o100_000
}

fn is_lnk(mode: u32) -> bool {
    mode & TYPE == 0o120_000
}

/// A file system or snapshot that is read.
struct View {
    /// Its pool, if that is in service.
    entry: Option<Arc<PoolEntry>>,
    ds: Arc<Dataset>,
    zfs: Arc<Zfs>,
    cred: Cred,
    /// Bytes of names in memory, and how many there may be.
    kept: Cell<usize>,
    most: usize,
    /// The same, as part of what all requests of the user keep.
    share: RefCell<Share>,
}

/// Names in memory, which count until this is dropped.
struct Kept<'a> {
    count: &'a Cell<usize>,
    share: &'a RefCell<Share>,
    bytes: usize,
}

impl Drop for Kept<'_> {
    fn drop(&mut self) {
        self.count.set(self.count.get() - self.bytes);
        self.share.borrow_mut().give(self.bytes);
    }
}

/// The key of a dataset that is not in service, as [`read_unimported`] asks for it.
pub struct KeyWanted {
    /// Its encryption root.
    pub root: String,
    /// `raw`, `hex`, `passphrase`.
    pub format: &'static str,
    /// The property `keylocation`.
    pub location: String,
}

/// [`read`] in a pool that is not in service, and is open for reading. `key` is asked for the key of an encrypted dataset.
///
/// # Errors
/// Those of [`read`]; those of `key`.
pub fn read_unimported(
    pool: &Pool,
    name: &str,
    path: &[u8],
    wanted: FileWanted,
    key: &mut dyn FnMut(&KeyWanted) -> Answer<Secret>,
    to: &mut dyn Write,
) -> Answer<()> {
    let ds = match pool.dataset(name) {
        Ok(ds) => ds,
        Err(e) if e.kind == Kind::NotFound => return Err(ApiError::no_such_dataset(name)),
        Err(e) => return Err(datasets::plain(e, name)),
    };
    let plain = |e| datasets::plain(e, name);
    check_type(objset_type_in(pool, &ds).map_err(plain)?)?;
    if matches!(ds.crypt().map_err(plain)?, zio::Crypt::Locked) {
        unlock(pool, &ds, name, key)?;
    }
    let view = View {
        entry: None,
        zfs: head::read_only_view(pool, &ds).map_err(plain)?,
        ds,
        cred: Cred::root(),
        kept: Cell::default(),
        most: usize::MAX,
        share: RefCell::default(),
    };
    write(&view, path, wanted, to)
}

/// Loads the key of a dataset.
fn unlock(
    pool: &Pool,
    ds: &Dataset,
    name: &str,
    key: &mut dyn FnMut(&KeyWanted) -> Answer<Secret>,
) -> Answer<()> {
    let plain = |e| datasets::plain(e, name);
    let root = ds.dir().encryption_root().map_err(plain)?;
    let Some(root) = root else {
        return Err(ApiError::reason(Kind::Damaged, "its key is missing"));
    };
    let Some(object) = root.key_object().map_err(plain)? else {
        return Err(ApiError::reason(Kind::Damaged, "its key is missing"));
    };
    let location = root.head().and_then(|h| h.prop("keylocation", false));
    let asked = KeyWanted {
        root: root.full_name(),
        format: match object.params.format {
            keyformat::RAW => "raw",
            keyformat::HEX => "hex",
            _ => "passphrase",
        },
        location: match location.map_err(plain)? {
            Some((value, _)) => value.text().unwrap_or("prompt").to_string(),
            None => "prompt".to_string(),
        },
    };
    let secret = key(&asked)?;
    let made = keys::wrapping(&object.params, &secret).map_err(errors::answer)?;
    let loaded = pool.dsl().load_key(&root, made, false);
    loaded.map_err(errors::answer)
}

fn check_type(os_type: u64) -> Answer<()> {
    match os_type == disk::os_type::ZFS {
        true => Ok(()),
        false => Err(ApiError::reason(
            Kind::Invalid,
            "operation not applicable to datasets of this type",
        )),
    }
}

impl View {
    fn open(admin: &Admin, peer: Peer, name: &str) -> Answer<View> {
        let entry = datasets::entry_of(admin, name)?;
        let gate = entry.pass().map_err(errors::answer)?;
        let names = entry.names.read();
        let ds = datasets::find(&entry, name)?;
        // A file system may be where the caller cannot go, or nowhere: who may mount it could go there all the same.
        rights::require(admin, &entry, peer, Action::Mount, &ds)?;
        drop(names);
        let plain = |e| datasets::plain(e, name);
        check_type(entry.objset_type(&ds).map_err(plain)?)?;
        if matches!(ds.crypt().map_err(plain)?, zio::Crypt::Locked) {
            return Err(ApiError::reason(Kind::Access, "encryption key not loaded"));
        }
        let zfs = match entry.mounted(ds.object()) {
            Some(m) => {
                let inside = m.enter();
                inside.zfs.clone()
            }
            None => head::view_with_rights(&entry.pool, &ds).map_err(plain)?,
        };
        drop(gate);
        Ok(View {
            cred: rights::cred(peer),
            kept: Cell::default(),
            share: RefCell::default(),
            most: match rights::is_owner(admin, peer) {
                true => usize::MAX,
                false => MOST_OF_USERS,
            },
            entry: Some(entry),
            ds,
            zfs,
        })
    }

    /// Does a step of the work: the pool stays, and the file system is the one that was opened. Locks of the pool are held, so
    /// that nothing is destroyed or replaced meanwhile.
    fn step<R>(&self, work: impl FnOnce(&Zfs) -> Result<R>) -> Result<R> {
        if cancel::is_cancelled() {
            return Err(Kind::Interrupted.into());
        }
        let Some(entry) = &self.entry else {
            return work(&self.zfs);
        };
        let _gate = entry.pass()?;
        let _names = entry.names.read();
        let mounted = entry.mounted(self.ds.object());
        let inside = mounted.as_ref().map(|m| m.enter());
        let same = match &inside {
            Some(i) => Arc::ptr_eq(&i.zfs, &self.zfs),
            None => self.is_there(entry),
        };
        match same {
            true => work(&self.zfs),
            false => Err(Kind::Stale.into()),
        }
    }

    /// Whether the dataset exists, and has the object set that is read.
    fn is_there(&self, entry: &PoolEntry) -> bool {
        let now = entry.pool.dataset_by_object(self.ds.object());
        let os = self.ds.objset();
        now.is_ok_and(|now| Arc::ptr_eq(&now, &self.ds))
            && os.is_some_and(|os| Arc::ptr_eq(&os, self.zfs.objset()))
    }

    /// The object at a path, and its name.
    fn find(&self, path: &[u8]) -> Result<(Arc<Znode>, Vec<u8>)> {
        let mut at = self.step(|zfs| zfs.root())?;
        let mut last = b".".to_vec();
        for name in path.split(|b| *b == b'/').filter(|n| !n.is_empty()) {
            at = self.step(|zfs| match name {
                b"." => Ok(at.clone()),
                _ => zfs.lookup(&at, name, &self.cred),
            })?;
            last = name.to_vec();
        }
        Ok((at, last))
    }

    /// So many bytes of names are about to be in memory.
    fn keep(&self, bytes: usize) -> Result<Kept<'_>> {
        let all = self.kept.get() + bytes;
        if all > self.most {
            let text = format!(
                "it has too many names: a request of a user other than the owner keeps {} MiB of them; read parts of it, or mount it",
                MOST_OF_USERS >> 20
            );
            return Err(base::Error::new(Kind::ArgTooBig, text));
        }
        self.share.borrow_mut().take(bytes)?;
        self.kept.set(all);
        Ok(Kept {
            count: &self.kept,
            share: &self.share,
            bytes,
        })
    }

    /// Names in a directory, in order.
    fn names(&self, dir: &Arc<Znode>) -> Result<(Vec<Vec<u8>>, Kept<'_>)> {
        self.step(|zfs| zfs.access(dir, READ | SEARCH, &self.cred))?;
        let mut names: Vec<Vec<u8>> = Vec::new();
        let mut kept = self.keep(0)?;
        let mut at = Some(0);
        while let Some(from) = at.take() {
            let mut bytes = 0;
            let mut left = NAMES;
            self.step(|zfs| {
                zfs.readdir(dir, from, |e| {
                    if e.name != b"." && e.name != b".." {
                        bytes += e.name.len() + NAME;
                        names.push(e.name.to_vec());
                    }
                    left -= 1;
                    if left == 0 {
                        at = Some(e.next);
                    }
                    Ok(left > 0)
                })
            })?;
            let more = self.keep(bytes)?;
            kept.bytes += std::mem::ManuallyDrop::new(more).bytes;
        }
        names.sort();
        Ok((names, kept))
    }

    /// An object by its name in a directory; none if somebody has removed it.
    fn entry(&self, dir: &Arc<Znode>, name: &[u8]) -> Result<Option<Arc<Znode>>> {
        match self.step(|zfs| zfs.lookup(dir, name, &self.cred)) {
            Ok(z) => Ok(Some(z)),
            Err(e) if e.kind == Kind::NotFound => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// The content of a file, up to so many bytes. Returns how many there were.
    fn copy(&self, z: &Znode, size: u64, to: &mut dyn Write) -> Result<u64> {
        self.step(|zfs| zfs.access(z, READ, &self.cred))?;
        let mut buf = vec![0; PIECE.min(size as usize)];
        let mut at = 0;
        while at < size {
            let want = (size - at).min(PIECE as u64) as usize;
            let n = self.step(|zfs| zfs.read(z, at, &mut buf[..want]))?;
            // It has become shorter.
            if n == 0 {
                break;
            }
            to.write_all(&buf[..n])?;
            at += n as u64;
        }
        Ok(at)
    }
}

/// Writes what is wanted of a path to `to`.
///
/// # Errors
/// Those of a mount (`Access`, `NotFound`, …), naming the path. `Invalid` for a directory whose content is wanted.
pub fn read(
    admin: &Arc<Admin>,
    peer: Peer,
    name: &str,
    path: &[u8],
    wanted: FileWanted,
    to: &mut dyn Write,
) -> Answer<()> {
    let view = View::open(admin, peer, name)?;
    let users = view.entry.as_ref().map(|e| &e.users);
    let listed = users.map(|u| u.enter(peer.pid, name, Way::Sent));
    // An export by force ends it.
    let _ended = listed.as_ref().map(|l| cancel::ended_by(l.flag()));
    write(&view, path, wanted, to)
}

fn write(view: &View, path: &[u8], wanted: FileWanted, to: &mut dyn Write) -> Answer<()> {
    let done = match wanted {
        FileWanted::Names | FileWanted::Details => {
            list(view, path, wanted == FileWanted::Details, to)
        }
        FileWanted::Content => content(view, path, to),
        FileWanted::Archive => archive(view, path, to),
    };
    done.map_err(|e| {
        let shown = String::from_utf8_lossy(path);
        ApiError::reason(e.kind, format!("'{shown}': {}", why(&e)))
    })
}

/// An error in words.
fn why(e: &base::Error) -> String {
    let short = match e.kind {
        Kind::Access | Kind::NotPermitted => "permission denied",
        Kind::NotFound => "no such file or directory",
        Kind::NotDir => "not a directory",
        Kind::IsDir => "is a directory",
        Kind::Stale => "it was replaced meanwhile",
        _ => return e.to_string(),
    };
    e.what().unwrap_or(short).to_string()
}

fn content(view: &View, path: &[u8], to: &mut dyn Write) -> Result<()> {
    let (z, _) = view.find(path)?;
    let mode = z.mode();
    if is_dir(mode) {
        return Err(Kind::IsDir.into());
    }
    if !is_reg(mode) {
        return Err(base::Error::new(Kind::Invalid, "not a regular file"));
    }
    view.copy(&z, z.size(), to).map(drop)
}

/// A line for each entry of a directory, or for the object itself.
fn list(view: &View, path: &[u8], details: bool, to: &mut dyn Write) -> Result<()> {
    let (top, name) = view.find(path)?;
    let dir = is_dir(top.mode());
    let (names, _kept) = match dir {
        true => view.names(&top)?,
        false => (vec![name], view.keep(0)?),
    };
    for name in names {
        let z = match dir {
            true => view.entry(&top, &name)?,
            false => Some(top.clone()),
        };
        let Some(z) = z else { continue };
        let mut line = Vec::new();
        if details {
            let a = view.step(|zfs| Ok(zfs.getattr(&z)))?;
            let text = mode_text(a.mode);
            let when = a.mtime.sec;
            write!(line, "{text} {:>3} {:>6} {:>6} ", a.nlink, a.uid, a.gid)?;
            write!(line, "{:>12} {when:>11} ", a.size)?;
        }
        escape(&name, &mut line);
        if details && is_lnk(z.mode()) {
            line.extend_from_slice(b" -> ");
            escape(&view.step(|zfs| zfs.readlink(&z))?, &mut line);
        }
        line.push(b'\n');
        to.write_all(&line)?;
    }
    Ok(())
}

/// A name on a line of its own: control characters and the backslash as `\ooo`.
fn escape(name: &[u8], out: &mut Vec<u8>) {
    for b in name {
        match b {
            0..=31 | 127 | b'\\' => out.extend_from_slice(format!("\\{b:03o}").as_bytes()),
            b => out.push(*b),
        }
    }
}

/// A mode as `ls -l` prints it.
fn mode_text(mode: u32) -> String {
    let kind = match mode >> 12 {
        0o1 => 'p',
        0o2 => 'c',
        0o4 => 'd',
        0o6 => 'b',
        0o12 => 'l',
        0o14 => 's',
        _ => '-',
    };
    let mut text = String::from(kind);
    for (shift, special, letters) in [(6, 0o4000, "sS"), (3, 0o2000, "sS"), (0, 0o1000, "tT")] {
        let bits = mode >> shift;
        text.push(if bits & 4 != 0 { 'r' } else { '-' });
        text.push(if bits & 2 != 0 { 'w' } else { '-' });
        let x = bits & 1 != 0;
        text.push(match (mode & special != 0, x) {
            (true, true) => letters.as_bytes()[0].into(),
            (true, false) => letters.as_bytes()[1].into(),
            (false, true) => 'x',
            (false, false) => '-',
        });
    }
    text
}

/// An archive of an object and everything below it, in the format `pax` of tar(1). What the caller may not read is left out, and
/// the first such error is returned at the end.
fn archive(view: &View, path: &[u8], to: &mut dyn Write) -> Result<()> {
    let (z, name) = view.find(path)?;
    let mut archive = Archive {
        view,
        to,
        links: HashMap::new(),
        failed: None,
    };
    archive.tree(&z, name)?;
    archive.to.write_all(&[0; 1024])?;
    match archive.failed {
        None => Ok(()),
        Some(e) => Err(e),
    }
}

/// A directory of which an archive is being written.
struct Level<'a> {
    dir: Arc<Znode>,
    /// Its name in the archive.
    name: Vec<u8>,
    /// What is left of it.
    names: std::vec::IntoIter<Vec<u8>>,
    _kept: [Kept<'a>; 2],
}

/// An archive that is being written.
struct Archive<'a> {
    view: &'a View,
    to: &'a mut dyn Write,
    /// Names of files with several, by object.
    links: HashMap<u64, Vec<u8>>,
    /// The first thing that could not be read.
    failed: Option<base::Error>,
}

impl<'a> Archive<'a> {
    /// An error about what is read is noted, one of the caller's end ends the archive.
    fn note(&mut self, e: base::Error, name: &[u8]) -> Result<()> {
        if matches!(e.kind, Kind::Interrupted | Kind::Stale | Kind::Suspended) {
            return Err(e);
        }
        let shown = String::from_utf8_lossy(name).into_owned();
        let text = format!("{shown}: {}", why(&e));
        self.failed.get_or_insert(base::Error::new(e.kind, text));
        Ok(())
    }

    /// An object and everything below it.
    fn tree(&mut self, z: &Arc<Znode>, name: Vec<u8>) -> Result<()> {
        let view = self.view;
        let mut open: Vec<Level<'a>> = Vec::new();
        open.extend(self.add(z, name, 0)?);
        while let Some(level) = open.last_mut() {
            let Some(below) = level.names.next() else {
                open.pop();
                continue;
            };
            let name = [&level.name[..], b"/", &below].concat();
            match view.entry(&level.dir, &below) {
                Ok(None) => {}
                Ok(Some(z)) => {
                    let depth = open.len();
                    open.extend(self.add(&z, name, depth)?);
                }
                Err(e) => self.note(e, &name)?,
            }
        }
        Ok(())
    }

    /// An object; what is in it, if it is a directory, comes next.
    fn add(&mut self, z: &Arc<Znode>, name: Vec<u8>, depth: usize) -> Result<Option<Level<'a>>> {
        let a = self.view.step(|zfs| Ok(zfs.getattr(z)))?;
        let (mut size, mut link, mut kind) = (0, Vec::new(), b'0');
        let earlier = self.links.get(&a.ino).filter(|_| !is_dir(a.mode)).cloned();
        if let Some(first) = earlier {
            (kind, link) = (b'1', first);
        } else {
            match a.mode >> 12 {
                0o1 => kind = b'6',
                0o2 => kind = b'3',
                0o6 => kind = b'4',
                0o4 => kind = b'5',
                0o12 => {
                    kind = b'2';
                    link = self.view.step(|zfs| zfs.readlink(z))?;
                }
                // Sockets are nothing without those that listen.
                0o14 => return Ok(None),
                _ => size = a.size,
            }
            // Those there is no room for are in the archive more than once.
            if a.nlink > 1 && !is_dir(a.mode) {
                if let Ok(kept) = self.view.keep(name.len() + NAME) {
                    self.links.insert(a.ino, name.clone());
                    std::mem::forget(kept);
                }
            }
        }
        if kind == b'0' {
            let view = self.view;
            if let Err(e) = view.step(|zfs| zfs.access(z, READ, &view.cred)) {
                self.note(e, &name)?;
                return Ok(None);
            }
        }
        let shown = match kind {
            b'5' => [&name[..], b"/"].concat(),
            _ => name.clone(),
        };
        self.header(&a, &shown, &link, kind, size)?;
        if size > 0 {
            // The header has promised so many bytes.
            let had = self.view.copy(z, size, &mut *self.to)?;
            let rest = size.next_multiple_of(512) - had;
            std::io::copy(
                &mut std::io::Read::take(std::io::repeat(0), rest),
                &mut *self.to,
            )?;
        }
        if kind != b'5' {
            return Ok(None);
        }
        if depth >= DEEPEST {
            let e = base::Error::new(Kind::Invalid, "directories are too deep");
            self.note(e, &name)?;
            return Ok(None);
        }
        let view = self.view;
        let kept = view.keep(name.len() + NAME);
        match kept.and_then(|kept| Ok((kept, view.names(z)?))) {
            Ok((own, (names, kept))) => Ok(Some(Level {
                dir: z.clone(),
                name,
                names: names.into_iter(),
                _kept: [own, kept],
            })),
            Err(e) => {
                self.note(e, &name)?;
                Ok(None)
            }
        }
    }

    /// The header of an entry, behind one with what does not fit into it.
    fn header(
        &mut self,
        a: &zpl::Attr,
        name: &[u8],
        link: &[u8],
        kind: u8,
        size: u64,
    ) -> Result<()> {
        let mut more = Vec::new();
        for (key, text, most) in [("path", name, 100), ("linkpath", link, 100)] {
            if text.len() > most {
                more.extend(record(key, text));
            }
        }
        for (key, n, most) in [
            ("size", size, 0o77_777_777_777),
            ("uid", u64::from(a.uid), 0o7_777_777),
            ("gid", u64::from(a.gid), 0o7_777_777),
        ] {
            if n > most {
                more.extend(record(key, n.to_string().as_bytes()));
            }
        }
        let time = format!("{}.{:09}", a.mtime.sec, a.mtime.nsec);
        more.extend(record("mtime", time.as_bytes()));
        let len = more.len() as u64;
        self.to
            .write_all(&block(a, b"./PaxHeaders/entry", b"", b'x', len))?;
        more.resize(more.len().next_multiple_of(512), 0);
        self.to.write_all(&more)?;
        self.to.write_all(&block(a, name, link, kind, size))?;
        Ok(())
    }
}

/// A record of an extended header: `LENGTH KEY=VALUE`, where the length counts itself.
fn record(key: &str, value: &[u8]) -> Vec<u8> {
    let rest = key.len() + value.len() + 3;
    let mut len = rest + 1;
    while len.to_string().len() + rest != len {
        len = len.to_string().len() + rest;
    }
    let mut out = format!("{len} {key}=").into_bytes();
    out.extend_from_slice(value);
    out.push(b'\n');
    out
}

/// A header block.
fn block(a: &zpl::Attr, name: &[u8], link: &[u8], kind: u8, size: u64) -> [u8; 512] {
    let mut b = [0; 512];
    let put = |b: &mut [u8; 512], at: usize, most: usize, text: &[u8]| {
        let n = text.len().min(most);
        b[at..at + n].copy_from_slice(&text[..n]);
    };
    // Numbers that do not fit are in the extended header.
    let octal = |b: &mut [u8; 512], at: usize, digits: usize, n: u64| {
        let most = 8u64.pow(digits as u32) - 1;
        let n = if n > most { 0 } else { n };
        put(b, at, digits, format!("{n:0digits$o}").as_bytes());
    };
    let is_device = matches!(kind, b'3' | b'4');
    let (major, minor) = match is_device {
        true => (a.rdev >> 8 & 0xfff, a.rdev & 0xff | a.rdev >> 12 & 0xfff00),
        false => (0, 0),
    };
    put(&mut b, 0, 100, name);
    octal(&mut b, 100, 7, u64::from(a.mode & 0o7777));
    octal(&mut b, 108, 7, u64::from(a.uid));
    octal(&mut b, 116, 7, u64::from(a.gid));
    octal(&mut b, 124, 11, size);
    octal(&mut b, 136, 11, u64::try_from(a.mtime.sec).unwrap_or(0));
    put(&mut b, 148, 8, b"        ");
    b[156] = kind;
    put(&mut b, 157, 100, link);
    put(&mut b, 257, 8, b"ustar\x0000");
    octal(&mut b, 329, 7, major);
    octal(&mut b, 337, 7, minor);
    let sum: u64 = b.iter().map(|x| u64::from(*x)).sum();
    put(&mut b, 148, 8, format!("{sum:06o}\0 ").as_bytes());
    b
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_count_their_own_length() {
        assert_eq!(record("a", b"b"), b"6 a=b\n");
        assert_eq!(record("path", b"xx"), b"11 path=xx\n");
        for n in 0..2000 {
            let r = record("path", &vec![b'x'; n]);
            let text = String::from_utf8(r.clone()).unwrap();
            assert_eq!(text.split_once(' ').unwrap().0, r.len().to_string());
        }
    }

    #[test]
    fn modes_are_shown_as_ls_does() {
        assert_eq!(mode_text(0o100644), "-rw-r--r--");
        assert_eq!(mode_text(0o41777), "drwxrwxrwt");
        assert_eq!(mode_text(0o104750), "-rwsr-x---");
        assert_eq!(mode_text(0o120777), "lrwxrwxrwx");
    }
}
