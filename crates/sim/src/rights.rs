//! Delegated permissions in the simulated world: which users may make snapshots of what.

use dsl::deleg::{Entry, Holder, Scope};
use dsl::Dir;
use std::collections::BTreeSet;

/// Users to whom something is delegated: 1 up to this one.
pub const USERS: u64 = 3;
/// The permission that they get.
pub const PERMISSION: &str = "snapshot";

/// What is delegated: file system, and user.
pub type Rights = BTreeSet<(String, u64)>;

/// Whether a user may make a snapshot of a file system.
pub fn may(rights: &Rights, fs: &str, uid: u64) -> bool {
    // All are children of the root.
    let has = |fs: &str| rights.contains(&(fs.to_string(), uid));
    has(fs) || has("")
}

/// Whether just this is delegated at a directory.
pub fn check(dir: &Dir, fs: &str, rights: &Rights) -> Result<(), String> {
    let found = dir.delegated().map_err(|e| e.to_string())?;
    let mut there = BTreeSet::new();
    for Entry {
        holder,
        scope,
        permissions,
    } in found
    {
        match holder {
            Holder::User(uid) if permissions == [PERMISSION] => {
                there.insert((uid, scope));
            }
            other => return Err(format!("{other:?} has {permissions:?} at '{fs}'")),
        }
    }
    let here = rights.iter().filter(|(f, _)| f == fs).map(|(_, u)| *u);
    let both = |u| [(u, Scope::Local), (u, Scope::Descendent)];
    let must: BTreeSet<_> = here.flat_map(both).collect();
    match there == must {
        true => Ok(()),
        false => Err(format!(
            "permissions of '{fs}': {there:?} instead of {must:?}"
        )),
    }
}
