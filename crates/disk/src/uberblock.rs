//! Uberblock (pool format §2.3): the root of a pool as of one transaction group, and the rules of
//! the ring of slots it is written to.

use crate::blkptr::{BlkPtr, BP_SIZE};
use crate::bytes::{put_u64, slice_at, swap_u64s, u64_at};
use crate::label::{RING_OFFSET, RING_SIZE, TRAILER_SIZE};
use base::{bail, Result, Txg};

/// First word of every uberblock.
pub const MAGIC: u64 = 0x00ba_b10c;
/// Says that the three MMP fields mean something.
pub const MMP_MAGIC: u64 = 0xa11c_ea11;
/// Bytes in use at the front of a slot.
pub const UBERBLOCK_SIZE: usize = 216;

/// State of the scratch area of a RAID-Z expansion (pool format §10).
pub mod scratch {
    /// No expansion, or one that no longer needs the area.
    pub const NOT_IN_USE: u64 = 0;
    /// The area holds the only right copy of the sectors at the start of the vdev.
    pub const VALID: u64 = 1;
    /// The sectors are at their new places, and the area is no longer needed.
    pub const INVALID_SYNCED: u64 = 2;
    /// The same, done at import.
    pub const INVALID_SYNCED_ON_IMPORT: u64 = 3;
    /// The area is out of use, and the expansion goes on.
    pub const INVALID_SYNCED_REFLOW: u64 = 4;
}

/// All fields, in the order they are stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Uberblock {
    /// Pool version, 1…28 or 5000.
    pub version: u64,
    /// Transaction group this commits.
    pub txg: Txg,
    /// Sum mod 2^64 of the guids of all vdevs of the tree, the root included.
    pub guid_sum: u64,
    /// Seconds since 1970, UTC.
    pub timestamp: u64,
    /// The meta object set.
    pub rootbp: BlkPtr,
    /// Highest version the writer supports; 0 if unknown.
    pub software_version: u64,
    /// [`MMP_MAGIC`]; anything else: the next two fields mean nothing.
    pub mmp_magic: u64,
    /// 0 with multihost off, else decaying mean of nanoseconds between MMP writes.
    pub mmp_delay: u64,
    /// Bits: see [`Uberblock::mmp_seq`] and its neighbours.
    pub mmp_config: u64,
    /// Non-zero only in the uberblock kept by a pool checkpoint.
    pub checkpoint_txg: Txg,
    /// Bits 54…0 reflow offset in sectors, 63…55 scratch state.
    pub raidz_reflow_info: u64,
}

impl Default for Uberblock {
    fn default() -> Uberblock {
        Uberblock {
            version: 0,
            txg: Txg::NONE,
            guid_sum: 0,
            timestamp: 0,
            rootbp: BlkPtr::HOLE,
            software_version: 0,
            mmp_magic: MMP_MAGIC,
            mmp_delay: 0,
            mmp_config: 0,
            checkpoint_txg: Txg::NONE,
            raidz_reflow_info: 0,
        }
    }
}

impl Uberblock {
    /// Decodes the front of a slot (or any buffer of at least 168 bytes); fields that older software
    /// did not write read as zero. Either byte order. A wrong magic number is an error.
    pub fn decode(slot: &[u8]) -> Result<Uberblock> {
        let magic = u64_at(slot, 0)?;
        let mut b = [0u8; UBERBLOCK_SIZE];
        slice_at(slot, 0, 168)?;
        let n = slot.len().min(UBERBLOCK_SIZE);
        b[..n].copy_from_slice(&slot[..n]);
        if magic == MAGIC.swap_bytes() {
            swap_u64s(&mut b);
        } else if magic != MAGIC {
            bail!(Damaged, "uberblock: bad magic {magic:#x}");
        }
        Ok(Uberblock {
            version: u64_at(&b, 8)?,
            txg: Txg::new(u64_at(&b, 16)?),
            guid_sum: u64_at(&b, 24)?,
            timestamp: u64_at(&b, 32)?,
            rootbp: BlkPtr::read(slice_at(&b, 40, BP_SIZE)?, false)?,
            software_version: u64_at(&b, 168)?,
            mmp_magic: u64_at(&b, 176)?,
            mmp_delay: u64_at(&b, 184)?,
            mmp_config: u64_at(&b, 192)?,
            checkpoint_txg: Txg::new(u64_at(&b, 200)?),
            raidz_reflow_info: u64_at(&b, 208)?,
        })
    }

    /// Lays out a slot of `size` bytes, little endian, zero after the fields; the last 40 bytes are
    /// for the embedded checksum.
    pub fn encode(&self, size: usize) -> Vec<u8> {
        let mut b = vec![0u8; size.max(UBERBLOCK_SIZE + TRAILER_SIZE)];
        put_u64(&mut b, 0, MAGIC);
        put_u64(&mut b, 8, self.version);
        put_u64(&mut b, 16, self.txg.number());
        put_u64(&mut b, 24, self.guid_sum);
        put_u64(&mut b, 32, self.timestamp);
        b[40..40 + BP_SIZE].copy_from_slice(&self.rootbp.to_bytes());
        put_u64(&mut b, 168, self.software_version);
        put_u64(&mut b, 176, self.mmp_magic);
        put_u64(&mut b, 184, self.mmp_delay);
        put_u64(&mut b, 192, self.mmp_config);
        put_u64(&mut b, 200, self.checkpoint_txg.number());
        put_u64(&mut b, 208, self.raidz_reflow_info);
        b
    }

    /// Order of preference: the greatest wins ("best uberblock").
    pub fn rank(&self) -> (Txg, u64, u64) {
        (self.txg, self.timestamp, self.mmp_seq().unwrap_or(0))
    }

    /// Whether the MMP fields mean anything.
    pub fn mmp_valid(&self) -> bool {
        self.mmp_magic == MMP_MAGIC
    }

    /// Interval between MMP writes in milliseconds, if recorded.
    pub fn mmp_interval_ms(&self) -> Option<u64> {
        (self.mmp_valid() && self.mmp_config & 1 != 0).then_some(self.mmp_config >> 8 & 0xff_ffff)
    }

    /// MMP sequence number, if recorded.
    pub fn mmp_seq(&self) -> Option<u64> {
        (self.mmp_valid() && self.mmp_config & 2 != 0).then_some(self.mmp_config >> 32 & 0xffff)
    }

    /// Number of missed intervals after which the writer suspends (0: never), if recorded.
    pub fn mmp_fail_intervals(&self) -> Option<u64> {
        (self.mmp_valid() && self.mmp_config & 4 != 0).then_some(self.mmp_config >> 48)
    }

    /// Sets all MMP fields for a pool with multihost on.
    pub fn set_mmp(&mut self, delay_ns: u64, interval_ms: u64, seq: u64, fail_intervals: u64) {
        self.mmp_magic = MMP_MAGIC;
        self.mmp_delay = delay_ns;
        self.mmp_config = 7
            | (interval_ms & 0xff_ffff) << 8
            | (seq & 0xffff) << 32
            | (fail_intervals & 0xffff) << 48;
    }

    /// Progress of a RAID-Z expansion, bytes.
    pub fn reflow_offset(&self) -> u64 {
        (self.raidz_reflow_info & ((1 << 55) - 1)) << base::SECTOR_SHIFT
    }

    /// One of [`scratch`].
    pub fn scratch_state(&self) -> u64 {
        self.raidz_reflow_info >> 55
    }

    /// Sets reflow offset (bytes, a multiple of 512) and scratch state.
    pub fn set_reflow(&mut self, offset: u64, state: u64) {
        self.raidz_reflow_info =
            (offset >> base::SECTOR_SHIFT) & ((1 << 55) - 1) | (state & 0x1ff) << 55;
    }

    /// Slot this uberblock goes to.
    pub fn slot(&self, ashift: u32, multihost: bool) -> usize {
        // With a valid scratch area this replaces one already committed under the same txg, which
        // must stay readable until this one is complete.
        let txg = if self.scratch_state() == scratch::VALID {
            self.txg.number().wrapping_sub(1)
        } else {
            self.txg.number()
        };
        let slots = slot_count(ashift) - usize::from(multihost);
        (txg % slots as u64) as usize
    }
}

/// Bytes of one slot for the ashift of the top-level vdev.
pub const fn slot_size(ashift: u32) -> usize {
    let shift = if ashift < 10 {
        10
    } else if ashift > 13 {
        13
    } else {
        ashift
    };
    1 << shift
}

/// Slots in the ring of one label.
pub const fn slot_count(ashift: u32) -> usize {
    RING_SIZE / slot_size(ashift)
}

/// Offset of slot `n` from the start of its label.
pub const fn slot_offset(ashift: u32, n: usize) -> u64 {
    RING_OFFSET + (n * slot_size(ashift)) as u64
}

/// The slot MMP heartbeats go to: the last one.
pub const fn mmp_slot(ashift: u32) -> usize {
    slot_count(ashift) - 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bytes::junk::Junk;

    /// The newest uberblock of a one-disk pool exported by OpenZFS 2.3, first 216 bytes.
    const REAL: &[u8] = include_bytes!("../testdata/uberblock-single.bin");

    #[test]
    fn real_uberblock() {
        let u = Uberblock::decode(REAL).unwrap();
        assert_eq!((u.version, u.software_version), (5000, 5000));
        assert!(u.mmp_valid());
        assert_eq!((u.mmp_delay, u.mmp_seq()), (0, None));
        assert_eq!(u.rootbp.birth(), u.txg);
        assert_eq!(u.rootbp.obj_type().0, 11);
        // guid_sum of a one-disk pool: root and leaf, as in the label of the same pool.
        assert_eq!(
            u.guid_sum,
            16607993458144630312u64.wrapping_add(5145965412508405462)
        );
        assert_eq!(u.encode(1024)[..216], REAL[..216]);
        assert_eq!(u.encode(4096).len(), 4096);
    }

    #[test]
    fn both_byte_orders() {
        let u = Uberblock::decode(REAL).unwrap();
        let mut b = REAL.to_vec();
        swap_u64s(&mut b);
        assert_eq!(Uberblock::decode(&b).unwrap(), u);
        // Old software wrote less: the rest reads as zero.
        let old = Uberblock::decode(&REAL[..168]).unwrap();
        assert_eq!((old.txg, old.software_version), (u.txg, 0));
    }

    #[test]
    fn slots() {
        for (ashift, size, n) in [
            (9, 1024, 128),
            (10, 1024, 128),
            (11, 2048, 64),
            (12, 4096, 32),
            (13, 8192, 16),
            (16, 8192, 16),
        ] {
            assert_eq!((slot_size(ashift), slot_count(ashift)), (size, n));
            let mut u = Uberblock {
                txg: Txg::new(2 * n as u64 - 1),
                ..Uberblock::default()
            };
            assert_eq!(u.slot(ashift, false), n - 1);
            assert_eq!(u.slot(ashift, true), 1);
            u.txg = Txg::new(n as u64 - 1);
            u.set_reflow(1 << 20, scratch::VALID);
            assert_eq!(u.slot(ashift, false), n - 2);
            assert_eq!(u.reflow_offset(), 1 << 20);
            u.txg = Txg::NONE;
            u.slot(ashift, true);
        }
        assert_eq!(slot_offset(12, 31), 0x40000 - 4096);
    }

    #[test]
    fn best_is_by_txg_then_time_then_sequence() {
        let ub = |txg, timestamp, seq| {
            let mut u = Uberblock {
                txg,
                timestamp,
                ..Uberblock::default()
            };
            u.set_mmp(1, 1000, seq, 10);
            u
        };
        let all = [
            ub(Txg::new(1), 9, 9),
            ub(Txg::new(2), 1, 9),
            ub(Txg::new(2), 2, 3),
            ub(Txg::new(2), 2, 4),
        ];
        assert!(all.windows(2).all(|w| w[0].rank() < w[1].rank()));
        assert_eq!(all[3].mmp_interval_ms(), Some(1000));
        assert_eq!(all[3].mmp_fail_intervals(), Some(10));
        let mut u = all[3].clone();
        u.mmp_magic = 0;
        assert_eq!(u.mmp_seq(), None);
    }

    #[test]
    fn hostile() {
        Junk(3).torment(REAL, 500, |b| {
            if let Ok(u) = Uberblock::decode(b) {
                for a in 0..70 {
                    u.slot(a, true);
                }
                let _ = (u.rank(), u.mmp_interval_ms(), u.encode(1024));
            }
        });
    }
}
