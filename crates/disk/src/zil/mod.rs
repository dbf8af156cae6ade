//! Intent log structures (pool format §26): header in the object set, chain structure of log
//! blocks, and all records.

mod record;
mod swap;
mod tx_type;

pub use record::{
    setattr, xat, Body, Create, CreateKind, LogAcl, Record, WriteData, Xvattr, RECORD_HEADER,
};
pub use swap::record_to_little_endian;
pub use tx_type::TxType;

use crate::blkptr::{BlkPtr, BP_SIZE};
use crate::bytes::{put_u64, slice_at, u64_at};
use base::{bail, Result, Txg};
use std::ops::Range;

/// Bytes of the header in the object set.
pub const HEADER_SIZE: usize = 192;
/// Bytes of the chain structure of a log block.
pub const CHAIN_SIZE: usize = 184;
/// Offset of the embedded checksum (magic and four words) inside the chain structure.
pub const CHAIN_TRAILER: usize = 144;
/// Slim log blocks are written and checksummed in multiples of this.
pub const SLIM_UNIT: usize = 4096;
/// Sequence number of the first block of a chain.
pub const FIRST_BLOCK_SEQ: u64 = 1;

/// Header of the intent log of a dataset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ZilHeader {
    /// txg in which the chain was claimed; 0: not claimed.
    pub claim_txg: Txg,
    /// Highest replayed record sequence number.
    pub replay_seq: u64,
    /// First log block; a hole: no log.
    pub log: BlkPtr,
    /// Highest claimed block sequence number.
    pub claim_blk_seq: u64,
    /// [`ZilHeader::REPLAY_NEEDED`] and [`ZilHeader::CLAIM_LR_SEQ_VALID`].
    pub flags: u64,
    /// Highest claimed record sequence number.
    pub claim_lr_seq: u64,
}

impl ZilHeader {
    /// Flag: the chain has records that were acknowledged and not yet replayed.
    pub const REPLAY_NEEDED: u64 = 1;
    /// Flag: `claim_lr_seq` is valid.
    pub const CLAIM_LR_SEQ_VALID: u64 = 2;

    /// Decodes the header. `Damaged`: it is cut short.
    pub fn decode(b: &[u8]) -> Result<ZilHeader> {
        Ok(ZilHeader {
            claim_txg: Txg::new(u64_at(b, 0)?),
            replay_seq: u64_at(b, 8)?,
            log: BlkPtr::read(slice_at(b, 16, BP_SIZE)?, false)?,
            claim_blk_seq: u64_at(b, 144)?,
            flags: u64_at(b, 152)?,
            claim_lr_seq: u64_at(b, 160)?,
        })
    }

    /// The header, 192 bytes.
    pub fn encode(&self) -> [u8; HEADER_SIZE] {
        let mut b = [0; HEADER_SIZE];
        put_u64(&mut b, 0, self.claim_txg.number());
        put_u64(&mut b, 8, self.replay_seq);
        b[16..144].copy_from_slice(&self.log.to_bytes());
        put_u64(&mut b, 144, self.claim_blk_seq);
        put_u64(&mut b, 152, self.flags);
        put_u64(&mut b, 160, self.claim_lr_seq);
        b
    }
}

/// Chain structure of one log block, without its embedded checksum.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ZilChain {
    /// Pointer to the next block of the chain.
    pub next: BlkPtr,
    /// Slim: bytes used including the chain structure; old form: bytes of records.
    pub nused: u64,
}

/// Where the chain structure is in a log block of `len` bytes; `None` if it does not fit.
/// `slim` is the form with checksum zilog2 (pool version ≥ 23).
pub fn chain_offset(len: usize, slim: bool) -> Option<usize> {
    let last = len.checked_sub(CHAIN_SIZE)?;
    Some(if slim { 0 } else { last })
}

impl ZilChain {
    /// Reads the chain structure of a whole log block and checks `nused`.
    pub fn decode(block: &[u8], slim: bool) -> Result<ZilChain> {
        let Some(at) = chain_offset(block.len(), slim) else {
            bail!(Damaged, "log block of {} bytes", block.len());
        };
        let c = slice_at(block, at, CHAIN_SIZE)?;
        let chain = ZilChain {
            next: BlkPtr::read(slice_at(c, 8, BP_SIZE)?, false)?,
            nused: u64_at(c, 136)?,
        };
        let good = if slim {
            CHAIN_SIZE as u64..=block.len() as u64
        } else {
            0..=at as u64
        };
        if !good.contains(&chain.nused) {
            bail!(Damaged, "log block: {} bytes used", chain.nused);
        }
        Ok(chain)
    }

    /// Writes the chain structure into a log block, embedded checksum zero. The block must be large
    /// enough to hold it.
    pub fn encode_into(&self, block: &mut [u8], slim: bool) -> Result<()> {
        let Some(at) = chain_offset(block.len(), slim) else {
            bail!(Invalid, "log block of {} bytes", block.len());
        };
        let c = &mut block[at..at + CHAIN_SIZE];
        c.fill(0);
        c[8..8 + BP_SIZE].copy_from_slice(&self.next.to_bytes());
        put_u64(c, 136, self.nused);
        Ok(())
    }

    /// Where the records are in the block.
    pub fn records(&self, slim: bool) -> Range<usize> {
        if slim {
            CHAIN_SIZE..self.nused as usize
        } else {
            0..self.nused as usize
        }
    }
}

/// Bytes of a slim log block that are written and covered by the checksum.
pub fn slim_written(nused: u64, lsize: usize) -> usize {
    (nused as usize)
        .div_ceil(SLIM_UNIT)
        .saturating_mul(SLIM_UNIT)
        .min(lsize)
}

/// Iterates over the records in the record area of a log block. The first error ends it.
pub fn records(area: &[u8]) -> Records<'_> {
    Records { b: area, at: 0 }
}

/// See [`records`].
pub struct Records<'a> {
    b: &'a [u8],
    at: usize,
}

impl Iterator for Records<'_> {
    type Item = Result<Record>;

    fn next(&mut self) -> Option<Result<Record>> {
        let rest = self.b.get(self.at..).filter(|r| !r.is_empty())?;
        match Record::decode(rest) {
            Ok((r, n)) => {
                self.at += n;
                Some(Ok(r))
            }
            Err(e) => {
                self.at = self.b.len();
                Some(Err(e))
            }
        }
    }
}

#[cfg(test)]
mod tests;
