//! How often the block cache has what is asked for, beside plain LRU of the same size: traces are
//! replayed through both, those made here and any that was recorded.

use super::engine::pointer;
use super::Bench;
use crate::data::Numbers;
use base::{Error, Result};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;
use zio::Cache;

/// Bytes of a block in the cache, with what the cache counts for an entry.
const BLOCK: usize = 4096;
const WEIGHT: u64 = BLOCK as u64 + 192;
/// Parts of the blocks of a trace that the cache holds, in hundredths.
const SIZES: [usize; 2] = [5, 25];
const LENGTH: usize = 300_000;
const BLOCKS: u64 = 40_000;

/// Numbers of blocks in the order they are asked for.
type Trace = Vec<u64>;

/// Least recently used goes first, and nothing else.
struct Lru {
    most: usize,
    clock: u64,
    when: HashMap<u64, u64>,
    order: BTreeMap<u64, u64>,
}

impl Lru {
    fn new(most: usize) -> Lru {
        Lru {
            most,
            clock: 0,
            when: HashMap::new(),
            order: BTreeMap::new(),
        }
    }

    /// Whether the block was there; it is now.
    fn ask(&mut self, block: u64) -> bool {
        self.clock += 1;
        let before = self.when.insert(block, self.clock);
        if let Some(b) = before {
            self.order.remove(&b);
        }
        self.order.insert(self.clock, block);
        if self.when.len() > self.most {
            if let Some((_, oldest)) = self.order.pop_first() {
                self.when.remove(&oldest);
            }
        }
        before.is_some()
    }
}

/// Hits of our cache with room for `most` blocks.
fn ours(trace: &[u64], most: usize) -> usize {
    // Three fifths of the budget are for data.
    let cache = Cache::new(most as u64 * WEIGHT * 5 / 3 + 2, 1, Arc::default());
    let block = Arc::new(vec![0; BLOCK]);
    let mut hits = 0;
    for n in trace {
        let p = pointer(*n);
        match cache.get(&p) {
            Some(_) => hits += 1,
            None => cache.insert(&p, block.clone()),
        }
    }
    hits
}

fn plain(trace: &[u64], most: usize) -> usize {
    let mut lru = Lru::new(most);
    trace.iter().filter(|n| lru.ask(**n)).count()
}

/// Of `BLOCKS` blocks some are asked for much more often than others (Zipf's law, exponent 0.9), in
/// no order.
struct Skewed {
    sums: Vec<f64>,
    numbers: Numbers,
}

impl Skewed {
    fn new(seed: u64) -> Skewed {
        let mut sum = 0.0;
        let sums = (1..=BLOCKS).map(|n| {
            sum += (n as f64).powf(-0.9);
            sum
        });
        Skewed {
            sums: sums.collect(),
            numbers: Numbers::new(seed),
        }
    }

    fn next(&mut self) -> u64 {
        let all = self.sums.last().copied().unwrap_or(1.0);
        let at = self.numbers.below(1 << 32) as f64 / (1u64 << 32) as f64 * all;
        let rank = self.sums.partition_point(|s| *s < at) as u64;
        rank * 7919 % BLOCKS
    }
}

fn traces() -> Vec<(&'static str, Trace)> {
    let mut skewed = Skewed::new(3);
    let some = |s: &mut Skewed, n: usize| -> Trace { (0..n).map(|_| s.next()).collect() };
    let plain = some(&mut skewed, LENGTH);
    // A backup goes by: a third of all is asked for once, in order.
    let mut scans = Trace::new();
    for n in 0..10 {
        scans.extend(some(&mut skewed, LENGTH / 15));
        let new = BLOCKS * (n + 1);
        scans.extend(new..new + LENGTH as u64 / 30);
    }
    let round = (0..LENGTH as u64).map(|n| n % BLOCKS).collect();
    // What is wanted changes altogether, six times.
    let mut moving = Trace::new();
    for n in 0..6 {
        moving.extend(some(&mut skewed, LENGTH / 6).iter().map(|b| b + n * BLOCKS));
    }
    // Everything that is new is asked for again soon: plain LRU is best.
    let mut numbers = Numbers::new(8);
    let recent = (0..LENGTH as u64).map(|n| (n / 5).saturating_sub(numbers.below(1000)));
    vec![
        ("skewed", plain),
        ("skewed, a third scans", scans),
        ("round and round", round),
        ("skewed, moving", moving),
        ("recent", recent.collect()),
    ]
}

/// A trace from a file: lines of a number, or of a first block, a number of blocks, and anything.
fn read(file: &Path) -> Result<Trace> {
    let text = std::fs::read_to_string(file)
        .map_err(|e| Error::from(e).context(format!("trace {}", file.display())))?;
    let mut out = Trace::new();
    for (n, line) in text.lines().enumerate() {
        let mut words = line.split_whitespace().map(str::parse::<u64>);
        let wrong = || {
            let what = format!("trace {}: line {} is no block", file.display(), n + 1);
            Error::new(base::Kind::Invalid, what)
        };
        let Some(first) = words.next() else { continue };
        let (Ok(first), Ok(count)) = (first, words.next().unwrap_or(Ok(1))) else {
            return Err(wrong());
        };
        if count > 1 << 20 || first.checked_add(count).is_none() {
            return Err(wrong());
        }
        out.extend(first..first + count);
    }
    Ok(out)
}

fn replay(b: &mut Bench, name: &str, trace: &[u64]) {
    let blocks = trace.iter().collect::<HashSet<_>>().len();
    for part in SIZES {
        let most = (blocks * part / 100).max(16);
        let share = |hits: usize| hits as f64 * 100.0 / trace.len().max(1) as f64;
        let (a, l) = (share(ours(trace, most)), share(plain(trace, most)));
        let name = format!("{name}: room for {part} % of {blocks} blocks");
        b.figure("hits", name, "% hits", a, format!("plain LRU {l:.1}"));
    }
}

/// Hit rates with generated traces and those of `files`.
pub fn all(b: &mut Bench, files: &[std::path::PathBuf]) -> Result<()> {
    for f in files {
        let trace = read(f)?;
        let name = f.file_name().map(|n| n.to_string_lossy().into_owned());
        replay(b, &name.unwrap_or_default(), &trace);
    }
    for (name, trace) in traces() {
        replay(b, name, &trace);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lru_is_lru() {
        let mut l = Lru::new(2);
        let asked = [1, 2, 1, 3, 1, 2, 2, 3, 1];
        let there: Vec<bool> = asked.map(|n| l.ask(n)).into();
        let expected = [false, false, true, false, true, false, true, false, false];
        assert_eq!(there, expected);
        assert_eq!(l.when.len(), 2);
        assert_eq!(l.order.len(), 2);
    }

    /// Blocks that are asked for once do not push out those that are asked for often, and what LRU
    /// is good at is not given up for it.
    #[test]
    fn scans_cost_little_and_recency_is_kept() {
        for (name, trace) in traces() {
            let blocks = trace.iter().collect::<HashSet<_>>().len();
            let most = blocks / 20;
            let (a, l) = (ours(&trace, most), plain(&trace, most));
            assert!(a * 100 >= l * 92, "{name}: {a} {l}");
            if name.contains("scans") {
                assert!(a * 100 > l * 115, "{name}: {a} {l}");
            }
        }
    }

    #[test]
    fn traces_are_read() {
        let f = std::env::temp_dir().join(format!("trace.{}", std::process::id()));
        std::fs::write(&f, "7\n10 3 0 1\n\n7\n").unwrap();
        assert_eq!(read(&f).unwrap(), [7, 10, 11, 12, 7]);
        std::fs::write(&f, "7\nx\n").unwrap();
        assert!(read(&f).unwrap_err().to_string().contains("line 2"));
        std::fs::write(&f, format!("{} 5\n", u64::MAX)).unwrap();
        assert!(read(&f).is_err());
        std::fs::remove_file(f).unwrap();
    }
}
