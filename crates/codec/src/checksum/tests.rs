use super::*;

const SALT: [u8; 32] = *b"0123456789abcdefghijklmnopqrstuv";

/// Bytes without a pattern that a sum could miss.
fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut x = seed.wrapping_mul(2) | 1;
    (0..len)
        .map(|_| {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            (x >> 32) as u8
        })
        .collect()
}

fn sum(alg: u8, data: &[u8], swapped: bool) -> Words {
    compute(Checksum::new(alg), data, swapped, &SALT).unwrap()
}

#[test]
fn algorithms_have_their_qualities() {
    assert_eq!(Checksum::from_name("blake3"), Some(Checksum::new(14)));
    assert!(compute(Checksum::new(15), &[], false, &SALT).is_err());
    assert!(compute(Checksum::INHERIT, &[], false, &SALT).is_err());
    assert!(
        is_dedup(Checksum::SHA256)
            && !is_dedup(Checksum::EDONR)
            && is_nopwrite(Checksum::EDONR)
            && !is_dedup(Checksum::new(255))
    );
}

#[test]
fn published_digests() {
    assert_eq!(
        sum(Checksum::SHA256.number(), b"abc", false),
        [
            0xba7816bf_8f01cfea,
            0x414140de_5dae2223,
            0xb00361a3_96177a9c,
            0xb410ff61_f20015ad
        ]
    );
    assert_eq!(
        sum(Checksum::SHA256.number(), b"abc", true),
        sum(Checksum::SHA256.number(), b"abc", false)
    );
    let be = [
        0x53048e26_81941ef9,
        0x9b2e29b7_6b4c7dab,
        0xe4c2d0c6_34fc6d46,
        0xe0e2f131_07e7af23,
    ];
    assert_eq!(sum(Checksum::SHA512.number(), b"abc", true), be);
    assert_eq!(
        sum(Checksum::SHA512.number(), b"abc", false),
        be.map(u64::swap_bytes)
    );
}

/// Sums of sums, straight from the definition.
fn naive(elements: &[u64]) -> (u64, u64, u64, u64) {
    let (mut b, mut c, mut d) = (0u64, 0u64, 0u64);
    let n = elements.len() as u64;
    let mut a = 0u64;
    for (i, &w) in elements.iter().enumerate() {
        let left = u128::from(n - i as u64);
        let at = |k: u128| (k as u64).wrapping_mul(w);
        a = a.wrapping_add(w);
        b = b.wrapping_add(at(left));
        c = c.wrapping_add(at(left * (left + 1) / 2));
        d = d.wrapping_add(at(left * (left + 1) * (left + 2) / 6));
    }
    (a, b, c, d)
}

#[test]
fn fletcher_is_what_it_is_defined_to_be() {
    for len in (0..200).step_by(16).chain([512, 4096, 131072]) {
        let data = noise(len, len as u64 + 7);
        for swapped in [false, true] {
            let four: Vec<u64> = data
                .chunks(4)
                .map(|c| c.try_into().unwrap())
                .map(|c| match swapped {
                    false => u32::from_le_bytes(c).into(),
                    true => u32::from_be_bytes(c).into(),
                })
                .collect();
            let (a, b, c, d) = naive(&four);
            assert_eq!(
                sum(Checksum::FLETCHER4.number(), &data, swapped),
                [a, b, c, d]
            );
            assert_eq!(sum(Checksum::ON.number(), &data, swapped), [a, b, c, d]);
            let half = |which: usize| -> Vec<u64> {
                data.chunks(8)
                    .skip(which)
                    .step_by(2)
                    .map(|c| c.try_into().unwrap())
                    .map(|c| match swapped {
                        false => u64::from_le_bytes(c),
                        true => u64::from_be_bytes(c),
                    })
                    .collect()
            };
            let (x, y) = (naive(&half(0)), naive(&half(1)));
            assert_eq!(
                sum(Checksum::FLETCHER2.number(), &data, swapped),
                [x.0, y.0, x.1, y.1]
            );
        }
    }
}

#[test]
fn running_sums_do_not_care_about_pieces() {
    let data = noise(333, 3);
    for swapped in [false, true] {
        let mut padded = data.clone();
        padded.resize(336, 0);
        let (four, two) = (
            sum(Checksum::FLETCHER4.number(), &data, swapped),
            sum(Checksum::FLETCHER2.number(), &data, swapped),
        );
        assert_eq!(four, sum(Checksum::FLETCHER4.number(), &padded, swapped));
        assert_eq!(two, sum(Checksum::FLETCHER2.number(), &padded, swapped));
        for step in 1..40 {
            let mut f4 = Fletcher4::new(swapped);
            let mut f2 = Fletcher2::new(swapped);
            for piece in data.chunks(step) {
                f4.update(piece);
                f2.update(piece);
                f4.words();
                f2.words();
            }
            assert_eq!((f4.words(), f2.words()), (four, two));
        }
        let mut first = Fletcher4::new(swapped);
        first.update(&data[..100]);
        let mut second = Fletcher4::resume(first.words(), swapped);
        second.update(&data[100..]);
        assert_eq!(second.words(), four);
    }
}

const VERIFIER: Words = [0x1111_2222_3333_4444, 5, 6, 0x7777_0000_0000_0001];

/// A region with room for each embedded algorithm.
fn region(alg: u8) -> Vec<u8> {
    let mut r = noise(12288, u64::from(alg));
    if alg == Checksum::ZILOG2.number() {
        r[136..144].copy_from_slice(&5000u64.to_le_bytes());
    }
    r
}

#[test]
fn embedded_checksums_fit_only_their_place() {
    for alg in [
        Checksum::LABEL,
        Checksum::GANG_HEADER,
        Checksum::ZILOG,
        Checksum::ZILOG2,
    ] {
        let mut r = region(alg.number());
        let words = embed(Checksum::new(alg.number()), &mut r, &VERIFIER).unwrap();
        assert!(!verify_embedded(Checksum::new(alg.number()), &r, &VERIFIER).unwrap());
        let p = embedded_at(Checksum::new(alg.number()), &r).unwrap();
        assert_eq!(p.found, words);
        assert_eq!(
            (p.at, p.covered),
            if alg == Checksum::ZILOG2 {
                (144, 8192)
            } else {
                (12288 - 40, 12288)
            }
        );
        // the definition: hash of the covered bytes with the verifier in place
        let mut with = r[..p.covered].to_vec();
        for (i, w) in VERIFIER.iter().enumerate() {
            with[p.at + 8 + 8 * i..][..8].copy_from_slice(&w.to_le_bytes());
        }
        assert_eq!(sum(alg.number(), &with, false), words);
        let mut other = VERIFIER;
        other[3] += 1;
        assert_eq!(
            verify_embedded(Checksum::new(alg.number()), &r, &other)
                .unwrap_err()
                .kind,
            base::Kind::Checksum
        );
        for at in (0..r.len()).step_by(61) {
            let mut bad = r.clone();
            bad[at] ^= 0x10;
            assert_eq!(
                verify_embedded(Checksum::new(alg.number()), &bad, &VERIFIER).is_ok(),
                at >= p.covered
            );
        }
        // what a big-endian machine would have stored
        let mut big = r.clone();
        let order = |b: &mut [u8]| b.reverse();
        big[p.at..p.at + 40].chunks_exact_mut(8).for_each(order);
        if alg == Checksum::ZILOG2 {
            big[..p.covered].copy_from_slice(&r[..p.covered]);
            big[..p.covered].chunks_exact_mut(4).for_each(order);
            // 32-bit halves swapped, as the sums see them: the words themselves must be 64-bit
            for w in [136, 144, 152, 160, 168, 176] {
                big[w..w + 8].rotate_left(4);
            }
        }
        if alg == Checksum::ZILOG {
            big.copy_from_slice(&r);
            big.chunks_exact_mut(8).for_each(order);
        }
        // SHA-256 and the element order of fletcher4 see other bytes, so the sums differ
        let mut f = big.clone();
        let (w, q) = compute_embedded(Checksum::new(alg.number()), &f, &VERIFIER).unwrap();
        assert!(q.swapped);
        for (i, w) in w.iter().enumerate() {
            f[q.at + 8 + 8 * i..][..8].copy_from_slice(&w.to_be_bytes());
        }
        assert!(verify_embedded(Checksum::new(alg.number()), &f, &VERIFIER).unwrap());
        if alg == Checksum::ZILOG {
            assert_eq!(f, big);
        }
    }
}

#[test]
fn macs_in_log_blocks() {
    for alg in [Checksum::ZILOG, Checksum::ZILOG2] {
        let mut r = region(alg.number());
        let at = if alg == Checksum::ZILOG {
            r.len() - 40
        } else {
            144
        };
        r[at + 24..at + 32].copy_from_slice(&77u64.to_le_bytes());
        r[at + 32..at + 40].copy_from_slice(&78u64.to_le_bytes());
        let w = embed_keep_mac(Checksum::new(alg.number()), &mut r, &VERIFIER).unwrap();
        assert_eq!((w[2], w[3]), (77, 78));
        assert_eq!(
            verify_embedded_mac(Checksum::new(alg.number()), &r, &VERIFIER).unwrap(),
            (false, [77, 78])
        );
        assert!(verify_embedded(Checksum::new(alg.number()), &r, &VERIFIER).is_err());
        let full = compute_embedded(Checksum::new(alg.number()), &r, &VERIFIER)
            .unwrap()
            .0;
        assert_eq!(w[0], full[0] ^ full[2]);
        r[200] ^= 1;
        assert!(verify_embedded_mac(Checksum::new(alg.number()), &r, &VERIFIER).is_err());
    }
    assert_eq!(
        with_mac(Checksum::SHA256, [1, 2, 4, 8], [9, 9]),
        [1, 2, 9, 9]
    );
    assert_eq!(
        with_mac(Checksum::FLETCHER4, [1, 2, 4, 8], [9, 9]),
        [5, 10, 9, 9]
    );
}

#[test]
fn hostile_regions() {
    for alg in 0..=20 {
        for len in 0..400 {
            let mut r = noise(len, 11);
            let mut magic = EMBEDDED_MAGIC.to_le_bytes();
            for _ in 0..2 {
                for at in [len.wrapping_sub(40), 144] {
                    if let Some(b) = r.get_mut(at..).and_then(|b| b.get_mut(..8)) {
                        b.copy_from_slice(&magic);
                    }
                }
                assert!(verify_embedded(Checksum::new(alg), &r, &VERIFIER).is_err());
                assert!(verify_embedded_mac(Checksum::new(alg), &r, &VERIFIER).is_err());
                magic.reverse();
            }
            let _ = embed(Checksum::new(alg), &mut r, &VERIFIER);
        }
    }
    let mut r = region(Checksum::ZILOG2.number());
    embed(Checksum::ZILOG2, &mut r, &VERIFIER).unwrap();
    for nused in [0, 183, 12289, u64::MAX, u64::MAX - 4095] {
        r[136..144].copy_from_slice(&nused.to_le_bytes());
        assert!(verify_embedded(Checksum::ZILOG2, &r, &VERIFIER).is_err());
    }
}

fn hex(text: &str) -> Vec<u8> {
    let nibbles: Vec<u8> = text
        .chars()
        .filter_map(|c| c.to_digit(16))
        .map(|d| d as u8)
        .collect();
    nibbles.chunks(2).map(|p| p[0] << 4 | p[1]).collect()
}

#[test]
fn blocks_written_by_openzfs() {
    use crate::testdata::{CHECKSUMS, SALT};
    let salt: [u8; 32] = hex(SALT).try_into().unwrap();
    let mut seen = 0u16;
    for (name, size, words, text) in CHECKSUMS {
        let alg = Checksum::from_name(name).unwrap();
        let mut data = hex(text);
        data.resize(*size, 0);
        assert_eq!(compute(alg, &data, false, &salt).unwrap(), *words, "{name}");
        assert!(verify(alg, &data, false, &salt, words).unwrap());
        let big = compute(alg, &data, true, &salt);
        match alg {
            Checksum::SHA512 | Checksum::SKEIN | Checksum::BLAKE3 => {
                assert_eq!(big.unwrap(), words.map(u64::swap_bytes))
            }
            Checksum::EDONR => assert_eq!(big.unwrap_err().kind, base::Kind::Unsupported),
            _ => {}
        }
        let other = compute(alg, &data, false, &[1; 32]).unwrap();
        assert_eq!(other != *words, is_salted(alg));
        data[77] ^= 4;
        assert!(!verify(alg, &data, false, &salt, words).unwrap());
        seen |= 1 << alg.number();
    }
    assert_eq!(seen, 0b111_1001_1100_0000);
}
