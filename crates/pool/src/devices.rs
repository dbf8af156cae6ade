//! The traits of `zio` implemented over the vdev tree and the allocator.

use crate::indirect::Removed;
use crate::scan::BlockQueue;
use base::mutation::{mutated, Mutation};
use base::{bail, Kind, Result, Txg};
use disk::Dva;
use space::{AllocReq, Class, Space};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::Arc;
use vdev::{BadLeaf, Fault, Piece, ReadOutcome, ReadReq, Vdev, VdevKind, VdevTree, WriteBatch};
use zio::{Allocator, Devices, Looked, Mended, PhysWrite, Purpose, ReadOne, Scrubbing, Wrong};

fn gcd(mut a: usize, mut b: usize) -> usize {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// [`Devices`] over a [`VdevTree`].
pub struct TreeDevices {
    tree: Arc<VdevTree>,
    removed: Arc<Removed>,
    min_alloc: AtomicUsize,
    /// Whether the pool counts space without parity and padding (directory entry `deflate`).
    deflates: AtomicBool,
}

impl TreeDevices {
    /// The devices of a tree, whose vdevs may be added later.
    pub fn new(tree: Arc<VdevTree>, removed: Arc<Removed>) -> TreeDevices {
        let d = TreeDevices {
            tree,
            removed,
            min_alloc: AtomicUsize::new(512),
            deflates: AtomicBool::new(true),
        };
        d.refresh();
        d
    }

    /// Pools of versions 1 and 2 count allocated bytes as they are, also after an upgrade if they
    /// have a RAID-Z.
    pub fn set_deflates(&self, deflates: bool) {
        self.deflates.store(deflates, Ordering::Relaxed);
    }

    /// Recomputes the allocation unit after the tree changed: the greatest common divisor of the
    /// smallest allocations of the normal vdevs.
    pub fn refresh(&self) {
        let unit = self
            .tree
            .tops()
            .iter()
            .filter(|t| t.is_concrete() && !t.is_log())
            .map(|t| t.min_block() as usize)
            .reduce(gcd)
            .filter(|u| *u >= 512)
            .unwrap_or(512);
        self.min_alloc.store(unit, Ordering::Relaxed);
    }
}

impl TreeDevices {
    /// Mends what is in one place on a vdev that has devices.
    fn mend_piece(&self, p: &Piece, right: &[u8], mended: &mut Mended) -> Result<()> {
        let req = ReadReq {
            vdev: p.vdev,
            offset: p.offset,
            psize: right.len(),
            birth: p.birth,
            verify: &|_| false,
        };
        let done = self.tree.mend(req, right)?;
        mended.written += done.repaired;
        mended.behind.extend(done.behind);
        Ok(())
    }
}

fn part_of(right: &[u8], at: usize, len: usize) -> Result<&[u8]> {
    match right.get(at..at.saturating_add(len)) {
        Some(part) => Ok(part),
        None => bail!(Damaged, "a mapping leads to more than the block has"),
    }
}

fn wrong(b: &BadLeaf) -> Wrong {
    Wrong {
        guid: b.guid,
        checksum: b.fault == Fault::Checksum,
        place: b.place,
    }
}

fn requests<'a>(reqs: &[ReadOne<'a>]) -> Vec<ReadReq<'a>> {
    reqs.iter()
        .map(|r| ReadReq {
            vdev: r.dva.vdev(),
            offset: r.dva.offset(),
            psize: r.psize,
            birth: r.birth,
            verify: r.verify,
        })
        .collect()
}

fn looked(found: Vec<Result<ReadOutcome>>) -> Vec<Looked> {
    found
        .into_iter()
        .map(|r| match r {
            Ok(o) => Looked {
                wrong: o.bad.iter().map(wrong).collect(),
                data: match o.lost {
                    Some(e) => Err(e),
                    None => Ok(o.data),
                },
            },
            Err(e) => Looked {
                data: Err(e),
                wrong: Vec::new(),
            },
        })
        .collect()
}

fn write_batch(batch: WriteBatch, writes: &[PhysWrite]) -> Result<()> {
    let blocks: Vec<_> = writes.iter().map(|w| (w.vdev, w.offset, &w.data)).collect();
    batch.write_many(&blocks)?;
    batch.submit_all()
}

impl Devices for TreeDevices {
    fn vdevs(&self) -> u64 {
        self.tree.tops().len() as u64
    }

    fn asize(&self, vdev: u64, psize: u64) -> u64 {
        self.tree.top(vdev).map_or(psize, |t| t.asize_for(psize))
    }

    fn asize_in(&self, vdev: u64, psize: u64, txg: Txg) -> u64 {
        let top = self.tree.top(vdev);
        top.map_or(psize, |t| t.asize_in(psize, txg))
    }

    fn is_removed(&self, vdev: u64) -> bool {
        let top = self.tree.top(vdev);
        top.is_ok_and(|t| t.kind() == VdevKind::Indirect)
    }

    fn deflate(&self, vdev: u64, asize: u64) -> u64 {
        if !self.deflates.load(Ordering::Relaxed) {
            return asize;
        }
        self.tree
            .top(vdev)
            .map_or(asize, |t| asize / base::SECTOR * t.deflate_ratio())
    }

    fn look(&self, reqs: &[ReadOne]) -> Vec<Looked> {
        looked(self.tree.look_many(&requests(reqs)))
    }

    fn look_ahead(&self, reqs: &[ReadOne]) -> Vec<Looked> {
        looked(self.tree.look_ahead(&requests(reqs)))
    }

    fn count(&self, wrong: &[Wrong]) {
        let bad: Vec<BadLeaf> = wrong
            .iter()
            .map(|w| BadLeaf {
                guid: w.guid,
                fault: match w.checksum {
                    true => Fault::Checksum,
                    false => Fault::Io,
                },
                place: w.place,
                repaired: false,
            })
            .collect();
        self.tree.count(&bad);
    }

    fn count_lost(&self) {
        self.tree
            .stats
            .checksum_errors
            .fetch_add(1, Ordering::Relaxed);
    }

    fn mend(&self, dva: &Dva, birth: Txg, right: &[u8]) -> Result<Mended> {
        let whole = Piece {
            vdev: dva.vdev(),
            offset: dva.offset(),
            len: right.len(),
            birth,
        };
        let mut mended = Mended {
            written: 0,
            behind: Vec::new(),
        };
        let mut at = 0;
        for p in self.tree.locate(whole, &mut |_, _, _| {})? {
            let part = part_of(right, at, p.len)?;
            at += p.len;
            self.mend_piece(&p, part, &mut mended)?;
            // Copies that a removal under way has made are what counts when it has ended.
            for copy in self.removed.mended(&p) {
                let part = part_of(part, copy.1, copy.0.len)?;
                self.mend_piece(&copy.0, part, &mut mended)?;
            }
        }
        Ok(mended)
    }

    fn scrub(&self, reqs: &[ReadOne], keep: &dyn Fn(usize) -> bool) -> Vec<Scrubbing> {
        let found = self.tree.scrub_many(&requests(reqs), keep);
        let one = |(r, req): (Result<ReadOutcome>, &ReadOne)| match r {
            Ok(o) => Scrubbing {
                written: o.repaired + o.resilvered,
                behind: o.behind,
                data: Ok(o.data),
            },
            Err(e) => Scrubbing {
                data: Err(e),
                written: 0,
                behind: (self.lacking(req.dva.vdev(), req.birth).into_iter())
                    .map(|guid| (guid, req.birth))
                    .collect(),
            },
        };
        found.into_iter().zip(reqs).map(one).collect()
    }

    fn lacking(&self, vdev: u64, birth: Txg) -> Vec<u64> {
        let Ok(top) = self.tree.top(vdev) else {
            return Vec::new();
        };
        let holders = top.dtl_holders().into_iter();
        let lacking = holders.filter(|l| l.state().usable() && l.dtl_contains(birth));
        let passed =
            |l: &Arc<Vdev>| l.kind() == VdevKind::Dspare && mutated(Mutation::SpareUnresilvered);
        let lacking = lacking.filter(|l| !passed(l));
        lacking.map(|l| l.guid()).collect()
    }

    fn probe(
        &self,
        dva: &Dva,
        psize: usize,
        birth: Txg,
        verify: &(dyn Fn(&[u8]) -> bool + Sync),
    ) -> Result<Vec<u8>> {
        self.tree
            .probe_block(ReadReq {
                vdev: dva.vdev(),
                offset: dva.offset(),
                psize,
                birth,
                verify,
            })
            .map(|r| r.data)
    }

    fn write(&self, writes: &[PhysWrite], txg: Txg) -> Result<()> {
        write_batch(self.tree.write_batch(txg), writes)
    }

    fn write_urgent(&self, writes: &[PhysWrite], txg: Txg) -> Result<()> {
        write_batch(self.tree.write_batch(txg).urgent(), writes)
    }

    fn flush(&self) -> Result<()> {
        // The txg is only named to note what a leaf that fails to flush has lost.
        self.tree.flush_dirty(Txg::NONE)
    }

    fn min_alloc(&self) -> usize {
        self.min_alloc.load(Ordering::Relaxed)
    }
}

/// [`Allocator`] over [`Space`], which knows what became of removed vdevs.
pub struct SpaceAllocator {
    /// The allocator.
    pub space: Arc<Space>,
    /// Mappings of removed vdevs.
    pub removed: Arc<Removed>,
    /// Told of every range that is freed.
    pub(crate) scanned: Arc<BlockQueue>,
}

impl SpaceAllocator {
    /// A quarter of the special devices is kept for metadata.
    fn special_has_room(&self) -> bool {
        let s = self.space.class_stats(Class::Special);
        s.size > 0 && s.allocated < s.size / 4 * 3
    }
}

impl Allocator for SpaceAllocator {
    fn alloc(
        &self,
        purpose: Purpose,
        _psize: u64,
        copies: usize,
        txg: Txg,
        size_on: &dyn Fn(u64) -> u64,
    ) -> Result<Vec<Dva>> {
        let (class, hint) = match purpose {
            Purpose::SmallData if self.special_has_room() => (Class::Special, 3),
            Purpose::Data | Purpose::SmallData => (Class::Normal, 0),
            Purpose::Metadata => (Class::Special, 1),
            Purpose::Dedup => (Class::Dedup, 1),
            Purpose::Log => (Class::Log, 2),
        };
        let spare = matches!(purpose, Purpose::Metadata | Purpose::Dedup);
        let mut copies = copies;
        loop {
            match self.space.alloc(&AllocReq {
                class,
                copies,
                txg,
                size_on,
                hint,
            }) {
                Ok(v) => return Ok(v.iter().map(|e| e.dva()).collect()),
                // Ditto copies are a bonus: fewer are better than a full pool that cannot commit.
                Err(e) if e.kind == Kind::NoSpace && copies > 1 && spare => {
                    copies -= 1;
                }
                Err(e) => return Err(e),
            }
        }
    }

    fn free(&self, vdev: u64, offset: u64, asize: u64, txg: Txg) -> Result<()> {
        self.scanned.freed(vdev, offset);
        self.removed.free(vdev, offset, asize, txg, &mut |v, o, n| {
            self.space.free(v, o, n, txg)
        })
    }

    fn claim(&self, vdev: u64, offset: u64, asize: u64, txg: Txg) -> Result<()> {
        self.removed.places(vdev, offset, asize, &mut |v, o, n| {
            self.space.claim(v, o, n, txg)
        })
    }

    fn room(&self) -> u64 {
        self.space.room()
    }
}
