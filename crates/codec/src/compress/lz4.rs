//! lz4: a `u32` big-endian length, then that many bytes of one raw LZ4 block.

use std::cell::RefCell;

const HEADER: usize = 4;

/// Least length of a match.
const MIN_MATCH: usize = 4;

/// Shorter runs are copied as that many bytes at once where there is room; what is too much is
/// overwritten by what follows.
const SHORT: usize = 32;

thread_local! {
    /// The encoder wants room for the worst case; the block pipeline wants it small.
    static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

pub fn compress(src: &[u8], max_out: usize) -> Option<Vec<u8>> {
    let room = max_out.checked_sub(HEADER)?;
    SCRATCH.with_borrow_mut(|buf| {
        let worst = lz4_flex::block::get_maximum_output_size(src.len());
        if buf.len() < worst {
            buf.resize(worst, 0);
        }
        let n = lz4_flex::block::compress_into(src, buf).ok()?;
        if n > room {
            return None;
        }
        let mut out = Vec::with_capacity(HEADER + n);
        out.extend_from_slice(&u32::try_from(n).ok()?.to_be_bytes());
        out.extend_from_slice(buf.get(..n)?);
        Some(out)
    })
}

pub fn decompress(src: &[u8], lsize: usize) -> Option<Vec<u8>> {
    let (head, rest) = src.split_first_chunk::<HEADER>()?;
    let body = rest.get(..u32::from_be_bytes(*head) as usize)?;
    let mut out = vec![0; lsize];
    let n = decode(body, &mut out)?;
    (n == lsize).then_some(out)
}

/// The rest of a length whose four bits in the token were all set: bytes that are added, the last
/// of them less than 255.
#[inline]
fn long(src: &[u8], at: &mut usize) -> Option<usize> {
    let mut n = 0usize;
    loop {
        let b = *src.get(*at)?;
        *at += 1;
        n = n.checked_add(usize::from(b))?;
        if b != 255 {
            return Some(n);
        }
    }
}

#[inline(always)]
fn ahead<const N: usize>(b: &[u8], at: usize) -> Option<&[u8; N]> {
    b.get(at..)?.first_chunk()
}

#[inline(always)]
fn ahead_mut<const N: usize>(b: &mut [u8], at: usize) -> Option<&mut [u8; N]> {
    b.get_mut(at..)?.first_chunk_mut()
}

/// Decodes a raw block into the beginning of `out`; how much it was. `None` if the block is wrong
/// or larger than `out`.
///
/// Not left to the library, which copies matches that overlap themselves byte by byte: blocks of
/// metadata are 16 or 128 KiB of which most repeats with a short period, or is zero.
fn decode(src: &[u8], out: &mut [u8]) -> Option<usize> {
    let (mut at, mut pos) = (0usize, 0usize);
    loop {
        // Most sequences are short and far from the end.
        while let (Some(s), Some(o)) = (ahead::<19>(src, at), ahead_mut::<40>(out, pos)) {
            let (literals, n) = (usize::from(s[0] >> 4), usize::from(s[0] & 15) + MIN_MATCH);
            if literals == 15 || n == 15 + MIN_MATCH {
                break;
            }
            o[..16].copy_from_slice(&s[1..17]);
            let offset = usize::from(u16::from_le_bytes([s[1 + literals], s[2 + literals]]));
            let to = pos + literals;
            if offset < 18 || offset > to {
                break;
            }
            out.copy_within(to - offset..to - offset + 18, to);
            (at, pos) = (at + 3 + literals, to + n);
        }
        let token = *src.get(at)?;
        at += 1;
        let mut n = usize::from(token >> 4);
        if n == 15 {
            n += long(src, &mut at)?;
        }
        let (from, to) = (at.checked_add(n)?, pos.checked_add(n)?);
        match (src.get(at..at + SHORT), out.get_mut(pos..pos + SHORT)) {
            (Some(s), Some(o)) if n <= SHORT => o.copy_from_slice(s),
            _ => out.get_mut(pos..to)?.copy_from_slice(src.get(at..from)?),
        }
        (at, pos) = (from, to);
        if at == src.len() {
            return Some(pos);
        }
        let low = src.get(at..at + 2)?;
        let offset = usize::from(u16::from_le_bytes([low[0], low[1]]));
        at += 2;
        let mut n = usize::from(token & 15);
        if n == 15 {
            n += long(src, &mut at)?;
        }
        n += MIN_MATCH;
        let start = pos.checked_sub(offset)?;
        let end = pos.checked_add(n)?;
        if offset >= n && n <= SHORT && pos + SHORT <= out.len() {
            out.copy_within(start..start + SHORT, pos);
        } else {
            repeat(out.get_mut(start..end)?, offset)?;
        }
        pos = end;
    }
}

/// Fills `out` with copies of its first `period` bytes.
fn repeat(out: &mut [u8], period: usize) -> Option<()> {
    match period {
        0 => return None,
        1 => {
            let b = *out.first()?;
            out.fill(b);
        }
        _ => {
            // What is there doubles each time.
            let mut have = period;
            while have < out.len() {
                let n = have.min(out.len() - have);
                out.copy_within(..n, have);
                have += n;
            }
        }
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn next(state: &mut u64) -> u64 {
        *state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        *state >> 33
    }

    /// Blocks with everything between noise and long runs of every period.
    fn block(state: &mut u64) -> Vec<u8> {
        let len = 1 + next(state) as usize % 40_000;
        let mut out: Vec<u8> = Vec::with_capacity(len);
        while out.len() < len {
            let n = 1 + next(state) as usize % [20, 200, 9000][next(state) as usize % 3];
            let back = 1 + next(state) as usize % [3, 40, 5000][next(state) as usize % 3];
            match next(state) % 3 {
                0 => out.extend((0..n).map(|_| next(state) as u8)),
                _ if back <= out.len() => (0..n).for_each(|_| out.push(out[out.len() - back])),
                _ => out.resize(out.len() + n, 0),
            }
        }
        out.truncate(len);
        out
    }

    #[test]
    fn agrees_with_the_library() {
        let mut state = 1;
        for round in 0..400 {
            let plain = block(&mut state);
            let packed = lz4_flex::block::compress(&plain);
            // Exactly enough room, more than that, and too little.
            let mut out = vec![1; plain.len()];
            assert_eq!(decode(&packed, &mut out), Some(plain.len()), "{round}");
            assert!(out == plain, "{round}");
            let mut out = vec![1; plain.len() + 70];
            assert_eq!(decode(&packed, &mut out), Some(plain.len()), "{round}");
            assert!(out[..plain.len()] == plain, "{round}");
            assert_eq!(decode(&packed, &mut out[..plain.len() - 1]), None);
        }
    }

    /// What the library decodes of spoilt blocks is decoded the same, and nothing else is.
    #[test]
    fn spoilt_blocks_are_judged_as_by_the_library() {
        let mut state = 7;
        let mut good = 0;
        for round in 0..3000 {
            let plain = block(&mut state);
            let plain = &plain[..plain.len().min(600)];
            let mut packed = lz4_flex::block::compress(plain);
            for _ in 0..1 + next(&mut state) % 3 {
                let at = next(&mut state) as usize % packed.len();
                match next(&mut state) % 4 {
                    0 => packed[at] = next(&mut state) as u8,
                    1 => packed[at] ^= 1 << (next(&mut state) % 8),
                    2 => packed.truncate(at + 1),
                    _ => packed.insert(at, next(&mut state) as u8),
                }
            }
            let mut ours = vec![0; 700];
            let mut theirs = vec![0; 700];
            let a = decode(&packed, &mut ours);
            let b = lz4_flex::block::decompress_into(&packed, &mut theirs).ok();
            assert_eq!(a, b, "{round}: {packed:?}");
            if let Some(n) = a {
                assert!(ours[..n] == theirs[..n], "{round}");
                good += 1;
            }
        }
        assert!(good > 100, "{good}");
    }

    #[test]
    fn lengths_that_overflow_are_refused() {
        let mut out = [0; 64];
        assert_eq!(decode(&[], &mut out), None);
        assert_eq!(decode(&[0xf0, 255, 255, 255], &mut out), None);
        assert_eq!(decode(&[0x10, 7, 0, 0], &mut out), None);
        assert_eq!(decode(&[0x10, 7, 2, 0, 0], &mut out), None);
    }
}
