//! Bounds-checked little-endian accessors and byte-order swapping.
//!
//! Structures are stored in the byte order of their writer (pool format §1). Readers swap a whole
//! block to little endian first ([`swap_u64s`]) and decode little endian only; the few structures
//! that carry their own magic number (uberblock, SA header) are swapped where they are decoded.

use base::{Error, Result};

/// The `n` bytes at `off`, or an error naming the place.
#[inline]
pub fn slice_at(b: &[u8], off: usize, n: usize) -> Result<&[u8]> {
    off.checked_add(n)
        .and_then(|end| b.get(off..end))
        .ok_or_else(|| short(off, n, b.len()))
}

#[cold]
fn short(off: usize, n: usize, len: usize) -> Error {
    Error::damaged(format!(
        "structure too short: {n} bytes wanted at {off} of {len}"
    ))
}

macro_rules! accessor {
    ($get:ident, $put:ident, $t:ty, $n:expr) => {
        /// Little-endian integer at byte offset `off`; an error if it is not all there.
        #[inline]
        pub fn $get(b: &[u8], off: usize) -> Result<$t> {
            let s = slice_at(b, off, $n)?;
            let mut a = [0u8; $n];
            a.copy_from_slice(s);
            Ok(<$t>::from_le_bytes(a))
        }

        /// Stores a little-endian integer at byte offset `off` of a buffer the caller has sized.
        #[inline]
        pub fn $put(b: &mut [u8], off: usize, v: $t) {
            b[off..off + $n].copy_from_slice(&v.to_le_bytes());
        }
    };
}

accessor!(u16_at, put_u16, u16, 2);
accessor!(u32_at, put_u32, u32, 4);
accessor!(u64_at, put_u64, u64, 8);

/// Reverses the bytes of every aligned 64-bit word; a tail of less than 8 bytes is left alone.
pub fn swap_u64s(b: &mut [u8]) {
    for w in b.chunks_exact_mut(8) {
        w.reverse();
    }
}

/// Reverses the bytes of every aligned 32-bit word.
pub fn swap_u32s(b: &mut [u8]) {
    for w in b.chunks_exact_mut(4) {
        w.reverse();
    }
}

/// Reverses the bytes of every aligned 16-bit word.
pub fn swap_u16s(b: &mut [u8]) {
    for w in b.chunks_exact_mut(2) {
        w.reverse();
    }
}

/// Decodes a whole buffer of little-endian words; a tail of less than 8 bytes is ignored.
pub fn u64s(b: &[u8]) -> Vec<u64> {
    b.chunks_exact(8)
        .map(|w| {
            let mut a = [0u8; 8];
            a.copy_from_slice(w);
            u64::from_le_bytes(a)
        })
        .collect()
}

/// `len` rounded up to a multiple of 8.
pub const fn up8(len: usize) -> usize {
    (len + 7) & !7
}

/// Deterministic junk for the tests that feed decoders with hostile bytes.
#[cfg(test)]
pub(crate) mod junk {
    /// Generator of repeatable random numbers; the number is its state.
    pub struct Junk(pub u64);

    impl Junk {
        /// The next number.
        pub fn next(&mut self) -> u64 {
            // SplitMix64: every seed gives a full-period, well mixed sequence.
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = self.0;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^ (z >> 31)
        }

        /// A number below `n`; 0 if `n` is 0.
        pub fn below(&mut self, n: usize) -> usize {
            (self.next() % n.max(1) as u64) as usize
        }

        /// `n` bytes.
        pub fn bytes(&mut self, n: usize) -> Vec<u8> {
            (0..n).map(|_| self.next() as u8).collect()
        }

        /// Every truncation, then `rounds` mutations of a valid encoding, then pure noise.
        pub fn torment(&mut self, good: &[u8], rounds: usize, mut decode: impl FnMut(&[u8])) {
            let step = (good.len() / 400).max(1);
            for n in (0..=good.len()).step_by(step) {
                decode(&good[..n]);
            }
            const NASTY: [u64; 8] = [
                0,
                1,
                0x7fff_ffff,
                0x8000_0000,
                0xffff_ffff,
                1 << 63,
                u64::MAX,
                u64::MAX - 7,
            ];
            for _ in 0..rounds {
                let mut b = good.to_vec();
                for _ in 0..1 + self.below(4) {
                    if b.is_empty() {
                        break;
                    }
                    let at = self.below(b.len());
                    match self.below(4) {
                        0 => b[at] = self.next() as u8,
                        1 => b[at] ^= 1 << self.below(8),
                        2 => {
                            let v = NASTY[self.below(8)];
                            let w = if self.below(2) == 0 {
                                v.to_le_bytes()
                            } else {
                                v.to_be_bytes()
                            };
                            let at = at & !3;
                            for (d, s) in b[at..].iter_mut().zip(w) {
                                *d = s;
                            }
                        }
                        _ => {
                            b.truncate(at);
                        }
                    }
                }
                decode(&b);
                let n = self.below(512);
                decode(&self.bytes(n));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accessors_check_bounds() {
        let b = [1, 2, 3, 4, 5, 6, 7, 8, 9];
        assert_eq!(u64_at(&b, 1).unwrap(), 0x0908_0706_0504_0302);
        assert_eq!(u16_at(&b, 7).unwrap(), 0x0908);
        assert!(u64_at(&b, 2).is_err());
        assert!(u32_at(&b, usize::MAX).is_err());
        let mut c = b;
        swap_u64s(&mut c);
        assert_eq!(c, [8, 7, 6, 5, 4, 3, 2, 1, 9]);
    }
}
