//! The image of a stream: its records applied in memory, for tests. Two chains of streams that lead to the same
//! snapshot must give the same image.

use crate::Reader;
use base::{bail, Result};
use disk::stream::{record_flag, Object, Record};
use std::collections::{BTreeMap, BTreeSet};

/// The objects of a snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Image {
    objects: BTreeMap<u64, Content>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Content {
    /// Without the guid of the snapshot.
    record: Object,
    bonus: Vec<u8>,
    /// Blocks that are not all zero, by offset, up to the last byte that is not.
    blocks: BTreeMap<u64, Vec<u8>>,
    spill: Option<Vec<u8>>,
}

impl Content {
    fn difference(&self, other: &Content) -> String {
        if self.record != other.record {
            return format!("{:?}, not {:?}", other.record, self.record);
        }
        let bonus = if self.bonus != other.bonus {
            "its bonus "
        } else {
            ""
        };
        let spill = if self.spill != other.spill {
            "its spill block "
        } else {
            ""
        };
        let offsets: BTreeSet<u64> = self
            .blocks
            .keys()
            .chain(other.blocks.keys())
            .copied()
            .collect();
        let blocks: Vec<u64> = offsets
            .into_iter()
            .filter(|o| self.blocks.get(o) != other.blocks.get(o))
            .take(10)
            .collect();
        format!("{bonus}{spill}blocks at {blocks:?}")
    }
}

impl Image {
    /// Objects there are.
    pub fn len(&self) -> usize {
        self.objects.len()
    }

    /// Whether there is nothing.
    pub fn is_empty(&self) -> bool {
        self.objects.is_empty()
    }

    /// What differs from another image, in words; at most ten.
    pub fn differences(&self, other: &Image) -> Vec<String> {
        let numbers: BTreeSet<u64> = self
            .objects
            .keys()
            .chain(other.objects.keys())
            .copied()
            .collect();
        let of = |o: u64| match (self.objects.get(&o), other.objects.get(&o)) {
            (Some(a), Some(b)) if a == b => None,
            (Some(a), Some(b)) => Some(format!("object {o}: {}", a.difference(b))),
            (Some(_), None) => Some(format!("object {o} is missing")),
            _ => Some(format!("object {o} should not be there")),
        };
        numbers.into_iter().filter_map(of).take(10).collect()
    }

    /// Applies the stream of one snapshot, as [`crate::send::send`] writes it without options.
    ///
    /// # Errors
    /// Those of reading it; `Invalid` for a record of a stream with options, or one about an object that is not there.
    pub fn apply(&mut self, stream: &[u8]) -> Result<()> {
        let mut reader = Reader::new(stream);
        while let Some(item) = reader.next()? {
            match item.record {
                Record::Begin(_) | Record::End(_) => {}
                Record::Object(r) => self.object(r, item.payload),
                Record::FreeObjects(r) => {
                    let end = r.first.saturating_add(r.count);
                    self.objects.retain(|o, _| *o < r.first || *o >= end);
                }
                Record::Free(r) => {
                    let end = r.offset.saturating_add(r.length);
                    let content = self.at(r.object)?;
                    content.blocks.retain(|o, _| *o < r.offset || *o >= end);
                }
                Record::Write(r) if r.compression == 0 => {
                    let content = self.at(r.object)?;
                    // The last piece of a block in pieces may be shorter than that of another one.
                    let len = item
                        .payload
                        .iter()
                        .rposition(|b| *b != 0)
                        .map_or(0, |at| at + 1);
                    let mut bytes = item.payload;
                    bytes.truncate(len);
                    match len {
                        0 => content.blocks.remove(&r.offset),
                        _ => content.blocks.insert(r.offset, bytes),
                    };
                }
                Record::Spill(r) if r.compressed_size == 0 => {
                    self.at(r.object)?.spill = Some(item.payload);
                }
                r => bail!(Invalid, "{} record in a plain stream", r.name()),
            }
        }
        Ok(())
    }

    fn at(&mut self, object: u64) -> Result<&mut Content> {
        match self.objects.get_mut(&object) {
            Some(c) => Ok(c),
            None => bail!(
                Invalid,
                "a record about object {object}, which is not there"
            ),
        }
    }

    fn object(&mut self, r: Object, bonus: Vec<u8>) {
        // A larger object that takes the slots of others replaces them.
        let (first, slots) = (r.object, u64::from(r.slots.max(1)));
        let end = first.saturating_add(slots);
        self.objects.retain(|o, _| *o <= first || *o >= end);
        let content = self.objects.entry(first).or_default();
        let fits = content.record.block_size == r.block_size && content.record.slots == r.slots;
        if !fits {
            content.blocks.clear();
        }
        if r.flags & record_flag::OBJECT_SPILL == 0 {
            content.spill = None;
        }
        content.record = Object { to_guid: 0, ..r };
        content.bonus = bonus;
    }
}
