//! The error type of the engine: a kind that the doors turn into an errno, a subject and a reason in words, and
//! a cause where callers distinguish more than the kind. No caller parses the words.
//!
//! ```
//! use base::{Error, Kind};
//! let e = Error::about(Kind::Busy, "tank/home", "dataset is busy");
//! assert_eq!(e.errno(), 16);
//! assert_eq!((e.subject(), e.reason()), (Some("tank/home"), Some("dataset is busy")));
//! assert_eq!(e.to_string(), "tank/home: dataset is busy");
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
    /// ENOTRECOVERABLE: an invariant of this software is broken, by a mistake of its own: neither the caller nor a device is to blame. A
    /// pool in which one occurs stops, so that nothing that was built on it reaches a disk.
    Bug,
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
            Kind::Bug => 131,
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
            131 => Kind::Bug,
            _ => Kind::Io,
        }
    }
}

/// Why something failed, where callers decide by more than the kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cause {
    /// No dataset has that name. (Without it, `Kind::NotFound` says that a part of one is missing.)
    NoDataset,
    /// A feature of the pool is not enabled.
    FeatureOff,
    /// A snapshot is not of the history of the dataset it is used with.
    NotAnAncestor,
    /// The bytes are no send stream.
    NotAStream,
    /// The refquota of the dataset itself, not a quota of it or above it.
    Refquota,
    /// A block of an encrypted dataset is not what its key's owner wrote.
    NotAuthentic,
    /// The program that mounts for ordinary users may not look at the mount point.
    HiddenMountPoint,
}

/// A failure: its kind, and (where it helps) what it concerns and why. Small: one word beside the kind.
#[derive(Clone, PartialEq, Eq)]
pub struct Error {
    /// What sort of failure; callers decide by it.
    pub kind: Kind,
    what: Option<Box<What>>,
}

#[derive(Clone, PartialEq, Eq)]
struct What {
    /// The sentence: the subject if there is one, `: `, the reason.
    text: Box<str>,
    /// Bytes of `text` that are the subject.
    subject: Option<usize>,
    cause: Option<Cause>,
    /// It names action and object.
    whole: bool,
}

/// What stands between subject and reason.
const BETWEEN: &str = ": ";

impl Error {
    /// An error with a sentence; `what` names the object, device or name concerned.
    pub fn new(kind: Kind, what: impl Into<String>) -> Error {
        Error::with(kind, what.into(), None, None)
    }

    /// An error whose sentence names action and object: `cannot mount 'tank': directory is not empty`. Commands print it as it is.
    pub fn sentence(kind: Kind, sentence: impl Into<String>) -> Error {
        let mut e = Error::new(kind, sentence);
        if let Some(w) = &mut e.what {
            w.whole = true;
        }
        e
    }

    /// An error about `subject` (a dataset, device, object), because of `reason`.
    pub fn about(kind: Kind, subject: impl AsRef<str>, reason: impl AsRef<str>) -> Error {
        let (subject, reason) = (subject.as_ref(), reason.as_ref());
        let text = [subject, BETWEEN, reason].concat();
        Error::with(kind, text, Some(subject.len()), None)
    }

    fn with(kind: Kind, text: String, subject: Option<usize>, cause: Option<Cause>) -> Error {
        let text = text.into_boxed_str();
        Error {
            kind,
            what: Some(Box::new(What {
                text,
                subject,
                cause,
                whole: false,
            })),
        }
    }

    /// Bytes from disk that make no sense.
    pub fn damaged(what: impl Into<String>) -> Error {
        Error::new(Kind::Damaged, what)
    }

    /// Whether an invariant of this software is broken ([`Kind::Bug`]).
    pub fn is_bug(&self) -> bool {
        self.kind == Kind::Bug
    }

    /// The same error, with its cause.
    pub fn because(self, cause: Cause) -> Error {
        let mut e = match self.what {
            Some(_) => self,
            None => Error::new(self.kind, self.to_string()),
        };
        if let Some(w) = &mut e.what {
            w.cause = Some(cause);
        }
        e
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

    /// Whether it says that what was read is not what belongs there. Reading once more gives the same; with
    /// [`Kind::Io`] that is open.
    pub fn is_wrong_content(&self) -> bool {
        matches!(self.kind, Kind::Checksum | Kind::Damaged)
    }

    /// Whether the same may succeed later, when a device, room or memory is there again. What was not done
    /// because of it must not be given up.
    pub fn may_pass(&self) -> bool {
        matches!(
            self.kind,
            Kind::Io
                | Kind::NoDevice
                | Kind::NoSpace
                | Kind::Quota
                | Kind::Suspended
                | Kind::NoMemory
                | Kind::Again
                | Kind::Interrupted
        )
    }

    /// The whole sentence, if there is one.
    pub fn what(&self) -> Option<&str> {
        self.what.as_ref().map(|w| &*w.text)
    }

    /// What it concerns, if that is said apart from the reason.
    pub fn subject(&self) -> Option<&str> {
        let w = self.what.as_ref()?;
        w.text.get(..w.subject?)
    }

    /// The sentence without the subject.
    pub fn reason(&self) -> Option<&str> {
        let w = self.what.as_ref()?;
        w.text.get(w.subject.map_or(0, |s| s + BETWEEN.len())..)
    }

    /// Why, where the kind does not tell enough.
    pub fn cause(&self) -> Option<Cause> {
        self.what.as_ref()?.cause
    }

    /// Whether its sentence names action and object ([`Error::sentence`]).
    pub fn is_sentence(&self) -> bool {
        self.what.as_ref().is_some_and(|w| w.whole)
    }

    /// Puts a subject in front of the sentence.
    pub fn context(self, subject: impl AsRef<str>) -> Error {
        let subject = subject.as_ref();
        let text = [subject, BETWEEN, &self.to_string()].concat();
        Error::with(self.kind, text, Some(subject.len()), self.cause())
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
        Error::new(kind, io_text(&e))
    }
}

/// What the system says of an error of its own, without the number that [`std::io::Error`] ends with: every message that has
/// the text of one takes it from here.
pub fn io_text(e: &std::io::Error) -> String {
    let text = e.to_string();
    let Some(number) = e.raw_os_error() else {
        return text;
    };
    match text.strip_suffix(&format!(" (os error {number})")) {
        Some(words) => words.to_string(),
        None => text,
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.what() {
            Some(w) => f.write_str(w),
            None => write!(f, "{:?}", self.kind),
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.what() {
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

/// `Err(Error::about(kind, subject, format!(...)))` in one word.
#[macro_export]
macro_rules! bail_about {
    ($kind:ident, $subject:expr, $($arg:tt)*) => {
        return Err($crate::Error::about($crate::Kind::$kind, $subject, format!($($arg)*)))
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subject_a_reason_and_a_cause_are_kept_apart() {
        let e = Error::about(Kind::Busy, "t/a: b@s", "it's: held").because(Cause::Refquota);
        assert_eq!(e.what(), Some("t/a: b@s: it's: held"));
        assert_eq!(e.subject(), Some("t/a: b@s"));
        assert_eq!(e.reason(), Some("it's: held"));
        assert_eq!((e.cause(), e.is_sentence()), (Some(Cause::Refquota), false));
        let outer = e.context("object 3");
        assert_eq!(outer.subject(), Some("object 3"));
        assert_eq!(outer.reason(), Some("t/a: b@s: it's: held"));
        assert_eq!(outer.cause(), Some(Cause::Refquota));

        let plain = Error::new(Kind::Invalid, "no: subject");
        assert_eq!(
            (plain.subject(), plain.reason()),
            (None, Some("no: subject"))
        );
        let bare = Error::from(Kind::NotFound);
        assert_eq!(
            (bare.what(), bare.subject(), bare.reason()),
            (None, None, None)
        );
        let bare = bare.because(Cause::NoDataset);
        assert_eq!(
            (bare.kind, bare.cause()),
            (Kind::NotFound, Some(Cause::NoDataset))
        );

        let whole = Error::sentence(Kind::Busy, "cannot mount 'x': busy");
        assert!(whole.is_sentence() && !whole.context("y").is_sentence());
    }

    #[test]
    fn errors_of_the_system_are_told_without_their_numbers() {
        use std::io::{Error as IoError, ErrorKind};
        let missing = || IoError::from_raw_os_error(Kind::NotFound.errno());
        assert_eq!(io_text(&missing()), "No such file or directory");
        let e = Error::from(missing()).context("/x");
        assert_eq!(e.to_string(), "/x: No such file or directory");
        // What is no error of the system is told as it is.
        let own = IoError::new(ErrorKind::NotFound, "gone (os error 2)");
        assert_eq!(io_text(&own), "gone (os error 2)");
        for n in 1..200 {
            let text = io_text(&IoError::from_raw_os_error(n));
            assert!(!text.is_empty() && !text.contains("os error"), "{text}");
        }
    }
}
