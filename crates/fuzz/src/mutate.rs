//! Changes of good inputs, from a seed: the same run again gives the same inputs.

/// A small generator (xorshift*, 64 bits).
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn word(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `n`; 0 if `n` is 0.
    pub fn below(&mut self, n: usize) -> usize {
        match n {
            0 => 0,
            n => (self.word() >> 11) as usize % n,
        }
    }
}

/// Numbers at which decoders go wrong.
const EDGES: [u64; 20] = [
    0,
    1,
    2,
    7,
    8,
    0x7f,
    0x80,
    0xff,
    0x100,
    0x1ff,
    0x200,
    0x7fff,
    0x8000,
    0xffff,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    0x7fff_ffff_ffff_ffff,
    0x8000_0000_0000_0000,
    0xffff_ffff_ffff_ffff,
];

/// Makes an input out of one of `seeds` (or of nothing), at most `max` bytes long.
pub fn mutate(r: &mut Random, seeds: &[Vec<u8>], max: usize, out: &mut Vec<u8>) {
    out.clear();
    match r.below(32) {
        0 => {
            let n = r.below(max.min(512) + 1);
            out.extend((0..n).map(|_| r.word() as u8));
        }
        _ if seeds.is_empty() => out.resize(r.below(max.min(4096)) + 1, 0),
        _ => out.extend_from_slice(&seeds[r.below(seeds.len())]),
    }
    out.truncate(max);
    // Mostly few changes: what is wrong all over is refused at the door.
    let changes = 1 << r.below(5);
    for _ in 0..changes {
        change(r, seeds, max, out);
    }
    out.truncate(max);
}

/// A position; headers at the start matter more than what follows.
fn place(r: &mut Random, len: usize) -> usize {
    match r.below(4) {
        0 => r.below(len.min(64)),
        1 => r.below(len.min(1024)),
        _ => r.below(len),
    }
}

fn change(r: &mut Random, seeds: &[Vec<u8>], max: usize, b: &mut Vec<u8>) {
    if b.is_empty() {
        b.push(r.word() as u8);
        return;
    }
    let at = place(r, b.len());
    match r.below(12) {
        0 | 1 => b[at] ^= 1 << r.below(8),
        2 => b[at] = r.word() as u8,
        3 | 4 => {
            // A word of some width, in one of the orders, at an edge or next to what was there.
            let width = 1 << r.below(4);
            let at = if r.below(4) == 0 {
                at
            } else {
                at & !(width - 1)
            };
            let Some(place) = b.get_mut(at..at + width) else {
                return;
            };
            let mut w = [0u8; 8];
            w[..width].copy_from_slice(place);
            let old = u64::from_le_bytes(w);
            let new = match r.below(4) {
                0 => old.wrapping_add(1),
                1 => old.wrapping_sub(1),
                _ => EDGES[r.below(EDGES.len())],
            };
            let mut bytes = new.to_le_bytes();
            if r.below(2) == 0 {
                bytes[..width].reverse();
            }
            place.copy_from_slice(&bytes[..width]);
        }
        5 => {
            // A number of 56 bits: offsets and births.
            let at = at & !7;
            if let Some(place) = b.get_mut(at..at + 8) {
                let shift = r.below(64) as u32;
                place.copy_from_slice(&(r.word() >> shift).to_le_bytes());
            }
        }
        6 => b.truncate(at),
        7 => {
            let n = 1 + r.below(16.min(b.len() - at));
            b.drain(at..at + n);
        }
        8 => {
            let n = (1 + r.below(16)).min(max.saturating_sub(b.len()));
            let fill = r.word() as u8;
            b.splice(at..at, std::iter::repeat_n(fill, n));
        }
        9 => {
            // A piece of the same input elsewhere: pointers to one place, loops.
            let from = place(r, b.len());
            let n = (8 << r.below(6)).min(b.len() - from).min(b.len() - at);
            b.copy_within(from..from + n, at);
        }
        10 => {
            let other = match seeds.is_empty() {
                true => return,
                false => &seeds[r.below(seeds.len())],
            };
            if other.is_empty() {
                return;
            }
            let from = r.below(other.len());
            let n = (8 << r.below(7)).min(other.len() - from).min(b.len() - at);
            b[at..at + n].copy_from_slice(&other[from..from + n]);
        }
        _ => {
            let n = (1 << r.below(8)).min(b.len() - at);
            let fill = [0, 0xff, r.word() as u8][r.below(3)];
            b[at..at + n].fill(fill);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_inputs() {
        let seeds = vec![vec![1; 300], vec![2; 20], Vec::new()];
        let run = || {
            let (mut r, mut all, mut b) = (Random::new(7), Vec::new(), Vec::new());
            for _ in 0..2000 {
                mutate(&mut r, &seeds, 256, &mut b);
                assert!(b.len() <= 256);
                all.push(b.clone());
            }
            all
        };
        let all = run();
        assert_eq!(all, run());
        let different: std::collections::BTreeSet<_> = all.iter().collect();
        assert!(different.len() > 1500, "{}", different.len());
    }
}
