//! Receiving a package: the streams of a tree, and the list of what else to do (data format §30.5).

use super::arrange::{self, Fate, Item, Step};
use super::one;
use super::target::Extra;
use super::{list_of, sent_name, words, Run};
use crate::cancel;
use crate::datasets::rights::{self, Action};
use crate::datasets::{self, destroy, rename, set, snapshots, Answer};
use crate::errors;
use crate::registry::PoolEntry;
use crate::setters;
use api::{DatasetDestroy, NameBy};
use base::{Kind, Result};
use disk::stream::{Begin, HeaderType, Record};
use disk::NvList;
use dsl::Dataset;
use std::collections::{HashMap, HashSet};
use std::io::Read;
use std::sync::Arc;
use stream::{FileSystem, Package, Reader};

/// Operations for each local file system and snapshot, at most: names are exchanged by way of a third.
const EACH: usize = 4;

/// Receives a package of which the first BEGIN was read.
pub fn receive<R: Read>(
    run: &mut Run,
    reader: &mut Reader<R>,
    begin: &Begin,
    payload: &[u8],
) -> Answer<()> {
    let bad = |e| words::stream("cannot receive", &e);
    let list = match payload.is_empty() {
        true => NvList::new(),
        false => NvList::unpack(payload).map_err(bad)?,
    };
    let package = Package::from_list(&list).map_err(bad)?;
    let sent = String::from_utf8_lossy(&begin.to_name).into_owned();
    let top = sent
        .split(['@', '#'])
        .next()
        .unwrap_or_default()
        .to_string();
    let to = top_target(run, &top)?;
    match reader.next().map_err(bad)? {
        Some(item) if matches!(item.record, Record::End(_)) => {}
        _ => {
            return Err(words::plain(
                Kind::Invalid,
                "invalid stream (no END of its list)",
            ))
        }
    }
    let replicates = !package.not_recursive && package.from_snap.is_some();
    if replicates && !run.r.dry_run && !run.r.corrective {
        replicate(run, &package, &to)?;
    }
    let index = Index::new(&package);
    while let Some(item) = reader.next().map_err(bad)? {
        let b = match &item.record {
            Record::Begin(b) if b.header_type == HeaderType::Substream => b.clone(),
            // The END of the package.
            Record::End(_) => continue,
            _ => {
                return Err(words::plain(
                    Kind::Invalid,
                    "invalid stream (bad record type)",
                ))
            }
        };
        let list = list_of(&item.payload)?;
        let (fs, snap) = sent_name(&b)?;
        let found = index.file_system(b.to_guid);
        let below = fs.strip_prefix(&top).unwrap_or_default();
        let single = run.r.target.contains('@').then(|| run.r.target.clone());
        let target = match single {
            Some(t) if below.is_empty() => t,
            _ => format!("{to}{below}@{snap}"),
        };
        let extra = Extra {
            recursive: !package.not_recursive,
            is_below: !below.is_empty(),
            props: found.and_then(|f| f.props.clone()),
            snap_props: found.and_then(|f| {
                let all = f.snap_props.as_ref()?;
                index.named(all, b.to_guid, &snap).cloned()
            }),
            holds: found
                .and_then(|f| {
                    let all = f.snap_holds.as_ref()?;
                    let tags = index.named(all, b.to_guid, &snap)?;
                    Some(tags.iter().map(|(t, _)| t.clone()).collect())
                })
                .unwrap_or_default(),
            target: Some(target),
        };
        let location = extra.props.as_ref().and_then(set::received_location);
        let done = one::receive(run, reader, &b, &list, Some(extra))?;
        let root = found.map(|f| f.is_encryption_root);
        let raw = list.crypt_keydata.is_some();
        match (done, root) {
            // The top of what was sent keeps its own key, wherever it goes.
            (Some(done), Some(root)) if raw && (root || !below.is_empty()) => {
                follow_root(run, &done, root, location)?
            }
            _ => {}
        }
    }
    Ok(())
}

/// A file system received raw is an encryption root, or uses the key of its parent's root, as on the sending side, if
/// it can. `location`: where the sender has the key of a root. Who may not change the key of one that was there before leaves
/// it as it is.
fn follow_root(
    run: &mut Run,
    done: &one::Done,
    is_root: bool,
    location: Option<String>,
) -> Answer<()> {
    let name = &done.name;
    let entry = datasets::entry_of(run.admin, name)?;
    let _gate = entry.pass().map_err(errors::answer)?;
    let _names = entry.names.write();
    let ds = datasets::find(&entry, name)?;
    // Another one may have the name by now.
    if ds.object() != done.object {
        return Ok(());
    }
    let dir = ds.dir();
    let root = dir.encryption_root().map_err(errors::answer)?;
    if root.is_some_and(|r| r.object() == dir.object()) == is_root {
        return Ok(());
    }
    if !done.is_new {
        let may = rights::require(run.admin, &entry, run.peer, Action::ChangeKey, &ds);
        if let Err(e) = may {
            note(
                run,
                format!("cannot change the encryption root of {name}: {e}"),
            );
            return Ok(());
        }
    }
    let r = entry.pool.task(move |pool, tx| match is_root {
        true => {
            // Whoever was one has its location already.
            let had = dir.encryption_root()?;
            let new = had.is_some_and(|r| r.object() != dir.object());
            pool.dsl().split_root(tx, &dir)?;
            match &location {
                Some(at) if new => set::store_location(pool, tx, &ds, at),
                _ => Ok(()),
            }
        }
        false => pool.dsl().rejoin_root(tx, &dir),
    });
    match r {
        // What is received alone, or below another tree, keeps its own.
        Err(e) if e.kind != Kind::Invalid => Err(errors::answer(e)),
        _ => Ok(()),
    }
}

/// Where the top of the tree goes.
fn top_target(run: &Run, top: &str) -> Answer<String> {
    let target = run.r.target.split('@').next().unwrap_or_default();
    Ok(match run.r.name_by {
        NameBy::Target => target.to_string(),
        NameBy::AllButFirst => match top.split_once('/') {
            Some((_, rest)) => format!("{target}/{rest}"),
            None => target.to_string(),
        },
        NameBy::Last => format!("{target}/{}", top.rsplit('/').next().unwrap_or(top)),
    })
}

/// Where the snapshots of a package are, by guid: there may be a hundred thousand.
struct Index<'a> {
    package: &'a Package,
    /// File system, and snapshot of it.
    places: HashMap<u64, (usize, usize)>,
}

impl<'a> Index<'a> {
    fn new(package: &'a Package) -> Index<'a> {
        let mut places = HashMap::new();
        for (f, fs) in package.file_systems.iter().enumerate() {
            for (s, (_, guid)) in fs.snaps.iter().enumerate() {
                places.entry(*guid).or_insert((f, s));
            }
        }
        Index { package, places }
    }

    /// The file system that has a snapshot of that guid.
    fn file_system(&self, snap: u64) -> Option<&'a FileSystem> {
        let (f, _) = self.places.get(&snap)?;
        self.package.file_systems.get(*f)
    }

    /// What a list that is mostly in the order of the snapshots says of one.
    fn named<'l, T>(&self, list: &'l [(String, T)], guid: u64, name: &str) -> Option<&'l T> {
        let at = self.places.get(&guid).and_then(|(_, s)| list.get(*s));
        let found = at
            .filter(|(n, _)| n == name)
            .or_else(|| list.iter().find(|(n, _)| n == name));
        found.map(|(_, what)| what)
    }
}

/// Makes the tree below `to` one that the increments of a package fit to: what was promoted, renamed
/// or (with `-F`) destroyed on the sending side.
fn replicate(run: &mut Run, package: &Package, to: &str) -> Answer<()> {
    let entry = datasets::entry_of(run.admin, to)?;
    let all: usize = locals(&entry, to)?.iter().map(|l| 1 + l.snaps.len()).sum();
    let index = Index::new(package);
    for _ in 0..=all.saturating_mul(EACH) {
        // What is in the way of one change may be gone after another.
        let mut failed = Vec::new();
        if round(run, &entry, &index, to, &mut failed)? {
            continue;
        }
        failed.into_iter().for_each(|text| note(run, text));
        return dress_snapshots(run, &entry, &index, to);
    }
    let text = format!("cannot receive: '{to}' could not be made like the sender's tree");
    note(run, text);
    Ok(())
}

/// Gives snapshots that are there already the user properties they have in the package: they may have been set after the
/// snapshots were received.
fn dress_snapshots(
    run: &mut Run,
    entry: &Arc<PoolEntry>,
    index: &Index<'_>,
    to: &str,
) -> Answer<()> {
    // Nobody destroys a snapshot meanwhile.
    let _gate = entry.pass().map_err(errors::answer)?;
    let _names = entry.names.read();
    for local in locals(entry, to)? {
        let mut list = Vec::new();
        for (name, guid) in &local.snaps {
            let sent = index.file_system(*guid).and_then(|f| f.snap_props.as_ref());
            let props = sent.and_then(|all| index.named(all, *guid, name));
            let Some(props) = props else { continue };
            let snap = local.head.snapshot_named(name).map_err(errors::answer)?;
            // Those that came before and are not sent any more go.
            let any = |s: &Dataset| props.iter().next().is_some() || s.phys().props_obj != 0;
            if let Some(snap) = snap.filter(|s| any(s)) {
                list.push((snap, props.clone()));
            }
        }
        if list.is_empty() {
            continue;
        }
        // Who may not set them receives what comes after them all the same.
        let stored = rights::require_named(run.admin, entry, run.peer, "userprop", &local.head)
            .and_then(|()| {
                let who = rights::caller(run.admin, entry, run.peer)?;
                let by = setters::user(&who);
                let stored = entry.pool.task(move |pool, tx| {
                    list.iter().try_for_each(|(snap, props)| {
                        set::store_received((pool, tx), snap, props, true, &[], by)
                    })
                });
                stored.map_err(errors::answer)
            });
        if let Err(e) = stored {
            let name = &local.name;
            run.warnings.push(format!(
                "cannot receive properties on snapshots of {name}: {e}"
            ));
        }
    }
    Ok(())
}

/// One local file system as it is compared with the package.
struct Local {
    name: String,
    head: Arc<Dataset>,
    /// Names and guids, oldest first.
    snaps: Vec<(String, u64)>,
}

fn locals(entry: &Arc<PoolEntry>, to: &str) -> Answer<Vec<Local>> {
    let Ok(top) = entry.pool.dir(to) else {
        return Ok(Vec::new());
    };
    let all = datasets::subtree(&top).map_err(errors::answer)?;
    all.into_iter()
        .map(|head| {
            cancel::check()?;
            Ok(Local {
                name: head.full_name(),
                snaps: guids(&head).map_err(errors::answer)?,
                head,
            })
        })
        .collect()
}

fn guids(head: &Dataset) -> Result<Vec<(String, u64)>> {
    let mut out = Vec::new();
    for e in head.snapshot_list()? {
        let guid = head.named_snapshot(&e)?.phys().guid;
        out.push((e.name, guid));
    }
    Ok(out)
}

/// Does what can be done now; true if something was, and there may be more. `failed`: what could not be done, and why.
fn round(
    run: &mut Run,
    entry: &Arc<PoolEntry>,
    index: &Index<'_>,
    to: &str,
    failed: &mut Vec<String>,
) -> Answer<bool> {
    let all = locals(entry, to)?;
    let newest = |l: &Local| {
        let guids = l.snaps.iter().rev().map(|(_, guid)| *guid);
        guids.into_iter().find_map(|guid| index.file_system(guid))
    };
    let both: Vec<_> = all.iter().map(|local| (local, newest(local))).collect();
    for (local, sent) in &both {
        if let Some(sent) = sent {
            if promoted(run, local, sent)? {
                return Ok(true);
            }
        }
    }
    // One after the other: they have nothing to do with one another, and each round reads all of them.
    let mut any = false;
    for (local, sent) in &both {
        if let Some(sent) = sent {
            any |= snapshots_like(run, index, local, sent, failed)?;
        }
    }
    if any {
        return Ok(true);
    }
    for step in arrange::steps(&places(run, &both, to), to) {
        let done = match step {
            Step::Destroy(name) => destroy_tree(run, &name, failed)?,
            Step::Rename { from, to } => move_to(run, &from, &to, failed)?,
        };
        if done {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Where the local file systems are, and where they belong.
fn places(run: &Run, both: &[(&Local, Option<&FileSystem>)], to: &str) -> Vec<Item> {
    let mut homes: HashMap<u64, &str> = HashMap::new();
    for (local, _) in both {
        for (_, guid) in &local.snaps {
            homes.entry(*guid).or_insert(&local.name);
        }
    }
    let fate = |local: &Local, sent: Option<&FileSystem>| match sent {
        _ if local.name == to => Fate::Stays,
        None if run.r.force => Fate::Goes,
        None => Fate::Stays,
        Some(sent) => {
            let own = local.name.rsplit_once('/').map_or("", |(up, _)| up);
            let parent = homes.get(&sent.parent_from_snap).copied().unwrap_or(own);
            let last = sent.name.rsplit('/').next().unwrap_or(&sent.name);
            Fate::Belongs {
                parent: parent.to_string(),
                last: last.to_string(),
            }
        }
    };
    let item = |(local, sent): &(&Local, Option<&FileSystem>)| Item {
        name: local.name.clone(),
        guid: local.head.phys().guid,
        fate: fate(local, *sent),
    };
    both.iter().map(item).collect()
}

/// Gives the snapshots of a local file system the names that the sender's have, and destroys (with `-F`) those that are
/// gone there; true if something was done.
fn snapshots_like(
    run: &mut Run,
    index: &Index<'_>,
    local: &Local,
    sent: &FileSystem,
    failed: &mut Vec<String>,
) -> Answer<bool> {
    let names: HashMap<u64, &str> = sent.snaps.iter().map(|(n, g)| (*g, n.as_str())).collect();
    let other = |name: &str, guid: u64| names.get(&guid).copied().filter(|other| *other != name);
    // Names that others lose yet.
    let taken: HashSet<&str> = local
        .snaps
        .iter()
        .filter(|(name, guid)| other(name, *guid).is_some())
        .map(|(name, _)| name.as_str())
        .collect();
    let mut any = false;
    for (name, guid) in &local.snaps {
        match other(name, *guid) {
            Some(to) => {
                let aside = format!("recv-{guid:x}");
                let to = match taken.contains(to) && *name != aside {
                    true => aside.as_str(),
                    false => to,
                };
                any |= rename_snapshot(run, local, name, to, failed)?
            }
            // Where another file system of the package has it, a promotion is still to come.
            None if run.r.force
                && !names.contains_key(guid)
                && index.file_system(*guid).is_none() =>
            {
                any |= destroy_snapshot(run, local, name, failed)?
            }
            None => {}
        }
    }
    Ok(any)
}

/// Promotes the local file system if the sender's became the one its origin came from.
fn promoted(run: &mut Run, local: &Local, sent: &FileSystem) -> Answer<bool> {
    let origin = local.head.dir().origin().map_err(errors::answer)?;
    let Some(origin) = origin else {
        return Ok(false);
    };
    let here = origin.phys().guid;
    // The snapshot it began with is one of its own on the other side.
    if sent.origin == Some(here) || !sent.snaps.iter().any(|(_, g)| *g == here) {
        return Ok(false);
    }
    snapshots::promote(run.admin, run.peer, &local.name, String::new())?;
    Ok(true)
}

fn destroy_tree(run: &mut Run, name: &str, failed: &mut Vec<String>) -> Answer<bool> {
    let r = DatasetDestroy {
        name: name.to_string(),
        recursive: true,
        force: true,
        ..DatasetDestroy::default()
    };
    done(name, destroy::destroy(run.admin, run.peer, &r), failed)
}

fn destroy_snapshot(
    run: &mut Run,
    local: &Local,
    snap: &str,
    failed: &mut Vec<String>,
) -> Answer<bool> {
    let name = format!("{}@{snap}", local.name);
    let r = DatasetDestroy {
        name: name.clone(),
        ..DatasetDestroy::default()
    };
    done(&name, destroy::destroy(run.admin, run.peer, &r), failed)
}

/// Whether something was destroyed; what is in its way is told.
fn done(name: &str, r: Answer<api::Destroyed>, failed: &mut Vec<String>) -> Answer<bool> {
    match r {
        Ok(d) => match d.failed.into_iter().next() {
            Some((n, e)) => {
                failed.push(e.sentence_for("destroy", &n));
                Ok(false)
            }
            None => Ok(true),
        },
        Err(e) => {
            failed.push(e.sentence_for("destroy", name));
            Ok(false)
        }
    }
}

/// A warning, once.
fn note(run: &mut Run, text: String) {
    run.failed = true;
    if !run.warnings.contains(&text) {
        run.warnings.push(text);
    }
}

fn rename_snapshot(
    run: &mut Run,
    local: &Local,
    from: &str,
    to: &str,
    failed: &mut Vec<String>,
) -> Answer<bool> {
    let (a, b) = (
        format!("{}@{from}", local.name),
        format!("{}@{to}", local.name),
    );
    move_to(run, &a, &b, failed)
}

fn move_to(run: &mut Run, from: &str, to: &str, failed: &mut Vec<String>) -> Answer<bool> {
    let how = rename::How {
        parents: false,
        force: true,
        no_remount: false,
        recursive: false,
    };
    match rename::rename(run.admin, run.peer, from, to, how, String::new()) {
        Ok(told) => {
            told.into_iter().for_each(|text| note(run, text));
            Ok(true)
        }
        Err(e) => {
            failed.push(e.sentence_for("rename", from));
            Ok(false)
        }
    }
}
