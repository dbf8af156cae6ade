//! Copying between two file systems of a view.

use crate::answers::WriteHow;
use crate::caller::Caller;
use crate::door::Door;
use crate::view::{View, Within};
use base::Result;

/// Bytes that are copied from one file system to another by one request, at most.
const MOST_COPIED: u64 = 8 << 20;
/// Bytes that are copied at a time.
const PIECE: u64 = 1 << 20;

impl<M: Within> View<M> {
    /// Copies from one file system to another; how many bytes.
    ///
    /// # Errors
    /// Those of reading and writing, if nothing was copied.
    pub fn copy_between(
        by: &dyn Caller,
        (from, node, offset): (&Door, u64, u64),
        (to, target, to_offset): (&Door, u64, u64),
        length: u64,
    ) -> Result<u64> {
        let length = length.min(MOST_COPIED);
        let mut copied = 0;
        while copied < length {
            let size = PIECE.min(length - copied) as usize;
            let mut piece = Vec::with_capacity(size);
            let mut put =
                |b: &base::Block, r: std::ops::Range<usize>| piece.extend_from_slice(&b[r]);
            let read = from.read(by, node, (offset + copied, size), false, &mut put);
            let written = read.and_then(|()| match piece.is_empty() {
                true => Ok(0),
                false => to.write(
                    by,
                    target,
                    to_offset + copied,
                    piece.as_slice().into(),
                    WriteHow::default(),
                ),
            });
            match written {
                Ok(0) => break,
                Ok(n) => copied += n as u64,
                Err(_) if copied > 0 => break,
                Err(e) => return Err(e),
            }
        }
        Ok(copied)
    }
}
