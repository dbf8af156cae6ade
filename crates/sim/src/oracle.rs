//! The oracle: every state each file system has been through, what was acknowledged when, and which file
//! systems, snapshots and properties there were.
//!
//! Time is counted in operations (numbered from 1 on) and in events of the journal (positions in
//! it). An image cut at a position may show what was begun before it and must show what was
//! acknowledged by it.

use crate::found::{count_objects, split, Found, State, Tree, What};
use crate::owners::{self, Limits};
use crate::rig::Fs;
use crate::rights::Rights;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Path to object, by index.
pub type Names = BTreeMap<String, usize>;

/// One object through time.
#[derive(Clone, Debug)]
pub struct Object {
    pub what: What,
    /// States by the operation that made them.
    states: Vec<(usize, Arc<State>)>,
    /// Renames: whoever sees one of them sees what was written before it.
    renames: Vec<usize>,
}

/// A promise: everything about names up to `op`, and about all objects or one.
#[derive(Clone, Debug)]
struct Ack {
    pos: usize,
    op: usize,
    /// `None`: all.
    object: Option<usize>,
}

/// A file system as it was once.
#[derive(Clone, Debug, Default)]
pub struct Frozen {
    pub names: Arc<Names>,
    pub objects: BTreeMap<usize, (What, Arc<State>)>,
    /// Objects besides those with names.
    pub hidden: usize,
    pub limits: Limits,
    /// Txg of the snapshot.
    pub born: base::Txg,
}

impl std::fmt::Debug for FsModel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} names", self.now().len())
    }
}

/// One file system through time.
#[derive(Clone)]
pub struct FsModel {
    objects: Vec<Object>,
    names: Vec<(usize, Arc<Names>)>,
    acks: Vec<Ack>,
    /// Files and directories that have no name: the root and what belongs to the format.
    pub hidden: usize,
}

impl FsModel {
    /// One that becomes what `from` is with operation `op`.
    pub fn new(from: &Frozen, op: usize) -> FsModel {
        let most = from.objects.keys().last().map_or(0, |n| n + 1);
        let none = Object {
            what: What::File,
            states: vec![(op, Arc::default())],
            renames: Vec::new(),
        };
        let mut objects = vec![none; most];
        for (id, (what, state)) in &from.objects {
            objects[*id].what = *what;
            objects[*id].states = vec![(op, state.clone())];
        }
        FsModel {
            objects,
            names: vec![(op, from.names.clone())],
            acks: Vec::new(),
            hidden: from.hidden,
        }
    }

    pub fn now(&self) -> &Arc<Names> {
        &self.names[self.names.len() - 1].1
    }

    pub fn what(&self, id: usize) -> What {
        self.objects[id].what
    }

    pub fn state(&self, id: usize) -> &Arc<State> {
        let s = &self.objects[id].states;
        &s[s.len() - 1].1
    }

    /// As it is now.
    pub fn freeze(&self) -> Frozen {
        let ids = self.now().values();
        Frozen {
            names: self.now().clone(),
            objects: ids
                .map(|id| (*id, (self.what(*id), self.state(*id).clone())))
                .collect(),
            hidden: self.hidden,
            limits: Limits::new(),
            born: base::Txg::NONE,
        }
    }

    pub fn change_names(&mut self, op: usize, f: impl FnOnce(&mut Names)) {
        let mut n = (**self.now()).clone();
        f(&mut n);
        self.names.push((op, Arc::new(n)));
    }

    pub fn change(&mut self, op: usize, id: usize, f: impl FnOnce(&mut State)) {
        let mut s = (**self.state(id)).clone();
        f(&mut s);
        self.objects[id].states.push((op, Arc::new(s)));
    }

    pub fn add(&mut self, op: usize, path: &str, what: What, state: State) {
        let id = self.objects.len();
        self.objects.push(Object {
            what,
            states: vec![(op, Arc::new(state))],
            renames: Vec::new(),
        });
        self.change_names(op, |n| {
            n.insert(path.into(), id);
        });
    }

    pub fn renamed(&mut self, op: usize, id: usize) {
        self.objects[id].renames.push(op);
    }

    pub fn ack(&mut self, op: usize, pos: usize, object: Option<usize>) {
        self.acks.push(Ack { pos, op, object });
    }

    /// Whether `found` may be what is left at `cut`, when operation `last` had been begun.
    fn judge(&self, fs: &Fs, found: &Tree, cut: usize, last: usize) -> Result<(), String> {
        let promised = |id: Option<usize>| {
            let meant =
                |a: &&Ack| a.pos <= cut && (id.is_none() || a.object.is_none() || a.object == id);
            self.acks
                .iter()
                .filter(meant)
                .map(|a| a.op)
                .max()
                .unwrap_or(0)
        };
        let first = promised(None);
        let mut why = String::new();
        for (i, (op, names)) in self.names.iter().enumerate().rev() {
            let end = self.names.get(i + 1).map_or(usize::MAX, |(op, _)| *op);
            // The very first state is there even if the operation that made it is in flight.
            if i > 0 && *op > last || end <= first {
                continue;
            }
            match self.compare(fs, found, names, *op, last, &promised) {
                Ok(()) => return Ok(()),
                Err(e) => why = format!("{why}\n    names of operation {op}: {e}"),
            }
        }
        Err(format!(
            "no state between operations {first} and {last} fits:{why}"
        ))
    }

    fn compare(
        &self,
        fs: &Fs,
        found: &Tree,
        names: &Names,
        op: usize,
        last: usize,
        promised: &dyn Fn(Option<usize>) -> usize,
    ) -> Result<(), String> {
        shape(found, names, &|id| self.objects[id].what)?;
        for (path, id) in names {
            self.content(*id, &found[path], op, last, promised(Some(*id)))
                .map_err(|e| format!("/{path} (object {id}): {e}"))?;
        }
        counted(fs, found, self.hidden)
    }

    /// Whether this is what the object may be after the promise of operation `first`.
    fn content(
        &self,
        id: usize,
        f: &Found,
        op: usize,
        last: usize,
        first: usize,
    ) -> Result<(), String> {
        let object = &self.objects[id];
        let states = &object.states;
        // What was written before a rename is in the log before the rename, except what a
        // truncation cut off by the time the log was written; that is at its end.
        let cut = states.windows(2).any(|w| {
            let (a, b) = (&w[0], &w[1]);
            b.0 > first && b.0 <= last && b.1.data.len() < a.1.data.len()
        });
        let renamed = object.renames.iter().filter(|r| **r <= op && !cut).max();
        let first = first.max(renamed.copied().unwrap_or(0));
        let from = states.partition_point(|s| s.0 <= first).max(1) - 1;
        let to = states.partition_point(|s| s.0 <= last);
        let window: Vec<&State> = states[from..to.max(from + 1)]
            .iter()
            .map(|s| &*s.1)
            .collect();
        let f = &f.state;
        if window.contains(&f) {
            return Ok(());
        }
        if !window.iter().any(|s| s.mode == f.mode) {
            return Err(format!("mode {:o} since operation {first}", f.mode));
        }
        if !window.iter().any(|s| s.owner == f.owner) {
            return Err(format!("owner {:?} since operation {first}", f.owner));
        }
        let keys = window
            .iter()
            .flat_map(|s| s.xattrs.keys())
            .chain(f.xattrs.keys());
        for key in keys.collect::<BTreeSet<_>>() {
            let has = f.xattrs.get(key);
            if !window.iter().any(|s| s.xattrs.get(key) == has) {
                return Err(format!(
                    "extended attribute {key} of {:?} bytes since operation {first}",
                    has.map(Vec::len)
                ));
            }
        }
        if window.iter().any(|s| s.data == f.data) {
            return Ok(());
        }
        let sizes = window.iter().map(|s| s.data.len());
        let (min, max) = (sizes.clone().min().unwrap_or(0), sizes.max().unwrap_or(0));
        if f.data.len() < min || f.data.len() > max {
            return Err(format!(
                "{} bytes, between {min} and {max} since operation {first}",
                f.data.len()
            ));
        }
        for (at, byte) in f.data.iter().enumerate() {
            let was = |s: &State| s.data.get(at).copied().unwrap_or(0);
            if !window.iter().any(|s| was(s) == *byte) {
                let known: Vec<_> = states
                    .iter()
                    .map(|s| (s.0, s.1.data.len(), was(&s.1)))
                    .collect();
                return Err(format!(
                    "byte {at} of {} is {byte:#x}, which it never was since operation {first} \
                     (operation, size, byte: {known:?})",
                    f.data.len(),
                ));
            }
        }
        Ok(())
    }
}

/// Names, kinds and links of what was found.
fn shape(found: &Tree, names: &Names, what: &dyn Fn(usize) -> What) -> Result<(), String> {
    let (a, b): (BTreeSet<_>, BTreeSet<_>) = (found.keys().collect(), names.keys().collect());
    if a != b {
        let more: Vec<_> = a.difference(&b).collect();
        let less: Vec<_> = b.difference(&a).collect();
        return Err(format!("too many {more:?}, missing {less:?}"));
    }
    let mut objects: BTreeMap<usize, (u64, u64)> = BTreeMap::new();
    for (path, id) in names {
        let f = &found[path];
        if f.what != what(*id) {
            return Err(format!("/{path}: {:?} instead of {:?}", f.what, what(*id)));
        }
        let e = objects.entry(*id).or_insert((f.object, 0));
        if e.0 != f.object {
            return Err(format!("/{path}: names of one object lead to two"));
        }
        e.1 += 1;
    }
    for (path, id) in names {
        let links = match what(*id) {
            What::Dir => {
                let child = |(p, n): (&String, &usize)| {
                    split(p).0 == path && what(*n) == What::Dir && !path.is_empty()
                };
                2 + names.iter().filter(|e| child(*e)).count() as u64
            }
            _ => objects[id].1,
        };
        if found[path].nlink != links {
            return Err(format!("/{path}: {} links, not {links}", found[path].nlink));
        }
    }
    Ok(())
}

/// Nothing is left of what has no name any more.
fn counted(fs: &Fs, found: &Tree, hidden: usize) -> Result<(), String> {
    // Older formats keep extended attributes in objects; snapshots keep what was open.
    if fs.zfs.version < 5 || fs.set.ds.is_snapshot() {
        return Ok(());
    }
    let distinct: BTreeSet<u64> = found.values().map(|f| f.object).collect();
    let there = count_objects(fs).map_err(|e| e.to_string())?;
    let expected = hidden + distinct.len();
    match there == expected {
        true => Ok(()),
        false => Err(format!("{there} objects, {expected} expected")),
    }
}

impl Frozen {
    /// Exactly this.
    pub fn judge(&self, fs: &Fs, found: &Tree) -> Result<(), String> {
        shape(found, &self.names, &|id| self.objects[&id].0)?;
        for (path, id) in self.names.iter() {
            let (a, b) = (&found[path].state, &*self.objects[id].1);
            if a != b {
                return Err(format!(
                    "/{path}: {} bytes, mode {:o}, owner {:?}, attributes {:?}; it was {} bytes, \
                     mode {:o}, owner {:?}, {:?}",
                    a.data.len(),
                    a.mode,
                    a.owner,
                    a.xattrs.keys(),
                    b.data.len(),
                    b.mode,
                    b.owner,
                    b.xattrs.keys(),
                ));
            }
        }
        owners::check_limits(fs, &self.limits)?;
        owners::check_used(fs)?;
        counted(fs, found, self.hidden)
    }

    /// Whether both have the same names and files. Objects may have other numbers.
    pub fn is_same(&self, other: &Frozen) -> bool {
        let of = |f: &Frozen, id: usize| f.objects.get(&id).cloned();
        let (mut there, mut back) = (BTreeMap::new(), BTreeMap::new());
        self.names.len() == other.names.len()
            && self.names.iter().zip(other.names.iter()).all(|(a, b)| {
                // Hard links of one are hard links of the other.
                let linked = *there.entry(*a.1).or_insert(*b.1) == *b.1
                    && *back.entry(*b.1).or_insert(*a.1) == *a.1;
                a.0 == b.0 && linked && of(self, *a.1) == of(other, *b.1)
            })
    }

    /// What was found.
    pub fn of(found: &Tree, hidden: usize) -> Frozen {
        let mut ids: BTreeMap<u64, usize> = BTreeMap::new();
        let mut out = Frozen {
            hidden,
            ..Frozen::default()
        };
        let mut names = Names::new();
        for (path, f) in found {
            let next = ids.len();
            let id = *ids.entry(f.object).or_insert(next);
            names.insert(path.clone(), id);
            out.objects
                .entry(id)
                .or_insert_with(|| (f.what, Arc::new(f.state.clone())));
        }
        out.names = Arc::new(names);
        out
    }
}

/// Which file systems, snapshots and properties there are, from one operation on.
#[derive(Clone, Debug, Default)]
pub struct Admin {
    /// The operation, and the position at which it was acknowledged.
    op: usize,
    done: usize,
    /// File systems by name without the pool's: index of the model.
    pub sets: BTreeMap<String, usize>,
    /// By `fs@snapshot`.
    pub snaps: BTreeMap<String, Arc<Frozen>>,
    /// Values set, by file system and property.
    pub props: BTreeMap<(String, String), u64>,
    /// By file system.
    pub limits: BTreeMap<String, Limits>,
    pub rights: Rights,
    /// Origins of clones, `fs@snapshot`.
    pub origins: BTreeMap<String, String>,
    /// Bookmarks, `fs#name`, and the txg they mean.
    pub marks: BTreeMap<String, base::Txg>,
    /// Tags by `fs@snapshot`.
    pub holds: BTreeMap<String, BTreeSet<String>>,
    /// What the checkpoint of the pool leads back to.
    pub checkpoint: Option<Arc<Kept>>,
}

/// A whole pool as it was at one moment.
#[derive(Clone, Debug)]
pub struct Kept {
    /// What there was besides file systems; it has no checkpoint.
    admin: Admin,
    /// By name of the file system.
    sets: Vec<(String, Frozen)>,
}

impl Kept {
    /// The oracle of a pool that is in this state, and has no history.
    pub fn oracle(&self) -> Oracle {
        let model = |(name, frozen): &(String, Frozen)| (name.clone(), FsModel::new(frozen, 0));
        Oracle::adopt(&self.admin, self.sets.iter().map(model).collect())
    }
}

/// What is looked at in an image.
pub struct Seen<'a> {
    pub mounts: &'a BTreeMap<String, Fs>,
    pub trees: &'a BTreeMap<String, Tree>,
    /// Snapshots with a look into them.
    pub snaps: &'a [String],
    /// Bookmarks with their txgs.
    pub marks: BTreeMap<String, base::Txg>,
    /// Tags of held snapshots.
    pub holds: BTreeMap<String, BTreeSet<String>>,
    /// Whether there is a checkpoint.
    pub checkpoint: bool,
    pub look: &'a dyn Fn(&str, &Frozen) -> Result<(), String>,
    pub prop: &'a dyn Fn(&str, &str) -> Result<u64, String>,
    /// Whether a file system has just these permissions.
    pub rights: &'a dyn Fn(&str, &Rights) -> Result<(), String>,
}

/// A whole pool through time.
#[derive(Clone)]
pub struct Oracle {
    pub op: usize,
    begun: Vec<usize>,
    pub models: Vec<FsModel>,
    admin: Vec<Admin>,
    /// What was split off the pool.
    pub half: Option<Arc<SplitOff>>,
}

/// A pool that was split off.
#[derive(Debug)]
pub struct SplitOff {
    /// What it has.
    pub kept: Kept,
    /// Its disks.
    pub disks: Vec<usize>,
}

impl Default for Oracle {
    fn default() -> Oracle {
        Oracle {
            op: 0,
            begun: vec![0],
            models: Vec::new(),
            admin: vec![Admin::default()],
            half: None,
        }
    }
}

impl Oracle {
    /// An operation begins at this position.
    pub fn begin(&mut self, pos: usize) {
        self.op += 1;
        self.begun.push(pos);
    }

    pub fn now(&self) -> &Admin {
        &self.admin[self.admin.len() - 1]
    }

    pub fn fs(&self, name: &str) -> Option<&FsModel> {
        self.models.get(*self.now().sets.get(name)?)
    }

    pub fn fs_mut(&mut self, name: &str) -> Option<&mut FsModel> {
        let id = *self.now().sets.get(name)?;
        self.models.get_mut(id)
    }

    /// Whether there ever was a checkpoint, as far as this goes back.
    pub fn ever_kept(&self) -> bool {
        self.admin.iter().any(|a| a.checkpoint.is_some())
    }

    /// The whole pool as it is now.
    pub fn keep(&self) -> Kept {
        let mut admin = self.now().clone();
        admin.checkpoint = None;
        let frozen = |(name, id): (&String, &usize)| (name.clone(), self.models[*id].freeze());
        Kept {
            sets: admin.sets.iter().map(frozen).collect(),
            admin,
        }
    }

    /// Everything of the pool is on disk.
    pub fn ack_all(&mut self, pos: usize) {
        for m in &mut self.models {
            m.ack(self.op, pos, None);
        }
    }

    /// The operation changed what there is, and that is on disk.
    pub fn administered(&mut self, pos: usize, change: impl FnOnce(&mut Admin, &mut Vec<FsModel>)) {
        let mut next = self.now().clone();
        change(&mut next, &mut self.models);
        (next.op, next.done) = (self.op, pos);
        self.admin.push(next);
        self.ack_all(pos);
    }

    /// How much had happened at `cut`, as far as it matters to what may be there and what must be:
    /// images cut where this is the same are judged by the same rules.
    pub fn era(&self, cut: usize) -> usize {
        let begun = self.begun.iter().filter(|b| **b < cut).count();
        let done = self.admin.iter().filter(|a| a.done <= cut).count();
        let acks = self.models.iter().flat_map(|m| &m.acks);
        begun + done + acks.filter(|a| a.pos <= cut).count()
    }

    /// Number of the last operation that may have reached an image cut at `cut`.
    fn last(&self, cut: usize) -> usize {
        self.begun.partition_point(|b| *b < cut).saturating_sub(1)
    }

    /// Whether an image cut at `cut` may look like this. Gives what it is.
    pub fn judge(&self, seen: &Seen<'_>, cut: usize) -> Result<Admin, String> {
        let last = self.last(cut);
        let must = self.admin.iter().rposition(|a| a.done <= cut).unwrap_or(0);
        let mut why = String::new();
        for a in self.admin[must..]
            .iter()
            .filter(|a| a.op <= last || a.done <= cut)
        {
            match self.judge_as(a, seen, cut, last) {
                Ok(()) => return Ok(a.clone()),
                Err(e) => why = format!("{why}\n  as after operation {}: {e}", a.op),
            }
        }
        Err(format!("cut at event {cut}:{why}"))
    }

    fn judge_as(&self, a: &Admin, seen: &Seen<'_>, cut: usize, last: usize) -> Result<(), String> {
        let (there, must): (Vec<_>, Vec<_>) =
            (seen.mounts.keys().collect(), a.sets.keys().collect());
        if there != must {
            return Err(format!("file systems {there:?} instead of {must:?}"));
        }
        let (there, must): (BTreeSet<_>, BTreeSet<_>) =
            (seen.snaps.iter().collect(), a.snaps.keys().collect());
        if there != must {
            return Err(format!("snapshots {there:?} instead of {must:?}"));
        }
        if seen.marks != a.marks {
            return Err(format!(
                "bookmarks {:?} instead of {:?}",
                seen.marks, a.marks
            ));
        }
        let mut held = a.holds.clone();
        held.retain(|_, tags| !tags.is_empty());
        if seen.holds != held {
            return Err(format!("holds {:?} instead of {held:?}", seen.holds));
        }
        if seen.checkpoint != a.checkpoint.is_some() {
            return Err(format!("a checkpoint: {}", seen.checkpoint));
        }
        for ((fs, prop), value) in &a.props {
            let is = (seen.prop)(fs, prop)?;
            if is != *value {
                return Err(format!("{prop} of '{fs}' is {is} instead of {value}"));
            }
        }
        for name in a.sets.keys() {
            (seen.rights)(name, &a.rights)?;
        }
        for (name, id) in &a.sets {
            self.models[*id]
                .judge(&seen.mounts[name], &seen.trees[name], cut, last)
                .map_err(|e| format!("file system '{name}': {e}"))?;
            let none = Limits::new();
            let limits = a.limits.get(name).unwrap_or(&none);
            owners::check_limits(&seen.mounts[name], limits)
                .map_err(|e| format!("file system '{name}': {e}"))?;
        }
        for (name, frozen) in &a.snaps {
            (seen.look)(name, frozen).map_err(|e| format!("snapshot {name}: {e}"))?;
        }
        Ok(())
    }

    /// Whether even the making of the pool was not acknowledged.
    pub fn nothing_promised(&self, cut: usize) -> bool {
        let known = self.admin.iter().rev().find(|a| a.done <= cut);
        known.is_none_or(|a| a.sets.is_empty())
    }

    /// The last operation was begun, and never acknowledged; with `before` all that came before it is
    /// acknowledged by now.
    pub fn take_back(&mut self, before: bool) {
        let op = self.op;
        for m in &mut self.models {
            m.acks.retain(|a| a.op != op);
            if before {
                m.ack(op.saturating_sub(1), 0, None);
            }
        }
        for a in self.admin.iter_mut().filter(|a| a.op == op && op > 0) {
            a.done = usize::MAX;
        }
    }

    /// What was found is what there is from now on, and time begins anew.
    pub fn adopt(found: &Admin, models: Vec<(String, FsModel)>) -> Oracle {
        let mut out = Oracle::default();
        let mut admin = found.clone();
        (admin.op, admin.done) = (0, 0);
        admin.sets.clear();
        for (name, model) in models {
            admin.sets.insert(name, out.models.len());
            out.models.push(model);
        }
        out.admin = vec![admin];
        out
    }

    /// The same, as if everything had happened before the journal began.
    pub fn restart(&mut self) {
        let mut admin = self.now().clone();
        (admin.op, admin.done) = (0, 0);
        let mut models = Vec::new();
        for id in admin.sets.values_mut() {
            models.push(FsModel::new(&self.models[*id].freeze(), 0));
            *id = models.len() - 1;
        }
        *self = Oracle {
            models,
            admin: vec![admin],
            half: self.half.take(),
            ..Oracle::default()
        };
    }

    /// Positions of acknowledgements.
    pub fn ack_positions(&self) -> BTreeSet<usize> {
        let acks = self.models.iter().flat_map(|m| &m.acks);
        acks.map(|a| a.pos).collect()
    }
}
