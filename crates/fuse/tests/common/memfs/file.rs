//! The content of a file in memory.

use base::Block;
use fuse::*;
use std::sync::Arc;

/// Size of the pieces file data is kept in.
pub(super) const PIECE: usize = 128 << 10;

/// How many pieces hold `n` bytes.
fn pieces(n: u64) -> usize {
    n.div_ceil(PIECE as u64) as usize
}

#[derive(Default)]
pub struct File {
    pub(super) size: u64,
    pub(super) blocks: Vec<Option<Block>>,
}

impl File {
    pub(super) fn write(&mut self, offset: u64, data: &[u8]) {
        let end = offset + data.len() as u64;
        if self.blocks.len() < pieces(end) {
            self.blocks.resize(pieces(end), None);
        }
        let (mut at, mut data) = (offset, data);
        while !data.is_empty() {
            let (i, o) = ((at / PIECE as u64) as usize, (at % PIECE as u64) as usize);
            let n = data.len().min(PIECE - o);
            let b = self.blocks[i].get_or_insert_with(|| Arc::new(vec![0; PIECE]));
            Arc::make_mut(b)[o..o + n].copy_from_slice(&data[..n]);
            data = &data[n..];
            at += n as u64;
        }
        self.size = self.size.max(end);
    }

    pub(super) fn read(&self, offset: u64, size: u32, out: &mut ReadBuf) {
        let end = self.size.min(offset + size as u64);
        let mut at = offset;
        while at < end {
            let (i, o) = ((at / PIECE as u64) as usize, (at % PIECE as u64) as usize);
            let n = ((end - at) as usize).min(PIECE - o);
            match self.blocks.get(i) {
                Some(Some(b)) => out.push(b.clone(), o..o + n),
                _ => out.zeros(n),
            }
            at += n as u64;
        }
    }

    pub(super) fn zero(&mut self, from: u64, to: u64) {
        let mut at = from;
        while at < to {
            let (i, o) = ((at / PIECE as u64) as usize, (at % PIECE as u64) as usize);
            let n = ((to - at) as usize).min(PIECE - o);
            if let Some(slot) = self.blocks.get_mut(i) {
                if n == PIECE {
                    *slot = None;
                } else if let Some(b) = slot {
                    Arc::make_mut(b)[o..o + n].fill(0);
                }
            }
            at += n as u64;
        }
    }

    pub(super) fn truncate(&mut self, size: u64) {
        if size < self.size {
            self.zero(size, self.size);
            self.blocks.truncate(pieces(size));
        }
        self.size = size;
    }

    pub(super) fn seek(&self, offset: u64, data: bool) -> Result<u64> {
        if offset >= self.size {
            return Err(Errno::ENXIO);
        }
        let mut at = offset;
        while at < self.size {
            let i = (at / PIECE as u64) as usize;
            if self.blocks.get(i).is_some_and(|b| b.is_some()) == data {
                return Ok(at);
            }
            at = (i as u64 + 1) * PIECE as u64;
        }
        if data {
            Err(Errno::ENXIO)
        } else {
            Ok(self.size)
        }
    }
}
