//! [`Kernel`]: what the room publishes, as notifications of FUSE.

use base::sync::MutexExt;
use fuse::{Mount, Notifier};
use std::sync::Mutex;
use vfs::{Subscriber, Truth};

/// The kernel as the client of a door. Failures of notifications mean that the mount has ended, or that the kernel does not know the
/// node, and are passed over.
pub struct Kernel {
    notifier: Notifier,
    mount: Mutex<Mount>,
}

impl Kernel {
    /// The kernel that has a file system mounted.
    pub fn new(notifier: Notifier, mount: Mount) -> Kernel {
        Kernel {
            notifier,
            mount: Mutex::new(mount),
        }
    }

    /// It is mounted at another place from now on.
    pub fn set_mount(&self, mount: Mount) {
        *self.mount.acquire() = mount;
    }
}

impl Subscriber for Kernel {
    fn attributes(&self, node: u64) {
        let _ = self.notifier.inval_inode(node, -1, 0);
    }

    fn attributes_later(&self, node: u64) {
        let notifier = self.notifier.clone();
        let _ = std::thread::Builder::new()
            .name("fuse notify".into())
            .spawn(move || notifier.inval_inode(node, -1, 0));
    }

    fn content(&self, node: u64, range: Option<(u64, u64)>) {
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
        let _waiting = fuse::about_to_wait_for_requests();
        let _ = self.notifier.inval_entry(parent, name);
    }

    fn all_names(&self) {
        let _ = self.notifier.inc_epoch();
    }

    fn grow(&self, node: u64, offset: u64, data: &[u8]) -> bool {
        self.notifier.store(node, offset, data).is_ok()
    }

    fn tell(&self, files: &[Truth], teller: &(dyn Fn(Option<u32>) + Sync)) -> Vec<bool> {
        let truths: Vec<_> = files
            .iter()
            .map(|f| fuse::Truth {
                file: (f.node, f.generation),
                size: f.size,
                mtime: crate::convert::time(f.mtime),
            })
            .collect();
        let mount = self.mount.acquire().clone();
        let told = fuse::tell(&mount, &truths, teller);
        told.iter().map(std::result::Result::is_ok).collect()
    }
}
