//! Bonus structures of the DSL: directories, datasets, deadlists, bpobjs, bptrees, bookmarks
//! (data format §7, §8, §11, §12). All are little-endian; readers swap blocks of the other byte order
//! first.

use crate::blkptr::{BlkPtr, BP_SIZE};
use crate::bytes::{put_u64, slice_at, u64_at};
use base::{bail, Result, Txg};

/// Bytes of the bonus of a DSL directory.
pub const DSL_DIR_SIZE: usize = 256;
/// Bytes of the bonus of a DSL dataset.
pub const DSL_DATASET_SIZE: usize = 320;
/// Bytes of the bonus of a deadlist.
pub const DEADLIST_SIZE: usize = 320;
/// Bytes of the bonus of a bptree.
pub const BPTREE_SIZE: usize = 40;
/// Bytes of one entry of a bptree.
pub const BPTREE_ENTRY_SIZE: usize = 168;

/// A structure of 64-bit words: fields at multiples of 8, everything else zero.
macro_rules! words {
    ($(#[$doc:meta])* $name:ident, $size:expr; $($(#[$fdoc:meta])* $field:ident @ $off:expr),* $(,)?) => {
        $(#[$doc])*
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct $name {
            $($(#[$fdoc])* pub $field: u64,)*
        }

        impl $name {
            /// Decodes the fields; trailing padding need not be there.
            pub fn decode(b: &[u8]) -> Result<$name> {
                Ok($name { $($field: u64_at(b, $off)?,)* })
            }

            /// Encodes with padding.
            pub fn encode(&self) -> Vec<u8> {
                let mut b = vec![0; $size];
                $(put_u64(&mut b, $off, self.$field);)*
                b
            }
        }
    };
}

/// `dsl_dir.flags`: the used breakdown is maintained (pool ≥ 13).
pub const DIR_USED_BREAKDOWN: u64 = 1;

/// DSL directory, bonus type 12 (data format §7.1). Object numbers are 0 for "none".
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DslDirPhys {
    /// Seconds; informational.
    pub creation_time: u64,
    /// Dataset object of the head.
    pub head_dataset_obj: u64,
    /// Object of the parent directory; 0 for the root.
    pub parent_obj: u64,
    /// Origin *snapshot*.
    pub origin_obj: u64,
    /// ZAP: name of child → its directory object.
    pub child_dir_zapobj: u64,
    /// Bytes charged to the directory: its datasets, children and reservations.
    pub used_bytes: u64,
    /// Compressed bytes of its own datasets.
    pub compressed_bytes: u64,
    /// Uncompressed bytes of its own datasets.
    pub uncompressed_bytes: u64,
    /// Bytes, 0 = none.
    pub quota: u64,
    /// Bytes, 0 = none.
    pub reserved: u64,
    /// ZAP of properties.
    pub props_zapobj: u64,
    /// ZAP of delegated permissions.
    pub deleg_zapobj: u64,
    /// See [`DIR_USED_BREAKDOWN`].
    pub flags: u64,
    /// Indexed by [`Used`].
    pub used_breakdown: [u64; 5],
    /// ZAP of clones of snapshots of this directory (pool ≥ 26).
    pub clones: u64,
}

/// Index into [`DslDirPhys::used_breakdown`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Used {
    /// Bytes of the head that no snapshot has.
    Head = 0,
    /// Bytes of snapshots that the head does not have.
    Snap = 1,
    /// Bytes charged to child directories.
    Child = 2,
    /// Bytes reserved for child directories beyond what they use.
    ChildRsrv = 3,
    /// Bytes of the head's own reservation (`refreservation`) that are not used.
    RefRsrv = 4,
}

impl DslDirPhys {
    /// Decodes the bonus. `Damaged`: it is cut short.
    pub fn decode(b: &[u8]) -> Result<DslDirPhys> {
        let mut used_breakdown = [0; 5];
        for (i, u) in used_breakdown.iter_mut().enumerate() {
            *u = u64_at(b, 104 + 8 * i)?;
        }
        Ok(DslDirPhys {
            creation_time: u64_at(b, 0)?,
            head_dataset_obj: u64_at(b, 8)?,
            parent_obj: u64_at(b, 16)?,
            origin_obj: u64_at(b, 24)?,
            child_dir_zapobj: u64_at(b, 32)?,
            used_bytes: u64_at(b, 40)?,
            compressed_bytes: u64_at(b, 48)?,
            uncompressed_bytes: u64_at(b, 56)?,
            quota: u64_at(b, 64)?,
            reserved: u64_at(b, 72)?,
            props_zapobj: u64_at(b, 80)?,
            deleg_zapobj: u64_at(b, 88)?,
            flags: u64_at(b, 96)?,
            used_breakdown,
            clones: u64_at(b, 144)?,
        })
    }

    /// The bonus, 256 bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut b = vec![0; DSL_DIR_SIZE];
        for (i, v) in [
            self.creation_time,
            self.head_dataset_obj,
            self.parent_obj,
            self.origin_obj,
            self.child_dir_zapobj,
            self.used_bytes,
            self.compressed_bytes,
            self.uncompressed_bytes,
            self.quota,
            self.reserved,
            self.props_zapobj,
            self.deleg_zapobj,
            self.flags,
        ]
        .into_iter()
        .chain(self.used_breakdown)
        .chain([self.clones])
        .enumerate()
        {
            put_u64(&mut b, 8 * i, v);
        }
        b
    }

    /// One part of the used breakdown, bytes.
    pub fn used(&self, part: Used) -> u64 {
        self.used_breakdown[part as usize]
    }
}

/// Bits of [`DslDatasetPhys::flags`].
pub mod ds_flags {
    /// A receive or an old-style destroy is in progress.
    pub const INCONSISTENT: u64 = 1;
    /// The snapshot is from a pool that forbids promoting its clones; obsolete, kept.
    pub const NOPROMOTE: u64 = 2;
    /// `unique_bytes` is exact (pool ≥ 9).
    pub const UNIQUE_ACCURATE: u64 = 4;
    /// Destroy the snapshot when its last hold and clone go (`zfs destroy -d`).
    pub const DEFER_DESTROY: u64 = 8;
    /// Name lookups ignore case.
    pub const CI_DATASET: u64 = 0x10000;
}

/// DSL dataset (head or snapshot), bonus type 16 (data format §7.2). Object numbers are 0 for "none".
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DslDatasetPhys {
    /// Object of the DSL directory.
    pub dir_obj: u64,
    /// Previous snapshot; of a clone without snapshots, its origin.
    pub prev_snap_obj: u64,
    /// `creation_txg` of that snapshot: blocks born later are not in it.
    pub prev_snap_txg: Txg,
    /// Snapshots only: next snapshot or head of the same directory.
    pub next_snap_obj: u64,
    /// Heads only.
    pub snapnames_zapobj: u64,
    /// 0 for heads; snapshots: one (its next) plus clones.
    pub num_children: u64,
    /// Seconds.
    pub creation_time: u64,
    /// Txg in which the dataset was created.
    pub creation_txg: Txg,
    /// Deadlist (or bpobj) of blocks the previous snapshot has and this dataset freed.
    pub deadlist_obj: u64,
    /// Deflated bytes the dataset refers to.
    pub referenced_bytes: u64,
    /// Compressed bytes of them.
    pub compressed_bytes: u64,
    /// Uncompressed bytes of them.
    pub uncompressed_bytes: u64,
    /// Deflated bytes that only this dataset refers to; see [`ds_flags::UNIQUE_ACCURATE`].
    pub unique_bytes: u64,
    /// 56 bits, unique per pool, may change.
    pub fsid_guid: u64,
    /// Random, permanent.
    pub guid: u64,
    /// See [`ds_flags`].
    pub flags: u64,
    /// Root of the object set.
    pub bp: BlkPtr,
    /// Snapshots: ZAP of clones' datasets.
    pub next_clones_obj: u64,
    /// Snapshots: ZAP of properties.
    pub props_obj: u64,
    /// Snapshots: ZAP of user holds.
    pub userrefs_obj: u64,
}

impl DslDatasetPhys {
    /// Decodes the bonus. `Damaged`: it is cut short.
    pub fn decode(b: &[u8]) -> Result<DslDatasetPhys> {
        Ok(DslDatasetPhys {
            dir_obj: u64_at(b, 0)?,
            prev_snap_obj: u64_at(b, 8)?,
            prev_snap_txg: Txg::new(u64_at(b, 16)?),
            next_snap_obj: u64_at(b, 24)?,
            snapnames_zapobj: u64_at(b, 32)?,
            num_children: u64_at(b, 40)?,
            creation_time: u64_at(b, 48)?,
            creation_txg: Txg::new(u64_at(b, 56)?),
            deadlist_obj: u64_at(b, 64)?,
            referenced_bytes: u64_at(b, 72)?,
            compressed_bytes: u64_at(b, 80)?,
            uncompressed_bytes: u64_at(b, 88)?,
            unique_bytes: u64_at(b, 96)?,
            fsid_guid: u64_at(b, 104)?,
            guid: u64_at(b, 112)?,
            flags: u64_at(b, 120)?,
            bp: BlkPtr::read(slice_at(b, 128, BP_SIZE)?, false)?,
            next_clones_obj: u64_at(b, 256)?,
            props_obj: u64_at(b, 264)?,
            userrefs_obj: u64_at(b, 272)?,
        })
    }

    /// The bonus, 320 bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut b = vec![0; DSL_DATASET_SIZE];
        for (i, v) in [
            self.dir_obj,
            self.prev_snap_obj,
            self.prev_snap_txg.number(),
            self.next_snap_obj,
            self.snapnames_zapobj,
            self.num_children,
            self.creation_time,
            self.creation_txg.number(),
            self.deadlist_obj,
            self.referenced_bytes,
            self.compressed_bytes,
            self.uncompressed_bytes,
            self.unique_bytes,
            self.fsid_guid,
            self.guid,
            self.flags,
        ]
        .into_iter()
        .enumerate()
        {
            put_u64(&mut b, 8 * i, v);
        }
        b[128..128 + BP_SIZE].copy_from_slice(&self.bp.to_bytes());
        put_u64(&mut b, 256, self.next_clones_obj);
        put_u64(&mut b, 264, self.props_obj);
        put_u64(&mut b, 272, self.userrefs_obj);
        b
    }

    /// Whether it is a snapshot: heads have no children.
    pub fn is_snapshot(&self) -> bool {
        self.num_children != 0
    }
}

words! {
    /// Bonus (type 51) of a new-format deadlist or livelist: totals over all entries (data format §8.2).
    DeadlistPhys, DEADLIST_SIZE;
    /// Deflated bytes.
    used @ 0,
    /// Compressed bytes.
    comp @ 8,
    /// Uncompressed bytes.
    uncomp @ 16,
}

words! {
    /// Bonus of the bptree of asynchronously destroyed datasets (data format §11.2).
    BptreePhys, BPTREE_SIZE;
    /// Index of the first entry still there.
    begin @ 0,
    /// Index after the last entry.
    end @ 8,
    /// Deflated bytes still to be freed.
    bytes @ 16,
    /// Compressed bytes of them.
    comp @ 24,
    /// Uncompressed bytes of them.
    uncomp @ 32,
}

/// One entry of a bptree: a tree of blocks to free.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BptreeEntry {
    /// Root of the tree.
    pub bp: BlkPtr,
    /// Only blocks born later are freed.
    pub birth_txg: Txg,
    /// Where freeing stopped: object set, object, level (signed), block id.
    pub bookmark: [u64; 4],
}

impl BptreeEntry {
    /// Decodes an entry of 168 bytes. `Damaged`: it is cut short.
    pub fn decode(b: &[u8]) -> Result<BptreeEntry> {
        let mut bookmark = [0; 4];
        for (i, w) in bookmark.iter_mut().enumerate() {
            *w = u64_at(b, 136 + 8 * i)?;
        }
        Ok(BptreeEntry {
            bp: BlkPtr::read(slice_at(b, 0, BP_SIZE)?, false)?,
            birth_txg: Txg::new(u64_at(b, 128)?),
            bookmark,
        })
    }

    /// The entry, 168 bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut b = self.bp.to_bytes().to_vec();
        b.resize(BPTREE_ENTRY_SIZE, 0);
        put_u64(&mut b, 128, self.birth_txg.number());
        for (i, w) in self.bookmark.into_iter().enumerate() {
            put_u64(&mut b, 136 + 8 * i, w);
        }
        b
    }
}

/// Bonus (type 6) of a bpobj; which fields exist depends on its length (data format §8.1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BpobjPhys {
    /// Length of the bonus: 16 (pool < 3), 32 (< 26), 48 or 56 (created with livelists active).
    pub size: usize,
    /// Number of block pointers in the object itself.
    pub num_blkptrs: u64,
    /// Deflated bytes of all blocks, sub-objects included.
    pub bytes: u64,
    /// Compressed bytes of them; 0 if the bonus has no room for it.
    pub comp: u64,
    /// Uncompressed bytes of them; 0 if the bonus has no room for it.
    pub uncomp: u64,
    /// Object with the list of sub-objects, 0 = none.
    pub subobjs: u64,
    /// Number of sub-objects.
    pub num_subobjs: u64,
    /// FREE entries (livelists).
    pub num_freed: u64,
}

impl BpobjPhys {
    /// An empty one of that bonus length.
    pub fn new(size: usize) -> BpobjPhys {
        BpobjPhys {
            size,
            num_blkptrs: 0,
            bytes: 0,
            comp: 0,
            uncomp: 0,
            subobjs: 0,
            num_subobjs: 0,
            num_freed: 0,
        }
    }

    /// Bonus length for a new bpobj in a pool of that version.
    pub fn size_for(version: u64, livelist_active: bool) -> usize {
        match version {
            0..=2 => 16,
            3..=25 => 32,
            _ if livelist_active => 56,
            _ => 48,
        }
    }

    /// `bonus` must be cut to the bonus length of the dnode.
    pub fn decode(bonus: &[u8]) -> Result<BpobjPhys> {
        let size = match bonus.len() {
            0..=15 => bail!(Damaged, "bpobj: bonus of {} bytes", bonus.len()),
            16..=31 => 16,
            32..=47 => 32,
            48..=55 => 48,
            _ => 56,
        };
        let word = |i: usize| {
            if 8 * i < size {
                u64_at(bonus, 8 * i)
            } else {
                Ok(0)
            }
        };
        Ok(BpobjPhys {
            size,
            num_blkptrs: word(0)?,
            bytes: word(1)?,
            comp: word(2)?,
            uncomp: word(3)?,
            subobjs: word(4)?,
            num_subobjs: word(5)?,
            num_freed: word(6)?,
        })
    }

    /// The bonus, `size` bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut b = vec![0; 56];
        for (i, v) in [
            self.num_blkptrs,
            self.bytes,
            self.comp,
            self.uncomp,
            self.subobjs,
            self.num_subobjs,
            self.num_freed,
        ]
        .into_iter()
        .enumerate()
        {
            put_u64(&mut b, 8 * i, v);
        }
        b.truncate(self.size);
        b
    }

    /// `comp` and `uncomp` are kept.
    pub fn has_comp(&self) -> bool {
        self.size >= 32
    }

    /// May have sub-objects.
    pub fn has_subobjs(&self) -> bool {
        self.size >= 48
    }

    /// `num_freed` is kept.
    pub fn has_freed(&self) -> bool {
        self.size >= 56
    }
}

/// The reduced form in which a bpobj stores a block pointer: no fill count, no checksum (unless
/// deduplicated), no payload (embedded). `free` marks a FREE entry of a livelist in the fill word.
pub fn bpobj_entry(bp: &BlkPtr, free: bool) -> BlkPtr {
    let mut b = bp.to_bytes();
    if bp.is_embedded() {
        let keep: [u8; BP_SIZE] = b;
        b = [0; BP_SIZE];
        b[48..56].copy_from_slice(&keep[48..56]);
        b[80..88].copy_from_slice(&keep[80..88]);
        return BlkPtr::from_bytes(&b, false);
    }
    b[88..96].copy_from_slice(&u64::from(free).to_le_bytes());
    if !bp.is_dedup() {
        b[96..].fill(0);
    }
    BlkPtr::from_bytes(&b, false)
}

/// Whether an entry of a livelist is a FREE one.
pub fn bpobj_entry_is_free(bp: &BlkPtr) -> bool {
    !bp.is_embedded() && bp.to_bytes()[88] & 1 != 0
}

/// Bookmark flags.
pub mod bookmark_flags {
    /// The "freed before next snapshot" triple is maintained.
    pub const HAS_FBN: u64 = 1;
    /// The snapshot still exists.
    pub const SNAPSHOT_EXISTS: u64 = 2;
}

/// Value of an entry of a bookmark ZAP: 3 words, or 12 with feature `bookmark_v2` (data format §12).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BookmarkPhys {
    /// Of the snapshot.
    pub guid: u64,
    /// Txg in which the snapshot was created.
    pub creation_txg: Txg,
    /// Creation of the snapshot, seconds since 1970.
    pub creation_time: u64,
    /// Redaction list or 0.
    pub redaction_obj: u64,
    /// See [`bookmark_flags`].
    pub flags: u64,
    /// Referenced, compressed, uncompressed bytes of the snapshot.
    pub referenced: [u64; 3],
    /// The same of what was freed before the next snapshot.
    pub freed_before_next: [u64; 3],
    /// Set of IVs of an encrypted snapshot, for raw increments; 0 if there is none.
    pub ivset_guid: u64,
}

impl BookmarkPhys {
    /// From the integers of the ZAP value; missing ones are 0, fewer than 3 are an error.
    pub fn from_words(w: &[u64]) -> Result<BookmarkPhys> {
        if w.len() < 3 {
            bail!(Damaged, "bookmark of {} words", w.len());
        }
        let at = |i: usize| w.get(i).copied().unwrap_or(0);
        Ok(BookmarkPhys {
            guid: at(0),
            creation_txg: Txg::new(at(1)),
            creation_time: at(2),
            redaction_obj: at(3),
            flags: at(4),
            referenced: [at(5), at(6), at(7)],
            freed_before_next: [at(8), at(9), at(10)],
            ivset_guid: at(11),
        })
    }

    /// Integers of the ZAP value: 12 words if `v2`, else 3.
    pub fn to_words(&self, v2: bool) -> Vec<u64> {
        let [r0, r1, r2] = self.referenced;
        let [f0, f1, f2] = self.freed_before_next;
        let mut w = vec![
            self.guid,
            self.creation_txg.number(),
            self.creation_time,
            self.redaction_obj,
            self.flags,
            r0,
            r1,
            r2,
            f0,
            f1,
            f2,
            self.ivset_guid,
        ];
        if !v2 {
            w.truncate(3);
        }
        w
    }
}

/// One entry of a redaction list: a run of blocks of one object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RedactBlock {
    /// Object number.
    pub object: u64,
    /// Number of the first block.
    pub blkid: u64,
    /// Bytes of one block.
    pub block_size: u64,
    /// Number of blocks, at least 1.
    pub count: u64,
}

/// Bytes of a [`RedactBlock`] on disk.
pub const REDACT_BLOCK_SIZE: usize = 32;

impl RedactBlock {
    /// Decodes an entry of 32 bytes. `Damaged`: it is cut short.
    pub fn decode(b: &[u8]) -> Result<RedactBlock> {
        let sc = u64_at(b, 16)?;
        u64_at(b, 24)?;
        Ok(RedactBlock {
            object: u64_at(b, 0)?,
            blkid: u64_at(b, 8)?,
            block_size: (sc >> 48) << base::SECTOR_SHIFT,
            count: (sc & ((1 << 48) - 1)) + 1,
        })
    }

    /// The entry.
    pub fn encode(&self) -> [u8; REDACT_BLOCK_SIZE] {
        let mut b = [0; REDACT_BLOCK_SIZE];
        put_u64(&mut b, 0, self.object);
        put_u64(&mut b, 8, self.blkid);
        let sc = (self.block_size >> base::SECTOR_SHIFT) << 48
            | (self.count.wrapping_sub(1) & ((1 << 48) - 1));
        put_u64(&mut b, 16, sc);
        b
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bytes::junk::Junk;
    use crate::types::ObjType;
    use crate::Compression;

    /// Words 1, 2, 3… in every field show swapped or overlapping offsets.
    fn ascending(n: usize) -> Vec<u8> {
        (1..=n as u64 / 8).flat_map(u64::to_le_bytes).collect()
    }

    #[test]
    fn dir() {
        let b = ascending(DSL_DIR_SIZE);
        let d = DslDirPhys::decode(&b).unwrap();
        assert_eq!((d.creation_time, d.flags, d.clones), (1, 13, 19));
        assert_eq!(d.used_breakdown, [14, 15, 16, 17, 18]);
        assert_eq!(d.used(Used::RefRsrv), 18);
        let e = d.encode();
        assert_eq!(e.len(), 256);
        assert_eq!(e[..152], b[..152]);
        assert!(e[152..].iter().all(|&x| x == 0));
        assert!(DslDirPhys::decode(&b[..151]).is_err());
    }

    #[test]
    fn dataset() {
        let b = ascending(DSL_DATASET_SIZE);
        let d = DslDatasetPhys::decode(&b).unwrap();
        assert_eq!((d.dir_obj, d.guid, d.flags), (1, 15, 16));
        assert_eq!((d.next_clones_obj, d.userrefs_obj), (33, 35));
        assert!(d.is_snapshot());
        let e = d.encode();
        assert_eq!(e.len(), 320);
        assert_eq!(e[..280], b[..280]);
        assert!(e[280..].iter().all(|&x| x == 0));
        assert!(DslDatasetPhys::decode(&b[..279]).is_err());
    }

    #[test]
    fn bpobj_sizes() {
        for (len, n) in [(16, 16), (32, 32), (40, 32), (48, 48), (56, 56), (320, 56)] {
            let b = ascending(len);
            let p = BpobjPhys::decode(&b).unwrap();
            assert_eq!(p.size, n);
            assert_eq!(p.encode(), b[..n]);
            assert_eq!(p.has_subobjs(), n >= 48);
            assert_eq!(p.uncomp != 0, p.has_comp());
            assert_eq!(p.num_freed != 0, p.has_freed());
        }
        assert!(BpobjPhys::decode(&[0; 15]).is_err());
        let sizes = [1, 2, 3, 25, 26, 5000].map(|v| BpobjPhys::size_for(v, false));
        assert_eq!(sizes, [16, 16, 32, 32, 48, 48]);
        assert_eq!(BpobjPhys::size_for(5000, true), 56);
    }

    #[test]
    fn bpobj_entries_are_reduced() {
        let mut bp = BlkPtr::from_bytes(&[0x11; 128], false);
        // Word 6: neither embedded (bit 39) nor dedup (bit 62).
        let mut raw = bp.to_bytes();
        raw[48..56].copy_from_slice(&(1u64 << 63).to_le_bytes());
        bp = BlkPtr::from_bytes(&raw, false);
        let r = bpobj_entry(&bp, false);
        assert_eq!(r.to_bytes()[..88], bp.to_bytes()[..88]);
        assert_eq!(r.to_bytes()[88..], [0; 40]);
        assert!(!bpobj_entry_is_free(&r));
        assert!(bpobj_entry_is_free(&bpobj_entry(&bp, true)));
        raw[48..56].copy_from_slice(&(3u64 << 62).to_le_bytes());
        let r = bpobj_entry(&BlkPtr::from_bytes(&raw, false), false);
        assert_eq!(r.to_bytes()[96..], raw[96..]);
        let e = BlkPtr::embedded(
            ObjType::PLAIN_FILE_CONTENTS,
            0,
            512,
            Compression::LZ4,
            &[7; 50],
            Txg::new(9),
        );
        let r = bpobj_entry(&e, true);
        assert!(r.is_embedded() && !bpobj_entry_is_free(&r));
        assert_eq!(r.logical_birth(), Txg::new(9));
        assert_eq!(r.ucsize(), e.ucsize());
        assert_eq!(r.to_bytes()[..48], [0; 48]);
    }

    #[test]
    fn small_ones() {
        let b = ascending(BPTREE_ENTRY_SIZE);
        let e = BptreeEntry::decode(&b).unwrap();
        assert_eq!((e.birth_txg, e.bookmark), (Txg::new(17), [18, 19, 20, 21]));
        assert_eq!(e.encode(), b);
        let b = ascending(40);
        let p = BptreePhys::decode(&b).unwrap();
        assert_eq!((p.begin, p.uncomp), (1, 5));
        assert_eq!(p.encode(), b);
        let d = DeadlistPhys::decode(&ascending(320)).unwrap();
        assert_eq!((d.used, d.comp, d.uncomp), (1, 2, 3));
        assert_eq!(d.encode().len(), 320);
        let w: Vec<u64> = (1..=12).collect();
        let m = BookmarkPhys::from_words(&w).unwrap();
        assert_eq!(m.to_words(true), w);
        assert_eq!(m.to_words(false), [1, 2, 3]);
        assert!(BookmarkPhys::from_words(&w[..2]).is_err());
        let r = RedactBlock {
            object: 5,
            blkid: 6,
            block_size: 131072,
            count: 1 << 48,
        };
        assert_eq!(RedactBlock::decode(&r.encode()).unwrap(), r);
    }

    #[test]
    fn hostile() {
        Junk(4).torment(&ascending(320), 300, |b| {
            let _ = DslDirPhys::decode(b);
            let _ = DslDatasetPhys::decode(b);
            let _ = BpobjPhys::decode(b);
            let _ = BptreeEntry::decode(b);
            let _ = BptreePhys::decode(b);
            let _ = DeadlistPhys::decode(b);
            let _ = RedactBlock::decode(b);
        });
    }
}
