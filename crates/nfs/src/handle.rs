//! File handles: the guids of a pool and of a dataset, and where an object is in it. So a handle means the same object after a
//! restart of the daemon, and never another one: of a pool that was split both halves have datasets of the same guids.
//!
//! ```text
//! byte 0   version, 1
//!      1   kind: 0 object of the head, 1 directory of .zfs, 2 object of a snapshot
//!      2   two bytes, 0
//!      4   guid of the pool
//!     12   guid of the head
//!     20   object number, or number of the directory
//!     28   generation of the object, 32 bits
//!     32   of kind 2: object of the snapshot in the MOS, and its guid
//! ```

use crate::xdr::{Decoded, Garbage, Reader, Writer};
use vfs::{Dir, Key, Place};

/// Most bytes of a handle in NFS 3.
pub const MOST: usize = 64;
const VERSION: u8 = 1;

/// Which file system is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileSystem {
    /// Guid of its pool.
    pub pool: u64,
    /// Guid of its dataset.
    pub dataset: u64,
}

impl FileSystem {
    /// The number by which clients tell it from others.
    pub fn number(self) -> u64 {
        self.dataset ^ self.pool.rotate_left(32)
    }
}

/// What a handle says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handle {
    /// The file system.
    pub fs: FileSystem,
    /// What is meant in it.
    pub place: Place,
}

impl Handle {
    /// As clients get it.
    pub fn to_bytes(self) -> Vec<u8> {
        let mut w = Writer::default();
        let (kind, object, generation) = match self.place {
            Place::Head { object, generation } => (0, object, generation),
            Place::Control(dir) => (1, dir as u64, 0),
            Place::Snapshot {
                object, generation, ..
            } => (2, object, generation),
        };
        w.fixed(&[VERSION, kind, 0, 0]);
        w.u64(self.fs.pool).u64(self.fs.dataset);
        w.u64(object).u32(generation);
        if let Place::Snapshot { key, .. } = self.place {
            w.u64(key.object).u64(key.guid);
        }
        w.into_bytes()
    }

    /// As clients give it back.
    ///
    /// # Errors
    /// It was not made here.
    pub fn read(bytes: &[u8]) -> Decoded<Handle> {
        let r = &mut Reader::new(bytes);
        let [version, kind, 0, 0] = r.fixed()? else {
            return Err(Garbage);
        };
        let (pool, dataset) = (r.u64()?, r.u64()?);
        let fs = FileSystem { pool, dataset };
        let (object, generation) = (r.u64()?, r.u32()?);
        let place = match (version, kind) {
            (VERSION, 0) => Place::Head { object, generation },
            (VERSION, 1) if generation == 0 => {
                Place::Control(Dir::of_number(object).ok_or(Garbage)?)
            }
            (VERSION, 2) => {
                let (of, guid) = (r.u64()?, r.u64()?);
                let key = Key { object: of, guid };
                Place::Snapshot {
                    key,
                    object,
                    generation,
                }
            }
            _ => return Err(Garbage),
        };
        match r.rest() {
            [] => Ok(Handle { fs, place }),
            _ => Err(Garbage),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FS: FileSystem = FileSystem {
        pool: 77,
        dataset: 78,
    };

    #[test]
    fn handles_come_back() {
        let (object, generation) = (0x1234_5678_9abc, 0xffff_fff0);
        let key = Key {
            object: 9,
            guid: u64::MAX,
        };
        for place in [
            Place::Head { object, generation },
            Place::Control(Dir::Snapshots),
            Place::Snapshot {
                key,
                object,
                generation,
            },
        ] {
            let h = Handle { fs: FS, place };
            let bytes = h.to_bytes();
            assert!(bytes.len() <= MOST);
            assert_eq!(Handle::read(&bytes), Ok(h));
            assert_eq!(Handle::read(&bytes[1..]), Err(Garbage));
            assert_eq!(Handle::read(&[&bytes[..], &[0]].concat()), Err(Garbage));
        }
        assert_eq!(Handle::read(&[]), Err(Garbage));
        let mut other = Handle {
            fs: FS,
            place: Place::Control(Dir::Root),
        }
        .to_bytes();
        other[27] = 9;
        assert_eq!(Handle::read(&other), Err(Garbage));
    }
}
