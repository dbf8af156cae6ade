//! The content of a dirty block: all bytes, only the bytes written, or the address they were written to.

use base::{Block, Error, Result};
use codec::compress;
use disk::BlkPtr;
use std::sync::Arc;

/// Blocks up to this size are always kept whole when they begin as holes.
const SMALL: usize = 4096;

/// Pieces of a block, ascending, apart from each other.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pieces {
    list: Vec<(usize, Vec<u8>)>,
    /// What is between them: zeros, or (false) what is on disk.
    pub zero: bool,
    /// Sum of the lengths.
    total: usize,
}

/// What is in memory of a dirty block. Shared: whoever changes it copies it first if a sync has it.
#[derive(Clone, Debug)]
pub(crate) enum Content {
    Whole(Block),
    Parts(Arc<Pieces>),
    /// Nothing: all of it was written early, and is read from there.
    Stored(Box<BlkPtr>),
}

impl Pieces {
    fn insert(&mut self, at: usize, data: &[u8]) {
        let end = at + data.len();
        // The pieces that overlap or touch.
        let first = self.list.partition_point(|(o, b)| o + b.len() < at);
        let last = first + self.list[first..].partition_point(|(o, _)| *o <= end);
        if first == last {
            self.list.insert(first, (at, data.to_vec()));
            self.total += data.len();
            return;
        }
        self.total -= self.list[first..last]
            .iter()
            .map(|(_, b)| b.len())
            .sum::<usize>();
        let rest: Vec<(usize, Vec<u8>)> = self.list.drain(first + 1..last).collect();
        let (o, b) = &mut self.list[first];
        if at < *o {
            let mut joined = data.to_vec();
            if end < *o + b.len() {
                joined.extend_from_slice(&b[end - *o..]);
            }
            (*o, *b) = (at, joined);
        } else {
            let within = at - *o;
            let over = data.len().min(b.len() - within);
            b[within..within + over].copy_from_slice(&data[..over]);
            b.extend_from_slice(&data[over..]);
        }
        for (ro, r) in rest {
            let have = *o + b.len();
            if ro + r.len() > have {
                b.extend_from_slice(&r[have - ro..]);
            }
        }
        self.total += b.len();
    }
}

impl Content {
    /// Whether all of it is known to be zeros.
    pub fn is_zero(&self) -> bool {
        match self {
            Content::Whole(b) => compress::is_zero(b),
            Content::Parts(p) => p.zero && p.list.iter().all(|(_, b)| compress::is_zero(b)),
            Content::Stored(bp) => bp.is_hole(),
        }
    }

    /// A block of `size` bytes of which `data` was written at `at`.
    pub fn partial(size: usize, at: usize, data: &[u8], zero: bool) -> Content {
        if zero && (size <= SMALL || data.len() * 2 > size) {
            let mut v = vec![0; size];
            v[at..at + data.len()].copy_from_slice(data);
            return Content::Whole(Arc::new(v));
        }
        let list = vec![(at, data.to_vec())];
        Content::Parts(Arc::new(Pieces {
            list,
            zero,
            total: data.len(),
        }))
    }

    /// All bytes of the block, if they are in memory.
    pub fn whole(&self) -> Option<&Block> {
        match self {
            Content::Whole(b) => Some(b),
            Content::Parts(_) | Content::Stored(_) => None,
        }
    }

    /// Where all of it is, if it is not in memory.
    pub fn stored(&self) -> Option<&BlkPtr> {
        match self {
            Content::Stored(bp) => Some(bp),
            _ => None,
        }
    }

    /// True if what is on disk is needed to know all of it.
    pub fn needs_base(&self) -> bool {
        self.lacks_old() || self.stored().is_some()
    }

    /// True if what was on disk before it was changed is needed.
    pub fn lacks_old(&self) -> bool {
        matches!(self, Content::Parts(p) if !p.zero)
    }

    /// Bytes `[at, at + n)` if all of them are here.
    pub fn get(&self, at: usize, n: usize) -> Option<&[u8]> {
        match self {
            Content::Whole(b) => b.get(at..at.checked_add(n)?),
            Content::Parts(p) => {
                let i = p.list.partition_point(|(o, _)| *o <= at).checked_sub(1)?;
                let (o, b) = &p.list[i];
                b.get(at - o..(at - o).checked_add(n)?)
            }
            Content::Stored(_) => None,
        }
    }

    /// Bytes held.
    pub fn held(&self) -> usize {
        match self {
            Content::Whole(b) => b.len(),
            Content::Parts(p) => p.total,
            Content::Stored(_) => 0,
        }
    }

    /// Writes `data` at `at` into the block of `size` bytes, which is fetched before if it is stored.
    pub fn write(&mut self, size: usize, at: usize, data: &[u8]) -> Result<()> {
        match self {
            Content::Whole(b) => {
                Arc::make_mut(b)[at..at + data.len()].copy_from_slice(data);
            }
            Content::Parts(p) => {
                let p = Arc::make_mut(p);
                p.insert(at, data);
                match &mut p.list[..] {
                    [(0, b)] if b.len() == size => {
                        *self = Content::Whole(Arc::new(std::mem::take(b)));
                    }
                    _ if p.zero && p.total * 2 > size => {
                        *self = Content::Whole(self.over(&[], size))
                    }
                    _ => {}
                }
            }
            Content::Stored(_) => {
                return Err(Error::damaged("a block to be changed was let go of"))
            }
        }
        Ok(())
    }

    /// The same as [`Content::over`], in the memory of `base` if nobody else has it.
    pub fn onto(&self, base: Block, size: usize) -> Block {
        match self {
            Content::Parts(p) if !p.zero && base.len() == size => {
                let mut base = base;
                let v = Arc::make_mut(&mut base);
                for (o, b) in &p.list {
                    v[*o..*o + b.len()].copy_from_slice(b);
                }
                base
            }
            Content::Stored(_) if base.len() == size => base,
            c => c.over(&base, size),
        }
    }

    /// All of it, given what is below; a short `base` goes on with zeros.
    pub fn over(&self, base: &[u8], size: usize) -> Block {
        match self {
            Content::Whole(b) => b.clone(),
            Content::Parts(p) => {
                let mut v = match p.zero {
                    true => Vec::with_capacity(size),
                    false => base[..base.len().min(size)].to_vec(),
                };
                v.resize(size, 0);
                for (o, b) in &p.list {
                    v[*o..*o + b.len()].copy_from_slice(b);
                }
                Arc::new(v)
            }
            Content::Stored(_) => {
                let mut v = base[..base.len().min(size)].to_vec();
                v.resize(size, 0);
                Arc::new(v)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Random writes against a plain buffer.
    #[test]
    fn pieces_are_what_was_written() {
        let mut seed = 7u64;
        let mut rnd = |n: usize| {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1);
            (seed >> 33) as usize % n
        };
        for round in 0..400 {
            let size = [8192, 512, 4096, 65536][round % 4];
            let zero = round % 3 == 0;
            let base: Vec<u8> = (0..size)
                .map(|i| if zero { 0 } else { i as u8 | 1 })
                .collect();
            let mut plain = base.clone();
            let mut c: Option<Content> = None;
            for k in 0..40u8 {
                let at = rnd(size);
                let n = 1 + rnd((size - at).min([16, 4096, size][k as usize % 3]));
                let data = vec![k ^ 0xa5; n];
                plain[at..at + n].copy_from_slice(&data);
                match &mut c {
                    None => c = Some(Content::partial(size, at, &data, zero)),
                    Some(c) => {
                        let shared = c.clone();
                        let before = shared.over(&base, size);
                        c.write(size, at, &data).unwrap();
                        assert_eq!(shared.over(&base, size), before, "copied on write");
                    }
                }
                let c = c.as_ref().unwrap();
                assert_eq!(**c.over(&base, size), plain[..], "round {round} write {k}");
                let shared = Arc::new(base.clone());
                assert_eq!(c.onto(shared.clone(), size), c.over(&base, size));
                assert_eq!(*shared, base, "it belongs to somebody else as well");
                assert_eq!(c.onto(shared, size), c.over(&base, size));
                let half = base[..size / 2].to_vec();
                assert_eq!(c.onto(Arc::new(half.clone()), size), c.over(&half, size));
                assert_eq!(c.get(at, n), Some(&plain[at..at + n]));
                assert_eq!(c.get(size, 1), None);
                let (from, len) = (rnd(size), 1 + rnd(size));
                if let Some(got) = c.get(from, len) {
                    assert_eq!(got, &plain[from..from + len]);
                }
                assert!(c.held() <= size);
                if let Content::Parts(p) = c {
                    assert!(p.list.windows(2).all(|w| w[0].0 + w[0].1.len() < w[1].0));
                    assert!(p.total < size);
                    assert_eq!(p.total, p.list.iter().map(|(_, b)| b.len()).sum::<usize>());
                }
            }
        }
    }

    #[test]
    fn appending_fills_up() {
        let mut c = Content::partial(1 << 17, 0, &[1; 1000], false);
        let mut at = 1000;
        while at < 1 << 17 {
            let n = 1000.min((1 << 17) - at);
            c.write(1 << 17, at, &vec![1; n]).unwrap();
            at += n;
            assert_eq!(c.held(), at);
        }
        assert_eq!(c.whole().map(|b| b.len()), Some(1 << 17));
        assert!(!c.needs_base());
    }
}
