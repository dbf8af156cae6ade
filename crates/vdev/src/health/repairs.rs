//! Repairs of blocks that no flush has covered yet.
//!
//! A repair rewrites a block of an old txg. When a flush fails, the DTL of the leaf gets the txgs of ordinary writes
//! ([`Vdev::soil`](crate::node::Vdev)), which do not include that old txg. So repairs are recorded here, by
//! the birth txgs of their blocks.
//!
//! Invariant: a repair is noted after it was written, and before the next flush ends that covers it. A flush takes the notes
//! before it begins, so that it never drops one of a later write.

use crate::node::Vdev;
use base::sync::MutexExt;
use base::{Block, RangeSet, Txg};
use std::collections::BTreeMap;
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

/// Births by who was repaired: a leaf, or a distributed spare it stands for.
pub(crate) type Births = BTreeMap<u64, RangeSet>;

#[derive(Debug, Default)]
pub(crate) struct Repairs {
    /// By the leaf that was written.
    unflushed: Mutex<BTreeMap<u64, Births>>,
    lost: Mutex<Births>,
    /// `None`: repairs are made at once.
    held: Mutex<Option<Vec<Rewrite>>>,
}

impl Repairs {
    /// Repairs are held back from now on.
    pub fn hold(&self) {
        *self.held.acquire() = Some(Vec::new());
    }

    /// Takes what was held back, in order of leaf and place. Nothing is held back any more.
    pub fn release(&self) -> Vec<Rewrite> {
        let mut held = self.held.acquire().take().unwrap_or_default();
        held.sort_by_key(|w| (w.leaf.guid(), w.at));
        held.dedup_by_key(|w| (w.leaf.guid(), w.at));
        held
    }

    /// Takes the repairs out of the lists if they are to be held back; whether they are.
    pub fn hold_back<'a>(&self, lists: impl Iterator<Item = &'a mut Vec<Rewrite>>) -> bool {
        let mut held = self.held.acquire();
        let Some(held) = &mut *held else { return false };
        for list in lists {
            let room = HELD_MOST.saturating_sub(held.len());
            held.extend(std::mem::take(list).into_iter().take(room));
        }
        true
    }

    /// A block born in `birth` was written anew to the leaf of guid `leaf`, for the sake of `owner`.
    pub fn wrote(&self, leaf: u64, owner: u64, birth: Txg) {
        let mut all = self.unflushed.acquire();
        let births = all.entry(leaf).or_default();
        let births = births.entry(owner).or_default();
        births.insert(birth.number(), birth.after(1).number());
    }

    /// What a flush of the leaf of guid `leaf` that begins now will cover.
    pub fn take(&self, leaf: u64) -> Births {
        let mut all = self.unflushed.acquire();
        all.remove(&leaf).unwrap_or_default()
    }

    /// Records that repairs taken for a flush may not be on the device, because the flush failed.
    pub fn lose(&self, births: Births) {
        let mut lost = self.lost.acquire();
        for (owner, births) in births {
            let all = lost.entry(owner).or_default();
            for (start, end) in births.iter() {
                all.insert(start, end);
            }
        }
    }

    /// Takes what was lost so far: guid of the leaf, and the births of the blocks.
    pub fn take_lost(&self) -> Vec<(u64, RangeSet)> {
        std::mem::take(&mut *self.lost.acquire())
            .into_iter()
            .collect()
    }
}
