//! Stale nodes: those whose cached pages at a client may be of a file system that was replaced
//! (`suspension.rs`).

use crate::caller::Caller;
use crate::gate::TICK;
use base::sync::MutexExt;
use base::{Kind, Result};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex};

/// Nodes of which a client may have pages of the state before.
#[derive(Default)]
pub(crate) struct Stale {
    count: AtomicUsize,
    /// Whether something written to them was thrown away.
    nodes: Mutex<HashMap<u64, bool>>,
    cleaned: Condvar,
    /// Who tells clients sizes and times, as requests name it; 0: none.
    teller: AtomicU32,
}

impl Stale {
    /// Whether the node is one of them.
    #[inline]
    pub fn contains(&self, node: u64) -> bool {
        self.count.load(Ordering::Acquire) != 0 && self.nodes.acquire().contains_key(&node)
    }

    /// Whether what a client sends of the node's pages and times is thrown away.
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

    /// The thread whose requests tell a client the sizes and times of stale nodes, or none.
    pub fn set_teller(&self, thread: Option<u32>) {
        self.teller.store(thread.unwrap_or(0), Ordering::Release);
    }

    /// Whether the request tells a client of the node what is true here: it changes nothing.
    #[inline]
    pub fn is_told(&self, by: &dyn Caller, node: u64) -> bool {
        let teller = self.teller.load(Ordering::Acquire);
        teller != 0 && teller == by.process() && self.contains(node)
    }

    /// Waits until the clients have no such pages of the node any more.
    ///
    /// Errors: `Interrupted` if the caller has gone meanwhile, `Io` if service has ended.
    pub fn wait(&self, by: &dyn Caller, node: u64) -> Result<()> {
        if !self.contains(node) || self.is_told(by, node) {
            return Ok(());
        }
        let waiting = by.about_to_wait();
        loop {
            let nodes = self.nodes.acquire();
            if !nodes.contains_key(&node) {
                return Ok(());
            }
            drop(self.cleaned.wait_timeout(nodes, TICK));
            if waiting.is_over() {
                return Err(Kind::Io.into());
            }
            if by.is_gone() {
                return Err(Kind::Interrupted.into());
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
