use super::*;

const REAL: [Compression; 13] = [
    Compression::LZJB,
    Compression::GZIP_1,
    Compression::GZIP_2,
    Compression::GZIP_3,
    Compression::GZIP_4,
    Compression::GZIP_5,
    Compression::GZIP_6,
    Compression::GZIP_7,
    Compression::GZIP_8,
    Compression::GZIP_9,
    Compression::ZLE,
    Compression::LZ4,
    Compression::ZSTD,
];

struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
    fn below(&mut self, n: usize) -> usize {
        (self.next() >> 16) as usize % n
    }
}

/// Blocks of many characters: constant, text-like, sparse, periodic, random, and mixtures.
fn samples() -> Vec<Vec<u8>> {
    let mut rng = Rng(42);
    let mut out = vec![vec![], vec![9], vec![1, 2], vec![0; 70000], vec![7; 4096]];
    for size in [3usize, 17, 512, 1000, 4096, 131072] {
        out.push((0..size).map(|_| rng.next() as u8).collect());
        out.push(
            (0..size)
                .map(|i| b"the quick brown fox. "[i % 21])
                .collect(),
        );
        let mut sparse = vec![0; size];
        for _ in 0..size / 20 {
            let at = rng.below(size);
            sparse[at] = rng.next() as u8;
        }
        out.push(sparse);
        let mut mixed: Vec<u8> = Vec::new();
        while mixed.len() < size {
            match rng.below(3) {
                0 => (0..rng.below(90)).for_each(|_| mixed.push(rng.next() as u8)),
                1 => mixed.resize(mixed.len() + rng.below(400), rng.below(2) as u8),
                _ if mixed.is_empty() => {}
                _ => {
                    let back = 1 + rng.below(mixed.len().min(2000));
                    for _ in 0..rng.below(150) {
                        mixed.push(mixed[mixed.len() - back]);
                    }
                }
            }
        }
        mixed.truncate(size);
        out.push(mixed);
    }
    out
}

#[test]
fn round_trips_at_every_level() {
    for data in samples() {
        for alg in REAL {
            let room = data.len() * 2 + 1000;
            let packed = compress(alg, 0, &data, room).unwrap();
            assert_eq!(decompress(alg, &packed, data.len()).unwrap(), data);
            // padding is ignored, the limit is kept, the length must be right
            let mut padded = packed.clone();
            padded.resize(base::roundup(packed.len() as u64 + 1, 512) as usize, 0);
            assert_eq!(decompress(alg, &padded, data.len()).unwrap(), data);
            assert_eq!(compress(alg, 0, &data, packed.len()), Some(packed.clone()));
            if !packed.is_empty() {
                assert_eq!(compress(alg, 0, &data, packed.len() - 1), None);
            }
            if !matches!(alg, Compression::LZJB | Compression::ZLE) {
                assert!(decompress(alg, &packed, data.len() + 1).is_err());
                assert!(data.is_empty() || decompress(alg, &packed, data.len() - 1).is_err());
            } else {
                assert!(decompress(alg, &packed, data.len() + 300).is_err());
            }
        }
    }
    let data = &samples()[20];
    for code in 0..=255 {
        match (
            zstd_level(code),
            compress(Compression::ZSTD, code, data, 200_000),
        ) {
            (Some(level), Some(p)) => {
                assert_eq!(
                    &decompress(Compression::ZSTD, &p, data.len()).unwrap(),
                    data
                );
                assert_eq!(zstd_level(p[4]), Some(level));
                let len = u32::from_be_bytes([p[0], p[1], p[2], p[3]]);
                assert_eq!(len as usize + ZSTD_HEADER, p.len());
            }
            (None, None) => {}
            other => panic!("level code {code}: {:?}", other.0),
        }
    }
}

#[test]
fn level_codes() {
    for (code, level) in [
        (1, 1),
        (19, 19),
        (103, -1),
        (112, -10),
        (113, -20),
        (121, -100),
        (122, -500),
        (123, -1000),
    ] {
        assert_eq!(zstd_level(code), Some(level));
        assert_eq!(zstd_code(level), Some(code));
    }
    assert_eq!((zstd_level(0), zstd_level(255)), (Some(3), Some(3)));
    assert_eq!((zstd_level(20), zstd_level(124)), (None, None));
    assert_eq!(
        (zstd_code(0), zstd_code(-15), zstd_code(20)),
        (None, None, None)
    );
}

#[test]
fn property_values() {
    for (text, value) in [
        ("on", 1),
        ("off", 2),
        ("lzjb", 3),
        ("gzip-1", 5),
        ("gzip-9", 13),
        ("lz4", 15),
        ("zstd", 16),
        ("zstd-1", 16 | 1 << 7),
        ("zstd-19", 16 | 19 << 7),
        ("zstd-fast-1", 16 | 103 << 7),
        ("zstd-fast-1000", 16 | 123 << 7),
    ] {
        assert_eq!(parse_property(text), Some(value), "{text}");
        assert_eq!(property_text(value).as_deref(), Some(text));
    }
    assert_eq!(parse_property("gzip"), Some(10));
    assert_eq!(parse_property("zstd-fast"), parse_property("zstd-fast-1"));
    for bad in [
        "zstd-20",
        "zstd-0",
        "zstd-fast-11",
        "zstd-",
        "zstd-fast-",
        "zstd-fast3",
        "lz5",
        "zstd-+3",
        "zstd--3",
        "",
    ] {
        assert_eq!(parse_property(bad), None, "{bad}");
    }
    assert_eq!(from_property(17), None);
    assert_eq!(from_property(15 | 1 << 7), None);
    assert_eq!(from_property(u64::MAX), None);
}

#[test]
fn zero_detection() {
    for len in 0..300 {
        let mut data = vec![0; len];
        assert!(is_zero(&data));
        for at in 0..len {
            data[at] = 0x40;
            assert!(!is_zero(&data));
            data[at] = 0;
        }
    }
}

/// Byte strings worked out by hand from the formats.
#[test]
fn by_hand() {
    // lzjb: literals a b c, then copy 6 from 3 back, then literal d
    let packed = [0b0000_1000, b'a', b'b', b'c', (6 - 3) << 2, 3, b'd'];
    assert_eq!(
        decompress(Compression::LZJB, &packed, 10).unwrap(),
        b"abcabcabcd"
    );
    // distance 300 = 1 << 8 | 44
    let mut far = Vec::new();
    for _ in 0..38 {
        far.push(0);
        far.extend_from_slice(b"01234567");
    }
    far.extend_from_slice(&[1, (66 - 3) << 2 | 1, 44]);
    let want: Vec<u8> = (0..304 + 66)
        .map(|i| b"01234567"[(i + usize::from(i >= 304) * 4) % 8])
        .collect();
    assert_eq!(decompress(Compression::LZJB, &far, 370).unwrap(), want);
    assert!(decompress(Compression::LZJB, &[1, 0, 0], 10).is_err());
    assert!(decompress(Compression::LZJB, &[0b10, 5, 0, 2], 10).is_err());
    // zle
    let packed = [2, b'x', b'y', b'z', 64, 255, 0, b'!'];
    let mut want = b"xyz".to_vec();
    want.resize(3 + 1 + 192, 0);
    want.push(b'!');
    assert_eq!(decompress(Compression::ZLE, &packed, 197).unwrap(), want);
    assert!(decompress(Compression::ZLE, &packed, 196 - 5).is_err());
    // lz4: one token with 5 literals
    let packed = [0, 0, 0, 6, 0x50, b'h', b'e', b'l', b'l', b'o', 9, 9];
    assert_eq!(decompress(Compression::LZ4, &packed, 5).unwrap(), b"hello");
    // off
    assert_eq!(decompress(Compression::OFF, &packed, 3).unwrap(), [0, 0, 0]);
    assert!(decompress(Compression::OFF, &packed, 13).is_err());
    for alg in [
        Compression::INHERIT,
        Compression::ON,
        Compression::EMPTY,
        Compression::new(17),
        Compression::new(255),
    ] {
        assert!(decompress(alg, &packed, 1).is_err());
        assert!(compress(alg, 0, &[0; 512], 512).is_none());
    }
    assert!(decompress(Compression::ZLE, &[255; 9], base::MAX_BLOCK + 1).is_err());
}

/// Random bytes, truncations and single flipped bits give errors or blocks of the right length.
#[test]
fn hostile_input() {
    let mut rng = Rng(7);
    for alg in REAL {
        for round in 0..3000 {
            let mut junk: Vec<u8> = (0..rng.below(80)).map(|_| rng.next() as u8).collect();
            if round % 2 == 0
                && junk.len() > 9
                && matches!(alg, Compression::LZ4 | Compression::ZSTD)
            {
                let n = junk.len() as u32 - if alg == Compression::LZ4 { 4 } else { 8 };
                junk[..4].copy_from_slice(&n.to_be_bytes());
            }
            let lsize = [0, 1, 512, 4096][round % 4];
            if let Ok(out) = decompress(alg, &junk, lsize) {
                assert_eq!(out.len(), lsize);
            }
        }
        let data = &samples()[16];
        let packed = compress(alg, 0, data, 100_000).unwrap();
        let last = packed.len() - usize::from(matches!(alg, Compression::LZJB));
        for cut in 0..packed.len().min(400) {
            assert!(decompress(alg, &packed[..cut.min(last - 1)], data.len()).is_err());
        }
        for bit in 0..packed.len().min(500) * 8 {
            let mut bad = packed.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            if let Ok(out) = decompress(alg, &bad, data.len()) {
                assert_eq!(out.len(), data.len());
            }
        }
        // after all that the contexts still work
        assert_eq!(&decompress(alg, &packed, data.len()).unwrap(), data);
    }
}

#[test]
fn blocks_written_by_openzfs() {
    use crate::checksum::{compute, Checksum};
    for (name, psize, lsize, words, text) in crate::testdata::COMPRESSED {
        let alg = from_name(name).unwrap();
        let nibbles: Vec<u8> = text
            .chars()
            .filter_map(|c| c.to_digit(16))
            .map(|d| d as u8)
            .collect();
        let mut data: Vec<u8> = nibbles.chunks(2).map(|p| p[0] << 4 | p[1]).collect();
        data.resize(*psize, 0);
        let out = decompress(alg, &data, *lsize).unwrap();
        assert_eq!(
            compute(Checksum::SHA256, &out, false, &[0; 32]).unwrap(),
            *words,
            "{name}"
        );
        // and back again, within the same allocated size
        let again = compress(alg, 0, &out, *psize).unwrap();
        assert_eq!(decompress(alg, &again, *lsize).unwrap(), out);
    }
}

/// Encoders are reused: what came before, also a block that did not fit, must not show.
#[test]
fn one_after_another() {
    let mut x = 1u64;
    let mut rnd = || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x
    };
    for alg in [
        Compression::LZJB,
        Compression::GZIP_1,
        Compression::GZIP_6,
        Compression::GZIP_9,
        Compression::ZLE,
        Compression::LZ4,
        Compression::ZSTD,
    ] {
        for round in 0..400 {
            let len = [512, 4096, 20480, 131_072][rnd() as usize % 4];
            let mut data = Vec::new();
            let style = rnd() % 3;
            while data.len() < len {
                match style {
                    0 => data.extend_from_slice(&rnd().to_le_bytes()),
                    1 => data.extend_from_slice(format!("{}\n", data.len() / 7).as_bytes()),
                    _ => data.extend_from_slice(&[rnd() as u8 & 3; 5]),
                }
            }
            data.truncate(len);
            if let Some(packed) = compress(alg, 0, &data, len - len / 8) {
                let back = decompress(alg, &packed, len);
                assert!(
                    back.is_ok_and(|b| b == data),
                    "{alg} round {round} of {len}, {style}"
                );
            }
        }
    }
}

#[test]
fn samples_tell_text_from_noise() {
    let mut rng = Rng(5);
    let noise: Vec<u8> = (0..131072).map(|_| rng.next() as u8).collect();
    let digits: Vec<u8> = noise
        .iter()
        .map(|b| b"0123456789abcdef"[*b as usize % 16])
        .collect();
    let text: Vec<u8> = (0..131072)
        .map(|i| b"the quick brown fox. "[i % 21])
        .collect();
    for (alg, counts_bits) in [
        (Compression::LZ4, false),
        (Compression::LZJB, false),
        (Compression::ZSTD, true),
        (Compression::GZIP_9, true),
    ] {
        assert!(!sample_shrinks(alg, &noise), "{alg}");
        assert!(sample_shrinks(alg, &text), "{alg}");
        assert_eq!(sample_shrinks(alg, &digits), counts_bits, "{alg}");
        // Beginning with noise, and ending with it.
        assert!(sample_shrinks(
            alg,
            &[&noise[..65536], &text[..65536]].concat()
        ));
        assert!(sample_shrinks(
            alg,
            &[&text[..65536], &noise[..65536]].concat()
        ));
        assert!(sample_shrinks(alg, &noise[..2048]), "too short for samples");
    }
}

#[test]
fn slow_levels_of_zstd_are_given_up_where_fast_ones_fail() {
    let mut rng = Rng(6);
    let noise: Vec<u8> = (0..131072).map(|_| rng.next() as u8).collect();
    let digits: Vec<u8> = noise
        .iter()
        .map(|b| b"0123456789abcdef"[*b as usize % 16])
        .collect();
    let room = 131072 - 131072 / 8;
    for level in [0, 3, 9, 19] {
        assert!(
            is_hopeless(Compression::ZSTD, level, &noise, room),
            "{level}"
        );
        // LZ4 fails, zstd-1 does not.
        assert!(
            !is_hopeless(Compression::ZSTD, level, &digits, room),
            "{level}"
        );
        assert!(!is_hopeless(
            Compression::ZSTD,
            level,
            &noise[..65536],
            room / 2
        ));
    }
    let fast = zstd_code(-5).unwrap();
    for level in [1, 2, fast] {
        assert!(
            !is_hopeless(Compression::ZSTD, level, &noise, room),
            "{level}"
        );
    }
    assert!(!is_hopeless(Compression::GZIP_9, 0, &noise, room));
    // Where more room is given than there is data nothing is given up.
    let wide = noise.len() + 4096;
    assert!(!is_hopeless(Compression::ZSTD, 3, &noise, wide));
    assert!(compress(Compression::ZSTD, 3, &noise, wide).is_some());
}
