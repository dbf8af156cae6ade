//! Stale nodes: those whose cached pages in the kernel may be of a file system that was replaced
//! ([`crate::swap`]).

use crate::gate::TICK;
use base::sync::MutexExt;
use fuse::{Errno, Request};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex};

/// Nodes of which the kernel may have pages of the state before.
#[derive(Default)]
pub(crate) struct Stale {
    count: AtomicUsize,
    /// Whether something written to them was thrown away.
    nodes: Mutex<HashMap<u64, bool>>,
    cleaned: Condvar,
    /// The thread of this process that tells the kernel sizes and times, as requests name it; 0: none.
    teller: AtomicU32,
}

impl Stale {
    /// Whether the node is one of them.
    #[inline]
    pub fn contains(&self, node: u64) -> bool {
        self.count.load(Ordering::Acquire) != 0 && self.nodes.acquire().contains_key(&node)
    }

    /// Whether what the kernel sends of the node's pages and times is thrown away.
    #[inline]
    pub fn drops(&self, node: u64) -> bool {
        self.count.load(Ordering::Acquire) != 0
            && match self.nodes.acquire().get_mut(&node) {
                Some(dropped) => {
                    *dropped = true;
                    true
                }
                None => false,
            }
    }

    /// The thread whose system calls tell the kernel the sizes and times of stale nodes, or none.
    pub fn set_teller(&self, thread: Option<u32>) {
        self.teller.store(thread.unwrap_or(0), Ordering::Release);
    }

    /// Whether the request tells the kernel of the node what is true here: it changes nothing.
    #[inline]
    pub fn is_told(&self, req: &Request, node: u64) -> bool {
        let teller = self.teller.load(Ordering::Acquire);
        teller != 0 && teller == req.pid && self.contains(node)
    }

    /// Waits until the kernel has no such pages of the node any more.
    ///
    /// Errors: EINTR if the caller was killed meanwhile, EIO if the session ended.
    pub fn wait(&self, req: &Request, node: u64) -> std::result::Result<(), Errno> {
        if !self.contains(node) || self.is_told(req, node) {
            return Ok(());
        }
        let lent = fuse::about_to_wait_for_requests();
        loop {
            let nodes = self.nodes.acquire();
            if !nodes.contains_key(&node) {
                return Ok(());
            }
            drop(self.cleaned.wait_timeout(nodes, TICK));
            if lent.is_over() {
                return Err(Errno::EIO);
            }
            if fuse::is_killed(req.pid) {
                return Err(Errno(4));
            }
        }
    }

    pub fn set(&self, list: impl Iterator<Item = u64>) {
        let mut nodes = self.nodes.acquire();
        nodes.extend(list.map(|n| (n, false)));
        self.count.store(nodes.len(), Ordering::Release);
    }

    /// Whether something was thrown away since it was asked last.
    pub fn take_dropped(&self, node: u64) -> bool {
        let mut nodes = self.nodes.acquire();
        nodes.get_mut(&node).is_some_and(std::mem::take)
    }

    pub fn clean(&self, node: u64) {
        let mut nodes = self.nodes.acquire();
        nodes.remove(&node);
        self.count.store(nodes.len(), Ordering::Release);
        self.cleaned.notify_all();
    }
}
