//! Buffers for replies: file data, directory entries, lists of names. Operations fill them, the channel sends them.

use std::ops::Range;

use base::Block;
use zerocopy::{FromBytes, IntoBytes};

use crate::abi;
use crate::types::{Attr, Entry};

/// Zeros to send for holes.
static ZEROS: [u8; 128 << 10] = [0; 128 << 10];

enum Seg {
    /// Shared bytes, sent from where they are.
    Block(Block, Range<usize>),
    /// Bytes in the scratch buffer.
    Copied(Range<usize>),
    Zeros(usize),
}

/// Answer to a read: a list of slices of [`Block`]s, copied bytes and zeros, which the transport
/// hands to the kernel without gathering them. What exceeds the size asked for is cut off.
pub struct ReadBuf {
    segs: Vec<Seg>,
    scratch: Vec<u8>,
    len: usize,
    limit: usize,
}

impl ReadBuf {
    /// An empty buffer for up to `limit` bytes.
    pub fn new(limit: usize) -> ReadBuf {
        ReadBuf {
            segs: Vec::new(),
            scratch: Vec::new(),
            len: 0,
            limit,
        }
    }

    pub(crate) fn reset(&mut self, limit: usize) {
        self.segs.clear();
        self.scratch.clear();
        self.len = 0;
        self.limit = limit;
    }

    /// Bytes put so far.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing was added.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes that still fit.
    pub fn remaining(&self) -> usize {
        self.limit - self.len
    }

    /// Appends part of a block without copying. Parts outside the block are ignored.
    pub fn push(&mut self, block: Block, range: Range<usize>) {
        let start = range.start.min(block.len());
        let end = range.end.min(block.len()).max(start);
        let n = (end - start).min(self.remaining());
        if n > 0 {
            self.segs.push(Seg::Block(block, start..start + n));
            self.len += n;
        }
    }

    /// Appends a copy of `data`.
    pub fn put(&mut self, data: &[u8]) {
        let n = data.len().min(self.remaining());
        self.fill(n, |b| b.copy_from_slice(&data[..n]));
    }

    /// Appends `n` bytes (or as many as fit) that `f` writes in place.
    pub fn fill(&mut self, n: usize, f: impl FnOnce(&mut [u8])) {
        let n = n.min(self.remaining());
        if n == 0 {
            return;
        }
        let at = self.scratch.len();
        self.scratch.resize(at + n, 0);
        f(&mut self.scratch[at..]);
        match self.segs.last_mut() {
            Some(Seg::Copied(r)) => r.end += n,
            _ => self.segs.push(Seg::Copied(at..at + n)),
        }
        self.len += n;
    }

    /// Appends `n` zeros.
    pub fn zeros(&mut self, n: usize) {
        let n = n.min(self.remaining());
        if n == 0 {
            return;
        }
        match self.segs.last_mut() {
            Some(Seg::Zeros(m)) => *m += n,
            _ => self.segs.push(Seg::Zeros(n)),
        }
        self.len += n;
    }

    /// The contents in one piece (for tests and for file systems layered on others).
    pub fn to_vec(&self) -> Vec<u8> {
        let mut v = Vec::with_capacity(self.len);
        self.each(|s| v.extend_from_slice(s));
        v
    }

    pub(crate) fn each<'a>(&'a self, mut f: impl FnMut(&'a [u8])) {
        for s in &self.segs {
            match s {
                Seg::Block(b, r) => f(&b[r.clone()]),
                Seg::Copied(r) => f(&self.scratch[r.clone()]),
                Seg::Zeros(n) => {
                    let mut left = *n;
                    while left > 0 {
                        let k = left.min(ZEROS.len());
                        f(&ZEROS[..k]);
                        left -= k;
                    }
                }
            }
        }
    }

    /// How many slices [`ReadBuf::each`] visits.
    pub(crate) fn slice_count(&self) -> usize {
        let mut n = 0;
        for s in &self.segs {
            n += match s {
                Seg::Zeros(n) => n.div_ceil(ZEROS.len()),
                _ => 1,
            };
        }
        n
    }

    /// Lets go of blocks held, and of a scratch buffer that grew large.
    pub(crate) fn release(&mut self) {
        self.reset(0);
        self.scratch.shrink_to(256 << 10);
    }
}

/// Kind of a directory entry (`d_type`): the type bits of the mode, shifted.
pub const fn kind_of_mode(mode: u32) -> u32 {
    (mode & libc::S_IFMT) >> 12
}

/// Directory entries for readdir.
pub struct DirBuf {
    pub(crate) buf: Vec<u8>,
    limit: usize,
}

impl DirBuf {
    /// An empty buffer for `limit` bytes of entries.
    pub fn new(limit: usize) -> DirBuf {
        DirBuf {
            buf: Vec::with_capacity(limit),
            limit,
        }
    }

    pub(crate) fn reuse(mut buf: Vec<u8>, limit: usize) -> DirBuf {
        buf.clear();
        DirBuf { buf, limit }
    }

    /// Adds an entry, unless the buffer is full: then returns `true` and has not added it. `next`
    /// is the position behind this entry (never 0); `kind` is a `d_type`, see [`kind_of_mode`].
    #[must_use]
    pub fn add(&mut self, ino: u64, next: u64, kind: u32, name: &[u8]) -> bool {
        push_dirent(&mut self.buf, self.limit, None, ino, next, kind, name)
    }

    /// Whether nothing was added yet.
    pub fn is_empty(&self) -> bool {
        self.buf.is_empty()
    }
}

/// Directory entries with attributes for readdirplus.
pub struct DirPlusBuf {
    pub(crate) buf: Vec<u8>,
    limit: usize,
}

impl DirPlusBuf {
    /// An empty buffer for `limit` bytes of entries.
    pub fn new(limit: usize) -> DirPlusBuf {
        DirPlusBuf {
            buf: Vec::with_capacity(limit),
            limit,
        }
    }

    pub(crate) fn reuse(mut buf: Vec<u8>, limit: usize) -> DirPlusBuf {
        buf.clear();
        DirPlusBuf { buf, limit }
    }

    /// Whether an entry with a name of this length would still fit. Ask before taking the lookup
    /// reference that an added entry counts for.
    pub fn fits(&self, name_len: usize) -> bool {
        self.buf.len() + abi::align8(128 + 24 + name_len) <= self.limit
    }

    /// Adds an entry that counts as a lookup of its node; returns `true` if it was full and nothing
    /// was added (and nothing counted). Not for "." and "..": use [`DirPlusBuf::add_plain`].
    #[must_use]
    pub fn add(&mut self, entry: &Entry, next: u64, name: &[u8]) -> bool {
        let (ino, kind) = (entry.attr.ino, kind_of_mode(entry.attr.mode));
        let e = entry.to_wire();
        push_dirent(&mut self.buf, self.limit, Some(&e), ino, next, kind, name)
    }

    /// Adds a name without a node; the kernel looks it up when it needs it.
    #[must_use]
    pub fn add_plain(&mut self, ino: u64, next: u64, kind: u32, name: &[u8]) -> bool {
        let e = abi::EntryOut {
            attr: Attr {
                ino,
                ..Attr::default()
            }
            .to_wire(),
            ..Default::default()
        };
        push_dirent(&mut self.buf, self.limit, Some(&e), ino, next, kind, name)
    }

    /// Whether nothing was added yet.
    pub fn is_empty(&self) -> bool {
        self.buf.is_empty()
    }

    /// Nodes of the entries that count as lookups.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = u64> + '_ {
        let mut rest = &self.buf[..];
        std::iter::from_fn(move || {
            let (entry, tail) = abi::EntryOut::read_from_prefix(rest).ok()?;
            let (name, _) = abi::Dirent::read_from_prefix(tail).ok()?;
            rest = rest.get(abi::align8(128 + 24 + name.namelen as usize)..)?;
            Some(entry.nodeid)
        })
        .filter(|node| *node != 0)
    }
}

fn push_dirent(
    buf: &mut Vec<u8>,
    limit: usize,
    entry: Option<&abi::EntryOut>,
    ino: u64,
    next: u64,
    kind: u32,
    name: &[u8],
) -> bool {
    let head = if entry.is_some() { 128 } else { 0 };
    let size = abi::align8(head + 24 + name.len());
    if buf.len() + size > limit {
        return true;
    }
    let end = buf.len() + size;
    if let Some(e) = entry {
        buf.extend_from_slice(e.as_bytes());
    }
    let d = abi::Dirent {
        ino,
        off: next,
        namelen: name.len() as u32,
        kind,
    };
    buf.extend_from_slice(d.as_bytes());
    buf.extend_from_slice(name);
    buf.resize(end, 0);
    false
}

/// Names for listxattr.
#[derive(Default)]
pub struct XattrNames {
    pub(crate) buf: Vec<u8>,
}

impl XattrNames {
    /// Adds a full name such as `user.mime`.
    pub fn add(&mut self, name: &[u8]) {
        self.buf.extend_from_slice(name);
        self.buf.push(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn read_buf_gathers_and_cuts() {
        let b: Block = Arc::new((0..100u8).collect());
        let mut r = ReadBuf::new(150_040);
        r.push(b.clone(), 10..20);
        r.push(b.clone(), 95..200);
        r.put(&[1, 2, 3]);
        r.put(&[4]);
        r.zeros(150_000);
        assert_eq!(r.len(), 150_019);
        r.push(b.clone(), 0..100);
        assert_eq!(r.remaining(), 0);
        r.put(&[9]);
        let v = r.to_vec();
        assert_eq!(v.len(), 150_040);
        assert_eq!(
            &v[..19],
            &[10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 95, 96, 97, 98, 99, 1, 2, 3, 4]
        );
        assert!(v[19..150_019].iter().all(|&x| x == 0));
        assert_eq!(v[150_039], 20);
        let mut n = 0;
        r.each(|_| n += 1);
        assert_eq!(n, r.slice_count());
        assert_eq!(n, 2 + 1 + 2 + 1);
        r.release();
        assert_eq!(Arc::strong_count(&b), 1);
    }

    #[test]
    fn dir_buf_stops_when_full() {
        let mut d = DirBuf::new(100);
        assert!(!d.add(1, 1, 8, b"abc"));
        assert!(!d.add(2, 2, 4, b"abcdefghi"));
        assert_eq!(d.buf.len(), 32 + 40);
        assert!(d.add(3, 3, 4, b"abcdefghi"));
        assert_eq!(d.buf.len(), 72);
        assert_eq!(&d.buf[24..27], b"abc");
        assert_eq!(d.buf[16], 3);

        let mut p = DirPlusBuf::new(160);
        assert!(p.fits(8) && !p.fits(9));
        let e = Entry {
            node: 7,
            ..Entry::default()
        };
        assert!(p.add(&e, 1, b"123456789"));
        assert!(!p.add(&e, 1, b"12345678"));
        assert_eq!(p.buf.len(), 160);
        let mut p = DirPlusBuf::new(4096);
        assert!(!p.add_plain(1, 1, 4, b"."));
        for (node, name) in [(7, &b"a"[..]), (0, b"gone"), (9, b"12345678")] {
            let e = Entry {
                node,
                ..Entry::default()
            };
            assert!(!p.add(&e, 1, name));
        }
        assert!(p.nodes().eq([7, 9]));
    }

    #[test]
    fn device_numbers() {
        use crate::types::*;
        let d = makedev(0x123, 0xabcde);
        assert_eq!((dev_major(d), dev_minor(d)), (0x123, 0xabcde));
        assert_eq!(makedev(8, 1), 0x801);
    }
}
