//! Dnodes: the description of one object (data format §2.2), and object sets (§2.1).

use crate::blkptr::{BlkPtr, BP_SIZE};
use crate::types::ObjType;
use crate::{Checksum, Compression};
use base::{Error, Result};

/// Highest object number (2^48 − 1).
pub const MAX_OBJECT: u64 = (1 << 48) - 1;
/// Smallest dnode; larger ones are multiples.
pub const DNODE_SIZE: usize = 512;
/// Block size of every meta-dnode.
pub const DNODE_BLOCK: usize = 16 << 10;
/// Dnode slots per meta-dnode block.
pub const DNODES_PER_BLOCK: u64 = (DNODE_BLOCK / DNODE_SIZE) as u64;
/// Fixed part before the block pointers.
pub const DNODE_CORE: usize = 64;
/// Largest number of slots of one dnode.
pub const MAX_SLOTS: usize = 32;

/// dn_flags
pub mod flags {
    /// `used` counts bytes, not sectors.
    pub const USED_BYTES: u8 = 1;
    /// Space is in the user/group accounting.
    pub const USERUSED_ACCOUNTED: u8 = 2;
    /// A spill block pointer sits at the end.
    pub const SPILL_BLKPTR: u8 = 4;
    /// The object is in the user/group object accounting.
    pub const USEROBJUSED_ACCOUNTED: u8 = 8;
}

/// dnode_phys in memory, host order.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct DnodePhys {
    /// Type of the content.
    pub obj_type: ObjType,
    /// log2 of the size of an indirect block in bytes, 10 to 24.
    pub indblkshift: u8,
    /// Levels of the block tree, 1 to 15; 1 if the pointers of the dnode lead to content.
    pub nlevels: u8,
    /// Type of the bonus.
    pub bonus_type: ObjType,
    /// 0 = inherit
    pub checksum: Checksum,
    /// 0 = inherit
    pub compress: Compression,
    /// Bits of [`flags`].
    pub flags: u8,
    /// Size of a data block in sectors of 512 bytes.
    pub datablkszsec: u16,
    /// Slots of 512 bytes this dnode takes, at least 1.
    pub slots: u8,
    /// Number of the last block of level 0; 0 if there is none.
    pub maxblkid: u64,
    /// Allocated space, in the unit that [`flags::USED_BYTES`] says; see [`DnodePhys::used_bytes`].
    pub used: u64,
    /// 1…3 pointers.
    pub blkptr: Vec<BlkPtr>,
    /// The bytes of the bonus in use (dn_bonuslen).
    pub bonus: Vec<u8>,
    /// Pointer to the spill block, if there is one.
    pub spill: Option<BlkPtr>,
}

impl DnodePhys {
    /// Data block size in bytes.
    pub fn block_size(&self) -> usize {
        (self.datablkszsec as usize) << 9
    }
    /// Bytes of the dnode on disk.
    pub fn size(&self) -> usize {
        self.slots as usize * DNODE_SIZE
    }
    /// Room for the bonus with and without a spill pointer.
    pub fn bonus_space(&self) -> usize {
        self.size()
            - DNODE_CORE
            - self.blkptr.len() * BP_SIZE
            - if self.spill.is_some() { BP_SIZE } else { 0 }
    }
    /// `used` in bytes whatever the flag says.
    pub fn used_bytes(&self) -> u64 {
        if self.flags & flags::USED_BYTES != 0 {
            self.used
        } else {
            self.used.saturating_mul(512)
        }
    }
    /// log2 of pointers per indirect block.
    pub fn epb_shift(&self) -> u32 {
        self.indblkshift as u32 - 7
    }

    /// Decodes the dnode that starts at `b[0]`; `b` runs to the end of its meta-dnode block.
    /// `Ok(None)` is a free slot. The words must be little-endian (swap foreign blocks first).
    pub fn decode(b: &[u8]) -> Result<Option<DnodePhys>> {
        if b.len() < DNODE_SIZE {
            return Err(Error::damaged("dnode cut short"));
        }
        if b[0] == 0 {
            return Ok(None);
        }
        let u16at = |o: usize| u16::from_le_bytes([b[o], b[o + 1]]);
        let u64at = |o: usize| {
            let mut w = [0; 8];
            w.copy_from_slice(&b[o..o + 8]);
            u64::from_le_bytes(w)
        };
        let slots = b[12] as usize + 1;
        let nblkptr = b[3] as usize;
        let bonuslen = u16at(10) as usize;
        let size = slots * DNODE_SIZE;
        let spill = b[7] & flags::SPILL_BLKPTR != 0;
        let tail = if spill { BP_SIZE } else { 0 };
        if size > b.len() || nblkptr == 0 || nblkptr > 3 {
            return Err(Error::damaged(format!(
                "dnode with {slots} slots, {nblkptr} pointers"
            )));
        }
        let bonus_at = DNODE_CORE + nblkptr * BP_SIZE;
        if bonus_at + bonuslen + tail > size {
            return Err(Error::damaged(format!(
                "dnode whose bonus of {bonuslen} does not fit"
            )));
        }
        let (ind, levels) = (b[1], b[2]);
        if !(10..=24).contains(&ind) || levels == 0 || levels > 15 {
            return Err(Error::damaged(format!(
                "dnode with indirect shift {ind}, {levels} levels"
            )));
        }
        let datablkszsec = u16at(8);
        if datablkszsec == 0 || datablkszsec as usize * 512 > base::MAX_BLOCK {
            return Err(Error::damaged(format!(
                "dnode with a block of {datablkszsec} sectors"
            )));
        }
        let mut blkptr = Vec::with_capacity(nblkptr);
        for i in 0..nblkptr {
            blkptr.push(BlkPtr::read(&b[DNODE_CORE + i * BP_SIZE..], false)?);
        }
        Ok(Some(DnodePhys {
            obj_type: ObjType(b[0]),
            indblkshift: ind,
            nlevels: levels,
            bonus_type: ObjType(b[4]),
            checksum: Checksum::new(b[5]),
            compress: Compression::new(b[6]),
            flags: b[7],
            datablkszsec,
            slots: slots as u8,
            maxblkid: u64at(16),
            used: u64at(24),
            blkptr,
            bonus: b[bonus_at..bonus_at + bonuslen].to_vec(),
            spill: if spill {
                Some(BlkPtr::read(&b[size - BP_SIZE..], false)?)
            } else {
                None
            },
        }))
    }

    /// Writes all slots into `out` (`size()` bytes).
    pub fn encode(&self, out: &mut [u8]) {
        assert_eq!(out.len(), self.size());
        assert!(
            self.bonus.len() <= self.bonus_space(),
            "bonus too long for the dnode"
        );
        out.fill(0);
        out[0] = self.obj_type.0;
        out[1] = self.indblkshift;
        out[2] = self.nlevels;
        out[3] = self.blkptr.len() as u8;
        out[4] = self.bonus_type.0;
        out[5] = self.checksum.number();
        out[6] = self.compress.number();
        out[7] = self.flags & !flags::SPILL_BLKPTR
            | if self.spill.is_some() {
                flags::SPILL_BLKPTR
            } else {
                0
            };
        out[8..10].copy_from_slice(&self.datablkszsec.to_le_bytes());
        out[10..12].copy_from_slice(&(self.bonus.len() as u16).to_le_bytes());
        out[12] = self.slots - 1;
        out[16..24].copy_from_slice(&self.maxblkid.to_le_bytes());
        out[24..32].copy_from_slice(&self.used.to_le_bytes());
        let mut at = DNODE_CORE;
        for bp in &self.blkptr {
            out[at..at + BP_SIZE].copy_from_slice(&bp.to_bytes());
            at += BP_SIZE;
        }
        out[at..at + self.bonus.len()].copy_from_slice(&self.bonus);
        if let Some(bp) = &self.spill {
            let n = out.len();
            out[n - BP_SIZE..].copy_from_slice(&bp.to_bytes());
        }
    }
}

/// objset_phys: offsets of its parts.
pub mod objset {
    use super::*;

    /// The meta-dnode: its object holds the dnodes of the set.
    pub const META_DNODE: usize = 0;
    /// The header of the intent log.
    pub const ZIL_HEADER: usize = 512;
    /// Bytes of that header.
    pub const ZIL_HEADER_SIZE: usize = 192;
    /// Type of the set, `u64`; see [`crate::os_type`].
    pub const OS_TYPE: usize = 704;
    /// Flags, `u64`: `USERACCT_COMPLETE` and its neighbours.
    pub const OS_FLAGS: usize = 712;
    /// Dnode of object −1: space used by users. From [`SIZE_V2`] on.
    pub const USERUSED: usize = 1024;
    /// Dnode of object −2: space used by groups.
    pub const GROUPUSED: usize = 1536;
    /// Dnode of object −3: space used by projects. From [`SIZE_V3`] on.
    pub const PROJECTUSED: usize = 2048;
    /// Sizes by generation.
    pub const SIZE_V1: usize = 1024;
    /// With accounting by user and group.
    pub const SIZE_V2: usize = 2048;
    /// With accounting by project.
    pub const SIZE_V3: usize = 4096;

    /// os_flags
    pub const USERACCT_COMPLETE: u64 = 1;
    /// Objects are counted by user and group.
    pub const USEROBJACCT_COMPLETE: u64 = 2;
    /// Space and objects are counted by project.
    pub const PROJECTQUOTA_COMPLETE: u64 = 4;

    /// objset_phys in memory.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct ObjsetPhys {
        /// Dnode of the object that holds all other dnodes.
        pub meta: DnodePhys,
        /// Raw ZIL header (pool format §26.1), little-endian words.
        pub zil_header: [u8; ZIL_HEADER_SIZE],
        /// See [`crate::os_type`].
        pub os_type: u64,
        /// [`USERACCT_COMPLETE`] and its neighbours.
        pub os_flags: u64,
        /// Both MACs (64 bytes), zero unless encrypted.
        pub macs: [u8; 64],
        /// User, group and project accounting objects (−1, −2, −3); `None` = free.
        pub special: [Option<DnodePhys>; 3],
        /// Bytes of the block: 1024, 2048 or 4096.
        pub size: usize,
    }

    impl ObjsetPhys {
        /// Decodes a little-endian objset block.
        pub fn decode(b: &[u8]) -> Result<ObjsetPhys> {
            if b.len() < SIZE_V1 {
                return Err(Error::damaged(format!("object set of {} bytes", b.len())));
            }
            let u64at = |o: usize| {
                let mut w = [0; 8];
                w.copy_from_slice(&b[o..o + 8]);
                u64::from_le_bytes(w)
            };
            let meta = DnodePhys::decode(&b[..512])?
                .ok_or_else(|| Error::damaged("object set without a meta dnode"))?;
            if meta.block_size() != DNODE_BLOCK {
                return Err(Error::damaged("meta dnode whose blocks are not 16 KiB"));
            }
            let special = |at: usize| {
                if b.len() >= at + 512 {
                    DnodePhys::decode(&b[at..at + 512])
                } else {
                    Ok(None)
                }
            };
            let mut zil_header = [0; ZIL_HEADER_SIZE];
            zil_header.copy_from_slice(&b[ZIL_HEADER..ZIL_HEADER + ZIL_HEADER_SIZE]);
            let mut macs = [0; 64];
            macs.copy_from_slice(&b[720..784]);
            Ok(ObjsetPhys {
                meta,
                zil_header,
                os_type: u64at(OS_TYPE),
                os_flags: u64at(OS_FLAGS),
                macs,
                special: [
                    special(USERUSED)?,
                    special(GROUPUSED)?,
                    special(PROJECTUSED)?,
                ],
                size: b.len(),
            })
        }

        /// The block, `size` bytes, little-endian.
        pub fn encode(&self) -> Vec<u8> {
            let mut b = vec![0; self.size];
            self.meta.encode(&mut b[..512]);
            b[ZIL_HEADER..ZIL_HEADER + ZIL_HEADER_SIZE].copy_from_slice(&self.zil_header);
            b[OS_TYPE..OS_TYPE + 8].copy_from_slice(&self.os_type.to_le_bytes());
            b[OS_FLAGS..OS_FLAGS + 8].copy_from_slice(&self.os_flags.to_le_bytes());
            b[720..784].copy_from_slice(&self.macs);
            for (dn, at) in self.special.iter().zip([USERUSED, GROUPUSED, PROJECTUSED]) {
                if let Some(dn) = dn {
                    if self.size >= at + 512 {
                        dn.encode(&mut b[at..at + 512]);
                    }
                }
            }
            b
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::Txg;

    #[test]
    fn dnode_round_trip_and_hostile() {
        let mut dn = DnodePhys {
            obj_type: ObjType::PLAIN_FILE_CONTENTS,
            indblkshift: 17,
            nlevels: 2,
            bonus_type: ObjType::SA,
            datablkszsec: 256,
            slots: 2,
            maxblkid: 7,
            used: 4096,
            flags: flags::USED_BYTES,
            blkptr: vec![BlkPtr::hole_born(
                ObjType::PLAIN_FILE_CONTENTS,
                1,
                131072,
                Txg::new(4),
            )],
            bonus: (0..168).collect(),
            spill: Some(BlkPtr::hole_born(ObjType::SA, 0, 512, Txg::new(4))),
            ..DnodePhys::default()
        };
        let mut b = vec![0; dn.size()];
        dn.encode(&mut b);
        dn.flags |= flags::SPILL_BLKPTR;
        assert_eq!(DnodePhys::decode(&b).unwrap().unwrap(), dn);
        assert!(
            DnodePhys::decode(&b[..512]).is_err(),
            "second slot is missing"
        );
        assert_eq!(DnodePhys::decode(&[0; 512]).unwrap(), None);
        let mut x = 12345u64;
        for _ in 0..20000 {
            let mut c = b.clone();
            for _ in 0..4 {
                x = x
                    .wrapping_mul(6364136223846793005)
                    .wrapping_add(1442695040888963407);
                c[(x >> 33) as usize % 64] = (x >> 20) as u8;
            }
            let _ = DnodePhys::decode(&c);
        }
    }
}
