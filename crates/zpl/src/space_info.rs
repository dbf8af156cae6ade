//! The trait through which the POSIX layer asks the DSL for space, usage of owners and long names.

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
    /// Objects of the dataset.
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
