//! Skein-512 with 256 bits of output in MAC mode, after "The Skein Hash Function Family", version
//! 1.3: the block cipher Threefish-512 (§3.3) in the chaining mode UBI (§3.4).

type State = [u64; 8];

/// Key schedule constant C₂₄₀.
const C240: u64 = 0x1bd1_1bda_a9fc_1a22;
const ROUNDS: usize = 72;
/// Rotations of the four MIX functions of each round modulo 8.
const ROTATE: [[u32; 4]; 8] = [
    [46, 36, 19, 37],
    [33, 27, 14, 42],
    [17, 49, 36, 39],
    [44, 9, 54, 56],
    [39, 30, 34, 24],
    [13, 50, 10, 17],
    [25, 29, 39, 43],
    [8, 35, 56, 22],
];

const BLOCK: usize = 64;

/// Kinds of UBI input, in place in the tweak's upper word.
const TYPE_KEY: u64 = 0;
const TYPE_CONFIG: u64 = 4 << 56;
const TYPE_MESSAGE: u64 = 48 << 56;
const TYPE_OUTPUT: u64 = 63 << 56;
const FIRST: u64 = 1 << 62;
const FINAL: u64 = 1 << 63;

/// "SHA3", version 1.
const SCHEMA: u64 = 0x0000_0001_3341_4853;

/// Words of the state that the MIX functions of four rounds in a row take: the permutation after each
/// round is that of §3.3, and the fourth one brings all back to their places.
const ORDER: [[usize; 8]; 4] = [
    [0, 1, 2, 3, 4, 5, 6, 7],
    [2, 1, 4, 7, 6, 5, 0, 3],
    [4, 1, 6, 3, 0, 5, 2, 7],
    [6, 1, 0, 7, 2, 5, 4, 3],
];

/// Four rounds, those from `first` on of eight. With constants for all numbers, so that the words stay in
/// registers.
#[inline(always)]
fn four(v: &mut State, first: usize) {
    for (order, rotate) in ORDER.iter().zip(&ROTATE[first..]) {
        for (pair, r) in order.as_chunks::<2>().0.iter().zip(rotate) {
            let [x, y] = *pair;
            v[x] = v[x].wrapping_add(v[y]);
            v[y] = v[y].rotate_left(*r) ^ v[x];
        }
    }
}

fn threefish(key: &State, tweak: [u64; 2], plain: &State) -> State {
    let parity = key.iter().fold(C240, |acc, w| acc ^ w);
    // The words go round; here they are laid out as far as they are used.
    let ks: [u64; ROUNDS / 4 + 8] =
        std::array::from_fn(|i| key.get(i % 9).copied().unwrap_or(parity));
    let ts = [tweak[0], tweak[1], tweak[0] ^ tweak[1]];
    let ts: [u64; ROUNDS / 4 + 2] = std::array::from_fn(|i| ts[i % 3]);
    let mut v = *plain;
    let inject = |v: &mut State, s: usize| {
        for (w, k) in v.iter_mut().zip(&ks[s..s + 8]) {
            *w = w.wrapping_add(*k);
        }
        v[5] = v[5].wrapping_add(ts[s]);
        v[6] = v[6].wrapping_add(ts[s + 1]);
        v[7] = v[7].wrapping_add(s as u64);
    };
    for s in (0..ROUNDS / 4).step_by(2) {
        inject(&mut v, s);
        four(&mut v, 0);
        inject(&mut v, s + 1);
        four(&mut v, 4);
    }
    inject(&mut v, ROUNDS / 4);
    v
}

fn words(block: &[u8; BLOCK]) -> State {
    let mut out = [0; 8];
    for (w, b) in out.iter_mut().zip(block.as_chunks::<8>().0) {
        *w = u64::from_le_bytes(*b);
    }
    out
}

fn bytes(s: &State) -> [u8; BLOCK] {
    let mut out = [0; BLOCK];
    for (b, w) in out.as_chunks_mut::<8>().0.iter_mut().zip(s) {
        *b = w.to_le_bytes();
    }
    out
}

/// One UBI call over a whole input. An empty input is one block of zeros.
fn ubi(chain: State, kind: u64, input: &[u8]) -> State {
    let mut g = chain;
    let mut step = |block: &[u8; BLOCK], upto: usize, flags: u64| {
        let m = words(block);
        let c = threefish(&g, [upto as u64, kind | flags], &m);
        for (g, (c, m)) in g.iter_mut().zip(c.iter().zip(m)) {
            *g = c ^ m;
        }
    };
    // The last block, even a full one, is processed apart.
    let full = input.len().saturating_sub(1) / BLOCK;
    let (head, tail) = input.split_at(full * BLOCK);
    for (i, b) in head.as_chunks::<BLOCK>().0.iter().enumerate() {
        step(b, (i + 1) * BLOCK, if i == 0 { FIRST } else { 0 });
    }
    let mut last = [0; BLOCK];
    last[..tail.len()].copy_from_slice(tail);
    let flags = if full == 0 { FIRST | FINAL } else { FINAL };
    step(&last, input.len(), flags);
    g
}

/// Skein-512 of `data` with `bits` bits of output (at most 512) and an optional key.
fn skein512(key: Option<&[u8]>, data: &[u8], bits: u64) -> [u8; BLOCK] {
    let g = key.map_or([0; 8], |k| ubi([0; 8], TYPE_KEY, k));
    let mut config = [0; 32];
    config[..8].copy_from_slice(&SCHEMA.to_le_bytes());
    config[8..16].copy_from_slice(&bits.to_le_bytes());
    let g = ubi(g, TYPE_CONFIG, &config);
    let g = ubi(g, TYPE_MESSAGE, data);
    bytes(&ubi(g, TYPE_OUTPUT, &[0; 8]))
}

/// The checksum `skein`: 32 bytes of Skein-512-256 keyed with the pool's salt.
pub fn mac_512_256(salt: &[u8; 32], data: &[u8]) -> [u8; 32] {
    let mut out = [0; 32];
    out.copy_from_slice(&skein512(Some(salt), data, 256)[..32]);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Known answers of the specification (appendix C) for Skein-512-512, one and two blocks, and
    /// of the submission's answer file for the empty Skein-512-256.
    #[test]
    fn known_answers() {
        let hex = |b: &[u8]| -> String { b.iter().map(|b| format!("{b:02x}")).collect() };
        assert_eq!(
            hex(&skein512(None, &[0xff], 512)),
            "71b7bce6fe6452227b9ced6014249e5bf9a9754c3ad618ccc4e0aae16b316cc8\
             ca698d864307ed3e80b6ef1570812ac5272dc409b5a012df2a579102f340617a"
        );
        assert_eq!(
            hex(&skein512(None, &[], 256)[..32]),
            "39ccc4554a8b31853b9de7a1fe638a24cce6b35a55f2431009e18780335d2621"
        );
        let down: Vec<u8> = (0x80..=0xff).rev().collect();
        assert_eq!(
            hex(&skein512(None, &down[..64], 512)),
            "45863ba3be0c4dfc27e75d358496f4ac9a736a505d9313b42b2f5eada79fc17f\
             63861e947afb1d056aa199575ad3f8c9a3cc1780b5e5fa4cae050e989876625b"
        );
    }
}
