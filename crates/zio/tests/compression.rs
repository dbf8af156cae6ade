//! Streams that do not compress are compressed no further, and what follows them is found.

use base::{Block, Txg};
use disk::{BlkPtr, Checksum, Compression, ObjType};
use std::sync::Arc;
use zio::memory::{MemoryAllocator, MemoryDevices};
use zio::{CompressionHistory, WriteSpec, Zio, ZioOptions};

const SIZE: usize = 128 << 10;

fn zio() -> Zio {
    let allocator = Arc::new(MemoryAllocator::new(256 << 20));
    let devices = Arc::new(MemoryDevices::new(12));
    let options = ZioOptions {
        cache_bytes: 1 << 20,
        seed: 1,
        writable: true,
    };
    Zio::new(devices, allocator, options)
}

fn spec(compress: Compression) -> WriteSpec {
    WriteSpec {
        obj_type: ObjType::PLAIN_FILE_CONTENTS,
        level: 0,
        compress,
        zstd_level: 0,
        checksum: Checksum::FLETCHER4,
        copies: 1,
        gang_copies: 2,
        embed: true,
        hole_birth: true,
        dedup: false,
        verify: false,
        small: 0,
    }
}

fn noise(n: usize, seed: u64) -> Vec<u8> {
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        (x >> 24) as u8
    };
    (0..n).map(|_| next()).collect()
}

fn text(n: usize, seed: u64) -> Vec<u8> {
    let words = [
        "a pool of vdevs, ",
        "each txg is written ",
        "by a scrub of the pool, ",
        "which ends.\n",
        "the device ",
        "of the label ",
        "is synced, ",
    ];
    let pick = noise(n, seed);
    let text = pick.iter().flat_map(|b| words[*b as usize % 7].bytes());
    text.take(n).collect()
}

/// A block that shrinks, where nobody looks: noise, with zeros in its second quarter.
fn hidden(seed: u64) -> Vec<u8> {
    let mut b = noise(SIZE, seed);
    b[SIZE / 4..SIZE / 2].fill(0);
    b
}

/// Writes the block; whether it shrank. What comes back is the block in any case.
fn shrinks(z: &Zio, spec: &WriteSpec, history: &CompressionHistory, data: Vec<u8>) -> bool {
    let data: Block = Arc::new(data);
    let txg = Txg::new(5);
    let p = z.prepare_of(spec, &data, None, Some(history)).unwrap();
    let bp = z.issue(spec, &p, txg, &BlkPtr::HOLE).unwrap();
    z.drain(txg).unwrap();
    z.cache.clear();
    assert_eq!(z.read(&bp).unwrap(), data);
    let shrank = bp.psize() < data.len();
    let stored = if shrank {
        spec.compress
    } else {
        Compression::OFF
    };
    assert_eq!(bp.compress(), stored);
    z.free(&bp, txg).unwrap();
    shrank
}

#[test]
fn text_behind_noise_is_compressed_from_its_first_block_on() {
    for alg in [Compression::LZ4, Compression::ZSTD, Compression::GZIP_6] {
        for size in [8 << 10, 16 << 10, SIZE, 1 << 20] {
            let (z, s, h) = (zio(), spec(alg), CompressionHistory::default());
            for n in 0..10 {
                assert!(!shrinks(&z, &s, &h, noise(size, n)), "{alg} {size} {n}");
            }
            for n in 10..13 {
                assert!(shrinks(&z, &s, &h, text(size, n)), "{alg} {size} {n}");
            }
        }
    }
}

#[test]
fn a_block_that_its_samples_hide_is_found_within_32() {
    let (z, s, h) = (zio(), spec(Compression::LZ4), CompressionHistory::default());
    assert!(
        shrinks(&z, &s, &h, hidden(1)),
        "without a history it is tried"
    );
    for n in 0..2 {
        assert!(!shrinks(&z, &s, &h, noise(SIZE, n)));
    }
    let found = (0..40).position(|n| shrinks(&z, &s, &h, hidden(n)));
    // It was not tried at once, or noise would be, too.
    assert!(found.is_some_and(|n| (1..32).contains(&n)), "{found:?}");
    for n in 0..5 {
        assert!(shrinks(&z, &s, &h, hidden(n)), "the run is over");
    }
}

/// Equal blocks of a dedup table, and those of a nop-write, must be stored equally. Metadata is too small a part to
/// matter.
#[test]
fn blocks_of_dedup_tables_and_metadata_are_always_tried() {
    let plain = spec(Compression::LZ4);
    let dedup = WriteSpec {
        dedup: true,
        ..plain
    };
    let names = WriteSpec {
        obj_type: ObjType::DIRECTORY_CONTENTS,
        ..plain
    };
    let indirect = WriteSpec { level: 1, ..plain };
    let strong = WriteSpec {
        checksum: Checksum::SHA256,
        ..plain
    };
    for s in [dedup, names, indirect, strong] {
        let (z, h) = (zio(), CompressionHistory::default());
        let p = |data: Vec<u8>| z.prepare_of(&s, &Arc::new(data), None, Some(&h)).unwrap();
        for n in 0..5 {
            p(noise(SIZE, n));
        }
        let s = WriteSpec { dedup: false, ..s };
        let bp = z.issue(&s, &p(hidden(9)), Txg::new(5), &BlkPtr::HOLE);
        assert!(bp.unwrap().psize() < SIZE);
    }
}

/// Bytes that are rare in a block shrink it for zstd and gzip, though nothing in it repeats.
#[test]
fn digits_of_noise_are_found_by_algorithms_that_count_bits() {
    let digits = |n: u64| -> Vec<u8> {
        let b = noise(SIZE, n);
        b.iter()
            .map(|b| b"0123456789abcdef"[*b as usize % 16])
            .collect()
    };
    for alg in [Compression::ZSTD, Compression::GZIP_1] {
        let (z, s, h) = (zio(), spec(alg), CompressionHistory::default());
        for n in 0..5 {
            assert!(!shrinks(&z, &s, &h, noise(SIZE, n)));
        }
        assert!(shrinks(&z, &s, &h, digits(6)), "{alg}");
    }
}
