//! `zfs destroy`: file systems, volumes, snapshots and bookmarks.

use crate::cancel;
use crate::datasets::mount::Early;
use crate::datasets::rights::{self, Action};
use crate::datasets::{self, mount, objsets, protect, Answer};
use crate::errors;
use crate::mounts::Mounted;
use crate::rations::{self, Share};
use crate::registry::{Admin, PoolEntry};
use api::{ApiError, DatasetDestroy, DatasetKind, Destroyed, Peer};
use base::mutation::{mutated, Mutation};
use base::{Error, Kind, Result};
use dmu::Tx;
use dsl::{Caller, Dataset, Dir, SnapshotEntry};
use pool::Pool;
use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;

/// How many are destroyed in one txg: others wait for it.
const BATCH: usize = 100;

/// What is done in the same txg, once everything is destroyed.
pub(crate) type Then = Box<dyn FnOnce(&Pool, &Tx) -> Result<()> + Send>;

/// How far a request to destroy something goes.
enum Phase<'a, 'b> {
    /// Everything that can refuse it is asked; what is mounted of it is told.
    Look(&'a mut Vec<Arc<Mounted>>),
    /// It is carried out. What was mounted has been taken away as far as it was known; directories that nobody needs any more
    /// are told, to be removed with no lock held.
    Do(&'a mut Early<'b>, &'a mut Vec<PathBuf>),
}

/// One dataset to be destroyed. There may be a hundred thousand: none is in memory for that.
#[derive(Clone)]
struct Step {
    name: String,
    object: u64,
    /// Of a snapshot: its file system or volume, and what that lists.
    snapshot: Option<(Arc<Dataset>, SnapshotEntry)>,
}

impl Step {
    /// Errors: `Kind::NotFound`.
    fn load(&self, pool: &Pool) -> Result<Arc<Dataset>> {
        match &self.snapshot {
            Some((head, e)) => head.named_snapshot(e),
            None => pool.dataset_by_object(self.object),
        }
    }

    /// Whether it went with another step: a snapshot marked for later goes with its last clone.
    fn has_gone(&self) -> Result<bool> {
        match &self.snapshot {
            Some((head, e)) => Ok(head.snapshot_named(&e.name)?.is_none()),
            None => Ok(false),
        }
    }

    fn is_head(&self) -> bool {
        self.snapshot.is_none()
    }
}

/// Everything to be destroyed, in an order in which it can be.
struct Plan<'a> {
    entry: &'a PoolEntry,
    /// The file system or volume the command names: clones below it go with it. `None` if it names
    /// snapshots, which take no clones along.
    top: Option<&'a str>,
    dependents: bool,
    steps: Vec<Step>,
    share: Share,
    seen: HashSet<u64>,
    /// Those whose dependents are being collected.
    open: HashSet<u64>,
    /// One that depends on itself: a clone with its own origin below it.
    circle: Option<String>,
    /// Clones elsewhere that stand in the way, and the first snapshot that has some.
    blocked: Vec<Arc<Dir>>,
    blocked_at: Option<String>,
    /// What stays because it is damaged, or because something stays that belongs to it, and why.
    lost: Vec<(String, ApiError)>,
    /// Objects of these.
    stays: HashSet<u64>,
    /// Who must have the permission to destroy each step, before anything below it is looked at. `None`: nobody is refused.
    who: Option<Caller>,
    /// Why collecting ended, where that is not an error of the pool.
    ended: Option<ApiError>,
}

impl Plan<'_> {
    /// Refuses to leave clones elsewhere without their origin. The sentence is about `object`, a name and a word for its kind,
    /// or about the first snapshot that has clones.
    fn need_no_clones(&self, object: Option<(&str, &str)>) -> Answer<()> {
        let Some(at) = &self.blocked_at else {
            return Ok(());
        };
        let names = dependents(self.entry, &self.blocked).map_err(errors::answer)?;
        let (object, kind) = object.unwrap_or((at.as_str(), "snapshot"));
        Err(ApiError::sentence(
            Kind::Exists,
            format!("cannot destroy '{object}': {kind} has dependent clones"),
        )
        .hint(format!(
            "use '-R' to destroy the following datasets:\n{}",
            names.join("\n")
        )))
    }

    /// Asks whether a dataset may go, and whether the command is still there: with the names of the pool locked, nothing is
    /// collected for callers who have no permission for it.
    fn ask(&mut self, ds: &Dataset) -> Result<()> {
        let may = cancel::check().and_then(|()| match &self.who {
            Some(who) => rights::permitted(who, Action::Destroy, ds),
            None => Ok(()),
        });
        may.map_err(|e| {
            let kind = Kind::from_errno(e.code);
            self.ended = Some(e);
            kind.into()
        })
    }

    /// The same of all snapshots of a head, before they are listed: what holds for one of them holds for all.
    fn ask_last(&mut self, head: &Dataset) -> Result<()> {
        if self.who.is_none() {
            return Ok(());
        }
        match head.prev()? {
            Some(last) if last.dir().object() == head.dir().object() => self.ask(&last),
            _ => Ok(()),
        }
    }

    /// An error of [`Plan::tree`] or [`Plan::snapshot`], about `name`.
    fn failed(&mut self, e: Error, name: &str) -> ApiError {
        let ended = self.ended.take();
        ended.unwrap_or_else(|| datasets::plain(e, name))
    }

    /// A directory with everything below it: children, clones of its snapshots, its snapshots,
    /// itself. The root of a pool stays. False: it stays, since not all that belongs to it is known or can go. Nobody
    /// could free that any more.
    fn tree(&mut self, dir: &Arc<Dir>) -> Result<bool> {
        let name = dir.full_name();
        let head = match dir.head() {
            Err(e) if datasets::is_lost(&e) => {
                self.damaged(&name, &e);
                return Ok(false);
            }
            head => head?,
        };
        let object = head.object();
        if !self.enter(object, || name.clone()) {
            return Ok(!self.stays.contains(&object));
        }
        if dir.parent().is_some() {
            self.ask(&head)?;
        }
        let known = self.lost.len();
        let children = dir.children_past(&mut |name, e| match datasets::is_lost(&e) {
            true => {
                self.damaged(name, &e);
                Ok(())
            }
            false => Err(e),
        })?;
        let mut whole = true;
        for c in children {
            whole &= self.tree(&c)?;
        }
        match head.snapshot_list() {
            Err(e) if datasets::is_lost(&e) => self.damaged(&name, &e),
            list => {
                for e in list? {
                    whole &= self.snapshot(&name, &head, e)?;
                }
            }
        }
        self.open.remove(&object);
        if whole && self.lost.len() == known {
            if dir.parent().is_some() {
                self.steps.push(Step {
                    name,
                    object,
                    snapshot: None,
                });
                self.share.take(rations::ITEM)?;
                rights::bounded(self.steps.len())?;
            }
            return Ok(true);
        }
        self.kept(object, &name);
        Ok(false)
    }

    fn damaged(&mut self, name: &str, e: &base::Error) {
        let why = format!(
            "it is damaged and stays, since what belongs to it would stay allocated for good: {e}"
        );
        self.lost
            .push((name.to_string(), ApiError::reason(e.kind, why)));
    }

    /// Notes that something stays, unless it is known why.
    fn kept(&mut self, object: u64, name: &str) {
        self.stays.insert(object);
        let root = !name.contains(['/', '@']);
        if !root && !self.lost.iter().any(|(n, _)| n == name) {
            let why = "something that belongs to it stays";
            self.lost
                .push((name.to_string(), ApiError::reason(Kind::Busy, why)));
        }
    }

    /// Whether its dependents are to be collected: only the first time that it is met.
    fn enter(&mut self, object: u64, name: impl FnOnce() -> String) -> bool {
        let first = self.seen.insert(object);
        if first {
            self.open.insert(object);
        } else if self.open.contains(&object) && self.circle.is_none() {
            self.circle = Some(name());
        }
        first
    }

    /// Refuses what cannot be brought into an order.
    fn need_order(&self) -> Answer<()> {
        match &self.circle {
            None => Ok(()),
            Some(at) => Err(ApiError::sentence(
                Kind::Exists,
                format!("cannot determine dependent datasets: recursive dependency at '{at}'"),
            )
            .hint("use 'zfs promote' on the clone that has its own origin below it")),
        }
    }

    /// A snapshot of `head`, which is called `fs`, with its clones.
    fn snapshot(&mut self, fs: &str, head: &Arc<Dataset>, e: SnapshotEntry) -> Result<bool> {
        let name = format!("{fs}@{}", e.name);
        if !self.enter(e.object, || name.clone()) {
            return Ok(!self.stays.contains(&e.object));
        }
        let clones = head.named_snapshot(&e).and_then(|ds| {
            self.ask(&ds)?;
            datasets::clones(self.entry, &ds)
        });
        let clones = match clones {
            Err(why) if datasets::is_lost(&why) => {
                self.open.remove(&e.object);
                self.damaged(&name, &why);
                self.kept(e.object, &name);
                return Ok(false);
            }
            clones => clones?,
        };
        let mut whole = true;
        for clone in clones {
            let full = clone.full_name();
            let along = self.dependents || mutated(Mutation::DestroyTakesClones);
            if along || self.top.is_some_and(|t| datasets::is_below(&full, t)) {
                whole &= self.tree(&clone)?;
            } else {
                self.blocked.push(clone);
                self.blocked_at.get_or_insert_with(|| name.clone());
            }
        }
        self.open.remove(&e.object);
        if !whole {
            self.kept(e.object, &name);
            return Ok(false);
        }
        self.steps.push(Step {
            name,
            object: e.object,
            snapshot: Some((head.clone(), e)),
        });
        self.share.take(rations::ITEM)?;
        rights::bounded(self.steps.len())?;
        Ok(true)
    }

    /// Takes out what stays, and why. An error if nothing else is left, or if all of it is to go or nothing.
    fn take_lost(&mut self, together: bool) -> Answer<Vec<(String, ApiError)>> {
        let lost = std::mem::take(&mut self.lost);
        match lost.first() {
            Some((name, e)) if together || self.steps.is_empty() => Err(ApiError::sentence(
                Kind::Damaged,
                e.sentence_for("destroy", name),
            )),
            _ => Ok(lost),
        }
    }
}

/// Everything that goes with these clones, in the order in which it would go.
pub(crate) fn dependents(entry: &PoolEntry, clones: &[Arc<Dir>]) -> Result<Vec<String>> {
    let mut plan = new_plan(entry, None, true, None);
    let mut clones = clones.to_vec();
    clones.sort_by_key(|c| c.full_name());
    for clone in clones {
        plan.tree(&clone)?;
    }
    Ok(plan.steps.into_iter().map(|s| s.name).collect())
}

/// `zfs destroy`
pub fn destroy(admin: &Arc<Admin>, peer: Peer, r: &DatasetDestroy) -> Answer<Destroyed> {
    let of = r.name.split(['@', '#']).next().unwrap_or_default();
    let entry = datasets::entry_of(admin, of)?;
    if r.force && !r.dry_run && of == r.name && rights::is_owner(admin, peer) {
        datasets::end_streams(&entry, of);
    }
    // Of snapshots nothing is mounted as a rule, and there may be very many of them.
    let heads = !r.name.contains('@') || r.dependents;
    let mut early = match r.dry_run || r.name.contains('#') || !heads {
        true => Early::none(admin, &entry),
        false => Early::take_down(admin, &entry, r.force, || {
            datasets::need_writable(&entry)?;
            let mut mounts = Vec::new();
            one(admin, &entry, peer, r, Phase::Look(&mut mounts))?;
            Ok(mounts)
        })
        .map_err(busy)?,
    };
    let mut unused = Vec::new();
    let done = {
        let _gate = entry.pass_unless_cancelled().map_err(errors::answer)?;
        datasets::need_writable(&entry)?;
        let _names = entry.names.write_unless_cancelled()?;
        match r.name.split_once('#') {
            Some((fs, mark)) => destroy_bookmark(admin, &entry, peer, r, fs, mark),
            None => {
                let phase = Phase::Do(&mut early, &mut unused);
                one(admin, &entry, peer, r, phase)
            }
        }
    };
    admin.door.remove_dirs(unused);
    done
}

fn one(
    admin: &Arc<Admin>,
    entry: &Arc<PoolEntry>,
    peer: Peer,
    r: &DatasetDestroy,
    phase: Phase<'_, '_>,
) -> Answer<Destroyed> {
    match r.name.split_once('@') {
        None => destroy_head(admin, entry, peer, r, phase),
        Some((fs, spec)) => {
            let at = (fs, spec, r.recursive || r.dependents);
            snapshots(admin, entry, peer, r, at, (None, phase))
        }
    }
}

/// What is said of a mount that is in use.
fn busy(e: ApiError) -> ApiError {
    if e.code != Kind::Busy.errno() {
        return e;
    }
    let busy = ApiError::reason(Kind::Busy, "dataset is busy");
    match e.message.split_once('\n') {
        Some((_, by)) => busy.hint(by),
        None => busy,
    }
}

fn destroy_bookmark(
    admin: &Admin,
    entry: &PoolEntry,
    peer: Peer,
    r: &DatasetDestroy,
    fs: &str,
    mark: &str,
) -> Answer<Destroyed> {
    let head = datasets::find(entry, fs)?;
    let plain = |e| datasets::plain(e, fs);
    if head.bookmark(mark).map_err(plain)?.is_none() {
        return Err(ApiError::sentence(
            Kind::NotFound,
            format!("bookmark '{}' does not exist.", r.name),
        ));
    }
    let answer = Destroyed {
        names: vec![r.name.clone()],
        ..Destroyed::default()
    };
    if r.dry_run {
        return Ok(answer);
    }
    rights::require(admin, entry, peer, Action::DestroyBookmark, &head)?;
    let (mark, command) = (mark.to_string(), r.command.clone());
    let uid = u64::from(peer.uid);
    entry
        .pool
        .task(move |pool, tx| {
            pool.dsl().destroy_bookmark(tx, &head, &mark)?;
            pool.log_in(tx, &command, uid)
        })
        .map_err(plain)?;
    Ok(answer)
}

fn new_plan<'a>(
    entry: &'a PoolEntry,
    top: Option<&'a str>,
    dependents: bool,
    who: Option<Caller>,
) -> Plan<'a> {
    Plan {
        who,
        ended: None,
        entry,
        top,
        dependents,
        steps: Vec::new(),
        share: Share::new(),
        seen: HashSet::new(),
        open: HashSet::new(),
        circle: None,
        blocked: Vec::new(),
        blocked_at: None,
        lost: Vec::new(),
        stays: HashSet::new(),
    }
}

fn destroy_head(
    admin: &Arc<Admin>,
    entry: &Arc<PoolEntry>,
    peer: Peer,
    r: &DatasetDestroy,
    phase: Phase<'_, '_>,
) -> Answer<Destroyed> {
    let ds = datasets::find(entry, &r.name)?;
    let recursive = r.recursive || r.dependents;
    if ds.dir().parent().is_none() && !recursive {
        return Err(
            ApiError::reason(Kind::Invalid, "operation does not apply to pools").hint(format!(
                "use 'zfs destroy -r {0}' to destroy all datasets in the pool\n\
                 use 'zpool destroy {0}' to destroy the pool itself",
                r.name
            )),
        );
    }
    let who = rights::asked(admin, entry, peer)?;
    let mut plan = new_plan(entry, Some(&r.name), r.dependents, who);
    if let Err(e) = plan.tree(&ds.dir()) {
        return Err(plan.failed(e, &r.name));
    }
    // In the order in which they would go.
    let others: Vec<&str> = plan
        .steps
        .iter()
        .map(|s| s.name.as_str())
        .filter(|n| *n != r.name)
        .collect();
    let kind = match datasets::kind_of(entry, &ds) {
        DatasetKind::Volume => "volume",
        _ => "filesystem",
    };
    if !recursive && !others.is_empty() {
        return Err(
            ApiError::reason(Kind::Exists, format!("{kind} has children")).hint(format!(
                "use '-r' to destroy the following datasets:\n{}",
                others.join("\n")
            )),
        );
    }
    plan.need_no_clones(Some((&r.name, kind)))?;
    plan.need_order()?;
    let lost = plan.take_lost(false)?;
    let steps = std::mem::take(&mut plan.steps);
    held(entry, &steps)?;
    let mut done = carry_out(admin, entry, peer, r, steps, (None, None, phase))?;
    done.failed.extend(lost);
    Ok(done)
}

/// Snapshots with holds stay; each of them is named.
fn held(entry: &PoolEntry, steps: &[Step]) -> Answer<()> {
    let mut lines = Vec::new();
    for s in steps.iter().filter(|s| !s.is_head()) {
        cancel::check()?;
        let holds = s.load(&entry.pool).and_then(|ds| ds.holds());
        if holds.map_err(errors::answer)? > 0 {
            lines.push(format!(
                "cannot destroy snapshot {0}: it's being held. Run 'zfs holds -r {0}' to see holders.",
                s.name
            ));
        }
    }
    match lines.is_empty() {
        true => Ok(()),
        false => Err(ApiError::sentence(Kind::Busy, lines.join("\n"))),
    }
}

/// Destroys the snapshots `spec` of `fs`; with `below` also those of the same names of the file systems and volumes
/// below it. With `then`, everything is destroyed in one txg, which `then` goes on with: all of it is on disk, or nothing.
pub(crate) fn destroy_snapshots(
    admin: &Arc<Admin>,
    entry: &Arc<PoolEntry>,
    peer: Peer,
    r: &DatasetDestroy,
    at: (&str, &str, bool),
    then: Option<Then>,
) -> Answer<Destroyed> {
    let mut unused = Vec::new();
    let mut early = Early::none(admin, entry);
    let phase = Phase::Do(&mut early, &mut unused);
    let done = snapshots(admin, entry, peer, r, at, (then, phase));
    admin.door.remove_dirs(unused);
    done
}

fn snapshots(
    admin: &Arc<Admin>,
    entry: &Arc<PoolEntry>,
    peer: Peer,
    r: &DatasetDestroy,
    (fs, spec, below): (&str, &str, bool),
    (then, phase): (Option<Then>, Phase<'_, '_>),
) -> Answer<Destroyed> {
    let top = datasets::find(entry, fs)?;
    let who = rights::asked(admin, entry, peer)?;
    let mut plan = new_plan(entry, None, r.dependents, who);
    if let Err(e) = plan.ask_last(&top) {
        return Err(plan.failed(e, fs));
    }
    let heads = match below {
        true => {
            let probe = |head: &Arc<Dataset>| listed(head, spec).map(|_| ());
            let found = datasets::sound_subtree(&top.dir(), &probe);
            let (heads, lost) = found.map_err(|e| datasets::plain(e, fs))?;
            for (name, e) in lost {
                let why =
                    format!("it is damaged, and snapshots of it or of what is below it stay: {e}");
                plan.lost.push((name, ApiError::reason(e.kind, why)));
            }
            heads
        }
        false => vec![top.clone()],
    };
    // What comes free is counted where it is asked for: the lists of all that come after have to be read.
    let mut reclaim = 0u64;
    for head in heads {
        let name = head.full_name();
        let list = plan.ask_last(&head).and_then(|()| listed(&head, spec));
        let list = list.map_err(|e| plan.failed(e, fs))?;
        let chosen = choose(&list, spec);
        let chosen = chosen.into_iter().map(|i| &list[i]);
        for e in chosen.clone() {
            if let Err(e) = plan.snapshot(&name, &head, e.clone()) {
                return Err(plan.failed(e, fs));
            }
        }
        if r.reclaim {
            reclaim = reclaim.saturating_add(reclaimed(&head, chosen).unwrap_or(0));
            cancel::check()?;
        }
    }
    let lost = plan.take_lost(then.is_some())?;
    if plan.steps.is_empty() {
        return Err(ApiError::sentence(
            Kind::NotFound,
            "could not find any snapshots to destroy; check snapshot names.",
        ));
    }
    plan.need_order()?;
    if !r.defer {
        plan.need_no_clones(None)?;
        held(entry, &plan.steps)?;
    }
    let steps = std::mem::take(&mut plan.steps);
    let reclaim = r.reclaim.then_some(reclaim);
    let mut done = carry_out(admin, entry, peer, r, steps, (reclaim, then, phase))?;
    done.failed.extend(lost);
    Ok(done)
}

/// The snapshots of a head of which `spec` may mean some, oldest first: all of them, if there is a range in it.
fn listed(head: &Dataset, spec: &str) -> Result<Vec<SnapshotEntry>> {
    if spec.contains('%') {
        return head.snapshot_list();
    }
    let mut out = Vec::new();
    for name in spec.split(',').filter(|n| n.len() <= disk::names::MAX_NAME) {
        if let Some(ds) = head.snapshot_named(name)? {
            out.push(SnapshotEntry {
                // As it is stored: in some file systems case does not matter.
                name: ds.snap_name()?.unwrap_or_default(),
                object: ds.object(),
                creation_txg: ds.phys().creation_txg,
            });
        }
    }
    out.sort_by_key(|e| e.creation_txg);
    out.dedup_by_key(|e| e.object);
    Ok(out)
}

/// Bytes that come free with these snapshots of a head, oldest first: neighbours with what only they share.
fn reclaimed<'a>(head: &Dataset, list: impl Iterator<Item = &'a SnapshotEntry>) -> Result<u64> {
    let mut sum = 0u64;
    // First and last of a run of neighbours.
    let mut run: Option<(Arc<Dataset>, Arc<Dataset>)> = None;
    for e in list {
        if cancel::is_cancelled() {
            return Err(Kind::Interrupted.into());
        }
        let ds = head.listed_snapshot(e)?;
        run = match run {
            Some((first, last)) if last.phys().next_snap_obj == e.object => Some((first, ds)),
            over => {
                if let Some((first, last)) = over {
                    sum = sum.saturating_add(first.would_free(&last)?);
                }
                Some((ds.clone(), ds))
            }
        };
    }
    if let Some((first, last)) = run {
        sum = sum.saturating_add(first.would_free(&last)?);
    }
    Ok(sum)
}

/// Which snapshots of a list, oldest first, `a%b,c` means: what is there of it. A range one end of which is not there, or
/// that ends before it begins, has nothing in it.
fn choose(list: &[SnapshotEntry], spec: &str) -> Vec<usize> {
    let by_name: HashMap<&str, usize> = list
        .iter()
        .enumerate()
        .map(|(i, e)| (e.name.as_str(), i))
        .collect();
    let at = |name: &str| by_name.get(name).copied();
    let mut out = Vec::new();
    for part in spec.split(',') {
        match part.split_once('%') {
            None => out.extend(at(part)),
            Some((from, to)) => {
                let first = if from.is_empty() { Some(0) } else { at(from) };
                let last = if to.is_empty() {
                    list.len().checked_sub(1)
                } else {
                    at(to)
                };
                if let (Some(first), Some(last)) = (first, last) {
                    out.extend(first..=last);
                }
            }
        }
    }
    out.sort_unstable();
    out.dedup();
    out
}

fn carry_out(
    admin: &Arc<Admin>,
    entry: &Arc<PoolEntry>,
    peer: Peer,
    r: &DatasetDestroy,
    steps: Vec<Step>,
    (reclaim, mut then, phase): (Option<u64>, Option<Then>, Phase<'_, '_>),
) -> Answer<Destroyed> {
    let load = |s: &Step| s.load(&entry.pool).map_err(|e| datasets::plain(e, &s.name));
    if !r.protected {
        let list = steps.iter().map(|s| Ok((s.name.as_str(), load(s)?)));
        protect::refuse("destroy", list)?;
    }
    let names: Vec<String> = steps.iter().map(|s| s.name.clone()).collect();
    let mut answer = Destroyed {
        names,
        reclaim,
        failed: Vec::new(),
    };
    if r.dry_run {
        return Ok(answer);
    }
    rights::require_each(admin, entry, peer, Action::Destroy, steps.iter().map(load))?;
    let filled = |s: &Step| {
        let part = || s.load(&entry.pool).and_then(|ds| ds.receiving());
        entry.streams.is_busy(s.object)
            || s.is_head()
                && matches!(part(), Ok(Some(part)) if entry.streams.is_busy(part.object()))
    };
    if let Some(s) = steps.iter().find(|s| filled(s)) {
        return Err(ApiError::sentence(
            Kind::Busy,
            format!(
                "cannot destroy '{}': dataset is busy: a stream is being received",
                s.name
            ),
        ));
    }
    let uid = u64::from(peer.uid);
    let mut mounts: Vec<_> = steps
        .iter()
        .filter_map(|s| entry.mounted(s.object))
        .collect();
    mounts.sort_by_key(|m| m.sequence);
    let (early, unused) = match phase {
        Phase::Look(out) => {
            *out = mounts;
            return Ok(answer);
        }
        Phase::Do(early, unused) => (early, unused),
    };
    let doomed = |object| steps.iter().any(|s| s.object == object);
    entry.volumes.let_go(&doomed, r.force)?;
    let down = mount::take_down(admin, entry, &mounts, r.force).map_err(busy)?;
    let down = early.with(down);
    for s in steps.iter().filter(|s| s.is_head()) {
        if let Err(e) = s.load(&entry.pool).and_then(|ds| free_log(entry, &ds)) {
            mount::restore(admin, entry, &down);
            return Err(datasets::plain(e, &s.name));
        }
    }
    let places = unused_places(admin, entry, &steps, &down);
    let batch = match then {
        Some(_) => steps.len(),
        None => BATCH,
    };
    let (mut done, mut error) = (0, None);
    while done < steps.len() && error.is_none() {
        let part: Vec<Step> = steps[done..].iter().take(batch).cloned().collect();
        let last = done + part.len() == steps.len();
        let command = if last {
            r.command.clone()
        } else {
            String::new()
        };
        let defer = r.defer;
        let mut objects: Vec<u64> = part.iter().map(|s| s.object).collect();
        // A deferred origin goes with its last clone.
        for s in part.iter().filter(|s| s.is_head()) {
            objects.extend(s.load(&entry.pool).map(|ds| ds.dir().phys().origin_obj));
        }
        // Who looks in between opens it again; what is read then fails, or is right.
        let close = || objects.iter().for_each(|o| entry.close_in_ctldirs(*o));
        close();
        let then = then.take();
        let ended = entry.pool.task(move |pool, tx| {
            let (n, e) = run(pool, tx, &part, defer, &command, uid)?;
            if let (None, Some(then)) = (&e, then) {
                then(pool, tx)?;
            }
            Ok((n, e))
        });
        close();
        match ended {
            Ok((n, e)) => {
                done += n;
                error = e;
            }
            Err(e) => error = Some(e),
        }
    }
    let gone = places.into_iter().filter(|(n, _)| *n < done);
    unused.extend(gone.map(|(_, path)| path));
    if let Some(e) = error {
        let left: HashSet<u64> = steps[done..].iter().map(|s| s.object).collect();
        let down: Vec<_> = down
            .into_iter()
            .filter(|m| left.contains(&m.object))
            .collect();
        mount::restore(admin, entry, &down);
        let name = answer.names[done].clone();
        let e = datasets::plain(e, &name);
        if done == 0 {
            return Err(e);
        }
        answer.names.truncate(done);
        answer.failed.push((name, e));
    }
    Ok(answer)
}

/// The directories of file systems that are not mounted, with the number of their step: those that nobody chose. An
/// earlier mount may have left them.
fn unused_places(
    admin: &Admin,
    entry: &PoolEntry,
    steps: &[Step],
    down: &[Arc<Mounted>],
) -> Vec<(usize, PathBuf)> {
    let place = |s: &Step| {
        if !s.is_head() || down.iter().any(|m| m.object == s.object) {
            return None;
        }
        let ds = s.load(&entry.pool).ok()?;
        let place = admin.mountpoint(entry, &ds).ok()??;
        (!place.local).then_some(place.path)
    };
    let all = steps.iter().enumerate();
    all.filter_map(|(n, s)| Some((n, place(s)?))).collect()
}

/// All steps in one txg, as far as they succeed.
fn run(
    pool: &Pool,
    tx: &Tx,
    steps: &[Step],
    defer: bool,
    command: &str,
    uid: u64,
) -> Result<(usize, Option<base::Error>)> {
    let boot = pool
        .stored_props()?
        .into_iter()
        .find_map(|(n, v)| (n == "bootfs").then(|| v.int()).flatten());
    for (i, s) in steps.iter().enumerate() {
        if i + 1 == steps.len() && mutated(Mutation::DestroyForgets) {
            break;
        }
        let destroy = || {
            if s.has_gone()? {
                return Ok(());
            }
            let ds = s.load(pool)?;
            match (s.is_head(), defer) {
                (false, false) => pool.dsl().destroy_snapshot(tx, &ds),
                (false, true) => pool.dsl().destroy_snapshot_deferred(tx, &ds),
                (true, _) => pool.dsl().destroy_head(tx, &ds),
            }
        };
        if let Err(e) = destroy() {
            return Ok((i, Some(e)));
        }
        if boot == Some(s.object) {
            pool.store_prop(tx, "bootfs", None)?;
        }
    }
    let snaps: Vec<String> = steps
        .iter()
        .filter(|s| !s.is_head())
        .map(|s| s.name.clone())
        .collect();
    if !snaps.is_empty() {
        pool.log_request(tx, "destroy_snaps", datasets::name_list("snaps", snaps))?;
    }
    pool.log_in(tx, command, uid)?;
    Ok((steps.len(), None))
}

/// Frees the blocks of an intent log left behind by a crash, which is not replayed any more.
pub(crate) fn free_log(entry: &PoolEntry, ds: &Arc<Dataset>) -> Result<()> {
    if ds.phys().bp.is_hole() {
        return Ok(());
    }
    let header = match objsets::look_into(entry, ds) {
        Ok(os) => os.zil_header(),
        // What cannot be read has no log that could be found.
        Err(_) => return Ok(()),
    };
    if header.iter().all(|b| *b == 0) {
        return Ok(());
    }
    let set = entry.pool.open_dataset(ds)?;
    let r = (|| {
        if let Some(zil) = set.zil() {
            zil.destroy()?;
            entry.pool.sync()?;
        }
        Ok(())
    })();
    drop(set);
    entry.pool.close_dataset(ds.object());
    r
}
