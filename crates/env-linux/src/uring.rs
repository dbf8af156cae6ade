//! Batches on io_uring.
//!
//! 1. A ring belongs to one thread and is never handed to another: the kernel's workers for what
//!    cannot be done without blocking belong to the thread that submits, and what they know of work
//!    that excludes other work belongs to the ring.
//! 2. The wait for completions has a limit ([`LIMIT`]). Beyond it the device and the oldest offset
//!    are reported, the transfers are cancelled, and the pieces the kernel has let go of are handed
//!    back to be done by threads. The caller uses no io_uring on that device afterwards.
//! 3. Memory of a transfer is neither freed nor touched before its completion was seen. A transfer
//!    that cannot be cancelled is under way in the device, and is waited for like one of a thread.
//!
//! Regular files are left to threads unless they are asked for ([`crate::disk::IoUring`]): writes to
//! them often end up with the kernel's workers, where some were never begun.

use crate::aligned::Aligned;
use crate::batch::{gather, give_up, in_place, scatter, Cells, Piece, Vector};
use crate::timing::Timing;
use io_uring::{opcode, types, IoUring, Probe};
use std::cell::Cell;
use std::io;
use std::os::fd::RawFd;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Transfers in flight per ring, each with a bounce buffer of at most one piece if it needs one.
const SLOTS: usize = 32;
/// Bytes of bounce buffers that a thread keeps between batches.
const KEEP: usize = 1 << 20;
/// How long none of a ring's transfers may complete before they are cancelled. It may be short: only
/// what the kernel has not begun is cancelled, and threads do it then.
pub const LIMIT: Duration = Duration::from_secs(20);
/// Marks the completion of a cancellation.
const CANCEL: u64 = 1 << 32;

/// What pieces are transferred with.
pub struct Target<'a> {
    /// Descriptor of the device.
    pub fd: RawFd,
    /// Path of the device, for reports.
    pub name: &'a str,
    /// Memory and lengths that are multiples of this need no copy.
    pub align: usize,
    /// See [`LIMIT`].
    pub limit: Duration,
}

struct Slot {
    /// Where the bytes lie; none: in `buf`.
    vectors: Vec<Vector>,
    buf: Option<Aligned>,
    piece: usize,
    /// Bytes of `buf` that are transferred.
    done: usize,
    retries: u32,
}

impl Slot {
    /// Room for `len` bytes that direct I/O accepts; what was there stays if it is large enough.
    fn bounce(&mut self, len: usize) -> &mut [u8] {
        if self.buf.as_ref().is_none_or(|b| b.capacity() < len) {
            self.buf = None;
        }
        &mut self.buf.get_or_insert_with(|| Aligned::new(len))[..len]
    }

    /// From here on the piece is transferred through the buffer, all of it.
    fn copying(&mut self, cells: &Cells, piece: &Piece) {
        self.vectors.clear();
        self.done = 0;
        let buf = self.bounce(piece.len);
        if piece.write {
            gather(cells, piece, buf);
        }
    }
}

struct Ring {
    uring: IoUring,
    slots: Vec<Slot>,
}

thread_local! {
    static RING: Cell<Option<Box<Ring>>> = const { Cell::new(None) };
}

/// Whether io_uring may be used here; asked once. Containers often forbid it, and kernels before
/// 5.6 lack plain read and write, kernels before 5.11 the limited wait.
fn available() -> bool {
    static YES: OnceLock<bool> = OnceLock::new();
    *YES.get_or_init(|| {
        let probe = || -> io::Result<bool> {
            let ring = IoUring::new(4)?;
            let mut probe = Probe::new();
            ring.submitter().register_probe(&mut probe)?;
            let codes = [
                opcode::Read::CODE,
                opcode::Write::CODE,
                opcode::AsyncCancel::CODE,
            ];
            Ok(ring.params().is_feature_ext_arg() && codes.iter().all(|c| probe.is_supported(*c)))
        };
        probe().unwrap_or(false)
    })
}

/// Ends the process if dropped: unwinding while the kernel owns our buffers must not free them.
struct NoUnwind;
impl Drop for NoUnwind {
    fn drop(&mut self) {
        std::process::abort();
    }
}

/// Runs all pieces, from and to where their bytes are if that is aligned, otherwise copying through
/// bounce buffers; `failed(piece, error)` is called for each that did not succeed. Returns the
/// pieces that were not transferred because the ring does not work: all of them when io_uring
/// cannot be used, else those that were cancelled or not begun when the limit was reached.
pub fn run(
    target: &Target,
    pieces: &[Piece],
    cells: &Cells,
    timing: &Timing,
    failed: &mut dyn FnMut(usize, io::Error),
) -> Left {
    if !available() {
        return Left::Unused;
    }
    let mut ring = match RING.take() {
        Some(r) => r,
        // Running out of locked memory or files is no reason to fail: threads can do it.
        None => match IoUring::new(2 * SLOTS as u32) {
            Ok(uring) => Box::new(Ring {
                uring,
                slots: Vec::new(),
            }),
            Err(_) => return Left::Unused,
        },
    };
    let guard = NoUnwind;
    let end = ring.run(target, pieces, cells, timing, failed);
    std::mem::forget(guard);
    match end {
        End::Done => {
            ring.trim();
            RING.set(Some(ring));
            Left::Nothing
        }
        // All transfers have ended; whatever is wrong with the ring goes with it.
        End::Stuck(left) => Left::Stuck(left),
        End::Broken => {
            // The kernel may still write into the buffers: they are given up, not freed.
            std::mem::forget(ring);
            Left::Nothing
        }
    }
}

/// What [`run`] has not done.
#[derive(Debug, PartialEq, Eq)]
pub enum Left {
    /// Everything was transferred.
    Nothing,
    /// Everything: there is no ring to be had.
    Unused,
    /// These pieces; the ring hung and has been given up.
    Stuck(Vec<usize>),
}

enum End {
    Done,
    /// Nothing is in flight any more; these pieces have not been transferred.
    Stuck(Vec<usize>),
    /// Transfers are in flight and their completions cannot be had.
    Broken,
}

impl Ring {
    fn run(
        &mut self,
        target: &Target,
        pieces: &[Piece],
        cells: &Cells,
        timing: &Timing,
        failed: &mut dyn FnMut(usize, io::Error),
    ) -> End {
        let mut free: Vec<usize> = (0..self.slots.len()).rev().collect();
        let mut next = 0;
        // Slots whose completion was not seen.
        let mut busy: Vec<usize> = Vec::new();
        // Pieces for threads, once the limit was reached.
        let mut left: Option<Vec<usize>> = None;
        let mut since = Instant::now();
        let mut limit = target.limit;
        loop {
            while left.is_none() && next < pieces.len() && busy.len() < SLOTS {
                let piece = &pieces[next];
                let s = free.pop().unwrap_or_else(|| self.another_slot());
                let slot = &mut self.slots[s];
                (slot.piece, slot.done, slot.retries) = (next, 0, 0);
                slot.vectors = in_place(cells, piece, target.align).unwrap_or_default();
                if slot.vectors.is_empty() {
                    slot.copying(cells, piece);
                }
                timing.started(next);
                next += 1;
                if !self.push(target.fd, s, pieces) {
                    failed(next - 1, io::Error::from_raw_os_error(libc::EIO));
                    return self.broken(&busy, pieces, cells, next, failed);
                }
                busy.push(s);
            }
            if busy.is_empty() {
                return match left {
                    None => End::Done,
                    Some(mut left) => {
                        left.extend(next..pieces.len());
                        End::Stuck(left)
                    }
                };
            }
            let wait = types::Timespec::from(limit.saturating_sub(since.elapsed()));
            let wait = types::SubmitArgs::new().timespec(&wait);
            match self.uring.submitter().submit_with_args(1, &wait) {
                Ok(_) => {}
                Err(e) => match e.raw_os_error() {
                    Some(libc::ETIME | libc::EINTR | libc::EAGAIN | libc::EBUSY) => {}
                    _ => return self.broken(&busy, pieces, cells, next, failed),
                },
            }
            let done: Vec<(u64, i32)> = self
                .uring
                .completion()
                .map(|c| (c.user_data(), c.result()))
                .collect();
            if done.is_empty() && since.elapsed() >= limit {
                self.report(target, &busy, pieces, since.elapsed(), left.is_none());
                if left.is_none() {
                    left = Some(Vec::new());
                    if !busy.iter().all(|s| self.push_cancel(*s)) {
                        return self.broken(&busy, pieces, cells, next, failed);
                    }
                }
                // What is not cancelled by then is waited for, with a report now and then.
                limit = limit.saturating_mul(2);
                continue;
            }
            for (s, result) in done {
                if s & CANCEL != 0 {
                    continue;
                }
                let s = s as usize;
                (since, limit) = (Instant::now(), target.limit.max(limit));
                let ended = self.outcome(s, result, pieces, cells, left.is_some());
                let slot = &mut self.slots[s];
                let piece = &pieces[slot.piece];
                match (ended, &mut left) {
                    (None, None) => {
                        if !self.push(target.fd, s, pieces) {
                            // Its completion was seen: the kernel has let go of it.
                            busy.retain(|b| *b != s);
                            failed(self.slots[s].piece, io::Error::from_raw_os_error(libc::EIO));
                            return self.broken(&busy, pieces, cells, next, failed);
                        }
                        continue;
                    }
                    (None, Some(left)) => {
                        left.push(slot.piece);
                        busy.retain(|b| *b != s);
                        free.push(s);
                        continue;
                    }
                    (Some(Ok(())), _) if !piece.write && slot.vectors.is_empty() => {
                        scatter(cells, piece, slot.bounce(piece.len));
                    }
                    (Some(Ok(())), _) => {}
                    (Some(Err(e)), _) => failed(slot.piece, e),
                }
                timing.ended(slot.piece);
                busy.retain(|b| *b != s);
                free.push(s);
            }
        }
    }

    /// One more slot than there are.
    fn another_slot(&mut self) -> usize {
        self.slots.push(Slot {
            vectors: Vec::new(),
            buf: None,
            piece: 0,
            done: 0,
            retries: 0,
        });
        self.slots.len() - 1
    }

    /// What the completion of a slot's transfer means: the piece is transferred, or has failed. `None`: it is not over; the
    /// slot says what is left to do. `cancelled`: nothing is begun any more.
    fn outcome(
        &mut self,
        s: usize,
        result: i32,
        pieces: &[Piece],
        cells: &Cells,
        cancelled: bool,
    ) -> Option<io::Result<()>> {
        let slot = &mut self.slots[s];
        let piece = &pieces[slot.piece];
        let moved = usize::try_from(result).unwrap_or(0);
        match -result {
            _ if slot.done + moved >= piece.len => Some(Ok(())),
            // Also what a cancellation looks like.
            _ if cancelled => None,
            libc::EINTR | libc::EAGAIN if slot.retries < 100 => {
                slot.retries += 1;
                None
            }
            // In place it is all or nothing: where it can go on depends on sectors and on how the
            // memory is aligned, and what the kernel says of that may be wrong. A buffer can be
            // transferred from any sector on.
            ..=0 | libc::EINVAL if !slot.vectors.is_empty() => {
                slot.copying(cells, piece);
                None
            }
            errno @ 1.. => Some(Err(io::Error::from_raw_os_error(errno))),
            _ => match (slot.done + moved) & !511 {
                on if on > slot.done => {
                    slot.done = on;
                    None
                }
                _ => Some(Err(past_end(piece.write))),
            },
        }
    }

    /// Says that nothing has completed for so long.
    fn report(&self, t: &Target, busy: &[usize], pieces: &[Piece], time: Duration, first: bool) {
        let oldest = busy.iter().map(|s| &pieces[self.slots[*s].piece]);
        let Some(piece) = oldest.min_by_key(|p| p.offset) else {
            return;
        };
        let then = if first {
            "those the kernel has not begun are cancelled and done by threads, the others are waited \
             for; io_uring is not used on this device any more"
        } else {
            "they are under way in the device and are waited for"
        };
        tracing::warn!(
            "{}: io_uring has completed none of {} transfers for {} s, the first a {} of {} bytes \
             at {}: {then}",
            t.name,
            busy.len(),
            time.as_secs(),
            if piece.write { "write" } else { "read" },
            piece.len,
            piece.offset,
        );
    }

    /// Queues the cancellation of the transfer of slot `s`. The queue has room for twice the slots.
    fn push_cancel(&mut self, s: usize) -> bool {
        let entry = opcode::AsyncCancel::new(s as u64).build();
        // SAFETY: the entry refers to no memory.
        unsafe {
            let entry = entry.user_data(CANCEL | s as u64);
            self.uring.submission().push(&entry).is_ok()
        }
    }

    /// Frees bounce buffers beyond what a thread keeps.
    fn trim(&mut self) {
        let mut kept = 0;
        for slot in &mut self.slots {
            slot.vectors = Vec::new();
            kept += slot.buf.as_ref().map_or(0, Aligned::capacity);
            if kept > KEEP {
                slot.buf = None;
            }
        }
    }

    /// Queues what is left of the piece in slot `s`.
    fn push(&mut self, fd: RawFd, s: usize, pieces: &[Piece]) -> bool {
        let slot = &mut self.slots[s];
        let piece = &pieces[slot.piece];
        let (offset, len) = (
            piece.offset + slot.done as u64,
            (piece.len - slot.done) as u32,
        );
        let fd = types::Fd(fd);
        let entry = if slot.vectors.is_empty() {
            let done = slot.done;
            let at = slot.bounce(piece.len)[done..].as_mut_ptr();
            match piece.write {
                true => opcode::Write::new(fd, at, len).offset(offset).build(),
                false => opcode::Read::new(fd, at, len).offset(offset).build(),
            }
        } else {
            // A vector is what the kernel calls an iovec; it is read when the entry is submitted.
            let (at, n) = (slot.vectors.as_ptr().cast(), slot.vectors.len() as u32);
            match piece.write {
                true => opcode::Writev::new(fd, at, n).offset(offset).build(),
                false => opcode::Readv::new(fd, at, n).offset(offset).build(),
            }
        };
        let entry = entry.user_data(s as u64);
        // SAFETY: a bounce buffer belongs to the slot, which is neither freed nor touched until its
        // completion was seen (or is leaked together with the ring). Vectors point into operations
        // that the caller of `run` lent it: nobody looks at them before `run` is over, and the
        // memory of those that are still under way then has been given up. `fd` is open for the call.
        unsafe { self.uring.submission().push(&entry).is_ok() }
    }

    /// Reports every piece that is in flight or not begun as failed.
    fn broken(
        &mut self,
        busy: &[usize],
        pieces: &[Piece],
        cells: &Cells,
        next: usize,
        failed: &mut dyn FnMut(usize, io::Error),
    ) -> End {
        let error = || io::Error::from_raw_os_error(libc::EIO);
        for s in busy {
            let slot = &self.slots[*s];
            if !slot.vectors.is_empty() {
                give_up(cells, &pieces[slot.piece]);
            }
            failed(slot.piece, error());
        }
        (next..pieces.len()).for_each(|i| failed(i, error()));
        End::Broken
    }
}

/// The error of a transfer that moved nothing.
pub fn past_end(write: bool) -> io::Error {
    if write {
        io::Error::from_raw_os_error(libc::ENOSPC)
    } else {
        io::Error::new(
            io::ErrorKind::UnexpectedEof,
            "read past the end of the device",
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::plan;
    use env::Op;
    use std::io::{PipeReader, Read as _};
    use std::os::fd::AsRawFd;
    use std::sync::Mutex;

    /// Reads of a pipe: the kernel completes those for which there are bytes, and no others.
    fn read_pipe(pipe: &PipeReader, n: u64) -> (Left, Vec<usize>) {
        let read = |i: u64| Op::Read {
            offset: i * 8192,
            buf: vec![0; 4096],
        };
        let ops: Vec<Op> = (0..n).map(read).collect();
        let pieces = plan(&ops);
        assert_eq!(pieces.len() as u64, n);
        let cells: Vec<Mutex<Op>> = ops.into_iter().map(Mutex::new).collect();
        let target = Target {
            fd: pipe.as_raw_fd(),
            name: "a pipe",
            align: 4096,
            limit: Duration::from_millis(50),
        };
        let mut errors = Vec::new();
        let timing = Timing::new(None, &pieces, Instant::now());
        let left = run(&target, &pieces, &cells, &timing, &mut |i, _| {
            errors.push(i);
        });
        (left, errors)
    }

    #[test]
    fn transfers_that_never_complete_are_cancelled_and_handed_back() {
        if !available() {
            println!("skipped: no io_uring here");
            return;
        }
        let (mut pipe, mut to) = std::io::pipe().unwrap();
        // More than are in flight at once: those not begun are handed back, too.
        let (left, errors) = read_pipe(&pipe, 40);
        let Left::Stuck(mut left) = left else {
            panic!("{left:?}")
        };
        left.sort_unstable();
        assert_eq!(left, (0..40).collect::<Vec<_>>());
        assert!(errors.is_empty(), "{errors:?}");
        // The kernel has really let go: nobody takes these bytes away.
        io::Write::write_all(&mut to, &[5; 4096]).unwrap();
        let mut bytes = vec![0; 4096];
        pipe.read_exact(&mut bytes).unwrap();
        assert!(bytes.iter().all(|b| *b == 5));
        // The ring that hung is gone; the next one works.
        io::Write::write_all(&mut to, &[6; 8192]).unwrap();
        assert_eq!(read_pipe(&pipe, 2), (Left::Nothing, vec![]));
        // What completed before the limit stays done.
        io::Write::write_all(&mut to, &[7; 8192]).unwrap();
        let (left, errors) = read_pipe(&pipe, 5);
        assert!(
            matches!(left, Left::Stuck(l) if l.len() == 3),
            "two are done"
        );
        assert!(errors.is_empty(), "{errors:?}");
    }
}
