//! Which user other than the owner made a dataset, or chose where and how it is mounted.
//!
//! Root's process mounts at import what users made. It must know which of the properties are the administrator's word.
//! That is kept beside them, in user properties of the dataset itself ([`disk::props::RESERVED`]), which nobody can set,
//! send or receive. Where one is missing the owner has spoken.
//!
//! 1. What holds files of another user is mounted without set-user-id programs and devices, whoever mounts it and whatever
//!    has become of that user's permissions since ([`MADE_BY`]). The administrator may allow them by a local value of `setuid`
//!    or `devices`.
//! 2. The same holds while another user than the owner has one of [`DANGEROUS`] there.
//! 3. A `mountpoint` that another user has set must be this user's directory, at each mount.
//! 4. A dataset that another user has named covers no directory with something in it.
//! 5. A view that another user has asked for by the property is not made.
//! 6. What another user has chosen of a share is not given to root's servers as it is ([`crate::shares`]).

use crate::values;
use base::{bail, Result};
use disk::props::{MADE_BY, SETTERS, VIEW};
use dmu::Tx;
use dsl::props::PropChange;
use dsl::{Caller, Dataset, Dir, PropSource, PropValue};
use pool::Pool;
use std::sync::Arc;

/// Permissions with which files that are not made through a mount come into a dataset, or come to places.
pub const DANGEROUS: [&str; 5] = ["receive", "mount", "create", "clone", "mountpoint"];

/// The caller, unless it is the owner.
pub fn user(who: &Caller) -> Option<u64> {
    (!who.all).then_some(who.uid)
}

fn put((pool, tx): (&Pool, &Tx), ds: &Arc<Dataset>, name: &str, user: Option<u64>) -> Result<()> {
    let change = match user {
        Some(uid) => PropChange::Local(PropValue::Str(uid.to_string())),
        None if ds.prop(name, false)?.is_some() => PropChange::Inherit,
        None => return Ok(()),
    };
    pool.dsl().set_prop(tx, ds, name, &change)
}

fn setter_of(property: &str) -> Option<&'static str> {
    let found = SETTERS.iter().find(|(p, _)| *p == property);
    found.map(|(_, setter)| *setter)
}

/// Notes, in syncing context, who has changed a property; `None`: the owner.
pub fn note(at: (&Pool, &Tx), ds: &Arc<Dataset>, property: &str, user: Option<u64>) -> Result<()> {
    match setter_of(property) {
        Some(setter) if !ds.is_snapshot() => put(at, ds, setter, user),
        _ => Ok(()),
    }
}

/// The same for a value that came with a stream, if it is the one that counts.
pub fn note_received(
    at: (&Pool, &Tx),
    ds: &Arc<Dataset>,
    property: &str,
    user: Option<u64>,
) -> Result<()> {
    // Older pools have no received values: what a stream brings is stored as a local one.
    let local = at.0.version() < 22;
    match ds.prop(property, false)? {
        Some((_, PropSource::Received)) => note(at, ds, property, user),
        Some((_, PropSource::Local)) if local => note(at, ds, property, user),
        _ => Ok(()),
    }
}

/// Notes, in syncing context, that a user has made a dataset or received into it. What begins with the content of `base`, and is
/// made by the owner, is what that was.
pub fn note_content(
    at: (&Pool, &Tx),
    ds: &Arc<Dataset>,
    base: Option<&Dataset>,
    user: Option<u64>,
) -> Result<()> {
    let of_base = match base {
        Some(base) => maker(&base.dir())?,
        None => None,
    };
    match user.or(of_base) {
        Some(uid) => put(at, ds, MADE_BY, Some(uid)),
        None => Ok(()),
    }
}

fn uid(value: Option<(PropValue, PropSource)>) -> Option<u64> {
    let (value, _) = value?;
    // One that says nothing known is nobody's whom the owner trusts.
    Some(
        value
            .text()
            .and_then(|t| t.parse().ok())
            .unwrap_or(u64::MAX),
    )
}

fn maker(dir: &Dir) -> Result<Option<u64>> {
    Ok(uid(dir.prop(MADE_BY, false)?))
}

/// The user other than the owner from whom received values of a dataset may be.
pub fn receiver(ds: &Dataset) -> Result<Option<u64>> {
    maker(&ds.dir())
}

/// Whether others than the owner may have put files there in other ways than through a mount, or may do so.
pub fn is_distrusted(pool: &Pool, ds: &Dataset) -> Result<bool> {
    let dir = ds.dir();
    if maker(&dir)?.is_some() {
        return Ok(true);
    }
    let stored = pool.stored_props()?;
    let off = stored.iter().find(|(n, _)| n == "delegation");
    if off.and_then(|(_, v)| v.int()) == Some(0) {
        return Ok(false);
    }
    dir.delegates(&DANGEROUS)
}

/// Whether the owner has turned a property on at this very dataset.
pub fn is_allowed(ds: &Dataset, property: &str) -> Result<bool> {
    let dir = ds.dir();
    let on = match dir.prop(property, false)? {
        Some((v, PropSource::Local)) => v.int() == Some(1),
        _ => false,
    };
    let by_user = match setter_of(property) {
        Some(setter) => dir.prop(setter, false)?.is_some(),
        None => false,
    };
    Ok(on && !by_user)
}

/// Whether somebody else than the owner has set a property, there where its value comes from.
pub fn is_set_by_others(ds: &Dataset, property: &str, source: &PropSource) -> Result<bool> {
    match (set_at(ds, source)?, setter_of(property)) {
        (Some(dir), Some(setter)) => Ok(dir.prop(setter, false)?.is_some()),
        _ => Ok(false),
    }
}

/// What [`VIEW`] says, which is inherited as user properties are; none: nothing, or somebody else than the owner has set it. In a view
/// less is forbidden than in mounts of their own (a library of a file system with `exec=off` can be mapped).
///
/// # Errors
/// It is neither `on` nor `off`.
pub fn view(ds: &Dataset) -> Result<Option<bool>> {
    match ds.prop(VIEW, true)? {
        None => Ok(None),
        Some((_, source)) if is_set_by_others(ds, VIEW, &source)? => Ok(None),
        Some((PropValue::Str(text), _)) if text == "on" => Ok(Some(true)),
        Some((PropValue::Str(text), _)) if text == "off" => Ok(Some(false)),
        Some(_) => bail!(Invalid, "its property {VIEW} can be 'on' or 'off'"),
    }
}

/// The directory at which the `mountpoint` of a dataset is set; `None`: nowhere.
fn place_set_at(ds: &Dataset) -> Result<Option<Arc<Dir>>> {
    match values::text(ds, "mountpoint")?.1 {
        None => Ok(None),
        Some(source) => set_at(ds, &source),
    }
}

/// The directory that a value comes from.
fn set_at(ds: &Dataset, source: &PropSource) -> Result<Option<Arc<Dir>>> {
    let PropSource::Inherited(from) = source else {
        return Ok(Some(ds.dir()));
    };
    let mut at = Some(ds.dir());
    while let Some(dir) = at {
        if dir.full_name() == *from {
            return Ok(Some(dir));
        }
        at = dir.parent();
    }
    Ok(None)
}

/// The user other than the owner who has set the mount point of a dataset: it must be this user's directory.
pub fn of_mountpoint(ds: &Dataset) -> Result<Option<u32>> {
    let Some(dir) = place_set_at(ds)? else {
        return Ok(None);
    };
    let setter = setter_of("mountpoint").unwrap_or_default();
    Ok(uid(dir.prop(setter, false)?).map(|uid| u32::try_from(uid).unwrap_or(u32::MAX)))
}

/// Whether a part of the name of a dataset was chosen by somebody else than the owner.
pub fn is_made_by_others(ds: &Dataset) -> Result<bool> {
    let mut at = Some(ds.dir());
    while let Some(dir) = at {
        if maker(&dir)?.is_some() {
            return Ok(true);
        }
        at = dir.parent();
    }
    Ok(false)
}

/// Whether a part of the path that follows from the name of a dataset was chosen by somebody else than the owner.
pub fn is_named_by_others(ds: &Dataset) -> Result<bool> {
    let top = place_set_at(ds)?.map(|dir| dir.object());
    let mut at = Some(ds.dir());
    while let Some(dir) = at {
        if Some(dir.object()) == top {
            break;
        }
        if maker(&dir)?.is_some() {
            return Ok(true);
        }
        at = dir.parent();
    }
    Ok(false)
}
