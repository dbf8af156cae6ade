//! Block compression (pool format §14).
//!
//! [`compress`] and [`decompress`] work on whole blocks. Padding, the rule that compression must
//! save an eighth, holes and embedding are the block pipeline's business.

mod gzip;
mod lz4;
mod lzjb;
mod zle;
mod zstd;

pub use zstd::{zstd_code, zstd_level, ZSTD_DEFAULT_LEVEL, ZSTD_HEADER};

use base::{bail, Result};

/// Property value: as the parent dataset has it. Not found in block pointers.
pub const INHERIT: u8 = 0;
/// The default of the pool's age, see [`resolve_on`].
pub const ON: u8 = 1;
/// Stored as it is.
pub const OFF: u8 = 2;
/// The oldest: Jeff Bonwick's variant of LZ.
pub const LZJB: u8 = 3;
/// Only all-zero blocks are saved (as holes).
pub const EMPTY: u8 = 4;
/// zlib, level 1. The levels up to [`GZIP_9`] follow.
pub const GZIP_1: u8 = 5;
/// zlib, level 6: what `gzip` means.
pub const GZIP_6: u8 = 10;
/// zlib, level 9.
pub const GZIP_9: u8 = 13;
/// Zero length encoding.
pub const ZLE: u8 = 14;
/// LZ4; the default where the pool has feature `lz4_compress`.
pub const LZ4: u8 = 15;
/// Zstandard; its level is in the header of the compressed bytes.
pub const ZSTD: u8 = 16;
/// Number of algorithms; a larger or equal id on disk is damage.
pub const COUNT: u8 = 17;

/// Level code "the algorithm's default" of the block pipeline; 0 means the same.
pub const LEVEL_DEFAULT: u8 = 255;

/// Longest embedded payload of a block pointer (§14.2).
pub const EMBEDDED_MAX: usize = 112;

static NAMES: [&str; COUNT as usize] = [
    "inherit", "on", "off", "lzjb", "empty", "gzip-1", "gzip-2", "gzip-3", "gzip-4", "gzip-5",
    "gzip-6", "gzip-7", "gzip-8", "gzip-9", "zle", "lz4", "zstd",
];

/// Name of an algorithm as `zdb` shows it.
pub fn name(alg: u8) -> Option<&'static str> {
    NAMES.get(usize::from(alg)).copied()
}

/// The algorithm of that name (without level; `gzip` is gzip-6).
pub fn from_name(name: &str) -> Option<u8> {
    if name == "gzip" {
        return Some(GZIP_6);
    }
    (0..COUNT).find(|&a| NAMES[usize::from(a)] == name)
}

/// What [`ON`] stands for: lz4 if feature `lz4_compress` is active, else lzjb.
pub fn resolve_on(alg: u8, lz4_active: bool) -> u8 {
    match alg {
        ON if lz4_active => LZ4,
        ON => LZJB,
        other => other,
    }
}

/// The stored value of property `compression`: algorithm and level code.
pub const fn property(alg: u8, level: u8) -> u64 {
    alg as u64 | (level as u64) << 7
}

/// Algorithm and level code of a stored property value; `None` if it is none.
pub fn from_property(value: u64) -> Option<(u8, u8)> {
    let alg = (value & 0x7f) as u8;
    let level = u8::try_from(value >> 7).ok()?;
    if alg >= COUNT || (level != 0 && (alg != ZSTD || zstd_level(level).is_none())) {
        return None;
    }
    Some((alg, level))
}

/// What users write: `lz4`, `gzip-9`, `zstd`, `zstd-7`, `zstd-fast`, `zstd-fast-100`.
pub fn parse_property(text: &str) -> Option<u64> {
    if let Some(rest) = text.strip_prefix("zstd-") {
        let level = match rest.strip_prefix("fast") {
            Some("") => -1,
            Some(n) => -decimal(n.strip_prefix('-')?)?,
            None => decimal(rest)?,
        };
        return Some(property(ZSTD, zstd_code(level)?));
    }
    from_name(text).map(|a| property(a, 0))
}

fn decimal(s: &str) -> Option<i32> {
    let plain = !s.is_empty() && s.len() < 5 && s.bytes().all(|b| b.is_ascii_digit());
    plain.then(|| s.parse().ok()).flatten()
}

/// The text of a stored property value, as [`parse_property`] reads it.
pub fn property_text(value: u64) -> Option<String> {
    let (alg, code) = from_property(value)?;
    Some(match (alg, code) {
        (ZSTD, 0 | LEVEL_DEFAULT) => "zstd".into(),
        (ZSTD, c) => match zstd_level(c)? {
            n if n < 0 => format!("zstd-fast-{}", -n),
            n => format!("zstd-{n}"),
        },
        _ => name(alg)?.into(),
    })
}

/// Whether all of `data` is zero.
pub fn is_zero(data: &[u8]) -> bool {
    let (blocks, rest) = data.as_chunks::<64>();
    blocks
        .iter()
        .all(|b| b.iter().fold(0, |acc, x| acc | x) == 0)
        && rest.iter().all(|&x| x == 0)
}

/// Compresses a block into at most `max_out` bytes, framing included.
///
/// `level` is a zstd level code (0 and 255: the default); other algorithms ignore it because they
/// have none. `None`: the result would be larger, or `alg` is one that does not compress
/// ([`OFF`], [`EMPTY`], and the unresolved [`INHERIT`] and [`ON`]).
pub fn compress(alg: u8, level: u8, src: &[u8], max_out: usize) -> Option<Vec<u8>> {
    match alg {
        LZJB => lzjb::compress(src, max_out),
        GZIP_1..=GZIP_9 => gzip::compress(u32::from(alg - GZIP_1) + 1, src, max_out),
        ZLE => zle::compress(src, max_out),
        LZ4 => lz4::compress(src, max_out),
        ZSTD => zstd::compress(level, src, max_out),
        _ => None,
    }
}

/// Decompresses a block of logical size `lsize` (at most [`base::MAX_BLOCK`]). Padding behind the
/// compressed data is ignored.
///
/// Errors: damage if the bytes do not decompress to exactly `lsize` bytes, or for an unknown
/// algorithm. [`OFF`] copies; other ids that cannot be in a block pointer are damage.
pub fn decompress(alg: u8, src: &[u8], lsize: usize) -> Result<Vec<u8>> {
    if lsize > base::MAX_BLOCK {
        bail!(Damaged, "block of {lsize} bytes");
    }
    let out = match alg {
        OFF => src.get(..lsize).map(<[u8]>::to_vec),
        LZJB => lzjb::decompress(src, lsize),
        GZIP_1..=GZIP_9 => gzip::decompress(src, lsize),
        ZLE => zle::decompress(src, lsize),
        LZ4 => lz4::decompress(src, lsize),
        ZSTD => zstd::decompress(src, lsize),
        _ => bail!(Damaged, "compression algorithm {alg} in a block pointer"),
    };
    match out {
        Some(out) if out.len() == lsize => Ok(out),
        _ => bail!(
            Damaged,
            "{} bytes of {} do not decompress to {lsize}",
            src.len(),
            name(alg).unwrap_or("?")
        ),
    }
}

#[cfg(test)]
mod tests;
