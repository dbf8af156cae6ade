//! Microzap: one block of 64-byte entries (data format §3.1).

use crate::hash::hash;
use crate::leaf::lowest_unused;
use crate::{normalize, Key, BLOCK_MICRO};
use base::Result;
use disk::bytes::{put_u32, put_u64, u64_at};

pub(crate) const ENTRY: usize = 64;
const NAME: usize = 14;
/// Longest name without its NUL.
pub(crate) const MAX_MICRO_NAME: usize = 49;
/// Entries of one hash that still fit one 16 KiB leaf after conversion.
const MAX_COLLIDING: usize = 638 / 5;

/// A microzap block; the first word has been checked.
#[derive(Clone, Copy)]
pub(crate) struct Micro<'b> {
    pub b: &'b [u8],
    pub salt: u64,
    pub normflags: u64,
}

/// One entry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MicroEntry<'b> {
    /// Byte offset in the block.
    pub at: usize,
    pub value: u64,
    pub cd: u32,
    pub name: &'b [u8],
}

/// Where a new entry goes.
pub(crate) enum Room {
    At { at: usize, cd: u32 },
    Full,
    TooManyCollisions,
}

impl<'b> Micro<'b> {
    pub fn open(b: &'b [u8]) -> Result<Micro<'b>> {
        Ok(Micro {
            b,
            salt: u64_at(b, 8)?,
            normflags: u64_at(b, 16)?,
        })
    }

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

    pub fn hash(&self, name: &[u8]) -> u64 {
        hash(Key::Name(&normalize(name, self.normflags)), self.salt, 0)
    }

    /// The entry of exactly this name.
    pub fn find(self, name: &[u8]) -> Option<MicroEntry<'b>> {
        if name.is_empty() || name.len() > MAX_MICRO_NAME {
            return None;
        }
        // Comparing eight bytes first keeps the scan of a large block cheap.
        let mut best: Option<MicroEntry<'b>> = None;
        for (i, s) in self.b.chunks_exact(ENTRY).enumerate().skip(1) {
            let n = &s[NAME..];
            let ends = n.get(name.len()).is_none_or(|b| *b == 0);
            if n[0] == name[0] && ends && &n[..name.len()] == name {
                let e = MicroEntry {
                    at: i * ENTRY,
                    value: u64_at(s, 0).unwrap_or(0),
                    cd: disk::bytes::u32_at(s, 8).unwrap_or(0),
                    name: &n[..name.len()],
                };
                if best.is_none_or(|x| e.cd < x.cd) {
                    best = Some(e);
                }
            }
        }
        best
    }

    /// The entry with the lowest cd whose name satisfies `same`.
    pub fn find_by(self, mut same: impl FnMut(&[u8]) -> bool) -> Option<MicroEntry<'b>> {
        let mut best: Option<MicroEntry<'b>> = None;
        for e in self.entries() {
            if best.is_none_or(|x| e.cd < x.cd) && same(e.name) {
                best = Some(e);
            }
        }
        best
    }

    /// Slot and cd for a new name.
    pub fn room(self, name: &[u8]) -> Room {
        let h = self.hash(name);
        let mut used: Vec<u32> = Vec::new();
        for e in self.entries() {
            if self.hash(e.name) == h {
                used.push(e.cd);
            }
        }
        if used.len() >= MAX_COLLIDING {
            return Room::TooManyCollisions;
        }
        let free = self
            .b
            .chunks_exact(ENTRY)
            .enumerate()
            .skip(1)
            .find(|(_, s)| s[NAME] == 0);
        match free {
            Some((i, _)) => Room::At {
                at: i * ENTRY,
                cd: lowest_unused(&mut used),
            },
            None => Room::Full,
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
