//! Bookmarks as `zfs get` and `zfs list` show them.

use crate::registry::PoolEntry;
use base::{Error, Result};
use dsl::Dataset;
use zap::Zap;

/// A bookmark as it is shown (data format §12).
pub struct Bookmark {
    /// The words of its ZAP entry, 3 or 12.
    pub words: Vec<u64>,
    /// GUIDs of the snapshots its redaction list was made of; none without such a list.
    pub redacted_by: Option<Vec<u64>>,
}

/// Index of the object of the redaction list among the words of a bookmark.
const REDACTION_OBJECT: usize = 3;
/// Words of a redaction list before its GUIDs; the last of them is their number.
const REDACTION_HEAD: usize = 4;

/// GUIDs of the snapshots a redaction list was made of: in its bonus, or in a spill block.
fn redacted_by(entry: &PoolEntry, object: u64) -> Result<Vec<u64>> {
    let dn = entry.pool.dsl().mos().hold(object)?;
    let bonus = dn.bonus();
    let spill = dn.spill()?;
    let bytes: &[u8] = spill.as_ref().map_or(&bonus[..], |b| &b[..]);
    let words: Vec<u64> = bytes
        .chunks_exact(8)
        .map(|w| u64::from_le_bytes(w.try_into().unwrap_or_default()))
        .collect();
    let count = words.get(REDACTION_HEAD - 1).copied().unwrap_or(0);
    let guids = words.get(REDACTION_HEAD..).unwrap_or_default();
    match usize::try_from(count).ok().and_then(|n| guids.get(..n)) {
        Some(list) => Ok(list.to_vec()),
        None => Err(Error::damaged(format!(
            "redaction list {object}: {count} snapshots"
        ))),
    }
}

/// Bookmarks of a head, oldest first (data format §12).
pub fn bookmarks(entry: &PoolEntry, head: &Dataset) -> Result<Vec<(String, Bookmark)>> {
    let mos = entry.pool.dsl().mos();
    let dn = mos.hold(head.object())?;
    if dn.info().obj_type != disk::ObjType::ZAP_METADATA {
        return Ok(Vec::new());
    }
    let Some(map) = Zap::new(&dn).get(disk::mos_keys::BOOKMARKS)? else {
        return Ok(Vec::new());
    };
    let map = mos.hold(map)?;
    let mut out = Vec::new();
    for e in Zap::new(&map).iter() {
        let e = e?;
        let words = e.value.ints();
        let list = words.get(REDACTION_OBJECT).copied().filter(|o| *o != 0);
        let redacted_by = list.map(|o| redacted_by(entry, o)).transpose()?;
        out.push((e.text(), Bookmark { words, redacted_by }));
    }
    out.sort_by(|a, b| (a.1.words.get(1), &a.0).cmp(&(b.1.words.get(1), &b.0)));
    Ok(out)
}
