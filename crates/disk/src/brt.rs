//! Block reference tables (data format §29): blocks that several files share by cloning.

use crate::bytes::{put_u64, u64_at};
use base::{bail, Result};

/// Bytes of the bonus of a table.
pub const BRT_BONUS: usize = 56;
/// Bytes of a vdev that one counter of the array stands for.
pub const BRT_RANGE: u64 = 16 << 20;
/// Bytes of a block of the array of counters.
pub const BRT_BLOCK: usize = 32 << 10;

/// Name of a vdev's table in the object directory.
pub fn brt_name(vdev: u64) -> String {
    format!("com.fudosecurity:brt:vdev:{vdev}")
}

/// Bonus of a table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BrtPhys {
    /// ZAP of the entries: offset → additional references.
    pub entries: u64,
    /// Number of counters.
    pub size: u64,
    /// The counters are big-endian.
    pub big_endian: bool,
    /// Number of entries.
    pub total: u64,
    /// Bytes one counter stands for.
    pub range: u64,
    /// Deflated bytes of the blocks in the table, each once.
    pub used: u64,
    /// The same times their additional references.
    pub saved: u64,
}

impl BrtPhys {
    /// Decodes the bonus, 56 bytes. `Damaged`: ranges below 1 MiB or not in sectors, or more than
    /// 2^28 counters, which stand for 4 PiB.
    pub fn decode(b: &[u8]) -> Result<BrtPhys> {
        let p = BrtPhys {
            entries: u64_at(b, 0)?,
            size: u64_at(b, 8)?,
            big_endian: u64_at(b, 16)? != 0,
            total: u64_at(b, 24)?,
            range: u64_at(b, 32)?,
            used: u64_at(b, 40)?,
            saved: u64_at(b, 48)?,
        };
        // Counters for smaller pieces than this nobody makes; their number must stay within memory.
        if p.range < 1 << 20 || p.range % 512 != 0 || p.size > 1 << 28 {
            bail!(Damaged, "block reference table of impossible shape");
        }
        Ok(p)
    }

    /// 56 bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut b = vec![0; BRT_BONUS];
        let words = [
            self.entries,
            self.size,
            u64::from(self.big_endian),
            self.total,
            self.range,
            self.used,
            self.saved,
        ];
        for (i, w) in words.into_iter().enumerate() {
            put_u64(&mut b, 8 * i, w);
        }
        b
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bonus_round_trip() {
        let p = BrtPhys {
            entries: 3,
            size: 8,
            big_endian: false,
            total: 12,
            range: BRT_RANGE,
            used: 1 << 20,
            saved: 3 << 20,
        };
        let b = p.encode();
        assert_eq!(b.len(), BRT_BONUS);
        assert_eq!(BrtPhys::decode(&b).unwrap(), p);
        assert!(BrtPhys::decode(&[0; 56]).is_err());
        assert!(BrtPhys::decode(&b[..40]).is_err());
        assert_eq!(brt_name(0), "com.fudosecurity:brt:vdev:0");
    }
}
