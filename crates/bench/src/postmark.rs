//! Transactions on many small files, after PostMark's description: a pool of files of random size is
//! created; each transaction reads a file or appends to one (never beyond the largest size), and creates a file or deletes one, each
//! with the same chance; at the end all files are deleted. Sizes from 500 bytes to 9.77 KiB, reads
//! and writes of 512 bytes, buffered: PostMark's defaults. The numbers of files and of transactions
//! (500 each by default) are given, as everybody who uses it does.

use crate::data::{Numbers, Supply};
use base::Result;
use std::fs::{self, File};
use std::io::{BufReader, BufWriter, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

pub const SMALLEST: u64 = 500;
pub const LARGEST: u64 = 10_000;
pub const BLOCK: usize = 512;
/// Chances of ten that a transaction reads rather than appends, creates rather than deletes.
pub const READ_BIAS: u64 = 5;
pub const CREATE_BIAS: u64 = 5;

/// What a transaction does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transaction {
    pub reads: bool,
    pub creates: bool,
}

pub fn draw(numbers: &mut Numbers) -> Transaction {
    Transaction {
        reads: numbers.below(10) < READ_BIAS,
        creates: numbers.below(10) < CREATE_BIAS,
    }
}

pub fn draw_size(numbers: &mut Numbers) -> u64 {
    numbers.between(SMALLEST, LARGEST)
}

/// What was done in which time.
#[derive(Debug, Default)]
pub struct Done {
    pub created: u64,
    pub create_seconds: f64,
    pub transactions: u64,
    pub transaction_seconds: f64,
    pub deleted: u64,
    pub delete_seconds: f64,
}

struct Pool {
    dir: PathBuf,
    /// Number and size.
    live: Vec<(u64, u64)>,
    next: u64,
    numbers: Numbers,
    supply: Supply,
}

/// Runs it in an empty folder; stops early (and says less was done) when `limit` is over.
pub fn run(dir: &Path, files: u64, transactions: u64, limit: Duration) -> Result<Done> {
    let mut p = Pool {
        dir: dir.to_path_buf(),
        live: Vec::new(),
        next: 0,
        numbers: Numbers::new(42),
        supply: Supply::new(43, LARGEST as usize),
    };
    let mut done = Done::default();
    let start = Instant::now();
    while done.created < files && start.elapsed() < limit {
        p.create()?;
        done.created += 1;
    }
    done.create_seconds = start.elapsed().as_secs_f64();
    let start = Instant::now();
    while done.transactions < transactions && start.elapsed() < limit {
        p.transact()?;
        done.transactions += 1;
    }
    done.transaction_seconds = start.elapsed().as_secs_f64();
    let start = Instant::now();
    done.deleted = p.live.len() as u64;
    while let Some((id, _)) = p.live.pop() {
        fs::remove_file(p.path(id))?;
    }
    done.delete_seconds = start.elapsed().as_secs_f64();
    Ok(done)
}

impl Pool {
    fn path(&self, id: u64) -> PathBuf {
        self.dir.join(format!("f{id}"))
    }

    fn create(&mut self) -> Result<()> {
        let id = self.next;
        self.next += 1;
        let size = draw_size(&mut self.numbers);
        let file = File::create_new(self.path(id))?;
        self.append(file, size)?;
        self.live.push((id, size));
        Ok(())
    }

    fn append(&mut self, file: File, size: u64) -> Result<()> {
        let mut out = BufWriter::with_capacity(4096, file);
        let mut left = size as usize;
        while left > 0 {
            let n = left.min(BLOCK);
            out.write_all(self.supply.block(n))?;
            left -= n;
        }
        out.flush()?;
        Ok(())
    }

    fn transact(&mut self) -> Result<()> {
        let t = draw(&mut self.numbers);
        let pick = self.numbers.below(self.live.len() as u64) as usize;
        if let Some(&(id, size)) = self.live.get(pick) {
            let path = self.path(id);
            if t.reads {
                let mut input = BufReader::with_capacity(4096, File::open(path)?);
                let mut block = [0; BLOCK];
                while input.read(&mut block)? > 0 {}
            } else if size < LARGEST {
                let more = 1 + self.numbers.below(LARGEST - size);
                if let Some(f) = self.live.get_mut(pick) {
                    f.1 += more;
                }
                let file = File::options().append(true).open(path)?;
                self.append(file, more)?;
            }
        }
        if t.creates || self.live.is_empty() {
            return self.create();
        }
        let pick = self.numbers.below(self.live.len() as u64) as usize;
        let (id, _) = self.live.swap_remove(pick);
        fs::remove_file(self.path(id))?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distribution() {
        let mut n = Numbers::new(5);
        let count = 100_000u64;
        let (mut reads, mut creates, mut both) = (0u64, 0u64, 0u64);
        for _ in 0..count {
            let t = draw(&mut n);
            reads += u64::from(t.reads);
            creates += u64::from(t.creates);
            both += u64::from(t.reads && t.creates);
        }
        let share = |x: u64| x as f64 / count as f64;
        assert!((share(reads) - 0.5).abs() < 0.01, "{reads}");
        assert!((share(creates) - 0.5).abs() < 0.01, "{creates}");
        assert!((share(both) - 0.25).abs() < 0.01, "{both}");
        let sizes: Vec<u64> = (0..count).map(|_| draw_size(&mut n)).collect();
        assert!(sizes.iter().all(|s| (SMALLEST..=LARGEST).contains(s)));
        let mean = sizes.iter().sum::<u64>() as f64 / count as f64;
        let want = (SMALLEST + LARGEST) as f64 / 2.0;
        assert!((mean / want - 1.0).abs() < 0.01, "{mean}");
    }

    #[test]
    fn leaves_nothing() {
        let dir = testkit::TempDir::new("postmark").unwrap();
        let done = run(dir.path(), 30, 200, Duration::from_secs(60)).unwrap();
        assert_eq!((done.created, done.transactions), (30, 200));
        assert!(done.deleted > 0);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
