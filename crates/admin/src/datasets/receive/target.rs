//! The target of a stream: its name, its base, what exists there, and whether the stream may be received.

use super::{sent_name, words, Run};
use crate::datasets::create::{self, Above};
use crate::datasets::rights::{self, Action};
use crate::datasets::{self, protect, Answer};
use crate::errors;
use crate::registry::PoolEntry;
use api::{ApiError, NameBy};
use base::{Error, Kind, Result};
use disk::names::{self, Want};
use disk::stream::{begin_flag, feature, Begin};
use disk::NvList;
use disk::{os_type, props};
use dmu::Objset;
use dsl::Dataset;
use std::sync::Arc;

/// The entries of a package's list that concern one stream.
#[derive(Default)]
pub struct Extra {
    /// Properties of the file system.
    pub props: Option<NvList>,
    /// Properties of the snapshot.
    pub snap_props: Option<NvList>,
    /// Tags of its holds.
    pub holds: Vec<String>,
    /// The package replicates a tree.
    pub recursive: bool,
    /// The stream is of a file system below the top of the package.
    pub is_below: bool,
    /// Where the stream goes by the package, with the snapshot's name.
    pub target: Option<String>,
}

/// Where a stream goes.
pub(super) struct Target {
    /// File system or volume.
    pub(super) fs: String,
    pub(super) snap: String,
    /// It is there.
    pub(super) head: Option<Arc<Dataset>>,
    pub(super) base: Option<Arc<Dataset>>,
    /// Goes on where a broken receive ended.
    pub(super) kept: Option<Arc<Dataset>>,
    /// Begins of the sentences about it.
    pub(super) what: &'static str,
}

/// The name a stream gets by the command line.
pub(super) fn target_name(
    run: &Run,
    begin: &Begin,
    extra: Option<&Extra>,
) -> Answer<(String, String)> {
    let (fs, snap) = sent_name(begin)?;
    if let Some(t) = extra.and_then(|e| e.target.as_ref()) {
        let (fs, snap) = t.split_once('@').unwrap_or((t, &snap));
        return Ok((fs.to_string(), snap.to_string()));
    }
    if let Some((fs, snap)) = run.r.target.split_once('@') {
        return Ok((fs.to_string(), snap.to_string()));
    }
    let below = match run.r.name_by {
        NameBy::Target => return Ok((run.r.target.clone(), snap)),
        NameBy::AllButFirst => match fs.split_once('/') {
            Some((_, rest)) => rest,
            // The pool itself: the target is meant.
            None => return Ok((run.r.target.clone(), snap)),
        },
        NameBy::Last => fs.rsplit('/').next().unwrap_or(&fs),
    };
    Ok((format!("{}/{below}", run.r.target), snap))
}

/// A snapshot with that guid: below the parent of `near` first, then in larger and larger parts of the
/// pool, since a tree may be there several times.
pub(super) fn by_guid(entry: &PoolEntry, near: &str, guid: u64) -> Result<Option<Arc<Dataset>>> {
    let mut at = near;
    while let Some((up, _)) = at.rsplit_once('/') {
        let below = match entry.pool.dir(up) {
            Ok(dir) => datasets::subtree(&dir)?,
            Err(e) if e.kind == Kind::NotFound => Vec::new(),
            Err(e) => return Err(e),
        };
        for head in below {
            if let Some(s) = own_by_guid(&head, guid)? {
                return Ok(Some(s));
            }
        }
        at = up;
    }
    Ok(None)
}

/// A snapshot of `head` with that guid, the newest first.
pub(super) fn own_by_guid(head: &Dataset, guid: u64) -> Result<Option<Arc<Dataset>>> {
    for e in head.snapshot_list()?.iter().rev() {
        let s = head.named_snapshot(e)?;
        if s.phys().guid == guid {
            return Ok(Some(s));
        }
    }
    Ok(None)
}

pub(super) fn exists(entry: &PoolEntry, name: &str) -> Answer<Option<Arc<Dataset>>> {
    match datasets::find_anyway(entry, name) {
        Ok(ds) => Ok(Some(ds)),
        Err(e) if e.code == Kind::NotFound.errno() => Ok(None),
        Err(e) => Err(e),
    }
}

/// What a broken receive into `head`, called `fs`, kept and this stream goes on with. Whatever else it kept is in the
/// way.
fn kept_by(
    head: &Arc<Dataset>,
    begin: &Begin,
    fs: &str,
    what: &str,
) -> Answer<Option<Arc<Dataset>>> {
    let internal = |e: Error| errors::answer(e);
    let refuse = |kind, why: String| Err(words::sentence(kind, what, why));
    let child = head.receiving().map_err(internal)?;
    let left = child.or_else(|| head.is_inconsistent().then(|| head.clone()));
    let Some(left) = left else { return Ok(None) };
    match left.resume_state().map_err(internal)? {
        Some(_) if begin.features & feature::RESUMING == 0 => refuse(
            Kind::Busy,
            format!("destination {fs} contains partially-complete state from \"zfs receive -s\"."),
        ),
        Some(s) if s.to_guid == begin.to_guid && s.from_guid == begin.from_guid => Ok(Some(left)),
        Some(_) => refuse(
            Kind::Invalid,
            "the stream does not continue what was received before".into(),
        ),
        None => refuse(Kind::Busy, format!("destination '{fs}' is busy")),
    }
}

/// Finds the place of a stream and refuses what cannot go there.
pub(super) fn find_target(
    run: &Run,
    entry: &Arc<PoolEntry>,
    begin: &Begin,
    extra: Option<&Extra>,
) -> Answer<Target> {
    let (mut fs, snap) = target_name(run, begin, extra)?;
    let full = format!("{fs}@{snap}");
    names::check_new(&full, Want::Snapshot).map_err(|why| words::plain(Kind::Invalid, why))?;
    if datasets::pool_of(&fs) != entry.pool.name() {
        return Err(words::plain(
            Kind::NotFound,
            "destination is in another pool",
        ));
    }
    let internal = |e: Error| errors::answer(e);
    let resuming = begin.features & feature::RESUMING != 0;
    let clone = begin.flags & begin_flag::CLONE != 0;
    let wants_new = (begin.from_guid == 0 || clone || run.r.origin.is_some()) && !resuming;
    let what = match wants_new {
        true => words::NEW,
        false => words::INCREMENTAL,
    };
    let refuse = |kind, why: String| Err(words::sentence(kind, what, why));
    let mut head = exists(entry, &fs)?;
    if head.is_none() && !wants_new && !resuming {
        // The file system may have another name here.
        if let Some(base) = by_guid(entry, &fs, begin.from_guid).map_err(internal)? {
            if extra.is_some() {
                fs = base.dir().full_name();
                head = exists(entry, &fs)?;
            }
        }
    }
    let mut base = None;
    let kept = match &head {
        Some(head) => kept_by(head, begin, &fs, what)?,
        None => None,
    };
    if resuming && kept.is_none() {
        return refuse(
            Kind::Invalid,
            format!("destination {fs} has no resumable receive state"),
        );
    }
    if let Some(kept) = &kept {
        let own = kept.dir().name() == dsl::RECV;
        let whole = begin.from_guid == 0 || clone || run.r.origin.is_some();
        if own && whole && !run.r.force {
            // It is to take the place of what is there.
            return Err(words::sentence(
                Kind::Exists,
                words::NEW,
                format!("destination '{fs}' exists\nmust specify -F to overwrite it"),
            ));
        }
        return Ok(Target {
            head: head.filter(|_| own),
            base: None,
            kept: Some(kept.clone()),
            fs,
            snap,
            what,
        });
    }
    if wants_new {
        if let Some(there) = &head {
            if run.r.force && (clone || run.r.origin.is_some()) {
                // What is there cannot begin with another snapshot from one txg to the next.
                return refuse(
                    Kind::Exists,
                    format!("destination '{fs}' exists\nmust destroy it to receive a clone"),
                );
            }
            full_onto(run, entry, begin, there, &fs)?;
        }
        if clone || run.r.origin.is_some() {
            base = Some(origin(run, entry, begin, &fs, what)?);
        }
    } else {
        let Some(there) = &head else {
            return refuse(Kind::NotFound, format!("destination '{fs}' does not exist"));
        };
        base = own_by_guid(there, begin.from_guid).map_err(internal)?;
        let Some(base) = &base else {
            return refuse(
                Kind::NoSuchDevice,
                format!("most recent snapshot of {fs} does not\nmatch incremental source"),
            );
        };
        incremental_onto(run, entry, begin, there, base, &fs)?;
        if let Some(found) = there.snapshot_named(&snap).map_err(internal)? {
            let later = found.phys().creation_txg > base.phys().creation_txg;
            if !(later && run.r.force) {
                let why = format!("cannot restore to {fs}@{snap}: destination already exists");
                return Err(ApiError::sentence(Kind::Exists, why));
            }
        }
    }
    Ok(Target {
        fs,
        snap,
        head,
        base,
        kept: None,
        what,
    })
}

/// What is said of a destination that is neither overwritten nor rolled back.
pub(super) fn protected(fs: &str) -> String {
    format!(
        "destination '{fs}' is protected by property '{0}'\nset {0}=off to overwrite it",
        protect::PROTECT
    )
}

/// What a stream and its package bring besides the data.
pub(super) struct Brought<'a> {
    /// Properties of the file system and of the snapshot.
    pub(super) lists: [Option<&'a NvList>; 2],
    /// The snapshot gets holds.
    pub(super) holds: bool,
}

impl<'a> Brought<'a> {
    pub(super) fn of(extra: Option<&'a Extra>) -> Brought<'a> {
        Brought {
            lists: [
                extra.and_then(|e| e.props.as_ref()),
                extra.and_then(|e| e.snap_props.as_ref()),
            ],
            holds: extra.is_some_and(|e| !e.holds.is_empty()),
        }
    }
}

/// The file system that a new target is made in, with those that are missing on the way (`-d`); `None`: the target is there.
pub(super) fn above_of(run: &Run, entry: &PoolEntry, target: &Target) -> Answer<Option<Above>> {
    if target.head.is_some() {
        return Ok(None);
    }
    let makes_parents = run.r.dry_run || run.r.name_by == NameBy::AllButFirst;
    if makes_parents && target.kept.is_none() {
        return create::above(entry, &target.fs, true).map(Some);
    }
    let parent = parent_of(entry, target)?;
    let missing = Vec::new();
    Ok(Some(Above { parent, missing }))
}

/// The snapshot that what is received begins with, if it is not one of the target's own: whoever receives gets all that is in it.
fn foreign_base(target: &Target) -> Result<Option<Arc<Dataset>>> {
    let base = match (&target.base, &target.kept) {
        (Some(base), _) => Some(base.clone()),
        (None, Some(kept)) => kept.dir().origin()?,
        (None, None) => None,
    };
    let own = target.head.as_ref().map(|head| head.dir().object());
    Ok(base.filter(|base| Some(base.dir().object()) != own))
}

/// Refuses callers without the permissions that a receive needs, also for the origin and for the properties and holds that the
/// stream and the command line bring, and those bound by limits. `above`: see [`above_of`]. `filled`: the dataset that the stream
/// has filled, when it is asked again at the end.
pub(super) fn permitted(
    run: &Run,
    entry: &PoolEntry,
    target: &Target,
    above: Option<&Above>,
    brought: &Brought<'_>,
    filled: Option<&Arc<Dataset>>,
) -> Answer<()> {
    if rights::is_owner(run.admin, run.peer) {
        return Ok(());
    }
    let check = || {
        at_datasets(run, entry, target, above)?;
        for name in names_set(run, brought) {
            let name = rights::of_property(&name);
            match (above, &target.head) {
                (Some(above), _) => {
                    rights::require_named_in_new(run.admin, entry, run.peer, name, &above.parent)?;
                }
                (None, Some(head)) => {
                    rights::require_named(run.admin, entry, run.peer, name, head)?;
                }
                (None, None) => return Err(rights::denied()),
            }
        }
        limited(run, entry, target, above, filled)
    };
    check().map_err(|e: ApiError| words::sentence(Kind::from_errno(e.code), target.what, e.message))
}

/// The permissions to receive, where the data goes and where it begins.
fn at_datasets(run: &Run, entry: &PoolEntry, target: &Target, above: Option<&Above>) -> Answer<()> {
    let (admin, peer) = (run.admin, run.peer);
    let action = Action::Receive { force: run.r.force };
    match (above, &target.head) {
        (Some(above), _) if !above.missing.is_empty() => {
            rights::require_in_new(admin, entry, peer, &above.parent, &api::Props::new())?;
            rights::require_below_new(admin, entry, peer, &above.parent)?;
            rights::require_action_in_new(admin, entry, peer, action, &above.parent)?;
        }
        (Some(above), _) => rights::require(admin, entry, peer, action, &above.parent)?,
        (None, Some(head)) => rights::require(admin, entry, peer, action, head)?,
        (None, None) => return Err(rights::denied()),
    }
    // What another stream has brought so far is somebody's, too.
    if let (None, Some(kept)) = (&target.head, &target.kept) {
        rights::require(admin, entry, peer, action, kept)?;
    }
    match foreign_base(target).map_err(errors::answer)? {
        Some(base) => rights::require(admin, entry, peer, Action::CloneFrom, &base),
        None => Ok(()),
    }
}

/// The properties that a receive sets or clears, and `hold`.
fn names_set(run: &Run, brought: &Brought<'_>) -> Vec<String> {
    let stored = |n: &&str| props::is_user(n) || props::dataset(n).is_some();
    let lists = brought.lists.iter().flatten();
    let of_stream = lists.flat_map(|list| list.iter().map(|(name, _)| name).filter(stored));
    let given = run.r.props.iter().map(|(name, _)| name.as_str());
    let excluded = run.r.exclude.iter().map(String::as_str);
    let all = of_stream.chain(given).chain(excluded);
    let mut names: Vec<String> = all.map(str::to_string).collect();
    if brought.holds && !run.r.no_holds {
        names.push("hold".into());
    }
    names
}

/// The limits on file systems and snapshots.
fn limited(
    run: &Run,
    entry: &PoolEntry,
    target: &Target,
    above: Option<&Above>,
    filled: Option<&Arc<Dataset>>,
) -> Answer<()> {
    let who = rights::caller(run.admin, entry, run.peer)?;
    let dsl = entry.pool.dsl();
    let parent = above.map(|a| &a.parent);
    let Some(place) = target.head.as_ref().or(filled).or(parent) else {
        return Ok(());
    };
    let snap = [(place.clone(), target.snap.clone())];
    let limits = dsl.check_snapshot_limits(&snap, &who);
    let limits = limits.and_then(|()| match (above, filled.or(target.kept.as_ref())) {
        (Some(above), None) => {
            let more = above.missing.len() as u64 + 1;
            dsl.check_filesystem_limit(&above.parent.dir(), more, &who)
        }
        _ => Ok(()),
    });
    limits.map_err(|e| datasets::plain(e, &target.fs))
}

/// Looks again, at the end of a stream, at what stands in the way of an existing target: it may have been protected, or have
/// got snapshots, while the stream came.
pub(super) fn look_again(
    run: &Run,
    entry: &PoolEntry,
    begin: &Begin,
    head: &Arc<Dataset>,
    filled: &Dataset,
) -> Answer<()> {
    let fs = head.full_name();
    let base = filled.dir().origin().map_err(errors::answer)?;
    let Some(base) = base.filter(|b| b.dir().object() == head.dir().object()) else {
        return full_onto(run, entry, begin, head, &fs);
    };
    let newest = head.prev().map_err(errors::answer)?;
    let younger = newest.is_none_or(|n| n.object() != base.object());
    let changed = || -> Result<bool> {
        Ok(younger || head.is_modified_since(&base)? || has_unwritten(entry, head))
    };
    let on = run.r.force && protect::is_on(head).map_err(errors::answer)?;
    match on && changed().map_err(errors::answer)? {
        true => Err(words::sentence(
            Kind::NotPermitted,
            words::INCREMENTAL,
            protected(&fs),
        )),
        false => Ok(()),
    }
}

/// Whether a full stream may take the place of what is there.
pub(super) fn full_onto(
    run: &Run,
    entry: &PoolEntry,
    begin: &Begin,
    there: &Dataset,
    fs: &str,
) -> Answer<()> {
    let refuse = |kind, why: String| Err(words::sentence(kind, words::NEW, why));
    if !run.r.force {
        return refuse(
            Kind::Exists,
            format!("destination '{fs}' exists\nmust specify -F to overwrite it"),
        );
    }
    if protect::is_on(there).map_err(errors::answer)? {
        return refuse(Kind::NotPermitted, protected(fs));
    }
    let snaps = there.snapshot_list().map_err(errors::answer)?;
    if let Some(first) = snaps.first().map(|e| &e.name) {
        return refuse(
            Kind::Exists,
            format!(
                "destination has snapshots (eg. {fs}@{first})\nmust destroy them to overwrite it"
            ),
        );
    }
    if there.dir().origin().map_err(errors::answer)?.is_some() {
        return refuse(
            Kind::Exists,
            format!("destination '{fs}' is a clone\nmust destroy it to overwrite it"),
        );
    }
    // During the receive the directory would need both keys, the one there is and the one that comes.
    let raw = begin.features & feature::RAW != 0;
    if raw || there.dir().is_encrypted().map_err(errors::answer)? {
        return refuse(
            Kind::Invalid,
            "zfs receive -F cannot be used to destroy an encrypted filesystem or overwrite an unencrypted one with an encrypted one".into(),
        );
    }
    let now = entry.objset_type(there).map_err(errors::answer)?;
    let is_volume = u64::from(begin.objset_type) == os_type::ZVOL;
    let children = there.dir().children().map_err(errors::answer)?;
    if let Some(child) = children.first().filter(|_| is_volume) {
        let child = child.full_name();
        let why = format!("destination has children (eg. {child})\ncannot overwrite with a ZVOL");
        return refuse(Kind::Exists, why);
    }
    if is_volume != (now == os_type::ZVOL) {
        return refuse(
            Kind::Invalid,
            format!("destination '{fs}' is of another type\nmust destroy it to overwrite it"),
        );
    }
    Ok(())
}

/// Whether an increment fits to what is there.
pub(super) fn incremental_onto(
    run: &Run,
    entry: &PoolEntry,
    begin: &Begin,
    there: &Dataset,
    base: &Dataset,
    fs: &str,
) -> Answer<()> {
    let refuse = |kind, why: String| Err(words::sentence(kind, words::INCREMENTAL, why));
    let internal = |e: Error| errors::answer(e);
    let raw = begin.features & feature::RAW != 0;
    let encrypted = there.dir().is_encrypted().map_err(internal)?;
    if raw && !encrypted {
        return refuse(
            Kind::Invalid,
            "cannot perform raw receive on top of existing unencrypted dataset".into(),
        );
    }
    if !raw && encrypted && there.dir().key_loaded().map_err(internal)? != Some(true) {
        return refuse(Kind::Access, "inherited key must be loaded".into());
    }
    let newest = there.prev().map_err(internal)?;
    let younger = newest.is_none_or(|n| n.object() != base.object());
    let modified = there.is_modified_since(base).map_err(internal)? || has_unwritten(entry, there);
    if run.r.force && (younger || modified) && protect::is_on(there).map_err(internal)? {
        return refuse(Kind::NotPermitted, protected(fs));
    }
    if !run.r.force {
        let has_log = entry.pool.is_unplayed(there);
        if has_log.map_err(internal)? {
            return refuse(Kind::Busy, unplayed(fs));
        }
        if modified {
            return refuse(
                Kind::TextBusy,
                format!("destination {fs} has been modified\nsince most recent snapshot"),
            );
        }
        if younger {
            return refuse(
                Kind::TextBusy,
                format!("most recent snapshot of {fs} does not\nmatch incremental source"),
            );
        }
    }
    let large = disk::feature::guid::LARGE_BLOCKS;
    if base.has_feature(large) && begin.features & feature::LARGE_BLOCKS == 0 {
        return refuse(
            Kind::Invalid,
            "incremental send stream requires -L (--large-block), to match previous receive."
                .into(),
        );
    }
    Ok(())
}

/// Why a target that is to stay as it is cannot be replaced by what follows its newest snapshot.
pub(super) fn unplayed(fs: &str) -> String {
    format!(
        "destination {fs} has changes in its intent log, which a crash left:\nmount it first, or use -F to give them up"
    )
}

/// Whether the head changes in a txg that is not on disk.
pub(super) fn has_unwritten(entry: &PoolEntry, head: &Dataset) -> bool {
    let open = entry.pool.dmu().open_txg();
    let dirty = |os: Arc<Objset>| (0..3).any(|n| os.is_dirty_in(open.before(n)));
    head.objset().is_some_and(dirty)
}

/// The snapshot that a clone begins with.
pub(super) fn origin(
    run: &Run,
    entry: &PoolEntry,
    begin: &Begin,
    fs: &str,
    what: &str,
) -> Answer<Arc<Dataset>> {
    let free = begin.from_guid == 0;
    if let Some(name) = &run.r.origin {
        let snap = exists(entry, name)?.filter(|s| s.is_snapshot());
        let Some(snap) = snap else {
            return Err(words::plain(
                Kind::NotFound,
                format!("specified origin fs ({name}) does not exist"),
            ));
        };
        let freed = begin.flags & begin_flag::FREERECORDS != 0;
        if !(free && freed) && snap.phys().guid != begin.from_guid {
            return Err(words::sentence(
                Kind::Invalid,
                what,
                format!("local origin for clone {name} is not the snapshot the stream is based on"),
            ));
        }
        return Ok(snap);
    }
    match by_guid(entry, fs, begin.from_guid).map_err(errors::answer)? {
        Some(snap) => Ok(snap),
        None => Err(words::sentence(
            Kind::NotFound,
            what,
            "local origin for clone does not exist",
        )),
    }
}

/// What of the pool a stream needs, as (bit of the stream, feature, name).
pub(super) const NEEDS: [(u64, &str, &str); 8] = [
    (
        feature::LZ4,
        disk::feature::guid::LZ4_COMPRESS,
        "lz4_compress",
    ),
    (
        feature::ZSTD,
        disk::feature::guid::ZSTD_COMPRESS,
        "zstd_compress",
    ),
    (
        feature::EMBED_DATA,
        disk::feature::guid::EMBEDDED_DATA,
        "embedded_data",
    ),
    (
        feature::LARGE_BLOCKS,
        disk::feature::guid::LARGE_BLOCKS,
        "large_blocks",
    ),
    (
        feature::LARGE_DNODE,
        disk::feature::guid::LARGE_DNODE,
        "large_dnode",
    ),
    (
        feature::REDACTED,
        disk::feature::guid::REDACTED_DATASETS,
        "redacted_datasets",
    ),
    (feature::LONGNAME, disk::feature::guid::LONGNAME, "longname"),
    (feature::RAW, disk::feature::guid::ENCRYPTION, "encryption"),
];

/// Per-dataset features that a stream brings as soon as it begins.
pub(super) fn brings(begin: &Begin) -> Vec<&'static str> {
    let mut out = Vec::new();
    for (bit, guid) in [
        (feature::LARGE_BLOCKS, disk::feature::guid::LARGE_BLOCKS),
        (feature::LONGNAME, disk::feature::guid::LONGNAME),
        (feature::LARGE_MICROZAP, disk::feature::guid::LARGE_MICROZAP),
    ] {
        if begin.features & bit != 0 {
            out.push(guid);
        }
    }
    out
}

pub(super) fn check_features(entry: &PoolEntry, begin: &Begin, what: &str) -> Answer<()> {
    let enabled = |guid: &str| entry.pool.has_feature(guid);
    for (bit, guid, name) in NEEDS {
        if begin.features & bit != 0 && !enabled(guid) {
            return Err(words::sentence(
                Kind::Unsupported,
                what,
                format!(
                    "pool must be upgraded to receive this stream: it needs the feature '{name}'"
                ),
            ));
        }
    }
    if begin.features & feature::RAW != 0 && begin.features & feature::EMBED_DATA != 0 {
        return Err(words::sentence(
            Kind::Invalid,
            what,
            "invalid backup stream",
        ));
    }
    if begin.features & feature::SA_SPILL != 0 && entry.pool.version() < 24 {
        return Err(words::sentence(
            Kind::Unsupported,
            what,
            "pool must be upgraded to receive this stream.",
        ));
    }
    match u64::from(begin.objset_type) {
        os_type::ZFS | os_type::ZVOL => Ok(()),
        _ => Err(words::sentence(
            Kind::Invalid,
            what,
            "invalid backup stream",
        )),
    }
}

pub(super) fn parent_of(entry: &PoolEntry, target: &Target) -> Answer<Arc<Dataset>> {
    let Some((up, _)) = target.fs.rsplit_once('/') else {
        return Err(words::sentence(
            Kind::Invalid,
            target.what,
            "a pool cannot be received",
        ));
    };
    let Some(parent) = exists(entry, up)? else {
        return Err(words::sentence(
            Kind::NotFound,
            target.what,
            "unable to restore to destination",
        )
        .detail(format!("cannot open '{up}': dataset does not exist")));
    };
    match entry.objset_type(&parent).map_err(errors::answer)? {
        os_type::ZFS => Ok(parent),
        _ => Err(words::sentence(
            Kind::Invalid,
            target.what,
            format!("parent '{up}' is not a filesystem"),
        )),
    }
}
