//! Preparation of a batch, common to io_uring and threads: sorts transfers, merges neighbours, cuts large ones.

use base::sync::MutexExt;
use base::{Block, Error, Result};
use env::Op;
use std::ops::Range;
use std::sync::Mutex;

/// Largest single transfer handed to the kernel. Larger operations are cut; adjacent smaller ones
/// of the same direction are merged up to this size.
pub const PIECE: usize = 1 << 20;

/// A part of an operation inside a piece.
pub struct Part {
    /// Index of the operation in the batch.
    pub op: usize,
    /// Byte offset within the operation.
    pub at: usize,
    /// Bytes.
    pub len: usize,
}

/// One transfer as the kernel sees it.
pub struct Piece {
    /// A write, not a read.
    pub write: bool,
    /// Byte offset on the device.
    pub offset: u64,
    /// Bytes.
    pub len: usize,
    /// The parts of operations it consists of, in order.
    pub parts: Vec<Part>,
}

/// Most pieces of memory for one transfer; the kernel takes 1024.
pub const MOST: usize = 256;

/// Bytes in memory, as the kernel's `iovec` has it: address, then length.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Vector {
    /// Address of the memory.
    pub start: usize,
    /// Bytes.
    pub len: usize,
}

/// Operations shared with whoever runs the pieces; a lock is held only while bytes are copied.
pub type Cells = [Mutex<Op>];

/// (write?, offset, length) of an operation.
pub fn shape(op: &Op) -> (bool, u64, usize) {
    match op {
        Op::Read { offset, buf } => (false, *offset, buf.len()),
        Op::Write { offset, bufs } => (true, *offset, bufs.iter().map(|b| b.len()).sum()),
    }
}

/// Sorts by direction and offset, merges what touches, cuts what is large.
pub fn plan(ops: &[Op]) -> Vec<Piece> {
    let mut order: Vec<(bool, u64, usize, usize)> = ops
        .iter()
        .enumerate()
        .map(|(i, op)| {
            let (w, o, l) = shape(op);
            (w, o, i, l)
        })
        .collect();
    order.sort_unstable();
    let mut pieces: Vec<Piece> = Vec::new();
    for (write, offset, op, len) in order {
        let mut at = 0;
        while at < len {
            let here = offset.saturating_add(at as u64);
            match pieces.last_mut() {
                Some(p)
                    if p.write == write
                        && p.len < PIECE
                        && p.offset.checked_add(p.len as u64) == Some(here) =>
                {
                    let take = (len - at).min(PIECE - p.len);
                    p.parts.push(Part { op, at, len: take });
                    p.len += take;
                    at += take;
                }
                _ => {
                    let take = (len - at).min(PIECE);
                    pieces.push(Piece {
                        write,
                        offset: here,
                        len: take,
                        parts: vec![Part { op, at, len: take }],
                    });
                    at += take;
                }
            }
        }
    }
    pieces
}

/// [`plan`] for a batch in which some operations were refused: what is left is not merged then, so that a refused operation takes
/// no other with it.
pub fn plan_of_allowed(ops: &[Op], results: &[Result<()>]) -> Vec<Piece> {
    if results.iter().all(Result::is_ok) {
        return plan(ops);
    }
    let mut pieces = Vec::new();
    for i in (0..ops.len()).filter(|&i| results[i].is_ok()) {
        for mut p in plan(std::slice::from_ref(&ops[i])) {
            p.parts.iter_mut().for_each(|part| part.op = i);
            pieces.push(p);
        }
    }
    pieces
}

/// Gives each operation the error of the piece it is in. Merged operations are tried one by one, so that a bad sector costs
/// only its owner.
pub fn blame<E>(
    pieces: &[Piece],
    failures: Vec<(usize, E)>,
    results: &mut [Result<()>],
    again: &dyn Fn(&Piece) -> std::result::Result<(), E>,
    error: &dyn Fn(E, &Piece) -> Error,
) {
    for (i, e) in failures {
        let piece = &pieces[i];
        if let [part] = &piece.parts[..] {
            results[part.op] = Err(error(e, piece));
            continue;
        }
        let mut offset = piece.offset;
        for part in &piece.parts {
            let (op, at, len) = (part.op, part.at, part.len);
            let single = Piece {
                write: piece.write,
                offset,
                len,
                parts: vec![Part { op, at, len }],
            };
            if let Err(e) = again(&single) {
                results[op] = Err(error(e, &single));
            }
            offset += len as u64;
        }
    }
}

/// Cuts the bytes from `skip` on, `left` of them, out of buffers that follow each other.
pub fn cut(
    bufs: &[Block],
    mut skip: usize,
    mut left: usize,
    mut each: impl FnMut(&Block, Range<usize>),
) {
    for b in bufs {
        if left == 0 {
            break;
        }
        if skip >= b.len() {
            skip -= b.len();
            continue;
        }
        let n = (b.len() - skip).min(left);
        each(b, skip..skip + n);
        skip = 0;
        left -= n;
    }
}

/// Whether memory can be transferred from or to as it is.
pub fn fits(start: usize, len: usize, align: usize) -> bool {
    start % align == 0 && len % align == 0
}

/// Where the bytes of a piece lie, if all of it is aligned to `align` and in few enough parts. The
/// addresses hold as long as the operations are left alone.
pub fn in_place(cells: &Cells, piece: &Piece, align: usize) -> Option<Vec<Vector>> {
    let mut list = Vec::with_capacity(piece.parts.len());
    for part in &piece.parts {
        match &mut *cells[part.op].acquire() {
            Op::Read { buf, .. } => list.push(Vector {
                start: buf[part.at..part.at + part.len].as_mut_ptr() as usize,
                len: part.len,
            }),
            Op::Write { bufs, .. } => cut(bufs, part.at, part.len, |b, range| {
                list.push(Vector {
                    start: b[range.clone()].as_ptr() as usize,
                    len: range.len(),
                });
            }),
        }
        if list.len() > MOST {
            return None;
        }
    }
    list.iter()
        .all(|v| fits(v.start, v.len, align))
        .then_some(list)
}

/// Gives up the memory of a piece that the kernel may still use.
pub fn give_up(cells: &Cells, piece: &Piece) {
    for part in &piece.parts {
        match &mut *cells[part.op].acquire() {
            Op::Read { buf, .. } => {
                let other = vec![0; buf.len()];
                std::mem::forget(std::mem::replace(buf, other));
            }
            Op::Write { bufs, .. } => bufs.iter().for_each(|b| std::mem::forget(b.clone())),
        }
    }
}

/// Copies what a write piece carries into `to`, which holds exactly the piece.
pub fn gather(cells: &Cells, piece: &Piece, to: &mut [u8]) {
    let mut to = to;
    for part in &piece.parts {
        let Op::Write { bufs, .. } = &*cells[part.op].acquire() else {
            return;
        };
        let mut rest = std::mem::take(&mut to);
        cut(bufs, part.at, part.len, |b, range| {
            let (head, tail) = std::mem::take(&mut rest).split_at_mut(range.len());
            head.copy_from_slice(&b[range]);
            rest = tail;
        });
        to = rest;
    }
}

/// Copies a read piece to where its parts want it.
pub fn scatter(cells: &Cells, piece: &Piece, from: &[u8]) {
    let mut from = from;
    for part in &piece.parts {
        let (head, tail) = from.split_at(part.len);
        if let Op::Read { buf, .. } = &mut *cells[part.op].acquire() {
            buf[part.at..part.at + part.len].copy_from_slice(head);
        }
        from = tail;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn merges_cuts_and_carries_every_byte() {
        let w = |offset, parts: &[&[u8]]| Op::Write {
            offset,
            bufs: parts.iter().map(|p| Arc::new(p.to_vec())).collect(),
        };
        let big: Vec<u8> = (0..PIECE + 5).map(|i| (i % 251) as u8).collect();
        let ops = vec![
            w(8, &[b"ij", b"kl"]),
            w(0, &[b"ab", b"", b"cdefgh"]),
            w(20, &[&big]),
            Op::Read {
                offset: 12,
                buf: vec![0; 3],
            },
        ];
        let pieces = plan(&ops);
        let shapes: Vec<_> = pieces.iter().map(|p| (p.write, p.offset, p.len)).collect();
        let cut = 20 + PIECE as u64;
        assert_eq!(
            shapes,
            [
                (false, 12, 3),
                (true, 0, 12),
                (true, 20, PIECE),
                (true, cut, 5)
            ]
        );
        let cells: Vec<Mutex<Op>> = ops.into_iter().map(Mutex::new).collect();
        let mut image = vec![0; PIECE + 25];
        for p in pieces.iter().filter(|p| p.write) {
            let o = p.offset as usize;
            gather(&cells, p, &mut image[o..o + p.len]);
        }
        assert_eq!(&image[..12], b"abcdefghijkl");
        assert_eq!(&image[20..], &big[..]);
        // In place: every byte where it is, or not at all.
        let total = |p: &Piece| {
            in_place(&cells, p, 1)
                .unwrap()
                .iter()
                .map(|v| v.len)
                .sum::<usize>()
        };
        assert!(pieces.iter().all(|p| p.len == total(p)));
        assert_eq!(in_place(&cells, &pieces[1], 1).unwrap().len(), 4);
        assert!(in_place(&cells, &pieces[1], 512).is_none());
        scatter(&cells, &pieces[0], b"xyz");
        assert!(matches!(&*cells[3].acquire(), Op::Read { buf, .. } if buf == b"xyz"));
    }
}
