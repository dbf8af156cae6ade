//! Iteration in (hash, cd) order with cookies that survive conversion and splits (data format §3.7).

use crate::hash::{hash_bits, max_cd};
use crate::micro::{Micro, MicroEntry};
use crate::table::Hdr;
use crate::{leaf, Store, Value, Zap};
use base::{Error, Result};

/// One entry of an iteration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Name without NUL; for word keys the words, big-endian.
    pub name: Vec<u8>,
    /// The integers of the entry.
    pub value: Value,
    /// Hash of the name, in the top 28 or 48 bits.
    pub hash: u64,
    /// Collision differentiator: tells apart entries with one hash.
    pub cd: u32,
    /// Position of this entry: a cursor from here starts with it.
    pub cookie: u64,
    /// Position behind this entry: a cursor from here starts with its successor.
    pub next: u64,
}

impl Entry {
    /// The name as text, bytes that are not UTF-8 replaced.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.name).into_owned()
    }

    /// The words of a word key.
    pub fn words(&self) -> Vec<u64> {
        Value {
            size: 8,
            data: self.name.clone(),
        }
        .ints()
    }
}

/// Entries taken from a large microzap at a time.
const AT_ONCE: usize = 256;

/// Cookie of the end of every ZAP.
pub(crate) const END: u64 = u64::MAX;

fn cookie(hash: u64, cd: u64, zap_flags: u64) -> u64 {
    let bits = hash_bits(zap_flags);
    (hash >> (64 - bits)) | (cd << bits)
}

/// The position of a hash and a cd, the next hash where there is no such cd; none behind the last one.
fn behind(hash: u64, cd: u64, zap_flags: u64) -> Option<(u64, u64)> {
    match cd > max_cd(zap_flags) as u64 {
        true => Some((hash.checked_add(1 << (64 - hash_bits(zap_flags)))?, 0)),
        false => Some((hash, cd)),
    }
}

/// Hands out entries. It reads one leaf (or the microzap) at a time: what is added or removed there
/// meanwhile may or may not show, everything else shows exactly once.
pub struct Cursor<'a, S: Store> {
    zap: Zap<'a, S>,
    at: u64,
    /// Entries of the current leaf, last first.
    batch: Vec<Entry>,
    /// Where to look when `batch` is empty; `None` = the end was reached.
    from: Option<(u64, u64)>,
    started: bool,
}

impl<'a, S: Store> Zap<'a, S> {
    /// All entries from the first.
    pub fn iter(&self) -> Cursor<'a, S> {
        self.cursor(0)
    }

    /// Entries from a cookie on (0 = from the first).
    pub fn cursor(&self, cookie: u64) -> Cursor<'a, S> {
        Cursor {
            zap: *self,
            at: cookie,
            batch: Vec::new(),
            from: None,
            started: false,
        }
    }
}

impl<S: Store> Cursor<'_, S> {
    /// Where the next entry would start: what to resume with later.
    pub fn cookie(&self) -> u64 {
        self.at
    }

    fn fill(&mut self) -> Result<()> {
        let _lock = self.zap.read_lock()?;
        let head = self.zap.store.block(0)?;
        if Zap::<S>::is_micro(&head)? {
            return self.fill_micro(&head);
        }
        let h = Hdr::parse(&head)?;
        let bits = hash_bits(h.flags);
        if !self.started {
            self.started = true;
            self.from = match self.at {
                END => None,
                c => behind(c << (64 - bits), c >> bits, h.flags),
            };
        }
        while let (Some((hash, cd)), true) = (self.from, self.batch.is_empty()) {
            let blk = self.zap.pointer(&h, h.index(hash))?;
            let b = self.zap.store.block(blk)?;
            let (g, lh, mut all) = leaf::entries(&b)?;
            // A leaf has a range of hashes of its own. One that says otherwise could be met for ever.
            let len = lh.prefix_len;
            let prefix = |hash: u64| hash.checked_shr(64 - len).unwrap_or(0);
            let strays = |e: &leaf::LeafEntry| prefix(e.hash) != lh.prefix;
            if len > h.zt_shift || prefix(hash) != lh.prefix || all.iter().any(strays) {
                return Err(Error::damaged("ZAP leaf in the wrong place of the table"));
            }
            all.retain(|e| (e.hash, e.cd as u64) >= (hash, cd));
            all.sort_unstable_by_key(|e| std::cmp::Reverse((e.hash, e.cd)));
            for e in &all {
                let mut name = leaf::name(&b, g, e, h.name_int())?;
                if h.name_int() == 1 {
                    name.pop();
                }
                self.batch.push(Entry {
                    name,
                    value: leaf::value(&b, g, e)?,
                    hash: e.hash,
                    cd: e.cd,
                    cookie: cookie(e.hash, e.cd as u64, h.flags),
                    next: cookie(e.hash, e.cd as u64 + 1, h.flags),
                });
            }
            // The first hash behind this leaf; a prefix of 0 bits is the whole space.
            let next = match len {
                0 => None,
                n => ((hash >> (64 - n)) + 1)
                    .checked_shl(64 - n)
                    .filter(|x| *x != 0 && (hash >> (64 - n)) + 1 < 1 << n),
            };
            self.from = next.map(|x| (x, 0));
        }
        Ok(())
    }

    fn fill_micro(&mut self, head: &[u8]) -> Result<()> {
        if !std::mem::replace(&mut self.started, true) && self.at != END {
            self.from = behind(self.at << 36, self.at >> 28, 0);
        }
        let Some((hash, cd)) = self.from.take() else {
            return Ok(());
        };
        let m = Micro::open(head)?;
        let entry = |e: MicroEntry<'_>| {
            let h = m.hash(e.name);
            Entry {
                name: e.name.to_vec(),
                value: Value::u64(e.value),
                hash: h,
                cd: e.cd,
                cookie: cookie(h, e.cd as u64, 0),
                next: cookie(h, e.cd as u64 + 1, 0),
            }
        };
        match self.zap.store.index().of(m) {
            Some(held) => {
                let cd = u32::try_from(cd).unwrap_or(u32::MAX);
                let slots = held.from(hash, cd).filter_map(|slot| m.entry(slot));
                self.batch.extend(slots.take(AT_ONCE).map(entry));
                if let Some(last) = self.batch.last().filter(|_| self.batch.len() == AT_ONCE) {
                    self.from = behind(last.hash, last.cd as u64 + 1, 0);
                }
            }
            None => {
                let all = m.entries().map(entry);
                self.batch
                    .extend(all.filter(|e| (e.hash, e.cd as u64) >= (hash, cd)));
                self.batch.sort_unstable_by_key(|e| (e.hash, e.cd));
            }
        }
        self.batch.reverse();
        Ok(())
    }
}

impl<S: Store> Iterator for Cursor<'_, S> {
    type Item = Result<Entry>;

    fn next(&mut self) -> Option<Result<Entry>> {
        if self.batch.is_empty() && (!self.started || self.from.is_some()) {
            if let Err(e) = self.fill() {
                // An error ends the iteration.
                (self.started, self.from) = (true, None);
                self.batch.clear();
                return Some(Err(e));
            }
        }
        match self.batch.pop() {
            Some(e) => {
                self.at = e.next;
                Some(Ok(e))
            }
            None => {
                self.at = END;
                None
            }
        }
    }
}
