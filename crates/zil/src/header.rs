//! The log's header in the object set block (pool format §26.1).

use base::Txg;
pub use disk::zil::{ZilHeader as Header, HEADER_SIZE};

/// Flag: there is something to replay.
pub const FLAG_REPLAY: u64 = Header::REPLAY_NEEDED;
/// Flag: `claim_lr_seq` is valid.
pub const FLAG_LR_SEQ_VALID: u64 = Header::CLAIM_LR_SEQ_VALID;

/// Highest block sequence that may be followed, highest record sequence that counts.
pub(crate) fn limits(h: &Header) -> (u64, u64) {
    let blocks = match h.claim_txg {
        Txg::NONE => u64::MAX,
        _ => h.claim_blk_seq,
    };
    let records = match h.flags & FLAG_LR_SEQ_VALID {
        0 => u64::MAX,
        _ => h.claim_lr_seq,
    };
    (blocks, records)
}
