//! Batches on io_uring. One ring serves one batch at a time; rings are kept for the next batch.

use crate::aligned::Aligned;
use crate::batch::{gather, give_up, in_place, scatter, Cells, Piece, Vector};
use crate::timing::Timing;
use io_uring::{opcode, types, IoUring, Probe};
use std::io;
use std::os::fd::RawFd;
use std::sync::{Mutex, OnceLock, PoisonError};

/// Transfers in flight per ring, each with a bounce buffer of at most one piece if it needs one.
const SLOTS: usize = 32;
/// Idle rings kept; more than this many concurrent batches make and drop their own.
const KEEP: usize = 4;

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

/// Whether io_uring may be used here; asked once. Containers often forbid it, and kernels before
/// 5.6 lack plain read and write.
fn available() -> bool {
    static YES: OnceLock<bool> = OnceLock::new();
    *YES.get_or_init(|| {
        let probe = || -> io::Result<bool> {
            let ring = IoUring::new(4)?;
            let mut probe = Probe::new();
            ring.submitter().register_probe(&mut probe)?;
            Ok(probe.is_supported(opcode::Read::CODE) && probe.is_supported(opcode::Write::CODE))
        };
        probe().unwrap_or(false)
    })
}

static IDLE: Mutex<Vec<Ring>> = Mutex::new(Vec::new());

/// Ends the process if dropped: unwinding while the kernel owns our buffers must not free them.
struct NoUnwind;
impl Drop for NoUnwind {
    fn drop(&mut self) {
        std::process::abort();
    }
}

/// Runs all pieces, from and to where their bytes are if that is aligned to `align`, otherwise
/// copying through bounce buffers; `failed(piece, error)` is called for each that did not succeed.
/// Returns false, having done nothing, when io_uring cannot be used.
pub fn run(
    fd: RawFd,
    pieces: &[Piece],
    cells: &Cells,
    align: usize,
    timing: &Timing,
    failed: &mut dyn FnMut(usize, io::Error),
) -> bool {
    if !available() {
        return false;
    }
    let idle = IDLE.lock().unwrap_or_else(PoisonError::into_inner).pop();
    let mut ring = match idle {
        Some(r) => r,
        // Running out of locked memory or files is no reason to fail: threads can do it.
        None => match IoUring::new(2 * SLOTS as u32) {
            Ok(uring) => Ring {
                uring,
                slots: Vec::new(),
            },
            Err(_) => return false,
        },
    };
    let guard = NoUnwind;
    let healthy = ring.run(fd, pieces, cells, align, timing, failed);
    std::mem::forget(guard);
    if healthy {
        let mut idle = IDLE.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < KEEP {
            idle.push(ring);
        }
    } else {
        // The kernel may still write into the buffers: they are given up, not freed.
        std::mem::forget(ring);
    }
    true
}

impl Ring {
    /// Returns false if the ring broke with transfers in flight.
    fn run(
        &mut self,
        fd: RawFd,
        pieces: &[Piece],
        cells: &Cells,
        align: usize,
        timing: &Timing,
        failed: &mut dyn FnMut(usize, io::Error),
    ) -> bool {
        let mut free: Vec<usize> = (0..self.slots.len()).rev().collect();
        let mut next = 0;
        let mut busy = 0;
        loop {
            while next < pieces.len() && busy < SLOTS {
                let piece = &pieces[next];
                let s = match free.pop() {
                    Some(s) => s,
                    None => {
                        self.slots.push(Slot {
                            vectors: Vec::new(),
                            buf: None,
                            piece: 0,
                            done: 0,
                            retries: 0,
                        });
                        self.slots.len() - 1
                    }
                };
                let slot = &mut self.slots[s];
                (slot.piece, slot.done, slot.retries) = (next, 0, 0);
                slot.vectors = in_place(cells, piece, align).unwrap_or_default();
                if slot.vectors.is_empty() {
                    slot.copying(cells, piece);
                }
                timing.started(next);
                if !self.push(fd, s, pieces) {
                    return self.broken(&free, pieces, cells, next + 1, failed);
                }
                next += 1;
                busy += 1;
            }
            if busy == 0 {
                return true;
            }
            match self.uring.submit_and_wait(1) {
                Ok(_) => {}
                Err(e) => match e.raw_os_error() {
                    Some(libc::EINTR | libc::EAGAIN | libc::EBUSY) => {}
                    _ => return self.broken(&free, pieces, cells, next, failed),
                },
            }
            let done: Vec<(usize, i32)> = self
                .uring
                .completion()
                .map(|c| (c.user_data() as usize, c.result()))
                .collect();
            for (s, result) in done {
                let slot = &mut self.slots[s];
                let piece = &pieces[slot.piece];
                let moved = usize::try_from(result).unwrap_or(0);
                let outcome = match -result {
                    libc::EINTR | libc::EAGAIN if slot.retries < 100 => {
                        slot.retries += 1;
                        None
                    }
                    _ if slot.done + moved >= piece.len => Some(Ok(())),
                    // In place it is all or nothing: where it can go on depends on sectors and on
                    // how the memory is aligned, and what the kernel says of that may be wrong. A
                    // buffer can be transferred from any sector on.
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
                };
                match outcome {
                    None => {
                        if !self.push(fd, s, pieces) {
                            return self.broken(&free, pieces, cells, next, failed);
                        }
                    }
                    Some(r) => {
                        timing.ended(slot.piece);
                        match r {
                            Ok(()) if !piece.write && slot.vectors.is_empty() => {
                                scatter(cells, piece, slot.bounce(piece.len));
                            }
                            Ok(()) => {}
                            Err(e) => failed(slot.piece, e),
                        }
                        free.push(s);
                        busy -= 1;
                    }
                }
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
        free: &[usize],
        pieces: &[Piece],
        cells: &Cells,
        next: usize,
        failed: &mut dyn FnMut(usize, io::Error),
    ) -> bool {
        let error = || io::Error::from_raw_os_error(libc::EIO);
        for (s, slot) in self.slots.iter().enumerate() {
            if !free.contains(&s) {
                if !slot.vectors.is_empty() {
                    give_up(cells, &pieces[slot.piece]);
                }
                failed(slot.piece, error());
            }
        }
        (next..pieces.len()).for_each(|i| failed(i, error()));
        false
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
