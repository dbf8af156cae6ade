//! Bulk operations on integer keys: reading all of them without a copy of each name, and filling a new ZAP at once.
//!
//! The deadlist of a snapshot has one key for every snapshot before it, and the next snapshot begins
//! with a copy of them all. One by one, that is a search, a block change and a header change for each.

use crate::hash::hash;
use crate::micro::{self, Micro};
use crate::table::CopyChecked;
use crate::value::Key;
use crate::{hex_key, leaf, parse_hex_key, Store, Value, Zap, FAT_SHIFT};
use base::{bail, Error, Kind, Result};

/// Free chunks that a leaf keeps, so that the next entries do not split it at once.
const SPARE_CHUNKS: usize = 64;

/// An entry on its way into a new ZAP.
struct New {
    hash: u64,
    cd: u32,
    key: u64,
    value: u64,
}

/// A leaf of a new ZAP: its prefix, the bits of that, and which entries it takes.
struct Part {
    prefix: u64,
    len: u32,
    from: usize,
    to: usize,
}

impl<S: Store> Zap<'_, S> {
    /// Every entry hex(k) → v as (k, v), in no particular order.
    ///
    /// Errors: `Kind::Damaged` if a name is no such number, `Kind::Invalid` if a value is no integer, `Kind::Suspended` for a
    /// thread that does not wait for a lock that may stay taken.
    pub fn int_keys(&self) -> Result<Vec<(u64, u64)>> {
        let _lock = self.read_lock()?;
        let head = self.store.block(0)?;
        let mut out = Vec::new();
        if Self::is_micro(&head)? {
            for e in Micro::open(&head)?.entries() {
                out.push((parse_hex_key(e.name)?, e.value));
            }
            return Ok(out);
        }
        let h = self.hdr()?;
        let mut name = Vec::new();
        let mut at = 0;
        // Every leaf has a run of pointers, which its prefix tells: no leaf is read twice.
        while at < 1u64 << h.zt_shift.min(63) {
            let b = self.store.block(self.pointer(&h, at)?)?;
            let (g, lh, all) = leaf::entries(&b)?;
            if lh.prefix_len > h.zt_shift || lh.prefix != at >> (h.zt_shift - lh.prefix_len) {
                return Err(Error::damaged("ZAP leaf in the wrong place of the table"));
            }
            for e in &all {
                name.clear();
                leaf::name_into(&b, g, e, h.name_int(), &mut name)?;
                name.pop();
                out.push((parse_hex_key(&name)?, leaf::int_value(&b, g, e)?));
            }
            at += 1 << (h.zt_shift - lh.prefix_len);
        }
        Ok(out)
    }

    /// Puts the entries hex(k) → v into a ZAP that is empty, as [`create`](Self::create) made it. No key may come twice.
    ///
    /// Errors: `Kind::Invalid` if the ZAP is not empty, or has names that are normalized.
    pub fn fill_int_keys(&self, tx: &S::Tx, list: &[(u64, u64)]) -> Result<()> {
        let _lock = self.write_lock();
        let b = self.store.block(0)?;
        if !Self::is_micro(&b)? || Micro::open(&b)?.entries().next().is_some() {
            bail!(Invalid, "a ZAP that is not empty is filled");
        }
        let m = Micro::open(&b)?;
        if m.normflags != 0 {
            bail!(Invalid, "integer keys in a ZAP with normalized names");
        }
        let salt = m.salt;
        drop(b);
        let mut new: Vec<New> = list
            .iter()
            .map(|&(key, value)| New {
                hash: hash(Key::Name(hex_key(key).as_bytes()), salt, 0),
                cd: 0,
                key,
                value,
            })
            .collect();
        new.sort_unstable_by_key(|n| (n.hash, n.key));
        for i in 1..new.len() {
            if new[i].hash == new[i - 1].hash {
                if new[i].key == new[i - 1].key {
                    bail!(Invalid, "a key twice in a new ZAP");
                }
                new[i].cd = new[i - 1].cd + 1;
            }
        }
        self.store.index().forget();
        let need = ((new.len() + 1) * micro::ENTRY).next_multiple_of(512);
        if need <= self.max_micro {
            return self.fill_micro_block(tx, &new, need);
        }
        self.fill_leaves(tx, &new, salt)
    }

    fn fill_micro_block(&self, tx: &S::Tx, new: &[New], need: usize) -> Result<()> {
        if self.store.block_size() < need {
            self.store.set_block_size(tx, need)?;
        }
        self.store.modify(tx, 0, |b| {
            for (i, n) in new.iter().enumerate() {
                let name = hex_key(n.key);
                micro::put(b, (i + 1) * micro::ENTRY, name.as_bytes(), n.value, n.cd);
            }
        })
    }

    fn fill_leaves(&self, tx: &S::Tx, new: &[New], salt: u64) -> Result<()> {
        let size = 1usize << FAT_SHIFT;
        if self.store.block_size() != size {
            self.store.set_block_size(tx, size)?;
        }
        self.fat_init(tx, salt, 0, 0)?;
        let mut h = self.hdr()?;
        // All names of 20 bytes and less, and all values, take one chunk each.
        let each = leaf::chunks_for(17, 8);
        let most = (h.geo.chunks - SPARE_CHUNKS) / each;
        let mut parts = Vec::new();
        divide(new, 0, new.len(), 0, 0, most, &mut parts)?;
        let depth = parts.iter().map(|p| p.len).max().unwrap_or(0);
        while h.zt_shift < depth || h.zt_nextblk != 0 {
            self.grow_step(tx, &mut h)?;
        }
        // The first leaf is there already.
        let first = h.freeblk;
        h.freeblk += parts.len() as u64 - 1;
        h.num_leafs = parts.len() as u64;
        h.num_entries = new.len() as u64;
        self.put_hdr(tx, &h)?;
        for (i, p) in parts.iter().enumerate() {
            let blk = match i {
                0 => 1,
                i => first + i as u64 - 1,
            };
            let mut b = vec![0; size];
            leaf::init(&mut b, p.prefix, p.len, false)?;
            for n in &new[p.from..p.to] {
                let (stored, ints) = Key::Name(hex_key(n.key).as_bytes()).stored();
                leaf::insert(&mut b, n.hash, n.cd, &stored, ints, &Value::u64(n.value))?;
            }
            self.store
                .modify(tx, blk, |old| old.copy_from_slice_checked(&b))??;
            let span = h.zt_shift - p.len;
            self.set_pointers(tx, &h, p.prefix << span, 1 << span, blk)?;
        }
        Ok(())
    }
}

/// Divides entries, which are in order of hash, into leaves of at most `most`.
fn divide(
    new: &[New],
    from: usize,
    to: usize,
    prefix: u64,
    len: u32,
    most: usize,
    out: &mut Vec<Part>,
) -> Result<()> {
    if to - from <= most {
        out.push(Part {
            prefix,
            len,
            from,
            to,
        });
        return Ok(());
    }
    if len >= crate::hash::hash_bits(0) - 2 {
        return Err(Error::new(Kind::NoSpace, "too many names with one hash"));
    }
    let bit = 1 << (63 - len);
    let middle = from + new[from..to].partition_point(|n| n.hash & bit == 0);
    divide(new, from, middle, prefix << 1, len + 1, most, out)?;
    divide(new, middle, to, prefix << 1 | 1, len + 1, most, out)
}
