//! Microzap: one block of 64-byte entries (data format §3.1).

use crate::hash::hash;
use crate::leaf::lowest_unused;
use crate::{normalize, Key, BLOCK_MICRO};
use base::sync::MutexExt;
use base::Result;
use disk::bytes::{put_u32, put_u64, u64_at};
use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard};

pub(crate) const ENTRY: usize = 64;
const NAME: usize = 14;
/// Longest name without its NUL.
pub(crate) const MAX_MICRO_NAME: usize = 49;
/// Entries of one hash that still fit one 16 KiB leaf after conversion.
const MAX_COLLIDING: usize = 638 / 5;

/// A microzap block; the first word has been checked.
#[derive(Clone, Copy)]
pub(crate) struct Micro<'b> {
    /// The block.
    pub b: &'b [u8],
    /// Salt of the hash.
    pub salt: u64,
    /// Normalization of names; bits of [`crate::norm`].
    pub normflags: u64,
}

/// One entry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MicroEntry<'b> {
    /// Byte offset in the block.
    pub at: usize,
    /// The integer of the entry.
    pub value: u64,
    /// Collision differentiator.
    pub cd: u32,
    /// Name without its NUL.
    pub name: &'b [u8],
}

/// Blocks up to this size are searched entry by entry.
pub(crate) const SMALL: usize = 2048;

/// Where the entries of a block are, for blocks that are too large to be searched. It is made when
/// it is first needed and follows every change; what it says is checked against the block.
#[derive(Debug, Default)]
pub(crate) struct Index {
    /// Hash, cd, slot.
    by_hash: BTreeSet<(u64, u32, u32)>,
    free: BTreeSet<u32>,
    /// Size of the block it was made for.
    size: usize,
}

/// The index of an object, if there is one now.
#[derive(Debug, Default)]
pub struct Indexed(Mutex<Option<Index>>);

impl Indexed {
    /// The index of a block; `None` if that is small.
    pub(crate) fn of(&self, m: Micro<'_>) -> Option<Held<'_>> {
        if m.b.len() <= SMALL {
            return None;
        }
        let mut g = self.0.acquire();
        if g.as_ref().is_none_or(|i| i.size != m.b.len()) {
            *g = Some(Index::new(m));
        }
        Some(Held(g))
    }

    /// The block is no longer what the index was made for.
    pub(crate) fn forget(&self) {
        *self.0.acquire() = None;
    }

    /// Calls `f` with the index, if there is one.
    pub(crate) fn follow(&self, f: impl FnOnce(&mut Index)) {
        let mut g = self.0.acquire();
        if let Some(i) = g.as_mut() {
            f(i);
        }
    }
}

/// An index in use.
pub(crate) struct Held<'i>(MutexGuard<'i, Option<Index>>);

impl Held<'_> {
    fn get(&self) -> Option<&Index> {
        self.0.as_ref()
    }

    /// Cd and slot of the entries of a hash, in order.
    fn of_hash(&self, hash: u64) -> impl Iterator<Item = (u32, usize)> + '_ {
        let all = self.get().into_iter();
        all.flat_map(move |i| i.by_hash.range((hash, 0, 0)..=(hash, u32::MAX, u32::MAX)))
            .map(|e| (e.1, e.2 as usize))
    }

    /// Slots from a position on, in order.
    pub fn from(&self, hash: u64, cd: u32) -> impl Iterator<Item = usize> + '_ {
        let all = self.get().into_iter();
        all.flat_map(move |i| i.by_hash.range((hash, cd, 0)..))
            .map(|e| e.2 as usize)
    }
}

impl Index {
    fn new(m: Micro<'_>) -> Index {
        let mut i = Index {
            free: (1..(m.b.len() / ENTRY) as u32).collect(),
            size: m.b.len(),
            ..Index::default()
        };
        for e in m.entries() {
            i.put(e.at, m.hash(e.name), e.cd);
        }
        i
    }

    /// There is an entry at `at` now.
    pub fn put(&mut self, at: usize, hash: u64, cd: u32) {
        let slot = (at / ENTRY) as u32;
        self.free.remove(&slot);
        self.by_hash.insert((hash, cd, slot));
    }

    /// The entry at `at` has gone.
    pub fn remove(&mut self, at: usize, hash: u64, cd: u32) {
        let slot = (at / ENTRY) as u32;
        self.by_hash.remove(&(hash, cd, slot));
        self.free.insert(slot);
    }

    /// The block has grown.
    pub fn grow(&mut self, size: usize) {
        self.free
            .extend((self.size / ENTRY) as u32..(size / ENTRY) as u32);
        self.size = size;
    }
}

/// Where a new entry goes.
pub(crate) enum Room {
    At { at: usize, cd: u32 },
    Full { cd: u32 },
    TooManyCollisions,
}

impl<'b> Micro<'b> {
    /// A view of a block. `Damaged`: it is shorter than a header.
    pub fn open(b: &'b [u8]) -> Result<Micro<'b>> {
        Ok(Micro {
            b,
            salt: u64_at(b, 8)?,
            normflags: u64_at(b, 16)?,
        })
    }

    /// All entries, in the order of their slots.
    pub fn entries(self) -> impl Iterator<Item = MicroEntry<'b>> {
        let slots = self.b.chunks_exact(ENTRY).enumerate().skip(1);
        slots.filter_map(|(i, s)| {
            let name = &s[NAME..];
            let len = name.iter().position(|b| *b == 0).unwrap_or(name.len());
            if len == 0 {
                return None;
            }
            Some(MicroEntry {
                at: i * ENTRY,
                value: u64_at(s, 0).unwrap_or(0),
                cd: disk::bytes::u32_at(s, 8).unwrap_or(0),
                name: &name[..len],
            })
        })
    }

    /// Hash of a name in this ZAP.
    pub fn hash(&self, name: &[u8]) -> u64 {
        hash(Key::Name(&normalize(name, self.normflags)), self.salt, 0)
    }

    /// The entry in a slot, if there is one.
    pub fn entry(self, slot: usize) -> Option<MicroEntry<'b>> {
        let at = slot.checked_mul(ENTRY).filter(|at| *at > 0)?;
        let s = self.b.get(at..at.checked_add(ENTRY)?)?;
        let name = &s[NAME..];
        let len = name.iter().position(|b| *b == 0).unwrap_or(name.len());
        (len > 0).then(|| MicroEntry {
            at,
            value: u64_at(s, 0).unwrap_or(0),
            cd: disk::bytes::u32_at(s, 8).unwrap_or(0),
            name: &name[..len],
        })
    }

    /// The entry with the lowest cd that has the hash of `name` and satisfies `same`.
    pub fn find(
        self,
        index: &Indexed,
        name: &[u8],
        mut same: impl FnMut(&[u8]) -> bool,
    ) -> Option<MicroEntry<'b>> {
        match index.of(self) {
            Some(held) => {
                let h = self.hash(name);
                held.of_hash(h)
                    .filter_map(|(_, slot)| self.entry(slot))
                    .find(|e| same(e.name))
            }
            None => {
                let mut best: Option<MicroEntry<'b>> = None;
                for e in self.entries() {
                    if best.is_none_or(|x| e.cd < x.cd) && same(e.name) {
                        best = Some(e);
                    }
                }
                best
            }
        }
    }

    /// Slot and cd for a new name; `Full` comes with the cd.
    pub fn room(self, index: &Indexed, name: &[u8]) -> Room {
        let h = self.hash(name);
        let (mut used, free): (Vec<u32>, Option<usize>) = match index.of(self) {
            Some(held) => (
                held.of_hash(h).map(|(cd, _)| cd).collect(),
                held.get().and_then(|i| i.free.first()).map(|s| *s as usize),
            ),
            None => {
                let same = self.entries().filter(|e| self.hash(e.name) == h);
                let slots = self.b.chunks_exact(ENTRY).enumerate().skip(1);
                (
                    same.map(|e| e.cd).collect(),
                    slots.filter(|(_, s)| s[NAME] == 0).map(|(i, _)| i).next(),
                )
            }
        };
        if used.len() >= MAX_COLLIDING {
            return Room::TooManyCollisions;
        }
        let cd = lowest_unused(&mut used);
        match free {
            Some(i) => Room::At { at: i * ENTRY, cd },
            None => Room::Full { cd },
        }
    }
}

/// Writes an empty microzap over `b`.
pub(crate) fn init(b: &mut [u8], salt: u64, normflags: u64) {
    b.fill(0);
    put_u64(b, 0, BLOCK_MICRO);
    put_u64(b, 8, salt);
    put_u64(b, 16, normflags);
}

/// Fills the slot at `at`.
pub(crate) fn put(b: &mut [u8], at: usize, name: &[u8], value: u64, cd: u32) {
    let s = &mut b[at..at + ENTRY];
    s.fill(0);
    put_u64(s, 0, value);
    put_u32(s, 8, cd);
    s[NAME..NAME + name.len()].copy_from_slice(name);
}
