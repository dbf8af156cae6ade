//! Read-ahead: recognises sequential reads, and has other threads read the next blocks into the block
//! cache.
//!
//! Each object remembers a few places where reads went on from where others had ended. The further
//! such a stream goes the further ahead of it is read, up to [`FARTHEST`]. Reads that belong to none
//! may be at equal distances ([`crate::strided_prefetch`]). Jobs hold nothing that would keep a pool from being
//! closed: see [`Door`].

use crate::strided_prefetch::Strides;
use crate::tree::reads_as_zeros;
use crate::{Dmu, Dnode, Objset};
use base::sync::{CondvarExt, MutexExt};

use disk::dnode::DNODES_PER_BLOCK;
use disk::BlkPtr;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;
use zio::ReadSpec;

/// Most bytes that are read ahead of a stream.
const FARTHEST: u64 = 16 << 20;
/// Bytes of one job: one large transfer where blocks lie side by side.
const CHUNK: u64 = 1 << 20;
/// How far from where a stream is expected a read may be and still belong to it, in lengths of the
/// read: the kernel has several requests under way, and they do not come in order.
const SLACK: u64 = 4;
/// A stream that was not seen in so many reads of its object has to prove itself again: of reads at
/// random places some are near each other.
const FORGOTTEN: u32 = 16;
/// After that time a device is not waited for when the pool is closed.
const STALLED: Duration = Duration::from_secs(5);
/// Streams an object remembers.
const STREAMS: usize = 4;

/// One sequence of reads, in blocks.
#[derive(Clone, Copy, Default, Debug)]
struct Stream {
    /// Where it is expected to go on.
    next: u64,
    /// What lies before this has been asked for.
    asked: u64,
    /// How far ahead to read; 0 until it has gone on once.
    window: u64,
    /// When it was last seen.
    seen: u32,
}

/// Sizes in blocks of the object at hand.
#[derive(Clone, Copy)]
struct Sizes {
    chunk: u64,
    farthest: u64,
    /// Blocks of the object.
    end: u64,
}

impl Sizes {
    fn of(block_size: u64, blocks: u64, budget: u64) -> Sizes {
        Sizes {
            chunk: (CHUNK / block_size).max(1),
            farthest: FARTHEST.min(budget / 16) / block_size,
            end: blocks,
        }
    }
}

/// The streams of one object.
#[derive(Default)]
pub(crate) struct Streams {
    streams: [Stream; STREAMS],
    clock: u32,
    /// Not there before it is needed: most objects are small.
    strides: Option<Box<Strides>>,
}

impl Streams {
    /// Blocks `first..=last` are read now; the blocks to be read ahead, possibly none. Nothing at all:
    /// the read belongs to no stream.
    fn read(&mut self, first: u64, last: u64, z: Sizes) -> Option<Range<u64>> {
        self.clock = self.clock.wrapping_add(1);
        let clock = self.clock;
        let slack = (last + 1 - first) * SLACK;
        for s in &mut self.streams {
            if clock.wrapping_sub(s.seen) > FORGOTTEN {
                s.window = 0;
            }
        }
        let follows = |s: &&mut Stream| match s.window {
            0 => first <= s.next && s.next <= last + 1 && s.seen != 0,
            _ => first <= s.next + slack && s.next <= first + slack,
        };
        let Some(s) = self.streams.iter_mut().find(follows) else {
            // The one not seen for longest gives way.
            let oldest = self
                .streams
                .iter_mut()
                .max_by_key(|s| (s.seen == 0, clock.wrapping_sub(s.seen)));
            if let Some(s) = oldest {
                *s = Stream {
                    next: last + 1,
                    asked: last + 1,
                    window: 0,
                    seen: clock.max(1),
                };
            }
            return None;
        };
        s.seen = clock.max(1);
        if last < s.next {
            return Some(0..0);
        }
        s.window = (s.window * 2)
            .max((last + 1 - first) * 2)
            .max(4)
            .min(z.farthest);
        s.next = last + 1;
        s.asked = s.asked.max(s.next);
        let target = (s.next + s.window).min(z.end);
        let step = z.chunk.min(s.window / 2).max(1);
        if target < s.asked + step && (target < z.end || target <= s.asked) {
            return Some(0..0);
        }
        let r = s.asked..target;
        s.asked = target;
        Some(r)
    }
}

/// Lets jobs in while the pool is open, and lets it be closed when none is inside.
#[derive(Default)]
pub(crate) struct Door {
    /// Closed; jobs inside.
    state: Mutex<(bool, usize)>,
    empty: Condvar,
}

struct Pass(Arc<Door>);

impl Door {
    fn enter(self: &Arc<Door>) -> Option<Pass> {
        let mut st = self.state.acquire();
        if st.0 {
            return None;
        }
        st.1 += 1;
        Some(Pass(self.clone()))
    }

    /// Waits for who is inside, but not for ever: on a device that stalls.
    fn close(&self, most: Duration) {
        let mut st = self.state.acquire();
        st.0 = true;
        let (st, _) = self.empty.wait_acquire_while(st, most, |st| st.1 > 0);
        drop(st);
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        let mut st = self.0.state.acquire();
        st.1 -= 1;
        if st.1 == 0 {
            self.0.empty.notify_all();
        }
    }
}

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
        self.ahead.state.acquire().0
    }

    /// Has `job` done by another thread, if there is one to spare and the pool is not closed by then.
    /// It must hold nothing that keeps the pool open.
    pub fn later(&self, job: impl FnOnce() + Send + 'static) -> bool {
        let door = self.ahead.clone();
        self.env.cpu.later(Box::new(move || {
            if let Some(pass) = door.enter() {
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
    use super::*;
    use crate::testing::Rig;
    use crate::{NewObject, WritePolicy};
    use disk::ObjType;

    const Z: Sizes = Sizes {
        chunk: 8,
        farthest: 128,
        end: 10_000,
    };

    /// Reads of 8 blocks in a row: nothing is asked for twice, nothing is left out, and it is ahead.
    #[test]
    fn a_stream_is_read_ahead_without_gaps() {
        let mut s = Streams::default();
        let mut asked = 0;
        for n in 0..200 {
            let (first, last) = (n * 8, n * 8 + 7);
            let Some(r) = s.read(first, last, Z) else {
                assert_eq!(n, 0, "one read is no stream");
                continue;
            };
            assert_ne!(n, 0);
            if !r.is_empty() {
                assert_eq!(r.start, if n == 1 { 16 } else { asked });
                asked = r.end;
            }
            if n > 6 {
                assert!(asked >= last + 1 + 128 - 8, "{n}: {asked}");
            }
            assert!(asked <= last + 1 + 128);
        }
    }

    #[test]
    fn it_ends_with_the_object() {
        let mut s = Streams::default();
        let z = Sizes { end: 100, ..Z };
        let mut asked = 0;
        for n in 0..12 {
            let r = s.read(n * 8, n * 8 + 7, z).unwrap_or(0..0);
            if !r.is_empty() {
                asked = r.end;
            }
        }
        assert_eq!(asked, 100);
    }

    #[test]
    fn requests_may_overtake_each_other() {
        let mut s = Streams::default();
        s.read(0, 7, Z);
        let mut asked = s.read(8, 15, Z).unwrap().end;
        for n in (2..100).step_by(2) {
            for m in [n + 1, n] {
                let r = s.read(m * 8, m * 8 + 7, Z).unwrap();
                if !r.is_empty() {
                    assert!(r.start >= asked);
                    asked = r.end;
                }
            }
        }
        assert!(asked > 800);
    }

    #[test]
    fn several_streams_and_none() {
        let mut s = Streams::default();
        let mut ahead = [0; 3];
        for n in 0..50 {
            for (k, base) in [0, 3000, 6000].into_iter().enumerate() {
                let r = s.read(base + n * 8, base + n * 8 + 7, Z).unwrap_or(0..0);
                ahead[k] += r.end - r.start;
            }
        }
        assert!(ahead.iter().all(|a| *a > 400), "{ahead:?}");
    }

    /// Reads all over the place ask for little, in small objects too.
    #[test]
    fn no_stream_where_there_is_none() {
        for blocks in [1u64 << 11, 1 << 30] {
            let (mut x, mut sum) = (12345u64, 0);
            let mut s = Streams::default();
            let z = Sizes { end: blocks, ..Z };
            for _ in 0..10_000 {
                x = x
                    .wrapping_mul(6364136223846793005)
                    .wrapping_add(1442695040888963407);
                let at = (x >> 20) % blocks;
                let r = s.read(at, at, z).unwrap_or(0..0);
                sum += r.end - r.start;
            }
            assert!(sum < 500, "{blocks}: {sum}");
        }
    }

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

    #[test]
    fn the_door_waits_for_who_is_inside() {
        let door = Arc::new(Door::default());
        let pass = door.enter().unwrap();
        std::thread::scope(|s| {
            let closing = s.spawn(|| door.close(Duration::MAX));
            while !door.state.acquire().0 {
                std::thread::yield_now();
            }
            assert!(door.enter().is_none());
            assert!(!closing.is_finished());
            drop(pass);
        });
        assert!(door.enter().is_none());
    }
}
