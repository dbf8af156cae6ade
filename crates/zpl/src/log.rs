//! The trait [`IntentLog`]: one record for every change of a file system (pool format §26.4).

use crate::attr::{SetAttr, SetTime, Time};
use crate::znode::Znode;
use base::{Result, Txg};
use dmu::Tx;

/// How an object came to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Made {
    /// Regular file, device, fifo or socket.
    File,
    /// Directory.
    Dir,
    /// Directory of extended attributes.
    XattrDir,
    /// Symbolic link.
    Symlink,
}

/// The new object of a creation or whiteout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewFile {
    /// Its number.
    pub object: u64,
    /// 512-byte dnode slots.
    pub slots: u8,
    /// As `st_mode`.
    pub mode: u64,
    /// Owner, a FUID.
    pub uid: u64,
    /// Group, a FUID.
    pub gid: u64,
    /// Creation txg.
    pub gen: u64,
    /// Time of creation.
    pub crtime: Time,
    /// As stored.
    pub rdev: u64,
}

/// Kind of a rename.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RenameKind {
    /// The target, if there is one, is replaced.
    Plain,
    /// Both names change places. The object of the new name: its pending writes go into the ordered list
    /// first, too (not on disk).
    Exchange(u64),
    /// A whiteout device takes the place of the source.
    Whiteout(NewFile),
}

/// Attributes beyond POSIX in a SETATTR record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extended {
    /// Znode flags that a user can set (DOS flags and project inheritance) to be set to these.
    pub flags: Option<u64>,
    /// Which of them are meant; the others stay.
    pub mask: u64,
    /// Project id.
    pub projid: Option<u32>,
}

/// One operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// An object was made.
    Create {
        /// What was made.
        how: Made,
        /// Object of the directory; of the file for an extended attribute directory.
        dir: u64,
        /// Its name.
        name: Vec<u8>,
        /// The object.
        new: NewFile,
        /// Of a symbolic link.
        target: Vec<u8>,
    },
    /// A name was removed.
    Remove {
        /// Object of the directory.
        dir: u64,
        /// The name.
        name: Vec<u8>,
        /// It was a directory.
        is_dir: bool,
        /// The object the name led to (not part of the record on disk).
        object: u64,
    },
    /// An object got a further name.
    Link {
        /// Object of the directory.
        dir: u64,
        /// The object.
        object: u64,
        /// The new name.
        name: Vec<u8>,
    },
    /// A name was changed.
    Rename {
        /// Kind of the rename.
        kind: RenameKind,
        /// Object of the old directory.
        from_dir: u64,
        /// Object of the new directory.
        to_dir: u64,
        /// Old name.
        from: Vec<u8>,
        /// New name.
        to: Vec<u8>,
        /// The renamed object: its pending writes go into the ordered list first (not on disk).
        object: u64,
    },
    /// File data; the log fetches them with [`DataSource::log_read`] when (and if) they must be
    /// written, or takes the whole block by pointer.
    Write {
        /// The file.
        object: u64,
        /// Its generation.
        gen: u64,
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u64,
        /// Block size of the file.
        block: u32,
        /// The caller waits for the log right after this.
        sync: bool,
    },
    /// `len` 0: to the end.
    Truncate {
        /// The file.
        object: u64,
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u64,
    },
    /// Attributes were set; `None` leaves one as it is.
    SetAttr {
        /// The object.
        object: u64,
        /// As `st_mode`.
        mode: Option<u32>,
        /// User id of the owner.
        uid: Option<u32>,
        /// Group id.
        gid: Option<u32>,
        /// Bytes of the content.
        size: Option<u64>,
        /// Last access.
        atime: Option<Time>,
        /// Last change of the content.
        mtime: Option<Time>,
        /// Last change of an attribute.
        ctime: Option<Time>,
        /// Flags and project.
        extended: Option<Extended>,
    },
    /// Replaces the NFSv4 list; the mode follows from it.
    SetAcl {
        /// The object.
        object: u64,
        /// v1 entries.
        aces: Vec<u8>,
        /// Number of entries.
        count: u64,
        /// File flags that belong to the list.
        flags: u64,
    },
    /// `value` is the plain value; `None` removes.
    SetSaXattr {
        /// The object.
        object: u64,
        /// Name of the attribute.
        name: Vec<u8>,
        /// Its value.
        value: Option<Vec<u8>>,
    },
}

impl Record {
    pub(crate) fn set_attr(z: &Znode, s: &SetAttr) -> Record {
        let f = z.fixed();
        let time = |t: Option<SetTime>, new: Time| t.map(|_| new);
        Record::SetAttr {
            object: z.object,
            mode: s.mode.map(|_| f.mode32()),
            uid: s.uid,
            gid: s.gid,
            size: s.size,
            atime: time(s.atime, f.atime),
            mtime: time(s.mtime, f.mtime),
            ctime: s.ctime,
            extended: None,
        }
    }
}

/// Where records go. Implemented over crate `zil` by whoever mounts; [`NoLog`] for tests.
pub trait IntentLog: Send + Sync {
    /// Takes a record of an operation that happens in `tx`. Must not wait. During replay the log
    /// takes note that the record it is replaying is done in that txg, and nothing else.
    fn log(&self, tx: &Tx, rec: Record);
    /// Takes note, as [`IntentLog::log`] does, of a change that no record describes. What is logged after
    /// it may rest on it: a commit waits for its txg.
    fn unlogged(&self, tx: &Tx);
    /// Returns when everything that concerns the object (`None`: the whole file system) and was
    /// logged before is durable. Called without any lock or transaction held.
    fn commit(&self, object: Option<u64>) -> Result<()>;
    /// Returns when that txg is on disk; for what no record can describe.
    fn wait(&self, txg: Txg) -> Result<()>;
}

/// Data for records that are written late; implemented by [`crate::Zfs`].
pub trait DataSource {
    /// Bytes of a file as they are now, zeros past its end. `Kind::NotFound` if the file of that
    /// generation is gone (its record is not needed then).
    fn log_read(&self, object: u64, gen: u64, offset: u64, buf: &mut [u8]) -> Result<()>;
}

/// Forgets all records and is never late.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoLog;

impl IntentLog for NoLog {
    fn log(&self, _tx: &Tx, _rec: Record) {}
    fn unlogged(&self, _tx: &Tx) {}
    fn commit(&self, _object: Option<u64>) -> Result<()> {
        Ok(())
    }
    fn wait(&self, _txg: Txg) -> Result<()> {
        Ok(())
    }
}
