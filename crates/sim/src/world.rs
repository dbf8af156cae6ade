//! A simulated world: disks, a pool on them with its file systems in use, and the oracle. Carries
//! out lines of a trace.

use crate::alike::{Crowd, AUDIT};
use crate::check::{self, Opened};
use crate::cut::{Cutter, Fate, Image, FATES};
use crate::desk::Desk;
use crate::foreign::Foreign;
use crate::found::{self, find, split, What};
use crate::op::{Fault, Fill, Op};
use crate::oracle::{Admin, Frozen, FsModel, Oracle};
use crate::owners;
use crate::rig::{self, is_full, Fs, Layout};
use base::sync::MutexExt;
use base::{Kind, Result};
use dsl::CreateArgs;
use env_sim::{Event, Journal, ManualClock, MemDisk, SeededRng};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::Arc;
use zpl::{falloc, Cred, New, SetAttr, WriteOpts, Znode};

/// Extra images of one moment.
const BURST: usize = 25;

/// Name of the simulated pool.
pub const POOL: &str = "tank";

/// How a line went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Done,
    /// It does not apply to the world as it is.
    Nothing,
    /// No space for it, which changes nothing.
    Refused,
}

/// Sums up everything that happened, for comparing runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceHash(pub u64);

impl TraceHash {
    pub fn bytes(&mut self, b: &[u8]) {
        for c in b.chunks(8) {
            let mut w = [0; 8];
            w[..c.len()].copy_from_slice(c);
            self.0 = (self.0 ^ u64::from_le_bytes(w)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            self.0 ^= self.0 >> 32;
        }
    }

    fn events(&mut self, events: &[Event]) {
        for e in events {
            let (kind, disk, n) = match e {
                Event::Write { disk, offset, data } => {
                    self.bytes(data);
                    (1, *disk, *offset)
                }
                Event::Flush { disk, begun } => (2, *disk, *begun as u64),
                Event::Rot { disk, offset, data } => {
                    self.bytes(data);
                    (3, *disk, *offset)
                }
            };
            self.bytes(&[kind, disk as u8]);
            self.bytes(&n.to_le_bytes());
        }
    }
}

/// What a run has done so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    pub operations: u64,
    pub refused: u64,
    /// Images judged.
    pub images: u64,
    /// Of these: what was read to judge them differs from all before.
    pub apart: u64,
    pub events: u64,
    pub faults: u64,
}

pub struct World {
    pub layout: Layout,
    pub disks: Vec<Arc<MemDisk>>,
    /// The disks when the journal began.
    base: Image,
    journal: Arc<Journal>,
    clock: Arc<ManualClock>,
    seed: u64,
    opened: Option<Opened>,
    held: Vec<Arc<Znode>>,
    pub oracle: Oracle,
    pub hash: TraceHash,
    pub counts: Counts,
    /// Images judged at each cut besides the one life goes on with.
    pub more_images: usize,
    /// Further ones, of which those that are alike are judged once. They leave no trace.
    pub extra_images: usize,
    /// Judges some images at each cut, before their logs are replayed and afterwards, and the end.
    /// Leaves no trace either.
    pub foreign: Option<Arc<Foreign>>,
    /// The group before the first one of the present import.
    pub first: u64,
    /// Events of the journal at which the import after the last cut was over.
    imported: usize,
}

/// The bytes of a fill.
pub fn bytes(fill: Fill) -> Vec<u8> {
    let len = fill.len as usize;
    match fill.seed % 6 {
        0 => vec![0; len],
        1 => (0..len)
            .map(|i| ((i / 700) as u64 ^ fill.seed).wrapping_mul(31) as u8)
            .collect(),
        _ => {
            let mut v = vec![0; len];
            env::Rng::fill(&SeededRng::new(fill.seed), &mut v);
            v
        }
    }
}

fn text(e: base::Error) -> String {
    e.to_string()
}

impl World {
    /// A world with an empty pool.
    pub fn new(layout: Layout, seed: u64) -> std::result::Result<World, String> {
        let mut w = World::blank(layout, seed);
        w.create()?;
        w.settle()?;
        Ok(w)
    }

    /// A world whose pool is still to be made.
    pub fn blank(layout: Layout, seed: u64) -> World {
        let disks: Image = (0..layout.devices())
            .map(|_| MemDisk::new(layout.size))
            .collect();
        let (journal, base) = rig::start_journal(&disks);
        let clock = Arc::new(ManualClock::default());
        clock.seconds.store(1_700_000_000, Relaxed);
        World {
            layout,
            disks,
            base,
            journal,
            clock,
            seed,
            opened: None,
            held: Vec::new(),
            oracle: Oracle::default(),
            hash: TraceHash(seed),
            counts: Counts::default(),
            more_images: 2,
            extra_images: 0,
            foreign: None,
            first: 0,
            imported: 0,
        }
    }

    /// Makes the pool; the journal goes on.
    pub fn create(&mut self) -> std::result::Result<(), String> {
        self.oracle.begin(0);
        let opened = Opened::create(&self.disks, &self.layout, self.seed, &self.clock);
        let opened = opened.map_err(text)?;
        let hidden = found::count_objects(&opened.mounts[""]).map_err(text)?;
        let frozen = Frozen {
            hidden,
            ..Frozen::default()
        };
        let op = self.oracle.op;
        self.oracle.administered(self.journal.len(), |a, models| {
            a.sets.insert(String::new(), models.len());
            models.push(FsModel::new(&frozen, op));
        });
        self.opened = Some(opened);
        Ok(())
    }

    fn pos(&self) -> usize {
        self.journal.len()
    }

    pub fn pool(&self) -> Option<&Arc<pool::Pool>> {
        self.opened.as_ref().map(|o| &o.pool)
    }

    fn mounted(&self, fs: &str) -> Option<&Fs> {
        self.opened.as_ref()?.mounts.get(fs)
    }

    /// Object of a path, if it is one of a kind.
    fn object(&self, fs: &str, path: &str) -> Option<(usize, What)> {
        let m = self.oracle.fs(fs)?;
        let id = *m.now().get(path)?;
        Some((id, m.what(id)))
    }

    fn is_dir(&self, fs: &str, path: &str) -> bool {
        path.is_empty() || self.object(fs, path).is_some_and(|(_, w)| w == What::Dir)
    }

    /// Whether something new can get this path.
    fn free_path(&self, fs: &str, path: &str) -> bool {
        self.oracle.fs(fs).is_some()
            && self.object(fs, path).is_none()
            && self.is_dir(fs, split(path).0)
    }

    /// Carries out a line. An error is a finding.
    pub fn apply(&mut self, op: &Op) -> std::result::Result<Outcome, String> {
        self.clock.pass(1_000_000);
        let line = op.to_string();
        self.hash.bytes(line.as_bytes());
        self.counts.operations += 1;
        if !matches!(op, Op::Cut { .. }) {
            let pos = self.pos();
            self.oracle.begin(pos);
        }
        let outcome = self.carry_out(op).map_err(|e| format!("{line}: {e}"))?;
        self.hash.bytes(&[outcome as u8]);
        self.counts.refused += u64::from(outcome == Outcome::Refused);
        Ok(outcome)
    }

    fn carry_out(&mut self, op: &Op) -> std::result::Result<Outcome, String> {
        if let Op::Cut { back, fate, seed } = op {
            return self.cut(*back, *fate, *seed).map(|()| Outcome::Done);
        }
        let r = match op {
            Op::Snapshot { .. }
            | Op::DestroySnapshot { .. }
            | Op::Clone { .. }
            | Op::CloneSnap { .. }
            | Op::Rollback { .. }
            | Op::CreateFs { .. }
            | Op::DestroyFs { .. }
            | Op::Limit { .. }
            | Op::Set { .. } => self.administer(op),
            Op::Remount { .. } | Op::Reimport => self.again(op),
            Op::Fault { disk, fault } => Ok(self.fault(*disk, *fault)),
            Op::Read { fs, path } => return self.read(fs, path),
            Op::Release => {
                self.held.clear();
                self.reap().map(|()| Outcome::Done)
            }
            Op::Sync => self.sync(),
            _ => self.posix(op),
        };
        match r {
            Err(e) if is_full(&e) => Ok(Outcome::Refused),
            r => r.map_err(text),
        }
    }

    fn reap(&self) -> Result<()> {
        let mounts = self.opened.iter().flat_map(|o| o.mounts.values());
        for m in mounts {
            m.zfs.reap()?;
        }
        Ok(())
    }

    fn sync(&mut self) -> Result<Outcome> {
        let Some(pool) = self.pool() else {
            return Ok(Outcome::Nothing);
        };
        pool.sync()?;
        let pos = self.pos();
        self.oracle.ack_all(pos);
        Ok(Outcome::Done)
    }

    fn read(&mut self, fs: &str, path: &str) -> std::result::Result<Outcome, String> {
        let (Some((id, What::File)), Some(m)) = (self.object(fs, path), self.mounted(fs)) else {
            return Ok(Outcome::Nothing);
        };
        let z = find(m, path).map_err(text)?;
        let data = found::content(m, &z).map_err(text)?;
        let must = self.oracle.fs(fs).map(|f| f.state(id).data.clone());
        match must.is_some_and(|d| *d == data) {
            true => Ok(Outcome::Done),
            false => Err("not what was written".into()),
        }
    }

    /// Operations on files and names.
    fn posix(&mut self, op: &Op) -> Result<Outcome> {
        use Op::*;
        let root = Cred::root();
        let n = self.oracle.op;
        let fs_name = match op {
            Create { fs, .. } | Mkdir { fs, .. } | Symlink { fs, .. } | Link { fs, .. } => fs,
            Rename { fs, .. } | Unlink { fs, .. } | Rmdir { fs, .. } | Write { fs, .. } => fs,
            Truncate { fs, .. } | Punch { fs, .. } | Chmod { fs, .. } | SetXattr { fs, .. } => fs,
            RemoveXattr { fs, .. } | Fsync { fs, .. } | FsyncAll { fs } => fs,
            CreateAs { fs, .. } | Chown { fs, .. } | Project { fs, .. } => fs,
            _ => return Ok(Outcome::Nothing),
        };
        let Some(fs) = self.mounted(fs_name) else {
            return Ok(Outcome::Nothing);
        };
        let zfs = fs.zfs.clone();
        let made_by = |me: &mut World,
                       cred: &Cred,
                       path: &str,
                       new: New<'_>,
                       what,
                       state|
         -> Result<Outcome> {
            let Some(fs) = me.mounted(fs_name).filter(|_| me.free_path(fs_name, path)) else {
                return Ok(Outcome::Nothing);
            };
            let dir = find(fs, split(path).0)?;
            zfs.create(&dir, split(path).1.as_bytes(), &new, cred)?;
            if let Some(m) = me.oracle.fs_mut(fs_name) {
                m.add(n, path, what, state);
            }
            Ok(Outcome::Done)
        };
        let made = |me: &mut World, path: &str, new: New<'_>, what, state| {
            made_by(me, &root, path, new, what, state)
        };
        let state = |mode, data| found::State {
            mode,
            data: Arc::new(data),
            ..Default::default()
        };
        match op {
            Create { path, mode, .. } => {
                let new = New::file(0o100000 | mode, 0);
                return made(self, path, new, What::File, state(*mode, Vec::new()));
            }
            CreateAs { path, uid, gid, .. } => {
                let cred = Cred {
                    uid: *uid,
                    gid: *gid,
                    ..Cred::root()
                };
                let new = New::file(0o100644, 0);
                let state = found::State {
                    owner: [*uid, *gid, 0],
                    ..state(0o644, Vec::new())
                };
                return made_by(self, &cred, path, new, What::File, state);
            }
            Mkdir { path, .. } => {
                let new = New::dir(0o755, 0);
                return made(self, path, new, What::Dir, state(0o755, Vec::new()));
            }
            Symlink { path, len, .. } => {
                let target = vec![b't'; (*len).clamp(1, 1000) as usize];
                let new = New::symlink(&target);
                return made(self, path, new, What::Link, state(0o777, target.clone()));
            }
            Link { from, to, .. } => {
                let Some((id, What::File)) = self.object(fs_name, from) else {
                    return Ok(Outcome::Nothing);
                };
                if !self.free_path(fs_name, to) {
                    return Ok(Outcome::Nothing);
                }
                let (z, dir) = (find(fs, from)?, find(fs, split(to).0)?);
                zfs.link(&z, &dir, split(to).1.as_bytes(), &root)?;
                if let Some(m) = self.oracle.fs_mut(fs_name) {
                    m.change_names(n, |names| {
                        names.insert(to.clone(), id);
                    });
                }
                return Ok(Outcome::Done);
            }
            Rename { from, to, .. } => return self.rename(fs_name, from, to),
            Unlink { path, hold, .. } => {
                let gone = self.object(fs_name, path).filter(|(_, w)| *w != What::Dir);
                if gone.is_none() {
                    return Ok(Outcome::Nothing);
                }
                let (z, dir) = (find(fs, path)?, find(fs, split(path).0)?);
                zfs.unlink(&dir, split(path).1.as_bytes(), &root)?;
                if let Some(m) = self.oracle.fs_mut(fs_name) {
                    m.change_names(n, |names| {
                        names.remove(path);
                    });
                }
                if *hold {
                    self.held.push(z);
                } else {
                    drop(z);
                    zfs.reap()?;
                }
                return Ok(Outcome::Done);
            }
            Rmdir { path, .. } => {
                let below = format!("{path}/");
                let names = self.oracle.fs(fs_name).map(|m| m.now().clone());
                let used = names.is_none_or(|n| n.keys().any(|p| p.starts_with(&below)));
                if used || path.is_empty() || !self.is_dir(fs_name, path) {
                    return Ok(Outcome::Nothing);
                }
                let dir = find(fs, split(path).0)?;
                zfs.rmdir(&dir, split(path).1.as_bytes(), &root)?;
                if let Some(m) = self.oracle.fs_mut(fs_name) {
                    m.change_names(n, |names| {
                        names.remove(path);
                    });
                }
                return Ok(Outcome::Done);
            }
            FsyncAll { .. } => {
                zfs.fsync(None)?;
                let pos = self.pos();
                if let Some(m) = self.oracle.fs_mut(fs_name) {
                    m.ack(n, pos, None);
                }
                return Ok(Outcome::Done);
            }
            _ => {}
        }
        self.one_object(op, fs_name)
    }

    /// Operations on one object.
    fn one_object(&mut self, op: &Op, fs_name: &str) -> Result<Outcome> {
        use Op::*;
        let root = Cred::root();
        let n = self.oracle.op;
        let path = match op {
            Write { path, .. } | Truncate { path, .. } | Punch { path, .. } => path,
            Chmod { path, .. } | SetXattr { path, .. } | RemoveXattr { path, .. } => path,
            Fsync { path, .. } | Chown { path, .. } | Project { path, .. } => path,
            _ => return Ok(Outcome::Nothing),
        };
        let (Some(fs), Some((id, what))) = (self.mounted(fs_name), self.object(fs_name, path))
        else {
            return Ok(Outcome::Nothing);
        };
        let data_of = matches!(op, Write { .. } | Truncate { .. } | Punch { .. });
        if what == What::Link || data_of && what != What::File {
            return Ok(Outcome::Nothing);
        }
        let zfs = fs.zfs.clone();
        let z = find(fs, path)?;
        let now = |me: &World| me.oracle.fs(fs_name).map(|m| m.state(id).clone());
        let change = |me: &mut World, f: &mut dyn FnMut(&mut found::State)| {
            if let Some(m) = me.oracle.fs_mut(fs_name) {
                m.change(n, id, f);
            }
        };
        let mut ack = false;
        match op {
            Write { at, fill, sync, .. } => {
                let data = bytes(*fill);
                let opts = WriteOpts {
                    sync: *sync,
                    ..WriteOpts::default()
                };
                let wrote = zfs.write(&z, *at, &data, opts)?;
                let at = *at as usize;
                change(self, &mut |s| {
                    let d = Arc::make_mut(&mut s.data);
                    if wrote > 0 && d.len() < at + wrote {
                        d.resize(at + wrote, 0);
                    }
                    d[at..at + wrote].copy_from_slice(&data[..wrote]);
                });
                ack = *sync;
            }
            Truncate { size, .. } => {
                zfs.truncate(&z, *size, &root)?;
                change(self, &mut |s| {
                    Arc::make_mut(&mut s.data).resize(*size as usize, 0);
                });
            }
            Punch { at, len, .. } => {
                let how = falloc::PUNCH_HOLE | falloc::KEEP_SIZE;
                zfs.fallocate(&z, *at, *len, how)?;
                change(self, &mut |s| {
                    let end = ((at + len) as usize).min(s.data.len());
                    if (*at as usize) < end {
                        Arc::make_mut(&mut s.data)[*at as usize..end].fill(0);
                    }
                });
            }
            Chmod { mode, .. } => {
                let set = SetAttr {
                    mode: Some(*mode),
                    ..SetAttr::default()
                };
                zfs.setattr(&z, &set, &root)?;
                change(self, &mut |s| s.mode = *mode);
            }
            Chown { uid, gid, .. } => {
                let set = SetAttr {
                    uid: Some(*uid),
                    gid: Some(*gid),
                    ..SetAttr::default()
                };
                zfs.setattr(&z, &set, &root)?;
                change(self, &mut |s| (s.owner[0], s.owner[1]) = (*uid, *gid));
            }
            Project { id, .. } => {
                if !self.layout.projects {
                    return Ok(Outcome::Nothing);
                }
                zfs.set_project(&z, *id, &root)?;
                change(self, &mut |s| s.owner[2] = *id);
            }
            SetXattr { name, fill, .. } => {
                let value = bytes(*fill);
                zfs.setxattr(&z, name.as_bytes(), &value, 0, false, &root)?;
                change(self, &mut |s| {
                    s.xattrs.insert(name.clone(), value.clone());
                });
            }
            RemoveXattr { name, .. } => {
                if now(self).is_none_or(|s| !s.xattrs.contains_key(name)) {
                    return Ok(Outcome::Nothing);
                }
                zfs.removexattr(&z, name.as_bytes(), &root)?;
                change(self, &mut |s| {
                    s.xattrs.remove(name);
                });
            }
            Fsync { .. } => {
                zfs.fsync(Some(&z))?;
                ack = true;
            }
            _ => return Ok(Outcome::Nothing),
        }
        if ack {
            let pos = self.pos();
            if let Some(m) = self.oracle.fs_mut(fs_name) {
                m.ack(n, pos, Some(id));
            }
        }
        Ok(Outcome::Done)
    }

    fn rename(&mut self, fs_name: &str, from: &str, to: &str) -> Result<Outcome> {
        let (Some(fs), Some(model)) = (self.mounted(fs_name), self.oracle.fs(fs_name)) else {
            return Ok(Outcome::Nothing);
        };
        let Some(a) = self.object(fs_name, from) else {
            return Ok(Outcome::Nothing);
        };
        let b = self.object(fs_name, to);
        let (up, down) = (format!("{to}/"), format!("{from}/"));
        let into_itself = from == to || from.starts_with(&up) || to.starts_with(&down);
        // Names of one file: nothing happens. Of different kinds: refused.
        let same = b.is_some_and(|b| b.0 == a.0);
        let other_kind = b.is_some_and(|b| (a.1 == What::Dir) != (b.1 == What::Dir));
        let filled = model.now().keys().any(|p| p.starts_with(&up));
        if into_itself || same || other_kind || filled || !self.is_dir(fs_name, split(to).0) {
            return Ok(Outcome::Nothing);
        }
        let (d1, d2) = (find(fs, split(from).0)?, find(fs, split(to).0)?);
        let (n1, n2) = (split(from).1.as_bytes(), split(to).1.as_bytes());
        fs.zfs.rename(&d1, n1, &d2, n2, 0, &Cred::root())?;
        fs.zfs.reap()?;
        let n = self.oracle.op;
        if let Some(m) = self.oracle.fs_mut(fs_name) {
            m.renamed(n, a.0);
            m.change_names(n, |m| {
                let moved: Vec<String> = m
                    .keys()
                    .filter(|p| **p == from || p.starts_with(&down))
                    .cloned()
                    .collect();
                for p in moved {
                    if let Some(id) = m.remove(&p) {
                        m.insert(format!("{to}{}", &p[from.len()..]), id);
                    }
                }
            });
        }
        Ok(Outcome::Done)
    }

    /// Nobody uses the file system any more. Its log is empty then.
    fn unmount(&mut self, fs: &str) -> Result<()> {
        self.held.clear();
        self.reap()?;
        let used = self.opened.as_mut().and_then(|o| o.mounts.remove(fs));
        match used {
            Some(m) => {
                drop(m);
                desk(&self.opened)?.unmount(fs)
            }
            None => Ok(()),
        }
    }

    fn mount(&mut self, fs: &str) -> Result<()> {
        let m = desk(&self.opened)?.mount(fs, &self.layout)?;
        if let Some(o) = &mut self.opened {
            o.mounts.insert(fs.into(), m);
        }
        Ok(())
    }

    fn administer(&mut self, op: &Op) -> Result<Outcome> {
        use Op::*;
        let Some(pool) = self.pool().cloned() else {
            return Ok(Outcome::Nothing);
        };
        let now = self.oracle.now().clone();
        let key = |fs: &str, snap: &str| format!("{fs}@{snap}");
        let n = self.oracle.op;
        let projects = self.layout.projects;
        match op {
            Snapshot { fs, name } => {
                let key = key(fs, name);
                let Some(model) = self.oracle.fs(fs).filter(|_| !now.snaps.contains_key(&key))
                else {
                    return Ok(Outcome::Nothing);
                };
                let frozen = Arc::new(Frozen {
                    limits: now.limits.get(fs).cloned().unwrap_or_default(),
                    ..model.freeze()
                });
                let (full, name) = (full(fs), name.clone());
                let ds = pool.dsl.dataset(&full)?;
                pool.snapshot(vec![(ds, name)], |_, _| Ok(()))?;
                let pos = self.pos();
                self.oracle.administered(pos, |a, _| {
                    a.snaps.insert(key, frozen);
                });
            }
            DestroySnapshot { fs, name } => {
                let key = key(fs, name);
                let cloned = now.origins.values().any(|o| *o == key);
                if !now.snaps.contains_key(&key) || cloned {
                    return Ok(Outcome::Nothing);
                }
                let name = format!("{}@{name}", full(fs));
                pool.task(move |pool, tx| {
                    let ds = pool.dsl.dataset(&name)?;
                    pool.dsl.destroy_snapshot(tx, &ds)
                })?;
                let pos = self.pos();
                self.oracle.administered(pos, |a, _| {
                    a.snaps.remove(&key);
                });
            }
            CreateFs { fs } | Clone { to: fs, .. } | CloneSnap { to: fs, .. } => {
                if now.sets.contains_key(fs) || fs.is_empty() || fs.contains('/') {
                    return Ok(Outcome::Nothing);
                }
                let mut from = None;
                let also = matches!(op, CloneSnap { .. });
                if let Clone { fs, snap, .. } | CloneSnap { fs, snap, .. } = op {
                    let key = key(fs, snap);
                    let Some(frozen) = now.snaps.get(&key) else {
                        return Ok(Outcome::Nothing);
                    };
                    from = Some((key, frozen.clone(), format!("{}@{snap}", full(fs))));
                }
                let name = fs.clone();
                match from.as_ref().map(|f| f.2.clone()) {
                    None => desk(&self.opened)?.create_fs(fs)?,
                    Some(origin) => pool.task(move |pool, tx| {
                        let root = pool.dsl.root()?;
                        let args = CreateArgs::default();
                        let snap = pool.dsl.dataset(&origin)?;
                        let ds = pool.dsl.create_clone(tx, &root, &name, &snap, args)?;
                        clear_log(pool, tx, &ds)?;
                        match also {
                            true => pool.snapshot_in(tx, &[(ds, FIRST.into())]),
                            false => Ok(()),
                        }
                    })?,
                }
                let pos = self.pos();
                self.mount(fs)?;
                let hidden = match self.mounted(fs) {
                    Some(m) => found::count_objects(m)?,
                    None => 0,
                };
                self.oracle.administered(pos, |a, models| {
                    let frozen = match from {
                        Some((origin, frozen, _)) => {
                            a.origins.insert(fs.clone(), origin);
                            frozen
                        }
                        None => Arc::new(Frozen {
                            hidden,
                            ..Frozen::default()
                        }),
                    };
                    a.sets.insert(fs.clone(), models.len());
                    a.limits.insert(fs.clone(), frozen.limits.clone());
                    if also {
                        a.snaps.insert(key(fs, FIRST), frozen.clone());
                    }
                    models.push(FsModel::new(&frozen, n));
                });
            }
            DestroyFs { fs } => {
                let prefix = key(fs, "");
                let used = now.snaps.keys().any(|s| s.starts_with(&prefix));
                if used || fs.is_empty() || !now.sets.contains_key(fs) {
                    return Ok(Outcome::Nothing);
                }
                // Nobody has a file open; the rest of unmounting is up to the operation.
                self.held.clear();
                self.reap()?;
                if let Some(o) = &mut self.opened {
                    o.mounts.remove(fs);
                }
                desk(&self.opened)?.destroy_fs(fs)?;
                let pos = self.pos();
                self.oracle.administered(pos, |a, _| {
                    a.sets.remove(fs);
                    a.origins.remove(fs);
                    a.limits.remove(fs);
                    a.props.retain(|(f, _), _| f != fs);
                });
            }
            Rollback { fs } => return self.rollback(&pool, fs),
            Set { fs, prop, value } => {
                if !now.sets.contains_key(fs) {
                    return Ok(Outcome::Nothing);
                }
                let value = *value;
                match desk(&self.opened)?.set(fs, prop, value) {
                    // Old pools do not have everything.
                    Err(e) if self.layout.version < 5000 && e.kind == Kind::Unsupported => {
                        return Ok(Outcome::Nothing)
                    }
                    done => done?,
                }
                let pos = self.pos();
                self.oracle.administered(pos, |a, _| {
                    a.props.insert((fs.clone(), prop.clone()), value);
                });
            }
            Limit {
                fs,
                name,
                id,
                value,
            } => {
                let limit = owners::limit_named(name).filter(|l| projects || l % 3 != 2);
                let (Some(limit), Some(_)) = (limit, self.mounted(fs)) else {
                    return Ok(Outcome::Nothing);
                };
                if *id > owners::IDS {
                    return Ok(Outcome::Nothing);
                }
                let prop = format!("{}{id}", zpl::QUOTA_NAMES[limit]);
                desk(&self.opened)?.set(fs, &prop, *value)?;
                let pos = self.pos();
                self.oracle.administered(pos, |a, _| {
                    let limits = a.limits.entry(fs.clone()).or_default();
                    match value {
                        0 => limits.remove(&(limit, *id)),
                        n => limits.insert((limit, *id), *n),
                    };
                });
            }
            _ => return Ok(Outcome::Nothing),
        }
        Ok(Outcome::Done)
    }

    fn rollback(&mut self, pool: &Arc<pool::Pool>, fs: &str) -> Result<Outcome> {
        let now = self.oracle.now().clone();
        if !now.sets.contains_key(fs) {
            return Ok(Outcome::Nothing);
        }
        let full = full(fs);
        let ds = pool.dsl.dataset(&full)?;
        let newest = match ds.prev()? {
            Some(p) => p.snap_name()?.map(|s| format!("{fs}@{s}")),
            None => None,
        };
        // A clone without snapshots of its own has its origin before it.
        let Some(frozen) = newest.and_then(|s| now.snaps.get(&s).cloned()) else {
            return Ok(Outcome::Nothing);
        };
        drop(ds);
        self.unmount(fs)?;
        pool.task(move |pool, tx| {
            let ds = pool.dsl.dataset(&full)?;
            pool.dsl.rollback(tx, &ds)?;
            clear_log(pool, tx, &ds)
        })?;
        let pos = self.pos();
        self.mount(fs)?;
        let n = self.oracle.op;
        self.oracle.administered(pos, |a, models| {
            a.sets.insert(fs.into(), models.len());
            a.limits.insert(fs.into(), frozen.limits.clone());
            models.push(FsModel::new(&frozen, n));
        });
        Ok(Outcome::Done)
    }

    /// Unmounting and mounting, exporting and importing.
    fn again(&mut self, op: &Op) -> Result<Outcome> {
        match op {
            Op::Remount { fs } if self.mounted(fs).is_some() => {
                self.unmount(fs)?;
                let pos = self.pos();
                let n = self.oracle.op;
                if let Some(m) = self.oracle.fs_mut(fs) {
                    m.ack(n, pos, None);
                }
                self.mount(fs)?;
            }
            Op::Reimport => {
                let Some(pool) = self.pool().cloned() else {
                    return Ok(Outcome::Nothing);
                };
                for fs in self.oracle.now().sets.keys().cloned().collect::<Vec<_>>() {
                    self.unmount(&fs)?;
                }
                desk(&self.opened)?.export()?;
                let pos = self.pos();
                self.oracle.ack_all(pos);
                self.opened = None;
                drop(pool);
                let seed = self.next_seed();
                let o = Opened::import(&self.disks, &self.layout, seed, &self.clock)?;
                self.first = o.pool.first_txg;
                self.opened = Some(o);
            }
            _ => return Ok(Outcome::Nothing),
        }
        Ok(Outcome::Done)
    }

    fn next_seed(&self) -> u64 {
        SeededRng::new(self.seed ^ self.counts.operations << 20).next()
    }

    fn fault(&mut self, disk: usize, fault: Fault) -> Outcome {
        let Some(d) = self.disks.get(disk) else {
            return Outcome::Nothing;
        };
        self.counts.faults += 1;
        match fault {
            Fault::Garbage => d.corrupt_written(disk::label::DATA_START),
            Fault::Rot(n, seed) => {
                let rng = SeededRng::new(seed);
                let mut chunks = Vec::new();
                d.for_each_chunk(&mut |at, b| chunks.push((at, b.len() as u64)));
                for _ in 0..if chunks.is_empty() { 0 } else { n } {
                    let (at, len) = chunks[rng.below(chunks.len() as u64) as usize];
                    d.corrupt(at + rng.below(len / 512) * 512, 512);
                }
            }
            Fault::ReadErrors(n) => d.read_errors.store(n, Relaxed),
            Fault::WriteErrors(n) => d.write_errors.store(n, Relaxed),
            Fault::Phantom(n) => d.phantom.store(n, Relaxed),
            Fault::Misdirect(n) => {
                *d.misdirect.acquire() = Some(n);
            }
            Fault::Dead => d.dead.store(true, Relaxed),
            Fault::Slow(ms) => d.stall(&self.clock, ms * 1_000_000),
            Fault::Over => d.well(),
        }
        Outcome::Done
    }

    /// The power goes; some of the images that may be left are judged, and life goes on with one.
    fn cut(&mut self, back: u64, fate: Fate, seed: u64) -> std::result::Result<(), String> {
        let events = self.journal.take();
        self.hash.events(&events);
        self.counts.events += events.len() as u64;
        self.forget();
        let len = events.len() as u64;
        let rng = SeededRng::new(seed);
        let at = (len - len * back.min(1000) / 1000) as usize;
        let mut moments: Vec<(usize, Fate)> = (0..self.more_images)
            .map(|_| {
                let at = rng.below(len + 1) as usize;
                (at, FATES[rng.below(5) as usize])
            })
            .collect();
        moments.push((at, fate));
        moments.sort_by_key(|m| m.0);
        let labels = check::Labels::of(&self.base, &events);
        let judge = |m: usize| check::Judge {
            layout: &self.layout,
            clock: &self.clock,
            oracle: &self.oracle,
            labels: &labels,
            cut: m,
            healthy: self.counts.faults == 0,
            imported: m >= self.imported,
            first: self.first,
            care: check::Care::Full,
        };
        if self.extra_images > 0 {
            let mut crowd = Crowd::new(seed, 1, AUDIT);
            let mut cutter = Cutter::numbered(&self.base, events.clone());
            let rng = SeededRng::new(seed ^ 0xe87a);
            // Many of few moments: those are alike.
            let bursts = self.extra_images.div_ceil(BURST);
            let mut extra: Vec<usize> = (0..bursts).map(|_| rng.below(len + 1) as usize).collect();
            extra.sort_unstable();
            for m in extra {
                cutter.forward(m);
                for n in 0..self.extra_images / bursts {
                    // All lost and all kept once, then nothing but mixtures.
                    let fate = match n {
                        0 => Fate::Lost,
                        1 => Fate::Kept,
                        _ if cutter.unflushed() == 0 => break,
                        _ => FATES[2 + rng.below(3) as usize],
                    };
                    if let Some(Err(e)) = crowd.image(&cutter, fate, &rng, &judge(m)) {
                        return Err(format!("image at event {m} of {len} ({fate:?}): {e}"));
                    }
                }
            }
            self.counts.images += crowd.images;
            self.counts.apart += crowd.apart;
        }
        let mut cutter = Cutter::new(&self.base, events);
        let mut next = None;
        for (m, f) in moments {
            cutter.forward(m);
            let image = cutter.image(f, &SeededRng::new(seed ^ m as u64));
            let chosen = (m, f) == (at, fate) && next.is_none();
            self.counts.images += 1;
            self.counts.apart += 1;
            let kept: Image = image.iter().map(|d| d.fork()).collect();
            let what = |e: String| format!("image at event {m} of {len} ({f:?}): {e}");
            let key = seed ^ m as u64;
            let found = judge(m).image(&image, key).map_err(what)?;
            if let Some(z) = self.foreign.as_ref().filter(|z| z.wants(key)) {
                z.judge(&kept, "logs not replayed").map_err(what)?;
                z.judge(&image, "after the judges").map_err(what)?;
            }
            if chosen {
                next = Some((kept, found));
            }
        }
        let Some((image, found)) = next else {
            return Err("no image".into());
        };
        self.go_on(image, &found)
    }

    /// The process ends in the middle of an operation: all that was in memory is gone, nothing of what
    /// the devices were given. What is left is judged by `oracle`, and life goes on with it.
    pub fn died(&mut self, oracle: &Oracle, key: u64) -> std::result::Result<(), String> {
        let kept: Image = self.disks.iter().map(|d| d.fork()).collect();
        let events = self.journal.take();
        self.counts.events += events.len() as u64;
        self.forget();
        let judge = check::Judge {
            layout: &self.layout,
            clock: &self.clock,
            oracle,
            labels: &check::Labels::of(&self.base, &events),
            // Behind everything that was acknowledged.
            cut: usize::MAX - 1,
            healthy: self.counts.faults == 0,
            imported: true,
            first: self.first,
            care: check::Care::Full,
        };
        let image: Image = kept.iter().map(|d| d.fork()).collect();
        self.counts.images += 1;
        self.counts.apart += 1;
        let found = judge.image(&image, key)?;
        self.go_on(kept, &found)
    }

    /// A new process imports what is left.
    fn go_on(&mut self, image: Image, found: &Admin) -> std::result::Result<(), String> {
        self.disks = image;
        self.clock.pass(60_000_000_000);
        let (journal, base) = rig::start_journal(&self.disks);
        (self.journal, self.base) = (journal, base);
        let seed = self.next_seed();
        let o = Opened::import(&self.disks, &self.layout, seed, &self.clock).map_err(text)?;
        self.imported = self.journal.len();
        self.first = o.pool.first_txg;
        self.oracle = o.adopt(found)?;
        self.opened = Some(o);
        let pos = self.pos();
        self.oracle.ack_all(pos);
        Ok(())
    }

    /// The pool is exported, and judged.
    pub fn export(&mut self) -> std::result::Result<(), String> {
        let sets: Vec<String> = self.oracle.now().sets.keys().cloned().collect();
        for fs in sets {
            self.unmount(&fs)
                .map_err(|e| format!("unmounting '{fs}' at the end: {e}"))?;
        }
        if self.opened.is_some() {
            let r = desk(&self.opened).and_then(Desk::export);
            r.map_err(|e| format!("exporting at the end: {e}"))?;
            self.opened = None;
        }
        match &self.foreign {
            Some(z) => z.judge(&self.disks, "exported"),
            None => Ok(()),
        }
    }

    /// The process is gone, with all it had in memory.
    pub fn forget(&mut self) {
        self.held.clear();
        if let Some(o) = self.opened.take() {
            o.forget();
        }
    }

    /// Everything is on disk, and the journal begins anew.
    pub fn settle(&mut self) -> std::result::Result<(), String> {
        if let Some(o) = &self.opened {
            o.pool.sync().map_err(text)?;
        }
        let (journal, base) = rig::start_journal(&self.disks);
        (self.journal, self.base) = (journal, base);
        self.oracle.restart();
        Ok(())
    }

    /// The end of the journal so far, for making images of.
    pub fn take_events(&mut self) -> (Image, Vec<Event>) {
        let events = self.journal.take();
        self.hash.events(&events);
        self.counts.events += events.len() as u64;
        (self.base.iter().map(|d| d.fork()).collect(), events)
    }

    pub fn clock(&self) -> &Arc<ManualClock> {
        &self.clock
    }

    /// File systems and what is in them, for choosing operations.
    pub fn names(&self) -> BTreeMap<String, Vec<(String, What, u64)>> {
        let mut out = BTreeMap::new();
        for fs in self.oracle.now().sets.keys() {
            let Some(m) = self.oracle.fs(fs) else {
                continue;
            };
            let list = m.now().iter().map(|(p, id)| {
                let size = m.state(*id).data.len() as u64;
                (p.clone(), m.what(*id), size)
            });
            out.insert(fs.clone(), list.collect());
        }
        out
    }
}

/// What administers the pool.
fn desk(opened: &Option<Opened>) -> Result<&Desk> {
    let desk = opened.as_ref().and_then(|o| o.desk.as_ref());
    desk.ok_or_else(|| Kind::NotFound.into())
}

/// Name of the snapshot that a clone is made with.
const FIRST: &str = "first";

/// The log of what a file system's content was taken from is not its own.
fn clear_log(pool: &pool::Pool, tx: &dmu::Tx, ds: &Arc<dsl::Dataset>) -> Result<()> {
    let os = ds.open_objset(pool.write_policy(ds)?, false)?;
    os.set_zil_header(tx, [0; 192]);
    Ok(())
}

/// With the pool's name.
pub fn full(fs: &str) -> String {
    match fs {
        "" => POOL.into(),
        fs => format!("{POOL}/{fs}"),
    }
}
