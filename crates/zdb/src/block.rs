//! `-R`: any block by its address. `-E`: what a block pointer carries in itself.

use crate::fmt;
use crate::Session;
use base::{bail, Error, Kind, Result, Txg};
use codec::{checksum, compress};
use disk::{BlkPtr, Checksum, Compression, Dva};
use std::io::Write;

/// Largest block.
const MAX: u64 = base::MAX_BLOCK as u64;

/// What is asked for: `vdev:offset:[lsize/]psize[:flags]`, sizes and offset in hexadecimal digits.
#[derive(Debug, PartialEq, Eq)]
struct Asked {
    vdev: String,
    offset: u64,
    lsize: u64,
    psize: u64,
    flags: Flags,
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Flags {
    pointer: Option<u64>,
    checksums: bool,
    decompress: bool,
    swap: bool,
    gang: bool,
    indirect: bool,
    raw: bool,
    verbose: bool,
}

fn hex(text: &str, what: &str) -> Result<u64> {
    let digits = text.strip_prefix("0x").unwrap_or(text);
    u64::from_str_radix(digits, 16)
        .map_err(|_| Error::new(Kind::Invalid, format!("'{text}' is no {what}")))
}

impl Asked {
    fn read(text: &str) -> Result<Asked> {
        let parts: Vec<&str> = text.split(':').collect();
        let [vdev, offset, size, rest @ ..] = &parts[..] else {
            bail!(Invalid, "'{text}' is not vdev:offset:size[:flags]");
        };
        let (lsize, psize) = match size.split_once('/') {
            Some((l, p)) => (hex(l, "size")?, hex(p, "size")?),
            None => (hex(size, "size")?, hex(size, "size")?),
        };
        let offset = hex(offset, "offset")?;
        if psize == 0 || lsize == 0 || psize % 512 != 0 || lsize % 512 != 0 || offset % 512 != 0 {
            bail!(
                Invalid,
                "sizes and offset must be multiples of 200 (512 bytes)"
            );
        }
        if psize > MAX || lsize > MAX {
            bail!(Invalid, "no block is larger than 16 MiB");
        }
        let mut f = Flags::default();
        for part in rest {
            let letters = part.char_indices();
            for (i, c) in letters {
                match c {
                    'b' => {
                        f.pointer = Some(hex(&part[i + 1..], "offset of a block pointer")?);
                        break;
                    }
                    'c' => f.checksums = true,
                    'd' => f.decompress = true,
                    'e' => f.swap = true,
                    'g' => f.gang = true,
                    'i' => f.indirect = true,
                    'r' => f.raw = true,
                    'v' => f.verbose = true,
                    _ => bail!(
                        Invalid,
                        "'{c}' is no flag of a block: b, c, d, e, g, i, r or v"
                    ),
                }
            }
        }
        Ok(Asked {
            vdev: vdev.to_string(),
            offset,
            lsize,
            psize,
            flags: f,
        })
    }
}

/// `-R`. `operands` behind the pool.
pub fn show(s: &Session, operands: &[String], out: &mut dyn Write) -> Result<()> {
    if operands.is_empty() {
        bail!(Invalid, "-R needs a pool and vdev:offset:size[:flags]");
    }
    for text in operands {
        let a = Asked::read(text)?;
        if let Err(e) = one(s, text, &a, out) {
            s.complain(out, &format!("{text}: {e}"), 1)?;
        }
    }
    Ok(())
}

fn one(s: &Session, text: &str, a: &Asked, out: &mut dyn Write) -> Result<()> {
    let id: u64 = match a.vdev.split('.').next().unwrap_or("").parse() {
        Ok(id) if !a.vdev.contains('.') => id,
        Ok(_) => bail!(
            Unsupported,
            "not supported: blocks are read from whole top-level vdevs, not from one device of one"
        ),
        Err(_) => {
            let found = s.pool.tree().find_by_name(&a.vdev);
            match found.filter(|v| {
                s.pool
                    .tree()
                    .top(v.id())
                    .is_ok_and(|t| t.guid() == v.guid())
            }) {
                Some(v) => v.id(),
                None => bail!(NotFound, "Invalid vdev: {}", a.vdev),
            }
        }
    };
    let top = s.pool.tree().top(id)?;
    if !a.flags.raw {
        let path = top.path().unwrap_or_else(|| top.name());
        eprintln!("Found vdev: {}", cli::harmless::harmless(&path));
    }
    let size = a.psize as usize;
    let dva = Dva::new(id, a.offset, top.asize_for(a.psize), false);
    let raw = s
        .pool
        .zio()
        .devices
        .probe(&dva, size, Txg::MAX, &|_| true)?;
    if a.flags.checksums {
        return checksums(s, &raw, out);
    }
    if a.flags.gang {
        for i in 0..raw.len().saturating_sub(40) / disk::BP_SIZE {
            writeln!(out, "{}", fmt::bp(&BlkPtr::at(&raw, i)?))?;
        }
        return Ok(());
    }
    let mut data = match a.flags.decompress {
        true => guess(&raw, a)?,
        false => raw,
    };
    if a.flags.swap {
        disk::swap_u64s(&mut data);
    }
    if let Some(at) = a.flags.pointer {
        let at = usize::try_from(at).unwrap_or(usize::MAX);
        let bp = BlkPtr::read(data.get(at..).unwrap_or_default(), false)?;
        return Ok(writeln!(out, "{}", fmt::bp(&bp))?);
    }
    if a.flags.indirect {
        for i in 0..data.len() / disk::BP_SIZE {
            writeln!(out, "{}", fmt::bp(&BlkPtr::at(&data, i)?))?;
        }
        return Ok(());
    }
    if a.flags.raw {
        return Ok(out.write_all(&data)?);
    }
    writeln!(out, "\n{text}")?;
    dump(&data, out)
}

/// Every checksum a block could have.
fn checksums(s: &Session, data: &[u8], out: &mut dyn Write) -> Result<()> {
    let salt = s.salt();
    writeln!(out)?;
    for &alg in Checksum::ALL {
        let name = alg.name().unwrap_or("unknown");
        if checksum::is_embedded(alg) || alg < Checksum::FLETCHER2 || alg == Checksum::NOPARITY {
            continue;
        }
        if checksum::is_salted(alg) && salt.is_none() {
            writeln!(out, "{name:>12}\tthe pool has no salt yet")?;
            continue;
        }
        let w = checksum::compute(alg, data, false, &salt.unwrap_or([0; 32]))?;
        writeln!(
            out,
            "{name:>12}\tcksum={:016x}:{:016x}:{:016x}:{:016x}",
            w[0], w[1], w[2], w[3]
        )?;
    }
    Ok(())
}

/// Decompresses with the first algorithm and size that fit.
fn guess(raw: &[u8], a: &Asked) -> Result<Vec<u8>> {
    const ALGORITHMS: [Compression; 5] = [
        Compression::LZ4,
        Compression::LZJB,
        Compression::GZIP_1,
        Compression::ZSTD,
        Compression::ZLE,
    ];
    let zle = std::env::var_os("ZDB_NO_ZLE").is_none();
    let sizes: Vec<usize> = match a.lsize > a.psize {
        true => vec![a.lsize as usize],
        false => (raw.len() / 512 + 1..=base::MAX_BLOCK / 512)
            .map(|n| n * 512)
            .collect(),
    };
    // Almost anything can be taken for zle: it is tried when nothing else fits.
    for last in [false, true] {
        for &size in &sizes {
            for alg in ALGORITHMS {
                if (alg == Compression::ZLE) != last || (last && !zle) {
                    continue;
                }
                let name = alg.name().unwrap_or("unknown");
                if a.flags.verbose {
                    eprintln!("Trying {:05x} -> {size:05x} ({name})", raw.len());
                }
                let Ok(data) = compress::decompress(alg, raw, size) else {
                    continue;
                };
                // A size that is too small decompresses as well: what is right fails when more is
                // asked for.
                if data.len() == size && !cut(alg, raw, size) {
                    return Ok(data);
                }
            }
        }
    }
    bail!(Damaged, "Decompress of {} bytes failed", raw.len())
}

/// Whether the data go on behind `size`.
fn cut(alg: Compression, raw: &[u8], size: usize) -> bool {
    size + 512 <= base::MAX_BLOCK && compress::decompress(alg, raw, size + 512).is_ok()
}

/// 16 bytes in a line, as hexadecimal digits and as characters.
pub fn dump(data: &[u8], out: &mut dyn Write) -> Result<()> {
    writeln!(
        out,
        "          0 1 2 3 4 5 6 7   8 9 a b c d e f  0123456789abcdef"
    )?;
    for (i, line) in data.chunks(16).enumerate() {
        let text: String = line
            .iter()
            .map(|b| match b {
                0x20..=0x7e => *b as char,
                _ => '.',
            })
            .collect();
        let halves: Vec<String> = line.chunks(8).map(fmt::hex).collect();
        writeln!(out, "{:06x}:  {}  {text}", i * 16, halves.join("  "))?;
    }
    Ok(())
}

/// `-E word0:…:word15`.
pub fn embedded(text: &str, out: &mut dyn Write) -> Result<()> {
    let words = text
        .split(':')
        .map(|w| hex(w, "word of a block pointer"))
        .collect::<Result<Vec<u64>>>()?;
    let Ok(words) = <[u64; 16]>::try_from(words) else {
        bail!(
            Invalid,
            "invalid input format: a block pointer has 16 words"
        );
    };
    let bp = BlkPtr { words };
    if !bp.is_embedded() {
        bail!(Invalid, "the pointer is not an embedded one");
    }
    bp.sanity(u64::MAX)?;
    if bp.lsize() > base::MAX_BLOCK {
        bail!(Damaged, "the pointer claims {} bytes", bp.lsize());
    }
    let payload = bp.embedded_payload();
    let data = match bp.compress() {
        Compression::OFF => payload,
        alg => compress::decompress(alg, &payload, bp.lsize())?,
    };
    dump(&data, out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        let a = Asked::read("0:53de00:1000/200:dv").unwrap();
        assert_eq!((a.offset, a.lsize, a.psize), (0x53de00, 0x1000, 0x200));
        assert!(a.flags.decompress && a.flags.verbose && !a.flags.raw);
        assert_eq!(
            Asked::read("0:0:200:b80").unwrap().flags.pointer,
            Some(0x80)
        );
        for bad in [
            "",
            "0:1",
            "0:0:0",
            "0:0:201",
            "0:0:200:q",
            "0:x:200",
            "0:0:2000000",
        ] {
            assert_eq!(Asked::read(bad).unwrap_err().kind, Kind::Invalid, "{bad}");
        }
    }

    #[test]
    fn pointers_that_carry_data() {
        let bp = BlkPtr::embedded(
            disk::ObjType::PLAIN_FILE_CONTENTS,
            0,
            512,
            Compression::OFF,
            b"hello",
            Txg::new(7),
        );
        let text: Vec<String> = bp.words.iter().map(|w| format!("{w:x}")).collect();
        let mut out = Vec::new();
        embedded(&text.join(":"), &mut out).unwrap();
        assert!(String::from_utf8(out).unwrap().contains("hello"));
        assert!(embedded("0:0", &mut Vec::new()).is_err());
        assert!(embedded(&["0"; 16].join(":"), &mut Vec::new()).is_err());
    }
}
