//! Batches on io_uring. One ring serves one batch at a time; rings are kept for the next batch.

use crate::aligned::Aligned;
use crate::batch::{gather, scatter, Cells, Piece};
use io_uring::{opcode, types, IoUring, Probe};
use std::io;
use std::os::fd::RawFd;
use std::sync::{Mutex, OnceLock, PoisonError};

/// Transfers in flight per ring, each with a bounce buffer of at most one piece.
const SLOTS: usize = 32;
/// Idle rings kept; more than this many concurrent batches make and drop their own.
const KEEP: usize = 4;

struct Slot {
    buf: Aligned,
    piece: usize,
    done: usize,
    retries: u32,
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

/// Runs all pieces, copying through bounce buffers; `failed(piece, error)` is called for each that
/// did not succeed. Returns false, having done nothing, when io_uring cannot be used.
pub fn run(
    fd: RawFd,
    pieces: &[Piece],
    cells: &Cells,
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
    let healthy = ring.run(fd, pieces, cells, failed);
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
                        let buf = Aligned::new(piece.len);
                        self.slots.push(Slot {
                            buf,
                            piece: 0,
                            done: 0,
                            retries: 0,
                        });
                        self.slots.len() - 1
                    }
                };
                let slot = &mut self.slots[s];
                if slot.buf.capacity() < piece.len {
                    slot.buf = Aligned::new(piece.len);
                }
                (slot.piece, slot.done, slot.retries) = (next, 0, 0);
                if piece.write {
                    gather(cells, piece, &mut slot.buf[..piece.len]);
                }
                if !self.push(fd, s, pieces) {
                    return self.broken(&free, pieces, next + 1, failed);
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
                    _ => return self.broken(&free, pieces, next, failed),
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
                let outcome = match result {
                    e if e < 0 => {
                        slot.retries += 1;
                        match -e {
                            libc::EINTR | libc::EAGAIN if slot.retries < 100 => None,
                            errno => Some(Err(io::Error::from_raw_os_error(errno))),
                        }
                    }
                    0 => Some(Err(past_end(piece.write))),
                    n => {
                        slot.done += n as usize;
                        if slot.done >= piece.len {
                            Some(Ok(()))
                        } else {
                            // Direct I/O must go on at a sector.
                            slot.done &= !511;
                            slot.retries += 1;
                            (slot.retries >= 100).then(|| Err(past_end(piece.write)))
                        }
                    }
                };
                match outcome {
                    None => {
                        if !self.push(fd, s, pieces) {
                            return self.broken(&free, pieces, next, failed);
                        }
                    }
                    Some(r) => {
                        match r {
                            Ok(()) if !piece.write => {
                                scatter(cells, piece, &slot.buf[..piece.len]);
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
        let at = slot.buf[slot.done..].as_mut_ptr();
        let entry = if piece.write {
            opcode::Write::new(types::Fd(fd), at, len)
                .offset(offset)
                .build()
        } else {
            opcode::Read::new(types::Fd(fd), at, len)
                .offset(offset)
                .build()
        };
        let entry = entry.user_data(s as u64);
        // SAFETY: the buffer belongs to the slot, which is neither freed nor touched until its
        // completion was seen (or is leaked together with the ring); `fd` is open for the call.
        unsafe { self.uring.submission().push(&entry).is_ok() }
    }

    /// Reports every piece that is in flight or not begun as failed.
    fn broken(
        &mut self,
        free: &[usize],
        pieces: &[Piece],
        next: usize,
        failed: &mut dyn FnMut(usize, io::Error),
    ) -> bool {
        let error = || io::Error::from_raw_os_error(libc::EIO);
        for (s, slot) in self.slots.iter().enumerate() {
            if !free.contains(&s) {
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
