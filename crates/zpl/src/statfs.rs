//! Space and object counts of the whole file system.

use crate::attr::{flag, mode};
use crate::zfs::Zfs;
use crate::znode::Znode;
use base::Result;

/// Space of a dataset, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Space {
    /// Referenced by the dataset.
    pub referenced: u64,
    /// Can still be written, after quotas and reservations.
    pub available: u64,
    /// Objects of the dataset.
    pub objects: u64,
    /// Objects that may still be made (2^48 − objects, or less).
    pub objects_free: u64,
}

/// What one id uses, as of the last synced transaction group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Deflated bytes.
    pub bytes: u64,
    /// Number of objects.
    pub objects: u64,
}

/// Whose usage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    /// That of a user.
    User,
    /// That of a group.
    Group,
    /// That of a project.
    Project,
}

/// What the dataset layer knows.
pub trait SpaceInfo: Send + Sync {
    /// Space of the dataset now.
    fn space(&self) -> Space;
    /// Usage by an id; `None` if it is not accounted (old pools).
    fn usage(&self, _whose: Whose, _id: u64) -> Result<Option<Usage>> {
        Ok(None)
    }
    /// The pool or dataset cannot be written at all (snapshot, read-only import).
    fn read_only(&self) -> bool {
        false
    }
    /// The dataset has, or may have, names longer than 255 bytes (feature `longname` is active).
    fn has_long_names(&self) -> bool {
        false
    }
    /// An entry with such a name is being made. Called in a transaction.
    fn long_name_made(&self) {}
    /// Two halves of the dataset's fsid guid.
    fn fsid(&self) -> u64 {
        0
    }
}

/// Answer to statfs(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Statfs {
    /// Both block size and fragment size, bytes.
    pub bsize: u64,
    /// Blocks in all.
    pub blocks: u64,
    /// Blocks that are free.
    pub bfree: u64,
    /// Blocks that ordinary users can have.
    pub bavail: u64,
    /// Objects in all.
    pub files: u64,
    /// Objects that can still be made.
    pub ffree: u64,
    /// Bytes of the longest name.
    pub namelen: u32,
    /// Id of the file system.
    pub fsid: u64,
}

/// `f_type` of ZFS.
pub const MAGIC: u32 = 0x2FC1_2FC1;

impl Zfs {
    /// Figures for the file system; `at` is the object asked about: below a directory with project
    /// inheritance they are the project's.
    pub fn statfs(&self, at: Option<&Znode>) -> Result<Statfs> {
        let mut s = self.space.space();
        if let Some(z) = at {
            let f = z.fixed();
            if mode::is_dir(f.mode32()) && f.flags & flag::PROJINHERIT != 0 {
                self.project_space(z.extra().projid, &mut s)?;
            }
        }
        let bsize = self.props().recordsize as u64;
        let free = s.available / bsize;
        let ffree = s.objects_free.min(s.available / 512);
        Ok(Statfs {
            bsize,
            blocks: s.referenced.div_ceil(bsize) + free,
            bfree: free,
            bavail: free,
            files: ffree + s.objects,
            ffree,
            namelen: self.name_max() as u32,
            fsid: self.space.fsid(),
        })
    }
}
