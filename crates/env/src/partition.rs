//! Partition tables: where on a whole disk the vdev is. GPT (UEFI specification 2.10 §5.3: header and
//! entries, with the backup at the end of the disk), or the four primary entries of an MBR.
//!
//! The kernel knows the partitions of devices; this is for images of whole disks in regular files. ARCHITECTURE.md says why no
//! library does it.

use base::{Error, Result};
use crc::{Crc, CRC_32_ISO_HDLC};

fn slice_at(b: &[u8], at: usize, n: usize) -> Result<&[u8]> {
    at.checked_add(n)
        .and_then(|end| b.get(at..end))
        .ok_or_else(|| Error::damaged(format!("partition table ends before {at}")))
}

fn u32_at(b: &[u8], at: usize) -> Result<u32> {
    let mut a = [0; 4];
    a.copy_from_slice(slice_at(b, at, 4)?);
    Ok(u32::from_le_bytes(a))
}

fn u64_at(b: &[u8], at: usize) -> Result<u64> {
    let mut a = [0; 8];
    a.copy_from_slice(slice_at(b, at, 8)?);
    Ok(u64::from_le_bytes(a))
}

/// Most entries of a table that are looked at.
const MAX_ENTRIES: u32 = 1024;
/// Most bytes of one entry.
const MAX_ENTRY: u32 = 4096;
/// Sector sizes disks have, bytes; the image does not say which.
const SECTORS: [u64; 2] = [512, 4096];
const HEADER: usize = 92;
/// The CRC-32 of a GPT.
const CRC: Crc<u32> = Crc::<u32>::new(&CRC_32_ISO_HDLC);
/// Type of an MBR entry that only says that there is a GPT.
const PROTECTIVE: u8 = 0xee;
/// Types of extended partitions, which hold others and no vdev.
const EXTENDED: [u8; 3] = [0x05, 0x0f, 0x85];

/// A partition of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Partition {
    /// As in the name of its device, from 1 on.
    pub number: u32,
    /// Bytes.
    pub start: u64,
    /// Bytes.
    pub len: u64,
}

/// Reads the table of a disk of `size` bytes; `read(offset, length)` returns bytes of it. Nothing if
/// there is no table, or none that makes sense. Partitions that are not wholly on the disk are left
/// out.
pub fn table(size: u64, read: &dyn Fn(u64, usize) -> Result<Vec<u8>>) -> Vec<Partition> {
    for sector in SECTORS {
        let last = (size / sector).saturating_sub(1);
        for lba in [1, last] {
            if let Ok(Some(found)) = gpt(size, sector, lba, read) {
                return found;
            }
        }
    }
    mbr(size, read).unwrap_or_default()
}

/// The entries of the GPT whose header is in sector `lba`, if there is one and its sums are right.
fn gpt(
    size: u64,
    sector: u64,
    lba: u64,
    read: &dyn Fn(u64, usize) -> Result<Vec<u8>>,
) -> Result<Option<Vec<Partition>>> {
    let Some(at) = lba.checked_mul(sector).filter(|at| at + sector <= size) else {
        return Ok(None);
    };
    let mut header = read(at, sector as usize)?;
    if slice_at(&header, 0, 8)? != b"EFI PART" {
        return Ok(None);
    }
    let length = u32_at(&header, 12)? as usize;
    let sum = u32_at(&header, 16)?;
    let (entries, count) = (u64_at(&header, 72)?, u32_at(&header, 80)?);
    let (entry, entries_sum) = (u32_at(&header, 84)?, u32_at(&header, 88)?);
    if !(HEADER..=sector as usize).contains(&length)
        || u64_at(&header, 24)? != lba
        || count > MAX_ENTRIES
        || !(128..=MAX_ENTRY).contains(&entry)
    {
        return Ok(None);
    }
    header[16..20].fill(0);
    if CRC.checksum(slice_at(&header, 0, length)?) != sum {
        return Ok(None);
    }
    let bytes = (count * entry) as usize;
    let whole = bytes.next_multiple_of(sector as usize);
    let Some(at) = entries
        .checked_mul(sector)
        .filter(|at| at.checked_add(whole as u64).is_some_and(|e| e <= size))
    else {
        return Ok(None);
    };
    let array = read(at, whole)?;
    if CRC.checksum(slice_at(&array, 0, bytes)?) != entries_sum {
        return Ok(None);
    }
    let mut out = Vec::new();
    for i in 0..count {
        let e = slice_at(&array, (i * entry) as usize, entry as usize)?;
        let (first, last) = (u64_at(e, 32)?, u64_at(e, 40)?);
        if e.iter().take(16).any(|b| *b != 0) && first != 0 && first <= last {
            out.extend(partition(i + 1, first, last - first + 1, sector, size));
        }
    }
    Ok(Some(out))
}

fn mbr(size: u64, read: &dyn Fn(u64, usize) -> Result<Vec<u8>>) -> Result<Vec<Partition>> {
    let b = read(0, 512)?;
    let mut out = Vec::new();
    if slice_at(&b, 510, 2)? != [0x55, 0xaa] {
        return Ok(out);
    }
    for i in 0..4u32 {
        let e = slice_at(&b, 446 + 16 * i as usize, 16)?;
        let (status, kind) = (e[0], e[4]);
        if status & 0x7f != 0 {
            // The code of a boot sector rather than a table.
            return Ok(Vec::new());
        }
        if kind != 0 && kind != PROTECTIVE && !EXTENDED.contains(&kind) {
            let (first, count) = (u64::from(u32_at(e, 8)?), u64::from(u32_at(e, 12)?));
            out.extend(partition(i + 1, first, count, 512, size));
        }
    }
    Ok(out)
}

fn partition(number: u32, first: u64, count: u64, sector: u64, size: u64) -> Option<Partition> {
    let start = first.checked_mul(sector)?;
    let len = count.checked_mul(sector)?;
    let end = start.checked_add(len)?;
    (first > 0 && len > 0 && end <= size).then_some(Partition { number, start, len })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u64 = 64 << 20;

    fn look(disk: &[u8]) -> Vec<Partition> {
        table(SIZE, &|at, len| {
            let mut out = vec![0; len];
            let at = at as usize;
            // What was not written is zero.
            for (o, b) in out.iter_mut().zip(disk.iter().skip(at)) {
                *o = *b;
            }
            Ok(out)
        })
    }

    /// A table with partition 1 from 2048 on and partition 3 behind it, in sectors.
    fn sample(sector: usize) -> Vec<u8> {
        let mut d = vec![0; sector * 2 + 128 * 128];
        let entries = sector * 2;
        for (i, first, last) in [
            (0usize, 2048u64, 4095u64),
            (2, 4096, 4097),
            (3, 1 << 60, 1 << 61),
        ] {
            let e = entries + 128 * i;
            d[e] = 1;
            d[e + 32..e + 40].copy_from_slice(&first.to_le_bytes());
            d[e + 40..e + 48].copy_from_slice(&last.to_le_bytes());
        }
        let sum = CRC.checksum(&d[entries..]);
        let h = sector;
        d[h..h + 8].copy_from_slice(b"EFI PART");
        d[h + 12..h + 16].copy_from_slice(&92u32.to_le_bytes());
        d[h + 24..h + 32].copy_from_slice(&1u64.to_le_bytes());
        d[h + 72..h + 80].copy_from_slice(&2u64.to_le_bytes());
        d[h + 80..h + 84].copy_from_slice(&128u32.to_le_bytes());
        d[h + 84..h + 88].copy_from_slice(&128u32.to_le_bytes());
        d[h + 88..h + 92].copy_from_slice(&sum.to_le_bytes());
        let sum = CRC.checksum(&d[h..h + 92]);
        d[h + 16..h + 20].copy_from_slice(&sum.to_le_bytes());
        d
    }

    #[test]
    fn gpt_of_both_sector_sizes() {
        for sector in [512, 4096] {
            let s = sector as u64;
            let p = |number, first: u64, count: u64| Partition {
                number,
                start: first * s,
                len: count * s,
            };
            let d = sample(sector);
            assert_eq!(look(&d), [p(1, 2048, 2048), p(3, 4096, 2)], "{sector}");
            for (at, why) in [
                (sector, "magic"),
                (sector + 20, "sum"),
                (2 * sector, "entries"),
            ] {
                let mut bad = d.clone();
                bad[at] ^= 1;
                assert!(look(&bad).is_empty(), "{why}");
            }
        }
    }

    /// Sums of these are right, and still nothing is read for them, or out of bounds.
    #[test]
    fn sizes_that_make_no_sense_are_no_table() {
        for (at, value) in [
            (12, 91),          // length of the header
            (12, 513),         // longer than its sector
            (80, 1025),        // entries
            (80, u32::MAX),    // entries
            (84, 0),           // bytes of one
            (84, 127),         // too short
            (84, 8192),        // too long
            (84, 1 << 31),     // too long
            (72, 1 << 20),     // sector of the entries: behind the end
            (76, 0x8000_0000), // beyond what a number of bytes can say
        ] {
            let mut d = sample(512);
            d[512 + at..512 + at + 4].copy_from_slice(&value.to_le_bytes());
            d[512 + 16..512 + 20].fill(0);
            let length = (value as usize).clamp(0, 512);
            let length = if at == 12 { length } else { 92 };
            let sum = CRC.checksum(&d[512..512 + length]);
            d[512 + 16..512 + 20].copy_from_slice(&sum.to_le_bytes());
            assert!(look(&d).is_empty(), "{at}: {value}");
        }
    }

    /// The specification lets headers grow; the sum is over their whole length.
    #[test]
    fn a_longer_header_is_understood() {
        let mut d = sample(512);
        d[512 + 12..512 + 16].copy_from_slice(&200u32.to_le_bytes());
        d[512 + 150] = 7;
        d[512 + 16..512 + 20].fill(0);
        let sum = CRC.checksum(&d[512..712]);
        d[512 + 16..512 + 20].copy_from_slice(&sum.to_le_bytes());
        assert_eq!(look(&d).len(), 2);
        d[512 + 150] = 8;
        assert!(look(&d).is_empty());
    }

    #[test]
    fn the_backup_serves() {
        let mut d = sample(512);
        let mut end = vec![0; SIZE as usize];
        let h = SIZE as usize - 512;
        let array = d[1024..].to_vec();
        end[h - array.len()..h].copy_from_slice(&array);
        d[512 + 24..512 + 32].copy_from_slice(&(SIZE / 512 - 1).to_le_bytes());
        d[512 + 72..512 + 80].copy_from_slice(&((h - array.len()) as u64 / 512).to_le_bytes());
        d[512 + 16..512 + 20].fill(0);
        let sum = CRC.checksum(&d[512..512 + 92]);
        d[512 + 16..512 + 20].copy_from_slice(&sum.to_le_bytes());
        end[h..].copy_from_slice(&d[512..1024]);
        assert_eq!(look(&end).len(), 2);
    }

    #[test]
    fn mbr_and_nonsense() {
        assert!(look(&[]).is_empty());
        let mut d = vec![0; 512];
        d[510..].copy_from_slice(&[0x55, 0xaa]);
        for (i, kind, first, count) in [
            (0, 0xa5u8, 63u32, 100u32),
            (1, 5, 300, 10),
            (3, 0xbf, 500, u32::MAX),
        ] {
            let e = 446 + 16 * i;
            d[e + 4] = kind;
            d[e + 8..e + 12].copy_from_slice(&first.to_le_bytes());
            d[e + 12..e + 16].copy_from_slice(&count.to_le_bytes());
        }
        assert_eq!(
            look(&d),
            [Partition {
                number: 1,
                start: 63 * 512,
                len: 100 * 512
            }]
        );
        d[446] = 1;
        assert!(look(&d).is_empty());
    }
}
