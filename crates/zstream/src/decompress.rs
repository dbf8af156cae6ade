//! `zstream decompress`: decompresses the records of some blocks, whatever the stream says of their compression.

use crate::records::{copy, PLAIN};
use crate::{error, input};
use cli::args::Parsed;
use cli::run::{Fail, Outcome};
use codec::compress;
use disk::stream::{Record, Write};
use disk::Compression;
use std::collections::HashMap;
use std::io::BufReader;

/// Compressions that may be named, with their numbers.
const TYPES: [(&str, Compression); 6] = [
    ("off", Compression::OFF),
    ("lz4", Compression::LZ4),
    ("lzjb", Compression::LZJB),
    ("gzip", Compression::GZIP_1),
    ("zle", Compression::ZLE),
    ("zstd", Compression::ZSTD),
];

/// A number as C reads it: decimal, `0x` hexadecimal, `0` octal.
fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x").or(text.strip_prefix("0X")) {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None if text.len() > 1 && text.starts_with('0') => u64::from_str_radix(text, 8).ok(),
        None => text.parse().ok(),
    }
}

pub fn run(args: &Parsed) -> Outcome {
    let mut wanted = HashMap::new();
    for operand in &args.operands {
        let mut parts = operand.splitn(3, ',');
        let (Some(object), Some(offset)) = (parts.next(), parts.next()) else {
            return Err(Fail::Usage(String::new()));
        };
        let Some(object) = number(object) else {
            return error("zstream: invalid value for object");
        };
        let Some(offset) = number(offset) else {
            return error("zstream: invalid value for offset");
        };
        let name = parts.next().unwrap_or("lz4");
        let Some((_, compression)) = TYPES.iter().find(|(n, _)| *n == name) else {
            eprintln!(
                "Invalid compression type {}.\n\
                 Supported types are off, lz4, lzjb, gzip, zle, and zstd",
                cli::harmless::harmless(name)
            );
            return Ok(2);
        };
        wanted.insert((object, offset), *compression);
    }
    let from = BufReader::with_capacity(1 << 18, input(false)?);
    copy(from, std::io::stdout().lock(), |item, swapped, out| {
        let (mut header, mut payload) = (item.header, item.payload);
        match &item.record {
            Record::WriteByRef(_) => {
                return error("Deduplicated streams are not supported");
            }
            Record::Write(write) => {
                if let Some(compression) = wanted.get(&(write.object, write.offset)) {
                    if let Some(plain) = plain(write, &payload, *compression, args.has("v")) {
                        header = Record::Write(Write {
                            compression: PLAIN,
                            compressed_size: 0,
                            ..write.clone()
                        })
                        .encode(swapped);
                        payload = plain;
                    }
                }
            }
            _ => {}
        }
        out.put(&header, &payload, swapped)
    })?;
    Ok(0)
}

/// The decompressed payload; `None` if the record stays as it is.
fn plain(
    write: &Write,
    payload: &[u8],
    compression: Compression,
    verbose: bool,
) -> Option<Vec<u8>> {
    let (object, offset) = (write.object, write.offset);
    let size = usize::try_from(write.logical_size).ok()?;
    let plain = compress::decompress(compression, payload, size).ok();
    match (&plain, compression) {
        (Some(_), Compression::OFF) if verbose => {
            eprintln!("Resetting compression type to off for ino {object} offset {offset}");
        }
        (Some(_), _) if verbose => {
            eprintln!("successfully decompressed ino {object} offset {offset}");
        }
        (Some(_), _) => {}
        (None, _) => {
            eprintln!("zstream: decompression failed for ino {object} offset {offset}");
        }
    }
    plain
}
