//! Operations on files, carried out and told to the oracle.

use super::{bytes, Outcome, World};
use crate::found::{self, find, split, What};
use crate::op::Op;
use base::Result;
use std::sync::Arc;
use zpl::{falloc, Cred, New, SetAttr, WriteOpts};

impl World {
    /// Operations on files and names.
    pub(super) fn posix(&mut self, op: &Op) -> Result<Outcome> {
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
        let Some(zfs) = self.mounted(fs_name).map(|fs| fs.zfs.clone()) else {
            return Ok(Outcome::Nothing);
        };
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
            Link { from, to, .. } => return self.link(fs_name, from, to),
            Rename { from, to, .. } => return self.rename(fs_name, from, to),
            Unlink { path, hold, .. } => return self.unlink(fs_name, path, *hold),
            Rmdir { path, .. } => return self.rmdir(fs_name, path),
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

    fn link(&mut self, fs_name: &str, from: &str, to: &str) -> Result<Outcome> {
        let n = self.oracle.op;
        let (Some((id, What::File)), Some(fs)) =
            (self.object(fs_name, from), self.mounted(fs_name))
        else {
            return Ok(Outcome::Nothing);
        };
        if !self.free_path(fs_name, to) {
            return Ok(Outcome::Nothing);
        }
        let (z, dir) = (find(fs, from)?, find(fs, split(to).0)?);
        let name = split(to).1.as_bytes();
        fs.zfs.link(&z, &dir, name, &Cred::root())?;
        if let Some(m) = self.oracle.fs_mut(fs_name) {
            m.change_names(n, |names| {
                names.insert(to.to_string(), id);
            });
        }
        Ok(Outcome::Done)
    }

    fn unlink(&mut self, fs_name: &str, path: &str, hold: bool) -> Result<Outcome> {
        let n = self.oracle.op;
        let gone = self.object(fs_name, path).filter(|(_, w)| *w != What::Dir);
        let (Some(_), Some(fs)) = (gone, self.mounted(fs_name)) else {
            return Ok(Outcome::Nothing);
        };
        let zfs = fs.zfs.clone();
        let (z, dir) = (find(fs, path)?, find(fs, split(path).0)?);
        zfs.unlink(&dir, split(path).1.as_bytes(), &Cred::root())?;
        if let Some(m) = self.oracle.fs_mut(fs_name) {
            m.change_names(n, |names| {
                names.remove(path);
            });
        }
        if hold {
            self.held.push(z);
        } else {
            drop(z);
            zfs.reap()?;
        }
        Ok(Outcome::Done)
    }

    fn rmdir(&mut self, fs_name: &str, path: &str) -> Result<Outcome> {
        let n = self.oracle.op;
        let below = format!("{path}/");
        let names = self.oracle.fs(fs_name).map(|m| m.now().clone());
        let used = names.is_none_or(|n| n.keys().any(|p| p.starts_with(&below)));
        let free = !used && !path.is_empty() && self.is_dir(fs_name, path);
        let Some(fs) = self.mounted(fs_name).filter(|_| free) else {
            return Ok(Outcome::Nothing);
        };
        let dir = find(fs, split(path).0)?;
        let name = split(path).1.as_bytes();
        fs.zfs.rmdir(&dir, name, &Cred::root())?;
        if let Some(m) = self.oracle.fs_mut(fs_name) {
            m.change_names(n, |names| {
                names.remove(path);
            });
        }
        Ok(Outcome::Done)
    }

    pub(super) fn rename(&mut self, fs_name: &str, from: &str, to: &str) -> Result<Outcome> {
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
}
