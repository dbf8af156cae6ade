//! Nodes whose attributes the kernel may cache only briefly.
//!
//! What a changed file takes on disk is known when its txg is written. Until then the kernel is told
//! to keep the attributes for a second. After `zpool sync` nobody should have to wait for that
//! second: the nodes answered for in it are kept here, so that the kernel can be told to forget
//! what it has of them.

use base::sync::MutexExt;
use fuse::Notifier;
use std::collections::HashSet;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Longer than the kernel keeps such attributes.
const SPAN: Duration = Duration::from_millis(1100);

#[derive(Default)]
struct Spans {
    began: Option<Instant>,
    now: HashSet<u64>,
    before: HashSet<u64>,
}

/// The nodes of one mount that were answered for in the last span and the one before.
#[derive(Default)]
pub struct Fresh(Mutex<Spans>);

impl Fresh {
    /// The kernel gets attributes of the node that it keeps for a moment.
    pub fn note(&self, node: u64) {
        self.note_at(node, Instant::now());
    }

    fn note_at(&self, node: u64, now: Instant) {
        let mut s = self.0.acquire();
        match s.began {
            Some(began) if now.duration_since(began) < SPAN => {}
            Some(began) if now.duration_since(began) < 2 * SPAN => {
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
        let mut s = self.0.acquire();
        let Spans { now, before, .. } = std::mem::take(&mut *s);
        now.into_iter().chain(before).collect()
    }

    /// Has the kernel forget the attributes of all of them. Not to be called by a thread that serves
    /// requests.
    pub fn forget(&self, notifier: &Notifier) {
        for node in self.take() {
            // The mount may have ended meanwhile.
            let _ = notifier.inval_inode(node, -1, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_kept_for_a_span_at_least_and_two_at_most() {
        let f = Fresh::default();
        let t = Instant::now();
        let ms = Duration::from_millis;
        f.note_at(1, t);
        f.note_at(2, t + ms(1000));
        f.note_at(3, t + ms(1200));
        assert_eq!(f.take(), HashSet::from([1, 2, 3]));
        f.note_at(4, t);
        f.note_at(5, t + ms(1200));
        f.note_at(6, t + ms(2400));
        assert_eq!(f.take(), HashSet::from([5, 6]));
        f.note_at(7, t);
        f.note_at(8, t + ms(5000));
        assert_eq!(f.take(), HashSet::from([8]));
        assert!(f.take().is_empty());
    }
}
