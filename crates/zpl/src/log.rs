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
    Dir,
    XattrDir,
    Symlink,
}

/// The new object of a creation or whiteout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewFile {
    pub object: u64,
    /// 512-byte dnode slots.
    pub slots: u8,
    pub mode: u64,
    pub uid: u64,
    pub gid: u64,
    /// Creation txg.
    pub gen: u64,
    pub crtime: Time,
    /// As stored.
    pub rdev: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RenameKind {
    Plain,
    Exchange,
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
    pub projid: Option<u32>,
}

/// One operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    Create {
        how: Made,
        dir: u64,
        name: Vec<u8>,
        new: NewFile,
        /// Of a symbolic link.
        target: Vec<u8>,
    },
    Remove {
        dir: u64,
        name: Vec<u8>,
        is_dir: bool,
        /// The object the name led to (not part of the record on disk).
        object: u64,
    },
    Link {
        dir: u64,
        object: u64,
        name: Vec<u8>,
    },
    Rename {
        kind: RenameKind,
        from_dir: u64,
        to_dir: u64,
        from: Vec<u8>,
        to: Vec<u8>,
        /// The renamed object: its pending writes go into the ordered list first (not on disk).
        object: u64,
    },
    /// File data; the log fetches them with [`DataSource::log_read`] when (and if) they must be
    /// written, or takes the whole block by pointer.
    Write {
        object: u64,
        gen: u64,
        offset: u64,
        len: u64,
        /// Block size of the file.
        block: u32,
        /// The caller waits for the log right after this.
        sync: bool,
    },
    /// `len` 0: to the end.
    Truncate { object: u64, offset: u64, len: u64 },
    SetAttr {
        object: u64,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<Time>,
        mtime: Option<Time>,
        ctime: Option<Time>,
        extended: Option<Extended>,
    },
    /// Replaces the NFSv4 list; the mode follows from it.
    SetAcl {
        object: u64,
        /// v1 entries.
        aces: Vec<u8>,
        count: u64,
        /// File flags that belong to the list.
        flags: u64,
    },
    /// `value` is the plain value; `None` removes.
    SetSaXattr {
        object: u64,
        name: Vec<u8>,
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
    fn commit(&self, _object: Option<u64>) -> Result<()> {
        Ok(())
    }
    fn wait(&self, _txg: Txg) -> Result<()> {
        Ok(())
    }
}
