//! Bookmarks as `zfs get` and `zfs list` show them.

use crate::registry::PoolEntry;
use base::Result;
use dsl::Dataset;

/// A bookmark as it is shown (data format §12).
pub struct Bookmark {
    /// The words of its ZAP entry, 3 or 12.
    pub words: Vec<u64>,
    /// GUIDs of the snapshots its redaction list was made of; none without such a list.
    pub redacted_by: Option<Vec<u64>>,
}

/// Index of the object of the redaction list among the words of a bookmark.
const REDACTION_OBJECT: usize = 3;

/// Bookmarks of a head, oldest first (data format §12).
pub fn bookmarks(entry: &PoolEntry, head: &Dataset) -> Result<Vec<(String, Bookmark)>> {
    let mut out = Vec::new();
    for (name, words) in head.bookmark_words()? {
        let list = words.get(REDACTION_OBJECT).copied().filter(|o| *o != 0);
        let redacted_by = list.map(|o| entry.pool.dsl().redacted_by(o)).transpose()?;
        out.push((name, Bookmark { words, redacted_by }));
    }
    out.sort_by(|a, b| (a.1.words.get(1), &a.0).cmp(&(b.1.words.get(1), &b.0)));
    Ok(out)
}
