//! Files open for writing. A client may keep what is written to them in a cache of its own for a while,
//! and three things follow: it alone knows where their newest data are, what they take on disk
//! is not known yet, and who wrote too much hears of it late.

use base::sync::MutexExt;
use base::Kind;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};

/// Handle of an open description that may write; others have 0.
pub const WRITER: u64 = 1;

#[derive(Default)]
struct Writer {
    /// Open descriptions that may write.
    handles: u32,
    /// Of the node, as the client was told.
    generation: u32,
    /// What befell pages written back since somebody was told.
    failed: Option<Kind>,
    /// Writes the client announced since its pages were last asked for.
    announced: u64,
}

/// The files of one door that are open for writing, by node id.
#[derive(Default)]
pub struct Writers {
    open: Mutex<HashMap<u64, Writer>>,
    /// How many nodes that are: who only reads and lists pays for no lock.
    count: AtomicUsize,
    failures: AtomicUsize,
    /// Writes that arrived, to tell a slow write-out from a stuck one.
    arrived: AtomicU64,
    /// The mount is about to end: what is written now would be lost.
    closing: AtomicBool,
}

impl Writers {
    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Writer>> {
        self.open.acquire()
    }

    /// One more open description of the node.
    pub fn opened(&self, node: u64, generation: u32) {
        let mut open = self.lock();
        let w = open.entry(node).or_default();
        w.handles += 1;
        w.generation = generation;
        self.count.store(open.len(), Ordering::SeqCst);
    }

    /// Every node that is open for writing, with its generation.
    pub fn nodes(&self) -> Vec<(u64, u32)> {
        let open = self.lock();
        open.iter().map(|(n, w)| (*n, w.generation)).collect()
    }

    /// A write has arrived and was answered.
    pub fn arrived(&self) {
        self.arrived.fetch_add(1, Ordering::Relaxed);
    }

    /// How many writes have arrived.
    pub fn arrivals(&self) -> u64 {
        self.arrived.load(Ordering::Relaxed)
    }

    /// From now on writes are refused before a client takes them into its cache, or let through
    /// again.
    pub fn set_closing(&self, closing: bool) {
        self.closing.store(closing, Ordering::SeqCst);
    }

    /// Whether writes are refused because the mount is about to end.
    pub fn is_closing(&self) -> bool {
        self.closing.load(Ordering::SeqCst)
    }

    /// One less.
    pub fn released(&self, node: u64) {
        let mut open = self.lock();
        let Some(w) = open.get_mut(&node) else { return };
        w.handles = w.handles.saturating_sub(1);
        if w.handles == 0 {
            if w.failed.is_some() {
                self.failures.fetch_sub(1, Ordering::Relaxed);
            }
            open.remove(&node);
            self.count.store(open.len(), Ordering::SeqCst);
        }
    }

    /// Whether the client may have data of the node that are not here yet.
    pub fn is_open(&self, node: u64) -> bool {
        self.count.load(Ordering::SeqCst) != 0 && self.lock().contains_key(&node)
    }

    /// Pages of the node could not be written back. True if that was not known yet.
    pub fn fail(&self, node: u64, e: Kind) -> bool {
        match self.lock().get_mut(&node) {
            Some(w) if w.failed.is_none() => {
                w.failed = Some(e);
                self.failures.fetch_add(1, Ordering::Relaxed);
                true
            }
            _ => false,
        }
    }

    /// The client is about to take one more write. How many that makes since [`Writers::asked`].
    pub fn announced(&self, node: u64) -> u64 {
        match self.lock().get_mut(&node) {
            Some(w) => {
                w.announced += 1;
                w.announced
            }
            None => 0,
        }
    }

    /// The client's pages of the node are here.
    pub fn asked(&self, node: u64) {
        if let Some(w) = self.lock().get_mut(&node) {
            w.announced = 0;
        }
    }

    /// What befell the node, told once.
    pub(crate) fn take_failure(&self, node: u64) -> Option<Kind> {
        if self.failures.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let e = self.lock().get_mut(&node)?.failed.take()?;
        self.failures.fetch_sub(1, Ordering::Relaxed);
        Some(e)
    }

    /// Forgets all files.
    pub fn clear(&self) {
        let mut open = self.lock();
        open.clear();
        self.count.store(0, Ordering::SeqCst);
        self.failures.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_told_once_and_go_with_the_last_handle() {
        let w = Writers::default();
        assert!(!w.fail(7, Kind::NoSpace), "nobody to tell");
        w.opened(7, 1);
        w.opened(7, 1);
        assert_eq!(w.nodes(), [(7, 1)]);
        assert!(w.is_open(7) && !w.is_open(8));
        assert!(w.fail(7, Kind::NoSpace));
        assert!(!w.fail(7, Kind::Io));
        assert_eq!((w.announced(7), w.announced(7), w.announced(8)), (1, 2, 0));
        w.asked(7);
        assert_eq!(w.announced(7), 1);
        assert_eq!(w.take_failure(8), None);
        assert_eq!(w.take_failure(7), Some(Kind::NoSpace));
        assert_eq!(w.take_failure(7), None);
        assert!(w.fail(7, Kind::Io));
        w.released(7);
        assert!(w.is_open(7));
        w.opened(8, 2);
        w.released(7);
        assert!(!w.is_open(7) && w.is_open(8));
        w.clear();
        assert!(!w.is_open(8));
        assert_eq!(w.failures.load(Ordering::Relaxed), 0);
        w.released(7);
    }
}
