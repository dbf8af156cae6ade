//! Delegated permissions: entries of a DSL directory that allow operations to users who are not root (data format §15).
//!
//! 1. A who-key leads to a ZAP of its own; a who-key whose ZAP would be empty does not exist.
//! 2. A set of permissions is looked up at the level at which it was found and above, never below. The
//!    nearest definition is the only one that counts.
//! 3. Permissions of the kind "local" count at the dataset itself, never at its snapshots.

use crate::caller::Caller;
use crate::core::Core;
use crate::{Dataset, Dir, Dsl};
use base::{bail, Error, Result};
use disk::ObjType;
use dmu::{Dnode, Tx};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use zap::Zap;

/// First pool version with delegated permissions.
pub const VERSION: u64 = 8;
/// Longest name of a permission set, bytes with its `@`.
pub const SET_NAME_MAX: usize = 63;

/// Whom an entry concerns.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Holder {
    /// A user, by id.
    User(u64),
    /// A group, by id.
    Group(u64),
    /// Every user.
    Everyone,
    /// Whoever makes a dataset below, at that dataset.
    Creator,
    /// A named set, with its `@`.
    Set(String),
}

impl Holder {
    fn letter(&self) -> char {
        match self {
            Holder::User(_) => 'u',
            Holder::Group(_) => 'g',
            Holder::Everyone => 'e',
            Holder::Creator => 'c',
            Holder::Set(_) => 's',
        }
    }

    fn id(&self) -> String {
        match self {
            Holder::User(n) | Holder::Group(n) => n.to_string(),
            Holder::Everyone | Holder::Creator => String::new(),
            Holder::Set(name) => name.clone(),
        }
    }
}

/// Where an entry counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    /// At the dataset itself.
    Local,
    /// At everything below it, and at its snapshots.
    Descendent,
    /// Neither has a meaning: sets, and what creators get.
    Neither,
}

impl Scope {
    fn letter(self) -> char {
        match self {
            Scope::Local => 'l',
            Scope::Descendent => 'd',
            Scope::Neither => '-',
        }
    }
}

/// The key of an entry: type letter, scope letter, `$`, id. An upper-case type letter says that the
/// entry holds names of sets.
fn key(holder: &Holder, scope: Scope, sets: bool) -> String {
    let letter = match sets {
        true => holder.letter().to_ascii_uppercase(),
        false => holder.letter(),
    };
    format!("{letter}{}${}", scope.letter(), holder.id())
}

/// What a key says; `None`: it is none of these.
fn parse_key(text: &str) -> Option<(Holder, Scope)> {
    let mut chars = text.chars();
    let (who, scope, '$') = (chars.next()?, chars.next()?, chars.next()?) else {
        return None;
    };
    let id = chars.as_str();
    let holder = match who.to_ascii_lowercase() {
        'u' => Holder::User(id.parse().ok()?),
        'g' => Holder::Group(id.parse().ok()?),
        'e' => Holder::Everyone,
        'c' => Holder::Creator,
        's' => Holder::Set(id.to_string()),
        _ => return None,
    };
    let scope = match scope {
        'l' => Scope::Local,
        'd' => Scope::Descendent,
        _ => Scope::Neither,
    };
    Some((holder, scope))
}

/// Permissions given, or to be taken back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Whom the permissions are given to.
    pub holder: Holder,
    /// The datasets they are for: this one, those below, or both.
    pub scope: Scope,
    /// Names of permissions, and of sets with their `@`. To be taken back: none means all of them.
    pub permissions: Vec<String>,
}

impl Entry {
    /// The names of sets (`true`) or of permissions among them.
    fn names(&self, sets: bool) -> impl Iterator<Item = &str> {
        let all = self.permissions.iter().map(String::as_str);
        all.filter(move |p| p.starts_with('@') == sets)
    }
}

/// The permissions of one directory while somebody is asked about.
struct Level {
    core: Arc<Core>,
    dn: Arc<Dnode>,
}

impl Level {
    /// `None`: nothing is delegated there.
    fn of(dir: &Dir) -> Result<Option<Level>> {
        match dir.phys().deleg_zapobj {
            0 => Ok(None),
            o => Ok(Some(Level {
                core: dir.core.clone(),
                dn: dir.core.hold(o)?,
            })),
        }
    }

    fn entry(&self, key: &str) -> Result<Option<Arc<Dnode>>> {
        match Zap::new(&self.dn).get(key)? {
            Some(o) => self.core.hold(o).map(Some),
            None => Ok(None),
        }
    }

    /// Whether an entry has a name in it; `None`: there is no such entry.
    fn has(&self, key: &str, name: &str) -> Result<Option<bool>> {
        match self.entry(key)? {
            Some(dn) => Zap::new(&dn).contains(name).map(Some),
            None => Ok(None),
        }
    }

    fn names(&self, key: &str) -> Result<Vec<String>> {
        match self.entry(key)? {
            Some(dn) => Zap::new(&dn).iter().map(|e| Ok(e?.text())).collect(),
            None => Ok(Vec::new()),
        }
    }

    /// Whether a caller has a permission here, directly or by one of the `sets` that were found so far
    /// (`true`: its definition has been seen). Adds the sets found here.
    fn grants(
        &self,
        permission: &str,
        scope: Scope,
        caller: &Caller,
        sets: &mut BTreeMap<String, bool>,
    ) -> Result<bool> {
        let mut holders = vec![Holder::User(caller.uid)];
        holders.extend(caller.groups.iter().map(|g| Holder::Group(*g)));
        holders.push(Holder::Everyone);
        for h in &holders {
            if self.has(&key(h, scope, false), permission)? == Some(true) {
                return Ok(true);
            }
            for set in self.names(&key(h, scope, true))? {
                sets.entry(set).or_insert(false);
            }
        }
        loop {
            let open: Vec<String> = sets
                .iter()
                .filter(|(_, seen)| !**seen)
                .map(|(name, _)| name.clone())
                .collect();
            let mut more = false;
            for name in open {
                let set = Holder::Set(name.clone());
                let direct = self.has(&key(&set, Scope::Neither, false), permission)?;
                if direct == Some(true) {
                    return Ok(true);
                }
                let inner = self.names(&key(&set, Scope::Neither, true))?;
                if direct.is_some() || !inner.is_empty() {
                    sets.insert(name, true);
                }
                for i in inner {
                    more |= sets.get(&i).is_none();
                    sets.entry(i).or_insert(false);
                }
            }
            if !more {
                return Ok(false);
            }
        }
    }
}

/// Whether a caller has a permission from `at` upwards, `scope` being that of the first level.
fn granted_from(
    at: Option<Arc<Dir>>,
    mut scope: Scope,
    permission: &str,
    caller: &Caller,
    mut sets: BTreeMap<String, bool>,
) -> Result<bool> {
    let mut at = at;
    while let Some(dir) = at {
        if let Some(level) = Level::of(&dir)? {
            if level.grants(permission, scope, caller, &mut sets)? {
                return Ok(true);
            }
        }
        scope = Scope::Descendent;
        at = dir.parent();
    }
    Ok(false)
}

/// Whether delegated permissions count for a caller at all.
fn counts(core: &Core, caller: &Caller) -> bool {
    caller.delegation && core.version() >= VERSION
}

impl Dataset {
    /// Whether a caller has a permission at this dataset.
    pub fn permits(&self, permission: &str, caller: &Caller) -> Result<bool> {
        if caller.all {
            return Ok(true);
        }
        if !counts(&self.core, caller) {
            return Ok(false);
        }
        let scope = match self.is_snapshot() {
            true => Scope::Descendent,
            false => Scope::Local,
        };
        granted_from(Some(self.dir()), scope, permission, caller, BTreeMap::new())
    }
}

impl Dir {
    /// Whether a caller would have a permission at a dataset that the caller makes in this directory.
    pub fn permits_in_new(self: &Arc<Self>, permission: &str, caller: &Caller) -> Result<bool> {
        if caller.all {
            return Ok(true);
        }
        if !counts(&self.core, caller) {
            return Ok(false);
        }
        let mut sets = BTreeMap::new();
        let mut at = Some(self.clone());
        while let Some(dir) = at {
            if let Some(level) = Level::of(&dir)? {
                let given = |sets| key(&Holder::Creator, Scope::Neither, sets);
                if level.has(&given(false), permission)? == Some(true) {
                    return Ok(true);
                }
                sets.extend(level.names(&given(true))?.into_iter().map(|s| (s, false)));
            }
            at = dir.parent();
        }
        granted_from(
            Some(self.clone()),
            Scope::Descendent,
            permission,
            caller,
            sets,
        )
    }

    /// Whether any user other than root, or any group, has one of these permissions at the head of this directory, by an entry
    /// here or above. A set counts with all that it is anywhere between.
    ///
    /// Errors: as [`Dir::delegated`].
    pub fn delegates(self: &Arc<Self>, permissions: &[&str]) -> Result<bool> {
        if self.core.version() < VERSION {
            return Ok(false);
        }
        let mut sets: BTreeSet<String> = BTreeSet::new();
        let mut scope = Scope::Local;
        let mut at = Some(self.clone());
        while let Some(dir) = at {
            let entries = dir.delegated()?;
            let given = |e: &&Entry| match e.holder {
                Holder::User(uid) => uid != 0 && e.scope == scope,
                Holder::Group(_) | Holder::Everyone => e.scope == scope,
                Holder::Creator | Holder::Set(_) => false,
            };
            let mut new: Vec<&str> = entries
                .iter()
                .filter(given)
                .flat_map(|e| e.permissions.iter().map(String::as_str))
                .collect();
            new.extend(sets.clone().iter().flat_map(|set| in_set(&entries, set)));
            while let Some(name) = new.pop() {
                if permissions.contains(&name) {
                    return Ok(true);
                }
                if name.starts_with('@') && sets.insert(name.to_string()) {
                    new.extend(in_set(&entries, name));
                }
            }
            scope = Scope::Descendent;
            at = dir.parent();
        }
        Ok(false)
    }

    /// What is delegated at this directory, in the order of its map. An entry comes once for its
    /// permissions and once for its sets.
    ///
    /// Errors: `Kind::Damaged` if a key is none that is known.
    pub fn delegated(&self) -> Result<Vec<Entry>> {
        let Some(level) = Level::of(self)? else {
            return Ok(Vec::new());
        };
        let mut out = Vec::new();
        for e in Zap::new(&level.dn).iter() {
            let e = e?;
            let text = e.text();
            let Some((holder, scope)) = parse_key(&text) else {
                return Err(Error::damaged(format!("permission entry '{text}'")));
            };
            let names = level.core.hold(e.value.to_u64()?)?;
            let mut permissions = BTreeSet::new();
            for p in Zap::new(&names).iter() {
                permissions.insert(p?.text());
            }
            out.push(Entry {
                holder,
                scope,
                permissions: permissions.into_iter().collect(),
            });
        }
        Ok(out)
    }
}

/// What a set holds by these entries.
fn in_set<'a>(entries: &'a [Entry], set: &str) -> Vec<&'a str> {
    let of_set = |e: &&Entry| matches!(&e.holder, Holder::Set(name) if name == set);
    let found = entries.iter().filter(of_set);
    found
        .flat_map(|e| e.permissions.iter().map(String::as_str))
        .collect()
}

impl Core {
    /// The ZAP of an entry, made if there is none.
    fn deleg_entry(&self, tx: &Tx, dir: &Dir, key: &str) -> Result<Arc<Dnode>> {
        let mut map = dir.phys().deleg_zapobj;
        if map == 0 {
            map = self.new_zap(tx, ObjType::DSL_PERMS, 0)?.object();
            dir.update(tx, |p| p.deleg_zapobj = map)?;
        }
        let map = self.hold(map)?;
        let map = Zap::new(&map);
        match map.get(key)? {
            Some(o) => self.hold(o),
            None => {
                let dn = self.new_zap(tx, ObjType::DSL_PERMS, 0)?;
                map.add_u64(tx, key, dn.object())?;
                Ok(dn)
            }
        }
    }

    fn give(&self, tx: &Tx, ds: &Dataset, e: &Entry) -> Result<()> {
        let dir = ds.dir();
        for sets in [false, true] {
            let names: Vec<&str> = e.names(sets).collect();
            if names.is_empty() {
                continue;
            }
            let key = key(&e.holder, e.scope, sets);
            let dn = self.deleg_entry(tx, &dir, &key)?;
            for name in names {
                Zap::new(&dn).update_u64(tx, name, 0)?;
                self.note("permission update", ds, format!("{key} {name}"));
            }
        }
        Ok(())
    }

    fn take(&self, tx: &Tx, ds: &Dataset, e: &Entry) -> Result<()> {
        let map = match ds.dir().phys().deleg_zapobj {
            0 => return Ok(()),
            o => self.hold(o)?,
        };
        let map = Zap::new(&map);
        for sets in [false, true] {
            let key = key(&e.holder, e.scope, sets);
            let Some(object) = map.get(key.as_str())? else {
                continue;
            };
            let all = e.permissions.is_empty();
            if all {
                self.note("permission who remove", ds, key.clone());
            } else {
                let dn = self.hold(object)?;
                for name in e.names(sets) {
                    if Zap::new(&dn).remove_if(tx, name)? {
                        self.note("permission remove", ds, format!("{key} {name}"));
                    }
                }
            }
            if all || Zap::new(&self.hold(object)?).count()? == 0 {
                map.remove(tx, key.as_str())?;
                self.free_object(tx, object)?;
            }
        }
        Ok(())
    }
}

impl Dsl {
    fn check_deleg(&self, tx: &Tx, ds: &Dataset) -> Result<()> {
        self.core.need_syncing(tx)?;
        if self.core.version() < VERSION {
            bail!(
                Unsupported,
                "pool must be upgraded to support delegated permissions"
            );
        }
        if ds.is_snapshot() {
            bail!(Invalid, "{} is a snapshot", ds.full_name());
        }
        Ok(())
    }

    /// Gives permissions at a file system or volume; names were checked.
    pub fn allow(&self, tx: &Tx, ds: &Arc<Dataset>, list: &[Entry]) -> Result<()> {
        self.check_deleg(tx, ds)?;
        for e in list {
            self.core.must(self.core.give(tx, ds, e))?;
        }
        Ok(())
    }

    /// Takes permissions back. What is not there is left out.
    pub fn unallow(&self, tx: &Tx, ds: &Arc<Dataset>, list: &[Entry]) -> Result<()> {
        self.check_deleg(tx, ds)?;
        for e in list {
            self.core.must(self.core.take(tx, ds, e))?;
        }
        Ok(())
    }

    /// Gives whoever made a dataset what the directories above it give creators. To be called in the
    /// txg in which it was made.
    pub fn give_creator(&self, tx: &Tx, ds: &Arc<Dataset>, uid: u64) -> Result<()> {
        self.core.need_syncing(tx)?;
        if self.core.version() < VERSION {
            return Ok(());
        }
        let mut names = BTreeSet::new();
        let mut at = ds.dir().parent();
        while let Some(dir) = at {
            if let Some(level) = Level::of(&dir)? {
                for sets in [false, true] {
                    names.extend(level.names(&key(&Holder::Creator, Scope::Neither, sets))?);
                }
            }
            at = dir.parent();
        }
        let e = Entry {
            holder: Holder::User(uid),
            scope: Scope::Local,
            permissions: names.into_iter().collect(),
        };
        self.core.must(self.core.give(tx, ds, &e))
    }
}
