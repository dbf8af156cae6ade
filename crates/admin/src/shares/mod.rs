//! How a file system is shared over NFS: what the property `sharenfs` says ([`options`]), and who serves it ([`Sharer`]).
//! The operations are in `datasets/share.rs`. Sharing over SMB is in [`smb`].
//!
//! 1. What is not mounted is not shared. A share is part of the mount ([`crate::Mounted::share`]) and ends with it.
//! 2. A file system is shared when it is mounted, by its property, until `zfs unshare`. It is shared anew when the property changes.

pub mod options;
pub mod smb;

use base::Result;
use dsl::Dataset;

pub use options::{Client, Rule, Share};
pub use smb::SmbServer;

/// Name of the property.
pub const PROPERTY: &str = "sharenfs";

/// Serves shares.
pub trait Sharer: Send + Sync {
    /// Refuses what it cannot serve as the options say.
    ///
    /// # Errors
    /// Which option, and why.
    fn check(&self, share: &Share) -> Result<()>;

    /// Shares have come, gone or changed. Returns when it is so for clients. No lock of a pool is held.
    ///
    /// # Errors
    /// Why clients may not have them.
    fn changed(&self) -> Result<()>;

    /// The same from within a mount or unmount: it must not wait.
    fn will_change(&self);
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
        Some((value, _)) => options::parse(value.text().unwrap_or("off")),
        None => Ok(None),
    }
}
