//! Nodes whose attributes clients may cache only briefly.
//!
//! What a changed file takes on disk is known when its txg is written. Until then clients are told
//! to keep the attributes for a second. After `zpool sync` nobody should have to wait for that
//! second: the nodes answered for in it are kept here, so that clients can be told to forget
//! what they have of them.

use crate::subscriber::Subscriber;
use base::sync::MutexExt;
use env::Clock;
use std::collections::HashSet;
use std::sync::{Arc, Mutex};

/// Longer than a client keeps such attributes, nanoseconds.
const SPAN: u64 = 1_100_000_000;

#[derive(Default)]
struct Spans {
    /// Monotonic nanoseconds.
    began: Option<u64>,
    now: HashSet<u64>,
    before: HashSet<u64>,
}

/// The nodes of one door that were answered for in the last span and the one before.
pub(crate) struct Fresh {
    clock: Arc<dyn Clock>,
    spans: Mutex<Spans>,
}

impl Fresh {
    pub fn new(clock: Arc<dyn Clock>) -> Fresh {
        Fresh {
            clock,
            spans: Mutex::default(),
        }
    }

    /// A client gets attributes of the node that it keeps for a moment.
    pub fn note(&self, node: u64) {
        self.note_at(node, self.clock.monotonic_ns());
    }

    fn note_at(&self, node: u64, now: u64) {
        let mut s = self.spans.acquire();
        match s.began {
            Some(began) if now.saturating_sub(began) < SPAN => {}
            Some(began) if now.saturating_sub(began) < 2 * SPAN => {
                s.before = std::mem::take(&mut s.now);
                s.began = Some(now);
            }
            _ => {
                *s = Spans::default();
                s.began = Some(now);
            }
        }
        s.now.insert(node);
    }

    fn take(&self) -> HashSet<u64> {
        let mut s = self.spans.acquire();
        let Spans { now, before, .. } = std::mem::take(&mut *s);
        now.into_iter().chain(before).collect()
    }

    /// Has clients forget the attributes of all of them. Not to be called by a thread that serves
    /// requests.
    pub fn forget(&self, clients: &dyn Subscriber) {
        for node in self.take() {
            clients.attributes(node);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use env_sim::ManualClock;

    #[test]
    fn nodes_are_kept_for_a_span_at_least_and_two_at_most() {
        let f = Fresh::new(Arc::new(ManualClock::default()));
        let (t, ms) = (77, 1_000_000);
        f.note_at(1, t);
        f.note_at(2, t + 1000 * ms);
        f.note_at(3, t + 1200 * ms);
        assert_eq!(f.take(), HashSet::from([1, 2, 3]));
        f.note_at(4, t);
        f.note_at(5, t + 1200 * ms);
        f.note_at(6, t + 2400 * ms);
        assert_eq!(f.take(), HashSet::from([5, 6]));
        f.note_at(7, t);
        f.note_at(8, t + 5000 * ms);
        assert_eq!(f.take(), HashSet::from([8]));
        assert!(f.take().is_empty());
    }
}
