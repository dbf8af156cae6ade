//! Renaming, with all its rules.

use crate::attr::mode;
use crate::create::Spec;
use crate::dir::{lock_dirs, Replayed, LINK_MAX};
use crate::log::{Record, RenameKind};
use crate::names;
use crate::perm::{Cred, W, X};
use crate::zfs::Zfs;
use crate::znode::{check_name, Znode};
use base::sync::MutexExt;
use base::{bail, Kind, Result};
use std::sync::Arc;

/// Flags of renameat2(2).
pub mod flags {
    /// `RENAME_NOREPLACE`: fail if the target exists.
    pub const NOREPLACE: u32 = 1;
    /// `RENAME_EXCHANGE`: both names change places.
    pub const EXCHANGE: u32 = 2;
    /// `RENAME_WHITEOUT`: leave a whiteout under the old name.
    pub const WHITEOUT: u32 = 4;
}

/// What the types of source and target say about replacing.
fn may_replace(source_is_dir: bool, target_is_dir: bool) -> Result<()> {
    match (source_is_dir, target_is_dir) {
        (false, true) => Err(Kind::IsDir.into()),
        (true, false) => Err(Kind::NotDir.into()),
        _ => Ok(()),
    }
}

impl Zfs {
    /// Renames `from` in `from_dir` to `to` in `to_dir`; `how` are [`flags`].
    pub fn rename(
        &self,
        from_dir: &Arc<Znode>,
        from: &[u8],
        to_dir: &Arc<Znode>,
        to: &[u8],
        how: u32,
        cred: &Cred,
    ) -> Result<()> {
        self.rename_as(from_dir, from, to_dir, to, how, None, cred)
    }

    pub(crate) fn rename_as(
        &self,
        from_dir: &Arc<Znode>,
        from: &[u8],
        to_dir: &Arc<Znode>,
        to: &[u8],
        how: u32,
        whiteout: Option<&Replayed>,
        cred: &Cred,
    ) -> Result<()> {
        use flags::*;
        self.writable()?;
        let replace_flags = NOREPLACE | WHITEOUT;
        if how & !(NOREPLACE | EXCHANGE | WHITEOUT) != 0
            || (how & EXCHANGE != 0 && how & replace_flags != 0)
        {
            return Err(Kind::Invalid.into());
        }
        Self::must_dir(from_dir)?;
        Self::must_dir(to_dir)?;
        self.check(from_dir, W | X, cred)?;
        self.check(to_dir, W | X, cred)?;
        for n in [from, to] {
            if matches!(n, b"." | b"..") {
                return Err(Kind::Invalid.into());
            }
        }
        check_name(from, self.name_max_found(), self.utf8only)?;
        check_name(to, self.name_max(), self.utf8only)?;
        let crosses = from_dir.object != to_dir.object;
        // Only one directory moves at a time, so that ancestors stay what they are.
        let moving = crosses.then(|| self.moving.acquire());
        let (source, replaced) = loop {
            let Some((so, _)) = self.find(from_dir, from)? else {
                return names::missing();
            };
            let source = self.get_any(so)?;
            let target = match self.find(to_dir, to)? {
                Some((o, _)) => Some(self.get_any(o)?),
                None => None,
            };
            let mut set = vec![from_dir, to_dir];
            if let Some(t) = target.as_ref().filter(|t| t.is_dir()) {
                set.push(t);
            }
            let locks = lock_dirs(&set);
            let stored_from = match self.find(from_dir, from)? {
                Some((o, s)) if o == so => s,
                _ => continue,
            };
            let stored_to = match (self.find(to_dir, to)?, &target) {
                (Some((o, s)), Some(t)) if o == t.object => Some(s),
                (None, None) => None,
                _ => continue,
            };
            self.rename_locked(&Job {
                from_dir,
                to_dir,
                from: &stored_from,
                to,
                stored_to: stored_to.as_deref(),
                source: &source,
                target: target.as_ref(),
                how,
                whiteout,
                cred,
            })?;
            drop(locks);
            break (source, target);
        };
        drop(moving);
        let object = source.object;
        drop((source, replaced));
        self.finish(Some(object))
    }

    /// Whether `dir` is `z` or lies below it.
    fn is_below(&self, dir: &Arc<Znode>, z: &Znode) -> Result<bool> {
        let mut at = dir.clone();
        // A damaged pool may have parents in a circle.
        for _ in 0..1 << 20 {
            if at.object == z.object {
                return Ok(true);
            }
            let parent = at.fixed().parent;
            if parent == at.object || at.object == self.root_object() {
                return Ok(false);
            }
            at = self.get_any(parent)?;
        }
        bail!(
            Damaged,
            "directories above object {} run in a circle",
            dir.object
        )
    }

    fn rename_locked(&self, j: &Job<'_>) -> Result<()> {
        let p = self.props();
        let crosses = j.from_dir.object != j.to_dir.object;
        let source_is_dir = j.source.is_dir();
        self.may_change_dir(j.from_dir, true)?;
        self.may_change_dir(j.to_dir, j.target.is_some())?;
        let mut same_entry = false;
        if let Some(t) = j.target {
            if j.how & flags::NOREPLACE != 0 {
                return Err(Kind::Exists.into());
            }
            if t.object == j.source.object {
                // Two names of one object: nothing happens, unless it is one entry whose case changes.
                same_entry = !crosses && j.stored_to == Some(j.from);
                if !same_entry || j.from == j.to || j.how & flags::EXCHANGE != 0 {
                    return Ok(());
                }
            }
        } else if j.how & flags::EXCHANGE != 0 {
            return names::missing();
        }
        self.may_remove(j.from_dir, j.source, j.cred)?;
        if crosses && source_is_dir {
            // Its `..` changes.
            self.check(j.source, W, j.cred)?;
            if self.is_below(j.to_dir, j.source)? {
                return Err(Kind::Invalid.into());
            }
        }
        self.same_project(j.to_dir, j.source)?;
        if j.how & flags::EXCHANGE != 0 {
            if let Some(t) = j.target {
                return self.exchange(j, t);
            }
        }
        if let Some(t) = j.target.filter(|_| !same_entry) {
            may_replace(source_is_dir, t.is_dir())?;
            self.may_remove(j.to_dir, t, j.cred)?;
            if t.is_dir() && t.size() != 2 {
                return Err(Kind::NotEmpty.into());
            }
        } else if crosses && source_is_dir && j.to_dir.fixed().links >= LINK_MAX {
            return Err(Kind::TooManyLinks.into());
        }
        let tx = self.tx_meta()?;
        let now = self.now();
        match (j.stored_to, j.target) {
            (Some(stored), Some(t)) if !same_entry => {
                self.entry_replace(&tx, j.to_dir, stored, j.to, j.source, t.is_dir())?;
                self.entry_remove(&tx, j.from_dir, j.from, source_is_dir)?;
                self.link_drop(&tx, t)?;
            }
            _ if same_entry => {
                self.entry_remove(&tx, j.from_dir, j.from, source_is_dir)?;
                self.entry_add(&tx, j.to_dir, j.to, j.source)?;
            }
            _ => {
                self.entry_add(&tx, j.to_dir, j.to, j.source)?;
                self.entry_remove(&tx, j.from_dir, j.from, source_is_dir)?;
            }
        }
        j.source.update(&tx, |f| {
            f.parent = j.to_dir.object;
            f.touch_state(now, self.fuids());
            Ok(())
        })?;
        let mut kind = RenameKind::Plain;
        if j.how & flags::WHITEOUT != 0 {
            let spec = Spec {
                mode: mode::CHR,
                uid: j.whiteout.map_or(u64::from(j.cred.uid), |r| r.uid),
                gid: j.whiteout.map_or(u64::from(j.cred.gid), |r| r.gid),
                gen: j.whiteout.map_or(tx.txg().number(), |r| r.gen.number()),
                times: j.whiteout.map_or(now, |r| r.crtime),
                size: 0,
                links: 1,
                parent: Some(j.from_dir.object),
                flags: 0,
                projid: None,
                rdev: 0,
                target: &[],
                slots: j.whiteout.map_or(p.dnode_slots, |r| r.slots),
                object: j.whiteout.map(|r| r.object),
                fuids: self.fuids(),
                list: None,
            };
            let w = self.make_znode(&tx, &spec)?;
            self.entry_add(&tx, j.from_dir, j.from, &w)?;
            kind = RenameKind::Whiteout(self.new_file(&w));
        }
        self.record(&tx, j.record(kind));
        Ok(())
    }

    fn exchange(&self, j: &Job<'_>, t: &Arc<Znode>) -> Result<()> {
        let crosses = j.from_dir.object != j.to_dir.object;
        self.may_remove(j.to_dir, t, j.cred)?;
        self.may_change_dir(j.to_dir, true)?;
        self.same_project(j.from_dir, t)?;
        if crosses && t.is_dir() {
            self.check(t, W, j.cred)?;
            if self.is_below(j.from_dir, t)? {
                return Err(Kind::Invalid.into());
            }
        }
        let stored_to = j.stored_to.unwrap_or(j.to);
        let tx = self.tx_meta()?;
        let now = self.now();
        let (s_dir, t_dir) = (j.source.is_dir(), t.is_dir());
        self.entry_replace(&tx, j.to_dir, stored_to, stored_to, j.source, t_dir)?;
        self.entry_replace(&tx, j.from_dir, j.from, j.from, t, s_dir)?;
        for (z, dir) in [(j.source, j.to_dir), (t, j.from_dir)] {
            z.update(&tx, |f| {
                f.parent = dir.object;
                f.touch_state(now, self.fuids());
                Ok(())
            })?;
        }
        self.record(&tx, j.record(RenameKind::Exchange(t.object)));
        Ok(())
    }
}

/// A rename whose directories are locked.
struct Job<'a> {
    from_dir: &'a Arc<Znode>,
    to_dir: &'a Arc<Znode>,
    /// As stored.
    from: &'a [u8],
    to: &'a [u8],
    /// Name of the entry that is there, as stored.
    stored_to: Option<&'a [u8]>,
    source: &'a Arc<Znode>,
    target: Option<&'a Arc<Znode>>,
    how: u32,
    whiteout: Option<&'a Replayed>,
    cred: &'a Cred,
}

impl Job<'_> {
    fn record(&self, kind: RenameKind) -> Record {
        Record::Rename {
            kind,
            from_dir: self.from_dir.object,
            to_dir: self.to_dir.object,
            from: self.from.to_vec(),
            to: self.to.to_vec(),
            object: self.source.object,
        }
    }
}
