//! lzjb: a control byte describes the next eight items, lowest bit first. A clear bit is a literal
//! byte. A set bit is two bytes `m, n`: copy (m >> 2) + 3 bytes from ((m & 3) << 8 | n) bytes back.

const MIN_MATCH: usize = 3;
const MAX_MATCH: usize = 66;
const MAX_DISTANCE: usize = 1023;
const SLOTS: usize = 1 << 12;

pub fn compress(src: &[u8], max_out: usize) -> Option<Vec<u8>> {
    let mut out: Vec<u8> = Vec::with_capacity(max_out.min(src.len() + src.len() / 8 + 1));
    // Where a three-byte string was seen last, plus one; 0 is never.
    let mut seen = [0u32; SLOTS];
    let mut at = 0;
    let mut control = 0;
    let mut items = 8;
    while at < src.len() {
        if items == 8 {
            items = 0;
            control = out.len();
            out.push(0);
        }
        match find(src, at, &mut seen) {
            Some((len, distance)) => {
                if let Some(c) = out.get_mut(control) {
                    *c |= 1 << items;
                }
                out.push(((len - MIN_MATCH) << 2 | distance >> 8) as u8);
                out.push(distance as u8);
                at += len;
            }
            None => {
                out.push(src[at]);
                at += 1;
            }
        }
        items += 1;
        if out.len() > max_out {
            return None;
        }
    }
    Some(out)
}

/// A match for the bytes at `at`, as (length, distance); remembers the place.
fn find(src: &[u8], at: usize, seen: &mut [u32; SLOTS]) -> Option<(usize, usize)> {
    let rest = &src[at..];
    let (&[a, b, c], _) = rest.split_first_chunk::<MIN_MATCH>()?;
    let key = u32::from_le_bytes([a, b, c, 0]);
    let slot = (key.wrapping_mul(0x9e37_79b1) >> 20) as usize & (SLOTS - 1);
    let before = std::mem::replace(&mut seen[slot], at as u32 + 1) as usize;
    let from = before.checked_sub(1)?;
    let distance = at - from;
    if distance > MAX_DISTANCE {
        return None;
    }
    let len = rest
        .iter()
        .zip(&src[from..])
        .take(MAX_MATCH)
        .take_while(|(x, y)| x == y)
        .count();
    (len >= MIN_MATCH).then_some((len, distance))
}

pub fn decompress(src: &[u8], lsize: usize) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(lsize);
    let mut input = src.iter().copied();
    let mut control = 0;
    let mut items = 0;
    while out.len() < lsize {
        if items == 0 {
            control = input.next()?;
            items = 8;
        }
        if control & 1 == 0 {
            out.push(input.next()?);
        } else {
            let (m, n) = (usize::from(input.next()?), usize::from(input.next()?));
            let distance = (m & 3) << 8 | n;
            let from = out.len().checked_sub(distance)?;
            // The last copy may promise more than the block has left.
            let len = ((m >> 2) + MIN_MATCH).min(lsize - out.len());
            if distance == 0 {
                return None;
            } else if distance >= len {
                out.extend_from_within(from..from + len);
            } else {
                for i in from..from + len {
                    let b = *out.get(i)?;
                    out.push(b);
                }
            }
        }
        control >>= 1;
        items -= 1;
    }
    Some(out)
}
