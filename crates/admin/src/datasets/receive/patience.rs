//! The input of a receive, which is not waited for without end: whoever is silent holds a place among the daemon's
//! connections.

use crate::cancel;
use env::Clock;
use std::io::{self, IoSliceMut, Read};
use std::sync::Arc;

/// Seconds in which the first record of a stream has to come.
pub(super) const FIRST: u64 = 60;
/// Seconds of silence in the middle of a stream.
pub(super) const SILENCE: u64 = 600;
const SECOND: u64 = 1_000_000_000;

/// An input of a caller other than the owner; the owner is waited for as long as it takes.
pub(super) struct Patient<R> {
    from: R,
    clock: Arc<dyn Clock>,
    limited: bool,
    /// Bytes of the first record that have not come, and when they have to be there.
    missing: usize,
    deadline: u64,
}

impl<R: Read> Patient<R> {
    /// `first`: length of the first record, bytes.
    pub(super) fn new(from: R, clock: Arc<dyn Clock>, limited: bool, first: usize) -> Patient<R> {
        Patient {
            from,
            limited,
            missing: first,
            deadline: clock.monotonic_ns().saturating_add(FIRST * SECOND),
            clock,
        }
    }

    fn wait(&mut self, read: impl FnOnce(&mut R) -> io::Result<usize>) -> io::Result<usize> {
        if !self.limited {
            return read(&mut self.from);
        }
        let now = self.clock.monotonic_ns();
        let (moment, seconds) = match self.missing {
            0 => (now.saturating_add(SILENCE * SECOND), SILENCE),
            _ => (self.deadline, FIRST),
        };
        let until = cancel::until(&self.clock, moment);
        let done = read(&mut self.from);
        drop(until);
        match done {
            Ok(n) => {
                self.missing = self.missing.saturating_sub(n);
                Ok(n)
            }
            Err(_) if self.clock.monotonic_ns() > moment => {
                let text = format!("the stream was silent for {seconds} seconds");
                Err(io::Error::new(io::ErrorKind::TimedOut, text))
            }
            Err(e) => Err(e),
        }
    }
}

impl<R: Read> Read for Patient<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.wait(|from| from.read(buf))
    }

    fn read_vectored(&mut self, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        self.wait(|from| from.read_vectored(bufs))
    }
}
