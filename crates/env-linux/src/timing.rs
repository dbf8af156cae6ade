//! When the pieces of a batch were sent and ended.

use crate::batch::Piece;
use env::{Request, Watch};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

/// In place of the time of a piece that has not been sent.
const NOT_SENT: u64 = u64::MAX;

/// Takes the times of the pieces of one batch and tells who watches it. Costs nothing if nobody does.
pub struct Timing<'a> {
    watch: Option<&'a dyn Watch>,
    pieces: &'a [Piece],
    begin: Instant,
    /// When each piece was sent, nanoseconds after the beginning.
    sent: Vec<AtomicU64>,
}

impl<'a> Timing<'a> {
    /// Times of `pieces`, counted from `begin`; nothing is noted without a watch.
    pub fn new(watch: Option<&'a dyn Watch>, pieces: &'a [Piece], begin: Instant) -> Timing<'a> {
        let mut sent = Vec::new();
        if let Some(w) = watch {
            sent.resize_with(pieces.len(), || AtomicU64::new(NOT_SENT));
            for write in [false, true] {
                let n = pieces.iter().filter(|p| p.write == write).count();
                if n > 0 {
                    w.queued(write, n as u64);
                }
            }
        }
        Timing {
            watch,
            pieces,
            begin,
            sent,
        }
    }

    fn now(&self) -> u64 {
        u64::try_from(self.begin.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Piece `n` is about to be sent. A piece that is sent again has been waiting since the first time.
    pub fn started(&self, n: usize) {
        if let (Some(w), Some(sent)) = (self.watch, self.sent.get(n)) {
            let first = sent.compare_exchange(NOT_SENT, self.now(), Relaxed, Relaxed);
            if first.is_ok() {
                w.started(self.pieces[n].write);
            }
        }
    }

    /// Piece `n` ended.
    pub fn ended(&self, n: usize) {
        if let (Some(w), Some(sent)) = (self.watch, self.sent.get(n)) {
            let piece = &self.pieces[n];
            let waited = sent.load(Relaxed);
            w.ended(&Request {
                write: piece.write,
                bytes: piece.len as u64,
                op: piece.parts.first().map_or(0, |p| p.op),
                merged: piece.parts.len() > 1,
                times: Some((waited, self.now().saturating_sub(waited))),
            });
        }
    }
}
