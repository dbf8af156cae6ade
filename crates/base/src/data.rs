//! Data of a write request on its way into the blocks of a file.

use crate::Block;
use std::borrow::Cow;
use std::ops::Range;

/// Bytes to be written: in one piece, or in blocks that whoever stores them may share instead of
/// copying them.
#[derive(Clone, Copy, Debug)]
pub struct Data<'a> {
    source: Source<'a>,
    /// Where in the source it begins.
    at: usize,
    len: usize,
}

#[derive(Clone, Copy, Debug)]
enum Source<'a> {
    Bytes(&'a [u8]),
    /// All but the last of the given size, which is not 0.
    Blocks(&'a [Block], usize),
}

impl<'a> Data<'a> {
    /// The bytes of blocks of equal size; the last one may be shorter. `None` if others are.
    pub fn of_blocks(blocks: &'a [Block]) -> Option<Data<'a>> {
        let each = blocks.first().map_or(0, |b| b.len());
        let (last, full) = blocks.split_last()?;
        if each == 0 || last.len() > each || full.iter().any(|b| b.len() != each) {
            return None;
        }
        Some(Data {
            source: Source::Blocks(blocks, each),
            at: 0,
            len: full.len() * each + last.len(),
        })
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// A part of it. Panics like a slice if there is none.
    pub fn slice(&self, range: Range<usize>) -> Data<'a> {
        assert!(range.start <= range.end && range.end <= self.len);
        Data {
            source: self.source,
            at: self.at + range.start,
            len: range.end - range.start,
        }
    }

    /// All bytes, copied only if they are in more than one piece.
    pub fn bytes(&self) -> Cow<'a, [u8]> {
        match self.source {
            Source::Bytes(b) => Cow::Borrowed(&b[self.at..self.at + self.len]),
            Source::Blocks(blocks, each) => {
                let (n, within) = (self.at / each, self.at % each);
                match blocks.get(n).and_then(|b| b.get(within..within + self.len)) {
                    Some(b) => Cow::Borrowed(b),
                    None => Cow::Owned(self.gather(blocks, each)),
                }
            }
        }
    }

    /// All bytes as a block, which is shared if it is one already.
    pub fn block(&self) -> Block {
        if let Source::Blocks(blocks, each) = self.source {
            let whole = blocks.get(self.at / each);
            if let Some(b) = whole.filter(|b| self.at % each == 0 && b.len() == self.len) {
                return b.clone();
            }
        }
        Block::new(self.bytes().into_owned())
    }

    fn gather(&self, blocks: &[Block], each: usize) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.len);
        let (mut n, mut within) = (self.at / each, self.at % each);
        while let (Some(b), true) = (blocks.get(n), out.len() < self.len) {
            let more = (b.len() - within).min(self.len - out.len());
            out.extend_from_slice(&b[within..within + more]);
            (n, within) = (n + 1, 0);
        }
        out
    }
}

impl<'a, T: AsRef<[u8]> + ?Sized> From<&'a T> for Data<'a> {
    fn from(bytes: &'a T) -> Data<'a> {
        let bytes = bytes.as_ref();
        Data {
            source: Source::Bytes(bytes),
            at: 0,
            len: bytes.len(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    fn count(n: usize) -> Vec<u8> {
        (0..n).map(|i| (i * 7 + i / 256) as u8).collect()
    }

    /// Every part of it, however the bytes are kept.
    #[test]
    fn parts_are_the_same_in_one_piece_and_in_blocks() {
        for n in [1, 15, 16, 17, 32, 53] {
            let all = count(n);
            let blocks: Vec<Block> = all.chunks(16).map(|c| Arc::new(c.to_vec())).collect();
            let (one, many) = (Data::from(&all), Data::of_blocks(&blocks).unwrap());
            assert_eq!((one.len(), many.len()), (n, n));
            for from in 0..=n {
                for to in from..=n {
                    for d in [one, many] {
                        let part = d.slice(0..to).slice(from..to);
                        assert_eq!(part.len(), to - from);
                        assert_eq!(*part.bytes(), all[from..to], "{from}..{to} of {n}");
                        assert_eq!(**part.block(), all[from..to]);
                    }
                }
            }
        }
    }

    #[test]
    fn whole_blocks_are_shared_and_others_copied() {
        let all = count(40);
        let blocks: Vec<Block> = all.chunks(16).map(|c| Arc::new(c.to_vec())).collect();
        let d = Data::of_blocks(&blocks).unwrap();
        let shared = |r: Range<usize>, n: usize| Arc::ptr_eq(&d.slice(r).block(), &blocks[n]);
        assert!(shared(0..16, 0) && shared(16..32, 1) && shared(32..40, 2));
        assert!(!shared(0..15, 0) && !shared(16..33, 1) && !shared(33..40, 2));
        assert!(matches!(d.slice(17..30).bytes(), Cow::Borrowed(_)));
        assert!(matches!(d.slice(15..17).bytes(), Cow::Owned(_)));
    }

    #[test]
    fn blocks_of_different_sizes_are_refused() {
        let b = |n| Arc::new(count(n));
        assert!(Data::of_blocks(&[]).is_none());
        assert!(Data::of_blocks(&[b(0)]).is_none());
        assert!(Data::of_blocks(&[b(4), b(5)]).is_none());
        assert!(Data::of_blocks(&[b(4), b(3), b(4)]).is_none());
        assert!(Data::of_blocks(&[b(4), b(4), b(1)]).is_some());
    }
}
