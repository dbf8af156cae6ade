//! Devices and allocator in memory, for tests of the rooms above: one vdev, and an allocator over a set
//! of free ranges.

use crate::seam::{
    Allocator, Devices, Looked, Mended, PhysWrite, Purpose, ReadOne, Scrubbing, Wrong,
};
use base::sync::MutexExt;
use base::{bail, roundup, RangeSet, Result, Txg};
use disk::Dva;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Mutex;

/// One "disk": blocks by offset.
pub struct MemoryDevices {
    blocks: Mutex<HashMap<u64, Vec<u8>>>,
    ashift: u32,
    /// Number of blocks read.
    pub reads: AtomicU64,
    /// Number of blocks written.
    pub writes: AtomicU64,
    /// Wrong copies counted, and blocks that could not be had.
    pub errors: AtomicU64,
    /// Number of blocks of which no copy was right.
    pub lost: AtomicU64,
    /// While it is set no block can be read (`Kind::Io`).
    pub unreadable: AtomicBool,
}

impl MemoryDevices {
    /// An empty device with sectors of `1 << ashift` bytes.
    pub fn new(ashift: u32) -> MemoryDevices {
        MemoryDevices {
            blocks: Mutex::default(),
            ashift,
            reads: AtomicU64::new(0),
            writes: AtomicU64::new(0),
            errors: AtomicU64::new(0),
            lost: AtomicU64::new(0),
            unreadable: AtomicBool::new(false),
        }
    }

    /// Ruins what is at `offset`.
    pub fn ruin(&self, offset: u64) {
        let mut b = self.blocks.acquire();
        if let Some(b) = b.get_mut(&offset) {
            b.iter_mut().for_each(|x| *x ^= 0x55);
        }
    }
}

impl Devices for MemoryDevices {
    fn vdevs(&self) -> u64 {
        1
    }
    fn asize(&self, _: u64, psize: u64) -> u64 {
        roundup(psize, 1 << self.ashift)
    }
    fn deflate(&self, _: u64, asize: u64) -> u64 {
        asize
    }
    fn look(&self, reqs: &[ReadOne]) -> Vec<Looked> {
        reqs.iter()
            .map(|r| {
                let data = self.probe(&r.dva, r.psize, r.birth, r.verify);
                let wrong = match &data {
                    Ok(_) => Vec::new(),
                    Err(_) => vec![Wrong {
                        guid: 1,
                        checksum: true,
                        place: None,
                    }],
                };
                Looked { data, wrong }
            })
            .collect()
    }
    fn count(&self, wrong: &[Wrong]) {
        self.errors.fetch_add(wrong.len() as u64, Ordering::Relaxed);
    }
    fn count_lost(&self) {
        self.lost.fetch_add(1, Ordering::Relaxed);
    }
    fn mend(&self, dva: &Dva, _: Txg, right: &[u8]) -> Result<Mended> {
        let mut b = self.blocks.acquire();
        b.insert(dva.offset(), right.to_vec());
        Ok(Mended {
            written: right.len() as u64,
            behind: Vec::new(),
        })
    }
    fn scrub(&self, reqs: &[ReadOne], _: &dyn Fn(usize) -> bool) -> Vec<Scrubbing> {
        let read = |r: &ReadOne| Scrubbing {
            data: self.probe(&r.dva, r.psize, r.birth, r.verify),
            written: 0,
            behind: Vec::new(),
        };
        reqs.iter().map(read).collect()
    }
    fn probe(
        &self,
        dva: &Dva,
        psize: usize,
        _: Txg,
        verify: &(dyn Fn(&[u8]) -> bool + Sync),
    ) -> Result<Vec<u8>> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        if self.unreadable.load(Ordering::Relaxed) {
            bail!(Io, "nothing is read at {:x}", dva.offset());
        }
        let b = self.blocks.acquire();
        match b.get(&dva.offset()) {
            Some(b) if b.len() >= psize && verify(&b[..psize]) => Ok(b[..psize].to_vec()),
            _ => bail!(Checksum, "nothing good at {:x}", dva.offset()),
        }
    }
    fn write(&self, writes: &[PhysWrite], _: Txg) -> Result<()> {
        let mut b = self.blocks.acquire();
        for w in writes {
            self.writes.fetch_add(1, Ordering::Relaxed);
            b.insert(w.offset, w.data.to_vec());
        }
        Ok(())
    }
    fn flush(&self) -> Result<()> {
        Ok(())
    }
    fn min_alloc(&self) -> usize {
        1 << self.ashift
    }
}

/// Free space of that disk; checks that nothing is freed twice.
pub struct MemoryAllocator {
    free: Mutex<RangeSet>,
}

impl MemoryAllocator {
    /// All of `size` bytes free.
    pub fn new(size: u64) -> MemoryAllocator {
        let mut free = RangeSet::new();
        free.insert(0, size);
        MemoryAllocator {
            free: Mutex::new(free),
        }
    }
    /// Bytes not allocated.
    pub fn free_bytes(&self) -> u64 {
        self.free.acquire().total()
    }
}

impl Allocator for MemoryAllocator {
    fn alloc(
        &self,
        _: Purpose,
        _: u64,
        copies: usize,
        _: Txg,
        size_on: &dyn Fn(u64) -> u64,
    ) -> Result<Vec<Dva>> {
        let mut f = self.free.acquire();
        let size = size_on(0);
        let mut out = Vec::new();
        for _ in 0..copies {
            let Some((s, _)) = f.iter().find(|(s, e)| e - s >= size) else {
                for d in &out {
                    let d: &Dva = d;
                    f.insert(d.offset(), d.offset() + d.asize());
                }
                bail!(NoSpace, "the test disk is full");
            };
            f.remove(s, s + size);
            out.push(Dva::new(0, s, size, false));
        }
        Ok(out)
    }
    fn free(&self, _: u64, offset: u64, asize: u64, _: Txg) -> Result<()> {
        let mut f = self.free.acquire();
        assert_eq!(
            f.insert(offset, offset + asize),
            asize,
            "freed twice: {offset:x}"
        );
        Ok(())
    }
    fn claim(&self, _: u64, offset: u64, asize: u64, _: Txg) -> Result<()> {
        let mut f = self.free.acquire();
        f.remove(offset, offset + asize);
        Ok(())
    }

    fn room(&self) -> u64 {
        self.free_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ReadSpec, WriteSpec, Zio, ZioOptions};
    use base::{Block, Kind};
    use disk::{BlkPtr, Checksum, Compression, ObjType};
    use std::sync::Arc;

    fn spec() -> WriteSpec {
        WriteSpec {
            obj_type: ObjType::PLAIN_FILE_CONTENTS,
            level: 0,
            compress: Compression::LZ4,
            zstd_level: 0,
            checksum: Checksum::FLETCHER4,
            copies: 1,
            gang_copies: 2,
            embed: true,
            hole_birth: true,
            dedup: false,
            verify: false,
            small: 0,
        }
    }

    fn noise(n: usize, mut x: u64) -> Vec<u8> {
        (0..n)
            .map(|_| {
                x = x
                    .wrapping_mul(6364136223846793005)
                    .wrapping_add(1442695040888963407);
                (x >> 33) as u8
            })
            .collect()
    }

    fn zio(ashift: u32, size: u64) -> (Zio, Arc<MemoryAllocator>) {
        let a = Arc::new(MemoryAllocator::new(size));
        let d = Arc::new(MemoryDevices::new(ashift));
        let o = ZioOptions {
            cache_bytes: 1 << 20,
            seed: 1,
            writable: true,
        };
        (Zio::new(d, a.clone(), o), a)
    }

    #[test]
    fn every_shape_comes_back() {
        let (z, a) = zio(12, 64 << 20);
        let total = a.free_bytes();
        let mut all = Vec::new();
        for (i, data) in [
            vec![7u8; 131072],
            noise(131072, 1),
            noise(512, 2),
            vec![0; 4096],
            [vec![1; 100], vec![0; 412]].concat(),
            [noise(60000, 3), vec![0; 71072]].concat(),
        ]
        .into_iter()
        .enumerate()
        {
            let data = Arc::new(data);
            let p = z.prepare(&spec(), &data).unwrap();
            let bp = z.issue(&spec(), &p, Txg::new(5), &BlkPtr::HOLE).unwrap();
            assert_eq!(i == 3, bp.is_hole());
            assert_eq!(
                *z.read(&bp).unwrap_or_default(),
                if i == 3 { vec![] } else { data.to_vec() }
            );
            z.drain(Txg::new(5)).unwrap();
            z.cache.clear();
            if i != 3 {
                assert_eq!(z.read(&bp).unwrap(), data, "{i}");
            }
            all.push(bp);
        }
        for bp in all {
            z.free(&bp, Txg::new(6)).unwrap();
        }
        assert_eq!(a.free_bytes(), total);
    }

    #[test]
    fn gangs_when_space_is_in_pieces() {
        let (z, a) = zio(9, 8 << 20);
        let total = a.free_bytes();
        // Take everything, then give back every second 4 KiB.
        let mut hold = Vec::new();
        while let Ok(d) = a.alloc(Purpose::Data, 4096, 1, Txg::new(5), &|_| 4096) {
            hold.push(d[0]);
        }
        for d in hold.iter().step_by(2) {
            a.free(0, d.offset(), d.asize(), Txg::new(5)).unwrap();
        }
        let before = a.free_bytes();
        let data = Arc::new(noise(131072, 9));
        let p = z.prepare(&spec(), &data).unwrap();
        let bp = z.issue(&spec(), &p, Txg::new(5), &BlkPtr::HOLE).unwrap();
        assert!(bp.is_gang());
        z.drain(Txg::new(5)).unwrap();
        z.cache.clear();
        assert_eq!(z.read(&bp).unwrap(), data);
        let dsize = z.dsize(&bp);
        assert!(before - a.free_bytes() >= 131072 && dsize >= 131072);
        // A later pass of the same txg writes it again at the same address.
        let left = a.free_bytes();
        let other = Arc::new(noise(131072, 10));
        let p = z.prepare(&spec(), &other).unwrap();
        let again = z.issue(&spec(), &p, Txg::new(5), &bp).unwrap();
        assert!(Zio::same_place(&bp, &again));
        assert_eq!(a.free_bytes(), left);
        assert_eq!(z.read(&again).unwrap(), other, "not written yet");
        z.drain(Txg::new(5)).unwrap();
        z.cache.clear();
        assert_eq!(z.read(&again).unwrap(), other);
        // Twice before the devices have taken it: who has the older pointer gets the older content.
        let p = z.prepare(&spec(), &data).unwrap();
        let third = z.issue(&spec(), &p, Txg::new(5), &again).unwrap();
        let p = z.prepare(&spec(), &other).unwrap();
        let bp = z.issue(&spec(), &p, Txg::new(5), &third).unwrap();
        z.drain(Txg::new(5)).unwrap();
        for (bp, want) in [(&bp, &other), (&third, &data)] {
            z.cache.clear();
            assert_eq!(z.read(bp).unwrap(), *want);
        }
        z.free(&bp, Txg::new(6)).unwrap();
        assert_eq!(a.free_bytes(), before);
        for d in hold.iter().skip(1).step_by(2) {
            a.free(0, d.offset(), d.asize(), Txg::new(5)).unwrap();
        }
        assert_eq!(a.free_bytes(), total);
    }

    #[test]
    fn rewrite_in_the_same_txg_keeps_the_place() {
        let (z, _) = zio(9, 8 << 20);
        let s = WriteSpec {
            compress: Compression::OFF,
            ..spec()
        };
        let one = Arc::new(noise(4096, 1));
        let two = Arc::new(noise(4096, 2));
        let a = z
            .issue(
                &s,
                &z.prepare(&s, &one).unwrap(),
                Txg::new(5),
                &BlkPtr::HOLE,
            )
            .unwrap();
        let b = z
            .issue(&s, &z.prepare(&s, &two).unwrap(), Txg::new(5), &a)
            .unwrap();
        assert!(Zio::same_place(&a, &b));
        z.drain(Txg::new(5)).unwrap();
        z.cache.clear();
        assert_eq!(z.read(&b).unwrap(), two);
        let c = z
            .issue(&s, &z.prepare(&s, &one).unwrap(), Txg::new(6), &b)
            .unwrap();
        assert!(!Zio::same_place(&b, &c));
    }

    #[test]
    fn a_smaller_rewrite_in_the_same_txg_keeps_the_place_too() {
        let (z, _) = zio(9, 8 << 20);
        let s = WriteSpec {
            compress: Compression::LZ4,
            ..spec()
        };
        let half_noise = |n: usize| {
            let mut b = noise(n, 3);
            b.resize(16384, 0);
            Arc::new(b)
        };
        let put = |b: &Block, txg, old: &BlkPtr| z.issue(&s, &z.prepare(&s, b).unwrap(), txg, old);
        let (long, short) = (half_noise(8000), half_noise(4000));
        let a = put(&long, Txg::new(5), &BlkPtr::HOLE).unwrap();
        let b = put(&short, Txg::new(5), &a).unwrap();
        assert!(Zio::same_place(&a, &b));
        assert_eq!(a.psize(), b.psize());
        z.drain(Txg::new(5)).unwrap();
        z.cache.clear();
        assert_eq!(z.read(&b).unwrap(), short);
        // A longer block needs an address of its own, and so does a block of another txg.
        let c = put(&half_noise(12_000), Txg::new(5), &b).unwrap();
        assert!(!Zio::same_place(&b, &c));
        let d = put(&short, Txg::new(6), &b).unwrap();
        assert!(!Zio::same_place(&b, &d));
        assert!(d.psize() < b.psize());
    }

    /// A block in two copies, on disk with txg 5; the cache is empty.
    fn doubled() -> (Zio, Arc<MemoryDevices>, Block, BlkPtr) {
        let a = Arc::new(MemoryAllocator::new(8 << 20));
        let d = Arc::new(MemoryDevices::new(9));
        let o = ZioOptions {
            cache_bytes: 1 << 20,
            seed: 1,
            writable: true,
        };
        let z = Zio::new(d.clone(), a, o);
        let s = WriteSpec {
            copies: 2,
            compress: Compression::OFF,
            ..spec()
        };
        let data = Arc::new(noise(4096, 1));
        let bp = z.prepare(&s, &data).unwrap();
        let bp = z.issue(&s, &bp, Txg::new(5), &BlkPtr::HOLE).unwrap();
        z.drain(Txg::new(5)).unwrap();
        z.set_synced(Txg::new(5));
        z.cache.clear();
        (z, d, data, bp)
    }

    fn counts(d: &MemoryDevices) -> (u64, u64) {
        let n = |a: &AtomicU64| a.load(Ordering::Relaxed);
        (n(&d.errors), n(&d.lost))
    }

    #[test]
    fn a_bad_copy_is_counted_once_and_put_right() {
        let (z, d, data, bp) = doubled();
        d.ruin(bp.dva(0).offset());
        assert_eq!(z.read(&bp).unwrap(), data);
        assert_eq!(counts(&d), (1, 0));
        z.cache.clear();
        assert_eq!(
            z.read_many(&[bp], &ReadSpec::default())[0]
                .as_ref()
                .unwrap(),
            &data
        );
        assert_eq!(counts(&d), (1, 0), "repaired");
        d.ruin(bp.dva(0).offset());
        z.cache.clear();
        assert_eq!(
            z.read_many(&[bp], &ReadSpec::default())[0]
                .as_ref()
                .unwrap(),
            &data
        );
        assert_eq!(counts(&d), (2, 0), "in a batch, too");
        d.ruin(bp.dva(0).offset());
        d.ruin(bp.dva(1).offset());
        z.cache.clear();
        assert_eq!(z.read(&bp).unwrap_err().kind, Kind::Checksum);
        assert_eq!(counts(&d), (4, 1));
    }

    fn since(lease: crate::Lease) -> ReadSpec<'static> {
        ReadSpec {
            in_use: crate::InUse::Since(lease),
            ..ReadSpec::default()
        }
    }

    /// Whoever kept a pointer for too long finds the content of another block: that is nobody's
    /// fault, and the old content must not be written over it.
    #[test]
    fn what_is_not_in_use_any_more_is_not_repaired() {
        let (z, d, data, bp) = doubled();
        let lease = z.lease();
        // Freed in txg 6, reallocated in txg 9. One copy of the new block is on its way.
        z.set_synced(Txg::new(8));
        d.ruin(bp.dva(0).offset());
        assert_eq!(z.read_with(&bp, &since(lease)).unwrap(), data);
        assert_eq!(counts(&d), (0, 0));
        z.cache.clear();
        d.ruin(bp.dva(1).offset());
        assert!(z.read_with(&bp, &since(lease)).is_err());
        assert_eq!(counts(&d), (0, 0));
        // Nothing was written: undoing the change brings the old content back.
        d.ruin(bp.dva(0).offset());
        assert_eq!(z.read(&bp).unwrap(), data);
    }

    /// A later pass of the same txg writes a block again at the same address.
    #[test]
    fn pointers_of_earlier_passes() {
        let (z, d, _, _) = doubled();
        let s = WriteSpec {
            compress: Compression::OFF,
            ..spec()
        };
        let (one, two) = (Arc::new(noise(4096, 3)), Arc::new(noise(4096, 4)));
        let a = z.prepare(&s, &one).unwrap();
        let a = z.issue(&s, &a, Txg::new(6), &BlkPtr::HOLE).unwrap();
        let b = z.prepare(&s, &two).unwrap();
        let b = z.issue(&s, &b, Txg::new(6), &a).unwrap();
        assert!(Zio::same_place(&a, &b));
        assert_eq!(z.read(&a).unwrap(), one, "queued");
        z.drain(Txg::new(6)).unwrap();
        z.cache.clear();
        assert_eq!(z.read(&a).unwrap(), one, "written over");
        assert_eq!(z.read(&b).unwrap(), two);
        z.set_synced(Txg::new(6));
        z.settle();
        z.cache.clear();
        assert!(z.read(&a).is_err());
        assert_eq!(z.read(&b).unwrap(), two);
        // A reader with the old pointer charged a device before; two txgs later it does not.
        let before = counts(&d);
        z.set_synced(Txg::new(9));
        assert!(z
            .read_with(&a, &since(crate::Lease::of(Txg::new(6))))
            .is_err());
        assert_eq!(counts(&d), before);
    }
}
