//! Messages of refused sends.

use crate::datasets;
use api::ApiError;
use base::Kind;

/// `warning: cannot send 'NAME': REASON`
pub fn refusal(kind: Kind, name: &str, why: &str) -> ApiError {
    ApiError::sentence(kind, format!("warning: cannot send '{name}': {why}"))
}

/// An error of the engine about the stream of `name`.
pub fn failure(name: &str, e: base::Error) -> ApiError {
    let kind = e.kind;
    refusal(kind, name, &datasets::plain(e, name).message)
}
