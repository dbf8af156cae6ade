//! Errors of requests: what the commands show when the daemon refuses or fails.

use base::{Error, Kind};
use serde::{Deserialize, Serialize};
use std::fmt;

/// A failure. The command prints `details` (each a line of its own), then either
/// `cannot ACTION 'OBJECT': message` or, when `whole` is set, `message` alone, then `hint`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApiError {
    /// errno of Linux that a system call would give.
    pub code: i32,
    /// The reason (`pool is busy`), or the full sentence when `whole`.
    pub message: String,
    /// `message` is a full sentence naming action and object.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub whole: bool,
    /// What to do about it; printed on a line of its own after the message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// Lines printed before the message.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub details: Vec<String>,
}

impl ApiError {
    /// A reason without action and object: the command puts `cannot ACTION 'OBJECT': ` in front.
    pub fn reason(kind: Kind, message: impl Into<String>) -> ApiError {
        ApiError {
            code: kind.errno(),
            message: message.into(),
            ..ApiError::default()
        }
    }

    /// A full sentence, printed as it is.
    pub fn sentence(kind: Kind, message: impl Into<String>) -> ApiError {
        ApiError {
            whole: true,
            ..ApiError::reason(kind, message)
        }
    }

    /// `cannot open 'NAME': no such pool`
    pub fn no_such_pool(name: &str) -> ApiError {
        ApiError::sentence(
            Kind::NotFound,
            format!("cannot open '{name}': no such pool"),
        )
    }

    /// `cannot open 'NAME': dataset does not exist`
    pub fn no_such_dataset(name: &str) -> ApiError {
        ApiError::sentence(
            Kind::NotFound,
            format!("cannot open '{name}': dataset does not exist"),
        )
    }

    /// `cannot open 'FS#NAME': no such pool or dataset`: the file system is there.
    pub fn no_such_bookmark(name: &str) -> ApiError {
        ApiError::sentence(
            Kind::NotFound,
            format!("cannot open '{name}': no such pool or dataset"),
        )
    }

    /// What speaks against using some devices, a line for each. `overridable`: `-f` goes over it.
    pub fn vdevs(overridable: bool, lines: &[String]) -> ApiError {
        let head = if overridable {
            "use '-f' to override the following errors:"
        } else {
            "the following errors must be manually repaired:"
        };
        ApiError::sentence(
            Kind::Busy,
            format!("invalid vdev specification\n{head}\n{}", lines.join("\n")),
        )
    }

    /// Adds what to do about it.
    pub fn hint(mut self, hint: impl Into<String>) -> ApiError {
        self.hint = Some(hint.into());
        self
    }

    /// Adds a line printed before the message.
    pub fn detail(mut self, line: impl Into<String>) -> ApiError {
        self.details.push(line.into());
        self
    }

    /// The one sentence for a request whose action and object are `cannot ACTION 'OBJECT'`.
    pub fn sentence_for(&self, action: &str, object: &str) -> String {
        if self.whole {
            self.message.clone()
        } else {
            format!("cannot {action} '{object}': {}", self.message)
        }
    }
}

/// Generic reason of a kind, in the words of the commands (command reference §21).
pub fn reason_of(kind: Kind) -> &'static str {
    match kind {
        Kind::NotPermitted | Kind::Access => "permission denied",
        Kind::NotFound => "dataset does not exist",
        Kind::Exists => "dataset already exists",
        Kind::Busy => "pool or dataset is busy",
        Kind::NoSpace => "out of space",
        Kind::Quota => "out of space: quota exceeded",
        Kind::ReadOnly => "pool or dataset is read-only",
        Kind::Suspended => "pool I/O is currently suspended",
        Kind::NoDevice | Kind::NoSuchDevice => "no such device in pool",
        Kind::NameTooLong => "name is too long",
        Kind::Unsupported | Kind::NotImplemented => "operation not supported",
        Kind::Io => "I/O error",
        Kind::Checksum => "checksum mismatch on every copy",
        Kind::Damaged => "damaged data on the devices",
        Kind::Bug => "internal error",
        Kind::NoMemory => "out of memory",
        Kind::Invalid => "invalid argument",
        Kind::Interrupted => "interrupted",
        Kind::CrossDevice => "operation crosses pools",
        Kind::Overflow | Kind::Range | Kind::FileTooBig => "value is too large",
        Kind::NotDir => "not a directory",
        Kind::IsDir => "is a directory",
        Kind::NotEmpty => "directory is not empty",
        Kind::Stale => "stale handle",
        _ => "operation failed",
    }
}

impl From<Error> for ApiError {
    /// The error's own sentence becomes the message; without one, the generic words of its kind are the reason.
    fn from(e: Error) -> ApiError {
        let message = e
            .what()
            .map_or_else(|| reason_of(e.kind).to_string(), str::to_string);
        ApiError {
            whole: e.is_sentence(),
            ..ApiError::reason(e.kind, message)
        }
    }
}

impl From<Kind> for ApiError {
    fn from(kind: Kind) -> ApiError {
        ApiError::reason(kind, reason_of(kind))
    }
}

impl From<std::io::Error> for ApiError {
    fn from(e: std::io::Error) -> ApiError {
        Error::from(e).into()
    }
}

impl fmt::Display for ApiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for ApiError {}
