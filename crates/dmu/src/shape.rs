//! The shape of new objects, and how blocks of an object set are stored.

use disk::{Checksum, Compression, ObjType};
use zio::{RawSeal, Scope};

/// Encryption parameters of a block of dnodes in a raw stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DnodeSeal {
    /// Salt, nonce and MAC of the block.
    pub seal: RawSeal,
    /// It is stored in the order of a big-endian machine: what is authenticated says so.
    pub big_endian: bool,
}

/// How blocks of an object set are stored: the dataset's properties with "inherit" and "on" resolved
/// to on-disk numbers, and what the pool's version and features allow.
#[derive(Clone, Debug)]
pub struct WritePolicy {
    /// Compression of content.
    pub compress: Compression,
    /// Level of zstd; 0 = its default.
    pub zstd_level: u8,
    /// Checksum of content.
    pub checksum: Checksum,
    /// Copies of content, 1 to 3.
    pub copies: u8,
    /// redundant_metadata: 0 all, 1 most, 2 some, 3 none.
    pub redundant_metadata: u8,
    /// Compression of metadata: lz4 (15) or lzjb (3).
    pub meta_compress: Compression,
    /// Feature `hole_birth` is active: holes keep their birth.
    pub hole_birth: bool,
    /// Feature `embedded_data` may be used.
    pub embedded_data: bool,
    /// Most copies the pool version allows: 3, or 1 before version 2.
    pub max_copies: u8,
    /// The MOS: three copies of everything, fletcher4.
    pub is_mos: bool,
    /// dn_used counts bytes (pool version ≥ 3).
    pub used_bytes: bool,
    /// Dnode flags that say the object is in the user accounting (2, 8), or 0.
    pub accounting_flags: u8,
    /// Indirect block shift of new objects: 17, or 14 for old pools.
    pub indblkshift: u8,
    /// Checksum with which data blocks are deduplicated; `None`: they are not.
    pub dedup: Option<Checksum>,
    /// The bytes of deduplicated blocks are compared.
    pub dedup_verify: bool,
    /// Blocks of files and volumes stored in at most so many bytes go to the special devices; 0 = none.
    pub special_small: u64,
    /// What stays in the block cache when it was read (`primarycache`).
    pub keep: Scope,
    /// What of it goes to cache devices when it leaves the block cache (`secondarycache`).
    pub second: Scope,
    /// What is read ahead (`prefetch`).
    pub ahead: Scope,
}

impl Default for WritePolicy {
    fn default() -> Self {
        WritePolicy {
            compress: Compression::LZ4,
            zstd_level: 0,
            checksum: Checksum::FLETCHER4,
            copies: 1,
            redundant_metadata: 0,
            meta_compress: Compression::LZ4,
            hole_birth: true,
            embedded_data: true,
            max_copies: 3,
            is_mos: false,
            used_bytes: true,
            accounting_flags: 0,
            indblkshift: 17,
            dedup: None,
            dedup_verify: false,
            special_small: 0,
            keep: Scope::All,
            second: Scope::All,
            ahead: Scope::All,
        }
    }
}

/// What a raw stream says of a dnode, which is authenticated by it.
#[derive(Clone, Debug, Default)]
pub struct RawObject {
    /// Levels of the block tree.
    pub nlevels: u8,
    /// Block pointers.
    pub nblkptr: u8,
    /// Number of the last block.
    pub maxblkid: u64,
    /// All bytes of the bonus buffer; [`NewObject::bonus`] is the part in use.
    pub bonus: Vec<u8>,
}

/// The shape of a new object; zero means the default.
#[derive(Clone, Debug, Default)]
pub struct NewObject {
    /// Type of the content.
    pub obj_type: ObjType,
    /// Bytes; 0 = 512.
    pub block_size: usize,
    /// 0 = the pool's default.
    pub indblkshift: u8,
    /// Type of the bonus.
    pub bonus_type: ObjType,
    /// The bonus.
    pub bonus: Vec<u8>,
    /// It gets a spill block: the dnode has one block pointer, as those of system attributes, since the place of the
    /// third is that of the spill pointer.
    pub spills: bool,
    /// 512-byte dnode slots; 0 = 1.
    pub slots: u8,
    /// Checksum of its blocks; `INHERIT` takes that of the object set.
    pub checksum: Checksum,
    /// Compression of its blocks; `INHERIT` takes that of the object set.
    pub compress: Compression,
    /// Of an object of a raw stream: its dnode has exactly that shape.
    pub raw: Option<RawObject>,
}
