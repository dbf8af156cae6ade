//! Checksums and compressions, each by its on-disk number, on records of 128 KiB.

use super::Bench;
use crate::data::Numbers;
use crate::markdown::short;
use base::{Error, Kind, Result};
use codec::{checksum, compress};
use disk::{Checksum, Compression};
use std::hint::black_box;

const RECORD: usize = 128 << 10;

pub fn checksums(b: &mut Bench) -> Result<()> {
    let data = Numbers::new(1).bytes(RECORD);
    let salt = [7; 32];
    for &alg in Checksum::ALL {
        let name = alg.name().unwrap_or("?");
        let of_data = |n: &str| !matches!(n, "inherit" | "on" | "off" | "noparity");
        if checksum::is_embedded(alg) || !of_data(name) {
            continue;
        }
        b.rate(
            "checksum",
            format!("{} {name}", alg.number()),
            "MB/s",
            || {
                let words = checksum::compute(alg, black_box(&data), false, &salt)?;
                black_box(words);
                Ok(RECORD as f64 / 1e6)
            },
        )?;
    }
    Ok(())
}

pub fn compressions(b: &mut Bench) -> Result<()> {
    let text = crate::tar::text(RECORD);
    let noise = Numbers::new(2).bytes(RECORD);
    let most = RECORD - RECORD / 8;
    for &alg in Compression::ALL {
        let name = alg.name().unwrap_or("?");
        let levels: &[u8] = match alg {
            Compression::ZSTD => &[1, 3, 9, 19],
            Compression::LZJB | Compression::LZ4 => &[0],
            Compression::GZIP_1 | Compression::GZIP_6 | Compression::GZIP_9 => &[0],
            _ => continue,
        };
        for &level in levels {
            let title = match level {
                0 => format!("{} {name}", alg.number()),
                l => format!("{} {name}-{l}", alg.number()),
            };
            let Some(packed) = compress::compress(alg, level, &text, most) else {
                b.note(format!("{title} does not make text smaller"));
                continue;
            };
            b.rate("compress", format!("{title} text"), "MB/s", || {
                black_box(compress::compress(alg, level, black_box(&text), most));
                Ok(RECORD as f64 / 1e6)
            })?;
            let ratio = RECORD as f64 / packed.len() as f64;
            b.beside(format!("ratio {}", short(ratio)));
            b.rate("compress", format!("{title} back"), "MB/s", || {
                let plain = compress::decompress(alg, black_box(&packed), RECORD)?;
                if plain.len() != RECORD {
                    return Err(Error::new(Kind::Damaged, "decompressed to another length"));
                }
                Ok(RECORD as f64 / 1e6)
            })?;
            b.rate("compress", format!("{title} noise"), "MB/s", || {
                black_box(compress::compress(alg, level, black_box(&noise), most));
                Ok(RECORD as f64 / 1e6)
            })?;
        }
    }
    Ok(())
}
