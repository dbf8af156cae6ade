//! Leaf blocks of a fat ZAP, in place on their bytes (data format §3.5).
//!
//! Every chunk number read from the block is checked against the block's size before it is used,
//! and every chain walk is bounded by the number of chunks, so no bytes can cause a panic or an
//! endless loop.

use crate::{Value, BLOCK_LEAF};
use base::{Error, Kind, Result};
use disk::bytes::{put_u16, put_u32, put_u64, u16_at, u32_at, u64_at};

const MAGIC: u32 = 0x2AB_1EAF;
const NONE: u16 = 0xffff;
const CHUNK: usize = 24;
const ARRAY_BYTES: usize = 21;
const HEADER: usize = 48;
const T_ARRAY: u8 = 251;
const T_ENTRY: u8 = 252;
const T_FREE: u8 = 253;
/// Header flag: chains are sorted by cd.
const F_SORTED: u8 = 1;

/// Sizes that follow from a block's length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Geo {
    /// log2 of the block size.
    pub shift: u32,
    /// Hash buckets.
    pub buckets: usize,
    /// Chunks of 24 bytes.
    pub chunks: usize,
}

impl Geo {
    /// `len` must be a power of two, 512 bytes to 1 MiB (more has chunk numbers past 16 bits).
    pub fn of(len: usize) -> Result<Geo> {
        if !len.is_power_of_two() || !(512..=1 << 20).contains(&len) {
            return Err(Error::damaged(format!(
                "fat ZAP with blocks of {len} bytes"
            )));
        }
        let buckets = len >> 5;
        Ok(Geo {
            shift: len.trailing_zeros(),
            buckets,
            chunks: (len - 2 * buckets) / CHUNK - 2,
        })
    }

    fn chunk(&self, c: u16) -> Result<usize> {
        match (c as usize) < self.chunks {
            true => Ok(HEADER + 2 * self.buckets + c as usize * CHUNK),
            false => Err(bad("chunk number out of range")),
        }
    }
}

fn bad(what: &str) -> Error {
    Error::damaged(format!("ZAP leaf: {what}"))
}

/// Chunks an entry takes.
pub(crate) fn chunks_for(name_bytes: usize, value_bytes: usize) -> usize {
    1 + name_bytes.div_ceil(ARRAY_BYTES) + value_bytes.div_ceil(ARRAY_BYTES)
}

/// Leaf header fields that matter.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LeafHdr {
    /// Hash prefix of all entries in the leaf, in the low bits.
    pub prefix: u64,
    /// Bits of the prefix.
    pub prefix_len: u32,
    /// Free chunks.
    pub nfree: usize,
    /// Entries.
    pub nentries: usize,
}

/// An entry chunk, decoded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LeafEntry {
    /// Number of the entry's chunk.
    pub chunk: u16,
    /// Bytes of one integer of the value: 1, 2, 4 or 8.
    pub value_size: u8,
    next: u16,
    name_chunk: u16,
    name_ints: u16,
    value_chunk: u16,
    value_ints: u16,
    /// Collision differentiator.
    pub cd: u32,
    /// Hash of the name.
    pub hash: u64,
}

impl LeafEntry {
    fn value_len(&self) -> usize {
        self.value_ints as usize * self.value_size as usize
    }

    /// Chunks its value takes.
    pub fn value_chunks(&self) -> usize {
        self.value_len().div_ceil(ARRAY_BYTES)
    }
}

/// Writes an empty leaf over `b`.
pub(crate) fn init(b: &mut [u8], prefix: u64, prefix_len: u32, sorted: bool) -> Result<()> {
    let g = Geo::of(b.len())?;
    b.fill(0);
    put_u64(b, 0, BLOCK_LEAF);
    put_u64(b, 16, prefix);
    put_u32(b, 24, MAGIC);
    put_u16(b, 28, g.chunks as u16);
    put_u16(b, 32, prefix_len as u16);
    b[36] = if sorted { F_SORTED } else { 0 };
    b[HEADER..HEADER + 2 * g.buckets].fill(0xff);
    for c in 0..g.chunks {
        let at = g.chunk(c as u16)?;
        b[at] = T_FREE;
        let next = if c + 1 < g.chunks { c as u16 + 1 } else { NONE };
        put_u16(b, at + 22, next);
    }
    Ok(())
}

/// Checks that `b` is a leaf and returns its sizes and header.
pub(crate) fn open(b: &[u8]) -> Result<(Geo, LeafHdr)> {
    let g = Geo::of(b.len())?;
    if u64_at(b, 0)? != BLOCK_LEAF || u32_at(b, 24)? != MAGIC {
        return Err(bad("wrong type or magic"));
    }
    let h = LeafHdr {
        prefix: u64_at(b, 16)?,
        prefix_len: u16_at(b, 32)? as u32,
        nfree: u16_at(b, 28)? as usize,
        nentries: u16_at(b, 30)? as usize,
    };
    if h.prefix_len + (g.shift - 5) > 64 || h.nfree > g.chunks {
        return Err(bad("impossible header"));
    }
    Ok((g, h))
}

/// Byte offset of the bucket of `hash`.
fn bucket(g: Geo, h: &LeafHdr, hash: u64) -> usize {
    // At most 64 by `open`; a shift by 64 cannot happen because the bucket bits are at least 4.
    let shift = 64 - (g.shift - 5) - h.prefix_len;
    HEADER + 2 * ((hash >> shift) as usize & (g.buckets - 1))
}

fn entry(b: &[u8], g: Geo, chunk: u16) -> Result<LeafEntry> {
    let at = g.chunk(chunk)?;
    if b[at] != T_ENTRY {
        return Err(bad("chain leads to a chunk that is no entry"));
    }
    let e = LeafEntry {
        chunk,
        value_size: b[at + 1],
        next: u16_at(b, at + 2)?,
        name_chunk: u16_at(b, at + 4)?,
        name_ints: u16_at(b, at + 6)?,
        value_chunk: u16_at(b, at + 8)?,
        value_ints: u16_at(b, at + 10)?,
        cd: u32_at(b, at + 12)?,
        hash: u64_at(b, at + 16)?,
    };
    if !matches!(e.value_size, 1 | 2 | 4 | 8) {
        return Err(bad("impossible integer size"));
    }
    Ok(e)
}

/// Walks one chain; ends with an error rather than going round.
struct Chain<'b> {
    b: &'b [u8],
    g: Geo,
    next: u16,
    left: usize,
}

impl Iterator for Chain<'_> {
    type Item = Result<LeafEntry>;
    fn next(&mut self) -> Option<Self::Item> {
        if self.next == NONE {
            return None;
        }
        if self.left == 0 {
            self.next = NONE;
            return Some(Err(bad("chain goes round")));
        }
        self.left -= 1;
        let e = entry(self.b, self.g, self.next);
        self.next = e.as_ref().map_or(NONE, |e| e.next);
        Some(e)
    }
}

fn chain<'b>(b: &'b [u8], g: Geo, h: &LeafHdr, hash: u64) -> Result<Chain<'b>> {
    Ok(Chain {
        b,
        g,
        next: u16_at(b, bucket(g, h, hash))?,
        left: g.chunks,
    })
}

fn read_array(b: &[u8], g: Geo, chunk: u16, len: usize) -> Result<Vec<u8>> {
    let mut out = Vec::new();
    read_array_into(b, g, chunk, len, &mut out)?;
    Ok(out)
}

/// Appends an array to `out`.
fn read_array_into(b: &[u8], g: Geo, mut chunk: u16, len: usize, out: &mut Vec<u8>) -> Result<()> {
    if len > g.chunks * ARRAY_BYTES {
        return Err(bad("array longer than the block"));
    }
    out.reserve(len);
    let end = out.len() + len;
    while out.len() < end {
        let at = g.chunk(chunk)?;
        if b[at] != T_ARRAY {
            return Err(bad("array chunk of another type"));
        }
        let n = (end - out.len()).min(ARRAY_BYTES);
        out.extend_from_slice(&b[at + 1..at + 1 + n]);
        chunk = u16_at(b, at + 22)?;
    }
    Ok(())
}

fn array_is(b: &[u8], g: Geo, mut chunk: u16, want: &[u8]) -> Result<bool> {
    for part in want.chunks(ARRAY_BYTES) {
        let at = g.chunk(chunk)?;
        if b[at] != T_ARRAY {
            return Err(bad("array chunk of another type"));
        }
        if &b[at + 1..at + 1 + part.len()] != part {
            return Ok(false);
        }
        chunk = u16_at(b, at + 22)?;
    }
    Ok(true)
}

/// Calls `f` for every hash bucket with the number of chunks of each entry in it.
pub(crate) fn shape(b: &[u8], f: &mut dyn FnMut(&[usize])) -> Result<()> {
    let (g, _) = open(b)?;
    for i in 0..g.buckets {
        let mut sizes = Vec::new();
        let walk = Chain {
            b,
            g,
            next: u16_at(b, HEADER + 2 * i)?,
            left: g.chunks,
        };
        for e in walk {
            let e = e?;
            // What lies in the name, whichever the size of its integers, is counted in bytes.
            let name = (e.name_ints as usize).div_ceil(ARRAY_BYTES);
            sizes.push(1 + name + e.value_chunks());
        }
        f(&sizes);
    }
    Ok(())
}

/// Stored name of an entry; `int` is the size of its integers (1, or 8 for word keys).
pub(crate) fn name(b: &[u8], g: Geo, e: &LeafEntry, int: usize) -> Result<Vec<u8>> {
    read_array(b, g, e.name_chunk, e.name_ints as usize * int)
}

/// Appends the stored name to `out`.
pub(crate) fn name_into(
    b: &[u8],
    g: Geo,
    e: &LeafEntry,
    int: usize,
    out: &mut Vec<u8>,
) -> Result<()> {
    read_array_into(b, g, e.name_chunk, e.name_ints as usize * int, out)
}

/// The only integer of a value of one, of 8 bytes; `Kind::Invalid` for another value.
pub(crate) fn int_value(b: &[u8], g: Geo, e: &LeafEntry) -> Result<u64> {
    if e.value_size != 8 || e.value_ints != 1 {
        return Err(Kind::Invalid.into());
    }
    let at = g.chunk(e.value_chunk)?;
    if b[at] != T_ARRAY {
        return Err(bad("array chunk of another type"));
    }
    let bytes = &b[at + 1..at + 9];
    Ok(bytes.iter().fold(0, |v, b| v << 8 | u64::from(*b)))
}

pub(crate) fn value(b: &[u8], g: Geo, e: &LeafEntry) -> Result<Value> {
    Ok(Value {
        size: e.value_size,
        data: read_array(b, g, e.value_chunk, e.value_len())?,
    })
}

/// The entry whose stored name is exactly `stored` (`ints` integers).
pub(crate) fn find(b: &[u8], hash: u64, stored: &[u8], ints: usize) -> Result<Option<LeafEntry>> {
    let (g, h) = open(b)?;
    let mut best: Option<LeafEntry> = None;
    for e in chain(b, g, &h, hash)? {
        let e = e?;
        if e.hash == hash
            && e.name_ints as usize == ints
            && best.is_none_or(|x| e.cd < x.cd)
            && array_is(b, g, e.name_chunk, stored)?
        {
            best = Some(e);
        }
    }
    Ok(best)
}

/// The entry with the lowest cd whose name (without NUL) satisfies `same`.
pub(crate) fn find_by(
    b: &[u8],
    hash: u64,
    mut same: impl FnMut(&[u8]) -> bool,
) -> Result<Option<(LeafEntry, Vec<u8>)>> {
    let (g, h) = open(b)?;
    let mut best: Option<(LeafEntry, Vec<u8>)> = None;
    for e in chain(b, g, &h, hash)? {
        let e = e?;
        if e.hash != hash || best.as_ref().is_some_and(|(x, _)| x.cd <= e.cd) {
            continue;
        }
        let mut n = name(b, g, &e, 1)?;
        n.pop();
        if same(&n) {
            best = Some((e, n));
        }
    }
    Ok(best)
}

/// Lowest cd that no entry with this hash uses.
pub(crate) fn free_cd(b: &[u8], hash: u64) -> Result<u32> {
    let (g, h) = open(b)?;
    let mut used = Vec::new();
    for e in chain(b, g, &h, hash)? {
        let e = e?;
        if e.hash == hash {
            used.push(e.cd);
        }
    }
    Ok(lowest_unused(&mut used))
}

/// Smallest number not in `used`.
pub(crate) fn lowest_unused(used: &mut [u32]) -> u32 {
    used.sort_unstable();
    let mut cd = 0;
    for &u in used.iter() {
        if u == cd {
            cd += 1;
        } else if u > cd {
            break;
        }
    }
    cd
}

/// Every entry, in no particular order.
pub(crate) fn entries(b: &[u8]) -> Result<(Geo, LeafHdr, Vec<LeafEntry>)> {
    let (g, h) = open(b)?;
    let mut out = Vec::with_capacity(h.nentries.min(g.chunks));
    for i in 0..g.buckets {
        let c = Chain {
            b,
            g,
            next: u16_at(b, HEADER + 2 * i)?,
            left: g.chunks,
        };
        for e in c {
            out.push(e?);
            if out.len() > g.chunks {
                return Err(bad("more entries than chunks"));
            }
        }
    }
    Ok((g, h, out))
}

fn take_chunk(b: &mut [u8], g: Geo, ty: u8) -> Result<u16> {
    let c = u16_at(b, 34)?;
    let at = g.chunk(c)?;
    let nfree = u16_at(b, 28)?;
    if b[at] != T_FREE || nfree == 0 {
        return Err(bad("free list leads to a chunk that is in use"));
    }
    let next = u16_at(b, at + 22)?;
    put_u16(b, 34, next);
    put_u16(b, 28, nfree - 1);
    b[at..at + CHUNK].fill(0);
    b[at] = ty;
    Ok(c)
}

fn give_chunk(b: &mut [u8], g: Geo, c: u16) -> Result<()> {
    let at = g.chunk(c)?;
    b[at..at + CHUNK].fill(0);
    b[at] = T_FREE;
    let head = u16_at(b, 34)?;
    put_u16(b, at + 22, head);
    put_u16(b, 34, c);
    let nfree = u16_at(b, 28)?;
    put_u16(b, 28, nfree.saturating_add(1).min(g.chunks as u16));
    Ok(())
}

fn write_array(b: &mut [u8], g: Geo, data: &[u8]) -> Result<u16> {
    let mut next = NONE;
    // From the last part to the first, so that each chunk knows its successor.
    for part in data.chunks(ARRAY_BYTES).rev() {
        let c = take_chunk(b, g, T_ARRAY)?;
        let at = g.chunk(c)?;
        b[at + 1..at + 1 + part.len()].copy_from_slice(part);
        put_u16(b, at + 22, next);
        next = c;
    }
    Ok(next)
}

fn free_array(b: &mut [u8], g: Geo, mut c: u16, len: usize) -> Result<()> {
    for _ in 0..len.div_ceil(ARRAY_BYTES) {
        let at = g.chunk(c)?;
        if b[at] != T_ARRAY {
            return Err(bad("array chunk of another type"));
        }
        let next = u16_at(b, at + 22)?;
        give_chunk(b, g, c)?;
        c = next;
    }
    Ok(())
}

/// Chunks that a change is going to take or to free, each once.
struct Claimed {
    g: Geo,
    seen: Vec<u64>,
}

impl Claimed {
    fn new(g: Geo) -> Claimed {
        Claimed {
            g,
            seen: vec![0; g.chunks.div_ceil(64)],
        }
    }

    /// The offset of a chunk of type `ty` that no other part of the change concerns.
    fn claim(&mut self, b: &[u8], c: u16, ty: u8) -> Result<usize> {
        let at = self.g.chunk(c)?;
        let (word, bit) = (usize::from(c) / 64, 1 << (c % 64));
        if b[at] != ty || self.seen[word] & bit != 0 {
            return Err(bad("a chunk is not what leads to it says"));
        }
        self.seen[word] |= bit;
        Ok(at)
    }

    /// The chunks of an array.
    fn array(&mut self, b: &[u8], mut c: u16, len: usize) -> Result<()> {
        for _ in 0..len.div_ceil(ARRAY_BYTES) {
            let at = self.claim(b, c, T_ARRAY)?;
            c = u16_at(b, at + 22)?;
        }
        Ok(())
    }

    /// The first `n` chunks of the free list.
    fn free(&mut self, b: &[u8], n: usize) -> Result<()> {
        if usize::from(u16_at(b, 28)?) < n {
            return Err(bad("fewer free chunks than it says"));
        }
        let mut c = u16_at(b, 34)?;
        for _ in 0..n {
            let at = self.claim(b, c, T_FREE)?;
            c = u16_at(b, at + 22)?;
        }
        Ok(())
    }
}

/// Whether [`insert`] of such an entry can succeed: it fails for no other reason.
pub(crate) fn check_insert(b: &[u8], hash: u64, cd: u32, chunks: usize) -> Result<()> {
    let (g, h) = open(b)?;
    Claimed::new(g).free(b, chunks)?;
    for e in chain(b, g, &h, hash)? {
        if e?.cd > cd {
            break;
        }
    }
    Ok(())
}

/// The same for [`set_value`].
pub(crate) fn check_value(b: &[u8], e: &LeafEntry, v: &Value) -> Result<()> {
    let (g, _) = open(b)?;
    g.chunk(e.chunk)?;
    let mut claimed = Claimed::new(g);
    claimed.array(b, e.value_chunk, e.value_len())?;
    let more = v.data.len().div_ceil(ARRAY_BYTES);
    let freed = e.value_len().div_ceil(ARRAY_BYTES);
    claimed.free(b, more.saturating_sub(freed))
}

/// The same for [`remove`].
pub(crate) fn check_remove(b: &[u8], e: &LeafEntry, int: usize) -> Result<()> {
    let (g, h) = open(b)?;
    let mut claimed = Claimed::new(g);
    claimed.claim(b, e.chunk, T_ENTRY)?;
    claimed.array(b, e.name_chunk, e.name_ints as usize * int)?;
    claimed.array(b, e.value_chunk, e.value_len())?;
    for other in chain(b, g, &h, e.hash)? {
        if other?.chunk == e.chunk {
            return Ok(());
        }
    }
    Err(bad("entry is not in its chain"))
}

/// Adds an entry; the caller has made sure that it fits.
pub(crate) fn insert(
    b: &mut [u8],
    hash: u64,
    cd: u32,
    stored: &[u8],
    ints: usize,
    v: &Value,
) -> Result<()> {
    let (g, h) = open(b)?;
    let c = take_chunk(b, g, T_ENTRY)?;
    let name_chunk = write_array(b, g, stored)?;
    let value_chunk = write_array(b, g, &v.data)?;
    let at = g.chunk(c)?;
    b[at + 1] = v.size;
    put_u16(b, at + 4, name_chunk);
    put_u16(b, at + 6, ints as u16);
    put_u16(b, at + 8, value_chunk);
    put_u16(b, at + 10, v.len() as u16);
    put_u32(b, at + 12, cd);
    put_u64(b, at + 16, hash);
    // Link before the first entry with a larger cd.
    let mut link = bucket(g, &h, hash);
    for _ in 0..=g.chunks {
        let next = u16_at(b, link)?;
        if next == NONE || entry(b, g, next)?.cd > cd {
            put_u16(b, at + 2, next);
            put_u16(b, link, c);
            let n = u16_at(b, 30)?;
            put_u16(b, 30, n.saturating_add(1));
            return Ok(());
        }
        link = g.chunk(next)? + 2;
    }
    Err(bad("chain goes round"))
}

/// Gives an entry another value; the caller has made sure that it fits.
pub(crate) fn set_value(b: &mut [u8], e: &LeafEntry, v: &Value) -> Result<()> {
    let (g, _) = open(b)?;
    let at = g.chunk(e.chunk)?;
    free_array(b, g, e.value_chunk, e.value_len())?;
    let value_chunk = write_array(b, g, &v.data)?;
    b[at + 1] = v.size;
    put_u16(b, at + 8, value_chunk);
    put_u16(b, at + 10, v.len() as u16);
    Ok(())
}

/// Takes an entry out; `int` is the size of its name's integers.
pub(crate) fn remove(b: &mut [u8], e: &LeafEntry, int: usize) -> Result<()> {
    let (g, h) = open(b)?;
    let mut link = bucket(g, &h, e.hash);
    for _ in 0..=g.chunks {
        let next = u16_at(b, link)?;
        if next == e.chunk {
            put_u16(b, link, e.next);
            free_array(b, g, e.name_chunk, e.name_ints as usize * int)?;
            free_array(b, g, e.value_chunk, e.value_len())?;
            give_chunk(b, g, e.chunk)?;
            let n = u16_at(b, 30)?;
            put_u16(b, 30, n.saturating_sub(1));
            return Ok(());
        }
        if next == NONE {
            break;
        }
        link = g.chunk(next)? + 2;
    }
    Err(bad("entry is not in its chain"))
}

/// Sets prefix and prefix length of an empty or unaffected leaf (shrinking).
pub(crate) fn set_prefix(b: &mut [u8], prefix: u64, prefix_len: u32) -> Result<()> {
    open(b)?;
    put_u64(b, 16, prefix);
    put_u16(b, 32, prefix_len as u16);
    Ok(())
}

/// Splits `b` by the next bit of the hash: the two leaves that replace it.
pub(crate) fn split(b: &[u8], int: usize) -> Result<(Vec<u8>, Vec<u8>)> {
    let (g, h, all) = entries(b)?;
    let len = h.prefix_len + 1;
    if len + (g.shift - 5) > 64 {
        return Err(bad("prefix too long to split"));
    }
    let sorted = b[36] & F_SORTED != 0;
    let mut low = vec![0; b.len()];
    let mut high = vec![0; b.len()];
    init(&mut low, h.prefix << 1, len, sorted)?;
    init(&mut high, (h.prefix << 1) | 1, len, sorted)?;
    for e in &all {
        let to = match (e.hash >> (64 - len)) & 1 {
            0 => &mut low,
            _ => &mut high,
        };
        let n = name(b, g, e, int)?;
        let v = value(b, g, e)?;
        insert(to, e.hash, e.cd, &n, e.name_ints as usize, &v)?;
    }
    Ok((low, high))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: usize = 512;

    /// Numbers that look random.
    struct Numbers(u64);

    impl Numbers {
        fn below(&mut self, n: usize) -> usize {
            self.0 = self
                .0
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (self.0 >> 33) as usize % n
        }
    }

    /// A leaf with a few names, each of them in a bucket with others.
    fn leaf() -> (Vec<u8>, Vec<(u64, Vec<u8>)>) {
        let mut b = vec![0; SIZE];
        init(&mut b, 0, 0, false).unwrap();
        let mut names = Vec::new();
        for n in 0..4u64 {
            let name = format!("a name of some length {n}\0").into_bytes();
            let hash = (n / 2) << 60 | n;
            insert(&mut b, hash, 0, &name, name.len(), &Value::u64(n)).unwrap();
            names.push((hash, name));
        }
        (b, names)
    }

    /// A change of a damaged leaf is refused by its check, or succeeds.
    #[test]
    fn a_change_that_was_checked_does_not_fail() {
        let (good, names) = leaf();
        let mut n = Numbers(7);
        let (mut done, mut refused) = (0, 0);
        for _ in 0..60_000 {
            let mut b = good.clone();
            for _ in 0..=n.below(3) {
                let at = n.below(SIZE);
                b[at] = match n.below(3) {
                    0 => n.below(256) as u8,
                    1 => n.below(16) as u8,
                    _ => T_ARRAY + n.below(3) as u8,
                };
            }
            let (hash, name) = &names[n.below(names.len())];
            let Ok(found) = find(&b, *hash, name, name.len()) else {
                continue;
            };
            let value = Value::u64s(&[1, 2, 3]);
            let (checked, changed) = match (found, n.below(2)) {
                (Some(e), 0) => (check_remove(&b, &e, 1), remove(&mut b.clone(), &e, 1)),
                (Some(e), _) => (
                    check_value(&b, &e, &value),
                    set_value(&mut b.clone(), &e, &value),
                ),
                (None, _) => {
                    let chunks = chunks_for(name.len(), value.data.len());
                    (
                        check_insert(&b, *hash, 1, chunks),
                        insert(&mut b.clone(), *hash, 1, name, name.len(), &value),
                    )
                }
            };
            match checked {
                Ok(()) => {
                    assert!(changed.is_ok(), "{changed:?}");
                    done += 1;
                }
                Err(_) => refused += 1,
            }
        }
        assert!(
            done > 1000 && refused > 1000,
            "{done} done, {refused} refused"
        );
    }

    #[test]
    fn an_entry_fits_or_is_refused() {
        let (b, _) = leaf();
        let (_, h) = open(&b).unwrap();
        assert!(check_insert(&b, 1, 0, h.nfree).is_ok());
        assert!(check_insert(&b, 1, 0, h.nfree + 1).is_err());
    }
}
