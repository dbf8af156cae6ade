//! Messages of refused and failed receives, in OpenZFS's words.

use api::ApiError;
use base::{Cause, Error, Kind};
use disk::stream::{feature, Begin};

/// Beginning of the refusals of a full stream.
pub const NEW: &str = "cannot receive new filesystem stream";
/// Beginning of the refusals of an increment.
pub const INCREMENTAL: &str = "cannot receive incremental stream";

/// `cannot receive: WHY`
pub fn plain(kind: Kind, why: impl AsRef<str>) -> ApiError {
    sentence(kind, "cannot receive", why)
}

/// `WHAT: WHY`
pub fn sentence(kind: Kind, what: &str, why: impl AsRef<str>) -> ApiError {
    ApiError::sentence(kind, format!("{what}: {}", why.as_ref()))
}

/// Features of a stream that are refused before anything else is asked.
pub fn features(begin: &Begin) -> Result<(), ApiError> {
    if begin.features & (feature::DEDUP | feature::DEDUP_PROPS) != 0 {
        return Err(plain(
            Kind::Unsupported,
            "stream has deprecated feature: dedup, try 'zstream redup [send in a file] | zfs recv [...]'",
        ));
    }
    if begin.features & !feature::KNOWN != 0 {
        let more = begin.features & !feature::KNOWN;
        return Err(plain(
            Kind::Unsupported,
            format!(
                "stream has unsupported feature, feature flags = {:x} (unknown flags = {more:x})",
                begin.features
            ),
        ));
    }
    Ok(())
}

/// What came in the way of a stream into a dataset.
pub fn into(what: &str, fs: &str, e: &Error) -> ApiError {
    match e.kind {
        Kind::Quota => {
            let why = format!("destination {fs} space quota exceeded.");
            sentence(e.kind, what, why)
        }
        _ => stream(what, e),
    }
}

/// What was wrong with a stream, or came in its way.
pub fn stream(what: &str, e: &Error) -> ApiError {
    let why = match e.kind {
        Kind::Checksum => "checksum mismatch".to_string(),
        Kind::NoData => "incomplete stream".to_string(),
        Kind::Invalid if e.cause() == Some(Cause::NotAStream) => {
            "invalid stream (bad magic number)".to_string()
        }
        Kind::Invalid => match e.what() {
            Some(w) => format!("invalid backup stream: {w}"),
            None => "invalid backup stream".to_string(),
        },
        Kind::NoSpace => "out of space".to_string(),
        Kind::Quota => "destination space quota exceeded.".to_string(),
        Kind::Busy => match e.what() {
            Some(w) => w.to_string(),
            None => "dataset is busy".to_string(),
        },
        _ => e.what().map_or_else(|| e.to_string(), str::to_string),
    };
    sentence(e.kind, what, why)
}
