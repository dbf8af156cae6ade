//! [`Kernel`]: what the room publishes, as notifications of FUSE.

use base::sync::MutexExt;
use fuse::{Mount, Notifier};
use std::sync::Mutex;
use vfs::{Subscriber, Truth, ViewIds};

/// The kernel as the client of a door. Failures of notifications mean that the mount has ended, or that the kernel does not know the
/// node, and are passed over.
pub struct Kernel {
    notifier: Notifier,
    mount: Mutex<Mount>,
    /// The ids that the kernel has for the nodes of the door, if others than the door's.
    ids: Option<ViewIds>,
}

impl Kernel {
    /// The kernel that has a file system mounted.
    pub fn new(notifier: Notifier, mount: Mount) -> Kernel {
        Kernel {
            notifier,
            mount: Mutex::new(mount),
            ids: None,
        }
    }

    /// The same for a file system that is part of a view.
    pub fn in_view(notifier: Notifier, mount: Mount, ids: ViewIds) -> Kernel {
        Kernel {
            ids: Some(ids),
            ..Kernel::new(notifier, mount)
        }
    }

    /// The kernel's id of a node. What has none the kernel does not know.
    fn id(&self, node: u64) -> Option<u64> {
        match &self.ids {
            None => Some(node),
            Some(ids) => ids.outside(node),
        }
    }

    /// The kernel's generation of a node.
    fn generation(&self, generation: u32) -> u32 {
        self.ids
            .as_ref()
            .map_or(generation, |ids| ids.generation(generation))
    }

    /// It is mounted at another place from now on.
    pub fn set_mount(&self, mount: Mount) {
        *self.mount.acquire() = mount;
    }
}

impl Subscriber for Kernel {
    fn attributes(&self, node: u64) {
        let Some(node) = self.id(node) else { return };
        let _ = self.notifier.inval_inode(node, -1, 0);
    }

    fn attributes_later(&self, node: u64) {
        let Some(node) = self.id(node) else { return };
        let notifier = self.notifier.clone();
        let _ = std::thread::Builder::new()
            .name("fuse notify".into())
            .spawn(move || notifier.inval_inode(node, -1, 0));
    }

    fn content(&self, node: u64, range: Option<(u64, u64)>) {
        let Some(node) = self.id(node) else { return };
        let (offset, len) = range.unwrap_or((0, 0));
        let (Ok(offset), Ok(len)) = (i64::try_from(offset), i64::try_from(len)) else {
            return;
        };
        // It waits for requests of the file.
        let _waiting = fuse::about_to_wait_for_requests();
        // Pages that cannot be written are remembered by the kernel for the next fsync.
        let _ = self.notifier.inval_inode(node, offset, len);
    }

    fn name(&self, parent: u64, name: &[u8]) {
        let Some(parent) = self.id(parent) else {
            return;
        };
        let _waiting = fuse::about_to_wait_for_requests();
        let _ = self.notifier.inval_entry(parent, name);
    }

    fn all_names(&self) {
        let _ = self.notifier.inc_epoch();
    }

    fn grow(&self, node: u64, offset: u64, data: &[u8]) -> bool {
        let stored = |node| self.notifier.store(node, offset, data).is_ok();
        self.id(node).is_some_and(stored)
    }

    fn tell(&self, files: &[Truth], teller: &(dyn Fn(Option<u32>) + Sync)) -> Vec<bool> {
        let truths: Vec<_> = files
            .iter()
            .map(|f| fuse::Truth {
                file: (self.id(f.node).unwrap_or(0), self.generation(f.generation)),
                size: f.size,
                mtime: crate::convert::time(f.mtime),
            })
            .collect();
        let mount = self.mount.acquire().clone();
        let told = fuse::tell(&mount, &truths, teller);
        told.iter().map(std::result::Result::is_ok).collect()
    }
}
