//! An archive like that of a program's source, made of generated files in the plain `ustar` form
//! (POSIX.1-1988): headers of 512 bytes, contents padded to 512.

use crate::data::{source_size, Numbers};
use base::Result;
use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};

/// Mean size of the files in bytes.
const MEAN: u64 = 12_000;
/// Files in one folder.
const IN_FOLDER: u64 = 32;
/// Folders in one folder.
const FOLDERS: u64 = 24;

/// The archive of `files` files below a folder `tree`, made in `scratch` unless it is there.
pub fn archive(scratch: &Path, files: u64) -> Result<PathBuf> {
    let path = scratch.join(format!("tree-{files}.tar"));
    if path.is_file() {
        return Ok(path);
    }
    let part = scratch.join(format!("tree-{files}.tar.{}", std::process::id()));
    let mut out = BufWriter::with_capacity(1 << 20, File::create(&part)?);
    let mut numbers = Numbers::new(files);
    write_all(&mut out, files, &mut numbers)?;
    out.flush()?;
    std::fs::rename(&part, &path)?;
    Ok(path)
}

/// Folder of file `n`: a wide tree, two levels deep.
fn folder(n: u64) -> String {
    let f = n / IN_FOLDER;
    format!("tree/part{:03}/sub{:02}", f / FOLDERS, f % FOLDERS)
}

fn write_all(out: &mut impl std::io::Write, files: u64, numbers: &mut Numbers) -> Result<()> {
    out.write_all(&header("tree/", 0, b'5'))?;
    let mut last = String::new();
    let mut top = String::new();
    for n in 0..files {
        let dir = folder(n);
        if dir != last {
            let parent = dir.rsplit_once('/').map_or("", |(p, _)| p);
            if parent != top {
                top = parent.to_string();
                out.write_all(&header(&format!("{top}/"), 0, b'5'))?;
            }
            out.write_all(&header(&format!("{dir}/"), 0, b'5'))?;
            last = dir;
        }
        let size = source_size(numbers, MEAN) as usize;
        let text = source_text(numbers, size);
        let name = format!("{last}/file{n:06}.c");
        out.write_all(&header(&name, text.len() as u64, b'0'))?;
        out.write_all(&text)?;
        out.write_all(&[0; 512][..(512 - text.len() % 512) % 512])?;
    }
    out.write_all(&[0; 1024])?;
    Ok(())
}

/// Text with few distinct words, as compressible as source code is: about threefold.
pub fn text(size: usize) -> Vec<u8> {
    source_text(&mut Numbers::new(11), size)
}

fn source_text(numbers: &mut Numbers, size: usize) -> Vec<u8> {
    const WORDS: [&str; 16] = [
        "return ",
        "if (",
        ") {\n",
        "struct ",
        "static ",
        "int ",
        "->",
        ";\n\t",
        "0x",
        " = ",
        "unsigned ",
        "}\n",
        "const ",
        "void *",
        "/* ",
        " */\n",
    ];
    let mut out = Vec::with_capacity(size + 32);
    while out.len() < size {
        let r = numbers.next();
        let word = WORDS[(r & 15) as usize % WORDS.len()];
        out.extend_from_slice(word.as_bytes());
        out.extend_from_slice(format!("n{:x}", (r >> 8) & 0xfff).as_bytes());
    }
    out.truncate(size);
    out
}

fn header(name: &str, size: u64, kind: u8) -> [u8; 512] {
    let mut h = [0; 512];
    let mut put = |at: usize, text: &str| {
        for (to, from) in h.iter_mut().skip(at).zip(text.bytes()) {
            *to = from;
        }
    };
    put(0, name);
    put(100, if kind == b'5' { "0000755" } else { "0000644" });
    put(108, "0000000");
    put(116, "0000000");
    put(124, &format!("{size:011o}"));
    put(136, "14000000000");
    put(148, "        ");
    put(257, "ustar");
    put(263, "00");
    h[156] = kind;
    let sum: u32 = h.iter().map(|b| u32::from(*b)).sum();
    for (to, from) in h.iter_mut().skip(148).zip(format!("{sum:06o}\0 ").bytes()) {
        *to = from;
    }
    h
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tar_reads_it() {
        let dir = testkit::TempDir::new("tar").unwrap();
        let files = 3 * IN_FOLDER + 1;
        let path = archive(dir.path(), files).unwrap();
        let text = crate::child::sh("tar", &["-tf", &path.to_string_lossy()]).unwrap();
        let count = text.lines().filter(|l| l.ends_with(".c")).count();
        assert_eq!(count as u64, files);
        let folders = text.lines().filter(|l| l.ends_with('/')).count();
        assert_eq!(folders, 1 + 1 + 4, "{text}");
    }
}
