//! Carries out the lines about snapshots and clones through `admin`.

use super::{desk, full, Outcome, World};
use crate::found;
use crate::lineage::Lineage;
use crate::op::Op;
use crate::oracle::{Admin, Frozen, FsModel};
use crate::rights;
use admin::commands::Commands;
use base::{bail, Kind, Result, Txg};
use std::collections::BTreeSet;
use std::sync::Arc;

/// `fs@snapshot`
pub(super) fn key(fs: &str, snap: &str) -> String {
    format!("{fs}@{snap}")
}

/// A key with another file system, or another name behind the `@` or `#`.
fn moved(key: &str, from: &str, to: &str) -> Option<String> {
    let rest = key.strip_prefix(from)?;
    rest.starts_with(['@', '#']).then(|| format!("{to}{rest}"))
}

impl Admin {
    /// `name` is now `to`: a file system, a snapshot, or a file system for its snapshots.
    fn rename_all(&mut self, change: &dyn Fn(&str) -> Option<String>) {
        fn keys<V: Clone>(
            map: &mut std::collections::BTreeMap<String, V>,
            change: &dyn Fn(&str) -> Option<String>,
        ) {
            for old in map.keys().cloned().collect::<Vec<_>>() {
                if let (Some(new), Some(v)) = (change(&old), map.get(&old).cloned()) {
                    map.remove(&old);
                    map.insert(new, v);
                }
            }
        }
        keys(&mut self.snaps, change);
        keys(&mut self.marks, change);
        keys(&mut self.holds, change);
        for origin in self.origins.values_mut() {
            if let Some(new) = change(origin) {
                *origin = new;
            }
        }
    }

    /// Snapshots and bookmarks of a file system that are younger than a txg.
    fn younger(&self, fs: &str, txg: Txg) -> (Vec<String>, Vec<String>) {
        let (snaps, marks) = (key(fs, ""), format!("{fs}#"));
        let snaps = self.snaps.iter().filter(|(k, _)| k.starts_with(&snaps));
        let snaps = snaps.filter(|(_, f)| f.born > txg);
        let marks = self.marks.iter().filter(|(k, _)| k.starts_with(&marks));
        let marks = marks.filter(|(_, born)| **born > txg);
        (
            snaps.map(|(k, _)| k.clone()).collect(),
            marks.map(|(k, _)| k.clone()).collect(),
        )
    }

    fn is_held(&self, snap: &str) -> bool {
        self.holds.get(snap).is_some_and(|tags| !tags.is_empty())
    }

    /// It must not be destroyed.
    fn is_needed(&self, snap: &str) -> bool {
        self.is_held(snap) || self.origins.values().any(|o| o == snap)
    }
}

/// A command that has to be refused because of what else there is.
pub(super) fn must_exist(done: Result<()>, otherwise: &str) -> Result<Outcome> {
    must_fail(done, &[Kind::Exists], otherwise)
}

/// A command that has to be refused for one of these reasons.
pub(super) fn must_fail(done: Result<()>, reasons: &[Kind], otherwise: &str) -> Result<Outcome> {
    match done {
        Ok(()) => bail!(Damaged, "{otherwise}"),
        Err(e) if reasons.contains(&e.kind) => Ok(Outcome::Refused),
        Err(e) => Err(e),
    }
}

impl World {
    fn commands(&self) -> Result<Commands> {
        Ok(desk(&self.opened)?.commands())
    }

    /// When a snapshot was made.
    pub(super) fn born(&self, fs: &str, snap: &str) -> Result<Txg> {
        let Some(pool) = self.pool() else {
            return Ok(Txg::NONE);
        };
        let ds = pool.dsl().dataset(&key(&full(fs), snap))?;
        Ok(ds.phys().creation_txg)
    }

    /// A snapshot, asked for by root, or by a user (`by`) to whom it may have been delegated or not.
    pub(super) fn snapshot(&mut self, fs: &str, name: &str, by: Option<u32>) -> Result<Outcome> {
        let now = self.oracle.now().clone();
        let snap = key(fs, name);
        let there = now.snaps.contains_key(&snap);
        let Some(model) = self.oracle.fs(fs).filter(|_| !there && by != Some(0)) else {
            return Ok(Outcome::Nothing);
        };
        let mut frozen = Frozen {
            limits: now.limits.get(fs).cloned().unwrap_or_default(),
            ..model.freeze()
        };
        match by {
            None => self.commands()?.snapshot(&key(&full(fs), name))?,
            Some(uid) => {
                let may = rights::may(&now.rights, fs, u64::from(uid));
                match desk(&self.opened)?.snapshot_as(fs, name, uid) {
                    Err(e) if e.kind == Kind::NotPermitted && !may => return Ok(Outcome::Refused),
                    Ok(()) if !may => bail!(Damaged, "a user did what was not delegated"),
                    done => done?,
                }
            }
        }
        frozen.born = self.born(fs, name)?;
        let (pos, frozen) = (self.pos(), Arc::new(frozen));
        self.oracle.administered(pos, |a, _| {
            a.snaps.insert(snap, frozen);
        });
        Ok(Outcome::Done)
    }

    /// A snapshot of every file system, or of none where one has the name already.
    fn snapshot_all(&mut self, name: &str) -> Result<Outcome> {
        let now = self.oracle.now().clone();
        let mut frozen = Vec::new();
        for fs in now.sets.keys() {
            let Some(model) = self.oracle.fs(fs) else {
                return Ok(Outcome::Nothing);
            };
            let state = Frozen {
                limits: now.limits.get(fs).cloned().unwrap_or_default(),
                ..model.freeze()
            };
            frozen.push((fs.clone(), state));
        }
        let there = |fs: &String| now.snaps.contains_key(&key(fs, name));
        let done = self.commands()?.snapshot_all(&key(&full(""), name));
        if now.sets.keys().any(there) {
            return must_exist(done, "a snapshot was made over another");
        }
        done?;
        for (fs, state) in &mut frozen {
            state.born = self.born(fs, name)?;
        }
        let pos = self.pos();
        self.oracle.administered(pos, |a, _| {
            for (fs, state) in frozen {
                a.snaps.insert(key(&fs, name), Arc::new(state));
            }
        });
        Ok(Outcome::Done)
    }

    /// Another version of a mounted file system; everything in it stays what it is.
    fn raise(&mut self, fs: &str, version: u64) -> Result<Outcome> {
        let now = self.mounted(fs).map(|m| m.zfs.version);
        if now.is_none_or(|now| now >= version) {
            return Ok(Outcome::Nothing);
        }
        self.held.clear();
        self.reap()?;
        if self.has_attribute_objects(fs)? {
            return Ok(Outcome::Nothing);
        }
        desk(&self.opened)?.set(fs, "version", version)?;
        let m = desk(&self.opened)?.mounted(fs)?;
        if m.zfs.version != version {
            bail!(Damaged, "version {} instead of {version}", m.zfs.version);
        }
        if let Some(o) = &mut self.opened {
            o.mounts.insert(fs.into(), m);
        }
        Ok(Outcome::Done)
    }

    /// Whether extended attributes of a file system are in objects of their own, of which the model does not know and which a new
    /// version keeps. Nobody has a file open that has no name.
    fn has_attribute_objects(&self, fs: &str) -> Result<bool> {
        let (Some(m), Some(model)) = (self.mounted(fs), self.oracle.fs(fs)) else {
            return Ok(false);
        };
        let named: BTreeSet<usize> = model.now().values().copied().collect();
        // The root directory.
        let hidden = 1;
        Ok(model.hidden != hidden || found::count_objects(m)? != named.len() + hidden)
    }

    /// One that is held, or has clones, stays.
    pub(super) fn destroy_snapshot(&mut self, fs: &str, name: &str) -> Result<Outcome> {
        let now = self.oracle.now().clone();
        let key = key(fs, name);
        let cloned = now.origins.values().any(|o| *o == key);
        if !now.snaps.contains_key(&key) {
            return Ok(Outcome::Nothing);
        }
        let done = self.commands()?.destroy(&self::key(&full(fs), name));
        if cloned {
            return must_exist(done, "a snapshot was destroyed that has clones");
        }
        if now.is_held(&key) {
            return must_fail(done, &[Kind::Busy], "a held snapshot was destroyed");
        }
        done?;
        let pos = self.pos();
        self.oracle.administered(pos, |a, _| {
            a.snaps.remove(&key);
        });
        Ok(Outcome::Done)
    }

    /// Back to the newest snapshot, if the file system has one of its own.
    pub(super) fn rollback(&mut self, fs: &str) -> Result<Outcome> {
        let now = self.oracle.now().clone();
        let prefix = key(fs, "");
        let own = now.snaps.iter().filter(|(k, _)| k.starts_with(&prefix));
        let newest = own.max_by_key(|(_, f)| f.born);
        match newest.map(|(k, _)| k[prefix.len()..].to_string()) {
            Some(snap) => self.roll_back_to(fs, &snap),
            None => Ok(Outcome::Nothing),
        }
    }

    fn roll_back_to(&mut self, fs: &str, snap: &str) -> Result<Outcome> {
        let now = self.oracle.now().clone();
        let Some(frozen) = now.snaps.get(&key(fs, snap)).cloned() else {
            return Ok(Outcome::Nothing);
        };
        let (snaps, marks) = now.younger(fs, frozen.born);
        let cloned = now.origins.values().any(|o| snaps.contains(o));
        // Several are destroyed in several txgs, which the oracle does not follow.
        if !now.sets.contains_key(fs) || snaps.len() > 1 || cloned {
            return Ok(Outcome::Nothing);
        }
        self.held.clear();
        self.reap()?;
        let done = self.commands()?.rollback(&key(&full(fs), snap));
        if snaps.iter().any(|s| now.is_held(s)) {
            let otherwise = "a held snapshot was destroyed by a rollback";
            return must_fail(done, &[Kind::Busy], otherwise).map(|_| Outcome::Done);
        }
        done?;
        let (m, pos) = (desk(&self.opened)?.mounted(fs)?, self.pos());
        if let Some(o) = &mut self.opened {
            o.mounts.insert(fs.into(), m);
        }
        let n = self.oracle.op;
        if !snaps.is_empty() {
            // What is younger goes first.
            self.oracle.administered(pos, |a, _| {
                a.snaps.retain(|k, _| !snaps.contains(k));
            });
        }
        self.oracle.administered(pos, |a, models| {
            a.marks.retain(|k, _| !marks.contains(k));
            a.sets.insert(fs.into(), models.len());
            a.limits.insert(fs.into(), frozen.limits.clone());
            models.push(FsModel::new(&frozen, n));
        });
        Ok(Outcome::Done)
    }

    pub(super) fn lineage(&mut self, line: &Lineage) -> Result<Outcome> {
        let now = self.oracle.now().clone();
        match line {
            Lineage::Promote { fs } => return self.promote(fs),
            Lineage::RollbackTo { fs, snap } => return self.roll_back_to(fs, snap),
            Lineage::RenameFs { fs, to } => return self.rename_fs(fs, to),
            Lineage::RenameAll { snap, to } => return self.rename_all(snap, to),
            Lineage::DestroyRange { fs, from, to } => return self.destroy_range(fs, from, to),
            Lineage::SnapshotAll { name } => return self.snapshot_all(name),
            Lineage::CreateOld { fs, .. } | Lineage::CreateSealed { fs, .. } => {
                return self.make_fs(&Op::Lineage(line.clone()), fs)
            }
            Lineage::Raise { fs, version } => return self.raise(fs, *version),
            Lineage::Bookmark { fs, snap, name } => {
                let (mark, of) = (format!("{fs}#{name}"), now.snaps.get(&key(fs, snap)));
                let Some(of) = of.filter(|_| !now.marks.contains_key(&mark)) else {
                    return Ok(Outcome::Nothing);
                };
                let mark_of = format!("{}#{name}", full(fs));
                self.commands()?.bookmark(&key(&full(fs), snap), &mark_of)?;
                let (pos, born) = (self.pos(), of.born);
                self.oracle.administered(pos, |a, _| {
                    a.marks.insert(mark, born);
                });
            }
            Lineage::DestroyBookmark { fs, name } => {
                let mark = format!("{fs}#{name}");
                if !now.marks.contains_key(&mark) {
                    return Ok(Outcome::Nothing);
                }
                self.commands()?.destroy(&format!("{}#{name}", full(fs)))?;
                let pos = self.pos();
                self.oracle.administered(pos, |a, _| {
                    a.marks.remove(&mark);
                });
            }
            Lineage::Hold { fs, snap, tag } | Lineage::LetGo { fs, snap, tag } => {
                let key = key(fs, snap);
                let release = matches!(line, Lineage::LetGo { .. });
                let has = now.holds.get(&key).is_some_and(|tags| tags.contains(tag));
                if !now.snaps.contains_key(&key) || has != release {
                    return Ok(Outcome::Nothing);
                }
                let (c, name) = (self.commands()?, self::key(&full(fs), snap));
                match release {
                    true => c.release(tag, &name)?,
                    false => c.hold(tag, &name)?,
                }
                let pos = self.pos();
                self.oracle.administered(pos, |a, _| {
                    let tags = a.holds.entry(key).or_default();
                    match release {
                        true => tags.remove(tag),
                        false => tags.insert(tag.clone()),
                    };
                });
            }
            Lineage::RenameSnapshot { fs, snap, to } => {
                let (old, new) = (key(fs, snap), key(fs, to));
                if !now.snaps.contains_key(&old) || now.snaps.contains_key(&new) {
                    return Ok(Outcome::Nothing);
                }
                let name = |s: &str| format!("{}@{s}", full(fs));
                self.commands()?.rename(&name(snap), &name(to))?;
                let pos = self.pos();
                self.oracle.administered(pos, |a, _| {
                    a.rename_all(&|k| (k == old).then(|| new.clone()));
                });
            }
        }
        Ok(Outcome::Done)
    }

    /// All of them or, where one has the new name already, none.
    fn rename_all(&mut self, snap: &str, to: &str) -> Result<Outcome> {
        let now = self.oracle.now().clone();
        let of = |name: &str| -> Vec<String> {
            let all = now.sets.keys().map(|fs| key(fs, name));
            all.filter(|k| now.snaps.contains_key(k)).collect()
        };
        let old = of(snap);
        // The root has to have it, for the command to begin there.
        if !old.contains(&key("", snap)) || snap == to {
            return Ok(Outcome::Nothing);
        }
        let taken = of(to).iter().any(|k| {
            let fs = k.split('@').next().unwrap_or_default();
            old.contains(&key(fs, snap))
        });
        let name = |s: &str| key(&full(""), s);
        let done = self.commands()?.rename_all(&name(snap), &name(to));
        if taken {
            return must_exist(done, "a snapshot was renamed over another");
        }
        done?;
        let pos = self.pos();
        self.oracle.administered(pos, |a, _| {
            a.rename_all(&|k| {
                let (fs, _) = k.split_once('@')?;
                old.iter().any(|o| o == k).then(|| key(fs, to))
            });
        });
        Ok(Outcome::Done)
    }

    /// All of them or, where one is held or has a clone, none.
    fn destroy_range(&mut self, fs: &str, from: &str, to: &str) -> Result<Outcome> {
        let now = self.oracle.now().clone();
        let born = |s: &str| now.snaps.get(&key(fs, s)).map(|f| f.born);
        let (Some(first), Some(last)) = (born(from), born(to)) else {
            return Ok(Outcome::Nothing);
        };
        let prefix = key(fs, "");
        let own = now.snaps.iter().filter(|(k, _)| k.starts_with(&prefix));
        let range: Vec<String> = own
            .filter(|(_, f)| (first..=last).contains(&f.born))
            .map(|(k, _)| k.clone())
            .collect();
        let name = key(&full(fs), &format!("{from}%{to}"));
        let done = self.commands()?.destroy(&name);
        if range.is_empty() {
            return must_fail(done, &[Kind::NotFound], "destroyed what is no range");
        }
        if range.iter().any(|k| now.is_needed(k)) {
            let why = [Kind::Busy, Kind::Exists];
            return must_fail(done, &why, "destroyed what is held or has a clone");
        }
        done?;
        let pos = self.pos();
        self.oracle.administered(pos, |a, _| {
            a.snaps.retain(|k, _| !range.contains(k));
        });
        Ok(Outcome::Done)
    }

    fn rename_fs(&mut self, fs: &str, to: &str) -> Result<Outcome> {
        let now = self.oracle.now().clone();
        let free = !now.sets.contains_key(to) && !to.is_empty() && !to.contains('/');
        if fs.is_empty() || !now.sets.contains_key(fs) || !free {
            return Ok(Outcome::Nothing);
        }
        self.unmount(fs)?;
        self.commands()?.rename(&full(fs), &full(to))?;
        let pos = self.pos();
        self.oracle.administered(pos, |a, _| {
            a.rename_all(&|k| moved(k, fs, to));
            if let Some(id) = a.sets.remove(fs) {
                a.sets.insert(to.into(), id);
            }
            if let Some(l) = a.limits.remove(fs) {
                a.limits.insert(to.into(), l);
            }
            if let Some(o) = a.origins.remove(fs) {
                a.origins.insert(to.into(), o);
            }
            let rights = std::mem::take(&mut a.rights);
            a.rights = rights
                .into_iter()
                .map(|(f, u)| (if f == fs { to.into() } else { f }, u))
                .collect();
            let props = std::mem::take(&mut a.props);
            a.props = props
                .into_iter()
                .map(|((f, p), v)| ((if f == fs { to.into() } else { f }, p), v))
                .collect();
        });
        self.mount(to)?;
        Ok(Outcome::Done)
    }

    /// The snapshots up to the origin become the clone's.
    fn promote(&mut self, fs: &str) -> Result<Outcome> {
        let now = self.oracle.now().clone();
        let Some(origin) = now.origins.get(fs).cloned() else {
            return Ok(Outcome::Nothing);
        };
        let (Some((from, _)), Some(born)) = (
            origin.split_once('@'),
            now.snaps.get(&origin).map(|f| f.born),
        ) else {
            return Ok(Outcome::Nothing);
        };
        let prefix = key(from, "");
        let go: Vec<String> = now
            .snaps
            .iter()
            .filter(|(k, f)| k.starts_with(&prefix) && f.born <= born)
            .map(|(k, _)| k.clone())
            .collect();
        // Bookmarks of that time go along.
        let prefix = format!("{from}#");
        let marks: Vec<String> = now
            .marks
            .iter()
            .filter(|(k, txg)| k.starts_with(&prefix) && **txg <= born)
            .map(|(k, _)| k.clone())
            .collect();
        let there = |k: &String| {
            moved(k, from, fs)
                .is_some_and(|n| now.snaps.contains_key(&n) || now.marks.contains_key(&n))
        };
        let conflict = go.iter().chain(&marks).any(there);
        let done = self.commands()?.promote(&full(fs));
        if conflict {
            return match done {
                Ok(()) => bail!(
                    Damaged,
                    "promoted over a snapshot or bookmark of the same name"
                ),
                Err(e) if e.kind == Kind::Exists => Ok(Outcome::Done),
                Err(e) => Err(e),
            };
        }
        done?;
        let pos = self.pos();
        self.oracle.administered(pos, |a, _| {
            // The other file system is the clone now, of the same snapshot.
            match a.origins.remove(from) {
                Some(older) => a.origins.insert(fs.into(), older),
                None => a.origins.remove(fs),
            };
            a.origins.insert(from.into(), origin.clone());
            a.rename_all(&|k| match go.iter().chain(&marks).any(|g| g == k) {
                true => moved(k, from, fs),
                false => None,
            });
        });
        Ok(Outcome::Done)
    }
}

/// Lines this file carries out.
pub(super) fn is_lineage(op: &Op) -> bool {
    matches!(
        op,
        Op::Snapshot { .. }
            | Op::SnapshotAs { .. }
            | Op::Allow { .. }
            | Op::DestroySnapshot { .. }
            | Op::Rollback { .. }
            | Op::Lineage(_)
    )
}
