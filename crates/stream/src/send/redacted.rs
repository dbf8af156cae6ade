//! A cursor through a redaction list that follows a traversal.

use base::Result;
use disk::dsl::RedactBlock;
use dsl::RedactionList;
use std::sync::Arc;

/// Entries read together.
const CHUNK: u64 = 4096;

/// A place in a redaction list. Only moves forward.
pub(super) struct Cursor {
    list: Arc<RedactionList>,
    /// Entries read and not passed yet, the first one last.
    chunk: Vec<RedactBlock>,
    /// First entry behind the chunk.
    next: u64,
    /// Blocks passed of the current entry.
    within: u64,
}

impl Cursor {
    pub fn new(list: Arc<RedactionList>) -> Cursor {
        Cursor {
            list,
            chunk: Vec::new(),
            next: 0,
            within: 0,
        }
    }

    fn current(&mut self) -> Result<Option<RedactBlock>> {
        if self.chunk.is_empty() {
            self.chunk = self.list.read(self.next, CHUNK)?;
            self.next += self.chunk.len() as u64;
            self.chunk.reverse();
        }
        Ok(self.chunk.last().copied())
    }

    fn pass(&mut self) {
        self.chunk.pop();
        self.within = 0;
    }

    /// Whether a block (object, number) is in the list. The cursor moves there.
    pub fn contains(&mut self, at: (u64, u64)) -> Result<bool> {
        while let Some(e) = self.current()? {
            let end = e.blkid.saturating_add(e.count);
            if (e.object, end) > at && e.object == at.0 {
                return Ok(e.blkid <= at.1);
            }
            if e.object > at.0 {
                return Ok(false);
            }
            self.pass();
        }
        Ok(false)
    }

    /// The first run of blocks of the list that has a part at or behind a place (object, number) and in front of the
    /// block `end` of the same object: first block, and how many.
    pub fn run(&mut self, at: (u64, u64), end: u64) -> Result<Option<(u64, u64)>> {
        while let Some(e) = self.current()? {
            let e_end = e.blkid.saturating_add(e.count);
            if e.object < at.0 || e.object == at.0 && e_end <= at.1 {
                self.pass();
                continue;
            }
            if e.object > at.0 || e.blkid >= end {
                return Ok(None);
            }
            let first = e.blkid.max(at.1);
            return Ok(Some((first, e_end.min(end) - first)));
        }
        Ok(None)
    }

    /// The next block of the list, if it is in front of a place.
    pub fn take_before(&mut self, up_to: (u64, u64)) -> Result<Option<(u64, u64)>> {
        while let Some(e) = self.current()? {
            if self.within >= e.count {
                self.pass();
                continue;
            }
            let at = (e.object, e.blkid.saturating_add(self.within));
            if at >= up_to {
                return Ok(None);
            }
            self.within += 1;
            return Ok(Some(at));
        }
        Ok(None)
    }
}
