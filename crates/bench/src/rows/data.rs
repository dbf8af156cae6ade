//! Reading and writing files.

use super::{on_threads, Work};
use crate::data::{Numbers, Supply};
use crate::measure::Measure;
use base::Result;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

const THREADS: u64 = 16;

/// Writes until the size or the time is reached, then fsync; bytes and seconds.
fn write_file(
    mut f: File,
    size: u64,
    record: usize,
    cap: Duration,
    seed: u64,
) -> Result<(u64, f64)> {
    let mut supply = Supply::new(seed, record);
    let start = Instant::now();
    let mut done = 0;
    while done < size && start.elapsed() < cap {
        f.write_all(supply.block(record))?;
        done += record as u64;
    }
    f.sync_all()?;
    Ok((done, start.elapsed().as_secs_f64()))
}

/// Reads to the end; bytes and seconds.
fn read_file(path: &Path, record: usize, cap: Duration) -> Result<(u64, f64)> {
    let mut buf = vec![0; record];
    let mut f = File::open(path)?;
    let start = Instant::now();
    let mut done = 0;
    while start.elapsed() < cap {
        match f.read(&mut buf)? {
            0 => break,
            n => done += n as u64,
        }
    }
    Ok((done, start.elapsed().as_secs_f64()))
}

fn one(name: &str, (bytes, seconds): (u64, f64)) -> Result<Vec<Measure>> {
    Ok(vec![Measure::bytes(name, bytes, seconds)])
}

pub fn seq_write(w: &Work) -> Result<Vec<Measure>> {
    let f = File::create(w.dir.join("seq"))?;
    one("write", write_file(f, w.size, 1 << 20, w.cap(), 1)?)
}

pub fn seq_rewrite(w: &Work) -> Result<Vec<Measure>> {
    let f = File::options().write(true).open(w.dir.join("seq"))?;
    let size = f.metadata()?.len();
    one("rewrite", write_file(f, size, 1 << 20, w.cap(), 2)?)
}

pub fn seq_read(w: &Work) -> Result<Vec<Measure>> {
    one("read", read_file(&w.dir.join("seq"), 1 << 20, w.cap())?)
}

pub fn seq_reread(w: &Work) -> Result<Vec<Measure>> {
    let path = w.dir.join("seq");
    read_file(&path, 1 << 20, w.cap())?;
    one("reread", read_file(&path, 1 << 20, w.cap())?)
}

pub fn large_write(w: &Work) -> Result<Vec<Measure>> {
    let f = File::create(w.dir.join("large"))?;
    one("write", write_file(f, w.large, 64 << 10, w.cap() * 2, 3)?)
}

pub fn large_read(w: &Work) -> Result<Vec<Measure>> {
    let path = w.dir.join("large");
    one("read", read_file(&path, 64 << 10, w.cap() * 2)?)
}

pub fn small_writes(w: &Work) -> Result<Vec<Measure>> {
    let f = File::create(w.dir.join("small"))?;
    one("write", write_file(f, w.size, 4 << 10, w.cap(), 4)?)
}

pub fn threads_prepare(w: &Work) -> Result<Vec<Measure>> {
    for i in 0..THREADS {
        let f = File::create(w.dir.join(format!("t{i}")))?;
        write_file(f, (w.size / THREADS).max(1 << 20), 1 << 20, w.cap(), i)?;
    }
    Ok(Vec::new())
}

pub fn threads_4k(w: &Work) -> Result<Vec<Measure>> {
    random_writes(w, 4 << 10)
}

pub fn threads_64k(w: &Work) -> Result<Vec<Measure>> {
    random_writes(w, 64 << 10)
}

/// Each thread overwrites as much as its file holds, or as much as the time allows, then fsync.
fn random_writes(w: &Work, record: usize) -> Result<Vec<Measure>> {
    let done = on_threads(THREADS, |i| {
        let f = File::options()
            .write(true)
            .open(w.dir.join(format!("t{i}")))?;
        let records = f.metadata()?.len() / record as u64;
        let mut supply = Supply::new(100 + i, record);
        let mut numbers = Numbers::new(200 + i);
        let start = Instant::now();
        let mut done = 0;
        while done < records && start.elapsed() < w.duration() {
            let at = numbers.below(records) * record as u64;
            f.write_all_at(supply.block(record), at)?;
            done += 1;
        }
        f.sync_all()?;
        Ok(done * record as u64)
    })?;
    one("write", done)
}
