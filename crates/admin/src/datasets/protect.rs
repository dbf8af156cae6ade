//! The user property `zfs-fuse:protect`: a protected dataset is destroyed or rolled back only by a request that
//! says so (`--protected`), and never by `zfs receive -F`.
//!
//! It is off where it is not set, is inherited as user properties are, and can be set on snapshots. Other systems keep
//! it, and do not obey it.

use crate::datasets::{self, Answer};
use api::ApiError;
use base::{Kind, Result};
use dsl::{Dataset, PropValue};
use std::collections::HashMap;
use std::sync::Arc;

/// The property.
pub const PROTECT: &str = "zfs-fuse:protect";
/// The value that protects.
const ON: &str = "on";
/// Most names that a refusal lists.
const LISTED: usize = 32;

/// Whether a dataset is protected, by a value of its own or an inherited one. Where that is damaged nothing can be protected
/// any more, and who wants to get rid of it must be able to.
pub fn is_on(ds: &Dataset) -> Result<bool> {
    let value = match ds.prop(PROTECT, true) {
        Err(e) if e.is_wrong_content() => return Ok(false),
        value => value?,
    };
    Ok(value.is_some_and(|(v, _)| matches!(v, PropValue::Str(text) if text == ON)))
}

/// Refuses if one of these, by full names, is protected. `what` the caller would do: `destroy`.
///
/// # Errors
/// Not permitted, with the names and how to do it nevertheless.
pub fn refuse<'a>(
    what: &str,
    list: impl Iterator<Item = Answer<(&'a str, Arc<Dataset>)>>,
) -> Answer<()> {
    // By directory: nearly all snapshots have what their file system has.
    let mut inherited: HashMap<u64, bool> = HashMap::new();
    let mut protected = Vec::new();
    let mut count = 0usize;
    for one in list {
        let (name, ds) = one?;
        let plain = |e| datasets::plain(e, name);
        let on = if ds.is_snapshot() && ds.phys().props_obj == 0 {
            let dir = ds.dir();
            match inherited.get(&dir.object()) {
                Some(on) => *on,
                None => {
                    let on = dir.head().and_then(|head| is_on(&head)).map_err(plain)?;
                    inherited.insert(dir.object(), on);
                    on
                }
            }
        } else {
            is_on(&ds).map_err(plain)?
        };
        if on {
            count += 1;
            if protected.len() < LISTED {
                protected.push(name.to_string());
            }
        }
    }
    if count == 0 {
        return Ok(());
    }
    if count > protected.len() {
        protected.push(format!("... and {} more", count - protected.len()));
    }
    Err(ApiError::reason(
        Kind::NotPermitted,
        format!("protected by property '{PROTECT}'"),
    )
    .hint(format!(
        "use '--protected' to {what} the following although they are protected:\n{}",
        protected.join("\n")
    )))
}
