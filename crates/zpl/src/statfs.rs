//! Space and object counts of the whole file system.

use crate::attr::{flag, mode};
use crate::zfs::Zfs;
use crate::znode::Znode;
use base::Result;

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
