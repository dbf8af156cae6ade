//! Repairs that wait: an import that may still be refused writes nothing.

use crate::node::Vdev;
use base::sync::MutexExt;
use base::{Block, Txg};
use std::sync::{Arc, Mutex};

/// Repairs that are held back at most: each has its content in memory. A scrub finds what is left.
const HELD_MOST: usize = 4096;

/// A place on a leaf that gets its right content.
#[derive(Debug)]
pub(crate) struct Rewrite {
    pub leaf: Arc<Vdev>,
    pub owner: Arc<Vdev>,
    /// Byte offset on the device.
    pub at: u64,
    pub right: Block,
    pub birth: Txg,
    /// It had missed the write.
    pub refresh: bool,
    /// Its entry of the outcome's bad leaves.
    pub bad: Option<usize>,
    /// Others hold the block, too.
    pub redundant: bool,
}

/// The repairs that are held back; `None`: they are made at once.
#[derive(Debug, Default)]
pub(crate) struct Held(Mutex<Option<Vec<Rewrite>>>);

impl Held {
    /// Repairs are held back from now on.
    pub fn hold(&self) {
        *self.0.acquire() = Some(Vec::new());
    }

    /// Takes what was held back, in order of leaf and place. Nothing is held back any more.
    pub fn release(&self) -> Vec<Rewrite> {
        let mut held = self.0.acquire().take().unwrap_or_default();
        held.sort_by_key(|w| (w.leaf.guid(), w.at));
        held.dedup_by_key(|w| (w.leaf.guid(), w.at));
        held
    }

    /// Takes the repairs out of the lists if they are to be held back; whether they are.
    pub fn hold_back<'a>(&self, lists: impl Iterator<Item = &'a mut Vec<Rewrite>>) -> bool {
        let mut held = self.0.acquire();
        let Some(held) = &mut *held else { return false };
        for list in lists {
            let room = HELD_MOST.saturating_sub(held.len());
            held.extend(std::mem::take(list).into_iter().take(room));
        }
        true
    }
}
