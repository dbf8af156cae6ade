//! `zstream recompress`: compresses the data of a stream by another algorithm.

use crate::records::{copy, PLAIN};
use crate::{error, input};
use cli::args::Parsed;
use cli::run::{Fail, Outcome};
use codec::compress;
use disk::stream::{feature, Record, Write};
use disk::Compression;
use std::io::BufReader;

/// Compressed data is padded to multiples of this.
const UNIT: usize = 512;

pub fn run(args: &Parsed) -> Outcome {
    let level = match args.get("l").map(str::parse::<i32>) {
        None => compress::ZSTD_DEFAULT_LEVEL,
        Some(Ok(level)) => level,
        Some(Err(_)) => {
            let given = args.get("l").unwrap_or_default();
            return Err(Fail::Usage(format!("failed to parse level '{given}'")));
        }
    };
    let [name] = args.operands.as_slice() else {
        return Err(Fail::Usage(String::new()));
    };
    let algorithm = match compress::from_name(name) {
        Some(alg) if alg >= Compression::OFF && alg != Compression::EMPTY => alg,
        _ => {
            let name = cli::harmless::harmless(name);
            eprintln!("Invalid compression type {name}.");
            return Ok(2);
        }
    };
    let code = match compress::zstd_code(level) {
        Some(code) => code,
        None if algorithm == Compression::ZSTD => {
            return error(format!("zstd has no level {level}"));
        }
        None => 0,
    };
    let from = BufReader::with_capacity(1 << 18, input(false)?);
    let mut raw = false;
    copy(from, std::io::stdout().lock(), |item, swapped, out| {
        match &item.record {
            Record::Begin(begin) => raw = begin.has(feature::RAW),
            Record::WriteByRef(_) => {
                return error("Deduplicated streams are not supported");
            }
            Record::Write(write) if !raw => {
                let (write, payload) = recompress(write, item.payload, algorithm, code)?;
                return out.put(&Record::Write(write).encode(swapped), &payload, swapped);
            }
            _ => {}
        }
        out.put(&item.header, &item.payload, swapped)
    })?;
    Ok(0)
}

/// The record with its data compressed; as the file reads, if that does not save an eighth.
fn recompress(
    write: &Write,
    payload: Vec<u8>,
    algorithm: Compression,
    level: u8,
) -> Result<(Write, Vec<u8>), Fail> {
    let mut write = write.clone();
    let size = payload_size(&write)?;
    let mut data = payload;
    if write.compression != PLAIN {
        data = match compress::decompress(Compression::new(write.compression), &data, size) {
            Ok(plain) => plain,
            Err(_) => {
                return error(format!(
                    "decompression type {} failed for ino {} offset {}",
                    write.compression, write.object, write.offset
                ))
            }
        };
    }
    (write.compression, write.compressed_size) = (PLAIN, 0);
    let Some(mut packed) = compress::compress(algorithm, level, &data, size - size / 8) else {
        return Ok((write, data));
    };
    packed.resize(packed.len().next_multiple_of(UNIT), 0);
    if packed.len() >= size {
        return Ok((write, data));
    }
    write.compression = algorithm.number();
    write.compressed_size = packed.len() as u64;
    Ok((write, packed))
}

/// Bytes of the block.
fn payload_size(write: &Write) -> Result<usize, Fail> {
    match usize::try_from(write.logical_size) {
        Ok(size) if size <= base::MAX_BLOCK => Ok(size),
        _ => error(format!(
            "ino {} offset {}: a block of {} bytes",
            write.object, write.offset, write.logical_size
        )),
    }
}
