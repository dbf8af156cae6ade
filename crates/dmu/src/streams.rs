//! Detection of sequential reads of an object, and how far ahead of them to read.
//!
//! Each object remembers a few places where reads went on from where others had ended. The further such a stream goes the
//! further ahead of it is read, up to [`FARTHEST`].

use crate::strided_prefetch::Strides;
use std::ops::Range;

/// Most bytes that are read ahead of a stream.
const FARTHEST: u64 = 16 << 20;
/// Bytes of one job: one large transfer where blocks lie side by side.
pub(crate) const CHUNK: u64 = 1 << 20;
/// How far from where a stream is expected a read may be and still belong to it, in lengths of the
/// read: the kernel has several requests under way, and they do not come in order.
const SLACK: u64 = 4;
/// A stream that was not seen in so many reads of its object has to prove itself again: of reads at
/// random places some are near each other.
const FORGOTTEN: u32 = 16;
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
pub(crate) struct Sizes {
    pub chunk: u64,
    pub farthest: u64,
    /// Blocks of the object.
    pub end: u64,
}

impl Sizes {
    pub fn of(block_size: u64, blocks: u64, budget: u64) -> Sizes {
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
    pub strides: Option<Box<Strides>>,
}

impl Streams {
    /// Blocks `first..=last` are read now; the blocks to be read ahead, possibly none. Nothing at all:
    /// the read belongs to no stream.
    pub fn read(&mut self, first: u64, last: u64, z: Sizes) -> Option<Range<u64>> {
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

#[cfg(test)]
mod tests {
    use super::*;

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
}
