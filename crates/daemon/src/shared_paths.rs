//! Paths that are given to servers which share paths, and not file systems: the kernel's NFS server, Samba. They follow links, as
//! root, at any moment. So a path is given only if nobody but root can have it lead elsewhere.
//!
//! 1. Root has chosen it: the mount point is not one that an ordinary user has set, or has given to `zfs mount`. A name that a user
//!    has given to a dataset may be its end; names of datasets have letters, digits and a few signs only.
//! 2. On the way there are no links, and nobody but root can put one there ([`fuse::Mount::check_way`]). What is mounted in a
//!    directory of a user, in a file system of ours, cannot be renamed.
//! 3. The path leads into the file system now.
//! 4. It is text without control characters.

use crate::door::FuseMount;
use crate::view_door::MemberMount;
use admin::shares::Candidate;
use admin::{Admin, Mounted};
use base::{bail, Kind, Result};
use std::path::{Path, PathBuf};

/// Refuses a place that was not chosen by root, or cannot be written down. Nothing is asked of a file system.
///
/// # Errors
/// Why, as the end of a sentence.
pub fn check(of: &Candidate<'_>) -> Result<()> {
    let place = of.path.display();
    if let Some(uid) = of.chosen_by {
        bail!(
            NotPermitted,
            "its mount point '{place}' was chosen by user {uid}, who could have the server follow a link from there; a mount point \
             that root sets is shared"
        );
    }
    let is_plain = |p: &str| !p.chars().any(char::is_control);
    if !of.path.to_str().is_some_and(is_plain) {
        bail!(
            NotPermitted,
            "its mount point has characters that are none of UTF-8, or control characters"
        );
    }
    Ok(())
}

/// Where a file system is reached, once it is known that only root can change that. To be called with no lock of a pool held.
///
/// # Errors
/// Which directory is in the way; again, if the way there does not answer.
pub fn steady(admin: &Admin, m: &Mounted) -> Result<PathBuf> {
    check(&m.candidate())?;
    let any = m.mount.as_any();
    let own = any.downcast_ref::<FuseMount>();
    let hung = any.downcast_ref::<MemberMount>();
    let (mount, path) = match (own, hung) {
        (Some(own), _) => (own.kernel_mount(), m.path.clone()),
        (_, Some(hung)) => hung.place(),
        _ => return Err(Kind::Unsupported.into()),
    };
    let pools = admin.pools();
    let mounts: Vec<_> = pools.iter().flat_map(|e| e.all_mounts()).collect();
    let (mut devices, mut places) = (Vec::new(), Vec::new());
    for other in &mounts {
        let any = other.mount.as_any();
        if let Some(own) = any.downcast_ref::<FuseMount>() {
            if path.starts_with(&other.path) {
                devices.push(own.kernel_mount().device());
            }
        } else if let Some(hung) = any.downcast_ref::<MemberMount>() {
            let (_, place) = hung.place();
            if path.starts_with(&place) && other.is_in_place() {
                places.push(place);
            }
        }
    }
    let places: Vec<&Path> = places.iter().map(PathBuf::as_path).collect();
    mount.check_way(&path, devices, &places)?;
    Ok(path)
}
