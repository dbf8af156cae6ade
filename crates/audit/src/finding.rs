//! Findings of an audit: what is wrong, and where.

use base::{Damage, Error};
use disk::BlkPtr;
use std::fmt;

/// Which block of which object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct At {
    /// Object number of the dataset in the MOS, 0 for the MOS itself.
    pub objset: u64,
    /// Object number; 0 for the meta-dnode and the block of the object set.
    pub object: u64,
    /// −1 for the block of an object set.
    pub level: i64,
    /// Number of the block at its level.
    pub block: u64,
}

impl At {
    /// The block of an object set.
    pub(crate) fn root(objset: u64) -> At {
        At {
            objset,
            object: 0,
            level: -1,
            block: 0,
        }
    }
}

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (objset, object) = (self.objset, self.object as i64);
        write!(f, "<{objset}, {object}, {}, {:x}>", self.level, self.block)
    }
}

/// What led to a block or a structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A block.
    Block(At),
    /// An object.
    Object {
        /// Object number of the dataset in the MOS, 0 for the MOS itself.
        objset: u64,
        /// Object number.
        object: u64,
    },
    /// An object set, by the object number of its dataset.
    Objset(u64),
    /// A dataset, by its object number.
    Dataset(u64),
    /// An intent log.
    Log,
    /// A list or tree that the directory of the MOS names.
    Directory(&'static str),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Block(at) => at.fmt(f),
            Origin::Object { objset, object } => write!(f, "object {object} of {objset}"),
            Origin::Objset(n) => write!(f, "object set {n}"),
            Origin::Dataset(n) => write!(f, "dataset {n}"),
            Origin::Log => f.write_str("log"),
            Origin::Directory(key) => f.write_str(key),
        }
    }
}

/// What is wrong with a pool.
#[derive(Clone, Debug)]
pub enum Finding {
    /// A block cannot be read and verified, or one copy of it.
    Unreadable {
        /// The block.
        at: At,
        /// Number of the copy, if it is about one alone.
        copy: Option<usize>,
        /// What reading it failed with.
        error: Error,
    },
    /// A structure is not what its place demands.
    Malformed {
        /// What led to the structure.
        origin: Origin,
        /// What is wrong with it.
        error: Error,
    },
    /// Space belongs to two blocks.
    Shared {
        /// What led to the second block.
        origin: Origin,
        /// Its pointer.
        bp: BlkPtr,
    },
    /// Space is allocated, but no block is there. Bytes from `start` to `end` (exclusive).
    Leaked {
        /// Top-level vdev.
        vdev: u64,
        /// First byte.
        start: u64,
        /// Byte behind the last one.
        end: u64,
    },
    /// Space of a block is free. Bytes from `start` to `end` (exclusive).
    Free {
        /// Top-level vdev.
        vdev: u64,
        /// First byte.
        start: u64,
        /// Byte behind the last one.
        end: u64,
    },
}

impl Finding {
    /// Its number in the registry.
    pub fn damage(&self) -> Damage {
        match self {
            Finding::Unreadable { copy: None, .. } => Damage::BlockUnreadable,
            Finding::Unreadable { copy: Some(_), .. } => Damage::CopyUnreadable,
            Finding::Malformed { origin, .. } => match origin {
                Origin::Block(_) => Damage::BlockMalformed,
                Origin::Object { .. } => Damage::ObjectMalformed,
                Origin::Objset(_) => Damage::ObjsetMalformed,
                Origin::Dataset(_) => Damage::DatasetMalformed,
                Origin::Log => Damage::LogMalformed,
                Origin::Directory(_) => Damage::DirectoryMalformed,
            },
            Finding::Shared { .. } => Damage::SpaceShared,
            Finding::Leaked { .. } => Damage::SpaceLeaked,
            Finding::Free { .. } => Damage::SpaceFree,
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Finding::Unreadable { at, copy, error } => match copy {
                Some(n) => write!(f, "copy {n} of block {at}: {error}"),
                None => write!(f, "block {at}: {error}"),
            },
            Finding::Malformed { origin, error } => write!(f, "{origin}: {error}"),
            Finding::Shared { origin, bp } => write!(f, "space in use twice: {origin}: {bp:?}"),
            Finding::Leaked { vdev, start, end } => {
                let size = end - start;
                write!(
                    f,
                    "leaked space: vdev {vdev}, offset {start:#x}, size {size}"
                )
            }
            Finding::Free { vdev, start, end } => {
                let size = end - start;
                write!(
                    f,
                    "in use but free: vdev {vdev}, offset {start:#x}, size {size}"
                )
            }
        }
    }
}
