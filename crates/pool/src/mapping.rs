//! The MOS objects of a mapping: its entries, the counts of what is obsolete in them, and the births (pool format §23).

use crate::Pool;
use base::{bail, Result, Txg};
use disk::bytes::u64_at;
use disk::feature::guid;
use disk::ObjType;
use dmu::{NewObject, Tx};
use vdev::indirect::{Moved, ENTRY};

/// Bytes of a block of all these objects.
const BLOCK: usize = 128 << 10;
/// Bytes of a count.
const COUNT: usize = 4;
/// Bytes of the header of a mapping, without and with the number of the object with the counts.
const HEADER: usize = 24;
const HEADER_WITH_COUNTS: usize = 32;
/// Entries that are put together before they are written.
const PORTION: usize = 32 << 10;

/// An entry, and the bytes of it that nothing refers to.
pub(crate) type Counted = (Moved, u32);

/// A mapping object that is open for writing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mapping {
    /// MOS object of the entries.
    pub object: u64,
    /// MOS object of the counts; 0: the mapping has none.
    pub counts: u64,
    /// Where the last entry ends on the removed vdev.
    pub end: u64,
    /// Bytes of all entries.
    pub bytes: u64,
    /// Number of entries.
    pub entries: u64,
}

impl Mapping {
    /// Makes an empty one, and counts it.
    pub fn create(pool: &Pool, tx: &Tx) -> Result<Mapping> {
        let counted = pool.config.features.is_enabled(guid::OBSOLETE_COUNTS);
        let object = |obj_type, bonus: usize| NewObject {
            obj_type,
            block_size: BLOCK,
            bonus_type: match bonus {
                0 => ObjType::NONE,
                _ => ObjType::U64_METADATA,
            },
            bonus: vec![0; bonus],
            ..NewObject::default()
        };
        let header = if counted { HEADER_WITH_COUNTS } else { HEADER };
        let dn = pool
            .mos()
            .alloc(tx, &object(ObjType::U64_METADATA, header))?;
        let mut out = Mapping {
            object: dn.object(),
            counts: 0,
            end: 0,
            bytes: 0,
            entries: 0,
        };
        if counted {
            let dn = pool.mos().alloc(tx, &object(ObjType::U32_METADATA, 0))?;
            out.counts = dn.object();
            pool.config
                .features
                .activate(tx, guid::OBSOLETE_COUNTS, 1)?;
        }
        pool.config.features.activate(tx, guid::DEVICE_REMOVAL, 1)?;
        out.store(pool, tx)?;
        Ok(out)
    }

    /// One that is on disk.
    pub fn open(pool: &Pool, object: u64) -> Result<Mapping> {
        let b = pool.mos().hold(object)?.bonus();
        Ok(Mapping {
            object,
            counts: match b.len() >= HEADER_WITH_COUNTS {
                true => u64_at(&b, HEADER)?,
                false => 0,
            },
            end: u64_at(&b, 0)?,
            bytes: u64_at(&b, 8)?,
            entries: u64_at(&b, 16)?,
        })
    }

    fn store(&self, pool: &Pool, tx: &Tx) -> Result<()> {
        let dn = pool.mos().hold(self.object)?;
        let words = [self.end, self.bytes, self.entries, self.counts];
        let mut b: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        b.truncate(dn.bonus().len());
        dn.set_bonus(tx, &b)
    }

    /// Adds entries behind those there are.
    pub fn append(&mut self, pool: &Pool, tx: &Tx, new: &[Counted]) -> Result<()> {
        for portion in new.chunks(PORTION) {
            let at = self.entries;
            let bytes: Vec<u8> = portion.iter().flat_map(|(m, _)| m.encode()).collect();
            let dn = pool.mos().hold(self.object)?;
            dn.write(tx, at * ENTRY as u64, &bytes)?;
            if self.counts != 0 {
                let bytes: Vec<u8> = portion.iter().flat_map(|(_, n)| n.to_le_bytes()).collect();
                let dn = pool.mos().hold(self.counts)?;
                dn.write(tx, at * COUNT as u64, &bytes)?;
            }
            self.entries += portion.len() as u64;
            let new: u64 = portion.iter().map(|(m, _)| m.size).sum();
            // The header was read from disk.
            self.bytes = self.bytes.saturating_add(new);
            self.end = portion.last().map_or(self.end, |(m, _)| m.src + m.size);
        }
        self.store(pool, tx)
    }

    /// The counts of the first `entries` entries; zeros where the mapping has none.
    pub fn read_counts(&self, pool: &Pool, entries: usize) -> Result<Vec<u32>> {
        let mut b = vec![0; entries * COUNT];
        if self.counts != 0 && entries > 0 {
            pool.mos().hold(self.counts)?.read(0, &mut b)?;
        }
        let counts = b.chunks_exact(COUNT);
        Ok(counts
            .map(|c| u32::from_le_bytes([c[0], c[1], c[2], c[3]]))
            .collect())
    }

    /// Frees the objects.
    pub fn free(self, pool: &Pool, tx: &Tx) -> Result<()> {
        if self.counts != 0 {
            pool.mos().free(tx, self.counts)?;
            pool.config
                .features
                .activate(tx, guid::OBSOLETE_COUNTS, -1)?;
        }
        pool.mos().free(tx, self.object)?;
        pool.config.features.activate(tx, guid::DEVICE_REMOVAL, -1)
    }
}

/// Makes an empty object for births.
pub(crate) fn create_births(pool: &Pool, tx: &Tx) -> Result<u64> {
    let new = NewObject {
        obj_type: ObjType::U64_METADATA,
        block_size: BLOCK,
        bonus_type: ObjType::U64_METADATA,
        bonus: vec![0; 8],
        ..NewObject::default()
    };
    Ok(pool.mos().alloc(tx, &new)?.object())
}

/// Notes that everything before `end` that was not copied earlier is copied in the txg of `tx`.
pub(crate) fn add_birth(pool: &Pool, tx: &Tx, object: u64, end: u64) -> Result<()> {
    let dn = pool.mos().hold(object)?;
    let count = u64_at(&dn.bonus(), 0)?;
    let Some(at) = count.checked_mul(16) else {
        bail!(Damaged, "{count} births of a vdev that is removed");
    };
    let born: Txg = tx.txg();
    let entry: Vec<u8> = [end, born.number()]
        .iter()
        .flat_map(|w| w.to_le_bytes())
        .collect();
    dn.write(tx, at, &entry)?;
    dn.set_bonus(tx, &(count + 1).to_le_bytes())
}
