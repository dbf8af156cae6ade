//! Attributes as callers see them: times, znode flags, the results of `stat` and the arguments of `setattr`.

use env::Clock;

/// Seconds since 1970 (may be negative) and nanoseconds 0…999,999,999.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time {
    /// Seconds since 1970.
    pub sec: i64,
    /// Nanoseconds, below 10⁹.
    pub nsec: u32,
}

impl Time {
    /// A time of these parts.
    pub const fn new(sec: i64, nsec: u32) -> Time {
        Time { sec, nsec }
    }

    /// The time of `clock`.
    pub fn now(clock: &dyn Clock) -> Time {
        let (sec, nsec) = clock.now();
        Time { sec, nsec }
    }

    /// As stored: two 64-bit words.
    pub fn to_bytes(self) -> [u8; 16] {
        let mut b = [0; 16];
        b[..8].copy_from_slice(&self.sec.to_le_bytes());
        b[8..].copy_from_slice(&u64::from(self.nsec).to_le_bytes());
        b
    }

    /// From two 64-bit words; nanoseconds out of range (damage, or very old software) are clipped.
    pub fn from_words(sec: u64, nsec: u64) -> Time {
        Time {
            sec: sec as i64,
            nsec: nsec.min(999_999_999) as u32,
        }
    }
}

/// File types and permission bits of `st_mode`.
pub mod mode {
    /// Mask of the type.
    pub const FMT: u32 = 0o170000;
    /// A named pipe.
    pub const FIFO: u32 = 0o010000;
    /// A character device.
    pub const CHR: u32 = 0o020000;
    /// A directory.
    pub const DIR: u32 = 0o040000;
    /// A block device.
    pub const BLK: u32 = 0o060000;
    /// A regular file.
    pub const REG: u32 = 0o100000;
    /// A symbolic link.
    pub const LNK: u32 = 0o120000;
    /// A socket.
    pub const SOCK: u32 = 0o140000;
    /// Set-user-id.
    pub const SUID: u32 = 0o4000;
    /// Set-group-id.
    pub const SGID: u32 = 0o2000;
    /// In a directory: only owners remove names.
    pub const STICKY: u32 = 0o1000;
    /// Permission bits with set-id and sticky.
    pub const PERM: u32 = 0o7777;

    /// Whether it is a directory.
    pub const fn is_dir(m: u32) -> bool {
        m & FMT == DIR
    }
    /// Whether it is a regular file.
    pub const fn is_reg(m: u32) -> bool {
        m & FMT == REG
    }
    /// Whether it is a symbolic link.
    pub const fn is_lnk(m: u32) -> bool {
        m & FMT == LNK
    }
    /// Whether it is a character or block device.
    pub const fn is_dev(m: u32) -> bool {
        m & FMT == CHR || m & FMT == BLK
    }
    /// One of the seven types there are.
    pub const fn is_valid(m: u32) -> bool {
        matches!(m & FMT, FIFO | CHR | DIR | BLK | REG | LNK | SOCK)
    }
}

pub use disk::znode::flag;

/// The flags of `FS_IOC_GETFLAGS` that ZFS keeps.
pub mod fs_flag {
    /// `chattr +i`
    pub const IMMUTABLE: u32 = 0x10;
    /// `chattr +a`
    pub const APPEND: u32 = 0x20;
    /// `chattr +d`
    pub const NODUMP: u32 = 0x40;
    /// `chattr +P`
    pub const PROJINHERIT: u32 = 0x2000_0000;
    /// Everything that can be set.
    pub const ALL: u32 = IMMUTABLE | APPEND | NODUMP | PROJINHERIT;

    const PAIRS: [(u32, u64); 4] = [
        (IMMUTABLE, super::flag::IMMUTABLE),
        (APPEND, super::flag::APPENDONLY),
        (NODUMP, super::flag::NODUMP),
        (PROJINHERIT, super::flag::PROJINHERIT),
    ];

    /// Znode flags as `chattr` flags.
    pub fn from_znode(flags: u64) -> u32 {
        PAIRS
            .iter()
            .filter(|p| flags & p.1 != 0)
            .fold(0, |a, p| a | p.0)
    }

    /// Znode flags with the `chattr` flags replaced.
    pub fn to_znode(old: u64, fs: u32) -> u64 {
        PAIRS
            .iter()
            .fold(old, |a, p| if fs & p.0 != 0 { a | p.1 } else { a & !p.1 })
    }
}

/// The flags of `ZFS_IOC_GETDOSFLAGS` and `ZFS_IOC_SETDOSFLAGS`: znode flags as they are stored.
pub mod dos_flag {
    use super::flag;

    /// Everything that is shown and can be set.
    pub const ALL: u64 = flag::READONLY
        | flag::HIDDEN
        | flag::SYSTEM
        | flag::ARCHIVE
        | flag::IMMUTABLE
        | flag::NOUNLINK
        | flag::APPENDONLY
        | flag::NODUMP
        | flag::REPARSE
        | flag::OFFLINE
        | flag::SPARSE;
}

/// What `stat`, `statx` and `FS_IOC_FSGETXATTR` show of one object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attr {
    /// Object number.
    pub ino: u64,
    /// Low 32 bits of the creation txg.
    pub generation: u32,
    /// Type and permission bits.
    pub mode: u32,
    /// Number of names; of a directory 2 and its subdirectories.
    pub nlink: u64,
    /// User id of the owner.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// Linux device number, as the kernel's `new_encode_dev` packs it.
    pub rdev: u64,
    /// Bytes of the content; of a directory its entries and 2.
    pub size: u64,
    /// Allocated, in 512-byte units, as of the last synced transaction group; the dnode included.
    pub blocks: u64,
    /// Preferred I/O size: the block size of the file.
    pub blksize: u32,
    /// Last access.
    pub atime: Time,
    /// Last change of the content.
    pub mtime: Time,
    /// Last change of an attribute.
    pub ctime: Time,
    /// Creation.
    pub btime: Time,
    /// `chattr` flags, see [`fs_flag`].
    pub fs_flags: u32,
    /// Project id; 0 for none.
    pub projid: u32,
}

/// A time to be set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// The time of the operation.
    Now,
    /// This time.
    To(Time),
}

/// What a `setattr` changes; `None` leaves a thing as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttr {
    /// Permission bits; type bits are ignored.
    pub mode: Option<u32>,
    /// User id of the owner.
    pub uid: Option<u32>,
    /// Group id.
    pub gid: Option<u32>,
    /// Bytes of the content.
    pub size: Option<u64>,
    /// Last access.
    pub atime: Option<SetTime>,
    /// Last change of the content.
    pub mtime: Option<SetTime>,
    /// Only from a kernel that keeps ctime itself (write-back cache); otherwise now.
    pub ctime: Option<Time>,
    /// The caller wrote or truncated without the privilege to keep set-id bits.
    pub kill_suidgid: bool,
    /// The size change comes from an open descriptor: write permission was checked at open.
    pub through_handle: bool,
    /// Times of writes that a write-back cache had accepted long ago: no flag forbids them now.
    pub written_back: bool,
}

/// Why a time changes; decides the flags that go with it (data format §24).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Touch {
    /// Content changed: mtime and ctime.
    Content,
    /// Attributes changed: ctime.
    State,
}

/// Whether a read updates atime under `relatime`: when it is not newer than mtime or ctime, or older
/// than a day.
pub fn relatime_wants(atime: Time, mtime: Time, ctime: Time, now: Time) -> bool {
    atime <= mtime || atime <= ctime || now.sec.saturating_sub(atime.sec) >= 24 * 60 * 60
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relatime() {
        let t = |s| Time::new(s, 0);
        assert!(relatime_wants(t(5), t(5), t(1), t(6)));
        assert!(relatime_wants(t(5), t(1), t(9), t(10)));
        assert!(!relatime_wants(t(5), t(4), t(4), t(6)));
        assert!(relatime_wants(t(5), t(4), t(4), t(5 + 86400)));
        assert!(!relatime_wants(t(5), t(4), t(4), t(4 + 86400)));
    }

    #[test]
    fn flags_of_chattr() {
        for bits in 0..16u32 {
            let fs = (bits & 7) << 4 | (bits >> 3) << 29;
            let z = fs_flag::to_znode(flag::ARCHIVE, fs);
            assert_eq!(fs_flag::from_znode(z), fs);
            assert_ne!(z & flag::ARCHIVE, 0);
            assert_eq!(fs_flag::to_znode(z, 0), flag::ARCHIVE);
        }
    }

    #[test]
    fn times_as_words() {
        let t = Time::new(-3, 7);
        let b = t.to_bytes();
        let w = |o: usize| u64::from_le_bytes(b[o..o + 8].try_into().unwrap());
        assert_eq!(Time::from_words(w(0), w(8)), t);
        assert_eq!(Time::from_words(1, u64::MAX).nsec, 999_999_999);
    }
}
