//! Judging a block by samples, and by cheaper algorithms, before the real one is run.

use super::{lz4, zstd};
use disk::Compression;

/// A piece is that part of the block, and there are [`PIECES`] of them: the judgement costs a 32nd of an attempt.
const PART: usize = 64;
const PIECES: usize = 2;
/// Shortest and longest piece, bytes. A shorter one has nothing to refer back to.
const SHORTEST: usize = 1 << 10;
const LONGEST: usize = 16 << 10;

/// OpenZFS asks cheaper algorithms first for zstd from this level on …
const CHEAPER_FIRST: i32 = 3;
/// … and blocks of so many bytes or more.
const CHEAPER_FROM: usize = 128 << 10;

/// Whether a piece from the beginning or from the middle of a block shrinks by about a tenth. Algorithms that
/// count bits look for frequent bytes too, so zstd looks at samples for them, LZ4 for the others. True if the
/// block is too short for samples.
pub fn sample_shrinks(alg: Compression, src: &[u8]) -> bool {
    let piece = (src.len() / PART).clamp(SHORTEST, LONGEST);
    if src.len() < 2 * PIECES * piece {
        return true;
    }
    let most = piece - piece / 10;
    let by_bits = alg == Compression::ZSTD || alg.gzip_level().is_some();
    (0..PIECES).any(|n| {
        let at = src.len() / PIECES * n;
        src.get(at..at + piece).is_none_or(|s| match by_bits {
            true => zstd::compress_at(1, s, most).is_some(),
            false => lz4::compress(s, most).is_some(),
        })
    })
}

/// Whether a slow algorithm need not be run, since cheaper ones do not get the block down to `max_out` bytes: for
/// zstd-3 and above on blocks of 128 KiB and more, LZ4 and then zstd-1, as OpenZFS does it.
pub fn is_hopeless(alg: Compression, level: u8, src: &[u8], max_out: usize) -> bool {
    alg == Compression::ZSTD
        && src.len() >= CHEAPER_FROM
        && zstd::zstd_level(level).is_some_and(|l| l >= CHEAPER_FIRST)
        && lz4::compress(src, max_out).is_none()
        && zstd::compress_at(1, src, max_out).is_none()
}
