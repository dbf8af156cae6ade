//! The log's header in the object set block (pool format §26.1).

use base::Result;
use disk::bytes::{put_u64, u64_at};
use disk::BlkPtr;

/// Bytes.
pub const HEADER_SIZE: usize = 192;
/// Flag: there is something to replay.
pub const FLAG_REPLAY: u64 = 1;
/// Flag: `claim_lr_seq` is valid.
pub const FLAG_LR_SEQ_VALID: u64 = 2;

/// ```text
///   0  claim_txg      group in which the chain was claimed, 0 = never
///   8  replay_seq     highest replayed record
///  16  log            pointer to the first block
/// 144  claim_blk_seq  highest claimed block
/// 152  flags
/// 160  claim_lr_seq   highest claimed record
/// 168  zero
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    pub claim_txg: u64,
    pub replay_seq: u64,
    pub log: BlkPtr,
    pub claim_blk_seq: u64,
    pub flags: u64,
    pub claim_lr_seq: u64,
}

impl Header {
    /// Little-endian, at least [`HEADER_SIZE`] bytes. `log_swapped` is not needed: the object set
    /// block is swapped whole.
    pub fn decode(b: &[u8]) -> Result<Header> {
        Ok(Header {
            claim_txg: u64_at(b, 0)?,
            replay_seq: u64_at(b, 8)?,
            log: BlkPtr::read(b.get(16..).unwrap_or_default(), false)?,
            claim_blk_seq: u64_at(b, 144)?,
            flags: u64_at(b, 152)?,
            claim_lr_seq: u64_at(b, 160)?,
        })
    }

    pub fn encode(&self) -> [u8; HEADER_SIZE] {
        let mut b = [0; HEADER_SIZE];
        put_u64(&mut b, 0, self.claim_txg);
        put_u64(&mut b, 8, self.replay_seq);
        b[16..144].copy_from_slice(&self.log.to_bytes());
        put_u64(&mut b, 144, self.claim_blk_seq);
        put_u64(&mut b, 152, self.flags);
        put_u64(&mut b, 160, self.claim_lr_seq);
        b
    }

    /// Highest block sequence that may be followed.
    pub(crate) fn blk_limit(&self) -> u64 {
        match self.claim_txg {
            0 => u64::MAX,
            _ => self.claim_blk_seq,
        }
    }

    /// Highest record sequence that counts.
    pub(crate) fn lr_limit(&self) -> u64 {
        match self.flags & FLAG_LR_SEQ_VALID {
            0 => u64::MAX,
            _ => self.claim_lr_seq,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip() {
        let mut log = BlkPtr::HOLE;
        for (i, w) in log.words.iter_mut().enumerate() {
            *w = 1000 + i as u64;
        }
        let h = Header {
            claim_txg: 1,
            replay_seq: 2,
            log,
            claim_blk_seq: 3,
            flags: 4,
            claim_lr_seq: 5,
        };
        let b = h.encode();
        assert_eq!(Header::decode(&b).unwrap(), h);
        assert!(Header::decode(&b[..167]).is_err());
        assert_eq!(b[168..], [0; 24]);
    }
}
