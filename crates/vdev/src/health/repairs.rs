//! Repairs of blocks that no flush has covered yet.
//!
//! A repair rewrites a block of an old txg. When a flush fails, the DTL of the leaf gets the txgs of ordinary writes
//! ([`Vdev::soil`](crate::node::Vdev)), which do not include that old txg. So repairs are recorded here, by
//! the birth txgs of their blocks.
//!
//! Invariant: a repair is noted after it was written, and before the next flush ends that covers it. A flush takes the notes
//! before it begins, so that it never drops one of a later write.

use base::sync::MutexExt;
use base::{RangeSet, Txg};
use std::collections::BTreeMap;
use std::sync::Mutex;

/// Births by who was repaired: a leaf, or a distributed spare it stands for.
pub(crate) type Births = BTreeMap<u64, RangeSet>;

#[derive(Debug, Default)]
pub(crate) struct Repairs {
    /// By the leaf that was written.
    unflushed: Mutex<BTreeMap<u64, Births>>,
    lost: Mutex<Births>,
}

impl Repairs {
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
