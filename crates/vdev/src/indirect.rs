//! Where the blocks of removed vdevs went (pool format §23).

use base::{bail, Result, Txg};
use disk::bytes::u64_at;
use disk::Dva;

/// Bytes of a mapping entry.
const ENTRY: usize = 24;
/// Bytes of a births entry.
const BIRTH: usize = 16;

/// One copied range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moved {
    /// Byte offset on the removed vdev.
    pub src: u64,
    /// Bytes.
    pub size: u64,
    /// Vdev it is on now (which may be removed as well).
    pub vdev: u64,
    /// Byte offset there.
    pub dst: u64,
}

/// The mapping of one removed vdev, in memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IndirectMap {
    moved: Vec<Moved>,
    /// (end offset, txg in which what lies below was copied), ascending.
    births: Vec<(u64, Txg)>,
}

/// A part of a block on another vdev.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    pub vdev: u64,
    pub offset: u64,
    /// Bytes.
    pub len: usize,
    /// Txg in which it was written there; 0 if unknown.
    pub birth: Txg,
}

impl IndirectMap {
    /// Takes ranges in ascending order without overlap, and births in ascending order.
    pub fn new(moved: Vec<Moved>, births: Vec<(u64, Txg)>) -> Result<IndirectMap> {
        for w in moved.windows(2) {
            if w[0]
                .src
                .checked_add(w[0].size)
                .is_none_or(|end| end > w[1].src)
            {
                bail!(
                    Damaged,
                    "indirect mapping is not in order at {:#x}",
                    w[1].src
                );
            }
        }
        if let Some(last) = moved.last() {
            if last.src.checked_add(last.size).is_none() {
                bail!(Damaged, "indirect mapping ends beyond everything");
            }
        }
        if births.windows(2).any(|w| w[0].0 >= w[1].0) {
            bail!(Damaged, "indirect births are not in order");
        }
        Ok(IndirectMap { moved, births })
    }

    /// Reads the contents of the mapping and the births object: exactly the entries their bonus
    /// buffers count, little endian.
    pub fn decode(mapping: &[u8], births: &[u8]) -> Result<IndirectMap> {
        let mut moved = Vec::with_capacity(mapping.len() / ENTRY);
        for e in mapping.chunks_exact(ENTRY) {
            let dva = Dva {
                word0: u64_at(e, 8)?,
                word1: u64_at(e, 16)?,
            };
            let src = (u64_at(e, 0)? & !(1 << 63)) << base::SECTOR_SHIFT;
            let (size, vdev, dst) = (dva.asize(), dva.vdev(), dva.offset());
            moved.push(Moved {
                src,
                size,
                vdev,
                dst,
            });
        }
        let births = births
            .chunks_exact(BIRTH)
            .map(|e| Ok((u64_at(e, 0)?, u64_at(e, 8)?)))
            .collect::<Result<_>>()?;
        IndirectMap::new(moved, births)
    }

    pub fn ranges(&self) -> &[Moved] {
        &self.moved
    }

    /// The pieces that make up `len` bytes at `offset`, in order. A gap is `Damaged`.
    pub fn resolve(&self, offset: u64, len: usize) -> Result<Vec<Piece>> {
        let birth = match self.births.partition_point(|b| b.0 <= offset) {
            i if i < self.births.len() => self.births[i].1,
            _ => 0,
        };
        let mut out = Vec::new();
        let (mut at, mut left) = (offset, len as u64);
        let mut i = self.moved.partition_point(|m| m.src + m.size <= offset);
        while left > 0 {
            let Some(m) = self.moved.get(i).filter(|m| m.src <= at) else {
                bail!(Damaged, "removed vdev: nothing known about {at:#x}");
            };
            let skip = at - m.src;
            let n = left.min(m.size - skip);
            let Some(offset) = m.dst.checked_add(skip).filter(|_| n > 0) else {
                bail!(Damaged, "removed vdev: bad mapping at {at:#x}");
            };
            out.push(Piece {
                vdev: m.vdev,
                offset,
                len: n as usize,
                birth,
            });
            at += n;
            left -= n;
            i += 1;
        }
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces() {
        let m = |src, size, dst| Moved {
            src,
            size,
            vdev: 1,
            dst,
        };
        let map = IndirectMap::new(
            vec![m(0, 1024, 8192), m(1024, 512, 512), m(4096, 512, 0)],
            vec![(1024, 50), (8192, 60)],
        )
        .unwrap();
        let p = |offset, len, birth| Piece {
            vdev: 1,
            offset,
            len,
            birth,
        };
        assert_eq!(map.resolve(512, 512).unwrap(), [p(8704, 512, 50)]);
        assert_eq!(
            map.resolve(512, 1024).unwrap(),
            [p(8704, 512, 50), p(512, 512, 50)]
        );
        assert_eq!(map.resolve(1024, 512).unwrap(), [p(512, 512, 60)]);
        assert!(map.resolve(1024, 1024).is_err());
        assert!(map.resolve(1536, 1).is_err());
        assert!(map.resolve(9000, 1).is_err());
        assert!(IndirectMap::new(vec![m(0, 1024, 0), m(512, 1, 0)], vec![]).is_err());
        assert!(IndirectMap::new(vec![m(u64::MAX, 2, 0)], vec![]).is_err());
        let mut bytes = vec![0; 24];
        bytes[..8].copy_from_slice(&(1u64 << 63 | 4).to_le_bytes());
        let d = Dva::new(3, 4096, 1024, false);
        bytes[8..16].copy_from_slice(&d.word0.to_le_bytes());
        bytes[16..].copy_from_slice(&d.word1.to_le_bytes());
        let map = IndirectMap::decode(&bytes, &[]).unwrap();
        assert_eq!(
            map.ranges(),
            [Moved {
                src: 2048,
                size: 1024,
                vdev: 3,
                dst: 4096
            }]
        );
    }
}
