//! Read-ahead: recognises sequential reads, and has other threads read the next blocks into the block
//! cache.
//!
//! [`crate::streams`] recognises streams. Reads that belong to none may be at equal distances ([`crate::strided_prefetch`]).
//! Jobs hold nothing that would keep a pool from being closed: see [`crate::job_gate`].

use crate::streams::{Sizes, CHUNK};
use crate::tree::reads_as_zeros;
use crate::{Dmu, Dnode, Objset};
use disk::dnode::DNODES_PER_BLOCK;
use disk::BlkPtr;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::Duration;
use zio::ReadSpec;

/// After that time a device is not waited for when the pool is closed.
const STALLED: Duration = Duration::from_secs(5);

impl Dmu {
    /// Ends reading ahead for good: no device is used for it any more when this returns, unless one
    /// does not answer.
    pub fn stop_ahead(&self) {
        self.ahead.close(STALLED);
    }

    /// Whether anything is read ahead, whatever datasets say.
    pub fn set_read_ahead(&self, on: bool) {
        self.no_ahead.store(!on, Ordering::Relaxed);
    }

    fn reads_ahead(&self) -> bool {
        !self.no_ahead.load(Ordering::Relaxed)
    }

    /// Whether reading ahead has been ended: jobs that take long ask now and then.
    pub fn ahead_stopped(&self) -> bool {
        self.ahead.is_closed()
    }

    /// Has `job` done by another thread, if there is one to spare and the pool is not closed by then.
    /// It must hold nothing that keeps the pool open.
    pub fn later(&self, job: impl FnOnce() + Send + 'static) -> bool {
        let gate = self.ahead.clone();
        self.env.cpu.later(Box::new(move || {
            if let Some(pass) = gate.enter() {
                job();
                drop(pass);
            }
        }))
    }
}

impl Dnode {
    /// `len` bytes at `offset` are read; there are `blocks` blocks of `size` bytes.
    pub(crate) fn stream(&self, offset: u64, len: u64, size: u64, blocks: u64) {
        if blocks < 2 || len == 0 || !self.reads_ahead() {
            return;
        }
        let (first, last) = (offset / size, (offset + len - 1) / size);
        // Somebody else reads at the same moment: the next read will tell.
        let Ok(mut streams) = self.streams.try_lock() else {
            return;
        };
        let sizes = Sizes::of(size, blocks, self.dmu.zio.cache.data_budget());
        match streams.read(first, last, sizes) {
            Some(range) => {
                drop(streams);
                self.ask(range, sizes.chunk);
            }
            None => {
                let (mut places, farthest) = (Vec::new(), sizes.farthest * size);
                let strides = streams.strides.get_or_insert_default();
                strides.read(offset, len.max(size), farthest, &mut places);
                drop(streams);
                self.ask_here_and_there(&places, len, size, blocks);
            }
        }
    }

    /// Has the blocks of reads of `len` bytes at these places brought into the cache, in one batch.
    fn ask_here_and_there(&self, places: &[u64], len: u64, size: u64, blocks: u64) {
        let of = |at: &u64| at / size..=at.saturating_add(len - 1) / size;
        let wanted: BTreeSet<u64> = places.iter().flat_map(of).filter(|b| *b < blocks).collect();
        if wanted.is_empty() {
            return;
        }
        let me = self.weak();
        self.dmu.later(move || {
            if let Some(dn) = me.upgrade() {
                dn.fetch_these(wanted.into_iter());
            }
        });
    }

    /// Has `job` done by another thread, see [`Dmu::later`].
    pub fn later(&self, job: impl FnOnce() + Send + 'static) -> bool {
        self.dmu.later(job)
    }

    /// Has the blocks that hold `[offset, offset + len)` brought into the cache, some time.
    pub fn prefetch(&self, offset: u64, len: u64) {
        if !self.reads_ahead() {
            return;
        }
        let (size, blocks) = {
            let i = self.read_lock();
            (i.f.block_size as u64, i.f.maxblkid.saturating_add(1))
        };
        let end = offset.saturating_add(len).div_ceil(size).min(blocks);
        let budget = self.dmu.zio.cache.data_budget() / 16 / size;
        let first = (offset / size).min(end);
        let end = end.min(first + budget);
        self.ask(first..end, (CHUNK / size).max(1));
    }

    /// Whether anything of this object may be read ahead of those who read it.
    fn reads_ahead(&self) -> bool {
        let metadata = self.info().obj_type.is_metadata();
        self.dmu.reads_ahead() && self.reading.ahead().includes(metadata)
    }

    fn ask(&self, range: Range<u64>, chunk: u64) {
        let mut at = range.start;
        while at < range.end {
            let end = (at + chunk).min(range.end);
            let me = self.weak();
            let job = move || {
                if let Some(dn) = me.upgrade() {
                    dn.fetch(at..end);
                }
            };
            if !self.dmu.later(job) {
                return;
            }
            at = end;
        }
    }

    /// How blocks of this object are read ahead.
    fn read_ahead_spec(&self) -> ReadSpec<'_> {
        ReadSpec {
            keep: self.reading.keep(),
            ..ReadSpec::with_key(&self.crypt)
        }
    }

    /// Reads blocks into the cache. What cannot be read is told to who asks for it.
    fn fetch(&self, range: Range<u64>) {
        self.fetch_these(range);
    }

    /// The same for blocks here and there; how many were not there.
    fn fetch_these(&self, blocks: impl Iterator<Item = u64>) -> usize {
        let mut bps = Vec::new();
        self.pointers(blocks, &mut bps);
        self.dmu.zio.read_ahead(&bps, &self.read_ahead_spec())
    }

    /// Adds where these blocks are on disk to `bps`, up to the first that cannot be told.
    fn pointers(&self, blocks: impl Iterator<Item = u64>, bps: &mut Vec<BlkPtr>) {
        let r = self.reader();
        let s = {
            let i = self.read_lock();
            if i.s.block_size != i.f.block_size {
                return;
            }
            i.s.clone()
        };
        for blk in blocks {
            match s.lookup(&r, blk) {
                Ok(bp) if !reads_as_zeros(&bp) => bps.push(bp),
                Ok(_) => {}
                Err(_) => return,
            }
        }
    }
}

impl Objset {
    /// Brings what is known of these objects into the cache, in one batch; how many blocks were not
    /// there. What cannot be read is told to who asks for it.
    pub fn read_ahead(&self, objects: impl Iterator<Item = u64>) -> usize {
        let blocks: BTreeSet<u64> = objects.map(|o| o / DNODES_PER_BLOCK).collect();
        let meta = &self.meta;
        if !meta.reads_ahead() {
            return 0;
        }
        let last = meta.info().max_blkid;
        meta.fetch_these(blocks.into_iter().filter(|b| *b <= last))
    }

    /// Brings all that these small objects hold into the cache, in one batch; how many blocks were
    /// not there.
    pub fn contents_ahead(&self, objects: &[Arc<Dnode>]) -> usize {
        let mut bps = Vec::new();
        for dn in objects {
            if !dn.reads_ahead() {
                continue;
            }
            let last = dn.info().max_blkid;
            dn.pointers(0..=last, &mut bps);
        }
        match objects.first() {
            Some(dn) => dn.dmu.zio.read_ahead(&bps, &dn.read_ahead_spec()),
            None => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::Rig;
    use crate::{NewObject, WritePolicy};
    use disk::ObjType;

    /// Through an object: what comes next is in the cache before it is asked for, is right, and does
    /// not stay there when all of it has been read by somebody who keeps it himself.
    #[test]
    fn blocks_are_there_before_they_are_asked_for() {
        let rig = Rig::new(2, 64 << 20, WritePolicy::default());
        let tx = rig.tx();
        let new = NewObject {
            obj_type: ObjType::PLAIN_FILE_CONTENTS,
            block_size: 4096,
            ..NewObject::default()
        };
        let dn = rig.os.alloc(&tx, &new).unwrap();
        let object = dn.object();
        let byte = |blk: u64| (blk % 251) as u8 + 1;
        let noise = |blk: u64| -> Vec<u8> {
            (0..4096u64)
                .map(|i| (i.wrapping_mul(blk * 2 + 1) >> 3) as u8 ^ byte(blk))
                .collect()
        };
        for blk in 0..2000 {
            dn.write(&tx, blk * 4096, &noise(blk)).unwrap();
        }
        drop((tx, dn));
        let rig = rig.reopen();
        let zio = rig.dmu.zio.clone();
        zio.cache.set_streams(false);
        let dn = rig.os.hold(object).unwrap();
        let mut buf = vec![0; 8 * 4096];
        let mut read = |n: u64| {
            dn.read(n * 8 * 4096, &mut buf).unwrap();
            for k in 0..8 {
                assert!(buf[k * 4096..][..4096] == noise(n * 8 + k as u64));
            }
        };
        read(0);
        let none = zio.cache.used();
        read(1);
        assert!(zio.cache.used() >= none + 8 * 4096, "nothing is ahead");
        (2..50).for_each(&mut read);
        let most = zio.cache.used();
        assert!(most > none + (1 << 20), "{most}");
        (50..250).for_each(&mut read);
        let left = zio.cache.used();
        assert!(left < none + (1 << 19), "{left}");
        // Nobody reads ahead when the pool is being closed.
        rig.dmu.stop_ahead();
        dn.prefetch(0, u64::MAX);
        assert_eq!(zio.cache.used(), left);
        assert!(rig.dmu.ahead_stopped());
    }

    /// Reads at equal distances, forwards and backwards: from the fourth on the next are there before
    /// they are asked for, and nothing else.
    #[test]
    fn strides_are_there_before_they_are_asked_for() {
        let (blocks, step) = (1000u64, 10);
        let rig = Rig::new(2, 64 << 20, WritePolicy::default());
        let tx = rig.tx();
        let new = NewObject {
            obj_type: ObjType::PLAIN_FILE_CONTENTS,
            block_size: 4096,
            ..NewObject::default()
        };
        let dn = rig.os.alloc(&tx, &new).unwrap();
        let object = dn.object();
        let noise = |blk: u64| -> Vec<u8> {
            let mix = |i: u64| (i.wrapping_mul(blk * 2 + 1) >> 3) as u8 ^ blk as u8;
            (0..4096).map(mix).collect()
        };
        for blk in 0..blocks {
            dn.write(&tx, blk * 4096, &noise(blk)).unwrap();
        }
        drop((tx, dn));
        let rig = rig.reopen();
        for backwards in [false, true] {
            let dn = rig.os.hold(object).unwrap();
            let has = |blk: u64| {
                let mut bps = Vec::new();
                dn.pointers([blk].into_iter(), &mut bps);
                rig.dmu.zio.cache.has(&bps[0])
            };
            let count = || (0..blocks).filter(|b| has(*b)).count() as u64;
            let base = if backwards { 5 } else { 0 };
            let before = count();
            let places: Vec<u64> = (0..blocks / step).map(|n| n * step + base).collect();
            let places: Vec<u64> = match backwards {
                true => places.into_iter().rev().collect(),
                false => places,
            };
            let mut buf = vec![0; 4096];
            for (n, blk) in places.iter().enumerate() {
                assert_eq!(has(*blk), n > 3, "read {n}");
                dn.read(blk * 4096, &mut buf).unwrap();
                assert!(buf == noise(*blk));
            }
            assert_eq!(count() - before, places.len() as u64);
        }
    }
}
