//! Authorisation: the permissions that each action needs, and the only check for them.
//!
//! 1. Root, and the user whose daemon it is, may do everything. Everybody else needs delegated
//!    permissions (data format §15), which count only while the pool property `delegation` is on.
//! 2. [`needs`] is the only list of what actions need. An operation calls [`require`] with the lock of
//!    names held ([`crate::registry::Names`]), before it changes anything. Permissions change only under
//!    the same lock, held for writing.
//! 3. Limits on the number of file systems and snapshots depend on the caller, too. They are checked
//!    again in the txg in which the change is made, with the [`dsl::Caller`] taken along.

use super::Answer;
use crate::errors;
use crate::registry::{Admin, PoolEntry};
use api::{ApiError, Peer};
use base::mutation::{mutated, Mutation};
use base::{bail, Kind, Result};
use disk::props;
use dsl::{Caller, Dataset};
use std::cell::{Cell, RefCell};
use std::sync::Arc;

/// What is to be done with a dataset, or in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Permissions of a head are given or taken back.
    Allow,
    /// A new bookmark of a head.
    Bookmark,
    /// A head gets another key, or that of its parent.
    ChangeKey,
    /// The origin of a clone.
    CloneFrom,
    /// The parent of a new dataset (also of a clone, of what is renamed into it).
    CreateIn,
    /// A head, snapshot or bookmark (its head).
    Destroy,
    /// The head of a bookmark.
    DestroyBookmark,
    /// The snapshot that is compared with something.
    Diff,
    /// The head of the snapshot that is held.
    Hold,
    /// A key is loaded or forgotten.
    LoadKey,
    /// Mount and unmount.
    Mount,
    /// The clone.
    Promote,
    /// The snapshot that the clone was made of.
    PromoteOrigin,
    /// The head that is received into, or the parent of a new one. With `force` what is younger may be
    /// destroyed.
    Receive {
        /// Younger snapshots may be destroyed (`-F`).
        force: bool,
    },
    /// The head of the snapshot that is released.
    Release,
    /// Head or snapshot, under its old name.
    Rename,
    /// The head that goes back.
    Rollback,
    /// The snapshot that is sent. `raw`: as it is on disk, encrypted.
    Send {
        /// The stream is raw.
        raw: bool,
        /// The dataset is encrypted.
        encrypted: bool,
    },
    /// Shared and no longer shared.
    Share,
    /// The head of a new snapshot.
    Snapshot,
    /// User properties.
    UserProp,
}

/// Permissions an action needs: all of the list, of each at least one.
pub fn needs(action: Action) -> &'static [&'static [&'static str]] {
    match action {
        Action::Allow => &[&["allow"]],
        Action::Bookmark => &[&["bookmark"]],
        Action::ChangeKey => &[&["change-key"]],
        Action::CloneFrom => &[&["clone"]],
        Action::CreateIn => &[&["create"], &["mount"]],
        Action::Destroy => &[&["mount"], &["destroy"]],
        Action::DestroyBookmark => &[&["destroy"]],
        Action::Diff => &[&["diff"]],
        Action::Hold => &[&["hold"]],
        Action::LoadKey => &[&["load-key"]],
        Action::Mount => &[&["mount"]],
        Action::Promote => &[&["promote"], &["mount"]],
        Action::PromoteOrigin => &[&["promote"]],
        Action::Receive { force: true } => &[&["receive"], &["mount"], &["create"]],
        Action::Receive { force: false } => {
            &[&["receive", "receive:append"], &["mount"], &["create"]]
        }
        Action::Release => &[&["release"]],
        Action::Rename => &[&["rename"], &["mount"]],
        Action::Rollback => &[&["rollback"]],
        Action::Send { raw: false, .. } => &[&["send"]],
        Action::Send {
            raw: true,
            encrypted: false,
        } => &[&["send", "send:raw"]],
        Action::Send {
            raw: true,
            encrypted: true,
        } => &[&["send", "send:raw", "send:encrypted"]],
        Action::Share => &[&["share"]],
        Action::Snapshot => &[&["snapshot"]],
        Action::UserProp => &[&["userprop"]],
    }
}

/// Permissions that are no properties, as `zfs allow` takes them.
pub const PERMISSIONS: [&str; 34] = [
    "allow",
    "bookmark",
    "change-key",
    "clone",
    "create",
    "destroy",
    "diff",
    "groupobjquota",
    "groupobjused",
    "groupquota",
    "groupused",
    "hold",
    "load-key",
    "mount",
    "projectobjquota",
    "projectobjused",
    "projectquota",
    "projectused",
    "promote",
    "receive",
    "receive:append",
    "release",
    "rename",
    "rollback",
    "send",
    "send:encrypted",
    "send:raw",
    "share",
    "snapshot",
    "userobjquota",
    "userobjused",
    "userprop",
    "userquota",
    "userused",
];

/// The name under which a permission is kept: one of [`PERMISSIONS`], or that of a property that can be
/// set. `None`: there is no such permission.
pub fn permission(name: &str) -> Option<&'static str> {
    if let Some(p) = PERMISSIONS.iter().find(|p| **p == name) {
        return Some(p);
    }
    let p = props::dataset(name)?;
    (p.class != props::Class::ReadOnly && p.name != "mlslabel").then_some(p.name)
}

/// The permission to set a property.
pub fn of_property(name: &str) -> &str {
    if props::is_user(name) {
        return "userprop";
    }
    // Quotas: `userquota@joe`, and `defaultuserquota` for those without one of their own.
    let stem = name.split_once('@').map_or(name, |(stem, _)| stem);
    if let Some(rest) = stem.strip_prefix("default") {
        if let Some(p) = PERMISSIONS.iter().find(|p| **p == rest) {
            return p;
        }
    }
    PERMISSIONS
        .iter()
        .find(|p| **p == stem && name.contains('@'))
        .copied()
        .or_else(|| props::dataset(name).map(|p| p.name))
        .unwrap_or(name)
}

thread_local! {
    static GROUPS: RefCell<Vec<u32>> = const { RefCell::new(Vec::new()) };
    static STRANGER: Cell<bool> = const { Cell::new(false) };
}

/// Carries a request out for a caller who is told nothing of others' processes and files.
pub fn for_stranger<R>(request: impl FnOnce() -> R) -> R {
    struct Back(bool);
    impl Drop for Back {
        fn drop(&mut self) {
            STRANGER.set(self.0);
        }
    }
    let _back = Back(STRANGER.replace(true));
    request()
}

/// Whether the request of this thread is one of [`for_stranger`].
pub fn is_for_stranger() -> bool {
    STRANGER.get()
}

/// Most datasets and snapshots that one request of [`for_stranger`] may be about. They are listed until it is answered, each in
/// about a KiB.
pub const MOST_OF_USERS: usize = 10_000;

/// Refuses such a request that is about more.
///
/// # Errors
/// `Kind::ArgTooBig` with what to do.
pub fn bounded(number: usize) -> Result<()> {
    if number > MOST_OF_USERS && is_for_stranger() {
        bail!(
            ArgTooBig,
            "one request of a user other than the owner is about {MOST_OF_USERS} datasets and snapshots at most; name \
             fewer at a time"
        );
    }
    Ok(())
}

/// All groups of the caller of this thread's request.
pub fn all_groups(peer: Peer) -> Vec<u64> {
    let own = std::iter::once(u64::from(peer.gid));
    GROUPS.with_borrow(|g| own.chain(g.iter().map(|g| u64::from(*g))).collect())
}

/// Carries a request out for a caller who is in these supplementary groups, as the kernel says.
pub fn with_groups<R>(groups: Vec<u32>, request: impl FnOnce() -> R) -> R {
    let before = GROUPS.replace(groups);
    struct Back(Vec<u32>);
    impl Drop for Back {
        fn drop(&mut self) {
            GROUPS.set(std::mem::take(&mut self.0));
        }
    }
    let _back = Back(before);
    request()
}

/// The groups of the caller, the process's own first; none where nobody calls.
pub fn groups() -> Vec<u32> {
    GROUPS.with_borrow(Clone::clone)
}

/// Whether nothing is refused to a caller.
pub fn is_owner(admin: &Admin, peer: Peer) -> bool {
    mutated(Mutation::RightsOff) || peer.uid == 0 || peer.uid == admin.process.user().0
}

/// Who asks, for files: a caller whose permissions nobody has checked yet.
pub fn cred(peer: Peer) -> zpl::Cred {
    GROUPS.with_borrow(|groups| zpl::Cred::user(peer.uid, peer.gid, groups))
}

/// Who asks, for the engine.
///
/// Errors: the pool's properties cannot be read.
pub fn caller(admin: &Admin, entry: &PoolEntry, peer: Peer) -> Answer<Caller> {
    let all = is_owner(admin, peer);
    let mut groups = Vec::new();
    let mut delegation = false;
    if !all {
        groups = all_groups(peer);
        delegation = is_on(entry).map_err(errors::answer)?;
    }
    Ok(Caller {
        uid: u64::from(peer.uid),
        groups,
        all,
        delegation,
    })
}

/// Pool property `delegation`.
pub fn is_on(entry: &PoolEntry) -> Result<bool> {
    let stored = entry.pool.stored_props()?;
    let set = stored.iter().find(|(n, _)| n == "delegation");
    Ok(set.and_then(|(_, v)| v.int()) != Some(0))
}

/// The error for callers without the permission.
pub fn denied() -> ApiError {
    ApiError::reason(Kind::NotPermitted, "permission denied")
}

fn check(may: impl Fn(&str) -> Result<bool>, needed: &[&[&str]]) -> Answer<()> {
    for any in needed {
        let mut granted = false;
        for p in *any {
            granted = granted || may(p).map_err(errors::answer)?;
        }
        if !granted {
            return Err(denied());
        }
    }
    Ok(())
}

/// Refuses an action to callers who lack a permission for it at `ds`. Local permissions of a head do not
/// count for its snapshots.
///
/// Errors: `permission denied`; or permissions cannot be read.
pub fn require(
    admin: &Admin,
    entry: &PoolEntry,
    peer: Peer,
    action: Action,
    ds: &Dataset,
) -> Answer<()> {
    require_all(admin, entry, peer, action, [ds])
}

/// The same for each of several datasets of a pool.
pub fn require_all<'a>(
    admin: &Admin,
    entry: &PoolEntry,
    peer: Peer,
    action: Action,
    list: impl IntoIterator<Item = &'a Dataset>,
) -> Answer<()> {
    if is_owner(admin, peer) {
        return Ok(());
    }
    let who = caller(admin, entry, peer)?;
    list.into_iter()
        .try_for_each(|ds| check(|p| ds.permits(p, &who), needs(action)))
}

/// The same for datasets that are opened one after the other.
pub fn require_each(
    admin: &Admin,
    entry: &PoolEntry,
    peer: Peer,
    action: Action,
    list: impl IntoIterator<Item = Answer<Arc<Dataset>>>,
) -> Answer<()> {
    if is_owner(admin, peer) {
        return Ok(());
    }
    let who = caller(admin, entry, peer)?;
    list.into_iter().try_for_each(|ds| {
        let ds = ds?;
        check(|p| ds.permits(p, &who), needs(action))
    })
}

/// Who must be asked for permissions, once for many datasets; `None`: nothing is refused to this caller.
///
/// Errors: as [`caller`].
pub fn asked(admin: &Admin, entry: &PoolEntry, peer: Peer) -> Answer<Option<Caller>> {
    match is_owner(admin, peer) {
        true => Ok(None),
        false => caller(admin, entry, peer).map(Some),
    }
}

/// As [`require`], of a caller of [`asked`].
///
/// Errors: as [`require`].
pub fn permitted(who: &Caller, action: Action, ds: &Dataset) -> Answer<()> {
    check(|p| ds.permits(p, who), needs(action))
}

/// The same for a permission by its name: that to set a property, say ([`of_property`]).
pub fn require_named(
    admin: &Admin,
    entry: &PoolEntry,
    peer: Peer,
    permission: &str,
    ds: &Dataset,
) -> Answer<()> {
    if is_owner(admin, peer) {
        return Ok(());
    }
    let who = caller(admin, entry, peer)?;
    check(|p| ds.permits(p, &who), &[&[permission]])
}

/// The same for a dataset that is about to be made in `parent`.
pub fn require_named_in_new(
    admin: &Admin,
    entry: &PoolEntry,
    peer: Peer,
    permission: &str,
    parent: &Dataset,
) -> Answer<()> {
    require_all_in_new(admin, entry, peer, &[&[permission]], parent)
}

fn require_all_in_new(
    admin: &Admin,
    entry: &PoolEntry,
    peer: Peer,
    needed: &[&[&str]],
    parent: &Dataset,
) -> Answer<()> {
    if is_owner(admin, peer) {
        return Ok(());
    }
    let who = caller(admin, entry, peer)?;
    let dir = parent.dir();
    check(|p| dir.permits_in_new(p, &who), needed)
}

/// Refuses to make or move a dataset below file systems that are missing in `parent` and are made on the
/// way. Each of them belongs to the caller: what counts there is what creators get and what `parent` and
/// the directories above delegate to descendents.
///
/// Errors: as [`require`].
pub fn require_below_new(
    admin: &Admin,
    entry: &PoolEntry,
    peer: Peer,
    parent: &Dataset,
) -> Answer<()> {
    require_all_in_new(admin, entry, peer, needs(Action::CreateIn), parent)
}

/// Refuses an action to callers who would lack a permission for it at what they make in `parent`.
///
/// Errors: as [`require`].
pub fn require_action_in_new(
    admin: &Admin,
    entry: &PoolEntry,
    peer: Peer,
    action: Action,
    parent: &Dataset,
) -> Answer<()> {
    require_all_in_new(admin, entry, peer, needs(action), parent)
}

/// Refuses to make a dataset in `parent`, or to move one there, and to set these properties of it.
pub fn require_in_new(
    admin: &Admin,
    entry: &PoolEntry,
    peer: Peer,
    parent: &Dataset,
    list: &api::Props,
) -> Answer<()> {
    if is_owner(admin, peer) {
        return Ok(());
    }
    require(admin, entry, peer, Action::CreateIn, parent)?;
    let who = caller(admin, entry, peer)?;
    let parent = parent.dir();
    for (name, _) in list {
        // What only something new can have is part of making it.
        let part_of_it = name == "keylocation"
            || props::dataset(name).is_some_and(|p| {
                matches!(p.class, props::Class::Once | props::Class::OnceDefault)
                    || matches!(p.store, props::Store::MasterNode | props::Store::CryptoKey)
            });
        if !part_of_it {
            let p = of_property(name);
            check(|p| parent.permits_in_new(p, &who), &[&[p]])?;
        }
    }
    Ok(())
}

/// The user for whom something is mounted; `None`: the owner, who may mount anywhere.
pub fn mounting_user(admin: &Admin, peer: Peer) -> Option<u32> {
    (!is_owner(admin, peer)).then_some(peer.uid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_permissions() {
        for (name, want) in [
            ("send:raw", Some("send:raw")),
            ("compress", Some("compression")),
            ("quota", Some("quota")),
            ("userquota", Some("userquota")),
            ("version", Some("version")),
            ("used", None),
            ("mlslabel", None),
            ("userquota@joe", None),
            ("com.example:x", None),
        ] {
            assert_eq!(permission(name), want, "{name}");
        }
        let mut sorted = PERMISSIONS;
        sorted.sort_unstable();
        assert_eq!(sorted, PERMISSIONS);
        for (property, want) in [
            ("com.example:x", "userprop"),
            ("userquota@joe", "userquota"),
            ("defaultgroupobjquota", "groupobjquota"),
            ("compress", "compression"),
            ("snapshot_limit", "snapshot_limit"),
        ] {
            assert_eq!(of_property(property), want, "{property}");
        }
    }

    #[test]
    fn groups_last_as_long_as_the_request() {
        with_groups(vec![1, 2], || {
            with_groups(vec![3], || GROUPS.with_borrow(|g| assert_eq!(*g, [3])));
            GROUPS.with_borrow(|g| assert_eq!(*g, [1, 2]));
        });
        GROUPS.with_borrow(|g| assert!(g.is_empty()));
    }
}
