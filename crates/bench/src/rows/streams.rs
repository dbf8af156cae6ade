//! Sending snapshots and receiving them, beside reading and writing the same files.
//!
//! The system says by environment variables how its snapshots are made, sent and received ([`crate::systems::System::streams`]); where it says
//! nothing the phases that need it are not run.

use super::meta::succeed;
use super::Work;
use crate::data::{source_size, Numbers, Supply};
use crate::measure::{Measure, Unit};
use crate::stream_commands as commands;
use base::{bail, Result};
use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::FileExt as _;
use std::process::Command;
use std::time::Instant;

/// Files of the large set.
const LARGE: u64 = 8;
/// Files in one folder of the small set.
const FOLDER: u64 = 1000;
/// Mean size of the small files.
const SMALL: u64 = 4096;
/// Bytes of the sparse file, and blocks it has.
const SPARSE: u64 = 1 << 40;
const BLOCKS: u64 = 1000;

/// One of the system's command lines.
fn line(variable: &str) -> Result<String> {
    match std::env::var(variable) {
        Ok(l) => Ok(l),
        Err(_) => bail!(Unsupported, "has no send streams"),
    }
}

/// Runs a line of shell, with arguments.
fn shell(line: &str, args: &[&str]) -> Result<()> {
    let mut c = Command::new("bash");
    c.args(["-o", "pipefail", "-ec", line, "bash"]).args(args);
    succeed(&mut c).map(drop)
}

/// A snapshot, where there are some.
fn snapshot(name: &str) -> Result<()> {
    match line(commands::SNAPSHOT) {
        Ok(l) => shell(&l, &[name]),
        Err(_) => Ok(()),
    }
}

/// A pipe from a snapshot's stream into a copy.
fn pass() -> Result<String> {
    let (send, receive) = (line(commands::SEND)?, line(commands::RECEIVE)?);
    Ok(format!(
        "send() {{ {send}; }}; receive() {{ {receive}; }}; send a | receive \"$1\""
    ))
}

fn large(n: u64) -> String {
    format!("large{n}")
}

pub fn large_write(w: &Work) -> Result<Vec<Measure>> {
    let mut supply = Supply::new(8, 1 << 20);
    let mut bytes = 0;
    let start = Instant::now();
    for n in 0..LARGE {
        let mut f = File::create(w.dir.join(large(n)))?;
        for _ in 0..(w.large / LARGE).div_ceil(1 << 20) {
            f.write_all(supply.block(1 << 20))?;
            bytes += 1 << 20;
        }
        f.sync_all()?;
    }
    let seconds = start.elapsed().as_secs_f64();
    snapshot("a")?;
    Ok(vec![Measure::bytes("write", bytes, seconds)])
}

fn large_bytes(w: &Work) -> Result<u64> {
    let sizes = (0..LARGE).map(|n| Ok(fs::metadata(w.dir.join(large(n)))?.len()));
    sizes.sum()
}

pub fn large_read(w: &Work) -> Result<Vec<Measure>> {
    let (mut buf, mut bytes) = (vec![0; 1 << 20], 0);
    let start = Instant::now();
    for n in 0..LARGE {
        let mut f = File::open(w.dir.join(large(n)))?;
        loop {
            match f.read(&mut buf)? {
                0 => break,
                n => bytes += n as u64,
            }
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    Ok(vec![Measure::bytes("read", bytes, seconds)])
}

pub fn large_send(w: &Work) -> Result<Vec<Measure>> {
    // Sizes are known to whoever measures only after looking, which must not warm what is cold.
    let line = line(commands::SEND)?;
    let start = Instant::now();
    shell(&format!("{line} >/dev/null"), &["a"])?;
    let seconds = start.elapsed().as_secs_f64();
    Ok(vec![Measure::bytes("send", large_bytes(w)?, seconds)])
}

pub fn large_receive(w: &Work) -> Result<Vec<Measure>> {
    let file = w.scratch.join("stream");
    let path = file.to_string_lossy().into_owned();
    let send = line(commands::SEND)?;
    shell(&format!("{send} >\"$2\""), &["a", &path])?;
    let receive = line(commands::RECEIVE)?;
    let start = Instant::now();
    let received = shell(&format!("{receive} <\"$2\""), &["from-file", &path]);
    let seconds = start.elapsed().as_secs_f64();
    fs::remove_file(&file)?;
    received?;
    Ok(vec![Measure::bytes("receive", large_bytes(w)?, seconds)])
}

pub fn large_pass(w: &Work) -> Result<Vec<Measure>> {
    let line = pass()?;
    let start = Instant::now();
    shell(&line, &["passed"])?;
    let seconds = start.elapsed().as_secs_f64();
    Ok(vec![Measure::bytes("pass", large_bytes(w)?, seconds)])
}

fn small_files(w: &Work) -> u64 {
    (w.size >> 11).clamp(1000, 100_000)
}

pub fn small_prepare(w: &Work) -> Result<Vec<Measure>> {
    let (mut numbers, mut supply) = (Numbers::new(9), Supply::new(9, 64 * SMALL as usize));
    let top = w.dir.join("small");
    for n in 0..small_files(w) {
        let dir = top.join(format!("d{}", n / FOLDER));
        if n % FOLDER == 0 {
            fs::create_dir_all(&dir)?;
        }
        let size = source_size(&mut numbers, SMALL) as usize;
        fs::write(dir.join(format!("f{n}")), supply.block(size))?;
    }
    snapshot("a")?;
    Ok(Vec::new())
}

pub fn small_tar(w: &Work) -> Result<Vec<Measure>> {
    let (from, to) = (w.dir.join("small"), w.dir.join("tarred"));
    fs::create_dir(&to)?;
    let start = Instant::now();
    let (from, to) = (from.to_string_lossy(), to.to_string_lossy());
    shell("tar -C \"$1\" -cf - . | tar -C \"$2\" -xf -", &[&from, &to])?;
    let seconds = start.elapsed().as_secs_f64();
    Ok(vec![Measure::ops("tar", small_files(w), seconds)])
}

pub fn small_pass(w: &Work) -> Result<Vec<Measure>> {
    let line = pass()?;
    let start = Instant::now();
    shell(&line, &["passed"])?;
    let seconds = start.elapsed().as_secs_f64();
    Ok(vec![Measure::ops("pass", small_files(w), seconds)])
}

pub fn sparse_prepare(w: &Work) -> Result<Vec<Measure>> {
    let (mut numbers, mut supply) = (Numbers::new(10), Supply::new(10, 4096));
    let f = File::create(w.dir.join("sparse"))?;
    f.set_len(SPARSE)?;
    for _ in 0..BLOCKS {
        f.write_all_at(supply.block(4096), numbers.below(SPARSE >> 12) << 12)?;
    }
    f.sync_all()?;
    snapshot("a")?;
    f.write_all_at(supply.block(4096), SPARSE / 3 * 2)?;
    f.sync_all()?;
    snapshot("b")?;
    Ok(Vec::new())
}

pub fn sparse_increment(_: &Work) -> Result<Vec<Measure>> {
    let line = line(commands::INCREMENT)?;
    let start = Instant::now();
    shell(&format!("{line} >/dev/null"), &["a", "b"])?;
    let ms = start.elapsed().as_secs_f64() * 1e3;
    let ms = Measure::given("increment", Unit::Milliseconds, ms);
    Ok(vec![ms])
}
