//! `zfs redact`: makes a bookmark that lists the blocks redacted streams leave out.

use crate::datasets::{self, Answer};
use crate::errors;
use crate::registry::{Admin, PoolEntry};
use crate::streams::Way;

use api::{ApiError, Peer, Redact};
use base::sync::RwLockExt;
use base::{Error, Kind};
use disk::feature::guid::REDACTED_DATASETS;
use dsl::Dataset;
use std::sync::Arc;
use stream::redact;
use stream::send::Source;

fn refusal(kind: Kind, why: impl Into<String>) -> ApiError {
    ApiError::sentence(kind, why)
}

/// Snapshots of one request, kept as they are.
struct Asked {
    snap: Source,
    heirs: Vec<Source>,
}

fn plain(e: Error, r: &Redact) -> ApiError {
    refusal(e.kind, datasets::plain(e, &r.snapshot).message)
}

/// Finds the snapshots and refuses what cannot be redacted. The caller keeps them from being destroyed.
fn find(entry: &PoolEntry, r: &Redact) -> Answer<Asked> {
    let dsl = entry.pool.dsl();
    let missing = |name: &str| {
        refusal(
            Kind::NotFound,
            format!("provided snapshot {name} does not exist"),
        )
    };
    let plain = |e| plain(e, r);
    let find = |name: &str| match dsl.dataset(name) {
        Ok(ds) if ds.is_snapshot() => Ok(ds),
        Ok(_) => Err(missing(name)),
        Err(e) if e.kind == Kind::NotFound => Err(missing(name)),
        Err(e) => Err(plain(e)),
    };
    let snap = find(&r.snapshot)?;
    let mut heirs = Vec::new();
    for name in &r.snaps {
        heirs.push(find(name)?);
    }
    if heirs
        .iter()
        .chain([&snap])
        .any(|s| s.has_feature(REDACTED_DATASETS))
    {
        return Err(refusal(
            Kind::Invalid,
            "attempted to redact redacted dataset or with respect to redacted dataset",
        ));
    }
    for heir in &heirs {
        if !super::send::is_before(&snap, heir).map_err(plain)? {
            return Err(refusal(
                Kind::Invalid,
                "redaction snapshot must be descendent of snapshot being redacted",
            ));
        }
    }
    let heirs: base::Result<Vec<Source>> = heirs.iter().map(Source::open).collect();
    Ok(Asked {
        snap: Source::open(&snap).map_err(plain)?,
        heirs: heirs.map_err(plain)?,
    })
}

/// Refuses a bookmark that cannot be made.
fn check(entry: &PoolEntry, r: &Redact, asked: &Asked) -> Answer<Arc<Dataset>> {
    let snap = asked.snap.dataset();
    let head = snap.dir().head().map_err(|e| plain(e, r))?;
    let dsl = entry.pool.dsl();
    dsl.check_redaction(&head, &r.bookmark, snap, asked.heirs.len())
        .map_err(|e| of_mark(e, r, &head))?;
    Ok(head)
}

fn of_mark(e: Error, r: &Redact, head: &Dataset) -> ApiError {
    let full = format!("{}#{}", head.full_name(), r.bookmark);
    match e.kind {
        Kind::Exists => refusal(
            e.kind,
            format!("specified redaction bookmark ({full}) provided already exists"),
        ),
        Kind::NameTooLong => refusal(
            e.kind,
            "provided bookmark name cannot be used, final name would be too long",
        ),
        _ => plain(e, r),
    }
}

/// `zfs redact`. What is to be left out is found while the pool is free for others: its snapshots are busy, and an export
/// by force ends it.
pub fn redact(admin: &Arc<Admin>, peer: Peer, r: &Redact) -> Answer<()> {
    let entry = datasets::entry_of(admin, &r.snapshot)?;
    let plain = |e| plain(e, r);
    let (asked, _busy) = {
        let _gate = entry.gate.acquire_read();
        datasets::need_writable(&entry)?;
        let _names = entry.names.read();
        crate::cancel::check()?;
        let asked = find(&entry, r)?;
        check(&entry, r, &asked)?;
        let listed = entry.users.enter(peer.pid, &r.snapshot, Way::Sent);
        (asked, listed)
    };
    let txg = asked.snap.dataset().phys().creation_txg;
    let mut go_on = super::send::going_on(&entry);
    let mut changed: Option<redact::Changed> = None;
    let mut guids = Vec::new();
    for of in &asked.heirs {
        let here = redact::changed(of.objset(), txg, &mut go_on).map_err(plain)?;
        changed = Some(match changed {
            Some(c) => c.and(&here),
            None => here,
        });
        guids.push(of.dataset().phys().guid);
    }
    let list = redact::list(asked.snap.objset(), &changed.unwrap_or_default()).map_err(plain)?;
    let _gate = entry.pass_unless_cancelled().map_err(errors::answer)?;
    let _names = entry.names.read();
    crate::cancel::check()?;
    let head = check(&entry, r, &asked)?;
    let (name, command, uid) = (r.bookmark.clone(), r.command.clone(), u64::from(peer.uid));
    let (snap, of) = (asked.snap.dataset().clone(), head.clone());
    entry
        .pool
        .task(move |pool, tx| {
            pool.dsl()
                .create_redaction(tx, &of, &name, &snap, (&guids, &list))?;
            pool.log_in(tx, &command, uid)
        })
        .map_err(|e| of_mark(e, r, &head))
}
