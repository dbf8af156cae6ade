//! The path of an object, for reports of damage.

use crate::names;
use crate::zfs::Zfs;
use base::{Error, Kind, Result};

/// Deepest path followed.
const MOST_LEVELS: usize = 4096;
/// Bits of a directory entry that are the object number.
const OBJECT_BITS: u64 = (1 << 48) - 1;

impl Zfs {
    /// Path of an object from the root of the file system, with a leading slash; by its latest parent,
    /// if it has several names. `Kind::NotFound` if it has none (any more).
    pub fn path_of(&self, object: u64) -> Result<Vec<u8>> {
        let mut names: Vec<Vec<u8>> = Vec::new();
        let mut at = object;
        while at != self.root_object() {
            if names.len() > MOST_LEVELS {
                return Err(Error::damaged("directories go in a circle"));
            }
            let z = self.get(at)?;
            let parent = z.fixed().parent;
            if parent == at {
                return Err(Error::damaged("an object is its own parent"));
            }
            let dir = self.get(parent)?;
            if !dir.is_dir() {
                // What belongs to extended attributes of a file is told by that file.
                at = parent;
                names.push(b"<xattrdir>".to_vec());
                continue;
            }
            let mut name = None;
            names::walk(&dir.dnode, 0, |n, v, _| {
                if v & OBJECT_BITS == at {
                    name = Some(n.to_vec());
                }
                Ok(name.is_none())
            })?;
            names.push(name.ok_or(Kind::NotFound)?);
            at = parent;
        }
        let mut out = Vec::new();
        for n in names.iter().rev() {
            out.push(b'/');
            out.extend_from_slice(n);
        }
        if out.is_empty() {
            out.push(b'/');
        }
        Ok(out)
    }
}
