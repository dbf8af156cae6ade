//! Operations on fat ZAPs (data format §3.4).

use crate::hash::{hash, max_cd};
use crate::leaf::{self, chunks_for};
use crate::table::Hdr;
use crate::value::Key;
use crate::view::{Mode, Prepared};
use crate::{normalize, Found, Match, Store, Value, Zap};
use base::{bail, Error, Kind, Result};
use disk::bytes::u64_at;

/// Free chunks below which a full-depth leaf makes the pointer table start growing.
const LOW_WATER: usize = 20;

impl<S: Store> Zap<'_, S> {
    pub(crate) fn prepare(&self, key: Key<'_>, h: &Hdr) -> Result<Prepared> {
        let words = matches!(key, Key::Words(_));
        if words != (h.name_int() == 8) {
            bail!(Invalid, "wrong kind of key for this ZAP");
        }
        let hashed = match key {
            Key::Name(n) => hash(Key::Name(&normalize(n, h.normflags)), h.salt, h.flags),
            k => hash(k, h.salt, h.flags),
        };
        let (stored, ints) = key.stored();
        if stored.len() > self.max_name {
            bail!(NameTooLong, "name of {} bytes in a ZAP", stored.len());
        }
        Ok(Prepared {
            hash: hashed,
            stored,
            ints,
        })
    }

    pub(crate) fn fat_find(&self, key: Key<'_>, how: Match) -> Result<Option<Found>> {
        let h = self.hdr()?;
        let p = match self.prepare(key, &h) {
            Err(e) if e.kind == Kind::NameTooLong => return Ok(None),
            r => r?,
        };
        let blk = self.pointer(&h, h.index(p.hash))?;
        let b = self.store.block(blk)?;
        let form = how.form(h.normflags);
        let (e, name) = match (key, form) {
            (Key::Name(n), Some(form)) if h.normflags != 0 => {
                let want = normalize(n, form);
                match leaf::find_by(&b, p.hash, |x| normalize(x, form) == want)? {
                    Some(found) => found,
                    None => return Ok(None),
                }
            }
            _ => match leaf::find(&b, p.hash, &p.stored, p.ints)? {
                Some(e) => {
                    let mut name = p.stored;
                    if matches!(key, Key::Name(_)) {
                        name.pop();
                    }
                    (e, name)
                }
                None => return Ok(None),
            },
        };
        let (g, _) = leaf::open(&b)?;
        Ok(Some(Found {
            value: leaf::value(&b, g, &e)?,
            name,
            cd: e.cd,
        }))
    }

    /// Adds or updates; `cd` is given when entries of a microzap move in.
    pub(crate) fn fat_put(
        &self,
        tx: &S::Tx,
        key: Key<'_>,
        v: &Value,
        mode: Mode,
        cd: Option<u32>,
    ) -> Result<()> {
        if v.data.len() > crate::MAX_VALUE {
            bail!(ArgTooBig, "ZAP value of {} bytes", v.data.len());
        }
        if !matches!(v.size, 1 | 2 | 4 | 8) || v.data.len() % v.size as usize != 0 {
            bail!(Invalid, "ZAP value of {}-byte integers", v.size);
        }
        // A leaf splits at most once per bit of hash.
        for _ in 0..=64 {
            let mut h = self.hdr()?;
            let p = self.prepare(key, &h)?;
            if p.stored.is_empty() {
                bail!(Invalid, "empty key");
            }
            let blk = self.pointer(&h, h.index(p.hash))?;
            let b = self.store.block(blk)?;
            let (g, lh) = leaf::open(&b)?;
            let old = leaf::find(&b, p.hash, &p.stored, p.ints)?;
            if old.is_some() && mode == Mode::Add {
                bail!(Exists, "ZAP entry exists");
            }
            let need = chunks_for(p.stored.len(), v.data.len());
            if need > g.chunks {
                bail!(ArgTooBig, "ZAP entry larger than a leaf");
            }
            if let Some(e) = old {
                let value_chunks = chunks_for(0, v.data.len()) - 1;
                if lh.nfree + e.value_chunks() >= value_chunks {
                    leaf::check_value(&b, &e, v)?;
                    drop(b);
                    return self.change_leaf(tx, blk, |b| leaf::set_value(b, &e, v));
                }
            } else if lh.nfree >= need {
                let cd = match cd {
                    Some(cd) => cd,
                    None => leaf::free_cd(&b, p.hash)?,
                };
                if cd > max_cd(h.flags) {
                    bail!(NoSpace, "too many names with one hash");
                }
                leaf::check_insert(&b, p.hash, cd, need)?;
                drop(b);
                self.hold(tx, 0)?;
                self.change_leaf(tx, blk, |b| {
                    leaf::insert(b, p.hash, cd, &p.stored, p.ints, v)
                })?;
                h.num_entries = h.num_entries.saturating_add(1);
                self.put_hdr(tx, &h)?;
                let crowded = lh.prefix_len == h.zt_shift && lh.nfree - need < LOW_WATER;
                if h.zt_nextblk != 0 || crowded {
                    // The entry is there, whatever becomes of the table.
                    match self.grow_step(tx, &mut h) {
                        Err(e) if e.kind == Kind::NoSpace || e.is_damage() => {}
                        r => r?,
                    }
                }
                return Ok(());
            }
            drop(b);
            self.split_leaf(tx, blk, p.hash)?;
        }
        Err(Error::damaged("ZAP leaf that never empties"))
    }

    /// Removes the entry `found` by [`fat_find`](Self::fat_find) under its stored name.
    pub(crate) fn fat_remove(&self, tx: &S::Tx, key: Key<'_>) -> Result<bool> {
        let mut h = self.hdr()?;
        let p = match self.prepare(key, &h) {
            Err(e) if e.kind == Kind::NameTooLong => return Ok(false),
            r => r?,
        };
        let blk = self.pointer(&h, h.index(p.hash))?;
        let b = self.store.block(blk)?;
        let Some(e) = leaf::find(&b, p.hash, &p.stored, p.ints)? else {
            return Ok(false);
        };
        let int = h.name_int();
        leaf::check_remove(&b, &e, int)?;
        drop(b);
        self.hold(tx, 0)?;
        self.change_leaf(tx, blk, |b| leaf::remove(b, &e, int))?;
        h.num_entries = h.num_entries.saturating_sub(1);
        self.put_hdr(tx, &h)?;
        // The entry is gone, whether or not its leaf can go.
        match self.shrink(tx, blk, p.hash) {
            Err(e) if e.is_damage() => Ok(true),
            r => r.map(|()| true),
        }
    }

    /// Changes a leaf as a whole: what could make the change fail was looked at before, so that a damaged leaf stays as it is. (The
    /// lock is held, so nobody changes the leaf in between.)
    fn change_leaf(
        &self,
        tx: &S::Tx,
        blk: u64,
        change: impl FnOnce(&mut [u8]) -> Result<()>,
    ) -> Result<()> {
        let changed = self.store.modify(tx, blk, |b| change(b))?;
        debug_assert!(changed.is_ok(), "{changed:?}");
        changed
    }

    /// Joins an empty leaf with its empty sibling, as long as there is one (data format §3.4).
    fn shrink(&self, tx: &S::Tx, mut blk: u64, hash: u64) -> Result<()> {
        for _ in 0..64 {
            let mut h = self.hdr()?;
            let (_, lh) = leaf::open(&self.store.block(blk)?)?;
            // While a larger table is built the pointers live in two places; leave it alone.
            if lh.nentries != 0 || lh.prefix_len == 0 || h.zt_nextblk != 0 {
                return Ok(());
            }
            let prefix = hash.checked_shr(64 - lh.prefix_len).unwrap_or(0);
            if lh.prefix != prefix || lh.prefix_len > h.zt_shift {
                return Err(Error::damaged("ZAP leaf in the wrong place of the table"));
            }
            let span = h.zt_shift - lh.prefix_len;
            let first = (prefix ^ 1) << span;
            let sibling = self.pointer(&h, first)?;
            let (_, sh) = leaf::open(&self.store.block(sibling)?)?;
            if sibling == blk
                || sh.nentries != 0
                || sh.prefix_len != lh.prefix_len
                || sh.prefix != prefix ^ 1
            {
                return Ok(());
            }
            let (keep, gone) = match prefix & 1 {
                0 => (blk, sibling),
                _ => (sibling, blk),
            };
            self.hold(tx, 0)?;
            self.hold(tx, keep)?;
            self.hold_pointers(tx, &h, (prefix | 1) << span, 1 << span)?;
            self.set_pointers(tx, &h, (prefix | 1) << span, 1 << span, keep)?;
            self.store.modify(tx, keep, |b| {
                leaf::set_prefix(b, prefix >> 1, lh.prefix_len - 1)
            })??;
            h.num_leafs = h.num_leafs.saturating_sub(1);
            // Only the very last block can be given back to `freeblk`; others stay holes.
            if gone + 1 == h.freeblk {
                h.freeblk -= 1;
            }
            self.put_hdr(tx, &h)?;
            self.store.free_blocks(tx, gone, 1)?;
            blk = keep;
        }
        Ok(())
    }

    /// Writes header and first leaf of an empty fat ZAP with the object's block size.
    pub(crate) fn fat_init(
        &self,
        tx: &S::Tx,
        salt: u64,
        normflags: u64,
        zap_flags: u64,
    ) -> Result<()> {
        self.store
            .modify(tx, 0, |b| Hdr::init(b, salt, normflags, zap_flags))??;
        self.store
            .modify(tx, 1, |b| leaf::init(b, 0, 0, normflags != 0))?
    }

    /// Whether block 0 is a microzap; an error if it is no ZAP at all.
    pub(crate) fn is_micro(b: &[u8]) -> Result<bool> {
        match u64_at(b, 0)? {
            crate::BLOCK_MICRO => Ok(true),
            crate::BLOCK_HEADER => Ok(false),
            w => Err(Error::damaged(format!("not a ZAP: first word {w:#x}"))),
        }
    }
}
