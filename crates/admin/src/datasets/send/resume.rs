//! Resumed streams (`zfs send -t`), and streams of a partly received state (`zfs send -S`).

use super::plan::{Plan, Step};
use crate::cancel;
use crate::datasets::{self, Answer};
use crate::registry::PoolEntry;
use api::{ApiError, Send};
use base::{Kind, Result};
use disk::stream::HEAD_NAME;
use dsl::{Dataset, RedactionList};
use std::sync::Arc;
use stream::send::{Base, SendSpec};
use stream::ResumeToken;
use zap::Zap;

/// `cannot resume send: REASON`
fn refusal(kind: Kind, why: &str) -> ApiError {
    ApiError::sentence(kind, format!("cannot resume send: {why}"))
}

fn fail(e: base::Error) -> ApiError {
    let kind = e.kind;
    refusal(kind, &datasets::plain(e, "").message)
}

/// The snapshot, or file system, of a guid: first where it was, a snapshot then anywhere in the pool where `may` lets the caller
/// send.
fn by_guid(entry: &PoolEntry, name: &str, guid: u64, may: May<'_>) -> Result<Option<Arc<Dataset>>> {
    let dsl = entry.pool.dsl();
    // A stream of a file system itself, not of a snapshot.
    let of_head = name
        .strip_suffix(HEAD_NAME)
        .and_then(|n| n.strip_suffix('@'));
    let name = of_head.unwrap_or(name);
    match dsl.dataset(name) {
        Ok(ds) if ds.phys().guid == guid => return Ok(Some(ds)),
        Ok(_) => {}
        Err(e) if e.kind == Kind::NotFound => {}
        Err(e) => return Err(e),
    }
    let mut found = None;
    let look = &mut |dir: &Arc<dsl::Dir>| {
        if found.is_some() || dir.phys().head_dataset_obj == 0 {
            return Ok(());
        }
        let head = dir.head()?;
        if let Some(may) = may {
            match head.prev()? {
                Some(last) if last.dir().object() == dir.object() && may(&last) => {}
                _ => return Ok(()),
            }
        }
        for e in head.snapshot_list()? {
            if cancel::is_cancelled() {
                return Err(Kind::Interrupted.into());
            }
            let s = head.named_snapshot(&e)?;
            if s.phys().guid == guid {
                found = Some(s);
                break;
            }
        }
        Ok(())
    };
    // It is not in what cannot be read, as far as anybody can tell.
    let lost = &mut |_: &str, e: base::Error| match e.kind {
        Kind::Interrupted => Err(e),
        _ => Ok(()),
    };
    dsl.walk_past(&dsl.root()?, look, lost)?;
    Ok(found)
}

/// The base of a guid in the history of a snapshot: a snapshot, or a bookmark. With the name that is printed.
type Found = (Base, Option<Arc<Dataset>>, String);

/// Whether the same snapshots are in both lists, in any order.
fn same(a: &[u64], b: &[u64]) -> bool {
    let (mut a, mut b) = (a.to_vec(), b.to_vec());
    a.sort_unstable();
    b.sort_unstable();
    a == b
}

/// Whether something was left out of a base by these snapshots, or by none. A snapshot and its redaction bookmarks have the
/// same guid, and what an increment must bring differs.
fn lacks(base: &Base, by: Option<&[u64]>) -> bool {
    match (&base.redact_snaps, by) {
        (Some(own), Some(snaps)) => same(own, snaps),
        (own, snaps) => own.is_none() && snaps.is_none(),
    }
}

/// The base of that guid; of several the first one that `is_it`.
fn base_by_guid(
    entry: &PoolEntry,
    ds: &Arc<Dataset>,
    guid: u64,
    is_it: &dyn Fn(&Base) -> bool,
) -> Result<Option<Found>> {
    let own = ds.dir().object();
    let mut at = ds.clone();
    while let Some(prev) = at.prev()? {
        if prev.phys().guid == guid {
            let base = Base::of_snapshot(&prev, prev.dir().object() != own)?;
            if is_it(&base) {
                let name = prev.full_name();
                return Ok(Some((base, Some(prev), name)));
            }
        }
        at = prev;
    }
    let mut dir = ds.dir();
    loop {
        for (name, mark) in dir.head()?.bookmarks()? {
            if mark.guid == guid {
                let base = Base::of_bookmark(entry.pool.dsl(), &mark, dir.object() != own)?;
                if !is_it(&base) {
                    continue;
                }
                return Ok(Some((base, None, format!("{}#{name}", dir.full_name()))));
            }
        }
        match dir.origin()? {
            Some(o) => dir = o.dir(),
            None => return Ok(None),
        }
    }
}

/// The redaction list by which a stream of a snapshot left out what it did.
fn redaction(entry: &PoolEntry, ds: &Dataset, snaps: &[u64]) -> Result<Option<Arc<RedactionList>>> {
    for (_, mark) in ds.dir().head()?.bookmarks()? {
        if mark.redaction_obj != 0 && mark.guid == ds.phys().guid {
            let list = entry.pool.dsl().redaction_list(mark.redaction_obj)?;
            if same(list.snaps(), snaps) {
                return Ok(Some(Arc::new(list)));
            }
        }
    }
    Ok(None)
}

/// What a token says.
pub fn decode(token: &str) -> Answer<ResumeToken> {
    ResumeToken::decode(token).map_err(fail)
}

/// Whether a caller may send a snapshot; `None`: every one. All snapshots of a file system have the same permissions.
type May<'a> = Option<&'a dyn Fn(&Dataset) -> bool>;

/// What a token asks for.
pub fn of_token(entry: &Arc<PoolEntry>, t: &ResumeToken, may: May<'_>) -> Answer<Plan> {
    let found = by_guid(entry, &t.to_name, t.to_guid, may).map_err(fail)?;
    let Some(ds) = found else {
        let why = match entry.pool.dataset(&t.to_name) {
            Ok(_) => "is no longer the same snapshot used in the initial send",
            Err(_) => "used in the initial send no longer exists",
        };
        return Err(refusal(Kind::NotFound, &format!("'{}' {why}", t.to_name)));
    };
    if !ds.is_snapshot() && entry.pool.is_open(&ds) {
        return Err(refusal(Kind::Busy, "dataset is busy"));
    }
    let name = match ds.is_snapshot() {
        true => ds.full_name(),
        false => format!("{}@{HEAD_NAME}", ds.full_name()),
    };
    let mut spec = SendSpec {
        name: name.clone(),
        large_blocks: t.large_blocks,
        embedded: t.embedded,
        compressed: t.compressed,
        raw: t.raw,
        resume: Some((t.object, t.offset)),
        ..SendSpec::default()
    };
    let (mut from, mut base) = (None, None);
    if let Some(guid) = t.from_guid {
        let found = base_by_guid(entry, &ds, guid, &|base| {
            lacks(base, t.book_redact_snaps.as_deref())
        })
        .map_err(fail)?;
        let Some((b, snap, name)) = found else {
            let why = format!("incremental source {guid:#x} no longer exists");
            return Err(refusal(Kind::NotFound, &why));
        };
        (spec.base, base, from) = (Some(b), snap, Some(name));
    }
    if let Some(snaps) = &t.redact_snaps {
        spec.redact = redaction(entry, &ds, snaps).map_err(fail)?;
        if spec.redact.is_none() && !ds.has_feature(disk::feature::guid::REDACTED_DATASETS) {
            return Err(refusal(
                Kind::NotFound,
                "the redaction bookmark used in the initial send no longer exists",
            ));
        }
    }
    let mut plan = Plan::new(entry);
    plan.token = t.describe();
    plan.steps.push(Step {
        received: t.bytes,
        ..Step::new(&ds, spec, from, base.as_deref())
    });
    Ok(plan)
}

/// Entries of a dataset that is being received into (data format §7.2).
mod key {
    /// `u64`: guid of the base.
    pub const FROM_GUID: &str = "com.delphix:resume_fromguid";
    /// String: name of the snapshot.
    pub const TO_NAME: &str = "com.delphix:resume_toname";
    /// `u64`: guid of the snapshot.
    pub const TO_GUID: &str = "com.delphix:resume_toguid";
    /// Present: the stream has blocks above 128 KiB.
    pub const LARGE_BLOCKS: &str = "com.delphix:resume_largeblockok";
    /// Present: the stream has embedded blocks.
    pub const EMBEDDED: &str = "com.delphix:resume_embedok";
    /// Present: the stream has compressed blocks.
    pub const COMPRESSED: &str = "com.delphix:resume_compressok";
    /// Present: the stream is raw.
    pub const RAW: &str = "com.datto:resume_rawok";
}

/// What a broken receive kept, in the dataset itself or in `%recv` below it.
pub fn saved(entry: &Arc<PoolEntry>, r: &Send) -> Answer<Plan> {
    let head = datasets::find(entry, &r.target)?;
    let fail = |e: base::Error| {
        let why = datasets::plain(e.clone(), &r.target).message;
        ApiError::sentence(e.kind, format!("saved send failed: {why}"))
    };
    let dsl = entry.pool.dsl();
    let ds = match dsl.dataset(&format!("{}/%recv", r.target)) {
        Ok(ds) => ds,
        Err(e) if e.kind == Kind::NotFound => head,
        Err(e) => return Err(fail(e)),
    };
    let none = || {
        let why = format!("dataset '{}' has no partially received state", r.target);
        fail(base::Error::new(Kind::Invalid, why))
    };
    if ds.is_snapshot() || !ds.is_inconsistent() {
        return Err(none());
    }
    if entry.pool.is_open(&ds) {
        return Err(fail(base::Error::new(Kind::Busy, "dataset is busy")));
    }
    let dn = dsl.mos().hold(ds.object()).map_err(fail)?;
    if dn.info().obj_type != disk::ObjType::ZAP_METADATA {
        return Err(none());
    }
    let zap = Zap::new(&dn);
    let has = |k: &str| zap.contains(k).map_err(fail);
    let Some(guid) = zap.get(key::TO_GUID).map_err(fail)? else {
        return Err(none());
    };
    let name = match zap.get_value(key::TO_NAME).map_err(fail)? {
        Some(v) => v.to_text().map_err(fail)?,
        None => return Err(none()),
    };
    let mut spec = SendSpec {
        name,
        guid: Some(guid),
        large_blocks: has(key::LARGE_BLOCKS)?,
        embedded: has(key::EMBEDDED)?,
        compressed: has(key::COMPRESSED)?,
        raw: has(key::RAW)?,
        saved: true,
        ..SendSpec::default()
    };
    let (mut from, mut base) = (None, None);
    if let Some(guid) = zap.get(key::FROM_GUID).map_err(fail)?.filter(|g| *g != 0) {
        let found = base_by_guid(entry, &ds, guid, &|_| true).map_err(fail)?;
        let Some((mut b, snap, name)) = found else {
            let why = format!("incremental source {guid:#x} no longer exists");
            return Err(fail(base::Error::new(Kind::NotFound, why)));
        };
        // `%recv` is a clone of it only for the time being.
        b.is_origin = false;
        (spec.base, base, from) = (Some(b), snap, Some(name));
    }
    let mut plan = Plan::new(entry);
    plan.steps.push(Step::new(&ds, spec, from, base.as_deref()));
    Ok(plan)
}
