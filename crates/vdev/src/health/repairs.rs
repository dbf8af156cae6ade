//! Repairs of blocks that no flush has covered yet.
//!
//! A repair is written to a block of an old txg. So what a device loses of repairs is not among the txgs that its DTL gets when a flush
//! fails ([`Vdev::soil`](crate::node::Vdev)), and is noted here, by the births of the blocks.
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

    /// It may not be on the device.
    pub fn lose(&self, births: Births) {
        let mut lost = self.lost.acquire();
        for (owner, births) in births {
            let all = lost.entry(owner).or_default();
            for (start, end) in births.iter() {
                all.insert(start, end);
            }
        }
    }

    pub fn take_lost(&self) -> Vec<(u64, RangeSet)> {
        std::mem::take(&mut *self.lost.acquire())
            .into_iter()
            .collect()
    }
}
