//! What the file system must be: every state it has been through, and what was acknowledged when.

mod names;

use crate::rig::{is_full, with_snapshot, Fs};
use base::Kind;
use pool::Pool;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use vdev::testing::{Journal, SeededRng};
use zpl::falloc;
use zpl::{Cred, New, SetAttr, WriteOpts, Znode};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Node {
    Dir,
    File(usize),
    Link(String),
}

#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct FileState {
    pub data: Vec<u8>,
    pub mode: u32,
    pub xattr: Option<Vec<u8>>,
}

type Names = BTreeMap<String, Node>;

/// A promise: everything about names up to `op`, and about all files or one.
struct Ack {
    pos: usize,
    op: usize,
    /// `None`: all.
    file: Option<usize>,
}

struct File {
    /// States by the operation that made them.
    states: Vec<(usize, Arc<FileState>)>,
    /// Renames: whoever sees one of them sees what was written before it.
    renames: Vec<usize>,
}

/// A snapshot: made by an operation (done after so many events), perhaps destroyed by one.
struct Snap {
    made: usize,
    made_pos: usize,
    gone: Option<usize>,
    gone_pos: Option<usize>,
}

/// One session: operations on a file system, and the memory of them.
pub struct Model {
    rng: Arc<SeededRng>,
    journal: Arc<Journal>,
    op: usize,
    begun: Vec<usize>,
    names: Vec<(usize, Arc<Names>)>,
    files: Vec<File>,
    acks: Vec<Ack>,
    snaps: Vec<Snap>,
    /// Files kept open.
    held: Vec<Arc<Znode>>,
    /// Directory in which all of it happens, the root if empty.
    home: String,
    /// Files and directories there before; not compared if somebody else makes some, too.
    pub base_objects: Option<usize>,
    pub max_file: u64,
    /// Operations that found no space.
    pub refused: usize,
    pub xattrs: bool,
    /// Of a hundred operations, how many write a txg.
    pub syncs: u64,
    /// Errors are expected; this is the first. What failed may have been done.
    pub tolerant: bool,
    /// Snapshots of the file system come and go.
    pub snapshots: bool,
    pub failed: Option<base::Error>,
}

fn split(path: &str) -> (&str, &str) {
    path.rsplit_once('/').unwrap_or(("", path))
}

fn find(fs: &Fs, path: &str) -> base::Result<Arc<Znode>> {
    let mut z = fs.zfs.root()?;
    for part in path.split('/').filter(|p| !p.is_empty()) {
        z = fs.zfs.lookup(&z, part.as_bytes(), &Cred::root())?;
    }
    Ok(z)
}

fn pattern(rng: &SeededRng, len: usize, file: usize, op: usize) -> Vec<u8> {
    let seed = (file as u64) << 32 | op as u64;
    match rng.below(6) {
        0 => vec![0; len],
        1 => (0..len)
            .map(|i| ((i / 700) as u64 ^ seed).wrapping_mul(31) as u8)
            .collect(),
        _ => {
            let r = SeededRng::new(seed);
            let mut v = vec![0; len];
            env::Rng::fill(&r, &mut v);
            v
        }
    }
}

/// Files and directories of an object set.
pub fn count_objects(fs: &Fs) -> usize {
    let mut n = 0;
    let mut at = 0;
    while let Some(o) = fs.set.os.next_object(at).unwrap() {
        let ty = fs.set.os.hold(o).unwrap().info().obj_type;
        n += usize::from(
            ty == disk::ObjType::PLAIN_FILE_CONTENTS || ty == disk::ObjType::DIRECTORY_CONTENTS,
        );
        at = o;
    }
    n
}

impl Model {
    pub fn new(rng: Arc<SeededRng>, journal: Arc<Journal>, fs: &Fs) -> Model {
        Model {
            rng,
            journal,
            op: 0,
            begun: vec![0],
            names: vec![(0, Arc::default())],
            files: Vec::new(),
            acks: Vec::new(),
            snaps: Vec::new(),
            held: Vec::new(),
            home: String::new(),
            base_objects: Some(count_objects(fs)),
            max_file: 200_000,
            refused: 0,
            xattrs: true,
            syncs: 8,
            tolerant: false,
            snapshots: false,
            failed: None,
        }
    }

    /// A session of one of several, in a directory of its own.
    pub fn at_home(rng: Arc<SeededRng>, journal: Arc<Journal>, fs: &Fs, home: &str) -> Model {
        let root = fs.zfs.root().unwrap();
        let new = New::dir(0o755, 0);
        fs.zfs
            .create(&root, home.as_bytes(), &new, &Cred::root())
            .unwrap();
        Model {
            home: home.into(),
            base_objects: None,
            ..Model::new(rng, journal, fs)
        }
    }

    fn find(&self, fs: &Fs, path: &str) -> base::Result<Arc<Znode>> {
        find(fs, &format!("{}/{path}", self.home))
    }

    pub fn now(&self) -> &Arc<Names> {
        &self.names.last().unwrap().1
    }

    fn any(&self, want: impl Fn(&Node) -> bool) -> Option<String> {
        let list: Vec<&String> = self
            .now()
            .iter()
            .filter(|(_, n)| want(n))
            .map(|(p, _)| p)
            .collect();
        (!list.is_empty()).then(|| list[self.rng.below(list.len() as u64) as usize].clone())
    }

    fn new_path(&self) -> String {
        let dir = match self.any(|n| *n == Node::Dir) {
            Some(d) if self.rng.below(2) == 0 && d.matches('/').count() < 3 => d + "/",
            _ => String::new(),
        };
        format!("{dir}n{}", self.rng.below(12))
    }

    fn change_names(&mut self, f: impl FnOnce(&mut Names)) {
        let mut n = (**self.now()).clone();
        f(&mut n);
        self.names.push((self.op, Arc::new(n)));
    }

    fn state(&self, file: usize) -> Arc<FileState> {
        self.files[file].states.last().unwrap().1.clone()
    }

    fn change(&mut self, file: usize, f: impl FnOnce(&mut FileState)) {
        let mut s = (*self.state(file)).clone();
        f(&mut s);
        let op = self.op;
        self.files[file].states.push((op, Arc::new(s)));
    }

    fn ack(&mut self, file: Option<usize>) {
        self.acks.push(Ack {
            pos: self.journal.len(),
            op: self.op,
            file,
        });
    }

    /// `Ok(true)` if it was done, `Ok(false)` if there was no space for it.
    fn done(&mut self, r: base::Result<()>) -> bool {
        match r {
            Ok(()) => true,
            Err(e) if is_full(&e) => {
                self.refused += 1;
                false
            }
            Err(e) if self.tolerant => {
                self.failed = Some(e);
                true
            }
            Err(e) => panic!("operation {}: {e}", self.op),
        }
    }

    /// A znode that is there; `None` if the pool has failed, where it may.
    fn found(&mut self, fs: &Fs, path: &str) -> Option<Arc<Znode>> {
        match self.find(fs, path) {
            Ok(z) => Some(z),
            Err(e) if self.tolerant => {
                self.failed = Some(e);
                None
            }
            Err(e) => panic!("operation {}: {path}: {e}", self.op),
        }
    }

    /// A promise, or a failure.
    fn promised(&mut self, file: Option<usize>, r: base::Result<()>) {
        if self.done(r) && self.failed.is_none() {
            self.ack(file);
        }
    }

    fn begin(&mut self) {
        self.op += 1;
        self.begun.push(self.journal.len());
    }

    /// A file of `size` random bytes.
    pub fn fill(&mut self, fs: &Fs, path: &str, size: usize) -> bool {
        self.begin();
        let root = Cred::root();
        let dir = fs.zfs.root().unwrap();
        let r = fs
            .zfs
            .create(&dir, path.as_bytes(), &New::file(0o100644, 0), &root);
        let z = match r {
            Ok(z) => z,
            Err(e) if is_full(&e) => return false,
            Err(e) => panic!("{e}"),
        };
        let id = self.files.len();
        let mut data = vec![0; size];
        env::Rng::fill(&SeededRng::new(id as u64 + 1000), &mut data);
        let n = match fs.zfs.write(&z, 0, &data, WriteOpts::default()) {
            Ok(n) => n,
            Err(e) if is_full(&e) => 0,
            Err(e) => panic!("{e}"),
        };
        data.truncate(n);
        let s = FileState {
            data,
            mode: 0o644,
            xattr: None,
        };
        self.files.push(File {
            states: vec![(self.op, Arc::new(s))],
            renames: Vec::new(),
        });
        self.change_names(|m| {
            m.insert(path.into(), Node::File(id));
        });
        n == size
    }

    /// A random operation.
    pub fn step(&mut self, fs: &Fs) {
        self.begin();
        let rng = self.rng.clone();
        let zfs = &fs.zfs;
        match rng.below(100) {
            0..=29 => self.write(fs, false),
            30..=33 => self.write(fs, true),
            34..=43 => self.create_file(fs),
            44..=49 => self.unlink(fs),
            50..=57 => self.rename(fs),
            58..=60 => self.make_directory(fs),
            61 => self.remove_directory(fs),
            62..=63 => self.symlink(fs),
            64..=65 => self.link(fs),
            66..=73 => self.alter(fs),
            74 if self.snapshots => self.snapshot(fs),
            74..=76 => {
                self.held.pop();
                let r = zfs.reap();
                self.done(r);
            }
            77..=88 => self.fsync_one(fs),
            89..=91 => {
                let r = zfs.fsync(None);
                self.promised(None, r);
            }
            n => {
                if n - 92 < self.syncs {
                    let r = fs.pool.sync().map(|_| ());
                    self.promised(None, r);
                }
            }
        }
    }

    fn snapshot(&mut self, fs: &Fs) {
        let live: Vec<usize> = (0..self.snaps.len())
            .filter(|n| self.snaps[*n].gone.is_none())
            .collect();
        if live.len() > 3 {
            let n = live[self.rng.below(live.len() as u64) as usize];
            self.snaps[n].gone = Some(self.op);
            fs.destroy_snapshot(&format!("s{n}")).unwrap();
            self.snaps[n].gone_pos = Some(self.journal.len());
        } else {
            let r = fs.snapshot(&format!("s{}", self.snaps.len()));
            if self.done(r) {
                self.snaps.push(Snap {
                    made: self.op,
                    made_pos: self.journal.len(),
                    gone: None,
                    gone_pos: None,
                });
            }
        }
        // Either way the txg is on disk.
        self.ack(None);
    }

    fn write(&mut self, fs: &Fs, sync: bool) {
        let Some(path) = self.any(|n| matches!(n, Node::File(_))) else {
            return;
        };
        let Node::File(id) = self.now()[&path] else {
            return;
        };
        let Some(z) = self.found(fs, &path) else {
            return;
        };
        let old = self.state(id).data.len() as u64;
        let offset = match self.rng.below(3) {
            0 => old,
            1 => self.rng.below(old + 1),
            _ => self.rng.below(self.max_file),
        };
        let len = match self.rng.below(4) {
            0 => 1 + self.rng.below(600),
            1 => 1 + self.rng.below(9000),
            2 => 1 + self.rng.below(50_000),
            _ => 1 + self.rng.below(150_000),
        };
        let len = len.min(self.max_file.saturating_sub(offset)) as usize;
        if len == 0 {
            return;
        }
        let data = pattern(&self.rng, len, id, self.op);
        let opts = WriteOpts {
            sync,
            ..WriteOpts::default()
        };
        let r = fs.zfs.write(&z, offset, &data, opts).map(|n| {
            assert_eq!(n, len);
        });
        if self.done(r) {
            let at = offset as usize;
            self.change(id, |s| {
                if s.data.len() < at + len {
                    s.data.resize(at + len, 0);
                }
                s.data[at..at + len].copy_from_slice(&data);
            });
            if sync {
                self.promised(Some(id), Ok(()));
            }
        }
    }

    fn rename(&mut self, fs: &Fs) {
        let (Some(from), to) = (self.any(|_| true), self.new_path()) else {
            return;
        };
        let (a, b) = (self.now()[&from].clone(), self.now().get(&to).cloned());
        let (up, down) = (format!("{to}/"), format!("{from}/"));
        if from == to || from.starts_with(&up) || to.starts_with(&down) {
            return;
        }
        // Names of the same file: nothing happens. Of different kinds: refused.
        if b.as_ref() == Some(&a) && a != Node::Dir {
            return;
        }
        if b.is_some() && (a == Node::Dir) != (b == Some(Node::Dir)) {
            return;
        }
        if b == Some(Node::Dir) && self.now().keys().any(|p| p.starts_with(&up)) {
            return;
        }
        let Some(d1) = self.found(fs, split(&from).0) else {
            return;
        };
        let Some(d2) = self.found(fs, split(&to).0) else {
            return;
        };
        let r = fs.zfs.rename(
            &d1,
            split(&from).1.as_bytes(),
            &d2,
            split(&to).1.as_bytes(),
            0,
            &Cred::root(),
        );
        if !self.done(r) {
            return;
        }
        if let Node::File(id) = a {
            let op = self.op;
            self.files[id].renames.push(op);
        }
        self.change_names(|m| {
            let moved: Vec<String> = m
                .keys()
                .filter(|p| **p == from || p.starts_with(&down))
                .cloned()
                .collect();
            for p in moved {
                let node = m.remove(&p).unwrap();
                m.insert(format!("{to}{}", &p[from.len()..]), node);
            }
        });
    }

    /// Size, holes, mode, extended attribute.
    fn alter(&mut self, fs: &Fs) {
        let Some(path) = self.any(|n| matches!(n, Node::File(_))) else {
            return;
        };
        let Node::File(id) = self.now()[&path] else {
            return;
        };
        let Some(z) = self.found(fs, &path) else {
            return;
        };
        let root = Cred::root();
        let old = self.state(id).data.len() as u64;
        match self.rng.below(8) {
            0..=2 => {
                let size = match self.rng.below(3) {
                    0 => 0,
                    1 => self.rng.below(old + 1),
                    _ => self.rng.below(self.max_file),
                };
                let r = fs.zfs.truncate(&z, size, &root);
                if self.done(r) {
                    self.change(id, |s| s.data.resize(size as usize, 0));
                }
            }
            3..=4 => {
                let at = self.rng.below(old + 1);
                let len = 1 + self.rng.below(100_000);
                let how = falloc::PUNCH_HOLE | falloc::KEEP_SIZE;
                let r = fs.zfs.fallocate(&z, at, len, how);
                if self.done(r) {
                    self.change(id, |s| {
                        let end = (at + len).min(old) as usize;
                        if (at as usize) < end {
                            s.data[at as usize..end].fill(0);
                        }
                    });
                }
            }
            5..=6 => {
                let mode = self.rng.below(0o1000) as u32;
                let set = SetAttr {
                    mode: Some(mode),
                    ..SetAttr::default()
                };
                let r = fs.zfs.setattr(&z, &set, &root).map(|_| ());
                if self.done(r) {
                    self.change(id, |s| s.mode = mode);
                }
            }
            _ if self.xattrs => {
                let v = vec![self.rng.below(256) as u8; 1 + self.rng.below(2000) as usize];
                let r = fs.zfs.setxattr(&z, b"user.x", &v, 0, false, &root);
                if self.done(r) {
                    self.change(id, |s| s.xattr = Some(v));
                }
            }
            _ => {}
        }
    }

    /// The same states, as if everything had happened before the journal began.
    pub fn restarted(mut self) -> Model {
        let names = self.now().clone();
        self.op = 0;
        self.begun = vec![0];
        self.names = vec![(0, names)];
        self.acks.clear();
        for f in &mut self.files {
            let last = f.states.pop().unwrap();
            f.states = vec![(0, last.1)];
            f.renames.clear();
        }
        self
    }

    /// Lets go of everything that is held open.
    pub fn release(&mut self) {
        self.held.clear();
    }

    /// Everything so far is on disk.
    pub fn settle(&mut self) {
        self.ack(None);
    }

    /// Everything so far is on disk if that worked.
    pub fn settle_with(&mut self, r: base::Result<()>) {
        self.promised(None, r);
    }

    /// The same file system after a restart, with a new journal.
    pub fn go_on(&self, journal: Arc<Journal>) -> Model {
        let copy = Model {
            rng: self.rng.clone(),
            journal,
            op: self.op,
            begun: Vec::new(),
            names: self.names.clone(),
            files: self
                .files
                .iter()
                .map(|f| File {
                    states: f.states.clone(),
                    renames: Vec::new(),
                })
                .collect(),
            acks: Vec::new(),
            snaps: Vec::new(),
            held: Vec::new(),
            home: self.home.clone(),
            base_objects: self.base_objects,
            max_file: self.max_file,
            refused: 0,
            xattrs: self.xattrs,
            syncs: self.syncs,
            tolerant: false,
            snapshots: false,
            failed: None,
        };
        copy.restarted()
    }

    /// [`Model::judge`] with everything that was begun, whenever that was; `late` may be there, too.
    pub fn judge_last(&self, fs: &Fs, cut: usize, late: &[u8]) -> Result<(), String> {
        let root = fs.zfs.root().map_err(|e| e.to_string())?;
        match fs.zfs.unlink(&root, late, &Cred::root()) {
            Ok(()) => {}
            Err(e) if e.kind == Kind::NotFound => {}
            Err(e) => return Err(e.to_string()),
        }
        self.judge(fs, cut + 1)
    }

    /// Numbers of events after which something was promised.
    pub fn ack_positions(&self) -> Vec<usize> {
        self.acks.iter().map(|a| a.pos).collect()
    }

    // ---- judging -------------------------------------------------------------------------------

    /// Whether what is mounted may be what is left of the first `cut` events of the journal.
    pub fn judge(&self, fs: &Fs, cut: usize) -> Result<(), String> {
        let begun = self.begun.partition_point(|b| *b < cut);
        let last = begun.saturating_sub(1);
        let promised = |file: Option<usize>| {
            let meant =
                |a: &&Ack| a.pos <= cut && (file.is_none() || a.file.is_none() || a.file == file);
            self.acks
                .iter()
                .filter(meant)
                .map(|a| a.op)
                .max()
                .unwrap_or(0)
        };
        let found = walk_from(fs, &self.home)?;
        let first = promised(None);
        let mut why = String::new();
        let mut candidates: Vec<(usize, usize)> = Vec::new();
        for (i, (op, _)) in self.names.iter().enumerate() {
            let end = self.names.get(i + 1).map_or(usize::MAX, |(op, _)| *op);
            if *op <= last && end > first {
                candidates.push((i, *op));
            }
        }
        for (i, op) in candidates.into_iter().rev() {
            match self.compare(fs, &found, &self.names[i].1, op, last, &promised) {
                Ok(()) => return Ok(()),
                Err(e) => why = format!("{why}\n  names of operation {op}: {e}"),
            }
        }
        Err(format!(
            "cut {cut}: no state between operations {first} and {last} fits:{why}"
        ))
    }

    /// Snapshots: those promised are there, those destroyed are not, and all are what the file
    /// system was when they were made.
    pub fn judge_snapshots(&self, pool: &Arc<Pool>, cut: usize) -> Result<(), String> {
        for (n, s) in self.snaps.iter().enumerate() {
            let must = s.made_pos <= cut && s.gone.is_none_or(|op| self.begun[op] >= cut);
            let may = self.begun[s.made] < cut && s.gone_pos.is_none_or(|pos| pos > cut);
            let r = with_snapshot(pool, &format!("s{n}"), |fs| {
                let found = walk_from(fs, &self.home)?;
                let i = self.names.partition_point(|(op, _)| *op <= s.made) - 1;
                self.compare(fs, &found, &self.names[i].1, s.made, s.made, &|_| s.made)
            });
            match r {
                Ok(None) if must => return Err(format!("snapshot s{n} is missing")),
                Ok(None) => {}
                Ok(Some(_)) if !may => return Err(format!("snapshot s{n} is there")),
                Ok(Some(Ok(()))) => {}
                Ok(Some(Err(e))) => return Err(format!("snapshot s{n}: {e}")),
                Err(e) => return Err(format!("snapshot s{n}: {e}")),
            }
        }
        Ok(())
    }

    fn compare(
        &self,
        fs: &Fs,
        found: &BTreeMap<String, Found>,
        names: &Names,
        op: usize,
        last: usize,
        promised: &dyn Fn(Option<usize>) -> usize,
    ) -> Result<(), String> {
        let (a, b): (BTreeSet<_>, BTreeSet<_>) = (found.keys().collect(), names.keys().collect());
        if a != b {
            let more: Vec<_> = a.difference(&b).collect();
            let less: Vec<_> = b.difference(&a).collect();
            return Err(format!("too many {more:?}, missing {less:?}"));
        }
        let mut objects: BTreeMap<usize, (u64, u64)> = BTreeMap::new();
        for (path, node) in names {
            let f = &found[path];
            match node {
                Node::Dir if f.kind == 4 => {
                    let below = |p: &&String| p.starts_with(&format!("{path}/"));
                    let dirs = names
                        .iter()
                        .filter(|(p, n)| **n == Node::Dir && below(p) && split(p).0 == path)
                        .count();
                    if f.nlink != 2 + dirs as u64 {
                        return Err(format!("{path}: {} links with {dirs} directories", f.nlink));
                    }
                }
                Node::Link(t) if f.kind == 10 && f.data == t.as_bytes() => {}
                Node::File(id) if f.kind == 8 => {
                    let e = objects.entry(*id).or_insert((f.object, 0));
                    if e.0 != f.object {
                        return Err(format!("{path}: names of one file lead to two objects"));
                    }
                    e.1 += 1;
                    self.content(*id, f, op, last, promised(Some(*id)))
                        .map_err(|e| format!("{path} (file {id}): {e}"))?;
                }
                _ => return Err(format!("{path}: {node:?} but kind {}", f.kind)),
            }
        }
        for (path, node) in names {
            if let Node::File(id) = node {
                if found[path].nlink != objects[id].1 {
                    return Err(format!(
                        "{path}: {} links, {} names",
                        found[path].nlink, objects[id].1
                    ));
                }
            }
        }
        let distinct: BTreeSet<u64> = found.values().map(|f| f.object).collect();
        let counted = fs.zfs.version >= 5 && !fs.set.ds.is_snapshot();
        if let Some(before) = self.base_objects.filter(|_| counted) {
            let expected = before + distinct.len();
            let there = count_objects(fs);
            if there != expected {
                return Err(format!("{there} objects, {expected} expected"));
            }
        }
        Ok(())
    }

    /// Whether the content is one the file may have after the promise of operation `first`.
    fn content(
        &self,
        id: usize,
        f: &Found,
        op: usize,
        last: usize,
        first: usize,
    ) -> Result<(), String> {
        let file = &self.files[id];
        let states = &file.states;
        // What was written before a rename is in the log before the rename, except what a
        // truncation cut off by the time the log was written; that is at its end.
        let cut = states.windows(2).any(|w| {
            let (a, b) = (&w[0], &w[1]);
            b.0 > first && b.0 <= last && b.1.data.len() < a.1.data.len()
        });
        let renamed = file.renames.iter().filter(|r| **r <= op && !cut).max();
        let first = first.max(renamed.copied().unwrap_or(0));
        let from = states.partition_point(|s| s.0 <= first).max(1) - 1;
        let to = states.partition_point(|s| s.0 <= last);
        let window: Vec<&FileState> = states[from..to.max(from + 1)]
            .iter()
            .map(|s| &*s.1)
            .collect();
        if !window.iter().any(|s| s.mode == f.mode) {
            return Err(format!("mode {:o} since operation {first}", f.mode));
        }
        if !window.iter().any(|s| s.xattr == f.xattr) {
            return Err(format!("extended attribute since operation {first}"));
        }
        if window.iter().any(|s| s.data == f.data) {
            return Ok(());
        }
        let sizes = window.iter().map(|s| s.data.len());
        let (min, max) = (sizes.clone().min().unwrap(), sizes.max().unwrap());
        if f.data.len() < min || f.data.len() > max {
            return Err(format!(
                "{} bytes, between {min} and {max} since operation {first}",
                f.data.len()
            ));
        }
        for (at, byte) in f.data.iter().enumerate() {
            if !window
                .iter()
                .any(|s| s.data.get(at).copied().unwrap_or(0) == *byte)
            {
                return Err(format!(
                    "byte {at} of {} is {byte:#x}, which it never was since operation {first} \
                     (operation, size, byte: {:?})",
                    f.data.len(),
                    states
                        .iter()
                        .map(|s| (s.0, s.1.data.len(), s.1.data.get(at)))
                        .collect::<Vec<_>>()
                ));
            }
        }
        Ok(())
    }
}

/// What is at a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// As in directories: 4 directory, 8 file, 10 symbolic link.
    kind: u8,
    object: u64,
    nlink: u64,
    mode: u32,
    data: Vec<u8>,
    xattr: Option<Vec<u8>>,
}

/// Everything there is.
pub fn walk(fs: &Fs) -> Result<BTreeMap<String, Found>, String> {
    walk_from(fs, "")
}

/// Everything below a directory.
pub fn walk_from(fs: &Fs, home: &str) -> Result<BTreeMap<String, Found>, String> {
    let find = |fs: &Fs, path: &str| find(fs, &format!("{home}/{path}"));
    let mut out = BTreeMap::new();
    let mut todo = vec![String::new()];
    while let Some(path) = todo.pop() {
        let dir = find(fs, &path).map_err(|e| format!("{path}: {e}"))?;
        let mut entries = Vec::new();
        fs.zfs
            .readdir(&dir, 3, |e| {
                entries.push((
                    String::from_utf8_lossy(e.name).into_owned(),
                    e.dtype,
                    e.object,
                ));
                Ok(true)
            })
            .map_err(|e| format!("{path}: {e}"))?;
        for (name, kind, object) in entries {
            let p = match path.is_empty() {
                true => name,
                false => format!("{path}/{name}"),
            };
            let z = find(fs, &p).map_err(|e| format!("{p}: {e}"))?;
            let attr = fs.zfs.getattr(&z);
            let mut f = Found {
                kind,
                object,
                nlink: attr.nlink,
                mode: attr.mode & 0o7777,
                data: Vec::new(),
                xattr: None,
            };
            match kind {
                4 => todo.push(p.clone()),
                8 => {
                    f.data = vec![0; attr.size as usize];
                    let n = fs
                        .zfs
                        .read(&z, 0, &mut f.data)
                        .map_err(|e| format!("{p}: {e}"))?;
                    assert_eq!(n, f.data.len(), "{p}");
                    f.xattr = match fs.zfs.getxattr(&z, b"user.x", &Cred::root()) {
                        Ok(v) => Some(v),
                        Err(e) if e.kind == Kind::NoData => None,
                        Err(e) => return Err(format!("{p}: {e}")),
                    };
                }
                10 => f.data = fs.zfs.readlink(&z).map_err(|e| format!("{p}: {e}"))?,
                _ => return Err(format!("{p}: kind {kind}")),
            }
            out.insert(p, f);
        }
    }
    Ok(out)
}
