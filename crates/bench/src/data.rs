//! Generated numbers and contents, the same on every machine.

/// A small generator of numbers (SplitMix64): one seed, one sequence.
#[derive(Clone, Debug)]
pub struct Numbers(u64);

impl Numbers {
    pub fn new(seed: u64) -> Numbers {
        Numbers(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From 0 to below `bound`; 0 if there is nothing below it.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    /// From `low` to `high`, both included.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high.saturating_sub(low).saturating_add(1))
    }

    /// Bytes that no compressor makes smaller.
    pub fn fill(&mut self, buf: &mut [u8]) {
        for chunk in buf.chunks_mut(8) {
            let word = self.next().to_le_bytes();
            chunk.copy_from_slice(&word[..chunk.len()]);
        }
    }

    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut out = vec![0; len];
        self.fill(&mut out);
        out
    }
}

/// A supply of incompressible blocks that costs the writer next to nothing: windows of one random
/// buffer at ever other places.
pub struct Supply {
    pool: Vec<u8>,
    numbers: Numbers,
}

impl Supply {
    /// Blocks of up to `largest` bytes.
    pub fn new(seed: u64, largest: usize) -> Supply {
        let mut numbers = Numbers::new(seed);
        let pool = numbers.bytes(largest + (2 << 20));
        Supply { pool, numbers }
    }

    pub fn block(&mut self, len: usize) -> &[u8] {
        let spare = self.pool.len().saturating_sub(len) as u64;
        let at = self.numbers.below(spare + 1) as usize;
        self.pool.get(at..at + len).unwrap_or(&self.pool)
    }
}

/// Sizes of the files of a source tree: most are a few KiB, a few are large; on average about
/// `mean` bytes. Between 64 bytes and 64 times the mean.
pub fn source_size(numbers: &mut Numbers, mean: u64) -> u64 {
    // An exponential distribution has the mean it is given; squeezing its tail is enough here.
    let unit = (numbers.next() >> 11) as f64 / (1u64 << 53) as f64;
    let size = -(1.0 - unit).ln() * mean as f64;
    (size as u64).clamp(64, mean * 64)
}

/// One record of 128 KiB of which exactly 60 KiB cannot be compressed: with the few hundred bytes
/// a compressor needs to say so it takes 64 KiB on a disk of 4 KiB sectors, half its size.
pub const HALF_RECORD: usize = 128 << 10;

pub fn half_record(numbers: &mut Numbers, buf: &mut Vec<u8>) {
    buf.clear();
    buf.resize(HALF_RECORD, 0);
    numbers.fill(&mut buf[..60 << 10]);
}

/// How often each record of the deduplication row occurs.
pub const COPIES: u64 = 4;

/// Record `n` of `total` of the deduplication row: every content comes [`COPIES`] times, far apart.
pub fn dedup_record(n: u64, total: u64, buf: &mut Vec<u8>) {
    let distinct = total.div_ceil(COPIES).max(1);
    buf.clear();
    buf.resize(HALF_RECORD, 0);
    Numbers::new(0xd0d0 + n % distinct).fill(buf);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn bounds() {
        let mut n = Numbers::new(1);
        let seen: HashSet<u64> = (0..1000).map(|_| n.between(3, 9)).collect();
        assert_eq!(seen.len(), 7);
        assert!(seen.iter().all(|v| (3..=9).contains(v)));
        assert_eq!(n.below(0), 0);
        assert_eq!(n.between(5, 5), 5);
        assert_eq!(Numbers::new(7).bytes(13), Numbers::new(7).bytes(13));
    }

    #[test]
    fn sizes_have_their_mean() {
        let mut n = Numbers::new(2);
        let count = 20_000;
        let sum: u64 = (0..count).map(|_| source_size(&mut n, 12_000)).sum();
        let mean = sum as f64 / f64::from(count);
        assert!((11_500.0..12_700.0).contains(&mean), "{mean}");
    }

    #[test]
    fn blocks_differ() {
        let mut s = Supply::new(3, 1 << 16);
        let a = s.block(1 << 16).to_vec();
        assert_eq!(a.len(), 1 << 16);
        assert_ne!(a, s.block(1 << 16));
        assert_eq!(s.block(3).len(), 3);
    }

    #[test]
    fn ratios_are_exact() {
        let mut buf = Vec::new();
        half_record(&mut Numbers::new(1), &mut buf);
        let zeros = buf.iter().rev().take_while(|b| **b == 0).count();
        assert_eq!(buf.len() - zeros, 60 << 10);
        let mut distinct = HashSet::new();
        for n in 0..40 {
            dedup_record(n, 40, &mut buf);
            distinct.insert(buf.clone());
        }
        assert_eq!(distinct.len(), 10);
    }
}
