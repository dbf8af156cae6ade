//! Memory twins of the two seams, for tests of the rooms above: one vdev of bytes, a bump allocator
//! with a free list.

use crate::seam::{Allocator, Devices, PhysWrite, Purpose};
use base::{bail, roundup, RangeSet, Result, Txg};
use disk::Dva;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Mutex;

/// One "disk": blocks by offset.
pub struct MemoryDevices {
    blocks: Mutex<HashMap<u64, Vec<u8>>>,
    ashift: u32,
    pub reads: AtomicU64,
    pub writes: AtomicU64,
}

impl MemoryDevices {
    pub fn new(ashift: u32) -> MemoryDevices {
        MemoryDevices {
            blocks: Mutex::default(),
            ashift,
            reads: AtomicU64::new(0),
            writes: AtomicU64::new(0),
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
    fn read(
        &self,
        dva: &Dva,
        psize: usize,
        _: Txg,
        verify: &(dyn Fn(&[u8]) -> bool + Sync),
    ) -> Result<Vec<u8>> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        let b = self.blocks.lock().unwrap_or_else(|e| e.into_inner());
        match b.get(&dva.offset()) {
            Some(b) if b.len() >= psize && verify(&b[..psize]) => Ok(b[..psize].to_vec()),
            _ => bail!(Checksum, "nothing good at {:x}", dva.offset()),
        }
    }
    fn write(&self, writes: &[PhysWrite], _: Txg) -> Result<()> {
        let mut b = self.blocks.lock().unwrap_or_else(|e| e.into_inner());
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
    pub fn new(size: u64) -> MemoryAllocator {
        let mut free = RangeSet::new();
        free.insert(0, size);
        MemoryAllocator {
            free: Mutex::new(free),
        }
    }
    /// Bytes not allocated.
    pub fn free_bytes(&self) -> u64 {
        self.free.lock().unwrap_or_else(|e| e.into_inner()).total()
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
        let mut f = self.free.lock().unwrap_or_else(|e| e.into_inner());
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
        let mut f = self.free.lock().unwrap_or_else(|e| e.into_inner());
        assert_eq!(
            f.insert(offset, offset + asize),
            asize,
            "freed twice: {offset:x}"
        );
        Ok(())
    }
    fn claim(&self, _: u64, offset: u64, asize: u64, _: Txg) -> Result<()> {
        let mut f = self.free.lock().unwrap_or_else(|e| e.into_inner());
        f.remove(offset, offset + asize);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{WriteSpec, Zio, ZioOptions};
    use disk::{BlkPtr, ObjType};
    use std::sync::Arc;

    fn spec() -> WriteSpec {
        WriteSpec {
            obj_type: ObjType::PLAIN_FILE_CONTENTS,
            level: 0,
            compress: 15,
            zstd_level: 0,
            checksum: 7,
            copies: 1,
            gang_copies: 2,
            embed: true,
            hole_birth: true,
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
            let bp = z.issue(&spec(), &p, 5, &BlkPtr::HOLE).unwrap();
            assert_eq!(i == 3, bp.is_hole());
            assert_eq!(
                *z.read(&bp).unwrap_or_default(),
                if i == 3 { vec![] } else { data.to_vec() }
            );
            z.drain(5).unwrap();
            z.cache.clear();
            if i != 3 {
                assert_eq!(z.read(&bp).unwrap(), data, "{i}");
            }
            all.push(bp);
        }
        for bp in all {
            z.free(&bp, 6).unwrap();
        }
        assert_eq!(a.free_bytes(), total);
    }

    #[test]
    fn gangs_when_space_is_in_pieces() {
        let (z, a) = zio(9, 8 << 20);
        let total = a.free_bytes();
        // Take everything, then give back every second 4 KiB.
        let mut hold = Vec::new();
        while let Ok(d) = a.alloc(Purpose::Data, 4096, 1, 5, &|_| 4096) {
            hold.push(d[0]);
        }
        for d in hold.iter().step_by(2) {
            a.free(0, d.offset(), d.asize(), 5).unwrap();
        }
        let before = a.free_bytes();
        let data = Arc::new(noise(131072, 9));
        let p = z.prepare(&spec(), &data).unwrap();
        let bp = z.issue(&spec(), &p, 5, &BlkPtr::HOLE).unwrap();
        assert!(bp.is_gang());
        z.drain(5).unwrap();
        z.cache.clear();
        assert_eq!(z.read(&bp).unwrap(), data);
        let dsize = z.dsize(&bp);
        assert!(before - a.free_bytes() >= 131072 && dsize >= 131072);
        z.free(&bp, 6).unwrap();
        assert_eq!(a.free_bytes(), before);
        for d in hold.iter().skip(1).step_by(2) {
            a.free(0, d.offset(), d.asize(), 5).unwrap();
        }
        assert_eq!(a.free_bytes(), total);
    }

    #[test]
    fn rewrite_in_the_same_txg_keeps_the_place() {
        let (z, _) = zio(9, 8 << 20);
        let s = WriteSpec {
            compress: 2,
            ..spec()
        };
        let one = Arc::new(noise(4096, 1));
        let two = Arc::new(noise(4096, 2));
        let a = z
            .issue(&s, &z.prepare(&s, &one).unwrap(), 5, &BlkPtr::HOLE)
            .unwrap();
        let b = z.issue(&s, &z.prepare(&s, &two).unwrap(), 5, &a).unwrap();
        assert!(Zio::same_place(&a, &b));
        z.drain(5).unwrap();
        z.cache.clear();
        assert_eq!(z.read(&b).unwrap(), two);
        let c = z.issue(&s, &z.prepare(&s, &one).unwrap(), 6, &b).unwrap();
        assert!(!Zio::same_place(&b, &c));
    }
}
