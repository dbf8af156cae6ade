//! Records which sectors of a disk image were read.
//!
//! The maker of images numbers the contents of sectors: equal numbers at equal places mean equal bytes. What the engine does with an image depends on
//! the sectors that it reads and on nothing else. So two images whose numbers agree on the sectors read in the first have the same outcome.

use base::sync::MutexExt;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex};

/// Unit of what has a number, bytes.
pub const SECTOR: u64 = 512;

/// Sectors in one piece of the map.
const PIECE: u64 = 128;

/// The numbers of the contents of one disk's sectors. 0: does not matter (the same on all images, or
/// written since).
#[derive(Clone, Debug, Default)]
pub struct Origins {
    disk: u32,
    pieces: BTreeMap<u64, Arc<[u32; PIECE as usize]>>,
}

/// Sectors that were looked at, which have these numbers.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Look {
    /// Number of the disk.
    pub disk: u32,
    /// First sector.
    pub first: u64,
    /// Number of the content of each sector.
    pub numbers: Vec<u32>,
}

/// What was looked at, in order, on all disks that share this.
#[derive(Debug, Default)]
pub struct Watcher(Mutex<Vec<Look>>);

impl Watcher {
    /// What was looked at so far; it begins anew.
    pub fn take(&self) -> Vec<Look> {
        std::mem::take(&mut self.0.acquire())
    }
}

impl Origins {
    /// Nothing of disk number `disk` was read yet.
    pub fn new(disk: usize) -> Origins {
        Origins {
            disk: disk as u32,
            ..Origins::default()
        }
    }

    /// Number of a sector's content.
    pub fn get(&self, sector: u64) -> u32 {
        match self.pieces.get(&(sector / PIECE)) {
            Some(p) => p[(sector % PIECE) as usize],
            None => 0,
        }
    }

    /// Gives a sector's content a number.
    pub fn set(&mut self, sector: u64, number: u32) {
        let piece = self.pieces.entry(sector / PIECE);
        let piece = piece.or_insert_with(|| Arc::new([0; PIECE as usize]));
        if piece[(sector % PIECE) as usize] != number {
            Arc::make_mut(piece)[(sector % PIECE) as usize] = number;
        }
    }

    /// The numbers of some sectors that a [`Look`] named; `None` if they are not of one.
    pub fn numbers(&self, first: u64, n: usize) -> Option<&[u32]> {
        let at = (first % PIECE) as usize;
        self.pieces.get(&(first / PIECE))?.get(at..at + n)
    }

    /// The pieces that have sectors of these bytes: number of the first sector, which of them, and what
    /// is known of them.
    fn within(
        &mut self,
        from: u64,
        to: u64,
    ) -> impl Iterator<Item = (u64, Range<usize>, &mut Arc<[u32; PIECE as usize]>)> {
        let (first, end) = (from / SECTOR, to.div_ceil(SECTOR));
        let pieces = first / PIECE..end.div_ceil(PIECE).max(first / PIECE);
        self.pieces.range_mut(pieces).filter_map(move |(i, piece)| {
            let base = i * PIECE;
            let from = first.max(base) - base;
            let to = end.min(base + PIECE) - base;
            (from < to).then_some((base, from as usize..to as usize, piece))
        })
    }

    /// Bytes are looked at; what is read again does not matter.
    pub(crate) fn taken(&mut self, from: u64, to: u64, watcher: &Watcher) {
        let disk = self.disk;
        for (base, range, piece) in self.within(from, to) {
            if piece[range.clone()].iter().all(|n| *n == 0) {
                continue;
            }
            let piece = Arc::make_mut(piece);
            let mut at = range.start;
            for run in piece[range.clone()].chunk_by(|a, b| (*a == 0) == (*b == 0)) {
                if run[0] != 0 {
                    watcher.0.acquire().push(Look {
                        disk,
                        first: base + at as u64,
                        numbers: run.to_vec(),
                    });
                }
                at += run.len();
            }
            piece[range].fill(0);
        }
    }

    /// Bytes are overwritten. What is left of a sector counts as looked at.
    pub(crate) fn written(&mut self, from: u64, to: u64, watcher: &Watcher) {
        for edge in [from, to] {
            if edge % SECTOR != 0 {
                self.taken(edge, edge + 1, watcher);
            }
        }
        for (_, range, piece) in self.within(from, to) {
            if piece[range.clone()].iter().any(|n| *n != 0) {
                Arc::make_mut(piece)[range].fill(0);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemDisk;
    use env::Disk;

    fn look(disk: u32, first: u64, numbers: &[u32]) -> Look {
        Look {
            disk,
            first,
            numbers: numbers.to_vec(),
        }
    }

    #[test]
    fn each_sector_is_told_once_and_not_after_it_was_written() {
        let d = MemDisk::new(1 << 20);
        let mut o = Origins::new(3);
        for (s, n) in [(2, 7), (3, 8), (5, 9), (127, 1), (128, 2), (300, 4)] {
            o.set(s, n);
        }
        assert_eq!((o.get(3), o.get(4), o.get(999)), (8, 0, 0));
        assert_eq!(o.numbers(2, 2), Some(&[7, 8][..]));
        assert_eq!((o.numbers(127, 2), o.numbers(1000, 1)), (None, None));
        let w = Arc::new(Watcher::default());
        d.watch(o, &w);
        let fork = d.fork();
        d.write(512 * 3, &[1; 512]).unwrap();
        let mut b = vec![0; 512 * 126];
        d.read(512 * 2, &mut b).unwrap();
        d.read(512 * 2, &mut b).unwrap();
        let (a, b2) = (look(3, 2, &[7]), look(3, 5, &[9]));
        assert_eq!(w.take(), [a, b2, look(3, 127, &[1])]);
        // A part of a sector is read with the rest of it.
        let mut b = vec![0; 3];
        d.peek(300 * 512 + 9, &mut b);
        assert_eq!(w.take(), [look(3, 300, &[4])]);
        // A fork has what was there when it was made.
        let mut b = vec![0; 512 * 4];
        fork.read(0, &mut b).unwrap();
        assert_eq!(w.take(), [look(3, 2, &[7, 8])]);
        // Half a sector written: the other half is still what it was.
        fork.poke(512 * 128 + 100, &[1; 100]);
        assert_eq!(w.take(), [look(3, 128, &[2])]);
    }
}
