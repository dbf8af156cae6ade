//! Space maps (pool format §16.2, §16.3): a log of allocations and frees, in words of 8 bytes.
//!
//! Offsets and lengths in entries are in units of `1 << shift` bytes relative to the start of the
//! map's region; [`Entry`] keeps units, [`Range::bytes`] converts with overflow checks.

use crate::bytes::{put_u64, u64_at};
use base::{bail, Result, Txg};

/// Bonus of a space map without histogram.
pub const SMALL_BONUS: usize = 24;
/// Bonus of a space map with histogram (feature spacemap_histogram).
pub const FULL_BONUS: usize = 320;
/// Buckets of the histogram.
pub const HISTOGRAM_SIZE: usize = 32;
/// Units one one-word entry can cover.
pub const MAX_RUN_V1: u64 = 1 << 15;
/// Units one two-word entry can cover.
pub const MAX_RUN_V2: u64 = 1 << 36;
/// Offsets below this fit into a one-word entry.
pub const MAX_OFFSET_V1: u64 = 1 << 47;

/// Bonus of a space map object (type 7).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SpaceMapPhys {
    /// Own object number; historic but kept.
    pub object: u64,
    /// Bytes of valid entries.
    pub length: u64,
    /// Allocations minus frees recorded, bytes.
    pub alloc: i64,
    /// Present with the 320-byte bonus: number of free segments by size.
    pub histogram: Option<Box<[u64; HISTOGRAM_SIZE]>>,
}

impl SpaceMapPhys {
    /// `bonus` must be cut to the bonus length of the dnode: it tells whether there is a histogram.
    pub fn decode(bonus: &[u8]) -> Result<SpaceMapPhys> {
        let histogram = if bonus.len() >= FULL_BONUS {
            let mut h = Box::new([0; HISTOGRAM_SIZE]);
            for (i, w) in h.iter_mut().enumerate() {
                *w = u64_at(bonus, 64 + 8 * i)?;
            }
            Some(h)
        } else {
            None
        };
        let s = SpaceMapPhys {
            object: u64_at(bonus, 0)?,
            length: u64_at(bonus, 8)?,
            alloc: u64_at(bonus, 16)? as i64,
            histogram,
        };
        if s.length % 8 != 0 {
            bail!(Damaged, "space map of {} bytes", s.length);
        }
        Ok(s)
    }

    /// 24 or 320 bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut b = vec![0; SMALL_BONUS];
        put_u64(&mut b, 0, self.object);
        put_u64(&mut b, 8, self.length);
        put_u64(&mut b, 16, self.alloc as u64);
        if let Some(h) = &self.histogram {
            b.resize(FULL_BONUS, 0);
            for (i, w) in h.iter().enumerate() {
                put_u64(&mut b, 64 + 8 * i, *w);
            }
        }
        b
    }

    /// Counts a free segment of `len` bytes into a histogram of a map with that shift: bucket i
    /// holds sizes from `1 << (i + shift)`; larger ones than the last bucket count as several.
    pub fn histogram_add(histogram: &mut [u64; HISTOGRAM_SIZE], shift: u32, len: u64) {
        if len == 0 {
            return;
        }
        let index = (63 - len.leading_zeros()).saturating_sub(shift) as usize;
        if index < HISTOGRAM_SIZE {
            histogram[index] += 1;
        } else {
            histogram[HISTOGRAM_SIZE - 1] += 1 << (index - (HISTOGRAM_SIZE - 1));
        }
    }
}

/// One allocated or freed range, in units of the map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// Freed if true, else allocated.
    pub free: bool,
    /// Start, units from the start of the region.
    pub offset: u64,
    /// Length, units, at least 1.
    pub run: u64,
    /// Top-level vdev; only meaningful in log space maps (0 in all others).
    pub vdev: u32,
}

impl Range {
    /// Start and end in bytes for a map with that shift, relative to its region.
    pub fn bytes(&self, shift: u32) -> Result<(u64, u64)> {
        let end = self.offset.checked_add(self.run);
        match end {
            Some(end) if shift < 64 && end <= u64::MAX >> shift => {
                Ok((self.offset << shift, end << shift))
            }
            _ => bail!(Damaged, "space map entry out of range: {self:?}"),
        }
    }
}

/// One entry of a space map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// Marks the start of a batch; informative. All zero: padding.
    Debug {
        /// The batch has frees; allocations otherwise.
        free: bool,
        /// Sync pass in which the batch was written.
        pass: u16,
        /// Txg in which it was written.
        txg: Txg,
    },
    /// Allocates or frees a range.
    Range(Range),
}

/// Iterates over the entries in whole blocks (or all) of a space map's data.
pub struct Entries<'a> {
    b: &'a [u8],
    at: usize,
}

/// Entries of `b`, which must begin at the start of an entry (any block start is one).
pub fn entries(b: &[u8]) -> Entries<'_> {
    Entries { b, at: 0 }
}

impl Entries<'_> {
    /// Byte at which the next entry begins.
    pub fn position(&self) -> usize {
        self.at
    }
}

impl Iterator for Entries<'_> {
    type Item = Result<Entry>;

    fn next(&mut self) -> Option<Result<Entry>> {
        if self.at >= self.b.len() {
            return None;
        }
        let r = self.entry();
        if r.is_err() {
            self.at = self.b.len();
        }
        Some(r)
    }
}

impl Entries<'_> {
    fn word(&mut self) -> Result<u64> {
        let w = u64_at(self.b, self.at)?;
        self.at += 8;
        Ok(w)
    }

    fn entry(&mut self) -> Result<Entry> {
        let w = self.word()?;
        Ok(match w >> 62 {
            0b10 => Entry::Debug {
                free: w >> 60 & 3 == 1,
                pass: (w >> 50 & 0x3ff) as u16,
                txg: Txg::new(w & ((1 << 50) - 1)),
            },
            0b11 => {
                let w2 = self.word()?;
                Entry::Range(Range {
                    free: w2 >> 63 != 0,
                    offset: w2 & !(1 << 63),
                    run: (w >> 24 & (MAX_RUN_V2 - 1)) + 1,
                    vdev: (w & 0xff_ffff) as u32,
                })
            }
            _ => Entry::Range(Range {
                free: w >> 15 & 1 != 0,
                offset: w >> 16 & (MAX_OFFSET_V1 - 1),
                run: (w & (MAX_RUN_V1 - 1)) + 1,
                vdev: 0,
            }),
        })
    }
}

/// Encodes entries to be appended to a space map.
pub struct Writer {
    block_size: usize,
    start: u64,
    v2: bool,
    out: Vec<u8>,
}

impl Writer {
    /// `start`: byte position in the object at which the output will be written (the map's valid
    /// length); `block_size` of the object; `v2`: two-word entries are allowed.
    pub fn new(block_size: usize, start: u64, v2: bool) -> Writer {
        Writer {
            block_size: block_size.max(16),
            start,
            v2,
            out: Vec::new(),
        }
    }

    /// Bytes encoded so far.
    pub fn len(&self) -> usize {
        self.out.len()
    }

    /// Whether nothing was encoded.
    pub fn is_empty(&self) -> bool {
        self.out.is_empty()
    }

    /// What to write at `start`.
    pub fn finish(self) -> Vec<u8> {
        self.out
    }

    fn word(&mut self, w: u64) {
        self.out.extend_from_slice(&w.to_le_bytes());
    }

    /// The debug entry in front of a batch of allocations or frees.
    pub fn debug(&mut self, free: bool, pass: u64, txg: Txg) {
        let w = 0b10 << 62
            | u64::from(free) << 60
            | (pass & 0x3ff) << 50
            | txg.number() & ((1 << 50) - 1);
        self.word(w);
    }

    /// One range, in units; split into several entries where it must be. `vdev` is given exactly in
    /// log space maps. Without two-word entries an offset of 2^47 units or more, or a vdev, is
    /// [`base::Kind::Overflow`].
    pub fn range(&mut self, free: bool, offset: u64, run: u64, vdev: Option<u32>) -> Result<()> {
        let end = match offset.checked_add(run) {
            Some(end) if end <= 1 << 63 => end,
            _ => bail!(Overflow, "space map range {offset:#x}+{run:#x}"),
        };
        if vdev.is_some_and(|v| v >= 1 << 24) {
            bail!(Overflow, "space map: vdev number too large");
        }
        let one_word = |off: u64| off < MAX_OFFSET_V1;
        let mut at = offset;
        while at < end {
            let left = end - at;
            if vdev.is_none() && one_word(at) && (left <= MAX_RUN_V1 || !self.v2) {
                let n = left.min(MAX_RUN_V1);
                self.word(at << 16 | u64::from(free) << 15 | (n - 1));
                at += n;
                continue;
            }
            if !self.v2 {
                bail!(Overflow, "space map: offset {at:#x} needs spacemap_v2");
            }
            let n = left.min(MAX_RUN_V2);
            let place = (self.start + self.out.len() as u64) % self.block_size as u64;
            if place + 16 > self.block_size as u64 {
                // A two-word entry may not straddle a block: pad with an empty debug entry.
                self.word(0b10 << 62);
            }
            self.word(0b11 << 62 | (n - 1) << 24 | u64::from(vdev.unwrap_or(0)));
            self.word(u64::from(free) << 63 | at);
            at += n;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bytes::junk::Junk;
    use base::RangeSet;

    fn ranges(b: &[u8]) -> Vec<Range> {
        entries(b)
            .filter_map(|e| match e.unwrap() {
                Entry::Range(r) => Some(r),
                Entry::Debug { .. } => None,
            })
            .collect()
    }

    #[test]
    fn words() {
        let mut w = Writer::new(4096, 0, true);
        w.debug(true, 3, Txg::new(77));
        w.range(true, 5, 2, None).unwrap();
        w.range(false, 5, MAX_RUN_V1 + 1, None).unwrap();
        w.range(false, 1 << 47, 1, None).unwrap();
        let b = w.finish();
        assert_eq!(b.len(), 8 + 8 + 16 + 16);
        assert_eq!(u64_at(&b, 0).unwrap(), 0x900c_0000_0000_004d);
        assert_eq!(u64_at(&b, 8).unwrap(), 5 << 16 | 1 << 15 | 1);
        assert_eq!(u64_at(&b, 16).unwrap(), 3 << 62 | 0x8000 << 24);
        assert_eq!(u64_at(&b, 24).unwrap(), 5);
        let all: Vec<Entry> = entries(&b).map(|e| e.unwrap()).collect();
        let debug = Entry::Debug {
            free: true,
            pass: 3,
            txg: Txg::new(77),
        };
        assert_eq!(all[0], debug);
        assert_eq!(all.len(), 4);
        assert_eq!(ranges(&b)[2].offset, 1 << 47);
    }

    #[test]
    fn without_v2_runs_are_split_and_far_offsets_refused() {
        let mut w = Writer::new(4096, 0, false);
        w.range(false, 100, 3 * MAX_RUN_V1 - 1, None).unwrap();
        let b = w.finish();
        assert_eq!(b.len(), 24);
        let total: u64 = ranges(&b).iter().map(|r| r.run).sum();
        assert_eq!(total, 3 * MAX_RUN_V1 - 1);
        let mut w = Writer::new(4096, 0, false);
        assert!(w.range(false, 1 << 47, 1, None).is_err());
        assert!(w.range(false, 1, 1, Some(0)).is_err());
        assert!(w.range(false, u64::MAX, 2, None).is_err());
        assert!(w.range(false, 0, 1, Some(1 << 24)).is_err());
    }

    /// Random ranges, any start position: what is read back is what was written, and no two-word
    /// entry crosses a block.
    #[test]
    fn random_ranges_come_back() {
        let mut junk = Junk(5);
        for round in 0..300 {
            let start = 8 * junk.below(200) as u64;
            let block = 128;
            let mut w = Writer::new(block, start, true);
            let mut want = Vec::new();
            for _ in 0..20 {
                let r = Range {
                    free: junk.below(2) == 1,
                    offset: junk.next() >> (1 + junk.below(60)),
                    run: 1 + (junk.next() >> (64 - 37 + junk.below(36))),
                    vdev: junk.below(1 << 24) as u32,
                };
                let log = round % 2 == 0;
                let vdev = log.then_some(r.vdev);
                if w.range(r.free, r.offset, r.run, vdev).is_ok() {
                    want.push(Range {
                        vdev: vdev.unwrap_or(0),
                        ..r
                    });
                }
            }
            let b = w.finish();
            let mut got: Vec<Range> = Vec::new();
            for r in ranges(&b) {
                // Join what was split.
                match got.last_mut() {
                    Some(l)
                        if l.run % MAX_RUN_V2 == 0
                            && (l.free, l.vdev, l.offset + l.run) == (r.free, r.vdev, r.offset) =>
                    {
                        l.run += r.run
                    }
                    _ => got.push(r),
                }
            }
            assert_eq!(got, want);
            // Reading block by block gives no error.
            let first = (block - start as usize % block).min(b.len());
            let (head, tail) = b.split_at(first);
            for part in std::iter::once(head).chain(tail.chunks(block)) {
                assert!(entries(part).all(|e| e.is_ok()));
            }
        }
    }

    #[test]
    fn replay_keeps_to_the_region() {
        let mut set = RangeSet::new();
        let mut w = Writer::new(4096, 0, true);
        w.range(false, 0, 100, None).unwrap();
        w.range(true, 10, 20, None).unwrap();
        for r in ranges(&w.finish()) {
            let (s, e) = r.bytes(9).unwrap();
            if r.free {
                assert_eq!(set.remove(s, e), e - s);
            } else {
                assert_eq!(set.insert(s, e), e - s);
            }
        }
        assert_eq!(set.total(), 80 << 9);
        let bad = Range {
            free: false,
            offset: (1 << 63) - 1,
            run: 1,
            vdev: 0,
        };
        assert!(bad.bytes(9).is_err() && bad.bytes(64).is_err() && bad.bytes(0).is_ok());
    }

    #[test]
    fn bonus() {
        let mut s = SpaceMapPhys {
            object: 7,
            length: 800,
            alloc: -512,
            histogram: None,
        };
        assert_eq!(s.encode().len(), 24);
        assert_eq!(SpaceMapPhys::decode(&s.encode()).unwrap(), s);
        let mut h = Box::new([0; 32]);
        SpaceMapPhys::histogram_add(&mut h, 9, 512);
        SpaceMapPhys::histogram_add(&mut h, 9, 1023);
        SpaceMapPhys::histogram_add(&mut h, 9, 1024);
        SpaceMapPhys::histogram_add(&mut h, 9, 1 << 43);
        assert_eq!((h[0], h[1], h[31]), (2, 1, 8));
        s.histogram = Some(h);
        assert_eq!(s.encode().len(), 320);
        assert_eq!(SpaceMapPhys::decode(&s.encode()).unwrap(), s);
        s.length = 4;
        assert!(SpaceMapPhys::decode(&s.encode()).is_err());
        assert!(SpaceMapPhys::decode(&[0; 23]).is_err());
    }

    #[test]
    fn hostile() {
        let mut junk = Junk(6);
        for _ in 0..2000 {
            let n = junk.below(200);
            for e in entries(&junk.bytes(n)) {
                if let Ok(Entry::Range(r)) = e {
                    for shift in [0, 9, 16, 63, 70] {
                        let _ = r.bytes(shift);
                    }
                }
            }
            let n = junk.below(400);
            let _ = SpaceMapPhys::decode(&junk.bytes(n));
        }
    }
}
