//! Writes of one leaf that no flush has covered yet: offset, length and a sum of each.
//!
//! A device whose flush failed, or that went away and came back, may have lost any of them, even if
//! a later flush succeeds. Their bytes are no longer in memory by then. So they are read back: bytes with
//! the right sum are written once more, for the next flush to cover. If the sum is wrong, the device has
//! lost the write ([`Missing`]).
//!
//! Between two flushes each offset is written once, except by the syncing thread, which
//! may write the same offset again with the same length; the newest write of an offset counts.

use base::{Block, Error, Kind, Result};
use codec::checksum::Fletcher4;
use env::{Disk, Op};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Bytes that are read back together.
const TOGETHER: usize = 8 << 20;

/// What a write put on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    /// Byte offset on the device.
    pub at: u64,
    /// Bytes.
    pub len: usize,
    /// Sum over them; see [`sum`].
    pub sum: u64,
}

/// Sum over the concatenation of `bufs`.
pub(crate) fn sum(bufs: &[Block]) -> u64 {
    let mut f = Fletcher4::new(false);
    bufs.iter().for_each(|b| f.update(b));
    fold(&f)
}

/// The same over bytes in one piece.
pub(crate) fn sum_of(bytes: &[u8]) -> u64 {
    let mut f = Fletcher4::new(false);
    f.update(bytes);
    fold(&f)
}

fn fold(f: &Fletcher4) -> u64 {
    let [a, b, c, d] = f.words();
    let mix = |h: u64, w: u64| (h ^ w).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    mix(mix(mix(mix(0, a), b), c), d)
}

/// The writes of one leaf since its last flush.
#[derive(Debug, Default)]
pub(crate) struct Unflushed {
    /// By offset: length and sum.
    writes: BTreeMap<u64, (usize, u64)>,
    /// Some may be lost although the device acknowledged them.
    pub suspect: bool,
    /// Some are lost.
    pub lost: bool,
}

impl Unflushed {
    /// Notes a write. It replaces an older one at the same offset.
    pub fn add(&mut self, m: &Mark) {
        self.writes.insert(m.at, (m.len, m.sum));
    }

    /// What was written in `[at, at + len)` is of no use to anybody any more.
    pub fn forget(&mut self, at: u64, len: u64) {
        let end = at.saturating_add(len);
        // No write is longer.
        let from = at.saturating_sub(2 * base::MAX_BLOCK as u64);
        let near = self.writes.range(from..end);
        let gone = near.filter(|(a, (n, _))| **a + *n as u64 > at);
        let gone: Vec<u64> = gone.map(|(a, _)| *a).collect();
        for a in gone {
            self.writes.remove(&a);
        }
    }

    /// Whether every write was flushed.
    pub fn is_empty(&self) -> bool {
        self.writes.is_empty()
    }

    /// Takes back what was taken for a flush that failed.
    pub fn put_back(&mut self, old: Unflushed) {
        for (at, w) in old.writes {
            self.writes.entry(at).or_insert(w);
        }
        self.suspect |= old.suspect;
        self.lost |= old.lost;
    }

    /// Reads back what was written, and writes it once more. Nobody else may write there meanwhile.
    ///
    /// Errors: the device fails; [`is_missing`] tells that it has lost something instead.
    pub fn restore(&self, device: &dyn Disk) -> Result<()> {
        let mut list: Vec<Mark> = Vec::new();
        let mut bytes = 0;
        for (&at, &(len, sum)) in &self.writes {
            list.push(Mark { at, len, sum });
            bytes += len;
            if bytes >= TOGETHER {
                restore_some(device, &std::mem::take(&mut list))?;
                bytes = 0;
            }
        }
        restore_some(device, &list)
    }
}

fn restore_some(device: &dyn Disk, list: &[Mark]) -> Result<()> {
    let read = |m: &Mark| Op::Read {
        offset: m.at,
        buf: vec![0; m.len],
    };
    let mut writes = Vec::new();
    for ((op, r), m) in device
        .batch(list.iter().map(read).collect())
        .into_iter()
        .zip(list)
    {
        r?;
        let Op::Read { buf, .. } = op else { continue };
        if sum_of(&buf) != m.sum {
            return Err(missing(m.at));
        }
        writes.push(Op::Write {
            offset: m.at,
            bufs: vec![Arc::new(buf)],
        });
    }
    device.batch(writes).into_iter().try_for_each(|(_, r)| r)
}

fn missing(at: u64) -> Error {
    let text = format!("the device lost what it had acknowledged (byte {at}, for one)");
    Error::new(Kind::Damaged, text)
}

/// Whether that is why [`Unflushed::restore`] failed.
pub(crate) fn is_missing(e: &Error) -> bool {
    e.kind == Kind::Damaged
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_do_not_depend_on_how_the_bytes_are_cut() {
        let bytes: Vec<u8> = (0..5000u32).map(|n| (n * 7 % 251) as u8).collect();
        let whole = sum(&[Arc::new(bytes.clone())]);
        let cut: Vec<Block> = bytes.chunks(999).map(|c| Arc::new(c.to_vec())).collect();
        assert_eq!(sum(&cut), whole);
        let mut other = bytes;
        other[4321] ^= 1;
        assert_ne!(sum(&[Arc::new(other)]), whole);
    }

    #[test]
    fn the_newest_write_of_a_place_is_restored_and_a_stale_one_is_missing() {
        let disk = env_sim::MemDisk::new(1 << 20);
        let put = |at: u64, byte: u8| {
            let data: Block = Arc::new(vec![byte; 4096]);
            disk.write(at, &data).unwrap();
            Mark {
                at,
                len: 4096,
                sum: sum(&[data]),
            }
        };
        let mut u = Unflushed::default();
        let first = put(0, 1);
        u.add(&put(8192, 2));
        let newer = put(0, 3);
        u.add(&newer);
        // Put back by a flush that failed, behind the newer one.
        let mut old = Unflushed::default();
        old.add(&first);
        u.put_back(old);
        u.restore(&*disk).unwrap();
        put(8192, 9);
        let mut other = Unflushed::default();
        other.add(&Mark {
            at: 8192,
            len: 4096,
            sum: 1,
        });
        other.forget(0, 8192);
        assert!(is_missing(&other.restore(&*disk).unwrap_err()));
        other.forget(12287, 1);
        assert!(other.is_empty());
        assert!(is_missing(&u.restore(&*disk).unwrap_err()));
        disk.fail_reads
            .store(true, std::sync::atomic::Ordering::Relaxed);
        assert!(!is_missing(&u.restore(&*disk).unwrap_err()));
    }
}
