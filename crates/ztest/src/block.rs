//! Blocks of test data that carry their own place and version.

use disk::bytes::{put_u64, u64_at};

/// Bytes of a block.
pub const SIZE: usize = 4096;
const MAGIC: u64 = 0x7a74_6573_7462_6c6b;
const WORDS: usize = 7;

/// What a block is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Id {
    /// Number of the file system.
    pub set: u64,
    pub thread: u64,
    pub file: u64,
    /// Which of the files that had this name.
    pub gen: u64,
    pub block: u64,
    /// Writes of this block so far, this one included.
    pub version: u64,
}

impl Id {
    fn words(&self) -> [u64; WORDS] {
        [
            MAGIC,
            self.set,
            self.thread,
            self.file,
            self.gen,
            self.block,
            self.version,
        ]
    }

    /// Fills `out` ([`SIZE`] bytes): the words, then what follows from them; every other version can
    /// be compressed.
    pub fn fill(&self, out: &mut [u8]) {
        let mut x = 0x9e37_79b9_7f4a_7c15u64;
        for (i, w) in self.words().into_iter().enumerate() {
            put_u64(out, 8 * i, w);
            x = (x ^ w).wrapping_mul(0xff51_afd7_ed55_8ccd).rotate_left(31);
        }
        let same = self.version % 2 == 0;
        for at in (8 * WORDS..out.len()).step_by(8) {
            if !same || at % 512 == 0 {
                x ^= x << 13;
                x ^= x >> 7;
                x ^= x << 17;
            }
            put_u64(out, at, x);
        }
    }

    /// Reads a block of which writes that nobody waited for may have arrived in part: the log carries
    /// a long write in pieces, and those that were written before a crash are replayed. So it is
    /// made of pieces of versions from `least` on (0: zeros), the newest first. Returns the newest.
    pub fn read_pieces(b: &[u8], least: u64) -> Result<Id, String> {
        let w = |i: usize| u64_at(b, 8 * i).unwrap_or(0);
        let newest = Id {
            set: w(1),
            thread: w(2),
            file: w(3),
            gen: w(4),
            block: w(5),
            version: w(6),
        };
        let mut version = newest.version;
        let mut at = 0;
        let mut want = vec![0; b.len()];
        loop {
            match version {
                0 => want.fill(0),
                _ => Id { version, ..newest }.fill(&mut want),
            }
            let same = b[at..].iter().zip(&want[at..]).take_while(|(a, b)| a == b);
            at += same.count();
            if at == b.len() {
                return Ok(newest);
            }
            if version <= least {
                return Err(format!(
                    "{newest:?} is wrong from byte {at} on, no version from {least} on has that"
                ));
            }
            version -= 1;
        }
    }

    /// What the bytes say they are; `None` for zeros. An error if a single one is wrong.
    pub fn read(b: &[u8]) -> Result<Option<Id>, String> {
        if b.iter().all(|x| *x == 0) {
            return Ok(None);
        }
        let w = |i: usize| u64_at(b, 8 * i).map_err(|e| e.to_string());
        if w(0)? != MAGIC {
            return Err(format!(
                "not a block of ours, it begins with {:016x}",
                w(0)?
            ));
        }
        let id = Id {
            set: w(1)?,
            thread: w(2)?,
            file: w(3)?,
            gen: w(4)?,
            block: w(5)?,
            version: w(6)?,
        };
        let mut want = vec![0; b.len()];
        id.fill(&mut want);
        match b.iter().zip(&want).position(|(a, b)| a != b) {
            None => Ok(Some(id)),
            Some(at) => Err(format!("{id:?} is wrong from byte {at} on")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_what_it_is() {
        for version in [1, 2] {
            let id = Id {
                set: 1,
                thread: 2,
                file: 3,
                gen: 4,
                block: 5,
                version,
            };
            let mut b = vec![0; SIZE];
            assert_eq!(Id::read(&b), Ok(None));
            id.fill(&mut b);
            assert_eq!(Id::read(&b), Ok(Some(id)));
            b[4000] ^= 1;
            assert!(Id::read(&b).is_err());
            b[4000] ^= 1;
            b[40] ^= 1;
            assert!(Id::read(&b).is_err());
        }
    }

    #[test]
    fn pieces_are_told_from_damage() {
        let id = |version| Id {
            set: 1,
            thread: 2,
            file: 3,
            gen: 4,
            block: 5,
            version,
        };
        let of = |version| {
            let mut b = vec![0; SIZE];
            id(version).fill(&mut b);
            b
        };
        let mut b = of(9);
        b[1001..].copy_from_slice(&of(7)[1001..]);
        b[3000..].copy_from_slice(&of(4)[3000..]);
        assert_eq!(Id::read_pieces(&b, 4), Ok(id(9)));
        assert!(Id::read_pieces(&b, 5).is_err(), "an old piece");
        b[3500..].fill(0);
        assert!(Id::read_pieces(&b, 4).is_err());
        assert_eq!(Id::read_pieces(&b, 0), Ok(id(9)));
        b[2000] ^= 1;
        assert!(Id::read_pieces(&b, 0).is_err(), "damage");
    }
}
