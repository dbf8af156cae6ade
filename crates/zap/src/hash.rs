//! The name hash: CRC-64, reflected ECMA-182 (data format §3.6).

use crate::{flags, value::Key};

const POLY: u64 = 0xC96C_5795_D787_0F42;

const fn table() -> [u64; 256] {
    let mut t = [0; 256];
    let mut i = 0;
    while i < 256 {
        let mut v = i as u64;
        let mut k = 0;
        while k < 8 {
            v = if v & 1 != 0 { (v >> 1) ^ POLY } else { v >> 1 };
            k += 1;
        }
        t[i] = v;
        i += 1;
    }
    t
}

static TABLE: [u64; 256] = table();

fn feed(mut h: u64, bytes: &[u8]) -> u64 {
    for &b in bytes {
        h = (h >> 8) ^ TABLE[((h ^ b as u64) & 0xff) as usize];
    }
    h
}

/// Bits of hash that are kept.
pub(crate) fn hash_bits(zap_flags: u64) -> u32 {
    if zap_flags & flags::HASH64 != 0 {
        48
    } else {
        28
    }
}

/// Largest collision differentiator.
pub(crate) fn max_cd(zap_flags: u64) -> u32 {
    if zap_flags & flags::HASH64 != 0 {
        0xffff
    } else {
        u32::MAX
    }
}

/// Hash of an (already normalized) name, or of key words, in its top bits; the rest is zero.
pub(crate) fn hash(key: Key<'_>, salt: u64, zap_flags: u64) -> u64 {
    let h = match key {
        Key::Name(n) => feed(salt, n),
        Key::Words(w) if zap_flags & flags::PRE_HASHED_KEY != 0 => w.first().copied().unwrap_or(0),
        Key::Words(w) => w.iter().fold(salt, |h, w| feed(h, &w.to_le_bytes())),
    };
    h & !(u64::MAX >> hash_bits(zap_flags))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_and_mask() {
        assert_eq!(TABLE[128], POLY);
        let h = hash(Key::Name(b"abc"), 1, 0);
        assert_eq!(h << 28, 0);
        assert_eq!(hash(Key::Words(&[0xdead << 48, 5]), 1, 7), 0xdead << 48);
        // Words are fed least significant byte first: the same as their bytes as a name.
        let w = 0x0807_0605_0403_0201u64;
        assert_eq!(
            hash(Key::Words(&[w]), 9, 3),
            hash(Key::Name(&[1, 2, 3, 4, 5, 6, 7, 8]), 9, 3)
        );
    }
}
