//! zle: a control byte c < 64 is followed by c + 1 literal bytes; c ≥ 64 stands for c − 63 zeros.

const LITERALS: usize = 64;
const ZEROS: usize = 192;

pub fn compress(src: &[u8], max_out: usize) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(max_out.min(src.len() + src.len() / LITERALS + 1));
    let mut rest = src;
    while !rest.is_empty() {
        let zeros = rest.iter().take(ZEROS).take_while(|&&b| b == 0).count();
        let used = if zeros > 0 {
            out.push((LITERALS + zeros - 1) as u8);
            zeros
        } else {
            // A single zero between literals is cheaper as a literal: it would cost its own
            // control byte and one for the literals after it.
            let mut n = 1;
            while n < rest.len().min(LITERALS) && (rest[n] != 0 || rest.get(n + 1) != Some(&0)) {
                n += 1;
            }
            out.push((n - 1) as u8);
            out.extend_from_slice(&rest[..n]);
            n
        };
        rest = &rest[used..];
        if out.len() > max_out {
            return None;
        }
    }
    Some(out)
}

pub fn decompress(src: &[u8], lsize: usize) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(lsize);
    let mut rest = src;
    while out.len() < lsize {
        let (&c, after) = rest.split_first()?;
        let c = usize::from(c);
        if c < LITERALS {
            let (bytes, next) = after.split_at_checked(c + 1)?;
            out.extend_from_slice(bytes);
            rest = next;
        } else {
            out.resize(out.len() + c + 1 - LITERALS, 0);
            rest = after;
        }
        if out.len() > lsize {
            return None;
        }
    }
    Some(out)
}
