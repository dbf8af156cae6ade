//! What the mounts of this door have in common, whether the kernel has one for the file system or for a view it hangs in.

use crate::nfs_slot::Slot;
use admin::door;
use base::Result;
use fuse::holders::Holders;
use fuse_zpl::Adapter;
use std::sync::{Arc, Weak};
use vfs::{Ctldir, Served};
use zpl::Zfs;

/// What all mounted file systems have.
pub struct Parts {
    /// Its `.zfs`.
    pub ctl: Arc<Ctldir>,
    /// What serves it, until its end.
    pub adapter: Weak<Adapter>,
    /// The way in for clients of NFS.
    pub nfs: Arc<Slot>,
}

impl Parts {
    /// The file system in service; none after its end.
    pub fn served(&self) -> Option<Arc<Served>> {
        Some(self.adapter.upgrade()?.served().clone())
    }
}

/// The processes that keep a mount busy, as the end of a sentence. Other users are not told what others do.
pub fn told(users: &Holders) -> String {
    match admin::datasets::rights::is_for_stranger() {
        true => String::new(),
        false => users.to_string(),
    }
}

/// A mount whose requests wait.
pub struct Held(pub vfs::Suspended);

impl door::Held for Held {
    fn resume(self: Box<Self>, zfs: &Arc<Zfs>) -> Result<()> {
        self.0.resume(zfs.clone())
    }
}
