//! Redaction lists: the blocks that redacted streams leave out (data format §12).

use crate::Dsl;
use base::{bail, Result};
use disk::bytes::u64_at;
use disk::dsl::{RedactBlock, REDACT_BLOCK_SIZE};
use dmu::Dnode;
use std::sync::Arc;

/// Bytes of the header, before the guids.
const HEADER: usize = 32;
/// Both words of the place up to which a list is made, once it is complete.
const COMPLETE: u64 = u64::MAX;

/// The redaction list of a bookmark, complete.
pub struct RedactionList {
    dn: Arc<Dnode>,
    snaps: Vec<u64>,
    entries: u64,
}

impl RedactionList {
    /// Guids of the snapshots it was made of.
    pub fn snaps(&self) -> &[u64] {
        &self.snaps
    }

    /// Number of entries.
    pub fn len(&self) -> u64 {
        self.entries
    }

    /// Whether nothing is left out.
    pub fn is_empty(&self) -> bool {
        self.entries == 0
    }

    /// `count` entries from number `first` on, fewer at the end.
    ///
    /// # Errors
    /// Those of reading the list.
    pub fn read(&self, first: u64, count: u64) -> Result<Vec<RedactBlock>> {
        let count = self.entries.saturating_sub(first).min(count) as usize;
        let mut b = vec![0; count * REDACT_BLOCK_SIZE];
        self.dn.read(first * REDACT_BLOCK_SIZE as u64, &mut b)?;
        b.chunks_exact(REDACT_BLOCK_SIZE)
            .map(RedactBlock::decode)
            .collect()
    }
}

impl Dsl {
    /// Opens the redaction list in an object of the MOS.
    ///
    /// # Errors
    /// `Invalid`: it is not complete; `Damaged`: it is no redaction list.
    pub fn redaction_list(&self, object: u64) -> Result<RedactionList> {
        let dn = self.core.hold(object)?;
        let bonus = dn.bonus();
        let spill = dn.spill()?;
        let word = |i: usize| u64_at(&bonus, 8 * i);
        let (entries, count) = (word(2)?, word(3)?);
        if (word(0)?, word(1)?) != (COMPLETE, COMPLETE) {
            bail!(Invalid, "redaction list {object} is not complete");
        }
        // Guids that find no room in the bonus are in the spill block.
        let list = match &spill {
            Some(b) => &b[..],
            None => &bonus[HEADER..],
        };
        let room = (list.len() / 8) as u64;
        let size = dn.info();
        let stored = size
            .max_blkid
            .saturating_add(1)
            .saturating_mul(size.block_size as u64);
        if count > room || entries > stored / REDACT_BLOCK_SIZE as u64 {
            bail!(
                Damaged,
                "redaction list {object} of {entries} entries and {count} snapshots"
            );
        }
        let snaps = (0..count as usize).map(|i| u64_at(list, 8 * i));
        let snaps = snaps.collect::<Result<Vec<u64>>>()?;
        Ok(RedactionList { dn, snaps, entries })
    }
}
