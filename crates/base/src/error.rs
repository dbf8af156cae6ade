//! The one error of the core: a kind that folds to an errno at the doors, and a sentence that says
//! what failed and where.
//!
//! ```
//! use base::{Error, Kind};
//! let e = Error::new(Kind::NotFound, "object 12 of tank/home");
//! assert_eq!(e.errno(), 2);
//! ```

use std::fmt;

/// What a fallible operation returns.
pub type Result<T> = std::result::Result<T, Error>;

/// What kind of failure it was. The errno in the comment is what a caller of a system call sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// EPERM
    NotPermitted,
    /// ENOENT
    NotFound,
    /// EINTR
    Interrupted,
    /// EIO: the device failed or every copy was bad
    Io,
    /// ENXIO
    NoDevice,
    /// E2BIG
    ArgTooBig,
    /// EBADF
    BadHandle,
    /// EAGAIN
    Again,
    /// ENOMEM
    NoMemory,
    /// EACCES
    Access,
    /// EBUSY
    Busy,
    /// EEXIST
    Exists,
    /// EXDEV
    CrossDevice,
    /// ENODEV
    NoSuchDevice,
    /// ENOTDIR
    NotDir,
    /// EISDIR
    IsDir,
    /// EINVAL
    Invalid,
    /// ETXTBSY
    TextBusy,
    /// EFBIG
    FileTooBig,
    /// ENOSPC
    NoSpace,
    /// EROFS
    ReadOnly,
    /// EMLINK
    TooManyLinks,
    /// ERANGE
    Range,
    /// ENAMETOOLONG
    NameTooLong,
    /// ENOSYS
    NotImplemented,
    /// ENOTEMPTY
    NotEmpty,
    /// ELOOP
    Loop,
    /// ENODATA: no such extended attribute
    NoData,
    /// EOVERFLOW
    Overflow,
    /// EILSEQ: a name that is not valid UTF-8 where it must be
    BadName,
    /// EOPNOTSUPP: known, but not available here (feature off, option not built yet)
    Unsupported,
    /// ESTALE
    Stale,
    /// EDQUOT
    Quota,
    /// EIO: a checksum did not match on any copy
    Checksum,
    /// EIO: bytes from disk that make no sense (never caused by the caller)
    Damaged,
    /// EIO: the pool is suspended
    Suspended,
}

impl Kind {
    /// The errno of Linux for this kind.
    pub const fn errno(self) -> i32 {
        match self {
            Kind::NotPermitted => 1,
            Kind::NotFound => 2,
            Kind::Interrupted => 4,
            Kind::Io | Kind::Checksum | Kind::Damaged | Kind::Suspended => 5,
            Kind::NoDevice => 6,
            Kind::ArgTooBig => 7,
            Kind::BadHandle => 9,
            Kind::Again => 11,
            Kind::NoMemory => 12,
            Kind::Access => 13,
            Kind::Busy => 16,
            Kind::Exists => 17,
            Kind::CrossDevice => 18,
            Kind::NoSuchDevice => 19,
            Kind::NotDir => 20,
            Kind::IsDir => 21,
            Kind::Invalid => 22,
            Kind::TextBusy => 26,
            Kind::FileTooBig => 27,
            Kind::NoSpace => 28,
            Kind::ReadOnly => 30,
            Kind::TooManyLinks => 31,
            Kind::Range => 34,
            Kind::NameTooLong => 36,
            Kind::NotImplemented => 38,
            Kind::NotEmpty => 39,
            Kind::Loop => 40,
            Kind::NoData => 61,
            Kind::Overflow => 75,
            Kind::BadName => 84,
            Kind::Unsupported => 95,
            Kind::Stale => 116,
            Kind::Quota => 122,
        }
    }

    /// The nearest kind for an errno of Linux.
    pub const fn from_errno(e: i32) -> Kind {
        match e {
            1 => Kind::NotPermitted,
            2 => Kind::NotFound,
            4 => Kind::Interrupted,
            6 => Kind::NoDevice,
            7 => Kind::ArgTooBig,
            9 => Kind::BadHandle,
            11 => Kind::Again,
            12 => Kind::NoMemory,
            13 => Kind::Access,
            16 => Kind::Busy,
            17 => Kind::Exists,
            18 => Kind::CrossDevice,
            19 => Kind::NoSuchDevice,
            20 => Kind::NotDir,
            21 => Kind::IsDir,
            22 => Kind::Invalid,
            26 => Kind::TextBusy,
            27 => Kind::FileTooBig,
            28 => Kind::NoSpace,
            30 => Kind::ReadOnly,
            31 => Kind::TooManyLinks,
            34 => Kind::Range,
            36 => Kind::NameTooLong,
            38 => Kind::NotImplemented,
            39 => Kind::NotEmpty,
            40 => Kind::Loop,
            61 => Kind::NoData,
            75 => Kind::Overflow,
            84 => Kind::BadName,
            95 => Kind::Unsupported,
            116 => Kind::Stale,
            122 => Kind::Quota,
            _ => Kind::Io,
        }
    }
}

/// A failure: its kind, and (where it helps) what it concerns. Small: one word beside the kind.
#[derive(Clone, PartialEq, Eq)]
pub struct Error {
    /// What sort of failure; callers decide by it.
    pub kind: Kind,
    what: Option<Box<str>>,
}

impl Error {
    /// An error with a sentence; `what` names the object, device or name concerned.
    pub fn new(kind: Kind, what: impl Into<String>) -> Error {
        Error {
            kind,
            what: Some(what.into().into_boxed_str()),
        }
    }

    /// Bytes from disk that make no sense.
    pub fn damaged(what: impl Into<String>) -> Error {
        Error::new(Kind::Damaged, what)
    }

    /// The number a system call returns for it.
    pub fn errno(&self) -> i32 {
        self.kind.errno()
    }

    /// Whether it says that a block cannot be read, or makes no sense: a property of the block, not of
    /// the caller or of the moment.
    pub fn is_damage(&self) -> bool {
        matches!(self.kind, Kind::Io | Kind::Checksum | Kind::Damaged)
    }

    /// The sentence, if there is one.
    pub fn what(&self) -> Option<&str> {
        self.what.as_deref()
    }

    /// Puts `outer: ` in front of the sentence.
    pub fn context(self, outer: impl AsRef<str>) -> Error {
        let text = match &self.what {
            Some(w) => format!("{}: {}", outer.as_ref(), w),
            None => format!("{}: {:?}", outer.as_ref(), self.kind),
        };
        Error::new(self.kind, text)
    }
}

impl From<Kind> for Error {
    fn from(kind: Kind) -> Error {
        Error { kind, what: None }
    }
}

impl From<std::io::Error> for Error {
    fn from(e: std::io::Error) -> Error {
        let kind = e
            .raw_os_error()
            .map(Kind::from_errno)
            .unwrap_or(match e.kind() {
                std::io::ErrorKind::NotFound => Kind::NotFound,
                std::io::ErrorKind::PermissionDenied => Kind::Access,
                std::io::ErrorKind::AlreadyExists => Kind::Exists,
                std::io::ErrorKind::InvalidInput => Kind::Invalid,
                _ => Kind::Io,
            });
        Error::new(kind, e.to_string())
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.what {
            Some(w) => f.write_str(w),
            None => write!(f, "{:?}", self.kind),
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.what {
            Some(w) => write!(f, "{:?}({w})", self.kind),
            None => write!(f, "{:?}", self.kind),
        }
    }
}

impl std::error::Error for Error {}

/// `Err(Error::new(kind, format!(...)))` in one word.
#[macro_export]
macro_rules! bail {
    ($kind:ident, $($arg:tt)*) => {
        return Err($crate::Error::new($crate::Kind::$kind, format!($($arg)*)))
    };
}
