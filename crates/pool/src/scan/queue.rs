//! The queue of blocks to be scrubbed, in order of offset.

use base::sync::MutexExt;
use base::Txg;
use disk::BlkPtr;
use dmu::Damage;
use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};

/// Frees remembered for one capture; more end its traversal.
const MOST_FREED: usize = 1 << 18;

/// Top-level vdev and byte offset of a block's first copy.
pub(crate) type Spot = (u64, u64);

/// A block that waits.
#[derive(Clone, Copy)]
pub(crate) struct Waiting {
    /// Pointer to the block.
    pub bp: BlkPtr,
    /// What the error log says of it if it is lost; `None` if nobody knows a place that refers to it.
    pub damage: Option<Damage>,
}

#[derive(Default)]
struct State {
    blocks: BTreeMap<Spot, Waiting>,
    /// What was freed since the roots of the traversal under way were taken.
    freed: HashSet<Spot>,
    /// More was freed than is remembered.
    overflow: bool,
    /// The scan looks at blocks born behind the first txg, up to the second.
    range: (Txg, Txg),
}

/// See the module. Shared with the allocator, which tells of every range that is freed.
#[derive(Default)]
pub(crate) struct BlockQueue {
    /// A scan is under way: frees matter.
    on: AtomicBool,
    state: Mutex<State>,
}

impl BlockQueue {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.acquire()
    }

    /// A scan begins, of blocks born behind the first txg, up to the second; `None`: none is under way any more.
    pub fn set_range(&self, range: Option<(Txg, Txg)>) {
        *self.lock() = State {
            range: range.unwrap_or_default(),
            ..State::default()
        };
        self.on.store(range.is_some(), Ordering::Release);
    }

    /// A range that begins there is free from now on.
    pub fn freed(&self, vdev: u64, offset: u64) {
        if !self.on.load(Ordering::Acquire) {
            return;
        }
        let mut s = self.lock();
        if !base::mutation::mutated(base::mutation::Mutation::ScanKeepsFreed) {
            s.blocks.remove(&(vdev, offset));
        }
        match s.freed.len() < MOST_FREED {
            true => drop(s.freed.insert((vdev, offset))),
            false => s.overflow = true,
        }
    }

    /// The roots of a traversal are taken now: what is freed from here on is remembered.
    pub fn capture(&self) {
        let mut s = self.lock();
        s.freed.clear();
        s.overflow = false;
    }

    /// Adds a block found by the traversal, unless it has been freed since the capture. Of several pointers to one
    /// block the first counts.
    pub fn add(&self, w: Waiting) {
        let mut s = self.lock();
        let spot = spot(&w.bp);
        if !s.overflow && !s.freed.contains(&spot) {
            s.blocks.entry(spot).or_insert(w);
        }
    }

    /// Adds a block that is in use though a pointer to it has gone.
    pub fn add_shared(&self, bp: &BlkPtr) {
        if !self.on.load(Ordering::Acquire) {
            return;
        }
        let mut s = self.lock();
        let (min, max) = s.range;
        if bp.physical_birth() > min && bp.physical_birth() <= max {
            let w = Waiting {
                bp: *bp,
                damage: None,
            };
            s.blocks.entry(spot(bp)).or_insert(w);
        }
    }

    /// Whether a block found by the traversal has been freed since the capture, or nobody knows.
    pub fn was_freed(&self, bp: &BlkPtr) -> bool {
        let s = self.lock();
        s.overflow || s.freed.contains(&spot(bp))
    }

    /// Whether nobody knows any more what was freed since the capture.
    pub fn has_overflowed(&self) -> bool {
        self.lock().overflow
    }

    /// Number of blocks.
    pub fn len(&self) -> usize {
        self.lock().blocks.len()
    }

    /// Whether no block waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The next blocks in order of place, up to `blocks` and about `bytes` of each top-level vdev. They stay in the queue.
    pub fn next(&self, blocks: usize, bytes: u64) -> Vec<Waiting> {
        let s = self.lock();
        let mut out = Vec::new();
        let mut vdev = 0;
        while let Some((&(v, _), _)) = s.blocks.range((vdev, 0)..).next() {
            let mut sum = 0;
            for w in s.blocks.range((v, 0)..=(v, u64::MAX)).map(|(_, w)| w) {
                sum += w.bp.psize() as u64;
                out.push(*w);
                if sum >= bytes || out.len() >= blocks {
                    break;
                }
            }
            let Some(next) = v.checked_add(1).filter(|_| out.len() < blocks) else {
                break;
            };
            vdev = next;
        }
        out
    }

    /// Takes out what was scrubbed.
    pub fn done(&self, bp: &BlkPtr) {
        let mut s = self.lock();
        // Another block may have the place by now.
        let same = |w: &Waiting| w.bp.physical_birth() == bp.physical_birth();
        if s.blocks.get(&spot(bp)).is_some_and(same) {
            s.blocks.remove(&spot(bp));
        }
    }
}

fn spot(bp: &BlkPtr) -> Spot {
    (bp.dva(0).vdev(), bp.dva(0).offset())
}

#[cfg(test)]
mod tests {
    use super::*;
    use disk::{Checksum, Compression, Dva, ObjType};

    fn block(vdev: u64, offset: u64) -> Waiting {
        let mut bp = BlkPtr::new(
            ObjType::PLAIN_FILE_CONTENTS,
            0,
            512,
            512,
            Compression::OFF,
            Checksum::FLETCHER4,
            Txg::new(5),
        );
        bp.set_dva(0, Dva::new(vdev, offset, 512, false));
        let damage = Damage {
            objset: 1,
            object: 2,
            level: 0,
            blkid: 3,
            birth: Txg::new(5),
        };
        Waiting {
            bp,
            damage: Some(damage),
        }
    }

    #[test]
    fn blocks_come_in_order_of_place_from_all_vdevs() {
        let q = BlockQueue::default();
        q.set_range(Some((Txg::NONE, Txg::new(9))));
        for (v, o) in [(1, 1024), (0, 4096), (0, 512), (1, 0)] {
            q.add(block(v, o));
        }
        let spots =
            |n, bytes| -> Vec<Spot> { q.next(n, bytes).iter().map(|w| spot(&w.bp)).collect() };
        assert_eq!(spots(9, 1 << 20), [(0, 512), (0, 4096), (1, 0), (1, 1024)]);
        assert_eq!(spots(9, 512), [(0, 512), (1, 0)]);
        assert_eq!(spots(1, 1 << 20), [(0, 512)]);
        q.done(&block(0, 512).bp);
        assert_eq!(q.len(), 3);
    }

    #[test]
    fn a_freed_block_leaves_and_is_not_taken_in_again() {
        let q = BlockQueue::default();
        q.freed(0, 512);
        q.set_range(Some((Txg::NONE, Txg::new(9))));
        q.capture();
        q.add(block(0, 512));
        q.freed(0, 512);
        assert!(q.is_empty() && q.was_freed(&block(0, 512).bp));
        q.add(block(0, 512));
        assert!(q.is_empty());
        q.capture();
        q.add(block(0, 512));
        assert_eq!(q.len(), 1);
    }
}
