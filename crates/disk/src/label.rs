//! Vdev labels (pool format §2.1): where the four copies lie on a leaf device and how one is laid
//! out. The embedded checksums are computed elsewhere; this module only leaves room for them.

use crate::bytes::{slice_at, u64_at};
use crate::nvlist::NvList;
use base::{bail, Result};

/// Copies of the label on one leaf: two in front, two at the end.
pub const LABELS: usize = 4;
/// Bytes of one label.
pub const LABEL_SIZE: u64 = 256 << 10;
/// Bytes in front of the allocatable space (two labels and the boot area); a DVA offset of 0 is
/// this byte of the device.
pub const DATA_START: u64 = 4 << 20;
/// Bytes reserved at the end of the device.
pub const TAIL_SIZE: u64 = 2 * LABEL_SIZE;
/// Smallest leaf device.
pub const MIN_DEVICE: u64 = 64 << 20;
/// Boot area between the front labels and the data; scratch space of a RAID-Z expansion.
pub const BOOT_AREA: u64 = 2 * LABEL_SIZE;

/// Offset of the boot environment block inside a label.
pub const BOOTENV_OFFSET: u64 = 8 << 10;
/// Bytes of the boot environment block, embedded checksum included.
pub const BOOTENV_SIZE: usize = 8 << 10;
/// Payload of the boot environment block (after its version word).
pub const BOOTENV_PAYLOAD: usize = BOOTENV_SIZE - 8 - TRAILER_SIZE;
/// Offset of the packed configuration inside a label.
pub const NVLIST_OFFSET: u64 = 16 << 10;
/// Bytes of the configuration area, embedded checksum included.
pub const NVLIST_SIZE: usize = 112 << 10;
/// Bytes a packed configuration may take.
pub const NVLIST_MAX: usize = NVLIST_SIZE - TRAILER_SIZE;
/// Offset of the uberblock ring inside a label.
pub const RING_OFFSET: u64 = 128 << 10;
/// Bytes of the uberblock ring.
pub const RING_SIZE: usize = 128 << 10;

/// Bytes of an embedded checksum: magic and four words, at the very end of its region.
pub const TRAILER_SIZE: usize = 40;
/// Magic number in front of an embedded checksum.
pub const TRAILER_MAGIC: u64 = 0x0210_da7a_b10c_7a11;

/// Size that counts: the device size rounded down to whole labels.
pub const fn psize(device_size: u64) -> u64 {
    device_size / LABEL_SIZE * LABEL_SIZE
}

/// Allocatable bytes of a leaf with that device size (0 if it is too small for any).
pub const fn leaf_asize(device_size: u64) -> u64 {
    psize(device_size).saturating_sub(DATA_START + TAIL_SIZE)
}

/// Byte offset of label `i` (0…3) on a device; `None` if the device cannot hold four labels.
pub const fn label_offset(i: usize, device_size: u64) -> Option<u64> {
    let size = psize(device_size);
    if i >= LABELS || size < LABELS as u64 * LABEL_SIZE {
        return None;
    }
    if i < 2 {
        Some(i as u64 * LABEL_SIZE)
    } else {
        Some(size - (LABELS - i) as u64 * LABEL_SIZE)
    }
}

/// Lays a configuration out as the 112 KiB area; the last 40 bytes are left zero for the embedded
/// checksum. A configuration that does not fit is [`base::Kind::ArgTooBig`].
pub fn pack_config(config: &NvList) -> Result<Vec<u8>> {
    let mut area = config.pack_xdr();
    if area.len() > NVLIST_MAX {
        bail!(
            ArgTooBig,
            "configuration of {} bytes does not fit into a label",
            area.len()
        );
    }
    area.resize(NVLIST_SIZE, 0);
    Ok(area)
}

/// Reads the configuration out of the 112 KiB area.
pub fn unpack_config(area: &[u8]) -> Result<NvList> {
    NvList::unpack(&area[..area.len().min(NVLIST_MAX)])
}

/// What is in the boot environment block.
#[derive(Clone, Debug, PartialEq)]
pub enum BootEnv {
    /// Version 0: text up to the first NUL.
    Raw(Vec<u8>),
    /// Version 1: an nvlist.
    NvList(NvList),
}

impl BootEnv {
    /// Lays the block out, checksum area zero. Too large is [`base::Kind::ArgTooBig`].
    pub fn encode(&self) -> Result<Vec<u8>> {
        let (version, payload) = match self {
            BootEnv::Raw(text) => (0u64, text.clone()),
            BootEnv::NvList(l) => (1, l.pack_xdr()),
        };
        if payload.len() > BOOTENV_PAYLOAD {
            bail!(ArgTooBig, "boot environment of {} bytes", payload.len());
        }
        // The version is big endian whoever writes it.
        let mut b = version.to_be_bytes().to_vec();
        b.extend_from_slice(&payload);
        b.resize(BOOTENV_SIZE, 0);
        Ok(b)
    }

    /// Reads a block whose checksum has been verified.
    pub fn decode(b: &[u8]) -> Result<BootEnv> {
        let version = u64_at(b, 0)?.swap_bytes();
        let payload = slice_at(b, 8, BOOTENV_PAYLOAD)?;
        match version {
            0 => {
                let end = payload.iter().position(|&c| c == 0);
                Ok(BootEnv::Raw(
                    payload[..end.unwrap_or(payload.len())].to_vec(),
                ))
            }
            1 => Ok(BootEnv::NvList(NvList::unpack(payload)?)),
            v => bail!(Damaged, "boot environment: unknown version {v}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bytes::junk::Junk;

    #[test]
    fn places() {
        let dev = (64 << 20) + 1000;
        assert_eq!(label_offset(0, dev), Some(0));
        assert_eq!(label_offset(1, dev), Some(0x40000));
        assert_eq!(label_offset(2, dev), Some((64 << 20) - (512 << 10)));
        assert_eq!(label_offset(3, dev), Some((64 << 20) - (256 << 10)));
        assert_eq!(label_offset(4, dev), None);
        assert_eq!(label_offset(0, (1 << 20) - 1), None);
        assert_eq!(leaf_asize(dev), (64 << 20) - 0x480000);
        assert_eq!(leaf_asize(100), 0);
        assert_eq!(NVLIST_MAX, 114648);
        assert_eq!(BOOTENV_PAYLOAD, 8144);
        assert_eq!(NVLIST_OFFSET + NVLIST_SIZE as u64, RING_OFFSET);
        assert_eq!(RING_OFFSET + RING_SIZE as u64, LABEL_SIZE);
    }

    #[test]
    fn config_must_fit() {
        let mut l = NvList::new();
        l.set("comment", "x".repeat(NVLIST_MAX - 12 - 8 - 32));
        let area = pack_config(&l).unwrap();
        assert_eq!(area.len(), NVLIST_SIZE);
        assert_eq!(area[NVLIST_MAX..], [0; TRAILER_SIZE]);
        assert_eq!(unpack_config(&area).unwrap(), l);
        l.set("comment", "x".repeat(NVLIST_MAX - 12 - 8 - 31));
        assert_eq!(pack_config(&l).unwrap_err().kind, base::Kind::ArgTooBig);
        assert!(unpack_config(&[]).is_err());
    }

    #[test]
    fn bootenv() {
        let mut l = NvList::new();
        l.set("version", 1u64);
        for e in [BootEnv::Raw(b"saved=1".to_vec()), BootEnv::NvList(l)] {
            let b = e.encode().unwrap();
            assert_eq!(b.len(), BOOTENV_SIZE);
            assert_eq!(BootEnv::decode(&b).unwrap(), e);
            Junk(2).torment(&b, 200, |b| drop(BootEnv::decode(b)));
        }
        assert_eq!(
            BootEnv::decode(&[0; BOOTENV_SIZE]).unwrap(),
            BootEnv::Raw(vec![])
        );
        assert!(BootEnv::Raw(vec![b'x'; 8145]).encode().is_err());
    }
}
