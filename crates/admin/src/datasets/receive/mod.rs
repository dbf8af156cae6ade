//! `zfs receive`: streams into datasets (behaviour §19, data format §31).
//!
//! * `arrange`: which file systems a package renames and destroys, and in which order.
//! * `dress`: properties and holds, from the command line and a package.
//! * `heal`: repairs an existing snapshot from a stream, instead of receiving it (`-c`).
//! * `one`: one stream of one snapshot; `target`: where it goes; `sealed`: what a raw one says of keys.
//! * `package`: the streams that `zfs send -R`, `-I` and `-p` put together, and what their list asks for.
//! * `words`: what the command says when something is refused.
//!
//! 1. No lock of the pool's names is held while the caller has to send something. Beginning and end each
//!    take it, and look again at what they found before.
//! 2. Rights, protection and limits are asked at the beginning and once more at the end, of the same datasets, whatever their
//!    names are by then. A stream that was begun when it was permitted does not outlast the permission.
//! 3. What a stream says is believed only after [`stream::Reader`] has verified it; what fails leaves the
//!    target as it was, but for the state that `-s` keeps.

mod arrange;
mod dress;
mod heal;
mod one;
mod package;
mod patience;
mod sealed;
mod target;
mod words;

use crate::datasets::rights::{self, Action};
use crate::datasets::{self, destroy, Answer};
use crate::errors;
use crate::registry::{Admin, PoolEntry};
use crate::streams::Way;
use api::{ApiError, NameBy, Peer, Receive, Received};
use base::sync::RwLockExt;
use base::Kind;
use disk::names::{self, Want};
use disk::stream::{Begin, HeaderType, Record, RECORD};
use dsl::Dataset;
use std::io::Read;
use std::sync::Arc;
use stream::{BeginList, Reader};

/// What all streams of one command share.
struct Run<'a> {
    admin: &'a Arc<Admin>,
    peer: Peer,
    r: &'a Receive,
    /// Lines for who watches (`-v`).
    tell: &'a mut dyn FnMut(String),
    /// What went wrong without being in the way of the rest.
    warnings: Vec<String>,
    /// Something else than a property went wrong so.
    failed: bool,
    /// New file systems, to be mounted at the end, and their objects as far as they are known.
    new: Vec<(String, Option<u64>)>,
    /// The command has been recorded in the history.
    recorded: bool,
}

impl Run<'_> {
    /// The command line for the history, once.
    fn command(&mut self) -> String {
        match std::mem::replace(&mut self.recorded, true) {
            true => String::new(),
            false => self.r.command.clone(),
        }
    }
}

/// Most bytes that lists of callers other than the owner may have, before and between the streams of a package: they are kept
/// in memory, where they take several times as much.
const LIST_OF_USERS: usize = 1 << 20;

/// Refuses callers who may receive nowhere in the pool, before anything of the stream is read. Where it goes is known, and
/// asked for, when its BEGIN is there.
fn somewhere(admin: &Admin, entry: &PoolEntry, peer: Peer, r: &Receive) -> Answer<()> {
    if rights::is_owner(admin, peer) {
        return Ok(());
    }
    let _gate = entry.pass().map_err(errors::answer)?;
    let action = Action::Receive { force: r.force };
    let root = entry.pool.root_dir().map_err(errors::answer)?;
    let all = datasets::subtree(&root).map_err(errors::answer)?;
    let may = |ds: &Arc<Dataset>| {
        rights::require(admin, entry, peer, action, ds).is_ok()
            || rights::require_action_in_new(admin, entry, peer, action, ds).is_ok()
    };
    // The target first: it is nearly always there.
    let target = r.target.split('@').next().unwrap_or_default();
    let near = target.rsplit_once('/').map_or(target, |(up, _)| up);
    let here = |name: &str| datasets::find(entry, name).is_ok_and(|ds| may(&ds));
    match here(target) || here(near) || all.iter().any(may) {
        true => Ok(()),
        false => Err(words::plain(Kind::NotPermitted, "permission denied")),
    }
}

/// The list behind the BEGIN record of a snapshot's stream.
fn list_of(payload: &[u8]) -> Answer<BeginList> {
    BeginList::from_payload(payload)
        .map_err(|_| words::plain(Kind::Invalid, "invalid stream (malformed nvlist)"))
}

/// Looks at the first record without believing it: how sentences about the stream begin.
fn peek(mut from: impl Read) -> Answer<(&'static str, Option<Begin>, impl Read)> {
    let mut first = Vec::with_capacity(RECORD);
    let read = from.by_ref().take(RECORD as u64).read_to_end(&mut first);
    read.map_err(|e| words::stream("cannot receive", &e.into()))?;
    if first.len() < RECORD {
        return Err(words::plain(Kind::NoData, "failed to read from stream"));
    }
    let whole: Option<&[u8; RECORD]> = first.as_slice().try_into().ok();
    let begin = whole.and_then(|b| {
        let swapped = disk::stream::is_swapped(b).ok()?;
        match Record::decode(b, swapped).ok()? {
            Record::Begin(b) => Some(b),
            _ => None,
        }
    });
    let what = match &begin {
        Some(b) if b.header_type != HeaderType::Substream => "cannot receive",
        None => "cannot receive",
        Some(b) if b.from_guid == 0 => words::NEW,
        Some(_) => words::INCREMENTAL,
    };
    Ok((what, begin, std::io::Cursor::new(first).chain(from)))
}

/// `zfs receive`: reads a stream, or a package of them, from `from`.
pub fn receive(
    admin: &Arc<Admin>,
    peer: Peer,
    r: &Receive,
    from: impl Read,
    tell: &mut dyn FnMut(String),
) -> Answer<Received> {
    let want = match r.target.contains('@') {
        true => Want::Snapshot,
        false => Want::Filesystem,
    };
    names::check_new(&r.target, want)
        .map_err(|why| ApiError::sentence(Kind::Invalid, format!("cannot receive: {why}")))?;
    let entry = datasets::entry_of(admin, &r.target).map_err(|_| {
        words::plain(
            Kind::NotFound,
            format!("no such pool '{}'", datasets::pool_of(&r.target)),
        )
    })?;
    datasets::need_writable(&entry).map_err(|e| ApiError {
        message: format!("cannot receive: {}", e.message),
        whole: true,
        ..e
    })?;
    if r.corrective && (r.force || r.resumable) {
        return Err(words::plain(
            Kind::Invalid,
            "corrective receive (-c) cannot be used with -F or -s",
        ));
    }
    if r.corrective && !(r.props.is_empty() && r.exclude.is_empty() && r.origin.is_none()) {
        return Err(words::plain(
            Kind::Invalid,
            "corrective receive (-c) cannot be used with -o or -x",
        ));
    }
    if r.name_by != NameBy::Target && datasets::find(&entry, &r.target).is_err() {
        let text = format!("specified fs ({}) does not exist", r.target);
        return Err(words::plain(Kind::NotFound, text));
    }
    let mut run = Run {
        admin,
        peer,
        r,
        tell,
        warnings: Vec::new(),
        failed: false,
        new: Vec::new(),
        recorded: false,
    };
    let owner = rights::is_owner(admin, peer);
    somewhere(admin, &entry, peer, r)?;
    let listed = entry.users.enter(peer.pid, &r.target, Way::Received);
    let _ended = crate::cancel::ended_by(listed.flag());
    let clock = admin.env.clock.clone();
    let from = patience::Patient::new(from, clock, !owner, RECORD);
    let (what, begin, from) = peek(from)?;
    let mut reader = Reader::new(from);
    if !owner {
        reader = reader.with_lists_of(LIST_OF_USERS);
    }
    let first = reader.next().map_err(|e| {
        match (e.kind, &begin) {
            (Kind::Unsupported, Some(b)) => words::features(b).err(),
            _ => None,
        }
        .unwrap_or_else(|| words::stream(what, &e))
    })?;
    let Some(first) = first else {
        return Err(words::plain(
            Kind::Invalid,
            "invalid stream (bad magic number)",
        ));
    };
    let Record::Begin(begin) = &first.record else {
        return Err(words::plain(
            Kind::Invalid,
            "invalid stream (bad record type)",
        ));
    };
    words::features(begin)?;
    let done = match begin.header_type {
        HeaderType::Compound => package::receive(&mut run, &mut reader, begin, &first.payload),
        _ => list_of(&first.payload)
            .and_then(|list| one::receive(&mut run, &mut reader, begin, &list, None).map(drop)),
    };
    let new = std::mem::take(&mut run.new);
    if !r.no_mount {
        mount_new(&mut run, &entry, &new);
    }
    done?;
    Ok(Received {
        warnings: run.warnings,
        failed: run.failed,
    })
}

/// Mounts what a receive made.
fn mount_new(run: &mut Run, entry: &Arc<PoolEntry>, list: &[(String, Option<u64>)]) {
    for (name, object) in list {
        let skipped = {
            let _gate = entry.gate.acquire_read();
            let _names = entry.names.read();
            datasets::find_anyway(entry, name).map(|ds| {
                // Somebody else may have the name by now.
                object.is_some_and(|o| o != ds.object())
                    || entry
                        .objset_type(&ds)
                        .is_ok_and(|t| t == disk::os_type::ZVOL)
                    || ds.dir().key_loaded().is_ok_and(|k| k == Some(false))
                    || crate::values::is_redacted(&ds)
                    || entry.mounted(ds.object()).is_some()
            })
        };
        let mounted = match skipped {
            Ok(true) => Ok(()),
            Ok(false) => {
                datasets::mount::mount_made(run.admin, entry, std::slice::from_ref(name), run.peer)
            }
            Err(e) => Err(e),
        };
        if let Err(e) = mounted {
            run.failed = true;
            run.warnings.push(e.sentence_for("mount", name));
        }
    }
}

/// `zfs receive -A`: throws away what a broken receive kept.
pub fn abort(admin: &Arc<Admin>, peer: Peer, name: &str, command: String) -> Answer<()> {
    let entry = datasets::entry_of(admin, name)?;
    let _gate = entry.gate.acquire_read();
    datasets::need_writable(&entry)?;
    let _names = entry.names.write();
    let none = || {
        ApiError::sentence(
            Kind::Invalid,
            format!("'{name}' does not have any resumable receive state to abort"),
        )
    };
    let ds = datasets::find(&entry, name)?;
    let plain = |e| datasets::plain(e, name);
    rights::require(admin, &entry, peer, Action::Destroy, &ds)?;
    let kept = match ds.receiving().map_err(plain)? {
        Some(kept) => kept,
        None => ds.clone(),
    };
    if !kept.is_inconsistent() || kept.resume_state().map_err(plain)?.is_none() {
        return Err(none());
    }
    if entry.streams.is_busy(kept.object()) {
        return Err(ApiError::reason(Kind::Busy, "dataset is busy"));
    }
    destroy::free_log(&entry, &kept).map_err(plain)?;
    let uid = u64::from(peer.uid);
    entry
        .pool
        .task(move |pool, tx| {
            pool.dsl().receive_abandon(tx, &kept)?;
            pool.log_in(tx, &command, uid)
        })
        .map_err(plain)
}

/// Name of a sent snapshot: dataset and name behind the `@`.
fn sent_name(begin: &Begin) -> Answer<(String, String)> {
    let text = String::from_utf8(begin.to_name.clone())
        .map_err(|_| words::plain(Kind::Invalid, "invalid stream (bad name)"))?;
    match text.split_once('@') {
        Some((fs, snap)) if !fs.is_empty() && !snap.is_empty() => {
            Ok((fs.to_string(), snap.to_string()))
        }
        _ => Err(words::plain(Kind::Invalid, "invalid stream (bad name)")),
    }
}
