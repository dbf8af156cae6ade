//! `zfs redact`: a bookmark that lists what redacted streams leave out.

use crate::datasets::{self, Answer};
use crate::registry::Admin;
use api::{ApiError, Peer, Redact};
use base::sync::RwLockExt;
use base::{Error, Kind};
use disk::feature::guid::REDACTED_DATASETS;
use std::sync::Arc;
use stream::redact;
use stream::send::Source;

fn refusal(kind: Kind, why: impl Into<String>) -> ApiError {
    ApiError::sentence(kind, why)
}

/// `zfs redact`
pub fn redact(admin: &Arc<Admin>, peer: Peer, r: &Redact) -> Answer<()> {
    let entry = datasets::entry_of(admin, &r.snapshot)?;
    let _gate = entry.gate.acquire_read();
    datasets::need_writable(&entry)?;
    let _names = entry.names.read();
    crate::cancel::check()?;
    let dsl = &entry.pool.dsl;
    let missing = |name: &str| {
        refusal(
            Kind::NotFound,
            format!("provided snapshot {name} does not exist"),
        )
    };
    let plain = |e: Error| refusal(e.kind, datasets::plain(e, &r.snapshot).message);
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
    let head = snap.dir().head().map_err(plain)?;
    let full = format!("{}#{}", head.full_name(), r.bookmark);
    let of_mark = |e: Error| match e.kind {
        Kind::Exists => refusal(
            e.kind,
            format!("specified redaction bookmark ({full}) provided already exists"),
        ),
        Kind::NameTooLong => refusal(
            e.kind,
            "provided bookmark name cannot be used, final name would be too long",
        ),
        _ => plain(e),
    };
    dsl.check_redaction(&head, &r.bookmark, &snap, heirs.len())
        .map_err(of_mark)?;
    let txg = snap.phys().creation_txg;
    let mut changed: Option<redact::Changed> = None;
    let mut guids = Vec::new();
    // All stay as they are until the list is made.
    let source = Source::open(&snap).map_err(plain)?;
    for heir in &heirs {
        if !super::send::is_before(&snap, heir).map_err(plain)? {
            return Err(refusal(
                Kind::Invalid,
                "redaction snapshot must be descendent of snapshot being redacted",
            ));
        }
        let of = Source::open(heir).map_err(plain)?;
        let here = redact::changed(of.objset(), txg).map_err(plain)?;
        crate::cancel::check()?;
        changed = Some(match changed {
            Some(c) => c.and(&here),
            None => here,
        });
        guids.push(heir.phys().guid);
    }
    let list = redact::list(source.objset(), &changed.unwrap_or_default()).map_err(plain)?;
    let (name, command, uid) = (r.bookmark.clone(), r.command.clone(), u64::from(peer.uid));
    entry
        .pool
        .task(move |pool, tx| {
            pool.dsl
                .create_redaction(tx, &head, &name, &snap, (&guids, &list))?;
            pool.log_in(tx, &command, uid)
        })
        .map_err(of_mark)
}
