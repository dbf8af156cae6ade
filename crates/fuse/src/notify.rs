//! Telling the kernel about changes made beside the mount.
//!
//! The kernel takes locks of its own for these: dropping an entry takes the lock of its directory,
//! which an operation being served on that directory holds, and dropping pages waits for writes
//! that the session must serve. So a notification must not be sent from within a method of the
//! file system nor while holding a lock that such a method waits for; send it from another thread,
//! after the change is visible. Two exceptions: forgetting attributes only, and forgetting pages
//! under [`crate::about_to_wait_for_requests`], of a node the request being served keeps in use.

use std::fs::File;
use std::io::{self, IoSlice, Write};
use std::sync::{Arc, Weak};

use zerocopy::IntoBytes;

use crate::abi::{self, notify, OutHeader};
use crate::handle::Shared;

/// Sends notifications on a connection. Every method returns whether the kernel had something to
/// change: `false` if it knew nothing about the node or name, or the session is over.
#[derive(Clone)]
pub struct Notifier {
    device: Weak<File>,
    shared: Arc<Shared>,
}

/// Sends a notification; whether it concerned anything.
pub(crate) fn send(mut device: &File, code: i32, parts: &[&[u8]]) -> io::Result<bool> {
    let len = 16 + parts.iter().map(|p| p.len()).sum::<usize>();
    let head = OutHeader {
        len: len as u32,
        error: code,
        unique: 0,
    };
    let mut iov = vec![IoSlice::new(head.as_bytes())];
    iov.extend(parts.iter().map(|p| IoSlice::new(p)));
    loop {
        return match device.write_vectored(&iov) {
            Ok(_) => Ok(true),
            Err(e) => match e.raw_os_error() {
                Some(libc::EINTR) => continue,
                Some(libc::ENOENT) | Some(libc::ENODEV) | Some(libc::ENOTCONN) => Ok(false),
                _ => Err(e),
            },
        };
    }
}

impl Notifier {
    pub(crate) fn new(device: Weak<File>, shared: Arc<Shared>) -> Notifier {
        Notifier { device, shared }
    }

    /// The connection, while it is served.
    pub(crate) fn device(&self) -> Option<Arc<File>> {
        self.device.upgrade()
    }

    /// Waits until [`crate::Filesystem::forget`] was called for all that the kernel has forgotten so far; whether it was,
    /// within some seconds. Over the device they are not waited for: there they are read as they come. Not to be called by
    /// a thread that serves requests, nor with a lock that one waits for.
    pub fn collect_forgets(&self) -> bool {
        let over_ring = self.shared.carried.get().is_some_and(|c| c.uring);
        match self.device.upgrade().filter(|_| over_ring) {
            Some(device) => self.shared.forgets.wait(&device),
            None => true,
        }
    }

    fn send(&self, code: i32, parts: &[&[u8]]) -> io::Result<bool> {
        match self.device.upgrade() {
            Some(device) => send(&device, code, parts),
            None => Ok(false),
        }
    }

    /// Forgets the attributes of a node, and its cached data from `offset` for `len` bytes (0: to
    /// the end). A negative `offset` leaves the data alone.
    pub fn inval_inode(&self, node: u64, offset: i64, len: i64) -> io::Result<bool> {
        let out = abi::NotifyInvalInodeOut {
            ino: node,
            off: offset,
            len,
        };
        self.send(notify::INVAL_INODE, &[out.as_bytes()])
    }

    /// Forgets a name (or that it does not exist). Open files stay open; a directory that is a
    /// mount point's way is detached with what is mounted below.
    pub fn inval_entry(&self, parent: u64, name: &[u8]) -> io::Result<bool> {
        self.entry(parent, name, 0)
    }

    /// Lets a name expire: it is looked up again before its next use, but nothing is torn down.
    pub fn expire_entry(&self, parent: u64, name: &[u8]) -> io::Result<bool> {
        self.entry(parent, name, abi::EXPIRE_ONLY)
    }

    fn entry(&self, parent: u64, name: &[u8], flags: u32) -> io::Result<bool> {
        let out = abi::NotifyInvalEntryOut {
            parent,
            namelen: name.len() as u32,
            flags,
        };
        self.send(notify::INVAL_ENTRY, &[out.as_bytes(), name, b"\0"])
    }

    /// The name is gone and was `child`: like [`Notifier::inval_entry`], and watchers (inotify)
    /// hear of the removal.
    pub fn delete(&self, parent: u64, child: u64, name: &[u8]) -> io::Result<bool> {
        let out = abi::NotifyDeleteOut {
            parent,
            child,
            namelen: name.len() as u32,
            padding: 0,
        };
        self.send(notify::DELETE, &[out.as_bytes(), name, b"\0"])
    }

    /// Puts data into the page cache of a node.
    pub fn store(&self, node: u64, offset: u64, data: &[u8]) -> io::Result<bool> {
        let size =
            u32::try_from(data.len()).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
        let out = abi::NotifyStoreOut {
            nodeid: node,
            offset,
            size,
            padding: 0,
        };
        self.send(notify::STORE, &[out.as_bytes(), data])
    }

    /// Every name of the mount is looked up again before its next use (ABI 7.44).
    pub fn inc_epoch(&self) -> io::Result<bool> {
        self.send(notify::INC_EPOCH, &[])
    }

    /// Asks the kernel to drop nodes it caches but nobody uses, at most some thousands at a time
    /// (ABI 7.45).
    pub fn prune(&self, nodes: &[u64]) -> io::Result<bool> {
        let count =
            u32::try_from(nodes.len()).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
        let out = abi::NotifyPruneOut {
            count,
            ..Default::default()
        };
        self.send(notify::PRUNE, &[out.as_bytes(), nodes.as_bytes()])
    }
}
