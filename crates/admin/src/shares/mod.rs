//! How a file system is shared over NFS: what the property `sharenfs` says ([`options`]), and who serves it ([`Sharer`]).
//! The operations are in `datasets/share.rs`. Sharing over SMB is in [`smb`].
//!
//! 1. What is not mounted is not shared. A share is part of the mount ([`crate::Mounted::share`]) and ends with it.
//! 2. A file system is shared when it is mounted, by its property, until `zfs unshare`. It is shared anew when the property changes.
//! 3. Options that another user than the owner has chosen ([`crate::setters`]) give no client the rights of root ([`check`]).
//!    Servers that are told of places, and not of file systems, have rules of their own for what users chose.

pub mod options;
pub mod smb;

use crate::setters;
use base::{bail, Result};
use dsl::Dataset;
use std::any::Any;
use std::path::Path;
use std::sync::Arc;

pub use options::{Client, Rule, Share};
pub use smb::SmbServer;

/// Name of the property.
pub const PROPERTY: &str = "sharenfs";

/// A mounted file system that is to be shared.
pub struct Candidate<'a> {
    /// Its dataset.
    pub ds: &'a Dataset,
    /// Where it is mounted.
    pub path: &'a Path,
    /// The ordinary user who chose the place, by the property or with the command.
    pub chosen_by: Option<u32>,
    /// What its door holds of it.
    pub mount: &'a dyn Any,
}

/// Serves shares.
pub trait Sharer: Send + Sync {
    /// Refuses what it cannot serve as the options say. It must not wait.
    ///
    /// # Errors
    /// Which option, and why.
    fn check(&self, of: &Candidate<'_>, share: &Share) -> Result<()>;

    /// Shares have come, gone or changed. Returns when it is so for clients. No lock of a pool is held.
    ///
    /// # Errors
    /// Why clients may not have them.
    fn changed(&self) -> Result<()>;

    /// The same from within a mount or unmount: it must not wait.
    fn will_change(&self);

    /// Why clients did not get a file system that is shared, when it was looked at for the last time.
    fn refusal(&self, _dataset: &str) -> Option<String> {
        None
    }

    /// Whether what it serves cannot be unmounted: the kernel's server holds what its clients use. It is told first then
    /// ([`crate::datasets::share::Unshared`]), with locks of the pool held.
    fn holds_mounts(&self) -> bool {
        false
    }
}

/// Refuses what a server, if there is one, cannot serve, or may not since of whoever chose the options.
///
/// # Errors
/// Which option, and why.
pub fn check(sharer: Option<&Arc<dyn Sharer>>, of: &Candidate<'_>, share: &Share) -> Result<()> {
    if share.by_others && (!share.root_squash || [share.anonuid, share.anongid].contains(&0)) {
        bail!(
            NotPermitted,
            "sharenfs gives clients the rights of root (no_root_squash, or 0 as the id of who is squashed), and was not set by \
             root; only root shares so"
        );
    }
    sharer.map_or(Ok(()), |s| s.check(of, share))
}

/// What the property of a dataset says, in effect.
///
/// # Errors
/// It cannot be read, or is no value: of a pool that another system wrote, say.
pub fn wanted(ds: &Dataset) -> Result<Option<Share>> {
    if ds.is_snapshot() {
        return Ok(None);
    }
    match ds.prop(PROPERTY, true)? {
        Some((value, source)) => {
            let share = options::parse(value.text().unwrap_or("off"))?;
            let by_others = setters::is_set_by_others(ds, PROPERTY, &source)?;
            Ok(share.map(|share| Share { by_others, ..share }))
        }
        None => Ok(None),
    }
}
