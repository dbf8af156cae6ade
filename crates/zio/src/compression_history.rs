//! What compressing the last blocks of an object was good for, so that a stream that does not compress is not
//! compressed in vain.
//!
//! After [`FAILED`] blocks in a row that did not shrink, samples of a block decide whether the whole is
//! tried. Every [`AGAIN`]th block is tried whatever its samples say, and one that shrinks ends the run. So a file
//! that begins with noise and goes on with text is compressed from its first block of text on, as a rule, and after
//! [`AGAIN`] blocks at the latest.
//!
//! The history decides whether compressing is tried, never what is stored: a block that was tried is stored by the
//! same rule as ever. It is in memory only, and begins anew with each hold of the object.

use codec::compress;
use disk::Compression;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Blocks in a row that did not shrink, before samples are asked.
const FAILED: u32 = 2;
/// One block in so many is tried without asking.
const AGAIN: u32 = 32;

/// The history of one object. Blocks of it may be prepared in parallel: the count is then roughly right.
#[derive(Debug, Default)]
pub struct CompressionHistory(AtomicU32);

impl CompressionHistory {
    /// Whether compressing the next block is worth it.
    pub(crate) fn worth_trying(&self, alg: Compression, data: &[u8]) -> bool {
        let n = self.0.load(Relaxed);
        n < FAILED || n % AGAIN == AGAIN - 1 || compress::sample_shrinks(alg, data)
    }

    /// A block shrank, or did not, or was not tried.
    pub(crate) fn note(&self, shrank: bool) {
        match shrank {
            // Mostly it is 0 already, and then the cache line stays shared.
            true if self.0.load(Relaxed) == 0 => {}
            true => self.0.store(0, Relaxed),
            false => {
                // Beginning anew after 2³² blocks does no harm.
                self.0.fetch_add(1, Relaxed);
            }
        }
    }
}
