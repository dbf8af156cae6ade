//! Edon-R′ with 512 bits, the tweaked form of the SHA-3 candidate (Gligoroski, Ødegård, Mihova,
//! Knapskog and others, "Cryptographic Hash Function Edon-R′", 2009), and the salted form that pools
//! use (pool format §13.2).
//!
//! The compression function strings eight applications of one quasigroup operation on vectors of
//! eight 64-bit words together; the tweak adds the old double pipe and the message block to the
//! result. The operation is defined by two orthogonal Latin squares: the first five rows say which
//! words are added before a rotation, the last three which of the results are combined by
//! exclusive or.

type Vector = [u64; 8];

/// Bytes per message block.
const BLOCK: usize = 128;
pub const DIGEST: usize = 64;

const SQUARE_1: [[u8; 8]; 8] = [
    [0, 7, 1, 3, 2, 4, 6, 5],
    [4, 1, 7, 6, 3, 0, 5, 2],
    [7, 0, 4, 2, 5, 3, 1, 6],
    [1, 4, 0, 5, 6, 2, 7, 3],
    [2, 3, 6, 7, 1, 5, 0, 4],
    [5, 2, 3, 1, 7, 6, 4, 0],
    [3, 6, 5, 0, 4, 7, 2, 1],
    [6, 5, 2, 4, 0, 1, 3, 7],
];
const SQUARE_2: [[u8; 8]; 8] = [
    [0, 4, 2, 3, 1, 6, 5, 7],
    [7, 6, 3, 2, 5, 4, 1, 0],
    [5, 3, 1, 6, 0, 2, 7, 4],
    [1, 0, 5, 4, 3, 7, 2, 6],
    [2, 1, 0, 7, 4, 5, 6, 3],
    [3, 5, 7, 0, 6, 1, 4, 2],
    [4, 7, 6, 1, 2, 0, 3, 5],
    [6, 2, 4, 5, 7, 3, 0, 1],
];
const ROTATE_1: [u32; 8] = [0, 5, 15, 22, 31, 40, 50, 59];
const ROTATE_2: [u32; 8] = [0, 10, 19, 29, 36, 44, 48, 55];
const CONSTANT_1: u64 = 0xaaaa_aaaa_aaaa_aaaa;
const CONSTANT_2: u64 = 0x5555_5555_5555_5555;

/// One of the two permutations of the quasigroup operation.
#[inline(always)]
fn permute(x: &Vector, square: &[[u8; 8]; 8], rotate: &[u32; 8], constant: u64) -> Vector {
    let mut t = [0u64; 8];
    for c in 0..8 {
        let start = if c == 0 { constant } else { 0 };
        t[c] = square[..5]
            .iter()
            .fold(start, |sum, row| sum.wrapping_add(x[usize::from(row[c])]))
            .rotate_left(rotate[c]);
    }
    let mut out = [0u64; 8];
    for c in 0..8 {
        out[c] = square[5..]
            .iter()
            .fold(0, |sum, row| sum ^ t[usize::from(row[c])]);
    }
    out
}

/// The quasigroup operation x * y.
#[inline(always)]
fn star(x: &Vector, y: &Vector) -> Vector {
    let a = permute(x, &SQUARE_1, &ROTATE_1, CONSTANT_1);
    let b = permute(y, &SQUARE_2, &ROTATE_2, CONSTANT_2);
    let mut z = [0; 8];
    for c in 0..8 {
        z[(c + 5) % 8] = a[c].wrapping_add(b[c]);
    }
    z
}

fn reversed(v: &Vector) -> Vector {
    let mut r = *v;
    r.reverse();
    r
}

/// The double pipe.
struct State(Vector, Vector);

impl State {
    fn new() -> State {
        // bytes 0x80, 0x81, 0x82, ... as big-endian words
        let word = |i: usize| 0x8081_8283_8485_8687 + 0x0808_0808_0808_0808 * i as u64;
        State(
            std::array::from_fn(word),
            std::array::from_fn(|i| word(i + 8)),
        )
    }

    fn absorb(&mut self, block: &[u8; BLOCK]) {
        let (words, _) = block.as_chunks::<8>();
        let word = |i: usize| u64::from_le_bytes(words[i]);
        let m0: Vector = std::array::from_fn(word);
        let m1: Vector = std::array::from_fn(|i| word(i + 8));
        let x0 = star(&reversed(&m1), &m0);
        let x1 = star(&x0, &m1);
        let x0 = star(&self.1, &x0);
        let x1 = star(&x0, &x1);
        let x0 = star(&x0, &self.0);
        let x1 = star(&x1, &x0);
        let r0 = star(&reversed(&m0), &x0);
        let r1 = star(&r0, &x1);
        for i in 0..8 {
            self.0[i] ^= r0[i] ^ m1[i];
            self.1[i] ^= r1[i] ^ m0[i];
        }
    }

    /// Pads with bit 1, zeros and the 64-bit little-endian number of message bits.
    fn finish(mut self, tail: &[u8], total: u64) -> [u8; DIGEST] {
        let mut last = [0; 2 * BLOCK];
        last[..tail.len()].copy_from_slice(tail);
        last[tail.len()] = 0x80;
        let blocks = (tail.len() + 1 + 8).div_ceil(BLOCK);
        last[blocks * BLOCK - 8..blocks * BLOCK].copy_from_slice(&(total << 3).to_le_bytes());
        for b in last.as_chunks::<BLOCK>().0.iter().take(blocks) {
            self.absorb(b);
        }
        let mut out = [0; DIGEST];
        for (b, w) in out.as_chunks_mut::<8>().0.iter_mut().zip(self.1) {
            *b = w.to_le_bytes();
        }
        out
    }
}

/// Edon-R 512 of `prefix` (a whole number of blocks) followed by `data`.
fn hash(prefix: &[u8], data: &[u8]) -> [u8; DIGEST] {
    let mut s = State::new();
    for b in prefix.as_chunks::<BLOCK>().0 {
        s.absorb(b);
    }
    let (blocks, tail) = data.as_chunks::<BLOCK>();
    for b in blocks {
        s.absorb(b);
    }
    s.finish(tail, (prefix.len() + data.len()) as u64)
}

/// The checksum `edonr`: the salt, hashed once and twice, is the first block of the message.
pub fn salted_512(salt: &[u8; 32], data: &[u8]) -> [u8; DIGEST] {
    let mut prefix = [0; BLOCK];
    let (once, twice) = prefix.split_at_mut(DIGEST);
    once.copy_from_slice(&hash(&[], salt));
    twice.copy_from_slice(&hash(&[], once));
    hash(&prefix, data)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Known answers for one block and for two.
    #[test]
    fn known_answers() {
        let hex =
            |msg: &[u8]| -> String { hash(&[], msg).iter().map(|b| format!("{b:02x}")).collect() };
        assert_eq!(
            hex(b"abc"),
            "1b14db155f1d406594b8cef70a4362ec6b5de6a5daf50ec999e987c19d3049e2\
             de5977bb05b1bb220050a1ea5b46a9f1740acafbf6b45032adc90c628372c22b"
        );
        assert_eq!(
            hex(b"abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmn\
                  hijklmnoijklmnopjklmnopqklmnopqrlmnopqrsmnopqrstnopqrstu"),
            "5351070dc51c3b2baca5a60d0252ccb4e4921a96fe5a69e76dad48fd21a0845a\
             d57f880b3e4a907bc503151842bb949e1cba7439a6409a34b8436cb46921583c"
        );
    }

    /// The length word needs 8 bytes behind the padding bit: both sides of every edge.
    #[test]
    fn padding_edges() {
        let data = [0x5a; 400];
        let mut seen = std::collections::BTreeSet::new();
        for len in 0..data.len() {
            let whole = hash(&[], &data[..len]);
            assert!(seen.insert(whole));
            if len >= BLOCK {
                assert_eq!(hash(&data[..BLOCK], &data[BLOCK..len]), whole);
            }
        }
    }
}
