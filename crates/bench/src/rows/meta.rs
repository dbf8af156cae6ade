//! Names, attributes, small files, trees.

use super::{on_threads, Work};
use crate::data::Supply;
use crate::measure::Measure;
use crate::{postmark as pm, tar, tools};
use base::{bail, Result};
use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

pub fn rates_1(w: &Work) -> Result<Vec<Measure>> {
    rates(w, 1)
}

pub fn rates_4(w: &Work) -> Result<Vec<Measure>> {
    rates(w, 4)
}

/// Each step goes over the files the first one had time for.
fn rates(w: &Work, threads: u64) -> Result<Vec<Measure>> {
    let each = w.files() / threads;
    let dir = |t: u64| w.dir.join(format!("d{t}"));
    for t in 0..threads {
        fs::create_dir(dir(t))?;
    }
    let cap = w.duration() * 3;
    let mut made = vec![0; threads as usize];
    let created = on_threads(threads, |t| {
        let start = Instant::now();
        let mut n = 0;
        while n < each && start.elapsed() < cap {
            File::create_new(dir(t).join(format!("file{n:07}")))?;
            n += 1;
        }
        Ok(n)
    })?;
    for (t, m) in made.iter_mut().enumerate() {
        *m = fs::read_dir(dir(t as u64))?.count() as u64;
    }
    let each_file = |job: &(dyn Fn(&Path, u64) -> Result<()> + std::marker::Sync)| {
        on_threads(threads, |t| {
            let (dir, count) = (dir(t), made.get(t as usize).copied().unwrap_or(0));
            for n in 0..count {
                job(&dir, n)?;
            }
            Ok(count)
        })
    };
    let old = |n: u64| format!("file{n:07}");
    let new = |n: u64| format!("renamed{n:07}");
    let looked = each_file(&|d, n| Ok(fs::symlink_metadata(d.join(old(n))).map(drop)?))?;
    let renamed = each_file(&|d, n| Ok(fs::rename(d.join(old(n)), d.join(new(n)))?))?;
    let deleted = each_file(&|d, n| Ok(fs::remove_file(d.join(new(n)))?))?;
    let steps = [
        ("create", created),
        ("stat", looked),
        ("rename", renamed),
        ("unlink", deleted),
    ];
    Ok(steps
        .iter()
        .map(|(name, (count, seconds))| Measure::ops(name, *count, *seconds))
        .collect())
}

pub fn postmark(w: &Work) -> Result<Vec<Measure>> {
    let files = (w.files() / 4).max(500);
    let done = pm::run(&w.dir, files, files * 4, w.cap())?;
    Ok(vec![
        Measure::ops("create", done.created, done.create_seconds),
        Measure::ops("transactions", done.transactions, done.transaction_seconds),
        Measure::ops("delete", done.deleted, done.delete_seconds),
    ])
}

pub fn untar(w: &Work) -> Result<Vec<Measure>> {
    unpacked(w, "untar", w.files())
}

fn unpacked(w: &Work, name: &str, files: u64) -> Result<Vec<Measure>> {
    let archive = tar::archive(&w.scratch, files)?;
    // The archive itself is to be in memory.
    std::io::copy(&mut File::open(&archive)?, &mut std::io::sink())?;
    let mut c = Command::new(tools::TAR.path()?);
    c.arg("-xf").arg(&archive).arg("-C").arg(&w.dir);
    let start = Instant::now();
    succeed(&mut c)?;
    let seconds = start.elapsed().as_secs_f64();
    Ok(vec![Measure::ops(name, files, seconds)])
}

pub fn programs_untar(w: &Work) -> Result<Vec<Measure>> {
    unpacked(w, "tar-x", w.many_files())
}

pub fn programs_rm(w: &Work) -> Result<Vec<Measure>> {
    let mut c = Command::new(tools::RM.path()?);
    c.arg("-r").arg(w.dir.join("tree"));
    let start = Instant::now();
    succeed(&mut c)?;
    let seconds = start.elapsed().as_secs_f64();
    Ok(vec![Measure::ops("rm-r", w.many_files(), seconds)])
}

/// Creates files until time is up, and compares the rates at the beginning and at the end.
pub fn one_directory(w: &Work) -> Result<Vec<Measure>> {
    let dir = w.dir.join("one");
    fs::create_dir(&dir)?;
    let (most, start) = (w.files() * 25, Instant::now());
    // When each so many files were there.
    let step = (most / 100).max(1);
    let mut marks = vec![Duration::ZERO];
    for n in 0..most {
        File::create_new(dir.join(format!("file{n:07}")))?;
        if (n + 1) % step == 0 {
            marks.push(start.elapsed());
            if start.elapsed() > w.cap() {
                break;
            }
        }
    }
    let steps = marks.len() - 1;
    let fifth = (steps / 5).max(1);
    let rate = |name: &str, first: usize| {
        let seconds = (marks[first + fifth] - marks[first]).as_secs_f64();
        Measure::ops(name, fifth as u64 * step, seconds)
    };
    Ok(vec![rate("first", 0), rate("last", steps - fifth)])
}

/// Runs a program of a workload; an error with the last of what it said.
pub fn succeed(c: &mut Command) -> Result<String> {
    let out = c.output()?;
    if !out.status.success() {
        let err = String::from_utf8_lossy(&out.stderr);
        let last: Vec<&str> = err.lines().rev().take(3).collect();
        let name = c.get_program().to_string_lossy();
        bail!(Io, "{name}: {}: {}", out.status, last.join("; "));
    }
    Ok(String::from_utf8_lossy(&out.stdout).into_owned())
}

/// Every file below a folder, each looked at; folders after what is in them.
pub fn visit(dir: &Path, to: &mut dyn FnMut(&Path, &fs::Metadata) -> Result<()>) -> Result<u64> {
    let mut seen = 0;
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let meta = entry.metadata()?;
        let path = entry.path();
        if meta.is_dir() {
            seen += visit(&path, to)?;
        }
        to(&path, &meta)?;
        seen += 1;
    }
    Ok(seen)
}

fn walked(w: &Work, name: &str) -> Result<Vec<Measure>> {
    let start = Instant::now();
    let seen = visit(&w.dir.join("tree"), &mut |_, _| Ok(()))?;
    Ok(vec![Measure::ops(
        name,
        seen,
        start.elapsed().as_secs_f64(),
    )])
}

pub fn walk(w: &Work) -> Result<Vec<Measure>> {
    walked(w, "walk")
}

pub fn rewalk(w: &Work) -> Result<Vec<Measure>> {
    walked(w, "rewalk")?;
    walked(w, "rewalk")
}

pub fn read_tree(w: &Work) -> Result<Vec<Measure>> {
    let mut buf = vec![0; 64 << 10];
    let mut files = 0;
    let start = Instant::now();
    visit(&w.dir.join("tree"), &mut |path, meta| {
        if meta.is_file() {
            let mut f = File::open(path)?;
            while f.read(&mut buf)? > 0 {}
            files += 1;
        }
        Ok(())
    })?;
    let seconds = start.elapsed().as_secs_f64();
    Ok(vec![Measure::ops("read", files, seconds)])
}

/// Copies by reading and writing: cloning of blocks would measure something else.
fn copy_file(from: &Path, to: &Path, buf: &mut [u8]) -> Result<u64> {
    let mut input = File::open(from)?;
    let mut output = File::create_new(to)?;
    let mut bytes = 0;
    loop {
        let n = input.read(buf)?;
        if n == 0 {
            return Ok(bytes);
        }
        output.write_all(&buf[..n])?;
        bytes += n as u64;
    }
}

fn copy(from: &Path, to: &Path, buf: &mut [u8], deadline: Instant) -> Result<u64> {
    fs::create_dir(to)?;
    let mut files = 0;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        if Instant::now() > deadline {
            break;
        }
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        if entry.file_type()?.is_dir() {
            files += copy(&source, &target, buf, deadline)?;
        } else {
            copy_file(&source, &target, buf)?;
            files += 1;
        }
    }
    Ok(files)
}

pub fn copy_tree(w: &Work) -> Result<Vec<Measure>> {
    let mut buf = vec![0; 128 << 10];
    let start = Instant::now();
    let (from, to) = (w.dir.join("tree"), w.dir.join("copy"));
    let files = copy(&from, &to, &mut buf, start + w.cap())?;
    let seconds = start.elapsed().as_secs_f64();
    Ok(vec![Measure::ops("copy", files, seconds)])
}

pub fn delete_tree(w: &Work) -> Result<Vec<Measure>> {
    let start = Instant::now();
    let tree = w.dir.join("tree");
    let seen = visit(&tree, &mut |path, meta| {
        if meta.is_dir() {
            fs::remove_dir(path)?;
        } else {
            fs::remove_file(path)?;
        }
        Ok(())
    })?;
    fs::remove_dir(&tree)?;
    let seconds = start.elapsed().as_secs_f64();
    Ok(vec![Measure::ops("delete", seen + 1, seconds)])
}

const LARGE_FILES: u64 = 4;

fn large_file(w: &Work, what: &str, n: u64) -> PathBuf {
    w.dir.join(format!("{what}{n}"))
}

pub fn large_prepare(w: &Work) -> Result<Vec<Measure>> {
    let start = Instant::now();
    let mut supply = Supply::new(5, 1 << 20);
    for n in 0..LARGE_FILES {
        let mut f = File::create(large_file(w, "from", n))?;
        let mut left = (w.size / LARGE_FILES).max(1);
        while left > 0 && start.elapsed() < w.cap() {
            let len = left.min(1 << 20);
            f.write_all(supply.block(len as usize))?;
            left -= len;
        }
    }
    Ok(Vec::new())
}

pub fn large_copy(w: &Work) -> Result<Vec<Measure>> {
    let mut buf = vec![0; 128 << 10];
    let start = Instant::now();
    let mut bytes = 0;
    for n in 0..LARGE_FILES {
        let (from, to) = (large_file(w, "from", n), large_file(w, "to", n));
        bytes += copy_file(&from, &to, &mut buf)?;
    }
    let seconds = start.elapsed().as_secs_f64();
    Ok(vec![Measure::bytes("copy", bytes, seconds)])
}

/// As megabytes a second: a file's size should not matter, but does.
pub fn large_delete(w: &Work) -> Result<Vec<Measure>> {
    let start = Instant::now();
    let mut bytes = 0;
    for what in ["from", "to"] {
        for n in 0..LARGE_FILES {
            let path = large_file(w, what, n);
            bytes += fs::symlink_metadata(&path)?.len();
            fs::remove_file(path)?;
        }
    }
    let seconds = start.elapsed().max(Duration::from_micros(1));
    Ok(vec![Measure::bytes("delete", bytes, seconds.as_secs_f64())])
}
