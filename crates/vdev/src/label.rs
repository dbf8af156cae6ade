//! Labels of one open device: reading, verifying, writing (pool format §2).
//!
//! Everything here works on a bare [`Disk`], so that discovery and tools can use it without a tree.

use crate::keys;
use base::mutation::{mutated, Mutation};
use base::{bail, Result, Txg};
use codec::checksum::{embed, verify_embedded};
use disk::label::{
    label_offset, pack_config, psize, unpack_config, BootEnv, BOOTENV_OFFSET, BOOTENV_SIZE, LABELS,
    LABEL_SIZE, MIN_DEVICE, NVLIST_OFFSET, NVLIST_SIZE, RING_OFFSET, RING_SIZE,
};
use disk::uberblock::{slot_count, slot_offset, slot_size};
use disk::{Checksum, NvList, Uberblock};
use env::{Disk, Op};
use std::sync::Arc;

/// Which of the four copies to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LabelSet {
    /// L0 and L2.
    Even,
    /// L1 and L3.
    Odd,
    /// L0 to L3.
    All,
}

impl LabelSet {
    fn has(self, i: usize) -> bool {
        match self {
            LabelSet::Even => i % 2 == 0,
            LabelSet::Odd => i % 2 == 1,
            LabelSet::All => true,
        }
    }
}

/// What the four label copies of a device say.
#[derive(Clone, Debug)]
pub struct Labels {
    /// Config of each copy whose checksum is right and which unpacks.
    pub copies: [Option<NvList>; LABELS],
    /// Whether a copy unpacks although its checksum is wrong.
    pub damaged: [bool; LABELS],
}

impl Labels {
    /// Number of good copies.
    pub fn good(&self) -> usize {
        self.copies.iter().flatten().count()
    }

    /// The config with the greatest txg that is at most `limit`; one without txg or with txg 0 is
    /// taken as is (auxiliary and half-added devices), since it has no rivals.
    pub fn best(&self, limit: Txg) -> Option<&NvList> {
        let txg = |c: &NvList| c.get_txg("txg").unwrap_or_default();
        if let Some(c) = self.copies.iter().flatten().find(|c| txg(c).is_none()) {
            return Some(c);
        }
        // Of equals the first.
        self.copies
            .iter()
            .flatten()
            .filter(|c| txg(c) <= limit)
            .rev()
            .max_by_key(|c| txg(c))
    }
}

fn read_op(offset: u64, len: usize) -> Op {
    Op::Read {
        offset,
        buf: vec![0; len],
    }
}

/// Runs reads and returns the buffers of those that worked.
fn read_all(disk: &dyn Disk, ops: Vec<Op>) -> Vec<Option<Vec<u8>>> {
    disk.batch(ops)
        .into_iter()
        .map(|(op, r)| match (op, r) {
            (Op::Read { buf, .. }, Ok(())) => Some(buf),
            _ => None,
        })
        .collect()
}

/// The checksum of a region that lies at byte `at` of the device.
fn region_ok(region: &[u8], at: u64) -> bool {
    mutated(Mutation::TornLabel) || verify_embedded(Checksum::LABEL, region, &[at, 0, 0, 0]).is_ok()
}

fn seal(region: &mut [u8], at: u64) -> Result<()> {
    embed(Checksum::LABEL, region, &[at, 0, 0, 0]).map(|_| ())
}

/// Reads the four config areas. Unreadable or wrong ones are `None`.
pub fn read_labels(disk: &dyn Disk) -> Labels {
    read_areas(disk).0
}

/// The same, or `None` if the device failed to read an area.
pub fn read_all_labels(disk: &dyn Disk) -> Option<Labels> {
    let (labels, unread) = read_areas(disk);
    (unread == 0).then_some(labels)
}

/// The labels, and how many areas could not be read.
fn read_areas(disk: &dyn Disk) -> (Labels, usize) {
    let size = disk.geometry().size;
    let mut out = Labels {
        copies: [None, None, None, None],
        damaged: [false; LABELS],
    };
    let offsets: Vec<(usize, u64)> = (0..LABELS)
        .filter_map(|i| label_offset(i, size).map(|o| (i, o + NVLIST_OFFSET)))
        .collect();
    let ops = offsets
        .iter()
        .map(|(_, o)| read_op(*o, NVLIST_SIZE))
        .collect();
    let mut unread = 0;
    for ((i, at), area) in offsets.into_iter().zip(read_all(disk, ops)) {
        let Some(area) = area else {
            unread += 1;
            continue;
        };
        let config = unpack_config(&area).ok();
        if region_ok(&area, at) {
            out.copies[i] = config;
        } else {
            out.damaged[i] = config.is_some_and(|c| !c.is_empty());
        }
    }
    (out, unread)
}

/// All valid uberblocks of a device whose top-level vdev has this ashift, with the label copy and
/// slot they were found in.
pub fn read_uberblocks(disk: &dyn Disk, ashift: u32) -> Vec<(usize, usize, Uberblock)> {
    let size = disk.geometry().size;
    let rings: Vec<(usize, u64)> = (0..LABELS)
        .filter_map(|i| label_offset(i, size).map(|o| (i, o + RING_OFFSET)))
        .collect();
    let ops = rings.iter().map(|(_, o)| read_op(*o, RING_SIZE)).collect();
    let mut found = Vec::new();
    for ((i, at), ring) in rings.into_iter().zip(read_all(disk, ops)) {
        let Some(ring) = ring else { continue };
        for (slot, bytes) in ring.chunks_exact(slot_size(ashift)).enumerate() {
            // Most slots of most rings are empty; an error with a text for each of them costs more
            // than the rest.
            if bytes.starts_with(&[0; 8]) {
                continue;
            }
            // Decoding looks at the magic first and is much cheaper than the checksum.
            let Ok(ub) = Uberblock::decode(bytes) else {
                continue;
            };
            if region_ok(bytes, at + (slot * slot_size(ashift)) as u64) {
                found.push((i, slot, ub));
            }
        }
    }
    found
}

/// The best uberblock of a device, of those up to `limit`.
pub fn best_uberblock(disk: &dyn Disk, ashift: u32, limit: Txg) -> Option<Uberblock> {
    read_uberblocks(disk, ashift)
        .into_iter()
        .map(|(_, _, ub)| ub)
        .filter(|ub| !ub.txg.is_none() && ub.txg <= limit)
        .max_by_key(Uberblock::rank)
}

/// Writes a config to a set of label copies; at least one must be written.
pub fn write_config(disk: &dyn Disk, config: &NvList, set: LabelSet) -> Result<()> {
    let area = pack_config(config)?;
    let size = disk.geometry().size;
    let mut ops = Vec::new();
    for i in (0..LABELS).filter(|i| set.has(*i)) {
        let Some(label) = label_offset(i, size) else {
            continue;
        };
        let mut area = area.clone();
        seal(&mut area, label + NVLIST_OFFSET)?;
        ops.push(Op::Write {
            offset: label + NVLIST_OFFSET,
            bufs: vec![Arc::new(area)],
        });
    }
    any_written(disk, ops)
}

/// Writes an uberblock to slot `slot` of all four label copies; at least one must be written.
pub fn write_uberblock(disk: &dyn Disk, ub: &Uberblock, ashift: u32, slot: usize) -> Result<()> {
    if slot >= slot_count(ashift) {
        bail!(Invalid, "uberblock slot {slot}");
    }
    let image = ub.encode(slot_size(ashift));
    let size = disk.geometry().size;
    let mut ops = Vec::new();
    for i in 0..LABELS {
        let Some(label) = label_offset(i, size) else {
            continue;
        };
        let at = label + slot_offset(ashift, slot);
        let mut image = image.clone();
        seal(&mut image, at)?;
        ops.push(Op::Write {
            offset: at,
            bufs: vec![Arc::new(image)],
        });
    }
    any_written(disk, ops)
}

/// A slot in each of the label copies: offset on the device, and bytes.
pub type SlotCopies = Vec<(u64, Vec<u8>)>;

/// What the label copies have in slot `slot` of their rings: offsets on the device, and bytes. Copies that cannot be read are
/// left out.
pub fn read_slot(disk: &dyn Disk, ashift: u32, slot: usize) -> SlotCopies {
    let size = disk.geometry().size;
    let labels = (0..LABELS).filter_map(|i| label_offset(i, size));
    let mut out = Vec::new();
    for label in labels {
        let at = label + slot_offset(ashift, slot);
        let mut bytes = vec![0; slot_size(ashift)];
        if disk.read(at, &mut bytes).is_ok() {
            out.push((at, bytes));
        }
    }
    out
}

/// Writes back what [`read_slot`] returned; at least one copy must be written, if there is any.
pub fn write_slot(disk: &dyn Disk, copies: SlotCopies) -> Result<()> {
    let ops = copies.into_iter().map(|(offset, bytes)| Op::Write {
        offset,
        bufs: vec![Arc::new(bytes)],
    });
    let ops: Vec<Op> = ops.collect();
    match ops.is_empty() {
        true => Ok(()),
        false => any_written(disk, ops),
    }
}

fn any_written(disk: &dyn Disk, ops: Vec<Op>) -> Result<()> {
    let mut error = None;
    let mut written = 0;
    for (_, r) in disk.batch(ops) {
        match r {
            Ok(()) => written += 1,
            Err(e) => error = Some(e),
        }
    }
    match error {
        Some(e) if written == 0 => Err(e),
        None if written == 0 => bail!(Invalid, "device too small for labels"),
        _ => Ok(()),
    }
}

/// The label for a device that leaves its pool: its present label with txg 0. None if it was never a member.
pub fn left(disk: &dyn Disk) -> Option<NvList> {
    let labels = read_labels(disk);
    let mut config = labels.best(Txg::MAX)?.clone();
    if config
        .get_txg(keys::pool::TXG)
        .unwrap_or_default()
        .is_none()
    {
        return None;
    }
    config.set(keys::pool::TXG, 0u64);
    Some(config)
}

/// Initialises all four labels (pool format §2.4): the config (which should have txg 0), a zeroed
/// boot block, an empty uberblock ring. Every write must succeed.
pub fn init(disk: &dyn Disk, config: &NvList) -> Result<()> {
    let size = disk.geometry().size;
    if size < MIN_DEVICE {
        bail!(Overflow, "device is less than the minimum size (64M)");
    }
    let area = pack_config(config)?;
    let boot = BootEnv::Raw(Vec::new()).encode()?;
    // The whole ring is one checksummed region here, so that none of its slots is valid.
    let template = Uberblock {
        software_version: 5000,
        ..Uberblock::default()
    };
    let ring = template.encode(RING_SIZE);
    let mut ops = Vec::new();
    for label in (0..LABELS).filter_map(|i| label_offset(i, size)) {
        let parts = [
            (0, vec![0; BOOTENV_OFFSET as usize]),
            (BOOTENV_OFFSET, boot.clone()),
            (NVLIST_OFFSET, area.clone()),
            (RING_OFFSET, ring.clone()),
        ];
        for (offset, mut bytes) in parts {
            let at = label + offset;
            if offset != 0 {
                seal(&mut bytes, at)?;
            }
            ops.push(Op::Write {
                offset: at,
                bufs: vec![Arc::new(bytes)],
            });
        }
    }
    disk.batch(ops).into_iter().try_for_each(|(_, r)| r)
}

/// The boot environment: the first label copy with a valid checksum.
pub fn read_bootenv(disk: &dyn Disk) -> Result<BootEnv> {
    let size = disk.geometry().size;
    for label in (0..LABELS).filter_map(|i| label_offset(i, size)) {
        let mut block = vec![0; BOOTENV_SIZE];
        let at = label + BOOTENV_OFFSET;
        if disk.read(at, &mut block).is_ok() && region_ok(&block, at) {
            return BootEnv::decode(&block);
        }
    }
    bail!(NotFound, "no valid boot environment block")
}

/// Writes the boot environment to all label copies.
pub fn write_bootenv(disk: &dyn Disk, env: &BootEnv) -> Result<()> {
    let block = env.encode()?;
    let size = disk.geometry().size;
    let mut ops = Vec::new();
    for label in (0..LABELS).filter_map(|i| label_offset(i, size)) {
        let mut block = block.clone();
        seal(&mut block, label + BOOTENV_OFFSET)?;
        ops.push(Op::Write {
            offset: label + BOOTENV_OFFSET,
            bufs: vec![Arc::new(block)],
        });
    }
    any_written(disk, ops)
}

/// `zpool labelclear`: overwrites config areas and rings of the copies that look like labels with
/// zeros. Returns how many copies were cleared.
pub fn clear(disk: &dyn Disk) -> Result<usize> {
    let labels = read_labels(disk);
    let size = disk.geometry().size;
    let mut ops = Vec::new();
    let mut cleared = 0;
    for i in 0..LABELS {
        let Some(label) = label_offset(i, size) else {
            continue;
        };
        if labels.copies[i].is_none() && !labels.damaged[i] {
            continue;
        }
        cleared += 1;
        let rest = vec![0; (LABEL_SIZE - NVLIST_OFFSET) as usize];
        ops.push(Op::Write {
            offset: label + NVLIST_OFFSET,
            bufs: vec![Arc::new(rest)],
        });
    }
    disk.batch(ops).into_iter().try_for_each(|(_, r)| r)?;
    disk.flush()?;
    Ok(cleared)
}

/// After a device grew from `old` to its present size: writes the two last labels at their new
/// places, the config given and the ring copied from the first label.
pub fn relocate(disk: &dyn Disk, old: u64, config: &NvList, ashift: u32) -> Result<()> {
    let size = disk.geometry().size;
    if psize(size) == psize(old) {
        return Ok(());
    }
    let mut blank = vec![0; LABEL_SIZE as usize];
    let valid: Vec<(usize, Uberblock)> = read_uberblocks(disk, ashift)
        .into_iter()
        .filter(|(label, _, _)| *label == 0)
        .map(|(_, slot, ub)| (slot, ub))
        .collect();
    let boot = read_bootenv(disk)
        .unwrap_or(BootEnv::Raw(Vec::new()))
        .encode()?;
    let area = pack_config(config)?;
    let mut ops = Vec::new();
    for label in (2..LABELS).filter_map(|i| label_offset(i, size)) {
        blank.fill(0);
        let mut place = |offset: u64, bytes: &[u8]| -> Result<()> {
            let at = offset as usize;
            let region = &mut blank[at..at + bytes.len()];
            region.copy_from_slice(bytes);
            seal(region, label + offset)
        };
        place(BOOTENV_OFFSET, &boot)?;
        place(NVLIST_OFFSET, &area)?;
        for (slot, ub) in &valid {
            place(slot_offset(ashift, *slot), &ub.encode(slot_size(ashift)))?;
        }
        ops.push(Op::Write {
            offset: label,
            bufs: vec![Arc::new(blank.clone())],
        });
    }
    disk.batch(ops).into_iter().try_for_each(|(_, r)| r)?;
    disk.flush()
}
