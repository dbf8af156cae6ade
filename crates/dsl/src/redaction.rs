//! Redaction lists: the blocks that redacted streams leave out (data format §12).

use crate::core::{REDACTION_BOOKMARKS, REDACTION_SPILL};
use crate::{BookmarkSource, Dataset, Dsl};
use base::{bail, Error, Kind, Result};
use disk::bytes::{put_u64, u64_at};
use disk::dsl::{RedactBlock, REDACT_BLOCK_SIZE};
use disk::ObjType;
use dmu::{Dnode, NewObject, Tx};
use std::sync::Arc;

/// Bytes of the header, before the guids.
const HEADER: usize = 32;
/// Bytes of a block of the list.
const BLOCK: usize = 128 << 10;
/// Type of the list and of its bonus.
const LIST: ObjType = ObjType(0xC3);
/// Room for the bonus in the smallest dnode with one block pointer: guids for which there is none are in a spill block.
const BONUS_MAX: usize = 320;
/// Most redaction snapshots: a spill block has at most 128 KiB.
const SNAPS_MAX: usize = BLOCK / 8;
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
    /// Guids of the snapshots a redaction list was made of, whether it is complete or not: in its bonus, or in a spill block.
    ///
    /// # Errors
    /// `Kind::Damaged`: there are fewer guids than it says; those of reading the MOS.
    pub fn redacted_by(&self, object: u64) -> Result<Vec<u64>> {
        let dn = self.core.hold(object)?;
        let bonus = dn.bonus();
        let spill = dn.spill()?;
        let bytes: &[u8] = spill.as_ref().map_or(&bonus[..], |b| &b[..]);
        let words: Vec<u64> = bytes
            .chunks_exact(8)
            .map(|w| u64::from_le_bytes(w.try_into().unwrap_or_default()))
            .collect();
        let count = words.get(HEADER / 8 - 1).copied().unwrap_or(0);
        let guids = words.get(HEADER / 8..).unwrap_or_default();
        match usize::try_from(count).ok().and_then(|n| guids.get(..n)) {
            Some(list) => Ok(list.to_vec()),
            None => Err(Error::damaged(format!(
                "redaction list {object}: {count} snapshots"
            ))),
        }
    }

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
            None => bonus.get(HEADER..).unwrap_or_default(),
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

    /// Whether a redaction bookmark `name` of a snapshot can be made with so many redaction snapshots.
    ///
    /// # Errors
    /// `Unsupported`: the feature `redaction_bookmarks` is not enabled; `ArgTooBig`: too many snapshots for the features
    /// that are enabled; otherwise those of [`Dsl::check_bookmark`].
    pub fn check_redaction(
        &self,
        head: &Arc<Dataset>,
        name: &str,
        snap: &Arc<Dataset>,
        snaps: usize,
    ) -> Result<()> {
        let features = &self.core.features;
        if !features.is_enabled(REDACTION_BOOKMARKS) {
            bail!(Unsupported, "redaction bookmarks feature not enabled");
        }
        let spills = HEADER + 8 * snaps > BONUS_MAX;
        if snaps > SNAPS_MAX || spills && !features.is_enabled(REDACTION_SPILL) {
            return Err(Error::new(
                Kind::ArgTooBig,
                "too many redaction snapshots specified",
            ));
        }
        self.check_bookmark(head, name, &BookmarkSource::Snapshot(snap.clone()))
    }

    /// Makes a bookmark of a snapshot with the list of what redacted streams of it leave out. `snaps` are the guids of the
    /// redaction snapshots, `entries` is in order of objects and blocks.
    ///
    /// # Errors
    /// Those of [`check_redaction`](Self::check_redaction).
    pub fn create_redaction(
        &self,
        tx: &Tx,
        head: &Arc<Dataset>,
        name: &str,
        snap: &Arc<Dataset>,
        (snaps, entries): (&[u64], &[RedactBlock]),
    ) -> Result<()> {
        let core = &self.core;
        core.need_syncing(tx)?;
        self.check_redaction(head, name, snap, snaps.len())?;
        core.must(self.store_redaction(tx, head, name, snap, (snaps, entries)))
    }

    fn store_redaction(
        &self,
        tx: &Tx,
        head: &Arc<Dataset>,
        name: &str,
        snap: &Arc<Dataset>,
        (snaps, entries): (&[u64], &[RedactBlock]),
    ) -> Result<()> {
        let core = &self.core;
        let mut guids = vec![0; 8 * snaps.len()];
        for (i, guid) in snaps.iter().enumerate() {
            put_u64(&mut guids, 8 * i, *guid);
        }
        let spills = HEADER + guids.len() > BONUS_MAX;
        let mut bonus = vec![0; HEADER];
        put_u64(&mut bonus, 0, COMPLETE);
        put_u64(&mut bonus, 8, COMPLETE);
        put_u64(&mut bonus, 16, entries.len() as u64);
        put_u64(&mut bonus, 24, snaps.len() as u64);
        if !spills {
            bonus.extend_from_slice(&guids);
        }
        let dn = core.mos.alloc(
            tx,
            &NewObject {
                obj_type: LIST,
                bonus_type: LIST,
                bonus,
                block_size: BLOCK,
                spills,
                ..NewObject::default()
            },
        )?;
        if spills {
            guids.resize(guids.len().next_multiple_of(base::SECTOR as usize), 0);
            dn.set_spill(tx, Some(guids))?;
            core.features.activate(tx, REDACTION_SPILL, 1)?;
        }
        for (i, part) in entries.chunks(BLOCK / REDACT_BLOCK_SIZE).enumerate() {
            let bytes: Vec<u8> = part.iter().flat_map(RedactBlock::encode).collect();
            dn.write(tx, (i * BLOCK) as u64, &bytes[..])?;
        }
        core.features.activate(tx, REDACTION_BOOKMARKS, 1)?;
        self.mark_redaction(tx, head, name, snap, dn.object())
    }
}
