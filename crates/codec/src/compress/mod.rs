//! Block compression (pool format §14).
//!
//! [`compress`] and [`decompress`] work on whole blocks. Padding, the rule that compression must
//! save an eighth, holes and embedding are the block pipeline's business.

mod gzip;
mod lz4;
mod lzjb;
mod sample;
mod zle;
mod zstd;

pub use sample::{is_hopeless, sample_shrinks};
pub use zstd::{zstd_code, zstd_level, ZSTD_DEFAULT_LEVEL, ZSTD_HEADER};

use base::{bail, Result};

pub use disk::Compression;

/// Level code "the algorithm's default" of the block pipeline; 0 means the same.
pub const LEVEL_DEFAULT: u8 = 255;

/// Longest embedded payload of a block pointer (§14.2).
pub const EMBEDDED_MAX: usize = 112;

/// The algorithm of that name (without level; `gzip` is gzip-6).
pub fn from_name(name: &str) -> Option<Compression> {
    match name {
        "gzip" => Some(Compression::GZIP_6),
        _ => Compression::from_name(name),
    }
}

/// What [`Compression::ON`] stands for: lz4 if feature `lz4_compress` is active, else lzjb.
pub fn resolve_on(alg: Compression, lz4_active: bool) -> Compression {
    match alg {
        Compression::ON if lz4_active => Compression::LZ4,
        Compression::ON => Compression::LZJB,
        other => other,
    }
}

/// The stored value of property `compression`: algorithm and level code.
pub const fn property(alg: Compression, level: u8) -> u64 {
    alg.number() as u64 | (level as u64) << 7
}

/// Algorithm and level code of a stored property value; `None` if it is none.
pub fn from_property(value: u64) -> Option<(Compression, u8)> {
    let alg = Compression::new((value & 0x7f) as u8);
    let level = u8::try_from(value >> 7).ok()?;
    if alg.name().is_none()
        || (level != 0 && (alg != Compression::ZSTD || zstd_level(level).is_none()))
    {
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
        return Some(property(Compression::ZSTD, zstd_code(level)?));
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
        (Compression::ZSTD, 0 | LEVEL_DEFAULT) => "zstd".into(),
        (Compression::ZSTD, c) => match zstd_level(c)? {
            n if n < 0 => format!("zstd-fast-{}", -n),
            n => format!("zstd-{n}"),
        },
        _ => alg.name()?.into(),
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
/// ([`Compression::OFF`], [`Compression::EMPTY`], and the unresolved [`Compression::INHERIT`] and [`Compression::ON`]).
pub fn compress(alg: Compression, level: u8, src: &[u8], max_out: usize) -> Option<Vec<u8>> {
    if let Some(level) = alg.gzip_level() {
        return gzip::compress(u32::from(level), src, max_out);
    }
    match alg {
        Compression::LZJB => lzjb::compress(src, max_out),
        Compression::ZLE => zle::compress(src, max_out),
        Compression::LZ4 => lz4::compress(src, max_out),
        Compression::ZSTD => zstd::compress(level, src, max_out),
        _ => None,
    }
}

/// Decompresses a block of logical size `lsize` (at most [`base::MAX_BLOCK`]). Padding behind the
/// compressed data is ignored.
///
/// Errors: damage if the bytes do not decompress to exactly `lsize` bytes, or for an unknown
/// algorithm. [`Compression::OFF`] copies; other ids that cannot be in a block pointer are damage.
pub fn decompress(alg: Compression, src: &[u8], lsize: usize) -> Result<Vec<u8>> {
    if lsize > base::MAX_BLOCK {
        bail!(Damaged, "block of {lsize} bytes");
    }
    let out = match alg {
        Compression::OFF => src.get(..lsize).map(<[u8]>::to_vec),
        Compression::LZJB => lzjb::decompress(src, lsize),
        a if a.gzip_level().is_some() => gzip::decompress(src, lsize),
        Compression::ZLE => zle::decompress(src, lsize),
        Compression::LZ4 => lz4::decompress(src, lsize),
        Compression::ZSTD => zstd::decompress(src, lsize),
        _ => bail!(Damaged, "compression algorithm {alg} in a block pointer"),
    };
    match out {
        Some(out) if out.len() == lsize => Ok(out),
        _ => bail!(
            Damaged,
            "{} bytes of {} do not decompress to {lsize}",
            src.len(),
            alg.name().unwrap_or("?")
        ),
    }
}

#[cfg(test)]
mod tests;
