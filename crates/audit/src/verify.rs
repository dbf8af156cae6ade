//! Reading and verifying the blocks that were visited, in batches on all cores.

use crate::{At, Audit, Finding, Sink, Verify};
use base::sync::MutexExt;
use base::Error;
use disk::Dva;
use std::sync::Mutex;

/// Blocks verified together.
pub(crate) const BATCH: usize = 256;
/// Unreadable blocks remembered: those that the traversal can meet between two batches.
const REMEMBERED: usize = 4 * BATCH;

impl Audit<'_> {
    /// A block, or one copy of it, cannot be read. What was said before is not said again.
    pub(crate) fn unreadable(&mut self, at: At, copy: Option<usize>, error: Error, sink: Sink) {
        if self.unreadable.contains(&(at, copy)) {
            return;
        }
        if self.unreadable.len() == REMEMBERED {
            self.unreadable.pop_front();
        }
        self.unreadable.push_back((at, copy));
        sink(Finding::Unreadable { at, copy, error });
    }

    pub(crate) fn verify_waiting(&mut self, sink: Sink) {
        let list = std::mem::take(&mut self.waiting);
        let errors = Mutex::new(Vec::new());
        let zio = self.pool.zio();
        let copies = self.verify == Verify::Copies;
        self.pool.env.cpu.par_io(list.len(), &|i| {
            let Some((bp, _)) = list.get(i) else {
                return;
            };
            if let Err(e) = zio.read_raw(bp) {
                errors.acquire().push((i, None, e));
                return;
            }
            if !copies || bp.is_gang() {
                return;
            }
            for copy in 0..bp.dvas().len() {
                let mut one = *bp;
                one.set_dva(0, bp.dva(copy));
                one.set_dva(1, Dva::default());
                if !bp.is_encrypted() {
                    one.set_dva(2, Dva::default());
                }
                if let Err(e) = zio.read_raw(&one) {
                    errors.acquire().push((i, Some(copy), e));
                }
            }
        });
        let mut errors = errors.into_inner().unwrap_or_else(|e| e.into_inner());
        errors.sort_by_key(|(i, copy, _)| (*i, *copy));
        for (i, copy, e) in errors {
            if let Some((_, at)) = list.get(i) {
                self.unreadable(*at, copy, e, sink);
            }
        }
    }
}
