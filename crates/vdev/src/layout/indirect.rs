//! Indirect mappings: where the blocks of removed vdevs were copied to (pool format §23).
//!
//! A removed vdev has a list of ranges, ascending by their offset on it, and for each range its address
//! on another vdev. That vdev may have been removed later, so the lookup repeats until all pieces of a
//! block are on vdevs that exist. The copying may have cut a block: only all pieces together have the
//! right checksum.

use base::{bail, RangeSet, Result, Txg};
use disk::bytes::u64_at;
use disk::Dva;

/// Bytes of a mapping entry.
pub const ENTRY: usize = 24;
/// Bytes of a births entry.
pub const BIRTH: usize = 16;

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

impl Moved {
    /// As an entry of a mapping object.
    pub fn encode(&self) -> [u8; ENTRY] {
        let to = Dva::new(self.vdev, self.dst, self.size, false);
        let mut out = [0; ENTRY];
        out[..8].copy_from_slice(&(self.src >> base::SECTOR_SHIFT).to_le_bytes());
        out[8..16].copy_from_slice(&to.word0.to_le_bytes());
        out[16..].copy_from_slice(&to.word1.to_le_bytes());
        out
    }
}

/// The mapping of one removed vdev, in memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IndirectMap {
    moved: Vec<Moved>,
    /// (end offset, txg in which what lies below was copied), ascending.
    births: Vec<(u64, Txg)>,
}

/// A part of a block of a removed vdev, at its address on another vdev.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Number of the top-level vdev.
    pub vdev: u64,
    /// Byte offset on it, as in a DVA.
    pub offset: u64,
    /// Bytes.
    pub len: usize,
    /// Txg in which it was written there; [`Txg::NONE`] if unknown.
    pub birth: Txg,
}

impl IndirectMap {
    /// Takes ranges in ascending order without overlap, and births in ascending order.
    pub fn new(moved: Vec<Moved>, births: Vec<(u64, Txg)>) -> Result<IndirectMap> {
        let mut map = IndirectMap::default();
        moved.into_iter().try_for_each(|m| map.push(m))?;
        births.into_iter().try_for_each(|b| map.push_birth(b))?;
        Ok(map)
    }

    /// Adds a range behind the others. `Damaged`: it is empty, before the end of the last one, or
    /// ends beyond 2^64.
    pub fn push(&mut self, m: Moved) -> Result<()> {
        let end = self.moved.last().map_or(0, |l| l.src + l.size);
        if m.size == 0 || m.src < end {
            bail!(Damaged, "indirect mapping is not in order at {:#x}", m.src);
        }
        if m.src.checked_add(m.size).is_none() || m.dst.checked_add(m.size).is_none() {
            bail!(Damaged, "indirect mapping ends beyond everything");
        }
        self.moved.push(m);
        Ok(())
    }

    /// Adds the txg in which everything up to this offset was copied that the births before do not cover. `Damaged`: it is
    /// before the last one.
    pub fn push_birth(&mut self, birth: (u64, Txg)) -> Result<()> {
        if self.births.last().is_some_and(|l| l.0 > birth.0) || birth.0 == 0 {
            bail!(Damaged, "indirect births are not in order");
        }
        self.births.push(birth);
        Ok(())
    }

    /// Reads more of a mapping object: whole entries of 24 bytes, little endian. What follows the
    /// entries its bonus counts must not be given.
    pub fn add_ranges(&mut self, bytes: &[u8]) -> Result<()> {
        for e in bytes.chunks_exact(ENTRY) {
            let dva = Dva {
                word0: u64_at(e, 8)?,
                word1: u64_at(e, 16)?,
            };
            self.push(Moved {
                src: (u64_at(e, 0)? & !(1 << 63)) << base::SECTOR_SHIFT,
                size: dva.asize(),
                vdev: dva.vdev(),
                dst: dva.offset(),
            })?;
        }
        Ok(())
    }

    /// Reads more of a births object: whole entries of 16 bytes, little endian.
    pub fn add_births(&mut self, bytes: &[u8]) -> Result<()> {
        for e in bytes.chunks_exact(BIRTH) {
            self.push_birth((u64_at(e, 0)?, Txg::new(u64_at(e, 8)?)))?;
        }
        Ok(())
    }

    /// Where the last range ends: everything allocated before it has been copied. 0: there is none.
    pub fn end(&self) -> u64 {
        self.moved.last().map_or(0, |m| m.src + m.size)
    }

    /// Puts other ranges in the place of those there are; the births stay.
    pub fn with_ranges(&self, moved: Vec<Moved>) -> Result<IndirectMap> {
        IndirectMap::new(moved, self.births.clone())
    }

    /// The copied ranges, ascending by their offset on the removed vdev.
    pub fn ranges(&self) -> &[Moved] {
        &self.moved
    }

    /// The txgs in which ranges were copied to top-level vdev `vdev`.
    pub fn copied_to(&self, vdev: u64) -> RangeSet {
        let mut births = self.births.iter().peekable();
        let mut out = RangeSet::new();
        for m in self.moved.iter().filter(|m| m.vdev == vdev) {
            while births.next_if(|b| b.0 <= m.src).is_some() {}
            if let Some((_, txg)) = births.peek() {
                out.insert(txg.number(), txg.after(1).number());
            }
        }
        out
    }

    /// The pieces that make up `len` bytes at `offset`, in order. A gap is `Damaged`.
    pub fn resolve(&self, offset: u64, len: usize) -> Result<Vec<Piece>> {
        let birth = match self.births.partition_point(|b| b.0 <= offset) {
            i if i < self.births.len() => self.births[i].1,
            _ => Txg::NONE,
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
    fn copies_are_of_the_txg_that_their_place_has() {
        let m = |src, vdev| Moved {
            src,
            size: 512,
            vdev,
            dst: src,
        };
        let map = IndirectMap::new(
            vec![m(0, 1), m(512, 2), m(4096, 1), m(8192, 2), m(16384, 1)],
            vec![
                (512, Txg::new(50)),
                (1024, Txg::new(51)),
                (8704, Txg::new(60)),
            ],
        )
        .unwrap();
        let of = |vdev| map.copied_to(vdev).iter().collect::<Vec<_>>();
        assert_eq!(of(1), [(50, 51), (60, 61)]);
        assert_eq!(of(2), [(51, 52), (60, 61)]);
        assert!(of(3).is_empty());
    }

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
            vec![(1024, Txg::new(50)), (8192, Txg::new(60))],
        )
        .unwrap();
        let p = |offset, len, birth| Piece {
            vdev: 1,
            offset,
            len,
            birth,
        };
        assert_eq!(map.resolve(512, 512).unwrap(), [p(8704, 512, Txg::new(50))]);
        assert_eq!(
            map.resolve(512, 1024).unwrap(),
            [p(8704, 512, Txg::new(50)), p(512, 512, Txg::new(50))]
        );
        assert_eq!(map.resolve(1024, 512).unwrap(), [p(512, 512, Txg::new(60))]);
        assert!(map.resolve(1024, 1024).is_err());
        assert!(map.resolve(1536, 1).is_err());
        assert!(map.resolve(9000, 1).is_err());
        assert!(IndirectMap::new(vec![m(0, 1024, 0), m(512, 1, 0)], vec![]).is_err());
        for bad in [
            vec![m(0, 1024, 0), m(1024, 0, 0)],
            vec![m(u64::MAX, 2, 0)],
            vec![m(0, 1024, u64::MAX - 100)],
            vec![m(4096, 512, 0), m(0, 512, 0)],
        ] {
            assert!(IndirectMap::new(bad, vec![]).is_err());
        }
        assert!(IndirectMap::new(vec![], vec![(1024, Txg::new(7)), (512, Txg::new(8))]).is_err());
        assert!(IndirectMap::new(vec![], vec![(0, Txg::new(7))]).is_err());
        let mut bytes = vec![0; 24];
        bytes[..8].copy_from_slice(&(1u64 << 63 | 4).to_le_bytes());
        let d = Dva::new(3, 4096, 1024, false);
        bytes[8..16].copy_from_slice(&d.word0.to_le_bytes());
        bytes[16..].copy_from_slice(&d.word1.to_le_bytes());
        let mut map = IndirectMap::default();
        map.add_ranges(&bytes).unwrap();
        // The same range again overlaps itself; nothing but zeros is no range.
        assert!(map.clone().add_ranges(&bytes).is_err());
        assert!(map.clone().add_ranges(&[0; 24]).is_err());
        let again = map.ranges()[0].encode();
        assert_eq!(again[..8], 4u64.to_le_bytes());
        assert_eq!(again[8..], bytes[8..]);
        assert_eq!(map.end(), 3072);
        map.add_births(&[[1; 8], [0; 8]].concat()).unwrap();
        assert!(map.clone().add_births(&[0; 16]).is_err());
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
