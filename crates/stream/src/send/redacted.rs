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

    /// Moves to the first block of the list at or behind a place (object, number).
    pub fn pass_to(&mut self, at: (u64, u64)) -> Result<()> {
        while let Some(e) = self.current()? {
            if (e.object, e.blkid.saturating_add(e.count)) > at && self.within < e.count {
                if e.object == at.0 {
                    self.within = self.within.max(at.1.saturating_sub(e.blkid));
                }
                return Ok(());
            }
            self.chunk.pop();
            self.within = 0;
        }
        Ok(())
    }

    /// The blocks of the list that follow one another from where the cursor is, in front of a place: the cursor stays.
    pub fn peek(&mut self, up_to: (u64, u64)) -> Result<Option<Run>> {
        self.pass_to((0, 0))?;
        let Some(e) = self.current()? else {
            return Ok(None);
        };
        let first = e.blkid.saturating_add(self.within);
        if (e.object, first) >= up_to {
            return Ok(None);
        }
        let end = e.blkid.saturating_add(e.count);
        let end = if e.object == up_to.0 {
            end.min(up_to.1)
        } else {
            end
        };
        Ok(Some(Run {
            object: e.object,
            first,
            count: end - first,
            block_size: e.block_size,
        }))
    }
}

/// Blocks of a list that follow one another.
pub(super) struct Run {
    pub object: u64,
    pub first: u64,
    pub count: u64,
    /// Bytes.
    pub block_size: u64,
}
