//! zstd: an 8-byte header, then a magicless frame without content size and checksum.
//!
//! Header: `u32` big-endian length of the frame; `u32` big-endian with the level code in the top
//! byte and the version of the zstd library (major·10000 + minor·100 + patch) below. Only the
//! length is needed to decode, so the old byte arrangements of the second word are all accepted.

use std::cell::RefCell;
use zstd_safe::{CCtx, CParameter, DCtx, DParameter, FrameFormat, ResetDirective};

/// Bytes in front of the frame.
pub const ZSTD_HEADER: usize = 8;
/// The level of `zstd` without a number.
pub const ZSTD_DEFAULT_LEVEL: i32 = 3;

/// The encoder gives up a little before its output is really full.
const SLACK: usize = 64;

const FAST_1: u8 = 103;
const FAST_10: u8 = 112;
const FAST_100: u8 = 121;
const FAST_500: u8 = 122;
const FAST_1000: u8 = 123;

/// The library's level of a level code (§14.1): 1…19, negative for the fast ones, the default for
/// 0 and 255; `None` for codes that do not exist.
pub fn zstd_level(code: u8) -> Option<i32> {
    Some(match code {
        0 | 255 => ZSTD_DEFAULT_LEVEL,
        1..=19 => i32::from(code),
        FAST_1..=FAST_10 => i32::from(FAST_1) - 1 - i32::from(code),
        113..=FAST_100 => (i32::from(FAST_10) - 1 - i32::from(code)) * 10,
        FAST_500 => -500,
        FAST_1000 => -1000,
        _ => return None,
    })
}

/// The level code of a library level; `None` if there is none.
pub fn zstd_code(level: i32) -> Option<u8> {
    (1..=FAST_1000).find(|&c| zstd_level(c) == Some(level))
}

thread_local! {
    static ENCODER: RefCell<Option<CCtx<'static>>> = const { RefCell::new(None) };
    static DECODER: RefCell<Option<DCtx<'static>>> = const { RefCell::new(None) };
}

pub fn compress(code: u8, src: &[u8], max_out: usize) -> Option<Vec<u8>> {
    compress_at(zstd_level(code)?, src, max_out)
}

/// The same at a level of the library.
pub fn compress_at(level: i32, src: &[u8], max_out: usize) -> Option<Vec<u8>> {
    // The header names the level used, never "default".
    let code = zstd_code(level)?;
    let room = max_out.checked_sub(ZSTD_HEADER)?;
    let bound = zstd_safe::compress_bound(src.len());
    let mut out = vec![0; ZSTD_HEADER + bound.min(room.saturating_add(SLACK))];
    let (head, body) = out.split_first_chunk_mut::<ZSTD_HEADER>()?;
    let n = ENCODER.with_borrow_mut(|slot| {
        let ctx = slot.get_or_insert_with(CCtx::create);
        ctx.reset(ResetDirective::SessionAndParameters).ok()?;
        for p in [
            CParameter::CompressionLevel(level),
            CParameter::Format(FrameFormat::Magicless),
            CParameter::ContentSizeFlag(false),
            CParameter::ChecksumFlag(false),
        ] {
            ctx.set_parameter(p).ok()?;
        }
        ctx.compress2(body, src).ok()
    })?;
    if n > room {
        return None;
    }
    let word = u32::from(code) << 24 | zstd_safe::version_number() & 0xff_ffff;
    let (len, ver) = head.split_at_mut(4);
    len.copy_from_slice(&u32::try_from(n).ok()?.to_be_bytes());
    ver.copy_from_slice(&word.to_be_bytes());
    out.truncate(ZSTD_HEADER + n);
    Some(out)
}

pub fn decompress(src: &[u8], lsize: usize) -> Option<Vec<u8>> {
    let (head, rest) = src.split_first_chunk::<ZSTD_HEADER>()?;
    let (len, _) = head.split_first_chunk::<4>()?;
    let body = rest.get(..u32::from_be_bytes(*len) as usize)?;
    let mut out = vec![0; lsize];
    let n = DECODER.with_borrow_mut(|slot| {
        let ctx = slot.get_or_insert_with(DCtx::create);
        ctx.reset(ResetDirective::SessionAndParameters).ok()?;
        ctx.set_parameter(DParameter::Format(FrameFormat::Magicless))
            .ok()?;
        ctx.decompress(out.as_mut_slice(), body).ok()
    })?;
    (n == lsize).then_some(out)
}
